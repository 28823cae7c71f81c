// Graphs for Python: building them from plain data, and asking Python to trace a decomposition.
//
// Plain data: a value of the graph is an int; a number, bool, str or None is itself; a dtype is an int (ttc_dtype) where the schema
// asks for one; ("num", arg, kind) is a number given at run time; ("const", number, dtype) is a 0-d tensor of known contents, or
// with dtype 0 a number in a tensor's place.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <c10/util/strides.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

#include <deque>
#include <map>
#include <mutex>

#include "call.h"
#include "ttc_module.h"

namespace tpu {

namespace {

const char* const kCapsule = "torch_tpu.graph";

// A graph under construction with what its nodes need to know of its values.
struct Building {
  ttc_graph* graph = nullptr;
  std::vector<ttc_spec> values;
  ~Building() { ttc_graph_free(graph); }
};

Building* building(PyObject* capsule) { return static_cast<Building*>(PyCapsule_GetPointer(capsule, kCapsule)); }
void destroy(PyObject* capsule) { delete building(capsule); }

PyObject* raise_python(const ttc_error& err) {
  PyErr_SetString(err.code == TTC_UNIMPLEMENTED ? PyExc_NotImplementedError : PyExc_RuntimeError, err.message);
  return nullptr;
}

// (dtype, sizes) -> spec; None -> a result that is not wanted.
bool read_spec(PyObject* o, ttc_spec* s) {
  *s = ttc_spec{};
  if (o == Py_None) {
    return true;
  }
  int dtype = 0;
  PyObject* sizes = nullptr;
  if (!PyArg_ParseTuple(o, "iO!", &dtype, &PyTuple_Type, &sizes)) {
    return false;
  }
  Py_ssize_t n = PyTuple_GET_SIZE(sizes);
  if (n > TTC_MAX_NDIM || dtype <= TTC_DTYPE_INVALID || dtype >= TTC_NDTYPE) {
    PyErr_Format(PyExc_ValueError, "a tensor of %zd dimensions and dtype %d", n, dtype);
    return false;
  }
  s->dtype = static_cast<ttc_dtype>(dtype);
  s->ndim = static_cast<int>(n);
  for (Py_ssize_t k = 0; k < n; k++) {
    s->sizes[k] = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, k));
  }
  auto strides = c10::contiguous_strides(at::IntArrayRef(s->sizes, static_cast<size_t>(n)));
  std::copy(strides.begin(), strides.end(), s->strides);
  return PyErr_Occurred() == nullptr;
}

// Strides of a dense result, for a spec of known sizes; None leaves it contiguous. Takes the reference.
bool read_strides(PyObject* o, ttc_spec* s) {
  if (o == Py_None) {
    Py_DECREF(o);
    return true;
  }
  PyObject* fast = o != nullptr ? PySequence_Fast(o, "expected strides") : nullptr;
  Py_XDECREF(o);
  if (fast != nullptr && PySequence_Fast_GET_SIZE(fast) == s->ndim) {
    for (int k = 0; k < s->ndim; k++) {
      s->strides[k] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast, k));
    }
  } else if (fast != nullptr) {
    PyErr_Format(PyExc_ValueError, "expected %d strides, got %zd", s->ndim, PySequence_Fast_GET_SIZE(fast));
  }
  Py_XDECREF(fast);
  return PyErr_Occurred() == nullptr;
}

bool read_number(PyObject* o, ttc_scalar* s) {
  *s = ttc_scalar{};
  s->wrapped = 1;
  if (PyBool_Check(o)) {
    s->kind = TTC_SCALAR_BOOL;
    s->i = o == Py_True;
  } else if (PyLong_Check(o)) {
    s->kind = TTC_SCALAR_INT;
    s->i = PyLong_AsLongLong(o);
  } else if (PyFloat_Check(o)) {
    s->kind = TTC_SCALAR_FLOAT;
    s->re = PyFloat_AS_DOUBLE(o);
  } else if (PyComplex_Check(o)) {
    s->kind = TTC_SCALAR_COMPLEX;
    s->re = PyComplex_RealAsDouble(o);
    s->im = PyComplex_ImagAsDouble(o);
  } else if (PyTuple_Check(o)) {
    const char* tag = nullptr;
    PyObject* first = nullptr;
    int second = 0;
    if (!PyArg_ParseTuple(o, "sOi", &tag, &first, &second)) {
      return false;
    }
    if (strcmp(tag, "num") == 0) {
      s->kind = static_cast<uint8_t>(second);
      s->i = PyLong_AsLongLong(first);
      s->wrapped = 2;
    } else if (read_number(first, s)) {
      s->dtype = static_cast<uint8_t>(second);
      s->wrapped = second == 0;
    }
  } else {
    PyErr_Format(PyExc_TypeError, "expected a number, got %R", o);
  }
  return PyErr_Occurred() == nullptr;
}

// One node's arguments; deques keep what the structs point at in place.
struct Node {
  const Building& g;
  std::vector<ttc_arg> args;
  std::deque<std::vector<ttc_tensor>> tensors;
  std::deque<std::vector<ttc_scalar>> scalars;
  std::deque<std::vector<int64_t>> ints;

  bool tensor(PyObject* o, ttc_tensor* t) {
    *t = ttc_tensor{nullptr, nullptr, nullptr, 0, -1, 0, 0};
    if (o == Py_None) {
      return true;
    }
    long id = PyLong_AsLong(o);
    if (id < 0 || id >= static_cast<long>(g.values.size())) {
      PyErr_Format(PyExc_ValueError, "%R is no value of this graph", o);
      return false;
    }
    const ttc_spec& s = g.values[static_cast<size_t>(id)];
    *t = ttc_tensor{
        nullptr, s.sizes, s.strides, 0, static_cast<int32_t>(id), static_cast<uint8_t>(s.dtype), static_cast<uint8_t>(s.ndim)};
    return true;
  }

  bool add_list(PyObject* o, Kind kind) {
    PyObject* fast = PySequence_Fast(o, "expected a list");
    if (fast == nullptr) {
      return false;
    }
    auto n = static_cast<size_t>(PySequence_Fast_GET_SIZE(fast));
    bool ok = true;
    auto each = [&](auto& list, auto&& read) {
      list.resize(n);
      for (size_t k = 0; ok && k < n; k++) {
        ok = read(PySequence_Fast_GET_ITEM(fast, static_cast<Py_ssize_t>(k)), &list[k]);
      }
    };
    if (kind == Kind::Tensors || kind == Kind::Indices) {
      each(tensors.emplace_back(), [&](PyObject* e, ttc_tensor* t) { return tensor(e, t); });
      args.push_back({.kind = TTC_ARG_TENSORS, .n = static_cast<uint32_t>(n), .tensor = tensors.back().data()});
    } else if (kind == Kind::Numbers) {
      each(scalars.emplace_back(), read_number);
      args.push_back({.kind = TTC_ARG_SCALARS, .n = static_cast<uint32_t>(n), .scalar = scalars.back().data()});
    } else {
      each(ints.emplace_back(), [](PyObject* e, int64_t* i) {
        *i = PyLong_AsLongLong(e);
        return PyErr_Occurred() == nullptr;
      });
      args.push_back({.kind = TTC_ARG_INTS, .n = static_cast<uint32_t>(n), .ints = ints.back().data()});
    }
    Py_DECREF(fast);
    return ok;
  }

  bool add(PyObject* o, Kind kind) {
    if (o == Py_None || kind == Kind::Skip || kind == Kind::Generator) {
      args.push_back({.kind = TTC_ARG_NONE, .n = 0, .i = 0});
      return true;
    }
    switch (kind) {
      case Kind::Tensors:
      case Kind::Indices:
      case Kind::Numbers:
      case Kind::Ints:
      case Kind::Bools:
        return PyLong_Check(o) ? (ints.push_back({PyLong_AsLongLong(o)}),
                                  args.push_back({.kind = TTC_ARG_INTS, .n = 1, .ints = ints.back().data()}), true)
                               : add_list(o, kind);
      case Kind::Tensor:
        if (PyLong_CheckExact(o)) {
          tensors.emplace_back(1);
          args.push_back({.kind = TTC_ARG_TENSOR, .n = 1, .tensor = tensors.back().data()});
          return tensor(o, tensors.back().data());
        }
        [[fallthrough]];
      case Kind::Number:
        scalars.emplace_back(1);
        args.push_back({.kind = TTC_ARG_SCALAR, .n = 1, .scalar = scalars.back().data()});
        return read_number(o, scalars.back().data());
      case Kind::String: {
        Py_ssize_t n = 0;
        const char* s = PyUnicode_AsUTF8AndSize(o, &n);
        args.push_back({.kind = TTC_ARG_STRING, .n = static_cast<uint32_t>(n), .str = s});
        return s != nullptr;
      }
      default:
        args.push_back({.kind = static_cast<uint8_t>(kind == Kind::Bool    ? TTC_ARG_BOOL
                                                     : kind == Kind::Dtype ? TTC_ARG_DTYPE
                                                                           : TTC_ARG_INT),
                        .n = 0,
                        .i = PyLong_AsLongLong(o)});
        return PyErr_Occurred() == nullptr;
    }
  }
};

// -------------------------------------------------------------------------------------------------- asking for a trace

PyObject* decomposer = nullptr;  // guarded by the GIL

PyObject* describe_tensor(const at::Tensor& t) {
  if (!t.defined()) {
    return Py_NewRef(Py_None);
  }
  PyObject* sizes = PyTuple_New(t.dim());
  for (int64_t k = 0; k < t.dim(); k++) {
    PyTuple_SET_ITEM(sizes, k, PyLong_FromLongLong(t.size(k)));
  }
  return Py_BuildValue("(iN)", static_cast<int>(to_ttc(t.scalar_type())), sizes);
}

PyObject* number_to_python(const ttc_scalar& s) {
  switch (s.kind) {
    case TTC_SCALAR_FLOAT:
      return PyFloat_FromDouble(s.re);
    case TTC_SCALAR_COMPLEX:
      return PyComplex_FromDoubles(s.re, s.im);
    case TTC_SCALAR_BOOL:
      return PyBool_FromLong(static_cast<long>(s.i));
    default:
      return PyLong_FromLongLong(s.i);
  }
}

// A tensor becomes (dtype, sizes), a dtype ("dtype", number); lists are lists; what a graph does not see is None.
PyObject* to_python(const c10::IValue& v, Kind kind) {
  if (v.isNone() || kind == Kind::Skip || kind == Kind::Generator) {
    return Py_NewRef(Py_None);
  }
  if (v.isTensor()) {
    const at::Tensor& t = v.toTensor();
    bool wrapped = t.defined() && t.device().type() != kType && t.unsafeGetTensorImpl()->is_wrapped_number();
    return wrapped ? number_to_python(number_of_tensor(t)) : describe_tensor(t);
  }
  if (v.isList()) {
    auto list = v.toListRef();
    PyObject* out = PyList_New(static_cast<Py_ssize_t>(list.size()));
    for (size_t k = 0; k < list.size(); k++) {
      PyList_SET_ITEM(out, static_cast<Py_ssize_t>(k), to_python(list[k], Kind::Number));
    }
    return out;
  }
  if (kind == Kind::Dtype) {
    return Py_BuildValue("(si)", "dtype", static_cast<int>(to_ttc(static_cast<at::ScalarType>(v.toInt()))));
  }
  if (v.isString()) {
    return PyUnicode_FromString(v.toStringRef().c_str());
  }
  return number_to_python(number(v));
}

// What a finished graph gives, in the order of its outputs, and how many random numbers it takes.
struct Finished {
  std::vector<ttc_spec> specs;
  uint64_t nrandom = 0;
};
std::mutex finished_mutex;
std::map<int64_t, Finished> finished;

}  // namespace

std::vector<ttc_spec> results_of_graph(int64_t op, uint64_t* nrandom) {
  std::lock_guard<std::mutex> lock(finished_mutex);
  auto it = finished.find(op);
  TORCH_CHECK(it != finished.end(), "there is no graph ", op);
  *nrandom = it->second.nrandom;
  return it->second.specs;
}

int64_t decompose(const c10::OperatorHandle& handle, const Overload& o, c10::ArrayRef<c10::IValue> args, uint64_t* baked) {
  if (Py_IsInitialized() == 0) {
    return -1;
  }
  PyGILState_STATE gil = PyGILState_Ensure();
  int64_t graph = -2;
  if (decomposer != nullptr) {
    PyObject* list = PyList_New(static_cast<Py_ssize_t>(args.size()));
    for (size_t i = 0; i < args.size(); i++) {
      PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), to_python(args[i], o.kinds[i]));
    }
    const auto& s = handle.schema();
    PyObject* got = PyObject_CallFunction(decomposer, "ssNK", s.name().c_str() + 6, s.overload_name().c_str(), list,
                                          static_cast<unsigned long long>(*baked));
    long long id = -1;
    unsigned long long mask = *baked;
    graph = got != nullptr && PyArg_ParseTuple(got, "LK", &id, &mask) ? id : -1;
    *baked = mask;
    Py_XDECREF(got);
    PyErr_Clear();
  }
  PyGILState_Release(gil);
  return graph;
}

PyObject* py_set_decomposer(PyObject*, PyObject* fn) {
  Py_XSETREF(decomposer, Py_NewRef(fn));
  Py_RETURN_NONE;
}

PyObject* py_graph_new(PyObject*, PyObject* name) {
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) {
    return nullptr;
  }
  auto* g = new Building;
  g->graph = ttc_graph_new(text);
  if (g->graph == nullptr) {
    delete g;
    return PyErr_NoMemory();
  }
  return PyCapsule_New(g, kCapsule, destroy);
}

PyObject* py_graph_input(PyObject*, PyObject* args) {
  PyObject *capsule = nullptr, *spec = nullptr;
  unsigned arg = 0, k = 0;
  ttc_spec s;
  Building* g = nullptr;
  if (!PyArg_ParseTuple(args, "OIIO", &capsule, &arg, &k, &spec) || (g = building(capsule)) == nullptr || !read_spec(spec, &s)) {
    return nullptr;
  }
  int32_t id = ttc_graph_input_of(g->graph, arg, k);
  if (id < 0) {
    return PyErr_NoMemory();
  }
  g->values.push_back(s);
  return PyLong_FromLong(id);
}

namespace {
// A row of no ATen op's (control.c) takes graphs and other ints, and values.
std::vector<Kind> kinds_of_row(const std::optional<c10::OperatorHandle>& handle, const ttc_op_info& info) {
  if (!handle) {
    return {Kind::Ints, Kind::Tensors};
  }
  std::vector<Kind> kinds;
  for (const auto& formal : handle->schema().arguments()) {
    Kind kind = kind_of(*formal.real_type());
    kinds.push_back(kind == Kind::Int && (info.flags & TTC_OP_OPEN_INTS) != 0 ? Kind::Number : kind);
  }
  return kinds;
}
}  // namespace

/* A call that is not run. */
static ttc_call call_of(uint32_t op, const std::vector<ttc_arg>& args) {
  ttc_call call = {};
  call.op = op;
  call.narg = static_cast<uint32_t>(args.size());
  call.args = args.data();
  return call;
}

PyObject* py_graph_node(PyObject*, PyObject* args) {
  PyObject *capsule = nullptr, *values = nullptr, *results = nullptr;
  const char* name = nullptr;
  Building* g = nullptr;
  if (!PyArg_ParseTuple(args, "OsO!O!", &capsule, &name, &PyList_Type, &values, &PyList_Type, &results) ||
      (g = building(capsule)) == nullptr) {
    return nullptr;
  }
  std::string full = name;  // "add.Tensor" is ATen's; others are named with their namespace
  auto space = full.find("::"), dot = full.find('.');
  auto handle = c10::Dispatcher::singleton().findSchema({(space == std::string::npos ? "aten::" : "") + full.substr(0, dot),
                                                         dot == std::string::npos ? std::string() : full.substr(dot + 1)});
  uint32_t op = ttc_op_find(space == std::string::npos ? name : name + space + 2);
  ttc_op_info info;
  if (op == UINT32_MAX || !ttc_op_get(op, &info) || (!handle && strcmp(info.family, "control") != 0)) {
    return PyErr_Format(PyExc_NotImplementedError, "there is no row %s", name);
  }
  std::vector<Kind> kinds = kinds_of_row(handle, info);
  Node node{*g, {}, {}, {}, {}};
  for (size_t i = 0; i < kinds.size() && i < static_cast<size_t>(PyList_GET_SIZE(values)); i++) {
    if (!node.add(PyList_GET_ITEM(values, static_cast<Py_ssize_t>(i)), kinds[i])) {
      return nullptr;
    }
  }
  std::vector<ttc_spec> specs(static_cast<size_t>(PyList_GET_SIZE(results)));
  for (size_t k = 0; k < specs.size(); k++) {
    if (!read_spec(PyList_GET_ITEM(results, static_cast<Py_ssize_t>(k)), &specs[k])) {
      return nullptr;
    }
  }
  std::vector<int32_t> ids(specs.size());
  ttc_call call = call_of(op, node.args);
  ttc_error err;
  if (ttc_graph_node(g->graph, &call, static_cast<uint32_t>(specs.size()), specs.data(), ids.data(), &err) != TTC_OK) {
    return raise_python(err);
  }
  g->values.insert(g->values.end(), specs.begin(), specs.end());
  PyObject* out = PyList_New(0);
  for (int32_t id : ids) {
    PyObject* o = PyLong_FromLong(id);
    PyList_Append(out, o);
    Py_DECREF(o);
  }
  return out;
}

PyObject* py_graph_finish(PyObject*, PyObject* args) {
  PyObject *capsule = nullptr, *results = nullptr, *strides = Py_None;
  Building* g = nullptr;
  if (!PyArg_ParseTuple(args, "OO!|O", &capsule, &PyList_Type, &results, &strides) || (g = building(capsule)) == nullptr) {
    return nullptr;
  }
  std::vector<int32_t> ids;
  std::vector<ttc_spec> specs;
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(results); k++) {
    long id = PyLong_AsLong(PyList_GET_ITEM(results, k));
    if (id < 0 || id >= static_cast<long>(g->values.size())) {
      return PyErr_Format(PyExc_ValueError, "%ld is no value of this graph", id);
    }
    ids.push_back(static_cast<int32_t>(id));
    specs.push_back(g->values[static_cast<size_t>(id)]);
    if (strides != Py_None && !read_strides(PySequence_GetItem(strides, k), &specs.back())) {
      return nullptr;
    }
  }
  uint32_t op = 0;
  ttc_error err;
  uint64_t nrandom = ttc_graph_random(g->graph);
  if (ttc_graph_finish(g->graph, static_cast<uint32_t>(ids.size()), ids.data(), &op, &err) != TTC_OK) {
    return raise_python(err);
  }
  g->graph = nullptr;  // the core's now
  std::lock_guard<std::mutex> lock(finished_mutex);
  finished[op] = {std::move(specs), nrandom};
  return PyLong_FromUnsignedLong(op);
}

// ------------------------------------------------------------------------------------------------------------ modules

namespace {

bool read_specs(PyObject* list, std::vector<ttc_spec>* specs) {
  specs->resize(static_cast<size_t>(PyList_GET_SIZE(list)));
  for (size_t k = 0; k < specs->size(); k++) {
    PyObject* o = PyList_GET_ITEM(list, static_cast<Py_ssize_t>(k));
    PyObject* strides = PyTuple_Check(o) && PyTuple_GET_SIZE(o) == 3 ? PyTuple_GET_ITEM(o, 2) : Py_None;
    PyObject* plain = PySequence_GetSlice(o, 0, 2);
    bool ok = plain != nullptr && read_spec(plain, &(*specs)[k]) && read_strides(Py_NewRef(strides), &(*specs)[k]);
    Py_XDECREF(plain);
    if (!ok) {
      return false;
    }
  }
  return true;
}

bool read_writes(PyObject* list, size_t n, std::vector<int32_t>* writes) {
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(list); k++) {
    writes->push_back(static_cast<int32_t>(PyLong_AsLong(PyList_GET_ITEM(list, k))));
  }
  if (PyErr_Occurred() == nullptr && writes->size() != n) {
    PyErr_Format(PyExc_ValueError, "expected what each of %zu results is written into, got %zu", n, writes->size());
  }
  return PyErr_Occurred() == nullptr;
}

}  // namespace

PyObject* py_graph_export(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  unsigned op = 0;
  PyObject *given = nullptr, *into = nullptr;
  int for_tpu = 0;
  std::vector<ttc_spec> ins, outs;
  std::vector<int32_t> writes;
  if (!PyArg_ParseTuple(args, "IO!O!p", &op, &PyList_Type, &given, &PyList_Type, &into, &for_tpu) || !read_specs(given, &ins)) {
    return nullptr;
  }
  uint64_t nrandom = 0;
  outs = results_of_graph(op, &nrandom);
  if (nrandom != 0) {
    PyErr_SetString(PyExc_NotImplementedError, "a graph that draws random numbers does not stand alone");
    return nullptr;
  }
  if (!read_writes(into, outs.size(), &writes)) {
    return nullptr;
  }
  std::vector<ttc_tensor> tensors;
  std::vector<ttc_arg> arguments;
  tensors.reserve(ins.size());
  for (const ttc_spec& s : ins) {
    tensors.push_back({nullptr, s.sizes, s.strides, 0, -2, static_cast<uint8_t>(s.dtype), static_cast<uint8_t>(s.ndim)});
    arguments.push_back(argument(&tensors.back()));
  }
  ttc_call call = call_of(op, arguments);
  ttc_error err;
  char* text = nullptr;
  if (ttc_call_export(&call, static_cast<uint32_t>(outs.size()), outs.data(), writes.data(), for_tpu, &text, &err) != TTC_OK) {
    return raise_python(err);
  }
  PyObject* out = PyUnicode_FromString(text);
  ttc_text_free(text);
  return out;
  END_HANDLE_TH_ERRORS
}

PyObject* py_module_load(PyObject*, PyObject* args) {
  const char *name = nullptr, *text = nullptr;
  Py_ssize_t nbyte = 0;
  PyObject *given = nullptr, *results = nullptr, *into = nullptr;
  std::vector<ttc_spec> ins, outs;
  std::vector<int32_t> writes;
  if (!PyArg_ParseTuple(args, "sy#O!O!O!", &name, &text, &nbyte, &PyList_Type, &given, &PyList_Type, &results, &PyList_Type,
                        &into) ||
      !read_specs(given, &ins) || !read_specs(results, &outs) || !read_writes(into, outs.size(), &writes)) {
    return nullptr;
  }
  uint32_t op = 0;
  ttc_error err;
  if (ttc_module_load(name, text, static_cast<size_t>(nbyte), static_cast<uint32_t>(ins.size()), ins.data(),
                      static_cast<uint32_t>(outs.size()), outs.data(), writes.data(), &op, &err) != TTC_OK) {
    return raise_python(err);
  }
  std::lock_guard<std::mutex> lock(finished_mutex);
  finished[op].specs = std::move(outs);
  return PyLong_FromUnsignedLong(op);
}

}  // namespace tpu
