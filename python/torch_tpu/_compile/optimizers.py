"""The steps of optimizers in compiled functions.

To Dynamo an optimizer is a few hundred inputs: tracing them takes longer than all else that a second process has to do before its
first training step, and their guards are looked at in every step. Adam, AdamW, SGD and Adagrad need none of that: PyTorch's own
fused form of their step is one program of ours, for any schedule. In a function that this backend compiles they take it, unless
they were told how to step (``foreach=``, ``fused=False``, ``differentiable=``). All others are traced, from ``step`` itself on:
what PyTorch wraps around it ends each graph and has nothing to trace.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo.eval_frame import set_code_exec_strategy, set_eval_frame
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.types import FrameAction, FrameExecStrategy

from torch_tpu import _settings
from torch_tpu._core import core

_FUSED = (torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad)  # AdamW is an Adam
_PLAIN = (torch.Tensor, torch.nn.Parameter)

_mine: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # optimizers that have taken such a step


def _is_ours(backend: Any) -> bool:
    """Whether a backend of ``torch.compile`` is this one, without options that would change its programs."""
    from torch_tpu._compile import backend as ours

    if isinstance(backend, _settings._Default):
        return not backend.own and not _settings._MODES.get(backend.mode or "default")
    if isinstance(backend, _settings._Named):
        kwargs = backend.kwargs
        return backend.compiler_fn is ours and not kwargs.get("options") and not _settings._MODES.get(kwargs.get("mode", "default"))
    return backend is ours


def _asked(optimizer: torch.optim.Optimizer, callback: Any) -> bool:
    """Whether the optimizer steps in a function that this backend compiles, as Dynamo's callback tells."""
    if callback is None:
        return False
    if callback is False:  # nothing new is compiled
        return optimizer in _mine
    while hasattr(callback, "_torchdynamo_orig_backend"):
        if getattr(callback, "_one_graph", False):  # fullgraph=True is meant
            return False
        callback = callback._torchdynamo_orig_backend
    return _is_ours(callback)


def _own(method: Any) -> Any:
    """A method without what Dynamo puts around it in each class."""
    return getattr(method, "_torchdynamo_orig_callable", method)


def _left_open(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer is PyTorch's, and was not told how to step."""
    kind = type(optimizer)
    return any(_own(kind._init_group) is _own(of._init_group) for of in _FUSED if issubclass(kind, of)) and all(
        not g.get("differentiable") and not g.get("foreach") and (g.get("fused") or g.get("foreach") is g.get("fused") is None)
        for g in optimizer.param_groups
    )


def _fits(optimizer: torch.optim.Optimizer) -> bool:
    """Whether parameters and gradients are what the fused form takes. It counts steps on the device; Dynamo would move them too."""
    some = False
    for group in optimizer.param_groups:
        started, momentum = set(), group.get("momentum")
        for p in group["params"]:
            grad = p.grad
            if grad is None:
                continue
            dtype = grad.dtype
            if type(grad) not in _PLAIN or type(p) not in _PLAIN or grad.layout is not torch.strided or p.device.type != "tpu":
                return False
            if dtype is not p.dtype or not dtype.is_floating_point:
                return False
            some = True
            if momentum:
                started.add(optimizer.state.get(p, {}).get("momentum_buffer") is not None)
        if len(started) > 1:  # some parameters have a gradient for the first time
            return False
    for p, state in optimizer.state.items():
        count = state.get("step")
        if count is not None and count.is_cpu:
            state["step"] = count.to(p.device, torch.float32)
    return some


def take(optimizer: torch.optim.Optimizer, step: Callable[[torch.optim.Optimizer], None]) -> None:
    """The step in its fused form."""
    told = [(g, g["foreach"], g["fused"]) for g in optimizer.param_groups]
    for g, *_ in told:
        g["foreach"], g["fused"] = False, True
    try:
        step(optimizer)
    finally:
        for g, foreach, fused in told:
            g["foreach"], g["fused"] = foreach, fused


def rehearse(taken: Callable[..., None], optimizer: torch.optim.Optimizer, step: Callable[..., None]) -> None:
    """The programs of a step, which is not taken: state that it makes is let go."""
    state = {p: dict(s) for p, s in optimizer.state.items()}
    before = core().ttc_compile_only(True)
    try:
        taken(optimizer, step)
    finally:
        core().ttc_compile_only(before)
        optimizer.state.clear()
        optimizer.state.update(state)


def _stepping(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def stepped(self: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        callback = set_eval_frame(None)  # nothing of ours is traced
        try:
            if not _asked(self, callback) or not _left_open(self):
                set_eval_frame(callback)
                return step(self, closure)
            loss = None
            if closure is not None:
                set_eval_frame(callback)
                with torch.enable_grad():
                    loss = closure()
                set_eval_frame(None)
            if _fits(self):
                _mine.add(self)
                take(self, step)
            else:
                set_eval_frame(callback)
                step(self)
            return loss
        finally:
            set_eval_frame(callback)

    return stepped


def _without_gradients(step: Any) -> types.FunctionType | None:
    """PyTorch's wrapper that turns gradients off around ``step``."""
    while step is not None and getattr(step, "__code__", None) is not None and step.__code__.co_name != "_use_grad":
        step = getattr(step, "__wrapped__", None)
    return step if step is not None and "func" in step.__code__.co_freevars else None


@functools.cache
def _count_on_the_device() -> None:
    """An optimizer that is traced before its first step counts steps on the device, as on CUDA. On the CPU all that is
    made of a parameter's count would be ops called one by one."""
    from torch._dynamo.variables.optimizer import OptimizerVariable

    inner = getattr(OptimizerVariable, "_set_capturable", None)
    if inner is None:
        return

    def set_capturable(self: Any, tx: Any) -> None:
        for group in self.value.param_groups:
            if "capturable" in group and all(p.device.type == "tpu" and p not in self.value.state for p in group["params"]):
                group["capturable"] = True
        inner(self, tx)

    OptimizerVariable._set_capturable = set_capturable  # type: ignore[method-assign]


@functools.cache
def _replace() -> frozenset[types.CodeType]:
    """Steps are taken as they should be from now on. Given is what Dynamo need not trace."""
    hooks = sys.modules["torch.optim.optimizer"].Optimizer.profile_hook_step(lambda self: None)
    codes = {hooks.__code__}
    for of in _FUSED:
        wrapper = _without_gradients(of.step)
        if wrapper is None:
            return frozenset()  # a PyTorch that does this in another way
        cell = (wrapper.__closure__ or ())[wrapper.__code__.co_freevars.index("func")]
        cell.cell_contents = _stepping(cell.cell_contents)
        codes |= {wrapper.__code__, cell.cell_contents.__code__}
    return frozenset(codes)


def follow() -> None:
    """Called for every function that is compiled, for ``torch._dynamo.reset`` forgets it."""
    _count_on_the_device()
    for code in _replace():
        skip_code(code)
    timer = torch.autograd.profiler.record_function
    for method in (timer.__init__, timer.__enter__, timer.__exit__):  # around each step: they and what they call need no tracing
        set_code_exec_strategy(inspect.unwrap(method).__code__, FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP))
