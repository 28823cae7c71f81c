"""``torch.tpu``: the device's module, with the names users of ``torch.cuda`` know."""

from __future__ import annotations

import sys
from typing import Any

import torch

_C: Any = sys.modules["torch_tpu._C"]


def is_available() -> bool:
    """True if a ``tpu`` tensor can be made: a TPU is attached, or a CPU plugin stands in for one. Loads nothing."""
    return _C.device_count() > 0


def device_count() -> int:
    """Number of ``tpu`` devices this process may use. Loads nothing."""
    return _C.device_count()


def is_initialized() -> bool:
    """True: the device needs no initialisation beyond the import."""
    return True


def _lazy_init() -> None:
    return None


def _is_in_bad_fork() -> bool:
    return False


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


def empty_cache() -> None:
    """Does nothing: freed buffers go back to the device at once."""


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    generator = torch._C._get_privateuse1_backend_name and default_generator()
    generator.manual_seed(seed)


def default_generator(device: Any = None) -> torch.Generator:
    """The generator that random ops on ``device`` use when none is given."""
    return torch._C._default_generator_for("tpu", _index(device))  # type: ignore[attr-defined]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Types ``torch.autocast("tpu")`` may lower to."""
    return [torch.bfloat16, torch.float16, torch.float32]
