/* A program compiled for a topology, and what its compiler says of it. */
#include <stdlib.h>
#include <string.h>

#include "pjrt/pjrt.h"
#include "ttc_plan.h"

struct ttc_topology {
  pjrt_topology *inner;
};

ttc_status ttc_topology_open(const char *plugin, const char *name, ttc_topology **out, ttc_error *err) {
  pjrt_plugin *p = NULL;
  memset(err, 0, sizeof *err);
  TTC_TRY(pjrt_plugin_load(plugin, &p, err));
  ttc_topology *t = calloc(1, sizeof *t);
  if (t == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory");
  }
  ttc_status status = pjrt_topology_new(p, name, &t->inner, err);
  if (status != TTC_OK) {
    free(t);
    return status;
  }
  *out = t;
  return TTC_OK;
}

void ttc_topology_close(ttc_topology *t) {
  if (t != NULL) {
    pjrt_topology_free(t->inner);
    free(t);
  }
}

/* libtpu writes what it thinks an instruction takes into the instruction's configuration, which is JSON within the serialized
 * program: "estimated_cycles":"30115". No other text has these words. INT64_MAX, as of a scatter for v6e, is no estimate. */
static void count_cycles(const char *bytes, size_t n, ttc_program_report *out) {
  static const char key[] = "\"estimated_cycles\":\"";
  const char *at = bytes, *end = bytes + n;
  while (at < end && (at = memmem(at, (size_t)(end - at), key, sizeof key - 1)) != NULL) {
    int64_t v = 0;
    for (at += sizeof key - 1; at < end && *at >= '0' && *at <= '9' && v < INT64_MAX / 100; at++) {
      v = 10 * v + (*at - '0');
    }
    if (v < INT64_MAX / 100) {
      out->cycles += v;
      out->ncovered++;
    }
  }
}

ttc_status ttc_topology_compile(ttc_topology *t, const void *text, size_t nbyte, const char *const *options,
                                ttc_program_report *out, ttc_error *err) {
  pjrt_aot a;
  memset(err, 0, sizeof *err);
  TTC_TRY(pjrt_topology_compile(t->inner, text, nbyte, options, &a, err));
  *out = (ttc_program_report){.argument_nbyte = a.argument_nbyte,
                              .output_nbyte = a.output_nbyte,
                              .alias_nbyte = a.alias_nbyte,
                              .temp_nbyte = a.temp_nbyte,
                              .code_nbyte = a.code_nbyte,
                              .hbm_nbyte = a.argument_nbyte + a.output_nbyte - a.alias_nbyte + a.temp_nbyte,
                              .flops = a.flops,
                              .transcendentals = a.transcendentals,
                              .bytes_accessed = a.bytes_accessed};
  if (a.optimized != NULL) {
    count_cycles(a.optimized, a.optimized_nbyte, out);
  }
  free(a.optimized);
  return TTC_OK;
}
