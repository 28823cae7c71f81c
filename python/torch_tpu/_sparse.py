"""Sparse COO tensors, as far as gradients of embeddings with ``sparse=True`` and the optimizers that take them need.

A sparse tensor is its indices and values, two dense tensors of the device; what PyTorch's kernels for the CPU do with these as
wholes serves here too.
"""

from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten
_library = torch.library.Library("aten", "IMPL")
_KEY = "SparsePrivateUse1"
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)
# Kernels that read or set indices and values as wholes.
_SHARED = (
    "_sparse_coo_tensor_with_dims_and_tensors",
    "_sparse_coo_tensor_with_dims",
    "_indices",
    "_values",
    "indices",
    "values",
    "_nnz",
    "sparse_dim",
    "dense_dim",
    "_dimI",
    "_dimV",
    "is_coalesced",
    "_coalesced_",
    "clone",
    "copy_",
    "copy_sparse_to_sparse_",
    "empty_like",
    "empty.memory_format",
    "zero_",
    "sparse_resize_",
    "sparse_resize_and_clear_",
    "resize_as_sparse_",
)


def _share(name: str) -> None:
    base, _, overload = name.partition(".")
    op = getattr(getattr(aten, base), overload or "default")
    _library.impl(name, lambda *args, **kwargs: op.redispatch(_CPU, *args, **kwargs), _KEY)


for _name in _SHARED:
    _share(_name)


def _make(like: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, coalesced: bool | None = None) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, like.size(), is_coalesced=coalesced, check_invariants=False)


def _strides(t: torch.Tensor) -> torch.Tensor:
    """s64 [sparse axes, 1]: what one step along each sparse axis adds to a flat place."""
    steps = [1]
    for n in reversed(t.size()[1 : t.sparse_dim()]):
        steps.insert(0, steps[0] * n)
    return torch.tensor(steps).unsqueeze(1).to(t.device)


def _coalesce(self: torch.Tensor) -> torch.Tensor:
    indices, values = self._indices(), self._values()
    flat, group = torch.unique((indices * _strides(self)).sum(0), return_inverse=True)
    summed = values.new_zeros((flat.size(0), *values.size()[1:])).index_add_(0, group, values)
    rows: list[torch.Tensor] = []
    rest = flat
    for n in reversed(self.size()[: self.sparse_dim()]):
        rows.insert(0, rest % n)
        rest = rest // n
    return _make(self, torch.stack(rows), summed, True)


def _to_dense(self: torch.Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None) -> torch.Tensor:
    dense = torch.zeros(self.size(), dtype=self.dtype, device=self.device)
    return _scatter(dense, self, 1).to(dtype or self.dtype)


def _to_copy(self: torch.Tensor, *, dtype: Any = None, device: Any = None, non_blocking: bool = False, **_: Any) -> torch.Tensor:
    indices = self._indices().to(device=device, non_blocking=non_blocking)
    return _make(self, indices, self._values().to(dtype=dtype, device=device, non_blocking=non_blocking), self.is_coalesced())


def _sparse_mask(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The entries of a dense tensor at a sparse one's places."""
    indices = mask._indices()
    return _make(mask, indices, self[tuple(indices)], mask.is_coalesced())


def _scatter(dense: torch.Tensor, sparse: torch.Tensor, alpha: Any) -> torch.Tensor:
    values = sparse._values()
    return dense.index_put_(tuple(sparse._indices()), (values if alpha == 1 else values * alpha).to(dense.dtype), True)


def _add(self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    if not self.is_sparse:
        return _scatter(self.clone(), other, alpha)
    torch._check(other.is_sparse, lambda: "add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    values = torch.cat([self._values(), other._values() * alpha])
    return _make(self, torch.cat([self._indices(), other._indices()], 1), values)


def _add_(self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    return self.copy_(_add(self, other, alpha=alpha)) if self.is_sparse else _scatter(self, other, alpha)


def _sub(self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    return _add(self, other, alpha=-alpha)


def _sub_(self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    return _add_(self, other, alpha=-alpha)


def _valuewise(name: str, of_number: bool) -> None:
    """An op that keeps zeros, on the values: of one tensor, or of a tensor and a number."""
    base, _, overload = name.partition(".")
    op = getattr(getattr(aten, base), overload or "default")
    inplace = base.endswith("_")

    def run(self: torch.Tensor, *args: Any) -> torch.Tensor:
        if of_number:
            if base == "mul" and not (isinstance(self, torch.Tensor) and self.is_sparse):
                self, args = args[0], (self,)  # number * tensor
            number = not isinstance(args[0], torch.Tensor) or args[0].dim() == 0
            torch._check(self.is_sparse and number, lambda: f"{base} of a sparse tensor on tpu wants a number beside it")
        values = op(self._values(), *args)
        return self if inplace else _make(self, self._indices(), values, self.is_coalesced())

    _library.impl(name, run, _KEY)


for _name in ("mul.Tensor", "mul_.Tensor", "div.Tensor", "div_.Tensor"):
    _valuewise(_name, True)
for _name in ("neg", "neg_", "abs", "abs_"):
    _valuewise(_name, False)


def _into(name: str) -> None:
    """The out= overload of an op above."""
    op = getattr(aten, name).Tensor
    _library.impl(f"{name}.out", lambda *args, out, **kwargs: out.copy_(op(*args, **kwargs)), _KEY)


for _name in ("mul", "div", "add", "sub"):
    _into(_name)

_library.impl("_coalesce", _coalesce, _KEY)
_library.impl("_to_dense", _to_dense, _KEY)
_library.impl("_to_copy", _to_copy, _KEY)
_library.impl("sparse_mask", _sparse_mask, _KEY)
_library.impl("add.Tensor", _add, _KEY)
_library.impl("add_.Tensor", _add_, _KEY)
_library.impl("sub.Tensor", _sub, _KEY)
_library.impl("sub_.Tensor", _sub_, _KEY)


def _bag_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None = None,
    padding_idx: int = -1,
) -> torch.Tensor:
    """Gradient of embedding_bag's weights, dense or sparse."""
    more: Sequence[Any] = (num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx)
    if sparse:
        return aten._embedding_bag_sparse_backward(grad, indices, offsets, offset2bag, bag_size, *more)
    if offset2bag.size(0) != indices.size(0):
        places = torch.arange(indices.size(0), device=indices.device, dtype=offsets.dtype)
        offset2bag = torch.searchsorted(offsets, places, right=True) - 1
    return aten._embedding_bag_dense_backward(grad, indices, offset2bag, bag_size, maximum_indices, *more)


_library.impl("_embedding_bag_backward", _bag_backward, "PrivateUse1")
