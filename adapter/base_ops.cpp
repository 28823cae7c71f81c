// The ops that make, view, copy and read tensors: what every device brings itself, and what the boxed kernel stands on.
#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "overlap.h"

namespace tpu {

namespace {

using at::IntArrayRef;
using at::Tensor;

Tensor make(IntArrayRef sizes, IntArrayRef strides, at::ScalarType dtype, c10::DeviceIndex index) {
  ttc_spec spec = make_spec(to_ttc(dtype), sizes, strides);
  size_t nbyte = at::detail::computeStorageNbytes(sizes, strides, ttc_dtype_nbyte(spec.dtype));
  ttc_store* store = nullptr;
  ttc_error err;
  err.op[0] = '\0';
  check(ttc_store_new(device(index), nbyte, &spec, &store, &err), err);
  return wrap(store, spec, index);
}

c10::DeviceIndex index_of(std::optional<c10::Device> d) { return d.has_value() ? resolve(*d) : current_device(); }

void check_layout(std::optional<at::Layout> layout, std::optional<bool> pin) {
  TORCH_CHECK(!layout.has_value() || *layout == at::kStrided, "tpu tensors are strided, got layout ", *layout);
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
}

Tensor empty(IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
             std::optional<c10::Device> dev, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  check_layout(layout, pin);
  at::detail::check_size_nonnegative(size);
  auto f = format.value_or(at::MemoryFormat::Contiguous);
  c10::DimVector strides;
  if (f == at::MemoryFormat::ChannelsLast) {
    auto s = c10::get_channels_last_strides_2d(size);
    strides.assign(s.begin(), s.end());
  } else if (f == at::MemoryFormat::ChannelsLast3d) {
    auto s = c10::get_channels_last_strides_3d(size);
    strides.assign(s.begin(), s.end());
  } else {
    TORCH_CHECK(f == at::MemoryFormat::Contiguous, "empty: unsupported memory format ", f);
    strides = c10::contiguous_strides(size);
  }
  return make(size, strides, dtype.value_or(at::get_default_dtype_as_scalartype()), index_of(dev));
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<c10::Device> dev, std::optional<bool> pin) {
  check_layout(layout, pin);
  at::detail::check_size_nonnegative(size);
  return make(size, stride, dtype.value_or(at::get_default_dtype_as_scalartype()), index_of(dev));
}

// ------------------------------------------------------------------------------------------------------------- views

Tensor view(const Tensor& self, at::SymIntArrayRef size) { return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size)); }

Tensor reshape_alias(const Tensor& self, at::SymIntArrayRef size, at::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

Tensor as_strided(const Tensor& self, at::SymIntArrayRef size, at::SymIntArrayRef stride, std::optional<at::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset.has_value() ? std::make_optional(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}

// --------------------------------------------------------------------------------------------------- storage and size

// Give a tensor a size; its storage grows as needed and is never shrunk.
void resize(at::TensorImpl* self, IntArrayRef size, std::optional<IntArrayRef> stride) {
  c10::DimVector dense = c10::contiguous_strides(size);
  IntArrayRef strides = stride.has_value() ? *stride : IntArrayRef(dense);
  bool empty = std::find(size.begin(), size.end(), 0) != size.end();
  size_t need = empty ? 0 : at::detail::computeStorageNbytes(size, strides, self->dtype().itemsize(), self->storage_offset());
  const c10::Storage& storage = self->unsafe_storage();
  if (need > storage.nbytes()) {
    TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
    resize_storage(storage, need);
  }
  if (stride.has_value()) {
    self->set_sizes_and_strides(size, *stride);
  } else {
    self->set_sizes_contiguous(size);
  }
}

const Tensor& resize_(const Tensor& self, at::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  at::detail::check_size_nonnegative(sizes);
  if (self.sizes() != sizes) {  // a tensor that has the size keeps its strides
    resize(self.unsafeGetTensorImpl(), sizes, std::nullopt);
  }
  if (format.has_value()) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format", *format);
    TORCH_CHECK(*format == at::MemoryFormat::Contiguous || self.dim() >= 4, "resize_: memory format ", *format,
                " needs 4 or 5 dimensions");
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, at::SymInt offset, at::SymIntArrayRef size, at::SymIntArrayRef stride) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size), strides = C10_AS_INTARRAYREF_SLOW(stride);
  TORCH_CHECK(source.device().type() == kType, "set_: expected a tpu storage, got one on ", source.device());
  int64_t at = offset.guard_int(__FILE__, __LINE__);
  TORCH_CHECK(strides.empty() || strides.size() == sizes.size(), "unequal size length (", sizes.size(), ") and stride length (",
              strides.size(), ")");
  TORCH_CHECK(at >= 0, "Tensor: invalid storage offset ", at);
  // Where size and strides stay, PyTorch does not let the storage grow.
  bool stays = self.sizes() == sizes && (strides.empty() || self.strides() == strides);
  size_t need = !stays || self.numel() == 0
                    ? 0
                    : at::detail::computeStorageNbytes(sizes, self.strides(), self.element_size(), static_cast<size_t>(at));
  TORCH_CHECK(need <= source.nbytes(), "setStorage: sizes ", sizes, ", strides ", self.strides(), ", storage offset ", at,
              ", and itemsize ", self.element_size(), " requiring a storage size of ", need,
              " are out of bounds for storage of size ", source.nbytes());
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(at);
  if (!stays) {
    resize(impl, sizes, strides.empty() && !sizes.empty() ? std::nullopt : std::make_optional(strides));
  }
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage source) {
  int64_t n = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {c10::SymInt(n)}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  if (!self.is_same(source)) {
    set_storage(self, source.storage(), source.storage_offset(), source.sym_sizes(), source.sym_strides());
  }
  return self;
}

Tensor& set_empty(Tensor& self) {
  Tensor fresh = make({0}, {1}, self.scalar_type(), self.device().index());
  return set_storage(self, fresh.storage(), 0, {c10::SymInt(0)}, {});
}

bool is_set_to(const Tensor& self, const Tensor& other) {
  return storage_of(self) == storage_of(other) && self.storage_offset() == other.storage_offset() &&
         self.sizes() == other.sizes() && self.strides() == other.strides();
}

// ------------------------------------------------------------------------------------------------------------- copies

// Both tensors with dims ordered by dst's strides, so that a permuted dense dst (channels_last) is filled in memory order.
std::pair<Tensor, Tensor> in_memory_order(const Tensor& dst, const Tensor& src) {
  if (dst.is_contiguous() || !dst.is_non_overlapping_and_dense()) {
    return {dst, src};
  }
  std::vector<int64_t> order(dst.dim());
  for (size_t k = 0; k < order.size(); k++) {
    order[k] = static_cast<int64_t>(k);
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return dst.stride(a) > dst.stride(b); });
  return {dst.permute(order), src.permute(order)};
}

void from_cpu(const Tensor& dst, const Tensor& src) {
  auto [to, from] = in_memory_order(dst, src.expand(dst.sizes()));
  Tensor host = from.to(dst.scalar_type()).contiguous().resolve_conj().resolve_neg();
  ttc_tensor t = describe(to);
  ttc_error err;
  err.op[0] = '\0';
  check(ttc_copy_from_host(&t, host.const_data_ptr(), host.nbytes(), &err), err);
}

void to_cpu(const Tensor& dst, const Tensor& src) {
  auto [to, from] = in_memory_order(dst, src.expand(dst.sizes()));
  Tensor host = to.is_contiguous() && to.scalar_type() == src.scalar_type()
                    ? to
                    : at::empty(from.sizes(), at::TensorOptions().dtype(src.scalar_type()).device(at::kCPU));
  ttc_tensor t = describe(from);
  ttc_error err;
  err.op[0] = '\0';
  check(ttc_copy_to_host(&t, host.mutable_data_ptr(), host.nbytes(), &err), err);
  if (!host.is_same(to)) {
    to.copy_(host);
  }
}

/* The bytes behind a lazily conjugated or negated tensor, without the bits. */
Tensor without_bits(const Tensor& t) {
  Tensor plain = t.is_conj() ? t.conj() : t;
  return plain.is_neg() ? plain._neg_view() : plain;
}

/* Also of tensors with the conjugate or negative bit: their fallbacks are passed by (below), since they would clone, and so come
 * here again without end. */
Tensor copy_from(const Tensor& self, const Tensor& dst, bool non_blocking) {
  if (dst.device() == self.device() && same_view(dst, self)) {
    return dst;
  }
  if (dst.numel() == 0) {
    (void)self.expand(dst.sizes());  // raises where the sizes do not fit
    return dst;
  }
  at::assert_no_internal_overlap(dst);
  at::assert_no_partial_overlap(dst, self);
  if (dst.device().type() == kType && copy_overlapping(dst, self)) {
    return dst;
  }
  if (self.is_conj() || self.is_neg() || dst.is_conj() || dst.is_neg()) {
    Tensor from = without_bits(self);
    if (self.is_conj() != dst.is_conj() && self.is_complex()) {
      from = at::conj_physical(from);
    }
    if (self.is_neg() != dst.is_neg()) {
      from = at::neg(from);
    }
    copy_from(from, without_bits(dst), non_blocking);
    return dst;
  }
  if (dst.device().type() == kType && self.device() == dst.device()) {
    if (dst.sizes() != self.sizes()) {
      at::DimVector sizes = at::infer_size_dimvector(dst.sizes(), self.sizes());  // raises where they do not broadcast
      TORCH_CHECK(dst.sizes() == at::IntArrayRef(sizes), "output with shape ", dst.sizes(), " doesn't match the broadcast shape ",
                  at::IntArrayRef(sizes));
    }
    ttc_tensor to = describe(dst), from = describe(self);
    const ttc_arg args[] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &to},
                            {.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &from},
                            {.kind = TTC_ARG_BOOL, .n = 0, .i = 0}};
    run_into("copy", args, to, make_spec(to_ttc(dst.scalar_type()), dst.sizes(), c10::contiguous_strides(dst.sizes())));
  } else if (dst.device().type() == kType && self.is_cpu()) {
    from_cpu(dst, self);
  } else if (dst.is_cpu()) {
    to_cpu(dst, self);
  } else {
    dst.copy_(self.to(at::kCPU));
  }
  return dst;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  if (dst.sizes() != self.sizes()) {
    dst.resize_(self.sizes());
  }
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  Tensor host = at::empty({}, at::TensorOptions().dtype(self.scalar_type()).device(at::kCPU));
  ttc_tensor t = describe(self);
  ttc_error err;
  err.op[0] = '\0';
  check(ttc_copy_to_host(&t, host.mutable_data_ptr(), host.nbytes(), &err), err);
  return host.item();
}

bool equal(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.device() == other.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
              self.device(), " and ", other.device(), "! (when checking arguments of equal)");
  if (self.sizes() != other.sizes()) {
    return false;
  }
  return self.numel() == 0 || self.eq(other).all().item<bool>();
}

bool compatible(const Tensor&, const Tensor&) { return true; }
void record_stream(Tensor&, at::Stream) {}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("view", TORCH_FN(view));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("is_set_to", TORCH_FN(is_set_to));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("equal", TORCH_FN(equal));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(compatible));
  m.impl("record_stream", TORCH_FN(record_stream));
}

TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace tpu
