#include "base/error.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ttc__poison {
  atomic_int refs;
  atomic_bool claimed;
  ttc_error err;
};

static const char *const status_names[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

const char *ttc_status_name(ttc_status s) {
  if ((size_t)s < sizeof status_names / sizeof *status_names) {
    return status_names[s];
  }
  return "UNKNOWN";
}

ttc_status ttc__fail_at(ttc_error *err, ttc_status code, const char *file, int line, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(err->message, sizeof err->message, fmt, ap);
  va_end(ap);
  if (n >= (int)sizeof err->message) {
    memcpy(err->message + sizeof err->message - 4, "...", 4);
  }
  err->code = code;
  err->file = file;
  err->line = line;
  return code;
}

_Noreturn void ttc__assert_failed(const char *cond, const char *file, int line) {
  fprintf(stderr, "torch_tpu: internal error: %s does not hold at %s:%d. Please report this.\n", cond, file, line);
  abort();
}

/* A failure that could not be recorded must still poison: stale contents would be wrong numbers. */
static ttc__poison no_memory = {
    .refs = 1, .err = {.code = TTC_RESOURCE_EXHAUSTED, .message = "out of host memory while an op's error was being recorded"}};

ttc__poison *ttc__poison_new(const ttc_error *err) {
  ttc__poison *p = calloc(1, sizeof *p);
  if (p == NULL) {
    atomic_store(&no_memory.claimed, false);
    return ttc__poison_retain(&no_memory);
  }
  atomic_init(&p->refs, 1);
  p->err = *err;
  return p;
}

ttc__poison *ttc__poison_retain(ttc__poison *p) {
  if (p != NULL) {
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
  }
  return p;
}

void ttc__poison_release(ttc__poison *p) {
  if (p != NULL && atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) == 1) {
    free(p);
  }
}

const ttc_error *ttc__poison_error(const ttc__poison *p) {
  return &p->err;
}

bool ttc__poison_claim(ttc__poison *p) {
  return !atomic_exchange(&p->claimed, true);
}

bool ttc__poison_claimed(const ttc__poison *p) {
  return atomic_load(&p->claimed);
}
