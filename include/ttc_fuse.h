/* ttc_fuse.h - calls that may be kept back and run together (ttc_call.defer): where the open trace was cut, and what became of the
 * pieces. Conventions as in ttc.h. */
#ifndef TTC_FUSE_H
#define TTC_FUSE_H

#include "ttc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Why a trace was cut. clang-format off */
#define TTC_CUTS(X)                                                            \
  X(READ, "read")     /* a value is read */                                    \
  X(SYNC, "sync")     /* somebody waits for the device, or ttc_device_flush */ \
  X(EVENT, "event")   /* an event is recorded, or waited for */                \
  X(LOOP, "loop")     /* what comes begins again */                            \
  X(NODES, "nodes")   /* the trace is as long as they may be */                \
  X(MEMORY, "memory") /* it holds too much memory, or there is too little */   \
  X(IDLE, "idle")     /* nothing was called for some milliseconds */           \
  X(MODE, "mode")     /* a call that is not to be kept back */                 \
  X(CALL, "call")     /* a call, copy or resize that cannot be part of a trace */
/* clang-format on */
#define TTC_CUT_NAME(name, word) TTC_CUT_##name,
typedef enum ttc_cut { TTC_CUTS(TTC_CUT_NAME) TTC_NCUT } ttc_cut;
#undef TTC_CUT_NAME

typedef struct ttc_fuse_stats {
  uint64_t nodes;             /* calls in traces so far, kept back or not */
  uint64_t runs;              /* traces cut */
  uint64_t hits;              /* of them run by one program */
  uint64_t fused;             /* calls in those */
  uint64_t traces;            /* different ones seen */
  uint64_t programs;          /* fused programs asked for */
  uint64_t compiling, failed; /* of them not ready yet, and given up */
  uint64_t unwritten_nbyte;   /* results that fused programs did not have to write */
  uint64_t cuts[TTC_NCUT];
} ttc_fuse_stats;
TTC_API void ttc_device_get_fuse_stats(ttc_device *dev, ttc_fuse_stats *out); /* any thread */
/* "read", "loop", ..; NULL from TTC_NCUT on. */
TTC_API const char *ttc_cut_name(unsigned cut);
/* A round of a training loop ends here, as a rule: cut before the next call. any thread */
TTC_API void ttc_device_stepped(ttc_device *dev);
/* Wait until no fused program is being compiled. any thread, blocks */
TTC_API TTC_MUST_USE ttc_status ttc_device_wait_fused(ttc_device *dev, ttc_error *err);

/* Who tells which line of Python is being run, "train.py:12", into out: for errors of fused programs. Asked in one round of each.
 * Called with no lock held. NULL: nobody. any thread */
typedef void ttc_line_fn(char *out, size_t nbyte);
TTC_API void ttc_set_line_source(ttc_line_fn *fn);

#ifdef __cplusplus
}
#endif
#endif
