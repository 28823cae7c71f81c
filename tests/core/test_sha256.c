/* SHA-256 against the vectors of FIPS 180-4's examples and NIST's CAVP (values worked out by others). */
#include <stdlib.h>

#include "cache/cache.h"
#include "cache/disk.h"
#include "check.h"

static void check_text(const char *text, size_t n, const char *want) {
  unsigned char digest[TTC__DIGEST];
  char hex[2 * TTC__DIGEST + 1];
  ttc__sha256(text, n, digest);
  ttc__hex(digest, sizeof digest, hex);
  CHECK_STR(hex, want);
}

static void test_vectors(void) {
  static char million[1000000];
  memset(million, 'a', sizeof million);
  check_text("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  check_text("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  check_text(two, strlen(two), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  const char *four =
      "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";
  check_text(four, strlen(four), "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  check_text(million, sizeof million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  check_text("\xd3", 1, "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1");
}

/* In pieces of any size: the same digest. */
static void test_pieces(void) {
  unsigned char bytes[300], want[TTC__DIGEST], got[TTC__DIGEST];
  for (size_t i = 0; i < sizeof bytes; i++) {
    bytes[i] = (unsigned char)(i * 37 + 11);
  }
  for (size_t n = 0; n <= sizeof bytes; n++) {
    ttc__sha256(bytes, n, want);
    for (size_t step = 1; step < 150; step += 13) {
      ttc__sha s;
      ttc__sha_init(&s);
      for (size_t at = 0; at < n; at += step) {
        ttc__sha_add(&s, bytes + at, n - at < step ? n - at : step);
      }
      ttc__sha_end(&s, got);
      CHECK(memcmp(want, got, sizeof got) == 0);
    }
  }
}

/* Fields do not run into each other. */
static void test_fields(void) {
  unsigned char a[TTC__DIGEST], b[TTC__DIGEST];
  ttc__sha s;
  ttc__sha_init(&s);
  ttc__sha_add_field(&s, "ab", 2);
  ttc__sha_add_field(&s, "c", 1);
  ttc__sha_end(&s, a);
  ttc__sha_init(&s);
  ttc__sha_add_field(&s, "a", 1);
  ttc__sha_add_field(&s, "bc", 2);
  ttc__sha_end(&s, b);
  CHECK(memcmp(a, b, sizeof a) != 0);
}

/* The CPU's own instructions, where it has them, agree with plain C. */
static void test_x86(void) {
  unsigned char bytes[64 * 9];
  uint32_t a[8], b[8];
  if (!ttc__sha_has_x86()) {
    printf("no SHA extensions: not compared\n");
    return;
  }
  for (size_t i = 0; i < sizeof bytes; i++) {
    bytes[i] = (unsigned char)(i * i * 13 + i * 7);
  }
  for (uint32_t seed = 0; seed < 100; seed++) {
    for (uint32_t i = 0; i < 8; i++) {
      a[i] = b[i] = (seed + 1) * 2654435761u * (i + 1);
    }
    ttc__sha_blocks_c(a, bytes + seed % 64, seed % 9);
    ttc__sha_blocks_x86(b, bytes + seed % 64, seed % 9);
    CHECK(memcmp(a, b, sizeof a) == 0);
  }
}

int main(void) {
  test_vectors();
  test_pieces();
  test_fields();
  test_x86();
  return CHECK_DONE();
}
