"""Do plain loops keep a fixed set of fused programs? Each loop runs in Strict, then in DeferAndFuse: 50 iterations of ordinary
code, with nothing in it that tells where an iteration ends.

    python -m bench.loops [--only gan,plain] [--iterations 50] [--cpu 1]

Programs asked for are told after some iterations: from the tenth on there may be no more (two loops have a trace that has not come
twice by then), and at most six. Losses and weights must be Strict's to 1e-5. tests/python/test_fuse.py runs the same loops beside
CPU PyTorch.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from bench import pool

MARKS = (5, 10, 20, 50)
FIXED_FROM, PROGRAMS, TOLERANCE = 10, 6, 1e-5
# A program is asked for when a trace that has come twice is cut. A fourth batch and its step come in iterations 8 and 12 (in 4 the
# step makes the optimizer's state), and in 16 where the one of 12 was sent ahead. The rarest of three lengths comes in 4 and 10,
# cut by the first call of 11.
FIXED_LATER = {"accumulation": 17, "shuffled": 11}
BUCKETS = (8, 12, 16)
Values = list[torch.Tensor | float]
# Yields after each iteration and returns what it computed: losses read on the way, and tensors on its device.
Loop = Iterator[None]


class Setup:
    """What a loop is given: a device, a width of its own, so that no loop finds another's programs, and numbers from one seed."""

    def __init__(self, device: str, width: int) -> None:
        self.device, self.width = device, width
        self.random = torch.Generator().manual_seed(width)
        self.values: Values = []

    def net(self, inputs: int, outputs: int) -> torch.nn.Module:
        layers = [torch.nn.Linear(inputs, self.width), torch.nn.ReLU(), torch.nn.Linear(self.width, outputs)]
        return self.own(torch.nn.Sequential(*layers))

    def own(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model on the device, with weights of its own: threads share PyTorch's generator."""
        with torch.no_grad():
            for p in model.parameters():
                p.uniform_(-0.3, 0.3, generator=self.random)
        return model.to(self.device)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.random).to(self.device)

    def classes(self, n: int, *shape: int) -> torch.Tensor:
        return torch.randint(n, shape, generator=self.random).to(self.device)

    def keep(self, *models: torch.nn.Module) -> None:
        self.values += [p.detach() for m in models for p in m.parameters()]


def reads(s: Setup) -> Loop:
    """A loss read every 5 steps, a learning rate that is another one at each."""
    model = s.net(20, 5)
    s.keep(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    for i in itertools.count():
        x, y = s.normal(16, 20), s.classes(5, 16)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        if i % 5 == 4:
            s.values.append(loss.item())
        yield


def accumulation(s: Setup) -> Loop:
    """Gradients of 4 batches added up, then a step. An iteration is a batch."""
    model = s.net(20, 5)
    s.keep(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for i in itertools.count():
        x, y = s.normal(16, 20), s.classes(5, 16)
        (F.cross_entropy(model(x), y) / 4).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        yield


def evaluation(s: Setup) -> Loop:
    """Every 5 steps a pass over two batches without gradients, its accuracy read."""
    model = s.net(20, 5)
    s.keep(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    held = [(s.normal(32, 20), s.classes(5, 32)) for _ in range(2)]
    for i in itertools.count():
        x, y = s.normal(16, 20), s.classes(5, 16)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if i % 5 == 4:
            model.eval()
            with torch.no_grad():
                right = sum((model(a).argmax(1) == b).sum().item() for a, b in held)
            s.values.append(right / 64)
            model.train()
        yield


def gan(s: Setup) -> Loop:
    """Two models in turn: the discriminator's step, then the generator's."""
    maker, judge = s.net(8, 12), s.net(12, 1)
    s.keep(maker, judge)
    make, criticise = (torch.optim.Adam(m.parameters(), lr=1e-3, betas=(0.5, 0.999)) for m in (maker, judge))
    real, fake = torch.ones(16, 1, device=s.device), torch.zeros(16, 1, device=s.device)
    for _ in itertools.count():
        made = maker(s.normal(16, 8))
        criticise.zero_grad()
        scores = judge(s.normal(16, 12)), judge(made.detach())
        d = F.binary_cross_entropy_with_logits(scores[0], real) + F.binary_cross_entropy_with_logits(scores[1], fake)
        d.backward()
        criticise.step()
        make.zero_grad()
        g = F.binary_cross_entropy_with_logits(judge(made), real)
        g.backward()
        make.step()
        yield


def bucketed(s: Setup, order: Callable[[int], int]) -> Loop:
    words = s.own(torch.nn.Embedding(50, s.width))
    model = s.net(s.width, 5)
    s.keep(words, model)
    optimizer = torch.optim.AdamW([*words.parameters(), *model.parameters()], lr=1e-2)
    for i in itertools.count():
        x, y = s.classes(50, 16, BUCKETS[order(i)]), s.classes(5, 16)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words(x).mean(1)), y)
        loss.backward()
        optimizer.step()
        yield


def buckets(s: Setup) -> Loop:
    """Batches of three lengths in turn."""
    return bucketed(s, lambda i: i % 3)


def shuffled(s: Setup) -> Loop:
    """Batches of three lengths, shuffled."""
    chosen = random.Random(3)
    return bucketed(s, lambda _: chosen.randrange(3))


def lengths(s: Setup) -> Loop:
    """Batches of ever other lengths, through attention; from the fourth on the length is a number."""
    words = s.own(torch.nn.Embedding(50, s.width))
    mixer = s.own(torch.nn.TransformerEncoderLayer(s.width, 2, 2 * s.width, dropout=0.0, batch_first=True))
    model = s.net(s.width, 50)
    s.keep(words, mixer, model)
    optimizer = torch.optim.SGD([*words.parameters(), *mixer.parameters(), *model.parameters()], lr=1e-2)
    chosen, others = random.Random(5), [n for n in range(17, 33) if n % 4 != 0]
    for i in itertools.count():
        x = s.classes(50, 4, (20, 24, 28)[i] if i < 3 else chosen.choice(others))
        optimizer.zero_grad()
        F.cross_entropy(model(mixer(words(x))).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
        yield


def plain(s: Setup) -> Loop:
    """Training with nothing read at all."""
    model = s.net(20, 5)
    s.keep(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in itertools.count():
        x, y = s.normal(16, 20), s.classes(5, 16)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        yield


def prepared(s: Setup) -> Loop:
    """Training on batches that were all on the device before, nothing read."""
    model = s.net(20, 5)
    s.keep(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = [(s.normal(16, 20), s.classes(5, 16)) for _ in range(10)]
    for i in itertools.count():
        x, y = batches[i % 10]
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        yield


def chain(s: Setup) -> Loop:
    """x = x + y and nothing read. An iteration is 100 of them."""
    x, y = s.normal(s.width), s.normal(s.width)
    s.values.append(x)
    for _ in itertools.count():
        for _ in range(100):
            x = x + y
        s.values[0] = x
        yield


LOOPS: dict[str, Callable[[Setup], Loop]] = {
    f.__name__: f for f in (reads, accumulation, evaluation, gan, buckets, shuffled, lengths, plain, prepared, chain)
}


def run(name: str, device: str, iterations: int, width: int, after: Callable[[int], None] = lambda i: None) -> Values:
    """The loop's losses and weights, on the CPU. `after(i)` is called when i iterations are done."""
    s = Setup(device, width)
    for i, _ in enumerate(itertools.islice(LOOPS[name](s), iterations), 1):
        after(i)
    return [v.cpu() if isinstance(v, torch.Tensor) else v for v in s.values]


def difference(a: Values, b: Values) -> float:
    """The largest, absolute or relative, whichever is smaller; infinite where one is not finite."""
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        x, y = torch.as_tensor(x).double(), torch.as_tensor(y).double()
        off = ((x - y).abs() / y.abs().clamp(min=1)).max()
        worst = max(worst, float(off)) if torch.isfinite(off) else float("inf")
    return worst


def stats() -> dict[str, Any]:
    """torch.tpu.fuse_stats()."""
    return dict(torch.get_device_module("tpu").fuse_stats())


def programs() -> int:
    return int(stats()["programs"])


def width_of(name: str) -> int:
    return 24 + 4 * list(LOOPS).index(name)


def complaints(name: str, asked: dict[int, int], off: float, fused: int) -> list[str]:
    """What breaks the bars; `asked`: programs after iterations."""
    fixed = FIXED_LATER.get(name, FIXED_FROM)
    late = max(asked.values()) - min((n for i, n in asked.items() if i >= fixed), default=0)
    bad = []
    if late:
        bad.append(f"{late} programs after iteration {fixed}")
    if max(asked.values()) > PROGRAMS:
        bad.append(f"{max(asked.values())} programs")
    if not off <= TOLERANCE:
        bad.append(f"differs from Strict by {off:.2g}")
    if not fused:
        bad.append("nothing ran fused")
    return [f"{name}: {b}" for b in bad]


def measure(name: str, iterations: int) -> tuple[list[str], dict[str, Any], list[str]]:
    """The loop's line in the table, all its figures, and what breaks the bars."""
    tpu: Any = torch.get_device_module("tpu")
    width, asked = width_of(name), dict[int, int]()
    strict = run(name, "tpu", iterations, width)

    def again() -> float:
        """CPU ms an iteration, of all threads, when everything is compiled."""
        begin = time.process_time()
        run(name, "tpu", iterations, width)
        return 1e3 * (time.process_time() - begin) / iterations

    cpu = {"strict": again()}
    before = stats()

    def after(i: int) -> None:
        if i in MARKS or i in (FIXED_LATER.get(name), iterations):
            asked[i] = programs() - before["programs"]

    with tpu.set_eager_mode(tpu.EagerMode.FUSE):
        fuse = run(name, "tpu", iterations, width, after)
        tpu.compiler.wait()
        cpu["fuse"] = again()
    end = stats()
    off = difference(fuse, strict)
    nodes, fused = (end[k] - before[k] for k in ("nodes", "fused"))
    cuts = {k: n - before["cuts"].get(k, 0) for k, n in end["cuts"].items() if n > before["cuts"].get(k, 0)}
    late = end["programs"] - before["programs"] - max(asked.values())
    line = [name, *(str(asked.get(i, "-")) for i in MARKS), str(late), f"{fused / max(nodes, 1):.0%}"]
    line += [", ".join(f"{k} {n}" for k, n in sorted(cuts.items())), pool.number(off), *map(pool.number, cpu.values())]
    figures = {"programs": asked, "again": late, "nodes": nodes, "fused": fused, "cuts": cuts, "difference": off, "cpu": cpu}
    return line, figures, complaints(name, asked, off, fused)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(LOOPS), help="which loops")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--cpu", type=int, help="the one core to run on")
    args = parser.parse_args()
    if args.cpu is not None:
        os.sched_setaffinity(0, {args.cpu})
    torch.set_num_threads(1)
    if not hasattr(torch.get_device_module("tpu"), "fuse_stats"):
        sys.exit("this torch_tpu has no DeferAndFuse")
    body, result, bad = [], {}, []
    for name in args.only.split(","):
        line, result[name], broken = measure(name, args.iterations)
        body.append(line)
        bad += broken
    columns = [
        *(f"programs at {i}" for i in MARKS),
        "more when run again",
        "calls fused",
        "cuts",
        "difference",
        "Strict, ms",
        "Fuse, ms",
    ]
    pool.print_body(
        f"{args.iterations} iterations of each loop in DeferAndFuse, the first time and again (CPU of all threads)", body, columns
    )
    pool.save("loops", args, {"loops": result})
    if bad:
        sys.exit("\n".join(["", *bad]))


if __name__ == "__main__":
    main()
