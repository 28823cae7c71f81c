"""Random loops that read and write parts of tensors, each round at other places or of another length, for test_parts.py.

A case is made from its seed and run on the device and on the CPU, round by round; `differ` says what was not the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

DTYPES = (torch.float32, torch.float32, torch.int64, torch.bfloat16, torch.bool)
ROUNDS = 12


def programs() -> int:
    return torch.tpu.compile_stats()["programs"]


def differ(got: torch.Tensor, want: torch.Tensor, rtol: float, atol: float) -> str:
    """Empty: they do not."""
    if got.shape != want.shape or got.stride() != want.stride() or got.dtype != want.dtype:
        return f"{got.shape} {got.stride()} {got.dtype} where the CPU has {want.shape} {want.stride()} {want.dtype}"
    try:
        torch.testing.assert_close(got.cpu(), want, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as e:
        return str(e)
    return ""


# ------------------------------------------------------------------------------------------------------------------ places


class View:
    """A part of a tensor by its places: whole axes, single places, windows, every other place, and fixed parts; perhaps with axes
    exchanged or merged."""

    def __init__(self, r: random.Random, shape: list[int]) -> None:
        ways = ["all", "int", "window", "step", "fixed"]
        self.kinds = [(r.choice(ways if s > 3 else ways[:2]), r.randint(1, max(1, s - 2))) for s in shape]
        room = {"all": lambda s, w: 1, "int": lambda s, w: s, "window": lambda s, w: max(1, s - w + 1),
                "step": lambda s, w: max(1, s - 3), "fixed": lambda s, w: 1}  # fmt: skip
        self.room = [room[k](s, w) for (k, w), s in zip(self.kinds, shape, strict=True)]
        self.exchanged, self.merged = r.random() < 0.3, r.random() < 0.3

    def places(self, r: random.Random) -> list[int]:
        return [r.randrange(n) for n in self.room]

    def __call__(self, t: torch.Tensor, at: list[int]) -> torch.Tensor:
        index: list[Any] = []
        for (kind, width), i in zip(self.kinds, at, strict=True):
            window, step, fixed = slice(i, i + width), slice(i, i + 4, 2), slice(1, 1 + width)
            part = {"all": slice(None), "int": i, "window": window, "step": step, "fixed": fixed}
            index.append(part[kind])
        v = t[tuple(index)]
        if self.exchanged and v.dim() > 1:
            v = v.transpose(0, -1)
        if self.merged and v.dim() > 1 and v.is_contiguous():
            v = v.view(-1)
        return v


def write_at_another(f: View, g: View, x: torch.Tensor, y: torch.Tensor, at: list[int], to: list[int]) -> torch.Tensor:
    first = f(x, at).clone().flatten()[0]
    return g(x, to).mul_(first)


def write_out(f: View, g: View, x: torch.Tensor, y: torch.Tensor, at: list[int], to: list[int]) -> torch.Tensor:
    v, w = f(x, at), f(y, at)
    return torch.add(w, w, out=v) if v.is_contiguous() else v


PLACE_OPS: dict[str, Callable[..., torch.Tensor]] = {
    "compare": lambda f, g, x, y, at, to: f(x, at) == f(y, at),
    "copy": lambda f, g, x, y, at, to: f(x, at).copy_(f(y, at)),
    "fill": lambda f, g, x, y, at, to: f(x, at).fill_(1),
    "add": lambda f, g, x, y, at, to: f(x, at).add_(f(y, at)),
    "mixed": lambda f, g, x, y, at, to: f(x, at).sum() * g(y, to),
    "reduced": lambda f, g, x, y, at, to: g(y, to).sum() + f(x, at).max(),
    "another": write_at_another,
    "out": write_out,
}
BOOL_OPS = ("compare", "copy", "fill")


def places_case(seed: int) -> str:
    r = random.Random(seed)
    g = torch.Generator().manual_seed(seed)
    shape, dtype = [r.randint(2, 7) for _ in range(r.randint(1, 4))], r.choice(DTYPES)
    made = [torch.randn(shape, generator=g) for _ in range(2)]
    x, y = ((t > 0) if dtype is torch.bool else (3 * t).to(dtype) for t in made)
    one, other = View(r, shape), View(r, shape)
    ops = r.sample(BOOL_OPS if dtype is torch.bool else list(PLACE_OPS), 3)
    on, tol = [t.to("tpu") for t in (x, y)], 3e-2 if dtype is torch.bfloat16 else 2e-5
    for n in range(ROUNDS):
        at, to = one.places(r), other.places(r)
        for op in ops:
            want, got = (PLACE_OPS[op](one, other, *pair, at, to) for pair in ((x, y), on))
            if why := differ(got, want, tol, 4 * tol):
                return f"seed {seed}, round {n}, {op} of {shape} at {at}, {to}: {why}"
    return differ(on[0], x, tol, 4 * tol) and f"seed {seed}: what {ops} have written is not the same"


# ----------------------------------------------------------------------------------------------------------------- lengths

Step = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor]], torch.Tensor]


def give(out: list[torch.Tensor], v: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
    out += more
    return v


def attend(v: torch.Tensor, y: torch.Tensor, causal: bool) -> torch.Tensor:
    return F.scaled_dot_product_attention(v[:, None], y[:, None], y[:, None], is_causal=causal)[:, 0]


# v and y are [B, n, D], z [B, n] integers below 8, table [8, D].
LENGTH_OPS: dict[str, Step] = {
    "add": lambda v, y, z, table, out: v + y,
    "products": lambda v, y, z, table, out: (v @ y.transpose(1, 2)) @ y,
    "softmax": lambda v, y, z, table, out: torch.softmax(v @ y.transpose(1, 2), -1) @ y,
    "triangle": lambda v, y, z, table, out: torch.tril(v @ y.transpose(1, 2)) @ y,
    "sdpa": lambda v, y, z, table, out: attend(v, y, False),
    "causal": lambda v, y, z, table, out: attend(v, y, True),
    "sum": lambda v, y, z, table, out: give(out, v, v.sum(1)),
    "greatest": lambda v, y, z, table, out: give(out, v, v.amax(1), v.argmax(1).float(), (v > 0).any(1).float()),
    "mean": lambda v, y, z, table, out: v - v.mean(1, keepdim=True),
    "norm": lambda v, y, z, table, out: F.layer_norm(v, v.shape[-1:]),
    "cat": lambda v, y, z, table, out: torch.cat([v, y], 2)[..., : y.shape[2]],
    "cat behind": lambda v, y, z, table, out: give(out, v, torch.cat([v, y], 1).sum(1)),
    "clone": lambda v, y, z, table, out: v.clone(),
    "exchanged": lambda v, y, z, table, out: v.transpose(1, 2).contiguous().transpose(1, 2),
    "running": lambda v, y, z, table, out: v.cumsum(1),
    "embedding": lambda v, y, z, table, out: v + F.embedding(z, table),
    "gather": lambda v, y, z, table, out: give(out, v, torch.gather(v, 1, (z % v.shape[1])[:, :, None].expand_as(v)).sum(1)),
    "ends": lambda v, y, z, table, out: give(out, v, v[:, -1], v[:, 0] * 2),
    "linear": lambda v, y, z, table, out: F.linear(v, table[: v.shape[2], : v.shape[2]]),
    "in place": lambda v, y, z, table, out: torch.tanh(v).add_(1).mul_(y),
    "masked": lambda v, y, z, table, out: v.masked_fill((z % 2 == 0)[:, :, None], -1.0),
    "flip": lambda v, y, z, table, out: torch.roll(v.flip(1), 1, 1),
    "sort": lambda v, y, z, table, out: give(out, v, v.sort(1)[0].sum(1)),
    "merged": lambda v, y, z, table, out: (v.reshape(-1, v.shape[2]) * 2).reshape(v.shape),
}


def lengths_case(seed: int) -> str:
    """Parts [B, n] of longer tensors, whose ends are NaN."""
    r = random.Random(seed)
    g = torch.Generator().manual_seed(seed)
    b, t, d = r.randint(1, 3), r.choice([20, 33, 40, 70]), r.choice([4, 6])
    x, y = torch.randn(b, t, d, generator=g), torch.randn(b, t, d, generator=g)
    z, table = torch.randint(0, 8, (b, t), generator=g), torch.randn(8, d, generator=g) / 2
    x[:, -2:] = y[:, -2:] = float("nan")
    ops, first = r.sample(list(LENGTH_OPS), r.randint(1, 5)), r.choice([0, 0, 0, 2])
    on, writes = [a.to("tpu") for a in (x, y, z, table)], r.random() < 0.3
    lengths = [r.randint(2, t - 4) for _ in range(ROUNDS)] if r.random() < 0.5 else range(4, 16)
    for n in lengths:
        results: list[list[torch.Tensor]] = []
        for p, q, s, w in ((x, y, z, table), on):
            out: list[torch.Tensor] = []
            v = p[:, first : first + n]
            for op in ops:
                v = LENGTH_OPS[op](v, q[:, :n], s[:, :n], w, out)
            if writes:
                p[:, n % (t - 3)] = v[:, n // 2]
                p[:, :n] *= 0.5
            results.append([*out, v])
        for want, got in zip(*results, strict=True):
            scale = float(want.abs().max()) if want.numel() else 1.0
            if why := differ(got, want, 1e-3, 1e-3 * max(1.0, scale)):
                return f"seed {seed}, {n} of {t} from {first}, {ops}: {why}"
    return differ(on[0], x, 1e-3, 1e-3) and f"seed {seed}: what {ops} have written is not the same"
