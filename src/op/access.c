/* Reading and writing strided views of a base value, inside the consumer's program.
 *
 * A view of another element type than its base's is read through a recast base: the same bytes as an array of the view's dtype. */
#include <string.h>

#include "op/lower.h"

/* ---------------------------------------------------------------------------------------------------- recasting */

static ttc_val as_bytes(shlo *b, ttc_val flat, ttc_dtype d) {
  int64_t n = shlo_dim(b, flat, 0), w = (int64_t)ttc_dtype_nbyte(d);
  if (ttc__is_complex(d)) {
    int64_t pair[2] = {n, 2}, column[2] = {n, 1};
    ttc_val parts[2] = {shlo_reshape(b, shlo_1(b, SHLO_REAL, flat), 2, column),
                        shlo_reshape(b, shlo_1(b, SHLO_IMAG, flat), 2, column)};
    ttc_val both = shlo_concat(b, 2, parts, 1);
    (void)pair;
    int64_t flat2[1] = {2 * n};
    return as_bytes(b, shlo_reshape(b, both, 1, flat2), ttc__dtype_real(d));
  }
  if (d == TTC_BOOL) {
    return shlo_convert(b, flat, TTC_U8);
  }
  if (w == 1) {
    return d == TTC_F4E2M1FNX2 || d == TTC_U8 ? flat : shlo_bitcast(b, flat, TTC_U8);
  }
  int64_t dims[1] = {n * w};
  return shlo_reshape(b, shlo_bitcast(b, flat, TTC_U8), 1, dims);
}

/* u8[n] (n a multiple of the width) -> d[n / width] */
static ttc_val from_bytes(shlo *b, ttc_val bytes, ttc_dtype d) {
  int64_t n = shlo_dim(b, bytes, 0), w = (int64_t)ttc_dtype_nbyte(d);
  if (ttc__is_complex(d)) {
    ttc_val flat = from_bytes(b, bytes, ttc__dtype_real(d));
    int64_t pair[2] = {n / w, 2}, dims[1] = {n / w};
    flat = shlo_reshape(b, flat, 2, pair);
    return shlo_complex(b, shlo_reshape(b, shlo_slice_axis(b, flat, 1, 0, 1), 1, dims),
                        shlo_reshape(b, shlo_slice_axis(b, flat, 1, 1, 2), 1, dims));
  }
  if (d == TTC_BOOL) {
    return shlo_convert(b, bytes, TTC_BOOL);
  }
  if (w == 1) {
    return d == TTC_F4E2M1FNX2 || d == TTC_U8 ? bytes : shlo_bitcast(b, bytes, d);
  }
  int64_t dims[2] = {n / w, w};
  return shlo_bitcast(b, shlo_reshape(b, bytes, 2, dims), d);
}

static int64_t base_nelem(const ttc__base *base) {
  return ttc__nelem(base->ndim, base->dims);
}

static ttc_val flatten(shlo *b, ttc_val v) {
  int64_t n[1] = {shlo_nelem(b, v)};
  return shlo_reshape(b, v, 1, n);
}

/* The base seen as elements of dtype d. A complex base keeps its dims with a minor 2 for its real dtype and back; equal widths keep
 * the dims; other pairs go through bytes, flat. Bytes past the last whole element are left out. */
static ttc_val recast(shlo *b, ttc_val v, const ttc__base *from, ttc_dtype d, ttc__base *to) {
  ttc_dtype s = (ttc_dtype)from->dtype;
  *to = *from;
  to->dtype = (uint8_t)d;
  if (s == d) {
    return v;
  }
  bool plain = !ttc__is_complex(s) && !ttc__is_complex(d) && s != TTC_BOOL && d != TTC_BOOL;
  if (plain && ttc_dtype_nbyte(s) == ttc_dtype_nbyte(d)) {
    return shlo_bitcast(b, v, d);
  }
  int64_t w = (int64_t)ttc_dtype_nbyte(d), nbyte = base_nelem(from) * (int64_t)ttc_dtype_nbyte(s);
  ttc_val bytes = as_bytes(b, flatten(b, v), s);
  if (nbyte % w != 0) {
    bytes = shlo_slice_axis(b, bytes, 0, 0, nbyte - nbyte % w);
  }
  to->ndim = 1;
  to->dims[0] = nbyte / w;
  return from_bytes(b, bytes, d);
}

/* The inverse for a write: `v` holds the recast base's new contents, `old` the base before (for bytes left out by recast). */
static ttc_val recast_back(shlo *b, ttc_val v, ttc_dtype d, ttc_val old, const ttc__base *to) {
  ttc_dtype t = (ttc_dtype)to->dtype;
  if (t == d) {
    return v;
  }
  bool plain = !ttc__is_complex(t) && !ttc__is_complex(d) && t != TTC_BOOL && d != TTC_BOOL;
  if (plain && ttc_dtype_nbyte(t) == ttc_dtype_nbyte(d)) {
    return shlo_bitcast(b, v, t);
  }
  int64_t nbyte = base_nelem(to) * (int64_t)ttc_dtype_nbyte(t), tail = nbyte % (int64_t)ttc_dtype_nbyte(d);
  ttc_val bytes = as_bytes(b, flatten(b, v), d);
  if (tail != 0) {
    ttc_val both[2] = {bytes, shlo_slice_axis(b, as_bytes(b, flatten(b, old), t), 0, nbyte - tail, nbyte)};
    bytes = shlo_concat(b, 2, both, 0);
  }
  return shlo_reshape(b, from_bytes(b, bytes, t), to->ndim, to->dims);
}

/* ------------------------------------------------------------------------------------------------------- reading */

/* s64 flat positions of the view's elements, in the view's shape. */
static ttc_val flat_positions(shlo *b, const ttc_tensor *t) {
  ttc_val at = shlo_const_i(b, TTC_S64, t->offset, t->ndim, t->sizes);
  for (int k = 0; k < t->ndim; k++) {
    ttc_val i = shlo_iota(b, TTC_S64, k, t->ndim, t->sizes);
    at = shlo_add(b, at, shlo_mul(b, i, shlo_const_i(b, TTC_S64, t->strides[k], 0, NULL)));
  }
  return at;
}

static ttc_val read_recipe(shlo *b, ttc_val v, const ttc__geom *g, const ttc_tensor *t) {
  int64_t limit[TTC__GEOM_MAX];
  v = shlo_reshape(b, v, g->nd, g->dims);
  bool sliced = false;
  for (int k = 0; k < g->nd; k++) {
    limit[k] = g->start[k] + g->size[k];
    sliced = sliced || g->size[k] != g->dims[k];
  }
  if (sliced) {
    v = shlo_slice(b, v, g->start, limit, NULL);
  }
  v = shlo_reshape(b, v, g->npacked, g->packed);
  v = shlo_transpose(b, v, g->perm);
  if (g->npacked == t->ndim) { /* nothing to insert: the map is the identity */
    return v;
  }
  return shlo_broadcast_in_dim(b, v, t->ndim, t->sizes, g->map);
}

ttc_val ttc__read_view(shlo *b, ttc_val base_value, const ttc__base *base, const ttc_tensor *t) {
  ttc__base seen;
  ttc__geom g;
  ttc_val v = recast(b, base_value, base, (ttc_dtype)t->dtype, &seen);
  if (!ttc__geom_in_bounds(base_nelem(&seen), t->ndim, t->sizes, t->strides, t->offset)) {
    return shlo_error(b, TTC_OUT_OF_RANGE, "a view reaches past the end of its storage of %lld elements",
                      (long long)base_nelem(&seen));
  }
  ttc__geom_make(&g, seen.ndim, seen.dims, t->ndim, t->sizes, t->strides, t->offset);
  switch (g.kind) {
    case TTC__GEOM_WHOLE:
      return v;
    case TTC__GEOM_EMPTY:
      return shlo_const_i(b, (ttc_dtype)t->dtype, 0, t->ndim, t->sizes);
    case TTC__GEOM_RECIPE:
      return read_recipe(b, v, &g, t);
    case TTC__GEOM_GATHER:
      break;
  }
  return shlo_take(b, flatten(b, v), flat_positions(b, t), 0);
}

/* ------------------------------------------------------------------------------------------------------- writing */

bool ttc__write_needs_base(const ttc__base *base, const ttc_tensor *t) {
  ttc__geom g;
  if (base->dtype != t->dtype && (ttc_dtype_nbyte((ttc_dtype)base->dtype) != ttc_dtype_nbyte((ttc_dtype)t->dtype))) {
    return true;
  }
  ttc__geom_make(&g, base->ndim, base->dims, t->ndim, t->sizes, t->strides, t->offset);
  return !(g.kind == TTC__GEOM_WHOLE || (g.kind == TTC__GEOM_RECIPE && g.covers && !g.overlaps));
}

/* View value -> the sliced part of reshape(base, g->dims). Of stride-0 dims the last element is what stays, as in a sequential
 * write. */
static ttc_val pack(shlo *b, ttc_val v, const ttc__geom *g, const ttc_tensor *t) {
  int inverse[TTC_MAX_NDIM];
  int64_t kept[TTC_MAX_NDIM];
  bool mapped[TTC_MAX_NDIM] = {false};
  for (int k = 0; k < g->npacked; k++) {
    mapped[g->map[k]] = true;
    kept[k] = t->sizes[g->map[k]];
    inverse[g->perm[k]] = k;
  }
  for (int a = 0; a < t->ndim; a++) {
    if (!mapped[a] && t->sizes[a] > 1) {
      v = shlo_slice_axis(b, v, a, t->sizes[a] - 1, t->sizes[a]);
    }
  }
  v = shlo_reshape(b, v, g->npacked, kept);
  v = shlo_transpose(b, v, inverse);
  return shlo_reshape(b, v, g->nd, g->size);
}

static ttc_val write_scatter(shlo *b, ttc_val base, const ttc_tensor *t, ttc_val v) {
  int64_t n = shlo_nelem(b, v), column[2] = {n, 1}, row[1] = {n};
  shlo_scatter_spec s = {.ninserted = 1, .nindex = 1, .index_vector_axis = 1};
  ttc_val at = shlo_reshape(b, flat_positions(b, t), 2, column);
  return shlo_scatter(b, SHLO_SCATTER_SET, flatten(b, base), at, shlo_reshape(b, v, 1, row), &s);
}

ttc_val ttc__write_view(shlo *b, ttc_val base_value, const ttc__base *base, const ttc_tensor *t, ttc_val v) {
  ttc__base seen;
  ttc__geom g;
  if (t->dtype == TTC_BOOL && base->dtype != TTC_BOOL) { /* as bytes: those beside the view need not be 0 or 1, and stay */
    ttc_tensor bytes = *t;
    bytes.dtype = TTC_U8;
    return ttc__write_view(b, base_value, base, &bytes, shlo_convert(b, v, TTC_U8));
  }
  bool needs = ttc__write_needs_base(base, t);
  ttc_val old = base_value;
  if (needs) {
    base_value = recast(b, base_value, base, (ttc_dtype)t->dtype, &seen);
  } else {
    seen = *base;
    seen.dtype = t->dtype;
  }
  if (!ttc__geom_in_bounds(base_nelem(&seen), t->ndim, t->sizes, t->strides, t->offset)) {
    return shlo_error(b, TTC_OUT_OF_RANGE, "a write reaches past the end of its storage of %lld elements",
                      (long long)base_nelem(&seen));
  }
  ttc__geom_make(&g, seen.ndim, seen.dims, t->ndim, t->sizes, t->strides, t->offset);
  switch (g.kind) {
    case TTC__GEOM_EMPTY:
      v = base_value;
      break;
    case TTC__GEOM_WHOLE:
      break;
    case TTC__GEOM_RECIPE:
      v = pack(b, v, &g, t);
      if (needs) {
        v = shlo_update_slice(b, shlo_reshape(b, base_value, g.nd, g.dims), v, g.start);
      }
      break;
    case TTC__GEOM_GATHER:
      v = write_scatter(b, base_value, t, v);
      break;
  }
  return recast_back(b, shlo_reshape(b, v, seen.ndim, seen.dims), (ttc_dtype)t->dtype, old, base);
}

/* ---------------------------------------------------------------------------------------------------- fresh results */

bool ttc__base_of_spec(const ttc_spec *spec, ttc__base *base) {
  int order[TTC_MAX_NDIM];
  if (!ttc__dense_order(spec->ndim, spec->sizes, spec->strides, order)) {
    return false;
  }
  memset(base, 0, sizeof *base);
  base->dtype = (uint8_t)spec->dtype;
  base->ndim = (uint8_t)spec->ndim;
  for (int k = 0; k < spec->ndim; k++) {
    base->dims[k] = spec->sizes[order[k]];
  }
  return true;
}

bool ttc__base_of_open(const ttc_spec *spec, uint16_t axes, const ttc__opened *o, ttc__base *base) {
  int order[TTC_MAX_NDIM], n = 0;
  if (!ttc__base_of_spec(spec, base) || !ttc__dense_order(spec->ndim, spec->sizes, spec->strides, order)) {
    return false;
  }
  if (axes == 0) {
    return true;
  }
  if (spec->ndim + (o->outer > 1 ? 1 : 0) + (o->inner > 1 ? 1 : 0) > TTC_MAX_NDIM) {
    return false;
  }
  for (int k = 0; k < spec->ndim; k++) {
    bool open = ((axes >> (spec->ndim - 1 - order[k])) & 1) != 0;
    if (open && o->outer > 1) {
      base->dims[n++] = o->outer;
    }
    base->open |= (uint16_t)(open ? 1u << n : 0u);
    base->dims[n++] = open ? o->length : spec->sizes[order[k]];
    if (open && o->inner > 1) {
      base->dims[n++] = o->inner;
    }
  }
  base->ndim = (uint8_t)n;
  base->bound = o->bound;
  return true;
}

ttc_val ttc__to_physical(shlo *b, ttc_val v, const ttc_spec *spec, const ttc__base *base) {
  int order[TTC_MAX_NDIM];
  if (!ttc__dense_order(spec->ndim, spec->sizes, spec->strides, order)) {
    return shlo_error(b, TTC_UNIMPLEMENTED, "a fresh result with holes or overlapping strides");
  }
  return shlo_reshape(b, shlo_transpose(b, v, order), base->ndim, base->dims);
}
