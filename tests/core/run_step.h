/* A small training-like step, for tests in which something fails at any place of it. */
#ifndef TTC_TESTS_RUN_STEP_H
#define TTC_TESTS_RUN_STEP_H

#include "run_tools.h"

enum { STEP_MAX = 8, STEP_MAX_N = 400 }; /* stores; n */

typedef struct step_state {
  ten held[STEP_MAX];
  int nheld;
  float host[(STEP_MAX_N + 1) * STEP_MAX_N], back[(STEP_MAX_N + 1) * STEP_MAX_N];
} step_state;

static inline ttc_status hold(step_state *s, ten x) {
  if (x.store == NULL) {
    return err.code;
  }
  s->held[s->nheld++] = x;
  return TTC_OK;
}

#define STEP(call)           \
  do {                       \
    ttc_status st_ = (call); \
    if (st_ != TTC_OK) {     \
      return st_;            \
    }                        \
  } while (0)

/* uniform(self, from, to, generator) with its Philox words. */
static inline ttc_status draw(const ten *like, ten *out) {
  static const uint64_t words[2] = {42, 8};
  what w = {.op = "uniform", .spec = dense(like->dtype, like->ndim, like->sizes)};
  tensor_arg(&w, like);
  number_arg(&w, 0);
  number_arg(&w, 1);
  w.args[w.narg++] = (ttc_arg){.kind = TTC_ARG_NONE};
  w.args[w.narg++] = (ttc_arg){.kind = TTC_ARG_RNG, .n = 2, .rng = words};
  return run(&w, out);
}

/* An op with more stores, numbers and results than a record and a result hold in themselves: of x0..x8 and numbers k0..k4,
 * x0 + k0·x4, x1 + k1·x5, .. */
enum { WIDE_IN = 9, WIDE_OUT = 5 };
static uint32_t wide_op;

static inline void make_wide_op(void) {
  ttc_spec spec = dense(TTC_F32, DIMS(1));
  ttc_graph *g = ttc_graph_new("wide");
  int32_t in[WIDE_IN], number[WIDE_OUT], outs[WIDE_OUT];
  for (int k = 0; k < WIDE_IN; k++) {
    in[k] = ttc_graph_input(g, &spec);
  }
  for (int k = 0; k < WIDE_OUT; k++) {
    number[k] = ttc_graph_input_scalar(g, TTC_SCALAR_FLOAT);
  }
  for (int k = 0; k < WIDE_OUT; k++) {
    ttc_tensor t[2] = {{.sizes = spec.sizes, .strides = spec.strides, .value = in[k], .dtype = TTC_F32, .ndim = 1}};
    t[1] = t[0];
    t[1].value = in[k + 4];
    ttc_scalar s = {.kind = TTC_SCALAR_FLOAT, .wrapped = 2, .i = number[k]};
    ttc_arg args[3] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t[0]},
                       {.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t[1]},
                       {.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &s}};
    ttc_call call = {.op = ttc_op_find("add.Tensor"), .narg = 3, .args = args};
    OK(ttc_graph_node(g, &call, 1, &spec, &outs[k], &err));
  }
  OK(ttc_graph_finish(g, WIDE_OUT, outs, &wide_op, &err));
}

static inline ttc_status run_wide(void) {
  ten in[WIDE_IN];
  ttc_tensor t[WIDE_IN];
  ttc_scalar numbers[WIDE_OUT];
  ttc_arg args[WIDE_IN + WIDE_OUT];
  ttc_spec specs[WIDE_OUT];
  ttc_result res;
  ttc_status st = TTC_OK;
  for (int k = 0; k < WIDE_IN; k++) {
    in[k] = empty(TTC_F32, DIMS(1));
    t[k] = as_arg(&in[k]);
    args[k] = (ttc_arg){.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &t[k]};
    st = in[k].store == NULL ? err.code : st;
  }
  for (int k = 0; k < WIDE_OUT; k++) {
    numbers[k] = (ttc_scalar){.kind = TTC_SCALAR_FLOAT, .wrapped = 1, .re = k};
    args[WIDE_IN + k] = (ttc_arg){.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &numbers[k]};
    specs[k] = dense(TTC_F32, DIMS(1));
  }
  ttc_call call = {.op = wide_op, .narg = WIDE_IN + WIDE_OUT, .args = args};
  if (st == TTC_OK) {
    st = ttc_call_run(dev, &call, &res, &err);
    st = st == TTC_NOT_FOUND ? ttc_call_define(dev, &call, WIDE_OUT, specs, &res, &err) : st;
    for (int k = 0; st == TTC_OK && k < WIDE_OUT; k++) {
      ttc_store_release(res.stores[k]);
    }
    if (st == TTC_OK) {
      ttc_result_done(&res);
    }
  }
  for (int k = 0; k < WIDE_IN; k++) {
    ttc_store_release(in[k].store);
  }
  return st;
}

/* Matrices n x n: uploads, fresh results, in place whole and in part, strided writes from the host, undefined contents, a resize,
 * random numbers, an op of many parts, reads of dense and strided views. */
static inline ttc_status step_ops(step_state *s, int64_t n) {
  ten c, e, r;
  STEP(hold(s, empty(TTC_F32, DIMS(n, n))));
  ten *a = &s->held[0];
  STEP(put(a, s->host));
  STEP(hold(s, empty(TTC_F32, DIMS(n))));
  ten *b = &s->held[1];
  STEP(put(b, s->host));
  STEP(add(a, b, 2.5, NULL, &c));
  STEP(hold(s, c));
  STEP(add(&c, b, 1, &c, NULL));
  ten row = view(&c, n, DIMS(n), (const int64_t[]){1}), column = view(&c, 1, DIMS(n), (const int64_t[]){n});
  STEP(add(&row, b, 1, &row, NULL));
  STEP(put(&column, s->host));
  STEP(hold(s, empty(TTC_F32, DIMS(n, n)))); /* never written */
  STEP(add(&s->held[3], a, 0.5, NULL, &e));
  STEP(hold(s, e));
  STEP(ttc_store_resize(e.store, (size_t)(n * n + n) * 4, &err));
  STEP(draw(a, &r));
  STEP(hold(s, r));
  STEP(run_wide());
  STEP(get(&r, s->back));
  ten turned = view(&c, 0, DIMS(n, n), ((const int64_t[]){1, n}));
  STEP(get(&turned, s->back));
  ten longer = view(&e, 0, DIMS(n * n + n), (const int64_t[]){1});
  STEP(get(&longer, s->back));
  return get(&c, s->back);
}

/* The step; then everything is let go and waited for. The number of errors that surfaced, the last in err. */
static inline int step(int64_t n) {
  static step_state s;
  ttc_error last;
  s.nheld = 0;
  int nerror = step_ops(&s, n) != TTC_OK;
  last = err;
  if (ttc_device_synchronize(dev, &err) != TTC_OK) {
    nerror++;
  } else {
    err = last;
  }
  for (int k = 0; k < s.nheld; k++) {
    ttc_store_release(s.held[k].store);
  }
  return nerror;
}

#endif
