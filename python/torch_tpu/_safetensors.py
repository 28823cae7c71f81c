"""safetensors reads straight to a tpu device: its reader knows devices by a list of names, which has no "tpu".

``safe_open(.., device="tpu")``, and with it ``load_file`` and ``load_model``, read to the host, one tensor at a time, and copy.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any


class _Slice:
    """A tensor of a file that is read in parts."""

    def __init__(self, inner: Any, device: str) -> None:
        self._inner, self._device = inner, device

    def __getitem__(self, part: Any) -> Any:
        return self._inner[part].to(self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _File:
    """An open file whose tensors go to a device."""

    def __init__(self, inner: Any, device: str) -> None:
        self._inner, self._device = inner, device

    def __enter__(self) -> _File:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._inner.__exit__(*error)

    def get_tensor(self, name: str) -> Any:
        return self._inner.get_tensor(name).to(self._device)

    def get_tensors(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {name: x.to(self._device) for name, x in self._inner.get_tensors(*args, **kwargs).items()}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._inner.get_slice(name), self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _wrap(safetensors: types.ModuleType) -> None:
    real = safetensors.safe_open

    class Kind(type):
        def __instancecheck__(cls, obj: object) -> bool:
            return isinstance(obj, real | _File)

    class safe_open(metaclass=Kind):
        __doc__ = real.__doc__

        def __new__(cls, filename: Any, framework: str, device: Any = "cpu", *args: Any, **kwargs: Any) -> Any:
            if str(device).partition(":")[0] != "tpu":
                return real(filename, framework, device, *args, **kwargs)
            return _File(real(filename, framework, "cpu", *args, **kwargs), str(device))

    safetensors.safe_open = safe_open  # type: ignore[attr-defined]
    if "safetensors.torch" in sys.modules:
        sys.modules["safetensors.torch"].safe_open = safe_open  # type: ignore[attr-defined]


class _Watch(importlib.abc.MetaPathFinder):
    """Waits for the package to be imported, for most programs never do."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "safetensors":
            return None
        found = (f.find_spec(fullname, path, target) for f in sys.meta_path if f is not self)
        spec = next((s for s in found if s is not None), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_wrap(module: types.ModuleType) -> None:
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                _wrap(module)

            spec.loader.exec_module = run_and_wrap  # type: ignore[method-assign]
        return spec


def watch() -> None:
    """See to it that safetensors, imported already or later, takes tpu devices."""
    if "safetensors" in sys.modules:
        _wrap(sys.modules["safetensors"])
    else:
        sys.meta_path.insert(0, _Watch())
