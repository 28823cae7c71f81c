// The one boxed kernel: any op of the core's table, with the row as its data.
//
// A call's IValues are described to the core as plain structs. If the core has a plan for this signature it runs; if not, PyTorch's own
// Meta kernel says what the results look like (and raises PyTorch's own errors), and the core lowers the call.
#include <ATen/NativeFunctions.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "adapter.h"

namespace tpu {

namespace {

enum class Kind : uint8_t { Tensor, Tensors, Indices, Number, Numbers, Int, Bool, Ints, Bools, Dtype, String, Generator, Skip };

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

// What is known of one overload before any call.
struct Overload {
  uint32_t op = 0;
  unsigned flags = 0;
  uint32_t nstack = 0;                // arguments on the stack
  uint32_t ncall = 0;                 // of them, arguments of the call (out= ones come after)
  std::vector<Kind> kinds;            // [nstack]
  std::vector<uint32_t> written;      // stack arguments that are written, in order
  std::vector<int> returns;           // [nreturn] stack argument returned, or -1 for a fresh result
  bool has_lists = false;
  bool has_out = false;
  bool returns_list = false;
  int generator = -1;
  int indices = -1;  // stack argument that is a list of optional tensors, which may be masks
  // native_batch_norm writes its running statistics though its schema does not say so.
  bool hidden_running_stats = false;
};

// One call's description; lives on the caller's stack.
struct Frame {
  c10::SmallVector<ttc_arg, 24> args;
  c10::SmallVector<ttc_tensor, 12> tensors;
  c10::SmallVector<ttc_scalar, 12> scalars;
  c10::SmallVector<int64_t, 32> ints;
  c10::SmallVector<const ttc_tensor*, 8> into;
  std::vector<at::Tensor> held;  // temporaries that must outlive the call
  std::array<uint64_t, 2> rng{};
  c10::DeviceIndex index = -1;
};

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
    return {.kind = TTC_SCALAR_FLOAT, .dtype = 0, .wrapped = 1, .i = 0, .re = v.toSymFloat().guard_float(__FILE__, __LINE__), .im = 0};
  }
  return {.kind = TTC_SCALAR_INT, .dtype = 0, .wrapped = 1, .i = v.toSymInt().guard_int(__FILE__, __LINE__), .re = 0, .im = 0};
}

// A 0-d CPU tensor is a number with a dtype.
ttc_scalar number_of_tensor(const at::Tensor& t) {
  at::Scalar s = t.item();
  ttc_scalar n = number(c10::IValue(s));
  n.dtype = static_cast<uint8_t>(to_ttc(t.scalar_type()));
  n.wrapped = t.unsafeGetTensorImpl()->is_wrapped_number() ? 1 : 0;
  if (n.wrapped != 0) {
    n.dtype = TTC_DTYPE_INVALID;
  }
  return n;
}

int64_t integer(const c10::IValue& v) { return v.isInt() ? v.toInt() : v.toSymInt().guard_int(__FILE__, __LINE__); }

struct Describer {
  const Overload& o;
  Frame& f;

  ttc_tensor tensor(const at::Tensor& t) {
    if (f.index < 0) {
      f.index = t.device().index();
    }
    return describe(t);
  }

  [[noreturn]] void wrong_device(const at::Tensor& t) {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, tpu:",
                static_cast<int>(f.index < 0 ? current_device() : f.index), " and ", t.device(), "! (when checking arguments of ",
                name(), ")");
  }

  std::string name() const {
    ttc_op_info info;
    return ttc_op_get(o.op, &info) ? info.name : "?";
  }

  void add_tensor(const c10::IValue& v) {
    if (v.isNone()) {
      f.args.push_back({.kind = TTC_ARG_NONE, .n = 0, .i = 0});
      return;
    }
    const at::Tensor& t = v.toTensor();
    if (!t.defined()) {
      f.args.push_back({.kind = TTC_ARG_NONE, .n = 0, .i = 0});
    } else if (t.device().type() == kType) {
      f.tensors.push_back(tensor(t));
      f.args.push_back({.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &f.tensors.back()});
    } else if (t.dim() == 0 && t.is_cpu()) {
      f.scalars.push_back(number_of_tensor(t));
      f.args.push_back({.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &f.scalars.back()});
    } else {
      wrong_device(t);
    }
  }

  void add_tensors(const c10::IValue& v, bool indices) {
    if (v.isNone()) {
      f.args.push_back({.kind = TTC_ARG_NONE, .n = 0, .i = 0});
      return;
    }
    auto list = v.toListRef();
    size_t first = f.tensors.size();
    for (const auto& e : list) {
      at::Tensor t = e.isNone() ? at::Tensor() : e.toTensor();
      if (t.defined() && t.device().type() != kType) {
        if (!t.is_cpu() || !(indices || t.dim() == 0)) {
          wrong_device(t);
        }
        t = t.to(c10::Device(kType, f.index < 0 ? current_device() : f.index));  // index lists may lie on the cpu
        f.held.push_back(t);
      }
      f.tensors.push_back(t.defined() ? tensor(t) : ttc_tensor{nullptr, nullptr, nullptr, 0, -1, 0, 0});
    }
    f.args.push_back({.kind = TTC_ARG_TENSORS, .n = static_cast<uint32_t>(list.size()), .tensor = f.tensors.data() + first});
  }

  void add_list(const c10::IValue& v, Kind kind) {
    if (v.isNone()) {
      f.args.push_back({.kind = TTC_ARG_NONE, .n = 0, .i = 0});
      return;
    }
    if (!v.isList()) {  // a bare int where int[k] is asked
      f.ints.push_back(integer(v));
      f.args.push_back({.kind = TTC_ARG_INTS, .n = 1, .ints = &f.ints.back()});
      return;
    }
    auto list = v.toListRef();
    auto n = static_cast<uint32_t>(list.size());
    if (kind == Kind::Numbers) {
      size_t first = f.scalars.size();
      for (const auto& e : list) {
        f.scalars.push_back(number(e));
      }
      f.args.push_back({.kind = TTC_ARG_SCALARS, .n = n, .scalar = f.scalars.data() + first});
      return;
    }
    size_t first = f.ints.size();
    for (const auto& e : list) {
      f.ints.push_back(e.isBool() ? static_cast<int64_t>(e.toBool()) : integer(e));
    }
    f.args.push_back({.kind = TTC_ARG_INTS, .n = n, .ints = f.ints.data() + first});
  }

  void add(const c10::IValue& v, Kind kind) {
    switch (kind) {
      case Kind::Tensor:
        return add_tensor(v);
      case Kind::Tensors:
        return add_tensors(v, false);
      case Kind::Indices:
        return add_tensors(v, true);
      case Kind::Numbers:
      case Kind::Ints:
      case Kind::Bools:
        return add_list(v, kind);
      default:
        break;
    }
    if (v.isNone() || kind == Kind::Skip || kind == Kind::Generator) {
      f.args.push_back({.kind = TTC_ARG_NONE, .n = 0, .i = 0});
      return;
    }
    switch (kind) {
      case Kind::Number:
        f.scalars.push_back(number(v));
        f.args.push_back({.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &f.scalars.back()});
        break;
      case Kind::Bool:
        f.args.push_back({.kind = TTC_ARG_BOOL, .n = 0, .i = v.toBool() ? 1 : 0});
        break;
      case Kind::Dtype:
        f.args.push_back({.kind = TTC_ARG_DTYPE, .n = 0, .i = to_ttc(static_cast<at::ScalarType>(v.toInt()))});
        break;
      case Kind::String: {
        const std::string& s = v.toStringRef();
        f.args.push_back({.kind = TTC_ARG_STRING, .n = static_cast<uint32_t>(s.size()), .str = s.data()});
        break;
      }
      default:
        f.args.push_back({.kind = TTC_ARG_INT, .n = 0, .i = integer(v)});
        break;
    }
  }

  // Pointers into the arrays are kept, so their final sizes are reserved first.
  void reserve(c10::ArrayRef<c10::IValue> args) {
    size_t tensors = 2 * args.size(), scalars = args.size(), ints = args.size();
    for (const auto& v : args) {
      if (v.isList()) {
        size_t n = v.toListRef().size();
        tensors += 2 * n;
        scalars += n;
        ints += n;
      }
    }
    f.tensors.reserve(tensors);
    f.scalars.reserve(scalars);
    f.ints.reserve(ints);
  }

  void add_into(const c10::IValue& v) {
    if (v.isTensor()) {
      const at::Tensor& t = v.toTensor();
      TORCH_CHECK(t.device().type() == kType, "Expected out tensor to be on tpu, but got ", t.device(), " (", name(), ")");
      f.tensors.push_back(tensor(t));
      f.into.push_back(&f.tensors.back());
    } else if (v.isList()) {
      for (const auto& e : v.toListRef()) {
        f.tensors.push_back(tensor(e.toTensor()));
        f.into.push_back(&f.tensors.back());
      }
    }
  }

  void describe_call(c10::ArrayRef<c10::IValue> args) {
    f.args.clear();
    f.tensors.clear();
    f.scalars.clear();
    f.ints.clear();
    f.into.clear();
    if (o.has_lists || args.size() > 6) {
      reserve(args);
    }
    for (uint32_t i = 0; i < o.ncall; i++) {
      add(args[i], o.kinds[i]);
    }
    if (!o.written.empty()) {
      for (int r : o.returns) {
        if (r < 0) {
          f.into.push_back(nullptr);
        }
      }
      for (uint32_t w : o.written) {
        add_into(args[w]);
      }
    } else if (o.hidden_running_stats && args[5].toBool() && args[3].isTensor() && args[3].toTensor().defined()) {
      f.into.append(3, nullptr);
      add_into(args[3]);
      add_into(args[4]);
    }
    if (f.index < 0) {
      f.index = current_device();
    }
  }

  void add_rng(c10::ArrayRef<c10::IValue> args) {
    uint64_t count = 4;
    for (const auto& t : f.tensors) {
      uint64_t n = 1;
      for (int k = 0; k < t.ndim; k++) {
        n *= static_cast<uint64_t>(t.sizes[k]);
      }
      count = std::max(count, n);
    }
    std::optional<at::Generator> gen;
    if (o.generator >= 0 && args[o.generator].isGenerator()) {
      gen = args[o.generator].toGenerator();
    }
    auto [seed, offset] = reserve_random(gen, f.index, 2 * count);
    f.rng = {seed, offset};
    f.args.push_back({.kind = TTC_ARG_RNG, .n = 2, .rng = f.rng.data()});
  }

  ttc_call call() const {
    return {.op = o.op,
            .narg = static_cast<uint32_t>(f.args.size()),
            .args = f.args.data(),
            .ninto = static_cast<uint32_t>(f.into.size()),
            .into = f.into.data()};
  }
};

// --------------------------------------------------------------------------------------------------- inference by Meta

at::Tensor to_meta(const at::Tensor& t) {
  if (!t.defined() || t.device().type() != kType) {
    return t;
  }
  return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta));
}

c10::IValue to_meta(const c10::IValue& v, Kind kind) {
  if (v.isTensor()) {
    return to_meta(v.toTensor());
  }
  if (kind == Kind::Tensors) {
    c10::List<at::Tensor> out;
    for (const auto& e : v.toListRef()) {
      out.push_back(to_meta(e.toTensor()));
    }
    return out;
  }
  if (kind == Kind::Indices && !v.isNone()) {
    c10::List<std::optional<at::Tensor>> out;
    for (const auto& e : v.toListRef()) {
      if (e.isNone()) {
        out.push_back(std::nullopt);
      } else {
        const at::Tensor& t = e.toTensor(); /* index lists may mix cpu and tpu */
        out.push_back(t.defined() ? at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta)) : t);
      }
    }
    return out;
  }
  if (v.isDevice()) {
    return c10::Device(at::kMeta);
  }
  return v.isGenerator() ? c10::IValue() : v;
}

ttc_spec spec_of(const at::Tensor& t) {
  ttc_spec s{};
  if (!t.defined()) {
    return s;  // TTC_DTYPE_INVALID: a result that was not asked for
  }
  TORCH_CHECK(t.dim() <= TTC_MAX_NDIM, "tpu tensors have at most ", TTC_MAX_NDIM, " dimensions, got ", t.dim());
  s.dtype = to_ttc(t.scalar_type());
  s.ndim = static_cast<int>(t.dim());
  at::IntArrayRef strides = t.strides();
  c10::DimVector dense;
  if (!t.is_non_overlapping_and_dense()) {
    dense = c10::contiguous_strides(t.sizes());
    strides = dense;
  }
  std::copy(t.sizes().begin(), t.sizes().end(), s.sizes);
  std::copy(strides.begin(), strides.end(), s.strides);
  return s;
}

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

struct Inference {
  std::vector<ttc_spec> specs;
  bool resized = false;  // an out= tensor was given its proper size: describe the call again
};

Inference infer_by_meta(const c10::OperatorHandle& handle, const Overload& o, c10::ArrayRef<c10::IValue> args) {
  Inference result;
  torch::jit::Stack stack;
  stack.reserve(args.size());
  for (size_t i = 0; i < args.size(); i++) {
    stack.push_back(to_meta(args[i], o.kinds[i]));
  }
  std::vector<c10::IValue> meta_args(stack.begin(), stack.end());
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
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
        at::native::resize_output(out, meta.sizes());
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
  if (o.hidden_running_stats && args[5].toBool() && args[3].isTensor() && args[3].toTensor().defined()) {
    specs_of(args[3], result.specs);
    specs_of(args[4], result.specs);
  }
  return result;
}

// ------------------------------------------------------------------------------------------------------ falling through

std::mutex fallback_mutex;
std::map<std::string, uint64_t> fallback_counts;
std::atomic<bool> fallback_is_error{false};

void run_on_cpu(const c10::OperatorHandle& handle, torch::jit::Stack* stack, const std::string& why) {
  const auto& schema = handle.schema();
  std::string name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  TORCH_CHECK_NOT_IMPLEMENTED(!fallback_is_error.load(), "the operator '", name, "' is not implemented for the tpu device", why,
                              ", and running on the cpu instead is switched off (torch.tpu.set_fallback)");
  bool first = false;
  {
    std::lock_guard<std::mutex> lock(fallback_mutex);
    first = fallback_counts[name]++ == 0;
  }
  if (first) {
    TORCH_WARN("the operator '", name, "' is not implemented for the tpu device", why,
               " and runs on the cpu, which copies its tensors there and back. torch.tpu.fallbacks() counts such calls.");
  }
  for (size_t i = stack->size() - schema.arguments().size(); i < stack->size(); i++) {
    if ((*stack)[i].isGenerator()) {
      (*stack)[i] = c10::IValue();
    }
  }
  at::native::cpu_fallback(handle, stack, /*error_on_views=*/true);
}

void fallback(const c10::OperatorHandle& handle, torch::jit::Stack* stack) { run_on_cpu(handle, stack, ""); }

// ---------------------------------------------------------------------------------------------------------- the kernel

struct Kernel final : c10::OperatorKernel {
  explicit Kernel(Overload overload) : o(std::move(overload)) {}
  Overload o;

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
    Frame f;
    Describer d{o, f};
    auto args = torch::jit::last(*stack, o.nstack);
    if (o.indices >= 0) {
      expand_masks((*stack)[stack->size() - o.nstack + static_cast<uint32_t>(o.indices)], /*keep_lone_mask=*/o.ncall > 2);
    }
    d.describe_call(args);
    if ((o.flags & TTC_OP_RNG) != 0) {
      d.add_rng(args);
    }
    ttc_call call = d.call();
    ttc_result res;
    ttc_error err;
    err.op[0] = '\0';
    ttc_status st = ttc_call_run(device(f.index), &call, &res, &err);
    if (st == TTC_NOT_FOUND) {
      st = miss(handle, d, args, &res, &err);
      if (st == TTC_UNIMPLEMENTED) {
        run_on_cpu(handle, stack, std::string(" (") + err.message + ")");
        return;
      }
    }
    check(st, err);
    give_back(stack, res, f.index);
  }

  ttc_status miss(const c10::OperatorHandle& handle, Describer& d, c10::ArrayRef<c10::IValue> args, ttc_result* res, ttc_error* err) {
    ttc_call call = d.call();
    Inference found;
    if ((o.flags & TTC_OP_NO_META) != 0) {
      found.specs.resize(8 + d.f.tensors.size());
      uint32_t n = 0;
      ttc_status st = ttc_call_infer(&call, static_cast<uint32_t>(found.specs.size()), found.specs.data(), &n, err);
      if (st != TTC_OK) {
        return st;
      }
      found.specs.resize(n);
    } else {
      try {
        found = infer_by_meta(handle, o, args);
      } catch (const c10::NotImplementedError& e) {
        err->code = TTC_UNIMPLEMENTED;
        snprintf(err->message, sizeof err->message, "it has no shape inference");
        return TTC_UNIMPLEMENTED;
      }
    }
    if (found.resized) {
      bool rng = (o.flags & TTC_OP_RNG) != 0;
      d.describe_call(args);
      if (rng) {
        d.f.args.push_back({.kind = TTC_ARG_RNG, .n = 2, .rng = d.f.rng.data()});
      }
      call = d.call();
    }
    return ttc_call_define(device(d.f.index), &call, static_cast<uint32_t>(found.specs.size()), found.specs.data(), res, err);
  }

  void give_back(torch::jit::Stack* stack, ttc_result& res, c10::DeviceIndex index) const {
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
    ttc_result_done(&res);
    torch::jit::drop(*stack, o.nstack);
    for (auto& v : out) {
      stack->push_back(std::move(v));
    }
  }
};

// -------------------------------------------------------------------------------------------------------- registration

bool written(const c10::Argument& a) { return a.alias_info() != nullptr && a.alias_info()->isWrite(); }

bool is_factory_option(const c10::Argument& a) {
  return a.name() == "dtype" || a.name() == "layout" || a.name() == "device" || a.name() == "pin_memory";
}

// The types of the arguments that a call has, without out= ones.
std::vector<c10::TypePtr> call_types(const c10::FunctionSchema& s, bool with_options) {
  std::vector<c10::TypePtr> types;
  for (const auto& a : s.arguments()) {
    if (!(a.kwarg_only() && written(a)) && (with_options || !is_factory_option(a))) {
      types.push_back(a.real_type());
    }
  }
  return types;
}

bool same_types(const std::vector<c10::TypePtr>& a, const std::vector<c10::TypePtr>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) { return *x == *y; });
}

bool takes_tensors(const c10::FunctionSchema& s) {
  for (const auto& a : s.arguments()) {
    Kind k = kind_of(*a.real_type());
    if (k == Kind::Tensor || k == Kind::Tensors || k == Kind::Indices) {
      return true;
    }
  }
  return false;
}

Overload study(const c10::FunctionSchema& s, uint32_t op, unsigned flags) {
  Overload o;
  o.op = op;
  o.flags = flags;
  o.nstack = static_cast<uint32_t>(s.arguments().size());
  for (uint32_t i = 0; i < o.nstack; i++) {
    const auto& a = s.arguments()[i];
    Kind k = kind_of(*a.real_type());
    o.kinds.push_back(k);
    o.has_lists |= k == Kind::Tensors || k == Kind::Indices || k == Kind::Numbers || k == Kind::Ints || k == Kind::Bools;
    if (written(a)) {
      o.written.push_back(i);
    }
    if (a.kwarg_only() && written(a)) {
      o.has_out = true;
    } else {
      o.ncall = i + 1;
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
  o.hidden_running_stats = s.name() == "aten::native_batch_norm" && o.written.empty();
  return o;
}

class Registrar {
 public:
  explicit Registrar(torch::Library& library) : lib(library) {
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name.rfind("aten::", 0) == 0) {
        by_base[name.name.substr(6)].push_back(name.overload_name);
      }
    }
  }

  void row(uint32_t op, const ttc_op_info& info) {
    std::string name = info.name;
    auto dot = name.find('.');
    std::string base = name.substr(0, dot), overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    auto functional = c10::Dispatcher::singleton().findSchema({"aten::" + base, overload});
    if (!functional || (info.flags & (TTC_OP_GRAPH_ONLY | TTC_OP_DATA_SIZE)) != 0) {
      return;
    }
    const auto& schema = functional->schema();
    if (takes_tensors(schema)) {
      add(*functional, op, info.flags);
    }
    std::string stem = base;
    const std::string suffix = "_functional";
    if (stem.size() > suffix.size() && stem.compare(stem.size() - suffix.size(), suffix.size(), suffix) == 0) {
      stem.resize(stem.size() - suffix.size());
    }
    variants(schema, stem + "_", overload, op, info.flags, false);
    variants(schema, stem, overload, op, info.flags, true);
  }

 private:
  torch::Library& lib;
  std::map<std::string, std::vector<std::string>> by_base;
  std::set<std::string> done;

  void add(const c10::OperatorHandle& handle, uint32_t op, unsigned flags) {
    const auto& s = handle.schema();
    std::string name = s.name() + "." + s.overload_name();
    // A composite op without an autograd formula of its own would cut the graph if it had a kernel here; copy_ is base_ops.cpp's.
    bool composite = handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                     !handle.hasKernelForDispatchKey(c10::DispatchKey::Autograd);
    if (s.name() == "aten::copy_" || composite || !done.insert(name).second) {
      return;
    }
    lib.impl(s.overload_name().empty() ? s.name().c_str() : name.c_str(),
             torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(study(s, op, flags))));
  }

  void variants(const c10::FunctionSchema& f, const std::string& base, const std::string& overload, uint32_t op, unsigned flags, bool out) {
    auto it = by_base.find(base);
    if (it == by_base.end()) {
      return;
    }
    for (const auto& name : it->second) {
      auto handle = c10::Dispatcher::singleton().findSchema({"aten::" + base, name});
      const auto& s = handle->schema();
      bool writes = false, has_out = false;
      for (const auto& a : s.arguments()) {
        writes |= written(a);
        has_out |= a.kwarg_only() && written(a);
      }
      bool match = same_types(call_types(s, true), call_types(f, true)) ||
                   (out && same_types(call_types(s, false), call_types(f, false)));
      if (writes && has_out == out && match) {
        add(*handle, op, flags);
      }
    }
  }
};

}  // namespace

void run_into(const char* name, c10::ArrayRef<ttc_arg> args, const ttc_tensor& into, const ttc_spec& spec) {
  uint32_t op = ttc_op_find(name);
  TORCH_INTERNAL_ASSERT(op != UINT32_MAX, "no row ", name);
  const ttc_tensor* target = &into;
  ttc_call call = {.op = op, .narg = static_cast<uint32_t>(args.size()), .args = args.data(), .ninto = 1, .into = &target};
  ttc_device* dev = ttc_store_device(into.store);
  ttc_result res;
  ttc_error err;
  err.op[0] = '\0';
  ttc_status st = ttc_call_run(dev, &call, &res, &err);
  if (st == TTC_NOT_FOUND) {
    st = ttc_call_define(dev, &call, 1, &spec, &res, &err);
  }
  check(st, err);
  ttc_result_done(&res);
}

std::vector<at::Tensor> run_row(const char* name, c10::ArrayRef<ttc_arg> args, c10::ArrayRef<ttc_spec> specs, c10::DeviceIndex index) {
  uint32_t op = ttc_op_find(name);
  TORCH_INTERNAL_ASSERT(op != UINT32_MAX, "no row ", name);
  ttc_call call = {.op = op, .narg = static_cast<uint32_t>(args.size()), .args = args.data(), .ninto = 0, .into = nullptr};
  ttc_result res;
  ttc_error err;
  err.op[0] = '\0';
  ttc_status st = ttc_call_run(device(index), &call, &res, &err);
  if (st == TTC_NOT_FOUND) {
    st = ttc_call_define(device(index), &call, static_cast<uint32_t>(specs.size()), specs.data(), &res, &err);
  }
  check(st, err);
  std::vector<at::Tensor> out;
  for (uint32_t k = 0; k < res.nout; k++) {
    out.push_back(res.stores[k] != nullptr ? wrap(res.stores[k], res.specs[k], index) : at::Tensor());
  }
  ttc_result_done(&res);
  return out;
}

std::vector<std::pair<std::string, uint64_t>> fallbacks() {
  std::lock_guard<std::mutex> lock(fallback_mutex);
  return {fallback_counts.begin(), fallback_counts.end()};
}

void reset_fallbacks() {
  std::lock_guard<std::mutex> lock(fallback_mutex);
  fallback_counts.clear();
}

void set_fallback_is_error(bool on) { fallback_is_error = on; }

void register_ops() {
  static torch::Library lib(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  Registrar registrar(lib);
  for (uint32_t op = 0; op < ttc_op_count(); op++) {
    ttc_op_info info;
    if (ttc_op_get(op, &info)) {
      registrar.row(op, info);
    }
  }
  static torch::Library all(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace tpu
