"""One program for every length up to a bound: masked static programs.

The program has the static shapes of the bounds; the lengths are numbers given at run time. A tensor whose sizes depend on
them crosses the program's edge as a *prefix*: a flat buffer of the bound's number of elements that begins with the tensor's.
Reading such a tensor copies just these, and what another program gave is taken as it is. Bounds grow in powers of two.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torch_tpu._bounds import growth, stats
from torch_tpu._compile import indices, losses, moves, watch
from torch_tpu._compile.padded import Factor, Value, Writer, canonical, expression, fixed, places, same
from torch_tpu._compile.rules import Call, apply
from torch_tpu._compile.sizes import Sizes
from torch_tpu._compile.stages import writes
from torch_tpu._decompose import DTYPE_NUMBERS, GraphBuilder, Untraceable, arguments, row_name
from torch_tpu._patch import on_tpu

_C: Any = sys.modules["torch_tpu._C"]
__all__ = ["Bounded", "indices", "losses", "moves"]  # the last three bring their rules

poison: float | None = None
"""For tests: what padding of inputs is filled with (integers get their greatest), instead of 0."""


def start_in(start: int, n: int) -> int:
    """Where a slice of n elements starts."""
    return max(0, min(n, start + n if start < 0 else start))


def index_in(index: int, n: int) -> int:
    return index + n if index < 0 else index


def _compile(names: Sequence[str], sources: Sequence[str]) -> Callable[..., tuple[Any, ...]]:
    """A function of the symbols' values that gives what these sources say."""
    scope = {
        "start_in": start_in,
        "index_in": index_in,
        "math": math,
        "torch": torch,  # sym_float
        "round": round,
        "max": max,
        "min": min,
        "float": float,
        "int": int,
        "abs": abs,
    }
    text = f"lambda {', '.join(names)}: ({''.join(f'({s}),' for s in sources)})"
    return eval(compile(text, "<lengths>", "eval"), {"__builtins__": {}, **scope})


class Edge:
    """How a tensor crosses the program's edge: its order in memory, and the bound of its number of elements.

    Args:
        concrete: what a size is in the call that the program is made for.
        thin: leave out axes of stride 0, all of whose entries are one.
    """

    def __init__(self, w: Writer, val: torch.Tensor, concrete: Callable[[Any], int], thin: bool = False) -> None:
        self.sizes = [expression(s) for s in val.shape]
        self.strides = [expression(s) for s in val.stride()]
        self.repeated = [k for k, (n, s) in enumerate(zip(self.sizes, self.strides, strict=True)) if thin and s == 0 and n != 1]
        for k in self.repeated:
            self.sizes[k] = 1
        self.nelem = sympy.Mul(*self.sizes)
        self.offset = expression(val.storage_offset())  # AOTAutograd makes a view of an input by what a result says of its place
        order = sorted(range(val.dim()), key=lambda k: (-concrete(val.stride(k)), k))
        self.order = order if self._dense(order) else list(range(val.dim()))
        self.dense = self._dense(self.order)
        self.bound = places(w.standard(self.nelem))
        for k in self.repeated:
            self.sizes[k] = expression(val.shape[k])

    def _dense(self, order: Sequence[int]) -> bool:
        step: Any = sympy.Integer(1)
        for k in reversed(order):
            if self.sizes[k] == 1:
                continue
            if not same(sympy.sympify(self.strides[k]), step):
                return False
            step = sympy.expand(step * self.sizes[k])
        return True

    def permuted(self) -> bool:
        return self.order != list(range(len(self.order)))


def _symbols(val: torch.Tensor) -> set[Any]:
    """What a tensor's sizes and its place in its storage depend on."""
    places = [expression(s) for s in (*val.shape, *val.stride(), val.storage_offset())]
    return {symbol for e in places if isinstance(e, sympy.Expr) for symbol in e.free_symbols}


def _dynamic(val: torch.Tensor) -> bool:
    """Whether a tensor's sizes or its place in its storage depend on lengths."""
    return bool(_symbols(val))


class Built:
    """A program for lengths up to certain bounds.

    Args:
        run: takes the arguments, then the numbers.
        edges, results: how arguments and results cross the edge; None for those that are as they are.
        numbers, shapes: of the symbols' values: the numbers; sizes and strides of the results that have an edge.
    """

    def __init__(self, run: Any, edges: list[Edge | None], results: list[Edge | None], numbers: Any, shapes: Any) -> None:
        self.run, self.edges, self.results, self.numbers, self.shapes = run, edges, results, numbers, shapes


class Bounded:
    """A stage's program, for lengths up to bounds. An input that is written keeps its place in memory: its sizes are numbers, each
    set of which has a program of its own.

    Args:
        nodes, tensors, floats, ints, fresh, written, into: as :class:`Program` has them.
    """

    def __init__(self, program: Any) -> None:
        self.p = program
        self.sizes: Sizes = program.sizes
        self.built: dict[tuple[int, ...], Built] = {}
        self.names = [str(s) for s in self.sizes.where]
        self.tops = [self._top(s) for s in self.sizes.where]
        self.fixed = set().union(*(_symbols(n.args[0].meta["val"]) for n in program.written))

    def _range(self, symbol: Any) -> ValueRanges[Any]:
        env = self.sizes.env
        found = env.var_to_range.get(symbol) if env is not None else None
        return found if found is not None else ValueRanges(0, sympy.oo)

    def _top(self, symbol: Any) -> float:
        upper = self._range(symbol).upper
        return float(upper) if upper.is_number and upper < 2**40 else math.inf

    def bounds(self, values: tuple[int, ...]) -> tuple[int, ...]:
        where = zip(self.sizes.where, values, self.tops, strict=True)
        return tuple(n if s in self.fixed else growth.bound(n, top) for s, n, top in where)

    # ------------------------------------------------------------------------------------------------- building

    def _limits(self, bounds: tuple[int, ...]) -> tuple[Callable[[Any], int], Callable[[Any], int]]:
        ranges = {}
        for s, bound in zip(self.sizes.where, bounds, strict=True):
            lower = self._range(s).lower
            low = int(lower) if lower.is_number and lower.is_finite and lower >= 0 else 0
            ranges[s] = ValueRanges(min(low, bound), bound)

        def limit(e: Any) -> int:
            if not set(e.free_symbols) <= set(ranges):
                raise Untraceable(f"the size {e} depends on data")
            upper = bound_sympy(e, ranges).upper
            if not (upper.is_number and upper.is_finite) or upper >= 2**40:
                raise Untraceable(f"the size {e} has no bound")
            return max(0, int(upper))

        return limit, lambda e: int(bound_sympy(sympy.sympify(e), ranges).lower)

    def build(self, values: tuple[int, ...], bounds: tuple[int, ...]) -> Built:
        """The program for these bounds.

        Raises:
            Untraceable, NotImplementedError: if there is none.
        """
        p, resolve = self.p, self.sizes.resolve
        if self.fixed >= set(self.sizes.where):
            raise Untraceable("an input whose sizes are given at run time is written")
        limit, least = self._limits(bounds)
        builder = GraphBuilder(p.name, lambda size: resolve(size, values))
        w = Writer(builder, limit, least, len(p.tensors) + len(p.floats))
        edges = [self._input(w, n, i, lambda s: resolve(s, values)) for i, n in enumerate(p.tensors)]
        for i, n in enumerate(p.floats):
            builder.number(n, len(p.tensors) + i, 2)
            w.env[n] = builder.values[n]
        for n in p.ints:
            self._integer(w, n)
        for node in p.nodes:
            if not writes(node):
                watch.source(node)
                self._node(w, node)
        results = [builder.written(n.args[1], n.args[0]) for n in p.written]
        strides: list[Any] = [None] * len(p.written)
        out: list[Edge | None] = []
        for n in p.fresh:
            edge, value = self._result(w, n, lambda s: resolve(s, values))
            out.append(edge)
            results.append(value.id)
            strides.append(p._strides(n, values) if edge is None else None)
        shapes = [w.code(e) for edge in out if edge is not None for e in (*edge.sizes, *edge.strides, edge.offset)]
        edges += [None] * len(p.floats)
        narg = len(edges) + len(w.numbers)
        run = _C.Program(builder.finish_values(results, strides), range(narg), p.into, None, p.settings)
        return Built(run, edges, out, _compile(self.names, list(w.numbers)), _compile(self.names, shapes))

    def _input(self, w: Writer, n: fx.Node, i: int, concrete: Callable[[Any], int]) -> Edge | None:
        val, builder = n.meta["val"], w.builder
        if not on_tpu(val):
            kind = 3 if val.dtype.is_complex else 2 if val.dtype.is_floating_point else 0 if val.dtype == torch.bool else 1
            builder.number(n, i, kind)
            w.env[n] = builder.values[n]
            return None
        if not _dynamic(val):
            builder.input(n, i, 0, val)
            w.env[n] = Value(builder.values[n], val.dtype, tuple(w.standard(s) for s in val.shape))
            return None
        if val.dtype not in DTYPE_NUMBERS or val.layout != torch.strided:
            raise Untraceable(f"an input of {val.dtype}")
        edge = Edge(w, val, concrete)
        flat = builder.flat_input(i, val.dtype, edge.bound)
        e = sympy.expand(edge.nelem)
        x = Value(flat, val.dtype, (canonical([Factor(e, edge.bound)]),))
        x = w.reshape(x, [edge.sizes[k] for k in edge.order])
        w.env[n] = w.permute(x, [edge.order.index(k) for k in range(len(edge.order))])
        builder.values[n] = w.env[n].id
        return edge

    def _integer(self, w: Writer, n: fx.Node) -> None:
        val = n.meta["val"]
        if isinstance(val, torch.SymBool):
            raise Untraceable("a condition on lengths")
        e = expression(val)
        if isinstance(e, sympy.Expr) and not set(e.free_symbols) <= set(self.sizes.where):
            raise Untraceable(f"the number {e} depends on data")
        w.env[n] = e
        w.builder.values[n] = w.number(e)

    def _node(self, w: Writer, node: fx.Node) -> None:
        val = node.meta.get("val")
        if node.target is operator.getitem:
            source, k = node.args
            self._keep(w, node, w.env[source][k])  # type: ignore[index]
            return
        op: Any = node.target
        if not isinstance(op, torch._ops.OpOverload):
            raise Untraceable(f"{op} in a graph of lengths given at run time")
        args = [fx.node.map_arg(a, w.env.__getitem__) for a in arguments(op, node.args, node.kwargs)]
        args = [[e for e in a] if isinstance(a, list | tuple) and not _is_number(a) else a for a in args]
        vals = list(val) if isinstance(val, list | tuple) else [val]
        if _static(args, vals):
            w.builder.call(node)
            got: list[Any] = w.builder.values[node] if isinstance(val, list | tuple) else [w.builder.values[node]]
            out = [_static_value(w, i, v) for i, v in zip(got, vals, strict=True)]
        elif row_name(op) in ("alias", "detach", "lift", "lift_fresh", "lift_fresh_copy"):
            out = [args[0]]
        else:
            if any(_is_number(e) for a in args if isinstance(a, list) for e in a):
                raise Untraceable("a number in a list of tensors")
            out = apply(Call(w, op, row_name(op), args, [v if isinstance(v, torch.Tensor) else None for v in vals]))
        self._keep(w, node, out if isinstance(val, list | tuple) else out[0])

    def _keep(self, w: Writer, node: fx.Node, value: Any) -> None:
        w.env[node] = value
        w.builder.values[node] = (
            [None if v is None else v.id for v in value] if isinstance(value, list) else value if value is None else value.id
        )

    def _result(self, w: Writer, n: fx.Node, concrete: Callable[[Any], int]) -> tuple[Edge | None, Value]:
        val, value = n.meta["val"], w.env[n]
        if not isinstance(value, Value):
            raise Untraceable(f"the result {n} is no tensor")
        if not _dynamic(val) and val.storage_offset() == 0 and torch._prims_common.is_non_overlapping_and_dense_or_false(val):
            if not value.full:
                value = w.reshape(value, [expression(s) for s in val.shape])
            if not value.full or value.sizes != tuple(expression(s) for s in val.shape):
                raise Untraceable("a result of known sizes was made of others")
            return None, value
        edge = Edge(w, val, concrete, thin=True)
        for k in edge.repeated:
            value = w.window(value, k, 0, 1, 1)
        value = w.permute(value, edge.order)
        flat = w.reshape(value, [edge.nelem])
        if edge.dense and edge.offset != 0:
            return edge, w.window(flat, 0, w.number(-sympy.sympify(edge.offset)), 1, edge.offset + edge.nelem)
        return edge, w.relayout(flat, 0, w.standard(edge.nelem))

    def _try(self, values: tuple[int, ...], bounds: tuple[int, ...]) -> Built:
        known = fixed.set({s: n for s, n in zip(self.sizes.where, values, strict=True) if s in self.fixed})
        try:
            built = self.build(values, bounds)
        except (Untraceable, NotImplementedError):
            raise
        except Exception as e:
            if poison is not None:
                raise
            raise Untraceable(f"{type(e).__name__}: {e}") from e
        finally:
            fixed.reset(known)
            watch.source(None)
        stats.bounded += 1
        return built

    # -------------------------------------------------------------------------------------------------- running

    def __call__(self, env: list[Any], values: tuple[int, ...]) -> None:
        bounds = self.bounds(values)
        built = self.built.get(bounds)
        if built is None:
            with watch.dumping(self.p.dump):
                built = self.built[bounds] = self._try(values, bounds)
                self._run(built, env, values)
        else:
            self._run(built, env, values)

    def _run(self, built: Built, env: list[Any], values: tuple[int, ...]) -> None:
        p = self.p
        given = [env[i] if e is None else _prefix(env[i], e) for i, e in zip(p.inputs, built.edges, strict=True)]
        out = built.run(*given, *built.numbers(*values))
        shapes, at = built.shapes(*values), 0
        for i, t, edge in zip(p.fills, out, built.results, strict=True):
            if edge is not None:
                n = len(edge.sizes)
                sizes, strides, offset = shapes[at : at + n], shapes[at + n : at + 2 * n], shapes[at + 2 * n]
                t = (
                    _C.shaped(t, sizes, strides, offset)
                    if edge.dense
                    else placed(_C.shaped(t, sizes, _row_major(sizes), 0), strides, offset)
                )
                at += 2 * n + 1
            env[i] = t


def _row_major(sizes: Sequence[int]) -> list[int]:
    return [math.prod(max(1, n) for n in sizes[k + 1 :]) for k in range(len(sizes))]


def placed(t: torch.Tensor, strides: Sequence[int], offset: int) -> torch.Tensor:
    """The same values where a view would have them, from `offset` on: AOTAutograd makes views of inputs by what results say of
    themselves."""
    if t.numel() == 0:
        return _C.shaped(t, t.shape, strides, 0)
    once = t
    for k, step in enumerate(strides):
        if step == 0:
            once = once.narrow(k, 0, 1)
    flat = t.new_zeros(offset + 1 + sum((n - 1) * step for n, step in zip(t.shape, strides, strict=True)))
    _C.shaped(flat, once.shape, strides, offset).copy_(once)
    return _C.shaped(flat, t.shape, strides, offset)


def _prefix(x: torch.Tensor, edge: Edge) -> torch.Tensor:
    if edge.permuted():
        x = x.permute(edge.order)
    if poison is None:
        return _C.prefix(x, edge.bound, 0, False)
    pad: Any = poison
    if not x.dtype.is_floating_point:
        pad = 1 if x.dtype == torch.bool else torch.iinfo(x.dtype).max if not x.dtype.is_complex else poison
    return _C.prefix(x, edge.bound, pad, True)


def _is_number(a: Any) -> bool:
    return isinstance(a, tuple) and len(a) == 3 and a[0] == "num"


def _static(args: Sequence[Any], vals: Sequence[Any]) -> bool:
    """Whether nothing about a call depends on lengths."""
    flat = [e for a in args for e in (a if isinstance(a, list) else [a])]
    return (
        all(e.full for e in flat if isinstance(e, Value))
        and not any(isinstance(e, sympy.Expr) and not e.is_Integer for e in flat)
        and not any(isinstance(v, torch.Tensor) and any(isinstance(expression(s), sympy.Expr) for s in v.shape) for v in vals)
    )


def _static_value(w: Writer, i: Any, v: Any) -> Value | None:
    return None if v is None or i is None else Value(i, v.dtype, tuple(w.standard(expression(s)) for s in v.shape))
