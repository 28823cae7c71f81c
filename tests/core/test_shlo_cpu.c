/* The StableHLO builder's programs on a real XLA:CPU plugin, against values worked out by hand or by libm. TTC_CPU_PLUGIN names the
 * plugin, or TTC_TEST_SITE_PACKAGES where packages lie. Skipped without one. */
#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "pjrt/pjrt.h"
#include "shlo/shlo.h"

static pjrt_client *client;
static ttc_error err;

enum { MAX_ARG = 8, MAX_OUT = 48 };

/* A program under test: its arguments' buffers, and what each result must be. */
typedef struct prog {
  const char *name;
  shlo *b;
  int narg, nout;
  pjrt_buffer *args[MAX_ARG];
  int64_t count[MAX_OUT];
  const double *want[MAX_OUT];
  double tol[MAX_OUT];
  const char *what[MAX_OUT];
} prog;

#define DIMS(...)                                                        \
  (int)(sizeof((const int64_t[]){__VA_ARGS__}) / 8), (const int64_t[]) { \
    __VA_ARGS__                                                          \
  }
#define SCALAR 0, NULL
#define AXES(...)                                                          \
  (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)), (const int[]) { \
    __VA_ARGS__                                                            \
  }
#define I64(...) ((const int64_t[]){__VA_ARGS__})
#define INT(...) ((const int[]){__VA_ARGS__})
#define WANT(...)                                                          \
  (int64_t)(sizeof((const double[]){__VA_ARGS__}) / 8), (const double[]) { \
    __VA_ARGS__                                                            \
  }
#define NONE 0, (const double[]){0}

static prog begin(const char *name) {
  prog p = {.name = name, .b = shlo_new(name)};
  return p;
}

static ttc_val in(prog *p, ttc_dtype d, int ndim, const int64_t *dims, const void *data) {
  if (pjrt_buffer_from_host(client, 0, d, ndim, dims, data, &p->args[p->narg++], &err) != TTC_OK) {
    fprintf(stderr, "%s: %s\n", p->name, err.message);
    CHECK(!"from_host");
  }
  return shlo_param(p->b, d, ndim, dims);
}

#define IN_F32(p, dims, ...) in((p), TTC_F32, dims, (const float[]){__VA_ARGS__})
#define IN_S64(p, dims, ...) in((p), TTC_S64, dims, (const int64_t[]){__VA_ARGS__})
#define IN_S32(p, dims, ...) in((p), TTC_S32, dims, (const int32_t[]){__VA_ARGS__})
#define IN_U8(p, dims, ...) in((p), TTC_U8, dims, (const uint8_t[]){__VA_ARGS__})
#define IN_S8(p, dims, ...) in((p), TTC_S8, dims, (const int8_t[]){__VA_ARGS__})
#define IN_BOOL(p, dims, ...) in((p), TTC_BOOL, dims, (const bool[]){__VA_ARGS__})
#define IN_C64(p, dims, ...) in((p), TTC_C64, dims, (const float[]){__VA_ARGS__})

/* The result, as float64, must be `want`. */
static void out(prog *p, const char *what, ttc_val v, double tol, int64_t count, const double *want) {
  v = shlo_convert(p->b, v, TTC_F64);
  if (shlo_failed(p->b)) {
    return;
  }
  if (shlo_nelem(p->b, v) != count) {
    fprintf(stderr, "%s: %s has %lld elements\n", p->name, what, (long long)shlo_nelem(p->b, v));
    CHECK(!"number of elements");
    return;
  }
  shlo_result(p->b, v);
  p->what[p->nout] = what;
  p->count[p->nout] = count;
  p->want[p->nout] = want;
  p->tol[p->nout++] = tol;
}

static bool close_to(double got, double want, double tol) {
  if (isnan(want) || isinf(want) || isnan(got) || isinf(got)) {
    return (isnan(want) && isnan(got)) || got == want;
  }
  return fabs(got - want) <= tol * (1 + fabs(want)) && (tol != 0 || signbit(got) == signbit(want));
}

static void compare(prog *p, pjrt_buffer **outs) {
  double host[512];
  for (int k = 0; k < p->nout; k++) {
    if (pjrt_buffer_to_host(client, outs[k], 0, (size_t)p->count[k] * 8, host, &err) != TTC_OK) {
      fprintf(stderr, "%s: %s: %s\n", p->name, p->what[k], err.message);
      CHECK(!"to_host");
      continue;
    }
    bool ok = true;
    for (int64_t i = 0; i < p->count[k]; i++) {
      if (!close_to(host[i], p->want[k][i], p->tol[k])) {
        ok = false;
        fprintf(stderr, "%s: %s: [%lld] is %.9g, expected %.9g\n", p->name, p->what[k], (long long)i, host[i], p->want[k][i]);
      }
    }
    CHECK(ok);
  }
}

static void run(prog *p) {
  char *text = NULL;
  pjrt_exe *e = NULL;
  pjrt_buffer *outs[MAX_OUT] = {0};
  if (shlo_finish(p->b, &text, &err) != TTC_OK) {
    fprintf(stderr, "%s: %s\n", p->name, err.message);
    CHECK(!"finish");
  } else if (pjrt_compile(client, 0, text, strlen(text), NULL, &e, &err) != TTC_OK) {
    fprintf(stderr, "%s: %s\n%s", p->name, err.message, text);
    CHECK(!"compile");
  } else if (pjrt_execute(e, p->args, (size_t)p->narg, NULL, 0, outs, &err) != TTC_OK) {
    fprintf(stderr, "%s: %s\n", p->name, err.message);
    CHECK(!"execute");
  } else {
    compare(p, outs);
  }
  for (int k = 0; k < p->nout; k++) {
    pjrt_buffer_free(client, outs[k]);
  }
  for (int k = 0; k < p->narg; k++) {
    pjrt_buffer_free(client, p->args[k]);
  }
  pjrt_exe_free(e);
  free(text);
  shlo_free(p->b);
}

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
  return d == TTC_F64 ? 1e-13 : d == TTC_F32 ? 4e-6 : d == TTC_F16 ? 4e-3 : 3e-2;
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

/* logaddexp-like pairs: what the two-operand operations do, broadcasting included. */
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

/* ---- shape */

static void test_shape(void) {
  prog p = begin("shape");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(2, 3), 1, 2, 3, 4, 5, 6), z = in(&p, TTC_F32, DIMS(2, 0), NULL), i = IN_S32(&p, SCALAR, 1);
  ttc_val v = shlo_const_f(b, TTC_F32, 9, SCALAR);
  out(&p, "reshape", shlo_reshape(b, x, DIMS(3, 2)), 0, WANT(1, 2, 3, 4, 5, 6));
  out(&p, "reshape empty", shlo_reshape(b, z, DIMS(0, 7)), 0, NONE);
  out(&p, "transpose", shlo_transpose(b, x, INT(1, 0)), 0, WANT(1, 4, 2, 5, 3, 6));
  out(&p, "broadcast", shlo_broadcast_in_dim(b, shlo_slice_axis(b, x, 1, 1, 2), DIMS(2, 2, 1), INT(1, 2)), 0, WANT(2, 5, 2, 5));
  out(&p, "broadcast to", shlo_broadcast_to(b, v, DIMS(2, 2)), 0, WANT(9, 9, 9, 9));
  out(&p, "broadcast empty", shlo_broadcast_to(b, shlo_slice_axis(b, x, 0, 0, 1), DIMS(0, 3)), 0, NONE);
  out(&p, "squeeze", shlo_squeeze(b, shlo_unsqueeze(b, x, 2), 2), 0, WANT(1, 2, 3, 4, 5, 6));
  out(&p, "slice", shlo_slice(b, x, I64(0, 0), I64(2, 3), I64(1, 2)), 0, WANT(1, 3, 4, 6));
  out(&p, "slice none", shlo_slice(b, x, I64(1, 3), I64(1, 3), NULL), 0, NONE);
  out(&p, "pad", shlo_pad(b, x, v, I64(1, -1), I64(0, 1), I64(0, 1)), 0, WANT(9, 9, 9, 9, 9, 9, 2, 9, 3, 9, 9, 5, 9, 6, 9));
  out(&p, "pad empty", shlo_pad(b, z, v, I64(0, 1), I64(0, 1), NULL), 0, WANT(9, 9, 9, 9));
  out(&p, "crop", shlo_pad(b, x, v, I64(-1, 0), I64(0, -2), NULL), 0, WANT(4));
  out(&p, "concat", shlo_concat(b, 3, (const ttc_val[]){x, z, x}, 1), 0, WANT(1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6));
  out(&p, "concat empty", shlo_concat(b, 2, (const ttc_val[]){z, z}, 0), 0, NONE);
  out(&p, "reverse", shlo_reverse(b, x, AXES(0, 1)), 0, WANT(6, 5, 4, 3, 2, 1));
  out(&p, "reverse empty", shlo_reverse(b, z, AXES(0, 1)), 0, NONE);
  ttc_val two[2] = {i, i}, mixed[2] = {i, shlo_const_i(b, TTC_S64, 7, SCALAR)};
  out(&p, "dynamic_slice", shlo_dynamic_slice(b, x, two, I64(1, 2)), 0, WANT(5, 6));
  out(&p, "dynamic_slice clamped", shlo_dynamic_slice(b, x, mixed, I64(1, 2)), 0, WANT(5, 6));
  out(&p, "dynamic_slice none", shlo_dynamic_slice(b, x, two, I64(0, 2)), 0, NONE);
  out(&p, "dynamic_update_slice", shlo_dynamic_update_slice(b, x, shlo_broadcast_to(b, v, DIMS(1, 2)), two), 0,
      WANT(1, 2, 3, 4, 9, 9));
  out(&p, "update_slice", shlo_update_slice(b, x, shlo_broadcast_to(b, v, DIMS(2, 1)), I64(0, 2)), 0, WANT(1, 2, 9, 4, 5, 9));
  out(&p, "update_slice none", shlo_update_slice(b, x, z, I64(0, 3)), 0, WANT(1, 2, 3, 4, 5, 6));
  out(&p, "barrier", shlo_barrier(b, x), 0, WANT(1, 2, 3, 4, 5, 6));
  run(&p);
}

/* ---- reductions */

/* argmax with ties to the first: (value, place) pairs. */
static void later(shlo *b, void *ctx, const ttc_val *a, ttc_val *r) {
  (void)ctx;
  ttc_val gt = shlo_compare(b, SHLO_GT, a[2], a[0]);
  ttc_val tie = shlo_2(b, SHLO_AND, shlo_compare(b, SHLO_EQ, a[2], a[0]), shlo_compare(b, SHLO_LT, a[3], a[1]));
  ttc_val take = shlo_2(b, SHLO_OR, gt, tie);
  r[0] = shlo_select(b, take, a[2], a[0]);
  r[1] = shlo_select(b, take, a[3], a[1]);
}

static void test_reduce(void) {
  prog p = begin("reduce");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(2, 3), 1, -2, 3, 4, NAN, 6), z = in(&p, TTC_F32, DIMS(2, 0), NULL);
  ttc_val i = IN_S8(&p, DIMS(2, 3), 1, -2, 3, 100, 20, 60), t = IN_BOOL(&p, DIMS(2, 2), true, false, true, true);
  ttc_val u = IN_U8(&p, DIMS(3), 200, 3, 7), c = IN_C64(&p, DIMS(2), 1, 2, 3, -4);
  out(&p, "sum", shlo_reduce(b, SHLO_SUM, x, AXES(0)), 0, WANT(5, NAN, 9));
  out(&p, "sum all", shlo_reduce(b, SHLO_SUM, i, AXES(1, 0)), 0, WANT(-74)); /* 182 wraps */
  out(&p, "sum no axis", shlo_reduce(b, SHLO_SUM, u, 0, NULL), 0, WANT(200, 3, 7));
  out(&p, "prod", shlo_reduce(b, SHLO_PROD, x, AXES(1)), 0, WANT(-6, NAN));
  out(&p, "amax", shlo_reduce(b, SHLO_AMAX, x, AXES(1)), 0, WANT(3, NAN));
  out(&p, "amin", shlo_reduce(b, SHLO_AMIN, x, AXES(1)), 0, WANT(-2, NAN));
  out(&p, "amax i", shlo_reduce(b, SHLO_AMAX, i, AXES(1)), 0, WANT(3, 100));
  out(&p, "amin u", shlo_reduce(b, SHLO_AMIN, u, AXES(0)), 0, WANT(3));
  out(&p, "all", shlo_reduce(b, SHLO_ALL, t, AXES(1)), 0, WANT(0, 1));
  out(&p, "any", shlo_reduce(b, SHLO_ANY, t, AXES(0)), 0, WANT(1, 1));
  out(&p, "xor", shlo_reduce(b, SHLO_BIT_XOR, u, AXES(0)), 0, WANT(204));
  out(&p, "sum c", shlo_1(b, SHLO_IMAG, shlo_reduce(b, SHLO_SUM, c, AXES(0))), 0, WANT(-2));
  out(&p, "sum empty", shlo_reduce(b, SHLO_SUM, z, AXES(1)), 0, WANT(0, 0));
  out(&p, "amax empty", shlo_reduce(b, SHLO_AMAX, z, AXES(1)), 0, WANT(-INFINITY, -INFINITY));
  out(&p, "prod empty", shlo_reduce(b, SHLO_PROD, z, AXES(0)), 0, NONE);
  run(&p);
  ttc_val xs[2], inits[2], rs[2];
  p = begin("reduce_body");
  b = p.b;
  xs[0] = IN_F32(&p, DIMS(2, 3), 1, 5, 5, 4, 4, 0);
  xs[1] = shlo_iota(b, TTC_S64, 1, DIMS(2, 3));
  inits[0] = shlo_lowest(b, TTC_F32);
  inits[1] = shlo_const_i(b, TTC_S64, INT64_MAX, SCALAR);
  shlo_reduce_body(b, 2, xs, inits, AXES(1), later, NULL, rs);
  out(&p, "max", rs[0], 0, WANT(5, 4));
  out(&p, "argmax", rs[1], 0, WANT(1, 0));
  run(&p);
}

static void test_window(void) {
  prog p = begin("window");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(4), 1, 5, 5, 2), z = in(&p, TTC_F32, DIMS(2, 0), NULL), s = IN_F32(&p, DIMS(2), 10, 20);
  ttc_val n = IN_F32(&p, DIMS(4), 1, NAN, 5, 2), i = IN_S32(&p, DIMS(4), 1, 5, 5, 2);
  out(&p, "sum", shlo_reduce_window(b, SHLO_SUM, x, I64(2), I64(1), NULL, I64(1), I64(0)), 0, WANT(1, 6, 10, 7));
  out(&p, "max", shlo_reduce_window(b, SHLO_AMAX, n, I64(2), I64(2), NULL, I64(0), I64(0)), 0, WANT(NAN, 5));
  out(&p, "max i", shlo_reduce_window(b, SHLO_AMAX, i, I64(3), I64(2), NULL, I64(1), I64(1)), 0, WANT(5, 5));
  out(&p, "dilated", shlo_reduce_window(b, SHLO_SUM, x, I64(2), I64(1), I64(2), I64(0), I64(0)), 0, WANT(6, 7));
  out(&p, "too wide", shlo_reduce_window(b, SHLO_SUM, x, I64(5), I64(1), NULL, I64(0), I64(0)), 0, NONE);
  out(&p, "empty", shlo_reduce_window(b, SHLO_SUM, z, I64(1, 1), I64(1, 1), NULL, I64(0, 1), I64(0, 1)), 0, WANT(0, 0, 0, 0));
  out(&p, "scatter", shlo_select_and_scatter_max(b, x, s, I64(2), I64(2), I64(0), I64(0)), 0, WANT(0, 10, 20, 0));
  out(&p, "scatter tie", shlo_select_and_scatter_max(b, shlo_const_like(b, x, 1), s, I64(2), I64(2), I64(0), I64(0)), 0,
      WANT(10, 0, 20, 0));
  out(&p, "scatter nan", shlo_select_and_scatter_max(b, n, s, I64(2), I64(2), I64(0), I64(0)), 0, WANT(0, 10, 20, 0));
  out(&p, "scatter empty", shlo_select_and_scatter_max(b, z, z, I64(1, 1), I64(1, 1), I64(0, 0), I64(0, 0)), 0, NONE);
  run(&p);
}

/* ---- contractions */

static void test_dot(void) {
  prog p = begin("dot");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(2, 3), 1, 2, 3, 4, 5, 6), y = IN_F32(&p, DIMS(3, 2), 1, 0, 0, 1, 1, 1),
          z = in(&p, TTC_F32, DIMS(2, 0), NULL);
  ttc_val i = shlo_convert(b, x, TTC_S64), c = shlo_convert(b, x, TTC_C64);
  out(&p, "mm", shlo_dot(b, x, y, 0, NULL, NULL, 1, INT(1), INT(0), TTC_F32), 0, WANT(4, 5, 10, 11));
  out(&p, "outer", shlo_dot(b, x, shlo_slice_axis(b, x, 0, 0, 1), 0, NULL, NULL, 0, NULL, NULL, TTC_F32), 0,
      WANT(1, 2, 3, 2, 4, 6, 3, 6, 9, 4, 8, 12, 5, 10, 15, 6, 12, 18));
  out(&p, "batch", shlo_dot(b, x, x, 1, INT(0), INT(0), 1, INT(1), INT(1), TTC_F32), 0, WANT(14, 77));
  out(&p, "full", shlo_dot(b, x, y, 0, NULL, NULL, 2, INT(0, 1), INT(1, 0), TTC_F32), 0, WANT(15));
  out(&p, "bf16->f32",
      shlo_dot(b, shlo_convert(b, x, TTC_BF16), shlo_convert(b, y, TTC_BF16), 0, NULL, NULL, 1, INT(1), INT(0), TTC_F32), 0,
      WANT(4, 5, 10, 11));
  out(&p, "f16", shlo_dot(b, shlo_convert(b, x, TTC_F16), shlo_convert(b, y, TTC_F16), 0, NULL, NULL, 1, INT(1), INT(0), TTC_F16),
      0, WANT(4, 5, 10, 11));
  out(&p, "s64", shlo_dot(b, i, i, 0, NULL, NULL, 1, INT(1), INT(1), TTC_S64), 0, WANT(14, 32, 32, 77));
  out(&p, "c64", shlo_dot(b, c, c, 0, NULL, NULL, 1, INT(1), INT(1), TTC_C64), 0, WANT(14, 32, 32, 77));
  out(&p, "nothing summed", shlo_dot(b, z, z, 0, NULL, NULL, 1, INT(1), INT(1), TTC_F32), 0, WANT(0, 0, 0, 0));
  out(&p, "empty", shlo_dot(b, x, z, 0, NULL, NULL, 1, INT(0), INT(0), TTC_F32), 0, NONE);
  run(&p);
}

static void test_conv(void) {
  prog p = begin("conv");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(1, 1, 4), 1, 2, 3, 4), k = IN_F32(&p, DIMS(1, 1, 2), 1, 10),
          x2 = IN_F32(&p, DIMS(1, 2, 2, 2), 1, 2, 3, 4, 5, 6, 7, 8);
  ttc_val k2 = IN_F32(&p, DIMS(2, 1, 1, 2), 1, 10, 100, 1000), z = in(&p, TTC_F32, DIMS(0, 1, 4), NULL);
  shlo_conv_spec s = {.nspatial = 1,
                      .in_feature = 1,
                      .in_spatial = {2},
                      .k_in = 1,
                      .k_spatial = {2},
                      .out_feature = 1,
                      .out_spatial = {2},
                      .stride = {1},
                      .lhs_dilation = {1},
                      .rhs_dilation = {1},
                      .feature_groups = 1,
                      .batch_groups = 1};
  out(&p, "plain", shlo_conv(b, x, k, &s), 0, WANT(21, 32, 43));
  out(&p, "empty", shlo_conv(b, z, k, &s), 0, NONE);
  s.lo[0] = 1;
  s.stride[0] = 2;
  out(&p, "padded, strided", shlo_conv(b, x, k, &s), 0, WANT(10, 32));
  s.stride[0] = 1;
  s.rhs_dilation[0] = 2;
  out(&p, "dilated", shlo_conv(b, x, k, &s), 0, WANT(20, 31, 42));
  s.rhs_dilation[0] = 1;
  s.lhs_dilation[0] = 2;
  s.reverse[0] = true;
  out(&p, "transposed", shlo_conv(b, x, k, &s), 0, WANT(1, 10, 2, 20, 3, 30, 4));
  out(&p, "bf16", shlo_conv(b, shlo_convert(b, x, TTC_BF16), shlo_convert(b, k, TTC_BF16), &s), 0, WANT(1, 10, 2, 20, 3, 30, 4));
  shlo_conv_spec g = {.nspatial = 2,
                      .in_feature = 1,
                      .in_spatial = {2, 3},
                      .k_in = 1,
                      .k_spatial = {2, 3},
                      .out_feature = 3,
                      .out_spatial = {1, 2},
                      .stride = {1, 1},
                      .lhs_dilation = {1, 1},
                      .rhs_dilation = {1, 1},
                      .feature_groups = 2,
                      .batch_groups = 1};
  out(&p, "grouped, channels last", shlo_conv(b, x2, k2, &g), 0, WANT(21, 6500, 43, 8700));
  run(&p);
}

/* ---- gather, scatter */

static void test_gather(void) {
  prog p = begin("gather");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(3, 2), 1, 2, 3, 4, 5, 6), i = IN_S64(&p, DIMS(2, 2), 2, 0, 0, 1),
          z = in(&p, TTC_F32, DIMS(0, 2), NULL);
  ttc_val none = in(&p, TTC_S32, DIMS(0), NULL), far = IN_S32(&p, DIMS(2), -5, 9), i8 = IN_U8(&p, SCALAR, 1);
  out(&p, "take rows", shlo_take(b, x, i, 0), 0, WANT(5, 6, 1, 2, 1, 2, 3, 4));
  out(&p, "take columns", shlo_take(b, x, shlo_slice_axis(b, i, 0, 1, 2), 1), 0, WANT(1, 2, 3, 4, 5, 6));
  out(&p, "take scalar", shlo_take(b, x, i8, 0), 0, WANT(3, 4));
  out(&p, "take clamped", shlo_take(b, x, far, 0), 0, WANT(1, 2, 5, 6));
  out(&p, "take none", shlo_take(b, x, none, 0), 0, NONE);
  out(&p, "take none of none", shlo_take(b, z, none, 0), 0, NONE);
  out(&p, "take empty rows", shlo_take(b, shlo_slice_axis(b, x, 1, 0, 0), i, 0), 0, NONE);
  /* x[i[k][0], i[k][1]] */
  shlo_gather_spec points = {
      .ncollapsed = 2, .collapsed = {0, 1}, .nindex = 2, .index_map = {0, 1}, .index_vector_axis = 1, .slice_sizes = {1, 1}};
  out(&p, "points", shlo_gather(b, x, i, &points), 0, WANT(5, 2));
  /* y[k, j] = x'[k, i'[k, j]], k a batch axis: torch.gather along 1. */
  shlo_gather_spec along = {.nbatch = 1,
                            .operand_batch = {0},
                            .index_batch = {0},
                            .ncollapsed = 1,
                            .collapsed = {1},
                            .nindex = 1,
                            .index_map = {1},
                            .index_vector_axis = 2,
                            .slice_sizes = {1, 1}};
  ttc_val at = shlo_concat(b, 2, (const ttc_val[]){i, shlo_const_i(b, TTC_S64, 1, DIMS(1, 2))}, 0);
  out(&p, "batched",
      shlo_gather(b, x, shlo_clamp(b, shlo_const_i(b, TTC_S64, 0, SCALAR), at, shlo_const_i(b, TTC_S64, 1, SCALAR)), &along), 0,
      WANT(2, 1, 3, 4, 6, 6));
  /* A window of 2x1 at a runtime place. */
  shlo_gather_spec window = {.noffset = 2, .offset_dims = {0, 1}, .nindex = 2, .index_map = {0, 1}, .slice_sizes = {2, 1}};
  out(&p, "window", shlo_gather(b, x, shlo_const_table(b, TTC_S32, 2, I64(1, 1)), &window), 0, WANT(4, 6));
  run(&p);
}

static void test_scatter(void) {
  prog p = begin("scatter");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(3, 2), 1, 2, 3, 4, 5, 6), i = IN_S32(&p, DIMS(3), 2, 0, 2),
          u = IN_F32(&p, DIMS(3, 2), 10, 20, 30, 40, 50, 60);
  ttc_val far = IN_S32(&p, DIMS(3), -1, 1, 7), z = in(&p, TTC_F32, DIMS(0, 2), NULL), none = in(&p, TTC_S32, DIMS(0), NULL);
  ttc_val t = IN_BOOL(&p, DIMS(3), false, true, false);
  shlo_scatter_spec rows = {
      .nwindow = 1, .update_window = {1}, .ninserted = 1, .inserted = {0}, .nindex = 1, .index_map = {0}, .index_vector_axis = 1};
  shlo_scatter_spec items = {.ninserted = 1, .inserted = {0}, .nindex = 1, .index_map = {0}, .index_vector_axis = 1};
  out(&p, "add", shlo_scatter(b, SHLO_SCATTER_ADD, x, i, u, &rows), 0, WANT(31, 42, 3, 4, 65, 86));
  out(&p, "set", shlo_scatter(b, SHLO_SCATTER_SET, x, i, u, &rows), 0, WANT(30, 40, 3, 4, 50, 60));
  out(&p, "mul", shlo_scatter(b, SHLO_SCATTER_MUL, x, i, u, &rows), 0, WANT(30, 80, 3, 4, 2500, 7200));
  out(&p, "max", shlo_scatter(b, SHLO_SCATTER_MAX, x, i, u, &rows), 0, WANT(30, 40, 3, 4, 50, 60));
  out(&p, "min", shlo_scatter(b, SHLO_SCATTER_MIN, x, i, u, &rows), 0, WANT(1, 2, 3, 4, 5, 6));
  out(&p, "outside", shlo_scatter(b, SHLO_SCATTER_ADD, x, far, u, &rows), 0, WANT(1, 2, 33, 44, 5, 6));
  out(&p, "into none", shlo_scatter(b, SHLO_SCATTER_ADD, z, i, u, &rows), 0, NONE);
  out(&p, "none", shlo_scatter(b, SHLO_SCATTER_ADD, x, none, z, &rows), 0, WANT(1, 2, 3, 4, 5, 6));
  out(&p, "bool or", shlo_scatter(b, SHLO_SCATTER_ADD, shlo_const_like(b, t, 0), i, t, &items), 0, WANT(1, 0, 0));
  out(&p, "bool set", shlo_scatter(b, SHLO_SCATTER_SET, shlo_const_like(b, t, 1), i, t, &items), 0, WANT(1, 1, 0));
  out(&p, "i64", shlo_scatter(b, SHLO_SCATTER_ADD, shlo_convert(b, t, TTC_S64), i, shlo_const_i(b, TTC_S64, 5, DIMS(3)), &items), 0,
      WANT(5, 1, 10));
  /* x[k, i[k]] += u[k, 0], k a batch axis. */
  shlo_scatter_spec along = {.ninserted = 1,
                             .inserted = {1},
                             .nbatch = 1,
                             .operand_batch = {0},
                             .index_batch = {0},
                             .nindex = 1,
                             .index_map = {1},
                             .index_vector_axis = 1};
  ttc_val j = shlo_const_table(b, TTC_S32, 3, I64(1, 0, 1));
  out(&p, "batched", shlo_scatter(b, SHLO_SCATTER_ADD, x, j, shlo_const_table(b, TTC_F32, 3, I64(10, 20, 30)), &along), 0,
      WANT(1, 12, 23, 4, 5, 36));
  run(&p);
}

/* ---- order, control */

static void test_sort(void) {
  prog p = begin("sort");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(6), 2, NAN, -0.0f, 0, -INFINITY, 5), k = shlo_iota(b, TTC_S64, 0, DIMS(6)), r[2], xs[2] = {x, k};
  shlo_sort(b, 2, xs, 0, false, r);
  out(&p, "up", r[0], 0, WANT(-INFINITY, -0.0, 0, 2, 5, NAN));
  out(&p, "up places", r[1], 0, WANT(4, 2, 3, 0, 5, 1));
  shlo_sort(b, 2, xs, 0, true, r);
  out(&p, "down places", r[1], 0, WANT(1, 5, 0, 2, 3, 4));
  ttc_val i = shlo_reshape(b, shlo_const_table(b, TTC_S8, 6, I64(3, 1, 2, -5, 7, 0)), DIMS(2, 3));
  shlo_sort(b, 1, &i, 0, false, r);
  out(&p, "columns", r[0], 0, WANT(-5, 1, 0, 3, 7, 2));
  shlo_sort(b, 1, &i, 1, true, r);
  out(&p, "rows", r[0], 0, WANT(3, 2, 1, 7, 0, -5));
  ttc_val t = shlo_convert(b, i, TTC_BOOL), e = shlo_slice_axis(b, i, 1, 1, 1), s = shlo_const_i(b, TTC_S32, 4, SCALAR);
  shlo_sort(b, 1, &t, 1, false, r);
  out(&p, "bool", r[0], 0, WANT(1, 1, 1, 0, 1, 1));
  shlo_sort(b, 1, &e, 1, false, r);
  out(&p, "empty", r[0], 0, NONE);
  shlo_sort(b, 1, &s, 0, false, r);
  out(&p, "scalar", r[0], 0, WANT(4));
  ttc_val h = shlo_convert(b, x, TTC_BF16);
  shlo_sort(b, 1, &h, 0, true, r);
  out(&p, "bf16 down", r[0], 0, WANT(NAN, 5, 2, -0.0, 0, -INFINITY));
  run(&p);
}

/* state: (step, sum); the limit is a value from outside the loop. */
static void below(shlo *b, void *ctx, const ttc_val *a, ttc_val *r) {
  r[0] = shlo_compare(b, SHLO_LT, a[0], *(const ttc_val *)ctx);
}

static void step(shlo *b, void *ctx, const ttc_val *a, ttc_val *r) {
  ttc_val limit = shlo_convert(b, *(const ttc_val *)ctx, TTC_F32);
  r[0] = shlo_add(b, a[0], shlo_const_like(b, a[0], 1));
  /* a reduction inside, so that regions nest */
  ttc_val row = shlo_broadcast_to(b, shlo_add(b, shlo_convert(b, a[0], TTC_F32), limit), DIMS(2));
  r[1] = shlo_add(b, a[1], shlo_reduce(b, SHLO_SUM, row, AXES(0)));
}

static void test_while(void) {
  prog p = begin("while");
  shlo *b = p.b;
  ttc_val n = IN_S32(&p, SCALAR, 4), state[2] = {shlo_const_i(b, TTC_S32, 1, SCALAR), shlo_const_f(b, TTC_F32, 0.5, SCALAR)};
  shlo_while(b, 2, state, below, step, &n, state);
  out(&p, "steps", state[0], 0, WANT(4));
  out(&p, "sum", state[1], 0, WANT(36.5)); /* 0.5 + 2 (5 + 6 + 7) */
  run(&p);
}

/* ---- linear algebra, transforms */

static void test_linalg(ttc_dtype d) {
  prog p = begin("linalg");
  shlo *b = p.b;
  double tol = d == TTC_F32 || d == TTC_C64 ? 1e-5 : 1e-12;
  ttc_val a = in(&p, TTC_F64, DIMS(2, 2), (const double[]){4, 2, 2, 5}),
          r = in(&p, TTC_F64, DIMS(2, 2), (const double[]){2, 4, 3, 10});
  ttc_val l = shlo_cholesky(b, shlo_convert(b, a, d), true);
  r = shlo_convert(b, r, d);
  ttc_val mask = shlo_compare(b, SHLO_GE, shlo_iota(b, TTC_S32, 0, DIMS(2, 2)), shlo_iota(b, TTC_S32, 1, DIMS(2, 2)));
  l = shlo_select(b, mask, l, shlo_const_like(b, l, 0)); /* the other triangle is undefined: [[2, 0], [1, 2]] */
  out(&p, "cholesky", l, tol, WANT(2, 0, 1, 2));
  out(&p, "solve", shlo_triangular_solve(b, l, r, true, true, false, false, false), tol, WANT(1, 2, 1, 4));
  out(&p, "solve transposed", shlo_triangular_solve(b, l, r, true, true, false, true, false), tol, WANT(0.25, -0.5, 1.5, 5));
  out(&p, "solve right", shlo_triangular_solve(b, l, r, false, true, false, false, false), tol, WANT(0, 2, -1, 5));
  out(&p, "solve unit", shlo_triangular_solve(b, l, r, true, true, true, false, false), tol, WANT(2, 4, 1, 6));
  ttc_val e = shlo_const_i(b, d, 0, DIMS(3, 0, 0)), batch = shlo_broadcast_to(b, l, DIMS(2, 2, 2));
  out(&p, "cholesky none", shlo_cholesky(b, e, true), 0, NONE);
  out(&p, "solve none", shlo_triangular_solve(b, e, e, true, true, false, false, false), 0, NONE);
  out(&p, "solve batch", shlo_triangular_solve(b, batch, shlo_broadcast_to(b, r, DIMS(2, 2, 2)), true, true, false, false, false),
      tol, WANT(1, 2, 1, 4, 1, 2, 1, 4));
  if (ttc__is_complex(d)) {
    /* 1x1 [[i]]: x = 1/i = -i; conjugated, transposed or not, x = i */
    ttc_dtype real = ttc__dtype_real(d);
    ttc_val i = shlo_complex(b, shlo_const_f(b, real, 0, DIMS(1, 1)), shlo_const_f(b, real, 1, DIMS(1, 1))),
            one = shlo_const_like(b, i, 1);
    out(&p, "i", shlo_1(b, SHLO_IMAG, shlo_triangular_solve(b, i, one, true, true, false, false, false)), tol, WANT(-1));
    out(&p, "conj", shlo_1(b, SHLO_IMAG, shlo_triangular_solve(b, i, one, true, true, false, false, true)), tol, WANT(1));
    out(&p, "adjoint", shlo_1(b, SHLO_IMAG, shlo_triangular_solve(b, i, one, true, true, false, true, true)), tol, WANT(1));
  }
  run(&p);
}

static void test_fft(ttc_dtype real) {
  prog p = begin("fft");
  shlo *b = p.b;
  double tol = real == TTC_F32 ? 1e-6 : 1e-14;
  ttc_val x = shlo_convert(b, in(&p, TTC_F64, DIMS(4), (const double[]){1, 2, 3, 5}), real),
          c = shlo_convert(b, x, ttc__dtype_complex(real));
  ttc_val f = shlo_fft(b, c, SHLO_FFT, 1, I64(4)), h = shlo_fft(b, x, SHLO_RFFT, 1, I64(4)), m = shlo_reshape(b, c, DIMS(2, 2));
  out(&p, "re", f, tol, WANT(11, -2, -3, -2));
  out(&p, "im", shlo_1(b, SHLO_IMAG, f), tol, WANT(0, 3, 0, -3));
  out(&p, "inverse", shlo_fft(b, f, SHLO_IFFT, 1, I64(4)), tol, WANT(1, 2, 3, 5));
  out(&p, "half", h, tol, WANT(11, -2, -3));
  out(&p, "half inverse", shlo_fft(b, h, SHLO_IRFFT, 1, I64(4)), tol, WANT(1, 2, 3, 5));
  out(&p, "two axes", shlo_fft(b, m, SHLO_FFT, 2, I64(2, 2)), tol, WANT(11, -3, -5, 1));
  out(&p, "none", shlo_fft(b, shlo_const_f(b, real, 0, DIMS(0, 4)), SHLO_RFFT, 1, I64(4)), 0, NONE);
  run(&p);
}

static bool find(char *path, size_t size) {
  const char *named = getenv("TTC_CPU_PLUGIN");
  pjrt_choice choice;
  if (named != NULL && named[0] != '\0') {
    snprintf(path, size, "%s", named);
    return true;
  }
  const char *dirs = getenv("TTC_TEST_SITE_PACKAGES");
  if (dirs == NULL || pjrt_discover(dirs, &choice, &err) != TTC_OK || choice.source == PJRT_FROM_LIBTPU) {
    return false;
  }
  snprintf(path, size, "%s", choice.path);
  return true;
}

int main(void) {
  char path[1024];
  pjrt_plugin *plugin = NULL;
  if (!find(path, sizeof path)) {
    printf("1 skipped: no CPU plugin (set TTC_CPU_PLUGIN to one, or TTC_TEST_SITE_PACKAGES to where its package lies)\n");
    return 0;
  }
  if (pjrt_plugin_load(path, &plugin, &err) != TTC_OK || pjrt_client_new(plugin, 1, &client, &err) != TTC_OK) {
    fprintf(stderr, "%s: %s\n", path, err.message);
    return 1;
  }
  test_const();
  test_unary();
  test_binary();
  test_convert();
  test_shape();
  test_reduce();
  test_window();
  test_dot();
  test_conv();
  test_gather();
  test_scatter();
  test_sort();
  test_while();
  test_linalg(TTC_F32);
  test_linalg(TTC_F64);
  test_linalg(TTC_C64);
  test_linalg(TTC_C128);
  test_fft(TTC_F32);
  test_fft(TTC_F64);
  for (ttc_dtype d = TTC_F16; d <= TTC_F64; d++) {
    test_math(d);
    test_special(d);
  }
  test_complex_math(TTC_C64);
  test_complex_math(TTC_C128);
  pjrt_client_free(client);
  return CHECK_DONE();
}
