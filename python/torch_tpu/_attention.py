"""Fused attention in a graph: ATen's ops for it give numbers and tensors that nobody reads beside their results, and the rows that
compute the same are of other names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_tpu._decompose import GraphBuilder


def lower_forward(builder: GraphBuilder, args: Sequence[Any], val: Sequence[Any]) -> list[Any]:
    """The values of ``aten._scaled_dot_product_fused_attention_overrideable``: output, logsumexp, two lengths; else none."""
    q, k, v, bias, dropout, causal, _, scale = (builder.value(a) for a in args)
    given = [q, k, v, dropout, causal, bias, scale]
    specs = [builder.spec(x) for x in val[:2]]
    out, lse = builder.node("_scaled_dot_product_flash_attention_for_cpu", given, specs)
    return [out, lse, None, None, builder.size(val[4]), builder.size(val[5]), None, None, None]


def lower_backward(builder: GraphBuilder, args: Sequence[Any], val: Sequence[Any]) -> list[Any]:
    """The values of ``aten._scaled_dot_product_fused_attention_overrideable_backward``: gradients of q, k, v and the bias."""
    g, q, k, v, bias, wanted, out, lse, _, _, _, _, dropout, causal, _, _, scale = (builder.value(a) for a in args)
    given = [g, q, k, v, out, lse, dropout, causal, bias, scale]
    specs = [builder.spec(x) if w else None for x, w in zip(val, wanted, strict=True)]
    got = builder.node("_scaled_dot_product_flash_attention_for_cpu_backward", given, specs)
    return [x if w else None for x, w in zip(got, wanted, strict=True)]
