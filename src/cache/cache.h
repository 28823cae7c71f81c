/* Module text -> executable: memory is the plan's; this is the disk tier, shared by processes.
 *
 * A file holds one serialized executable. Its name is the digest of (plugin contents, PJRT API version, CPU features, compile
 * options, module text); its header repeats the digest and carries a checksum of the bytes, so a truncated, bit-flipped or foreign
 * file is never loaded: it is deleted and counted. Written to a temporary name and renamed. The directory is the user's own, mode
 * 0700; one that others can write is refused with a warning, since loading an executable runs code. Size is capped (LRU by access
 * time). Two processes that want the same program compile it once: the second waits on an advisory lock for a while, then compiles
 * anyway. Nothing here ever fails a call: what cannot be cached is compiled. */
#ifndef TTC_CACHE_CACHE_H
#define TTC_CACHE_CACHE_H

#include "base/error.h"
#include "pjrt/pjrt.h"

typedef struct ttc__cache ttc__cache;

/* dir NULL: TORCH_TPU_CACHE_DIR, else $XDG_CACHE_HOME/torch_tpu, else ~/.cache/torch_tpu. TORCH_TPU_CACHE=0 switches off, giving a
 * cache that only compiles. TORCH_TPU_CACHE_MAX_BYTES caps the size (default 4 GiB). NULL only when out of memory. blocks */
ttc__cache *ttc__cache_open(const char *dir, pjrt_plugin *plugin, pjrt_client *client);
void ttc__cache_free(ttc__cache *c);
/* The executable, from disk or compiled (then written). any thread, blocks */
ttc_status ttc__cache_get(ttc__cache *c, int device, const char *text, size_t nbyte, const char *const *xla_flags, pjrt_exe **out,
                          ttc_error *err);
/* Compiled, whatever is on disk, and counted. any thread, blocks */
ttc_status ttc__cache_compile(ttc__cache *c, int device, const char *text, size_t nbyte, const char *const *xla_flags,
                              pjrt_exe **out, ttc_error *err);
typedef struct ttc__cache_stats {
  uint64_t compiled, loaded, compile_ns, errors;
} ttc__cache_stats;
void ttc__cache_get_stats(ttc__cache *c, ttc__cache_stats *out);

/* SHA-256 (FIPS 180-4). */
void ttc__sha256(const void *bytes, size_t n, unsigned char digest[32]);

#endif
