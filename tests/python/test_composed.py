"""Ops of the device that are made of several calls (torch_tpu/_composed.py), beside CPU PyTorch; none of them runs on the CPU."""

import pytest
import torch
import torch_tpu
from pair import same

DEV = "tpu"


@pytest.fixture(autouse=True)
def no_fallback():
    torch.tpu.reset_fallbacks()
    yield
    assert torch.tpu.fallbacks() == {}


def both(f, *args, **kwargs):
    def run(device):
        def move(v):
            return v.to(device) if isinstance(v, torch.Tensor) else [move(e) for e in v] if isinstance(v, list) else v

        got = f(*map(move, args), **{k: move(v) for k, v in kwargs.items()})
        return [t.cpu() for t in (got if isinstance(got, tuple | list) else [got])]

    for w, g in zip(run("cpu"), run(DEV), strict=True):
        torch.testing.assert_close(g, w)


def test_histogram():
    x, w = torch.randn(50), torch.rand(50)
    both(torch.histogram, x, 7)
    both(torch.histogram, x, 5, range=(-1.0, 1.0), weight=w, density=True)
    both(torch.histogram, torch.full((4,), 2.0), 3)
    both(torch.histogram, torch.tensor([1.0, 2.0, 1.0, 3.0, 0.5]), torch.tensor([0.5, 1.0, 2.0, 3.0]))
    both(torch.histc, x, 6, -1, 1)
    out = torch.empty(7, device=DEV), torch.empty(8, device=DEV)
    torch.histogram(x.to(DEV), 7, out=out)
    torch.testing.assert_close(out[0].cpu(), torch.histogram(x, 7).hist)


def test_histogramdd():
    x = torch.randn(40, 2)
    for kwargs in ({}, {"density": True}, {"range": [-1.0, 1.0, -2.0, 2.0]}, {"weight": torch.rand(40)}):
        moved = {k: v.to(DEV) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        want, got = torch.histogramdd(x, [3, 4], **kwargs), torch.histogramdd(x.to(DEV), [3, 4], **moved)
        torch.testing.assert_close(got.hist.cpu(), want.hist)
        for w, g in zip(want.bin_edges, got.bin_edges, strict=True):
            torch.testing.assert_close(g.cpu(), w)
    edges = [torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([-2.0, 0.5, 1.0])]
    both(lambda x, a, b: torch.histogramdd(x, [a, b]).hist, x, *edges)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segment_reduce(reduce):
    x = torch.tensor([1.0, 5.0, 2.0, 2.0, -3.0, 4.0, 0.0, 0.5])
    lengths, two = torch.tensor([3, 0, 4, 1]), torch.randn(8, 3)
    same(lambda x: torch.segment_reduce(x, reduce, lengths=lengths.to(x.device), initial=1.0), x)
    same(lambda x: torch.segment_reduce(x, reduce, offsets=torch.tensor([0, 3, 7, 8], device=x.device)), x)
    same(lambda x: torch.segment_reduce(x, reduce, lengths=torch.tensor([2, 6], device=x.device), axis=0), two)
    batch = torch.tensor([[1, 2], [3, 0]])
    same(lambda x: torch.segment_reduce(x, reduce, lengths=batch.to(x.device), axis=1, initial=2.0), torch.randn(2, 3, 4))
    with pytest.raises(RuntimeError, match="Expected all rows of lengths"):
        torch.segment_reduce(x.to(DEV), reduce, lengths=torch.tensor([1, 2], device=DEV))


def test_triangles_and_shifts():
    for row, col, offset in ((3, 4, 0), (4, 3, 1), (3, 3, -2), (0, 3, 0)):
        for f in (torch.tril_indices, torch.triu_indices):
            want, got = f(row, col, offset), f(row, col, offset, device=DEV)
            assert torch.equal(got.cpu(), want) and got.dtype == want.dtype
    x = torch.tensor([1, 2, 3], device=DEV)
    y = x
    x <<= 2
    x >>= 1
    assert x.tolist() == [2, 4, 6] and y is x


def test_other_variants():
    x = torch.randn(2, 3, 8, 8)
    both(lambda x: torch.ops.aten.adaptive_avg_pool2d.out(x, [2, 2], out=x.new_empty(0)), x)
    both(lambda x: torch._aminmax(x), x)
    both(lambda x: torch._aminmax(x, 1, True), x)
    both(lambda x: torch._logcumsumexp(x, 1), x)
    both(lambda x: torch.mvlgamma(x.abs() + 3, 2, out=x.new_empty(0)), x)
    both(lambda x, y: torch.linalg.cross(x, y, dim=1, out=x.new_empty(0)), x, torch.randn(2, 3, 8, 8))
    both(lambda x: (lambda m, v: (*torch.batch_norm_update_stats(x, m, v, 0.1), m, v))(x.new_zeros(3), x.new_ones(3)), x)
    both(lambda x: torch.linalg.eigvals(x[0, 0], out=x.new_empty(0, dtype=torch.complex64)).abs().sort()[0], x)


def test_convolutions_by_their_cpu_names():
    x, w, b = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.randn(4)
    both(lambda x, w, b: torch.ops.aten._slow_conv2d_forward(x, w, [3, 3], b, [1, 1], [1, 1]), x, w, b)
    both(lambda x, w, b: torch.ops.aten.slow_conv_dilated2d(x, w, [3, 3], b, [1, 1], [1, 1], [2, 2]), x, w, b)
    t = torch.randn(3, 4, 3, 3)
    both(lambda x, t, b: torch.ops.aten.slow_conv_transpose2d.out(x, t, [3, 3], b, [2, 2], out=x.new_empty(0)), x, t, b)
    both(lambda x, c: torch._compute_linear_combination(x, c), torch.randn(3, 2, 2), torch.randn(4, 3))


def test_every_overload_exists():
    from torch_tpu import _composed

    known = set(torch._C._dispatch_get_all_op_names())
    missing = {n for n in _composed._KERNELS if f"aten::{n}" not in known}
    assert missing <= {"cholesky", "cholesky.out"}  # which PyTorch 2.14 has no more
    assert torch_tpu._C is not None
