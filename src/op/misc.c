/* Family "misc": searching in sorted sequences, membership, fake quantisation. */
#include "op/elem.h"

/* ---- binary search */

/* Steps are written out (log2 n of them): state lo, hi per value. NaN counts as above everything, as in PyTorch. */
ttc_val ttc__bound(shlo *b, ttc_val seq, const ttc_val *sorter, ttc_val base, ttc_val v, int64_t n, bool right) {
  int ndim = shlo_ndim(b, v);
  int64_t dims[TTC_MAX_NDIM] = {0};
  for (int k = 0; k < ndim; k++)
    dims[k] = shlo_dim(b, v, k);
  ttc_val lo = shlo_const_i(b, TTC_S64, 0, ndim, dims), hi = shlo_const_i(b, TTC_S64, n, ndim, dims);
  ttc_val one = shlo_const_i(b, TTC_S64, 1, 0, NULL), top = shlo_const_i(b, TTC_S64, n > 0 ? n - 1 : 0, 0, NULL);
  for (int64_t left = n; left > 0; left /= 2) {
    ttc_val mid = shlo_2(b, SHLO_SHR_A, shlo_add(b, lo, hi), one);
    ttc_val at = shlo_add(b, base, shlo_2(b, SHLO_MIN, mid, top));
    if (sorter)
      at = shlo_add(b, base, shlo_convert(b, shlo_take(b, *sorter, at, 0), TTC_S64));
    ttc_val after = elem_not(b, shlo_compare(b, right ? SHLO_GT : SHLO_GE, shlo_take(b, seq, at, 0), v));
    ttc_val more = shlo_compare(b, SHLO_LT, lo, hi);
    lo = shlo_select(b, elem_and(b, more, after), shlo_add(b, mid, one), lo);
    hi = shlo_select(b, elem_and(b, more, elem_not(b, after)), mid, hi);
  }
  return lo;
}

static ttc_val flatten(shlo *b, ttc_val x) {
  int64_t n = shlo_nelem(b, x);
  return shlo_reshape(b, x, 1, &n);
}
/* bucketize(v, boundaries, out_int32, right); v a tensor or a number */
static void lower_bucketize(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_promote(c, 0, 1);
  ttc_val base = shlo_const_i(b, TTC_S64, 0, 0, NULL), seq = op_in_as(c, 1, d);
  op_ret(c, 0, ttc__bound(b, seq, NULL, base, op_in_as(c, 0, d), shlo_nelem(b, seq), op_bool(c, 3)));
}
/* searchsorted(seq[.., n], v[.., m] or seq[n], v any, out_int32, right, side, sorter) */
static void lower_searchsorted(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_promote(c, 0, 1);
  bool right = op_bool(c, 3) || (op_given(c, 4) && op_str_is(c, 4, "right"));
  ttc_val seq = op_in_as(c, 0, d), v = op_in_as(c, 1, d), base = shlo_const_i(b, TTC_S64, 0, 0, NULL);
  int nseq = op_in_ndim(c, 0), n = shlo_ndim(b, v);
  int64_t len = op_in_dim(c, 0, -1), dims[TTC_MAX_NDIM] = {0}, stride = len;
  for (int k = 0; k < n; k++)
    dims[k] = shlo_dim(b, v, k);
  for (int k = n - 2; nseq > 1 && k >= 0; k--) {
    ttc_val i = shlo_iota(b, TTC_S64, k, n, dims);
    base = shlo_add(b, base, shlo_mul(b, i, elem_i(b, i, stride)));
    stride *= dims[k];
  }
  ttc_val order = op_given(c, 5) ? flatten(b, op_in(c, 5)) : TTC_POISON;
  op_ret(c, 0, ttc__bound(b, flatten(b, seq), op_given(c, 5) ? &order : NULL, base, v, len, right));
}

/* ---- membership */

#define ISIN_COMPARE_ALL 32 /* with at most so many candidates each is compared, with more they are sorted and searched */

static ttc_val any_of_last(shlo *b, ttc_val x) {
  int axis = shlo_ndim(b, x) - 1;
  return shlo_reduce(b, SHLO_ANY, x, 1, &axis);
}
/* bool: v is among the 1-D set of n. NaN is equal to nothing; sorted last, it is taken for inf in the search only. */
static ttc_val member(shlo *b, ttc_val v, ttc_val set, int64_t n) {
  if (n <= ISIN_COMPARE_ALL || ttc__is_complex(shlo_dtype(b, v))) {
    int ndim = shlo_ndim(b, v), axes[TTC_MAX_NDIM] = {0};
    int64_t dims[TTC_MAX_NDIM + 1] = {0};
    for (int k = 0; k < ndim; k++) {
      axes[k] = k;
      dims[k] = shlo_dim(b, v, k);
    }
    dims[ndim] = n;
    return any_of_last(b, shlo_compare(b, SHLO_EQ, shlo_broadcast_in_dim(b, v, ndim + 1, dims, axes), set));
  }
  ttc_val sorted;
  shlo_sort(b, 1, &set, 0, false, &sorted);
  ttc_val zero = shlo_const_i(b, TTC_S64, 0, 0, NULL), searched = sorted;
  if (ttc__is_float(shlo_dtype(b, set)))
    searched = shlo_select(b, shlo_is_nan(b, sorted), shlo_highest(b, shlo_dtype(b, set)), sorted);
  ttc_val at = ttc__bound(b, searched, NULL, zero, v, n, false);
  ttc_val inside = shlo_2(b, SHLO_MIN, at, elem_i(b, at, n - 1));
  return elem_and(b, elem_cmp(b, SHLO_LT, at, (double)n), shlo_compare(b, SHLO_EQ, shlo_take(b, sorted, inside, 0), v));
}
/* isin(elements, test_elements, assume_unique, invert), either of them a number */
static void lower_isin(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_promote(c, 0, 1);
  if (d == TTC_BOOL)
    d = TTC_U8;
  ttc_val set = flatten(b, op_in_as(c, 1, d)), v = op_in_as(c, 0, d);
  int64_t n = shlo_nelem(b, set);
  ttc_val in = n == 0 ? shlo_const_i(b, TTC_BOOL, 0, 0, NULL) : member(b, v, set, n);
  op_ret(c, 0, op_bool(c, 3) ? elem_not(b, in) : in);
}

/* ---- fake quantisation: x to the nearest of the values (q - zero_point)·scale, q in [qmin, qmax] */

typedef struct fake {
  ttc_val values, in_range;
} fake;
static fake quantise(shlo *b, const ttc_lower *c, ttc_val x, ttc_val scale, ttc_val zero, int qmin_arg) {
  ttc_val lo = elem_f(b, x, (double)op_int(c, qmin_arg, 0)), hi = elem_f(b, x, (double)op_int(c, qmin_arg + 1, 0));
  ttc_val q = shlo_add(b, shlo_1(b, SHLO_ROUND_EVEN, shlo_mul(b, x, shlo_div(b, elem_f(b, x, 1), scale))), zero);
  ttc_val kept = shlo_2(b, SHLO_MIN, shlo_2(b, SHLO_MAX, q, lo), hi);
  return (fake){.values = shlo_mul(b, shlo_sub(b, kept, zero), scale),
                .in_range = elem_and(b, shlo_compare(b, SHLO_GE, q, lo), shlo_compare(b, SHLO_LE, q, hi))};
}
/* fake_quantize_per_tensor_affine_cachemask(x, scale, zero_point, qmin, qmax) -> values, mask; and
 * _fake_quantize_per_tensor_affine_cachemask_tensor_qparams(x, scale, zero_point, fake_quant_enabled, qmin, qmax), which has
 * tensors of one element and passes x where it is not enabled.        param: 1 for the latter */
static void lower_fake_quant(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, ttc__dtype_op(op_in_dtype(c, 0)));
  ttc_dtype d = shlo_dtype(b, x);
  if (!op_param(c)) {
    fake f = quantise(b, c, x, op_num(c, 1, 0, d), elem_f(b, x, (double)op_int(c, 2, 0)), 3);
    op_ret(c, 0, f.values);
    op_ret(c, 1, f.in_range);
    return;
  }
  ttc_val scale = shlo_reshape(b, op_in_as(c, 1, d), 0, NULL), zero = shlo_reshape(b, op_in_as(c, 2, d), 0, NULL);
  ttc_val on = shlo_reshape(b, op_in_as(c, 3, TTC_BOOL), 0, NULL);
  fake f = quantise(b, c, x, scale, zero, 4);
  op_ret(c, 0, shlo_select(b, on, f.values, x));
  op_ret(c, 1, elem_or(b, f.in_range, elem_not(b, on)));
}
/* fake_quantize_per_channel_affine_cachemask(x, scale[C], zero_point[C], axis, qmin, qmax) -> values, mask */
static void lower_fake_quant_channel(shlo *b, ttc_lower *c) {
  ttc_val x = op_in_as(c, 0, ttc__dtype_op(op_in_dtype(c, 0)));
  int n = op_in_ndim(c, 0), axis = op_axis(c, 3, n);
  ttc_dtype d = shlo_dtype(b, x);
  ttc_val scale = shlo_broadcast_in_dim(b, op_in_as(c, 1, d), n, op_in_sizes(c, 0), &axis);
  fake f = quantise(b, c, x, scale, shlo_broadcast_in_dim(b, op_in_as(c, 2, d), n, op_in_sizes(c, 0), &axis), 4);
  op_ret(c, 0, f.values);
  op_ret(c, 1, f.in_range);
}
/* values as x, mask bool */
static ttc_status infer_fake_quant(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  if (max < 2)
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "two results");
  TTC_TRY(ttc__infer_like_first(call, max, specs, nout, err));
  specs[1] = specs[0];
  specs[1].dtype = TTC_BOOL;
  *nout = 2;
  return TTC_OK;
}

/* _assert_async(x[, message]): x, of one element, must not be zero. The message is left out: what a fault can say is fixed. */
static void lower_assert(shlo *b, ttc_lower *c) {
  ttc_val ok = shlo_reshape(b, op_in_as(c, 0, TTC_BOOL), 0, NULL);
  op_fault_if(c, b, elem_not(b, ok), TTC__FAULT_ASSERT, TTC_POISON, 0, 0);
}

#define EXACT(name, rule) ELEM_ROW(name, rule, 0, TOL_EXACT)
#define FAKE(n, rule, p) {ELEM_HEAD(n, rule, p, TOL_2ULP), .flags = TTC_OP_NO_META, .infer = infer_fake_quant}
const ttc_op_row ttc__misc_rows[] = {
    EXACT("bucketize.Tensor", lower_bucketize),
    EXACT("bucketize.Scalar", lower_bucketize),
    EXACT("searchsorted.Tensor", lower_searchsorted),
    EXACT("searchsorted.Scalar", lower_searchsorted),
    {ELEM_HEAD("isin.Tensor_Tensor", lower_isin, 0, TOL_EXACT), .pad = PAD_AMONG},
    {ELEM_HEAD("isin.Tensor_Scalar", lower_isin, 0, TOL_EXACT), .pad = PAD_AMONG},
    EXACT("isin.Scalar_Tensor", lower_isin),
    EXACT("_assert_async", lower_assert),
    EXACT("_assert_async.msg", lower_assert),
    FAKE("fake_quantize_per_tensor_affine_cachemask", lower_fake_quant, 0),
    FAKE("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", lower_fake_quant, 1),
    FAKE("fake_quantize_per_channel_affine_cachemask", lower_fake_quant_channel, 0),
};
TTC_FAMILY(misc)
