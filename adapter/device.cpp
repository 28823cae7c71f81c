// Device, storages, streams and events: PyTorch's hooks for a device of type PrivateUse1.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <cstdlib>

#include "adapter.h"

namespace tpu {

namespace {
constexpr int kMaxDevices = 64;
std::array<std::atomic<ttc_device*>, kMaxDevices> devices;
thread_local c10::DeviceIndex current = 0;
}  // namespace

void release_store(void* store) { ttc_store_release(static_cast<ttc_store*>(store)); }

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
  // The data pointer is an identity, never read: contents live in device buffers. That of an empty storage is null, as elsewhere.
  return {ttc_store_nbyte(store) != 0 ? store : nullptr, store, &release_store, c10::Device(kType, index)};
}

ttc_store* unusual_store_of(const at::TensorBase& t) {
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

void resize_storage(const c10::Storage& storage, size_t nbyte) {
  c10::DataPtr& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  ttc_error err{};
  check(ttc_store_resize(static_cast<ttc_store*>(data.get_context()), nbyte, &err), err);
  storage.set_nbytes(nbyte);
  c10::DeviceIndex index = data.device().index();
  data = data_ptr(static_cast<ttc_store*>(data.release_context()), index);
}

// ------------------------------------------------------------------------------------------------------ allocators

namespace {
// Counted as if every call made so far had run: a result takes its memory when its call is launched.
ttc_stats settled_stats(c10::DeviceIndex index) {
  ttc_stats t{};
  ttc_error err{};
  check(ttc_device_flush(device(index), &err), err);
  ttc_device_get_stats(device(index), &t);
  return t;
}

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
  void emptyCache(c10::MempoolId_t) override { reclaim(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats s;
    ttc_stats t = settled_stats(index);
    auto made = static_cast<int64_t>(t.made_nbyte), nmade = static_cast<int64_t>(t.made_nbuffer);
    for (auto* stat : {&s.allocated_bytes[0], &s.reserved_bytes[0], &s.active_bytes[0], &s.requested_bytes[0]}) {
      *stat = {.current = t.live_nbyte, .peak = t.peak_nbyte, .allocated = made, .freed = made - t.live_nbyte};
    }
    for (auto* stat : {&s.allocation[0], &s.segment[0], &s.active[0]}) {
      *stat = {.current = t.live_nbuffer, .peak = t.peak_nbuffer, .allocated = nmade, .freed = nmade - t.live_nbuffer};
    }
    s.num_device_alloc = nmade;
    s.num_device_free = nmade - t.live_nbuffer;
    return s;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override { ttc_device_reset_made(device(index)); }
  void resetPeakStats(c10::DeviceIndex index) override { ttc_device_reset_peak(device(index)); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    ttc_device_info info;
    ttc_device_get_info(device(index), &info);
    ttc_stats t = settled_stats(index);
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

namespace {
ttc_device* opened(c10::DeviceIndex index) {
  ttc_device* dev = index >= 0 && index < kMaxDevices ? devices[index].load(std::memory_order_acquire) : nullptr;
  if (dev == nullptr && (index < 0 || index >= ttc_device_count())) {
    device(index);  // raises, and says why
  }
  return dev;
}
}  // namespace

void reclaim() {
  for (auto& d : devices) {
    ttc_device* dev = d.load();
    if (dev != nullptr) {
      ttc_error err{};
      check(ttc_device_reclaim(dev, &err), err);
    }
  }
}

void synchronize(c10::DeviceIndex index) {
  if (ttc_device* dev = opened(index)) {
    ttc_error err{};
    check(ttc_device_synchronize(dev, &err), err);
  }
}

// --------------------------------------------------------------------------------------------- guard, streams, events

namespace {
// Every stream of a device is its one ordered queue, so that any order between streams that a program may ask for already holds.
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
      if (d.index() < 0 || d.index() >= ttc_device_count()) {
        device(d.index());  // raises, and says why
      }
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
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return capability(); }
  bool queryStream(const c10::Stream& s) const override {
    bool idle = true;
    if (ttc_device* dev = opened(s.device_index())) {
      ttc_error err{};
      check(ttc_device_query(dev, &idle, &err), err);
    }
    return idle;
  }
  void synchronizeStream(const c10::Stream& s) const override { synchronize(s.device_index()); }
  void synchronizeDevice(c10::DeviceIndex index) const override { synchronize(index < 0 ? current : index); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  // A c10 event's handle is the core's event of the last recording.
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    ttc_event* e = nullptr;
    ttc_error err{};
    check(ttc_event_record(device(stream.device_index()), &e, &err), err);
    ttc_event_release(static_cast<ttc_event*>(*event));
    *event = e;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { ttc_event_release(static_cast<ttc_event*>(event)); }
  void block(void* event, const c10::Stream& stream) const override {
    ttc_error err{};
    if (event != nullptr) {
      check(ttc_event_order(device(stream.device_index()), static_cast<ttc_event*>(event), &err), err);
    }
  }
  bool queryEvent(void* event) const override {
    bool done = true;
    ttc_error err{};
    if (event != nullptr) {
      check(ttc_event_query(static_cast<ttc_event*>(event), &done, &err), err);
    }
    return done;
  }
  void synchronizeEvent(void* event) const override {
    ttc_error err{};
    if (event != nullptr) {
      check(ttc_event_wait(static_cast<ttc_event*>(event), &err), err);
    }
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    int64_t ns = 0;
    ttc_error err{};
    TORCH_CHECK(first != nullptr && second != nullptr, "both events must be recorded before the time between them is asked");
    check(ttc_event_elapsed(static_cast<ttc_event*>(first), static_cast<ttc_event*>(second), &ns, &err), err);
    return static_cast<double>(ns) / 1e6;
  }

 private:
  static c10::DeviceCapability capability() {
    c10::DeviceCapability c;
    c.capability_data.capability_bits = 0;
    auto& has = c.capability_data.supported_scalar_types;
#define HAS(_, name) has.has_##name = has_ttc(at::ScalarType::name);
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(HAS)
#undef HAS
    return c;
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
    bool several = std::count_if(devices.begin(), devices.end(), [](const auto& d) { return d.load() != nullptr; }) > 1;
    ttc_device* owner = several ? ttc_store_find(p) : nullptr;
    return {kType, owner != nullptr ? static_cast<c10::DeviceIndex>(ttc_device_index(owner)) : current};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index < 0 ? current : index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index < 0 ? current : index); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbyte) const override { resize_storage(storage, nbyte); }
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
