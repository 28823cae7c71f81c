/* The tier behind the disk, which somebody else provides (Python: a directory that machines share). What comes from it is checked
 * as a file of the disk is. */
#include "cache/tier.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/lock.h"
#include "base/log.h"

static ttc__lock lock = TTC__LOCK_INIT(TTC__RANK_CACHE);
static ttc_tier_fetch fetch_fn; /* under the lock, like all below */
static ttc_tier_store store_fn;
static int ninside; /* threads in one of them */
static atomic_uint_fast64_t nhit;

typedef struct sink {
  char *bytes;
  size_t nbyte;
} sink;

void ttc_tier_set(ttc_tier_fetch fetch, ttc_tier_store store) {
  ttc__lock_take(&lock);
  fetch_fn = fetch;
  store_fn = store;
  while (ninside > 0) {
    ttc__lock_drop(&lock);
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ttc__lock_take(&lock);
  }
  ttc__lock_drop(&lock);
}

void ttc_tier_give(void *to, const void *bytes, size_t nbyte) {
  sink *s = to;
  char *copy = s->bytes == NULL && nbyte < SIZE_MAX ? malloc(nbyte + 1) : NULL;
  if (copy != NULL) {
    memcpy(copy, bytes, nbyte);
    s->bytes = copy;
    s->nbyte = nbyte;
  }
}

uint64_t ttc_tier_hits(void) {
  return atomic_load(&nhit);
}

void ttc__tier_hit(void) {
  atomic_fetch_add(&nhit, 1);
}

static void leave(void) {
  ttc__lock_take(&lock);
  ninside--;
  ttc__lock_drop(&lock);
}

bool ttc__tier_read(const unsigned char key[TTC__DIGEST], ttc__blob *out) {
  ttc__lock_take(&lock);
  ttc_tier_fetch fetch = fetch_fn;
  ninside += fetch != NULL;
  ttc__lock_drop(&lock);
  if (fetch == NULL) {
    return false;
  }
  char name[2 * TTC__DIGEST + 1];
  sink s = {0};
  ttc__hex(key, TTC__DIGEST, name);
  fetch(name, &s);
  leave();
  if (s.bytes == NULL) {
    return false;
  }
  const void *checked = s.bytes;
  if (!ttc__file_check(checked, s.nbyte, key)) {
    ttc__log(TTC__LOG_WARN, "compilation cache: %s in the shared directory is damaged, or another program's; compiling it", name);
    free(s.bytes);
    return false;
  }
  *out = (ttc__blob){.bytes = s.bytes, .skip = TTC__FILE_HEADER, .nbyte = s.nbyte - TTC__FILE_HEADER};
  return true;
}

void ttc__tier_write(const unsigned char key[TTC__DIGEST], const char *bytes, size_t nbyte) {
  ttc__lock_take(&lock);
  ttc_tier_store store = store_fn;
  ninside += store != NULL;
  ttc__lock_drop(&lock);
  if (store == NULL) {
    return;
  }
  unsigned char *file = malloc(TTC__FILE_HEADER + nbyte);
  if (file != NULL) {
    char name[2 * TTC__DIGEST + 1];
    ttc__hex(key, TTC__DIGEST, name);
    ttc__file_header(file, key, bytes, nbyte);
    memcpy(file + TTC__FILE_HEADER, bytes, nbyte);
    store(name, file, TTC__FILE_HEADER + nbyte);
    free(file);
  }
  leave();
}

/* ---- what was used */

static unsigned char (*used)[TTC__DIGEST];
static size_t nused, used_cap;
static char *dir;

void ttc__used_note(const unsigned char key[TTC__DIGEST]) {
  ttc__lock_take(&lock);
  if (nused == used_cap) {
    size_t cap = used_cap == 0 ? 64 : 2 * used_cap;
    unsigned char (*p)[TTC__DIGEST] = realloc(used, cap * sizeof *used);
    if (p != NULL) {
      used = p;
      used_cap = cap;
    }
  }
  if (nused < used_cap) {
    memcpy(used[nused++], key, TTC__DIGEST);
  }
  ttc__lock_drop(&lock);
}

void ttc__used_dir(const char *path) {
  ttc__lock_take(&lock);
  dir = dir != NULL ? dir : strdup(path); /* for good: every device of a process has the same */
  ttc__lock_drop(&lock);
}

const char *ttc_cache_dir(void) {
  ttc__lock_take(&lock);
  const char *path = dir != NULL ? dir : "";
  ttc__lock_drop(&lock);
  return path;
}

size_t ttc_cache_used(size_t from, size_t max, char (*names)[65]) {
  ttc__lock_take(&lock);
  for (size_t i = 0; i < max && from + i < nused; i++) {
    ttc__hex(used[from + i], TTC__DIGEST, names[i]);
  }
  size_t n = nused;
  ttc__lock_drop(&lock);
  return n;
}
