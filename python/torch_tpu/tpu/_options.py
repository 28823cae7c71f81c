"""Options for XLA's compiler: what ``torch.tpu.compiler`` and ``torch.tpu.allow_excess_precision`` set.

The core compiles each program under a numbered list of options, and keys it by that number. Here is which list is in force.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from torch_tpu._settings import mapping
from torch_tpu.tpu._common import _C

_always: dict[str, str] = {}  # set by properties, for good
_scopes: list[dict[str, str]] = []  # of the context managers entered, each with what it inherits


def _text(name: Any, value: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"\w+", name):
        raise ValueError(f"expected the name of an XLA option, such as 'xla_cpu_enable_fast_math', got {name!r}")
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise TypeError(f"expected option {name} as a str, bool, int or float, got {type(value).__name__}")
    return str(value)


def _use() -> None:
    options = _always | (_scopes[-1] if _scopes else {})
    if not options:
        _C.use_compile_options(0)
        return
    _C.use_compile_options(_listed(options))


def _listed(options: Mapping[str, str]) -> int:
    try:
        return _C.add_compile_options(_C.current_device(), [f"{k}={v}" for k, v in options.items()])
    except RuntimeError as e:
        raise ValueError(f"the compiler refuses these options: {str(e).removeprefix('PJRT_Client_Compile: ')}") from None


def number(options: Mapping[str, Any]) -> int:
    """The core's number of a list of options: those set for good, and these.

    Raises:
        ValueError: for an option the compiler does not know, or a value it cannot read.
    """
    return _listed(_always | {k: _text(k, v) for k, v in options.items()})


def push(options: Mapping[str, Any]) -> None:
    """Add options to those in force. An error leaves these as they were.

    Raises:
        ValueError: for an option the compiler does not know, or a value it cannot read.
    """
    outer = _scopes[-1] if _scopes else {}
    _scopes.append(outer | {k: _text(k, v) for k, v in mapping(options).items()})
    try:
        _use()
    except BaseException:
        _scopes.pop()
        raise


def pop() -> None:
    """Undo the last :func:`push`."""
    _scopes.pop()
    _use()


_EXCESS = "xla_allow_excess_precision"


def get_excess_precision() -> bool:
    """What programs are compiled with: what was set, else what XLA_FLAGS says, else XLA's default, True."""
    if _EXCESS in _always:
        return _always[_EXCESS] == "true"
    said = re.findall(rf"--{_EXCESS}(?:=(\S+))?", os.environ.get("XLA_FLAGS", ""))
    return not said or said[-1].lower() in ("", "true", "1")


def set_excess_precision(value: bool) -> None:
    """For all programs compiled from now on.

    Raises:
        TypeError: if ``value`` is not a bool.
    """
    if not isinstance(value, bool):
        raise TypeError(f"expected allow_excess_precision as True or False, got {value!r}")
    before = dict(_always)
    _always[_EXCESS] = "true" if value else "false"
    try:
        _use()
    except BaseException:
        _always.clear()
        _always.update(before)
        raise
