/* Family "view": views as functions of values, met inside graphs (in eager mode they are views of a store and never run), and the
 * ops that write a view's values into a copy. Every value is dense in its logical shape. */
#include "op/elem.h"

static ttc_val to_out(shlo *b, ttc_lower *c, ttc_val v) {
  return shlo_reshape(b, v, op_out_ndim(c, 0), op_out_sizes(c, 0));
}

/* view, reshape, squeeze ...: the result's shape is known and the order of elements stays. */
static void lower_reshape(shlo *b, ttc_lower *c) {
  op_ret(c, 0, to_out(b, c, op_in(c, 0)));
}

static void lower_permute(shlo *b, ttc_lower *c) {
  int perm[TTC_MAX_NDIM] = {0}, n = op_in_ndim(c, 0);
  for (int k = 0; k < n; k++) {
    int64_t axis = op_ints(c, 1, k);
    perm[k] = (int)(axis < 0 ? axis + n : axis);
  }
  op_ret(c, 0, shlo_transpose(b, op_in(c, 0), perm));
}
/* transpose.int(x, dim0, dim1); t        param: 1 for t */
static void lower_transpose(shlo *b, ttc_lower *c) {
  int perm[TTC_MAX_NDIM] = {0}, n = op_in_ndim(c, 0);
  if (n < 2) {
    op_ret(c, 0, op_in(c, 0));
    return;
  }
  for (int k = 0; k < n; k++)
    perm[k] = k;
  int i = op_param(c) ? 0 : op_axis(c, 1, n), j = op_param(c) ? 1 : op_axis(c, 2, n);
  perm[i] = j;
  perm[j] = i;
  op_ret(c, 0, shlo_transpose(b, op_in(c, 0), perm));
}
static void lower_expand(shlo *b, ttc_lower *c) {
  op_ret(c, 0, shlo_broadcast_to(b, op_in(c, 0), op_out_ndim(c, 0), op_out_sizes(c, 0)));
}
/* repeat(x, repeats): each axis with a new one of size `repeat` before it, then merged. */
static void lower_repeat(shlo *b, ttc_lower *c) {
  int n = op_out_ndim(c, 0), lead = n - op_in_ndim(c, 0), axes[TTC_MAX_NDIM];
  int64_t wide[2 * TTC_MAX_NDIM];
  for (int k = 0; k < n; k++) {
    wide[2 * k] = op_ints(c, 1, k);
    wide[2 * k + 1] = k < lead ? 1 : op_in_dim(c, 0, k - lead);
    if (k >= lead)
      axes[k - lead] = 2 * k + 1;
  }
  op_ret(c, 0, to_out(b, c, shlo_broadcast_in_dim(b, op_in(c, 0), 2 * n, wide, axes)));
}

/* ---- slices */

/* start:end:step along one axis, as PyTorch reads them */
typedef struct range {
  int axis;
  int64_t start, end, step;
} range;
static int64_t clip(int64_t v, int64_t n) {
  if (v < 0)
    v += n;
  return v < 0 ? 0 : v > n ? n : v;
}
/* Arguments arg.. are dim, start, end, step, of an array of these sizes. */
static range read_range(const ttc_lower *c, int arg, int ndim, const int64_t *sizes) {
  range r = {.axis = op_axis(c, arg, ndim)};
  int64_t n = ndim ? sizes[r.axis] : 1;
  r.start = clip(op_int(c, arg + 1, 0), n);
  r.end = clip(op_int(c, arg + 2, INT64_MAX), n);
  r.step = op_int(c, arg + 3, 1);
  if (r.end < r.start)
    r.end = r.start;
  return r;
}
/* select's dim and index */
static range read_select(const ttc_lower *c, int arg, int ndim, const int64_t *sizes) {
  range r = {.axis = op_axis(c, arg, ndim), .step = 1};
  r.start = op_int(c, arg + 1, 0);
  if (r.start < 0)
    r.start += sizes[r.axis];
  r.end = r.start + 1;
  return r;
}
static ttc_val cut(shlo *b, ttc_val x, range r) {
  int64_t start[TTC_MAX_NDIM], limit[TTC_MAX_NDIM], stride[TTC_MAX_NDIM];
  int n = shlo_ndim(b, x);
  for (int k = 0; k < n; k++) {
    start[k] = k == r.axis ? r.start : 0;
    limit[k] = k == r.axis ? r.end : shlo_dim(b, x, k);
    stride[k] = k == r.axis ? r.step : 1;
  }
  return shlo_slice(b, x, start, limit, stride);
}
static void lower_slice(shlo *b, ttc_lower *c) {
  op_ret(c, 0, cut(b, op_in(c, 0), read_range(c, 1, op_in_ndim(c, 0), op_in_sizes(c, 0))));
}
static void lower_select(shlo *b, ttc_lower *c) {
  op_ret(c, 0, to_out(b, c, cut(b, op_in(c, 0), read_select(c, 1, op_in_ndim(c, 0), op_in_sizes(c, 0)))));
}
/* narrow_copy(x, dim, start, length) */
static void lower_narrow(shlo *b, ttc_lower *c) {
  range r = read_select(c, 1, op_in_ndim(c, 0), op_in_sizes(c, 0));
  r.end = r.start + op_int(c, 3, 0);
  op_ret(c, 0, cut(b, op_in(c, 0), r));
}
/* split.Tensor(x, size, dim), split_with_sizes, unbind.int(x, dim): result k is the next stretch of the axis.
 * param: the argument that is dim */
static void lower_split(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0);
  range r = {.axis = op_axis(c, op_param(c), op_in_ndim(c, 0)), .step = 1};
  for (int k = 0; k < op_nout(c); k++) {
    bool kept = op_out_ndim(c, k) == op_in_ndim(c, 0);
    r.end = r.start + (kept ? op_out_sizes(c, k)[r.axis] : 1);
    op_ret(c, k, shlo_reshape(b, cut(b, x, r), op_out_ndim(c, k), op_out_sizes(c, k)));
    r.start = r.end;
  }
}

/* ---- the reverse: put values where a slice was */

/* src spread out to where r reads in an array of `size` along the axis, `fill` elsewhere */
static ttc_val spread(shlo *b, ttc_val src, ttc_val fill, range r, int64_t size) {
  int64_t lo[TTC_MAX_NDIM] = {0}, hi[TTC_MAX_NDIM] = {0}, between[TTC_MAX_NDIM] = {0};
  int64_t n = shlo_dim(b, src, r.axis), used = n > 0 ? (n - 1) * r.step + 1 : 0;
  lo[r.axis] = r.start;
  hi[r.axis] = size - r.start - used;
  between[r.axis] = n > 0 ? r.step - 1 : 0;
  return shlo_pad(b, src, fill, lo, hi, between);
}
static ttc_val zero_of(shlo *b, ttc_dtype d) {
  return shlo_const_i(b, d, 0, 0, NULL);
}
/* x with src in place of the stretch r; src of x's rank and dtype. */
static ttc_val replace(shlo *b, ttc_val x, ttc_val src, range r) {
  if (r.step == 1) {
    int64_t start[TTC_MAX_NDIM] = {0};
    start[r.axis] = r.start;
    return shlo_update_slice(b, x, src, start);
  }
  int n = shlo_ndim(b, src);
  ttc_val one = shlo_const_i(b, TTC_BOOL, 1, n, shlo_typeof(b, src)->dims);
  int64_t size = shlo_dim(b, x, r.axis);
  return shlo_select(b, spread(b, one, zero_of(b, TTC_BOOL), r, size), spread(b, src, zero_of(b, shlo_dtype(b, x)), r, size), x);
}
/* Argument i in the result's dtype, with `axis` of size 1 put back in. */
static ttc_val with_axis(shlo *b, ttc_lower *c, int i, int axis) {
  return shlo_unsqueeze(b, op_in_as(c, i, op_out_dtype(c, 0)), axis);
}
/* slice_scatter(x, src, dim, start, end, step) */
static void lower_slice_scatter(shlo *b, ttc_lower *c) {
  range r = read_range(c, 2, op_in_ndim(c, 0), op_in_sizes(c, 0));
  int64_t dims[TTC_MAX_NDIM];
  for (int k = 0; k < op_in_ndim(c, 0); k++)
    dims[k] = op_in_dim(c, 0, k);
  dims[r.axis] = r.step > 0 ? (r.end - r.start + r.step - 1) / r.step : 0;
  if (dims[r.axis] == 0) {
    op_ret(c, 0, op_in(c, 0));
    return;
  }
  op_ret(c, 0, replace(b, op_in(c, 0), shlo_broadcast_to(b, op_in_as(c, 1, op_in_dtype(c, 0)), op_in_ndim(c, 0), dims), r));
}
/* select_scatter(x, src, dim, index) */
static void lower_select_scatter(shlo *b, ttc_lower *c) {
  range r = read_select(c, 2, op_in_ndim(c, 0), op_in_sizes(c, 0));
  op_ret(c, 0, replace(b, op_in(c, 0), with_axis(b, c, 1, r.axis), r));
}
/* slice_backward(g, sizes, dim, start, end, step) */
static void lower_slice_backward(shlo *b, ttc_lower *c) {
  range r = read_range(c, 2, op_out_ndim(c, 0), op_out_sizes(c, 0));
  ttc_val g = op_in(c, 0);
  op_ret(c, 0, spread(b, g, zero_of(b, shlo_dtype(b, g)), r, op_out_sizes(c, 0)[r.axis]));
}
/* select_backward(g, sizes, dim, index) */
static void lower_select_backward(shlo *b, ttc_lower *c) {
  range r = read_select(c, 2, op_out_ndim(c, 0), op_out_sizes(c, 0));
  ttc_val g = with_axis(b, c, 0, r.axis);
  op_ret(c, 0, spread(b, g, zero_of(b, shlo_dtype(b, g)), r, op_out_sizes(c, 0)[r.axis]));
}

/* ---- diagonals */

/* Axes dim1, dim2 (arguments arg+1, arg+2) and where the diagonal `offset` (argument arg) starts in the flat matrix of them. */
typedef struct diagonal {
  int row_axis, col_axis;
  int64_t rows, cols, start, n;
} diagonal;
static diagonal read_diagonal(const ttc_lower *c, int arg, int ndim, const int64_t *sizes) {
  diagonal d = {.row_axis = op_axis(c, arg + 1, ndim), .col_axis = op_axis(c, arg + 2, ndim)};
  int64_t offset = op_int(c, arg, 0);
  d.rows = sizes[d.row_axis];
  d.cols = sizes[d.col_axis];
  d.n = offset >= 0 ? (d.cols - offset < d.rows ? d.cols - offset : d.rows) : (d.rows + offset < d.cols ? d.rows + offset : d.cols);
  if (d.n < 0)
    d.n = 0;
  d.start = offset >= 0 ? offset : -offset * d.cols;
  if (d.n == 0)
    d.start = 0;
  return d;
}
/* perm that brings the matrix axes last; its inverse goes to back. */
static void matrix_last(diagonal d, int ndim, int *perm, int *back) {
  int n = 0;
  for (int k = 0; k < ndim; k++)
    if (k != d.row_axis && k != d.col_axis)
      perm[n++] = k;
  perm[n++] = d.row_axis;
  perm[n] = d.col_axis;
  for (int k = 0; k < ndim; k++)
    back[perm[k]] = k;
}
/* x[..., rows, cols] as x[..., rows·cols]; the diagonal is every (cols+1)-th element from start. */
static ttc_val flat_matrix(shlo *b, ttc_val x, diagonal d) {
  int64_t dims[TTC_MAX_NDIM];
  int n = shlo_ndim(b, x);
  for (int k = 0; k < n - 2; k++)
    dims[k] = shlo_dim(b, x, k);
  dims[n - 2] = d.rows * d.cols;
  return shlo_reshape(b, x, n - 1, dims);
}
static range diagonal_range(diagonal d, int axis) {
  int64_t end = d.n > 0 ? d.start + (d.n - 1) * (d.cols + 1) + 1 : 0;
  return (range){.axis = axis, .start = d.start, .end = end, .step = d.cols + 1};
}
static void lower_diagonal(shlo *b, ttc_lower *c) {
  int perm[TTC_MAX_NDIM] = {0}, back[TTC_MAX_NDIM] = {0}, ndim = op_in_ndim(c, 0);
  diagonal d = read_diagonal(c, 1, ndim, op_in_sizes(c, 0));
  matrix_last(d, ndim, perm, back);
  op_ret(c, 0, cut(b, flat_matrix(b, shlo_transpose(b, op_in(c, 0), perm), d), diagonal_range(d, ndim - 2)));
}
/* src[..., n] on the diagonal of *x, or of zeros where x is NULL; of the result's shape */
static ttc_val place_diagonal(shlo *b, ttc_lower *c, ttc_val src, const ttc_val *x, diagonal d) {
  int perm[TTC_MAX_NDIM] = {0}, back[TTC_MAX_NDIM] = {0}, ndim = op_out_ndim(c, 0);
  int64_t moved[TTC_MAX_NDIM];
  matrix_last(d, ndim, perm, back);
  for (int k = 0; k < ndim; k++)
    moved[k] = op_out_sizes(c, 0)[perm[k]];
  range r = diagonal_range(d, ndim - 2);
  ttc_val flat;
  if (d.n == 0) {
    flat = x ? flat_matrix(b, shlo_transpose(b, *x, perm), d) : shlo_const_i(b, shlo_dtype(b, src), 0, ndim, moved);
  } else if (x) {
    flat = replace(b, flat_matrix(b, shlo_transpose(b, *x, perm), d), src, r);
  } else {
    flat = spread(b, src, zero_of(b, shlo_dtype(b, src)), r, d.rows * d.cols);
  }
  return shlo_transpose(b, shlo_reshape(b, flat, ndim, moved), back);
}
/* diagonal_scatter(x, src, offset, dim1, dim2) */
static void lower_diagonal_scatter(shlo *b, ttc_lower *c) {
  diagonal d = read_diagonal(c, 2, op_in_ndim(c, 0), op_in_sizes(c, 0));
  ttc_val x = op_in(c, 0);
  op_ret(c, 0, place_diagonal(b, c, op_in_as(c, 1, op_in_dtype(c, 0)), &x, d));
}
/* diagonal_backward(g, sizes, offset, dim1, dim2) */
static void lower_diagonal_backward(shlo *b, ttc_lower *c) {
  diagonal d = read_diagonal(c, 2, op_out_ndim(c, 0), op_out_sizes(c, 0));
  op_ret(c, 0, place_diagonal(b, c, op_in(c, 0), NULL, d));
}
/* diag_embed(x, offset, dim1, dim2): the last axis of x on a diagonal of a square matrix of zeros */
static void lower_diag_embed(shlo *b, ttc_lower *c) {
  diagonal d = read_diagonal(c, 1, op_out_ndim(c, 0), op_out_sizes(c, 0));
  op_ret(c, 0, place_diagonal(b, c, op_in(c, 0), NULL, d));
}

/* ---- windows and strides */

/* unfold(x, dim, size, step): windows of `size` along dim, whose contents become the last axis */
static void lower_unfold(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0);
  if (op_in_ndim(c, 0) == 0) {
    op_ret(c, 0, to_out(b, c, x));
    return;
  }
  int axis = op_axis(c, 1, op_in_ndim(c, 0)), n = op_out_ndim(c, 0), perm[TTC_MAX_NDIM] = {0};
  int64_t w[2] = {op_out_sizes(c, 0)[axis], op_int(c, 2, 1)};
  ttc_val step = shlo_const_i(b, TTC_S32, op_int(c, 3, 1), 0, NULL);
  ttc_val at = shlo_add(b, shlo_mul(b, shlo_iota(b, TTC_S32, 0, 2, w), step), shlo_iota(b, TTC_S32, 1, 2, w));
  for (int k = 0; k < n; k++)
    perm[k] = k <= axis ? k : k + 1;
  perm[n - 1] = axis + 1;
  op_ret(c, 0, shlo_transpose(b, shlo_take(b, x, at, axis), perm));
}
/* unfold_backward(g, sizes, dim, size, step): each window's gradient added where it was read; result axis = position p, which
 * window w holds at p - w·step: a sum over the `size` places in a window of strided, padded slices of g. */
static void lower_unfold_backward(shlo *b, ttc_lower *c) {
  int ndim = op_out_ndim(c, 0);
  if (ndim == 0) {
    op_ret(c, 0, to_out(b, c, op_in(c, 0)));
    return;
  }
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 0));
  ttc_val g = op_in_as(c, 0, d), sum = zero_of(b, d);
  int axis = op_axis(c, 2, ndim), last = op_in_ndim(c, 0) - 1;
  int64_t size = op_int(c, 3, 1), step = op_int(c, 4, 1), total = op_out_sizes(c, 0)[axis];
  for (int64_t j = 0; j < size; j++) {
    ttc_val part = shlo_squeeze(b, shlo_slice_axis(b, g, last, j, j + 1), last);
    range r = {.axis = axis, .start = j, .step = step};
    sum = shlo_add(b, sum, spread(b, part, zero_of(b, d), r, total));
  }
  op_ret(c, 0, sum);
}

/* Flat places that sizes/strides/offset address, s64, in the shape of sizes. */
static ttc_val places(shlo *b, const ttc_lower *c, int sizes_arg, int n, const int64_t *sizes) {
  ttc_val at = shlo_const_i(b, TTC_S64, op_int(c, sizes_arg + 2, 0), n, sizes);
  for (int k = 0; k < n; k++) {
    ttc_val i = shlo_iota(b, TTC_S64, k, n, sizes);
    at = shlo_add(b, at, shlo_mul(b, i, elem_i(b, i, op_ints(c, sizes_arg + 1, k))));
  }
  return at;
}
static ttc_val flatten(shlo *b, ttc_val x) {
  int64_t n = shlo_nelem(b, x);
  return shlo_reshape(b, x, 1, &n);
}
/* as_strided(x, size, stride, offset): x dense, so its storage is itself flattened; a plain reshape where the strides say so. */
static void lower_as_strided(shlo *b, ttc_lower *c) {
  int n = op_out_ndim(c, 0);
  const int64_t *sizes = op_out_sizes(c, 0);
  int64_t want = 1;
  bool plain = op_int(c, 3, 0) == 0;
  for (int k = n - 1; k >= 0; k--) {
    plain = plain && (sizes[k] == 1 || op_ints(c, 2, k) == want);
    want *= sizes[k];
  }
  ttc_val x = op_in(c, 0);
  if (plain && want == shlo_nelem(b, x))
    op_ret(c, 0, to_out(b, c, x));
  else
    op_ret(c, 0, shlo_take(b, flatten(b, x), places(b, c, 1, n, sizes), 0));
}
/* as_strided_scatter(x, src, size, stride, offset) */
static void lower_as_strided_scatter(shlo *b, ttc_lower *c) {
  ttc_val src = op_in_as(c, 1, op_in_dtype(c, 0));
  ttc_val at = flatten(b, places(b, c, 2, op_in_ndim(c, 1), op_in_sizes(c, 1)));
  shlo_scatter_spec s = {.ninserted = 1, .inserted = {0}, .nindex = 1, .index_map = {0}, .index_vector_axis = 1};
  op_ret(c, 0, to_out(b, c, shlo_scatter(b, SHLO_SCATTER_SET, flatten(b, op_in(c, 0)), at, flatten(b, src), &s)));
}

/* ---- element types */

/* view_as_real: a last axis (re, im) */
static void lower_view_as_real(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0);
  int n = op_in_ndim(c, 0);
  ttc_val parts[2] = {shlo_unsqueeze(b, shlo_1(b, SHLO_REAL, x), n), shlo_unsqueeze(b, shlo_1(b, SHLO_IMAG, x), n)};
  op_ret(c, 0, shlo_concat(b, 2, parts, n));
}
static void lower_view_as_complex(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0);
  int last = op_in_ndim(c, 0) - 1;
  ttc_val re = shlo_squeeze(b, shlo_slice_axis(b, x, last, 0, 1), last);
  op_ret(c, 0, shlo_complex(b, re, shlo_squeeze(b, shlo_slice_axis(b, x, last, 1, 2), last)));
}
/* real, imag, conj, neg as views        param: shlo_op1 */
static void lower_part(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0);
  bool plain = !ttc__is_complex(op_in_dtype(c, 0)) && op_param(c) != SHLO_NEG;
  op_ret(c, 0, plain ? x : shlo_1(b, (shlo_op1)op_param(c), x));
}
/* view.dtype: the bits of the last axis read as another type */
static void lower_view_dtype(shlo *b, ttc_lower *c) {
  ttc_dtype from = op_in_dtype(c, 0), to = op_out_dtype(c, 0);
  size_t nfrom = ttc_dtype_nbyte(from), nto = ttc_dtype_nbyte(to);
  ttc_val x = op_in(c, 0);
  if (from == TTC_BOOL || to == TTC_BOOL || ttc__is_complex(from) || ttc__is_complex(to)) {
    op_refuse(c, "view of %s as %s", ttc_dtype_name(from), ttc_dtype_name(to));
    return;
  }
  if (nto > nfrom) {
    int64_t dims[TTC_MAX_NDIM + 1];
    int n = op_in_ndim(c, 0);
    for (int k = 0; k < n - 1; k++)
      dims[k] = op_in_dim(c, 0, k);
    dims[n] = (int64_t)(nto / nfrom);
    dims[n - 1] = op_in_dim(c, 0, n - 1) / dims[n];
    x = shlo_reshape(b, x, n + 1, dims);
  }
  op_ret(c, 0, to_out(b, c, shlo_bitcast(b, x, to)));
}

#define GRAPH(name, rule, param) {ELEM_HEAD(name, rule, param, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY}
#define EXACT(name, rule, param) ELEM_ROW(name, rule, param, TOL_EXACT)
const ttc_op_row ttc__view_rows[] = {
    {ELEM_HEAD("view", lower_reshape, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("view_copy", lower_reshape, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("reshape", lower_reshape, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("_unsafe_view", lower_reshape, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("_reshape_alias", lower_reshape, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("_reshape_copy", lower_reshape, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("squeeze", lower_reshape, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("squeeze.dim", lower_reshape, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("squeeze.dims", lower_reshape, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("squeeze_copy", lower_reshape, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("squeeze_copy.dim", lower_reshape, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("squeeze_copy.dims", lower_reshape, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("unsqueeze", lower_reshape, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("unsqueeze_copy", lower_reshape, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("permute", lower_permute, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("permute_copy", lower_permute, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("transpose.int", lower_transpose, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("transpose_copy.int", lower_transpose, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("t", lower_transpose, 1, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("t_copy", lower_transpose, 1, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("expand", lower_expand, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("expand_copy", lower_expand, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("slice.Tensor", lower_slice, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("slice_copy.Tensor", lower_slice, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("select.int", lower_select, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("select_copy.int", lower_select, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("split.Tensor", lower_split, 2, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("split_copy.Tensor", lower_split, 2, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("unsafe_split.Tensor", lower_split, 2, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("split_with_sizes", lower_split, 2, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("split_with_sizes_copy", lower_split, 2, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("unsafe_split_with_sizes", lower_split, 2, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("unbind.int", lower_split, 1, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("unbind_copy.int", lower_split, 1, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    GRAPH("diagonal", lower_diagonal, 0),
    GRAPH("diagonal_copy", lower_diagonal, 0),
    GRAPH("unfold", lower_unfold, 0),
    GRAPH("unfold_copy", lower_unfold, 0),
    GRAPH("as_strided", lower_as_strided, 0),
    GRAPH("as_strided_copy", lower_as_strided, 0),
    /* In eager mode these four are PyTorch's own: a clone that keeps the strides, and a copy into a view of it. */
    GRAPH("as_strided_scatter", lower_as_strided_scatter, 0),
    {ELEM_HEAD("slice_scatter", lower_slice_scatter, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("select_scatter", lower_select_scatter, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    GRAPH("diagonal_scatter", lower_diagonal_scatter, 0),
    {ELEM_HEAD("view_as_real", lower_view_as_real, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("view_as_real_copy", lower_view_as_real, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("view_as_complex", lower_view_as_complex, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    {ELEM_HEAD("view_as_complex_copy", lower_view_as_complex, 0, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_VIEW},
    GRAPH("view.dtype", lower_view_dtype, 0),
    GRAPH("view_copy.dtype", lower_view_dtype, 0),
    {ELEM_HEAD("real", lower_part, SHLO_REAL, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_EACH},
    {ELEM_HEAD("imag", lower_part, SHLO_IMAG, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_EACH},
    {ELEM_HEAD("_conj", lower_part, SHLO_CHLO_CONJ, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_EACH},
    {ELEM_HEAD("_conj_copy", lower_part, SHLO_CHLO_CONJ, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_EACH},
    {ELEM_HEAD("_neg_view", lower_part, SHLO_NEG, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_EACH},
    {ELEM_HEAD("_neg_view_copy", lower_part, SHLO_NEG, TOL_EXACT), .flags = TTC_OP_GRAPH_ONLY, .pad = PAD_EACH},
    {ELEM_HEAD("repeat", lower_repeat, 0, TOL_EXACT), .pad = PAD_VIEW},
    EXACT("narrow_copy", lower_narrow, 0),
    {ELEM_HEAD("slice_backward", lower_slice_backward, 0, TOL_EXACT), .pad = PAD_VIEW},
    {ELEM_HEAD("select_backward", lower_select_backward, 0, TOL_EXACT), .pad = PAD_VIEW},
    EXACT("diagonal_backward", lower_diagonal_backward, 0),
    EXACT("diag_embed", lower_diag_embed, 0),
    {ELEM_HEAD("unfold_backward", lower_unfold_backward, 0, TOL_SUM), .note = "the program grows with the window"},
};
TTC_FAMILY(view)
