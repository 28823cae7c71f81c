/* The parts of ttc.h that need no device. */
#include <stdlib.h>
#include <string.h>

#include "op/lower.h"
#include "run/run.h"
#include "ttc_module.h"

typedef struct bases {
  ttc__base *base;
  uint32_t *slots;
  uint32_t n;
} bases;

static void count(void *ctx, const ttc_tensor *t) {
  (void)t;
  ++*(uint32_t *)ctx;
}

/* Every tensor a dense store of its own. */
static void collect(void *ctx, const ttc_tensor *t) {
  bases *b = ctx;
  ttc__base *base = &b->base[b->n];
  base->dtype = t->dtype;
  base->ndim = t->ndim;
  memcpy(base->dims, t->sizes, t->ndim * sizeof(int64_t));
  b->slots[b->n] = b->n;
  b->n++;
}

/* how: what is not the same for all. */
static ttc_status lower(const ttc_call *call, uint32_t nout, const ttc_spec *specs, ttc__lower_in how, char **text,
                        ttc_error *err) {
  uint32_t n = 0;
  ttc__visit(call, count, &n);
  bases b = {.base = calloc(n + 1, sizeof *b.base), .slots = calloc(n + 1, sizeof *b.slots)};
  if (b.base == NULL || b.slots == NULL) {
    free(b.base);
    free(b.slots);
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  ttc__visit(call, collect, &b);
  how.call = call;
  how.nout = nout;
  how.outs = specs;
  how.nslot = n;
  how.bases = b.base;
  how.slots = b.slots;
  ttc__lowered low;
  ttc_status st = ttc__lower(&how, &low, err);
  if (st == TTC_OK && how.exported && low.nparam != n) {
    st = TTC_FAIL(err, TTC_UNIMPLEMENTED, "a call with numbers that are given at run time does not stand alone");
    ttc__lowered_free(&low);
  } else if (st == TTC_OK) {
    *text = low.text;
    low.text = NULL;
    ttc__lowered_free(&low);
  }
  free(b.base);
  free(b.slots);
  return st;
}

ttc_status ttc_call_lower(const ttc_call *call, uint32_t nout, const ttc_spec *specs, int for_tpu, char **text, ttc_error *err) {
  return lower(call, nout, specs, (ttc__lower_in){.for_tpu = for_tpu != 0}, text, err);
}

ttc_status ttc_call_export(const ttc_call *call, uint32_t nout, const ttc_spec *specs, const int32_t *writes, int for_tpu,
                           char **text, ttc_error *err) {
  for (uint32_t i = 0; i < call->narg; i++) {
    if (call->args[i].kind == TTC_ARG_RNG) {
      return TTC_FAIL(err, TTC_UNIMPLEMENTED, "a call that draws random numbers does not stand alone");
    }
  }
  if (call->ninto != 0) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected a call whose results are fresh");
  }
  ttc__lower_in how = {.for_tpu = for_tpu != 0,
                       .exported = true,
                       .writes = writes,
                       .precision = (shlo_precision)atomic_load(&ttc__matmul_precision)};
  return lower(call, nout, specs, how, text, err);
}

void ttc_text_free(char *text) {
  free(text);
}

ttc_status ttc_call_infer(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  const ttc_op_row *row = ttc__op_row(call->op);
  if (row == NULL || row->infer == NULL) {
    return TTC_FAIL(err, TTC_UNIMPLEMENTED, "%s has no inference of its own", row != NULL ? row->name : "this op");
  }
  return row->infer(call, max, specs, nout, err);
}

uint64_t ttc_call_random(const ttc_call *call) {
  const ttc_op_row *row = ttc__op_row(call->op);
  return row == NULL ? 0 : ttc__rng_count(row, call, 0, NULL);
}

ttc_status ttc_call_check(const ttc_call *call, ttc_error *err) {
  const ttc_op_row *row = ttc__op_row(call->op);
  return row == NULL ? TTC_OK : ttc__rng_check(row, call, err);
}
