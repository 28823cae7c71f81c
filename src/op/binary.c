/* Family "binary": arithmetic of two (and three) operands, elementwise with broadcasting. Bitwise, logical and comparing ops are in
 * compare.c. Operands are converted to their promoted type; 16-bit floats are computed in f32. */
#include <math.h>

#include "op/elem.h"

/* Operands 0 and 1 in the type computed in, numbers keeping their precision there (PyTorch's opmath). */
typedef struct pair {
  ttc_val x, y;
  ttc_dtype type; /* promoted, as the result */
} pair;
static pair load(ttc_lower *c) {
  pair p = {.type = op_promote(c, 0, 1)};
  p.x = op_in_as(c, 0, ttc__dtype_op(p.type));
  p.y = op_in_as(c, 1, ttc__dtype_op(p.type));
  return p;
}
/* Whether the result may be written as the type of the tensor it goes to: an in-place call makes no float of an integer, nothing
 * but a bool of a bool. PyTorch's Meta kernels of add_, sub_ and mul_ let some of these through. */
static bool refuse_narrowing(shlo *b, ttc_lower *c, ttc_dtype from) {
  ttc_dtype to = op_out_dtype(c, 0);
  bool narrows = (ttc__is_complex(from) && !ttc__is_complex(to)) || (ttc__is_float(from) && !ttc__is_inexact(to)) ||
                 (from != TTC_BOOL && to == TTC_BOOL);
  if (narrows)
    shlo_error(b, TTC_INVALID_ARGUMENT, "result type %s can't be cast to the desired output type %s", ttc_dtype_name(from),
               ttc_dtype_name(to));
  return narrows;
}
/* The same, integers as the default float, numbers rounded to the promoted type. */
static pair load_float(shlo *b, ttc_lower *c) {
  pair p = {.type = elem_promote_float(c, 0, 1)};
  p.x = elem_in(b, c, 0, p.type);
  p.y = elem_in(b, c, 1, p.type);
  return p;
}
static pair load_rounded(shlo *b, ttc_lower *c) {
  pair p = {.type = op_promote(c, 0, 1)};
  p.x = elem_in(b, c, 0, p.type);
  p.y = elem_in(b, c, 1, p.type);
  return p;
}

/* ---- add, sub, mul */

/* v · (number argument i), nothing where the number is 1 */
static ttc_val times(shlo *b, ttc_lower *c, ttc_val v, int i) {
  if ((unsigned)i >= op_narg(c) || !op_given(c, i) || op_num_is_one(c, i))
    return v;
  ttc_val k = op_num(c, i, 0, shlo_dtype(b, v));
  return shlo_dtype(b, v) == TTC_BOOL ? elem_and(b, v, k) : shlo_mul(b, v, k);
}
/* PyTorch subtracts no bools, not even from other types. */
static bool refuse_bool(shlo *b, ttc_lower *c) {
  bool x = op_in_dtype(c, 0) == TTC_BOOL, y = op_in_dtype(c, 1) == TTC_BOOL;
  if (x && y)
    shlo_error(b, TTC_INVALID_ARGUMENT,
               "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` operator "
               "instead.");
  else if (x || y)
    shlo_error(b, TTC_INVALID_ARGUMENT,
               "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use the "
               "`~` or `logical_not()` operator instead.");
  return x || y;
}
/* x + alpha·y, or; x - alpha·y; alpha is argument 2; reversed operands for rsub.        param: how */
enum { ADD, SUB, RSUB, ADD_RELU };
static void lower_add(shlo *b, ttc_lower *c) {
  int how = op_param(c);
  if ((how == SUB || how == RSUB) && refuse_bool(b, c))
    return;
  pair p = load(c);
  if (refuse_narrowing(b, c, p.type))
    return;
  if (how == RSUB) {
    op_ret(c, 0, shlo_sub(b, p.y, times(b, c, p.x, 2)));
    return;
  }
  p.y = times(b, c, p.y, 2);
  ttc_val r = how == SUB ? shlo_sub(b, p.x, p.y) : p.type == TTC_BOOL ? elem_or(b, p.x, p.y) : shlo_add(b, p.x, p.y);
  if (how == ADD_RELU)
    r = shlo_2(b, SHLO_MAX, r, shlo_const_i(b, shlo_dtype(b, r), 0, 0, NULL));
  op_ret(c, 0, r);
}
static void lower_mul(shlo *b, ttc_lower *c) {
  pair p = load(c);
  if (refuse_narrowing(b, c, p.type))
    return;
  op_ret(c, 0, p.type == TTC_BOOL ? elem_and(b, p.x, p.y) : shlo_mul(b, p.x, p.y));
}

/* ---- division and remainders */

/* Integer x/y is trunc'd; floor takes one off where the remainder's sign differs from y's. */
static ttc_val floor_int(shlo *b, ttc_val x, ttc_val y) {
  ttc_val q = shlo_div(b, x, y);
  if (ttc__is_unsigned(shlo_dtype(b, x)))
    return q;
  ttc_val r = shlo_2(b, SHLO_REM, x, y);
  ttc_val differ = shlo_compare(b, SHLO_NE, elem_cmp(b, SHLO_LT, r, 0), elem_cmp(b, SHLO_LT, y, 0));
  ttc_val off = elem_and(b, elem_cmp(b, SHLO_NE, r, 0), differ);
  return shlo_sub(b, q, shlo_convert(b, off, shlo_dtype(b, x)));
}
/* The float r = fmod(x, y) moved to y's sign, and x // y as Python defines it: (x - r) / y, which is whole up to rounding. */
static ttc_val sign_differs(shlo *b, ttc_val r, ttc_val y) {
  ttc_val differ = shlo_compare(b, SHLO_NE, elem_cmp(b, SHLO_LT, r, 0), elem_cmp(b, SHLO_LT, y, 0));
  return elem_and(b, elem_cmp(b, SHLO_NE, r, 0), differ);
}
static ttc_val floor_float(shlo *b, ttc_val x, ttc_val y) {
  ttc_val r = shlo_2(b, SHLO_REM, x, y), exact = shlo_div(b, x, y);
  ttc_val q = shlo_div(b, shlo_sub(b, x, r), y);
  q = shlo_select(b, sign_differs(b, r, y), shlo_sub(b, q, elem_f(b, q, 1)), q);
  ttc_val down = shlo_1(b, SHLO_FLOOR, q);
  ttc_val whole = shlo_select(b, elem_cmp(b, SHLO_GT, shlo_sub(b, q, down), 0.5), shlo_add(b, down, elem_f(b, q, 1)), down);
  ttc_val zero = shlo_mul(b, elem_f(b, q, 0), shlo_1(b, SHLO_SIGN, exact)); /* ±0, of the quotient's sign */
  whole = shlo_select(b, elem_cmp(b, SHLO_EQ, q, 0), zero, whole);
  return shlo_select(b, elem_cmp(b, SHLO_EQ, y, 0), exact, whole);
}

/* An integer divided by zero is an error. Whether a number is zero is part of the key, so nothing is checked on the device then. */
static void check_divisor(shlo *b, ttc_lower *c, ttc_val y) {
  if (!op_is_number(c, 1)) {
    op_fault_if(c, b, elem_any(b, elem_cmp(b, SHLO_EQ, y, 0)), TTC__FAULT_DIVISION, TTC_POISON, 0, 0);
  } else if (op_num_is_zero(c, 1)) {
    op_fault_if(c, b, shlo_const_i(b, TTC_BOOL, 1, 0, NULL), TTC__FAULT_DIVISION, TTC_POISON, 0, 0);
  }
}

enum { TRUE_DIV, FLOOR_DIV, MODE_DIV };
/* div and floor_divide: rounding_mode None, "trunc", "floor" is argument 2 where param is MODE_DIV. */
static void lower_div(shlo *b, ttc_lower *c) {
  int mode = op_param(c);
  bool to_zero = mode == MODE_DIV && op_given(c, 2) && op_str_is(c, 2, "trunc");
  bool down = mode == FLOOR_DIV || (mode == MODE_DIV && op_given(c, 2) && op_str_is(c, 2, "floor"));
  pair p = load(c);
  if (!to_zero && !down) {
    ttc_dtype d = ttc__dtype_op(elem_promote_float(c, 0, 1));
    op_ret(c, 0, shlo_div(b, op_in_as(c, 0, d), op_in_as(c, 1, d)));
  } else if (p.type == TTC_BOOL) {
    op_refuse(c, "%s of bool with rounding", op_name(c));
  } else if (ttc__is_integral(p.type)) {
    check_divisor(b, c, p.y);
    op_ret(c, 0, to_zero ? shlo_div(b, p.x, p.y) : floor_int(b, p.x, p.y));
  } else {
    /* PyTorch rounds a 16-bit quotient before it truncates. The barrier keeps the compiler from dropping the two conversions. */
    ttc_val q = shlo_div(b, p.x, p.y);
    if (to_zero && shlo_dtype(b, q) != p.type)
      q = shlo_convert(b, shlo_barrier(b, shlo_convert(b, q, p.type)), shlo_dtype(b, q));
    op_ret(c, 0, to_zero ? elem_trunc(b, q) : floor_float(b, p.x, p.y));
  }
}
/* remainder: the result has y's sign (Python's %).  fmod: x's sign (C's).        param: 1 for remainder */
static void lower_remainder(shlo *b, ttc_lower *c) {
  pair p = load_rounded(b, c);
  if (p.type == TTC_BOOL || ttc__is_complex(p.type)) {
    op_refuse(c, "%s of %s", op_name(c), ttc_dtype_name(p.type));
    return;
  }
  if (ttc__is_integral(p.type)) {
    check_divisor(b, c, p.y);
  }
  ttc_val r = shlo_2(b, SHLO_REM, p.x, p.y);
  if (op_param(c) && !ttc__is_unsigned(p.type))
    r = shlo_select(b, sign_differs(b, r, p.y), shlo_add(b, r, p.y), r);
  op_ret(c, 0, r);
}

/* ---- powers */

/* x^y of integers by squaring, as many steps as the largest exponent has bits (StableHLO's own reads only six of them on XLA:CPU).
 * State: power of x, what is left of y, product so far. */
static void pow_more(shlo *b, void *ctx, const ttc_val *s, ttc_val *r) {
  (void)ctx;
  r[0] = elem_any(b, elem_cmp(b, SHLO_GT, s[1], 0));
}
static void pow_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *r) {
  (void)ctx;
  ttc_val one = elem_i(b, s[1], 1);
  ttc_val odd = elem_cmp(b, SHLO_NE, elem_and(b, s[1], one), 0);
  r[0] = elem_square(b, s[0]);
  r[1] = shlo_2(b, SHLO_SHR_L, s[1], one);
  r[2] = shlo_select(b, odd, shlo_mul(b, s[2], s[0]), s[2]);
}
/* A negative exponent gives 1 for base 1, ±1 for base -1, else 0. */
static ttc_val pow_int(shlo *b, ttc_lower *c, ttc_val x, ttc_val y) {
  int n = op_out_ndim(c, 0);
  const int64_t *dims = op_out_sizes(c, 0);
  bool sign = !ttc__is_unsigned(shlo_dtype(b, x));
  ttc_val zero = elem_i(b, y, 0), one = elem_i(b, y, 1), up = sign ? shlo_2(b, SHLO_MAX, y, zero) : y;
  ttc_val s[3] = {shlo_broadcast_to(b, x, n, dims), shlo_broadcast_to(b, up, n, dims), shlo_broadcast_to(b, one, n, dims)}, r[3];
  shlo_while(b, 3, s, pow_more, pow_step, NULL, r);
  if (!sign)
    return r[2];
  ttc_val odd = elem_cmp(b, SHLO_NE, elem_and(b, y, one), 0);
  ttc_val minus = shlo_select(b, odd, elem_i(b, y, -1), one);
  ttc_val inverse = shlo_select(b, elem_cmp(b, SHLO_EQ, x, 1), one, shlo_select(b, elem_cmp(b, SHLO_EQ, x, -1), minus, zero));
  return shlo_select(b, elem_cmp(b, SHLO_LT, y, 0), inverse, r[2]);
}
static ttc_val pow_any(shlo *b, ttc_lower *c, ttc_val x, ttc_val y) {
  ttc_dtype d = shlo_dtype(b, x);
  if (ttc__is_integral(d))
    return pow_int(b, c, x, y);
  ttc_val r = shlo_2(b, SHLO_POW, x, y);
  /* 0^0 = 1 for complex numbers too. */
  if (ttc__is_complex(d))
    r = elem_select_f(b, shlo_compare(b, SHLO_EQ, y, elem_f(b, y, 0)), 1, r);
  return r;
}
static void lower_pow(shlo *b, ttc_lower *c) {
  pair p = load_rounded(b, c);
  if (p.type == TTC_BOOL) {
    op_refuse(c, "%s of bool", op_name(c));
    return;
  }
  op_ret(c, 0, pow_any(b, c, p.x, p.y));
}
/* x^k by multiplying, k >= 1 */
static ttc_val product(shlo *b, ttc_val x, int64_t k) {
  ttc_val r = x;
  bool some = false;
  for (; k > 0; k >>= 1, x = k > 0 ? elem_square(b, x) : x) {
    if (k & 1)
      r = some ? shlo_mul(b, r, x) : x;
    some = some || (k & 1);
  }
  return r;
}
/* pow.Tensor_Scalar: the exponent is static, so that x**2 is one multiplication. */
static void lower_pow_scalar(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_promote(c, 0, 1);
  if (d == TTC_BOOL)
    d = op_out_dtype(c, 0);
  ttc_val x = elem_in(b, c, 0, d);
  if (op_num_kind(c, 1) == TTC_SCALAR_COMPLEX) {
    op_ret(c, 0, pow_any(b, c, x, elem_in(b, c, 1, d)));
    return;
  }
  double e = op_static_f(c, 1);
  if (ttc__is_integral(d) && e < 0) {
    shlo_error(b, TTC_INVALID_ARGUMENT, "Integers to negative integer powers are not allowed.");
    return;
  }
  ttc_val one = elem_i(b, x, 1);
  if (e == 0)
    op_ret(c, 0, one);
  else if (e == 1 || e == 2 || e == 3)
    op_ret(c, 0, product(b, x, (int64_t)e));
  else if (ttc__is_integral(d))
    op_ret(c, 0, e > 0 && e < 64 ? product(b, x, (int64_t)e) : pow_int(b, c, x, elem_i(b, x, (int64_t)e)));
  else if (e == 0.5)
    op_ret(c, 0, shlo_1(b, SHLO_SQRT, x));
  else if (e == -0.5)
    op_ret(c, 0, shlo_1(b, SHLO_RSQRT, x));
  else if (e == -1)
    op_ret(c, 0, shlo_div(b, one, x));
  else if (e == -2)
    op_ret(c, 0, shlo_div(b, one, elem_square(b, x)));
  else
    op_ret(c, 0, pow_any(b, c, x, elem_in(b, c, 1, d)));
}

/* ---- float functions of two */

/* r = op(x, y)        param: shlo_op2 */
static void lower_float2(shlo *b, ttc_lower *c) {
  pair p = load_float(b, c);
  op_ret(c, 0, shlo_2(b, (shlo_op2)op_param(c), p.x, p.y));
}
/* nextafter steps in the type itself, 16-bit ones too. */
static void lower_nextafter(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_promote(c, 0, 1);
  op_ret(c, 0, shlo_2(b, SHLO_CHLO_NEXT_AFTER, op_in_as(c, 0, d), op_in_as(c, 1, d)));
}
/* hypot = m·sqrt(1 + (n/m)²), m the larger of |x|, |y|: overflows only where the result does; inf beats NaN. */
static void lower_hypot(shlo *b, ttc_lower *c) {
  pair p = load_float(b, c);
  ttc_val x = shlo_1(b, SHLO_ABS, p.x), y = shlo_1(b, SHLO_ABS, p.y);
  ttc_val m = shlo_2(b, SHLO_MAX, x, y), n = shlo_2(b, SHLO_MIN, x, y);
  ttc_val q = shlo_div(b, n, elem_select_f(b, elem_cmp(b, SHLO_EQ, m, 0), 1, m));
  ttc_val r = shlo_mul(b, m, shlo_1(b, SHLO_SQRT, shlo_add(b, elem_square(b, q), elem_f(b, q, 1))));
  ttc_val inf = elem_or(b, elem_cmp(b, SHLO_EQ, x, INFINITY), elem_cmp(b, SHLO_EQ, y, INFINITY));
  op_ret(c, 0, elem_select_f(b, inf, INFINITY, r));
}
static void lower_copysign(shlo *b, ttc_lower *c) {
  pair p = load_float(b, c);
  ttc_val a = shlo_1(b, SHLO_ABS, p.x);
  op_ret(c, 0, shlo_select(b, elem_signbit(b, p.y), shlo_1(b, SHLO_NEG, a), a));
}
/* ln(e^x + e^y) = max + ln(1 + e^-|x-y|); equal infinities are themselves. In base 2 for logaddexp2.        param: 1 for base 2 */
static void lower_logaddexp(shlo *b, ttc_lower *c) {
  pair p = load_float(b, c);
  if (ttc__is_complex(p.type)) {
    op_refuse(c, "%s of complex numbers", op_name(c));
    return;
  }
  ttc_val m = shlo_2(b, SHLO_MAX, p.x, p.y);
  ttc_val t = shlo_1(b, SHLO_NEG, shlo_1(b, SHLO_ABS, shlo_sub(b, p.x, p.y)));
  ttc_val tail;
  if (op_param(c))
    tail = shlo_div(b, shlo_1(b, SHLO_LOG1P, shlo_1(b, SHLO_EXP, shlo_mul(b, t, elem_f(b, t, log(2.0))))), elem_f(b, t, log(2.0)));
  else
    tail = shlo_1(b, SHLO_LOG1P, shlo_1(b, SHLO_EXP, t));
  ttc_val same = elem_and(b, shlo_compare(b, SHLO_EQ, p.x, p.y), elem_not(b, shlo_1(b, SHLO_IS_FINITE, p.x)));
  op_ret(c, 0, shlo_select(b, same, p.x, shlo_add(b, m, tail)));
}
/* x·ln y (or x·ln(1+y)), 0 where x is 0 unless y is NaN.        param: shlo_op1 */
static void lower_xlogy(shlo *b, ttc_lower *c) {
  pair p = load_float(b, c);
  ttc_val r = shlo_mul(b, p.x, shlo_1(b, (shlo_op1)op_param(c), p.y));
  r = elem_select_f(b, elem_cmp(b, SHLO_EQ, p.x, 0), 0, r);
  op_ret(c, 0, shlo_select(b, shlo_is_nan(b, p.y), p.y, r));
}
/* heaviside(x, v): 0 below 0, v at 0, 1 above */
static void lower_heaviside(shlo *b, ttc_lower *c) {
  pair p = load_rounded(b, c);
  ttc_val step = shlo_convert(b, shlo_compare(b, SHLO_GT, p.x, elem_i(b, p.x, 0)), shlo_dtype(b, p.x));
  op_ret(c, 0, shlo_select(b, shlo_compare(b, SHLO_EQ, p.x, elem_i(b, p.x, 0)), p.y, step));
}

/* ---- greatest common divisor */

/* Euclid on all elements at once, state {x, y}: (x, y) -> (y, x mod y) while any y is not 0. */
static void gcd_more(shlo *b, void *ctx, const ttc_val *s, ttc_val *r) {
  (void)ctx;
  r[0] = elem_any(b, elem_cmp(b, SHLO_NE, s[1], 0));
}
static void gcd_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *r) {
  (void)ctx;
  ttc_val done = elem_cmp(b, SHLO_EQ, s[1], 0);
  ttc_val rest = shlo_2(b, SHLO_REM, s[0], shlo_select(b, done, elem_i(b, s[1], 1), s[1]));
  r[0] = shlo_select(b, done, s[0], s[1]);
  r[1] = shlo_select(b, done, s[1], rest);
}
/* gcd, lcm of integers        param: 1 for lcm */
static void lower_gcd(shlo *b, ttc_lower *c) {
  pair p = load(c);
  bool sign = !ttc__is_unsigned(p.type);
  int n = op_out_ndim(c, 0);
  const int64_t *dims = op_out_sizes(c, 0);
  ttc_val s[2] = {shlo_broadcast_to(b, sign ? shlo_1(b, SHLO_ABS, p.x) : p.x, n, dims),
                  shlo_broadcast_to(b, sign ? shlo_1(b, SHLO_ABS, p.y) : p.y, n, dims)};
  ttc_val g[2];
  shlo_while(b, 2, s, gcd_more, gcd_step, NULL, g);
  if (op_param(c)) {
    ttc_val none = elem_cmp(b, SHLO_EQ, g[0], 0);
    ttc_val m = shlo_mul(b, shlo_div(b, s[0], shlo_select(b, none, elem_i(b, g[0], 1), g[0])), s[1]);
    g[0] = shlo_select(b, none, elem_i(b, m, 0), sign ? shlo_1(b, SHLO_ABS, m) : m);
  }
  op_ret(c, 0, g[0]);
}

/* ---- three operands */

/* lerp(x, end, w) = x + w·(end - x), from the end where |w| >= 1/2, so that both ends are met exactly. */
static void lower_lerp(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_promote(c, 0, 1));
  ttc_val x = op_in_as(c, 0, d), end = op_in_as(c, 1, d), w = op_in_as(c, 2, d);
  ttc_val diff = shlo_sub(b, end, x);
  ttc_val near = elem_cmp(b, SHLO_LT, shlo_1(b, SHLO_ABS, w), 0.5);
  ttc_val from_end = shlo_sub(b, end, shlo_mul(b, diff, elem_rsub(b, 1, w)));
  op_ret(c, 0, shlo_select(b, near, shlo_add(b, x, shlo_mul(b, w, diff)), from_end));
}
/* x + value·y·z, x + value·y/z        param: 1 for division */
static void lower_addc(shlo *b, ttc_lower *c) {
  if (op_param(c) && ttc__is_integral(op_in_dtype(c, 1)) && ttc__is_integral(op_in_dtype(c, 2))) {
    shlo_error(b, TTC_INVALID_ARGUMENT, "Integer division with addcdiv is no longer supported.");
    return;
  }
  ttc_dtype d = ttc__dtype_op(op_promote(c, 0, 2));
  ttc_val x = op_in_as(c, 0, d), y = times(b, c, op_in_as(c, 1, d), 3), z = op_in_as(c, 2, d);
  op_ret(c, 0, shlo_add(b, x, op_param(c) ? shlo_div(b, y, z) : shlo_mul(b, y, z)));
}

/* ---- complex from two reals */

static void lower_complex(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_real(op_out_dtype(c, 0));
  int n = op_out_ndim(c, 0);
  const int64_t *dims = op_out_sizes(c, 0);
  ttc_val x = shlo_broadcast_to(b, op_in_as(c, 0, d), n, dims), y = shlo_broadcast_to(b, op_in_as(c, 1, d), n, dims);
  if (op_param(c)) { /* polar: x the modulus, y the angle */
    ttc_val re = shlo_mul(b, x, shlo_1(b, SHLO_COS, y));
    y = shlo_mul(b, x, shlo_1(b, SHLO_SIN, y));
    x = re;
  }
  op_ret(c, 0, shlo_complex(b, x, y));
}

/* g·mask·scale of native_dropout_backward and _masked_scale; scale is argument 2 */
static void lower_masked_scale(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 0));
  op_ret(c, 0, shlo_mul(b, shlo_mul(b, op_in_as(c, 0, d), op_in_as(c, 1, d)), op_num(c, 2, 0, d)));
}

#define ALPHA(n, rule, p) {EACH_HEAD(n, rule, p, TOL_2ULP), .unit_args = 1u << 2}
const ttc_op_row ttc__binary_rows[] = {
    ALPHA("add.Tensor", lower_add, ADD),
    ALPHA("add.Scalar", lower_add, ADD),
    ALPHA("sub.Tensor", lower_add, SUB),
    ALPHA("sub.Scalar", lower_add, SUB),
    ALPHA("rsub.Tensor", lower_add, RSUB),
    ALPHA("rsub.Scalar", lower_add, RSUB),
    ALPHA("_add_relu.Tensor", lower_add, ADD_RELU),
    {EACH_HEAD("_add_relu.Scalar", lower_add, ADD_RELU, TOL_2ULP), .flags = TTC_OP_NO_META, .infer = ttc__infer_like_first,
     .unit_args = 1u << 2},
    EACH_ROW("mul.Tensor", lower_mul, 0, TOL_2ULP),
    EACH_ROW("mul.Scalar", lower_mul, 0, TOL_2ULP),
    EACH_ROW("div.Tensor", lower_div, TRUE_DIV, TOL_2ULP),
    EACH_ROW("div.Scalar", lower_div, TRUE_DIV, TOL_2ULP),
    {ELEM_HEAD("div.Tensor_mode", lower_div, MODE_DIV, TOL_2ULP), .pad = PAD_EACH_ONE, .unit_args = 1u << 1},
    {ELEM_HEAD("div.Scalar_mode", lower_div, MODE_DIV, TOL_2ULP), .pad = PAD_EACH_ONE, .unit_args = 1u << 1},
    {ELEM_HEAD("floor_divide", lower_div, FLOOR_DIV, TOL_2ULP), .pad = PAD_EACH_ONE, .unit_args = 1u << 1},
    {ELEM_HEAD("floor_divide.Scalar", lower_div, FLOOR_DIV, TOL_2ULP), .pad = PAD_EACH_ONE, .unit_args = 1u << 1},
    {ELEM_HEAD("remainder.Tensor", lower_remainder, 1, TOL_2ULP), .pad = PAD_EACH_ONE, .unit_args = 1u << 1},
    {ELEM_HEAD("remainder.Scalar", lower_remainder, 1, TOL_2ULP), .pad = PAD_EACH_ONE, .unit_args = 1u << 1},
    {ELEM_HEAD("remainder.Scalar_Tensor", lower_remainder, 1, TOL_2ULP), .pad = PAD_EACH_ONE, .unit_args = 1u << 1},
    {ELEM_HEAD("fmod.Tensor", lower_remainder, 0, TOL_2ULP), .pad = PAD_EACH_ONE, .unit_args = 1u << 1},
    {ELEM_HEAD("fmod.Scalar", lower_remainder, 0, TOL_2ULP), .pad = PAD_EACH_ONE, .unit_args = 1u << 1},
    {ELEM_HEAD("pow.Tensor_Tensor", lower_pow, 0, TOL_4ULP), .pad = PAD_EACH_ONE},
    {ELEM_HEAD("pow.Scalar", lower_pow, 0, TOL_4ULP), .pad = PAD_EACH_ONE},
    {EACH_HEAD("pow.Tensor_Scalar", lower_pow_scalar, 0, TOL_4ULP), .static_args = 1u << 1,
     .note = "one program for each exponent"},
    EACH_ROW("atan2", lower_float2, SHLO_ATAN2, TOL_4ULP),
    {ELEM_HEAD("nextafter", lower_nextafter, 0, TOL_EXACT), .pad = PAD_EACH_ONE},
    EACH_ROW("hypot", lower_hypot, 0, TOL_4ULP),
    EACH_ROW("copysign.Tensor", lower_copysign, 0, TOL_EXACT),
    EACH_ROW("copysign.Scalar", lower_copysign, 0, TOL_EXACT),
    EACH_ROW("logaddexp", lower_logaddexp, 0, TOL_4ULP),
    EACH_ROW("logaddexp2", lower_logaddexp, 1, TOL_4ULP),
    EACH_ROW("xlogy.Tensor", lower_xlogy, SHLO_LOG, TOL_4ULP),
    EACH_ROW("xlogy.Scalar_Other", lower_xlogy, SHLO_LOG, TOL_4ULP),
    EACH_ROW("xlogy.Scalar_Self", lower_xlogy, SHLO_LOG, TOL_4ULP),
    EACH_ROW("special_xlog1py", lower_xlogy, SHLO_LOG1P, TOL_4ULP),
    EACH_ROW("special_xlog1py.other_scalar", lower_xlogy, SHLO_LOG1P, TOL_4ULP),
    EACH_ROW("special_xlog1py.self_scalar", lower_xlogy, SHLO_LOG1P, TOL_4ULP),
    EACH_ROW("heaviside", lower_heaviside, 0, TOL_EXACT),
    {ELEM_HEAD("gcd", lower_gcd, 0, TOL_EXACT), .pad = PAD_EACH_ONE},
    {ELEM_HEAD("lcm", lower_gcd, 1, TOL_EXACT), .pad = PAD_EACH_ONE},
    EACH_ROW("lerp.Scalar", lower_lerp, 0, TOL_4ULP),
    EACH_ROW("lerp.Tensor", lower_lerp, 0, TOL_4ULP),
    {EACH_HEAD("addcmul", lower_addc, 0, TOL_4ULP), .unit_args = 1u << 3},
    {EACH_HEAD("addcdiv", lower_addc, 1, TOL_4ULP), .unit_args = 1u << 3},
    EACH_ROW("complex", lower_complex, 0, TOL_EXACT),
    EACH_ROW("polar", lower_complex, 1, TOL_4ULP),
    EACH_ROW("native_dropout_backward", lower_masked_scale, 0, TOL_2ULP),
    EACH_ROW("_masked_scale", lower_masked_scale, 0, TOL_2ULP),
};
TTC_FAMILY(binary)
