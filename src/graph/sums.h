/* Sums of small products, before programs are joined: what is read many times, as an LSTM's weights are, gets its gradient as a sum
 * of a product a step. */
#ifndef TTC_GRAPH_SUMS_H
#define TTC_GRAPH_SUMS_H

#include "graph/compose.h"

/* A part that is in no plan. */
typedef struct ttc__made {
  ttc__lowered low;
  uint32_t *stores;
} ttc__made;

/* A composition that gives what another does. */
typedef struct ttc__summed {
  ttc__composition all;
  ttc__part *parts; /* of `all` */
  ttc__made *made;
  uint32_t nmade;
} ttc__summed;

/* In place of the additions of a sum of products, and of these: one product of their factors side by side. Where memory runs out or
 * there is nothing to do, `out->all` is as `in`. Numbers keep their order. */
void ttc__sum_products(const ttc__composition *in, ttc__summed *out);
void ttc__summed_free(ttc__summed *s);

#endif
