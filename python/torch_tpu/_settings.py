"""``mode=`` and ``options=`` of ``torch.compile``: under which XLA options and with what precision a graph's programs are made."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from torch_tpu._patch import on_tpu

_C: Any = sys.modules["torch_tpu._C"]

_MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {},  # what it does elsewhere, one launch for many kernels, is what a program is
    "max-autotune": {"xla_optimization_level": "O3"},
    "max-autotune-no-cudagraphs": {"xla_optimization_level": "O3"},
}
_PRECISIONS = ("highest", "high", "medium")  # as torch.set_float32_matmul_precision, by the core's numbers
_KNOWN = (
    "'precision' (highest, high or medium), 'dump' (a directory), and XLA's own as in torch.tpu.compiler.custom_compiler_options, "
    "such as 'xla_optimization_level' and 'xla_memory_fitting_level' (O0 to O3)"
)


def mapping(options: Any) -> Mapping[Any, Any]:
    """These options; none if there are none.

    Raises:
        TypeError: if they are no mapping.
    """
    if not isinstance(options, Mapping | None):
        raise TypeError(f"expected options as a dict, got {options!r}")
    return options or {}


def is_own(name: Any) -> bool:
    """Whether an option is meant for this backend."""
    return isinstance(name, str) and (name in ("precision", "dump") or name.startswith("xla_"))


def checked(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options that a mode stands for, and those given.

    Raises:
        TypeError: if the options are no mapping.
        ValueError: for a mode or an option that is none, or a value that the option cannot have.
    """
    if mode is not None and mode not in _MODES:
        raise ValueError(f"expected a mode of {', '.join(_MODES)}, got {mode!r}")
    for name, value in mapping(options).items():
        if not is_own(name):
            raise ValueError(f"{name!r} is no option of the tpu backend; it has {_KNOWN}")
        if name == "precision" and value not in _PRECISIONS:
            raise ValueError(f"expected a precision of {', '.join(_PRECISIONS)}, got {value!r}")
        if name == "dump" and not isinstance(value, str):
            raise ValueError(f"expected the name of a directory as dump, got {value!r}")
    found = _MODES[mode or "default"] | dict(mapping(options))
    if options:
        number(found)
    return found


def number(settings: Mapping[str, Any]) -> int:
    """What a program is told of its settings (``ttc_call.settings``).

    Raises:
        ValueError: for an XLA option that the compiler does not know, or a value it cannot read.
    """
    from torch_tpu.tpu import _options

    xla = {k: v for k, v in settings.items() if k.startswith("xla_")}
    listed = _options.number(xla) if xla else 0
    return 4 * listed + (_PRECISIONS.index(settings["precision"]) + 1 if "precision" in settings else 0)


def _meets_tpu(module: torch.fx.GraphModule, inputs: Any) -> bool:
    return any(map(on_tpu, inputs)) or any(on_tpu(n.meta.get("example_value")) for n in module.graph.nodes)


class _Default(torch._TorchCompileInductorWrapper):
    """The backend of ``torch.compile`` where none is named: Inductor, but for graphs with tensors on the device."""

    def __init__(self, mode: str | None, options: Mapping[str, Any] | None, *args: Any, **kwargs: Any) -> None:
        self.own = {k: v for k, v in mapping(options).items() if is_own(k)}
        checked(None, self.own)
        self.foreign = {k: v for k, v in mapping(options).items() if not is_own(k)}
        self.mode = mode
        super().__init__(mode, self.foreign or None, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and isinstance(other, _Default) and (self.own, self.mode) == (other.own, other.mode)

    __hash__ = None  # type: ignore[assignment]  # as the class it is made of

    def __call__(self, model_: torch.fx.GraphModule, inputs_: Any, **kwargs: Any) -> Any:
        if not _meets_tpu(model_, inputs_):
            return super().__call__(model_, inputs_, **kwargs)
        from torch_tpu._compile import backend

        if self.foreign:
            warnings.warn(f"options of Inductor's have no effect on the tpu: {', '.join(self.foreign)}", stacklevel=2)
        return backend(model_, inputs_, self.mode if self.mode in _MODES else None, self.own)


class _Named(torch._TorchCompileWrapper):
    """The backend of ``torch.compile`` where one is named: what the tpu's is given is looked at when it is given."""

    def __init__(self, backend: Any, mode: str | None, options: Mapping[str, Any] | None, *args: Any, **kwargs: Any) -> None:
        super().__init__(backend, mode, options, *args, **kwargs)
        if getattr(self.compiler_fn, "__module__", "") == "torch_tpu._compile":
            checked(mode, options)


def register() -> None:
    """Called once, when the device is registered."""
    torch._TorchCompileInductorWrapper = _Default  # type: ignore[misc]
    torch._TorchCompileWrapper = _Named  # type: ignore[misc]
