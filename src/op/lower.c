/* Lowering: what a rule asks is answered from the call, and what it returns is written where the call wants it. */
#include "op/lower.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One program being built: what all nodes of a graph share. */
typedef struct program {
  const ttc__lower_in *in;
  shlo *b;
  uint32_t *first; /* [narg + 1] place in visiting order of each argument's first tensor; last: of the first `into` */
  ttc_val *slots;  /* [nslot] current contents; meaningful where read or written */
  uint8_t *have;   /* [nslot] HAVE_* */
  ttc__param *params;
  ttc_val *param_values;
  uint32_t nparam, cap;
  ttc_val fault; /* TTC_POISON until something is checked */
  bool quiet;
  int depth; /* regions around what is being lowered */
  bool carry_faults, fault_in_region;
  uint32_t nverify;
  ttc__verify verify[TTC__MAX_VERIFY];
} program;
enum { HAVE_PARAM = 1, HAVE_WRITE = 2 };

struct ttc_lower {
  program *p;
  ttc_lower *graph; /* the graph's own frame while one of its nodes is lowered, else NULL */
  const ttc_call *call;
  const ttc_op_row *row;
  uint32_t nout;
  const ttc_spec *outs;
  const ttc_val *values; /* graph values, for nodes */
  ttc_val *rets;         /* [nout], TTC_POISON until op_ret */
};

uint32_t ttc__visit(const ttc_call *call, ttc__visitor visit, void *ctx) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < call->narg; i++) {
    const ttc_arg *a = &call->args[i];
    if (a->kind != TTC_ARG_TENSOR && a->kind != TTC_ARG_TENSORS) {
      continue;
    }
    for (uint32_t k = 0; k < a->n; k++) {
      if (!ttc__absent(&a->tensor[k])) {
        visit(ctx, &a->tensor[k]);
        n++;
      }
    }
  }
  for (uint32_t k = 0; k < call->ninto; k++) {
    if (call->into[k] != NULL) {
      visit(ctx, call->into[k]);
      n++;
    }
  }
  return n;
}

/* ------------------------------------------------------------------------------------------------------ parameters */

static ttc_val param(program *p, ttc__param what, ttc_dtype d, int ndim, const int64_t *dims) {
  for (uint32_t i = 0; i < p->nparam; i++) {
    const ttc__param *q = &p->params[i];
    if (what.kind != TTC__PARAM_STORE && q->kind == what.kind && q->dtype == what.dtype && q->i == what.i && q->k == what.k) {
      return p->param_values[i];
    }
  }
  if (p->nparam == p->cap) {
    uint32_t cap = p->cap == 0 ? 16 : 2 * p->cap;
    ttc__param *params = realloc(p->params, cap * sizeof *params);
    if (params != NULL) {
      p->params = params;
    }
    ttc_val *values = realloc(p->param_values, cap * sizeof *values);
    if (values != NULL) {
      p->param_values = values;
    }
    if (params == NULL || values == NULL) {
      return shlo_error(p->b, TTC_RESOURCE_EXHAUSTED, "out of memory while lowering");
    }
    p->cap = cap;
  }
  ttc_val v = shlo_param(p->b, d, ndim, dims);
  p->params[p->nparam] = what;
  p->param_values[p->nparam++] = v;
  return v;
}

static ttc_val slot_param(program *p, uint32_t slot) {
  ttc__base base = ttc__base_physical(&p->in->bases[slot]);
  return param(p, (ttc__param){.kind = TTC__PARAM_STORE, .i = slot}, (ttc_dtype)base.dtype, base.ndim, base.dims);
}

/* What is in a buffer, without what is past the end. */
static ttc_val closed(program *p, uint32_t slot, ttc_val v) {
  const ttc__base *base = &p->in->bases[slot];
  return base->open != 0 ? shlo_slice_axis(p->b, v, base->open - 1, 0, base->dims[base->open - 1]) : v;
}

static ttc_val slot_value(program *p, uint32_t slot) {
  if (p->have[slot] == 0) {
    p->slots[slot] = closed(p, slot, slot_param(p, slot));
    p->have[slot] = HAVE_PARAM;
  }
  return p->slots[slot];
}

/* Arguments always see the contents from before the call. */
static ttc_val slot_before(program *p, uint32_t slot) {
  if ((p->have[slot] & HAVE_WRITE) == 0) {
    return slot_value(p, slot);
  }
  for (uint32_t i = 0; i < p->nparam; i++) {
    if (p->params[i].kind == TTC__PARAM_STORE && p->params[i].i == slot) {
      return closed(p, slot, p->param_values[i]);
    }
  }
  return closed(p, slot, slot_param(p, slot));
}

/* ------------------------------------------------------------------------------------------------ asking: arguments */

static const ttc_arg none = {.kind = TTC_ARG_NONE};
static const ttc_arg *arg(const ttc_lower *c, int i) {
  return i >= 0 && (uint32_t)i < c->call->narg ? &c->call->args[i] : &none;
}

int op_param(const ttc_lower *c) {
  return c->row->param;
}
const char *op_name(const ttc_lower *c) {
  return c->row->name;
}
unsigned op_narg(const ttc_lower *c) {
  return c->call->narg;
}
bool op_given(const ttc_lower *c, int i) {
  return arg(c, i)->kind != TTC_ARG_NONE;
}

static uint32_t visiting_place(const ttc_lower *c, int i, int k) {
  const ttc_arg *a = arg(c, i);
  uint32_t at = c->p->first[i];
  for (int j = 0; j < k; j++) {
    at += ttc__absent(&a->tensor[j]) ? 0 : 1;
  }
  return at;
}

ttc_val op_inside(shlo *b, int axis, int ndim, const int64_t *dims, ttc_val length) {
  return shlo_compare(b, SHLO_LT, shlo_iota(b, TTC_S32, axis, ndim, dims), length);
}

/* Open number k of the call, an s32. */
static ttc_val open_number(ttc_lower *c, uint32_t k) {
  ttc__param what = {.kind = TTC__PARAM_NUMBER, .dtype = TTC_S32, .i = c->p->in->call->narg, .k = k};
  return param(c->p, what, TTC_S32, 0, NULL);
}

static ttc_val filling(shlo *b, ttc__filling fill, ttc_dtype d) {
  if (fill == TTC__FILL_LOWEST || fill == TTC__FILL_HIGHEST) {
    return fill == TTC__FILL_LOWEST ? shlo_lowest(b, d) : shlo_highest(b, d);
  }
  int64_t v = fill == TTC__FILL_ONE ? 1 : 0;
  return ttc__is_inexact(d) ? shlo_const_f(b, d, (double)v, 0, NULL) : shlo_const_i(b, d, v, 0, NULL);
}

/* A tensor of an open store: a part of it like any other tensor, or all of it up to the bound, with what is past the length as the
 * row's kind wants it. Never multiplied by 0: it may be NaN. */
static ttc_val open_value(ttc_lower *c, const ttc_tensor *t, const ttc__open *o, uint32_t slot) {
  shlo *b = c->p->b;
  ttc__base base = c->p->in->bases[slot];
  ttc_val v = slot_before(c->p, slot), n = open_number(c, o->number);
  if (o->kind == TTC__OPEN_PART) {
    base.dims[o->base] = o->extent;
    return ttc__read_view(b, shlo_dynamic_slice_axis(b, v, o->base, n, o->extent), &base, t);
  }
  v = ttc__read_view(b, v, &base, t);
  if (o->fill == TTC__FILL_NOT) {
    return v;
  }
  return shlo_select(b, op_inside(b, o->axis, t->ndim, t->sizes, n), v, filling(b, (ttc__filling)o->fill, (ttc_dtype)t->dtype));
}

ttc_val op_length(ttc_lower *c, int i, int k, int axis) {
  const ttc_arg *a = arg(c, i);
  const ttc__open *open = c->p->in->open;
  if (open == NULL || c->graph != NULL || (a->kind != TTC_ARG_TENSOR && a->kind != TTC_ARG_TENSORS) || ttc__absent(&a->tensor[k])) {
    return TTC_POISON;
  }
  const ttc__open *o = &open[visiting_place(c, i, k)];
  axis = axis < 0 ? axis + a->tensor[k].ndim : axis;
  return o->kind == TTC__OPEN_WHOLE && o->axis == axis ? open_number(c, o->number) : TTC_POISON;
}

int op_out_open(const ttc_lower *c) {
  return c->graph == NULL ? c->p->in->out_open : 0;
}

static ttc_val tensor_value(ttc_lower *c, int i, int k) {
  const ttc_tensor *t = &arg(c, i)->tensor[k];
  if (ttc__absent(t)) {
    return shlo_error(c->p->b, TTC_INTERNAL, "%s reads an absent tensor (argument %d)", op_name(c), i);
  }
  if (t->value >= 0 && c->values != NULL) {
    return c->values[t->value];
  }
  uint32_t place = visiting_place(c, i, k), slot = c->p->in->slots[place];
  if (c->p->in->open != NULL && c->p->in->open[place].kind != TTC__OPEN_NOT) {
    return open_value(c, t, &c->p->in->open[place], slot);
  }
  return ttc__read_view(c->p->b, slot_before(c->p, slot), &c->p->in->bases[slot], t);
}

/* torch.get_default_dtype() at the call. */
static ttc_dtype default_float(const ttc_lower *c) {
  uint32_t d = c->p->in->call->default_float;
  return d != 0 ? (ttc_dtype)d : TTC_F32;
}

static ttc_dtype scalar_dtype(const ttc_lower *c, const ttc_scalar *s) {
  if (s->dtype != TTC_DTYPE_INVALID) {
    return (ttc_dtype)s->dtype;
  }
  switch ((ttc_scalar_kind)s->kind) {
    case TTC_SCALAR_BOOL:
      return TTC_BOOL;
    case TTC_SCALAR_INT:
      return TTC_S64;
    case TTC_SCALAR_FLOAT:
      return default_float(c);
    case TTC_SCALAR_COMPLEX:
      break;
  }
  return ttc__dtype_complex(default_float(c));
}

static ttc_val constant(shlo *b, const ttc_scalar *s, ttc_dtype d) {
  if (s->kind == TTC_SCALAR_COMPLEX && ttc__is_complex(d)) {
    ttc_dtype r = ttc__dtype_real(d);
    return shlo_complex(b, shlo_const_f(b, r, s->re, 0, NULL), shlo_const_f(b, r, s->im, 0, NULL));
  }
  if (s->kind == TTC_SCALAR_BOOL || s->kind == TTC_SCALAR_INT) {
    return ttc__is_inexact(d) ? shlo_const_f(b, d, (double)s->i, 0, NULL) : shlo_const_i(b, d, s->i, 0, NULL);
  }
  if (ttc__is_inexact(d)) {
    return shlo_const_f(b, d, s->re, 0, NULL);
  }
  return shlo_convert(b, shlo_const_f(b, TTC_F64, s->re, 0, NULL), d);
}

static const ttc_scalar *scalar(const ttc_lower *c, int i, int k) {
  const ttc_arg *a = arg(c, i);
  if ((a->kind == TTC_ARG_SCALAR && k == 0) || (a->kind == TTC_ARG_SCALARS && k >= 0 && (uint32_t)k < a->n)) {
    return &a->scalar[k];
  }
  return NULL;
}

static bool is_static(const ttc_lower *c, int i) {
  return i < 64 && ((c->row->static_args >> i) & 1) != 0;
}

ttc_val op_num(ttc_lower *c, int i, int k, ttc_dtype d) {
  const ttc_arg *a = arg(c, i);
  shlo *b = c->p->b;
  if (a->kind == TTC_ARG_INT || a->kind == TTC_ARG_BOOL) {
    return shlo_const_i(b, d, a->i, 0, NULL);
  }
  if (a->kind == TTC_ARG_TENSOR && c->values != NULL) { /* of a graph that is called within another */
    return shlo_convert(b, tensor_value(c, i, k), d);
  }
  const ttc_scalar *s = scalar(c, i, k);
  if (s == NULL) {
    return shlo_error(b, TTC_INTERNAL, "%s: argument %d is no number", op_name(c), i);
  }
  if (c->graph != NULL) {
    return s->wrapped == 2 ? op_num(c->graph, (int)s->i, (int)s->re, d) : constant(b, s, d);
  }
  if (is_static(c, i)) {
    return constant(b, s, d);
  }
  ttc__param what = {.kind = TTC__PARAM_NUMBER, .dtype = (uint8_t)d, .i = (uint32_t)i, .k = (uint32_t)k};
  return param(c->p, what, d, 0, NULL);
}

ttc_val op_in(ttc_lower *c, int i) {
  const ttc_arg *a = arg(c, i);
  if (a->kind == TTC_ARG_TENSOR) {
    return tensor_value(c, i, 0);
  }
  const ttc_scalar *s = scalar(c, i, 0);
  return op_num(c, i, 0, s != NULL ? scalar_dtype(c, s) : TTC_S64);
}

ttc_val op_in_as(ttc_lower *c, int i, ttc_dtype d) {
  return arg(c, i)->kind == TTC_ARG_TENSOR ? shlo_convert(c->p->b, tensor_value(c, i, 0), d) : op_num(c, i, 0, d);
}

bool op_is_number(const ttc_lower *c, int i) {
  return arg(c, i)->kind != TTC_ARG_TENSOR;
}

ttc_dtype op_in_dtype(const ttc_lower *c, int i) {
  const ttc_arg *a = arg(c, i);
  if (a->kind == TTC_ARG_TENSOR || (a->kind == TTC_ARG_TENSORS && a->n > 0)) {
    return (ttc_dtype)a->tensor[0].dtype;
  }
  const ttc_scalar *s = scalar(c, i, 0);
  return s != NULL ? scalar_dtype(c, s) : TTC_S64;
}

int op_in_ndim(const ttc_lower *c, int i) {
  return arg(c, i)->kind == TTC_ARG_TENSOR ? arg(c, i)->tensor[0].ndim : 0;
}

static const int64_t no_sizes[1] = {1};
const int64_t *op_in_sizes(const ttc_lower *c, int i) {
  const ttc_arg *a = arg(c, i);
  return a->kind == TTC_ARG_TENSOR && a->tensor[0].ndim > 0 ? a->tensor[0].sizes : no_sizes;
}

int64_t op_in_dim(const ttc_lower *c, int i, int axis) {
  int n = op_in_ndim(c, i);
  axis = axis < 0 ? axis + n : axis;
  return axis >= 0 && axis < n ? op_in_sizes(c, i)[axis] : 1;
}

bool op_in_contiguous(const ttc_lower *c, int i) {
  const ttc_arg *a = arg(c, i);
  return a->kind != TTC_ARG_TENSOR || ttc__is_dense(a->tensor[0].ndim, a->tensor[0].sizes, a->tensor[0].strides);
}

int op_list_len(const ttc_lower *c, int i) {
  const ttc_arg *a = arg(c, i);
  return a->kind == TTC_ARG_TENSORS || a->kind == TTC_ARG_SCALARS || a->kind == TTC_ARG_INTS ? (int)a->n : 0;
}

bool op_list_given(const ttc_lower *c, int i, int k) {
  const ttc_arg *a = arg(c, i);
  return a->kind == TTC_ARG_TENSORS && (uint32_t)k < a->n && !ttc__absent(&a->tensor[k]);
}

ttc_val op_list_in(ttc_lower *c, int i, int k) {
  return tensor_value(c, i, k);
}
ttc_val op_list_in_as(ttc_lower *c, int i, int k, ttc_dtype d) {
  return shlo_convert(c->p->b, tensor_value(c, i, k), d);
}
ttc_dtype op_list_dtype(const ttc_lower *c, int i, int k) {
  return (ttc_dtype)arg(c, i)->tensor[k].dtype;
}

double op_static_f(const ttc_lower *c, int i) {
  const ttc_arg *a = arg(c, i);
  const ttc_scalar *s = scalar(c, i, 0);
  if (s == NULL) {
    return a->kind == TTC_ARG_INT || a->kind == TTC_ARG_BOOL ? (double)a->i : 0;
  }
  return s->kind == TTC_SCALAR_BOOL || s->kind == TTC_SCALAR_INT ? (double)s->i : s->re;
}

int64_t op_static_i(const ttc_lower *c, int i) {
  const ttc_arg *a = arg(c, i);
  const ttc_scalar *s = scalar(c, i, 0);
  if (s == NULL) {
    return a->kind == TTC_ARG_INT || a->kind == TTC_ARG_BOOL ? a->i : 0;
  }
  return s->kind == TTC_SCALAR_BOOL || s->kind == TTC_SCALAR_INT ? s->i : (int64_t)s->re;
}

ttc_scalar_kind op_num_kind(const ttc_lower *c, int i) {
  return op_list_num_kind(c, i, 0);
}

ttc_scalar_kind op_list_num_kind(const ttc_lower *c, int i, int k) {
  const ttc_scalar *s = scalar(c, i, k);
  return s != NULL ? (ttc_scalar_kind)s->kind : TTC_SCALAR_INT;
}

static bool num_is(const ttc_lower *c, int i, int64_t v) {
  const ttc_scalar *s = scalar(c, i, 0);
  bool known =
      c->graph != NULL ? s != NULL && s->wrapped != 2 : i < 64 && (((c->row->unit_args | c->row->static_args) >> i) & 1) != 0;
  if (s == NULL || !known || s->kind == TTC_SCALAR_COMPLEX) {
    return false;
  }
  return s->kind == TTC_SCALAR_FLOAT ? s->re == (double)v : s->i == v;
}
bool op_num_is_one(const ttc_lower *c, int i) {
  return num_is(c, i, 1);
}
bool op_num_is_zero(const ttc_lower *c, int i) {
  return num_is(c, i, 0);
}

int64_t op_int(const ttc_lower *c, int i, int64_t dflt) {
  const ttc_arg *a = arg(c, i);
  return a->kind == TTC_ARG_INT || a->kind == TTC_ARG_BOOL || a->kind == TTC_ARG_DTYPE ? a->i : dflt;
}
bool op_bool(const ttc_lower *c, int i) {
  return op_int(c, i, 0) != 0;
}
int64_t op_ints(const ttc_lower *c, int i, int k) {
  const ttc_arg *a = arg(c, i);
  if (a->kind != TTC_ARG_INTS || a->n == 0) {
    return op_int(c, i, 0);
  }
  return a->ints[a->n == 1 ? 0 : ((uint32_t)k < a->n ? (uint32_t)k : a->n - 1)];
}
ttc_dtype op_dtype_arg(const ttc_lower *c, int i, ttc_dtype dflt) {
  const ttc_arg *a = arg(c, i);
  return a->kind == TTC_ARG_DTYPE ? (ttc_dtype)a->i : dflt;
}
bool op_str_is(const ttc_lower *c, int i, const char *s) {
  const ttc_arg *a = arg(c, i);
  return a->kind == TTC_ARG_STRING && strlen(s) == a->n && memcmp(a->str, s, a->n) == 0;
}
int op_axis(const ttc_lower *c, int i, int ndim) {
  int64_t a = op_int(c, i, 0);
  return (int)(a < 0 ? a + (ndim > 0 ? ndim : 1) : a);
}

void op_rng(ttc_lower *c, int i, ttc_val *seed, ttc_val *offset) {
  if (arg(c, i)->kind != TTC_ARG_RNG) {
    *seed = *offset = shlo_error(c->p->b, TTC_UNIMPLEMENTED, "%s: argument %d is no generator", op_name(c), i);
    return;
  }
  if (c->graph != NULL) { /* the graph's generator, after the nodes before */
    op_rng(c->graph, (int)c->graph->call->narg - 1, seed, offset);
    ttc_val taken = shlo_const_u(c->p->b, TTC_U64, arg(c, i)->rng[0], 0, NULL);
    *offset = arg(c, i)->rng[0] == 0 ? *offset : shlo_add(c->p->b, *offset, taken);
    return;
  }
  *seed = param(c->p, (ttc__param){.kind = TTC__PARAM_RNG, .dtype = TTC_U64, .i = (uint32_t)i, .k = 0}, TTC_U64, 0, NULL);
  *offset = param(c->p, (ttc__param){.kind = TTC__PARAM_RNG, .dtype = TTC_U64, .i = (uint32_t)i, .k = 1}, TTC_U64, 0, NULL);
}

ttc_dtype op_promote(const ttc_lower *c, int first, int last) {
  ttc__promotion p = {0};
  for (int i = first; i <= last; i++) {
    const ttc_arg *a = arg(c, i);
    for (uint32_t k = 0; k < a->n; k++) {
      if (a->kind == TTC_ARG_TENSORS || a->kind == TTC_ARG_TENSOR) {
        if (!ttc__absent(&a->tensor[k])) {
          ttc__promotion_tensor(&p, (ttc_dtype)a->tensor[k].dtype, a->tensor[k].ndim);
        }
      } else if (a->kind == TTC_ARG_SCALAR || a->kind == TTC_ARG_SCALARS) {
        ttc__promotion_scalar(&p, &a->scalar[k]);
      }
    }
  }
  ttc_dtype d = ttc__promotion_result(&p, default_float(c));
  if (d == TTC_DTYPE_INVALID) {
    shlo_error(c->p->b, TTC_INVALID_ARGUMENT,
               "Promotion for uint16, uint32, uint64 types is not supported, nor for float8 and float4 beside other types");
  }
  return d;
}

ttc_val ttc__fault_state(ttc_lower *c) {
  program *p = c->p;
  if (p->depth > 0 && !p->carry_faults) {
    p->fault_in_region = true;
    return shlo_error(p->b, TTC_INTERNAL, "%s checks its data in a region that does not carry the fault", op_name(c));
  }
  if (p->fault.id < 0) {
    int64_t n = TTC__FAULT_WORDS;
    p->fault = param(p, (ttc__param){.kind = TTC__PARAM_FAULT}, TTC_S64, 1, &n);
  }
  return p->fault;
}
void ttc__set_fault_state(ttc_lower *c, ttc_val v) {
  c->p->fault = v;
}
bool ttc__region_begin(ttc_lower *c) {
  if (c->p->carry_faults) {
    (void)ttc__fault_state(c);
  }
  c->p->depth++;
  return c->p->carry_faults;
}
void ttc__region_end(ttc_lower *c) {
  c->p->depth--;
}
/* In a region it is not known whether the check is made. */
bool ttc__check_needed(ttc_lower *c, ttc_val idx, int64_t size, bool wrap) {
  program *p = c->p;
  if (p->depth > 0) {
    return true;
  }
  for (uint32_t i = 0; i < p->nparam && p->nverify < TTC__MAX_VERIFY; i++) {
    if (p->params[i].kind == TTC__PARAM_STORE && p->param_values[i].id == idx.id) {
      p->verify[p->nverify++] = (ttc__verify){.slot = p->params[i].i, .wrap = wrap, .size = size};
      return !p->in->verified;
    }
  }
  return true;
}
bool ttc__unchecked(const ttc_lower *c) {
  return c->p->quiet || c->p->in->exported;
}
bool ttc__quiet(ttc_lower *c, bool on) {
  bool before = c->p->quiet;
  c->p->quiet = on;
  return before;
}
uint32_t ttc__lower_op(const ttc_lower *c) {
  return c->call->op;
}

/* -------------------------------------------------------------------------------------------------- asking: results */

int op_nout(const ttc_lower *c) {
  return (int)c->nout;
}
bool op_wanted(const ttc_lower *c, int k) {
  return (uint32_t)k < c->nout && c->outs[k].dtype != TTC_DTYPE_INVALID;
}
ttc_dtype op_out_dtype(const ttc_lower *c, int k) {
  return c->outs[k].dtype;
}
int op_out_ndim(const ttc_lower *c, int k) {
  return c->outs[k].ndim;
}
const int64_t *op_out_sizes(const ttc_lower *c, int k) {
  return c->outs[k].sizes;
}

void op_ret(ttc_lower *c, int k, ttc_val v) {
  shlo *b = c->p->b;
  if (k < 0 || (uint32_t)k >= c->nout) {
    shlo_error(b, TTC_INTERNAL, "%s gives result %d of %u", op_name(c), k, c->nout);
    return;
  }
  const ttc_spec *o = &c->outs[k];
  if (o->dtype == TTC_DTYPE_INVALID) { /* not asked for */
    return;
  }
  c->rets[k] = shlo_broadcast_to(b, shlo_convert(b, v, o->dtype), o->ndim, o->sizes);
}

void op_refuse(ttc_lower *c, const char *fmt, ...) {
  char text[512];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  shlo_error(c->p->b, TTC_UNIMPLEMENTED, "%s", text);
}

/* --------------------------------------------------------------------------------------------------------- programs */

static void run_rule(ttc_lower *c) {
  shlo_comment(c->p->b, c->row->name);
  c->row->rule(c->p->b, c);
  for (uint32_t k = 0; k < c->nout; k++) {
    if (c->rets[k].id < 0 && c->outs[k].dtype != TTC_DTYPE_INVALID && !shlo_failed(c->p->b)) {
      shlo_error(c->p->b, TTC_INTERNAL, "%s does not give its result %u", c->row->name, k);
    }
  }
}

void ttc__lower_node(ttc_lower *graph, const ttc_call *node, uint32_t nout, const ttc_spec *outs, const ttc_val *values,
                     ttc_val *rets) {
  ttc_lower c = {.p = graph->p,
                 .graph = graph,
                 .call = node,
                 .row = ttc__op_row(node->op),
                 .nout = nout,
                 .outs = outs,
                 .values = values,
                 .rets = rets};
  for (uint32_t k = 0; k < nout; k++) {
    rets[k] = TTC_POISON;
  }
  run_rule(&c);
}

void ttc__lower_call(ttc_lower *c, uint32_t graph, int n, const ttc_val *args, int nout, const ttc_spec *outs, ttc_val *rets) {
  shlo *b = c->p->b;
  const ttc_op_row *row = ttc__op_row(graph);
  ttc_tensor *tensors = calloc((size_t)n + 1, sizeof *tensors);
  ttc_spec *specs = calloc((size_t)n + 1, sizeof *specs);
  ttc_arg *list = calloc((size_t)n + 1, sizeof *list);
  for (int k = 0; k < nout; k++) {
    rets[k] = TTC_POISON;
  }
  if (row == NULL || tensors == NULL || specs == NULL || list == NULL) {
    shlo_error(b, row == NULL ? TTC_INVALID_ARGUMENT : TTC_RESOURCE_EXHAUSTED, "%s: there is no graph %u, or no memory", op_name(c),
               graph);
    goto done;
  }
  for (int k = 0; k < n; k++) {
    const shlo_type *t = shlo_typeof(b, args[k]);
    specs[k].ndim = t->ndim < TTC_MAX_NDIM ? t->ndim : TTC_MAX_NDIM;
    memcpy(specs[k].sizes, t->dims, sizeof specs[k].sizes);
    ttc__dense_strides(specs[k].ndim, specs[k].sizes, specs[k].strides);
    tensors[k] = (ttc_tensor){.sizes = specs[k].sizes,
                              .strides = specs[k].strides,
                              .value = k,
                              .dtype = (uint8_t)t->dtype,
                              .ndim = (uint8_t)specs[k].ndim};
    list[k] = (ttc_arg){.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &tensors[k]};
  }
  ttc_call call = {.op = graph, .narg = (uint32_t)n, .args = list, .default_float = c->p->in->call->default_float};
  ttc__lower_node(c, &call, (uint32_t)nout, outs, args, rets);
done:
  free(tensors);
  free(specs);
  free(list);
}

void *ttc__lower_data(const ttc_lower *c) {
  return ttc__op_data(c->call->op);
}

/* A result that is open goes on where the first tensor ends (aten::cat): where nobody else has that, it need not be copied. */
static void lend_first(program *p, ttc__lowered *out, const ttc__base *base) {
  const ttc__lower_in *in = p->in;
  const ttc_arg *a = &in->call->args[0];
  if (in->out_open == 0 || in->open == NULL || ttc__op_row(in->call->op)->pad != PAD_JOIN || a->kind != TTC_ARG_TENSORS ||
      in->open[0].kind != TTC__OPEN_WHOLE || ttc__absent(&a->tensor[0])) {
    return;
  }
  const ttc__base *from = &in->bases[in->slots[0]];
  const ttc_tensor *t = &a->tensor[0];
  size_t n = base->ndim * sizeof *base->dims;
  bool whole = from->dtype == base->dtype && from->ndim == base->ndim && t->ndim == base->ndim && t->offset == 0 &&
               memcmp(from->dims, base->dims, n) == 0 && memcmp(t->sizes, base->dims, n) == 0;
  for (uint32_t i = 0; whole && ttc__is_dense(t->ndim, t->sizes, t->strides) && i < p->nparam; i++) {
    if (p->params[i].kind == TTC__PARAM_STORE && p->params[i].i == in->slots[0]) {
      p->params[i].k = 1;
      shlo_param_alias(p->b, (int)i, (int)out->nproduct);
    }
  }
}

/* Put the results where they belong; one product a fresh output and one a written slot. */
static void finish_results(program *p, const ttc_val *rets, ttc__lowered *out) {
  const ttc__lower_in *in = p->in;
  const ttc_call *call = in->call;
  uint32_t into_place = p->first[call->narg];
  for (uint32_t k = 0; k < in->nout; k++) {
    ttc__product product = {.out = (int32_t)k};
    const ttc_tensor *into = k < call->ninto ? call->into[k] : NULL;
    if (in->outs[k].dtype == TTC_DTYPE_INVALID) {
      into_place += into != NULL;
      continue;
    }
    if (into == NULL) {
      if (!ttc__base_of_spec(&in->outs[k], &product.base)) {
        shlo_error(p->b, TTC_INTERNAL, "result %u is not dense", k);
        return;
      }
      if (in->writes != NULL && in->writes[k] >= 0) {
        shlo_param_alias(p->b, in->writes[k], (int)out->nproduct);
      }
      lend_first(p, out, &product.base);
      shlo_result(p->b, ttc__to_physical(p->b, rets[k], &in->outs[k], &product.base));
      out->products[out->nproduct++] = product;
      continue;
    }
    uint32_t slot = in->slots[into_place++];
    const ttc__base *base = &in->bases[slot];
    ttc_val v = shlo_broadcast_to(p->b, shlo_convert(p->b, rets[k], (ttc_dtype)into->dtype), into->ndim, into->sizes);
    ttc_val old = ttc__write_needs_base(base, into) ? slot_value(p, slot) : TTC_POISON;
    p->slots[slot] = ttc__write_view(p->b, old, base, into, v);
    p->have[slot] |= HAVE_WRITE;
  }
  for (uint32_t s = 0; s < in->nslot; s++) {
    if ((p->have[s] & HAVE_WRITE) == 0) {
      continue;
    }
    uint32_t before = 0;
    while (before < p->nparam && (p->params[before].kind != TTC__PARAM_STORE || p->params[before].i != s)) {
      before++;
    }
    if (before < p->nparam && p->param_values[before].id == p->slots[s].id && out->nproduct > 0) {
      continue; /* written with what it held: it keeps its buffer */
    }
    ttc__product product = {.out = TTC__PRODUCT_SLOT, .slot = s, .base = in->bases[s]};
    if (before < p->nparam && product.base.open == 0) {
      shlo_param_alias(p->b, (int)before, (int)out->nproduct);
    }
    product.base.open = 0; /* it is written anew, as long as what is in it */
    shlo_result(p->b, p->slots[s]);
    out->products[out->nproduct++] = product;
  }
  if (p->fault.id >= 0) {
    shlo_result(p->b, p->fault);
    out->products[out->nproduct++] = (ttc__product){.out = TTC__PRODUCT_FAULT};
  }
}

static ttc_status lower_into(program *p, ttc__lowered *out, ttc_error *err) {
  const ttc__lower_in *in = p->in;
  const ttc_op_row *row = ttc__op_row(in->call->op);
  ttc_val *rets = calloc(in->nout + 1, sizeof *rets);
  out->products = calloc(in->nout + in->nslot + 2, sizeof *out->products);
  if (rets == NULL || out->products == NULL) {
    free(rets);
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory while lowering");
  }
  for (uint32_t k = 0; k < in->nout; k++) {
    rets[k] = TTC_POISON;
  }
  ttc_lower c = {.p = p, .call = in->call, .row = row, .nout = in->nout, .outs = in->outs, .rets = rets};
  for (uint32_t slot = 0; in->exported && slot < in->nslot; slot++) {
    (void)slot_value(p, slot);
  }
  run_rule(&c);
  if (!shlo_failed(p->b)) {
    finish_results(p, rets, out);
  }
  free(rets);
  TTC_TRY(shlo_finish(p->b, &out->text, err));
  out->text_nbyte = strlen(out->text);
  out->params = p->params;
  out->nparam = p->nparam;
  out->nverify = p->nverify;
  memcpy(out->verify, p->verify, sizeof p->verify);
  p->params = NULL;
  return TTC_OK;
}

/* *again: it failed because a region checks something, which is known only now. */
static ttc_status attempt(const ttc__lower_in *in, const ttc_op_row *row, bool carry_faults, bool *again, ttc__lowered *out,
                          ttc_error *err) {
  memset(out, 0, sizeof *out);
  program p = {.in = in,
               .carry_faults = carry_faults,
               .b = shlo_new(row->name),
               .first = calloc(in->call->narg + 1, sizeof *p.first),
               .slots = calloc(in->nslot + 1, sizeof *p.slots),
               .have = calloc(in->nslot + 1, 1),
               .fault = TTC_POISON};
  ttc_status st = TTC_RESOURCE_EXHAUSTED;
  if (p.b == NULL || p.first == NULL || p.slots == NULL || p.have == NULL) {
    (void)TTC_FAIL(err, st, "out of memory while lowering");
    goto done;
  }
  uint32_t at = 0;
  for (uint32_t i = 0; i < in->call->narg; i++) {
    const ttc_arg *a = &in->call->args[i];
    p.first[i] = at;
    for (uint32_t k = 0; (a->kind == TTC_ARG_TENSOR || a->kind == TTC_ARG_TENSORS) && k < a->n; k++) {
      at += ttc__absent(&a->tensor[k]) ? 0 : 1;
    }
  }
  p.first[in->call->narg] = at;
  shlo_set_for_tpu(p.b, in->for_tpu);
  shlo_set_locations(p.b, in->locations);
  shlo_set_precision(p.b, in->precision);
  st = lower_into(&p, out, err);
done:
  if (st != TTC_OK) {
    snprintf(err->op, sizeof err->op, "%s", row->name);
    ttc__lowered_free(out);
  }
  shlo_free(p.b);
  free(p.first);
  free(p.slots);
  free(p.have);
  free(p.params);
  free(p.param_values);
  *again = p.fault_in_region;
  return st;
}

ttc_status ttc__lower(const ttc__lower_in *in, ttc__lowered *out, ttc_error *err) {
  const ttc_op_row *row = ttc__op_row(in->call->op);
  if (row == NULL) {
    memset(out, 0, sizeof *out);
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "there is no op %u", in->call->op);
  }
  ttc__program_fn whole = ttc__op_program(in->call->op);
  if (whole != NULL) {
    memset(out, 0, sizeof *out);
    ttc_status made = whole(in, ttc__op_data(in->call->op), out, err);
    if (made != TTC_OK) {
      ttc__lowered_free(out);
    }
    return made;
  }
  bool again = false;
  ttc_status st = attempt(in, row, false, &again, out, err);
  return again ? attempt(in, row, true, &again, out, err) : st;
}

void ttc__lowered_free(ttc__lowered *l) {
  free(l->text);
  free(l->params);
  free(l->products);
  memset(l, 0, sizeof *l);
}
