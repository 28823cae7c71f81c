/* Family "linalg": factorizations and solves of (batches of) dense matrices.
 *
 * No plugin at hand has LAPACK, so LU (partial pivoting, as getrf), Householder QR (as geqrf) and the matrix exponential are loops
 * in StableHLO, one column a step over the whole batch [B, m, n]. Cholesky and triangular solves are StableHLO's own. Signs and
 * pivots are LAPACK's: largest |re| + |im|, the first on ties; reflectors with beta = -sign(alpha)·norm. */
#include "op/matrix.h"

/* -------------------------------------------------------------------------------------------------------------- LU */

typedef struct lu {
  ttc_val factors; /* [B, m, n]: U, and L below the diagonal */
  ttc_val pivots,
      order;    /* s32 [B, k]: row swapped at step i (from 0); s32 [B, m]: P^T as a permutation: row i of PA is A[order[i]] */
  ttc_val info; /* s32 [B]: 1 + first zero pivot, or 0 */
} lu;

/* |re| + |im| */
static ttc_val size_of(shlo *b, ttc_val x) {
  if (!ttc__is_complex(shlo_dtype(b, x))) {
    return shlo_1(b, SHLO_ABS, x);
  }
  return shlo_add(b, shlo_1(b, SHLO_ABS, shlo_1(b, SHLO_REAL, x)), shlo_1(b, SHLO_ABS, shlo_1(b, SHLO_IMAG, x)));
}

/* First row from k on with the largest element in column [B, m, 1]: s32 [B, 1, 1]. */
static ttc_val pivot_row(shlo *b, ttc_val column, ttc_val k) {
  const int rows = 1;
  int64_t m = shlo_dim(b, column, 1);
  ttc_val row = mat_place(b, 1, m, 1), size = size_of(b, column);
  size = shlo_select(b, shlo_compare(b, SHLO_GE, row, k), size, shlo_const_i(b, shlo_dtype(b, size), -1, 0, NULL));
  ttc_val most = shlo_unsqueeze(b, shlo_reduce(b, SHLO_AMAX, size, 1, &rows), 1);
  ttc_val at = shlo_select(b, shlo_compare(b, SHLO_EQ, size, most), row, mat_int_scalar(b, m));
  at = shlo_unsqueeze(b, shlo_reduce(b, SHLO_AMIN, at, 1, &rows), 1);
  return shlo_select(b, shlo_compare(b, SHLO_EQ, at, mat_int_scalar(b, m)), k, at); /* NaN: no swap */
}

/* Exchange rows k (the same everywhere) and p (s32 [B,1,1]) of x [B, m, n]; *top is the new row k. */
static ttc_val swap_rows(shlo *b, ttc_val x, ttc_val k, ttc_val p, ttc_val *top) {
  const int rows = 1;
  ttc_val row = mat_place(b, 1, shlo_dim(b, x, 1), 1), old = mat_line(b, x, 1, k), is_p = shlo_compare(b, SHLO_EQ, row, p);
  *top = shlo_unsqueeze(b, shlo_reduce(b, SHLO_SUM, shlo_select(b, is_p, x, mat_zero_of(b, x)), 1, &rows), 1);
  ttc_val is_k = shlo_compare(b, SHLO_EQ, row, k);
  return shlo_select(b, is_k, *top, shlo_select(b, is_p, old, x));
}

/* state: k, A [B,m,n], pivots [B,K], order [B,m,1], info [B] */
static void lu_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  (void)ctx;
  ttc_val k = s[0], top, order_top;
  int64_t m = shlo_dim(b, s[1], 1), n = shlo_dim(b, s[1], 2), count = shlo_dim(b, s[2], 1);
  ttc_val p = pivot_row(b, mat_line(b, s[1], 2, k), k), a = swap_rows(b, s[1], k, p, &top);
  ttc_val pivot = mat_line(b, top, 2, k), bad = shlo_compare(b, SHLO_EQ, pivot, mat_zero_of(b, pivot));
  ttc_val column = mat_line(b, a, 2, k), below = shlo_compare(b, SHLO_GT, mat_place(b, 1, m, 1), k);
  ttc_val factor = shlo_select(b, bad, column, shlo_div(b, column, shlo_select(b, bad, mat_one_of(b, pivot), pivot)));
  factor = shlo_select(b, below, factor, mat_zero_of(b, factor));
  ttc_val right = shlo_compare(b, SHLO_GT, mat_place(b, 2, 1, n), k), here = shlo_compare(b, SHLO_EQ, mat_place(b, 2, 1, n), k);
  ttc_val update = shlo_mul(b, factor, shlo_select(b, right, top, mat_zero_of(b, top)));
  a = shlo_select(b, shlo_2(b, SHLO_AND, here, below), factor, shlo_sub(b, a, update));
  ttc_val p1 = shlo_squeeze(b, p, 2), step = shlo_iota(b, TTC_S32, 1, 2, (const int64_t[2]){1, count});
  ttc_val bad1 = shlo_squeeze(b, shlo_squeeze(b, bad, 2), 1), first = shlo_compare(b, SHLO_EQ, s[4], mat_int_scalar(b, 0));
  out[0] = shlo_add(b, k, mat_int_scalar(b, 1));
  out[1] = a;
  out[2] = shlo_select(b, shlo_compare(b, SHLO_EQ, step, k), p1, s[2]);
  out[3] = swap_rows(b, s[3], k, p, &order_top);
  out[4] = shlo_select(b, shlo_2(b, SHLO_AND, bad1, first), out[0], s[4]);
}

static lu factor_lu(shlo *b, ttc_val a) {
  int64_t batch = shlo_dim(b, a, 0), m = shlo_dim(b, a, 1), n = shlo_dim(b, a, 2), count = m < n ? m : n;
  const int64_t piv[2] = {batch, count};
  ttc_val order = shlo_broadcast_to(b, mat_place(b, 1, m, 1), 3, (const int64_t[3]){batch, m, 1});
  ttc_val init[5] = {mat_int_scalar(b, 0), a, shlo_const_i(b, TTC_S32, 0, 2, piv), order, shlo_const_i(b, TTC_S32, 0, 1, &batch)};
  ttc_val done[5] = {init[0], init[1], init[2], init[3], init[4]};
  if (batch > 0 && count > 0) {
    shlo_while(b, 5, init, mat_below_count, lu_step, &count, done);
  }
  return (lu){done[1], done[2], shlo_squeeze(b, done[3], 2), done[4]};
}

/* x [B, m, n] with its rows taken in `order` s32 [B, m]. */
ttc_val ttc__permute_rows(shlo *b, ttc_val x, ttc_val order) {
  const shlo_gather_spec g = {.noffset = 1,
                              .offset_dims = {2},
                              .ncollapsed = 1,
                              .collapsed = {1},
                              .nbatch = 1,
                              .operand_batch = {0},
                              .index_batch = {0},
                              .nindex = 1,
                              .index_map = {1},
                              .index_vector_axis = 2,
                              .slice_sizes = {1, 1, shlo_dim(b, x, 2)}};
  return shlo_gather(b, x, shlo_unsqueeze(b, order, 2), &g);
}

/* The inverse of a permutation [B, m]: where each row went. */
static ttc_val invert_order(shlo *b, ttc_val order) {
  int64_t m = shlo_dim(b, order, 1);
  const int rows = 1;
  ttc_val hit = shlo_compare(b, SHLO_EQ, shlo_unsqueeze(b, order, 2), mat_place(b, 2, 1, m)); /* [B, i, j]: order[i] == j */
  return shlo_reduce(b, SHLO_SUM, shlo_select(b, hit, mat_place(b, 1, m, 1), mat_int_scalar(b, 0)), 1, &rows);
}

/* state: k, order [B, m, 1], pivots [B, K, 1] (from 1) */
static void order_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  (void)ctx;
  ttc_val top, p = shlo_sub(b, mat_line(b, s[2], 1, s[0]), mat_int_scalar(b, 1));
  out[0] = shlo_add(b, s[0], mat_int_scalar(b, 1));
  out[1] = swap_rows(b, s[1], s[0], p, &top);
  out[2] = s[2];
}

/* LAPACK's pivots (from 1) as a permutation of m rows. */
static ttc_val order_of_pivots(shlo *b, ttc_val pivots, int64_t m) {
  int64_t batch = shlo_dim(b, pivots, 0), count = shlo_dim(b, pivots, 1);
  ttc_val order = shlo_broadcast_to(b, mat_place(b, 1, m, 1), 3, (const int64_t[3]){batch, m, 1});
  ttc_val init[3] = {mat_int_scalar(b, 0), order, shlo_unsqueeze(b, pivots, 2)}, done[3] = {init[0], init[1], init[2]};
  if (batch > 0 && count > 0) {
    shlo_while(b, 3, init, mat_below_count, order_step, &count, done);
  }
  return shlo_squeeze(b, done[1], 2);
}

static ttc_val solve_triangle(shlo *b, ttc_val a, ttc_val rhs, bool left, bool lower, bool unit, bool adj) {
  return shlo_triangular_solve(b, a, rhs, left, lower, unit, adj, adj && ttc__is_complex(shlo_dtype(b, a)));
}

/* op(A) X = rhs, A = P^T... L U; op is the adjoint if adj. rhs [B, n, r]. */
static ttc_val solve_lu(shlo *b, ttc_val factors, ttc_val order, ttc_val rhs, bool adj) {
  if (!adj) {
    ttc_val y = solve_triangle(b, factors, ttc__permute_rows(b, rhs, order), true, true, true, false);
    return solve_triangle(b, factors, y, true, false, false, false);
  }
  ttc_val y = solve_triangle(b, factors, rhs, true, false, false, true);
  y = solve_triangle(b, factors, y, true, true, true, true);
  return ttc__permute_rows(b, y, invert_order(b, order));
}

static ttc_val from_one(shlo *b, ttc_val pivots) {
  return shlo_add(b, pivots, mat_int_scalar(b, 1));
}

/* check_errors raises by value, which a program cannot. */
static bool checks(ttc_lower *c, int i) {
  if (op_bool(c, i)) {
    op_refuse(c, "%s with check_errors is not lowered", op_name(c));
  }
  return op_bool(c, i);
}

/* aten::linalg_lu_factor_ex(A, *, pivot, check_errors) -> LU, pivots (from 1), info */
static void lower_lu_factor(shlo *b, ttc_lower *c) {
  if (checks(c, 2)) {
    return;
  }
  if (!op_bool(c, 1)) {
    op_refuse(c, "LU without pivoting is not lowered");
    return;
  }
  lu f = factor_lu(b, mat_batched(b, op_in(c, 0)));
  mat_ret(b, c, 0, f.factors);
  mat_ret(b, c, 1, from_one(b, f.pivots));
  mat_ret(b, c, 2, f.info);
}

/* L [B, m, k] with a unit diagonal, U [B, k, n], P [B, m, m] with A = P L U. */
static void unpack(shlo *b, ttc_lower *c, ttc_val factors, ttc_val order, bool data, bool perm) {
  int64_t batch = shlo_dim(b, factors, 0), m = shlo_dim(b, factors, 1), n = shlo_dim(b, factors, 2), k = m < n ? m : n;
  if (data) {
    ttc_val low = mat_keep_part(b, ttc__take_strided(b, factors, 2, 0, k, 1), MAT_STRICT_LOWER);
    ttc_val unit = shlo_compare(b, SHLO_EQ, mat_place(b, 1, m, k), mat_place(b, 2, m, k));
    mat_ret(b, c, 1, shlo_select(b, unit, mat_one_of(b, low), low));
    mat_ret(b, c, 2, mat_keep_part(b, ttc__take_strided(b, factors, 1, 0, k, 1), MAT_UPPER));
  } else {
    mat_ret_nothing(b, c, 1);
    mat_ret_nothing(b, c, 2);
  }
  if (perm) { /* column i of P has its 1 in row order[i] */
    ttc_val hit = shlo_compare(b, SHLO_EQ, mat_place(b, 1, m, 1), shlo_unsqueeze(b, order, 1));
    hit = shlo_broadcast_to(b, hit, 3, (const int64_t[3]){batch, m, m});
    mat_ret(b, c, 0, shlo_select(b, hit, mat_one_of(b, factors), mat_zero_of(b, factors)));
  } else {
    mat_ret_nothing(b, c, 0);
  }
}

/* aten::linalg_lu(A, *, pivot) -> P, L, U */
static void lower_lu(shlo *b, ttc_lower *c) {
  if (!op_bool(c, 1)) {
    op_refuse(c, "LU without pivoting is not lowered");
    return;
  }
  lu f = factor_lu(b, mat_batched(b, op_in(c, 0)));
  unpack(b, c, f.factors, f.order, true, true);
}

/* Pivots [.., k] as s32 [B, k]. */
static ttc_val flat_pivots(shlo *b, ttc_lower *c, int i) {
  int64_t k = op_in_dim(c, i, -1), n = shlo_nelem(b, op_in(c, i));
  return shlo_reshape(b, op_in_as(c, i, TTC_S32), 2, (const int64_t[2]){k > 0 ? n / k : 0, k});
}

/* aten::lu_unpack(LU_data, LU_pivots, unpack_data, unpack_pivots) -> P, L, U */
static void lower_lu_unpack(shlo *b, ttc_lower *c) {
  ttc_val factors = mat_batched(b, op_in(c, 0));
  bool perm = op_bool(c, 3);
  ttc_val order = perm ? order_of_pivots(b, flat_pivots(b, c, 1), shlo_dim(b, factors, 1)) : TTC_POISON;
  unpack(b, c, factors, order, op_bool(c, 2), perm);
}

/* x [.., m, n] broadcast to the batch of result k, then [B, m, n]. */
static ttc_val spread_batch(shlo *b, ttc_lower *c, ttc_val x, int k) {
  int64_t dims[TTC_MAX_NDIM];
  int nd = shlo_ndim(b, x), out = op_out_ndim(c, k);
  for (int a = 0; a < out; a++) {
    dims[a] = a < out - 2 ? op_out_sizes(c, k)[a] : shlo_dim(b, x, a - out + nd);
  }
  return mat_batched(b, shlo_broadcast_to(b, x, out, dims));
}

/* aten::linalg_lu_solve(LU, pivots, B, *, left, adjoint). X A = B is A^H X^H = B^H. */
static void lower_lu_solve(shlo *b, ttc_lower *c) {
  bool left = op_bool(c, 3), adj = op_bool(c, 4);
  ttc_val rhs = spread_batch(b, c, op_in(c, 2), 0);
  int64_t n = op_in_dim(c, 0, -1);
  ttc_val order = order_of_pivots(b, flat_pivots(b, c, 1), n);
  int64_t dims[TTC_MAX_NDIM];
  int nd = op_in_ndim(c, 1);
  for (int k = 0; k < nd; k++) {
    dims[k] = op_in_dim(c, 1, k);
  }
  order = shlo_unsqueeze(b, shlo_reshape(b, order, nd, dims), nd);
  order = shlo_squeeze(b, spread_batch(b, c, order, 0), 2);
  ttc_val factors = spread_batch(b, c, op_in(c, 0), 0);
  ttc_val x = left ? solve_lu(b, factors, order, rhs, adj) : mat_adjoint(b, solve_lu(b, factors, order, mat_adjoint(b, rhs), !adj));
  mat_ret(b, c, 0, x);
}

/* What PyTorch's own determinants factor: the transpose, where A is contiguous and real. The backward formulas count on it. */
static bool factors_transpose(ttc_lower *c) {
  return op_in_contiguous(c, 0) && !ttc__is_complex(op_in_dtype(c, 0));
}

/* sign of the permutation: -1 for each pivot that is not its own row. [B] in x's dtype. */
static ttc_val swap_sign(shlo *b, ttc_val x, ttc_val pivots) {
  const int last = 1;
  int64_t dims[TTC_MAX_NDIM];
  ttc__dims(b, pivots, dims);
  ttc_val own = shlo_iota(b, TTC_S32, 1, 2, dims), moved = shlo_convert(b, shlo_compare(b, SHLO_NE, pivots, own), TTC_S32);
  ttc_val odd = shlo_2(b, SHLO_AND, shlo_reduce(b, SHLO_SUM, moved, 1, &last), mat_int_scalar(b, 1));
  ttc_val one = mat_one_of(b, x);
  return shlo_select(b, shlo_compare(b, SHLO_EQ, odd, mat_int_scalar(b, 0)), one, shlo_1(b, SHLO_NEG, one));
}

/* aten::_linalg_det(A) -> result, LU, pivots;  _linalg_slogdet(A) -> sign, logabsdet, LU, pivots (param 1) */
static void lower_det(shlo *b, ttc_lower *c) {
  const int last = 1;
  ttc_val a = mat_batched(b, op_in(c, 0));
  lu f = factor_lu(b, factors_transpose(c) ? mat_transposed(b, a) : a);
  ttc_val d = mat_diagonal_of(b, f.factors), sign = swap_sign(b, d, f.pivots);
  int k = op_param(c);
  if (k) {
    ttc_val size = shlo_1(b, SHLO_ABS, d);  /* real, also of complex */
    ttc_val unit = shlo_1(b, SHLO_SIGN, d); /* of complex: d / |d| */
    mat_ret(b, c, 0, shlo_mul(b, sign, shlo_reduce(b, SHLO_PROD, unit, 1, &last)));
    mat_ret(b, c, 1, shlo_reduce(b, SHLO_SUM, shlo_1(b, SHLO_LOG, size), 1, &last));
  } else {
    mat_ret(b, c, 0, shlo_mul(b, sign, shlo_reduce(b, SHLO_PROD, d, 1, &last)));
  }
  mat_ret(b, c, k + 1, f.factors);
  mat_ret(b, c, k + 2, from_one(b, f.pivots));
}

/* aten::linalg_inv_ex(A, *, check_errors) -> inverse, info */
static void lower_inv(shlo *b, ttc_lower *c) {
  if (checks(c, 1)) {
    return;
  }
  ttc_val a = mat_batched(b, op_in(c, 0));
  lu f = factor_lu(b, a);
  mat_ret(b, c, 0, solve_lu(b, f.factors, f.order, mat_eye(b, a, shlo_dim(b, a, 0), shlo_dim(b, a, 1)), false));
  mat_ret(b, c, 1, f.info);
}

/* aten::_linalg_solve_ex(A, B, *, left, check_errors) -> result, LU, pivots, info. B is a batch of vectors if its shape is A's less
 * the last axis. */
static void lower_solve(shlo *b, ttc_lower *c) {
  if (checks(c, 3)) {
    return;
  }
  bool left = op_bool(c, 2);
  ttc_val a = mat_batched(b, op_in(c, 0)), rhs = op_in(c, 1);
  lu f = factor_lu(b, a);
  int nd = op_out_ndim(c, 0), na = op_in_ndim(c, 0);
  bool vector = op_in_ndim(c, 1) == 1 || (op_in_ndim(c, 1) == na - 1 && nd == na - 1);
  if (vector) {
    rhs = shlo_unsqueeze(b, rhs, op_in_ndim(c, 1));
  }
  int64_t dims[TTC_MAX_NDIM];
  int out = vector ? nd + 1 : nd, own = shlo_ndim(b, rhs);
  for (int k = 0; k < out; k++) {
    dims[k] = k < out - 2 ? op_out_sizes(c, 0)[k] : shlo_dim(b, rhs, k - out + own);
  }
  rhs = mat_batched(b, shlo_broadcast_to(b, rhs, out, dims));
  int64_t batch = shlo_dim(b, rhs, 0), have = shlo_dim(b, a, 0);
  ttc_val factors = f.factors, order = f.order;
  if (batch != have) { /* A's batch is broadcast */
    ttc_val wide = op_in(c, 0);
    int64_t n = shlo_dim(b, a, 1);
    for (int k = 0; k < out; k++) {
      dims[k] = k < out - 2 ? op_out_sizes(c, 0)[k] : n;
    }
    wide = shlo_reshape(b, factors, na, op_in_sizes(c, 0));
    factors = mat_batched(b, shlo_broadcast_to(b, wide, out, dims));
    dims[out - 2] = n;
    order = shlo_unsqueeze(b, shlo_reshape(b, order, na - 1, op_in_sizes(c, 0)), na - 1);
    dims[out - 1] = 1;
    order = shlo_squeeze(b, mat_batched(b, shlo_broadcast_to(b, order, out, dims)), 2);
  }
  ttc_val x =
      left ? solve_lu(b, factors, order, rhs, false) : mat_adjoint(b, solve_lu(b, factors, order, mat_adjoint(b, rhs), true));
  mat_ret(b, c, 0, x);
  mat_ret(b, c, 1, f.factors);
  mat_ret(b, c, 2, from_one(b, f.pivots));
  mat_ret(b, c, 3, f.info);
}

/* -------------------------------------------------------------------------------------- Cholesky, triangular systems */

/* state: k, A [B, n, n], info [B], n of steps wanted: columns as getf would do them, noting the first pivot that is not positive.
 */
static void minor_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  (void)ctx;
  int64_t n = shlo_dim(b, s[1], 1);
  ttc_val k = s[0], row = mat_line(b, s[1], 1, k), column = mat_line(b, s[1], 2, k), pivot = mat_line(b, row, 2, k);
  ttc_val real = ttc__is_complex(shlo_dtype(b, pivot)) ? shlo_1(b, SHLO_REAL, pivot) : pivot;
  ttc_val good = shlo_compare(b, SHLO_GT, real, mat_zero_of(b, real));
  ttc_val below = shlo_compare(b, SHLO_GT, mat_place(b, 1, n, 1), k);
  ttc_val factor = shlo_div(b, column, shlo_select(b, good, pivot, mat_one_of(b, pivot)));
  factor = shlo_select(b, below, factor, mat_zero_of(b, factor));
  ttc_val bad = shlo_1(b, SHLO_NOT, shlo_squeeze(b, shlo_squeeze(b, good, 2), 1));
  ttc_val first = shlo_2(b, SHLO_AND, bad, shlo_compare(b, SHLO_EQ, s[2], mat_int_scalar(b, 0)));
  out[0] = shlo_add(b, k, mat_int_scalar(b, 1));
  out[1] = shlo_sub(b, s[1], shlo_mul(b, factor, row));
  out[2] = shlo_select(b, first, out[0], s[2]);
  out[3] = s[3];
}

static void below_limit(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  (void)ctx;
  out[0] = shlo_compare(b, SHLO_LT, s[0], s[3]);
}

/* info: 1 + the first leading minor that is not positive, else 0. StableHLO answers such a matrix with NaN; only then is the loop
 * run. */
static ttc_val cholesky_info(shlo *b, ttc_val a, ttc_val factor) {
  const int all[3] = {0, 1, 2};
  int64_t batch = shlo_dim(b, a, 0), n = shlo_dim(b, a, 1);
  ttc_val failed = shlo_reduce(b, SHLO_ANY, shlo_is_nan(b, factor), 3, all);
  ttc_val steps = shlo_select(b, failed, mat_int_scalar(b, n), mat_int_scalar(b, 0));
  ttc_val init[4] = {mat_int_scalar(b, 0), a, shlo_const_i(b, TTC_S32, 0, 1, &batch), steps}, done[4];
  shlo_while(b, 4, init, below_limit, minor_step, NULL, done);
  return done[2];
}

/* aten::linalg_cholesky_ex(self, *, upper, check_errors) -> L, info */
static void lower_cholesky(shlo *b, ttc_lower *c) {
  if (checks(c, 2)) {
    return;
  }
  bool upper = op_bool(c, 1);
  ttc_val a = mat_batched(b, op_in(c, 0));
  int64_t batch = shlo_dim(b, a, 0), n = shlo_dim(b, a, 1);
  if (batch == 0 || n == 0) {
    mat_ret(b, c, 0, a);
    op_ret(c, 1, mat_int_scalar(b, 0));
    return;
  }
  a = mat_mirrored(b, a, upper);
  ttc_val factor = mat_keep_part(b, shlo_cholesky(b, a, true), MAT_LOWER);
  mat_ret(b, c, 0, upper ? mat_adjoint(b, factor) : factor);
  mat_ret(b, c, 1, cholesky_info(b, a, factor));
}

/* aten::_cholesky_solve_helper(self, A, upper): A = L L^H or U^H U. */
static void lower_cholesky_solve(shlo *b, ttc_lower *c) {
  bool upper = op_bool(c, 2);
  ttc_val a = spread_batch(b, c, op_in(c, 1), 0), rhs = spread_batch(b, c, op_in(c, 0), 0);
  ttc_val y = solve_triangle(b, a, rhs, true, !upper, false, upper);
  mat_ret(b, c, 0, solve_triangle(b, a, y, true, !upper, false, !upper));
}

/* aten::cholesky_inverse(self, upper) */
static void lower_cholesky_inverse(shlo *b, ttc_lower *c) {
  bool upper = op_bool(c, 1);
  ttc_val a = mat_batched(b, op_in(c, 0)), unit = mat_eye(b, a, shlo_dim(b, a, 0), shlo_dim(b, a, 1));
  ttc_val y = solve_triangle(b, a, unit, true, !upper, false, upper);
  mat_ret(b, c, 0, solve_triangle(b, a, y, true, !upper, false, !upper));
}

/* aten::linalg_solve_triangular(self, B, *, upper, left, unitriangular) */
static void lower_solve_triangular(shlo *b, ttc_lower *c) {
  ttc_val a = spread_batch(b, c, op_in(c, 0), 0), rhs = spread_batch(b, c, op_in(c, 1), 0);
  if (shlo_nelem(b, rhs) == 0) {
    mat_ret(b, c, 0, rhs);
    return;
  }
  mat_ret(b, c, 0, solve_triangle(b, a, rhs, op_bool(c, 3), !op_bool(c, 2), op_bool(c, 4), false));
}

/* aten::triangular_solve(self, A, upper, transpose, unitriangular) -> solution of A X = self, A (its batch broadcast) */
static void lower_triangular_solve(shlo *b, ttc_lower *c) {
  ttc_val a = spread_batch(b, c, op_in(c, 1), 1), rhs = spread_batch(b, c, op_in(c, 0), 0);
  ttc_val x =
      shlo_nelem(b, rhs) == 0 ? rhs : shlo_triangular_solve(b, a, rhs, true, !op_bool(c, 2), op_bool(c, 4), op_bool(c, 3), false);
  mat_ret(b, c, 0, x);
  mat_ret(b, c, 1, a);
}

/* -------------------------------------------------------------------------------------------------------------- QR */

/* Reflector of column k: v [B, m, 1] (0 above k, 1 at k), tau [B, 1, 1], beta [B, 1, 1], with H = I - tau v v^H, H^H x = beta e_k.
 */
void ttc__reflector(shlo *b, ttc_val column, ttc_val k, ttc_val *v, ttc_val *tau, ttc_val *beta) {
  const int rows = 1;
  int64_t m = shlo_dim(b, column, 1);
  ttc_dtype d = shlo_dtype(b, column);
  ttc_val row = mat_place(b, 1, m, 1), below = shlo_compare(b, SHLO_GT, row, k), here = shlo_compare(b, SHLO_EQ, row, k);
  ttc_val alpha = mat_line(b, column, 1, k), rest = shlo_select(b, below, column, mat_zero_of(b, column));
  ttc_val square = mat_real_part(b, shlo_mul(b, rest, mat_conjugate(b, rest)));
  ttc_val tail = shlo_unsqueeze(b, shlo_reduce(b, SHLO_SUM, square, 1, &rows), 1);
  ttc_val head = mat_real_part(b, shlo_mul(b, alpha, mat_conjugate(b, alpha))), re = mat_real_part(b, alpha),
          zero = mat_zero_of(b, re);
  ttc_val norm = shlo_1(b, SHLO_SQRT, shlo_add(b, head, tail));
  ttc_val signed_norm = shlo_select(b, shlo_compare(b, SHLO_GE, re, zero), shlo_1(b, SHLO_NEG, norm), norm);
  ttc_val trivial = shlo_compare(b, SHLO_EQ, tail, zero); /* nothing below: H = I, unless alpha is not real */
  if (ttc__is_complex(d)) {
    trivial = shlo_2(b, SHLO_AND, trivial, shlo_compare(b, SHLO_EQ, shlo_1(b, SHLO_IMAG, alpha), zero));
  }
  ttc_val bt = shlo_select(b, trivial, re, signed_norm), one = mat_one_of(b, alpha);
  *beta = mat_widen(b, bt, d);
  ttc_val safe = shlo_select(b, trivial, one, *beta), t = shlo_div(b, shlo_sub(b, *beta, alpha), safe);
  *tau = shlo_select(b, trivial, mat_zero_of(b, alpha), t);
  ttc_val scale = shlo_select(b, trivial, one, shlo_sub(b, alpha, *beta));
  *v = shlo_select(b, here, one, shlo_div(b, rest, scale));
}

/* x - tau v (v^H x), v [B, m, 1], x [B, m, n] */
ttc_val ttc__reflect_rows(shlo *b, ttc_val x, ttc_val v, ttc_val tau) {
  return shlo_sub(b, x, shlo_mul(b, shlo_mul(b, v, tau), mat_matmul(b, mat_adjoint(b, v), x)));
}

/* state: k, A [B, m, n] (R and the reflectors below it), taus [B, 1, K] */
static void qr_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  (void)ctx;
  ttc_val v, tau, beta, k = s[0];
  int64_t m = shlo_dim(b, s[1], 1), n = shlo_dim(b, s[1], 2), count = shlo_dim(b, s[2], 2);
  ttc__reflector(b, mat_line(b, s[1], 2, k), k, &v, &tau, &beta);
  ttc_val col = mat_place(b, 2, 1, n), row = mat_place(b, 1, m, 1), right = shlo_compare(b, SHLO_GT, col, k);
  ttc_val a = shlo_select(b, right, ttc__reflect_rows(b, s[1], v, mat_conjugate(b, tau)), s[1]);
  ttc_val kept = shlo_select(b, shlo_compare(b, SHLO_GT, row, k), v,
                             shlo_select(b, shlo_compare(b, SHLO_EQ, row, k), beta, mat_line(b, s[1], 2, k)));
  out[0] = shlo_add(b, k, mat_int_scalar(b, 1));
  out[1] = shlo_select(b, shlo_compare(b, SHLO_EQ, col, k), kept, a);
  out[2] = shlo_select(b, shlo_compare(b, SHLO_EQ, mat_place(b, 2, 1, count), k), tau, s[2]);
}

/* geqrf of a [B, m, n]: *factors as LAPACK's, *taus [B, 1, k]. */
void ttc__factor_qr(shlo *b, ttc_val a, ttc_val *factors, ttc_val *taus) {
  int64_t batch = shlo_dim(b, a, 0), m = shlo_dim(b, a, 1), n = shlo_dim(b, a, 2), count = m < n ? m : n;
  ttc_val zero = shlo_const_i(b, shlo_dtype(b, a), 0, 3, (const int64_t[3]){batch, 1, count});
  ttc_val init[3] = {mat_int_scalar(b, 0), a, zero}, done[3] = {init[0], a, zero};
  if (batch > 0 && count > 0) {
    shlo_while(b, 3, init, mat_below_count, qr_step, &count, done);
  }
  *factors = done[1];
  *taus = done[2];
}

/* state: steps left, X, factors, taus. One reflector applied from the left: ctx says which order and whether its adjoint. */
typedef struct apply_q {
  int64_t count;
  bool adj;
} apply_q;

static void apply_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  const apply_q *q = ctx;
  int64_t m = shlo_dim(b, s[2], 1);
  /* Q X needs the last reflector first, Q^H X the first. */
  ttc_val k = q->adj ? s[0] : shlo_sub(b, mat_int_scalar(b, q->count - 1), s[0]);
  ttc_val row = mat_place(b, 1, m, 1), column = mat_line(b, s[2], 2, k), tau = mat_line(b, s[3], 2, k);
  ttc_val v = shlo_select(b, shlo_compare(b, SHLO_GT, row, k), column,
                          shlo_select(b, shlo_compare(b, SHLO_EQ, row, k), mat_one_of(b, column), mat_zero_of(b, column)));
  out[0] = shlo_add(b, s[0], mat_int_scalar(b, 1));
  out[1] = ttc__reflect_rows(b, s[1], v, q->adj ? mat_conjugate(b, tau) : tau);
  out[2] = s[2];
  out[3] = s[3];
}

/* Q x or Q^H x for the reflectors in factors [B, m, >= K] and taus [B, 1, K]; x [B, m, r]. */
ttc_val ttc__times_q(shlo *b, ttc_val factors, ttc_val taus, ttc_val x, bool adj) {
  apply_q q = {shlo_dim(b, taus, 2), adj};
  ttc_val init[4] = {mat_int_scalar(b, 0), x, factors, taus}, done[4] = {init[0], x, factors, taus};
  if (q.count > 0 && shlo_nelem(b, x) > 0) {
    shlo_while(b, 4, init, mat_below_count, apply_step, &q, done);
  }
  return done[1];
}

/* aten::linalg_qr(A, mode) -> Q, R; mode "reduced", "complete" or "r" (no Q). */
static void lower_qr(shlo *b, ttc_lower *c) {
  ttc_val a = mat_batched(b, op_in(c, 0)), factors, taus;
  int64_t batch = shlo_dim(b, a, 0), m = shlo_dim(b, a, 1), n = shlo_dim(b, a, 2), k = m < n ? m : n;
  bool complete = op_str_is(c, 1, "complete");
  ttc__factor_qr(b, a, &factors, &taus);
  int64_t width = complete ? m : k;
  if (op_str_is(c, 1, "r")) {
    mat_ret_nothing(b, c, 0);
  } else {
    mat_ret(b, c, 0, ttc__times_q(b, factors, taus, mat_eye_columns(b, a, batch, m, width), false));
  }
  mat_ret(b, c, 1, mat_keep_part(b, ttc__take_strided(b, factors, 1, 0, width, 1), MAT_UPPER));
}

/* aten::geqrf(self) -> a, tau */
static void lower_geqrf(shlo *b, ttc_lower *c) {
  ttc_val factors, taus;
  ttc__factor_qr(b, mat_batched(b, op_in(c, 0)), &factors, &taus);
  mat_ret(b, c, 0, factors);
  mat_ret(b, c, 1, taus);
}

static ttc_status infer_geqrf(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  const ttc_arg *a = call->args;
  if (call->narg < 1 || max < 2 || a[0].kind != TTC_ARG_TENSOR || a[0].tensor->ndim < 2) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "torch.geqrf: input must have at least 2 dimensions.");
  }
  const ttc_tensor *t = a[0].tensor;
  int nd = t->ndim;
  int64_t m = t->sizes[nd - 2], n = t->sizes[nd - 1];
  specs[0] = (ttc_spec){.dtype = (ttc_dtype)t->dtype, .ndim = nd};
  specs[1] = (ttc_spec){.dtype = (ttc_dtype)t->dtype, .ndim = nd - 1};
  for (int k = 0; k < nd; k++) {
    specs[0].sizes[k] = t->sizes[k];
    specs[1].sizes[k] = t->sizes[k];
  }
  specs[1].sizes[nd - 2] = m < n ? m : n;
  ttc__dense_strides(nd, specs[0].sizes, specs[0].strides);
  ttc__dense_strides(nd - 1, specs[1].sizes, specs[1].strides);
  *nout = 2;
  return TTC_OK;
}

/* tau [.., k] -> [B, 1, k] */
static ttc_val flat_taus(shlo *b, ttc_lower *c, int i, int64_t batch) {
  return shlo_reshape(b, op_in(c, i), 3, (const int64_t[3]){batch, 1, op_in_dim(c, i, -1)});
}

/* aten::linalg_householder_product(input, tau): the first n columns of Q. */
static void lower_householder(shlo *b, ttc_lower *c) {
  ttc_val a = mat_batched(b, op_in(c, 0));
  int64_t batch = shlo_dim(b, a, 0), m = shlo_dim(b, a, 1), n = shlo_dim(b, a, 2);
  mat_ret(b, c, 0, ttc__times_q(b, a, flat_taus(b, c, 1, batch), mat_eye_columns(b, a, batch, m, n), false));
}

/* aten::ormqr(self, input2 (tau), input3 (other), left, transpose): op(Q) other or other op(Q). */
static void lower_ormqr(shlo *b, ttc_lower *c) {
  ttc_val a = mat_batched(b, op_in(c, 0)), x = mat_batched(b, op_in(c, 2));
  bool left = op_bool(c, 3), adj = op_bool(c, 4);
  ttc_val taus = flat_taus(b, c, 1, shlo_dim(b, a, 0));
  mat_ret(b, c, 0, left ? ttc__times_q(b, a, taus, x, adj) : mat_adjoint(b, ttc__times_q(b, a, taus, mat_adjoint(b, x), !adj)));
}

/* ----------------------------------------------------------------------------------------------------- exponential */

/* state: squarings done, squarings wanted by the batch's worst, X [B, n, n], squarings wanted [B, 1, 1] */
static void below_wanted(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  (void)ctx;
  out[0] = shlo_compare(b, SHLO_LT, s[0], s[1]);
}

static void square_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  (void)ctx;
  out[0] = shlo_add(b, s[0], mat_int_scalar(b, 1));
  out[1] = s[1];
  out[2] = shlo_select(b, shlo_compare(b, SHLO_LT, s[0], s[3]), mat_matmul(b, s[2], s[2]), s[2]);
  out[3] = s[3];
}

/* aten::linalg_matrix_exp: scale by 2^-s until the 1-norm is at most 1, Taylor to degree 18 (error below f64's epsilon), square s
 * times. */
static void lower_matrix_exp(shlo *b, ttc_lower *c) {
  enum { DEGREE = 18, MOST = 1024 };
  const int rows = 1, cols = 1, all[3] = {0, 1, 2};
  ttc_val a = mat_batched(b, op_in(c, 0));
  int64_t batch = shlo_dim(b, a, 0), n = shlo_dim(b, a, 1);
  if (batch * n == 0) {
    mat_ret(b, c, 0, a);
    return;
  }
  ttc_dtype d = shlo_dtype(b, a), r = ttc__dtype_real(d);
  ttc_val norm = shlo_reduce(b, SHLO_AMAX, shlo_reduce(b, SHLO_SUM, shlo_1(b, SHLO_ABS, a), 1, &rows), 1, &cols); /* [B] */
  ttc_val two = shlo_const_f(b, r, 0.69314718055994530942, 0, NULL);
  ttc_val s = shlo_1(b, SHLO_CEIL, shlo_div(b, shlo_1(b, SHLO_LOG, norm), two));
  s = shlo_clamp(b, shlo_const_f(b, r, 0, 0, NULL), s, shlo_const_f(b, r, MOST, 0, NULL));
  s = shlo_reshape(b, s, 3, (const int64_t[3]){batch, 1, 1});
  ttc_val scale = shlo_1(b, SHLO_EXP, shlo_1(b, SHLO_NEG, shlo_mul(b, s, two)));
  ttc_val x = shlo_mul(b, a, mat_widen(b, scale, d)), unit = mat_eye(b, a, batch, n), sum = unit;
  for (int k = DEGREE; k >= 1; k--) { /* Horner: I + x/1 (I + x/2 (I + ..)) */
    ttc_val term = mat_matmul(b, x, sum);
    sum = shlo_add(b, unit, shlo_mul(b, term, shlo_const_f(b, d, 1.0 / k, 0, NULL)));
  }
  ttc_val wanted = shlo_convert(b, s, TTC_S32), most = shlo_reduce(b, SHLO_AMAX, wanted, 3, all);
  ttc_val init[4] = {mat_int_scalar(b, 0), most, sum, wanted}, done[4];
  shlo_while(b, 4, init, below_wanted, square_step, NULL, done);
  mat_ret(b, c, 0, done[2]);
}

const ttc_op_row ttc__linalg_rows[] = {
    {"linalg_lu_factor_ex", lower_lu_factor, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"linalg_lu", lower_lu, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"lu_unpack", lower_lu_unpack, 0, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"linalg_lu_solve", lower_lu_solve, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"_linalg_det", lower_det, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"_linalg_slogdet", lower_det, 1, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"linalg_inv_ex", lower_inv, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"_linalg_solve_ex", lower_solve, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"linalg_cholesky_ex", lower_cholesky, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"_cholesky_solve_helper", lower_cholesky_solve, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"cholesky_inverse", lower_cholesky_inverse, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"linalg_solve_triangular", lower_solve_triangular, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"triangular_solve", lower_triangular_solve, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"linalg_qr", lower_qr, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"geqrf", lower_geqrf, 0, TOL_LOOSE, TTC_OP_NO_META, 0, infer_geqrf, NULL, 0, PAD_CANNOT},
    {"linalg_householder_product", lower_householder, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"ormqr", lower_ormqr, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"linalg_matrix_exp", lower_matrix_exp, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
};
TTC_FAMILY(linalg)
