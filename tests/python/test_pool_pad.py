"""Pooling and padding against the CPU: values, indices, gradients, NaN and -inf."""

import pytest
import torch
import torch.nn.functional as F
from pair import same


def _nan(x):
    x.view(-1)[::7] = float("nan")
    return x


def _low(x):
    x[..., :3, :] = -float("inf")
    return x


MAX = [
    ((2, 3, 9, 11), lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)),
    ((2, 3, 9, 11), lambda x: F.max_pool2d(x, 2, return_indices=True)),
    ((3, 12, 11), lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0), dilation=(2, 1), ceil_mode=True, return_indices=True)),
    ((2, 3, 9, 11), lambda x: F.max_pool2d(x, 5, 1, 2, return_indices=True)),
    ((2, 3, 6, 9, 7), lambda x: F.max_pool3d(x, 3, 2, 1, return_indices=True)),
    ((2, 3, 9, 12), lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True)),
    ((2, 3, 9, 11), lambda x: F.adaptive_max_pool2d(x, (4, 5), return_indices=True)),
    ((3, 5, 9, 11), lambda x: F.adaptive_max_pool3d(x, (2, 4, 5), return_indices=True)),
]


@pytest.mark.parametrize("change", [lambda x: x, _nan, _low])
@pytest.mark.parametrize(("shape", "pool"), MAX)
def test_max(shape, pool, change):
    same(pool, change(torch.randn(shape)))


def test_max_of_other_dtypes():
    same(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), torch.randn(2, 3, 9, 11).bfloat16())
    same(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), torch.randint(-9, 9, (2, 3, 9, 11)))


def test_unpool():
    value, index = F.max_pool2d(torch.randn(2, 3, 8, 8), 2, return_indices=True)
    same(lambda v, i: F.max_unpool2d(v, i, 2), value, index)
    value, index = F.max_pool3d(torch.randn(2, 3, 4, 8, 8), 2, return_indices=True)
    same(lambda v, i: F.max_unpool3d(v, i, 2), value, index)


AVERAGE = [
    ((2, 3, 9, 11), lambda x: F.avg_pool2d(x, 3, 2, 1)),
    ((2, 3, 10, 12), lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)),
    ((3, 10, 12), lambda x: F.avg_pool2d(x, (2, 3), divisor_override=5)),
    ((2, 3, 9, 11), lambda x: F.avg_pool2d(x, 2, ceil_mode=True)),
    ((2, 3, 5, 6, 7), lambda x: F.avg_pool3d(x, 3, 2, 1, True, False)),
    ((2, 3, 9), lambda x: F.avg_pool1d(x, 3, 2, 1)),
    ((2, 3, 9, 11), lambda x: F.adaptive_avg_pool2d(x, 1)),
    ((2, 3, 9, 12), lambda x: F.adaptive_avg_pool2d(x, (3, 4))),
    ((2, 3, 9, 11), lambda x: F.adaptive_avg_pool2d(x, (4, 5))),
    ((2, 3, 3, 9, 11), lambda x: F.adaptive_avg_pool3d(x, (2, 4, 5))),
]


@pytest.mark.parametrize(("shape", "pool"), AVERAGE)
def test_average(shape, pool):
    same(pool, torch.randn(shape))
    same(pool, torch.randn(shape, dtype=torch.float64))


def test_infinity_stays_in_its_window():
    same(lambda x: F.adaptive_avg_pool2d(x, (4, 5)), _low(torch.randn(2, 3, 9, 11)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool])
def test_constant(dtype):
    x = torch.randn(3, 4, 5).to(dtype)
    same(lambda x: F.pad(x, (1, 2, -1, 3), value=1.0), x)
    same(lambda x: F.pad(x, (1, 2)), x[0, 0])


BORDERS = [
    ((2, 3, 5), (2, 3)),
    ((3, 5), (2, 1)),
    ((2, 3, 5, 6), (2, 3, 1, 2)),
    ((3, 5, 6), (0, 0, 1, 2)),
    ((2, 3, 4, 5, 5), (2, 1, 0, 1, 1, 2)),
]


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize(("shape", "amounts"), BORDERS)
def test_borders(mode, shape, amounts):
    same(lambda x: F.pad(x, amounts, mode=mode), torch.randn(shape))
    same(lambda x: F.pad(x, amounts, mode=mode), torch.randn(shape).to(torch.complex64))


def test_replicate_crops():
    same(lambda x: F.pad(x, (-1, 3, 2, -2), mode="replicate"), torch.randn(2, 3, 5, 6))


def test_a_fill_value_does_not_compile():
    x = torch.randn(3, 4, device="tpu")
    F.pad(x, (1, 1), value=0.5)
    torch.tpu.synchronize()
    for k in range(5):
        assert F.pad(x, (1, 1), value=float(k)).cpu()[0, 0].item() == k
