"""Numbers at their edges: NaN and infinities, ties, exact integers, type promotion, conversions, rounding, beside CPU PyTorch.

What differs from it on purpose is said by a test of its own: places of equal elements that PyTorch leaves open (topk, kthvalue),
denormals, which devices flush, and types that the CPU refuses but the device does not.
"""

import hashlib
import itertools

import pytest
import torch
import torch_tpu

DEV = "tpu"
NAN, INF = float("nan"), float("inf")
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
WIDE = (torch.uint16, torch.uint32, torch.uint64)
F = torch.nn.functional


def pick(n: int, *what) -> bool:
    """True for one in n, the same ones in every process."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:4], "big") % n == 0


def leaves(x):
    if isinstance(x, tuple | list):
        for e in x:
            yield from leaves(e)
    else:
        yield x


def attempt(f, device, args):
    try:
        got = f(*(a.to(device) if isinstance(a, torch.Tensor) else a for a in args))
        return [r.detach().cpu() if isinstance(r, torch.Tensor) else r for r in leaves(got)]
    except (RuntimeError, NotImplementedError) as e:
        return str(e).splitlines()[0]


def same(f, *args, tol=0.0, what="", zeros=False):
    """Results, types and error messages of f are the CPU's; exactly, unless tol is given. zeros: their signs too."""
    want, got = (attempt(f, d, args) for d in ("cpu", DEV))
    if isinstance(want, str) or isinstance(got, str):
        assert isinstance(want, str) and isinstance(got, str) and want in got, f"{what}: cpu {want}, tpu {got}"
        return
    for w, g in zip(want, got, strict=True):
        if not isinstance(w, torch.Tensor):
            assert w == g, what
            continue
        assert w.dtype == g.dtype, f"{what}: {w.dtype} on the cpu, {g.dtype} on the tpu"
        torch.testing.assert_close(g, w, rtol=tol, atol=tol, equal_nan=True, msg=lambda m: f"{what}: {m}")
        if zeros and w.is_floating_point():
            assert torch.equal(torch.signbit(w) & (w == 0), torch.signbit(g) & (g == 0)), f"{what}: signs of zeros"


# --------------------------------------------------------------------------------------------------------- NaN and ties

EDGES = [
    [1.0, NAN, 3.0, 3.0, -INF, INF, 0.0, -0.0, NAN, 2.0],
    [1.0, 2.0, 3.0, 3.0, -INF, 2.0, 0.0, -0.0, 1.0, 2.0],
    [NAN] * 10,
    [0.0, -0.0, 0.0, -0.0, 1.0, 1.0, 1.0, 0.0, -0.0, 0.0],
    [2.0] * 10,
    [INF] * 5 + [-INF] * 5,
]

ORDER = {
    "max": lambda x: (x.max(), x.max(1), x.max(0)),
    "min": lambda x: (x.min(), x.min(1), x.min(0)),
    "amax": lambda x: (x.amax(1), x.amin(1)),
    "aminmax": lambda x: (x.aminmax(), x.aminmax(dim=1)),
    "argmax": lambda x: (x.argmax(), x.argmax(1), x.argmin(), x.argmin(1)),
    "sort": lambda x: (
        torch.sort(x, dim=1, stable=True),
        torch.sort(x, dim=1, descending=True, stable=True),
        torch.sort(x, dim=0, stable=True),
    ),
    "topk": lambda x: (x.topk(4)[0], x.topk(4, largest=False)[0]),
    "median": lambda x: (x.median(), x.median(1)),
    "mode": lambda x: x.mode(1),
    "kthvalue": lambda x: (x.kthvalue(3, 1)[0], x.kthvalue(8, 1)[0]),
    "cummax": lambda x: (x.cummax(1), x.cummin(1)),
    "unique": lambda x: [row.unique(return_inverse=True, return_counts=True) for row in x[[0, 1, 3, 4]]],
    "consecutive": lambda x: x[3].unique_consecutive(return_inverse=True, return_counts=True),
    "maximum": lambda x: (torch.maximum(x, x.flip(1)), torch.minimum(x, x.flip(1))),
    "compare": lambda x: (x == x.flip(1), x < x.flip(1), x != x.flip(1), x >= 0),
}
FLOAT_ORDER = {
    "nanmedian": lambda x: (x.nanmedian(), x.nanmedian(1)[0]),
    "fmax": lambda x: (torch.fmax(x, x.flip(1)), torch.fmin(x, x.flip(1))),
    "clamp": lambda x: (x.clamp(-1, 2), x.clamp(NAN, 2), x.clamp(x[1], x[4]), x.clamp_min(NAN), x.clamp(3, 1)),
    "nansum": lambda x: (x.nansum(1), x.nan_to_num(), x.isnan(), x.isposinf(), x.isneginf(), x.signbit(), x.sign()),
    "count": lambda x: (x.count_nonzero(1), x.any(1), x.all(1), x.bool(), x.logical_not(), x.nonzero()),
    "relu": lambda x: (x.relu(), F.relu6(x), F.hardtanh(x), F.threshold(x, 1, 5), F.leaky_relu(x)),
    "pool": lambda x: F.max_pool1d(x, 3, return_indices=True),
    "amax by index": lambda x: (
        torch.zeros(6, 4, dtype=x.dtype, device=x.device).index_reduce(1, torch.arange(10, device=x.device) % 4, x, "amin"),
        torch.zeros(6, 4, dtype=x.dtype, device=x.device).scatter_reduce(
            1, (torch.arange(60, device=x.device) % 4).view(6, 10), x, "amax"
        ),
    ),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ORDER | FLOAT_ORDER)
def test_order_of_floats(name, dtype):
    if dtype not in (torch.float32, torch.float64) and pick(2, name, dtype):
        pytest.skip("sampled")
    same((ORDER | FLOAT_ORDER)[name], torch.tensor(EDGES, dtype=dtype), what=f"{name} {dtype}")


def test_quantile_of_nan():
    for f in (torch.Tensor.quantile, torch.Tensor.nanquantile):
        same(lambda x, f=f: f(x, torch.tensor([0.2, 0.5], device=x.device), 1), torch.tensor(EDGES)[:5], tol=1e-6)


@pytest.mark.parametrize("dtype", INTS)
def test_order_of_integers(dtype):
    x = torch.tensor([[3, 1, 3, 1, 2, 2, 3, 0], [0, 0, 1, 1, 0, 0, 1, 1], [5] * 8]).to(dtype)
    for name, f in ORDER.items():
        if name in ("max", "argmax", "sort", "median", "mode") or pick(2, name, dtype):
            same((lambda x: x.unique(dim=0, return_inverse=True, return_counts=True)) if name == "unique" else
                 (lambda x: x[0].unique_consecutive()) if name == "consecutive" else f, x, what=f"{name} {dtype}")  # fmt: skip


def test_places_of_equal_elements():
    """Which of several equal elements topk and kthvalue name is open; that it is one of them is not."""
    x = torch.tensor(EDGES[3:], dtype=torch.float32)
    for values, places in (x.to(DEV).topk(4), x.to(DEV).kthvalue(3, 1, keepdim=True), x.to(DEV).nanmedian(1, keepdim=True)):
        torch.testing.assert_close(x.gather(1, places.cpu()), values.cpu())


# -------------------------------------------------------------------------------------------------------------- integers

BIG = [2**53 + 1, -(2**53) - 3, 2**62, -(2**62), 2**63 - 1, -(2**63), 7, -7, 0, 1, -1, 3]


def test_int64_is_exact():
    x = torch.tensor(BIG)
    same(lambda x: (x.sum(), x.cumsum(0), x.prod(), x.cumprod(0), x * x, x + x, x - x.flip(0), x * 3, -x, x.abs(), x.square()), x)
    same(lambda x: (x.max(), x.min(), x.sort()[0], x.unique(), x > 2**53, x == 2**53 + 1, x.clamp(-(2**60), 2**60)), x)
    same(lambda x: (x + 2**62, x * (2**53 + 1), x // (2**53 + 1), x % (2**53 + 1), torch.where(x > 0, x, -(2**53) - 1)), x)
    same(lambda x: (x.masked_fill(x > 0, 2**53 + 1), torch.full_like(x, 2**62 + 1), x.double(), x.float(), x.sign()), x)
    same(lambda x: torch.arange(2**53, 2**53 + 4, device=x.device), x)


def test_integer_products():
    x = torch.tensor(BIG)
    same(lambda x: (x.view(3, 4) @ x.view(4, 3), x @ x, torch.bmm(x.view(1, 3, 4), x.view(1, 4, 3)), torch.outer(x, x)), x)
    same(lambda x: torch.addmm(torch.ones(3, 3, dtype=x.dtype, device=x.device), x.view(3, 4), x.view(4, 3), alpha=3), x)
    same(lambda x: torch.mm(x.view(3, 4).int(), x.view(4, 3).int()), x)


def edges_of(dtype):
    info = torch.iinfo(dtype)
    return [info.min, info.max, 7, 5, 0, 1, info.max - 1, 3] + ([-7, -5, -1, -3] if info.min < 0 else [])


DIVISIONS = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "fmod": torch.fmod,
    "/": lambda a, b: a / b,
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "*+-": lambda a, b: (a * b, a + b, a - b),
}


@pytest.mark.parametrize("dtype", INTS)
def test_integer_division(dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor(edges_of(dtype)).to(dtype)
    for v in (3, -3, 1, -1, 7, info.max, info.min + 1):
        if info.min <= v <= info.max and v != 0 and (v in (3, -3) or pick(3, dtype, v)):
            a = x[1:] if v == -1 else x  # the CPU traps on min / -1
            for name, f in DIVISIONS.items():
                same(f, a, torch.full_like(a, v), what=f"{name} {dtype} {v}")
                same(f, a, v, what=f"{name} {dtype} number {v}")


@pytest.mark.parametrize("dtype", INTS)
def test_lowest_integer_divided_by_minus_one(dtype):
    """Undefined on the CPU; it wraps here, and aborts nothing."""
    if not dtype.is_signed:
        pytest.skip("has no -1")
    low = torch.tensor([torch.iinfo(dtype).min], dtype=dtype, device=DEV)
    assert (low // -1).item() == low.item()
    assert (low % -1).item() == 0


@pytest.mark.parametrize("dtype", INTS)
def test_integer_divided_by_the_number_zero(dtype):
    x = torch.tensor(edges_of(dtype)).to(dtype)
    for f in (lambda a: a // 0, lambda a: a % 0, lambda a: torch.fmod(a, 0), lambda a: torch.div(a, 0, rounding_mode="trunc")):
        same(f, x)
    same(lambda a: a / 0, x)
    same(lambda a: a // 3, x)  # the same op goes on


def test_integer_divided_by_a_zero_in_a_tensor():
    """Found on the device, and told at the next read."""
    x = torch.tensor([5, 0, 7], device=DEV)
    for f in (lambda a, b: a // b, lambda a, b: a % b):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            f(x, torch.zeros_like(x)).cpu()
            torch.tpu.synchronize()
    assert (x // 2).tolist() == [2, 0, 3]


@pytest.mark.parametrize("dtype", INTS)
def test_integer_powers(dtype):
    x = torch.tensor(edges_of(dtype)).to(dtype)
    for e in (0, 1, 2, 3, 5, 65):
        same(lambda a, e=e: (a**e, torch.pow(a, torch.full_like(a, e))), x, what=f"{dtype} {e}")
    same(lambda a: a**-1, x)
    same(lambda a: torch.pow(2, a[[2, 3, 5, 7]]), x)
    if dtype.is_signed:
        same(lambda a: torch.pow(a, torch.full_like(a, -1)), x[x != 0])


@pytest.mark.parametrize("dtype", INTS)
def test_shifts(dtype):
    x = torch.tensor(edges_of(dtype)).to(dtype)
    width = 8 * dtype.itemsize
    for s in (0, 1, width - 1, width, width + 5, *((-1, -3) if dtype.is_signed else ())):
        same(lambda a, s=s: (a << s, a >> s, torch.bitwise_left_shift(a, torch.full_like(a, s))), x, what=f"{dtype} {s}")
    same(lambda a: (~a, a & 5, a | 5, a ^ 5), x)


@pytest.mark.parametrize("dtype", WIDE)
def test_wide_unsigned(dtype):
    """What the CPU does with them is done alike; what it refuses, arithmetic for one, works."""
    top = torch.iinfo(dtype).max
    x, y = torch.tensor([0, 1, 5, 2**15, 65535]).to(dtype), torch.tensor([1, 2, 3, 4, 65535]).to(dtype)
    same(lambda x, y: (x * y, x == y, x.float(), x.long(), x.sum(), torch.cat([x, y]), x & y, x[1:3], x == 5), x, y)
    same(lambda x, y: (torch.full_like(x, 3), x[[0, 2]], torch.stack([x, y]), x / y, x * 1.5, x.sort()), x, y)
    assert (x.to(DEV) + y.to(DEV)).cpu().long().tolist() == [
        (a + b) % (top + 1) for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]
    assert torch.tensor([top], dtype=dtype).to(DEV).item() == top


# ------------------------------------------------------------------------------------------------------------- promotion

TYPES = (torch.bool, *INTS, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
PAIRED = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "sub": torch.sub,
    "pow": torch.pow,
    "where": lambda a, b: torch.where(a != 0, a, b),
    "cat": lambda a, b: torch.cat([a.reshape(-1), b.reshape(-1)]),
    "eq": lambda a, b: a == b,
}


def operand(kind: str, values: list[int], dtype: torch.dtype):
    t = torch.tensor(values if kind == "n-d" else values[1]).to(dtype)
    return t.item() if kind == "number" else t


@pytest.mark.parametrize("kinds", [("n-d", "n-d"), ("n-d", "0-d"), ("0-d", "n-d"), ("n-d", "number"), ("number", "n-d")])
@pytest.mark.parametrize("name", PAIRED)
def test_promotion(name, kinds):
    """Every pair of types for add, and for the other ops one in six."""
    if "number" in kinds and (name in ("where", "cat") or (name == "sub" and kinds[0] == "number")):
        pytest.skip("no numbers there")
    for a, b in itertools.product(TYPES, TYPES):
        if not (name == "add" and kinds == ("n-d", "n-d")) and not pick(6, name, kinds, a, b):
            continue
        half = {a, b} & {torch.float16}
        if half and (a.is_complex or b.is_complex):
            continue  # complex32: refused by name, below
        rough = {a, b} & {torch.float16, torch.bfloat16}
        x, y = operand(kinds[0], [1, 2, 3], a), operand(kinds[1], [1, 2, 2], b)
        same(PAIRED[name], x, y, tol=2e-2 if rough else 1e-6, what=f"{name} {a} {b} {kinds}")


def test_types_without_a_promotion():
    x = torch.ones(2, dtype=torch.uint16, device=DEV)
    with pytest.raises(RuntimeError, match="Promotion for uint16, uint32, uint64 types is not supported"):
        x + torch.ones(2, dtype=torch.int64, device=DEV)
    with pytest.raises(RuntimeError, match="no tensors of dtype ComplexHalf"):
        torch.ones(2, dtype=torch.float16, device=DEV) + torch.ones((), dtype=torch.complex64, device=DEV)


# ----------------------------------------------------------------------------------------------------------- conversions

GRID = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.5, 127.0, 128.0, 255.0, 256.0, -128.0, -129.0, 65504.0, 70000.0, 1e10, -1e10, 3.7, -3.7]
BEYOND = [1e20, -1e20, INF, -INF, NAN, 2147483648.0]


def test_float_to_integer():
    x = torch.tensor(GRID)
    for dtype in (*INTS, *WIDE, torch.bool):
        low, high = (0.0, 1e9) if dtype == torch.bool else (float(torch.iinfo(dtype).min), float(torch.iinfo(dtype).max))
        same(lambda x, d=dtype: x.to(d), x[(x > low - 1) & (x.double() < high + 0.5) & (x.abs() < 2**53)], what=str(dtype))
        # Out of range: some number, as in C, and no more than that.
        assert torch.tensor(BEYOND, device=DEV).to(dtype).cpu().shape == (len(BEYOND),)
    same(lambda x: x.bool(), torch.tensor(BEYOND))


def test_integer_to_any():
    values = [0, 1, 2, 127, 128, 200, 255, 256, -1, -2, -128, -129, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**53 + 1, 2**63 - 1]
    for a, b in itertools.product((*INTS, *WIDE, torch.bool), (*INTS, *WIDE, torch.bool, *FLOATS)):
        if a == torch.int64 or pick(3, a, b):
            same(lambda v, b=b: v.to(b), torch.tensor(values).to(a), what=f"{a} to {b}")


def test_float_to_float():
    x = torch.tensor(GRID + BEYOND + [1e-7, 65519.0, 65520.0, 3.4e38, 1 + 2**-8, 1 + 2**-9, 1 + 3 * 2**-9, 1 + 2**-11, 1 + 2**-12])
    for a, b in itertools.product(FLOATS, FLOATS):
        same(lambda v, b=b: v.to(b), x.to(a), what=f"{a} to {b}", zeros=True)


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8(dtype):
    """Every value, and a grid of float32's: rounding to even, what overflows (float8_e4m3fn saturates), signs of zeros."""
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    for wide in FLOATS:
        same(lambda v, w=wide: v.to(w), every, what=f"{dtype} to {wide}", zeros=True)
    ties = every.float()[every.float().isfinite()].sort()[0]
    halfway = (ties[1:] + ties[:-1]) / 2
    x = torch.cat(
        [
            torch.tensor([0.0, -0.0, NAN, INF, -INF, 1e-10, 1e10, -1e10, 448, 464, 465, 480, 57344, 61440, 61439, 65536, 240, 248]),
            torch.arange(0, 2**16, 7, dtype=torch.int32).bitwise_left_shift(16).view(torch.float32),
            halfway,
            torch.nextafter(halfway, torch.tensor(INF)),
            torch.nextafter(halfway, torch.tensor(-INF)),
        ]
    )
    x = torch.where((x.abs() < 1.1754944e-38) & (x != 0), 1.0, x)  # denormals are flushed on the way
    for wide in (torch.float32, torch.bfloat16, torch.float16):
        y = x.to(wide)
        want, got = y.to(dtype), y.to(DEV).to(dtype).cpu()
        known = ~want.float().isnan()
        assert torch.equal(got.float().isnan(), ~known)
        assert torch.equal(want.view(torch.uint8)[known], got.view(torch.uint8)[known]), f"{wide} to {dtype}"


def test_denormals_are_kept_by_copies_and_flushed_by_arithmetic():
    x = torch.tensor([1e-40, -1e-40, 1e-45], device=DEV)
    assert torch.equal(x.cpu(), torch.tensor([1e-40, -1e-40, 1e-45]))
    assert torch.equal(x.view(3, 1).expand(3, 2).clone().cpu()[:, 0], x.cpu())
    assert set((x * 1).abs().tolist()) <= {0.0, *x.abs().tolist()}  # a device may keep them
    same(lambda x: (x * 1, x * 2, x.float(), x + x), torch.tensor([6e-8, 1e-7, 6e-5], dtype=torch.float16))  # computed in float32


# -------------------------------------------------------------------------------------------------- infinities in losses

LOGITS = torch.tensor([[1.0, 2.0, -INF], [-INF, -INF, -INF], [INF, 1.0, 2.0], [NAN, 0.0, 1.0], [1e4, -1e4, 0.0]])
TARGET = torch.tensor([0, 1, 2, 0, 1])
LOSSES = {
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(1)),
    "cross entropy": lambda x: F.cross_entropy(x, TARGET.to(x.device), reduction="none"),
    "ignored": lambda x: F.cross_entropy(x, torch.tensor([0, -100, 2, 0, -100], device=x.device), reduction="none"),
    "all ignored": lambda x: F.cross_entropy(x, torch.full((5,), -100, device=x.device)),
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "elu": F.elu,
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x), reduction="none"),
    "huber": lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none"),
    "norm": lambda x: x.norm(dim=1),
    "var": lambda x: x.var(1),
    "xlogy": lambda x: torch.xlogy(x, x),
    "layer norm": lambda x: F.layer_norm(x, (3,)),
    "pow": lambda x: x**2,
    "sqrt": torch.sqrt,
}


@pytest.mark.parametrize("name", LOSSES)
def test_infinite_logits(name):
    def run(x):
        x = x.detach().requires_grad_()
        y = LOSSES[name](x)
        (y[torch.isfinite(y)].sum() if y.dim() else y).backward()
        return y, x.grad

    same(run, LOGITS, tol=1e-5, what=name)


def test_rows_with_every_key_masked():
    q = torch.linspace(-1, 1, 24).view(1, 2, 3, 4)
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    same(lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m), q, mask, tol=1e-5)


# -------------------------------------------------------------------------------------------------------------- rounding


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding(dtype):
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.05, 0.15, 0.25, 1.005, 2.675, 1e4 + 0.5, -1234.567, INF, NAN, -0.0, 1e-3])
    x = torch.cat([x, torch.tensor([8388607.5, 16777216.0])]) if dtype in (torch.float32, torch.float64) else x
    same(lambda x: (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac()), x.to(dtype), zeros=True)
    for d in (-3, -1, 0, 1, 2, 3, 5):
        same(lambda x, d=d: x.round(decimals=d), x.to(dtype), what=f"{d} decimals")


# ---------------------------------------------------------------------------------------------------------------- types


def test_float64_and_complex():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(5, 7, generator=g, dtype=torch.float64)
    z = torch.complex(x, x.flip(0))
    same(
        lambda x: (x.exp(), x.tanh(), x.erf(), x.abs().lgamma(), x.sum(), x @ x.T, x.softmax(1), x.std(), x.cumsum(1)), x, tol=1e-14
    )
    same(
        lambda z: (z.exp(), z.abs(), z.angle(), z * z, z / (z + 2), z @ z.mT.conj(), z.sum(), z.sqrt(), z.log(), z**3), z, tol=1e-13
    )
    same(lambda z: (z.exp(), z.abs(), z * z, z @ z.mT.conj(), z.mean(), z.tanh()), z.to(torch.complex64), tol=2e-5)
    assert (x.to(DEV) + 2.0**-40).cpu().equal(x + 2.0**-40)


def test_matmul_precision_is_honoured():
    """ "highest", the default, gives float32 products; the level is part of the key, so that a change is seen at once."""
    a = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    exact = a.double() @ a.double()
    x = a.to(DEV)
    try:
        for level in ("highest", "high", "medium", "highest"):
            torch.set_float32_matmul_precision(level)
            error = ((x @ x).cpu().double() - exact).abs().max().item()
            assert error < (1e-4 if level == "highest" else 0.5)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(("level", "word"), [("highest", "HIGHEST"), ("high", "HIGH"), ("medium", "DEFAULT")])
def test_matmul_precision_is_in_the_program(level, word):
    try:
        torch.set_float32_matmul_precision(level)
        n = {"highest": 33, "high": 34, "medium": 35}[level]  # a shape that nothing else has: the program is made now
        torch.mm(torch.ones(n, n, device=DEV), torch.ones(n, n, device=DEV))
        assert word in torch_tpu._C.last_module() or (word == "DEFAULT" and "precision" not in torch_tpu._C.last_module())
    finally:
        torch.set_float32_matmul_precision("highest")


def test_backends_fp32_precision_is_honoured():
    x = torch.ones(8, 8, device=DEV)
    for n, (level, word) in enumerate((("tf32", "HIGH>"), ("ieee", "HIGHEST"), ("none", "HIGHEST"))):
        with torch.backends.flags(fp32_precision=level):
            torch.mm(x[: n + 2].clone(), x)
            assert word in torch_tpu._C.last_module()
    torch.mm(x[:5].clone(), x)
    assert "HIGHEST" in torch_tpu._C.last_module()
