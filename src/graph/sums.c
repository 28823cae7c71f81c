#include "graph/sums.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

#define MAX_TEXT ((size_t)8 << 20)
#define MAX_LINES 16 /* of a product's text */
#define FEWEST 3u    /* products worth joining */
#define OUTSIDE UINT32_MAX

/* What a slot holds from one write to the next. */
typedef struct version {
  uint32_t part; /* that wrote it; OUTSIDE: none */
  uint32_t next; /* the slot's next one; OUTSIDE: none */
  uint32_t before;
  uint32_t nread;
} version;

/* `%name = op(%operand) ..`. */
typedef struct line {
  char op[24];
  int name, operand;               /* -1 - k is parameter k */
  const char *at, *before, *after; /* the line, what is before its operand and after it */
  const char *end;
} line;

/* A factor [rows, depth] or [depth, rows]. */
typedef struct factor {
  int name; /* as in `line` */
  int axis; /* of its depth */
  int64_t rows, depth;
} factor;

/* A part whose text is one product of two factors, each a view of a parameter. */
typedef struct product {
  line lines[MAX_LINES];
  int nline;
  factor x, y;
  char element[16]; /* their type's, and the result's */
  char result[16];
  char precision[128]; /* ", precision_config = .." or nothing */
} product;

typedef struct finder {
  const ttc__composition *in;
  uint32_t *first_read; /* [npart] places in reads */
  uint32_t *reads;      /* a version each parameter; OUTSIDE: none */
  version *versions;
  uint32_t nversion;
  bool *gone;              /* [npart] part of a sum that was found */
  bool *tried;             /* [npart] it adds in a sum that was looked at */
  uint32_t *tree, *leaves; /* of one sum: parts that add, versions that are added */
  uint32_t ntree, nleaf;
} finder;

/* ---------------------------------------------------------------------------------------------------------- reading */

/* "%12" or "%arg3". Returns what follows, or NULL. */
static const char *read_name(const char *p, int *name) {
  bool param = strncmp(p, "%arg", 4) == 0;
  char *end;
  p += param ? 4 : 1;
  long k = p[-1] == '%' || param ? strtol(p, &end, 10) : -1;
  if (k < 0 || k > 100000 || end == p) {
    return NULL;
  }
  *name = param ? -1 - (int)k : (int)k;
  return end;
}

/* "tensor<32x128xf32>" of two dims. */
static bool read_matrix(const char *p, int64_t dims[2], char element[16]) {
  long long m, n;
  char type[16];
  if (p == NULL || sscanf(p, "tensor<%lldx%lldx%15[a-z0-9A-Z]>", &m, &n, type) != 3 || (*type >= '0' && *type <= '9')) {
    return false;
  }
  dims[0] = m;
  dims[1] = n;
  memcpy(element, type, sizeof type);
  return true;
}

/* `    %3 = "stablehlo.reshape"(%2) ..`, or `%3 = stablehlo.optimization_barrier %2 ..`. */
static bool read_line(const char *p, line *l) {
  l->at = p;
  l->end = strchr(p, '\n');
  if (l->end == NULL || strncmp(p, "    %", 5) != 0 || (p = read_name(p + 4, &l->name)) == NULL || strncmp(p, " = ", 3) != 0) {
    return false;
  }
  l->before = p + 3;
  p = strchr(p + 3, '%');
  if (p == NULL || p > l->end || sscanf(l->before + (*l->before == '"' ? 1 : 0), "stablehlo.%23[a-z_]", l->op) != 1) {
    return false;
  }
  l->after = read_name(p, &l->operand);
  return l->after != NULL;
}

static bool is_view(const line *l) {
  return strcmp(l->op, "slice") == 0 || strcmp(l->op, "reshape") == 0 || strcmp(l->op, "transpose") == 0 ||
         strcmp(l->op, "optimization_barrier") == 0;
}

/* The line that makes `name`, past barriers. NULL: a parameter. */
static const line *line_of(const product *p, int name) {
  const line *found = NULL;
  for (int k = p->nline; k-- > 0;) {
    const line *l = &p->lines[k];
    if (l->name == name) {
      found = l;
      name = strcmp(l->op, "optimization_barrier") == 0 ? l->operand : name;
    }
  }
  return found;
}

static bool turns(const line *l, const char *permutation) {
  const char *p = l != NULL && strcmp(l->op, "transpose") == 0 ? strstr(l->at, permutation) : NULL;
  return p != NULL && p < l->end;
}

/* A factor whose axes were exchanged, plainly or as in_rows of op/matmul.c does, is what it was before. */
static void unturn(const product *p, factor *f) {
  const line *l = line_of(p, f->name);
  if (turns(l, "array<i64: 1, 0>")) {
    f->name = l->operand;
    f->axis = 1 - f->axis;
  } else if (l != NULL && strcmp(l->op, "reshape") == 0 && f->axis == 1) {
    const line *turned = line_of(p, l->operand), *split = turns(turned, "array<i64: 1, 2, 0>") ? line_of(p, turned->operand) : NULL;
    int64_t dims[2];
    char element[16];
    const char *type = split != NULL && strcmp(split->op, "reshape") == 0 ? strstr(split->after, "tensor<") : NULL;
    if (read_matrix(type, dims, element) && dims[0] == f->depth && dims[1] == f->rows) {
      f->name = split->operand;
      f->axis = 0;
    }
  }
}

/* The line of the product itself. */
static bool read_dot(const char *p, const char *end, product *q) {
  static const char head[] =
      "stablehlo.dot<lhs_batching_dimensions = [], rhs_batching_dimensions = [], lhs_contracting_dimensions = [";
  const char *names = strstr(p, "\"("), *dims = strstr(p, head), *types = strstr(p, "}> : (");
  int64_t x[2], y[2];
  char element[16];
  if (names == NULL || dims == NULL || types == NULL || types > end) {
    return false;
  }
  names = read_name(names + 2, &q->x.name);
  if (names == NULL || strncmp(names, ", ", 2) != 0 || read_name(names + 2, &q->y.name) == NULL ||
      sscanf(dims + sizeof head - 1, "%d], rhs_contracting_dimensions = [%d]>", &q->x.axis, &q->y.axis) != 2) {
    return false;
  }
  const char *second = strstr(types + 6, ", "), *result = strstr(types + 6, ") -> ");
  if (second == NULL || result == NULL || result > end || second > result || !read_matrix(types + 6, x, q->element) ||
      !read_matrix(second + 2, y, element) || strcmp(q->element, element) != 0) {
    return false;
  }
  q->x.depth = x[q->x.axis & 1];
  q->x.rows = x[1 - (q->x.axis & 1)];
  q->y.depth = y[q->y.axis & 1];
  q->y.rows = y[1 - (q->y.axis & 1)];
  const char *more = strstr(dims, ", precision_config");
  size_t n = more != NULL && more < types ? (size_t)(types - more) : 0;
  if (n >= sizeof q->precision) {
    return false;
  }
  memcpy(q->precision, more != NULL ? more : "", n);
  q->precision[n] = '\0';
  return read_matrix(result + 5, x, q->result) && x[0] == q->x.rows && x[1] == q->y.rows && q->x.depth == q->y.depth;
}

/* Where the lines of a part begin: after its signature and the names of its ops. */
static const char *body_of(const ttc__lowered *low) {
  const char *p = low->text != NULL ? strstr(low->text, ") {\n") : NULL;
  p = p != NULL ? p + 4 : NULL;
  while (p != NULL && strncmp(p, "    //", 6) == 0) {
    p = strchr(p, '\n');
    p = p != NULL ? p + 1 : NULL;
  }
  return p;
}

static bool of_stores(const ttc__lowered *low, uint32_t nparam) {
  bool ok = low->nparam == nparam && low->nproduct == 1 && low->products[0].out != TTC__PRODUCT_FAULT && !low->foreign;
  for (uint32_t k = 0; ok && k < low->nparam; k++) {
    ok = low->params[k].kind == TTC__PARAM_STORE;
  }
  return ok;
}

static bool is_sum(const ttc__lowered *low) {
  static const char text[] = "    %0 = stablehlo.add %arg0, %arg1 : ";
  const char *p = of_stores(low, 2) ? body_of(low) : NULL;
  const char *end = p != NULL && strncmp(p, text, sizeof text - 1) == 0 ? strchr(p, '\n') : NULL;
  return end != NULL && strncmp(end + 1, "    return %0 : ", 16) == 0;
}

static bool read_product(const ttc__lowered *low, product *q) {
  const char *p = of_stores(low, 2) ? body_of(low) : NULL;
  for (q->nline = 0; p != NULL && q->nline < MAX_LINES; q->nline++) {
    line *l = &q->lines[q->nline];
    if (!read_line(p, l)) {
      return false;
    }
    p = l->end + 1;
    if (strcmp(l->op, "dot_general") == 0) {
      char back[32];
      snprintf(back, sizeof back, "    return %%%d : ", l->name);
      if (strncmp(p, back, strlen(back)) != 0 || !read_dot(l->at, l->end, q)) {
        return false;
      }
      unturn(q, &q->x);
      unturn(q, &q->y);
      return true;
    }
    if (!is_view(l)) {
      return false;
    }
  }
  return false;
}

/* ---------------------------------------------------------------------------------------- what reads and writes what */

static uint32_t slot_of(const ttc__part *part, const ttc__product *q) {
  return q->out == TTC__PRODUCT_FAULT ? OUTSIDE : part->stores[q->out >= 0 ? part->nin + (uint32_t)q->out : q->slot];
}

static void follow(finder *f) {
  const ttc__composition *in = f->in;
  uint32_t nread = 0;
  for (uint32_t s = 0; s < in->nslot; s++) { /* version s is what slot s holds at first */
    f->versions[s] = (version){.part = OUTSIDE, .next = OUTSIDE};
  }
  f->nversion = in->nslot;
  uint32_t *now = f->tree; /* not needed yet */
  for (uint32_t s = 0; s < in->nslot; s++) {
    now[s] = s;
  }
  for (uint32_t i = 0; i < in->npart; i++) {
    const ttc__part *part = &in->parts[i];
    f->first_read[i] = nread;
    for (uint32_t k = 0; k < part->low->nparam; k++) {
      const ttc__param *q = &part->low->params[k];
      uint32_t v = q->kind == TTC__PARAM_STORE ? now[part->stores[q->i]] : OUTSIDE;
      f->reads[nread++] = v;
      if (v != OUTSIDE) {
        f->versions[v].nread++;
      }
    }
    for (uint32_t k = 0; k < part->low->nproduct; k++) {
      uint32_t s = slot_of(part, &part->low->products[k]);
      if (s != OUTSIDE) {
        f->versions[now[s]].next = f->nversion;
        f->versions[f->nversion] = (version){.part = i, .next = OUTSIDE, .before = now[s]};
        now[s] = f->nversion++;
      }
    }
  }
  for (uint32_t s = 0; s < in->nslot; s++) {
    f->versions[now[s]].nread += in->slots[s].outside || in->slots[s].alive ? 1 : 0;
  }
}

/* Does the version's slot hold it still when part `at` reads, if the sum's parts do not run? */
static bool lasts(const finder *f, uint32_t v, uint32_t at) {
  for (uint32_t n = f->versions[v].next; n != OUTSIDE && f->versions[n].part < at; n = f->versions[n].next) {
    if (!f->gone[f->versions[n].part]) {
      return false;
    }
  }
  return true;
}

/* Was it made by a part, and is it read once? */
static bool only_for_one(const finder *f, uint32_t v) {
  return f->versions[v].part != OUTSIDE && f->versions[v].nread == 1 && !f->gone[f->versions[v].part];
}

/* All that part `root` adds up. The parts that do are gone for now. */
static void gather(finder *f, uint32_t root) {
  f->nleaf = f->ntree = 0;
  f->tree[f->ntree++] = root;
  for (uint32_t at = 0; at < f->ntree; at++) {
    for (uint32_t k = 0; k < 2; k++) {
      uint32_t v = f->reads[f->first_read[f->tree[at]] + k];
      if (only_for_one(f, v) && is_sum(f->in->parts[f->versions[v].part].low)) {
        f->gone[f->versions[v].part] = true;
        f->tree[f->ntree++] = f->versions[v].part;
      } else {
        f->leaves[f->nleaf++] = v;
      }
    }
  }
}

/* ---------------------------------------------------------------------------------------------------------- writing */

typedef struct text {
  const char *at;
  size_t n;
} text;

/* One sum, as its part is made. */
typedef struct sum {
  finder *f;
  uint32_t nslot, *slots; /* that it reads: parameters in order */
  text *types;            /* theirs */
  product like;           /* the first of its products */
  uint32_t nproduct;
  int64_t depth;                /* of all */
  ttc__str lines, x, y, xt, yt; /* names and types of factors */
} sum;

static uint32_t parameter(sum *s, uint32_t slot, text type) {
  uint32_t k = 0;
  while (k < s->nslot && s->slots[k] != slot) {
    k++;
  }
  s->slots[k] = slot;
  s->types[k] = type;
  s->nslot += k == s->nslot ? 1 : 0;
  return k;
}

/* Parameter k's type, out of the signature. */
static text type_of(const ttc__lowered *low, int k) {
  char name[24];
  snprintf(name, sizeof name, "%%arg%d: ", k);
  const char *p = strstr(low->text, name), *end = p != NULL ? strchr(p, '>') : NULL;
  return end != NULL ? (text){p + strlen(name), (size_t)(end + 1 - p) - strlen(name)} : (text){"", 0};
}

static void put_named(sum *s, ttc__str *to, uint32_t i, int name) {
  const ttc__part *part = &s->f->in->parts[i];
  if (name < 0) {
    uint32_t slot = part->stores[part->low->params[-1 - name].i];
    ttc__str_addf(to, "%%arg%u", parameter(s, slot, type_of(part->low, -1 - name)));
  } else {
    ttc__str_addf(to, "%%p%u_%d", i, name);
  }
}

static void put_matrix(ttc__str *to, const product *p, const factor *f, int64_t depth) {
  int64_t dims[2] = {f->axis == 0 ? depth : f->rows, f->axis == 0 ? f->rows : depth};
  ttc__str_addf(to, "tensor<%lldx%lldx%s>", (long long)dims[0], (long long)dims[1], p->element);
}

static void put_factor(sum *s, uint32_t i, const product *p, const factor *f, ttc__str *names, ttc__str *types) {
  ttc__str_add(names, s->nproduct > 0 ? ", " : "");
  ttc__str_add(types, s->nproduct > 0 ? ", " : "");
  put_named(s, names, i, f->name);
  put_matrix(types, p, f, f->depth);
}

/* Part i's lines that make its factors, under names of their own. */
static void put_factors(sum *s, uint32_t i, const product *p) {
  bool needed[MAX_LINES] = {false};
  int names[2] = {p->x.name, p->y.name};
  for (int k = p->nline; k-- > 0;) {
    const line *l = &p->lines[k];
    for (int j = 0; j < 2; j++) {
      needed[k] |= l->name == names[j];
      names[j] = l->name == names[j] ? l->operand : names[j];
    }
  }
  for (int k = 0; k < p->nline; k++) {
    const line *l = &p->lines[k];
    if (needed[k]) {
      ttc__str_addf(&s->lines, "    %%p%u_%d = ", i, l->name);
      ttc__str_addn(&s->lines, l->before, (size_t)(strchr(l->before, '%') - l->before));
      put_named(s, &s->lines, i, l->operand);
      ttc__str_addn(&s->lines, l->after, (size_t)(l->end + 1 - l->after));
    }
  }
  put_factor(s, i, p, &p->x, &s->x, &s->xt);
  put_factor(s, i, p, &p->y, &s->y, &s->yt);
  s->depth += p->x.depth;
  s->nproduct++;
}

static void put_beside(sum *s, const char *name, const ttc__str *names, const ttc__str *types, const factor *f) {
  ttc__str_addf(&s->lines, "    %%%s = \"stablehlo.concatenate\"(%s) <{dimension = %d : i64}> : (%s) -> ", name,
                ttc__str_get(names), f->axis, ttc__str_get(types));
  put_matrix(&s->lines, &s->like, f, s->depth);
  ttc__str_add(&s->lines, "\n");
}

/* %sum = x·y, or (y·x)ᵀ where XLA:CPU would read x in columns and y is the smaller: see better_swapped in op/matmul.c. */
static void put_product(sum *s) {
  const product *p = &s->like;
  bool swap = !s->f->in->for_tpu && p->x.axis == 0 && p->y.axis == 0 && p->y.rows < p->x.rows;
  const factor *a = swap ? &p->y : &p->x, *b = swap ? &p->x : &p->y;
  ttc__str *t = &s->lines;
  ttc__str_addf(t, "    %%%s = \"stablehlo.dot_general\"(%%%s, %%%s) <{dot_dimension_numbers = ", swap ? "turned" : "sum",
                swap ? "y" : "x", swap ? "x" : "y");
  ttc__str_addf(t,
                "#stablehlo.dot<lhs_batching_dimensions = [], rhs_batching_dimensions = [], lhs_contracting_dimensions = [%d], "
                "rhs_contracting_dimensions = [%d]>%s}> : (",
                a->axis, b->axis, p->precision);
  put_matrix(t, p, a, s->depth);
  ttc__str_add(t, ", ");
  put_matrix(t, p, b, s->depth);
  ttc__str_addf(t, ") -> tensor<%lldx%lldx%s>\n", (long long)a->rows, (long long)b->rows, p->result);
  if (swap) {
    char type[64];
    snprintf(type, sizeof type, "tensor<%lldx%lldx%s>", (long long)a->rows, (long long)b->rows, p->result);
    ttc__str_addf(t, "    %%kept = stablehlo.optimization_barrier %%turned : %s\n", type);
    ttc__str_addf(t, "    %%sum = \"stablehlo.transpose\"(%%kept) <{permutation = array<i64: 1, 0>}> : (%s) -> ", type);
    ttc__str_addf(t, "tensor<%lldx%lldx%s>\n", (long long)b->rows, (long long)a->rows, p->result);
  }
}

/* The slot that version v is in. */
static uint32_t slot_holding(const finder *f, uint32_t v) {
  while (f->versions[v].part != OUTSIDE) {
    v = f->versions[v].before;
  }
  return v;
}

/* What adds all of f->leaves: products joined, and the others. */
static char *put_text(sum *s, const bool *is_product) {
  const finder *f = s->f;
  const product *p = &s->like;
  char type[64], last[24] = "%sum";
  int n = snprintf(type, sizeof type, "tensor<%lldx%lldx%s>", (long long)p->x.rows, (long long)p->y.rows, p->result);
  put_beside(s, "x", &s->x, &s->xt, &p->x);
  put_beside(s, "y", &s->y, &s->yt, &p->y);
  put_product(s);
  for (uint32_t k = 0; k < f->nleaf; k++) {
    if (!is_product[k]) {
      uint32_t arg = parameter(s, slot_holding(f, f->leaves[k]), (text){type, (size_t)n});
      ttc__str_addf(&s->lines, "    %%s%u = stablehlo.add %s, %%arg%u : %s\n", k, last, arg, type);
      snprintf(last, sizeof last, "%%s%u", k);
    }
  }
  ttc__str all;
  ttc__str_init(&all, MAX_TEXT);
  ttc__str_add(&all, "module @sum {\n  func.func public @main(");
  for (uint32_t k = 0; k < s->nslot; k++) {
    ttc__str_addf(&all, "%s%%arg%u: %.*s", k > 0 ? ", " : "", k, (int)s->types[k].n, s->types[k].at);
  }
  ttc__str_addf(&all, ") -> (%s) {\n%s    return %s : %s\n  }\n}\n", type, ttc__str_get(&s->lines), last, type);
  bool ok = !s->lines.failed && !s->x.failed && !s->y.failed && !s->xt.failed && !s->yt.failed;
  char *made = ok ? ttc__str_take(&all) : NULL;
  ttc__str_free(&all);
  return made;
}

/* The part that takes root's place, with its text. False: memory ran out. */
static bool make_part(sum *s, uint32_t root, char *made, ttc__made *m, ttc__part *out) {
  const ttc__part *was = &s->f->in->parts[root];
  const ttc__product *q = &was->low->products[0];
  bool fresh = q->out >= 0;
  m->low = (ttc__lowered){.text = made, .text_nbyte = strlen(made), .nparam = s->nslot, .nproduct = 1};
  m->low.params = calloc(s->nslot + 1, sizeof *m->low.params);
  m->low.products = calloc(1, sizeof *m->low.products);
  m->stores = malloc((s->nslot + 1) * sizeof *m->stores);
  if (m->low.params == NULL || m->low.products == NULL || m->stores == NULL) {
    return false;
  }
  for (uint32_t k = 0; k < s->nslot; k++) {
    m->low.params[k] = (ttc__param){.kind = TTC__PARAM_STORE, .i = k};
    m->stores[k] = s->slots[k];
  }
  m->stores[s->nslot] = slot_of(was, q); /* a fresh result's, or one of its own that it does not read as this */
  m->low.products[0] = (ttc__product){.out = fresh ? 0 : TTC__PRODUCT_SLOT, .slot = fresh ? 0 : s->nslot, .base = q->base};
  *out = (ttc__part){.low = &m->low, .stores = m->stores, .nin = s->nslot + (fresh ? 0 : 1)};
  return true;
}

/* ---------------------------------------------------------------------------------------------------------- finding */

/* A product that is worth joining with others like `like` (NULL: none yet), read when part `root` runs: no more than a few times as
 * much is copied as the additions that it saves would read and write. */
static bool joins(const finder *f, uint32_t v, uint32_t root, const product *like, product *p) {
  uint32_t i = f->versions[v].part;
  if (!only_for_one(f, v) || !read_product(f->in->parts[i].low, p) ||
      p->x.depth * (p->x.rows + p->y.rows) > p->x.rows * p->y.rows) {
    return false;
  }
  for (uint32_t k = 0; k < 2; k++) {
    if (!lasts(f, f->reads[f->first_read[i] + k], root)) {
      return false;
    }
  }
  return like == NULL || (p->x.axis == like->x.axis && p->y.axis == like->y.axis && p->x.rows == like->x.rows &&
                          p->y.rows == like->y.rows && strcmp(p->element, like->element) == 0 &&
                          strcmp(p->result, like->result) == 0 && strcmp(p->precision, like->precision) == 0);
}

static void begin_sum(sum *s, finder *f) {
  *s = (sum){.f = f};
  s->slots = malloc((2 * f->nleaf + 1) * sizeof *s->slots);
  s->types = malloc((2 * f->nleaf + 1) * sizeof *s->types);
  ttc__str *all[5] = {&s->lines, &s->x, &s->y, &s->xt, &s->yt};
  for (int k = 0; k < 5; k++) {
    ttc__str_init(all[k], MAX_TEXT);
  }
}

static void end_sum(sum *s) {
  free(s->slots);
  free(s->types);
  ttc__str *all[5] = {&s->lines, &s->x, &s->y, &s->xt, &s->yt};
  for (int k = 0; k < 5; k++) {
    ttc__str_free(all[k]);
  }
}

/* Tries to join what part `root` adds. */
static bool join(finder *f, uint32_t root, ttc__made *m, ttc__part *out) {
  sum s;
  product p;
  begin_sum(&s, f);
  bool *is_product = calloc(f->nleaf + 1, sizeof *is_product), ok = is_product != NULL && s.slots != NULL && s.types != NULL;
  for (uint32_t k = 0; ok && k < f->nleaf; k++) {
    is_product[k] = joins(f, f->leaves[k], root, s.nproduct > 0 ? &s.like : NULL, &p);
    if (is_product[k]) {
      s.like = s.nproduct == 0 ? p : s.like;
      put_factors(&s, f->versions[f->leaves[k]].part, &p);
    }
    ok = is_product[k] || lasts(f, f->leaves[k], root);
  }
  ok = ok && s.nproduct >= FEWEST;
  char *made = ok ? put_text(&s, is_product) : NULL;
  ok = made != NULL && make_part(&s, root, made, m, out);
  for (uint32_t k = 0; k < f->nleaf && ok; k++) {
    f->gone[f->versions[f->leaves[k]].part] |= is_product[k];
  }
  free(is_product);
  end_sum(&s);
  return ok;
}

static bool allocate(finder *f, ttc__summed *out) {
  const ttc__composition *in = f->in;
  uint32_t nread = 1, nmade = 1;
  for (uint32_t i = 0; i < in->npart; i++) {
    nread += in->parts[i].low->nparam;
    nmade += in->parts[i].low->nproduct;
  }
  f->first_read = calloc(in->npart + 1, sizeof *f->first_read);
  f->reads = calloc(nread, sizeof *f->reads);
  f->versions = calloc((size_t)in->nslot + nmade, sizeof *f->versions);
  f->gone = calloc(in->npart + 1, sizeof *f->gone);
  f->tried = calloc(in->npart + 1, sizeof *f->tried);
  f->tree = calloc((size_t)in->npart + in->nslot + 1, sizeof *f->tree);
  f->leaves = calloc((size_t)in->npart + 2, sizeof *f->leaves);
  out->parts = calloc(in->npart + 1, sizeof *out->parts);
  out->made = calloc(in->npart + 1, sizeof *out->made);
  return f->first_read != NULL && f->reads != NULL && f->versions != NULL && f->gone != NULL && f->tried != NULL &&
         f->tree != NULL && f->leaves != NULL && out->parts != NULL && out->made != NULL;
}

static void end_finder(finder *f) {
  free(f->first_read);
  free(f->reads);
  free(f->versions);
  free(f->gone);
  free(f->tried);
  free(f->tree);
  free(f->leaves);
}

static void free_made(ttc__made *m) {
  ttc__lowered_free(&m->low);
  free(m->stores);
  m->stores = NULL;
}

/* From the last addition to the first, for a sum's last one is its root. */
static void find(finder *f, ttc__summed *out) {
  for (uint32_t i = f->in->npart; i-- > 0;) {
    out->parts[i] = f->in->parts[i];
    if (f->gone[i] || f->tried[i] || !is_sum(f->in->parts[i].low)) {
      continue;
    }
    gather(f, i);
    ttc__made *m = &out->made[out->nmade];
    bool joined = f->nleaf >= FEWEST && join(f, i, m, &out->parts[i]);
    if (joined) {
      out->nmade++;
    } else {
      free_made(m);
    }
    for (uint32_t k = 1; k < f->ntree; k++) {
      f->gone[f->tree[k]] = joined;
      f->tried[f->tree[k]] = true;
    }
  }
}

void ttc__sum_products(const ttc__composition *in, ttc__summed *out) {
  finder f = {.in = in};
  memset(out, 0, sizeof *out);
  out->all = *in;
  if (allocate(&f, out)) {
    follow(&f);
    find(&f, out);
    uint32_t n = 0;
    for (uint32_t i = 0; i < in->npart; i++) {
      if (!f.gone[i]) {
        out->parts[n++] = out->parts[i];
      }
    }
    out->all.parts = out->parts;
    out->all.npart = n;
  }
  end_finder(&f);
}

void ttc__summed_free(ttc__summed *s) {
  for (uint32_t k = 0; k < s->nmade; k++) {
    free_made(&s->made[k]);
  }
  free(s->parts);
  free(s->made);
}
