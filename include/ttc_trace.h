/* ttc_trace.h - what a device ran, for profilers: one span a program. Conventions as in ttc.h. */
#ifndef TTC_TRACE_H
#define TTC_TRACE_H

#include "ttc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ttc_span {
  char op[64];               /* the op's overload name */
  uint64_t tag;              /* ttc_trace_tag of the thread that made the call */
  int64_t start_ns, done_ns; /* since 1970 */
} ttc_span;

/* Note every call from here on. TTC_FAILED_PRECONDITION if that is going on. any thread, blocks */
TTC_API TTC_MUST_USE ttc_status ttc_trace_start(ttc_device *dev, ttc_error *err);
/* No more; what was noted, in order of finishing, to be freed with ttc_trace_free. any thread, blocks */
TTC_API TTC_MUST_USE ttc_status ttc_trace_stop(ttc_device *dev, ttc_span **spans, size_t *n, ttc_error *err);
TTC_API void ttc_trace_free(ttc_span *spans);
/* Mark this thread's calls from now on. */
TTC_API void ttc_trace_tag(uint64_t tag);

#ifdef __cplusplus
}
#endif
#endif
