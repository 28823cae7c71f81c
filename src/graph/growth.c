/* What becomes open in the first place, and up to which bound. */
#include <string.h>

#include "base/map.h"
#include "graph/lengths.h"

#define FEW_TIMES 2u /* so that the third length is a number */
#define NEAR 16      /* some lengths have programs of their own from before */
#define SMALL_NBYTE ((int64_t)16 << 20)
#define LARGE_NBYTE ((int64_t)256 << 20)

/* Of the length alone, so that what grows together has one bound: fourfold while that is little, then twofold, then an eighth. */
int64_t ttc__bound_of(int64_t length, int64_t place_nbyte) {
  int64_t bound = 128;
  while (bound <= length) {
    bound *= 4 * bound * place_nbyte <= SMALL_NBYTE ? 4 : 2;
  }
  return bound * place_nbyte > LARGE_NBYTE ? (length + length / 8 + 64) / 64 * 64 : bound;
}

/* Is it the third time that something with this hash is longer than it was, each time by little and from where it was left? From
 * then on it always is, or, if strict, up to a little more than the longest. */
static bool grows(ttc__growth *table, uint64_t hash, int64_t before, int64_t total, bool strict) {
  if (before <= total - before) { /* nothing, or twice as much: not bit by bit */
    return false;
  }
  ttc__growth *g = &table[(hash >> 20) & (TTC__GROWTHS - 1)];
  bool known = g->hash == hash, grew = known && g->times > FEW_TIMES;
  if (known && g->total == total) { /* another as long: keys and values */
    return grew;
  }
  bool on = grew && (!strict || total <= g->most + NEAR);
  g->times = on || (known && g->total == before) ? g->times + 1 : 1;
  g->hash = hash;
  g->total = total;
  g->most = known && g->most > total ? g->most : total;
  return g->times > FEW_TIMES;
}

static uint64_t growth_hash(const ttc_tensor *list, uint32_t n, int64_t dim) {
  uint64_t words[2 + TTC_MAX_NDIM] = {list[0].dtype, (uint64_t)dim << 32 | n};
  for (int k = 0; k < list[0].ndim; k++) {
    words[2 + k] = k == dim ? 0 : (uint64_t)list[0].sizes[k];
  }
  return ttc__hash64(words, (2 + (size_t)list[0].ndim) * sizeof *words) | 1;
}

uint8_t ttc__growing(ttc__growth *table, const ttc_call *call, int64_t *total, int64_t *bound) {
  const ttc_op_row *row = ttc__op_row(call->op);
  if (row == NULL || row->pad != PAD_JOIN || strcmp(row->name, "cat") != 0 || call->ninto != 0 || call->args[0].n < 2) {
    return 0;
  }
  const ttc_tensor *list = call->args[0].tensor;
  int ndim = list[0].ndim;
  int64_t dim = call->args[1].kind == TTC_ARG_INT ? call->args[1].i + (call->args[1].i < 0 ? ndim : 0) : -1, more = 0;
  if (dim < 0 || dim >= ndim) {
    return 0;
  }
  for (uint32_t k = 0; k < call->args[0].n; k++) {
    if (ttc__absent(&list[k]) || list[k].ndim != ndim || list[k].dtype != list[0].dtype) {
      return 0;
    }
    more += k > 0 ? list[k].sizes[dim] : 0;
  }
  int64_t before = list[0].sizes[dim], other = ttc__nelem(ndim, list[0].sizes);
  *total = before + more;
  if (other <= 0 || !grows(table, growth_hash(list, call->args[0].n, dim), before, *total, false)) {
    return 0;
  }
  *bound = ttc__bound_of(*total, other / before * (int64_t)ttc_dtype_nbyte((ttc_dtype)list[0].dtype));
  return (uint8_t)(ndim - dim);
}

/* A call that makes what it writes of numbers alone: aten::arange, or fill and zero, which may grow along their last axis. They are
 * told apart from others like them by what they are otherwise. */
static bool made_of_numbers(const ttc_call *call, const char *name, ttc__growth *table) {
  const ttc_tensor *to = call->into[0];
  bool range = strcmp(name, "arange.start_step") == 0, fill = strcmp(name, "fill.Scalar") == 0 || strcmp(name, "zero") == 0;
  if (to->ndim == 0 || (range && to->ndim != 1) || !(range || (fill && call->args[0].kind == TTC_ARG_TENSOR))) {
    return false;
  }
  uint64_t words[2 + TTC_MAX_NDIM] = {call->op, to->dtype};
  int last = to->ndim - 1;
  for (int k = 0; k < last; k++) {
    words[2 + k] = (uint64_t)to->sizes[k];
  }
  uint64_t hash = ttc__hash64(words, (2 + (size_t)last) * sizeof *words) | 1;
  return grows(table, hash, to->sizes[last] - 1, to->sizes[last], fill);
}

bool ttc__growing_range(ttc__growth *table, const ttc_call *call, ttc__wide *w) {
  const ttc_op_row *row = ttc__op_row(call->op);
  if (row == NULL || call->ninto != 1 || call->into[0] == NULL) {
    return false;
  }
  const ttc_tensor *to = call->into[0];
  ttc__base *base = &((ttc__keyed *)(void *)to->store)->base;
  if (base->open != 0 || !ttc__is_whole_store(to) || !ttc__wide_reserve(w, call->narg, 1) ||
      !made_of_numbers(call, row->name, table)) {
    return false;
  }
  int last = to->ndim - 1;
  int64_t n = to->sizes[last],
          bound = ttc__bound_of(n, ttc__nelem(last, to->sizes) * (int64_t)ttc_dtype_nbyte((ttc_dtype)to->dtype));
  base->open = (uint8_t)(last + 1);
  base->bound = bound;
  w->call = *call;
  w->nopen = w->nnumber = 0;
  w->tensors[0] = *to;
  memcpy(w->extents, to->sizes, to->ndim * sizeof *w->extents);
  w->extents[last] = bound;
  ttc__dense_strides(to->ndim, w->extents, w->extents + TTC_MAX_NDIM);
  w->tensors[0].sizes = w->extents;
  w->tensors[0].strides = w->extents + TTC_MAX_NDIM;
  if (call->args[0].kind == TTC_ARG_TENSOR) { /* what is filled */
    memcpy(w->args, call->args, call->narg * sizeof *w->args);
    w->args[0].tensor = w->tensors;
    w->call.args = w->args;
    w->open[w->nopen++] = (ttc__open){.kind = TTC__OPEN_NOT};
  }
  w->into[0] = &w->tensors[0];
  w->call.into = w->into;
  w->out_open = 1;
  w->out_length = n;
  w->out_bound = bound;
  return true;
}

bool ttc__spec_stretch(ttc_spec *spec, uint8_t out_open, int64_t size) {
  int order[TTC_MAX_NDIM];
  if (spec->ndim < out_open || !ttc__dense_order(spec->ndim, spec->sizes, spec->strides, order)) {
    return false;
  }
  spec->sizes[spec->ndim - out_open] = size;
  int64_t stride = 1;
  for (int k = spec->ndim - 1; k >= 0; k--) {
    spec->strides[order[k]] = stride;
    stride *= spec->sizes[order[k]] > 0 ? spec->sizes[order[k]] : 1;
  }
  return true;
}
