/* Options for XLA's compiler: lists that calls are compiled under. A list, once made, stays: plans and keys name it by number. */
#include <stdlib.h>
#include <string.h>

#include "run/run.h"

#define MAX_OPTION_SETS 256
#define MAX_OPTIONS 128

static ttc__lock sets_lock = TTC__LOCK_INIT(TTC__RANK_OPEN);
static char **_Atomic sets[MAX_OPTION_SETS]; /* NULL terminated lists; 0: what the environment says */
static uint32_t nset = 1;
atomic_uint ttc__option_set;

const char *const *ttc__options(uint32_t set) {
  if (set >= MAX_OPTION_SETS) {
    return NULL;
  }
  union {
    char **made;
    const char *const *list;
  } p = {.made = atomic_load_explicit(&sets[set], memory_order_acquire)};
  return p.list;
}

static void free_list(char **list) {
  for (char **p = list; p != NULL && *p != NULL; p++) {
    free(*p);
  }
  free(list);
}

/* The environment's list, then `more`. NULL when out of memory. */
static char **copy_list(const char *const *more) {
  const char *const *from[2] = {ttc__options(0), more};
  char **list = calloc(2 * MAX_OPTIONS + 1, sizeof *list);
  size_t n = 0;
  for (int k = 0; list != NULL && k < 2; k++) {
    for (size_t i = 0; from[k] != NULL && from[k][i] != NULL && i < MAX_OPTIONS; i++) {
      list[n] = strdup(from[k][i]);
      if (list[n++] == NULL) {
        free_list(list);
        return NULL;
      }
    }
  }
  return list;
}

/* Does the compiler know them all? Asked of an empty program, so that a wrong name is an error where it is given. */
static ttc_status try_options(ttc_device *dev, char **list, ttc_error *err) {
  static const char text[] =
      "module @options { func.func public @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> } }";
  union {
    char **made;
    const char *const *list;
  } p = {.made = list};
  pjrt_exe *exe;
  TTC_TRY(pjrt_compile(dev->client, dev->index, text, sizeof text - 1, p.list, &exe, err));
  pjrt_exe_free(exe);
  return TTC_OK;
}

static bool same(char **a, char **b) {
  while (*a != NULL && *b != NULL && strcmp(*a, *b) == 0) {
    a++;
    b++;
  }
  return *a == NULL && *b == NULL;
}

/* The number of `list`, which is taken over. Sets lock held. */
static ttc_status intern(char **list, uint32_t *set, ttc_error *err) {
  for (uint32_t k = 1; k < nset; k++) {
    if (same(atomic_load(&sets[k]), list)) {
      free_list(list);
      *set = k;
      return TTC_OK;
    }
  }
  if (nset == MAX_OPTION_SETS) {
    free_list(list);
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "a process may use %d lists of compiler options, and has used them up",
                    MAX_OPTION_SETS);
  }
  atomic_store_explicit(&sets[nset], list, memory_order_release);
  *set = nset++;
  return TTC_OK;
}

ttc_status ttc_compile_options_add(ttc_device *dev, const char *const *options, uint32_t *set, ttc_error *err) {
  err->op[0] = '\0';
  TTC_TRY(ttc__usable(dev, err));
  size_t n = 0;
  while (options[n] != NULL) {
    n++;
  }
  if (n > MAX_OPTIONS) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected at most %d compiler options, got %zu", MAX_OPTIONS, n);
  }
  char **list = copy_list(options);
  if (list == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  ttc_status st = try_options(dev, list, err);
  if (st != TTC_OK) {
    free_list(list);
    return st;
  }
  ttc__lock_take(&sets_lock);
  st = intern(list, set, err);
  ttc__lock_drop(&sets_lock);
  return st;
}

uint32_t ttc_compile_options_use(uint32_t set) {
  return atomic_exchange(&ttc__option_set, set < MAX_OPTION_SETS && ttc__options(set) != NULL ? set : 0);
}

ttc_status ttc__options_from_environment(ttc_device *dev, ttc_error *err) {
  const char *text = getenv("TORCH_TPU_INTERNAL_XLA_OPTIONS");
  if (text == NULL || text[strspn(text, " \t\n")] == '\0' || ttc__options(0) != NULL) {
    return TTC_OK;
  }
  char *copy = strdup(text), *rest = NULL;
  const char *options[MAX_OPTIONS + 1] = {0};
  size_t n = 0;
  for (char *p = copy != NULL ? strtok_r(copy, " \t\n", &rest) : NULL; p != NULL && n < MAX_OPTIONS;
       p = strtok_r(NULL, " \t\n", &rest)) {
    options[n++] = p;
  }
  char **list = copy_list(options);
  free(copy);
  if (copy == NULL || list == NULL) {
    free_list(list);
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  ttc_error why;
  if (try_options(dev, list, &why) != TTC_OK) {
    free_list(list);
    return TTC_FAIL(err, why.code, "TORCH_TPU_INTERNAL_XLA_OPTIONS=\"%s\": %s", text, why.message);
  }
  atomic_store_explicit(&sets[0], list, memory_order_release);
  return TTC_OK;
}
