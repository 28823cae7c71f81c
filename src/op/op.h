/* The op table's types and what a rule may ask.
 *
 * A row names an ATen functional overload; its in-place and out= variants are found by the adapter and use the same row. A rule
 * turns one call into StableHLO through a ttc_lower. It reads arguments with op_*, and gives result k with op_ret. What the results
 * must look like (dtype, sizes) is already known (PyTorch's own inference) and asked with op_out. Reading a strided or aliased
 * argument, writing into an in-place or out= target, donation and converting the result to the target's dtype are the caller's, not
 * the rule's. */
#ifndef TTC_OP_OP_H
#define TTC_OP_OP_H

#include "shlo/shlo.h"
#include "ttc.h"
#include "type/dtype.h"
#include "type/geometry.h"

typedef struct ttc_lower ttc_lower;
typedef void (*ttc_rule)(shlo *b, ttc_lower *c);
/* For rows with TTC_OP_NO_META. */
typedef ttc_status (*ttc_infer)(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err);

typedef enum ttc__tol { TOL_EXACT, TOL_2ULP, TOL_4ULP, TOL_SUM, TOL_DOT, TOL_LOOSE, TOL_RANDOM } ttc__tol;

/* What an op does to a dimension that is longer than what is in it, so that one program serves every length up to a bound. What
 * lies past the length is arbitrary, NaN too, and must not reach what lies before it: whoever builds such a program first fills it
 * with the neutral element named here, and only where the op mixes along that dimension. The names in words are what ttc_op_info
 * says. */
/* clang-format off */
#define TTC__PADS(X)                                                                                                  \
  X(CANNOT, "")                    /* there are no such programs of this op */                                       \
  X(EACH, "each")                  /* each element of the results comes from those at its place */                   \
  X(EACH_ONE, "each_one")          /* likewise, but fill with 1: others may be a fault, or make loops long */        \
  X(FOLD_ZERO, "fold_zero")        /* reductions: over the axes of `dim`, else all; the neutral element */           \
  X(FOLD_ONE, "fold_one")                                                                                            \
  X(FOLD_LOWEST, "fold_lowest")    /* -inf, or the least integer; ties: the first place */                           \
  X(FOLD_HIGHEST, "fold_highest")                                                                                    \
  X(MEAN, "mean")                  /* a sum, over the count at run time */                                           \
  X(VAR, "var")                                                                                                      \
  X(SCAN_ZERO, "scan_zero")        /* along `dim` */                                                                 \
  X(SCAN_ONE, "scan_one")                                                                                            \
  X(SCAN_LOWEST, "scan_lowest")                                                                                      \
  X(SCAN_HIGHEST, "scan_highest")                                                                                    \
  X(SORT, "sort")                  /* fill with what comes last */                                                   \
  X(DOT, "dot")                    /* 0 along the axes summed over, in both operands */                              \
  X(SOFTMAX, "softmax")            /* -inf along `dim` */                                                            \
  X(SOFTMAX_BACK, "softmax_back")  /* 0 along `dim` in both */                                                       \
  X(NORM, "norm")                  /* over the last axes, which are full */                                          \
  X(NORM_BACK, "norm_back")        /* gradients of weights sum over the others: fill with 0 */                       \
  X(BATCH, "batch")                /* axis 0 only, whose entries do not meet */                                      \
  X(BATCH_BACK, "batch_back")      /* gradients of weights sum over axis 0: fill with 0 */                           \
  X(WHOLE, "whole")                /* along `dim`, which is full */                                                  \
  X(VIEW, "view")                  /* moves elements */                                                              \
  X(FILL, "fill")                  /* made from sizes */                                                             \
  X(TRIANGLE, "triangle")          /* each, by its place in the last two axes */                                     \
  X(JOIN, "join")                  /* one after another */                                                           \
  X(TAKE, "take")                  /* reads at indices: fill those with 0 */                                         \
  X(PUT, "put")                    /* writes at indices: what is past the length goes nowhere */                     \
  X(LOSS, "loss")                  /* of pairs: equal where filled, over the count at run time */                    \
  X(NLL, "nll")                    /* fill targets with the index that is ignored */                                 \
  X(AMONG, "among")                /* each element of the first tensor, beside all of the second, which is full */      \
  X(DRAW, "draw")                  /* each, and random numbers, counted as the places are without padding */            \
  X(HEADS, "heads")                /* nn.MultiheadAttention, written out */                                            \
  X(ATTENTION, "attention")        /* keys past the length get -inf for a score */                                   \
  X(ATTENTION_BACK, "attention_back")
/* clang-format on */
#define TTC__PAD_ENUM(name, word) PAD_##name,
typedef enum ttc__pad { TTC__PADS(TTC__PAD_ENUM) } ttc__pad;
#undef TTC__PAD_ENUM

typedef struct ttc_op_row {
  const char *name; /* "add.Tensor" */
  ttc_rule rule;
  int param; /* the rule's own: shlo_op1, shlo_combine, a flag ... */
  ttc__tol tol;
  unsigned flags;       /* TTC_OP_* of ttc.h */
  uint64_t static_args; /* bit i: numbers of argument i are part of the key (baked in) */
  ttc_infer infer;      /* NULL: the front end infers */
  const char *note;     /* for docs/OPS.md; NULL: nothing to say */
  uint64_t unit_args;   /* bit i: whether number i is exactly 0 or 1 is part of the key (op_num_is_one, op_num_is_zero) */
  ttc__pad pad;
} ttc_op_row;

/* One array a family; table.c collects them. */
/* clang-format off */
#define TTC__FAMILIES(X) \
  X(unary) X(act) X(special) X(binary) X(compare) X(cast) X(fill) X(view) X(reduce) X(scan) X(sort) X(matmul) X(conv) \
  X(pool) X(pad) X(resample) X(index) X(norm) X(softmax) X(loss) X(distance) X(attention) X(rng) X(sample) X(foreach) X(optim) \
  X(linalg) X(eigen) X(fft) X(rnn) X(misc) X(control)
/* clang-format on */
#define TTC__DECLARE(f)                      \
  extern const ttc_op_row ttc__##f##_rows[]; \
  extern const unsigned ttc__##f##_nrow;
TTC__FAMILIES(TTC__DECLARE)
#undef TTC__DECLARE
/* Ends each family's file: TTC_FAMILY(unary) after `const ttc_op_row ttc__unary_rows[] = {..};` */
#define TTC_FAMILY(f) const unsigned ttc__##f##_nrow = sizeof ttc__##f##_rows / sizeof *ttc__##f##_rows;

const ttc_op_row *ttc__op_row(uint32_t op); /* NULL if out of range (graph ops are not rows) */
const char *ttc__op_family(uint32_t op);
/* Whether a call's numbers are ones that the op takes (a standard deviation below 0 is not): asked before every call of a row with
 * TTC_OP_RNG, since numbers are in no key. */
ttc_status ttc__rng_check(const ttc_op_row *row, const ttc_call *call, ttc_error *err);
uint64_t ttc__rng_count(const ttc_op_row *row, const ttc_call *call, uint32_t nout, const ttc_spec *specs);

/* ---- what a rule may ask. `i` is the argument's place in the schema, results k. */
int op_param(const ttc_lower *c); /* the row's param */
const char *op_name(const ttc_lower *c);
unsigned op_narg(const ttc_lower *c);
bool op_given(const ttc_lower *c, int i); /* argument present and not None */

/* Tensors. op_in: the value in the tensor's logical shape and own dtype (a 0-d CPU tensor or number: a 0-d value of its dtype,
 * where a Python float is f32 or, beside f64, f64). */
ttc_val op_in(ttc_lower *c, int i);
ttc_val op_in_as(ttc_lower *c, int i, ttc_dtype d); /* converted; numbers are encoded in d on the host, losing nothing before */
bool op_is_number(const ttc_lower *c, int i);       /* a Scalar or 0-d CPU tensor rather than a device tensor */
ttc_dtype op_in_dtype(const ttc_lower *c, int i);   /* of a tensor argument */
int op_in_ndim(const ttc_lower *c, int i);
int64_t op_in_dim(const ttc_lower *c, int i, int axis); /* axis may be negative */
const int64_t *op_in_sizes(const ttc_lower *c, int i);
/* Is the argument's memory in the order of its sizes (PyTorch's is_contiguous)? The few rules that ask return what PyTorch's own
 * kernels and gradients agree on. */
bool op_in_contiguous(const ttc_lower *c, int i);
/* The argument (entry k of it, if it is a list) is filled along the axis up to a number, s32: every rule whose row says how it pads
 * gets such arguments, filled already where its kind says so. Poison: it is full. */
ttc_val op_length(ttc_lower *c, int i, int k, int axis);
/* How many places there are then along the axis, s32; poison: as many as its size. */
ttc_val op_places(ttc_lower *c, int i, int axis);
/* Which places of dims lie before such a length along the axis. */
ttc_val op_inside(shlo *b, int axis, int ndim, const int64_t *dims, ttc_val length);
/* Is result 0 open likewise along the axis? */
bool op_out_open(const ttc_lower *c, int axis);
/* Which element of result 0, as long as that is, stands in each of its places, and how many they are: s32, one axis. What stands
 * past the length is arbitrary. Poison: result 0 is not open. */
ttc_val op_out_elements(ttc_lower *c, ttc_val *count);
/* Tensor lists. */
int op_list_len(const ttc_lower *c, int i); /* of tensor, number and int lists */
bool op_list_given(const ttc_lower *c, int i, int k);
ttc_val op_list_in(ttc_lower *c, int i, int k);
ttc_val op_list_in_as(ttc_lower *c, int i, int k, ttc_dtype d);
ttc_dtype op_list_dtype(const ttc_lower *c, int i, int k);
/* Numbers as runtime values: a 0-d value of dtype d, the same program for every number. k: place in a list, 0 for one number. */
ttc_val op_num(ttc_lower *c, int i, int k, ttc_dtype d);
/* Numbers of arguments in static_args, and kinds (kinds are always static). */
double op_static_f(const ttc_lower *c, int i);
int64_t op_static_i(const ttc_lower *c, int i);
ttc_scalar_kind op_num_kind(const ttc_lower *c, int i);
ttc_scalar_kind op_list_num_kind(const ttc_lower *c, int i, int k);
/* True if the number is exactly 1 (0), so that `alpha=1` costs no multiplication. Only for arguments in the row's unit_args, whose
 * 0-or-1-ness is kept in the key; false for all others. */
bool op_num_is_one(const ttc_lower *c, int i);
bool op_num_is_zero(const ttc_lower *c, int i);
/* Static arguments. The default is returned where the argument is None. */
int64_t op_int(const ttc_lower *c, int i, int64_t dflt);
bool op_bool(const ttc_lower *c, int i);
int64_t op_ints(const ttc_lower *c, int i, int k); /* k-th of an int list; a list of one counts for every k */
ttc_dtype op_dtype_arg(const ttc_lower *c, int i, ttc_dtype dflt);
bool op_str_is(const ttc_lower *c, int i, const char *s);
/* An axis argument made non-negative against ndim (ndim 0 counts as 1). */
int op_axis(const ttc_lower *c, int i, int ndim);
/* Philox key and counter of a RNG argument, as u64 scalars. */
void op_rng(ttc_lower *c, int i, ttc_val *seed, ttc_val *offset);

/* Results. */
int op_nout(const ttc_lower *c);
/* False for a result that the caller does not want (an output_mask): op_ret ignores it, so a rule asks only to save work. */
bool op_wanted(const ttc_lower *c, int k);
ttc_dtype op_out_dtype(const ttc_lower *c, int k);
int op_out_ndim(const ttc_lower *c, int k);
const int64_t *op_out_sizes(const ttc_lower *c, int k);
/* Must have op_out's sizes, or broadcast to them; converted to op_out's dtype if it differs. */
void op_ret(ttc_lower *c, int k, ttc_val v);
/* torch.result_type over arguments first..last (tensors, lists, numbers), PyTorch's default float being f32. */
ttc_dtype op_promote(const ttc_lower *c, int first, int last);
/* ---- faults (fault.c): what is wrong with a call's data, found on the device. The first of them is kept until somebody reads a
 * result of the device or waits for it, and is an error there; results computed from bad data are then as good as any. */
typedef enum ttc__fault {
  TTC__FAULT_NONE,
  TTC__FAULT_INDEX,    /* IndexError, as indexing says it */
  TTC__FAULT_POSITION, /* the same as a RuntimeError: gather, scatter */
  TTC__FAULT_ROW,      /* embedding */
  TTC__FAULT_FLAT,     /* take, put */
  TTC__FAULT_BAG,      /* embedding_bag */
  TTC__FAULT_TARGET,   /* nll_loss */
  TTC__FAULT_MARGIN_TARGET,
  TTC__FAULT_UNPOOL,
  TTC__FAULT_SHORT_SOURCE,  /* masked_scatter; the value is the number of ones */
  TTC__FAULT_MASKED_VALUES, /* x[mask] = values */
  TTC__FAULT_DIVISION,
  TTC__FAULT_PROBABILITY, /* bernoulli */
  TTC__FAULT_WEIGHTS,     /* multinomial */
  TTC__FAULT_NO_WEIGHT,
  TTC__FAULT_UNIT_INPUT, /* binary_cross_entropy */
  TTC__FAULT_STD,        /* normal */
  TTC__FAULT_RATE,       /* poisson */
  TTC__FAULT_ASSERT      /* _assert_async */
} ttc__fault;
/* bad: bool; value: integer, or TTC_POISON for none; both 0-d. At the top of a rule, not inside a loop's body. */
void op_fault_if(ttc_lower *c, shlo *b, ttc_val bad, ttc__fault kind, ttc_val value, int64_t axis, int64_t size);
/* Every index must be in [0, size), with `wrap` in [-size, size); as given, before any are counted from the end. */
void op_check_indices(ttc_lower *c, shlo *b, ttc__fault kind, ttc_val idx, int64_t axis, int64_t size, bool wrap);
/* The same, with `wrap`, for an axis whose length is a number (op_length). */
void op_check_open(ttc_lower *c, shlo *b, ttc__fault kind, ttc_val idx, int64_t axis, ttc_val length);
/* Refuse this signature: "angle of complex128 is not lowered". The front end falls through. */
void op_refuse(ttc_lower *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
