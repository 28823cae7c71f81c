/* Family "foreach": one op over lists of tensors, as one program. Each element is lowered by the row of the op it stands for, so a
 * foreach op means exactly what a loop over that op means. Also the two ops of GradScaler. */
#include <math.h>
#include <string.h>

#include "op/elem.h"
#include "op/lower.h"
#include "op/reduce.h"

/* name, op of one element, its arguments, static_args, unit_args. The arguments, a letter each, in the order of both schemas:
 * L the list's element   T one tensor for all   N the list's number   S one number for all   U the same, 1 being known
 * K a number that is part of the program   D dtype   and two that are the op's alone: - None, F false */
#define UNARY(X, f) X("_foreach_" f, f, "L", 0, 0)
/* clang-format off */
#define EACH(X) \
  UNARY(X, "abs") UNARY(X, "acos") UNARY(X, "asin") UNARY(X, "atan") UNARY(X, "ceil") UNARY(X, "cos") \
  UNARY(X, "cosh") UNARY(X, "erf") UNARY(X, "erfc") UNARY(X, "exp") UNARY(X, "expm1") UNARY(X, "floor") \
  UNARY(X, "frac") UNARY(X, "lgamma") UNARY(X, "log") UNARY(X, "log10") UNARY(X, "log1p") UNARY(X, "log2") \
  UNARY(X, "max") UNARY(X, "neg") UNARY(X, "reciprocal") UNARY(X, "round") UNARY(X, "rsqrt") UNARY(X, "sigmoid") \
  UNARY(X, "sign") UNARY(X, "sin") UNARY(X, "sinh") UNARY(X, "sqrt") UNARY(X, "tan") UNARY(X, "tanh") \
  UNARY(X, "trunc") UNARY(X, "zero") \
  X("_foreach_add.Scalar", "add.Scalar", "LS", 0, 0) \
  X("_foreach_add.ScalarList", "add.Scalar", "LN", 0, 0) \
  X("_foreach_add.List", "add.Tensor", "LLU", 0, 4) \
  X("_foreach_add.Tensor", "add.Tensor", "LTU", 0, 4) \
  X("_foreach_sub.Scalar", "sub.Scalar", "LS", 0, 0) \
  X("_foreach_sub.ScalarList", "sub.Scalar", "LN", 0, 0) \
  X("_foreach_sub.List", "sub.Tensor", "LLU", 0, 4) \
  X("_foreach_mul.Scalar", "mul.Scalar", "LS", 0, 0) \
  X("_foreach_mul.ScalarList", "mul.Scalar", "LN", 0, 0) \
  X("_foreach_mul.List", "mul.Tensor", "LL", 0, 0) \
  X("_foreach_mul.Tensor", "mul.Tensor", "LT", 0, 0) \
  X("_foreach_div.Scalar", "div.Scalar", "LS", 0, 0) \
  X("_foreach_div.ScalarList", "div.Scalar", "LN", 0, 0) \
  X("_foreach_div.List", "div.Tensor", "LL", 0, 0) \
  X("_foreach_div.Tensor", "div.Tensor", "LT", 0, 0) \
  X("_foreach_clamp_min.Scalar", "clamp_min", "LS", 0, 0) \
  X("_foreach_clamp_min.ScalarList", "clamp_min", "LN", 0, 0) \
  X("_foreach_clamp_min.List", "maximum", "LL", 0, 0) \
  X("_foreach_clamp_max.Scalar", "clamp_max", "LS", 0, 0) \
  X("_foreach_clamp_max.ScalarList", "clamp_max", "LN", 0, 0) \
  X("_foreach_clamp_max.List", "minimum", "LL", 0, 0) \
  X("_foreach_maximum.Scalar", "clamp_min", "LS", 0, 0) \
  X("_foreach_maximum.ScalarList", "clamp_min", "LN", 0, 0) \
  X("_foreach_maximum.List", "maximum", "LL", 0, 0) \
  X("_foreach_minimum.Scalar", "clamp_max", "LS", 0, 0) \
  X("_foreach_minimum.ScalarList", "clamp_max", "LN", 0, 0) \
  X("_foreach_minimum.List", "minimum", "LL", 0, 0) \
  X("_foreach_pow.Scalar", "pow.Tensor_Scalar", "LK", 2, 0) \
  X("_foreach_pow.ScalarList", "pow.Tensor_Tensor", "LN", 0, 0) \
  X("_foreach_pow.List", "pow.Tensor_Tensor", "LL", 0, 0) \
  X("_foreach_pow.ScalarAndTensor", "pow.Scalar", "SL", 0, 0) \
  X("_foreach_lerp.Scalar", "lerp.Scalar", "LLS", 0, 0) \
  X("_foreach_lerp.ScalarList", "lerp.Scalar", "LLN", 0, 0) \
  X("_foreach_lerp.List", "lerp.Tensor", "LLL", 0, 0) \
  X("_foreach_addcmul.Scalar", "addcmul", "LLLS", 0, 0) \
  X("_foreach_addcmul.ScalarList", "addcmul", "LLLN", 0, 0) \
  X("_foreach_addcdiv.Scalar", "addcdiv", "LLLS", 0, 0) \
  X("_foreach_addcdiv.ScalarList", "addcdiv", "LLLN", 0, 0) \
  X("_foreach_norm.Scalar", "linalg_vector_norm", "LK-FD", 2, 0) \
  X("_foreach_mm", "mm", "LL", 0, 0)
/* clang-format on */

typedef struct each {
  const char *name, *op, *args;
} each;
#define ITEM(name, op, args, statics, units) {name, op, args},
static const each items[] = {EACH(ITEM)};
enum { MAX_ARG = 6 };

static const each *find(const char *name) {
  for (size_t k = 0; k < sizeof items / sizeof *items; k++) {
    if (strcmp(items[k].name, name) == 0) {
      return &items[k];
    }
  }
  return NULL;
}

/* One element's call: its arguments and what they point at. */
typedef struct node {
  ttc_arg args[MAX_ARG];
  ttc_tensor tensors[MAX_ARG];
  ttc_scalar scalars[MAX_ARG];
  shlo_type types[MAX_ARG];
  ttc_val values[MAX_ARG];
} node;

static void set_tensor(shlo *b, node *n, int at, ttc_val v) {
  n->values[at] = v;
  n->types[at] = *shlo_typeof(b, v);
  n->tensors[at] = (ttc_tensor){.sizes = n->types[at].dims,
                                .strides = n->types[at].dims,
                                .value = at,
                                .dtype = (uint8_t)n->types[at].dtype,
                                .ndim = (uint8_t)n->types[at].ndim};
  n->args[at] = (ttc_arg){.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &n->tensors[at]};
}

/* A reference to number (i, place) of the foreach call. */
static void set_number(node *n, int at, ttc_scalar_kind kind, int i, int place) {
  n->scalars[at] = (ttc_scalar){.kind = (uint8_t)kind, .wrapped = 2, .i = i, .re = place};
  n->args[at] = (ttc_arg){.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &n->scalars[at]};
}

static void set_constant(node *n, int at, ttc_scalar_kind kind, double v) {
  n->scalars[at] = (ttc_scalar){.kind = (uint8_t)kind, .wrapped = 1, .i = (int64_t)(isfinite(v) ? v : 0), .re = v};
  n->args[at] = (ttc_arg){.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &n->scalars[at]};
}

/* Argument `at` of element k's call from argument i of the foreach call. */
static void set_argument(shlo *b, ttc_lower *c, node *n, int at, char letter, int i, int k) {
  n->args[at] = (ttc_arg){.kind = TTC_ARG_NONE};
  switch (letter) {
    case 'L':
      set_tensor(b, n, at, op_list_in(c, i, k));
      break;
    case 'T':
      set_tensor(b, n, at, op_in(c, i));
      break;
    case 'U':
      if (op_num_is_one(c, i)) {
        set_constant(n, at, TTC_SCALAR_INT, 1);
        break;
      }
      set_number(n, at, op_num_kind(c, i), i, 0);
      break;
    case 'S':
      set_number(n, at, op_num_kind(c, i), i, 0);
      break;
    case 'N':
      set_number(n, at, op_list_num_kind(c, i, k), i, k);
      break;
    case 'K':
      set_constant(n, at, op_num_kind(c, i), op_static_f(c, i));
      break;
    case 'F':
      n->args[at] = (ttc_arg){.kind = TTC_ARG_BOOL, .i = 0};
      break;
    case 'D':
      if (op_given(c, i)) {
        n->args[at] = (ttc_arg){.kind = TTC_ARG_DTYPE, .i = op_dtype_arg(c, i, TTC_F32)};
      }
      break;
    default:
      break;
  }
}

static void lower_each(shlo *b, ttc_lower *c) {
  const each *e = find(op_name(c));
  uint32_t op = e != NULL ? ttc_op_find(e->op) : UINT32_MAX;
  if (op == UINT32_MAX) {
    op_refuse(c, "%s: its elements' op has no row", op_name(c));
    return;
  }
  for (int k = 0; k < op_nout(c); k++) {
    node n;
    int narg = 0;
    for (int i = 0; e->args[narg] != '\0'; narg++) {
      set_argument(b, c, &n, narg, e->args[narg], i, k);
      i += e->args[narg] != '-' && e->args[narg] != 'F';
    }
    ttc_spec out = {.dtype = op_out_dtype(c, k), .ndim = op_out_ndim(c, k)};
    memcpy(out.sizes, op_out_sizes(c, k), (size_t)out.ndim * sizeof *out.sizes);
    ttc_call call = {.op = op, .narg = (uint32_t)narg, .args = n.args};
    ttc_val r = TTC_POISON;
    ttc__lower_node(c, &call, 1, &out, n.values, &r);
    op_ret(c, k, r);
  }
}

/* _foreach_copy(self, src), _foreach_clone(self)        param: the argument taken */
static void lower_copies(shlo *b, ttc_lower *c) {
  (void)b;
  for (int k = 0; k < op_nout(c); k++) {
    op_ret(c, k, op_list_in(c, op_param(c), k));
  }
}

/* --------------------------------------------------------------------------------------------------- GradScaler */

/* _amp_foreach_non_finite_check_and_unscale(grads, found_inf, inv_scale) -> grads · inv_scale.., found_inf or 1 if any is not
 * finite */
static void lower_unscale(shlo *b, ttc_lower *c) {
  ttc_val bad = shlo_const_i(b, TTC_BOOL, 0, 0, NULL), inv = shlo_reshape(b, op_in_as(c, 2, TTC_F32), 0, NULL);
  int n = op_list_len(c, 0);
  for (int k = 0; k < n; k++) {
    ttc_val g = op_list_in(c, 0, k);
    ttc__axes all = ttc__axes_all(shlo_ndim(b, g));
    ttc_val wrong = shlo_1(b, SHLO_NOT, shlo_1(b, SHLO_IS_FINITE, g));
    bad = elem_or(b, bad, shlo_reduce(b, SHLO_ANY, wrong, all.n, all.at));
    ttc_dtype d = ttc__dtype_op(shlo_dtype(b, g));
    op_ret(c, k, shlo_mul(b, shlo_convert(b, g, d), shlo_convert(b, inv, d)));
  }
  ttc_val found = op_in(c, 1);
  op_ret(c, n, shlo_select(b, bad, elem_f(b, found, 1), found));
}

/* _amp_update_scale(scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval) -> scale, growth_tracker:
 * shrink after an overflow; grow, if that stays finite, after growth_interval steps without one. */
static void lower_update_scale(shlo *b, ttc_lower *c) {
  ttc_val scale = op_in(c, 0), tracker = op_in(c, 1), found = elem_cmp(b, SHLO_NE, op_in(c, 2), 0);
  ttc_val good = shlo_add(b, tracker, elem_i(b, tracker, 1)), none = elem_i(b, tracker, 0);
  ttc_val due = elem_cmp(b, SHLO_EQ, good, (double)op_int(c, 5, 0));
  ttc_val grown = shlo_mul(b, scale, op_num(c, 3, 0, shlo_dtype(b, scale)));
  grown = shlo_select(b, elem_and(b, due, shlo_1(b, SHLO_IS_FINITE, grown)), grown, scale);
  op_ret(c, 0, shlo_select(b, found, shlo_mul(b, scale, op_num(c, 4, 0, shlo_dtype(b, scale))), grown));
  op_ret(c, 1, shlo_select(b, elem_or(b, found, due), none, good));
}

#define ROW(n, o, a, statics, units) {ELEM_HEAD(n, lower_each, 0, TOL_SUM), .static_args = (statics), .unit_args = (units)},
const ttc_op_row ttc__foreach_rows[] = {
    EACH(ROW) ELEM_ROW("_foreach_copy", lower_copies, 1, TOL_EXACT),
    ELEM_ROW("_foreach_clone", lower_copies, 0, TOL_EXACT),
    ELEM_ROW("_amp_foreach_non_finite_check_and_unscale", lower_unscale, 0, TOL_2ULP),
    ELEM_ROW("_amp_update_scale", lower_update_scale, 0, TOL_EXACT),
};
TTC_FAMILY(foreach)
