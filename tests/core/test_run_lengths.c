/* What grows, on a real XLA:CPU plugin: [2, n, 3] put together one place longer at each step, so that its store is open from the
 * third length on. Element (r, i, c) is 1000 r + 10 i + c, whatever the length. */
#include <pthread.h>
#include <stdatomic.h>

#include "real_plugin.h"
#include "run_tools.h"

enum { ROWS = 2, WIDE = 3, FIRST = 4, STEPS = 150, THREADS = 3 };

static float value_at(int64_t row, int64_t at, int64_t column) {
  return (float)(1000 * row + 10 * at + column);
}

/* Places `from` up to `from + n`. */
static ten made(int64_t from, int64_t n, ttc_error *e) {
  float host[ROWS * STEPS * WIDE];
  ttc_spec s = dense(TTC_F32, DIMS(ROWS, n, WIDE));
  ttc_store *store = NULL;
  for (int64_t r = 0, k = 0; r < ROWS; r++) {
    for (int64_t i = 0; i < n; i++) {
      for (int64_t c = 0; c < WIDE; c++) {
        host[k++] = value_at(r, from + i, c);
      }
    }
  }
  if (ttc_store_new(dev, spec_nbyte(&s), &s, &store, e) != TTC_OK) {
    store = NULL;
  }
  ten x = of_spec(store, &s);
  ttc_tensor t = as_arg(&x);
  CHECK_EQ(ttc_copy_from_host(&t, host, ten_nbyte(&x), e), TTC_OK);
  return x;
}

/* aten::cat([x, y], 1); x is given back. */
static ttc_status append(ten *x, const ten *y, ttc_error *e) {
  ttc_tensor list[2] = {as_arg(x), as_arg(y)};
  what w = {.op = "cat",
            .narg = 2,
            .args = {{.kind = TTC_ARG_TENSORS, .n = 2, .tensor = list}, {.kind = TTC_ARG_INT, .i = 1}},
            .spec = dense(TTC_F32, DIMS(ROWS, x->sizes[1] + y->sizes[1], WIDE))};
  ten z;
  ttc_status st = run_err(&w, &z, e);
  if (st == TTC_OK) {
    ttc_store_release(x->store);
    *x = z;
  }
  return st;
}

static bool holds(const ten *x, float factor, ttc_error *e) {
  float host[ROWS * (STEPS + FIRST) * WIDE];
  ttc_tensor t = as_arg(x);
  bool same = ttc_copy_to_host(&t, host, ten_nbyte(x), e) == TTC_OK;
  for (int64_t r = 0, k = 0; same && r < ROWS; r++) {
    for (int64_t i = 0; i < x->sizes[1]; i++) {
      for (int64_t c = 0; c < WIDE; c++) {
        same = same && host[k++] == factor * value_at(r, i, c);
      }
    }
  }
  return same;
}

/* The place `at` of each row, through a view: a part of an open store. */
static bool part_holds(const ten *x, int64_t at, ttc_error *e) {
  float host[ROWS * WIDE];
  const int64_t sizes[2] = {ROWS, WIDE}, strides[2] = {x->strides[0], 1};
  ten part = view(x, at * WIDE, 2, sizes, strides), twice;
  bool same = add_err(&part, &part, 1, NULL, &twice, e) == TTC_OK;
  ttc_tensor t = as_arg(&twice);
  same = same && ttc_copy_to_host(&t, host, sizeof host, e) == TTC_OK;
  for (int64_t k = 0; same && k < ROWS * WIDE; k++) {
    same = host[k] == 2 * value_at(k / WIDE, at, k % WIDE);
  }
  ttc_store_release(twice.store);
  return same;
}

static void test_growing(bool kept_back) {
  deferring = kept_back;
  uint64_t before = 0, programs = 0;
  ten x = made(0, FIRST, &err);
  for (int64_t n = FIRST; n < STEPS; n++) {
    ten y = made(n, 1, &err), twice;
    OK(append(&x, &y, &err));
    OK(add(&x, &x, 1, NULL, &twice));
    CHECK_EQ(twice.sizes[1], n + 1);
    CHECK_EQ(twice.strides[0], (n + 1) * WIDE);
    CHECK(n % 7 != 0 || holds(&x, 1, &err));
    CHECK(n % 5 != 0 || holds(&twice, 2, &err));
    CHECK(part_holds(&x, n, &err));
    CHECK(part_holds(&x, 1, &err));
    ttc_store_release(y.store);
    ttc_store_release(twice.store);
    before = n == FIRST + 3 ? stats().programs_compiled : before;
  }
  OK(ttc_device_synchronize(dev, &err));
  programs = stats().programs_compiled;
  CHECK(programs - before <= (kept_back ? 20u : 8u)); /* one bound is passed; with fused programs, if kept back */
  /* Written in place it is as long as what is in it; resized too. */
  OK(add(&x, &x, 1, &x, NULL));
  CHECK(holds(&x, 2, &err));
  ten y = made(STEPS, 1, &err);
  OK(append(&x, &y, &err));
  OK(ttc_store_resize(x.store, ttc_store_nbyte(x.store) + 64, &err));
  ttc_store_release(x.store);
  ttc_store_release(y.store);
  deferring = 0;
}

static atomic_int wrong;

static void *grow(void *arg) {
  (void)arg;
  ttc_error e = {0};
  ten x = made(0, FIRST, &e);
  for (int64_t n = FIRST; n < STEPS / 3; n++) {
    ten y = made(n, 1, &e);
    MUST(append(&x, &y, &e));
    atomic_fetch_add(&wrong, holds(&x, 1, &e) ? 0 : 1);
    atomic_fetch_add(&wrong, part_holds(&x, n, &e) ? 0 : 1);
    ttc_store_release(y.store);
  }
  ttc_store_release(x.store);
  return NULL;
}

static void test_threads(uint32_t kept_back) {
  pthread_t threads[THREADS];
  deferring = kept_back;
  for (int i = 0; i < THREADS; i++) {
    CHECK_EQ(pthread_create(&threads[i], NULL, grow, NULL), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    CHECK_EQ(pthread_join(threads[i], NULL), 0);
  }
  CHECK_EQ(atomic_load(&wrong), 0);
  deferring = 0;
}

int main(void) {
  char path[1024];
  if (!find_plugin(path, sizeof path)) {
    return 0;
  }
  open_plugin(path);
  test_growing(false);
  test_growing(true);
  test_threads(0);
  test_threads(1);
  OK(ttc_device_synchronize(dev, &err));
  CHECK_EQ(stats().live_nbyte, 0);
  ttc_shutdown(5000);
  return CHECK_DONE();
}
