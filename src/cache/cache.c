#include "cache/cache.h"

#include <errno.h>
#include <pwd.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/map.h"
#include "base/str.h"
#include "cache/disk.h"
#include "cache/key.h"
#include "cache/tier.h"

#define DEFAULT_MAX_BYTES ((uint64_t)4 << 30)
/* How long another process's compile is waited for. Its lock goes when it ends, however it ends. */
#define OTHERS_COMPILE_NS ((int64_t)600 * 1000000000)

struct ttc__cache {
  pjrt_client *client;
  ttc__disk *disk; /* NULL: only compile */
  unsigned char base[TTC__DIGEST];
  atomic_bool cannot_serialize; /* the plugin said so */
  atomic_uint_fast64_t compiled, loaded, compile_ns, errors;
  ttc__lock lock; /* flights and their fields */
  pthread_cond_t landed;
  ttc__map *flights; /* key -> the flight of the thread that is getting it */
};

/* One program on its way. The first asker gets it, later ones wait, then load the bytes it left for them. */
typedef struct flight {
  int nuser; /* askers, the first included; the last one frees it */
  bool done;
  ttc_status status;
  ttc_error err;
  ttc__blob blob; /* the serialized executable; empty if the plugin could not */
} flight;

static bool find_dir(const char *dir, ttc__str *out) {
  const char *value = dir != NULL ? dir : getenv("TORCH_TPU_CACHE_DIR");
  if (value != NULL && value[0] != '\0') {
    ttc__str_add(out, value);
    return !out->failed;
  }
  value = getenv("XDG_CACHE_HOME");
  if (value != NULL && value[0] == '/') { /* a relative one is to be ignored, says its specification */
    ttc__str_addf(out, "%s/torch_tpu", value);
    return !out->failed;
  }
  value = getenv("HOME");
  struct passwd who, *found = NULL;
  char text[4096];
  if ((value == NULL || value[0] == '\0') && getpwuid_r(geteuid(), &who, text, sizeof text, &found) == 0 && found != NULL) {
    value = who.pw_dir;
  }
  if (value == NULL || value[0] == '\0') {
    return false;
  }
  ttc__str_addf(out, "%s/.cache/torch_tpu", value);
  return !out->failed;
}

static uint64_t max_bytes(void) {
  const char *value = getenv("TORCH_TPU_CACHE_MAX_BYTES");
  if (value == NULL || value[0] == '\0') {
    return DEFAULT_MAX_BYTES;
  }
  char *end;
  errno = 0;
  unsigned long long n = strtoull(value, &end, 10);
  if (errno != 0 || *end != '\0' || value[0] < '0' || value[0] > '9') {
    ttc__log(TTC__LOG_WARN, "TORCH_TPU_CACHE_MAX_BYTES: expected a number of bytes, got \"%s\"; using the default, 4 GiB", value);
    return DEFAULT_MAX_BYTES;
  }
  return n;
}

ttc__cache *ttc__cache_open(const char *dir, pjrt_plugin *plugin, pjrt_client *client) {
  const char *on = getenv("TORCH_TPU_CACHE");
  ttc__cache *c = calloc(1, sizeof *c);
  if (c == NULL) {
    return NULL;
  }
  c->flights = ttc__map_new();
  if (c->flights == NULL) {
    free(c);
    return NULL;
  }
  c->client = client;
  ttc__lock_init(&c->lock, TTC__RANK_CACHE);
  ttc__cond_init(&c->landed);
  if (on == NULL || strcmp(on, "0") != 0) {
    ttc__str path;
    uint64_t nerror = 0;
    ttc__str_init(&path, 4000);
    if (find_dir(dir, &path)) {
      c->disk = ttc__disk_open(ttc__str_get(&path), max_bytes(), &nerror);
      if (c->disk != NULL) {
        ttc__used_dir(ttc__str_get(&path));
      }
    }
    ttc__str_free(&path);
    atomic_store(&c->errors, nerror);
  }
  if (c->disk != NULL) {
    ttc__key_base(c->disk, plugin, client, c->base);
  }
  return c;
}

void ttc__cache_free(ttc__cache *c) {
  if (c != NULL) {
    ttc__disk_free(c->disk);
    ttc__map_free(c->flights);
    pthread_cond_destroy(&c->landed);
    ttc__lock_destroy(&c->lock);
    free(c);
  }
}

void ttc__cache_get_stats(ttc__cache *c, ttc__cache_stats *out) {
  out->compiled = atomic_load(&c->compiled);
  out->loaded = atomic_load(&c->loaded);
  out->compile_ns = atomic_load(&c->compile_ns);
  out->errors = atomic_load(&c->errors) + (c->disk != NULL ? ttc__disk_nerror(c->disk) : 0);
}

static void drop_blob(ttc__blob *b) {
  free(b->bytes);
  *b = (ttc__blob){0};
}

/* ---- flights: threads of this process that want the same program */

/* The flight to wait for (*first false) or to make. NULL when out of memory: then each gets its own. */
static flight *board(ttc__cache *c, const unsigned char key[TTC__DIGEST], bool *first) {
  uint64_t hash = ttc__hash64(key, TTC__DIGEST);
  ttc__lock_take(&c->lock);
  flight *f = ttc__map_get(c->flights, key, TTC__DIGEST, hash);
  *first = f == NULL;
  if (f == NULL) {
    f = calloc(1, sizeof *f);
    if (f != NULL && !ttc__map_put(c->flights, key, TTC__DIGEST, hash, f)) {
      free(f);
      f = NULL;
    }
  }
  if (f != NULL) {
    f->nuser++;
  }
  ttc__lock_drop(&c->lock);
  return f;
}

static void leave_locked(flight *f) {
  if (--f->nuser == 0) {
    drop_blob(&f->blob);
    free(f);
  }
}

/* Once taken off, the same key may have a newer flight. */
static void take_off_locked(ttc__cache *c, const unsigned char key[TTC__DIGEST], const flight *f) {
  uint64_t hash = ttc__hash64(key, TTC__DIGEST);
  if (ttc__map_get(c->flights, key, TTC__DIGEST, hash) == f) {
    ttc__map_del(c->flights, key, TTC__DIGEST, hash);
  }
}

/* The first asker is done. blob moves to the flight. */
static void land(ttc__cache *c, const unsigned char key[TTC__DIGEST], flight *f, ttc_status status, const ttc_error *err,
                 ttc__blob blob) {
  ttc__lock_take(&c->lock);
  take_off_locked(c, key, f);
  f->status = status;
  if (status != TTC_OK) {
    f->err = *err;
  }
  f->blob = blob;
  f->done = true;
  pthread_cond_broadcast(&c->landed);
  leave_locked(f);
  ttc__lock_drop(&c->lock);
}

/* Is anyone waiting? If not, and none can come any more, that is decided here. */
static bool awaited(ttc__cache *c, const unsigned char key[TTC__DIGEST], flight *f) {
  ttc__lock_take(&c->lock);
  bool yes = f->nuser > 1;
  if (!yes) {
    take_off_locked(c, key, f);
  }
  ttc__lock_drop(&c->lock);
  return yes;
}

/* ---- getting one */

ttc_status ttc__cache_compile(ttc__cache *c, int device, const char *text, size_t nbyte, const char *const *flags, pjrt_exe **out,
                              ttc_error *err) {
  int64_t start = ttc__now_ns();
  ttc_status s = pjrt_compile(c->client, device, text, nbyte, flags, out, err);
  atomic_fetch_add(&c->compile_ns, (uint64_t)(ttc__now_ns() - start));
  if (s == TTC_OK) {
    atomic_fetch_add(&c->compiled, 1);
  }
  return s;
}

static bool load(ttc__cache *c, int device, const ttc__blob *b, pjrt_exe **out) {
  ttc_error why = {0};
  if (pjrt_exe_deserialize(c->client, device, b->bytes + b->skip, b->nbyte, out, &why) != TTC_OK) {
    ttc__log(TTC__LOG_INFO, "compilation cache: the plugin refused an executable: %s", why.message);
    return false;
  }
  atomic_fetch_add(&c->loaded, 1);
  return true;
}

static bool load_file(ttc__cache *c, const unsigned char key[TTC__DIGEST], int device, ttc__blob *blob, pjrt_exe **out) {
  if (c->disk == NULL || !ttc__disk_read(c->disk, key, blob)) {
    return false;
  }
  if (load(c, device, blob, out)) {
    return true;
  }
  drop_blob(blob);
  ttc__disk_reject(c->disk, key);
  return false;
}

static bool load_shared(ttc__cache *c, const unsigned char key[TTC__DIGEST], int device, ttc__blob *blob, pjrt_exe **out) {
  if (c->disk == NULL || !ttc__tier_read(key, blob)) {
    return false;
  }
  if (load(c, device, blob, out)) {
    ttc__tier_hit();
    return true;
  }
  drop_blob(blob);
  return false;
}

static void serialize(ttc__cache *c, pjrt_exe *exe, ttc__blob *blob) {
  ttc_error why = {0};
  if (atomic_load(&c->cannot_serialize)) {
    return;
  }
  ttc_status s = pjrt_exe_serialize(exe, &blob->bytes, &blob->nbyte, &why);
  if (s == TTC_UNIMPLEMENTED) {
    atomic_store(&c->cannot_serialize, true);
  } else if (s != TTC_OK) {
    atomic_fetch_add(&c->errors, 1);
  }
  if (s != TTC_OK) {
    *blob = (ttc__blob){0};
    ttc__log(TTC__LOG_INFO, "compilation cache: not serialized: %s", why.message);
  }
}

/* The first asker's way. f may be NULL. *blob: the executable's bytes, where there are any. */
static ttc_status fly(ttc__cache *c, const unsigned char key[TTC__DIGEST], flight *f, int device, const char *text, size_t nbyte,
                      const char *const *flags, pjrt_exe **out, ttc__blob *blob, ttc_error *err) {
  if (load_file(c, key, device, blob, out)) {
    return TTC_OK;
  }
  bool keep = c->disk != NULL && ttc__disk_writable(c->disk) && !atomic_load(&c->cannot_serialize);
  int lock = keep ? ttc__disk_lock(c->disk, key, OTHERS_COMPILE_NS) : -1;
  /* Again: the lock's last holder may have written it. */
  if (keep && load_file(c, key, device, blob, out)) {
    ttc__disk_unlock(c->disk, key, lock);
    return TTC_OK;
  }
  bool shared = load_shared(c, key, device, blob, out);
  ttc_status s = shared ? TTC_OK : ttc__cache_compile(c, device, text, nbyte, flags, out, err);
  if (s == TTC_OK && !shared && (keep || (f != NULL && awaited(c, key, f)))) {
    serialize(c, *out, blob);
  }
  if (keep && blob->bytes != NULL) {
    ttc__disk_write(c->disk, key, blob->bytes + blob->skip, blob->nbyte);
  }
  if (keep && blob->bytes != NULL && !shared) {
    ttc__tier_write(key, blob->bytes, blob->nbyte);
  }
  if (keep) {
    ttc__disk_unlock(c->disk, key, lock);
  }
  return s;
}

/* A later asker's way: true when the first one's result is this one's too. */
static bool wait_for(ttc__cache *c, flight *f, int device, pjrt_exe **out, ttc_status *status, ttc_error *err) {
  ttc__lock_take(&c->lock);
  while (!f->done) {
    ttc__cond_wait_ns(&c->landed, &c->lock, 1000000000);
  }
  *status = f->status;
  if (f->status != TTC_OK) {
    char op[sizeof err->op]; /* the asker's own */
    memcpy(op, err->op, sizeof op);
    *err = f->err;
    memcpy(err->op, op, sizeof op);
  }
  ttc__lock_drop(&c->lock);
  /* The blob does not change after landing, and this user keeps the flight alive. */
  bool settled = *status != TTC_OK || (f->blob.bytes != NULL && load(c, device, &f->blob, out));
  ttc__lock_take(&c->lock);
  leave_locked(f);
  ttc__lock_drop(&c->lock);
  return settled;
}

ttc_status ttc__cache_get(ttc__cache *c, int device, const char *text, size_t nbyte, const char *const *xla_flags, pjrt_exe **out,
                          ttc_error *err) {
  unsigned char key[TTC__DIGEST];
  bool first;
  ttc_status status;
  ttc__blob blob = {0};
  ttc__key_program(c->base, device, text, nbyte, xla_flags, key);
  flight *f = board(c, key, &first);
  if (!first) {
    if (wait_for(c, f, device, out, &status, err)) {
      return status;
    }
    f = NULL;
  } else if (c->disk != NULL) {
    ttc__used_note(key);
  }
  status = fly(c, key, f, device, text, nbyte, xla_flags, out, &blob, err);
  if (f != NULL) {
    land(c, key, f, status, err, blob);
  } else {
    drop_blob(&blob);
  }
  return status;
}
