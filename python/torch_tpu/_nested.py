"""What inference of nn.TransformerEncoder with padding asks of nested tensors.

PyTorch packs the sequences of a padded batch, so that layers compute nothing for padding. Here a nested tensor keeps the padded
batch [B, L, D] as its buffer, of which its sequences are views: shapes stay static, and a layer masks what is padding.
"""

from typing import Any

import torch

aten = torch.ops.aten
_library = torch.library.Library("aten", "IMPL")


def _reuse(op: Any, key: str, *args: Any) -> Any:
    """PyTorch's kernel for another device, which only looks at the nested tensor's description."""
    return op.redispatch(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)), *args)


def _sizes(nested: torch.Tensor) -> torch.Tensor:
    """s64 [B, 2] on the CPU: length and width of each sequence."""
    return _reuse(aten._nested_tensor_size.default, "NestedTensorCPU", nested)


def _padded(nested: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch [B, L, D], and bool [B, L], true for padding."""
    sizes = _sizes(nested)
    batch, width = sizes.size(0), int(sizes[0, 1])
    x = _reuse(aten.values.default, "NestedTensorCPU", nested).view(batch, -1, width)
    return x, torch.arange(x.size(1), device=x.device) >= sizes[:, :1].to(x.device)


def _nested(padded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The sequences padded[b, : lengths[b]]; lengths s64 [B] on the CPU."""
    batch, longest, width = padded.size()
    sizes = torch.stack([lengths, torch.full_like(lengths, width)], 1)
    strides = torch.tensor([[width, 1]]).repeat(batch, 1)
    offsets = torch.arange(batch) * (longest * width)
    return _reuse(aten._nested_view_from_buffer.default, "CPU", padded.reshape(-1), sizes, strides, offsets)


def _left_aligned(t: torch.Tensor, mask: torch.Tensor) -> bool:
    want = torch.arange(mask.size(1), device=mask.device) < mask.sum(1, keepdim=True)
    return bool((mask == want).all())


def _from_mask(t: torch.Tensor, mask: torch.Tensor, mask_check: bool = True) -> torch.Tensor:
    torch._check(mask.dtype == torch.bool, lambda: "Expected mask to be of ScalarType Bool")
    torch._check(mask.dim() == 2, lambda: "Padding mask should be 2D")
    torch._check(t.dim() == 3, lambda: "Input should be a 3D tensor, N * L * D")
    torch._check(t.size()[:2] == mask.size(), lambda: "Input and mask should have the same first two sizes")
    torch._check(not mask_check or _left_aligned(t, mask), lambda: "Mask must be left-aligned without gaps")
    return _nested(t.contiguous(), mask.sum(1).cpu())


def _to_padded(nested: torch.Tensor, padding: float, output_size: Any = None) -> torch.Tensor:
    x, out = _padded(nested)
    longest = int(_sizes(nested)[:, 0].max()) if output_size is None else output_size[1]
    x, out = x[:, :longest], out[:, :longest]
    found = x.masked_fill(out.unsqueeze(2), padding)
    if output_size is None:
        return found
    more = [n for a, b in zip(reversed(found.size()), reversed(output_size), strict=True) for n in (0, b - a)]
    return torch.nn.functional.pad(found, more, value=padding) if any(more) else found


def _encoder_layer(src: torch.Tensor, *args: Any) -> torch.Tensor:
    """args: as of _transformer_encoder_layer_fwd, without a mask."""
    x, out = _padded(src)
    y = aten._transformer_encoder_layer_fwd(x, *args[:17], out, 1)
    return _nested(y, _sizes(src)[:, 0])


_library.impl("_nested_tensor_from_mask_left_aligned", _left_aligned, "PrivateUse1")
_library.impl("_nested_tensor_from_mask", _from_mask, "PrivateUse1")
_library.impl("to_padded_tensor", _to_padded, "NestedTensorPrivateUse1")
_library.impl("_transformer_encoder_layer_fwd", _encoder_layer, "NestedTensorPrivateUse1")
