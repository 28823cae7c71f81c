/* Family "pool": max, average and adaptive pooling in 2 and 3 dimensions (1-d pools arrive as 2-d), and their gradients.
 *
 * Max pooling works axis by axis, the last first, carrying each maximum's flat place in the image: a window is a rectangle, so the
 * row-major first maximum is the first row's first maximum, and the row-major last NaN (which wins on CPU) the last row's last.
 * The gradient asks, for each pixel, the few windows that may have chosen it; select_and_scatter is 20 to 60 times slower on
 * XLA:CPU. */
#include "op/elem.h"
#include "op/window.h"

typedef struct pool {
  ttc__window w;
  int first; /* the first spatial axis */
  int ndim;
} pool;

enum { FEW_WINDOWS = 16 };

/* Window arguments kernel, stride, padding, dilation at kernel.. (dilation < 0: none) between spatial sizes in and out. */
static void read_window(ttc_lower *c, pool *p, int nd, int ndim, const int64_t *in, const int64_t *out, int kernel, int dilation) {
  p->w.nd = nd;
  p->ndim = ndim;
  p->first = ndim - nd;
  bool no_stride = op_list_len(c, kernel + 1) == 0;
  for (int d = 0; d < nd; d++) {
    p->w.in[d] = in[p->first + d];
    p->w.out[d] = out[p->first + d];
    p->w.size[d] = op_ints(c, kernel, d);
    p->w.stride[d] = no_stride ? p->w.size[d] : op_ints(c, kernel + 1, d);
    p->w.lo[d] = op_ints(c, kernel + 2, d);
    p->w.dilation[d] = dilation < 0 ? 1 : op_ints(c, dilation, d);
  }
}

/* Adaptive: output o covers [floor(o·in/out), ceil((o+1)·in/out)). */
static int64_t adaptive_start(int64_t o, int64_t in, int64_t out) {
  return o * in / out;
}
static int64_t adaptive_end(int64_t o, int64_t in, int64_t out) {
  return ((o + 1) * in + out - 1) / out;
}

/* True if every output covers the same number of inputs: then it is an ordinary window, filled in here. */
static bool adaptive_window(pool *p, int nd, int ndim, const int64_t *in, const int64_t *out) {
  bool even = true;
  p->w.nd = nd;
  p->ndim = ndim;
  p->first = ndim - nd;
  for (int d = 0; d < nd; d++) {
    int64_t i = in[p->first + d], o = out[p->first + d];
    p->w.in[d] = i;
    p->w.out[d] = o;
    p->w.lo[d] = 0;
    p->w.dilation[d] = 1;
    even = even && o > 0 && i % o == 0;
    p->w.size[d] = p->w.stride[d] = o > 0 ? i / o : 1;
  }
  return even;
}

/* ------------------------------------------------------------------------------------------------------------ max */

/* Step from one pixel to the next along spatial axis d, in the flat image. */
static int64_t flat_step(const pool *p, int d) {
  int64_t step = 1;
  for (int e = d + 1; e < p->w.nd; e++) {
    step *= p->w.in[e];
  }
  return step;
}

/* sum over d of coordinate[d] · step[d], in s32: coordinates of pixels before axis `done`, of the windows' first pixels from it on.
 */
static ttc_val flat_places(shlo *b, const pool *p, int done, const ttc_val *firsts) {
  ttc_val sum = TTC_POISON;
  for (int d = 0; d < p->w.nd; d++) {
    int64_t n = p->w.in[d];
    ttc_val v = d < done ? shlo_iota(b, TTC_S32, 0, 1, &n) : firsts[d];
    v = shlo_mul(b, v, shlo_const_i(b, TTC_S32, flat_step(p, d), 0, NULL));
    v = ttc__along(b, v, p->first + d, p->ndim);
    sum = d ? shlo_add(b, sum, v) : v;
  }
  return sum;
}

/* First pixel of each window that lies inside, as s32 [out]. */
static ttc_val first_pixels(shlo *b, const ttc__window *w, int d, bool adaptive) {
  int64_t n = w->out[d];
  if (adaptive) { /* floor(o·in/out) */
    ttc_val o = shlo_mul(b, shlo_iota(b, TTC_S64, 0, 1, &n), shlo_const_i(b, TTC_S64, w->in[d], 0, NULL));
    return shlo_convert(b, shlo_div(b, o, shlo_const_i(b, TTC_S64, n > 0 ? n : 1, 0, NULL)), TTC_S32);
  }
  ttc_val start = shlo_mul(b, shlo_iota(b, TTC_S32, 0, 1, &n), shlo_const_i(b, TTC_S32, w->stride[d], 0, NULL));
  start = shlo_sub(b, start, shlo_const_i(b, TTC_S32, w->lo[d], 0, NULL));
  /* Where it is negative: skip ceil(-start / dilation) taps. */
  int64_t dil = w->dilation[d];
  ttc_val skip =
      shlo_div(b, shlo_sub(b, shlo_const_i(b, TTC_S32, dil - 1, 0, NULL), start), shlo_const_i(b, TTC_S32, dil, 0, NULL));
  skip = shlo_2(b, SHLO_MAX, skip, shlo_const_i(b, TTC_S32, 0, 0, NULL));
  return shlo_add(b, start, shlo_mul(b, skip, shlo_const_i(b, TTC_S32, dil, 0, NULL)));
}

/* The k-th pixel of each adaptive window, the last one repeated: s32 [out]. */
static ttc_val adaptive_tap(shlo *b, const ttc__window *w, int d, int64_t k) {
  int64_t n = w->out[d];
  ttc_val in = shlo_const_i(b, TTC_S64, w->in[d], 0, NULL), out = shlo_const_i(b, TTC_S64, n, 0, NULL);
  ttc_val o = shlo_mul(b, shlo_iota(b, TTC_S64, 0, 1, &n), in);
  ttc_val last = shlo_sub(b, shlo_div(b, shlo_add(b, o, shlo_const_i(b, TTC_S64, w->in[d] + n - 1, 0, NULL)), out),
                          shlo_const_i(b, TTC_S64, 1, 0, NULL));
  ttc_val at = shlo_add(b, shlo_div(b, o, out), shlo_const_i(b, TTC_S64, k, 0, NULL));
  return shlo_convert(b, shlo_2(b, SHLO_MIN, at, last), TTC_S32);
}

static int64_t widest(const ttc__window *w, int d) {
  int64_t most = 0;
  for (int64_t o = 0; o < w->out[d]; o++) {
    int64_t n = adaptive_end(o, w->in[d], w->out[d]) - adaptive_start(o, w->in[d], w->out[d]);
    most = n > most ? n : most;
  }
  return most;
}

/* One axis: best value and its flat place. `at` starts as the windows' first pixels: where all is -inf, that is CPU's answer. */
static void max_axis(shlo *b, const pool *p, int d, bool adaptive, ttc_val *val, ttc_val *place, ttc_val at) {
  const ttc__window *w = &p->w;
  int axis = p->first + d;
  ttc_val low = shlo_lowest(b, shlo_dtype(b, *val)), best = low;
  if (!adaptive) {
    int64_t hi = ttc__window_hi(w, d);
    *val = ttc__pad_axis(b, *val, axis, low, w->lo[d], hi, 0);
    *place = ttc__pad_axis(b, *place, axis, shlo_const_i(b, TTC_S32, 0, 0, NULL), w->lo[d], hi, 0);
  }
  int64_t ntap = adaptive ? widest(w, d) : w->size[d];
  for (int64_t k = 0; k < ntap; k++) {
    ttc_val v, i;
    if (adaptive) {
      ttc_val tap = adaptive_tap(b, w, d, k);
      v = shlo_take(b, *val, tap, axis);
      i = shlo_take(b, *place, tap, axis);
    } else {
      v = ttc__take_strided(b, *val, axis, k * w->dilation[d], w->out[d], w->stride[d]);
      i = ttc__take_strided(b, *place, axis, k * w->dilation[d], w->out[d], w->stride[d]);
    }
    ttc_val better = shlo_2(b, SHLO_OR, shlo_compare(b, SHLO_GT, v, best), shlo_is_nan(b, v));
    best = shlo_select(b, better, v, best);
    at = shlo_select(b, better, i, at);
  }
  *val = best;
  *place = at;
}

static void max_pool(shlo *b, ttc_lower *c, const pool *p, bool adaptive) {
  ttc_val firsts[3], val = op_in(c, 0), place;
  int64_t dims[TTC_MAX_NDIM];
  int nd = ttc__dims(b, val, dims);
  for (int d = 0; d < p->w.nd; d++) {
    firsts[d] = first_pixels(b, &p->w, d, adaptive);
  }
  place = shlo_broadcast_to(b, flat_places(b, p, p->w.nd, firsts), nd, dims);
  for (int d = p->w.nd - 1; d >= 0; d--) {
    max_axis(b, p, d, adaptive, &val, &place, flat_places(b, p, d, firsts));
  }
  op_ret(c, 0, val);
  op_ret(c, 1, place);
}

/* aten::max_pool{2,3}d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode) -> values, s64 flat places. */
static void lower_max_pool(shlo *b, ttc_lower *c) {
  pool p;
  read_window(c, &p, op_param(c), op_in_ndim(c, 0), op_in_sizes(c, 0), op_out_sizes(c, 0), 1, 4);
  max_pool(b, c, &p, false);
}

/* aten::adaptive_max_pool{2,3}d(self, output_size) */
static void lower_adaptive_max(shlo *b, ttc_lower *c) {
  pool p;
  bool even = adaptive_window(&p, op_param(c), op_in_ndim(c, 0), op_in_sizes(c, 0), op_out_sizes(c, 0));
  max_pool(b, c, &p, !even);
}

/* ----------------------------------------------------------------------------------------------------- fractional max */

/* v rounded to d after each step, as the CPU's arithmetic in d is. */
static ttc_val rounded(shlo *b, ttc_val v, ttc_dtype d) {
  return d == TTC_F32 || d == TTC_F64 ? v : shlo_barrier(b, shlo_convert(b, shlo_barrier(b, v), d));
}

/* First pixels of a plane's windows along axis d, s32 [planes, out]: (i + u) alpha - u alpha, both cut to integers, with
 * alpha = (in - size) / (out - 1) and u the plane's random number [planes, 1]; the last window touches the edge. */
static ttc_val random_starts(shlo *b, const ttc__window *w, int d, ttc_val u, ttc_dtype type) {
  int64_t n = w->out[d], row[2] = {1, n}, reach = w->in[d] - w->size[d];
  ttc_dtype wide = ttc__dtype_op(type);
  ttc_val last = shlo_const_i(b, TTC_S32, reach, 0, NULL);
  if (n == 1) {
    return shlo_add(b, last, shlo_convert(b, shlo_mul(b, u, shlo_const_like(b, u, 0)), TTC_S32));
  }
  ttc_val i = shlo_iota(b, wide, 1, 2, row);
  ttc_val alpha =
      rounded(b, shlo_div(b, shlo_const_f(b, wide, (double)reach, 0, NULL), shlo_const_f(b, wide, (double)(n - 1), 0, NULL)), type);
  alpha = shlo_convert(b, alpha, wide);
  ttc_val at = shlo_convert(b, rounded(b, shlo_add(b, i, u), type), wide);
  at = shlo_convert(b, rounded(b, shlo_mul(b, at, alpha), type), TTC_S32);
  at = shlo_sub(b, at, shlo_convert(b, rounded(b, shlo_mul(b, u, alpha), type), TTC_S32));
  ttc_val end = shlo_compare(b, SHLO_EQ, shlo_iota(b, TTC_S32, 1, 2, row), shlo_const_i(b, TTC_S32, n - 1, 0, NULL));
  return shlo_select(b, end, last, at);
}

/* x [planes, ..] at places [planes, n] along one axis. */
static ttc_val take_each(shlo *b, ttc_val x, ttc_val at, int axis) {
  shlo_gather_spec g = {.ncollapsed = 1,
                        .collapsed = {axis},
                        .nbatch = 1,
                        .operand_batch = {0},
                        .index_batch = {0},
                        .nindex = 1,
                        .index_map = {axis},
                        .index_vector_axis = 2};
  int64_t dims[TTC_MAX_NDIM];
  int nd = ttc__dims(b, x, dims);
  for (int k = 0; k < nd; k++) {
    g.slice_sizes[k] = k == 0 || k == axis ? 1 : dims[k];
    if (k != 0 && k != axis) {
      g.offset_dims[g.noffset++] = k;
    }
  }
  return shlo_gather(b, x, shlo_unsqueeze(b, at, 2), &g);
}

/* aten::fractional_max_pool{2,3}d(self, kernel_size, output_size, random_samples [N, C, nd]) -> values, s64 flat places. The
 * random numbers of two axes are for the last axis, then the one before it; of three axes in their order. */
static void lower_fractional(shlo *b, ttc_lower *c) {
  pool p = {.w = {.nd = op_param(c)}, .ndim = op_param(c) + 1, .first = 1};
  int nd = p.w.nd, ndim = op_in_ndim(c, 0);
  int64_t dims[4] = {1, 1, 1, 1}, planes = 1;
  for (int k = 0; k < ndim - nd; k++) {
    planes *= op_in_dim(c, 0, k);
  }
  dims[0] = planes;
  for (int d = 0; d < nd; d++) {
    p.w.in[d] = dims[d + 1] = op_in_dim(c, 0, ndim - nd + d);
    p.w.out[d] = op_ints(c, 2, d);
    p.w.size[d] = op_ints(c, 1, d);
  }
  ttc_dtype type = op_in_dtype(c, 0);
  int64_t flat[2] = {op_in_dim(c, 3, 0) * op_in_dim(c, 3, 1), nd};
  ttc_val u = shlo_reshape(b, op_in_as(c, 3, ttc__dtype_op(type)), 2, flat);
  u = ttc__take_strided(b, u, 0, 0, planes, 1); /* there may be numbers for more samples */
  ttc_val val = shlo_reshape(b, op_in(c, 0), nd + 1, dims), starts[3], place = TTC_POISON;
  for (int d = 0; d < nd; d++) {
    starts[d] = random_starts(b, &p.w, d, ttc__take_strided(b, u, 1, nd == 2 ? 1 - d : d, 1, 1), type);
    ttc_val own = shlo_mul(b, shlo_iota(b, TTC_S32, d + 1, nd + 1, dims), shlo_const_i(b, TTC_S32, flat_step(&p, d), 0, NULL));
    place = d ? shlo_add(b, place, own) : own;
  }
  for (int d = nd - 1; d >= 0; d--) {
    ttc_val best = TTC_POISON, at = TTC_POISON;
    for (int64_t k = 0; k < p.w.size[d]; k++) {
      ttc_val tap = shlo_add(b, starts[d], shlo_const_i(b, TTC_S32, k, 0, NULL));
      ttc_val v = take_each(b, val, tap, d + 1), i = take_each(b, place, tap, d + 1);
      ttc_val better = k ? shlo_2(b, SHLO_OR, shlo_compare(b, SHLO_GT, v, best), shlo_is_nan(b, v)) : TTC_POISON;
      best = k ? shlo_select(b, better, v, best) : v;
      at = k ? shlo_select(b, better, i, at) : i;
    }
    val = best;
    place = at;
  }
  op_ret(c, 0, shlo_reshape(b, val, op_out_ndim(c, 0), op_out_sizes(c, 0)));
  op_ret(c, 1, shlo_reshape(b, place, op_out_ndim(c, 1), op_out_sizes(c, 1)));
}

/* --------------------------------------------------------------------------------------------------- max, backward */

/* [B.., spatial..] -> [B, P] */
static ttc_val flatten(shlo *b, const pool *p, ttc_val x) {
  int64_t dims[TTC_MAX_NDIM], two[2] = {1, 1};
  int nd = ttc__dims(b, x, dims);
  for (int k = 0; k < nd; k++) {
    two[k >= p->first] *= dims[k];
  }
  return shlo_reshape(b, x, 2, two);
}

/* Put values [B.., out..] at the flat places of an image of zeros [B.., in..]. */
static ttc_val scatter_places(shlo *b, const pool *p, shlo_scatter_kind kind, ttc_val v, ttc_val places, const int64_t *in) {
  const shlo_scatter_spec spec = {.ninserted = 1,
                                  .inserted = {1},
                                  .nbatch = 1,
                                  .operand_batch = {0},
                                  .index_batch = {0},
                                  .nindex = 1,
                                  .index_map = {1},
                                  .index_vector_axis = 2};
  ttc_val zero = flatten(b, p, shlo_const_i(b, shlo_dtype(b, v), 0, p->ndim, in));
  ttc_val idx = shlo_unsqueeze(b, flatten(b, p, places), 2);
  return shlo_reshape(b, shlo_scatter(b, kind, zero, idx, flatten(b, p, v), &spec), p->ndim, in);
}

/* Of each pixel h along axis d, the value of window floor((h + lo) / stride) - back; `none` where there is no such window. */
static ttc_val window_of_pixel(shlo *b, const pool *p, int d, ttc_val x, int64_t back, ttc_val none) {
  const ttc__window *w = &p->w;
  int axis = p->first + d;
  int64_t n = (w->in[d] - 1 + w->lo[d]) / w->stride[d] + 1, s = w->stride[d], dims[TTC_MAX_NDIM];
  x = ttc__pad_axis(b, x, axis, none, back, n - back - w->out[d], 0);
  if (s > 1) {
    int axes[TTC_MAX_NDIM], nd = ttc__dims(b, x, dims);
    for (int k = 0; k < nd; k++) {
      axes[k] = k <= axis ? k : k + 1;
    }
    for (int k = nd; k > axis + 1; k--) {
      dims[k] = dims[k - 1];
    }
    dims[axis + 1] = s;
    x = ttc__merge_axes(b, shlo_broadcast_in_dim(b, x, nd + 1, dims, axes), axis, 2);
  }
  return ttc__take_strided(b, x, axis, w->lo[d], w->in[d], 1);
}

/* How many windows may cover one pixel, along axis d. */
static int64_t windows_back(const ttc__window *w, int d) {
  int64_t span = w->dilation[d] * (w->size[d] - 1) + 1;
  return (span + w->stride[d] - 1) / w->stride[d];
}

static void max_backward(shlo *b, ttc_lower *c, const pool *p, int indices, bool windows) {
  const int64_t *in = op_in_sizes(c, 1);
  ttc_val g = op_in_as(c, 0, ttc__dtype_op(op_in_dtype(c, 0))), at = op_in_as(c, indices, TTC_S32);
  int64_t count = 1, back[3] = {1, 1, 1};
  for (int d = 0; d < p->w.nd; d++) {
    back[d] = windows ? windows_back(&p->w, d) : 1;
    count *= back[d];
  }
  if (!windows || count > FEW_WINDOWS || p->ndim + 1 > TTC_MAX_NDIM) {
    op_ret(c, 0, scatter_places(b, p, SHLO_SCATTER_ADD, g, at, in));
    return;
  }
  ttc_val own = flat_places(b, p, p->w.nd, NULL), zero = shlo_const_i(b, shlo_dtype(b, g), 0, 0, NULL), sum = TTC_POISON;
  ttc_val none = shlo_const_i(b, TTC_S32, -1, 0, NULL);
  for (int64_t k = 0; k < count; k++) {
    ttc_val gk = g, ik = at;
    int64_t rest = k;
    for (int d = 0; d < p->w.nd; d++) {
      gk = window_of_pixel(b, p, d, gk, rest % back[d], zero);
      ik = window_of_pixel(b, p, d, ik, rest % back[d], none);
      rest /= back[d];
    }
    ttc_val v = shlo_select(b, shlo_compare(b, SHLO_EQ, ik, own), gk, zero);
    sum = k ? shlo_add(b, sum, v) : v;
  }
  op_ret(c, 0, sum);
}

/* aten::max_pool{2,3}d_with_indices_backward(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices) */
static void lower_max_backward(shlo *b, ttc_lower *c) {
  pool p;
  read_window(c, &p, op_param(c), op_in_ndim(c, 1), op_in_sizes(c, 1), op_in_sizes(c, 0), 2, 5);
  max_backward(b, c, &p, 7, true);
}

/* aten::adaptive_max_pool{2,3}d_backward(grad_output, self, indices) */
static void lower_adaptive_max_backward(shlo *b, ttc_lower *c) {
  pool p;
  bool even = adaptive_window(&p, op_param(c), op_in_ndim(c, 1), op_in_sizes(c, 1), op_in_sizes(c, 0));
  max_backward(b, c, &p, 2, even);
}

/* aten::fractional_max_pool{2,3}d_backward(grad_output, self, kernel_size, output_size, indices) */
static void lower_fractional_backward(shlo *b, ttc_lower *c) {
  pool p = {.w = {.nd = op_param(c)}, .ndim = op_in_ndim(c, 1), .first = op_in_ndim(c, 1) - op_param(c)};
  max_backward(b, c, &p, 4, false);
}

static ttc_status infer_fractional_backward(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  if (max < 1 || call->narg < 2 || call->args[1].kind != TTC_ARG_TENSOR) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected a tensor as the second argument");
  }
  ttc_call self = {.narg = 1, .args = call->args + 1};
  return ttc__infer_like_first(&self, max, specs, nout, err);
}

/* aten::max_unpool2d(self, indices, output_size), max_unpool3d(.., stride, padding): values go back where they came from. */
static void lower_unpool(shlo *b, ttc_lower *c) {
  pool p = {.ndim = op_in_ndim(c, 0), .first = op_in_ndim(c, 0) - op_param(c)};
  int64_t plane = 1;
  for (int k = p.first; k < p.ndim; k++) {
    plane *= op_out_sizes(c, 0)[k];
  }
  op_check_indices(c, b, TTC__FAULT_UNPOOL, op_in(c, 1), 0, plane, false);
  op_ret(c, 0, scatter_places(b, &p, SHLO_SCATTER_SET, op_in(c, 0), op_in_as(c, 1, TTC_S32), op_out_sizes(c, 0)));
}

/* -------------------------------------------------------------------------------------------------------- average */

/* How many pixels output o of axis d is divided by. */
static int64_t divisor_at(const ttc__window *w, int d, int64_t o, bool with_pad) {
  int64_t lo = o * w->stride[d] - w->lo[d], hi = lo + w->size[d], end = w->in[d] + (with_pad ? w->lo[d] : 0);
  hi = hi < end ? hi : end;
  lo = lo > 0 || with_pad ? lo : 0;
  return hi - lo;
}

/* v divided by each window's pixel count. */
static ttc_val divide(shlo *b, ttc_lower *c, const pool *p, ttc_val v, int with_pad, int override) {
  ttc_dtype d = shlo_dtype(b, v);
  if (op_given(c, override)) {
    return shlo_div(b, v, shlo_const_i(b, d, op_int(c, override, 1), 0, NULL));
  }
  bool pad = op_bool(c, with_pad);
  ttc_val by = TTC_POISON;
  for (int a = 0; a < p->w.nd; a++) {
    int64_t n = p->w.out[a], first = divisor_at(&p->w, a, 0, pad);
    ttc_val lo = shlo_mul(b, shlo_iota(b, TTC_S64, 0, 1, &n), shlo_const_i(b, TTC_S64, p->w.stride[a], 0, NULL));
    lo = shlo_sub(b, lo, shlo_const_i(b, TTC_S64, p->w.lo[a], 0, NULL));
    ttc_val hi = shlo_add(b, lo, shlo_const_i(b, TTC_S64, p->w.size[a], 0, NULL));
    hi = shlo_2(b, SHLO_MIN, hi, shlo_const_i(b, TTC_S64, p->w.in[a] + (pad ? p->w.lo[a] : 0), 0, NULL));
    lo = pad ? lo : shlo_2(b, SHLO_MAX, lo, shlo_const_i(b, TTC_S64, 0, 0, NULL));
    ttc_val count = ttc__along(b, shlo_convert(b, shlo_sub(b, hi, lo), d), p->first + a, p->ndim);
    bool same = true;
    for (int64_t o = 1; o < n; o++) {
      same = same && divisor_at(&p->w, a, o, pad) == first;
    }
    if (same) {
      count = shlo_const_i(b, d, first, 0, NULL);
    }
    by = a ? shlo_mul(b, by, count) : count;
  }
  return shlo_div(b, v, by);
}

static bool all_tiles(const ttc__window *w) {
  bool all = true;
  for (int d = 0; d < w->nd; d++) {
    all = all && ttc__window_tiles(w, d);
  }
  return all;
}

/* Sums over windows: a reshape and a reduction where they tile, else reduce_window. */
static ttc_val window_sums(shlo *b, const pool *p, ttc_val x) {
  int64_t size[TTC_MAX_NDIM], stride[TTC_MAX_NDIM], lo[TTC_MAX_NDIM], hi[TTC_MAX_NDIM];
  const ttc__window *w = &p->w;
  if (all_tiles(w) && p->ndim + w->nd <= TTC_MAX_NDIM) {
    int axes[3];
    for (int d = w->nd - 1; d >= 0; d--) {
      x = ttc__take_strided(b, x, p->first + d, 0, w->out[d] * w->size[d], 1);
      x = ttc__split_axis(b, x, p->first + d, w->out[d], w->size[d]);
      axes[d] = p->first + 2 * d + 1;
    }
    return shlo_reduce(b, SHLO_SUM, x, w->nd, axes);
  }
  for (int k = 0; k < p->ndim; k++) {
    size[k] = stride[k] = 1;
    lo[k] = hi[k] = 0;
  }
  ttc_val zero = shlo_const_i(b, shlo_dtype(b, x), 0, 0, NULL);
  for (int d = 0; d < w->nd; d++) {
    int k = p->first + d;
    int64_t over = ttc__window_hi(w, d);
    size[k] = w->size[d];
    stride[k] = w->stride[d];
    lo[k] = w->lo[d];
    hi[k] = over > 0 ? over : 0;
    x = ttc__pad_axis(b, x, k, zero, 0, over < 0 ? over : 0, 0);
  }
  return shlo_reduce_window(b, SHLO_SUM, x, size, stride, NULL, lo, hi);
}

/* Every pixel gets the sum over the windows that cover it. */
static ttc_val spread(shlo *b, const pool *p, ttc_val g) {
  const ttc__window *w = &p->w;
  int64_t size[TTC_MAX_NDIM], one[TTC_MAX_NDIM], none[TTC_MAX_NDIM];
  ttc_val zero = shlo_const_i(b, shlo_dtype(b, g), 0, 0, NULL);
  if (all_tiles(w)) {
    for (int d = 0; d < w->nd; d++) {
      pool exact = *p;
      exact.w.in[d] = w->out[d] * w->stride[d];
      g = window_of_pixel(b, &exact, d, g, 0, zero);
      g = ttc__pad_axis(b, g, p->first + d, zero, 0, w->in[d] - exact.w.in[d], 0);
    }
    return g;
  }
  for (int k = 0; k < p->ndim; k++) {
    size[k] = one[k] = 1;
    none[k] = 0;
  }
  for (int d = 0; d < w->nd; d++) {
    int k = p->first + d;
    int64_t lo = w->size[d] - 1 - w->lo[d], span = (w->out[d] - 1) * w->stride[d] + 1;
    g = ttc__pad_axis(b, g, k, zero, lo, w->in[d] + w->size[d] - 1 - lo - span, w->stride[d] - 1);
    size[k] = w->size[d];
  }
  return shlo_reduce_window(b, SHLO_SUM, g, size, one, NULL, none, none);
}

/* aten::avg_pool{2,3}d(self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override) */
static void lower_avg(shlo *b, ttc_lower *c) {
  pool p;
  read_window(c, &p, op_param(c), op_in_ndim(c, 0), op_in_sizes(c, 0), op_out_sizes(c, 0), 1, -1);
  ttc_val x = op_in_as(c, 0, ttc__dtype_op(op_in_dtype(c, 0)));
  op_ret(c, 0, divide(b, c, &p, window_sums(b, &p, x), 5, 6));
}

/* aten::avg_pool{2,3}d_backward(grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override) */
static void lower_avg_backward(shlo *b, ttc_lower *c) {
  pool p;
  read_window(c, &p, op_param(c), op_in_ndim(c, 1), op_in_sizes(c, 1), op_in_sizes(c, 0), 2, -1);
  ttc_val g = op_in_as(c, 0, ttc__dtype_op(op_in_dtype(c, 0)));
  op_ret(c, 0, spread(b, &p, divide(b, c, &p, g, 6, 7)));
}

/* Adaptive windows of uneven width along axis d, as taps of weight 1; counts gets each output's width. */
static bool adaptive_taps(const ttc__window *w, int d, ttc__taps *t) {
  if (!ttc__taps_alloc(t, w->out[d], widest(w, d))) {
    return false;
  }
  for (int64_t o = 0; o < t->n; o++) {
    int64_t lo = adaptive_start(o, w->in[d], w->out[d]), hi = adaptive_end(o, w->in[d], w->out[d]);
    for (int64_t k = 0; k < t->ntap; k++) {
      t->index[o * t->ntap + k] = lo + k < hi ? lo + k : lo;
      t->weight[o * t->ntap + k] = lo + k < hi ? 1 : 0;
    }
  }
  return true;
}

/* x divided along axis d by the widths of its outputs. */
static ttc_val divide_widths(shlo *b, const pool *p, int d, ttc_val x) {
  int64_t n = p->w.out[d];
  ttc__taps t;
  if (!ttc__taps_alloc(&t, n, 1)) {
    return shlo_error(b, TTC_RESOURCE_EXHAUSTED, "out of memory");
  }
  for (int64_t o = 0; o < n; o++) {
    t.weight[o] = (double)(adaptive_end(o, p->w.in[d], n) - adaptive_start(o, p->w.in[d], n));
  }
  ttc_val by = ttc__along(b, ttc__real_table(b, shlo_dtype(b, x), n, t.weight), p->first + d, p->ndim);
  ttc__taps_free(&t);
  return shlo_div(b, x, by);
}

/* aten::_adaptive_avg_pool{2,3}d(self, output_size) */
static void lower_adaptive_avg(shlo *b, ttc_lower *c) {
  pool p;
  bool even = adaptive_window(&p, op_param(c), op_in_ndim(c, 0), op_in_sizes(c, 0), op_out_sizes(c, 0));
  ttc_val x = op_in_as(c, 0, ttc__dtype_op(op_in_dtype(c, 0)));
  if (even) {
    x = window_sums(b, &p, x);
    op_ret(c, 0, shlo_div(b, x, shlo_const_like(b, x, (double)ttc__window_taps(&p.w))));
    return;
  }
  for (int d = 0; d < p.w.nd; d++) {
    ttc__taps t;
    if (!adaptive_taps(&p.w, d, &t)) {
      shlo_error(b, TTC_RESOURCE_EXHAUSTED, "out of memory");
      return;
    }
    x = divide_widths(b, &p, d, ttc__apply_taps(b, x, p.first + d, &t));
    ttc__taps_free(&t);
  }
  op_ret(c, 0, x);
}

/* aten::_adaptive_avg_pool{2,3}d_backward(grad_output, self) */
static void lower_adaptive_avg_backward(shlo *b, ttc_lower *c) {
  pool p;
  bool even = adaptive_window(&p, op_param(c), op_in_ndim(c, 1), op_in_sizes(c, 1), op_in_sizes(c, 0));
  ttc_val g = op_in_as(c, 0, ttc__dtype_op(op_in_dtype(c, 0)));
  if (even) {
    op_ret(c, 0, spread(b, &p, shlo_div(b, g, shlo_const_like(b, g, (double)ttc__window_taps(&p.w)))));
    return;
  }
  for (int d = 0; d < p.w.nd; d++) {
    ttc__taps t, back;
    if (!adaptive_taps(&p.w, d, &t)) {
      shlo_error(b, TTC_RESOURCE_EXHAUSTED, "out of memory");
      return;
    }
    bool ok = ttc__transpose_taps(&t, p.w.in[d], &back);
    ttc__taps_free(&t);
    if (!ok) {
      shlo_error(b, TTC_RESOURCE_EXHAUSTED, "out of memory");
      return;
    }
    g = ttc__apply_taps(b, divide_widths(b, &p, d, g), p.first + d, &back);
    ttc__taps_free(&back);
  }
  op_ret(c, 0, g);
}

const ttc_op_row ttc__pool_rows[] = {
    {"max_pool2d_with_indices", lower_max_pool, 2, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"max_pool3d_with_indices", lower_max_pool, 3, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"max_pool2d_with_indices_backward", lower_max_backward, 2, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"max_pool3d_with_indices_backward", lower_max_backward, 3, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"adaptive_max_pool2d", lower_adaptive_max, 2, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"adaptive_max_pool3d", lower_adaptive_max, 3, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"adaptive_max_pool2d_backward", lower_adaptive_max_backward, 2, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"adaptive_max_pool3d_backward", lower_adaptive_max_backward, 3, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"fractional_max_pool2d", lower_fractional, 2, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"fractional_max_pool3d", lower_fractional, 3, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"fractional_max_pool2d_backward", lower_fractional_backward, 2, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"fractional_max_pool3d_backward", lower_fractional_backward, 3, TOL_SUM, TTC_OP_NO_META, 0, infer_fractional_backward, NULL, 0,
     PAD_CANNOT},
    {"max_unpool2d", lower_unpool, 2, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"max_unpool3d", lower_unpool, 3, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"avg_pool2d", lower_avg, 2, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"avg_pool3d", lower_avg, 3, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"avg_pool2d_backward", lower_avg_backward, 2, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"avg_pool3d_backward", lower_avg_backward, 3, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"_adaptive_avg_pool2d", lower_adaptive_avg, 2, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"_adaptive_avg_pool3d", lower_adaptive_avg, 3, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"_adaptive_avg_pool2d_backward", lower_adaptive_avg_backward, 2, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"_adaptive_avg_pool3d_backward", lower_adaptive_avg_backward, 3, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
};
TTC_FAMILY(pool)
