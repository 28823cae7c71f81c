#include "graph/lengths.h"

#include <stdlib.h>
#include <string.h>

#include "base/map.h"

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

/* A view of an open base, in the three parts of its strides: rows above the open axis, the axis itself, and what is inside one of
 * its places. */
typedef struct parts {
  int64_t row, place;           /* elements of one row, of one place along the open axis */
  int64_t at_row, at, at_place; /* where the view begins */
  int axis;                     /* of the view, along the open axis; -1: it is at one place */
  int64_t extent;               /* along the open axis */
} parts;

static bool take_apart(const ttc_tensor *t, const ttc__base *base, parts *p) {
  int a = base->open - 1;
  int64_t n = base->dims[a];
  p->place = ttc__nelem(base->ndim - a - 1, base->dims + a + 1);
  p->row = n * p->place;
  if (t->dtype != base->dtype || n < 2 || p->place <= 0) {
    return false;
  }
  p->at_row = t->offset / p->row;
  p->at = t->offset % p->row / p->place;
  p->at_place = t->offset % p->place;
  p->axis = -1;
  p->extent = 1;
  int64_t inside = p->at_place;
  for (int k = 0; k < t->ndim; k++) {
    int64_t size = t->sizes[k], stride = t->strides[k];
    if (size == 0 || stride < 0) {
      return false;
    }
    if (size == 1 || stride == 0) {
      continue;
    }
    if (stride >= p->row) {
      if (stride % p->row != 0) {
        return false;
      }
    } else if (stride >= p->place) {
      if (stride % p->place != 0 || p->axis >= 0) {
        return false;
      }
      p->axis = k;
      p->extent = (size - 1) * (stride / p->place) + 1;
    } else {
      inside += (size - 1) * stride;
    }
  }
  return inside < p->place && p->at + p->extent <= n;
}

/* t of an open store, rewritten as a view of the buffer, or of the part of it that `o` says. It is a part if no longer than pinned.
 */
static bool widen_tensor(ttc__wide *w, ttc_tensor *t, int64_t pinned, int64_t *extents, ttc__open *o) {
  const ttc__base *base = base_of(t);
  parts p;
  if (!take_apart(t, base, &p)) {
    return false;
  }
  int a = base->open - 1;
  bool whole = p.axis >= 0 && t->sizes[p.axis] == base->dims[a] && t->strides[p.axis] == p.place;
  w->places = w->places || !whole;
  whole = whole && base->dims[a] > pinned;
  if (whole) {
    *o = (ttc__open){.kind = TTC__OPEN_WHOLE, .axis = (uint8_t)p.axis, .number = number(w, base->dims[a], base->bound)};
  } else {
    *o = (ttc__open){.kind = TTC__OPEN_PART, .base = (uint8_t)a, .number = number(w, p.at, 0), .extent = p.extent};
  }
  int64_t row = (whole ? base->bound : p.extent) * p.place, *sizes = extents, *strides = extents + TTC_MAX_NDIM;
  for (int k = 0; k < t->ndim; k++) {
    sizes[k] = whole && k == p.axis ? base->bound : t->sizes[k];
    strides[k] = t->strides[k] >= p.row ? t->strides[k] / p.row * row : t->strides[k];
  }
  t->sizes = sizes;
  t->strides = strides;
  t->offset = p.at_row * row + p.at_place;
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

/* -------------------------------------------------------------------------------------------------------- kinds of ops */

/* The tensor of entry k of argument i, and how it is open; NULL: there is none. */
static const ttc_tensor *tensor_at(const ttc__wide *w, uint32_t i, uint32_t k, ttc__open **o) {
  uint32_t place = 0;
  for (uint32_t j = 0; j < w->call.narg; j++) {
    const ttc_arg *a = &w->call.args[j];
    for (uint32_t e = 0; (a->kind == TTC_ARG_TENSOR || a->kind == TTC_ARG_TENSORS) && e < a->n; e++) {
      bool absent = ttc__absent(&a->tensor[e]);
      if (j == i && e == k) {
        *o = absent ? NULL : &w->open[place];
        return absent ? NULL : &a->tensor[e];
      }
      place += absent ? 0 : 1;
    }
  }
  *o = NULL;
  return NULL;
}

/* The axis that argument i names, of ndim; -1: it names none. */
static int64_t axis_at(const ttc__wide *w, uint32_t i, int ndim) {
  if (i >= w->call.narg || w->call.args[i].kind != TTC_ARG_INT) {
    return -1;
  }
  return w->call.args[i].i < 0 ? w->call.args[i].i + ndim : w->call.args[i].i;
}

static bool is_whole(const ttc__open *o) {
  return o != NULL && o->kind == TTC__OPEN_WHOLE;
}

static bool results_are_open(ttc__wide *w, uint8_t from_last, uint8_t length) {
  w->out_open = from_last;
  w->out_length = w->numbers[length].i;
  w->out_bound = w->bounds[length];
  return true;
}

/* The open axis of tensors that broadcast, counted from the last, and the number of its length; length -1: none is met yet. */
typedef struct shared_axis {
  int from_last, length;
} shared_axis;

/* An open tensor has its length where those before have theirs. */
static bool joins(shared_axis *a, const ttc_tensor *t, const ttc__open *o) {
  int here = t->ndim - o->axis;
  if (a->length >= 0 && (here != a->from_last || o->number != a->length)) {
    return false;
  }
  *a = (shared_axis){here, o->number};
  return true;
}

/* A tensor that is not open broadcasts along the axis. */
static bool is_one_along(int from_last, const ttc_tensor *t) {
  return t->ndim < from_last || t->sizes[t->ndim - from_last] == 1;
}

static bool results_share(ttc__wide *w, const shared_axis *a) {
  return a->length < 0 || results_are_open(w, (uint8_t)a->from_last, (uint8_t)a->length);
}

/* Do all tensors, as they broadcast, have the same length along one axis, or size 1? The results then have it too. */
static bool widen_each(ttc__wide *w, ttc__filling fill) {
  shared_axis axis = {0, -1};
  for (uint32_t pass = 0; pass < 2; pass++) {
    uint32_t place = 0;
    for (uint32_t i = 0; i < w->call.narg; i++) {
      const ttc_arg *a = &w->call.args[i];
      for (uint32_t k = 0; (a->kind == TTC_ARG_TENSOR || a->kind == TTC_ARG_TENSORS) && k < a->n; k++) {
        const ttc_tensor *t = &a->tensor[k];
        if (ttc__absent(t)) {
          continue;
        }
        ttc__open *o = &w->open[place++];
        if (is_whole(o)) {
          o->fill = (uint8_t)fill;
        }
        if (pass == 0 ? is_whole(o) && !joins(&axis, t, o) : !is_whole(o) && !is_one_along(axis.from_last, t)) {
          return false;
        }
      }
    }
  }
  return results_share(w, &axis);
}

/* aten::cat(tensors, dim) */
static bool widen_join(ttc__wide *w) {
  const ttc_arg *a = &w->call.args[0];
  ttc__open *first;
  const ttc_tensor *t = tensor_at(w, 0, 0, &first);
  int64_t dim = t != NULL ? axis_at(w, 1, t->ndim) : -1;
  if (dim < 0) {
    return false;
  }
  bool along = first->kind == TTC__OPEN_WHOLE && first->axis == dim;
  int64_t more = 0;
  for (uint32_t k = 1; k < a->n; k++) {
    ttc__open *o;
    const ttc_tensor *other = tensor_at(w, 0, k, &o);
    if (other == NULL || other->ndim != t->ndim || (along && o->kind == TTC__OPEN_WHOLE)) {
      return false;
    }
    if (!along &&
        (o->kind != first->kind || (o->kind == TTC__OPEN_WHOLE && (o->axis != first->axis || o->number != first->number)))) {
      return false;
    }
    more += other->sizes[dim];
  }
  if (first->kind != TTC__OPEN_WHOLE) {
    return true;
  }
  results_are_open(w, (uint8_t)(t->ndim - first->axis), first->number);
  if (along) {
    w->out_length += more;
    if (w->out_length > w->out_bound) {
      int64_t row = ttc__nelem(t->ndim, t->sizes) / w->out_bound;
      w->out_bound = ttc__bound_of(w->out_length, row * (int64_t)ttc_dtype_nbyte((ttc_dtype)t->dtype));
    }
  }
  return true;
}

/* _sdpa_forward(q, k, v, bias?, ..): keys and values of one length, which a bias has too, or 1 */
static bool widen_attention(ttc__wide *w) {
  ttc__open *q, *k, *v, *bias;
  const ttc_tensor *mask;
  if (tensor_at(w, 0, 0, &q) == NULL || tensor_at(w, 1, 0, &k) == NULL || tensor_at(w, 2, 0, &v) == NULL) {
    return false;
  }
  bool same = k->kind == TTC__OPEN_WHOLE && v->kind == TTC__OPEN_WHOLE && k->axis == 2 && v->axis == 2 && k->number == v->number;
  if (!same || q->kind == TTC__OPEN_WHOLE) {
    return false;
  }
  v->fill = TTC__FILL_ZERO;
  mask = tensor_at(w, 3, 0, &bias);
  if (mask == NULL || mask->ndim == 0) {
    return true;
  }
  int last = mask->ndim - 1;
  return bias->kind == TTC__OPEN_WHOLE ? bias->axis == last && bias->number == k->number : mask->sizes[last] == 1;
}

/* (x, dim, ..) -> results like x, what is past the length being filled where they go along it */
static bool widen_along(ttc__wide *w, ttc__filling fill) {
  ttc__open *x;
  const ttc_tensor *t = tensor_at(w, 0, 0, &x);
  int64_t dim = t != NULL ? axis_at(w, 1, t->ndim) : -1;
  if (dim < 0 || !is_whole(x)) {
    return false;
  }
  x->fill = dim == x->axis ? (uint8_t)fill : TTC__FILL_NOT;
  return results_are_open(w, (uint8_t)(t->ndim - x->axis), x->number);
}

/* Reductions, by name: others of their kinds do more than that with their operand (norms), or give places in the whole of it. */
static const char *const folds[] = {"sum",     "sum.dim_IntList", "any",    "any.dim", "any.dims", "all",
                                    "all.dim", "all.dims",        "amax",   "amin",    "max",      "min",
                                    "max.dim", "min.dim",         "argmax", "argmin",  "mean.dim"};

static bool is_fold(const char *name) {
  for (size_t k = 0; k < sizeof folds / sizeof *folds; k++) {
    if (strcmp(name, folds[k]) == 0) {
      return true;
    }
  }
  return false;
}

/* Is the axis one of those that argument 1 names? Where it names none, all are, or none if `keeps` (aten::any.dims, all.dims). */
static bool is_reduced(const ttc_arg *dims, bool keeps, int ndim, int axis) {
  const int64_t *list = dims->kind == TTC_ARG_INTS ? dims->ints : dims->kind == TTC_ARG_INT ? &dims->i : NULL;
  uint32_t n = dims->kind == TTC_ARG_INTS ? dims->n : list != NULL ? 1 : 0;
  for (uint32_t k = 0; k < n; k++) {
    if ((list[k] < 0 ? list[k] + ndim : list[k]) == axis) {
      return true;
    }
  }
  return n == 0 && !(keeps && dims->kind == TTC_ARG_INTS);
}

/* (x, dims?, keepdim?, ..) */
static bool widen_fold(ttc__wide *w, const char *name, ttc__filling fill) {
  ttc__open *x;
  const ttc_tensor *t = tensor_at(w, 0, 0, &x);
  if (t == NULL || x->kind != TTC__OPEN_WHOLE || !is_fold(name)) {
    return false;
  }
  static const ttc_arg none = {.kind = TTC_ARG_NONE};
  const ttc_arg *dims = w->call.narg > 1 ? &w->call.args[1] : &none;
  if (strncmp(name, "arg", 3) == 0 && dims->kind != TTC_ARG_INT) {
    return false;
  }
  bool keeps = strcmp(name, "any.dims") == 0 || strcmp(name, "all.dims") == 0;
  if (is_reduced(dims, keeps, t->ndim, x->axis)) {
    x->fill = (uint8_t)fill;
    return fill != TTC__FILL_NOT;
  }
  bool keep = w->call.narg > 2 && w->call.args[2].kind == TTC_ARG_BOOL && w->call.args[2].i != 0;
  int from_last = 1;
  for (int k = x->axis + 1; k < t->ndim; k++) {
    from_last += keep || !is_reduced(dims, keeps, t->ndim, k) ? 1 : 0;
  }
  return results_are_open(w, (uint8_t)from_last, x->number);
}

/* mm, bmm: rows [.., m, p] by columns [.., p, n]; addmm, baddbmm: likewise, with what is added first */
static bool widen_dot(ttc__wide *w, const char *name) {
  bool adds = strcmp(name, "addmm") == 0 || strcmp(name, "baddbmm") == 0;
  ttc__open *x, *y, *z = NULL;
  const ttc_tensor *a = tensor_at(w, adds ? 1 : 0, 0, &x), *b = tensor_at(w, adds ? 2 : 1, 0, &y);
  const ttc_tensor *bias = adds ? tensor_at(w, 0, 0, &z) : NULL;
  if (!(adds || strcmp(name, "mm") == 0 || strcmp(name, "bmm") == 0) || a == NULL || b == NULL || a->ndim != b->ndim) {
    return false;
  }
  int last = a->ndim - 1, from_last = 0;
  if (is_whole(x) && x->axis == last) {
    x->fill = y->fill = TTC__FILL_ZERO;
    return is_whole(y) && y->axis == last - 1 && y->number == x->number && !is_whole(z);
  }
  if (is_whole(x) && x->axis == last - 1 && !is_whole(y)) {
    from_last = 2;
  } else if (!is_whole(x) && is_whole(y) && y->axis == last) {
    from_last = 1;
  }
  if (from_last == 0) {
    return false;
  }
  uint8_t length = from_last == 2 ? x->number : y->number;
  if (is_whole(z) ? bias->ndim - z->axis != from_last || z->number != length : bias != NULL && !is_one_along(from_last, bias)) {
    return false;
  }
  return results_are_open(w, (uint8_t)from_last, length);
}

/* index.Tensor(x, indices): the indices are open along one axis, as they broadcast. An axis of x that is indexed may be open too;
 * its length is then where indices end. */
static bool widen_index(ttc__wide *w) {
  ttc__open *x, *o;
  const ttc_tensor *t = tensor_at(w, 0, 0, &x), *index;
  const ttc_arg *list = &w->call.args[1];
  int first = -1, last = -1, given = 0;
  shared_axis axis = {0, -1};
  bool x_indexed = x == NULL || x->kind != TTC__OPEN_WHOLE;
  for (uint32_t pass = 0; t != NULL && list->kind == TTC_ARG_TENSORS && pass < 2; pass++) {
    for (uint32_t k = 0; k < list->n; k++) {
      if ((index = tensor_at(w, 1, k, &o)) == NULL) {
        continue;
      }
      if (index->dtype == TTC_BOOL || index->dtype == TTC_U8) {
        return false;
      }
      if (pass == 0) {
        first = first < 0 ? (int)k : first;
        last = (int)k;
        given++;
        x_indexed = x_indexed || x->axis == k;
        o->fill = TTC__FILL_ZERO;
        if (is_whole(o) && !joins(&axis, index, o)) {
          return false;
        }
      } else if (axis.length >= 0 && !is_whole(o) && !is_one_along(axis.from_last, index)) {
        return false;
      }
    }
  }
  if (!x_indexed || given == 0) {
    return false;
  }
  int after = last - first + 1 == given ? t->ndim - 1 - last : t->ndim - given; /* axes of x that come after the indices' */
  axis.from_last += after;
  return results_share(w, &axis);
}

/* index_select(x, dim, index[n]) -> [.., n, ..] */
static bool widen_select(ttc__wide *w, const ttc_tensor *t, const ttc__open *x, int64_t dim, ttc__open *index) {
  bool xo = x->kind == TTC__OPEN_WHOLE, io = index->kind == TTC__OPEN_WHOLE;
  if (xo == io || t->ndim == 0 || (xo && x->axis == dim)) {
    return false;
  }
  index->fill = TTC__FILL_ZERO;
  return results_are_open(w, (uint8_t)(t->ndim - (xo ? x->axis : dim)), xo ? x->number : index->number);
}

/* gather(x, dim, index): x is cut to the index's sizes on the other axes. */
static bool widen_gather(ttc__wide *w, const ttc_tensor *t, const ttc__open *x, int64_t dim, ttc__open *index) {
  bool along = x->kind == TTC__OPEN_WHOLE && x->axis == dim; /* places would end at a length */
  if (index->kind != TTC__OPEN_WHOLE || along || t->ndim == 0) {
    return !along && t->ndim != 0;
  }
  if (index->axis != dim && (x->kind != TTC__OPEN_WHOLE || x->axis != index->axis || x->number != index->number)) {
    return false;
  }
  index->fill = TTC__FILL_ZERO;
  return results_are_open(w, (uint8_t)(t->ndim - index->axis), index->number);
}

/* Reading at indices: index.Tensor(x, indices), embedding(x, index, ..), index_select, gather(x, dim, index) */
static bool widen_take(ttc__wide *w, const char *name) {
  if (strcmp(name, "index.Tensor") == 0) {
    return widen_index(w);
  }
  bool embedding = strcmp(name, "embedding") == 0;
  ttc__open *x, *o;
  const ttc_tensor *t = tensor_at(w, 0, 0, &x), *index = tensor_at(w, embedding ? 1 : 2, 0, &o);
  if (t == NULL || index == NULL || ttc__nelem(t->ndim, t->sizes) == 0 || ttc__nelem(index->ndim, index->sizes) == 0) {
    return false;
  }
  if (embedding) {
    o->fill = TTC__FILL_ZERO;
    return x->kind != TTC__OPEN_WHOLE && results_are_open(w, (uint8_t)(index->ndim - o->axis + t->ndim - 1), o->number);
  }
  int64_t dim = axis_at(w, 1, t->ndim);
  if (dim >= 0 && strcmp(name, "gather") == 0) {
    return index->ndim == t->ndim && widen_gather(w, t, x, dim, o);
  }
  return dim >= 0 && strcmp(name, "index_select") == 0 && index->ndim == 1 && widen_select(w, t, x, dim, o);
}

/* scatter(x, dim, index, src or value), scatter_add: the rule sees to it that what is past the index's length goes nowhere. */
static bool widen_put(ttc__wide *w, const char *name) {
  ttc__open *x, *i, *s;
  const ttc_tensor *t = tensor_at(w, 0, 0, &x), *index = tensor_at(w, 2, 0, &i), *src = tensor_at(w, 3, 0, &s);
  bool named = strcmp(name, "scatter.src") == 0 || strcmp(name, "scatter.value") == 0 || strcmp(name, "scatter_add") == 0;
  int64_t dim = t != NULL ? axis_at(w, 1, t->ndim) : -1;
  if (!named || dim < 0 || index == NULL || index->ndim != t->ndim || is_whole(x) || !is_whole(i) || i->axis != dim ||
      t->sizes[dim] == 0 || (src != NULL && (!is_whole(s) || s->axis != dim || s->number != i->number))) {
    return false;
  }
  i->fill = TTC__FILL_ZERO;
  return true;
}

/* native_layer_norm, _fused_rms_norm (x, sizes of the last axes, weights..): of each row by itself, all results having x's axes */
static bool widen_norm(ttc__wide *w) {
  ttc__open *x, *o;
  const ttc_tensor *t = tensor_at(w, 0, 0, &x);
  if (t == NULL || x->kind != TTC__OPEN_WHOLE || w->call.narg < 2 || w->call.args[1].kind != TTC_ARG_INTS ||
      x->axis + (int)w->call.args[1].n >= t->ndim) {
    return false;
  }
  for (uint32_t i = 2; i < w->call.narg; i++) {
    if (tensor_at(w, i, 0, &o) != NULL && o->kind == TTC__OPEN_WHOLE) {
      return false;
    }
  }
  return results_are_open(w, (uint8_t)(t->ndim - x->axis), x->number);
}

static bool widen_kind(ttc__wide *w, const ttc_op_row *row) {
  switch (row->pad) {
    case PAD_EACH:
      return (row->flags & (TTC_OP_RNG | TTC_OP_SIZED)) == 0 && widen_each(w, TTC__FILL_NOT);
    case PAD_EACH_ONE:
      return (row->flags & (TTC_OP_RNG | TTC_OP_SIZED)) == 0 && widen_each(w, TTC__FILL_ONE);
    case PAD_JOIN:
      return strcmp(row->name, "cat") == 0 && widen_join(w);
    case PAD_ATTENTION:
      return strcmp(row->name, "_sdpa_forward") == 0 && widen_attention(w);
    case PAD_TAKE:
      return widen_take(w, row->name);
    case PAD_PUT:
      return widen_put(w, row->name);
    case PAD_TRIANGLE:
      return widen_along(w, TTC__FILL_NOT);
    case PAD_SOFTMAX:
      return widen_along(w, TTC__FILL_LOWEST);
    case PAD_MEAN: /* over other axes: how many there are is not known where it is along this one */
      return widen_fold(w, row->name, TTC__FILL_NOT);
    case PAD_NORM:
      return widen_norm(w);
    case PAD_FOLD_ZERO:
      return widen_fold(w, row->name, TTC__FILL_ZERO);
    case PAD_FOLD_ONE:
      return widen_fold(w, row->name, TTC__FILL_ONE);
    case PAD_FOLD_LOWEST:
      return widen_fold(w, row->name, TTC__FILL_LOWEST);
    case PAD_FOLD_HIGHEST:
      return widen_fold(w, row->name, TTC__FILL_HIGHEST);
    case PAD_SCAN_ZERO: /* what is past the length is added last */
    case PAD_SCAN_ONE:
      return widen_along(w, TTC__FILL_NOT);
    case PAD_DOT:
      return widen_dot(w, row->name);
    default:
      return false;
  }
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
    if (tensors == NULL || extents == NULL || open == NULL) {
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

bool ttc__open_target(const ttc_call *call) {
  const ttc_tensor *src = call->args[1].tensor, *to = call->into[0];
  ttc__base *base = &((ttc__keyed *)(void *)to->store)->base;
  parts p;
  if (base_of(src)->open == 0 || !take_apart(src, base_of(src), &p) || p.axis < 0 || src->ndim != to->ndim ||
      src->sizes[p.axis] != base_of(src)->dims[base_of(src)->open - 1]) {
    return false;
  }
  bool whole = ttc__is_whole_store(to) && memcmp(src->sizes, to->sizes, to->ndim * sizeof *to->sizes) == 0;
  whole = whole && (base->open == 0 || (base->open == p.axis + 1 && base->bound == base_of(src)->bound)); /* a second look */
  if (whole) {
    base->open = (uint8_t)(p.axis + 1);
    base->bound = base_of(src)->bound;
  }
  return whole;
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
  w->nnumber = w->nopen = w->out_open = 0;
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
      ttc__open *o = &w->open[w->nopen++];
      *o = (ttc__open){.kind = TTC__OPEN_NOT};
      int64_t *extents = w->extents + (size_t)next * 2 * TTC_MAX_NDIM;
      if (base_of(t)->open != 0 && !widen_tensor(w, t, pinned, extents, o)) {
        return false;
      }
      settle_strides(t, extents + TTC_MAX_NDIM);
      *whole = *whole || o->kind == TTC__OPEN_WHOLE;
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

/* The results of a call go into all of an open store's length, which stays as long: of an op whose results depend on each place. */
static bool widen_target(ttc__wide *w, const ttc_op_row *row, const ttc_tensor *to) {
  ttc__open o;
  uint32_t known = w->nnumber;
  w->target = *to;
  if ((row->pad != PAD_EACH && row->pad != PAD_EACH_ONE) || w->out_open == 0 ||
      !widen_tensor(w, &w->target, 0, w->target_extents, &o)) {
    return false;
  }
  settle_strides(&w->target, w->target_extents + TTC_MAX_NDIM);
  w->into[0] = &w->target;
  w->call.into = w->into;
  return is_whole(&o) && w->nnumber == known && to->ndim - o.axis == w->out_open && w->out_length == w->numbers[o.number].i &&
         w->out_bound == w->bounds[o.number];
}

bool ttc__widen(ttc__wide *w, const ttc_call *call, bool target_opened) {
  const ttc_op_row *row = ttc__op_row(call->op);
  if (row == NULL || call->op >= ttc_op_count() || !ttc__wide_reserve(w, call->narg, count_tensors(call))) {
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
  for (int64_t pinned; made && whole && !widen_kind(w, row);) { /* fewer lengths each time */
    made = (pinned = to_pin(w)) != 0 && widen_tensors(w, call, pinned, &whole);
  }
  if (!made || target != NULL) {
    return made && widen_target(w, row, target);
  }
  if (ttc__is_plain_copy(call)) {
    w->into[0] = &w->tensors[0]; /* its first argument is its target */
    w->call.into = w->into;
    return target_opened == (w->out_open != 0);
  }
  return ninto == 0 || w->out_open == 0;
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
    *at++ = (uint64_t)o->kind | (uint64_t)o->axis << 8 | (uint64_t)o->base << 16 | (uint64_t)o->number << 24 |
            (uint64_t)o->fill << 32 | (uint64_t)1 << 63;
    *at++ = (uint64_t)o->extent;
  }
  *at++ = (uint64_t)w->out_open << 56 | (uint64_t)w->out_bound;
  site->nword = (size_t)(at - site->words);
  return true;
}
