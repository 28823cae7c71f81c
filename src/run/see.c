/* Dumps: each program in a folder of its own, with its text, what XLA writes of its work on it, and what it takes of memory. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "run/run.h"
#include "ttc_see.h"

#define MAX_FLAGS 160

static ttc__lock lock = TTC__LOCK_INIT(TTC__RANK_LOG); /* dir; taken last: under the dispatch lock too */
static char *dir;
static atomic_bool on; /* dir is set: what calls look at */
static atomic_uint nprogram;

void ttc_dump_to(const char *path) {
  char *copy = path != NULL ? strdup(path) : NULL;
  ttc__lock_take(&lock);
  char *old = dir;
  dir = copy;
  atomic_store(&on, dir != NULL);
  ttc__lock_drop(&lock);
  free(old);
}

char *ttc__dump_dir(void) {
  if (!atomic_load_explicit(&on, memory_order_relaxed)) {
    return NULL;
  }
  ttc__lock_take(&lock);
  char *copy = dir != NULL ? strdup(dir) : NULL;
  ttc__lock_drop(&lock);
  return copy;
}

static void write_file(const char *folder, const char *name, const char *text, size_t nbyte) {
  char path[4400];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = fopen(path, "wbe");
  bool good = f != NULL && fwrite(text, 1, nbyte, f) == nbyte;
  if ((f != NULL && fclose(f) != 0) || !good) {
    ttc__log(TTC__LOG_WARN, "dump: cannot write %s: %s", path, strerror(errno));
  }
}

static void write_sizes(const char *folder, const ttc_plan *plan, const pjrt_exe *exe) {
  pjrt_memory m;
  ttc_error ignored;
  if (pjrt_exe_memory(exe, &m, &ignored) != TTC_OK) {
    return; /* the plugin does not tell */
  }
  char text[1024];
  snprintf(text, sizeof text,
           "{\n  \"parameters\": %u,\n  \"results\": %u,\n  \"argument_bytes\": %lld,\n  \"output_bytes\": %lld,\n"
           "  \"alias_bytes\": %lld,\n  \"temp_bytes\": %lld,\n  \"code_bytes\": %lld\n}\n",
           plan->low.nparam, plan->low.nproduct, (long long)m.argument_nbyte, (long long)m.output_nbyte, (long long)m.alias_nbyte,
           (long long)m.temp_nbyte, (long long)m.code_nbyte);
  write_file(folder, "sizes.json", text, strlen(text));
}

/* <dir>/program_0007_<op>, an op's dots and the like made underscores. */
static void name_folder(const ttc_plan *plan, char *folder, size_t n) {
  char op[80];
  snprintf(op, sizeof op, "%s", ttc__op_row(plan->op)->name);
  for (char *c = op; *c != '\0'; c++) {
    bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
    *c = plain ? *c : '_';
  }
  snprintf(folder, n, "%.4000s/program_%04u_%s", plan->dump, atomic_fetch_add(&nprogram, 1) + 1, op);
}

ttc_status ttc__dump_compile(ttc_plan *plan, pjrt_exe **out, ttc_error *err) {
  char folder[4200], to[4300];
  const char *flags[MAX_FLAGS + 3] = {0};
  const char *const *given = ttc__options(plan->options);
  size_t n = 0;
  while (given != NULL && given[n] != NULL && n < MAX_FLAGS) {
    flags[n] = given[n];
    n++;
  }
  name_folder(plan, folder, sizeof folder);
  if (mkdir(folder, 0777) != 0) {
    ttc__log(TTC__LOG_WARN, "dump: cannot make %s: %s", folder, strerror(errno));
  }
  write_file(folder, "stablehlo.mlir", plan->low.text, plan->low.text_nbyte);
  snprintf(to, sizeof to, "xla_dump_to=%s", folder);
  flags[n] = to;
  flags[n + 1] = "xla_dump_hlo_as_text=true";
  ttc_status st = ttc__cache_compile(plan->dev->cache, plan->dev->index, plan->low.text, plan->low.text_nbyte, flags, out, err);
  if (st == TTC_INVALID_ARGUMENT) { /* perhaps a plugin that knows no such options */
    flags[n] = NULL;
    st = ttc__cache_compile(plan->dev->cache, plan->dev->index, plan->low.text, plan->low.text_nbyte, flags, out, err);
  }
  if (st == TTC_OK) {
    write_sizes(folder, plan, *out);
  } else {
    write_file(folder, "error.txt", err->message, strlen(err->message));
  }
  return st;
}
