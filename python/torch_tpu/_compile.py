"""``torch.compile(backend="tpu")``: FX graphs become graphs of the core's, run as one program each.

AOTAutograd gives a functional graph of ATen ops whose mutations of inputs are ``copy_`` nodes at its end. The graph is cut into
stages that take turns: ops on the device that have a row (or a decomposition into some) form programs; everything else, such as
arithmetic on an optimizer's ``step`` on the CPU or an op without a lowering, is called as eager mode would. Most graphs are one program.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torch_tpu import _decompose
from torch_tpu._decompose import GraphBuilder, Untraceable

_C: Any = sys.modules["torch_tpu._C"]

_KINDS = {torch.SymFloat: 2, float: 2, torch.SymInt: 1, int: 1, torch.SymBool: 0, bool: 0}


def _kind_of_dtype(dtype: torch.dtype) -> int:
    """The core's kind of a number: 0 bool, 1 int, 2 float, 3 complex."""
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype == torch.bool else 1


def _on_tpu(val: Any) -> bool:
    return isinstance(val, torch.Tensor) and val.device.type == "tpu"


def _all_on_tpu(val: Any) -> bool:
    """A result, or every one of several, is a dense tensor on the device."""
    vals = val if isinstance(val, list | tuple) else [val]
    return bool(vals) and all(v is None or (_on_tpu(v) and v.layout == torch.strided) for v in vals) and any(v is not None for v in vals)


class _Rows:
    """Rows of the core's table and what is asked of them."""

    def __init__(self) -> None:
        # TTC_OP_RNG and TTC_OP_DATA_SIZE: no place inside a graph.
        self.usable = {row["name"] for row in _C.ops() if not row["flags"] & (1 | 8)}


_rows: _Rows | None = None


def _in_program(node: fx.Node) -> bool:
    """Whether the node can be part of a program."""
    global _rows
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
    if node.target is torch.ops.aten.copy_.default:
        return isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder"
    if node.target.namespace != "aten" or node.target._schema.is_mutable:
        return False
    if _rows is None:
        _rows = _Rows()
    name = _decompose.row_name(node.target)
    return name in _rows.usable or name in _decompose._SAME or name in _decompose._UNDEFINED


def _stages(graph: fx.Graph) -> dict[fx.Node, int]:
    """The stage of each node: odd ones are programs, even ones run op by op. A stage reads earlier ones only."""
    stage: dict[fx.Node, int] = {}
    readers: dict[fx.Node, int] = {}  # the last stage that reads a placeholder
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        inside = _in_program(node)
        at = 1 if inside else 0
        for n in node.all_input_nodes:
            at = max(at, stage.get(n, 0))
        if node.target is torch.ops.aten.copy_.default:
            at = max(at, readers.get(node.args[0], 0))
        at += (at % 2 == 1) != inside
        stage[node] = at
        for n in node.all_input_nodes:
            if n.op == "placeholder":
                readers[n] = max(readers.get(n, 0), at)
    return stage


class _Program:
    """One program of a compiled graph: which slots it reads, and which it fills or writes into."""

    def __init__(self, name: str, nodes: Sequence[fx.Node], escapes: set[fx.Node], slot: dict[fx.Node, int]) -> None:
        inputs: dict[fx.Node, None] = {}
        for node in nodes:
            for n in node.all_input_nodes:
                if n not in nodes:
                    inputs[n] = None
        tensors = [n for n in inputs if isinstance(n.meta.get("val"), torch.Tensor)]
        numbers = [n for n in inputs if n not in tensors]
        builder = GraphBuilder(name)
        for i, n in enumerate(tensors):
            val = n.meta["val"]
            if _on_tpu(val):
                builder.input(n, i, 0, val)
            else:
                builder.number(n, i, _kind_of_dtype(val.dtype))
        for i, n in enumerate(numbers):
            builder.number(n, len(tensors) + i, _KINDS[type(n.meta["val"])])
        results: list[fx.Node] = []
        self.into: list[int] = []
        fresh: list[fx.Node] = []
        for node in nodes:
            if node.target is torch.ops.aten.copy_.default:
                target, source = node.args[0], node.args[1]
                results.append(builder.written(source, target))
                self.into.append(tensors.index(target))
            else:
                builder.call(node)
        for node in nodes:
            if node in escapes and node.target is not torch.ops.aten.copy_.default and not isinstance(node.meta["val"], list | tuple):
                results.append(builder.values[node])
                self.into.append(-1)
                fresh.append(node)
        strides = [self._strides(n) for n in fresh]
        self.op = builder.finish_values(results, [None] * (len(results) - len(fresh)) + strides)
        self.inputs = [slot[n] for n in tensors]
        self.numbers = [slot[n] for n in numbers]
        self.fills = [slot[n] for n in fresh]
        self.first_fresh = len(results) - len(fresh)

    @staticmethod
    def _strides(node: fx.Node) -> list[int] | None:
        val = node.meta["val"]
        dense = torch._prims_common.is_non_overlapping_and_dense_or_false(val)
        return list(val.stride()) if dense else None

    def __call__(self, env: list[Any]) -> None:
        out = torch.ops.tpu.run_graph(
            self.op, [env[i] for i in self.inputs], [float(env[i]) for i in self.numbers], self.into if self.first_fresh else []
        )
        for i, t in zip(self.fills, out, strict=True):
            env[i] = t


class _Call:
    """One op called as in eager mode."""

    def __init__(self, node: fx.Node, module: fx.GraphModule, slot: dict[fx.Node, int]) -> None:
        self.target: Any = getattr(module, str(node.target)) if node.op == "get_attr" else node.target
        self.out = slot[node]
        self.args = fx.node.map_arg(node.args, lambda n: _Slot(slot[n]))
        self.kwargs = fx.node.map_arg(node.kwargs, lambda n: _Slot(slot[n]))
        self.method = node.op == "call_method"
        self.constant = node.op == "get_attr"

    def __call__(self, env: list[Any]) -> None:
        if self.constant:
            env[self.out] = self.target
            return
        args = _fill(self.args, env)
        kwargs = _fill(self.kwargs, env)
        env[self.out] = getattr(args[0], self.target)(*args[1:], **kwargs) if self.method else self.target(*args, **kwargs)


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
        self.size = len(nodes)
        self.steps: list[Callable[[list[Any]], None]] = [_Call(n, module, slot) for n in nodes if n.op == "get_attr"]
        stage = _stages(module.graph)
        output = nodes[-1]
        for at in range(max(stage.values(), default=-1) + 1):
            here = [n for n in nodes if stage.get(n) == at]
            if at % 2 == 0:
                self.steps += [_Call(n, module, slot) for n in here]
            elif here:
                inside = set(here)
                escapes = {n for n in here if any(u not in inside for u in n.users)}
                self.steps.append(_Program(f"{name}_{at}", here, escapes, slot))
        self.outputs = fx.node.map_arg(list(output.args[0]), lambda n: _Slot(slot[n]))

    def __call__(self, args: list[Any]) -> list[Any]:
        env = args + [None] * (self.size - len(args))
        args.clear()
        for step in self.steps:
            step(env)
        return _fill(self.outputs, env)


def compile_fx(module: fx.GraphModule, example_inputs: Sequence[Any], name: str = "compiled") -> Compiled:
    """Compile a functional graph from AOTAutograd."""
    return Compiled(name, module)


def backend(module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The Dynamo backend ``tpu``."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    compiler = aot_autograd(
        fw_compiler=lambda m, i: compile_fx(m, i, "forward"),
        bw_compiler=lambda m, i: compile_fx(m, i, "backward"),
        inference_compiler=lambda m, i: compile_fx(m, i, "graph"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=_decompose.table(),
        keep_inference_input_mutations=True,
    )
    return compiler(module, list(example_inputs))


def register() -> None:
    """Make ``backend="tpu"`` known to Dynamo."""
    from torch._dynamo.backends.registry import register_backend

    register_backend(backend, name="tpu")
