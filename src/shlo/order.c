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
