/* ttc_prefix.h - part of ttc.h's interface: stores larger than the tensor in them. */
#ifndef TTC_PREFIX_H
#define TTC_PREFIX_H

#include "ttc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A store of nelem elements that begins with t's, in order: t's own where it is just that and `fresh` is false, else a new one
 * whose other elements are `pad` (copied through the host when the queue comes to it). One reference. any thread */
TTC_API TTC_MUST_USE ttc_status ttc_store_prefix(const ttc_tensor *t, int64_t nelem, const ttc_scalar *pad, bool fresh,
                                                 ttc_store **out, ttc_error *err);

#ifdef __cplusplus
}
#endif
#endif
