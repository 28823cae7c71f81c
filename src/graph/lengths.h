/* Lengths given at run time, in eager calls: one program for a cache however long it has grown, and for batches of any length.
 *
 * A store may be open: its buffer is longer along an axis than what is in it (ttc__base). A call that reads such stores is made
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
  uint32_t *where;  /* likewise: which of `tensors` it is */
  uint32_t narg_cap, tensor_cap, nopen;
  ttc_scalar numbers[TTC__MAX_OPEN];
  int64_t bounds[TTC__MAX_OPEN]; /* of numbers that are lengths; 0: a number is a place */
  uint32_t nnumber;
  bool places;                /* a tensor is at a place, or is a part */
  int64_t ints[TTC_MAX_NDIM]; /* a list of sizes that names a length */
  const ttc_tensor *into[1];
  ttc_tensor target;
  int64_t target_extents[2 * TTC_MAX_NDIM];
  ttc__opened opened;           /* how its results are */
  struct ttc__lengths *lengths; /* the device's, or NULL */
} ttc__wide;

/* What becomes open in the first place is told by what came before (growth.c). */
#define TTC__GROWTHS 64u /* powers of two */
#define TTC__BATCHES 256u
#define TTC__PARTS 2048u
#define TTC__BATCH_WAYS 8u
#define TTC__CURRENT 4u
typedef struct ttc__growth {
  uint64_t hash;
  int64_t total, most; /* length after the last one, the longest one */
  uint32_t times;
} ttc__growth;
typedef struct ttc__batch {
  uint64_t hash, calls; /* calls: made when the last one came */
  int64_t sizes[3];     /* those that were met first have programs of their own */
  int64_t last, open;   /* the last one, and the last one that has not */
  uint32_t nsize;
} ttc__batch;
typedef struct ttc__lengths {
  ttc__growth growths[TTC__GROWTHS];
  ttc__batch batches[TTC__BATCHES], parts[TTC__PARTS]; /* parts: of stores, by where they begin, or how long they are */
  uint64_t nasked;                                     /* times of parts */
  int64_t current[TTC__CURRENT];                       /* lengths of batches that came last, the newest first; 0: none */
} ttc__lengths;

/* The call, whose stores' bases are known, made wide. target_opened: ttc__open_target was true of it. False: it cannot be, or out
 * of memory. */
bool ttc__widen(ttc__wide *w, const ttc_call *call, bool target_opened);
/* A call that reads nothing open, but whose tensors are as long as a current batch, or parts of longer ones: a table's first rows,
 * the gradient of a row. It names that length, or is read up to its bound. */
bool ttc__widen_closed(ttc__wide *w, const ttc_call *call);
/* A call that reads nothing open and has no program as it is, but reads or writes parts that have begun at ever other places, or
 * reads what has been of ever other lengths: those are numbers. fresh: nobody has used its target. False: it does not. */
bool ttc__widen_parts(ttc__wide *w, const ttc_call *call, bool fresh);
/* Does it copy into a tensor of another store? */
bool ttc__is_plain_copy(const ttc_call *call);
/* Is that all of its store, as the store's first tensor has it? */
bool ttc__is_whole_store(const ttc_tensor *t);
/* Its target, a whole store that nobody has used, becomes open as its source is, if that is. */
bool ttc__open_target(const ttc__wide *w, const ttc_call *call);
/* Its key. False: out of memory. */
bool ttc__key_make_wide(ttc__site *site, const ttc__wide *w, uint64_t salt);
/* Room for so many arguments, one more, and tensors. False: out of memory. */
bool ttc__wide_reserve(ttc__wide *w, uint32_t narg, uint32_t ntensor);

/* growth.c. Which results become open in the first place: those of aten::cat that put a little behind what another such call gave.
 * The call is about to be defined. *opened: how; false: they do not. */
bool ttc__growing(ttc__lengths *l, const ttc_call *call, ttc__opened *opened);
/* The same of aten::arange, and of filling, into a store that nobody has used, and which is open then: the call is made wide. */
bool ttc__growing_range(ttc__lengths *l, const ttc_call *call, ttc__wide *w);
/* The call's tensor in this place of the visiting order is a part of a store that is not open. The axes of the base along which
 * such parts have begun at more than a few places; 0: those have programs of their own. */
unsigned ttc__moving(ttc__lengths *l, uint32_t op, uint32_t place, const ttc_tensor *t, const ttc__base *base);
/* Likewise: has it been of more than a few sizes along this axis? */
bool ttc__varying(ttc__lengths *l, uint32_t op, uint32_t place, const ttc_tensor *t, int axis, const ttc__base *base);
/* A bound for so many places of so many bytes each, for what grows. */
int64_t ttc__bound_of(int64_t length, int64_t place_nbyte);
/* Data of these sizes come from the host, `calls` having been made so far. The axis along which batches have had three other sizes,
 * or -1. */
int ttc__batch_axis(ttc__lengths *l, ttc_dtype dtype, int ndim, const int64_t *sizes, uint64_t calls);
/* A power of two, 16 at least, that is no less. */
int64_t ttc__batch_bound(int64_t length);
/* Is it a current batch's length, or one or two more or less? */
bool ttc__is_about_current(const ttc__lengths *l, int64_t length);

/* A result's spec with its open axes as long as `o` says, or as its bound (wide); and back. False: it has no such axes. */
bool ttc__spec_stretch(ttc_spec *spec, uint16_t axes, const ttc__opened *o, bool wide);

/* widen.c, for lengths.c: what the call's op does with the open axes of its tensors, which are rewritten for the buffers. Fills in
 * how its results are open. False: no such program, with these lengths. */
bool ttc__widen_op(ttc__wide *w, const ttc_op_row *row);
/* lengths.c, for widen.c. The one length of a call's tensors: its number, -1 where none is met yet, and what is outside and inside
 * of its places, as in ttc__open. */
typedef struct ttc__shared {
  int number;
  uint32_t outer, inner;
} ttc__shared;
/* The tensor in this place of the visiting order, made open along the axis. False: it is not as long, or cannot be. */
bool ttc__make_open(ttc__wide *w, uint32_t place, int axis, const ttc__shared *s);
/* The tensor's axes counted from the last one, which is bit 0; and back. */
unsigned ttc__turned(const ttc_tensor *t, unsigned axes);

#endif
