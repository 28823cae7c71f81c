"""``torch.tpu``: the device's module, with the names users of ``torch.cuda`` know."""

# ruff: noqa: F401  what is imported here is public
from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import re
import sys
from typing import Any

import torch

from torch_tpu import _core
from torch_tpu._mode import EagerMode, ModuleWithMode, follow_environment, set_eager_mode, set_value_checks
from torch_tpu.tpu import _options, _precision, memory, random
from torch_tpu.tpu._common import _C
from torch_tpu.tpu._common import index as _index
from torch_tpu.tpu._precision import Precision, precision
from torch_tpu.tpu.memory import (
    OutOfMemoryError,
    empty_cache,
    get_allocator_backend,
    get_memory_info,
    get_per_process_memory_fraction,
    ipc_collect,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_tpu.tpu.random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)


def is_available() -> bool:
    """True if a ``tpu`` tensor can be made: a TPU is attached, or a CPU plugin stands in for one. Loads nothing."""
    return _C.device_count() > 0


def device_count() -> int:
    """Number of ``tpu`` devices this process may use. Loads nothing."""
    return _C.device_count()


def is_initialized() -> bool:
    """True once a device has been opened, by its first tensor."""
    return _C.is_open()


# torch.utils.checkpoint keeps a device's random state only if its module says so.
_initialized = True


def _lazy_init() -> None:
    return None


_forked_open = False


def _after_fork() -> None:
    global _forked_open
    _forked_open = _C.is_open()


os.register_at_fork(after_in_child=_after_fork)


def _is_in_bad_fork() -> bool:
    """True in a child of a process that had opened a device: its threads and its device did not come along."""
    return _forked_open


def init() -> None:
    """Does nothing: the device is opened by its first tensor."""


def current_device() -> int:
    """Index of this thread's current ``tpu`` device."""
    return _C.current_device()


def set_device(device: Any) -> None:
    """Make ``device`` (an index, string or ``torch.device``) this thread's current one."""
    torch.accelerator.set_device_index(_index(device))


def _exchange_device(device: int) -> int:
    """Make ``device`` current and give the one before; a negative one changes nothing (then -1)."""
    if device < 0:
        return -1
    before = _C.current_device()
    set_device(device)
    return before


_maybe_exchange_device = _exchange_device


class device:
    """Context manager: make ``device`` the current one inside the block.

    Args:
        device: an index, ``torch.device`` or string; negative or None changes nothing.
    """

    def __init__(self, device: Any) -> None:
        self.idx = _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _C.current_device()
        set_device(self.idx)

    def __exit__(self, *_: object) -> None:
        set_device(self.prev_idx)


class device_of(device):
    """Context manager: make the device of ``obj`` current, if it is a ``tpu`` tensor."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device if obj.device.type == "tpu" else None)


def synchronize(device: Any = None) -> None:
    """Wait until all work given to ``device`` is done.

    Raises:
        RuntimeError: the first error of an op whose result nobody has read, with the op's name.
    """
    _C.synchronize(_index(device))


def get_device_name(device: Any = None) -> str:
    """What runs a ``tpu`` device: the chip, or the CPU plugin that stands in for one."""
    info = _C.device_info(_index(device))
    return f"{info['device_kind']} (simulated TPU on XLA:CPU)" if info["simulated"] else info["device_kind"]


def compile_stats(device: Any = None) -> dict[str, Any]:
    """What was compiled so far in this process.

    Returns:
        ``programs``: executables made; ``compiled`` of them by the compiler, ``loaded`` from the disk cache or, ``shared`` of
        those, from the shared directory behind it. ``seconds``: spent compiling, summed over threads. ``calls``: ops and programs
        run; all but ``programs`` of them found a program in memory. Of ``torch.compile``: ``graphs`` it gave to the backend,
        ``traces`` of them that PyTorch's cache had, ``recompiles`` (function, line, the guard that did not hold), ``op_by_op``:
        parts of graphs that are not run as programs, and why; ``dynamic``: of graphs with symbolic sizes, the programs
        ``bounded`` that serve all lengths up to a bound, those ``exact`` for one set of sizes, and ``refused``, why graphs have
        none of the first kind (reason -> number of graphs).
    """
    from torch_tpu._bounds import stats as dynamic

    s = _C.stats(_index(device))
    shared = _core.core().ttc_tier_hits()
    stats: dict[str, Any] = {
        "programs": s["programs_compiled"] + s["programs_loaded"],
        "compiled": s["programs_compiled"],
        "loaded": s["programs_loaded"],
        "shared": shared,
        "seconds": s["compile_ns"] / 1e9,
        "calls": s["calls"],
        "graphs": 0,
        "traces": 0,
        "recompiles": [],
        "op_by_op": {},
        "dynamic": {"bounded": dynamic.bounded, "exact": dynamic.exact, "refused": dict(dynamic.refused)},
    }
    compiling = sys.modules.get("torch_tpu._compile")
    if compiling is not None:
        watch = compiling.watch
        stats |= {"graphs": watch.made["graphs"], "traces": watch.made["loaded"], "recompiles": watch.recompiles()}
        stats["op_by_op"] = {name: str(why) for name, why in compiling.refused.items()}
    return stats


def fuse_stats(device: Any = None) -> dict[str, Any]:
    """What became of the calls that ``EagerMode.FUSE`` kept back. docs/MODES.md tells how to read it.

    Returns:
        ``nodes``: calls kept back; ``runs``: pieces that they were cut into; ``hits``: pieces run by one program, with ``fused``
        calls in them; ``traces``: different pieces; ``programs``: fused programs asked for, of them ``compiling`` not ready yet
        and ``failed`` given up (their calls go on running one by one); ``nodes_per_cut``; ``unwritten_nbyte``: bytes of results
        that fused programs never wrote, since nobody could read them any more; ``cuts``: reason -> number, with the reasons
        ``read`` (a value was read), ``sync``, ``event``, ``loop`` (what comes begins again), ``nodes`` (as long as a piece may
        be), ``memory``, ``idle`` (nothing was called for some milliseconds), ``mode`` (a call of another mode), ``call`` (one
        that cannot be kept back).

    Example:
        >>> torch.tpu.eager_mode = torch.tpu.EagerMode.FUSE
        >>> train()
        >>> torch.tpu.fuse_stats()["cuts"]
        {'loop': 99, 'sync': 1}
    """
    s: dict[str, Any] = _C.fuse_stats(_index(device))
    s["nodes_per_cut"] = s["nodes"] / s["runs"] if s["runs"] else 0.0
    return s


def flush(device: Any = None) -> None:
    """Start all work given to ``device`` so far, without waiting for it. In ``EagerMode.FUSE``: cut here."""
    _C.flush(_index(device))


def fallbacks() -> dict[str, int]:
    """Ops that ran on the CPU because the device has no program for them: overload name -> number of calls."""
    return _C.fallbacks()


def reset_fallbacks() -> None:
    """Forget what ``fallbacks`` counted."""
    _C.reset_fallbacks()


def set_fallback(allowed: bool) -> None:
    """Allow ops without a program to run on the CPU (the default), or make them an error."""
    _C.set_fallback_is_error(not allowed)


# ---------------------------------------------------------------------------------------------------- streams and events


class _OnTpu(type):
    """PyTorch's own streams and events take no subclass as an argument, so those of a tpu device are plain ones under this name."""

    kind: type

    def __instancecheck__(cls, obj: object) -> bool:
        return isinstance(obj, cls.kind) and obj.device.type == "tpu"  # type: ignore[attr-defined]


class Stream(metaclass=_OnTpu):
    """A stream of a ``tpu`` device: a ``torch.Stream``.

    Every stream of a device is its one queue, which runs calls in the order they were made, so any order between streams that
    a program asks for already holds.

    Args:
        device: where the stream is; None: the current device.
        priority: accepted and without effect.
    """

    kind = torch.Stream

    def __new__(cls, device: Any = None, priority: int = 0) -> torch.Stream:  # type: ignore[misc]
        return torch.Stream(torch.device("tpu", _index(device)), priority=priority)


class Event(metaclass=_OnTpu):
    """A point in the device's work: a ``torch.Event``.

    Args:
        enable_timing: whether ``elapsed_time`` (milliseconds between the moments two events were reached) may be asked.
        blocking: accepted and without effect: waiting never spins.
        interprocess: not supported.
    """

    kind = torch.Event

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:  # type: ignore[misc]
        return torch.Event("tpu", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


def current_stream(device: Any = None) -> torch.Stream:
    """The stream that this thread's calls on ``device`` go to."""
    return torch.accelerator.current_stream(_index(device))


def default_stream(device: Any = None) -> torch.Stream:
    """The stream that calls on ``device`` go to when none was set."""
    now = current_stream(device)
    return torch.Stream(stream_id=0, device_index=now.device_index, device_type=now.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Make ``stream`` this thread's current one; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Context manager: make ``stream`` the current one inside the block; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self.before: torch.Stream | None = None

    def __enter__(self) -> None:
        if self.stream is not None:
            self.before = current_stream(self.stream.device_index)
            set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        set_stream(self.before)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager: make ``stream`` the current one inside the block."""
    return StreamContext(stream)


# ------------------------------------------------------------------------------------------------------ what a device is


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What is known of a device.

    Attributes:
        name: the chip, or the CPU plugin that stands in for one.
        total_memory: bytes.
        multi_processor_count: 1: a device is one program at a time.
        platform: "tpu", or "cpu" where the device is simulated.
        simulated: whether an XLA:CPU plugin stands in for the TPU.
        major, minor: the TPU's generation, as :func:`get_device_capability`.
    """

    name: str
    total_memory: int
    multi_processor_count: int
    platform: str
    simulated: bool
    major: int
    minor: int


def get_device_properties(device: Any = None) -> DeviceProperties:
    """What is known of ``device``. Loads the plugin."""
    index = _index(device)
    info = _C.device_info(index)
    major, minor = get_device_capability(index)
    return DeviceProperties(
        get_device_name(index), info["memory_limit_bytes"], 1, info["platform"], info["simulated"], major, minor
    )


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The TPU's generation as (major, minor): (5, 0) for a v5e or v5p; (0, 0) where the device is simulated."""
    found = re.search(r"(?:v|TPU)\s*(\d+)", _C.device_info(_index(device))["device_kind"])
    return (int(found[1]), 0) if found and not _C.device_info(_index(device))["simulated"] else (0, 0)


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """False: a process drives its devices through one host; copies between two go through host memory."""
    return _index(device) == _index(peer_device)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Types ``torch.autocast("tpu")`` may lower to."""
    return [torch.bfloat16, torch.float16, torch.float32]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: bfloat16 is a TPU's own type. On a simulated device the CPU may have to emulate it."""
    return including_emulation or not _C.device_info(_C.current_device())["simulated"]


def is_current_stream_capturing() -> bool:
    """False: there are no graphs to capture; ``torch.compile(backend="tpu")`` makes whole programs."""
    return False


# ------------------------------------------------------------------------------------------------------- the module itself

_precision.follow()
follow_environment()

_SUBMODULES = ("amp", "compiler", "distributed", "ops", "optimizers", "pallas", "profiler")


_TENSORS = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


@functools.cache
def _tensor_type(name: str) -> type:
    """``torch.tpu.FloatTensor`` and the like: for ``isinstance``, ``tensor.type(..)``, and to make a tensor of sizes or of data."""
    dtype = _TENSORS[name]

    class Kind(type):
        def __instancecheck__(cls, obj: object) -> bool:
            return isinstance(obj, torch.Tensor) and obj.device.type == "tpu" and obj.dtype == dtype

    def new(cls: type, *data: Any) -> torch.Tensor:
        if len(data) == 1 and not isinstance(data[0], int | torch.Size):
            return torch.tensor(data[0], dtype=dtype, device="tpu")
        return torch.empty(data[0] if data and isinstance(data[0], torch.Size) else data or (0,), dtype=dtype, device="tpu")

    # PyTorch knows a type that it is given by this name.
    return Kind(f"torch.tpu.{name}", (), {"__new__": new, "dtype": dtype, "is_sparse": False, "__module__": "torch.tpu"})


def __getattr__(name: str) -> Any:
    if name in _TENSORS:
        return _tensor_type(name)
    if name in _SUBMODULES:
        return importlib.import_module(f"torch.tpu.{name}")
    raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")


_PRIVATE = {
    "annotations",
    "dataclasses",
    "functools",
    "importlib",
    "os",
    "re",
    "sys",
    "torch",
    "Any",
    "ModuleWithMode",
    "follow_environment",
}


def __dir__() -> list[str]:
    names = {name for name in globals() if not name.startswith("_") or name.startswith("__")}
    return sorted({*names, *_SUBMODULES, *_TENSORS, "allow_excess_precision", "eager_mode"} - _PRIVATE)


class _Module(ModuleWithMode):
    @property
    def allow_excess_precision(self) -> bool:
        """Whether XLA may keep more digits than a type has, between the ops of one program. Settable; programs compiled from
        then on follow."""
        return _options.get_excess_precision()

    @allow_excess_precision.setter
    def allow_excess_precision(self, value: bool) -> None:
        _options.set_excess_precision(value)


sys.modules[__name__].__class__ = _Module
# `import torch.tpu.memory` finds these, not second copies.
sys.modules |= {"torch.tpu.memory": memory, "torch.tpu.random": random}
