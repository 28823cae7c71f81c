"""What PyTorch does while it compiles that is of no use here: modules imported for one name, questions to CUDA graphs, timings,
collections of garbage that find none."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import logging
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

# ------------------------------------------------------------------------------------------------------------- modules


class _Unneeded(types.ModuleType):
    """Stands for a module that nobody has imported yet, and has what is asked of it on our way. Whatever else is asked is the
    module's own."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # whoever looks through all modules does not mean this one
            raise AttributeError(name)
        return getattr(_real(self.__name__), name)


def _withdraw(module: _Unneeded) -> None:
    parent, _, name = module.__name__.rpartition(".")
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]
    if vars(sys.modules[parent]).get(name) is module:
        delattr(sys.modules[parent], name)


def _real(path: str) -> Any:
    module = sys.modules.get(path)
    if isinstance(module, _Unneeded):
        _withdraw(module)
    return importlib.import_module(path)


@contextlib.contextmanager
def _unneeded(path: str, **known: Any) -> Iterator[None]:
    """In the block, ``known`` is all there is of a module, unless it has been imported."""
    parent, _, name = path.rpartition(".")
    if path in sys.modules or parent not in sys.modules:
        yield
        return
    module: Any = _Unneeded(path)
    vars(module).update(known)
    sys.modules[path] = module
    setattr(sys.modules[parent], name, module)
    try:
        yield
    finally:
        _withdraw(module)


def _triton_source(kernel: Any) -> Any:
    return _real("torch._inductor.codegen.wrapper").user_defined_triton_kernel_transitive_closure_source_code(kernel)


@contextlib.contextmanager
def without_inductor() -> Iterator[None]:
    """While AOTAutograd works for us: it imports Inductor's code generators and scheduler, a tenth of a second, for a log that
    ``TORCH_COMPILE_DEBUG`` asks for and for the source of Triton's kernels."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            _unneeded("torch._inductor.codegen.wrapper", user_defined_triton_kernel_transitive_closure_source_code=_triton_source)
        )
        if os.environ.get("TORCH_COMPILE_DEBUG", "0") != "1":
            stack.enter_context(_unneeded("torch._inductor.debug", enable_aot_logging=contextlib.nullcontext))
        yield


@functools.cache
def _import_no_more() -> None:
    """Dynamo asks of each function whether it is ``local_map`` of distributed tensors, and imports those: a twentieth of a second.
    Where nobody else has, none is."""
    from torch._dynamo.variables import higher_order_ops

    kind: Any = getattr(higher_order_ops, "LocalMapWrappedHigherOrderVariable", None)
    inner = getattr(kind, "should_wrap_in_hop", None)
    if inner is not None:
        path = "torch.distributed.tensor.experimental._func_map"
        kind.should_wrap_in_hop = staticmethod(lambda value: path in sys.modules and inner(value))


# ------------------------------------------------------------------------------------------------------------- garbage

_paused = False


def _pause(args: Any) -> None:
    global _paused
    if gc.isenabled():
        gc.disable()
        _paused = True


def _go_on(args: Any) -> None:
    global _paused
    if _paused:
        gc.enable()
        _paused = False


_put_off: int | None = None


def put_off_collection() -> None:
    """A collection of everything is not due now, but for one that was put off before. The modules and traces that came since the
    last one make it so; they stay, and looking through them takes a sixth of a second. What there is counts as old, and some ten
    collections of what is younger come first."""
    global _put_off
    done = gc.get_stats()[-1]["collections"]
    if done != _put_off and gc.isenabled() and gc.get_freeze_count() == 0:  # what others froze stays frozen
        _put_off = done
        gc.freeze()
        gc.unfreeze()


# ------------------------------------------------------------------------------------------------------------- others


@functools.cache
def _ask_no_cuda_graphs() -> None:
    """Dynamo asks CUDA graphs of an optimizer's tensors, on any device, and imports all of Inductor for it: over a second."""
    from torch._dynamo.variables import optimizer

    inner = getattr(optimizer, "_is_static_for_cudagraphs", None)
    if inner is not None:
        optimizer._is_static_for_cudagraphs = lambda x: inner(x) if x.is_cuda else True


@functools.cache
def _do_not_time_guards() -> None:
    """Dynamo times each graph's guards for its log, with the processor's caches emptied, which takes a fortieth of a second."""
    from torch._dynamo import guards

    inner = getattr(guards, "profile_guard_manager", None)
    if inner is not None:
        timed = guards.guards_log.isEnabledFor
        guards.profile_guard_manager = lambda *args: inner(*args) if timed(logging.DEBUG) else 0.0


def follow() -> None:
    """Have Dynamo spare all this, and Python's cycle collector rest while it compiles: it finds nothing, and takes a tenth of the
    time. Called for every function that is compiled, for ``torch._dynamo.reset`` forgets it."""
    from torch._dynamo.callback import callback_handler

    from torch_tpu._compile import breaks, optimizers

    _ask_no_cuda_graphs()
    _do_not_time_guards()
    _import_no_more()
    breaks.foresee()
    optimizers.follow()
    if _pause not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_pause)
        callback_handler.register_end_callback(_go_on)
