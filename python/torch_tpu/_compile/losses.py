"""Rules of losses and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from torch_tpu._compile.moves import without
from torch_tpu._compile.padded import Dim, Value, Writer, canonical, full, length, places
from torch_tpu._compile.rules import Call, Results, argument, cast, elementwise, lead, number, of, over, rule, summed, wide
from torch_tpu._decompose import DTYPE_NUMBERS, Untraceable

_NONE, _MEAN, _SUM = 0, 1, 2


@rule("loss")
def loss(c: Call) -> Results:
    w, how = c.w, number(c.get("reduction"))
    if how == _NONE:
        c.map(lambda v: w.fill(v, 1))
        return elementwise(c)
    _, target = w.broadcast([c.get("self"), c.get("target")])
    n = f"float({w.code(sympy.Mul(*(length(d) for d in target)))})"
    if c.has("grad_output"):
        grad = c.get("grad_output")
        if grad.dims:
            raise Untraceable(f"{c.name} with several gradients")
        c.set("grad_output", over(w, grad, n) if how == _MEAN else grad)
        c.set("reduction", _SUM)
        return elementwise(c)
    dtype = c.dtype()
    c.map(lambda v: w.fill(v, 1))  # a probability, where one is asked for
    values, target = w.broadcast(c.tensors())
    queue = iter(values)
    c.map(lambda _: cast(w, next(queue), wide(dtype)))
    c.set("reduction", _NONE)
    each = w.builder.node(
        c.name,
        [argument(w, a, f) for a, f in zip(c.args, c.op._schema.arguments, strict=True)],
        [(DTYPE_NUMBERS[wide(dtype)], tuple(places(d) for d in target))],
    )[0]
    total = summed(w, Value(each, wide(dtype), target), range(len(target)), False)
    return [cast(w, over(w, total, n) if how == _MEAN else total, dtype)]


@rule("nll")
def nll(c: Call) -> Results:
    w, x, target = c.w, c.get("self"), c.get("target")
    ignore = number(c.get("ignore_index"))
    at = 1 if len(x.dims) > 1 else 0
    x = w.flat(x, at)
    dims = without(x.dims, at)
    target = lead(w, target, dims)
    c.set("self", w.fill(x, 0))
    c.set("target", w.fill(target, ignore))
    if c.has("grad_output"):
        grad = c.get("grad_output")
        c.set("grad_output", lead(w, grad, dims) if grad.dims else grad)
        return c.run([x.dims])
    return c.run([dims if number(c.get("reduction")) == _NONE else [], []])


# -------------------------------------------------------------------------------------------------------- attention


def _attention_bias(c: Call, bias: Value | None, b: Dim, h: Dim, t: Dim, s: Dim, causal: bool) -> Value | None:
    """What is added to scores [B, H, T, S], -inf for keys past the length."""
    w = c.w
    bias = None if bias is None else w.match(bias, [b, h, t, s])
    if full(s) or (causal and t == s):
        return bias
    valid = w.valid(s)
    assert valid is not None
    here = w.along(valid, 3, 4)
    if bias is None:
        return here
    if bias.dtype == torch.bool:
        _, dims = w.broadcast([bias, here])
        return w.op("logical_and", [bias, here], bias, dims)
    if not bias.dims[-1]:
        bias = w.expand(bias, [*bias.dims[:-1], s])
    return w.fill(bias, -math.inf, [len(bias.dims) - 1])


def _operands(c: Call, formals: Sequence[str]) -> tuple[list[Value], tuple[Dim, Dim, Dim, Dim]]:
    """Query, key, value with agreeing layouts, and those of batch, heads, queries and keys."""
    w = c.w
    q, k, v = (c.get(f) for f in formals)
    b = next((x.dims[0] for x in (q, k, v) if x.dims[0]), ())
    s = k.dims[2]
    q, k, v = (w.relayout(x, 0, b) for x in (q, k, v))
    v = w.relayout(w.relayout(v, 2, s), 1, k.dims[1])
    k = w.relayout(k, 3, q.dims[3])
    if q.dims[1] != k.dims[1] and not (full(q.dims[1]) and full(k.dims[1])):
        raise Untraceable("attention over groups of heads of a length given at run time")
    if c.get("scale") is None and not full(q.dims[3]):
        c.set("scale", w.compute(f"1 / math.sqrt({w.code(length(q.dims[3]))})", 2))
    q, k = w.fill(q, 0, [3]), w.fill(k, 0, [3])
    return [q, k, v], (b, q.dims[1], q.dims[2], s)


FLASH = "_scaled_dot_product_flash_attention_for_cpu"


@of("_scaled_dot_product_fused_attention_overrideable")
def attention(c: Call) -> Results:
    w = c.w
    (q, k, v), (b, h, t, s) = _operands(c, ("query", "key", "value"))
    causal = bool(c.get("is_causal"))
    bias = _attention_bias(c, c.get("attn_bias"), b, h, t, s, causal)
    k, v = w.fill(k, 0, [2]), w.fill(v, 0, [2])
    out, lse = (b, h, t, v.dims[3]), (b, h, t)
    specs = [(DTYPE_NUMBERS[c.vals[0].dtype], tuple(map(places, out))), (DTYPE_NUMBERS[c.vals[1].dtype], tuple(map(places, lse)))]
    args = [q.id, k.id, v.id, 0.0, causal, None if bias is None else bias.id, c.get("scale")]
    ids = w.builder.node(FLASH, args, specs)
    results: Results = [Value(ids[0], c.vals[0].dtype, out), Value(ids[1], c.vals[1].dtype, lse)]
    for val in c.vals[2:]:  # seeds, which nobody reads
        seed = isinstance(val, torch.Tensor) and all(isinstance(n, int) for n in val.shape)
        results.append(
            Value(w.emit("full", [[], 0] + [None] * 4, val.dtype, val.shape), val.dtype, tuple(w.standard(n) for n in val.shape))
            if seed
            else None
        )
    return results


def _product(w: Writer, a: Value, b: Value) -> Value:
    """[N, T, K] x [N, K, S], the K of equal layouts"""
    a, b = w.fill(a, 0, [2]), w.fill(b, 0, [1])
    return w.op("bmm", [a, b], a, (a.dims[0], a.dims[1], b.dims[2]))


@rule("heads")
def multi_head(c: Call) -> Results:
    """nn.MultiheadAttention in inference, written out. Queries that see no key give NaN."""
    w, x = c.w, c.get("query")
    e, heads = c.get("embed_dim"), c.get("num_head")
    if c.get("key") is not x or c.get("value") is not x or c.get("need_weights") or not full(x.dims[2]):
        raise Untraceable(f"{c.name} but self-attention without weights")
    b, t, wide = x.dims[0], x.dims[1], x.dims[2]

    def project(v: Value, weight: Value, bias: Value) -> Value:
        rows = w.view(v, [canonical([*b, *t]), v.dims[2]])
        rows = w.op("addmm", [bias, rows, w.permute(weight, [1, 0]), 1, 1], rows, [rows.dims[0], weight.dims[0]])
        return w.view(rows, [b, t, weight.dims[0]])

    qkv = project(x, c.get("qkv_weight"), c.get("qkv_bias"))
    one, head = w.standard(heads), w.standard(e // heads)
    qkv = w.permute(w.reshape(qkv, [length(b), length(t), 3, heads, e // heads]), [2, 0, 3, 1, 4])
    several = canonical([*b, *one])
    q, k, v = (w.view(w.window(qkv, 0, i, 1, 1), [several, t, head]) for i in range(3))
    scores = _product(w, w.op("div.Scalar", [q, math.sqrt(e // heads)], q), w.permute(w.fill(k, 0, [1]), [0, 2, 1]))
    mask = c.get("mask")
    if mask is not None:
        four = w.view(scores, [b, one, t, t])
        if len(mask.dims) == 2 and c.get("mask_type") == 1:
            mask = w.view(w.relayout(w.relayout(mask, 1, t), 0, b), [b, (), (), t])
        mask = w.match(cast(w, mask, torch.bool), four.dims)
        scores = w.view(w.op("masked_fill.Scalar", [four, mask, -math.inf], four), scores.dims)
    scores = w.fill(scores, -math.inf, [2])
    p = w.op("_softmax", [scores, 2, False], scores)
    out = w.permute(w.view(_product(w, p, v), [b, one, t, head]), [0, 2, 1, 3])
    out = project(w.view(out, [b, t, wide]), c.get("proj_weight"), c.get("proj_bias"))
    none = [
        Value(w.emit("full", [[], 0] + [None] * 4, val.dtype, d), val.dtype, ()) if val is not None else None
        for val in c.vals[1:]
        for d in [()]
    ]
    return [out, *none]


@of("_scaled_dot_product_fused_attention_overrideable_backward")
def attention_back(c: Call) -> Results:
    w = c.w
    (q, k, v), (b, h, t, s) = _operands(c, ("query", "key", "value"))
    causal, given = bool(c.get("is_causal")), c.get("attn_bias")
    bias = _attention_bias(c, given, b, h, t, s, causal)
    wants_bias = len(c.vals) > 3 and c.vals[3] is not None and c.get("grad_input_mask")[3]
    if wants_bias and (bias is None or given is None or bias.dims != given.dims):
        raise Untraceable("the gradient of a bias that lengths are masked in")
    grad, out, lse = (lead(w, c.get(f), (b, h, t)) for f in ("grad_out", "out", "logsumexp"))
    grad, q, k, v, out, lse = (w.fill(x, 0) for x in (grad, q, k, v, out, lse))
    if bias is not None and bias.dtype != torch.bool:  # -inf and NaN would meet gradients of 0
        bias = w.fill(bias, 0, range(len(bias.dims) - 1))
    mask = c.get("grad_input_mask")
    shapes: list[Any] = [q, k, v, bias if wants_bias else None]
    specs = [
        (DTYPE_NUMBERS[x.dtype], x.sizes) if x is not None and mask[i] and c.vals[i] is not None else None
        for i, x in enumerate(shapes)
    ]
    args = [grad.id, q.id, k.id, v.id, out.id, lse.id, 0.0, causal, None if bias is None else bias.id, c.get("scale")]
    ids = w.builder.node(FLASH + "_backward", args, specs)
    results: Results = [None if spec is None else Value(i, x.dtype, x.dims) for i, spec, x in zip(ids, specs, shapes, strict=True)]
    return results[: len(c.vals)]
