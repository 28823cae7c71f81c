/* src/run's values on a real XLA:CPU plugin: what in-place writes keep, views of every kind, resizes, graphs. Expected values are
 * worked out by plain loops here. */
#include <pthread.h>

#include "real_plugin.h"
#include "run_tools.h"

enum { R = 4, C = 6 };
static float base[R * C], back[R * C + 8];

static ten ramp(void) {
  ten x = empty(TTC_F32, DIMS(R, C));
  for (int i = 0; i < R * C; i++) {
    base[i] = (float)i;
  }
  OK(put(&x, base));
  return x;
}

static void same(const char *name, const float *got, const float *want, int n) {
  for (int i = 0; i < n; i++) {
    if (got[i] != want[i]) {
      fprintf(stderr, "%s: element %d is %g, expected %g\n", name, i, (double)got[i], (double)want[i]);
      CHECK(!"value");
      return;
    }
  }
  CHECK(true);
}

/* The views under test: offset, sizes and strides of a 2-D view of the 4 x 6 base. */
static const struct {
  const char *name;
  int64_t offset, sizes[2], strides[2];
} views[] = {{"whole", 0, {R, C}, {C, 1}},        {"rows", C, {2, C}, {C, 1}},           {"columns", 2, {R, 3}, {C, 1}},
             {"transposed", 0, {C, R}, {1, C}},   {"every second", 1, {R, 3}, {C, 2}},   {"one column", 3, {R, 1}, {C, 7}},
             {"diagonal", 0, {1, R}, {1, C + 1}}, {"reshaped", 0, {8, 3}, {3, 1}},       {"odd", 1, {3, 2}, {5, 3}},
             {"empty", 0, {0, 3}, {C, 1}},        {"inner block", C + 1, {2, 4}, {C, 1}}};
enum { NVIEW = sizeof views / sizeof *views };

static int place(int v, int i, int j) {
  return (int)(views[v].offset + i * views[v].strides[0] + j * views[v].strides[1]);
}

static void test_views(void) {
  float want[R * C], packed[R * C];
  for (int v = 0; v < NVIEW; v++) {
    int rows = (int)views[v].sizes[0], columns = (int)views[v].sizes[1], n = rows * columns;
    ten x = ramp(), part = view(&x, views[v].offset, 2, views[v].sizes, views[v].strides), y;
    for (int i = 0; i < n; i++) {
      packed[i] = base[place(v, i / columns, i % columns)];
    }
    memset(back, 0, sizeof back);
    OK(get(&part, back));
    same(views[v].name, back, packed, n);
    for (int i = 0; i < n; i++) {
      want[i] = 3 * packed[i];
    }
    OK(add(&part, &part, 2, NULL, &y)); /* part + 2·part */
    OK(get(&y, back));
    same(views[v].name, back, want, n);
    ttc_store_release(y.store);
    memcpy(want, base, sizeof want);
    for (int i = 0; i < n; i++) {
      want[place(v, i / columns, i % columns)] *= 3;
    }
    OK(add(&part, &part, 2, &part, NULL)); /* in place: the rest is kept */
    OK(get(&x, back));
    same(views[v].name, back, want, R * C);
    for (int i = 0; i < n; i++) {
      packed[i] = -(float)i;
      want[place(v, i / columns, i % columns)] = packed[i];
    }
    OK(put(&part, packed));
    OK(get(&x, back));
    same(views[v].name, back, want, R * C);
    ttc_store_release(x.store);
  }
}

/* x[:, 1:] += x[:, :-1] reads what was there before the call, wherever both lie. */
static void test_overlap(void) {
  ten x = ramp();
  const int64_t sizes[] = {R, C - 1}, strides[] = {C, 1};
  ten right = view(&x, 1, 2, sizes, strides), left = view(&x, 0, 2, sizes, strides);
  float want[R * C];
  for (int i = 0; i < R * C; i++) {
    want[i] = i % C == 0 ? base[i] : base[i] + base[i - 1];
  }
  OK(add(&right, &left, 1, &right, NULL));
  OK(get(&x, back));
  same("overlap", back, want, R * C);
  ttc_store_release(x.store);
}

/* The same bytes as other dtypes. */
static void test_dtypes(void) {
  ten x = ramp(), bits = view(&x, 0, DIMS(R * C), (const int64_t[]){1}), bytes = view(&x, 4, DIMS(4), (const int64_t[]){1});
  bits.dtype = TTC_S32;
  bytes.dtype = TTC_U8;
  int32_t got[R * C], zero[4] = {0};
  OK(get(&bits, got));
  CHECK(memcmp(got, base, sizeof base) == 0);
  OK(put(&bytes, zero)); /* base[1] becomes +0 */
  float want[R * C];
  memcpy(want, base, sizeof base);
  want[1] = 0;
  OK(get(&x, back));
  same("bytes", back, want, R * C);
  ten shifted = view(&x, 2, DIMS(4), (const int64_t[]){1}), y; /* doubles at bytes 16.. */
  shifted.dtype = TTC_F64;
  OK(add(&shifted, &shifted, 1, NULL, &y));
  double twice[4], one;
  OK(get(&y, twice));
  for (int i = 0; i < 4; i++) {
    memcpy(&one, (const char *)want + 16 + 8 * i, sizeof one);
    CHECK(twice[i] == 2 * one);
  }
  ttc_store_release(x.store);
  ttc_store_release(y.store);
}

/* Bytes past the last whole element of a view's dtype stay as they are. */
static void test_odd_bytes(void) {
  unsigned char bytes[11], want[11];
  ten x = empty_flat(11, TTC_U8, DIMS(11)), two = view(&x, 0, DIMS(2), (const int64_t[]){1}), y;
  two.dtype = TTC_F32;
  float f[2] = {1.5F, -2}, doubled[2] = {3, -4};
  for (int i = 0; i < 11; i++) {
    want[i] = (unsigned char)(200 + i);
  }
  OK(put(&x, want));
  OK(put(&two, f));
  OK(add(&two, &two, 1, NULL, &y));
  OK(get(&y, back));
  same("odd bytes", back, doubled, 2);
  OK(add(&two, &two, 1, &two, NULL));
  memcpy(want, doubled, 8);
  OK(get(&x, bytes));
  CHECK(memcmp(bytes, want, 11) == 0);
  ttc_store_release(x.store);
  ttc_store_release(y.store);
}

/* view_as_real, the imaginary parts alone, and a whole store of complex numbers overwritten as floats. */
static void test_complex(void) {
  float z[6] = {1, 2, 3, 4, 5, 6}, want[6] = {2, 4, 6, 8, 10, 12};
  ten x = empty(TTC_C64, DIMS(3)), real = view(&x, 0, DIMS(3, 2), (const int64_t[]){2, 1}), y;
  ten imag = view(&x, 1, DIMS(3), (const int64_t[]){2});
  real.dtype = imag.dtype = TTC_F32;
  OK(put(&x, z));
  OK(add(&real, &real, 1, NULL, &y));
  OK(get(&y, back));
  same("view_as_real", back, want, 6);
  OK(add(&real, &real, 1, &real, NULL));
  OK(get(&x, back));
  same("view_as_real in place", back, want, 6);
  OK(add(&imag, &imag, -1, &imag, NULL));
  want[1] = want[3] = want[5] = 0;
  OK(get(&x, back));
  same("imag", back, want, 6);
  OK(add(&x, &x, 1, &x, NULL)); /* as complex numbers again */
  for (int i = 0; i < 6; i++) {
    want[i] *= 2;
  }
  OK(get(&x, back));
  same("complex", back, want, 6);
  ttc_store_release(x.store);
  ttc_store_release(y.store);
}

/* A bool store seen as bytes and the other way round; widths that differ. */
static void test_bool(void) {
  const unsigned char bits[8] = {1, 0, 1, 1, 0, 0, 0, 1};
  unsigned char got[8];
  ten x = empty(TTC_BOOL, DIMS(8)), bytes = view(&x, 2, DIMS(4), (const int64_t[]){1}),
      wide = view(&x, 0, DIMS(2), (const int64_t[]){1});
  bytes.dtype = TTC_U8;
  wide.dtype = TTC_S32;
  OK(put(&x, bits));
  ten y;
  what w = {.op = "add.Tensor", .spec = dense(TTC_U8, DIMS(4))};
  tensor_arg(&w, &bytes);
  tensor_arg(&w, &bytes);
  w.numbers[0] = (ttc_scalar){.kind = TTC_SCALAR_INT, .wrapped = 1, .i = 1};
  w.args[w.narg++] = (ttc_arg){.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &w.numbers[0]};
  OK(run(&w, &y));
  OK(get(&y, got));
  CHECK(got[0] == 2 && got[1] == 2 && got[2] == 0 && got[3] == 0);
  const int32_t one_and_none[2] = {0x01000101, 0};
  OK(put(&wide, one_and_none));
  OK(get(&x, got));
  CHECK(memcmp(got, one_and_none, 8) == 0);
  ttc_store_release(x.store);
  ttc_store_release(y.store);
}

/* Stride 0: all elements of a row are one. The last written is what stays, as in a loop over them. */
static void test_expanded(void) {
  ten x = ramp(), wide = view(&x, C, DIMS(3, 2), (const int64_t[]){0, 1}),
      point = view(&x, 7, 0, (const int64_t[]){0}, (const int64_t[]){0}), y;
  float want[6];
  for (int i = 0; i < 6; i++) {
    want[i] = 2 * base[C + i % 2];
  }
  OK(add(&wide, &wide, 1, NULL, &y));
  OK(get(&y, back));
  same("expanded", back, want, 6);
  const float rows[6] = {50, 51, 60, 61, 70, 71};
  OK(put(&wide, rows));
  OK(get(&x, back));
  CHECK(back[C] == 70 && back[C + 1] == 71 && back[C + 2] == base[C + 2]);
  OK(add(&point, &point, 1, &point, NULL));
  OK(get(&point, back));
  CHECK(back[0] == 142);
  ttc_store_release(x.store);
  ttc_store_release(y.store);
}

static void test_resize(void) {
  ten x = ramp(), longer = view(&x, 0, DIMS(R * C + 8), (const int64_t[]){1});
  OK(add(&x, &x, 1, &x, NULL));
  OK(ttc_store_resize(x.store, sizeof back, &err));
  OK(get(&longer, back));
  float want[R * C];
  for (int i = 0; i < R * C; i++) {
    want[i] = 2 * base[i];
  }
  same("longer", back, want, R * C);
  OK(ttc_store_resize(x.store, sizeof base, &err));
  OK(add(&x, &x, 1, &x, NULL));
  OK(get(&x, back));
  for (int i = 0; i < R * C; i++) {
    want[i] = 4 * base[i];
  }
  same("back", back, want, R * C);
  /* Read while it has no contents, then given some. */
  OK(ttc_store_resize(x.store, 0, &err));
  OK(ttc_store_resize(x.store, sizeof base, &err));
  ten y;
  OK(add(&x, &x, 1, NULL, &y));
  OK(ttc_device_synchronize(dev, &err));
  OK(put(&x, base));
  OK(add(&x, &x, 1, &y, NULL));
  OK(get(&y, back));
  for (int i = 0; i < R * C; i++) {
    want[i] = 2 * base[i];
  }
  same("refilled", back, want, R * C);
  ttc_store_release(x.store);
  ttc_store_release(y.store);
}

/* A chain of dependent calls, long enough to fill the queue, and read only at its end. */
static void test_chain(void) {
  ten x = ramp(), one = empty(TTC_F32, DIMS(1));
  float v = 1, want[R * C];
  OK(put(&one, &v));
  for (int i = 0; i < 5000; i++) {
    OK(add(&x, &one, i % 2 == 0 ? 3 : -2, &x, NULL));
  }
  OK(get(&x, back));
  for (int i = 0; i < R * C; i++) {
    want[i] = base[i] + 2500;
  }
  same("chain", back, want, R * C);
  ttc_store_release(x.store);
  ttc_store_release(one.store);
}

/* A channels_last base: NCHW sizes over NHWC memory. Views of it, and results in that order. */
static void test_memory_order(void) {
  enum { H = 2, W = 3, CH = 2 };
  ttc_spec spec = {.dtype = TTC_F32, .ndim = 4, .sizes = {1, CH, H, W}, .strides = {H * W * CH, 1, W * CH, CH}};
  ttc_store *store = NULL;
  float host[CH * H * W], want[CH * H * W];
  OK(ttc_store_new(dev, sizeof host, &spec, &store, &err));
  ten x = of_spec(store, &spec), y;
  for (int i = 0; i < CH * H * W; i++) {
    host[i] = (float)i;
    want[i] = 2 * host[i];
  }
  OK(put(&x, host)); /* given in logical order */
  OK(get(&x, back));
  same("channels_last", back, host, CH * H * W);
  ten memory = view(&x, 0, DIMS(CH * H * W), (const int64_t[]){1});
  OK(get(&memory, back));
  CHECK(back[1] == host[H * W]); /* the second channel is next */
  what w = {.op = "add.Tensor", .spec = spec};
  tensor_arg(&w, &x);
  tensor_arg(&w, &x);
  number_arg(&w, 1);
  OK(run(&w, &y));
  CHECK_EQ(y.strides[1], 1);
  OK(get(&y, back));
  same("channels_last result", back, want, CH * H * W);
  OK(add(&x, &x, 1, &x, NULL));
  OK(get(&x, back));
  same("channels_last in place", back, want, CH * H * W);
  ttc_store_release(x.store);
  ttc_store_release(y.store);
}

/* A graph of y = x + 2x, z = y + k·x. */
static void test_graph(void) {
  ten x = ramp();
  ttc_spec spec = dense(TTC_F32, DIMS(R, C)), specs[2] = {spec, spec};
  ttc_graph *g = ttc_graph_new("graph");
  int32_t gx = ttc_graph_input(g, &spec), gk = ttc_graph_input_scalar(g, TTC_SCALAR_FLOAT), outs[2];
  ttc_tensor t[2] = {as_arg(&x), as_arg(&x)};
  ttc_scalar k = {.kind = TTC_SCALAR_FLOAT, .wrapped = 1, .re = 2};
  ttc_arg args[3] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t[0]},
                     {.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t[1]},
                     {.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &k}};
  ttc_call call = {.op = ttc_op_find("add.Tensor"), .narg = 3, .args = args};
  t[0].store = t[1].store = NULL;
  t[0].value = t[1].value = gx;
  OK(ttc_graph_node(g, &call, 1, &spec, &outs[0], &err));
  t[0].value = outs[0];
  k = (ttc_scalar){.kind = TTC_SCALAR_FLOAT, .wrapped = 2, .i = gk};
  OK(ttc_graph_node(g, &call, 1, &spec, &outs[1], &err));
  OK(ttc_graph_finish(g, 2, outs, &call.op, &err));
  t[0] = as_arg(&x);
  k = (ttc_scalar){.kind = TTC_SCALAR_FLOAT, .wrapped = 1};
  args[1] = args[2];
  call.narg = 2;
  for (int round = 0; round < 3; round++) {
    ttc_result res;
    k.re = round + 0.5;
    ttc_status st = ttc_call_run(dev, &call, &res, &err);
    if (st == TTC_NOT_FOUND) {
      st = ttc_call_define(dev, &call, 2, specs, &res, &err);
    }
    OK(st);
    for (int j = 0; j < 2; j++) {
      float want[R * C];
      for (int i = 0; i < R * C; i++) {
        want[i] = 3 * base[i] + (j == 1 ? ((float)round + 0.5F) * base[i] : 0);
      }
      ten out = of_spec(res.stores[j], &res.specs[j]);
      OK(get(&out, back));
      same("graph", back, want, R * C);
      ttc_store_release(out.store);
    }
    ttc_result_done(&res);
  }
  ttc_store_release(x.store);
}

/* Threads that each count in a tensor of their own and all in a shared one, in place. */
enum { THREADS = 4, ROUNDS = 300 };
static ten total, one;
static void *count(void *arg) {
  ten *own = arg;
  ttc_error e;
  for (int i = 0; i < ROUNDS; i++) {
    if (add_err(own, &one, 1, own, NULL, &e) != TTC_OK || add_err(&total, &one, 1, &total, NULL, &e) != TTC_OK) {
      fprintf(stderr, "count: %s\n", e.message);
      break;
    }
    if (i % 50 == 0) {
      float v = 0;
      ttc_tensor t = as_arg(own);
      if (ttc_copy_to_host(&t, &v, sizeof v, &e) != TTC_OK || v != (float)i + 1) {
        fprintf(stderr, "count: %g\n", (double)v);
        break;
      }
    }
  }
  return NULL;
}
static void test_threads(void) {
  pthread_t threads[THREADS];
  ten own[THREADS];
  float v = 0;
  total = empty(TTC_F32, DIMS(1));
  one = empty(TTC_F32, DIMS(1));
  OK(put(&total, &v));
  for (int i = 0; i < THREADS; i++) {
    own[i] = empty(TTC_F32, DIMS(1));
    OK(put(&own[i], &v));
  }
  v = 1;
  OK(put(&one, &v));
  for (int i = 0; i < THREADS; i++) {
    CHECK_EQ(pthread_create(&threads[i], NULL, count, &own[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    OK(get(&own[i], &v));
    CHECK_EQ(v, ROUNDS);
    ttc_store_release(own[i].store);
  }
  OK(get(&total, &v));
  CHECK_EQ(v, ROUNDS * THREADS);
  ttc_store_release(total.store);
  ttc_store_release(one.store);
}

int main(void) {
  char path[1024];
  if (!find_plugin(path, sizeof path)) {
    return 0;
  }
  open_plugin(path);
  test_views();
  test_overlap();
  test_dtypes();
  test_odd_bytes();
  test_complex();
  test_bool();
  test_expanded();
  test_resize();
  test_chain();
  test_memory_order();
  test_graph();
  test_threads();
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(stats().live_nbyte, 0);
  ttc_shutdown(5000);
  return CHECK_DONE();
}
