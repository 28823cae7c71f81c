// Random numbers: a generator is a Philox key (seed) and counter (offset); programs compute the numbers (rows of family "rng").
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>
#include <torch/library.h>

#include <array>
#include <cstring>

#include "adapter.h"

namespace tpu {

namespace {
// State: 16 bytes, seed then offset, as CUDA's.
constexpr size_t kStateNbyte = 16;

struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex index)
      : c10::GeneratorImpl({kType, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(uint64_t s) override {
    seed_ = s;
    offset_ = 0;
  }
  void set_offset(uint64_t o) override { offset_ = o; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.device_type() == c10::DeviceType::CPU && state.dtype() == caffe2::TypeMeta::Make<uint8_t>() &&
                    state.numel() == static_cast<int64_t>(kStateNbyte) && state.is_contiguous(),
                "a tpu generator's state is a contiguous uint8 cpu tensor of ", kStateNbyte, " bytes, got ", state.numel(),
                " elements of ", state.dtype().name());
    auto* p = static_cast<const char*>(state.data());
    std::memcpy(&seed_, p, 8);
    std::memcpy(&offset_, p + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor t = at::empty({static_cast<int64_t>(kStateNbyte)}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
    auto* p = static_cast<char*>(t.mutable_data_ptr());
    std::memcpy(p, &seed_, 8);
    std::memcpy(p + 8, &offset_, 8);
    return t.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* g = new Generator(device().index());
    g->seed_ = seed_;
    g->offset_ = offset_;
    return g;
  }

 private:
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

std::array<at::Generator, 64>& defaults() {
  static std::array<at::Generator, 64> all = [] {
    std::array<at::Generator, 64> a;
    for (size_t i = 0; i < a.size(); i++) {
      a[i] = at::make_generator<Generator>(static_cast<c10::DeviceIndex>(i));
    }
    return a;
  }();
  return all;
}
}  // namespace

at::Generator new_generator(c10::DeviceIndex index) { return at::make_generator<Generator>(index); }

const at::Generator& default_generator(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < 64, "tpu:", static_cast<int>(index), " does not exist");
  return defaults()[index];
}

std::pair<uint64_t, uint64_t> reserve_random(const std::optional<at::Generator>& gen, c10::DeviceIndex index, uint64_t count) {
  at::Generator g = gen.has_value() && gen->defined() ? *gen : default_generator(index);
  TORCH_CHECK(g.device().type() == kType, "Expected a 'tpu' device type for generator but found '", g.device().type(), "'");
  std::lock_guard<std::mutex> lock(g.mutex());
  uint64_t offset = g.get_offset();
  g.set_offset(offset + (count + 3) / 4 * 4);
  return {g.current_seed(), offset};
}

namespace {
// Boxed, for a typed kernel's schema cannot be inferred to return a Generator.
void give_default(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  int64_t index = torch::jit::pop(*stack).toInt();
  stack->emplace_back(default_generator(static_cast<c10::DeviceIndex>(index)));
}
}  // namespace

// How Python gets the device's own generators: torch.tpu.default_generators.
TORCH_LIBRARY_FRAGMENT(tpu, m) {
  m.def("default_generator(int index) -> Generator", torch::CppFunction::makeFromBoxedFunction<&give_default>());
}

}  // namespace tpu
