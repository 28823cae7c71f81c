"""``torch.tpu.ops``: TorchTPU's ops beside ATen's, made of ATen's.

Ops for hardware which no plugin of this package drives (SparseCore), or for a second process, are here by name and say what to
use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

aten = torch.ops.aten


def optimization_barrier(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Give back the tensors as new ones; what was computed before is not fused or merged with what follows.

    Each eager op is a program of its own, so that nothing moves over this anyway.

    Args:
        inputs: any tensors.

    Returns:
        Views of them, in order; gradients pass.
    """
    if isinstance(inputs, torch.Tensor):
        raise TypeError("expected a list of tensors, got one tensor")
    return [x.view_as(x) for x in inputs]


# ------------------------------------------------------------------------------------------------------------- pooling


def _pool_size(n: int, name: str, value: Sequence[int]) -> list[int]:
    sizes = list(value)
    if len(sizes) != n:
        raise ValueError(f"expected {name} to have {n} numbers, one a dimension, got {sizes}")
    return sizes


def _max_pool(n: int, x: torch.Tensor, sizes: Sequence[Sequence[int]], ceil_mode: bool) -> tuple[torch.Tensor, torch.Tensor]:
    names = ("kernel_size", "stride", "padding", "dilation")
    args = [_pool_size(n, name, value) for name, value in zip(names, sizes, strict=True)]
    if n == 1:  # as a 2-D pool of one row
        kernel, stride, padding, dilation = args
        y, at = aten.max_pool2d_with_indices(x.unsqueeze(-2), [1, *kernel], [1, *stride], [0, *padding], [1, *dilation], ceil_mode)
        return y.squeeze(-2), at.squeeze(-2)
    pool = aten.max_pool2d_with_indices if n == 2 else aten.max_pool3d_with_indices
    return pool(x, *args, ceil_mode)


def _max_pool_backward(
    n: int, grad: torch.Tensor, x: torch.Tensor, sizes: Sequence[Sequence[int]], ceil_mode: bool
) -> torch.Tensor:
    _, at = _max_pool(n, x, sizes, ceil_mode)
    if n == 1:
        args = [[rest, *size] for rest, size in zip((1, 1, 0, 1), sizes, strict=True)]
        return aten.max_pool2d_with_indices_backward(
            grad.unsqueeze(-2), x.unsqueeze(-2), *args, ceil_mode, at.unsqueeze(-2)
        ).squeeze(-2)
    backward = aten.max_pool2d_with_indices_backward if n == 2 else aten.max_pool3d_with_indices_backward
    return backward(grad, x, *(list(s) for s in sizes), ceil_mode, at)


def _make_pool(n: int) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    shape = "(N, C, " + ", ".join("DHW"[3 - n :]) + ")"

    @torch.no_grad()
    def pool(
        input: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
    ) -> torch.Tensor:
        return _max_pool(n, input, (kernel_size, stride, padding, dilation), ceil_mode)[0]

    @torch.no_grad()
    def backward(
        grad_output: torch.Tensor,
        input: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
    ) -> torch.Tensor:
        return _max_pool_backward(n, grad_output, input, (kernel_size, stride, padding, dilation), ceil_mode)

    pool.__name__ = pool.__qualname__ = f"max_pool{n}d"
    pool.__doc__ = f"""Maximum over windows of ``input``, {shape} or without N; not differentiable.

    Args: as ``torch.nn.functional.max_pool{n}d``'s, but each of the four a list of {n} and none optional.
    """
    backward.__name__ = backward.__qualname__ = f"max_pool{n}d_backward"
    backward.__doc__ = f"""Gradient of :func:`max_pool{n}d` for its input, whose maxima are looked for again.

    Args: the gradient of the result, then what ``max_pool{n}d`` was given.
    """
    return pool, backward


max_pool1d, max_pool1d_backward = _make_pool(1)
max_pool2d, max_pool2d_backward = _make_pool(2)
max_pool3d, max_pool3d_backward = _make_pool(3)

# --------------------------------------------------------------------------------------------------- products of groups


def _members(m: int, group_sizes: torch.Tensor) -> torch.Tensor:
    """(m, g) bool: is row i in group j? Rows past the last group are in none."""
    if group_sizes.dim() != 1 or group_sizes.is_floating_point():
        raise ValueError(f"expected group_sizes as integers of shape (g,), got {group_sizes.dtype} {tuple(group_sizes.shape)}")
    ends = group_sizes.cumsum(0)
    rows = torch.arange(m, device=group_sizes.device).unsqueeze(1)
    return (rows >= ends - group_sizes) & (rows < ends)


def ragged_dot(lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply consecutive groups of rows each by its own matrix, as in a mixture of experts.

    Computed as one product in which each row meets its own group's matrix and zeros elsewhere: sizes stay on the device, and one
    program serves all sizes, for g times the work of the groups alone.

    Args:
        lhs: (m, k).
        rhs: (g, k, n).
        group_sizes: (g,) integers; their sum is m. Rows past the sum give zeros.
        out: (m, n) to write to. Without it gradients pass to ``lhs`` and ``rhs``.

    Returns:
        (m, n): row i is ``lhs[i] @ rhs[j]`` for the group j it is in.
    """
    if lhs.dim() != 2 or rhs.dim() != 3 or lhs.shape[1] != rhs.shape[1] or rhs.shape[:1] != group_sizes.shape:
        raise ValueError(
            "expected lhs (m, k), rhs (g, k, n) and group_sizes (g,), got "
            f"{tuple(lhs.shape)}, {tuple(rhs.shape)} and {tuple(group_sizes.shape)}"
        )
    g, k, n = rhs.shape
    mine = _members(lhs.shape[0], group_sizes).unsqueeze(2)
    wide = torch.where(mine, lhs.unsqueeze(1), lhs.new_zeros(())).reshape(-1, g * k)
    result = wide @ rhs.reshape(g * k, n)
    return result if out is None else out.copy_(result)


def ragged_dot_weight_grad(lhs: torch.Tensor, grad_output: torch.Tensor, group_sizes: torch.Tensor) -> torch.Tensor:
    """Gradient of :func:`ragged_dot` for its ``rhs``.

    Args:
        lhs: (m, k).
        grad_output: (m, n).
        group_sizes: (g,).

    Returns:
        (g, k, n): for each group, its rows of ``lhs`` transposed times those of ``grad_output``.
    """
    if lhs.dim() != 2 or grad_output.dim() != 2 or lhs.shape[0] != grad_output.shape[0]:
        raise ValueError(f"expected lhs (m, k) and grad_output (m, n), got {tuple(lhs.shape)} and {tuple(grad_output.shape)}")
    mine = _members(lhs.shape[0], group_sizes).t().unsqueeze(2)
    return torch.where(mine, lhs, lhs.new_zeros(())).transpose(1, 2) @ grad_output


# ------------------------------------------------------------------------------------------------------ jagged tensors


def _jagged(values: torch.Tensor, nt: Any) -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(values, nt.offsets())


def align_jagged_to_multiple(nt: Any, multiple: int = 128, padding_value: float | int | bool = 0.0) -> torch.Tensor:
    """Lengthen the values of a jagged nested tensor to a multiple of rows; its sequences stay as they are.

    A TPU multiplies tiles of 128 rows, and batches of like length share programs.

    Args:
        nt: ``torch.jagged``, values (rows, ...).
        multiple: at least 1.
        padding_value: what the rows after the last sequence hold.
    """
    if multiple < 1:
        raise ValueError(f"expected multiple to be at least 1, got {multiple}")
    values = nt.values()
    missing = -values.shape[0] % multiple
    if missing == 0:
        return nt
    tail = torch.full((missing, *values.shape[1:]), padding_value, dtype=values.dtype, device=values.device)
    return _jagged(torch.cat([values, tail]), nt)


def strip_jagged_padding(nt: Any, valid_tokens: int | None = None) -> torch.Tensor:
    """Undo :func:`align_jagged_to_multiple`: a view of the rows that belong to sequences.

    Args:
        nt: ``torch.jagged``.
        valid_tokens: how many rows do, if the host knows; None asks the device, which waits for it.
    """
    if valid_tokens is None:
        valid_tokens = int(nt.offsets()[-1].item())
    return nt if nt.values().shape[0] == valid_tokens else _jagged(nt.values()[:valid_tokens], nt)


# ----------------------------------------------------------------------------------------------------------- attention


def splash_sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    is_causal: bool = True,
    local_window_size: int | None = None,
    enable_gqa: bool = False,
    q_layout: str = "HEAD_DIM_MINOR",
    k_layout: str = "HEAD_DIM_MINOR",
    v_layout: str = "HEAD_DIM_MINOR",
    **blocks: Any,
) -> torch.Tensor:
    """``scaled_dot_product_attention`` under TorchTPU's name for its own kernel; gradients pass.

    Args:
        q, k, v: (batch, heads, length, width); ``k`` and ``v`` may have fewer heads.
        scale: None: 1/sqrt(width).
        is_causal: a position sees itself and those before.
        local_window_size: it sees only so many of them.
        enable_gqa: accepted; fewer heads of ``k`` are seen by themselves.
        q_layout, k_layout, v_layout: only ``"HEAD_DIM_MINOR"``.
        blocks: tile sizes (``block_q`` ..) and kernel choices of the TPU kernel: accepted, without effect.
    """
    unknown = [b for b in blocks if not b.startswith("block_") and b not in ("use_fused_bwd_kernel", "use_vmap_bwd")]
    if unknown:
        raise TypeError(f"splash_sdpa has no argument {unknown[0]!r}")
    if {q_layout, k_layout, v_layout} != {"HEAD_DIM_MINOR"}:
        raise NotImplementedError("splash_sdpa: transpose q, k and v to (batch, heads, length, width), layout HEAD_DIM_MINOR")
    gqa = enable_gqa or q.shape[1] != k.shape[1]
    if local_window_size is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=gqa)
    ahead = torch.arange(q.shape[-2], device=q.device)[:, None] - torch.arange(k.shape[-2], device=q.device)
    seen = ahead < local_window_size
    seen = seen & (ahead >= 0) if is_causal else seen & (ahead > -local_window_size)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=gqa)


# ------------------------------------------------------------------------------------------------- rows of a table


def sparse_gather(
    row_pointers: torch.Tensor, indices: torch.Tensor, operand: torch.Tensor, max_non_zeroes_per_row: int
) -> torch.Tensor:
    """Rows ``indices`` of ``operand``; gradients pass to it.

    Args:
        row_pointers: (rows,): only its length counts.
        indices: (rows * max_non_zeroes_per_row,).
        operand: (n, width).
        max_non_zeroes_per_row: as above.
    """
    if indices.numel() != row_pointers.numel() * max_non_zeroes_per_row:
        raise ValueError(f"expected {row_pointers.numel()} rows of {max_non_zeroes_per_row} indices, got {indices.numel()} indices")
    return operand.index_select(0, indices)


def sparse_gather_backward(grad_output: torch.Tensor, indices: torch.Tensor, grad_operand: torch.Tensor) -> torch.Tensor:
    """``grad_operand`` (n, width) with the rows of ``grad_output`` added at ``indices``."""
    return grad_operand.index_add(0, indices, grad_output)


# ------------------------------------------------------------------------------------------------------ here by name only

_INSTEAD = {
    "sparse_dense_matmul": "torch.nn.functional.embedding_bag",
    "sparse_dense_matmul_activation_unstack": "torch.split",
    "sparse_dense_matmul_grad_with_adagrad": "embedding_bag's gradient and torch.optim.Adagrad",
    "sparse_dense_matmul_grad_with_adam": "embedding_bag's gradient and torch.optim.Adam",
    "sparse_dense_matmul_grad_with_sgd": "embedding_bag's gradient and torch.optim.SGD",
    "sparse_dense_matmul_gradient_stack": "torch.cat",
    "sparse_iota": "torch.arange",
    "sparse_map_row": "torch.nn.functional.embedding_bag",
    "all_gather_dim": "torch.distributed.all_gather and torch.cat",
    "reduce_scatter_dim": "torch.split and torch.distributed.reduce_scatter",
    "ragged_all_to_all": "torch.distributed.all_to_all",
    "recv": "torch.distributed.irecv",
    "send": "torch.distributed.isend",
}


def _refuse(name: str, instead: str) -> Callable[..., Any]:
    why = "runs on a TPU's SparseCore" if name.startswith("sparse") else "needs TorchTPU's own process group"

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"torch.tpu.ops.{name} {why}, which this package does not drive; use {instead}")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Not supported: use {instead}."
    return refuse


globals().update({name: _refuse(name, instead) for name, instead in _INSTEAD.items()})
