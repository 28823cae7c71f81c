/* The dtype table: one X-macro; everything known of an element type is here. */
#ifndef TTC_TYPE_DTYPE_H
#define TTC_TYPE_DTYPE_H

#include "ttc.h"

typedef enum ttc__class { TTC__CLASS_BOOL, TTC__CLASS_UINT, TTC__CLASS_SINT, TTC__CLASS_FLOAT, TTC__CLASS_COMPLEX } ttc__class;

/*        enum                 name            StableHLO       host bytes  class             PJRT enum name (see pjrt/) */
#define TTC__DTYPES(X)                                                           \
  X(TTC_BOOL, "bool", "i1", 1, TTC__CLASS_BOOL, PRED)                            \
  X(TTC_U8, "u8", "ui8", 1, TTC__CLASS_UINT, U8)                                 \
  X(TTC_U16, "u16", "ui16", 2, TTC__CLASS_UINT, U16)                             \
  X(TTC_U32, "u32", "ui32", 4, TTC__CLASS_UINT, U32)                             \
  X(TTC_U64, "u64", "ui64", 8, TTC__CLASS_UINT, U64)                             \
  X(TTC_S8, "s8", "i8", 1, TTC__CLASS_SINT, S8)                                  \
  X(TTC_S16, "s16", "i16", 2, TTC__CLASS_SINT, S16)                              \
  X(TTC_S32, "s32", "i32", 4, TTC__CLASS_SINT, S32)                              \
  X(TTC_S64, "s64", "i64", 8, TTC__CLASS_SINT, S64)                              \
  X(TTC_F16, "f16", "f16", 2, TTC__CLASS_FLOAT, F16)                             \
  X(TTC_BF16, "bf16", "bf16", 2, TTC__CLASS_FLOAT, BF16)                         \
  X(TTC_F32, "f32", "f32", 4, TTC__CLASS_FLOAT, F32)                             \
  X(TTC_F64, "f64", "f64", 8, TTC__CLASS_FLOAT, F64)                             \
  X(TTC_F8E4M3FN, "f8e4m3fn", "f8E4M3FN", 1, TTC__CLASS_FLOAT, F8E4M3FN)         \
  X(TTC_F8E4M3FNUZ, "f8e4m3fnuz", "f8E4M3FNUZ", 1, TTC__CLASS_FLOAT, F8E4M3FNUZ) \
  X(TTC_F8E5M2, "f8e5m2", "f8E5M2", 1, TTC__CLASS_FLOAT, F8E5M2)                 \
  X(TTC_F8E5M2FNUZ, "f8e5m2fnuz", "f8E5M2FNUZ", 1, TTC__CLASS_FLOAT, F8E5M2FNUZ) \
  X(TTC_F8E8M0FNU, "f8e8m0fnu", "f8E8M0FNU", 1, TTC__CLASS_FLOAT, F8E8M0FNU)     \
  X(TTC_F4E2M1FNX2, "f4e2m1fnx2", "ui8", 1, TTC__CLASS_UINT, U8)                 \
  X(TTC_C64, "c64", "complex<f32>", 8, TTC__CLASS_COMPLEX, C64)                  \
  X(TTC_C128, "c128", "complex<f64>", 16, TTC__CLASS_COMPLEX, C128)

/* Two packed 4-bit floats travel as one byte: programs unpack them (bitcast to f4E2M1FN) where they are used. */

const char *ttc__dtype_mlir(ttc_dtype d);
ttc__class ttc__dtype_class(ttc_dtype d);
static inline bool ttc__is_float(ttc_dtype d) {
  return ttc__dtype_class(d) == TTC__CLASS_FLOAT;
}
static inline bool ttc__is_complex(ttc_dtype d) {
  return ttc__dtype_class(d) == TTC__CLASS_COMPLEX;
}
static inline bool ttc__is_inexact(ttc_dtype d) {
  return ttc__is_float(d) || ttc__is_complex(d);
}
static inline bool ttc__is_unsigned(ttc_dtype d) {
  return ttc__dtype_class(d) == TTC__CLASS_UINT;
}
/* bool and integers */
static inline bool ttc__is_integral(ttc_dtype d) {
  return d != TTC_DTYPE_INVALID && !ttc__is_inexact(d);
}
/* The type PyTorch's CPU kernels compute in: f32 for 16- and 8-bit floats, else itself. */
ttc_dtype ttc__dtype_op(ttc_dtype d);
/* c64 -> f32, c128 -> f64, else itself; and back (f32 -> c64, f64 -> c128, f16/bf16 -> c64). */
ttc_dtype ttc__dtype_real(ttc_dtype d);
ttc_dtype ttc__dtype_complex(ttc_dtype d);

/* PyTorch's promoteTypes(a, b). TTC_DTYPE_INVALID where PyTorch refuses. */
ttc_dtype ttc__promote(ttc_dtype a, ttc_dtype b);

/* torch.result_type: dimensioned tensors beat 0-d tensors beat Python numbers, category by category. Start from zero. */
typedef struct ttc__promotion {
  ttc_dtype dim, zero, wrapped;
} ttc__promotion;
void ttc__promotion_tensor(ttc__promotion *p, ttc_dtype d, int ndim);
void ttc__promotion_scalar(ttc__promotion *p, const ttc_scalar *s);
/* default_float is what a wrapped float becomes next to integers. */
ttc_dtype ttc__promotion_result(const ttc__promotion *p, ttc_dtype default_float);

/* Write scalar s as one element of dtype d to out (16 bytes); the bytes used are ttc_dtype_nbyte(d). */
void ttc__scalar_encode(const ttc_scalar *s, ttc_dtype d, unsigned char out[16]);

#endif
