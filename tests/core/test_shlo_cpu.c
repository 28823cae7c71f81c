/* The StableHLO builder's operations on whole arrays on a real XLA:CPU plugin, against values worked out by hand. */
#include <math.h>
#include <stdio.h>

#include "shlo_run.h"

/* ---- shape */

static void test_shape(void) {
  prog p = begin("shape");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(2, 3), 1, 2, 3, 4, 5, 6), z = in(&p, TTC_F32, DIMS(2, 0), NULL), i = IN_S32(&p, SCALAR, 1);
  ttc_val v = shlo_const_f(b, TTC_F32, 9, SCALAR);
  out(&p, "reshape", shlo_reshape(b, x, DIMS(3, 2)), 0, WANT(1, 2, 3, 4, 5, 6));
  out(&p, "reshape empty", shlo_reshape(b, z, DIMS(0, 7)), 0, NONE);
  out(&p, "transpose", shlo_transpose(b, x, INT(1, 0)), 0, WANT(1, 4, 2, 5, 3, 6));
  out(&p, "broadcast", shlo_broadcast_in_dim(b, shlo_slice_axis(b, x, 1, 1, 2), DIMS(2, 2, 1), INT(1, 2)), 0, WANT(2, 5, 2, 5));
  out(&p, "broadcast to", shlo_broadcast_to(b, v, DIMS(2, 2)), 0, WANT(9, 9, 9, 9));
  out(&p, "broadcast empty", shlo_broadcast_to(b, shlo_slice_axis(b, x, 0, 0, 1), DIMS(0, 3)), 0, NONE);
  out(&p, "squeeze", shlo_squeeze(b, shlo_unsqueeze(b, x, 2), 2), 0, WANT(1, 2, 3, 4, 5, 6));
  out(&p, "slice", shlo_slice(b, x, I64(0, 0), I64(2, 3), I64(1, 2)), 0, WANT(1, 3, 4, 6));
  out(&p, "slice none", shlo_slice(b, x, I64(1, 3), I64(1, 3), NULL), 0, NONE);
  out(&p, "pad", shlo_pad(b, x, v, I64(1, -1), I64(0, 1), I64(0, 1)), 0, WANT(9, 9, 9, 9, 9, 9, 2, 9, 3, 9, 9, 5, 9, 6, 9));
  out(&p, "pad empty", shlo_pad(b, z, v, I64(0, 1), I64(0, 1), NULL), 0, WANT(9, 9, 9, 9));
  out(&p, "crop", shlo_pad(b, x, v, I64(-1, 0), I64(0, -2), NULL), 0, WANT(4));
  out(&p, "concat", shlo_concat(b, 3, (const ttc_val[]){x, z, x}, 1), 0, WANT(1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6));
  out(&p, "concat empty", shlo_concat(b, 2, (const ttc_val[]){z, z}, 0), 0, NONE);
  out(&p, "reverse", shlo_reverse(b, x, AXES(0, 1)), 0, WANT(6, 5, 4, 3, 2, 1));
  out(&p, "reverse empty", shlo_reverse(b, z, AXES(0, 1)), 0, NONE);
  ttc_val two[2] = {i, i}, mixed[2] = {i, shlo_const_i(b, TTC_S64, 7, SCALAR)};
  out(&p, "dynamic_slice", shlo_dynamic_slice(b, x, two, I64(1, 2)), 0, WANT(5, 6));
  out(&p, "dynamic_slice clamped", shlo_dynamic_slice(b, x, mixed, I64(1, 2)), 0, WANT(5, 6));
  out(&p, "dynamic_slice none", shlo_dynamic_slice(b, x, two, I64(0, 2)), 0, NONE);
  out(&p, "dynamic_update_slice", shlo_dynamic_update_slice(b, x, shlo_broadcast_to(b, v, DIMS(1, 2)), two), 0,
      WANT(1, 2, 3, 4, 9, 9));
  out(&p, "update_slice", shlo_update_slice(b, x, shlo_broadcast_to(b, v, DIMS(2, 1)), I64(0, 2)), 0, WANT(1, 2, 9, 4, 5, 9));
  out(&p, "update_slice none", shlo_update_slice(b, x, z, I64(0, 3)), 0, WANT(1, 2, 3, 4, 5, 6));
  out(&p, "barrier", shlo_barrier(b, x), 0, WANT(1, 2, 3, 4, 5, 6));
  run(&p);
}

/* What moves elements must do so in every dtype, also those nobody computes in. */
static void test_moves(ttc_dtype d) {
  static const double all[4] = {1, 2, 2, 1}, truths[4] = {1, 1, 1, 1};
  const double *want = d == TTC_BOOL ? truths : all;
  char name[32];
  snprintf(name, sizeof name, "moves %s", ttc_dtype_name(d));
  prog p = begin(name);
  shlo *b = p.b;
  ttc_val x = IN_U8(&p, DIMS(4), 2, 1, 2, 1), i = IN_S32(&p, DIMS(4), 3, 0, 2, 1);
  x = shlo_convert(b, x, d);
  ttc_val s = shlo_slice_axis(b, x, 0, 0, 2), m = shlo_reshape(b, x, DIMS(2, 2)), zero = shlo_slice_axis(b, i, 0, 1, 2);
  out(&p, "take", shlo_take(b, x, i, 0), 0, 4, want);
  out(&p, "concat", shlo_concat(b, 2, (const ttc_val[]){shlo_reverse(b, s, AXES(0)), s}, 0), 0, 4, want);
  out(&p, "transpose", shlo_broadcast_to(b, shlo_slice_axis(b, shlo_transpose(b, m, INT(1, 0)), 0, 1, 2), DIMS(2, 2)), 0, 4,
      truths);
  ttc_val one = shlo_reshape(b, shlo_slice_axis(b, x, 0, 1, 2), SCALAR);
  out(&p, "pad", shlo_pad(b, shlo_broadcast_to(b, shlo_slice_axis(b, x, 0, 0, 1), DIMS(2)), one, I64(1), I64(1), NULL), 0, 4, want);
  shlo_scatter_spec items = {
      .ninserted = 1, .inserted = {0}, .nindex = 1, .index_map = {0}, .index_vector_axis = 1, .unique = true};
  out(&p, "scatter", shlo_scatter(b, SHLO_SCATTER_SET, shlo_const_like(b, x, 1), i, x, &items), 0, 4,
      d == TTC_BOOL ? truths : (const double[]){1, 1, 2, 2});
  ttc_val even = shlo_compare(b, SHLO_EQ, i, shlo_const_like(b, i, 2));
  out(&p, "select", shlo_select(b, even, x, shlo_const_like(b, x, 1)), 0, 4, d == TTC_BOOL ? truths : (const double[]){1, 1, 2, 1});
  ttc_val at = shlo_reshape(b, zero, SCALAR);
  out(&p, "dynamic", shlo_dynamic_update_slice(b, x, shlo_dynamic_slice(b, x, &at, I64(1)), &at), 0, 4,
      d == TTC_BOOL ? truths : (const double[]){2, 1, 2, 1});
  out(&p, "equal", shlo_compare(b, SHLO_EQ, x, x), 0, 4, truths);
  out(&p, "barrier", shlo_barrier(b, m), 0, 4, d == TTC_BOOL ? truths : (const double[]){2, 1, 2, 1});
  run(&p);
}

/* ---- reductions */

/* argmax with ties to the first: (value, place) pairs. */
static void later(shlo *b, void *ctx, const ttc_val *a, ttc_val *r) {
  (void)ctx;
  ttc_val gt = shlo_compare(b, SHLO_GT, a[2], a[0]);
  ttc_val tie = shlo_2(b, SHLO_AND, shlo_compare(b, SHLO_EQ, a[2], a[0]), shlo_compare(b, SHLO_LT, a[3], a[1]));
  ttc_val take = shlo_2(b, SHLO_OR, gt, tie);
  r[0] = shlo_select(b, take, a[2], a[0]);
  r[1] = shlo_select(b, take, a[3], a[1]);
}

static void test_reduce(void) {
  prog p = begin("reduce");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(2, 3), 1, -2, 3, 4, NAN, 6), z = in(&p, TTC_F32, DIMS(2, 0), NULL);
  ttc_val i = IN_S8(&p, DIMS(2, 3), 1, -2, 3, 100, 20, 60), t = IN_BOOL(&p, DIMS(2, 2), true, false, true, true);
  ttc_val u = IN_U8(&p, DIMS(3), 200, 3, 7), c = IN_C64(&p, DIMS(2), 1, 2, 3, -4);
  out(&p, "sum", shlo_reduce(b, SHLO_SUM, x, AXES(0)), 0, WANT(5, NAN, 9));
  out(&p, "sum all", shlo_reduce(b, SHLO_SUM, i, AXES(1, 0)), 0, WANT(-74)); /* 182 wraps */
  out(&p, "sum no axis", shlo_reduce(b, SHLO_SUM, u, 0, NULL), 0, WANT(200, 3, 7));
  out(&p, "prod", shlo_reduce(b, SHLO_PROD, x, AXES(1)), 0, WANT(-6, NAN));
  out(&p, "amax", shlo_reduce(b, SHLO_AMAX, x, AXES(1)), 0, WANT(3, NAN));
  out(&p, "amin", shlo_reduce(b, SHLO_AMIN, x, AXES(1)), 0, WANT(-2, NAN));
  out(&p, "amax i", shlo_reduce(b, SHLO_AMAX, i, AXES(1)), 0, WANT(3, 100));
  out(&p, "amin u", shlo_reduce(b, SHLO_AMIN, u, AXES(0)), 0, WANT(3));
  out(&p, "all", shlo_reduce(b, SHLO_ALL, t, AXES(1)), 0, WANT(0, 1));
  out(&p, "any", shlo_reduce(b, SHLO_ANY, t, AXES(0)), 0, WANT(1, 1));
  out(&p, "xor", shlo_reduce(b, SHLO_BIT_XOR, u, AXES(0)), 0, WANT(204));
  out(&p, "sum c", shlo_1(b, SHLO_IMAG, shlo_reduce(b, SHLO_SUM, c, AXES(0))), 0, WANT(-2));
  out(&p, "sum empty", shlo_reduce(b, SHLO_SUM, z, AXES(1)), 0, WANT(0, 0));
  out(&p, "amax empty", shlo_reduce(b, SHLO_AMAX, z, AXES(1)), 0, WANT(-INFINITY, -INFINITY));
  out(&p, "prod empty", shlo_reduce(b, SHLO_PROD, z, AXES(0)), 0, NONE);
  run(&p);
  ttc_val xs[2], inits[2], rs[2];
  p = begin("reduce_body");
  b = p.b;
  xs[0] = IN_F32(&p, DIMS(2, 3), 1, 5, 5, 4, 4, 0);
  xs[1] = shlo_iota(b, TTC_S64, 1, DIMS(2, 3));
  inits[0] = shlo_lowest(b, TTC_F32);
  inits[1] = shlo_const_i(b, TTC_S64, INT64_MAX, SCALAR);
  shlo_reduce_body(b, 2, xs, inits, AXES(1), later, NULL, rs);
  out(&p, "max", rs[0], 0, WANT(5, 4));
  out(&p, "argmax", rs[1], 0, WANT(1, 0));
  run(&p);
}

static void test_window(void) {
  prog p = begin("window");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(4), 1, 5, 5, 2), z = in(&p, TTC_F32, DIMS(2, 0), NULL), s = IN_F32(&p, DIMS(2), 10, 20);
  ttc_val n = IN_F32(&p, DIMS(4), 1, NAN, 5, 2), i = IN_S32(&p, DIMS(4), 1, 5, 5, 2);
  out(&p, "sum", shlo_reduce_window(b, SHLO_SUM, x, I64(2), I64(1), NULL, I64(1), I64(0)), 0, WANT(1, 6, 10, 7));
  out(&p, "max", shlo_reduce_window(b, SHLO_AMAX, n, I64(2), I64(2), NULL, I64(0), I64(0)), 0, WANT(NAN, 5));
  out(&p, "max i", shlo_reduce_window(b, SHLO_AMAX, i, I64(3), I64(2), NULL, I64(1), I64(1)), 0, WANT(5, 5));
  out(&p, "dilated", shlo_reduce_window(b, SHLO_SUM, x, I64(2), I64(1), I64(2), I64(0), I64(0)), 0, WANT(6, 7));
  out(&p, "too wide", shlo_reduce_window(b, SHLO_SUM, x, I64(5), I64(1), NULL, I64(0), I64(0)), 0, NONE);
  out(&p, "empty", shlo_reduce_window(b, SHLO_SUM, z, I64(1, 1), I64(1, 1), NULL, I64(0, 1), I64(0, 1)), 0, WANT(0, 0, 0, 0));
  out(&p, "scatter", shlo_select_and_scatter_max(b, x, s, I64(2), I64(2), I64(0), I64(0)), 0, WANT(0, 10, 20, 0));
  out(&p, "scatter tie", shlo_select_and_scatter_max(b, shlo_const_like(b, x, 1), s, I64(2), I64(2), I64(0), I64(0)), 0,
      WANT(10, 0, 20, 0));
  out(&p, "scatter nan", shlo_select_and_scatter_max(b, n, s, I64(2), I64(2), I64(0), I64(0)), 0, WANT(0, 10, 20, 0));
  out(&p, "scatter empty", shlo_select_and_scatter_max(b, z, z, I64(1, 1), I64(1, 1), I64(0, 0), I64(0, 0)), 0, NONE);
  run(&p);
}

/* ---- contractions */

static void test_dot(void) {
  prog p = begin("dot");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(2, 3), 1, 2, 3, 4, 5, 6), y = IN_F32(&p, DIMS(3, 2), 1, 0, 0, 1, 1, 1),
          z = in(&p, TTC_F32, DIMS(2, 0), NULL);
  ttc_val i = shlo_convert(b, x, TTC_S64), c = shlo_convert(b, x, TTC_C64);
  out(&p, "mm", shlo_dot(b, x, y, 0, NULL, NULL, 1, INT(1), INT(0), TTC_F32), 0, WANT(4, 5, 10, 11));
  out(&p, "outer", shlo_dot(b, x, shlo_slice_axis(b, x, 0, 0, 1), 0, NULL, NULL, 0, NULL, NULL, TTC_F32), 0,
      WANT(1, 2, 3, 2, 4, 6, 3, 6, 9, 4, 8, 12, 5, 10, 15, 6, 12, 18));
  out(&p, "batch", shlo_dot(b, x, x, 1, INT(0), INT(0), 1, INT(1), INT(1), TTC_F32), 0, WANT(14, 77));
  out(&p, "full", shlo_dot(b, x, y, 0, NULL, NULL, 2, INT(0, 1), INT(1, 0), TTC_F32), 0, WANT(15));
  out(&p, "bf16->f32",
      shlo_dot(b, shlo_convert(b, x, TTC_BF16), shlo_convert(b, y, TTC_BF16), 0, NULL, NULL, 1, INT(1), INT(0), TTC_F32), 0,
      WANT(4, 5, 10, 11));
  out(&p, "f16", shlo_dot(b, shlo_convert(b, x, TTC_F16), shlo_convert(b, y, TTC_F16), 0, NULL, NULL, 1, INT(1), INT(0), TTC_F16),
      0, WANT(4, 5, 10, 11));
  out(&p, "s64", shlo_dot(b, i, i, 0, NULL, NULL, 1, INT(1), INT(1), TTC_S64), 0, WANT(14, 32, 32, 77));
  out(&p, "c64", shlo_dot(b, c, c, 0, NULL, NULL, 1, INT(1), INT(1), TTC_C64), 0, WANT(14, 32, 32, 77));
  out(&p, "nothing summed", shlo_dot(b, z, z, 0, NULL, NULL, 1, INT(1), INT(1), TTC_F32), 0, WANT(0, 0, 0, 0));
  out(&p, "empty", shlo_dot(b, x, z, 0, NULL, NULL, 1, INT(0), INT(0), TTC_F32), 0, NONE);
  run(&p);
}

/* Wider results of narrow operands. */
static void test_dot_dtypes(void) {
  static const ttc_dtype pairs[][2] = {{TTC_S8, TTC_S8},   {TTC_S8, TTC_S32},       {TTC_U8, TTC_U32},      {TTC_S16, TTC_S16},
                                       {TTC_U64, TTC_U64}, {TTC_F16, TTC_F32},      {TTC_BF16, TTC_BF16},   {TTC_F32, TTC_F64},
                                       {TTC_F64, TTC_F64}, {TTC_F8E4M3FN, TTC_F32}, {TTC_F8E5M2, TTC_BF16}, {TTC_C128, TTC_C128}};
  for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
    char name[64];
    snprintf(name, sizeof name, "dot %s %s", ttc_dtype_name(pairs[k][0]), ttc_dtype_name(pairs[k][1]));
    prog p = begin(name);
    ttc_val x = IN_U8(&p, DIMS(2, 2), 1, 2, 3, 4);
    x = shlo_convert(p.b, x, pairs[k][0]);
    out(&p, "y", shlo_dot(p.b, x, x, 0, NULL, NULL, 1, INT(1), INT(1), pairs[k][1]), 0, WANT(5, 11, 11, 25));
    run(&p);
  }
}

static void test_conv(void) {
  prog p = begin("conv");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(1, 1, 4), 1, 2, 3, 4), k = IN_F32(&p, DIMS(1, 1, 2), 1, 10),
          x2 = IN_F32(&p, DIMS(1, 2, 2, 2), 1, 2, 3, 4, 5, 6, 7, 8);
  ttc_val k2 = IN_F32(&p, DIMS(2, 1, 1, 2), 1, 10, 100, 1000), z = in(&p, TTC_F32, DIMS(0, 1, 4), NULL);
  shlo_conv_spec s = {.nspatial = 1,
                      .in_feature = 1,
                      .in_spatial = {2},
                      .k_in = 1,
                      .k_spatial = {2},
                      .out_feature = 1,
                      .out_spatial = {2},
                      .stride = {1},
                      .lhs_dilation = {1},
                      .rhs_dilation = {1},
                      .feature_groups = 1,
                      .batch_groups = 1};
  out(&p, "plain", shlo_conv(b, x, k, &s), 0, WANT(21, 32, 43));
  out(&p, "empty", shlo_conv(b, z, k, &s), 0, NONE);
  s.lo[0] = 1;
  s.stride[0] = 2;
  out(&p, "padded, strided", shlo_conv(b, x, k, &s), 0, WANT(10, 32));
  s.stride[0] = 1;
  s.rhs_dilation[0] = 2;
  out(&p, "dilated", shlo_conv(b, x, k, &s), 0, WANT(20, 31, 42));
  s.rhs_dilation[0] = 1;
  s.lhs_dilation[0] = 2;
  s.reverse[0] = true;
  out(&p, "transposed", shlo_conv(b, x, k, &s), 0, WANT(1, 10, 2, 20, 3, 30, 4));
  out(&p, "bf16", shlo_conv(b, shlo_convert(b, x, TTC_BF16), shlo_convert(b, k, TTC_BF16), &s), 0, WANT(1, 10, 2, 20, 3, 30, 4));
  shlo_conv_spec g = {.nspatial = 2,
                      .in_feature = 1,
                      .in_spatial = {2, 3},
                      .k_in = 1,
                      .k_spatial = {2, 3},
                      .out_feature = 3,
                      .out_spatial = {1, 2},
                      .stride = {1, 1},
                      .lhs_dilation = {1, 1},
                      .rhs_dilation = {1, 1},
                      .feature_groups = 2,
                      .batch_groups = 1};
  out(&p, "grouped, channels last", shlo_conv(b, x2, k2, &g), 0, WANT(21, 6500, 43, 8700));
  run(&p);
}

/* ---- gather, scatter */

static void test_gather(void) {
  prog p = begin("gather");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(3, 2), 1, 2, 3, 4, 5, 6), i = IN_S64(&p, DIMS(2, 2), 2, 0, 0, 1),
          z = in(&p, TTC_F32, DIMS(0, 2), NULL);
  ttc_val none = in(&p, TTC_S32, DIMS(0), NULL), far = IN_S32(&p, DIMS(2), -5, 9), i8 = IN_U8(&p, SCALAR, 1);
  out(&p, "take rows", shlo_take(b, x, i, 0), 0, WANT(5, 6, 1, 2, 1, 2, 3, 4));
  out(&p, "take columns", shlo_take(b, x, shlo_slice_axis(b, i, 0, 1, 2), 1), 0, WANT(1, 2, 3, 4, 5, 6));
  out(&p, "take scalar", shlo_take(b, x, i8, 0), 0, WANT(3, 4));
  out(&p, "take clamped", shlo_take(b, x, far, 0), 0, WANT(1, 2, 5, 6));
  out(&p, "take none", shlo_take(b, x, none, 0), 0, NONE);
  out(&p, "take none of none", shlo_take(b, z, none, 0), 0, NONE);
  out(&p, "take empty rows", shlo_take(b, shlo_slice_axis(b, x, 1, 0, 0), i, 0), 0, NONE);
  /* x[i[k][0], i[k][1]] */
  shlo_gather_spec points = {
      .ncollapsed = 2, .collapsed = {0, 1}, .nindex = 2, .index_map = {0, 1}, .index_vector_axis = 1, .slice_sizes = {1, 1}};
  out(&p, "points", shlo_gather(b, x, i, &points), 0, WANT(5, 2));
  /* y[k, j] = x'[k, i'[k, j]], k a batch axis: torch.gather along 1. */
  shlo_gather_spec along = {.nbatch = 1,
                            .operand_batch = {0},
                            .index_batch = {0},
                            .ncollapsed = 1,
                            .collapsed = {1},
                            .nindex = 1,
                            .index_map = {1},
                            .index_vector_axis = 2,
                            .slice_sizes = {1, 1}};
  ttc_val at = shlo_concat(b, 2, (const ttc_val[]){i, shlo_const_i(b, TTC_S64, 1, DIMS(1, 2))}, 0);
  out(&p, "batched",
      shlo_gather(b, x, shlo_clamp(b, shlo_const_i(b, TTC_S64, 0, SCALAR), at, shlo_const_i(b, TTC_S64, 1, SCALAR)), &along), 0,
      WANT(2, 1, 3, 4, 6, 6));
  /* A window of 2x1 at a runtime place. */
  shlo_gather_spec window = {.noffset = 2, .offset_dims = {0, 1}, .nindex = 2, .index_map = {0, 1}, .slice_sizes = {2, 1}};
  out(&p, "window", shlo_gather(b, x, shlo_const_table(b, TTC_S32, 2, I64(1, 1)), &window), 0, WANT(4, 6));
  run(&p);
}

static void test_scatter(void) {
  prog p = begin("scatter");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(3, 2), 1, 2, 3, 4, 5, 6), i = IN_S32(&p, DIMS(3), 2, 0, 2),
          u = IN_F32(&p, DIMS(3, 2), 10, 20, 30, 40, 50, 60);
  ttc_val far = IN_S32(&p, DIMS(3), -1, 1, 7), z = in(&p, TTC_F32, DIMS(0, 2), NULL), none = in(&p, TTC_S32, DIMS(0), NULL);
  ttc_val t = IN_BOOL(&p, DIMS(3), false, true, false);
  shlo_scatter_spec rows = {
      .nwindow = 1, .update_window = {1}, .ninserted = 1, .inserted = {0}, .nindex = 1, .index_map = {0}, .index_vector_axis = 1};
  shlo_scatter_spec items = {.ninserted = 1, .inserted = {0}, .nindex = 1, .index_map = {0}, .index_vector_axis = 1};
  out(&p, "add", shlo_scatter(b, SHLO_SCATTER_ADD, x, i, u, &rows), 0, WANT(31, 42, 3, 4, 65, 86));
  out(&p, "set", shlo_scatter(b, SHLO_SCATTER_SET, x, i, u, &rows), 0, WANT(30, 40, 3, 4, 50, 60));
  out(&p, "mul", shlo_scatter(b, SHLO_SCATTER_MUL, x, i, u, &rows), 0, WANT(30, 80, 3, 4, 2500, 7200));
  out(&p, "max", shlo_scatter(b, SHLO_SCATTER_MAX, x, i, u, &rows), 0, WANT(30, 40, 3, 4, 50, 60));
  out(&p, "min", shlo_scatter(b, SHLO_SCATTER_MIN, x, i, u, &rows), 0, WANT(1, 2, 3, 4, 5, 6));
  out(&p, "outside", shlo_scatter(b, SHLO_SCATTER_ADD, x, far, u, &rows), 0, WANT(1, 2, 33, 44, 5, 6));
  out(&p, "into none", shlo_scatter(b, SHLO_SCATTER_ADD, z, i, u, &rows), 0, NONE);
  out(&p, "none", shlo_scatter(b, SHLO_SCATTER_ADD, x, none, z, &rows), 0, WANT(1, 2, 3, 4, 5, 6));
  out(&p, "bool or", shlo_scatter(b, SHLO_SCATTER_ADD, shlo_const_like(b, t, 0), i, t, &items), 0, WANT(1, 0, 0));
  out(&p, "bool set", shlo_scatter(b, SHLO_SCATTER_SET, shlo_const_like(b, t, 1), i, t, &items), 0, WANT(1, 1, 0));
  out(&p, "i64", shlo_scatter(b, SHLO_SCATTER_ADD, shlo_convert(b, t, TTC_S64), i, shlo_const_i(b, TTC_S64, 5, DIMS(3)), &items), 0,
      WANT(5, 1, 10));
  /* x[k, i[k]] += u[k, 0], k a batch axis. */
  shlo_scatter_spec along = {.ninserted = 1,
                             .inserted = {1},
                             .nbatch = 1,
                             .operand_batch = {0},
                             .index_batch = {0},
                             .nindex = 1,
                             .index_map = {1},
                             .index_vector_axis = 1};
  ttc_val j = shlo_const_table(b, TTC_S32, 3, I64(1, 0, 1));
  out(&p, "batched", shlo_scatter(b, SHLO_SCATTER_ADD, x, j, shlo_const_table(b, TTC_F32, 3, I64(10, 20, 30)), &along), 0,
      WANT(1, 12, 23, 4, 5, 36));
  run(&p);
}

/* ---- order, control */

static void test_sort(void) {
  prog p = begin("sort");
  shlo *b = p.b;
  ttc_val x = IN_F32(&p, DIMS(6), 2, NAN, -0.0f, 0, -INFINITY, 5), k = shlo_iota(b, TTC_S64, 0, DIMS(6)), r[2], xs[2] = {x, k};
  shlo_sort(b, 2, xs, 0, false, r);
  out(&p, "up", r[0], 0, WANT(-INFINITY, -0.0, 0, 2, 5, NAN));
  out(&p, "up places", r[1], 0, WANT(4, 2, 3, 0, 5, 1));
  shlo_sort(b, 2, xs, 0, true, r);
  out(&p, "down places", r[1], 0, WANT(1, 5, 0, 2, 3, 4));
  ttc_val i = shlo_reshape(b, shlo_const_table(b, TTC_S8, 6, I64(3, 1, 2, -5, 7, 0)), DIMS(2, 3));
  shlo_sort(b, 1, &i, 0, false, r);
  out(&p, "columns", r[0], 0, WANT(-5, 1, 0, 3, 7, 2));
  shlo_sort(b, 1, &i, 1, true, r);
  out(&p, "rows", r[0], 0, WANT(3, 2, 1, 7, 0, -5));
  ttc_val t = shlo_convert(b, i, TTC_BOOL), e = shlo_slice_axis(b, i, 1, 1, 1), s = shlo_const_i(b, TTC_S32, 4, SCALAR);
  shlo_sort(b, 1, &t, 1, false, r);
  out(&p, "bool", r[0], 0, WANT(1, 1, 1, 0, 1, 1));
  shlo_sort(b, 1, &e, 1, false, r);
  out(&p, "empty", r[0], 0, NONE);
  shlo_sort(b, 1, &s, 0, false, &s); /* in place */
  out(&p, "scalar", s, 0, WANT(4));
  shlo_sort(b, 1, &k, 0, true, &k);
  out(&p, "in place", k, 0, WANT(5, 4, 3, 2, 1, 0));
  ttc_val h = shlo_convert(b, x, TTC_BF16);
  shlo_sort(b, 1, &h, 0, true, r);
  out(&p, "bf16 down", r[0], 0, WANT(NAN, 5, 2, -0.0, 0, -INFINITY));
  run(&p);
}

/* state: (step, sum); the limit is a value from outside the loop. */
static void below(shlo *b, void *ctx, const ttc_val *a, ttc_val *r) {
  r[0] = shlo_compare(b, SHLO_LT, a[0], *(const ttc_val *)ctx);
}

static void step(shlo *b, void *ctx, const ttc_val *a, ttc_val *r) {
  ttc_val limit = shlo_convert(b, *(const ttc_val *)ctx, TTC_F32);
  r[0] = shlo_add(b, a[0], shlo_const_like(b, a[0], 1));
  /* a reduction inside, so that regions nest */
  ttc_val row = shlo_broadcast_to(b, shlo_add(b, shlo_convert(b, a[0], TTC_F32), limit), DIMS(2));
  r[1] = shlo_add(b, a[1], shlo_reduce(b, SHLO_SUM, row, AXES(0)));
}

static void test_while(void) {
  prog p = begin("while");
  shlo *b = p.b;
  ttc_val n = IN_S32(&p, SCALAR, 4), state[2] = {shlo_const_i(b, TTC_S32, 1, SCALAR), shlo_const_f(b, TTC_F32, 0.5, SCALAR)};
  shlo_while(b, 2, state, below, step, &n, state);
  out(&p, "steps", state[0], 0, WANT(4));
  out(&p, "sum", state[1], 0, WANT(36.5)); /* 0.5 + 2 (5 + 6 + 7) */
  run(&p);
}

/* ---- linear algebra, transforms */

static void test_linalg(ttc_dtype d) {
  prog p = begin("linalg");
  shlo *b = p.b;
  double tol = d == TTC_F32 || d == TTC_C64 ? 1e-5 : 1e-12;
  ttc_val a = in(&p, TTC_F64, DIMS(2, 2), (const double[]){4, 2, 2, 5}),
          r = in(&p, TTC_F64, DIMS(2, 2), (const double[]){2, 4, 3, 10});
  ttc_val l = shlo_cholesky(b, shlo_convert(b, a, d), true);
  r = shlo_convert(b, r, d);
  ttc_val mask = shlo_compare(b, SHLO_GE, shlo_iota(b, TTC_S32, 0, DIMS(2, 2)), shlo_iota(b, TTC_S32, 1, DIMS(2, 2)));
  l = shlo_select(b, mask, l, shlo_const_like(b, l, 0)); /* the other triangle is undefined: [[2, 0], [1, 2]] */
  out(&p, "cholesky", l, tol, WANT(2, 0, 1, 2));
  out(&p, "solve", shlo_triangular_solve(b, l, r, true, true, false, false, false), tol, WANT(1, 2, 1, 4));
  out(&p, "solve transposed", shlo_triangular_solve(b, l, r, true, true, false, true, false), tol, WANT(0.25, -0.5, 1.5, 5));
  out(&p, "solve right", shlo_triangular_solve(b, l, r, false, true, false, false, false), tol, WANT(0, 2, -1, 5));
  out(&p, "solve unit", shlo_triangular_solve(b, l, r, true, true, true, false, false), tol, WANT(2, 4, 1, 6));
  ttc_val e = shlo_const_i(b, d, 0, DIMS(3, 0, 0)), batch = shlo_broadcast_to(b, l, DIMS(2, 2, 2));
  out(&p, "cholesky none", shlo_cholesky(b, e, true), 0, NONE);
  out(&p, "solve none", shlo_triangular_solve(b, e, e, true, true, false, false, false), 0, NONE);
  out(&p, "solve batch", shlo_triangular_solve(b, batch, shlo_broadcast_to(b, r, DIMS(2, 2, 2)), true, true, false, false, false),
      tol, WANT(1, 2, 1, 4, 1, 2, 1, 4));
  if (ttc__is_complex(d)) {
    /* 1x1 [[i]]: x = 1/i = -i; conjugated, transposed or not, x = i. What is wanted outlives the block. */
    static const double minus[] = {-1}, plus[] = {1};
    ttc_dtype real = ttc__dtype_real(d);
    ttc_val i = shlo_complex(b, shlo_const_f(b, real, 0, DIMS(1, 1)), shlo_const_f(b, real, 1, DIMS(1, 1))),
            one = shlo_const_like(b, i, 1);
    out(&p, "i", shlo_1(b, SHLO_IMAG, shlo_triangular_solve(b, i, one, true, true, false, false, false)), tol, 1, minus);
    out(&p, "conj", shlo_1(b, SHLO_IMAG, shlo_triangular_solve(b, i, one, true, true, false, false, true)), tol, 1, plus);
    out(&p, "adjoint", shlo_1(b, SHLO_IMAG, shlo_triangular_solve(b, i, one, true, true, false, true, true)), tol, 1, plus);
  }
  run(&p);
}

static void test_fft(ttc_dtype real) {
  prog p = begin("fft");
  shlo *b = p.b;
  double tol = real == TTC_F32 ? 1e-6 : 1e-14;
  ttc_val x = shlo_convert(b, in(&p, TTC_F64, DIMS(4), (const double[]){1, 2, 3, 5}), real),
          c = shlo_convert(b, x, ttc__dtype_complex(real));
  ttc_val f = shlo_fft(b, c, SHLO_FFT, 1, I64(4)), h = shlo_fft(b, x, SHLO_RFFT, 1, I64(4)), m = shlo_reshape(b, c, DIMS(2, 2));
  out(&p, "re", f, tol, WANT(11, -2, -3, -2));
  out(&p, "im", shlo_1(b, SHLO_IMAG, f), tol, WANT(0, 3, 0, -3));
  out(&p, "inverse", shlo_fft(b, f, SHLO_IFFT, 1, I64(4)), tol, WANT(1, 2, 3, 5));
  out(&p, "half", h, tol, WANT(11, -2, -3));
  out(&p, "half inverse", shlo_fft(b, h, SHLO_IRFFT, 1, I64(4)), tol, WANT(1, 2, 3, 5));
  out(&p, "two axes", shlo_fft(b, m, SHLO_FFT, 2, I64(2, 2)), tol, WANT(11, -3, -5, 1));
  out(&p, "none", shlo_fft(b, shlo_const_f(b, real, 0, DIMS(0, 4)), SHLO_RFFT, 1, I64(4)), 0, NONE);
  run(&p);
}

int main(void) {
  int code;
  if (!open_client(&code)) {
    return code;
  }
  test_shape();
  for (ttc_dtype d = TTC_BOOL; d < TTC_NDTYPE; d++) {
    test_moves(d);
  }
  test_reduce();
  test_window();
  test_dot();
  test_dot_dtypes();
  test_conv();
  test_gather();
  test_scatter();
  test_sort();
  test_while();
  test_linalg(TTC_F32);
  test_linalg(TTC_F64);
  test_linalg(TTC_C64);
  test_linalg(TTC_C128);
  test_fft(TTC_F32);
  test_fft(TTC_F64);
  pjrt_client_free(client);
  return CHECK_DONE();
}
