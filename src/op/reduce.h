/* Shared by the families that reduce: reduce, scan, sort, softmax, norm, loss. */
#ifndef TTC_OP_REDUCE_H
#define TTC_OP_REDUCE_H

#include "op/op.h"

/* A row without flags, inference or note; `stat` is its static_args. */
#define TTC_ROW(n, r, p, t) {.name = (n), .rule = (r), .param = (int)(p), .tol = (t)}
#define TTC_ROW_PAD(n, r, p, t, what) {.name = (n), .rule = (r), .param = (int)(p), .tol = (t), .pad = PAD_##what}
#define TTC_ROW_STATIC(n, r, p, t, stat) {.name = (n), .rule = (r), .param = (int)(p), .tol = (t), .static_args = (stat)}
#define TTC_ROW_STATIC_PAD(n, r, p, t, stat, what) \
  {.name = (n), .rule = (r), .param = (int)(p), .tol = (t), .static_args = (stat), .pad = PAD_##what}

/* Axes to reduce, ascending, none twice. */
typedef struct ttc__axes {
  int n;
  int at[TTC_MAX_NDIM];
} ttc__axes;

ttc__axes ttc__axes_all(int ndim);
ttc__axes ttc__axes_one(int axis);
/* From an int-list argument; an absent or empty list means all. */
ttc__axes ttc__axes_list(const ttc_lower *c, int arg, int ndim);
/* From an int argument; absent means all. A 0-d tensor has none. */
ttc__axes ttc__axes_int(const ttc_lower *c, int arg, int ndim);
/* Number of elements that x has along the axes. */
int64_t ttc__axes_count(shlo *b, ttc_val x, const ttc__axes *ax);

/* Reduce and keep the axes with size 1, so that the result broadcasts against x. */
ttc_val ttc__reduce_keep(shlo *b, shlo_combine how, ttc_val x, const ttc__axes *ax);
/* Sum / count, kept; of a float or complex x. */
ttc_val ttc__mean_keep(shlo *b, ttc_val x, const ttc__axes *ax);
/* 16- and 8-bit floats to f32, all else as it is: what PyTorch's CPU kernels accumulate in. */
ttc_val ttc__up(shlo *b, ttc_val x);
/* A value that several loops read: on XLA:CPU a barrier keeps each of them from computing it again. */
ttc_val ttc__once(shlo *b, ttc_val x);
/* Result k, given in any shape of the same number of elements (keepdim or not, 0-d as 1-d). */
void ttc__give(shlo *b, ttc_lower *c, int k, ttc_val v);
/* A scalar for "this many": n as a float of dtype d. */
ttc_val ttc__count(shlo *b, ttc_dtype d, int64_t n);
/* max(x, v) of floats with NaN kept, and the like, against a constant. */
ttc_val ttc__const2(shlo *b, shlo_op2 op, ttc_val x, double v);
/* The place, as s32 (s64 where the axis is longer), of the first element along axis where `hit` is true; axis kept with size 1. */
ttc_val ttc__first_place(shlo *b, ttc_val hit, int axis);
/* Largest (smallest) along an axis and where it is first; NaN beats all. Axis kept. val or idx may be NULL. */
void ttc__extreme(shlo *b, ttc_val x, int axis, bool largest, ttc_val *val, ttc_val *idx);
/* (sum |x|^p)^(1/p) over axes, kept; p = 0 counts, +-inf are the extremes. x real or complex, already in the type to compute in. */
ttc_val ttc__norm_keep(shlo *b, ttc_val x, double p, const ttc__axes *ax);
/* A 0-d value as a vector of one, all else as it is. */
ttc_val ttc__at_least_1d(shlo *b, ttc_val x);

/* Inclusive scan along an axis: y[0] = x[0], y[i] = combine(y[i-1], x[i]). `combine` works elementwise on two arrays (earlier,
 * later) and is associative; neutral is its neutral element, a scalar. */
typedef ttc_val (*ttc__combine)(shlo *b, ttc_val earlier, ttc_val later);
ttc_val ttc__scan(shlo *b, ttc_val x, ttc_val neutral, int axis, ttc__combine combine);
ttc_val ttc__combine_max(shlo *b, ttc_val x, ttc_val y);

#endif
