/* Masks, and results whose number depends on data: nonzero, unique. The rows are in index.c.
 *
 * A program's shapes are fixed, so rows with TTC_OP_DATA_SIZE give as many places as there can be, of which the first `count` mean
 * something, and the count; the front end reads it and cuts. */
#include "op/index.h"

static ttc_val add(shlo *b, ttc_val earlier, ttc_val later) {
  return shlo_add(b, earlier, later);
}

ttc_val ttc__running_count(shlo *b, ttc_val mask) {
  ttc_dtype d = shlo_nelem(b, mask) < INT32_MAX ? TTC_S32 : TTC_S64;
  ttc_val x = shlo_convert(b, mask, d), zero = shlo_const_i(b, d, 0, 0, NULL);
  return ttc__once(b, ttc__scan(b, x, zero, 0, add));
}

/* s64[want]: where the k-th true element is; n where there is none. Each true element writes its place at its rank (10 ns an
 * element on XLA:CPU, where a binary search for the rank takes 300). */
static ttc_val kth_true(shlo *b, ttc_val mask, ttc_val running, int64_t want) {
  int64_t n = shlo_nelem(b, mask);
  ttc_val none = shlo_const_i(b, TTC_S64, n, 1, &want), place = shlo_iota(b, TTC_S64, 0, 1, &n);
  ttc_val rank = shlo_select(b, mask, shlo_sub(b, running, elem_i(b, running, 1)), elem_i(b, running, want));
  return ttc__once(b, ttc__scatter_rows(b, SHLO_SCATTER_SET, none, rank, place, 0));
}

ttc_val ttc__last(shlo *b, ttc_val v) {
  int64_t n = shlo_nelem(b, v);
  return n == 0 ? elem_i(b, v, 0) : shlo_reshape(b, shlo_slice_axis(b, v, 0, n - 1, n), 0, NULL);
}

/* s64 scalar: how many are true. */
static ttc_val total(shlo *b, ttc_val running) {
  return shlo_convert(b, ttc__last(b, running), TTC_S64);
}

static ttc_val broadcast_flat(shlo *b, ttc_val v, const ttc__shape *d) {
  return ttc__flatten(b, shlo_broadcast_to(b, v, d->n, d->at));
}

/* ----------------------------------------------------------------------------------------------- masked_scatter */

/* masked_scatter(x, mask, source): the true places take source's elements in order. */
void ttc__lower_masked_scatter(shlo *b, ttc_lower *c) {
  ttc__shape d = {.n = op_out_ndim(c, 0)};
  for (int k = 0; k < d.n; k++) {
    d.at[k] = op_out_sizes(c, 0)[k];
  }
  ttc_val x = broadcast_flat(b, op_in(c, 0), &d), mask = broadcast_flat(b, op_in_as(c, 1, TTC_BOOL), &d);
  ttc_val source = ttc__flatten(b, op_in_as(c, 2, op_in_dtype(c, 0)));
  int64_t given = shlo_nelem(b, source);
  ttc_val rank = ttc__once(b, ttc__running_count(b, mask)), ones = ttc__last(b, rank);
  op_fault_if(c, b, elem_cmp(b, SHLO_GT, ones, (double)given), TTC__FAULT_SHORT_SOURCE, ones, 0, given);
  if (given > 0) {
    x = shlo_select(b, mask, shlo_take(b, source, shlo_sub(b, rank, elem_i(b, rank, 1)), 0), x);
  }
  ttc__give(b, c, 0, x);
}

/* masked_scatter_backward(grad, mask, sizes): grad's elements at the true places in order, then zeros, in the shape `sizes`. */
void ttc__lower_masked_scatter_backward(shlo *b, ttc_lower *c) {
  ttc_val g = op_in(c, 0), mask = op_in_as(c, 1, TTC_BOOL);
  ttc__shape gd = ttc__shape_of(b, g), md = ttc__shape_of(b, mask), *d = gd.n >= md.n ? &gd : &md;
  int64_t want = 1;
  for (int k = 0; k < op_out_ndim(c, 0); k++) {
    want *= op_out_sizes(c, 0)[k];
  }
  mask = broadcast_flat(b, mask, d);
  ttc_val at = kth_true(b, mask, ttc__running_count(b, mask), want);
  g = broadcast_flat(b, g, d);
  ttc_val zero = shlo_const_i(b, op_out_dtype(c, 0), 0, 0, NULL);
  ttc_val there = elem_cmp(b, SHLO_LT, at, (double)shlo_nelem(b, g));
  ttc__give(b, c, 0, shlo_select(b, there, shlo_take(b, g, at, 0), zero));
}

/* ------------------------------------------------------------------------------------------------------- nonzero */

static ttc_val is_nonzero(shlo *b, ttc_val x) {
  return ttc__flatten(b, shlo_convert(b, x, TTC_BOOL));
}

/* s64[n] places in an array of these sizes -> s64[n, ndim] indices */
static ttc_val unravel(shlo *b, ttc_val at, const ttc__shape *d) {
  ttc_val column[TTC_MAX_NDIM];
  int64_t n[2] = {shlo_nelem(b, at), 0};
  for (int k = d->n - 1; k >= 0; k--) {
    ttc_val size = elem_i(b, at, d->at[k] > 0 ? d->at[k] : 1);
    column[k] = shlo_unsqueeze(b, k == 0 ? at : shlo_2(b, SHLO_REM, at, size), 1);
    at = shlo_div(b, at, size);
  }
  return d->n == 0 ? shlo_const_i(b, TTC_S64, 0, 2, n) : shlo_concat(b, d->n, column, 1);
}

/* nonzero(x) -> indices s64[numel, ndim] row-major, count s64 */
void ttc__lower_nonzero(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0), mask = is_nonzero(b, x), running = ttc__running_count(b, mask);
  ttc__shape d = ttc__shape_of(b, x);
  op_ret(c, 0, unravel(b, kth_true(b, mask, running, shlo_nelem(b, x)), &d));
  op_ret(c, 1, total(b, running));
}

/* nonzero_static(x, size, fill_value): the first `size` rows, or as many as there are and fill_value after them. */
void ttc__lower_nonzero_static(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0), mask = is_nonzero(b, x);
  ttc__shape d = ttc__shape_of(b, x);
  ttc_val at = kth_true(b, mask, ttc__running_count(b, mask), op_int(c, 1, 0));
  ttc_val there = shlo_unsqueeze(b, elem_cmp(b, SHLO_LT, at, (double)shlo_nelem(b, x)), 1);
  op_ret(c, 0, shlo_select(b, there, unravel(b, at, &d), shlo_const_i(b, TTC_S64, op_int(c, 2, -1), 0, NULL)));
}

/* -------------------------------------------------------------------------------------------------------- unique */

/* v where the result wants it (its spec has elements), else the empty result. */
static void give_wanted(shlo *b, ttc_lower *c, int k, ttc_val v) {
  int64_t n = 1;
  for (int j = 0; j < op_out_ndim(c, k); j++) {
    n *= op_out_sizes(c, k)[j];
  }
  ttc__give(b, c, k, n > 0 ? v : shlo_const_i(b, op_out_dtype(c, k), 0, op_out_ndim(c, k), op_out_sizes(c, k)));
}

/* Sorted (or as they are) rows and where each was before (poison: they were not moved) -> results
 * 0 the first row of each run, [n, ..]; 1 the run of each row in the old order, [n]; 2 the runs' lengths, [n]; 3 how many runs. */
static void give_runs(shlo *b, ttc_lower *c, ttc_val rows, ttc_val place) {
  int64_t n = shlo_dim(b, rows, 0);
  int axes[TTC_MAX_NDIM], naxis = 0;
  for (int k = 1; k < shlo_ndim(b, rows); k++) {
    axes[naxis++] = k;
  }
  ttc_val first = shlo_const_i(b, TTC_BOOL, 1, 1, &n);
  if (n > 1) {
    ttc_val differ = shlo_compare(b, SHLO_NE, shlo_slice_axis(b, rows, 0, 1, n), shlo_slice_axis(b, rows, 0, 0, n - 1));
    ttc_val parts[2] = {shlo_slice_axis(b, first, 0, 0, 1), shlo_reduce(b, SHLO_ANY, differ, naxis, axes)};
    first = shlo_concat(b, 2, parts, 0);
  }
  ttc_val running = ttc__running_count(b, first), start = kth_true(b, first, running, n);
  ttc_val run = shlo_convert(b, shlo_sub(b, running, elem_i(b, running, 1)), TTC_S64);
  if (place.id >= 0) {
    ttc_val blank = shlo_const_i(b, TTC_S64, 0, 1, &n);
    run = ttc__scatter_rows(b, SHLO_SCATTER_SET, blank, ttc__indices(b, place, n, false), run, 0);
  }
  int64_t one = 1;
  ttc_val end = shlo_const_i(b, TTC_S64, n, 1, &one);
  if (n > 0) {
    ttc_val parts[2] = {shlo_slice_axis(b, start, 0, 1, n), end};
    end = shlo_concat(b, 2, parts, 0);
  } else {
    end = start;
  }
  give_wanted(b, c, 0, shlo_take(b, rows, start, 0));
  give_wanted(b, c, 1, run);
  give_wanted(b, c, 2, shlo_sub(b, end, start));
  op_ret(c, 3, total(b, running));
}

/* A type that can be sorted, and back by op_ret. */
static ttc_val sortable(shlo *b, ttc_lower *c, ttc_val x) {
  if (ttc__is_complex(shlo_dtype(b, x))) {
    op_refuse(c, "%s of %s is not lowered", op_name(c), ttc_dtype_name(shlo_dtype(b, x)));
  }
  return shlo_dtype(b, x) == TTC_BOOL ? shlo_convert(b, x, TTC_U8) : x;
}

/* _unique2 (param 1: sorts first), unique_consecutive without dim, of x flattened; results as give_runs. */
void ttc__lower_unique(shlo *b, ttc_lower *c) {
  ttc_val xs[2] = {ttc__flatten(b, sortable(b, c, op_in(c, 0))), TTC_POISON};
  if (op_param(c) == 1) {
    int64_t n = shlo_nelem(b, xs[0]);
    xs[1] = shlo_iota(b, n < INT32_MAX ? TTC_S32 : TTC_S64, 0, 1, &n);
    shlo_sort(b, 2, xs, 0, false, xs);
  }
  give_runs(b, c, xs[0], xs[1]);
}

/* Stable sorts by each column from the last to the first leave the rows in lexicographic order. State: column k, order s32[n]. */
static void more_columns(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  (void)ctx;
  results[0] = elem_cmp(b, SHLO_GE, args[0], 0);
}
static void sort_column(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  (void)ctx;
  int64_t n = shlo_dim(b, args[1], 0), size[2] = {1, n};
  ttc_val at[2] = {args[0], elem_i(b, args[0], 0)};
  ttc_val column = shlo_reshape(b, shlo_dynamic_slice(b, args[2], at, size), 1, &n);
  ttc_val xs[2] = {shlo_take(b, column, args[1], 0), args[1]};
  shlo_sort(b, 2, xs, 0, false, xs);
  results[0] = shlo_sub(b, args[0], elem_i(b, args[0], 1));
  results[1] = xs[1];
  results[2] = args[2];
}

/* unique_dim(x, dim, ..) (param 1: sorts first), unique_dim_consecutive. Result 0 has the axis in front, [n, the other axes ..]. */
void ttc__lower_unique_dim(shlo *b, ttc_lower *c) {
  ttc_val x = sortable(b, c, op_in(c, 0)), order = TTC_POISON;
  ttc__shape d = ttc__shape_of(b, x);
  int axis = op_axis(c, 1, d.n), perm[TTC_MAX_NDIM] = {axis}, back[2] = {1, 0};
  for (int k = 0, j = 1; k < d.n; k++) {
    if (k != axis) {
      perm[j++] = k;
    }
  }
  x = shlo_transpose(b, x, perm);
  int64_t n = d.at[axis], flat[2] = {n, n > 0 ? shlo_nelem(b, x) / n : 0};
  if (op_param(c) == 1) {
    ttc_val columns = shlo_transpose(b, shlo_reshape(b, x, 2, flat), back);
    ttc_val state[3] = {shlo_const_i(b, TTC_S32, flat[1] - 1, 0, NULL), shlo_iota(b, TTC_S32, 0, 1, &n), columns};
    shlo_while(b, 3, state, more_columns, sort_column, NULL, state);
    order = state[1];
    x = shlo_take(b, x, order, 0);
  }
  give_runs(b, c, x, order);
}
