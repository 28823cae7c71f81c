// Device, storages, streams and events: PyTorch's hooks for a device of type PrivateUse1.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>

#include "adapter.h"

namespace tpu {

namespace {
constexpr int kMaxDevices = 64;
std::array<std::atomic<ttc_device*>, kMaxDevices> devices;
thread_local c10::DeviceIndex current = 0;

void release_store(void* ctx) { ttc_store_release(static_cast<ttc_store*>(ctx)); }
}  // namespace

c10::DeviceIndex current_device() { return current; }

bool any_open() {
  return std::any_of(devices.begin(), devices.end(), [](const auto& d) { return d.load() != nullptr; });
}

ttc_device* device(c10::DeviceIndex index) {
  if (index >= 0 && index < kMaxDevices) {
    ttc_device* dev = devices[index].load(std::memory_order_acquire);
    if (dev != nullptr) {
      return dev;
    }
  }
  ttc_error err{};
  ttc_device* dev = nullptr;
  check(ttc_device_open(index, &dev, &err), err);
  devices[index].store(dev, std::memory_order_release);
  return dev;
}

c10::DataPtr data_ptr(ttc_store* store, c10::DeviceIndex index) {
  // The data pointer is an identity, never read: contents live in device buffers.
  return {store, store, &release_store, c10::Device(kType, index)};
}

c10::StorageImpl* storage_of(const at::TensorBase& t) { return t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(); }

ttc_store* store_of(const at::TensorBase& t) {
  TORCH_CHECK(t.has_storage(), "expected a dense tpu tensor, got one with no storage (layout ", t.layout(), ")");
  const c10::DataPtr& data = storage_of(t)->_mutable_data_ptr_no_checks();
  // The pointer alone says which store it is too: PyTorch pickles a storage through a tensor that borrows its pointer (from_blob).
  bool ours = data.get_context() == nullptr || data.get_deleter() == &release_store;
  TORCH_CHECK(ours,
              "this tensor's memory came from outside (DLPack or from_blob): the tpu device cannot read memory it did not make; "
              "copy it through the cpu");
  auto* store = static_cast<ttc_store*>(data.get_context() != nullptr ? data.get_context() : data.get());
  TORCH_CHECK(store != nullptr, "this tpu tensor has no storage: it was made from a null pointer or its storage was released");
  return store;
}

// ------------------------------------------------------------------------------------------------------ allocators

namespace {
struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t n) override {
    ttc_store* store = nullptr;
    ttc_error err{};
    check(ttc_store_new(device(current), n, nullptr, &store, &err), err);
    return data_ptr(store, current);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_store; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "tpu storages cannot be copied by pointer; use tensor.clone() or copy_()");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats s;
    ttc_stats t{};
    ttc_device_get_stats(device(index), &t);
    for (auto* stat : {&s.allocated_bytes[0], &s.reserved_bytes[0], &s.active_bytes[0], &s.requested_bytes[0]}) {
      stat->current = t.live_nbyte;
      stat->peak = t.peak_nbyte;
    }
    return s;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override { ttc_device_reset_peak(device(index)); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    ttc_device_info info;
    ttc_stats t{};
    ttc_device_get_info(device(index), &info);
    ttc_device_get_stats(device(index), &t);
    return {static_cast<size_t>(std::max<int64_t>(0, info.memory_limit_nbyte - t.live_nbyte)),
            static_cast<size_t>(info.memory_limit_nbyte)};
  }
};

// "Pinned" host memory: page aligned. XLA's CPU client and libtpu copy from any host memory; the alignment lets them do it without
// a staging copy.
struct HostAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t n) override {
    void* p = nullptr;
    TORCH_CHECK(n == 0 || posix_memalign(&p, 4096, n) == 0, "out of host memory for ", n, " pinned bytes");
    note(p, n);
    return {p, p, &forget, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &forget; }
  void copy_data(void* dst, const void* src, std::size_t n) const override { default_copy_data(dst, src, n); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  static bool is_pinned(const void* p) {
    std::lock_guard<std::mutex> lock(mutex);
    auto it = blocks.upper_bound(p);
    if (it == blocks.begin()) {
      return false;
    }
    --it;
    return p < static_cast<const char*>(it->first) + it->second;
  }

 private:
  static inline std::mutex mutex;
  static inline std::map<const void*, size_t> blocks;
  static void note(const void* p, size_t n) {
    std::lock_guard<std::mutex> lock(mutex);
    if (p != nullptr) {
      blocks[p] = n;
    }
  }
  static void forget(void* p) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      blocks.erase(p);
    }
    std::free(p);
  }
};

Allocator the_allocator;
HostAllocator the_host_allocator;
}  // namespace

at::Tensor wrap(ttc_store* store, const ttc_spec& spec, c10::DeviceIndex index) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), ttc_store_nbyte(store),
                                                       data_ptr(store, index), &the_allocator, /*resizable=*/true);
  auto t =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                               c10::scalarTypeToTypeMeta(to_aten(spec.dtype)));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(spec.sizes, spec.ndim),
                                                 c10::IntArrayRef(spec.strides, spec.ndim));
  return t;
}

void synchronize(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < kMaxDevices, "tpu:", static_cast<int>(index), " does not exist");
  ttc_device* dev = devices[index].load();
  if (dev != nullptr) {
    ttc_error err{};
    check(ttc_device_synchronize(dev, &err), err);
  }
}

// --------------------------------------------------------------------------------------------- guard, streams, events

namespace {
// Every stream of a device is its one ordered queue, so that any order between streams that a program may ask for already holds.
struct Event {
  std::chrono::steady_clock::time_point when;
  bool recorded = false;
  c10::DeviceIndex index = 0;
};
thread_local std::array<c10::StreamId, kMaxDevices> current_stream{};
std::atomic<c10::StreamId> next_stream{1};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device d) const override {
    c10::Device old(kType, current);
    setDevice(d);
    return old;
  }
  c10::Device getDevice() const override { return {kType, current}; }
  void setDevice(c10::Device d) const override {
    if (d.has_index() && d.index() != current) {
      int n = ttc_device_count();
      TORCH_CHECK(d.index() >= 0 && d.index() < n, "tpu:", static_cast<int>(d.index()), " does not exist: this process has ", n,
                  " tpu device(s), numbered from 0");
      current = d.index();
    }
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.has_index()) {
      current = d.index();
    }
  }
  c10::Stream getStream(c10::Device d) const override {
    return c10::Stream(c10::Stream::UNSAFE, {kType, resolve(d)}, current_stream.at(resolve(d)));
  }
  c10::Stream getDefaultStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, {kType, resolve(d)}); }
  c10::Stream getNewStream(c10::Device d, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, {kType, resolve(d)}, next_stream++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    auto index = s.device_index();
    c10::Stream old(c10::Stream::UNSAFE, {kType, index}, current_stream.at(index));
    current_stream.at(index) = s.id();
    return old;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(ttc_device_count()); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& s) const override { synchronize(s.device_index()); }
  void synchronizeDevice(c10::DeviceIndex index) const override { synchronize(index < 0 ? current : index); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  // An event's time is taken when the work before it is done, so recording waits for that work.
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    auto* e = *event != nullptr ? static_cast<Event*>(*event) : new Event;
    *event = e;
    synchronize(stream.device_index());
    e->index = stream.device_index();
    e->when = std::chrono::steady_clock::now();
    e->recorded = true;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      synchronize(static_cast<Event*>(event)->index);
    }
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    auto *a = static_cast<Event*>(first), *b = static_cast<Event*>(second);
    TORCH_CHECK(a != nullptr && b != nullptr && a->recorded && b->recorded,
                "both events must be recorded before their time is asked");
    return std::chrono::duration<double, std::milli>(b->when - a->when).count();
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return ttc_device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return index >= 0 && index < kMaxDevices && devices[index].load() != nullptr;
  }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(ttc_device_count()); }
  void setCurrentDevice(c10::DeviceIndex d) const override { Guard().setDevice({kType, d}); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override { return Guard().exchangeDevice({kType, d}).index(); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override { return d < 0 ? current : exchangeDevice(d); }
  bool isPinnedPtr(const void* p) const override { return HostAllocator::is_pinned(p); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &the_host_allocator; }
  c10::Device getDeviceFromPtr(void* p) const override {
    TORCH_CHECK(p != nullptr, "no device owns a null pointer");
    return {kType, current};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index < 0 ? current : index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index < 0 ? current : index); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbyte) const override {
    auto* s = static_cast<ttc_store*>(storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_context());
    ttc_error err{};
    check(ttc_store_resize(s, nbyte, &err), err);
    storage.set_nbytes(nbyte);
  }
};

bool register_hooks() {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}
const bool hooks_registered = register_hooks();
const c10::impl::DeviceGuardImplRegistrar guard_registered(kType, new Guard);
}  // namespace

REGISTER_ALLOCATOR(kType, &the_allocator)
REGISTER_HOST_ALLOCATOR(kType, &the_host_allocator)

}  // namespace tpu
