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


# Factories of random numbers, without in-place ops: each takes from the generator what the eager call takes.


def _is_tpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "tpu"


@_of(aten.rand.default)
def rand(size: list[int], *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
    """Uniform in [0, 1)."""
    return aten.uniform(aten.empty(size, dtype=dtype, device=device)) if _is_tpu(device) else NotImplemented


@_of(aten.randn.default)
def randn(size: list[int], *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
    """Standard normal."""
    return aten.normal_functional(aten.empty(size, dtype=dtype, device=device)) if _is_tpu(device) else NotImplemented


@_of(aten.normal.float_float)
def normal(mean: float, std: float, size: list[int], *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
    """N(mean, std²)."""
    if not _is_tpu(device) or _.get("generator") is not None:
        return NotImplemented
    return aten.normal_functional(aten.empty(size, dtype=dtype, device=device), mean, std)


@_of(aten.randint.low)
def randint_low(low: int, high: int, size: list[int], *, dtype: Any = torch.int64, device: Any = None, **_: Any) -> torch.Tensor:
    """Integers in [low, high)."""
    return (
        getattr(aten.random, "from")(aten.empty(size, dtype=dtype, device=device), low, high) if _is_tpu(device) else NotImplemented
    )


@_of(aten.randint.default)
def randint(high: int, size: list[int], *, dtype: Any = torch.int64, device: Any = None, **_: Any) -> torch.Tensor:
    """Integers in [0, high)."""
    return randint_low(0, high, size, dtype=dtype, device=device)


@_of(aten.rand_like.default)
def rand_like(x: torch.Tensor, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> torch.Tensor:
    """As :func:`rand`."""
    y = aten.empty_like(x, dtype=dtype, device=device, memory_format=memory_format)
    return aten.uniform(y) if _is_tpu(y.device) else NotImplemented


@_of(aten.randn_like.default)
def randn_like(x: torch.Tensor, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> torch.Tensor:
    """As :func:`randn`."""
    y = aten.empty_like(x, dtype=dtype, device=device, memory_format=memory_format)
    return aten.normal_functional(y) if _is_tpu(y.device) else NotImplemented


@_of(aten.randint_like.low_dtype)
def randint_like_low(
    x: torch.Tensor, low: int, high: int, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any
) -> torch.Tensor:
    """As :func:`randint_low`."""
    y = aten.empty_like(x, dtype=dtype, device=device, memory_format=memory_format)
    return getattr(aten.random, "from")(y, low, high) if _is_tpu(y.device) else NotImplemented


@_of(aten.randint_like.default)
def randint_like(x: torch.Tensor, high: int, **options: Any) -> torch.Tensor:
    """As :func:`randint`."""
    return randint_like_low(x, 0, high, **options)
