/* Geometry by brute force: the recipe is interpreted over a base whose elements are their own flat indices, and must give
 * offset + sum(i_k * stride_k) for every element of random views; and where it gives up, no reshape of the base may do. */
#include <stdlib.h>

#include "check.h"
#include "type/geometry.h"

typedef struct view {
  int nd;
  int64_t sizes[TTC_MAX_NDIM], strides[TTC_MAX_NDIM], offset;
} view;

#define MAX_NELEM 4096

static uint64_t rng_state = 0x2545f4914f6cdd1du;

/* In [0, n). */
static int64_t draw(int64_t n) {
  rng_state ^= rng_state << 13;
  rng_state ^= rng_state >> 7;
  rng_state ^= rng_state << 17;
  return (int64_t)((rng_state >> 11) % (uint64_t)n);
}

static view whole_of(int nd, const int64_t *dims) {
  view v = {.nd = nd};
  memcpy(v.sizes, dims, (size_t)nd * sizeof *dims);
  ttc__dense_strides(nd, dims, v.strides);
  return v;
}

/* Row-major counting; false after the last. */
static bool advance(int nd, const int64_t *sizes, int64_t *at) {
  for (int k = nd - 1; k >= 0; k--) {
    if (++at[k] < sizes[k]) {
      return true;
    }
    at[k] = 0;
  }
  return false;
}

static int64_t dot(int nd, const int64_t *at, const int64_t *strides) {
  int64_t sum = 0;
  for (int k = 0; k < nd; k++) {
    sum += at[k] * strides[k];
  }
  return sum;
}

/* ------------------------------------------------------------------------------------------------- views, as torch's */

static void insert_dim(view *v, int at, int64_t size, int64_t stride) {
  for (int k = v->nd++; k > at; k--) {
    v->sizes[k] = v->sizes[k - 1];
    v->strides[k] = v->strides[k - 1];
  }
  v->sizes[at] = size;
  v->strides[at] = stride;
}

static void remove_dim(view *v, int at) {
  v->nd--;
  for (int k = at; k < v->nd; k++) {
    v->sizes[k] = v->sizes[k + 1];
    v->strides[k] = v->strides[k + 1];
  }
}

static void slice(view *v, int d, int64_t start, int64_t stop, int64_t step) {
  v->offset += start * v->strides[d];
  v->sizes[d] = stop > start ? (stop - start + step - 1) / step : 0;
  v->strides[d] *= step;
}

static void take_index(view *v, int d, int64_t i) {
  v->offset += i * v->strides[d];
  remove_dim(v, d);
}

static void swap_dims(view *v, int a, int b) {
  int64_t size = v->sizes[a], stride = v->strides[a];
  v->sizes[a] = v->sizes[b];
  v->strides[a] = v->strides[b];
  v->sizes[b] = size;
  v->strides[b] = stride;
}

static void split(view *v, int d, int64_t inner) {
  insert_dim(v, d + 1, inner, v->strides[d]);
  v->sizes[d] /= inner;
  v->strides[d] *= inner;
}

static void diagonal(view *v, int a, int b) { /* a < b; the diagonal becomes the last dim */
  int64_t size = v->sizes[a] < v->sizes[b] ? v->sizes[a] : v->sizes[b], stride = v->strides[a] + v->strides[b];
  remove_dim(v, b);
  remove_dim(v, a);
  insert_dim(v, v->nd, size, stride);
}

static void change_shape(view *v) {
  int d = v->nd > 0 ? (int)draw(v->nd) : 0;
  int64_t inner = 1 + draw(4);
  switch (draw(5)) {
    case 0: /* unsqueeze, sometimes with a stride nobody should look at */
      if (v->nd < 7) {
        insert_dim(v, (int)draw(v->nd + 1), 1, draw(3) == 0 ? draw(1000) : 1);
      }
      break;
    case 1: /* expand */
      if (v->nd < 7) {
        insert_dim(v, (int)draw(v->nd + 1), 1 + draw(3), 0);
      }
      break;
    case 2:
      if (v->nd > 0 && v->nd < 7 && v->sizes[d] % inner == 0) {
        split(v, d, inner);
      }
      break;
    case 3: /* merge with the next */
      if (d + 1 < v->nd && v->strides[d] == v->sizes[d + 1] * v->strides[d + 1]) {
        v->sizes[d + 1] *= v->sizes[d];
        remove_dim(v, d);
      }
      break;
    default: /* unfold: windows of `inner` */
      if (v->nd > 0 && v->nd < 7 && v->sizes[d] >= inner) {
        int64_t step = 1 + draw(3), stride = v->strides[d];
        v->sizes[d] = (v->sizes[d] - inner) / step + 1;
        v->strides[d] *= step;
        insert_dim(v, v->nd, inner, stride);
      }
  }
}

static void change_view(view *v, int64_t base_nelem) {
  int d = v->nd > 0 ? (int)draw(v->nd) : 0;
  int64_t op = draw(12);
  if (op == 0 && base_nelem > 0) { /* as_strided */
    v->nd = (int)draw(4);
    for (int k = 0; k < v->nd; k++) {
      v->sizes[k] = 1 + draw(4);
      v->strides[k] = draw(13);
    }
    v->offset = draw(base_nelem);
  } else if (op >= 7 || v->nd == 0) {
    change_shape(v);
  } else if (op == 1 && v->sizes[d] > 0) {
    take_index(v, d, draw(v->sizes[d]));
  } else if (op == 2 && v->nd >= 2) {
    int b = 1 + (int)draw(v->nd - 1);
    diagonal(v, (int)draw(b), b);
  } else if (op <= 4) {
    int64_t start = draw(v->sizes[d] + 1);
    slice(v, d, start, draw(16) == 0 ? start : start + draw(v->sizes[d] - start + 1), 1 + draw(4) / 2);
  } else {
    swap_dims(v, d, (int)draw(v->nd));
  }
}

/* ------------------------------------------------------------------------------------------------------- the checks */

/* The flat indices of the recipe's box, row-major; their number, or -1 if the recipe is malformed. */
static int64_t list_box(const ttc__geom *g, int64_t nelem, int64_t *flat) {
  int64_t strides[TTC__GEOM_MAX], at[TTC__GEOM_MAX] = {0}, n = 0, start = 0;
  if (g->nd < 0 || g->nd > TTC__GEOM_MAX || ttc__nelem(g->nd, g->dims) != nelem) {
    return -1;
  }
  ttc__dense_strides(g->nd, g->dims, strides);
  for (int k = 0; k < g->nd; k++) {
    if (g->start[k] < 0 || g->size[k] < 1 || g->start[k] + g->size[k] > g->dims[k]) {
      return -1;
    }
    start += g->start[k] * strides[k];
  }
  do {
    flat[n++] = start + dot(g->nd, at, strides);
  } while (n < MAX_NELEM && advance(g->nd, g->size, at));
  return n;
}

static bool recipe_reads(const ttc__geom *g, int64_t nelem, const view *v) {
  static int64_t flat[MAX_NELEM];
  int64_t packed_strides[TTC_MAX_NDIM], view_strides[TTC_MAX_NDIM] = {0}, at[TTC_MAX_NDIM] = {0};
  if (list_box(g, nelem, flat) != ttc__nelem(g->npacked, g->packed)) {
    return false;
  }
  ttc__dense_strides(g->npacked, g->packed, packed_strides);
  int used = 0;
  for (int k = 0; k < g->npacked; k++) { /* view dim map[k] walks packed dim perm[k] */
    used |= 1 << g->perm[k];
    if ((k > 0 && g->map[k] <= g->map[k - 1]) || v->sizes[g->map[k]] != g->packed[g->perm[k]]) {
      return false;
    }
    view_strides[g->map[k]] = packed_strides[g->perm[k]];
  }
  if (used != (1 << g->npacked) - 1) {
    return false;
  }
  do {
    if (flat[dot(v->nd, at, view_strides)] != v->offset + dot(v->nd, at, v->strides)) {
      return false;
    }
  } while (advance(v->nd, v->sizes, at));
  return true;
}

/* Does the set of n flat indices, rising, make a box of an array of these dims? */
static bool is_box(int nd, const int64_t *dims, int64_t n, const int64_t *flat) {
  int64_t box = 1, inner = 1;
  for (int k = nd - 1; k >= 0; k--) {
    int64_t low = dims[k], high = -1;
    for (int64_t i = 0; i < n; i++) {
      int64_t digit = flat[i] / inner % dims[k];
      low = digit < low ? digit : low;
      high = digit > high ? digit : high;
    }
    box *= high - low + 1;
    inner *= dims[k];
  }
  return box == n;
}

/* Is there any reshape of nelem elements (all ordered factorizations) in which the set is a box? */
static bool any_box(int64_t nelem, int nd, int64_t *dims, int64_t n, const int64_t *flat) {
  if (nelem == 1) {
    return is_box(nd, dims, n, flat);
  }
  for (int64_t f = 2; f <= nelem; f++) {
    dims[nd] = f;
    if (nelem % f == 0 && any_box(nelem / f, nd + 1, dims, n, flat)) {
      return true;
    }
  }
  return false;
}

static int by_value(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* The distinct places of the view, rising; `*repeats` if some place is met twice. */
static int64_t list_places(const view *v, int64_t *flat, bool *repeats) {
  int64_t at[TTC_MAX_NDIM] = {0}, n = 0, distinct = 0;
  do {
    flat[n++] = v->offset + dot(v->nd, at, v->strides);
  } while (n < MAX_NELEM && advance(v->nd, v->sizes, at));
  qsort(flat, (size_t)n, sizeof *flat, by_value);
  for (int64_t i = 0; i < n; i++) {
    if (i == 0 || flat[i] != flat[i - 1]) {
      flat[distinct++] = flat[i];
    }
  }
  *repeats = distinct != n;
  return distinct;
}

static void print_view(const view *v, int base_nd, const int64_t *base) {
  fprintf(stderr, "  base");
  for (int k = 0; k < base_nd; k++) {
    fprintf(stderr, " %lld", (long long)base[k]);
  }
  fprintf(stderr, ", view offset %lld, size:stride", (long long)v->offset);
  for (int k = 0; k < v->nd; k++) {
    fprintf(stderr, " %lld:%lld", (long long)v->sizes[k], (long long)v->strides[k]);
  }
  fprintf(stderr, "\n");
}

static int kinds[4], boxes_sought;

static void check_view(int base_nd, const int64_t *base, const view *v) {
  static int64_t flat[MAX_NELEM];
  int failed = check_failed;
  int64_t nelem = ttc__nelem(base_nd, base);
  ttc__geom g;
  ttc__geom_make(&g, base_nd, base, v->nd, v->sizes, v->strides, v->offset);
  kinds[g.kind]++;
  if (ttc__nelem(v->nd, v->sizes) == 0) {
    CHECK_EQ(g.kind, TTC__GEOM_EMPTY);
    CHECK_EQ(g.covers, nelem == 0);
    return;
  }
  bool repeats;
  int64_t n = list_places(v, flat, &repeats);
  bool recipe = g.kind == TTC__GEOM_RECIPE || g.kind == TTC__GEOM_WHOLE;
  CHECK(recipe || g.kind == TTC__GEOM_GATHER);
  CHECK(recipe ? g.overlaps == repeats && g.covers == (n == nelem) : g.overlaps || !repeats);
  if (recipe) {
    CHECK(recipe_reads(&g, nelem, v));
  } else if (!g.overlaps) {
    CHECK(!g.covers);
  }
  if (g.kind == TTC__GEOM_WHOLE) {
    CHECK(v->nd == base_nd && memcmp(v->sizes, base, (size_t)base_nd * sizeof *base) == 0 && v->offset == 0);
    CHECK(g.nd == base_nd && memcmp(g.dims, base, (size_t)base_nd * sizeof *base) == 0);
  }
  if (!recipe && !g.overlaps && nelem <= 64) { /* whatever is no recipe must have none */
    int64_t dims[8];
    boxes_sought++;
    CHECK(!any_box(nelem, 0, dims, n, flat));
  }
  if (check_failed != failed) {
    print_view(v, base_nd, base);
  }
}

static void test_random(void) {
  for (int round = 0; round < 40000; round++) {
    int64_t base[4];
    int nd = (int)draw(5);
    for (int k = 0; k < nd; k++) {
      base[k] = draw(40) == 0 ? 0 : 1 + draw(6);
    }
    int64_t nelem = ttc__nelem(nd, base);
    view v = whole_of(nd, base);
    for (int64_t steps = draw(6); steps >= 0; steps--) {
      int64_t n = ttc__nelem(v.nd, v.sizes);
      if (n <= MAX_NELEM / 2 && ttc__geom_in_bounds(nelem, v.nd, v.sizes, v.strides, v.offset)) {
        check_view(nd, base, &v);
      } else if (n > 0) {
        break;
      }
      change_view(&v, nelem);
    }
  }
  CHECK(kinds[TTC__GEOM_WHOLE] > 1000 && kinds[TTC__GEOM_RECIPE] > 10000 && kinds[TTC__GEOM_GATHER] > 1000);
  CHECK(kinds[TTC__GEOM_EMPTY] > 1000 && boxes_sought > 500);
}

/* ------------------------------------------------------------------------------------------------------ named cases */

/* A recipe, and with the base's own dims (no reshape before the slice) where `plain`. */
static void check_recipe(const view *v, int base_nd, const int64_t *base, bool plain) {
  ttc__geom g;
  ttc__geom_make(&g, base_nd, base, v->nd, v->sizes, v->strides, v->offset);
  CHECK_EQ(g.kind, TTC__GEOM_RECIPE);
  if (plain && base_nd > 0) {
    CHECK_EQ(g.nd, base_nd);
    CHECK(memcmp(g.dims, base, (size_t)base_nd * sizeof *base) == 0);
  }
  check_view(base_nd, base, v);
}

static void test_plain(void) {
  const int64_t base[4] = {2, 5, 1, 6}; /* 5 and 6: no strides shared by chance */
  for (int d = 0; d < 4; d++) {
    view v = whole_of(4, base);
    slice(&v, d, base[d] / 2, base[d], 1);
    if (base[d] > 1) {
      check_recipe(&v, 4, base, true);
    }
    v = whole_of(4, base);
    take_index(&v, d, base[d] - 1);
    check_recipe(&v, 4, base, true);
    for (int e = 0; e < d; e++) {
      v = whole_of(4, base);
      swap_dims(&v, d, e);
      check_recipe(&v, 4, base, true);
      slice(&v, e, 0, 1, 1);
      check_recipe(&v, 4, base, true);
    }
    v = whole_of(4, base);
    insert_dim(&v, d, 3, 0);
    check_recipe(&v, 4, base, true);
  }
}

static void test_reshaped(void) {
  const int64_t line[1] = {24}, odd[1] = {10}, mat[2] = {4, 6}, qkv[3] = {2, 3, 24};
  view v = whole_of(1, line);
  split(&v, 0, 6);
  check_recipe(&v, 1, line, true); /* one reshape, after the slice */
  swap_dims(&v, 0, 1);
  check_recipe(&v, 1, line, true);
  slice(&v, 0, 1, 3, 1);
  check_recipe(&v, 1, line, false);
  v = whole_of(1, odd); /* x[:8].view(2, 4): 4 does not divide 10 */
  slice(&v, 0, 0, 8, 1);
  split(&v, 0, 4);
  check_recipe(&v, 1, odd, true);
  v = whole_of(2, mat); /* x.view(-1) */
  v.sizes[0] = 24;
  v.strides[0] = 1;
  v.nd = 1;
  check_recipe(&v, 2, mat, true);
  for (int d = 0; d < 2; d++) { /* x[::2], x[:, 1::2] */
    v = whole_of(2, mat);
    slice(&v, d, d, mat[d], 2);
    check_recipe(&v, 2, mat, false);
  }
  for (int part = 0; part < 3;
       part++) { /* attention heads of a fused projection: qkv[..., part].view(B, T, H, D).transpose(1, 2) */
    v = whole_of(3, qkv);
    slice(&v, 2, 8 * part, 8 * part + 8, 1);
    split(&v, 2, 4);
    swap_dims(&v, 1, 2);
    check_recipe(&v, 3, qkv, true);
  }
}

static void test_edges(void) {
  const int64_t one[1] = {1}, square[2] = {3, 3}, big[2] = {INT64_C(1) << 40, INT64_C(1) << 20}, none[2] = {0, 4};
  ttc__geom g;
  ttc__geom_make(&g, 0, NULL, 0, NULL, NULL, 0);
  CHECK(g.kind == TTC__GEOM_WHOLE && g.covers && !g.overlaps);
  view v = {.nd = 2, .sizes = {3, 1}, .strides = {0, 99}};
  check_recipe(&v, 0, NULL, true);
  check_recipe(&v, 1, one, true);
  v = whole_of(2, square);
  diagonal(&v, 0, 1);
  ttc__geom_make(&g, 2, square, v.nd, v.sizes, v.strides, v.offset);
  CHECK(g.kind == TTC__GEOM_GATHER && !g.overlaps && !g.covers);
  v = whole_of(2, big); /* 2^60 elements */
  slice(&v, 0, 5, big[0], 1);
  swap_dims(&v, 0, 1);
  ttc__geom_make(&g, 2, big, v.nd, v.sizes, v.strides, v.offset);
  CHECK(g.kind == TTC__GEOM_RECIPE && g.nd == 2 && g.start[0] == 5 && g.size[0] == big[0] - 5 && g.size[1] == big[1]);
  v = (view){.nd = 2, .sizes = {INT64_MAX, INT64_MAX}, .strides = {INT64_MAX, 1}}; /* out of bounds, and beyond int64 */
  ttc__geom_make(&g, 2, square, v.nd, v.sizes, v.strides, v.offset);
  CHECK(g.kind == TTC__GEOM_GATHER && g.overlaps);
  v = whole_of(2, none);
  check_view(2, none, &v);
}

static void test_helpers(void) {
  const int64_t huge[3] = {INT64_C(1) << 40, INT64_C(1) << 40, 0}, a[3] = {2, 1, 3}, bytes[2] = {4, -1};
  int64_t s[3];
  int order[3];
  CHECK_EQ(ttc__nelem(2, huge), -1);
  CHECK_EQ(ttc__nelem(3, huge), 0);
  CHECK_EQ(ttc__nelem(0, NULL), 1);
  CHECK_EQ(ttc__nelem(2, bytes), -1);
  ttc__dense_strides(3, a, s);
  CHECK(s[0] == 3 && s[1] == 3 && s[2] == 1);
  s[1] = 77; /* of a size-1 dim */
  CHECK(ttc__is_dense(3, a, s));
  CHECK(ttc__dense_order(3, a, s, order) && order[0] == 0 && order[1] == 1 && order[2] == 2);
  CHECK(ttc__dense_order(3, a, (int64_t[]){1, 5, 2}, order) && order[0] == 2 && order[1] == 1 && order[2] == 0);
  CHECK(!ttc__is_dense(3, a, (int64_t[]){1, 5, 2}));
  CHECK(!ttc__dense_order(3, a, (int64_t[]){4, 1, 1}, order)); /* a hole */
  CHECK(!ttc__dense_order(3, a, (int64_t[]){0, 1, 1}, order)); /* a broadcast */
  CHECK(ttc__geom_in_bounds(6, 3, a, s, 0) && !ttc__geom_in_bounds(6, 3, a, s, 1) && !ttc__geom_in_bounds(6, 3, a, s, -1));
  CHECK(ttc__geom_in_bounds(0, 3, huge, s, 5));
  CHECK(ttc__geom_in_bounds(6, 1, (int64_t[]){3}, (int64_t[]){-2}, 4) &&
        !ttc__geom_in_bounds(6, 1, (int64_t[]){3}, (int64_t[]){-2}, 3));
}

int main(void) {
  test_plain();
  test_reshaped();
  test_edges();
  test_helpers();
  memset(kinds, 0, sizeof kinds);
  test_random();
  return CHECK_DONE();
}
