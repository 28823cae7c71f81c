// The adapter's own header: what its files share. Of the core it sees ttc.h only.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <atomic>
#include <string>

#include "ttc.h"

struct _object;
using PyObject = _object;

namespace tpu {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

// ---- device.cpp
ttc_device* device(c10::DeviceIndex index);  // opens it on first use
bool any_open();                             // whether this process has opened a device
c10::DeviceIndex current_device();
inline c10::DeviceIndex resolve(c10::Device d) { return d.has_index() ? d.index() : current_device(); }
inline c10::StorageImpl* storage_of(const at::TensorBase& t) {
  return t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}
void release_store(void* store);                       // the deleter of our storages
ttc_store* unusual_store_of(const at::TensorBase& t);  // of one that is not plainly ours, or raises
inline ttc_store* store_of(const at::TensorBase& t) {
  if (C10_LIKELY(t.has_storage())) {
    const c10::DataPtr& data = storage_of(t)->_mutable_data_ptr_no_checks();
    if (C10_LIKELY(data.get_deleter() == &release_store && data.get_context() != nullptr)) {
      return static_cast<ttc_store*>(data.get_context());
    }
  }
  return unusual_store_of(t);
}
// A DataPtr that owns one reference to the store.
c10::DataPtr data_ptr(ttc_store* store, c10::DeviceIndex index);
void resize_storage(const c10::Storage& storage, size_t nbyte);
// A tensor of this spec around a store (takes the reference).
at::Tensor wrap(ttc_store* store, const ttc_spec& spec, c10::DeviceIndex index);
void synchronize(c10::DeviceIndex index);
void reclaim();  // of all open devices: wait, then give back what is only kept for speed

// ---- convert.cpp
struct Dtypes {
  Dtypes();
  std::array<uint8_t, static_cast<size_t>(at::ScalarType::NumOptions)> to{};  // ttc_dtype
  std::array<at::ScalarType, TTC_NDTYPE> from{};
};
extern const Dtypes dtypes;
inline bool has_ttc(at::ScalarType t) {
  return static_cast<size_t>(t) < dtypes.to.size() && dtypes.to[static_cast<size_t>(t)] != 0;
}
[[noreturn]] void no_such_dtype(at::ScalarType t);
[[noreturn]] void too_many_dimensions(size_t ndim);
inline ttc_dtype to_ttc(at::ScalarType t) {  // raises for types without an equivalent
  if (C10_UNLIKELY(!has_ttc(t))) {
    no_such_dtype(t);
  }
  return static_cast<ttc_dtype>(dtypes.to[static_cast<size_t>(t)]);
}
inline at::ScalarType to_aten(ttc_dtype d) { return dtypes.from[d]; }
inline ttc_tensor describe(const at::TensorBase& t) {  // sizes and strides are borrowed from t
  at::IntArrayRef sizes = t.sizes();
  if (C10_UNLIKELY(sizes.size() > TTC_MAX_NDIM)) {
    too_many_dimensions(sizes.size());
  }
  return {.store = store_of(t),
          .sizes = sizes.data(),
          .strides = t.strides().data(),
          .offset = t.storage_offset(),
          .value = -1,
          .dtype = static_cast<uint8_t>(to_ttc(t.scalar_type())),
          .ndim = static_cast<uint8_t>(sizes.size())};
}
// Sizes and strides without contents.
ttc_spec make_spec(ttc_dtype dtype, at::IntArrayRef sizes, at::IntArrayRef strides);
inline ttc_arg argument(const ttc_tensor* t) { return {.kind = TTC_ARG_TENSOR, .n = 1, .tensor = t}; }
inline ttc_arg argument(bool v) { return {.kind = TTC_ARG_BOOL, .n = 0, .i = v ? 1 : 0}; }
inline ttc_arg argument(int64_t v) { return {.kind = TTC_ARG_INT, .n = 0, .i = v}; }
[[noreturn]] void raise(ttc_status s, const ttc_error& err);
void raise_interrupt();  // module.cpp: throws what a signal's handler raised while the core waited, if it did
inline void check(ttc_status s, const ttc_error& err) {
  if (s != TTC_OK) {
    raise(s, err);
  }
}

// ---- kernel.cpp
// Register every row of the core's table and the boxed fallback. Called once, at import.
void register_ops();
// Run op `op` (a row or a graph), at once if `prompt` and nothing is queued, and give its results on device `index`: new tensors,
// undefined where the spec's dtype is invalid or the result was written into a tensor.
std::vector<at::Tensor> run_op(uint32_t op, c10::ArrayRef<ttc_arg> args, c10::ArrayRef<const ttc_tensor*> into,
                               c10::ArrayRef<ttc_spec> specs, c10::DeviceIndex index, bool prompt = false, uint32_t settings = 0);
// Run row `name` on tensors; a helper for base_ops. Results' specs come from `like` when the plan is new.
void run_into(const char* name, c10::ArrayRef<ttc_arg> args, const ttc_tensor& into, const ttc_spec& spec);
// Run row `name` and give its results as new tensors on device `index`; an undefined tensor where the spec's dtype is invalid.
std::vector<at::Tensor> run_row(const char* name, c10::ArrayRef<ttc_arg> args, c10::ArrayRef<ttc_spec> specs,
                                c10::DeviceIndex index);
// Counters of ops that ran on the CPU: overload name -> times.
std::vector<std::pair<std::string, uint64_t>> fallbacks();
void reset_fallbacks();
void set_fallback_is_error(bool on);

// ---- graph.cpp: graphs for Python (PyObject, without Python.h in every file)
PyObject* py_graph_new(PyObject*, PyObject* name);
PyObject* py_graph_input(PyObject*, PyObject* args);
PyObject* py_graph_node(PyObject*, PyObject* args);
PyObject* py_graph_finish(PyObject*, PyObject* args);
PyObject* py_graph_export(PyObject*, PyObject* args);
PyObject* py_module_load(PyObject*, PyObject* args);
std::vector<ttc_spec> results_of_graph(int64_t op, uint64_t* nrandom);
// ---- program.cpp
bool add_program_type(PyObject* module);
PyObject* py_prefix(PyObject*, PyObject* args);
PyObject* py_shaped(PyObject*, PyObject* args);

PyObject* py_set_decomposer(PyObject*, PyObject* fn);

// ---- data_dependent.cpp
// Replace the masks in a list of indices by the indices of their true elements, which waits for the device. A lone mask may stay
// where the op writes: the core needs no indices for it. True if anything was replaced.
bool expand_masks(const at::Tensor& self, c10::IValue& indices, bool keep_lone_mask);

// ---- mode.cpp
enum { kStrict = 0, kDebug = 1, kFuse = 2 };
extern std::atomic<bool> any_mode_set;  // false: every thread is in Strict mode
int thread_mode();
inline int mode() { return C10_UNLIKELY(any_mode_set.load(std::memory_order_relaxed)) ? thread_mode() : kStrict; }
void set_thread_mode(int mode);
void set_default_mode(int mode);  // of threads that have not set one
void set_value_checks(int bits);  // of results in Debug mode: 1 NaN, 2 infinity
void check_values(const c10::OperatorHandle& handle, const torch::jit::Stack& stack);  // of the results on top of the stack

// ---- generator.cpp
at::Generator new_generator(c10::DeviceIndex index);
const at::Generator& default_generator(c10::DeviceIndex index);
// Reserve `count` Philox counters: returns {seed, first offset}.
std::pair<uint64_t, uint64_t> reserve_random(const std::optional<at::Generator>& gen, c10::DeviceIndex index, uint64_t count);

}  // namespace tpu
