"""``torch.tpu.amp``: ``torch.amp`` for the tpu device."""

import functools
from typing import Any

import torch

GradScaler = functools.partial(torch.amp.GradScaler, "tpu")
custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="tpu")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="tpu")


class autocast(torch.autocast):
    """``torch.autocast("tpu")``; ``dtype`` is bfloat16 unless given."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool | None = None) -> None:
        super().__init__("tpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    def __enter__(self) -> Any:
        return super().__enter__()
