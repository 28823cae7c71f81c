#include "cache/sha256.h"

#include <stdatomic.h>
#include <string.h>

#include "cache/cache.h"

/* First 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2). */
const uint32_t ttc__sha_k[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
                                 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
                                 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
                                 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
                                 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
                                 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
                                 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
                                 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int n) {
  return (x >> n) | (x << (32 - n));
}

static uint32_t load_be(const unsigned char *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

static void store_be(unsigned char *p, uint32_t x) {
  for (int i = 0; i < 4; i++) {
    p[i] = (unsigned char)(x >> (24 - 8 * i));
  }
}

/* One block (6.2.2). The schedule is kept in a ring of 16 words. */
static void mix(uint32_t state[8], const unsigned char *block) {
  uint32_t w[16], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
  for (int i = 0; i < 16; i++) {
    w[i] = load_be(block + 4 * i);
  }
  for (int t = 0; t < 64; t++) {
    if (t >= 16) {
      uint32_t near = w[(t + 14) & 15], far = w[(t + 1) & 15];
      uint32_t s0 = turn(far, 7) ^ turn(far, 18) ^ (far >> 3), s1 = turn(near, 17) ^ turn(near, 19) ^ (near >> 10);
      w[t & 15] += s0 + w[(t + 9) & 15] + s1;
    }
    uint32_t t1 = h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + ttc__sha_k[t] + w[t & 15];
    uint32_t t2 = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1;
    d = c, c = b, b = a, a = t1 + t2;
  }
  state[0] += a, state[1] += b, state[2] += c, state[3] += d;
  state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

void ttc__sha_blocks_c(uint32_t state[8], const unsigned char *p, size_t nblock) {
  for (; nblock != 0; nblock--, p += 64) {
    mix(state, p);
  }
}

/* The CPU is asked once: in a virtual machine that may take a while. */
static void mix_blocks(uint32_t state[8], const unsigned char *p, size_t nblock) {
  static atomic_int way; /* 0: not asked yet, 1: C, 2: x86 */
  int w = atomic_load_explicit(&way, memory_order_relaxed);
  if (w == 0) {
    w = ttc__sha_has_x86() ? 2 : 1;
    atomic_store_explicit(&way, w, memory_order_relaxed);
  }
  (w == 2 ? ttc__sha_blocks_x86 : ttc__sha_blocks_c)(state, p, nblock);
}

void ttc__sha_init(ttc__sha *s) {
  /* Square roots of the first 8 primes, likewise (5.3.3). */
  static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(s->h, first, sizeof first);
  s->nbyte = 0;
}

void ttc__sha_add(ttc__sha *s, const void *bytes, size_t n) {
  const unsigned char *p = bytes;
  size_t have = (size_t)(s->nbyte % 64);
  if (n == 0) {
    return;
  }
  s->nbyte += n;
  if (have != 0) {
    size_t take = n < 64 - have ? n : 64 - have;
    memcpy(s->block + have, p, take);
    if (have + take < 64) {
      return;
    }
    mix_blocks(s->h, s->block, 1);
    p += take;
    n -= take;
  }
  mix_blocks(s->h, p, n / 64);
  p += n / 64 * 64;
  n %= 64;
  if (n != 0) {
    memcpy(s->block, p, n);
  }
}

void ttc__sha_add_field(ttc__sha *s, const void *bytes, size_t n) {
  unsigned char len[8];
  store_be(len, (uint32_t)((uint64_t)n >> 32));
  store_be(len + 4, (uint32_t)n);
  ttc__sha_add(s, len, sizeof len);
  ttc__sha_add(s, bytes, n);
}

/* Padding (5.1.1): a one bit, zeros, the length in bits as 64 big-endian bits. */
void ttc__sha_end(ttc__sha *s, unsigned char digest[TTC__DIGEST]) {
  static const unsigned char pad[64] = {0x80};
  uint64_t nbit = s->nbyte * 8;
  size_t have = (size_t)(s->nbyte % 64);
  unsigned char len[8];
  store_be(len, (uint32_t)(nbit >> 32));
  store_be(len + 4, (uint32_t)nbit);
  ttc__sha_add(s, pad, (have < 56 ? 56 : 120) - have);
  ttc__sha_add(s, len, sizeof len);
  for (int i = 0; i < 8; i++) {
    store_be(digest + 4 * i, s->h[i]);
  }
}

void ttc__sha256(const void *bytes, size_t n, unsigned char digest[32]) {
  ttc__sha s;
  ttc__sha_init(&s);
  ttc__sha_add(&s, bytes, n);
  ttc__sha_end(&s, digest);
}
