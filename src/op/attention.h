/* Attention block by block, as attention.c and flex.c share it: a loop over blocks of queries, in it one over the blocks of keys
 * that they meet, with the softmax kept up as keys come in (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022). Memory
 * grows with the length, not with its square, and blocks that are never met cost nothing. */
#ifndef TTC_OP_ATTENTION_H
#define TTC_OP_ATTENTION_H

#include "op/op.h"

/* Where the loops are. s32 scalars. */
typedef struct ttc__tile {
  ttc_val mb, mh;   /* place along the batch and the heads that have loops of their own; 0 where all go together */
  ttc_val row, col; /* number of the block of queries, of keys */
  int run;
} ttc__tile;

/* One problem. The caller fills all but nq and nk; batch and heads of one tile are B' = batch / mbatch, H' = heads / mheads. */
typedef struct ttc__tiles ttc__tiles;
struct ttc__tiles {
  ttc_dtype type, acc;                                        /* of q, k, v; of the scores */
  int64_t batch, heads, groups, queries, keys, width, vwidth; /* B, H, Hk, T, S, d, dv */
  int64_t mbatch, mheads;                                     /* 1 or B, 1 or H: loops of their own, for masks that differ */
  int64_t cq, ck, nq, nk;                                     /* sizes of a block; how many there are */
  ttc_val q, k, v, scale;                                     /* [B, H, T, d], [B, Hk, S, d], [B, Hk, S, dv], acc scalar */
  int nrun;                                                   /* the blocks of keys come in so many loops, one after another .. */
  int nfree; /* .. of which the first few never meet the block that the keys end in */
  int nextra;
  void *ctx;
  /* Loop at->run visits j = first .. last - 1, which is block column(j) of the keys (NULL: j). */
  void (*range)(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val *first, ttc_val *last);
  ttc_val (*column)(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val j);
  /* Which scores count: bool, broadcastable to [B', H', cq, ck], or poison where all do. NULL: all. */
  ttc_val (*seen)(shlo *b, const ttc__tiles *t, const ttc__tile *at);
  /* Scores [B', H', cq, ck] as they are changed before the softmax, and the gradient of that: ds of the changed ones becomes ds of
   * those before; extras [nextra] are sums over all tiles. NULL: not changed. */
  ttc_val (*bend)(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val s);
  ttc_val (*unbend)(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val s, ttc_val ds, ttc_val *extras);
};

#define TTC__TILE 128 /* rows of a block: measured best on XLA:CPU from 64 to 1024, forward and backward */
#define TTC__TILE_EXTRAS 24

/* Indices of a tile's scores along axis 0 batch, 1 heads, 2 queries, 3 keys: s32 vector. Those of queries and keys beyond the end
 * are the last ones, so that what is looked up by them exists. */
ttc_val ttc__tile_index(shlo *b, const ttc__tiles *t, const ttc__tile *at, int axis);
/* x [B|1, H|1, T|1, S|1], padded to whole blocks by ttc__tile_pad, at a tile. */
ttc_val ttc__tile_pad(shlo *b, const ttc__tiles *t, ttc_val x);
ttc_val ttc__tile_of(shlo *b, const ttc__tiles *t, const ttc__tile *at, ttc_val x);
/* Entry k of a 1-D list. */
ttc_val ttc__tile_entry(shlo *b, ttc_val list, ttc_val k);

/* out [B, H, T, dv] in `type`, lse and max [B, H, T] in `acc`: both -inf, and out 0, for a query that sees no key. */
void ttc__attend(shlo *b, ttc__tiles *t, ttc_val *out, ttc_val *lse, ttc_val *max);
/* g [B, H, T, dv] in `type`; lse as above, or 0 where that is -inf; dot = rowsum(g·out) less the gradient of lse: [B, H, T] in acc.
 * grads: of q in type, of k and v in acc. extras: start values in, sums out. */
void ttc__attend_back(shlo *b, ttc__tiles *t, ttc_val g, ttc_val lse, ttc_val dot, ttc_val *grads, ttc_val *extras);

/* flex.c */
void ttc__lower_flex(shlo *b, ttc_lower *c);
void ttc__lower_flex_backward(shlo *b, ttc_lower *c);

#endif
