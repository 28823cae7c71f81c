"""How many instructions one Strict dispatch takes: a check that no machine's load disturbs.

    python -m bench.count [--record] [--install] [--functions 30]

`a + b` of 16 floats runs 4000 times under valgrind's callgrind, with a synchronize after every 400, once everything is warm. Two
numbers come of it, in instructions an op: `caller`, the calling thread from Python's bytecode to the queue and back, and `launch`,
what else is done for it, in whichever thread: resolving, PJRT's execute, freeing. bench/counts.json holds what they should be, for
each set of versions that they depend on. More by over 3 % fails.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

OPS, ROUND = 4000, 400
TOLERANCE = 0.03
RECORD = pathlib.Path(__file__).with_name("counts.json")
SWITCH = """#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void stop(void) { CALLGRIND_STOP_INSTRUMENTATION; }
"""
READER = "ttc_device_synchronize"  # launches what is queued in the calling thread: not part of a dispatch


def worker(switch: str) -> None:
    import torch

    a, b = torch.ones(16, device="tpu"), torch.ones(16, device="tpu")
    callgrind = ctypes.CDLL(switch)

    def run(ops: int) -> None:
        for _ in range(ops // ROUND):
            for _ in range(ROUND):
                c = a + b  # noqa: F841
            torch.tpu.synchronize()  # type: ignore[attr-defined]

    run(5 * ROUND)
    callgrind.start()
    run(OPS)
    callgrind.stop()
    os._exit(0)


def have_tools(install: bool) -> str | None:
    """None, or what is missing."""
    header = pathlib.Path("/usr/include/valgrind/callgrind.h")
    if install and not (shutil.which("valgrind") and header.exists()) and shutil.which("apt-get") and os.geteuid() == 0:
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "valgrind"]):
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not shutil.which("valgrind"):
        return "valgrind is not installed (apt-get install valgrind)"
    if not header.exists():
        return f"{header} is missing: valgrind's development files"
    return None if shutil.which("cc") else "there is no C compiler (cc)"


def read(path: pathlib.Path) -> tuple[int, int, collections.Counter[str]]:
    """One thread's instructions: all, those below READER, and each function's own."""
    own: collections.Counter[str] = collections.Counter()
    function, callee, below, total = "", "", 0, 0
    called = False
    for line in path.read_text().splitlines():
        if line.startswith("fn="):
            function = line[3:]
        elif line.startswith("cfn="):
            callee = line[4:]
        elif line.startswith("calls="):
            called = True  # the next line is the cost of what was called
        elif re.match(r"[+*-]?\d* ?\d", line):
            cost = int(line.split()[-1])
            if called:
                below += cost if callee == READER else 0
            else:
                own[function] += cost
                total += cost
            called = False
    return total, below, own


def count() -> tuple[dict[str, int], collections.Counter[str]]:
    """Instructions an op, and which functions take them."""
    with tempfile.TemporaryDirectory() as folder:
        source, switch, out = (pathlib.Path(folder) / name for name in ("switch.c", "switch.so", "out"))
        source.write_text(SWITCH)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(switch)], check=True)
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes", "--compress-strings=no"]
        command += [
            "--compress-pos=no",
            f"--callgrind-out-file={out}",
            sys.executable,
            "-m",
            "bench.count",
            "--worker",
            str(switch),
        ]
        # Hashes, and with them Python's dictionaries, are alike in all runs.
        env = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode != 0:
            sys.exit(f"valgrind failed:\n{done.stdout}{done.stderr}")
        threads = [read(path) for path in sorted(pathlib.Path(folder).glob("out-*"))]  # the first is the calling thread
    own: collections.Counter[str] = collections.Counter()
    for _, _, counts in threads:
        own.update(counts)
    everything, caller = sum(total for total, _, _ in threads), threads[0][0] - threads[0][1]
    return {"caller": caller // OPS, "launch": (everything - caller) // OPS}, own


def versions() -> str:
    """What the numbers depend on besides this repository."""
    names = ("torch", "lammps-jax-pjrt-cpu")
    parts = [f"python {platform.python_version()}", *(f"{name} {importlib.metadata.version(name)}" for name in names)]
    return ", ".join([*parts, " ".join(platform.libc_ver()), platform.machine()])


def compare(now: dict[str, int], before: dict[str, int]) -> int:
    status = 0
    for name, n in now.items():
        change = n / before[name] - 1
        print(f"{name}: {n} instructions an op, recorded {before[name]} ({change:+.1%})")
        if change > TOLERANCE:
            status = 1
            print(
                "  A dispatch has become dearer. `python -m bench.count --functions 40` before and after shows where. Take it out "
                "again; if it is worth its cost, say so in the commit and run `python -m bench.count --record`."
            )
        elif change < -TOLERANCE:
            print(
                "  A dispatch has become cheaper: run `python -m bench.count --record` and commit bench/counts.json, to keep it so."
            )
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="what is counted now is what it should be")
    parser.add_argument("--install", action="store_true", help="install valgrind with apt-get where it is missing")
    parser.add_argument("--functions", type=int, default=0, help="print so many functions, with the instructions an op in them")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker)
    missing = have_tools(args.install)
    if missing:
        print(f"SKIPPED, instructions of a dispatch are not counted: {missing}")
        return 0
    now, own = count()
    for name, n in own.most_common(args.functions):
        print(f"{n / OPS:9.1f}  {name}")
    records = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if args.record:
        records[versions()] = now
        RECORD.write_text(json.dumps(records, indent=2, sort_keys=True) + "\n")
        print(f"recorded: {now}")
        return 0
    if versions() not in records:
        print(f"SKIPPED, nothing is recorded for {versions()}: {now}. `python -m bench.count --record` records it.")
        return 0
    return compare(now, records[versions()])


if __name__ == "__main__":
    sys.exit(main())
