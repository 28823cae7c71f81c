// The Python module: plain functions over strings, numbers and dicts. Tensors travel through registered ops.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <torch/csrc/Exceptions.h>

#include <thread>

#include "adapter.h"
#include "ttc_fuse.h"
#include "ttc_module.h"

namespace {

// C++ exceptions become Python ones, as PyTorch's own functions have them.
template <class F>
PyObject* guarded(F&& f) {
  try {
    return f();
  } catch (const std::exception&) {
    torch::translate_exception_to_python(std::current_exception());
  }
  return nullptr;
}

class NoGil {
 public:
  NoGil() : state(PyEval_SaveThread()) {}
  ~NoGil() { PyEval_RestoreThread(state); }

 private:
  PyThreadState* state;
};

// Ctrl-C while the core waits: what the signal's handler raised (KeyboardInterrupt by default) is kept, the core gives up, and the
// call raises that. Signals are handled in the main thread only.
unsigned long main_thread = 0;
constexpr int kShutdownMs = 10000;  // for queued work at the end of the process
std::optional<python_error> raised;

bool interrupted() {
  if (PyThread_get_thread_ident() != main_thread || !Py_IsInitialized()) {
    return false;
  }
  PyGILState_STATE gil = PyGILState_Ensure();
  bool stop = PyErr_CheckSignals() != 0;
  if (stop) {
    raised.emplace();
    raised->persist();
  }
  PyGILState_Release(gil);
  return stop;
}

}  // namespace

void tpu::raise_interrupt() {
  if (PyThread_get_thread_ident() == main_thread && raised.has_value()) {
    python_error e = std::move(*raised);
    raised.reset();
    throw python_error(std::move(e));
  }
}

namespace {

// At the interpreter's end a daemon thread that asks for its lock is taken down, through frames that do not bear it: the process
// would abort. So such threads stay in the core from their next call on.
bool stays() {
  return PyThread_get_thread_ident() != main_thread && (!Py_IsInitialized() || PyGILState_GetThisThreadState() != nullptr);
}

PyObject* py_end(PyObject*, PyObject* others) {
  ttc_set_no_return(&stays);
  if (PyObject_IsTrue(others) == 1) {  // time to come to their next call
    NoGil no_gil;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  Py_RETURN_NONE;
}

bool set(PyObject* dict, const char* key, PyObject* value) {
  bool ok = value != nullptr && PyDict_SetItemString(dict, key, value) == 0;
  Py_XDECREF(value);
  return ok;
}

PyObject* py_register(PyObject*, PyObject*) {
  return guarded([]() -> PyObject* {
    PyObject* threading = PyImport_ImportModule("threading");
    PyObject* thread = threading != nullptr ? PyObject_CallMethod(threading, "main_thread", nullptr) : nullptr;
    PyObject* ident = thread != nullptr ? PyObject_GetAttrString(thread, "ident") : nullptr;
    main_thread = ident != nullptr ? PyLong_AsUnsignedLong(ident) : 0;
    Py_XDECREF(ident);
    Py_XDECREF(thread);
    Py_XDECREF(threading);
    if (PyErr_Occurred() != nullptr) {
      return nullptr;
    }
    ttc_set_interrupt_check(&interrupted);
    // The last thing of all: handlers of atexit and finalizers may still use the device, whenever they were registered.
    if (Py_AtExit([] { ttc_shutdown(kShutdownMs); }) != 0) {
      PyErr_SetString(PyExc_RuntimeError, "the interpreter takes no more functions to call at its end");
      return nullptr;
    }
    tpu::register_ops();
    Py_RETURN_NONE;
  });
}

// The function's one argument, a number, given to `f`.
template <class F>
PyObject* with_number(PyObject* arg, F f) {
  long n = PyLong_AsLong(arg);
  if (n == -1 && PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* { return f(n); });
}

// The device of that number, opened if need be, given to `f`.
template <class F>
PyObject* with_device(PyObject* arg, F f) {
  return with_number(arg, [&](long index) {
    ttc_device* device = nullptr;
    {
      NoGil no_gil;
      device = tpu::device(static_cast<c10::DeviceIndex>(index));
    }
    return f(device);
  });
}

PyObject* py_set_search_path(PyObject*, PyObject* arg) {
  const char* dirs = PyUnicode_AsUTF8(arg);
  if (dirs == nullptr) {
    return nullptr;
  }
  ttc_set_plugin_search_path(dirs);
  Py_RETURN_NONE;
}

PyObject* py_device_count(PyObject*, PyObject*) { return PyLong_FromLong(ttc_device_count()); }
PyObject* py_is_open(PyObject*, PyObject*) { return PyBool_FromLong(tpu::any_open()); }
PyObject* py_current_device(PyObject*, PyObject*) { return PyLong_FromLong(tpu::current_device()); }

PyObject* py_synchronize(PyObject*, PyObject* arg) {
  return with_number(arg, [](long index) {
    NoGil no_gil;
    tpu::synchronize(static_cast<c10::DeviceIndex>(index));
    return Py_NewRef(Py_None);
  });
}

PyObject* py_device_info(PyObject*, PyObject* arg) {
  return with_device(arg, [](ttc_device* device) {
    ttc_device_info i;
    ttc_device_get_info(device, &i);
    return Py_BuildValue("{s:s,s:s,s:s,s:s,s:(ii),s:O,s:L}", "platform", i.platform, "platform_version", i.platform_version,
                         "device_kind", i.device_kind, "plugin_path", i.plugin_path, "pjrt_api", i.pjrt_api_major, i.pjrt_api_minor,
                         "simulated", i.simulated != 0 ? Py_True : Py_False, "memory_limit_bytes",
                         static_cast<long long>(i.memory_limit_nbyte));
  });
}

PyObject* py_stats(PyObject*, PyObject* arg) {
  return with_device(arg, [](ttc_device* device) {
    ttc_stats s{};
    ttc_device_get_stats(device, &s);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:L,s:L,s:L,s:K,s:L,s:L,s:K,s:K}", "calls", (unsigned long long)s.calls,
                         "programs_compiled", (unsigned long long)s.programs_compiled, "programs_loaded",
                         (unsigned long long)s.programs_loaded, "compile_ns", (unsigned long long)s.compile_ns, "plans",
                         (unsigned long long)s.plans, "cache_errors", (unsigned long long)s.cache_errors, "live_bytes",
                         (long long)s.live_nbyte, "peak_bytes", (long long)s.peak_nbyte, "limit_bytes", (long long)s.limit_nbyte,
                         "queue_wait_ns", (unsigned long long)s.queue_wait_ns, "live_buffers", (long long)s.live_nbuffer,
                         "peak_buffers", (long long)s.peak_nbuffer, "made_bytes", (unsigned long long)s.made_nbyte, "made_buffers",
                         (unsigned long long)s.made_nbuffer);
  });
}

PyObject* py_reset_peak(PyObject*, PyObject* arg) {
  return with_device(arg, [](ttc_device* device) {
    ttc_device_reset_peak(device);
    return Py_NewRef(Py_None);
  });
}

PyObject* py_reset_made(PyObject*, PyObject* arg) {
  return with_device(arg, [](ttc_device* device) {
    ttc_device_reset_made(device);
    return Py_NewRef(Py_None);
  });
}

PyObject* py_flush(PyObject*, PyObject* arg) {
  return with_device(arg, [](ttc_device* device) {
    NoGil no_gil;
    ttc_error err{};
    tpu::check(ttc_device_flush(device, &err), err);
    return Py_NewRef(Py_None);
  });
}

PyObject* py_add_compile_options(PyObject*, PyObject* args) {
  int index = 0;
  PyObject* given = nullptr;
  if (PyArg_ParseTuple(args, "iO!:add_compile_options", &index, &PyList_Type, &given) == 0) {
    return nullptr;
  }
  std::vector<const char*> options;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(given); i++) {
    options.push_back(PyUnicode_AsUTF8(PyList_GET_ITEM(given, i)));
    if (options.back() == nullptr) {
      return nullptr;
    }
  }
  options.push_back(nullptr);
  return guarded([&]() -> PyObject* {
    uint32_t set = 0;
    {
      NoGil no_gil;
      ttc_error err{};
      tpu::check(ttc_compile_options_add(tpu::device(static_cast<c10::DeviceIndex>(index)), options.data(), &set, &err), err);
    }
    return PyLong_FromUnsignedLong(set);
  });
}

PyObject* py_use_compile_options(PyObject*, PyObject* arg) {
  unsigned long set = PyLong_AsUnsignedLong(arg);
  if (PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  return PyLong_FromUnsignedLong(ttc_compile_options_use(static_cast<uint32_t>(set)));
}

PyObject* py_set_memory_limit(PyObject*, PyObject* args) {
  int index = 0;
  long long nbyte = 0;
  if (!PyArg_ParseTuple(args, "iL", &index, &nbyte)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    ttc_device_set_memory_limit(tpu::device(static_cast<c10::DeviceIndex>(index)), nbyte);
    return Py_NewRef(Py_None);
  });
}

PyObject* py_reclaim(PyObject*, PyObject*) {
  return guarded([&]() -> PyObject* {
    NoGil no_gil;
    tpu::reclaim();
    return Py_NewRef(Py_None);
  });
}

PyObject* py_fallbacks(PyObject*, PyObject*) {
  PyObject* dict = PyDict_New();
  for (const auto& [name, n] : tpu::fallbacks()) {
    if (dict != nullptr && !set(dict, name.c_str(), PyLong_FromUnsignedLongLong(n))) {
      Py_CLEAR(dict);
    }
  }
  return dict;
}

PyObject* py_reset_fallbacks(PyObject*, PyObject*) {
  tpu::reset_fallbacks();
  Py_RETURN_NONE;
}

PyObject* py_set_fallback_is_error(PyObject*, PyObject* arg) {
  tpu::set_fallback_is_error(PyObject_IsTrue(arg) == 1);
  Py_RETURN_NONE;
}

PyObject* py_set_matmul_precision(PyObject*, PyObject* arg) {
  return with_number(arg, [](long level) {
    ttc_set_matmul_precision(static_cast<int>(level));
    return Py_NewRef(Py_None);
  });
}

PyObject* py_set_mode(PyObject*, PyObject* args) {
  int mode = 0, for_all = 0;
  if (PyArg_ParseTuple(args, "ip", &mode, &for_all) == 0) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    for_all != 0 ? tpu::set_default_mode(mode) : tpu::set_thread_mode(mode);
    Py_RETURN_NONE;
  });
}

PyObject* py_fuse_stats(PyObject*, PyObject* arg) {
  return with_device(arg, [](ttc_device* device) {
    ttc_fuse_stats s;
    ttc_device_get_fuse_stats(device, &s);
    PyObject* cuts = PyDict_New();
    for (unsigned k = 0; k < TTC_NCUT && cuts != nullptr; k++) {
      if (s.cuts[k] != 0 && !set(cuts, ttc_cut_name(k), PyLong_FromUnsignedLongLong(s.cuts[k]))) {
        Py_CLEAR(cuts);
      }
    }
    return cuts == nullptr ? nullptr
                           : Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:N}", "nodes", s.nodes, "runs", s.runs, "hits",
                                           s.hits, "fused", s.fused, "traces", s.traces, "programs", s.programs, "compiling",
                                           s.compiling, "failed", s.failed, "unwritten_nbyte", s.unwritten_nbyte, "cuts", cuts);
  });
}

PyObject* py_stepped(PyObject*, PyObject*) {
  return guarded([]() -> PyObject* {
    if (tpu::any_open()) {
      ttc_device_stepped(tpu::device(tpu::current_device()));
    }
    Py_RETURN_NONE;
  });
}

PyObject* py_wait_fused(PyObject*, PyObject* arg) {
  return with_device(arg, [](ttc_device* device) {
    NoGil no_gil;
    ttc_error err;
    tpu::check(ttc_device_wait_fused(device, &err), err);
    return Py_NewRef(Py_None);
  });
}

PyObject* py_mode(PyObject*, PyObject*) { return PyLong_FromLong(tpu::thread_mode()); }

PyObject* py_set_value_checks(PyObject*, PyObject* arg) {
  return with_number(arg, [](long bits) {
    tpu::set_value_checks(static_cast<int>(bits));
    return Py_NewRef(Py_None);
  });
}

PyObject* py_ops(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (uint32_t op = 0; list != nullptr && op < ttc_op_count(); op++) {
    ttc_op_info i;
    if (!ttc_op_get(op, &i)) {
      continue;
    }
    PyObject* row = Py_BuildValue("{s:s,s:s,s:I,s:d,s:d,s:s,s:s}", "name", i.name, "family", i.family, "flags", i.flags, "rtol",
                                  i.rtol, "atol", i.atol, "note", i.note, "pad", i.pad);
    if (row == nullptr || PyList_Append(list, row) != 0) {
      Py_CLEAR(list);
    }
    Py_XDECREF(row);
  }
  return list;
}

PyObject* py_set_dump(PyObject*, PyObject* arg) {
  const char* dir = arg == Py_None ? nullptr : PyUnicode_AsUTF8(arg);
  if (dir == nullptr && arg != Py_None) {
    return nullptr;
  }
  ttc_set_dump(dir);
  Py_RETURN_NONE;
}

PyObject* py_last_module(PyObject*, PyObject*) { return PyUnicode_FromString(ttc_last_module()); }

PyMethodDef methods[] = {
    {"register_ops", py_register, METH_NOARGS, "Register every row of the core's op table with the dispatcher."},
    {"end", py_end, METH_O, "The interpreter ends; whether other threads are running."},
    {"set_search_path", py_set_search_path, METH_O, "Directories (':' between) that may hold PJRT plugin packages."},
    {"device_count", py_device_count, METH_NOARGS, "Devices this process may open; loads no plugin."},
    {"is_open", py_is_open, METH_NOARGS, "Whether this process has opened a device."},
    {"current_device", py_current_device, METH_NOARGS, "Index of this thread's current device."},
    {"synchronize", py_synchronize, METH_O, "Wait for all work of a device."},
    {"device_info", py_device_info, METH_O, "What the plugin says of a device, as a dict."},
    {"stats", py_stats, METH_O, "Counters of a device, as a dict."},
    {"reset_peak", py_reset_peak, METH_O, "Start the peak of live bytes anew."},
    {"reset_made", py_reset_made, METH_O, "Start the counts of what was allocated anew."},
    {"flush", py_flush, METH_O, "Launch all calls made so far on a device, without waiting for results."},
    {"add_compile_options", py_add_compile_options, METH_VARARGS, "(device, ['name=value', ..]): the number of this list."},
    {"use_compile_options", py_use_compile_options, METH_O, "Compile under this list from now on; the list before."},
    {"set_memory_limit", py_set_memory_limit, METH_VARARGS, "(index, bytes): what a device's tensors may hold together."},
    {"reclaim", py_reclaim, METH_NOARGS, "Wait for all work, then give back memory that is only kept for speed."},
    {"fallbacks", py_fallbacks, METH_NOARGS, "Calls that ran on the cpu: {overload: times}."},
    {"reset_fallbacks", py_reset_fallbacks, METH_NOARGS, "Forget the calls counted by fallbacks."},
    {"set_fallback_is_error", py_set_fallback_is_error, METH_O, "Raise instead of running on the cpu."},
    {"set_matmul_precision", py_set_matmul_precision, METH_O, "0 highest, 1 high, 2 medium."},
    {"set_mode", py_set_mode, METH_VARARGS, "(mode, for_all): this thread's eager mode, or that of threads which set none."},
    {"mode", py_mode, METH_NOARGS, "This thread's eager mode: 0 Strict, 1 Debug, 2 Fuse."},
    {"fuse_stats", py_fuse_stats, METH_O, "What became of the calls kept back on a device, as a dict."},
    {"stepped", py_stepped, METH_NOARGS, "An optimizer has made its step: calls kept back on this device may be cut here."},
    {"wait_fused", py_wait_fused, METH_O, "Wait until no fused program of a device is being compiled."},
    {"set_value_checks", py_set_value_checks, METH_O, "Of each result in Debug mode: 1 NaN, 2 infinity, 3 both, 0 neither."},
    {"ops", py_ops, METH_NOARGS, "The op table, a dict a row."},
    {"last_module", py_last_module, METH_NOARGS, "StableHLO of the last program this thread lowered."},
    {"graph_new", tpu::py_graph_new, METH_O, "A new graph of this name, as a capsule."},
    {"graph_input", tpu::py_graph_input, METH_VARARGS,
     "(graph, arg, k, dtype, sizes): entry k of the call's argument arg; its value."},
    {"graph_node", tpu::py_graph_node, METH_VARARGS, "(graph, row, args, ((dtype, sizes) or None, ..)): the results' values."},
    {"graph_finish", tpu::py_graph_finish, METH_VARARGS, "(graph, values, strides of each = contiguous): the op id that runs it."},
    {"graph_export", tpu::py_graph_export, METH_VARARGS,
     "(op, [(dtype, sizes), ..], [parameter that each result is written into, or -1], for_tpu): the graph as a StableHLO module."},
    {"module_load", tpu::py_module_load, METH_VARARGS,
     "(name, bytes, parameters, results [(dtype, sizes, strides or None), ..], writes): the op id that runs the module."},
    {"set_dump", py_set_dump, METH_O, "Write the module of each new program, as it is for a TPU, to this folder; None: no more."},
    {"prefix", tpu::py_prefix, METH_VARARGS, "(tensor, n, pad, fresh): a flat tensor of n elements that begins with the tensor's."},
    {"shaped", tpu::py_shaped, METH_VARARGS, "(flat tensor, sizes, strides, offset): its elements from there on."},
    {"set_decomposer", tpu::py_set_decomposer, METH_O, "fn(overload, args) -> op id of a graph, -1 or -2."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", "The TorchTPU adapter.", -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

#define INIT_NAME2(tag) PyInit__tpu_torch##tag
#define INIT_NAME(tag) INIT_NAME2(tag)
extern "C" __attribute__((visibility("default"))) PyObject* INIT_NAME(TPU_TORCH_TAG)() {
  PyObject* m = PyModule_Create(&module);
  if (m != nullptr && !tpu::add_program_type(m)) {
    Py_CLEAR(m);
  }
  return m;
}
