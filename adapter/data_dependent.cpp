// Ops whose result's size depends on data. The core gives as many places as there can be and a count; here the count is read, which
// waits for the device, and the result is a view of its first `count` places.
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>
#include <torch/library.h>

#include "adapter.h"

namespace tpu {

namespace {

using at::Tensor;

ttc_spec spec(ttc_dtype dtype, at::IntArrayRef sizes) { return make_spec(dtype, sizes, c10::contiguous_strides(sizes)); }

Tensor nonzero(const Tensor& self) {
  ttc_tensor t = describe(self);
  auto r =
      run_row("nonzero", {argument(&t)}, {spec(TTC_S64, {self.numel(), self.dim()}), spec(TTC_S64, {})}, self.device().index());
  return r[0].narrow(0, 0, r[1].item<int64_t>());
}

Tensor masked_select(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  auto both = at::broadcast_tensors({self, mask});
  return both[0].reshape(-1).index_select(0, at::nonzero(both[1].reshape(-1)).squeeze(1));
}

// out= forms: the result is worked out, then copied.
Tensor& give(const Tensor& result, Tensor& out, const char* name) {
  TORCH_CHECK(out.scalar_type() == result.scalar_type(), name, ": expected out of dtype ", result.scalar_type(), ", got ",
              out.scalar_type());
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

Tensor& nonzero_out(const Tensor& self, Tensor& out) { return give(tpu::nonzero(self), out, "nonzero"); }

Tensor& masked_select_out(const Tensor& self, const Tensor& mask, Tensor& out) {
  return give(tpu::masked_select(self, mask), out, "masked_select");
}

using Three = std::tuple<Tensor, Tensor, Tensor>;

Three unique_flat(const char* row, const Tensor& self, bool sorted, bool inverse, bool counts) {
  ttc_tensor t = describe(self);
  int64_t n = self.numel();
  auto r = run_row(row, {argument(&t), argument(sorted), argument(inverse), argument(counts)},
                   {spec(static_cast<ttc_dtype>(t.dtype), {n}), inverse ? spec(TTC_S64, self.sizes()) : spec(TTC_S64, {0}),
                    spec(TTC_S64, {counts ? n : 0}), spec(TTC_S64, {})},
                   self.device().index());
  int64_t count = r[3].item<int64_t>();
  return {r[0].narrow(0, 0, count), r[1], counts ? r[2].narrow(0, 0, count) : r[2]};
}

Three unique2(const Tensor& self, bool sorted, bool return_inverse, bool return_counts) {
  return unique_flat("_unique2", self, sorted, return_inverse, return_counts);
}

std::tuple<Tensor, Tensor> unique(const Tensor& self, bool sorted, bool return_inverse) {
  auto r = tpu::unique2(self, sorted, return_inverse, false);
  return {std::get<0>(r), std::get<1>(r)};
}

Three unique_along(const char* row, const Tensor& self, int64_t dim, bool inverse, bool counts) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  int64_t n = self.size(dim);
  TORCH_CHECK(self.numel() > 0 || n == 0, "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
  ttc_tensor t = describe(self);
  auto front = self.sizes().vec();
  front.erase(front.begin() + dim);
  front.insert(front.begin(), n);
  auto r = run_row(row, {argument(&t), argument(dim), argument(inverse), argument(counts)},
                   {spec(static_cast<ttc_dtype>(t.dtype), front), spec(TTC_S64, {inverse ? n : 0}), spec(TTC_S64, {counts ? n : 0}),
                    spec(TTC_S64, {})},
                   self.device().index());
  int64_t count = r[3].item<int64_t>();
  return {r[0].narrow(0, 0, count).movedim(0, dim), r[1], counts ? r[2].narrow(0, 0, count) : r[2]};
}

Three unique_dim(const Tensor& self, int64_t dim, bool sorted, bool return_inverse, bool return_counts) {
  return unique_along("unique_dim", self, dim, return_inverse, return_counts);
}

Three unique_dim_consecutive(const Tensor& self, int64_t dim, bool return_inverse, bool return_counts) {
  return unique_along("unique_dim_consecutive", self, dim, return_inverse, return_counts);
}

Three unique_consecutive(const Tensor& self, bool return_inverse, bool return_counts, std::optional<int64_t> dim) {
  return dim.has_value() ? tpu::unique_dim_consecutive(self, *dim, return_inverse, return_counts)
                         : unique_flat("unique_consecutive", self, false, return_inverse, return_counts);
}

Tensor bincount(const Tensor& self, const std::optional<Tensor>& weights, c10::SymInt minlength) {
  int64_t n = minlength.guard_int(__FILE__, __LINE__);
  bool weighted = weights.has_value() && weights->defined();
  TORCH_CHECK(n >= 0, "minlength should be >= 0");
  TORCH_CHECK(self.dim() == 1, "bincount only supports 1-d non-negative integral inputs.");
  TORCH_CHECK(!weighted || (weights->dim() == 1 && weights->numel() == self.numel()),
              "weights should be 1-d and have the same length as input");
  auto dtype = !weighted ? at::kLong : weights->scalar_type() == at::kFloat ? at::kFloat : at::kDouble;
  if (self.numel() > 0) {
    auto ends = at::stack({self.min(), self.max()}).cpu();
    TORCH_CHECK(ends[0].item<int64_t>() >= 0, "bincount only supports 1-d non-negative integral inputs.");
    n = std::max(n, ends[1].item<int64_t>() + 1);
  }
  auto values = weighted ? weights->to(dtype) : at::ones_like(self, self.options().dtype(dtype));
  return at::zeros({n}, self.options().dtype(dtype)).scatter_add_(0, self.to(at::kLong), values);
}

Tensor repeat_interleave(const Tensor& repeats, std::optional<c10::SymInt> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt, "repeats has to be Long or Int tensor");
  if (repeats.numel() == 0) {
    return at::empty_like(repeats);
  }
  auto ends = repeats.cumsum(0);
  int64_t total = 0;
  if (output_size.has_value()) {
    total = output_size->guard_int(__FILE__, __LINE__);
  } else {
    auto known = at::stack({repeats.min().to(at::kLong), ends[-1]}).cpu();
    TORCH_CHECK(known[0].item<int64_t>() >= 0, "repeats can not be negative");
    total = known[1].item<int64_t>();
  }
  return at::searchsorted(ends, at::arange(total, ends.options()), /*out_int32=*/false, /*right=*/true).to(repeats.scalar_type());
}

}  // namespace

// A mask covers as many axes of self as it has, and must have their sizes.
static void check_mask(const Tensor& self, const Tensor& mask, int64_t place, int64_t axis) {
  for (int64_t k = 0; k < mask.dim(); k++) {
    TORCH_CHECK_INDEX(axis + k < self.dim() && mask.size(k) == self.size(axis + k), "The shape of the mask ", mask.sizes(),
                      " at index ", place, " does not match the shape of the indexed tensor ", self.sizes(), " at index ",
                      axis + k);
  }
}

bool expand_masks(const Tensor& self, c10::IValue& indices, bool keep_lone_mask) {
  int64_t place = 0, axis = 0;
  for (const auto& e : indices.toListRef()) {
    bool mask = e.isTensor() && e.toTensor().defined() &&
                (e.toTensor().scalar_type() == at::kBool || e.toTensor().scalar_type() == at::kByte);
    if (mask) {
      check_mask(self, e.toTensor(), place, axis);
    }
    axis += mask ? e.toTensor().dim() : 1;
    place++;
  }
  int given = 0, masks = 0;
  for (const auto& e : indices.toListRef()) {
    if (e.isTensor() && e.toTensor().defined()) {
      auto type = e.toTensor().scalar_type();
      given++;
      masks += type == at::kBool || type == at::kByte ? 1 : 0;
    }
  }
  if (masks == 0 || (keep_lone_mask && given == 1)) {
    return false;
  }
  c10::List<std::optional<Tensor>> out;
  for (const auto& e : indices.toListRef()) {
    Tensor t = e.isTensor() ? e.toTensor() : Tensor();
    if (!t.defined()) {
      out.push_back(std::nullopt);
    } else if (t.scalar_type() != at::kBool && t.scalar_type() != at::kByte) {
      out.push_back(t);
    } else {
      for (const auto& column : at::nonzero(t).unbind(1)) {
        out.push_back(column);
      }
    }
  }
  indices = std::move(out);
  return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", &nonzero);
  m.impl("masked_select", &masked_select);
  m.impl("nonzero.out", &nonzero_out);
  m.impl("masked_select.out", &masked_select_out);
  m.impl("_unique", &unique);
  m.impl("_unique2", &unique2);
  m.impl("unique_dim", &unique_dim);
  m.impl("unique_dim_consecutive", &unique_dim_consecutive);
  m.impl("unique_consecutive", &unique_consecutive);
  m.impl("bincount", &bincount);
  m.impl("repeat_interleave.Tensor", &repeat_interleave);
}

}  // namespace tpu
