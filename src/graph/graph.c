/* Graphs: several calls as one op. A finished graph is a row whose rule lowers its nodes one after another, so it is keyed, cached,
 * launched and donated like any other op. */
#include "graph/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "op/lower.h"
#include "ttc_see.h"

#define GRAPH_MAX_NBYTE ((size_t)256 << 20)

typedef struct node {
  ttc_call call; /* deep copy in the arena */
  uint32_t nout;
  const ttc_spec *outs;
  int32_t first_value;
  const char *file; /* of Python, in the arena; NULL: unknown */
  int line;
  struct node *next;
} node;

/* Value `value` (-1: a number, which nodes refer to by its argument) is entry k of argument arg of the graph's call. */
typedef struct input {
  uint32_t arg, k;
  int32_t value;
} input;

struct ttc_graph {
  ttc__arena *arena;
  ttc_op_row row;
  node *first, **last;
  int32_t nvalue;
  uint32_t ninput;
  input *inputs;
  uint32_t input_cap;
  uint32_t nout;
  int32_t *outs;
  uint64_t nrandom; /* random numbers of its nodes */
  const char *file; /* the last node's */
  bool failed;
};

static ttc_val input_value(ttc_lower *c, const input *in) {
  return op_list_given(c, (int)in->arg, (int)in->k) ? op_list_in(c, (int)in->arg, (int)in->k) : op_in(c, (int)in->arg);
}

static void lower_nodes(shlo *b, ttc_lower *c, const ttc_graph *g) {
  ttc_val *values = calloc((size_t)g->nvalue + 1, sizeof *values);
  if (values == NULL) {
    shlo_error(b, TTC_RESOURCE_EXHAUSTED, "out of memory while lowering a graph");
    return;
  }
  for (uint32_t i = 0; i < g->ninput; i++) {
    if (g->inputs[i].value >= 0) {
      values[g->inputs[i].value] = input_value(c, &g->inputs[i]);
    }
  }
  for (const node *n = g->first; n != NULL && !shlo_failed(b); n = n->next) {
    shlo_source(b, ttc__op_row(n->call.op)->name, n->file, n->line);
    ttc__lower_node(c, &n->call, n->nout, n->outs, values, values + n->first_value);
  }
  shlo_source(b, NULL, NULL, 0);
  for (uint32_t k = 0; k < g->nout && !shlo_failed(b); k++) {
    op_ret(c, (int)k, values[g->outs[k]]);
  }
  free(values);
}

static void lower_graph(shlo *b, ttc_lower *c) {
  lower_nodes(b, c, ttc__lower_data(c));
}

/* ------------------------------------------------------------------------------------------------------ declared ops */

static _Thread_local uint32_t chosen_graph = UINT32_MAX;

static void lower_declared(shlo *b, ttc_lower *c) {
  const ttc_op_row *row = ttc__op_row(chosen_graph);
  if (row == NULL || row->rule != lower_graph) {
    op_refuse(c, "no graph was chosen for this signature");
    return;
  }
  lower_nodes(b, c, ttc__op_data(chosen_graph));
}

uint32_t ttc_op_declare(const char *name, uint64_t static_args) {
  ttc_op_row row = {.name = name, .rule = lower_declared, .tol = TOL_LOOSE, .static_args = static_args};
  return ttc__op_register_copy(&row);
}

void ttc_graph_choose(uint32_t graph_op) {
  chosen_graph = graph_op;
}

void ttc__graph_place(uint32_t op, char *out, size_t nbyte) {
  const ttc_op_row *row = ttc__op_row(op);
  const ttc_graph *g = row != NULL && row->rule == lower_graph ? ttc__op_data(op) : NULL;
  const node *first = g != NULL ? g->first : NULL, *last = NULL;
  while (first != NULL && first->file == NULL) {
    first = first->next;
  }
  for (const node *n = first; n != NULL; n = n->next) {
    last = n->file != NULL ? n : last;
  }
  out[0] = '\0';
  if (first != NULL && last != NULL) {
    snprintf(out, nbyte, " (a program of %s:%d to %s:%d)", first->file, first->line, last->file, last->line);
  }
}

/* ---------------------------------------------------------------------------------------------------------- building */

ttc_graph *ttc_graph_new(const char *name) {
  ttc_graph *g = calloc(1, sizeof *g);
  if (g == NULL) {
    return NULL;
  }
  g->arena = ttc__arena_new(GRAPH_MAX_NBYTE);
  g->row.name = g->arena != NULL ? ttc__arena_strdup(g->arena, name) : NULL;
  if (g->row.name == NULL) {
    ttc_graph_free(g);
    return NULL;
  }
  g->row.rule = lower_graph;
  g->row.tol = TOL_LOOSE;
  g->last = &g->first;
  return g;
}

void ttc_graph_free(ttc_graph *g) {
  if (g != NULL) {
    ttc__arena_free(g->arena);
    free(g->inputs);
    free(g);
  }
}

static bool add_input(ttc_graph *g, input in) {
  if (g->ninput == g->input_cap) {
    uint32_t cap = g->input_cap == 0 ? 16 : 2 * g->input_cap;
    input *p = realloc(g->inputs, cap * sizeof *p);
    if (p == NULL) {
      g->failed = true;
      return false;
    }
    g->inputs = p;
    g->input_cap = cap;
  }
  g->inputs[g->ninput++] = in;
  return true;
}

int32_t ttc_graph_input_of(ttc_graph *g, uint32_t arg, uint32_t k) {
  int32_t value = g->nvalue++;
  return add_input(g, (input){.arg = arg, .k = k, .value = value}) ? value : -1;
}

int32_t ttc_graph_input(ttc_graph *g, const ttc_spec *spec) {
  (void)spec; /* shapes come with the call: the key covers them */
  return ttc_graph_input_of(g, g->ninput, 0);
}

int32_t ttc_graph_input_scalar(ttc_graph *g, ttc_scalar_kind kind) {
  (void)kind;
  uint32_t arg = g->ninput;
  return add_input(g, (input){.arg = arg, .value = -1}) ? (int32_t)arg : -1;
}

/* ---------------------------------------------------------------------------------------------------- deep copies */

static void *copy(ttc_graph *g, const void *p, size_t n) {
  void *q = ttc__arena_alloc(g->arena, n != 0 ? n : 1);
  if (q == NULL) {
    g->failed = true;
  } else if (n != 0) {
    memcpy(q, p, n);
  }
  return q;
}

static const ttc_tensor *copy_tensors(ttc_graph *g, const ttc_tensor *t, uint32_t n) {
  ttc_tensor *q = copy(g, t, n * sizeof *t);
  for (uint32_t k = 0; q != NULL && k < n; k++) {
    if (ttc__absent(&t[k])) {
      continue;
    }
    int64_t *strides = copy(g, t[k].sizes, t[k].ndim * sizeof(int64_t));
    q[k].sizes = copy(g, t[k].sizes, t[k].ndim * sizeof(int64_t));
    q[k].strides = strides;
    if (strides != NULL && q[k].sizes != NULL) {
      ttc__dense_strides(t[k].ndim, q[k].sizes, strides);
    }
  }
  return q;
}

static void copy_arg(ttc_graph *g, ttc_arg *a) {
  switch ((ttc_arg_kind)a->kind) {
    case TTC_ARG_TENSOR:
    case TTC_ARG_TENSORS:
      a->tensor = copy_tensors(g, a->tensor, a->n);
      break;
    case TTC_ARG_SCALAR:
    case TTC_ARG_SCALARS:
      a->scalar = copy(g, a->scalar, a->n * sizeof *a->scalar);
      break;
    case TTC_ARG_INTS:
      a->ints = copy(g, a->ints, a->n * sizeof *a->ints);
      break;
    case TTC_ARG_STRING:
      a->str = copy(g, a->str, a->n);
      break;
    case TTC_ARG_NONE:
    case TTC_ARG_INT:
    case TTC_ARG_BOOL:
    case TTC_ARG_DTYPE:
    case TTC_ARG_RNG:
      break;
  }
}

/* The arguments, and where random numbers are drawn one more: how many the nodes before have taken. */
static const ttc_arg *copy_args(ttc_graph *g, const ttc_call *call, bool random) {
  ttc_arg *args = ttc__arena_alloc(g->arena, (call->narg + 1) * sizeof *args);
  g->failed |= args == NULL;
  for (uint32_t i = 0; args != NULL && i < call->narg; i++) {
    args[i] = call->args[i];
    copy_arg(g, &args[i]);
  }
  if (args != NULL && random) {
    args[call->narg] = (ttc_arg){.kind = TTC_ARG_RNG, .n = 1, .rng = copy(g, &g->nrandom, sizeof g->nrandom)};
  }
  return args;
}

/* Where this thread's nodes come from. */
static _Thread_local char source_file[1024];
static _Thread_local int source_line;

void ttc_graph_source(const char *file, int line) {
  size_t n = file != NULL ? strlen(file) : 0;
  n = n < sizeof source_file ? n : 0;
  for (size_t i = 0; i < n; i++) { /* it is to stand between quotes */
    source_file[i] = file[i] == '"' || file[i] == '\\' || file[i] < ' ' ? '_' : file[i];
  }
  source_file[n] = '\0';
  source_line = line;
}

/* Nodes of one file share its name. */
static const char *file_of_source(ttc_graph *g) {
  if (source_file[0] == '\0') {
    return NULL;
  }
  if (g->file == NULL || strcmp(g->file, source_file) != 0) {
    g->file = ttc__arena_strdup(g->arena, source_file);
  }
  return g->file;
}

/* Are the tensors of the call values of this graph? */
static bool known_values(const ttc_graph *g, const ttc_call *call) {
  for (uint32_t i = 0; i < call->narg; i++) {
    const ttc_arg *a = &call->args[i];
    for (uint32_t k = 0; (a->kind == TTC_ARG_TENSOR || a->kind == TTC_ARG_TENSORS) && k < a->n; k++) {
      const ttc_tensor *t = &a->tensor[k];
      if (!ttc__absent(t) && (t->value < 0 || t->value >= g->nvalue || t->ndim > TTC_MAX_NDIM)) {
        return false;
      }
    }
  }
  return true;
}

ttc_status ttc_graph_node(ttc_graph *g, const ttc_call *call, uint32_t nout, const ttc_spec *specs, int32_t *out_ids,
                          ttc_error *err) {
  const ttc_op_row *row = ttc__op_row(call->op);
  if (row == NULL || call->ninto != 0) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, row == NULL ? "there is no op %u" : "op %u: nodes of a graph are functional",
                    call->op);
  }
  if (!known_values(g, call)) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s: an argument is no value of this graph", row->name);
  }
  for (uint32_t i = 0; i < call->narg && i < 64; i++) {
    const ttc_arg *a = &call->args[i];
    bool open = (a->kind == TTC_ARG_SCALAR || a->kind == TTC_ARG_SCALARS) && a->n > 0 && a->scalar[0].wrapped == 2;
    if (open && ((row->static_args >> i) & 1) != 0) {
      return TTC_FAIL(err, TTC_UNIMPLEMENTED, "%s needs argument %u when it is compiled, which this graph gets at run time",
                      row->name, i);
    }
  }
  bool random = (row->flags & TTC_OP_RNG) != 0;
  if (random && ttc__rng_check(row, call, err) != TTC_OK) {
    return err->code = TTC_UNIMPLEMENTED; /* the call itself will tell */
  }
  node *n = ttc__arena_alloc(g->arena, sizeof *n);
  if (n == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "the graph is larger than %zu bytes", GRAPH_MAX_NBYTE);
  }
  n->call = *call;
  n->call.args = copy_args(g, call, random);
  n->nout = nout;
  n->outs = copy(g, specs, nout * sizeof *specs);
  if (g->failed) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "%s: the graph is larger than %zu bytes, or memory ran out", row->name,
                    GRAPH_MAX_NBYTE);
  }
  if (random) {
    n->call.narg++;
    g->nrandom += ttc__rng_count(row, call, nout, specs);
  }
  n->first_value = g->nvalue;
  n->file = file_of_source(g);
  n->line = source_line;
  for (uint32_t k = 0; k < nout; k++) {
    out_ids[k] = g->nvalue++;
  }
  *g->last = n;
  g->last = &n->next;
  return TTC_OK;
}

uint64_t ttc_graph_random(const ttc_graph *g) {
  return g->nrandom;
}

ttc_status ttc_graph_finish(ttc_graph *g, uint32_t nout, const int32_t *out_ids, uint32_t *op, ttc_error *err) {
  for (uint32_t k = 0; k < nout; k++) {
    if (out_ids[k] < 0 || out_ids[k] >= g->nvalue) {
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "graph %s: result %u is no value of it", g->row.name, k);
    }
  }
  g->outs = copy(g, out_ids, nout * sizeof *out_ids);
  g->nout = nout;
  uint32_t id = g->failed ? UINT32_MAX : ttc__op_register(&g->row, g);
  if (id == UINT32_MAX) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "graph %s: out of memory", g->row.name);
  }
  *op = id;
  return TTC_OK;
}
