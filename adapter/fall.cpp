// What no row covers: PyTorch's decomposition as one program, else the cpu.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/CPUFallback.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "call.h"

namespace tpu {

namespace {

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
  // Its random numbers come from the tpu's generator all the same: from a cpu one that is seeded from its next numbers.
  size_t begin = stack->size() - schema.arguments().size();
  for (size_t i = begin; i < stack->size(); i++) {
    if (kind_of(*schema.arguments()[i - begin].real_type()) == Kind::Generator) {
      c10::IValue& given = (*stack)[i];
      auto [seed, offset] =
          reserve_random(given.isNone() ? std::nullopt : std::make_optional(given.toGenerator()), current_device(), 4);
      given = at::detail::createCPUGenerator(seed ^ (offset * 0x9E3779B97F4A7C15u));
    }
  }
  at::native::cpu_fallback(handle, stack, /*error_on_views=*/true);
}

// ------------------------------------------------------------------------------------------------------- decompositions

// An overload without a row, or whose row refused a signature. Its calls are keyed as calls of an op of its own, which the core
// runs with the graph that Python traced for the signature: Python is met only by a signature's first call.
class Fallen {
 public:
  explicit Fallen(const c10::FunctionSchema& schema) : overload(study(schema, 0, 0)), name(schema.name().substr(6)) {
    if (!schema.overload_name().empty()) {
      name += "." + schema.overload_name();
    }
    // A graph makes fresh results: a view must not become a copy. Random numbers are not drawn inside graphs.
    bool fit = overload.generator < 0 && !schema.returns().empty();
    for (const auto& r : schema.returns()) {
      Kind k = kind_of(*r.type());
      fit &= (k == Kind::Tensor || k == Kind::Tensors) && (r.alias_info() == nullptr || r.alias_info()->isWrite());
    }
    possible = fit;
  }

  // False: not run. `why` says more for the warning; NULL: only if the signature's program exists.
  bool run(const c10::OperatorHandle& handle, torch::jit::Stack* stack, std::string* why) {
    if (!possible.load(std::memory_order_relaxed)) {
      return false;
    }
    auto args = torch::jit::last(*stack, overload.nstack);
    uint64_t mask = static_numbers(args);
    const Overload& o = with_static(mask);
    Frame f;
    Describer d{o, f};
    d.describe_call(args);
    if (f.lazy_target) {
      run_plain(handle, overload, stack);
      return true;
    }
    ttc_call call = d.call();
    ttc_result res;
    ttc_error err;
    err.op[0] = '\0';
    ttc_status st = ttc_call_run(device(f.index), &call, &res, &err);
    if (st == TTC_NOT_FOUND && why == nullptr) {
      return false;
    }
    bool resized = false;
    if (st == TTC_NOT_FOUND && run_aliased(handle, overload, stack, &resized)) {
      return true;
    }
    if (resized) {
      d.describe_call(args);
    }
    if (st == TTC_NOT_FOUND) {
      uint64_t was = mask;
      st = define(handle, d, args, &mask, &res, &err);
      if (mask != was) {  // the trace could not keep these numbers open: their values join the key
        baked |= mask & ~was;
        return run(handle, stack, why);
      }
      if (st == TTC_UNIMPLEMENTED) {
        if (err.message[0] != '\0') {
          *why = std::string(" (") + err.message + ")";
        }
        return false;
      }
    }
    check(st, err);
    give_back(overload, stack, res, f.index);
    if (call.blocking != 0) {
      check_values(handle, *stack);
    }
    return true;
  }

 private:
  Overload overload;
  std::string name;
  std::atomic<bool> possible{true};
  std::atomic<uint64_t> baked{0};  // arguments that some trace had to know the number of
  std::mutex mutex;
  std::map<uint64_t, Overload> declared;  // arguments whose numbers are baked in -> the overload with an op of its own
  std::set<int64_t> refused;              // graphs with a node that its row refuses

  // Integers decide what a trace looks like; floats stay open until a trace needs one. 0-d cpu tensors are inputs.
  uint64_t static_numbers(c10::ArrayRef<c10::IValue> args) const {
    uint64_t mask = 0;
    for (uint32_t i = 0; i < overload.ncall && i < 64; i++) {
      Kind k = overload.kinds[i];
      bool wrapped = k == Kind::Tensor && args[i].isTensor() && args[i].toTensor().defined() &&
                     args[i].toTensor().unsafeGetTensorImpl()->is_wrapped_number();
      bool open = k == Kind::Number && args[i].isDouble() && ((baked.load(std::memory_order_relaxed) >> i) & 1) == 0;
      if ((k == Kind::Number && !open) || k == Kind::Numbers || wrapped) {
        mask |= uint64_t{1} << i;
      }
    }
    return mask;
  }

  const Overload& with_static(uint64_t mask) {
    std::lock_guard<std::mutex> lock(mutex);
    auto [it, fresh] = declared.try_emplace(mask, overload);
    if (fresh) {
      it->second.op = ttc_op_declare(name.c_str(), mask);
    }
    return it->second;
  }

  ttc_status define(const c10::OperatorHandle& handle, Describer& d, c10::ArrayRef<c10::IValue> args, uint64_t* mask,
                    ttc_result* res, ttc_error* err) {
    err->message[0] = '\0';
    Inference found;
    try {
      found = infer_by_meta(handle, overload, args);
    } catch (const c10::NotImplementedError&) {
      return TTC_UNIMPLEMENTED;
    }
    if (found.resized) {
      d.describe_call(args);
    }
    uint64_t was = *mask;
    int64_t graph = decompose(handle, overload, args, mask);
    if (*mask != was) {
      return TTC_NOT_FOUND;
    }
    if (graph == -2) {
      possible = false;
    }
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (graph < 0 || refused.count(graph) != 0) {
        return TTC_UNIMPLEMENTED;
      }
    }
    ttc_call call = d.call();
    ttc_graph_choose(static_cast<uint32_t>(graph));
    ttc_status st =
        ttc_call_define(device(d.f.index), &call, static_cast<uint32_t>(found.specs.size()), found.specs.data(), res, err);
    ttc_graph_choose(UINT32_MAX);
    if (st == TTC_UNIMPLEMENTED) {
      std::lock_guard<std::mutex> lock(mutex);
      refused.insert(graph);
    }
    return st;
  }
};

Fallen* fallen(const c10::FunctionSchema& schema) {
  static std::mutex mutex;
  static std::map<const c10::FunctionSchema*, std::unique_ptr<Fallen>> all;
  if (schema.name().rfind("aten::", 0) != 0) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(mutex);
  auto& f = all[&schema];
  if (f == nullptr) {
    f = std::make_unique<Fallen>(schema);
  }
  return f.get();
}

}  // namespace

bool fall_through_known(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  Fallen* f = fallen(handle.schema());
  return f != nullptr && f->run(handle, stack, nullptr);
}

void fall_through(const c10::OperatorHandle& handle, torch::jit::Stack* stack, const std::string& why) {
  Fallen* f = fallen(handle.schema());
  std::string reason = why;
  if (f == nullptr || !f->run(handle, stack, &reason)) {
    run_on_cpu(handle, stack, reason);
  }
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

}  // namespace tpu
