"""The eager modes, as users see them: ``torch.tpu.EagerMode`` and what sets and tells it."""

from __future__ import annotations

import atexit
import ctypes
import enum
import functools
import importlib
import os
import sys
import types
from typing import Any

import torch

from torch_tpu._core import LINE, core

_C: Any = sys.modules["torch_tpu._C"]


class EagerMode(enum.Enum):
    """How the calls of a thread are run.

    Each mode has two names, ours and TorchTPU's:

    - ``STRICT`` (``DEFER_NEVER``): the default. A call returns at once; ops run in order in the background, and what goes wrong in
      one is raised where a result of it is read, with the op's name.
    - ``DEBUG`` (``DEFER_NEVER_AND_LAUNCH_BLOCKING``): a call returns when it has run, so that an exception names the Python line
      that caused it. Several times slower.
    - ``FUSE`` (``DEFER_AND_FUSE``): a call returns at once and is kept back; runs of calls that come again run as one program.
      See docs/MODES.md.
    """

    STRICT = 0
    DEFER_NEVER = 0  # noqa: PIE796
    DEBUG = 1
    DEFER_NEVER_AND_LAUNCH_BLOCKING = 1  # noqa: PIE796
    FUSE = 2
    DEFER_AND_FUSE = 2  # noqa: PIE796


_watching = False


def _stepped(*_: Any) -> None:
    """An optimizer's step has ended, and with it, as a rule, a round of the training loop: a good place to cut."""
    if not torch.compiler.is_compiling():
        _C.stepped()


@functools.cache
def _users(file: str) -> bool:
    """Is it neither PyTorch's file nor ours?"""
    return not file.startswith((os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep, "<frozen"))


@LINE
def _tell_line(out: int, nbyte: int) -> None:
    """The user's line that is being run: for errors of fused programs, asked for in one round of each."""
    frame = sys._getframe().f_back
    while frame is not None and not _users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        line = f"{frame.f_code.co_filename}:{frame.f_lineno}".encode(errors="replace")[-nbyte + 1 :]
        ctypes.memmove(out, line + b"\0", len(line) + 1)


def _set_mode(mode: EagerMode, for_all: bool) -> None:
    global _watching
    if mode is EagerMode.FUSE and not _watching:
        _watching = True
        core().ttc_set_line_source(_tell_line)
        atexit.register(core().ttc_set_line_source, LINE())
        importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(_stepped)
    _C.set_mode(mode.value, for_all)


def _checked(mode: Any) -> EagerMode:
    if not isinstance(mode, EagerMode):
        names = ", ".join(f"EagerMode.{m.name}" for m in EagerMode)
        raise TypeError(f"expected one of {names}, got {mode!r}")
    return mode


class set_eager_mode:
    """Set this thread's eager mode: at once, and as a context manager for the length of its block.

    Backward runs in the mode of the thread that asks for it.

    Args:
        mode: an :class:`EagerMode`.

    Raises:
        TypeError: if ``mode`` is none.

    Example:
        >>> with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEBUG):
        ...     loss = model(batch)  # an index out of range raises here
    """

    def __init__(self, mode: EagerMode) -> None:
        self.mode = _checked(mode)
        self.before = eager_mode()
        _set_mode(self.mode, False)

    def __enter__(self) -> set_eager_mode:
        return self

    def __exit__(self, *_: object) -> None:
        _set_mode(self.before, False)


def eager_mode() -> EagerMode:
    """This thread's eager mode."""
    return EagerMode(_C.mode())


def set_value_checks(nan: bool = False, inf: bool = False) -> None:
    """In Debug mode, look at every result and raise at the op that first gives a NaN or an infinity.

    Off at the start, for masks are often made of infinities. ``TORCH_TPU_CHECK_VALUES=nan``, ``inf`` or ``nan,inf`` sets it too.

    Args:
        nan, inf: what to look for.

    Raises:
        RuntimeError: later, by an op whose result has one, with its name, shape and dtype.
    """
    _C.set_value_checks(int(nan) | int(inf) << 1)


class ModuleWithMode(types.ModuleType):
    """``torch.tpu``, so that ``torch.tpu.eager_mode`` can be read and assigned."""

    @property
    def eager_mode(self) -> EagerMode:
        """This thread's eager mode."""
        return eager_mode()

    @eager_mode.setter
    def eager_mode(self, mode: EagerMode) -> None:
        _set_mode(_checked(mode), False)


def _flag(name: str) -> bool:
    """A variable that is set to anything but 0, false or nothing."""
    return os.environ.get(name, "").lower() not in ("", "0", "false", "off")


def follow_environment() -> None:
    """Take the modes that ``TORCH_TPU_*`` variables ask for.

    Raises:
        ValueError: for a value that has no meaning.
    """
    if _flag("TORCH_TPU_LAUNCH_BLOCKING"):
        _set_mode(EagerMode.DEBUG, True)
    elif _flag("TORCH_TPU_DEFER_AND_FUSE"):
        _set_mode(EagerMode.FUSE, True)
    checks = [c.strip() for c in os.environ.get("TORCH_TPU_CHECK_VALUES", "").split(",") if c.strip()]
    if not set(checks) <= {"nan", "inf"}:
        raise ValueError(f"TORCH_TPU_CHECK_VALUES: expected nan, inf or nan,inf, got {','.join(checks)}")
    set_value_checks("nan" in checks, "inf" in checks)
