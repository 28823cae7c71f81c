"""The driver's side: who takes part, worker processes on one core, and tables.

Workers answer one request at a time, and the driver asks them in turn, so that whatever else the machine does falls on all alike.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import platform
import select
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

from tabulate import tabulate

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
ONE_THREAD = {k: "1" for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")}
Reply = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Contestant:
    name: str  # "tpu", "tpu:fuse", "cpu", "torchtpu", "jax" ...
    command: tuple[str, ...]
    env: dict[str, str]
    cpus: frozenset[int] = frozenset()  # cores to run on; none: the driver's one

    @property
    def family(self) -> str:
        return self.name.split(":")[0]


def python_path(who: Contestant) -> str:
    """The repository; and its package where it is built in the tree, but not for peers, whose package has the same name."""
    built = who.command[0] == sys.executable and any((ROOT / "python" / "torch_tpu" / "lib").glob("_tpu_*.so"))
    return os.pathsep.join([str(ROOT), *([str(ROOT / "python")] if built else [])])


class Died(Exception):
    """The worker's process ended (a peer may abort), or did not answer in time."""


class Worker:
    def __init__(self, who: Contestant, cpu: int, timeout: float) -> None:
        self.who, self.timeout = who, timeout
        replies, theirs = os.pipe()
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115, lives as long as the worker
        env = {**os.environ, **ONE_THREAD, **who.env, "BENCH_REPLY": str(theirs), "PYTHONPATH": python_path(who)}
        cpus = who.cpus or {cpu}
        self.process = subprocess.Popen(
            who.command, stdin=subprocess.PIPE, stdout=self.log, stderr=self.log, text=True, env=env, cwd=ROOT,
            pass_fds=(theirs,), preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )  # fmt: skip
        os.close(theirs)
        self.replies = os.fdopen(replies)
        self.hello = self._receive()

    def ask(self, do: str, **arguments: Any) -> Reply:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as e:
            raise Died(self.tail()) from e
        return self._receive()

    def _receive(self) -> Reply:
        if not select.select([self.replies], [], [], self.timeout)[0]:
            self.close()
            raise Died(f"no answer in {self.timeout:.0f} s")
        line = self.replies.readline()
        if not line:
            self.process.wait()
            raise Died(f"ended with status {self.process.returncode}: {self.tail()}")
        return json.loads(line)

    def tail(self) -> str:
        self.log.seek(0)
        lines = [line.strip() for line in self.log.read().splitlines() if line.strip()]
        return lines[-1][:300] if lines else "no output"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Pool:
    """The workers, started when first asked and again after one has died."""

    def __init__(self, contestants: Iterable[Contestant], cpu: int, timeout: float) -> None:
        self.contestants, self.cpu, self.timeout = list(contestants), cpu, timeout
        self.workers: dict[str, Worker] = {}
        self.notes: dict[str, str] = {}
        self.out: set[str] = set()  # could not be started

    def ask(self, who: Contestant, do: str, **arguments: Any) -> Reply | None:
        """The reply; None where there is none, with the reason kept for the foot of the table."""
        what = " ".join([do, *map(str, arguments.values())])
        if who.name in self.out:
            return None
        try:
            if who.name not in self.workers:
                self.out.add(who.name)
                what, asked = "start", what
                self.workers[who.name] = Worker(who, self.cpu, self.timeout)
                self.out.remove(who.name)
                what = asked
            reply = self.workers[who.name].ask(do, **arguments)
        except Died as e:
            self.workers.pop(who.name, None)
            reply = {"error": str(e)}
        if "error" in reply:
            self.notes.setdefault(f"{who.name}, {what}", reply["error"])
            return None
        return None if "skip" in reply else reply

    def close(self) -> None:
        for w in self.workers.values():
            w.close()
        self.workers.clear()

    def print_notes(self) -> None:
        for what, why in self.notes.items():
            print(f"  - {what}: {why}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run",
        default="cpu,tpu,torchtpu,jax",
        help="families that take part (inductor: native, compiled); a peer without a Python does not",
    )
    parser.add_argument("--modes", default="strict", help="of tpu and torchtpu: strict, fuse, compile, whole (optimizer too)")
    parser.add_argument("--torchtpu-python", help="python of an environment with torch_tpu 0.2.0")
    parser.add_argument("--torchtpu-forward", help="libforward.so, built from bench/peer/forward.c")
    parser.add_argument("--torchtpu-plugin", help="the CPU plugin TorchTPU runs on (default: lammps-jax-pjrt-cpu's)")
    parser.add_argument("--jax-python", help="python of an environment with jax and optax")
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="the one core that all workers run on")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=600, help="seconds a worker may take for one request")


def default_plugin() -> str:
    spec = importlib.util.find_spec("lammps_jax_pjrt_cpu")
    if spec is None or spec.origin is None:
        sys.exit("--torchtpu-plugin: no lammps-jax-pjrt-cpu here to take the plugin from, so name one")
    return str(pathlib.Path(spec.origin).parent / "pjrt_c_api_cpu_plugin.so")


def torchtpu_env(args: argparse.Namespace) -> dict[str, str]:
    """TorchTPU without a TPU: its libtpu replaced by a CPU plugin behind bench/peer/forward.c, and no search for cloud metadata."""
    if not args.torchtpu_forward:
        sys.exit("--torchtpu-forward is needed beside --torchtpu-python (bench/README.md)")
    return {
        "TPU_LIBRARY_PATH": str(pathlib.Path(args.torchtpu_forward).resolve()),
        "FORWARD_TO": str(pathlib.Path(args.torchtpu_plugin or default_plugin()).resolve()),
        "TPU_SKIP_MDS_QUERY": "1",
    }


def contestants(args: argparse.Namespace, worker: str = "worker") -> list[Contestant]:
    """Who takes part, in the order of the tables' columns. `worker` is the ending of the module that each runs."""
    found: list[Contestant] = []
    families, modes = args.run.split(","), args.modes.split(",")
    if unknown := set(families) - {"cpu", "inductor", "tpu", "torchtpu", "jax"}:
        sys.exit(f"--run: unknown {', '.join(sorted(unknown))}")
    torch_module, jax_module = f"bench.torch_{worker}", f"bench.jax_{worker}"
    for mode in modes if "tpu" in families else ():
        command: tuple[str, ...] = (sys.executable, "-m", torch_module, "--device", "tpu", "--mode", mode)
        found.append(Contestant("tpu" if mode == "strict" else f"tpu:{mode}", command, {}))
    if "cpu" in families:
        found.append(Contestant("cpu", (sys.executable, "-m", torch_module), {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}))
    if "inductor" in families:
        command = (sys.executable, "-m", torch_module, "--mode", "whole" if "whole" in modes else "compile")
        found.append(Contestant("inductor", command, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}))
    for mode in modes if "torchtpu" in families and args.torchtpu_python else ():
        command = (str(args.torchtpu_python), "-m", torch_module, "--device", "tpu", "--setup", "torchtpu", "--mode", mode)
        found.append(Contestant("torchtpu" if mode == "strict" else f"torchtpu:{mode}", command, torchtpu_env(args)))
    if "jax" in families and args.jax_python:
        found.append(Contestant("jax", (args.jax_python, "-m", jax_module), {"JAX_PLATFORMS": "cpu"}))
    return found


def median(values: Iterable[float]) -> float | None:
    values = list(values)
    return statistics.median(values) if values else None


def number(x: float | None) -> str:
    if x is None:
        return "-"
    return f"{x:.0f}" if abs(x) >= 1000 else f"{x:.3g}"


Row = tuple[str, dict[str, float | None]]


def print_body(title: str, body: list[list[str]], columns: list[str]) -> None:
    print(f"\n{title}\n")
    print(tabulate(body, headers=["", *columns], tablefmt="github", disable_numparse=True, stralign="right"))


def print_table(title: str, rows: list[Row], who: list[Contestant]) -> None:
    """A column for each contestant, then how many times what the best mode of tpu needs the best mode of each other family needs
    (above 1: tpu is ahead)."""
    names = [c.name for c in who]
    families = list(dict.fromkeys(c.family for c in who))
    others = [f for f in families if f != "tpu"] if "tpu" in families else []

    def best(row: dict[str, float | None], family: str) -> float | None:
        return min((v for c in who if c.family == family and (v := row.get(c.name)) is not None), default=None)

    def ratio(row: dict[str, float | None], family: str) -> str:
        theirs, ours = best(row, family), best(row, "tpu")
        return f"{theirs / ours:.2f}" if theirs is not None and ours else "-"

    body = [[label, *(number(row.get(n)) for n in names), *(ratio(row, f) for f in others)] for label, row in rows]
    print_body(title, body, [*names, *(f"{f}/tpu" for f in others)])


def save(name: str, args: argparse.Namespace, result: dict[str, Any]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    about = {"machine": platform.processor() or platform.machine(), "load": os.getloadavg(), "arguments": vars(args)}
    path.write_text(json.dumps({**about, **result}, indent=1))
    print(f"\nAll figures: {path.relative_to(ROOT)}")
