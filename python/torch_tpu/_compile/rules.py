"""What each kind of op does in a program that serves every length up to a bound.

The kind is a property of the op's row in the core (``pad`` of ``_C.ops()``), and so are the neutral elements: here is how each kind
lays out its results, and which operands it has filled before. A rule that meets something it is not sure of raises
:class:`Untraceable`, and the graph is then compiled for each set of sizes.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from torch_tpu._compile.padded import (
    Dim,
    Value,
    Writer,
    expression,
    full,
    highest,
    last,
    length,
    lowest,
    places,
    plain,
    same,
)
from torch_tpu._decompose import DTYPE_NUMBERS, Untraceable

_C: Any = sys.modules["torch_tpu._C"]

Results = list[Value | None]
Rule = Callable[["Call"], "Results"]
rules: dict[str, Rule] = {}  # kind -> rule
named: dict[str, Rule] = {}  # ops of kinds that have a rule for each op: the name without its overload


@functools.cache
def kinds() -> dict[str, str]:
    """The kind of each op that has a row."""
    return {row["name"]: row["pad"] for row in _C.ops()}


class Call:
    """One call of an op: its arguments in schema order, and what its results look like.

    Args:
        args: a tensor as a Value, a number given at run time as ("num", ..), a symbolic integer as an expression.
        vals: fake tensors of the results; None for one that is absent.
    """

    def __init__(self, w: Writer, op: torch._ops.OpOverload, name: str, args: list[Any], vals: list[Any]) -> None:
        self.w, self.op, self.name, self.args, self.vals = w, op, name, args, vals
        self.base = name.split(".")[0]
        self.formals = [a.name for a in op._schema.arguments]

    def has(self, formal: str) -> bool:
        return formal in self.formals

    def get(self, formal: str) -> Any:
        return self.args[self.formals.index(formal)]

    def set(self, formal: str, value: Any) -> None:
        self.args[self.formals.index(formal)] = value

    def tensors(self) -> list[Value]:
        return [v for a in self.args for v in (a if isinstance(a, list) else [a]) if isinstance(v, Value)]

    def map(self, f: Callable[[Value], Value]) -> None:
        """Replace each tensor argument."""

        def one(a: Any) -> Any:
            return f(a) if isinstance(a, Value) else [one(e) for e in a] if isinstance(a, list) else a

        self.args = [one(a) for a in self.args]

    def sizes(self, k: int = 0) -> list[Any]:
        """Lengths of a result."""
        return [expression(s) for s in self.vals[k].shape]

    def standard(self, k: int = 0) -> list[Dim]:
        return [self.w.standard(s) for s in self.sizes(k)]

    def dtype(self, k: int = 0) -> torch.dtype:
        return self.vals[k].dtype

    def run(self, dims: Sequence[Sequence[Dim] | None]) -> Results:
        """The op's own row, whose results have these layouts."""
        specs, args = [], []
        for val, d in zip(self.vals, dims, strict=True):
            specs.append(None if val is None or d is None else (DTYPE_NUMBERS[val.dtype], tuple(places(x) for x in d)))
        for a, formal in zip(self.args, self.op._schema.arguments, strict=True):
            args.append(argument(self.w, a, formal))
        ids = self.w.builder.node(self.name, args, specs)
        out: Results = []
        for i, val, d in zip(ids, self.vals, dims, strict=True):
            out.append(None if val is None or d is None else Value(i, val.dtype, tuple(d)))
        return out


def argument(w: Writer, a: Any, formal: Any) -> Any:
    if isinstance(a, Value):
        return a.id
    takes = formal.real_type
    wants_tensor = isinstance(takes, torch.TensorType)
    if isinstance(a, sympy.Expr) and not a.is_Integer:
        if not (wants_tensor or isinstance(takes, torch.NumberType | torch.FloatType)):
            raise Untraceable(f"argument {formal.name} depends on a length")
        return w.number(a)
    if isinstance(a, sympy.Integer):
        a = int(a)
    if type(a) is int and wants_tensor:
        return ("const", a, 0)
    if isinstance(a, list):
        if any(isinstance(e, sympy.Expr) and not e.is_Integer for e in a):
            raise Untraceable(f"argument {formal.name} depends on a length")
        return [int(e) if isinstance(e, sympy.Integer) else plain(e) for e in a]
    return a


def rule(*words: str) -> Callable[[Rule], Rule]:
    def add(f: Rule) -> Rule:
        for word in words:
            rules[word] = f
        return f

    return add


def of(*bases: str) -> Callable[[Rule], Rule]:
    def add(f: Rule) -> Rule:
        for base in bases:
            named[base] = f
        return f

    return add


ATTENTION = ("_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_fused_attention_overrideable_backward")


def apply(c: Call) -> Results:
    """The results of a call that has padded operands, or sizes that depend on lengths.

    Raises:
        Untraceable: if there is no such program.
    """
    if any(places(d) == 0 for v in c.tensors() for d in v.dims):
        raise Untraceable(f"{c.name} of no elements beside lengths given at run time")
    kind = kinds().get(c.name, "")
    found = named.get(c.base) if kind in ("view", "take", "put") or c.base in ATTENTION else rules.get(kind)
    if found is None:
        raise Untraceable(f"{c.name} has no rule for lengths given at run time")
    return found(c)


def axis_of(a: Any, ndim: int) -> int:
    if not isinstance(a, int):
        raise Untraceable("an axis depends on a length")
    return a + ndim if a < 0 else a


def number(a: Any) -> Any:
    """A number argument that must be known."""
    if isinstance(a, sympy.Expr) or (isinstance(a, tuple) and a and a[0] == "num"):
        raise Untraceable("a number that a program needs when it is compiled depends on a length")
    return a


# ---------------------------------------------------------------------------------------------- element by element


def elementwise(c: Call) -> Results:
    """The op's own row on operands that broadcast."""
    values, target = c.w.broadcast(c.tensors())
    queue = iter(values)
    c.map(lambda _: next(queue))
    return c.run([None if v is None else _like(c, k, target) for k, v in enumerate(c.vals)])


def _like(c: Call, k: int, target: Sequence[Dim]) -> list[Dim]:
    sizes = c.sizes(k)
    if len(sizes) > len(target) or any(
        not same(length(d), sympy.sympify(s)) and not _known_equal(c, d, s)
        for d, s in zip(target[len(target) - len(sizes) :], sizes, strict=True)
    ):
        raise Untraceable(f"{c.name}: a result is not as its operands")
    return list(target[len(target) - len(sizes) :])


def _known_equal(c: Call, d: Dim, size: Any) -> bool:
    """Whether a layout may hold a length that is written differently: PyTorch has checked the shapes, so both must be symbolic."""
    return not full(d) and isinstance(size, sympy.Expr) and not size.is_Integer


@rule("each")
def each(c: Call) -> Results:
    return elementwise(c)


@rule("each_one")
def each_one(c: Call) -> Results:
    c.map(lambda v: c.w.fill(v, 1))
    return elementwise(c)


@rule("fill")
def made(c: Call) -> Results:
    w, dims = c.w, c.standard()
    sizes = [places(d) for d in dims]
    if c.base == "arange":
        start, step = (c.get(f) if c.has(f) else d for f, d in (("start", 0), ("step", 1)))
        args = [w.number(start), 0, w.number(step)] + [None] * 4
        return [Value(w.emit("arange.start_step", args, c.dtype(), sizes), c.dtype(), tuple(dims))]
    value = c.get("fill_value") if c.has("fill_value") else 1 if "ones" in c.base else 0
    if isinstance(value, Value):
        raise Untraceable(f"{c.name} with a tensor")
    return [Value(w.emit("full", [[], w.number(value)] + [None] * 4, c.dtype(), sizes), c.dtype(), tuple(dims))]


@rule("triangle")
def triangle(c: Call) -> Results:
    x = c.get("self")
    for axis in (-1, -2):
        x = c.w.flat(x, len(x.dims) + axis)
    c.set("self", x)
    return c.run([x.dims])


# -------------------------------------------------------------------------------------------------------- reducing


def _reduced(c: Call, x: Value) -> tuple[list[int], bool]:
    """Axes that a reduction is over, and whether they stay as 1."""
    dim = c.get("dim") if c.has("dim") else None
    keep = bool(c.get("keepdim")) if c.has("keepdim") else False
    n = len(x.dims)
    if dim is None or (dim == [] and c.name != "any.dims" and c.name != "all.dims"):
        return list(range(n)), keep
    return sorted({axis_of(a, n) for a in (dim if isinstance(dim, list) else [dim])} if n else set()), keep


def _kept(x: Value, axes: Sequence[int], keep: bool) -> list[Dim]:
    return [() if k in axes else d for k, d in enumerate(x.dims) if keep or k not in axes]


_NEUTRAL: dict[str, Callable[[torch.dtype], Any]] = {
    "zero": lambda d: 0,
    "one": lambda d: 1,
    "lowest": lowest,
    "highest": highest,
}


@rule("fold_zero", "fold_one", "fold_lowest", "fold_highest")
def fold(c: Call) -> Results:
    w, x = c.w, c.get("self")
    axes, keep = _reduced(c, x)
    padded = [a for a in axes if not full(x.dims[a])]
    places_matter = len(c.vals) > 1 or c.base in ("argmax", "argmin")
    if padded and places_matter:
        if c.base in ("argmax", "argmin") and c.get("dim") is None:
            if keep:
                raise Untraceable(f"{c.name} over everything, keeping dimensions")
            x = w.flat(w.reshape(x, [sympy.Mul(*(length(d) for d in x.dims))]), 0)
            axes = padded = [0]
        for a in padded:
            x = w.flat(x, a)
    neutral = _NEUTRAL[kinds()[c.name].removeprefix("fold_")](x.dtype)
    p = number(c.get("p") if c.has("p") else c.get("ord") if c.has("ord") else None)
    if p is not None and p < 0:
        neutral = math.inf
    if c.base == "logsumexp" and not x.dtype.is_floating_point:
        raise Untraceable("logsumexp of integers")
    c.set("self", w.fill(x, neutral, padded))
    return c.run([_kept(x, axes, keep)] * len(c.vals))


def _count(x: Value, axes: Sequence[int]) -> sympy.Expr:
    return sympy.Mul(*(length(x.dims[a]) for a in axes))


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def cast(w: Writer, v: Value, dtype: torch.dtype) -> Value:
    return v if v.dtype == dtype else w.op("_to_copy", [v] + [None] * 6, v, dtype=dtype)


def summed(w: Writer, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return w.op("sum.dim_IntList", [w.fill(x, 0, axes), list(axes), keep, None], x, _kept(x, axes, keep))


def over(w: Writer, v: Value, count: str) -> Value:
    return w.op("div.Scalar", [v, w.compute(count, 2)], v)


@rule("mean")
def mean(c: Call) -> Results:
    w, x = c.w, c.get("self")
    axes, keep = _reduced(c, x)
    if all(full(x.dims[a]) for a in axes):
        return c.run([_kept(x, axes, keep)])
    total = summed(w, cast(w, x, wide(c.dtype())), axes, keep)
    return [cast(w, over(w, total, f"float({w.code(_count(x, axes))})"), c.dtype())]


@rule("var")
def var(c: Call) -> Results:
    w, x = c.w, c.get("self")
    axes, keep = _reduced(c, x)
    if all(full(x.dims[a]) for a in axes):
        return c.run([_kept(x, axes, keep)] * len(c.vals))
    if not x.dtype.is_floating_point:
        raise Untraceable(f"{c.name} of {x.dtype}")
    correction = number(c.get("correction"))
    n = w.code(_count(x, axes))
    x = cast(w, x, wide(x.dtype))
    middle = over(w, summed(w, x, axes, True), f"float({n})")
    off = w.op("sub.Tensor", [x, middle, 1], x)
    spread = summed(w, w.op("mul.Tensor", [off, off], off), axes, keep)
    out = over(w, spread, f"max(float({n}) - {float(1 if correction is None else correction)!r}, 0.0)")
    if c.base.startswith("std"):
        out = w.op("sqrt", [out], out)
    results: Results = [cast(w, out, c.dtype())]
    if len(c.vals) > 1:
        results.append(cast(w, w.view(middle, out.dims), c.dtype(1)))
    return results


@rule("scan_zero", "scan_one", "scan_lowest", "scan_highest")
def scan(c: Call) -> Results:
    x = c.get("self")
    if x.dims:
        axis = axis_of(c.get("dim"), len(x.dims))
        x = c.w.flat(x, axis)
        c.set("self", c.w.fill(x, _NEUTRAL[kinds()[c.name].removeprefix("scan_")](x.dtype), [axis]))
    return c.run([x.dims] * len(c.vals))


@rule("sort")
def order(c: Call) -> Results:
    w, x = c.w, c.get("self")
    axis = axis_of(c.get("dim"), len(x.dims))
    down = c.get("largest") if c.has("largest") else c.get("descending")
    if not full(x.dims[axis]):
        x = w.flat(x, axis)
        c.set("self", w.fill(x, lowest(x.dtype) if down else last(x.dtype), [axis]))
    dims = list(x.dims)
    if c.has("k"):
        dims[axis] = w.standard(number(c.get("k")))
        if places(dims[axis]) > places(x.dims[axis]):
            raise Untraceable("topk of more than a bound")
    return c.run([dims] * len(c.vals))


@rule("softmax")
def softmax(c: Call) -> Results:
    x = c.get("self")
    if x.dims:
        c.set("self", c.w.fill(x, -math.inf, [axis_of(c.get("dim"), len(x.dims))]))
    return c.run([x.dims])


@rule("softmax_back")
def softmax_back(c: Call) -> Results:
    (grad, out), target = c.w.broadcast([c.get("grad_output"), c.get("output")])
    axis = [axis_of(c.get("dim"), len(target))] if target else []
    c.set("grad_output", c.w.fill(grad, 0, axis))
    c.set("output", c.w.fill(out, 0, axis))
    return c.run([target])


# -------------------------------------------------------------------------------------------------------- products


@rule("dot")
def dot(c: Call) -> Results:
    w = c.w
    at = 1 if c.base in ("addmm", "addmv", "baddbmm", "_addmm_activation") else 0
    a, b = c.args[at], c.args[at + 1]
    batch = len(a.dims) == 3
    if batch:
        first = [v.dims[0] for v in (a, b) if v.dims[0]]
        if first:
            a, b = w.relayout(a, 0, first[0]), w.relayout(b, 0, first[0])
    ka, kb = len(a.dims) - 1, max(0, len(b.dims) - 2)
    b = w.relayout(b, kb, a.dims[ka])
    a, b = w.fill(a, 0, [ka]), w.fill(b, 0, [kb])
    c.args[at], c.args[at + 1] = a, b
    dims = list(a.dims[:-1])
    if len(b.dims) > 1:
        dims.append(b.dims[-1])
    if at == 1:
        c.args[0] = w.match(c.args[0], dims)
    return c.run([dims])


# ------------------------------------------------------------------------------------------------------------ norms


def lead(w: Writer, v: Value, dims: Sequence[Dim]) -> Value:
    """v with its leading dimensions laid out so."""
    for axis, d in enumerate(dims):
        if v.dims[axis]:
            v = w.relayout(v, axis, d)
    return v


@rule("norm")
def norm(c: Call) -> Results:
    x, n = c.get("input"), len(c.get("normalized_shape"))
    outer = list(x.dims[: len(x.dims) - n])
    if not all(full(d) for d in x.dims[len(outer) :]):
        raise Untraceable(f"{c.name} over a length given at run time")
    return c.run([x.dims] + [outer + [()] * n] * (len(c.vals) - 1))


@rule("norm_back")
def norm_back(c: Call) -> Results:
    w, x, n = c.w, c.get("input"), len(c.get("normalized_shape"))
    outer = x.dims[: len(x.dims) - n]
    if not all(full(d) for d in x.dims[len(outer) :]):
        raise Untraceable(f"{c.name} over a length given at run time")
    for formal in ("grad_out", "input", "mean", "rstd"):
        if c.has(formal):
            c.set(formal, w.fill(lead(w, c.get(formal), outer), 0))
    return c.run([None if v is None else x.dims if k == 0 else c.standard(k) for k, v in enumerate(c.vals)])


# ------------------------------------------------------------------------------------------------------ whole images

_WEIGHTS = ("weight", "bias")


def _in_batch(c: Call, value: int | None) -> Results:
    w = c.w
    found: list[Dim] = []
    for formal, a in zip(c.formals, c.args, strict=True):
        if isinstance(a, Value) and not a.full:
            if formal in _WEIGHTS or not all(full(d) for d in a.dims[1:]):
                raise Untraceable(f"{c.name} along a length given at run time")
            found.append(a.dims[0])
    if not found:
        raise Untraceable(f"{c.name} with a size given at run time")
    batch = found[0]

    def one(v: Value) -> Value:
        if v.full:
            return v
        v = w.relayout(v, 0, batch)
        return v if value is None else w.fill(v, value)

    c.map(one)
    for k, a in enumerate(c.args):
        if isinstance(a, list) and a and isinstance(a[0], sympy.Expr) and same(a[0], length(batch)):
            c.args[k] = [places(batch), *a[1:]]
        elif c.formals[k] == "N" and isinstance(a, sympy.Expr) and same(a, length(batch)):
            c.args[k] = places(batch)
    dims: list[list[Dim] | None] = []
    for k, val in enumerate(c.vals):
        sizes = [] if val is None else c.sizes(k)
        if any(isinstance(s, sympy.Expr) for s in sizes[1:]) or (
            sizes and isinstance(sizes[0], sympy.Expr) and not same(sizes[0], length(batch))
        ):
            raise Untraceable(f"{c.name} gives other lengths")
        dims.append(
            None if val is None else [batch if k == 0 and isinstance(s, sympy.Expr) else w.standard(s) for k, s in enumerate(sizes)]
        )
    return c.run(dims)


@rule("batch")
def batch(c: Call) -> Results:
    return _in_batch(c, None)


@rule("batch_back")
def batch_back(c: Call) -> Results:
    return _in_batch(c, 0)
