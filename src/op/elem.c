#include "op/elem.h"

void ttc__spec_dense(ttc_spec *s) {
  int64_t stride = 1;
  for (int k = s->ndim - 1; k >= 0; k--) {
    s->strides[k] = stride;
    stride *= s->sizes[k] > 1 ? s->sizes[k] : 1;
  }
}

ttc_status ttc__infer_like_first(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  if (max < 1 || call->narg < 1 || call->args[0].kind != TTC_ARG_TENSOR)
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected a tensor as the first argument");
  const ttc_tensor *t = call->args[0].tensor;
  specs[0].dtype = (ttc_dtype)t->dtype;
  specs[0].ndim = t->ndim;
  for (int k = 0; k < t->ndim; k++)
    specs[0].sizes[k] = t->sizes[k];
  ttc__spec_dense(&specs[0]);
  *nout = 1;
  return TTC_OK;
}
