"""Ops that are made of several calls, since their results' sizes or checks need a value read: kernels of the device in Python.

Each takes what ATen's overload takes and returns what the CPU returns. Everything in them runs on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_KERNELS: dict[str, Callable[..., Any]] = {}


def _kernel(*overloads: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(f: Callable[..., Any]) -> Callable[..., Any]:
        for name in overloads:
            _KERNELS[name] = f
        return f

    return add


def _give(results: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
    """Write results into out= tensors, which get the results' sizes."""
    for r, out in zip(results, outs, strict=True):
        torch._check(
            torch.can_cast(r.dtype, out.dtype),
            lambda r=r, out=out: f"result type {r.dtype} can't be cast to the desired output type {out.dtype}",
        )
        if out.shape != r.shape:
            out.resize_(r.shape)
        out.copy_(r)


# -------------------------------------------------------------------------------------------------------- linear algebra


@_kernel("cholesky")
def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """torch.linalg.cholesky under its old name; raises LinAlgError for a matrix that is not positive definite."""
    return torch.linalg.cholesky(x, upper=upper)


@_kernel("cholesky.out")
def cholesky_out(x: Tensor, upper: bool = False, *, out: Tensor) -> Tensor:
    _give([cholesky(x, upper)], [out])
    return out


def _full_rank(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Least squares of matrices of full rank by QR (LAPACK's gels), and R's diagonal."""
    m, n = a.shape[-2:]
    q, r = torch.linalg.qr(a if m >= n else a.mH)
    if m >= n:
        x = torch.linalg.solve_triangular(r, q.mH @ b, upper=True)
    else:
        x = q @ torch.linalg.solve_triangular(r.mH, b, upper=False)
    return x, r.diagonal(dim1=-2, dim2=-1)


@_kernel("linalg_lstsq")
def lstsq(a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None) -> tuple[Tensor, ...]:
    """min |a x - b|, the shortest such x: by QR for gels, else by singular values; those below rcond·largest count as 0."""
    torch._check(a.dim() >= 2, lambda: "torch.linalg.lstsq: input must have at least 2 dimensions.")
    torch._check(b.dim() >= 1, lambda: "torch.linalg.lstsq: other must have at least 1 dimension.")
    torch._check(a.dtype == b.dtype, lambda: "torch.linalg.lstsq: Expected input and other to have the same dtype.")
    name = "gelsy" if driver is None else driver
    torch._check(
        name in ("gels", "gelsy", "gelsd", "gelss"),
        lambda: f"torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), got {driver}",
    )
    m, n = a.shape[-2:]
    vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    rhs = b.unsqueeze(-1) if vector else b
    torch._check(rhs.dim() >= 2 and rhs.shape[-2] == m, lambda: "torch.linalg.lstsq: input.size(-2) should match other.size(-2)")
    batch = torch.broadcast_shapes(a.shape[:-2], rhs.shape[:-2])
    a, rhs = a.expand(*batch, m, n), rhs.expand(*batch, m, rhs.shape[-1])
    real = a.real.dtype if a.is_complex() else a.dtype
    rank = torch.empty(0, dtype=torch.int64, device=a.device)
    values = torch.empty(0, dtype=real, device=a.device)
    whole = m > n and name != "gelsy"
    if name == "gels":
        x, _ = _full_rank(a, rhs)
    else:
        u, s, vh = torch.linalg.svd(a, full_matrices=False)
        limit = rcond if rcond is not None else torch.finfo(real).eps * max(m, n)
        keep = s > limit * s[..., :1] if min(m, n) else s > 0
        inverse = torch.where(keep, 1 / torch.where(keep, s, 1), 0).to(a.dtype)
        x = vh.mH @ (inverse.unsqueeze(-1) * (u.mH @ rhs))
        rank = keep.sum(-1)
        values = s if name != "gelsy" else values
        whole = whole and bool((rank == n).all())
    residuals = (a @ x - rhs).abs().square().sum(-2) if whole else torch.empty(0, dtype=real, device=a.device)
    return (x.squeeze(-1) if vector else x), residuals, rank, values


@_kernel("linalg_lstsq.out")
def lstsq_out(
    a: Tensor,
    b: Tensor,
    rcond: float | None = None,
    *,
    driver: str | None = None,
    solution: Tensor,
    residuals: Tensor,
    rank: Tensor,
    singular_values: Tensor,
) -> tuple[Tensor, ...]:
    outs = (solution, residuals, rank, singular_values)
    _give(lstsq(a, b, rcond, driver=driver), outs)
    return outs


# ------------------------------------------------------------------------------------------------------------ histograms


def _edges(x: Tensor, bins: int, low: float, high: float) -> Tensor:
    return torch.linspace(low, high, bins + 1, dtype=x.dtype, device=x.device)


def _bounds(x: Tensor, given: Sequence[float] | None, axes: int) -> list[tuple[float, float]]:
    """Lowest and highest value counted on each axis; x is [n, axes]."""
    if given is not None:
        torch._check(len(given) == 2 * axes, lambda: f"torch.histogramdd: for a {axes}-dimensional histogram range should have "
                     f"{2 * axes} elements, but got {len(given)}")  # fmt: skip
        pairs = [(float(given[2 * k]), float(given[2 * k + 1])) for k in range(axes)]
    elif x.numel() == 0:
        pairs = [(0.0, 1.0)] * axes
    else:
        pairs = list(zip(x.amin(0).tolist(), x.amax(0).tolist(), strict=True))
    for first, last in pairs:
        torch._check(
            all(abs(v) < float("inf") for v in (first, last)),
            lambda first=first, last=last: f"torch.histogramdd: dimension's range [{first}, {last}] is not finite",
        )
        torch._check(
            first <= last, lambda first=first, last=last: f"torch.histogramdd: min should not exceed max, but got {first}, {last}"
        )
    return [(low - 0.5, high + 0.5) if low == high else (low, high) for low, high in pairs]


def _histogram(x: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    """x [n, axes] counted between edges; the last bin has its upper edge."""
    counts = [e.numel() - 1 for e in edges]
    place = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
    inside = torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
    for k, e in enumerate(edges):
        column = x[:, k].contiguous()
        at = torch.searchsorted(e.contiguous(), column, right=True) - 1
        at = torch.where(column == e[-1], counts[k] - 1, at)
        inside &= (column >= e[0]) & (column <= e[-1])
        place = place * counts[k] + at.clamp(0, counts[k] - 1)
    amount = torch.ones_like(x[:, 0]) if weight is None else weight.reshape(-1).to(x.dtype)
    total = 1
    for n in counts:
        total *= n
    hist = torch.zeros(total, dtype=x.dtype, device=x.device).scatter_add_(0, place, torch.where(inside, amount, 0)).view(counts)
    if density:
        hist = hist / hist.sum()
        for k, e in enumerate(edges):
            hist = hist / e.diff().view([-1 if a == k else 1 for a in range(len(counts))])
    return hist


def _points(x: Tensor, axes: int) -> Tensor:
    torch._check(x.dim() >= 2, lambda: "torch.histogramdd: input tensor should have at least 2 dimensions")
    torch._check(
        x.shape[-1] == axes,
        lambda: f"torch.histogramdd: expected as many sequences of bin edges as dimensions, {x.shape[-1]}, but got {axes}",
    )
    return x.reshape(-1, axes)


@_kernel("histogram.bin_ct")
def histogram(
    x: Tensor, bins: int = 100, *, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    torch._check(bins > 0, lambda: f"torch.histogram(): bins must be > 0, but got {bins} for dimension 0")
    flat = x.reshape(-1, 1)
    ((low, high),) = _bounds(flat, range, 1)
    edges = _edges(x, bins, low, high)
    return _histogram(flat, [edges], weight, density), edges


@_kernel("histogram.bins_tensor")
def histogram_between(x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False) -> tuple[Tensor, Tensor]:
    edges = bins.reshape(-1).to(x.dtype)
    return _histogram(x.reshape(-1, 1), [edges], weight, density), edges.clone()


@_kernel("histogram.bin_ct_out", "histogram.bins_tensor_out")
def histogram_out(x: Tensor, bins: Any, *, hist: Tensor, bin_edges: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
    found = histogram_between(x, bins, **kwargs) if isinstance(bins, Tensor) else histogram(x, bins, **kwargs)
    _give(found, (hist, bin_edges))
    return hist, bin_edges


@_kernel("_histogramdd_bin_edges")
def histogramdd_edges(
    x: Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> list[Tensor]:
    bounds = _bounds(_points(x, len(bins)), range, len(bins))
    return [_edges(x, n, low, high) for n, (low, high) in zip(bins, bounds, strict=True)]


@_kernel("_histogramdd_from_bin_cts")
def histogramdd_counts(
    x: Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    return _histogram(_points(x, len(bins)), histogramdd_edges(x, bins, range=range), weight, density)


@_kernel("_histogramdd_from_bin_tensors")
def histogramdd_between(x: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False) -> Tensor:
    return _histogram(_points(x, len(bins)), [e.to(x.dtype) for e in bins], weight, density)


# ------------------------------------------------------------------------------------------------------ segments, extremes


def _segments(data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> tuple[Tensor, Tensor, int]:
    """Data [*batch, n, inner..] as [batch, n, rest]; for each of the n its segment, counted through the batch; segments a row."""
    if lengths is None:
        assert offsets is not None
        lengths = offsets.diff(dim=-1)
    count = lengths.shape[-1]
    ends = lengths.reshape(-1, count).cumsum(-1)
    rows, n = ends.shape[0], data.shape[axis]
    at = torch.arange(n, device=data.device).expand(rows, n).contiguous()
    segment = torch.searchsorted(ends, at, right=True)
    return lengths.reshape(-1), (segment + torch.arange(rows, device=data.device)[:, None] * (count + 1)).reshape(-1), count


@_kernel("segment_reduce")
def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """Reductions of consecutive stretches of an axis; what lies behind the last one counts nowhere."""
    axis = axis % max(1, data.dim())
    torch._check(indices is None, lambda: "segment_reduce(): indices based reduction is not supported yet.")
    torch._check((lengths is None) != (offsets is None), lambda: "segment_reduce(): Either lengths or offsets must be defined.")
    if lengths is not None and not unsafe:
        torch._check(int(lengths.min()) >= 0 if lengths.numel() else True, lambda: "lengths contains negative value!")
        torch._check(
            bool((lengths.sum(-1) == data.shape[axis]).all()),
            lambda: "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when !unsafe.",
        )
    sizes, segment, count = _segments(data, lengths, offsets, axis)
    rows = sizes.numel() // count if count else 0
    rest = list(data.shape[axis + 1 :])
    neutral = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf")}[reduce]
    start = neutral if initial is None else float(initial)
    out = torch.full((rows * (count + 1), *rest), start, dtype=data.dtype, device=data.device)
    how = {"max": "amax", "min": "amin", "mean": "sum"}.get(reduce, reduce)
    source = data.reshape(-1, *rest)
    index = segment.view(-1, *([1] * len(rest))).expand(source.shape)
    out = out.scatter_reduce(0, index, source, how, include_self=True).view(rows, count + 1, *rest)[:, :count]
    if reduce == "mean":
        amount = sizes.view(rows, count, *([1] * len(rest)))
        empty = float("nan") if initial is None else start
        out = torch.where(amount > 0, out / amount.clamp(min=1), empty)
    return out.reshape(*data.shape[:axis], count, *rest).contiguous()


@_kernel("_segment_reduce_backward")
def segment_reduce_backward(
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Tensor:
    """Each element gets its segment's gradient: shared by a mean's, and among equals by an extreme's."""
    axis = axis % max(1, data.dim())
    sizes, segment, count = _segments(data, lengths, offsets, axis)
    rows = sizes.numel() // count if count else 0
    rest = list(data.shape[axis + 1 :])

    def spread(t: Tensor) -> Tensor:  # [rows, count, rest] -> one for each element of data
        padded = torch.cat([t.reshape(rows, count, -1), torch.zeros_like(t.reshape(rows, count, -1)[:, :1])], 1)
        return padded.reshape(rows * (count + 1), -1)[segment].view(data.shape)

    g, y = spread(grad), spread(output)
    amount = sizes.view(rows, count, *([1] * len(rest))).expand(rows, count, *rest).to(data.dtype)
    if reduce == "mean":
        return g / spread(amount).clamp(min=1)
    if reduce in ("max", "min"):
        hit = ((data == y) | (data.isnan() & y.isnan())).to(data.dtype)
        shape = (rows * (count + 1), *rest)
        index = segment.view(-1, *([1] * len(rest))).expand(rows * data.shape[axis], *rest)
        hits = torch.zeros(shape, dtype=data.dtype, device=data.device).scatter_add(0, index, hit.reshape(index.shape))
        ties = spread(hits.view(rows, count + 1, *rest)[:, :count])
        return torch.where(hit > 0, g / ties.clamp(min=1), 0)
    if reduce == "prod":
        zero = (data == 0).to(data.dtype)
        others = segment_reduce(torch.where(data == 0, 1, data), "prod", lengths=lengths, offsets=offsets, axis=axis, unsafe=True,
                                initial=initial)  # fmt: skip
        zeros = spread(segment_reduce(zero, "sum", lengths=lengths, offsets=offsets, axis=axis, unsafe=True))
        without = spread(others) / torch.where(data == 0, 1, data)
        return torch.where(zeros - zero > 0, 0, g * without)
    return g


@_kernel("_aminmax")
def aminmax(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.aminmax(x))


@_kernel("_aminmax.dim")
def aminmax_along(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, ...]:
    return tuple(torch.aminmax(x, dim=dim, keepdim=keepdim))


@_kernel("_logcumsumexp")
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    return torch.logcumsumexp(x, dim)


@_kernel("_logcumsumexp.out")
def logcumsumexp_out(x: Tensor, dim: int, *, out: Tensor) -> Tensor:
    _give([torch.logcumsumexp(x, dim)], [out])
    return out


@_kernel("_cummax_helper")
def cummax_helper(x: Tensor, values: Tensor, indices: Tensor, dim: int) -> None:
    _give(torch.cummax(x, dim), (values, indices))


@_kernel("_cummin_helper")
def cummin_helper(x: Tensor, values: Tensor, indices: Tensor, dim: int) -> None:
    _give(torch.cummin(x, dim), (values, indices))


# -------------------------------------------------------------------------------------------------------- other variants


@_kernel("__ilshift__.Scalar", "__ilshift__.Tensor")
def left_shift_in_place(x: Tensor, other: Any) -> Tensor:
    return x.copy_(x << other)


@_kernel("__irshift__.Scalar", "__irshift__.Tensor")
def right_shift_in_place(x: Tensor, other: Any) -> Tensor:
    return x.copy_(x >> other)


def _triangle(upper: bool, row: int, col: int, offset: int, dtype: torch.dtype | None, device: Any) -> Tensor:
    wanted = torch.int64 if dtype is None else dtype
    torch._check(wanted in (torch.int64, torch.int32), lambda: f"\"triu_indices\" not implemented for '{wanted}'")
    torch._check(row >= 0, lambda: f"row must be non-negative, got{row}")
    torch._check(col >= 0, lambda: f"col must be non-negative, got{col}")
    ones = torch.ones(row, col, dtype=torch.bool, device=device)
    return (torch.triu(ones, offset) if upper else torch.tril(ones, offset)).nonzero().t().contiguous().to(wanted)


@_kernel("tril_indices")
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return _triangle(False, row, col, offset, dtype, device)


@_kernel("triu_indices")
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return _triangle(True, row, col, offset, dtype, device)


@_kernel("adaptive_avg_pool2d.out", "adaptive_avg_pool3d.out")
def adaptive_avg_pool_out(x: Tensor, size: Sequence[int], *, out: Tensor) -> Tensor:
    f: Any = torch.nn.functional.adaptive_avg_pool2d if len(size) == 2 else torch.nn.functional.adaptive_avg_pool3d
    _give([f(x, size)], [out])
    return out


@_kernel("adaptive_avg_pool3d_backward.grad_input")
def adaptive_avg_pool3d_backward_out(grad: Tensor, x: Tensor, *, grad_input: Tensor) -> Tensor:
    _give([torch.ops.aten._adaptive_avg_pool3d_backward(grad, x)], [grad_input])
    return grad_input


@_kernel("linalg_eigvals.out")
def eigvals_out(x: Tensor, *, out: Tensor) -> Tensor:
    _give([torch.linalg.eigvals(x)], [out])
    return out


@_kernel("linalg_cross.out")
def linalg_cross_out(x: Tensor, y: Tensor, *, dim: int = -1, out: Tensor) -> Tensor:
    torch._check(x.dim() == y.dim(), lambda: "linalg.cross: inputs must have the same number of dimensions.")
    torch._check(
        x.shape[dim] == 3 and y.shape[dim] == 3,
        lambda: f"linalg.cross: inputs dimension {dim} must have length 3. Got {x.shape[dim]} and {y.shape[dim]}",
    )
    _give([x.roll(-1, dim) * y.roll(-2, dim) - x.roll(-2, dim) * y.roll(-1, dim)], [out])
    return out


@_kernel("mvlgamma.out")
def mvlgamma_out(x: Tensor, p: int, *, out: Tensor) -> Tensor:
    _give([torch.mvlgamma(x, p)], [out])
    return out


@_kernel("batch_norm_update_stats")
def batch_norm_update_stats(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance over all axes but the second; the running ones move towards them, the variance's unbiased."""
    axes = [0, *range(2, x.dim())]
    var, mean = torch.var_mean(x, axes, correction=0)
    n = x.numel() // x.shape[1]
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((var * (n / max(1, n - 1))).to(running_var.dtype), momentum)
    return mean, var


# PyTorch's CPU kernels of convolutions under their own names: the device's convolution.


@_kernel("_slow_conv2d_forward", "slow_conv3d_forward")
def slow_conv_forward(
    x: Tensor, weight: Tensor, kernel_size: Sequence[int], bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    return torch.convolution(x, weight, bias, stride, padding, [1] * len(stride), False, [0] * len(stride), 1)


@_kernel("_slow_conv2d_forward.output", "slow_conv3d_forward.output")
def slow_conv_forward_out(
    x: Tensor,
    weight: Tensor,
    kernel_size: Sequence[int],
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    *,
    output: Tensor,
) -> Tensor:
    _give([slow_conv_forward(x, weight, kernel_size, bias, stride, padding)], [output])
    return output


def _for_each_axis(n: int, *lists: Sequence[int]) -> tuple[list[int], ...]:
    """Each list with an entry for each of n axes: one alone counts for all."""
    return tuple([v[0]] * n if len(v) == 1 else list(v) for v in lists)


@_kernel("slow_conv_dilated2d", "slow_conv_dilated3d")
def slow_conv_dilated(
    x: Tensor,
    weight: Tensor,
    kernel_size: Sequence[int],
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
) -> Tensor:
    n = len(kernel_size)
    stride, padding, dilation = _for_each_axis(n, stride, padding, dilation)
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * n, 1)


@_kernel("slow_conv_transpose3d")
def slow_conv_transpose(
    x: Tensor,
    weight: Tensor,
    kernel_size: Sequence[int],
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
) -> Tensor:
    n = len(kernel_size)
    stride, padding, output_padding, dilation = _for_each_axis(n, stride, padding, output_padding, dilation)
    return torch.convolution(x, weight, bias, stride, padding, dilation, True, output_padding, 1)


@_kernel("slow_conv_transpose2d.out", "slow_conv_transpose3d.out")
def slow_conv_transpose_out(
    x: Tensor, weight: Tensor, kernel_size: Sequence[int], *args: Any, out: Tensor, **kwargs: Any
) -> Tensor:
    _give([slow_conv_transpose(x, weight, kernel_size, *args, **kwargs)], [out])
    return out


@_kernel("_compute_linear_combination")
def linear_combination(x: Tensor, coefficients: Tensor) -> Tensor:
    """Row i: the sum over k of coefficients[i, k] · x[k]."""
    return torch.tensordot(coefficients, x, 1)


@_kernel("_compute_linear_combination.out")
def linear_combination_out(x: Tensor, coefficients: Tensor, *, out: Tensor) -> Tensor:
    _give([linear_combination(x, coefficients)], [out])
    return out


_library: Any = None


def register() -> None:
    """Make these the device's kernels. PyTorch's composite forms of the same names, where there are any, give way; names that this
    PyTorch does not have, as 2.14 has no ``cholesky``, are left out."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    for name, f in _KERNELS.items():
        known = torch._C._dispatch_has_kernel(f"aten::{name}")
        if known and not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "PrivateUse1"):
            _library.impl(name, f, "PrivateUse1")
