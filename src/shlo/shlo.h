/* StableHLO builder: typed values in, module text out. Result types are worked out and checked here, once.
 *
 * Errors are sticky: an operation on bad operands returns the poison value {-1} and notes the first cause; poison in, poison out.
 * Rules therefore never check; whoever asks for the text (shlo_finish) gets the error. One builder is used by one thread.
 *
 * Every value has a static shape. `dims` arrays are borrowed for the call. A scalar is a value of ndim 0. */
#ifndef TTC_SHLO_SHLO_H
#define TTC_SHLO_SHLO_H

#include "base/error.h"
#include "ttc.h"
#include "type/dtype.h"

typedef struct shlo_builder shlo;
typedef struct ttc_val {
  int32_t id; /* -1: poison */
} ttc_val;
#define TTC_POISON ((ttc_val){-1})

typedef struct shlo_type {
  ttc_dtype dtype;
  int ndim;
  int64_t dims[3 * TTC_MAX_NDIM];
} shlo_type;

/* ---- life */
shlo *shlo_new(const char *module_name); /* NULL when out of memory */
void shlo_free(shlo *b);
/* Which device family the module is for: rules choose between forms by this alone (facts: forms that suit XLA:CPU are not those
 * that suit a TPU). */
void shlo_set_for_tpu(shlo *b, bool for_tpu);
bool shlo_for_tpu(const shlo *b);
/* Give each operation the location that shlo_source says. */
void shlo_set_locations(shlo *b, bool on);
/* What the next operations belong to: an op, and the line of Python that asked for it (file NULL: unknown; op NULL: nothing).
 * Errors tell it. Both borrowed until the next call. */
void shlo_source(shlo *b, const char *op, const char *file, int line);
/* A comment line (the op) before the next operations. */
void shlo_comment(shlo *b, const char *text);

/* Parameters may be added at any time, in regions that see what is around them too; alias_output >= 0 donates the parameter to that
 * result. */
ttc_val shlo_param(shlo *b, ttc_dtype dtype, int ndim, const int64_t *dims);
void shlo_param_alias(shlo *b, int param, int output);
/* The results; then, once, the module text (free() it). TTC_INVALID_ARGUMENT with the first noted cause if anything was poisoned.
 */
void shlo_result(shlo *b, ttc_val v);
ttc_status shlo_finish(shlo *b, char **text, ttc_error *err);
/* Note an error from a rule: "cholesky wants a square matrix". Returns poison. */
ttc_val shlo_error(shlo *b, ttc_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool shlo_failed(const shlo *b);

/* ---- types */
const shlo_type *shlo_typeof(shlo *b, ttc_val v); /* a rank-0 f32 for poison, never NULL; valid until the next operation */
ttc_dtype shlo_dtype(shlo *b, ttc_val v);
int shlo_ndim(shlo *b, ttc_val v);
int64_t shlo_dim(shlo *b, ttc_val v, int axis);
int64_t shlo_nelem(shlo *b, ttc_val v);

/* ---- constants: one value repeated over dims */
ttc_val shlo_const_f(shlo *b, ttc_dtype d, double v, int ndim, const int64_t *dims);   /* float, complex (im 0); nan and inf work */
ttc_val shlo_const_i(shlo *b, ttc_dtype d, int64_t v, int ndim, const int64_t *dims);  /* any dtype; bool: v != 0 */
ttc_val shlo_const_u(shlo *b, ttc_dtype d, uint64_t v, int ndim, const int64_t *dims); /* unsigned bit patterns beyond int64 */
ttc_val shlo_const_like(shlo *b, ttc_val x, double v);                                 /* v in x's dtype and shape */
/* The dtype's lowest and highest (for floats -inf and inf), as a scalar. */
ttc_val shlo_lowest(shlo *b, ttc_dtype d);
ttc_val shlo_highest(shlo *b, ttc_dtype d);
/* A 1-D integer table baked into the program (small: window offsets, permutations). */
ttc_val shlo_const_table(shlo *b, ttc_dtype d, int64_t n, const int64_t *values);
ttc_val shlo_iota(shlo *b, ttc_dtype d, int axis, int ndim, const int64_t *dims);

/* ---- elementwise. Unary names are StableHLO's or CHLO's mnemonics. */
typedef enum shlo_op1 {
  SHLO_ABS,
  SHLO_CBRT,
  SHLO_CEIL,
  SHLO_COS,
  SHLO_EXP,
  SHLO_EXPM1,
  SHLO_FLOOR,
  SHLO_IMAG,
  SHLO_IS_FINITE,
  SHLO_LOG,
  SHLO_LOG1P,
  SHLO_LOGISTIC,
  SHLO_CLZ,
  SHLO_NEG,
  SHLO_NOT,
  SHLO_POPCNT,
  SHLO_REAL,
  SHLO_ROUND_AFZ,
  SHLO_ROUND_EVEN,
  SHLO_RSQRT,
  SHLO_SIGN,
  SHLO_SIN,
  SHLO_SQRT,
  SHLO_TAN,
  SHLO_TANH,
  SHLO_CHLO_ACOS,
  SHLO_CHLO_ACOSH,
  SHLO_CHLO_ASIN,
  SHLO_CHLO_ASINH,
  SHLO_CHLO_ATAN,
  SHLO_CHLO_ATANH,
  SHLO_CHLO_BESSEL_I1E,
  SHLO_CHLO_CONJ,
  SHLO_CHLO_COSH,
  SHLO_CHLO_DIGAMMA,
  SHLO_CHLO_ERF,
  SHLO_CHLO_ERFC,
  SHLO_CHLO_ERF_INV,
  SHLO_CHLO_LGAMMA,
  SHLO_CHLO_SINH,
  SHLO_NOP1
} shlo_op1;
typedef enum shlo_op2 {
  SHLO_ADD,
  SHLO_AND,
  SHLO_ATAN2,
  SHLO_DIV,
  SHLO_MAX,
  SHLO_MIN,
  SHLO_MUL,
  SHLO_OR,
  SHLO_POW,
  SHLO_REM,
  SHLO_SHL,
  SHLO_SHR_A,
  SHLO_SHR_L,
  SHLO_SUB,
  SHLO_XOR,
  SHLO_CHLO_NEXT_AFTER,
  SHLO_CHLO_POLYGAMMA,
  SHLO_CHLO_ZETA,
  SHLO_NOP2
} shlo_op2;
typedef enum shlo_cmp { SHLO_EQ, SHLO_NE, SHLO_LT, SHLO_LE, SHLO_GT, SHLO_GE } shlo_cmp;

ttc_val shlo_1(shlo *b, shlo_op1 op, ttc_val x); /* REAL/IMAG of complex give the real dtype; IS_FINITE gives bool */
/* Same dtype. Shapes equal, or numpy-broadcastable: the builder broadcasts (that is how scalars meet tensors). */
ttc_val shlo_2(shlo *b, shlo_op2 op, ttc_val x, ttc_val y);
/* Ordered compare; floats by IEEE (NaN: only NE is true). `total` orders -NaN < -inf .. inf < NaN, -0 < 0. */
ttc_val shlo_compare(shlo *b, shlo_cmp cmp, ttc_val x, ttc_val y);
ttc_val shlo_compare_total(shlo *b, shlo_cmp cmp, ttc_val x, ttc_val y);
ttc_val shlo_select(shlo *b, ttc_val pred, ttc_val on_true, ttc_val on_false); /* broadcasts all three */
ttc_val shlo_clamp(shlo *b, ttc_val lo, ttc_val x, ttc_val hi);                /* lo/hi scalars or of x's shape; broadcasts */
/* Value conversion with PyTorch's meaning (float->bool is != 0, float->int truncates, complex->real drops im). No-op if equal. */
ttc_val shlo_convert(shlo *b, ttc_val x, ttc_dtype d);
/* Bits kept. Equal widths keep the shape; wider->narrower adds a minor dim, narrower->wider removes it (must equal the ratio). */
ttc_val shlo_bitcast(shlo *b, ttc_val x, ttc_dtype d);
ttc_val shlo_complex(shlo *b, ttc_val re, ttc_val im);
ttc_val shlo_is_nan(shlo *b, ttc_val x); /* bool; false for integers; either part for complex */
/* Shorthands used all over. */
static inline ttc_val shlo_add(shlo *b, ttc_val x, ttc_val y) {
  return shlo_2(b, SHLO_ADD, x, y);
}
static inline ttc_val shlo_sub(shlo *b, ttc_val x, ttc_val y) {
  return shlo_2(b, SHLO_SUB, x, y);
}
static inline ttc_val shlo_mul(shlo *b, ttc_val x, ttc_val y) {
  return shlo_2(b, SHLO_MUL, x, y);
}
static inline ttc_val shlo_div(shlo *b, ttc_val x, ttc_val y) {
  return shlo_2(b, SHLO_DIV, x, y);
}

/* ---- shape */
ttc_val shlo_reshape(shlo *b, ttc_val x, int ndim, const int64_t *dims); /* no-op if equal */
ttc_val shlo_transpose(shlo *b, ttc_val x, const int *perm);             /* no-op if identity */
/* Where v came of shlo_transpose exchanging the last two axes: what it was before. Poison: it did not. */
ttc_val shlo_swapped(const shlo *b, ttc_val v);
/* Operand axis k becomes result axis axes[k]. */
ttc_val shlo_broadcast_in_dim(shlo *b, ttc_val x, int ndim, const int64_t *dims, const int *axes);
ttc_val shlo_broadcast_to(shlo *b, ttc_val x, int ndim, const int64_t *dims); /* numpy rules, right-aligned; no-op if equal */
ttc_val shlo_unsqueeze(shlo *b, ttc_val x, int axis);
ttc_val shlo_squeeze(shlo *b, ttc_val x, int axis);
ttc_val shlo_slice(shlo *b, ttc_val x, const int64_t *start, const int64_t *limit, const int64_t *stride); /* stride NULL: 1 */
ttc_val shlo_slice_axis(shlo *b, ttc_val x, int axis, int64_t start, int64_t limit);
/* lo/hi may be negative (crop); interior NULL: 0. value is a scalar. */
ttc_val shlo_pad(shlo *b, ttc_val x, ttc_val value, const int64_t *lo, const int64_t *hi, const int64_t *interior);
ttc_val shlo_concat(shlo *b, int n, const ttc_val *xs, int axis);
ttc_val shlo_reverse(shlo *b, ttc_val x, int naxis, const int *axes);
/* starts: one integer scalar value per axis. Clamped into range as XLA does. */
ttc_val shlo_dynamic_slice(shlo *b, ttc_val x, const ttc_val *starts, const int64_t *sizes);
ttc_val shlo_dynamic_update_slice(shlo *b, ttc_val x, ttc_val update, const ttc_val *starts);
/* Along one axis, whole along the others. */
ttc_val shlo_dynamic_slice_axis(shlo *b, ttc_val x, int axis, ttc_val start, int64_t size);
ttc_val shlo_dynamic_update_axis(shlo *b, ttc_val x, ttc_val update, int axis, ttc_val start);
/* shlo_dynamic_update_slice with constant starts. */
ttc_val shlo_update_slice(shlo *b, ttc_val x, ttc_val update, const int64_t *starts);

/* ---- reductions */
typedef enum shlo_combine { SHLO_SUM, SHLO_PROD, SHLO_AMAX, SHLO_AMIN, SHLO_ALL, SHLO_ANY, SHLO_BIT_XOR } shlo_combine;
/* Axes are removed. The neutral element is the builder's. AMAX/AMIN propagate NaN. bool operand: ALL/ANY only. */
ttc_val shlo_reduce(shlo *b, shlo_combine c, ttc_val x, int naxis, const int *axes);
/* Reduce with a body of one's own: n operands of equal shape, n scalar neutral elements; `body` gets 2n scalar values (acc..,
 * new..) and writes n results. `results` may be the array xs, here and below. */
typedef void (*shlo_body)(shlo *b, void *ctx, const ttc_val *args, ttc_val *results);
void shlo_reduce_body(shlo *b, int n, const ttc_val *xs, const ttc_val *inits, int naxis, const int *axes, shlo_body body,
                      void *ctx, ttc_val *results);
/* Windows over all axes. lo/hi padding (of neutral elements), window dilation NULL: 1. */
ttc_val shlo_reduce_window(shlo *b, shlo_combine c, ttc_val x, const int64_t *window, const int64_t *stride,
                           const int64_t *dilation, const int64_t *lo, const int64_t *hi);
/* Scatter `source` to the chosen (largest, first) element of each window, adding. */
ttc_val shlo_select_and_scatter_max(shlo *b, ttc_val x, ttc_val source, const int64_t *window, const int64_t *stride,
                                    const int64_t *lo, const int64_t *hi);

/* ---- contractions */
/* Batch axes, then lhs free axes, then rhs free axes. Accumulates and returns out_dtype (f32 for bf16 operands if asked).
 * Precision comes from shlo_set_precision. */
ttc_val shlo_dot(shlo *b, ttc_val x, ttc_val y, int nbatch, const int *xb, const int *yb, int ncontract, const int *xc,
                 const int *yc, ttc_dtype out_dtype);
typedef enum shlo_precision { SHLO_PRECISION_HIGHEST, SHLO_PRECISION_HIGH, SHLO_PRECISION_DEFAULT } shlo_precision;
void shlo_set_precision(shlo *b, shlo_precision p); /* of float32 dots and convolutions; HIGHEST at the start */
typedef struct shlo_conv_spec {
  int nspatial;
  /* Axis of batch, feature and spatial axes in input, kernel (output feature, input feature) and output. */
  int in_batch, in_feature, in_spatial[3];
  int k_out, k_in, k_spatial[3];
  int out_batch, out_feature, out_spatial[3];
  int64_t stride[3], lo[3], hi[3], lhs_dilation[3], rhs_dilation[3];
  bool reverse[3]; /* window reversal */
  int64_t feature_groups, batch_groups;
} shlo_conv_spec;
ttc_val shlo_conv(shlo *b, ttc_val x, ttc_val kernel, const shlo_conv_spec *s);

/* ---- gather and scatter, in StableHLO's terms */
typedef struct shlo_gather_spec {
  int noffset, offset_dims[TTC_MAX_NDIM];  /* result axes that come from the slice */
  int ncollapsed, collapsed[TTC_MAX_NDIM]; /* operand axes of slice size 1 left out */
  int nbatch, operand_batch[TTC_MAX_NDIM], index_batch[TTC_MAX_NDIM];
  int nindex, index_map[TTC_MAX_NDIM]; /* index component k addresses operand axis index_map[k] */
  int index_vector_axis;
  int64_t slice_sizes[TTC_MAX_NDIM];
  bool sorted;
} shlo_gather_spec;
ttc_val shlo_gather(shlo *b, ttc_val x, ttc_val indices, const shlo_gather_spec *s);
typedef struct shlo_scatter_spec {
  int nwindow, update_window[TTC_MAX_NDIM];
  int ninserted, inserted[TTC_MAX_NDIM];
  int nbatch, operand_batch[TTC_MAX_NDIM], index_batch[TTC_MAX_NDIM];
  int nindex, index_map[TTC_MAX_NDIM];
  int index_vector_axis;
  bool sorted, unique;
} shlo_scatter_spec;
typedef enum shlo_scatter_kind {
  SHLO_SCATTER_SET,
  SHLO_SCATTER_ADD,
  SHLO_SCATTER_MUL,
  SHLO_SCATTER_MAX,
  SHLO_SCATTER_MIN
} shlo_scatter_kind;
ttc_val shlo_scatter(shlo *b, shlo_scatter_kind kind, ttc_val x, ttc_val indices, ttc_val updates, const shlo_scatter_spec *s);
/* x[i, ...] for a vector or array of indices along one axis: result = x.shape[:axis] + idx.shape + x.shape[axis+1:]. */
ttc_val shlo_take(shlo *b, ttc_val x, ttc_val idx, int axis);

/* ---- order */
/* Sort n operands of equal shape together along axis by operand 0, stable. Floats: NaN last ascending, first descending. */
void shlo_sort(shlo *b, int n, const ttc_val *xs, int axis, bool descending, ttc_val *results);
/* The k largest along the last axis, in descending order, and their places (s32). Floats by total order: -NaN < -inf .. inf < NaN.
 */
void shlo_top_k(shlo *b, ttc_val x, int64_t k, ttc_val *values, ttc_val *places);

/* ---- control */
/* then's results where pred (bool scalar) holds, otherwise's where not; only one of them is computed. Both take no values. */
void shlo_if(shlo *b, ttc_val pred, int n, const shlo_type *types, shlo_body then, shlo_body otherwise, void *ctx,
             ttc_val *results);
/* while (cond(state)) state = body(state). cond writes one bool scalar. */
void shlo_while(shlo *b, int n, const ttc_val *init, shlo_body cond, shlo_body body, void *ctx, ttc_val *results);

/* ---- linear algebra and transforms */
ttc_val shlo_cholesky(shlo *b, ttc_val x, bool lower);
ttc_val shlo_triangular_solve(shlo *b, ttc_val a, ttc_val rhs, bool left, bool lower, bool unit, bool transpose_a, bool conj_a);
typedef enum shlo_fft_kind { SHLO_FFT, SHLO_IFFT, SHLO_RFFT, SHLO_IRFFT } shlo_fft_kind;
ttc_val shlo_fft(shlo *b, ttc_val x, shlo_fft_kind kind, int naxis, const int64_t *lengths); /* the last naxis axes, at most 3 */

/* ---- scheduling */
/* Identity that XLA will not fuse or duplicate across. */
ttc_val shlo_barrier(shlo *b, ttc_val x);

#endif
