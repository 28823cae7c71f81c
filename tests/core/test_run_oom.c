/* Out of memory: refused at the call's own line with everything as it was; at a launch, tried once more and then told where it is
 * read. */
#include "run_tools.h"

enum { KIB = 1024, MIB = KIB * KIB };

static fake_plugin_starve_fn *starve;
static fake_plugin_misbehave_fn *misbehave;

static void find_controls(void) {
  void *lib = dlopen(getenv("TTC_FAKE_PLUGIN"), RTLD_NOW | RTLD_NOLOAD);
  void *found[] = {dlsym(lib, "fake_plugin_starve"), dlsym(lib, "fake_plugin_misbehave")};
  memcpy(&starve, &found[0], sizeof found[0]);
  memcpy(&misbehave, &found[1], sizeof found[1]);
}

/* n floats, written. */
static ten floats(int64_t n) {
  static float host[MIB];
  ten x = empty(TTC_F32, DIMS(n));
  if (x.store != NULL) {
    OK(put(&x, host));
  }
  return x;
}

static bool says(const char *words) {
  if (strstr(err.message, words) == NULL) {
    fprintf(stderr, "expected \"%s\" in: %s\n", words, err.message);
    return false;
  }
  return true;
}

static void test_limit(void) {
  ten y, a = floats(64 * KIB), b = floats(64 * KIB); /* 256 KiB each */
  OK(add(&a, &b, 1, NULL, &y));
  ttc_store_release(y.store);
  ttc_device_set_memory_limit(dev, MIB);
  CHECK_EQ(stats().limit_nbyte, MIB);
  for (int i = 0; i < 3; i++) { /* two more fit, a fifth does not, no matter how often */
    ten c, d, e;
    OK(add(&a, &b, 1, NULL, &c));
    OK(add(&a, &b, 1, NULL, &d));
    uint64_t calls = stats().calls;
    IS(add(&a, &b, 1, NULL, &e), TTC_RESOURCE_EXHAUSTED);
    CHECK_EQ(stats().calls, calls);
    CHECK(says("tpu:0 is out of memory: add.Tensor asks for 256.00 KiB: f32[65536]."));
    CHECK(says("Held: 1.00 MiB by 4 tensors (peak "));
    CHECK(says("allowed: 1.00 MiB"));
    CHECK(says("Largest: 512.00 KiB in 2 x f32[65536] from "));
    IS(empty(TTC_F32, DIMS(64 * KIB)).store == NULL ? err.code : TTC_OK, TTC_RESOURCE_EXHAUSTED);
    CHECK(says("a new tensor asks for 256.00 KiB: f32[65536]."));
    IS(ttc_store_resize(c.store, MIB, &err), TTC_RESOURCE_EXHAUSTED);
    OK(add(&a, &b, 1, &c, NULL)); /* in place there is room */
    OK(get(&c, (float[64 * KIB]){0}));
    ttc_store_release(c.store);
    ttc_store_release(d.store);
  }
  /* Released but not yet launched: room is made by launching. */
  for (int i = 0; i < 200; i++) {
    OK(add(&a, &b, 1, NULL, &y));
    ttc_store_release(y.store);
  }
  /* A new shape is refused before it is compiled. */
  ten row = view(&a, 0, DIMS(1, 64 * KIB), ((const int64_t[]){0, 1}));
  ten column = view(&a, 0, DIMS(64 * KIB, 1), ((const int64_t[]){1, 0}));
  what w = {.op = "add.Tensor", .spec = dense(TTC_F32, DIMS(64 * KIB, 64 * KIB))};
  tensor_arg(&w, &column);
  tensor_arg(&w, &row);
  number_arg(&w, 1);
  long compiled = fake_count("PJRT_Client_Compile");
  IS(run(&w, NULL), TTC_RESOURCE_EXHAUSTED);
  CHECK(says("asks for 16.00 GiB: f32[65536,65536]"));
  CHECK_EQ(fake_count("PJRT_Client_Compile"), compiled);
  ttc_device_set_memory_limit(dev, 0);
  CHECK(stats().limit_nbyte > 16 * MIB);
  OK(add(&a, &b, 1, NULL, &y));
  ttc_store_release(y.store);
  ttc_store_release(a.store);
  ttc_store_release(b.store);
  OK(ttc_device_reclaim(dev, &err));
  CHECK_EQ(stats().live_nbyte, 0);
}

/* Sizes that no arithmetic may wrap. */
static void test_absurd_sizes(void) {
  const int64_t most = INT64_MAX / 4;
  ten a = floats(4);
  what w = {.op = "add.Tensor", .spec = dense(TTC_F32, DIMS(4))};
  tensor_arg(&w, &a);
  tensor_arg(&w, &a);
  number_arg(&w, 1);
  w.spec.ndim = 3;
  for (int i = 0; i < 3; i++) {
    w.spec.sizes[i] = most;
    w.spec.strides[i] = 1;
  }
  IS(run(&w, NULL), TTC_RESOURCE_EXHAUSTED);
  ttc_store *s = NULL;
  IS(ttc_store_new(dev, (size_t)1 << 42, NULL, &s, &err), TTC_RESOURCE_EXHAUSTED);
  IS(ttc_store_new(dev, SIZE_MAX, NULL, &s, &err), TTC_RESOURCE_EXHAUSTED);
  IS(ttc_store_resize(a.store, (size_t)1 << 42, &err), TTC_RESOURCE_EXHAUSTED);
  CHECK_EQ(ttc_store_nbyte(a.store), 16);
  ttc_store_release(a.store);
}

static void test_starving_launch(void) {
  float host[8];
  ten y, a = floats(8);
  OK(add(&a, &a, 1, NULL, &y));
  ttc_store_release(y.store);
  OK(ttc_device_synchronize(dev, &err));
  starve("PJRT_LoadedExecutable_Execute", 1); /* the second try works */
  OK(add(&a, &a, 2, NULL, &y));
  OK(get(&y, host));
  ttc_store_release(y.store);
  starve("PJRT_LoadedExecutable_Execute", 2);
  OK(add(&a, &a, 3, NULL, &y));
  IS(get(&y, host), TTC_RESOURCE_EXHAUSTED);
  CHECK_EQ(strcmp(err.op, "add.Tensor"), 0);
  CHECK(says("tpu:0 is out of memory while running this op (PJRT_LoadedExecutable_Execute: made to starve"));
  CHECK(says("Held: 32 bytes by 1 tensors"));
  ten z;
  OK(add(&y, &a, 1, NULL, &z)); /* what reads it keeps the code */
  IS(get(&z, host), TTC_RESOURCE_EXHAUSTED);
  OK(ttc_device_synchronize(dev, &err));
  ttc_store_release(y.store);
  ttc_store_release(z.store);
  starve("PJRT_LoadedExecutable_Execute", 2);
  OK(add(&a, &a, 3, NULL, &y));
  IS(ttc_device_synchronize(dev, &err), TTC_RESOURCE_EXHAUSTED);
  ttc_store_release(y.store);
  OK(get(&a, host)); /* the argument is as it was */
  ttc_store_release(a.store);
}

static void test_starving_transfers(void) {
  float host[8] = {0};
  ten y, a = floats(8), never = empty(TTC_F32, DIMS(8));
  starve("PJRT_Client_BufferFromHostBuffer", 1);
  OK(put(&a, host));
  starve("PJRT_Client_BufferFromHostBuffer", 2);
  IS(put(&a, host), TTC_RESOURCE_EXHAUSTED);
  OK(get(&a, host));
  starve("PJRT_Client_CreateUninitializedBuffer", 1);
  OK(add(&never, &a, 1, NULL, &y));
  OK(get(&y, host));
  ttc_store_release(y.store);
  ttc_store_release(never.store);
  ttc_store_release(a.store);
  OK(ttc_device_synchronize(dev, &err));
}

/* What a program takes while it runs is known once it is compiled: too much, and it is not run. */
static void test_temporaries(void) {
  float host[9];
  ten y, a = floats(9);
  misbehave("huge temporaries");
  long ran = fake_count("PJRT_LoadedExecutable_Execute");
  OK(add(&a, &a, 1, NULL, &y));
  IS(get(&y, host), TTC_RESOURCE_EXHAUSTED);
  CHECK(says("it takes 1.00 PiB for itself while it runs"));
  CHECK_EQ(fake_count("PJRT_LoadedExecutable_Execute"), ran);
  misbehave(NULL);
  OK(get(&a, host));
  OK(ttc_device_synchronize(dev, &err));
  ttc_store_release(a.store);
  ttc_store_release(y.store);
}

int main(void) {
  open_fake();
  find_controls();
  long live = fake_live();
  test_limit();
  test_absurd_sizes();
  test_starving_launch();
  test_starving_transfers();
  test_temporaries();
  OK(ttc_device_reclaim(dev, &err)); /* gives the cached numbers back too */
  CHECK_EQ(stats().live_nbyte, 0);
  CHECK_EQ(fake_live() - live, (long)stats().plans);
  return CHECK_DONE();
}
