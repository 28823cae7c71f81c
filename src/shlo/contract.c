#include "shlo/internal.h"

/* Precision is a matter of f32 (and its complex) on devices that multiply in bf16; other dtypes have one precision. */
static void attr_precision(shlo *b, ttc_dtype d) {
  static const char *const names[] = {"HIGHEST", "HIGH", "DEFAULT"};
  if ((d == TTC_F32 || d == TTC_C64) && b->precision != SHLO_PRECISION_DEFAULT) {
    const char *p = names[b->precision];
    shlo__attr(b, "precision_config = [#stablehlo<precision %s>, #stablehlo<precision %s>]", p, p);
  }
}

/* Accumulating in a wider dtype of the same kind is allowed. */
static bool dot_dtypes(shlo *b, const char *op, ttc_val x, ttc_val y, ttc_dtype out) {
  ttc_dtype d = shlo_dtype(b, x);
  if (d == shlo_dtype(b, y) && d != TTC_BOOL && ttc__dtype_class(d) == ttc__dtype_class(out) &&
      ttc_dtype_nbyte(out) >= ttc_dtype_nbyte(d)) {
    return true;
  }
  SHLO_FAIL(b, op, "no product of %s and %s as %s", SHLO_NAME(b, x), SHLO_NAME(b, y), ttc_dtype_name(out));
  return false;
}

static bool pairs_agree(shlo *b, const char *what, ttc_val x, ttc_val y, int n, const int *xa, const int *ya) {
  for (int k = 0; k < n; k++) {
    int64_t p = shlo_dim(b, x, xa[k]), q = shlo_dim(b, y, ya[k]);
    if (p != q) {
      SHLO_FAIL(b, "shlo_dot", "%s sizes differ: %lld vs %lld (axis %d of %s, axis %d of %s)", what, (long long)p, (long long)q,
                xa[k], SHLO_NAME(b, x), ya[k], SHLO_NAME(b, y));
      return false;
    }
  }
  return true;
}

/* Axes of one operand: batch and contracted ones distinct and in range. */
static bool dot_axes(shlo *b, ttc_val x, int nbatch, const int *batch, int ncontract, const int *contract, bool *used) {
  int all[2 * SHLO__MAX_NDIM];
  for (int k = 0; k < nbatch; k++) {
    all[k] = batch[k];
  }
  for (int k = 0; k < ncontract; k++) {
    all[nbatch + k] = contract[k];
  }
  return shlo__axes(b, "shlo_dot", "axis", shlo_ndim(b, x), nbatch + ncontract, all, used);
}

/* A TPU has no product of 64-bit integers: elements are multiplied and summed, which XLA fuses. t: the result's type. */
static ttc_val dot_by_elements(shlo *b, const ttc_val *xs, int nbatch, const int *const *batch, int ncontract,
                               const int *const *contract, bool used[2][SHLO__MAX_NDIM], shlo_type t) {
  int own = nbatch, last[SHLO__MAX_NDIM];
  ttc_val in[2];
  for (int k = 0; k < ncontract; k++) {
    last[k] = t.ndim;
    t.dims[t.ndim++] = shlo_dim(b, xs[0], contract[0][k]);
  }
  for (int i = 0; i < 2; i++) {
    int axes[SHLO__MAX_NDIM], n = shlo_ndim(b, xs[i]);
    for (int k = 0; k < n; k++) {
      axes[k] = used[i][k] ? 0 : own++;
    }
    for (int k = 0; k < nbatch; k++) {
      axes[batch[i][k]] = k;
    }
    for (int k = 0; k < ncontract; k++) {
      axes[contract[i][k]] = last[k];
    }
    in[i] = shlo_broadcast_in_dim(b, shlo_convert(b, xs[i], t.dtype), t.ndim, t.dims, axes);
  }
  return shlo_reduce(b, SHLO_SUM, shlo_mul(b, in[0], in[1]), ncontract, last);
}

ttc_val shlo_dot(shlo *b, ttc_val x, ttc_val y, int nbatch, const int *xb, const int *yb, int ncontract, const int *xc,
                 const int *yc, ttc_dtype out_dtype) {
  const char *op = "shlo_dot";
  ttc_val xs[2] = {x, y};
  bool used[2][SHLO__MAX_NDIM];
  if (!shlo__ready(b, op, 2, xs) || !dot_dtypes(b, op, x, y, out_dtype)) {
    return TTC_POISON;
  }
  if (nbatch < 0 || ncontract < 0 || nbatch > SHLO__MAX_NDIM || ncontract > SHLO__MAX_NDIM) {
    return SHLO_FAIL(b, op, "%d batch and %d contracted axes", nbatch, ncontract);
  }
  if (!dot_axes(b, x, nbatch, xb, ncontract, xc, used[0]) || !dot_axes(b, y, nbatch, yb, ncontract, yc, used[1]) ||
      !pairs_agree(b, "batch", x, y, nbatch, xb, yb) || !pairs_agree(b, "contracted", x, y, ncontract, xc, yc)) {
    return TTC_POISON;
  }
  shlo_type t = {.dtype = out_dtype};
  if (shlo_ndim(b, x) + shlo_ndim(b, y) - nbatch - 2 * ncontract > SHLO__MAX_NDIM) {
    return SHLO_FAIL(b, op, "the product of %s and %s has too many dims", SHLO_NAME(b, x), SHLO_NAME(b, y));
  }
  for (int k = 0; k < nbatch; k++) {
    t.dims[t.ndim++] = shlo_dim(b, x, xb[k]);
  }
  for (int i = 0; i < 2; i++) {
    const shlo_type *s = shlo_typeof(b, xs[i]);
    for (int k = 0; k < s->ndim; k++) {
      if (!used[i][k]) {
        t.dims[t.ndim++] = s->dims[k];
      }
    }
  }
  bool wide = ttc__is_integral(out_dtype) && ttc_dtype_nbyte(out_dtype) == 8 && t.ndim + ncontract <= SHLO__MAX_NDIM;
  if (b->for_tpu && wide) {
    return dot_by_elements(b, xs, nbatch, (const int *[2]){xb, yb}, ncontract, (const int *[2]){xc, yc}, used, t);
  }
  shlo__attr(b, "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = ");
  shlo__attr_list(b, nbatch, xb);
  shlo__attr(b, "rhs_batching_dimensions = ");
  shlo__attr_list(b, nbatch, yb);
  shlo__attr(b, "lhs_contracting_dimensions = ");
  shlo__attr_list(b, ncontract, xc);
  shlo__attr(b, "rhs_contracting_dimensions = ");
  shlo__attr_list(b, ncontract, yc);
  ttc__str_add(&b->attrs, ">");
  attr_precision(b, shlo_dtype(b, x));
  return shlo__op(b, "stablehlo.dot_general", 2, xs, &t);
}

/* ---- convolution */

/* "[b, f, 0, 1]": what stands at each axis. `first` and `second` are the letters of the two non-spatial axes. */
static bool attr_layout(shlo *b, const char *what, int n, char first, int first_axis, char second, int second_axis,
                        const int *spatial) {
  char at[5] = {0};
  int axes[5] = {first_axis, second_axis};
  bool seen[SHLO__MAX_NDIM];
  for (int k = 0; k < n; k++) {
    axes[2 + k] = spatial[k];
  }
  if (!shlo__axes(b, "shlo_conv", what, n + 2, n + 2, axes, seen)) {
    return false;
  }
  at[first_axis] = first;
  at[second_axis] = second;
  for (int k = 0; k < n; k++) {
    at[spatial[k]] = (char)('0' + k);
  }
  for (int k = 0; k < n + 2; k++) {
    ttc__str_addf(&b->attrs, "%s%c", k > 0 ? ", " : "[", at[k]);
  }
  ttc__str_add(&b->attrs, "]");
  return true;
}

static int64_t dilated(int64_t n, int64_t dilation) {
  return n == 0 ? 0 : (n - 1) * dilation + 1;
}

/* Output size along spatial axis k; -1 for a bad description. */
static int64_t conv_size(const shlo_conv_spec *s, int k, int64_t in, int64_t window) {
  if (s->stride[k] < 1 || s->lhs_dilation[k] < 1 || s->rhs_dilation[k] < 1) {
    return -1;
  }
  int64_t room = dilated(in, s->lhs_dilation[k]) + s->lo[k] + s->hi[k], reach = dilated(window, s->rhs_dilation[k]);
  return room < 0 ? -1 : room < reach || room == 0 ? 0 : (room - reach) / s->stride[k] + 1;
}

/* The result's type, checked. */
static bool conv_type(shlo *b, ttc_val x, ttc_val kernel, const shlo_conv_spec *s, shlo_type *t) {
  const char *op = "shlo_conv";
  shlo_type in = *shlo_typeof(b, x), k = *shlo_typeof(b, kernel);
  int64_t groups = s->feature_groups, batches = s->batch_groups;
  if (groups < 1 || batches < 1 || (groups > 1 && batches > 1)) {
    SHLO_FAIL(b, op, "%lld feature groups and %lld batch groups", (long long)groups, (long long)batches);
    return false;
  }
  int64_t features = in.dims[s->in_feature], out = k.dims[s->k_out], batch = in.dims[s->in_batch];
  if (features % groups != 0 || k.dims[s->k_in] != features / groups || out % groups != 0 || out % batches != 0 ||
      batch % batches != 0) {
    SHLO_FAIL(b, op,
              "input %s (feature axis %d) and kernel %s (output axis %d, input axis %d) do not fit with %lld feature and %lld "
              "batch groups",
              SHLO_NAME(b, x), s->in_feature, SHLO_NAME(b, kernel), s->k_out, s->k_in, (long long)groups, (long long)batches);
    return false;
  }
  *t = in;
  t->dims[s->out_batch] = batch / batches;
  t->dims[s->out_feature] = out;
  for (int i = 0; i < s->nspatial; i++) {
    int64_t n = conv_size(s, i, in.dims[s->in_spatial[i]], k.dims[s->k_spatial[i]]);
    if (n < 0) {
      SHLO_FAIL(b, op, "spatial axis %d of %s and kernel %s: stride %lld, padding %lld and %lld, dilation %lld and %lld", i,
                SHLO_NAME(b, x), SHLO_NAME(b, kernel), (long long)s->stride[i], (long long)s->lo[i], (long long)s->hi[i],
                (long long)s->lhs_dilation[i], (long long)s->rhs_dilation[i]);
      return false;
    }
    t->dims[s->out_spatial[i]] = n;
  }
  return true;
}

ttc_val shlo_conv(shlo *b, ttc_val x, ttc_val kernel, const shlo_conv_spec *s) {
  const char *op = "shlo_conv";
  ttc_val xs[2] = {x, kernel};
  shlo_type t;
  if (!shlo__ready(b, op, 2, xs) || !dot_dtypes(b, op, x, kernel, shlo_dtype(b, x))) {
    return TTC_POISON;
  }
  int n = s->nspatial;
  if (n < 1 || n > 3 || shlo_ndim(b, x) != n + 2 || shlo_ndim(b, kernel) != n + 2) {
    return SHLO_FAIL(b, op, "expected %d spatial axes (1 to 3) and two more, got %s and %s", n, SHLO_NAME(b, x),
                     SHLO_NAME(b, kernel));
  }
  shlo__attr(b, "dimension_numbers = #stablehlo.conv<");
  if (!attr_layout(b, "input axis", n, 'b', s->in_batch, 'f', s->in_feature, s->in_spatial)) {
    return TTC_POISON;
  }
  ttc__str_add(&b->attrs, "x");
  if (!attr_layout(b, "kernel axis", n, 'o', s->k_out, 'i', s->k_in, s->k_spatial)) {
    return TTC_POISON;
  }
  ttc__str_add(&b->attrs, "->");
  if (!attr_layout(b, "output axis", n, 'b', s->out_batch, 'f', s->out_feature, s->out_spatial)) {
    return TTC_POISON;
  }
  ttc__str_add(&b->attrs, ">");
  if (!conv_type(b, x, kernel, s, &t)) {
    return TTC_POISON;
  }
  if (shlo_nelem(b, x) == 0 || shlo_nelem(b, kernel) == 0 || shlo__nelem(&t) == 0) {
    ttc__str_clear(&b->attrs);
    return shlo__zeros(b, &t);
  }
  shlo__attr_i64s(b, "window_strides", n, s->stride);
  shlo__attr_padding(b, n, s->lo, s->hi);
  shlo__attr_i64s(b, "lhs_dilation", n, s->lhs_dilation);
  shlo__attr_i64s(b, "rhs_dilation", n, s->rhs_dilation);
  shlo__attr_bools(b, "window_reversal", n, s->reverse);
  shlo__attr(b, "feature_group_count = %lld : i64", (long long)s->feature_groups);
  shlo__attr(b, "batch_group_count = %lld : i64", (long long)s->batch_groups);
  attr_precision(b, shlo_dtype(b, x));
  return shlo__op(b, "stablehlo.convolution", 2, xs, &t);
}
