// torch.profiler: a row for each device, with the programs it ran (Kineto); and times of ops by events, for the profiler without
// it.
#define USE_KINETO
#include <c10/util/ApproximateClock.h>
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "adapter.h"
#include "ttc_trace.h"

namespace tpu {

namespace {

using libkineto::ActivityType;

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    ttc_error err{};
    index_ = current_device();
    if (!any_open()) {  // a program for the cpu alone is not made to load a plugin
      return;
    }
    if (ttc_trace_start(device(index_), &err) == TTC_OK) {
      status_ = libkineto::TraceStatus::RECORDING;
    } else {
      errors_.emplace_back(err.message);
    }
  }
  void stop() override {
    if (status_ != libkineto::TraceStatus::RECORDING) {
      return;
    }
    ttc_error err{};
    ttc_span* spans = nullptr;
    size_t n = 0;
    status_ = libkineto::TraceStatus::PROCESSING;
    if (ttc_trace_stop(device(index_), &spans, &n, &err) != TTC_OK) {
      errors_.emplace_back(err.message);
      return;
    }
    spans_.assign(spans, spans + n);
    ttc_trace_free(spans);
  }
  std::vector<std::string> errors() override { return errors_; }
  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t, int64_t) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span =
        libkineto::TraceSpan(spans_.empty() ? 0 : spans_.front().start_ns, spans_.empty() ? 0 : spans_.back().done_ns, "TPU");
    buffer_->gpuOpCount = static_cast<int>(spans_.size());
    for (const ttc_span& s : spans_) {
      buffer_->emplace_activity(buffer_->span, ActivityType::CONCURRENT_KERNEL, std::string(s.op));
      auto& activity = *buffer_->activities.back();
      activity.startTime = s.start_ns;
      activity.endTime = s.done_ns;
      activity.id = static_cast<int32_t>(s.tag);
      activity.device = index_;
      activity.resource = 0;
      activity.linked = s.tag != 0 ? linked(static_cast<int32_t>(s.tag)) : nullptr;
      activity.log(logger);
    }
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(index_, libkineto::kExceedMaxPid + index_, "tpu:" + std::to_string(index_),
                                                   "TPU");
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    return {libkineto::ResourceInfo{.id = 0, .sortIndex = 0, .deviceId = index_, .name = "programs"}};
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }
  void pushCorrelationId(uint64_t id) override {
    ids().push_back(id);
    ttc_trace_tag(id);
  }
  void popCorrelationId() override {
    if (!ids().empty()) {
      ids().pop_back();
    }
    ttc_trace_tag(ids().empty() ? 0 : ids().back());
  }

 private:
  static std::vector<uint64_t>& ids() {
    thread_local std::vector<uint64_t> stack;
    return stack;
  }
  c10::DeviceIndex index_ = 0;
  std::vector<ttc_span> spans_;
  std::vector<std::string> errors_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class DeviceProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config&) override {
    return wanted.count(ActivityType::CONCURRENT_KERNEL) != 0 ? std::make_unique<Session>() : nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  std::string name_ = "__tpu_profiler__";
  std::set<ActivityType> types_{ActivityType::CONCURRENT_KERNEL};
};

REGISTER_PRIVATEUSE1_PROFILER(DeviceProfiler);

// An event before and one after each op.
struct Profiler final : torch::profiler::impl::ProfilerStubs {
  using Mark = torch::profiler::impl::ProfilerVoidEventStub;
  void record(c10::DeviceIndex* index, Mark* mark, int64_t* cpu_ns) const override {
    ttc_event* e = nullptr;
    ttc_error err{};
    if (index != nullptr) {
      *index = current_device();
    }
    check(ttc_event_record(device(current_device()), &e, &err), err);
    *mark = Mark(e, [](void* p) { ttc_event_release(static_cast<ttc_event*>(p)); });
    if (cpu_ns != nullptr) {
      *cpu_ns = c10::getTime();
    }
  }
  float elapsed(const Mark* from, const Mark* to) const override {  // microseconds
    auto *a = static_cast<ttc_event*>(from->get()), *b = static_cast<ttc_event*>(to->get());
    int64_t ns = 0;
    ttc_error err{};
    check(ttc_event_wait(a, &err), err);
    check(ttc_event_wait(b, &err), err);
    check(ttc_event_elapsed(a, b, &ns, &err), err);
    return static_cast<float>(static_cast<double>(ns) / 1e3);
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override {
    for (int i = 0; i < ttc_device_count(); i++) {
      op(i);
    }
  }
  void synchronize() const override { tpu::synchronize(current_device()); }
};

bool register_stubs() {
  static Profiler profiler;
  torch::profiler::impl::registerPrivateUse1Methods(&profiler);
  return true;
}
const bool stubs_registered = register_stubs();

}  // namespace

}  // namespace tpu
