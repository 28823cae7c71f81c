// scaled_dot_product_attention: PyTorch asks which of its implementations to use, and calls the "overrideable" one, which is ours.
#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>
#include <c10/util/strides.h>
#include <torch/library.h>

#include "adapter.h"

namespace tpu {

namespace {

using at::Tensor;

// Sizes may be symbols of a graph being traced, which are compared and not read.
bool fits(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double dropout_p, bool enable_gqa) {
  if (dropout_p > 0.0 || q.dim() != 4 || k.dim() != 4 || v.dim() != 4 || !at::isFloatingType(q.scalar_type())) {
    return false;
  }
  if (mask.has_value() && mask->defined()) {  // with is_causal too: a key must be seen by both, as on the cpu
    std::array<c10::SymInt, 4> scores = {q.sym_size(0), q.sym_size(1), q.sym_size(2), k.sym_size(2)};
    if (mask->device() != q.device() || !at::is_expandable_to(mask->sym_sizes(), c10::SymIntArrayRef(scores))) {
      return false;
    }
  }
  const c10::SymInt hq = q.sym_size(1), hk = k.sym_size(1);
  bool heads = hk == v.sym_size(1) && (hk == hq || (enable_gqa && hk > 0 && hq % hk == 0));
  bool sizes = q.sym_size(0) == k.sym_size(0) && k.sym_size(0) == v.sym_size(0) && k.sym_size(2) == v.sym_size(2) &&
               q.sym_size(3) == k.sym_size(3);
  return heads && sizes && q.scalar_type() == k.scalar_type() && k.scalar_type() == v.scalar_type();
}

int64_t choose(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double dropout_p,
               bool /*is_causal*/, std::optional<double> scale, bool enable_gqa) {
  const auto& ctx = at::globalContext();
  bool fused = ctx.userEnabledOverrideableSDP() || ctx.userEnabledFlashSDP() || ctx.userEnabledMemEfficientSDP();
  if (fused && fits(q, k, v, mask, dropout_p, enable_gqa)) {
    return static_cast<int64_t>(at::SDPBackend::overrideable);
  }
  return static_cast<int64_t>(ctx.userEnabledMathSDP() ? at::SDPBackend::math : at::SDPBackend::error);
}

// A result of these sizes laid out in memory as `like` is, so that what undid a transpose before undoes it after.
ttc_spec spec_like(const Tensor& like, at::IntArrayRef sizes) {
  return make_spec(to_ttc(like.scalar_type()), sizes, at::infer_dense_strides(sizes, like.strides()));
}

ttc_arg none() { return {.kind = TTC_ARG_NONE, .n = 0, .i = 0}; }

// Absent means 1 / sqrt(width), which the core knows.
ttc_arg scale_argument(const std::optional<double>& scale, ttc_scalar* s) {
  if (!scale.has_value()) {
    return none();
  }
  *s = {.kind = TTC_SCALAR_FLOAT, .dtype = 0, .wrapped = 1, .i = 0, .re = *scale, .im = 0};
  return {.kind = TTC_ARG_SCALAR, .n = 1, .scalar = s};
}

at::ScalarType score_type(const Tensor& q) { return q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> forward(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias, double dropout_p, bool is_causal,
    bool return_debug_mask, std::optional<double> scale) {
  TORCH_CHECK(fits(q, k, v, std::nullopt, dropout_p, true),
              "tpu: fused attention wants 4-d query, key and value of one float dtype and fitting sizes, and no dropout");
  bool has_bias = bias.has_value() && bias->defined();
  ttc_tensor tq = describe(q), tk = describe(k), tv = describe(v), tb = has_bias ? describe(*bias) : ttc_tensor{};
  ttc_scalar number;
  ttc_arg args[] = {argument(&tq),
                    argument(&tk),
                    argument(&tv),
                    has_bias ? argument(&tb) : none(),
                    {.kind = TTC_ARG_BOOL, .n = 0, .i = is_causal},
                    scale_argument(scale, &number)};
  std::array<int64_t, 4> sizes = {q.size(0), q.size(1), q.size(2), v.size(3)};
  std::array<int64_t, 3> rows = {q.size(0), q.size(1), q.size(2)};
  auto r =
      run_row("_sdpa_forward", args, {spec_like(q, sizes), make_spec(to_ttc(score_type(q)), rows, c10::contiguous_strides(rows))},
              q.device().index());
  return {r[0], r[1], Tensor(), Tensor(), q.size(2), k.size(2), Tensor(), Tensor(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                                    const Tensor& bias, std::array<bool, 4> wanted, const Tensor& out,
                                                    const Tensor& lse, const Tensor& cum_seq_q, const Tensor& cum_seq_k,
                                                    c10::SymInt max_q, c10::SymInt max_k, double dropout_p, bool is_causal,
                                                    const Tensor& philox_seed, const Tensor& philox_offset,
                                                    std::optional<double> scale) {
  if (!grad.defined()) {
    return {};
  }
  ttc_tensor tg = describe(grad), tq = describe(q), tk = describe(k), tv = describe(v), to = describe(out), tl = describe(lse);
  ttc_tensor tb = bias.defined() ? describe(bias) : ttc_tensor{};
  ttc_scalar number;
  int64_t mask[] = {wanted[0], wanted[1], wanted[2], wanted[3] && bias.defined()};
  ttc_arg args[] = {argument(&tg),
                    argument(&tq),
                    argument(&tk),
                    argument(&tv),
                    bias.defined() ? argument(&tb) : none(),
                    argument(&to),
                    argument(&tl),
                    {.kind = TTC_ARG_BOOL, .n = 0, .i = is_causal},
                    scale_argument(scale, &number),
                    {.kind = TTC_ARG_INTS, .n = 4, .ints = mask}};
  ttc_spec specs[4] = {};  // an invalid dtype: not wanted
  const Tensor* like[] = {&q, &k, &v, &bias};
  for (int i = 0; i < 4; i++) {
    if (mask[i] != 0) {
      specs[i] = spec_like(*like[i], like[i]->sizes());
    }
  }
  auto r = run_row("_sdpa_backward", args, specs, q.device().index());
  return {r[0], r[1], r[2], r[3]};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &choose);
  m.impl("_scaled_dot_product_fused_attention_overrideable", &forward);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &backward);
}

int64_t choose_attention(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double dropout_p,
                         bool is_causal, std::optional<double> scale, bool enable_gqa) {
  return choose(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa);
}

}  // namespace tpu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &tpu::choose_attention)
}  // namespace at::native
