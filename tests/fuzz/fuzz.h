/* Fuzz targets: an entry point in libFuzzer's form, and MUST for what has to hold. */
#ifndef TTC_TESTS_FUZZ_H
#define TTC_TESTS_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define MUST(cond)                                                     \
  do {                                                                 \
    if (!(cond)) {                                                     \
      fprintf(stderr, "%s:%d: MUST(%s)\n", __FILE__, __LINE__, #cond); \
      abort();                                                         \
    }                                                                  \
  } while (0)

#endif
