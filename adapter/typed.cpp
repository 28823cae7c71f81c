// Kernels of the commonest C++ types, each the short way into the boxed kernel of its overload.
//
// PyTorch calls a boxed kernel with copies of the arguments on a stack. A tensor that Python holds and that gets a second owner
// makes PyTorch take Python's lock, to count a reference of Python's as well, and again when the copy goes: for two tensors more
// than all that is done here. A kernel of the op's own type gets references. Where a call has a plan, that is all there is to it;
// everything rarer goes the boxed way.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <tuple>

#include "call.h"

namespace tpu {

namespace {

// ------------------------------------------------------------------------------------------------------------ arguments

bool is(const c10::Type& t, c10::TypeKind kind) { return t.kind() == kind; }

bool is_optional(const c10::Type& t, c10::TypeKind kind) {
  return is(t, c10::TypeKind::OptionalType) && is(*t.castRaw<c10::OptionalType>()->getElementType(), kind);
}

bool is_list(const c10::Type& t, c10::TypeKind kind) {
  return is(t, c10::TypeKind::ListType) && is(*t.castRaw<c10::ListType>()->getElementType(), kind);
}

// What of a schema a C++ type stands for, and how such an argument is described.
template <class T>
struct Arg;

template <>
struct Arg<const at::Tensor&> {
  static bool fits(const c10::Argument& a) { return is(*a.real_type(), c10::TypeKind::TensorType) && !written(a); }
  static void put(Describer& d, const at::Tensor& t, Kind) { d.add_tensor(t); }
};

template <>
struct Arg<at::Tensor&> {  // the target of an in-place op
  static bool fits(const c10::Argument& a) {
    return is(*a.real_type(), c10::TypeKind::TensorType) && written(a) && !a.kwarg_only();
  }
  static void put(Describer& d, const at::Tensor& t, Kind) { d.add_tensor(t); }
};

template <>
struct Arg<const std::optional<at::Tensor>&> {
  static bool fits(const c10::Argument& a) { return is_optional(*a.real_type(), c10::TypeKind::TensorType) && !written(a); }
  static void put(Describer& d, const std::optional<at::Tensor>& t, Kind) { t.has_value() ? d.add_tensor(*t) : d.add_none(); }
};

template <>
struct Arg<const at::Scalar&> {
  static bool fits(const c10::Argument& a) { return is(*a.real_type(), c10::TypeKind::NumberType); }
  static void put(Describer& d, const at::Scalar& s, Kind) { d.add_number(number(s)); }
};

template <>
struct Arg<double> {
  static bool fits(const c10::Argument& a) { return is(*a.real_type(), c10::TypeKind::FloatType); }
  static void put(Describer& d, double v, Kind) { d.add_number(number(at::Scalar(v))); }
};

template <>
struct Arg<bool> {
  static bool fits(const c10::Argument& a) { return is(*a.real_type(), c10::TypeKind::BoolType); }
  static void put(Describer& d, bool v, Kind) { d.f.args.push_back(argument(v)); }
};

template <>
struct Arg<int64_t> {
  static bool fits(const c10::Argument& a) { return is(*a.real_type(), c10::TypeKind::IntType); }
  static void put(Describer& d, int64_t v, Kind kind) {
    kind == Kind::Number ? d.add_number(number(at::Scalar(v))) : d.f.args.push_back(argument(v));
  }
};

template <>
struct Arg<c10::SymInt> {
  static bool fits(const c10::Argument& a) { return is(*a.real_type(), c10::TypeKind::SymIntType); }
  static void put(Describer& d, const c10::SymInt& v, Kind kind) { Arg<int64_t>::put(d, v.guard_int(__FILE__, __LINE__), kind); }
};

template <>
struct Arg<at::ScalarType> {
  static bool fits(const c10::Argument& a) { return is(*a.real_type(), c10::TypeKind::ScalarTypeType); }
  static void put(Describer& d, at::ScalarType t, Kind) { d.add_dtype(t); }
};

template <>
struct Arg<std::optional<at::ScalarType>> {
  static bool fits(const c10::Argument& a) { return is_optional(*a.real_type(), c10::TypeKind::ScalarTypeType); }
  static void put(Describer& d, std::optional<at::ScalarType> t, Kind) { t.has_value() ? d.add_dtype(*t) : d.add_none(); }
};

template <>
struct Arg<std::string_view> {
  static bool fits(const c10::Argument& a) { return is(*a.real_type(), c10::TypeKind::StringType); }
  static void put(Describer& d, std::string_view s, Kind) { d.add_string(s); }
};

template <>
struct Arg<at::IntArrayRef> {
  static bool fits(const c10::Argument& a) { return is_list(*a.real_type(), c10::TypeKind::IntType); }
  static void put(Describer& d, at::IntArrayRef v, Kind) {
    d.f.args.push_back({.kind = TTC_ARG_INTS, .n = static_cast<uint32_t>(v.size()), .ints = v.data()});
  }
};

template <>
struct Arg<at::OptionalIntArrayRef> {
  static bool fits(const c10::Argument& a) {
    const c10::Type& t = *a.real_type();
    return is(t, c10::TypeKind::OptionalType) && is_list(*t.castRaw<c10::OptionalType>()->getElementType(), c10::TypeKind::IntType);
  }
  static void put(Describer& d, at::OptionalIntArrayRef v, Kind kind) {
    v.has_value() ? Arg<at::IntArrayRef>::put(d, *v, kind) : d.add_none();
  }
};

template <>
struct Arg<c10::SymIntArrayRef> {
  static bool fits(const c10::Argument& a) { return is_list(*a.real_type(), c10::TypeKind::SymIntType); }
  static void put(Describer& d, c10::SymIntArrayRef v, Kind kind) {
    Arg<at::IntArrayRef>::put(d, C10_AS_INTARRAYREF_SLOW(v), kind);
  }
};

// -------------------------------------------------------------------------------------------------------------- results

bool fresh_tensors(const c10::FunctionSchema& s, size_t n) {
  return s.returns().size() == n && std::all_of(s.returns().begin(), s.returns().end(), [](const c10::Argument& r) {
           return is(*r.type(), c10::TypeKind::TensorType) && r.alias_info() == nullptr;
         });
}

template <class R>
struct Result;

template <>
struct Result<at::Tensor> {
  static bool fits(const c10::FunctionSchema& s) { return fresh_tensors(s, 1); }
  static at::Tensor of(const ttc_result& r, c10::DeviceIndex index) { return wrap_result(r, 0, index); }
  static at::Tensor from(torch::jit::Stack& stack) { return std::move(stack[0]).toTensor(); }
  static at::Tensor wrap_result(const ttc_result& r, uint32_t k, c10::DeviceIndex index) {
    return r.stores[k] != nullptr ? wrap(r.stores[k], r.specs[k], index) : at::Tensor();
  }
};

template <class... Tensors>
struct Result<std::tuple<Tensors...>> {
  static bool fits(const c10::FunctionSchema& s) { return fresh_tensors(s, sizeof...(Tensors)); }
  static std::tuple<Tensors...> of(const ttc_result& r, c10::DeviceIndex index) {
    uint32_t k = 0;
    auto next = [&]() { return Result<at::Tensor>::wrap_result(r, k++, index); };
    return {static_cast<Tensors>(next())...};
  }
  static std::tuple<Tensors...> from(torch::jit::Stack& stack) {
    size_t k = 0;
    auto next = [&]() { return std::move(stack[k++]).toTensor(); };
    return {static_cast<Tensors>(next())...};
  }
};

// --------------------------------------------------------------------------------------------------------------- kernels

template <class Signature>
struct Typed;

template <class Ret, class... Args>
struct Typed<Ret(Args...)> {
  static constexpr bool in_place = std::is_same_v<Ret, at::Tensor&>;  // its first argument
  static_assert(sizeof...(Args) <= 10);                               // so that no array of a Frame moves
  std::shared_ptr<Kernel> kernel;
  c10::OperatorHandle handle;

  static bool fits(const c10::FunctionSchema& s) {
    if (s.arguments().size() != sizeof...(Args)) {
      return false;
    }
    size_t i = 0;
    bool all = (Arg<Args>::fits(s.arguments()[i++]) && ...);
    if constexpr (in_place) {
      return all && s.returns().size() == 1 && s.returns()[0].alias_info() != nullptr;
    } else {
      return all && Result<Ret>::fits(s);
    }
  }

  Ret operator()(Args... args) const;

 private:
  void describe(Describer& d, Args&... args) const {
    size_t i = 0;
    (Arg<Args>::put(d, args, kernel->o.kinds[i++]), ...);
    if constexpr (in_place) {
      d.add_into(first(args...));
    }
    if (d.f.index < 0) {
      d.f.index = current_device();
    }
  }

  template <class... Rest>
  static at::Tensor& first(at::Tensor& t, Rest&...) {
    return t;
  }

  C10_NOINLINE Ret boxed(Args&... args) const {
    torch::jit::Stack stack = c10::impl::boxArgs<Args...>(args...);
    (*kernel)(handle, {}, &stack);
    if constexpr (in_place) {
      return first(args...);
    } else {
      return Result<Ret>::from(stack);
    }
  }
};

struct Done {
  ttc_result* res;
  ~Done() { ttc_result_done(res); }
};

template <class Ret, class... Args>
Ret Typed<Ret(Args...)>::operator()(Args... args) const {
  Frame f;
  Describer d{kernel->o, f};
  describe(d, args...);
  ttc_result res;
  ttc_error err;
  err.op[0] = '\0';
  ttc_call call = d.call();
  ttc_status st = TTC_NOT_FOUND;
  if (C10_LIKELY(!f.lazy_target && call.blocking == 0)) {
    st = ttc_call_run(device(f.index), &call, &res, &err);
  }
  if (C10_UNLIKELY(st == TTC_NOT_FOUND)) {
    return boxed(args...);
  }
  check(st, err);
  Done done{&res};
  if constexpr (in_place) {
    return first(args...);
  } else {
    return Result<Ret>::of(res, f.index);
  }
}

// ------------------------------------------------------------------------------------------------------------- autograd

bool takes_part(const at::Tensor& t) {
  const c10::TensorImpl* impl = t.unsafeGetTensorImpl();
  return C10_UNLIKELY(impl->autograd_meta() != nullptr) &&
         ((impl->requires_grad() && c10::GradMode::is_enabled()) || impl->_fw_grad(0, t).defined());
}
bool takes_part(const std::optional<at::Tensor>& t) { return t.has_value() && takes_part(*t); }
template <class Other>
bool takes_part(const Other&) {
  return false;
}

// Before PyTorch's autograd kernel of an op: where no tensor takes part in autograd it would only pass the call on, but not without
// copying the tensors, which has the price that the top of this file tells.
template <class Signature>
struct Unrecorded;

template <class Ret, class... Args>
struct Unrecorded<Ret(Args...)> {
  c10::TypedOperatorHandle<Ret(Args...)> handle;

  Ret operator()(c10::DispatchKeySet keys, Args... args) const {
    keys = keys & c10::after_autograd_keyset;
    if ((takes_part(args) || ...)) {
      // Another autograd key, with PyTorch's kernel, which knows no device.
      return handle.redispatch(keys.add(c10::DispatchKey::AutogradOther), std::forward<Args>(args)...);
    }
    at::AutoDispatchBelowADInplaceOrView guard;
    return handle.redispatch(keys, std::forward<Args>(args)...);
  }
};

using T = const at::Tensor&;
using In = at::Tensor&;
using Maybe = const std::optional<at::Tensor>&;
using Number = const at::Scalar&;
using Dtype = std::optional<at::ScalarType>;
using at::Tensor;
using Tensors2 = std::tuple<Tensor, Tensor>;
using Tensors3 = std::tuple<Tensor, Tensor, Tensor>;
using Ints = c10::SymIntArrayRef;

using Make = bool (*)(const c10::OperatorHandle&, const std::shared_ptr<Kernel>&, Entrances*);

template <class Signature>
bool make(const c10::OperatorHandle& handle, const std::shared_ptr<Kernel>& kernel, Entrances* made) {
  if (!Typed<Signature>::fits(handle.schema())) {
    return false;
  }
  made->kernel.emplace(Typed<Signature>{kernel, handle});
  if constexpr (!Typed<Signature>::in_place) {
    if (handle.hasKernelForDispatchKey(c10::DispatchKey::Autograd)) {
      made->autograd.emplace(Unrecorded<Signature>{handle.typed<Signature>()});
    }
  }
  return true;
}

constexpr Make kMakers[] = {
    // one result: element by element, reductions, products, lookups
    make<Tensor(T)>,
    make<Tensor(T, T)>,
    make<Tensor(T, T, T)>,
    make<Tensor(T, Number)>,
    make<Tensor(Number, T)>,
    make<Tensor(T, T, Number)>,
    make<Tensor(T, Number, Number)>,
    make<Tensor(T, T, T, Number)>,
    make<Tensor(T, T, T, Number, Number)>,
    make<Tensor(T, std::string_view)>,
    make<Tensor(T, T, std::string_view)>,
    make<Tensor(T, int64_t, bool)>,
    make<Tensor(T, T, int64_t, at::ScalarType)>,
    make<Tensor(T, Dtype)>,
    make<Tensor(T, at::OptionalIntArrayRef, bool, Dtype)>,
    make<Tensor(T, int64_t, T)>,
    make<Tensor(T, int64_t, T, bool)>,
    make<Tensor(T, T, c10::SymInt, bool, bool)>,
    make<Tensor(T, T, c10::SymInt, c10::SymInt, bool)>,
    // in place
    make<In(In)>,
    make<In(In, T)>,
    make<In(In, Number)>,
    make<In(In, T, Number)>,
    make<In(In, Number, Number)>,
    make<In(In, T, T)>,
    make<In(In, T, T, Number)>,
    // several results
    make<Tensors2(T, int64_t, bool)>,
    make<Tensors2(T, T, Maybe, int64_t, c10::SymInt)>,
    make<Tensors3(T, Ints, Maybe, Maybe, double)>,
};

}  // namespace

Entrances entrances(const c10::OperatorHandle& handle, const std::shared_ptr<Kernel>& kernel) {
  const Overload& o = kernel->o;
  bool plain = (o.flags & (TTC_OP_RNG | TTC_OP_SIZED)) == 0 && o.indices < 0 && o.stored_number < 0 && !o.hidden_running_stats &&
               !o.has_out && !o.counts_versions;
  Entrances made;
  (void)(plain && std::any_of(std::begin(kMakers), std::end(kMakers), [&](Make m) { return m(handle, kernel, &made); }));
  return made;
}

}  // namespace tpu
