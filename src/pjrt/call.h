/* The funnel every PJRT call goes through, and what this folder's files share. Internal to src/pjrt (tests look in, too). */
#ifndef TTC_PJRT_CALL_H
#define TTC_PJRT_CALL_H

#include <pjrt_c_api.h>

#include "base/str.h"
#include "pjrt/pjrt.h"

struct pjrt_plugin {
  const PJRT_Api *api;
  int major, minor;
  pjrt_plugin *next; /* plugins live as long as the process: their threads and static state cannot be unloaded */
  char path[1024];
};

struct pjrt_client {
  const pjrt_plugin *plugin;
  PJRT_Client *client;
  PJRT_Device *const *devices; /* the addressable ones, owned by the client */
  int ndevice;
  bool on_host; /* device memory is host memory: contents may be read through a pointer */
  char platform[32];
};

struct pjrt_exe {
  const pjrt_plugin *plugin;
  PJRT_LoadedExecutable *loaded;
  int nout;
  int64_t temp_nbyte;
};

/* A pjrt_buffer is never defined: its address is the plugin's PJRT_Buffer. */
static inline PJRT_Buffer *ttc__pjrt_raw(pjrt_buffer *b) {
  return (PJRT_Buffer *)b;
}

/* Convert and free e (not NULL): "call: the plugin's words". */
ttc_status ttc__pjrt_error(const pjrt_plugin *p, PJRT_Error *e, const char *call, const char *file, int line, ttc_error *err);
/* The plugin has no such call. */
ttc_status ttc__pjrt_absent(const pjrt_plugin *p, const char *call, const char *file, int line, ttc_error *err);

/* Old plugins have a shorter table, and any entry may be empty. */
#define PJRT_HAS(p, fn) ((p)->api->struct_size >= offsetof(PJRT_Api, fn) + sizeof((p)->api->fn) && (p)->api->fn != NULL)

/* status = PJRT_CALL(plugin, PJRT_Client_Create, &args, err): sizes *args, checks, calls, converts the error. */
#define PJRT_CALL(p, fn, args, err)                                                                                             \
  ((args)->struct_size = fn##_Args_STRUCT_SIZE, PJRT_HAS(p, fn)                                                                 \
                                                    ? ttc__pjrt_result((p), (p)->api->fn(args), #fn, __FILE__, __LINE__, (err)) \
                                                    : ttc__pjrt_absent((p), #fn, __FILE__, __LINE__, (err)))

static inline ttc_status ttc__pjrt_result(const pjrt_plugin *p, PJRT_Error *e, const char *call, const char *file, int line,
                                          ttc_error *err) {
  return e == NULL ? TTC_OK : ttc__pjrt_error(p, e, call, file, line, err);
}

/* Plugins' promises are checked where breaking one would crash us: a call that succeeds must hand out what it was asked for. */
ttc_status ttc__pjrt_nothing(const pjrt_plugin *p, const char *call, const char *file, int line, ttc_error *err);
#define PJRT_GAVE(p, fn, object, err) ((object) != NULL ? TTC_OK : ttc__pjrt_nothing((p), #fn, __FILE__, __LINE__, (err)))

/* Calls that free things: nobody can act on their errors, so these go to the log. */
#define PJRT_DESTROY(p, fn, field, object)                       \
  do {                                                           \
    fn##_Args pjrt_args_ = {.field = (object)};                  \
    ttc_error pjrt_err_;                                         \
    if (PJRT_CALL((p), fn, &pjrt_args_, &pjrt_err_) != TTC_OK) { \
      ttc__log(TTC__LOG_INFO, "%s", pjrt_err_.message);          \
    }                                                            \
  } while (0)

/* Serialized CompileOptionsProto for one device; free with ttc__str_free, also after a failure. */
ttc_status ttc__pjrt_write_options(int id, bool on_cpu, const char *const *flags, ttc__str *out, ttc_error *err);
PJRT_Program ttc__pjrt_program(const char *text, size_t nbyte); /* of StableHLO text, which it does not copy */
PJRT_Buffer_Type ttc__pjrt_type(ttc_dtype d);
/* The addressable device of that number, or an error. */
ttc_status ttc__pjrt_device(const pjrt_client *c, int device, PJRT_Device **out, ttc_error *err);
/* Has it come? */
bool ttc__pjrt_done(const pjrt_plugin *p, PJRT_Event *ev);
/* Wait for ev and destroy it. */
ttc_status ttc__pjrt_await(const pjrt_plugin *p, PJRT_Event *ev, ttc_error *err);
bool ttc__pjrt_is_libtpu(const pjrt_plugin *p); /* by its file's name */
/* TPUs below another root than "/" (tests). */
int ttc__pjrt_count_tpus(const char *root);

#endif
