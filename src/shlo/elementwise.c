#include <math.h>

#include "shlo/internal.h"

/* Sets of dtype classes an operation takes. */
enum {
  B = 1 << TTC__CLASS_BOOL,
  U = 1 << TTC__CLASS_UINT,
  S = 1 << TTC__CLASS_SINT,
  F = 1 << TTC__CLASS_FLOAT,
  C = 1 << TTC__CLASS_COMPLEX
};

static bool takes(ttc_dtype d, int classes) {
  return ((1 << ttc__dtype_class(d)) & classes) != 0;
}

static const char *class_names(int classes) {
  switch (classes) {
    case F:
      return "float";
    case F | C:
      return "float or complex";
    case U | S:
      return "integer";
    case B | U | S:
      return "bool or integer";
    case U | S | F | C:
      return "a number";
    case U | S | F:
      return "integer or float";
    case B | U | S | F:
      return "bool, integer or float";
    default:
      return "another dtype";
  }
}

static const struct {
  const char *op;
  int classes;
} unary[SHLO_NOP1] = {
    [SHLO_ABS] = {"stablehlo.abs", U | S | F | C},
    [SHLO_CBRT] = {"stablehlo.cbrt", F},
    [SHLO_CEIL] = {"stablehlo.ceil", F},
    [SHLO_COS] = {"stablehlo.cosine", F | C},
    [SHLO_EXP] = {"stablehlo.exponential", F | C},
    [SHLO_EXPM1] = {"stablehlo.exponential_minus_one", F | C},
    [SHLO_FLOOR] = {"stablehlo.floor", F},
    [SHLO_IMAG] = {"stablehlo.imag", F | C},
    [SHLO_IS_FINITE] = {"stablehlo.is_finite", F},
    [SHLO_LOG] = {"stablehlo.log", F | C},
    [SHLO_LOG1P] = {"stablehlo.log_plus_one", F | C},
    [SHLO_LOGISTIC] = {"stablehlo.logistic", F | C},
    [SHLO_CLZ] = {"stablehlo.count_leading_zeros", U | S},
    [SHLO_NEG] = {"stablehlo.negate", U | S | F | C},
    [SHLO_NOT] = {"stablehlo.not", B | U | S},
    [SHLO_POPCNT] = {"stablehlo.popcnt", U | S},
    [SHLO_REAL] = {"stablehlo.real", F | C},
    [SHLO_ROUND_AFZ] = {"stablehlo.round_nearest_afz", F},
    [SHLO_ROUND_EVEN] = {"stablehlo.round_nearest_even", F},
    [SHLO_RSQRT] = {"stablehlo.rsqrt", F | C},
    [SHLO_SIGN] = {"stablehlo.sign", U | S | F | C},
    [SHLO_SIN] = {"stablehlo.sine", F | C},
    [SHLO_SQRT] = {"stablehlo.sqrt", F | C},
    [SHLO_TAN] = {"stablehlo.tan", F | C},
    [SHLO_TANH] = {"stablehlo.tanh", F | C},
    [SHLO_CHLO_ACOS] = {"chlo.acos", F | C},
    [SHLO_CHLO_ACOSH] = {"chlo.acosh", F | C},
    [SHLO_CHLO_ASIN] = {"chlo.asin", F | C},
    [SHLO_CHLO_ASINH] = {"chlo.asinh", F | C},
    [SHLO_CHLO_ATAN] = {"chlo.atan", F | C},
    [SHLO_CHLO_ATANH] = {"chlo.atanh", F | C},
    [SHLO_CHLO_BESSEL_I1E] = {"chlo.bessel_i1e", F},
    [SHLO_CHLO_CONJ] = {"chlo.conj", F | C},
    [SHLO_CHLO_COSH] = {"chlo.cosh", F | C},
    [SHLO_CHLO_DIGAMMA] = {"chlo.digamma", F},
    [SHLO_CHLO_ERF] = {"chlo.erf", F},
    [SHLO_CHLO_ERFC] = {"chlo.erfc", F},
    [SHLO_CHLO_ERF_INV] = {"chlo.erf_inv", F},
    [SHLO_CHLO_LGAMMA] = {"chlo.lgamma", F},
    [SHLO_CHLO_SINH] = {"chlo.sinh", F | C},
};

static const struct {
  const char *op;
  int classes;
} binary[SHLO_NOP2] = {
    [SHLO_ADD] = {"stablehlo.add", U | S | F | C},
    [SHLO_AND] = {"stablehlo.and", B | U | S},
    [SHLO_ATAN2] = {"stablehlo.atan2", F | C},
    [SHLO_DIV] = {"stablehlo.divide", U | S | F | C},
    [SHLO_MAX] = {"stablehlo.maximum", B | U | S | F},
    [SHLO_MIN] = {"stablehlo.minimum", B | U | S | F},
    [SHLO_MUL] = {"stablehlo.multiply", U | S | F | C},
    [SHLO_OR] = {"stablehlo.or", B | U | S},
    [SHLO_POW] = {"stablehlo.power", U | S | F | C},
    [SHLO_REM] = {"stablehlo.remainder", U | S | F},
    [SHLO_SHL] = {"stablehlo.shift_left", U | S},
    [SHLO_SHR_A] = {"stablehlo.shift_right_arithmetic", U | S},
    [SHLO_SHR_L] = {"stablehlo.shift_right_logical", U | S},
    [SHLO_SUB] = {"stablehlo.subtract", U | S | F | C},
    [SHLO_XOR] = {"stablehlo.xor", B | U | S},
    [SHLO_CHLO_NEXT_AFTER] = {"chlo.next_after", F},
    [SHLO_CHLO_POLYGAMMA] = {"chlo.polygamma", F},
    [SHLO_CHLO_ZETA] = {"chlo.zeta", F},
};

/* Result in another dtype of the operand's shape. */
static ttc_val emit_as(shlo *b, const char *op, ttc_val x, ttc_dtype d) {
  shlo_type t = *shlo_typeof(b, x);
  t.dtype = d;
  return shlo__op(b, op, 1, &x, &t);
}

/* chlo operations print their result type apart: the generic form serves. Not all of them know 8-bit floats. */
static ttc_val emit(shlo *b, const char *op, int n, const ttc_val *xs) {
  if (op[0] == 's') {
    return shlo__op_same(b, op, n, xs);
  }
  shlo_type t = *shlo_typeof(b, xs[0]);
  if (ttc_dtype_nbyte(t.dtype) > 1) {
    return shlo__op(b, op, n, xs, &t);
  }
  ttc_val wide[2];
  ttc_dtype narrow = t.dtype;
  for (int k = 0; k < n; k++) {
    wide[k] = shlo_convert(b, xs[k], TTC_F32);
  }
  t.dtype = TTC_F32;
  return shlo_convert(b, shlo__op(b, op, n, wide, &t), narrow);
}

ttc_val shlo_1(shlo *b, shlo_op1 op, ttc_val x) {
  if ((unsigned)op >= SHLO_NOP1) {
    return SHLO_FAIL(b, "shlo_1", "no operation %d", (int)op);
  }
  const char *name = unary[op].op;
  if (!shlo__ready(b, name, 1, &x)) {
    return TTC_POISON;
  }
  ttc_dtype d = shlo_dtype(b, x);
  if (!takes(d, unary[op].classes)) {
    return SHLO_FAIL(b, name, "expected %s, got %s", class_names(unary[op].classes), SHLO_NAME(b, x));
  }
  switch (op) {
    case SHLO_IS_FINITE:
      return emit_as(b, name, x, TTC_BOOL);
    case SHLO_REAL:
    case SHLO_IMAG:
      return emit_as(b, name, x, ttc__dtype_real(d));
    case SHLO_ABS:
      if (ttc__is_complex(d)) {
        return emit_as(b, name, x, ttc__dtype_real(d));
      }
      return ttc__is_unsigned(d) ? x : emit(b, name, 1, &x);
    case SHLO_SIGN:
      /* StableHLO's sign leaves unsigned integers out. */
      return ttc__is_unsigned(d) ? shlo_2(b, SHLO_MIN, x, shlo_const_like(b, x, 1)) : emit(b, name, 1, &x);
    case SHLO_CHLO_CONJ:
      return ttc__is_complex(d) ? emit(b, name, 1, &x) : x;
    default:
      return emit(b, name, 1, &x);
  }
}

/* numpy's common shape of n operands, each broadcast to it. */
static bool broadcast_all(shlo *b, const char *op, int n, ttc_val *xs) {
  shlo_type t = *shlo_typeof(b, xs[0]);
  for (int k = 1; k < n; k++) {
    const shlo_type *y = shlo_typeof(b, xs[k]);
    shlo_type r = t.ndim >= y->ndim ? t : *y;
    for (int j = 0; j < r.ndim; j++) {
      int64_t p = j < t.ndim ? t.dims[t.ndim - 1 - j] : 1, q = j < y->ndim ? y->dims[y->ndim - 1 - j] : 1;
      if (p != q && p != 1 && q != 1) {
        SHLO_FAIL(b, op, "shapes do not broadcast: %s and %s", shlo__describe(&t).text, shlo__describe(y).text);
        return false;
      }
      r.dims[r.ndim - 1 - j] = p == 1 ? q : p;
    }
    t.ndim = r.ndim;
    for (int j = 0; j < r.ndim; j++) {
      t.dims[j] = r.dims[j];
    }
  }
  for (int k = 0; k < n; k++) {
    xs[k] = shlo_broadcast_to(b, xs[k], t.ndim, t.dims);
  }
  return !b->failed;
}

static bool same_dtype(shlo *b, const char *op, ttc_val x, ttc_val y) {
  if (shlo_dtype(b, x) == shlo_dtype(b, y)) {
    return true;
  }
  SHLO_FAIL(b, op, "expected operands of one dtype, got %s and %s", SHLO_NAME(b, x), SHLO_NAME(b, y));
  return false;
}

/* XLA:CPU turns a division by a constant or a broadcast scalar into a product with its reciprocal, an ulp off in a third of all
 * cases. A divisor that depends on the dividend stays a division: y where x is a number, NaN where x is NaN, and so is the
 * quotient. */
static ttc_val keep_division(shlo *b, ttc_val x, ttc_val y) {
  ttc_val nan = shlo_const_f(b, shlo_dtype(b, y), NAN, 0, NULL);
  return shlo_select(b, shlo_compare(b, SHLO_EQ, x, x), y, nan);
}

ttc_val shlo_2(shlo *b, shlo_op2 op, ttc_val x, ttc_val y) {
  if ((unsigned)op >= SHLO_NOP2) {
    return SHLO_FAIL(b, "shlo_2", "no operation %d", (int)op);
  }
  const char *name = binary[op].op;
  ttc_val xs[2] = {x, y};
  if (!shlo__ready(b, name, 2, xs) || !same_dtype(b, name, x, y)) {
    return TTC_POISON;
  }
  if (!takes(shlo_dtype(b, x), binary[op].classes)) {
    return SHLO_FAIL(b, name, "expected %s, got %s", class_names(binary[op].classes), SHLO_NAME(b, x));
  }
  int64_t ndivisor = shlo_nelem(b, y);
  if (!broadcast_all(b, name, 2, xs)) {
    return TTC_POISON;
  }
  bool repeated = shlo_ndim(b, y) == 0 || ndivisor < shlo_nelem(b, xs[1]);
  if (op == SHLO_DIV && repeated && !b->for_tpu && ttc__is_float(shlo_dtype(b, y))) {
    xs[1] = keep_division(b, xs[0], xs[1]);
  }
  return emit(b, name, 2, xs);
}

static ttc_val compare(shlo *b, const char *op, shlo_cmp cmp, bool total, ttc_val x, ttc_val y) {
  static const char *const directions[] = {"EQ", "NE", "LT", "LE", "GT", "GE"};
  ttc_val xs[2] = {x, y};
  if (!shlo__ready(b, op, 2, xs) || !same_dtype(b, op, x, y)) {
    return TTC_POISON;
  }
  ttc_dtype d = shlo_dtype(b, x);
  ttc__class c = ttc__dtype_class(d);
  if (c == TTC__CLASS_COMPLEX && cmp != SHLO_EQ && cmp != SHLO_NE) {
    return SHLO_FAIL(b, op, "%s has no order", SHLO_NAME(b, x));
  }
  if (!broadcast_all(b, op, 2, xs)) {
    return TTC_POISON;
  }
  const char *kind = c == TTC__CLASS_SINT ? "SIGNED" : c == TTC__CLASS_BOOL || c == TTC__CLASS_UINT ? "UNSIGNED" : "FLOAT";
  if (total && c == TTC__CLASS_FLOAT) {
    kind = "TOTALORDER";
  }
  shlo__attr(b, "comparison_direction = #stablehlo<comparison_direction %s>", directions[cmp]);
  shlo__attr(b, "compare_type = #stablehlo<comparison_type %s>", kind);
  shlo_type t = *shlo_typeof(b, xs[0]);
  t.dtype = TTC_BOOL;
  return shlo__op(b, "stablehlo.compare", 2, xs, &t);
}

ttc_val shlo_compare(shlo *b, shlo_cmp cmp, ttc_val x, ttc_val y) {
  return compare(b, "shlo_compare", cmp, false, x, y);
}

ttc_val shlo_compare_total(shlo *b, shlo_cmp cmp, ttc_val x, ttc_val y) {
  return compare(b, "shlo_compare_total", cmp, true, x, y);
}

ttc_val shlo_select(shlo *b, ttc_val pred, ttc_val on_true, ttc_val on_false) {
  const char *op = "shlo_select";
  ttc_val xs[3] = {pred, on_true, on_false};
  if (!shlo__ready(b, op, 3, xs) || !same_dtype(b, op, on_true, on_false)) {
    return TTC_POISON;
  }
  if (shlo_dtype(b, pred) != TTC_BOOL) {
    return SHLO_FAIL(b, op, "expected a bool condition, got %s", SHLO_NAME(b, pred));
  }
  /* A scalar condition needs no broadcast. */
  int first = shlo_ndim(b, pred) == 0 ? 1 : 0;
  if (!broadcast_all(b, op, 3 - first, xs + first)) {
    return TTC_POISON;
  }
  shlo_type t = *shlo_typeof(b, xs[1]);
  return shlo__op(b, "stablehlo.select", 3, xs, &t);
}

ttc_val shlo_clamp(shlo *b, ttc_val lo, ttc_val x, ttc_val hi) {
  const char *op = "shlo_clamp";
  ttc_val xs[3] = {lo, x, hi};
  if (!shlo__ready(b, op, 3, xs) || !same_dtype(b, op, lo, x) || !same_dtype(b, op, x, hi)) {
    return TTC_POISON;
  }
  if (!takes(shlo_dtype(b, x), B | U | S | F)) {
    return SHLO_FAIL(b, op, "%s has no order", SHLO_NAME(b, x));
  }
  if ((shlo_ndim(b, lo) != 0 || shlo_ndim(b, hi) != 0) && !broadcast_all(b, op, 3, xs)) {
    return TTC_POISON;
  }
  shlo_type t = *shlo_typeof(b, xs[1]);
  return shlo__op(b, "stablehlo.clamp", 3, xs, &t);
}

/* x != 0, NaN included; either part for complex. */
static ttc_val truth(shlo *b, ttc_val x) {
  return shlo_compare(b, SHLO_NE, x, shlo_const_like(b, x, 0));
}

/* The power of two nearest to |x|, ties and all that lies between the two smallest going up, as PyTorch's float8_e8m0fnu: from the
 * bits, since devices flush what is below 2^-126. */
static ttc_val to_e8m0(shlo *b, ttc_val x) {
  ttc_val bits = shlo_bitcast(b, shlo_convert(b, x, TTC_F32), TTC_U32);
  ttc_val exponent = shlo_2(b, SHLO_AND, shlo_2(b, SHLO_SHR_L, bits, shlo_const_like(b, bits, 23)), shlo_const_like(b, bits, 255));
  ttc_val rest = shlo_2(b, SHLO_AND, bits, shlo_const_like(b, bits, 0x7fffff)), half = shlo_const_like(b, bits, 0x400000);
  ttc_val normal = shlo_compare(b, SHLO_GT, exponent, shlo_const_like(b, bits, 0));
  ttc_val up = shlo_select(b, normal, shlo_compare(b, SHLO_GE, rest, half), shlo_compare(b, SHLO_GT, rest, half));
  ttc_val code = shlo_add(b, exponent, shlo_convert(b, up, TTC_U32));
  code = shlo_2(b, SHLO_MIN, code, shlo_const_like(b, bits, 255)); /* 255 is NaN: overflow, infinities and NaN itself */
  return shlo_bitcast(b, shlo_convert(b, code, TTC_U8), TTC_F8E8M0FNU);
}

/* PyTorch saturates where XLA gives NaN. */
static ttc_val to_e4m3fn(shlo *b, ttc_val x) {
  ttc_dtype from = shlo_dtype(b, x);
  if (from != TTC_F16 && from != TTC_BF16) {
    x = shlo_convert(b, x, TTC_F32);
  }
  x = shlo_clamp(b, shlo_const_like(b, x, -448), x, shlo_const_like(b, x, 448));
  return emit_as(b, "stablehlo.convert", x, TTC_F8E4M3FN);
}

ttc_val shlo_convert(shlo *b, ttc_val x, ttc_dtype d) {
  if (!shlo__ready(b, "shlo_convert", 1, &x)) {
    return TTC_POISON;
  }
  ttc_dtype from = shlo_dtype(b, x);
  if (d <= TTC_DTYPE_INVALID || d >= TTC_NDTYPE) {
    return SHLO_FAIL(b, "shlo_convert", "dtype %d is none of ttc_dtype", (int)d);
  }
  if (from == d) {
    return x;
  }
  if (d == TTC_BOOL) {
    return truth(b, x);
  }
  if (ttc__is_complex(from) && !ttc__is_complex(d)) {
    return shlo_convert(b, shlo_1(b, SHLO_REAL, x), d);
  }
  if (ttc__is_complex(d) && !ttc__is_complex(from)) {
    ttc_val re = shlo_convert(b, x, ttc__dtype_real(d));
    return shlo_complex(b, re, shlo_const_like(b, re, 0));
  }
  if (d == TTC_F8E8M0FNU) {
    return to_e8m0(b, x);
  }
  if (d == TTC_F8E4M3FN) {
    return to_e4m3fn(b, x);
  }
  /* Out of range, C wraps what passed through a wider integer; XLA alone would saturate: -1.0 is 255 in uint8, as in PyTorch. */
  if (ttc__is_float(from) && ttc__is_integral(d) && ttc_dtype_nbyte(d) < 4) {
    x = emit_as(b, "stablehlo.convert", x, TTC_S32);
  }
  return emit_as(b, "stablehlo.convert", x, d);
}

ttc_val shlo_bitcast(shlo *b, ttc_val x, ttc_dtype d) {
  const char *op = "shlo_bitcast";
  if (!shlo__ready(b, op, 1, &x)) {
    return TTC_POISON;
  }
  shlo_type t = *shlo_typeof(b, x);
  if (t.dtype == d) {
    return x;
  }
  size_t from = ttc_dtype_nbyte(t.dtype), to = ttc_dtype_nbyte(d);
  if (to == 0 || ttc__is_complex(t.dtype) || ttc__is_complex(d)) {
    return SHLO_FAIL(b, op, "no bit cast of %s to %s", SHLO_NAME(b, x), ttc_dtype_name(d));
  }
  /* A bool is one bit in a program and one byte, 0 or 1, in memory. */
  if (t.dtype == TTC_BOOL) {
    return shlo_bitcast(b, shlo_convert(b, x, TTC_U8), d);
  }
  if (d == TTC_BOOL) {
    return truth(b, shlo_bitcast(b, x, TTC_U8));
  }
  if (from > to) {
    if (t.ndim == SHLO__MAX_NDIM) {
      return SHLO_FAIL(b, op, "%s has too many dims", SHLO_NAME(b, x));
    }
    t.dims[t.ndim++] = (int64_t)(from / to);
  } else if (from < to) {
    if (t.ndim == 0 || t.dims[t.ndim - 1] != (int64_t)(to / from)) {
      return SHLO_FAIL(b, op, "%s to %s wants a last dim of %d", SHLO_NAME(b, x), ttc_dtype_name(d), (int)(to / from));
    }
    t.ndim--;
  }
  t.dtype = d;
  /* Same text for both: packed 4-bit floats are bytes to a program. */
  return shlo__op(b, "stablehlo.bitcast_convert", 1, &x, &t);
}

ttc_val shlo_complex(shlo *b, ttc_val re, ttc_val im) {
  ttc_val xs[2] = {re, im};
  if (!shlo__ready(b, "shlo_complex", 2, xs) || !same_dtype(b, "shlo_complex", re, im)) {
    return TTC_POISON;
  }
  ttc_dtype d = shlo_dtype(b, re);
  if (d != TTC_F32 && d != TTC_F64) {
    return SHLO_FAIL(b, "shlo_complex", "expected f32 or f64 parts, got %s", SHLO_NAME(b, re));
  }
  if (!broadcast_all(b, "shlo_complex", 2, xs)) {
    return TTC_POISON;
  }
  shlo_type t = *shlo_typeof(b, xs[0]);
  t.dtype = ttc__dtype_complex(d);
  return shlo__op(b, "stablehlo.complex", 2, xs, &t);
}

ttc_val shlo_is_nan(shlo *b, ttc_val x) {
  if (!shlo__ready(b, "shlo_is_nan", 1, &x)) {
    return TTC_POISON;
  }
  shlo_type t = *shlo_typeof(b, x);
  if (ttc__is_integral(t.dtype)) {
    return shlo_const_i(b, TTC_BOOL, 0, t.ndim, t.dims);
  }
  /* For complex numbers, NE is true if either part differs from itself. */
  return shlo_compare(b, SHLO_NE, x, x);
}
