/* A string (or byte) buffer that grows up to a maximum fixed at its creation. Failure is sticky: check once, at the end. */
#ifndef TTC_BASE_STR_H
#define TTC_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ttc__str {
  char *data; /* NUL terminated once anything was added */
  size_t len, cap, max;
  bool failed; /* out of memory or over max */
} ttc__str;

void ttc__str_init(ttc__str *s, size_t max_nbyte);
void ttc__str_free(ttc__str *s);
void ttc__str_clear(ttc__str *s); /* keeps the memory */
void ttc__str_add(ttc__str *s, const char *text);
void ttc__str_addn(ttc__str *s, const void *bytes, size_t n);
void ttc__str_addf(ttc__str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The text, "" when empty; never NULL. */
const char *ttc__str_get(const ttc__str *s);
/* The text to free() later, the buffer becomes empty; NULL when failed. */
char *ttc__str_take(ttc__str *s);

#endif
