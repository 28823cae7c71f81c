/* Faults: what is wrong with the data of a call, found by its program on the device and told by whoever reads a result. */
#include <stdio.h>
#include <string.h>

#include "op/elem.h"
#include "op/lower.h"
#include "op/reduce.h"

ttc_status ttc__fault_error(const int64_t words[TTC__FAULT_WORDS], ttc_error *err) {
  long long v = words[2], a = words[3], n = words[4];
  const ttc_op_row *row = words[0] > 0 ? ttc__op_row((uint32_t)(words[0] - 1)) : NULL;
  snprintf(err->op, sizeof err->op, "%s", row != NULL ? row->name : "");
  switch ((ttc__fault)words[1]) {
    case TTC__FAULT_INDEX:
      return TTC_FAIL(err, TTC_OUT_OF_RANGE, "index %lld is out of bounds for dimension %lld with size %lld", v, a, n);
    case TTC__FAULT_POSITION:
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "index %lld is out of bounds for dimension %lld with size %lld", v, a, n);
    case TTC__FAULT_ROW:
      return TTC_FAIL(err, TTC_OUT_OF_RANGE, "index out of range in self: index %lld, dimension %lld has size %lld", v, a, n);
    case TTC__FAULT_FLAT:
      return TTC_FAIL(err, TTC_OUT_OF_RANGE, "out of range: tried to access index %lld on a tensor of %lld elements", v, n);
    case TTC__FAULT_BAG:
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "index %lld is not in the valid range [0, %lld)", v, n);
    case TTC__FAULT_TARGET:
      return TTC_FAIL(err, TTC_OUT_OF_RANGE, "Target %lld is out of bounds: expected a class in [0, %lld)", v, n);
    case TTC__FAULT_MARGIN_TARGET:
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "target out of range: target %lld, %lld classes", v, n);
    case TTC__FAULT_UNPOOL:
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "Found an invalid max index: %lld (output planes have %lld elements)", v, n);
    case TTC__FAULT_SHORT_SOURCE:
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "Number of elements of source < number of ones in mask (%lld < %lld)", n, v);
    case TTC__FAULT_MASKED_VALUES:
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT,
                      "shape mismatch: %lld values cannot be broadcast to the %lld elements that the mask selects", n, v);
    case TTC__FAULT_DIVISION:
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "ZeroDivisionError: an integer was divided by 0");
    case TTC__FAULT_PROBABILITY:
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected probabilities between 0 and 1 (p >= 0 && p <= 1)");
    case TTC__FAULT_WEIGHTS:
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "probability tensor contains either `inf`, `nan` or element < 0");
    case TTC__FAULT_NO_WEIGHT:
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "invalid multinomial distribution (sum of probabilities <= 0)");
    case TTC__FAULT_UNIT_INPUT:
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "all elements of input should be between 0 and 1");
    case TTC__FAULT_STD:
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "normal expects all elements of std >= 0.0");
    case TTC__FAULT_RATE:
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "invalid Poisson rate, expected rate to be non-negative");
    case TTC__FAULT_ASSERT:
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "Expected Tensor with single nonzero value, but got zero");
    case TTC__FAULT_NONE:
      break;
  }
  return TTC_FAIL(err, TTC_INTERNAL, "an unknown fault %lld (%lld, %lld, %lld)", (long long)words[1], v, a, n);
}

/* ------------------------------------------------------------------------------------------------------ checking */

typedef struct found {
  ttc_lower *c;
  ttc_val old; /* the fault before */
  ttc__fault kind;
  ttc_val value; /* for indices: the largest as an unsigned number, after negative ones were counted from the end if `wrap` */
  int64_t axis, size;
  ttc_val length; /* the size, s64, where it is given at run time; or poison */
  ttc_val seen;   /* where `value` is to be found */
  bool wrap;
} found;

static ttc_val word(shlo *b, int64_t v) {
  int64_t one = 1;
  return shlo_const_i(b, TTC_S64, v, 1, &one);
}

static ttc_val worst(shlo *b, ttc_val seen) {
  int axes[TTC_MAX_NDIM], n = shlo_ndim(b, seen);
  for (int k = 0; k < n; k++) {
    axes[k] = k;
  }
  return shlo_reduce(b, SHLO_AMAX, seen, n, axes);
}

/* The fault as it is now that `f` was found: what was there stays, if anything was. */
static void keep_first(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  const found *f = ctx;
  (void)args;
  int64_t n = TTC__FAULT_WORDS, one = 1;
  ttc_val value = f->seen.id >= 0 ? worst(b, f->seen) : f->value;
  if (value.id < 0) {
    value = shlo_const_i(b, TTC_S64, 0, 0, NULL);
  } else if (ttc__is_unsigned(shlo_dtype(b, value))) {
    value = shlo_convert(b, shlo_bitcast(b, value, shlo_dtype(b, value) == TTC_U32 ? TTC_S32 : TTC_S64), TTC_S64);
    ttc_val given = shlo_sub(b, value, f->length.id >= 0 ? f->length : elem_i(b, value, f->size));
    value = f->wrap ? shlo_select(b, elem_cmp(b, SHLO_LT, value, 0), given, value) : value;
  }
  ttc_val words[TTC__FAULT_WORDS] = {word(b, (int64_t)ttc__lower_op(f->c) + 1), word(b, (int64_t)f->kind),
                                     shlo_reshape(b, shlo_convert(b, value, TTC_S64), 1, &one), word(b, f->axis),
                                     f->length.id >= 0 ? shlo_reshape(b, f->length, 1, &one) : word(b, f->size)};
  ttc_val none = shlo_compare(b, SHLO_EQ, shlo_slice_axis(b, f->old, 0, 0, 1), word(b, 0));
  results[0] = shlo_select(b, shlo_broadcast_to(b, none, 1, &n), shlo_concat(b, TTC__FAULT_WORDS, words, 0), f->old);
}

static void keep(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  const found *f = ctx;
  (void)b;
  (void)args;
  results[0] = f->old;
}

/* The words of a single value are made anyway; those that take another look at many only where something is wrong. */
static void note(shlo *b, ttc_val bad, found *f) {
  int64_t n = TTC__FAULT_WORDS;
  f->old = ttc__fault_state(f->c);
  ttc_val now;
  if (f->seen.id >= 0) {
    shlo_if(b, bad, 1, shlo_typeof(b, f->old), keep_first, keep, f, &now);
  } else {
    keep_first(b, f, NULL, &now);
    now = shlo_select(b, shlo_broadcast_to(b, bad, 1, &n), now, f->old);
  }
  ttc__set_fault_state(f->c, now);
}

void op_fault_if(ttc_lower *c, shlo *b, ttc_val bad, ttc__fault kind, ttc_val value, int64_t axis, int64_t size) {
  if (ttc__unchecked(c)) {
    return;
  }
  note(b, bad,
       &(found){.c = c, .kind = kind, .value = value, .axis = axis, .size = size, .length = TTC_POISON, .seen = TTC_POISON});
}

#define FEW 4096 /* indices whose largest is found as fast as whether any is too large */

/* As unsigned numbers, negative indices are the largest, so that the largest tells all. Of many, XLA:CPU finds in a quarter of the
 * time whether any is too large: then which it was is asked only if there is one. Those that count from the end are looked at once
 * they were counted, as the op itself does: a program that is cheap enough runs within its launch. */
static void check(ttc_lower *c, shlo *b, ttc__fault kind, ttc_val idx, int64_t axis, int64_t size, ttc_val length, bool wrap) {
  ttc_dtype d = shlo_dtype(b, idx), s = d == TTC_S32 ? TTC_S32 : TTC_S64, u = d == TTC_S32 ? TTC_U32 : TTC_U64;
  ttc_val at = shlo_convert(b, idx, s), n = length.id >= 0 ? shlo_convert(b, length, s) : shlo_const_i(b, s, size, 0, NULL);
  if (wrap) {
    at = shlo_select(b, elem_cmp(b, SHLO_LT, at, 0), shlo_add(b, at, n), at);
  }
  ttc_val end = shlo_convert(b, n, u), seen = shlo_bitcast(b, at, u);
  found f = {.c = c, .kind = kind, .value = TTC_POISON, .axis = axis, .size = size, .seen = TTC_POISON, .wrap = wrap};
  f.length = length.id >= 0 ? shlo_convert(b, length, TTC_S64) : length;
  if (shlo_nelem(b, idx) <= FEW) {
    f.value = ttc__once(b, worst(b, seen));
    note(b, shlo_compare(b, SHLO_GE, f.value, end), &f);
  } else {
    f.seen = seen;
    note(b, elem_any(b, shlo_compare(b, SHLO_GE, seen, end)), &f);
  }
}

void op_check_indices(ttc_lower *c, shlo *b, ttc__fault kind, ttc_val idx, int64_t axis, int64_t size, bool wrap) {
  if (shlo_nelem(b, idx) != 0 && !ttc__unchecked(c) && ttc__check_needed(c, idx, size, wrap)) {
    check(c, b, kind, idx, axis, size, TTC_POISON, wrap);
  }
}

void op_check_open(ttc_lower *c, shlo *b, ttc__fault kind, ttc_val idx, int64_t axis, ttc_val length) {
  if (!ttc__unchecked(c)) {
    check(c, b, kind, idx, axis, 0, length, true);
  }
}
