"""Tokens a second of SmolLM2-135M with a static cache: eager Strict beside torch.compile, in turns in one process, on one core.

    python -m bench.decode [--tokens 16] [--rounds 5]
    python -m bench.decode --fuse [--tokens 256] [--layers 4]   # a cache that grows: eager Strict beside eager DeferAndFuse

Both decode greedily from the same prompt and must give the same tokens. Programs made after the second token are counted: there
should be none, also with ``dynamic=True`` and prompts that grow, but for one at each bound that they pass.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import StaticCache

from bench import pool
from examples import generate

CACHE_LENGTH = 128
Forward = Callable[..., Any]


class Decoder:
    """Greedy decoding by one forward function and a cache of its own."""

    def __init__(self, model: Any, forward: Forward) -> None:
        self.model, self.forward = model, forward

    def start(self, prompt: torch.Tensor) -> None:
        """Read the prompt, (1, tokens) int64."""
        c = self.model.config
        self.cache = StaticCache(config=c, max_cache_len=CACHE_LENGTH)
        heads, width = c.num_key_value_heads, c.hidden_size // c.num_attention_heads
        self.cache.early_initialization(1, heads, width, self.model.dtype, self.model.device)  # as compiling the prompt needs
        self.tokens: list[int] = []
        self._run(prompt)

    def _run(self, ids: torch.Tensor) -> None:
        out = self.forward(input_ids=ids, cache=self.cache, use_cache=True, logits_to_keep=1)
        self.next = out.logits.argmax(-1)
        self.tokens.append(int(self.next))

    def step(self) -> None:
        self._run(self.next)


def programs() -> int:
    return int(torch.get_device_module("tpu").compile_stats()["programs"])


def bounds() -> int:
    return int(torch.get_device_module("tpu").compile_stats()["dynamic"]["bounded"])


def compare(model: Any, prompt: torch.Tensor, args: argparse.Namespace) -> dict[str, Any]:
    with torch.inference_mode():
        who = {"strict": Decoder(model, model), "compiled": Decoder(model, torch.compile(model, backend="tpu", dynamic=False))}
        for d in who.values():
            d.start(prompt)
            d.step()
            d.step()
        before = programs()
        cpu: dict[str, list[float]] = {name: [] for name in who}
        for _ in range(args.rounds):
            for name, d in who.items():
                begin = time.process_time()
                for _ in range(args.tokens):
                    d.step()
                cpu[name].append((time.process_time() - begin) / args.tokens)
        late = programs() - before
    if who["strict"].tokens != who["compiled"].tokens:
        raise SystemExit(f"the tokens differ: {who['strict'].tokens} v. {who['compiled'].tokens}")
    return {"cpu": cpu, "late": late}


def growing(model: Any, prompt: torch.Tensor, tokens: int) -> tuple[int, int]:
    """Programs made after the second token of the first prompt, decoding from ever longer prompts with ``dynamic=True``: those for
    larger bounds, and others."""
    torch._dynamo.reset()
    decoder = Decoder(model, torch.compile(model, backend="tpu", dynamic=True))
    before = None
    on_host = prompt.cpu()  # where longer ones are put together: on the device, each length would be a program
    with torch.inference_mode():
        for extra in range(0, 12, 3):
            decoder.start(torch.cat([on_host, on_host[:, :extra]], dim=1).to(prompt.device))
            for _ in range(tokens):
                decoder.step()
                before = (programs(), bounds()) if before is None else before
    larger = bounds() - before[1] if before else 0
    return larger, programs() - (before[0] if before else 0) - larger


def generated(model: Any, prompt: torch.Tensor, tokens: int) -> dict[str, Any]:
    """What transformers' own greedy loop gives with a DynamicCache, and what it took."""
    before, begin, cpu = programs(), time.perf_counter(), time.process_time()
    out = model.generate(prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)[0].tolist()
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    return {
        "tokens": out[prompt.shape[1] :],
        "wall": tokens / wall,
        "cpu": tokens / cpu,
        "compiled": programs() - before,
        "fused": fuse_programs(),
    }


def alone(model: Any, prompt: torch.Tensor, mode: str, tokens: int) -> list[dict[str, Any]]:
    """From nothing, then again."""
    tpu: Any = torch.get_device_module("tpu")
    found = []
    with torch.inference_mode(), tpu.set_eager_mode(tpu.EagerMode[mode.upper()]):
        for _ in range(2):
            found.append(generated(model, prompt, tokens))
            tpu.synchronize()
            if hasattr(tpu.compiler, "wait"):
                tpu.compiler.wait()
    return found


def eager(args: argparse.Namespace) -> None:
    """Strict and DeferAndFuse, each in a process with an empty disk cache. Every token makes
    the cache, and with it most shapes, one longer: "exact" is Strict with a program for each length."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in ("exact", "strict", "fuse"):
        mode = "fuse" if name == "fuse" else "strict"
        more = [f"--layers={args.layers}"] if args.layers is not None else []
        command = [sys.executable, "-m", "bench.decode", "--alone", mode, f"--tokens={args.tokens}", f"--cpu={args.cpu}", *more]
        with tempfile.TemporaryDirectory(prefix="bench-cache-") as cache:
            env = {**os.environ, "TORCH_TPU_CACHE_DIR": f"{cache}/tpu", "TORCH_TPU_EAGER_LENGTHS": "0" if name == "exact" else "1"}
            out = subprocess.run(command, env=env, cwd=pool.ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
        found[name] = json.loads(out.splitlines()[-1])
    keys = ("wall", "cpu", "compiled", "fused")
    body = [
        [f"{name}, {which}", *(pool.number(r[k]) for k in keys)]
        for name, rs in found.items()
        for which, r in zip(("first", "again"), rs, strict=True)
    ]
    title = f"{args.layers or 'All'} layers, {args.tokens} tokens with DynamicCache, one core"
    pool.print_body(title, body, ["tokens a second", "a CPU second", "programs compiled", "fused programs so far"])
    for beside in ("exact", "strict"):
        ratios = [fuse["cpu"] / other["cpu"] for other, fuse in zip(found[beside], found["fuse"], strict=True)]
        print(f"fuse, times the tokens a CPU second of {beside}: first {ratios[0]:.2f}, again {ratios[1]:.2f}")
    pool.save("decode-fuse", args, found)
    if len({str(r["tokens"]) for rs in found.values() for r in rs}) != 1:
        raise SystemExit("the tokens differ")


def fuse_programs() -> int:
    stats = getattr(torch.get_device_module("tpu"), "fuse_stats", None)
    return int(stats()["programs"]) if stats else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, help="8: in a row, before the other has its turn; with --fuse 256")
    parser.add_argument("--fuse", action="store_true", help="a cache that grows, Strict beside DeferAndFuse; the disk cache empty")
    parser.add_argument("--alone", choices=("strict", "fuse"), help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, help="the model's first layers only")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="the one core to run on")
    parser.add_argument("--no-growing", action="store_true", help="leave out the prompts that grow")
    args = parser.parse_args()
    args.tokens = args.tokens or (256 if args.fuse else 8)
    if args.fuse:
        eager(args)
        return
    os.sched_setaffinity(0, {args.cpu})
    torch.set_num_threads(1)
    model, tokenizer = generate.load("tpu")
    if args.layers is not None:
        model.model.layers = model.model.layers[: args.layers]
        model.config.num_hidden_layers = args.layers
    prompt = tokenizer(generate.QUESTION, return_tensors="pt").input_ids.to("tpu")
    if args.alone:
        print(json.dumps(alone(model, prompt, args.alone, args.tokens)))
        return
    result = compare(model, prompt, args)
    rate = {name: 1 / statistics.median(s) for name, s in result["cpu"].items()}
    print(
        f"tokens a CPU second: {', '.join(f'{n} {r:.1f}' for n, r in rate.items())}: {rate['compiled'] / rate['strict']:.2f} times"
    )
    print(f"programs made after the second token: {result['late']}")
    if not args.no_growing:
        result["growing"] = growing(model, prompt, 3)
        larger, others = result["growing"]
        print(f"programs made after the second token, prompts that grow, dynamic=True: {larger} for larger bounds, {others} others")
    pool.save("decode", args, result)


if __name__ == "__main__":
    main()
