/* Family "control": PyTorch's higher-order ops as StableHLO's if and while. What a branch or a body computes is a finished graph of
 * its own (ttc_graph_finish), named by its op id. Rows of this family have no ATen overload: their arguments are a list of ints
 * (graphs first) and a list of tensors. Values from around a region are used in it as they are; only what a loop changes is
 * carried.
 *
 * A check in a region changes the device's fault there, so the fault is carried too, in programs that check something in one. */
#include <string.h>

#include "op/elem.h"
#include "op/lower.h"

#define MOST 200 /* values in or out of a region */

/* A graph to be lowered in a region: its arguments, and where the region's own go among them. */
typedef struct part {
  ttc_lower *c;
  uint32_t graph;
  int narg, nout;
  ttc_val args[MOST];
  ttc_spec outs[MOST];
} part;

static void spec_out(const ttc_lower *c, int k, ttc_spec *s) {
  s->dtype = op_out_dtype(c, k);
  s->ndim = op_out_ndim(c, k);
  memcpy(s->sizes, op_out_sizes(c, k), (size_t)s->ndim * sizeof *s->sizes);
  ttc__spec_dense(s);
}

static void run(part *p, ttc_val *results) {
  ttc__lower_call(p->c, p->graph, p->narg, p->args, p->nout, p->outs, results);
}

/* The tensors of argument 1 from entry `first` on, as the part's arguments. */
static bool take(ttc_lower *c, part *p, int first) {
  for (int k = first; k < op_list_len(c, 1); k++) {
    if (p->narg == MOST) {
      op_refuse(c, "%s of more than %d values", op_name(c), MOST);
      return false;
    }
    p->args[p->narg++] = op_list_in(c, 1, k);
  }
  return true;
}

/* ---- cond((then, otherwise), (pred, operands ..)) -> the branch's results */

typedef struct choice {
  part then, otherwise;
  bool faults;
  ttc_val fault;
} choice;

static void branch(part *p, const choice *x, ttc_val *results) {
  if (x->faults)
    ttc__set_fault_state(p->c, x->fault);
  run(p, results);
  if (x->faults)
    results[p->nout] = ttc__fault_state(p->c);
}
static void then_branch(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  choice *x = ctx;
  (void)b;
  (void)args;
  branch(&x->then, x, results);
}
static void other_branch(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  choice *x = ctx;
  (void)b;
  (void)args;
  branch(&x->otherwise, x, results);
}

static void lower_cond(shlo *b, ttc_lower *c) {
  choice x = {.then = {.c = c, .graph = (uint32_t)op_ints(c, 0, 0)}};
  int n = op_nout(c);
  if (n >= MOST || !take(c, &x.then, 1))
    return;
  shlo_type types[MOST];
  ttc_val results[MOST];
  for (int k = 0; k < n; k++) {
    spec_out(c, k, &x.then.outs[k]);
    types[k] = (shlo_type){.dtype = op_out_dtype(c, k), .ndim = op_out_ndim(c, k)};
    memcpy(types[k].dims, op_out_sizes(c, k), (size_t)types[k].ndim * sizeof(int64_t));
  }
  x.then.nout = n;
  x.otherwise = x.then;
  x.otherwise.graph = (uint32_t)op_ints(c, 0, 1);
  ttc_val pred = shlo_reshape(b, op_list_in_as(c, 1, 0, TTC_BOOL), 0, NULL);
  x.faults = ttc__region_begin(c);
  if (x.faults) {
    x.fault = ttc__fault_state(c);
    types[n] = *shlo_typeof(b, x.fault);
  }
  shlo_if(b, pred, n + x.faults, types, then_branch, other_branch, &x, results);
  ttc__region_end(c);
  if (x.faults)
    ttc__set_fault_state(c, results[n]);
  for (int k = 0; k < n; k++)
    op_ret(c, k, results[k]);
}

/* ---- loops: while_loop((test, body, ncarried), (carried .., others ..)) -> carried
 *      scan((body, ncarried, nslice[, reverse]), (carried .., slices .., others ..)) -> carried, the body's other results one below
 *      another; in reverse the last slices come first, and results stay beside the slices they came of.
 * State: carried; for scan also the results so far and the number of the step; the fault. */

typedef struct loop {
  part test, body;
  int ncarried, nslice, nstack, nstate;
  int64_t steps;
  ttc_val slices[MOST];
  bool faults, reverse;
} loop;

static void begin_step(const loop *l, part *p, const ttc_val *state) {
  memcpy(p->args, state, (size_t)l->ncarried * sizeof *state);
  if (l->faults)
    ttc__set_fault_state(p->c, state[l->nstate]);
}

static void test_while(shlo *b, void *ctx, const ttc_val *state, ttc_val *results) {
  loop *l = ctx;
  begin_step(l, &l->test, state);
  run(&l->test, results);
  results[0] = shlo_reshape(b, results[0], 0, NULL);
}
static void step_while(shlo *b, void *ctx, const ttc_val *state, ttc_val *results) {
  loop *l = ctx;
  (void)b;
  begin_step(l, &l->body, state);
  run(&l->body, results);
  if (l->faults)
    results[l->nstate] = ttc__fault_state(l->body.c);
}

/* The loop's results in results[0 .. nstate). */
static void run_loop(shlo *b, ttc_lower *c, loop *l, ttc_val *state, shlo_body test, shlo_body step) {
  l->faults = ttc__region_begin(c);
  if (l->faults)
    state[l->nstate] = ttc__fault_state(c);
  shlo_while(b, l->nstate + l->faults, state, test, step, l, state);
  ttc__region_end(c);
  if (l->faults)
    ttc__set_fault_state(c, state[l->nstate]);
}

static void lower_while_loop(shlo *b, ttc_lower *c) {
  loop l = {.body = {.c = c, .graph = (uint32_t)op_ints(c, 0, 1)}, .ncarried = (int)op_ints(c, 0, 2)};
  ttc_val state[MOST];
  if (!take(c, &l.body, 0) || l.ncarried != op_nout(c) || l.ncarried > l.body.narg)
    return;
  for (int k = 0; k < l.ncarried; k++) {
    spec_out(c, k, &l.body.outs[k]);
    state[k] = shlo_convert(b, l.body.args[k], op_out_dtype(c, k));
  }
  l.nstate = l.body.nout = l.ncarried;
  l.test = l.body;
  l.test.graph = (uint32_t)op_ints(c, 0, 0);
  l.test.nout = 1;
  l.test.outs[0] = (ttc_spec){.dtype = TTC_BOOL};
  run_loop(b, c, &l, state, test_while, step_while);
  for (int k = 0; k < l.ncarried; k++)
    op_ret(c, k, state[k]);
}

static void test_scan(shlo *b, void *ctx, const ttc_val *state, ttc_val *results) {
  const loop *l = ctx;
  ttc_val i = state[l->nstate - 1];
  results[0] = shlo_compare(b, SHLO_LT, i, elem_i(b, i, l->steps));
}
static void step_scan(shlo *b, void *ctx, const ttc_val *state, ttc_val *results) {
  loop *l = ctx;
  part *p = &l->body;
  ttc_val i = state[l->nstate - 1], got[MOST];
  ttc_val row = l->reverse ? shlo_sub(b, elem_i(b, i, l->steps - 1), i) : i;
  begin_step(l, p, state);
  for (int k = 0; k < l->nslice; k++) {
    p->args[l->ncarried + k] = shlo_squeeze(b, shlo_dynamic_slice_axis(b, l->slices[k], 0, row, 1), 0);
  }
  run(p, got);
  memcpy(results, got, (size_t)l->ncarried * sizeof *got);
  for (int k = 0; k < l->nstack; k++) {
    int at = l->ncarried + k;
    results[at] = shlo_dynamic_update_axis(b, state[at], shlo_unsqueeze(b, got[at], 0), 0, row);
  }
  results[l->nstate - 1] = shlo_add(b, i, elem_i(b, i, 1));
  if (l->faults)
    results[l->nstate] = ttc__fault_state(p->c);
}

static void lower_scan(shlo *b, ttc_lower *c) {
  loop l = {
      .body = {.c = c, .graph = (uint32_t)op_ints(c, 0, 0)}, .ncarried = (int)op_ints(c, 0, 1), .nslice = (int)op_ints(c, 0, 2)};
  ttc_val state[MOST];
  int nout = op_nout(c);
  if (!take(c, &l.body, 0) || nout < l.ncarried || nout + 2 >= MOST || l.ncarried + l.nslice > l.body.narg || l.nslice == 0)
    return;
  l.reverse = op_list_len(c, 0) > 3 && op_ints(c, 0, 3);
  memcpy(l.slices, l.body.args + l.ncarried, (size_t)l.nslice * sizeof *l.slices);
  l.steps = shlo_dim(b, l.slices[0], 0);
  l.nstack = nout - l.ncarried;
  l.body.nout = nout;
  l.nstate = nout + 1;
  for (int k = 0; k < nout; k++) {
    ttc_spec *s = &l.body.outs[k];
    spec_out(c, k, s);
    if (k < l.ncarried) {
      state[k] = shlo_convert(b, l.body.args[k], s->dtype);
      continue;
    }
    state[k] = shlo_const_i(b, s->dtype, 0, s->ndim, s->sizes);
    s->ndim--;
    memmove(s->sizes, s->sizes + 1, (size_t)s->ndim * sizeof *s->sizes);
    ttc__spec_dense(s);
  }
  state[nout] = shlo_const_i(b, TTC_S32, 0, 0, NULL);
  run_loop(b, c, &l, state, test_scan, step_scan);
  for (int k = 0; k < nout; k++)
    op_ret(c, k, state[k]);
}

#define CONTROL(name, rule) {ELEM_HEAD(name, rule, 0, TOL_LOOSE), .flags = TTC_OP_GRAPH_ONLY}
const ttc_op_row ttc__control_rows[] = {
    CONTROL("cond", lower_cond),
    CONTROL("while_loop", lower_while_loop),
    CONTROL("scan", lower_scan),
};
TTC_FAMILY(control)
