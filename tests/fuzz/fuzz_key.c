/* Keys of calls: equal exactly for calls that one program serves. Two calls are made, the second often a small change of the first,
 * and compared by a plain reading of the rule: same op, kinds, static values, dtypes, shapes, views, bases, and the same places
 * share a store. */
#include <stdbool.h>
#include <string.h>

#include "fuzz.h"
#include "graph/key.h"

typedef struct input {
  const uint8_t *data;
  size_t n;
} input;

static unsigned take(input *in) {
  if (in->n == 0) {
    return 0;
  }
  in->n--;
  return *in->data++;
}

enum { MAX_ARG = 4, MAX_LIST = 3, NSTORE = 4, MAX_DIM = 3, MAX_TEXT = 20 };

typedef struct described { /* a call and everything it points to */
  ttc_call call;
  uint64_t salt;
  ttc_arg args[MAX_ARG];
  ttc_tensor tensors[MAX_ARG + 2][MAX_LIST];
  int64_t sizes[MAX_ARG + 2][MAX_LIST][MAX_DIM], strides[MAX_ARG + 2][MAX_LIST][MAX_DIM];
  ttc_scalar scalars[MAX_ARG][MAX_LIST];
  int64_t ints[MAX_ARG][MAX_LIST];
  char text[MAX_ARG][MAX_TEXT];
  const ttc_tensor *into[2];
  ttc__keyed stores[NSTORE];
} described;

/* A number of a few values, some of which are hard to tell apart. */
static double number(unsigned k) {
  static const double some[] = {0, -0.0, 1, -1, 0.5, 1e300, 2};
  return some[k % 7];
}

static void make_store(input *in, ttc__keyed *s) {
  memset(s, 0, sizeof *s);
  s->base.dtype = take(in) % 2 != 0 ? TTC_F32 : TTC_S32;
  s->base.ndim = (uint8_t)(take(in) % (MAX_DIM + 1));
  for (int k = 0; k < s->base.ndim; k++) {
    s->base.dims[k] = take(in) % 4;
  }
}

/* The view number [i][k]: of some store, whole or not; absent; or a graph's value. */
static void make_tensor(input *in, described *d, int i, int k) {
  unsigned how = take(in), which = take(in) % NSTORE;
  ttc_tensor *t = &d->tensors[i][k];
  ttc__keyed *s = &d->stores[which];
  *t = (ttc_tensor){.sizes = d->sizes[i][k], .strides = d->strides[i][k], .value = -1};
  if (how % 8 == 0) {
    return;
  }
  t->dtype = s->base.dtype;
  t->ndim = s->base.ndim;
  int64_t stride = 1;
  for (int a = t->ndim - 1; a >= 0; a--) {
    d->sizes[i][k][a] = s->base.dims[a];
    d->strides[i][k][a] = stride;
    stride *= s->base.dims[a];
  }
  if (how % 8 == 1) {
    t->value = (int32_t)which;
    return;
  }
  t->store = (ttc_store *)(void *)s;
  if (how % 8 < 4) { /* a part of it */
    t->offset = take(in) % 3;
    t->dtype = take(in) % 4 == 0 ? TTC_F16 : t->dtype;
    t->ndim = (uint8_t)(take(in) % (MAX_DIM + 1));
    for (int a = 0; a < t->ndim; a++) {
      d->sizes[i][k][a] = take(in) % 3;
      d->strides[i][k][a] = take(in) % 4;
    }
  }
}

static void make_scalar(input *in, ttc_scalar *s) {
  unsigned how = take(in);
  *s = (ttc_scalar){.kind = (uint8_t)(how % 4), .dtype = how % 8 > 5 ? TTC_F64 : 0, .wrapped = how / 8 % 2};
  s->i = (int64_t)take(in) % 3 - 1;
  s->re = number(take(in));
  s->im = number(take(in));
}

static void make_arg(input *in, described *d, int i) {
  static const ttc_arg_kind kinds[] = {TTC_ARG_NONE, TTC_ARG_TENSOR, TTC_ARG_TENSORS, TTC_ARG_SCALAR, TTC_ARG_SCALARS,
                                       TTC_ARG_INT,  TTC_ARG_BOOL,   TTC_ARG_INTS,    TTC_ARG_DTYPE,  TTC_ARG_STRING,
                                       TTC_ARG_RNG,  TTC_ARG_TENSOR, TTC_ARG_TENSOR,  TTC_ARG_SCALAR};
  static const uint64_t words[2];
  ttc_arg *a = &d->args[i];
  memset(a, 0, sizeof *a);
  a->kind = (uint8_t)kinds[take(in) % (sizeof kinds / sizeof *kinds)];
  bool list = a->kind == TTC_ARG_TENSORS || a->kind == TTC_ARG_SCALARS || a->kind == TTC_ARG_INTS;
  a->n = list ? take(in) % (MAX_LIST + 1) : 1;
  for (uint32_t k = 0; k < a->n; k++) {
    if (a->kind == TTC_ARG_TENSOR || a->kind == TTC_ARG_TENSORS) {
      make_tensor(in, d, i, (int)k);
    } else if (a->kind == TTC_ARG_SCALAR || a->kind == TTC_ARG_SCALARS) {
      make_scalar(in, &d->scalars[i][k]);
    } else if (a->kind == TTC_ARG_INTS) {
      d->ints[i][k] = (int64_t)take(in) % 4 - 1;
    }
  }
  a->tensor = d->tensors[i];
  if (a->kind == TTC_ARG_SCALAR || a->kind == TTC_ARG_SCALARS) {
    a->scalar = d->scalars[i];
  } else if (a->kind == TTC_ARG_INTS) {
    a->ints = d->ints[i];
  } else if (a->kind == TTC_ARG_STRING) {
    a->n = take(in) % MAX_TEXT;
    memset(d->text[i], 'a', MAX_TEXT);
    d->text[i][take(in) % MAX_TEXT] = (char)(take(in) % 2);
    a->str = d->text[i];
  } else if (a->kind == TTC_ARG_RNG) {
    a->n = 2;
    a->rng = words;
  } else if (a->kind != TTC_ARG_TENSOR && a->kind != TTC_ARG_TENSORS) {
    a->n = 0;
    a->i = (int64_t)take(in) % 3 - 1;
  }
}

static void make(input *in, described *d) {
  memset(d, 0, sizeof *d);
  for (int k = 0; k < NSTORE; k++) {
    make_store(in, &d->stores[k]);
  }
  d->call = (ttc_call){.op = take(in) % ttc_op_count(), .narg = take(in) % (MAX_ARG + 1), .args = d->args, .into = d->into};
  d->call.default_float = take(in) % 3 == 0 ? TTC_F64 : TTC_F32;
  d->call.ninto = take(in) % 3;
  d->salt = take(in) % 3 | (uint64_t)(take(in) % 3) << 8;
  for (uint32_t i = 0; i < d->call.narg; i++) {
    make_arg(in, d, (int)i);
  }
  for (uint32_t k = 0; k < d->call.ninto; k++) {
    if (take(in) % 3 != 0) {
      make_tensor(in, d, MAX_ARG + (int)k, 0);
      d->into[k] = ttc__absent(&d->tensors[MAX_ARG + k][0]) ? NULL : &d->tensors[MAX_ARG + k][0];
    }
  }
}

/* ---- the rule, read plainly */

typedef struct pairing { /* stores met so far, in both calls */
  const ttc_store *a[NSTORE], *b[NSTORE];
  int n;
} pairing;

static bool same_base(const ttc__base *a, const ttc__base *b) {
  return a->dtype == b->dtype && a->ndim == b->ndim && memcmp(a->dims, b->dims, a->ndim * sizeof *a->dims) == 0;
}

/* Do the places in the two calls share a store with the same places before? */
static bool pair(pairing *p, const ttc_store *a, const ttc_store *b) {
  for (int k = 0; k < p->n; k++) {
    if (p->a[k] == a || p->b[k] == b) {
      return p->a[k] == a && p->b[k] == b;
    }
  }
  p->a[p->n] = a;
  p->b[p->n++] = b;
  return same_base(&((const ttc__keyed *)(const void *)a)->base, &((const ttc__keyed *)(const void *)b)->base);
}

static bool same_tensor(pairing *p, const ttc_tensor *a, const ttc_tensor *b) {
  if (ttc__absent(a) || ttc__absent(b)) {
    return ttc__absent(a) && ttc__absent(b);
  }
  if (a->dtype != b->dtype || a->ndim != b->ndim || memcmp(a->sizes, b->sizes, a->ndim * sizeof *a->sizes) != 0 ||
      (a->store == NULL) != (b->store == NULL)) {
    return false;
  }
  if (a->store == NULL) {
    return a->value == b->value;
  }
  return pair(p, a->store, b->store) && a->offset == b->offset && memcmp(a->strides, b->strides, a->ndim * sizeof *a->strides) == 0;
}

static bool same_scalar(const ttc_scalar *a, const ttc_scalar *b, bool is_static, bool unit) {
  if (a->kind != b->kind || a->dtype != b->dtype || a->wrapped != b->wrapped) {
    return false;
  }
  if (is_static) {
    return a->i == b->i && memcmp(&a->re, &b->re, 8) == 0 && memcmp(&a->im, &b->im, 8) == 0;
  }
  double x = a->kind == TTC_SCALAR_FLOAT ? a->re : (double)a->i, y = b->kind == TTC_SCALAR_FLOAT ? b->re : (double)b->i;
  return !unit || a->kind == TTC_SCALAR_COMPLEX || ((x == 0) == (y == 0) && (x == 1) == (y == 1));
}

static bool same_arg(pairing *p, const ttc_arg *a, const ttc_arg *b, bool is_static, bool unit) {
  if (a->kind != b->kind || a->n != b->n) {
    return false;
  }
  bool same = true;
  switch ((ttc_arg_kind)a->kind) {
    case TTC_ARG_TENSOR:
    case TTC_ARG_TENSORS:
      for (uint32_t k = 0; k < a->n; k++) {
        same = same && same_tensor(p, &a->tensor[k], &b->tensor[k]);
      }
      return same;
    case TTC_ARG_SCALAR:
    case TTC_ARG_SCALARS:
      for (uint32_t k = 0; k < a->n; k++) {
        same = same && same_scalar(&a->scalar[k], &b->scalar[k], is_static, unit);
      }
      return same;
    case TTC_ARG_INTS:
      return memcmp(a->ints, b->ints, a->n * sizeof *a->ints) == 0;
    case TTC_ARG_STRING:
      return memcmp(a->str, b->str, a->n) == 0;
    case TTC_ARG_INT:
    case TTC_ARG_BOOL:
    case TTC_ARG_DTYPE:
      return a->i == b->i;
    case TTC_ARG_NONE:
    case TTC_ARG_RNG:
      break;
  }
  return true;
}

static bool same_call(const described *a, const described *b) {
  pairing p = {.n = 0};
  if (a->call.op != b->call.op || a->call.narg != b->call.narg || a->call.default_float != b->call.default_float ||
      a->call.ninto != b->call.ninto || a->salt != b->salt) {
    return false;
  }
  const ttc_op_row *row = ttc__op_row(a->call.op);
  for (uint32_t i = 0; i < a->call.narg; i++) {
    if (!same_arg(&p, &a->args[i], &b->args[i], (row->static_args >> i & 1) != 0, (row->unit_args >> i & 1) != 0)) {
      return false;
    }
  }
  for (uint32_t k = 0; k < a->call.ninto; k++) {
    if ((a->into[k] == NULL) != (b->into[k] == NULL) || (a->into[k] != NULL && !same_tensor(&p, a->into[k], b->into[k]))) {
      return false;
    }
  }
  return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  static described a, b;
  static ttc__site sites[2];
  static uint8_t changed[512];
  /* The second call: the first one's bytes but for one, or none. */
  size_t where = n >= 2 ? data[0] | (size_t)(data[1] & 1) << 8 : 0, rest = n >= 3 ? n - 3 : 0;
  rest = rest < sizeof changed ? rest : sizeof changed;
  memcpy(changed, data + (n - rest), rest);
  if (where < rest) {
    changed[where] ^= data[2];
  }
  make(&(input){.data = data + (n - rest), .n = rest}, &a);
  make(&(input){.data = changed, .n = rest}, &b);
  MUST(ttc__key_make(&sites[0], &a.call, a.salt));
  MUST(ttc__key_make(&sites[1], &b.call, b.salt));
  MUST(sites[0].nword <= sites[0].word_cap && sites[0].nslot_ref <= sites[0].tensor_cap);
  bool same = sites[0].nword == sites[1].nword && memcmp(sites[0].words, sites[1].words, sites[0].nword * sizeof(uint64_t)) == 0;
  MUST(same == same_call(&a, &b));
  return 0;
}
