#include "graph/lengths.h"

#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------------------------------------- tensors */

static uint8_t number(ttc__wide *w, int64_t value, int64_t bound) {
  for (uint32_t k = 0; bound != 0 && k < w->nnumber; k++) {
    if (w->bounds[k] == bound && w->numbers[k].i == value) {
      return (uint8_t)k;
    }
  }
  if (w->nnumber < TTC__MAX_OPEN) {
    w->numbers[w->nnumber] = (ttc_scalar){.kind = TTC_SCALAR_INT, .i = value};
    w->bounds[w->nnumber] = bound;
  }
  return (uint8_t)w->nnumber++;
}

static const ttc__base *base_of(const ttc_tensor *t) {
  return &((const ttc__keyed *)(const void *)t->store)->base;
}

/* A view of a base, taken apart by the base's axes. */
typedef struct parts {
  int64_t at[TTC_MAX_NDIM];     /* where it begins along each axis of the base */
  int64_t step[TTC_MAX_NDIM];   /* of each axis of the view, along `along` */
  int8_t along[TTC_MAX_NDIM];   /* innermost axis of the base that an axis of the view goes along; -1: it stands */
  int8_t open[TTC_MAX_NDIM];    /* open axis of the base that it goes along, or -1 */
  uint32_t outer[TTC_MAX_NDIM]; /* over so many rows of it, */
  uint32_t inner[TTC_MAX_NDIM]; /* and so many elements of each of its places */
  int8_t view[TTC_MAX_NDIM];    /* axis of the view that goes along an axis of the base, which is open; -1: none */
  int64_t reach[TTC_MAX_NDIM];  /* how much further than where it begins it goes along each axis of the base */
} parts;

/* Axis k of the view goes on past the end of axis j of the base: over all of it, and on along the axes outside. Fills in where it
 * is open. */
static bool goes_on(const ttc_tensor *t, const ttc__base *base, parts *p, int k, int j) {
  int64_t left = t->sizes[k], inner = 1, outer = 1;
  for (; left > 1; j--) {
    if (j < 0 || p->at[j] != 0 || p->reach[j] != 0) {
      return false;
    }
    bool open = ((base->open >> j) & 1) != 0, met = p->open[k] >= 0;
    int64_t n = left < base->dims[j] ? left : base->dims[j];
    if (left % n != 0 || (open && (met || n != base->dims[j]))) {
      return false;
    }
    p->reach[j] = n - 1;
    left /= n;
    inner *= met || open ? 1 : n;
    outer *= met ? n : 1;
    p->open[k] = open ? (int8_t)j : p->open[k];
  }
  p->outer[k] = (uint32_t)outer;
  p->inner[k] = p->open[k] >= 0 ? (uint32_t)inner : 1;
  return outer <= INT32_MAX && inner <= INT32_MAX;
}

static bool take_apart(const ttc_tensor *t, const ttc__base *base, parts *p) {
  int64_t strides[TTC_MAX_NDIM], offset = t->offset;
  ttc__dense_strides(base->ndim, base->dims, strides);
  if (t->dtype != base->dtype || (base->open != 0 && base->dims[__builtin_ctz(base->open)] < 2)) {
    return false;
  }
  for (int j = 0; j < base->ndim; j++) {
    if (base->dims[j] == 0) {
      return false;
    }
    p->at[j] = offset / strides[j];
    offset %= strides[j];
    p->view[j] = -1;
    p->reach[j] = 0;
  }
  for (int k = t->ndim - 1; k >= 0; k--) {
    int64_t size = t->sizes[k], stride = t->strides[k];
    p->along[k] = p->open[k] = -1;
    p->outer[k] = p->inner[k] = 1;
    if (size == 0 || stride < 0) {
      return false;
    }
    if (size == 1 || stride == 0) {
      continue;
    }
    int j = 0;
    while (j < base->ndim && (base->dims[j] == 1 || strides[j] > stride)) {
      j++;
    }
    if (j == base->ndim || stride % strides[j] != 0) {
      return false;
    }
    int64_t step = stride / strides[j], extent = (size - 1) * step;
    p->along[k] = (int8_t)j;
    p->step[k] = step;
    if (p->at[j] + p->reach[j] + extent < base->dims[j]) {
      p->reach[j] += extent;
      p->open[k] = ((base->open >> j) & 1) != 0 ? (int8_t)j : (int8_t)-1;
    } else if (step != 1 || !goes_on(t, base, p, k, j)) {
      return false;
    }
    if (p->open[k] >= 0) {
      if (p->view[p->open[k]] >= 0) {
        return false;
      }
      p->view[p->open[k]] = (int8_t)k;
    }
  }
  return true;
}

static bool is_merged(const parts *p, int k) {
  return p->outer[k] > 1 || p->inner[k] > 1;
}

/* Has the view all of the base's axis, from the first place on? */
static bool is_all_of(const ttc_tensor *t, const ttc__base *base, const parts *p, int a) {
  int k = p->view[a];
  return k >= 0 && p->at[a] == 0 && (is_merged(p, k) || (p->step[k] == 1 && t->sizes[k] == base->dims[a]));
}

/* Sizes, strides and offset of t in a base as long as `physical`: what is all of an axis is as long as that is there. */
static void lay_out(ttc_tensor *t, const ttc__base *base, const ttc__base *physical, const parts *p, int64_t *extents) {
  int64_t *sizes = extents, *strides = extents + TTC_MAX_NDIM, dense[TTC_MAX_NDIM], offset = 0;
  ttc__dense_strides(physical->ndim, physical->dims, dense);
  for (int k = 0; k < t->ndim; k++) {
    bool longer = p->open[k] >= 0 && physical->dims[p->open[k]] != base->dims[p->open[k]] && is_all_of(t, base, p, p->open[k]);
    sizes[k] = longer ? (int64_t)p->outer[k] * p->inner[k] * physical->dims[p->open[k]] : t->sizes[k];
    strides[k] = p->along[k] >= 0 ? p->step[k] * dense[p->along[k]] : t->strides[k];
  }
  for (int j = 0; j < base->ndim; j++) {
    offset += p->at[j] * dense[j];
  }
  t->sizes = sizes;
  t->strides = strides;
  t->offset = offset;
}

/* The same in the part of the buffer from where it begins along its open axis on, so many places. */
static void lay_out_part(ttc_tensor *t, const ttc__base *base, ttc__base *physical, parts *p, int64_t *extents, int64_t places) {
  int a = __builtin_ctz(base->open);
  physical->dims[a] = places;
  p->at[a] = 0;
  ttc__base as_is = *base;
  as_is.dims[a] = places; /* nothing is to be longer */
  lay_out(t, &as_is, physical, p, extents);
}

/* Shorter parts of what grows have programs of their own. */
#define SHORTEST_RANGE 16

/* Up to which bound axis k of the view is a range: it follows a batch's length, or that of the open axis, of which it is most. 0:
 * it does not. */
static int64_t range_bound(const ttc__wide *w, const ttc_tensor *t, const ttc__base *base, const parts *p, int k) {
  int64_t size = k >= 0 ? t->sizes[k] : 0;
  if (size < 2 || p->step[k] != 1) {
    return 0;
  }
  if (ttc__is_about_current(w->lengths, size)) {
    return ttc__batch_bound(size);
  }
  return size >= SHORTEST_RANGE && 2 * size > base->dims[p->open[k]] ? base->bound : 0;
}

/* t of an open store, rewritten as a view of the buffer, or of the part of it that `o` says. It is a part if no longer than pinned.
 */
static bool widen_tensor(ttc__wide *w, ttc_tensor *t, int64_t pinned, int64_t *extents, ttc__open *o) {
  const ttc__base *base = base_of(t);
  parts p;
  if (!take_apart(t, base, &p)) {
    return false;
  }
  int a = __builtin_ctz(base->open);
  bool whole = true, merged = false, one = (base->open & (base->open - 1)) == 0;
  ttc__base physical = ttc__base_physical(base);
  *o = (ttc__open){.kind = TTC__OPEN_WHOLE, .outer = 1, .inner = 1};
  for (int k = a; k < base->ndim; k++) {
    if (((base->open >> k) & 1) == 0) {
      continue;
    }
    whole = whole && is_all_of(t, base, &p, k);
    if (whole) {
      o->axes |= (uint16_t)(1u << p.view[k]);
      merged = merged || is_merged(&p, p.view[k]);
      o->outer = merged ? p.outer[p.view[k]] : 1;
      o->inner = merged ? p.inner[p.view[k]] : 1;
    }
  }
  int k = p.view[a];
  int64_t bound, extent = k >= 0 ? (t->sizes[k] - 1) * p.step[k] + 1 : 1;
  if (whole && (!merged || one) && base->dims[a] > pinned) {
    o->number = number(w, base->dims[a], base->bound);
  } else if (!one || (k >= 0 && is_merged(&p, k))) {
    return false;
  } else if (extent > pinned && (bound = range_bound(w, t, base, &p, k)) != 0) {
    *o = (ttc__open){.kind = TTC__OPEN_RANGE, .base = (uint8_t)a, .axes = (uint16_t)(1u << k), .outer = 1, .inner = 1};
    o->number = number(w, extent, bound);
    o->place = number(w, p.at[a], 0);
    lay_out_part(t, base, &physical, &p, extents, bound);
    t->sizes = extents;
    extents[k] = bound;
    return true;
  } else {
    *o = (ttc__open){.kind = TTC__OPEN_PART, .number = number(w, p.at[a], 0), .axes = (uint16_t)(1u << a), .outer = 1, .inner = 1};
    o->extents[0] = extent;
    w->places = true;
    lay_out_part(t, base, &physical, &p, extents, extent);
    return true;
  }
  lay_out(t, base, &physical, &p, extents);
  return true;
}

/* t of a store that is not open: a part that begins at ever other places, rewritten as a view of just that part. False: it is none.
 * Products that are to be fused keep their places: sums of those are found in texts, and are one product then (sums.h). */
static bool place_tensor(ttc__wide *w, ttc_tensor *t, uint32_t place, int64_t *extents, ttc__open *o) {
  const ttc__base *base = base_of(t);
  const ttc_op_row *row = ttc__op_row(w->call.op);
  parts p;
  if (w->lengths == NULL || row == NULL || (w->call.defer != 0 && row->pad == PAD_DOT) || t->dtype != base->dtype ||
      ttc__nelem(t->ndim, t->sizes) == ttc__nelem(base->ndim, base->dims)) {
    return false;
  }
  unsigned axes = ttc__moving(w->lengths, w->call.op, place, t, base);
  uint32_t n = (uint32_t)__builtin_popcount(axes);
  if (axes == 0 || n > TTC__MAX_PLACES || w->nnumber + n > TTC__MAX_OPEN || t->offset > INT32_MAX || !take_apart(t, base, &p)) {
    return false;
  }
  ttc__base part = *base;
  *o = (ttc__open){.kind = TTC__OPEN_PART, .number = (uint8_t)w->nnumber, .axes = (uint16_t)axes, .outer = 1, .inner = 1};
  for (int a = 0, k = 0; a < base->ndim; a++) {
    if (((axes >> a) & 1) != 0) {
      (void)number(w, p.at[a], 0);
      o->extents[k++] = part.dims[a] = p.reach[a] + 1;
      p.at[a] = 0;
    }
  }
  lay_out(t, &part, &part, &p, extents);
  return true;
}

/* Strides of axes of size 1 mean nothing, but follow the length of what they are a view of: as those of a dense tensor. */
static void settle_strides(ttc_tensor *t, int64_t *strides) {
  int64_t dense = 1;
  for (int k = t->ndim - 1; k >= 0; k--) {
    strides[k] = t->sizes[k] == 1 ? dense : t->strides[k];
    dense *= t->sizes[k];
  }
  t->strides = strides;
}

unsigned ttc__turned(const ttc_tensor *t, unsigned axes) {
  unsigned back = 0;
  for (int a = 0; a < t->ndim; a++) {
    back |= ((axes >> a) & 1u) << (t->ndim - 1 - a);
  }
  return back;
}

/* Does the buffer go on far enough for the axis to be `more` places longer? */
static bool goes_far(const ttc_tensor *t, int axis, int64_t more) {
  ttc__base base = ttc__base_physical(base_of(t));
  int64_t end = t->offset + more * t->strides[axis];
  for (int k = 0; k < t->ndim; k++) {
    if (t->strides[k] < 0) {
      return false;
    }
    end += (t->sizes[k] - 1) * t->strides[k];
  }
  return t->dtype == base.dtype && end < ttc__nelem(base.ndim, base.dims);
}

bool ttc__make_open(ttc__wide *w, uint32_t place, int axis, const ttc__shared *s) {
  ttc_tensor *t = &w->tensors[w->where[place]];
  ttc__open *o = &w->open[place];
  uint16_t bit = (uint16_t)(1u << axis);
  bool longer = ttc__is_long(o), merged = s->outer > 1 || s->inner > 1;
  if (longer && (o->number != s->number || o->outer != s->outer || o->inner != s->inner)) {
    return false;
  }
  if (longer && (o->axes & bit) != 0) {
    return true;
  }
  int64_t n = w->numbers[s->number].i, bound = w->bounds[s->number], times = (int64_t)s->outer * s->inner;
  if (o->kind == TTC__OPEN_PART || t->sizes[axis] != n * times || (merged && longer)) {
    return false;
  }
  bool stands = t->strides[axis] == 0, further = stands || (!merged && goes_far(t, axis, bound - n));
  if (longer && !stands && (o->kind == TTC__OPEN_RANGE || further != (o->kind == TTC__OPEN_WHOLE))) {
    return false;
  }
  o->kind = longer ? o->kind : further ? TTC__OPEN_WHOLE : TTC__OPEN_PADDED;
  o->axes |= bit;
  o->number = (uint8_t)s->number;
  o->outer = s->outer;
  o->inner = s->inner;
  o->extents[0] = o->kind == TTC__OPEN_PADDED ? n : 0;
  int64_t *sizes = w->extents + (size_t)w->where[place] * 2 * TTC_MAX_NDIM;
  memmove(sizes, t->sizes, t->ndim * sizeof *sizes);
  sizes[axis] = bound * times;
  t->sizes = sizes;
  settle_strides(t, sizes + TTC_MAX_NDIM);
  return true;
}

/* ------------------------------------------------------------------------------------------------------------- calls */

bool ttc__wide_reserve(ttc__wide *w, uint32_t narg, uint32_t ntensor) {
  if (narg >= w->narg_cap) {
    ttc_arg *p = realloc(w->args, 2 * (narg + 1) * sizeof *p);
    if (p == NULL) {
      return false;
    }
    w->args = p;
    w->narg_cap = 2 * (narg + 1);
  }
  if (ntensor > w->tensor_cap) {
    uint32_t cap = 2 * ntensor;
    ttc_tensor *tensors = realloc(w->tensors, cap * sizeof *tensors);
    w->tensors = tensors != NULL ? tensors : w->tensors;
    int64_t *extents = realloc(w->extents, 2 * TTC_MAX_NDIM * cap * sizeof *extents);
    w->extents = extents != NULL ? extents : w->extents;
    ttc__open *open = realloc(w->open, cap * sizeof *open);
    w->open = open != NULL ? open : w->open;
    uint32_t *where = realloc(w->where, cap * sizeof *where);
    w->where = where != NULL ? where : w->where;
    if (tensors == NULL || extents == NULL || open == NULL || where == NULL) {
      return false;
    }
    w->tensor_cap = cap;
  }
  return true;
}

bool ttc__is_plain_copy(const ttc_call *call) {
  const ttc_op_row *row = ttc__op_row(call->op);
  return row != NULL && strcmp(row->name, "copy") == 0 && call->ninto == 1 && call->into[0] != NULL && call->narg >= 2 &&
         call->args[0].kind == TTC_ARG_TENSOR && call->args[1].kind == TTC_ARG_TENSOR &&
         call->args[0].tensor->store == call->into[0]->store && call->args[1].tensor->store != call->into[0]->store;
}

bool ttc__is_whole_store(const ttc_tensor *t) {
  const ttc__base *base = base_of(t);
  return base->ndim == t->ndim && base->dtype == t->dtype && t->offset == 0 && ttc__is_dense(t->ndim, t->sizes, t->strides) &&
         memcmp(base->dims, t->sizes, t->ndim * sizeof *t->sizes) == 0;
}

/* Is the target all of its store, and as large as the source? */
static bool fills_store(const ttc_tensor *src, const ttc_tensor *to) {
  return ttc__is_whole_store(to) && src->ndim == to->ndim && memcmp(src->sizes, to->sizes, to->ndim * sizeof *to->sizes) == 0;
}

bool ttc__open_target(const ttc__wide *w, const ttc_call *call) {
  const ttc_tensor *src = call->args[1].tensor, *to = call->into[0];
  const ttc__base *from = base_of(src);
  ttc__base *base = &((ttc__keyed *)(void *)to->store)->base;
  parts p;
  if (from->open == 0 || src->ndim != to->ndim || !take_apart(src, from, &p)) {
    return false;
  }
  uint16_t open = 0;
  int64_t bound = from->bound;
  for (int a = 0; a < from->ndim; a++) {
    if (((from->open >> a) & 1) == 0) {
      continue;
    }
    int k = p.view[a];
    if (k < 0 || is_merged(&p, k)) {
      return false;
    }
    if (!is_all_of(src, from, &p, a)) {
      bound = (from->open & (from->open - 1)) == 0 ? range_bound(w, src, from, &p, k) : 0;
      if (bound == 0) {
        return false;
      }
    }
    open |= (uint16_t)(1u << k);
  }
  bool fills = fills_store(src, to);
  if (fills) {
    base->open = open;
    base->bound = bound;
  }
  return fills;
}

static uint32_t count_tensors(const ttc_call *call) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < call->narg; i++) {
    n += call->args[i].kind == TTC_ARG_TENSOR || call->args[i].kind == TTC_ARG_TENSORS ? call->args[i].n : 0;
  }
  return n;
}

/* The call's tensors, rewritten. Lengths up to `pinned` are parts of that size: another size is another program. *whole: there are
 * longer ones. */
static bool widen_tensors(ttc__wide *w, const ttc_call *call, int64_t pinned, bool *whole) {
  w->call = *call;
  w->call.args = w->args;
  w->nnumber = w->nopen = 0;
  w->opened = (ttc__opened){.outer = 1, .inner = 1};
  *whole = w->places = false;
  uint32_t next = 0;
  for (uint32_t i = 0; i < call->narg; i++) {
    w->args[i] = call->args[i];
    if (w->args[i].kind != TTC_ARG_TENSOR && w->args[i].kind != TTC_ARG_TENSORS) {
      continue;
    }
    memcpy(w->tensors + next, call->args[i].tensor, call->args[i].n * sizeof *w->tensors);
    w->args[i].tensor = w->tensors + next;
    for (uint32_t k = 0; k < call->args[i].n; k++, next++) {
      ttc_tensor *t = &w->tensors[next];
      if (ttc__absent(t)) {
        continue;
      }
      w->where[w->nopen] = next;
      ttc__open *o = &w->open[w->nopen++];
      *o = (ttc__open){.kind = TTC__OPEN_NOT, .outer = 1, .inner = 1};
      int64_t *extents = w->extents + (size_t)next * 2 * TTC_MAX_NDIM;
      if (base_of(t)->open == 0) {
        (void)place_tensor(w, t, w->nopen - 1, extents, o);
      } else if (!widen_tensor(w, t, pinned, extents, o)) {
        return false;
      }
      settle_strides(t, extents + TTC_MAX_NDIM);
      *whole = *whole || ttc__is_long(o);
    }
  }
  w->args[call->narg] = (ttc_arg){.kind = TTC_ARG_SCALARS, .n = w->nnumber, .scalar = w->numbers};
  return w->nnumber <= TTC__MAX_OPEN;
}

/* The shortest of several lengths, or the only one where there are places besides. 0: neither. */
static int64_t to_pin(const ttc__wide *w) {
  int64_t least = 0, most = 0;
  for (uint32_t k = 0; k < w->nnumber; k++) {
    int64_t n = w->numbers[k].i;
    if (w->bounds[k] != 0) {
      least = most == 0 || n < least ? n : least;
      most = n > most ? n : most;
    }
  }
  return least < most || w->places ? least : 0;
}

/* The target is a part of an open store, which stays as long, and not all of it: its first places, or all from one of those on.
 * What is past the length there may be anything. */
#define FIRST_PLACES 4
static bool widen_target_part(ttc__wide *w, const ttc_tensor *to) {
  const ttc__base *base = base_of(to);
  const ttc__opened *out = &w->opened;
  parts p;
  if ((base->open & (base->open - 1)) != 0 || !take_apart(to, base, &p)) {
    return false;
  }
  int a = __builtin_ctz(base->open), k = p.view[a];
  if (p.at[a] >= FIRST_PLACES || (k >= 0 && (p.step[k] != 1 || is_merged(&p, k))) || (k < 0) == out->any) {
    return false;
  }
  ttc__base physical = ttc__base_physical(base);
  w->target = *to;
  lay_out(&w->target, base, &physical, &p, w->target_extents);
  if (k >= 0) {
    if (p.at[a] == 0 || p.at[a] + to->sizes[k] != base->dims[a] || out->axes[0] != 1u << (to->ndim - 1 - k) || out->outer != 1 ||
        out->inner != 1 || out->length != to->sizes[k]) {
      return false;
    }
    int64_t room = base->bound - p.at[a];
    w->target_extents[k] = out->bound < room ? out->bound : room;
  }
  settle_strides(&w->target, w->target_extents + TTC_MAX_NDIM);
  w->into[0] = &w->target;
  w->call.into = w->into;
  return true;
}

/* The target, which is not open, is a part that begins at ever other places. Of the very tensor that is read there is one number.
 */
static void place_target(ttc__wide *w, const ttc_call *call) {
  const ttc_tensor *to = call->into[0];
  ttc__open *o = &w->open[w->nopen];
  if (call->ninto != 1 || to == NULL || base_of(to)->open != 0) {
    return;
  }
  *o = (ttc__open){.kind = TTC__OPEN_NOT, .outer = 1, .inner = 1};
  const ttc_tensor *self = call->narg > 0 && call->args[0].kind == TTC_ARG_TENSOR ? call->args[0].tensor : NULL;
  bool same = self != NULL && self->store == to->store && self->offset == to->offset && self->ndim == to->ndim &&
              self->dtype == to->dtype && memcmp(self->sizes, to->sizes, to->ndim * sizeof *to->sizes) == 0 &&
              memcmp(self->strides, to->strides, to->ndim * sizeof *to->strides) == 0;
  w->target = *to;
  if (same) {
    *o = w->open[0];
    w->target = w->tensors[0];
  } else if (place_tensor(w, &w->target, w->nopen, w->target_extents, o)) {
    settle_strides(&w->target, w->target_extents + TTC_MAX_NDIM);
  }
  if (o->kind == TTC__OPEN_PART) {
    w->into[0] = &w->target;
    w->call.into = w->into;
    w->args[call->narg].n = w->nnumber;
  }
  w->nopen++;
}

/* The results of a call go into all of an open store's length, which stays as long: of an op whose results depend on each place. */
static bool widen_target(ttc__wide *w, const ttc_op_row *row, const ttc_tensor *to) {
  ttc__open o;
  uint32_t known = w->nnumber;
  if (row->pad != PAD_EACH && row->pad != PAD_EACH_ONE) {
    return false;
  }
  if (widen_target_part(w, to)) {
    return true;
  }
  w->target = *to;
  if (!w->opened.any || !widen_tensor(w, &w->target, 0, w->target_extents, &o)) {
    return false;
  }
  settle_strides(&w->target, w->target_extents + TTC_MAX_NDIM);
  w->into[0] = &w->target;
  w->call.into = w->into;
  return o.kind == TTC__OPEN_WHOLE && w->nnumber == known && ttc__turned(to, o.axes) == w->opened.axes[0] &&
         o.outer == w->opened.outer && o.inner == w->opened.inner && w->opened.length == w->numbers[o.number].i &&
         w->opened.bound == w->bounds[o.number];
}

/* Of a plain copy the first argument is the target. */
static void copy_into_first(ttc__wide *w) {
  w->into[0] = &w->tensors[w->where[0]];
  w->call.into = w->into;
  w->open[w->nopen++] = w->open[0];
}

bool ttc__widen(ttc__wide *w, const ttc_call *call, bool target_opened) {
  const ttc_op_row *row = ttc__op_row(call->op);
  if (row == NULL || call->op >= ttc_op_count() || !ttc__wide_reserve(w, call->narg, count_tensors(call) + call->ninto)) {
    return false;
  }
  uint32_t ninto = 0;
  const ttc_tensor *target = NULL; /* that was open before */
  for (uint32_t k = 0; k < call->ninto; k++) {
    if (call->into[k] != NULL) {
      ninto++;
      target = base_of(call->into[k])->open != 0 && !target_opened ? call->into[k] : target;
    }
  }
  if (target != NULL && call->ninto != 1) {
    return false;
  }
  bool whole, made = widen_tensors(w, call, 0, &whole);
  for (int64_t pinned; made && whole && !ttc__widen_op(w, row);) { /* fewer lengths each time */
    made = (pinned = to_pin(w)) != 0 && widen_tensors(w, call, pinned, &whole);
  }
  if (!made || target != NULL) {
    return made && widen_target(w, row, target);
  }
  if (ttc__is_plain_copy(call)) {
    copy_into_first(w);
    return target_opened == w->opened.any;
  }
  if (ninto != 0 && !w->opened.any) {
    place_target(w, call);
    return true;
  }
  return ninto == 0;
}

/* The first places of an axis of a longer buffer, along axis k of t: up to how many they may be read on. 0: they are not just that.
 */
static int64_t room_of(const ttc_tensor *t, const ttc__base *base, const parts *p, int k) {
  int j = p->along[k];
  if (j < 0 || p->step[k] != 1 || p->reach[j] != t->sizes[k] - 1) {
    return 0;
  }
  int64_t room = base->dims[j] - p->at[j], bound = ttc__batch_bound(t->sizes[k] + 1);
  return bound < room ? bound : room;
}

/* Tensors of stores that are not open, of one length that is another one each time (a cache up to where it is filled): they are
 * read on, up to a bound for all of them. False: there are none. */
static bool read_on(ttc__wide *w, const ttc_call *call) {
  uint32_t places[TTC__MAX_OPEN], n = 0;
  int axes[TTC__MAX_OPEN];
  int64_t length = 0, bound = 0;
  parts p;
  for (uint32_t place = 0; place < w->nopen; place++) {
    const ttc_tensor *t = &w->tensors[w->where[place]];
    const ttc__base *base = base_of(t);
    if (w->open[place].kind != TTC__OPEN_NOT || ttc__nelem(t->ndim, t->sizes) == ttc__nelem(base->ndim, base->dims) ||
        !take_apart(t, base, &p)) {
      continue;
    }
    for (int k = 0; k < t->ndim; k++) {
      int64_t room = t->sizes[k] > 1 ? room_of(t, base, &p, k) : 0;
      if (room <= t->sizes[k] || !ttc__varying(w->lengths, call->op, place, t, k, base) || n == TTC__MAX_OPEN ||
          (length != 0 && t->sizes[k] != length)) {
        continue;
      }
      places[n] = place;
      axes[n++] = k;
      length = t->sizes[k];
      bound = bound == 0 || room < bound ? room : bound;
    }
  }
  if (n == 0 || w->nnumber == TTC__MAX_OPEN) {
    return false;
  }
  ttc__shared s = {number(w, length, bound), 1, 1};
  for (uint32_t i = 0; i < n; i++) {
    if (!ttc__make_open(w, places[i], axes[i], &s)) {
      return false;
    }
  }
  return true;
}

/* The target of a plain copy, a whole store that nobody has used, becomes open as its source is read on. */
static bool open_copy(ttc__wide *w, const ttc_call *call) {
  ttc_tensor *to = &w->tensors[w->where[0]];
  const ttc_tensor *src = call->args[1].tensor;
  const ttc__open *o = &w->open[1];
  ttc__base *base = &((ttc__keyed *)(void *)to->store)->base;
  if (w->nopen != 2 || !fills_store(src, to)) {
    return false;
  }
  base->open = o->axes;
  base->bound = w->bounds[o->number];
  int64_t *extents = w->extents + (size_t)w->where[0] * 2 * TTC_MAX_NDIM;
  if (!widen_tensor(w, to, 0, extents, &w->open[0])) {
    return false;
  }
  settle_strides(to, extents + TTC_MAX_NDIM);
  return true;
}

bool ttc__widen_parts(ttc__wide *w, const ttc_call *call, bool fresh) {
  const ttc_op_row *row = ttc__op_row(call->op);
  bool whole, copies = call->ninto != 0 && fresh && ttc__is_plain_copy(call);
  if (w->lengths == NULL || row == NULL || call->op >= ttc_op_count() ||
      !ttc__wide_reserve(w, call->narg, count_tensors(call) + call->ninto) || !widen_tensors(w, call, 0, &whole)) {
    return false;
  }
  uint32_t nplace = w->nnumber;
  if ((call->ninto == 0 || copies) && read_on(w, call) && (!copies || open_copy(w, call)) && ttc__widen_op(w, row)) {
    w->args[call->narg].n = w->nnumber;
    if (copies) {
      copy_into_first(w);
    }
    return w->nnumber <= TTC__MAX_OPEN;
  }
  if (copies) {
    ((ttc__keyed *)(void *)call->into[0]->store)->base.open = 0;
  }
  if (w->nnumber != nplace && !widen_tensors(w, call, 0, &whole)) { /* a length was added */
    return false;
  }
  if (call->ninto != 0) {
    place_target(w, call);
  }
  return w->nnumber != 0;
}

/* Tensors that are as long as `n` along an axis, with more behind it in their buffers, are read up to the bound. */
static bool reach_further(ttc__wide *w, int64_t n, int64_t bound) {
  bool any = false;
  for (uint32_t place = 0; place < w->nopen; place++) {
    const ttc_tensor *t = &w->tensors[w->where[place]];
    int64_t nelem = ttc__nelem(base_of(t)->ndim, base_of(t)->dims);
    for (int a = 0; a < t->ndim && ttc__nelem(t->ndim, t->sizes) < nelem; a++) {
      if (w->nnumber < TTC__MAX_OPEN && t->sizes[a] == n && goes_far(t, a, bound - n)) {
        ttc__shared s = {number(w, n, bound), 1, 1};
        any = ttc__make_open(w, place, a, &s) || any;
      }
    }
  }
  return any;
}

bool ttc__widen_closed(ttc__wide *w, const ttc_call *call) {
  const ttc__lengths *l = w->lengths;
  const ttc_op_row *row = ttc__op_row(call->op);
  if (row == NULL || l == NULL || call->op >= ttc_op_count() || call->ninto != 0 ||
      !ttc__wide_reserve(w, call->narg, count_tensors(call))) {
    return false;
  }
  for (uint32_t k = 0; k < TTC__CURRENT && l->current[k] != 0; k++) {
    bool whole;
    int64_t n = l->current[k], bound = ttc__batch_bound(n);
    if (!widen_tensors(w, call, 0, &whole)) {
      return false;
    }
    bool named = row->pad == PAD_VIEW; /* gradients of views say how long theirs is */
    if (named) {
      (void)number(w, n, bound);
    }
    if ((named || reach_further(w, n, bound)) && ttc__widen_op(w, row) && w->opened.any) {
      w->args[call->narg].n = w->nnumber;
      return true;
    }
  }
  return false;
}

bool ttc__key_make_wide(ttc__site *site, const ttc__wide *w, uint64_t salt) {
  site->wide = true;
  bool made = ttc__key_make(site, &w->call, salt);
  site->wide = false;
  if (!made) {
    return false;
  }
  uint64_t *at = site->words + site->nword; /* there is room: WORDS_PER_TENSOR */
  for (uint32_t k = 0; k < w->nopen; k++) {
    const ttc__open *o = &w->open[k];
    *at++ = (uint64_t)o->kind | (uint64_t)o->base << 8 | (uint64_t)o->number << 16 | (uint64_t)o->fill << 24 |
            (uint64_t)o->axes << 32 | (uint64_t)o->place << 48 | (uint64_t)1 << 63;
    *at++ = (uint64_t)o->outer << 32 | o->inner;
    for (uint32_t i = 0; i < TTC__MAX_PLACES && (o->kind == TTC__OPEN_PART || o->kind == TTC__OPEN_PADDED); i++) {
      *at++ = (uint64_t)o->extents[i];
    }
  }
  const ttc__opened *out = &w->opened;
  _Static_assert(sizeof out->axes == sizeof *at, "the axes of results are one word");
  memcpy(at++, out->axes, sizeof out->axes);
  *at++ = (uint64_t)out->outer << 32 | out->inner;
  *at++ = (uint64_t)out->bound;
  site->nword = (size_t)(at - site->words);
  return true;
}
