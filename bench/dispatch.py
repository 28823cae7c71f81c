"""What one small op costs: this backend beside native CPU, TorchTPU and JAX, on one core, in one run.

python -m bench.dispatch [--torchtpu-python ... --torchtpu-forward ...] [--jax-python ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from bench import pool

# name of the measurement -> (label, which figure of the reply)
ROWS = {
    "a+b, wall": ("add", "wall"),
    "a+b, CPU of all threads": ("add", "cpu"),
    "a+b, CPU of the caller": ("add", "caller"),
    "a+b jitted, wall (JAX)": ("add_jit", "wall"),
    "(a+b)[0].item(), wall": ("add_item", "wall"),
    "(a+b)[0].item(), CPU of all threads": ("add_item", "cpu"),
    "0-d item(), wall": ("item", "wall"),
    "0-d item(), CPU of all threads": ("item", "cpu"),
    "a+b with autograd, wall": ("add_autograd", "wall"),
    "a+b with autograd, CPU of all threads": ("add_autograd", "cpu"),
    "a+b compiled, wall": ("add_compiled", "wall"),
    "a+b compiled, CPU of all threads": ("add_compiled", "cpu"),
    "100 adds compiled, then .cpu(), wall": ("chain_compiled", "wall"),
    "100 adds compiled, then .cpu(), CPU of all threads": ("chain_compiled", "cpu"),
    "100 adds then .cpu(), wall": ("chain", "wall"),
    "100 adds then .cpu(), CPU of all threads": ("chain", "cpu"),
}

IMPORT = """
import json, os, resource, time
begin = time.process_time()
import torch
cpu = time.process_time() - begin
pages = int(open('/proc/self/statm').read().split()[1])
print(json.dumps({'cpu': cpu, 'rss': pages * resource.getpagesize() / 2**20}))
"""


def import_cost(who: list[tuple[str, str, dict[str, str]]], cpu: int, rounds: int) -> dict[str, dict[str, float | None]]:
    """Median CPU seconds of `import torch` and the process's MiB after it, for each (name, python, environment)."""
    got: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in who}
    for _ in range(rounds + 1):
        for name, python, env in who:
            out = subprocess.run(
                [python, "-c", IMPORT], capture_output=True, text=True, check=False, cwd="/",
                env={**os.environ, **pool.ONE_THREAD, **env}, preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
            )  # fmt: skip
            if out.returncode == 0:
                got[name].append(json.loads(out.stdout.splitlines()[-1]))
    # The first of each may have read the libraries from disk.
    return {name: {k: pool.median(r[k] for r in replies[1:]) for k in ("cpu", "rss")} for name, replies in got.items()}


def print_imports(args: argparse.Namespace) -> dict[str, dict[str, float | None]]:
    who = [("torch alone", sys.executable, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}), ("tpu", sys.executable, {})]
    if args.torchtpu_python:
        who.append(("torchtpu", args.torchtpu_python, pool.torchtpu_env(args)))
    costs = import_cost(who, args.cpu, args.rounds)
    base = costs["torch alone"]
    body = []
    for name, c in costs.items():
        more = [c[k] - base[k] if c[k] is not None and base[k] is not None else None for k in ("cpu", "rss")]  # type: ignore[operator]
        body.append([name, *(pool.number(x) for x in (c["cpu"], more[0], c["rss"], more[1]))])
    pool.print_body("`import torch` with the backend autoloaded", body, ["CPU s", "more", "MiB", "more"])
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pool.add_arguments(parser)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of iterations")
    parser.add_argument("--no-import", action="store_true", help="leave out the cost of importing")
    args = parser.parse_args()
    who = pool.contestants(args)
    workers = pool.Pool(who, args.cpu, args.timeout)
    ops = list(dict.fromkeys(op for op, _ in ROWS.values()))
    samples: dict[str, dict[str, list[pool.Reply]]] = {op: {c.name: [] for c in who} for op in ops}
    for _ in range(args.rounds):
        for op in ops:
            for c in who:
                if f"{c.name}, op {op} {args.scale}" not in workers.notes and (
                    reply := workers.ask(c, "op", name=op, scale=args.scale)
                ):
                    samples[op][c.name].append(reply)
    workers.close()
    rows: list[pool.Row] = [
        (label, {name: pool.median(r[key] for r in replies) for name, replies in samples[op].items()})
        for label, (op, key) in ROWS.items()
    ]
    each = {name: pool.median(r["cpu"] / 100 for r in replies) for name, replies in samples["chain"].items()}
    rows.append(("one of 100 adds then .cpu(), CPU of all threads", each))
    title = f"16 float32, microseconds an op until the device is idle, median of {args.rounds} rounds, one core"
    pool.print_table(title, rows, who)
    workers.print_notes()
    imports = {} if args.no_import else print_imports(args)
    pool.save("dispatch", args, {"samples": samples, "imports": imports, "notes": workers.notes})
    if any(c.family == "tpu" for c in who) and not samples["add"].get("tpu"):
        sys.exit("the device tpu did not run")


if __name__ == "__main__":
    main()
