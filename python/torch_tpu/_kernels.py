"""Kernels of the device written in Python: ops whose arguments must be put otherwise before a row of the core can run them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
_library = torch.library.Library("aten", "IMPL")


def _kernel(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        _library.impl(name, f, "PrivateUse1")
        return f

    return register


@_kernel("_efficientzerotensor")
def _zeros(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """Autograd's zeros, which other devices do not allocate."""
    return torch.zeros(size, dtype=dtype, device=device)


# Where PyTorch has no Meta kernel, tracing runs the op itself to see what it gives, which would draw random numbers.
def _like(x: torch.Tensor, *others: Any, generator: torch.Generator | None = None) -> torch.Tensor:
    tensors = [o for o in others if isinstance(o, torch.Tensor)]
    return x.new_empty(torch.broadcast_shapes(x.shape, *(t.shape for t in tensors)))


for _name in ("binomial", "_sample_dirichlet"):
    _library.impl(_name, _like, "Meta")


# ---------------------------------------------------------------------------------------------------------------- ctc_loss
# PyTorch reads the lengths and passes lists of ints, which would be part of a program's key: here they become tensors again.


def _ctc_arguments(log_probs: torch.Tensor, targets: torch.Tensor, frames: Sequence[int], labels: Sequence[int]) -> tuple[Any, ...]:
    """Targets [B, S], padded where they were one after another, and both lists as tensors."""
    if targets.dim() == 1:
        longest, start, rows = max(labels, default=0), 0, []
        for n in labels:
            rows.append([min(start + k, targets.numel() - 1) for k in range(longest)])
            start += n
        places = torch.tensor(rows, dtype=torch.int64).reshape(len(labels), longest).to(log_probs.device)
        targets = targets.to(torch.int64)[places] if targets.numel() else places
    lengths = torch.tensor([list(frames), list(labels)], dtype=torch.int64).to(log_probs.device)
    return log_probs, targets, lengths[0], lengths[1]


@_kernel("_ctc_loss")
def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    # The Meta kernel raises what the CPU's does for wrong lengths.
    _, alpha = aten._ctc_loss(log_probs.to("meta"), targets.to("meta"), input_lengths, target_lengths, blank, zero_infinity)
    found = aten._ctc_loss.Tensor(*_ctc_arguments(log_probs, targets, input_lengths, target_lengths), blank, zero_infinity)
    return found[0], found[1][..., : alpha.size(2)]


@_kernel("_ctc_loss_backward")
def _ctc_loss_backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> torch.Tensor:
    log_probs, targets, frames, labels = _ctc_arguments(log_probs, targets, input_lengths, target_lengths)
    targets = targets[:, : log_alpha.size(2) // 2]
    return aten._ctc_loss_backward.Tensor(
        grad, log_probs, targets, frames, labels, neg_log_likelihood, log_alpha, blank, zero_infinity
    )
