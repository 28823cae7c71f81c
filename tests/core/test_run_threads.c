/* Several threads on one device; callers that wait: for room in the queue, for slow compiles, and those who are interrupted. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/lock.h"
#include "run_tools.h"
#include "ttc_fuse.h"

enum { THREADS = 4, SHARED = 4, N = 16 };
static ten shared[SHARED];
static atomic_bool stop;
static atomic_int wrong;
static atomic_long rounds;

static void *work(void *arg) {
  unsigned seed = (unsigned)(uintptr_t)arg;
  ttc_error e = {0};
  float host[2 * N] = {0};
  for (long k = 0; !atomic_load(&stop); k++) {
    const ten *x = &shared[rand_r(&seed) % SHARED], *y = &shared[rand_r(&seed) % SHARED];
    ten z, own = empty(TTC_F32, DIMS(1 + k % 7, N));
    ttc_tensor t = as_arg(x), o = as_arg(&own);
    MUST(add_err(x, y, (double)(k % 5), NULL, &z, &e));
    MUST(add_err(x, &z, 1, x, NULL, &e));
    MUST(add_err(&own, &z, 1, &own, NULL, &e));
    if (k % 8 == 0) {
      MUST(ttc_copy_to_host(&t, host, sizeof host / 2, &e));
    } else if (k % 8 == 1) {
      MUST(ttc_copy_from_host(&t, host, sizeof host / 2, &e));
    } else if (k % 8 == 2) {
      MUST(ttc_store_resize(own.store, 2 * ttc_store_nbyte(own.store), &e));
      o.ndim = 1;
      o.sizes = (const int64_t[]){2 * N};
      o.strides = (const int64_t[]){1};
      MUST(ttc_copy_to_host(&o, host, sizeof host, &e));
    } else if (k % 32 == 3) {
      MUST(ttc_device_synchronize(dev, &e));
    } else if (k % 32 == 4) {
      ttc_stats s;
      ttc_device_get_stats(dev, &s);
      atomic_fetch_add(&wrong, s.live_nbyte < 0);
    }
    ttc_store_release(z.store);
    ttc_store_release(own.store);
    atomic_fetch_add(&rounds, 1);
  }
  return NULL;
}

/* kept_back: all share one trace, most of which is launched before it is cut. */
static void test_threads(bool kept_back) {
  pthread_t threads[THREADS];
  float host[N] = {0};
  deferring = kept_back;
  atomic_store(&stop, false);
  atomic_store(&rounds, 0);
  for (int i = 0; i < SHARED; i++) {
    shared[i] = empty(TTC_F32, DIMS(N));
    OK(put(&shared[i], host));
  }
  for (int i = 0; i < THREADS; i++) {
    CHECK_EQ(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)), 0); /* NOLINT(performance-no-int-to-ptr) */
  }
  nap_ms(1000);
  atomic_store(&stop, true);
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
  }
  CHECK_EQ(atomic_load(&wrong), 0);
  CHECK(atomic_load(&rounds) > 100);
  for (int i = 0; i < SHARED; i++) {
    ttc_store_release(shared[i].store);
  }
  OK(ttc_device_wait_fused(dev, &err));
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(stats().live_nbyte, 0);
  deferring = 0;
}

/* More calls than the queue has room for, none of them read. */
static void test_full_queue(void) {
  float host[3] = {0};
  ten a = empty(TTC_F32, DIMS(3));
  OK(put(&a, host));
  uint64_t before = stats().calls;
  for (int i = 0; i < 5000; i++) {
    OK(add(&a, &a, 1, &a, NULL));
  }
  OK(get(&a, host));
  CHECK_EQ(stats().calls - before, 5000);
  ttc_store_release(a.store);
}

static void test_slow_compile(void) {
  float host[5] = {0};
  ten y, a = empty(TTC_F32, DIMS(5));
  OK(put(&a, host));
  fake_delay("PJRT_Client_Compile", 500);
  int64_t t0 = ttc__now_ns();
  OK(add(&a, &a, 1, NULL, &y));
  OK(add(&y, &a, 1, &y, NULL));
  OK(add(&y, &a, 1, &y, NULL));
  CHECK(was_hit); /* a plan that is still being compiled serves all the same */
  CHECK(ttc__now_ns() - t0 < 400000000);
  OK(get(&y, host));
  CHECK(ttc__now_ns() - t0 >= 500000000);
  CHECK(ttc__now_ns() - t0 < 950000000); /* the two were compiled at once */
  fake_delay(NULL, 0);
  ttc_store_release(a.store);
  ttc_store_release(y.store);
}

static pthread_t main_thread;
static atomic_int asked, asked_elsewhere;
static bool give_up(void) {
  atomic_fetch_add(&asked, 1);
  atomic_fetch_add(&asked_elsewhere, pthread_equal(main_thread, pthread_self()) == 0);
  return true;
}

static void test_interrupt(void) {
  float host[6] = {0};
  ten y, a = empty(TTC_F32, DIMS(6));
  OK(put(&a, host));
  main_thread = pthread_self();
  fake_delay("PJRT_Client_Compile", 1000);
  OK(add(&a, &a, 1, NULL, &y));
  ttc_set_interrupt_check(give_up);
  int64_t t0 = ttc__now_ns();
  IS(get(&y, host), TTC_CANCELLED);
  IS(ttc_device_synchronize(dev, &err), TTC_CANCELLED);
  CHECK(ttc__now_ns() - t0 < 800000000);
  ttc_set_interrupt_check(NULL);
  CHECK_EQ(atomic_load(&asked_elsewhere), 0);
  CHECK(atomic_load(&asked) >= 2);
  OK(get(&y, host)); /* nothing was lost */
  OK(ttc_device_synchronize(dev, &err));
  fake_delay(NULL, 0);
  ttc_store_release(a.store);
  ttc_store_release(y.store);
}

int main(void) {
  open_fake();
  test_slow_compile();
  test_interrupt();
  test_full_queue();
  test_threads(false);
  test_threads(true);
  return CHECK_DONE();
}
