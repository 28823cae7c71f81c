// Describing calls, and inferring their results with PyTorch's Meta kernels.
#include "call.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace tpu {

Kind kind_of(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      return kind_of(*type.castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::TensorType:
      return Kind::Tensor;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      return Kind::Number;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return Kind::Int;
    case c10::TypeKind::BoolType:
      return Kind::Bool;
    case c10::TypeKind::ScalarTypeType:
      return Kind::Dtype;
    case c10::TypeKind::StringType:
      return Kind::String;
    case c10::TypeKind::GeneratorType:
      return Kind::Generator;
    case c10::TypeKind::ListType: {
      const auto& element = *type.castRaw<c10::ListType>()->getElementType();
      switch (kind_of(element)) {
        case Kind::Tensor:
          return element.kind() == c10::TypeKind::OptionalType ? Kind::Indices : Kind::Tensors;
        case Kind::Number:
          return Kind::Numbers;
        case Kind::Int:
          return Kind::Ints;
        case Kind::Bool:
          return Kind::Bools;
        default:
          return Kind::Skip;
      }
    }
    default:
      return Kind::Skip;  // Device, Layout, MemoryFormat: the results' specs say it all
  }
}

bool written(const c10::Argument& a) { return a.alias_info() != nullptr && a.alias_info()->isWrite(); }

Overload study(const c10::FunctionSchema& s, uint32_t op, unsigned flags) {
  Overload o;
  o.op = op;
  o.flags = flags;
  o.nstack = static_cast<uint32_t>(s.arguments().size());
  for (uint32_t i = 0; i < o.nstack; i++) {
    const auto& a = s.arguments()[i];
    Kind k = kind_of(*a.real_type());
    k = k == Kind::Int && (flags & TTC_OP_OPEN_INTS) != 0 ? Kind::Number : k;
    o.kinds.push_back(k);
    o.has_lists |= k == Kind::Tensors || k == Kind::Indices || k == Kind::Numbers || k == Kind::Ints || k == Kind::Bools;
    if (written(a)) {
      o.written.push_back(i);
    }
    if (a.kwarg_only() && written(a)) {
      o.has_out = true;
    } else {
      o.ncall = i + 1;
      o.takes_tensors |= k == Kind::Tensor || k == Kind::Tensors || k == Kind::Indices;
    }
    if (k == Kind::Indices) {
      o.indices = static_cast<int>(i);
    }
    if (k == Kind::Generator) {
      o.generator = static_cast<int>(i);
    }
  }
  for (const auto& r : s.returns()) {
    int from = -1;
    if (r.alias_info() != nullptr) {
      for (uint32_t w : o.written) {
        if (*s.arguments()[w].alias_info() == *r.alias_info()) {
          from = static_cast<int>(w);
        }
      }
    }
    o.returns.push_back(from);
    o.returns_list |= r.type()->kind() == c10::TypeKind::ListType;
  }
  // Results come before what is written in place besides them (running statistics), as in the functional overload.
  std::stable_partition(o.written.begin(), o.written.end(), [&](uint32_t w) { return o.has_out && w >= o.ncall; });
  o.may_overlap = s.name() == "aten::fill_" || s.name() == "aten::zero_";
  for (const char* overload : {"fill.Scalar", "index_fill.int_Scalar", "scatter.value"}) {
    std::string name = s.name().substr(6) + "." + s.overload_name(), row = overload, in_place = row;
    in_place.insert(row.find('.'), "_");
    if (name == row || name == in_place || name == row + "_out") {
      o.stored_number = static_cast<int>(o.ncall) - 1;
    }
  }
  for (const char* part : {"linalg_", "lu_", "ldl_", "cholesky", "ormqr", "lstsq", "triangular", "geqrf"}) {
    o.values_matter |= s.name().find(part) != std::string::npos;
  }
  o.foreach = !o.written.empty() && s.name().rfind("aten::_foreach_", 0) == 0;
  o.counts_versions = !o.has_out && o.foreach;
  o.hidden_running_stats = s.name() == "aten::native_batch_norm" && o.written.empty();
  return o;
}

ttc_scalar number(const c10::IValue& v) {
  if (v.isDouble()) {
    return {.kind = TTC_SCALAR_FLOAT, .dtype = 0, .wrapped = 1, .i = 0, .re = v.toDouble(), .im = 0};
  }
  if (v.isInt()) {
    return {.kind = TTC_SCALAR_INT, .dtype = 0, .wrapped = 1, .i = v.toInt(), .re = 0, .im = 0};
  }
  if (v.isBool()) {
    return {.kind = TTC_SCALAR_BOOL, .dtype = 0, .wrapped = 1, .i = v.toBool() ? 1 : 0, .re = 0, .im = 0};
  }
  if (v.isComplexDouble()) {
    auto z = v.toComplexDouble();
    return {.kind = TTC_SCALAR_COMPLEX, .dtype = 0, .wrapped = 1, .i = 0, .re = z.real(), .im = z.imag()};
  }
  if (v.isSymFloat()) {
    return {
        .kind = TTC_SCALAR_FLOAT, .dtype = 0, .wrapped = 1, .i = 0, .re = v.toSymFloat().guard_float(__FILE__, __LINE__), .im = 0};
  }
  return {.kind = TTC_SCALAR_INT, .dtype = 0, .wrapped = 1, .i = v.toSymInt().guard_int(__FILE__, __LINE__), .re = 0, .im = 0};
}

ttc_scalar number(const at::Scalar& s) {
  if (s.isFloatingPoint()) {
    return {.kind = TTC_SCALAR_FLOAT, .dtype = 0, .wrapped = 1, .i = 0, .re = s.toDouble(), .im = 0};
  }
  if (s.isBoolean()) {
    return {.kind = TTC_SCALAR_BOOL, .dtype = 0, .wrapped = 1, .i = s.toBool() ? 1 : 0, .re = 0, .im = 0};
  }
  return s.isIntegral(/*includeBool=*/false)
             ? ttc_scalar{.kind = TTC_SCALAR_INT, .dtype = 0, .wrapped = 1, .i = s.toLong(), .re = 0, .im = 0}
             : number(c10::IValue(s));
}

void check_stored(const c10::IValue& number, at::ScalarType type) {
  at::Scalar s = number.toScalar();
  AT_DISPATCH_V2(type, "fill", AT_WRAP([&] { (void)s.to<scalar_t>(); }), AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), at::kBool, at::kHalf,
                 at::kBFloat16, AT_EXPAND(AT_FLOAT8_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
}

namespace {
// x * 2.0 comes with the 2.0 in a 0-d CPU tensor: read as item() would, which is another dispatch.
at::Scalar item(const at::Tensor& t) {
  if (C10_LIKELY(t.has_storage() && t.layout() == at::kStrided && !t.is_neg())) {
    if (const void* p = t.storage().data() == nullptr ? nullptr : t.const_data_ptr()) {
      switch (t.scalar_type()) {
        case at::kDouble:
          return *static_cast<const double*>(p);
        case at::kFloat:
          return *static_cast<const float*>(p);
        case at::kLong:
          return *static_cast<const int64_t*>(p);
        default:
          break;
      }
    }
  }
  return t.item();
}
}  // namespace

ttc_scalar number_of_tensor(const at::Tensor& t) {
  ttc_scalar n = number(item(t));
  n.dtype = static_cast<uint8_t>(to_ttc(t.scalar_type()));
  n.wrapped = t.unsafeGetTensorImpl()->is_wrapped_number() ? 1 : 0;
  if (n.wrapped != 0) {
    n.dtype = TTC_DTYPE_INVALID;
  }
  return n;
}

// --------------------------------------------------------------------------------------------------- inference by Meta

namespace {
// A tensor of the same shape on a device that stands in for ours: `meta`, or the cpu with zeros in it.
at::Tensor stand_in(const at::Tensor& t, c10::DeviceType device) {
  if (!t.defined() || t.device().type() == device || (t.device().type() != kType && t.dim() == 0)) {
    return t;
  }
  at::Tensor s = at::empty_strided(t.sizes(), t.strides(), t.options().device(device));
  return device == at::kCPU ? s.zero_() : s;
}

c10::IValue stand_in(const c10::IValue& v, Kind kind, c10::DeviceType device) {
  if (v.isTensor()) {
    return stand_in(v.toTensor(), device);
  }
  if (kind == Kind::Tensors) {
    c10::List<at::Tensor> out;
    for (const auto& e : v.toListRef()) {
      out.push_back(stand_in(e.toTensor(), device));
    }
    return out;
  }
  if (kind == Kind::Indices && !v.isNone()) {
    c10::List<std::optional<at::Tensor>> out;
    for (const auto& e : v.toListRef()) {
      if (e.isNone()) {
        out.push_back(std::nullopt);
      } else {
        out.push_back(stand_in(e.toTensor(), device));
      }
    }
    return out;
  }
  if (v.isDevice()) {
    return c10::Device(device);
  }
  return v.isGenerator() ? c10::IValue() : v;
}

torch::jit::Stack stand_ins(const Overload& o, c10::ArrayRef<c10::IValue> args, c10::DeviceType device) {
  torch::jit::Stack stack;
  stack.reserve(args.size());
  for (size_t i = 0; i < args.size(); i++) {
    stack.push_back(stand_in(args[i], o.kinds[i], device));
  }
  return stack;
}

constexpr size_t kLargestTrial = size_t{64} << 20;  // bytes

size_t nbyte_of(c10::ArrayRef<c10::IValue> values);

size_t nbyte_of(const c10::IValue& v) {
  if (v.isTensor() && v.toTensor().defined()) {
    const at::Tensor& t = v.toTensor();
    return at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.element_size());
  }
  return v.isList() ? nbyte_of(v.toListRef()) : 0;
}

size_t nbyte_of(c10::ArrayRef<c10::IValue> values) {
  size_t n = 0;
  for (const auto& v : values) {
    n += nbyte_of(v);
  }
  return n;
}

// The call made on the cpu, with zeros for its tensors.
struct Trial {
  torch::jit::Stack results;
  std::vector<c10::IValue> args;
  Trial(const c10::OperatorHandle& handle, const Overload& o, c10::ArrayRef<c10::IValue> given)
      : results(stand_ins(o, given, at::kCPU)), args(results.begin(), results.end()) {
    at::AutoDispatchBelowADInplaceOrView guard;
    handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &results);
  }
};

}  // namespace

bool raise_as_cpu_does(const c10::OperatorHandle& handle, const Overload& o, c10::ArrayRef<c10::IValue> args,
                       std::vector<c10::IValue>* cpu_args, torch::jit::Stack* results) {
  if (nbyte_of(args) > kLargestTrial) {
    return false;
  }
  Trial trial(handle, o, args);
  if (o.values_matter || cpu_args == nullptr) {
    return false;
  }
  *cpu_args = std::move(trial.args);
  *results = std::move(trial.results);
  return true;
}

namespace {
// Some Meta kernels let a result be written to a type that does not hold it.
bool narrows(const std::exception& e) {
  return std::strstr(e.what(), "can't be cast to") != nullptr ||
         std::strstr(e.what(), "only supports bool tensor for result") != nullptr;
}

bool writes_integers(const Overload& o, c10::ArrayRef<c10::IValue> args) {
  const c10::IValue* v = o.written.empty() ? nullptr : &args[o.written[0]];
  return v != nullptr && v->isTensor() && c10::isIntegralType(v->toTensor().scalar_type(), /*includeBool=*/true);
}
}  // namespace

bool lay_out_as_cpu(const c10::OperatorHandle& handle, const Overload& o, c10::ArrayRef<c10::IValue> args) {
  if ((!o.has_out && !writes_integers(o, args)) || o.values_matter || (o.flags & TTC_OP_RNG) != 0 ||
      nbyte_of(args) > kLargestTrial / 16) {
    return false;
  }
  std::vector<c10::IValue> copies;
  Warnings warnings;
  try {
    c10::WarningUtils::WarningHandlerGuard keep(&warnings);
    copies = Trial(handle, o, args).args;
  } catch (const std::exception& e) {
    if (narrows(e)) {
      throw;
    }
    return false;  // it has no kernel, or refuses zeros
  }
  bool resized = false;
  for (uint32_t w : o.written) {
    if (w < o.ncall || !args[w].isTensor()) {
      continue;
    }
    const at::Tensor &out = args[w].toTensor(), &copy = copies[w].toTensor();
    if (out.sizes() != copy.sizes()) {
      out.resize_(copy.sizes());
      out.unsafeGetTensorImpl()->set_sizes_and_strides(copy.sizes(), copy.strides());
      resized = true;
    }
  }
  if (resized) {
    warnings.give();
  }
  return resized;
}

ttc_spec spec_of(const at::Tensor& t) {
  if (!t.defined()) {
    return {};  // TTC_DTYPE_INVALID: a result that was not asked for
  }
  ttc_dtype dtype = to_ttc(t.scalar_type());
  return t.is_non_overlapping_and_dense() ? make_spec(dtype, t.sizes(), t.strides())
                                          : make_spec(dtype, t.sizes(), c10::contiguous_strides(t.sizes()));
}

namespace {
void specs_of(const c10::IValue& v, std::vector<ttc_spec>& out) {
  if (v.isTensor()) {
    out.push_back(spec_of(v.toTensor()));
  } else if (v.isNone()) {
    out.push_back(ttc_spec{});
  } else if (v.isList()) {
    for (const auto& e : v.toListRef()) {
      specs_of(e, out);
    }
  }
}
}  // namespace

void resize_out(const Overload& o, const at::Tensor& out, at::IntArrayRef sizes) {
  if (o.takes_tensors) {
    at::native::resize_output(out, sizes);
  } else {
    out.resize_(sizes);  // factories do not warn
  }
}

Inference infer_by_meta(const c10::OperatorHandle& handle, const Overload& o, c10::ArrayRef<c10::IValue> args) {
  Inference result;
  torch::jit::Stack stack = stand_ins(o, args, at::kMeta);
  std::vector<c10::IValue> meta_args(stack.begin(), stack.end());
  try {
    at::AutoDispatchBelowADInplaceOrView guard;
    handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } catch (const c10::NotImplementedError&) {
    throw;
  } catch (const std::exception&) {  // PyTorch's, or Python's from a kernel written in Python
    if (!raise_as_cpu_does(handle, o, args, &meta_args, &stack)) {
      throw;
    }
  }
  for (size_t r = 0; r < o.returns.size(); r++) {
    if (o.returns[r] < 0) {
      specs_of(stack[r], result.specs);
    }
  }
  for (uint32_t w : o.written) {
    specs_of(meta_args[w], result.specs);
    if (!o.has_out || w < o.ncall) {
      continue;
    }
    auto fix = [&](const at::Tensor& out, const at::Tensor& meta) {
      if (out.sizes() != meta.sizes()) {
        resize_out(o, out, meta.sizes());
        out.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides());  // linear algebra gives columns
        result.resized = true;
      }
    };
    if (args[w].isTensor()) {
      fix(args[w].toTensor(), meta_args[w].toTensor());
    } else {
      auto outs = args[w].toListRef(), metas = meta_args[w].toListRef();
      for (size_t k = 0; k < outs.size(); k++) {
        fix(outs[k].toTensor(), metas[k].toTensor());
      }
    }
  }
  if (o.writes_running_stats(args)) {
    specs_of(args[3], result.specs);
    specs_of(args[4], result.specs);
  }
  return result;
}

namespace {
void bump_versions(const Overload& o, c10::ArrayRef<c10::IValue> args) {
  for (uint32_t w : o.written) {
    for (size_t k = 0; k < args[w].toListRef().size(); k++) {
      const at::Tensor& t = args[w].toListRef()[k].toTensor();
      if (!t.is_inference()) {
        t.unsafeGetTensorImpl()->bump_version();
      }
    }
  }
}
}  // namespace

void give_back(const Overload& o, torch::jit::Stack* stack, ttc_result& res, c10::DeviceIndex index) {
  c10::SmallVector<c10::IValue, 4> out;
  uint32_t k = 0;
  auto args = torch::jit::last(*stack, o.nstack);
  auto next = [&]() {
    const ttc_spec& spec = res.specs[k];
    ttc_store* store = res.stores[k++];
    return store != nullptr ? wrap(store, spec, index) : at::Tensor();
  };
  for (int r : o.returns) {
    if (r >= 0) {
      out.push_back(args[r]);
    } else if (o.returns_list) {
      c10::List<at::Tensor> list;
      while (k < res.nout) {
        list.push_back(next());
      }
      out.push_back(std::move(list));
    } else {
      out.push_back(next());
    }
  }
  if (o.counts_versions) {
    bump_versions(o, args);
  }
  ttc_result_done(&res);
  torch::jit::drop(*stack, o.nstack);
  for (auto& v : out) {
    stack->push_back(std::move(v));
  }
}

}  // namespace tpu
