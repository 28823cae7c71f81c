"""A shorter way into compiled functions.

Most of what a call of a small compiled function costs is Dynamo's: a wrapper in Python, the frame's interception, and calls in the
code it generated that record streams and profiler ranges (11 of the 15 microseconds that Inductor takes to add two numbers). Where
a function was compiled without a graph break, all that is needed is its guards: if they pass, the generated code is run, with these
calls taken out of it. Anything else goes Dynamo's way.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_tpu._compile.program import Compiled

_BYTECODE_INPUTS = "__import_torch_dot__dynamo_dot_graph_bytecode_inputs"
_UTILS = "__import_torch_dot__dynamo_dot_utils"
_TIMED = ("get_current_stream", "record_pregraph_bytecode_enter", "record_pregraph_bytecode_exit")  # of _UTILS
_GIVE_UP = 32  # misses in a row


def _nothing(*args: Any) -> None:
    return None


class _Quiet:
    """A module that Dynamo's code uses, without what costs time; attributes that are not given here are the module's."""

    def __init__(self, module: types.ModuleType, **attributes: Any) -> None:
        self._module = module
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _backend_of(callback: Any) -> Any:
    while hasattr(callback, "_torchdynamo_orig_backend"):
        callback = callback._torchdynamo_orig_backend
    return callback


class _Way:
    """One compiled variant of a function: its guards, and the code to run if they pass."""

    def __init__(self, fn: types.FunctionType, entry: Any) -> None:
        self.guards = entry.guard_manager
        self.check: Callable[[Mapping[str, Any]], bool] = self.guards.check
        scope = fn.__globals__
        names = {n: n for n in entry.code.co_names}
        for n in names:
            if n.startswith("__compiled_fn"):
                names[n] = f"{n}_direct"
                graph = scope[n]._torch_tpu_direct
                scope[names[n]] = (graph.direct or graph.flat) if isinstance(graph, Compiled) else graph
            elif n == _BYTECODE_INPUTS:
                names[n] = f"{n}_quiet"
                scope[names[n]] = _Quiet(scope[n], store_user_object_weakrefs=_nothing)
            elif n == _UTILS:
                names[n] = f"{n}_quiet"
                scope[names[n]] = _Quiet(scope[n], **dict.fromkeys(_TIMED, _nothing))
        code = entry.code.replace(co_names=tuple(names[n] for n in entry.code.co_names))
        self.run = types.FunctionType(code, scope, fn.__name__, fn.__defaults__, fn.__closure__)


def _ways(fn: types.FunctionType, backend: Any) -> list[_Way]:
    """The variants that can be called like this, of those compiled so far."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    found = []
    for entry in _debug_get_cache_entry_list(fn.__code__):
        if entry.code is None:  # what it was compiled for is gone
            continue
        graphs = [n for n in entry.code.co_names if n.startswith("__compiled_fn")]
        resumes = any("resume" in n for n in entry.code.co_names)
        if (
            len(graphs) != 1
            or resumes
            or _backend_of(entry.backend) != backend
            or entry.code.co_freevars != fn.__code__.co_freevars
        ):
            continue
        if getattr(fn.__globals__.get(graphs[0]), "_torch_tpu_direct", None) is not None:
            found.append(_Way(fn, entry))
    return found


def quick(compiled: Any) -> Any:
    """``compiled``, which ``torch.compile`` made of a function, with a shorter way in; itself if it is something else."""
    from torch._dynamo import eval_frame

    fn = getattr(compiled, "_torchdynamo_orig_callable", None)
    if not isinstance(compiled, types.FunctionType) or not isinstance(fn, types.FunctionType):
        return compiled
    code = fn.__code__
    cells = dict(zip(compiled.__code__.co_freevars, compiled.__closure__ or (), strict=True))
    if code.co_kwonlyargcount or code.co_flags & 0x0C or "callback" not in cells:  # *args, **kwargs
        return compiled
    backend = _backend_of(cells["callback"].cell_contents)
    names = code.co_varnames[: code.co_argcount]
    free = code.co_freevars
    set_eval_frame, is_tracing, is_fx_tracing = (
        eval_frame.set_eval_frame,
        torch._C._is_tracing,
        torch.fx._symbolic_trace.is_fx_symbolic_tracing,
    )
    ways: list[_Way] = []
    misses = 0

    @functools.wraps(compiled)
    def entry(*args: Any, **kwargs: Any) -> Any:
        nonlocal ways, misses
        if misses < _GIVE_UP and not kwargs and len(args) == len(names) and eval_frame._stance.stance == "default":
            seen = dict(zip(names, args, strict=True))
            prior = set_eval_frame(None)
            try:
                if free:
                    seen.update(zip(free, [c.cell_contents for c in fn.__closure__ or ()], strict=True))
                for way in ways:
                    if way.guards.cache_entry is not None and way.check(seen) and not is_tracing() and not is_fx_tracing():
                        misses = 0
                        return way.run(*args)
            finally:
                set_eval_frame(prior)
            misses += 1
            out = compiled(*args)
            ways = _ways(fn, backend)
            return out
        return compiled(*args, **kwargs)

    entry._torchdynamo_wrapper_id = id(entry)  # type: ignore[attr-defined]
    return entry
