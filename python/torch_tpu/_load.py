"""Find the adapter built for the installed PyTorch, load it, and register the device."""

import atexit
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import threading
import types
from typing import Any

import torch

from torch_tpu import _environment, _patch, _safetensors

_SUPPORTED = ("2.13", "2.14", "2.15")
_LIB = pathlib.Path(__file__).parent / "lib"


def _adapter() -> pathlib.Path:
    """Path of the adapter for this PyTorch's minor version.

    One binary serves one minor version: on another it would crash, so it is refused by name before it is opened.

    Raises:
        ImportError: if there is none, naming what was found and what to do.
    """
    minor = ".".join(torch.__version__.split(".")[:2])
    path = _LIB / f"_tpu_torch{minor.replace('.', '')}.so"
    if path.exists():
        return path
    built = sorted(f"{p.stem[10]}.{p.stem[11:]}" for p in _LIB.glob("_tpu_torch*.so"))
    what = f"torchtpu was built for PyTorch {', '.join(built)}" if built else "torchtpu's adapter was not built"
    fix = (
        "reinstall it beside this PyTorch: pip install --no-build-isolation --force-reinstall --no-deps torchtpu"
        if minor in _SUPPORTED
        else f"install a supported PyTorch ({', '.join(_SUPPORTED)})"
    )
    raise ImportError(
        f"{what}, and this is PyTorch {torch.__version__}: {fix}. TORCH_DEVICE_BACKEND_AUTOLOAD=0 imports torch without it."
    )


def _decompose(name: str, overload: str, args: list[Any], baked: int) -> tuple[int, int]:
    """Asked by the adapter for the graph of an op without a row. Imported when first needed: most programs never do."""
    from torch_tpu._decompose import decompose

    return decompose(name, overload, args, baked)


def load() -> types.ModuleType:
    """Load the adapter and make ``torch.device("tpu")`` and ``torch.tpu`` exist. Loads no PJRT plugin.

    Once a process: a second import or a reload finds what the first has loaded.

    Returns:
        The adapter's module of plain functions.
    """
    loaded = sys.modules.get("torch_tpu._C")
    if loaded is not None:
        return loaded
    _environment.follow()
    path = _adapter()
    name = path.stem
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    # The device is named first: the adapter's allocator and hooks register under the name they find.
    torch.utils.rename_privateuse1_backend("tpu")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.set_search_path(":".join(p for p in sys.path if p))
    module.register_ops()
    atexit.register(lambda: module.end(threading.active_count() > 1))
    sys.modules["torch_tpu._C"] = module

    from torch_tpu import _composed, _kernels, _nested, _settings, _sparse, _vmap, tpu  # noqa: F401

    if os.environ.get("TORCH_TPU_CACHE_SHARED"):
        from torch_tpu import _shared

        _shared.follow()
    if os.environ.get("TORCH_TPU_DUMP"):
        from torch_tpu import _core

        folder = pathlib.Path(os.environ["TORCH_TPU_DUMP"]).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        _core.core().ttc_dump_to(os.fsencode(folder))
    module.set_decomposer(_decompose)
    _composed.register()
    torch._register_device_module("tpu", tpu)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _patch.patch()
    _settings.register()
    _safetensors.watch()
    return module
