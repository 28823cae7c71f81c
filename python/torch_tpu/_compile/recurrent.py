"""``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` in graphs.

Dynamo ends a graph at such a module unless ``torch._dynamo.config.allow_rnn`` is set, which is no question of the device. It is set
while Dynamo looks at one whose weights are on this device, and at no other; ``../_recurrent.py`` says what is in the graph then.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_tpu._patch import on_tpu


def _is_ours(module: Any) -> bool:
    """Whether it is a recurrent module, all of whose weights are on the device."""
    if not isinstance(module, torch.nn.RNNBase):
        return False
    weights = [w for w in module._flat_weights if w is not None]
    return bool(weights) and all(on_tpu(w) for w in weights)


@functools.cache
def admit() -> None:
    """From now on."""
    from torch._dynamo import config
    from torch._dynamo.variables.builder import VariableBuilder

    inner = getattr(VariableBuilder, "wrap_module", None)
    if inner is None or not hasattr(config, "allow_rnn"):
        return  # a PyTorch that does this in another way

    @functools.wraps(inner)
    def wrap_module(self: Any, value: Any) -> Any:
        if not _is_ours(value):
            return inner(self, value)
        from torch_tpu import _recurrent  # noqa: F401  # what its op is traced as

        with config.patch(allow_rnn=True):
            return inner(self, value)

    VariableBuilder.wrap_module = wrap_module  # type: ignore[method-assign]
