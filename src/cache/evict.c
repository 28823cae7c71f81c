#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cache/disk.h"

#define LEFTOVER_AFTER_S 3600 /* no compile or write takes this long: a .tmp or .lock this old has lost its process */

typedef struct entry {
  int64_t used_ns; /* modification time: reading touches it */
  uint64_t nbyte;
  char path[2 * TTC__DIGEST + 4]; /* "ab/ab12..ef" */
} entry;

typedef struct listing {
  entry *items;
  size_t n, cap;
  uint64_t nbyte;
} listing;

static void add_entry(listing *l, const char *shard, const char *name, const struct stat *st) {
  l->nbyte += (uint64_t)st->st_size;
  if (l->n == l->cap) {
    size_t cap = l->cap == 0 ? 256 : 2 * l->cap;
    entry *items = realloc(l->items, cap * sizeof *items);
    if (items == NULL) {
      return; /* counted, only not a candidate */
    }
    l->items = items;
    l->cap = cap;
  }
  entry *e = &l->items[l->n++];
  e->used_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
  e->nbyte = (uint64_t)st->st_size;
  snprintf(e->path, sizeof e->path, "%.2s/%.64s", shard, name);
}

static void list_shard(listing *l, int dirfd, const char *shard) {
  int fd = openat(dirfd, shard, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  if (dir == NULL) {
    if (fd >= 0) {
      close(fd);
    }
    return;
  }
  time_t now = time(NULL);
  for (struct dirent *e; (e = readdir(dir)) != NULL;) {
    struct stat st;
    size_t n = strlen(e->d_name);
    if (e->d_name[0] == '.' || fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) {
      continue;
    }
    if (n == 2 * TTC__DIGEST && strspn(e->d_name, "0123456789abcdef") == n) {
      add_entry(l, shard, e->d_name, &st);
    } else if (n > 2 * TTC__DIGEST && now - st.st_mtim.tv_sec > LEFTOVER_AFTER_S) {
      unlinkat(fd, e->d_name, 0);
    }
  }
  closedir(dir);
}

static int older(const void *a, const void *b) {
  int64_t x = ((const entry *)a)->used_ns, y = ((const entry *)b)->used_ns;
  return (x > y) - (x < y);
}

uint64_t ttc__evict(int dirfd, uint64_t cap, uint64_t goal) {
  listing l = {0};
  for (unsigned i = 0; i < 256; i++) {
    char shard[3];
    ttc__hex(&(unsigned char){(unsigned char)i}, 1, shard);
    list_shard(&l, dirfd, shard);
  }
  if (l.nbyte > cap) {
    if (l.n != 0) {
      qsort(l.items, l.n, sizeof *l.items, older);
    }
    for (size_t i = 0; i < l.n && l.nbyte > goal; i++) {
      if (unlinkat(dirfd, l.items[i].path, 0) == 0) {
        l.nbyte -= l.items[i].nbyte;
      }
    }
  }
  free(l.items);
  return l.nbyte;
}
