"""Rules of ops that read and write at indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_tpu._compile.padded import Dim, Value, Writer, full, length, places
from torch_tpu._compile.rules import Call, Results, axis_of, lead, of
from torch_tpu._decompose import Untraceable


def _inside(w: Writer, idx: Value, dim: Dim) -> Value:
    """Indices as given, made indices of places of a padded axis: those from the end counted, wrong ones still wrong."""
    if full(dim):
        return idx
    n, bound = length(dim), places(dim)
    up = w.op("add.Scalar", [idx, w.number(n), 1], idx)
    idx = w.op(
        "where.self",
        [w.less(idx, 0), w.op("where.self", [w.less(up, 0), w.op("full", [[], bound] + [None] * 4, up), up], up), idx],
        idx,
    )
    wrong = w.op("ge.Scalar", [idx, w.number(n)], idx, dtype=torch.bool)
    return w.op("masked_fill.Scalar", [idx, wrong, bound], idx)


def _ready(w: Writer, idx: Value, dim: Dim) -> Value:
    """Indices along an axis, harmless where there are none."""
    if idx.dtype in (torch.bool, torch.uint8):
        raise Untraceable("indices that are a mask")
    return w.fill(_inside(w, idx, dim), 0)


@of("embedding")
def embedding(c: Call) -> Results:
    w = c.w
    weight = w.flat(c.get("weight"), 0)
    c.set("weight", weight)
    c.set("indices", _ready(w, c.get("indices"), weight.dims[0]))
    c.set("padding_idx", -1)  # of the gradient only
    return c.run([[*c.get("indices").dims, *weight.dims[1:]]])


@of("index_select")
def index_select(c: Call) -> Results:
    w, x = c.w, c.get("self")
    axis = axis_of(c.get("dim"), len(x.dims))
    x = w.flat(x, axis)
    c.set("self", x)
    idx = _ready(w, c.get("index"), x.dims[axis])
    c.set("index", idx)
    return c.run([[*x.dims[:axis], idx.dims[0] if idx.dims else (), *x.dims[axis + 1 :]]])


def _crop(w: Writer, v: Value, dims: Sequence[Dim], skip: int) -> Value:
    """v cut or padded, along all axes but one, to as many places as dims have."""
    for k, d in enumerate(dims):
        if k != skip and v.dims[k] != d:
            v = w.resize(w.flat(v, k), k, places(d))
    return v


def _flat(w: Writer, v: Value) -> Value:
    for k in range(len(v.dims)):
        v = w.flat(v, k)
    return v


@of("gather")
def gather(c: Call) -> Results:
    w, x, idx = c.w, c.get("self"), c.get("index")
    if not x.dims or not idx.dims:
        raise Untraceable("gather of a scalar")
    axis = axis_of(c.get("dim"), len(x.dims))
    idx = _flat(w, idx)
    x = _crop(w, _flat(w, x), idx.dims, axis)
    c.set("self", x)
    c.set("index", _ready(w, idx, x.dims[axis]))
    return c.run([idx.dims])


def _places(c: Call, x: Value, indices: list[Any]) -> tuple[Value, list[Any], list[Dim], int]:
    """x and its indices ready, the layout of what they take, and where in it the indices' own dimensions begin."""
    w = c.w
    at = [k for k, i in enumerate(indices) if i is not None]
    if any(i.dtype in (torch.bool, torch.uint8) for i in indices if i is not None):
        raise Untraceable("indices that are a mask")
    given, target = w.broadcast([indices[k] for k in at])
    for k in at:
        x = w.flat(x, k)
    out: list[Any] = [None] * len(indices)
    for k, i in zip(at, given, strict=True):
        out[k] = _inside(w, i, x.dims[k])
    begin = at[0] if at == list(range(at[0], at[-1] + 1)) else 0
    rest = [d for k, d in enumerate(x.dims) if k not in at]
    return x, out, [*rest[:begin], *target, *rest[begin:]], begin


@of("index", "_unsafe_index")
def index(c: Call) -> Results:
    x, indices, dims, _ = _places(c, c.get("self"), c.get("indices"))
    c.set("self", x)
    c.set("indices", [None if i is None else c.w.fill(i, 0) for i in indices])
    return c.run([dims])


def _last_again(w: Writer, v: Value, axis: int, dim: Dim) -> Value:
    """v with the last valid place along an axis in all that are not valid."""
    if v.dims[axis] != dim:
        return v  # broadcast along it
    i = w.count(places(dim))
    e = length(dim)
    if w.least(e) < 1:
        raise Untraceable("a write at indices of which there may be none")
    top = w.op("full", [[], w.number(e - 1)] + [None] * 4, i)
    return w.take(v, axis, w.op("minimum", [i, top], i), dim)


@of("index_put", "_unsafe_index_put")
def index_put(c: Call) -> Results:
    """What is past the length is the last valid write once more: of several to one place the last stays."""
    w = c.w
    x, indices, dims, begin = _places(c, c.get("self"), c.get("indices"))
    values = w.match(c.get("values"), dims)
    n = max(len(i.dims) for i in indices if i is not None)
    padded = [k for k in range(n) if not full(dims[begin + k])]
    if c.get("accumulate"):
        values = w.expand(values, dims)
        values = w.fill(values, 0, [begin + k for k in padded])
        indices = [None if i is None else w.fill(i, 0) for i in indices]
    for k in padded if not c.get("accumulate") else ():
        flat = w.flat(Value(-1, x.dtype, (dims[begin + k],)), 0) if len(dims[begin + k]) <= 1 else None
        if flat is None:
            raise Untraceable("a write at indices of several lengths")
        for j, i in enumerate(indices):
            if i is not None and len(i.dims) >= n - k:
                indices[j] = _last_again(w, i, k - (n - len(i.dims)), dims[begin + k])
        if len(values.dims) >= len(dims) - begin - k:
            values = _last_again(w, values, begin + k - (len(dims) - len(values.dims)), dims[begin + k])
    c.set("self", x)
    c.set("indices", indices)
    c.set("values", values)
    return c.run([x.dims])


@of("index_copy", "index_add")
def index_copy(c: Call) -> Results:
    w, x, idx, source = c.w, c.get("self"), c.get("index"), c.get("source")
    axis = axis_of(c.get("dim"), len(x.dims))
    if not idx.dims or not source.dims:
        raise Untraceable(f"{c.name} of a scalar")
    x, idx = w.flat(x, axis), _inside(w, w.flat(idx, 0), w.flat(x, axis).dims[axis])
    source = lead(w, source, [idx.dims[0] if k == axis else d for k, d in enumerate(x.dims)])
    if c.base == "index_add":
        idx, source = w.fill(idx, 0), w.fill(source, 0, [axis])
    elif not full(idx.dims[0]):
        dim = idx.dims[0]
        idx, source = _last_again(w, idx, 0, dim), _last_again(w, source, axis, dim)
    c.set("self", x)
    c.set("index", idx)
    c.set("source", source)
    return c.run([x.dims])


@of("index_fill")
def index_fill(c: Call) -> Results:
    w, x, idx = c.w, c.get("self"), c.get("index")
    axis = axis_of(c.get("dim"), len(x.dims))
    x = w.flat(x, axis)
    idx = _inside(w, w.flat(idx, 0), x.dims[axis]) if idx.dims else idx
    c.set("index", _last_again(w, idx, 0, idx.dims[0]) if idx.dims and not full(idx.dims[0]) else idx)
    c.set("self", x)
    return c.run([x.dims])


@of("scatter", "scatter_add")
def scatter(c: Call) -> Results:
    """What is past the length goes to one more place along the axis, which is cut off."""
    if c.name not in ("scatter.src", "scatter.value", "scatter_add"):
        raise Untraceable(f"{c.name} has no rule for lengths given at run time")
    w, x, idx = c.w, c.get("self"), c.get("index")
    if not x.dims or not idx.dims:
        raise Untraceable("scatter of a scalar")
    axis = axis_of(c.get("dim"), len(x.dims))
    x, idx = _flat(w, x), _flat(w, idx)
    idx = _inside(w, idx, x.dims[axis])
    idx = Value(idx.id, idx.dtype, idx.dims)
    spare = places(x.dims[axis])
    filled = w.fill(idx, spare)
    for k in range(len(x.dims)):  # no more places than x has: what is beyond is not valid
        if k != axis and places(filled.dims[k]) > places(x.dims[k]):
            filled = w.resize(filled, k, places(x.dims[k]))
    c.set("index", filled)
    if c.has("src"):
        src = _flat(w, c.get("src"))
        for k in range(len(x.dims)):
            if places(src.dims[k]) < places(filled.dims[k]):
                src = w.resize(src, k, places(filled.dims[k]))
        c.set("src", src)
    bigger = w.resize(x, axis, spare + 1)
    c.set("self", bigger)
    out = c.run([bigger.dims])[0]
    assert out is not None
    cut = w.resize(out, axis, spare)
    return [Value(cut.id, cut.dtype, x.dims)]


@of("embedding_dense_backward")
def embedding_backward(c: Call) -> Results:
    w, grad, idx = c.w, c.get("grad_output"), c.get("indices")
    idx = lead(w, idx, grad.dims[: len(idx.dims)])
    rows = w.standard(c.get("num_weights"))
    c.set("num_weights", places(rows))
    c.set("indices", w.fill(idx, places(rows)))  # out of range: left out
    c.set("grad_output", w.fill(grad, 0, range(len(idx.dims))))
    return c.run([[rows, *grad.dims[len(idx.dims) :]]])
