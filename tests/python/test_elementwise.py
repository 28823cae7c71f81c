"""Elementwise functions at the values where they go wrong, beside CPU PyTorch: zeros, infinities, NaN, extreme integers."""

import pytest
import torch
import torch_tpu  # noqa: F401

DEV = "tpu"
INF, NAN = float("inf"), float("nan")
# Functions that CPU PyTorch itself has to less than f32's precision, or not at all at infinity, are left out of these lists.
FLOATS = [
    0.0,
    -0.0,
    1,
    -1,
    0.5,
    -0.5,
    2,
    -2,
    3,
    1.5,
    2.5,
    -2.5,
    0.1,
    -0.1,
    6,
    -6,
    10,
    100,
    1000,
    -7.3,
    1e-30,
    -1e-30,
    20.5,
    88,
    -103,
]
EXTREMES = [INF, -INF, NAN, 1e10, -1e10]
INTS = [0, 1, -1, 2, -2, 3, 7, -7, 100, -100, 127, -128, 2147483647, -2147483648, 63, 31]


def names(text):
    return text.split()


UNARY = names(
    """
    abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor frac isfinite
    isinf isnan isneginf isposinf lgamma log log10 log1p log2 logical_not nan_to_num neg rad2deg reciprocal relu round rsqrt sgn
    sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc i0
    """
)
SPECIAL = names(
    """
    entr erfcx i0e i1 i1e log_ndtr ndtri modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 spherical_bessel_j0
    """
)
ACTIVATION = names(
    """
    celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu softplus softshrink
    tanhshrink
    """
)
BINARY = names(
    """
    add atan2 copysign div eq floor_divide fmax fmin fmod ge gt heaviside hypot le logaddexp logaddexp2 logical_and lt maximum
    minimum mul ne nextafter pow remainder sub xlogy
    """
)
INTEGER = names(
    """
    add bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift eq floor_divide fmod gcd lcm maximum mul pow
    remainder sub
    """
)
TOL = {torch.float32: (2e-5, 2e-6), torch.float64: (1e-9, 1e-10), torch.bfloat16: (2e-2, 1e-5)}


def same(f, *args):
    want, got = f(*args), f(*(a.to(DEV) if isinstance(a, torch.Tensor) else a for a in args))
    assert got.device.type == DEV and got.dtype == want.dtype
    rtol, atol = TOL.get(want.dtype, (0, 0))
    torch.testing.assert_close(got.cpu(), want, rtol=rtol, atol=atol, equal_nan=True)


def pairs(values, dtype):
    x = torch.tensor(values).to(dtype)
    return x.repeat_interleave(len(values)), x.repeat(len(values))


@pytest.mark.parametrize("name", UNARY + [f"special.{n}" for n in SPECIAL])
def test_unary(name):
    f = getattr(torch.special, name[8:]) if name.startswith("special.") else getattr(torch, name)
    extremes = [v for v in EXTREMES if abs(v) != 1e10 or name not in ("sin", "cos", "tan", "sinc")]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        if name == "special.scaled_modified_bessel_k0" and dtype == torch.bfloat16:
            continue
        try:
            f(torch.ones(1, dtype=dtype))
        except RuntimeError:
            continue
        same(f, torch.tensor(FLOATS + extremes, dtype=torch.float64).to(dtype))
    for dtype in (torch.int64, torch.uint8, torch.bool):
        x = torch.tensor(INTS).to(dtype)
        try:
            f(x)
        except (RuntimeError, TypeError):
            continue
        same(f, x)


@pytest.mark.parametrize("name", ACTIVATION)
def test_activation(name):
    f = getattr(torch.nn.functional, name)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.tensor([*FLOATS, NAN], dtype=torch.float64).to(dtype)
        same(f, x)
        grad = torch.linspace(-1, 1, x.numel()).to(dtype)

        def backward(x, grad):
            x = x.detach().requires_grad_()
            f(x).backward(grad)
            return x.grad

        same(backward, x, grad)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    f = getattr(torch, name)
    values = FLOATS + [v for v in EXTREMES if abs(v) != 1e10]
    for dtype in (torch.float32, torch.bfloat16):
        x, y = pairs(values, dtype)
        if name == "pow":  # the exact powers only: rounding of large ones is a matter of the last bits
            keep = (x.abs() < 30) & (y.abs() < 30) | ~x.isfinite() | ~y.isfinite()
            x, y = x[keep], y[keep]
        same(f, x, y)


@pytest.mark.parametrize("name", INTEGER)
def test_integers(name):
    f = getattr(torch, name)
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
        x, y = pairs(INTS, dtype)
        if name in ("floor_divide", "fmod", "remainder"):
            keep = (y != 0) & ~((y == -1) & (x == torch.iinfo(dtype).min))
            x, y = x[keep], y[keep]
        if name == "lcm":  # CPU PyTorch itself dies of |min|, and computes narrow types in int
            keep = (x != torch.iinfo(dtype).min) & (y != torch.iinfo(dtype).min)
            if dtype in (torch.int8, torch.uint8):
                keep &= (x.int() * y.int()).abs() <= torch.iinfo(dtype).max
            x, y = x[keep], y[keep]
        same(f, x, y)


def test_division_by_zero_is_no_crash():
    x = torch.tensor(INTS, device=DEV)
    for f in (torch.floor_divide, torch.remainder, torch.fmod):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            f(x, torch.zeros_like(x)).cpu()
    assert torch.div(x, -1, rounding_mode="trunc").cpu().tolist() == [-v for v in INTS]


@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
def test_rounding_modes(mode):
    for dtype in (torch.float32, torch.bfloat16):
        x, y = pairs([v for v in FLOATS if abs(v) > 1e-3 or v == 0] + [INF, -INF, NAN], dtype)
        same(lambda a, b: torch.div(a, b, rounding_mode=mode), x, y)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 4, 5, -3, 7, 64])
def test_power_of_a_number(exponent):
    same(lambda x: x**exponent, torch.tensor([v for v in FLOATS + EXTREMES if abs(v) < 90 or v != v or abs(v) == INF]))
    if exponent == int(exponent) >= 0:
        same(lambda x: x ** int(exponent), torch.tensor(INTS))
    same(lambda x: 2.0**x, torch.tensor(FLOATS))


def test_numbers_share_a_program():
    """alpha, bounds and the like are runtime values: another number compiles nothing."""
    x = torch.randn(8, device=DEV)
    for k in (0.3, 0.7):
        torch.add(x, x, alpha=k)
        x.clamp(-k, k)
        torch.nn.functional.leaky_relu(x, k)
        x.masked_fill(x > 0, k)
    same(lambda v: torch.add(v, v, alpha=0.25), x.cpu())
    same(lambda v: v.clamp(-0.1, 0.2), x.cpu())


def test_promotion():
    i, f, h, b = (
        torch.tensor([1, 2, 3]),
        torch.tensor([0.5, 1.5, 2.5]),
        torch.tensor([0.1, 0.2, 0.3]).bfloat16(),
        torch.tensor([True, False, True]),
    )
    for x in (i, f, h, b):
        for y in (i, f, h, b, 2, 2.5, True):
            for g in (torch.add, torch.mul, torch.true_divide, torch.eq, torch.lt):
                same(g, x, y)
    same(torch.eq, h, 0.1)
    assert (h.to(DEV) == 0.1)[0].item()


def test_ranges_and_triangles():
    def check(f):
        torch.testing.assert_close(f(DEV).cpu(), f("cpu"), rtol=2e-6, atol=1e-7)

    for args in ((5,), (2, 9, 3), (10, 3, -2), (0.0, 1.0, 0.1), (-1, 1, 0.3)):
        check(lambda d, a=args: torch.arange(*a, device=d))
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        check(lambda d, t=dtype: torch.linspace(-3, 11, 8, device=d, dtype=t))
        check(lambda d, t=dtype: torch.linspace(2, 3, 1, device=d, dtype=t))
        check(lambda d, t=dtype: torch.eye(3, 5, device=d, dtype=t))
    check(lambda d: torch.logspace(0, 3, 4, device=d))
    x = torch.randn(2, 4, 5)
    for k in (-9, -2, 0, 1, 9):
        check(lambda d, k=k: x.to(d).tril(k))
        check(lambda d, k=k: x.to(d).triu(k))
        for rows, cols in ((3, 3), (4, 7), (7, 4), (1, 5), (0, 3)):
            check(lambda d, r=rows, c=cols, k=k: torch.tril_indices(r, c, k, device=d))
            check(lambda d, r=rows, c=cols, k=k: torch.triu_indices(r, c, k, device=d))


def test_search():
    seq = torch.tensor([-1.0, 0, 0, 1, 2.5, 2.5, 9])
    v = torch.tensor([[-2.0, 0, 0.5], [2.5, 9, 10]])
    for right in (False, True):
        same(lambda s, x, r=right: torch.searchsorted(s, x, right=r), seq, v)
        same(lambda x, s, r=right: torch.bucketize(x, s, right=r, out_int32=True), v, seq)
    rows, order = torch.randn(3, 6).sort().values, torch.randn(3, 6)
    same(torch.searchsorted, rows, torch.randn(3, 4))
    same(lambda s, x, o: torch.searchsorted(s, x, sorter=o), order, torch.randn(3, 4), order.argsort())
    for n in (0, 5, 100):
        same(torch.isin, torch.arange(-9, 9), torch.arange(n) * 2)
        same(torch.isin, torch.tensor([0.0, INF, NAN, 3]), torch.cat([torch.arange(float(n)), torch.tensor([NAN, INF])]))
