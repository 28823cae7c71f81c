/* Family "compare": comparisons, predicates, logical and bitwise ops, selection, larger and smaller. */
#include <math.h>

#include "op/elem.h"

/* x cmp y in the promoted type, numbers rounded to it; complex: eq and ne only.        param: shlo_cmp */
static void lower_compare(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_promote(c, 0, 1);
  op_ret(c, 0, shlo_compare(b, (shlo_cmp)op_param(c), op_in_as(c, 0, d), op_in_as(c, 1, d)));
}

/* Predicates of one tensor. */
enum { IS_NAN, IS_INF, IS_POSINF, IS_NEGINF, IS_FINITE };
static ttc_val predicate(shlo *b, int which, ttc_val x) {
  switch (which) {
    case IS_NAN:
      return shlo_is_nan(b, x);
    case IS_INF:
      return elem_cmp(b, SHLO_EQ, shlo_1(b, SHLO_ABS, x), INFINITY);
    case IS_POSINF:
      return elem_cmp(b, SHLO_EQ, x, INFINITY);
    case IS_NEGINF:
      return elem_cmp(b, SHLO_EQ, x, -INFINITY);
    default:
      return shlo_1(b, SHLO_IS_FINITE, x);
  }
}
static void lower_predicate(shlo *b, ttc_lower *c) {
  int which = op_param(c);
  ttc_val x = op_in(c, 0);
  if (ttc__is_complex(op_in_dtype(c, 0))) {
    ttc_val re = predicate(b, which, shlo_1(b, SHLO_REAL, x)), im = predicate(b, which, shlo_1(b, SHLO_IMAG, x));
    op_ret(c, 0, which == IS_FINITE ? elem_and(b, re, im) : elem_or(b, re, im));
  } else if (ttc__is_float(op_in_dtype(c, 0))) {
    op_ret(c, 0, predicate(b, which, x));
  } else {
    op_ret(c, 0, shlo_const_i(b, TTC_BOOL, which == IS_FINITE, 0, NULL));
  }
}

/* Logical ops of any types: x != 0 first.        param: shlo_op2 */
static void lower_logical(shlo *b, ttc_lower *c) {
  op_ret(c, 0, shlo_2(b, (shlo_op2)op_param(c), op_in_as(c, 0, TTC_BOOL), op_in_as(c, 1, TTC_BOOL)));
}
static void lower_logical_not(shlo *b, ttc_lower *c) {
  op_ret(c, 0, elem_not(b, op_in_as(c, 0, TTC_BOOL)));
}

/* and, or, xor of integers and bools        param: shlo_op2 */
static void lower_bitwise(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_promote(c, 0, 1);
  op_ret(c, 0, shlo_2(b, (shlo_op2)op_param(c), op_in_as(c, 0, d), op_in_as(c, 1, d)));
}
/* Shifts by a negative number or by all bits and more: 0 to the left, the sign to the right (as StableHLO's).        param: 1 left
 */
static void lower_shift(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_promote(c, 0, 1);
  if (!ttc__is_integral(d) || d == TTC_BOOL) {
    op_refuse(c, "%s of %s", op_name(c), ttc_dtype_name(d));
    return;
  }
  shlo_op2 op = op_param(c) ? SHLO_SHL : ttc__is_unsigned(d) ? SHLO_SHR_L : SHLO_SHR_A;
  op_ret(c, 0, shlo_2(b, op, op_in_as(c, 0, d), op_in_as(c, 1, d)));
}

/* maximum, minimum (NaN stays), fmax, fmin (the other operand instead of NaN).        param: shlo_op2, negative for fmax and fmin
 */
static void lower_extreme(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_promote(c, 0, 1);
  ttc_val x = op_in_as(c, 0, d), y = op_in_as(c, 1, d);
  int op = op_param(c);
  ttc_val m = shlo_2(b, (shlo_op2)(op < 0 ? -op : op), x, y);
  if (op < 0 && ttc__is_float(d))
    m = shlo_select(b, shlo_is_nan(b, x), y, shlo_select(b, shlo_is_nan(b, y), x, m));
  op_ret(c, 0, m);
}

/* clamp(x, lo, hi), clamp_min, clamp_max, bounds numbers or tensors or None: min(max(x, lo), hi); NaN anywhere stays.
 * param: the argument that is lo, plus 8 × that which is hi (0: none) */
static void lower_clamp(shlo *b, ttc_lower *c) {
  int lo = op_param(c) % 8, hi = op_param(c) / 8, last = lo > hi ? lo : hi;
  ttc_dtype d = op_promote(c, 0, last);
  ttc_val x = op_in_as(c, 0, d);
  if (lo && op_given(c, lo))
    x = shlo_2(b, SHLO_MAX, x, op_in_as(c, lo, d));
  if (hi && op_given(c, hi))
    x = shlo_2(b, SHLO_MIN, x, op_in_as(c, hi, d));
  op_ret(c, 0, x);
}

/* where(condition, x, y); the condition may be uint8. */
static void lower_where(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_promote(c, 1, 2);
  op_ret(c, 0, shlo_select(b, op_in_as(c, 0, TTC_BOOL), op_in_as(c, 1, d), op_in_as(c, 2, d)));
}

/* masked_fill(x, mask, v): v in x's type */
static void lower_masked_fill(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_in_dtype(c, 0);
  op_ret(c, 0, shlo_select(b, op_in_as(c, 1, TTC_BOOL), op_in_as(c, 2, d), op_in_as(c, 0, d)));
}

#define EXACT(name, rule, param) EACH_ROW(name, rule, param, TOL_EXACT)
#define COMPARE(name, op) EXACT(name ".Tensor", lower_compare, op), EXACT(name ".Scalar", lower_compare, op)
#define BITWISE(name, op)                                                             \
  EXACT(name ".Tensor", lower_bitwise, op), EXACT(name ".Scalar", lower_bitwise, op), \
      EXACT(name ".Scalar_Tensor", lower_bitwise, op)
#define SHIFT(name, left)                                                                    \
  EXACT(name ".Tensor", lower_shift, left), EXACT(name ".Tensor_Scalar", lower_shift, left), \
      EXACT(name ".Scalar_Tensor", lower_shift, left)
const ttc_op_row ttc__compare_rows[] = {
    COMPARE("eq", SHLO_EQ),
    COMPARE("ne", SHLO_NE),
    COMPARE("lt", SHLO_LT),
    COMPARE("le", SHLO_LE),
    COMPARE("gt", SHLO_GT),
    COMPARE("ge", SHLO_GE),
    EXACT("isnan", lower_predicate, IS_NAN),
    EXACT("isinf", lower_predicate, IS_INF),
    EXACT("isposinf", lower_predicate, IS_POSINF),
    EXACT("isneginf", lower_predicate, IS_NEGINF),
    EXACT("logical_and", lower_logical, SHLO_AND),
    EXACT("logical_or", lower_logical, SHLO_OR),
    EXACT("logical_xor", lower_logical, SHLO_XOR),
    EXACT("logical_not", lower_logical_not, 0),
    BITWISE("bitwise_and", SHLO_AND),
    BITWISE("bitwise_or", SHLO_OR),
    BITWISE("bitwise_xor", SHLO_XOR),
    SHIFT("bitwise_left_shift", 1),
    SHIFT("bitwise_right_shift", 0),
    EXACT("__lshift__.Tensor", lower_shift, 1),
    EXACT("__lshift__.Scalar", lower_shift, 1),
    EXACT("__rshift__.Tensor", lower_shift, 0),
    EXACT("__rshift__.Scalar", lower_shift, 0),
    EXACT("maximum", lower_extreme, SHLO_MAX),
    EXACT("minimum", lower_extreme, SHLO_MIN),
    EXACT("fmax", lower_extreme, -SHLO_MAX),
    EXACT("fmin", lower_extreme, -SHLO_MIN),
    EXACT("clamp", lower_clamp, 1 + 8 * 2),
    EXACT("clamp.Tensor", lower_clamp, 1 + 8 * 2),
    EXACT("clamp_min", lower_clamp, 1),
    EXACT("clamp_min.Tensor", lower_clamp, 1),
    EXACT("clamp_max", lower_clamp, 8),
    EXACT("clamp_max.Tensor", lower_clamp, 8),
    EXACT("where.self", lower_where, 0),
    EXACT("masked_fill.Scalar", lower_masked_fill, 0),
    EXACT("masked_fill.Tensor", lower_masked_fill, 0),
};
TTC_FAMILY(compare)
