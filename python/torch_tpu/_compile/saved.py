"""What PyTorch's AOTAutograd cache keeps of a compiled graph: the graph itself.

With it a later process skips AOTAutograd, the decompositions and the partitioner. Programs are made of the graph anew, and their
executables come from the core's own cache. Kept are the nodes with what is known of their values, as plain data: fake tensors and
symbols are made again in an environment of their own, so that loading a graph adds nothing to the guards of the one that is traced.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import pathlib
import pickle
import unittest.mock
from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
import torch._functorch.config
import torch._inductor.codecache
from torch import fx
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy.symbol import SymT, symbol_is_type

import torch_tpu

_META = ("val", "stack_trace")  # of a node, what is kept


@functools.cache
def version() -> str:
    """Digest of what a graph may depend on beside PyTorch and its own trace: this package."""
    root = pathlib.Path(torch_tpu.__file__).parent
    digest = hashlib.sha256(torch_tpu.__version__.encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    for path in sorted((root / "lib").glob("*.so")):
        stat = path.stat()
        digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()


class Place(int):
    """Where the value of a node is found: the node's place in its graph."""


def fill(a: Any, values: Sequence[Any]) -> Any:
    """Arguments with the values that their places stand for."""
    if isinstance(a, Place):
        return values[a]
    if isinstance(a, list | tuple):
        return type(a)(fill(e, values) for e in a)
    if isinstance(a, dict):
        return {k: fill(v, values) for k, v in a.items()}
    return a


def _operator(name: str, overload: str) -> Any:
    namespace, base = name.split("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def _higher_order(name: str) -> Any:
    return getattr(torch.ops.higher_order, name)


_SYMBOLIC = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}


class _Pickler(pickle.Pickler):
    def reducer_override(self, o: Any) -> Any:
        if isinstance(o, torch._ops.OpOverload):
            return _operator, (o._schema.name, o._schema.overload_name)
        if isinstance(o, torch._ops.HigherOrderOperator):
            return _higher_order, (o.name(),)
        if isinstance(o, fx.GraphModule):  # a higher order op's function
            return loads, (dumps(o),)
        return NotImplemented

    def persistent_id(self, o: Any) -> Any:
        if isinstance(o, FakeTensor):
            if o.layout != torch.strided:
                raise pickle.PicklingError(f"a value of layout {o.layout}")
            return "tensor", o.dtype, str(o.device), tuple(o.shape), o.stride(), o.requires_grad
        if isinstance(o, torch.SymInt | torch.SymFloat | torch.SymBool):
            env, expr = o.node.shape_env, o.node.expr
            if any(s not in env.backed_var_to_val for s in expr.free_symbols):
                raise pickle.PicklingError(f"{o}, which depends on data")
            symbols = sorted(expr.free_symbols, key=str)
            known = [(s, int(env.backed_var_to_val[s]), env.var_to_range[s]) for s in symbols]
            return "symbol", o.node.pytype, expr, o.node.hint, known
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        self.made: dict[Any, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        kind, *what = pid
        if kind == "symbol":
            pytype, expr, hint, known = what
            for symbol, value, span in known:
                if symbol not in self.env.var_to_range:
                    self.env.var_to_range[symbol] = span
                    self.env.add_backed_var_to_val(symbol, value)
            return _SYMBOLIC[pytype](SymNode(expr, self.env, pytype, hint))
        dtype, device, sizes, strides, grad = what
        if not all(type(n) is int for n in (*sizes, *strides)):
            with self.mode:
                return torch.empty_strided(sizes, strides, dtype=dtype, device=device, requires_grad=grad)
        key = tuple(what)
        val = self.made.get(key)
        if val is None:  # nodes of one type share one; made without the mode, which takes five times as long
            inner = torch.empty_strided(sizes, strides, dtype=dtype, device="meta", requires_grad=grad)
            val = self.made[key] = FakeTensor(self.mode, inner, torch.device(device))
        return val


def dumps(module: fx.GraphModule) -> bytes:
    """The graph and its constants as bytes.

    Raises:
        pickle.PicklingError, TypeError, AttributeError: if it holds what has no place in a file.
    """
    place = {n: Place(i) for i, n in enumerate(module.graph.nodes)}
    nodes = []
    for n in place:
        args, kwargs = (fx.node.map_arg(a, place.__getitem__) for a in (n.args, n.kwargs))
        nodes.append((n.op, n.name, n.target, args, kwargs, {k: n.meta[k] for k in _META if k in n.meta}))
    constants = {}
    for n in place:
        if n.op == "get_attr":
            constants[n.target] = getattr(module, str(n.target))
            if not isinstance(constants[n.target], torch.Tensor | fx.GraphModule):
                raise pickle.PicklingError(f"{n.target} is a {type(constants[n.target]).__name__}")
    file = io.BytesIO()
    with _disable_current_modes():
        _Pickler(file).dump((constants, nodes))
    return file.getvalue()


def loads(data: bytes) -> fx.GraphModule:
    """The graph that :func:`dumps` was given."""
    with _disable_current_modes():
        constants, nodes = _Unpickler(io.BytesIO(data)).load()
        graph, made = fx.Graph(), list[fx.Node]()
        for op, name, target, args, kwargs, meta in nodes:
            node = graph.create_node(op, target, fill(args, made), fill(kwargs, made), name)
            node.meta = meta
            made.append(node)
        return fx._lazy_graph_module._make_graph_module(constants, graph, class_name="Saved")


def _floats() -> list[str]:
    """What the present trace has found out of the values of floats, its inputs."""
    context = torch._guards.TracingContext.try_get()
    env = context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None
    if env is None:
        return []
    met = [g.expr for g in env.guards] + [sympy.Eq(k, v, evaluate=False) for k, v in env.replacements.items()]
    return sorted(str(e) for e in met if any(symbol_is_type(s, SymT.FLOAT) for s in e.free_symbols))


_assumed: list[str] = []


def mark(module: fx.GraphModule, options: dict[str, Any]) -> None:
    """Have AOTAutograd's cache take ``module`` for what it is: this backend's, this build's, traced under these options and for
    these values of floats, which its key leaves out."""
    _assumed[:] = _floats()
    module._torch_tpu = version(), sorted(options.items()), list(_assumed)  # type: ignore[assignment]


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """While AOTAutograd works for us: its cache keeps our graphs, forward and backward in one entry.

    The key would also name Inductor's backends for other devices, which takes half a second of importing them, and hash PyTorch's
    own source, which takes a fifth; a release is known by its commit.
    """
    commit = torch.version.git_version
    release = f"{torch.__version__} {commit}".encode()
    with (
        torch._functorch.config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True, donated_buffer=False),
        unittest.mock.patch.multiple(
            torch._inductor.codecache,
            init_backend_registration=lambda: None,
            torch_key=(lambda: release) if commit and commit != "Unknown" else torch._inductor.codecache.torch_key,
            custom_backend_passes={},
            custom_backend_codegen_configs={},
        ),
    ):
        yield


_loaded: list[Saved] = []


def loaded() -> list[Any]:
    """The graphs that the cache gave since this was asked last."""
    found = list(_loaded)
    _loaded.clear()
    return found


class Saved(OutputCode):
    """A compiled graph that AOTAutograd's cache can keep.

    Attributes:
        plain: whether AOTAutograd's wrapper does nothing for it.
        _made_of: its arguments, one of them the graph.
    """

    plain = False
    _made_of: tuple[Any, ...]

    def prepare_for_serialization(self) -> None:
        if _floats() != _assumed:
            # With an entry the cache keeps what was assumed of sizes, but not this.
            raise BypassAOTAutogradCache("the trace depends on the value of a float")
        graph = next(a for a in self._made_of if isinstance(a, fx.GraphModule))
        if any(n.target is torch.ops.higher_order.with_effects for n in graph.graph.nodes):
            # The tokens that such a graph takes are added by a wrapper which PyTorch leaves out where an entry is loaded.
            raise BypassAOTAutogradCache("the graph has effects")
        rest = [None if a is graph else a for a in self._made_of]
        try:
            data = dumps(graph)
        except (pickle.PicklingError, TypeError, AttributeError) as e:
            raise BypassAOTAutogradCache(f"the graph cannot be kept: {e}") from e
        self.__dict__ = {"_saved": (version(), rest, data, self.plain), "_time_taken_ns": 0}

    def post_compile(self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any) -> None:
        saved = self.__dict__.pop("_saved", None)
        if saved is None:
            return
        made_by, rest, graph, plain = saved
        if made_by != version():
            raise RuntimeError("this compiled graph was saved by another build of torch_tpu")
        self.__init__(*(loads(graph) if a is None else a for a in rest))  # type: ignore[misc]
        self.plain = plain
        _loaded.append(self)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Nothing of Triton's is here."""
