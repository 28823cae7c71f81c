"""``torch.tpu``: the device's module, with the names users of ``torch.cuda`` know."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, overload

import torch

from torch_tpu._mode import EagerMode as EagerMode
from torch_tpu._mode import ModuleWithMode, follow_environment
from torch_tpu._mode import set_eager_mode as set_eager_mode
from torch_tpu._mode import set_value_checks as set_value_checks

_C: Any = sys.modules["torch_tpu._C"]


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


def _index(device: Any) -> int:
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device if device >= 0 else _C.current_device()
    d = torch.device(device)
    if d.type != "tpu":
        raise ValueError(f"expected a tpu device, got {d}")
    return _C.current_device() if d.index is None else d.index


def current_device() -> int:
    """Index of this thread's current ``tpu`` device."""
    return _C.current_device()


def set_device(device: Any) -> None:
    """Make ``device`` (an index, string or ``torch.device``) this thread's current one."""
    torch.accelerator.set_device_index(_index(device))


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
    """Programs made so far in this process.

    Returns:
        ``programs`` executables compiled or loaded, ``compiled`` of them by the compiler, ``loaded`` from the disk cache,
        ``seconds`` spent compiling (summed over threads), ``calls`` ops run.
    """
    s = _C.stats(_index(device))
    return {
        "programs": s["programs_compiled"] + s["programs_loaded"],
        "compiled": s["programs_compiled"],
        "loaded": s["programs_loaded"],
        "seconds": s["compile_ns"] / 1e9,
        "calls": s["calls"],
    }


def fallbacks() -> dict[str, int]:
    """Ops that ran on the CPU because the device has no program for them: overload name -> number of calls."""
    return _C.fallbacks()


def reset_fallbacks() -> None:
    """Forget what ``fallbacks`` counted."""
    _C.reset_fallbacks()


def set_fallback(allowed: bool) -> None:
    """Allow ops without a program to run on the CPU (the default), or make them an error."""
    _C.set_fallback_is_error(not allowed)


def memory_allocated(device: Any = None) -> int:
    """Bytes held by tensors on ``device`` now."""
    return _C.stats(_index(device))["live_bytes"]


def max_memory_allocated(device: Any = None) -> int:
    """Highest ``memory_allocated`` since the start or the last ``reset_peak_memory_stats``, in bytes."""
    return _C.stats(_index(device))["peak_bytes"]


def reset_peak_memory_stats(device: Any = None) -> None:
    """Start ``max_memory_allocated`` anew from what is held now."""
    _C.reset_peak(_index(device))


def max_memory_reserved(device: Any = None) -> int:
    """As :func:`max_memory_allocated`: nothing is kept back for later tensors."""
    return max_memory_allocated(device)


def memory_reserved(device: Any = None) -> int:
    """As :func:`memory_allocated`: nothing is kept back for later tensors."""
    return memory_allocated(device)


def memory_stats(device: Any = None) -> dict[str, int]:
    """Memory of ``device`` in bytes, under ``torch.cuda.memory_stats``' names."""
    s = _C.stats(_index(device))
    names = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
    now = {f"{n}.all.current": s["live_bytes"] for n in names}
    return dict(sorted((now | {f"{n}.all.peak": s["peak_bytes"] for n in names}).items()))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of ``device``'s memory; the machine's memory where the device is simulated."""
    index = _index(device)
    total = _C.device_info(index)["memory_limit_bytes"]
    return max(0, total - memory_allocated(index)), total


def empty_cache() -> None:
    """Does nothing: freed buffers go back to the device at once."""


# -------------------------------------------------------------------------------------------------------- random numbers


def _generator(device: Any = None) -> torch.Generator:
    return torch.ops.tpu.default_generator(_index(device))


class _Generators(Sequence[torch.Generator]):
    """The devices' own generators. Counted when asked, for counting may have to look for hardware."""

    def __len__(self) -> int:
        return device_count()

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[torch.Generator, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        found = range(len(self))[index]
        return tuple(_generator(i) for i in found) if isinstance(found, range) else _generator(found)


default_generators: Sequence[torch.Generator] = _Generators()
"""The generator of each device, that random ops use when none is given."""


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator. ``torch.manual_seed`` does this too."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seed the current device's generator with a number from the operating system, and return it."""
    return _generator().seed()


def seed_all() -> None:
    """Seed every device's generator with one number from the operating system."""
    manual_seed_all(seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator().initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """State of ``device``'s generator: 16 bytes on the CPU, the seed and the offset (both uint64, in the machine's byte order)."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """:func:`get_rng_state` of every device."""
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Put ``device``'s generator back to a state from :func:`get_rng_state`.

    Raises:
        RuntimeError: if ``new_state`` is not a uint8 CPU tensor of 16 elements.
    """
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Sequence[torch.Tensor]) -> None:
    """:func:`set_rng_state` of every device."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


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


# ------------------------------------------------------------------------------------------------ precision of products

_PRECISION = {"highest": 0, "high": 1, "medium": 2}


def _follow_matmul_precision() -> None:
    """Keep the core's precision at ``torch.set_float32_matmul_precision``'s.

    PyTorch tells no device of a change, so the binding under the public function is wrapped: whichever way the function was
    imported, it goes through.
    """
    inner = torch._C._set_float32_matmul_precision

    @functools.wraps(inner)
    def set_precision(precision: str) -> None:
        inner(precision)
        _C.set_matmul_precision(_PRECISION[torch.get_float32_matmul_precision()])

    torch._C._set_float32_matmul_precision = set_precision  # type: ignore[assignment]
    _C.set_matmul_precision(_PRECISION[torch.get_float32_matmul_precision()])


_follow_matmul_precision()
follow_environment()
sys.modules[__name__].__class__ = ModuleWithMode
