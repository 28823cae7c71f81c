/* Several lowered programs, one after another, as one: each becomes a function of one module, and @main hands on what stores hold.
 * The parts' texts are taken as they are, so a fused program has the very forms that its parts have alone. */
#ifndef TTC_GRAPH_COMPOSE_H
#define TTC_GRAPH_COMPOSE_H

#include "op/lower.h"

typedef struct ttc__part {
  const ttc__lowered *low; /* with its text */
  const uint32_t *stores;  /* the composition's slot of each store of the call: its own slots, then its fresh results */
  uint32_t nin;            /* own slots */
} ttc__part;

typedef struct ttc__fused_slot {
  const ttc__base *base;
  bool outside; /* it had contents before, and keeps what is written to it */
  bool alive;   /* somebody may read it afterwards */
  bool dies;    /* outside: nobody had it but the calls, so its memory may become a fresh result's */
} ttc__fused_slot;

typedef struct ttc__composition {
  uint32_t npart, nslot;
  const ttc__part *parts;
  const ttc__fused_slot *slots;
  bool for_tpu;
} ttc__composition;

/* `out` as of a call whose slots are the outside slots in order, and whose fresh results are the alive ones of the others, in
 * order. Numbers come packed: parameters TTC__PARAM_PACK, i: bytes before it in the call's numbers, k: how many. *places: for each
 * number of the parts, in order, where its bytes go (malloc'ed). TTC_UNIMPLEMENTED: the parts do not fit together. */
ttc_status ttc__compose(const ttc__composition *in, ttc__lowered *out, uint32_t **places, uint32_t *nplace, ttc_error *err);

#endif
