/* Family "unary": functions of one tensor, elementwise. Activations are in unary_act.c, special functions in special.c. */
#include <math.h>

#include "op/elem.h"

#define PI 3.14159265358979323846

/* y = op(x)        x: float | complex; integers become the default float        param: shlo_op1 */
static void lower_float(shlo *b, ttc_lower *c) {
  op_ret(c, 0, shlo_1(b, (shlo_op1)op_param(c), op_in_as(c, 0, elem_float(c, 0))));
}

/* abs: complex gives the real type; unsigned and bool are themselves. */
static void lower_abs(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_in_dtype(c, 0);
  ttc_val x = op_in(c, 0);
  op_ret(c, 0, d == TTC_BOOL || ttc__is_unsigned(d) ? x : shlo_1(b, SHLO_ABS, x));
}

/* floor, ceil, round (half to even), trunc: integers are themselves.        param: shlo_op1, or -1 for trunc */
static void lower_rounding(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, ttc__dtype_op(op_in_dtype(c, 0)));
  if (ttc__is_float(op_in_dtype(c, 0)))
    x = op_param(c) < 0 ? elem_trunc(b, x) : shlo_1(b, (shlo_op1)op_param(c), x);
  op_ret(c, 0, x);
}

/* round.decimals: round(x·10^d) / 10^d, or with division and multiplication changed about for d < 0. */
static void lower_round_decimals(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_in_dtype(c, 0);
  if (!ttc__is_float(d)) {
    op_ret(c, 0, op_in(c, 0));
    return;
  }
  int64_t decimals = op_int(c, 1, 0);
  ttc_val x = op_in_as(c, 0, ttc__dtype_op(d));
  ttc_val ten = elem_f(b, x, pow(10.0, fabs((double)decimals)));
  if (decimals == 0)
    x = shlo_1(b, SHLO_ROUND_EVEN, x);
  else if (decimals > 0)
    x = shlo_div(b, shlo_1(b, SHLO_ROUND_EVEN, shlo_mul(b, x, ten)), ten);
  else
    x = shlo_mul(b, shlo_1(b, SHLO_ROUND_EVEN, shlo_div(b, x, ten)), ten);
  op_ret(c, 0, x);
}

static void lower_frac(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, ttc__dtype_op(op_in_dtype(c, 0)));
  op_ret(c, 0, shlo_sub(b, x, elem_trunc(b, x)));
}

/* exp2(x) = 2^x */
static void lower_exp2(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0));
  ttc_val y = ttc__is_complex(shlo_dtype(b, x)) ? shlo_1(b, SHLO_EXP, shlo_mul(b, x, elem_f(b, x, log(2.0))))
                                                : shlo_2(b, SHLO_POW, elem_f(b, x, 2), x);
  op_ret(c, 0, y);
}

/* ln x / base: by parts where complex, so that infinities stay apart. */
static ttc_val log_over(shlo *b, ttc_val x, double base) {
  ttc_val y = shlo_1(b, SHLO_LOG, x);
  if (!ttc__is_complex(shlo_dtype(b, x)))
    return shlo_div(b, y, elem_f(b, y, base));
  ttc_val re = shlo_1(b, SHLO_REAL, y), k = elem_f(b, re, base);
  return shlo_complex(b, shlo_div(b, re, k), shlo_div(b, shlo_1(b, SHLO_IMAG, y), k));
}

/* log2(x) = ln x / ln 2, exact where f32 x is a power of two (users take its floor): compared with 2^round(y) made of bits. */
static void lower_log2(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0));
  ttc_val y = log_over(b, x, log(2.0));
  if (shlo_dtype(b, x) == TTC_F32) {
    ttc_val r = shlo_1(b, SHLO_ROUND_EVEN, y);
    ttc_val e = shlo_convert(b, shlo_clamp(b, elem_f(b, x, -126), r, elem_f(b, x, 127)), TTC_S32);
    ttc_val p = shlo_2(b, SHLO_SHL, shlo_add(b, e, elem_i(b, e, 127)), elem_i(b, e, 23));
    y = shlo_select(b, shlo_compare(b, SHLO_EQ, shlo_bitcast(b, p, TTC_F32), x), r, y);
  }
  op_ret(c, 0, y);
}

/* log10(x) = ln x / ln 10, exact for the powers of ten that a float holds exactly (10^0 .. 10^15, f32 to 10^10). */
static void lower_log10(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0));
  ttc_val y = log_over(b, x, log(10.0));
  if (ttc__is_float(shlo_dtype(b, x))) {
    ttc_val r = shlo_1(b, SHLO_ROUND_EVEN, y);
    ttc_val e = shlo_convert(b, shlo_clamp(b, elem_f(b, x, 0), r, elem_f(b, x, 15)), TTC_S32);
    ttc_val p = elem_f(b, x, 1);
    for (int k = 0; k < 4; k++) {
      ttc_val bit = elem_cmp(b, SHLO_NE, elem_and(b, e, elem_i(b, e, 1 << k)), 0);
      p = shlo_mul(b, p, shlo_select(b, bit, elem_f(b, x, pow(10.0, 1 << k)), elem_f(b, x, 1)));
    }
    y = shlo_select(b, shlo_compare(b, SHLO_EQ, p, x), r, y);
  }
  op_ret(c, 0, y);
}

static void lower_reciprocal(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0));
  op_ret(c, 0, shlo_div(b, elem_f(b, x, 1), x));
}

/* sgn of complex: x / |x|, 0 at 0. sign of NaN is 0 (PyTorch), so compared rather than StableHLO's sign. */
static void lower_sign(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_in_dtype(c, 0);
  ttc_val x = op_in(c, 0);
  if (ttc__is_complex(d)) {
    ttc_val a = shlo_1(b, SHLO_ABS, x), zero = elem_f(b, a, 0);
    ttc_val safe = shlo_select(b, elem_cmp(b, SHLO_EQ, a, 0), elem_f(b, a, 1), a);
    op_ret(c, 0, shlo_div(b, x, shlo_complex(b, safe, shlo_broadcast_to(b, zero, shlo_ndim(b, a), op_in_sizes(c, 0)))));
  } else if (d == TTC_BOOL) {
    op_ret(c, 0, x);
  } else {
    ttc_val up = shlo_convert(b, elem_cmp(b, SHLO_GT, x, 0), d);
    if (ttc__is_unsigned(d))
      op_ret(c, 0, up);
    else
      op_ret(c, 0, shlo_sub(b, up, shlo_convert(b, elem_cmp(b, SHLO_LT, x, 0), d)));
  }
}

static void lower_signbit(shlo *b, ttc_lower *c) {
  op_ret(c, 0, elem_signbit(b, op_in(c, 0)));
}

/* sinc(x) = sin(πx) / (πx), 1 at 0 */
static void lower_sinc(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0)), one = elem_f(b, x, 1);
  ttc_val zero = shlo_compare(b, SHLO_EQ, x, elem_f(b, x, 0));
  ttc_val t = shlo_mul(b, shlo_select(b, zero, one, x), elem_f(b, x, PI));
  op_ret(c, 0, shlo_select(b, zero, one, shlo_div(b, shlo_1(b, SHLO_SIN, t), t)));
}

/* angle: atan2(im, re); of a real x: π where x < 0, else 0, NaN where NaN. */
static void lower_angle(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_in_dtype(c, 0);
  if (ttc__is_complex(d)) {
    ttc_val x = op_in(c, 0);
    op_ret(c, 0, shlo_2(b, SHLO_ATAN2, shlo_1(b, SHLO_IMAG, x), shlo_1(b, SHLO_REAL, x)));
    return;
  }
  ttc_val x = op_in_as(c, 0, elem_float(c, 0));
  ttc_val y = shlo_select(b, elem_cmp(b, SHLO_LT, x, 0), elem_f(b, x, PI), elem_f(b, x, 0));
  op_ret(c, 0, shlo_select(b, shlo_is_nan(b, x), x, y));
}

static void lower_conj(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0);
  op_ret(c, 0, ttc__is_complex(op_in_dtype(c, 0)) ? shlo_1(b, SHLO_CHLO_CONJ, x) : x);
}

static void lower_neg(shlo *b, ttc_lower *c) {
  op_ret(c, 0, shlo_1(b, SHLO_NEG, op_in(c, 0)));
}

static void lower_bitwise_not(shlo *b, ttc_lower *c) {
  op_ret(c, 0, shlo_1(b, SHLO_NOT, op_in(c, 0)));
}

/* x · param-dependent constant: deg2rad, rad2deg. */
static void lower_degrees(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0));
  op_ret(c, 0, shlo_mul(b, x, elem_f(b, x, op_param(c) ? PI / 180 : 180 / PI)));
}

/* The largest finite value of a float type. */
static double largest(ttc_dtype d) {
  switch (d) {
    case TTC_F64:
      return 1.7976931348623157e308;
    case TTC_F16:
      return 65504;
    case TTC_BF16:
      return 3.3895313892515355e38;
    default:
      return 3.4028234663852886e38;
  }
}

/* nan_to_num of a real float x: args 1..3 are the stand-ins for NaN, inf, -inf (default 0, largest, -largest). */
static ttc_val finite_or(shlo *b, ttc_lower *c, ttc_val x) {
  ttc_dtype d = shlo_dtype(b, x);
  ttc_val nan = op_given(c, 1) ? op_num(c, 1, 0, d) : elem_f(b, x, 0);
  ttc_val pos = op_given(c, 2) ? op_num(c, 2, 0, d) : elem_f(b, x, largest(d));
  ttc_val neg = op_given(c, 3) ? op_num(c, 3, 0, d) : elem_f(b, x, -largest(d));
  ttc_val y = shlo_select(b, shlo_is_nan(b, x), nan, x);
  y = shlo_select(b, elem_cmp(b, SHLO_EQ, x, INFINITY), pos, y);
  return shlo_select(b, elem_cmp(b, SHLO_EQ, x, -INFINITY), neg, y);
}
static void lower_nan_to_num(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0);
  if (ttc__is_complex(op_in_dtype(c, 0))) {
    x = shlo_complex(b, finite_or(b, c, shlo_1(b, SHLO_REAL, x)), finite_or(b, c, shlo_1(b, SHLO_IMAG, x)));
  } else if (ttc__is_float(op_in_dtype(c, 0))) {
    x = finite_or(b, c, x);
  }
  op_ret(c, 0, x);
}

/* digamma: PyTorch has ∓inf at ±0 and NaN at negative integers. */
static void lower_digamma(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0));
  ttc_val pole = shlo_select(b, elem_signbit(b, x), elem_f(b, x, INFINITY), elem_f(b, x, -INFINITY));
  op_ret(c, 0, shlo_select(b, elem_cmp(b, SHLO_EQ, x, 0), pole, shlo_1(b, SHLO_CHLO_DIGAMMA, x)));
}

/* atan(x) = atan2(x, 1), the 1 hidden from the compiler: XLA:CPU's own arc tangent of a constant 1 gives garbage in vector loops.
 */
static void lower_atan(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0));
  bool plain = ttc__is_complex(shlo_dtype(b, x)) || shlo_for_tpu(b);
  op_ret(c, 0, plain ? shlo_1(b, SHLO_CHLO_ATAN, x) : shlo_2(b, SHLO_ATAN2, x, shlo_barrier(b, elem_f(b, x, 1))));
}

/* frexp: x = m · 2^e with |m| in [0.5, 1); e is s32. f32 from its bits: subnormals are scaled up by 2^24 first. */
static void lower_frexp(shlo *b, ttc_lower *c) {
  if (ttc__dtype_op(op_in_dtype(c, 0)) != TTC_F32) {
    op_refuse(c, "frexp of %s", ttc_dtype_name(op_in_dtype(c, 0)));
    return;
  }
  ttc_val x = op_in_as(c, 0, TTC_F32);
  ttc_val tiny = elem_cmp(b, SHLO_LT, shlo_1(b, SHLO_ABS, x), 1.1754943508222875e-38);
  ttc_val bits = shlo_bitcast(b, shlo_select(b, tiny, shlo_mul(b, x, elem_f(b, x, 16777216)), x), TTC_S32);
  ttc_val e = elem_and(b, shlo_2(b, SHLO_SHR_L, bits, elem_i(b, bits, 23)), elem_i(b, bits, 255));
  ttc_val m = shlo_bitcast(
      b, elem_or(b, elem_and(b, bits, elem_i(b, bits, (int64_t)(int32_t)0x807FFFFF)), elem_i(b, bits, 0x3F000000)), TTC_F32);
  ttc_val bias = shlo_select(b, tiny, elem_i(b, e, 150), elem_i(b, e, 126));
  ttc_val plain = elem_or(b, elem_cmp(b, SHLO_EQ, x, 0), elem_not(b, shlo_1(b, SHLO_IS_FINITE, x)));
  op_ret(c, 0, shlo_select(b, plain, x, m));
  op_ret(c, 1, shlo_select(b, plain, elem_i(b, e, 0), shlo_sub(b, e, bias)));
}

#define FLOAT(name, op, tol) EACH_ROW(name, lower_float, op, tol)
#define ROUNDING(name, op) EACH_ROW(name, lower_rounding, op, TOL_EXACT)
const ttc_op_row ttc__unary_rows[] = {
    FLOAT("acos", SHLO_CHLO_ACOS, TOL_4ULP),
    FLOAT("acosh", SHLO_CHLO_ACOSH, TOL_4ULP),
    FLOAT("asin", SHLO_CHLO_ASIN, TOL_4ULP),
    FLOAT("asinh", SHLO_CHLO_ASINH, TOL_4ULP),
    FLOAT("atanh", SHLO_CHLO_ATANH, TOL_4ULP),
    FLOAT("cos", SHLO_COS, TOL_2ULP),
    FLOAT("cosh", SHLO_CHLO_COSH, TOL_4ULP),
    FLOAT("erf", SHLO_CHLO_ERF, TOL_4ULP),
    FLOAT("erfc", SHLO_CHLO_ERFC, TOL_4ULP),
    FLOAT("erfinv", SHLO_CHLO_ERF_INV, TOL_4ULP),
    FLOAT("exp", SHLO_EXP, TOL_2ULP),
    FLOAT("expm1", SHLO_EXPM1, TOL_2ULP),
    FLOAT("lgamma", SHLO_CHLO_LGAMMA, TOL_LOOSE),
    FLOAT("log", SHLO_LOG, TOL_2ULP),
    FLOAT("log1p", SHLO_LOG1P, TOL_2ULP),
    FLOAT("rsqrt", SHLO_RSQRT, TOL_2ULP),
    FLOAT("sigmoid", SHLO_LOGISTIC, TOL_2ULP),
    FLOAT("sin", SHLO_SIN, TOL_2ULP),
    FLOAT("sinh", SHLO_CHLO_SINH, TOL_4ULP),
    FLOAT("sqrt", SHLO_SQRT, TOL_2ULP),
    FLOAT("tan", SHLO_TAN, TOL_4ULP),
    FLOAT("tanh", SHLO_TANH, TOL_4ULP),
    ROUNDING("ceil", SHLO_CEIL),
    ROUNDING("floor", SHLO_FLOOR),
    ROUNDING("round", SHLO_ROUND_EVEN),
    ROUNDING("trunc", -1),
    EACH_ROW("abs", lower_abs, 0, TOL_EXACT),
    EACH_ROW("angle", lower_angle, 0, TOL_2ULP),
    EACH_ROW("atan", lower_atan, 0, TOL_4ULP),
    EACH_ROW("bitwise_not", lower_bitwise_not, 0, TOL_EXACT),
    EACH_ROW("conj_physical", lower_conj, 0, TOL_EXACT),
    EACH_ROW("_conj_physical", lower_conj, 0, TOL_EXACT),
    EACH_ROW("deg2rad", lower_degrees, 1, TOL_2ULP),
    EACH_ROW("digamma", lower_digamma, 0, TOL_LOOSE),
    EACH_ROW("exp2", lower_exp2, 0, TOL_4ULP),
    EACH_ROW("frac", lower_frac, 0, TOL_EXACT),
    {EACH_HEAD("frexp.Tensor", lower_frexp, 0, TOL_EXACT), .note = "float64 falls through"},
    EACH_ROW("log10", lower_log10, 0, TOL_4ULP),
    EACH_ROW("log2", lower_log2, 0, TOL_4ULP),
    EACH_ROW("nan_to_num", lower_nan_to_num, 0, TOL_EXACT),
    EACH_ROW("neg", lower_neg, 0, TOL_EXACT),
    EACH_ROW("rad2deg", lower_degrees, 0, TOL_2ULP),
    EACH_ROW("reciprocal", lower_reciprocal, 0, TOL_2ULP),
    {EACH_HEAD("round.decimals", lower_round_decimals, 0, TOL_2ULP), .note = "one program for each number of decimals"},
    EACH_ROW("sgn", lower_sign, 0, TOL_2ULP),
    EACH_ROW("sign", lower_sign, 0, TOL_EXACT),
    EACH_ROW("signbit", lower_signbit, 0, TOL_EXACT),
    EACH_ROW("sinc", lower_sinc, 0, TOL_4ULP),
};
TTC_FAMILY(unary)
