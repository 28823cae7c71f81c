/* SHA-256 (FIPS 180-4) in pieces. Not thread safe; a hasher is a plain struct. */
#ifndef TTC_CACHE_SHA256_H
#define TTC_CACHE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TTC__DIGEST 32

typedef struct ttc__sha {
  uint32_t h[8];
  uint64_t nbyte;
  unsigned char block[64]; /* the last nbyte % 64 bytes */
} ttc__sha;

void ttc__sha_init(ttc__sha *s);
void ttc__sha_add(ttc__sha *s, const void *bytes, size_t n);
/* The length, then the bytes: so that two fields never run into each other. */
void ttc__sha_add_field(ttc__sha *s, const void *bytes, size_t n);
void ttc__sha_end(ttc__sha *s, unsigned char digest[TTC__DIGEST]);

/* Two ways to take in nblock blocks of 64 bytes, the same result; x86 only where the CPU has it. For sha256.c and its test. */
void ttc__sha_blocks_c(uint32_t state[8], const unsigned char *p, size_t nblock);
void ttc__sha_blocks_x86(uint32_t state[8], const unsigned char *p, size_t nblock);
bool ttc__sha_has_x86(void);
extern const uint32_t ttc__sha_k[64]; /* the round constants */

#endif
