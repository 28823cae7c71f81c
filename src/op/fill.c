/* Family "fill": constants, ranges and triangles. Values, starts and steps are runtime numbers; sizes come from the results. */
#include <math.h>

#include "op/elem.h"

/* The result filled with argument `param`. */
static void lower_fill(shlo *b, ttc_lower *c) {
  (void)b;
  op_ret(c, 0, op_in_as(c, op_param(c), op_out_dtype(c, 0)));
}
/* 0 or 1.        param: which */
static void lower_const(shlo *b, ttc_lower *c) {
  op_ret(c, 0, shlo_const_i(b, op_out_dtype(c, 0), op_param(c), 0, NULL));
}

/* 0, 1, 2 .. along the 1-D result, in dtype d. */
static ttc_val count(shlo *b, ttc_lower *c, ttc_dtype d) {
  return shlo_iota(b, d, 0, 1, op_out_sizes(c, 0));
}

/* start + step·i in s64, or f64 for floats (PyTorch's accumulating type), rounded once.
 * param: the argument that is start plus 8 × that which is step, 7: there is none */
static void lower_arange(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__is_inexact(op_out_dtype(c, 0)) ? TTC_F64 : TTC_S64;
  int start = op_param(c) % 8, step = op_param(c) / 8;
  ttc_val v = count(b, c, d);
  if (step != 7)
    v = shlo_mul(b, v, op_num(c, step, 0, d));
  if (start != 7)
    v = shlo_add(b, v, op_num(c, start, 0, d));
  op_ret(c, 0, v);
}

static double as_double(const ttc_scalar *s) {
  return s->kind == TTC_SCALAR_FLOAT ? s->re : (double)s->i;
}
static int64_t as_int(const ttc_scalar *s) {
  return s->kind == TTC_SCALAR_FLOAT ? (int64_t)s->re : s->i;
}

/* arange: ceil((end - start) / step) elements, exactly in s64 where the result is s64; range: floor + 1. What does not give a size
 * is left to PyTorch's own words. */
static ttc_status infer_range(const ttc_call *call, bool closed, ttc_spec *spec, ttc_error *err) {
  const ttc_arg *a = call->args;
  if (call->narg < 3 || call->ninto != 1 || a[0].kind != TTC_ARG_SCALAR || a[1].kind != TTC_ARG_SCALAR ||
      a[2].kind != TTC_ARG_SCALAR) {
    return TTC_FAIL(err, TTC_UNIMPLEMENTED, "a range of other than three numbers");
  }
  double start = as_double(a[0].scalar), end = as_double(a[1].scalar), step = as_double(a[2].scalar);
  double n = closed ? floor((end - start) / step) + 1 : ceil((end - start) / step);
  if (call->into[0]->dtype == TTC_S64 && !closed && fabs(start) < 9e18 && fabs(end) < 9e18 && fabs(step) >= 1) {
    int64_t s = as_int(a[2].scalar), span;
    if (__builtin_sub_overflow(as_int(a[1].scalar), as_int(a[0].scalar), &span)) {
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "a range longer than int64");
    }
    n = (double)(span / s + (span % s != 0 && (span < 0) == (s < 0)));
  }
  if (!(n >= 0 && n < 9e15) || step == 0) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "no size: start %g, end %g, step %g", start, end, step);
  }
  *spec = (ttc_spec){.dtype = (ttc_dtype)call->into[0]->dtype, .ndim = 1, .sizes = {(int64_t)n}, .strides = {1}};
  return TTC_OK;
}

static ttc_status infer_arange(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  *nout = 1;
  return max < 1 ? TTC_INTERNAL : infer_range(call, false, specs, err);
}

static ttc_status infer_closed_range(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  *nout = 1;
  return max < 1 ? TTC_INTERNAL : infer_range(call, true, specs, err);
}

/* linspace(start, end, steps): from the start in the first half, from the end in the second, so that both ends are exact; integers
 * through f64.  logspace(start, end, steps, base): base to that.        param: 1 for logspace */
static void lower_linspace(shlo *b, ttc_lower *c) {
  ttc_dtype out = op_out_dtype(c, 0), d = ttc__is_inexact(out) ? ttc__dtype_op(out) : TTC_F64;
  int64_t n = op_out_sizes(c, 0)[0];
  ttc_val start = shlo_convert(b, op_in_as(c, 0, out), d), end = shlo_convert(b, op_in_as(c, 1, out), d);
  if (op_param(c) && !ttc__is_inexact(out)) {
    start = op_in_as(c, 0, d);
    end = op_in_as(c, 1, d);
  }
  ttc_val i = count(b, c, ttc__dtype_real(d));
  ttc_val v = shlo_broadcast_to(b, start, 1, &n);
  if (n > 1) {
    ttc_val step = shlo_div(b, shlo_sub(b, end, start), elem_f(b, start, (double)(n - 1)));
    ttc_val up = shlo_convert(b, i, d), down = shlo_convert(b, elem_rsub(b, (double)(n - 1), i), d);
    v = shlo_select(b, elem_cmp(b, SHLO_LT, i, (double)(n / 2)), shlo_add(b, start, shlo_mul(b, step, up)),
                    shlo_sub(b, end, shlo_mul(b, step, down)));
  }
  if (op_param(c))
    v = shlo_2(b, SHLO_POW, op_num(c, 3, 0, d), v);
  op_ret(c, 0, v);
}

/* column - row of a matrix whose axes are the last two of dims, s32 */
static ttc_val column_minus_row(shlo *b, int ndim, const int64_t *dims) {
  const int64_t *m = dims + ndim - 2;
  return shlo_sub(b, shlo_iota(b, TTC_S32, 1, 2, m), shlo_iota(b, TTC_S32, 0, 2, m));
}
static int64_t within_s32(int64_t v) {
  return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v;
}

static void lower_eye(shlo *b, ttc_lower *c) {
  op_ret(c, 0, shlo_convert(b, elem_cmp(b, SHLO_EQ, column_minus_row(b, 2, op_out_sizes(c, 0)), 0), op_out_dtype(c, 0)));
}
/* tril(x, k): kept where column - row <= k; triu: where >= k.        param: shlo_cmp */
static void lower_triangle(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0), d = column_minus_row(b, op_in_ndim(c, 0), op_in_sizes(c, 0));
  ttc_val keep = shlo_compare(b, (shlo_cmp)op_param(c), d, elem_i(b, d, within_s32(op_int(c, 1, 0))));
  op_ret(c, 0, shlo_select(b, keep, x, shlo_const_i(b, shlo_dtype(b, x), 0, 0, NULL)));
}

/* The k-th entry of a trapezoid whose rows have first, first+1, .. entries (k s64): row r has r·first + r(r-1)/2 before it. The
 * root of that is found in floats and put right by one either way. */
static ttc_val before(shlo *b, ttc_val r, int64_t first) {
  ttc_val tri = shlo_div(b, shlo_mul(b, r, shlo_sub(b, r, elem_i(b, r, 1))), elem_i(b, r, 2));
  return shlo_add(b, shlo_mul(b, r, elem_i(b, r, first)), tri);
}
static ttc_val trapezoid_row(shlo *b, ttc_val k, int64_t first) {
  double half = (double)first - 0.5;
  ttc_val kf = shlo_convert(b, k, TTC_F64);
  ttc_val root = shlo_1(b, SHLO_SQRT, shlo_add(b, shlo_mul(b, kf, elem_f(b, kf, 2)), elem_f(b, kf, half * half)));
  ttc_val r = shlo_convert(b, shlo_1(b, SHLO_FLOOR, shlo_sub(b, root, elem_f(b, root, half))), TTC_S64);
  ttc_val one = elem_i(b, r, 1);
  r = shlo_select(b, shlo_compare(b, SHLO_GT, before(b, r, first), k), shlo_sub(b, r, one), r);
  ttc_val next = shlo_add(b, r, one);
  return shlo_select(b, shlo_compare(b, SHLO_LE, before(b, next, first), k), next, r);
}
/* [2, n] rows and columns of the lower triangle (column - row <= offset) of a rows × cols matrix, in row order. From row `skip` on
 * rows have first, first + 1 .. entries until they are full; the upper triangle is the lower one of the matrix turned half round.
 */
static ttc_val lower_indices(shlo *b, int64_t n, int64_t rows, int64_t cols, int64_t offset, ttc_val k) {
  int64_t skip = offset >= 0 ? 0 : -offset, first = offset >= 0 ? offset + 1 : 1;
  if (first > cols)
    first = cols;
  int64_t growing = cols - first + 1 < rows - skip ? cols - first + 1 : rows - skip;
  int64_t ntrap = growing * first + growing * (growing - 1) / 2;
  ttc_val r = trapezoid_row(b, shlo_2(b, SHLO_MIN, k, elem_i(b, k, ntrap - 1)), first);
  ttc_val col = shlo_sub(b, k, before(b, r, first));
  ttc_val rest = shlo_sub(b, k, elem_i(b, k, ntrap)), width = elem_i(b, k, cols);
  ttc_val full = shlo_compare(b, SHLO_GE, rest, elem_i(b, k, 0));
  r = shlo_select(b, full, shlo_add(b, elem_i(b, k, growing), shlo_div(b, rest, width)), r);
  col = shlo_select(b, full, shlo_2(b, SHLO_REM, rest, width), col);
  int64_t dims[2] = {1, n};
  ttc_val both[2] = {shlo_reshape(b, shlo_add(b, r, elem_i(b, r, skip)), 2, dims), shlo_reshape(b, col, 2, dims)};
  return shlo_concat(b, 2, both, 0);
}
/* tril_indices, triu_indices (row, col, offset)        param: 1 for triu */
static void lower_tri_indices(shlo *b, ttc_lower *c) {
  int64_t rows = op_int(c, 0, 0), cols = op_int(c, 1, 0), offset = op_int(c, 2, 0), n = op_out_sizes(c, 0)[1];
  if (n == 0) {
    op_ret(c, 0, shlo_const_i(b, op_out_dtype(c, 0), 0, 0, NULL));
    return;
  }
  ttc_val k = shlo_iota(b, TTC_S64, 0, 1, &n);
  if (!op_param(c)) {
    op_ret(c, 0, lower_indices(b, n, rows, cols, offset, k));
    return;
  }
  /* row' = rows-1-row, col' = cols-1-col: col - row >= offset becomes col' - row' <= cols - rows - offset, in reversed order. */
  ttc_val turned = lower_indices(b, n, rows, cols, cols - rows - offset, shlo_sub(b, elem_i(b, k, n - 1), k));
  int64_t dims[2] = {2, 1}, last[2] = {rows - 1, cols - 1};
  op_ret(c, 0, shlo_sub(b, shlo_reshape(b, shlo_const_table(b, TTC_S64, 2, last), 2, dims), turned));
}

#define GRAPH(name, rule, param) {ELEM_HEAD(name, rule, param, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY}
#define RANGE(start, step) ((start) + 8 * (step))
const ttc_op_row ttc__fill_rows[] = {
    {ELEM_HEAD("fill.Scalar", lower_fill, 1, TOL_EXACT), .pad = PAD_EACH},
    {ELEM_HEAD("fill.Tensor", lower_fill, 1, TOL_EXACT), .pad = PAD_EACH},
    {ELEM_HEAD("zero", lower_const, 0, TOL_EXACT), .pad = PAD_EACH},
    {ELEM_HEAD("arange.start_step", lower_arange, RANGE(0, 2), TOL_2ULP), .flags = TTC_OP_SIZED, .infer = infer_arange,
     .pad = PAD_FILL},
    {ELEM_HEAD("range.step", lower_arange, RANGE(0, 2), TOL_2ULP), .flags = TTC_OP_SIZED, .infer = infer_closed_range},
    ELEM_ROW("linspace", lower_linspace, 0, TOL_4ULP),
    ELEM_ROW("logspace", lower_linspace, 1, TOL_LOOSE),
    ELEM_ROW("eye", lower_eye, 0, TOL_EXACT),
    ELEM_ROW("eye.m", lower_eye, 0, TOL_EXACT),
    {ELEM_HEAD("tril", lower_triangle, SHLO_LE, TOL_EXACT), .pad = PAD_TRIANGLE},
    {ELEM_HEAD("triu", lower_triangle, SHLO_GE, TOL_EXACT), .pad = PAD_TRIANGLE},
    ELEM_ROW("tril_indices", lower_tri_indices, 0, TOL_EXACT),
    ELEM_ROW("triu_indices", lower_tri_indices, 1, TOL_EXACT),
    /* Compositions over empty and fill_ in eager mode. */
    {ELEM_HEAD("arange", lower_arange, RANGE(7, 7), TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("arange.start", lower_arange, RANGE(0, 7), TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("full", lower_fill, 1, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("full_like", lower_fill, 1, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("new_full", lower_fill, 2, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    GRAPH("scalar_tensor", lower_fill, 0),
    {ELEM_HEAD("ones", lower_const, 1, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("ones_like", lower_const, 1, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("new_ones", lower_const, 1, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("zeros", lower_const, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("zeros_like", lower_const, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("new_zeros", lower_const, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("empty.memory_format", lower_const, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("empty_strided", lower_const, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("empty_permuted", lower_const, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("empty_like", lower_const, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("new_empty", lower_const, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
    {ELEM_HEAD("new_empty_strided", lower_const, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_FILL},
};
TTC_FAMILY(fill)
