/* Launching: the hot path. */
#include "pjrt/call.h"

ttc_status pjrt_execute(pjrt_exe *e, pjrt_buffer *const *args, size_t narg, const int64_t *keep, size_t nkeep, pjrt_buffer **outs,
                        ttc_error *err) {
  /* pjrt_buffer is never defined, so these lists are the plugin's own: nothing is copied, whatever the number of arguments. */
  PJRT_Buffer *const *arguments = (PJRT_Buffer *const *)args;
  PJRT_Buffer **results = (PJRT_Buffer **)outs;
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE,
                                 .non_donatable_input_indices = keep,
                                 .num_non_donatable_input_indices = nkeep};
  PJRT_LoadedExecutable_Execute_Args launch = {.executable = e->loaded,
                                               .options = &options,
                                               .argument_lists = &arguments,
                                               .num_devices = 1,
                                               .num_args = narg,
                                               .output_lists = &results};
  return PJRT_CALL(e->plugin, PJRT_LoadedExecutable_Execute, &launch, err);
}
