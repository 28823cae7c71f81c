// The one boxed kernel: any op of the core's table, with the row as its data.
//
// A call's IValues are described to the core as plain structs. If the core has a plan for this signature it runs; if not, PyTorch's
// own Meta kernel says what the results look like (and raises PyTorch's own errors), and the core lowers the call.
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <atomic>
#include <map>
#include <set>

#include "call.h"

namespace tpu {

// ---------------------------------------------------------------------------------------------------------- the kernel

void Kernel::operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  Frame f;
  Describer d{o, f};
  auto args = torch::jit::last(*stack, o.nstack);
  if (o.indices >= 0) {
    expand_masks(args[0].toTensor(), (*stack)[stack->size() - o.nstack + static_cast<uint32_t>(o.indices)],
                 /*keep_lone_mask=*/o.ncall > 2);
  }
  d.describe_call(args);
  if (C10_UNLIKELY(f.lazy_target)) {
    run_plain(handle, o, stack);
    return;
  }
  if ((o.flags & TTC_OP_SIZED) != 0) {
    size_outs(handle, d, args);
  }
  if (o.stored_number >= 0) {
    check_stored(args[static_cast<size_t>(o.stored_number)], args[0].toTensor().scalar_type());
  }
  ttc_result res;
  ttc_error err;
  err.op[0] = '\0';
  if ((o.flags & TTC_OP_RNG) != 0) {
    d.add_rng(args);
  }
  ttc_call call = d.call();
  ttc_status st = ttc_call_run(device(f.index), &call, &res, &err);
  if (st == TTC_NOT_FOUND) {
    if (refused.load(std::memory_order_relaxed) && fall_through_known(handle, stack)) {
      return;
    }
    bool resized = false;
    if (run_aliased(handle, o, stack, &resized)) {
      return;
    }
    if (resized) {
      d.describe_call(args);
    }
    st = miss(handle, d, args, &res, &err);
    if (st == TTC_UNIMPLEMENTED) {
      refused = true;
      fall_through(handle, stack, std::string(" (") + err.message + ")");
      return;
    }
    if (st == TTC_INVALID_ARGUMENT) {
      raise_as_cpu_does(handle, o, args);
    }
  }
  check(st, err);
  give_back(o, stack, res, f.index);
  if (C10_UNLIKELY(call.blocking != 0)) {
    check_values(handle, *stack);
  }
}

ttc_status Kernel::miss(const c10::OperatorHandle& handle, Describer& d, c10::ArrayRef<c10::IValue> args, ttc_result* res,
                        ttc_error* err) const {
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
    found.resized = resize_outs(args, found.specs);
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

// The results' size depends on numbers that no key has: out= tensors get it before a plan is looked for.
void Kernel::size_outs(const c10::OperatorHandle& handle, Describer& d, c10::ArrayRef<c10::IValue> args) const {
  std::vector<ttc_spec> specs(1);
  uint32_t n = 0;
  ttc_error err;
  ttc_call call = d.call();
  bool resized = ttc_call_infer(&call, 1, specs.data(), &n, &err) == TTC_OK ? resize_outs(args, specs)
                                                                            : infer_by_meta(handle, o, args).resized;
  if (resized) {
    d.describe_call(args);
  }
}

// Give out= tensors the sizes that the core inferred; true if one changed.
bool Kernel::resize_outs(c10::ArrayRef<c10::IValue> args, const std::vector<ttc_spec>& specs) const {
  bool resized = false;
  size_t k = 0;
  for (uint32_t w : o.written) {
    if (!o.has_out || w < o.ncall || !args[w].isTensor() || k >= specs.size()) {
      continue;
    }
    const ttc_spec& spec = specs[k++];
    at::IntArrayRef sizes(spec.sizes, static_cast<size_t>(spec.ndim));
    const at::Tensor& out = args[w].toTensor();
    if (out.sizes() != sizes) {
      resize_out(o, out, sizes);
      out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, at::IntArrayRef(spec.strides, sizes.size()));
      resized = true;
    }
  }
  return resized;
}

// -------------------------------------------------------------------------------------------------------- registration

namespace {

void fallback(const c10::OperatorHandle& handle, torch::jit::Stack* stack) { fall_through(handle, stack, ""); }

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

class Registrar {
 public:
  Registrar(torch::Library& library, torch::Library& before) : lib(library), autograd(before) {
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
  torch::Library &lib, &autograd;
  std::map<std::string, std::vector<std::string>> by_base;
  std::set<std::string> done;

  void add(const c10::OperatorHandle& handle, uint32_t op, unsigned flags) {
    const auto& s = handle.schema();
    std::string name = s.name() + "." + s.overload_name();
    // A composite op without an autograd formula of its own would cut the graph if it had a kernel here; copy_ is base_ops.cpp's.
    bool composite = handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                     !handle.hasKernelForDispatchKey(c10::DispatchKey::Autograd);
    bool unwritten =
        name == "aten::native_batch_norm.out";  // its running statistics, unlike the functional's, could not be written
    if (s.name() == "aten::copy_" || composite || unwritten || !done.insert(name).second) {
      return;
    }
    const char* overload = s.overload_name().empty() ? s.name().c_str() : name.c_str();
    auto kernel = std::make_shared<Kernel>(study(s, op, flags));
    Entrances direct = entrances(handle, kernel);
    if (direct.autograd.has_value()) {
      autograd.impl(overload, std::move(*direct.autograd));
    }
    if (direct.kernel.has_value()) {
      lib.impl(overload, std::move(*direct.kernel));
    } else {
      lib.impl(overload, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(kernel->o)));
    }
  }

  void variants(const c10::FunctionSchema& f, const std::string& base, const std::string& overload, uint32_t op, unsigned flags,
                bool out) {
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
      bool match =
          same_types(call_types(s, true), call_types(f, true)) || (out && same_types(call_types(s, false), call_types(f, false)));
      if (writes && has_out == out && match) {
        add(*handle, op, flags);
      }
    }
  }
};

}  // namespace

namespace {
uint32_t find_row(const char* name) {
  uint32_t op = ttc_op_find(name);
  TORCH_INTERNAL_ASSERT(op != UINT32_MAX, "no row ", name);
  return op;
}

// Fills res, which points into itself and must not be copied; give back with ttc_result_done.
void run_or_define(ttc_device* dev, uint32_t op, c10::ArrayRef<ttc_arg> args, c10::ArrayRef<const ttc_tensor*> into,
                   c10::ArrayRef<ttc_spec> specs, bool prompt, uint32_t settings, ttc_result* res) {
  int how = mode();
  ttc_call call = {.op = op,
                   .narg = static_cast<uint32_t>(args.size()),
                   .args = args.data(),
                   .default_float = 0,
                   .blocking = how == kDebug ? 1U : 0U,
                   .ninto = static_cast<uint32_t>(into.size()),
                   .into = into.data(),
                   .prompt = prompt ? 1U : 0U,
                   .defer = how == kFuse ? 1U : 0U,
                   .settings = settings,
                   .narrow = 0};
  ttc_error err;
  err.op[0] = '\0';
  ttc_status st = ttc_call_run(dev, &call, res, &err);
  if (st == TTC_NOT_FOUND) {
    st = ttc_call_define(dev, &call, static_cast<uint32_t>(specs.size()), specs.data(), res, &err);
  }
  check(st, err);
}
}  // namespace

void run_into(const char* name, c10::ArrayRef<ttc_arg> args, const ttc_tensor& into, const ttc_spec& spec) {
  const ttc_tensor* target = &into;
  ttc_result res;
  run_or_define(ttc_store_device(into.store), find_row(name), args, target, spec, false, 0, &res);
  ttc_result_done(&res);
}

std::vector<at::Tensor> run_op(uint32_t op, c10::ArrayRef<ttc_arg> args, c10::ArrayRef<const ttc_tensor*> into,
                               c10::ArrayRef<ttc_spec> specs, c10::DeviceIndex index, bool prompt, uint32_t settings) {
  ttc_result res;
  run_or_define(device(index), op, args, into, specs, prompt, settings, &res);
  std::vector<at::Tensor> out;
  for (uint32_t k = 0; k < res.nout; k++) {
    out.push_back(res.stores[k] != nullptr ? wrap(res.stores[k], res.specs[k], index) : at::Tensor());
  }
  ttc_result_done(&res);
  return out;
}

std::vector<at::Tensor> run_row(const char* name, c10::ArrayRef<ttc_arg> args, c10::ArrayRef<ttc_spec> specs,
                                c10::DeviceIndex index) {
  return run_op(find_row(name), args, {}, specs, index);
}

void register_ops() {
  static torch::Library lib(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static torch::Library autograd(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  Registrar registrar(lib, autograd);
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
