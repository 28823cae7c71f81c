"""Tensors that are larger than what is in them, inside a program that serves every length up to a bound.

A dimension is a list of factors, outermost first, each with a bound and a length given at run time: ``[B, T]`` seen as ``[B*T]``
keeps the factors of both, so that no element moves, and splitting it gives them back. An element is *valid* if each of its factors'
indices is below that factor's length; all others hold anything at all, NaN too. Where two layouts of the same length do not agree,
elements are gathered from the one into the other by their place among the valid ones.
"""

from __future__ import annotations

import contextvars
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.printers import PythonPrinter

from torch_tpu._decompose import DTYPE_NUMBERS, GraphBuilder, Untraceable

NARROW = 1 << 22  # places below this are divided in float32, exactly
ONE = sympy.Integer(1)


@dataclass(frozen=True)
class Factor:
    """Part of a dimension: ``bound`` places of which the first ``length`` are valid."""

    length: sympy.Expr
    bound: int

    @property
    def full(self) -> bool:
        return bool(self.length == self.bound)


Dim = tuple[Factor, ...]


def canonical(factors: Sequence[Factor]) -> Dim:
    """The same dimension in the one way it is written: no factors of 1, full ones part of what is before them."""
    out: list[Factor] = []
    for f in factors:
        if f.full and f.bound == 1:
            continue
        if f.full and out:
            out[-1] = Factor(sympy.expand(out[-1].length * f.length), out[-1].bound * f.bound)
        else:
            out.append(f)
    return tuple(out)


def places(dim: Dim) -> int:
    n = 1
    for f in dim:
        n *= f.bound
    return n


def length(dim: Dim) -> sympy.Expr:
    return sympy.expand(sympy.Mul(*(f.length for f in dim)))


def full(dim: Dim) -> bool:
    return all(f.full for f in dim)


def same(a: sympy.Expr, b: sympy.Expr) -> bool:
    return bool(a == b) or bool(sympy.expand(a - b) == 0)


@dataclass(frozen=True)
class Value:
    """A tensor in the program: the builder's value, and the layout of its dimensions."""

    id: int
    dtype: torch.dtype
    dims: tuple[Dim, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(places(d) for d in self.dims)

    @property
    def full(self) -> bool:
        return all(full(d) for d in self.dims)


def lowest(dtype: torch.dtype) -> Any:
    """The neutral element of maximum."""
    if dtype.is_complex:
        raise Untraceable("complex numbers have no order")
    if dtype == torch.bool:
        return False
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> Any:
    """The neutral element of minimum."""
    if dtype.is_complex:
        raise Untraceable("complex numbers have no order")
    if dtype == torch.bool:
        return True
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


def last(dtype: torch.dtype) -> Any:
    """What sorting puts after everything else."""
    return float("nan") if dtype.is_floating_point else highest(dtype)


class Writer:
    """Adds nodes to a program under construction.

    Args:
        limit: the bound of a length.
        least: the least that a length can be.
        first: the first argument of the call that is free for numbers.
    """

    def __init__(
        self, builder: GraphBuilder, limit: Callable[[sympy.Expr], int], least: Callable[[sympy.Expr], int], first: int
    ) -> None:
        self.builder, self.limit, self.least, self.first = builder, limit, least, first
        self.env: dict[fx.Node, Any] = {}  # of the graph that is built, what its nodes are here
        self.numbers: dict[str, int] = {}  # Python source over the symbols -> argument
        self._cache: dict[Any, Any] = {}

    # ---------------------------------------------------------------------------------------------------- numbers

    def code(self, e: Any) -> str:
        """Python source of an expression over the symbols."""
        return str(PythonPrinter().doprint(sympy.sympify(e)))

    def compute(self, code: str, kind: int = 1) -> tuple[str, int, int]:
        """A number that is computed at each call; kind: 1 an integer, 2 a float."""
        arg = self.numbers.setdefault(code, self.first + len(self.numbers))
        return ("num", arg, kind)

    def number(self, e: Any) -> Any:
        """An integer, or the number that an expression stands for."""
        if isinstance(e, sympy.Expr):
            return int(e) if e.is_Integer else self.compute(self.code(e))
        return e

    # ------------------------------------------------------------------------------------------------------ nodes

    def emit(self, row: str, args: list[Any], dtype: torch.dtype, sizes: Sequence[int]) -> int:
        return self.builder.node(row, args, [(DTYPE_NUMBERS[dtype], tuple(sizes))])[0]

    def op(
        self, row: str, args: list[Any], like: Value, dims: Sequence[Dim] | None = None, dtype: torch.dtype | None = None
    ) -> Value:
        """One node with one result, of like's layout and type unless told."""
        given = like.dims if dims is None else tuple(dims)
        kind = like.dtype if dtype is None else dtype
        return Value(self.emit(row, [plain(a) for a in args], kind, [places(d) for d in given]), kind, given)

    def standard(self, size: Any) -> Dim:
        """The layout that a dimension of this length has when nothing else says one."""
        e = sympy.sympify(size)
        return canonical([Factor(e, int(e) if e.is_Integer else self.limit(e))])

    # ------------------------------------------------------------------------------------- places along a dimension

    def count(self, n: int) -> Value:
        """0 .. n-1"""
        dtype = torch.int32 if n < 2**31 else torch.int64
        key = ("count", n)
        if key not in self._cache:
            dim = canonical([Factor(sympy.Integer(n), n)])
            self._cache[key] = Value(self.emit("arange.start_step", [0, n, 1] + [None] * 4, dtype, [n]), dtype, (dim,))
        return self._cache[key]

    def times(self, i: Value, k: Any) -> Value:
        return i if k == 1 else self.op("mul.Scalar", [i, self.number(k)], i)

    def plus(self, i: Value, k: Any) -> Value:
        if isinstance(k, Value):
            return self.op("add.Tensor", [i, k, 1], i)
        return (
            i if isinstance(k, int) and k == 0 else self.op("add.Scalar", [i, k if isinstance(k, tuple) else self.number(k), 1], i)
        )

    def less(self, i: Value, k: Any) -> Value:
        return self.op("lt.Scalar", [i, k if isinstance(k, tuple) else self.number(k)], i, dtype=torch.bool)

    def both(self, a: Value | None, b: Value) -> Value:
        return b if a is None else self.op("logical_and", [a, b], b)

    def negate(self, a: Value) -> Value:
        return self.op("logical_not", [a], a)

    def clamp(self, i: Value, low: Any, high: Any) -> Value:
        return self.op("clamp", [i, low, high], i)

    def quotient(self, i: Value, k: sympy.Expr) -> Value:
        """i // k for places i and a length k given at run time (a row for integers would look for zeros, which takes a read)."""
        if k.is_Integer:
            return i if k == 1 else self._halves(i, int(k))
        wide = torch.float32 if places(i.dims[0]) <= NARROW else torch.float64
        x = self.op("_to_copy", [i] + [None] * 6, i, dtype=wide)
        x = self.op("div.Scalar", [self.op("add.Scalar", [x, 0.5, 1], x), self.compute(f"max({self.code(k)}, 1)")], x)
        q = self.op("_to_copy", [self.op("floor", [x], x)] + [None] * 6, i)
        # right by one either way, whatever the division rounded
        r = self.op("sub.Tensor", [i, self.times(q, k), 1], i)
        over = self.op("_to_copy", [self.op("ge.Scalar", [r, self.number(k)], r, dtype=torch.bool)] + [None] * 6, i)
        under = self.op("_to_copy", [self.less(r, 0)] + [None] * 6, i)
        return self.op("sub.Tensor", [self.plus(q, over), under, 1], i)

    def _halves(self, i: Value, k: int) -> Value:
        return self.op("floor_divide.Scalar", [i, k], i)

    def _rest(self, i: Value, q: Value, k: sympy.Expr) -> Value:
        return self.op("sub.Tensor", [i, self.times(q, k), 1], i)

    def split(self, i: Value, sizes: Sequence[sympy.Expr]) -> list[Value]:
        """The indices of place i in a row-major array of these sizes, of which the first is not needed."""
        out: list[Value] = []
        for k in reversed(sizes[1:]):
            q = self.quotient(i, sympy.sympify(k))
            out.append(self._rest(i, q, sympy.sympify(k)))
            i = q
        return [i, *reversed(out)]

    def join(self, parts: Sequence[Value], sizes: Sequence[Any]) -> Value:
        """The place of these indices in a row-major array of these sizes."""
        place = parts[0]
        for p, k in zip(parts[1:], sizes[1:], strict=True):
            place = self.plus(self.times(place, k), p)
        return place

    def valid(self, dim: Dim) -> Value | None:
        """Which places of a dimension are valid, as a vector of its size; None if all are."""
        if full(dim):
            return None
        key = ("valid", dim)
        if key not in self._cache:
            ok: Value | None = None
            parts = self.split(self.count(places(dim)), [sympy.Integer(f.bound) for f in dim])
            for part, f in zip(parts, dim, strict=True):
                if not f.full:
                    ok = self.both(ok, self.less(part, f.length))
            self._cache[key] = ok
        return self._cache[key]

    # ---------------------------------------------------------------------------------------------------- layouts

    def along(self, vector: Value, axis: int, ndim: int) -> Value:
        """A vector as a tensor that broadcasts along all axes but one."""
        dims: list[Dim] = [()] * ndim
        dims[axis] = vector.dims[0]
        return self.op("view", [vector, [places(d) for d in dims]], vector, dims)

    def fill(self, v: Value, value: Any, axes: Sequence[int] | None = None) -> Value:
        """v with this number in all places that are not valid along these axes (None: any)."""
        for axis in range(len(v.dims)) if axes is None else sorted(set(axes)):
            if full(v.dims[axis]):
                continue
            key = ("fill", v.id, axis, repr(value))
            if key not in self._cache:
                valid = self.valid(v.dims[axis])
                assert valid is not None
                off = self.along(self.negate(valid), axis, len(v.dims))
                self._cache[key] = self.op("masked_fill.Scalar", [v, off, self.number(value)], v)
            v = self._cache[key]
        return v

    def take(self, v: Value, axis: int, index: Value, dim: Dim) -> Value:
        """Places ``index`` (a vector, all inside) of an axis."""
        dims = (*v.dims[:axis], dim, *v.dims[axis + 1 :])
        return self.op("_unsafe_index.Tensor", [v, [None] * axis + [index]], v, dims)

    def resize(self, v: Value, axis: int, n: int, value: Any = 0) -> Value:
        """An axis of one factor cut or padded to n places. Its length must fit."""
        have = places(v.dims[axis])
        if have == n:
            return v
        old = v.dims[axis]
        f = old[0] if old else Factor(ONE, 1)
        dims = (*v.dims[:axis], (Factor(f.length, n),), *v.dims[axis + 1 :])
        if n < have:
            return self.op("slice.Tensor", [v, axis, 0, n, 1], v, dims)
        after = len(v.dims) - 1 - axis
        return self.op("constant_pad_nd", [v, [0, 0] * after + [0, n - have], value], v, dims)

    def relayout(self, v: Value, axis: int, dim: Dim) -> Value:
        """The same valid elements along an axis in another layout."""
        old = v.dims[axis]
        if old == dim:
            return v
        key = ("relayout", v.id, axis, dim)
        if key in self._cache:
            return self._cache[key]
        if len(old) <= 1 and len(dim) <= 1:
            out = self.resize(v, axis, places(dim))
            out = Value(out.id, out.dtype, (*v.dims[:axis], dim, *v.dims[axis + 1 :]))
        else:
            new, old = dim or (Factor(ONE, 1),), old or (Factor(ONE, 1),)
            parts = self.split(self.count(places(new)), [sympy.Integer(f.bound) for f in new])
            place = self.join(parts, [f.length for f in new])
            parts = self.split(self.clamp(place, 0, None) if len(old) > 1 else place, [f.length for f in old])
            place = self.join(parts, [f.bound for f in old])
            out = self.take(v, axis, self.clamp(place, 0, places(old) - 1), dim)
        self._cache[key] = out
        return out

    def flat(self, v: Value, axis: int) -> Value:
        """With an axis whose valid places come first, as indices along it count them."""
        return v if len(v.dims[axis]) <= 1 else self.relayout(v, axis, self.standard(length(v.dims[axis])))

    def view(self, v: Value, dims: Sequence[Dim]) -> Value:
        """The same elements, in the same places, under other dimensions."""
        if tuple(dims) == v.dims:
            return v
        return self.op("view", [v, [places(d) for d in dims]], v, dims)

    def reshape(self, v: Value, sizes: Sequence[Any]) -> Value:
        """torch.reshape to these lengths."""
        want = [sympy.sympify(s) for s in sizes]
        dims = _deal([f for d in v.dims for f in d], want)
        if dims is not None:
            return self.view(v, dims)
        # Leading and trailing dimensions that stay keep their layout; what is between is one axis, whose elements move.
        old = [length(d) for d in v.dims]
        head = tail = 0
        while head < min(len(old), len(want)) and same(old[head], want[head]):
            head += 1
        while tail < min(len(old), len(want)) - head and same(old[-1 - tail], want[-1 - tail]):
            tail += 1
        middle = v.dims[head : len(old) - tail]
        merged = canonical([f for d in middle for f in d])
        new = [self.standard(s) for s in want[head : len(want) - tail]]
        after = v.dims[len(old) - tail :]
        v = self.view(v, (*v.dims[:head], merged, *after))
        v = self.relayout(v, head, canonical([f for d in new for f in d]))
        return self.view(v, (*v.dims[:head], *new, *after))

    def permute(self, v: Value, order: Sequence[int]) -> Value:
        if list(order) == list(range(len(v.dims))):
            return v
        return self.op("permute", [v, list(order)], v, [v.dims[k] for k in order])

    def expand(self, v: Value, dims: Sequence[Dim]) -> Value:
        """Broadcast to a layout."""
        if tuple(dims) == v.dims:
            return v
        return self.op("expand", [v, [places(d) for d in dims], False], v, dims)

    def broadcast(self, values: Sequence[Value]) -> tuple[list[Value], tuple[Dim, ...]]:
        """Values whose dimensions agree where they are not 1, and what they broadcast to."""
        n = max((len(v.dims) for v in values), default=0)
        target: list[Dim] = [()] * n
        for v in values:
            for k, d in enumerate(v.dims, n - len(v.dims)):
                if places(d) != 1 and (not target[k] or (full(target[k]) and places(target[k]) == 1)):
                    target[k] = d
        return [self.match(v, target) for v in values], tuple(target)

    def match(self, v: Value, target: Sequence[Dim]) -> Value:
        """v with its dimensions laid out as those it is broadcast to."""
        for axis, want in enumerate(target[len(target) - len(v.dims) :]):
            have = v.dims[axis]
            if have != want and have:
                if full(have) and full(want):
                    raise Untraceable(f"sizes {places(have)} and {places(want)} in one broadcast")
                v = self.relayout(v, axis, want)
        return v

    def window(self, v: Value, axis: int, start: Any, step: int, size: Any, value: Any = None) -> Value:
        """Places start, start + step, .. of an axis, ``size`` of them.

        Args:
            start: an int, or a number computed at run time.
            value: what is there where a place is not inside; None: all are.
        """
        dim = self.standard(size)
        v = self.flat(v, axis)
        have, n = places(v.dims[axis]), places(dim)
        dims = (*v.dims[:axis], dim, *v.dims[axis + 1 :])
        if isinstance(start, int) and start >= 0 and step == 1 and value is None:
            if start == 0 and n >= have:
                out = self.resize(v, axis, n)
                return Value(out.id, out.dtype, dims)
            end = min(start + n, have)
            piece = self.op(
                "slice.Tensor",
                [v, axis, start, end, 1],
                v,
                (*v.dims[:axis], (Factor(length(dim), end - start),), *v.dims[axis + 1 :]),
            )
            out = self.resize(piece, axis, n)
            return Value(out.id, out.dtype, dims)
        i = self.plus(self.times(self.count(n), step), start)
        out = self.take(v, axis, self.clamp(i, 0, have - 1), dim)
        if value is not None:
            inside = self.both(self.less(i, length(v.dims[axis])), self.op("ge.Scalar", [i, 0], i, dtype=torch.bool))
            off = self.along(Value(self.negate(inside).id, torch.bool, (dim,)), axis, len(dims))
            out = self.op("masked_fill.Scalar", [out, off, value], out)
        return out


def plain(a: Any) -> Any:
    """Values by their ids."""
    if isinstance(a, Value):
        return a.id
    if isinstance(a, list):
        return [plain(e) for e in a]
    return a


def _deal(factors: list[Factor], want: Sequence[sympy.Expr]) -> list[Dim] | None:
    """The factors shared out among dimensions of these lengths, in order; None if they do not line up."""
    left = list(reversed(factors))
    out: list[Dim] = []
    for size in want:
        taken: list[Factor] = []
        rest = size
        while not same(rest, ONE):
            if not left:
                return None
            f = left.pop()
            if same(f.length, rest):
                taken.append(f)
                rest = ONE
                continue
            more, less = sympy.cancel(rest / f.length), sympy.cancel(f.length / rest)
            if less.is_Integer and less > 1 and f.bound % int(less) == 0 and (f.full or not rest.is_Integer):
                k = int(less)
                taken.append(Factor(rest, f.bound // k))
                left.append(Factor(less, k))
                rest = ONE
            elif sympy.denom(more) == 1 and not (more.is_Integer and more < 1):
                taken.append(f)
                rest = more
            else:
                return None
        out.append(canonical(taken))
    return out if all(f.full and f.bound == 1 for f in left) else None


fixed: contextvars.ContextVar[Mapping[Any, int]] = contextvars.ContextVar("fixed", default=types.MappingProxyType({}))
"""The symbols that the program under construction has as numbers."""


def expression(size: Any) -> Any:
    """An int, or the expression over symbols that a SymInt stands for, simplified by what is known of them."""
    if not isinstance(size, torch.SymInt):
        return size
    e = size.node.expr
    if e.free_symbols and size.node.shape_env is not None:
        e = size.node.shape_env.simplify(e)
        known = fixed.get()
        e = e.subs(known) if known else e
    return int(e) if e.is_Integer else e
