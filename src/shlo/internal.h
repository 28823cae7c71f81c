/* What the builder's files share: the value table, printing and error notes. Seen by src/shlo alone.
 *
 * Every operation goes the same way: shlo__ready (operands usable?), checks with SHLO_FAIL, result type, shlo__op (prints it). */
#ifndef TTC_SHLO_INTERNAL_H
#define TTC_SHLO_INTERNAL_H

#include "base/str.h"
#include "shlo/shlo.h"

#define SHLO__MAX_NDIM (3 * TTC_MAX_NDIM)
#define SHLO__MAX_DEPTH 16    /* nested regions */
#define SHLO__MAX_OPERAND 256 /* operands of one variadic operation with a region */

typedef struct shlo__value {
  shlo_type type;
  int32_t name; /* %name or, when sub >= 0, %name#sub */
  int32_t sub;
  int32_t region; /* serial number of the region that made it; 0 is the function */
  int32_t swaps;  /* 1 + the value that this is with its last two axes exchanged; 0: none */
} shlo__value;

typedef struct shlo__region {
  int32_t serial;
  bool captures; /* may use values of the regions around it (while); others stand alone */
} shlo__region;

struct shlo_builder {
  char name[64];
  bool for_tpu, failed, locations;
  const char *op, *file; /* what is being lowered and where it comes from, or NULL; borrowed */
  int line;
  shlo_precision precision;
  ttc_error err;
  ttc__str body, attrs; /* attrs: of the operation being put together */
  shlo__value *values;
  int32_t nvalue, value_cap, nname;
  int32_t nparam, param_cap;
  int32_t *alias; /* [nparam] output or -1 */
  int32_t nresult, result_cap;
  ttc_val *results;
  shlo__region regions[SHLO__MAX_DEPTH];
  int nregion;
  int32_t next_region;
};

/* Note the first cause; poison. `op` is the builder function's name. */
ttc_val shlo__fail(shlo *b, const char *file, int line, ttc_status code, const char *op, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
#define SHLO_FAIL(b, op, ...) shlo__fail((b), __FILE__, __LINE__, TTC_INVALID_ARGUMENT, (op), __VA_ARGS__)
/* "f32[2,3]", alive until the end of the statement that asks. */
typedef struct shlo__name {
  char text[160];
} shlo__name;
shlo__name shlo__describe(const shlo_type *t);
#define SHLO_NAME(b, v) (shlo__describe(shlo_typeof((b), (v))).text)

/* No failure so far, and every operand is a value visible here? Notes it if not. */
bool shlo__ready(shlo *b, const char *op, int n, const ttc_val *xs);
bool shlo__same_type(const shlo_type *x, const shlo_type *y);
bool shlo__same_dims(const shlo_type *x, const shlo_type *y);
int64_t shlo__nelem(const shlo_type *t);
shlo_type shlo__type(ttc_dtype d, int ndim, const int64_t *dims);
/* Axes in range and distinct? Marks them in seen[SHLO__MAX_NDIM] (cleared first). */
bool shlo__axes(shlo *b, const char *op, const char *what, int ndim, int n, const int *axes, bool *seen);
/* A zero of this type: the result of an operation that has nothing to compute. */
ttc_val shlo__zeros(shlo *b, const shlo_type *t);

/* ---- attributes of the next operation: "name = ..." joined by commas */
void shlo__attr(shlo *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void shlo__attr_i64s(shlo *b, const char *name, int n, const int64_t *v); /* array<i64: ..> */
void shlo__attr_axes(shlo *b, const char *name, int n, const int *v);
void shlo__attr_bools(shlo *b, const char *name, int n, const bool *v); /* array<i1: ..> */
/* padding = dense<[[lo, hi], ..]> : tensor<nx2xi64> */
void shlo__attr_padding(shlo *b, int n, const int64_t *lo, const int64_t *hi);
/* "[1, 2]" to the attribute text, for the dimension-number attributes. */
void shlo__attr_list(shlo *b, int n, const int *v);

/* ---- printing */
/* %r = "stablehlo.op"(operands) <{attrs}> : (types) -> type. `op` has its dialect. Poison when out of memory. */
ttc_val shlo__op(shlo *b, const char *op, int n, const ttc_val *xs, const shlo_type *result);
/* %r = op operands : type, where all operands and the result have one type. */
ttc_val shlo__op_same(shlo *b, const char *op, int n, const ttc_val *xs);
/* %r = stablehlo.constant dense<text> : type */
ttc_val shlo__constant(shlo *b, const char *text, const shlo_type *t);
/* The same with regions: begin (returns the operation's %name), the regions, end (fills nresult results). */
int32_t shlo__op_begin(shlo *b, const char *op, int n, const ttc_val *xs, int nresult);
void shlo__op_end(shlo *b, int32_t name, int n, const ttc_val *xs, int nresult, const shlo_type *types, ttc_val *results);
/* A region whose block has arguments of these types. `captures`: it may use values from around it. */
bool shlo__region_begin(shlo *b, bool captures, int n, const shlo_type *types, ttc_val *args);
void shlo__region_end(shlo *b, int n, const ttc_val *results);
/* A region of two scalars x, y -> combine(x, y). */
void shlo__combine_region(shlo *b, ttc_dtype d, shlo_op2 op);
/* Run a caller's body in a region and check that it gave nwant results of types `want`. */
void shlo__body_region(shlo *b, const char *op, bool captures, int narg, const shlo_type *args, int nwant, const shlo_type *want,
                       shlo_body body, void *ctx);

#endif
