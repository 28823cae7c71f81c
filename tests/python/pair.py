"""Run one function on the CPU and on the device, forward and backward, and compare."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_tpu  # noqa: F401

TOLERANCE = {
    torch.float32: 2e-4,
    torch.complex64: 2e-4,
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.bfloat16: 2e-2,
    torch.float16: 2e-2,
}


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in a nest of tuples and lists, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for v in value:
            yield from tensors(v)


def _run(f: Callable[..., Any], device: str, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    args = [x.detach().to(device) for x in inputs]
    args = [x.requires_grad_() if x.is_floating_point() or x.is_complex() else x for x in args]
    outs = list(tensors(f(*args)))
    loss = torch.zeros((), device=device)
    for y in outs:
        if y.requires_grad:
            y = torch.view_as_real(y.resolve_conj()) if y.is_complex() else y
            weight = (torch.arange(y.numel()) % 7 - 2.5).view(y.shape).to(device, y.dtype)
            loss = loss + (y * weight).sum().float()
    grads = []
    if loss.requires_grad:
        loss.backward()
        grads = [x.grad for x in args if x.grad is not None]
    return [y.detach().resolve_conj().cpu() for y in outs + grads]


def same(f: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Results of ``f(*inputs)`` and gradients for its floating inputs are the CPU's, to the dtype's tolerance, NaN for NaN."""
    want, got = (_run(f, device, inputs) for device in ("cpu", "tpu"))
    assert len(want) == len(got)
    for w, g in zip(want, got, strict=True):
        tol = TOLERANCE.get(w.dtype, 0)
        torch.testing.assert_close(g, w, rtol=tol, atol=tol, equal_nan=True)
