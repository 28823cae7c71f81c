/* The disk cache with the fake plugin: what is damaged, foreign, unsafe, full or contended is compiled, never loaded, never an
 * error. */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"
#include "cache/cache.h"
#include "cache/disk.h"
#include "cache/key.h"
#include "check.h"
#include "fake_plugin.h"

static char root[512]; /* removed at the end */
static pjrt_plugin *plugin;
static pjrt_client *client;

/* ---- helpers */

static const char *at_root(const char *name) {
  static char path[4][1024];
  static int turn;
  char *p = path[turn++ % 4];
  snprintf(p, sizeof path[0], "%s/%s", root, name);
  return p;
}

static void run(const char *fmt, const char *arg) {
  char command[2048];
  snprintf(command, sizeof command, fmt, arg);
  CHECK_EQ(system(command), 0);
}

/* A program that differs for each i: adds f32[i + 1]. */
static size_t program(int i, char *text, size_t cap) {
  return (size_t)snprintf(
      text, cap,
      "module @m {\n  func.func public @main(%%arg0: tensor<%dxf32>, %%arg1: tensor<%dxf32>) -> (tensor<%dxf32>) {\n"
      "    %%0 = stablehlo.add %%arg0, %%arg1 : tensor<%dxf32>\n    return %%0 : tensor<%dxf32>\n  }\n}\n",
      i + 1, i + 1, i + 1, i + 1, i + 1);
}

static bool get(ttc__cache *c, int i) {
  char text[512];
  size_t n = program(i, text, sizeof text);
  pjrt_exe *exe = NULL;
  ttc_error err = {0};
  ttc_status s = ttc__cache_get(c, 0, text, n, NULL, &exe, &err);
  if (s != TTC_OK) {
    fprintf(stderr, "get: %s\n", err.message);
    return false;
  }
  bool good = exe != NULL && pjrt_exe_nout(exe) == 1;
  pjrt_exe_free(exe);
  return good;
}

static ttc__cache_stats stats(ttc__cache *c) {
  ttc__cache_stats s;
  ttc__cache_get_stats(c, &s);
  return s;
}

/* A fresh cache object in dir gets program i: its counts. */
static ttc__cache_stats get_fresh(const char *dir, int i) {
  ttc__cache *c = ttc__cache_open(dir, plugin, client);
  CHECK(c != NULL && get(c, i));
  ttc__cache_stats s = stats(c);
  ttc__cache_free(c);
  return s;
}

/* Files in dir's shards: how many executables, how many others; the sum of executables; the last one's path. */
typedef struct files {
  int nexe, nother;
  uint64_t nbyte;
  char path[1400];
} files;

static files list_files(const char *dir) {
  files f = {0};
  for (int i = 0; i < 256; i++) {
    char shard[1100];
    snprintf(shard, sizeof shard, "%s/%02x", dir, (unsigned)i);
    DIR *d = opendir(shard);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
      struct stat st;
      char path[1400];
      snprintf(path, sizeof path, "%s/%s", shard, e->d_name);
      if (e->d_name[0] == '.' || stat(path, &st) != 0) {
        continue;
      }
      if (strlen(e->d_name) == 2 * TTC__DIGEST) {
        f.nexe++;
        f.nbyte += (uint64_t)st.st_size;
        memcpy(f.path, path, sizeof path);
      } else {
        f.nother++;
      }
    }
    if (d != NULL) {
      closedir(d);
    }
  }
  return f;
}

static unsigned char *read_file(const char *path, size_t *n) {
  FILE *f = fopen(path, "rb");
  unsigned char *bytes = malloc(1 << 22);
  *n = f != NULL && bytes != NULL ? fread(bytes, 1, 1 << 22, f) : 0;
  if (f != NULL) {
    fclose(f);
  }
  return bytes;
}

static void write_file(const char *path, const void *bytes, size_t n) {
  FILE *f = fopen(path, "wb");
  CHECK(f != NULL && fwrite(bytes, 1, n, f) == n);
  if (f != NULL) {
    fclose(f);
    chmod(path, 0600);
  }
}

static void set_age(const char *path, int seconds) {
  struct timespec now, t[2];
  clock_gettime(CLOCK_REALTIME, &now);
  t[0] = t[1] = (struct timespec){.tv_sec = now.tv_sec - seconds};
  CHECK_EQ(utimensat(AT_FDCWD, path, t, 0), 0);
}

/* ---- tests */

static void test_hit_and_miss(void) {
  const char *dir = at_root("a/b/hit"); /* parents are made */
  ttc__cache_stats s = get_fresh(dir, 0);
  CHECK_EQ(s.compiled, 1);
  CHECK_EQ(s.loaded, 0);
  CHECK_EQ(s.errors, 0);
  CHECK(s.compile_ns > 0);
  s = get_fresh(dir, 0);
  CHECK_EQ(s.compiled, 0);
  CHECK_EQ(s.loaded, 1);
  CHECK_EQ(s.errors, 0);
  s = get_fresh(dir, 1);
  CHECK_EQ(s.compiled, 1);
  files f = list_files(dir);
  CHECK_EQ(f.nexe, 2);
  CHECK_EQ(f.nother, 0); /* neither locks nor temporary files stay */
  struct stat st;
  CHECK(stat(dir, &st) == 0 && (st.st_mode & 0777) == 0700);
  CHECK(stat(f.path, &st) == 0 && (st.st_mode & 0777) == 0600);
}

static void test_key_parts(void) {
  unsigned char base[2][TTC__DIGEST] = {{0}, {1}}, key[8][TTC__DIGEST];
  const char *const one[] = {"a=1", NULL}, *const two[] = {"a=", "1", NULL}, *const none[] = {NULL};
  ttc__key_program(base[0], 0, "text", 4, NULL, key[0]);
  ttc__key_program(base[1], 0, "text", 4, NULL, key[1]);
  ttc__key_program(base[0], 1, "text", 4, NULL, key[2]);
  ttc__key_program(base[0], 0, "texts", 5, NULL, key[3]);
  ttc__key_program(base[0], 0, "text", 4, one, key[4]);
  ttc__key_program(base[0], 0, "text", 4, two, key[5]);
  for (int i = 0; i < 6; i++) {
    for (int j = 0; j < i; j++) {
      CHECK(memcmp(key[i], key[j], TTC__DIGEST) != 0);
    }
  }
  ttc__key_program(base[0], 0, "text", 4, none, key[6]);
  CHECK(memcmp(key[0], key[6], TTC__DIGEST) == 0);
}

/* The plugin's digest is remembered, and a damaged memory of it is worked out again, to the same keys. */
static void test_plugin_memo(void) {
  const char *dir = at_root("memo");
  get_fresh(dir, 0);
  run("test $(ls %s/plugin-* | wc -l) = 1", dir);
  run("for f in %s/plugin-*; do printf x | dd of=$f bs=1 seek=100 conv=notrunc 2>/dev/null; done", dir);
  CHECK_EQ(get_fresh(dir, 0).loaded, 1);
  setenv("XLA_FLAGS", "--xla_fake=1", 1);
  CHECK_EQ(get_fresh(dir, 0).compiled, 1); /* another program, for all we know */
  unsetenv("XLA_FLAGS");
}

static void check_damaged(const char *dir, const char *path, const void *bytes, size_t n) {
  write_file(path, bytes, n);
  ttc__cache_stats s = get_fresh(dir, 0);
  CHECK_EQ(s.compiled, 1);
  CHECK_EQ(s.loaded, 0);
  CHECK_EQ(s.errors, 1);
  CHECK_EQ(get_fresh(dir, 0).loaded, 1); /* it was replaced */
}

static void test_damage(void) {
  const char *dir = at_root("damage");
  get_fresh(dir, 0);
  files f = list_files(dir);
  size_t n;
  unsigned char *bytes = read_file(f.path, &n);
  CHECK(n > TTC__FILE_HEADER);
  size_t step = n / 8 + 1;
  for (size_t i = 0; i < n; i += i < TTC__FILE_HEADER + 2 ? 1 : step) {
    bytes[i] ^= (unsigned char)(1u << (i % 8));
    check_damaged(dir, f.path, bytes, n);
    bytes[i] ^= (unsigned char)(1u << (i % 8));
  }
  const size_t lengths[] = {0, 1, 8, TTC__FILE_HEADER - 1, TTC__FILE_HEADER, TTC__FILE_HEADER + 1, n - 1};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    check_damaged(dir, f.path, bytes, lengths[i]);
  }
  bytes[n] = 0; /* read_file's buffer is larger */
  check_damaged(dir, f.path, bytes, n + 1);
  free(bytes);
}

/* A good file of another program, under this one's name; a file that others may write; a directory and a link in its place. */
static void test_foreign(void) {
  const char *dir = at_root("foreign");
  get_fresh(dir, 0);
  files f = list_files(dir);
  size_t n;
  char other[1100];
  snprintf(other, sizeof other, "%s", at_root("foreign2"));
  get_fresh(other, 1);
  unsigned char *bytes = read_file(list_files(other).path, &n);
  check_damaged(dir, f.path, bytes, n);
  free(bytes);
  bytes = read_file(f.path, &n);
  CHECK_EQ(chmod(f.path, 0666), 0);
  CHECK_EQ(get_fresh(dir, 0).compiled, 1);
  CHECK_EQ(get_fresh(dir, 0).loaded, 1);
  write_file(at_root("elsewhere"), bytes, n);
  unlink(f.path);
  CHECK_EQ(symlink(at_root("elsewhere"), f.path), 0);
  CHECK_EQ(get_fresh(dir, 0).compiled, 1);
  CHECK_EQ(get_fresh(dir, 0).loaded, 1);
  unlink(f.path);
  CHECK_EQ(mkfifo(f.path, 0600), 0);
  CHECK_EQ(get_fresh(dir, 0).compiled, 1);
  CHECK_EQ(get_fresh(dir, 0).loaded, 1);
  unlink(f.path);
  CHECK_EQ(mkdir(f.path, 0700), 0);
  CHECK_EQ(get_fresh(dir, 0).compiled, 1);
  free(bytes);
  /* Whole and with our checksum, but the plugin cannot read it. */
  unsigned char head[TTC__FILE_HEADER], key[TTC__DIGEST], base[TTC__DIGEST];
  char text[512], junk[TTC__FILE_HEADER + 4];
  dir = at_root("junk");
  get_fresh(dir, 0);
  ttc__disk *d = ttc__disk_open(dir, 1 << 20, &(uint64_t){0});
  CHECK(d != NULL);
  ttc__key_base(d, plugin, client, base);
  ttc__key_program(base, 0, text, program(0, text, sizeof text), NULL, key);
  ttc__disk_free(d);
  ttc__file_header(head, key, "junk", 4);
  memcpy(junk, head, sizeof head);
  memcpy(junk + sizeof head, "junk", 4);
  check_damaged(dir, list_files(dir).path, junk, sizeof junk);
}

static void test_unsafe_dirs(void) {
  const char *dir = at_root("open");
  for (int mode = 0; mode < 2; mode++) {
    CHECK(mkdir(dir, 0700) == 0 && chmod(dir, mode == 0 ? 0777 : 0770) == 0);
    ttc__cache_stats s = get_fresh(dir, 0);
    CHECK_EQ(s.compiled, 1);
    CHECK_EQ(s.errors, 1);
    CHECK_EQ(get_fresh(dir, 0).compiled, 1);
    CHECK_EQ(rmdir(dir), 0); /* nothing was put there */
  }
  /* A link to an open directory is refused as well, one to a safe directory is fine. */
  CHECK(mkdir(dir, 0700) == 0 && chmod(dir, 0777) == 0);
  CHECK_EQ(symlink(dir, at_root("link")), 0);
  CHECK_EQ(get_fresh(at_root("link"), 0).errors, 1);
  CHECK_EQ(chmod(dir, 0700), 0);
  CHECK_EQ(get_fresh(at_root("link"), 0).errors, 0);
  CHECK_EQ(get_fresh(dir, 0).loaded, 1);
  if (geteuid() == 0) { /* only root can give a directory away */
    CHECK_EQ(chown(dir, 12345, 12345), 0);
    ttc__cache_stats s = get_fresh(dir, 0);
    CHECK_EQ(s.compiled, 1);
    CHECK_EQ(s.errors, 1);
  }
}

static void test_unusable_dirs(void) {
  char long_name[6000];
  memset(long_name, 'x', sizeof long_name - 1);
  long_name[0] = '/';
  long_name[sizeof long_name - 1] = '\0';
  write_file(at_root("file"), "x", 1);
  const char *const dirs[] = {"/dev/null/x", "/dev/null", at_root("file"), at_root("file/x/y"), "/proc/no/such/place"};
  for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
    ttc__cache_stats s = get_fresh(dirs[i], 0);
    CHECK_EQ(s.compiled, 1);
    CHECK_EQ(s.errors, 1);
  }
  CHECK_EQ(get_fresh(long_name, 0).compiled, 1);
  /* Removed while in use. */
  ttc__cache *c = ttc__cache_open(at_root("gone"), plugin, client);
  CHECK_EQ(get(c, 0), true);
  run("rm -r %s", at_root("gone"));
  for (int i = 0; i < 8; i++) {
    CHECK(get(c, i));
  }
  ttc__cache_stats s = stats(c);
  CHECK_EQ(s.compiled, 9);
  CHECK(s.errors >= 1 && s.errors <= 8); /* it gives up writing after a few */
  ttc__cache_free(c);
}

static void test_full_disk(void) {
  struct rlimit was, low;
  CHECK_EQ(getrlimit(RLIMIT_FSIZE, &was), 0);
  low = was;
  low.rlim_cur = 16;
  CHECK_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  ttc__cache *c = ttc__cache_open(at_root("full"), plugin, client);
  for (int i = 0; i < 6; i++) {
    CHECK(get(c, i));
  }
  ttc__cache_stats s = stats(c);
  CHECK_EQ(setrlimit(RLIMIT_FSIZE, &was), 0);
  CHECK_EQ(s.compiled, 6);
  CHECK_EQ(s.errors, 4);
  ttc__cache_free(c);
  files f = list_files(at_root("full"));
  CHECK_EQ(f.nexe, 0);
  CHECK_EQ(f.nother, 0);
  CHECK_EQ(get_fresh(at_root("full"), 0).errors, 0);
}

static void test_off(void) {
  setenv("TORCH_TPU_CACHE", "0", 1);
  ttc__cache *c = ttc__cache_open(at_root("off"), plugin, client);
  CHECK(get(c, 0) && get(c, 0));
  CHECK_EQ(stats(c).compiled, 2);
  CHECK_EQ(stats(c).errors, 0);
  ttc__cache_free(c);
  unsetenv("TORCH_TPU_CACHE");
  CHECK(access(at_root("off"), F_OK) != 0);
}

/* Which directory is taken when none is named. */
static void test_default_dir(void) {
  char home[1100], was[1100];
  snprintf(was, sizeof was, "%s", getenv("HOME") != NULL ? getenv("HOME") : "");
  snprintf(home, sizeof home, "%s", at_root("home"));
  setenv("HOME", home, 1);
  unsetenv("XDG_CACHE_HOME");
  unsetenv("TORCH_TPU_CACHE_DIR");
  get_fresh(NULL, 0);
  CHECK_EQ(list_files(at_root("home/.cache/torch_tpu")).nexe, 1);
  setenv("XDG_CACHE_HOME", "relative", 1);
  CHECK_EQ(get_fresh(NULL, 0).loaded, 1);
  setenv("XDG_CACHE_HOME", at_root("xdg"), 1);
  get_fresh(NULL, 0);
  CHECK_EQ(list_files(at_root("xdg/torch_tpu")).nexe, 1);
  setenv("TORCH_TPU_CACHE_DIR", at_root("named"), 1);
  get_fresh(NULL, 0);
  CHECK_EQ(list_files(at_root("named")).nexe, 1);
  unsetenv("TORCH_TPU_CACHE_DIR");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", was, 1);
}

static void test_cap(void) {
  char cap[32], first[1400];
  const char *dir = at_root("cap");
  get_fresh(dir, 0);
  files f = list_files(dir);
  uint64_t one = f.nbyte + 64; /* the others are about this large */
  snprintf(first, sizeof first, "%s", f.path);
  snprintf(cap, sizeof cap, "%llu", (unsigned long long)(one * 10));
  setenv("TORCH_TPU_CACHE_MAX_BYTES", cap, 1);
  ttc__cache *c = ttc__cache_open(dir, plugin, client);
  for (int i = 0; i < 8; i++) {
    CHECK(get(c, i));
  }
  CHECK_EQ(list_files(dir).nexe, 8);
  run("find %s -type f -exec touch -d '2 hours ago' {} +", dir);
  CHECK(get(c, 0)); /* now the most recently used */
  for (int i = 8; i < 30; i++) {
    CHECK(get(c, i));
    CHECK(list_files(dir).nbyte <= one * 10);
  }
  CHECK_EQ(stats(c).errors, 0);
  ttc__cache_free(c);
  CHECK(list_files(dir).nexe >= 5);
  /* A program larger than the cap is not kept, and pushes nothing out. */
  int before = list_files(dir).nexe;
  setenv("TORCH_TPU_CACHE_MAX_BYTES", "100", 1);
  CHECK_EQ(get_fresh(dir, 100).compiled, 1);
  CHECK_EQ(list_files(dir).nexe, before);
  setenv("TORCH_TPU_CACHE_MAX_BYTES", "much", 1); /* a warning and the default */
  CHECK_EQ(get_fresh(dir, 100).errors, 0);
  CHECK_EQ(list_files(dir).nexe, before + 1);
  unsetenv("TORCH_TPU_CACHE_MAX_BYTES");
}

/* The oldest goes first; leftovers of dead processes go, those of living ones stay. */
static void test_evict(void) {
  char name[2 * TTC__DIGEST + 1], path[1200];
  memset(name, 'a', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  mkdir(at_root("evict"), 0700);
  mkdir(at_root("evict/aa"), 0700);
  for (int i = 0; i < 10; i++) {
    name[10] = (char)('0' + i);
    snprintf(path, sizeof path, "%s/aa/%s", at_root("evict"), name);
    write_file(path, "0123456789", 10);
    set_age(path, i == 3 ? 0 : 1000 * (i + 1)); /* 3 was used last */
    if (i < 2) {
      snprintf(path, sizeof path, "%s/aa/%s.lock", at_root("evict"), name);
      write_file(path, "", 0);
      set_age(path, i == 0 ? 10 : 100000);
    }
  }
  int fd = open(at_root("evict"), O_RDONLY | O_DIRECTORY);
  CHECK_EQ(ttc__evict(fd, 100, 50), 100);
  CHECK_EQ(list_files(at_root("evict")).nexe, 10);
  CHECK_EQ(list_files(at_root("evict")).nother, 1);
  CHECK_EQ(ttc__evict(fd, 99, 35), 30);
  for (int i = 0; i < 10; i++) {
    name[10] = (char)('0' + i);
    snprintf(path, sizeof path, "%s/aa/%s", at_root("evict"), name);
    CHECK_EQ(access(path, F_OK) == 0, i == 0 || i == 1 || i == 3);
  }
  close(fd);
}

typedef struct racer {
  ttc__cache *cache;
  pthread_barrier_t *start;
  int nprogram;
  bool good;
} racer;

static void *race(void *arg) {
  racer *r = arg;
  r->good = true;
  for (int i = 0; i < r->nprogram; i++) {
    pthread_barrier_wait(r->start);
    r->good = get(r->cache, i) && r->good;
  }
  return NULL;
}

static void test_threads(void) {
  enum { NTHREAD = 8, NPROGRAM = 20 };
  for (int off = 0; off < 2; off++) {
    setenv("TORCH_TPU_CACHE", off ? "0" : "1", 1);
    pthread_t threads[NTHREAD];
    racer racers[NTHREAD];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, NTHREAD);
    ttc__cache *c = ttc__cache_open(at_root("threads"), plugin, client);
    for (int i = 0; i < NTHREAD; i++) {
      racers[i] = (racer){.cache = c, .start = &start, .nprogram = NPROGRAM};
      CHECK_EQ(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < NTHREAD; i++) {
      pthread_join(threads[i], NULL);
      CHECK(racers[i].good);
    }
    ttc__cache_stats s = stats(c);
    CHECK_EQ(s.compiled + s.loaded, NTHREAD * NPROGRAM);
    CHECK_EQ(s.errors, 0);
    if (!off) {
      CHECK_EQ(s.compiled, NPROGRAM);
    }
    ttc__cache_free(c);
    pthread_barrier_destroy(&start);
  }
  unsetenv("TORCH_TPU_CACHE");
  CHECK_EQ(list_files(at_root("threads")).nother, 0);
}

/* A compile error reaches every asker, and nothing is kept. */
static void test_compile_error(void) {
  ttc__cache *c = ttc__cache_open(at_root("error"), plugin, client);
  ttc_error err = {0};
  pjrt_exe *exe = NULL;
  CHECK(ttc__cache_get(c, 0, "", 0, NULL, &exe, &err) != TTC_OK);
  CHECK(exe == NULL && err.message[0] != '\0');
  ttc__cache_free(c);
  CHECK_EQ(list_files(at_root("error")).nexe, 0);
  CHECK_EQ(list_files(at_root("error")).nother, 0);
}

/* Each PJRT call fails once, on a miss and on a hit: an error can only be the compile's, nothing leaks, and the next try is good.
 */
static void test_plugin_failures(void) {
  void *lib = dlopen(pjrt_plugin_path(plugin), RTLD_NOW | RTLD_NOLOAD);
  CHECK(lib != NULL);
  union { /* ISO C has no cast from an object pointer to a function's */
    void *object;
    fake_plugin_fail_fn *fail;
    fake_plugin_live_fn *live;
  } fail = {dlsym(lib, "fake_plugin_fail")}, live = {dlsym(lib, "fake_plugin_live")};
  CHECK(fail.object != NULL && live.object != NULL);
  if (fail.object == NULL || live.object == NULL) {
    return;
  }
  static const char *const calls[] = {"PJRT_Executable_Serialize", "PJRT_Executable_DeserializeAndLoad"};
  char text[512];
  size_t n = program(0, text, sizeof text);
  for (int hit = 0; hit < 2; hit++) {
    const char *dir = at_root(hit ? "failhit" : "failmiss");
    if (hit) {
      get_fresh(dir, 0);
    }
    fail.fail(calls[hit], 1);
    ttc__cache_stats s = get_fresh(dir, 0);
    fail.fail(NULL, 0);
    CHECK_EQ(s.compiled, 1);
    CHECK_EQ(s.errors, 1);
    CHECK_EQ(list_files(dir).nexe, hit);
  }
  for (int nth = 1; nth <= 30; nth++) {
    const char *dir = at_root("failany");
    long before = live.live();
    ttc__cache *c = ttc__cache_open(dir, plugin, client);
    for (int hit = 0; hit < 2; hit++) {
      pjrt_exe *exe = NULL;
      ttc_error err = {0};
      fail.fail("any", nth);
      ttc_status s = ttc__cache_get(c, 0, text, n, NULL, &exe, &err);
      fail.fail(NULL, 0);
      CHECK(s == TTC_OK ? exe != NULL : exe == NULL && err.message[0] != '\0');
      pjrt_exe_free(exe);
      CHECK(get(c, 0));
    }
    ttc__cache_free(c);
    CHECK_EQ(live.live(), before);
    CHECK_EQ(list_files(dir).nother, 0);
    run("rm -r %s", dir);
  }
  dlclose(lib);
}

static void test_lock(void) {
  unsigned char key[TTC__DIGEST] = {7};
  ttc__disk *a = ttc__disk_open(at_root("lock"), 1 << 20, &(uint64_t){0}),
            *b = ttc__disk_open(at_root("lock"), 1 << 20, &(uint64_t){0});
  int fd = ttc__disk_lock(a, key, 0);
  CHECK(fd >= 0);
  int64_t start = ttc__now_ns();
  CHECK_EQ(ttc__disk_lock(b, key, 30000000), -1); /* bounded */
  int64_t took = ttc__now_ns() - start;
  CHECK(took >= 30000000 && took < 5000000000);
  ttc__disk_unlock(a, key, fd);
  CHECK_EQ(list_files(at_root("lock")).nother, 0);
  fd = ttc__disk_lock(b, key, 0);
  CHECK(fd >= 0);
  ttc__disk_unlock(b, key, fd);
  ttc__disk_free(a);
  ttc__disk_free(b);
}

static bool open_plugin(void) {
  ttc_error err = {0};
  const char *path = getenv("TTC_FAKE_PLUGIN");
  if (path == NULL) {
    fprintf(stderr, "set TTC_FAKE_PLUGIN\n");
    return false;
  }
  if (pjrt_plugin_load(path, &plugin, &err) != TTC_OK || pjrt_client_new(plugin, 1, &client, &err) != TTC_OK) {
    fprintf(stderr, "%s\n", err.message);
    return false;
  }
  return true;
}

/* Processes that start together compile each program once. Forked before the plugin is loaded. */
static void test_processes(void) {
  enum { NPROCESS = 6, NPROGRAM = 10 };
  int go[2], result[2];
  CHECK(pipe(go) == 0 && pipe(result) == 0);
  for (int p = 0; p < NPROCESS; p++) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      uint64_t count[3] = {0, 0, 1};
      char byte;
      close(go[1]);
      ttc__cache *c = open_plugin() ? ttc__cache_open(at_root("processes"), plugin, client) : NULL;
      if (c != NULL && read(go[0], &byte, 1) == 0) { /* until the parent closes its end */
        for (int i = 0; i < NPROGRAM; i++) {
          (void)get(c, i);
        }
        ttc__cache_stats s = stats(c);
        count[0] = s.compiled, count[1] = s.loaded, count[2] = s.errors;
      }
      ssize_t put = write(result[1], count, sizeof count);
      _exit(put != sizeof count);
    }
  }
  close(go[0]);
  close(go[1]);
  uint64_t compiled = 0, loaded = 0, errors = 0, count[3];
  for (int p = 0; p < NPROCESS && read(result[0], count, sizeof count) == sizeof count; p++) {
    compiled += count[0], loaded += count[1], errors += count[2];
  }
  for (int p = 0; p < NPROCESS; p++) {
    wait(NULL);
  }
  close(result[0]);
  close(result[1]);
  CHECK_EQ(compiled, NPROGRAM);
  CHECK_EQ(loaded, (NPROCESS - 1) * NPROGRAM);
  CHECK_EQ(errors, 0);
  CHECK_EQ(list_files(at_root("processes")).nother, 0);
}

int main(void) {
  const char *tmp = getenv("TMPDIR");
  snprintf(root, sizeof root, "%s/ttc-cache-XXXXXX", tmp != NULL && tmp[0] != '\0' ? tmp : P_tmpdir);
  if (mkdtemp(root) == NULL) {
    perror(root);
    return 1;
  }
  test_processes();
  if (!open_plugin()) {
    return 1;
  }
  test_hit_and_miss();
  test_key_parts();
  test_plugin_memo();
  test_damage();
  test_foreign();
  test_unsafe_dirs();
  test_unusable_dirs();
  test_full_disk();
  test_off();
  test_default_dir();
  test_cap();
  test_evict();
  test_threads();
  test_compile_error();
  test_plugin_failures();
  test_lock();
  pjrt_client_free(client);
  run("rm -rf '%s'", root);
  return CHECK_DONE();
}
