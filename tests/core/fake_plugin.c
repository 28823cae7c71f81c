/* A PJRT plugin that "compiles" anything with a @main, checks what it is given, computes nothing (results are zeros), counts what
 * it hands out and fails on demand. Everything is ready at once, unless held. */
#include "fake_plugin.h"

#include <pjrt_c_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake_parse.h"

#define EXPORT __attribute__((visibility("default")))
enum { MAX_DEVICE = 8, MAX_CALLBACK = 4096 };

/* clang-format does not settle on a layout for this list. */
/* clang-format off */
#define CALLS(X)                                                                                                      \
  X(PJRT_Plugin_Initialize) X(PJRT_Event_Destroy) X(PJRT_Event_IsReady) X(PJRT_Event_Await) X(PJRT_Event_OnReady)      \
  X(PJRT_Client_Create)                                                                                                 \
  X(PJRT_Client_Destroy) X(PJRT_Client_PlatformName) X(PJRT_Client_PlatformVersion)                                   \
  X(PJRT_Client_AddressableDevices) X(PJRT_Client_Compile) X(PJRT_Client_BufferFromHostBuffer)                        \
  X(PJRT_Client_CreateUninitializedBuffer) X(PJRT_DeviceDescription_Id) X(PJRT_DeviceDescription_Kind)                \
  X(PJRT_Device_GetDescription) X(PJRT_Device_MemoryStats) X(PJRT_Executable_Destroy) X(PJRT_Executable_NumOutputs)   \
  X(PJRT_Executable_Serialize) X(PJRT_Executable_DeserializeAndLoad) X(PJRT_LoadedExecutable_Destroy)                 \
  X(PJRT_LoadedExecutable_GetExecutable) X(PJRT_LoadedExecutable_Execute) X(PJRT_Buffer_Destroy)                      \
  X(PJRT_Buffer_Dimensions) X(PJRT_Buffer_OnDeviceSizeInBytes) X(PJRT_Buffer_IsDeleted) X(PJRT_Buffer_ToHostBuffer)   \
  X(PJRT_Buffer_ReadyEvent) X(PJRT_Buffer_UnsafePointer) X(PJRT_Executable_GetCompiledMemoryStats)    \
  X(PJRT_Executable_OutputElementTypes) X(PJRT_Executable_OutputDimensions)
/* clang-format on */

enum call {
#define ENUM(name) CALL_##name,
  CALLS(ENUM)
#undef ENUM
      NCALL
};
static const char *const call_names[NCALL] = {
#define NAME(name) #name,
    CALLS(NAME)
#undef NAME
};

/* ---- objects */

struct PJRT_Error {
  PJRT_Error_Code code;
  char message[256];
};
struct PJRT_Event {
  PJRT_Error_Code code; /* what waiting for it returns */
};
struct PJRT_DeviceDescription {
  int id;
};
struct PJRT_Device {
  PJRT_DeviceDescription description;
};
struct PJRT_Client {
  PJRT_Device devices[MAX_DEVICE], *list[MAX_DEVICE];
  size_t ndevice;
  char platform[32];
};
struct PJRT_Buffer {
  shape is;
  void *data;
  bool deleted;
  PJRT_Device *device;
};
struct PJRT_Executable {
  program *program;
};
struct PJRT_LoadedExecutable {
  program *program;
};
struct PJRT_SerializedExecutable {
  char *bytes;
};

static atomic_long live, counts[NCALL], fail_countdown;
enum { FAIL_NONE = -1, FAIL_ANY = -2 };
static atomic_bool held; /* no event has come */
static pthread_mutex_t held_mutex = PTHREAD_MUTEX_INITIALIZER;
static PJRT_Event_OnReady_Args callbacks[MAX_CALLBACK];
static int ncallback;
static atomic_long starving = FAIL_NONE, nstarved; /* a function that finds no memory the next nstarved times */
static atomic_long failing = FAIL_NONE, failed = FAIL_NONE, delayed = FAIL_NONE, delay_ms;

/* Zeroed memory of an object that counts as alive until drop(). */
static void *make(size_t nbyte) {
  void *p = calloc(1, nbyte);
  if (p == NULL) {
    abort();
  }
  atomic_fetch_add(&live, 1);
  return p;
}

static void drop(void *p) {
  if (p != NULL) {
    atomic_fetch_sub(&live, 1);
    free(p);
  }
}

/* What the plugin does wrong, by name: ODD("null client"). */
static char misbehaviour[64];
static bool odd(const char *how) {
  return strcmp(misbehaviour, how) == 0;
}
#define ODD(how) odd(how)

static PJRT_Error *fault(PJRT_Error_Code code, const char *message, const char *detail) {
  PJRT_Error *e = make(sizeof *e);
  e->code = code;
  snprintf(e->message, sizeof e->message, "%s%s\n", message, detail);
  return e;
}

static PJRT_Error *enter(enum call call, size_t have, size_t need) {
  atomic_fetch_add(&counts[call], 1);
  if (have < need) {
    return fault(PJRT_Error_Code_INVALID_ARGUMENT, "argument struct is too small in ", call_names[call]);
  }
  if (atomic_load(&delayed) == (long)call) {
    long ms = atomic_load(&delay_ms);
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
  }
  if (atomic_load(&starving) == (long)call && atomic_fetch_sub(&nstarved, 1) > 0) {
    return fault(PJRT_Error_Code_RESOURCE_EXHAUSTED, "made to starve: ", call_names[call]);
  }
  long which = atomic_load(&failing);
  if ((which == FAIL_ANY || which == (long)call) && atomic_fetch_sub(&fail_countdown, 1) == 1) {
    atomic_store(&failing, FAIL_NONE);
    atomic_store(&failed, (long)call);
    return fault(PJRT_Error_Code_INTERNAL, "made to fail: ", call_names[call]);
  }
  return NULL;
}

#define CALL(name) static PJRT_Error *fake_##name(name##_Args *args)
#define ENTER(name) enter(CALL_##name, args->struct_size, name##_Args_STRUCT_SIZE)
/* Return early when the call was told to fail. */
#define BEGIN(name)                     \
  do {                                  \
    PJRT_Error *begin_e_ = ENTER(name); \
    if (begin_e_ != NULL) {             \
      return begin_e_;                  \
    }                                   \
  } while (0)
#define REFUSE_IF(cond, code, message)     \
  do {                                     \
    if (cond) {                            \
      return fault((code), (message), ""); \
    }                                      \
  } while (0)

/* ---- errors (these cannot fail) */

static void fake_PJRT_Error_Destroy(PJRT_Error_Destroy_Args *args) {
  drop(args->error);
}

static void fake_PJRT_Error_Message(PJRT_Error_Message_Args *args) {
  args->message = ODD("null message") ? NULL : args->error->message;
  args->message_size = ODD("huge message") ? SIZE_MAX : strlen(args->error->message);
}

static PJRT_Error *fake_PJRT_Error_GetCode(PJRT_Error_GetCode_Args *args) {
  args->code = ODD("bad code") ? (PJRT_Error_Code)12345 : args->error->code;
  return NULL;
}

/* ---- plugin, events, client */

CALL(PJRT_Plugin_Initialize) {
  return ENTER(PJRT_Plugin_Initialize);
}

static PJRT_Event *ready(PJRT_Error_Code code) {
  PJRT_Event *e = make(sizeof *e);
  e->code = code;
  return e;
}

CALL(PJRT_Event_Destroy) {
  drop(args->event);
  return ENTER(PJRT_Event_Destroy);
}

CALL(PJRT_Event_IsReady) {
  BEGIN(PJRT_Event_IsReady);
  return args->is_ready = !atomic_load(&held), NULL;
}

CALL(PJRT_Event_OnReady) {
  BEGIN(PJRT_Event_OnReady);
  pthread_mutex_lock(&held_mutex);
  if (atomic_load(&held) && ncallback < MAX_CALLBACK) {
    callbacks[ncallback++] = *args;
    args->callback = NULL;
  }
  pthread_mutex_unlock(&held_mutex);
  if (args->callback != NULL) {
    args->callback(NULL, args->user_arg);
  }
  return NULL;
}

CALL(PJRT_Event_Await) {
  BEGIN(PJRT_Event_Await);
  while (atomic_load(&held)) {
    struct timespec nap = {0, 1000000};
    nanosleep(&nap, NULL);
  }
  REFUSE_IF(args->event->code != PJRT_Error_Code_OK, args->event->code, "the buffer was deleted or donated");
  return NULL;
}

CALL(PJRT_Client_Create) {
  BEGIN(PJRT_Client_Create);
  size_t ndevice = 4;
  for (size_t i = 0; i < args->num_options; i++) {
    const PJRT_NamedValue *o = &args->create_options[i];
    bool count = o->name_size == 16 && memcmp(o->name, "cpu_device_count", 16) == 0;
    if (!count || getenv("FAKE_PLUGIN_STRICT") != NULL) {
      return fault(PJRT_Error_Code_INVALID_ARGUMENT, "unexpected option: ", o->name);
    }
    REFUSE_IF(o->type != PJRT_NamedValue_kInt64, PJRT_Error_Code_INVALID_ARGUMENT, "expected an int64");
    REFUSE_IF(o->int64_value < 0 || o->int64_value > MAX_DEVICE, PJRT_Error_Code_INVALID_ARGUMENT, "bad device count");
    ndevice = (size_t)o->int64_value;
  }
  const char *platform = getenv("FAKE_PLUGIN_PLATFORM");
  PJRT_Client *c = make(sizeof *c);
  snprintf(c->platform, sizeof c->platform, "%s", platform == NULL ? "cpu" : platform);
  c->ndevice = ndevice;
  for (size_t i = 0; i < ndevice; i++) {
    c->devices[i].description.id = 100 + (int)i; /* ids are no indices */
    c->list[i] = &c->devices[i];
  }
  args->client = c;
  if (ODD("null client")) {
    drop(c);
    args->client = NULL;
  }
  return NULL;
}

CALL(PJRT_Client_Destroy) {
  drop(args->client);
  return ENTER(PJRT_Client_Destroy);
}

CALL(PJRT_Client_PlatformName) {
  BEGIN(PJRT_Client_PlatformName);
  args->platform_name = args->client->platform;
  args->platform_name_size = strlen(args->client->platform);
  return NULL;
}

CALL(PJRT_Client_PlatformVersion) {
  BEGIN(PJRT_Client_PlatformVersion);
  args->platform_version = "fake 1, and more"; /* not terminated where its size says it ends */
  args->platform_version_size = 6;
  return NULL;
}

CALL(PJRT_Client_AddressableDevices) {
  BEGIN(PJRT_Client_AddressableDevices);
  static PJRT_Device *none[MAX_DEVICE];
  args->addressable_devices = ODD("null devices") ? NULL : ODD("null device") ? none : args->client->list;
  args->num_addressable_devices = ODD("many devices") ? SIZE_MAX : ODD("no devices") ? 0 : args->client->ndevice;
  return NULL;
}

CALL(PJRT_DeviceDescription_Id) {
  BEGIN(PJRT_DeviceDescription_Id);
  args->id = args->device_description->id;
  return NULL;
}

CALL(PJRT_DeviceDescription_Kind) {
  BEGIN(PJRT_DeviceDescription_Kind);
  args->device_kind = ODD("null kind") ? NULL : "fake chip";
  args->device_kind_size = ODD("huge kind") ? SIZE_MAX : 9;
  return NULL;
}

CALL(PJRT_Device_GetDescription) {
  BEGIN(PJRT_Device_GetDescription);
  args->device_description = ODD("null description") ? NULL : &args->device->description;
  return NULL;
}

CALL(PJRT_Device_MemoryStats) {
  BEGIN(PJRT_Device_MemoryStats);
  args->bytes_in_use = 0;
  args->bytes_limit = ODD("negative memory") ? -5 : 1 << 30;
  args->bytes_limit_is_set = true;
  return NULL;
}

/* ---- programs */

static void release(program *p) {
  if (atomic_fetch_sub(&p->refs, 1) == 1) {
    free(p->text);
    free(p->args);
    free(p->outs);
    free(p);
  }
}

static PJRT_Error *load_program(PJRT_Client *c, const char *text, size_t n, const char *options, size_t noption,
                                PJRT_LoadedExecutable **out) {
  uint64_t id = 0;
  REFUSE_IF(!read_device(options, noption, &id), PJRT_Error_Code_INVALID_ARGUMENT, "bad CompileOptionsProto");
  REFUSE_IF(id < 100 || id >= 100 + c->ndevice, PJRT_Error_Code_INVALID_ARGUMENT, "bad device assignment");
  program *p = calloc(1, sizeof *p);
  if (p == NULL || (p->text = calloc(1, n + 1)) == NULL) {
    abort();
  }
  atomic_init(&p->refs, 1);
  memcpy(p->text, text, n);
  p->ntext = n;
  p->device = &c->devices[id - 100];
  if (!read_signature(p)) {
    release(p);
    return fault(PJRT_Error_Code_INVALID_ARGUMENT, "no @main with static tensor types", "");
  }
  *out = make(sizeof **out);
  (*out)->program = p;
  return NULL;
}

CALL(PJRT_Client_Compile) {
  BEGIN(PJRT_Client_Compile);
  const PJRT_Program *p = args->program;
  REFUSE_IF(p->struct_size < PJRT_Program_STRUCT_SIZE || p->format_size != 4 || memcmp(p->format, "mlir", 4) != 0,
            PJRT_Error_Code_INVALID_ARGUMENT, "expected MLIR text");
  if (ODD("null program")) {
    return args->executable = NULL, NULL;
  }
  return load_program(args->client, p->code, p->code_size, args->compile_options, args->compile_options_size, &args->executable);
}

CALL(PJRT_Executable_DeserializeAndLoad) {
  BEGIN(PJRT_Executable_DeserializeAndLoad);
  size_t n = args->serialized_executable_size;
  REFUSE_IF(n < 4 || memcmp(args->serialized_executable, "FAKE", 4) != 0, PJRT_Error_Code_INVALID_ARGUMENT, "not my bytes");
  return load_program(args->client, args->serialized_executable + 4, n - 4, args->overridden_serialized_compile_options,
                      args->overridden_serialized_compile_options_size, &args->loaded_executable);
}

CALL(PJRT_LoadedExecutable_GetExecutable) {
  BEGIN(PJRT_LoadedExecutable_GetExecutable);
  args->executable = make(sizeof *args->executable);
  args->executable->program = args->loaded_executable->program;
  atomic_fetch_add(&args->executable->program->refs, 1);
  return NULL;
}

CALL(PJRT_LoadedExecutable_Destroy) {
  release(args->executable->program);
  drop(args->executable);
  return ENTER(PJRT_LoadedExecutable_Destroy);
}

CALL(PJRT_Executable_Destroy) {
  release(args->executable->program);
  drop(args->executable);
  return ENTER(PJRT_Executable_Destroy);
}

CALL(PJRT_Executable_NumOutputs) {
  BEGIN(PJRT_Executable_NumOutputs);
  size_t n = args->executable->program->nout;
  args->num_outputs = ODD("more outputs") ? n + 7 : ODD("huge outputs") ? SIZE_MAX : ODD("no outputs") ? 0 : n;
  return NULL;
}

enum { MAX_OUTPUT = 64 };
CALL(PJRT_Executable_OutputElementTypes) {
  BEGIN(PJRT_Executable_OutputElementTypes);
  static _Thread_local PJRT_Buffer_Type types[MAX_OUTPUT]; /* until this thread's next call */
  const program *p = args->executable->program;
  args->num_output_types = p->nout < MAX_OUTPUT ? p->nout : MAX_OUTPUT;
  for (size_t k = 0; k < args->num_output_types; k++) {
    types[k] = p->outs[k].type;
  }
  args->output_types = types;
  return NULL;
}

CALL(PJRT_Executable_OutputDimensions) {
  BEGIN(PJRT_Executable_OutputDimensions);
  static _Thread_local int64_t dims[MAX_OUTPUT * MAX_NDIM];
  static _Thread_local size_t ndims[MAX_OUTPUT];
  const program *p = args->executable->program;
  size_t n = 0;
  args->num_outputs = p->nout < MAX_OUTPUT ? p->nout : MAX_OUTPUT;
  for (size_t k = 0; k < args->num_outputs; k++) {
    ndims[k] = p->outs[k].ndim;
    memcpy(dims + n, p->outs[k].dims, ndims[k] * sizeof *dims);
    n += ndims[k];
  }
  args->dims = dims;
  args->dim_sizes = ndims;
  return NULL;
}

CALL(PJRT_Executable_GetCompiledMemoryStats) {
  BEGIN(PJRT_Executable_GetCompiledMemoryStats);
  args->temp_size_in_bytes = ODD("huge temporaries") ? (int64_t)1 << 50 : 0;
  return NULL;
}

static void free_serialized(PJRT_SerializedExecutable *s) {
  free(s->bytes);
  drop(s);
}

CALL(PJRT_Executable_Serialize) {
  BEGIN(PJRT_Executable_Serialize);
  const program *p = args->executable->program;
  PJRT_SerializedExecutable *s = make(sizeof *s);
  s->bytes = malloc(p->ntext + 4);
  if (s->bytes == NULL) {
    abort();
  }
  memcpy(s->bytes, "FAKE", 4);
  memcpy(s->bytes + 4, p->text, p->ntext);
  args->serialized_bytes = ODD("null bytes") ? NULL : s->bytes;
  args->serialized_bytes_size = ODD("huge bytes") ? SIZE_MAX : p->ntext + 4;
  args->serialized_executable = s;
  args->serialized_executable_deleter = free_serialized;
  return NULL;
}

/* ---- buffers */

/* data NULL: zeros. NULL when there is no memory. */
static PJRT_Buffer *new_buffer(const shape *is, PJRT_Device *device, void *data) {
  void *own = data == NULL ? calloc(1, is->nbyte + 1) : data;
  if (own == NULL) {
    return NULL;
  }
  PJRT_Buffer *b = make(sizeof *b);
  b->is = *is;
  b->data = own;
  b->device = device;
  return b;
}

static bool kept(const PJRT_ExecuteOptions *o, size_t arg) {
  for (size_t i = 0; i < o->num_non_donatable_input_indices; i++) {
    if (o->non_donatable_input_indices[i] == (int64_t)arg) {
      return true;
    }
  }
  return false;
}

static void free_buffer(PJRT_Buffer *b) {
  free(b->data);
  drop(b);
}

static PJRT_Error *check_arguments(const program *p, const PJRT_LoadedExecutable_Execute_Args *args) {
  REFUSE_IF(args->options->struct_size < PJRT_ExecuteOptions_STRUCT_SIZE, PJRT_Error_Code_INVALID_ARGUMENT, "options too small");
  REFUSE_IF(args->num_devices != 1 || args->num_args != p->narg, PJRT_Error_Code_INVALID_ARGUMENT, "wrong number of arguments");
  for (size_t i = 0; i < p->narg; i++) {
    const PJRT_Buffer *b = args->argument_lists[0][i];
    REFUSE_IF(b->deleted, PJRT_Error_Code_INVALID_ARGUMENT, "argument was deleted or donated");
    REFUSE_IF(b->is.nbyte != p->args[i].nbyte, PJRT_Error_Code_INVALID_ARGUMENT, "argument of another size");
    REFUSE_IF(b->device != p->device, PJRT_Error_Code_INVALID_ARGUMENT, "argument on another device");
  }
  return NULL;
}

CALL(PJRT_LoadedExecutable_Execute) {
  BEGIN(PJRT_LoadedExecutable_Execute);
  const program *p = args->executable->program;
  PJRT_Error *e = check_arguments(p, args);
  if (e != NULL) {
    return e;
  }
  for (size_t k = 0; k < p->nout; k++) {
    PJRT_Buffer *b = new_buffer(&p->outs[k], p->device, NULL);
    if (b == NULL) {
      for (; k > 0; k--) {
        free(args->output_lists[0][k - 1]->data);
        drop(args->output_lists[0][k - 1]);
        args->output_lists[0][k - 1] = NULL;
      }
      return fault(PJRT_Error_Code_RESOURCE_EXHAUSTED, "no memory for a result", "");
    }
    args->output_lists[0][k] = b;
  }
  if (ODD("null result") && p->nout > 0) {
    free_buffer(args->output_lists[0][p->nout - 1]);
    args->output_lists[0][p->nout - 1] = NULL;
    return NULL;
  }
  for (size_t i = 0; i < p->narg; i++) {
    PJRT_Buffer *b = args->argument_lists[0][i];
    if (p->args[i].alias >= 0 && !kept(args->options, i)) {
      PJRT_Buffer *out = args->output_lists[0][p->args[i].alias];
      free(out->data);
      out->data = b->data;
      memset(out->data, 0, out->is.nbyte);
      b->data = NULL;
      b->deleted = true;
    }
  }
  return NULL;
}

CALL(PJRT_Client_BufferFromHostBuffer) {
  BEGIN(PJRT_Client_BufferFromHostBuffer);
  shape is;
  REFUSE_IF(!describe(&is, args->type, args->dims, args->num_dims), PJRT_Error_Code_INVALID_ARGUMENT, "bad type or shape");
  REFUSE_IF(args->num_byte_strides != 0, PJRT_Error_Code_UNIMPLEMENTED, "only dense host memory");
  REFUSE_IF(args->data == NULL || args->device == NULL, PJRT_Error_Code_INVALID_ARGUMENT, "no data or no device");
  args->done_with_host_buffer = NULL;
  if (ODD("null buffer")) {
    return args->buffer = NULL, NULL;
  }
  args->buffer = new_buffer(&is, args->device, NULL);
  REFUSE_IF(args->buffer == NULL, PJRT_Error_Code_RESOURCE_EXHAUSTED, "no memory for a buffer");
  memcpy(args->buffer->data, args->data, is.nbyte);
  args->done_with_host_buffer = ready(PJRT_Error_Code_OK);
  return NULL;
}

CALL(PJRT_Client_CreateUninitializedBuffer) {
  BEGIN(PJRT_Client_CreateUninitializedBuffer);
  shape is;
  REFUSE_IF(!describe(&is, args->shape_element_type, args->shape_dims, args->shape_num_dims), PJRT_Error_Code_INVALID_ARGUMENT,
            "bad type or shape");
  args->buffer = new_buffer(&is, args->device, NULL);
  REFUSE_IF(args->buffer == NULL, PJRT_Error_Code_RESOURCE_EXHAUSTED, "no memory for a buffer");
  memset(args->buffer->data, 0xcd, is.nbyte); /* nobody may rely on zeros */
  return NULL;
}

CALL(PJRT_Buffer_Destroy) {
  if (args->buffer != NULL) {
    free(args->buffer->data);
    drop(args->buffer);
  }
  return ENTER(PJRT_Buffer_Destroy);
}

CALL(PJRT_Buffer_Dimensions) {
  BEGIN(PJRT_Buffer_Dimensions);
  args->dims = args->buffer->is.dims;
  args->num_dims = args->buffer->is.ndim;
  return NULL;
}

CALL(PJRT_Buffer_OnDeviceSizeInBytes) {
  BEGIN(PJRT_Buffer_OnDeviceSizeInBytes);
  REFUSE_IF(args->buffer->deleted, PJRT_Error_Code_INVALID_ARGUMENT, "the buffer was deleted or donated");
  args->on_device_size_in_bytes = ODD("small buffer") ? 1 : args->buffer->is.nbyte;
  return NULL;
}

CALL(PJRT_Buffer_IsDeleted) {
  BEGIN(PJRT_Buffer_IsDeleted);
  args->is_deleted = args->buffer->deleted;
  return NULL;
}

CALL(PJRT_Buffer_ToHostBuffer) {
  BEGIN(PJRT_Buffer_ToHostBuffer);
  const PJRT_Buffer *b = args->src;
  const PJRT_Buffer_MemoryLayout *layout = args->host_layout;
  REFUSE_IF(b->deleted, PJRT_Error_Code_INVALID_ARGUMENT, "the buffer was deleted or donated");
  REFUSE_IF(layout == NULL || layout->type != PJRT_Buffer_MemoryLayout_Type_Tiled || layout->tiled.num_tiles != 0 ||
                layout->tiled.minor_to_major_size != b->is.ndim,
            PJRT_Error_Code_UNIMPLEMENTED, "only to dense row-major memory, and said so");
  for (size_t i = 0; i < b->is.ndim; i++) {
    REFUSE_IF(layout->tiled.minor_to_major[i] != (int64_t)(b->is.ndim - 1 - i), PJRT_Error_Code_UNIMPLEMENTED, "only row-major");
  }
  if (args->dst == NULL) {
    args->dst_size = ODD("huge size") ? SIZE_MAX : b->is.nbyte;
    return NULL;
  }
  REFUSE_IF(args->dst_size < b->is.nbyte, PJRT_Error_Code_INVALID_ARGUMENT, "the destination is too small");
  memcpy(args->dst, b->data, b->is.nbyte);
  args->event = ready(PJRT_Error_Code_OK);
  return NULL;
}

CALL(PJRT_Buffer_ReadyEvent) {
  BEGIN(PJRT_Buffer_ReadyEvent);
  args->event = ODD("null event") ? NULL : ready(args->buffer->deleted ? PJRT_Error_Code_INVALID_ARGUMENT : PJRT_Error_Code_OK);
  return NULL;
}

CALL(PJRT_Buffer_UnsafePointer) {
  BEGIN(PJRT_Buffer_UnsafePointer);
  const char *platform = getenv("FAKE_PLUGIN_PLATFORM");
  REFUSE_IF(args->buffer->deleted, PJRT_Error_Code_INVALID_ARGUMENT, "the buffer was deleted or donated");
  REFUSE_IF(platform != NULL && strcmp(platform, "cpu") != 0, PJRT_Error_Code_UNIMPLEMENTED, "not in host memory");
  args->buffer_pointer = ODD("null pointer") ? 0 : (uintptr_t)args->buffer->data;
  return NULL;
}

/* ---- exports */

EXPORT const PJRT_Api *GetPjrtApi(void);
const PJRT_Api *GetPjrtApi(void) {
  static PJRT_Api api;
  const char *major = getenv("FAKE_PLUGIN_MAJOR"), *minor = getenv("FAKE_PLUGIN_MINOR");
  api.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
  api.pjrt_api_version.major_version = major == NULL ? PJRT_API_MAJOR : atoi(major);
  api.pjrt_api_version.minor_version = minor == NULL ? PJRT_API_MINOR : atoi(minor);
  api.struct_size = api.pjrt_api_version.minor_version < 70 ? offsetof(PJRT_Api, PJRT_Client_CreateUninitializedBuffer)
                                                            : (size_t)PJRT_Api_STRUCT_SIZE;
  api.PJRT_Error_Destroy = fake_PJRT_Error_Destroy;
  api.PJRT_Error_Message = fake_PJRT_Error_Message;
  api.PJRT_Error_GetCode = fake_PJRT_Error_GetCode;
#define ENTRY(name) api.name = fake_##name;
  CALLS(ENTRY)
#undef ENTRY
  return &api;
}

EXPORT long fake_plugin_live(void) {
  return atomic_load(&live);
}

static long find_call(const char *name) {
  for (long i = 0; i < NCALL; i++) {
    if (strcmp(call_names[i], name) == 0) {
      return i;
    }
  }
  return FAIL_NONE;
}

EXPORT void fake_plugin_fail(const char *call, long nth) {
  atomic_store(&fail_countdown, nth);
  atomic_store(&failed, FAIL_NONE);
  atomic_store(&failing, call == NULL ? FAIL_NONE : strcmp(call, "any") == 0 ? FAIL_ANY : find_call(call));
}

EXPORT void fake_plugin_misbehave(const char *how) {
  snprintf(misbehaviour, sizeof misbehaviour, "%s", how == NULL ? "" : how);
}

EXPORT void fake_plugin_starve(const char *call, long n) {
  atomic_store(&nstarved, n);
  atomic_store(&starving, call == NULL ? FAIL_NONE : find_call(call));
}

EXPORT const char *fake_plugin_failed(void) {
  long which = atomic_load(&failed);
  return which == FAIL_NONE ? NULL : call_names[which];
}

EXPORT void fake_plugin_hold(int on) {
  pthread_mutex_lock(&held_mutex);
  int n = on != 0 ? 0 : ncallback;
  atomic_store(&held, on != 0);
  ncallback -= n;
  pthread_mutex_unlock(&held_mutex);
  for (int i = 0; i < n; i++) {
    callbacks[i].callback(NULL, callbacks[i].user_arg);
  }
}

EXPORT void fake_plugin_delay(const char *call, long ms) {
  atomic_store(&delay_ms, ms);
  atomic_store(&delayed, call == NULL ? FAIL_NONE : find_call(call));
}

EXPORT long fake_plugin_count(const char *call) {
  long sum = 0, which = find_call(call);
  if (strcmp(call, "any") != 0) {
    return which == FAIL_NONE ? -1 : atomic_load(&counts[which]);
  }
  for (long i = 0; i < NCALL; i++) {
    sum += atomic_load(&counts[i]);
  }
  return sum;
}
