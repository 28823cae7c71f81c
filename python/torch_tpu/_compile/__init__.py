"""``torch.compile(backend="tpu")``: FX graphs become graphs of the core's, run as one program each.

AOTAutograd gives a functional graph of ATen ops whose mutations of inputs are ``copy_`` nodes at its end. The graph is cut into
stages that take turns: ops on the device that have a row (or a decomposition into some) form programs; everything else, such as
arithmetic on an optimizer's ``step`` on the CPU or an op without a lowering, is called as eager mode would. Most graphs are one
program. A graph with symbolic sizes has one for each set of sizes it meets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from torch_tpu import _decompose
from torch_tpu._compile.program import Compiled, refused

__all__ = ["Compiled", "backend", "refused"]


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
