/* View geometry: whatever the sizes, strides and offset, the recipe reads the very elements that the strides name. */
#include <stdbool.h>
#include <string.h>

#include "fuzz.h"
#include "type/geometry.h"

enum { MAX_NELEM = 4096 };

typedef struct view {
  int base_nd, nd;
  int64_t base_dims[TTC_MAX_NDIM], sizes[TTC_MAX_NDIM], strides[TTC_MAX_NDIM], offset;
  int64_t base_nelem, nelem;
} view;

typedef struct input {
  const uint8_t *data;
  size_t n, at;
} input;

static int take(input *in) {
  return in->at < in->n ? in->data[in->at++] : 0;
}

/* A base of at most MAX_NELEM elements and a view of it. Many inputs start from the dense view and change it by slicing, swapping,
 * stepping and broadcasting, as programs do; the rest have any strides. False: too large. */
static bool decode(input *in, view *v) {
  memset(v, 0, sizeof *v);
  v->base_nd = take(in) % 5;
  for (int i = 0; i < v->base_nd; i++) {
    v->base_dims[i] = take(in) % 7;
  }
  v->base_nelem = ttc__nelem(v->base_nd, v->base_dims);
  int how = take(in);
  if (how % 4 != 0) {
    v->nd = v->base_nd;
    memcpy(v->sizes, v->base_dims, sizeof v->sizes);
    ttc__dense_strides(v->nd, v->sizes, v->strides);
    for (int step = how / 4 % 6; step > 0 && v->nd > 0; step--) {
      int d = take(in) % v->nd, e = take(in) % v->nd, a = take(in);
      int64_t size = v->sizes[d], stride = v->strides[d];
      if (a % 5 == 0) { /* transpose */
        v->sizes[d] = v->sizes[e], v->strides[d] = v->strides[e];
        v->sizes[e] = size, v->strides[e] = stride;
      } else if (a % 5 == 1 && size > 0) { /* slice */
        int64_t start = a / 5 % size;
        v->offset += start * stride;
        v->sizes[d] = 1 + e % (size - start);
      } else if (a % 5 == 2) { /* step */
        v->sizes[d] = (size + 1) / 2, v->strides[d] = 2 * stride;
      } else if (a % 5 == 3 && v->nd < 6) { /* unsqueeze and expand */
        v->sizes[v->nd] = 1 + e, v->strides[v->nd++] = 0;
      } else if (size % 2 == 0 && v->nd < 6) { /* split in two */
        v->sizes[v->nd] = 2, v->strides[v->nd++] = stride;
        v->sizes[d] = size / 2, v->strides[d] = 2 * stride;
      }
    }
  } else {
    v->nd = take(in) % 5;
    v->offset = take(in) % 40;
    for (int i = 0; i < v->nd; i++) {
      v->sizes[i] = take(in) % 6;
      v->strides[i] = take(in) % 20;
    }
  }
  v->nelem = ttc__nelem(v->nd, v->sizes);
  return v->base_nelem <= MAX_NELEM && v->nelem <= MAX_NELEM;
}

/* The multi-index of a row-major flat index. */
static void unravel(int64_t flat, int nd, const int64_t *sizes, int64_t *index) {
  for (int i = nd - 1; i >= 0; i--) {
    index[i] = flat % sizes[i];
    flat /= sizes[i];
  }
}

static int64_t ravel(int nd, const int64_t *sizes, const int64_t *index) {
  int64_t flat = 0;
  for (int i = 0; i < nd; i++) {
    flat = flat * sizes[i] + index[i];
  }
  return flat;
}

/* By the definition: the base element of view element `index`. */
static int64_t place_of(const view *v, const int64_t *index) {
  int64_t place = v->offset;
  for (int i = 0; i < v->nd; i++) {
    place += index[i] * v->strides[i];
  }
  return place;
}

/* The same by the recipe: broadcast, transpose, reshape, slice and reshape, backwards. */
static int64_t recipe_place(const ttc__geom *g, const int64_t *index) {
  int64_t packed[TTC_MAX_NDIM] = {0}, at[TTC__GEOM_MAX] = {0};
  for (int k = 0; k < g->npacked; k++) {
    packed[g->perm[k]] = index[g->map[k]];
  }
  unravel(ravel(g->npacked, g->packed, packed), g->nd, g->size, at);
  for (int i = 0; i < g->nd; i++) {
    at[i] += g->start[i];
  }
  return ravel(g->nd, g->dims, at);
}

/* Are the recipe's ops themselves valid? */
static void check_recipe(const ttc__geom *g, const view *v) {
  MUST(g->nd >= 0 && g->nd <= TTC__GEOM_MAX && g->npacked >= 0 && g->npacked <= TTC_MAX_NDIM);
  MUST(ttc__nelem(g->nd, g->dims) == v->base_nelem);
  for (int i = 0; i < g->nd; i++) {
    MUST(g->start[i] >= 0 && g->size[i] > 0 && g->start[i] + g->size[i] <= g->dims[i]);
  }
  MUST(ttc__nelem(g->npacked, g->packed) == ttc__nelem(g->nd, g->size));
  unsigned seen_packed = 0, seen_view = 0;
  for (int k = 0; k < g->npacked; k++) {
    MUST(g->perm[k] >= 0 && g->perm[k] < g->npacked && g->map[k] >= 0 && g->map[k] < v->nd);
    MUST((seen_packed >> g->perm[k] & 1) == 0 && (seen_view >> g->map[k] & 1) == 0);
    MUST(k == 0 || g->map[k - 1] < g->map[k]); /* broadcast_in_dim does not transpose */
    MUST(g->packed[g->perm[k]] == v->sizes[g->map[k]]);
    seen_packed |= 1u << g->perm[k];
    seen_view |= 1u << g->map[k];
  }
  for (int i = 0; i < v->nd; i++) {
    MUST((seen_view >> i & 1) == 1 || v->sizes[i] == 1 || v->strides[i] == 0);
  }
}

static void check_view(const view *v) {
  ttc__geom g;
  int64_t index[TTC_MAX_NDIM] = {0};
  bool inside = true, overlaps = false;
  static uint8_t hit[MAX_NELEM];
  memset(hit, 0, sizeof hit);
  int64_t nhit = 0;
  for (int64_t i = 0; i < v->nelem; i++) {
    unravel(i, v->nd, v->sizes, index);
    int64_t place = place_of(v, index);
    inside = inside && place >= 0 && place < v->base_nelem;
    if (inside) {
      overlaps = overlaps || hit[place];
      nhit += !hit[place];
      hit[place] = 1;
    }
  }
  if (v->nelem > 0) {
    MUST(ttc__geom_in_bounds(v->base_nelem, v->nd, v->sizes, v->strides, v->offset) == inside);
  }
  if (!inside || (v->nelem == 0 && !ttc__geom_in_bounds(v->base_nelem, v->nd, v->sizes, v->strides, v->offset))) {
    return;
  }
  ttc__geom_make(&g, v->base_nd, v->base_dims, v->nd, v->sizes, v->strides, v->offset);
  MUST((g.kind == TTC__GEOM_EMPTY) == (v->nelem == 0));
  if (g.kind == TTC__GEOM_EMPTY) {
    return;
  }
  MUST(g.overlaps || !overlaps);
  MUST(!g.covers || nhit == v->base_nelem);
  if (g.kind == TTC__GEOM_WHOLE) {
    MUST(v->nd == v->base_nd && memcmp(v->sizes, v->base_dims, sizeof v->sizes) == 0);
  } else if (g.kind == TTC__GEOM_RECIPE) {
    check_recipe(&g, v);
  }
  for (int64_t i = 0; i < v->nelem && g.kind != TTC__GEOM_GATHER; i++) {
    unravel(i, v->nd, v->sizes, index);
    MUST((g.kind == TTC__GEOM_WHOLE ? i : recipe_place(&g, index)) == place_of(v, index));
  }
}

/* A dense order is a permutation in which each stride is the product of the faster sizes. */
static void check_order(const view *v) {
  int order[TTC_MAX_NDIM];
  if (v->nelem <= 0 || !ttc__dense_order(v->nd, v->sizes, v->strides, order)) {
    MUST(v->nelem <= 0 || !ttc__is_dense(v->nd, v->sizes, v->strides));
    return;
  }
  int64_t stride = 1;
  unsigned seen = 0;
  for (int k = v->nd - 1; k >= 0; k--) {
    MUST(order[k] >= 0 && order[k] < v->nd && (seen >> order[k] & 1) == 0);
    seen |= 1u << order[k];
    MUST(v->sizes[order[k]] == 1 || v->strides[order[k]] == stride);
    stride *= v->sizes[order[k]];
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  input in = {.data = data, .n = n};
  view v;
  if (decode(&in, &v)) {
    check_order(&v);
    check_view(&v);
  }
  return 0;
}
