/* Family "sample": distributions drawn by rejection: loops that go on until every element has accepted a number. Elements have
 * numbers of their own in each round, so that a result does not depend on its neighbours. */
#include <float.h>
#include <math.h>

#include "op/elem.h"
#include "op/rng.h"

enum { MOST_ROUNDS = 4096 };

/* Loop state: round (u32), what is left to do (bool), result, then whatever `step` keeps. */
enum { ROUND, LEFT, VALUE, KEPT };
typedef struct drawing {
  ttc__stream s;
  int64_t n;
  ttc_dtype d;
} drawing;

static void some_left(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  (void)ctx;
  out[0] = elem_and(b, elem_any(b, s[LEFT]), shlo_compare(b, SHLO_LT, s[ROUND], shlo_const_u(b, TTC_U32, MOST_ROUNDS, 0, NULL)));
}
static ttc_val next_round(shlo *b, const ttc_val *s) {
  return shlo_add(b, s[ROUND], shlo_const_u(b, TTC_U32, 1, 0, NULL));
}
/* A fresh float in (0, 1] for each element: word k of the round's four. */
static void draw(shlo *b, const drawing *w, ttc_val round, ttc_val u[4]) {
  ttc_val words[4];
  ttc__lane_words(b, w->s, w->n, round, words);
  for (int k = 0; k < 4; k++) {
    u[k] = shlo_convert(b, words[k], w->d);
    u[k] = shlo_mul(b, shlo_add(b, u[k], elem_f(b, u[k], 0.5)), elem_f(b, u[k], 1.0 / 4294967296.0));
  }
}
static void accept(shlo *b, const ttc_val *s, ttc_val yes, ttc_val value, ttc_val *out) {
  yes = elem_and(b, yes, s[LEFT]);
  out[ROUND] = next_round(b, s);
  out[LEFT] = elem_and(b, s[LEFT], elem_not(b, yes));
  out[VALUE] = shlo_select(b, yes, value, s[VALUE]);
}

/* Argument i as a vector of n elements of type d, broadcast to the result. */
static ttc_val flat_arg(shlo *b, ttc_lower *c, int i, ttc_dtype d, int64_t *n) {
  ttc_val x = shlo_broadcast_to(b, op_in_as(c, i, d), op_out_ndim(c, 0), op_out_sizes(c, 0));
  *n = shlo_nelem(b, x);
  return shlo_reshape(b, x, 1, n);
}
static void give(shlo *b, ttc_lower *c, ttc_val v) {
  op_ret(c, 0, shlo_reshape(b, v, op_out_ndim(c, 0), op_out_sizes(c, 0)));
}
static void start(shlo *b, ttc_val x, ttc_val *init) {
  int64_t n = shlo_dim(b, x, 0);
  init[ROUND] = shlo_const_u(b, TTC_U32, 0, 0, NULL);
  init[LEFT] = shlo_const_i(b, TTC_BOOL, 1, 1, &n);
  init[VALUE] = shlo_const_like(b, x, 0);
}

/* ln Gamma(x) of f64 for x >= 1: Stirling's series, whose first term left out is below 1e-9, at x or, below 8, at x + 8, less the
 * logarithm of x (x+1) .. (x+7), the product of t = x (x+7), t + 6, t + 10 and t + 12. A third of chlo.lgamma, which is for any x:
 * a TPU computes f64 in pieces. */
static ttc_val log_gamma(shlo *b, ttc_val x) {
  static const double pairs[] = {6, 10, 12};
  ttc_val small = elem_cmp(b, SHLO_LT, x, 8), eight = elem_f(b, x, 8), one = elem_f(b, x, 1);
  ttc_val y = shlo_select(b, small, shlo_add(b, x, eight), x), low = shlo_2(b, SHLO_MIN, x, eight);
  ttc_val t = shlo_mul(b, low, shlo_add(b, low, elem_f(b, x, 7))), product = t;
  for (int k = 0; k < 3; k++)
    product = shlo_mul(b, product, shlo_add(b, t, elem_f(b, t, pairs[k])));
  ttc_val r = shlo_div(b, one, y), s = elem_square(b, r);
  ttc_val tail = elem_rsub(b, 1.0 / 360, shlo_mul(b, s, elem_f(b, s, 1.0 / 1260)));
  tail = shlo_mul(b, r, elem_rsub(b, 1.0 / 12, shlo_mul(b, s, tail)));
  ttc_val main = shlo_mul(b, shlo_sub(b, y, elem_f(b, y, 0.5)), shlo_1(b, SHLO_LOG, y));
  main = shlo_add(b, shlo_sub(b, main, y), shlo_add(b, tail, elem_f(b, y, 0.91893853320467274178))); /* ln(2 pi)/2 */
  return shlo_sub(b, main, shlo_1(b, SHLO_LOG, shlo_select(b, small, product, one)));
}

/* ---- Poisson
 * Rates below 10: how many uniforms can be multiplied before the product falls below e^-rate (Knuth). Others: Hörmann's PTRS (1993,
 * "The transformed rejection method for generating Poisson random variables").        kept: the product so far, the rate */
static ttc_val hoermann(shlo *b, ttc_val rate, const ttc_val u[4], ttc_val *k) {
  ttc_val large = shlo_2(b, SHLO_MAX, rate, elem_f(b, rate, 10));
  ttc_val y = shlo_add(b, elem_f(b, rate, 0.931), shlo_mul(b, elem_f(b, rate, 2.53), shlo_1(b, SHLO_SQRT, large)));
  ttc_val a = shlo_add(b, elem_f(b, rate, -0.059), shlo_mul(b, elem_f(b, rate, 0.02483), y));
  ttc_val alpha = shlo_add(b, elem_f(b, rate, 1.1239), shlo_div(b, elem_f(b, rate, 1.1328), shlo_sub(b, y, elem_f(b, rate, 3.4))));
  ttc_val vr = shlo_sub(b, elem_f(b, rate, 0.9277), shlo_div(b, elem_f(b, rate, 3.6224), shlo_sub(b, y, elem_f(b, rate, 2))));
  ttc_val x = shlo_sub(b, u[0], elem_f(b, rate, 0.5)), v = u[1], us = elem_rsub(b, 0.5, shlo_1(b, SHLO_ABS, x));
  ttc_val slope = shlo_add(b, shlo_div(b, shlo_mul(b, elem_f(b, rate, 2), a), us), y);
  *k = shlo_1(b, SHLO_FLOOR, shlo_add(b, shlo_mul(b, slope, x), shlo_add(b, large, elem_f(b, rate, 0.43))));
  ttc_val quick = elem_and(b, elem_cmp(b, SHLO_GE, us, 0.07), shlo_compare(b, SHLO_LE, v, vr));
  ttc_val out = elem_and(b, elem_cmp(b, SHLO_LT, us, 0.013), shlo_compare(b, SHLO_GT, v, us));
  out = elem_or(b, out, elem_cmp(b, SHLO_LT, *k, 0));
  ttc_val hat = shlo_add(b, shlo_div(b, a, elem_square(b, us)), y);
  ttc_val left = shlo_1(b, SHLO_LOG, shlo_div(b, shlo_mul(b, v, alpha), hat));
  ttc_val right = shlo_sub(b, shlo_mul(b, *k, shlo_1(b, SHLO_LOG, large)), large);
  right = shlo_sub(b, right, log_gamma(b, shlo_add(b, shlo_2(b, SHLO_MAX, *k, elem_f(b, rate, 0)), elem_f(b, rate, 1))));
  return elem_or(b, quick, elem_and(b, elem_not(b, out), shlo_compare(b, SHLO_LE, left, right)));
}
static void poisson_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  ttc_val u[4], k, rate = s[KEPT + 1];
  draw(b, ctx, s[ROUND], u);
  ttc_val large = elem_cmp(b, SHLO_GE, rate, 10), yes = hoermann(b, rate, u, &k);
  ttc_val product = shlo_mul(b, s[KEPT], u[2]);
  ttc_val below = shlo_compare(b, SHLO_LE, product, shlo_1(b, SHLO_EXP, shlo_1(b, SHLO_NEG, rate)));
  ttc_val round = shlo_broadcast_to(b, shlo_convert(b, s[ROUND], shlo_dtype(b, rate)), 1, &((const drawing *)ctx)->n);
  accept(b, s, shlo_select(b, large, yes, below), shlo_select(b, large, k, round), out);
  out[KEPT] = product;
  out[KEPT + 1] = rate;
}
/* aten::poisson(self, generator) */
static void lower_poisson(shlo *b, ttc_lower *c) {
  drawing w = {.s = ttc__open_stream(b, c), .d = TTC_F64};
  ttc_val init[KEPT + 2], done[KEPT + 2], rate = flat_arg(b, c, 0, TTC_F64, &w.n);
  op_fault_if(c, b, elem_any(b, elem_cmp(b, SHLO_LT, rate, 0)), TTC__FAULT_RATE, TTC_POISON, 0, 0);
  start(b, rate, init);
  init[LEFT] = elem_cmp(b, SHLO_GE, rate, 0);
  init[KEPT] = shlo_const_like(b, rate, 1);
  init[KEPT + 1] = rate;
  shlo_while(b, KEPT + 2, init, some_left, poisson_step, &w, done);
  give(b, c, done[VALUE]);
}

/* ---- binomial
 * Means below 10: how many failures' gaps, each geometric, fit into the trials. Others: Hörmann's BTRS (1993, "The generation of
 * binomial random variates"). For p above 1/2 failures are counted. Kept are the gaps' sum and their number, and what does not
 * change: trials, p, ln(1-p), ln(p/(1-p)), and the density's logarithm at its mode. */
enum { GAPS = KEPT, COUNT, TRIALS, CHANCE, LOG_Q, ODDS, TOP, NSTATE };

/* But for a constant: k ln(p/(1-p)) - ln k! - ln (n-k)! */
static ttc_val log_density(shlo *b, ttc_val n, ttc_val k, ttc_val odds) {
  ttc_val one = elem_f(b, n, 1), x = log_gamma(b, shlo_add(b, k, one));
  return shlo_sub(b, shlo_mul(b, k, odds), shlo_add(b, x, log_gamma(b, shlo_add(b, shlo_sub(b, n, k), one))));
}
static ttc_val btrs(shlo *b, const ttc_val *s, ttc_val u, ttc_val v, ttc_val *k) {
  ttc_val n = s[TRIALS], p = s[CHANCE];
  ttc_val q = elem_rsub(b, 1, p), mean = shlo_mul(b, n, p);
  ttc_val spread = shlo_1(b, SHLO_SQRT, shlo_2(b, SHLO_MAX, shlo_mul(b, mean, q), elem_f(b, n, 1)));
  ttc_val y = shlo_add(b, elem_f(b, n, 1.15), shlo_mul(b, elem_f(b, n, 2.53), spread));
  ttc_val a = shlo_add(b, elem_f(b, n, -0.0873), shlo_mul(b, elem_f(b, n, 0.0248), y));
  a = shlo_add(b, a, shlo_mul(b, elem_f(b, n, 0.01), p));
  ttc_val vr = shlo_sub(b, elem_f(b, n, 0.92), shlo_div(b, elem_f(b, n, 4.2), y));
  ttc_val alpha = shlo_mul(b, shlo_add(b, elem_f(b, n, 2.83), shlo_div(b, elem_f(b, n, 5.1), y)), spread);
  ttc_val x = shlo_sub(b, u, elem_f(b, n, 0.5)), us = elem_rsub(b, 0.5, shlo_1(b, SHLO_ABS, x));
  ttc_val slope = shlo_add(b, shlo_div(b, shlo_mul(b, elem_f(b, n, 2), a), us), y);
  *k = shlo_1(b, SHLO_FLOOR, shlo_add(b, shlo_mul(b, slope, x), shlo_add(b, mean, elem_f(b, n, 0.5))));
  ttc_val quick = elem_and(b, elem_cmp(b, SHLO_GE, us, 0.07), shlo_compare(b, SHLO_LE, v, vr));
  ttc_val inside = elem_and(b, elem_cmp(b, SHLO_GE, *k, 0), shlo_compare(b, SHLO_LE, *k, n));
  ttc_val at = shlo_clamp(b, shlo_const_like(b, n, 0), *k, n);
  ttc_val hat = shlo_add(b, shlo_div(b, a, elem_square(b, us)), y);
  ttc_val left = shlo_1(b, SHLO_LOG, shlo_div(b, shlo_mul(b, v, alpha), hat));
  ttc_val right = shlo_sub(b, log_density(b, n, at, s[ODDS]), s[TOP]);
  return elem_and(b, inside, elem_or(b, quick, shlo_compare(b, SHLO_LE, left, right)));
}
static void binomial_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  ttc_val u[4], k, n = s[TRIALS], p = s[CHANCE];
  draw(b, ctx, s[ROUND], u);
  ttc_val large = elem_cmp(b, SHLO_GE, shlo_mul(b, n, p), 10), yes = btrs(b, s, u[0], u[1], &k);
  ttc_val gap = shlo_1(b, SHLO_CEIL, shlo_div(b, shlo_1(b, SHLO_LOG, u[2]), s[LOG_Q])); /* p = 0: by -0, infinite */
  gap = shlo_2(b, SHLO_MAX, gap, elem_f(b, gap, 1));
  gap = shlo_select(b, elem_cmp(b, SHLO_LE, p, 0), shlo_add(b, n, elem_f(b, n, 1)), gap);
  ttc_val sum = shlo_add(b, s[GAPS], gap), over = shlo_compare(b, SHLO_GT, sum, n);
  accept(b, s, shlo_select(b, large, yes, over), shlo_select(b, large, k, s[COUNT]), out);
  out[GAPS] = sum;
  out[COUNT] = shlo_add(b, s[COUNT], elem_f(b, n, 1));
  for (int i = TRIALS; i < NSTATE; i++)
    out[i] = s[i];
}
/* aten::binomial(count, prob, generator) */
static void lower_binomial(shlo *b, ttc_lower *c) {
  drawing w = {.s = ttc__open_stream(b, c), .d = TTC_F64};
  ttc_val init[NSTATE], done[NSTATE], n = flat_arg(b, c, 0, TTC_F64, &w.n), p = flat_arg(b, c, 1, TTC_F64, &w.n);
  ttc_val bad = elem_or(b, shlo_is_nan(b, n), shlo_is_nan(b, p));
  n = shlo_2(b, SHLO_MAX, n, elem_f(b, n, 0));
  p = shlo_clamp(b, elem_f(b, p, 0), p, elem_f(b, p, 1));
  ttc_val flip = elem_cmp(b, SHLO_GT, p, 0.5);
  p = shlo_select(b, flip, elem_rsub(b, 1, p), p);
  start(b, n, init);
  init[GAPS] = init[COUNT] = init[VALUE];
  init[TRIALS] = n;
  init[CHANCE] = p;
  init[LOG_Q] = shlo_1(b, SHLO_LOG1P, shlo_1(b, SHLO_NEG, p));
  init[ODDS] = shlo_sub(b, shlo_1(b, SHLO_LOG, shlo_2(b, SHLO_MAX, p, elem_f(b, p, FLT_MIN))), init[LOG_Q]);
  init[TOP] = log_density(b, n, shlo_1(b, SHLO_FLOOR, shlo_mul(b, shlo_add(b, n, elem_f(b, n, 1)), p)), init[ODDS]);
  init[LEFT] = elem_not(b, bad);
  shlo_while(b, NSTATE, init, some_left, binomial_step, &w, done);
  ttc_val k = shlo_select(b, flip, shlo_sub(b, n, done[VALUE]), done[VALUE]);
  give(b, c, shlo_select(b, bad, elem_f(b, k, (double)NAN), k));
}

/* ---- gamma
 * Marsaglia and Tsang (2000, "A simple method for generating gamma variables"); shapes below 1 from shape + 1, times u^(1/shape).
 * kept: the shape */
static void gamma_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  ttc_val u[4], x, spare, shape = s[KEPT];
  draw(b, ctx, s[ROUND], u);
  ttc__box_muller(b, u[0], u[1], &x, &spare);
  ttc_val small = elem_cmp(b, SHLO_LT, shape, 1), one = elem_f(b, shape, 1);
  ttc_val d = shlo_sub(b, shlo_select(b, small, shlo_add(b, shape, one), shape), elem_f(b, shape, 1.0 / 3));
  ttc_val root = shlo_add(b, one, shlo_div(b, x, shlo_1(b, SHLO_SQRT, shlo_mul(b, elem_f(b, shape, 9), d))));
  ttc_val v = shlo_mul(b, elem_square(b, root), root), positive = elem_cmp(b, SHLO_GT, v, 0);
  ttc_val safe = shlo_select(b, positive, v, one);
  ttc_val limit = shlo_add(b, shlo_mul(b, elem_f(b, shape, 0.5), elem_square(b, x)), d);
  limit = shlo_sub(b, limit, shlo_mul(b, d, safe));
  limit = shlo_add(b, limit, shlo_mul(b, d, shlo_1(b, SHLO_LOG, safe)));
  ttc_val yes = elem_and(b, positive, shlo_compare(b, SHLO_LT, shlo_1(b, SHLO_LOG, u[2]), limit));
  ttc_val boost = shlo_1(b, SHLO_EXP, shlo_div(b, shlo_1(b, SHLO_LOG, u[3]), shape));
  accept(b, s, yes, shlo_mul(b, shlo_mul(b, d, safe), shlo_select(b, small, boost, one)), out);
  out[KEPT] = shape;
}
static ttc_val gammas(shlo *b, ttc_lower *c) {
  drawing w = {.s = ttc__open_stream(b, c), .d = op_out_dtype(c, 0) == TTC_F64 ? TTC_F64 : TTC_F32};
  ttc_val init[KEPT + 1], done[KEPT + 1], shape = flat_arg(b, c, 0, w.d, &w.n);
  start(b, shape, init);
  init[LEFT] = elem_cmp(b, SHLO_GT, shape, 0); /* 0 gives 0 */
  init[KEPT] = shape;
  shlo_while(b, KEPT + 1, init, some_left, gamma_step, &w, done);
  ttc_val least = elem_f(b, shape, w.d == TTC_F64 ? DBL_MIN : FLT_MIN);
  return shlo_select(b, init[LEFT], shlo_2(b, SHLO_MAX, done[VALUE], least), done[VALUE]);
}
/* aten::_standard_gamma(self, generator) */
static void lower_gamma(shlo *b, ttc_lower *c) {
  give(b, c, gammas(b, c));
}
/* aten::_sample_dirichlet(self, generator): gammas over their sum along the last axis */
static void lower_dirichlet(shlo *b, ttc_lower *c) {
  int n = op_out_ndim(c, 0), last = n - 1;
  ttc_val x = shlo_reshape(b, gammas(b, c), n, op_out_sizes(c, 0));
  if (n == 0) {
    op_ret(c, 0, shlo_const_like(b, x, 1));
    return;
  }
  ttc_val sum = shlo_unsqueeze(b, shlo_reduce(b, SHLO_SUM, x, 1, &last), last);
  op_ret(c, 0, shlo_div(b, x, sum));
}

/* aten::_standard_gamma_grad(self, output): d output / d shape at equal probability, -(dP/da) / (dP/dx) for P(a, x) = x^a e^-x
 * sum_k x^k / Gamma(a+k+1), both derivatives term by term: -x sum_k c_k (ln x - psi(a+k+1)), c_k = x^k / (a (a+1) .. (a+k)).
 * Shapes above 200, where the series is long: Cornish and Fisher's expansion around the normal (1937), x = a + z sqrt(a) + (z²-1)/3
 * + (z³-7z)/(36 sqrt(a)) + .., differentiated.        state: k, c_k, psi, sum, ln x, a, x */
enum { G_K, G_TERM, G_PSI, G_SUM, G_LOG, G_A, G_X, G_N };
static void grad_more(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  (void)ctx;
  ttc_val big = shlo_compare(b, SHLO_GT, s[G_TERM], shlo_mul(b, shlo_1(b, SHLO_ABS, s[G_SUM]), elem_f(b, s[G_SUM], 1e-17)));
  ttc_val rising = shlo_compare(b, SHLO_LT, shlo_add(b, s[G_A], shlo_convert(b, s[G_K], TTC_F64)), s[G_X]);
  out[0] = elem_and(b, elem_any(b, elem_or(b, big, rising)), elem_cmp(b, SHLO_LT, s[G_K], MOST_ROUNDS));
}
static void grad_step(shlo *b, void *ctx, const ttc_val *s, ttc_val *out) {
  (void)ctx;
  ttc_val k = shlo_convert(b, s[G_K], TTC_F64), next = shlo_add(b, shlo_add(b, s[G_A], k), elem_f(b, s[G_A], 1));
  out[G_K] = shlo_add(b, s[G_K], elem_i(b, s[G_K], 1));
  out[G_SUM] = shlo_add(b, s[G_SUM], shlo_mul(b, s[G_TERM], shlo_sub(b, s[G_LOG], s[G_PSI])));
  out[G_TERM] = shlo_div(b, shlo_mul(b, s[G_TERM], s[G_X]), next);
  out[G_PSI] = shlo_add(b, s[G_PSI], shlo_div(b, elem_f(b, next, 1), next));
  for (int i = G_LOG; i < G_N; i++)
    out[i] = s[i];
}
static void lower_gamma_grad(shlo *b, ttc_lower *c) {
  int64_t n;
  ttc_val a = flat_arg(b, c, 0, TTC_F64, &n), x = flat_arg(b, c, 1, TTC_F64, &n), one = elem_f(b, a, 1);
  ttc_val large = elem_cmp(b, SHLO_GT, a, 200), s[G_N], done[G_N];
  ttc_val fine = elem_and(b, elem_cmp(b, SHLO_GT, a, 0), elem_cmp(b, SHLO_GT, x, 0));
  s[G_K] = shlo_const_i(b, TTC_S32, 0, 0, NULL);
  s[G_A] = shlo_select(b, elem_and(b, fine, elem_not(b, large)), a, one);
  s[G_X] = shlo_select(b, elem_and(b, fine, elem_not(b, large)), x, one);
  s[G_TERM] = shlo_div(b, one, s[G_A]);
  s[G_PSI] = shlo_1(b, SHLO_CHLO_DIGAMMA, shlo_add(b, s[G_A], one));
  s[G_SUM] = shlo_const_like(b, a, 0);
  s[G_LOG] = shlo_1(b, SHLO_LOG, s[G_X]);
  shlo_while(b, G_N, s, grad_more, grad_step, NULL, done);
  ttc_val series = shlo_1(b, SHLO_NEG, shlo_mul(b, s[G_X], done[G_SUM]));
  /* z by one step of Newton's from the leading term; dx/da = 1 + z/(2 sqrt a) - (z³-7z)/(72 a sqrt a) */
  ttc_val root = shlo_1(b, SHLO_SQRT, shlo_select(b, large, a, one)), y = shlo_div(b, shlo_sub(b, x, a), root);
  ttc_val third = shlo_div(b, shlo_sub(b, elem_square(b, y), one), shlo_mul(b, root, elem_f(b, root, 3)));
  ttc_val z = shlo_sub(b, y, third);
  third = shlo_div(b, shlo_sub(b, elem_square(b, z), one), shlo_mul(b, root, elem_f(b, root, 3)));
  z = shlo_sub(b, y, third);
  ttc_val cubic = shlo_mul(b, z, shlo_sub(b, elem_square(b, z), elem_f(b, z, 7)));
  ttc_val far = shlo_add(b, one, shlo_div(b, z, shlo_mul(b, root, elem_f(b, root, 2))));
  far = shlo_sub(b, far, shlo_div(b, cubic, shlo_mul(b, elem_square(b, root), shlo_mul(b, root, elem_f(b, root, 72)))));
  ttc_val r = shlo_select(b, large, far, series);
  give(b, c, shlo_select(b, fine, r, elem_f(b, r, 0)));
}

static ttc_status infer_binomial(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  if (max < 1 || call->narg < 2 || call->args[0].kind != TTC_ARG_TENSOR || call->args[1].kind != TTC_ARG_TENSOR)
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "binomial: expected two tensors");
  const ttc_tensor *x = call->args[0].tensor, *y = call->args[1].tensor;
  specs[0].dtype = (ttc_dtype)x->dtype;
  specs[0].ndim = x->ndim > y->ndim ? x->ndim : y->ndim;
  for (int k = 0; k < specs[0].ndim; k++) { /* from the last axis on */
    int64_t p = k < x->ndim ? x->sizes[x->ndim - 1 - k] : 1, q = k < y->ndim ? y->sizes[y->ndim - 1 - k] : 1;
    if (p != q && p != 1 && q != 1)
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT,
                      "The size of tensor a (%lld) must match the size of tensor b (%lld) at non-singleton dimension %d",
                      (long long)p, (long long)q, specs[0].ndim - 1 - k);
    specs[0].sizes[specs[0].ndim - 1 - k] = p == 1 ? q : p;
  }
  ttc__spec_dense(&specs[0]);
  *nout = 1;
  return TTC_OK;
}

#define SAMPLE(overload, f) \
  {ELEM_HEAD(overload, f, 0, TOL_RANDOM), .flags = TTC_OP_RNG | TTC_OP_NO_META, .infer = ttc__infer_like_first}
const ttc_op_row ttc__sample_rows[] = {
    SAMPLE("poisson", lower_poisson),
    SAMPLE("_standard_gamma", lower_gamma),
    SAMPLE("_sample_dirichlet", lower_dirichlet),
    {ELEM_HEAD("binomial", lower_binomial, 0, TOL_RANDOM), .flags = TTC_OP_RNG | TTC_OP_NO_META, .infer = infer_binomial},
    {ELEM_HEAD("_standard_gamma_grad", lower_gamma_grad, 0, TOL_LOOSE), .flags = TTC_OP_NO_META, .infer = ttc__infer_like_first},
};
TTC_FAMILY(sample)
