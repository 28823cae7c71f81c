/* The cache's directory: files named by digest, written whole or not at all, checked before use. Inside src/cache only.
 *
 *   <dir>/ab/ab12..ef        one executable: header (file.c) and payload; ab are the digest's first two hex digits
 *   <dir>/ab/ab12..ef.lock   exists while a process compiles it
 *   <dir>/ab/ab12..ef.X.tmp  being written
 *   <dir>/<name>             records: small checksummed facts (a plugin's digest, the size at the last scan)
 *
 * Every path is resolved from one descriptor, opened once and checked then, so the directory cannot be swapped. Any thread. */
#ifndef TTC_CACHE_DISK_H
#define TTC_CACHE_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cache/sha256.h"

typedef struct ttc__disk ttc__disk;

typedef struct ttc__blob {
  char *bytes; /* to free(); NULL when empty */
  size_t skip; /* the payload is bytes + skip */
  size_t nbyte;
} ttc__blob;

/* Makes the directory if need be. NULL with *nerror raised and a warning, once a process, if it cannot be used safely. max_nbyte:
 * cap of all executables together. blocks */
ttc__disk *ttc__disk_open(const char *dir, uint64_t max_nbyte, uint64_t *nerror);
void ttc__disk_free(ttc__disk *d);
uint64_t ttc__disk_nerror(const ttc__disk *d);

/* false when there is no (good) file; a bad one is deleted and counted. blocks */
bool ttc__disk_read(ttc__disk *d, const unsigned char key[TTC__DIGEST], ttc__blob *out);
void ttc__disk_reject(ttc__disk *d, const unsigned char key[TTC__DIGEST]); /* delete and count: the plugin refused its payload */
/* False once writing has failed several times in a row (no space, read-only): not worth serializing for. */
bool ttc__disk_writable(const ttc__disk *d);
void ttc__disk_write(ttc__disk *d, const unsigned char key[TTC__DIGEST], const char *bytes, size_t nbyte);

/* The right to compile this key among processes: a descriptor for ttc__disk_unlock, or -1 when waited in vain or impossible.
 * Look for the file again after this: another process may have written it meanwhile. blocks */
int ttc__disk_lock(ttc__disk *d, const unsigned char key[TTC__DIGEST], int64_t timeout_ns);
void ttc__disk_unlock(ttc__disk *d, const unsigned char key[TTC__DIGEST], int fd);

/* Records: exactly n bytes (at most 128). get is false when absent, of another length or damaged. */
bool ttc__disk_get_record(ttc__disk *d, const char *name, void *bytes, size_t n);
void ttc__disk_put_record(ttc__disk *d, const char *name, const void *bytes, size_t n);

/* ---- files (file.c): relative to a directory's descriptor */
#define TTC__FILE_HEADER 88

/* The header of a file that holds nbyte bytes under key. Pure. */
void ttc__file_header(unsigned char header[TTC__FILE_HEADER], const unsigned char key[TTC__DIGEST], const void *bytes,
                      size_t nbyte);
/* Are these n bytes, whatever they are, a whole and undamaged file of this key? The payload is then bytes + TTC__FILE_HEADER. Pure.
 */
bool ttc__file_check(const unsigned char *bytes, size_t n, const unsigned char key[TTC__DIGEST]);

/* 0 or an errno. read: the whole of a regular file that only its owner, this user, may write (else EPERM), touched as used. */
int ttc__file_read(int dirfd, const char *name, char **bytes, size_t *nbyte);
/* Written under tmp, then renamed to name. */
int ttc__file_write(int dirfd, const char *tmp, const char *name, const void *head, size_t nhead, const void *body, size_t nbody);

/* ---- eviction (evict.c): delete the longest unused until the sum is at most goal, where it is over cap; leftovers of dead
 * processes too. Returns the sum that is left. */
uint64_t ttc__evict(int dirfd, uint64_t cap, uint64_t goal);

void ttc__hex(const unsigned char *bytes, size_t n, char *out); /* 2n digits and a NUL */

#endif
