/* Expected promotions and encodings are CPU PyTorch's: torch.promote_types, torch.result_type, torch.tensor(x).to(dtype). */
#include <math.h>
#include <stdint.h>

#include "check.h"
#include "type/dtype.h"

static ttc_dtype by_name(const char *name) {
  for (int d = TTC_DTYPE_INVALID; d < TTC_NDTYPE; d++) {
    if (strcmp(name, ttc_dtype_name((ttc_dtype)d)) == 0) {
      return (ttc_dtype)d;
    }
  }
  return TTC_NDTYPE;
}

static void test_table(void) {
  static const struct {
    const char *name, *mlir;
    int nbyte;
    ttc_dtype op;
  } want[] = {{"bool", "i1", 1, TTC_BOOL},
              {"u8", "ui8", 1, TTC_U8},
              {"s64", "i64", 8, TTC_S64},
              {"f16", "f16", 2, TTC_F32},
              {"bf16", "bf16", 2, TTC_F32},
              {"f32", "f32", 4, TTC_F32},
              {"f64", "f64", 8, TTC_F64},
              {"c64", "complex<f32>", 8, TTC_C64},
              {"c128", "complex<f64>", 16, TTC_C128},
              {"f8e5m2", "f8E5M2", 1, TTC_F32}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    ttc_dtype d = by_name(want[i].name);
    CHECK(d != TTC_NDTYPE);
    CHECK_STR(ttc__dtype_mlir(d), want[i].mlir);
    CHECK_EQ(ttc_dtype_nbyte(d), want[i].nbyte);
    CHECK_EQ(ttc__dtype_op(d), want[i].op);
  }
  for (int d = 1; d < TTC_NDTYPE; d++) {
    CHECK(ttc_dtype_nbyte((ttc_dtype)d) > 0 && by_name(ttc_dtype_name((ttc_dtype)d)) == (ttc_dtype)d);
  }
  CHECK_EQ(ttc_dtype_nbyte(TTC_DTYPE_INVALID), 0);
  CHECK_EQ(ttc_dtype_nbyte((ttc_dtype)99), 0); /* a front end's mistake is no crash */
  CHECK_STR(ttc_dtype_name((ttc_dtype)-1), "invalid");
  CHECK(ttc__is_integral(TTC_BOOL) && !ttc__is_integral(TTC_DTYPE_INVALID) && !ttc__is_integral(TTC_F8E8M0FNU));
  CHECK(ttc__dtype_real(TTC_C64) == TTC_F32 && ttc__dtype_real(TTC_C128) == TTC_F64 && ttc__dtype_real(TTC_S8) == TTC_S8);
  CHECK(ttc__dtype_complex(TTC_F64) == TTC_C128 && ttc__dtype_complex(TTC_BF16) == TTC_C64);
}

/* "--": refused. The order of the columns is that of the rows. */
static const char *const lattice[] = {
    "bool  u8   s8   s16  s32  s64  f16  bf16 f32  f64  c64  c128",
    "bool: bool u8   s8   s16  s32  s64  f16  bf16 f32  f64  c64  c128",
    "u8:   u8   u8   s16  s16  s32  s64  f16  bf16 f32  f64  c64  c128",
    "s8:   s8   s16  s8   s16  s32  s64  f16  bf16 f32  f64  c64  c128",
    "s16:  s16  s16  s16  s16  s32  s64  f16  bf16 f32  f64  c64  c128",
    "s32:  s32  s32  s32  s32  s32  s64  f16  bf16 f32  f64  c64  c128",
    "s64:  s64  s64  s64  s64  s64  s64  f16  bf16 f32  f64  c64  c128",
    "f16:  f16  f16  f16  f16  f16  f16  f16  f32  f32  f64  c64  c128",
    "bf16: bf16 bf16 bf16 bf16 bf16 bf16 f32  bf16 f32  f64  c64  c128",
    "f32:  f32  f32  f32  f32  f32  f32  f32  f32  f32  f64  c64  c128",
    "f64:  f64  f64  f64  f64  f64  f64  f64  f64  f64  f64  c128 c128",
    "c64:  c64  c64  c64  c64  c64  c64  c64  c64  c64  c128 c64  c128",
    "c128: c128 c128 c128 c128 c128 c128 c128 c128 c128 c128 c128 c128",
    /* u16, u32 and u64 promote with themselves and floats only */
    "u16:  --   --   --   --   --   --   f16  bf16 f32  f64  --   --",
    "u32:  --   --   --   --   --   --   f16  bf16 f32  f64  --   --",
    "u64:  --   --   --   --   --   --   f16  bf16 f32  f64  --   --", "f8e4m3fn:   -- -- -- -- -- -- -- -- -- -- -- --",
    "f8e4m3fnuz: -- -- -- -- -- -- -- -- -- -- -- --", "f8e5m2:     -- -- -- -- -- -- -- -- -- -- -- --",
    "f8e5m2fnuz: -- -- -- -- -- -- -- -- -- -- -- --", "f8e8m0fnu:  -- -- -- -- -- -- -- -- -- -- -- --",
    "f4e2m1fnx2: -- -- -- -- -- -- -- -- -- -- -- --"};

static int split_words(const char *line, char words[][16]) {
  int n = 0, used;
  while (n < 16 && sscanf(line, "%15s%n", words[n], &used) == 1) {
    line += used;
    n++;
  }
  return n;
}

static void test_promote(void) {
  char columns[16][16], words[16][16];
  CHECK_EQ(split_words(lattice[0], columns), 12);
  for (size_t r = 1; r < sizeof lattice / sizeof *lattice; r++) {
    CHECK_EQ(split_words(lattice[r], words), 13);
    words[0][strlen(words[0]) - 1] = '\0'; /* the colon */
    ttc_dtype a = by_name(words[0]);
    for (int c = 0; c < 12; c++) {
      ttc_dtype b = by_name(columns[c]);
      ttc_dtype want = strcmp(words[c + 1], "--") == 0 ? TTC_DTYPE_INVALID : by_name(words[c + 1]);
      CHECK_EQ(ttc__promote(a, b), want);
      CHECK_EQ(ttc__promote(b, a), want);
    }
    CHECK_EQ(ttc__promote(a, a), a);
  }
  CHECK_EQ(ttc__promote(TTC_U16, TTC_U32), TTC_DTYPE_INVALID);
  CHECK_EQ(ttc__promote(TTC_U16, TTC_F8E5M2), TTC_DTYPE_INVALID);
  CHECK_EQ(ttc__promote(TTC_F8E4M3FN, TTC_F8E5M2), TTC_DTYPE_INVALID);
  CHECK_EQ(ttc__promote(TTC_U64, TTC_F4E2M1FNX2), TTC_F4E2M1FNX2);
}

static const ttc_scalar py_bool = {.kind = TTC_SCALAR_BOOL, .wrapped = 1, .i = 1};
static const ttc_scalar py_int = {.kind = TTC_SCALAR_INT, .wrapped = 1, .i = 2};
static const ttc_scalar py_float = {.kind = TTC_SCALAR_FLOAT, .wrapped = 1, .re = 2.5};
static const ttc_scalar py_complex = {.kind = TTC_SCALAR_COMPLEX, .wrapped = 1, .im = 1};

/* Of a tensor with dims, a 0-d tensor and a number, each optional. */
static ttc_dtype result(ttc_dtype dim, ttc_dtype zero, const ttc_scalar *s) {
  ttc__promotion p = {0};
  if (dim != TTC_DTYPE_INVALID) {
    ttc__promotion_tensor(&p, dim, 3);
  }
  if (zero != TTC_DTYPE_INVALID) {
    ttc__promotion_tensor(&p, zero, 0);
  }
  if (s != NULL) {
    ttc__promotion_scalar(&p, s);
  }
  return ttc__promotion_result(&p, TTC_F32);
}

static void test_result_type(void) {
  const ttc_dtype none = TTC_DTYPE_INVALID;
  CHECK_EQ(result(TTC_F16, none, &py_float), TTC_F16);
  CHECK_EQ(result(TTC_F16, TTC_F64, NULL), TTC_F16);
  CHECK_EQ(result(TTC_S32, TTC_F64, NULL), TTC_F64);
  CHECK_EQ(result(TTC_S8, TTC_S64, NULL), TTC_S8);
  CHECK_EQ(result(TTC_S8, none, &py_int), TTC_S8);
  CHECK_EQ(result(TTC_S8, none, &py_float), TTC_F32);
  CHECK_EQ(result(TTC_BOOL, none, &py_int), TTC_S64);
  CHECK_EQ(result(TTC_BOOL, TTC_U8, NULL), TTC_U8);
  CHECK_EQ(result(TTC_U8, none, &py_bool), TTC_U8);
  CHECK_EQ(result(none, TTC_F64, &py_float), TTC_F64);
  CHECK_EQ(result(none, TTC_S32, &py_float), TTC_F32);
  CHECK_EQ(result(TTC_BF16, none, &py_complex), TTC_C64);
  CHECK_EQ(result(TTC_F64, none, &py_complex), TTC_C128);
  CHECK_EQ(result(TTC_F64, TTC_C64, NULL), TTC_C128);
  CHECK_EQ(result(TTC_C64, TTC_F64, NULL), TTC_C64);
  CHECK_EQ(result(TTC_U32, none, &py_complex), TTC_C64);
  CHECK_EQ(result(TTC_U32, TTC_S64, NULL), TTC_U32);
  CHECK_EQ(result(TTC_F8E5M2, none, &py_float), TTC_F8E5M2);
  CHECK_EQ(result(TTC_F8E5M2, TTC_F32, NULL), TTC_F8E5M2);
  CHECK_EQ(result(TTC_F8E5M2, none, &py_complex), none);
  CHECK_EQ(result(none, none, &py_float), TTC_F32);
  CHECK_EQ(result(none, none, NULL), none);
  ttc_scalar cpu = {.kind = TTC_SCALAR_FLOAT, .dtype = TTC_F64, .re = 1}; /* a 0-d CPU tensor, not a number */
  CHECK_EQ(result(TTC_S32, none, &cpu), TTC_F64);
  ttc__promotion p = {0}; /* a refusal is not forgotten */
  ttc__promotion_tensor(&p, TTC_F8E5M2, 1);
  ttc__promotion_tensor(&p, TTC_F32, 1);
  ttc__promotion_tensor(&p, TTC_F32, 1);
  CHECK_EQ(ttc__promotion_result(&p, TTC_F32), none);
  p = (ttc__promotion){0};
  ttc__promotion_tensor(&p, TTC_S64, 1);
  ttc__promotion_scalar(&p, &py_float);
  CHECK_EQ(ttc__promotion_result(&p, TTC_F64), TTC_F64);
}

static uint64_t encode(const ttc_scalar *s, ttc_dtype d) {
  unsigned char out[16];
  uint64_t u = 0;
  ttc__scalar_encode(s, d, out);
  memcpy(&u, out, ttc_dtype_nbyte(d) < 8 ? ttc_dtype_nbyte(d) : 8);
  return u;
}

static uint64_t encode_float(double x, ttc_dtype d) {
  return encode(&(ttc_scalar){.kind = TTC_SCALAR_FLOAT, .wrapped = 1, .re = x}, d);
}

static uint64_t encode_int(int64_t i, ttc_dtype d) {
  return encode(&(ttc_scalar){.kind = TTC_SCALAR_INT, .wrapped = 1, .i = i}, d);
}

static void test_small_floats(void) {
  enum { N = 7 };
  static const ttc_dtype types[N] = {TTC_F16, TTC_BF16, TTC_F8E4M3FN, TTC_F8E4M3FNUZ, TTC_F8E5M2, TTC_F8E5M2FNUZ, TTC_F8E8M0FNU};
  static const struct {
    double x;
    unsigned code[N];
  } cases[] = {{0.0, {0, 0, 0, 0, 0, 0, 0}},
               {-0.0, {0x8000, 0x8000, 0x80, 0, 0x80, 0, 0}},
               {1, {0x3c00, 0x3f80, 0x38, 0x40, 0x3c, 0x40, 0x7f}},
               {-2, {0xc000, 0xc000, 0xc0, 0xc8, 0xc0, 0xc4, 0x80}},
               {1.9, {0x3f9a, 0x3ff3, 0x3f, 0x47, 0x40, 0x44, 0x80}},
               {5, {0x4500, 0x40a0, 0x4a, 0x52, 0x45, 0x49, 0x81}},
               {0.75, {0x3a00, 0x3f40, 0x34, 0x3c, 0x3a, 0x3e, 0x7f}},
               {448, {0x5f00, 0x43e0, 0x7e, 0x80, 0x5f, 0x63, 0x88}},
               {-465, {0xdf44, 0xc3e8, 0xfe, 0x80, 0xdf, 0xe3, 0x88}},
               {247.9, {0x5bbf, 0x4378, 0x77, 0x7f, 0x5c, 0x60, 0x87}},
               {248, {0x5bc0, 0x4378, 0x78, 0x80, 0x5c, 0x60, 0x87}},
               {61439, {0x7b80, 0x4770, 0x7e, 0x80, 0x7b, 0x7f, 0x8f}},
               {61440, {0x7b80, 0x4770, 0x7e, 0x80, 0x7c, 0x80, 0x8f}},
               {65519.9, {0x7bff, 0x4780, 0x7e, 0x80, 0x7c, 0x80, 0x8f}},
               {65520, {0x7c00, 0x4780, 0x7e, 0x80, 0x7c, 0x80, 0x8f}},
               {1e300, {0x7c00, 0x7f80, 0x7e, 0x80, 0x7c, 0x80, 0xff}},
               {-INFINITY, {0xfc00, 0xff80, 0xfe, 0x80, 0xfc, 0x80, 0xff}},
               {0.001, {0x1419, 0x3a83, 0x1, 0x1, 0x14, 0x18, 0x75}},
               {0x1p-10, {0x1400, 0x3a80, 0, 0x1, 0x14, 0x18, 0x75}}, /* e4m3fn: half its smallest, to even */
               {-0x1p-11, {0x9000, 0xba00, 0x80, 0, 0x90, 0x94, 0x74}},
               {0x1p-25, {0, 0x3300, 0, 0, 0, 0, 0x66}},
               {0x1.01p-25, {0x1, 0x3300, 0, 0, 0, 0, 0x66}},
               {0x1p-127, {0, 0x40, 0, 0, 0, 0, 0}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (int k = 0; k < N; k++) {
      CHECK_EQ(encode_float(cases[i].x, types[k]), cases[i].code[k]);
    }
  }
  static const unsigned nans[N] = {0x7e00, 0x7fc0, 0x7f, 0x80, 0x7f, 0x80, 0xff};
  for (int k = 0; k < N; k++) {
    CHECK_EQ(encode_float(NAN, types[k]), nans[k]);
  }
}

static void test_scalars(void) {
  CHECK_EQ(encode_float(1.5, TTC_F32), 0x3fc00000);
  CHECK_EQ(encode_float(1e300, TTC_F32), 0x7f800000);
  CHECK_EQ(encode_float(1.5, TTC_F64), 0x3ff8000000000000);
  CHECK_EQ(encode_int((1 << 24) + 1, TTC_F32), 0x4b800000);
  CHECK_EQ(encode_int((INT64_C(1) << 62) + (INT64_C(1) << 38) + 1, TTC_F32), 0x5e800001); /* by way of double: 0x5e800000 */
  CHECK_EQ(encode_int(65520, TTC_F16), 0x7c00);
  CHECK_EQ(encode_int(-1, TTC_U8), 255);
  CHECK_EQ(encode_int(-1, TTC_S64), -1);
  CHECK_EQ(encode_int(256, TTC_BOOL), 1);
  CHECK_EQ(encode_float(-1.9, TTC_S64), -1);
  CHECK_EQ(encode_float(-1.9, TTC_S8), 255);
  CHECK_EQ(encode_float(NAN, TTC_S64), INT64_MIN);
  CHECK_EQ(encode_float(1e30, TTC_S32), 0x80000000);
  CHECK_EQ(encode_float(0x1p63, TTC_U64), INT64_MIN); /* its bits */
  CHECK_EQ(encode_float(NAN, TTC_BOOL), 1);
  CHECK_EQ(encode_float(-0.0, TTC_BOOL), 0);
  ttc_scalar z = {.kind = TTC_SCALAR_COMPLEX, .wrapped = 1, .re = 1.5, .im = -2};
  unsigned char out[16];
  float c64[2];
  double c128[2];
  ttc__scalar_encode(&z, TTC_C64, out);
  memcpy(c64, out, sizeof c64);
  CHECK(c64[0] == 1.5f && c64[1] == -2);
  ttc__scalar_encode(&z, TTC_C128, out);
  memcpy(c128, out, sizeof c128);
  CHECK(c128[0] == 1.5 && c128[1] == -2);
  CHECK_EQ(encode(&z, TTC_S32), 1);
  CHECK_EQ(encode(&(ttc_scalar){.kind = TTC_SCALAR_COMPLEX, .im = 1}, TTC_BOOL), 1);
  CHECK_EQ(encode(&(ttc_scalar){.kind = TTC_SCALAR_BOOL, .i = 1}, TTC_F32), 0x3f800000);
  CHECK_EQ(encode_float(1, TTC_DTYPE_INVALID), 0);
}

int main(void) {
  test_table();
  test_promote();
  test_result_type();
  test_small_floats();
  test_scalars();
  return CHECK_DONE();
}
