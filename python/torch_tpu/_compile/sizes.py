"""What the symbols of a graph's shapes stand for, call by call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torch_tpu._decompose import Untraceable


class Sizes:
    """What the symbols of a graph's shapes stand for, call by call."""

    def __init__(self, placeholders: Sequence[fx.Node]) -> None:
        self.where: dict[Any, tuple[int, int]] = {}  # symbol -> input, axis (-1: the input is the number)
        self.env: Any = None  # what is known of the symbols
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
            self.env = size.node.shape_env

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
