// Calls that write memory which they also read, or write the same place twice. XLA's programs read all before they write; PyTorch
// refuses some of these calls and gives others a result that depends on the order in which its CPU kernels go. So such a call runs
// on the cpu, in a copy of the storages it touches: it is then refused, or not, as there, and gives what it gives there.
#include "overlap.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <set>

namespace tpu {

namespace {
constexpr int64_t kLargestSearch = int64_t{1} << 24;  // elements to look at, bytes to look in
constexpr size_t kLargestShadow = size_t{64} << 20;   // bytes of storages to copy

struct Range {
  int64_t begin, end;  // bytes of the storage
};

Range reach(const at::Tensor& t) {
  int64_t begin = t.storage_offset() * t.element_size();
  auto n = static_cast<int64_t>(at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.element_size()));
  return {begin, begin + n};
}

// Calls f(first byte) for each element, in any order.
template <typename F>
void each_element(const at::Tensor& t, F f) {
  int64_t n = t.numel(), width = t.element_size();
  c10::DimVector at(t.dim(), 0);
  int64_t place = t.storage_offset();
  for (int64_t i = 0; i < n; i++) {
    f(place * width);
    for (int64_t k = t.dim() - 1; k >= 0; k--) {
      place += t.stride(k);
      if (++at[k] < t.size(k)) {
        break;
      }
      place -= at[k] * t.stride(k);
      at[k] = 0;
    }
  }
}

// Proves that no two elements share a place: each dim, slowest first, steps over all that the faster ones reach.
bool steps_over(const at::Tensor& t) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 8> dims;
  for (int64_t k = 0; k < t.dim(); k++) {
    if (t.size(k) > 1) {
      dims.emplace_back(t.stride(k), t.size(k));
    }
  }
  std::sort(dims.begin(), dims.end());
  int64_t far = 0;
  for (auto [stride, size] : dims) {
    if (stride <= far) {
      return false;
    }
    far += (size - 1) * stride;
  }
  return true;
}
}  // namespace

bool elements_repeat(const at::Tensor& t) {
  if (t.numel() == 0 || steps_over(t)) {
    return false;
  }
  Range r = reach(t);
  if (t.numel() > kLargestSearch || r.end - r.begin > kLargestSearch) {
    return at::has_internal_overlap(t) == at::MemOverlap::Yes;
  }
  std::vector<bool> seen(r.end - r.begin);
  bool repeat = false;
  each_element(t, [&](int64_t byte) {
    repeat |= seen[byte - r.begin];
    seen[byte - r.begin] = true;
  });
  return repeat;
}

bool share_elements(const at::Tensor& a, const at::Tensor& b) {
  if (storage_of(a) != storage_of(b) || a.numel() == 0 || b.numel() == 0) {
    return false;
  }
  Range x = reach(a), y = reach(b), both = {std::max(x.begin, y.begin), std::min(x.end, y.end)};
  if (both.begin >= both.end) {
    return false;
  }
  if (a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense()) {
    return true;
  }
  if (std::max({a.numel(), b.numel(), both.end - both.begin}) > kLargestSearch) {
    return at::get_overlap_status(a, b) == at::MemOverlapStatus::Full;  // interleaved, as far as anyone can say in time
  }
  std::vector<bool> mine(both.end - both.begin);
  auto each_byte = [&](const at::Tensor& t, auto f) {
    each_element(t, [&](int64_t byte) {
      for (int64_t k = std::max(byte, both.begin); k < std::min<int64_t>(byte + t.element_size(), both.end); k++) {
        f(k - both.begin);
      }
    });
  };
  bool found = false;
  each_byte(a, [&](int64_t k) { mine[k] = true; });
  each_byte(b, [&](int64_t k) { found |= mine[k]; });
  return found;
}

bool same_view(const at::Tensor& a, const at::Tensor& b) {
  return storage_of(a) == storage_of(b) && a.scalar_type() == b.scalar_type() && a.storage_offset() == b.storage_offset() &&
         a.sizes() == b.sizes() && a.strides() == b.strides() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// ------------------------------------------------------------------------------------------------------------ shadows

Shadows::Shadow& Shadows::shadow(const at::Tensor& t) {
  for (auto& s : all) {
    if (storage_of(s.whole) == storage_of(t)) {
      return s;
    }
  }
  // The storage as one row of t's dtype, so that what is put back has elements of a kind in use.
  auto dtype = t.storage().nbytes() % t.element_size() == 0 ? t.scalar_type() : at::kByte;
  auto n = static_cast<int64_t>(t.storage().nbytes() / c10::elementSize(dtype));
  at::Tensor whole = at::empty({0}, t.options().dtype(dtype)).set_(t.storage(), 0, {n}, {1});
  auto there = at::TensorOptions().dtype(dtype).device(at::kCPU);
  all.push_back({whole, with_contents ? whole.to(at::kCPU) : at::zeros({n}, there)});
  return all.back();
}

at::Tensor Shadows::of(const at::Tensor& t) {
  if (!t.defined() || t.device().type() != kType) {
    return t;
  }
  for (const auto& [original, copy] : made) {
    if (original.is_same(t)) {  // kernels ask whether two arguments are one tensor
      return copy;
    }
  }
  at::Tensor s = at::empty({0}, t.options().device(at::kCPU));
  s.set_(shadow(t).copy.storage(), t.storage_offset(), t.sizes(), t.strides());
  s._set_conj(t.is_conj());
  s._set_neg(t.is_neg());
  made.emplace_back(t, s);
  return s;
}

c10::IValue Shadows::of(const c10::IValue& v, bool indices) {
  if (v.isTensor()) {
    return of(v.toTensor());
  }
  if (v.isTensorList()) {
    c10::List<at::Tensor> out;
    for (const auto& e : v.toListRef()) {
      out.push_back(of(e.toTensor()));
    }
    return out;
  }
  if (indices && v.isList()) {
    c10::List<std::optional<at::Tensor>> out;
    for (const auto& e : v.toListRef()) {
      out.push_back(e.isNone() ? std::nullopt : std::make_optional(of(e.toTensor())));
    }
    return out;
  }
  return v.isDevice() ? c10::IValue(c10::Device(c10::kCPU)) : v;
}

void Shadows::put_back(const at::Tensor& t) {
  Shadow& s = shadow(t);
  auto n = static_cast<int64_t>(s.copy.storage().nbytes() / s.copy.element_size());
  if (n != s.copy.numel()) {  // a kernel made the storage larger
    s.whole.resize_(n);
    s.copy.set_(s.copy.storage(), 0, {n}, {1});
  }
  s.whole.copy_(s.copy);
}

bool copy_overlapping(const at::Tensor& dst, const at::Tensor& src) {
  if (!elements_repeat(dst) && (!share_elements(dst, src) || same_view(dst, src))) {
    return false;
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  Shadows shadows(/*with_contents=*/true);
  shadows.of(dst).copy_(shadows.of(src));
  shadows.put_back(dst);
  return true;
}

// -------------------------------------------------------------------------------------------------------------- calls

namespace {
// A tensor of a call, and which element of a list it is.
struct Operand {
  at::Tensor t;
  bool written;
  size_t element;
  ttc_store* store;
  Range range;
};

std::vector<Operand> operands(const Overload& o, c10::ArrayRef<c10::IValue> args) {
  std::vector<Operand> all;
  for (uint32_t i = 0; i < o.nstack; i++) {
    bool written = std::find(o.written.begin(), o.written.end(), i) != o.written.end();
    auto add = [&](const c10::IValue& v, size_t element) {
      if (v.isTensor() && v.toTensor().defined() && v.toTensor().device().type() == kType) {
        const at::Tensor& t = v.toTensor();
        all.push_back({t, written, element, store_of(t), reach(t)});
      }
    };
    if (args[i].isTensor()) {
      add(args[i], 0);
    } else if (o.kinds[i] == Kind::Tensors || o.kinds[i] == Kind::Indices) {
      size_t k = 0;
      for (const auto& e : args[i].isNone() ? c10::ArrayRef<c10::IValue>() : args[i].toListRef()) {
        add(e, k++);
      }
    }
  }
  return all;
}

// Calls f(a, b) for pairs that share elements and of which one is written, until it returns true.
template <typename F>
bool any_meeting(std::vector<Operand>& all, F f) {
  std::sort(all.begin(), all.end(), [](const Operand& a, const Operand& b) {
    return a.store != b.store ? std::less<ttc_store*>()(a.store, b.store) : a.range.begin < b.range.begin;
  });
  for (size_t i = 0; i < all.size(); i++) {
    auto end = std::max(all[i].range.end, all[i].range.begin + 1);  // empty tensors meet themselves
    for (size_t j = i + 1; j < all.size() && all[j].store == all[i].store && all[j].range.begin < end; j++) {
      bool meet = all[i].t.is_same(all[j].t) || share_elements(all[i].t, all[j].t);
      if ((all[i].written || all[j].written) && meet && f(all[i], all[j])) {
        return true;
      }
    }
  }
  return false;
}

// A call on stand-ins, and what it writes: each tensor and its stand-in.
struct Rehearsal {
  Shadows shadows;
  torch::jit::Stack stack;
  std::vector<std::pair<at::Tensor, at::Tensor>> targets;

  Rehearsal(const Overload& o, c10::ArrayRef<c10::IValue> args, bool contents) : shadows(contents) {
    for (uint32_t i = 0; i < o.nstack; i++) {
      stack.push_back(shadows.of(args[i], o.kinds[i] == Kind::Indices));
    }
    for (uint32_t w : o.written) {
      if (args[w].isTensor()) {
        targets.emplace_back(args[w].toTensor(), stack[w].toTensor());
        continue;
      }
      for (size_t k = 0; k < args[w].toListRef().size(); k++) {
        targets.emplace_back(args[w].toListRef()[k].toTensor(), stack[w].toListRef()[k].toTensor());
      }
    }
  }

  void run(const c10::OperatorHandle& handle) {
    at::AutoDispatchBelowADInplaceOrView guard;
    try {
      handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    } catch (const std::exception&) {
      give_sizes();  // some kernels give out= its size and refuse it then
      throw;
    }
  }

  void give_sizes() {
    for (auto& [t, copy] : targets) {
      if (t.sizes() != copy.sizes()) {
        t.resize_(copy.sizes());
        t.unsafeGetTensorImpl()->set_sizes_and_strides(copy.sizes(), copy.strides());
      }
    }
  }
};

void rehearse(const c10::OperatorHandle& handle, const Overload& o, c10::ArrayRef<c10::IValue> args) {
  Rehearsal r(o, args, /*contents=*/false);
  Warnings warnings;  // the call itself gives them, unless it is refused here
  try {
    c10::WarningUtils::WarningHandlerGuard keep(&warnings);
    r.run(handle);
  } catch (const c10::NotImplementedError&) {  // the cpu has no kernel to ask
  } catch (const c10::LinAlgError&) {          // it is the zeros that it refuses
  } catch (const std::exception&) {
    warnings.give();
    throw;
  }
}

void run_on_shadows(const c10::OperatorHandle& handle, const Overload& o, torch::jit::Stack* stack) {
  torch::jit::Stack args(stack->end() - o.nstack, stack->end());
  Rehearsal r(o, args, /*contents=*/true);
  r.run(handle);
  for (auto& [t, copy] : r.targets) {
    r.shadows.put_back(t);
    if (o.counts_versions && !t.is_inference()) {
      t.unsafeGetTensorImpl()->bump_version();
    }
  }
  r.give_sizes();
  torch::jit::drop(*stack, o.nstack);
  for (size_t k = 0; k < o.returns.size(); k++) {
    if (o.returns[k] >= 0) {
      stack->push_back(args[o.returns[k]]);
    } else {
      stack->push_back(r.stack[k].isTensor() ? at::Tensor(r.stack[k].toTensor()).to(r.targets[0].first.device()) : r.stack[k]);
    }
  }
}
enum class Overlap { None, Same, Some };

// How what is written meets what is read: not, as the very same view, or otherwise. Raises for large calls what can be told of
// them.
Overlap find_overlap(const Overload& o, c10::ArrayRef<c10::IValue> args) {
  auto all = operands(o, args);
  Overlap found = Overlap::None;
  std::set<ttc_store*> stores;
  size_t n = 0;
  for (const auto& p : all) {
    if (p.written && !o.may_overlap && elements_repeat(p.t)) {
      found = Overlap::Some;
    } else if (o.has_out && p.written && p.t.scalar_type() != all[0].t.scalar_type()) {
      found = std::max(found, Overlap::Same);  // which dtypes an op can write is asked in the same way
    }
    n += stores.insert(p.store).second ? p.t.storage().nbytes() : 0;
  }
  bool large = (o.flags & TTC_OP_RNG) != 0 || n > kLargestShadow;
  (void)any_meeting(all, [&](const Operand& a, const Operand& b) {
    if (large) {
      at::assert_no_partial_overlap(a.t, b.t);
    }
    found = std::max(found, same_view(a.t, b.t) ? Overlap::Same : Overlap::Some);
    return found == Overlap::Some;
  });
  for (const auto& p : all) {
    if (found == Overlap::Some && large && p.written) {
      at::assert_no_internal_overlap(p.t);
    }
  }
  return large ? Overlap::None : found;
}

// Some element of a list call writes what another element reads or writes.
bool elements_meet(const Overload& o, c10::ArrayRef<c10::IValue> args) {
  auto all = operands(o, args);
  return any_meeting(all, [](const Operand& a, const Operand& b) { return a.element != b.element; });
}

void run_elements(const c10::OperatorHandle& handle, const Overload& o, torch::jit::Stack* stack) {
  torch::jit::Stack args(stack->end() - o.nstack, stack->end());
  size_t n = args[o.written[0]].toListRef().size();
  for (size_t k = 0; k < n; k++) {
    torch::jit::Stack one;
    for (uint32_t i = 0; i < o.nstack; i++) {
      if (o.kinds[i] == Kind::Tensors && args[i].isTensorList()) {
        one.emplace_back(c10::List<at::Tensor>({args[i].toTensorList().get(k)}));
      } else if (o.kinds[i] == Kind::Numbers && args[i].isList()) {
        c10::impl::GenericList number(args[i].toList().elementType());
        number.push_back(args[i].toListRef()[k]);
        one.emplace_back(std::move(number));
      } else {
        one.push_back(args[i]);
      }
    }
    handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &one);
  }
  torch::jit::drop(*stack, o.nstack);
  for (int r : o.returns) {
    stack->push_back(args[r]);
  }
}

}  // namespace

bool run_aliased(const c10::OperatorHandle& handle, const Overload& o, torch::jit::Stack* stack, bool* resized) {
  auto args = torch::jit::last(*stack, o.nstack);
  if (o.foreach && elements_meet(o, args)) {
    run_elements(handle, o, stack);
    return true;
  }
  Overlap overlap = o.written.empty() ? Overlap::None : find_overlap(o, args);
  if (overlap == Overlap::Some) {
    run_on_shadows(handle, o, stack);
    return true;
  }
  if (overlap == Overlap::Same && !o.values_matter) {
    rehearse(handle, o, args);
  }
  std::vector<std::pair<c10::DimVector, c10::DimVector>> before;
  for (uint32_t w : o.written) {
    bool one = args[w].isTensor();
    before.emplace_back(one ? args[w].toTensor().sizes() : at::IntArrayRef(),
                        one ? args[w].toTensor().strides() : at::IntArrayRef());
  }
  *resized = lay_out_as_cpu(handle, o, args);
  if (!*resized || find_overlap(o, args) != Overlap::Some) {
    return false;
  }
  // It overlaps now what it did not before. The cpu is given it as it was, for it may look before it resizes.
  for (size_t k = 0; k < o.written.size(); k++) {
    if (args[o.written[k]].isTensor()) {
      args[o.written[k]].toTensor().unsafeGetTensorImpl()->set_sizes_and_strides(before[k].first, before[k].second);
    }
  }
  run_on_shadows(handle, o, stack);
  return true;
}

void run_plain(const c10::OperatorHandle& handle, const Overload& o, torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView guard;
  torch::jit::Stack args(stack->end() - o.nstack, stack->end());
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (uint32_t w : o.written) {
    at::Tensor t = args[w].toTensor();
    if (t.is_conj() || t.is_neg()) {
      copies.emplace_back(t, t.resolve_conj().resolve_neg());
      (*stack)[stack->size() - o.nstack + w] = copies.back().second;
    }
  }
  handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
  for (auto& [to, from] : copies) {
    if (to.sizes() != from.sizes()) {
      to.resize_(from.sizes());
    }
    to.copy_(from);
  }
  for (size_t r = 0; r < o.returns.size(); r++) {
    if (o.returns[r] >= 0) {
      (*stack)[stack->size() - o.returns.size() + r] = args[o.returns[r]];
    }
  }
}

}  // namespace tpu
