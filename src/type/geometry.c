/* How a strided view is found to be a box of a reshaped base.
 *
 * 1. The view's moving dims (size > 1, stride != 0) are sorted slowest first, and neighbours that a reshape joins (stride = size *
 * stride of the next) become one axis: what the view split, or transposed within one block, is one axis here.
 * 2. A list of cuts, strides that nest (each divides the next bigger one, and the biggest divides the number of elements), says how
 *    the base is reshaped: its dims are the ratios of neighbouring cuts. The axes' strides and 1 are the fewest cuts that can do,
 * and a box found with more cuts is also one with these; so if they do not do, nothing does, and the view is a GATHER.
 * 3. The base's own strides are added as further cuts while the view stays a box, since a reshape that only splits dims is cheap
 * and one that changes nothing is free. */
#include "type/geometry.h"

#include <string.h>

/* Cuts in falling order; the last is 1. */
typedef struct cuts {
  int n;
  int64_t stride[2 * TTC_MAX_NDIM + 1];
} cuts;

typedef struct axes {
  int n;
  int64_t size[TTC_MAX_NDIM], stride[TTC_MAX_NDIM];
} axes;

int64_t ttc__nelem(int nd, const int64_t *sizes) {
  int64_t n = 1;
  bool overflow = false;
  for (int k = 0; k < nd; k++) {
    if (sizes[k] == 0) {
      return 0; /* also where the other sizes' product overflows */
    }
    overflow |= sizes[k] < 0 || __builtin_mul_overflow(n, sizes[k], &n);
  }
  return overflow ? -1 : n;
}

void ttc__dense_strides(int nd, const int64_t *sizes, int64_t *strides) {
  int64_t s = 1;
  for (int k = nd - 1; k >= 0; k--) {
    strides[k] = s;
    /* An empty array's dims may have a product beyond int64; no element is there to be reached with the stride. */
    if (sizes[k] > 1 && __builtin_mul_overflow(s, sizes[k], &s)) {
      s = INT64_MAX;
    }
  }
}

bool ttc__is_dense(int nd, const int64_t *sizes, const int64_t *strides) {
  int64_t n = ttc__nelem(nd, sizes), s = 1;
  for (int k = nd - 1; k >= 0 && n > 0; k--) {
    if (sizes[k] != 1) {
      if (strides[k] != s) {
        return false;
      }
      s *= sizes[k];
    }
  }
  return n >= 0;
}

/* Dims with size > 1 and stride != 0, largest stride first. */
static int sort_moving(int nd, const int64_t *sizes, const int64_t *strides, int *order) {
  int n = 0;
  for (int k = 0; k < nd; k++) {
    if (sizes[k] > 1 && strides[k] != 0) {
      int at = n++;
      for (; at > 0 && strides[order[at - 1]] < strides[k]; at--) {
        order[at] = order[at - 1];
      }
      order[at] = k;
    }
  }
  return n;
}

bool ttc__dense_order(int nd, const int64_t *sizes, const int64_t *strides, int *order) {
  int moving[TTC_MAX_NDIM], n = 0;
  int64_t nelem = ttc__nelem(nd, sizes), s = 1;
  if (nelem > 0) {
    n = sort_moving(nd, sizes, strides, moving);
  }
  for (int k = n - 1; k >= 0; k--) {
    if (strides[moving[k]] != s) {
      return false;
    }
    s *= sizes[moving[k]]; /* at most nelem */
  }
  if (nelem < 0 || (nelem > 0 && s != nelem)) { /* a stride-0 dim is left over */
    return false;
  }
  for (int k = 0, next = 0; k < nd; k++) {
    order[k] = nelem > 0 && sizes[k] > 1 ? moving[next++] : k;
  }
  return true;
}

bool ttc__geom_in_bounds(int64_t nelem, int nd, const int64_t *sizes, const int64_t *strides, int64_t offset) {
  if (ttc__nelem(nd, sizes) == 0) {
    return true;
  }
  int64_t low = offset, high = offset;
  for (int k = 0; k < nd; k++) {
    int64_t reach, *end = strides[k] < 0 ? &low : &high;
    if (sizes[k] < 0 || __builtin_mul_overflow(sizes[k] - 1, strides[k], &reach) || __builtin_add_overflow(*end, reach, end)) {
      return false;
    }
  }
  return low >= 0 && high < nelem;
}

/* Step 1. */
static void join_axes(const int64_t *sizes, const int64_t *strides, int n, const int *order, axes *a) {
  a->n = 0;
  for (int k = 0; k < n; k++) {
    int64_t size = sizes[order[k]], stride = strides[order[k]], span;
    int last = a->n - 1;
    if (last >= 0 && !__builtin_mul_overflow(size, stride, &span) && span == a->stride[last]) {
      a->size[last] *= size; /* distinct places within the base: no overflow */
      a->stride[last] = stride;
    } else {
      a->size[a->n] = size;
      a->stride[a->n++] = stride;
    }
  }
}

/* Add stride s; false if it does not nest with the others in an array of nelem elements. */
static bool add_cut(cuts *c, int64_t nelem, int64_t s) {
  int at = 0;
  while (at < c->n && c->stride[at] > s) {
    at++;
  }
  if (at < c->n && c->stride[at] == s) {
    return true;
  }
  int64_t above = at == 0 ? nelem : c->stride[at - 1];
  if (s <= 0 || above % s != 0 || (at < c->n && s % c->stride[at] != 0)) {
    return false;
  }
  memmove(c->stride + at + 1, c->stride + at, (size_t)(c->n - at) * sizeof *c->stride);
  c->stride[at] = s;
  c->n++;
  return true;
}

/* Fill g's dims, start and size with the box of the base, cut so, that has the axes' elements; false if they are no box. */
static bool place_box(ttc__geom *g, const cuts *c, int64_t nelem, const axes *a, int64_t offset) {
  g->nd = c->n;
  for (int k = 0; k < c->n; k++) {
    g->dims[k] = (k == 0 ? nelem : c->stride[k - 1]) / c->stride[k];
    g->start[k] = offset / c->stride[k];
    g->size[k] = 1;
    offset %= c->stride[k];
  }
  int top = -1; /* the dim of the axis before; this one may use the dims below it */
  for (int j = 0, k = 0; j < a->n; j++) {
    while (c->stride[k] != a->stride[j]) {
      k++;
    }
    int64_t n = a->size[j];
    int up = k;
    while (n > g->dims[up] - g->start[up]) {
      /* Whole rows of this dim, and the rest on the next slower one. */
      if (g->start[up] != 0 || n % g->dims[up] != 0 || up - 1 == top) {
        return false;
      }
      g->size[up] = g->dims[up];
      n /= g->dims[up--];
    }
    g->size[up] = n;
    top = k;
  }
  return true;
}

/* Steps 2 and 3. */
static bool find_box(ttc__geom *g, int base_nd, const int64_t *base_dims, int64_t nelem, const axes *a, int64_t offset) {
  cuts best = {.n = 1, .stride = {1}};
  for (int j = 0; j < a->n; j++) {
    if (!add_cut(&best, nelem, a->stride[j])) {
      return false;
    }
  }
  if (!place_box(g, &best, nelem, a, offset)) {
    return false;
  }
  int64_t stride = 1;
  for (int k = base_nd - 1; k >= 0; k--) {
    cuts more = best;
    if (base_dims[k] > 1 && add_cut(&more, nelem, stride) && place_box(g, &more, nelem, a, offset)) {
      best = more;
    }
    stride *= base_dims[k];
  }
  return place_box(g, &best, nelem, a, offset);
}

/* The box's dims may be the base's but for dims of size 1: then put those in, so that no reshape is needed. */
static void adopt_base(ttc__geom *g, int base_nd, const int64_t *base_dims) {
  if (g->nd > 0 && g->dims[0] == 1) { /* the only dim that can be 1: cuts differ */
    g->nd--;
    memmove(g->dims, g->dims + 1, (size_t)g->nd * sizeof *g->dims);
    memmove(g->start, g->start + 1, (size_t)g->nd * sizeof *g->start);
    memmove(g->size, g->size + 1, (size_t)g->nd * sizeof *g->size);
  }
  int n = 0;
  for (int k = 0; k < base_nd; k++) {
    if (base_dims[k] != 1) {
      if (n == g->nd || g->dims[n] != base_dims[k]) {
        return;
      }
      n++;
    }
  }
  if (n != g->nd) {
    return;
  }
  g->nd = base_nd;
  for (int k = base_nd - 1; k >= 0; k--) {
    bool one = base_dims[k] == 1;
    n -= one ? 0 : 1;
    g->start[k] = one ? 0 : g->start[n];
    g->size[k] = one ? 1 : g->size[n];
    g->dims[k] = base_dims[k];
  }
}

/* Dims sorted slowest first: does each step over everything that the faster ones reach? */
static bool steps_over(const int64_t *sizes, const int64_t *strides, int n, const int *order) {
  int64_t reach = 0;
  for (int k = n - 1; k >= 0; k--) {
    if (strides[order[k]] <= reach) {
      return false;
    }
    reach += (sizes[order[k]] - 1) * strides[order[k]]; /* inside the base */
  }
  return true;
}

static void set_packed(ttc__geom *g, int nd, const int64_t *sizes, int n, const int *order) {
  int rank[TTC_MAX_NDIM], next = 0;
  for (int k = 0; k < nd; k++) {
    rank[k] = -1;
  }
  g->npacked = n;
  for (int k = 0; k < n; k++) {
    g->packed[k] = sizes[order[k]];
    rank[order[k]] = k;
  }
  for (int k = 0; k < nd; k++) {
    if (rank[k] >= 0) {
      g->perm[next] = rank[k];
      g->map[next++] = k;
    }
  }
}

void ttc__geom_make(ttc__geom *g, int base_nd, const int64_t *base_dims, int nd, const int64_t *sizes, const int64_t *strides,
                    int64_t offset) {
  int64_t base_nelem = ttc__nelem(base_nd, base_dims), nelem = ttc__nelem(nd, sizes);
  memset(g, 0, sizeof *g);
  if (nelem == 0) {
    g->kind = TTC__GEOM_EMPTY;
    g->covers = base_nelem == 0;
    return;
  }
  g->kind = TTC__GEOM_GATHER;
  g->overlaps = true;
  if (!ttc__geom_in_bounds(base_nelem, nd, sizes, strides, offset)) {
    return; /* the caller's mistake; with it out of the way nothing below overflows */
  }
  int order[TTC_MAX_NDIM], n = sort_moving(nd, sizes, strides, order);
  if (!steps_over(sizes, strides, n, order)) {
    return;
  }
  int64_t distinct = 1;
  for (int k = 0; k < n; k++) {
    distinct *= sizes[order[k]];
  }
  g->overlaps = distinct != nelem; /* stride-0 dims repeat elements */
  axes a;
  join_axes(sizes, strides, n, order, &a);
  if (!find_box(g, base_nd, base_dims, base_nelem, &a, offset)) {
    g->nd = 0;
    return;
  }
  adopt_base(g, base_nd, base_dims);
  set_packed(g, nd, sizes, n, order);
  g->covers = distinct == base_nelem;
  bool whole = g->covers && nd == base_nd && ttc__is_dense(nd, sizes, strides);
  for (int k = 0; k < nd && whole; k++) {
    whole = sizes[k] == base_dims[k];
  }
  g->kind = whole ? TTC__GEOM_WHOLE : TTC__GEOM_RECIPE;
}
