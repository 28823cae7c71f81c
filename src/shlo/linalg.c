#include "shlo/internal.h"

/* [..., n, n] of a dtype that XLA factors? */
static bool square(shlo *b, const char *op, ttc_val x) {
  const shlo_type *t = shlo_typeof(b, x);
  bool dtype = t->dtype == TTC_F32 || t->dtype == TTC_F64 || ttc__is_complex(t->dtype);
  if (dtype && t->ndim >= 2 && t->dims[t->ndim - 1] == t->dims[t->ndim - 2]) {
    return true;
  }
  SHLO_FAIL(b, op, "expected square f32, f64 or complex matrices, got %s", SHLO_NAME(b, x));
  return false;
}

ttc_val shlo_cholesky(shlo *b, ttc_val x, bool lower) {
  if (!shlo__ready(b, "shlo_cholesky", 1, &x) || !square(b, "shlo_cholesky", x)) {
    return TTC_POISON;
  }
  shlo_type t = *shlo_typeof(b, x);
  if (shlo__nelem(&t) == 0) {
    return x;
  }
  shlo__attr(b, "lower = %s", lower ? "true" : "false");
  return shlo__op(b, "stablehlo.cholesky", 1, &x, &t);
}

ttc_val shlo_triangular_solve(shlo *b, ttc_val a, ttc_val rhs, bool left, bool lower, bool unit, bool transpose_a, bool conj_a) {
  const char *op = "shlo_triangular_solve";
  ttc_val xs[2] = {a, rhs};
  if (!shlo__ready(b, op, 2, xs) || !square(b, op, a)) {
    return TTC_POISON;
  }
  shlo_type ta = *shlo_typeof(b, a), t = *shlo_typeof(b, rhs);
  bool fits = t.ndim == ta.ndim && t.dtype == ta.dtype && t.dims[t.ndim - (left ? 2 : 1)] == ta.dims[t.ndim - 1];
  for (int k = 0; fits && k < t.ndim - 2; k++) {
    fits = t.dims[k] == ta.dims[k];
  }
  if (!fits) {
    return SHLO_FAIL(b, op, "%s %s does not fit %s", SHLO_NAME(b, a), left ? "from the left" : "from the right", SHLO_NAME(b, rhs));
  }
  if (shlo__nelem(&t) == 0) {
    return rhs;
  }
  conj_a = conj_a && ttc__is_complex(ta.dtype);
  if (conj_a && !transpose_a) {
    xs[0] = shlo_1(b, SHLO_CHLO_CONJ, a);
  }
  shlo__attr(b, "left_side = %s", left ? "true" : "false");
  shlo__attr(b, "lower = %s", lower ? "true" : "false");
  shlo__attr(b, "unit_diagonal = %s", unit ? "true" : "false");
  shlo__attr(b, "transpose_a = #stablehlo<transpose %s>", !transpose_a ? "NO_TRANSPOSE" : conj_a ? "ADJOINT" : "TRANSPOSE");
  return shlo__op(b, "stablehlo.triangular_solve", 2, xs, &t);
}

ttc_val shlo_fft(shlo *b, ttc_val x, shlo_fft_kind kind, int naxis, const int64_t *lengths) {
  static const char *const names[] = {"FFT", "IFFT", "RFFT", "IRFFT"};
  const char *op = "shlo_fft";
  if (!shlo__ready(b, op, 1, &x)) {
    return TTC_POISON;
  }
  shlo_type from = *shlo_typeof(b, x), t = from;
  bool dtype = kind == SHLO_RFFT ? from.dtype == TTC_F32 || from.dtype == TTC_F64 : ttc__is_complex(from.dtype);
  if (!dtype || naxis < 1 || naxis > 3 || naxis > t.ndim) {
    return SHLO_FAIL(b, op, "no %s of %s over %d axes", names[kind], SHLO_NAME(b, x), naxis);
  }
  for (int k = 0; k < naxis; k++) {
    int axis = t.ndim - naxis + k;
    bool last = k == naxis - 1;
    int64_t half = lengths[k] / 2 + 1, want = kind == SHLO_IRFFT && last ? half : lengths[k];
    if (lengths[k] < 1 || from.dims[axis] != want) {
      return SHLO_FAIL(b, op, "%s of length %lld wants %lld on axis %d, got %s", names[kind], (long long)lengths[k],
                       (long long)want, axis, SHLO_NAME(b, x));
    }
    if (last && kind >= SHLO_RFFT) {
      t.dims[axis] = kind == SHLO_RFFT ? half : lengths[k];
    }
  }
  t.dtype = kind == SHLO_RFFT ? ttc__dtype_complex(from.dtype) : kind == SHLO_IRFFT ? ttc__dtype_real(from.dtype) : from.dtype;
  if (shlo__nelem(&t) == 0) {
    return shlo__zeros(b, &t);
  }
  shlo__attr(b, "fft_type = #stablehlo<fft_type %s>", names[kind]);
  shlo__attr_i64s(b, "fft_length", naxis, lengths);
  return shlo__op(b, "stablehlo.fft", 1, &x, &t);
}
