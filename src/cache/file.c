#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "cache/cache.h"
#include "cache/disk.h"

/* Header: magic (8 bytes), format version (u32), zero (u32), key (32), payload length (u64), payload SHA-256 (32). Little endian.
 * Each byte of it is checked, so there is none whose damage goes unseen. */
enum { AT_VERSION = 8, AT_ZERO = 12, AT_KEY = 16, AT_LENGTH = 48, AT_SUM = 56, FORMAT_VERSION = 1 };
static const char magic[8] = {'t', 't', 'c', '.', 'e', 'x', 'e', '\n'};

/* A file not touched for this long is touched when read: often enough for LRU, seldom enough to cost nothing. */
#define TOUCH_AFTER_S 600

static void store_le(unsigned char *p, int n, uint64_t x) {
  for (int i = 0; i < n; i++) {
    p[i] = (unsigned char)(x >> (8 * i));
  }
}

void ttc__file_header(unsigned char header[TTC__FILE_HEADER], const unsigned char key[TTC__DIGEST], const void *bytes,
                      size_t nbyte) {
  memcpy(header, magic, sizeof magic);
  store_le(header + AT_VERSION, 4, FORMAT_VERSION);
  store_le(header + AT_ZERO, 4, 0);
  memcpy(header + AT_KEY, key, TTC__DIGEST);
  store_le(header + AT_LENGTH, 8, nbyte);
  ttc__sha256(bytes, nbyte, header + AT_SUM);
}

bool ttc__file_check(const unsigned char *bytes, size_t n, const unsigned char key[TTC__DIGEST]) {
  unsigned char want[AT_SUM], sum[TTC__DIGEST];
  if (n < TTC__FILE_HEADER) {
    return false;
  }
  size_t nbyte = n - TTC__FILE_HEADER;
  memcpy(want, magic, sizeof magic);
  store_le(want + AT_VERSION, 4, FORMAT_VERSION);
  store_le(want + AT_ZERO, 4, 0);
  memcpy(want + AT_KEY, key, TTC__DIGEST);
  store_le(want + AT_LENGTH, 8, nbyte);
  if (memcmp(bytes, want, sizeof want) != 0) {
    return false; /* before the costly part */
  }
  ttc__sha256(bytes + TTC__FILE_HEADER, nbyte, sum);
  return memcmp(bytes + AT_SUM, sum, sizeof sum) == 0;
}

static int read_all(int fd, char *bytes, size_t n) {
  for (size_t done = 0; done < n;) {
    ssize_t got = read(fd, bytes + done, n - done);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return got < 0 ? errno : EIO; /* shrank meanwhile */
    }
    done += (size_t)got;
  }
  return 0;
}

static void touch_if_old(int fd, const struct stat *st) {
  struct timespec now, both[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
  clock_gettime(CLOCK_REALTIME, &now);
  if (now.tv_sec - st->st_mtim.tv_sec > TOUCH_AFTER_S) {
    (void)futimens(fd, both); /* on a read-only disk its age matters to nobody */
  }
}

int ttc__file_read(int dirfd, const char *name, char **bytes, size_t *nbyte) {
  /* O_NONBLOCK: a FIFO put there must not hang us. */
  int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) {
    return errno;
  }
  struct stat st;
  char *p = NULL;
  int e = fstat(fd, &st) != 0 ? errno : 0;
  if (e == 0 && (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022) != 0)) {
    e = EPERM;
  }
  if (e == 0) {
    p = malloc((size_t)st.st_size + 1);
    e = p == NULL ? ENOMEM : read_all(fd, p, (size_t)st.st_size);
  }
  if (e == 0) {
    touch_if_old(fd, &st);
    *bytes = p;
    *nbyte = (size_t)st.st_size;
  } else {
    free(p);
  }
  close(fd);
  return e;
}

static int write_all(int fd, const char *bytes, size_t n) {
  for (size_t done = 0; done < n;) {
    ssize_t put = write(fd, bytes + done, n - done);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      return put < 0 ? errno : EIO;
    }
    done += (size_t)put;
  }
  return 0;
}

int ttc__file_write(int dirfd, const char *tmp, const char *name, const void *head, size_t nhead, const void *body, size_t nbody) {
  /* Writing past the file size limit would raise SIGXFSZ, which ends the process by default. */
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && nhead + nbody > limit.rlim_cur) {
    return EFBIG;
  }
  int fd = openat(dirfd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    return errno;
  }
  int e = write_all(fd, head, nhead);
  if (e == 0) {
    e = write_all(fd, body, nbody);
  }
  /* A quota may only show here. No fsync: after a crash the checksum tells, and the program is compiled again. */
  if (close(fd) != 0 && e == 0) {
    e = errno;
  }
  if (e == 0 && renameat(dirfd, tmp, dirfd, name) != 0) {
    e = errno;
  }
  if (e != 0) {
    unlinkat(dirfd, tmp, 0);
  }
  return e;
}

void ttc__hex(const unsigned char *bytes, size_t n, char *out) {
  static const char digits[] = "0123456789abcdef";
  for (size_t i = 0; i < n; i++) {
    out[2 * i] = digits[bytes[i] >> 4];
    out[2 * i + 1] = digits[bytes[i] & 15];
  }
  out[2 * n] = '\0';
}
