/* Numbers on their way to a program: each dtype's code of a value is the nearest that the format's definition allows (a tie to the
 * even code), found here by going through the codes. Integers wrap; floats go to integers toward zero. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "fuzz.h"
#include "type/dtype.h"

typedef struct format {
  ttc_dtype dtype;
  int nexp, nmant, bias;
  uint32_t largest, overflow, nan; /* codes without the sign: of the largest number, of what is too large, of NaN */
  bool one_zero;                   /* no -0: its code is NaN */
} format;

static const format formats[] = {
    {TTC_F16, 5, 10, 15, 0x7bff, 0x7c00, 0x7e00, false}, {TTC_BF16, 8, 7, 127, 0x7f7f, 0x7f80, 0x7fc0, false},
    {TTC_F8E4M3FN, 4, 3, 7, 0x7e, 0x7e, 0x7f, false},    {TTC_F8E5M2, 5, 2, 15, 0x7b, 0x7c, 0x7f, false},
    {TTC_F8E4M3FNUZ, 4, 3, 8, 0x7f, 0x80, 0x80, true},   {TTC_F8E5M2FNUZ, 5, 2, 16, 0x7f, 0x80, 0x80, true}};

/* By the definition: the value of a code without sign, as if there were no infinity. */
static double value_of(const format *f, uint32_t code) {
  int e = (int)(code >> f->nmant), m = (int)(code & ((1u << f->nmant) - 1));
  return e == 0 ? ldexp(m, 1 - f->bias - f->nmant) : ldexp(m + (1 << f->nmant), e - f->bias - f->nmant);
}

static uint32_t nearest(const format *f, double x) {
  uint32_t low = 0, high = f->largest + 1; /* the first code above the largest stands for all that is too large */
  while (high - low > 1) {
    uint32_t mid = low + (high - low) / 2;
    if (value_of(f, mid) <= x) {
      low = mid;
    } else {
      high = mid;
    }
  }
  double below = x - value_of(f, low), above = value_of(f, high) - x;
  uint32_t code = above < below || (above == below && low % 2 == 1) ? high : low;
  return code > f->largest ? f->overflow : code;
}

static void check_float(const format *f, float x) {
  ttc_scalar s = {.kind = TTC_SCALAR_FLOAT, .re = (double)x};
  unsigned char out[16];
  uint32_t got = 0, sign = 1u << (f->nexp + f->nmant);
  ttc__scalar_encode(&s, f->dtype, out);
  memcpy(&got, out, ttc_dtype_nbyte(f->dtype));
  if (isnan(x)) {
    MUST(f->one_zero ? got == f->nan : (got & (sign - 1)) > f->largest && (got & (sign - 1)) != f->overflow);
    return;
  }
  uint32_t want = isinf(x) ? f->overflow : nearest(f, fabs((double)x));
  bool bare = f->one_zero && (want == 0 || want == f->nan);
  want |= signbit(x) && !bare ? sign : 0;
  if (got != want) {
    fprintf(stderr, "%s of %a: code %x, expected %x\n", ttc_dtype_name(f->dtype), (double)x, got, want);
  }
  MUST(got == want);
}

static void check_integers(const ttc_scalar *s) {
  static const struct {
    ttc_dtype dtype;
    int nbit;
    bool is_signed;
  } kinds[] = {{TTC_U8, 8, false},   {TTC_S8, 8, true},   {TTC_U16, 16, false}, {TTC_S16, 16, true},
               {TTC_U32, 32, false}, {TTC_S32, 32, true}, {TTC_U64, 64, false}, {TTC_S64, 64, true}};
  unsigned char out[16];
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    uint64_t got = 0, mask = kinds[k].nbit == 64 ? UINT64_MAX : ((uint64_t)1 << kinds[k].nbit) - 1;
    ttc__scalar_encode(s, kinds[k].dtype, out);
    memcpy(&got, out, ttc_dtype_nbyte(kinds[k].dtype));
    if (s->kind == TTC_SCALAR_INT) {
      MUST(got == ((uint64_t)s->i & mask));
    } else if (fabs(s->re) < 0x1p31) { /* beyond, processors differ */
      MUST(got == ((uint64_t)(int64_t)trunc(s->re) & mask));
    }
  }
  ttc__scalar_encode(s, TTC_BOOL, out);
  MUST(out[0] == (s->kind == TTC_SCALAR_INT ? s->i != 0 : s->re != 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (n < 12) {
    return 0;
  }
  uint32_t bits;
  float x;
  ttc_scalar s = {.kind = data[0] % 2 != 0 ? TTC_SCALAR_INT : TTC_SCALAR_FLOAT};
  const format *f = &formats[data[1] % (sizeof formats / sizeof *formats)];
  memcpy(&bits, data + 4, sizeof bits);
  memcpy(&s.i, data + 4, sizeof s.i);
  memcpy(&x, &bits, sizeof x);
  check_float(f, x);
  /* At, just below and just above what lies half-way between two codes. */
  uint32_t code = bits % (f->largest + 1);
  float half = (float)((value_of(f, code) + value_of(f, code + 1)) / 2);
  half = data[2] % 2 != 0 ? -half : half;
  check_float(f, half);
  check_float(f, nextafterf(half, 0));
  check_float(f, nextafterf(half, 2 * half));
  s.re = data[3] % 2 != 0 ? (double)x : (double)s.i / 65536;
  check_integers(&s);
  return 0;
}
