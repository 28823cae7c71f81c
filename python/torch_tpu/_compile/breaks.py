"""Graph breaks that Dynamo need not find out by tracing twice.

Where a graph has to end in the middle of a function, Dynamo meets an op that it cannot trace, and starts the function over, to end
the graph just before that op. Two such ops are known before they are tried: ``loss.backward()`` after a forward pass, and the call
of ``torch._dynamo.graph_break`` that ends every optimizer's ``step``. Met for the first time they count as tried, and what was
traced up to there is kept: half of the time that tracing a training step takes.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


def _certain(tx: Any) -> Any:
    """What the call that comes next raises, if it always ends the graph; None for all others."""
    from torch._dynamo import config
    from torch._dynamo.exc import Unsupported
    from torch._dynamo.variables import GetAttrVariable, SkipFunctionVariable, TensorVariable
    from torch._dynamo.variables.misc import NullVariable

    inst = tx.current_instruction
    if inst.opname != "CALL" or inst.arg != 0 or tx.kw_names:
        return None
    if not tx.should_compile_partial_graph() or tx.maybe_has_backedge():
        return None
    callee = [v for v in tx.stack[-2:] if not isinstance(v, NullVariable)]
    if len(callee) != 1:
        return None
    ends = isinstance(callee[0], SkipFunctionVariable) and callee[0].value is torch._dynamo.graph_break
    if isinstance(callee[0], GetAttrVariable) and callee[0].name == "backward" and isinstance(callee[0].obj, TensorVariable):
        ends = not getattr(config, "trace_autograd_ops", True)
    if ends:
        try:
            callee[0].call_function(tx, [], {})
        except Unsupported as e:
            return None if getattr(e, "skip_frame", False) else e
    return None


@functools.cache
def foresee() -> None:
    """From now on."""
    from torch._dynamo.output_graph import GraphCompileReason
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase, SpeculationEntry

    if not {"_failed", "error_on_graph_break", "reason"} <= set(SpeculationEntry.__dataclass_fields__):
        return  # a PyTorch that does this in another way
    inner = InstructionTranslatorBase.speculate

    @functools.wraps(inner)
    def speculate(tx: Any) -> Any:
        tried = inner(tx)
        why = None if tried._failed else _certain(tx)
        if why is not None:
            tx.log_graph_break(tx.code_options, reason=str(why), exc=why)
            why.remove_from_stats()
            why.add_to_stats("graph_break")
            tried.reason = GraphCompileReason(why.msg, getattr(why, "real_stack", [tx.frame_summary()]))
            tried.error_on_graph_break, tried._failed = tx.error_on_graph_break, True
        return tried

    InstructionTranslatorBase.speculate = speculate  # type: ignore[method-assign,assignment]
