/* The base layer: arena, string builder, map, error, hash. */
#include <stdint.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/map.h"
#include "base/str.h"
#include "check.h"

static void test_arena(void) {
  ttc__arena *a = ttc__arena_new(100000);
  for (size_t n = 0; n < 400; n++) { /* over several blocks; zeroed, aligned, not overlapping */
    unsigned char *p = ttc__arena_alloc(a, n);
    CHECK(p != NULL && (uintptr_t)p % 16 == 0);
    int sum = 0;
    for (size_t i = 0; i < n; i++) {
      sum += p[i];
      p[i] = 0xff;
    }
    CHECK_EQ(sum, 0);
  }
  CHECK(ttc__arena_alloc(a, 20000) != NULL); /* larger than a block */
  CHECK(ttc__arena_alloc(a, 1) != NULL);
  CHECK(ttc__arena_alloc(a, 1) != NULL);
  CHECK_STR(ttc__arena_strdup(a, "text"), "text");
  CHECK(ttc__arena_alloc(a, 100000 - 79800 - 20000 - 7 + 1) == NULL); /* over the cap by one */
  CHECK(ttc__arena_alloc(a, 100000 - 79800 - 20000 - 7) != NULL);
  CHECK(ttc__arena_alloc(a, 1) == NULL);
  CHECK(ttc__arena_strdup(a, "") == NULL);
  ttc__arena_free(a);
  a = ttc__arena_new(SIZE_MAX);
  CHECK(ttc__arena_alloc(a, SIZE_MAX - 3) == NULL); /* its rounded size wraps around */
  CHECK(ttc__arena_alloc(a, 8) != NULL);
  ttc__arena_free(a);
  ttc__arena_free(NULL);
}

static void test_str(void) {
  ttc__str s;
  ttc__str_init(&s, 1000);
  CHECK_STR(ttc__str_get(&s), "");
  ttc__str_add(&s, "ab");
  ttc__str_addf(&s, "%d-%s", 12, "x");
  ttc__str_addn(&s, "c\0d", 3);
  CHECK_EQ(s.len, 9);
  CHECK(memcmp(s.data, "ab12-xc\0d", 10) == 0);
  ttc__str_clear(&s);
  CHECK(s.len == 0 && s.data[0] == '\0');
  for (int i = 0; i < 1000; i++) {
    ttc__str_addf(&s, "%d", i % 10);
  }
  CHECK(s.len == 1000 && !s.failed && s.data[999] == '9');
  ttc__str_add(&s, "");
  CHECK(!s.failed);
  ttc__str_add(&s, "x"); /* one too many: sticky, contents as before */
  CHECK(s.failed && s.len == 1000);
  CHECK(ttc__str_take(&s) == NULL);
  ttc__str_addf(&s, "y");
  CHECK_EQ(s.len, 1000);
  ttc__str_clear(&s);
  ttc__str_add(&s, "again");
  char *text = ttc__str_take(&s);
  CHECK_STR(text, "again");
  free(text);
  CHECK(s.data == NULL && s.len == 0 && s.max == 1000);
  text = ttc__str_take(&s);
  CHECK_STR(text, "");
  free(text);
  ttc__str_free(&s);
}

static void *map_get(const ttc__map *m, uint32_t key) {
  return ttc__map_get(m, &key, sizeof key, ttc__hash64(&key, sizeof key));
}

static void test_map(void) {
  static int values[5000];
  ttc__map *m = ttc__map_new();
  CHECK(map_get(m, 1) == NULL);
  for (uint32_t k = 0; k < 5000; k++) {
    CHECK(ttc__map_put(m, &k, sizeof k, ttc__hash64(&k, sizeof k), &values[k]));
  }
  for (int round = 0; round < 20; round++) { /* removing and putting back fills the table with removed entries, not the memory */
    for (uint32_t k = 0; k < 5000; k += 2) {
      CHECK(ttc__map_del(m, &k, sizeof k, ttc__hash64(&k, sizeof k)) == &values[k]);
      CHECK(map_get(m, k) == NULL);
    }
    CHECK_EQ(ttc__map_count(m), 2500);
    for (uint32_t k = 0; k < 5000; k += 2) {
      CHECK(ttc__map_put(m, &k, sizeof k, ttc__hash64(&k, sizeof k), &values[k]));
    }
  }
  uint32_t k = 7, absent = 5000;
  CHECK(ttc__map_put(m, &k, sizeof k, ttc__hash64(&k, sizeof k), &values[0])); /* replace */
  CHECK(map_get(m, 7) == &values[0]);
  CHECK_EQ(ttc__map_count(m), 5000);
  CHECK(ttc__map_del(m, &absent, sizeof absent, ttc__hash64(&absent, sizeof absent)) == NULL);
  CHECK(ttc__map_put(m, "", 0, ttc__hash64("", 0), m)); /* an empty key is a key */
  CHECK(ttc__map_get(m, "", 0, ttc__hash64("", 0)) == m);
  size_t it = 0, n, seen = 0, bytes = 0;
  const void *key;
  void *value;
  while (ttc__map_next(m, &it, &key, &n, &value)) {
    seen++;
    bytes += n;
  }
  CHECK(seen == 5001 && bytes == 20000);
  ttc__map_free(m);
  ttc__map_free(NULL);
}

/* Same hash, different keys: told apart by their bytes. */
static void test_map_collisions(void) {
  ttc__map *m = ttc__map_new();
  int values[100];
  for (int k = 0; k < 100; k++) {
    CHECK(ttc__map_put(m, &k, sizeof k, 42, &values[k]));
  }
  for (int k = 0; k < 100; k += 3) {
    CHECK(ttc__map_del(m, &k, sizeof k, 42) == &values[k]);
  }
  for (int k = 0; k < 100; k++) {
    CHECK(ttc__map_get(m, &k, sizeof k, 42) == (k % 3 == 0 ? NULL : &values[k]));
  }
  ttc__map_free(m);
}

static void test_hash(void) {
  unsigned char a[64] = {0};
  uint64_t seen[64 * 8 + 65];
  size_t n = 0;
  for (size_t len = 0; len <= 64; len++) { /* the length counts, also of zeros */
    seen[n++] = ttc__hash64(a, len);
  }
  int close = 0;
  for (size_t bit = 0; bit < 64 * 8; bit++) { /* one bit anywhere changes about half of the result */
    a[bit / 8] ^= (unsigned char)(1 << bit % 8);
    seen[n] = ttc__hash64(a, sizeof a);
    close += __builtin_popcountll(seen[n] ^ seen[64]) < 12;
    n++;
    a[bit / 8] ^= (unsigned char)(1 << bit % 8);
  }
  CHECK_EQ(close, 0);
  int equal = 0;
  for (size_t i = 0; i < n; i++) {
    for (size_t j = 0; j < i; j++) {
      equal += seen[i] == seen[j];
    }
  }
  CHECK_EQ(equal, 0);
}

static ttc_status fail(ttc_error *err) {
  return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected %d, got %s", 3, "x");
}

static ttc_status try_fail(ttc_error *err) {
  TTC_TRY(TTC_OK);
  TTC_TRY(fail(err));
  return TTC_OK;
}

static void test_error(void) {
  ttc_error err = {.op = "add.Tensor"};
  CHECK_EQ(try_fail(&err), TTC_INVALID_ARGUMENT);
  CHECK_EQ(err.code, TTC_INVALID_ARGUMENT);
  CHECK_STR(err.message, "expected 3, got x");
  CHECK_STR(err.op, "add.Tensor");
  CHECK(err.line > 0 && strstr(err.file, "test_base.c") != NULL);
  char text[4000];
  memset(text, 'a', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  CHECK_EQ(TTC_FAIL(&err, TTC_INTERNAL, "%s", text), TTC_INTERNAL);
  CHECK_EQ(strlen(err.message), sizeof err.message - 1);
  CHECK_STR(err.message + sizeof err.message - 5, "a...");
  CHECK_STR(ttc_status_name(TTC_OK), "OK");
  CHECK_STR(ttc_status_name(TTC_UNAUTHENTICATED), "UNAUTHENTICATED");
  CHECK_STR(ttc_status_name((ttc_status)17), "UNKNOWN");
  ttc__poison *p = ttc__poison_new(&err);
  CHECK(ttc__poison_retain(p) == p);
  ttc__poison_release(p);
  CHECK_EQ(ttc__poison_error(p)->code, TTC_INTERNAL);
  CHECK(ttc__poison_claim(p) && !ttc__poison_claim(p));
  ttc__poison_release(p);
  ttc__poison_release(NULL);
}

static void test_lock(void) {
  static ttc__lock outer = TTC__LOCK_INIT(TTC__RANK_OPEN);
  ttc__lock inner;
  pthread_cond_t c;
  ttc__lock_init(&inner, TTC__RANK_STORE);
  ttc__cond_init(&c);
  ttc__lock_take(&outer);
  CHECK(ttc__lock_try(&inner));
  int64_t before = ttc__now_ns();
  ttc__cond_wait_ns(&c, &inner, 2000000); /* nobody signals */
  CHECK(ttc__now_ns() - before >= 1000000);
  ttc__lock_drop(&inner);
  ttc__lock_drop(&outer);
  pthread_cond_destroy(&c);
  ttc__lock_destroy(&inner);
}

int main(void) {
  test_arena();
  test_str();
  test_map();
  test_map_collisions();
  test_hash();
  test_error();
  test_lock();
  return CHECK_DONE();
}
