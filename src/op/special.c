/* Family "special": special functions that StableHLO and CHLO do not have. Smooth factors are Chebyshev sums (special_tables.h);
 * the identities around them are in Abramowitz and Stegun, "Handbook of Mathematical Functions", by the formula numbers given. */
#include <math.h>

#include "op/elem.h"
#include "op/special_tables.h"

#define PI 3.14159265358979323846

static ttc_val scale(shlo *b, ttc_val x, double k) {
  return shlo_mul(b, x, elem_f(b, x, k));
}
static ttc_val plus(shlo *b, ttc_val x, double k) {
  return shlo_add(b, x, elem_f(b, x, k));
}
static ttc_val over(shlo *b, double k, ttc_val x) {
  return shlo_div(b, elem_f(b, x, k), x);
}
static ttc_val at_least(shlo *b, ttc_val x, double k) {
  return shlo_2(b, SHLO_MAX, x, elem_f(b, x, k));
}
static ttc_val at_most(shlo *b, ttc_val x, double k) {
  return shlo_2(b, SHLO_MIN, x, elem_f(b, x, k));
}
static ttc_val f1(shlo *b, shlo_op1 op, ttc_val x) {
  return shlo_1(b, op, x);
}

/* sum c[k] T_k(t) by Clenshaw's recurrence (1955); terms that f32 cannot see are left out for it. */
static ttc_val chebyshev(shlo *b, ttc_val t, const double *c, int n) {
  double largest = 0;
  for (int k = 0; k < n; k++)
    largest = fmax(largest, fabs(c[k]));
  while (n > 1 && shlo_dtype(b, t) != TTC_F64 && fabs(c[n - 1]) < 2e-9 * largest)
    n--;
  ttc_val u = shlo_const_like(b, t, 0), v = u, t2 = scale(b, t, 2);
  for (int k = n - 1; k >= 1; k--) {
    ttc_val w = plus(b, shlo_sub(b, shlo_mul(b, t2, u), v), c[k]);
    v = u;
    u = w;
  }
  return plus(b, shlo_sub(b, shlo_mul(b, t, u), v), c[0]);
}
#define CHEBYSHEV(b, t, table) chebyshev(b, t, table, (int)(sizeof(table) / sizeof *(table)))

/* x < edge ? low : high, each computed with x kept on its own side of the edge. */
static ttc_val split(shlo *b, ttc_val x, double edge, ttc_val low, ttc_val high) {
  return shlo_select(b, elem_cmp(b, SHLO_LT, x, edge), low, high);
}

/* ---- modified Bessel functions of the first kind: e^-|x| I0, e^-|x| I1 for x >= 0 */

static ttc_val i0e_abs(shlo *b, ttc_val x) {
  ttc_val lo = CHEBYSHEV(b, plus(b, scale(b, at_most(b, x, 8), 0.25), -1), i0e_small), far = at_least(b, x, 8);
  ttc_val hi = shlo_mul(b, CHEBYSHEV(b, plus(b, over(b, 16, far), -1), i0e_large), f1(b, SHLO_RSQRT, far));
  return split(b, x, 8, lo, hi);
}
static ttc_val i1e_abs(shlo *b, ttc_val x) {
  ttc_val near = at_most(b, x, 8), far = at_least(b, x, 8);
  ttc_val lo = shlo_mul(b, near, CHEBYSHEV(b, plus(b, scale(b, near, 0.25), -1), i1e_small));
  ttc_val hi = shlo_mul(b, CHEBYSHEV(b, plus(b, over(b, 16, far), -1), i1e_large), f1(b, SHLO_RSQRT, far));
  return split(b, x, 8, lo, hi);
}
static ttc_val negate_if(shlo *b, ttc_val pred, ttc_val x) {
  return shlo_select(b, pred, f1(b, SHLO_NEG, x), x);
}

/* i0, i0e, i1, i1e: even and odd.        param: order + 2 × scaled */
static void lower_bessel_i(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0)), a = f1(b, SHLO_ABS, x);
  int order = op_param(c) & 1, scaled = op_param(c) & 2;
  ttc_val y = order ? i1e_abs(b, a) : i0e_abs(b, a);
  if (!scaled)
    y = shlo_mul(b, y, f1(b, SHLO_EXP, a));
  op_ret(c, 0, order ? negate_if(b, elem_cmp(b, SHLO_LT, x, 0), y) : y);
}

/* ---- modified Bessel functions of the second kind (9.6.11): inf at 0, NaN below.        param: order + 2 × scaled by e^x */
static void lower_bessel_k(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0));
  int order = op_param(c) & 1, scaled = op_param(c) & 2;
  ttc_val near = at_most(b, x, 2), far = at_least(b, x, 2), t = plus(b, scale(b, elem_square(b, near), 0.5), -1);
  ttc_val half_log = f1(b, SHLO_LOG, scale(b, near, 0.5)), grow = f1(b, SHLO_EXP, near), lo;
  if (order) {
    ttc_val i1 = shlo_mul(b, i1e_abs(b, near), grow);
    lo = shlo_add(b, shlo_mul(b, half_log, i1), shlo_div(b, CHEBYSHEV(b, t, k1_small), near));
  } else {
    ttc_val i0 = shlo_mul(b, i0e_abs(b, near), grow);
    lo = shlo_sub(b, CHEBYSHEV(b, t, k0_small), shlo_mul(b, half_log, i0));
  }
  ttc_val s = plus(b, over(b, 4, far), -1), tail = order ? CHEBYSHEV(b, s, k1_large) : CHEBYSHEV(b, s, k0_large);
  ttc_val hi = shlo_mul(b, tail, f1(b, SHLO_RSQRT, far));
  if (scaled)
    lo = shlo_mul(b, lo, grow);
  else
    hi = shlo_mul(b, hi, f1(b, SHLO_EXP, f1(b, SHLO_NEG, far)));
  ttc_val y = elem_select_f(b, elem_cmp(b, SHLO_EQ, x, 0), INFINITY, split(b, x, 2, lo, hi));
  op_ret(c, 0, elem_select_f(b, elem_cmp(b, SHLO_LT, x, 0), NAN, y));
}

/* ---- Bessel functions J0, J1, Y0, Y1 (9.1.10-13 near 0, 9.2.5-10 far out) */

typedef struct wave {
  ttc_val p, q, cosine, sine, size; /* H(x) = size·(p + iq)·(cosine + i·sine) */
} wave;
static wave far_out(shlo *b, ttc_val x, int order) {
  ttc_val t = plus(b, over(b, 128, elem_square(b, x)), -1), chi = plus(b, x, order ? -0.75 * PI : -0.25 * PI);
  wave w = {.p = order ? CHEBYSHEV(b, t, p1_large) : CHEBYSHEV(b, t, p0_large)};
  w.q = shlo_div(b, scale(b, order ? CHEBYSHEV(b, t, q1_large) : CHEBYSHEV(b, t, q0_large), 8), x);
  w.cosine = f1(b, SHLO_COS, chi);
  w.sine = f1(b, SHLO_SIN, chi);
  w.size = f1(b, SHLO_SQRT, over(b, 2 / PI, x));
  return w;
}
static ttc_val j_near(shlo *b, ttc_val x, ttc_val t, int order) {
  return order ? shlo_mul(b, x, CHEBYSHEV(b, t, j1_small)) : CHEBYSHEV(b, t, j0_small);
}
static ttc_val near_t(shlo *b, ttc_val near) {
  return plus(b, scale(b, elem_square(b, near), 1.0 / 32), -1);
}
/* param: order */
static void lower_bessel_j(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0)), a = f1(b, SHLO_ABS, x), near = at_most(b, a, 8);
  int order = op_param(c);
  wave w = far_out(b, at_least(b, a, 8), order);
  ttc_val hi = shlo_mul(b, w.size, shlo_sub(b, shlo_mul(b, w.p, w.cosine), shlo_mul(b, w.q, w.sine)));
  hi = elem_select_f(b, elem_cmp(b, SHLO_EQ, a, INFINITY), 0, hi);
  ttc_val y = split(b, a, 8, j_near(b, near, near_t(b, near), order), hi);
  op_ret(c, 0, order ? negate_if(b, elem_cmp(b, SHLO_LT, x, 0), y) : y);
}
/* -inf at 0, NaN below.        param: order */
static void lower_bessel_y(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0)), near = at_most(b, x, 8), t = near_t(b, near);
  int order = op_param(c);
  wave w = far_out(b, at_least(b, x, 8), order);
  ttc_val hi = shlo_mul(b, w.size, shlo_add(b, shlo_mul(b, w.p, w.sine), shlo_mul(b, w.q, w.cosine)));
  hi = elem_select_f(b, elem_cmp(b, SHLO_EQ, x, INFINITY), 0, hi);
  ttc_val log_j = shlo_mul(b, f1(b, SHLO_LOG, near), j_near(b, near, t, order)), lo;
  if (order) {
    lo = shlo_mul(b, near, CHEBYSHEV(b, t, y1_small));
    lo = shlo_add(b, lo, scale(b, shlo_sub(b, log_j, over(b, 1, near)), 2 / PI));
  } else {
    lo = shlo_add(b, CHEBYSHEV(b, t, y0_small), scale(b, log_j, 2 / PI));
  }
  ttc_val y = elem_select_f(b, elem_cmp(b, SHLO_EQ, x, 0), -INFINITY, split(b, x, 8, lo, hi));
  op_ret(c, 0, elem_select_f(b, elem_cmp(b, SHLO_LT, x, 0), NAN, y));
}
/* sin(x)/x, 1 at 0, 0 at ±inf */
static void lower_spherical_j0(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0)), zero = elem_cmp(b, SHLO_EQ, x, 0);
  ttc_val y = shlo_div(b, f1(b, SHLO_SIN, x), elem_select_f(b, zero, 1, x));
  y = elem_select_f(b, zero, 1, y);
  op_ret(c, 0, elem_select_f(b, elem_cmp(b, SHLO_EQ, f1(b, SHLO_ABS, x), INFINITY), 0, y));
}

/* ---- Airy's Ai (10.4.59 for x >= 2, 10.4.60 for x <= -4) */
#define ZETA2 1.8856180831641267 /* 2/3·2^(3/2) */
#define ZETA4 5.3333333333333333
static ttc_val zeta(shlo *b, ttc_val x) {
  return scale(b, shlo_mul(b, x, f1(b, SHLO_SQRT, x)), 2.0 / 3);
}
static void lower_airy(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0));
  ttc_val mid = at_most(b, at_least(b, x, -4), 2), up = at_least(b, x, 2), down = at_least(b, f1(b, SHLO_NEG, x), 4);
  ttc_val zu = zeta(b, up), zd = zeta(b, down);
  ttc_val hi = CHEBYSHEV(b, plus(b, over(b, 2 * ZETA2, zu), -1), ai_pos);
  hi = shlo_mul(b, hi,
                shlo_div(b, f1(b, SHLO_EXP, f1(b, SHLO_NEG, zu)), scale(b, f1(b, SHLO_SQRT, f1(b, SHLO_SQRT, up)), 2 * sqrt(PI))));
  hi = elem_select_f(b, elem_cmp(b, SHLO_EQ, x, INFINITY), 0, hi);
  ttc_val t = plus(b, scale(b, elem_square(b, over(b, ZETA4, zd)), 2), -1), chi = plus(b, zd, -0.25 * PI);
  ttc_val lo = shlo_add(b, shlo_mul(b, CHEBYSHEV(b, t, ai_p), f1(b, SHLO_COS, chi)),
                        shlo_mul(b, shlo_div(b, CHEBYSHEV(b, t, ai_q), zd), f1(b, SHLO_SIN, chi)));
  lo = shlo_div(b, lo, scale(b, f1(b, SHLO_SQRT, f1(b, SHLO_SQRT, down)), sqrt(PI)));
  ttc_val y = split(b, x, -4, lo, split(b, x, 2, CHEBYSHEV(b, plus(b, scale(b, mid, 1.0 / 3), 1.0 / 3), ai_mid), hi));
  op_ret(c, 0, shlo_select(b, shlo_is_nan(b, x), x, y));
}

/* ---- error functions and the normal distribution */

/* e^(x²) erfc(x); for x < 0 by 2e^(x²) - erfcx(-x) */
static ttc_val erfcx(shlo *b, ttc_val x) {
  ttc_val a = f1(b, SHLO_ABS, x), t = elem_rsub(b, 1, over(b, 6, plus(b, a, 3)));
  ttc_val y = shlo_div(b, CHEBYSHEV(b, t, erfcx_table), plus(b, scale(b, a, 2), 1));
  ttc_val mirrored = shlo_sub(b, scale(b, f1(b, SHLO_EXP, elem_square(b, x)), 2), y);
  return shlo_select(b, elem_cmp(b, SHLO_LT, x, 0), mirrored, y);
}
static void lower_erfcx(shlo *b, ttc_lower *c) {
  op_ret(c, 0, erfcx(b, op_in_as(c, 0, elem_float(c, 0))));
}
/* ln Φ(x): through erfcx where Φ is small */
static void lower_log_ndtr(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0)), t = scale(b, x, sqrt(0.5));
  ttc_val low = at_most(b, t, -0.7);
  ttc_val lo = shlo_sub(b, f1(b, SHLO_LOG, scale(b, erfcx(b, f1(b, SHLO_NEG, low)), 0.5)), elem_square(b, low));
  ttc_val hi = f1(b, SHLO_LOG1P, scale(b, f1(b, SHLO_CHLO_ERFC, t), -0.5));
  op_ret(c, 0, split(b, x, -1, lo, hi));
}
/* Φ⁻¹(p): by erfinv in the middle, in the tails z = sqrt(-2 ln p) less a correction */
static ttc_val lower_tail(shlo *b, ttc_val p) {
  ttc_val z = f1(b, SHLO_SQRT, scale(b, f1(b, SHLO_LOG, p), -2)), v = over(b, 1, z);
  ttc_val mid = at_least(b, v, 0.125), far = at_most(b, v, 0.125);
  ttc_val m = CHEBYSHEV(b, plus(b, scale(b, mid, 16.0 / 3), -5.0 / 3), ndtri_mid);
  ttc_val f = CHEBYSHEV(b, plus(b, scale(b, far, 128.0 / 7), -9.0 / 7), ndtri_far);
  ttc_val correction = shlo_add(b, shlo_mul(b, f1(b, SHLO_LOG, z), v), split(b, z, 8, m, f));
  return shlo_sub(b, correction, z);
}
static void lower_ndtri(shlo *b, ttc_lower *c) {
  ttc_val p = op_in_as(c, 0, elem_float(c, 0)), q = elem_rsub(b, 1, p);
  double edge = exp(-2);
  ttc_val y = scale(b, f1(b, SHLO_CHLO_ERF_INV, plus(b, scale(b, p, 2), -1)), sqrt(2));
  y = shlo_select(b, elem_cmp(b, SHLO_LT, p, edge), lower_tail(b, at_most(b, p, edge)), y);
  y = shlo_select(b, elem_cmp(b, SHLO_LT, q, edge), f1(b, SHLO_NEG, lower_tail(b, at_most(b, q, edge))), y);
  y = elem_select_f(b, elem_cmp(b, SHLO_EQ, p, 0), -INFINITY, y);
  y = elem_select_f(b, elem_cmp(b, SHLO_EQ, p, 1), INFINITY, y);
  ttc_val bad = elem_or(b, elem_cmp(b, SHLO_LT, p, 0), elem_cmp(b, SHLO_GT, p, 1));
  op_ret(c, 0, elem_select_f(b, bad, NAN, y));
}
/* -x ln x, 0 at 0, -inf below */
static void lower_entr(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0));
  ttc_val y = elem_select_f(b, elem_cmp(b, SHLO_EQ, x, 0), 0, f1(b, SHLO_NEG, shlo_mul(b, x, f1(b, SHLO_LOG, x))));
  op_ret(c, 0, elem_select_f(b, elem_cmp(b, SHLO_LT, x, 0), -INFINITY, y));
}

/* ---- loops over all elements */

static ttc_val full(shlo *b, ttc_lower *c, ttc_val x) {
  return shlo_broadcast_to(b, x, op_out_ndim(c, 0), op_out_sizes(c, 0));
}

/* Orthogonal polynomials of degree n (integral part of a float) by their three-term recurrences (22.7). */
enum { CHEB_T, CHEB_U, CHEB_V, CHEB_W, HERMITE, HERMITE_E, LAGUERRE, LEGENDRE, SHIFTED = 8 };

/* State: x, n, degree k (scalar), p of k - 1, p of k. Elements stop at their own n, or once they are no number. */
static void poly_more(shlo *b, void *ctx, const ttc_val *s, ttc_val *r) {
  (void)ctx;
  r[0] = elem_any(b, elem_and(b, shlo_compare(b, SHLO_LT, s[2], s[1]), elem_not(b, shlo_is_nan(b, s[4]))));
}
static void poly_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *r) {
  int kind = *(const int *)ctx;
  ttc_val x = s[0], k = s[2], q = s[3], p = s[4], k1 = plus(b, k, 1), next;
  ttc_val xp = shlo_mul(b, x, p);
  if (kind <= CHEB_W)
    next = shlo_sub(b, scale(b, xp, 2), q);
  else if (kind == HERMITE)
    next = scale(b, shlo_sub(b, xp, shlo_mul(b, k, q)), 2);
  else if (kind == HERMITE_E)
    next = shlo_sub(b, xp, shlo_mul(b, k, q));
  else {
    ttc_val odd = plus(b, scale(b, k, 2), 1);
    ttc_val lead = kind == LAGUERRE ? shlo_mul(b, shlo_sub(b, odd, x), p) : shlo_mul(b, odd, xp);
    next = shlo_div(b, shlo_sub(b, lead, shlo_mul(b, k, q)), k1);
  }
  ttc_val on = shlo_compare(b, SHLO_LT, k, s[1]);
  r[0] = x;
  r[1] = s[1];
  r[2] = k1;
  r[3] = shlo_select(b, on, p, q);
  r[4] = shlo_select(b, on, next, p);
}
/* Degree 1. */
static ttc_val linear(shlo *b, int kind, ttc_val x) {
  switch (kind) {
    case CHEB_U:
    case HERMITE:
      return scale(b, x, 2);
    case CHEB_V:
      return plus(b, scale(b, x, 2), -1);
    case CHEB_W:
      return plus(b, scale(b, x, 2), 1);
    case LAGUERRE:
      return elem_rsub(b, 1, x);
    default:
      return x;
  }
}
/* Chebyshev's four kinds inside (-1, 1) by θ = acos x (22.3.15-16): exact for any degree. */
static ttc_val by_angle(shlo *b, int kind, ttc_val x, ttc_val n) {
  ttc_val a = f1(b, SHLO_CHLO_ACOS, x), half = scale(b, a, 0.5);
  ttc_val between = shlo_mul(b, plus(b, n, 0.5), a);
  switch (kind) {
    case CHEB_T:
      return f1(b, SHLO_COS, shlo_mul(b, n, a));
    case CHEB_U:
      return shlo_div(b, f1(b, SHLO_SIN, shlo_mul(b, plus(b, n, 1), a)), f1(b, SHLO_SIN, a));
    case CHEB_V:
      return shlo_div(b, f1(b, SHLO_COS, between), f1(b, SHLO_COS, half));
    default:
      return shlo_div(b, f1(b, SHLO_SIN, between), f1(b, SHLO_SIN, half));
  }
}
/* param: the kind, + SHIFTED for x -> 2x - 1 */
static void lower_polynomial(shlo *b, ttc_lower *c) {
  int kind = op_param(c) % SHIFTED;
  ttc_dtype d = elem_promote_float(c, 0, 1);
  ttc_val x = full(b, c, elem_in(b, c, 0, d)), n = full(b, c, elem_trunc(b, elem_in(b, c, 1, d)));
  if (op_param(c) >= SHIFTED)
    x = plus(b, scale(b, x, 2), -1);
  ttc_val loop_n = n, inside = TTC_POISON;
  if (kind <= CHEB_W) {
    inside = elem_and(b, elem_cmp(b, SHLO_LT, f1(b, SHLO_ABS, x), 1), elem_cmp(b, SHLO_GT, n, 8));
    loop_n = elem_select_f(b, inside, 0, n);
  }
  double limit = d == TTC_F64 ? 512 : 128; /* PyTorch gives NaN for Hermite polynomials of higher degree */
  bool hermite = kind == HERMITE || kind == HERMITE_E;
  if (hermite)
    loop_n = elem_select_f(b, elem_cmp(b, SHLO_GT, n, limit), 0, n);
  ttc_val one = shlo_const_like(b, x, 1), s[5] = {x, loop_n, elem_f(b, x, 1), one, linear(b, kind, x)}, r[5];
  shlo_while(b, 5, s, poly_more, poly_step, &kind, r);
  ttc_val y = r[4];
  if (kind <= CHEB_W)
    y = shlo_select(b, inside, by_angle(b, kind, x, n), y);
  y = elem_select_f(b, elem_cmp(b, SHLO_EQ, n, 0), 1, y);
  y = elem_select_f(b, elem_cmp(b, SHLO_LT, n, 0), 0, y);
  op_ret(c, 0, hermite ? elem_select_f(b, elem_cmp(b, SHLO_GT, n, limit), NAN, y) : y);
}

/* ---- Hurwitz zeta and polygamma */

/* q below 0 is brought up: zeta(s, q) = q^-s + zeta(s, q + 1). State: s, q, sum so far, steps (scalar). */
#define ZETA_STEPS 100000
static void zeta_more(shlo *b, void *ctx, const ttc_val *s, ttc_val *r) {
  (void)ctx;
  r[0] = elem_and(b, elem_any(b, elem_cmp(b, SHLO_LE, s[1], 0)), elem_cmp(b, SHLO_LT, s[3], ZETA_STEPS));
}
static void zeta_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *r) {
  (void)ctx;
  ttc_val low = elem_cmp(b, SHLO_LE, s[1], 0);
  ttc_val term = shlo_2(b, SHLO_POW, s[1], f1(b, SHLO_NEG, s[0]));
  r[0] = s[0];
  r[1] = shlo_select(b, low, plus(b, s[1], 1), s[1]);
  r[2] = shlo_select(b, low, shlo_add(b, s[2], term), s[2]);
  r[3] = shlo_add(b, s[3], elem_i(b, s[3], 1));
}
/* sum over k >= 0 of (q + k)^-s; inf at s = 1 and at q = 0, -1, ..; NaN for s < 1, and for q < 0 where s is not whole. */
static ttc_val hurwitz(shlo *b, ttc_val s, ttc_val q) {
  ttc_val whole_q = shlo_compare(b, SHLO_EQ, q, f1(b, SHLO_FLOOR, q)), whole_s = shlo_compare(b, SHLO_EQ, s, f1(b, SHLO_FLOOR, s));
  ttc_val low = elem_cmp(b, SHLO_LE, q, 0), pole = elem_and(b, low, whole_q);
  ttc_val one = elem_f(b, q, 1), start = shlo_select(b, pole, one, q);
  ttc_val in[4] = {s, start, shlo_const_like(b, q, 0), shlo_const_i(b, TTC_S32, 0, 0, NULL)}, r[4];
  shlo_while(b, 4, in, zeta_more, zeta_step, NULL, r);
  ttc_val y = shlo_add(b, r[2], shlo_2(b, SHLO_CHLO_ZETA, s, r[1]));
  y = elem_select_f(b, elem_and(b, low, elem_not(b, whole_s)), NAN, y);
  y = elem_select_f(b, pole, INFINITY, y);
  y = elem_select_f(b, elem_cmp(b, SHLO_LT, s, 1), NAN, y);
  return elem_select_f(b, elem_cmp(b, SHLO_EQ, s, 1), INFINITY, y);
}
static void lower_zeta(shlo *b, ttc_lower *c) {
  ttc_dtype d = elem_promote_float(c, 0, 1);
  ttc_val s = full(b, c, elem_in(b, c, 0, d)), q = full(b, c, elem_in(b, c, 1, d));
  op_ret(c, 0, hurwitz(b, s, q));
}
/* polygamma(n, x), n static: digamma; trigamma by reflection (6.4.7) below 1/2; else (-1)^(n+1) n! zeta(n + 1, x) (6.4.10) */
static void lower_polygamma(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 1, elem_float(c, 1));
  int64_t n = op_int(c, 0, 0);
  ttc_val y;
  if (n == 0) {
    y = f1(b, SHLO_CHLO_DIGAMMA, x);
  } else if (n == 1) {
    ttc_val low = elem_cmp(b, SHLO_LT, x, 0.5), up = shlo_select(b, low, elem_rsub(b, 1, x), x);
    ttc_val z = shlo_2(b, SHLO_CHLO_ZETA, shlo_const_like(b, x, 2), up);
    ttc_val sine = f1(b, SHLO_SIN, scale(b, x, PI));
    y = shlo_select(b, low, shlo_sub(b, over(b, PI * PI, elem_square(b, sine)), z), z);
  } else {
    y = scale(b, hurwitz(b, shlo_const_like(b, x, (double)(n + 1)), x), (n % 2 ? 1 : -1) * exp(lgamma((double)n + 1)));
  }
  op_ret(c, 0, y);
}

/* ---- incomplete gamma functions, in f64 whatever the type */

#define GAMMA_STEPS 2000

/* P(a, x)·Γ(a)·e^x/x^a = sum x^k / (a (a+1) .. (a+k)) (6.5.29). State: a + k, x, term, sum, k (scalar). */
static void series_more(shlo *b, void *ctx, const ttc_val *s, ttc_val *r) {
  (void)ctx;
  ttc_val small = scale(b, f1(b, SHLO_ABS, s[3]), 1e-16);
  r[0] = elem_and(b, elem_any(b, shlo_compare(b, SHLO_GT, f1(b, SHLO_ABS, s[2]), small)), elem_cmp(b, SHLO_LT, s[4], GAMMA_STEPS));
}
static void series_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *r) {
  (void)ctx;
  r[0] = plus(b, s[0], 1);
  r[1] = s[1];
  r[2] = shlo_div(b, shlo_mul(b, s[2], s[1]), r[0]);
  r[3] = shlo_add(b, s[3], r[2]);
  r[4] = shlo_add(b, s[4], elem_i(b, s[4], 1));
}
/* Q(a, x)·Γ(a)·e^x/x^a as a continued fraction (6.5.31) by Lentz's method as Thompson and Barnett (1986) modified it.
 * State: i (scalar), a, denominator bi, c, d, value, last factor. */
static void fraction_more(shlo *b, void *ctx, const ttc_val *s, ttc_val *r) {
  const double *close = ctx;
  ttc_val off = f1(b, SHLO_ABS, plus(b, s[6], -1));
  r[0] = elem_and(b, elem_any(b, elem_cmp(b, SHLO_GT, off, *close)), elem_cmp(b, SHLO_LT, s[0], GAMMA_STEPS));
}
/* A TPU's f64 is a sum of two f32: 48 bits, in f32's range. */
static double tiny(const shlo *b) {
  return shlo_for_tpu(b) ? 1e-30 : 1e-300;
}
static ttc_val not_zero(shlo *b, ttc_val x) {
  return elem_select_f(b, elem_cmp(b, SHLO_LT, f1(b, SHLO_ABS, x), tiny(b)), tiny(b), x);
}
static void fraction_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *r) {
  (void)ctx;
  ttc_val i = s[0], an = shlo_mul(b, i, shlo_sub(b, s[1], i));
  r[0] = plus(b, i, 1);
  r[1] = s[1];
  r[2] = plus(b, s[2], 2);
  r[4] = over(b, 1, not_zero(b, shlo_add(b, shlo_mul(b, an, s[4]), r[2])));
  r[3] = not_zero(b, shlo_add(b, r[2], shlo_div(b, an, s[3])));
  r[6] = shlo_mul(b, r[3], r[4]);
  r[5] = shlo_mul(b, s[5], r[6]);
}
/* igamma(a, x) = P, igammac(a, x) = Q = 1 - P        param: 1 for Q */
static void lower_igamma(shlo *b, ttc_lower *c) {
  ttc_val a0 = full(b, c, op_in_as(c, 0, TTC_F64)), x0 = full(b, c, op_in_as(c, 1, TTC_F64));
  ttc_val plain = elem_and(b, elem_and(b, f1(b, SHLO_IS_FINITE, a0), f1(b, SHLO_IS_FINITE, x0)),
                           elem_and(b, elem_cmp(b, SHLO_GT, a0, 0), elem_cmp(b, SHLO_GT, x0, 0)));
  ttc_val a = elem_select_f(b, elem_not(b, plain), 1, a0), x = elem_select_f(b, elem_not(b, plain), 1, x0);
  ttc_val by_q = elem_and(b, elem_cmp(b, SHLO_GT, x, 1), shlo_compare(b, SHLO_GT, x, a));
  ttc_val xs = elem_select_f(b, by_q, 0, x);
  ttc_val aq = shlo_select(b, by_q, a, elem_f(b, a, 1)), xq = shlo_select(b, by_q, x, elem_f(b, x, 2));
  ttc_val first = over(b, 1, a), ser[5] = {a, xs, first, first, shlo_const_i(b, TTC_S32, 0, 0, NULL)}, sum[5];
  shlo_while(b, 5, ser, series_more, series_step, NULL, sum);
  ttc_val b0 = shlo_sub(b, plus(b, xq, 1), aq), d0 = over(b, 1, not_zero(b, b0));
  ttc_val fra[7] = {elem_f(b, a, 1), aq, b0, shlo_const_like(b, a, 1 / tiny(b)), d0, d0, shlo_const_like(b, a, 2)}, cf[7];
  double close = op_out_dtype(c, 0) != TTC_F64 ? 1e-12 : shlo_for_tpu(b) ? 1e-13 : 4e-16;
  shlo_while(b, 7, fra, fraction_more, fraction_step, &close, cf);
  ttc_val front = shlo_sub(b, shlo_sub(b, shlo_mul(b, a, f1(b, SHLO_LOG, x)), x), f1(b, SHLO_CHLO_LGAMMA, a));
  ttc_val y = shlo_mul(b, f1(b, SHLO_EXP, front), shlo_select(b, by_q, cf[5], sum[3]));
  bool want_q = op_param(c) != 0;
  y = shlo_select(b, want_q ? elem_not(b, by_q) : by_q, elem_rsub(b, 1, y), y);
  /* Edges: P(a, 0) = 0, P(0, x) = 1, P(a, inf) = 1, P(inf, x) = 0; NaN at (0, 0), (inf, inf) and below 0. */
  ttc_val edge = shlo_select(b, elem_cmp(b, SHLO_EQ, x0, 0), elem_f(b, a, want_q ? 1 : 0), elem_f(b, a, want_q ? 0 : 1));
  edge = elem_select_f(b, elem_cmp(b, SHLO_EQ, a0, INFINITY), want_q ? 1 : 0, edge);
  ttc_val zeros = elem_and(b, elem_cmp(b, SHLO_EQ, a0, 0), elem_cmp(b, SHLO_EQ, x0, 0));
  ttc_val infs = elem_and(b, elem_cmp(b, SHLO_EQ, a0, INFINITY), elem_cmp(b, SHLO_EQ, x0, INFINITY));
  ttc_val right = elem_and(b, elem_cmp(b, SHLO_GE, a0, 0), elem_cmp(b, SHLO_GE, x0, 0)); /* false for NaN */
  edge = elem_select_f(b, elem_or(b, elem_or(b, zeros, infs), elem_not(b, right)), NAN, edge);
  op_ret(c, 0, shlo_select(b, plain, y, edge));
}

#define LOOSE(name, rule, param) {ELEM_HEAD(name, rule, param, TOL_LOOSE), .pad = PAD_EACH_ONE}
#define POLYNOMIAL(name, kind)                                                                                \
  LOOSE("special_" name, lower_polynomial, kind), LOOSE("special_" name ".n_scalar", lower_polynomial, kind), \
      LOOSE("special_" name ".x_scalar", lower_polynomial, kind)
const ttc_op_row ttc__special_rows[] = {
    LOOSE("i0", lower_bessel_i, 0),
    LOOSE("special_i1", lower_bessel_i, 1),
    LOOSE("special_i0e", lower_bessel_i, 2),
    LOOSE("special_i1e", lower_bessel_i, 3),
    LOOSE("special_modified_bessel_i0", lower_bessel_i, 0),
    LOOSE("special_modified_bessel_i1", lower_bessel_i, 1),
    LOOSE("special_modified_bessel_k0", lower_bessel_k, 0),
    LOOSE("special_modified_bessel_k1", lower_bessel_k, 1),
    LOOSE("special_scaled_modified_bessel_k0", lower_bessel_k, 2),
    LOOSE("special_scaled_modified_bessel_k1", lower_bessel_k, 3),
    LOOSE("special_bessel_j0", lower_bessel_j, 0),
    LOOSE("special_bessel_j1", lower_bessel_j, 1),
    LOOSE("special_bessel_y0", lower_bessel_y, 0),
    LOOSE("special_bessel_y1", lower_bessel_y, 1),
    LOOSE("special_spherical_bessel_j0", lower_spherical_j0, 0),
    LOOSE("special_airy_ai", lower_airy, 0),
    LOOSE("special_erfcx", lower_erfcx, 0),
    LOOSE("special_log_ndtr", lower_log_ndtr, 0),
    LOOSE("special_ndtri", lower_ndtri, 0),
    LOOSE("special_entr", lower_entr, 0),
    LOOSE("special_zeta", lower_zeta, 0),
    LOOSE("special_zeta.other_scalar", lower_zeta, 0),
    LOOSE("special_zeta.self_scalar", lower_zeta, 0),
    {ELEM_HEAD("polygamma", lower_polygamma, 0, TOL_LOOSE), .pad = PAD_EACH_ONE, .note = "one program for each n"},
    LOOSE("igamma", lower_igamma, 0),
    LOOSE("igammac", lower_igamma, 1),
    POLYNOMIAL("chebyshev_polynomial_t", CHEB_T),
    POLYNOMIAL("chebyshev_polynomial_u", CHEB_U),
    POLYNOMIAL("chebyshev_polynomial_v", CHEB_V),
    POLYNOMIAL("chebyshev_polynomial_w", CHEB_W),
    POLYNOMIAL("shifted_chebyshev_polynomial_t", CHEB_T + SHIFTED),
    POLYNOMIAL("shifted_chebyshev_polynomial_u", CHEB_U + SHIFTED),
    POLYNOMIAL("shifted_chebyshev_polynomial_v", CHEB_V + SHIFTED),
    POLYNOMIAL("shifted_chebyshev_polynomial_w", CHEB_W + SHIFTED),
    POLYNOMIAL("hermite_polynomial_h", HERMITE),
    POLYNOMIAL("hermite_polynomial_he", HERMITE_E),
    POLYNOMIAL("laguerre_polynomial_l", LAGUERRE),
    POLYNOMIAL("legendre_polynomial_p", LEGENDRE),
};
TTC_FAMILY(special)
