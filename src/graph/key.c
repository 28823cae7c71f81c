#include "graph/key.h"

#include <stdlib.h>
#include <string.h>

typedef struct writer {
  uint64_t *at;
  ttc__site *site;
} writer;

static inline void word(writer *w, uint64_t v) {
  *w->at++ = v;
}

static void words_of(writer *w, const int64_t *v, uint32_t n) {
  if (n != 0) {
    memcpy(w->at, v, n * sizeof *v);
    w->at += n;
  }
}

/* Writes the sizes. True: dense, offset 0, and the store holds just this: the common case, told by one bit. */
static bool sizes_of(writer *w, const ttc_tensor *t, const ttc__base *base) {
  bool whole = t->offset == 0 && t->dtype == base->dtype && t->ndim == base->ndim && base->open == 0;
  int64_t stride = 1;
  for (int k = t->ndim - 1; k >= 0; k--) {
    int64_t size = t->sizes[k];
    w->at[k] = (uint64_t)size;
    whole = whole && size == base->dims[k] && t->strides[k] == stride;
    stride = whole ? stride * size : 0;
  }
  w->at += t->ndim;
  return whole;
}

enum { FLAG_WHOLE = 1, FLAG_FIRST = 2, FLAG_VALUE = 4 };

static void tensor(writer *w, const ttc_tensor *t) {
  if (ttc__absent(t)) {
    word(w, UINT64_MAX);
    return;
  }
  if (t->store == NULL) { /* a value of a graph: only shapes matter (ahead-of-time lowering) */
    word(w, (uint64_t)t->dtype | (uint64_t)t->ndim << 8 | (uint64_t)FLAG_VALUE << 16 | (uint64_t)(uint32_t)t->value << 32);
    words_of(w, t->sizes, t->ndim);
    return;
  }
  ttc__site *s = w->site;
  ttc__keyed *k = (ttc__keyed *)(void *)t->store;
  unsigned flags = 0;
  if (k->mark != s->mark) {
    k->mark = s->mark;
    k->slot = s->nstore;
    s->stores[s->nstore++] = t->store;
    flags |= FLAG_FIRST;
  }
  s->slots[s->nslot_ref++] = k->slot;
  uint64_t *head = w->at++;
  const ttc__base *base = &k->base;
  ttc__base physical;
  if (base->open != 0) {
    s->open = true;
    if (s->wide) {
      physical = ttc__base_physical(base);
      base = &physical;
    }
  }
  bool whole = sizes_of(w, t, base);
  flags |= whole ? FLAG_WHOLE : 0;
  *head = (uint64_t)t->dtype | (uint64_t)t->ndim << 8 | (uint64_t)flags << 16 | (uint64_t)k->slot << 32;
  if (whole) {
    return;
  }
  words_of(w, t->strides, t->ndim);
  word(w, (uint64_t)t->offset);
  if ((flags & FLAG_FIRST) != 0) {
    word(w, (uint64_t)base->dtype | (uint64_t)base->ndim << 8 | (uint64_t)base->open << 16);
    words_of(w, base->dims, base->ndim);
    if (base->open != 0) {
      word(w, (uint64_t)base->bound);
    }
  }
}

static void scalar(writer *w, const ttc_scalar *s, bool is_static, bool unit) {
  uint64_t v = (uint64_t)s->kind | (uint64_t)s->dtype << 8 | (uint64_t)s->wrapped << 16;
  if (unit && !is_static && s->kind != TTC_SCALAR_COMPLEX) {
    double x = s->kind == TTC_SCALAR_FLOAT ? s->re : (double)s->i;
    v |= x == 0 ? 1u << 24 : 0;
    v |= x == 1 ? 1u << 25 : 0;
  }
  word(w, v);
  if (is_static) {
    word(w, (uint64_t)s->i);
    memcpy(w->at, &s->re, sizeof s->re);
    memcpy(w->at + 1, &s->im, sizeof s->im);
    w->at += 2;
  }
}

static void argument(writer *w, const ttc_arg *a, bool is_static, bool unit) {
  word(w, (uint64_t)a->kind | (uint64_t)a->n << 8);
  switch ((ttc_arg_kind)a->kind) {
    case TTC_ARG_NONE:
    case TTC_ARG_RNG:
      break;
    case TTC_ARG_TENSOR:
    case TTC_ARG_TENSORS:
      for (uint32_t k = 0; k < a->n; k++) {
        tensor(w, &a->tensor[k]);
      }
      break;
    case TTC_ARG_SCALAR:
    case TTC_ARG_SCALARS:
      for (uint32_t k = 0; k < a->n; k++) {
        scalar(w, &a->scalar[k], is_static, unit);
      }
      break;
    case TTC_ARG_INT:
    case TTC_ARG_BOOL:
    case TTC_ARG_DTYPE:
      word(w, (uint64_t)a->i);
      break;
    case TTC_ARG_INTS:
      words_of(w, a->ints, a->n);
      break;
    case TTC_ARG_STRING: {
      size_t n = (a->n + 7) / 8;
      memset(w->at, 0, n * 8);
      memcpy(w->at, a->str, a->n);
      w->at += n;
      break;
    }
  }
}

/* At most, with what ttc__key_make_wide adds, and more than any other element of a list takes. */
#define WORDS_PER_TENSOR (10 + 3 * (size_t)TTC_MAX_NDIM)

/* Is there surely room? Says no too early, but at once. */
static bool has_room(const ttc__site *s, const ttc_call *call) {
  size_t n = call->ninto;
  for (uint32_t i = 0; i < call->narg; i++) {
    n += call->args[i].n;
  }
  return n <= s->tensor_cap && 8 + 2 * (size_t)call->narg + n * WORDS_PER_TENSOR <= s->word_cap;
}

/* At most this many words and tensors a call takes. */
static void bound(const ttc_call *call, size_t *nword, size_t *ntensor) {
  size_t words = 8, tensors = 0;
  for (uint32_t i = 0; i < call->narg; i++) {
    const ttc_arg *a = &call->args[i];
    words += 2;
    if (a->kind == TTC_ARG_TENSOR || a->kind == TTC_ARG_TENSORS) {
      tensors += a->n;
    } else if (a->kind == TTC_ARG_SCALAR || a->kind == TTC_ARG_SCALARS) {
      words += 4 * (size_t)a->n;
    } else if (a->kind == TTC_ARG_INTS) {
      words += a->n;
    } else if (a->kind == TTC_ARG_STRING) {
      words += (size_t)a->n / 8 + 1;
    }
  }
  tensors += call->ninto;
  *nword = words + tensors * WORDS_PER_TENSOR;
  *ntensor = tensors;
}

static bool grow(ttc__site *s, const ttc_call *call) {
  size_t nword, ntensor;
  bound(call, &nword, &ntensor);
  if (nword > s->word_cap) {
    uint64_t *p = realloc(s->words, 2 * nword * sizeof *p);
    if (p == NULL) {
      return false;
    }
    s->words = p;
    s->word_cap = 2 * nword;
  }
  if (ntensor > s->tensor_cap) {
    ttc_store **stores = realloc(s->stores, 2 * ntensor * sizeof *stores);
    if (stores == NULL) {
      return false;
    }
    s->stores = stores;
    uint32_t *slots = realloc(s->slots, 2 * ntensor * sizeof *slots);
    if (slots == NULL) {
      return false;
    }
    s->slots = slots;
    s->tensor_cap = 2 * ntensor;
  }
  return true;
}

/* Marks are unique in the process, for stores are seen by the sites of several threads. A site takes a block of them at a time. */
static uint64_t marks;
#define MARK_BLOCK ((uint64_t)1 << 20)

uint64_t ttc__key_mark(void) {
  return __atomic_fetch_add(&marks, MARK_BLOCK, __ATOMIC_RELAXED) + 1;
}

static void next_mark(ttc__site *s) {
  if ((s->mark & (MARK_BLOCK - 1)) == 0) {
    s->mark = __atomic_fetch_add(&marks, MARK_BLOCK, __ATOMIC_RELAXED);
  }
  s->mark++;
}

bool ttc__key_make(ttc__site *site, const ttc_call *call, uint64_t salt) {
  if (!has_room(site, call) && !grow(site, call)) {
    return false;
  }
  const ttc_op_row *row = ttc__op_row(call->op);
  uint64_t statics = row != NULL ? row->static_args : 0, units = row != NULL ? row->unit_args : 0;
  writer w = {site->words, site};
  next_mark(site);
  site->nstore = site->nslot_ref = 0;
  site->open = false;
  word(&w, (uint64_t)call->op | (uint64_t)call->narg << 32);
  word(&w, salt | (uint64_t)call->default_float << 24 | (uint64_t)call->ninto << 32);
  for (uint32_t i = 0; i < call->narg; i++) {
    bool bit = i < 64;
    argument(&w, &call->args[i], bit && ((statics >> i) & 1) != 0, bit && ((units >> i) & 1) != 0);
  }
  for (uint32_t k = 0; k < call->ninto; k++) {
    if (call->into[k] == NULL) {
      word(&w, UINT64_MAX - 1);
    } else {
      tensor(&w, call->into[k]);
    }
  }
  site->nword = (size_t)(w.at - site->words);
  return true;
}
