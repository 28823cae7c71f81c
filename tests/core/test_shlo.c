/* The StableHLO builder without a plugin: the text it prints, and what it says of wrong operands. */
#include <math.h>
#include <stdlib.h>

#include "check.h"
#include "shlo/shlo.h"

#define DIMS(...)                                                        \
  (int)(sizeof((const int64_t[]){__VA_ARGS__}) / 8), (const int64_t[]) { \
    __VA_ARGS__                                                          \
  }
#define SCALAR 0, NULL
#define I64(...) ((const int64_t[]){__VA_ARGS__})
#define INT(...) ((const int[]){__VA_ARGS__})

static ttc_error err;

static char *finish(shlo *b) {
  char *text = NULL;
  CHECK_EQ(shlo_finish(b, &text, &err), TTC_OK);
  if (text == NULL) {
    fprintf(stderr, "%s\n", err.message);
  }
  shlo_free(b);
  return text;
}

static void check_text(shlo *b, const char *want) {
  char *text = finish(b);
  CHECK_STR(text != NULL ? text : "", want);
  free(text);
}

/* The text of one operation on fresh parameters holds these words. */
static void check_has(shlo *b, ttc_val v, const char *want) {
  shlo_result(b, v);
  char *text = finish(b);
  CHECK(text != NULL && strstr(text, want) != NULL);
  if (text != NULL && strstr(text, want) == NULL) {
    fprintf(stderr, "%s\nlacks: %s\n", text, want);
  }
  free(text);
}

static ttc_val f32(shlo *b, int ndim, const int64_t *dims) {
  return shlo_param(b, TTC_F32, ndim, dims);
}

static void test_module(void) {
  shlo *b = shlo_new("aten::add.Tensor");
  ttc_val x = f32(b, DIMS(2, 3)), y = f32(b, SCALAR);
  shlo_param_alias(b, 0, 0);
  shlo_comment(b, "add.Tensor\nmodel.py:7");
  shlo_result(b, shlo_add(b, x, y));
  check_text(
      b,
      "module @aten__add_Tensor {\n"
      "  func.func public @main(%arg0: tensor<2x3xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<f32>) -> (tensor<2x3xf32>) {\n"
      "    // add.Tensor model.py:7\n"
      "    %0 = \"stablehlo.broadcast_in_dim\"(%arg1) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x3xf32>\n"
      "    %1 = stablehlo.add %arg0, %0 : tensor<2x3xf32>\n"
      "    return %1 : tensor<2x3xf32>\n"
      "  }\n"
      "}\n");
  b = shlo_new("");
  check_text(b, "module @m {\n  func.func public @main() -> () {\n    return\n  }\n}\n");
}

static void test_top_k(void) {
  shlo *b = shlo_new("t");
  ttc_val x = f32(b, DIMS(2, 9)), v, i;
  shlo_top_k(b, x, 3, &v, &i);
  shlo_result(b, v);
  shlo_result(b, i);
  check_text(b,
             "module @t {\n  func.func public @main(%arg0: tensor<2x9xf32>) -> (tensor<2x3xf32>, tensor<2x3xi32>) {\n"
             "    %0:2 = \"chlo.top_k\"(%arg0) <{k = 3 : i64}> : (tensor<2x9xf32>) -> (tensor<2x3xf32>, tensor<2x3xi32>)\n"
             "    return %0#0, %0#1 : tensor<2x3xf32>, tensor<2x3xi32>\n  }\n}\n");
}

static void test_region(void) {
  shlo *b = shlo_new("r");
  ttc_val x = f32(b, DIMS(4)), r[2], xs[2] = {x, x};
  shlo_result(b, shlo_reduce(b, SHLO_SUM, x, 1, INT(0)));
  check_text(b,
             "module @r {\n  func.func public @main(%arg0: tensor<4xf32>) -> (tensor<f32>) {\n"
             "    %0 = stablehlo.constant dense<0x00000000> : tensor<f32>\n"
             "    %1 = \"stablehlo.reduce\"(%arg0, %0) <{dimensions = array<i64: 0>}> ({\n"
             "    ^bb0(%2: tensor<f32>, %3: tensor<f32>):\n"
             "      %4 = stablehlo.add %2, %3 : tensor<f32>\n"
             "      \"stablehlo.return\"(%4) : (tensor<f32>) -> ()\n"
             "    }) : (tensor<4xf32>, tensor<f32>) -> tensor<f32>\n"
             "    return %1 : tensor<f32>\n  }\n}\n");
  b = shlo_new("s");
  x = shlo_param(b, TTC_S32, DIMS(4));
  xs[0] = xs[1] = x;
  shlo_sort(b, 2, xs, 0, false, r);
  check_has(b, r[1], "return %0#1 : tensor<4xi32>");
}

static void test_const_text(void) {
  static const struct {
    ttc_dtype d;
    double v;
    const char *text;
  } cases[] = {
      {TTC_F32, NAN, "dense<0x7FC00000> : tensor<f32>"},
      {TTC_F32, -0.0, "dense<0x80000000> : tensor<f32>"},
      {TTC_F32, 0.1, "dense<0x3DCCCCCD> : tensor<f32>"},
      {TTC_F64, -INFINITY, "dense<0xFFF0000000000000> : tensor<f64>"},
      {TTC_BF16, 1.0, "dense<0x3F80> : tensor<bf16>"},
      {TTC_F16, INFINITY, "dense<0x7C00> : tensor<f16>"},
      {TTC_F8E4M3FN, 448, "dense<0x7E> : tensor<f8E4M3FN>"},
      {TTC_F8E5M2, 1, "dense<0x3C> : tensor<f8E5M2>"},
      {TTC_BOOL, NAN, "dense<true> : tensor<i1>"},
      {TTC_S8, -128, "dense<-128> : tensor<i8>"},
      {TTC_U64, 0x1p63, "dense<9223372036854775808> : tensor<ui64>"},
      {TTC_S64, -0x1p63, "dense<-9223372036854775808> : tensor<i64>"},
      {TTC_C64, 1, "dense<(0x3F800000,0x00000000)> : tensor<complex<f32>>"},
  };
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    shlo *b = shlo_new("c");
    check_has(b, shlo_const_f(b, cases[k].d, cases[k].v, SCALAR), cases[k].text);
  }
  shlo *b = shlo_new("c");
  check_has(b, shlo_const_f(b, TTC_F32, 1, DIMS(0, 2)), "dense<> : tensor<0x2xf32>");
  b = shlo_new("c");
  check_has(b, shlo_const_u(b, TTC_U64, UINT64_MAX, DIMS(2)), "dense<18446744073709551615> : tensor<2xui64>");
  b = shlo_new("c");
  check_has(b, shlo_const_table(b, TTC_S32, 3, I64(1, -2, 3)), "dense<[1, -2, 3]> : tensor<3xi32>");
}

static void test_attributes(void) {
  shlo *b = shlo_new("a");
  ttc_val x = f32(b, DIMS(2, 3)), y = f32(b, DIMS(2, 3));
  check_has(b, shlo_dot(b, x, y, 1, INT(0), INT(0), 1, INT(1), INT(1), TTC_F32),
            "<{dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], "
            "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1]>, "
            "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]}> : "
            "(tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2xf32>");
  b = shlo_new("a");
  x = f32(b, DIMS(2, 3));
  shlo_set_precision(b, SHLO_PRECISION_DEFAULT);
  check_has(b, shlo_dot(b, x, x, 0, NULL, NULL, 1, INT(1), INT(1), TTC_F32), "rhs_contracting_dimensions = [1]>}> : ");
  b = shlo_new("a");
  x = shlo_param(b, TTC_BF16, DIMS(2, 3));
  check_has(b, shlo_dot(b, x, x, 0, NULL, NULL, 1, INT(1), INT(1), TTC_F32),
            "[1]>}> : (tensor<2x3xbf16>, tensor<2x3xbf16>) -> tensor<2x2xf32>");
  b = shlo_new("a");
  x = f32(b, DIMS(3));
  check_has(b, shlo_compare_total(b, SHLO_LT, x, x),
            "comparison_direction LT>, compare_type = #stablehlo<comparison_type TOTALORDER>");
  b = shlo_new("a");
  x = f32(b, DIMS(3));
  check_has(b, shlo_1(b, SHLO_CHLO_ERF, x), "\"chlo.erf\"(%arg0) : (tensor<3xf32>) -> tensor<3xf32>");
}

/* Operations that change nothing print nothing. */
static void test_nothing(void) {
  shlo *b = shlo_new("n");
  ttc_val x = f32(b, DIMS(2, 3)), v = x;
  v = shlo_reshape(b, v, DIMS(2, 3));
  v = shlo_transpose(b, v, INT(0, 1));
  v = shlo_broadcast_to(b, v, DIMS(2, 3));
  v = shlo_convert(b, v, TTC_F32);
  v = shlo_slice_axis(b, v, 1, 0, 3);
  v = shlo_concat(b, 1, &v, 0);
  v = shlo_reduce(b, SHLO_SUM, v, 0, NULL);
  v = shlo_bitcast(b, v, TTC_F32);
  v = shlo_reverse(b, v, 0, NULL);
  CHECK_EQ(v.id, x.id);
  shlo_free(b);
}

static void test_types(void) {
  shlo *b = shlo_new("t");
  ttc_val x = f32(b, DIMS(2, 3)), c = shlo_param(b, TTC_C128, SCALAR);
  CHECK_EQ(shlo_ndim(b, x), 2);
  CHECK_EQ(shlo_dim(b, x, 1), 3);
  CHECK_EQ(shlo_nelem(b, x), 6);
  CHECK_EQ(shlo_dtype(b, shlo_1(b, SHLO_REAL, c)), TTC_F64);
  CHECK_EQ(shlo_dtype(b, shlo_1(b, SHLO_ABS, c)), TTC_F64);
  CHECK_EQ(shlo_dtype(b, shlo_1(b, SHLO_IS_FINITE, x)), TTC_BOOL);
  CHECK_EQ(shlo_ndim(b, TTC_POISON), 0);
  CHECK_EQ(shlo_dim(b, TTC_POISON, 4), 1);
  CHECK(!shlo_failed(b));
  shlo_set_for_tpu(b, true);
  CHECK(shlo_for_tpu(b));
  shlo_free(b);
}

/* ---- errors: the first cause, with what was expected and what came */

static void check_error(shlo *b, ttc_val v, const char *want) {
  char *text = NULL;
  CHECK_EQ(v.id, -1);
  CHECK(shlo_failed(b));
  /* poison in, poison out, and the first cause stays */
  CHECK_EQ(shlo_add(b, v, v).id, -1);
  shlo_error(b, TTC_INTERNAL, "a later cause");
  shlo_result(b, v);
  CHECK(shlo_finish(b, &text, &err) != TTC_OK);
  CHECK(text == NULL);
  CHECK_STR(err.message, want);
  shlo_free(b);
}

static shlo *fresh(ttc_val *x, ttc_val *y, ttc_val *i) {
  shlo *b = shlo_new("e");
  *x = f32(b, DIMS(2, 3));
  *y = f32(b, DIMS(4, 5));
  *i = shlo_param(b, TTC_S32, DIMS(2, 3));
  return b;
}

#define EXPECT(expr, want)           \
  do {                               \
    b = fresh(&x, &y, &i);           \
    ttc_val expect_v_ = (expr);      \
    check_error(b, expect_v_, want); \
  } while (0)

static void test_errors(void) {
  shlo *b;
  ttc_val x, y, i;
  EXPECT(shlo_dot(b, x, y, 0, NULL, NULL, 1, INT(1), INT(0), TTC_F32),
         "shlo_dot: contracted sizes differ: 3 vs 4 (axis 1 of f32[2,3], axis 0 of f32[4,5])");
  EXPECT(shlo_add(b, x, y), "stablehlo.add: shapes do not broadcast: f32[2,3] and f32[4,5]");
  EXPECT(shlo_add(b, x, i), "stablehlo.add: expected operands of one dtype, got f32[2,3] and s32[2,3]");
  EXPECT(shlo_1(b, SHLO_SQRT, i), "stablehlo.sqrt: expected float or complex, got s32[2,3]");
  EXPECT(shlo_reshape(b, x, DIMS(7)), "shlo_reshape: f32[2,3] has not as many elements as f32[7]");
  EXPECT(shlo_transpose(b, x, INT(0, 0)), "shlo_transpose: axis 0 is named twice");
  EXPECT(shlo_reduce(b, SHLO_SUM, x, 1, INT(2)), "shlo_reduce: axis 2 is out of range, expected 0 to 1");
  EXPECT(shlo_reduce(b, SHLO_ANY, x, 1, INT(0)), "shlo_reduce: expected bool for ALL and ANY, got f32[2,3]");
  EXPECT(shlo_concat(b, 2, (const ttc_val[]){x, y}, 0), "shlo_concat: f32[2,3] and f32[4,5] differ beyond axis 0");
  EXPECT(shlo_slice_axis(b, x, 1, 1, 4), "shlo_slice: axis 1 of f32[2,3] has no [1:4:1]");
  EXPECT(shlo_pad(b, x, shlo_const_f(b, TTC_F32, 0, SCALAR), I64(-1, 0), I64(-2, 0), NULL),
         "shlo_pad: axis 0 of f32[2,3] cannot be padded by -1, -2, interior 0");
  EXPECT(shlo_select(b, i, x, x), "shlo_select: expected a bool condition, got s32[2,3]");
  EXPECT(shlo_broadcast_to(b, x, DIMS(2, 4)), "shlo_broadcast_to: f32[2,3] does not broadcast to f32[2,4]");
  EXPECT(shlo_bitcast(b, shlo_param(b, TTC_C64, SCALAR), TTC_F32), "shlo_bitcast: no bit cast of c64[] to f32");
  EXPECT(shlo_bitcast(b, x, TTC_F64), "shlo_bitcast: f32[2,3] to f64 wants a last dim of 2");
  EXPECT(shlo_take(b, x, x, 0), "shlo_gather: expected integer indices, got f32[2,3]");
  EXPECT(shlo_cholesky(b, x, true), "shlo_cholesky: expected square f32, f64 or complex matrices, got f32[2,3]");
  EXPECT(shlo_const_f(b, TTC_S32, NAN, SCALAR), "shlo_const_f: nan is no s32");
  EXPECT(shlo_const_f(b, TTC_F32, 0, DIMS(INT64_MAX, 4)),
         "shlo_const: the result f32[9223372036854775807,4] has too many elements");
  EXPECT(shlo_const_f(b, TTC_F32, 0, DIMS(-1)), "shlo_const: the result f32[-1] has a negative size");
  EXPECT(shlo_compare(b, SHLO_LT, shlo_const_f(b, TTC_C64, 0, SCALAR), shlo_const_f(b, TTC_C64, 1, SCALAR)),
         "shlo_compare: c64[] has no order");
  EXPECT(shlo_add(b, x, (ttc_val){99}), "stablehlo.add: operand 1 is no value of this builder (id 99)");
  EXPECT(shlo_error(b, TTC_UNIMPLEMENTED, "no %s", "angle"), "no angle");
  CHECK_EQ(err.code, TTC_UNIMPLEMENTED);
  b = fresh(&x, &y, &i);
  shlo_result(b, shlo_add(b, x, x));
  shlo_param_alias(b, 2, 0);
  char *text = NULL;
  CHECK_EQ(shlo_finish(b, &text, &err), TTC_INVALID_ARGUMENT);
  CHECK_STR(err.message, "shlo_param_alias: parameter 2, s32[2,3], is donated to result 0, f32[2,3]: types differ");
  shlo_free(b);
}

/* ---- regions: values stay where they were made */

static ttc_val kept;

static void keep(shlo *b, void *ctx, const ttc_val *a, ttc_val *r) {
  (void)ctx;
  kept = r[0] = shlo_add(b, a[0], a[1]);
}

static void leak(shlo *b, void *ctx, const ttc_val *a, ttc_val *r) {
  r[0] = shlo_add(b, a[0], *(const ttc_val *)ctx);
}

static void wrong(shlo *b, void *ctx, const ttc_val *a, ttc_val *r) {
  (void)ctx;
  r[0] = shlo_convert(b, a[0], TTC_S32);
}

static void nothing(shlo *b, void *ctx, const ttc_val *a, ttc_val *r) {
  (void)b, (void)ctx, (void)a, (void)r;
}

static void test_regions(void) {
  shlo *b = shlo_new("e");
  ttc_val x = f32(b, DIMS(3)), zero = shlo_const_f(b, TTC_F32, 0, SCALAR), r;
  shlo_reduce_body(b, 1, &x, &zero, 1, INT(0), keep, NULL, &r);
  CHECK(r.id >= 0);
  check_error(b, shlo_add(b, kept, r), "stablehlo.add: operand 0, f32[], belongs to another region");
  b = shlo_new("e");
  x = f32(b, DIMS(3));
  zero = shlo_const_f(b, TTC_F32, 0, SCALAR);
  shlo_reduce_body(b, 1, &x, &zero, 1, INT(0), leak, &zero, &r);
  check_error(b, r, "stablehlo.add: operand 1, f32[], belongs to another region");
  b = shlo_new("e");
  x = f32(b, DIMS(3));
  zero = shlo_const_f(b, TTC_F32, 0, SCALAR);
  shlo_reduce_body(b, 1, &x, &zero, 1, INT(0), wrong, NULL, &r);
  check_error(b, r, "shlo_reduce_body: the body's result 0 is s32[], expected f32[]");
  b = shlo_new("e");
  zero = f32(b, SCALAR);
  shlo_while(b, 1, &zero, nothing, nothing, NULL, &r);
  check_error(b, r, "shlo_while: operand 0 is no value of this builder (id -1)");
}

int main(void) {
  test_module();
  test_top_k();
  test_region();
  test_const_text();
  test_attributes();
  test_nothing();
  test_types();
  test_errors();
  test_regions();
  return CHECK_DONE();
}
