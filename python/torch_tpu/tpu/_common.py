"""What the parts of ``torch.tpu`` share: the adapter's functions, and devices by number."""

import sys
from typing import Any

import torch

_C: Any = sys.modules["torch_tpu._C"]


def index(device: Any) -> int:
    """Number of a device given as an index, string, ``torch.device`` or None (the current one).

    Raises:
        ValueError: if it is another kind of device.
    """
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device if device >= 0 else _C.current_device()
    d = torch.device(device)
    if d.type != "tpu":
        raise ValueError(f"expected a tpu device, got {d}")
    return _C.current_device() if d.index is None else d.index
