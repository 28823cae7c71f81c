/* ttc.h - the TorchTPU core (libttc): everything a front end may see.
 *
 * The core owns tensors' memory on one PJRT device ("stores"), turns calls of ATen ops into StableHLO programs, compiles
 * and caches them, and launches them in order. It knows neither PyTorch nor Python. A front end (adapter/ is one) describes
 * each call with plain C structs and gets stores back.
 *
 * Conventions
 *   Status     A fallible function returns ttc_status and takes `ttc_error *err` last (never NULL). On failure `err` is filled
 *              once, where the error arose, and every other output is untouched.
 *   Ownership  `_new` returns one reference, `_retain`/`_release` count. Pointers inside argument structs are borrowed for the
 *              duration of the call unless stated. Strings are NUL terminated UTF-8.
 *   Threads    Every function says *any thread* or its restriction. Functions marked *blocks* may wait for a compile, a device
 *              or a disk: release interpreter locks before calling.
 *   Units      `nbyte` bytes, `nelem` elements, `_ns` nanoseconds; sizes, strides and offsets are in elements of the dtype.
 *   Fork       After fork() in a process that has a device, every call in the child fails with TTC_FAILED_PRECONDITION.
 */
#ifndef TTC_H
#define TTC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TTC_API __attribute__((visibility("default")))
#define TTC_MUST_USE __attribute__((warn_unused_result))
#else
#define TTC_API
#define TTC_MUST_USE
#endif

/* Raised when a struct or function below changes in a way that a front end compiled against the old one would notice. */
#define TTC_ABI_VERSION 1

/* Dimensions a tensor may have. PyTorch allows 64; no program in our lists passes 8. More is a clear error. */
#define TTC_MAX_NDIM 12

/* ---------------------------------------------------------------------------------------------- status and error */

/* PJRT's (absl's) codes, by the same numbers. */
typedef enum ttc_status {
  TTC_OK = 0,
  TTC_CANCELLED = 1,
  TTC_UNKNOWN = 2,
  TTC_INVALID_ARGUMENT = 3,
  TTC_DEADLINE_EXCEEDED = 4,
  TTC_NOT_FOUND = 5,
  TTC_ALREADY_EXISTS = 6,
  TTC_PERMISSION_DENIED = 7,
  TTC_RESOURCE_EXHAUSTED = 8,
  TTC_FAILED_PRECONDITION = 9,
  TTC_ABORTED = 10,
  TTC_OUT_OF_RANGE = 11,
  TTC_UNIMPLEMENTED = 12,
  TTC_INTERNAL = 13,
  TTC_UNAVAILABLE = 14,
  TTC_DATA_LOSS = 15,
  TTC_UNAUTHENTICATED = 16
} ttc_status;

typedef struct ttc_error {
  ttc_status code;
  int line;           /* source line in the core where it arose */
  const char *file;   /* static string, or NULL */
  char op[64];        /* the op's overload name ("add.Tensor"), or "" */
  char message[1536]; /* "expected X, got Y, do Z"; truncated with "..." if longer */
} ttc_error;

/* Name of a code, e.g. "INVALID_ARGUMENT". any thread */
TTC_API const char *ttc_status_name(ttc_status s);

/* ------------------------------------------------------------------------------------------------------- dtypes */

typedef enum ttc_dtype {
  TTC_DTYPE_INVALID = 0,
  TTC_BOOL,
  TTC_U8,
  TTC_U16,
  TTC_U32,
  TTC_U64,
  TTC_S8,
  TTC_S16,
  TTC_S32,
  TTC_S64,
  TTC_F16,
  TTC_BF16,
  TTC_F32,
  TTC_F64,
  TTC_F8E4M3FN,
  TTC_F8E4M3FNUZ,
  TTC_F8E5M2,
  TTC_F8E5M2FNUZ,
  TTC_F8E8M0FNU,
  TTC_F4E2M1FNX2, /* two 4-bit floats a byte, PyTorch's float4_e2m1fn_x2 */
  TTC_C64,
  TTC_C128,
  TTC_NDTYPE
} ttc_dtype;

/* "f32", "bf16", "s64" ... any thread */
TTC_API const char *ttc_dtype_name(ttc_dtype d);
/* Bytes of one element on the host (bool 1). 0 for TTC_DTYPE_INVALID. any thread */
TTC_API size_t ttc_dtype_nbyte(ttc_dtype d);

/* ------------------------------------------------------------------------------------------------------- devices */

typedef struct ttc_device ttc_device; /* one PJRT device with its queue, plans and stores; lives until ttc_shutdown */
typedef struct ttc_store ttc_store;   /* what a torch storage points at: the bytes that many views share */

typedef struct ttc_device_info {
  char platform[32]; /* "cpu", "tpu" */
  char platform_version[256];
  char device_kind[128];
  char plugin_path[1024];
  int pjrt_api_major, pjrt_api_minor;
  int simulated;              /* 1 if this is not a TPU */
  int64_t memory_limit_nbyte; /* device memory; the machine's memory when simulated */
} ttc_device_info;

/* Number of devices a process may open, without loading a plugin: 1 where no TPU is attached and a CPU plugin can be found,
 * the number of TPU chips where one is. 0 if no plugin can be found. any thread */
TTC_API int ttc_device_count(void);

/* Open device `index` (idempotent: the same pointer each time). Loads the plugin on first use. `plugin_hint` is a directory
 * list separated by ':' in which CPU plugins' packages may lie (site-packages), or NULL. any thread, blocks */
TTC_API TTC_MUST_USE ttc_status ttc_device_open(int index, ttc_device **out, ttc_error *err);

/* Where to look for plugin packages when no variable names one; copied. Call before the first ttc_device_open. */
TTC_API void ttc_set_plugin_search_path(const char *dirs);

TTC_API int ttc_device_index(const ttc_device *dev);

/* What the device's stores may hold together, in bytes; 0 or less: the device's own memory again, as at the start (but for the
 * variable TORCH_TPU_MEMORY_LIMIT). Whoever asks for more gets TTC_RESOURCE_EXHAUSTED at once and may go on. any thread */
TTC_API void ttc_device_set_memory_limit(ttc_device *dev, int64_t nbyte);

/* Wait for all work, then give back to the system what is only kept for speed. blocks */
TTC_API TTC_MUST_USE ttc_status ttc_device_reclaim(ttc_device *dev, ttc_error *err);

TTC_API void ttc_device_get_info(ttc_device *dev, ttc_device_info *out);

/* Wait until all calls made so far have run; reports the first error of an op that nobody has read. blocks */
TTC_API TTC_MUST_USE ttc_status ttc_device_synchronize(ttc_device *dev, ttc_error *err);

/* Launch all calls made so far, without waiting for their results: what they take of memory is then counted. blocks */
TTC_API TTC_MUST_USE ttc_status ttc_device_flush(ttc_device *dev, ttc_error *err);

/* Is all work given to the device so far done? Does not wait. any thread */
TTC_API TTC_MUST_USE ttc_status ttc_device_query(ttc_device *dev, bool *idle, ttc_error *err);

/* An event is a point among the calls made on one device: it is reached when all calls before it are done. */
typedef struct ttc_event ttc_event;
/* The point after the calls made so far; does not wait for them. One reference. any thread */
TTC_API TTC_MUST_USE ttc_status ttc_event_record(ttc_device *dev, ttc_event **out, ttc_error *err);
TTC_API void ttc_event_release(ttc_event *ev);                                              /* any thread; NULL is fine */
TTC_API TTC_MUST_USE ttc_status ttc_event_query(ttc_event *ev, bool *done, ttc_error *err); /* does not wait. any thread */
/* Wait until it is reached; reports the first error of an op that nobody has read. any thread, blocks */
TTC_API TTC_MUST_USE ttc_status ttc_event_wait(ttc_event *ev, ttc_error *err);
/* Calls made on dev from now on start after ev, which may be another device's. any thread */
TTC_API TTC_MUST_USE ttc_status ttc_event_order(ttc_device *dev, ttc_event *ev, ttc_error *err);
/* Time between the moments two events were reached. TTC_FAILED_PRECONDITION if one has not been yet. any thread */
TTC_API TTC_MUST_USE ttc_status ttc_event_elapsed(ttc_event *from, ttc_event *to, int64_t *ns, ttc_error *err);

/* Ask a waiting call to come back every so often: fn returns true to give up (TTC_CANCELLED). Used for Ctrl-C. */
TTC_API void ttc_set_interrupt_check(bool (*fn)(void));

/* From now on, calls by threads for which fn returns true never return. For the end of a process whose interpreter takes threads
 * down that come back to it, through frames that do not bear it. any thread */
TTC_API void ttc_set_no_return(bool (*fn)(void));

/* Stop threads, drop the queue's remaining work after running it (at most timeout_ms), and make further calls fail with
 * TTC_FAILED_PRECONDITION. Stores may still be released afterwards. Call once, from an exit handler. blocks */
TTC_API void ttc_shutdown(int timeout_ms);

/* -------------------------------------------------------------------------------------------------------- stores */

typedef struct ttc_spec { /* a dense or strided tensor without contents */
  ttc_dtype dtype;        /* TTC_DTYPE_INVALID: a result that is not wanted (it gets no store) */
  int ndim;
  int64_t sizes[TTC_MAX_NDIM];
  int64_t strides[TTC_MAX_NDIM]; /* elements */
} ttc_spec;

/* A store of `nbyte` bytes with undefined contents. Its base shape is taken from `spec` when given (the tensor that makes
 * it), else it is flat bytes. No device memory is taken before the first write or read. any thread */
TTC_API TTC_MUST_USE ttc_status ttc_store_new(ttc_device *dev, size_t nbyte, const ttc_spec *spec, ttc_store **out, ttc_error *err);
TTC_API void ttc_store_retain(ttc_store *s);
TTC_API void ttc_store_release(ttc_store *s); /* any thread, after ttc_shutdown too */
TTC_API size_t ttc_store_nbyte(const ttc_store *s);
TTC_API ttc_device *ttc_store_device(const ttc_store *s);
/* Whose store is at this address? NULL if no open device has a store with contents there; p may be any pointer. any thread, blocks
 */
TTC_API ttc_device *ttc_store_find(const void *p);

/* storage.resize_(): keep the leading min(old, new) bytes. any thread */
TTC_API TTC_MUST_USE ttc_status ttc_store_resize(ttc_store *s, size_t nbyte, ttc_error *err);

/* A tensor as an argument: a strided view of a store. */
typedef struct ttc_tensor {
  ttc_store *store;       /* NULL only inside a graph, where `value` says which */
  const int64_t *sizes;   /* ndim entries, borrowed */
  const int64_t *strides; /* elements of dtype */
  int64_t offset;         /* elements of dtype from the store's first byte */
  int32_t value;          /* graphs: id of the value; otherwise -1 */
  uint8_t dtype;          /* ttc_dtype */
  uint8_t ndim;
} ttc_tensor;

/* Host memory -> tensor (any strides, same dtype). `src` is C-contiguous in the tensor's shape; it may be reused on return.
 * Ordered after the calls made before. any thread */
TTC_API TTC_MUST_USE ttc_status ttc_copy_from_host(const ttc_tensor *dst, const void *src, size_t nbyte, ttc_error *err);

/* Tensor -> host memory, C-contiguous. Reports the error of the op that should have written it. any thread, blocks */
TTC_API TTC_MUST_USE ttc_status ttc_copy_to_host(const ttc_tensor *src, void *dst, size_t nbyte, ttc_error *err);

/* --------------------------------------------------------------------------------------------------------- calls */

typedef enum ttc_scalar_kind { TTC_SCALAR_BOOL, TTC_SCALAR_INT, TTC_SCALAR_FLOAT, TTC_SCALAR_COMPLEX } ttc_scalar_kind;

/* A number. Numbers are runtime arguments of a program unless the op's row says they are static. */
typedef struct ttc_scalar {
  uint8_t kind;    /* ttc_scalar_kind */
  uint8_t dtype;   /* ttc_dtype of a 0-d CPU tensor it was read from; TTC_DTYPE_INVALID for a Python number */
  uint8_t wrapped; /* 1: a Python number (weakest in type promotion) */
  int64_t i;       /* BOOL, INT */
  double re, im;   /* FLOAT, COMPLEX */
} ttc_scalar;

typedef enum ttc_arg_kind {
  TTC_ARG_NONE = 0, /* an optional that is absent */
  TTC_ARG_TENSOR,   /* .tensor[0] */
  TTC_ARG_TENSORS,  /* .tensor[0..n) ; an entry with store NULL and value -1 is an absent optional */
  TTC_ARG_SCALAR,   /* .scalar[0]: Scalar or float in the schema, or a 0-d CPU tensor */
  TTC_ARG_SCALARS,  /* .scalar[0..n) : Scalar[] or float[] */
  TTC_ARG_INT,      /* .i : int, SymInt; static */
  TTC_ARG_BOOL,     /* .i : bool; static */
  TTC_ARG_INTS,     /* .ints[0..n) : int[], bool[] ; static */
  TTC_ARG_DTYPE,    /* .i : ttc_dtype ; static */
  TTC_ARG_STRING,   /* .str, n bytes ; static */
  TTC_ARG_RNG       /* .rng[0..1]: Philox seed and offset of a Generator; runtime */
} ttc_arg_kind;

typedef struct ttc_arg {
  uint8_t kind; /* ttc_arg_kind */
  uint32_t n;
  union {
    const ttc_tensor *tensor;
    const ttc_scalar *scalar;
    const int64_t *ints;
    const char *str;
    const uint64_t *rng;
    int64_t i;
  };
} ttc_arg;

typedef struct ttc_call {
  uint32_t op; /* index of the row: ttc_op_find, or a graph's op id */
  uint32_t narg;
  const ttc_arg *args;           /* in schema order, without out= arguments */
  uint32_t default_float;        /* ttc_dtype of a Python float beside integers (torch.get_default_dtype()); 0: f32 */
  uint32_t blocking;             /* 1: wait until it has run, and tell what was wrong with it (Debug mode) */
  uint32_t ninto;                /* 0: every result is a fresh store; else the number of results */
  const ttc_tensor *const *into; /* [ninto] tensor that receives the result (in-place, out=), or NULL for a fresh one */
  uint32_t prompt;               /* 1: launch it in this call if nothing is before it, as pays for rare calls (compiled graphs) */
  uint32_t defer;                /* 1: may be kept back, to run together with calls made later (ttc_fuse.h) */
  uint32_t settings; /* 0: the process's; else 4·(number of a list of compiler options, or 0) + (1 + matmul precision, or 0) */
  uint32_t narrow;   /* 1: with a program for just these sizes, even where stores are longer than what is in them */
} ttc_call;

typedef struct ttc_plan ttc_plan;

typedef struct ttc_result {
  ttc_plan *plan; /* one reference; give back with ttc_result_done */
  uint32_t nout;
  const ttc_spec *specs; /* [nout] until ttc_result_done */
  ttc_store **stores;    /* [nout] one reference each, NULL where `into` was given; array owned by the result */
  ttc_store *inline_stores[4];
} ttc_result;

/* Run a call whose plan exists. TTC_NOT_FOUND (err untouched) means: no plan for this signature yet; work the results' specs out
 * and call ttc_call_define. Waits for the call if it is `blocking`; else for no compile, unless the queue is full of calls that do.
 * any thread */
TTC_API TTC_MUST_USE ttc_status ttc_call_run(ttc_device *dev, const ttc_call *call, ttc_result *res, ttc_error *err);

/* Lower the call with the given results' specs, hand it to the compile pool, and run it as ttc_call_run does.
 * TTC_UNIMPLEMENTED: the row's rule does not cover this signature (the caller falls through). any thread */
TTC_API TTC_MUST_USE ttc_status ttc_call_define(ttc_device *dev, const ttc_call *call, uint32_t nout, const ttc_spec *specs,
                                                ttc_result *res, ttc_error *err);
TTC_API void ttc_result_done(ttc_result *res);

/* ----------------------------------------------------------------------------------------------------- op table */

typedef struct ttc_op_info {
  const char *name;         /* functional overload as in ATen, "add.Tensor" */
  const char *family, *pad; /* "binary"; what it does to padded dimensions, in ttc__pad's words */
  unsigned flags;           /* TTC_OP_* */
  double rtol, atol;        /* float32 tolerance against CPU PyTorch, for tests */
  const char *note;         /* what the documentation says of it, or "" */
} ttc_op_info;

#define TTC_OP_RNG 1u        /* takes a Generator: the front end appends a TTC_ARG_RNG argument */
#define TTC_OP_GRAPH_ONLY 2u /* a view in eager mode: only met inside graphs, never registered as a kernel */
#define TTC_OP_NO_META 4u    /* PyTorch has no Meta kernel: the core infers the results (ttc_call_infer) */
#define TTC_OP_SIZED 16u     /* result size depends on runtime numbers: the front end asks ttc_call_infer before every call */
#define TTC_OP_OPEN_INTS 32u /* the schema's ints are numbers given at run time: described as TTC_ARG_SCALAR */
#define TTC_OP_DATA_SIZE 8u  /* result size depends on data: the front end handles it in two calls */

TTC_API uint32_t ttc_op_count(void);
TTC_API TTC_MUST_USE bool ttc_op_get(uint32_t op, ttc_op_info *out);
TTC_API uint32_t ttc_op_find(const char *name); /* UINT32_MAX if there is no row */

/* For rows with TTC_OP_NO_META: results' specs from the arguments' shapes. Fills at most max specs. any thread */
TTC_API TTC_MUST_USE ttc_status ttc_call_infer(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err);

/* Are the numbers of this call ones that the op takes? TTC_INVALID_ARGUMENT in PyTorch's words if not. For rows with TTC_OP_RNG,
 * before random numbers are set aside for the call. any thread */
TTC_API TTC_MUST_USE ttc_status ttc_call_check(const ttc_call *call, ttc_error *err);
/* Random numbers to set aside for a call of a row with TTC_OP_RNG: how far its generator's offset moves. any thread */
TTC_API uint64_t ttc_call_random(const ttc_call *call);

/* -------------------------------------------------------------------------------------------------------- graphs */

/* Several calls compiled as one program. Build: inputs, nodes, outputs; ttc_graph_finish makes an op of it, which is then run
 * with ttc_call_run/ttc_call_define like any other (arguments: the inputs in order; results: the outputs in order).
 * A graph is built by one thread. */
typedef struct ttc_graph ttc_graph;
TTC_API ttc_graph *ttc_graph_new(const char *name);
TTC_API void ttc_graph_free(ttc_graph *g); /* only before ttc_graph_finish */
/* An input tensor; returns its value id. */
TTC_API int32_t ttc_graph_input(ttc_graph *g, const ttc_spec *spec);
/* An input number (runtime). Refer to it in a node's args by a TTC_ARG_SCALAR whose scalar has kind and i = the id with
 * dtype TTC_DTYPE_INVALID and wrapped = 2; re is its place where the input is a list of numbers, else 0. */
TTC_API int32_t ttc_graph_input_scalar(ttc_graph *g, ttc_scalar_kind kind);
/* Append a node. Tensor arguments refer to values (`value` >= 0, store NULL, dense strides). `out_ids[k]` receives ids. A node that
 * draws random numbers has no TTC_ARG_RNG: the graph's call has one, its last argument, and nodes take their shares in order. */
TTC_API TTC_MUST_USE ttc_status ttc_graph_node(ttc_graph *g, const ttc_call *call, uint32_t nout, const ttc_spec *specs,
                                               int32_t *out_ids, ttc_error *err);
/* How far a run of the graph moves a generator's offset; 0: it takes no TTC_ARG_RNG. Before ttc_graph_finish. */
TTC_API uint64_t ttc_graph_random(const ttc_graph *g);
TTC_API TTC_MUST_USE ttc_status ttc_graph_finish(ttc_graph *g, uint32_t nout, const int32_t *out_ids, uint32_t *op, ttc_error *err);

/* An op whose calls are run by graphs, one a signature: keyed by its own arguments like any op's calls. On TTC_NOT_FOUND build a
 * graph whose inputs are ttc_graph_input_of (a runtime number: wrapped = 2, i = the argument), choose it, and define the call.
 * static_args: bit i: numbers of argument i are baked into the graphs, so they are part of the key. UINT32_MAX: out of memory. any
 * thread */
TTC_API uint32_t ttc_op_declare(const char *name, uint64_t static_args);
/* Entry k of argument arg of the call (k = 0 unless it is a list); returns its value id. */
TTC_API int32_t ttc_graph_input_of(ttc_graph *g, uint32_t arg, uint32_t k);
/* The finished graph that the next ttc_call_define of a declared op by this thread lowers. */
TTC_API void ttc_graph_choose(uint32_t graph_op);

/* -------------------------------------------------------------------------------------------------------- counters */

typedef struct ttc_stats {
  uint64_t calls;             /* calls run */
  uint64_t programs_compiled; /* executables made by the compiler */
  uint64_t programs_loaded;   /* executables read from the disk cache */
  uint64_t compile_ns;        /* summed over threads */
  uint64_t plans;             /* plans alive */
  uint64_t cache_errors;      /* disk cache entries that could not be read or written */
  int64_t live_nbyte;         /* bytes held by stores' buffers now */
  int64_t peak_nbyte;         /* highest live_nbyte since the start or the last reset */
  int64_t limit_nbyte;        /* what stores may hold together */
  uint64_t queue_wait_ns;     /* time callers spent waiting for a full queue */
  int64_t live_nbuffer;       /* buffers that stores hold now */
  int64_t peak_nbuffer;       /* highest live_nbuffer, as peak_nbyte */
  uint64_t made_nbyte;   /* bytes of all buffers that stores got since the last ttc_device_reset_made, and of those alive then */
  uint64_t made_nbuffer; /* number of these buffers */
} ttc_stats;
TTC_API void ttc_device_get_stats(ttc_device *dev, ttc_stats *out); /* any thread */
TTC_API void ttc_device_reset_peak(ttc_device *dev);                /* any thread */
TTC_API void ttc_device_reset_made(ttc_device *dev);                /* any thread */

/* torch.set_float32_matmul_precision: 0 highest (float32 results, the default), 1 high, 2 medium. Part of every later key. */
TTC_API void ttc_set_matmul_precision(int level);

/* A list of options for XLA's compiler, "name=value", NULL terminated; *set is its number. They come after those of the variable
 * TORCH_TPU_INTERNAL_XLA_OPTIONS. An option that the compiler does not know, or a value it cannot read, is an error. any thread,
 * blocks */
TTC_API TTC_MUST_USE ttc_status ttc_compile_options_add(ttc_device *dev, const char *const *options, uint32_t *set, ttc_error *err);
/* Programs of calls made from now on are compiled under this list (0: only the variable's). Returns the one before. any thread */
TTC_API uint32_t ttc_compile_options_use(uint32_t set);

/* StableHLO of the last plan defined by this thread, for tests and bug reports; "" if none. Valid until the next define. */
TTC_API const char *ttc_last_module(void);

/* StableHLO text of a call without a device (golden tests, ahead-of-time compiling). Tensors' stores may be NULL (value -2): dense
 * inputs. `*text` is freed with ttc_text_free. any thread */
TTC_API TTC_MUST_USE ttc_status ttc_call_lower(const ttc_call *call, uint32_t nout, const ttc_spec *specs, int for_tpu, char **text,
                                               ttc_error *err);
TTC_API void ttc_text_free(char *text);

#ifdef __cplusplus
}
#endif
#endif
