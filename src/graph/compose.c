#include "graph/compose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/str.h"

#define MAX_TEXT ((size_t)64 << 20)
#define BARRIER_NELEM 1024 /* smaller values are cheaper computed twice than kept */
#define CHEAP 2u           /* operations that may be made again in each part that reads their result */
#define CHEAP_WITHIN 16u   /* the same in one part that uses it several times */

typedef struct span {
  const char *at;
  size_t n;
} span;

/* What the text of a part says of itself: the types of its parameters and results, and its body. */
typedef struct function {
  uint32_t nparam, nresult;
  span *params, *results; /* of one array */
  uint32_t *fans;         /* [nparam] times that a parameter goes into results, were nothing kept on the way; capped */
  uint32_t nline;         /* operations, about */
  span body;              /* from after the signature to the module's end */
} function;

/* One number's place in the array of its type. */
typedef struct pack {
  span type; /* of the elements, "f32" */
  uint32_t count, nbyte;
  uint8_t dtype;
} pack;
enum { MAX_PACKS = 32 };

typedef struct slot {
  int32_t version;   /* of `versions`; -1: not met yet */
  int32_t first;     /* the one that a part made first; -1: none */
  int32_t param;     /* of @main; -1: none */
  bool gives;        /* what is written to it may take its memory */
  int32_t lends;     /* 1 + the slot whose contents take the memory of this one, which is not written; 0: none */
  bool borrows;      /* some slot lends to this one */
  uint64_t *readers; /* set of parts that read what it held at first */
  span type;
} slot;

/* A value that a slot holds for a while. */
typedef struct version {
  uint32_t part, result; /* part UINT32_MAX: a parameter, `result` its number */
  uint32_t slot;
  uint32_t nreader, fan; /* fan: summed over its readers, see function */
  uint32_t cost;         /* operations to compute it from what is kept */
  bool barred;           /* it went through a barrier */
} version;

typedef struct composer {
  const ttc__composition *in;
  function *functions;              /* [nfunction] */
  uint32_t nfunction, *function_of; /* [npart] */
  ttc__map *known;
  slot *slots;
  version *versions;
  uint32_t nversion;
  uint64_t *before; /* [npart] sets of parts whose results a part needs */
  size_t nset;      /* words of a set of parts */
  pack packs[MAX_PACKS];
  uint32_t npack, *pack_of, *at; /* [nnumber] */
  uint32_t nnumber;
  bool faults;
  ttc__str body;
} composer;

/* ---------------------------------------------------------------------------------------------------------- reading */

static const char *type_end(const char *p) {
  int depth = 0;
  for (; *p != '\0'; p++) {
    depth += *p == '<';
    depth -= *p == '>';
    if (depth == 0 && (*p == ',' || *p == ')' || *p == ' ')) {
      break;
    }
  }
  return p;
}

/* "(%arg0: T {..}, %arg1: T) -> (T, T) {\n": from after the first parenthesis. Returns what follows, or NULL. */
static const char *read_signature(const char *p, function *f, bool count) {
  f->nparam = f->nresult = 0;
  while (*p == '%') {
    const char *type = strstr(p, ": ");
    if (type == NULL) {
      return NULL;
    }
    type += 2;
    const char *end = type_end(type);
    if (!count) {
      f->params[f->nparam] = (span){type, (size_t)(end - type)};
    }
    f->nparam++;
    p = end;
    if (strncmp(p, " {", 2) == 0) {
      p = strchr(p, '}');
      if (p == NULL) {
        return NULL;
      }
      p++;
    }
    p += strncmp(p, ", ", 2) == 0 ? 2 : 0;
  }
  if (strncmp(p, ") -> (", 6) != 0) {
    return NULL;
  }
  for (p += 6; *p != ')' && *p != '\0';) {
    const char *end = type_end(p);
    if (!count) {
      f->results[f->nresult] = (span){p, (size_t)(end - p)};
    }
    f->nresult++;
    p = end;
    p += strncmp(p, ", ", 2) == 0 ? 2 : 0;
  }
  return strncmp(p, ") {\n", 4) == 0 ? p + 4 : NULL;
}

/* ------------------------------------------------------------------------------------------- how often a value is used */

#define MOST 1000000u /* where counts stop */

static uint32_t add_capped(uint32_t a, uint64_t b) {
  return b > MOST || a + b > MOST ? MOST : a + (uint32_t)b;
}

/* Operations whose results are kept in any case, as are what goes into them. */
static bool keeps(const char *line, size_t n) {
  static const char *const words[] = {"dot_general", "convolution",   "stablehlo.reduce", "sort",     "scatter",
                                      "while",       "custom_call",   "optimization_b",   "cholesky", "triangular",
                                      "fft",         "concatenate\"", "dynamic_update",   "func.call"};
  for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
    if (memmem(line, n, words[k], strlen(words[k])) != NULL) {
      return true;
    }
  }
  return false;
}

/* The counter of the value that the text after a '%' names; NULL: none that is looked at. */
static uint32_t *counter(function *f, uint32_t *values, uint32_t nvalue, const char *name) {
  bool param = strncmp(name, "arg", 3) == 0;
  char *end;
  unsigned long k = strtoul(name + (param ? 3 : 0), &end, 10);
  if (end == name + (param ? 3 : 0) || k >= (param ? f->nparam : nvalue)) {
    return NULL;
  }
  return param ? &f->fans[k] : &values[k];
}

/* From the last line to the first: a value is used as often as what is made of it. */
static bool count_uses(function *f) {
  const char *first = f->body.at, *end = first + f->body.n;
  uint32_t nvalue = 0;
  for (const char *p = first; (p = memmem(p, (size_t)(end - p), "\n    ", 5)) != NULL; p++) {
    nvalue++;
  }
  f->nline = nvalue;
  nvalue = 2 * nvalue + 64; /* names of blocks' arguments are numbers too */
  uint32_t *values = calloc(nvalue, sizeof *values);
  f->fans = calloc(f->nparam + 1, sizeof *f->fans);
  for (const char *stop = end; values != NULL && f->fans != NULL && stop > first;) {
    const char *line = stop - 1;
    while (line > first && line[-1] != '\n') {
      line--;
    }
    const char *is = memmem(line, (size_t)(stop - line), " = ", 3),
               *name = is != NULL ? memchr(line, '%', (size_t)(is - line)) : NULL;
    uint32_t *made = name != NULL ? counter(f, values, nvalue, name + 1) : NULL;
    uint32_t times = made == NULL || keeps(line, (size_t)(stop - line)) ? 1 : *made;
    for (const char *p = is != NULL ? is : line; (p = memchr(p, '%', (size_t)(stop - p))) != NULL; p++) {
      uint32_t *used = counter(f, values, nvalue, p + 1);
      if (used != NULL) {
        *used = add_capped(*used, times);
      }
    }
    stop = line;
  }
  bool ok = values != NULL && f->fans != NULL;
  free(values);
  return ok;
}

static bool read_function(const ttc__lowered *low, function *f) {
  static const char head[] = "func.func public @main(";
  const char *p = strstr(low->text, head);
  if (p == NULL) {
    return false;
  }
  p += sizeof head - 1;
  if (read_signature(p, f, true) == NULL || f->nparam != low->nparam || f->nresult != low->nproduct) {
    return false;
  }
  f->params = calloc(f->nparam + f->nresult + 1, sizeof *f->params);
  if (f->params == NULL) {
    return false;
  }
  f->results = f->params + f->nparam;
  f->body.at = read_signature(p, f, false);
  f->body.n = low->text_nbyte - (size_t)(f->body.at - low->text);
  return f->body.n > 2 && strcmp(f->body.at + f->body.n - 2, "}\n") == 0 && count_uses(f);
}

static bool find_functions(composer *c) {
  for (uint32_t i = 0; i < c->in->npart; i++) {
    const ttc__lowered *low = c->in->parts[i].low;
    uint64_t hash = ttc__hash64(&low, sizeof low);
    uintptr_t known = (uintptr_t)ttc__map_get(c->known, &low, sizeof low, hash);
    if (known == 0) {
      if (!read_function(low, &c->functions[c->nfunction])) {
        c->nfunction++;
        return false;
      }
      known = ++c->nfunction;
      if (!ttc__map_put(c->known, &low, sizeof low, hash, (void *)known)) {  // NOLINT: a number, kept as a pointer
        return false;
      }
    }
    c->function_of[i] = (uint32_t)known - 1;
  }
  return true;
}

static const function *function_of(const composer *c, uint32_t part) {
  return &c->functions[c->function_of[part]];
}

/* ---------------------------------------------------------------------------------------- what reads and writes what */

static bool same(span a, span b) {
  return a.n == b.n && memcmp(a.at, b.at, a.n) == 0;
}

static uint32_t add_version(composer *c, uint32_t of, uint32_t part, uint32_t result) {
  c->versions[c->nversion] = (version){.part = part, .result = result, .slot = of};
  return c->nversion++;
}

static uint64_t *parts_before(const composer *c, uint32_t part) {
  return c->before + part * c->nset;
}

static void put_in(uint64_t *set, uint32_t part) {
  set[part / 64] |= (uint64_t)1 << part % 64;
}

/* XLA copies a parameter whose memory is given to a result unless all who read it come before that result is made; then a result
 * of its own is cheaper. Part `writer` is the first to write to q. */
static bool read_before(const composer *c, const slot *q, uint32_t writer) {
  const uint64_t *before = parts_before(c, writer);
  for (size_t k = 0; q->readers != NULL && k < c->nset; k++) {
    uint64_t itself = writer / 64 == k ? (uint64_t)1 << writer % 64 : 0;
    if ((q->readers[k] & ~(before[k] | itself)) != 0) {
      return false;
    }
  }
  return true;
}

static bool read_slot(composer *c, uint32_t part, uint32_t s, span type, uint32_t fan) {
  slot *q = &c->slots[s];
  if (q->version < 0) {
    q->version = (int32_t)add_version(c, s, UINT32_MAX, s);
    q->param = 0; /* numbered later */
    q->type = type;
  }
  version *v = &c->versions[q->version];
  uint64_t *before = parts_before(c, part);
  if (v->part == UINT32_MAX) {
    q->readers = q->readers != NULL ? q->readers : calloc(c->nset, sizeof *q->readers);
    if (q->readers == NULL) {
      return false;
    }
    put_in(q->readers, part);
  } else {
    for (size_t k = 0; k < c->nset; k++) {
      before[k] |= parts_before(c, v->part)[k];
    }
    put_in(before, v->part);
  }
  v->nreader++;
  v->fan = add_capped(v->fan, fan);
  return same(q->type, type);
}

/* Numbers of one type lie side by side. */
static bool add_number(composer *c, span type, uint8_t dtype) {
  static const char head[] = "tensor<";
  if (type.n <= sizeof head || memcmp(type.at, head, sizeof head - 1) != 0) {
    return false;
  }
  span element = {type.at + sizeof head - 1, type.n - sizeof head};
  uint32_t k = 0;
  while (k < c->npack && c->packs[k].dtype != dtype) {
    k++;
  }
  if (k == MAX_PACKS) {
    return false;
  }
  if (k == c->npack) {
    c->packs[c->npack++] = (pack){.type = element, .dtype = dtype, .nbyte = (uint32_t)ttc_dtype_nbyte((ttc_dtype)dtype)};
  }
  c->pack_of[c->nnumber] = k;
  c->at[c->nnumber++] = c->packs[k].count++;
  return true;
}

static bool visit_part(composer *c, uint32_t i) {
  const ttc__part *part = &c->in->parts[i];
  const ttc__lowered *low = part->low;
  const function *f = function_of(c, i);
  for (uint32_t k = 0; k < low->nparam; k++) {
    const ttc__param *q = &low->params[k];
    bool fits = true;
    switch ((ttc__param_kind)q->kind) {
      case TTC__PARAM_STORE:
        fits = read_slot(c, i, part->stores[q->i], f->params[k], f->fans[k]);
        break;
      case TTC__PARAM_NUMBER:
        fits = add_number(c, f->params[k], q->dtype);
        break;
      case TTC__PARAM_RNG:
        fits = add_number(c, f->params[k], TTC_U64);
        break;
      case TTC__PARAM_FAULT:
        c->faults = true;
        break;
      case TTC__PARAM_PACK:
        fits = false;
        break;
    }
    if (!fits) {
      return false;
    }
  }
  for (uint32_t k = 0; k < low->nproduct; k++) {
    const ttc__product *q = &low->products[k];
    if (q->out == TTC__PRODUCT_FAULT) {
      continue;
    }
    uint32_t s = part->stores[q->out >= 0 ? part->nin + (uint32_t)q->out : q->slot];
    if (s == UINT32_MAX) { /* nobody took it */
      continue;
    }
    slot *at = &c->slots[s];
    if (at->version >= 0 && !same(at->type, f->results[k])) {
      return false;
    }
    if (at->version >= 0 && c->versions[at->version].part == UINT32_MAX) {
      at->gives = read_before(c, at, i);
    }
    at->type = f->results[k];
    at->version = (int32_t)add_version(c, s, i, k);
    at->first = at->first < 0 ? at->version : at->first;
  }
  return true;
}

static bool is_result(const composer *c, uint32_t s) {
  const ttc__fused_slot *q = &c->in->slots[s];
  int32_t v = c->slots[s].version;
  return v >= 0 && c->versions[v].part != UINT32_MAX && (q->outside || q->alive);
}

/* What a fresh result's part reads, whose reader it is the last of, and dies with it: a cache that is put together anew, one place
 * longer, is written where it was. */
static void lend(composer *c, uint32_t s) {
  slot *from = &c->slots[s];
  for (uint32_t k = 0; k < c->nversion && from->lends == 0; k++) {
    const version *v = &c->versions[k];
    if (v->part != UINT32_MAX && c->slots[v->slot].first == (int32_t)k) {
      slot *to = &c->slots[v->slot];
      bool reads = (from->readers[v->part / 64] >> v->part % 64 & 1) != 0;
      if (reads && !to->borrows && !c->in->slots[v->slot].outside && is_result(c, v->slot) && same(to->type, from->type) &&
          read_before(c, from, v->part)) {
        from->lends = (int32_t)v->slot + 1;
        to->borrows = true;
      }
    }
  }
}

static void find_lenders(composer *c) {
  for (uint32_t s = 0; s < c->in->nslot; s++) {
    const slot *q = &c->slots[s];
    if (c->in->slots[s].outside && c->in->slots[s].dies && q->readers != NULL && c->versions[q->version].part == UINT32_MAX) {
      lend(c, s);
    }
  }
}

/* ---------------------------------------------------------------------------------------------------------- writing */

static void put(ttc__str *s, span t) {
  ttc__str_addn(s, t.at, t.n);
}

static void put_types(ttc__str *s, uint32_t n, const span *types) {
  for (uint32_t k = 0; k < n; k++) {
    ttc__str_add(s, k > 0 ? ", " : "");
    put(s, types[k]);
  }
}

static void put_value(composer *c, uint32_t v) {
  const version *q = &c->versions[v];
  if (q->part == UINT32_MAX) {
    ttc__str_addf(&c->body, "%%arg%d", (int)c->slots[q->result].param);
  } else if (q->barred) {
    ttc__str_addf(&c->body, "%%b%u_%u", q->part, q->result);
  } else if (function_of(c, q->part)->nresult > 1) {
    ttc__str_addf(&c->body, "%%v%u#%u", q->part, q->result);
  } else {
    ttc__str_addf(&c->body, "%%v%u", q->part);
  }
}

/* Number `number` of the parts, out of its array. */
static void put_number(composer *c, uint32_t number, span type) {
  const pack *p = &c->packs[c->pack_of[number]];
  uint32_t at = c->at[number];
  ttc__str_addf(&c->body,
                "    %%s%u = \"stablehlo.slice\"(%%pack%u) <{start_indices = array<i64: %u>, limit_indices = array<i64: %u>, ",
                number, c->pack_of[number], at, at + 1);
  ttc__str_addf(&c->body, "strides = array<i64: 1>}> : (tensor<%ux%.*s>) -> tensor<1x%.*s>\n", p->count, (int)p->type.n, p->type.at,
                (int)p->type.n, p->type.at);
  ttc__str_addf(&c->body, "    %%n%u = \"stablehlo.reshape\"(%%s%u) : (tensor<1x%.*s>) -> ", number, number, (int)p->type.n,
                p->type.at);
  put(&c->body, type);
  ttc__str_add(&c->body, "\n");
}

static void put_argument(composer *c, const ttc__part *part, uint32_t k, uint32_t *number, const char *fault) {
  const ttc__param *q = &part->low->params[k];
  if (q->kind == TTC__PARAM_STORE) {
    put_value(c, (uint32_t)c->slots[part->stores[q->i]].version);
  } else if (q->kind == TTC__PARAM_FAULT) {
    ttc__str_add(&c->body, fault);
  } else {
    ttc__str_addf(&c->body, "%%n%u", (*number)++);
  }
}

static void put_barrier(composer *c, uint32_t v, span type) {
  c->versions[v].barred = false;
  ttc__str_addf(&c->body, "    %%b%u_%u = \"stablehlo.optimization_barrier\"(", c->versions[v].part, c->versions[v].result);
  put_value(c, v);
  ttc__str_add(&c->body, ") : (");
  put(&c->body, type);
  ttc__str_add(&c->body, ") -> ");
  put(&c->body, type);
  ttc__str_add(&c->body, "\n");
  c->versions[v].barred = true;
}

/* XLA:CPU computes a value again in each of its readers rather than keep it, chains of them without bound: what is read several
 * times and is more than a few operations is computed once, as it is when the parts run alone. */
static bool wants_barrier(const composer *c, uint32_t v, uint32_t s) {
  const ttc__base *base = c->in->slots[s].base;
  const version *q = &c->versions[v];
  bool often = (q->nreader > 1 && q->cost > CHEAP) || (q->fan > 1 && q->cost > CHEAP_WITHIN);
  return !c->in->for_tpu && often && ttc__nelem(base->ndim, base->dims) >= BARRIER_NELEM;
}

/* Operations to compute a result of part i from what is kept, if its results (those of a list) are alike. */
static uint32_t cost_of(const composer *c, uint32_t i) {
  const ttc__part *part = &c->in->parts[i];
  const function *f = function_of(c, i);
  uint32_t cost = f->nline;
  for (uint32_t k = 0; k < f->nparam; k++) {
    const ttc__param *q = &part->low->params[k];
    const version *v = q->kind == TTC__PARAM_STORE ? &c->versions[c->slots[part->stores[q->i]].version] : NULL;
    cost = v != NULL && !v->barred ? add_capped(cost, (uint64_t)f->fans[k] * v->cost) : cost;
  }
  return f->nresult > 1 ? cost / f->nresult : cost;
}

/* *number, *v: numbers and versions used up by the parts before. */
static void put_part(composer *c, uint32_t i, uint32_t *number, uint32_t *v, char fault[32]) {
  const ttc__part *part = &c->in->parts[i];
  const function *f = function_of(c, i);
  uint32_t used = *number, cost = cost_of(c, i);
  for (uint32_t k = 0; k < f->nparam; k++) {
    if (part->low->params[k].kind == TTC__PARAM_NUMBER || part->low->params[k].kind == TTC__PARAM_RNG) {
      put_number(c, used++, f->params[k]);
    }
  }
  if (f->nresult != 0) {
    ttc__str_addf(&c->body, f->nresult > 1 ? "    %%v%u:%u = " : "    %%v%u = ", i, f->nresult);
  } else {
    ttc__str_add(&c->body, "    ");
  }
  ttc__str_addf(&c->body, "func.call @part%u(", c->function_of[i]);
  for (uint32_t k = 0; k < f->nparam; k++) {
    ttc__str_add(&c->body, k > 0 ? ", " : "");
    put_argument(c, part, k, number, fault);
  }
  ttc__str_add(&c->body, ") : (");
  put_types(&c->body, f->nparam, f->params);
  ttc__str_add(&c->body, ") -> (");
  put_types(&c->body, f->nresult, f->results);
  ttc__str_add(&c->body, ")\n");
  for (uint32_t k = 0; k < f->nresult; k++) {
    const ttc__product *q = &part->low->products[k];
    if (q->out == TTC__PRODUCT_FAULT) {
      snprintf(fault, 32, f->nresult > 1 ? "%%v%u#%u" : "%%v%u", i, k);
      continue;
    }
    uint32_t s = part->stores[q->out >= 0 ? part->nin + (uint32_t)q->out : q->slot];
    if (s == UINT32_MAX) {
      continue;
    }
    while (c->versions[*v].part != i || c->versions[*v].result != k) {
      ++*v;
    }
    c->slots[s].version = (int32_t)*v;
    c->versions[*v].cost = cost;
    if (wants_barrier(c, *v, s)) {
      put_barrier(c, *v, f->results[k]);
    }
  }
}

/* Slots get back the version they had before any part. */
static void rewind_slots(composer *c) {
  for (uint32_t s = 0; s < c->in->nslot; s++) {
    c->slots[s].version = -1;
  }
  for (uint32_t v = 0; v < c->nversion; v++) {
    if (c->versions[v].part == UINT32_MAX) {
      c->slots[c->versions[v].result].version = (int32_t)v;
    }
  }
}

static bool list_params(composer *c, ttc__lowered *out) {
  uint32_t n = c->in->nslot + c->npack + 1, own = 0;
  out->params = calloc(n, sizeof *out->params);
  if (out->params == NULL) {
    return false;
  }
  for (uint32_t s = 0; s < c->in->nslot; s++) {
    if (c->slots[s].param >= 0) {
      c->slots[s].param = (int32_t)out->nparam;
      out->params[out->nparam++] = (ttc__param){.kind = TTC__PARAM_STORE, .i = own, .k = c->slots[s].lends != 0};
    }
    own += c->in->slots[s].outside ? 1 : 0;
  }
  uint32_t nbyte = 0;
  for (uint32_t k = 0; k < c->npack; k++) {
    const pack *p = &c->packs[k];
    nbyte = (nbyte + 15) & ~15u;
    out->params[out->nparam++] = (ttc__param){.kind = TTC__PARAM_PACK, .dtype = p->dtype, .i = nbyte, .k = p->count};
    nbyte += p->count * p->nbyte;
  }
  if (c->faults) {
    out->params[out->nparam++] = (ttc__param){.kind = TTC__PARAM_FAULT};
  }
  return true;
}

static bool list_products(composer *c, ttc__lowered *out) {
  out->products = calloc(c->in->nslot + 1, sizeof *out->products);
  uint32_t own = 0;
  int32_t fresh = 0;
  for (uint32_t s = 0; out->products != NULL && s < c->in->nslot; s++) {
    const ttc__fused_slot *q = &c->in->slots[s];
    if (is_result(c, s)) {
      out->products[out->nproduct++] =
          (ttc__product){.out = q->outside ? TTC__PRODUCT_SLOT : fresh, .slot = q->outside ? own : 0, .base = *q->base};
    }
    own += q->outside ? 1 : 0;
    fresh += !q->outside && q->alive ? 1 : 0;
  }
  if (out->products != NULL && c->faults) {
    out->products[out->nproduct++] = (ttc__product){.out = TTC__PRODUCT_FAULT};
  }
  return out->products != NULL;
}

/* Which result of @main slot s is. */
static int results_before(const composer *c, int32_t s) {
  int n = 0;
  for (int32_t k = 0; k < s; k++) {
    n += is_result(c, (uint32_t)k) ? 1 : 0;
  }
  return n;
}

/* "%arg0: T {tf.aliasing_output = 2 : i32}, ..". */
static void put_params(composer *c) {
  ttc__str *s = &c->body;
  uint32_t k = 0;
  int result = 0;
  for (uint32_t i = 0; i < c->in->nslot; i++) {
    bool result_too = is_result(c, i);
    if (c->slots[i].param >= 0) {
      ttc__str_addf(s, "%s%%arg%u: ", k > 0 ? ", " : "", k);
      put(s, c->slots[i].type);
      int to = result_too && c->slots[i].gives ? result : c->slots[i].lends != 0 ? results_before(c, c->slots[i].lends - 1) : -1;
      if (to >= 0) {
        ttc__str_addf(s, " {tf.aliasing_output = %d : i32}", to);
      }
      k++;
    }
    result += result_too ? 1 : 0;
  }
  for (uint32_t i = 0; i < c->npack; i++) {
    const pack *p = &c->packs[i];
    ttc__str_addf(s, "%s%%pack%u: tensor<%ux%.*s>", k++ > 0 ? ", " : "", i, p->count, (int)p->type.n, p->type.at);
  }
  if (c->faults) {
    ttc__str_addf(s, "%s%%fault: tensor<%dxi64>", k > 0 ? ", " : "", TTC__FAULT_WORDS);
  }
}

/* Of what @main gives. */
static void put_result_types(composer *c) {
  ttc__str *s = &c->body;
  uint32_t n = 0;
  for (uint32_t i = 0; i < c->in->nslot; i++) {
    if (is_result(c, i)) {
      ttc__str_add(s, n++ > 0 ? ", " : "");
      put(s, c->slots[i].type);
    }
  }
  if (c->faults) {
    ttc__str_addf(s, "%stensor<%dxi64>", n > 0 ? ", " : "", TTC__FAULT_WORDS);
  }
}

static void put_main(composer *c, const ttc__lowered *out) {
  ttc__str *s = &c->body;
  char fault[32] = "%fault";
  uint32_t number = 0, v = 0, n = 0;
  ttc__str_add(s, "  func.func public @main(");
  put_params(c);
  ttc__str_add(s, ") -> (");
  put_result_types(c);
  ttc__str_add(s, ") {\n");
  rewind_slots(c);
  for (uint32_t i = 0; i < c->in->npart; i++) {
    put_part(c, i, &number, &v, fault);
  }
  ttc__str_add(s, out->nproduct > 0 ? "    return " : "    return");
  for (uint32_t i = 0; i < c->in->nslot; i++) {
    if (is_result(c, i)) {
      ttc__str_add(s, n++ > 0 ? ", " : "");
      put_value(c, (uint32_t)c->slots[i].version);
    }
  }
  if (c->faults) {
    ttc__str_addf(s, "%s%s", n > 0 ? ", " : "", fault);
  }
  ttc__str_add(s, out->nproduct > 0 ? " : " : "");
  put_result_types(c);
  ttc__str_add(s, "\n  }\n");
}

static void put_function(composer *c, uint32_t k) {
  const function *f = &c->functions[k];
  ttc__str_addf(&c->body, "  func.func private @part%u(", k);
  for (uint32_t i = 0; i < f->nparam; i++) {
    ttc__str_addf(&c->body, "%s%%arg%u: ", i > 0 ? ", " : "", i);
    put(&c->body, f->params[i]);
  }
  ttc__str_add(&c->body, ") -> (");
  put_types(&c->body, f->nresult, f->results);
  ttc__str_add(&c->body, ") {\n");
  ttc__str_addn(&c->body, f->body.at, f->body.n - 2); /* without the module's end */
}

/* ---------------------------------------------------------------------------------------------------------- composing */

static bool has_texts(const ttc__composition *in, uint32_t *nnumber, uint32_t *nproduct) {
  *nnumber = *nproduct = 0;
  for (uint32_t i = 0; i < in->npart; i++) {
    const ttc__lowered *low = in->parts[i].low;
    if (low->text == NULL || low->foreign) {
      return false;
    }
    *nnumber += low->nparam;
    *nproduct += low->nproduct;
  }
  return true;
}

static bool allocate(composer *c, uint32_t nnumber, uint32_t nproduct) {
  const ttc__composition *in = c->in;
  c->functions = calloc(in->npart + 1, sizeof *c->functions);
  c->function_of = calloc(in->npart + 1, sizeof *c->function_of);
  c->slots = calloc(in->nslot + 1, sizeof *c->slots);
  c->versions = calloc((size_t)in->nslot + nproduct + 1, sizeof *c->versions);
  c->pack_of = calloc(nnumber + 1, sizeof *c->pack_of);
  c->at = calloc(nnumber + 1, sizeof *c->at);
  c->nset = (in->npart + 63) / 64;
  c->before = calloc((size_t)in->npart * c->nset + 1, sizeof *c->before);
  c->known = ttc__map_new();
  for (uint32_t s = 0; c->slots != NULL && s < in->nslot; s++) {
    c->slots[s] = (slot){.version = -1, .first = -1, .param = -1};
  }
  return c->functions != NULL && c->function_of != NULL && c->slots != NULL && c->versions != NULL && c->pack_of != NULL &&
         c->at != NULL && c->before != NULL && c->known != NULL;
}

static ttc_status build(composer *c, ttc__lowered *out, uint32_t **places, ttc_error *err) {
  static const char misfit[] = "a fused program: its parts do not fit together";
  if (!find_functions(c)) {
    return TTC_FAIL(err, TTC_UNIMPLEMENTED, misfit);
  }
  for (uint32_t i = 0; i < c->in->npart; i++) {
    if (!visit_part(c, i)) {
      return TTC_FAIL(err, TTC_UNIMPLEMENTED, misfit);
    }
  }
  for (uint32_t s = 0; s < c->in->nslot; s++) {
    if (is_result(c, s)) {
      c->versions[c->slots[s].version].nreader++;
    }
  }
  find_lenders(c);
  *places = calloc(c->nnumber + 1, sizeof **places);
  if (*places == NULL || !list_params(c, out) || !list_products(c, out)) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory");
  }
  for (uint32_t k = 0, first = out->nparam - c->npack - (c->faults ? 1 : 0); k < c->nnumber; k++) {
    (*places)[k] = out->params[first + c->pack_of[k]].i + c->at[k] * c->packs[c->pack_of[k]].nbyte;
  }
  ttc__str_add(&c->body, "module @fused {\n");
  for (uint32_t k = 0; k < c->nfunction; k++) {
    put_function(c, k);
  }
  put_main(c, out);
  ttc__str_add(&c->body, "}\n");
  out->text_nbyte = c->body.len;
  out->text = ttc__str_take(&c->body);
  return out->text != NULL ? TTC_OK : TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "a fused program's text is too long or memory ran out");
}

ttc_status ttc__compose(const ttc__composition *in, ttc__lowered *out, uint32_t **places, uint32_t *nplace, ttc_error *err) {
  composer c = {.in = in};
  uint32_t nnumber, nproduct;
  memset(out, 0, sizeof *out);
  *places = NULL;
  ttc__str_init(&c.body, MAX_TEXT);
  ttc_status st = TTC_OK;
  if (!has_texts(in, &nnumber, &nproduct)) {
    st = TTC_FAIL(err, TTC_UNIMPLEMENTED, "a fused program: a part has no text");
  } else if (!allocate(&c, nnumber, nproduct)) {
    st = TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory");
  } else {
    st = build(&c, out, places, err);
  }
  *nplace = c.nnumber;
  for (uint32_t k = 0; k < c.nfunction; k++) {
    free(c.functions[k].params);
    free(c.functions[k].fans);
  }
  if (st != TTC_OK) {
    ttc__lowered_free(out);
    free(*places);
    *places = NULL;
  }
  ttc__str_free(&c.body);
  ttc__map_free(c.known);
  for (uint32_t k = 0; c.slots != NULL && k < in->nslot; k++) {
    free(c.slots[k].readers);
  }
  free(c.before);
  free(c.functions);
  free(c.function_of);
  free(c.slots);
  free(c.versions);
  free(c.pack_of);
  free(c.at);
  return st;
}
