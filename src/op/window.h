/* What the families conv, pool, pad, resample and linalg share: work on one axis, tables baked into the program, patches. */
#ifndef TTC_OP_WINDOW_H
#define TTC_OP_WINDOW_H

#include "op/op.h"

/* Fill dims (room for TTC_MAX_NDIM) with x's sizes and return its rank. */
int ttc__dims(shlo *b, ttc_val x, int64_t *dims);
/* x[.., start : start + (n-1)·stride + 1 : stride, ..] along one axis: n elements. */
ttc_val ttc__take_strided(shlo *b, ttc_val x, int axis, int64_t start, int64_t n, int64_t stride);
/* Pad one axis; lo and hi may be negative. */
ttc_val ttc__pad_axis(shlo *b, ttc_val x, int axis, ttc_val value, int64_t lo, int64_t hi, int64_t interior);
/* v[n] along `axis` of an array shaped like x in rank: dims 1 elsewhere, so that it broadcasts against x. */
ttc_val ttc__along(shlo *b, ttc_val v, int axis, int ndim);
/* Real numbers baked into the program, exactly, in f32 or f64. */
ttc_val ttc__real_table(shlo *b, ttc_dtype d, int64_t n, const double *v);
/* Split one axis of size p·q in two. */
ttc_val ttc__split_axis(shlo *b, ttc_val x, int axis, int64_t p, int64_t q);
/* Merge axes axis .. axis+n-1 into one. */
ttc_val ttc__merge_axes(shlo *b, ttc_val x, int axis, int n);

/* Linear map along one axis with few non-zeros a row: out[i] = sum_t weight[i,t] · x[index[i,t]]. Row-major tables of n x ntap; an
 * unused tap has weight 0 and any index in range. weight NULL: ntap 1, a plain choice. */
typedef struct ttc__taps {
  int64_t n, ntap;
  int64_t *index;
  double *weight;
} ttc__taps;
ttc_val ttc__apply_taps(shlo *b, ttc_val x, int axis, const ttc__taps *t);
/* The transposed map, from n outputs back to nin inputs. False when out of memory. */
bool ttc__transpose_taps(const ttc__taps *t, int64_t nin, ttc__taps *out);
bool ttc__taps_alloc(ttc__taps *t, int64_t n, int64_t ntap);
void ttc__taps_free(ttc__taps *t);

/* A window over up to three spatial axes. */
typedef struct ttc__window {
  int nd;
  int64_t size[3], stride[3], lo[3], dilation[3];
  int64_t in[3], out[3]; /* extents before and after */
} ttc__window;
int64_t ttc__window_taps(const ttc__window *w);
/* What the last window reaches beyond the input (negative: what it leaves over). */
int64_t ttc__window_hi(const ttc__window *w, int d);
/* Windows that neither overlap nor leave gaps: patches are then a reshape. */
bool ttc__window_tiles(const ttc__window *w, int d);
/* Move axis `from` to place `to`. */
ttc_val ttc__move_axis(shlo *b, ttc_val x, int from, int to);
/* x with spatial axes first .. first+nd-1 -> patches with the taps (one axis a dimension) put before `at`, the spatial axes
 * becoming outputs. Outside is zero. at <= first. */
ttc_val ttc__patches(shlo *b, ttc_val x, int first, int at, const ttc__window *w);
/* The transpose: adds every tap to the place it came from. Taps at at..at+nd-1, spatial axes at first+nd... */
ttc_val ttc__unpatch(shlo *b, ttc_val p, int first, int at, const ttc__window *w);

#endif
