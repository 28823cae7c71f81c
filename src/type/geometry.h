/* "This strided view of that base is a slice of a reshape, transposed and broadcast."
 *
 * A base is a dense row-major array `base_dims`. A view is (sizes, strides, offset) in elements of the same dtype. The recipe says
 * how a program reads the view with the ops XLA likes, and, run backwards, how it writes it:
 *
 *   read:  x = reshape(base, dims)               -- only if dims differs from base_dims
 *          x = slice(x, start, start+size)       -- step 1 always
 *          x = reshape(x, packed)                -- packed: the view's non-broadcast dims, in stride order
 *          x = transpose(x, perm)                -- packed dims in view order
 *          x = broadcast_in_dim(x, sizes, map)   -- inserts size-1 and stride-0 dims
 *   write: the inverse with dynamic_update_slice (a view with stride-0 dims of size > 1 cannot be written this way).
 *
 * Where no such recipe exists (odd overlaps, strides that do not nest) kind is GATHER: the flat index of view element (i0, i1, ..)
 * is offset + sum i_k * strides_k, to be emitted as iota arithmetic and one gather or scatter. */
#ifndef TTC_TYPE_GEOMETRY_H
#define TTC_TYPE_GEOMETRY_H

#include "base/error.h"
#include "ttc.h"

#define TTC__GEOM_MAX (3 * TTC_MAX_NDIM)

typedef enum ttc__geom_kind {
  TTC__GEOM_WHOLE, /* the view is the base, same dims: nothing to do */
  TTC__GEOM_RECIPE,
  TTC__GEOM_GATHER,
  TTC__GEOM_EMPTY /* no elements */
} ttc__geom_kind;

typedef struct ttc__geom {
  ttc__geom_kind kind;
  int nd; /* dims/start/size */
  int64_t dims[TTC__GEOM_MAX], start[TTC__GEOM_MAX], size[TTC__GEOM_MAX];
  int npacked;
  int64_t packed[TTC_MAX_NDIM];
  int perm[TTC_MAX_NDIM]; /* transposed dim k is packed dim perm[k] */
  int map[TTC_MAX_NDIM];  /* transposed dim k is view dim map[k] */
  bool covers;            /* a write through it replaces every element of the base */
  bool overlaps;          /* two view elements may share a place */
} ttc__geom;

/* Never fails: falls back to GATHER. The view must lie inside the base (ttc__geom_in_bounds). */
void ttc__geom_make(ttc__geom *g, int base_nd, const int64_t *base_dims, int nd, const int64_t *sizes, const int64_t *strides,
                    int64_t offset);

/* Do all elements of the view lie in [0, nelem)? */
bool ttc__geom_in_bounds(int64_t nelem, int nd, const int64_t *sizes, const int64_t *strides, int64_t offset);

/* Number of elements, or -1 if it overflows int64. */
int64_t ttc__nelem(int nd, const int64_t *sizes);

/* Row-major strides. */
void ttc__dense_strides(int nd, const int64_t *sizes, int64_t *strides);
bool ttc__is_dense(int nd, const int64_t *sizes, const int64_t *strides);

/* If (sizes, strides) is a permutation of a dense array (no holes, no overlap): the physical order. order[k] is the view dim
 * that is the k-th slowest. Size-1 dims keep their relative place. Returns false otherwise. */
bool ttc__dense_order(int nd, const int64_t *sizes, const int64_t *strides, int *order);

#endif
