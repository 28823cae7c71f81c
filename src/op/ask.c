/* What a rule asks of the call it lowers, and what it gives back. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "op/frame.h"

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

static ttc_val open_number(ttc_lower *c, uint32_t k) {
  return ttc__open_number(c->p, k);
}

static ttc_val filling(ttc_lower *c, uint32_t fill, ttc_dtype d) {
  shlo *b = c->p->b;
  if (fill == TTC__FILL_LOWEST || fill == TTC__FILL_HIGHEST) {
    return fill == TTC__FILL_LOWEST ? shlo_lowest(b, d) : shlo_highest(b, d);
  }
  int64_t v = fill >= TTC__FILL_ARG ? op_int(c, (int)(fill - TTC__FILL_ARG), 0) : fill == TTC__FILL_ONE ? 1 : 0;
  return ttc__is_inexact(d) ? shlo_const_f(b, d, (double)v, 0, NULL) : shlo_const_i(b, d, v, 0, NULL);
}

/* The places of t that lie before length n along all open axes. */
static ttc_val inside(shlo *b, const ttc_tensor *t, const ttc__open *o, ttc_val n) {
  ttc_val in = TTC_POISON;
  for (int a = 0; a < t->ndim; a++) {
    if (((o->axes >> a) & 1) == 0) {
      continue;
    }
    ttc_val here;
    if (o->outer > 1 || o->inner > 1) {
      int64_t parts[3] = {o->outer, t->sizes[a] / o->outer / o->inner, o->inner};
      here = shlo_reshape(b, op_inside(b, 1, 3, parts, n), 1, &t->sizes[a]);
      here = shlo_broadcast_in_dim(b, here, t->ndim, t->sizes, &a);
    } else {
      here = op_inside(b, a, t->ndim, t->sizes, n);
    }
    in = in.id >= 0 ? shlo_2(b, SHLO_AND, in, here) : here;
  }
  return in;
}

/* t, which is as long as it is along its open axes, made as long as the bound. */
static ttc_val padded(ttc_lower *c, const ttc_tensor *t, const ttc__open *o, ttc_val v, const ttc__base *base) {
  shlo *b = c->p->b;
  int n = 0;
  int64_t sizes[TTC_MAX_NDIM], parts[3 * TTC_MAX_NDIM], lo[3 * TTC_MAX_NDIM] = {0}, hi[3 * TTC_MAX_NDIM] = {0};
  ttc_tensor own = *t;
  own.sizes = sizes;
  for (int k = 0; k < t->ndim; k++) {
    bool open = ((o->axes >> k) & 1) != 0;
    sizes[k] = open ? o->extents[0] * o->outer * o->inner : t->sizes[k];
    if (open && o->outer > 1) {
      parts[n++] = o->outer;
    }
    hi[n] = open ? t->sizes[k] / o->outer / o->inner - o->extents[0] : 0;
    parts[n++] = open ? o->extents[0] : sizes[k];
    if (open && o->inner > 1) {
      parts[n++] = o->inner;
    }
  }
  v = shlo_reshape(b, ttc__read_view(b, v, base, &own), n, parts);
  ttc_val zero = filling(c, TTC__FILL_ZERO, (ttc_dtype)t->dtype);
  return shlo_reshape(b, shlo_pad(b, v, zero, lo, hi, NULL), t->ndim, t->sizes);
}

/* A tensor of an open store, or beside one: a part of it like any other tensor, or all of it up to the bound, with what is past the
 * length as the row's kind wants it. Never multiplied by 0: it may be NaN. */
static ttc_val open_value(ttc_lower *c, const ttc_tensor *t, const ttc__open *o, uint32_t slot) {
  shlo *b = c->p->b;
  ttc__base base = c->p->in->bases[slot];
  ttc_val v = ttc__slot_before(c->p, slot);
  if (o->kind == TTC__OPEN_PART) {
    v = ttc__part(c->p, v, o, &base);
    return ttc__read_view(b, v, &base, t);
  }
  ttc_val n = open_number(c, o->number);
  if (o->kind == TTC__OPEN_RANGE) {
    int64_t size = t->sizes[__builtin_ctz(o->axes)], lo[TTC_MAX_NDIM] = {0}, hi[TTC_MAX_NDIM] = {0};
    hi[o->base] = size; /* it may end past the buffer's end, beyond the length */
    v = shlo_pad(b, v, filling(c, TTC__FILL_ZERO, (ttc_dtype)base.dtype), lo, hi, NULL);
    v = shlo_dynamic_slice_axis(b, v, o->base, open_number(c, o->place), size);
    base.dims[o->base] = size;
  }
  v = o->kind == TTC__OPEN_PADDED ? padded(c, t, o, v, &base) : ttc__read_view(b, v, &base, t);
  if (o->fill == TTC__FILL_NOT) {
    return v;
  }
  return shlo_select(b, inside(b, t, o, n), v, filling(c, o->fill, (ttc_dtype)t->dtype));
}

ttc_val op_length(ttc_lower *c, int i, int k, int axis) {
  const ttc_arg *a = arg(c, i);
  const ttc__open *open = c->p->in->open;
  if (open == NULL || c->graph != NULL || (a->kind != TTC_ARG_TENSOR && a->kind != TTC_ARG_TENSORS) || ttc__absent(&a->tensor[k])) {
    return TTC_POISON;
  }
  const ttc__open *o = &open[visiting_place(c, i, k)];
  axis = axis < 0 ? axis + a->tensor[k].ndim : axis;
  return ttc__is_long(o) && ((o->axes >> axis) & 1) != 0 ? open_number(c, o->number) : TTC_POISON;
}

ttc_val op_places(ttc_lower *c, int i, int axis) {
  ttc_val n = op_length(c, i, 0, axis);
  if (n.id < 0) {
    return n;
  }
  const ttc__open *o = &c->p->in->open[visiting_place(c, i, 0)];
  return shlo_mul(c->p->b, n, shlo_const_i(c->p->b, TTC_S32, (int64_t)o->outer * o->inner, 0, NULL));
}

bool op_out_open(const ttc_lower *c, int axis) {
  return c->graph == NULL && ((ttc__opened_axes(&c->p->in->opened, 0) >> (op_out_ndim(c, 0) - 1 - axis)) & 1) != 0;
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
  return ttc__read_view(c->p->b, ttc__slot_before(c->p, slot), &c->p->in->bases[slot], t);
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
  return ttc__param_value(c->p, what, d, 0, NULL);
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
  *seed =
      ttc__param_value(c->p, (ttc__param){.kind = TTC__PARAM_RNG, .dtype = TTC_U64, .i = (uint32_t)i, .k = 0}, TTC_U64, 0, NULL);
  *offset =
      ttc__param_value(c->p, (ttc__param){.kind = TTC__PARAM_RNG, .dtype = TTC_U64, .i = (uint32_t)i, .k = 1}, TTC_U64, 0, NULL);
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
    p->fault = ttc__param_value(p, (ttc__param){.kind = TTC__PARAM_FAULT}, TTC_S64, 1, &n);
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

/* -------------------------------------------------------------------------------------------------- ------- results */

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

ttc_val op_out_elements(ttc_lower *c, ttc_val *count) {
  shlo *b = c->p->b;
  const ttc_spec *out = &c->outs[0];
  const ttc__opened *o = &c->p->in->opened;
  uint32_t number = 0;
  int64_t n = ttc__nelem(out->ndim, out->sizes);
  if (c->graph != NULL || o->axes[0] == 0 || c->p->in->open == NULL) {
    return TTC_POISON;
  }
  if (n > INT32_MAX / 2) {
    return shlo_error(b, TTC_UNIMPLEMENTED, "%s of %lld elements", op_name(c), (long long)n);
  }
  for (uint32_t i = 0; i < c->p->first[c->call->narg]; i++) {
    number = ttc__is_long(&c->p->in->open[i]) ? c->p->in->open[i].number : number;
  }
  ttc_val length = open_number(c, number), at = shlo_const_i(b, TTC_S32, 0, out->ndim, out->sizes);
  *count = shlo_const_i(b, TTC_S32, 1, 0, NULL);
  for (int a = 0; a < out->ndim; a++) {
    ttc_val here, size = shlo_const_i(b, TTC_S32, out->sizes[a], 0, NULL);
    if (!op_out_open(c, a) || (o->outer == 1 && o->inner == 1)) {
      size = op_out_open(c, a) ? length : size;
      here = shlo_iota(b, TTC_S32, a, out->ndim, out->sizes);
    } else {
      int64_t parts[3] = {o->outer, out->sizes[a] / o->outer / o->inner, o->inner};
      ttc_val inner = shlo_const_i(b, TTC_S32, o->inner, 0, NULL);
      here = shlo_add(b, shlo_mul(b, shlo_iota(b, TTC_S32, 0, 3, parts), length), shlo_iota(b, TTC_S32, 1, 3, parts));
      here = shlo_add(b, shlo_mul(b, here, inner), shlo_iota(b, TTC_S32, 2, 3, parts));
      here = shlo_broadcast_in_dim(b, shlo_reshape(b, here, 1, &out->sizes[a]), out->ndim, out->sizes, &a);
      size = shlo_mul(b, length, shlo_mul(b, inner, shlo_const_i(b, TTC_S32, o->outer, 0, NULL)));
    }
    at = shlo_add(b, shlo_mul(b, at, size), here);
    *count = shlo_mul(b, *count, size);
  }
  return shlo_reshape(b, at, 1, &n);
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
