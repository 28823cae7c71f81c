/* Family "optim": the fused optimizers, every parameter's step in one program. Sources: aten::_fused_adam, _fused_adamw,
 * _fused_sgd, _fused_adagrad and their tensor_lr forms.
 *
 * Results are the lists that the in-place op writes, each in the order of its tensors; the gradients among them, which change only
 * where GradScaler's grad_scale is given. found_inf = 1 leaves everything as it was. 16-bit parameters are computed in f32. */
#include <string.h>

#include "op/elem.h"

/* Results' specs are the written arguments' own. The first `nlist` arguments are written. */
static ttc_status infer_written(const ttc_call *call, uint32_t nlist, uint32_t max, ttc_spec *specs, uint32_t *nout,
                                ttc_error *err) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < nlist && i < call->narg; i++) {
    for (uint32_t k = 0; call->args[i].kind == TTC_ARG_TENSORS && k < call->args[i].n; k++, n++) {
      const ttc_tensor *t = &call->args[i].tensor[k];
      if (n >= max) {
        return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "more than %u results", max);
      }
      specs[n] = (ttc_spec){.dtype = (ttc_dtype)t->dtype, .ndim = t->ndim};
      memcpy(specs[n].sizes, t->sizes, t->ndim * sizeof *t->sizes);
      ttc__spec_dense(&specs[n]);
    }
  }
  *nout = n;
  return TTC_OK;
}
static ttc_status infer_3(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  return infer_written(call, 3, max, specs, nout, err);
}
static ttc_status infer_4(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  return infer_written(call, 4, max, specs, nout, err);
}
static ttc_status infer_5(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  return infer_written(call, 5, max, specs, nout, err);
}

/* What all optimizers begin and end with. */
typedef struct step {
  shlo *b;
  ttc_lower *c;
  int n;             /* parameters */
  ttc_val found_inf; /* bool scalar, or poison where the argument is absent */
  int grad_scale;    /* argument */
  bool scaled;
  bool maximize;
} step;

static step begin(shlo *b, ttc_lower *c, int maximize, int grad_scale) {
  step s = {.b = b, .c = c, .n = op_list_len(c, 0), .found_inf = TTC_POISON, .grad_scale = grad_scale};
  s.scaled = op_given(c, grad_scale);
  s.maximize = op_bool(c, maximize);
  if (op_given(c, grad_scale + 1)) {
    s.found_inf = elem_cmp(b, SHLO_EQ, shlo_reshape(b, op_in_as(c, grad_scale + 1, TTC_F32), 0, NULL), 1);
  }
  return s;
}

/* Element k of list i, in the type the step is computed in. */
static ttc_val load(const step *s, int i, int k) {
  return op_list_in_as(s->c, i, k, ttc__dtype_op(op_list_dtype(s->c, 0, k)));
}

/* The new contents of element k of list `list`, unless the step is to be skipped. */
static void store(const step *s, int list, int k, ttc_val v) {
  ttc_val old = op_list_in(s->c, list, k);
  v = shlo_convert(s->b, v, shlo_dtype(s->b, old));
  op_ret(s->c, list * s->n + k, s->found_inf.id >= 0 ? shlo_select(s->b, s->found_inf, old, v) : v);
}

/* The gradient as it is used; stores it unscaled. */
static ttc_val gradient(const step *s, int k) {
  if (!s->scaled) {
    op_ret(s->c, s->n + k, op_list_in(s->c, 1, k));
  }
  ttc_val g = load(s, 1, k);
  if (s->scaled) {
    g = shlo_div(s->b, g, shlo_reshape(s->b, op_in_as(s->c, s->grad_scale, shlo_dtype(s->b, g)), 0, NULL));
    store(s, 1, k, g);
  }
  return s->maximize ? shlo_1(s->b, SHLO_NEG, g) : g;
}

/* Number (or one-element tensor) i in v's type. */
static ttc_val number(const step *s, int i, ttc_val v) {
  return shlo_reshape(s->b, op_in_as(s->c, i, shlo_dtype(s->b, v)), 0, NULL);
}

/* 1 - beta, where beta near 1 must not be rounded to f32 first. */
static ttc_val one_less(const step *s, int i, ttc_val v) {
  ttc_val one = shlo_const_f(s->b, TTC_F64, 1, 0, NULL);
  return shlo_convert(s->b, shlo_sub(s->b, one, op_num(s->c, i, 0, TTC_F64)), shlo_dtype(s->b, v));
}

/* 1 - beta^t = -expm1(t · log1p(-(1 - beta))), exact for small t too. */
static ttc_val bias_correction(const step *s, ttc_val rest, ttc_val t) {
  ttc_val log_beta = shlo_1(s->b, SHLO_LOG1P, shlo_1(s->b, SHLO_NEG, rest));
  return shlo_1(s->b, SHLO_NEG, shlo_1(s->b, SHLO_EXPM1, shlo_mul(s->b, t, log_beta)));
}

/* _fused_adam, _fused_adamw (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr 6, beta1 7, beta2 8, weight_decay
 * 9, eps 10, amsgrad 11, maximize 12, grad_scale 13, found_inf 14)        param: 1 for adamw, whose decay does not enter the
 * moments */
static void lower_adam(shlo *b, ttc_lower *c) {
  step s = begin(b, c, 12, 13);
  bool decoupled = op_param(c) == 1, amsgrad = op_bool(c, 11), decays = !op_num_is_zero(c, 9);
  for (int k = 0; k < s.n; k++) {
    ttc_val p = load(&s, 0, k), g = gradient(&s, k), m = load(&s, 2, k), v = load(&s, 3, k);
    ttc_val lr = number(&s, 6, p), t = shlo_reshape(b, load(&s, 5, k), 0, NULL);
    ttc_val rest1 = one_less(&s, 7, p), rest2 = one_less(&s, 8, p);
    if (decays && decoupled) {
      p = shlo_mul(b, p, elem_rsub(b, 1, shlo_mul(b, lr, number(&s, 9, p))));
    } else if (decays) {
      g = shlo_add(b, g, shlo_mul(b, p, number(&s, 9, p)));
    }
    m = shlo_add(b, m, shlo_mul(b, rest1, shlo_sub(b, g, m)));
    v = shlo_add(b, shlo_mul(b, number(&s, 8, p), v), shlo_mul(b, rest2, shlo_mul(b, g, g)));
    store(&s, 2, k, m);
    store(&s, 3, k, v);
    if (amsgrad) {
      v = shlo_2(b, SHLO_MAX, load(&s, 4, k), v);
      store(&s, 4, k, v);
    }
    /* size·m / (sqrt(v)/root + eps) with one division an element */
    ttc_val root = shlo_1(b, SHLO_SQRT, bias_correction(&s, rest2, t));
    ttc_val size = shlo_mul(b, shlo_div(b, lr, bias_correction(&s, rest1, t)), root);
    ttc_val denominator = shlo_add(b, shlo_1(b, SHLO_SQRT, v), shlo_mul(b, number(&s, 10, p), root));
    store(&s, 0, k, shlo_sub(b, p, shlo_div(b, shlo_mul(b, size, m), denominator)));
  }
}

/* _fused_sgd(self, grads, momentum_buffer_list, weight_decay 3, momentum 4, lr 5, dampening 6, nesterov 7, maximize 8,
 * is_first_step 9, grad_scale 10, found_inf 11) */
static void lower_sgd(shlo *b, ttc_lower *c) {
  step s = begin(b, c, 8, 10);
  bool has_momentum = op_list_len(c, 2) > 0 && !op_num_is_zero(c, 4);
  for (int k = 0; k < s.n; k++) {
    ttc_val p = load(&s, 0, k), g = gradient(&s, k);
    if (!op_num_is_zero(c, 3)) {
      g = shlo_add(b, g, shlo_mul(b, p, number(&s, 3, p)));
    }
    if (has_momentum) {
      ttc_val m = g, momentum = number(&s, 4, p);
      if (!op_bool(c, 9)) {
        m = shlo_add(b, shlo_mul(b, momentum, load(&s, 2, k)), shlo_mul(b, g, elem_rsub(b, 1, number(&s, 6, p))));
      }
      store(&s, 2, k, m);
      g = op_bool(c, 7) ? shlo_add(b, g, shlo_mul(b, momentum, m)) : m;
    } else if (op_list_len(c, 2) > 0) {
      op_ret(c, 2 * s.n + k, op_list_in(c, 2, k));
    }
    store(&s, 0, k, shlo_sub(b, p, shlo_mul(b, number(&s, 5, p), g)));
  }
}

/* _fused_adagrad(self, grads, state_sums, state_steps, lr 4, lr_decay 5, weight_decay 6, eps 7, maximize 8, grad_scale 9, found_inf
 * 10) The steps are read; the form with a number lr also returns them. */
static void lower_adagrad(shlo *b, ttc_lower *c) {
  step s = begin(b, c, 8, 9);
  for (int k = 0; k < s.n; k++) {
    ttc_val p = load(&s, 0, k), g = gradient(&s, k), t = shlo_reshape(b, load(&s, 3, k), 0, NULL);
    if (!op_num_is_zero(c, 6)) {
      g = shlo_add(b, g, shlo_mul(b, p, number(&s, 6, p)));
    }
    ttc_val decay = shlo_mul(b, shlo_sub(b, t, elem_f(b, t, 1)), number(&s, 5, p));
    ttc_val size = shlo_div(b, number(&s, 4, p), shlo_add(b, elem_f(b, decay, 1), decay));
    ttc_val sum = shlo_add(b, load(&s, 2, k), shlo_mul(b, g, g));
    store(&s, 2, k, sum);
    store(&s, 0, k, shlo_sub(b, p, shlo_div(b, shlo_mul(b, size, g), shlo_add(b, shlo_1(b, SHLO_SQRT, sum), number(&s, 7, p)))));
    if (op_nout(c) > 3 * s.n) {
      op_ret(c, 3 * s.n + k, op_list_in(c, 3, k));
    }
  }
}

#define OPTIM(n, r, p, i, units) {ELEM_HEAD(n, r, p, TOL_LOOSE), .flags = TTC_OP_NO_META, .infer = (i), .unit_args = (units)}
const ttc_op_row ttc__optim_rows[] = {
    OPTIM("_fused_adam", lower_adam, 0, infer_5, 1u << 9),
    OPTIM("_fused_adam.tensor_lr", lower_adam, 0, infer_5, 1u << 9),
    OPTIM("_fused_adamw", lower_adam, 1, infer_5, 1u << 9),
    OPTIM("_fused_adamw.tensor_lr", lower_adam, 1, infer_5, 1u << 9),
    OPTIM("_fused_sgd", lower_sgd, 0, infer_3, 1u << 3 | 1u << 4),
    OPTIM("_fused_sgd.tensor_lr", lower_sgd, 0, infer_3, 1u << 3 | 1u << 4),
    OPTIM("_fused_adagrad", lower_adagrad, 0, infer_4, 1u << 6),
    OPTIM("_fused_adagrad.tensor_lr", lower_adagrad, 0, infer_3, 1u << 6),
};
TTC_FAMILY(optim)
