/* Status and error: filled once, where the error arises. */
#ifndef TTC_BASE_ERROR_H
#define TTC_BASE_ERROR_H

#include "ttc.h"

/* Fill err (op untouched if already set by the caller's frame) and return code. */
ttc_status ttc__fail_at(ttc_error *err, ttc_status code, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

#define TTC_FAIL(err, code, ...) ttc__fail_at((err), (code), __FILE__, __LINE__, __VA_ARGS__)

/* Return the status of a fallible call from the enclosing function when it failed. */
#define TTC_TRY(expr)               \
  do {                              \
    ttc_status ttc_try_s_ = (expr); \
    if (ttc_try_s_ != TTC_OK) {     \
      return ttc_try_s_;            \
    }                               \
  } while (0)

/* Our own mistakes only, never user input. */
#define TTC_ASSERT(cond) ((cond) ? (void)0 : ttc__assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void ttc__assert_failed(const char *cond, const char *file, int line);

/* A shared, immutable error: what poisons a store. */
typedef struct ttc__poison ttc__poison;
/* Never NULL: where there is no memory for it, one for all that says so. */
ttc__poison *ttc__poison_new(const ttc_error *err);
ttc__poison *ttc__poison_retain(ttc__poison *p);
void ttc__poison_release(ttc__poison *p);
const ttc_error *ttc__poison_error(const ttc__poison *p);
/* true once: the first reader reports it to ttc_device_synchronize's callers, later ones need not. */
bool ttc__poison_claim(ttc__poison *p);
bool ttc__poison_claimed(const ttc__poison *p);

#endif
