/* Family "resample": upsampling and its gradients, patches (im2col, col2im), shuffles of pixels and channels, and
 * sampling at the points of a grid.
 *
 * Every upsampling is a sparse linear map along each axis: a few (pixel, weight) pairs for each output, worked out here on the host
 * in the precision CPU PyTorch uses. The gradient applies the transposed map. */
#include <math.h>

#include "op/window.h"

typedef enum filter { NEAREST, NEAREST_EXACT, LINEAR, CUBIC, LINEAR_AA, CUBIC_AA, LANCZOS_AA } filter;

/* One axis being resampled. */
typedef struct axis_map {
  filter kind;
  int64_t in, out;
  bool align, wide; /* align_corners; computed in f64 rather than f32 */
  bool has_scale;
  double scale; /* the caller's scale factor */
} axis_map;

/* A value as the scalar type CPU computes in would hold it. */
static double keep(const axis_map *m, double v) {
  return m->wide ? v : (double)(float)v;
}

/* Input pixels an output pixel. */
static double step_of(const axis_map *m) {
  if (m->align) {
    return m->out > 1 ? keep(m, keep(m, (double)(m->in - 1)) / (double)(m->out - 1)) : 0;
  }
  return m->has_scale && m->scale > 0 ? keep(m, 1.0 / m->scale) : keep(m, (double)m->in / (double)m->out);
}

static int64_t clamp_int(int64_t v, int64_t lo, int64_t hi) {
  return v < lo ? lo : v > hi ? hi : v;
}

/* Keys' cubic with parameter a, at distance x. */
static double cubic(double x, double a) {
  x = fabs(x);
  return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double sinc(double x) {
  const double pi = 3.14159265358979323846;
  return x == 0 ? 1 : sin(pi * x) / (pi * x);
}

static double window_weight(filter kind, double x) {
  switch (kind) {
    case LINEAR_AA:
      return fabs(x) < 1 ? 1 - fabs(x) : 0;
    case CUBIC_AA:
      return cubic(x, -0.5);
    default:
      return fabs(x) < 3 ? sinc(x) * sinc(x / 3) : 0;
  }
}

static bool nearest_taps(const axis_map *m, ttc__taps *t) {
  if (!ttc__taps_alloc(t, m->out, 1)) {
    return false;
  }
  double step = step_of(m);
  for (int64_t o = 0; o < m->out; o++) {
    double at = keep(m, step * (double)o);
    if (m->kind == NEAREST_EXACT) {
      at = keep(m, keep(m, step * ((double)o + 0.5)) - 0.5);
      at = keep(m, (at > 0 ? at : 0) + 0.5);
    }
    t->index[o] = clamp_int((int64_t)floor(at), 0, m->in - 1);
    t->weight[o] = 1;
  }
  return true;
}

/* Linear (2 taps) and cubic (4 taps, a = -0.75, clamped to the border). */
static bool smooth_taps(const axis_map *m, ttc__taps *t) {
  int64_t n = m->kind == LINEAR ? 2 : 4;
  if (!ttc__taps_alloc(t, m->out, n)) {
    return false;
  }
  double step = step_of(m);
  for (int64_t o = 0; o < m->out; o++) {
    double at = m->align ? keep(m, step * (double)o) : keep(m, keep(m, step * ((double)o + 0.5)) - 0.5);
    at = m->kind == LINEAR && at < 0 ? 0 : at;
    if (m->in == m->out && m->kind == LINEAR) {
      at = (double)o;
    }
    int64_t low = (int64_t)floor(at), *index = t->index + o * n;
    low = low < m->in - 1 ? low : m->in - 1;
    double part = keep(m, at - (double)low), *weight = t->weight + o * n;
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    for (int64_t k = 0; k < n; k++) {
      int64_t offset = m->kind == LINEAR ? k : k - 1;
      index[k] = clamp_int(low + offset, 0, m->in - 1);
      weight[k] = keep(m, m->kind == CUBIC ? cubic(part - (double)offset, -0.75) : k ? part : 1 - part);
    }
  }
  return true;
}

/* Antialiased: the filter stretched over the pixels that shrink into one. */
static bool aa_taps(const axis_map *m, ttc__taps *t) {
  double step = step_of(m), half = m->kind == LINEAR_AA ? 1 : m->kind == CUBIC_AA ? 2 : 3;
  double support = keep(m, step >= 1 ? half * step : half), inverse = step >= 1 ? keep(m, 1.0 / step) : 1;
  int64_t n = (int64_t)ceil(support) * 2 + 1;
  if (!ttc__taps_alloc(t, m->out, n)) {
    return false;
  }
  for (int64_t o = 0; o < m->out; o++) {
    double center = keep(m, step * ((double)o + 0.5)), total = 0;
    int64_t from = (int64_t)(center - support + 0.5), to = (int64_t)(center + support + 0.5);
    from = from > 0 ? from : 0;
    to = to < m->in ? to : m->in;
    for (int64_t k = 0; k < n; k++) {
      int64_t i = from + k;
      t->index[o * n + k] = clamp_int(i, 0, m->in - 1);
      double w = i < to ? window_weight(m->kind, ((double)i - center + 0.5) * inverse) : 0;
      t->weight[o * n + k] = w;
      total += w;
    }
    for (int64_t k = 0; k < n && total != 0; k++) {
      t->weight[o * n + k] = keep(m, t->weight[o * n + k] / total);
    }
  }
  return true;
}

static bool taps_of(const axis_map *m, ttc__taps *t) {
  switch (m->kind) {
    case NEAREST:
    case NEAREST_EXACT:
      return nearest_taps(m, t);
    case LINEAR:
    case CUBIC:
      return smooth_taps(m, t);
    default:
      return aa_taps(m, t);
  }
}

/* Each pixel repeated `times` along an axis: a whole factor of nearest. 0 if it is not that. */
static int64_t repeats(const axis_map *m, const ttc__taps *t) {
  if (m->kind > NEAREST_EXACT || m->in == 0 || m->out % m->in != 0) {
    return 0;
  }
  int64_t times = m->out / m->in;
  for (int64_t o = 0; o < m->out; o++) {
    if (t->index[o] != o / times) {
      return 0;
    }
  }
  return times;
}

static ttc_val repeat_axis(shlo *b, ttc_val x, int axis, int64_t times) {
  int64_t dims[TTC_MAX_NDIM];
  ttc_val v = shlo_unsqueeze(b, x, axis + 1);
  int nd = ttc__dims(b, v, dims);
  dims[axis + 1] = times;
  return ttc__merge_axes(b, shlo_broadcast_to(b, v, nd, dims), axis, 2);
}

static ttc_val resample_axis(shlo *b, ttc_val x, int axis, const axis_map *m, bool backward) {
  ttc__taps t, back;
  if (!taps_of(m, &t)) {
    return shlo_error(b, TTC_RESOURCE_EXHAUSTED, "out of memory");
  }
  int64_t times = repeats(m, &t), after = axis + 1;
  ttc_val v;
  if (times > 0) {
    int inner = (int)after;
    v = backward ? shlo_reduce(b, SHLO_SUM, ttc__split_axis(b, x, axis, m->in, times), 1, &inner) : repeat_axis(b, x, axis, times);
  } else if (!backward) {
    v = ttc__apply_taps(b, x, axis, &t);
  } else if (ttc__transpose_taps(&t, m->in, &back)) {
    v = ttc__apply_taps(b, x, axis, &back);
    ttc__taps_free(&back);
  } else {
    v = shlo_error(b, TTC_RESOURCE_EXHAUSTED, "out of memory");
  }
  ttc__taps_free(&t);
  return v;
}

/* The type worked in: nearest only moves values, so that it keeps the input's own. */
static ttc_dtype work_dtype(ttc_dtype d, filter kind, bool backward) {
  if (kind <= NEAREST_EXACT && !backward) {
    return d;
  }
  return ttc__is_integral(d) ? TTC_F32 : ttc__dtype_op(d);
}

/* aten::upsample_*(self, output_size, [align_corners,] scales...) and *_backward(grad, output_size, input_size, [align_corners,]
 * scales...). param: filter, plus BACKWARD. */
enum { BACKWARD = 16 };

static void lower_upsample(shlo *b, ttc_lower *c) {
  bool backward = (op_param(c) & BACKWARD) != 0;
  filter kind = (filter)(op_param(c) & ~BACKWARD);
  int nd = op_in_ndim(c, 0), arg = backward ? 3 : 2;
  const int64_t *in = backward ? op_out_sizes(c, 0) : op_in_sizes(c, 0), *out = backward ? op_in_sizes(c, 0) : op_out_sizes(c, 0);
  bool align = kind > NEAREST_EXACT && op_bool(c, arg);
  arg += kind > NEAREST_EXACT;
  ttc_dtype own = op_in_dtype(c, 0), d = work_dtype(own, kind, backward);
  ttc_val x = op_in_as(c, 0, d);
  for (int axis = nd - 1; axis >= 2; axis--) {
    axis_map m = {.kind = kind, .in = in[axis], .out = out[axis], .align = align, .wide = own == TTC_F64};
    if (op_given(c, arg + axis - 2)) {
      m.has_scale = true;
      m.scale = op_static_f(c, arg + axis - 2);
    }
    x = resample_axis(b, x, axis, &m, backward);
  }
  if (ttc__is_integral(own) && d == TTC_F32) { /* u8 images: round, saturate */
    x = shlo_clamp(b, shlo_const_f(b, d, 0, 0, NULL), shlo_1(b, SHLO_ROUND_EVEN, x), shlo_const_f(b, d, 255, 0, NULL));
  }
  op_ret(c, 0, x);
}

/* -------------------------------------------------------------------------------------------- patches and shuffles */

/* kernel_size, dilation, padding, stride at arg.. over the last two axes of an image of sizes `image`. */
static void read_unfold(ttc_lower *c, int arg, int nd, const int64_t *image, ttc__window *w) {
  w->nd = 2;
  for (int d = 0; d < 2; d++) {
    w->size[d] = op_ints(c, arg, d);
    w->dilation[d] = op_ints(c, arg + 1, d);
    w->lo[d] = op_ints(c, arg + 2, d);
    w->stride[d] = op_ints(c, arg + 3, d);
    w->in[d] = image[nd - 2 + d];
    w->out[d] = (w->in[d] + 2 * w->lo[d] - w->dilation[d] * (w->size[d] - 1) - 1) / w->stride[d] + 1;
  }
}

/* aten::im2col(self [N,C,H,W], kernel_size, dilation, padding, stride) -> [N, C·K, L] */
static void lower_im2col(shlo *b, ttc_lower *c) {
  ttc__window w;
  int nd = op_in_ndim(c, 0);
  read_unfold(c, 1, nd, op_in_sizes(c, 0), &w);
  ttc_val p = ttc__patches(b, op_in(c, 0), nd - 2, nd - 2, &w);
  op_ret(c, 0, shlo_reshape(b, p, op_out_ndim(c, 0), op_out_sizes(c, 0)));
}

/* aten::col2im(self [N, C·K, L], output_size, kernel_size, dilation, padding, stride) -> [N,C,H,W] */
static void lower_col2im(shlo *b, ttc_lower *c) {
  ttc__window w;
  int nd = op_out_ndim(c, 0);
  const int64_t *image = op_out_sizes(c, 0);
  read_unfold(c, 2, nd, image, &w);
  int64_t dims[6] = {image[0], nd == 4 ? image[1] : 0};
  for (int d = 0; d < 2; d++) {
    dims[nd - 2 + d] = w.size[d];
    dims[nd + d] = w.out[d];
  }
  ttc_val x = op_in_as(c, 0, ttc__dtype_op(op_in_dtype(c, 0)));
  op_ret(c, 0, ttc__unpatch(b, shlo_reshape(b, x, nd + 2, dims), nd - 2, nd - 2, &w));
}

/* aten::pixel_shuffle(self [..,C·r²,H,W], r) -> [..,C,H·r,W·r]; pixel_unshuffle the other way. */
static void lower_pixel_shuffle(shlo *b, ttc_lower *c) {
  static const int spread[5] = {0, 3, 1, 4, 2}, gather[5] = {0, 2, 4, 1, 3};
  int nd = op_in_ndim(c, 0);
  bool shuffle = op_param(c) != 0;
  int64_t r = op_int(c, 1, 1), rest = 1;
  const int64_t *s = op_in_sizes(c, 0);
  for (int k = 0; k < nd - 3; k++) {
    rest *= s[k];
  }
  rest *= shuffle ? s[nd - 3] / (r * r) : s[nd - 3];
  int64_t h = s[nd - 2], w = s[nd - 1];
  int64_t up[5] = {rest, r, r, h, w}, down[5] = {rest, h / r, r, w / r, r};
  ttc_val v = shlo_transpose(b, shlo_reshape(b, op_in(c, 0), 5, shuffle ? up : down), shuffle ? spread : gather);
  op_ret(c, 0, shlo_reshape(b, v, op_out_ndim(c, 0), op_out_sizes(c, 0)));
}

/* aten::channel_shuffle(self [N,C,..], groups): channel (g, k) goes to (k, g). */
static void lower_channel_shuffle(shlo *b, ttc_lower *c) {
  int64_t groups = op_int(c, 1, 1), ch = op_in_dim(c, 0, 1);
  ttc_val v = ttc__split_axis(b, op_in(c, 0), 1, groups, ch / groups);
  op_ret(c, 0, ttc__merge_axes(b, ttc__move_axis(b, v, 2, 1), 1, 2));
}

/* -------------------------------------------------------------------------------------------------- grid sampling */

enum { BILINEAR_GRID, NEAREST_GRID, BICUBIC_GRID };
enum { ZEROS_OUTSIDE, BORDER_OUTSIDE, REFLECT_OUTSIDE };

typedef struct sampler {
  int nd; /* spatial dimensions: 2 or 3 */
  int mode, outside;
  bool align;
  int64_t n, channels, in[3], points; /* points: outputs an image */
  ttc_dtype d;
} sampler;

/* Coordinates along one dimension, all [N, points]: for tap k, the pixel (s32, inside), its weight and the weight's slope; slope
 * times `gain` is the derivative by the grid's value. Where the tap is outside under ZEROS, its weight and slope are 0. */
typedef struct coordinate {
  int ntap;
  ttc_val pixel[4], weight[4], slope[4], gain;
} coordinate;

static ttc_val scalar(shlo *b, const sampler *s, double v) {
  return shlo_const_f(b, s->d, v, 0, NULL);
}

/* Mirror v into [low, high] (pixel units); gain changes sign with each flip. */
static ttc_val reflect(shlo *b, const sampler *s, ttc_val v, int64_t size, ttc_val *gain) {
  double low = s->align ? 0 : -0.5, high = s->align ? (double)(size - 1) : (double)size - 0.5;
  if (high <= low) {
    *gain = shlo_const_like(b, v, 0);
    return shlo_const_like(b, v, 0);
  }
  ttc_val span = scalar(b, s, high - low), from = shlo_sub(b, v, scalar(b, s, low)), away = shlo_1(b, SHLO_ABS, from);
  ttc_val extra = shlo_2(b, SHLO_REM, away, span), flips = shlo_1(b, SHLO_FLOOR, shlo_div(b, away, span));
  ttc_val odd = shlo_compare(b, SHLO_NE, shlo_2(b, SHLO_REM, flips, scalar(b, s, 2)), scalar(b, s, 0));
  ttc_val back = shlo_select(b, odd, shlo_sub(b, span, extra), extra), one = scalar(b, s, 1), minus = scalar(b, s, -1);
  ttc_val sign =
      shlo_mul(b, shlo_select(b, odd, minus, one), shlo_select(b, shlo_compare(b, SHLO_LT, from, scalar(b, s, 0)), minus, one));
  *gain = shlo_mul(b, *gain, sign);
  return shlo_add(b, back, scalar(b, s, low));
}

/* Into [0, size-1]; on and beyond the ends the gain is 0. */
static ttc_val clip(shlo *b, const sampler *s, ttc_val v, int64_t size, ttc_val *gain) {
  ttc_val lo = scalar(b, s, 0), hi = scalar(b, s, (double)(size - 1));
  ttc_val inside = shlo_2(b, SHLO_AND, shlo_compare(b, SHLO_GT, v, lo), shlo_compare(b, SHLO_LT, v, hi));
  *gain = shlo_select(b, inside, *gain, lo);
  return shlo_clamp(b, lo, v, hi);
}

static ttc_val bring_inside(shlo *b, const sampler *s, ttc_val v, int64_t size, ttc_val *gain) {
  if (s->outside == REFLECT_OUTSIDE) {
    v = reflect(b, s, v, size, gain);
  }
  return s->outside == ZEROS_OUTSIDE ? v : clip(b, s, v, size, gain);
}

/* Tap k at whole coordinate `at`. */
static void set_tap(shlo *b, const sampler *s, coordinate *co, int k, ttc_val at, ttc_val weight, ttc_val slope, int64_t size) {
  ttc_val zero = scalar(b, s, 0), last = scalar(b, s, (double)(size - 1)), unused = shlo_const_like(b, at, 1);
  if (s->mode == BICUBIC_GRID) {
    at = bring_inside(b, s, at, size, &unused);
  }
  ttc_val inside = shlo_2(b, SHLO_AND, shlo_compare(b, SHLO_GE, at, zero), shlo_compare(b, SHLO_LE, at, last));
  co->pixel[k] = shlo_convert(b, shlo_select(b, inside, at, zero), TTC_S32);
  co->weight[k] = shlo_select(b, inside, weight, zero);
  co->slope[k] = shlo_select(b, inside, slope, zero);
}

/* c0 + t(c1 + t(c2 + t·c3)) and its derivative. */
static ttc_val polynomial(shlo *b, const sampler *s, ttc_val t, const double c[4], ttc_val *slope) {
  ttc_val v = scalar(b, s, c[3]), g = scalar(b, s, 3 * c[3]);
  for (int k = 2; k >= 0; k--) {
    v = shlo_add(b, shlo_mul(b, v, t), scalar(b, s, c[k]));
  }
  g = shlo_add(b, shlo_mul(b, g, t), scalar(b, s, 2 * c[2]));
  *slope = shlo_add(b, shlo_mul(b, g, t), scalar(b, s, c[1]));
  return v;
}

/* grid value g in [-1, 1] along an axis of `size` pixels. */
static void find_taps(shlo *b, const sampler *s, ttc_val g, int64_t size, coordinate *co) {
  /* Keys' cubic, a = -3/4, at distances 1+t, t, 1-t, 2-t. */
  static const double keys[4][4] = {{0, -0.75, 1.5, -0.75}, {1, 0, -2.25, 1.25}, {0, 0.75, 1.5, -1.25}, {0, 0, -0.75, 0.75}};
  double half = (s->align ? (double)(size - 1) : (double)size) / 2;
  ttc_val one = scalar(b, s, 1), zero = scalar(b, s, 0);
  ttc_val x = shlo_mul(b, shlo_add(b, g, one), scalar(b, s, half));
  if (!s->align) {
    x = shlo_sub(b, x, scalar(b, s, 0.5));
  }
  co->gain = shlo_const_like(b, x, half);
  if (s->mode == NEAREST_GRID) {
    co->ntap = 1;
    x = bring_inside(b, s, x, size, &co->gain);
    set_tap(b, s, co, 0, shlo_1(b, SHLO_ROUND_EVEN, x), one, zero, size);
    return;
  }
  if (s->mode == BILINEAR_GRID) {
    x = bring_inside(b, s, x, size, &co->gain);
  }
  ttc_val low = shlo_1(b, SHLO_FLOOR, x), t = shlo_sub(b, x, low);
  if (s->mode == BILINEAR_GRID) {
    co->ntap = 2;
    set_tap(b, s, co, 0, low, shlo_sub(b, one, t), scalar(b, s, -1), size);
    set_tap(b, s, co, 1, shlo_add(b, low, one), t, one, size);
    return;
  }
  co->ntap = 4;
  for (int k = 0; k < 4; k++) {
    ttc_val slope, w = polynomial(b, s, t, keys[k], &slope);
    set_tap(b, s, co, k, shlo_add(b, low, scalar(b, s, k - 1)), w, slope, size);
  }
}

/* Reads the arguments; the coordinate of dimension d is the grid's component nd-1-d (x is last but comes first). */
static void setup_sampler(shlo *b, ttc_lower *c, int input, sampler *s, coordinate *co) {
  const int64_t *in = op_in_sizes(c, input), *grid = op_in_sizes(c, input + 1);
  *s = (sampler){.nd = op_in_ndim(c, input) - 2, .mode = (int)op_int(c, input + 2, 0), .outside = (int)op_int(c, input + 3, 0)};
  s->align = op_bool(c, input + 4);
  s->n = in[0];
  s->channels = in[1];
  s->points = 1;
  s->d = ttc__dtype_op(op_in_dtype(c, input));
  for (int d = 0; d < s->nd; d++) {
    s->in[d] = in[2 + d];
    s->points *= grid[1 + d];
  }
  ttc_val g = shlo_reshape(b, op_in_as(c, input + 1, s->d), 3, (const int64_t[3]){s->n, s->points, s->nd});
  for (int d = 0; d < s->nd; d++) {
    find_taps(b, s, shlo_squeeze(b, ttc__take_strided(b, g, 2, s->nd - 1 - d, 1, 1), 2), s->in[d], &co[d]);
  }
}

/* One corner: its flat pixel and, skipping dimension `skip` (whose slope is taken instead), the product of its weights. */
static ttc_val corner(shlo *b, const sampler *s, const coordinate *co, int64_t k, int skip, ttc_val *flat) {
  ttc_val at = TTC_POISON, weight = TTC_POISON;
  for (int d = 0; d < s->nd; d++) {
    int64_t tap = k % co[d].ntap;
    k /= co[d].ntap;
    ttc_val w = d == skip ? co[d].slope[tap] : co[d].weight[tap];
    weight = d ? shlo_mul(b, weight, w) : w;
    at = d ? shlo_add(b, shlo_mul(b, at, shlo_const_i(b, TTC_S32, s->in[d], 0, NULL)), co[d].pixel[tap]) : co[d].pixel[tap];
  }
  *flat = shlo_unsqueeze(b, at, 2);
  return weight;
}

static int64_t corners(const sampler *s, const coordinate *co) {
  int64_t n = 1;
  for (int d = 0; d < s->nd; d++) {
    n *= co[d].ntap;
  }
  return n;
}

/* image [N, C, pixels] at flat [N, points, 1] -> [N, C, points] */
static ttc_val pick(shlo *b, const sampler *s, ttc_val image, ttc_val flat) {
  const shlo_gather_spec g = {.noffset = 1,
                              .offset_dims = {1},
                              .ncollapsed = 1,
                              .collapsed = {2},
                              .nbatch = 1,
                              .operand_batch = {0},
                              .index_batch = {0},
                              .nindex = 1,
                              .index_map = {2},
                              .index_vector_axis = 2,
                              .slice_sizes = {1, s->channels, 1}};
  return shlo_gather(b, image, flat, &g);
}

/* aten::grid_sampler_{2,3}d(input, grid, interpolation_mode, padding_mode, align_corners) */
static void lower_grid_sampler(shlo *b, ttc_lower *c) {
  sampler s;
  coordinate co[3];
  setup_sampler(b, c, 0, &s, co);
  ttc_val image = ttc__merge_axes(b, op_in_as(c, 0, s.d), 2, s.nd), sum = TTC_POISON;
  for (int64_t k = 0; k < corners(&s, co); k++) {
    ttc_val flat, w = corner(b, &s, co, k, -1, &flat);
    ttc_val v = shlo_mul(b, pick(b, &s, image, flat), shlo_unsqueeze(b, w, 1));
    sum = k ? shlo_add(b, sum, v) : v;
  }
  op_ret(c, 0, shlo_reshape(b, sum, op_out_ndim(c, 0), op_out_sizes(c, 0)));
}

/* The image's gradient: each corner's share of g [N, C, points] added at its pixel, in one scatter. */
static ttc_val grad_image(shlo *b, const sampler *s, const coordinate *co, ttc_val g) {
  const shlo_scatter_spec spec = {.nwindow = 1,
                                  .update_window = {1},
                                  .ninserted = 1,
                                  .inserted = {2},
                                  .nbatch = 1,
                                  .operand_batch = {0},
                                  .index_batch = {0},
                                  .nindex = 1,
                                  .index_map = {2},
                                  .index_vector_axis = 2};
  ttc_val at[64], share[64];
  int64_t n = corners(s, co), pixels = 1;
  for (int64_t k = 0; k < n && k < 64; k++) {
    share[k] = shlo_mul(b, g, shlo_unsqueeze(b, corner(b, s, co, k, -1, &at[k]), 1));
  }
  for (int d = 0; d < s->nd; d++) {
    pixels *= s->in[d];
  }
  ttc_val zero = shlo_const_i(b, s->d, 0, 3, (const int64_t[3]){s->n, s->channels, pixels});
  return shlo_scatter(b, SHLO_SCATTER_ADD, zero, shlo_concat(b, (int)n, at, 1), shlo_concat(b, (int)n, share, 2), &spec);
}

/* aten::grid_sampler_{2,3}d_backward(grad_output, input, grid, mode, padding, align_corners, output_mask) */
static void lower_grid_backward(shlo *b, ttc_lower *c) {
  sampler s;
  coordinate co[3];
  setup_sampler(b, c, 1, &s, co);
  ttc_val g = shlo_reshape(b, op_in_as(c, 0, s.d), 3, (const int64_t[3]){s.n, s.channels, s.points});
  if (op_ints(c, 6, 0)) {
    op_ret(c, 0, shlo_reshape(b, grad_image(b, &s, co, g), op_in_ndim(c, 1), op_in_sizes(c, 1)));
  }
  if (!op_ints(c, 6, 1)) {
    return;
  }
  const int channel = 1;
  ttc_val image = ttc__merge_axes(b, op_in_as(c, 1, s.d), 2, s.nd), sums[3] = {TTC_POISON, TTC_POISON, TTC_POISON}, flat;
  for (int64_t k = 0; k < corners(&s, co); k++) {
    (void)corner(b, &s, co, k, -1, &flat);
    ttc_val seen = shlo_reduce(b, SHLO_SUM, shlo_mul(b, g, pick(b, &s, image, flat)), 1, &channel); /* [N, points] */
    for (int d = 0; d < s.nd; d++) {
      ttc_val v = shlo_mul(b, seen, corner(b, &s, co, k, d, &flat));
      sums[d] = k ? shlo_add(b, sums[d], v) : v;
    }
  }
  ttc_val parts[3];
  for (int d = 0; d < s.nd; d++) {
    parts[s.nd - 1 - d] = shlo_unsqueeze(b, shlo_mul(b, sums[d], co[d].gain), 2);
  }
  op_ret(c, 1, shlo_reshape(b, shlo_concat(b, s.nd, parts, 2), op_in_ndim(c, 2), op_in_sizes(c, 2)));
}

/* Scale factors are numbers that decide the program: static from argument `first` on. */
#define SCALES(first) (UINT64_C(7) << (first))
#define NEAR_ROWS(name, kind)                                                                            \
  {name, lower_upsample, kind, TOL_EXACT, 0, SCALES(2), NULL, NULL, 0, PAD_BATCH}, {                     \
    name "_backward", lower_upsample, (kind) | BACKWARD, TOL_SUM, 0, SCALES(3), NULL, NULL, 0, PAD_BATCH \
  }
#define SMOOTH_ROWS(name, kind)                                                                          \
  {name, lower_upsample, kind, TOL_SUM, 0, SCALES(3), NULL, NULL, 0, PAD_BATCH}, {                       \
    name "_backward", lower_upsample, (kind) | BACKWARD, TOL_SUM, 0, SCALES(4), NULL, NULL, 0, PAD_BATCH \
  }

const ttc_op_row ttc__resample_rows[] = {
    NEAR_ROWS("upsample_nearest1d", NEAREST),
    NEAR_ROWS("upsample_nearest2d", NEAREST),
    NEAR_ROWS("upsample_nearest3d", NEAREST),
    NEAR_ROWS("_upsample_nearest_exact1d", NEAREST_EXACT),
    NEAR_ROWS("_upsample_nearest_exact2d", NEAREST_EXACT),
    NEAR_ROWS("_upsample_nearest_exact3d", NEAREST_EXACT),
    SMOOTH_ROWS("upsample_linear1d", LINEAR),
    SMOOTH_ROWS("upsample_bilinear2d", LINEAR),
    SMOOTH_ROWS("upsample_trilinear3d", LINEAR),
    SMOOTH_ROWS("upsample_bicubic2d", CUBIC),
    SMOOTH_ROWS("_upsample_bilinear2d_aa", LINEAR_AA),
    SMOOTH_ROWS("_upsample_bicubic2d_aa", CUBIC_AA),
    {"_upsample_lanczos2d_aa", lower_upsample, LANCZOS_AA, TOL_SUM, 0, SCALES(3), NULL, NULL, 0, PAD_BATCH},
    {"grid_sampler_2d", lower_grid_sampler, 0, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"grid_sampler_3d", lower_grid_sampler, 0, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"grid_sampler_2d_backward", lower_grid_backward, 0, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"grid_sampler_3d_backward", lower_grid_backward, 0, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"im2col", lower_im2col, 0, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"col2im", lower_col2im, 0, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"pixel_shuffle", lower_pixel_shuffle, 1, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"pixel_unshuffle", lower_pixel_shuffle, 0, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"channel_shuffle", lower_channel_shuffle, 0, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_CANNOT},
};
TTC_FAMILY(resample)
