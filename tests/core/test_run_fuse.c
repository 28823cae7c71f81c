/* Calls kept back: what cuts them, when they become one program, and that nothing is lost where that program cannot be had. */
#include "run_tools.h"
#include "ttc_fuse.h"

static ttc_fuse_stats fused(void) {
  ttc_fuse_stats s;
  ttc_device_get_fuse_stats(dev, &s);
  return s;
}

static long executes(void) {
  return fake_count("PJRT_LoadedExecutable_Execute");
}

/* ((a + b) + b) + b, read; only the last is held when it is. Returns how many programs ran. */
static long chain(int64_t n) {
  ten a = empty(TTC_F32, DIMS(n)), b = empty(TTC_F32, DIMS(n)), y, next;
  float zeros[64] = {0}, out[64];
  long before = executes();
  OK(put(&a, zeros));
  OK(put(&b, zeros));
  OK(add(&a, &b, 1, NULL, &y));
  for (int k = 0; k < 2; k++) {
    OK(add(&y, &b, 1, NULL, &next));
    ttc_store_release(y.store);
    y = next;
  }
  OK(get(&y, out));
  ttc_store_release(y.store);
  ttc_store_release(a.store);
  ttc_store_release(b.store);
  return executes() - before;
}

static void becomes_one_program(void) {
  CHECK_EQ(chain(3), 3); /* unknown */
  CHECK_EQ(fused().programs, 0);
  CHECK_EQ(chain(3), 3); /* seen before: asked for */
  CHECK_EQ(fused().programs, 1);
  OK(ttc_device_wait_fused(dev, &err));
  CHECK_EQ(chain(3), 1);
  CHECK_EQ(chain(3), 1);
  ttc_fuse_stats s = fused();
  CHECK_EQ(s.runs, 4);
  CHECK_EQ(s.hits, 2);
  CHECK_EQ(s.cuts[TTC_CUT_READ], 4);
  CHECK_EQ(s.fused, 6);
  CHECK_EQ(s.unwritten_nbyte, 2 * 2 * 3 * sizeof(float));
  CHECK_EQ(stats().live_nbyte, 0);
}

/* Waits, less than silence cuts a trace, until so many programs ran since `before`. */
static bool ran_ahead(long before, long n, uint64_t runs) {
  for (int k = 0; k < 10 && executes() - before < n && fused().runs == runs; k++) {
    nap_ms(1);
  }
  return executes() - before == n && fused().runs == runs;
}

/* ((a + b) + b) + b without a read, each call given the time to be launched. Did all run, and were the results that nobody has let
 * go of? */
static bool slow_chain(const ten *a, const ten *b, ten *out) {
  long before = executes();
  uint64_t runs = fused().runs;
  bool early = true;
  ten y = *a, next;
  for (int k = 0; k < 3; k++) {
    OK(add(&y, b, 1, NULL, &next));
    early = ran_ahead(before, k + 1, runs) && early;
    if (k != 0) {
      ttc_store_release(y.store);
    }
    y = next;
  }
  *out = y;
  return early && stats().live_nbyte == 3 * (int64_t)ten_nbyte(a);
}

/* A trace that is no known piece's beginning is launched before its cut, and is told apart and becomes a program all the same; then
 * it is kept back, until it goes on otherwise. */
static void unknown_is_not_kept(void) {
  bool early = false;
  for (int64_t n = 20; n < 40 && !early; n++) { /* on a busy machine the silence may have been too long */
    ten a = empty(TTC_F32, DIMS(n)), b = empty(TTC_F32, DIMS(n)), y, z;
    float zeros[64] = {0};
    OK(put(&a, zeros));
    OK(put(&b, zeros));
    OK(ttc_device_flush(dev, &err));
    ttc_fuse_stats first = fused();
    early = true;
    for (int k = 0; k < 2; k++) {
      early = slow_chain(&a, &b, &y) && early;
      OK(get(&y, zeros));
      ttc_store_release(y.store);
    }
    OK(ttc_device_wait_fused(dev, &err));
    early = early && fused().traces == first.traces + 1 && fused().programs == first.programs + 1;
    long before = executes();
    uint64_t runs = fused().runs;
    OK(add(&a, &b, 1, NULL, &y));
    OK(add(&y, &b, 1, NULL, &z));
    early = !ran_ahead(before, 1, runs) && executes() == before && early;
    OK(add(&z, &z, 1, &z, NULL));
    early = early && ran_ahead(before, 3, runs);
    OK(get(&z, zeros));
    ttc_store_release(y.store);
    ttc_store_release(z.store);
    before = executes();
    (void)slow_chain(&a, &b, &y);
    early = early && executes() == before;
    OK(get(&y, zeros));
    early = early && executes() == before + 1;
    ttc_store_release(y.store);
    ttc_store_release(a.store);
    ttc_store_release(b.store);
  }
  CHECK(early);
  CHECK_EQ(stats().live_nbyte, 0);
}

/* Its compile fails: the calls go on one by one, and nobody hears an error. */
static void cannot_be_compiled(void) {
  CHECK_EQ(chain(5), 3);
  fake_fail("PJRT_Client_Compile", 1);
  CHECK_EQ(chain(5), 3);
  OK(ttc_device_wait_fused(dev, &err));
  fake_fail(NULL, 0);
  CHECK_EQ(chain(5), 3);
  CHECK_EQ(fused().failed, 1);
  CHECK_EQ(chain(5), 3);
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(stats().live_nbyte, 0);
}

/* No memory for the whole, not even the second time: its calls run one by one, now and for a while. */
static void finds_no_memory(void) {
  void *found = dlsym(dlopen(getenv("TTC_FAKE_PLUGIN"), RTLD_NOW | RTLD_NOLOAD), "fake_plugin_starve");
  fake_plugin_starve_fn *starve;
  memcpy(&starve, &found, sizeof found);
  for (int k = 0; k < 3; k++) {
    CHECK_EQ(chain(9), k < 2 ? 3 : 1);
    OK(ttc_device_wait_fused(dev, &err));
  }
  starve("PJRT_LoadedExecutable_Execute", 2);
  CHECK_EQ(chain(9), 2 + 3);
  CHECK_EQ(chain(9), 3);
  for (int k = 0; k < 63; k++) {
    (void)chain(9);
  }
  CHECK_EQ(chain(9), 1);
  OK(ttc_device_synchronize(dev, &err));      /* nobody hears of it */
  starve("PJRT_LoadedExecutable_Execute", 4); /* and so the first call's two tries */
  ten a = empty(TTC_F32, DIMS(9)), b = empty(TTC_F32, DIMS(9)), y, z;
  float out[9] = {0};
  OK(put(&a, out));
  OK(put(&b, out));
  OK(add(&a, &b, 1, NULL, &y));
  OK(add(&y, &b, 1, NULL, &z));
  ttc_store_release(y.store);
  OK(add(&z, &b, 1, NULL, &y));
  ttc_store_release(z.store);
  IS(get(&y, out), TTC_RESOURCE_EXHAUSTED);
  CHECK_EQ(strcmp(err.op, "add.Tensor"), 0);
  OK(get(&a, out));
  ttc_store_release(a.store);
  ttc_store_release(b.store);
  ttc_store_release(y.store);
  CHECK_EQ(stats().live_nbyte, 0);
}

/* y = a + a, z = b + b. */
static void two(const ten *a, const ten *b, ten *y, ten *z) {
  OK(add(a, a, 1, NULL, y));
  OK(add(b, b, 1, NULL, z));
}

/* What failed before is told by what depends on it, and by nothing else of the trace. */
static void reads_what_failed(void) {
  ten a = empty(TTC_F32, DIMS(10)), b = empty(TTC_F32, DIMS(10)), y, z;
  float out[10] = {0};
  OK(put(&a, out));
  OK(put(&b, out));
  for (int k = 0; k < 4; k++) {
    if (k == 3) {
      deferring = 0;
      fake_fail("PJRT_LoadedExecutable_Execute", 1);
      OK(add(&a, &a, 1, &a, NULL));
      OK(ttc_device_flush(dev, &err));
      deferring = 1;
    }
    long before = executes();
    two(&a, &b, &y, &z);
    OK(get(&z, out));
    CHECK_EQ(executes() - before, k < 2 ? 2 : 1);
    IS(get(&y, out), k < 3 ? TTC_OK : TTC_INTERNAL);
    ttc_store_release(y.store);
    ttc_store_release(z.store);
    OK(ttc_device_wait_fused(dev, &err));
  }
  OK(put(&a, out));
  two(&a, &b, &y, &z);
  fake_fail("PJRT_LoadedExecutable_Execute", 1); /* of the whole: its calls do without */
  long before = executes();
  OK(get(&y, out));
  CHECK_EQ(executes() - before, 3);
  OK(get(&z, out));
  ttc_store_release(a.store);
  ttc_store_release(b.store);
  ttc_store_release(y.store);
  ttc_store_release(z.store);
  OK(ttc_device_synchronize(dev, &err));
}

/* Who holds one result more gets it, from a program of its own. */
static void more_results(void) {
  ten a = empty(TTC_F32, DIMS(3)), y, z;
  float out[3];
  for (int hold = 0; hold < 2; hold++) {
    for (int k = 0; k < 6; k++) {
      OK(add(&a, &a, 1, NULL, &y));
      OK(add(&y, &a, 1, NULL, &z));
      if (hold == 0) {
        ttc_store_release(y.store);
      }
      long before = executes();
      OK(get(&z, out));
      CHECK(k < 4 || executes() - before == 1);
      if (hold != 0) {
        OK(get(&y, out));
        ttc_store_release(y.store);
      }
      ttc_store_release(z.store);
      OK(ttc_device_wait_fused(dev, &err));
    }
  }
  ttc_store_release(a.store);
}

/* 11 calls on one of two tensors each, as the bits say. Returns how many programs ran. */
static long by_bits(const ten *x, unsigned bits) {
  long before = executes();
  for (int k = 0; k < 11; k++) {
    const ten *at = &x[bits >> k & 1];
    OK(add(at, at, 1, at, NULL));
  }
  OK(ttc_device_flush(dev, &err));
  return executes() - before;
}

/* Traces that come faster than their programs can be made: some are left out, and asked for when they come again. */
static void too_many(void) {
  ten x[2] = {empty(TTC_F32, DIMS(3)), empty(TTC_F32, DIMS(12))};
  float zeros[12] = {0};
  OK(put(&x[0], zeros));
  OK(put(&x[1], zeros));
  uint64_t programs = fused().programs;
  fake_delay("PJRT_Client_Compile", 5);
  for (unsigned bits = 0; bits < 400; bits++) {
    (void)by_bits(x, bits);
    (void)by_bits(x, bits);
  }
  CHECK(fused().compiling <= 256);
  CHECK(fused().programs - programs < 400);
  fake_delay(NULL, 0);
  OK(ttc_device_wait_fused(dev, &err));
  (void)by_bits(x, 399);
  OK(ttc_device_wait_fused(dev, &err));
  CHECK_EQ(by_bits(x, 399), 1);
  ttc_store_release(x[0].store);
  ttc_store_release(x[1].store);
}

/* A process that meets ever new traces does not keep the programs of all. */
static void ever_new(void) {
  ten x[2] = {empty(TTC_F32, DIMS(2)), empty(TTC_F32, DIMS(11))};
  float zeros[11] = {0};
  OK(put(&x[0], zeros));
  OK(put(&x[1], zeros));
  for (unsigned bits = 0; bits < 1200; bits++) {
    (void)by_bits(x, bits);
    (void)by_bits(x, bits);
    if (bits % 64 == 0) {
      OK(ttc_device_wait_fused(dev, &err));
    }
  }
  OK(ttc_device_wait_fused(dev, &err));
  CHECK_EQ(by_bits(x, 1199), 1);
  CHECK_EQ(by_bits(x, 0), 11);
  CHECK_EQ(by_bits(x, 0), 11);
  OK(ttc_device_wait_fused(dev, &err));
  CHECK_EQ(by_bits(x, 0), 1);
  ttc_store_release(x[0].store);
  ttc_store_release(x[1].store);
}

/* Calls wired alike, the first writing a store that is older than the trace or was made in it: a program of the one is given a
 * store more than that of the other. */
static void older_than_its_trace(void) {
  ten a = empty(TTC_F32, DIMS(13)), y;
  float zeros[13] = {0};
  OK(put(&a, zeros));
  for (int k = 0; k < 10; k++) {
    bool older = k < 4 || k % 2 == 1;
    OK(ttc_device_flush(dev, &err));
    ten x = empty(TTC_F32, DIMS(13));
    if (older) {
      OK(add(&a, &a, 1, &a, NULL));
      OK(ttc_device_flush(dev, &err));
    }
    uint64_t unwritten = fused().unwritten_nbyte, hits = fused().hits;
    OK(add(&a, &a, 1, &x, NULL));
    OK(add(&x, &a, 1, NULL, &y));
    ttc_store_release(x.store);
    OK(get(&y, zeros));
    ttc_store_release(y.store);
    OK(ttc_device_wait_fused(dev, &err));
    CHECK_EQ(fused().hits - hits, k == 2 || k == 3 || k == 5 || k > 6);
    CHECK_EQ(fused().unwritten_nbyte - unwritten, k == 8 ? sizeof zeros : 0);
  }
  ttc_store_release(a.store);
}

/* In place: the store keeps one buffer, and a copy into it is told from a copy into a new one. */
static void in_place(void) {
  ten x = empty(TTC_F32, DIMS(4));
  float data[4] = {0};
  OK(put(&x, data));
  for (int k = 0; k < 5; k++) {
    OK(add(&x, &x, 1, &x, NULL));
    OK(add(&x, &x, 2, &x, NULL));
    ten fresh = empty(TTC_F32, DIMS(4));
    uint64_t cuts = fused().runs;
    OK(put(&fresh, data));
    CHECK_EQ(fused().runs, cuts); /* nobody has seen it: no cut */
    OK(add(&x, &fresh, 1, &x, NULL));
    OK(put(&x, data));
    CHECK_EQ(fused().runs, cuts + 1);
    ttc_store_release(fresh.store);
    OK(ttc_device_wait_fused(dev, &err));
  }
  CHECK(fused().cuts[TTC_CUT_CALL] == 5);
  ttc_store_release(x.store);
}

/* Nothing is ever read: a loop is found, and cut where it begins again. */
static void loop(void) {
  ten x = empty(TTC_F32, DIMS(6)), w = empty(TTC_F32, DIMS(7));
  uint64_t before = fused().cuts[TTC_CUT_LOOP], programs = fused().programs;
  for (int k = 0; k < 40; k++) {
    for (int j = 0; j < 6; j++) {
      ten y, z;
      OK(add(&x, &x, j, NULL, &y));
      OK(add(&w, &w, 1, NULL, &z));
      OK(add(&y, &x, 1, &x, NULL));
      ttc_store_release(y.store);
      ttc_store_release(z.store);
    }
    ttc_device_stepped(dev);
  }
  CHECK_EQ(fused().cuts[TTC_CUT_LOOP] - before, 39);
  CHECK(fused().programs - programs <= 2);
  OK(ttc_device_synchronize(dev, &err));
  before = fused().cuts[TTC_CUT_LOOP];
  for (int k = 0; k < 600; k++) {
    OK(add(&x, &x, 1, &x, NULL));
  }
  CHECK(fused().cuts[TTC_CUT_LOOP] - before >= 3);
  CHECK_EQ(fused().cuts[TTC_CUT_NODES], 0);
  ttc_store_release(x.store);
  ttc_store_release(w.store);
}

/* A call that is not to be kept back goes after those that were. */
static void other_modes(void) {
  ten x = empty(TTC_F32, DIMS(3)), y;
  uint64_t cuts = fused().cuts[TTC_CUT_MODE];
  OK(add(&x, &x, 1, NULL, &y));
  ttc_store_release(y.store);
  deferring = 0;
  OK(add(&x, &x, 1, NULL, &y));
  ttc_store_release(y.store);
  CHECK_EQ(fused().cuts[TTC_CUT_MODE], cuts + 1);
  deferring = 1;
  OK(add(&x, &x, 1, NULL, &y)); /* left open: launched when nothing comes for a while */
  ttc_store_release(y.store);
  for (int k = 0; k < 200 && fused().cuts[TTC_CUT_IDLE] == 0; k++) {
    nap_ms(10);
  }
  CHECK(fused().cuts[TTC_CUT_IDLE] >= 1);
  ttc_store_release(x.store);
}

int main(void) {
  setenv("TORCH_TPU_EAGER_LENGTHS", "0", 1); /* sizes differ from test to test, and are to be traces of their own */
  open_fake();
  deferring = 1;
  becomes_one_program();
  unknown_is_not_kept();
  cannot_be_compiled();
  finds_no_memory();
  reads_what_failed();
  more_results();
  older_than_its_trace();
  in_place();
  loop();
  other_modes();
  too_many();
  ever_new();
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(stats().live_nbyte, 0);
  return CHECK_DONE();
}
