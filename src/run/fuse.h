/* The open trace: calls that were made and not yet queued (ttc_call.defer). Shared by the fuse files of src/run and their callers.
 *
 * A call in this mode becomes the record it would be in any mode, in its place in the queue's ring, but the ring's head stays where
 * it is: nobody launches it. At a cut the records are either given to the queue as they are, or replaced by one record that runs
 * them all as one program, where that was compiled before. Those that cannot be are given to the queue before that (ahead.c). All
 * of it is guarded by the dispatch lock. */
#ifndef TTC_RUN_FUSE_H
#define TTC_RUN_FUSE_H

#include "graph/compose.h"
#include "run/run.h"
#include "ttc_fuse.h"

#define MAX_NODES 2048u /* records of one trace; queue and trace share the ring */
#define MAX_LOOPS 16u
#define NOTED_LINES (2 * MAX_NODES)
#define MAX_WAITING 256u       /* programs being made; who wants one more asks again when its trace has come again */
#define BEGINNINGS (1u << 20u) /* a power of two: bits for a thousand programs of a thousand calls */

/* A stretch of calls that came again right after itself. */
typedef struct ttc__loop {
  uint32_t n;    /* records */
  uint64_t hash; /* of its tokens */
  uint64_t head; /* its first token */
} ttc__loop;

/* DIES: in recipes only; a hint, for it is looked at again at each launch. */
enum { SLOT_OUTSIDE = 1, SLOT_ALIVE = 2, SLOT_DIES = 4 };

typedef struct ttc__recipe_part {
  ttc_plan *plan; /* one reference */
  uint32_t nstore;
} ttc__recipe_part;

/* What a fused program is put together from. */
struct ttc__recipe {
  ttc__recipe_part *parts; /* [npart] launches, in order */
  uint32_t *slots;         /* of their stores, part after part; UINT32_MAX: a result that nobody took */
  ttc__base *bases;        /* [nslot] what is held before */
  uint8_t *flags;          /* [nslot] SLOT_*: for given results that somebody may read afterwards */
  uint32_t npart, nslot;
  int64_t unwritten_nbyte;
  uint32_t *_Atomic lines; /* [npart] of Python (where.c); NULL: not known */
  _Atomic uint32_t rest;   /* times to pass it over still: a launch of it failed */
  /* Once its plan is ready: */
  uint32_t *places;         /* [nplace] where each of the parts' numbers goes, bytes */
  uint8_t *sizes;           /* [nplace] bytes */
  uint32_t nplace, nnumber; /* nnumber: what the numbers take, in units of `number` */
};

typedef struct ttc__last_place {
  uint64_t token;
  uint64_t at; /* count of the record */
} ttc__last_place;
#define LAST_PLACES 4096u /* a power of two */

struct ttc__fuse {
  uint64_t first; /* count of the trace's first record */
  /* loop.c: */
  uint64_t tokens[MAX_NODES];
  uint64_t prefix;      /* hash of the tokens so far */
  uint32_t period, run; /* the last `run` records are as those `period` before */
  uint32_t same, other; /* of the older stores in them: how many are the very same, and how many are not */
  bool ended;           /* the trace so far is a known loop's body */
  bool stepped;         /* an optimizer has made its step, and nothing was called since */
  ttc__last_place *last;
  ttc__loop loops[MAX_LOOPS];
  uint32_t nloop, next_loop;
  /* ahead.c: */
  uint64_t path, paths[MAX_NODES]; /* hash of the plans so far, and what it was after each */
  uint32_t npath;
  bool missed;                          /* a program was there for what had been sent already */
  bool ahead;                           /* no piece with a program begins like this: what comes is given to the queue at once */
  uint64_t beginnings[BEGINNINGS / 64]; /* bits of the paths that do lead to one */
  ttc_plan *asked[MAX_WAITING];         /* programs not seen to be ready, a ring with a reference each */
  uint32_t first_asked, nasked;
  /* fuse.c: */
  int64_t held_nbyte, look_at_nbyte;
  ttc__map *pieces;  /* by their keys */
  uint32_t nprogram; /* that they have or had */
  uint32_t *words;   /* the key of the trace that is cut */
  size_t nword, word_cap;
  ttc_store **stores; /* distinct ones, by slot */
  uint8_t *flags;     /* SLOT_* */
  uint32_t *slots;    /* of all records' stores, in order */
  uint32_t nslot, nref;
  size_t slot_cap, ref_cap;
  ttc_fuse_stats stats;
  /* where.c: */
  uint32_t lines[NOTED_LINES]; /* by the records' counts */
  uint32_t unplaced, rounds;   /* programs whose calls' lines are not known, and cuts until they are given up */
};

/* Under the dispatch lock: the record in the slot is part of the trace from here on. It may be cut, before or after it. */
void ttc__fuse_append(ttc_device *dev);
/* Dispatch lock held. Give all that is kept back to the queue. */
void ttc__fuse_cut_locked(ttc_device *dev, ttc_cut reason);
/* The first n records of the trace; the others are kept. Dispatch lock held. */
void ttc__fuse_cut_first(ttc_device *dev, uint32_t n, ttc_cut reason);
ttc_status ttc__fuse_init(ttc_device *dev, ttc_error *err); /* dispatch lock held */

/* recipe.c: can the first n records of the trace be joined at all? Dispatch lock held. */
bool ttc__recipe_possible(ttc_device *dev, uint32_t n);
/* Of the first n records, as they were described last (fuse.c), for the given flags; NULL: out of memory. Dispatch lock held. */
ttc__recipe *ttc__recipe_take(ttc_device *dev, uint32_t n, const uint8_t *flags);
/* The program's text and what belongs to it, from the plan's recipe. Nobody else looks at the plan. TTC_UNIMPLEMENTED: the parts do
 * not fit together. */
ttc_status ttc__recipe_join(ttc_plan *plan, ttc_error *err);
/* The fused program of r could not be launched and changed nothing: launch its parts. why: NULL where what it reads failed before.
 * Not done: no host memory for that either. Launch lock held. Only TTC_CANCELLED is returned. */
ttc_status ttc__recipe_unfold(ttc_device *dev, record *r, const ttc_error *why, bool *done);
void ttc__recipe_free(ttc__recipe *e);

/* where.c. A program was asked for, whose lines are to be found out when it comes again. Dispatch lock held. */
void ttc__where_begin(ttc_device *dev);
/* From then on, while dev->asks_lines: a call is about to be kept back (no lock held); */
void ttc__where_ask(void);
/* it has become the trace's record i; the first n records are those of e, and are cut (dispatch lock held). */
void ttc__where_note(ttc__fuse *f, uint32_t i);
void ttc__where_keep(ttc_device *dev, uint32_t n, ttc__recipe *e);
void ttc__where_cut(ttc_device *dev);
/* "train.py:12", or "" where nobody knows, of a part. This and what follows with the launch lock held. */
const char *ttc__where_part(ttc__recipe *e, uint32_t i);
/* A program that looks for faults was launched: a fused one, or any while there is dev->checker. */
void ttc__where_checked(ttc_device *dev, ttc_plan *plan);
/* One was found, by this op: add to its error which lines it may have been called at. */
void ttc__where_tell(ttc_device *dev, uint32_t op, ttc_error *err);
void ttc__where_forget(ttc_device *dev); /* the fault was looked at */

/* ahead.c: the program is ready: traces that begin as its piece does are kept back. Dispatch lock held, as in all of these. */
void ttc__ahead_learn(ttc__fuse *f, const ttc__recipe *e);
/* It was asked for: the same once it is ready. */
void ttc__ahead_await(ttc__fuse *f, ttc_plan *plan);
/* A trace is opened: see which are. */
void ttc__ahead_look(ttc__fuse *f);
/* The trace begins anew with nothing in it but what was sent already. */
void ttc__ahead_reset(ttc_device *dev);
/* It has one more record. */
void ttc__ahead_add(ttc__fuse *f, const record *r);
/* Give the queue what is kept back of the trace, which stays open. */
void ttc__ahead_send(ttc_device *dev);
/* The first n records, which were sent, are not needed any more. */
void ttc__ahead_done(ttc_device *dev, uint32_t n);

/* loop.c: the trace begins anew with nothing in it. */
void ttc__loop_reset(ttc_device *dev);
/* Record i of the trace was added. The number of records to cut off first, because what comes after them begins a loop; 0: none.
 * *again: cut so many, as often as they are there. */
uint32_t ttc__loop_add(ttc_device *dev, uint32_t i, uint64_t token, uint32_t *again);
/* Does a record with this token begin a loop, where another has just ended? */
bool ttc__loop_begins(const ttc_device *dev, uint64_t token);

static inline record *ttc__trace_record(ttc_device *dev, uint32_t i) {
  uint32_t sent = atomic_load_explicit(&dev->sent, memory_order_relaxed);
  return &dev->queue[(atomic_load_explicit(&dev->head, memory_order_relaxed) - sent + i) & (QUEUE_CAP - 1)];
}

static inline uint64_t ttc__mix(uint64_t h, uint64_t token) {
  h = (h ^ token) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 29);
}

#endif
