#include "cache/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/log.h"
#include "cache/cache.h"

enum { MAX_FAILED_WRITES = 4, MAX_RECORD = 128, WRITES_PER_SCAN = 256 };
#define USAGE_FRESH_S 600 /* another process's scan is believed for this long */

struct ttc__disk {
  int fd;
  uint64_t cap;
  atomic_uint_fast64_t nerror, ntmp;
  atomic_int failed_writes; /* in a row */
  ttc__lock lock;           /* the fields below */
  bool scanning;
  uint64_t total;     /* bytes in use as of the last scan plus our writes since */
  int nwrite_to_scan; /* 0: the usage is not known yet */
};

/* What a scan found, for processes started soon after. */
typedef struct usage {
  int64_t at_s;
  uint64_t nbyte;
} usage;

typedef struct keypath {
  char shard[3], file[2 * TTC__DIGEST + 4], lock[2 * TTC__DIGEST + 9];
} keypath;

static keypath path_of(const unsigned char key[TTC__DIGEST]) {
  keypath p;
  char hex[2 * TTC__DIGEST + 1];
  ttc__hex(key, TTC__DIGEST, hex);
  snprintf(p.shard, sizeof p.shard, "%.2s", hex);
  snprintf(p.file, sizeof p.file, "%.2s/%s", hex, hex);
  snprintf(p.lock, sizeof p.lock, "%.2s/%s.lock", hex, hex);
  return p;
}

/* One line a process, however many things go wrong: nothing is lost but time. */
static void warn_once(const char *what, const char *where, int e) {
  static atomic_flag warned = ATOMIC_FLAG_INIT;
  ttc__log(atomic_flag_test_and_set(&warned) ? TTC__LOG_DEBUG : TTC__LOG_WARN, "compilation cache: %s%s%s%s; compiling without it",
           what, where, e != 0 ? ": " : "", e != 0 ? strerror(e) : "");
}

/* mkdir -p; 0 or an errno. */
static int make_dirs(const char *dir) {
  char path[4096];
  size_t n = strlen(dir);
  if (n == 0 || n >= sizeof path) {
    return n == 0 ? ENOENT : ENAMETOOLONG;
  }
  memcpy(path, dir, n + 1);
  for (size_t i = 1; i <= n; i++) {
    if (path[i] == '/' || path[i] == '\0') {
      char at = path[i];
      path[i] = '\0';
      /* A parent that cannot be made may be there all the same (EEXIST, EROFS, EACCES): the last one decides. */
      if (mkdir(path, 0700) != 0 && errno != EEXIST && at == '\0') {
        return errno;
      }
      path[i] = at;
    }
  }
  return 0;
}

ttc__disk *ttc__disk_open(const char *dir, uint64_t max_nbyte, uint64_t *nerror) {
  struct stat st;
  int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), e = errno;
  if (fd < 0 && e == ENOENT) {
    e = make_dirs(dir);
    fd = e != 0 ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    e = e != 0 ? e : errno;
  }
  if (fd < 0 || fstat(fd, &st) != 0) {
    warn_once("cannot use ", dir, e);
  } else if (st.st_uid != geteuid()) {
    warn_once("another user owns ", dir, 0);
  } else if ((st.st_mode & 022) != 0) {
    warn_once("others may write to ", dir, 0); /* loading an executable runs code */
  } else {
    ttc__disk *d = calloc(1, sizeof *d);
    if (d != NULL) {
      d->fd = fd;
      d->cap = max_nbyte;
      ttc__lock_init(&d->lock, TTC__RANK_CACHE);
      return d;
    }
  }
  if (fd >= 0) {
    close(fd);
  }
  (*nerror)++;
  return NULL;
}

void ttc__disk_free(ttc__disk *d) {
  if (d != NULL) {
    close(d->fd);
    ttc__lock_destroy(&d->lock);
    free(d);
  }
}

uint64_t ttc__disk_nerror(const ttc__disk *d) {
  return atomic_load(&d->nerror);
}
bool ttc__disk_writable(const ttc__disk *d) {
  return atomic_load(&d->failed_writes) < MAX_FAILED_WRITES;
}

void ttc__disk_reject(ttc__disk *d, const unsigned char key[TTC__DIGEST]) {
  keypath p = path_of(key);
  unlinkat(d->fd, p.file, 0);
  atomic_fetch_add(&d->nerror, 1);
  ttc__log(TTC__LOG_INFO, "compilation cache: deleted %s, damaged or not ours", p.file);
}

bool ttc__disk_read(ttc__disk *d, const unsigned char key[TTC__DIGEST], ttc__blob *out) {
  keypath p = path_of(key);
  char *bytes;
  size_t n;
  int e = ttc__file_read(d->fd, p.file, &bytes, &n);
  if (e == ENOENT) {
    return false;
  }
  if (e != 0) {
    if (e == EPERM || e == ELOOP || e == EIO) { /* not a file of ours; a passing shortage (ENOMEM, EMFILE) is no reason to delete */
      ttc__disk_reject(d, key);
    } else {
      atomic_fetch_add(&d->nerror, 1);
    }
    return false;
  }
  if (!ttc__file_check((const unsigned char *)bytes, n, key)) {
    free(bytes);
    ttc__disk_reject(d, key);
    return false;
  }
  *out = (ttc__blob){.bytes = bytes, .skip = TTC__FILE_HEADER, .nbyte = n - TTC__FILE_HEADER};
  return true;
}

/* Unique among this directory's writers, also those of other machines. */
static void name_tmp(ttc__disk *d, const char *base, char *out, size_t nout) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  snprintf(out, nout, "%s.%lx.%lx.%llx.tmp", base, (unsigned long)getpid(), (unsigned long)now.tv_nsec,
           (unsigned long long)atomic_fetch_add(&d->ntmp, 1));
}

bool ttc__disk_get_record(ttc__disk *d, const char *name, void *bytes, size_t n) {
  char *got;
  size_t ngot;
  unsigned char key[TTC__DIGEST];
  if (ttc__file_read(d->fd, name, &got, &ngot) != 0) {
    return false;
  }
  ttc__sha256(name, strlen(name), key);
  bool good = ngot == TTC__FILE_HEADER + n && ttc__file_check((const unsigned char *)got, ngot, key);
  if (good) {
    memcpy(bytes, got + TTC__FILE_HEADER, n);
  }
  free(got);
  return good;
}

void ttc__disk_put_record(ttc__disk *d, const char *name, const void *bytes, size_t n) {
  unsigned char head[TTC__FILE_HEADER], key[TTC__DIGEST];
  char tmp[MAX_RECORD + 80];
  ttc__sha256(name, strlen(name), key);
  ttc__file_header(head, key, bytes, n);
  name_tmp(d, name, tmp, sizeof tmp);
  (void)ttc__file_write(d->fd, tmp, name, head, sizeof head, bytes, n); /* then it is worked out again */
}

/* After a write of n bytes: keep the sum, and look at the directory when it may be over the cap. */
static void account(ttc__disk *d, uint64_t n) {
  usage u = {0};
  bool first, scan;
  int64_t now_s = (int64_t)time(NULL);
  ttc__lock_take(&d->lock);
  first = d->nwrite_to_scan == 0;
  d->total += n;
  if (!first) {
    d->nwrite_to_scan--;
  }
  scan = !d->scanning && (first || d->nwrite_to_scan == 0 || d->total > d->cap);
  d->scanning = d->scanning || scan;
  ttc__lock_drop(&d->lock);
  if (!scan) {
    return;
  }
  bool known = first && ttc__disk_get_record(d, "usage", &u, sizeof u) && u.at_s <= now_s && now_s - u.at_s < USAGE_FRESH_S;
  uint64_t total = known ? u.nbyte + n : 0;
  if (!known || total > d->cap) {
    total = ttc__evict(d->fd, d->cap, d->cap / 10 * 9);
    u = (usage){.at_s = now_s, .nbyte = total};
    ttc__disk_put_record(d, "usage", &u, sizeof u);
  }
  if (total > d->cap) {
    atomic_store(&d->failed_writes, MAX_FAILED_WRITES); /* nothing could be deleted: add no more */
  }
  ttc__lock_take(&d->lock);
  d->total = total;
  d->nwrite_to_scan = WRITES_PER_SCAN;
  d->scanning = false;
  ttc__lock_drop(&d->lock);
}

void ttc__disk_write(ttc__disk *d, const unsigned char key[TTC__DIGEST], const char *bytes, size_t nbyte) {
  keypath p = path_of(key);
  unsigned char head[TTC__FILE_HEADER];
  char tmp[sizeof p.file + 80];
  if (nbyte + sizeof head > d->cap) {
    return; /* it would only push out everything else */
  }
  ttc__file_header(head, key, bytes, nbyte);
  name_tmp(d, p.file, tmp, sizeof tmp);
  int e = ttc__file_write(d->fd, tmp, p.file, head, sizeof head, bytes, nbyte);
  if (e == ENOENT) {
    e = mkdirat(d->fd, p.shard, 0700) != 0 && errno != EEXIST ? errno : 0;
    e = e != 0 ? e : ttc__file_write(d->fd, tmp, p.file, head, sizeof head, bytes, nbyte);
  }
  if (e != 0) {
    atomic_fetch_add(&d->nerror, 1);
    atomic_fetch_add(&d->failed_writes, 1);
    warn_once("cannot write ", p.file, e);
    return;
  }
  atomic_store(&d->failed_writes, 0);
  account(d, sizeof head + nbyte);
}

/* Is fd still the file of that name? Not when its last owner unlinked it. */
static bool still_there(ttc__disk *d, const char *name, int fd) {
  struct stat mine, theirs;
  return fstat(fd, &mine) == 0 && fstatat(d->fd, name, &theirs, AT_SYMLINK_NOFOLLOW) == 0 && mine.st_ino == theirs.st_ino &&
         mine.st_dev == theirs.st_dev;
}

int ttc__disk_lock(ttc__disk *d, const unsigned char key[TTC__DIGEST], int64_t timeout_ns) {
  keypath p = path_of(key);
  int64_t until = ttc__now_ns() + timeout_ns, nap_ns = 1000000;
  for (;;) {
    int fd = openat(d->fd, p.lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == ENOENT && (mkdirat(d->fd, p.shard, 0700) == 0 || errno == EEXIST)) {
      fd = openat(d->fd, p.lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    }
    if (fd < 0) {
      return -1;
    }
    int e = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (e == 0 && still_there(d, p.lock, fd)) {
      return fd;
    }
    close(fd);
    if (e == 0) {
      continue;
    }
    if ((e != EWOULDBLOCK && e != EINTR) || ttc__now_ns() >= until) {
      return -1;
    }
    nanosleep(&(struct timespec){.tv_nsec = nap_ns}, NULL);
    nap_ns = nap_ns < 50000000 ? 2 * nap_ns : nap_ns;
  }
}

void ttc__disk_unlock(ttc__disk *d, const unsigned char key[TTC__DIGEST], int fd) {
  if (fd >= 0) {
    keypath p = path_of(key);
    unlinkat(d->fd, p.lock, 0);
    flock(fd, LOCK_UN); /* a forked child may share the descriptor, closing alone would not release */
    close(fd);
  }
}
