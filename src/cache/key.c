#include "cache/key.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cache/cache.h"

static void add_text(ttc__sha *s, const char *text) {
  ttc__sha_add_field(s, text, strlen(text));
}

static bool hash_file(int fd, ttc__sha *s) {
  enum { CHUNK = 1 << 18 };
  char *chunk = malloc(CHUNK);
  ssize_t n = -1;
  while (chunk != NULL && (n = read(fd, chunk, CHUNK)) > 0) {
    ttc__sha_add(s, chunk, (size_t)n);
  }
  free(chunk);
  return n == 0;
}

/* SHA-256 of the file; 0.2 GB take 0.1 to 1 s, so it is remembered for as long as the file looks untouched. False when
 * unreadable. */
static bool hash_plugin(ttc__disk *d, const char *path, unsigned char digest[TTC__DIGEST]) {
  struct {
    unsigned char identity[TTC__DIGEST], contents[TTC__DIGEST];
  } memo;
  struct stat st;
  char name[40], hex[17], *real = realpath(path, NULL);
  unsigned char of_path[TTC__DIGEST], identity[TTC__DIGEST];
  int fd = open(real != NULL ? real : path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &st) != 0) {
    if (fd >= 0) {
      close(fd);
    }
    free(real);
    return false;
  }
  const char *where = real != NULL ? real : path;
  ttc__sha s;
  ttc__sha_init(&s);
  add_text(&s, where);
  uint64_t parts[] = {(uint64_t)st.st_ino,          (uint64_t)st.st_size,        (uint64_t)st.st_mtim.tv_sec,
                      (uint64_t)st.st_mtim.tv_nsec, (uint64_t)st.st_ctim.tv_sec, (uint64_t)st.st_ctim.tv_nsec};
  ttc__sha_add_field(&s, parts, sizeof parts);
  ttc__sha_end(&s, identity);
  ttc__sha256(where, strlen(where), of_path);
  free(real);
  ttc__hex(of_path, 8, hex);
  snprintf(name, sizeof name, "plugin-%s", hex);

  bool known = ttc__disk_get_record(d, name, &memo, sizeof memo) && memcmp(memo.identity, identity, sizeof identity) == 0;
  bool good = known;
  if (!known) {
    ttc__sha_init(&s);
    good = hash_file(fd, &s);
    ttc__sha_end(&s, memo.contents);
    memcpy(memo.identity, identity, sizeof identity);
  }
  if (good && !known) {
    ttc__disk_put_record(d, name, &memo, sizeof memo);
  }
  close(fd);
  memcpy(digest, memo.contents, sizeof memo.contents);
  return good;
}

/* XLA:CPU compiles for the features of the CPU it runs on, and a home directory may be shared by unlike machines. */
static void add_cpu(ttc__sha *s) {
  struct utsname name = {0};
  char line[8192];
  bool found = false;
  FILE *f = fopen("/proc/cpuinfo", "re");
  uname(&name);
  add_text(s, name.machine);
  while (f != NULL && !found && fgets(line, sizeof line, f) != NULL) {
    found = strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0;
  }
  if (f != NULL) {
    fclose(f);
  }
  add_text(s, found ? line : name.nodename); /* unknown features: share with no other machine */
}

void ttc__key_base(ttc__disk *d, pjrt_plugin *plugin, pjrt_client *client, unsigned char base[TTC__DIGEST]) {
  static const char *const variables[] = {"XLA_FLAGS", "LIBTPU_INIT_ARGS"};
  unsigned char contents[TTC__DIGEST];
  ttc_device_info info = {0};
  ttc__sha s;
  int version[3];
  ttc__sha_init(&s);
  if (hash_plugin(d, pjrt_plugin_path(plugin), contents)) {
    ttc__sha_add_field(&s, contents, sizeof contents);
  } else {
    add_text(&s, pjrt_plugin_path(plugin)); /* loaded, then deleted or closed to us: its version strings below have to do */
  }
  pjrt_plugin_version(plugin, &version[0], &version[1]);
  version[2] = pjrt_client_ndevice(client);
  ttc__sha_add_field(&s, version, sizeof version);
  pjrt_client_info(client, &info);
  add_text(&s, info.platform);
  add_text(&s, info.platform_version);
  add_text(&s, info.device_kind);
  add_cpu(&s);
  for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
    const char *value = getenv(variables[i]);
    add_text(&s, value != NULL ? value : "");
  }
  ttc__sha_end(&s, base);
}

void ttc__key_program(const unsigned char base[TTC__DIGEST], int device, const char *text, size_t nbyte, const char *const *flags,
                      unsigned char key[TTC__DIGEST]) {
  ttc__sha s;
  size_t nflag = 0;
  while (flags != NULL && flags[nflag] != NULL) {
    nflag++;
  }
  uint64_t head[2] = {(uint64_t)(int64_t)device, nflag};
  ttc__sha_init(&s);
  ttc__sha_add(&s, base, TTC__DIGEST);
  ttc__sha_add_field(&s, head, sizeof head);
  for (size_t i = 0; i < nflag; i++) {
    add_text(&s, flags[i]);
  }
  ttc__sha_add_field(&s, text, nbyte);
  ttc__sha_end(&s, key);
}
