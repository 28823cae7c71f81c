"""TorchTPU's environment variables that have a meaning here, under our names. ``docs/ENVIRONMENT.md`` lists all."""

from __future__ import annotations

import os


def _cache_root() -> None:
    root = os.environ.get("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT", "")
    name = "TORCH_TPU_CACHE_SHARED" if "://" in root else "TORCH_TPU_CACHE_DIR"
    if root and name not in os.environ:
        os.environ[name] = root


def _rank_in_flags() -> None:
    """``XLA_FLAGS`` may say ``${RANK}``, for files of each process."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "${RANK}" in flags:
        os.environ["XLA_FLAGS"] = flags.replace("${RANK}", os.environ.get("RANK", "0"))


def follow() -> None:
    """Called before a plugin may be loaded, which reads its variables then."""
    _cache_root()
    _rank_in_flags()
