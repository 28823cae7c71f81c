/* Lowering: one call (of a row or a graph) -> one StableHLO program with the list of what feeds and what leaves it. */
#ifndef TTC_OP_LOWER_H
#define TTC_OP_LOWER_H

#include "base/str.h"
#include "op/op.h"

/* The dense row-major array a store's buffer holds. Where it is open, the buffer goes on past the end along one axis, or several of
 * one length, so that one program serves every length up to its bound (graph/lengths.h); what is there is arbitrary. */
typedef struct ttc__base {
  uint8_t dtype; /* ttc_dtype */
  uint8_t ndim;
  uint8_t flat;  /* 1: made as plain bytes or resized; the first tensor that overwrites it whole gives it its shape */
  uint16_t open; /* bit a: axis a is longer in the buffer; all such axes have one size */
  int64_t bound; /* open: the buffer's size along them */
  int64_t dims[TTC_MAX_NDIM];
} ttc__base;
_Static_assert(TTC_MAX_NDIM <= 16, "axes are bits of 16");

/* The array the buffer is, which is what a program's parameter or result looks like. */
static inline ttc__base ttc__base_physical(const ttc__base *base) {
  ttc__base b = *base;
  for (unsigned left = b.open; left != 0; left &= left - 1) {
    b.dims[__builtin_ctz(left)] = b.bound;
  }
  b.open = 0;
  return b;
}

/* How a tensor is read whose store is open, or that is read beside one. */
typedef enum ttc__opening {
  TTC__OPEN_NOT,
  TTC__OPEN_WHOLE, /* as long as the bound along `axes`, the length being a number */
  TTC__OPEN_RANGE, /* likewise, from the place on that is another number, along one axis */
  TTC__OPEN_PART,  /* so many places along axes of the base, open or not, from numbers on; then it is a tensor like any other */
  TTC__OPEN_PADDED /* just as long as it is, `extent` along its one axis of `axes`; it is made as long as the bound in the program
                    */
} ttc__opening;
typedef enum ttc__filling {
  TTC__FILL_NOT,
  TTC__FILL_ZERO,
  TTC__FILL_ONE,
  TTC__FILL_LOWEST,
  TTC__FILL_HIGHEST,
  TTC__FILL_ARG /* and more: with the integer that is argument fill - TTC__FILL_ARG */
} ttc__filling;
#define TTC__MAX_PLACES 3u
typedef struct ttc__open {
  uint8_t kind;          /* ttc__opening */
  uint8_t base;          /* RANGE: axis of the base */
  uint8_t number;        /* place in the call's open numbers; of the length, for a PART of where it begins along its first axis */
  uint8_t place;         /* RANGE: of where it begins */
  uint8_t fill;          /* what past the length a rule is to see; ttc__filling */
  uint16_t axes;         /* of the tensor, of a PART's base, bit by bit */
  uint32_t outer, inner; /* its one axis is so many rows one after another, each of so many times the bound's places; else 1 */
  int64_t extents[TTC__MAX_PLACES]; /* PADDED: one; PART: one for each of `axes`; else 0 */
} ttc__open;

/* Is the tensor as long as the bound? */
static inline bool ttc__is_long(const ttc__open *o) {
  return o->kind != TTC__OPEN_NOT && o->kind != TTC__OPEN_PART;
}

/* How results are open. */
#define TTC__OPEN_OUTS 4u
typedef struct ttc__opened {
  uint16_t axes[TTC__OPEN_OUTS]; /* of each result, counted from the last, which is bit 0; of later ones like the last of these */
  bool any;
  uint32_t outer, inner; /* as in ttc__open */
  int64_t length, bound;
} ttc__opened;
static inline uint16_t ttc__opened_axes(const ttc__opened *o, uint32_t result) {
  return o->axes[result < TTC__OPEN_OUTS ? result : TTC__OPEN_OUTS - 1];
}

/* What one program parameter is. */
typedef enum ttc__param_kind {
  TTC__PARAM_STORE,
  TTC__PARAM_NUMBER,
  TTC__PARAM_RNG,
  TTC__PARAM_FAULT,
  TTC__PARAM_PACK
} ttc__param_kind;
typedef struct ttc__param {
  uint8_t kind;  /* ttc__param_kind */
  uint8_t dtype; /* NUMBER, PACK: what it is encoded as */
  uint32_t i;    /* STORE: slot; NUMBER, RNG: argument; PACK: where in the call's numbers it begins, bytes */
  uint32_t k;    /* STORE: 1: if only the call has it, a fresh result takes its memory; NUMBER: place in its list; RNG: 0 seed, 1
                    offset; PACK: how many numbers */
} ttc__param;

/* What one program result is: a fresh output's base, the new contents of a slot, or the device's fault. */
typedef struct ttc__product {
  int32_t out;   /* index of the fresh output, TTC__PRODUCT_SLOT or TTC__PRODUCT_FAULT */
  uint32_t slot; /* of a slot */
  ttc__base base;
} ttc__product;
enum { TTC__PRODUCT_SLOT = -1, TTC__PRODUCT_FAULT = -2 };

typedef struct ttc__lower_in {
  const ttc_call *call;
  uint32_t nout;
  const ttc_spec *outs;
  uint32_t nslot;
  const ttc__base *bases; /* [nslot] one a distinct store */
  const uint32_t *slots;  /* slot of each tensor, in visiting order (ttc__visit) */
  const ttc__open *open;  /* [nopen] one a tensor, in visiting order; their numbers are the argument after the last. NULL: none is
                             open */
  uint32_t nopen;
  ttc__opened opened; /* how results are open */
  bool for_tpu;
  bool verified;         /* the checks that `verify` would list are known to pass: leave them out */
  bool exported;         /* every slot is a parameter, in order, and nothing is checked: a program that stands alone */
  const int32_t *writes; /* exported: for each result the parameter whose memory it may take, or -1; or NULL */
  bool locations;        /* each operation says which line of Python it comes from, where that is known */
  shlo_precision precision;
} ttc__lower_in;

/* A check that a whole store's integers are in [0, size), or [-size, size) with wrap. */
typedef struct ttc__verify {
  uint32_t slot;
  bool wrap;
  int64_t size;
} ttc__verify;
#define TTC__MAX_VERIFY 4

typedef struct ttc__lowered {
  char *text; /* malloc'ed */
  size_t text_nbyte;
  uint32_t nparam, nproduct;
  ttc__param *params;     /* malloc'ed */
  ttc__product *products; /* malloc'ed */
  uint32_t nverify;
  ttc__verify verify[TTC__MAX_VERIFY]; /* what the program finds out of its stores, or a fault */
  bool foreign;                        /* somebody else's text: what it gives is to be compared with `products` */
} ttc__lowered;

ttc_status ttc__lower(const ttc__lower_in *in, ttc__lowered *out, ttc_error *err);
void ttc__lowered_free(ttc__lowered *l);

/* Visit the call's tensors in the one order that keys, slots and lowering share: arguments in order, lists in order (absent
 * optionals are skipped), then `into`. Returns the number of tensors. */
typedef void (*ttc__visitor)(void *ctx, const ttc_tensor *t);
uint32_t ttc__visit(const ttc_call *call, ttc__visitor visit, void *ctx);

/* An absent optional in a tensor list? */
static inline bool ttc__absent(const ttc_tensor *t) {
  return t->store == NULL && t->value == -1;
}

/* ---- access.c: read and write strided views of a base value */
ttc_val ttc__read_view(shlo *b, ttc_val base_value, const ttc__base *base, const ttc_tensor *t);
/* base_value may be poison-free unused (id -2) when the write covers the base: ttc__write_needs_base tells. */
bool ttc__write_needs_base(const ttc__base *base, const ttc_tensor *t);
ttc_val ttc__write_view(shlo *b, ttc_val base_value, const ttc__base *base, const ttc_tensor *t, ttc_val v);
/* The base that a fresh tensor of this spec lives in: its sizes in physical order. False if the spec is not a dense permutation. */
bool ttc__base_of_spec(const ttc_spec *spec, ttc__base *base);
/* The same of a result as long as the bound along `axes` (counted from the last), with `length` in it: open. What is outside and
 * inside of its places are axes of their own. */
bool ttc__base_of_open(const ttc_spec *spec, uint16_t axes, const ttc__opened *o, ttc__base *base);
/* A logical value -> the base's physical order, and the base's own element type. */
ttc_val ttc__to_physical(shlo *b, ttc_val v, const ttc_spec *spec, const ttc__base *base);

/* ---- table.c */
/* Ops beyond the rows: graphs. The row and data must live on; returns the op id, or UINT32_MAX when out of memory. */
uint32_t ttc__op_register(const ttc_op_row *row, void *data);
uint32_t ttc__op_register_copy(const ttc_op_row *row); /* of a row that need not live on, nor its name */
void *ttc__op_data(uint32_t op);
/* An op whose programs are made by fn instead of by a rule. out is empty, and freed by the caller where fn fails. */
typedef ttc_status (*ttc__program_fn)(const ttc__lower_in *in, void *data, ttc__lowered *out, ttc_error *err);
uint32_t ttc__op_register_program(const ttc_op_row *row, void *data, ttc__program_fn fn);
ttc__program_fn ttc__op_program(uint32_t op); /* NULL: it has a rule */

/* ---- for graph rows (lower.c) */
/* Lower a node inside the rule of a graph: values[] are the graph's values so far. rets[nout] receives the results. */
void ttc__lower_node(ttc_lower *graph, const ttc_call *node, uint32_t nout, const ttc_spec *outs, const ttc_val *values,
                     ttc_val *rets);
void *ttc__lower_data(const ttc_lower *c);
/* Lower a finished graph as part of a row's rule, its arguments being values: in a region, or where it stands. */
void ttc__lower_call(ttc_lower *c, uint32_t graph, int n, const ttc_val *args, int nout, const ttc_spec *outs, ttc_val *rets);
/* Around a region in which graphs are lowered. True: the fault is to be carried through it, and out of it. */
bool ttc__region_begin(ttc_lower *c);
void ttc__region_end(ttc_lower *c);

/* ---- faults: s64[TTC__FAULT_WORDS]: op + 1 (0: none), kind, value, axis, size. One lives on each device; programs that check take
 * it and give it back. */
#define TTC__FAULT_WORDS 5
ttc_status ttc__fault_error(const int64_t words[TTC__FAULT_WORDS], ttc_error *err); /* fills err and returns its code */
ttc_val ttc__fault_state(ttc_lower *c);
void ttc__set_fault_state(ttc_lower *c, ttc_val v);
/* Is this check to be made? Takes note of those that tell something of a whole store. */
bool ttc__check_needed(ttc_lower *c, ttc_val idx, int64_t size, bool wrap);
bool ttc__unchecked(const ttc_lower *c);    /* is nothing to be checked? */
uint32_t ttc__lower_op(const ttc_lower *c); /* the row's place in the table */
/* While quiet, nothing is checked: in bodies of loops, which what is found cannot leave. Returns what was set before. */
bool ttc__quiet(ttc_lower *c, bool on);

#endif
