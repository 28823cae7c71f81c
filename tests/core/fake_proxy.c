/* A PJRT plugin that passes every call on to the plugin at PROXY_PLUGIN, except for the nth from now, which fails: real numbers,
 * and any call failing. Calls that free things are passed on all the same, and then fail. The next programs to run may also be told
 * to find no memory. */
#include <dlfcn.h>
#include <pjrt_c_api.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* clang-format off */
#define CALLS(X)                                                                                                      \
  X(PJRT_Event_IsReady) X(PJRT_Event_Await) X(PJRT_Event_OnReady) X(PJRT_Client_Compile)                              \
  X(PJRT_Client_BufferFromHostBuffer) X(PJRT_Client_CreateUninitializedBuffer) X(PJRT_DeviceDescription_Id)           \
  X(PJRT_Device_GetDescription) X(PJRT_Executable_NumOutputs) X(PJRT_Executable_Serialize)                            \
  X(PJRT_Executable_DeserializeAndLoad) X(PJRT_LoadedExecutable_GetExecutable) X(PJRT_LoadedExecutable_Execute)       \
  X(PJRT_Buffer_OnDeviceSizeInBytes) X(PJRT_Buffer_ReadyEvent) X(PJRT_Buffer_UnsafePointer)
#define FREES(X)                                                                                                      \
  X(PJRT_Event_Destroy) X(PJRT_Executable_Destroy) X(PJRT_LoadedExecutable_Destroy) X(PJRT_Buffer_Destroy)
/* clang-format on */

static const PJRT_Api *real;
static char our_error, no_memory; /* their addresses are our errors */
static atomic_long countdown, ncall, starving;
static const char *_Atomic failed;

static PJRT_Error *enter(const char *call) {
  atomic_fetch_add(&ncall, 1);
  if (atomic_load(&starving) > 0 && strcmp(call, "PJRT_LoadedExecutable_Execute") == 0) {
    atomic_fetch_sub(&starving, 1);
    return (PJRT_Error *)&no_memory;
  }
  if (atomic_load(&countdown) > 0 && atomic_fetch_sub(&countdown, 1) == 1) {
    atomic_store(&failed, call);
    return (PJRT_Error *)&our_error;
  }
  return NULL;
}

#define CALL(name)                                     \
  static PJRT_Error *proxy_##name(name##_Args *args) { \
    PJRT_Error *e = enter(#name);                      \
    return e != NULL ? e : real->name(args);           \
  }
#define FREE(name)                                         \
  static PJRT_Error *proxy_##name(name##_Args *args) {     \
    PJRT_Error *e = real->name(args), *own = enter(#name); \
    return e != NULL ? e : own;                            \
  }
CALLS(CALL)
FREES(FREE)

static bool is_ours(const PJRT_Error *e) {
  return e == (const PJRT_Error *)&our_error || e == (const PJRT_Error *)&no_memory;
}

static void proxy_PJRT_Error_Destroy(PJRT_Error_Destroy_Args *args) {
  if (!is_ours(args->error)) {
    real->PJRT_Error_Destroy(args);
  }
}

static void proxy_PJRT_Error_Message(PJRT_Error_Message_Args *args) {
  static const char text[] = "made to fail";
  if (!is_ours(args->error)) {
    real->PJRT_Error_Message(args);
    return;
  }
  args->message = text;
  args->message_size = sizeof text - 1;
}

static PJRT_Error *proxy_PJRT_Error_GetCode(PJRT_Error_GetCode_Args *args) {
  if (!is_ours(args->error)) {
    return real->PJRT_Error_GetCode(args);
  }
  args->code = (const char *)args->error == &no_memory ? PJRT_Error_Code_RESOURCE_EXHAUSTED : PJRT_Error_Code_INTERNAL;
  return NULL;
}

EXPORT const PJRT_Api *GetPjrtApi(void);
const PJRT_Api *GetPjrtApi(void) {
  static PJRT_Api api;
  const char *path = getenv("PROXY_PLUGIN");
  void *library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  const PJRT_Api *(*get)(void) = NULL;
  if (library != NULL) {
    *(void **)(&get) = dlsym(library, "GetPjrtApi");
  }
  real = get != NULL ? get() : NULL;
  if (real == NULL) {
    return NULL;
  }
  memcpy(&api, real, real->struct_size < sizeof api ? real->struct_size : sizeof api);
  api.struct_size = real->struct_size < sizeof api ? real->struct_size : sizeof api;
#define ENTRY(name)          \
  if (api.name != NULL) {    \
    api.name = proxy_##name; \
  }
  CALLS(ENTRY)
  FREES(ENTRY)
#undef ENTRY
  api.PJRT_Error_Destroy = proxy_PJRT_Error_Destroy;
  api.PJRT_Error_Message = proxy_PJRT_Error_Message;
  api.PJRT_Error_GetCode = proxy_PJRT_Error_GetCode;
  return &api;
}

EXPORT void proxy_fail(long nth);
void proxy_fail(long nth) {
  atomic_store(&failed, NULL);
  atomic_store(&countdown, nth);
}

/* The next n programs find no memory. Returns how many of those asked for before are left. */
EXPORT long proxy_starve(long n);
long proxy_starve(long n) {
  return atomic_exchange(&starving, n);
}

EXPORT const char *proxy_failed(void);
const char *proxy_failed(void) {
  return atomic_load(&failed);
}

EXPORT long proxy_count(void);
long proxy_count(void) {
  return atomic_load(&ncall);
}
