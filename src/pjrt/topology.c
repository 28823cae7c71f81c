/* Compiling for devices that are not here: a topology by its name, and what can be asked of a program without running it. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "pjrt/call.h"

struct pjrt_topology {
  const pjrt_plugin *plugin;
  PJRT_TopologyDescription *description;
};

ttc_status pjrt_topology_new(pjrt_plugin *p, const char *name, pjrt_topology **out, ttc_error *err) {
  pjrt_topology *t = calloc(1, sizeof *t);
  if (t == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory");
  }
  PJRT_TopologyDescription_Create_Args args = {.topology_name = name, .topology_name_size = strlen(name)};
  ttc_status status = PJRT_CALL(p, PJRT_TopologyDescription_Create, &args, err);
  if (status == TTC_OK) {
    status = PJRT_GAVE(p, PJRT_TopologyDescription_Create, args.topology, err);
  }
  if (status != TTC_OK) {
    free(t);
    return status;
  }
  t->plugin = p;
  t->description = args.topology;
  *out = t;
  return TTC_OK;
}

void pjrt_topology_free(pjrt_topology *t) {
  if (t != NULL) {
    PJRT_DESTROY(t->plugin, PJRT_TopologyDescription_Destroy, topology, t->description);
    free(t);
  }
}

static void read_memory(const pjrt_plugin *p, PJRT_Executable *e, pjrt_aot *out) {
  PJRT_Executable_GetCompiledMemoryStats_Args m = {.executable = e};
  ttc_error ignored;
  if (PJRT_CALL(p, PJRT_Executable_GetCompiledMemoryStats, &m, &ignored) == TTC_OK) {
    out->code_nbyte = m.generated_code_size_in_bytes;
    out->argument_nbyte = m.argument_size_in_bytes;
    out->output_nbyte = m.output_size_in_bytes;
    out->alias_nbyte = m.alias_size_in_bytes;
    out->temp_nbyte = m.temp_size_in_bytes;
  }
}

static void read_costs(const pjrt_plugin *p, PJRT_Executable *e, pjrt_aot *out) {
  const struct {
    const char *name;
    double *to;
  } wanted[] = {{"flops", &out->flops}, {"transcendentals", &out->transcendentals}, {"bytes accessed", &out->bytes_accessed}};
  PJRT_Executable_GetCostAnalysis_Args costs = {.executable = e};
  ttc_error ignored;
  if (PJRT_CALL(p, PJRT_Executable_GetCostAnalysis, &costs, &ignored) != TTC_OK) {
    return;
  }
  for (size_t i = 0; i < costs.num_properties; i++) {
    const PJRT_NamedValue *v = &costs.properties[i];
    for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
      if (v->type == PJRT_NamedValue_kFloat && strlen(wanted[k].name) == v->name_size &&
          memcmp(wanted[k].name, v->name, v->name_size) == 0) {
        *wanted[k].to = (double)v->float_value;
      }
    }
  }
}

/* Asked twice: for its size, then for its bytes. */
static void read_optimized(const pjrt_plugin *p, PJRT_Executable *e, pjrt_aot *out) {
  PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE};
  PJRT_Executable_OptimizedProgram_Args args = {.executable = e, .program = &program};
  ttc_error ignored;
  if (PJRT_CALL(p, PJRT_Executable_OptimizedProgram, &args, &ignored) != TTC_OK || program.code_size == 0) {
    return;
  }
  program.code = malloc(program.code_size);
  if (program.code != NULL && PJRT_CALL(p, PJRT_Executable_OptimizedProgram, &args, &ignored) == TTC_OK) {
    out->optimized = program.code;
    out->optimized_nbyte = program.code_size;
  } else {
    free(program.code);
  }
}

ttc_status pjrt_topology_compile(pjrt_topology *t, const char *text, size_t nbyte, const char *const *xla_flags, pjrt_aot *out,
                                 ttc_error *err) {
  PJRT_Program program = ttc__pjrt_program(text, nbyte);
  ttc__str options;
  ttc_status status = ttc__pjrt_write_options(0, false, xla_flags, &options, err);
  if (status == TTC_OK) {
    PJRT_Compile_Args args = {.topology = t->description,
                              .program = &program,
                              .compile_options = ttc__str_get(&options),
                              .compile_options_size = options.len};
    status = PJRT_CALL(t->plugin, PJRT_Compile, &args, err);
    if (status == TTC_OK) {
      status = PJRT_GAVE(t->plugin, PJRT_Compile, args.executable, err);
    }
    if (status == TTC_OK) {
      memset(out, 0, sizeof *out);
      read_memory(t->plugin, args.executable, out);
      read_costs(t->plugin, args.executable, out);
      read_optimized(t->plugin, args.executable, out);
      PJRT_DESTROY(t->plugin, PJRT_Executable_Destroy, executable, args.executable);
    }
  }
  ttc__str_free(&options);
  return status;
}
