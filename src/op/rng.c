/* Family "rng": random numbers from Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"),
 * computed in the program itself: the same seed gives the same numbers on every device.
 *
 * Key: the generator's 64-bit seed. Counter words 0 and 1: block = offset/4 + j, j < ceil(n/4); word 2: stream; word 3: space. A
 * block gives four 32-bit words; element i is word i / nblock of block i % nblock (words one after another: no interleaving).
 * Elements that need 64 bits take the second 32 from stream 1. Ops that need more than one number for each result use space 1 and
 * up, where j is counted in word 2 and words 0, 1 stay at offset/4, so nothing overlaps whatever the op's results are. The front
 * end moves the offset on by the results' size rounded up to 4, and at least 4, after each op. */
#include "op/rng.h"

#include <math.h>

#include "op/elem.h"
#include "op/lower.h"

#define PI 3.14159265358979323846

/* ---- Philox */

ttc__stream ttc__open_stream(shlo *b, ttc_lower *c) {
  ttc__stream s;
  ttc_val offset;
  op_rng(c, (int)op_narg(c) - 1, &s.seed, &offset);
  s.block = shlo_2(b, SHLO_SHR_L, offset, elem_i(b, offset, 2));
  s.count = TTC_POISON;
  s.at = op_out_elements(c, &s.count);
  return s;
}
static ttc_val low32(shlo *b, ttc_val x) {
  return shlo_convert(b, elem_and(b, x, shlo_const_u(b, TTC_U64, 0xFFFFFFFFu, 0, NULL)), TTC_U32);
}
static ttc_val high32(shlo *b, ttc_val x) {
  return shlo_convert(b, shlo_2(b, SHLO_SHR_L, x, elem_i(b, x, 32)), TTC_U32);
}
static ttc_val u32(shlo *b, uint32_t v) {
  return shlo_const_u(b, TTC_U32, v, 0, NULL);
}
static ttc_val xor(shlo *b, ttc_val x, ttc_val y) {
  return shlo_2(b, SHLO_XOR, x, y);
}

/* XLA:CPU works a value out anew in each loop that reads it, if it can; not beyond this. */
static ttc_val once(shlo *b, ttc_val x) {
  return shlo_for_tpu(b) ? x : shlo_barrier(b, x);
}

/* Ten rounds on counter words ctr[4] of one shape, in place. */
static void philox(shlo *b, ttc_val seed, ttc_val ctr[4]) {
  ttc_val m0 = shlo_const_u(b, TTC_U64, 0xD2511F53u, 0, NULL), m1 = shlo_const_u(b, TTC_U64, 0xCD9E8D57u, 0, NULL);
  ttc_val k0 = low32(b, seed), k1 = high32(b, seed);
  for (int round = 0; round < 10; round++) {
    ttc_val p0 = shlo_mul(b, shlo_convert(b, ctr[0], TTC_U64), m0), p1 = shlo_mul(b, shlo_convert(b, ctr[2], TTC_U64), m1);
    ttc_val c0 = xor(b, xor(b, high32(b, p1), ctr[1]), k0), c2 = xor(b, xor(b, high32(b, p0), ctr[3]), k1);
    ctr[0] = c0;
    ctr[1] = low32(b, p1);
    ctr[2] = c2;
    ctr[3] = low32(b, p0);
    k0 = shlo_add(b, k0, u32(b, 0x9E3779B9u));
    k1 = shlo_add(b, k1, u32(b, 0xBB67AE85u));
  }
}
static int64_t blocks(int64_t n) {
  return n > 0 ? (n + 3) / 4 : 1;
}

/* Four u32 vectors of nblock words. */
static void words(shlo *b, ttc__stream s, int64_t nblock, uint32_t which, uint32_t space, ttc_val out[4]) {
  ttc_val j = shlo_iota(b, TTC_U32, 0, 1, &nblock), lo = low32(b, s.block), hi = high32(b, s.block);
  ttc_val zero = shlo_const_i(b, TTC_U32, 0, 1, &nblock);
  if (space) {
    out[0] = shlo_broadcast_to(b, lo, 1, &nblock);
    out[1] = shlo_broadcast_to(b, hi, 1, &nblock);
    out[2] = j;
    out[3] = shlo_add(b, zero, u32(b, space + (which << 16)));
  } else {
    out[0] = shlo_add(b, lo, j);
    out[1] = shlo_add(b, hi, shlo_convert(b, shlo_compare(b, SHLO_LT, out[0], lo), TTC_U32));
    out[2] = shlo_add(b, zero, u32(b, which));
    out[3] = zero;
  }
  philox(b, s.seed, out);
  for (int k = 0; k < 4; k++)
    out[k] = once(b, out[k]);
}
void ttc__lane_words(shlo *b, ttc__stream s, int64_t n, ttc_val round, ttc_val out[4]) {
  ttc_val zero = shlo_const_i(b, TTC_U32, 0, 1, &n);
  out[0] = shlo_add(b, zero, low32(b, s.block));
  out[1] = shlo_add(b, zero, high32(b, s.block));
  out[2] = shlo_iota(b, TTC_U32, 0, 1, &n);
  out[3] = shlo_add(b, zero, shlo_add(b, round, u32(b, 1)));
  philox(b, s.seed, out);
  for (int k = 0; k < 4; k++)
    out[k] = once(b, out[k]);
}
/* Four vectors one after another, cut to n. Where there are fewer elements than places, each finds its word in them. */
static ttc_val join(shlo *b, ttc__stream s, const ttc_val parts[4], int64_t n) {
  ttc_val all = shlo_concat(b, 4, parts, 0);
  if (s.at.id >= 0) {
    ttc_val nblock = shlo_2(b, SHLO_SHR_L, shlo_add(b, s.count, elem_i(b, s.count, 3)), elem_i(b, s.count, 2)), word = TTC_POISON;
    for (int k = 1; k < 4; k++) {
      ttc_val from = shlo_mul(b, nblock, elem_i(b, nblock, k));
      ttc_val past = shlo_convert(b, shlo_compare(b, SHLO_GE, s.at, from), TTC_S32);
      word = word.id >= 0 ? shlo_add(b, word, past) : past;
    }
    ttc_val skipped = shlo_sub(b, elem_i(b, nblock, blocks(n)), nblock);
    return shlo_take(b, all, shlo_add(b, s.at, shlo_mul(b, word, skipped)), 0);
  }
  return n == shlo_dim(b, all, 0) ? all : shlo_slice_axis(b, all, 0, 0, n);
}
static ttc_val shaped(shlo *b, ttc_lower *c, ttc_val v) {
  return shlo_reshape(b, v, op_out_ndim(c, 0), op_out_sizes(c, 0));
}
static int64_t count_out(const ttc_lower *c) {
  int64_t n = 1;
  for (int k = 0; k < op_out_ndim(c, 0); k++)
    n *= op_out_sizes(c, 0)[k];
  return n;
}
/* n random words of 32 bits (u32), or of 64 (u64). */
static ttc_val bits32(shlo *b, ttc__stream s, int64_t n, uint32_t space) {
  ttc_val w[4];
  words(b, s, blocks(n), 0, space, w);
  return join(b, s, w, n);
}
static ttc_val bits64(shlo *b, ttc__stream s, int64_t n, uint32_t space) {
  ttc_val w[4], v[4];
  words(b, s, blocks(n), 0, space, w);
  words(b, s, blocks(n), 1, space, v);
  for (int k = 0; k < 4; k++) {
    ttc_val hi = shlo_convert(b, w[k], TTC_U64);
    w[k] = elem_or(b, shlo_2(b, SHLO_SHL, hi, elem_i(b, hi, 32)), shlo_convert(b, v[k], TTC_U64));
  }
  return join(b, s, w, n);
}

/* ---- floats */

/* The type random floats are made in. */
static ttc_dtype made_in(ttc_dtype d) {
  return d == TTC_F64 ? TTC_F64 : TTC_F32;
}
/* Significant bits of a float type: uniforms have as many, so that rounding never gives 1. */
static int digits(ttc_dtype d) {
  return d == TTC_F64 ? 53 : d == TTC_F32 ? 24 : d == TTC_F16 ? 11 : d == TTC_BF16 ? 8 : 24;
}

/* n uniforms k/2^digits in [0, 1); where `open`, (k + 1/2)/2^(digits-1) in (0, 1), for logarithms. */
static ttc_val uniform(shlo *b, ttc__stream s, int64_t n, ttc_dtype d, bool open, uint32_t space) {
  int use = digits(d) - (open ? 1 : 0), width = d == TTC_F64 ? 64 : 32;
  ttc_val u = width == 64 ? bits64(b, s, n, space) : bits32(b, s, n, space);
  u = shlo_convert(b, shlo_2(b, SHLO_SHR_L, u, elem_i(b, u, width - use)), made_in(d));
  if (open)
    u = shlo_add(b, u, elem_f(b, u, 0.5));
  return shlo_mul(b, u, elem_f(b, u, ldexp(1, -use)));
}
/* c[0] + c[1]·x + .. by Horner's rule */
static ttc_val polynomial(shlo *b, ttc_val x, int n, const double *c) {
  ttc_val y = elem_f(b, x, c[n - 1]);
  for (int k = n - 2; k >= 0; k--)
    y = shlo_add(b, shlo_mul(b, y, x), elem_f(b, x, c[k]));
  return y;
}
/* cos and sin of 2πv, v in (0, 1]. In f32 by Taylor's series on an eighth of a turn (errors below 1e-7), since the general
 * functions spend most of their time on reducing large arguments. */
static void turn(shlo *b, ttc_val v, ttc_val *cosine, ttc_val *sine) {
  static const double sin_c[] = {1, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880};
  static const double cos_c[] = {1, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800};
  if (shlo_dtype(b, v) == TTC_F64) {
    ttc_val t = shlo_mul(b, v, elem_f(b, v, 2 * PI));
    *cosine = shlo_1(b, SHLO_COS, t);
    *sine = shlo_1(b, SHLO_SIN, t);
    return;
  }
  ttc_val quarters = shlo_mul(b, v, elem_f(b, v, 4)), whole = shlo_1(b, SHLO_ROUND_EVEN, quarters);
  ttc_val a = shlo_mul(b, shlo_sub(b, quarters, whole), elem_f(b, v, PI / 2)), a2 = elem_square(b, a);
  ttc_val s = shlo_mul(b, a, polynomial(b, a2, 5, sin_c)), c = polynomial(b, a2, 6, cos_c);
  ttc_val q = shlo_convert(b, whole, TTC_S32), one = elem_i(b, q, 1);
  ttc_val odd = elem_cmp(b, SHLO_NE, elem_and(b, q, one), 0);
  ttc_val up = elem_cmp(b, SHLO_NE, elem_and(b, q, elem_i(b, q, 2)), 0);
  ttc_val down = elem_cmp(b, SHLO_NE, elem_and(b, shlo_add(b, q, one), elem_i(b, q, 2)), 0);
  ttc_val cc = shlo_select(b, odd, s, c), ss = shlo_select(b, odd, c, s);
  *cosine = shlo_select(b, down, shlo_1(b, SHLO_NEG, cc), cc);
  *sine = shlo_select(b, up, shlo_1(b, SHLO_NEG, ss), ss);
}
/* Box and Muller (1958): sqrt(-2 ln u) · (cos, sin)(2πv), u and v in (0, 1], two words giving two normals. */
void ttc__box_muller(shlo *b, ttc_val u, ttc_val v, ttc_val *x, ttc_val *y) {
  ttc_val r = once(b, shlo_1(b, SHLO_SQRT, shlo_mul(b, shlo_1(b, SHLO_LOG, u), elem_f(b, u, -2))));
  ttc_val cosine, sine;
  turn(b, v, &cosine, &sine);
  *x = once(b, shlo_mul(b, r, cosine));
  *y = once(b, shlo_mul(b, r, sine));
}
/* A word as a float in (0, 1], all its bits counting near 0, so that the normals' tails are long. */
static ttc_val fraction(shlo *b, ttc_val word, ttc_dtype d) {
  int width = d == TTC_F64 ? 64 : 32;
  ttc_val f = shlo_convert(b, word, d);
  return shlo_mul(b, shlo_add(b, f, elem_f(b, f, 0.5)), elem_f(b, f, ldexp(1, -width)));
}
/* n standard normals of type d (f32 or f64) */
static ttc_val normals(shlo *b, ttc__stream s, int64_t n, ttc_dtype d, uint32_t space) {
  ttc_val w[4], v[4];
  words(b, s, blocks(n), 0, space, w);
  if (d == TTC_F64)
    words(b, s, blocks(n), 1, space, v);
  for (int k = 0; k < 4; k++) {
    if (d == TTC_F64) {
      ttc_val hi = shlo_convert(b, w[k], TTC_U64);
      w[k] = elem_or(b, shlo_2(b, SHLO_SHL, hi, elem_i(b, hi, 32)), shlo_convert(b, v[k], TTC_U64));
    }
    w[k] = fraction(b, w[k], d);
  }
  ttc__box_muller(b, w[0], w[1], &v[0], &v[1]);
  ttc__box_muller(b, w[2], w[3], &v[2], &v[3]);
  return join(b, s, v, n);
}

/* ---- continuous distributions */

/* uniform(self, from, to) */
static void lower_uniform(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_out_dtype(c, 0);
  ttc_val u = uniform(b, ttc__open_stream(b, c), count_out(c), d, false, 0);
  ttc_val lo = op_num(c, 1, 0, made_in(d)), hi = op_num(c, 2, 0, made_in(d));
  op_ret(c, 0, shaped(b, c, shlo_add(b, shlo_mul(b, u, shlo_sub(b, hi, lo)), lo)));
}
/* mean + std·N(0, 1): normal_functional(self, mean, std); normal.*(mean, std), each a tensor or a number; log_normal: e to that.
 * Complex results: both parts have half the variance.        param: place of mean, + 8 for log_normal */
static void lower_normal(shlo *b, ttc_lower *c) {
  ttc_dtype out = op_out_dtype(c, 0), d = made_in(ttc__dtype_real(out));
  int at = op_param(c) % 8;
  int64_t n = count_out(c);
  if (!op_is_number(c, at + 1) && !ttc__is_complex(op_in_dtype(c, at + 1))) {
    op_fault_if(c, b, elem_any(b, elem_cmp(b, SHLO_LT, op_in(c, at + 1), 0)), TTC__FAULT_STD, TTC_POISON, 0, 0);
  }
  ttc__stream s = ttc__open_stream(b, c);
  if (ttc__is_complex(out)) {
    ttc_val re = normals(b, s, n, d, 0), im = normals(b, s, n, d, 1);
    ttc_val z = shlo_complex(b, shlo_mul(b, re, elem_f(b, re, sqrt(0.5))), shlo_mul(b, im, elem_f(b, im, sqrt(0.5))));
    op_ret(c, 0, shlo_add(b, shlo_mul(b, shaped(b, c, z), op_in_as(c, at + 1, out)), op_in_as(c, at, out)));
    return;
  }
  ttc_val z = shaped(b, c, normals(b, s, n, d, 0));
  z = shlo_add(b, shlo_mul(b, z, op_in_as(c, at + 1, d)), op_in_as(c, at, d));
  op_ret(c, 0, op_param(c) >= 8 ? shlo_1(b, SHLO_EXP, z) : z);
}
/* exponential(self, lambda) = -ln(1 - u) / lambda, never 0 */
static void lower_exponential(shlo *b, ttc_lower *c) {
  ttc_dtype d = made_in(op_out_dtype(c, 0));
  ttc_val u = uniform(b, ttc__open_stream(b, c), count_out(c), d, true, 0);
  ttc_val e = shlo_1(b, SHLO_NEG, shlo_1(b, SHLO_LOG1P, shlo_1(b, SHLO_NEG, u)));
  op_ret(c, 0, shaped(b, c, shlo_div(b, e, op_num(c, 1, 0, d))));
}
/* cauchy(self, median, sigma) = median + sigma·tan(π(u - 1/2)) */
static void lower_cauchy(shlo *b, ttc_lower *c) {
  ttc_dtype d = made_in(op_out_dtype(c, 0));
  ttc_val u = uniform(b, ttc__open_stream(b, c), count_out(c), d, true, 0);
  ttc_val t = shlo_1(b, SHLO_TAN, shlo_mul(b, shlo_sub(b, u, elem_f(b, u, 0.5)), elem_f(b, u, PI)));
  op_ret(c, 0, shaped(b, c, shlo_add(b, shlo_mul(b, t, op_num(c, 2, 0, d)), op_num(c, 1, 0, d))));
}
/* geometric(self, p) = ceil(ln u / ln(1 - p)), at least 1 */
static void lower_geometric(shlo *b, ttc_lower *c) {
  ttc_dtype d = made_in(op_out_dtype(c, 0));
  ttc_val u = uniform(b, ttc__open_stream(b, c), count_out(c), d, true, 0);
  ttc_val rate = shlo_1(b, SHLO_LOG1P, shlo_1(b, SHLO_NEG, op_num(c, 1, 0, d)));
  ttc_val k = shlo_1(b, SHLO_CEIL, shlo_div(b, shlo_1(b, SHLO_LOG, u), rate));
  op_ret(c, 0, shaped(b, c, shlo_2(b, SHLO_MAX, k, elem_f(b, k, 1))));
}

/* ---- integers */

/* The high 64 bits of u·v: 32-bit halves, multiplied as at school. */
static ttc_val high_product(shlo *b, ttc_val u, ttc_val v) {
  ttc_val by = elem_i(b, u, 32), mask = shlo_const_u(b, TTC_U64, 0xFFFFFFFFu, 0, NULL);
  ttc_val u1 = shlo_2(b, SHLO_SHR_L, u, by), u0 = elem_and(b, u, mask);
  ttc_val v1 = shlo_2(b, SHLO_SHR_L, v, by), v0 = elem_and(b, v, mask);
  ttc_val low = shlo_2(b, SHLO_SHR_L, shlo_mul(b, u0, v0), by);
  ttc_val a = shlo_mul(b, u1, v0), middle = shlo_add(b, shlo_mul(b, u0, v1), elem_and(b, shlo_add(b, a, low), mask));
  ttc_val carry = shlo_add(b, shlo_2(b, SHLO_SHR_L, shlo_add(b, a, low), by), shlo_2(b, SHLO_SHR_L, middle, by));
  return shlo_add(b, shlo_mul(b, u1, v1), carry);
}
/* [low, low + range), s64 and u64 scalars, range 0 standing for 2^64: the high part of 64 random bits · range (Lemire 2019,
 * arXiv:1805.10941, without the rejection: a value's probability is off by 2^-64 at most). */
static ttc_val integers(shlo *b, ttc_lower *c, ttc_val low, ttc_val range) {
  ttc_val u = bits64(b, ttc__open_stream(b, c), count_out(c), 0);
  ttc_val r = shlo_select(b, elem_cmp(b, SHLO_EQ, range, 0), u, high_product(b, u, range));
  return shaped(b, c, shlo_add(b, shlo_convert(b, r, TTC_S64), low));
}
/* Largest integer that random_() without bounds gives: the type's own, or 2^digits for floats. */
static uint64_t top(ttc_dtype d) {
  switch (d) {
    case TTC_BOOL:
      return 1;
    case TTC_U8:
      return UINT8_MAX;
    case TTC_S8:
      return INT8_MAX;
    case TTC_U16:
      return UINT16_MAX;
    case TTC_S16:
      return INT16_MAX;
    case TTC_U32:
      return UINT32_MAX;
    case TTC_S32:
      return INT32_MAX;
    case TTC_U64:
      return UINT64_MAX;
    case TTC_S64:
      return INT64_MAX;
    default:
      return (uint64_t)1 << digits(d);
  }
}
/* random(self); random.to(self, to); random.from(self, from, to or None).        param: how many bounds */
static void lower_random(shlo *b, ttc_lower *c) {
  int bounds = op_param(c);
  bool has_top = bounds > 0 && op_given(c, bounds);
  ttc_val low = bounds == 2 ? op_num(c, 1, 0, TTC_S64) : shlo_const_i(b, TTC_S64, 0, 0, NULL);
  ttc_val end = has_top ? shlo_convert(b, op_num(c, bounds, 0, TTC_S64), TTC_U64)
                        : shlo_const_u(b, TTC_U64, top(op_out_dtype(c, 0)) + 1, 0, NULL);
  op_ret(c, 0, integers(b, c, low, shlo_sub(b, end, shlo_convert(b, low, TTC_U64))));
}
/* A permutation of 0..n-1: the order of n random keys. */
static void lower_randperm(shlo *b, ttc_lower *c) {
  int64_t n = op_out_sizes(c, 0)[0];
  if (n == 0) {
    op_ret(c, 0, shlo_const_i(b, op_out_dtype(c, 0), 0, 0, NULL));
    return;
  }
  ttc__stream s = ttc__open_stream(b, c);
  ttc_val in[2] = {n > 4096 ? bits64(b, s, n, 0) : bits32(b, s, n, 0), shlo_iota(b, TTC_S64, 0, 1, &n)}, out[2];
  shlo_sort(b, 2, in, 0, false, out);
  op_ret(c, 0, out[1]);
}

/* ---- chances */

/* bool: true with probability p (f64 scalar): word < p·2^32, exactly never for 0 and always for 1. */
static ttc_val chance(shlo *b, ttc_lower *c, ttc_val p) {
  ttc_val level = shlo_mul(b, p, elem_f(b, p, 4294967296.0));
  level = shlo_clamp(b, elem_f(b, p, 0), shlo_1(b, SHLO_ROUND_EVEN, level), elem_f(b, p, 4294967295.0));
  ttc_val u = bits32(b, ttc__open_stream(b, c), count_out(c), 0);
  ttc_val hit = shlo_compare(b, SHLO_LT, u, shlo_convert(b, level, TTC_U32));
  return shaped(b, c, elem_or(b, hit, elem_cmp(b, SHLO_GE, p, 1)));
}
/* bernoulli.p(self, p) */
static void lower_bernoulli_p(shlo *b, ttc_lower *c) {
  op_ret(c, 0, chance(b, c, op_num(c, 1, 0, TTC_F64)));
}
/* bernoulli(p), bernoulli.Tensor(self, p): p a tensor of probabilities.        param: its place */
static void lower_bernoulli(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_in_dtype(c, op_param(c)) == TTC_F64 ? TTC_F64 : TTC_F32;
  ttc_val u = shaped(b, c, uniform(b, ttc__open_stream(b, c), count_out(c), d, false, 0)), p = op_in_as(c, op_param(c), d);
  ttc_val fair = elem_and(b, elem_cmp(b, SHLO_GE, p, 0), elem_cmp(b, SHLO_LE, p, 1));
  op_fault_if(c, b, elem_any(b, elem_not(b, fair)), TTC__FAULT_PROBABILITY, TTC_POISON, 0, 0);
  op_ret(c, 0, shlo_compare(b, SHLO_LT, u, p));
}
/* native_dropout(x, p, train) -> x·mask / (1 - p), mask; without training x and all true */
static void lower_dropout(shlo *b, ttc_lower *c) {
  if (op_given(c, 2) && !op_bool(c, 2)) {
    op_ret(c, 0, op_in(c, 0));
    op_ret(c, 1, shlo_const_i(b, TTC_BOOL, 1, 0, NULL));
    return;
  }
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 0));
  ttc_val keep = elem_rsub(b, 1, op_num(c, 1, 0, TTC_F64));
  ttc_val mask = chance(b, c, keep), x = op_in_as(c, 0, d);
  ttc_val none = elem_cmp(b, SHLO_EQ, keep, 0);
  ttc_val scale = shlo_convert(b, shlo_div(b, elem_f(b, keep, 1), elem_select_f(b, none, 1, keep)), d);
  op_ret(c, 0, shlo_mul(b, shlo_mul(b, x, shlo_convert(b, mask, d)), scale));
  op_ret(c, 1, mask);
}

/* rrelu_with_noise(x, noise, lower, upper, training) -> y, noise: where x <= 0, noise is drawn from [lower, upper) and y = x·noise;
 * elsewhere noise is 1. Without training a leaky relu of the mean slope, and noise stays. */
static void lower_rrelu(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_in_dtype(c, 0), wide = ttc__dtype_op(d);
  ttc_val x = op_in_as(c, 0, wide), lo = op_num(c, 2, 0, wide), hi = op_num(c, 3, 0, wide);
  ttc_val up = elem_cmp(b, SHLO_GT, x, 0);
  if (!op_bool(c, 4)) {
    ttc_val slope = shlo_mul(b, shlo_add(b, lo, hi), elem_f(b, lo, 0.5));
    op_ret(c, 0, shlo_select(b, up, x, shlo_mul(b, x, slope)));
    op_ret(c, 1, op_in(c, 1));
    return;
  }
  ttc_val u = shaped(b, c, uniform(b, ttc__open_stream(b, c), count_out(c), d, false, 0));
  ttc_val r = shlo_convert(b, shlo_add(b, shlo_mul(b, u, shlo_sub(b, hi, lo)), lo), d);
  r = shlo_select(b, up, elem_f(b, r, 1), r);
  op_ret(c, 0, shlo_mul(b, x, shlo_convert(b, r, wide)));
  op_ret(c, 1, r);
}
/* y and noise as x: PyTorch's Meta kernel of the in-place overload has other arguments than the op. */
static ttc_status infer_rrelu(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  const ttc_arg *a = call->args;
  if (max < 2 || call->narg < 5 || a[1].kind != TTC_ARG_TENSOR)
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected two tensors");
  TTC_TRY(ttc__infer_like_first(call, max, specs, nout, err));
  bool same = specs[0].ndim == a[1].tensor->ndim;
  for (int k = 0; same && k < specs[0].ndim; k++)
    same = specs[0].sizes[k] == a[1].tensor->sizes[k];
  if (!same)
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "noise tensor shape must match self tensor shape");
  specs[1] = specs[0];
  *nout = 2;
  return TTC_OK;
}

/* multinomial(p[rows, n] or p[n], k, replacement) -> [.., k] indices.
 * Without replacement: the k largest of p/e, e exponential (equivalently the order of arrival of Poisson processes of rates p).
 * With: for each sample the number of entries of the cumulative sum that u·total has reached. */
static ttc_val arrivals(shlo *b, ttc__stream s, ttc_val p, int64_t rows, int64_t n, int64_t k) {
  int64_t dims[2] = {rows, n};
  ttc_val e = shlo_reshape(b, uniform(b, s, rows * n, shlo_dtype(b, p), true, 1), 2, dims);
  ttc_val first = shlo_div(b, p, shlo_1(b, SHLO_NEG, shlo_1(b, SHLO_LOG, e)));
  ttc_val in[2] = {first, shlo_iota(b, TTC_S64, 1, 2, dims)}, out[2];
  shlo_sort(b, 2, in, 1, true, out);
  return shlo_slice_axis(b, out[1], 1, 0, k);
}
/* Running sums along axis 1, by doubling: log2(n) shifted additions. */
static ttc_val running_sum(shlo *b, ttc_val p, int64_t n) {
  for (int64_t by = 1; by < n; by *= 2) {
    int64_t lo[2] = {0, by}, hi[2] = {0, -by};
    p = shlo_add(b, p, shlo_pad(b, p, elem_f(b, p, 0), lo, hi, NULL));
  }
  return p;
}
static ttc_val draws(shlo *b, ttc__stream s, ttc_val p, int64_t rows, int64_t n, int64_t k) {
  int64_t thin[2] = {rows, k}, wide[2] = {rows, n}, flat = rows * n;
  ttc_val sums = running_sum(b, p, n);
  ttc_val total = shlo_slice_axis(b, sums, 1, n - 1, n);
  ttc_val u = shlo_reshape(b, uniform(b, s, rows * k, shlo_dtype(b, p), false, 1), 2, thin);
  ttc_val base = shlo_iota(b, TTC_S64, 0, 2, thin);
  base = shlo_mul(b, base, elem_i(b, base, n));
  ttc_val index = ttc__bound(b, shlo_reshape(b, sums, 1, &flat), NULL, base, shlo_mul(b, u, total), n, true);
  /* Rounding may reach the total: stay on the last entry that is possible at all. */
  ttc_val at = shlo_iota(b, TTC_S64, 1, 2, wide);
  ttc_val possible = shlo_select(b, elem_cmp(b, SHLO_GT, p, 0), at, elem_i(b, at, 0));
  ttc_val cap = shlo_unsqueeze(b, shlo_reduce(b, SHLO_AMAX, possible, 1, (int[1]){1}), 1);
  return shlo_2(b, SHLO_MIN, index, cap);
}
static void lower_multinomial(shlo *b, ttc_lower *c) {
  int64_t rows = op_in_ndim(c, 0) == 2 ? op_in_dim(c, 0, 0) : 1, n = op_in_dim(c, 0, -1), k = op_int(c, 1, 1);
  ttc_val p = op_in_as(c, 0, op_in_dtype(c, 0) == TTC_F64 ? TTC_F64 : TTC_F32);
  p = shlo_reshape(b, p, 2, (int64_t[2]){rows, n});
  int one[1] = {1};
  ttc_val finite = elem_and(b, elem_cmp(b, SHLO_GE, p, 0), elem_cmp(b, SHLO_LT, p, INFINITY));
  op_fault_if(c, b, elem_any(b, elem_not(b, finite)), TTC__FAULT_WEIGHTS, TTC_POISON, 0, 0);
  ttc_val none = elem_cmp(b, SHLO_LE, shlo_reduce(b, SHLO_SUM, p, 1, one), 0);
  op_fault_if(c, b, elem_any(b, none), TTC__FAULT_NO_WEIGHT, TTC_POISON, 0, 0);
  ttc__stream s = ttc__open_stream(b, c);
  op_ret(c, 0, shaped(b, c, op_bool(c, 2) ? draws(b, s, p, rows, n, k) : arrivals(b, s, p, rows, n, k)));
}

/* ---- what numbers a distribution takes, in PyTorch's words */

/* Not of numbers that a graph is given at run time (wrapped 2). */
static bool number(const ttc_call *call, uint32_t i, double *v) {
  if (i >= call->narg || call->args[i].kind != TTC_ARG_SCALAR || call->args[i].scalar->wrapped == 2)
    return false;
  const ttc_scalar *s = call->args[i].scalar;
  *v = s->kind == TTC_SCALAR_FLOAT || s->kind == TTC_SCALAR_COMPLEX ? s->re : (double)s->i;
  return true;
}
static ttc_status check_normal(const ttc_op_row *row, const ttc_call *call, ttc_error *err) {
  double std;
  bool log_normal = row->param >= 8;
  if (!number(call, (uint32_t)(row->param % 8) + 1, &std) || (log_normal ? std > 0 : std >= 0))
    return TTC_OK;
  return log_normal ? TTC_FAIL(err, TTC_INVALID_ARGUMENT, "log_normal_ expects std > 0.0, but found std=%g", std)
                    : TTC_FAIL(err, TTC_INVALID_ARGUMENT, "normal expects std >= 0.0, but found std %g", std);
}
static ttc_status check_uniform(const ttc_op_row *row, const ttc_call *call, ttc_error *err) {
  (void)row;
  double from, to;
  if (number(call, 1, &from) && number(call, 2, &to) && !(from <= to))
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "uniform_ expects to return a [from, to) range, but found from=%g > to=%g", from,
                    to);
  return TTC_OK;
}
static ttc_status check_exponential(const ttc_op_row *row, const ttc_call *call, ttc_error *err) {
  (void)row;
  double lambda;
  if (number(call, 1, &lambda) && !(lambda > 0))
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "exponential_ expects lambda > 0.0, but found lambda=%g", lambda);
  return TTC_OK;
}
static ttc_status check_cauchy(const ttc_op_row *row, const ttc_call *call, ttc_error *err) {
  (void)row;
  double sigma;
  if (number(call, 2, &sigma) && !(sigma > 0))
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "cauchy_ expects sigma > 0.0, but found sigma=%g", sigma);
  return TTC_OK;
}
static ttc_status check_geometric(const ttc_op_row *row, const ttc_call *call, ttc_error *err) {
  (void)row;
  double p;
  if (number(call, 1, &p) && !(p > 0 && p < 1))
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "geometric_ expects p to be in (0, 1), but got p=%g", p);
  return TTC_OK;
}
static ttc_status check_bernoulli(const ttc_op_row *row, const ttc_call *call, ttc_error *err) {
  (void)row;
  double p;
  if (number(call, 1, &p) && !(p >= 0 && p <= 1))
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "bernoulli_ expects p to be in [0, 1], but got p=%g", p);
  return TTC_OK;
}
/* random_: a bound that the type cannot hold. Floats hold all of int64 but float16. */
static ttc_status check_bound(const ttc_call *call, const char *what, int64_t v, ttc_error *err) {
  ttc_dtype d = call->args[0].kind == TTC_ARG_TENSOR ? (ttc_dtype)call->args[0].tensor->dtype : TTC_S64;
  bool whole = d == TTC_U64 || d == TTC_S64 || (ttc__is_float(d) && d != TTC_F16);
  int64_t high = d == TTC_F16 ? 65504 : whole ? INT64_MAX : (int64_t)top(d);
  int64_t low = d == TTC_F16 ? -65504 : d == TTC_U64 ? 0 : whole ? INT64_MIN : ttc__is_unsigned(d) || d == TTC_BOOL ? 0 : -high - 1;
  if (v < low || v > high)
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s is out of bounds for %s", what, ttc_dtype_name(d));
  return TTC_OK;
}
static ttc_status check_random(const ttc_op_row *row, const ttc_call *call, ttc_error *err) {
  uint32_t bounds = (uint32_t)row->param;
  const ttc_arg *args = call->args;
  double unused;
  if (bounds == 0 || (bounds == 2 && args[1].kind == TTC_ARG_SCALAR && args[1].scalar->wrapped == 2))
    return TTC_OK;
  int64_t from = bounds == 2 && args[1].kind == TTC_ARG_SCALAR ? args[1].scalar->i : 0;
  TTC_TRY(check_bound(call, "from", from, err));
  if (!number(call, bounds, &unused))
    return TTC_OK;
  int64_t to = args[bounds].scalar->i;
  if (from >= to)
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "random_ expects 'from' to be less than 'to', but got from=%lld >= to=%lld",
                    (long long)from, (long long)to);
  return check_bound(call, "to - 1", to - 1, err);
}

/* random.from and random.to share a rule with random, which has no bounds. */
static const struct {
  ttc_rule rule;
  ttc_status (*check)(const ttc_op_row *row, const ttc_call *call, ttc_error *err);
} checks[] = {
    {lower_uniform, check_uniform},       {lower_normal, check_normal},       {lower_exponential, check_exponential},
    {lower_cauchy, check_cauchy},         {lower_geometric, check_geometric}, {lower_random, check_random},
    {lower_bernoulli_p, check_bernoulli},
};
ttc_status ttc__rng_check(const ttc_op_row *row, const ttc_call *call, ttc_error *err) {
  for (size_t k = 0; k < sizeof checks / sizeof *checks; k++) {
    if (checks[k].rule == row->rule)
      return checks[k].check(row, call, err);
  }
  return TTC_OK;
}

/* Twice as many as the results have elements: those are the broadcast of all tensors, times a number of samples (multinomial). */
static void widen(uint64_t dims[TTC_MAX_NDIM], int ndim, const int64_t *sizes) {
  for (int k = 0; k < ndim && k < TTC_MAX_NDIM; k++) {
    uint64_t n = (uint64_t)sizes[ndim - 1 - k];
    dims[k] = n > dims[k] ? n : dims[k];
  }
}
uint64_t ttc__rng_count(const ttc_op_row *row, const ttc_call *call, uint32_t nout, const ttc_spec *specs) {
  uint64_t dims[TTC_MAX_NDIM];
  for (int k = 0; k < TTC_MAX_NDIM; k++)
    dims[k] = 1;
  for (uint32_t i = 0; i < call->narg; i++) {
    const ttc_arg *a = &call->args[i];
    for (uint32_t k = 0; (a->kind == TTC_ARG_TENSOR || a->kind == TTC_ARG_TENSORS) && k < a->n; k++)
      if (!ttc__absent(&a->tensor[k]))
        widen(dims, a->tensor[k].ndim, a->tensor[k].sizes);
  }
  for (uint32_t k = 0; k < call->ninto; k++)
    if (call->into[k] != NULL)
      widen(dims, call->into[k]->ndim, call->into[k]->sizes);
  for (uint32_t k = 0; k < nout; k++)
    if (specs[k].dtype != TTC_DTYPE_INVALID)
      widen(dims, specs[k].ndim, specs[k].sizes);
  if (row->rule == lower_multinomial && call->narg > 1 && call->args[1].kind == TTC_ARG_INT)
    widen(dims, 1, &call->args[1].i);
  uint64_t count = dims[0] > 4 ? dims[0] : 4;
  for (int k = 1; k < TTC_MAX_NDIM; k++)
    count *= dims[k];
  return (2 * count + 3) / 4 * 4;
}

#define RNG(name, rule, param) {ELEM_HEAD(name, rule, param, TOL_RANDOM), .flags = TTC_OP_RNG}
#define RRELU(name) {ELEM_HEAD(name, lower_rrelu, 0, TOL_RANDOM), .flags = TTC_OP_RNG | TTC_OP_NO_META, .infer = infer_rrelu}
#define BOUNDED(name, param) {ELEM_HEAD(name, lower_random, param, TOL_RANDOM), .flags = TTC_OP_RNG | TTC_OP_OPEN_INTS}
const ttc_op_row ttc__rng_rows[] = {
    RNG("uniform", lower_uniform, 0),
    RNG("normal_functional", lower_normal, 1),
    RNG("normal.Tensor_Tensor", lower_normal, 0),
    RNG("normal.Tensor_float", lower_normal, 0),
    RNG("normal.float_Tensor", lower_normal, 0),
    RNG("log_normal", lower_normal, 1 + 8),
    RNG("exponential", lower_exponential, 0),
    RNG("cauchy", lower_cauchy, 0),
    RNG("geometric", lower_geometric, 0),
    RNG("random", lower_random, 0),
    BOUNDED("random.to", 1),
    BOUNDED("random.from", 2),
    RNG("randperm", lower_randperm, 0),
    RNG("randperm.generator", lower_randperm, 0),
    RNG("bernoulli", lower_bernoulli, 0),
    RNG("bernoulli.Tensor", lower_bernoulli, 1),
    RNG("bernoulli.p", lower_bernoulli_p, 0),
    {ELEM_HEAD("native_dropout", lower_dropout, 0, TOL_RANDOM), .flags = TTC_OP_RNG, .pad = PAD_DRAW},
    RNG("multinomial", lower_multinomial, 0),
    RRELU("rrelu_with_noise"),
    RRELU("rrelu_with_noise_functional"),
};
TTC_FAMILY(rng)
