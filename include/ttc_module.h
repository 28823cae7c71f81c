/* ttc_module.h - StableHLO modules as ops, calls as StableHLO modules. Conventions as in ttc.h. */
#ifndef TTC_MODULE_H
#define TTC_MODULE_H

#include "ttc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A module's `main` as an op: run it with ttc_call_run and ttc_call_define like any other, whose arguments are nin tensors and
 * whose results are nout ones.
 *
 *   text    StableHLO, as MLIR text or bytecode, nbyte long; copied. It is parsed when it is compiled, which happens in the
 *           background after the first ttc_call_define: what is wrong with it is told by whoever reads a result.
 *   ins     main's parameters. A call's arguments must be just these: their dtypes and sizes, contiguous, each the whole of its
 * store (made with that very spec); TTC_UNIMPLEMENTED for a view, which the caller copies, TTC_INVALID_ARGUMENT for all else. outs
 * main's results, dense; the compiled program is held to these. writes  NULL, or for each result the parameter whose new contents
 * it is, -1: a fresh tensor. A call must then name that very argument in `into`; its store is no other argument's. main may take
 * such a parameter's memory (tf.aliasing_output).
 *
 * Ops live as long as the process. any thread */
TTC_API TTC_MUST_USE ttc_status ttc_module_load(const char *name, const void *text, size_t nbyte, uint32_t nin, const ttc_spec *ins,
                                                uint32_t nout, const ttc_spec *outs, const int32_t *writes, uint32_t *op,
                                                ttc_error *err);

/* A call as a module for ttc_module_load, or for another program altogether: main's parameters are the call's tensors in order,
 * used or not, its results all of the call's, in order. Numbers must be static or in a graph. Checks of the call's data are left
 * out: a bad index gives some value.
 *
 *   call    its tensors have no store (value -2) and count as contiguous
 *   writes  NULL, or for each result the parameter whose memory it may take, or -1
 *
 * *text is freed with ttc_text_free. any thread */
TTC_API TTC_MUST_USE ttc_status ttc_call_export(const ttc_call *call, uint32_t nout, const ttc_spec *specs, const int32_t *writes,
                                                int for_tpu, char **text, ttc_error *err);

/* From now on, write the module of every plan that is defined to a file of its own, as it is for a TPU, whatever device there is:
 * DIR/OP.NUMBER.mlir, with the folder made by the caller. NULL: no more. any thread */
TTC_API void ttc_set_dump(const char *dir);

#ifdef __cplusplus
}
#endif
#endif
