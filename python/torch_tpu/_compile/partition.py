"""What AOTAutograd is told of random numbers: that no call that draws some may be merged with another or made again."""

from __future__ import annotations

import functools
import operator
import sys
from typing import Any

import torch
from torch import fx

from torch_tpu._compile.stages import draws

_C: Any = sys.modules["torch_tpu._C"]


def partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> Any:
    """Forward and backward, cut where the least is kept. Random numbers are always kept, checkpointed or not: another run of their
    op would draw others."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch.utils.checkpoint import CheckpointPolicy

    for node in joint.graph.nodes:
        if draws(node):
            for kept in (node, *(u for u in node.users if u.target is operator.getitem)):
                if "recompute" in kept.meta:
                    kept.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return min_cut_rematerialization_partition(joint, inputs, **options)


@functools.cache
def keep_apart() -> None:
    """Tell AOTAutograd of all ops that draw random numbers, lest it takes two calls of one for the same."""
    from torch._functorch.compile_utils import rand_ops

    for row in _C.ops():
        if row["flags"] & 1:
            rand_ops.append(getattr(torch.ops.aten, row["name"].split(".")[0]))
