"""``torch.compile(backend="tpu")``: FX graphs become graphs of the core's, run as one program each.

AOTAutograd gives a functional graph of ATen ops whose mutations of inputs are ``copy_`` nodes at its end. The graph is cut into
stages that take turns: ops on the device that have a row (or a decomposition into some) form programs; everything else, such as
arithmetic on an optimizer's ``step`` on the CPU or an op without a lowering, is called as eager mode would. Most graphs are one
program. A graph with symbolic sizes has one for all lengths up to a bound, or else one for each set of sizes it meets.
"""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from torch_tpu import _decompose
from torch_tpu._compile import saved, spared, watch
from torch_tpu._compile.partition import keep_apart, partition
from torch_tpu._compile.program import Compiled, refused
from torch_tpu._settings import checked

__all__ = ["Compiled", "backend", "refused"]


def _is_plain(graph: Compiled, ngiven: int) -> bool:
    """Whether AOTAutograd's wrapper does nothing for this graph: no aliases, writes, subclasses, effects or dropped arguments."""
    from torch._functorch._aot_autograd.schemas import PlainTensorMeta
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    meta = context.fw_metadata if context is not None else None
    return (
        meta is not None
        and graph.nargs == ngiven
        and not (meta.num_outputs_aliased or meta.num_unsafe_view_outputs or meta.dynamic_outputs or meta.tokens)
        and not (meta.mutated_inp_runtime_indices or meta.mutated_graph_handled_indices or meta.num_graphsafe_rng_states)
        and all(isinstance(m, PlainTensorMeta) for m in [*meta.subclass_inp_meta, *meta.subclass_fw_graph_out_meta])
    )


def backend(
    module: fx.GraphModule, example_inputs: Sequence[Any], mode: str | None = None, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """The Dynamo backend ``tpu``; ``_settings.py`` says what modes and options mean."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.eval_frame import innermost_fn
    from torch._functorch._aot_autograd import graph_compile
    from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler
    from torch._guards import TracingContext

    def kept(make: Callable[[fx.GraphModule, Sequence[Any]], Compiled]) -> SerializableAOTDispatchCompiler:
        return SerializableAOTDispatchCompiler(Compiled, make)

    settings = checked(mode, options)
    plain: list[Compiled] = []

    def inference(module: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        graph = Compiled("graph", module, settings)
        if _is_plain(graph, len(example_inputs)):
            graph.plain = True
            plain.append(graph)
        return graph

    def forward(module: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        context = TracingContext.try_get()
        if context is not None and context.fw_metadata is not None:
            # No program takes over what a forward pass kept: there may be a second backward pass.
            context.fw_metadata.bw_donated_idxs = []
        return Compiled("forward", module, settings)

    keep_apart()
    compiler = aot_autograd(
        fw_compiler=kept(forward),
        bw_compiler=kept(lambda m, i: Compiled("backward", m, settings)),
        inference_compiler=kept(inference),
        partition_fn=partition,
        decompositions=_decompose.FunctionalTable(),
        keep_inference_input_mutations=True,
    )
    spared.follow()
    watch.made["graphs"] += 1
    saved.mark(module, settings)
    # Floats are given at run time as they are. The pass would make tensors of them, and constants of those it cannot: a trace each.
    floats = unittest.mock.patch.object(graph_compile, "_apply_tensorify_python_scalars", lambda module: None)
    with saved.in_use(), spared.without_inductor(), watch.dumping(settings.get("dump")), floats:
        watch.dump_graph("given", module)
        call = compiler(module, list(example_inputs))
    loaded = saved.loaded()
    watch.made["loaded"] += bool(loaded)
    plain += [g for g in loaded if g.plain]
    inner = innermost_fn(call)
    inner._torch_tpu_direct = plain[0] if len(plain) == 1 else inner  # type: ignore[attr-defined]  # what entry.py calls
    return call
