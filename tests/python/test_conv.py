"""Convolutions in every form the rule chooses between, and matrix products, against the CPU."""

import pytest
import torch
import torch.nn.functional as F
from pair import same

PLAIN = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

# input size, kernel, keyword arguments
SHAPES = [
    ((9, 10), (3, 3), {"padding": 1}),
    ((19, 20), (3, 5), {"stride": 2, "padding": (1, 2)}),
    ((19, 20), (3, 3), {"padding": 2, "dilation": 2}),
    ((8, 8), (1, 1), {}),
    ((18, 18), (1, 1), {"stride": 2}),
    ((11, 10), (4, 4), {"stride": 4}),
    ((2, 2), (3, 3), {"padding": 1}),
    ((2, 2), (3, 3), {"stride": 2, "padding": 1}),
    ((30,), (5,), {"stride": 2, "padding": 2}),
    ((5, 6, 7), (3, 3, 3), {"padding": 1}),
    ((5, 6, 7), (2, 2, 2), {"stride": 2}),
]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("size", "kernel", "options"), SHAPES)
def test_shapes(size, kernel, options, transposed, groups):
    c, o = 4, 6
    w = (c, o // groups) if transposed else (o, c // groups)
    conv = (TRANSPOSED if transposed else PLAIN)[len(size)]
    same(
        lambda x, w, b: conv(x, w, b, groups=groups, **options), torch.randn(2, c, *size), torch.randn(*w, *kernel), torch.randn(o)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    same(lambda x, w: F.conv2d(x, w, padding=1), torch.randn(2, 16, 12, 12).to(dtype), torch.randn(6, 16, 3, 3).to(dtype))


@pytest.mark.parametrize("options", [{"padding": 1}, {"stride": 2, "padding": 2, "dilation": 2}])
@pytest.mark.parametrize("outputs", [6, 12])
def test_depthwise(outputs, options):
    same(lambda x, w: F.conv2d(x, w, groups=6, **options), torch.randn(2, 6, 12, 12), torch.randn(outputs, 1, 3, 3))


def test_few_channels_and_a_large_kernel():
    same(lambda x, w: F.conv2d(x, w, stride=2, padding=3), torch.randn(2, 3, 64, 64), torch.randn(8, 3, 7, 7))
    same(lambda x, w: F.conv1d(x, w, stride=4), torch.randn(2, 3, 700), torch.randn(8, 3, 200))


def test_output_padding():
    same(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        torch.randn(2, 4, 6, 6),
        torch.randn(4, 5, 3, 3),
    )


def test_integers_and_complex():
    same(F.conv2d, torch.randint(-4, 4, (2, 3, 8, 8)), torch.randint(-4, 4, (4, 3, 3, 3)))
    same(F.conv2d, torch.randn(2, 3, 8, 8, dtype=torch.complex64), torch.randn(4, 3, 3, 3, dtype=torch.complex64))


def test_empty_batch():
    same(F.conv2d, torch.randn(0, 3, 8, 8), torch.randn(4, 3, 3, 3))


def test_channels_last_stays():
    x = torch.randn(2, 4, 10, 10).contiguous(memory_format=torch.channels_last)
    w = torch.randn(6, 4, 3, 3)
    same(F.conv2d, x, w)
    assert F.conv2d(x.to("tpu"), w.to("tpu")).stride() == F.conv2d(x, w).stride()


def test_errors_are_pytorchs():
    x, w = torch.randn(1, 3, 8, 8), torch.randn(6, 4, 3, 3)
    with pytest.raises(RuntimeError) as want:
        F.conv2d(x, w)
    with pytest.raises(RuntimeError) as got:
        F.conv2d(x.to("tpu"), w.to("tpu"))
    assert str(got.value) == str(want.value)


def test_products():
    m = torch.randn
    same(torch.mm, m(5, 7), m(7, 4))
    same(torch.mm, m(5, 7), m(4, 7).t())
    same(torch.bmm, m(3, 4, 5), m(3, 5, 6))
    same(torch.mv, m(5, 7), m(7))
    same(torch.dot, m(7), m(7))
    same(torch.vdot, m(7, dtype=torch.complex64), m(7, dtype=torch.complex64))
    same(F.linear, m(2, 5, 7), m(4, 7), m(4))
    same(torch.mm, torch.randint(-9, 9, (4, 8)), torch.randint(-9, 9, (8, 8)))
    same(torch._int_mm, torch.randint(-9, 9, (4, 8), dtype=torch.int8), torch.randint(-9, 9, (8, 8), dtype=torch.int8))


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, 2.0), (0, 1)])
def test_sums_of_products(beta, alpha):
    m, k = torch.randn, {"beta": beta, "alpha": alpha}
    same(lambda s, x, y: torch.addmm(s, x, y, **k), m(4), m(5, 7), m(7, 4))
    same(lambda s, x, y: torch.baddbmm(s, x, y, **k), m(3, 4, 6), m(3, 4, 5), m(3, 5, 6))
    same(lambda s, x, y: torch.addbmm(s, x, y, **k), m(4, 6), m(3, 4, 5), m(3, 5, 6))
    same(lambda s, x, y: torch.addmv(s, x, y, **k), m(5), m(5, 7), m(7))
    same(lambda s, x, y: torch.addr(s, x, y, **k), m(4, 5), m(4), m(5))


def test_beta_zero_ignores_nan():
    nan = torch.full((4,), float("nan"), device="tpu")
    assert torch.isfinite(torch.addmm(nan, torch.randn(5, 7, device="tpu"), torch.randn(7, 4, device="tpu"), beta=0)).all().item()


def test_scaled_and_grouped():
    f8 = torch.float8_e4m3fn
    x, y = torch.randn(16, 32).to(f8), torch.randn(16, 32).to(f8).t()

    def scaled(device, a, b):
        out = torch._scaled_mm(x.to(device), y.to(device), a.to(device), b.to(device), out_dtype=torch.float32)
        return out.cpu()

    for a, b in ((torch.tensor(2.0), torch.tensor(0.5)), (torch.rand(16, 1), torch.rand(1, 16))):
        torch.testing.assert_close(scaled("tpu", a, b), scaled("cpu", a, b), rtol=1e-4, atol=1e-4)
    ends = torch.tensor([3, 7, 16], dtype=torch.int32)
    x, w = torch.randn(16, 32).bfloat16(), torch.randn(3, 32, 16).bfloat16()
    got = torch._grouped_mm(x.to("tpu"), w.to("tpu"), ends.to("tpu")).cpu()
    want = torch.cat([(x[a:b].float() @ w[k].float()) for k, (a, b) in enumerate(((0, 3), (3, 7), (7, 16)))])
    torch.testing.assert_close(got.float(), want, rtol=2e-2, atol=2e-2)
