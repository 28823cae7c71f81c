// A finished graph as a Python callable: what torch.compile calls.
//
// It takes what a compiled function is called with and picks the graph's arguments from it: tensors on the device, and numbers
// (Python's, or tensors without dimensions on the CPU) that are given at run time. No dispatcher is asked on the way: autograd,
// functorch and fake tensors have had their say when the graph was traced, and a tensor that still has something of theirs is
// refused.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "call.h"
#include "ttc_prefix.h"

namespace tpu {

namespace {

constexpr long kNone = -1;           // in Program::outputs: nothing
constexpr long kFirstArgument = -2;  // argument i of the call is kFirstArgument - i

struct Program {
  PyObject_HEAD vectorcallfunc call;
  uint32_t op, settings;
  std::vector<ttc_spec>* specs;
  std::vector<size_t>* take;   // argument of the call that is the graph's argument i
  std::vector<int>* into;      // the graph's argument that takes result k, or -1
  std::vector<long>* outputs;  // what is returned: fresh result k, kNone, or an argument of the call
  uint64_t nrandom;            // random numbers that a call takes
  size_t narg;                 // arguments of the call that are looked at
};

const c10::DispatchKeySet kNotPlain({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::Functionalize,
                                     c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
                                     c10::DispatchKey::Batched});

// One call's arguments.
struct Arguments {
  c10::SmallVector<ttc_arg, 16> args;
  c10::SmallVector<ttc_tensor, 16> tensors;
  c10::SmallVector<ttc_scalar, 16> scalars;
  c10::SmallVector<const ttc_tensor*, 16> into;
  std::vector<at::Tensor> held;
  c10::DeviceIndex index = -1;

  void add(PyObject* o, size_t i) {
    if (THPVariable_Check(o)) {
      return add_tensor(THPVariable_Unpack(o), i);
    }
    ttc_scalar& s = scalars[i];
    if (PyFloat_Check(o)) {
      s = {.kind = TTC_SCALAR_FLOAT, .dtype = 0, .wrapped = 1, .i = 0, .re = PyFloat_AS_DOUBLE(o), .im = 0};
    } else if (PyBool_Check(o) || PyLong_Check(o)) {
      uint8_t kind = PyBool_Check(o) ? TTC_SCALAR_BOOL : TTC_SCALAR_INT;
      s = {.kind = kind, .dtype = 0, .wrapped = 1, .i = PyLong_AsLongLong(o), .re = 0, .im = 0};
      if (PyErr_Occurred() != nullptr) {
        throw python_error();
      }
    } else {
      TORCH_CHECK_TYPE(false, "argument ", i, " of a compiled graph is a ", Py_TYPE(o)->tp_name, ", expected a tensor or a number");
    }
    args.push_back({.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &s});
  }

  void add_tensor(const at::Tensor& given, size_t i) {
    TORCH_CHECK_TYPE(!given.key_set().has_any(kNotPlain), "argument ", i, " of a compiled graph is no plain tensor");
    if (given.device().type() != kType) {
      TORCH_CHECK(given.dim() == 0 && given.is_cpu(), "argument ", i, " of a compiled graph is on ", given.device(),
                  ", expected tpu");
      scalars[i] = number_of_tensor(given);
      args.push_back({.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &scalars[i]});
      return;
    }
    index = given.device().index();
    if (C10_UNLIKELY(given.is_conj() || given.is_neg())) {
      held.push_back(given.resolve_conj().resolve_neg());
      tensors[i] = describe(held.back());
    } else {
      tensors[i] = describe(given);
    }
    args.push_back({.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &tensors[i]});
  }
};

PyObject* results(const Program* p, PyObject* const* given, std::vector<at::Tensor>& fresh) {
  PyObject* out = PyList_New(static_cast<Py_ssize_t>(p->outputs->size()));
  for (size_t k = 0; out != nullptr && k < p->outputs->size(); k++) {
    long from = (*p->outputs)[k];
    PyObject* o = from == kNone  ? Py_NewRef(Py_None)
                  : from < kNone ? Py_NewRef(given[kFirstArgument - from])
                                 : THPVariable_Wrap(fresh[static_cast<size_t>(from)]);
    if (o == nullptr) {
      Py_CLEAR(out);
    } else {
      PyList_SET_ITEM(out, static_cast<Py_ssize_t>(k), o);
    }
  }
  return out;
}

PyObject* call_program(PyObject* self, PyObject* const* given, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto* p = reinterpret_cast<const Program*>(self);
  auto ngiven = static_cast<size_t>(PyVectorcall_NARGS(flags));
  TORCH_CHECK_TYPE(names == nullptr || PyTuple_GET_SIZE(names) == 0, "a compiled graph takes no keyword arguments");
  TORCH_CHECK_TYPE(ngiven >= p->narg, "a compiled graph expected ", p->narg, " arguments, got ", ngiven);
  size_t n = p->take->size();
  Arguments a;
  a.tensors.resize(n);
  a.scalars.resize(n);
  a.args.reserve(n + 1);
  for (size_t i = 0; i < n; i++) {
    a.add(given[(*p->take)[i]], i);
  }
  for (int i : *p->into) {
    bool tensor = i >= 0 && static_cast<size_t>(i) < n && a.args[static_cast<size_t>(i)].kind == TTC_ARG_TENSOR;
    TORCH_CHECK(tensor || i < 0, "a result of a compiled graph cannot be written into argument ", i);
    a.into.push_back(tensor ? &a.tensors[static_cast<size_t>(i)] : nullptr);
  }
  c10::DeviceIndex index = a.index >= 0 ? a.index : current_device();
  std::array<uint64_t, 2> rng{};
  if (p->nrandom != 0) {
    std::tie(rng[0], rng[1]) = reserve_random(std::nullopt, index, p->nrandom);
    a.args.push_back({.kind = TTC_ARG_RNG, .n = 2, .rng = rng.data()});
  }
  std::vector<at::Tensor> fresh;
  try {
    pybind11::gil_scoped_release free;
    fresh = run_op(p->op, a.args, a.into, *p->specs, index, /*prompt=*/true, p->settings);
  } catch (const c10::NotImplementedError&) {
    if (p->nrandom != 0) {  // its ops will be called one by one, and take the same numbers
      at::Generator g = default_generator(index);
      std::lock_guard<std::mutex> lock(g.mutex());
      g.set_offset(rng[1]);
    }
    throw;
  }
  if (!p->into->empty()) {
    fresh.erase(std::remove_if(fresh.begin(), fresh.end(), [](const at::Tensor& t) { return !t.defined(); }), fresh.end());
  }
  return results(p, given, fresh);
  END_HANDLE_TH_ERRORS
}

template <class T>
bool read_list(PyObject* o, std::vector<T>* out) {
  PyObject* fast = PySequence_Fast(o, "expected a list of ints");
  for (Py_ssize_t k = 0; fast != nullptr && k < PySequence_Fast_GET_SIZE(fast); k++) {
    out->push_back(static_cast<T>(PyLong_AsLong(PySequence_Fast_GET_ITEM(fast, k))));
  }
  Py_XDECREF(fast);
  return PyErr_Occurred() == nullptr;
}

void free_program(PyObject* self) {
  auto* p = reinterpret_cast<Program*>(self);
  delete p->specs;
  delete p->take;
  delete p->into;
  delete p->outputs;
  Py_TYPE(self)->tp_free(self);
}

PyObject* new_program(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  long long op = 0;
  PyObject *take = nullptr, *into = nullptr, *outputs = nullptr;
  unsigned settings = 0;
  if (!PyArg_ParseTuple(args, "LOOO|I", &op, &take, &into, &outputs, &settings)) {
    return nullptr;
  }
  uint64_t nrandom = 0;
  auto specs = std::make_unique<std::vector<ttc_spec>>(results_of_graph(op, &nrandom));
  auto targets = std::make_unique<std::vector<int>>();
  auto wanted = std::make_unique<std::vector<long>>();
  auto taken = std::make_unique<std::vector<size_t>>();
  if (!read_list(take, taken.get()) || !read_list(into, targets.get())) {
    return nullptr;
  }
  targets->resize(targets->empty() ? 0 : specs->size(), -1);
  auto nwritten = std::count_if(targets->begin(), targets->end(), [](int i) { return i >= 0; });
  long nfresh = static_cast<long>(specs->size()) - static_cast<long>(nwritten);
  if (outputs == Py_None) {
    for (long k = 0; k < nfresh; k++) {
      wanted->push_back(k);
    }
  } else if (!read_list(outputs, wanted.get())) {
    return nullptr;
  }
  size_t narg = 0;
  for (size_t i : *taken) {
    narg = std::max(narg, i + 1);
  }
  for (long k : *wanted) {
    TORCH_CHECK_VALUE(k < nfresh, "there is no result ", k);
    narg = k < kNone ? std::max(narg, static_cast<size_t>(kFirstArgument - k) + 1) : narg;
  }
  auto* p = reinterpret_cast<Program*>(type->tp_alloc(type, 0));
  if (p != nullptr) {
    p->call = call_program;
    p->op = static_cast<uint32_t>(op);
    p->settings = settings;
    p->specs = specs.release();
    p->take = taken.release();
    p->into = targets.release();
    p->outputs = wanted.release();
    p->nrandom = nrandom;
    p->narg = narg;
  }
  return reinterpret_cast<PyObject*>(p);
  END_HANDLE_TH_ERRORS
}

PyTypeObject program_type;

std::vector<int64_t> read_ints(PyObject* o) {
  std::vector<int64_t> out;
  if (!read_list(o, &out)) {
    throw python_error();
  }
  return out;
}

}  // namespace

// A flat tensor of nelem elements that begins with x's, in order: x itself seen so, or a copy whose other elements are pad.
PyObject* py_prefix(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *x = nullptr, *pad = nullptr;
  long long nelem = 0;
  int fresh = 0;
  if (!PyArg_ParseTuple(args, "OLOp", &x, &nelem, &pad, &fresh)) {
    return nullptr;
  }
  TORCH_CHECK_TYPE(THPVariable_Check(x) && THPVariable_Unpack(x).device().type() == kType, "expected a tensor on a tpu device");
  const at::Tensor& given = THPVariable_Unpack(x);
  at::Tensor held = given.is_conj() || given.is_neg() ? given.resolve_conj().resolve_neg() : given;
  ttc_tensor t = describe(held);
  ttc_scalar s = {.kind = TTC_SCALAR_INT, .dtype = 0, .wrapped = 1, .i = 0, .re = 0, .im = 0};
  if (PyFloat_Check(pad)) {
    s.kind = TTC_SCALAR_FLOAT;
    s.re = PyFloat_AS_DOUBLE(pad);
  } else {
    s.i = PyLong_AsLongLong(pad);
    if (PyErr_Occurred() != nullptr) {
      return nullptr;
    }
  }
  ttc_store* store = nullptr;
  ttc_error err{};
  check(ttc_store_prefix(&t, nelem, &s, fresh != 0, &store, &err), err);
  return THPVariable_Wrap(wrap(store, make_spec(static_cast<ttc_dtype>(t.dtype), {nelem}, {1}), held.device().index()));
  END_HANDLE_TH_ERRORS
}

// Elements of a flat tensor from `offset` on under these sizes and strides: a tensor of its own, no view.
PyObject* py_shaped(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *x = nullptr, *sizes = nullptr, *strides = nullptr;
  long long offset = 0;
  if (!PyArg_ParseTuple(args, "OOOL", &x, &sizes, &strides, &offset)) {
    return nullptr;
  }
  TORCH_CHECK_TYPE(THPVariable_Check(x), "expected a tensor");
  const at::Tensor& flat = THPVariable_Unpack(x);
  auto t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(flat.storage()), flat.key_set(), flat.dtype());
  t.unsafeGetTensorImpl()->set_sizes_and_strides(read_ints(sizes), read_ints(strides), offset);
  return THPVariable_Wrap(t);
  END_HANDLE_TH_ERRORS
}

bool add_program_type(PyObject* module) {
  Py_SET_REFCNT(&program_type, 1);
  program_type.tp_name = "torch_tpu._C.Program";
  program_type.tp_doc =
      "Program(op id of a graph, its arguments' places among the call's, argument that takes each result or -1, what is returned, "
      "settings as in ttc_call).";
  program_type.tp_basicsize = sizeof(Program);
  program_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  program_type.tp_vectorcall_offset = offsetof(Program, call);
  program_type.tp_call = PyVectorcall_Call;
  program_type.tp_new = new_program;
  program_type.tp_dealloc = free_program;
  return PyModule_AddType(module, &program_type) == 0;
}

}  // namespace tpu
