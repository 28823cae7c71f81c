/* What the files of the family "index" share: index.c reads at indices (and holds the rows), scatter.c writes at them, masked.c
 * works with masks and other things whose number depends on data, bag.c is embedding_bag.
 *
 * No index, however wrong, reads or writes outside its tensor: StableHLO's gather clamps and its scatter drops. It is a fault
 * nevertheless, which whoever reads next is told of. Where PyTorch counts negative indices from the end, so do these. */
#ifndef TTC_OP_INDEX_H
#define TTC_OP_INDEX_H

#include "op/elem.h"
#include "op/reduce.h"

/* Integer indices into an axis of n, as s32 or s64; negative ones count from the end if `wrap`. */
ttc_val ttc__indices(shlo *b, ttc_val i, int64_t n, bool wrap);
/* The same of indices that a user gave: one out of range is a fault of this kind. */
ttc_val ttc__user_indices(shlo *b, ttc_lower *c, ttc__fault kind, ttc_val i, int axis, int64_t n, bool wrap);
/* The sizes of v, for builder calls that want an array. */
typedef struct ttc__shape {
  int n;
  int64_t at[3 * TTC_MAX_NDIM];
} ttc__shape;
ttc__shape ttc__shape_of(shlo *b, ttc_val v);
ttc_val ttc__flatten(shlo *b, ttc_val v);
/* v with `axis` (of any size) replaced by `n` axes of the given sizes. */
ttc_val ttc__unfold_axis(shlo *b, ttc_val v, int axis, int n, const int64_t *dims);

/* x[i0, :, i1, ..]: which axes of x are indexed, by what, and where the indices' own axes come in the result. */
typedef struct ttc__places {
  int n; /* indexed axes */
  int axis[TTC_MAX_NDIM];
  int at;           /* first axis of `shape` in the result; the axes of x that are not indexed are around it, in order */
  ttc__shape shape; /* the indices broadcast together */
  ttc_val vector;   /* [shape.., n] */
} ttc__places;
/* From argument `arg` (Tensor?[]) for an x of these sizes. vouched: they are in range. False: refused (masks) or no index at all.
 */
bool ttc__find_places(shlo *b, ttc_lower *c, int arg, const ttc__shape *x, bool vouched, ttc__places *p);

/* v times (number argument i), nothing where the number is 1. */
ttc_val ttc__times(shlo *b, ttc_lower *c, ttc_val v, int i);
/* The last element of a vector as a scalar; 0 of an empty one. */
ttc_val ttc__last(shlo *b, ttc_val v);
/* Inclusive running count of a bool vector, s32 (s64 where longer than that). */
ttc_val ttc__running_count(shlo *b, ttc_val mask);

/* ---- rules */
void ttc__lower_scatter(shlo *b, ttc_lower *c);        /* param: TTC__SCATTER_* */
void ttc__lower_scatter_reduce(shlo *b, ttc_lower *c); /* param: 0 scatter_reduce, 1 index_reduce */
void ttc__lower_index_add(shlo *b, ttc_lower *c);
void ttc__lower_index_copy(shlo *b, ttc_lower *c);
void ttc__lower_index_fill(shlo *b, ttc_lower *c);
void ttc__lower_index_put(shlo *b, ttc_lower *c); /* param: 1 for _unsafe_index_put */
void ttc__lower_put(shlo *b, ttc_lower *c);
void ttc__lower_embedding_backward(shlo *b, ttc_lower *c);
void ttc__lower_embedding_renorm(shlo *b, ttc_lower *c);

void ttc__lower_masked_scatter(shlo *b, ttc_lower *c);
void ttc__lower_masked_scatter_backward(shlo *b, ttc_lower *c);
void ttc__lower_nonzero(shlo *b, ttc_lower *c);
void ttc__lower_nonzero_static(shlo *b, ttc_lower *c);
void ttc__lower_unique(shlo *b, ttc_lower *c);     /* param: 1 sorts first */
void ttc__lower_unique_dim(shlo *b, ttc_lower *c); /* param: 1 sorts first */

void ttc__lower_bag(shlo *b, ttc_lower *c);
void ttc__lower_bag_backward(shlo *b, ttc_lower *c); /* param: 0 _embedding_bag_backward, 1 _embedding_bag_dense_backward */
void ttc__lower_bag_weights_backward(shlo *b, ttc_lower *c);

/* scatter.src and its like take (self, dim, index, src or value[, reduce]). */
enum { TTC__SCATTER_SET, TTC__SCATTER_ADD, TTC__SCATTER_REDUCE };

/* x with x[idx[i, j], j] op= src[i, j] (for axis 0): idx of x's ndim and nowhere longer than x but on `axis`; src at least as idx.
 */
ttc_val ttc__scatter_along(shlo *b, shlo_scatter_kind kind, ttc_val x, ttc_val idx, ttc_val src, int axis);
/* x with x[idx[j], ..] op= rows[j, ..]; idx is a vector, rows has idx's axis at `axis`. */
ttc_val ttc__scatter_rows(shlo *b, shlo_scatter_kind kind, ttc_val x, ttc_val idx, ttc_val rows, int axis);

#endif
