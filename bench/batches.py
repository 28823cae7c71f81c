"""Training on batches of ever other lengths: a BERT encoder of transformers, padded batches, dropout, AdamW; eager. With --cache:
decoding with a cache that is kept by hand, written at a place and read up to it.

    python -m bench.batches [--cache] [--steps 60] [--layers 2] [--cpu 1]

Strict and DeferAndFuse, with lengths and places given at run time and (TORCH_TPU_EAGER_LENGTHS=0) with programs for each, each in
a process of its own that starts with an empty disk cache. The losses, or what is decoded, must be the same to 1e-4: lengths given
at run time draw the same random numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from typing import Any

from bench import pool

TOLERANCE = 1e-4
SHORTEST, LONGEST, ROWS = 17, 64, 8
RUNS = {
    "Strict, a program for each length": {"TORCH_TPU_EAGER_LENGTHS": "0"},
    "Strict": {},
    "DeferAndFuse, a program for each length": {"TORCH_TPU_EAGER_LENGTHS": "0", "TORCH_TPU_DEFER_AND_FUSE": "1"},
    "DeferAndFuse": {"TORCH_TPU_DEFER_AND_FUSE": "1"},
}


def train(steps: int, layers: int) -> dict[str, Any]:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=2000, hidden_size=256, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=1024)
    model: torch.nn.Module = BertForSequenceClassification(config)
    model = model.to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    chosen, numbers = random.Random(1), torch.Generator().manual_seed(2)
    tpu: Any = torch.get_device_module("tpu")
    losses, programs, cpu = list[float](), list[int](), list[float]()
    for _ in range(steps):
        n = chosen.randint(SHORTEST, LONGEST)
        ids = torch.randint(2000, (ROWS, n), generator=numbers)
        mask = (torch.arange(n) < torch.randint(n // 2, n + 1, (ROWS, 1), generator=numbers)).long()
        labels = torch.randint(2, (ROWS,), generator=numbers)
        begin = time.process_time()
        optimizer.zero_grad()
        loss = model(input_ids=ids.to("tpu"), attention_mask=mask.to("tpu"), labels=labels.to("tpu")).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        cpu.append(time.process_time() - begin)
        programs.append(int(tpu.compile_stats()["programs"]))
    return {"losses": losses, "programs": programs, "cpu_s": cpu}


def decode(steps: int, layers: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    rows, heads, width = ROWS, 4, 256
    g = torch.Generator().manual_seed(0)
    weights = [[(torch.randn(width, width, generator=g) / 16).to("tpu") for _ in range(4)] for _ in range(layers)]
    shape = (rows, heads, 2 * steps, width // heads)
    caches = [[torch.zeros(shape, device="tpu") for _ in range(2)] for _ in range(layers)]
    tpu: Any = torch.get_device_module("tpu")
    x = torch.ones(rows, 1, width, device="tpu")
    read, programs, cpu = list[float](), list[int](), list[float]()
    for n in range(steps):
        begin = time.process_time()
        for (wq, wk, wv, wo), (keys, values) in zip(weights, caches, strict=True):
            q, k, v = ((x @ w).view(rows, 1, heads, -1).transpose(1, 2) for w in (wq, wk, wv))
            keys[:, :, n : n + 1], values[:, :, n : n + 1] = k, v
            scores = q @ keys[:, :, : n + 1].transpose(2, 3) / shape[3] ** 0.5
            o = torch.softmax(scores, -1) @ values[:, :, : n + 1]
            x = torch.tanh(x + o.transpose(1, 2).reshape(rows, 1, width) @ wo)
        read.append(x.mean().item())
        cpu.append(time.process_time() - begin)
        programs.append(int(tpu.compile_stats()["programs"]))
    return {"losses": read, "programs": programs, "cpu_s": cpu}


def run(env: dict[str, str], args: argparse.Namespace) -> dict[str, Any]:
    """`train` in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as root:
        command = [sys.executable, "-m", "bench.batches", "--alone", "--steps", str(args.steps), "--layers", str(args.layers)]
        command += ["--cache"] if args.cache else []
        pinned = None if args.cpu is None else lambda: os.sched_setaffinity(0, {args.cpu})
        done = subprocess.run(
            command, env={**os.environ, **env, "TORCH_TPU_CACHE_DIR": root}, stdout=subprocess.PIPE, check=True, preexec_fn=pinned
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", action="store_true", help="decoding with a cache kept by hand")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--cpu", type=int, help="the one core to run on")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        print(json.dumps((decode if args.cache else train)(args.steps, args.layers)))
        return
    results = {name: run(env, args) for name, env in RUNS.items()}
    half, body = args.steps // 2, []
    for name, r in results.items():
        programs, cpu = r["programs"], r["cpu_s"]
        late, per_step = programs[-1] - programs[half - 1], 1e3 * sum(cpu[half:]) / len(cpu[half:])
        body.append([name, str(programs[-1]), str(late), pool.number(sum(cpu)), pool.number(per_step)])
    columns = ["programs", "of these in the second half", "CPU s, all steps", "CPU ms a step, second half"]
    trained = f"{args.steps} steps on [{ROWS}, {SHORTEST}..{LONGEST}], {args.layers} layers of BERT, width 256"
    decoded = f"{args.steps} tokens, {ROWS} rows, {args.layers} layers of attention with a cache kept by hand, width 256"
    pool.print_body(decoded if args.cache else trained, body, columns)
    pool.save("cache" if args.cache else "batches", args, {"runs": results})
    first = next(iter(results.values()))["losses"]
    off = {name: max(abs(a - b) for a, b in zip(first, r["losses"], strict=True)) for name, r in results.items()}
    if bad := [f"{name}: losses differ by {d:.2g}" for name, d in off.items() if not d <= TOLERANCE]:
        sys.exit("\n".join(["", *bad]))


if __name__ == "__main__":
    main()
