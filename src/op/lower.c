/* Lowering: what a rule asks is answered from the call, and what it returns is written where the call wants it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/frame.h"

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

ttc_val ttc__param_value(program *p, ttc__param what, ttc_dtype d, int ndim, const int64_t *dims) {
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

ttc_val ttc__open_number(program *p, uint32_t k) {
  ttc__param what = {.kind = TTC__PARAM_NUMBER, .dtype = TTC_S32, .i = p->in->call->narg, .k = k};
  return ttc__param_value(p, what, TTC_S32, 0, NULL);
}

/* Where a PART begins along each axis of its base, which becomes as long as the part. */
static void part_of(program *p, const ttc__open *o, ttc__base *base, ttc_val *starts) {
  uint32_t n = 0;
  for (int a = 0; a < base->ndim; a++) {
    if (((o->axes >> a) & 1) == 0) {
      starts[a] = shlo_const_i(p->b, TTC_S32, 0, 0, NULL);
      continue;
    }
    starts[a] = ttc__open_number(p, o->number + n);
    base->dims[a] = o->extents[n++];
  }
}

ttc_val ttc__part(program *p, ttc_val v, const ttc__open *o, ttc__base *base) {
  ttc_val starts[TTC_MAX_NDIM];
  part_of(p, o, base, starts);
  return shlo_dynamic_slice(p->b, v, starts, base->dims);
}

static ttc_val slot_param(program *p, uint32_t slot) {
  ttc__base base = ttc__base_physical(&p->in->bases[slot]);
  return ttc__param_value(p, (ttc__param){.kind = TTC__PARAM_STORE, .i = slot}, (ttc_dtype)base.dtype, base.ndim, base.dims);
}

/* What is in a buffer, without what is past the end. */
static ttc_val closed(program *p, uint32_t slot, ttc_val v) {
  const ttc__base *base = &p->in->bases[slot];
  for (int a = 0; a < base->ndim; a++) {
    v = ((base->open >> a) & 1) != 0 ? shlo_slice_axis(p->b, v, a, 0, base->dims[a]) : v;
  }
  return v;
}

ttc_val ttc__slot_value(program *p, uint32_t slot) {
  if (p->have[slot] == 0) {
    p->slots[slot] = closed(p, slot, slot_param(p, slot));
    p->have[slot] = HAVE_PARAM;
  }
  return p->slots[slot];
}

/* Arguments always see the contents from before the call. */
ttc_val ttc__slot_before(program *p, uint32_t slot) {
  if ((p->have[slot] & HAVE_WRITE) == 0) {
    return ttc__slot_value(p, slot);
  }
  for (uint32_t i = 0; i < p->nparam; i++) {
    if (p->params[i].kind == TTC__PARAM_STORE && p->params[i].i == slot) {
      return closed(p, slot, p->param_values[i]);
    }
  }
  return closed(p, slot, slot_param(p, slot));
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
  if (!in->opened.any || in->open == NULL || ttc__op_row(in->call->op)->pad != PAD_JOIN || a->kind != TTC_ARG_TENSORS ||
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

/* Writes v into a part of what a store holds. */
static ttc_val write_part(program *p, ttc_val whole, const ttc__base *of, const ttc__open *o, const ttc_tensor *into, ttc_val v) {
  ttc__base base = *of;
  ttc_val starts[TTC_MAX_NDIM];
  part_of(p, o, &base, starts);
  ttc_val old = ttc__write_needs_base(&base, into) ? shlo_dynamic_slice(p->b, whole, starts, base.dims) : TTC_POISON;
  return shlo_dynamic_update_slice(p->b, whole, ttc__write_view(p->b, old, &base, into, v), starts);
}

/* Writes a result into its target, the tensor in this place of the visiting order. */
static void write_into(program *p, const ttc_tensor *into, uint32_t place, ttc_val v) {
  const ttc__lower_in *in = p->in;
  const ttc__open *o = in->open != NULL && place < in->nopen ? &in->open[place] : NULL;
  uint32_t slot = in->slots[place];
  const ttc__base *base = &in->bases[slot];
  v = shlo_convert(p->b, v, (ttc_dtype)into->dtype);
  for (int a = 0; in->opened.any && in->open != NULL && a < into->ndim; a++) { /* past the end there may be less room */
    v = shlo_dim(p->b, v, a) > into->sizes[a] ? shlo_slice_axis(p->b, v, a, 0, into->sizes[a]) : v;
  }
  v = shlo_broadcast_to(p->b, v, into->ndim, into->sizes);
  if (o != NULL && o->kind == TTC__OPEN_PART) {
    p->slots[slot] = write_part(p, ttc__slot_value(p, slot), base, o, into, v);
  } else {
    ttc_val old = ttc__write_needs_base(base, into) ? ttc__slot_value(p, slot) : TTC_POISON;
    p->slots[slot] = ttc__write_view(p->b, old, base, into, v);
  }
  p->have[slot] |= HAVE_WRITE;
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
      if (!ttc__base_of_open(&in->outs[k], ttc__opened_axes(&in->opened, k), &in->opened, &product.base)) {
        shlo_error(p->b, TTC_INTERNAL, "result %u is not dense", k);
        return;
      }
      if (in->writes != NULL && in->writes[k] >= 0) {
        shlo_param_alias(p->b, in->writes[k], (int)out->nproduct);
      }
      product.base = ttc__base_physical(&product.base);
      lend_first(p, out, &product.base);
      shlo_result(p->b, ttc__to_physical(p->b, rets[k], &in->outs[k], &product.base));
      out->products[out->nproduct++] = product;
      continue;
    }
    write_into(p, into, into_place++, rets[k]);
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
    (void)ttc__slot_value(p, slot);
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
