"""Decompositions of ops that PyTorch has none of. Each is traced once a signature and compiled as one program."""

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
table: dict[Any, Callable[..., Any]] = {}


def _of(op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(f: Callable[..., Any]) -> Callable[..., Any]:
        table[op] = f
        return f

    return add


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    rows = aten.addmm(bias, x.reshape(-1, x.size(-1)), weight.t())
    return rows.view(*x.size()[:-1], weight.size(0))


@_of(aten._transformer_encoder_layer_fwd.default)
def encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """nn.TransformerEncoderLayer without dropout, [B, L, D] -> [B, L, D]."""
    if src.numel() == 0:
        return src.clone()

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return aten.native_layer_norm(x, [embed_dim], weight, bias, eps)[0]

    def attend(x: torch.Tensor) -> torch.Tensor:
        parts = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return aten._native_multi_head_attention(x, x, x, embed_dim, num_heads, *parts, mask, False, True, mask_type)[0]

    def feed(x: torch.Tensor) -> torch.Tensor:
        x = _linear(x, ffn_weight_1, ffn_bias_1)
        return _linear(aten.gelu(x) if use_gelu else aten.relu(x), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(norm(src, norm_weight_1, norm_bias_1))
        return x + feed(norm(x, norm_weight_2, norm_bias_2))
    x = norm(src + attend(src), norm_weight_1, norm_bias_1)
    return norm(x + feed(x), norm_weight_2, norm_bias_2)
