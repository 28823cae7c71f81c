/* FlexAttention: attention block by block (attention.h) whose scores and masks are changed by functions of the user's, which come
 * as finished graphs and are lowered in the loop's body, once for a tile.
 *
 * Not ATen's: _flex_forward(q, k, v, lists.., buffers.., scale, graphs.., sizes..) -> out, lse, max, the last two as logarithms to
 * the base of 2; _flex_backward(the same, out, lse, grad_out?, grad_lse?, joint graph) -> grads of q, k, v and of each score
 * buffer. They stand for the higher order ops flex_attention and flex_attention_backward.
 *
 * Lists: for each row of blocks of queries, num[mB, mH, rows] says how many blocks of keys it meets, idx[mB, mH, rows, columns]
 * which. mB is 1 or B, mH is 1 or H. The first pair is of blocks that the mask function cuts through, the second of those it leaves
 * whole. The lists' blocks are q_block by kv_block; a tile is a part of one.
 *
 * Graphs (-1: none), as of a tile's scores [B', H', cq, ck] and vectors b, h, q, kv of indices:
 *   score: (score, b, h, q, kv, buffers..) -> score;  mask: (b, h, q, kv, buffers..) -> bool
 *   joint: (score, b, h, q, kv, grad, buffers.., sums..) -> grad of the score, sums: sums are the gradients of buffers so far, with
 *   this tile's added; of those buffers that have one. */
#include <math.h>
#include <string.h>

#include "op/attention.h"
#include "op/elem.h"
#include "op/lower.h"
#include "op/reduce.h"

enum {
  Q,
  K,
  V,
  LISTS, /* num, idx, full num, full idx */
  SCORE_BUFFERS = LISTS + 4,
  MASK_BUFFERS,
  SCALE,
  SCORE_GRAPH,
  MASK_GRAPH,
  Q_BLOCK,
  KV_BLOCK,
  Q_TILE,
  KV_TILE,
  NATURAL,
  OUT, /* from here on: backward */
  LSE,
  GRAD_OUT,
  GRAD_LSE,
  JOINT_GRAPH
};
#define MAX_BUFFER TTC__TILE_EXTRAS
#define MAX_INPUT (6 + 2 * MAX_BUFFER)

typedef struct flex {
  ttc_lower *c;
  ttc__tiles t;
  ttc_val num[2], idx[2];        /* [mB·mH·rows], [mB·mH·rows·columns], s32 */
  int64_t rows, columns, fq, fk; /* tiles in a block of the lists */
  int nbuffer[2];
  ttc_val buffers[2][MAX_BUFFER]; /* of score, of mask */
} flex;

/* ------------------------------------------------------------------------------------------------------- user's functions */

typedef struct inputs {
  int n;
  ttc_val values[MAX_INPUT];
} inputs;

static void put(inputs *in, ttc_val v) {
  in->values[in->n++] = v;
}

static void put_buffers(inputs *in, const flex *f, int which) {
  for (int k = 0; k < f->nbuffer[which]; k++) {
    put(in, f->buffers[which][k]);
  }
}

static void put_indices(shlo *b, inputs *in, const flex *f, const ttc__tile *at) {
  for (int axis = 0; axis < 4; axis++) {
    put(in, ttc__tile_index(b, &f->t, at, axis));
  }
}

static ttc_spec spec_of(const shlo_type *t) {
  ttc_spec s = {.dtype = t->dtype, .ndim = t->ndim};
  memcpy(s.sizes, t->dims, (size_t)(t->ndim < TTC_MAX_NDIM ? t->ndim : TTC_MAX_NDIM) * sizeof *s.sizes);
  ttc__spec_dense(&s);
  return s;
}

/* The graph's results for these inputs, each of the type that results[k] has before. */
static void run(shlo *b, const flex *f, int arg, const inputs *in, int nout, const shlo_type *types, ttc_val *results) {
  ttc_spec specs[MAX_INPUT], outs[1 + MAX_BUFFER];
  ttc_tensor tensors[MAX_INPUT];
  ttc_arg args[MAX_INPUT];
  for (int k = 0; k < in->n; k++) {
    specs[k] = spec_of(shlo_typeof(b, in->values[k]));
    tensors[k] = (ttc_tensor){.sizes = specs[k].sizes,
                              .strides = specs[k].strides,
                              .value = k,
                              .dtype = (uint8_t)specs[k].dtype,
                              .ndim = (uint8_t)specs[k].ndim};
    args[k] = (ttc_arg){.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &tensors[k]};
  }
  for (int k = 0; k < nout; k++) {
    outs[k] = spec_of(&types[k]);
  }
  ttc_call call = {.op = (uint32_t)op_int(f->c, arg, 0), .narg = (uint32_t)in->n, .args = args};
  if (ttc__op_row(call.op) == NULL) {
    op_refuse(f->c, "%s: argument %d is no graph", op_name(f->c), arg);
    return;
  }
  bool before = ttc__quiet(f->c, true); /* a check's outcome could not leave the loop */
  ttc__lower_node(f->c, &call, (uint32_t)nout, outs, in->values, results);
  ttc__quiet(f->c, before);
}

static shlo_type tile_type(const ttc__tiles *t, ttc_dtype d) {
  return (shlo_type){.dtype = d, .ndim = 4, .dims = {t->batch / t->mbatch, t->heads / t->mheads, t->cq, t->ck}};
}

static ttc_val bend(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val s) {
  const flex *f = t->ctx;
  inputs in = {0};
  put(&in, s);
  put_indices(b, &in, f, at);
  put_buffers(&in, f, 0);
  shlo_type type = tile_type(t, t->acc);
  ttc_val r = TTC_POISON;
  run(b, f, SCORE_GRAPH, &in, 1, &type, &r);
  return r;
}

static ttc_val unbend(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val s, ttc_val ds, ttc_val *extras) {
  const flex *f = t->ctx;
  inputs in = {0};
  put(&in, s);
  put_indices(b, &in, f, at);
  put(&in, ds);
  put_buffers(&in, f, 0);
  shlo_type types[1 + MAX_BUFFER] = {tile_type(t, t->acc)};
  for (int k = 0; k < t->nextra; k++) {
    put(&in, extras[k]);
    types[1 + k] = *shlo_typeof(b, extras[k]);
  }
  ttc_val r[1 + MAX_BUFFER];
  run(b, f, JOINT_GRAPH, &in, 1 + t->nextra, types, r);
  for (int k = 0; k < t->nextra; k++) {
    extras[k] = r[1 + k];
  }
  return r[0];
}

static ttc_val seen(shlo *b, const ttc__tiles *t, const ttc__tile *at) {
  const flex *f = t->ctx;
  ttc_val r = TTC_POISON;
  if (at->run == 0 && op_int(f->c, MASK_GRAPH, -1) >= 0) {
    inputs in = {0};
    put_indices(b, &in, f, at);
    put_buffers(&in, f, 1);
    shlo_type type = tile_type(t, TTC_BOOL);
    run(b, f, MASK_GRAPH, &in, 1, &type, &r);
  }
  return r;
}

/* ---------------------------------------------------------------------------------------------------------------- lists */

static ttc_val int32(shlo *b, int64_t v) {
  return shlo_const_i(b, TTC_S32, v, 0, NULL);
}

static ttc_val list_row(shlo *b, const flex *f, const ttc__tile *at) {
  ttc_val m = shlo_add(b, shlo_mul(b, at->mb, int32(b, f->t.mheads)), at->mh);
  return shlo_add(b, shlo_mul(b, m, int32(b, f->rows)), shlo_div(b, at->row, int32(b, f->fq)));
}

static void range(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val *first, ttc_val *last) {
  const flex *f = t->ctx;
  *first = int32(b, 0);
  *last = shlo_mul(b, ttc__tile_entry(b, f->num[at->run], list_row(b, f, at)), int32(b, f->fk));
}

static ttc_val column(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val j) {
  const flex *f = t->ctx;
  ttc_val fk = int32(b, f->fk), start = shlo_mul(b, list_row(b, f, at), int32(b, f->columns));
  ttc_val block = ttc__tile_entry(b, f->idx[at->run], shlo_add(b, start, shlo_div(b, j, fk)));
  return shlo_add(b, shlo_mul(b, block, fk), shlo_2(b, SHLO_REM, j, fk));
}

static ttc_val flat(shlo *b, ttc_lower *c, int arg) {
  ttc_val v = op_in_as(c, arg, TTC_S32);
  int64_t n = shlo_nelem(b, v);
  return shlo_reshape(b, v, 1, &n);
}

/* A block of the lists is `part` tiles; one as long as all of the axis is no longer than it has to be. */
static int64_t part(int64_t block, int64_t tile, int64_t length) {
  int64_t whole = (length + tile - 1) / tile, n = block / tile;
  return n < whole ? n : whole;
}

static bool load_lists(shlo *b, ttc_lower *c, flex *f) {
  ttc__tiles *t = &f->t;
  int64_t block[2] = {op_int(c, Q_BLOCK, 1), op_int(c, KV_BLOCK, 1)};
  const int64_t *dims = op_in_sizes(c, LISTS + 1);
  t->cq = op_int(c, Q_TILE, 1), t->ck = op_int(c, KV_TILE, 1);
  t->nrun = op_given(c, LISTS + 2) ? 2 : 1;
  bool fits = op_in_ndim(c, LISTS) == 3 && op_in_ndim(c, LISTS + 1) == 4 && t->cq > 0 && t->ck > 0;
  fits = fits && (block[0] % t->cq == 0 || t->cq == t->queries) && (block[1] % t->ck == 0 || t->ck == t->keys);
  fits = fits && (dims[0] == 1 || dims[0] == t->batch) && (dims[1] == 1 || dims[1] == t->heads);
  for (int k = 0; fits && k < t->nrun; k++) {
    fits = memcmp(op_in_sizes(c, LISTS + 2 * k), dims, 3 * sizeof *dims) == 0 &&
           memcmp(op_in_sizes(c, LISTS + 2 * k + 1), dims, 4 * sizeof *dims) == 0;
  }
  if (!fits) {
    return false;
  }
  t->mbatch = dims[0], t->mheads = dims[1];
  f->rows = dims[2], f->columns = dims[3];
  f->fq = part(block[0], t->cq, t->queries), f->fk = part(block[1], t->ck, t->keys);
  f->fq = f->fq > 0 ? f->fq : 1, f->fk = f->fk > 0 ? f->fk : 1;
  int64_t whole = f->fk * t->ck; /* the last block of the lists may go beyond the end */
  t->nk = (t->keys + whole - 1) / whole * f->fk;
  for (int k = 0; k < t->nrun; k++) {
    f->num[k] = flat(b, c, LISTS + 2 * k);
    f->idx[k] = flat(b, c, LISTS + 2 * k + 1);
  }
  return true;
}

/* ---------------------------------------------------------------------------------------------------------------- rules */

/* k and v may be of one batch entry for all. */
static ttc_val spread(shlo *b, ttc_lower *c, int arg, const ttc__tiles *t) {
  ttc_val x = op_in_as(c, arg, t->type);
  shlo_type s = *shlo_typeof(b, x);
  s.dims[0] = t->batch;
  return shlo_broadcast_to(b, x, s.ndim, s.dims);
}

static bool load(shlo *b, ttc_lower *c, flex *f) {
  *f = (flex){.c = c};
  ttc__tiles *t = &f->t;
  const int64_t *q = op_in_sizes(c, Q), *k = op_in_sizes(c, K), *v = op_in_sizes(c, V);
  bool fits = op_in_ndim(c, Q) == 4 && op_in_ndim(c, K) == 4 && op_in_ndim(c, V) == 4;
  fits = fits && (q[0] == k[0] || k[0] == 1) && k[0] == v[0] && k[1] == v[1] && k[1] > 0 && q[1] % k[1] == 0 && k[2] == v[2] &&
         q[3] == k[3] && q[2] > 0 && k[2] > 0;
  if (fits) {
    t->batch = q[0], t->heads = q[1], t->groups = k[1], t->queries = q[2], t->keys = k[2], t->width = q[3], t->vwidth = v[3];
    t->type = op_in_dtype(c, Q);
    t->acc = ttc__dtype_op(t->type);
    t->q = op_in(c, Q), t->k = spread(b, c, K, t), t->v = spread(b, c, V, t);
    t->scale = op_num(c, SCALE, 0, t->acc);
    t->ctx = f, t->range = range, t->column = column, t->seen = seen;
    t->bend = op_int(c, SCORE_GRAPH, -1) >= 0 ? bend : NULL;
    fits = load_lists(b, c, f);
  }
  for (int i = 0; fits && i < 2; i++) {
    f->nbuffer[i] = op_list_len(c, SCORE_BUFFERS + i);
    fits = f->nbuffer[i] <= MAX_BUFFER;
    for (int n = 0; fits && n < f->nbuffer[i]; n++) {
      f->buffers[i][n] = op_list_in(c, SCORE_BUFFERS + i, n);
    }
  }
  if (!fits) {
    op_refuse(c, "%s of these shapes", op_name(c));
  }
  return fits;
}

static ttc_val scaled(shlo *b, ttc_val x, double by) {
  return shlo_mul(b, x, elem_f(b, x, by));
}

/* What a natural logarithm is divided by to be one of the call's. */
static double base(const ttc_lower *c) {
  return op_bool(c, NATURAL) ? 1 : log(2);
}

void ttc__lower_flex(shlo *b, ttc_lower *c) {
  flex f;
  ttc_val out, lse, max;
  if (load(b, c, &f)) {
    ttc__attend(b, &f.t, &out, &lse, &max);
    ttc__give(b, c, 0, out);
    ttc__give(b, c, 1, scaled(b, lse, 1 / base(c)));
    ttc__give(b, c, 2, scaled(b, max, 1 / base(c)));
  }
}

/* rowsum(g·out) less the gradient of the natural lse */
static ttc_val row_dot(shlo *b, const flex *f, ttc_val g) {
  int last[1] = {3};
  ttc_dtype d = f->t.acc;
  ttc_val out = op_in_as(f->c, OUT, d), dot = shlo_reduce(b, SHLO_SUM, shlo_mul(b, shlo_convert(b, g, d), out), 1, last);
  return op_given(f->c, GRAD_LSE) ? shlo_sub(b, dot, scaled(b, op_in_as(f->c, GRAD_LSE, d), 1 / base(f->c))) : dot;
}

/* [B, ..] -> result k, whose batch may be 1 */
static void give_keys(shlo *b, ttc_lower *c, int k, ttc_val v) {
  ttc__axes batch = ttc__axes_one(0);
  ttc__give(b, c, k, op_out_sizes(c, k)[0] == shlo_dim(b, v, 0) ? v : ttc__reduce_keep(b, SHLO_SUM, v, &batch));
}

void ttc__lower_flex_backward(shlo *b, ttc_lower *c) {
  flex f;
  if (!load(b, c, &f)) {
    return;
  }
  ttc__tiles *t = &f.t;
  ttc_val grads[3], extras[MAX_BUFFER];
  int64_t dims[4] = {t->batch, t->heads, t->queries, t->vwidth};
  ttc_val g = op_given(c, GRAD_OUT) ? op_in_as(c, GRAD_OUT, t->type) : shlo_const_f(b, t->type, 0, 4, dims);
  for (int k = 0; k < f.nbuffer[0]; k++) {
    if (op_wanted(c, 3 + k)) {
      ttc_dtype d = op_out_dtype(c, 3 + k);
      extras[t->nextra++] = shlo_const_f(b, ttc__dtype_op(d), 0, op_out_ndim(c, 3 + k), op_out_sizes(c, 3 + k));
    }
  }
  t->unbend = op_int(c, JOINT_GRAPH, -1) >= 0 ? unbend : NULL;
  ttc__attend_back(b, t, g, scaled(b, op_in_as(c, LSE, t->acc), base(c)), row_dot(b, &f, g), grads, extras);
  ttc__give(b, c, 0, grads[0]);
  give_keys(b, c, 1, grads[1]);
  give_keys(b, c, 2, grads[2]);
  for (int k = 0, n = 0; k < f.nbuffer[0]; k++) {
    if (op_wanted(c, 3 + k)) {
      op_ret(c, 3 + k, extras[n++]);
    }
  }
}
