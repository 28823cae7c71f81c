"""``torch.tpu.compiler``: how programs are compiled, what is kept of them, and what can be seen of it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import re
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch

from torch_tpu import _core
from torch_tpu.tpu import _options
from torch_tpu.tpu._common import _C
from torch_tpu.tpu._common import index as _index


@contextlib.contextmanager
def custom_compiler_options(options: Mapping[str, str | bool | int | float]) -> Iterator[None]:
    """Context manager: programs of ops called inside the block, by any thread, are compiled with these XLA options.

    A block inside another adds to its options, the inner ones first. Programs are kept by their options: leaving the block brings
    back those compiled without. See https://openxla.org/xla/flags_guidance for the options.

    Args:
        options: name -> value. Beside XLA's own names there are ``xla_optimization_level`` and ``xla_memory_fitting_level``, from
            ``"O0"`` (least effort) to ``"O3"``.

    Raises:
        TypeError: at entry, if ``options`` is no mapping.
        ValueError: at entry, for an option the compiler does not know or a value it cannot read.

    Example:
        >>> with torch.tpu.compiler.custom_compiler_options({"xla_optimization_level": "O1"}):
        ...     y = x @ x
    """
    _options.push(options)
    try:
        yield
    finally:
        _options.pop()


def set_dynamic_bounds(least: int = 8, factor: float = 2.0) -> None:
    """How far programs with symbolic sizes reach, from now on.

    ``torch.compile(backend="tpu")`` makes one program for all lengths up to a bound: ``least``, and each next bound ``factor``
    times the one before, but no more than the maximum that ``torch._dynamo.mark_dynamic`` names. A program costs what its bound
    costs.

    Args:
        least: the smallest bound, in elements of a dimension, at least 1.
        factor: above 1.

    Raises:
        TypeError: if one of them is no number.
        ValueError: if one of them is out of range.

    Example:
        >>> torch.tpu.compiler.set_dynamic_bounds(least=64, factor=1.5)
    """
    from torch_tpu._bounds import growth

    if not isinstance(least, int) or not isinstance(factor, int | float):
        raise TypeError(f"expected least as an int and factor as a number, got {least!r} and {factor!r}")
    if least < 1 or not 1 < factor < math.inf:
        raise ValueError(f"expected least >= 1 and factor > 1, got {least} and {factor}")
    growth.least, growth.factor = int(least), float(factor)


# ------------------------------------------------------------------------------------------------------------- dumps


class dump:
    """Write what is compiled from now on into a folder. As a context manager: inside the block.

    Each graph of ``torch.compile`` gives its FX graphs, as Dynamo made it and as AOTAutograd leaves it; each program, of a compiled
    graph or of an op called one by one, gives a folder with its StableHLO, whose locations are lines of Python, what XLA writes of
    its work (the optimized HLO, buffers), and ``sizes.json``. Programs are compiled for it even if the cache has them; those that
    this process has made before are not made again. The variable ``TORCH_TPU_DUMP`` names a folder for the whole process.

    Example:
        >>> with torch.tpu.compiler.dump("dumped"):
        ...     compiled(x)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from torch_tpu._compile import watch

        watch.dump_to(os.fsdecode(folder))

    def __enter__(self) -> dump:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        from torch_tpu._compile import watch

        watch.dump_to(None)


# ------------------------------------------------------------------------------------------------------ ahead of time


def _example(a: Any) -> Any:
    """A tuple of sizes stands for a float32 tensor of them."""
    if isinstance(a, torch.Size) or (isinstance(a, tuple) and a and all(type(n) is int for n in a)):
        return torch.zeros(a, device="tpu")
    return a


def warmup(fn: Callable[..., Any], *args: Any) -> int:
    """Compile what ``fn``, made by ``torch.compile``, would run when called with such arguments, without running it.

    ``fn`` is called; its compiled graphs make their programs, wait until these are compiled (or loaded from the cache), and give
    results of undefined contents. Nothing is written: parameters, buffers, optimizer states, gradients and random numbers are as
    before. Python code between the graphs of a function that has several is run, though, and ops called there one by one.

    Args:
        fn: a compiled function or module, or a function that calls some.
        args: its arguments. A tuple of sizes stands for a float32 tensor of zeros. One list: several calls' arguments, each a
            tuple.

    Returns:
        The number of programs made.

    Example:
        >>> step = torch.compile(train_step, backend="tpu")
        >>> torch.tpu.compiler.warmup(step, x, y)
        >>> torch.tpu.compiler.warmup(torch.compile(model, backend="tpu"), [((8, 256),), ((16, 256),)])
    """
    from torch_tpu._compile import ahead

    before = torch.tpu.compile_stats()["programs"]  # type: ignore[attr-defined]
    calls = args[0] if len(args) == 1 and isinstance(args[0], list) else [args]
    fn = ahead.slow_way(fn)
    with ahead.only_compiling():
        for call in calls:
            fn(*(_example(a) for a in (call if isinstance(call, tuple) else (call,))))
    return torch.tpu.compile_stats()["programs"] - before  # type: ignore[attr-defined]


def wait(device: Any = None) -> None:
    """Wait until no program of ``EagerMode.FUSE`` is being compiled in the background.

    Never needed for results; for measurements.

    Example:
        >>> for _ in range(3):
        ...     train_step()
        >>> torch.tpu.compiler.wait()  # from here on steps run at their full speed
    """
    _C.wait_fused(_index(device))


# ------------------------------------------------------------------------------------------------- a cache in one file

_FORMAT = 1
_NAME = re.compile(r"[0-9a-f]{64}")


def _made_by() -> dict[str, Any]:
    """What a saved cache must have been made by to be of use."""
    import torch_tpu

    info = _C.device_info(_C.current_device())  # opens the device, and with it the cache
    return {
        "format": _FORMAT,
        "torch": torch.__version__,
        "torch_tpu": torch_tpu.__version__,
        "plugin": info["platform_version"],
        "device": info["device_kind"],
    }


def _cache_dir() -> pathlib.Path:
    folder = _core.cache_dir()
    if folder is None:
        raise RuntimeError(
            "there is no compile cache: TORCH_TPU_CACHE=0 switches it off, or its directory (TORCH_TPU_CACHE_DIR) cannot be used"
        )
    return folder


def save_cache(path: str | os.PathLike[str]) -> int:
    """Write all that this process compiled, or found compiled, into one file: programs, and the traces of ``torch.compile``.

    Returns:
        The number of programs in it.

    Raises:
        FileExistsError: if there is something at ``path`` that is no file.
        RuntimeError: if there is no compile cache.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileExistsError(f"{os.fspath(path)} is no file: it is left as it is")
    made_by, folder = _made_by(), _cache_dir()
    torch.tpu.synchronize()  # type: ignore[attr-defined]
    traces = torch.compiler.save_cache_artifacts()
    part = pathlib.Path(f"{os.fspath(path)}.{uuid.uuid4().hex}.tmp")
    count = 0
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("made_by.json", json.dumps(made_by))
            if traces is not None:
                archive.writestr("traces", traces[0])
            for name in sorted(_core.used()):
                file = folder / name[:2] / name
                if file.exists():  # else evicted, or the plugin cannot write executables
                    archive.write(file, f"programs/{name}")
                    count += 1
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return count


def load_cache(path: str | os.PathLike[str]) -> int:
    """Take over what :func:`save_cache` wrote: what is in it is not traced or compiled again, here or in later processes.

    A program is machine code: load what you trust only.

    Returns:
        The number of programs in it.

    Raises:
        RuntimeError: if it was made by other versions or for another device, if it is no such file, or there is no compile cache.
    """
    made_by, folder, path = _made_by(), _cache_dir(), os.fspath(path)
    if os.path.exists(path) and not os.path.isfile(path):  # it may have no end
        raise RuntimeError(f"{path} is no file, let alone a saved compile cache")
    try:
        with zipfile.ZipFile(path) as archive:
            theirs = dict(json.loads(archive.read("made_by.json")))
            for key, mine in made_by.items():
                if theirs.get(key) != mine:
                    raise RuntimeError(
                        f"{path} is of no use here: it was saved with {key} {theirs.get(key)}, and this is {key} "
                        f"{mine}. Compile here, and save it anew."
                    )
            names = [n for n in archive.namelist() if n.startswith("programs/")]
            for entry in names:
                name = entry.removeprefix("programs/")
                if not _NAME.fullmatch(name):
                    raise RuntimeError(f"{path} is no saved compile cache: it holds {entry!r}")
                _put(folder / name[:2], name, archive.read(entry))
            if "traces" in archive.namelist():
                torch.compiler.load_cache_artifacts(archive.read("traces"))
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as e:
        raise RuntimeError(f"{path} is no saved compile cache: {e}") from e
    return len(names)


def _put(folder: pathlib.Path, name: str, data: bytes) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    part = folder / f"{name}.{uuid.uuid4().hex}.tmp"
    try:
        part.touch(mode=0o600)
        part.write_bytes(data)
        part.replace(folder / name)
    finally:
        part.unlink(missing_ok=True)
