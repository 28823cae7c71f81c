"""``torch.tpu.profiler``: settings for ``torch.profiler`` on a TPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

_KEYS = ("host_tracer_level", "device_tracer_level", "python_tracer_level", "run_dir", "worker_rank", "check_experimental_options")


def _plain(what: str, text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"expected {what} as a string, got {text!r}")
    if ":" in text or "," in text:
        raise ValueError(f"{what} must not contain ':' or ',': {text!r}")
    return text


def _value(v: Any) -> str:
    if isinstance(v, bool):
        return str(v).lower()
    if isinstance(v, int):
        return str(v)
    if isinstance(v, str):
        escaped = v.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    raise TypeError(f"expected an option's value as an int, bool or str, got {v!r}")


class TpuProfilerConfig(torch.profiler._ExperimentalConfig):
    """To give as ``experimental_config`` to ``torch.profiler.profile``.

    A TPU's tracer reads it. On a simulated device there is no such tracer, and it has no effect.

    Args:
        host_tracer_level: 0 off, 1 the user's annotations, 2 XLA's too, 3 all.
        device_tracer_level: 0 off, 1 on.
        python_tracer_level: 0 off, 1 on.
        run_dir: where traces are written; None: beside the profiler's own.
        worker_rank: added to the names of files.
        experimental_options: further options, passed on.
        check_experimental_options: whether the tracer refuses those it does not know.

    Raises:
        TypeError, ValueError: for a rank or option that cannot be passed on.
    """

    def __init__(
        self,
        *,
        host_tracer_level: int = 2,
        device_tracer_level: int = 1,
        python_tracer_level: int = 0,
        run_dir: os.PathLike[str] | str | None = None,
        worker_rank: str | None = None,
        experimental_options: Mapping[str, int | bool | str] | None = None,
        check_experimental_options: bool = True,
    ) -> None:
        parts = [
            f"host_tracer_level:{host_tracer_level}",
            f"device_tracer_level:{device_tracer_level}",
            f"python_tracer_level:{python_tracer_level}",
        ]
        if run_dir is not None:
            parts.append(f"run_dir:{os.fspath(run_dir)}")
        if worker_rank is not None:
            parts.append(f"worker_rank:{_value(_plain('worker_rank', worker_rank))}")
        for name, value in (experimental_options or {}).items():
            if name in _KEYS:
                raise ValueError(f"{name} is an argument of its own, not an experimental option")
            parts.append(f"{_plain('an option name', name)}:{_value(value)}")
        if experimental_options:
            parts.append(f"check_experimental_options:{_value(check_experimental_options)}")
        super().__init__(custom_profiler_config=",".join(parts))
