"""Reading and writing at indices, masks and results of data-dependent size, beside CPU PyTorch."""

import pytest
import torch
import torch_tpu  # noqa: F401

DEV = "tpu"


def same(f, *args, rtol=0.0, atol=0.0, **kwargs):
    """f gives on tpu what it gives on the CPU; tensors in args (and lists of them) are moved, and compared after f ran."""

    def move(v):
        if isinstance(v, torch.Tensor):
            return v.detach().clone().to(DEV)
        if isinstance(v, list | tuple):
            return type(v)(move(e) for e in v)
        return v

    moved = move(args)
    want, got = f(*args, **kwargs), f(*moved, **kwargs)
    check(want, got, rtol, atol)
    check(args, moved, rtol, atol)


def check(want, got, rtol, atol):
    if isinstance(want, torch.Tensor):
        assert got.device.type == DEV
        torch.testing.assert_close(got.cpu(), want, rtol=rtol, atol=atol, equal_nan=True)
    elif isinstance(want, list | tuple):
        assert len(want) == len(got)
        for w, g in zip(want, got, strict=True):
            check(w, g, rtol, atol)


def r(*size, dtype=torch.float32):
    return torch.randn(*size).to(dtype) if dtype.is_floating_point else torch.randint(-9, 9, size, dtype=dtype)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_cat_and_stack():
    same(torch.cat, [r(2, 3), r(4, 3), torch.empty(0)], 0)
    same(torch.cat, [r(2, 3), r(2, 1).to(torch.bfloat16), r(2, 2, dtype=torch.int64)], -1)
    same(torch.cat, [torch.empty(0), torch.empty(0)], 0)
    same(torch.cat, [r(1, 2) for _ in range(300)], 0)
    same(torch.stack, [r(2, 3), r(2, 3)], -1)
    same(torch.stack, [torch.tensor(1), torch.tensor(2.5)], 0)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather(dim):
    same(torch.gather, r(4, 5, 6), dim, torch.randint(0, 4, (3, 5, 2)))
    same(torch.gather, r(3), 0, torch.tensor([], dtype=torch.int64))
    same(torch.gather, torch.tensor(3.0), 0, torch.tensor([0, 0]))
    same(torch.gather, r(3), 0, torch.tensor(2))
    same(torch.take_along_dim, r(4, 5), torch.randint(0, 4, (1, 5)), 0)


def test_select_take_embedding():
    same(torch.index_select, r(4, 5), 1, torch.tensor([4, 0, 0], dtype=torch.int32))
    same(torch.index_select, r(4, 5), 0, torch.tensor(3))
    same(torch.index_select, torch.tensor(7.0), 0, torch.tensor([0]))
    same(torch.take, r(4, 5), torch.tensor([[0, -1], [19, -20]]))
    same(torch.nn.functional.embedding, torch.tensor([[1, 2], [0, 9]]), r(10, 3))


def test_index():
    x, i, j = r(4, 5, 6), torch.tensor([[0, -1], [2, 1]]), torch.tensor([3, -4])
    same(lambda x, i: x[i], x, i)
    same(lambda x, i: x[:, i], x, i)
    same(lambda x, i: x[..., i], x, i)
    same(lambda x, i, j: x[i, j], x, i, j)
    same(lambda x, i, j: x[i, :, j], x, i, j)
    same(lambda x, i, j: x[:, i, j], x, i, j)
    same(lambda x, i: x[torch.arange(2, device=x.device), i], x, j)
    same(lambda x, i: x[i], x, torch.tensor([], dtype=torch.int64))
    same(lambda x, i: x[i], x, torch.tensor(2))
    same(lambda x, i: x[:, i], r(3, 0, 2), torch.tensor([], dtype=torch.int64))
    same(lambda x, i: x[i], r(3, 4).to(torch.complex64), j.clamp(-2, 2))
    out = x.to(DEV)[i]  # indices on the cpu
    torch.testing.assert_close(out.cpu(), x[i])


def test_index_by_mask():
    x = r(4, 5, 6)
    same(lambda x, m: x[m], x, x > 0)
    same(lambda x, m: x[m], x, torch.tensor([True, False, True, False]))
    same(lambda x, m: x[:, m], x, x[0] > 0)
    same(lambda x, m, i: x[i, :, m], x, torch.tensor([True, False, True, False, False, False]), torch.tensor([1, 2]))
    same(lambda x, m: x[m], x, torch.zeros(4, dtype=torch.bool))
    same(lambda x, m: x[m], torch.tensor(3.0), torch.tensor(True))
    same(torch.masked_select, x, x > 0.5)
    same(torch.masked_select, x, x[0] > 0.5)


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put(accumulate):
    def put(x, where, v):
        return torch.ops.aten.index_put(x, where, v, accumulate), torch.ops.aten.index_put_(x.clone(), where, v, accumulate)

    x, i, j = r(4, 5, 6), torch.tensor([0, -1]), torch.tensor([3, -4])
    same(put, x, [i], r(2, 5, 6), atol=1e-6)
    same(put, x, [i, j], r(6), atol=1e-6)
    same(put, x, [None, i], r(4, 1, 6), atol=1e-6)
    same(put, x, [i, None, j], r(2, 5), atol=1e-6)
    same(put, x, [torch.tensor([1, 1, 1])], r(1, 5, 6), atol=1e-6)
    same(put, x, [i], torch.tensor(2.0), atol=1e-6)
    m = x > 0
    same(put, x, [m], r(int(m.sum())))
    same(put, x, [m], torch.tensor(3.0))
    m = torch.tensor([True, False, True, True])
    same(put, x, [m], r(3, 5, 6))
    same(put, x, [m], r(5, 1))
    same(put, x[:, :4], [None, m], r(4, 3, 6))
    same(put, x, [m, i[0]], r(3, 6))


def test_setitem():
    def f(x, m):
        x[m] = 0
        x[1:3, m] = -1
        x[torch.tensor([0, 0], device=x.device), 2] = 5
        return x

    same(f, r(4, 4), torch.tensor([True, False, False, True]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_scatter(dtype):
    x, i, s = r(4, 5, dtype=dtype), torch.tensor([[0, 1, 2], [2, 0, 1]]), r(3, 4, dtype=dtype)
    tol = {"rtol": 1e-2, "atol": 1e-1} if dtype == torch.bfloat16 else {"rtol": 1e-6, "atol": 1e-6}
    same(lambda x, i, s: x.scatter(0, i, s), x, i, s)
    same(lambda x, i: x.scatter_(1, i, 2), x.clone(), i)
    same(lambda x, i, s: x.scatter(1, i, s, reduce="add"), x, i, s, **tol)
    same(lambda x, i: x.scatter_(1, i, 3, reduce="multiply"), x.clone(), i)
    same(lambda x, i, s: x.scatter_add(0, i, s), x, i, s, **tol)
    same(lambda x, i, s: x.scatter_add(0, i, s), x, i[:, :0], s)
    for how in ["sum", "prod", "mean", "amax", "amin"]:
        for include_self in [True, False]:
            for dim in [0, 1]:
                same(lambda x, i, s: x.scatter_reduce(dim, i, s, how, include_self=include_self), x, i, s, **tol)  # noqa: B023
    same(lambda x, i, s: x.scatter(0, i, s), torch.tensor(1.0), torch.tensor(0), torch.tensor(2.0))


def test_index_add_copy_fill_reduce():
    x, i, s = r(4, 5), torch.tensor([2, 0, 2]), r(3, 5)
    same(lambda x, i, s: x.index_add(0, i, s), x, i, s, atol=1e-6)
    same(lambda x, i, s: x.index_add_(0, i, s, alpha=-0.5), x.clone(), i, s, atol=1e-6)
    same(lambda x, i, s: x.index_add(1, i, s), x, i, r(4, 3), atol=1e-6)
    same(lambda x, i, s: x.index_copy(1, i, s), x, i[:2], r(4, 2))
    same(lambda x, i: x.index_fill(1, i, 7), x, torch.tensor([-1, 0]))
    same(lambda x, i, v: x.index_fill_(0, i, v), x.clone(), i, torch.tensor(2.5))
    same(lambda x, i, s: x.put(i, s), x, torch.tensor([0, -1]), r(2))
    same(lambda x, i, s: x.put_(i, s, accumulate=True), x.clone(), torch.tensor([3, 3]), r(2), atol=1e-6)
    for how in ["prod", "mean", "amax", "amin"]:
        for include_self in [True, False]:
            same(lambda x, i, s: x.index_reduce(0, i, s, how, include_self=include_self), x, i, s, rtol=1e-6, atol=1e-6)  # noqa: B023


@pytest.mark.parametrize("freq", [False, True])
def test_embedding_gradient(freq):
    w, i, g = r(10, 3), torch.tensor([[1, 2, 2], [0, 9, 1]]), r(2, 3, 3)
    for padding in [-1, 2]:
        same(torch.ops.aten.embedding_dense_backward, g, i, 10, padding, freq, atol=1e-6)
    same(torch.ops.aten.embedding_renorm, w, i.flatten().unique(), 1.0, 2.0, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding_idx", [None, 2])
@pytest.mark.parametrize("include_last", [False, True])
def test_embedding_bag(mode, padding_idx, include_last):
    idx, w = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), r(10, 3)
    off = torch.tensor([0, 4, 4, 8]) if include_last else torch.tensor([0, 4, 4])

    def f(w, idx, off):
        w = w.detach().requires_grad_()
        y = torch.nn.functional.embedding_bag(idx, w, off, mode=mode, padding_idx=padding_idx, include_last_offset=include_last)
        (y * torch.arange(1, 1 + y.numel(), device=y.device).view_as(y)).sum().backward()
        return y.detach(), w.grad

    same(f, w, idx, off, rtol=1e-6, atol=1e-6)


def test_embedding_bag_weights():
    idx, w, s = torch.tensor([1, 2, 4, 5, 4, 3]), r(10, 3), r(6)

    def f(w, idx, off, s):
        w, s = w.detach().requires_grad_(), s.detach().requires_grad_()
        torch.nn.functional.embedding_bag(idx, w, off, mode="sum", per_sample_weights=s).square().sum().backward()
        return w.grad, s.grad

    same(f, w, idx, torch.tensor([0, 2]), s, rtol=1e-5, atol=1e-6)


def test_moving():
    x = r(3, 4, 5)
    same(torch.flip, x, [0, -1])
    same(torch.flip, torch.tensor(1.0), [0])
    same(torch.roll, x, 7)
    same(torch.roll, x, (-1, 2), (0, 2))
    same(torch.roll, r(0, 2), 1, 0)
    same(torch.rot90, x, 1, [0, 2])
    same(torch.tile, x, (2, 1))
    same(torch.repeat_interleave, x, 2, 1)


def test_nonzero():
    x = r(4, 5, 6, dtype=torch.int64).clamp(min=0)
    same(torch.nonzero, x)
    same(torch.nonzero, x.float())
    same(torch.nonzero, torch.tensor(3.0))
    same(torch.nonzero, torch.tensor(0.0))
    same(torch.nonzero, torch.zeros(3, 0))
    same(torch.where, x > 3)
    same(torch.nonzero_static, x, size=10)
    same(torch.nonzero_static, x[0], size=100, fill_value=7)
    same(torch.argwhere, x)


def test_out():
    x = r(4, 5)
    same(lambda x, out: torch.nonzero(x, out=out), x, torch.empty(0, dtype=torch.int64))
    same(lambda x, m, out: torch.masked_select(x, m, out=out), x, x > 0, torch.empty(0))


def test_masked_scatter():
    x, m = r(4, 5), r(4, 5) > 0
    same(torch.masked_scatter, x, m, r(4, 5))
    same(lambda x, m, s: x.masked_scatter_(m, s), x.clone(), m[0], r(30))

    def f(x, m, s):
        x, s = x.detach().requires_grad_(), s.detach().requires_grad_()
        (x.masked_scatter(m, s) * 2).square().sum().backward()
        return x.grad, s.grad

    same(f, x, m, r(3, 10))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool, torch.uint8])
def test_unique(dtype):
    x = torch.randint(0, 5, (4, 6)).to(dtype)
    same(torch.unique, x)
    same(torch.unique, x, return_inverse=True, return_counts=True)
    same(torch.unique_consecutive, x, return_inverse=True, return_counts=True)
    same(torch.unique, x[:, :2], dim=0, return_inverse=True, return_counts=True)
    same(torch.unique, x[:2], dim=1)
    same(torch.unique_consecutive, x[:, :1], dim=0, return_inverse=True, return_counts=True)
    same(torch.unique, torch.empty(0, dtype=dtype))


def test_unique_nan():
    same(torch.unique, torch.tensor([1.0, float("nan"), 1.0, float("nan"), -0.0, 0.0]), return_counts=True)


def test_bincount_and_repeats():
    x = torch.tensor([0, 3, 3, 7, 1])
    same(torch.bincount, x)
    same(torch.bincount, x, r(5), atol=1e-6)
    same(torch.bincount, x, minlength=20)
    same(torch.bincount, torch.empty(0, dtype=torch.int64), minlength=3)
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(torch.tensor([-1, 2], device=DEV))
    same(torch.repeat_interleave, r(3, 2), torch.tensor([2, 0, 3]), 0)
    same(torch.repeat_interleave, torch.tensor([1, 2, 3]))
    same(torch.repeat_interleave, r(3, 2), torch.tensor([2, 0, 3]), 0, output_size=5)


def test_gradients():
    def f(x, i):
        x = x.detach().requires_grad_()
        y = x[i].square().sum() + x.gather(1, i[:, None]).sum() + x[x > 0].exp().sum() + x.index_select(0, i).sin().sum()
        y.backward()
        return x.grad

    same(f, r(4, 5), torch.tensor([0, 2, 2, 3]), rtol=1e-5, atol=1e-6)


def test_nothing_is_touched_out_of_range():
    """Wrong indices are told (test_mode.py), and neither read nor write other memory: what was right stays."""
    x, bad = torch.arange(4.0, device=DEV), torch.tensor([9, 1 << 40], device=DEV)
    y = x.clone().index_fill_(0, bad, 5)
    with pytest.raises(IndexError):
        y.cpu()
    assert y.cpu().tolist() == [0, 1, 2, 3]
