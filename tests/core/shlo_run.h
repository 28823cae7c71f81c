/* Runs the StableHLO builder's programs on a real XLA:CPU plugin. A test begins a program, takes its inputs, says what its results
 * must be, and runs it. */
#ifndef TTC_TESTS_SHLO_RUN_H
#define TTC_TESTS_SHLO_RUN_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "real_plugin.h"
#include "shlo/shlo.h"

static pjrt_client *client;
static ttc_error err;

enum { MAX_ARG = 8, MAX_OUT = 48 };

/* A program under test: its arguments' buffers, and what each result must be. */
typedef struct prog {
  const char *name;
  shlo *b;
  int narg, nout;
  pjrt_buffer *args[MAX_ARG];
  int64_t count[MAX_OUT];
  const double *want[MAX_OUT];
  double tol[MAX_OUT];
  const char *what[MAX_OUT];
} prog;

#define DIMS(...)                                                        \
  (int)(sizeof((const int64_t[]){__VA_ARGS__}) / 8), (const int64_t[]) { \
    __VA_ARGS__                                                          \
  }
#define SCALAR 0, NULL
#define AXES(...)                                                          \
  (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)), (const int[]) { \
    __VA_ARGS__                                                            \
  }
#define I64(...) ((const int64_t[]){__VA_ARGS__})
#define INT(...) ((const int[]){__VA_ARGS__})
#define WANT(...)                                                          \
  (int64_t)(sizeof((const double[]){__VA_ARGS__}) / 8), (const double[]) { \
    __VA_ARGS__                                                            \
  }
#define NONE 0, (const double[]){0}

static prog begin(const char *name) {
  prog p = {.name = name, .b = shlo_new(name)};
  return p;
}

static ttc_val in(prog *p, ttc_dtype d, int ndim, const int64_t *dims, const void *data) {
  if (pjrt_buffer_from_host(client, 0, d, ndim, dims, data, &p->args[p->narg++], &err) != TTC_OK) {
    fprintf(stderr, "%s: %s\n", p->name, err.message);
    CHECK(!"from_host");
  }
  return shlo_param(p->b, d, ndim, dims);
}

#define IN_F32(p, dims, ...) in((p), TTC_F32, dims, (const float[]){__VA_ARGS__})
#define IN_S64(p, dims, ...) in((p), TTC_S64, dims, (const int64_t[]){__VA_ARGS__})
#define IN_S32(p, dims, ...) in((p), TTC_S32, dims, (const int32_t[]){__VA_ARGS__})
#define IN_U8(p, dims, ...) in((p), TTC_U8, dims, (const uint8_t[]){__VA_ARGS__})
#define IN_S8(p, dims, ...) in((p), TTC_S8, dims, (const int8_t[]){__VA_ARGS__})
#define IN_BOOL(p, dims, ...) in((p), TTC_BOOL, dims, (const bool[]){__VA_ARGS__})
#define IN_C64(p, dims, ...) in((p), TTC_C64, dims, (const float[]){__VA_ARGS__})

/* The result, as float64, must be `want`. */
static void out(prog *p, const char *what, ttc_val v, double tol, int64_t count, const double *want) {
  v = shlo_convert(p->b, v, TTC_F64);
  if (shlo_failed(p->b)) {
    return;
  }
  if (shlo_nelem(p->b, v) != count) {
    fprintf(stderr, "%s: %s has %lld elements\n", p->name, what, (long long)shlo_nelem(p->b, v));
    CHECK(!"number of elements");
    return;
  }
  shlo_result(p->b, v);
  p->what[p->nout] = what;
  p->count[p->nout] = count;
  p->want[p->nout] = want;
  p->tol[p->nout++] = tol;
}

static bool close_to(double got, double want, double tol) {
  if (isnan(want) || isinf(want) || isnan(got) || isinf(got)) {
    return (isnan(want) && isnan(got)) || got == want;
  }
  return fabs(got - want) <= tol * (1 + fabs(want)) && (tol != 0 || signbit(got) == signbit(want));
}

static void compare(prog *p, pjrt_buffer **outs) {
  double host[512];
  for (int k = 0; k < p->nout; k++) {
    if (pjrt_buffer_to_host(client, outs[k], 0, (size_t)p->count[k] * 8, host, &err) != TTC_OK) {
      fprintf(stderr, "%s: %s: %s\n", p->name, p->what[k], err.message);
      CHECK(!"to_host");
      continue;
    }
    bool ok = true;
    for (int64_t i = 0; i < p->count[k]; i++) {
      if (!close_to(host[i], p->want[k][i], p->tol[k])) {
        ok = false;
        fprintf(stderr, "%s: %s: [%lld] is %.9g, expected %.9g\n", p->name, p->what[k], (long long)i, host[i], p->want[k][i]);
      }
    }
    CHECK(ok);
  }
}

static void run(prog *p) {
  char *text = NULL;
  pjrt_exe *e = NULL;
  pjrt_buffer *outs[MAX_OUT] = {0};
  if (shlo_finish(p->b, &text, &err) != TTC_OK) {
    fprintf(stderr, "%s: %s\n", p->name, err.message);
    CHECK(!"finish");
  } else if (pjrt_compile(client, 0, text, strlen(text), NULL, &e, &err) != TTC_OK) {
    fprintf(stderr, "%s: %s\n%s", p->name, err.message, text);
    CHECK(!"compile");
  } else if (pjrt_execute(e, p->args, (size_t)p->narg, NULL, 0, outs, &err) != TTC_OK) {
    fprintf(stderr, "%s: %s\n", p->name, err.message);
    CHECK(!"execute");
  } else {
    compare(p, outs);
  }
  for (int k = 0; k < p->nout; k++) {
    pjrt_buffer_free(client, outs[k]);
  }
  for (int k = 0; k < p->narg; k++) {
    pjrt_buffer_free(client, p->args[k]);
  }
  pjrt_exe_free(e);
  free(text);
  shlo_free(p->b);
}

/* Opens the plugin. False: *code is what main returns (0 for a skip). */
static bool open_client(int *code) {
  char path[1024];
  pjrt_plugin *plugin = NULL;
  *code = 0;
  if (!find_plugin(path, sizeof path)) {
    return false;
  }
  if (pjrt_plugin_load(path, &plugin, &err) != TTC_OK || pjrt_client_new(plugin, 1, &client, &err) != TTC_OK) {
    fprintf(stderr, "%s: %s\n", path, err.message);
    *code = 1;
    return false;
  }
  return true;
}

#endif
