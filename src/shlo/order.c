#include "shlo/internal.h"

/* The operands, copied since results may be the same array; results are poison until the end. */
static bool take_operands(shlo *b, const char *op, int n, int most, const ttc_val *xs, ttc_val *copy, ttc_val *results) {
  if (n < 1 || n > most) {
    SHLO_FAIL(b, op, "%d operands, expected 1 to %d", n, most);
    return false;
  }
  for (int k = 0; k < n; k++) {
    copy[k] = xs[k];
    results[k] = TTC_POISON;
  }
  return shlo__ready(b, op, n, copy);
}

/* Does x come before y? NaN is greater than all, equal to itself; -0 equals 0. */
static ttc_val before(shlo *b, ttc_val x, ttc_val y, bool descending) {
  ttc_val less = shlo_compare(b, descending ? SHLO_GT : SHLO_LT, x, y);
  if (!ttc__is_float(shlo_dtype(b, x))) {
    return less;
  }
  ttc_val nan = shlo_is_nan(b, descending ? x : y), other = shlo_is_nan(b, descending ? y : x);
  return shlo_2(b, SHLO_OR, less, shlo_2(b, SHLO_AND, nan, shlo_1(b, SHLO_NOT, other)));
}

void shlo_sort(shlo *b, int n, const ttc_val *operands, int axis, bool descending, ttc_val *results) {
  const char *op = "shlo_sort";
  shlo_type types[SHLO__MAX_OPERAND / 2], args[SHLO__MAX_OPERAND];
  ttc_val in[SHLO__MAX_OPERAND], xs[SHLO__MAX_OPERAND / 2];
  if (!take_operands(b, op, n, SHLO__MAX_OPERAND / 2, operands, xs, results)) {
    return;
  }
  for (int k = 0; k < n; k++) {
    types[k] = *shlo_typeof(b, xs[k]);
    args[2 * k] = args[2 * k + 1] = (shlo_type){.dtype = types[k].dtype};
    if (!shlo__same_dims(&types[k], &types[0])) {
      SHLO_FAIL(b, op, "expected operands of one shape, got %s and %s", SHLO_NAME(b, xs[0]), SHLO_NAME(b, xs[k]));
      return;
    }
  }
  if (ttc__is_complex(types[0].dtype) || (types[0].ndim > 0 && (axis < 0 || axis >= types[0].ndim))) {
    SHLO_FAIL(b, op, "%s cannot be sorted along axis %d", SHLO_NAME(b, xs[0]), axis);
    return;
  }
  if (types[0].ndim == 0 || shlo__nelem(&types[0]) == 0 || types[0].dims[axis] == 1) {
    for (int k = 0; k < n; k++) {
      results[k] = xs[k];
    }
    return;
  }
  shlo__attr(b, "dimension = %d : i64", axis);
  shlo__attr(b, "is_stable = true");
  int32_t name = shlo__op_begin(b, "stablehlo.sort", n, xs, n);
  if (shlo__region_begin(b, false, 2 * n, args, in)) {
    ttc_val first = before(b, in[0], in[1], descending);
    shlo__region_end(b, 1, &first);
  }
  shlo__op_end(b, name, n, xs, n, types, results);
}

void shlo_top_k(shlo *b, ttc_val x, int64_t k, ttc_val *values, ttc_val *places) {
  const char *op = "shlo_top_k";
  *values = *places = TTC_POISON;
  if (!shlo__ready(b, op, 1, &x)) {
    return;
  }
  shlo_type t = *shlo_typeof(b, x);
  if (t.ndim == 0 || ttc__is_complex(t.dtype) || t.dtype == TTC_BOOL || k < 0 || k > t.dims[t.ndim - 1]) {
    SHLO_FAIL(b, op, "%s has no %lld largest", SHLO_NAME(b, x), (long long)k);
    return;
  }
  t.dims[t.ndim - 1] = k;
  shlo_type types[2] = {t, t};
  types[1].dtype = TTC_S32;
  if (shlo__nelem(&t) == 0) {
    *values = shlo__zeros(b, &types[0]);
    *places = shlo__zeros(b, &types[1]);
    return;
  }
  ttc_val results[2];
  shlo__attr(b, "k = %lld : i64", (long long)k);
  int32_t name = shlo__op_begin(b, "chlo.top_k", 1, &x, 2);
  shlo__op_end(b, name, 1, &x, 2, types, results);
  *values = results[0];
  *places = results[1];
}

void shlo_while(shlo *b, int n, const ttc_val *init, shlo_body cond, shlo_body body, void *ctx, ttc_val *results) {
  const char *op = "shlo_while";
  shlo_type types[SHLO__MAX_OPERAND], truth = {.dtype = TTC_BOOL};
  ttc_val start[SHLO__MAX_OPERAND];
  if (!take_operands(b, op, n, SHLO__MAX_OPERAND, init, start, results)) {
    return;
  }
  for (int k = 0; k < n; k++) {
    types[k] = *shlo_typeof(b, start[k]);
  }
  int32_t name = shlo__op_begin(b, "stablehlo.while", n, start, n);
  shlo__body_region(b, op, true, n, types, 1, &truth, cond, ctx);
  shlo__body_region(b, op, true, n, types, n, types, body, ctx);
  shlo__op_end(b, name, n, start, n, types, results);
}

void shlo_if(shlo *b, ttc_val pred, int n, const shlo_type *types, shlo_body then, shlo_body otherwise, void *ctx,
             ttc_val *results) {
  const char *op = "shlo_if";
  ttc_val in[1];
  for (int k = 0; k < n; k++) {
    results[k] = TTC_POISON;
  }
  if (!take_operands(b, op, 1, 1, &pred, in, &pred)) {
    return;
  }
  int32_t name = shlo__op_begin(b, "stablehlo.if", 1, in, n);
  shlo__body_region(b, op, true, 0, NULL, n, types, then, ctx);
  shlo__body_region(b, op, true, 0, NULL, n, types, otherwise, ctx);
  shlo__op_end(b, name, 1, in, n, types, results);
}
