/* What the families rng and sample share: a generator's numbers inside a program (rng.c says how they are counted). */
#ifndef TTC_OP_RNG_H
#define TTC_OP_RNG_H

#include "op/op.h"

typedef struct ttc__stream {
  ttc_val seed, block; /* u64 scalars: the key, offset / 4 */
  ttc_val at, count;   /* where results end at a number: op_out_elements; else poison */
} ttc__stream;
ttc__stream ttc__open_stream(shlo *b, ttc_lower *c);
/* Four u32 words for each of n elements, others in each round (a u32 scalar; below 65535), for loops that draw until they accept.
 */
void ttc__lane_words(shlo *b, ttc__stream s, int64_t n, ttc_val round, ttc_val out[4]);
/* Two standard normals from two such floats. */
void ttc__box_muller(shlo *b, ttc_val u, ttc_val v, ttc_val *x, ttc_val *y);

#endif
