/* The unit tests' few macros: CHECK counts failures, CHECK_DONE prints the closing line and gives main's exit code. */
#ifndef TTC_TESTS_CHECK_H
#define TTC_TESTS_CHECK_H

#include <stdio.h>
#include <string.h>

static int check_passed, check_failed;

#define CHECK(cond)                                                     \
  do {                                                                  \
    if (cond) {                                                         \
      check_passed++;                                                   \
    } else {                                                            \
      check_failed++;                                                   \
      fprintf(stderr, "%s:%d: CHECK(%s)\n", __FILE__, __LINE__, #cond); \
    }                                                                   \
  } while (0)
#define CHECK_EQ(a, b)                                                                                   \
  do {                                                                                                   \
    long long check_a_ = (long long)(a), check_b_ = (long long)(b);                                      \
    if (check_a_ == check_b_) {                                                                          \
      check_passed++;                                                                                    \
    } else {                                                                                             \
      check_failed++;                                                                                    \
      fprintf(stderr, "%s:%d: %s is %lld, expected %lld\n", __FILE__, __LINE__, #a, check_a_, check_b_); \
    }                                                                                                    \
  } while (0)
#define CHECK_STR(a, b)                                                                                \
  do {                                                                                                 \
    const char *check_a_ = (a), *check_b_ = (b);                                                       \
    if (strcmp(check_a_, check_b_) == 0) {                                                             \
      check_passed++;                                                                                  \
    } else {                                                                                           \
      check_failed++;                                                                                  \
      fprintf(stderr, "%s:%d: %s is\n%s\nexpected\n%s\n", __FILE__, __LINE__, #a, check_a_, check_b_); \
    }                                                                                                  \
  } while (0)
#define CHECK_DONE() (printf("%d passed, %d failed\n", check_passed, check_failed), check_failed != 0)

#endif
