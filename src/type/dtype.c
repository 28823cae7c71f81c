#include "type/dtype.h"

#include <string.h>

typedef struct row {
  const char *name, *mlir;
  uint8_t nbyte;
  ttc__class cls;
} row;

static const row rows[TTC_NDTYPE] = {[TTC_DTYPE_INVALID] = {"invalid", "invalid", 0, TTC__CLASS_BOOL},
#define ROW(id, name, mlir, nbyte, cls, pjrt) [id] = {name, mlir, nbyte, cls},
                                     TTC__DTYPES(ROW)
#undef ROW
};

static const row *find(ttc_dtype d) {
  return &rows[(unsigned)d < TTC_NDTYPE ? d : TTC_DTYPE_INVALID];
}

const char *ttc_dtype_name(ttc_dtype d) {
  return find(d)->name;
}
size_t ttc_dtype_nbyte(ttc_dtype d) {
  return find(d)->nbyte;
}
const char *ttc__dtype_mlir(ttc_dtype d) {
  return find(d)->mlir;
}
ttc__class ttc__dtype_class(ttc_dtype d) {
  return find(d)->cls;
}

ttc_dtype ttc__dtype_op(ttc_dtype d) {
  return ttc__is_float(d) && d != TTC_F64 ? TTC_F32 : d;
}

ttc_dtype ttc__dtype_real(ttc_dtype d) {
  return d == TTC_C64 ? TTC_F32 : d == TTC_C128 ? TTC_F64 : d;
}

ttc_dtype ttc__dtype_complex(ttc_dtype d) {
  if (d == TTC_DTYPE_INVALID || d == TTC_C128) {
    return d;
  }
  return d == TTC_F64 ? TTC_C128 : TTC_C64;
}

/* ------------------------------------------------------------------------------------------------------ promotion */

/* Types outside PyTorch's lattice: they promote to themselves only. */
static bool is_f8(ttc_dtype d) {
  return d >= TTC_F8E4M3FN && d <= TTC_F8E8M0FNU;
}
/* A float to PyTorch's promotion: the packed 4-bit type too, whose class here is that of the byte it travels as. */
static bool is_floating(ttc_dtype d) {
  return ttc__is_float(d) || d == TTC_F4E2M1FNX2;
}
static bool is_wide_unsigned(ttc_dtype d) {
  return d == TTC_U16 || d == TTC_U32 || d == TTC_U64;
}

static ttc_dtype promote_integral(ttc_dtype a, ttc_dtype b) {
  if (a == TTC_BOOL || b == TTC_BOOL) {
    return a == TTC_BOOL ? b : a;
  }
  if (a == TTC_U8 || b == TTC_U8) { /* the narrowest signed type that holds both */
    ttc_dtype other = a == TTC_U8 ? b : a;
    return other == TTC_S8 ? TTC_S16 : other;
  }
  return a > b ? a : b;
}

static ttc_dtype promote_float(ttc_dtype a, ttc_dtype b) {
  if (!ttc__is_float(a) || !ttc__is_float(b)) {
    return ttc__is_float(a) ? a : b;
  }
  return a != b && a <= TTC_BF16 && b <= TTC_BF16 ? TTC_F32 : a > b ? a : b; /* f16 with bf16 meet at f32 */
}

ttc_dtype ttc__promote(ttc_dtype a, ttc_dtype b) {
  if (a == b || a == TTC_DTYPE_INVALID || b == TTC_DTYPE_INVALID) {
    return a == b ? a : TTC_DTYPE_INVALID;
  }
  if (is_f8(a) || is_f8(b)) {
    return TTC_DTYPE_INVALID;
  }
  if (is_wide_unsigned(a) || is_wide_unsigned(b)) { /* only with a float */
    ttc_dtype other = is_wide_unsigned(a) ? b : a;
    return is_floating(other) ? other : TTC_DTYPE_INVALID;
  }
  if (a == TTC_F4E2M1FNX2 || b == TTC_F4E2M1FNX2) {
    return TTC_DTYPE_INVALID;
  }
  if (ttc__is_complex(a) || ttc__is_complex(b)) {
    bool wide = ttc__dtype_real(a) == TTC_F64 || ttc__dtype_real(b) == TTC_F64;
    return wide ? TTC_C128 : TTC_C64;
  }
  return ttc__is_float(a) || ttc__is_float(b) ? promote_float(a, b) : promote_integral(a, b);
}

/* In a ttc__promotion: two tensors of one rank whose types PyTorch refuses to promote. */
#define REFUSED TTC_NDTYPE

static ttc_dtype join(ttc_dtype a, ttc_dtype b) {
  if (a == REFUSED || b == REFUSED) {
    return REFUSED;
  }
  if (a == TTC_DTYPE_INVALID || b == TTC_DTYPE_INVALID) {
    return a == TTC_DTYPE_INVALID ? b : a;
  }
  ttc_dtype d = ttc__promote(a, b);
  return d == TTC_DTYPE_INVALID ? REFUSED : d;
}

void ttc__promotion_tensor(ttc__promotion *p, ttc_dtype d, int ndim) {
  if (ndim > 0) {
    p->dim = join(p->dim, d);
  } else {
    p->zero = join(p->zero, d);
  }
}

/* Python's numbers are kept as the widest type of their kind; ttc__promotion_result narrows them to the default. */
void ttc__promotion_scalar(ttc__promotion *p, const ttc_scalar *s) {
  static const ttc_dtype widest[] = {
      [TTC_SCALAR_BOOL] = TTC_BOOL, [TTC_SCALAR_INT] = TTC_S64, [TTC_SCALAR_FLOAT] = TTC_F64, [TTC_SCALAR_COMPLEX] = TTC_C128};
  if (s->wrapped == 0 && s->dtype != TTC_DTYPE_INVALID) {
    p->zero = join(p->zero, (ttc_dtype)s->dtype);
  } else {
    p->wrapped = join(p->wrapped, widest[s->kind <= TTC_SCALAR_COMPLEX ? s->kind : TTC_SCALAR_COMPLEX]);
  }
}

/* `high` decides the width; `low` matters only where it is of a higher kind (bool < integer < float < complex). */
static ttc_dtype combine(ttc_dtype high, ttc_dtype low) {
  if (high == REFUSED || low == REFUSED) {
    return REFUSED;
  }
  if (low == TTC_DTYPE_INVALID || ttc__is_complex(high)) {
    return high;
  }
  if (is_floating(high)) {
    if (!ttc__is_complex(low)) {
      return high;
    }
    return is_f8(high) || high == TTC_F4E2M1FNX2 ? REFUSED : ttc__dtype_complex(high);
  }
  if (is_wide_unsigned(high) && ttc__is_complex(low)) { /* as tensors of one rank these are refused */
    return low;
  }
  if (high == TTC_DTYPE_INVALID || high == TTC_BOOL || is_floating(low) || ttc__is_complex(low)) {
    return join(high, low);
  }
  return high;
}

ttc_dtype ttc__promotion_result(const ttc__promotion *p, ttc_dtype default_float) {
  ttc_dtype wrapped = p->wrapped;
  if (wrapped == TTC_F64) {
    wrapped = default_float;
  } else if (wrapped == TTC_C128) {
    wrapped = ttc__dtype_complex(default_float);
  }
  ttc_dtype d = combine(p->dim, combine(p->zero, wrapped));
  return d == REFUSED ? TTC_DTYPE_INVALID : d;
}

/* ------------------------------------------------------------------------------------------------ scalar encoding */

/* A small float: 1 sign bit, some exponent bits, `nmant` mantissa bits. Codes below are without the sign bit. */
typedef struct small_float {
  int nbit, nmant, bias;
  uint32_t largest;  /* the largest finite code */
  uint32_t overflow; /* what a finite value beyond it, or an infinity, becomes */
  uint32_t nan;
  bool one_zero; /* FNUZ: no -0; the code of -0 is the only NaN */
} small_float;

/* Overflow as in PyTorch: e4m3fn saturates, FNUZ gives NaN, the rest give infinity. */
static const small_float small_floats[TTC_NDTYPE] = {
    [TTC_F16] = {16, 10, 15, 0x7bff, 0x7c00, 0x7e00, false}, [TTC_BF16] = {16, 7, 127, 0x7f7f, 0x7f80, 0x7fc0, false},
    [TTC_F8E4M3FN] = {8, 3, 7, 0x7e, 0x7e, 0x7f, false},     [TTC_F8E4M3FNUZ] = {8, 3, 8, 0x7f, 0x80, 0x80, true},
    [TTC_F8E5M2] = {8, 2, 15, 0x7b, 0x7c, 0x7f, false},      [TTC_F8E5M2FNUZ] = {8, 2, 16, 0x7f, 0x80, 0x80, true},
};

static uint32_t float_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

/* Round to nearest, ties to even. */
static uint32_t encode_small(const small_float *f, float x) {
  uint32_t bits = float_bits(x), mant = bits & 0x7fffff, sign = (bits >> 31) << (f->nbit - 1);
  int e = (int)(bits >> 23 & 0xff);
  if (e == 0xff && mant != 0) {
    return f->nan;
  }
  uint32_t code = f->overflow;
  if (e != 0xff) {
    /* |x| = mant * 2^(e - 150) with the hidden bit in place; in units of the target's last place it is mant >> shift. */
    mant |= e != 0 ? 0x800000 : 0;
    e = e != 0 ? e : 1;
    int field = e - 127 + f->bias; /* exponent field of the result; below 1 it is subnormal */
    int shift = 23 - f->nmant + (field < 1 ? 1 - field : 0);
    if (shift > 25) {
      code = 0; /* below half of the smallest subnormal */
    } else {
      uint32_t kept = mant >> shift, rest = mant & ((1u << shift) - 1), half = 1u << (shift - 1);
      kept += rest > half || (rest == half && (kept & 1) != 0);
      /* The hidden bit adds one to the exponent field, as does a carry out of the mantissa. */
      code = field < 1 ? kept : kept + ((uint32_t)(field - 1) << f->nmant);
      code = code > f->largest ? f->overflow : code;
    }
  }
  if (f->one_zero && (code == 0 || code == f->nan)) {
    return code;
  }
  return sign | code;
}

/* e8m0: a power of two by its exponent, no sign. Nearest in the mantissa, a tie goes up (but the smallest stays), as in PyTorch. */
static uint32_t encode_e8m0(float x) {
  uint32_t bits = float_bits(x), e = bits >> 23 & 0xff, mant = bits & 0x7fffff;
  bool up = mant > 0x400000 || (mant == 0x400000 && e != 0);
  return e == 0xff ? 0xff : e + up;
}

/* Toward zero, then the low bits. NaN and what does not fit become the lowest int32 (int32) or int64 (the rest), as on x86-64. */
static uint64_t truncate(double x, ttc_dtype d) {
  double limit = d == TTC_S32 ? 0x1p31 : 0x1p63;
  if (x > -limit && x < limit) {
    return (uint64_t)(int64_t)x;
  }
  if (d == TTC_U64 && x > 0 && x < 0x1p64) {
    return (uint64_t)x;
  }
  return d == TTC_S32 ? (uint64_t)1 << 31 : (uint64_t)1 << 63;
}

static uint64_t encode_integral(const ttc_scalar *s, ttc_dtype d) {
  bool exact = s->kind == TTC_SCALAR_BOOL || s->kind == TTC_SCALAR_INT;
  if (d == TTC_BOOL) {
    return exact ? s->i != 0 : s->re != 0 || (s->kind == TTC_SCALAR_COMPLEX && s->im != 0);
  }
  if (exact) {
    return s->kind == TTC_SCALAR_BOOL ? s->i != 0 : (uint64_t)s->i;
  }
  return truncate(s->re, d);
}

void ttc__scalar_encode(const ttc_scalar *s, ttc_dtype d, unsigned char out[16]) {
  memset(out, 0, 16);
  if (ttc__is_integral(d)) {
    uint64_t u = encode_integral(s, d);
    memcpy(out, &u, ttc_dtype_nbyte(d)); /* little endian: the low bytes come first */
    return;
  }
  bool exact = s->kind == TTC_SCALAR_BOOL || s->kind == TTC_SCALAR_INT;
  int64_t i = s->kind == TTC_SCALAR_BOOL ? s->i != 0 : s->i;
  double wide[2] = {exact ? (double)i : s->re, s->kind == TTC_SCALAR_COMPLEX ? s->im : 0};
  /* An integer is rounded once on its way to float, not by way of double. */
  float single[2] = {exact ? (float)i : (float)wide[0], (float)wide[1]};
  if (d == TTC_F64 || d == TTC_C128) {
    memcpy(out, wide, ttc_dtype_nbyte(d));
  } else if (d == TTC_F32 || d == TTC_C64) {
    memcpy(out, single, ttc_dtype_nbyte(d));
  } else if (d != TTC_DTYPE_INVALID) { /* 16- and 8-bit floats go by way of float, as in PyTorch */
    uint32_t u = d == TTC_F8E8M0FNU ? encode_e8m0(single[0]) : encode_small(&small_floats[d], single[0]);
    memcpy(out, &u, ttc_dtype_nbyte(d));
  }
}
