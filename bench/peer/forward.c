/* forward.c - a PJRT plugin between TorchTPU and an XLA:CPU plugin, so that they can be compared without a TPU.
 *
 * It is the plugin named by $FORWARD_TO, but for two entries. Client_Create: TorchTPU passes an option meant for libtpu
 * ("premapped_buffer_size"), which CPU plugins refuse; it is dropped, and "cpu_device_count" = 1 added, since TorchTPU wants one
 * device a process. OutputMemoryKinds: torch.compile asks for it and CPU plugins lack it; every output lies in "device".
 *
 * Used by bench/ alone, never by this backend. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_c_api.h"

const PJRT_Api *GetPjrtApi(void);

static const PJRT_Api *inner; /* the CPU plugin */
static PJRT_Api *outer;       /* its table with our two entries; as long as its own, since it may be newer than our header */

static int libtpu_only(const PJRT_NamedValue *v) {
  static const char name[] = "premapped_buffer_size";
  return v->name_size == sizeof name - 1 && memcmp(v->name, name, v->name_size) == 0;
}

static PJRT_Error *create_client(PJRT_Client_Create_Args *args) {
  PJRT_NamedValue *kept = calloc(args->num_options + 1, sizeof *kept);
  if (!kept) {
    fprintf(stderr, "forward: out of memory\n");
    exit(1);
  }
  size_t n = 0;
  for (size_t i = 0; i < args->num_options; i++)
    if (!libtpu_only(&args->create_options[i]))
      kept[n++] = args->create_options[i];
  kept[n++] = (PJRT_NamedValue){.struct_size = PJRT_NamedValue_STRUCT_SIZE,
                                .name = "cpu_device_count",
                                .name_size = strlen("cpu_device_count"),
                                .type = PJRT_NamedValue_kInt64,
                                .int64_value = 1,
                                .value_size = 1};
  const PJRT_NamedValue *theirs = args->create_options;
  size_t theirs_n = args->num_options;
  args->create_options = kept;
  args->num_options = n;
  PJRT_Error *error = inner->PJRT_Client_Create(args);
  args->create_options = theirs;
  args->num_options = theirs_n;
  free(kept);
  return error;
}

/* The arrays must live as long as the executable, whose end we do not see. Every output is in the same memory, so one pair of
 * constant arrays serves all executables. */
enum { MAX_OUTPUTS = 4096 };
static const char *kinds[MAX_OUTPUTS];
static size_t kind_sizes[MAX_OUTPUTS];

static PJRT_Error *output_memory_kinds(PJRT_Executable_OutputMemoryKinds_Args *args) {
  PJRT_Executable_NumOutputs_Args count = {.struct_size = PJRT_Executable_NumOutputs_Args_STRUCT_SIZE,
                                           .executable = args->executable};
  PJRT_Error *error = inner->PJRT_Executable_NumOutputs(&count);
  if (error)
    return error;
  if (count.num_outputs > MAX_OUTPUTS) {
    fprintf(stderr, "forward: an executable has %zu outputs, at most %d are served\n", count.num_outputs, MAX_OUTPUTS);
    exit(1);
  }
  args->num_outputs = count.num_outputs;
  args->memory_kinds = kinds;
  args->memory_kind_sizes = kind_sizes;
  return NULL;
}

const PJRT_Api *GetPjrtApi(void) {
  if (outer)
    return outer;
  const char *path = getenv("FORWARD_TO");
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  void *symbol = library ? dlsym(library, "GetPjrtApi") : NULL;
  if (!symbol) {
    fprintf(stderr, "forward: FORWARD_TO=%s: %s\n", path ? path : "(not set)", path ? dlerror() : "name a CPU plugin");
    exit(1);
  }
  const PJRT_Api *(*get)(void);
  memcpy(&get, &symbol, sizeof get); /* ISO C has no cast from an object pointer to a function pointer */
  inner = get();
  size_t size = inner->struct_size > sizeof *outer ? inner->struct_size : sizeof *outer;
  outer = calloc(1, size);
  if (!outer)
    exit(1);
  memcpy(outer, inner, inner->struct_size);
  for (size_t i = 0; i < MAX_OUTPUTS; i++) {
    kinds[i] = "device";
    kind_sizes[i] = strlen(kinds[i]);
  }
  outer->PJRT_Client_Create = create_client;
  outer->PJRT_Executable_OutputMemoryKinds = output_memory_kinds;
  return outer;
}
