/* The key of a call: equal keys mean "the same program serves both". A mistake here is silent, so it is alone in this file.
 *
 * In the key: op, kinds of arguments, static values, dtypes, shapes, view geometry, the base each view looks into, which arguments
 * share a store, where results go. Not in the key: runtime numbers, seeds, which stores they are. */
#ifndef TTC_GRAPH_KEY_H
#define TTC_GRAPH_KEY_H

#include "op/lower.h"

/* What a key needs of a store; the store's first member. Guarded by the dispatch lock. */
typedef struct ttc__keyed {
  ttc__base base;
  uint64_t mark; /* the call that last numbered it */
  uint32_t slot; /* its number in that call */
} ttc__keyed;

/* Scratch for one call: the key's words, the distinct stores, the slot of each tensor in visiting order. Grows, is reused. */
typedef struct ttc__site {
  uint64_t *words;
  size_t nword, word_cap;
  ttc_store **stores;
  uint32_t *slots;
  uint32_t nstore, nslot_ref;
  size_t tensor_cap;
  uint64_t mark;
  bool open; /* one of the stores is */
  bool wide; /* the tensors of the call being keyed are as long as their stores' bounds (lengths.h) */
} ttc__site;

/* A mark that no store has: for numbering stores in their `keyed`. */
uint64_t ttc__key_mark(void);
/* salt: device-wide state that programs depend on (matmul precision, compiler options): below 2^24. false when out of memory. */
bool ttc__key_make(ttc__site *site, const ttc_call *call, uint64_t salt);

#endif
