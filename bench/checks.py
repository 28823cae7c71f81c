"""What does the bounds check of an index cost? ``x[i]`` beside ``aten::_unsafe_index``, the same program without the check.

    python -m bench.checks [--rounds 7]

``same``: the indices were used before and not written since, as those that backward uses again, so that they are known to be good.
``fresh``: the indices are written before each call, which is timed alone and taken off. CPU time of all threads on one core, the
forms in turn, minima.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

SHAPES = {  # table's rows, their width (0: a vector), indices
    "embedding, 2048 of 32000 x 512": (32000, 512, 2048),
    "rows, 256 of 4096 x 64": (4096, 64, 256),
    "elements, 100,000 of 100,000": (100_000, 0, 100_000),
    "elements, 16 of 16": (16, 0, 16),
}


def cpu_us(body: Callable[[], object], calls: int) -> float:
    """CPU microseconds of one call, with all it starts."""
    torch.accelerator.synchronize()
    start = time.process_time()
    for _ in range(calls):
        body()
    torch.accelerator.synchronize()
    return (time.process_time() - start) / calls * 1e6


def measure(rows: int, width: int, count: int, rounds: int) -> dict[str, float]:
    """Microseconds of ``x[i]`` checked and not, with indices known and fresh."""
    x = torch.randn(rows, width) if width else torch.randn(rows)
    x, i = x.to("tpu"), torch.randint(0, rows, (count,)).to("tpu")
    calls = max(20, min(3000, 2_000_000 // (count * max(width, 1))))

    def touch() -> torch.Tensor:
        return i.add_(0)

    bodies: dict[str, Callable[[], object]] = {
        "plain": lambda: torch.ops.aten._unsafe_index(x, [i]),
        "same": lambda: torch.ops.aten.index(x, [i]),
        "touch": touch,
        "touch plain": lambda: (touch(), torch.ops.aten._unsafe_index(x, [i])),
        "touch checked": lambda: (touch(), torch.ops.aten.index(x, [i])),
    }
    for body in bodies.values():
        for _ in range(12):
            body()
        torch.accelerator.synchronize()
    times = {name: min(cpu_us(body, calls) for _ in range(rounds)) for name, body in bodies.items()}
    return {
        "plain": times["plain"],
        "same": times["same"],
        "fresh plain": times["touch plain"] - times["touch"],
        "fresh": times["touch checked"] - times["touch"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    table = Table("x[i], us", "unchecked", "same", "ratio", "fresh unchecked", "fresh", "ratio")
    for name, shape in SHAPES.items():
        t = measure(*shape, args.rounds)
        cells = [t["plain"], t["same"], t["same"] / t["plain"], t["fresh plain"], t["fresh"], t["fresh"] / t["fresh plain"]]
        table.add_row(name, *(f"{c:.2f}" for c in cells))
    Console().print(table)


if __name__ == "__main__":
    main()
