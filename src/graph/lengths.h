/* Lengths given at run time, in eager calls: one program for a cache however long it has grown.
 *
 * A store may be open: its buffer is longer along one axis than what is in it (ttc__base). A call that reads such stores is made
 * wide: the same call with tensors as long as the bound, and the lengths as numbers after its last argument, so that one plan, one
 * program and one place in a fused program serve every length up to the bound. What an op does to such an axis is the `pad` of its
 * row. A call that cannot be wide reads what is in the buffer and no more, with a program for that length. */
#ifndef TTC_GRAPH_LENGTHS_H
#define TTC_GRAPH_LENGTHS_H

#include "graph/key.h"

#define TTC__MAX_OPEN 16u /* numbers of a call */

/* Scratch for one call; grows, is reused. */
typedef struct ttc__wide {
  ttc_call call;
  ttc_arg *args;
  ttc_tensor *tensors;
  int64_t *extents; /* sizes and strides of the tensors */
  ttc__open *open;  /* one a tensor, in visiting order */
  uint32_t narg_cap, tensor_cap, nopen;
  ttc_scalar numbers[TTC__MAX_OPEN];
  int64_t bounds[TTC__MAX_OPEN]; /* of numbers that are lengths; 0: a number is a place */
  uint32_t nnumber;
  bool places; /* a tensor is at a place, or is a part */
  const ttc_tensor *into[1];
  ttc_tensor target;
  int64_t target_extents[2 * TTC_MAX_NDIM];
  uint8_t out_open; /* as in ttc__lower_in */
  int64_t out_length, out_bound;
} ttc__wide;

/* The call, whose stores' bases are known, made wide. target_opened: ttc__open_target was true of it. False: it cannot be, or out
 * of memory. */
bool ttc__widen(ttc__wide *w, const ttc_call *call, bool target_opened);
/* Does it copy into a tensor of another store? */
bool ttc__is_plain_copy(const ttc_call *call);
/* Is that all of its store, as the store's first tensor has it? */
bool ttc__is_whole_store(const ttc_tensor *t);
/* Its target, a whole store that nobody has used, becomes open as its source is, if that is. */
bool ttc__open_target(const ttc_call *call);
/* Its key. False: out of memory. */
bool ttc__key_make_wide(ttc__site *site, const ttc__wide *w, uint64_t salt);
/* Room for so many arguments, one more, and tensors. False: out of memory. */
bool ttc__wide_reserve(ttc__wide *w, uint32_t narg, uint32_t ntensor);

/* growth.c. Which results become open in the first place: those of aten::cat that put a little behind what another such call gave.
 */
typedef struct ttc__growth {
  uint64_t hash;
  int64_t total, most; /* length after the last one, the longest one */
  uint32_t times;
} ttc__growth;
#define TTC__GROWTHS 64u /* a power of two */
/* The call is about to be defined. The result's open axis, counted from the last, 0: not open; *bound: its bound. table:
 * TTC__GROWTHS entries. */
uint8_t ttc__growing(ttc__growth *table, const ttc_call *call, int64_t *total, int64_t *bound);

/* The same of aten::arange, and of filling, into a store that nobody has used, and which is open then: the call is made wide. */
bool ttc__growing_range(ttc__growth *table, const ttc_call *call, ttc__wide *w);
/* A bound for so many places of so many bytes each. */
int64_t ttc__bound_of(int64_t length, int64_t place_nbyte);

/* A result's spec with its open axis `size` long: from what it is to its bound, and back. False: it has no such axis. */
bool ttc__spec_stretch(ttc_spec *spec, uint8_t out_open, int64_t size);

#endif
