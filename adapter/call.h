// How one call is described to the core: what is known of an overload, and the arrays a call's IValues become.
#pragma once

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "adapter.h"

namespace tpu {

enum class Kind : uint8_t { Tensor, Tensors, Indices, Number, Numbers, Int, Bool, Ints, Bools, Dtype, String, Generator, Skip };

Kind kind_of(const c10::Type& type);
bool written(const c10::Argument& a);

// What is known of one overload before any call.
struct Overload {
  uint32_t op = 0;
  unsigned flags = 0;
  uint32_t nstack = 0;            // arguments on the stack
  uint32_t ncall = 0;             // of them, arguments of the call (out= ones come after)
  std::vector<Kind> kinds;        // [nstack]
  std::vector<uint32_t> written;  // stack arguments that are written, in order
  std::vector<int> returns;       // [nreturn] stack argument returned, or -1 for a fresh result
  bool has_lists = false;
  bool has_out = false;
  bool takes_tensors = false;
  bool returns_list = false;
  int generator = -1;
  int indices = -1;  // stack argument that is a list of optional tensors, which may be masks
  // native_batch_norm writes its running statistics though its schema does not say so.
  bool hidden_running_stats = false;
  bool writes_running_stats(c10::ArrayRef<c10::IValue> args) const {
    return hidden_running_stats && args[5].toBool() && args[3].isTensor() && args[3].toTensor().defined();
  }
  // Writes one number, so that it does not matter whether elements of the target share memory.
  bool may_overlap = false;
  // Argument that is a number which the first one's type must be able to hold (fill_), or -1.
  int stored_number = -1;
  // _foreach_*: element k of the lists is a call of its own, and later ones see what earlier ones wrote.
  bool foreach = false;
  // Matrix decompositions: not to be tried with zeros in place of values.
  bool values_matter = false;
  // Autograd's kernels count the writes to tensors, but not to lists of them: done when the call is.
  bool counts_versions = false;
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
  bool lazy_target = false;  // a tensor to be written has the conjugate or negative bit
};

Overload study(const c10::FunctionSchema& s, uint32_t op, unsigned flags);

ttc_scalar number(const c10::IValue& v);
ttc_scalar number(const at::Scalar& s);
// Refuses, in PyTorch's words, a number that overflows the type it is to be stored as.
void check_stored(const c10::IValue& number, at::ScalarType type);
// A 0-d CPU tensor is a number with a dtype.
ttc_scalar number_of_tensor(const at::Tensor& t);
inline int64_t integer(const c10::IValue& v) { return v.isInt() ? v.toInt() : v.toSymInt().guard_int(__FILE__, __LINE__); }

struct Describer {
  const Overload& o;
  Frame& f;

  ttc_tensor tensor(const at::Tensor& t) {
    if (f.index < 0) {
      f.index = t.device().index();
    }
    return describe(t);
  }

  // Some ops (mm, linalg_solve_triangular) are called with the conjugate or negative bit still set: the core knows no such bits.
  const at::Tensor& plain(const at::Tensor& t) {
    if (C10_LIKELY(!t.is_conj() && !t.is_neg())) {
      return t;
    }
    f.held.push_back(t.resolve_conj().resolve_neg());
    return f.held.back();
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

  void add_none() { f.args.push_back({.kind = TTC_ARG_NONE, .n = 0, .i = 0}); }

  void add_number(const ttc_scalar& n) {
    f.scalars.push_back(n);
    f.args.push_back({.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &f.scalars.back()});
  }

  void add_string(std::string_view s) {
    f.args.push_back({.kind = TTC_ARG_STRING, .n = static_cast<uint32_t>(s.size()), .str = s.data()});
  }

  void add_dtype(at::ScalarType t) { f.args.push_back({.kind = TTC_ARG_DTYPE, .n = 0, .i = to_ttc(t)}); }

  void add_tensor(const at::Tensor& t) {
    if (!t.defined()) {
      add_none();
    } else if (t.device().type() == kType) {
      f.tensors.push_back(tensor(plain(t)));
      f.args.push_back(argument(&f.tensors.back()));
    } else if (t.dim() == 0 && t.is_cpu()) {
      add_number(number_of_tensor(t));
    } else {
      wrong_device(t);
    }
  }

  void add_tensors(const c10::IValue& v, bool indices) {
    if (v.isNone()) {
      add_none();
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
      f.tensors.push_back(t.defined() ? tensor(plain(t)) : ttc_tensor{nullptr, nullptr, nullptr, 0, -1, 0, 0});
    }
    f.args.push_back({.kind = TTC_ARG_TENSORS, .n = static_cast<uint32_t>(list.size()), .tensor = f.tensors.data() + first});
  }

  void add_list(const c10::IValue& v, Kind kind) {
    if (v.isNone()) {
      add_none();
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
        return v.isNone() ? add_none() : add_tensor(v.toTensor());
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
      add_none();
      return;
    }
    switch (kind) {
      case Kind::Number:
        return add_number(number(v));
      case Kind::Bool:
        f.args.push_back(argument(v.toBool()));
        break;
      case Kind::Dtype:
        return add_dtype(static_cast<at::ScalarType>(v.toInt()));
      case Kind::String:
        return add_string(v.toStringRef());
      default:
        f.args.push_back(argument(integer(v)));
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

  void add_into(const at::Tensor& t) {
    TORCH_CHECK(t.device().type() == kType, "Expected out tensor to be on tpu, but got ", t.device(), " (", name(), ")");
    f.lazy_target |= t.is_conj() || t.is_neg();
    f.tensors.push_back(tensor(t));
    f.into.push_back(&f.tensors.back());
  }

  void add_into(const c10::IValue& v) {
    if (v.isTensor()) {
      add_into(v.toTensor());
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
    } else if (o.writes_running_stats(args)) {
      f.into.append(3, nullptr);
      add_into(args[3]);
      add_into(args[4]);
    }
    if (f.index < 0) {
      f.index = current_device();
    }
  }

  // Refuses, in PyTorch's words, numbers that the op does not take, before random numbers are set aside.
  void add_rng(c10::ArrayRef<c10::IValue> args) {
    ttc_call numbers = call();
    ttc_error err;
    err.op[0] = '\0';
    check(ttc_call_check(&numbers, &err), err);
    std::optional<at::Generator> gen;
    if (o.generator >= 0 && args[o.generator].isGenerator()) {
      gen = args[o.generator].toGenerator();
    }
    auto [seed, offset] = reserve_random(gen, f.index, ttc_call_random(&numbers));
    f.rng = {seed, offset};
    f.args.push_back({.kind = TTC_ARG_RNG, .n = 2, .rng = f.rng.data()});
  }

  ttc_call call() const {
    int how = mode();
    return {.op = o.op,
            .narg = static_cast<uint32_t>(f.args.size()),
            .args = f.args.data(),
            .default_float = static_cast<uint32_t>(to_ttc(at::get_default_dtype_as_scalartype())),
            .blocking = how == kDebug ? 1U : 0U,
            .ninto = static_cast<uint32_t>(f.into.size()),
            .into = f.into.data(),
            .prompt = 0,
            .defer = how == kFuse ? 1U : 0U,
            .settings = 0,
            .narrow = 0};
  }
};

// The kernel of one overload: any op of the core's table, with the row as its data.
struct Kernel final : c10::OperatorKernel {
  explicit Kernel(Overload overload) : o(std::move(overload)) {}
  Overload o;
  std::atomic<bool> refused{false};  // whether the row has refused a signature

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  ttc_status miss(const c10::OperatorHandle& handle, Describer& d, c10::ArrayRef<c10::IValue> args, ttc_result* res,
                  ttc_error* err) const;
  void size_outs(const c10::OperatorHandle& handle, Describer& d, c10::ArrayRef<c10::IValue> args) const;
  bool resize_outs(c10::ArrayRef<c10::IValue> args, const std::vector<ttc_spec>& specs) const;
};

// ---- typed.cpp
// Kernels of the op's own C++ type, which PyTorch calls with much less ado than the boxed one. Empty: this signature has none.
struct Entrances {
  std::optional<torch::CppFunction> kernel;
  std::optional<torch::CppFunction> autograd;  // before PyTorch's autograd kernel
};
Entrances entrances(const c10::OperatorHandle& handle, const std::shared_ptr<Kernel>& kernel);

// Warnings kept back until it is known whether they are wanted.
struct Warnings final : c10::WarningHandler {
  c10::WarningHandler* next = c10::WarningUtils::get_warning_handler();
  std::vector<c10::Warning> kept;
  void process(const c10::Warning& w) override { kept.push_back(w); }
  void give() const {
    for (const auto& w : kept) {
      next->process(w);
    }
  }
};

// What PyTorch's Meta kernel says of a call's results; raises PyTorch's own errors, c10::NotImplementedError if there is no such
// kernel.
struct Inference {
  std::vector<ttc_spec> specs;
  bool resized = false;  // an out= tensor was given its proper size: describe the call again
};
Inference infer_by_meta(const c10::OperatorHandle& handle, const Overload& o, c10::ArrayRef<c10::IValue> args);
// What a call without a plan needs if its tensors share memory or it has out=; true: the call is done. Plans are made for calls
// that passed here, and the geometry is part of their keys, so calls with a plan need not be looked at.
//  - Lists whose elements overlap run one element after another, for later ones see what earlier ones wrote.
//  - If what is written overlaps itself or what is read, the result depends on the order of reads and writes: such a call runs on
//    the cpu, in a copy of the storages, which also raises what the cpu raises.
//  - out= tensors get their size; *resized: one changed.
bool run_aliased(const c10::OperatorHandle& handle, const Overload& o, torch::jit::Stack* stack, bool* resized);
// The Meta kernel or the core refused the call. The CPU's kernel says why in the words users know, so it is asked, with zeros of
// the same shapes, unless they are large. If it finds nothing wrong, some Meta kernels being stricter than any device (no batch, a
// 0-d CPU tensor as a number), what it was given and gave stand for theirs: true, if asked for.
bool raise_as_cpu_does(const c10::OperatorHandle& handle, const Overload& o, c10::ArrayRef<c10::IValue> args,
                       std::vector<c10::IValue>* cpu_args = nullptr, torch::jit::Stack* results = nullptr);
// Give small out= tensors of a call without a plan the sizes and strides, with the warnings, that the CPU gives them; true if one
// changed. Meta kernels written in Python would give them row-major strides, and other warnings. Raises where the CPU would not
// write such a result into an integer, in place too.
bool lay_out_as_cpu(const c10::OperatorHandle& handle, const Overload& o, c10::ArrayRef<c10::IValue> args);
// Give an out= tensor its size, with PyTorch's warning.
void resize_out(const Overload& o, const at::Tensor& out, at::IntArrayRef sizes);
// The call with plain tensors in place of those that have the conjugate or negative bit and are written, copied back after.
void run_plain(const c10::OperatorHandle& handle, const Overload& o, torch::jit::Stack* stack);
ttc_spec spec_of(const at::Tensor& t);

// Put a call's results on the stack in place of its arguments.
void give_back(const Overload& o, torch::jit::Stack* stack, ttc_result& res, c10::DeviceIndex index);

// ---- fall.cpp
// A call that no row covers: as one program of PyTorch's decomposition, or on the cpu. `why` goes into the warning.
void fall_through(const c10::OperatorHandle& handle, torch::jit::Stack* stack, const std::string& why);
// The same if such a program exists already; true: done. A row that has refused a signature asks this before it tries another.
bool fall_through_known(const c10::OperatorHandle& handle, torch::jit::Stack* stack);

// ---- graph.cpp
// PyTorch's decomposition of this call as a graph's op id; -1: this signature has none, -2: no signature of this op has one.
// baked: bit i: numbers of argument i are the trace's own constants; the trace may have to add some.
int64_t decompose(const c10::OperatorHandle& handle, const Overload& o, c10::ArrayRef<c10::IValue> args, uint64_t* baked);

}  // namespace tpu
