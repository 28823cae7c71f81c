/* Attention block by block: attention.h says how. A tile's heads and batch are one batch axis of its products, and the queries of a
 * group are rows of one matrix: [B'·Hk', G'·cq, d] against [B'·Hk', ck, d]. */
#include <math.h>

#include "op/attention.h"
#include "op/elem.h"
#include "op/reduce.h"

#define STATE 64 /* values carried by a loop at most: shlo's bound */

static ttc_val int32(shlo *b, int64_t v) {
  return shlo_const_i(b, TTC_S32, v, 0, NULL);
}

/* Shares of one tile. */
static int64_t batch_of(const ttc__tiles *t) {
  return t->batch / t->mbatch;
}
static int64_t heads_of(const ttc__tiles *t) {
  return t->heads / t->mheads;
}
static int64_t groups_of(const ttc__tiles *t) {
  return t->mheads == 1 ? t->groups : 1;
}

/* ------------------------------------------------------------------------------------------------------------ loops */

typedef struct loop {
  ttc_val last;
  int n;
  shlo_body step; /* (j, state) -> state */
  void *ctx;
} loop;

static void loop_goes_on(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  const loop *l = ctx;
  results[0] = shlo_compare(b, SHLO_LT, args[0], l->last);
}

static void loop_body(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  const loop *l = ctx;
  l->step(b, l->ctx, args, results + 1);
  results[0] = shlo_add(b, args[0], int32(b, 1));
}

/* for (j = first; j < last; j++) state = step(j, state) */
static void run_loop(shlo *b, ttc_val first, ttc_val last, int n, ttc_val *state, shlo_body step, void *ctx) {
  loop l = {.last = last, .n = n, .step = step, .ctx = ctx};
  ttc_val all[STATE];
  all[0] = first;
  for (int k = 0; k < n; k++) {
    all[k + 1] = state[k];
  }
  shlo_while(b, n + 1, all, loop_goes_on, loop_body, &l, all);
  for (int k = 0; k < n; k++) {
    state[k] = all[k + 1];
  }
}

/* ------------------------------------------------------------------------------------------------------ cut and paste */

/* Where the tile's part of [B, H or Hk, rows, w] begins. */
static void begin(shlo *b, const ttc__tiles *t, const ttc__tile *at, bool keys, ttc_val *starts) {
  ttc_val zero = int32(b, 0);
  starts[0] = t->mbatch == 1 ? zero : at->mb;
  starts[1] = t->mheads == 1 ? zero : keys ? shlo_div(b, at->mh, int32(b, t->heads / t->groups)) : at->mh;
  starts[2] = shlo_mul(b, keys ? at->col : at->row, int32(b, keys ? t->ck : t->cq));
  starts[3] = zero;
}

/* The tile's rows of x [B, H or Hk, rows, w]: [B'·Hk', G'·cq or ck, w] */
static ttc_val cut(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val x, bool keys) {
  ttc_val starts[4];
  begin(b, t, at, keys, starts);
  int64_t w = shlo_dim(b, x, 3), heads = keys ? groups_of(t) : heads_of(t), c = keys ? t->ck : t->cq;
  int64_t sizes[4] = {batch_of(t), heads, c, w}, dims[3] = {batch_of(t) * groups_of(t), heads / groups_of(t) * c, w};
  return shlo_reshape(b, shlo_dynamic_slice(b, x, starts, sizes), 3, dims);
}

/* x with the tile's rows replaced (or, `more`, increased) by v, of the shape that cut gives. */
static ttc_val paste(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val x, ttc_val v, bool keys, bool more) {
  ttc_val starts[4];
  begin(b, t, at, keys, starts);
  int64_t sizes[4] = {batch_of(t), keys ? groups_of(t) : heads_of(t), keys ? t->ck : t->cq, shlo_dim(b, x, 3)};
  v = shlo_convert(b, shlo_reshape(b, v, 4, sizes), shlo_dtype(b, x));
  return shlo_dynamic_update_slice(b, x, more ? shlo_add(b, shlo_dynamic_slice(b, x, starts, sizes), v) : v, starts);
}

/* Zeros after axis's end, up to n. */
static ttc_val pad_to(shlo *b, ttc_val x, int axis, int64_t n) {
  int64_t lo[4] = {0}, hi[4] = {0};
  hi[axis] = n - shlo_dim(b, x, axis);
  if (hi[axis] == 0) {
    return x;
  }
  ttc_dtype d = shlo_dtype(b, x);
  return shlo_pad(b, x, d == TTC_BOOL ? shlo_const_i(b, d, 0, 0, NULL) : shlo_const_f(b, d, 0, 0, NULL), lo, hi, NULL);
}

/* [B, H, T] -> [B, H, nq·cq, 1] */
static ttc_val per_row(shlo *b, const ttc__tiles *t, ttc_val x) {
  int64_t dims[4] = {t->batch, t->heads, t->queries, 1};
  return pad_to(b, shlo_reshape(b, x, 4, dims), 2, t->nq * t->cq);
}

ttc_val ttc__tile_pad(shlo *b, const ttc__tiles *t, ttc_val x) {
  x = shlo_dim(b, x, 2) == 1 ? x : pad_to(b, x, 2, t->nq * t->cq);
  return shlo_dim(b, x, 3) == 1 ? x : pad_to(b, x, 3, t->nk * t->ck);
}

ttc_val ttc__tile_of(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val x) {
  ttc_val zero = int32(b, 0), starts[4] = {at->mb, at->mh, at->row, at->col};
  int64_t sizes[4] = {batch_of(t), heads_of(t), t->cq, t->ck};
  for (int k = 0; k < 4; k++) {
    bool one = shlo_dim(b, x, k) == 1;
    starts[k] = one ? zero : k < 2 ? starts[k] : shlo_mul(b, starts[k], int32(b, sizes[k]));
    sizes[k] = one ? 1 : sizes[k];
  }
  return shlo_dynamic_slice(b, x, starts, sizes);
}

ttc_val ttc__tile_entry(shlo *b, ttc_val list, ttc_val k) {
  int64_t one = 1;
  return shlo_reshape(b, shlo_dynamic_slice(b, list, &k, &one), 0, NULL);
}

/* Unlike ttc__tile_index, going on after the end. */
static ttc_val count_up(shlo *b, ttc_val block, int64_t n) {
  return shlo_add(b, shlo_iota(b, TTC_S32, 0, 1, &n), shlo_mul(b, block, int32(b, n)));
}

ttc_val ttc__tile_index(shlo *b, const ttc__tiles *t, const ttc__tile *at, int axis) {
  switch (axis) {
    case 0:
      return count_up(b, t->mbatch == 1 ? int32(b, 0) : at->mb, batch_of(t));
    case 1:
      return count_up(b, t->mheads == 1 ? int32(b, 0) : at->mh, heads_of(t));
    case 2:
      return shlo_2(b, SHLO_MIN, count_up(b, at->row, t->cq), int32(b, t->queries - 1));
    default:
      return shlo_2(b, SHLO_MIN, count_up(b, at->col, t->ck), int32(b, t->keys - 1));
  }
}

/* ------------------------------------------------------------------------------------------------------------- scores */

/* One pass over the rows; what its steps need. */
typedef struct walk {
  ttc__tiles *t;
  ttc__tile at;
  ttc_val q, g, lse, dot; /* the row's */
  bool back;
  ttc_val gs, lses, dots; /* of all rows */
} walk;

static ttc_val both(shlo *b, ttc_val x, ttc_val y) {
  return x.id < 0 ? y : y.id < 0 ? x : elem_and(b, x, y);
}

/* Which scores of the tile count, with those after the end of keys and, in backward, of queries left out. Poison: all. */
static ttc_val seen(shlo *b, const walk *w) {
  const ttc__tiles *t = w->t;
  ttc_val on = t->seen != NULL ? t->seen(b, t, &w->at) : TTC_POISON;
  if (w->at.run >= t->nfree && t->nk * t->ck != t->keys) {
    int64_t dims[4] = {1, 1, 1, t->ck};
    ttc_val in = shlo_compare(b, SHLO_LT, count_up(b, w->at.col, t->ck), int32(b, t->keys));
    on = both(b, on, shlo_reshape(b, in, 4, dims));
  }
  if (w->back && t->nq * t->cq != t->queries) {
    int64_t dims[4] = {1, 1, t->cq, 1};
    ttc_val in = shlo_compare(b, SHLO_LT, count_up(b, w->at.row, t->cq), int32(b, t->queries));
    on = both(b, on, shlo_reshape(b, in, 4, dims));
  }
  return on;
}

/* x [n, r, p] · y: over x's axis xc and y's axis yc, in the type of the scores. */
static ttc_val product(shlo *b, const ttc__tiles *t, ttc_val x, int xc, ttc_val y, int yc) {
  int batch[1] = {0}, xs[1] = {xc}, ys[1] = {yc};
  return shlo_dot(b, x, y, 1, batch, batch, 1, xs, ys, t->acc);
}

static ttc_val four(shlo *b, const ttc__tiles *t, ttc_val s) {
  int64_t dims[4] = {batch_of(t), heads_of(t), t->cq, t->ck};
  return shlo_reshape(b, s, 4, dims);
}

static ttc_val three(shlo *b, const ttc__tiles *t, ttc_val s) {
  int64_t groups = groups_of(t), dims[3] = {batch_of(t) * groups, heads_of(t) / groups * t->cq, t->ck};
  return shlo_reshape(b, s, 3, dims);
}

/* Scaled scores [B', H', cq, ck] of the row and the keys k, before they are changed. */
static ttc_val scores(shlo *b, const walk *w, ttc_val k) {
  return four(b, w->t, shlo_mul(b, product(b, w->t, w->q, 2, k, 2), w->t->scale));
}

/* The same as they enter the softmax, [n, r, ck]. */
static ttc_val bent(shlo *b, const walk *w, ttc_val s, ttc_val on) {
  const ttc__tiles *t = w->t;
  s = t->bend != NULL ? t->bend(b, t, &w->at, s) : s;
  return three(b, t, on.id >= 0 ? shlo_select(b, on, s, elem_f(b, s, -INFINITY)) : s);
}

/* [n, ck, p]: x [n, r, ck], y [n, r, p], over r. XLA:CPU is faster with the narrow one on the left, by more than it costs to turn
 * the result round; but for the barrier it would do without turning. */
static ttc_val transposed_product(shlo *b, const ttc__tiles *t, ttc_val x, ttc_val y) {
  if (shlo_for_tpu(b) || 2 * shlo_dim(b, y, 2) > shlo_dim(b, x, 2)) {
    return product(b, t, x, 1, y, 1);
  }
  return shlo_transpose(b, shlo_barrier(b, product(b, t, y, 1, x, 1)), (const int[3]){0, 2, 1});
}

/* ------------------------------------------------------------------------------------------------------- the two loops */

static void place(shlo *b, walk *w, ttc_val r) {
  ttc__tiles *t = w->t;
  w->at.row = w->at.mb = w->at.mh = int32(b, 0);
  w->at.row = r;
  if (t->mbatch * t->mheads > 1) {
    ttc_val m = shlo_div(b, r, int32(b, t->nq));
    w->at.row = shlo_2(b, SHLO_REM, r, int32(b, t->nq));
    w->at.mh = shlo_2(b, SHLO_REM, m, int32(b, t->mheads));
    w->at.mb = shlo_div(b, m, int32(b, t->mheads));
  }
  w->q = cut(b, t, &w->at, t->q, false);
}

/* All of a row's tiles. */
static void along_keys(shlo *b, walk *w, int n, ttc_val *state, shlo_body step) {
  ttc__tiles *t = w->t;
  for (w->at.run = 0; w->at.run < t->nrun; w->at.run++) {
    ttc_val first, last;
    t->range(b, t, &w->at, &first, &last);
    run_loop(b, first, last, n, state, step, w);
  }
}

static void set_column(shlo *b, walk *w, ttc_val j) {
  w->at.col = w->t->column != NULL ? w->t->column(b, w->t, &w->at, j) : j;
}

/* Whole blocks of q, k and v. */
static void prepare(shlo *b, ttc__tiles *t) {
  t->nq = (t->queries + t->cq - 1) / t->cq;
  t->nk = t->nk != 0 ? t->nk : (t->keys + t->ck - 1) / t->ck;
  t->q = pad_to(b, t->q, 2, t->nq * t->cq);
  t->k = pad_to(b, t->k, 2, t->nk * t->ck);
  t->v = pad_to(b, t->v, 2, t->nk * t->ck);
}

static void along_queries(shlo *b, walk *w, int n, ttc_val *state, shlo_body step) {
  ttc__tiles *t = w->t;
  run_loop(b, int32(b, 0), int32(b, t->mbatch * t->mheads * t->nq), n, state, step, w);
}

/* ------------------------------------------------------------------------------------------------------------ forward */

/* -inf as 0: what a softmax may subtract. */
static ttc_val calm(shlo *b, ttc_val m) {
  return shlo_select(b, elem_cmp(b, SHLO_EQ, m, -INFINITY), elem_f(b, m, 0), m);
}

/* state m, l [n, r, 1], acc [n, r, dv]: the greatest score so far, sum of e^(s - m), sum of e^(s - m) v */
static void forward_tile(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  walk *w = ctx;
  const ttc__tiles *t = w->t;
  ttc__axes keys = ttc__axes_one(2);
  set_column(b, w, args[0]);
  ttc_val s = ttc__once(b, bent(b, w, scores(b, w, cut(b, t, &w->at, t->k, true)), seen(b, w)));
  ttc_val m = ttc__once(b, shlo_2(b, SHLO_MAX, args[1], ttc__reduce_keep(b, SHLO_AMAX, s, &keys))), safe = calm(b, m);
  ttc_val e = ttc__once(b, shlo_1(b, SHLO_EXP, shlo_sub(b, s, safe))), less = shlo_1(b, SHLO_EXP, shlo_sub(b, args[1], safe));
  results[0] = m;
  results[1] = shlo_add(b, shlo_mul(b, args[2], less), ttc__reduce_keep(b, SHLO_SUM, e, &keys));
  ttc_val out = product(b, t, shlo_convert(b, e, t->type), 2, cut(b, t, &w->at, t->v, true), 1);
  results[2] = shlo_add(b, shlo_mul(b, args[3], less), out);
}

static void forward_row(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  walk *w = ctx;
  ttc__tiles *t = w->t;
  place(b, w, args[0]);
  int64_t n = shlo_dim(b, w->q, 0), r = shlo_dim(b, w->q, 1), one[3] = {n, r, 1}, wide[3] = {n, r, t->vwidth};
  ttc_val state[3] = {shlo_const_f(b, t->acc, -INFINITY, 3, one), shlo_const_f(b, t->acc, 0, 3, one),
                      shlo_const_f(b, t->acc, 0, 3, wide)};
  along_keys(b, w, 3, state, forward_tile);
  ttc_val m = state[0], l = state[1];
  ttc_val by = shlo_select(b, elem_cmp(b, SHLO_EQ, l, 0), elem_f(b, l, 1), l);
  results[0] = paste(b, t, &w->at, args[1], shlo_div(b, state[2], by), false, false);
  results[1] = paste(b, t, &w->at, args[2], shlo_add(b, calm(b, m), shlo_1(b, SHLO_LOG, l)), false, false);
  results[2] = paste(b, t, &w->at, args[3], m, false, false);
}

/* [B, H, nq·cq, w] -> [B, H, T, w] */
static ttc_val first_rows(shlo *b, const ttc__tiles *t, ttc_val x) {
  return shlo_slice_axis(b, x, 2, 0, t->queries);
}

void ttc__attend(shlo *b, ttc__tiles *t, ttc_val *out, ttc_val *lse, ttc_val *max) {
  prepare(b, t);
  int64_t wide[4] = {t->batch, t->heads, t->nq * t->cq, t->vwidth}, one[4] = {wide[0], wide[1], wide[2], 1};
  ttc_val zero = shlo_const_f(b, t->acc, 0, 4, one), state[3] = {shlo_const_f(b, t->type, 0, 4, wide), zero, zero};
  walk w = {.t = t};
  along_queries(b, &w, 3, state, forward_row);
  *out = first_rows(b, t, state[0]);
  *lse = shlo_squeeze(b, first_rows(b, t, state[1]), 3);
  *max = shlo_squeeze(b, first_rows(b, t, state[2]), 3);
}

/* ----------------------------------------------------------------------------------------------------------- backward */

/* p = e^(s - lse), ds = p (g·vᵀ - dot). state: the row's dq [n, r, d]; dk, dv [B, Hk, nk·ck, w] of all keys; extras. */
static void backward_tile(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  walk *w = ctx;
  const ttc__tiles *t = w->t;
  set_column(b, w, args[0]);
  ttc_val k = cut(b, t, &w->at, t->k, true), on = seen(b, w), s = scores(b, w, k);
  s = t->bend != NULL ? ttc__once(b, s) : s;
  ttc_val p = ttc__once(b, shlo_1(b, SHLO_EXP, shlo_sub(b, bent(b, w, s, on), w->lse)));
  ttc_val ds = shlo_mul(b, p, shlo_sub(b, product(b, t, w->g, 2, cut(b, t, &w->at, t->v, true), 2), w->dot));
  ttc_val extras[TTC__TILE_EXTRAS];
  for (int k2 = 0; k2 < t->nextra; k2++) {
    extras[k2] = args[4 + k2];
  }
  if (t->unbend != NULL) {
    ds = t->unbend(b, t, &w->at, s, ttc__once(b, four(b, t, ds)), extras);
    ds = three(b, t, on.id >= 0 ? shlo_select(b, on, ds, elem_f(b, ds, 0)) : ds);
  }
  ds = ttc__once(b, shlo_convert(b, ds, t->type));
  results[0] = shlo_add(b, args[1], product(b, t, ds, 2, k, 1));
  results[1] = paste(b, t, &w->at, args[2], transposed_product(b, t, ds, w->q), true, true);
  results[2] = paste(b, t, &w->at, args[3], transposed_product(b, t, shlo_convert(b, p, t->type), w->g), true, true);
  for (int k2 = 0; k2 < t->nextra; k2++) {
    results[3 + k2] = extras[k2];
  }
}

static void backward_row(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  walk *w = ctx;
  ttc__tiles *t = w->t;
  place(b, w, args[0]);
  w->g = cut(b, t, &w->at, w->gs, false);
  w->lse = cut(b, t, &w->at, w->lses, false);
  w->dot = cut(b, t, &w->at, w->dots, false);
  int64_t dims[3] = {shlo_dim(b, w->q, 0), shlo_dim(b, w->q, 1), t->width};
  ttc_val state[STATE];
  state[0] = shlo_const_f(b, t->acc, 0, 3, dims);
  for (int k = 1; k < 3 + t->nextra; k++) {
    state[k] = args[k + 1];
  }
  along_keys(b, w, 3 + t->nextra, state, backward_tile);
  results[0] = paste(b, t, &w->at, args[1], shlo_mul(b, state[0], t->scale), false, false);
  for (int k = 1; k < 3 + t->nextra; k++) {
    results[k] = state[k];
  }
}

void ttc__attend_back(shlo *b, ttc__tiles *t, ttc_val g, ttc_val lse, ttc_val dot, ttc_val *grads, ttc_val *extras) {
  prepare(b, t);
  walk w = {.t = t, .back = true, .gs = pad_to(b, g, 2, t->nq * t->cq)};
  w.lses = per_row(b, t, calm(b, lse));
  w.dots = ttc__once(b, per_row(b, t, dot));
  int64_t rows[4] = {t->batch, t->heads, t->nq * t->cq, t->width}, keys[4] = {t->batch, t->groups, t->nk * t->ck, t->width};
  ttc_val state[STATE] = {shlo_const_f(b, t->type, 0, 4, rows), shlo_const_f(b, t->acc, 0, 4, keys)};
  keys[3] = t->vwidth;
  state[2] = shlo_const_f(b, t->acc, 0, 4, keys);
  for (int k = 0; k < t->nextra; k++) {
    state[3 + k] = extras[k];
  }
  along_queries(b, &w, 3 + t->nextra, state, backward_row);
  grads[0] = first_rows(b, t, state[0]);
  grads[1] = shlo_mul(b, shlo_slice_axis(b, state[1], 2, 0, t->keys), t->scale);
  grads[2] = shlo_slice_axis(b, state[2], 2, 0, t->keys);
  for (int k = 0; k < t->nextra; k++) {
    extras[k] = state[3 + k];
  }
}
