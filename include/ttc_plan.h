/* ttc_plan.h - compiling for a TPU that is not here, and what its compiler says of the program. Conventions as in ttc.h.
 *
 * libtpu compiles without a chip. What it cannot take it may answer by ending the process, and a second process that loads it waits
 * in vain: use these functions in a process of their own (tools/ttc_aot.c), with ALLOW_MULTIPLE_LIBTPU_LOAD=1. */
#ifndef TTC_PLAN_H
#define TTC_PLAN_H

#include "ttc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ttc_topology ttc_topology; /* chips by name, such as "v5e:1x1" or "tpu7x:1x1x1" */

/* Of one device. */
typedef struct ttc_program_report {
  /* Device memory. Arguments and results that share memory count in both, and in alias_nbyte. */
  int64_t argument_nbyte, output_nbyte, alias_nbyte, temp_nbyte, code_nbyte;
  int64_t hbm_nbyte; /* the most at one time: arguments, results and temporaries, what they share once */
  double flops, transcendentals, bytes_accessed;
  int64_t cycles;   /* what the compiler estimates, summed over the instructions that it has an estimate for; a loop's body once */
  int64_t ncovered; /* these instructions */
} ttc_program_report;

/* plugin: path of libtpu.so. TTC_INVALID_ARGUMENT for a name that it does not know. blocks */
TTC_API TTC_MUST_USE ttc_status ttc_topology_open(const char *plugin, const char *name, ttc_topology **out, ttc_error *err);
TTC_API void ttc_topology_close(ttc_topology *t); /* NULL is fine */
/* Compile StableHLO for the first device. options: "name=value", NULL terminated, or NULL. TTC_RESOURCE_EXHAUSTED where the program
 * needs more memory than the chip has. blocks */
TTC_API TTC_MUST_USE ttc_status ttc_topology_compile(ttc_topology *t, const void *text, size_t nbyte, const char *const *options,
                                                     ttc_program_report *out, ttc_error *err);

#ifdef __cplusplus
}
#endif
#endif
