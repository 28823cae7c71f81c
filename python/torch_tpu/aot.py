"""Programs compiled for TPUs that are not here: what their compiler says of memory, work and time, before anyone has the chip.

    python -m torch_tpu.aot model/ other.mlir --chip v5e --chip tpu7x

takes artifacts of :mod:`torch_tpu.export` and files of StableHLO, and prints for each chip the device memory a program needs, the
bytes it moves, its operations and the cycles that the compiler expects. libtpu does the compiling (``pip install libtpu``); it
needs no TPU. It runs in a process of its own, which is started again where a program ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["CHIPS", "compile_files", "find_libtpu", "record"]

CHIPS = {"v5e": "v5e:1x1", "v5p": "v5p:1x1x1", "v6e": "v6e:1x1", "tpu7x": "tpu7x:1x1x1"}
"""One chip of each generation, by the names of topologies."""

# libtpu looks for a cloud's metadata, one process at a time, and writes logs, unless told not to.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}


def find_libtpu() -> str | None:
    """Path of libtpu: ``TORCH_TPU_LIBTPU``, else the installed package's. None: there is none."""
    named = os.environ.get("TORCH_TPU_LIBTPU")
    if named:
        return named
    spec = importlib.util.find_spec("libtpu")
    path = pathlib.Path(spec.origin).parent / "libtpu.so" if spec is not None and spec.origin is not None else None
    return str(path) if path is not None and path.exists() else None


def libtpu_version(path: str) -> str:
    """The version of the package that a libtpu.so lies in; empty if it cannot be told."""
    folder = pathlib.Path(path).resolve().parent
    versions = [p.stem.split("-")[1] for p in folder.parent.glob("libtpu-*.dist-info")]
    return versions[0] if len(versions) == 1 and folder.name == "libtpu" else ""


class _Compiler:
    """The process that compiles; started when first asked, and again after it ended."""

    def __init__(self, libtpu: str, timeout: float, options: list[str]) -> None:
        self.libtpu, self.timeout, self.options = libtpu, timeout, options
        self.process: subprocess.Popen[str] | None = None
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def ask(self, topology: str, path: pathlib.Path) -> dict[str, Any]:
        if self.process is None:
            program = pathlib.Path(__file__).parent / "lib" / "ttc_aot"
            self.errors.seek(0)
            self.errors.truncate()
            self.process = subprocess.Popen(
                [str(program), self.libtpu, *self.options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                env={**os.environ, **_ENVIRONMENT},
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it ended; the empty answer tells
            self.process.stdin.write(f"{topology} {path}\n")
            self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], self.timeout)
        line = self.process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        why = f"took more than {self.timeout:.0f} s" if not ready else f"ended the compiler: {self._last_words()}"
        self.close()
        return {"topology": topology, "path": str(path), "code": "ABORTED", "error": why}

    def _last_words(self) -> str:
        assert self.process is not None
        code = self.process.wait()
        self.errors.seek(0)
        lines = [line for line in self.errors.read().splitlines() if "Check fail" in line or "F0" in line[:3] or "FATAL" in line]
        return f"{lines[0][:300] if lines else 'no words'} (exit {code})"

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()  # type: ignore[union-attr]
            self.process = None


def compile_files(
    paths: Iterable[str | os.PathLike[str]],
    chips: Iterable[str] = ("v5e",),
    libtpu: str | None = None,
    timeout: float = 900,
    options: Iterable[str] = (),
) -> Iterator[dict[str, Any]]:
    """Compile StableHLO files for each chip.

    Args:
        paths: files of StableHLO, as :func:`record` or :func:`torch_tpu.export.save` writes them.
        chips: names of :data:`CHIPS`, or of topologies such as ``v5e:2x2``.
        libtpu: path of libtpu.so; else :func:`find_libtpu`'s.
        timeout: seconds that one program may take.
        options: of the compiler, ``"name=value"`` each: XLA's names, and ``"xla_optimization_level=O0"`` to O3.

    Yields:
        For each file and chip ``{"chip", "path", "seconds", "cpu_seconds", ..}`` with either ``"error"`` and ``"code"`` or
        ``"hbm_bytes"`` (arguments, results and temporaries, what they share once), ``"argument_bytes"``, ``"output_bytes"``,
        ``"alias_bytes"``, ``"temp_bytes"``, ``"code_bytes"``, ``"flops"``, ``"transcendentals"``, ``"bytes_accessed"``,
        ``"cycles"`` (estimated, summed over the ``"covered"`` instructions that have an estimate, a loop's body once).

    Raises:
        FileNotFoundError: if there is no libtpu.
    """
    libtpu = libtpu or find_libtpu()
    if libtpu is None:
        raise FileNotFoundError("compiling for a TPU needs libtpu: pip install libtpu, or TORCH_TPU_LIBTPU=/path/to/libtpu.so")
    compiler = _Compiler(libtpu, timeout, list(options))
    chips = list(chips)
    try:
        for path in paths:
            for chip in chips:
                answer = compiler.ask(CHIPS.get(chip, chip), pathlib.Path(path).resolve())
                answer["chip"] = chip
                answer["path"] = str(path)
                yield answer
    finally:
        compiler.close()


@contextlib.contextmanager
def record(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Write the StableHLO of every program first met within to a file, as it is for a TPU: ``add.Tensor.000000.mlir``.

    Programs that a process has already met are not written again.
    """
    import torch_tpu
    from torch_tpu.tpu import synchronize

    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    torch_tpu._C.set_dump(str(folder))
    try:
        yield
    finally:
        synchronize()
        torch_tpu._C.set_dump(None)


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    if not path.is_dir():
        return [path]
    exported = path / "model.tpu.mlir"
    return [exported] if exported.exists() else sorted(path.glob("*.mlir"))


def _size(n: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return ""


def _line(answer: dict[str, Any]) -> str:
    head = f"{pathlib.Path(answer['path']).name:40} {answer['chip']:8}"
    if "error" in answer:
        return f"{head} {answer['code']}: {answer['error'].splitlines()[0][:200]}"
    return (
        f"{head} {_size(answer['hbm_bytes']):>11} memory  {_size(answer['bytes_accessed']):>11} moved  "
        f"{answer['flops']:10.3g} flop  {answer['cycles']:>12,} cycles"
    )


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    ap = argparse.ArgumentParser(prog="python -m torch_tpu.aot", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("path", nargs="+", type=pathlib.Path, help="an artifact, a StableHLO file, or a folder of such files")
    ap.add_argument("--chip", action="append", help=f"{', '.join(CHIPS)}, or a topology such as v5e:2x2; may be repeated")
    ap.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the compiler; may be repeated")
    ap.add_argument("--json", action="store_true", help="a line of JSON for each")
    a = ap.parse_args(argv)
    failed = 0
    try:
        for answer in compile_files([f for p in a.path for f in _files(p)], a.chip or ["v5e"], options=a.option):
            print(json.dumps(answer) if a.json else _line(answer), flush=True)
            failed += "error" in answer
    except FileNotFoundError as e:
        print(e, file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
