/* src/run through ttc.h on the fake plugin: stores, calls, poison, hostile arguments; nothing is left behind. */
#include <pthread.h>

#include "run_tools.h"

static void test_stores(void) {
  ttc_store *s = NULL;
  ttc_spec spec = dense(TTC_F32, DIMS(2, 3));
  OK(ttc_store_new(dev, 24, &spec, &s, &err));
  CHECK_EQ(ttc_store_nbyte(s), 24);
  CHECK(ttc_store_device(s) == dev);
  CHECK_EQ(stats().live_nbyte, 0); /* nothing is taken before the first use */
  ttc_store_retain(s);
  ttc_store_release(s);
  float host[6] = {1, 2, 3, 4, 5, 6}, back[6];
  ten x = of_spec(s, &spec);
  memset(back, 7, sizeof back);
  OK(get(&x, back)); /* undefined contents can be read */
  OK(put(&x, host));
  OK(get(&x, back));
  CHECK(memcmp(host, back, sizeof host) == 0);
  CHECK_EQ(stats().live_nbyte, 24);
  ten row = view(&x, 3, DIMS(3), (const int64_t[]){1});
  OK(get(&row, back));
  CHECK(back[0] == 4 && back[2] == 6);
  ttc_device_reset_peak(dev);
  ttc_store_release(s);
  CHECK_EQ(stats().live_nbyte, 0);
  CHECK_EQ(stats().peak_nbyte, 24);
  IS(ttc_store_new(dev, SIZE_MAX, NULL, &s, &err), TTC_RESOURCE_EXHAUSTED);
  spec.ndim = 99;
  IS(ttc_store_new(dev, 24, &spec, &s, &err), TTC_INVALID_ARGUMENT);
  ttc_store_release(NULL);
}

static void test_resize(void) {
  float host[4] = {1, 2, 3, 4}, back[8];
  ten x = empty(TTC_F32, DIMS(4));
  OK(put(&x, host));
  OK(ttc_store_resize(x.store, 32, &err));
  CHECK_EQ(ttc_store_nbyte(x.store), 32);
  ten longer = view(&x, 0, DIMS(8), (const int64_t[]){1});
  OK(get(&longer, back));
  CHECK(memcmp(back, host, sizeof host) == 0);
  CHECK_EQ(stats().live_nbyte, 32);
  OK(ttc_store_resize(x.store, 8, &err));
  IS(get(&x, back), TTC_OUT_OF_RANGE);
  ten shorter = view(&x, 0, DIMS(2), (const int64_t[]){1});
  OK(get(&shorter, back));
  CHECK(back[0] == 1 && back[1] == 2);
  /* Emptied and grown again, as FSDP does: undefined contents, which an op may read. */
  OK(ttc_store_resize(x.store, 0, &err));
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(stats().live_nbyte, 0);
  OK(ttc_store_resize(x.store, 16, &err));
  ten y;
  OK(add(&x, &x, 1, NULL, &y));
  OK(get(&y, back));
  ttc_store_release(y.store);
  IS(ttc_store_resize(x.store, SIZE_MAX - 3, &err), TTC_RESOURCE_EXHAUSTED);
  ttc_store_release(x.store);
  CHECK_EQ(stats().live_nbyte, 0);
}

/* A store without contents is read, then resized, before the read is launched. */
static void test_undefined_then_resized(void) {
  ten y, x = empty(TTC_F32, DIMS(5)), flat = empty_flat(20, TTC_F32, DIMS(5));
  fake_delay("PJRT_Client_Compile", 50);
  OK(add(&x, &flat, 1, NULL, &y)); /* waits for its compile */
  OK(ttc_store_resize(x.store, 40, &err));
  OK(add(&flat, &flat, 1, &flat, NULL)); /* the first to write it: but its shape is settled, as it was read */
  OK(ttc_device_synchronize(dev, &err));
  fake_delay(NULL, 0);
  float back[10];
  OK(get(&y, back));
  ten longer = view(&x, 0, DIMS(10), (const int64_t[]){1});
  OK(get(&longer, back));
  ttc_store_release(x.store);
  ttc_store_release(y.store);
  ttc_store_release(flat.store);
}

static void test_calls(void) {
  ten y, a = empty(TTC_F32, DIMS(2, 7)), b = empty(TTC_F32, DIMS(7));
  float host[14] = {0};
  OK(put(&a, host));
  OK(put(&b, host));
  ttc_stats before = stats();
  OK(add(&a, &b, 2.5, NULL, &y));
  CHECK(!was_hit);
  CHECK(strstr(ttc_last_module(), "stablehlo.add") != NULL);
  ttc_store_release(y.store);
  OK(add(&a, &b, 3.5, NULL, &y)); /* alpha is a runtime number */
  CHECK(was_hit);
  CHECK_EQ(ttc_store_nbyte(y.store), sizeof host);
  OK(get(&y, host));
  CHECK_EQ(stats().calls - before.calls, 2);
  CHECK_EQ(stats().plans - before.plans, 1);
  CHECK_EQ(stats().programs_compiled - before.programs_compiled, 1);
  ttc_store_release(a.store);
  ttc_store_release(b.store);
  ttc_store_release(y.store);
}

/* In place: no second buffer is alive, for the fake plugin moves the memory of a donated argument. */
static void test_donation(void) {
  float host[64] = {0};
  ten a = empty(TTC_F32, DIMS(64)), b = empty(TTC_F32, DIMS(1));
  OK(put(&a, host));
  OK(put(&b, host));
  OK(ttc_device_synchronize(dev, &err));
  ttc_device_reset_peak(dev);
  for (int i = 0; i < 3; i++) {
    OK(add(&a, &b, 1, &a, NULL));
    CHECK(strstr(ttc_last_module(), "tf.aliasing_output = 0") != NULL);
  }
  ten part = view(&a, 8, DIMS(8), (const int64_t[]){2});
  OK(add(&part, &b, 1, &part, NULL)); /* keeps the rest: the base is an argument, donated too */
  CHECK(strstr(ttc_last_module(), "tf.aliasing_output = 0") != NULL);
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(stats().peak_nbyte, sizeof host + 4);
  CHECK_EQ(stats().live_nbyte, sizeof host + 4);
  ttc_store_release(a.store);
  ttc_store_release(b.store);
}

static void test_poison(void) {
  float host[9] = {0}, back[9];
  ten y, z, a = empty(TTC_F32, DIMS(9)), b = empty(TTC_F32, DIMS(9));
  OK(put(&a, host));
  OK(put(&b, host));
  OK(add(&a, &b, 1, NULL, &y)); /* so that it is compiled */
  ttc_store_release(y.store);
  OK(ttc_device_synchronize(dev, &err));
  fake_fail("PJRT_LoadedExecutable_Execute", 1);
  OK(add(&a, &b, 1, NULL, &y));
  what w = {.op = "mul.Tensor", .spec = dense(TTC_F32, DIMS(9))};
  tensor_arg(&w, &y);
  tensor_arg(&w, &a);
  OK(run(&w, &z)); /* depends on y */
  IS(get(&z, back), TTC_INTERNAL);
  CHECK_STR(err.op, "add.Tensor"); /* the first to fail */
  CHECK(strstr(err.message, "made to fail") != NULL);
  IS(get(&y, back), TTC_INTERNAL);
  OK(ttc_device_synchronize(dev, &err)); /* somebody has read it */
  ten part = view(&y, 1, DIMS(3), (const int64_t[]){2});
  OK(put(&part, host)); /* the rest is still poison */
  IS(get(&y, back), TTC_INTERNAL);
  OK(put(&y, host)); /* whole: fine from now on */
  OK(get(&y, back));
  OK(ttc_device_synchronize(dev, &err));
  ttc_store_release(z.store);

  fake_fail("PJRT_LoadedExecutable_Execute", 1);
  OK(add(&a, &b, 1, NULL, &z));
  IS(ttc_device_synchronize(dev, &err), TTC_INTERNAL); /* nobody read it */
  CHECK_STR(err.op, "add.Tensor");
  OK(ttc_device_synchronize(dev, &err)); /* reported once */
  IS(get(&z, back), TTC_INTERNAL);       /* but its readers are told */
  OK(add(&a, &b, 1, &z, NULL));          /* overwritten whole by an op */
  OK(get(&z, back));
  ttc_store_release(z.store);
  ttc_store_release(y.store);

  /* Two failures, of which one is read: synchronize reports the other. */
  fake_fail("PJRT_LoadedExecutable_Execute", 1);
  OK(add(&a, &b, 1, NULL, &y));
  OK(ttc_store_resize(b.store, 36, &err)); /* no change */
  IS(get(&y, back), TTC_INTERNAL);
  fake_fail("PJRT_LoadedExecutable_Execute", 1);
  OK(add(&a, &b, 1, NULL, &z));
  IS(ttc_device_synchronize(dev, &err), TTC_INTERNAL);
  OK(ttc_device_synchronize(dev, &err));
  ttc_store_release(a.store);
  ttc_store_release(b.store);
  ttc_store_release(y.store);
  ttc_store_release(z.store);
}

static void test_compile_failure(void) {
  float back[11];
  ten y, a = empty(TTC_F32, DIMS(11));
  for (int i = 0; i < 2; i++) { /* each failure is reported */
    fake_fail("PJRT_Client_Compile", 1);
    OK(add(&a, &a, 1, NULL, &y));
    CHECK(!was_hit);
    IS(ttc_device_synchronize(dev, &err), TTC_INTERNAL);
    CHECK_STR(err.op, "add.Tensor");
    OK(ttc_device_synchronize(dev, &err));
    IS(get(&y, back), TTC_INTERNAL);
    ttc_store_release(y.store);
  }
  OK(add(&a, &a, 1, NULL, &y)); /* and the call is tried again */
  OK(get(&y, back));
  ttc_store_release(y.store);
  ttc_store_release(a.store);
}

static void test_hostile_arguments(void) {
  float host[4] = {0};
  ten y, a = empty(TTC_F32, DIMS(4)), far = view(&a, 1, DIMS(4), (const int64_t[]){1}), many = a;
  IS(add(&far, &a, 1, NULL, &y), TTC_OUT_OF_RANGE);
  IS(add(&a, &a, 1, &far, NULL), TTC_OUT_OF_RANGE);
  IS(get(&far, host), TTC_OUT_OF_RANGE);
  far.offset = -1;
  IS(get(&far, host), TTC_OUT_OF_RANGE);
  IS(add(&far, &a, 1, NULL, &y), TTC_OUT_OF_RANGE);
  many.ndim = 13;
  ttc_tensor t = as_arg(&many);
  ttc_arg args[3] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t}};
  ttc_call call = {.op = ttc_op_find("neg"), .narg = 1, .args = args};
  ttc_result res;
  IS(ttc_call_run(dev, &call, &res, &err), TTC_INVALID_ARGUMENT);
  IS(ttc_copy_to_host(&t, host, 16, &err), TTC_INVALID_ARGUMENT);
  IS(ttc_copy_from_host(&t, host, 16, &err), TTC_INVALID_ARGUMENT);
  t = as_arg(&a);
  IS(ttc_copy_to_host(&t, host, 15, &err), TTC_INVALID_ARGUMENT);
  IS(ttc_copy_from_host(&t, host, 17, &err), TTC_INVALID_ARGUMENT);
  t.store = NULL;
  IS(ttc_call_run(dev, &call, &res, &err), TTC_NOT_FOUND); /* an absent tensor where one must be */
  ttc_spec spec = dense(TTC_F32, DIMS(4));
  IS(ttc_call_define(dev, &call, 1, &spec, &res, &err), TTC_INTERNAL);
  t.value = 3;
  IS(ttc_call_run(dev, &call, &res, &err), TTC_INVALID_ARGUMENT); /* a value of no graph */
  call.narg = 0;
  IS(ttc_call_run(dev, &call, &res, &err), TTC_NOT_FOUND);
  IS(ttc_call_define(dev, &call, 1, &spec, &res, &err), TTC_INTERNAL);
  call.op = 1u << 30;
  IS(ttc_call_define(dev, &call, 1, &spec, &res, &err), TTC_INVALID_ARGUMENT);
  ttc_device *other;
  IS(ttc_device_open(7, &other, &err), TTC_INVALID_ARGUMENT);
  IS(ttc_device_open(-1, &other, &err), TTC_INVALID_ARGUMENT);
  ttc_store_release(a.store);
}

/* A second device: contents and programs are its own, and tensors do not mix. */
static void test_devices(void) {
  ttc_device *second = NULL, *first = dev;
  OK(ttc_device_open(1, &second, &err));
  CHECK(second != NULL && second != first);
  ten y, a = empty(TTC_F32, DIMS(4));
  dev = second;
  ten b = empty(TTC_F32, DIMS(4));
  IS(add(&b, &a, 1, NULL, &y), TTC_INVALID_ARGUMENT);
  CHECK(strstr(err.message, "tpu:1 and tpu:0") != NULL);
  IS(add(&b, &b, 1, &a, NULL), TTC_INVALID_ARGUMENT); /* into another device's */
  OK(add(&b, &b, 1, NULL, &y));                       /* undefined contents lie where they belong */
  float host[4];
  OK(get(&y, host));
  OK(put(&b, host));
  OK(add(&b, &y, 3, &b, NULL));
  OK(get(&b, host));
  ttc_store_release(y.store);
  ttc_store_release(b.store);
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(stats().live_nbyte, 0);
  dev = first;
  ttc_store_release(a.store);
}

static void *release_many(void *stores) {
  for (ttc_store **s = stores; *s != NULL; s++) {
    ttc_store_release(*s);
  }
  return NULL;
}

/* Four threads let go of the same stores while the launch thread writes them. */
static void test_release(void) {
  enum { N = 200, THREADS = 4 };
  static ttc_store *stores[N + 1];
  float host[4] = {0};
  for (int i = 0; i < N; i++) {
    ten x = empty(TTC_F32, DIMS(4));
    OK(put(&x, host));
    OK(add(&x, &x, 1, &x, NULL));
    stores[i] = x.store;
    for (int k = 1; k < THREADS; k++) {
      ttc_store_retain(x.store);
    }
  }
  pthread_t threads[THREADS];
  for (int k = 0; k < THREADS; k++) {
    CHECK_EQ(pthread_create(&threads[k], NULL, release_many, stores), 0);
  }
  OK(ttc_device_synchronize(dev, &err));
  for (int k = 0; k < THREADS; k++) {
    pthread_join(threads[k], NULL);
  }
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(stats().live_nbyte, 0);
}

static void run_all(void) {
  test_stores();
  test_resize();
  test_undefined_then_resized();
  test_donation();
  test_poison();
  test_hostile_arguments();
  test_devices();
  test_release();
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(stats().live_nbyte, 0);
}

int main(void) {
  setenv("TORCH_TPU_SIM_DEVICES", "2", 1);
  open_fake();
  ttc_device *again = NULL;
  OK(ttc_device_open(0, &again, &err));
  CHECK(again == dev);
  test_calls();
  test_compile_failure();
  run_all();
  /* What is alive now are the plans' executables and the numbers' buffers. A second round needs no more. */
  long live = fake_live();
  run_all();
  CHECK_EQ(fake_live(), live);
  return CHECK_DONE();
}
