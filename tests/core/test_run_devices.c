/* Several devices in one process, used by several threads; what belongs to one is refused by another. */
#include <pthread.h>
#include <stdatomic.h>

#include "run_tools.h"

enum { NDEVICE = 4, N = 8, ROUNDS = 300 };
static ttc_device *devices[NDEVICE];
static atomic_int wrong;

static void test_bad_numbers(void) {
  static const char *const bad[] = {"0", "-3", "two", "3x", "65", "99999999999999999999"};
  ttc_device *d;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    setenv("TORCH_TPU_SIM_DEVICES", bad[i], 1);
    CHECK_EQ(ttc_device_count(), 0);
    IS(ttc_device_open(0, &d, &err), TTC_INVALID_ARGUMENT);
    CHECK(strstr(err.message, bad[i]) != NULL);
  }
  setenv("TORCH_TPU_SIM_DEVICES", "4", 1);
  CHECK_EQ(ttc_device_count(), NDEVICE);
  setenv("TORCH_TPU_MEMORY_LIMIT", "lots", 1);
  IS(ttc_device_open(0, &d, &err), TTC_INVALID_ARGUMENT);
  CHECK(strstr(err.message, "TORCH_TPU_MEMORY_LIMIT=lots") != NULL);
  unsetenv("TORCH_TPU_MEMORY_LIMIT");
}

static ten on(ttc_device *d) {
  ttc_spec s = dense(TTC_F32, DIMS(N));
  ttc_store *store = NULL;
  ttc_error e;
  MUST(ttc_store_new(d, spec_nbyte(&s), &s, &store, &e));
  return of_spec(store, &s);
}

static ttc_status plus(ttc_device *d, const ten *a, const ten *b, ten *out, ttc_error *e) {
  ttc_tensor t[2] = {as_arg(a), as_arg(b)};
  ttc_scalar one = {.kind = TTC_SCALAR_FLOAT, .wrapped = 1, .re = 1};
  ttc_arg args[3] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t[0]},
                     {.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t[1]},
                     {.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &one}};
  ttc_call call = {.op = ttc_op_find("add.Tensor"), .narg = 3, .args = args};
  ttc_spec spec = dense(TTC_F32, DIMS(N));
  ttc_result res;
  ttc_status st = ttc_call_run(d, &call, &res, e);
  st = st == TTC_NOT_FOUND ? ttc_call_define(d, &call, 1, &spec, &res, e) : st;
  if (st == TTC_OK) {
    *out = of_spec(res.stores[0], &res.specs[0]);
    ttc_result_done(&res);
  }
  return st;
}

static void test_opening(void) {
  for (int i = 0; i < NDEVICE; i++) {
    OK(ttc_device_open(i, &devices[i], &err));
    CHECK_EQ(ttc_device_index(devices[i]), i);
  }
  ttc_device *d = NULL;
  IS(ttc_device_open(NDEVICE, &d, &err), TTC_INVALID_ARGUMENT);
  CHECK(strstr(err.message, "invalid device ordinal: tpu:4 does not exist, this process has 4 tpu devices") != NULL);
  IS(ttc_device_open(-1, &d, &err), TTC_INVALID_ARGUMENT);
  CHECK(d == NULL);
}

static void test_mixed(void) {
  float host[N] = {0};
  ten y, a = on(devices[0]), b = on(devices[1]);
  ttc_tensor t = as_arg(&b);
  OK(ttc_copy_from_host(&t, host, sizeof host, &err));
  IS(plus(devices[0], &a, &b, &y, &err), TTC_INVALID_ARGUMENT);
  CHECK(strstr(err.message, "found at least two devices, tpu:0 and tpu:1!") != NULL);
  IS(plus(devices[2], &a, &a, &y, &err), TTC_INVALID_ARGUMENT);
  CHECK(ttc_store_device(b.store) == devices[1] && ttc_store_find(b.store) == devices[1]);
  CHECK(ttc_store_find(&host) == NULL);
  ttc_store_release(a.store);
  ttc_store_release(b.store);
}

/* Each thread goes round the devices, and lets one wait for another. */
static void *work(void *arg) {
  unsigned seed = (unsigned)(uintptr_t)arg;
  ttc_error e = {0};
  float host[N] = {0};
  for (int k = 0; k < ROUNDS; k++) {
    ttc_device *d = devices[rand_r(&seed) % NDEVICE], *other = devices[rand_r(&seed) % NDEVICE];
    ten y, a = on(d);
    ttc_tensor t = as_arg(&a);
    ttc_event *ev;
    MUST(ttc_copy_from_host(&t, host, sizeof host, &e));
    MUST(plus(d, &a, &a, &y, &e));
    if (k % 4 == 0) {
      MUST(ttc_event_record(d, &ev, &e));
      MUST(ttc_event_order(other, ev, &e));
      ttc_event_release(ev);
    } else if (k % 4 == 1) {
      t = as_arg(&y);
      MUST(ttc_copy_to_host(&t, host, sizeof host, &e));
      atomic_fetch_add(&wrong, ttc_store_find(y.store) != d);
    } else if (k % 16 == 2) {
      MUST(ttc_device_reclaim(other, &e));
      ttc_device_set_memory_limit(other, 0);
    } else if (k % 16 == 3) {
      ttc_set_matmul_precision(k % 3);
      MUST(ttc_device_synchronize(other, &e));
    }
    ttc_store_release(a.store);
    ttc_store_release(y.store);
  }
  return NULL;
}

static void test_threads(void) {
  pthread_t threads[NDEVICE];
  for (int i = 0; i < NDEVICE; i++) {
    CHECK_EQ(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)), 0); /* NOLINT(performance-no-int-to-ptr) */
  }
  for (int i = 0; i < NDEVICE; i++) {
    pthread_join(threads[i], NULL);
  }
  CHECK_EQ(atomic_load(&wrong), 0);
  for (int i = 0; i < NDEVICE; i++) {
    ttc_stats s;
    OK(ttc_device_synchronize(devices[i], &err));
    ttc_device_get_stats(devices[i], &s);
    CHECK_EQ(s.live_nbyte, 0);
    CHECK(s.calls > 0);
  }
}

int main(void) {
  (void)choose_fake();
  test_bad_numbers();
  test_opening();
  test_mixed();
  test_threads();
  ttc_shutdown(5000);
  return CHECK_DONE();
}
