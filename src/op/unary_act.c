/* Family "act": activations and their gradients. x, g, y: tensors of one float type (16-bit ones computed in f32); slopes,
 * thresholds and the like are runtime numbers.
 *
 * Formulas are PyTorch's documented ones (torch.nn.functional); sources of the others are beside them. */
#include <math.h>

#include "op/elem.h"

/* Tensor argument i and number argument i in the type computed in. */
static ttc_val tensor(ttc_lower *c, int i) {
  return op_in_as(c, i, ttc__dtype_op(op_in_dtype(c, i)));
}
static ttc_val number(shlo *b, ttc_lower *c, int i, ttc_val x) {
  return op_num(c, i, 0, shlo_dtype(b, x));
}

static ttc_val logistic(shlo *b, ttc_val x) {
  return shlo_1(b, SHLO_LOGISTIC, x);
}
static ttc_val scale(shlo *b, ttc_val x, double k) {
  return shlo_mul(b, x, elem_f(b, x, k));
}
static ttc_val plus(shlo *b, ttc_val x, double k) {
  return shlo_add(b, x, elem_f(b, x, k));
}
/* s·(1 - s) */
static ttc_val bell(shlo *b, ttc_val s) {
  return shlo_mul(b, s, elem_rsub(b, 1, s));
}

/* ---- rectifiers */

/* relu: max(x, 0), integers too; NaN stays. */
static void lower_relu(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0);
  if (shlo_dtype(b, x) == TTC_BOOL) {
    shlo_error(b, TTC_INVALID_ARGUMENT, "Boolean inputs not supported for relu");
    return;
  }
  op_ret(c, 0, shlo_2(b, SHLO_MAX, x, shlo_const_i(b, shlo_dtype(b, x), 0, 0, NULL)));
}
/* threshold(x, t, v) = x <= t ? v : x */
static void lower_threshold(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0);
  op_ret(c, 0, shlo_select(b, shlo_compare(b, SHLO_LE, x, number(b, c, 1, x)), number(b, c, 2, x), x));
}
/* threshold_backward(g, x, t) = x <= t ? 0 : g */
static void lower_threshold_backward(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_promote(c, 0, 1);
  ttc_val g = op_in_as(c, 0, d), x = op_in_as(c, 1, d);
  op_ret(c, 0, shlo_select(b, shlo_compare(b, SHLO_LE, x, number(b, c, 2, x)), shlo_const_i(b, d, 0, 0, NULL), g));
}
static void lower_leaky_relu(shlo *b, ttc_lower *c) {
  ttc_val x = tensor(c, 0);
  op_ret(c, 0, shlo_select(b, elem_cmp(b, SHLO_GT, x, 0), x, shlo_mul(b, x, number(b, c, 1, x))));
}
/* leaky_relu_backward(g, x, slope, self_is_result): the sign is the same for x and the result. */
static void lower_leaky_relu_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), x = tensor(c, 1);
  op_ret(c, 0, shlo_select(b, elem_cmp(b, SHLO_GT, x, 0), g, shlo_mul(b, g, number(b, c, 2, g))));
}
/* _prelu_kernel(x, w) with w already of x's rank */
static void lower_prelu(shlo *b, ttc_lower *c) {
  ttc_val x = tensor(c, 0), w = tensor(c, 1);
  op_ret(c, 0, shlo_select(b, elem_cmp(b, SHLO_GT, x, 0), x, shlo_mul(b, x, w)));
}
static void lower_prelu_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), x = tensor(c, 1), w = tensor(c, 2);
  ttc_val up = elem_cmp(b, SHLO_GT, x, 0);
  op_ret(c, 0, shlo_select(b, up, g, shlo_mul(b, w, g)));
  op_ret(c, 1, shlo_select(b, up, elem_f(b, g, 0), shlo_mul(b, x, g)));
}

/* ---- exponential linear units */

/* elu(x, alpha, scale, input_scale) = x > 0 ? scale·x : alpha·scale·(e^(input_scale·x) - 1) */
static void lower_elu(shlo *b, ttc_lower *c) {
  ttc_val x = tensor(c, 0), s = number(b, c, 2, x);
  ttc_val neg = shlo_mul(b, shlo_1(b, SHLO_EXPM1, shlo_mul(b, x, number(b, c, 3, x))), shlo_mul(b, number(b, c, 1, x), s));
  op_ret(c, 0, shlo_select(b, elem_cmp(b, SHLO_GT, x, 0), shlo_mul(b, x, s), neg));
}
/* elu_backward(g, alpha, scale, input_scale, is_result, x or y) */
static void lower_elu_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), x = tensor(c, 5);
  ttc_val s = number(b, c, 2, x), in = number(b, c, 3, x), as = shlo_mul(b, number(b, c, 1, x), s);
  ttc_val t = op_bool(c, 4) ? shlo_add(b, x, as) : shlo_mul(b, as, shlo_1(b, SHLO_EXP, shlo_mul(b, x, in)));
  op_ret(c, 0, shlo_select(b, elem_cmp(b, SHLO_LE, x, 0), shlo_mul(b, shlo_mul(b, g, in), t), shlo_mul(b, g, s)));
}

/* ---- hard ones */

/* hardtanh(x, lo, hi), integers too */
static void lower_hardtanh(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0);
  op_ret(c, 0, shlo_2(b, SHLO_MIN, shlo_2(b, SHLO_MAX, x, number(b, c, 1, x)), number(b, c, 2, x)));
}
static void lower_hardtanh_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), x = tensor(c, 1);
  ttc_val out = elem_or(b, shlo_compare(b, SHLO_LE, x, number(b, c, 2, x)), shlo_compare(b, SHLO_GE, x, number(b, c, 3, x)));
  op_ret(c, 0, shlo_select(b, out, elem_f(b, g, 0), g));
}
/* min(max(x + 3, 0), 6) */
static ttc_val relu6_of(shlo *b, ttc_val x) {
  return shlo_2(b, SHLO_MIN, shlo_2(b, SHLO_MAX, plus(b, x, 3), elem_f(b, x, 0)), elem_f(b, x, 6));
}
static void lower_hardsigmoid(shlo *b, ttc_lower *c) {
  op_ret(c, 0, scale(b, relu6_of(b, tensor(c, 0)), 1.0 / 6));
}
static void lower_hardsigmoid_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), x = tensor(c, 1);
  ttc_val in = elem_and(b, elem_cmp(b, SHLO_GT, x, -3), elem_cmp(b, SHLO_LT, x, 3));
  op_ret(c, 0, shlo_select(b, in, scale(b, g, 1.0 / 6), elem_f(b, g, 0)));
}
static void lower_hardswish(shlo *b, ttc_lower *c) {
  ttc_val x = tensor(c, 0);
  op_ret(c, 0, scale(b, shlo_mul(b, x, relu6_of(b, x)), 1.0 / 6));
}
/* x <= -3: 0; x < 3: g·(x/3 + 1/2); else g */
static void lower_hardswish_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), x = tensor(c, 1);
  ttc_val mid = shlo_mul(b, g, plus(b, scale(b, x, 1.0 / 3), 0.5));
  ttc_val y = shlo_select(b, elem_cmp(b, SHLO_LT, x, 3), mid, g);
  op_ret(c, 0, shlo_select(b, elem_cmp(b, SHLO_LE, x, -3), elem_f(b, g, 0), y));
}
/* -l <= x <= l; false for NaN */
static ttc_val within(shlo *b, ttc_val x, ttc_val l) {
  return elem_and(b, shlo_compare(b, SHLO_GE, x, shlo_1(b, SHLO_NEG, l)), shlo_compare(b, SHLO_LE, x, l));
}
static void lower_hardshrink(shlo *b, ttc_lower *c) {
  ttc_val x = tensor(c, 0);
  op_ret(c, 0, shlo_select(b, within(b, x, number(b, c, 1, x)), elem_f(b, x, 0), x));
}
/* hardshrink_backward and softshrink_backward (g, x, lambd): 0 where -lambd <= x <= lambd */
static void lower_shrink_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), x = tensor(c, 1);
  op_ret(c, 0, shlo_select(b, within(b, x, number(b, c, 2, x)), elem_f(b, g, 0), g));
}
static void lower_softshrink(shlo *b, ttc_lower *c) {
  ttc_val x = tensor(c, 0), l = number(b, c, 1, x);
  ttc_val low = shlo_select(b, shlo_compare(b, SHLO_LT, x, shlo_1(b, SHLO_NEG, l)), shlo_add(b, x, l),
                            shlo_select(b, shlo_is_nan(b, x), x, elem_f(b, x, 0)));
  op_ret(c, 0, shlo_select(b, shlo_compare(b, SHLO_GT, x, l), shlo_sub(b, x, l), low));
}

/* ---- smooth ones */

#define SQRT_HALF 0.70710678118654752440
#define GELU_K 0.79788456080286535588 /* sqrt(2/π) */
#define GELU_A 0.044715

static ttc_val gelu_inner(shlo *b, ttc_val x) {
  return scale(b, shlo_mul(b, x, plus(b, scale(b, elem_square(b, x), GELU_A), 1)), GELU_K);
}
/* gelu(x, approximate): x·Φ(x), Φ by erf, or by tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415) */
static void lower_gelu(shlo *b, ttc_lower *c) {
  ttc_val x = tensor(c, 0);
  ttc_val t = op_str_is(c, 1, "tanh") ? shlo_1(b, SHLO_TANH, gelu_inner(b, x)) : shlo_1(b, SHLO_CHLO_ERF, scale(b, x, SQRT_HALF));
  op_ret(c, 0, shlo_mul(b, scale(b, x, 0.5), plus(b, t, 1)));
}
/* gelu_backward(g, x, approximate): g·(Φ(x) + x·Φ'(x)) */
static void lower_gelu_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), x = tensor(c, 1), cdf, slope;
  if (op_str_is(c, 2, "tanh")) {
    ttc_val t = shlo_1(b, SHLO_TANH, gelu_inner(b, x));
    ttc_val dinner = scale(b, plus(b, scale(b, elem_square(b, x), 3 * GELU_A), 1), GELU_K);
    cdf = scale(b, plus(b, t, 1), 0.5);
    slope = scale(b, shlo_mul(b, elem_rsub(b, 1, elem_square(b, t)), dinner), 0.5);
  } else {
    cdf = scale(b, plus(b, shlo_1(b, SHLO_CHLO_ERF, scale(b, x, SQRT_HALF)), 1), 0.5);
    slope = scale(b, shlo_1(b, SHLO_EXP, scale(b, elem_square(b, x), -0.5)), 0.5 * GELU_K);
  }
  op_ret(c, 0, shlo_mul(b, g, shlo_add(b, cdf, shlo_mul(b, x, slope))));
}

static void lower_silu(shlo *b, ttc_lower *c) {
  ttc_val x = tensor(c, 0);
  op_ret(c, 0, shlo_mul(b, x, logistic(b, x)));
}
static void lower_silu_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), x = tensor(c, 1), s = logistic(b, x);
  ttc_val d = shlo_mul(b, s, plus(b, shlo_mul(b, x, elem_rsub(b, 1, s)), 1));
  op_ret(c, 0, shlo_mul(b, g, ttc__is_complex(shlo_dtype(b, d)) ? shlo_1(b, SHLO_CHLO_CONJ, d) : d));
}
/* sigmoid_backward(g, y): g·conj(y·(1-y)); tanh_backward(g, y): g·conj(1-y²)        param: 1 for tanh */
static void lower_y_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), y = tensor(c, 1);
  ttc_val d = op_param(c) ? elem_rsub(b, 1, elem_square(b, y)) : bell(b, y);
  op_ret(c, 0, shlo_mul(b, g, ttc__is_complex(shlo_dtype(b, d)) ? shlo_1(b, SHLO_CHLO_CONJ, d) : d));
}

/* softplus(x, beta, threshold) = ln(1 + e^(βx)) / β, x itself where βx > threshold */
static void lower_softplus(shlo *b, ttc_lower *c) {
  ttc_val x = tensor(c, 0), beta = number(b, c, 1, x), bx = shlo_mul(b, x, beta);
  ttc_val y = shlo_div(b, shlo_1(b, SHLO_LOG1P, shlo_1(b, SHLO_EXP, bx)), beta);
  op_ret(c, 0, shlo_select(b, shlo_compare(b, SHLO_GT, bx, number(b, c, 2, x)), x, y));
}
static void lower_softplus_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), x = tensor(c, 1), bx = shlo_mul(b, x, number(b, c, 2, x));
  ttc_val y = shlo_mul(b, g, logistic(b, bx));
  op_ret(c, 0, shlo_select(b, shlo_compare(b, SHLO_GT, bx, number(b, c, 3, x)), g, y));
}

/* tanh(ln(1 + e^x)) of mish (Misra 2019, arXiv:1908.08681) */
static ttc_val tanh_softplus(shlo *b, ttc_val x) {
  return shlo_1(b, SHLO_TANH, shlo_1(b, SHLO_LOG1P, shlo_1(b, SHLO_EXP, x)));
}
static void lower_mish(shlo *b, ttc_lower *c) {
  ttc_val x = tensor(c, 0);
  op_ret(c, 0, shlo_mul(b, x, tanh_softplus(b, x)));
}
static void lower_mish_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), x = tensor(c, 1), t = tanh_softplus(b, x);
  ttc_val d = shlo_mul(b, shlo_mul(b, x, logistic(b, x)), elem_rsub(b, 1, elem_square(b, t)));
  op_ret(c, 0, shlo_mul(b, g, shlo_add(b, t, d)));
}

/* e^-|x| */
static ttc_val exp_neg_abs(shlo *b, ttc_val x) {
  return shlo_1(b, SHLO_EXP, shlo_1(b, SHLO_NEG, shlo_1(b, SHLO_ABS, x)));
}
/* log_sigmoid_forward(x) -> min(x, 0) - ln(1 + e^-|x|), buffer. The buffer is only read by log_sigmoid_backward, which here
 * computes e^-|x| anew; where PyTorch gives it x's shape it is filled. */
static void lower_log_sigmoid(shlo *b, ttc_lower *c) {
  ttc_val x = tensor(c, 0), z = exp_neg_abs(b, x);
  op_ret(c, 0, shlo_sub(b, shlo_2(b, SHLO_MIN, x, elem_f(b, x, 0)), shlo_1(b, SHLO_LOG1P, z)));
  bool full = op_out_ndim(c, 1) == shlo_ndim(b, x);
  for (int k = 0; full && k < op_out_ndim(c, 1); k++)
    full = op_out_sizes(c, 1)[k] == shlo_dim(b, x, k);
  op_ret(c, 1, full ? z : shlo_const_f(b, op_out_dtype(c, 1), 0, 0, NULL));
}
/* log_sigmoid_backward(g, x, buffer): g·σ(-x) */
static void lower_log_sigmoid_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), x = tensor(c, 1);
  op_ret(c, 0, shlo_mul(b, g, logistic(b, shlo_1(b, SHLO_NEG, x))));
}

/* logit(x, eps): ln(x / (1-x)), x first clamped to [eps, 1-eps] if eps is given */
static void lower_logit(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, elem_float(c, 0));
  if (op_given(c, 1)) {
    ttc_val eps = number(b, c, 1, x);
    x = shlo_2(b, SHLO_MIN, shlo_2(b, SHLO_MAX, x, eps), elem_rsub(b, 1, eps));
  }
  op_ret(c, 0, shlo_1(b, SHLO_LOG, shlo_div(b, x, elem_rsub(b, 1, x))));
}
/* logit_backward(g, x, eps): g / (x·(1-x)); outside [eps, 1-eps] 0, or outside [0, 1] NaN where eps is None */
static void lower_logit_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), x = tensor(c, 1);
  ttc_val lo = op_given(c, 2) ? number(b, c, 2, x) : elem_f(b, x, 0);
  ttc_val out = elem_or(b, shlo_compare(b, SHLO_LT, x, lo), shlo_compare(b, SHLO_GT, x, elem_rsub(b, 1, lo)));
  op_ret(c, 0, shlo_select(b, out, elem_f(b, x, op_given(c, 2) ? 0 : NAN), shlo_div(b, g, bell(b, x))));
}

/* ---- gated linear unit */

/* Half h of argument i along the axis of argument dim_arg. */
static ttc_val half(shlo *b, ttc_lower *c, int i, int dim_arg, int h) {
  int axis = op_axis(c, dim_arg, op_in_ndim(c, i));
  int64_t n = op_in_dim(c, i, axis) / 2;
  return shlo_slice_axis(b, tensor(c, i), axis, h * n, (h + 1) * n);
}
/* glu(x, dim): a·σ(b), x = [a, b] */
static void lower_glu(shlo *b, ttc_lower *c) {
  op_ret(c, 0, shlo_mul(b, half(b, c, 0, 1, 0), logistic(b, half(b, c, 0, 1, 1))));
}
/* glu_backward(g, x, dim) = [g·σ(b), g·a·σ(b)·(1-σ(b))] */
static void lower_glu_backward(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 0), s = logistic(b, half(b, c, 1, 2, 1));
  ttc_val gs = shlo_mul(b, g, s);
  ttc_val parts[2] = {gs, shlo_mul(b, shlo_mul(b, gs, half(b, c, 1, 2, 0)), elem_rsub(b, 1, s))};
  op_ret(c, 0, shlo_concat(b, 2, parts, op_axis(c, 2, op_in_ndim(c, 1))));
}
/* glu_jvp(y, x, dx, dim): da·σ(b) + y·(1-σ(b))·db */
static void lower_glu_jvp(shlo *b, ttc_lower *c) {
  ttc_val y = tensor(c, 0), s = logistic(b, half(b, c, 1, 3, 1));
  ttc_val da = half(b, c, 2, 3, 0), db = half(b, c, 2, 3, 1);
  op_ret(c, 0, shlo_add(b, shlo_mul(b, da, s), shlo_mul(b, shlo_mul(b, y, elem_rsub(b, 1, s)), db)));
}
/* glu_backward_jvp(grad_x, g, x, dg, dx, dim): the derivative of glu_backward's two halves along (dg, dx) */
static void lower_glu_backward_jvp(shlo *b, ttc_lower *c) {
  ttc_val g = tensor(c, 1), dg = tensor(c, 3);
  ttc_val a = half(b, c, 2, 5, 0), s = logistic(b, half(b, c, 2, 5, 1));
  ttc_val da = half(b, c, 4, 5, 0), ds = shlo_mul(b, bell(b, s), half(b, c, 4, 5, 1));
  ttc_val first = shlo_add(b, shlo_mul(b, dg, s), shlo_mul(b, g, ds));
  ttc_val ga = shlo_mul(b, g, a), dga = shlo_add(b, shlo_mul(b, dg, a), shlo_mul(b, g, da));
  ttc_val dbell = shlo_mul(b, ds, elem_rsub(b, 1, scale(b, s, 2)));
  ttc_val parts[2] = {first, shlo_add(b, shlo_mul(b, dga, bell(b, s)), shlo_mul(b, ga, dbell))};
  op_ret(c, 0, shlo_concat(b, 2, parts, op_axis(c, 5, op_in_ndim(c, 2))));
}

#define ROW(name, rule, tol) EACH_ROW(name, rule, 0, tol)
const ttc_op_row ttc__act_rows[] = {
    ROW("relu", lower_relu, TOL_EXACT),
    ROW("threshold", lower_threshold, TOL_EXACT),
    ROW("threshold_backward", lower_threshold_backward, TOL_EXACT),
    ROW("leaky_relu", lower_leaky_relu, TOL_2ULP),
    ROW("leaky_relu_backward", lower_leaky_relu_backward, TOL_2ULP),
    ROW("_prelu_kernel", lower_prelu, TOL_2ULP),
    ELEM_ROW("_prelu_kernel_backward", lower_prelu_backward, 0, TOL_2ULP),
    ROW("elu", lower_elu, TOL_4ULP),
    ROW("elu_backward", lower_elu_backward, TOL_4ULP),
    ROW("hardtanh", lower_hardtanh, TOL_EXACT),
    ROW("hardtanh_backward", lower_hardtanh_backward, TOL_EXACT),
    ROW("hardsigmoid", lower_hardsigmoid, TOL_2ULP),
    ROW("hardsigmoid_backward", lower_hardsigmoid_backward, TOL_2ULP),
    ROW("hardswish", lower_hardswish, TOL_2ULP),
    ROW("hardswish_backward", lower_hardswish_backward, TOL_2ULP),
    ROW("hardshrink", lower_hardshrink, TOL_EXACT),
    ROW("hardshrink_backward", lower_shrink_backward, TOL_EXACT),
    ROW("softshrink", lower_softshrink, TOL_2ULP),
    ROW("softshrink_backward", lower_shrink_backward, TOL_EXACT),
    ROW("gelu", lower_gelu, TOL_4ULP),
    ROW("gelu_backward", lower_gelu_backward, TOL_4ULP),
    ROW("silu", lower_silu, TOL_4ULP),
    ROW("silu_backward", lower_silu_backward, TOL_4ULP),
    ROW("sigmoid_backward", lower_y_backward, TOL_2ULP),
    EACH_ROW("tanh_backward", lower_y_backward, 1, TOL_2ULP),
    ROW("softplus", lower_softplus, TOL_4ULP),
    ROW("softplus_backward", lower_softplus_backward, TOL_4ULP),
    ROW("mish", lower_mish, TOL_4ULP),
    {EACH_HEAD("mish_backward", lower_mish_backward, 0, TOL_4ULP), .flags = TTC_OP_NO_META, .infer = ttc__infer_like_first},
    ROW("log_sigmoid_forward", lower_log_sigmoid, TOL_4ULP),
    ROW("log_sigmoid_backward", lower_log_sigmoid_backward, TOL_4ULP),
    ROW("logit", lower_logit, TOL_4ULP),
    ROW("logit_backward", lower_logit_backward, TOL_4ULP),
    {ELEM_HEAD("glu", lower_glu, 0, TOL_4ULP), .pad = PAD_WHOLE},
    {ELEM_HEAD("glu_backward", lower_glu_backward, 0, TOL_4ULP), .pad = PAD_WHOLE},
    {ELEM_HEAD("glu_jvp", lower_glu_jvp, 0, TOL_4ULP), .flags = TTC_OP_NO_META, .infer = ttc__infer_like_first},
    {ELEM_HEAD("glu_backward_jvp", lower_glu_backward_jvp, 0, TOL_4ULP), .flags = TTC_OP_NO_META, .infer = ttc__infer_like_first},
};
TTC_FAMILY(act)
