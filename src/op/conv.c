/* Family "conv": convolution and transposed convolution in 1 to 3 spatial dimensions, and their gradients.
 *
 * Everything is said in terms of one underlying convolution from a `big` side [N, C, in..] to a `small` side [N, O, out..] with a
 * kernel [O, C/groups, K..]: forward (big -> small), its transpose (small -> big) and the kernel's gradient. A transposed
 * convolution is the same geometry run the other way, its weight [Cin, Cout/groups, K..] being already the underlying kernel.
 *
 * Two forms of each. The plain one is one stablehlo.convolution, which suits a TPU. On XLA:CPU that is up to 100 times too slow
 * where the output is small or the window larger than its input, and naive for anything but f32: there, patches and one dot.
 * Patches are laid out [C, K.., N, out..] so that the weight is used as it lies and both dots have one long free axis.
 *
 * 16-bit floats: a TPU accumulates in f32 by itself; elsewhere operands are widened first and the result rounded once. */
#include "op/window.h"

typedef struct conv {
  ttc__window w;               /* in: big extents, out: small extents */
  int64_t batch, c, o, groups; /* c: big channels, o: small channels, in all */
  ttc_dtype acc;
} conv;

enum { SMALL_OUTPUT = 64, MANY_TAPS = 128, FEW_CHANNELS = 16, DEPTHWISE_TAPS = 49 };
static const int64_t MANY_PATCHES = INT64_C(1) << 26;

/* ---------------------------------------------------------------------------------------------- the plain forms */

static void spec_axes(shlo_conv_spec *s, const conv *k, int in_b, int in_f, int k_o, int k_i, int out_b, int out_f) {
  *s = (shlo_conv_spec){.nspatial = k->w.nd, .feature_groups = 1, .batch_groups = 1};
  s->in_batch = in_b, s->in_feature = in_f;
  s->k_out = k_o, s->k_in = k_i;
  s->out_batch = out_b, s->out_feature = out_f;
  for (int d = 0; d < k->w.nd; d++) {
    s->in_spatial[d] = s->k_spatial[d] = s->out_spatial[d] = d + 2;
    s->stride[d] = s->lhs_dilation[d] = s->rhs_dilation[d] = 1;
  }
}

static ttc_val plain_forward(shlo *b, const conv *k, ttc_val big, ttc_val w) {
  shlo_conv_spec s;
  spec_axes(&s, k, 0, 1, 0, 1, 0, 1);
  s.feature_groups = k->groups;
  for (int d = 0; d < k->w.nd; d++) {
    s.stride[d] = k->w.stride[d];
    s.rhs_dilation[d] = k->w.dilation[d];
    s.lo[d] = k->w.lo[d];
    s.hi[d] = ttc__window_hi(&k->w, d);
  }
  return shlo_conv(b, big, w, &s);
}

/* Kernel [O, C/g, K..] -> [C, O/g, K..]: the two channel axes change roles inside each group. */
static ttc_val swap_channels(shlo *b, const conv *k, ttc_val w) {
  int perm[TTC_MAX_NDIM] = {0, 2, 1};
  ttc_val v = ttc__split_axis(b, w, 0, k->groups, k->o / k->groups); /* [g, O/g, C/g, K..] */
  for (int d = 0; d < k->w.nd; d++) {
    perm[3 + d] = 3 + d;
  }
  return ttc__merge_axes(b, shlo_transpose(b, v, perm), 0, 2);
}

static ttc_val plain_transpose(shlo *b, const conv *k, ttc_val small, ttc_val w) {
  shlo_conv_spec s;
  bool grouped = k->groups > 1;
  spec_axes(&s, k, 0, 1, grouped ? 0 : 1, grouped ? 1 : 0, 0, 1);
  s.feature_groups = k->groups;
  for (int d = 0; d < k->w.nd; d++) {
    int64_t reach = k->w.dilation[d] * (k->w.size[d] - 1);
    s.lhs_dilation[d] = k->w.stride[d];
    s.rhs_dilation[d] = k->w.dilation[d];
    s.lo[d] = reach - k->w.lo[d];
    s.hi[d] = k->w.in[d] - ((k->w.out[d] - 1) * k->w.stride[d] + 1) - s.lo[d] + reach;
  }
  /* Turned as an operation of its own: XLA:CPU's fast convolution knows no window reversal (100 times slower with it). */
  const int spatial[3] = {2, 3, 4};
  w = shlo_reverse(b, grouped ? swap_channels(b, k, w) : w, k->w.nd, spatial);
  return shlo_conv(b, small, w, &s);
}

/* dW[o, c, t] = sum over n and outputs of small · big: a convolution in which batch and channels change places. */
static ttc_val plain_kernel(shlo *b, const conv *k, ttc_val big, ttc_val small) {
  shlo_conv_spec s;
  spec_axes(&s, k, 1, 0, 1, 0, 1, 0);
  s.batch_groups = k->groups;
  for (int d = 0; d < k->w.nd; d++) {
    s.stride[d] = k->w.dilation[d];
    s.rhs_dilation[d] = k->w.stride[d];
    s.lo[d] = k->w.lo[d];
    s.hi[d] = ttc__window_hi(&k->w, d);
  }
  return shlo_conv(b, big, small, &s);
}

/* ------------------------------------------------------------------------------------------- patches and one dot */

/* Swap batch and channels: [N, C, ..] <-> [C, N, ..]. */
static ttc_val swap_batch(shlo *b, ttc_val x) {
  return ttc__move_axis(b, x, 1, 0);
}

/* big [N, C, in..] -> [C·K, N·out] */
static ttc_val patches(shlo *b, const conv *k, ttc_val big) {
  ttc_val p = ttc__patches(b, swap_batch(b, big), 2, 1, &k->w);
  return ttc__merge_axes(b, ttc__merge_axes(b, p, 1 + k->w.nd, 1 + k->w.nd), 0, 1 + k->w.nd);
}

/* small [N, O, out..] -> [O, N·out], and back */
static ttc_val flat_small(shlo *b, const conv *k, ttc_val small) {
  return ttc__merge_axes(b, swap_batch(b, small), 1, 1 + k->w.nd);
}

static ttc_val flat_kernel(shlo *b, const conv *k, ttc_val w) {
  return ttc__merge_axes(b, w, 1, 1 + k->w.nd);
}

/* x [g·p, q] with y [g·r, t], group by group, contracting axis xa of x's blocks (0 or 1) with ya of y's: [g·(x's other), y's
 * other]. */
static ttc_val dot_axes(shlo *b, const conv *k, ttc_val x, ttc_val y, int xa, int ya) {
  if (k->groups == 1) {
    return shlo_dot(b, x, y, 0, NULL, NULL, 1, &xa, &ya, k->acc);
  }
  const int zero = 0, xc = 1 + xa, yc = 1 + ya;
  x = ttc__split_axis(b, x, 0, k->groups, shlo_dim(b, x, 0) / k->groups);
  y = ttc__split_axis(b, y, 0, k->groups, shlo_dim(b, y, 0) / k->groups);
  return shlo_dot(b, x, y, 1, &zero, &zero, 1, &xc, &yc, k->acc);
}

static ttc_val patch_forward(shlo *b, const conv *k, ttc_val big, ttc_val w) {
  int64_t dims[5] = {k->o, k->batch};
  for (int d = 0; d < k->w.nd; d++) {
    dims[2 + d] = k->w.out[d];
  }
  ttc_val v = dot_axes(b, k, flat_kernel(b, k, w), patches(b, k, big), 1, 0); /* [O, N·out] */
  return swap_batch(b, shlo_reshape(b, v, 2 + k->w.nd, dims));
}

/* The dot's result is [C·K, N·out] or, where the weight is the larger operand, [N·out, C·K]: whichever operand is turned, it is the
 * smaller one. */
static ttc_val patch_transpose(shlo *b, const conv *k, ttc_val small, ttc_val w) {
  int64_t taps = ttc__window_taps(&k->w) * k->c, pixels = k->batch, dims[8];
  int nd = k->w.nd, perm[8];
  for (int d = 0; d < nd; d++) {
    pixels *= k->w.out[d];
  }
  bool turn = k->groups == 1 && taps > pixels;
  int c_at = turn ? 1 + nd : 0, n_at = turn ? 0 : 1 + nd;
  dims[c_at] = k->c;
  dims[n_at] = k->batch;
  for (int d = 0; d < nd; d++) {
    dims[c_at + 1 + d] = k->w.size[d];
    dims[n_at + 1 + d] = k->w.out[d];
  }
  for (int d = 0; d <= nd; d++) {
    perm[d] = c_at + d;
    perm[1 + nd + d] = n_at + d;
  }
  ttc_val x = flat_kernel(b, k, w), y = flat_small(b, k, small);
  ttc_val v = shlo_reshape(b, turn ? dot_axes(b, k, y, x, 0, 0) : dot_axes(b, k, x, y, 0, 0), 2 + 2 * nd, dims);
  return swap_batch(b, ttc__unpatch(b, shlo_transpose(b, v, perm), 2, 1, &k->w));
}

static ttc_val patch_kernel(shlo *b, const conv *k, ttc_val big, ttc_val small) {
  int64_t dims[5] = {k->o, k->c / k->groups};
  for (int d = 0; d < k->w.nd; d++) {
    dims[2 + d] = k->w.size[d];
  }
  ttc_val v = dot_axes(b, k, flat_small(b, k, small), patches(b, k, big), 1, 1); /* [O, C/g·K] */
  return shlo_reshape(b, v, 2 + k->w.nd, dims);
}

/* 1x1 without padding and a long image: one dot an image, nothing moved. */
static bool pointwise(const conv *k) {
  for (int d = 0; d < k->w.nd; d++) {
    if (k->w.size[d] != 1 || k->w.lo[d] != 0) {
      return false;
    }
  }
  return true;
}

/* The pixels a 1x1 window sees: [N, C, P]. */
static ttc_val pixels(shlo *b, const conv *k, ttc_val big) {
  for (int d = 0; d < k->w.nd; d++) {
    big = ttc__take_strided(b, big, 2 + d, 0, k->w.out[d], k->w.stride[d]);
  }
  return ttc__merge_axes(b, big, 2, k->w.nd);
}

/* w [m, c] (or its transpose) times every image [N, c, P] -> [N, m, P]. */
static ttc_val per_image(shlo *b, const conv *k, ttc_val w, int contract, ttc_val x) {
  const int zero = 0, own[2] = {1, 2}, xc = 1, wc = 1 + contract;
  int64_t dims[3] = {k->batch, k->o, k->c};
  ttc_val wide = shlo_broadcast_in_dim(b, w, 3, dims, own);
  return shlo_dot(b, wide, x, 1, &zero, &zero, 1, &wc, &xc, k->acc);
}

static ttc_val point_forward(shlo *b, const conv *k, ttc_val big, ttc_val w) {
  int64_t dims[5] = {k->batch, k->o};
  for (int d = 0; d < k->w.nd; d++) {
    dims[2 + d] = k->w.out[d];
  }
  return shlo_reshape(b, per_image(b, k, flat_kernel(b, k, w), 1, pixels(b, k, big)), 2 + k->w.nd, dims);
}

static ttc_val point_transpose(shlo *b, const conv *k, ttc_val small, ttc_val w) {
  int64_t dims[5] = {k->batch, k->c};
  for (int d = 0; d < k->w.nd; d++) {
    dims[2 + d] = k->w.out[d];
  }
  ttc_val v = per_image(b, k, flat_kernel(b, k, w), 0, ttc__merge_axes(b, small, 2, k->w.nd));
  ttc_val zero = shlo_const_i(b, k->acc, 0, 0, NULL);
  v = shlo_reshape(b, v, 2 + k->w.nd, dims);
  for (int d = 0; d < k->w.nd; d++) {
    int64_t stride = k->w.stride[d];
    v = ttc__pad_axis(b, v, 2 + d, zero, 0, k->w.in[d] - (k->w.out[d] - 1) * stride - 1, stride - 1);
  }
  return v;
}

/* ------------------------------------------------------------------------------------- depthwise, as shifted sums */

/* Tap t of the kernel [C, 1, K..] as [1, C, 1..]; of big, the pixels the tap sees [N, C, out..]. */
static ttc_val tap_of_kernel(shlo *b, const conv *k, ttc_val w, const int64_t *t) {
  int64_t dims[5] = {1, k->c, 1, 1, 1};
  for (int d = 0; d < k->w.nd; d++) {
    w = ttc__take_strided(b, w, 2 + d, t[d], 1, 1);
  }
  return shlo_reshape(b, w, 2 + k->w.nd, dims);
}

static ttc_val tap_of_big(shlo *b, const conv *k, ttc_val padded, const int64_t *t) {
  for (int d = 0; d < k->w.nd; d++) {
    padded = ttc__take_strided(b, padded, 2 + d, t[d] * k->w.dilation[d], k->w.out[d], k->w.stride[d]);
  }
  return padded;
}

static ttc_val pad_big(shlo *b, const conv *k, ttc_val big) {
  ttc_val zero = shlo_const_i(b, k->acc, 0, 0, NULL);
  for (int d = 0; d < k->w.nd; d++) {
    big = ttc__pad_axis(b, big, 2 + d, zero, k->w.lo[d], ttc__window_hi(&k->w, d), 0);
  }
  return big;
}

/* The t-th tap's place in each dimension; false after the last. */
static void tap_place(const conv *k, int64_t tap, int64_t *t) {
  for (int d = k->w.nd - 1; d >= 0; d--) {
    t[d] = tap % k->w.size[d];
    tap /= k->w.size[d];
  }
}

static ttc_val depthwise_forward(shlo *b, const conv *k, ttc_val big, ttc_val w) {
  ttc_val padded = pad_big(b, k, big), sum = TTC_POISON;
  int64_t t[3];
  for (int64_t tap = 0; tap < ttc__window_taps(&k->w); tap++) {
    tap_place(k, tap, t);
    ttc_val v = shlo_mul(b, tap_of_big(b, k, padded, t), tap_of_kernel(b, k, w, t));
    sum = tap ? shlo_add(b, sum, v) : v;
  }
  return sum;
}

static ttc_val depthwise_transpose(shlo *b, const conv *k, ttc_val small, ttc_val w) {
  ttc_val sum = TTC_POISON, zero = shlo_const_i(b, k->acc, 0, 0, NULL);
  int64_t t[3];
  for (int64_t tap = 0; tap < ttc__window_taps(&k->w); tap++) {
    tap_place(k, tap, t);
    ttc_val v = shlo_mul(b, small, tap_of_kernel(b, k, w, t));
    for (int d = 0; d < k->w.nd; d++) {
      int64_t lo = t[d] * k->w.dilation[d] - k->w.lo[d], span = (k->w.out[d] - 1) * k->w.stride[d] + 1;
      v = ttc__pad_axis(b, v, 2 + d, zero, lo, k->w.in[d] - lo - span, k->w.stride[d] - 1);
    }
    sum = tap ? shlo_add(b, sum, v) : v;
  }
  return sum;
}

static ttc_val depthwise_kernel(shlo *b, const conv *k, ttc_val big, ttc_val small) {
  ttc_val parts[DEPTHWISE_TAPS], padded = pad_big(b, k, big);
  const int axes[4] = {0, 2, 3, 4};
  int64_t t[3], n = ttc__window_taps(&k->w), dims[5] = {k->c, 1};
  for (int64_t tap = 0; tap < n; tap++) {
    tap_place(k, tap, t);
    ttc_val v = shlo_reduce(b, SHLO_SUM, shlo_mul(b, tap_of_big(b, k, padded, t), small), 1 + k->w.nd, axes);
    parts[tap] = shlo_unsqueeze(b, v, 1);
  }
  for (int d = 0; d < k->w.nd; d++) {
    dims[2 + d] = k->w.size[d];
  }
  return shlo_reshape(b, n == 1 ? parts[0] : shlo_concat(b, (int)n, parts, 1), 2 + k->w.nd, dims);
}

/* ------------------------------------------------------------------------------------------------------- choosing */

typedef enum form { PLAIN, PATCHES, POINTWISE, DEPTHWISE } form;

static bool tiled(const conv *k) {
  bool all = true;
  for (int d = 0; d < k->w.nd; d++) {
    all = all && ttc__window_tiles(&k->w, d);
  }
  return all;
}

/* kernel_grad: the weight's gradient is asked for. */
static form choose(shlo *b, const conv *k, bool kernel_grad) {
  if (shlo_for_tpu(b)) {
    return PLAIN;
  }
  int64_t outs = 1, taps = ttc__window_taps(&k->w);
  bool wide = false;
  for (int d = 0; d < k->w.nd; d++) {
    outs *= k->w.out[d];
    wide = wide || (k->w.size[d] > 1 && k->w.size[d] > k->w.in[d]);
  }
  if (k->groups > 1 && k->groups == k->c && k->c == k->o && taps <= DEPTHWISE_TAPS) {
    return DEPTHWISE;
  }
  if (k->groups == 1 && pointwise(k)) {
    return outs >= SMALL_OUTPUT && !kernel_grad ? POINTWISE : PATCHES;
  }
  if (taps * k->c * k->batch * outs > MANY_PATCHES || (taps > MANY_TAPS && !tiled(k))) {
    return PLAIN;
  }
  if (k->groups > 1) { /* 1000 times slower as a convolution for the kernel's gradient */
    return PATCHES;
  }
  bool slow_type = k->acc != TTC_F32; /* no fast convolution in XLA:CPU */
  return slow_type || wide || outs < SMALL_OUTPUT || tiled(k) || (kernel_grad && k->c < FEW_CHANNELS) ? PATCHES : PLAIN;
}

static ttc_val zeros(shlo *b, const conv *k, int64_t d0, int64_t d1, const int64_t *spatial) {
  int64_t dims[5] = {d0, d1};
  for (int d = 0; d < k->w.nd; d++) {
    dims[2 + d] = spatial[d];
  }
  return shlo_const_i(b, k->acc, 0, 2 + k->w.nd, dims);
}

/* Nothing to sum: a batch, channel or extent is 0. */
static bool empty(const conv *k) {
  int64_t n = k->batch * k->c * k->o;
  for (int d = 0; d < k->w.nd; d++) {
    n *= k->w.in[d] * k->w.out[d] * k->w.size[d];
  }
  return n == 0;
}

static ttc_val run_forward(shlo *b, const conv *k, ttc_val big, ttc_val w) {
  if (empty(k)) {
    return zeros(b, k, k->batch, k->o, k->w.out);
  }
  switch (choose(b, k, false)) {
    case PATCHES:
      return patch_forward(b, k, big, w);
    case POINTWISE:
      return point_forward(b, k, big, w);
    case DEPTHWISE:
      return depthwise_forward(b, k, big, w);
    default:
      return plain_forward(b, k, big, w);
  }
}

static ttc_val run_transpose(shlo *b, const conv *k, ttc_val small, ttc_val w) {
  if (empty(k)) {
    return zeros(b, k, k->batch, k->c, k->w.in);
  }
  switch (choose(b, k, false)) {
    case PATCHES:
      return patch_transpose(b, k, small, w);
    case POINTWISE:
      return point_transpose(b, k, small, w);
    case DEPTHWISE:
      return depthwise_transpose(b, k, small, w);
    default:
      return plain_transpose(b, k, small, w);
  }
}

static ttc_val run_kernel(shlo *b, const conv *k, ttc_val big, ttc_val small) {
  if (empty(k)) {
    return zeros(b, k, k->o, k->c / k->groups, k->w.size);
  }
  switch (choose(b, k, true)) {
    case PATCHES:
      return patch_kernel(b, k, big, small);
    case DEPTHWISE:
      return depthwise_kernel(b, k, big, small);
    default:
      return plain_kernel(b, k, big, small);
  }
}

/* --------------------------------------------------------------------------------------------------------- the rules */

/* Where a signature keeps things; stride, padding, dilation, transposed, output_padding, groups follow one another. */
typedef struct places {
  int x, w, stride;
} places;

/* x and y: sizes of the convolution's input and output as PyTorch sees them. */
static bool setup(shlo *b, ttc_lower *c, places p, const int64_t *y, conv *k) {
  const int64_t *x = op_in_sizes(c, p.x), *w = op_in_sizes(c, p.w);
  bool transposed = op_bool(c, p.stride + 3);
  k->w.nd = op_in_ndim(c, p.x) - 2;
  if (k->w.nd < 1 || k->w.nd > 3) {
    op_refuse(c, "convolution in %d spatial dimensions is not lowered", k->w.nd);
    return false;
  }
  k->batch = x[0];
  k->groups = op_int(c, p.stride + 5, 1);
  k->o = w[0];
  k->c = w[1] * k->groups;
  for (int d = 0; d < k->w.nd; d++) {
    k->w.size[d] = w[2 + d];
    k->w.stride[d] = op_ints(c, p.stride, d);
    k->w.lo[d] = op_ints(c, p.stride + 1, d);
    k->w.dilation[d] = op_ints(c, p.stride + 2, d);
    k->w.in[d] = transposed ? y[2 + d] : x[2 + d];
    k->w.out[d] = transposed ? x[2 + d] : y[2 + d];
  }
  k->acc = shlo_for_tpu(b) ? op_in_dtype(c, p.x) : ttc__dtype_op(op_in_dtype(c, p.x));
  return true;
}

/* aten::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups) */
static void lower_conv(shlo *b, ttc_lower *c) {
  conv k;
  if (!setup(b, c, (places){0, 1, 3}, op_out_sizes(c, 0), &k)) {
    return;
  }
  ttc_val x = op_in_as(c, 0, k.acc), w = op_in_as(c, 1, k.acc);
  ttc_val v = op_bool(c, 6) ? run_transpose(b, &k, x, w) : run_forward(b, &k, x, w);
  if (op_given(c, 2)) {
    v = shlo_add(b, v, ttc__along(b, op_in_as(c, 2, k.acc), 1, 2 + k.w.nd));
  }
  op_ret(c, 0, v);
}

/* aten::convolution_backward(grad_output, input, weight, [bias_sizes,] stride, .., groups, output_mask); param: place of stride. */
static void lower_conv_backward(shlo *b, ttc_lower *c) {
  int stride = op_param(c), mask = stride + 6;
  conv k;
  if (!setup(b, c, (places){1, 2, stride}, op_in_sizes(c, 0), &k)) {
    return;
  }
  ttc_val g = op_in_as(c, 0, k.acc);
  bool transposed = op_bool(c, stride + 3);
  if (op_ints(c, mask, 0)) {
    ttc_val w = op_in_as(c, 2, k.acc);
    op_ret(c, 0, transposed ? run_forward(b, &k, g, w) : run_transpose(b, &k, g, w));
  }
  if (op_ints(c, mask, 1)) {
    ttc_val x = op_in_as(c, 1, k.acc);
    op_ret(c, 1, transposed ? run_kernel(b, &k, g, x) : run_kernel(b, &k, x, g));
  }
  if (op_ints(c, mask, 2)) {
    const int axes[4] = {0, 2, 3, 4};
    ttc_val wide = shlo_convert(b, g, ttc__dtype_op(shlo_dtype(b, g)));
    op_ret(c, 2, shlo_reduce(b, SHLO_SUM, wide, 1 + k.w.nd, axes));
  }
}

/* ---------------------------------------------------------------------------------------------------------- results */

/* Strides as channels_last (2 spatial dimensions: N H W C, 3: N D H W C) rather than contiguous. */
static bool channels_last(const ttc_tensor *t) {
  static const int order2[4] = {1, 3, 2, 0}, order3[5] = {1, 4, 3, 2, 0};
  const int *order = t->ndim == 4 ? order2 : order3;
  int64_t least = 0;
  if (t->ndim != 4 && t->ndim != 5) {
    return false;
  }
  if (t->strides[1] == 0) {
    return false;
  }
  for (int k = 0; k < t->ndim; k++) {
    int d = order[k];
    if (t->sizes[d] == 0 || t->strides[d] < least || (d == 0 && least == t->strides[1])) {
      return false;
    }
    least = t->strides[d] * (t->sizes[d] > 1 ? t->sizes[d] : 1);
  }
  return true;
}

static void fill_spec(ttc_spec *s, ttc_dtype dtype, int ndim, const int64_t *sizes, bool last) {
  int64_t run = 1;
  *s = (ttc_spec){.dtype = dtype, .ndim = ndim};
  for (int k = 0; k < ndim; k++) {
    s->sizes[k] = sizes[k];
  }
  for (int k = 0; k < ndim; k++) { /* fastest first */
    int d = !last || ndim < 4 ? ndim - 1 - k : k == 0 ? 1 : k == ndim - 1 ? 0 : ndim - k;
    s->strides[d] = run;
    run *= sizes[d] > 1 ? sizes[d] : 1;
  }
}

static int64_t int_at(const ttc_arg *a, int k) {
  return a->kind == TTC_ARG_INTS && a->n ? a->ints[a->n == 1 ? 0 : k] : 0;
}

/* convolution_overrideable's result: PyTorch's formula; channels_last if either operand is. */
static ttc_status infer_conv(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  const ttc_arg *a = call->args;
  if (call->narg < 9 || max < 1 || a[0].kind != TTC_ARG_TENSOR || a[1].kind != TTC_ARG_TENSOR) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "convolution: expected input and weight tensors");
  }
  const ttc_tensor *x = a[0].tensor, *w = a[1].tensor;
  if (x->ndim < 3 || x->ndim > 5 || w->ndim != x->ndim) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "convolution: expected input and weight of 3 to 5 dimensions, got %d and %d",
                    x->ndim, w->ndim);
  }
  if (x->dtype != w->dtype || (a[2].kind == TTC_ARG_TENSOR && a[2].tensor->dtype != x->dtype)) {
    ttc_dtype other = (ttc_dtype)(x->dtype != w->dtype ? w->dtype : a[2].tensor->dtype);
    return TTC_FAIL(err, TTC_FAILED_PRECONDITION, "input of type %s and %s of type %s should be the same",
                    ttc_dtype_name((ttc_dtype)x->dtype), x->dtype != w->dtype ? "weight" : "bias", ttc_dtype_name(other));
  }
  int64_t sizes[5], groups = a[8].i;
  sizes[0] = x->sizes[0];
  sizes[1] = a[6].i ? w->sizes[1] * groups : w->sizes[0];
  for (int d = 2; d < x->ndim; d++) {
    int64_t stride = int_at(&a[3], d - 2), pad = int_at(&a[4], d - 2), reach = int_at(&a[5], d - 2) * (w->sizes[d] - 1);
    if (stride < 1) {
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "convolution: expected positive strides");
    }
    sizes[d] = a[6].i ? (x->sizes[d] - 1) * stride - 2 * pad + reach + int_at(&a[7], d - 2) + 1
                      : (x->sizes[d] + 2 * pad - reach - 1) / stride + 1;
    if (sizes[d] < 0) {
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "convolution: kernel is larger than the padded input");
    }
  }
  fill_spec(&specs[0], (ttc_dtype)x->dtype, x->ndim, sizes, channels_last(x) || channels_last(w));
  *nout = 1;
  return TTC_OK;
}

/* convolution_backward_overrideable: gradients look like what they are gradients of; a masked one has no dtype. */
static ttc_status infer_conv_backward(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  const ttc_arg *a = call->args;
  if (call->narg < 10 || max < 3 || a[0].kind != TTC_ARG_TENSOR || a[1].kind != TTC_ARG_TENSOR || a[2].kind != TTC_ARG_TENSOR) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "convolution_backward: expected grad_output, input and weight tensors");
  }
  const ttc_tensor *g = a[0].tensor, *x = a[1].tensor, *w = a[2].tensor;
  bool last = channels_last(x) || channels_last(w);
  fill_spec(&specs[0], (ttc_dtype)x->dtype, x->ndim, x->sizes, last);
  fill_spec(&specs[1], (ttc_dtype)w->dtype, w->ndim, w->sizes, last);
  fill_spec(&specs[2], (ttc_dtype)g->dtype, 1, g->ndim > 1 ? &g->sizes[1] : g->sizes, false);
  for (int k = 0; k < 3; k++) {
    if (!int_at(&a[9], k)) {
      specs[k] = (ttc_spec){.dtype = TTC_DTYPE_INVALID};
    }
  }
  *nout = 3;
  return TTC_OK;
}

/* Eager calls come through PyTorch's own checks of shapes to the overrideable pair; graphs hold the plain names. */
const ttc_op_row ttc__conv_rows[] = {
    {"convolution", lower_conv, 0, TOL_DOT, TTC_OP_GRAPH_ONLY, 0, NULL, NULL, 0, PAD_BATCH},
    {"convolution_overrideable", lower_conv, 0, TOL_DOT, TTC_OP_NO_META, 0, infer_conv, NULL, 0, PAD_BATCH},
    {"convolution_backward", lower_conv_backward, 4, TOL_DOT, TTC_OP_GRAPH_ONLY, 0, NULL, NULL, 0, PAD_BATCH_BACK},
    {"convolution_backward_overrideable", lower_conv_backward, 3, TOL_DOT, TTC_OP_NO_META, 0, infer_conv_backward, NULL, 0,
     PAD_BATCH_BACK},
};
TTC_FAMILY(conv)
