/* What ops do with open axes, kind by kind (ttc__pad): which lengths must agree, what is filled in, how results are open. */
#include <string.h>

#include "graph/lengths.h"

static const ttc_tensor *tensor_in(const ttc__wide *w, uint32_t place) {
  return &w->tensors[w->where[place]];
}

/* The tensor of entry k of argument i, how it is open, and its place in the visiting order; NULL: there is none. */
static const ttc_tensor *entry_at(ttc__wide *w, uint32_t i, uint32_t k, ttc__open **o, uint32_t *at) {
  const ttc_arg *a = i < w->call.narg ? &w->call.args[i] : NULL;
  *o = NULL;
  if (a == NULL || (a->kind != TTC_ARG_TENSOR && a->kind != TTC_ARG_TENSORS) || k >= a->n || ttc__absent(&a->tensor[k])) {
    return NULL;
  }
  *at = 0;
  while (tensor_in(w, *at) != &a->tensor[k]) {
    (*at)++;
  }
  *o = &w->open[*at];
  return tensor_in(w, *at);
}

static const ttc_tensor *tensor_at(ttc__wide *w, uint32_t i, ttc__open **o) {
  uint32_t at;
  return entry_at(w, i, 0, o, &at);
}

/* The axis that argument i names, of ndim; -1: it names none. */
static int64_t axis_at(const ttc__wide *w, uint32_t i, int ndim) {
  if (i >= w->call.narg || w->call.args[i].kind != TTC_ARG_INT) {
    return -1;
  }
  return w->call.args[i].i < 0 ? w->call.args[i].i + ndim : w->call.args[i].i;
}

static bool is_whole(const ttc__open *o) {
  return o != NULL && ttc__is_long(o);
}

/* Open along this axis? */
static bool is_open(const ttc__open *o, int64_t axis) {
  return is_whole(o) && axis >= 0 && ((o->axes >> axis) & 1) != 0;
}

static const ttc__shared no_length = {-1, 1, 1};

static ttc__shared length_of(const ttc__open *o) {
  return (ttc__shared){o->number, o->outer, o->inner};
}

static bool is_merged(const ttc__shared *s) {
  return s->outer > 1 || s->inner > 1;
}

static bool agrees(ttc__shared *s, const ttc__open *o) {
  if (!is_whole(o)) {
    return true;
  }
  if (s->number >= 0 && (o->number != s->number || o->outer != s->outer || o->inner != s->inner)) {
    return false;
  }
  *s = length_of(o);
  return true;
}

/* A tensor of the call's one length adds its open axes, counted from the last. */
static bool meets(ttc__shared *s, unsigned *axes, const ttc_tensor *t, const ttc__open *o) {
  *axes |= is_whole(o) ? ttc__turned(t, o->axes) : 0;
  return agrees(s, o);
}

/* All results are open along these axes, counted from the last; result k where `only` is not negative. */
static bool results_are_open(ttc__wide *w, unsigned axes, const ttc__shared *s, int only) {
  if (axes == 0) {
    return true;
  }
  if (s->number < 0 || (is_merged(s) && (axes & (axes - 1)) != 0)) {
    return false;
  }
  for (uint32_t k = 0; k < TTC__OPEN_OUTS; k++) {
    w->opened.axes[k] = only < 0 || (uint32_t)only == k ? (uint16_t)axes : w->opened.axes[k];
  }
  w->opened.any = true;
  w->opened.outer = s->outer;
  w->opened.inner = s->inner;
  w->opened.length = w->numbers[s->number].i;
  w->opened.bound = w->bounds[s->number];
  return true;
}

/* Results have the axes of t, and are open as it is. */
static bool results_are_like(ttc__wide *w, const ttc_tensor *t, const ttc__open *o) {
  ttc__shared s = length_of(o);
  return results_are_open(w, ttc__turned(t, o->axes), &s, -1);
}

/* The tensor, as it broadcasts, is open along these axes, counted from the last, or has size 1 there. */
static bool spreads(ttc__wide *w, uint32_t place, const ttc_tensor *t, unsigned axes, const ttc__shared *s) {
  for (; axes != 0; axes &= axes - 1) {
    int a = t->ndim - 1 - __builtin_ctz(axes);
    if (a >= 0 && t->sizes[a] != 1 && !ttc__make_open(w, place, a, s)) {
      return false;
    }
  }
  return true;
}

/* Do all tensors, as they broadcast, have the same length along the same axes, or size 1? The results then have it too. */
static bool widen_each(ttc__wide *w, ttc__filling fill) {
  ttc__shared s = no_length;
  unsigned axes = 0;
  for (uint32_t place = 0; place < w->nopen; place++) {
    if (!meets(&s, &axes, tensor_in(w, place), &w->open[place])) {
      return false;
    }
  }
  for (uint32_t place = 0; place < w->nopen; place++) {
    if (!spreads(w, place, tensor_in(w, place), axes, &s)) {
      return false;
    }
    w->open[place].fill = is_whole(&w->open[place]) ? (uint8_t)fill : TTC__FILL_NOT;
  }
  return results_are_open(w, axes, &s, -1);
}

/* isin(elements, test_elements, ..) */
static bool widen_among(ttc__wide *w) {
  ttc__open *x, *tests;
  const ttc_tensor *t = tensor_at(w, 0, &x);
  (void)tensor_at(w, 1, &tests);
  if (t == NULL || !is_whole(x) || is_whole(tests)) {
    return false;
  }
  return results_are_like(w, t, x);
}

/* aten::cat leaves out what has the shape [0]: so that the first tensor is one with places. */
static void drop_empty(ttc__wide *w) {
  ttc_arg *a = &w->args[0];
  while (a->n > 1 && !ttc__absent(&a->tensor[0]) && a->tensor[0].ndim == 1 && a->tensor[0].sizes[0] == 0 &&
         a->tensor[1].ndim != 1) {
    a->tensor++;
    a->n--;
    memmove(w->open, w->open + 1, --w->nopen * sizeof *w->open);
    memmove(w->where, w->where + 1, w->nopen * sizeof *w->where);
  }
}

/* aten::cat(tensors, dim) */
static bool widen_join(ttc__wide *w) {
  drop_empty(w);
  const ttc_arg *a = &w->call.args[0];
  ttc__open *first, *o;
  uint32_t at;
  const ttc_tensor *t = tensor_at(w, 0, &first), *other;
  int64_t dim = t != NULL ? axis_at(w, 1, t->ndim) : -1, more = 0;
  if (dim < 0) {
    return false;
  }
  ttc__shared s = no_length;
  bool along = is_open(first, dim);
  unsigned axes = 0;
  for (uint32_t k = 0; k < a->n; k++) {
    other = entry_at(w, 0, k, &o, &at);
    if (other == NULL || other->ndim != t->ndim || (k > 0 && along && is_whole(o)) || !meets(&s, &axes, other, o)) {
      return false;
    }
    more += k > 0 ? other->sizes[dim] : 0;
  }
  if (along && (axes & (axes - 1)) == 0 && !is_merged(&s)) {
    (void)results_are_open(w, axes, &s, -1);
    w->opened.length += more;
    if (w->opened.length > w->opened.bound) {
      int64_t row = ttc__nelem(t->ndim, t->sizes) / w->opened.bound;
      w->opened.bound = ttc__bound_of(w->opened.length, row * (int64_t)ttc_dtype_nbyte((ttc_dtype)t->dtype));
    }
    return true;
  }
  if (((axes >> (t->ndim - 1 - dim)) & 1) != 0) {
    return false;
  }
  for (uint32_t k = 0; k < a->n; k++) {
    other = entry_at(w, 0, k, &o, &at);
    if (!spreads(w, at, other, axes, &s)) {
      return false;
    }
  }
  return results_are_open(w, axes, &s, -1);
}

/* Arguments q, k and v, or their gradients' ones: open along axis 2 where one of them is, and nowhere else. */
static bool share_axis(ttc__wide *w, const uint32_t *args, uint32_t n, ttc__shared *s, bool *open, ttc__filling fill) {
  ttc__open *o;
  uint32_t at;
  const ttc_tensor *t;
  *open = false;
  for (uint32_t k = 0; k < n; k++) {
    if ((t = entry_at(w, args[k], 0, &o, &at)) == NULL || (is_whole(o) && o->axes != 1u << 2) || !agrees(s, o)) {
      return false;
    }
    *open = *open || is_whole(o);
  }
  for (uint32_t k = 0; *open && k < n; k++) {
    (void)entry_at(w, args[k], 0, &o, &at);
    if (is_merged(s) || !ttc__make_open(w, at, 2, s)) {
      return false;
    }
    o->fill = (uint8_t)fill;
  }
  return true;
}

/* A bias [.., T, S], of queries and keys that are open or not. */
static bool bias_fits(ttc__wide *w, uint32_t i, bool q, const ttc__shared *qs, bool k, const ttc__shared *ks) {
  ttc__open *o;
  uint32_t at;
  const ttc_tensor *t = entry_at(w, i, 0, &o, &at);
  if (t == NULL || t->ndim == 0) {
    return true;
  }
  unsigned own = is_whole(o) ? ttc__turned(t, o->axes) : 0;
  if ((own & ~3u) != 0 || ((own & 1) != 0 && !k) || ((own & 2) != 0 && !q)) {
    return false;
  }
  o->fill = TTC__FILL_ZERO;
  return (!k || spreads(w, at, t, 1, ks)) && (!q || spreads(w, at, t, 2, qs));
}

/* _sdpa_forward(q, k, v, bias?, ..) -> output, logsumexp: keys and values of one length; queries of that or another. What the rule
 * leaves out are keys past it. */
static bool widen_attention(ttc__wide *w) {
  static const uint32_t queries[] = {0}, keys[] = {1, 2};
  ttc__shared qs = no_length, ks = no_length;
  bool q, k;
  ttc__open *v;
  if (!share_axis(w, queries, 1, &qs, &q, TTC__FILL_NOT) || !share_axis(w, keys, 2, &ks, &k, TTC__FILL_NOT) ||
      !bias_fits(w, 3, q, &qs, k, &ks)) {
    return false;
  }
  (void)tensor_at(w, 2, &v);
  v->fill = TTC__FILL_ZERO;
  return !q || (results_are_open(w, 2, &qs, 0) && results_are_open(w, 1, &qs, 1));
}

/* _sdpa_backward(grad, q, k, v, bias?, output, logsumexp, ..) -> gradients of q, k, v, bias */
static bool widen_attention_back(ttc__wide *w) {
  static const uint32_t queries[] = {0, 1, 5, 6}, keys[] = {2, 3};
  ttc__shared s = no_length;
  bool q, k;
  if (!share_axis(w, queries, 4, &s, &q, TTC__FILL_ZERO) || !share_axis(w, keys, 2, &s, &k, TTC__FILL_ZERO) ||
      !bias_fits(w, 4, q, &s, k, &s)) {
    return false;
  }
  ttc__open *o;
  const ttc_tensor *bias = tensor_at(w, 4, &o);
  return (!q || results_are_open(w, 2, &s, 0)) && (!k || (results_are_open(w, 2, &s, 1) && results_are_open(w, 2, &s, 2))) &&
         (!is_whole(o) || results_are_open(w, ttc__turned(bias, o->axes), &s, 3));
}

/* tril, triu (x, diagonal): each by its place in the last two axes, so that rows one after another must not be among those. */
static bool widen_triangle(ttc__wide *w) {
  ttc__open *x;
  const ttc_tensor *t = tensor_at(w, 0, &x);
  if (t == NULL || !is_whole(x) || (x->outer > 1 && (ttc__turned(t, x->axes) & 3) != 0)) {
    return false;
  }
  return results_are_like(w, t, x);
}

/* (x, dim, ..) -> results like x, what is past the length being filled where they go along it */
static bool widen_along(ttc__wide *w, ttc__filling fill) {
  ttc__open *x;
  const ttc_tensor *t = tensor_at(w, 0, &x);
  int64_t dim = t != NULL ? axis_at(w, 1, t->ndim) : -1;
  if (dim < 0 || !is_whole(x)) {
    return false;
  }
  x->fill = is_open(x, dim) ? (uint8_t)fill : TTC__FILL_NOT;
  return results_are_like(w, t, x);
}

/* What is past the length is added last, but for rows one after another, which have it between them. */
static bool widen_scan(ttc__wide *w, ttc__filling fill) {
  ttc__open *x;
  return tensor_at(w, 0, &x) != NULL && widen_along(w, x->outer > 1 ? fill : TTC__FILL_NOT);
}

/* Reductions, by name: others of their kinds do more than that with their operand (norms), or give places in the whole of it. */
static const char *const folds[] = {"sum",     "sum.dim_IntList", "any",    "any.dim", "any.dims", "all",
                                    "all.dim", "all.dims",        "amax",   "amin",    "max",      "min",
                                    "max.dim", "min.dim",         "argmax", "argmin",  "mean",     "mean.dim"};

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
  const ttc_tensor *t = tensor_at(w, 0, &x);
  if (t == NULL || !is_whole(x) || !is_fold(name)) {
    return false;
  }
  static const ttc_arg none = {.kind = TTC_ARG_NONE};
  ttc__shared s = length_of(x);
  const ttc_arg *dims = w->call.narg > 1 ? &w->call.args[1] : &none;
  bool place = strncmp(name, "arg", 3) == 0 || strcmp(name, "max.dim") == 0 || strcmp(name, "min.dim") == 0;
  if ((strncmp(name, "arg", 3) == 0 && dims->kind != TTC_ARG_INT) || (place && is_merged(&s))) {
    return false;
  }
  bool keeps = strcmp(name, "any.dims") == 0 || strcmp(name, "all.dims") == 0;
  bool keep = w->call.narg > 2 && w->call.args[2].kind == TTC_ARG_BOOL && w->call.args[2].i != 0;
  unsigned axes = 0;
  for (int k = t->ndim - 1, from_last = 0; k >= 0; k--) {
    bool reduced = is_reduced(dims, keeps, t->ndim, k);
    if (is_open(x, k) && reduced) {
      x->fill = (uint8_t)fill;
    } else if (is_open(x, k)) {
      axes |= 1u << from_last;
    }
    from_last += keep || !reduced ? 1 : 0;
  }
  return results_are_open(w, axes, &s, -1);
}

/* mm, bmm: rows [.., m, p] by columns [.., p, n]; addmm, baddbmm: likewise, with what is added first */
static bool widen_dot(ttc__wide *w, const char *name) {
  bool adds = strcmp(name, "addmm") == 0 || strcmp(name, "baddbmm") == 0;
  ttc__open *x, *y, *z = NULL;
  uint32_t xat, yat, zat = 0;
  const ttc_tensor *a = entry_at(w, adds ? 1 : 0, 0, &x, &xat), *b = entry_at(w, adds ? 2 : 1, 0, &y, &yat);
  const ttc_tensor *bias = adds ? entry_at(w, 0, 0, &z, &zat) : NULL;
  if (!(adds || strcmp(name, "mm") == 0 || strcmp(name, "bmm") == 0) || a == NULL || b == NULL || a->ndim != b->ndim ||
      (adds && bias == NULL)) {
    return false;
  }
  ttc__shared s = no_length;
  if (!agrees(&s, x) || !agrees(&s, y) || !agrees(&s, z) || s.number < 0) {
    return false;
  }
  int last = a->ndim - 1;
  unsigned out = is_whole(z) ? ttc__turned(bias, z->axes) : 0;
  out |= is_open(x, last - 1) ? 2u : 0;
  out |= is_open(y, last) ? 1u : 0;
  out |= last == 2 && (is_open(x, 0) || is_open(y, 0)) ? 4u : 0;
  if (is_open(x, last) || is_open(y, last - 1)) {
    if (!ttc__make_open(w, xat, last, &s) || !ttc__make_open(w, yat, last - 1, &s)) {
      return false;
    }
    x->fill = y->fill = TTC__FILL_ZERO;
  }
  unsigned rows = out & 6u, columns = (out & 4u) | (out & 1u);
  for (int k = 0; k <= last; k++) {
    if ((((rows >> (last - k)) & 1) != 0 && !ttc__make_open(w, xat, k, &s)) ||
        (((columns >> (last - k)) & 1) != 0 && !ttc__make_open(w, yat, k, &s))) {
      return false;
    }
  }
  return (bias == NULL || spreads(w, zat, bias, out, &s)) && results_are_open(w, out, &s, -1);
}

/* Where what x is indexed with stands among the axes of a result, or of what is written at indices. */
typedef struct places {
  unsigned indexed; /* axes of x */
  int given, first, last, ndim;
} places;

static void take_place(places *p, const ttc_tensor *index, int axis) {
  p->first = p->given == 0 ? axis : p->first;
  p->last = axis;
  p->given++;
  p->indexed |= 1u << axis;
  p->ndim = index->ndim > p->ndim ? index->ndim : p->ndim;
}

/* Axes of the result that come after the indices' ones: of indices side by side they take the place of what they index, else they
 * come first. */
static int behind_places(const places *p, int ndim) {
  return p->last - p->first + 1 == p->given ? ndim - 1 - p->last : ndim - p->given;
}

/* An axis of x that is not indexed, counted from the result's last one. */
static int stays_at(const places *p, int ndim, int axis) {
  int behind = 0;
  for (int a = axis + 1; a < ndim; a++) {
    behind += ((p->indexed >> a) & 1) == 0 ? 1 : 0;
  }
  return behind + (behind >= behind_places(p, ndim) ? p->ndim : 0);
}

/* index.Tensor(x, indices): the indices are open along one axis, as they broadcast. An axis of x that is indexed may be open too;
 * its length is then where indices end. So may others, which stay open. */
static bool widen_index(ttc__wide *w) {
  ttc__open *x, *o;
  uint32_t at;
  const ttc_tensor *t = tensor_at(w, 0, &x), *index;
  const ttc_arg *list = &w->call.args[1];
  places p = {0};
  unsigned axes = 0;
  ttc__shared s = no_length;
  if (t == NULL || list->kind != TTC_ARG_TENSORS) {
    return false;
  }
  for (uint32_t k = 0; k < list->n; k++) {
    if ((index = entry_at(w, 1, k, &o, &at)) == NULL) {
      continue;
    }
    if (index->dtype == TTC_BOOL || index->dtype == TTC_U8 || !meets(&s, &axes, index, o)) {
      return false;
    }
    take_place(&p, index, (int)k);
    o->fill = TTC__FILL_ZERO;
  }
  unsigned stay = is_whole(x) ? x->axes & ~p.indexed : 0;
  if (p.given == 0 || (is_whole(x) && (x->outer > 1 || x->inner > 1) && stay == 0) || (stay != 0 && !agrees(&s, x))) {
    return false;
  }
  for (uint32_t k = 0; k < list->n; k++) {
    if ((index = entry_at(w, 1, k, &o, &at)) != NULL && !spreads(w, at, index, axes, &s)) {
      return false;
    }
  }
  axes <<= behind_places(&p, t->ndim);
  for (int a = 0; a < t->ndim; a++) {
    axes |= ((stay >> a) & 1) != 0 ? 1u << stays_at(&p, t->ndim, a) : 0;
  }
  return results_are_open(w, axes, &s, -1);
}

/* index_select(x, dim, index[n]) -> [.., n, ..] */
static bool widen_select(ttc__wide *w, const ttc_tensor *t, const ttc__open *x, int64_t dim, ttc__open *index) {
  bool xo = is_whole(x), io = is_whole(index);
  if (xo == io || t->ndim == 0 || (xo && is_open(x, dim))) {
    return false;
  }
  index->fill = TTC__FILL_ZERO;
  ttc__shared s = length_of(xo ? x : index);
  return results_are_open(w, xo ? ttc__turned(t, x->axes) : 1u << (t->ndim - 1 - dim), &s, -1);
}

/* gather(x, dim, index): x is cut to the index's sizes on the other axes. */
static bool widen_gather(ttc__wide *w, const ttc_tensor *t, const ttc__open *x, int64_t dim, ttc__open *index) {
  bool along = is_open(x, dim); /* places would end at a length */
  if (!is_whole(index) || along || t->ndim == 0) {
    return !along && t->ndim != 0 && !is_whole(x);
  }
  ttc__shared s = length_of(index);
  for (int a = 0; a < t->ndim; a++) {
    if (is_open(index, a) && a != dim && !(is_open(x, a) && agrees(&s, x))) {
      return false;
    }
  }
  index->fill = TTC__FILL_ZERO;
  return results_are_open(w, ttc__turned(t, index->axes), &s, -1);
}

/* Reading at indices: index.Tensor(x, indices), embedding(x, index, ..), index_select, gather(x, dim, index) */
static bool widen_take(ttc__wide *w, const char *name) {
  if (strcmp(name, "index.Tensor") == 0) {
    return widen_index(w);
  }
  bool embedding = strcmp(name, "embedding") == 0;
  ttc__open *x, *o;
  const ttc_tensor *t = tensor_at(w, 0, &x), *index = tensor_at(w, embedding ? 1 : 2, &o);
  if (t == NULL || index == NULL || ttc__nelem(t->ndim, t->sizes) == 0 || ttc__nelem(index->ndim, index->sizes) == 0) {
    return false;
  }
  if (embedding) {
    o->fill = TTC__FILL_ZERO;
    ttc__shared s = length_of(o);
    return !is_whole(x) && is_whole(o) && results_are_open(w, ttc__turned(index, o->axes) << (t->ndim - 1), &s, -1);
  }
  int64_t dim = axis_at(w, 1, t->ndim);
  if (dim >= 0 && strcmp(name, "gather") == 0) {
    return index->ndim == t->ndim && widen_gather(w, t, x, dim, o);
  }
  return dim >= 0 && strcmp(name, "index_select") == 0 && index->ndim == 1 && widen_select(w, t, x, dim, o);
}

/* embedding_dense_backward(grad [.., d], index [..], rows, padding, scale): what is past the length adds 0 to row 0. */
static bool widen_embedding_back(ttc__wide *w) {
  ttc__open *g, *i;
  uint32_t gat, iat;
  const ttc_tensor *grad = entry_at(w, 0, 0, &g, &gat), *index = entry_at(w, 1, 0, &i, &iat);
  ttc__shared s = no_length;
  if (grad == NULL || index == NULL || w->call.narg < 5 || w->call.args[4].i != 0 || !agrees(&s, g) || !agrees(&s, i)) {
    return false;
  }
  unsigned axes = (is_whole(g) ? ttc__turned(grad, g->axes) : 0) | (is_whole(i) ? ttc__turned(index, i->axes) << 1 : 0);
  if ((axes & 1) != 0 || !spreads(w, gat, grad, axes, &s) || !spreads(w, iat, index, axes >> 1, &s)) {
    return false;
  }
  g->fill = i->fill = TTC__FILL_ZERO;
  return true;
}

/* index_put(x, indices, values, adds): x and the values are open along the same axes, which are not indexed. */
static bool widen_index_put(ttc__wide *w) {
  ttc__open *x, *v, *o;
  uint32_t xat, vat, at;
  const ttc_tensor *t = entry_at(w, 0, 0, &x, &xat), *values = entry_at(w, 2, 0, &v, &vat), *index;
  const ttc_arg *list = &w->call.args[1];
  places p = {0};
  for (uint32_t k = 0; list->kind == TTC_ARG_TENSORS && k < list->n; k++) {
    if ((index = entry_at(w, 1, k, &o, &at)) == NULL) {
      continue;
    }
    if (index->dtype == TTC_BOOL || index->dtype == TTC_U8 || is_whole(o)) {
      return false;
    }
    take_place(&p, index, (int)k);
  }
  ttc__shared s = no_length;
  if (t == NULL || values == NULL || p.given == 0 || !agrees(&s, x) || !agrees(&s, v) || s.number < 0) {
    return false;
  }
  unsigned axes = 0, left = is_whole(v) ? ttc__turned(values, v->axes) : 0, given = left;
  for (int a = 0; a < t->ndim; a++) {
    unsigned bit = ((p.indexed >> a) & 1) == 0 ? 1u << stays_at(&p, t->ndim, a) : 0;
    if (is_open(x, a) && bit == 0) {
      return false;
    }
    if (!is_open(x, a) && (given & bit) == 0) {
      continue;
    }
    if (!ttc__make_open(w, xat, a, &s) || !spreads(w, vat, values, bit, &s)) {
      return false;
    }
    left &= ~bit;
    axes |= 1u << (t->ndim - 1 - a);
  }
  return left == 0 && results_are_open(w, axes, &s, -1);
}

/* scatter(x, dim, index, src or value), scatter_add: the rule sees to it that what is past the index's length goes nowhere. */
static bool widen_put(ttc__wide *w, const char *name) {
  if (strcmp(name, "embedding_dense_backward") == 0) {
    return widen_embedding_back(w);
  }
  if (strcmp(name, "index_put") == 0 || strcmp(name, "_unsafe_index_put") == 0) {
    return widen_index_put(w);
  }
  ttc__open *x, *i, *s;
  const ttc_tensor *t = tensor_at(w, 0, &x), *index = tensor_at(w, 2, &i), *src = tensor_at(w, 3, &s);
  bool named = strcmp(name, "scatter.src") == 0 || strcmp(name, "scatter.value") == 0 || strcmp(name, "scatter_add") == 0;
  int64_t dim = t != NULL ? axis_at(w, 1, t->ndim) : -1;
  if (!named || dim < 0 || index == NULL || index->ndim != t->ndim || is_whole(x) || !is_whole(i) || i->axes != 1u << dim ||
      i->outer != 1 || i->inner != 1 || t->sizes[dim] == 0 ||
      (src != NULL && (!is_whole(s) || s->axes != i->axes || s->number != i->number))) {
    return false;
  }
  i->fill = TTC__FILL_ZERO;
  return true;
}

/* native_layer_norm, _fused_rms_norm (x, sizes of the last axes, weights..): of each row by itself, all results having x's axes */
static bool widen_norm(ttc__wide *w) {
  ttc__open *x, *o;
  const ttc_tensor *t = tensor_at(w, 0, &x);
  if (t == NULL || !is_whole(x) || w->call.narg < 2 || w->call.args[1].kind != TTC_ARG_INTS ||
      (ttc__turned(t, x->axes) & ((1u << w->call.args[1].n) - 1)) != 0) {
    return false;
  }
  for (uint32_t i = 2; i < w->call.narg; i++) {
    if (tensor_at(w, i, &o) != NULL && is_whole(o)) {
      return false;
    }
  }
  return results_are_like(w, t, x);
}

/* native_layer_norm_backward(grad, x, sizes, mean, rstd, weight, bias, wanted), _fused_rms_norm_backward likewise -> gradients of
 * x, and of weights, which are sums over the other axes */
static bool widen_norm_back(ttc__wide *w) {
  ttc__open *o;
  uint32_t at;
  const ttc_tensor *x = entry_at(w, 1, 0, &o, &at), *t;
  if (x == NULL || w->call.narg < 3 || w->call.args[2].kind != TTC_ARG_INTS) {
    return false;
  }
  ttc__shared s = no_length;
  unsigned axes = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t i = 0; i < w->call.narg; i++) {
      if ((t = entry_at(w, i, 0, &o, &at)) == NULL) {
        continue;
      }
      if (t->ndim != x->ndim || i > 4) { /* weights */
        if (is_whole(o)) {
          return false;
        }
      } else if (pass == 0) {
        if (!meets(&s, &axes, t, o)) {
          return false;
        }
      } else if (!spreads(w, at, t, axes, &s)) {
        return false;
      } else {
        o->fill = TTC__FILL_ZERO;
      }
    }
  }
  return (axes & ((1u << w->call.args[2].n) - 1)) == 0 && results_are_open(w, axes, &s, 0);
}

/* _softmax_backward_data, _log_softmax_backward_data(grad, output, dim, dtype) */
static bool widen_softmax_back(ttc__wide *w) {
  ttc__open *g, *y;
  const ttc_tensor *t = tensor_at(w, 0, &g);
  int64_t dim = t != NULL ? axis_at(w, 2, t->ndim) : -1;
  if (dim < 0 || !widen_each(w, TTC__FILL_NOT)) {
    return false;
  }
  (void)tensor_at(w, 1, &y);
  g->fill = y->fill = is_open(g, dim) || is_open(y, dim) ? TTC__FILL_ZERO : TTC__FILL_NOT;
  return true;
}

/* nll_loss_forward(x [N, C], target [N], weight, reduction, ignored) and nll_loss_backward(grad, x, target, weight, reduction,
 * ignored, total): targets past the length are ignored. */
static bool widen_nll(ttc__wide *w, const char *name) {
  bool back = strcmp(name, "nll_loss_backward") == 0;
  uint32_t first = back ? 1 : 0, xat, tat, gat;
  ttc__open *x, *y, *g;
  const ttc_tensor *t = entry_at(w, first, 0, &x, &xat), *target = entry_at(w, first + 1, 0, &y, &tat);
  if (!(back || strcmp(name, "nll_loss_forward") == 0) || t == NULL || target == NULL || t->ndim != 2 || target->ndim != 1) {
    return false;
  }
  ttc__shared s = no_length;
  bool none = w->call.args[first + 3].i == 0;
  const ttc_tensor *grad = back ? entry_at(w, 0, 0, &g, &gat) : NULL;
  if (!agrees(&s, x) || !agrees(&s, y) || (is_whole(x) && x->axes != 1) || (grad != NULL && !agrees(&s, g)) || s.number < 0 ||
      !ttc__make_open(w, xat, 0, &s) || !ttc__make_open(w, tat, 0, &s) || (grad != NULL && none && !spreads(w, gat, grad, 1, &s))) {
    return false;
  }
  y->fill = (uint8_t)(TTC__FILL_ARG + first + 4);
  return back ? results_are_open(w, 2, &s, 0) : results_are_open(w, none ? 1 : 0, &s, 0);
}

/* select_backward(grad, sizes, dim, index), slice_backward(grad, sizes, dim, start, end, step): the sizes of the whole. Only along
 * axes that are not open may places count from the end. */
static bool widen_view(ttc__wide *w, const char *name) {
  bool select = strcmp(name, "select_backward") == 0;
  ttc__open *g;
  uint32_t at;
  const ttc_tensor *t = entry_at(w, 0, 0, &g, &at);
  ttc_arg *sizes = &w->args[1];
  if (!(select || strcmp(name, "slice_backward") == 0) || t == NULL || sizes->kind != TTC_ARG_INTS || sizes->n > TTC_MAX_NDIM ||
      w->nnumber == 0 || (int)sizes->n != t->ndim + (select ? 1 : 0)) {
    return false;
  }
  int ndim = (int)sizes->n;
  int64_t dim = axis_at(w, 2, ndim);
  ttc__shared s = is_whole(g) ? length_of(g) : (ttc__shared){0, 1, 1};
  if (dim < 0 || is_merged(&s) || w->bounds[s.number] == 0) {
    return false;
  }
  memcpy(w->ints, sizes->ints, sizes->n * sizeof *w->ints);
  sizes->ints = w->ints;
  unsigned axes = 0;
  for (int a = 0; a < ndim; a++) {
    int own = a - (select && a > dim ? 1 : 0);
    bool open = a != dim && is_open(g, own);
    if (!open && !(a == dim && select && w->ints[a] == w->numbers[s.number].i)) {
      continue;
    }
    if (a == dim && w->call.args[3].i < 0) {
      return false;
    }
    axes |= 1u << (ndim - 1 - a);
    w->ints[a] = w->bounds[s.number];
  }
  return axes != 0 && !is_open(g, select ? -1 : dim) && results_are_open(w, axes, &s, -1);
}

/* constant_pad_nd(x, pads, value): along the open axis behind the end, or cut off there */
static bool widen_pad(ttc__wide *w) {
  ttc__open *x;
  const ttc_tensor *t = tensor_at(w, 0, &x);
  const ttc_arg *pads = &w->call.args[1];
  if (t == NULL || !is_whole(x) || x->outer != 1 || x->inner != 1 || (x->axes & (x->axes - 1)) != 0 || pads->kind != TTC_ARG_INTS) {
    return false;
  }
  ttc__shared s = length_of(x);
  uint32_t k = (uint32_t)(t->ndim - 1 - __builtin_ctz(x->axes));
  int64_t more = 2 * k + 1 < pads->n ? pads->ints[2 * k + 1] : 0;
  if ((2 * k < pads->n && pads->ints[2 * k] != 0) || !results_are_open(w, 1u << k, &s, -1) || w->opened.length + more < 2) {
    return false;
  }
  w->opened.length += more;
  if (w->opened.length > w->opened.bound) {
    w->opened.bound = ttc__batch_bound(w->opened.length);
  }
  return true;
}

bool ttc__widen_op(ttc__wide *w, const ttc_op_row *row) {
  switch (row->pad) {
    case PAD_EACH:
      return (row->flags & (TTC_OP_RNG | TTC_OP_SIZED)) == 0 && widen_each(w, TTC__FILL_NOT);
    case PAD_EACH_ONE:
      return (row->flags & (TTC_OP_RNG | TTC_OP_SIZED)) == 0 && widen_each(w, TTC__FILL_ONE);
    case PAD_AMONG:
      return widen_among(w);
    case PAD_DRAW:
      return widen_each(w, TTC__FILL_NOT);
    case PAD_JOIN:
      return strcmp(row->name, "cat") == 0 && widen_join(w);
    case PAD_ATTENTION:
      return strcmp(row->name, "_sdpa_forward") == 0 && widen_attention(w);
    case PAD_ATTENTION_BACK:
      return strcmp(row->name, "_sdpa_backward") == 0 && widen_attention_back(w);
    case PAD_TAKE:
      return widen_take(w, row->name);
    case PAD_PUT:
      return widen_put(w, row->name);
    case PAD_TRIANGLE:
      return widen_triangle(w);
    case PAD_SOFTMAX:
      return widen_along(w, TTC__FILL_LOWEST);
    case PAD_SOFTMAX_BACK:
      return widen_softmax_back(w);
    case PAD_MEAN:
      return widen_fold(w, row->name, TTC__FILL_ZERO);
    case PAD_NORM:
      return widen_norm(w);
    case PAD_NORM_BACK:
      return widen_norm_back(w);
    case PAD_FOLD_ZERO:
      return widen_fold(w, row->name, TTC__FILL_ZERO);
    case PAD_FOLD_ONE:
      return widen_fold(w, row->name, TTC__FILL_ONE);
    case PAD_FOLD_LOWEST:
      return widen_fold(w, row->name, TTC__FILL_LOWEST);
    case PAD_FOLD_HIGHEST:
      return widen_fold(w, row->name, TTC__FILL_HIGHEST);
    case PAD_SCAN_ZERO:
      return widen_scan(w, TTC__FILL_ZERO);
    case PAD_SCAN_ONE:
      return widen_scan(w, TTC__FILL_ONE);
    case PAD_DOT:
      return widen_dot(w, row->name);
    case PAD_NLL:
      return widen_nll(w, row->name);
    case PAD_VIEW:
      return strcmp(row->name, "constant_pad_nd") == 0 ? widen_pad(w) : widen_view(w, row->name);
    default:
      return false;
  }
}
