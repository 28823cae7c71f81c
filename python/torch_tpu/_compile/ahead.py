"""Compiling ahead of time: a function is called, and its compiled graphs make their programs but do not run them."""

from __future__ import annotations

import contextlib
import functools
import unittest.mock
from collections.abc import Iterator
from typing import Any

import torch

from torch_tpu._compile import optimizers
from torch_tpu._compile.program import Compiled, Stage, _Call
from torch_tpu._compile.saved import fill
from torch_tpu._compile.stages import writes
from torch_tpu._core import core


def _nothing(val: Any, compiled: Compiled, values: tuple[int, ...]) -> Any:
    """A value of the kind that tracing found, with undefined contents."""
    if isinstance(val, list | tuple):
        return type(val)(_nothing(v, compiled, values) for v in val)
    resolve = compiled.sizes.resolve
    if isinstance(val, torch.Tensor):
        sizes, strides = ([resolve(n, values) for n in of] for of in (val.shape, val.stride()))
        return torch.empty_strided(sizes, strides, dtype=val.dtype, device=val.device)
    return resolve(val, values) if isinstance(val, torch.SymInt) else val


def _pretend(compiled: Compiled, args: list[Any], grads: dict[torch.Tensor, torch.Tensor | None]) -> list[Any]:
    """What calling ``compiled`` gives, in kind: its programs are made and not run, other ops are left out."""
    for t in args:
        if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf and t not in grads:
            grads[t] = t.grad  # the backward, if there is one, adds to a copy
            t.grad = None if t.grad is None else t.grad.clone()
    values = compiled.sizes.values(args)
    env = args + compiled.rest
    args.clear()
    for step in compiled.steps:
        if isinstance(step, Stage):
            before = core().ttc_compile_only(True)
            try:
                step(env, values)
            finally:
                core().ttc_compile_only(before)
        elif isinstance(step, _Call):
            env[step.out] = fill(step.args, env)[0] if writes(step.node) else _nothing(step.node.meta.get("val"), compiled, values)
        else:
            step(env, values)
    return fill(compiled.outputs, env)


@contextlib.contextmanager
def only_compiling() -> Iterator[None]:
    """Calls of compiled graphs compile and do not run; gradients and random numbers are as before afterwards."""
    grads: dict[torch.Tensor, torch.Tensor | None] = {}
    devices = torch.tpu.device_count()  # type: ignore[attr-defined]
    random = torch.get_rng_state(), [torch.tpu.get_rng_state(i) for i in range(devices)]  # type: ignore[attr-defined]
    try:
        with (
            unittest.mock.patch.object(Compiled, "__call__", lambda self, args: _pretend(self, args, grads)),
            unittest.mock.patch.object(optimizers, "take", functools.partial(optimizers.rehearse, optimizers.take)),
        ):
            yield
    finally:
        for t, grad in grads.items():
            t.grad = grad
        torch.set_rng_state(random[0])
        for i, state in enumerate(random[1]):
            torch.tpu.set_rng_state(state, i)  # type: ignore[attr-defined]


def slow_way(fn: Any) -> Any:
    """``fn`` without the short way in, which runs what it finds compiled."""
    inner = getattr(fn, "__wrapped__", None)
    return inner if hasattr(fn, "_torchdynamo_orig_callable") and hasattr(inner, "_torchdynamo_orig_callable") else fn
