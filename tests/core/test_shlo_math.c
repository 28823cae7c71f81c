/* The StableHLO builder's constants and elementwise operations on a real XLA:CPU plugin, against hand-worked values or libm. */
#include <complex.h>
#include <math.h>

#include "shlo_run.h"

/* ---- constants */

static void test_const(void) {
  prog p = begin("const");
  shlo *b = p.b;
  IN_F32(&p, SCALAR, 0);
  static const double ones[2] = {1, 1}; /* outlives the loop */
  for (ttc_dtype d = TTC_BOOL; d < TTC_NDTYPE; d++) {
    if (d != TTC_F4E2M1FNX2) {
      out(&p, ttc_dtype_name(d), shlo_const_f(b, d, 1, DIMS(2)), 0, 2, ones);
    }
  }
  out(&p, "nan", shlo_const_f(b, TTC_BF16, NAN, SCALAR), 0, WANT(NAN));
  out(&p, "-inf", shlo_lowest(b, TTC_F16), 0, WANT(-INFINITY));
  out(&p, "-0", shlo_const_f(b, TTC_F32, -0.0, SCALAR), 0, WANT(-0.0));
  out(&p, "0.1", shlo_const_f(b, TTC_F64, 0.1, SCALAR), 0, WANT(0.1));
  out(&p, "third", shlo_const_f(b, TTC_F32, 1.0 / 3, SCALAR), 0, WANT(0x1.555556p-2));
  out(&p, "i64", shlo_const_i(b, TTC_S64, INT64_MIN, SCALAR), 0, WANT(-0x1p63));
  out(&p, "u64", shlo_highest(b, TTC_U64), 0, WANT(0x1p64));
  out(&p, "s8", shlo_lowest(b, TTC_S8), 0, WANT(-128));
  out(&p, "u16", shlo_highest(b, TTC_U16), 0, WANT(65535));
  out(&p, "f8", shlo_highest(b, TTC_F8E4M3FN), 0, WANT(448));
  out(&p, "table", shlo_const_table(b, TTC_S32, 3, I64(5, -7, 9)), 0, WANT(5, -7, 9));
  out(&p, "empty table", shlo_const_table(b, TTC_S32, 0, NULL), 0, NONE);
  out(&p, "empty", shlo_const_f(b, TTC_F32, 1, DIMS(3, 0)), 0, NONE);
  out(&p, "iota", shlo_iota(b, TTC_S16, 1, DIMS(2, 3)), 0, WANT(0, 1, 2, 0, 1, 2));
  out(&p, "iota empty", shlo_iota(b, TTC_F32, 0, DIMS(2, 0)), 0, NONE);
  out(&p, "imag", shlo_1(b, SHLO_IMAG, shlo_const_f(b, TTC_C128, 2, DIMS(1))), 0, WANT(0));
  run(&p);
}

/* ---- elementwise */

static void test_unary(void) {
  prog p = begin("unary");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(4), -1.5f, 0.25f, 2.5f, NAN), i = IN_S32(&p, DIMS(3), -7, 0, 6), u = IN_U8(&p, DIMS(3), 0, 3, 200);
  ttc_val t = IN_BOOL(&p, DIMS(2), true, false), c = IN_C64(&p, DIMS(1), 3, -4);
  out(&p, "abs", shlo_1(b, SHLO_ABS, x), 0, WANT(1.5, 0.25, 2.5, NAN));
  out(&p, "abs u", shlo_1(b, SHLO_ABS, u), 0, WANT(0, 3, 200));
  out(&p, "abs c", shlo_1(b, SHLO_ABS, c), 1e-6, WANT(5));
  out(&p, "ceil", shlo_1(b, SHLO_CEIL, x), 0, WANT(-1, 1, 3, NAN));
  out(&p, "floor", shlo_1(b, SHLO_FLOOR, x), 0, WANT(-2, 0, 2, NAN));
  out(&p, "even", shlo_1(b, SHLO_ROUND_EVEN, x), 0, WANT(-2, 0, 2, NAN));
  out(&p, "afz", shlo_1(b, SHLO_ROUND_AFZ, x), 0, WANT(-2, 0, 3, NAN));
  out(&p, "sign", shlo_1(b, SHLO_SIGN, i), 0, WANT(-1, 0, 1));
  out(&p, "sign u", shlo_1(b, SHLO_SIGN, u), 0, WANT(0, 1, 1));
  out(&p, "neg", shlo_1(b, SHLO_NEG, i), 0, WANT(7, 0, -6));
  out(&p, "not", shlo_1(b, SHLO_NOT, t), 0, WANT(0, 1));
  out(&p, "popcnt", shlo_1(b, SHLO_POPCNT, u), 0, WANT(0, 2, 3));
  out(&p, "clz", shlo_1(b, SHLO_CLZ, u), 0, WANT(8, 6, 0));
  out(&p, "finite", shlo_1(b, SHLO_IS_FINITE, x), 0, WANT(1, 1, 1, 0));
  out(&p, "is_nan", shlo_is_nan(b, x), 0, WANT(0, 0, 0, 1));
  out(&p, "is_nan i", shlo_is_nan(b, i), 0, WANT(0, 0, 0));
  out(&p, "is_nan c", shlo_is_nan(b, shlo_complex(b, x, shlo_const_like(b, x, 1))), 0, WANT(0, 0, 0, 1));
  out(&p, "real", shlo_1(b, SHLO_REAL, c), 0, WANT(3));
  out(&p, "imag conj", shlo_1(b, SHLO_IMAG, shlo_1(b, SHLO_CHLO_CONJ, c)), 0, WANT(4));
  run(&p);
}

/* Values at two points against libm, for every float operation and dtype. */
typedef struct math_case {
  const char *name;
  shlo_op1 op;
  double x[2], y[2];
} math_case;

static double ulp(ttc_dtype d) {
  return d == TTC_F64 ? 1e-13 : d == TTC_F32 ? 4e-6 : d == TTC_F16 ? 4e-3 : d == TTC_BF16 ? 3e-2 : 0.07;
}

static void test_math(ttc_dtype d) {
  const math_case cases[] = {
      {"cbrt", SHLO_CBRT, {8, 0.125}, {2, 0.5}},
      {"cos", SHLO_COS, {0.5, 2}, {cos(0.5), cos(2)}},
      {"exp", SHLO_EXP, {0.5, 2}, {exp(0.5), exp(2)}},
      {"expm1", SHLO_EXPM1, {0.5, -2}, {expm1(0.5), expm1(-2)}},
      {"log", SHLO_LOG, {0.5, 2}, {log(0.5), log(2)}},
      {"log1p", SHLO_LOG1P, {0.5, 2}, {log1p(0.5), log1p(2)}},
      {"logistic", SHLO_LOGISTIC, {0.5, -2}, {1 / (1 + exp(-0.5)), 1 / (1 + exp(2))}},
      {"rsqrt", SHLO_RSQRT, {0.25, 4}, {2, 0.5}},
      {"sin", SHLO_SIN, {0.5, 2}, {sin(0.5), sin(2)}},
      {"sqrt", SHLO_SQRT, {0.25, 4}, {0.5, 2}},
      {"tan", SHLO_TAN, {0.5, 1}, {tan(0.5), tan(1)}},
      {"tanh", SHLO_TANH, {0.5, 2}, {tanh(0.5), tanh(2)}},
      {"acos", SHLO_CHLO_ACOS, {0.5, -1}, {acos(0.5), acos(-1)}},
      {"acosh", SHLO_CHLO_ACOSH, {1.5, 4}, {acosh(1.5), acosh(4)}},
      {"asin", SHLO_CHLO_ASIN, {0.5, -1}, {asin(0.5), asin(-1)}},
      {"asinh", SHLO_CHLO_ASINH, {0.5, -4}, {asinh(0.5), asinh(-4)}},
      {"atan", SHLO_CHLO_ATAN, {0.5, -4}, {atan(0.5), atan(-4)}},
      {"atanh", SHLO_CHLO_ATANH, {0.5, -0.25}, {atanh(0.5), atanh(-0.25)}},
      {"i1e", SHLO_CHLO_BESSEL_I1E, {1, -2}, {0.20791041534970845, -0.21526928924893766}},
      {"cosh", SHLO_CHLO_COSH, {0.5, -2}, {cosh(0.5), cosh(-2)}},
      {"digamma", SHLO_CHLO_DIGAMMA, {1, 0.5}, {-0.57721566490153286, -1.9635100260214235}},
      {"erf", SHLO_CHLO_ERF, {0.5, -2}, {erf(0.5), erf(-2)}},
      {"erfc", SHLO_CHLO_ERFC, {0.5, -2}, {erfc(0.5), erfc(-2)}},
      {"erf_inv", SHLO_CHLO_ERF_INV, {0.5, -0.5}, {0.47693627620446987, -0.47693627620446987}},
      {"lgamma", SHLO_CHLO_LGAMMA, {0.5, 4}, {lgamma(0.5), lgamma(4)}},
      {"sinh", SHLO_CHLO_SINH, {0.5, -2}, {sinh(0.5), sinh(-2)}},
  };
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    char name[64];
    snprintf(name, sizeof name, "%s %s", cases[k].name, ttc_dtype_name(d));
    prog p = begin(name);
    ttc_val x = in(&p, TTC_F64, DIMS(2), cases[k].x);
    out(&p, "y", shlo_1(p.b, cases[k].op, shlo_convert(p.b, x, d)), ulp(d), 2, cases[k].y);
    run(&p);
  }
}

typedef double complex (*complex_fn)(double complex);

static double complex csigmoid(double complex z) {
  return 1 / (1 + cexp(-z));
}
static double complex crsqrt(double complex z) {
  return 1 / csqrt(z);
}
static double complex cexpm1_(double complex z) {
  return cexp(z) - 1;
}
static double complex clog1p_(double complex z) {
  return clog(1 + z);
}

static void test_complex_math(ttc_dtype d) {
  static const struct {
    const char *name;
    shlo_op1 op;
    complex_fn fn;
  } cases[] = {
      {"cos", SHLO_COS, ccos},
      {"exp", SHLO_EXP, cexp},
      {"expm1", SHLO_EXPM1, cexpm1_},
      {"log", SHLO_LOG, clog},
      {"log1p", SHLO_LOG1P, clog1p_},
      {"logistic", SHLO_LOGISTIC, csigmoid},
      {"rsqrt", SHLO_RSQRT, crsqrt},
      {"sin", SHLO_SIN, csin},
      {"sqrt", SHLO_SQRT, csqrt},
      {"tan", SHLO_TAN, ctan},
      {"tanh", SHLO_TANH, ctanh},
      {"acos", SHLO_CHLO_ACOS, cacos},
      {"acosh", SHLO_CHLO_ACOSH, cacosh},
      {"asin", SHLO_CHLO_ASIN, casin},
      {"asinh", SHLO_CHLO_ASINH, casinh},
      {"atan", SHLO_CHLO_ATAN, catan},
      {"atanh", SHLO_CHLO_ATANH, catanh},
      {"cosh", SHLO_CHLO_COSH, ccosh},
      {"sinh", SHLO_CHLO_SINH, csinh},
  };
  const double z[4] = {0.5, -0.75, -1.25, 0.5};
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    char name[64];
    double re[2], im[2];
    snprintf(name, sizeof name, "%s %s", cases[k].name, ttc_dtype_name(d));
    for (int i = 0; i < 2; i++) {
      double complex y = cases[k].fn(z[2 * i] + z[2 * i + 1] * I);
      re[i] = creal(y);
      im[i] = cimag(y);
    }
    prog p = begin(name);
    ttc_val x = in(&p, TTC_C128, DIMS(2), z), y = shlo_1(p.b, cases[k].op, shlo_convert(p.b, x, d));
    out(&p, "re", shlo_1(p.b, SHLO_REAL, y), d == TTC_C64 ? 4e-6 : 1e-13, 2, re);
    out(&p, "im", shlo_1(p.b, SHLO_IMAG, y), d == TTC_C64 ? 4e-6 : 1e-13, 2, im);
    run(&p);
  }
}

/* What the two-operand operations do, broadcasting included. */
static void test_binary(void) {
  prog p = begin("binary");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(2, 1), 7, -7), y = IN_F32(&p, DIMS(3), 2, -2, NAN);
  ttc_val i = IN_S32(&p, DIMS(2), -8, 13), t = IN_BOOL(&p, DIMS(2), true, false), s = IN_S32(&p, SCALAR, 2);
  out(&p, "add", shlo_add(b, x, y), 0, WANT(9, 5, NAN, -5, -9, NAN));
  out(&p, "sub", shlo_sub(b, y, x), 0, WANT(-5, -9, NAN, 9, 5, NAN));
  out(&p, "div", shlo_div(b, x, y), 0, WANT(3.5, -3.5, NAN, -3.5, 3.5, NAN));
  out(&p, "rem", shlo_2(b, SHLO_REM, x, y), 0, WANT(1, 1, NAN, -1, -1, NAN));
  out(&p, "max", shlo_2(b, SHLO_MAX, x, y), 0, WANT(7, 7, NAN, 2, -2, NAN));
  out(&p, "min", shlo_2(b, SHLO_MIN, x, y), 0, WANT(2, -2, NAN, -7, -7, NAN));
  out(&p, "pow", shlo_2(b, SHLO_POW, x, y), 1e-6, WANT(49, 1.0 / 49, NAN, 49, 1.0 / 49, NAN));
  out(&p, "atan2", shlo_2(b, SHLO_ATAN2, x, y), 1e-6, WANT(atan2(7, 2), atan2(7, -2), NAN, atan2(-7, 2), atan2(-7, -2), NAN));
  out(&p, "idiv", shlo_div(b, i, s), 0, WANT(-4, 6));
  out(&p, "imul", shlo_mul(b, s, i), 0, WANT(-16, 26));
  out(&p, "and", shlo_2(b, SHLO_AND, i, s), 0, WANT(0, 0));
  out(&p, "or", shlo_2(b, SHLO_OR, t, shlo_1(b, SHLO_NOT, t)), 0, WANT(1, 1));
  out(&p, "xor", shlo_2(b, SHLO_XOR, i, s), 0, WANT(-6, 15));
  out(&p, "shl", shlo_2(b, SHLO_SHL, i, s), 0, WANT(-32, 52));
  out(&p, "shr a", shlo_2(b, SHLO_SHR_A, i, s), 0, WANT(-2, 3));
  out(&p, "shr l", shlo_2(b, SHLO_SHR_L, i, s), 0, WANT(0x3ffffffe, 3));
  out(&p, "lt", shlo_compare(b, SHLO_LT, x, y), 0, WANT(0, 0, 0, 1, 1, 0));
  out(&p, "ne", shlo_compare(b, SHLO_NE, y, y), 0, WANT(0, 0, 1));
  out(&p, "total", shlo_compare_total(b, SHLO_LT, x, y), 0, WANT(0, 0, 1, 1, 1, 1));
  out(&p, "total int", shlo_compare_total(b, SHLO_LE, i, s), 0, WANT(1, 0));
  out(&p, "select", shlo_select(b, t, i, s), 0, WANT(-8, 2));
  out(&p, "select rows", shlo_select(b, shlo_compare(b, SHLO_GT, x, shlo_const_like(b, x, 0)), x, y), 0, WANT(7, 7, 7, 2, -2, NAN));
  out(&p, "select scalar", shlo_select(b, shlo_const_i(b, TTC_BOOL, 1, SCALAR), y, shlo_const_f(b, TTC_F32, 1, SCALAR)), 0,
      WANT(2, -2, NAN));
  out(&p, "clamp", shlo_clamp(b, shlo_const_f(b, TTC_F32, -1, SCALAR), y, shlo_const_f(b, TTC_F32, 1, SCALAR)), 0,
      WANT(1, -1, NAN));
  out(&p, "clamp rows", shlo_clamp(b, x, y, shlo_const_f(b, TTC_F32, 8, SCALAR)), 0, WANT(7, 7, NAN, 2, -2, NAN));
  run(&p);
}

static void test_complex_binary(ttc_dtype d) {
  static const struct {
    const char *name;
    shlo_op2 op;
  } cases[] = {{"add", SHLO_ADD}, {"sub", SHLO_SUB}, {"mul", SHLO_MUL}, {"div", SHLO_DIV}, {"pow", SHLO_POW}};
  const double complex x = 1.5 - 0.5 * I, y = -0.25 + 2 * I, results[] = {x + y, x - y, x * y, x / y, cpow(x, y)};
  double parts[5][2], sign[2] = {creal(x / cabs(x)), cimag(x / cabs(x))}, tol = d == TTC_C64 ? 2e-6 : 1e-13;
  prog p = begin("complex binary");
  shlo *b = p.b;
  ttc_val vx = in(&p, TTC_C128, SCALAR, &x), vy = in(&p, TTC_C128, SCALAR, &y);
  vx = shlo_convert(b, vx, d);
  vy = shlo_convert(b, vy, d);
  for (int k = 0; k < 5; k++) {
    ttc_val r = shlo_2(b, cases[k].op, vx, vy);
    parts[k][0] = creal(results[k]);
    parts[k][1] = cimag(results[k]);
    out(&p, cases[k].name, shlo_1(b, SHLO_REAL, r), tol, 1, &parts[k][0]);
    out(&p, cases[k].name, shlo_1(b, SHLO_IMAG, r), tol, 1, &parts[k][1]);
  }
  ttc_val s = shlo_1(b, SHLO_SIGN, vx);
  out(&p, "sign", shlo_1(b, SHLO_REAL, s), tol, 1, &sign[0]);
  out(&p, "sign", shlo_1(b, SHLO_IMAG, s), tol, 1, &sign[1]);
  out(&p, "eq", shlo_compare(b, SHLO_EQ, vx, vy), 0, WANT(0));
  out(&p, "ne", shlo_compare(b, SHLO_NE, vx, vy), 0, WANT(1));
  run(&p);
}

static void test_special(ttc_dtype d) {
  prog p = begin("special");
  shlo *b = p.b;
  ttc_val x = shlo_convert(b, in(&p, TTC_F64, DIMS(2), (const double[]){2, 3}), d), one = shlo_const_like(b, x, 1);
  double tol = d == TTC_F64 ? 1e-12 : d == TTC_F32 ? 1e-5 : 3e-2;
  out(&p, "zeta", shlo_2(b, SHLO_CHLO_ZETA, x, one), tol, WANT(1.6449340668482264, 1.2020569031595943));
  out(&p, "polygamma", shlo_2(b, SHLO_CHLO_POLYGAMMA, one, x), tol, WANT(0.64493406684822644, 0.39493406684822644));
  ttc_val up = shlo_2(b, SHLO_CHLO_NEXT_AFTER, x, shlo_const_like(b, x, 100));
  double step = d == TTC_F64 ? 0x1p-51 : d == TTC_F32 ? 0x1p-22 : d == TTC_F16 ? 0x1p-9 : 0x1p-6;
  double steps[2] = {step, step};
  out(&p, "next_after", shlo_sub(b, up, x), 0, 2, steps);
  run(&p);
}

static void test_convert(void) {
  prog p = begin("convert");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(5), 0.5f, -1.9f, 0, NAN, 300.7f), c = IN_C64(&p, DIMS(3), 0, 2, 0, 0, -3, 1);
  ttc_val i = IN_S64(&p, DIMS(3), 0, -1, 513), t = IN_BOOL(&p, DIMS(2), true, false);
  out(&p, "f->bool", shlo_convert(b, x, TTC_BOOL), 0, WANT(1, 1, 0, 1, 1));
  out(&p, "f->s32", shlo_convert(b, x, TTC_S32), 0, WANT(0, -1, 0, 0, 300));
  out(&p, "f->u8", shlo_convert(b, x, TTC_U8), 0, WANT(0, 255, 0, 0, 44));
  out(&p, "c->bool", shlo_convert(b, c, TTC_BOOL), 0, WANT(1, 0, 1));
  out(&p, "c->f", shlo_convert(b, c, TTC_F16), 0, WANT(0, 0, -3));
  out(&p, "c->c", shlo_1(b, SHLO_IMAG, shlo_convert(b, c, TTC_C128)), 0, WANT(2, 0, 1));
  out(&p, "i->c", shlo_convert(b, i, TTC_C64), 0, WANT(0, -1, 513));
  out(&p, "i->bool", shlo_convert(b, i, TTC_BOOL), 0, WANT(0, 1, 1));
  out(&p, "i->u8", shlo_convert(b, i, TTC_U8), 0, WANT(0, 255, 1));
  out(&p, "bool->bf16", shlo_convert(b, t, TTC_BF16), 0, WANT(1, 0));
  out(&p, "f->f8", shlo_convert(b, x, TTC_F8E5M2), 0, WANT(0.5, -2, 0, NAN, 320));
  out(&p, "bits", shlo_bitcast(b, x, TTC_U32), 0, WANT(0x3f000000, 0xbff33333u, 0, 0x7fc00000, 0x4396599a));
  out(&p, "bits narrow", shlo_bitcast(b, shlo_slice_axis(b, x, 0, 4, 5), TTC_U16), 0, WANT(0x599a, 0x4396));
  out(&p, "bits wide", shlo_bitcast(b, shlo_bitcast(b, x, TTC_U8), TTC_F32), 0, WANT(0.5, -1.9f, 0, NAN, 300.7f));
  out(&p, "bits bool", shlo_bitcast(b, t, TTC_U8), 0, WANT(1, 0));
  out(&p, "bits bool wide", shlo_bitcast(b, t, TTC_U16), 0, WANT(1));
  out(&p, "byte to bool", shlo_bitcast(b, shlo_convert(b, t, TTC_U8), TTC_BOOL), 0, WANT(1, 0));
  run(&p);
}

int main(void) {
  int code;
  if (!open_client(&code)) {
    return code;
  }
  test_const();
  test_unary();
  test_binary();
  test_convert();
  test_complex_binary(TTC_C64);
  test_complex_binary(TTC_C128);
  for (ttc_dtype d = TTC_F16; d <= TTC_F8E4M3FN; d++) {
    test_math(d);
    if (d <= TTC_F64) {
      test_special(d);
    }
  }
  test_complex_math(TTC_C64);
  test_complex_math(TTC_C128);
  pjrt_client_free(client);
  return CHECK_DONE();
}
