"""``torch.tpu.memory``: what tensors hold of a device's memory. The names are ``torch.tpu``'s too.

A tensor takes its memory when the op that makes it is launched, and gives it back to the device when the last use is gone: nothing
is cached, so what is reserved is what is allocated. The functions here launch what is queued first (without waiting for its
results), so that the numbers are those of the program so far. A tensor that was made by ``torch.empty`` and never used takes none.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch

from torch_tpu.tpu._common import _C, index

OutOfMemoryError = torch.OutOfMemoryError
"""Raised where a tensor does not fit. Nothing is lost: free some and go on."""


def _stats(device: Any) -> dict[str, int]:
    i = index(device)
    if not _C.is_open() and i < _C.device_count():
        return {"live_bytes": 0, "peak_bytes": 0, "made_bytes": 0, "live_buffers": 0, "peak_buffers": 0, "made_buffers": 0}
    _C.flush(i)
    return _C.stats(i)


def memory_allocated(device: Any = None) -> int:
    """Bytes held by tensors on ``device`` now."""
    return _stats(device)["live_bytes"]


def max_memory_allocated(device: Any = None) -> int:
    """Highest ``memory_allocated`` since the start or the last ``reset_peak_memory_stats``, in bytes."""
    return _stats(device)["peak_bytes"]


def memory_reserved(device: Any = None) -> int:
    """As :func:`memory_allocated`: nothing is kept back for later tensors."""
    return memory_allocated(device)


def max_memory_reserved(device: Any = None) -> int:
    """As :func:`max_memory_allocated`: nothing is kept back for later tensors."""
    return max_memory_allocated(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Start the peaks anew from what is held now."""
    if _C.is_open():
        _C.flush(index(device))
        _C.reset_peak(index(device))


reset_max_memory_allocated = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Start the ``allocated`` and ``freed`` statistics anew from what is held now."""
    if _C.is_open():
        _C.flush(index(device))
        _C.reset_made(index(device))


def memory_stats(device: Any = None) -> collections.OrderedDict[str, int]:
    """Memory of ``device``, under ``torch.cuda.memory_stats``' names; empty before the first tensor.

    Returns:
        ``{allocated_bytes,active_bytes,requested_bytes,reserved_bytes}.all.{current,peak,allocated,freed}`` in bytes;
        ``{allocation,active,segment}.all.{current,peak,allocated,freed}`` in buffers; ``num_device_alloc`` and
        ``num_device_free``. There are no pools of large and small blocks: these, and what else only a caching allocator has, are 0.
    """
    return torch.accelerator.memory_stats(index(device)) if _C.is_open() else collections.OrderedDict()


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """:func:`memory_stats` as a dict of dicts: ``{"allocated_bytes": {"all": {"current": ..}}}``."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *path, last = name.split(".")
        at = nested
        for part in path:
            at = at.setdefault(part, {})
        at[last] = value
    return nested


def _size(n: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 10 * 1024 or unit == "GiB":
            break
        n //= 1024
    return f"{n} {unit}"


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of :func:`memory_stats` to print.

    Args:
        device: as everywhere.
        abbreviated: leave out what is the same as another row.
    """
    stats = collections.defaultdict(int, memory_stats(device))
    rows: list[tuple[str, str, Callable[[int], str]]] = [
        ("Allocated memory", "allocated_bytes", _size),
        ("Allocations", "allocation", str),
    ]
    if not abbreviated:
        rows += [("Active memory", "active_bytes", _size), ("Reserved memory", "reserved_bytes", _size)]
    head = f"{'Metric':<18}|{'Cur Usage':>12} |{'Peak Usage':>12} |{'Tot Alloc':>12} |{'Tot Freed':>12} "
    title = f" torch.tpu memory summary, device {index(device)} "
    lines = [title.center(len(head), "="), head, "-" * len(head)]
    for label, name, show in rows:
        cells = (f"{show(stats[f'{name}.all.{k}']):>12} " for k in ("current", "peak", "allocated", "freed"))
        lines.append("|".join((f"{label:<18}", *cells)))
    return "\n".join([*lines, "=" * len(head)])


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of ``device``'s memory; of the machine's memory where the device is simulated. Opens the device."""
    i = index(device)
    total = _C.device_info(i)["memory_limit_bytes"]
    return max(0, total - _stats(i)["live_bytes"]), total


get_memory_info = mem_get_info


def empty_cache() -> None:
    """Wait for all work, then give memory that is only kept for speed back to the system."""
    if _C.is_open():
        _C.reclaim()


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let this process's tensors on ``device`` hold at most this part of its memory, as ``torch.cuda``'s function does.

    The variable ``TORCH_TPU_MEMORY_LIMIT`` sets the limit at the start: bytes (``12G``) or a part (``0.5``).

    Args:
        fraction: 0 to 1.
        device: as everywhere.

    Raises:
        ValueError: if ``fraction`` is not between 0 and 1.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    i = index(device)
    _C.set_memory_limit(i, max(1, int(fraction * _C.device_info(i)["memory_limit_bytes"])))


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The part of ``device``'s memory that this process's tensors may hold."""
    i = index(device)
    return min(1.0, _C.stats(i)["limit_bytes"] / _C.device_info(i)["memory_limit_bytes"])


def ipc_collect() -> None:
    """Does nothing: no memory of the device is shared between processes."""


def get_allocator_backend() -> str:
    """``"pjrt"``: the plugin allocates."""
    return "pjrt"
