/* What the families linalg and eigen share: batches of matrices [B, m, n] and their parts.
 *
 * MAT_MINOR is the axis of columns. Loops count in s32. */
#ifndef TTC_OP_MATRIX_H
#define TTC_OP_MATRIX_H

#include "op/window.h"

static const int MAT_MINOR = 2;

/* [.., m, n] -> [B, m, n] */
static inline ttc_val mat_batched(shlo *b, ttc_val x) {
  int64_t dims[TTC_MAX_NDIM], three[3] = {1, 1, 1};
  int nd = ttc__dims(b, x, dims);
  if (nd < 2) {
    return shlo_error(b, TTC_INVALID_ARGUMENT, "expected a matrix, got %d dimensions", nd);
  }
  for (int k = 0; k < nd - 2; k++) {
    three[0] *= dims[k];
  }
  three[1] = dims[nd - 2];
  three[2] = dims[nd - 1];
  return shlo_reshape(b, x, 3, three);
}

/* Give result k, whatever batch shape it has. */
static inline void mat_ret(shlo *b, ttc_lower *c, int k, ttc_val v) {
  op_ret(c, k, shlo_reshape(b, v, op_out_ndim(c, k), op_out_sizes(c, k)));
}

/* Result k is not asked for: nothing, in its shape. */
static inline void mat_ret_nothing(shlo *b, ttc_lower *c, int k) {
  op_ret(c, k, shlo_const_i(b, op_out_dtype(c, k), 0, op_out_ndim(c, k), op_out_sizes(c, k)));
}

static inline ttc_val mat_transposed(shlo *b, ttc_val x) {
  return shlo_transpose(b, x, (const int[3]){0, 2, 1});
}

static inline ttc_val mat_conjugate(shlo *b, ttc_val x) {
  return ttc__is_complex(shlo_dtype(b, x)) ? shlo_1(b, SHLO_CHLO_CONJ, x) : x;
}

static inline ttc_val mat_adjoint(shlo *b, ttc_val x) {
  return mat_conjugate(b, mat_transposed(b, x));
}

static inline ttc_val mat_matmul(shlo *b, ttc_val x, ttc_val y) {
  const int zero = 0, one = 1;
  return shlo_dot(b, x, y, 1, &zero, &zero, 1, &MAT_MINOR, &one, shlo_dtype(b, x));
}

static inline ttc_val mat_int_scalar(shlo *b, int64_t v) {
  return shlo_const_i(b, TTC_S32, v, 0, NULL);
}

/* s32 [1, m, n]: the row (axis 1) or column (axis 2) of each element. */
static inline ttc_val mat_place(shlo *b, int axis, int64_t m, int64_t n) {
  return shlo_iota(b, TTC_S32, axis, 3, (const int64_t[3]){1, m, n});
}

static inline ttc_val mat_zero_of(shlo *b, ttc_val x) {
  return shlo_const_i(b, shlo_dtype(b, x), 0, 0, NULL);
}
static inline ttc_val mat_one_of(shlo *b, ttc_val x) {
  return shlo_const_i(b, shlo_dtype(b, x), 1, 0, NULL);
}

/* The n x n unit matrix, [batch, n, n] in x's dtype. */
static inline ttc_val mat_eye(shlo *b, ttc_val x, int64_t batch, int64_t n) {
  ttc_val diagonal = shlo_compare(b, SHLO_EQ, mat_place(b, 1, n, n), mat_place(b, 2, n, n));
  return shlo_broadcast_to(b, shlo_select(b, diagonal, mat_one_of(b, x), mat_zero_of(b, x)), 3, (const int64_t[3]){batch, n, n});
}

typedef enum mat_part { MAT_LOWER, MAT_STRICT_LOWER, MAT_UPPER } mat_part;
static inline ttc_val mat_keep_part(shlo *b, ttc_val x, mat_part p) {
  int64_t m = shlo_dim(b, x, 1), n = shlo_dim(b, x, 2);
  shlo_cmp cmp = p == MAT_LOWER ? SHLO_GE : p == MAT_STRICT_LOWER ? SHLO_GT : SHLO_LE;
  return shlo_select(b, shlo_compare(b, cmp, mat_place(b, 1, m, n), mat_place(b, 2, m, n)), x, mat_zero_of(b, x));
}

/* Element (i, i): [B, min(m, n)] */
static inline ttc_val mat_diagonal_of(shlo *b, ttc_val x) {
  int64_t m = shlo_dim(b, x, 1), n = shlo_dim(b, x, 2), k = m < n ? m : n;
  ttc_val square = ttc__take_strided(b, ttc__take_strided(b, x, 1, 0, k, 1), 2, 0, k, 1);
  ttc_val on = shlo_compare(b, SHLO_EQ, mat_place(b, 1, k, k), mat_place(b, 2, k, k));
  return shlo_reduce(b, SHLO_SUM, shlo_select(b, on, square, mat_zero_of(b, x)), 1, &MAT_MINOR);
}

/* Row or column k (a value): [B, 1, n] or [B, m, 1]. */
static inline ttc_val mat_line(shlo *b, ttc_val x, int axis, ttc_val k) {
  int64_t sizes[TTC_MAX_NDIM];
  ttc_val starts[3] = {mat_int_scalar(b, 0), mat_int_scalar(b, 0), mat_int_scalar(b, 0)};
  ttc__dims(b, x, sizes);
  sizes[axis] = 1;
  starts[axis] = k;
  return shlo_dynamic_slice(b, x, starts, sizes);
}

/* ctx of the loops: how many columns to do. */
static inline void mat_below_count(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  results[0] = shlo_compare(b, SHLO_LT, args[0], mat_int_scalar(b, *(const int64_t *)ctx));
}

static inline ttc_val mat_real_part(shlo *b, ttc_val x) {
  return ttc__is_complex(shlo_dtype(b, x)) ? shlo_1(b, SHLO_REAL, x) : x;
}

/* x as the (possibly complex) dtype d. */
static inline ttc_val mat_widen(shlo *b, ttc_val x, ttc_dtype d) {
  return ttc__is_complex(d) ? shlo_complex(b, x, shlo_const_like(b, x, 0)) : x;
}

/* The whole Hermitian matrix from the triangle that counts; what its diagonal has of imaginary parts does not. */
static inline ttc_val mat_mirrored(shlo *b, ttc_val a, bool upper) {
  int64_t n = shlo_dim(b, a, 1);
  ttc_val low = upper ? mat_adjoint(b, mat_keep_part(b, a, MAT_UPPER)) : mat_keep_part(b, a, MAT_LOWER);
  ttc_val strict = mat_keep_part(b, low, MAT_STRICT_LOWER);
  ttc_val on = shlo_compare(b, SHLO_EQ, mat_place(b, 1, n, n), mat_place(b, 2, n, n));
  low = shlo_select(b, on, mat_widen(b, mat_real_part(b, low), shlo_dtype(b, low)), low);
  return shlo_add(b, low, mat_adjoint(b, strict));
}

/* The first n columns of the m x m unit matrix, [batch, m, n]. */
static inline ttc_val mat_eye_columns(shlo *b, ttc_val x, int64_t batch, int64_t m, int64_t n) {
  return ttc__take_strided(b, mat_eye(b, x, batch, m), 2, 0, n, 1);
}

/* ---- linalg.c */
/* x [B, m, n] with its rows taken in `order` s32 [B, m]. */
ttc_val ttc__permute_rows(shlo *b, ttc_val x, ttc_val order);
/* Reflector of column k: v [B, m, 1] (0 above k, 1 at k), tau and beta [B, 1, 1], with H = I - tau v v^H and H^H x = beta e_k. */
void ttc__reflector(shlo *b, ttc_val column, ttc_val k, ttc_val *v, ttc_val *tau, ttc_val *beta);
/* x - tau v (v^H x), v [B, m, 1], x [B, m, n] */
ttc_val ttc__reflect_rows(shlo *b, ttc_val x, ttc_val v, ttc_val tau);
/* geqrf of a [B, m, n]: *factors as LAPACK's, *taus [B, 1, k]. */
void ttc__factor_qr(shlo *b, ttc_val a, ttc_val *factors, ttc_val *taus);
/* Q x or Q^H x for the reflectors in factors [B, m, >= K] and taus [B, 1, K]; x [B, m, r]. */
ttc_val ttc__times_q(shlo *b, ttc_val factors, ttc_val taus, ttc_val x, bool adj);

#endif
