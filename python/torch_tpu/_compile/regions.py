"""Higher-order ops in programs: what a branch or a loop's body computes is a graph of its own, which the core lowers as a region.

A region holds ops on the device that draw no random numbers; a node with anything else in it is called as in eager mode, where
Python takes the branch or loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from torch_tpu._decompose import GraphBuilder, Untraceable

# How many graphs come first among the arguments; the op in the core's table.
_LOWERED = {"cond": "cond", "while_loop": "while_loop", "scan": "scan", "map_impl": "scan"}
_INLINE = "invoke_subgraph"


def name_of(node: fx.Node) -> str:
    """The name of a higher-order op; empty for other nodes."""
    return node.target.name() if isinstance(node.target, torch._ops.HigherOrderOperator) else ""


def graphs(node: fx.Node) -> Iterator[fx.GraphModule]:
    """The graphs that a node is given."""
    for n in node.all_input_nodes:
        if n.op == "get_attr":
            found = getattr(n.graph.owning_module, str(n.target))
            if isinstance(found, fx.GraphModule):
                yield found


def any_inside(node: fx.Node, test: Callable[[fx.Node], bool]) -> bool:
    """Whether a node of the graphs that ``node`` is given passes the test, at any depth."""
    return any(test(n) or any_inside(n, test) for g in graphs(node) for n in g.graph.nodes)


def fits(node: fx.Node, all_in_program: Callable[[fx.Graph], bool], draws: Callable[[fx.Node], bool]) -> bool:
    """Whether the node can be part of a program."""
    name = name_of(node)
    if name != _INLINE and (name not in _LOWERED or any_inside(node, draws)):
        return False
    if name == "while_loop" and node.kwargs.get("mutated_arg_indices"):
        return False
    for operand in _flat(node.args):
        val = operand.meta.get("val") if isinstance(operand, fx.Node) else operand
        if isinstance(val, torch.Tensor) and val.device.type != "tpu":
            return False
        if isinstance(val, float | torch.SymFloat | torch.SymBool):
            return False
    constants = any(n.op == "get_attr" and _is_tensor(n) for g in graphs(node) for n in g.graph.nodes)
    return not constants and all(all_in_program(g.graph) for g in graphs(node))


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(getattr(node.graph.owning_module, str(node.target)), torch.Tensor)


def _flat(a: Any) -> list[Any]:
    return [e for x in a for e in _flat(x)] if isinstance(a, list | tuple) else [a]


def _results(graph: fx.GraphModule) -> list[Any]:
    return _flat(next(n for n in reversed(graph.graph.nodes) if n.op == "output").args[0])


class _Operands:
    """What a node's graphs are called with: tensors are given to the core, ints are part of the graphs."""

    def __init__(self, builder: GraphBuilder, operands: Iterable[Any]) -> None:
        self.builder, self.all = builder, list(operands)
        self.tensors = [o for o in self.all if isinstance(o, fx.Node) and isinstance(o.meta.get("val"), torch.Tensor)]
        self.values = [builder.values[o] for o in self.tensors]
        if not all(type(v) is int for v in self.values):
            raise Untraceable("an operand of a region is a number given at run time")

    def graph(self, module: fx.GraphModule, wanted: Sequence[int] | None = None) -> int:
        """The op id of a graph called with them.

        Args:
            wanted: which of its results; None: all.
        """
        inner = GraphBuilder("region", self.builder.resolve)
        place = 0
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        for node, operand in zip(placeholders, self.all, strict=True):
            val = node.meta.get("val")
            if isinstance(operand, fx.Node) and isinstance(operand.meta.get("val"), torch.Tensor):
                inner.input(node, place, 0, val)
                place += 1
            else:
                inner.values[node] = self.builder.values[operand] if isinstance(operand, fx.Node) else operand
        for node in module.graph.nodes:
            if node.op == "call_function":
                inner.call(node)
        results = _results(module)
        ids = [
            inner.values[r] if isinstance(r, fx.Node) else None
            for r in (results if wanted is None else [results[k] for k in wanted])
        ]
        if not all(type(i) is int for i in ids):
            raise Untraceable("a region gives something else than tensors")
        return inner.finish_values(ids, [None] * len(ids))


def _given(node: fx.Node) -> list[fx.GraphModule]:
    return [getattr(n.graph.owning_module, str(n.target)) for n in node.args if isinstance(n, fx.Node) and n.op == "get_attr"]


def _steps(operands: Sequence[Any]) -> int:
    sizes = [o.meta["val"].shape[0] for o in operands if isinstance(o, fx.Node) and o.meta["val"].dim() > 0]
    if not sizes:
        raise Untraceable("a scan over nothing")
    return sizes[0]


def call(builder: GraphBuilder, node: fx.Node) -> None:
    """Append the node.

    Raises:
        Untraceable: if it cannot be part of a program.
    """
    name, given, args = name_of(node), _given(node), node.args
    if name == _INLINE:
        _inline(builder, node, given[0], _flat(args[2:]))
        return
    vals = node.meta["val"] if isinstance(node.meta["val"], list | tuple) else [node.meta["val"]]
    wanted = [k for k, v in enumerate(vals) if isinstance(v, torch.Tensor)]
    if name == "cond":
        operands = _Operands(builder, _flat(args[3]))
        pred = builder.values[args[0]]  # type: ignore[index]
        if type(pred) is not int or not isinstance(args[0].meta.get("val"), torch.Tensor):  # type: ignore[union-attr]
            raise Untraceable("the condition is a number")
        ints, values = [operands.graph(g, wanted) for g in given], [pred, *operands.values]
    elif name == "while_loop":
        carried, others = _flat(args[2]), _flat(args[3])
        operands = _Operands(builder, [*carried, *others])
        if len(wanted) != len(carried):
            raise Untraceable("a loop carries something else than tensors")
        ints, values = [*(operands.graph(g) for g in given), len(carried)], operands.values
    else:
        init, slices, others = [_flat(a) for a in (args[1:4] if name == "scan" else ([], args[1], args[2]))]
        if builder.size(_steps(slices)) == 0 or len(wanted) != len(vals):
            raise Untraceable("a scan of no steps, or of something else than tensors")
        operands = _Operands(builder, [*init, *slices, *others])
        ints, values = [operands.graph(given[0]), len(init), len(slices)], operands.values
    found = builder.region(_LOWERED[name], ints, values, [vals[k] for k in wanted])
    ids = dict(zip(wanted, found, strict=True))
    builder.values[node] = [ids.get(k) for k in range(len(vals))]


def _inline(builder: GraphBuilder, node: fx.Node, graph: fx.GraphModule, operands: list[Any]) -> None:
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    for inner, operand in zip(placeholders, operands, strict=True):
        builder.values[inner] = builder.values[operand] if isinstance(operand, fx.Node) else operand
    for n in graph.graph.nodes:
        if n.op == "call_function":
            builder.call(n)
    builder.values[node] = [builder.values[r] if isinstance(r, fx.Node) else r for r in _results(graph)]
