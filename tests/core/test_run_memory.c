/* Each allocation of the core fails once during a step: at most one clear error surfaces, nothing leaks or hangs, and the same step
 * works right after. The linker's --wrap leads the core's calls of malloc and its kin here (see CMakeLists.txt); the plugin's and
 * libc's own are not touched. */
#include <stdatomic.h>

#include "base/error.h"
#include "run_step.h"

static atomic_long countdown; /* 0: nothing fails */
static atomic_size_t only;    /* fail each allocation of that many bytes; 0: none */
static atomic_long nfailed;

static bool fails(size_t n) {
  bool yes = n == atomic_load(&only) && n != 0;
  if (atomic_load(&countdown) > 0 && atomic_fetch_sub(&countdown, 1) == 1) {
    yes = true;
  }
  if (yes) {
    atomic_fetch_add(&nfailed, 1);
  }
  return yes;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t k, size_t n);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t k, size_t n);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);

void *__wrap_malloc(size_t n) {
  return fails(n) ? NULL : __real_malloc(n);
}
void *__wrap_calloc(size_t k, size_t n) {
  return fails(k * n) ? NULL : __real_calloc(k, n);
}
void *__wrap_realloc(void *p, size_t n) {
  return fails(n) ? NULL : __real_realloc(p, n);
}
char *__wrap_strdup(const char *s) {
  return fails(strlen(s) + 1) ? NULL : __real_strdup(s);
}

static void fail_each(bool fresh) {
  long n, nerrors = 0;
  CHECK_EQ(step(3), 0);
  long live = fake_live();
  uint64_t plans = stats().plans;
  for (n = 1; n < STEP_MAX_N - 4; n++) {
    int64_t size = fresh ? 3 + n : 3; /* fresh: everything is lowered and compiled anew */
    uint64_t before = stats().calls;
    atomic_store(&nfailed, 0);
    atomic_store(&countdown, n);
    int nerror = step(size);
    atomic_store(&countdown, 0);
    if (atomic_load(&nfailed) == 0) {
      break;
    }
    CHECK(nerror <= 1);
    nerrors += nerror;
    if (nerror != 0) {
      CHECK_EQ(err.code, TTC_RESOURCE_EXHAUSTED);
      CHECK(err.message[0] != '\0');
    }
    CHECK_EQ(stats().live_nbyte, 0);
    uint64_t failing = stats().calls - before;
    CHECK_EQ(step(size), 0);
    uint64_t whole = stats().calls - before - failing;
    CHECK(nerror != 0 || failing == whole); /* what went unnoticed changed nothing */
    CHECK_EQ(stats().live_nbyte, 0);
    CHECK_EQ(fake_live() - live, (long)(stats().plans - plans));
  }
  CHECK(n > 5 && n < STEP_MAX_N - 4 && nerrors > (fresh ? 100 : 2));
  printf("%ld allocations, %ld errors\n", n - 1, nerrors);
}

/* An op fails and there is no memory to record the error: its result is poison all the same. */
static void test_no_memory_for_errors(void) {
  float host[4] = {0};
  ten y, a = empty(TTC_F32, DIMS(4));
  OK(put(&a, host));
  OK(add(&a, &a, 1, NULL, &y));
  ttc_store_release(y.store);
  OK(ttc_device_synchronize(dev, &err));
  /* A poison is an error and two words more. */
  atomic_store(&only, sizeof(ttc_error) + 8);
  fake_fail("PJRT_LoadedExecutable_Execute", 1);
  OK(add(&a, &a, 1, &a, NULL));
  IS(get(&a, host), TTC_RESOURCE_EXHAUSTED);
  IS(get(&a, host), TTC_RESOURCE_EXHAUSTED);
  CHECK_EQ(atomic_load(&nfailed), 1);
  OK(put(&a, host));
  OK(get(&a, host));
  OK(ttc_device_synchronize(dev, &err));
  atomic_store(&only, 0);
  ttc_store_release(a.store);
}

static void test_opening(void) {
  long n;
  (void)choose_fake();
  CHECK(ttc_op_count() > 100); /* the table is made when the library is loaded */
  for (n = 1; n < 100; n++) {
    atomic_store(&countdown, n);
    ttc_status st = ttc_device_open(0, &dev, &err);
    atomic_store(&countdown, 0);
    if (st == TTC_OK) {
      break;
    }
    CHECK_EQ(st, TTC_RESOURCE_EXHAUSTED);
  }
  CHECK(n > 3 && n < 100);
}

int main(void) {
  test_opening();
  open_fake();
  make_wide_op();
  fail_each(false);
  fail_each(true);
  atomic_store(&nfailed, 0);
  test_no_memory_for_errors();
  return CHECK_DONE();
}
