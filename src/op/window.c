/* One-axis helpers, baked tables, sparse linear maps along an axis and window patches. */
#include "op/window.h"

#include <stdlib.h>
#include <string.h>

int ttc__dims(shlo *b, ttc_val x, int64_t *dims) {
  const shlo_type *t = shlo_typeof(b, x);
  int nd = t->ndim < TTC_MAX_NDIM ? t->ndim : TTC_MAX_NDIM;
  for (int k = 0; k < nd; k++) {
    dims[k] = t->dims[k];
  }
  return nd;
}

ttc_val ttc__take_strided(shlo *b, ttc_val x, int axis, int64_t start, int64_t n, int64_t stride) {
  int64_t lo[TTC_MAX_NDIM], hi[TTC_MAX_NDIM], step[TTC_MAX_NDIM];
  int nd = ttc__dims(b, x, hi);
  if (axis >= nd) {
    return TTC_POISON;
  }
  if (start == 0 && n == hi[axis] && stride == 1) {
    return x;
  }
  for (int k = 0; k < nd; k++) {
    lo[k] = 0;
    step[k] = 1;
  }
  lo[axis] = start;
  hi[axis] = n > 0 ? start + (n - 1) * stride + 1 : start;
  step[axis] = stride;
  return shlo_slice(b, x, lo, hi, step);
}

ttc_val ttc__pad_axis(shlo *b, ttc_val x, int axis, ttc_val value, int64_t lo, int64_t hi, int64_t interior) {
  int64_t l[TTC_MAX_NDIM] = {0}, h[TTC_MAX_NDIM] = {0}, i[TTC_MAX_NDIM] = {0};
  if (lo == 0 && hi == 0 && interior == 0) {
    return x;
  }
  l[axis] = lo;
  h[axis] = hi;
  i[axis] = interior;
  return shlo_pad(b, x, value, l, h, i);
}

ttc_val ttc__along(shlo *b, ttc_val v, int axis, int ndim) {
  int64_t dims[TTC_MAX_NDIM];
  for (int k = 0; k < ndim; k++) {
    dims[k] = 1;
  }
  dims[axis] = shlo_dim(b, v, 0);
  return shlo_reshape(b, v, ndim, dims);
}

/* The builder's tables are of integers: write the bit patterns and bitcast. */
ttc_val ttc__real_table(shlo *b, ttc_dtype d, int64_t n, const double *v) {
  int64_t *bits = malloc((size_t)(n > 0 ? n : 1) * sizeof *bits);
  if (!bits) {
    return shlo_error(b, TTC_RESOURCE_EXHAUSTED, "out of memory for a table of %lld numbers", (long long)n);
  }
  for (int64_t k = 0; k < n; k++) {
    if (d == TTC_F64) {
      memcpy(&bits[k], &v[k], sizeof v[k]);
    } else {
      float f = (float)v[k];
      int32_t i;
      memcpy(&i, &f, sizeof f);
      bits[k] = i;
    }
  }
  ttc_val t = shlo_bitcast(b, shlo_const_table(b, d == TTC_F64 ? TTC_S64 : TTC_S32, n, bits), d == TTC_F64 ? TTC_F64 : TTC_F32);
  free(bits);
  return t;
}

ttc_val ttc__split_axis(shlo *b, ttc_val x, int axis, int64_t p, int64_t q) {
  int64_t old[TTC_MAX_NDIM], dims[TTC_MAX_NDIM + 1];
  int nd = ttc__dims(b, x, old);
  for (int k = 0; k < nd; k++) {
    dims[k < axis ? k : k + 1] = old[k];
  }
  dims[axis] = p;
  dims[axis + 1] = q;
  return shlo_reshape(b, x, nd + 1, dims);
}

ttc_val ttc__merge_axes(shlo *b, ttc_val x, int axis, int n) {
  int64_t old[TTC_MAX_NDIM], dims[TTC_MAX_NDIM];
  int nd = ttc__dims(b, x, old), out = 0;
  for (int k = 0; k < nd; k++) {
    if (k > axis && k < axis + n) {
      dims[out - 1] *= old[k];
    } else {
      dims[out++] = old[k];
    }
  }
  return shlo_reshape(b, x, out, dims);
}

/* ---- sparse maps along an axis */

bool ttc__taps_alloc(ttc__taps *t, int64_t n, int64_t ntap) {
  size_t count = (size_t)(n * ntap > 0 ? n * ntap : 1);
  t->n = n;
  t->ntap = ntap;
  t->index = calloc(count, sizeof *t->index);
  t->weight = calloc(count, sizeof *t->weight);
  if (!t->index || !t->weight) {
    ttc__taps_free(t);
    return false;
  }
  return true;
}

void ttc__taps_free(ttc__taps *t) {
  free(t->index);
  free(t->weight);
  t->index = NULL;
  t->weight = NULL;
}

bool ttc__transpose_taps(const ttc__taps *t, int64_t nin, ttc__taps *out) {
  int64_t most = 1, *used = calloc((size_t)(nin > 0 ? nin : 1), sizeof *used);
  if (!used) {
    return false;
  }
  for (int64_t k = 0; k < t->n * t->ntap; k++) {
    if (!t->weight || t->weight[k] != 0) {
      int64_t u = ++used[t->index[k]];
      most = u > most ? u : most;
    }
  }
  bool ok = ttc__taps_alloc(out, nin, most);
  if (ok) {
    memset(used, 0, (size_t)nin * sizeof *used);
    for (int64_t k = 0; k < t->n * t->ntap; k++) {
      if (!t->weight || t->weight[k] != 0) {
        int64_t i = t->index[k], at = i * most + used[i]++;
        out->index[at] = k / t->ntap;
        out->weight[at] = t->weight ? t->weight[k] : 1;
      }
    }
  }
  free(used);
  return ok;
}

/* Beyond this many taps a row a dense matrix is the better form. */
enum { DENSE_TAPS = 24 };

/* The map as an [n, nin] matrix, contracted with x's axis. */
static ttc_val apply_dense(shlo *b, ttc_val x, int axis, const ttc__taps *t, ttc_dtype d) {
  int64_t nin = shlo_dim(b, x, axis);
  double *m = calloc((size_t)(t->n * nin > 0 ? t->n * nin : 1), sizeof *m);
  if (!m) {
    return shlo_error(b, TTC_RESOURCE_EXHAUSTED, "out of memory for a %lld x %lld map", (long long)t->n, (long long)nin);
  }
  for (int64_t k = 0; k < t->n * t->ntap; k++) {
    m[k / t->ntap * nin + t->index[k]] += t->weight[k];
  }
  ttc_val w = shlo_reshape(b, ttc__real_table(b, d, t->n * nin, m), 2, (const int64_t[2]){t->n, nin});
  free(m);
  const int one = 1;
  ttc_val y = shlo_dot(b, x, w, 0, NULL, NULL, 1, &axis, &one, d); /* the new axis is last */
  int perm[TTC_MAX_NDIM], nd = shlo_ndim(b, x);
  for (int k = 0; k < nd; k++) {
    perm[k] = k < axis ? k : k == axis ? nd - 1 : k - 1;
  }
  return shlo_transpose(b, y, perm);
}

/* Where tap k has a weight: bool [n]. */
static ttc_val used_taps(shlo *b, const ttc__taps *t, int64_t k, int64_t *scratch) {
  for (int64_t i = 0; i < t->n; i++) {
    scratch[i] = t->weight[i * t->ntap + k] != 0;
  }
  return shlo_convert(b, shlo_const_table(b, TTC_S32, t->n, scratch), TTC_BOOL);
}

ttc_val ttc__apply_taps(shlo *b, ttc_val x, int axis, const ttc__taps *t) {
  ttc_dtype d = shlo_dtype(b, x);
  int nd = shlo_ndim(b, x);
  if (t->weight && t->ntap > DENSE_TAPS && (d == TTC_F32 || d == TTC_F64)) {
    return apply_dense(b, x, axis, t, d);
  }
  int64_t *idx = malloc((size_t)(t->n > 0 ? t->n : 1) * sizeof *idx);
  double *w = malloc((size_t)(t->n > 0 ? t->n : 1) * sizeof *w);
  ttc_val sum = TTC_POISON;
  for (int64_t k = 0; idx && w && k < t->ntap; k++) {
    bool units = true, gaps = false; /* only 0 and 1; some 0 */
    for (int64_t i = 0; i < t->n; i++) {
      idx[i] = t->index[i * t->ntap + k];
      w[i] = t->weight ? t->weight[i * t->ntap + k] : 1;
      units = units && (w[i] == 0 || w[i] == 1);
      gaps = gaps || w[i] == 0;
    }
    ttc_val v = shlo_take(b, x, shlo_const_table(b, TTC_S32, t->n, idx), axis);
    if (!units) {
      v = shlo_mul(b, v, ttc__along(b, ttc__real_table(b, d, t->n, w), axis, nd));
    }
    if (gaps) { /* not 0 · inf */
      v = shlo_select(b, ttc__along(b, used_taps(b, t, k, idx), axis, nd), v, shlo_const_like(b, v, 0));
    }
    sum = k == 0 ? v : shlo_add(b, sum, v);
  }
  if (!idx || !w) {
    sum = shlo_error(b, TTC_RESOURCE_EXHAUSTED, "out of memory for a table of %lld numbers", (long long)t->n);
  }
  free(idx);
  free(w);
  return sum;
}

/* ---- patches */

int64_t ttc__window_taps(const ttc__window *w) {
  int64_t n = 1;
  for (int d = 0; d < w->nd; d++) {
    n *= w->size[d];
  }
  return n;
}

bool ttc__window_tiles(const ttc__window *w, int d) {
  return w->lo[d] == 0 && w->dilation[d] == 1 && w->stride[d] == w->size[d] && w->out[d] * w->size[d] <= w->in[d];
}

int64_t ttc__window_hi(const ttc__window *w, int d) {
  return (w->out[d] - 1) * w->stride[d] + (w->size[d] - 1) * w->dilation[d] + 1 - w->lo[d] - w->in[d];
}

ttc_val ttc__move_axis(shlo *b, ttc_val x, int from, int to) {
  int perm[TTC_MAX_NDIM], nd = shlo_ndim(b, x), next = 0;
  for (int k = 0; k < nd; k++) {
    if (k == to) {
      perm[k] = from;
      continue;
    }
    next += next == from;
    perm[k] = next++;
  }
  return shlo_transpose(b, x, perm);
}

/* One dimension: axis -> outputs, taps as a new axis at `at`. */
static ttc_val patch_axis(shlo *b, ttc_val x, int axis, int at, const ttc__window *w, int d) {
  int64_t size = w->size[d];
  if (ttc__window_tiles(w, d)) {
    ttc_val v = ttc__take_strided(b, x, axis, 0, w->out[d] * size, 1);
    return ttc__move_axis(b, ttc__split_axis(b, v, axis, w->out[d], size), axis + 1, at);
  }
  ttc_val zero = shlo_const_i(b, shlo_dtype(b, x), 0, 0, NULL);
  ttc_val v = ttc__pad_axis(b, x, axis, zero, w->lo[d], ttc__window_hi(w, d), 0);
  ttc_val *parts = malloc((size_t)size * sizeof *parts);
  if (!parts) {
    return shlo_error(b, TTC_RESOURCE_EXHAUSTED, "out of memory for %lld taps", (long long)size);
  }
  for (int64_t k = 0; k < size; k++) {
    parts[k] = shlo_unsqueeze(b, ttc__take_strided(b, v, axis, k * w->dilation[d], w->out[d], w->stride[d]), at);
  }
  ttc_val p = size == 1 ? parts[0] : shlo_concat(b, (int)size, parts, at);
  free(parts);
  return p;
}

ttc_val ttc__patches(shlo *b, ttc_val x, int first, int at, const ttc__window *w) {
  for (int d = w->nd - 1; d >= 0; d--) { /* each new tap axis pushes the next dimension to the same place */
    x = patch_axis(b, x, first + w->nd - 1, at, w, d);
  }
  return x;
}

static ttc_val unpatch_axis(shlo *b, ttc_val p, int axis, int at, const ttc__window *w, int d) {
  int64_t size = w->size[d], n = w->out[d];
  ttc_val zero = shlo_const_i(b, shlo_dtype(b, p), 0, 0, NULL);
  if (ttc__window_tiles(w, d)) { /* outputs at `axis`, taps at `at` < axis: bring the taps behind and merge */
    ttc_val v = ttc__merge_axes(b, ttc__move_axis(b, p, at, axis), axis - 1, 2);
    return ttc__pad_axis(b, v, axis - 1, zero, 0, w->in[d] - n * size, 0);
  }
  int64_t span = (n - 1) * w->stride[d] + 1;
  ttc_val sum = TTC_POISON;
  for (int64_t k = 0; k < size; k++) {
    ttc_val v = shlo_squeeze(b, ttc__take_strided(b, p, at, k, 1, 1), at);
    int64_t before = k * w->dilation[d] - w->lo[d];
    v = ttc__pad_axis(b, v, axis - 1, zero, before, w->in[d] - before - span, w->stride[d] - 1);
    sum = k == 0 ? v : shlo_add(b, sum, v);
  }
  return sum;
}

ttc_val ttc__unpatch(shlo *b, ttc_val p, int first, int at, const ttc__window *w) {
  for (int d = 0; d < w->nd; d++) { /* undo in the other order; nd - d tap axes are still before the spatial ones */
    p = unpatch_axis(b, p, first + w->nd, at, w, d);
  }
  return p;
}
