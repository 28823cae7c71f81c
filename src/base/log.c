#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static ttc__log_level limit(void) {
  const char *s = getenv("TORCH_TPU_LOG");
  if (s == NULL || s[0] < '0' || s[0] > '9') {
    return TTC__LOG_WARN;
  }
  return (ttc__log_level)(s[0] - '0');
}

void ttc__log(ttc__log_level level, const char *fmt, ...) {
  static const char *const names[] = {"error", "warning", "info", "debug"};
  if (level > limit()) {
    return;
  }
  char line[2048];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(line, sizeof line, fmt, ap);
  va_end(ap);
  fprintf(stderr, "torch_tpu: %s: %s\n", names[level], line);
}
