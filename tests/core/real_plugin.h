/* The XLA:CPU plugin that tests run on: TTC_CPU_PLUGIN names it, or TTC_TEST_SITE_PACKAGES where packages lie. */
#ifndef TTC_TESTS_REAL_PLUGIN_H
#define TTC_TESTS_REAL_PLUGIN_H

#include <stdio.h>
#include <stdlib.h>

#include "pjrt/pjrt.h"

/* AddressSanitizer: a plugin's compiler leaks a few bytes a program. What of a plugin's we let go of is counted on the fake one. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
  return "leak:cpu_plugin\n";
}

/* False: there is none, or it cannot be used; the test is skipped. */
static bool find_plugin(char *path, size_t size) {
#if defined(__SANITIZE_THREAD__) /* which sees a race wherever a plugin's own threads meet, for it was not told of their locks */
  (void)path;
  (void)size;
  printf("1 skipped: a plugin is not compiled for ThreadSanitizer\n");
  return false;
#else
  const char *named = getenv("TTC_CPU_PLUGIN"), *dirs = getenv("TTC_TEST_SITE_PACKAGES");
  pjrt_choice choice;
  ttc_error error;
  if (named != NULL && named[0] != '\0') {
    snprintf(path, size, "%s", named);
    return true;
  }
  if (dirs == NULL || pjrt_discover(dirs, &choice, &error) != TTC_OK || choice.source == PJRT_FROM_LIBTPU) {
    printf("1 skipped: no CPU plugin (set TTC_CPU_PLUGIN to one, or TTC_TEST_SITE_PACKAGES to where its package lies)\n");
    return false;
  }
  snprintf(path, size, "%s", choice.path);
  return true;
#endif
}

#endif
