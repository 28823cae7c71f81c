/* Family "attention": softmax(q·kᵀ·scale + bias)·v and its gradient, each as one program.
 *
 * q [B, H, T, d], k [B, Hk, S, d], v [B, Hk, S, dv]; H is a multiple of Hk (grouped queries: query head h reads head h / (H / Hk)).
 * Long ones go block by block (attention.h); short ones at once: heads and batch are one batch axis of the products, and the
 * group's queries are rows of one matrix, [B·Hk, H/Hk·T, d]. Scores are computed, scaled, masked and normalised in f32 (f64 for
 * f64); weights are rounded to v's type before they meet v. A row whose every key is masked gives zeros, as PyTorch's fused CPU
 * kernel does. Causal: query t sees keys 0..t.
 *
 * Not ATen's overloads: _sdpa_forward(q, k, v, bias?, is_causal, scale) -> output, logsumexp; _sdpa_backward(grad, q, k, v, bias?,
 * output, logsumexp, is_causal, scale) -> grads of q, k, v, bias. The front end's kernels for aten::_scaled_dot_product_
 * fused_attention_overrideable(_backward) call them. aten::_scaled_dot_product_flash_attention_for_cpu(_backward) have the same
 * rules. */
#include "op/attention.h"

#include <math.h>

#include "op/elem.h"
#include "op/reduce.h"

/* Where the arguments are. */
typedef struct order {
  int q, k, v, bias, out, lse, causal, scale;
} order;
static const order orders[] = {
    {.q = 0, .k = 1, .v = 2, .bias = 3, .causal = 4, .scale = 5},
    {.q = 0, .k = 1, .v = 2, .bias = 5, .causal = 4, .scale = 6},
    {.q = 1, .k = 2, .v = 3, .bias = 4, .out = 5, .lse = 6, .causal = 7, .scale = 8},
    {.q = 1, .k = 2, .v = 3, .bias = 8, .out = 4, .lse = 5, .causal = 7, .scale = 9},
};
enum { FORWARD, FORWARD_FLASH, BACKWARD, BACKWARD_FLASH };

typedef struct attention {
  const order *at;
  ttc__tiles t;
  bool causal;
  ttc_val length;   /* of the keys, s32, where there are fewer than k's size; or poison */
  ttc_val bias;     /* as given, or poison */
  ttc_val blocks;   /* the same cut into whole blocks */
  ttc_val num, idx; /* of it: how many blocks of keys each row of blocks meets, [nq], and which, [nq·nk]; s32 */
} attention;

/* [B, heads, n, w] -> [B·Hk, heads/Hk·n, w] */
static ttc_val merge(shlo *b, const ttc__tiles *t, ttc_val x) {
  int64_t rows = shlo_dim(b, x, 1) / t->groups * shlo_dim(b, x, 2);
  int64_t dims[3] = {t->batch * t->groups, rows, shlo_dim(b, x, 3)};
  return shlo_reshape(b, x, 3, dims);
}

static bool load(shlo *b, ttc_lower *c, attention *a) {
  *a = (attention){.at = &orders[op_param(c)], .bias = TTC_POISON};
  const order *at = a->at;
  a->length = op_length(c, at->k, 0, 2);
  const int64_t *q = op_in_sizes(c, at->q), *k = op_in_sizes(c, at->k), *v = op_in_sizes(c, at->v);
  bool fits = op_in_ndim(c, at->q) == 4 && op_in_ndim(c, at->k) == 4 && op_in_ndim(c, at->v) == 4;
  fits = fits && q[0] == k[0] && k[0] == v[0] && k[1] == v[1] && k[1] > 0 && q[1] % k[1] == 0 && k[2] == v[2] && q[3] == k[3];
  if (!fits) {
    op_refuse(c, "%s of these shapes", op_name(c));
    return false;
  }
  ttc__tiles *t = &a->t;
  t->batch = q[0], t->heads = q[1], t->groups = k[1], t->queries = q[2], t->keys = k[2], t->width = q[3], t->vwidth = v[3];
  t->type = op_in_dtype(c, at->q);
  t->acc = ttc__dtype_op(t->type);
  t->q = op_in(c, at->q);
  t->k = op_in_as(c, at->k, t->type);
  t->v = op_in_as(c, at->v, t->type);
  double root = t->width > 0 ? 1.0 / sqrt((double)t->width) : 1.0;
  t->scale = op_given(c, at->scale) ? op_num(c, at->scale, 0, t->acc) : shlo_const_f(b, t->acc, root, 0, NULL);
  a->causal = op_bool(c, at->causal);
  a->bias = op_given(c, at->bias) ? op_in(c, at->bias) : TTC_POISON;
  return true;
}

/* ---- at once */

/* x [n, r, p] · y: over x's axis xc and y's axis yc, in the type of the scores. */
static ttc_val product(shlo *b, const attention *a, ttc_val x, int xc, ttc_val y, int yc) {
  int batch[1] = {0}, xs[1] = {xc}, ys[1] = {yc};
  return ttc__once(b, shlo_dot(b, x, y, 1, batch, batch, 1, xs, ys, a->t.acc));
}

/* Scaled and masked scores, [B·Hk, H/Hk·T, S]. The mask and the bias are seen as [B, H, T, S]. */
static ttc_val scores(shlo *b, const attention *a) {
  const ttc__tiles *t = &a->t;
  int64_t four[4] = {t->batch, t->heads, t->queries, t->keys}, square[2] = {t->queries, t->keys};
  ttc_val s = product(b, a, merge(b, t, t->q), 2, merge(b, t, t->k), 2), merged = s;
  s = shlo_reshape(b, shlo_mul(b, s, t->scale), 4, four);
  ttc_val never = shlo_const_f(b, t->acc, -INFINITY, 0, NULL);
  if (a->bias.id >= 0) {
    s = shlo_dtype(b, a->bias) == TTC_BOOL ? shlo_select(b, a->bias, s, never) : shlo_add(b, s, shlo_convert(b, a->bias, t->acc));
  }
  if (a->causal) {
    ttc_val seen = shlo_compare(b, SHLO_GE, shlo_iota(b, TTC_S32, 0, 2, square), shlo_iota(b, TTC_S32, 1, 2, square));
    s = shlo_select(b, seen, s, never);
  }
  if (a->length.id >= 0) {
    s = shlo_select(b, op_inside(b, 3, 4, four, a->length), s, never);
  }
  shlo_type type = *shlo_typeof(b, merged);
  return shlo_reshape(b, s, type.ndim, type.dims);
}

/* [B·Hk, H/Hk·T, w] -> result k, [B, H, T, w] or any shape of as many elements */
static void give(shlo *b, ttc_lower *c, int k, ttc_val v) {
  op_ret(c, k, shlo_reshape(b, v, op_out_ndim(c, k), op_out_sizes(c, k)));
}

/* out = (e·v) / l with e = exp(s - m), m = max s, l = sum e: dividing after the product is dv/S of the divisions. */
static void forward_at_once(shlo *b, ttc_lower *c, const attention *a) {
  ttc__axes keys = ttc__axes_one(2);
  ttc_val s = scores(b, a), m = ttc__reduce_keep(b, SHLO_AMAX, s, &keys);
  m = shlo_select(b, elem_cmp(b, SHLO_EQ, m, -INFINITY), elem_f(b, m, 0), m);
  m = ttc__once(b, m);
  ttc_val e = ttc__once(b, shlo_1(b, SHLO_EXP, shlo_sub(b, s, m)));
  ttc_val l = ttc__reduce_keep(b, SHLO_SUM, e, &keys);
  l = ttc__once(b, shlo_select(b, elem_cmp(b, SHLO_EQ, l, 0), elem_f(b, l, 1), l));
  ttc_val out = product(b, a, shlo_convert(b, e, a->t.type), 2, merge(b, &a->t, a->t.v), 1);
  give(b, c, 0, shlo_div(b, out, l));
  give(b, c, 1, shlo_add(b, m, shlo_1(b, SHLO_LOG, l)));
}

/* Sum of a gradient [B, H, T, S] over the axes along which the bias was broadcast. */
static ttc_val sum_to(shlo *b, ttc_val g, int ndim, const int64_t *sizes) {
  int axes[4], n = 0;
  for (int k = 0; k < 4; k++) {
    int at = k - (4 - ndim);
    if (at < 0 || (sizes[at] == 1 && shlo_dim(b, g, k) != 1)) {
      axes[n++] = k;
    }
  }
  return shlo_reshape(b, n > 0 ? shlo_reduce(b, SHLO_SUM, g, n, axes) : g, ndim, sizes);
}

/* p = exp(s - lse), dp = g·vᵀ, ds = p (dp - dot); gradients: v pᵀ·g, q ds·k·scale, k dsᵀ·q·scale, bias ds. */
static void backward_at_once(shlo *b, ttc_lower *c, const attention *a, ttc_val grad, ttc_val lse, ttc_val dot) {
  const ttc__tiles *t = &a->t;
  int64_t rows[3] = {t->batch * t->groups, t->heads / t->groups * t->queries, 1};
  ttc_val g = merge(b, t, grad);
  ttc_val p = ttc__once(b, shlo_1(b, SHLO_EXP, shlo_sub(b, scores(b, a), shlo_reshape(b, lse, 3, rows))));
  ttc_val dp = product(b, a, g, 2, merge(b, t, t->v), 2);
  ttc_val ds = ttc__once(b, shlo_mul(b, p, shlo_sub(b, dp, shlo_reshape(b, dot, 3, rows))));
  if (op_nout(c) > 3 && op_wanted(c, 3)) {
    int64_t four[4] = {t->batch, t->heads, t->queries, t->keys};
    op_ret(c, 3, sum_to(b, shlo_reshape(b, ds, 4, four), op_out_ndim(c, 3), op_out_sizes(c, 3)));
  }
  ttc_val narrow = shlo_convert(b, ds, t->type);
  if (op_wanted(c, 0)) {
    give(b, c, 0, shlo_mul(b, product(b, a, narrow, 2, merge(b, t, t->k), 1), t->scale));
  }
  if (op_wanted(c, 1)) {
    give(b, c, 1, shlo_mul(b, product(b, a, narrow, 1, merge(b, t, t->q), 1), t->scale));
  }
  if (op_wanted(c, 2)) {
    give(b, c, 2, product(b, a, shlo_convert(b, p, t->type), 1, g, 1));
  }
}

/* ---- block by block */

/* The switch between the two forms. On XLA:CPU blocks win from here on (T = S = 256: 10 to 20 % of the time, 2048: 75 %). */
static bool in_blocks(const ttc__tiles *t) {
  int64_t n = TTC__TILE;
  return t->queries > n && t->keys > n && t->queries * t->keys >= 4 * n * n;
}

static ttc_val int32(shlo *b, int64_t v) {
  return shlo_const_i(b, TTC_S32, v, 0, NULL);
}

/* Loop 0: blocks of keys that every query of the row sees, for all that `causal` and the end of the keys say; loop 1: the rest. */
static void range(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val *first, ttc_val *last) {
  const attention *a = t->ctx;
  ttc_val free = int32(b, t->keys / t->ck), end = int32(b, t->nk);
  if (a->causal) {
    ttc_val rows = shlo_mul(b, at->row, int32(b, t->cq)), ck = int32(b, t->ck);
    free = shlo_2(b, SHLO_MIN, free, shlo_div(b, shlo_add(b, rows, int32(b, 1)), ck));
    end = shlo_2(b, SHLO_MIN, end, shlo_div(b, shlo_add(b, rows, int32(b, t->cq + t->ck - 1)), ck));
  }
  *first = at->run == 0 ? int32(b, 0) : free;
  *last = at->run == 0 ? free : end;
}

/* With a mask, or a bias (which PyTorch makes of masks: -inf where they are false), only those blocks are met in which some query
 * of some head sees a key. */
static void listed_range(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val *first, ttc_val *last) {
  const attention *a = t->ctx;
  *first = int32(b, 0);
  *last = ttc__tile_entry(b, a->num, at->row);
}

static ttc_val listed_column(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val j) {
  const attention *a = t->ctx;
  return ttc__tile_entry(b, a->idx, shlo_add(b, shlo_mul(b, at->row, int32(b, t->nk)), j));
}

/* The lists, from the mask or bias [B|1, H|1, T|1, S|1]. */
static void list_blocks(shlo *b, attention *a, ttc_val bias) {
  ttc__tiles *t = &a->t;
  ttc_val on = shlo_dtype(b, bias) == TTC_BOOL ? bias : elem_cmp(b, SHLO_NE, bias, -INFINITY);
  on = ttc__tile_pad(b, t, on);
  int64_t tall = shlo_dim(b, a->blocks, 2), wide = shlo_dim(b, a->blocks, 3), square[2] = {t->nq, t->nk}, n = t->nq * t->nk;
  int64_t cut[6] = {shlo_dim(b, a->blocks, 0), shlo_dim(b, a->blocks, 1), tall == 1 ? 1 : t->nq,
                    tall == 1 ? 1 : t->cq,     wide == 1 ? 1 : t->nk,     wide == 1 ? 1 : t->ck};
  int inside[4] = {0, 1, 3, 5}, last[1] = {1};
  on = shlo_reduce(b, SHLO_ANY, shlo_reshape(b, on, 6, cut), 4, inside);
  on = shlo_broadcast_to(b, on, 2, square);
  if (a->causal) {
    ttc_val end = shlo_mul(b, shlo_add(b, shlo_iota(b, TTC_S32, 0, 2, square), int32(b, 1)), int32(b, t->cq));
    ttc_val start = shlo_mul(b, shlo_iota(b, TTC_S32, 1, 2, square), int32(b, t->ck));
    on = elem_and(b, on, shlo_compare(b, SHLO_LT, start, end));
  }
  ttc_val sorted[2] = {shlo_convert(b, elem_not(b, on), TTC_S32), shlo_iota(b, TTC_S32, 1, 2, square)};
  shlo_sort(b, 2, sorted, 1, false, sorted);
  a->num = shlo_reduce(b, SHLO_SUM, shlo_convert(b, on, TTC_S32), 1, last);
  a->idx = shlo_reshape(b, sorted[1], 1, &n);
  t->nrun = 1, t->nfree = 0;
  t->range = listed_range, t->column = listed_column;
}

static ttc_val seen(shlo *b, const ttc__tiles *t, const ttc__tile *at) {
  const attention *a = t->ctx;
  ttc_val on = TTC_POISON;
  if (a->causal && at->run == t->nrun - 1) {
    int64_t square[2] = {t->cq, t->ck};
    ttc_val down = shlo_add(b, shlo_iota(b, TTC_S32, 0, 2, square), shlo_mul(b, at->row, int32(b, t->cq)));
    ttc_val along = shlo_add(b, shlo_iota(b, TTC_S32, 1, 2, square), shlo_mul(b, at->col, int32(b, t->ck)));
    on = shlo_compare(b, SHLO_GE, down, along);
  }
  if (a->blocks.id >= 0 && shlo_dtype(b, a->blocks) == TTC_BOOL) {
    ttc_val mask = ttc__tile_of(b, t, at, a->blocks);
    on = on.id >= 0 ? elem_and(b, mask, on) : mask;
  }
  return on;
}

static ttc_val bend(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val s) {
  const attention *a = t->ctx;
  return shlo_add(b, s, shlo_convert(b, ttc__tile_of(b, t, at, a->blocks), t->acc));
}

/* Rows of as many blocks as blocks of `most` would be, in whole TTC__TILE: 256 rows are one of 256, not half of one of 512. */
static int64_t even(int64_t rows, int64_t most) {
  int64_t blocks = (rows + most - 1) / most, each = (rows + blocks - 1) / blocks;
  return (each + TTC__TILE - 1) / TTC__TILE * TTC__TILE;
}

/* A TPU's matrix unit is busier with larger blocks, as long as their scores, held a few times over, stay at some tens of MiB. */
static void set_block_size(const shlo *b, ttc__tiles *t) {
  int64_t n = shlo_for_tpu(b) ? 4 * TTC__TILE : TTC__TILE, scores = (int64_t)1 << 24;
  while (n > TTC__TILE && t->batch * t->heads * even(t->queries, n) * even(t->keys, n) > scores) {
    n /= 2;
  }
  t->cq = even(t->queries, n), t->ck = even(t->keys, n);
}

/* Keys past their length are masked out, in the bias or in a mask of their own. */
static void end_keys(shlo *b, attention *a) {
  int64_t dims[4] = {1, 1, 1, a->t.keys};
  ttc_val in = op_inside(b, 3, 4, dims, a->length), bias = a->bias;
  if (bias.id < 0) {
    a->bias = in;
  } else if (shlo_dtype(b, bias) == TTC_BOOL) {
    a->bias = elem_and(b, bias, in);
  } else {
    a->bias = shlo_select(b, in, bias, shlo_const_f(b, shlo_dtype(b, bias), -INFINITY, 0, NULL));
  }
}

static void cut_into_blocks(shlo *b, attention *a) {
  ttc__tiles *t = &a->t;
  if (a->length.id >= 0) {
    end_keys(b, a);
  }
  set_block_size(b, t);
  t->mbatch = t->mheads = 1;
  t->nrun = 2, t->nfree = 1;
  t->ctx = a, t->range = range, t->seen = seen;
  t->nq = (t->queries + t->cq - 1) / t->cq, t->nk = (t->keys + t->ck - 1) / t->ck;
  a->blocks = a->bias;
  if (a->bias.id >= 0) {
    int64_t dims[4] = {1, 1, 1, 1};
    int n = shlo_ndim(b, a->bias);
    for (int k = 0; k < n; k++) {
      dims[4 - n + k] = shlo_dim(b, a->bias, k);
    }
    ttc_val bias = shlo_reshape(b, a->bias, 4, dims);
    a->blocks = ttc__tile_pad(b, t, bias);
    t->bend = shlo_dtype(b, a->bias) == TTC_BOOL ? NULL : bend;
    list_blocks(b, a, bias);
  }
}

static void lower_forward(shlo *b, ttc_lower *c) {
  attention a;
  if (!load(b, c, &a)) {
    return;
  }
  if (!in_blocks(&a.t)) {
    forward_at_once(b, c, &a);
    return;
  }
  ttc_val out, lse, max;
  cut_into_blocks(b, &a);
  ttc__attend(b, &a.t, &out, &lse, &max);
  give(b, c, 0, out);
  give(b, c, 1, shlo_select(b, elem_cmp(b, SHLO_EQ, lse, -INFINITY), elem_f(b, lse, 0), lse));
}

/* dot = rowsum(g·out), [B, H, T] */
static void lower_backward(shlo *b, ttc_lower *c) {
  attention a;
  if (!load(b, c, &a)) {
    return;
  }
  int last[1] = {3};
  ttc__tiles *t = &a.t;
  ttc_val g = op_in_as(c, 0, t->type), out = op_in_as(c, a.at->out, t->acc), lse = op_in_as(c, a.at->lse, t->acc);
  ttc_val dot = ttc__once(b, shlo_reduce(b, SHLO_SUM, shlo_mul(b, shlo_convert(b, g, t->acc), out), 1, last));
  if (!in_blocks(t) || (op_nout(c) > 3 && op_wanted(c, 3))) { /* the bias's gradient is as large as the scores */
    backward_at_once(b, c, &a, g, lse, dot);
    return;
  }
  ttc_val grads[3];
  int64_t rows[3] = {t->batch, t->heads, t->queries};
  cut_into_blocks(b, &a);
  ttc__attend_back(b, t, g, shlo_reshape(b, lse, 3, rows), dot, grads, NULL);
  for (int k = 0; k < 3; k++) {
    if (op_wanted(c, k)) {
      give(b, c, k, grads[k]);
    }
  }
}

/* ---- nn.MultiheadAttention in inference */

/* x [B, T, D] · weightᵀ + bias, rows at `part` of weight [n·E, D] and bias [n·E]: [B, T, E] */
static ttc_val project(shlo *b, ttc_lower *c, ttc_val x, int weight, int part, int64_t e) {
  ttc_dtype type = shlo_dtype(b, x), acc = ttc__dtype_op(type);
  ttc_val w = shlo_slice_axis(b, op_in_as(c, weight, type), 0, part * e, (part + 1) * e);
  ttc_val bias = shlo_slice_axis(b, op_in_as(c, weight + 1, acc), 0, part * e, (part + 1) * e);
  int xs[1] = {2}, ws[1] = {1};
  return shlo_convert(b, shlo_add(b, shlo_dot(b, x, w, 0, NULL, NULL, 1, xs, ws, acc), bias), type);
}

/* [B, T, H·d] -> [B, H, T, d] */
static ttc_val split_heads(shlo *b, ttc_val x, int64_t heads) {
  const int swap[4] = {0, 2, 1, 3};
  int64_t dims[4] = {shlo_dim(b, x, 0), shlo_dim(b, x, 1), heads, shlo_dim(b, x, 2) / heads};
  return shlo_transpose(b, shlo_reshape(b, x, 4, dims), swap);
}

/* Scores [B, H, T, S] with -inf where the mask (argument 9) is not 0: [T, S] for mask_type 0, [B, S] for 1, else [B, H, T, S]. */
static ttc_val mask_scores(shlo *b, ttc_lower *c, ttc_val s) {
  if (!op_given(c, 9)) {
    return s;
  }
  ttc_val mask = op_in_as(c, 9, TTC_BOOL);
  if (shlo_ndim(b, mask) == 2) {
    shlo_type t = *shlo_typeof(b, s);
    int axes[2] = {op_int(c, 12, 0) == 1 ? 0 : 2, 3};
    mask = shlo_broadcast_in_dim(b, mask, 4, t.dims, axes);
  }
  return shlo_select(b, mask, elem_f(b, s, -INFINITY), s);
}

/* _native_multi_head_attention(query, key, value [B, L, D], embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias,
 * mask?, need_weights, average_attn_weights, mask_type?) -> output, weights [B, H, T, S] or their mean over heads. A query whose
 * every key is masked gives NaN, as on CPU. */
static void lower_multi_head(shlo *b, ttc_lower *c) {
  int64_t e = op_int(c, 3, 0), heads = op_int(c, 4, 1);
  ttc_val x = op_in(c, 0);
  ttc_dtype type = shlo_dtype(b, x), acc = ttc__dtype_op(type);
  ttc_val q = split_heads(b, project(b, c, x, 5, 0, e), heads);
  ttc_val k = split_heads(b, project(b, c, op_in_as(c, 1, type), 5, 1, e), heads);
  ttc_val v = split_heads(b, project(b, c, op_in_as(c, 2, type), 5, 2, e), heads);
  int two[2] = {0, 1}, last[1] = {3}, third[1] = {2};
  ttc__axes keys = ttc__axes_one(3);
  ttc_val s = shlo_mul(b, shlo_dot(b, q, k, 2, two, two, 1, last, last, acc),
                       shlo_const_f(b, acc, 1.0 / sqrt((double)(e / heads)), 0, NULL));
  s = ttc__once(b, mask_scores(b, c, s));
  ttc_val m = ttc__once(b, ttc__reduce_keep(b, SHLO_AMAX, s, &keys));
  ttc_val p = ttc__once(b, shlo_1(b, SHLO_EXP, shlo_sub(b, s, m)));
  p = shlo_div(b, p, ttc__once(b, ttc__reduce_keep(b, SHLO_SUM, p, &keys)));
  if (op_wanted(c, 1) && !op_bool(c, 10)) { /* in a graph: Meta's empty tensor */
    op_ret(c, 1, shlo_const_f(b, acc, 0, op_out_ndim(c, 1), op_out_sizes(c, 1)));
  } else if (op_wanted(c, 1)) {
    ttc__axes over = ttc__axes_one(1);
    ttc__give(b, c, 1, op_bool(c, 11) ? ttc__mean_keep(b, p, &over) : p);
  }
  const int swap[4] = {0, 2, 1, 3};
  ttc_val out = shlo_transpose(b, shlo_dot(b, shlo_convert(b, p, type), v, 2, two, two, 1, last, third, acc), swap);
  int64_t dims[3] = {shlo_dim(b, x, 0), shlo_dim(b, x, 1), e};
  out = shlo_convert(b, shlo_reshape(b, out, 3, dims), type);
  op_ret(c, 0, project(b, c, out, 7, 0, op_in_dim(c, 7, 0)));
}

/* PyTorch's Meta kernel gives an empty tensor for weights that are not wanted, where its other kernels give none. */
static ttc_status infer_multi_head(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  const ttc_arg *a = call->args;
  bool fits = call->narg >= 13 && max >= 2;
  for (int i = 0; fits && i < 3; i++) {
    fits = a[i].kind == TTC_ARG_TENSOR && a[i].tensor->ndim == 3 && a[i].tensor->sizes[2] == a[3].i &&
           a[i].tensor->dtype == a[0].tensor->dtype && a[i].tensor->sizes[0] == a[0].tensor->sizes[0] &&
           a[i].tensor->sizes[1] == a[0].tensor->sizes[1];
  }
  for (int i = 5; fits && i < 9; i++) {
    fits = a[i].kind == TTC_ARG_TENSOR && a[i].tensor->ndim == 2 - (i + 1) % 2 && a[i].tensor->sizes[0] == a[3].i * (i < 7 ? 3 : 1);
  }
  if (!fits || a[4].i <= 0 || a[3].i % a[4].i != 0 ||
      (a[9].kind == TTC_ARG_TENSOR && a[9].tensor->ndim != 2 && a[9].tensor->ndim != 4)) {
    return TTC_FAIL(err, TTC_UNIMPLEMENTED, "these shapes"); /* the CPU's kernel says what is wrong */
  }
  const ttc_tensor *q = a[0].tensor;
  int64_t n = q->sizes[0], t = q->sizes[1], s = a[1].tensor->sizes[1];
  ttc_dtype d = (ttc_dtype)q->dtype;
  specs[0] = (ttc_spec){.dtype = d, .ndim = 3, .sizes = {n, t, a[3].i}};
  specs[1] = a[11].i ? (ttc_spec){.dtype = d, .ndim = 3, .sizes = {n, t, s}}
                     : (ttc_spec){.dtype = d, .ndim = 4, .sizes = {n, a[4].i, t, s}};
  ttc__spec_dense(&specs[0]);
  ttc__spec_dense(&specs[1]);
  if (!a[10].i) {
    specs[1].dtype = TTC_DTYPE_INVALID;
  }
  *nout = 2;
  return TTC_OK;
}

#define MULTI_HEAD                                                                                                              \
  {ELEM_HEAD("_native_multi_head_attention", lower_multi_head, 0, TOL_DOT), .flags = TTC_OP_NO_META, .infer = infer_multi_head, \
   .pad = PAD_HEADS}
const ttc_op_row ttc__attention_rows[] = {
    {ELEM_HEAD("_sdpa_forward", lower_forward, FORWARD, TOL_DOT), .pad = PAD_ATTENTION},
    {ELEM_HEAD("_sdpa_backward", lower_backward, BACKWARD, TOL_LOOSE), .pad = PAD_ATTENTION_BACK},
    {ELEM_HEAD("_scaled_dot_product_flash_attention_for_cpu", lower_forward, FORWARD_FLASH, TOL_DOT), .pad = PAD_ATTENTION},
    {ELEM_HEAD("_scaled_dot_product_flash_attention_for_cpu_backward", lower_backward, BACKWARD_FLASH, TOL_LOOSE),
     .pad = PAD_ATTENTION_BACK},
    ELEM_ROW("_flex_forward", ttc__lower_flex, 0, TOL_DOT),
    ELEM_ROW("_flex_backward", ttc__lower_flex_backward, 0, TOL_LOOSE),
    MULTI_HEAD,
};
TTC_FAMILY(attention)
