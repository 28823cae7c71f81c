/* Family "eigen": eigenvalues and singular values of (batches of) dense matrices.
 *
 * Hermitian matrices and singular values by Jacobi's method (Golub and Van Loan, Matrix Computations, 8.5 and 8.6.4): every step
 * turns n/2 pairs of axes at once, so a sweep is n - 1 steps of whole-array work. Others by Francis' QR iteration with single
 * complex shifts on a Hessenberg matrix (7.4, 7.5). All are loops over the whole batch [B, n, n]. Vectors have no sign or phase of
 * their own: where PyTorch's CPU has LAPACK's, these have others. */
#include <float.h>
#include <math.h>

#include "op/matrix.h"

enum { MOST_SWEEPS = 30 };

static double epsilon(ttc_dtype d) {
  return ttc__dtype_real(d) == TTC_F64 ? DBL_EPSILON : FLT_EPSILON;
}
static ttc_val real_const(shlo *b, ttc_val like, double v) {
  return shlo_const_f(b, ttc__dtype_real(shlo_dtype(b, like)), v, 0, NULL);
}
static ttc_val square_of(shlo *b, ttc_val x) { /* |x|² */
  return mat_real_part(b, shlo_mul(b, x, mat_conjugate(b, x)));
}
/* [B, ..] -> the sum over axes 1 and 2, or 1: [B, 1, 1], [B, 1, n] */
static ttc_val sum_all(shlo *b, ttc_val x) {
  const int axes[2] = {1, 2};
  return shlo_reshape(b, shlo_reduce(b, SHLO_SUM, x, 2, axes), 3, (const int64_t[3]){shlo_dim(b, x, 0), 1, 1});
}
static ttc_val sum_columns(shlo *b, ttc_val x) {
  const int rows = 1;
  return shlo_unsqueeze(b, shlo_reduce(b, SHLO_SUM, x, 1, &rows), 1);
}
/* A power of the matrix's size to divide by, so that squares neither overflow nor vanish: [B, 1, 1], 1 for 0 and for what is not
 * finite. */
static ttc_val scale_of(shlo *b, ttc_val a) {
  const int axes[2] = {1, 2};
  ttc_val most = shlo_reduce(b, SHLO_AMAX, shlo_1(b, SHLO_ABS, a), 2, axes), zero = real_const(b, a, 0);
  ttc_val fine = shlo_2(b, SHLO_AND, shlo_1(b, SHLO_IS_FINITE, most), shlo_compare(b, SHLO_GT, most, zero));
  most = shlo_select(b, fine, most, real_const(b, a, 1));
  return shlo_reshape(b, most, 3, (const int64_t[3]){shlo_dim(b, a, 0), 1, 1});
}
static ttc_val times_real(shlo *b, ttc_val x, ttc_val r) {
  return shlo_mul(b, x, mat_widen(b, r, shlo_dtype(b, x)));
}
static ttc_val over_real(shlo *b, ttc_val x, ttc_val r) {
  return shlo_div(b, x, mat_widen(b, r, shlo_dtype(b, x)));
}
static ttc_val count_up(shlo *b, ttc_val k) {
  return shlo_add(b, k, mat_int_scalar(b, 1));
}

/* ---------------------------------------------------------------------------------------------------------- rotations */

/* Pairs of axes (k, k + n/2). p' = c p - s q·conj(e), q' = s p + c q·conj(e) makes the pair's 2 x 2 matrix [x, z; conj(z), y]
 * diagonal; c, s real, e the phase of z. All [B, n/2]. */
typedef struct turn {
  ttc_val c, s, e;
} turn;

static turn turn_for(shlo *b, ttc_val x, ttc_val y, ttc_val z, ttc_val wanted) {
  ttc_val size = shlo_1(b, SHLO_ABS, z), one = mat_one_of(b, size), zero = mat_zero_of(b, size), two = real_const(b, size, 2);
  ttc_val safe = shlo_select(b, wanted, size, one), tau = shlo_div(b, shlo_sub(b, y, x), shlo_mul(b, two, safe));
  ttc_val root = shlo_1(b, SHLO_SQRT, shlo_add(b, one, shlo_mul(b, tau, tau)));
  ttc_val t = shlo_div(b, one, shlo_add(b, shlo_1(b, SHLO_ABS, tau), root));
  t = shlo_select(b, shlo_compare(b, SHLO_LT, tau, zero), shlo_1(b, SHLO_NEG, t), t);
  t = shlo_select(b, wanted, t, zero);
  turn r;
  r.c = shlo_div(b, one, shlo_1(b, SHLO_SQRT, shlo_add(b, one, shlo_mul(b, t, t))));
  r.s = shlo_mul(b, t, r.c);
  r.e = shlo_select(b, wanted, over_real(b, z, safe), mat_one_of(b, z));
  return r;
}

/* Turn the pairs of rows (axis 1: by the conjugate phase) or columns (axis 2) of x [B, m, n], and move all but the first one place
 * on around the circle, so that n - 1 steps pair everything with everything and end where they began. */
static ttc_val apply_turn(shlo *b, ttc_val x, int axis, turn r) {
  int64_t h = shlo_dim(b, x, axis) / 2;
  ttc_dtype d = shlo_dtype(b, x);
  ttc_val c = shlo_unsqueeze(b, mat_widen(b, r.c, d), 3 - axis), s = shlo_unsqueeze(b, mat_widen(b, r.s, d), 3 - axis);
  ttc_val e = shlo_unsqueeze(b, axis == 1 ? r.e : mat_conjugate(b, r.e), 3 - axis);
  ttc_val p = shlo_slice_axis(b, x, axis, 0, h), q = shlo_mul(b, shlo_slice_axis(b, x, axis, h, 2 * h), e);
  ttc_val u = shlo_sub(b, shlo_mul(b, c, p), shlo_mul(b, s, q)), v = shlo_add(b, shlo_mul(b, s, p), shlo_mul(b, c, q));
  if (h == 1) {
    return shlo_concat(b, 2, (const ttc_val[2]){u, v}, axis);
  }
  const ttc_val parts[5] = {shlo_slice_axis(b, u, axis, 0, 1), shlo_slice_axis(b, v, axis, 0, 1),
                            shlo_slice_axis(b, u, axis, 1, h - 1), shlo_slice_axis(b, v, axis, 1, h),
                            shlo_slice_axis(b, u, axis, h - 1, h)};
  return h == 2 ? shlo_concat(b, 4, (const ttc_val[4]){parts[0], parts[1], parts[3], parts[4]}, axis)
                : shlo_concat(b, 5, parts, axis);
}

/* Rows and columns of zeros up to an even size. */
static ttc_val even(shlo *b, ttc_val x, bool rows) {
  int64_t n = shlo_dim(b, x, 2), odd = n % 2;
  if (odd) {
    x = ttc__pad_axis(b, x, 2, mat_zero_of(b, x), 0, 1, 0);
    x = rows ? ttc__pad_axis(b, x, 1, mat_zero_of(b, x), 0, 1, 0) : x;
  }
  return x;
}

/* s32 [B, n]: the places of v [B, n] in rising or falling order. */
static ttc_val order_of(shlo *b, ttc_val v, bool falling) {
  int64_t dims[TTC_MAX_NDIM];
  ttc__dims(b, v, dims);
  ttc_val in[2] = {v, shlo_iota(b, TTC_S32, 1, 2, dims)}, out[2];
  shlo_sort(b, 2, in, 1, falling, out);
  return out[1];
}
static ttc_val take_columns(shlo *b, ttc_val x, ttc_val order) {
  return mat_transposed(b, ttc__permute_rows(b, mat_transposed(b, x), order));
}
static ttc_val take(shlo *b, ttc_val v, ttc_val order) { /* of a vector [B, n] */
  return shlo_squeeze(b, ttc__permute_rows(b, shlo_unsqueeze(b, v, 2), order), 2);
}

/* ---------------------------------------------------------------------------------------------------------- Hermitian */

typedef struct sweep {
  int64_t n;
  double tolerance;
} sweep;

static void in_sweep(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  out[0] = shlo_compare(b, SHLO_LT, s[0], mat_int_scalar(b, ((const sweep *)ctx)->n - 1));
}

/* state: step, A [B, n, n], V [B, n, n] */
static void eigh_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  int64_t h = ((const sweep *)ctx)->n / 2;
  ttc_val top = shlo_slice_axis(b, s[1], 1, 0, h), low = shlo_slice_axis(b, s[1], 1, h, 2 * h);
  ttc_val x = mat_real_part(b, mat_diagonal_of(b, shlo_slice_axis(b, top, 2, 0, h)));
  ttc_val z = mat_diagonal_of(b, shlo_slice_axis(b, top, 2, h, 2 * h));
  ttc_val y = mat_real_part(b, mat_diagonal_of(b, shlo_slice_axis(b, low, 2, h, 2 * h)));
  ttc_val size = shlo_1(b, SHLO_ABS, z);
  turn r = turn_for(b, x, y, z, shlo_compare(b, SHLO_GT, size, mat_zero_of(b, size)));
  out[0] = count_up(b, s[0]);
  out[1] = apply_turn(b, apply_turn(b, s[1], 1, r), 2, r);
  out[2] = apply_turn(b, s[2], 2, r);
}

/* state: sweep, A, V. Goes on while some matrix has more off its diagonal than rounding leaves there. */
static void eigh_more(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  const int axes[3] = {0, 1, 2};
  int64_t n = ((const sweep *)ctx)->n;
  ttc_val square = square_of(b, s[1]), on = shlo_compare(b, SHLO_EQ, mat_place(b, 1, n, n), mat_place(b, 2, n, n));
  ttc_val off = sum_all(b, shlo_select(b, on, mat_zero_of(b, square), square)), all = sum_all(b, square);
  double tol = ((const sweep *)ctx)->tolerance;
  ttc_val big = shlo_compare(b, SHLO_GT, off, shlo_mul(b, all, real_const(b, all, tol * tol)));
  out[0] =
      shlo_2(b, SHLO_AND, shlo_reduce(b, SHLO_ANY, big, 3, axes), shlo_compare(b, SHLO_LT, s[0], mat_int_scalar(b, MOST_SWEEPS)));
}
static void eigh_sweep(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  ttc_val init[3] = {mat_int_scalar(b, 0), s[1], s[2]}, done[3];
  shlo_while(b, 3, init, in_sweep, eigh_step, ctx, done);
  out[0] = count_up(b, s[0]);
  out[1] = done[1];
  out[2] = done[2];
}

/* aten::_linalg_eigh(A, UPLO, compute_v) -> eigenvalues (rising), eigenvectors */
static void lower_eigh(shlo *b, ttc_lower *c) {
  ttc_val a = mat_batched(b, op_in(c, 0));
  int64_t batch = shlo_dim(b, a, 0), n = shlo_dim(b, a, 1);
  ttc_dtype d = shlo_dtype(b, a);
  if (batch * n == 0) {
    mat_ret_nothing(b, c, 0);
    mat_ret_nothing(b, c, 1);
    return;
  }
  a = mat_mirrored(b, a, op_str_is(c, 1, "U") || op_str_is(c, 1, "u"));
  ttc_val scale = scale_of(b, a), size = shlo_reshape(b, scale, 2, (const int64_t[2]){batch, 1});
  a = even(b, over_real(b, a, scale), true);
  sweep job = {.n = shlo_dim(b, a, 1), .tolerance = epsilon(d)};
  ttc_val init[3] = {mat_int_scalar(b, 0), a, mat_eye(b, a, batch, job.n)}, done[3] = {init[0], init[1], init[2]};
  if (n > 1) {
    shlo_while(b, 3, init, eigh_more, eigh_sweep, &job, done);
  }
  ttc_val w = shlo_slice_axis(b, mat_real_part(b, mat_diagonal_of(b, done[1])), 1, 0, n), order = order_of(b, w, false);
  mat_ret(b, c, 0, shlo_mul(b, take(b, w, order), size));
  if (op_bool(c, 2)) {
    ttc_val v = ttc__take_strided(b, ttc__take_strided(b, done[2], 1, 0, n, 1), 2, 0, n, 1);
    mat_ret(b, c, 1, take_columns(b, v, order));
  } else {
    mat_ret_nothing(b, c, 1);
  }
}

/* ----------------------------------------------------------------------------------------------------- singular values */

/* One-sided: columns of W are turned until each pair is orthogonal, to rounding and relative to their own lengths, which keeps
 * small singular values accurate.        state: step, W [B, m, n], V [B, n, n], the pair furthest from orthogonal */
static void svd_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  const sweep *job = ctx;
  const int rows = 1, all[2] = {0, 1};
  int64_t h = job->n / 2;
  ttc_val p = shlo_slice_axis(b, s[1], 2, 0, h), q = shlo_slice_axis(b, s[1], 2, h, 2 * h);
  ttc_val x = shlo_reduce(b, SHLO_SUM, square_of(b, p), 1, &rows), y = shlo_reduce(b, SHLO_SUM, square_of(b, q), 1, &rows);
  ttc_val z = shlo_reduce(b, SHLO_SUM, shlo_mul(b, mat_conjugate(b, p), q), 1, &rows);
  ttc_val length = shlo_mul(b, shlo_1(b, SHLO_SQRT, x), shlo_1(b, SHLO_SQRT, y)), zero = mat_zero_of(b, length);
  ttc_val some = shlo_compare(b, SHLO_GT, length, zero);
  ttc_val cosine = shlo_div(b, shlo_1(b, SHLO_ABS, z), shlo_select(b, some, length, mat_one_of(b, length)));
  turn r = turn_for(b, x, y, z, shlo_compare(b, SHLO_GT, cosine, real_const(b, cosine, job->tolerance)));
  out[0] = count_up(b, s[0]);
  out[1] = apply_turn(b, s[1], 2, r);
  out[2] = apply_turn(b, s[2], 2, r);
  out[3] = shlo_2(b, SHLO_MAX, s[3], shlo_reduce(b, SHLO_AMAX, cosine, 2, all));
}

/* state: sweep, W, V, the last sweep's worst */
static void svd_more(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  ttc_val big = shlo_compare(b, SHLO_GT, s[3], real_const(b, s[3], ((const sweep *)ctx)->tolerance));
  out[0] = shlo_2(b, SHLO_AND, big, shlo_compare(b, SHLO_LT, s[0], mat_int_scalar(b, MOST_SWEEPS)));
}
static void svd_sweep(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  ttc_val init[4] = {mat_int_scalar(b, 0), s[1], s[2], mat_zero_of(b, s[3])}, done[4];
  shlo_while(b, 4, init, in_sweep, svd_step, ctx, done);
  out[0] = count_up(b, s[0]);
  for (int k = 1; k < 4; k++) {
    out[k] = done[k];
  }
}

/* R^H [B, n, n] = U diag(sigma) V^H: *u with orthonormal columns also where sigma is 0, *sigma [B, n] falling. */
static void square_svd(shlo *b, ttc_val r, ttc_val *u, ttc_val *sigma, ttc_val *v) {
  int64_t batch = shlo_dim(b, r, 0), n = shlo_dim(b, r, 2);
  double spread = sqrt((double)n);
  ttc_val w = even(b, r, false);
  sweep job = {.n = shlo_dim(b, w, 2), .tolerance = epsilon(shlo_dtype(b, r)) * (spread > 4 ? spread : 4)};
  ttc_val init[4] = {mat_int_scalar(b, 0), w, mat_eye(b, w, batch, job.n), real_const(b, w, 1)};
  ttc_val done[4] = {init[0], init[1], init[2], init[3]};
  if (n > 1) {
    shlo_while(b, 4, init, svd_more, svd_sweep, &job, done);
  }
  w = shlo_slice_axis(b, done[1], 2, 0, n);
  ttc_val length = shlo_squeeze(b, shlo_1(b, SHLO_SQRT, sum_columns(b, square_of(b, w))), 1), order = order_of(b, length, true);
  *sigma = take(b, length, order);
  *v = take_columns(b, shlo_slice_axis(b, shlo_slice_axis(b, done[2], 1, 0, n), 2, 0, n), order);
  w = take_columns(b, w, order);
  ttc_val s = shlo_unsqueeze(b, *sigma, 1), some = shlo_compare(b, SHLO_GT, s, mat_zero_of(b, s));
  w = over_real(b, w, shlo_select(b, some, s, mat_one_of(b, s)));
  /* Columns of zeros come last: an orthonormal completion of those before them is what Householder's Q has there. */
  ttc_val factors, taus;
  ttc__factor_qr(b, w, &factors, &taus);
  ttc_val full = ttc__times_q(b, factors, taus, mat_eye(b, w, batch, n), false);
  *u = shlo_select(b, some, w, full);
}

/* aten::_linalg_svd(A, full_matrices, compute_uv, driver) -> U, S (falling), Vh.  A, or its adjoint where it is wide, is Q R, and
 * R^H is what is turned: it converges faster, and Q's reflectors give the full U. */
static void lower_svd(shlo *b, ttc_lower *c) {
  ttc_val a = mat_batched(b, op_in(c, 0)), factors, taus, u, v, sigma;
  int64_t batch = shlo_dim(b, a, 0), rows = shlo_dim(b, a, 1), columns = shlo_dim(b, a, 2);
  bool wide = rows < columns, full = op_bool(c, 1), vectors = op_bool(c, 2);
  int64_t m = wide ? columns : rows, n = wide ? rows : columns;
  if (batch * n == 0) {
    mat_ret_nothing(b, c, 1);
    for (int k = 0; k < 3; k += 2) { /* full matrices of an empty one are unit matrices */
      int nd = op_out_ndim(c, k);
      bool unit = vectors && full && nd >= 2 && batch > 0;
      if (unit) {
        mat_ret(b, c, k, mat_eye(b, a, batch, op_out_sizes(c, k)[nd - 1]));
      } else {
        mat_ret_nothing(b, c, k);
      }
    }
    return;
  }
  ttc_val scale = scale_of(b, a);
  a = over_real(b, wide ? mat_adjoint(b, a) : a, scale);
  ttc__factor_qr(b, a, &factors, &taus);
  ttc_val r = mat_keep_part(b, ttc__take_strided(b, factors, 1, 0, n, 1), MAT_UPPER);
  square_svd(b, mat_adjoint(b, r), &v, &sigma, &u); /* R^H = v sigma u^H, R = u sigma v^H */
  mat_ret(b, c, 1, shlo_mul(b, sigma, shlo_reshape(b, scale, 2, (const int64_t[2]){batch, 1})));
  if (!vectors) {
    mat_ret_nothing(b, c, 0);
    mat_ret_nothing(b, c, 2);
    return;
  }
  u = ttc__pad_axis(b, u, 1, mat_zero_of(b, u), 0, m - n, 0);
  if (full && m > n) { /* [u, 0; 0, 1] */
    ttc_val rest = ttc__take_strided(b, mat_eye(b, u, batch, m), 2, n, m - n, 1);
    u = shlo_concat(b, 2, (const ttc_val[2]){u, rest}, 2);
  }
  u = ttc__times_q(b, factors, taus, u, false);
  mat_ret(b, c, 0, wide ? v : u);
  mat_ret(b, c, 2, mat_adjoint(b, wide ? u : v));
}

/* ------------------------------------------------------------------------------------------------------ any matrix: Schur */

/* state: k, A [B, n, n], Q [B, n, n]: column k's part below the subdiagonal is reflected away. */
static void hessenberg_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  (void)ctx;
  ttc_val v, tau, beta;
  out[0] = count_up(b, s[0]);
  ttc__reflector(b, mat_line(b, s[1], 2, s[0]), out[0], &v, &tau, &beta);
  ttc_val a = ttc__reflect_rows(b, s[1], v, mat_conjugate(b, tau)), outer = shlo_mul(b, tau, mat_adjoint(b, v));
  int64_t n = shlo_dim(b, a, 1);
  a = shlo_sub(b, a, shlo_mul(b, mat_matmul(b, a, v), outer));
  ttc_val gone = shlo_2(b, SHLO_AND, shlo_compare(b, SHLO_GT, mat_place(b, 1, n, 1), out[0]),
                        shlo_compare(b, SHLO_EQ, mat_place(b, 2, 1, n), s[0]));
  out[1] = shlo_select(b, gone, mat_zero_of(b, a), a);
  out[2] = shlo_sub(b, s[2], shlo_mul(b, mat_matmul(b, s[2], v), outer));
}

/* The active block of each matrix: rows lo..hi, s32 [B, 1, 1]; hi = 0: done. */
typedef struct block {
  ttc_val lo, hi;
} block;

/* Subdiagonal elements that rounding would hide beside their neighbours become 0. */
static ttc_val deflated(shlo *b, ttc_val a) {
  int64_t n = shlo_dim(b, a, 1);
  double eps = epsilon(shlo_dtype(b, a));
  ttc_val size = shlo_1(b, SHLO_ABS, mat_diagonal_of(b, a)); /* [B, n] */
  ttc_val up = shlo_unsqueeze(b, size, 1), left = shlo_unsqueeze(b, size, 2);
  ttc_val below = shlo_compare(b, SHLO_EQ, mat_place(b, 1, n, n), count_up(b, mat_place(b, 2, n, n)));
  ttc_val near = shlo_mul(b, shlo_add(b, up, left), real_const(b, a, eps));
  ttc_val tiny = shlo_compare(b, SHLO_LE, shlo_1(b, SHLO_ABS, a), near);
  return shlo_select(b, shlo_2(b, SHLO_AND, below, tiny), mat_zero_of(b, a), a);
}

static block active(shlo *b, ttc_val a) {
  int64_t n = shlo_dim(b, a, 1), batch = shlo_dim(b, a, 0);
  const int axes[2] = {1, 2};
  const int64_t one[3] = {batch, 1, 1};
  ttc_val row = mat_place(b, 1, n, n), below = shlo_compare(b, SHLO_EQ, row, count_up(b, mat_place(b, 2, n, n)));
  ttc_val live = shlo_2(b, SHLO_AND, below, shlo_compare(b, SHLO_NE, a, mat_zero_of(b, a))), none = mat_int_scalar(b, 0);
  block k;
  k.hi = shlo_reshape(b, shlo_reduce(b, SHLO_AMAX, shlo_select(b, live, row, none), 2, axes), 3, one);
  ttc_val dead = shlo_2(b, SHLO_AND, below, shlo_compare(b, SHLO_EQ, a, mat_zero_of(b, a)));
  dead = shlo_2(b, SHLO_AND, dead, shlo_compare(b, SHLO_LE, row, k.hi));
  k.lo = shlo_reshape(b, shlo_reduce(b, SHLO_AMAX, shlo_select(b, dead, row, none), 2, axes), 3, one);
  return k;
}

/* Element (i, j) of each matrix, i and j s32 [B, 1, 1]. */
static ttc_val element(shlo *b, ttc_val a, ttc_val i, ttc_val j) {
  int64_t n = shlo_dim(b, a, 1);
  ttc_val hit =
      shlo_2(b, SHLO_AND, shlo_compare(b, SHLO_EQ, mat_place(b, 1, n, n), i), shlo_compare(b, SHLO_EQ, mat_place(b, 2, n, n), j));
  return sum_all(b, shlo_select(b, hit, a, mat_zero_of(b, a)));
}

/* Wilkinson's shift: of the trailing 2 x 2 block [p, q; r, s], the eigenvalue nearer to s. Every tenth time another, for matrices
 * that it maps to themselves. */
static ttc_val shift_of(shlo *b, ttc_val a, block k, ttc_val iteration) {
  ttc_val one = mat_int_scalar(b, 1), before = shlo_sub(b, k.hi, one);
  ttc_val p = element(b, a, before, before), q = element(b, a, before, k.hi);
  ttc_val r = element(b, a, k.hi, before), s = element(b, a, k.hi, k.hi);
  ttc_val half = shlo_const_f(b, shlo_dtype(b, a), 0.5, 0, NULL), zero = mat_zero_of(b, a);
  ttc_val d = shlo_mul(b, shlo_sub(b, p, s), half), product = shlo_mul(b, q, r);
  ttc_val root = shlo_1(b, SHLO_SQRT, shlo_add(b, shlo_mul(b, d, d), product));
  ttc_val plus = shlo_add(b, d, root), minus = shlo_sub(b, d, root);
  ttc_val larger = shlo_select(b, shlo_compare(b, SHLO_GE, square_of(b, plus), square_of(b, minus)), plus, minus);
  ttc_val some = shlo_compare(b, SHLO_NE, larger, zero);
  ttc_val off = shlo_div(b, product, shlo_select(b, some, larger, mat_one_of(b, a)));
  ttc_val shift = shlo_sub(b, s, shlo_select(b, some, off, zero));
  ttc_val ten = mat_int_scalar(b, 10), nine = mat_int_scalar(b, 9);
  ttc_val odd = shlo_compare(b, SHLO_EQ, shlo_2(b, SHLO_REM, iteration, ten), nine);
  ttc_val other = shlo_add(b, s, mat_widen(b, shlo_1(b, SHLO_ABS, r), shlo_dtype(b, a)));
  return shlo_select(b, odd, other, shift);
}

/* Rows or columns k and k+1 of x as combinations of each other: first' = f·first + g·second, second' = h·first + i·second. */
static ttc_val mix(shlo *b, ttc_val x, int axis, ttc_val k, const ttc_val fghi[4]) {
  int64_t sizes[TTC_MAX_NDIM];
  ttc_val at[3] = {mat_int_scalar(b, 0), mat_int_scalar(b, 0), mat_int_scalar(b, 0)};
  ttc__dims(b, x, sizes);
  sizes[axis] = 2;
  at[axis] = k;
  ttc_val two = shlo_dynamic_slice(b, x, at, sizes);
  ttc_val first = shlo_slice_axis(b, two, axis, 0, 1), second = shlo_slice_axis(b, two, axis, 1, 2);
  const ttc_val mixed[2] = {shlo_add(b, shlo_mul(b, fghi[0], first), shlo_mul(b, fghi[1], second)),
                            shlo_add(b, shlo_mul(b, fghi[2], first), shlo_mul(b, fghi[3], second))};
  return shlo_dynamic_update_slice(b, x, shlo_concat(b, 2, mixed, axis), at);
}

/* state: k, T, Q, last k + 1, lo, hi [B, 1, 1], shift [B, 1, 1]. Givens' rotation of rows and columns k, k+1, in matrices where
 * both are in the active block: of (T[lo,lo] - shift, T[lo+1,lo]) first, then of the bulge that chases it down. */
static void chase_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  (void)ctx;
  ttc_val k = s[0], t = s[1], one = mat_int_scalar(b, 1), next = count_up(b, k);
  ttc_val row_k = mat_line(b, t, 1, k), row_next = mat_line(b, t, 1, next);
  ttc_val start = shlo_compare(b, SHLO_EQ, k, s[4]);
  ttc_val before = shlo_2(b, SHLO_MAX, shlo_sub(b, k, one), mat_int_scalar(b, 0));
  ttc_val x = shlo_select(b, start, shlo_sub(b, mat_line(b, row_k, 2, k), s[6]), mat_line(b, row_k, 2, before));
  ttc_val y = shlo_select(b, start, mat_line(b, row_next, 2, k), mat_line(b, row_next, 2, before));
  ttc_val inside = shlo_2(b, SHLO_AND, shlo_compare(b, SHLO_GE, k, s[4]), shlo_compare(b, SHLO_LT, k, s[5]));
  ttc_val size = shlo_1(b, SHLO_SQRT, shlo_add(b, square_of(b, x), square_of(b, y)));
  inside = shlo_2(b, SHLO_AND, inside, shlo_compare(b, SHLO_GT, size, mat_zero_of(b, size)));
  ttc_val safe = shlo_select(b, inside, size, mat_one_of(b, size));
  x = shlo_select(b, inside, over_real(b, x, safe), mat_one_of(b, x));
  y = shlo_select(b, inside, over_real(b, y, safe), mat_zero_of(b, y));
  ttc_val cx = mat_conjugate(b, x), cy = mat_conjugate(b, y);
  const ttc_val rows[4] = {cx, cy, shlo_1(b, SHLO_NEG, y), x}, columns[4] = {x, y, shlo_1(b, SHLO_NEG, cy), cx};
  out[0] = next;
  out[1] = mix(b, mix(b, t, 1, k, rows), 2, k, columns);
  out[2] = mix(b, s[2], 2, k, columns);
  for (int i = 3; i < 7; i++) {
    out[i] = s[i];
  }
}
static void chase_more(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  (void)ctx;
  out[0] = shlo_compare(b, SHLO_LT, s[0], s[3]);
}

/* state: iteration, T, Q */
static void schur_more(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  const int axes[3] = {0, 1, 2};
  block k = active(b, deflated(b, s[1]));
  ttc_val some = shlo_reduce(b, SHLO_ANY, shlo_compare(b, SHLO_GT, k.hi, mat_int_scalar(b, 0)), 3, axes);
  out[0] = shlo_2(b, SHLO_AND, some, shlo_compare(b, SHLO_LT, s[0], mat_int_scalar(b, *(const int64_t *)ctx)));
}
static void schur_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  (void)ctx;
  const int axes[3] = {0, 1, 2};
  ttc_val t = deflated(b, s[1]);
  block k = active(b, t);
  ttc_val shift = shift_of(b, t, k, s[0]);
  ttc_val first = shlo_reduce(b, SHLO_AMIN, k.lo, 3, axes), last = shlo_reduce(b, SHLO_AMAX, k.hi, 3, axes);
  ttc_val init[7] = {first, t, s[2], last, k.lo, k.hi, shift}, done[7];
  shlo_while(b, 7, init, chase_more, chase_step, NULL, done);
  out[0] = count_up(b, s[0]);
  out[1] = done[1];
  out[2] = done[2];
}

/* A [B, n, n], complex = Q T Q^H, T upper triangular. */
static void schur(shlo *b, ttc_val a, ttc_val *t, ttc_val *q) {
  int64_t batch = shlo_dim(b, a, 0), n = shlo_dim(b, a, 1), columns = n - 2, most = 60 * n;
  ttc_val init[3] = {mat_int_scalar(b, 0), a, mat_eye(b, a, batch, n)}, done[3] = {init[0], init[1], init[2]};
  if (columns > 0) {
    shlo_while(b, 3, init, mat_below_count, hessenberg_step, &columns, done);
  }
  if (n > 1) {
    done[0] = mat_int_scalar(b, 0);
    shlo_while(b, 3, done, schur_more, schur_step, &most, done);
  }
  *t = mat_keep_part(b, done[1], MAT_UPPER);
  *q = done[2];
}

/* state: i, T, X [B, n, n], the smallest pivot [B, 1, 1]. Row i of the triangular eigenvectors: (T - T[k,k]) X[:,k] = 0. */
static void vectors_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  int64_t n = *(const int64_t *)ctx;
  ttc_val i = shlo_sub(b, mat_int_scalar(b, n - 1), s[0]), row = mat_line(b, s[1], 1, i), column = mat_place(b, 2, 1, n);
  ttc_val after = shlo_compare(b, SHLO_GT, column, i), zero = mat_zero_of(b, row);
  ttc_val sum = mat_matmul(b, shlo_select(b, after, row, zero), s[2]);
  ttc_val pivot = shlo_sub(b, mat_line(b, row, 2, i), shlo_unsqueeze(b, mat_diagonal_of(b, s[1]), 1));
  ttc_val fine = shlo_compare(b, SHLO_GT, shlo_1(b, SHLO_ABS, pivot), s[3]);
  pivot = shlo_select(b, fine, pivot, mat_widen(b, s[3], shlo_dtype(b, row)));
  ttc_val here = shlo_compare(b, SHLO_EQ, column, i);
  ttc_val x = shlo_select(b, after, shlo_1(b, SHLO_NEG, shlo_div(b, sum, pivot)), shlo_select(b, here, mat_one_of(b, row), zero));
  ttc_val at[3] = {mat_int_scalar(b, 0), i, mat_int_scalar(b, 0)};
  out[0] = count_up(b, s[0]);
  out[1] = s[1];
  out[2] = shlo_dynamic_update_slice(b, s[2], x, at);
  out[3] = s[3];
}

/* Columns of length 1, each turned so that its largest element is real, as LAPACK's. */
static ttc_val normalized(shlo *b, ttc_val v) {
  const int rows = 1;
  int64_t n = shlo_dim(b, v, 1);
  ttc_val square = square_of(b, v), length = shlo_1(b, SHLO_SQRT, sum_columns(b, square));
  ttc_val most = shlo_unsqueeze(b, shlo_reduce(b, SHLO_AMAX, square, 1, &rows), 1);
  ttc_val at = shlo_select(b, shlo_compare(b, SHLO_EQ, square, most), mat_place(b, 1, n, 1), mat_int_scalar(b, n));
  at = shlo_unsqueeze(b, shlo_reduce(b, SHLO_AMIN, at, 1, &rows), 1);
  ttc_val hit = shlo_compare(b, SHLO_EQ, mat_place(b, 1, n, 1), at);
  ttc_val pivot = sum_columns(b, shlo_select(b, hit, v, mat_zero_of(b, v)));
  ttc_val phase = over_real(b, mat_conjugate(b, pivot), shlo_1(b, SHLO_ABS, pivot));
  v = over_real(b, shlo_mul(b, v, phase), length);
  ttc_val re = shlo_1(b, SHLO_REAL, v), im = shlo_1(b, SHLO_IMAG, v);
  return shlo_complex(b, re, shlo_select(b, hit, mat_zero_of(b, im), im));
}

/* aten::linalg_eig(A) -> eigenvalues, eigenvectors; _linalg_eigvals(A) (param 1) -> eigenvalues; complex. The eigenvalues of a real
 * matrix that are real up to rounding are given as such. */
static void lower_eig(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_out_dtype(c, 0);
  ttc_val a = mat_batched(b, op_in(c, 0)), t, q;
  bool real = !ttc__is_complex(shlo_dtype(b, a)), vectors = op_param(c) == 0;
  int64_t batch = shlo_dim(b, a, 0), n = shlo_dim(b, a, 1);
  if (batch * n == 0) {
    for (int k = 0; k < op_nout(c); k++) {
      mat_ret_nothing(b, c, k);
    }
    return;
  }
  a = shlo_convert(b, a, d);
  ttc_val scale = scale_of(b, a);
  schur(b, over_real(b, a, scale), &t, &q);
  ttc_val norm = shlo_1(b, SHLO_SQRT, sum_all(b, square_of(b, t))), eps = real_const(b, norm, epsilon(d));
  ttc_val w = mat_diagonal_of(b, t), small = shlo_mul(b, norm, eps);
  if (real) {
    ttc_val im = shlo_1(b, SHLO_IMAG, w), limit = shlo_mul(b, small, real_const(b, norm, 10));
    limit = shlo_reshape(b, limit, 2, (const int64_t[2]){batch, 1});
    ttc_val none = shlo_compare(b, SHLO_LE, shlo_1(b, SHLO_ABS, im), limit);
    w = shlo_complex(b, shlo_1(b, SHLO_REAL, w), shlo_select(b, none, mat_zero_of(b, im), im));
  }
  mat_ret(b, c, 0, times_real(b, w, shlo_reshape(b, scale, 2, (const int64_t[2]){batch, 1})));
  if (!vectors) {
    return;
  }
  ttc_val least = shlo_2(b, SHLO_MAX, small, real_const(b, norm, ttc__dtype_real(d) == TTC_F64 ? DBL_MIN : FLT_MIN));
  ttc_val init[4] = {mat_int_scalar(b, 0), t, mat_eye(b, t, batch, n), least}, done[4];
  shlo_while(b, 4, init, mat_below_count, vectors_step, &n, done);
  mat_ret(b, c, 1, normalized(b, mat_matmul(b, q, done[2])));
}

#define EIGEN(overload, f, p) {.name = (overload), .rule = (f), .param = (p), .tol = TOL_LOOSE}
const ttc_op_row ttc__eigen_rows[] = {
    EIGEN("_linalg_eigh", lower_eigh, 0),
    EIGEN("_linalg_svd", lower_svd, 0),
    EIGEN("linalg_eig", lower_eig, 0),
    EIGEN("_linalg_eigvals", lower_eig, 1),
};
TTC_FAMILY(eigen)
