/* PJRT plugins behind plain C: this folder is the only one that includes pjrt_c_api.h.
 *
 * Every call goes through one funnel (call.c): it sizes the struct, checks that the plugin is new enough to have the call, converts
 * the error and frees it. Errors name the PJRT call. Functions are *any thread* unless stated. */
#ifndef TTC_PJRT_PJRT_H
#define TTC_PJRT_PJRT_H

#include "base/error.h"
#include "ttc.h"
#include "type/dtype.h"

typedef struct pjrt_plugin pjrt_plugin;
typedef struct pjrt_client pjrt_client;
typedef struct pjrt_exe pjrt_exe;
typedef struct pjrt_buffer pjrt_buffer; /* the plugin's own PJRT_Buffer */
typedef struct pjrt_event pjrt_event;   /* the plugin's own PJRT_Event */

/* ---- finding a plugin (discover.c). No plugin code is loaded by these. */
typedef enum pjrt_source { PJRT_FROM_VARIABLE, PJRT_FROM_LIBTPU, PJRT_FROM_LAMMPS, PJRT_FROM_XLA_CPU } pjrt_source;
typedef struct pjrt_choice {
  char path[1024];
  pjrt_source source;
  int ntpu; /* TPU chips attached, 0 if simulated */
} pjrt_choice;
/* Order: TORCH_TPU_PLUGIN, TPU_LIBRARY_PATH; libtpu only where a TPU is attached (PCI vendor 0x1ae0 with an accel or vfio device);
 * lammps_jax_pjrt_cpu; xla_cpu_pjrt. search_path: directories split by ':' that may hold these packages. TTC_NOT_FOUND names the
 * pip line. A path from a variable that does not exist is an error, never passed over. */
ttc_status pjrt_discover(const char *search_path, pjrt_choice *out, ttc_error *err);
int pjrt_count_tpus(void); /* looks at /sys only */

/* ---- plugin and client */
/* dlopen, version check (major equal; minor at least 54), Plugin_Initialize. Each path is loaded once, and never unloaded. blocks
 */
ttc_status pjrt_plugin_load(const char *path, pjrt_plugin **out, ttc_error *err);
void pjrt_plugin_version(const pjrt_plugin *p, int *major, int *minor);
const char *pjrt_plugin_path(const pjrt_plugin *p);
/* Create options are chosen per plugin (its attributes and version; an option refused by name is dropped and tried again). blocks
 */
ttc_status pjrt_client_new(pjrt_plugin *p, int ndevice, pjrt_client **out, ttc_error *err);
void pjrt_client_free(pjrt_client *c); /* after its executables and buffers; NULL is fine */
int pjrt_client_ndevice(const pjrt_client *c);
void pjrt_client_info(const pjrt_client *c, ttc_device_info *info); /* platform, versions, kind, path */

/* ---- programs */
/* StableHLO text -> executable for `device`. xla_flags: "name=value" overrides, NULL terminated, or NULL; booleans are true or
 * false. blocks */
ttc_status pjrt_compile(pjrt_client *c, int device, const char *text, size_t nbyte, const char *const *xla_flags, pjrt_exe **out,
                        ttc_error *err);
/* Bytes for the disk cache (free() them). TTC_UNIMPLEMENTED if the plugin cannot. */
ttc_status pjrt_exe_serialize(pjrt_exe *e, char **bytes, size_t *nbyte, ttc_error *err);
ttc_status pjrt_exe_deserialize(pjrt_client *c, int device, const char *bytes, size_t nbyte, pjrt_exe **out, ttc_error *err);
void pjrt_exe_free(pjrt_exe *e);
int pjrt_exe_nout(const pjrt_exe *e);
/* Is result k, for k below n, of dtypes[k] and the ndims[k] sizes at dims[k]? TTC_INVALID_ARGUMENT says which is not. */
ttc_status pjrt_exe_check_results(const pjrt_exe *e, size_t n, const ttc_dtype *dtypes, const int *ndims,
                                  const int64_t *const *dims, ttc_error *err);
int64_t pjrt_exe_temp_nbyte(
    const pjrt_exe *e); /* what a launch takes besides arguments and results; 0 if the plugin does not say */
/* What a program takes of a device's memory, bytes, as far as the plugin knows. TTC_UNIMPLEMENTED if it does not tell. */
typedef struct pjrt_memory {
  int64_t argument_nbyte, output_nbyte, alias_nbyte, temp_nbyte, code_nbyte;
} pjrt_memory;
ttc_status pjrt_exe_memory(const pjrt_exe *e, pjrt_memory *out, ttc_error *err);
/* Launch on the executable's device; does not wait. outs gets pjrt_exe_nout buffers. Donation is as the program says, except for
 * parameters in keep[0..nkeep) (int64 numbers). The hot path: no allocation of its own. */
ttc_status pjrt_execute(pjrt_exe *e, pjrt_buffer *const *args, size_t narg, const int64_t *keep, size_t nkeep, pjrt_buffer **outs,
                        ttc_error *err);

/* ---- compiling for devices that are not here (topology.c) */
typedef struct pjrt_topology pjrt_topology;
ttc_status pjrt_topology_new(pjrt_plugin *p, const char *name, pjrt_topology **out, ttc_error *err);
void pjrt_topology_free(pjrt_topology *t);
typedef struct pjrt_aot { /* 0 where the plugin does not say */
  int64_t code_nbyte, argument_nbyte, output_nbyte, alias_nbyte, temp_nbyte;
  double flops, transcendentals, bytes_accessed;
  char *optimized; /* serialized HloModuleProtoWithConfig, free() it; NULL: not to be had */
  size_t optimized_nbyte;
} pjrt_aot;
/* For the first device. blocks */
ttc_status pjrt_topology_compile(pjrt_topology *t, const char *text, size_t nbyte, const char *const *xla_flags, pjrt_aot *out,
                                 ttc_error *err);

/* ---- buffers */
/* Copy of host memory, row-major (src is free on return). ndim 0 for scalars. */
ttc_status pjrt_buffer_from_host(pjrt_client *c, int device, ttc_dtype d, int ndim, const int64_t *dims, const void *src,
                                 pjrt_buffer **out, ttc_error *err);
/* Zero-filled or undefined contents. */
ttc_status pjrt_buffer_new(pjrt_client *c, int device, ttc_dtype d, int ndim, const int64_t *dims, pjrt_buffer **out,
                           ttc_error *err);
void pjrt_buffer_free(pjrt_client *c, pjrt_buffer *b); /* NULL is fine */
/* Wait until computed; returns the computation's error if it failed. blocks */
ttc_status pjrt_buffer_await(pjrt_client *c, pjrt_buffer *b, ttc_error *err);
/* Copy [offset, offset+nbyte) of the row-major contents to dst, after waiting. Reads through the pointer where the buffer lies in
 * host memory, else with ToHostBuffer (device layouts are tiled, so a part costs as much as the whole). blocks */
ttc_status pjrt_buffer_to_host(pjrt_client *c, pjrt_buffer *b, size_t offset, size_t nbyte, void *dst, ttc_error *err);
ttc_status pjrt_buffer_nbyte(pjrt_client *c, pjrt_buffer *b, size_t *nbyte, ttc_error *err); /* on the device */

/* ---- events */
/* That the buffer is computed, or its computation failed. */
ttc_status pjrt_buffer_event(pjrt_client *c, pjrt_buffer *b, pjrt_event **out, ttc_error *err);
bool pjrt_event_done(pjrt_client *c, pjrt_event *ev);
/* Wait for ev, which is freed, and return its error; nothing interrupts this. blocks */
ttc_status pjrt_event_await(pjrt_client *c, pjrt_event *ev, ttc_error *err);
void pjrt_event_free(pjrt_client *c, pjrt_event *ev);
/* fn(ctx) once ev has come, in any thread, perhaps before this returns. own: ev is freed then. Plugins without callbacks block. */
void pjrt_event_then(pjrt_client *c, pjrt_event *ev, bool own, void (*fn)(void *ctx), void *ctx);

#endif
