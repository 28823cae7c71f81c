"""Batching rules of fused attention for ``torch.func.vmap``: what is mapped becomes part of the batch."""

from typing import Any

import torch

aten = torch.ops.aten
_forward = aten._scaled_dot_product_fused_attention_overrideable.default
_backward = aten._scaled_dot_product_fused_attention_overrideable_backward.default


class _Folder:
    """n mapped samples of a batch of B: [n, B, ..] as [n · B, ..] and back."""

    def __init__(self, n: int, batch: int) -> None:
        self.n, self.batch = n, batch

    def fold(self, t: torch.Tensor, axis: int | None) -> torch.Tensor:
        t = t.unsqueeze(0).expand(self.n, *t.size()) if axis is None else t.movedim(axis, 0)
        return t.reshape(self.n * self.batch, *t.size()[2:])

    def bias(self, t: torch.Tensor | None, axis: int | None) -> torch.Tensor | None:
        """A bias that broadcasts to [B, H, T, S] in each sample, as one of 4 axes."""
        if t is None:
            return None
        t = t.unsqueeze(0).expand(self.n, *t.size()) if axis is None else t.movedim(axis, 0)
        while t.dim() < 5:
            t = t.unsqueeze(1)
        return self.fold(t.expand(self.n, self.batch, *t.size()[2:]), 0)

    def unfold(self, t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(0, (self.n, self.batch))


def _batch(t: torch.Tensor, axis: int | None) -> int:
    return t.size(0) if axis is None else t.movedim(axis, 0).size(1)


def _forward_rule(info: Any, axes: Any, query: Any, key: Any, value: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
    f = _Folder(info.batch_size, _batch(query, axes[0]))
    q, k, v = (f.fold(t, d) for t, d in zip((query, key, value), axes, strict=False))
    found = _forward(q, k, v, f.bias(bias, axes[3] if len(axes) > 3 else None), *args, **kwargs)
    return (f.unfold(found[0]), f.unfold(found[1]), *found[2:]), (0, 0, *[None] * 7)


def _backward_rule(
    info: Any,
    axes: Any,
    grad: Any,
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    wanted: Any,
    out: Any,
    lse: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    f = _Folder(info.batch_size, _batch(query, axes[1]))
    g, q, k, v, o, s = (f.fold(t, axes[i]) for i, t in ((0, grad), (1, query), (2, key), (3, value), (6, out), (7, lse)))
    found = [
        None if t is None else f.unfold(t) for t in _backward(g, q, k, v, f.bias(bias, axes[4]), wanted, o, s, *args, **kwargs)
    ]
    if found[3] is not None:  # back to the bias's own sizes: over axes that it broadcasts along, sums
        sizes = list(bias.size())
        if axes[4] is not None:
            sizes.pop(axes[4])
        found[3] = found[3].sum(1, keepdim=len(sizes) == 4) if len(sizes) < 4 or sizes[0] == 1 else found[3]
        found[3] = found[3].reshape(info.batch_size, *sizes)
    return tuple(found), tuple(None if t is None else 0 for t in found)


torch.library.register_vmap(_forward, _forward_rule)
torch.library.register_vmap(_backward, _backward_rule)
