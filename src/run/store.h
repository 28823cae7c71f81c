/* Stores: who has one, and what is in it. Shared inside src/run only. */
#ifndef TTC_RUN_STORE_H
#define TTC_RUN_STORE_H

#include <stdatomic.h>

#include "graph/key.h"
#include "pjrt/pjrt.h"

/* Who has a store, counted apart: its owners, the records that are to run with it, and the open trace, which still has to know it
 * by its address (ahead.c). Its contents go with the last of the first two, and then it is marked; the rest of it goes with the
 * last. */
#define STORE_OWNED UINT64_C(1)          /* 32 bits */
#define STORE_QUEUED (UINT64_C(1) << 32) /* 16: the queue is shorter */
#define STORE_NOTED (UINT64_C(1) << 48)  /* 15: traces are shorter still */
#define STORE_GONE (UINT64_C(1) << 63)
#define STORE_IN_USE (STORE_NOTED - 1)

struct ttc_store {
  ttc__keyed keyed; /* first: key.c sees only this. Guarded by the dispatch lock */
  ttc_device *dev;
  _Atomic uint64_t refs; /* STORE_* */
  bool used;     /* dispatch order: some call reads or writes it, so its base shape is settled. Guarded by the dispatch lock */
  size_t nbyte;  /* likewise */
  uint64_t born; /* ttc_device.recorded then */
  /* All its integers were found to be in [0, verified), or [-verified, verified), by a call in this epoch; 0: nothing is known.
   * Dispatch order too. */
  int64_t verified;
  uint32_t verified_epoch;
  bool verified_wrap;
  /* Launch order, guarded by the launch lock: */
  pjrt_buffer *buf;   /* NULL: undefined contents */
  ttc__base buf_base; /* what buf holds */
  size_t buf_nbyte;
  ttc__poison *poison;            /* the op that should have written it failed */
  uint32_t writer;                /* op that wrote it last, UINT32_MAX if none */
  bool awaited;                   /* known to be computed */
  bool lags;                      /* its program may still run when the launch returns */
  struct ttc_store *next, **prev; /* list of stores with a buffer, under the device's store lock */
};

/* locked: the dispatch lock is held. */
ttc_status ttc__store_make(ttc_device *dev, bool locked, const ttc__base *base, size_t nbyte, ttc_store **out, ttc_error *err);
/* Launch lock held. Takes buf; clears poison. */
void ttc__store_set(ttc_store *s, pjrt_buffer *buf, const ttc__base *base, uint32_t writer);
void ttc__store_poison(ttc_store *s, ttc__poison *p, uint32_t writer); /* takes a reference of its own */
void ttc__store_clear(ttc_store *s);                                   /* undefined contents from here on */
/* Make contents for a store that has none. Launch lock held. */
ttc_status ttc__store_fill_undefined(ttc_store *s, const ttc__base *base, ttc_error *err);
/* Bytes of what is in the store, whose base in dispatch order is `base`, in order. Launch lock held, s->buf not NULL. blocks */
ttc_status ttc__store_read(ttc_store *s, const ttc__base *base, size_t offset, size_t nbyte, void *dst, ttc_error *err);
/* If it is open, it is made anew, as long as what is in it. No lock held. */
ttc_status ttc__store_close(ttc_store *s, ttc_error *err);

/* A record's reference instead of an owner's, or the trace's. */
static inline void ttc__store_retain_as(ttc_store *s, uint64_t unit) {
  atomic_fetch_add_explicit(&s->refs, unit, memory_order_relaxed);
}
void ttc__store_release_as(ttc_store *s, uint64_t unit); /* STORE_OWNED or STORE_QUEUED; s may be NULL */
void ttc__store_forget(ttc_store *s);                    /* STORE_NOTED */
static inline bool ttc__store_owned(const ttc_store *s) {
  return (uint32_t)atomic_load_explicit(&s->refs, memory_order_acquire) != 0;
}
/* Has only one record it, or one owner? */
static inline bool ttc__store_alone(const ttc_store *s) {
  uint64_t refs = atomic_load_explicit(&s->refs, memory_order_acquire) & STORE_IN_USE;
  return refs == STORE_OWNED || refs == STORE_QUEUED;
}
void ttc__base_flat(ttc__base *base, ttc_dtype d, size_t nbyte);
size_t ttc__base_nbyte(const ttc__base *base);

#endif
