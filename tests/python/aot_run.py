"""Compile every row's module and whole training steps for TPUs that are not here, and keep what the compiler says.

    python tests/python/aot_run.py [--chip v5e ..] [--what rows|models ..] [--only NAME ..]

writes tests/data/aot.json, where each module has its digest and for each chip [device memory, bytes moved, operations, cycles],
or why it was refused; models also have the seconds of one core that compiling them took. A module whose digest has not changed is
not compiled again, so that a run that was stopped goes on, and a
change of a lowering costs what it changes. Ends with 1 if something is refused or a training step got worse by more than 2 %.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parent / "data" / "aot.json"
COLUMNS = ("hbm_bytes", "bytes_accessed", "flops", "cycles")
CHIPS = ("v5e", "v6e", "tpu7x")
WORSE = 1.02
TIMEOUT = 7200
"""Seconds. Not what compiling should take, but when to give up: other programs may have the machine's cores."""


def load() -> dict[str, Any]:
    if RESULTS.exists():
        return json.loads(RESULTS.read_text())
    return {"libtpu": "", "columns": list(COLUMNS), "rows": {}, "models": {}}


def store(results: dict[str, Any], what: str) -> None:
    """A line for each module, so that a change is read as one. Rows and models may be compiled at the same time."""
    now = load()
    if now["libtpu"] == results["libtpu"]:
        results = {**now, what: results[what]}
    parts = [f'"libtpu": {json.dumps(results["libtpu"])}', f'"columns": {json.dumps(results["columns"])}']
    for part in ("rows", "models"):
        lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(results[part].items())]
        parts.append(f'"{part}": {{\n' + ",\n".join(lines) + "\n}")
    RESULTS.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def digest(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def figures(answer: dict[str, Any]) -> list[int] | str:
    if "error" in answer:
        return f"{answer['code']}: {answer['error'].splitlines()[0][:300]}"
    return [int(answer[c]) for c in COLUMNS]


def worse(old: Any, new: Any) -> list[str]:
    """Which of memory, bytes and cycles are more than they were."""
    if not isinstance(old, list) or not isinstance(new, list):
        return []
    pairs = zip(COLUMNS, old, new, strict=True)
    return [f"{c} {a:,} -> {b:,}" for c, a, b in pairs if c != "flops" and b > a * WORSE]


def changed(folder: pathlib.Path, known: dict[str, Any], chip: str, only: list[str]) -> Iterator[pathlib.Path]:
    """Modules to compile: new ones and those that are not as they were."""
    for path in sorted(folder.glob("*.mlir")):
        name = path.name.removesuffix(".mlir")
        if only and name not in only:
            continue
        entry = known.setdefault(name, {"module": digest(path)})
        if entry["module"] != digest(path):
            entry["was"] = {c: entry.pop(c) for c in CHIPS if c in entry} | entry.get("was", {})
            entry.pop("cpu", None)
            entry["module"] = digest(path)
        if chip not in entry:
            yield path


def compile_all(folder: pathlib.Path, what: str, chips: list[str], only: list[str], results: dict[str, Any]) -> int:
    from torch_tpu import aot

    known, bad = results[what], 0
    for chip in chips:
        todo = list(changed(folder, known, chip, only))
        for n, answer in enumerate(aot.compile_files(todo, [chip], timeout=TIMEOUT), 1):
            name = pathlib.Path(answer["path"]).name.removesuffix(".mlir")
            entry = known[name]
            old = entry.get("was", {}).pop(chip, None)
            entry[chip] = figures(answer)
            if what == "models" and "cpu_seconds" in answer:
                entry.setdefault("cpu", {})[chip] = round(answer["cpu_seconds"])
            if not entry.get("was", True):
                del entry["was"]
            refused, more = isinstance(entry[chip], str), worse(old, entry[chip])
            bad += refused or (what == "models" and bool(more))
            if refused or more or what == "models" or n % 50 == 0:
                print(f"{what} {chip} {n}/{len(todo)} {name} {answer.get('cpu_seconds', '')} s of one core: ", end="")
                print(entry[chip] if refused else ", ".join(more) or "no worse", flush=True)
            if n % 20 == 0 or what == "models":
                store(results, what)
        store(results, what)
    return bad


def without_compiling() -> dict[str, str]:
    """Modules are made beside the plugin that computes nothing, if the core's tests were built."""
    fake = sorted((HERE.parents[1] / "build").rglob("fake_plugin*.so"))
    return {**os.environ, **({"TORCH_TPU_PLUGIN": str(fake[0]), "TORCH_TPU_CACHE": "0"} if fake else {})}


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--chip", action="append", choices=CHIPS)
    ap.add_argument("--what", action="append", choices=("rows", "models"))
    ap.add_argument("--only", action="append", default=[])
    ap.add_argument("--modules", type=pathlib.Path, help="a folder with rows/ and models/ made before; else they are made")
    a = ap.parse_args()
    from torch_tpu import aot

    libtpu = aot.find_libtpu()
    if libtpu is None:
        print("needs libtpu: TORCH_TPU_LIBTPU=/path/to/libtpu.so, or pip install libtpu", file=sys.stderr)
        return 2
    results, bad = load(), 0
    if results["libtpu"] != aot.libtpu_version(libtpu):
        results = {**results, "libtpu": aot.libtpu_version(libtpu), "rows": {}, "models": {}}
    with tempfile.TemporaryDirectory() as made:
        folder = a.modules or pathlib.Path(made)
        for what in a.what or ("rows", "models"):
            if not (folder / what).exists():
                script = HERE / f"aot_{what}.py"
                command = [sys.executable, "-W", "ignore", str(script), str(folder / what)]
                subprocess.run(command, check=True, env=without_compiling())
            bad += compile_all(folder / what, what, a.chip or list(CHIPS), a.only, results)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
