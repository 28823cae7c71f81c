// Which of the eager modes a thread is in, and Debug mode's look at values.
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <string_view>

#include "adapter.h"

namespace tpu {

std::atomic<bool> any_mode_set{false};

namespace {
std::atomic<int> default_mode{kStrict};
std::atomic<int> value_checks{0};  // bit 0: NaN, bit 1: infinity

// A thread's mode travels with PyTorch's thread-local state, so that backward runs in the mode of the thread that asked for it.
constexpr std::string_view kName = "TPU_EAGER_MODE";
const c10::DebugInfoKind kKind(&kName);
struct Mode final : c10::DebugInfoBase {
  explicit Mode(int m) : mode(m) {}
  int mode;
};
}  // namespace

int thread_mode() {
  auto* info = static_cast<Mode*>(c10::ThreadLocalDebugInfo::get(kKind));
  return info != nullptr ? info->mode : default_mode.load(std::memory_order_relaxed);
}

void set_thread_mode(int mode) {
  TORCH_CHECK(mode == kStrict || mode == kDebug || mode == kFuse, "expected an eager mode, got ", mode);
  try {
    c10::ThreadLocalDebugInfo::_pop(kKind);
  } catch (const c10::Error&) {  // none yet, or somebody else's lies on top: ours goes above it
  }
  if (thread_mode() != mode) {
    c10::ThreadLocalDebugInfo::_push(kKind, std::make_shared<Mode>(mode));
  }
  any_mode_set = true;
}

void set_default_mode(int mode) {
  default_mode = mode;
  any_mode_set = true;
}

void set_value_checks(int bits) { value_checks = bits; }

void check_values(const c10::OperatorHandle& handle, const torch::jit::Stack& stack) {
  thread_local bool checking = false;
  int bits = value_checks.load(std::memory_order_relaxed);
  if (bits == 0 || checking || thread_mode() != kDebug) {
    return;
  }
  checking = true;
  struct Done {
    ~Done() { checking = false; }
  } done;
  auto look = [&](const at::Tensor& t) {
    if (!t.defined() || t.device().type() != kType || !(t.is_floating_point() || t.is_complex())) {
      return;
    }
    bool nan = (bits & 1) != 0 && at::isnan(t).any().item<bool>();
    bool inf = (bits & 2) != 0 && at::isinf(t).any().item<bool>();
    TORCH_CHECK(!nan && !inf, handle.operator_name(), " gave a result with ", nan ? "NaN" : "an infinity", " in it (shape ",
                t.sizes(), ", ", t.scalar_type(), "). torch.tpu.set_value_checks asked for this check");
  };
  for (size_t i = stack.size() - std::min(stack.size(), handle.schema().returns().size()); i < stack.size(); i++) {
    if (stack[i].isTensor()) {
      look(stack[i].toTensor());
    } else if (stack[i].isTensorList()) {
      for (const at::Tensor& t : stack[i].toTensorVector()) {
        look(t);
      }
    }
  }
}

}  // namespace tpu
