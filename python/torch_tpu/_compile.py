"""``torch.compile(backend="tpu")``: FX graphs become graphs of the core's, run as one program each.

AOTAutograd gives a functional graph of ATen ops whose mutations of inputs are ``copy_`` nodes at its end. The graph is cut into
stages that take turns: ops on the device that have a row (or a decomposition into some) form programs; everything else, such as
arithmetic on an optimizer's ``step`` on the CPU or an op without a lowering, is called as eager mode would. Most graphs are one
program. A graph with symbolic sizes has one for each set of sizes it meets.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torch_tpu import _decompose
from torch_tpu._decompose import GraphBuilder, Untraceable

_C: Any = sys.modules["torch_tpu._C"]


def _kind_of_dtype(dtype: torch.dtype) -> int:
    """The core's kind of a number: 0 bool, 1 int, 2 float, 3 complex."""
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype == torch.bool else 1


def _on_tpu(val: Any) -> bool:
    return isinstance(val, torch.Tensor) and val.device.type == "tpu"


def _all_on_tpu(val: Any) -> bool:
    """A result, or every one of several, is a dense tensor on the device."""
    vals = val if isinstance(val, list | tuple) else [val]
    return (
        bool(vals)
        and all(v is None or (_on_tpu(v) and v.layout == torch.strided) for v in vals)
        and any(v is not None for v in vals)
    )


@functools.cache
def _usable() -> set[str]:
    """Ops that may stand in a program: those with a row, but for random numbers (1) and sizes that depend on data (8)."""
    rows = {row["name"] for row in _C.ops() if not row["flags"] & (1 | 8)}
    return rows | set(_decompose._SAME) | set(_decompose._UNDEFINED)


def _writes(node: fx.Node) -> bool:
    """Whether the node gives an input its new contents."""
    return node.target is torch.ops.aten.copy_.default


def _in_program(node: fx.Node) -> bool:
    """Whether the node can be part of a program."""
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and _in_program(source)
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    val = node.meta.get("val")
    if not _all_on_tpu(val):
        return False
    for n in node.all_input_nodes:
        v = n.meta.get("val")
        if isinstance(v, torch.Tensor) and not _on_tpu(v) and v.dim() != 0:
            return False
    if _writes(node):
        return isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder"
    if node.target.namespace != "aten" or node.target._schema.is_mutable:
        return False
    return _decompose.row_name(node.target) in _usable()


def _stages(graph: fx.Graph) -> dict[fx.Node, int]:
    """The stage of each node: odd ones are programs, even ones run op by op.

    A stage reads earlier ones only. Inputs are written in the last stage there is when they are: others may hold views of them.
    """
    stage: dict[fx.Node, int] = {}
    last = 0
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        inside = _in_program(node)
        at = 1 if inside else 0
        for n in node.all_input_nodes:
            at = max(at, stage.get(n, 0))
        if _writes(node):
            at = max(at, last)
        at += (at % 2 == 1) != inside
        stage[node] = at
        last = max(last, at)
    return stage


class _Sizes:
    """What the symbols of a graph's shapes stand for, call by call."""

    def __init__(self, placeholders: Sequence[fx.Node]) -> None:
        self.where: dict[Any, tuple[int, int]] = {}  # symbol -> input, axis (-1: the input is the number)
        for i, n in enumerate(placeholders):
            val = n.meta.get("val")
            if isinstance(val, torch.SymInt):
                self._note(val, i, -1)
            elif isinstance(val, torch.Tensor):
                for axis, size in enumerate(val.shape):
                    self._note(size, i, axis)

    def _note(self, size: Any, i: int, axis: int) -> None:
        if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
            self.where.setdefault(size.node.expr, (i, axis))

    def values(self, args: Sequence[Any]) -> tuple[int, ...]:
        """The symbols' values in a call with these inputs, in a fixed order."""
        return tuple(int(args[i]) if axis < 0 else args[i].shape[axis] for i, axis in self.where.values())

    def resolve(self, size: Any, values: tuple[int, ...]) -> int:
        """A size as a number.

        Raises:
            Untraceable: if it depends on data.
        """
        if not isinstance(size, torch.SymInt):
            return int(size)
        found = size.node.expr.subs(dict(zip(self.where, values, strict=True)))
        if not found.is_number:
            raise Untraceable(f"the size {size} depends on data")
        return int(found)


class _Program:
    """One program of a compiled graph, made once for each set of sizes it meets.

    Args:
        nodes: what it computes, in order.
        escapes: those of them that are read outside.
        slot: each node's place in a call's environment.
    """

    def __init__(self, name: str, nodes: list[fx.Node], escapes: set[fx.Node], slot: dict[fx.Node, int], sizes: _Sizes) -> None:
        self.name, self.nodes, self.sizes, self.slot = name, nodes, sizes, slot
        inside = set(nodes)
        reads = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside)
        self.tensors = [n for n in reads if isinstance(n.meta.get("val"), torch.Tensor)]
        self.floats = [n for n in reads if isinstance(n.meta.get("val"), torch.SymFloat)]
        self.ints = [n for n in reads if isinstance(n.meta.get("val"), torch.SymInt | int | bool | torch.SymBool)]
        self.fresh = [n for n in nodes if n in escapes and not _writes(n) and not isinstance(n.meta["val"], list | tuple)]
        self.written = [n for n in nodes if _writes(n)]
        self.into = [self.tensors.index(n.args[0]) for n in self.written]  # type: ignore[arg-type]
        self.into += [-1] * len(self.fresh) if self.written else []
        self.inputs = [slot[n] for n in self.tensors]
        self.numbers = [slot[n] for n in self.floats]
        self.fills = [slot[n] for n in self.fresh]
        self.ops: dict[tuple[int, ...], int] = {}

    def build(self, values: tuple[int, ...]) -> int:
        """The op id of the program for these sizes.

        Raises:
            Untraceable, NotImplementedError: if it cannot be one.
        """
        resolve = self.sizes.resolve
        builder = GraphBuilder(self.name, lambda size: resolve(size, values))
        for i, n in enumerate(self.tensors):
            val = n.meta["val"]
            if _on_tpu(val):
                builder.input(n, i, 0, val)
            else:
                builder.number(n, i, _kind_of_dtype(val.dtype))
        for i, n in enumerate(self.floats):
            builder.number(n, len(self.tensors) + i, 2)
        for n in self.ints:
            builder.values[n] = resolve(n.meta["val"], values)
        for node in self.nodes:
            if not _writes(node):
                builder.call(node)
        results = [builder.written(n.args[1], n.args[0]) for n in self.written]  # type: ignore[arg-type]
        results += [builder.values[n] for n in self.fresh]
        strides = [self._strides(n, values) for n in self.fresh]
        return builder.finish_values(results, [None] * len(self.written) + strides)

    def _strides(self, node: fx.Node, values: tuple[int, ...]) -> list[int] | None:
        val = node.meta["val"]
        dense = torch._prims_common.is_non_overlapping_and_dense_or_false(val)
        return [self.sizes.resolve(s, values) for s in val.stride()] if dense else None

    def __call__(self, env: list[Any], values: tuple[int, ...]) -> None:
        op = self.ops.get(values)
        if op is None:
            op = self.ops[values] = self.build(values)
        out = torch.ops.tpu.run_graph(op, [env[i] for i in self.inputs], [float(env[i]) for i in self.numbers], self.into)
        for i, t in zip(self.fills, out, strict=True):
            env[i] = t


class _Stage:
    """A program, or where it cannot be one its ops one by one."""

    def __init__(self, program: _Program, calls: list[_Call]) -> None:
        self.program: _Program | None = program
        self.calls = calls

    def __call__(self, env: list[Any], values: tuple[int, ...]) -> None:
        if self.program is not None:
            try:
                self.program(env, values)
                return
            except (Untraceable, NotImplementedError) as e:
                refused[self.program.name] = e
                self.program = None
        for call in self.calls:
            call(env, values)


refused: dict[str, Exception] = {}
"""Why a stage is not run as a program, for bug reports."""


class _Call:
    """One op called as in eager mode."""

    def __init__(self, node: fx.Node, slot: dict[fx.Node, int]) -> None:
        self.target: Any = node.target
        self.out = slot[node]
        self.args = fx.node.map_arg(node.args, lambda n: _Slot(slot[n]))
        self.kwargs = fx.node.map_arg(node.kwargs, lambda n: _Slot(slot[n]))

    def __call__(self, env: list[Any], values: tuple[int, ...]) -> None:
        got = self.target(*_fill(self.args, env), **_fill(self.kwargs, env))
        if isinstance(got, tuple) and any(v is None for v in got):  # fused attention's seeds, which nobody reads
            got = tuple(torch.empty(0, device="tpu") if v is None else v for v in got)
        env[self.out] = got


class _Slot(int):
    """Place of a value in a call's environment."""


def _fill(a: Any, env: list[Any]) -> Any:
    if isinstance(a, _Slot):
        return env[a]
    if isinstance(a, list | tuple):
        return type(a)(_fill(e, env) for e in a)
    if isinstance(a, dict):
        return {k: _fill(v, env) for k, v in a.items()}
    return a


class Compiled:
    """A compiled graph: called with its inputs in a list, which it empties, it returns its outputs."""

    def __init__(self, name: str, module: fx.GraphModule) -> None:
        self._boxed_call = True  # an attribute of the instance, for wrappers copy those
        nodes = list(module.graph.nodes)
        slot = {n: i for i, n in enumerate(nodes)}
        placeholders = [n for n in nodes if n.op == "placeholder"]
        # What follows the inputs in a call's environment at its start: the graph's constants in their places.
        self.rest = [getattr(module, str(n.target)) if n.op == "get_attr" else None for n in nodes[len(placeholders) :]]
        self.sizes = _Sizes(placeholders)
        self.steps: list[Callable[[list[Any], tuple[int, ...]], None]] = []
        stage = _stages(module.graph)
        for at in range(max(stage.values(), default=-1) + 1):
            here = [n for n in nodes if stage.get(n) == at]
            calls = [_Call(n, slot) for n in here]
            if at % 2 == 0:
                self.steps += calls
            elif here:
                inside = set(here)
                escapes = {n for n in here if any(u not in inside for u in n.users)}
                self.steps.append(_Stage(_Program(f"{name}_{at}", here, escapes, slot, self.sizes), calls))
        self.outputs = fx.node.map_arg(list(nodes[-1].args[0]), lambda n: _Slot(slot[n]))

    def __call__(self, args: list[Any]) -> list[Any]:
        values = self.sizes.values(args)
        env = args + self.rest
        args.clear()
        for step in self.steps:
            step(env, values)
        return _fill(self.outputs, env)


def backend(module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The Dynamo backend ``tpu``."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    compiler = aot_autograd(
        fw_compiler=lambda m, i: Compiled("forward", m),
        bw_compiler=lambda m, i: Compiled("backward", m),
        inference_compiler=lambda m, i: Compiled("graph", m),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=_decompose.table(),
        keep_inference_input_mutations=True,
    )
    return compiler(module, list(example_inputs))
