/* Compiling, serializing, loading. CompileOptionsProto is written by hand: six fields of a stable wire format against a dependency
 * on protobuf. Field numbers as in XLA's compile_options.proto and xla_data.proto. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "pjrt/call.h"

/* ---- protobuf: a varint, a varint field, a length-delimited field */

static void put_varint(ttc__str *s, uint64_t v) {
  do {
    unsigned char byte = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
    ttc__str_addn(s, &byte, 1);
    v >>= 7;
  } while (v != 0);
}

static void put_int(ttc__str *s, unsigned field, int64_t v) {
  put_varint(s, (uint64_t)field << 3);
  put_varint(s, (uint64_t)v);
}

static void put_bytes(ttc__str *s, unsigned field, const void *bytes, size_t n) {
  put_varint(s, ((uint64_t)field << 3) | 2);
  put_varint(s, n);
  ttc__str_addn(s, bytes, n);
}

/* Add `message` as a field and free it. */
static void put_message(ttc__str *s, unsigned field, ttc__str *message) {
  put_bytes(s, field, ttc__str_get(message), message->len);
  s->failed = s->failed || message->failed;
  ttc__str_free(message);
}

enum { OPTIONS_MAX = 1 << 16 };

/* DeviceAssignmentProto of one replica on one device: which device a program runs on is said here; device_ordinal alone is not
 * heeded. */
static void put_assignment(ttc__str *s, unsigned field, int id) {
  ttc__str computation, assignment;
  ttc__str_init(&computation, OPTIONS_MAX);
  ttc__str_init(&assignment, OPTIONS_MAX);
  put_int(&computation, 1, id); /* replica_device_ids */
  put_int(&assignment, 1, 1);   /* replica_count */
  put_int(&assignment, 2, 1);   /* computation_count */
  put_message(&assignment, 3, &computation);
  put_message(s, field, &assignment);
}

/* map<string, OptionOverrideProto>: values travel as strings, XLA parses them to the option's type, but knows booleans only as
 * "True" and "False". */
static ttc_status put_flag(ttc__str *s, const char *flag, ttc_error *err) {
  const char *equals = strchr(flag, '=');
  if (equals == NULL || equals == flag) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected an XLA flag as name=value, got \"%s\"", flag);
  }
  const char *setting = equals + 1;
  setting = strcmp(setting, "true") == 0 ? "True" : strcmp(setting, "false") == 0 ? "False" : setting;
  ttc__str entry, value;
  ttc__str_init(&entry, OPTIONS_MAX);
  ttc__str_init(&value, OPTIONS_MAX);
  put_bytes(&value, 1, setting, strlen(setting));      /* string_field */
  put_bytes(&entry, 1, flag, (size_t)(equals - flag)); /* the map's key */
  put_message(&entry, 2, &value);                      /* the map's value */
  put_message(s, 7, &entry);                           /* env_option_overrides */
  return TTC_OK;
}

/* TorchTPU's names for ExecutionOptions.EffortLevel, O0 to O3, which XLA numbers 9, 19, 29 and 39. 0: another flag; -1: a bad
 * value. */
static int effort(const char *flag, const char *name) {
  size_t n = strlen(name);
  if (strncmp(flag, name, n) != 0 || flag[n] != '=') {
    return 0;
  }
  const char *v = flag + n + 1;
  return v[0] == 'O' && v[1] >= '0' && v[1] <= '3' && v[2] == '\0' ? 9 + 10 * (v[1] - '0') : -1;
}

/* Effort is a field of the build options; returns false if the flag is no effort. */
static bool put_effort(ttc__str *build, const char *flag, bool *bad) {
  int level = effort(flag, "xla_optimization_level"), fitting = effort(flag, "xla_memory_fitting_level");
  if (level > 0 || fitting > 0) {
    put_int(build, level > 0 ? 24 : 25, level > 0 ? level : fitting);
  }
  *bad = level < 0 || fitting < 0;
  return level != 0 || fitting != 0;
}

static ttc_status device_id(const pjrt_client *c, PJRT_Device *device, int *id, ttc_error *err) {
  PJRT_Device_GetDescription_Args description = {.device = device};
  TTC_TRY(PJRT_CALL(c->plugin, PJRT_Device_GetDescription, &description, err));
  TTC_TRY(PJRT_GAVE(c->plugin, PJRT_Device_GetDescription, description.device_description, err));
  PJRT_DeviceDescription_Id_Args number = {.device_description = description.device_description};
  TTC_TRY(PJRT_CALL(c->plugin, PJRT_DeviceDescription_Id, &number, err));
  *id = number.id;
  return TTC_OK;
}

ttc_status ttc__pjrt_write_options(int id, bool on_cpu, const char *const *flags, ttc__str *out, ttc_error *err) {
  ttc__str build;
  ttc__str_init(out, OPTIONS_MAX);
  ttc__str_init(&build, OPTIONS_MAX);
  put_int(&build, 1, -1); /* device_ordinal: none, the assignment says it */
  put_int(&build, 4, 1);  /* num_replicas: plugins abort without it */
  put_int(&build, 5, 1);  /* num_partitions: likewise */
  put_assignment(&build, 9, id);
  bool bad = false;
  for (const char *const *f = flags; f != NULL && *f != NULL && !bad; f++) {
    if (put_effort(&build, *f, &bad) && bad) {
      ttc__str_free(&build);
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected an effort of O0, O1, O2 or O3, got \"%s\"", *f);
    }
  }
  put_message(out, 3, &build); /* executable_build_options */
  put_int(out, 4, 0);          /* compile_portable_executable */
  if (on_cpu) {
    /* XLA:CPU's default makes maximum(1, NaN) 1, against StableHLO and PyTorch. A caller's flag of that name comes later and wins.
     */
    TTC_TRY(put_flag(out, "xla_cpu_enable_fast_min_max=false", err));
  }
  for (; flags != NULL && *flags != NULL; flags++) {
    if (effort(*flags, "xla_optimization_level") == 0 && effort(*flags, "xla_memory_fitting_level") == 0) {
      TTC_TRY(put_flag(out, *flags, err));
    }
  }
  if (out->failed) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "the XLA flags take more than %d bytes", OPTIONS_MAX);
  }
  return TTC_OK;
}

/* Likewise, for a device of the client. */
static ttc_status write_options(const pjrt_client *c, int device, const char *const *flags, ttc__str *out, ttc_error *err) {
  ttc__str_init(out, OPTIONS_MAX);
  PJRT_Device *d = NULL;
  int id = 0;
  TTC_TRY(ttc__pjrt_device(c, device, &d, err));
  TTC_TRY(device_id(c, d, &id, err));
  return ttc__pjrt_write_options(id, strcmp(c->platform, "cpu") == 0, flags, out, err);
}

/* ---- executables */

static ttc_status get_executable(const pjrt_exe *e, PJRT_Executable **out, ttc_error *err) {
  PJRT_LoadedExecutable_GetExecutable_Args args = {.loaded_executable = e->loaded};
  TTC_TRY(PJRT_CALL(e->plugin, PJRT_LoadedExecutable_GetExecutable, &args, err));
  TTC_TRY(PJRT_GAVE(e->plugin, PJRT_LoadedExecutable_GetExecutable, args.executable, err));
  *out = args.executable;
  return TTC_OK;
}

/* Takes `loaded` over, also on failure. */
static ttc_status wrap(const pjrt_client *c, PJRT_LoadedExecutable *loaded, pjrt_exe **out, ttc_error *err) {
  TTC_TRY(PJRT_GAVE(c->plugin, PJRT_Client_Compile, loaded, err));
  pjrt_exe *e = calloc(1, sizeof *e);
  if (e == NULL) {
    PJRT_DESTROY(c->plugin, PJRT_LoadedExecutable_Destroy, executable, loaded);
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory");
  }
  e->plugin = c->plugin;
  e->loaded = loaded;
  PJRT_Executable *executable = NULL;
  ttc_status status = get_executable(e, &executable, err);
  if (status == TTC_OK) {
    PJRT_Executable_NumOutputs_Args outputs = {.executable = executable};
    status = PJRT_CALL(c->plugin, PJRT_Executable_NumOutputs, &outputs, err);
    e->nout = outputs.num_outputs < INT_MAX ? (int)outputs.num_outputs : INT_MAX;
    ttc_error ignored;
    PJRT_Executable_GetCompiledMemoryStats_Args memory = {.executable = executable};
    if (status == TTC_OK && PJRT_CALL(c->plugin, PJRT_Executable_GetCompiledMemoryStats, &memory, &ignored) == TTC_OK) {
      e->temp_nbyte = memory.temp_size_in_bytes > 0 ? memory.temp_size_in_bytes : 0;
    }
    PJRT_DESTROY(c->plugin, PJRT_Executable_Destroy, executable, executable);
  }
  if (status != TTC_OK) {
    pjrt_exe_free(e);
    return status;
  }
  *out = e;
  return TTC_OK;
}

PJRT_Program ttc__pjrt_program(const char *text, size_t nbyte) {
  static const char format[] = "mlir";
  union {
    const char *in;
    char *code; /* only written to by calls that return a program */
  } given = {.in = text};
  return (PJRT_Program){.struct_size = PJRT_Program_STRUCT_SIZE,
                        .code = given.code,
                        .code_size = nbyte,
                        .format = format,
                        .format_size = sizeof format - 1};
}

ttc_status pjrt_compile(pjrt_client *c, int device, const char *text, size_t nbyte, const char *const *xla_flags, pjrt_exe **out,
                        ttc_error *err) {
  ttc__str options;
  ttc_status status = write_options(c, device, xla_flags, &options, err);
  if (status == TTC_OK) {
    PJRT_Program program = ttc__pjrt_program(text, nbyte);
    PJRT_Client_Compile_Args args = {
        .client = c->client, .program = &program, .compile_options = ttc__str_get(&options), .compile_options_size = options.len};
    status = PJRT_CALL(c->plugin, PJRT_Client_Compile, &args, err);
    if (status == TTC_OK) {
      status = wrap(c, args.executable, out, err);
    }
  }
  ttc__str_free(&options);
  return status;
}

ttc_status pjrt_exe_serialize(pjrt_exe *e, char **bytes, size_t *nbyte, ttc_error *err) {
  PJRT_Executable *executable = NULL;
  TTC_TRY(get_executable(e, &executable, err));
  PJRT_Executable_Serialize_Args args = {.executable = executable};
  ttc_status status = PJRT_CALL(e->plugin, PJRT_Executable_Serialize, &args, err);
  if (status == TTC_OK) {
    size_t n = args.serialized_bytes_size;
    status = PJRT_GAVE(e->plugin, PJRT_Executable_Serialize, args.serialized_bytes, err);
    char *copy = status == TTC_OK && n < SIZE_MAX ? malloc(n + 1) : NULL;
    if (status == TTC_OK && copy == NULL) {
      status = TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory: a serialized program of %zu bytes", n);
    } else if (status == TTC_OK) {
      memcpy(copy, args.serialized_bytes, n);
      *bytes = copy;
      *nbyte = n;
    }
    if (args.serialized_executable_deleter != NULL) {
      args.serialized_executable_deleter(args.serialized_executable);
    }
  }
  PJRT_DESTROY(e->plugin, PJRT_Executable_Destroy, executable, executable);
  return status;
}

ttc_status pjrt_exe_deserialize(pjrt_client *c, int device, const char *bytes, size_t nbyte, pjrt_exe **out, ttc_error *err) {
  ttc__str options; /* say the device again: the bytes may come from another one */
  ttc_status status = write_options(c, device, NULL, &options, err);
  if (status == TTC_OK) {
    PJRT_Executable_DeserializeAndLoad_Args args = {.client = c->client,
                                                    .serialized_executable = bytes,
                                                    .serialized_executable_size = nbyte,
                                                    .overridden_serialized_compile_options = ttc__str_get(&options),
                                                    .overridden_serialized_compile_options_size = options.len};
    status = PJRT_CALL(c->plugin, PJRT_Executable_DeserializeAndLoad, &args, err);
    if (status == TTC_OK) {
      status = wrap(c, args.loaded_executable, out, err);
    }
  }
  ttc__str_free(&options);
  return status;
}

void pjrt_exe_free(pjrt_exe *e) {
  if (e != NULL) {
    PJRT_DESTROY(e->plugin, PJRT_LoadedExecutable_Destroy, executable, e->loaded);
    free(e);
  }
}

ttc_status pjrt_exe_memory(const pjrt_exe *e, pjrt_memory *out, ttc_error *err) {
  PJRT_Executable *executable = NULL;
  TTC_TRY(get_executable(e, &executable, err));
  PJRT_Executable_GetCompiledMemoryStats_Args args = {.executable = executable};
  ttc_status status = PJRT_CALL(e->plugin, PJRT_Executable_GetCompiledMemoryStats, &args, err);
  if (status == TTC_OK) {
    *out = (pjrt_memory){.argument_nbyte = args.argument_size_in_bytes,
                         .output_nbyte = args.output_size_in_bytes,
                         .alias_nbyte = args.alias_size_in_bytes,
                         .temp_nbyte = args.temp_size_in_bytes,
                         .code_nbyte = args.generated_code_size_in_bytes};
  }
  PJRT_DESTROY(e->plugin, PJRT_Executable_Destroy, executable, executable);
  return status;
}

static ttc_status compare_results(const pjrt_exe *e, PJRT_Executable *executable, size_t n, const ttc_dtype *dtypes,
                                  const int *ndims, const int64_t *const *dims, ttc_error *err) {
  PJRT_Executable_OutputElementTypes_Args types = {.executable = executable};
  TTC_TRY(PJRT_CALL(e->plugin, PJRT_Executable_OutputElementTypes, &types, err));
  PJRT_Executable_OutputDimensions_Args sizes = {.executable = executable};
  TTC_TRY(PJRT_CALL(e->plugin, PJRT_Executable_OutputDimensions, &sizes, err));
  if (types.num_output_types != n || sizes.num_outputs != n) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "the program gives %zu results, expected %zu", sizes.num_outputs, n);
  }
  const int64_t *at = sizes.dims;
  for (size_t k = 0; k < n; k++) {
    size_t ndim = sizes.dim_sizes[k];
    if (types.output_types[k] != ttc__pjrt_type(dtypes[k])) {
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "result %zu of the program has element type %d, expected %s", k,
                      (int)types.output_types[k], ttc_dtype_name(dtypes[k]));
    }
    if (ndim != (size_t)ndims[k] || (ndim != 0 && memcmp(at, dims[k], ndim * sizeof *at) != 0)) {
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "result %zu of the program, of %zu dimensions, has other sizes than expected", k,
                      ndim);
    }
    at += ndim;
  }
  return TTC_OK;
}

ttc_status pjrt_exe_check_results(const pjrt_exe *e, size_t n, const ttc_dtype *dtypes, const int *ndims,
                                  const int64_t *const *dims, ttc_error *err) {
  PJRT_Executable *executable = NULL;
  TTC_TRY(get_executable(e, &executable, err));
  ttc_status status = compare_results(e, executable, n, dtypes, ndims, dims, err);
  PJRT_DESTROY(e->plugin, PJRT_Executable_Destroy, executable, executable);
  return status;
}

int64_t pjrt_exe_temp_nbyte(const pjrt_exe *e) {
  return e->temp_nbyte;
}

int pjrt_exe_nout(const pjrt_exe *e) {
  return e->nout;
}
