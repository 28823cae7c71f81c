"""Sums of small products in a graph become one product of their factors side by side, as ``src/graph/sums.c`` does in DeferAndFuse.

What a loop over time steps multiplies by the same weight at each of them gets its gradient as a product a step and their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_FEWEST = 3  # products worth joining


def _matrix(node: Any) -> tuple[int, int] | None:
    """The sizes of a matrix on the device, if they are known."""
    val = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(val, torch.Tensor) or val.device.type != "tpu" or val.dim() != 2:
        return None
    rows, columns = val.shape
    return (rows, columns) if type(rows) is int and type(columns) is int else None


def _adds(node: Any) -> bool:
    """Whether it adds two matrices of one type and size."""
    if not isinstance(node, fx.Node) or node.target is not _aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return False
    size = _matrix(node)
    return size is not None and all(_matrix(a) == size and a.meta["val"].dtype is node.meta["val"].dtype for a in node.args)  # type: ignore[union-attr]


def _plain(node: Any) -> fx.Node:
    """What a node is that exchanges axes and back; nobody else reads what is between."""
    at, turned = node, False
    while at.target is _aten.t.default and (at is node or len(at.users) == 1):
        at, turned = at.args[0], not turned
        if not turned and len(at.users) == 1:
            node = at
    return node


def _product(leaf: fx.Node) -> fx.Node | None:
    """The product that is added here and nowhere else, if joining it costs less than adding it."""
    found = _plain(leaf) if len(leaf.users) == 1 else leaf
    if found.target is not _aten.mm.default or len(found.users) != 1:
        return None
    sizes = [_matrix(a) for a in found.args]
    if None in sizes or any(a.meta["val"].dtype is not found.meta["val"].dtype for a in found.args):  # type: ignore[union-attr]
        return None
    (m, k), (_, n) = sizes  # type: ignore[misc]
    return found if k * (m + n) <= m * n else None


class _Writer:
    """New nodes before ``root``."""

    def __init__(self, root: fx.Node) -> None:
        self.root = root

    def __call__(self, op: Callable[..., Any], *args: Any) -> fx.Node:
        graph, mode = self.root.graph, self.root.meta["val"].fake_mode
        with graph.inserting_before(self.root):
            node = graph.call_function(op, args)
        node.meta = {k: v for k, v in self.root.meta.items() if k != "tensor_meta"}
        with mode:
            node.meta["val"] = op(*fx.node.map_arg(args, lambda n: n.meta["val"]))
        return node

    def beside(self, factors: list[fx.Node], axis: int) -> fx.Node:
        """The factors along the axis that products sum over. Of rows that were exchanged for columns, as these lay."""
        if all(f.target is _aten.t.default for f in factors):
            return self(_aten.t.default, self(_aten.cat.default, [f.args[0] for f in factors], 1 - axis))
        return self(_aten.cat.default, factors, axis)


def _join(root: fx.Node, seen: set[fx.Node]) -> bool:
    adds, leaves = [root], []
    for node in adds:
        for a in node.args:
            a = _plain(a) if isinstance(a, fx.Node) and len(a.users) == 1 else a
            if a is not root and len(a.users) == 1 and _adds(a):  # type: ignore[union-attr]
                adds.append(a)  # type: ignore[arg-type]
            else:
                leaves.append(a)
    seen.update(adds)
    products = [(leaf, p) for leaf in leaves if (p := _product(leaf)) is not None]  # type: ignore[arg-type]
    if len(products) < _FEWEST or not hasattr(root.meta["val"], "fake_mode"):
        return False
    write = _Writer(root)
    of = [p.args for _, p in products]
    total = write(_aten.mm.default, write.beside([a[0] for a in of], 1), write.beside([a[1] for a in of], 0))  # type: ignore[misc]
    joined = {leaf for leaf, _ in products}
    for leaf in leaves:
        if leaf not in joined:
            total = write(_aten.add.Tensor, total, leaf)
    root.replace_all_uses_with(total)
    return True


def join_products(graph: fx.Graph) -> None:
    """Change the graph, whose nodes tell their values' types, so that it has such sums no more."""
    if sum(n.target is _aten.mm.default for n in graph.nodes) < _FEWEST:
        return
    seen: set[fx.Node] = set()
    old = set(graph.nodes)
    changed = [_join(n, seen) for n in reversed(list(graph.nodes)) if n not in seen and _adds(n)]
    if any(changed):
        for n in reversed(list(graph.nodes)):
            if n in old and not n.users and n.target in (_aten.add.Tensor, _aten.t.default, _aten.mm.default):
                graph.erase_node(n)
