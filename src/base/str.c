#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ttc__str_init(ttc__str *s, size_t max_nbyte) {
  memset(s, 0, sizeof *s);
  s->max = max_nbyte;
}

void ttc__str_free(ttc__str *s) {
  free(s->data);
  ttc__str_init(s, s->max);
}

void ttc__str_clear(ttc__str *s) {
  s->len = 0;
  s->failed = false;
  if (s->data != NULL) {
    s->data[0] = '\0';
  }
}

static bool reserve(ttc__str *s, size_t n) {
  if (s->failed || n > s->max - s->len) {
    s->failed = true;
    return false;
  }
  size_t need = s->len + n + 1;
  if (need > s->cap) {
    size_t cap = s->cap == 0 ? 256 : s->cap;
    while (cap < need) {
      cap *= 2;
    }
    char *p = realloc(s->data, cap);
    if (p == NULL) {
      s->failed = true;
      return false;
    }
    s->data = p;
    s->cap = cap;
  }
  return true;
}

void ttc__str_addn(ttc__str *s, const void *bytes, size_t n) {
  if (reserve(s, n)) {
    if (n != 0) {
      memcpy(s->data + s->len, bytes, n);
    }
    s->len += n;
    s->data[s->len] = '\0';
  }
}

void ttc__str_add(ttc__str *s, const char *text) {
  ttc__str_addn(s, text, strlen(text));
}

void ttc__str_addf(ttc__str *s, const char *fmt, ...) {
  va_list ap, again;
  va_start(ap, fmt);
  va_copy(again, ap);
  int n = vsnprintf(NULL, 0, fmt, ap);
  va_end(ap);
  if (n >= 0 && reserve(s, (size_t)n)) {
    vsnprintf(s->data + s->len, (size_t)n + 1, fmt, again);
    s->len += (size_t)n;
  } else {
    s->failed = true;
  }
  va_end(again);
}

const char *ttc__str_get(const ttc__str *s) {
  return s->data != NULL ? s->data : "";
}

char *ttc__str_take(ttc__str *s) {
  if (s->failed) {
    return NULL;
  }
  if (s->data == NULL) {
    return calloc(1, 1);
  }
  char *p = s->data;
  ttc__str_init(s, s->max);
  return p;
}
