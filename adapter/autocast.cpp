// torch.autocast("tpu"): which ops run in the lower precision type, which in float32, which in the widest of their inputs. The
// lists are PyTorch's own for accelerators, so that a model autocasts as it does on CUDA.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace {

using namespace at;
using namespace at::autocast;

Tensor refuse_binary_cross_entropy(const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t) {
  TORCH_CHECK(
      false,
      "binary_cross_entropy and BCELoss are unsafe to autocast: a probability of 0 or 1 rounded to the lower precision type has an "
      "infinite loss. Use binary_cross_entropy_with_logits or BCEWithLogitsLoss, or leave autocast for this op.");
}

#define ONE(POLICY, ...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, POLICY)
#define LOWER(...) ONE(lower_precision_fp, __VA_ARGS__)
#define FLOAT32(...) ONE(fp32, __VA_ARGS__)
#define OPT_DTYPE(...) ONE(fp32_set_opt_dtype, __VA_ARGS__)
#define WIDEST(...) ONE(promote, __VA_ARGS__)

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
  AT_FORALL_FP32(FLOAT32)
  AT_FORALL_FP32_SET_OPT_DTYPE(OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(WIDEST)
  m.impl("binary_cross_entropy", TORCH_FN(refuse_binary_cross_entropy));
}

}  // namespace
