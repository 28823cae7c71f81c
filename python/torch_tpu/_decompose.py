"""PyTorch's decomposition of an op that has no row, traced once per signature into one graph.

The adapter calls :func:`decompose` on the first call of a signature. The op is traced on fake ``tpu`` tensors with every op
that has no row decomposed in turn, and the trace becomes a graph of the core's, which is compiled as one program.
"""

from __future__ import annotations

import functools
import importlib
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward

_C: Any = sys.modules["torch_tpu._C"]

# By ttc_dtype's numbers.
DTYPES: tuple[torch.dtype | None, ...] = (
    None,
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
    torch.complex64,
    torch.complex128,
)
DTYPE_NUMBERS = {d: i for i, d in enumerate(DTYPES) if d is not None}

# The same values under another name: no node of its own.
_SAME = ("alias", "detach", "lift", "lift_fresh", "lift_fresh_copy")
# Undefined contents: zeros, which XLA folds away.
_UNDEFINED = ("empty.memory_format", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted")


def _late(module: str, name: str) -> Callable[[Any, Sequence[Any], Any], Any]:
    def lower(*args: Any) -> Any:
        return getattr(importlib.import_module(f"torch_tpu.{module}"), name)(*args)

    return lower


# Ops without a row of their name that a graph can hold: what makes their values, called with the builder, the node's arguments, all
# of them in their order, and its val.
special: dict[Any, Callable[[Any, Sequence[Any], Any], Any]] = {
    flex_attention: _late("_flex", "lower_forward"),
    flex_attention_backward: _late("_flex", "lower_backward"),
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default: _late("_attention", "lower_forward"),
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default: _late("_attention", "lower_backward"),
}

NONE, NEVER = -1, -2


class Untraceable(Exception):
    """What a trace holds has no place in a graph."""


def row_name(op: torch._ops.OpOverload) -> str:
    """The op's name in the core's table: ``add.Tensor``, ``cosh``."""
    schema = op._schema
    base = schema.name.removeprefix("aten::")
    return f"{base}.{schema.overload_name}" if schema.overload_name else base


def arguments(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """All arguments in schema order, defaults filled in."""
    out = []
    for i, a in enumerate(op._schema.arguments):
        if i < len(args):
            out.append(args[i])
        elif a.name in kwargs:
            out.append(kwargs[a.name])
        else:
            out.append(a.default_value)
    return out


def spec(t: Any, resolve: Callable[[Any], int] | None = None) -> tuple[int, tuple[int, ...]] | None:
    """(dtype's number, sizes) of a result; None for one that is absent.

    Args:
        resolve: makes a number of a size.

    Raises:
        Untraceable: if it is no tensor of static sizes and a type the core has.
    """
    if t is None:
        return None
    if not isinstance(t, torch.Tensor) or t.dtype not in DTYPE_NUMBERS or t.layout != torch.strided:
        raise Untraceable(f"a result is a {type(t).__name__}")
    sizes = tuple(t.shape) if resolve is None else tuple(resolve(n) for n in t.shape)
    if not all(isinstance(n, int) for n in sizes):
        raise Untraceable("a size depends on data")
    return DTYPE_NUMBERS[t.dtype], sizes


class GraphBuilder:
    """Turns a functional FX graph of ATen ops into a graph of the core's.

    Args:
        name: what the graph is called in messages and in its StableHLO.
        resolve: makes a number of a size that the FX graph has a symbol for.
    """

    def __init__(self, name: str, resolve: Callable[[Any], int] | None = None) -> None:
        self.graph = _C.graph_new(name)
        self.resolve = resolve
        self.values: dict[torch.fx.Node, Any] = {}

    def input(self, node: torch.fx.Node, arg: int, k: int, val: torch.Tensor) -> None:
        """``node`` is entry ``k`` of argument ``arg`` of the call."""
        self.values[node] = _C.graph_input(self.graph, arg, k, self.spec(val))

    def flat_input(self, arg: int, dtype: torch.dtype, n: int) -> int:
        """The value of argument ``arg`` of the call, a vector of n elements."""
        return _C.graph_input(self.graph, arg, 0, (DTYPE_NUMBERS[dtype], (n,)))

    def number(self, node: torch.fx.Node, arg: int, kind: int) -> None:
        """``node`` is a number given at run time as argument ``arg``; kind: 0 bool, 1 int, 2 float, 3 complex."""
        self.values[node] = ("num", arg, kind)

    def constant(self, node: torch.fx.Node, value: Any) -> None:
        """``node`` is a tensor known when tracing: a number, if it has no dimensions.

        Raises:
            Untraceable: for one with dimensions.
        """
        if not isinstance(value, torch.Tensor) or value.dim() != 0:
            raise Untraceable(f"a constant is {value}")
        out = self.node("full", [[], value.item()] + [None] * 4, [self.spec(value)])
        self.values[node] = out[0]

    def call(self, node: torch.fx.Node) -> None:
        """Append one call.

        Raises:
            Untraceable: if its op has no row, or writes an argument.
        """
        if node.target is operator.getitem:
            source, k = node.args
            value = self.values[source][k]  # type: ignore[index]
            if value is None and isinstance(node.meta.get("val"), torch.Tensor):  # a gradient that is none
                value = self.node("full", [[], 0] + [None] * 4, [self.spec(node.meta["val"])])[0]
            self.values[node] = value
            return
        op: Any = node.target
        if op in special:
            args = arguments(op, node.args, node.kwargs) if isinstance(op, torch._ops.OpOverload) else node.args
            self.values[node] = special[op](self, args, node.meta["val"])
            return
        if isinstance(op, torch._ops.HigherOrderOperator):
            from torch_tpu._compile import regions

            regions.call(self, node)
            return
        if not isinstance(op, torch._ops.OpOverload):
            raise Untraceable(f"{op} is no op")
        if op.namespace != "aten" or op._schema.is_mutable:
            raise Untraceable(f"{op} is no functional ATen op")
        name = row_name(op)
        given = arguments(op, node.args, node.kwargs)
        for i, formal in enumerate(op._schema.arguments):
            number = given[i]
            if isinstance(number, torch.fx.Node) and isinstance(number.meta.get("val"), torch.SymInt):
                number = self.values[number]
            if type(number) is int and isinstance(formal.real_type, torch.TensorType):
                given[i] = ("const", number, 0)  # a bare int would be a value's id
        given = [self._in_list(a) if isinstance(a, list | tuple) else a for a in given]
        args = torch.fx.node.map_arg(given, self.values.__getitem__)
        val = node.meta.get("val")
        if name in _SAME:
            self.values[node] = args[0]
        elif name in _UNDEFINED:
            self.values[node] = self.node("full", [[], 0] + [None] * 4, [self.spec(val)])[0]
        elif isinstance(val, list | tuple):
            made = self.node(name, args, [None if isinstance(v, int) else self.spec(v) for v in val])
            self.values[node] = [v if isinstance(v, int) else value for v, value in zip(val, made, strict=True)]
        else:
            self.values[node] = self.node(name, args, [self.spec(val)])[0]

    def finish(self, results: Sequence[Any]) -> int:
        """The op id that runs the graph.

        Args:
            results: FX nodes.
        """
        return self.finish_values([self.values[r] for r in results], [None] * len(results))

    def _in_list(self, entries: Sequence[Any]) -> Sequence[Any]:
        """A list of tensors holds values only: a number among them, a 0-d CPU tensor, becomes one."""
        for e in entries:
            if isinstance(e, torch.fx.Node) and isinstance(self.values[e], tuple) and isinstance(e.meta.get("val"), torch.Tensor):
                self.values[e] = self.node("full", [[], self.values[e]] + [None] * 4, [self.spec(e.meta["val"])])[0]
        return entries

    def written(self, source: torch.fx.Node, target: torch.fx.Node) -> Any:
        """``source`` as the new contents of ``target``: in its type and shape."""
        return self.node("copy", [self.values[target], self.values[source], False], [self.spec(target.meta["val"])])[0]

    def finish_values(self, results: Sequence[Any], strides: Sequence[Any]) -> int:
        """The op id that runs the graph and gives these values, with these strides (None: contiguous)."""
        return _C.graph_finish(self.graph, list(results), list(strides))

    def region(self, name: str, ints: list[int], values: list[int], results: Sequence[torch.Tensor]) -> list[int]:
        """Append a node of the family "control": finished graphs and other ints, and the values they are given."""
        return _C.graph_node(self.graph, name, [ints, values], [self.spec(t) for t in results])

    def size(self, n: Any) -> int:
        """A size as a number.

        Raises:
            Untraceable: if it depends on data.
        """
        return int(n) if self.resolve is None else self.resolve(n)

    def spec(self, t: Any) -> tuple[int, tuple[int, ...]] | None:
        """(dtype's number, sizes) of a result; None for one that is absent."""
        return spec(t, self.resolve)

    def value(self, a: Any) -> Any:
        """What a node's argument is in the graph: itself, but for nodes."""
        return torch.fx.node.map_arg(a, self.values.__getitem__)

    def node(self, name: str, args: list[Any], specs: list[Any]) -> list[int]:
        """Append a call of a row: the values of its results."""
        return _C.graph_node(self.graph, name, [_plain(a) for a in args], specs)


def _plain(a: Any) -> Any:
    if isinstance(a, torch.dtype):
        return DTYPE_NUMBERS[a]
    if isinstance(a, torch.layout | torch.device | torch.memory_format | torch.Generator):
        return None
    if isinstance(a, list | tuple) and not (isinstance(a, tuple) and a and a[0] in ("num", "const")):
        return [_plain(e) for e in a]
    return a


# ------------------------------------------------------------------------------------------------------------- tracing


def _composite(op: torch._ops.OpOverload) -> Callable[..., Any]:
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    return lambda *args, **kwargs: op._op_dk(key, *args, **kwargs)


def _decomposition(op: Any) -> Callable[..., Any] | None:
    """PyTorch's own decomposition or reference, ours for what it has none of, else the composite kernel."""
    from torch_tpu import _composites

    if not isinstance(op, torch._ops.OpOverload):
        return None
    found = torch._decomp.decomposition_table.get(op, _composites.table.get(op))
    if found is None and op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeExplicitAutograd):
        found = _composite(op)
    return found


class _Table(dict[Any, Any]):
    """Decompositions of the ops that have no row. PyTorch copies it when it traces, so what it holds is there from the start; only
    composite kernels, which are many, are found as ops are met."""

    def __init__(self, rows: set[str]) -> None:
        from torch_tpu import _composites

        super().__init__()
        self.rows = rows | set(_SAME) | set(_UNDEFINED)
        self.met: set[object] = set()
        for op in {**torch._decomp.decomposition_table, **_composites.table}:
            _ = op in self

    def __contains__(self, op: object) -> bool:
        if op not in self.met:
            self.met.add(op)
            known = isinstance(op, torch._ops.OpOverload) and op.namespace == "aten" and row_name(op) in self.rows
            found = None if known else _decomposition(op)
            if found is not None:
                self[op] = found
        return super().__contains__(op)


_table: _Table | None = None
_graphs: dict[str, tuple[int, int]] = {}


def new_table() -> _Table:
    """One of one's own, to add to."""
    return _Table({row["name"] for row in _C.ops()})


def table() -> _Table:
    """The decomposition table for tracing one op."""
    global _table
    if _table is None:
        _table = new_table()
    return _table


class FunctionalTable(Mapping[Any, Callable[..., Any]]):
    """Decompositions of the functional ops that have no row, ours first. They are gathered when they are asked for, as AOTAutograd
    does if its cache does not have a graph."""

    def _rows(self) -> dict[Any, Callable[..., Any]]:
        return _functional_rows(len(torch._decomp.decomposition_table))  # a library may have added some

    def __getitem__(self, op: Any) -> Callable[..., Any]:
        return self._rows()[op]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows())

    def __len__(self) -> int:
        return len(self._rows())


@functools.lru_cache(maxsize=1)
def _functional_rows(known: int) -> dict[Any, Callable[..., Any]]:
    from torch_tpu import _composites

    rows = table().rows
    implicit = torch._C.DispatchKey.CompositeImplicitAutograd

    def wanted(op: Any) -> bool:
        if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten" or row_name(op) in rows:
            return False
        views = any(r.alias_info is not None for r in op._schema.returns)
        if op._schema.is_mutable or views:
            return False
        try:
            return not op.has_kernel_for_dispatch_key(implicit)
        except RuntimeError:  # its library is gone
            return False

    return {op: f for op, f in (torch._decomp.decomposition_table | _composites.table).items() if wanted(op)}


def _split(
    args: list[Any], make: Callable[[int, tuple[int, ...]], torch.Tensor]
) -> tuple[list[Any], list[tuple[int, int]], list[Any]]:
    """Tensors of the call, (argument, entry) of each, and the arguments with each tensor replaced by its place in the list."""
    tensors: list[Any] = []
    where: list[tuple[int, int]] = []

    def one(a: Any, i: int, k: int) -> Any:
        if isinstance(a, tuple) and a[0] == "dtype":
            return DTYPES[a[1]]
        if isinstance(a, tuple):
            tensors.append(make(*a))
            where.append((i, k))
            return _Place(len(tensors) - 1)
        return a

    out = [[one(e, i, k) for k, e in enumerate(a)] if isinstance(a, list) else one(a, i, 0) for i, a in enumerate(args)]
    return tensors, where, out


class _Place(int):
    """Place of a tensor or an open number in the list of inputs."""


class _Open:
    """A float that is given at run time."""


def _symbol(env: Any, value: float, name: str) -> torch.SymFloat:
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = ConstantSource(name)
    symbol = env.create_unspecified_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    return env.create_symfloatnode(symbol, hint=value, source=source)


def _trace(op: torch._ops.OpOverload, args: list[Any], values: dict[int, float]) -> int:
    """Trace a functional op, itself decomposed whether it has a row or not.

    Args:
        values: the open arguments, with a number that each may have.

    Raises:
        Untraceable: also if the trace depends on an open number.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental import proxy_tensor
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    fn = _decomposition(op)
    assert fn is not None
    env = ShapeEnv() if values else None
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=env):
        inputs, where, places = _split(args, lambda d, sizes: torch.empty(sizes, dtype=DTYPES[d], device="tpu"))
        for i, value in values.items():
            inputs.append(_symbol(env, value, f"number{i}"))
            where.append((i, 0))
            places[i] = _Place(len(inputs) - 1)

        def run(*inputs: Any) -> list[Any]:
            def fill(a: Any) -> Any:
                return [fill(e) for e in a] if isinstance(a, list) else inputs[a] if isinstance(a, _Place) else a

            positional, named = [], {}
            for a, formal in zip(places, op._schema.arguments, strict=True):
                if formal.kwarg_only:
                    named[formal.name] = fill(a)
                else:
                    positional.append(fill(a))
            with proxy_tensor.decompose(table()):
                got = fn(*positional, **named)
            return list(got) if isinstance(got, list | tuple) else [got]

        module = proxy_tensor.make_fx(run)(*inputs)
        if any(isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable for n in module.graph.nodes):
            module = proxy_tensor.make_fx(torch.func.functionalize(module, remove="mutations_and_views"))(*inputs)
    if env is not None and env.guards:
        raise Untraceable(f"the trace depends on a number: {env.guards[0].expr}")
    module.graph.eliminate_dead_code()
    return _build(row_name(op), module, inputs, where)


def _build(name: str, module: torch.fx.GraphModule, inputs: list[Any], where: list[tuple[int, int]]) -> int:
    builder = GraphBuilder(name)
    place = 0
    for node in module.graph.nodes:
        if node.op == "placeholder":
            if isinstance(inputs[place], torch.SymFloat):
                builder.number(node, where[place][0], 2)
            else:
                builder.input(node, *where[place], inputs[place])
            place += 1
        elif node.op == "get_attr":
            builder.constant(node, getattr(module, str(node.target)))
        elif node.op == "call_function":
            builder.call(node)
        elif node.op == "output":
            return builder.finish(node.args[0])
    raise Untraceable("the trace has no output")


def decompose(name: str, overload: str, args: list[Any], baked: int) -> tuple[int, int]:
    """The graph of one signature of an op.

    Args:
        name: ``lerp``; overload: ``Scalar_out``, or empty.
        args: the call's arguments; a tensor as (dtype's number, sizes), a dtype as ("dtype", number).
        baked: bit i: the number of argument i is part of the signature; other floats are given at run time.

    Returns:
        The graph's op id, -1 if this signature cannot be traced or lowered, -2 if no signature of the op can; and ``baked``, with
        the arguments added whose numbers the trace has to know: the call's key must then hold them.
    """
    values = {i: a for i, a in enumerate(args) if type(a) is float and not baked >> i & 1}
    key = f"{name}.{overload}{[_Open if i in values else a for i, a in enumerate(args)]!r}"
    if key in _graphs:
        return _graphs[key]
    op = getattr(getattr(torch.ops.aten, name), overload or "default")
    functional = _functional(op)
    if functional is None or _decomposition(functional) is None:
        return NEVER, baked
    from torch.utils._python_dispatch import _disable_current_modes

    try:
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
            result = _trace(functional, args[: len(functional._schema.arguments)], values), baked
    except Exception as e:  # whatever tracing meets, the call can still run on the cpu
        if not values:
            failures[key] = e
        result = NONE, baked | sum(1 << i for i in values)
    _graphs[key] = result
    return result


failures: dict[str, Exception] = {}
"""Why a signature was not traced, for bug reports."""


def _functional(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload without out= or in-place writes that computes the same."""
    schema = op._schema
    if not schema.is_mutable:
        return op
    base, overload = schema.name.removeprefix("aten::"), schema.overload_name
    outs = any(a.kwarg_only and a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    if not outs and base.endswith("_"):
        base = base[:-1]
    packet = getattr(torch.ops.aten, base, None)
    if packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in schema.arguments if not (a.kwarg_only and a.alias_info is not None)]
    for candidate in packet.overloads():
        found = getattr(packet, candidate)
        if not found._schema.is_mutable and (
            candidate == (overload or "default") or [(a.name, str(a.type)) for a in found._schema.arguments] == wanted
        ):
            return found
    return None
