"""Rules of ops that move elements: views, joining."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from torch_tpu._compile.padded import Dim, Factor, Value, Writer, canonical, expression, full, length, places
from torch_tpu._compile.rules import Call, Results, axis_of, cast, lead, of, rule
from torch_tpu._decompose import Untraceable


@of(
    "view",
    "view_copy",
    "reshape",
    "_unsafe_view",
    "_reshape_alias",
    "_reshape_copy",
    "squeeze",
    "squeeze_copy",
    "unsqueeze",
    "unsqueeze_copy",
)
def reshape(c: Call) -> Results:
    if c.name in ("view.dtype", "view_copy.dtype"):
        raise Untraceable(f"{c.name} has no rule for lengths given at run time")
    return [c.w.reshape(c.get("self"), c.sizes())]


@of("permute", "permute_copy")
def permute(c: Call) -> Results:
    x = c.get("self")
    return [c.w.permute(x, [axis_of(a, len(x.dims)) for a in c.get("dims")])]


@of("transpose", "transpose_copy", "t", "t_copy")
def transpose(c: Call) -> Results:
    x = c.get("self")
    order = list(range(len(x.dims)))
    a, b = (c.get("dim0"), c.get("dim1")) if c.has("dim0") else (0, -1)
    if order:
        a, b = axis_of(a, len(order)), axis_of(b, len(order))
        order[a], order[b] = order[b], order[a]
    return [c.w.permute(x, order)]


@of("expand", "expand_copy")
def expand(c: Call) -> Results:
    x = c.get("self")
    new = c.standard()
    skip = len(new) - len(x.dims)
    return [c.w.expand(x, [d if k < skip or not x.dims[k - skip] else x.dims[k - skip] for k, d in enumerate(new)])]


def _begin(c: Call, start: Any, x: Value, axis: int) -> Any:
    """Where a slice starts, never negative: an int, or a number computed at run time."""
    if start is None or (isinstance(start, int) and start == 0):
        return 0
    size = length(x.dims[axis])
    if isinstance(start, int) and (start > 0 or full(x.dims[axis])):
        start = start if start > 0 else max(0, start + places(x.dims[axis]))
        return min(start, places(x.dims[axis])) if full(x.dims[axis]) else start
    return c.w.compute(f"start_in({c.w.code(start)}, {c.w.code(size)})")


@of("slice", "slice_copy")
def cut(c: Call) -> Results:
    x = c.get("self")
    axis = axis_of(c.get("dim"), len(x.dims))
    return [c.w.window(x, axis, _begin(c, c.get("start"), x, axis), c.get("step"), c.sizes()[axis])]


def _place(c: Call, index: Any, x: Value, axis: int) -> Any:
    if isinstance(index, tuple):
        raise Untraceable("an index that is no integer")
    if isinstance(index, int) and (index >= 0 or full(x.dims[axis])):
        return index if index >= 0 else index + places(x.dims[axis])
    return c.w.compute(f"index_in({c.w.code(index)}, {c.w.code(length(x.dims[axis]))})")


def without(dims: Sequence[Dim], axis: int) -> list[Dim]:
    return [d for k, d in enumerate(dims) if k != axis]


@of("select", "select_copy")
def select(c: Call) -> Results:
    w, x = c.w, c.get("self")
    axis = axis_of(c.get("dim"), len(x.dims))
    one = w.window(x, axis, _place(c, c.get("index"), x, axis), 1, 1)
    return [w.view(one, without(one.dims, axis))]


@of("split", "split_copy", "unsafe_split", "split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes")
def split(c: Call) -> Results:
    x = c.get("self")
    axis = axis_of(c.get("dim"), len(x.dims))
    out: Results = []
    start: Any = 0
    for k in range(len(c.vals)):
        size = c.sizes(k)[axis]
        known = isinstance(start, int)
        out.append(c.w.window(x, axis, start if known else c.w.number(start), 1, size))
        start = expression(size) + start
    return out


@of("unbind", "unbind_copy")
def unbind(c: Call) -> Results:
    w, x = c.w, c.get("self")
    axis = axis_of(c.get("dim"), len(x.dims))
    rows = [w.window(x, axis, k, 1, 1) for k in range(len(c.vals))]
    return [w.view(r, without(r.dims, axis)) for r in rows]


def _put_back(c: Call, grad: Value, axis: int, dim: Dim, start: Any, step: Any, value: Any) -> tuple[Value, Value]:
    """A slice in its place along an axis laid out as dim, and where along it (a bool that broadcasts) the slice is."""
    w = c.w
    if step != 1:
        raise Untraceable("a slice with steps")
    grad = w.flat(grad, axis)
    n = places(dim)
    back = -start if isinstance(start, int) else w.compute(f"-({next(k for k, v in w.numbers.items() if v == start[1])})")
    i = w.plus(w.count(n), back)
    out = w.take(grad, axis, w.clamp(i, 0, places(grad.dims[axis]) - 1), dim)
    here = w.both(w.less(i, length(grad.dims[axis])), w.op("ge.Scalar", [i, 0], i, dtype=torch.bool))
    return out, w.along(Value(here.id, torch.bool, (dim,)), axis, len(out.dims))


def _blend(w: Writer, here: Value, new: Value, old: Value) -> Value:
    return w.op("where.self", [here, new, old], old)


def _single(w: Writer, dims: Sequence[Dim], axis: int) -> list[Dim]:
    return [d if k != axis or len(d) <= 1 else w.standard(length(d)) for k, d in enumerate(dims)]


@of("slice_backward", "select_backward")
def slice_backward(c: Call) -> Results:
    w, grad = c.w, c.get("grad_output")
    dims = c.standard()
    axis = axis_of(c.get("dim"), len(dims))
    whole = Value(-1, grad.dtype, tuple(dims))
    if c.has("index"):
        start, step = _place(c, c.get("index"), whole, axis), 1
        grad = w.view(grad, [*grad.dims[:axis], (), *grad.dims[axis:]])
    else:
        start, step = _begin(c, c.get("start"), whole, axis), c.get("step")
    dims = [d if k == axis else grad.dims[k] for k, d in enumerate(dims)]
    out, here = _put_back(c, grad, axis, dims[axis], start, step, 0)
    return [w.op("masked_fill.Scalar", [out, w.negate(here), 0], out)]


@of("slice_scatter", "select_scatter")
def slice_scatter(c: Call) -> Results:
    w, x, src = c.w, c.get("self"), c.get("src")
    axis = axis_of(c.get("dim"), len(x.dims))
    x = w.flat(x, axis)
    if c.has("index"):
        start, step = _place(c, c.get("index"), x, axis), 1
        src = w.view(src, [*src.dims[:axis], (), *src.dims[axis:]])
    else:
        start, step = _begin(c, c.get("start"), x, axis), c.get("step")
    src = lead(w, src, [src.dims[k] if k == axis else d for k, d in enumerate(x.dims)])
    out, here = _put_back(c, src, axis, x.dims[axis], start, step, 0)
    return [_blend(w, here, w.expand(out, x.dims), x)]


@of("repeat")
def repeat(c: Call) -> Results:
    w, x = c.w, c.get("self")
    times = [w.standard(e) for e in c.get("repeats")]
    old: list[Dim] = [()] * (len(times) - len(x.dims)) + list(x.dims)
    thin = [d for t in old for d in ((), t)]
    wide = [d for t, r in zip(old, times, strict=True) for d in (r, t)]
    out = w.expand(w.view(x, thin), wide)
    return [w.view(out, [canonical([*r, *t]) for t, r in zip(old, times, strict=True)])]


@of("flip")
def flip(c: Call) -> Results:
    w, x = c.w, c.get("self")
    for a in c.get("dims"):
        axis = axis_of(a, len(x.dims))
        dim = x.dims[axis]
        start = places(dim) - 1 if full(dim) else w.number(length(dim) - 1)
        x = w.window(x, axis, start, -1, length(dim))
    return [x]


@of("roll")
def roll(c: Call) -> Results:
    w, x = c.w, c.get("self")
    shifts, dims = c.get("shifts"), c.get("dims")
    if not dims:
        raise Untraceable("roll of all elements as one row")
    for s, a in zip(shifts, dims, strict=True):
        axis = axis_of(a, len(x.dims))
        x = w.flat(x, axis)
        dim = x.dims[axis]
        n = length(dim)
        i = w.plus(w.count(places(dim)), w.compute(f"-(({w.code(s)}) % max({w.code(n)}, 1))"))
        i = w.op("where.self", [w.less(i, 0), w.plus(i, n), i], i)
        x = w.take(x, axis, w.clamp(i, 0, places(dim) - 1), dim)
    return [x]


@of("view_as_real", "view_as_real_copy", "view_as_complex", "view_as_complex_copy")
def parts(c: Call) -> Results:
    x = c.get("self")
    return c.run([x.dims[:-1] if "complex" in c.base else (*x.dims, c.w.standard(2))])


@rule("whole")
def whole(c: Call) -> Results:
    """Along ``dim``, which must be full."""
    w, x = c.w, c.get("self")
    if not x.dims:
        return c.run([()] * len(c.vals))
    axis = axis_of(c.get("dim"), len(x.dims))
    if not full(x.dims[axis]):
        raise Untraceable(f"{c.name} along a length given at run time")
    if c.has("grad_output"):
        grad = c.get("grad_output")
        c.set("grad_output", lead(w, grad, [d if k != axis else grad.dims[axis] for k, d in enumerate(x.dims)]))
    out: list[list[Dim]] = []
    for k in range(len(c.vals)):
        sizes = c.sizes(k)
        left = list(x.dims) if len(sizes) == len(x.dims) else without(x.dims, axis)
        out.append(
            [
                w.standard(s) if len(sizes) == len(x.dims) and j == axis else d
                for j, (d, s) in enumerate(zip(left, sizes, strict=True))
            ]
        )
    return c.run(out)


@of("constant_pad_nd")
def constant_pad(c: Call) -> Results:
    w, x = c.w, c.get("self")
    value = c.get("value")
    amounts = c.get("pad")
    for k in range(len(amounts) // 2):
        axis = len(x.dims) - 1 - k
        before, after = amounts[2 * k], amounts[2 * k + 1]
        if before == 0 and after == 0:
            continue
        start = -before if isinstance(before, int) else w.number(-before)
        x = w.window(x, axis, start, 1, length(x.dims[axis]) + before + after, w.number(value))
    return [x]


@rule("join")
def join(c: Call) -> Results:
    w, parts = c.w, list(c.get("tensors"))
    sizes = c.sizes()
    axis = axis_of(c.get("dim"), len(sizes))
    if c.base == "stack":
        parts = [w.view(v, [*v.dims[:axis], (), *v.dims[axis:]]) for v in parts]
    if any(len(v.dims) != len(sizes) for v in parts):
        raise Untraceable("cat with an empty tensor")
    others: list[Dim] = [next((v.dims[k] for v in parts if v.dims[k]), ()) for k in range(len(sizes))]
    parts = [cast(w, w.flat(v, axis), c.dtype()) for v in parts]
    parts = [lead(w, v, [v.dims[k] if k == axis else d for k, d in enumerate(others)]) for v in parts]
    n = sum(places(v.dims[axis]) for v in parts)
    total = sympy.Add(*(length(v.dims[axis]) for v in parts))
    joined = w.op("cat", [parts, axis], parts[0], [(Factor(total, n),) if k == axis else d for k, d in enumerate(others)])
    dim = w.standard(sizes[axis])
    if all(full(v.dims[axis]) for v in parts[:-1]):
        out = w.resize(joined, axis, places(dim))
        return [Value(out.id, out.dtype, (*out.dims[:axis], dim, *out.dims[axis + 1 :]))]
    # Places of the result, each moved up by what is not valid before it.
    count = w.count(places(dim))
    place, valid, at = count, sympy.Integer(0), 0
    for v in parts[:-1]:
        valid, at = valid + length(v.dims[axis]), at + places(v.dims[axis])
        later = w.plus(count, w.number(at - valid))
        place = w.op("where.self", [w.negate(w.less(count, valid)), later, place], place)
    return [w.take(joined, axis, w.clamp(place, 0, n - 1), dim)]
