"""Reductions, scans, order, softmax, norms and losses at their edges (NaN, ties, empty, 0-d, 16 bits), beside CPU PyTorch."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
import torch_tpu  # noqa: F401
from torch import nn

DEV = "tpu"
NAN, INF = math.nan, math.inf
ODD = torch.tensor(
    [[1.0, NAN, 2.0, INF], [-INF, -INF, -INF, -INF], [3.0, 3.0, -0.0, 0.0], [NAN, 1.0, NAN, -INF], [5.0, 5.0, 5.0, 5.0]]
)
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def tolerance(dtype):
    return {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float64: 1e-9}.get(dtype, 2e-5)


def check(want, got, tol=None):
    if isinstance(want, torch.Tensor):
        tol = tolerance(want.dtype) if tol is None else tol
        assert got.device.type == DEV
        torch.testing.assert_close(got.cpu(), want, rtol=tol, atol=tol, equal_nan=True)
    else:
        for w, g in zip(want, got, strict=True):
            check(w, g, tol)


def same(f, *args, tol=None):
    """f gives on tpu what it gives on the CPU."""
    check(f(*args), f(*[a.to(DEV) if isinstance(a, torch.Tensor) else a for a in args]), tol)


def same_module(module, *inputs, train=True):
    """Output, gradients and buffers of a module agree."""
    host, dev = copy.deepcopy(module).train(train), copy.deepcopy(module).to(DEV).train(train)
    a = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    b = [x.to(DEV).requires_grad_(x.is_floating_point()) for x in inputs]
    want, got = host(*a), dev(*b)
    check(want.detach(), got.detach())
    g = torch.randn_like(want)
    want.backward(g)
    got.backward(g.to(DEV))
    for p, q in zip([*a, *host.parameters()], [*b, *dev.parameters()], strict=True):
        if p.grad is not None:
            check(p.grad, q.grad, 1e-4)
    for p, q in zip(host.buffers(), dev.buffers(), strict=True):
        check(p, q)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "amin", "var", "std", "logsumexp", "nansum", "any", "all", "norm"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_along_axes(name, dtype):
    x = torch.randn(3, 4, 5).to(dtype)
    f = getattr(torch, name)
    if name != "norm":
        same(lambda t: f(t, dim=1), x)
        same(lambda t: f(t, dim=-1, keepdim=True), x)
    if name not in ("prod", "norm", "any", "all"):
        same(lambda t: f(t, dim=(0, 2)), x)
    if name not in ("amax", "amin", "logsumexp"):
        same(f, x)


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "any", "all", "nansum", "logsumexp", "median", "nanmedian"])
def test_odd_values(name):
    same(lambda t: getattr(torch, name)(t, dim=1)[0] if "median" in name else getattr(torch, name)(t, dim=1), ODD)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "aminmax", "cummax", "cummin"])
def test_places_of_nan_and_ties(name):
    same(lambda t: getattr(torch, name)(t, dim=1), ODD)
    same(lambda t: getattr(torch, name)(t, dim=0), torch.randint(0, 3, (9, 4)))


def test_integers_and_bool():
    x, m = torch.randint(-9, 9, (3, 4), dtype=torch.int8), torch.rand(3, 4) > 0.5
    for t in (x, m):
        same(torch.sum, t)
        same(lambda v: v.prod(1), t)
        same(lambda v: v.cumsum(1), t)
        same(torch.amax, t)
        same(lambda v: v.sum(dtype=torch.float32), t)
        same(torch.count_nonzero, t)
    same(lambda v: v.any(0), torch.tensor([[0, 2]], dtype=torch.uint8))


def test_empty_and_zero_dims():
    e, z = torch.empty(0, 3), torch.tensor(2.5)
    for f in (torch.sum, torch.prod, torch.mean, torch.any, torch.all):
        same(f, e)
        same(f, z)
    same(lambda t: t.sum(0), e)
    same(lambda t: t.mean(0), e)
    same(lambda t: t.max(1), e)
    same(lambda t: t.var(0), e)
    same(lambda t: t.logsumexp(0), e)
    same(lambda t: t.median(), torch.empty(0))
    for f in ("max", "sort", "cummax", "cumsum", "softmax", "argmax", "kthvalue", "topk"):
        args = (1, 0) if f in ("kthvalue", "topk") else (0,)
        same(lambda t, f=f, args=args: getattr(t, f)(*args), z)
    with pytest.raises((RuntimeError, IndexError)):
        torch.amax(e.to(DEV))
    with pytest.raises((RuntimeError, IndexError)):
        torch.sum(z.to(DEV), 3)


def test_exact_means_and_variances():
    for n in (3, 41, 47, 1000):
        assert torch.equal(torch.full((2, n), 0.1, device=DEV).amax(1), torch.full((2,), 0.1, device=DEV))
        assert torch.ones(5, n, device=DEV).mean(1).eq(1).all()
    same(torch.var, torch.randn(1000) + 1e4, tol=1e-4)
    same(lambda t: torch.var_mean(t, 1, correction=0), torch.randn(3, 4, dtype=torch.complex64))
    same(lambda t: torch.var(t, correction=5), torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("p", [0, 0.5, 1, 2, 3, INF, -INF])
def test_norms_of_vectors(p):
    same(lambda t: torch.linalg.vector_norm(t, p, dim=1), torch.randn(3, 5))
    same(lambda t: torch.linalg.vector_norm(t, p), torch.randn(3, 5, dtype=torch.complex64))
    same(lambda t: t.renorm(p, 0, 0.5), torch.randn(3, 5)) if p > 0 else None


@pytest.mark.parametrize("shape", [(7,), (3, 64), (5, 130), (2, 1000), (600, 2), (4, 200, 3)])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "logcumsumexp"])
def test_scans(name, shape):
    x = torch.rand(shape) * 2 if name == "cumprod" else torch.randn(shape)
    for dim in {0, len(shape) - 1, len(shape) // 2}:
        same(lambda t, dim=dim: getattr(t, name)(dim), x, tol=1e-4)
    same(lambda t: t.logcumsumexp(1), ODD)
    same(lambda t: t.cumsum(1), ODD)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool])
def test_order(dtype):
    x = (torch.randn(5, 40) * 9).to(dtype)
    for descending in (False, True):
        same(lambda t, d=descending: torch.sort(t, dim=1, descending=d, stable=True), x)
        same(lambda t, d=descending: torch.sort(t, dim=0, descending=d, stable=True), ODD)
    same(lambda t: t.mode(1).values, x)
    if dtype == torch.bool:
        return
    for k in (1, 3, 40):
        for largest in (True, False):
            same(lambda t, k=k, g=largest: torch.topk(t, k, largest=g).values, x)
            v, i = torch.topk(x.to(DEV), k, largest=largest)
            assert torch.equal(x.to(DEV).gather(1, i), v)
            same(lambda t, k=k, g=largest: torch.topk(t, min(k, 4), largest=g).values, ODD)
    same(lambda t: t.kthvalue(7).values, x)
    same(lambda t: t.median(1).values, x)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(name, dtype):
    f = getattr(F, name)
    same(lambda t: f(t, 1), ODD.to(dtype))
    same(lambda t: f(t, 0), torch.tensor(3.0, dtype=dtype))
    x = torch.randn(4, 5, 6).to(dtype)
    for dim in (0, 1, -1):
        a, b = x.clone().requires_grad_(), x.to(DEV).requires_grad_()
        g = torch.randn_like(x)
        f(a, dim).backward(g)
        f(b, dim).backward(g.to(DEV))
        check(a.grad, b.grad)
    same(lambda t: f(t, 1, dtype=torch.float32), torch.randn(3, 4).to(torch.bfloat16))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.LayerNorm(8), (4, 5, 8)),
        (nn.LayerNorm((5, 8), elementwise_affine=False), (4, 5, 8)),
        (nn.RMSNorm(8), (4, 5, 8)),
        (nn.GroupNorm(2, 6), (3, 6, 5)),
        (nn.BatchNorm1d(6), (5, 6)),
        (nn.BatchNorm2d(6, momentum=None), (3, 6, 4, 4)),
        (nn.BatchNorm2d(6, affine=False), (3, 6, 4, 4)),
        (nn.BatchNorm1d(6, track_running_stats=False), (3, 6, 4)),
        (nn.InstanceNorm2d(6, affine=True), (3, 6, 4, 4)),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (5, 4)),
    ],
    ids=str,
)
def test_norm_modules(module, shape, train):
    same_module(module, torch.randn(shape) + 1, train=train)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(reduction):
    x, p, w = torch.randn(4, 5), torch.rand(4, 5), torch.rand(5)
    for loss in (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss):
        same_module(loss(reduction=reduction), x, p.clone())
    same_module(nn.SmoothL1Loss(reduction=reduction, beta=0.3), x, p.clone())
    same_module(nn.BCELoss(reduction=reduction), p, torch.rand(4, 5))
    for extra in ({}, {"weight": w}, {"ignore_index": 2}, {"label_smoothing": 0.1}):
        same_module(nn.CrossEntropyLoss(reduction=reduction, **extra), x, torch.tensor([1, 2, 0, 4]))
    same_module(nn.CrossEntropyLoss(reduction=reduction), torch.randn(2, 5, 3, 3), torch.randint(0, 5, (2, 3, 3)))
    same_module(nn.CrossEntropyLoss(reduction=reduction), torch.randn(5), torch.tensor(3))
    same_module(nn.MultiMarginLoss(p=2, weight=w, reduction=reduction), x, torch.tensor([1, 2, 0, 4]))
    target = torch.tensor([[1, 3, -1, 0, 0], [0, 1, 2, 3, 4], [-1, 0, 1, 2, 3], [2, -1, 4, 4, 4]])
    same_module(nn.MultiLabelMarginLoss(reduction=reduction), x, target)


def test_losses_of_nothing():
    same(lambda x, t: F.nll_loss(x, t), torch.randn(3, 4), torch.full((3,), -100))
    same(lambda x, t: F.nll_loss(x, t), torch.randn(0, 4), torch.empty(0, dtype=torch.int64))
    same(F.mse_loss, torch.empty(0), torch.empty(0))
    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        F.nll_loss(torch.zeros(2, 3, device=DEV), torch.tensor([1, 7], device=DEV)).item()


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, INF])
def test_distances(p):
    for f in (lambda x, y: torch.cdist(x, y, p), lambda x, y: F.pdist(x, p)):
        x, y = torch.randn(7, 3), torch.randn(5, 3)
        a, b = x.clone().requires_grad_(), x.to(DEV).requires_grad_()
        want, got = f(a, y), f(b, y.to(DEV))
        check(want.detach(), got.detach())
        want.square().sum().backward()
        got.square().sum().backward()
        check(a.grad, b.grad, 1e-4)


def test_histc():
    same(lambda t: t.histc(10, -2, 2), torch.randn(1000))
    same(lambda t: t.histc(10, 0, 100), torch.arange(0.0, 101.0))
    same(lambda t: t.histc(7), torch.randn(100))
    same(lambda t: t.histc(4), torch.ones(5))
    same(lambda t: t.histc(2000, -3, 3), torch.randn(50000))
