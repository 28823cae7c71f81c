"""Precision of float32 products: ``torch.set_float32_matmul_precision`` and ``torch.tpu.precision``."""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Iterator
from typing import Any

import torch

from torch_tpu.tpu._common import _C


class Precision(enum.Enum):
    """How exactly float32 matrix products and convolutions are computed, by StableHLO's names."""

    DEFAULT = 2
    """Fastest: one pass in bfloat16 on a TPU; ``torch.set_float32_matmul_precision``'s "medium"."""
    HIGH = 1
    """Three passes in bfloat16 on a TPU; "high"."""
    HIGHEST = 0
    """float32 results; "highest"."""


_LEVEL = {"highest": 0, "high": 1, "medium": 2}
_FP32_LEVEL = {"ieee": 0, "tf32": 1, "bf16": 2}
_scopes: list[Precision] = []


def _chosen() -> int:
    """What PyTorch's two settings say: ``torch.backends.fp32_precision`` where it is set, else the older one."""
    name = torch._C._get_fp32_precision_getter("generic", "all")
    return _FP32_LEVEL[name] if name in _FP32_LEVEL else _LEVEL[torch.get_float32_matmul_precision()]


def _use() -> None:
    _C.set_matmul_precision(_scopes[-1].value if _scopes else _chosen())


@contextlib.contextmanager
def precision(mode: Precision) -> Iterator[None]:
    """Context manager: products of ops called inside the block are computed this exactly.

    It goes before ``torch.set_float32_matmul_precision``, whose setting is in force again after the block.

    Args:
        mode: a :class:`Precision`.

    Raises:
        ValueError: if ``mode`` is not one.
    """
    if not isinstance(mode, Precision):
        raise ValueError(f"expected torch.tpu.Precision.DEFAULT, HIGH or HIGHEST, got {mode!r}")
    _scopes.append(mode)
    _use()
    try:
        yield
    finally:
        _scopes.pop()
        _use()


def follow() -> None:
    """Keep the core's precision at ``torch.set_float32_matmul_precision``'s and ``torch.backends.fp32_precision``'s.

    PyTorch tells no device of a change, so the bindings under the public names are wrapped: whichever way those were imported, a
    change goes through them.
    """
    for binding in ("_set_float32_matmul_precision", "_set_fp32_precision_setter"):
        inner = getattr(torch._C, binding)

        def set_precision(*args: str, inner: Any = inner) -> Any:
            result = inner(*args)
            _use()
            return result

        setattr(torch._C, binding, functools.wraps(inner)(set_precision))
    _use()
