/* Family "matmul": products of vectors, matrices and batches of matrices.
 *
 * Accumulation: 16- and 8-bit floats accumulate in f32 and are rounded once, at the end (as CPU PyTorch); f32 dots follow the
 * module's precision; integers wrap in their own type. A transposed view arrives as a transpose of the value, which XLA folds into
 * the dot. */
#include "op/reduce.h"

static const int A0 = 0, A1 = 1, A2 = 2;

/* The type sums are kept in. */
static ttc_dtype acc_dtype(ttc_lower *c, int i) {
  ttc_dtype d = op_in_dtype(c, i);
  if (d == TTC_BOOL) {
    op_refuse(c, "%s of bool is not lowered", op_name(c));
  }
  return ttc__dtype_op(d);
}

#define FEW_ROWS 64

/* XLA:CPU is slow at x·wᵀ with w [n,k] as it lies in memory: 12 times slower than (w·xᵀ)ᵀ for one row of x (a decoder's
 * layers), 1.2 times for 64, from where on turning the result over costs as much. */
static bool better_turned(shlo *b, ttc_val x, ttc_val y) {
  int64_t rows = shlo_dim(b, x, 0);
  return !shlo_for_tpu(b) && shlo_swapped(b, y).id >= 0 && rows <= FEW_ROWS && rows < shlo_dim(b, y, 1);
}

/* XLA:CPU reads an x that lies as [k,m] in columns. Where these are a multiple of 1 KiB apart they compete for the same places of
 * the cache, which costs up to a quarter of the product of a weight's gradient gᵀ·x. */
static bool competes(shlo *b, ttc_val x) {
  return !shlo_for_tpu(b) && shlo_dtype(b, x) == TTC_F32 && shlo_swapped(b, x).id >= 0 && shlo_dim(b, x, 0) % 256 == 0;
}

/* With y much the smaller, it is read in columns instead: g [2048,1536] and x [2048,384] take 29 ms, as xᵀ·g 22. */
static bool better_swapped(shlo *b, ttc_val x, ttc_val y) {
  int64_t m = shlo_dim(b, x, 0), k = shlo_dim(b, x, 1), n = shlo_dim(b, y, 1);
  return 2 * n < m && k >= 512 && n >= 64;
}

/* Else x is laid out in rows before: g [64,1024] and x [64,1024] take 1.6 ms, 1.4 so. Of a plain transpose XLA would make another
 * way of reading what it copies, and copy that again. */
static ttc_val in_rows(shlo *b, ttc_val x) {
  int64_t m = shlo_dim(b, x, 0), k = shlo_dim(b, x, 1), halves[3] = {k, 2, m / 2}, dims[2] = {m, k};
  const int turn[3] = {1, 2, 0};
  ttc_val split = shlo_reshape(b, shlo_swapped(b, x), 3, halves);
  return ttc__once(b, shlo_reshape(b, shlo_transpose(b, split, turn), 2, dims));
}

/* x[m,k] · y[k,n] */
static ttc_val dot2(shlo *b, ttc_val x, ttc_val y, ttc_dtype acc) {
  const int turn[2] = {1, 0};
  if (better_turned(b, x, y)) {
    ttc_val v = shlo_dot(b, shlo_swapped(b, y), x, 0, NULL, NULL, 1, &A1, &A1, acc);
    return shlo_transpose(b, shlo_dim(b, x, 0) > 1 ? ttc__once(b, v) : v, turn); /* else XLA turns the product back */
  }
  if (competes(b, x) && better_swapped(b, x, y)) { /* (yᵀ·xᵀ)ᵀ */
    return shlo_transpose(b, ttc__once(b, shlo_dot(b, y, x, 0, NULL, NULL, 1, &A0, &A1, acc)), turn);
  }
  return shlo_dot(b, competes(b, x) ? in_rows(b, x) : x, y, 0, NULL, NULL, 1, &A1, &A0, acc);
}

/* x[b,m,k] · y[b,k,n] */
static ttc_val dot3(shlo *b, ttc_val x, ttc_val y, ttc_dtype acc) {
  return shlo_dot(b, x, y, 1, &A0, &A0, 1, &A2, &A1, acc);
}

/* beta·self + alpha·v, beta and alpha being arguments ibeta and ibeta+1. beta = 0 ignores self, NaN and all. */
static ttc_val scale_add(shlo *b, ttc_lower *c, ttc_val v, int ibeta, ttc_dtype acc) {
  if (!op_num_is_one(c, ibeta + 1)) {
    v = shlo_mul(b, v, op_num(c, ibeta + 1, 0, acc));
  }
  if (op_num_is_zero(c, ibeta)) {
    return v;
  }
  ttc_val self = op_in_as(c, 0, acc);
  if (!op_num_is_one(c, ibeta)) {
    self = shlo_mul(b, self, op_num(c, ibeta, 0, acc));
  }
  return shlo_add(b, self, v);
}

/* mm, bmm (and .dtype): param = number of batch axes. aten::mm: self[n,m] mat2[m,p]. */
static void lower_mm(shlo *b, ttc_lower *c) {
  ttc_dtype acc = acc_dtype(c, 0);
  ttc_val x = op_in(c, 0), y = op_in(c, 1);
  op_ret(c, 0, op_param(c) ? dot3(b, x, y, acc) : dot2(b, x, y, acc));
}

/* mv: self[n,m] vec[m];  dot, vdot: two vectors, vdot conjugating the first. */
static void lower_mv(shlo *b, ttc_lower *c) {
  op_ret(c, 0, shlo_dot(b, op_in(c, 0), op_in(c, 1), 0, NULL, NULL, 1, &A1, &A0, acc_dtype(c, 0)));
}

static void lower_vecdot(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0);
  if (op_param(c) && ttc__is_complex(op_in_dtype(c, 0))) {
    x = shlo_1(b, SHLO_CHLO_CONJ, x);
  }
  op_ret(c, 0, shlo_dot(b, x, op_in(c, 1), 0, NULL, NULL, 1, &A0, &A0, acc_dtype(c, 0)));
}

/* addmm, baddbmm: param = number of batch axes. The .dtype overloads have out_dtype before beta. */
static void lower_addmm(shlo *b, ttc_lower *c) {
  ttc_dtype acc = acc_dtype(c, 1);
  ttc_val x = op_in(c, 1), y = op_in(c, 2);
  ttc_val v = op_param(c) ? dot3(b, x, y, acc) : dot2(b, x, y, acc);
  op_ret(c, 0, scale_add(b, c, v, op_narg(c) == 6 ? 4 : 3, acc));
}

/* addbmm: self[n,p] + sum over the batch of batch1[b,n,m] · batch2[b,m,p]: one contraction over (b, m). */
static void lower_addbmm(shlo *b, ttc_lower *c) {
  ttc_dtype acc = acc_dtype(c, 1);
  const int xc[2] = {0, 2}, yc[2] = {0, 1};
  ttc_val v = shlo_dot(b, op_in(c, 1), op_in(c, 2), 0, NULL, NULL, 2, xc, yc, acc);
  op_ret(c, 0, scale_add(b, c, v, 3, acc));
}

static void lower_addmv(shlo *b, ttc_lower *c) {
  ttc_dtype acc = acc_dtype(c, 1);
  ttc_val v = shlo_dot(b, op_in(c, 1), op_in(c, 2), 0, NULL, NULL, 1, &A1, &A0, acc);
  op_ret(c, 0, scale_add(b, c, v, 3, acc));
}

/* addr: self[n,m] + vec1[n] ⊗ vec2[m]; for bool, and/or. */
static void lower_addr(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_out_dtype(c, 0);
  if (d == TTC_BOOL) {
    op_refuse(c, "addr of bool is not lowered");
    return;
  }
  ttc_dtype acc = ttc__dtype_op(d);
  ttc_val x = shlo_unsqueeze(b, op_in_as(c, 1, acc), 1), y = shlo_unsqueeze(b, op_in_as(c, 2, acc), 0);
  op_ret(c, 0, scale_add(b, c, shlo_mul(b, x, y), 3, acc));
}

/* gelu(v) = v · (1 + erf(v / sqrt 2)) / 2 */
static ttc_val gelu(shlo *b, ttc_val v) {
  ttc_val e = shlo_1(b, SHLO_CHLO_ERF, shlo_mul(b, v, shlo_const_like(b, v, 0.70710678118654752440)));
  return shlo_mul(b, shlo_mul(b, v, shlo_const_like(b, v, 0.5)), shlo_add(b, e, shlo_const_like(b, v, 1)));
}

/* _addmm_activation: addmm, then relu or gelu. */
static void lower_addmm_activation(shlo *b, ttc_lower *c) {
  ttc_dtype acc = acc_dtype(c, 1);
  ttc_val v = scale_add(b, c, dot2(b, op_in(c, 1), op_in(c, 2), acc), 3, acc);
  op_ret(c, 0, op_bool(c, 5) ? gelu(b, v) : shlo_2(b, SHLO_MAX, v, shlo_const_like(b, v, 0)));
}

/* _int_mm: s8[n,m] · s8[m,p] -> s32 */
static void lower_int_mm(shlo *b, ttc_lower *c) {
  op_ret(c, 0, dot2(b, op_in(c, 0), op_in(c, 1), TTC_S32));
}

/* _weight_int8pack_mm: self[n,k] · mat2[p,k]^T (s8), column j scaled by scales[j]. */
static void lower_int8pack_mm(shlo *b, ttc_lower *c) {
  ttc_val w = op_in_as(c, 1, op_in_dtype(c, 0));
  ttc_val v = shlo_dot(b, op_in(c, 0), w, 0, NULL, NULL, 1, &A1, &A1, TTC_F32);
  op_ret(c, 0, shlo_mul(b, v, op_in_as(c, 2, TTC_F32)));
}

/* A scale of _scaled_mm against the [m,n] product: one element, a column [m,1] or a row [1,n]. */
static ttc_val scale_of(shlo *b, ttc_lower *c, int i) {
  const int64_t *out = op_out_sizes(c, 0);
  ttc_val s = op_in_as(c, i, TTC_F32);
  int64_t n = shlo_nelem(b, s);
  if (n == 1) {
    return shlo_reshape(b, s, 0, NULL);
  }
  if (op_in_ndim(c, i) != 2 || (i == 2 ? op_in_dim(c, i, 0) != out[0] || op_in_dim(c, i, 1) != 1
                                       : op_in_dim(c, i, 0) != 1 || op_in_dim(c, i, 1) != out[1])) {
    op_refuse(c, "block-wise scales of _scaled_mm are not lowered");
  }
  return s;
}

/* _scaled_mm: (self · scale_a) @ (mat2 · scale_b) + bias, operands 8-bit floats. f32 holds every f8 value and sums as CPU does. */
static void lower_scaled_mm(shlo *b, ttc_lower *c) {
  ttc_val v = dot2(b, op_in_as(c, 0, TTC_F32), op_in_as(c, 1, TTC_F32), TTC_F32);
  v = shlo_mul(b, shlo_mul(b, v, scale_of(b, c, 2)), scale_of(b, c, 3));
  if (op_given(c, 4)) {
    v = shlo_add(b, v, op_in_as(c, 4, TTC_F32));
  }
  if (op_given(c, 5)) {
    op_refuse(c, "scale_result of _scaled_mm is not lowered");
  }
  op_ret(c, 0, v);
}

/* In a list of group ends offs[g]: is row t (of n) in group g?  bool [g, n]. */
static ttc_val group_mask(shlo *b, ttc_lower *c, int64_t n) {
  int64_t g = op_in_dim(c, 2, 0), dims[2] = {g, n}, one = 1, start[1] = {0}, limit[1] = {g - 1};
  ttc_val end = op_in_as(c, 2, TTC_S32), zero = shlo_const_i(b, TTC_S32, 0, 1, &one);
  ttc_val parts[2] = {zero, shlo_slice(b, end, start, limit, NULL)};
  ttc_val begin = shlo_concat(b, 2, parts, 0), t = shlo_iota(b, TTC_S32, 1, 2, dims);
  ttc_val ge = shlo_compare(b, SHLO_GE, t, shlo_unsqueeze(b, begin, 1));
  return shlo_2(b, SHLO_AND, ge, shlo_compare(b, SHLO_LT, t, shlo_unsqueeze(b, end, 1)));
}

/* Zero where the mask [g,n], put on axes 0 and `axis` of x (with a leading group axis added), is false. */
static ttc_val masked(shlo *b, ttc_val mask, ttc_val x, int axis) {
  int nd = shlo_ndim(b, x), axes[2] = {0, axis}, own[TTC_MAX_NDIM];
  int64_t dims[TTC_MAX_NDIM];
  bool grouped = nd == 3;
  int out = grouped ? 3 : nd + 1;
  dims[0] = shlo_dim(b, mask, 0);
  for (int k = 0; k < nd; k++) {
    own[k] = grouped ? k : k + 1;
    dims[own[k]] = shlo_dim(b, x, k);
  }
  ttc_val wide = shlo_broadcast_in_dim(b, x, out, dims, own), m = shlo_broadcast_in_dim(b, mask, out, dims, axes);
  return shlo_select(b, m, wide, shlo_const_like(b, wide, 0));
}

/* _grouped_mm: matrices of a ragged batch. Ranks 3x3: a plain batch. 2x3: rows offs[g-1]..offs[g] of self meet mat2[g]. 3x2:
 * columns of mat2 meet self[g]. 2x2: the contraction itself is ragged, result [g,m,n]. Every group's product is formed over all
 * rows and masked; a row of another group never mixes in, not even its NaN. */
static void lower_grouped_mm(shlo *b, ttc_lower *c) {
  ttc_dtype acc = acc_dtype(c, 0);
  ttc_val x = op_in(c, 0), y = op_in(c, 1), v;
  int nx = op_in_ndim(c, 0), ny = op_in_ndim(c, 1);
  if (nx == 3 && ny == 3) {
    v = dot3(b, x, y, acc);
  } else if (nx == 2 && ny == 3) {
    v = shlo_dot(b, y, x, 0, NULL, NULL, 1, &A1, &A1, acc); /* [g,n,t] */
    v = shlo_reduce(b, SHLO_SUM, masked(b, group_mask(b, c, op_in_dim(c, 0, 0)), v, 2), 1, &A0);
    v = shlo_transpose(b, v, (const int[2]){1, 0});
  } else if (nx == 3 && ny == 2) {
    v = shlo_dot(b, x, y, 0, NULL, NULL, 1, &A2, &A0, acc); /* [g,m,t] */
    v = shlo_reduce(b, SHLO_SUM, masked(b, group_mask(b, c, op_in_dim(c, 1, 1)), v, 2), 1, &A0);
  } else {
    ttc_val mask = group_mask(b, c, op_in_dim(c, 1, 0));
    v = dot3(b, masked(b, mask, x, 2), masked(b, mask, y, 1), acc);
  }
  if (op_given(c, 3)) {
    op_refuse(c, "bias of _grouped_mm is not lowered");
  }
  op_ret(c, 0, v);
}

/* _scaled_mm and _int_mm: PyTorch's Meta kernels ask for the sizes that CUDA needs, which no other device does. */
static ttc_status infer_mm(const ttc_call *call, ttc_dtype dtype, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  const ttc_arg *a = call->args;
  if (call->narg < 2 || max < 1 || a[0].kind != TTC_ARG_TENSOR || a[1].kind != TTC_ARG_TENSOR || a[0].tensor->ndim != 2 ||
      a[1].tensor->ndim != 2) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected two matrices");
  }
  const int64_t *x = a[0].tensor->sizes, *y = a[1].tensor->sizes;
  if (x[1] != y[0]) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "mat1 and mat2 shapes cannot be multiplied (%lldx%lld and %lldx%lld)",
                    (long long)x[0], (long long)x[1], (long long)y[0], (long long)y[1]);
  }
  specs[0] = (ttc_spec){.dtype = dtype, .ndim = 2, .sizes = {x[0], y[1]}};
  ttc__dense_strides(2, specs[0].sizes, specs[0].strides);
  *nout = 1;
  return TTC_OK;
}

static ttc_status infer_int_mm(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  return infer_mm(call, TTC_S32, max, specs, nout, err);
}

static ttc_status infer_scaled_mm(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  const ttc_arg *a = call->args;
  bool named = call->narg > 6 && a[6].kind == TTC_ARG_DTYPE;
  ttc_dtype own = call->narg > 0 && a[0].kind == TTC_ARG_TENSOR ? (ttc_dtype)a[0].tensor->dtype : TTC_F32;
  return infer_mm(call, named ? (ttc_dtype)a[6].i : own, max, specs, nout, err);
}

/* beta and alpha: whether they are 0 or 1 decides the program. */
#define UNITS(beta) (UINT64_C(3) << (beta))

const ttc_op_row ttc__matmul_rows[] = {
    {"mm", lower_mm, 0, TOL_DOT, 0, 0, NULL, NULL, 0, PAD_DOT},
    {"mm.dtype", lower_mm, 0, TOL_DOT, 0, 0, NULL, NULL, 0, PAD_DOT},
    {"bmm", lower_mm, 1, TOL_DOT, 0, 0, NULL, NULL, 0, PAD_DOT},
    {"bmm.dtype", lower_mm, 1, TOL_DOT, 0, 0, NULL, NULL, 0, PAD_DOT},
    {"mv", lower_mv, 0, TOL_DOT, 0, 0, NULL, NULL, 0, PAD_DOT},
    {"dot", lower_vecdot, 0, TOL_DOT, 0, 0, NULL, NULL, 0, PAD_DOT},
    {"vdot", lower_vecdot, 1, TOL_DOT, 0, 0, NULL, NULL, 0, PAD_DOT},
    {"addmm", lower_addmm, 0, TOL_DOT, 0, 0, NULL, NULL, UNITS(3), PAD_DOT},
    {"addmm.dtype", lower_addmm, 0, TOL_DOT, 0, 0, NULL, NULL, UNITS(4), PAD_DOT},
    {"baddbmm", lower_addmm, 1, TOL_DOT, 0, 0, NULL, NULL, UNITS(3), PAD_DOT},
    {"baddbmm.dtype", lower_addmm, 1, TOL_DOT, 0, 0, NULL, NULL, UNITS(4), PAD_DOT},
    {"addbmm", lower_addbmm, 0, TOL_DOT, 0, 0, NULL, NULL, UNITS(3), PAD_CANNOT},
    {"addmv", lower_addmv, 0, TOL_DOT, 0, 0, NULL, NULL, UNITS(3), PAD_DOT},
    {"addr", lower_addr, 0, TOL_DOT, 0, 0, NULL, NULL, UNITS(3), PAD_CANNOT},
    {"_addmm_activation", lower_addmm_activation, 0, TOL_DOT, 0, 0, NULL, "gelu is the erf form", UNITS(3), PAD_DOT},
    {"_int_mm", lower_int_mm, 0, TOL_EXACT, TTC_OP_NO_META, 0, infer_int_mm, NULL, 0, PAD_CANNOT},
    {"_weight_int8pack_mm", lower_int8pack_mm, 0, TOL_DOT, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"_scaled_mm", lower_scaled_mm, 0, TOL_DOT, TTC_OP_NO_META, 0, infer_scaled_mm, "one scale, or a column and a row of scales", 0,
     PAD_CANNOT},
    {"_grouped_mm", lower_grouped_mm, 0, TOL_DOT, 0, 0, NULL, "groups are masked: the work is that of every group over all rows", 0,
     PAD_CANNOT},
};
TTC_FAMILY(matmul)
