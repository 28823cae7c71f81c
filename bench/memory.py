"""Does a long run keep its memory? A million mixed ops, then 200 training steps whose learning rate never repeats.

    python -m bench.memory [--device tpu] [--ops 1000000] [--steps 200]

Resident memory is read after a collection and a drain, once a tenth of the work is done (programs are compiled and pools filled by
then) and at the end. Exits with an error if either part grew by more than --limit MiB.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from bench import models
from bench.torch_worker import mlp


def resident(device: str) -> float:
    """MiB of this process in memory now, everything queued done and garbage collected."""
    gc.collect()
    if device != "cpu":
        torch.accelerator.synchronize()
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / 2**20


def mixed_ops(device: str) -> tuple[Callable[[int], None], int]:
    """A round of ops of many kinds with a number in them that was never used before, and how many ops it has."""
    a, b = torch.randn(32, 32).to(device), torch.randn(32, 32).to(device)
    index = torch.arange(0, 32, 2).to(device)
    kept = torch.zeros(32, 32).to(device)

    def body(i: int) -> None:
        fresh = 1 + i * 1e-7
        x = a * fresh + b  # mul, add
        x = torch.where(x > 0, x, fresh)  # gt, where
        y = torch.matmul(x, b).tanh()  # matmul, tanh
        kept[:16].add_(y[16:], alpha=fresh * 1e-9)  # two views, add_
        z = torch.cat([y.t(), x], dim=1)  # view, cat
        s = z.softmax(dim=1).sum(dim=0)  # softmax, sum
        picked = x.index_select(0, index).mean()  # index_select, mean
        kept.mul_(0.5).clamp_(-fresh, fresh)  # mul_, clamp_
        w = torch.full((8,), fresh, device=device).to(torch.float64)  # full, cast
        if i % 50 == 0:
            (s[0] + picked + w[0]).item()  # a read now and then, as a training loop does

    return body, 19


def train_steps(device: str) -> Callable[[int], None]:
    """A step of the benchmark's MLP with AdamW and a learning rate of its own."""
    p = {k: torch.from_numpy(w).to(device).requires_grad_() for k, w in models.mlp_weights().items()}
    optimizer = torch.optim.AdamW(p.values(), **models.ADAMW)  # type: ignore[arg-type]

    def body(i: int) -> None:
        x, y = (torch.from_numpy(t).to(device) for t in models.mlp_batch(i))
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 / (1 + 0.01 * i)
        optimizer.zero_grad()
        loss = mlp(p, F.dropout(x, 0.1), y)
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            loss.item()

    return body


def growth(title: str, body: Callable[[int], None], rounds: int, device: str) -> float:
    """MiB gained in the last nine tenths of `rounds` rounds."""
    warm = max(1, rounds // 10)
    for i in range(warm):
        body(i)
    before, begin = resident(device), time.perf_counter()
    for i in range(warm, rounds):
        body(i)
    after = resident(device)
    print(
        f"{title}: {before:.1f} MiB to {after:.1f} MiB, {after - before:+.1f} MiB in {time.perf_counter() - begin:.1f} s",
        flush=True,
    )
    return after - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--ops", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--limit", type=float, default=50, help="MiB that either part may grow by")
    args = parser.parse_args()
    body, each = mixed_ops(args.device)
    rounds = args.ops // each
    grown = [growth(f"{rounds * each} mixed ops", body, rounds, args.device)]
    grown.append(growth(f"{args.steps} training steps", train_steps(args.device), args.steps, args.device))
    if args.device == "tpu":
        print(f"compiling: {torch.get_device_module(args.device).compile_stats()}")
    if max(grown) > args.limit:
        sys.exit(f"grew by {max(grown):.1f} MiB, more than {args.limit:.0f}")


if __name__ == "__main__":
    main()
