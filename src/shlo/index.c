#include <string.h>

#include "shlo/internal.h"

/* One integer scalar per axis, of one dtype among them (s64 if they differ). */
static bool starts_ready(shlo *b, const char *op, int n, const ttc_val *starts, ttc_val *out) {
  if (!shlo__ready(b, op, n, starts)) {
    return false;
  }
  bool alike = true;
  for (int k = 0; k < n; k++) {
    ttc_dtype d = shlo_dtype(b, starts[k]);
    if (shlo_ndim(b, starts[k]) != 0 || !ttc__is_integral(d) || d == TTC_BOOL) {
      SHLO_FAIL(b, op, "start %d is %s, expected an integer scalar", k, SHLO_NAME(b, starts[k]));
      return false;
    }
    alike = alike && d == shlo_dtype(b, starts[0]);
  }
  for (int k = 0; k < n; k++) {
    out[k] = alike ? starts[k] : shlo_convert(b, starts[k], TTC_S64);
  }
  return !b->failed;
}

ttc_val shlo_dynamic_slice(shlo *b, ttc_val x, const ttc_val *starts, const int64_t *sizes) {
  const char *op = "shlo_dynamic_slice";
  ttc_val xs[1 + SHLO__MAX_NDIM] = {x};
  if (!shlo__ready(b, op, 1, &x)) {
    return TTC_POISON;
  }
  shlo_type t = *shlo_typeof(b, x);
  if (!starts_ready(b, op, t.ndim, starts, xs + 1)) {
    return TTC_POISON;
  }
  for (int k = 0; k < t.ndim; k++) {
    if (sizes[k] < 0 || sizes[k] > t.dims[k]) {
      return SHLO_FAIL(b, op, "axis %d of %s has no slice of %lld", k, SHLO_NAME(b, x), (long long)sizes[k]);
    }
    t.dims[k] = sizes[k];
  }
  /* The only slice of full size is the whole. */
  if (shlo__same_dims(&t, shlo_typeof(b, x))) {
    return x;
  }
  shlo__attr_i64s(b, "slice_sizes", t.ndim, t.dims);
  return shlo__op(b, "stablehlo.dynamic_slice", 1 + t.ndim, xs, &t);
}

ttc_val shlo_dynamic_update_slice(shlo *b, ttc_val x, ttc_val update, const ttc_val *starts) {
  const char *op = "shlo_dynamic_update_slice";
  ttc_val xs[2 + SHLO__MAX_NDIM] = {x, update};
  if (!shlo__ready(b, op, 2, xs)) {
    return TTC_POISON;
  }
  shlo_type t = *shlo_typeof(b, x), u = *shlo_typeof(b, update);
  bool fits = t.dtype == u.dtype && t.ndim == u.ndim;
  for (int k = 0; fits && k < t.ndim; k++) {
    fits = u.dims[k] <= t.dims[k];
  }
  if (!fits) {
    return SHLO_FAIL(b, op, "%s does not fit into %s", SHLO_NAME(b, update), SHLO_NAME(b, x));
  }
  if (!starts_ready(b, op, t.ndim, starts, xs + 2)) {
    return TTC_POISON;
  }
  if (shlo__nelem(&u) == 0) {
    return x;
  }
  if (shlo__same_dims(&t, &u)) {
    return update;
  }
  return shlo__op(b, "stablehlo.dynamic_update_slice", 2 + t.ndim, xs, &t);
}

/* 0 along all axes but one */
static bool starts_along(shlo *b, const char *op, ttc_val x, int axis, ttc_val start, ttc_val *starts) {
  ttc_val xs[2] = {x, start};
  if (!shlo__ready(b, op, 2, xs)) {
    return false;
  }
  int n = shlo_ndim(b, x);
  if (axis < 0 || axis >= n) {
    SHLO_FAIL(b, op, "axis %d of %s is out of range", axis, SHLO_NAME(b, x));
    return false;
  }
  for (int k = 0; k < n; k++) {
    starts[k] = k == axis ? start : shlo_const_i(b, shlo_dtype(b, start), 0, 0, NULL);
  }
  return true;
}

ttc_val shlo_dynamic_slice_axis(shlo *b, ttc_val x, int axis, ttc_val start, int64_t size) {
  ttc_val starts[SHLO__MAX_NDIM];
  if (!starts_along(b, "shlo_dynamic_slice_axis", x, axis, start, starts)) {
    return TTC_POISON;
  }
  shlo_type t = *shlo_typeof(b, x);
  t.dims[axis] = size;
  return shlo_dynamic_slice(b, x, starts, t.dims);
}

ttc_val shlo_dynamic_update_axis(shlo *b, ttc_val x, ttc_val update, int axis, ttc_val start) {
  ttc_val starts[SHLO__MAX_NDIM];
  return starts_along(b, "shlo_dynamic_update_axis", x, axis, start, starts) ? shlo_dynamic_update_slice(b, x, update, starts)
                                                                             : TTC_POISON;
}

ttc_val shlo_update_slice(shlo *b, ttc_val x, ttc_val update, const int64_t *starts) {
  ttc_val at[SHLO__MAX_NDIM];
  if (!shlo__ready(b, "shlo_update_slice", 1, &x)) {
    return TTC_POISON;
  }
  int n = shlo_ndim(b, x);
  for (int k = 0; k < n; k++) {
    int64_t room = shlo_dim(b, x, k) - (k < shlo_ndim(b, update) ? shlo_dim(b, update, k) : 0);
    if (starts[k] < 0 || starts[k] > room) {
      return SHLO_FAIL(b, "shlo_update_slice", "%s at %lld on axis %d leaves %s", SHLO_NAME(b, update), (long long)starts[k], k,
                       SHLO_NAME(b, x));
    }
    at[k] = shlo_const_i(b, TTC_S64, starts[k], 0, NULL);
  }
  return shlo_dynamic_update_slice(b, x, update, at);
}

/* ---- gather and scatter: what they share. One side has windows ("slices") at some axes, indices' own axes at the others. */

typedef struct windows {
  const char *op;
  int nwindow, nskipped, nbatch, nindex, index_vector_axis;
  const int *window;  /* axes of the result (gather) or updates (scatter) that run over a window */
  const int *skipped; /* operand axes without a window: collapsed or inserted */
  const int *operand_batch, *index_batch, *index_map;
} windows;

/* Checks all that does not concern the windows' sizes. Fills from[k]: the operand axis of window axis k, and batch (the index
 * array's axes without its vector). */
static bool check_windows(shlo *b, const windows *w, ttc_val x, ttc_val indices, int *from, shlo_type *batch) {
  bool gone[SHLO__MAX_NDIM], seen[SHLO__MAX_NDIM];
  int all[2 * TTC_MAX_NDIM];
  shlo_type t = *shlo_typeof(b, x), idx = *shlo_typeof(b, indices);
  if (!ttc__is_integral(idx.dtype) || idx.dtype == TTC_BOOL) {
    SHLO_FAIL(b, w->op, "expected integer indices, got %s", SHLO_NAME(b, indices));
    return false;
  }
  if (w->index_vector_axis < 0 || w->index_vector_axis > idx.ndim) {
    SHLO_FAIL(b, w->op, "index vector axis %d is out of range for %s", w->index_vector_axis, SHLO_NAME(b, indices));
    return false;
  }
  int64_t nvector = w->index_vector_axis < idx.ndim ? idx.dims[w->index_vector_axis] : 1;
  if (nvector != w->nindex || w->nwindow + w->nskipped + w->nbatch != t.ndim) {
    SHLO_FAIL(b, w->op, "%s by %s: %d index components for a vector of %lld; %d window, %d skipped and %d batch axes",
              SHLO_NAME(b, x), SHLO_NAME(b, indices), w->nindex, (long long)nvector, w->nwindow, w->nskipped, w->nbatch);
    return false;
  }
  memcpy(all, w->skipped, (size_t)w->nskipped * sizeof *all);
  memcpy(all + w->nskipped, w->operand_batch, (size_t)w->nbatch * sizeof *all);
  if (!shlo__axes(b, w->op, "indexed axis", t.ndim, w->nindex, w->index_map, seen) ||
      !shlo__axes(b, w->op, "index batch axis", idx.ndim, w->nbatch, w->index_batch, seen) ||
      !shlo__axes(b, w->op, "operand axis", t.ndim, w->nskipped + w->nbatch, all, gone)) {
    return false;
  }
  for (int k = 0; k < w->nbatch; k++) {
    if (t.dims[w->operand_batch[k]] != idx.dims[w->index_batch[k]]) {
      SHLO_FAIL(b, w->op, "batch sizes differ: axis %d of %s, axis %d of %s", w->operand_batch[k], SHLO_NAME(b, x),
                w->index_batch[k], SHLO_NAME(b, indices));
      return false;
    }
  }
  *batch = (shlo_type){.dtype = idx.dtype};
  for (int k = 0; k < idx.ndim; k++) {
    if (k != w->index_vector_axis) {
      batch->dims[batch->ndim++] = idx.dims[k];
    }
  }
  for (int k = 0, n = 0; k < t.ndim; k++) {
    if (!gone[k]) {
      from[n++] = k;
    }
  }
  return true;
}

/* Lay windows' sizes and the index axes out over one shape. */
static bool lay_out(shlo *b, const windows *w, ttc_dtype d, const shlo_type *batch, const int64_t *sizes, shlo_type *t) {
  bool is_window[SHLO__MAX_NDIM];
  *t = (shlo_type){.dtype = d, .ndim = w->nwindow + batch->ndim};
  if (t->ndim > SHLO__MAX_NDIM) {
    SHLO_FAIL(b, w->op, "%d dims are too many", t->ndim);
    return false;
  }
  if (!shlo__axes(b, w->op, "window axis", t->ndim, w->nwindow, w->window, is_window)) {
    return false;
  }
  for (int k = 0, at = 0, nw = 0; k < t->ndim; k++) {
    t->dims[k] = is_window[k] ? sizes[nw++] : batch->dims[at++];
  }
  return true;
}

static void attr_numbers(shlo *b, const windows *w, const char *name, const char *const fields[5]) {
  shlo__attr(b, "%s<%s = ", name, fields[0]);
  shlo__attr_list(b, w->nwindow, w->window);
  shlo__attr(b, "%s = ", fields[1]);
  shlo__attr_list(b, w->nskipped, w->skipped);
  if (w->nbatch > 0) {
    shlo__attr(b, "%s = ", fields[2]);
    shlo__attr_list(b, w->nbatch, w->operand_batch);
    shlo__attr(b, "%s = ", fields[3]);
    shlo__attr_list(b, w->nbatch, w->index_batch);
  }
  shlo__attr(b, "%s = ", fields[4]);
  shlo__attr_list(b, w->nindex, w->index_map);
  shlo__attr(b, "index_vector_dim = %d>", w->index_vector_axis);
}

ttc_val shlo_gather(shlo *b, ttc_val x, ttc_val indices, const shlo_gather_spec *s) {
  static const char *const fields[] = {"offset_dims", "collapsed_slice_dims", "operand_batching_dims",
                                       "start_indices_batching_dims", "start_index_map"};
  const windows w = {"shlo_gather",  s->noffset,   s->ncollapsed,    s->nbatch,      s->nindex,   s->index_vector_axis,
                     s->offset_dims, s->collapsed, s->operand_batch, s->index_batch, s->index_map};
  ttc_val xs[2] = {x, indices};
  int from[SHLO__MAX_NDIM];
  int64_t sizes[SHLO__MAX_NDIM];
  shlo_type batch, t;
  if (!shlo__ready(b, w.op, 2, xs) || !check_windows(b, &w, x, indices, from, &batch)) {
    return TTC_POISON;
  }
  int nx = shlo_ndim(b, x);
  for (int k = 0; k < w.nwindow; k++) {
    sizes[k] = s->slice_sizes[from[k]];
  }
  if (!lay_out(b, &w, shlo_dtype(b, x), &batch, sizes, &t)) {
    return TTC_POISON;
  }
  if (shlo__nelem(&t) == 0) {
    return shlo__zeros(b, &t);
  }
  for (int k = 0; k < nx; k++) {
    if (s->slice_sizes[k] < 0 || s->slice_sizes[k] > shlo_dim(b, x, k)) {
      return SHLO_FAIL(b, w.op, "axis %d of %s has no slice of %lld", k, SHLO_NAME(b, x), (long long)s->slice_sizes[k]);
    }
  }
  for (int k = 0; k < w.nskipped + w.nbatch; k++) {
    int axis = k < w.nskipped ? w.skipped[k] : w.operand_batch[k - w.nskipped];
    if (s->slice_sizes[axis] != 1) {
      return SHLO_FAIL(b, w.op, "axis %d of %s is left out, but its slice is %lld, not 1", axis, SHLO_NAME(b, x),
                       (long long)s->slice_sizes[axis]);
    }
  }
  attr_numbers(b, &w, "dimension_numbers = #stablehlo.gather", fields);
  shlo__attr_i64s(b, "slice_sizes", nx, s->slice_sizes);
  shlo__attr(b, "indices_are_sorted = %s", s->sorted ? "true" : "false");
  return shlo__op(b, "stablehlo.gather", 2, xs, &t);
}

/* The region of a scatter: (old, new) -> what stays. */
static void scatter_region(shlo *b, shlo_scatter_kind kind, ttc_dtype d) {
  static const shlo_op2 ops[] = {
      [SHLO_SCATTER_ADD] = SHLO_ADD, [SHLO_SCATTER_MUL] = SHLO_MUL, [SHLO_SCATTER_MAX] = SHLO_MAX, [SHLO_SCATTER_MIN] = SHLO_MIN};
  shlo_type t[2] = {{.dtype = d}, {.dtype = d}};
  ttc_val args[2];
  if (kind != SHLO_SCATTER_SET) {
    /* A bool sum is OR, a product AND. */
    shlo_op2 op = d != TTC_BOOL ? ops[kind] : kind == SHLO_SCATTER_ADD || kind == SHLO_SCATTER_MAX ? SHLO_OR : SHLO_AND;
    shlo__combine_region(b, d, op);
  } else if (shlo__region_begin(b, false, 2, t, args)) {
    shlo__region_end(b, 1, &args[1]);
  }
}

ttc_val shlo_scatter(shlo *b, shlo_scatter_kind kind, ttc_val x, ttc_val indices, ttc_val updates, const shlo_scatter_spec *s) {
  static const char *const fields[] = {"update_window_dims", "inserted_window_dims", "input_batching_dims",
                                       "scatter_indices_batching_dims", "scatter_dims_to_operand_dims"};
  const windows w = {"shlo_scatter",   s->nwindow,  s->ninserted,     s->nbatch,      s->nindex,   s->index_vector_axis,
                     s->update_window, s->inserted, s->operand_batch, s->index_batch, s->index_map};
  ttc_val xs[3] = {x, indices, updates}, r = TTC_POISON;
  int from[SHLO__MAX_NDIM];
  int64_t sizes[SHLO__MAX_NDIM];
  shlo_type batch, want;
  if (!shlo__ready(b, w.op, 3, xs) || !check_windows(b, &w, x, indices, from, &batch)) {
    return r;
  }
  shlo_type t = *shlo_typeof(b, x), u = *shlo_typeof(b, updates);
  for (int k = 0; k < w.nwindow; k++) {
    /* A window may be smaller than the operand: its size is the updates' own. */
    int axis = w.window[k];
    sizes[k] = axis >= 0 && axis < u.ndim && u.dims[axis] < t.dims[from[k]] ? u.dims[axis] : t.dims[from[k]];
  }
  if (!lay_out(b, &w, t.dtype, &batch, sizes, &want)) {
    return r;
  }
  if (!shlo__same_type(&want, &u)) {
    return SHLO_FAIL(b, w.op, "%s at %s of %s: expected updates %s", SHLO_NAME(b, updates), SHLO_NAME(b, indices), SHLO_NAME(b, x),
                     shlo__describe(&want).text);
  }
  if (ttc__is_complex(t.dtype) && (kind == SHLO_SCATTER_MAX || kind == SHLO_SCATTER_MIN)) {
    return SHLO_FAIL(b, w.op, "%s has no order", SHLO_NAME(b, x));
  }
  if (shlo__nelem(&u) == 0 || shlo__nelem(&t) == 0) {
    return x;
  }
  attr_numbers(b, &w, "scatter_dimension_numbers = #stablehlo.scatter", fields);
  shlo__attr(b, "indices_are_sorted = %s", s->sorted ? "true" : "false");
  shlo__attr(b, "unique_indices = %s", s->unique ? "true" : "false");
  int32_t name = shlo__op_begin(b, "stablehlo.scatter", 3, xs, 1);
  scatter_region(b, kind, t.dtype);
  shlo__op_end(b, name, 3, xs, 1, &t, &r);
  return r;
}

ttc_val shlo_take(shlo *b, ttc_val x, ttc_val idx, int axis) {
  const char *op = "shlo_take";
  ttc_val xs[2] = {x, idx};
  if (!shlo__ready(b, op, 2, xs)) {
    return TTC_POISON;
  }
  shlo_type t = *shlo_typeof(b, x);
  int ni = shlo_ndim(b, idx);
  if (axis < 0 || axis >= t.ndim || t.ndim > TTC_MAX_NDIM) {
    return SHLO_FAIL(b, op, "axis %d is out of range for %s", axis, SHLO_NAME(b, x));
  }
  shlo_gather_spec s = {.ncollapsed = 1, .collapsed = {axis}, .nindex = 1, .index_map = {axis}, .index_vector_axis = ni};
  for (int k = 0; k < t.ndim; k++) {
    s.slice_sizes[k] = k == axis ? 1 : t.dims[k];
    if (k != axis) {
      s.offset_dims[s.noffset++] = k < axis ? k : k + ni - 1;
    }
  }
  return shlo_gather(b, x, idx, &s);
}
