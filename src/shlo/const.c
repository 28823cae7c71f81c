#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "shlo/internal.h"

/* One element as dense<> wants it. Floats are bit patterns, so that every value, NaN included, arrives as it is. */
static void print_float(const unsigned char *bytes, size_t n, char *out) {
  out += sprintf(out, "0x");
  for (size_t k = n; k-- > 0;) {
    out += sprintf(out, "%02X", bytes[k]);
  }
}

static void print_scalar(const ttc_scalar *s, ttc_dtype d, char out[80]) {
  unsigned char bytes[16] = {0};
  size_t n = ttc_dtype_nbyte(d);
  ttc__scalar_encode(s, d, bytes);
  uint64_t u = 0;
  memcpy(&u, bytes, n < 8 ? n : 8);
  switch (ttc__dtype_class(d)) {
    case TTC__CLASS_BOOL:
      sprintf(out, "%s", u != 0 ? "true" : "false");
      break;
    case TTC__CLASS_UINT:
      sprintf(out, "%" PRIu64, u);
      break;
    case TTC__CLASS_SINT: {
      unsigned shift = (unsigned)(64 - 8 * n);
      sprintf(out, "%" PRId64, (int64_t)(u << shift) >> shift);
      break;
    }
    case TTC__CLASS_FLOAT:
      print_float(bytes, n, out);
      break;
    case TTC__CLASS_COMPLEX:
      out += sprintf(out, "(");
      print_float(bytes, n / 2, out);
      out += strlen(out);
      out += sprintf(out, ",");
      print_float(bytes + n / 2, n / 2, out);
      strcat(out, ")");
      break;
  }
}

static ttc_val splat(shlo *b, ttc_dtype d, const ttc_scalar *s, int ndim, const int64_t *dims) {
  if (b->failed) {
    return TTC_POISON;
  }
  if (d <= TTC_DTYPE_INVALID || d >= TTC_NDTYPE || ndim < 0 || ndim > SHLO__MAX_NDIM) {
    return SHLO_FAIL(b, "shlo_const", "dtype %d with %d dims is no type", (int)d, ndim);
  }
  char text[80];
  shlo_type t = shlo__type(d, ndim, dims);
  print_scalar(s, d, text);
  return shlo__constant(b, text, &t);
}

ttc_val shlo_const_f(shlo *b, ttc_dtype d, double v, int ndim, const int64_t *dims) {
  if (!ttc__is_integral(d)) {
    return splat(b, d, &(ttc_scalar){.kind = TTC_SCALAR_FLOAT, .re = v}, ndim, dims);
  }
  if (d == TTC_BOOL) {
    return shlo_const_i(b, d, v != 0 || isnan(v), ndim, dims);
  }
  /* 2^63 and 2^64 are the first doubles out of range. */
  if (v >= 0 && v < 0x1p64) {
    return shlo_const_u(b, d, (uint64_t)v, ndim, dims);
  }
  if (v >= -0x1p63 && v < 0) {
    return shlo_const_i(b, d, (int64_t)v, ndim, dims);
  }
  return SHLO_FAIL(b, "shlo_const_f", "%g is no %s", v, ttc_dtype_name(d));
}

ttc_val shlo_const_i(shlo *b, ttc_dtype d, int64_t v, int ndim, const int64_t *dims) {
  return splat(b, d, &(ttc_scalar){.kind = TTC_SCALAR_INT, .i = d == TTC_BOOL ? v != 0 : v}, ndim, dims);
}

ttc_val shlo_const_u(shlo *b, ttc_dtype d, uint64_t v, int ndim, const int64_t *dims) {
  if (v > INT64_MAX && !ttc__is_integral(d)) {
    return shlo_const_f(b, d, (double)v, ndim, dims);
  }
  int64_t bits;
  memcpy(&bits, &v, sizeof bits);
  return shlo_const_i(b, d, bits, ndim, dims);
}

ttc_val shlo_const_like(shlo *b, ttc_val x, double v) {
  if (!shlo__ready(b, "shlo_const_like", 1, &x)) {
    return TTC_POISON;
  }
  shlo_type t = *shlo_typeof(b, x);
  return shlo_const_f(b, t.dtype, v, t.ndim, t.dims);
}

/* The largest finite value of the float formats that have no infinity, else infinity (OCP 8-bit formats; FNUZ: Graphcore/AMD). */
static double largest(ttc_dtype d) {
  switch (d) {
    case TTC_F8E4M3FN:
      return 448;
    case TTC_F8E4M3FNUZ:
      return 240;
    case TTC_F8E5M2FNUZ:
      return 57344;
    case TTC_F8E8M0FNU:
      return 0x1p127;
    default:
      return INFINITY;
  }
}

ttc_val shlo_lowest(shlo *b, ttc_dtype d) {
  int width = (int)ttc_dtype_nbyte(d) * 8;
  switch (ttc__dtype_class(d)) {
    case TTC__CLASS_BOOL:
    case TTC__CLASS_UINT:
      return shlo_const_i(b, d, 0, 0, NULL);
    case TTC__CLASS_SINT:
      return shlo_const_i(b, d, INT64_MIN >> (64 - width), 0, NULL);
    case TTC__CLASS_FLOAT:
      /* An unsigned power of two: its lowest is the smallest one. */
      return shlo_const_f(b, d, d == TTC_F8E8M0FNU ? 0x1p-127 : -largest(d), 0, NULL);
    default:
      return SHLO_FAIL(b, "shlo_lowest", "%s has no order", ttc_dtype_name(d));
  }
}

ttc_val shlo_highest(shlo *b, ttc_dtype d) {
  int width = (int)ttc_dtype_nbyte(d) * 8;
  switch (ttc__dtype_class(d)) {
    case TTC__CLASS_BOOL:
      return shlo_const_i(b, d, 1, 0, NULL);
    case TTC__CLASS_UINT:
      return shlo_const_u(b, d, UINT64_MAX >> (64 - width), 0, NULL);
    case TTC__CLASS_SINT:
      return shlo_const_i(b, d, INT64_MAX >> (64 - width), 0, NULL);
    case TTC__CLASS_FLOAT:
      return shlo_const_f(b, d, largest(d), 0, NULL);
    default:
      return SHLO_FAIL(b, "shlo_highest", "%s has no order", ttc_dtype_name(d));
  }
}

ttc_val shlo_const_table(shlo *b, ttc_dtype d, int64_t n, const int64_t *values) {
  if (b->failed) {
    return TTC_POISON;
  }
  if (d <= TTC_DTYPE_INVALID || d >= TTC_NDTYPE || n < 0) {
    return SHLO_FAIL(b, "shlo_const_table", "dtype %d with %lld values is no table", (int)d, (long long)n);
  }
  ttc__str s;
  ttc__str_init(&s, (size_t)1 << 26);
  ttc__str_add(&s, "[");
  for (int64_t k = 0; k < n; k++) {
    char text[80];
    print_scalar(&(ttc_scalar){.kind = TTC_SCALAR_INT, .i = d == TTC_BOOL ? values[k] != 0 : values[k]}, d, text);
    ttc__str_add(&s, k > 0 ? ", " : "");
    ttc__str_add(&s, text);
  }
  ttc__str_add(&s, "]");
  shlo_type t = shlo__type(d, 1, &n);
  ttc_val v = s.failed ? SHLO_FAIL(b, "shlo_const_table", "a table of %lld values is too long", (long long)n)
                       : shlo__constant(b, ttc__str_get(&s), &t);
  ttc__str_free(&s);
  return v;
}

ttc_val shlo_iota(shlo *b, ttc_dtype d, int axis, int ndim, const int64_t *dims) {
  if (!shlo__ready(b, "shlo_iota", 0, NULL)) {
    return TTC_POISON;
  }
  if (axis < 0 || axis >= ndim) {
    return SHLO_FAIL(b, "shlo_iota", "axis %d is out of range, expected 0 to %d", axis, ndim - 1);
  }
  shlo_type t = shlo__type(d, ndim, dims);
  if (d == TTC_BOOL) {
    return SHLO_FAIL(b, "shlo_iota", "bool does not count");
  }
  shlo__attr(b, "iota_dimension = %d : i64", axis);
  return shlo__op(b, "stablehlo.iota", 0, NULL, &t);
}
