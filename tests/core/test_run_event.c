/* Events: what they wait for, and that neither recording nor asking waits. The fake plugin holds results back. */
#include <pthread.h>
#include <stdatomic.h>

#include "run_tools.h"
#include "ttc_trace.h"

enum { BIG = 64 }; /* 64 x 64: more than what a launch is taken to finish by itself */

static ten ones(void) {
  static float host[BIG * BIG];
  ten x = empty(TTC_F32, DIMS(BIG, BIG));
  OK(put(&x, host));
  return x;
}

static bool reached(ttc_event *e) {
  bool done = false;
  OK(ttc_event_query(e, &done, &err));
  return done;
}

static bool idle(void) {
  bool yes = false;
  OK(ttc_device_query(dev, &yes, &err));
  return yes;
}

/* Let go of results after a while, from another thread. */
static void *let_go_soon(void *arg) {
  struct timespec nap = {0, 30000000};
  nanosleep(&nap, NULL);
  fake_hold(0);
  return arg;
}

static void test_order(void) {
  ttc_event *a, *b;
  ten y, x = ones();
  OK(add(&x, &x, 1, NULL, &y)); /* compiled from here on */
  ttc_store_release(y.store);
  OK(ttc_device_synchronize(dev, &err));
  CHECK(idle());
  OK(ttc_event_record(dev, &a, &err));
  OK(ttc_event_wait(a, &err));
  CHECK(reached(a));
  fake_hold(1);
  OK(add(&x, &x, 1, NULL, &y));
  OK(ttc_event_record(dev, &b, &err));
  OK(ttc_device_flush(dev, &err));
  CHECK(!reached(b));
  CHECK(!idle());
  int64_t ns = -1;
  IS(ttc_event_elapsed(a, b, &ns, &err), TTC_FAILED_PRECONDITION);
  pthread_t thread;
  pthread_create(&thread, NULL, let_go_soon, NULL);
  OK(ttc_event_wait(b, &err));
  CHECK(reached(b));
  pthread_join(thread, NULL);
  OK(ttc_event_elapsed(a, b, &ns, &err));
  CHECK(ns >= 30000000);
  OK(ttc_event_elapsed(b, a, &ns, &err));
  CHECK(ns <= -30000000);
  CHECK(idle());
  ttc_event_release(a);
  ttc_event_release(b);
  ttc_event_release(NULL);
  ttc_store_release(x.store);
  ttc_store_release(y.store);
}

/* Results that nobody holds any more are waited for all the same. */
static void test_dropped(void) {
  ttc_event *a, *b;
  ten x = ones();
  fake_hold(1);
  for (int i = 0; i < 200; i++) { /* more than are kept before they are weeded */
    OK(add(&x, &x, 1, NULL, NULL));
  }
  OK(add(&x, &x, 1, &x, NULL)); /* overwritten at once */
  OK(add(&x, &x, 1, &x, NULL));
  OK(ttc_event_record(dev, &a, &err));
  OK(ttc_event_record(dev, &b, &err));
  OK(ttc_device_flush(dev, &err));
  ttc_store_release(x.store);
  CHECK(!reached(a));
  CHECK(!reached(b));
  CHECK(!idle());
  ttc_event_release(a); /* an event may go before it is reached */
  pthread_t thread;
  pthread_create(&thread, NULL, let_go_soon, NULL);
  OK(ttc_device_synchronize(dev, &err));
  CHECK(reached(b));
  CHECK(idle());
  pthread_join(thread, NULL);
  ttc_event_release(b);
}

/* An event behind a program that is still being compiled. */
static void test_compiling(void) {
  ttc_event *a;
  ten y, x = empty(TTC_F32, DIMS(BIG, 3));
  fake_delay("PJRT_Client_Compile", 50);
  OK(add(&x, &x, 1, NULL, &y));
  OK(ttc_event_record(dev, &a, &err));
  CHECK(!reached(a));
  OK(ttc_event_wait(a, &err));
  CHECK(reached(a));
  fake_delay(NULL, 0);
  ttc_event_release(a);
  ttc_store_release(x.store);
  ttc_store_release(y.store);
}

static bool stop_at_once(void) {
  return true;
}

static void test_interrupted(void) {
  ten y, x = ones();
  float host[BIG * BIG];
  OK(add(&x, &x, 1, NULL, &y));
  OK(ttc_device_synchronize(dev, &err));
  ttc_store_release(y.store);
  fake_hold(1);
  OK(add(&x, &x, 1, NULL, &y));
  ttc_set_interrupt_check(stop_at_once);
  IS(ttc_device_synchronize(dev, &err), TTC_CANCELLED);
  IS(get(&y, host), TTC_CANCELLED);
  ttc_set_interrupt_check(NULL);
  fake_hold(0);
  OK(get(&y, host));
  OK(ttc_device_synchronize(dev, &err));
  ttc_store_release(x.store);
  ttc_store_release(y.store);
}

static atomic_int wrong;
static void good(bool yes) {
  atomic_fetch_add(&wrong, !yes);
}

/* Many threads record, ask and wait while others drop results. */
static void *worker(void *arg) {
  ttc_error e;
  ttc_event *last = NULL;
  ten x = *(const ten *)arg;
  for (int i = 0; i < 300; i++) {
    ttc_event *next;
    bool done;
    good(ttc_event_record(dev, &next, &e) == TTC_OK);
    good(ttc_event_query(next, &done, &e) == TTC_OK);
    ttc_tensor t = as_arg(&x);
    float host[BIG * BIG];
    good(i % 16 != 0 || ttc_copy_to_host(&t, host, sizeof host, &e) == TTC_OK);
    good(ttc_event_wait(next, &e) == TTC_OK);
    if (last != NULL) {
      int64_t ns;
      good(ttc_event_elapsed(last, next, &ns, &e) == TTC_OK);
      good(ns >= 0);
    }
    ttc_event_release(last);
    last = next;
  }
  ttc_event_release(last);
  return NULL;
}

static void test_threads(void) {
  enum { N = 4 };
  pthread_t threads[N];
  ten x = ones();
  for (int i = 0; i < N; i++) {
    pthread_create(&threads[i], NULL, worker, &x);
  }
  for (int i = 0; i < 2000; i++) {
    OK(add(&x, &x, 1, NULL, NULL));
  }
  for (int i = 0; i < N; i++) {
    pthread_join(threads[i], NULL);
  }
  CHECK_EQ(atomic_load(&wrong), 0);
  ttc_store_release(x.store);
}

static void test_options(void) {
  static const char *const one[] = {"xla_a=1", NULL}, *const two[] = {"xla_a=1", "xla_b=true", NULL},
                           *const bad[] = {"novalue", NULL};
  uint32_t a = 0, b = 0, again = 0;
  ten y, x = ones();
  OK(ttc_compile_options_add(dev, one, &a, &err));
  OK(ttc_compile_options_add(dev, two, &b, &err));
  OK(ttc_compile_options_add(dev, one, &again, &err));
  CHECK(a != 0 && b != 0 && a != b);
  CHECK_EQ(a, again);
  IS(ttc_compile_options_add(dev, bad, &again, &err), TTC_INVALID_ARGUMENT);
  OK(add(&x, &x, 1, NULL, &y));
  ttc_store_release(y.store);
  uint64_t plans = stats().plans;
  CHECK_EQ(ttc_compile_options_use(a), 0);
  OK(add(&x, &x, 1, NULL, &y)); /* another program */
  ttc_store_release(y.store);
  CHECK_EQ(stats().plans, plans + 1);
  CHECK_EQ(ttc_compile_options_use(12345), a); /* no such list: none */
  OK(add(&x, &x, 1, NULL, &y));
  ttc_store_release(y.store);
  CHECK_EQ(stats().plans, plans + 1);
  CHECK_EQ(ttc_compile_options_use(0), 0);
  ttc_store_release(x.store);
}

static void test_trace(void) {
  ttc_span *spans;
  size_t n = 99;
  ten y, x = ones();
  OK(add(&x, &x, 1, NULL, NULL)); /* before: not part of it */
  OK(ttc_trace_start(dev, &err));
  IS(ttc_trace_start(dev, &err), TTC_FAILED_PRECONDITION);
  ttc_trace_tag(7);
  OK(add(&x, &x, 1, NULL, &y));
  ttc_trace_tag(0);
  OK(ttc_device_flush(dev, &err));
  fake_hold(1);
  OK(add(&y, &x, 1, NULL, NULL));
  OK(ttc_device_flush(dev, &err));
  pthread_t thread;
  pthread_create(&thread, NULL, let_go_soon, NULL);
  OK(ttc_trace_stop(dev, &spans, &n, &err));
  pthread_join(thread, NULL);
  CHECK_EQ(n, 2);
  for (size_t i = 0; i < n && n == 2; i++) {
    CHECK(strcmp(spans[i].op, "add.Tensor") == 0);
    CHECK_EQ(spans[i].tag, i == 0 ? 7 : 0);
    CHECK(spans[i].start_ns <= spans[i].done_ns);
  }
  CHECK(n != 2 || spans[1].start_ns >= spans[0].done_ns);
  CHECK(n != 2 || spans[1].done_ns - spans[1].start_ns >= 20000000);
  ttc_trace_free(spans);
  OK(add(&x, &x, 1, NULL, NULL));
  OK(ttc_trace_stop(dev, &spans, &n, &err)); /* none is going on */
  CHECK_EQ(n, 0);
  ttc_trace_free(spans);
  ttc_store_release(x.store);
  ttc_store_release(y.store);
}

static void test_counts(void) {
  ten x = ones();
  OK(ttc_device_flush(dev, &err));
  ttc_device_reset_made(dev);
  ttc_device_reset_peak(dev);
  ttc_stats before = stats();
  CHECK_EQ(before.made_nbuffer, (uint64_t)before.live_nbuffer);
  CHECK_EQ(before.made_nbyte, (uint64_t)before.live_nbyte);
  OK(add(&x, &x, 1, NULL, NULL));
  OK(add(&x, &x, 1, &x, NULL));
  OK(ttc_device_synchronize(dev, &err));
  ttc_stats after = stats();
  CHECK_EQ(after.made_nbuffer, before.made_nbuffer + 2);
  CHECK_EQ(after.live_nbuffer, before.live_nbuffer);
  CHECK_EQ(after.peak_nbuffer, before.live_nbuffer + 1);
  CHECK_EQ(after.made_nbyte, before.made_nbyte + 2 * sizeof(float) * BIG * BIG);
  ttc_store_release(x.store);
}

int main(void) {
  open_fake();
  long live = fake_live();
  test_order();
  test_dropped();
  test_compiling();
  test_interrupted();
  test_threads();
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(fake_live() - live, (long)stats().plans);
  test_options();
  test_counts();
  test_trace();
  CHECK_EQ(stats().live_nbyte, 0);
  ttc_shutdown(5000);
  return CHECK_DONE();
}
