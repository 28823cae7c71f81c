"""Where a graph is cut: runs of ops that form programs, and between them ops called one by one."""

from __future__ import annotations

import functools
import operator
import sys
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx

from torch_tpu import _decompose
from torch_tpu._compile import regions
from torch_tpu._patch import on_tpu

_C: Any = sys.modules["torch_tpu._C"]


def _all_on_tpu(val: Any) -> bool:
    """A result, or every one of several, is a dense tensor on the device."""
    vals = pytree.tree_leaves(val)
    return (
        bool(vals)
        and all(v is None or (on_tpu(v) and v.layout == torch.strided) for v in vals)
        and any(v is not None for v in vals)
    )


@functools.cache
def _usable() -> set[str]:
    """Ops that may stand in a program: those with a row, but for sizes that depend on data (8)."""
    rows = {row["name"] for row in _C.ops() if not row["flags"] & 8}
    return rows | set(_decompose._SAME) | set(_decompose._UNDEFINED)


def draws(node: fx.Node) -> bool:
    """Whether the node draws random numbers."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return regions.any_inside(node, draws)
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _own_generator(node: fx.Node) -> bool:
    """Whether the node is given a generator. Programs draw from the device's own."""
    return any(isinstance(a, torch.Generator) for a in (*node.args, *node.kwargs.values())) or any(
        isinstance(n.meta.get("val"), torch.Generator) for n in node.all_input_nodes
    )


def writes(node: fx.Node) -> bool:
    """Whether the node gives an input its new contents."""
    return node.target is torch.ops.aten.copy_.default


def _in_program(node: fx.Node, known: dict[fx.Node, bool]) -> bool:
    """Whether the node can be part of a program, as those before it are known to be."""
    if node.target is operator.getitem:
        return known.get(node.args[0], False)  # type: ignore[arg-type]
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
        return False
    val: Any = node.meta.get("val")
    if node.target in _decompose.special:  # whose numbers beside tensors are known
        val = [v for v in pytree.tree_leaves(val) if isinstance(v, torch.Tensor)]
    if not _all_on_tpu(val):
        return False
    for n in node.all_input_nodes:
        v = n.meta.get("val")
        if isinstance(v, torch.Tensor) and not on_tpu(v) and v.dim() != 0:
            return False
    if node.target in _decompose.special or isinstance(node.target, torch._ops.HigherOrderOperator):
        return node.target in _decompose.special or regions.fits(node, _all_in_program, draws)
    if writes(node):
        return isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder"
    if node.target.namespace != "aten" or node.target._schema.is_mutable:
        return False
    if _decompose.row_name(node.target) in ("empty_strided", "new_empty_strided") and all(u.op == "output" for u in node.users):
        return torch._prims_common.is_non_overlapping_and_dense_or_false(val)  # programs give nothing with gaps
    return _decompose.row_name(node.target) in _usable() and not (draws(node) and _own_generator(node))


def _source(node: fx.Node) -> fx.Node | None:
    """What the node is a view of."""
    if node.target is operator.getitem:
        return _source(node.args[0])  # type: ignore[arg-type]
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    first, returns = node.target._schema.arguments[:1], node.target._schema.returns
    views = bool(first) and len(returns) == 1 and returns[0].alias_info is not None and not returns[0].alias_info.is_write
    return node.args[0] if views and isinstance(node.args[0], fx.Node) else None


def _views(graph: fx.Graph) -> set[fx.Node]:
    """Results that are views and are called as in eager mode, and what leads to them.

    AOTAutograd leaves it to the graph that one of several views of an input (``chunk``) shares its memory. Where sizes are symbols
    it takes from a result, of any view, how it lies in the input's memory; so it does where several inputs, one of them written,
    are views of one tensor, which the graph is given in their place (``as_strided``).
    """
    dynamic = any(
        isinstance(n, torch.SymInt)
        for node in graph.nodes
        if node.op == "placeholder" and node.meta.get("val") is not None
        for n in (node.meta["val"].shape if isinstance(node.meta["val"], torch.Tensor) else [node.meta["val"]])
    )
    written = {n.args[0] for n in graph.nodes if writes(n)}
    contents = {n.args[1] for n in graph.nodes if writes(n)}
    found: set[fx.Node] = set()
    for n in next(iter(reversed(graph.nodes))).all_input_nodes:
        way = [n]
        while way[-1] not in contents and (source := _source(way[-1])) is not None:
            if way[-1].target is operator.getitem:
                way.append(way[-1].args[0])
            way.append(source)
        of_input = way[-1].op == "placeholder" and way[-1] not in written
        placed = dynamic or any(w.target is torch.ops.aten.as_strided.default for w in way)
        if (placed and way[-1] in contents) or (of_input and (dynamic or any(w.target is operator.getitem for w in way))):
            found.update(way[:-1])
    return found


def _devices(node: fx.Node) -> set[str]:
    val = node.meta.get("val")
    return {v.device.type for v in (val if isinstance(val, list | tuple) else [val]) if isinstance(v, torch.Tensor)}


def _all_in_program(graph: fx.Graph) -> bool:
    """Whether all of a region's ops can be."""
    known: dict[fx.Node, bool] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            known[node] = _in_program(node, known)
    return all(known.values())


def _is_view(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor) and node.target is not operator.getitem and _source(node) is not None


def _reading_stages(graph: fx.Graph) -> dict[fx.Node, int]:
    """The first stage each node can be in, but for those that write inputs."""
    stage: dict[fx.Node, int] = {}
    known: dict[fx.Node, bool] = {}
    drawn, views = 0, _views(graph)
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        inside = known[node] = node not in views and _in_program(node, known)
        if writes(node):
            continue
        at = max([1 if inside else 0, *(stage.get(n, 0) for n in node.all_input_nodes)])
        if draws(node):
            at = max(at, drawn)
        at += (at % 2 == 1) != inside
        stage[node] = at
        drawn = at if draws(node) else drawn
    return stage


def stages(graph: fx.Graph) -> dict[fx.Node, int]:
    """The stage of each node: odd ones are programs, even ones run op by op.

    A stage reads earlier ones only. Views are taken where they are used, so that none is copied from stage to stage. An input is
    written in the last stage in which anything on its device was read: others may hold views of it. Random numbers are drawn in the
    order of the nodes.
    """
    stage = _reading_stages(graph)
    for node in reversed(graph.nodes):
        if node in stage and _is_view(node) and node.users and all(u in stage for u in node.users):
            stage[node] = max(stage[node], min(stage[u] for u in node.users))
    devices = {n: _devices(n) for n in graph.nodes}  # looked at once: some give lists of hundreds
    last: dict[str, int] = {}  # by device, the last stage that reads there
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        reads = node.all_input_nodes
        if writes(node):
            inside = _in_program(node, {})
            at = max([1 if inside else 0, last.get(node.meta["val"].device.type, 0), *(stage.get(n, 0) for n in reads)])
            stage[node] = at + ((at % 2 == 1) != inside)
        for n in reads:
            for device in devices[n]:
                last[device] = max(last.get(device, 0), stage[node])
    return stage
