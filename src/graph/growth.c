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

/* How long it was last, if that is a little less, and no less than half; else one less. */
static int64_t last_total(const ttc__growth *table, uint64_t hash, int64_t total) {
  const ttc__growth *g = &table[(hash >> 20) & (TTC__GROWTHS - 1)];
  bool grew = g->hash == hash && g->total < total && total <= g->total + NEAR && total < 2 * g->total;
  return grew ? g->total : total - 1;
}

static uint64_t growth_hash(const ttc_tensor *list, uint32_t n, int64_t dim) {
  uint64_t words[2 + TTC_MAX_NDIM] = {list[0].dtype, (uint64_t)dim << 32 | n};
  for (int k = 0; k < list[0].ndim; k++) {
    words[2 + k] = k == dim ? 0 : (uint64_t)list[0].sizes[k];
  }
  return ttc__hash64(words, (2 + (size_t)list[0].ndim) * sizeof *words) | 1;
}

bool ttc__growing(ttc__lengths *l, const ttc_call *call, ttc__opened *opened) {
  const ttc_op_row *row = ttc__op_row(call->op);
  if (row == NULL || row->pad != PAD_JOIN || strcmp(row->name, "cat") != 0 || call->ninto != 0 || call->args[0].n < 2) {
    return false;
  }
  const ttc_tensor *list = call->args[0].tensor;
  int ndim = list[0].ndim;
  int64_t dim = call->args[1].kind == TTC_ARG_INT ? call->args[1].i + (call->args[1].i < 0 ? ndim : 0) : -1, more = 0;
  if (dim < 0 || dim >= ndim) {
    return false;
  }
  for (uint32_t k = 0; k < call->args[0].n; k++) {
    if (ttc__absent(&list[k]) || list[k].ndim != ndim || list[k].dtype != list[0].dtype) {
      return false;
    }
    more += k > 0 ? list[k].sizes[dim] : 0;
  }
  int64_t before = list[0].sizes[dim], other = ttc__nelem(ndim, list[0].sizes), total = before + more;
  if (other <= 0 || !grows(l->growths, growth_hash(list, call->args[0].n, dim), before, total, false)) {
    return false;
  }
  int64_t bound = ttc__bound_of(total, other / before * (int64_t)ttc_dtype_nbyte((ttc_dtype)list[0].dtype));
  *opened = (ttc__opened){
      .axes = {(uint16_t)(1u << (ndim - 1 - dim))}, .any = true, .outer = 1, .inner = 1, .length = total, .bound = bound};
  return true;
}

/* The axes of `sizes` that are as long as a batch that came lately, in one bit each. *bound: up to which they are open; one that is
 * as long as that need not be. */
static uint16_t batch_axes(const ttc__lengths *l, int ndim, const int64_t *sizes, int64_t *bound) {
  uint16_t axes = 0;
  for (uint32_t k = 0; axes == 0 && k < TTC__CURRENT && l->current[k] != 0; k++) {
    *bound = ttc__batch_bound(l->current[k]);
    for (int a = 0; a < ndim; a++) {
      axes |= (uint16_t)(sizes[a] == l->current[k] && sizes[a] != *bound ? 1u << a : 0u);
    }
  }
  return axes;
}

/* A call that makes what it writes of numbers alone, aten::arange, or fill and zero: along which axes that is open. They grow along
 * their last axis, and are told apart from others like them by what they are otherwise. */
static uint16_t made_of_numbers(const ttc_call *call, const char *name, ttc__lengths *l, int64_t *bound) {
  const ttc_tensor *to = call->into[0];
  bool range = strcmp(name, "arange.start_step") == 0, fill = strcmp(name, "fill.Scalar") == 0 || strcmp(name, "zero") == 0;
  if (to->ndim == 0 || (range && to->ndim != 1) || !(range || (fill && call->args[0].kind == TTC_ARG_TENSOR))) {
    return 0;
  }
  uint16_t axes = batch_axes(l, to->ndim, to->sizes, bound);
  if (axes != 0) {
    return axes;
  }
  uint64_t words[2 + TTC_MAX_NDIM] = {call->op, to->dtype};
  int last = to->ndim - 1;
  for (int k = 0; k < last; k++) {
    words[2 + k] = (uint64_t)to->sizes[k];
  }
  uint64_t hash = ttc__hash64(words, (2 + (size_t)last) * sizeof *words) | 1;
  *bound = ttc__bound_of(to->sizes[last], ttc__nelem(last, to->sizes) * (int64_t)ttc_dtype_nbyte((ttc_dtype)to->dtype));
  int64_t before = fill ? to->sizes[last] - 1 : last_total(l->growths, hash, to->sizes[last]);
  return (uint16_t)(grows(l->growths, hash, before, to->sizes[last], fill) ? 1u << last : 0u);
}

bool ttc__growing_range(ttc__lengths *l, const ttc_call *call, ttc__wide *w) {
  const ttc_op_row *row = ttc__op_row(call->op);
  if (row == NULL || call->ninto != 1 || call->into[0] == NULL) {
    return false;
  }
  const ttc_tensor *to = call->into[0];
  ttc__base *base = &((ttc__keyed *)(void *)to->store)->base;
  if (base->open != 0 || !ttc__is_whole_store(to) || !ttc__wide_reserve(w, call->narg, 1)) {
    return false;
  }
  int64_t bound = 0, *sizes = w->extents;
  uint16_t axes = made_of_numbers(call, row->name, l, &bound);
  if (axes == 0) {
    return false;
  }
  base->open = axes;
  base->bound = bound;
  w->call = *call;
  w->nopen = w->nnumber = 0;
  w->opened = (ttc__opened){.axes = {(uint16_t)ttc__turned(to, axes)}, .any = true, .outer = 1, .inner = 1, .bound = bound};
  w->tensors[0] = *to;
  for (int a = 0; a < to->ndim; a++) {
    bool open = ((axes >> a) & 1) != 0;
    sizes[a] = open ? bound : to->sizes[a];
    w->opened.length = open ? to->sizes[a] : w->opened.length;
  }
  ttc__dense_strides(to->ndim, sizes, sizes + TTC_MAX_NDIM);
  w->tensors[0].sizes = sizes;
  w->tensors[0].strides = sizes + TTC_MAX_NDIM;
  if (call->args[0].kind == TTC_ARG_TENSOR) { /* what is filled */
    memcpy(w->args, call->args, call->narg * sizeof *w->args);
    w->args[0].tensor = w->tensors;
    w->call.args = w->args;
    w->where[w->nopen] = 0;
    w->open[w->nopen++] = (ttc__open){.kind = TTC__OPEN_NOT, .outer = 1, .inner = 1};
  }
  w->into[0] = &w->tensors[0];
  w->call.into = w->into;
  return true;
}

/* ----------------------------------------------------------------------------------------------------------- batches */

#define SMALLEST_BATCH 16

int64_t ttc__batch_bound(int64_t length) {
  int64_t bound = SMALLEST_BATCH;
  while (bound < length) {
    bound *= 2;
  }
  return bound;
}

bool ttc__is_about_current(const ttc__lengths *l, int64_t length) {
  for (uint32_t k = 0; l != NULL && k < TTC__CURRENT && l->current[k] != 0; k++) {
    if (length - l->current[k] <= 2 && l->current[k] - length <= 2) {
      return true;
    }
  }
  return false;
}

/* A model's weights come one after another, most with one or two axes; batches of features have a step between them. Indices and
 * masks are no weights. */
#define STEP_CALLS 8u

/* The place of this hash in the table of n, or one to be had for it: of a few places the one that has met the fewest sizes. Sizes
 * of axes that stand are new hashes with each length of the others, and must not push out what varies. */
static ttc__batch *batch_of(ttc__batch *table, uint32_t n, uint64_t hash) {
  ttc__batch *set = &table[(hash >> 20) % (n / TTC__BATCH_WAYS) * TTC__BATCH_WAYS], *least = set;
  for (uint32_t k = 0; k < TTC__BATCH_WAYS; k++) {
    if (set[k].hash == hash) {
      return &set[k];
    }
    bool fewer = set[k].nsize < least->nsize, older = set[k].nsize == least->nsize && set[k].calls < least->calls;
    least = fewer || older ? &set[k] : least;
  }
  *least = (ttc__batch){.hash = hash};
  return least;
}

/* Has the axis had as many other sizes as have programs of their own? Others of the same batch are as the first. (Sizes may be
 * offsets.) */
static bool varies(ttc__batch *table, uint32_t n, uint64_t hash, int64_t size, uint64_t calls, bool weight) {
  ttc__batch *b = batch_of(table, n, hash);
  uint32_t most = sizeof b->sizes / sizeof *b->sizes;
  bool another = b->last != size, follows = weight && another && calls - b->calls < STEP_CALLS;
  if (!another && b->open == size) {
    return true;
  }
  if (follows && b->nsize > 0) {
    b->nsize = 0;
    b->open = 0;
  }
  b->calls = calls;
  b->last = size;
  for (uint32_t k = 0; k < b->nsize; k++) {
    if (b->sizes[k] == size) {
      return false;
    }
  }
  if (b->nsize < most) {
    b->sizes[b->nsize++] = size;
    return false;
  }
  b->open = size;
  return true;
}

static void make_current(ttc__lengths *l, int64_t length) {
  uint32_t k = 0;
  if (length <= SMALLEST_BATCH) {
    return;
  }
  while (k < TTC__CURRENT - 1 && l->current[k] != length) {
    k++;
  }
  memmove(l->current + 1, l->current, k * sizeof *l->current);
  l->current[0] = length;
}

int ttc__batch_axis(ttc__lengths *l, ttc_dtype dtype, int ndim, const int64_t *sizes, uint64_t calls) {
  int found = -1;
  bool weight = dtype != TTC_S64 && dtype != TTC_BOOL;
  int first = weight ? 1 : 0, last = weight ? ndim - 2 : ndim - 1; /* features are [rows, places, width] */
  if (weight && ndim < 3) {
    return -1;
  }
  for (int a = last; a >= first; a--) {
    uint64_t words[2 + TTC_MAX_NDIM] = {dtype, (uint64_t)a << 32 | (uint64_t)ndim};
    for (int k = 0; k < ndim; k++) {
      words[2 + k] = k == a ? 0 : (uint64_t)sizes[k];
    }
    uint64_t hash = ttc__hash64(words, (2 + (size_t)ndim) * sizeof *words) | 1;
    found = sizes[a] > 1 && varies(l->batches, TTC__BATCHES, hash, sizes[a], calls, weight) && found < 0 ? a : found;
  }
  if (found >= 0) {
    make_current(l, sizes[found]);
  }
  return found;
}

/* ------------------------------------------------------------------------------------------------------------- parts */

/* Axes along which two elements of a dense array are in other places. */
static unsigned apart(int ndim, const int64_t *strides, int64_t x, int64_t y) {
  unsigned axes = 0;
  for (int a = 0; a < ndim; a++) {
    axes |= x / strides[a] != y / strides[a] ? 1u << a : 0;
    x %= strides[a];
    y %= strides[a];
  }
  return axes;
}

/* Of a part but for where it begins, and how long it is along the axis; -1: along none. */
static uint64_t part_hash(uint32_t op, uint32_t place, const ttc_tensor *t, int axis, const ttc__base *base) {
  uint64_t words[2 + 3 * TTC_MAX_NDIM] = {op | (uint64_t)place << 32, t->dtype | (uint64_t)t->ndim << 8 |
                                                                          (uint64_t)base->ndim << 16 |
                                                                          (uint64_t)(uint8_t)(axis + 1) << 24};
  size_t n = 2;
  memcpy(words + n, t->sizes, t->ndim * sizeof *words);
  if (axis >= 0) {
    words[n + (size_t)axis] = 0;
  }
  memcpy(words + (n += t->ndim), t->strides, t->ndim * sizeof *words);
  memcpy(words + (n += t->ndim), base->dims, base->ndim * sizeof *words);
  return ttc__hash64(words, (n + base->ndim) * sizeof *words) | 1;
}

bool ttc__varying(ttc__lengths *l, uint32_t op, uint32_t place, const ttc_tensor *t, int axis, const ttc__base *base) {
  return varies(l->parts, TTC__PARTS, part_hash(op, place, t, axis, base), t->sizes[axis], ++l->nasked, false);
}

unsigned ttc__moving(ttc__lengths *l, uint32_t op, uint32_t place, const ttc_tensor *t, const ttc__base *base) {
  int64_t strides[TTC_MAX_NDIM];
  uint64_t hash = part_hash(op, place, t, -1, base);
  if (!varies(l->parts, TTC__PARTS, hash, t->offset + 1, ++l->nasked, false)) { /* 0 is no size */
    return 0;
  }
  const ttc__batch *b = batch_of(l->parts, TTC__PARTS, hash);
  ttc__dense_strides(base->ndim, base->dims, strides);
  unsigned axes = apart(base->ndim, strides, b->sizes[0] - 1, t->offset);
  for (uint32_t k = 1; k < b->nsize; k++) {
    axes |= apart(base->ndim, strides, b->sizes[0] - 1, b->sizes[k] - 1);
  }
  return axes;
}

bool ttc__spec_stretch(ttc_spec *spec, uint16_t axes, const ttc__opened *o, bool wide) {
  int order[TTC_MAX_NDIM];
  if ((axes >> spec->ndim) != 0 || !ttc__dense_order(spec->ndim, spec->sizes, spec->strides, order)) {
    return false;
  }
  for (unsigned left = axes; left != 0; left &= left - 1) {
    int64_t *size = &spec->sizes[spec->ndim - 1 - __builtin_ctz(left)];
    int64_t n = (int64_t)o->outer * o->inner, from = n * (wide ? o->length : o->bound), to = n * (wide ? o->bound : o->length);
    if (*size != from) {
      return false;
    }
    *size = to;
  }
  int64_t stride = 1;
  for (int k = spec->ndim - 1; k >= 0; k--) {
    spec->strides[order[k]] = stride;
    stride *= spec->sizes[order[k]] > 0 ? spec->sizes[order[k]] : 1;
  }
  return true;
}
