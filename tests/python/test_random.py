"""Random numbers: the generator's words against published ones, distributions by their moments, and that nothing repeats."""

import math

import pytest
import torch
import torch_tpu  # noqa: F401

DEV = "tpu"
N = 100_000


def generator(seed=0):
    return torch.Generator(DEV).manual_seed(seed)


def moments(x, mean, std):
    """Mean and standard deviation within five standard errors."""
    x = x.double().cpu()
    assert abs(x.mean().item() - mean) < 5 * std / math.sqrt(x.numel())
    assert abs(x.std().item() / std - 1) < 5 * 2 / math.sqrt(x.numel())


def test_philox_known_answer():
    """Philox4x32-10 of key 0, counter 0 is 6627e8d5 e169c58d bc57ac4c 9b00dbd8 (Random123's known answers); 16 top bits here."""
    x = torch.empty(4, dtype=torch.int64, device=DEV).random_(0, 1 << 16, generator=generator())
    assert x.tolist() == [0x6627, 0xE169, 0xBC57, 0x9B00]


def test_same_seed_same_numbers():
    a, b = generator(7), generator(7)
    for draw in (torch.rand, torch.randn, torch.rand):
        assert torch.equal(draw(33, device=DEV, generator=a).cpu(), draw(33, device=DEV, generator=b).cpu())
    assert not torch.equal(torch.rand(33, device=DEV, generator=a).cpu(), torch.rand(33, device=DEV, generator=generator(8)).cpu())


def test_calls_do_not_repeat():
    g = generator(1)
    words = [torch.empty(n, dtype=torch.int64, device=DEV).random_(generator=g).cpu() for n in (1, 5, 64, 1000, 3, 777)]
    every = torch.cat(words)
    assert every.unique().numel() == every.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_uniform(dtype):
    x = torch.rand(N, device=DEV, dtype=dtype, generator=generator(2)).double().cpu()
    assert x.min() >= 0 and x.max() < 1
    step = {torch.bfloat16: 2**-8, torch.float16: 2**-11}.get(dtype, 0)
    moments(x, 0.5 - step / 2, math.sqrt(1 / 12))
    y = torch.empty(N, device=DEV, dtype=dtype).uniform_(-2, 4, generator=generator(2)).double().cpu()
    torch.testing.assert_close(y, x * 6 - 2, rtol=0, atol=6 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_normal(dtype):
    x = torch.randn(N, device=DEV, dtype=dtype, generator=generator(3)).double().cpu()
    moments(x, 0, 1)
    assert abs((x**3).mean()) < 0.06 and abs((x**4).mean() - 3) < 0.15
    inside = [(x.abs() < k).double().mean().item() for k in (1, 2, 3)]
    assert inside == pytest.approx([math.erf(k / math.sqrt(2)) for k in (1, 2, 3)], abs=0.005)
    assert abs((x[: N // 2] * x[N // 2 :]).mean()) < 0.02
    moments(torch.empty(N, device=DEV, dtype=dtype).normal_(3, 0.5, generator=generator(4)), 3, 0.5)


def test_normal_of_tensors():
    mean, std = torch.linspace(-3, 3, N), torch.linspace(0.1, 2, N)
    for m, s in ((mean, std), (mean, 2.0), (1.5, std)):
        got = torch.normal(*(v.to(DEV) if isinstance(v, torch.Tensor) else v for v in (m, s))).cpu()
        moments((got - m) / s, 0, 1)


def test_complex_normal():
    x = torch.randn(N, device=DEV, dtype=torch.complex64, generator=generator(5)).cpu()
    moments(x.real, 0, math.sqrt(0.5))
    moments(x.imag, 0, math.sqrt(0.5))
    assert abs((x.real * x.imag).mean()) < 0.01


def test_other_distributions():
    g = generator(6)
    empty = torch.empty(N, device=DEV)
    x = empty.exponential_(2, generator=g).cpu()
    assert x.min() > 0
    moments(x, 0.5, 0.5)
    moments(empty.log_normal_(0, 0.5, generator=g).log(), 0, 0.5)
    moments(empty.geometric_(0.3, generator=g), 1 / 0.3, math.sqrt(0.7) / 0.3)
    assert empty.min() >= 1
    x = empty.cauchy_(1, 2, generator=g).cpu()
    assert torch.quantile(x, torch.tensor([0.25, 0.5, 0.75])).tolist() == pytest.approx([-1, 1, 3], abs=0.1)


@pytest.mark.parametrize(("low", "high"), [(0, 2), (-5, 5), (0, 70_000), (-(2**40), 2**41), (0, 3_000_000_000)])
def test_integers(low, high):
    x = torch.empty(N, dtype=torch.int64, device=DEV).random_(low, high, generator=generator(9)).cpu()
    assert x.min() >= low and x.max() < high
    width = high - low
    moments(x.double() / width, (low + (width - 1) / 2) / width, math.sqrt((width * width - 1) / 12) / width)


def test_integers_without_bounds():
    for dtype, top in ((torch.uint8, 255), (torch.int16, 2**15 - 1), (torch.int64, 2**63 - 1), (torch.bool, 1)):
        x = torch.empty(N, dtype=dtype, device=DEV).random_(generator=generator(10)).cpu().double()
        assert x.min() >= 0
        moments(x / top, 0.5, math.sqrt((1 + 2 / top) / 12) if top < 300 else math.sqrt(1 / 12))


def test_bernoulli_and_dropout():
    g = generator(11)
    x = torch.empty(N, device=DEV)
    moments(x.bernoulli_(0.3, generator=g), 0.3, math.sqrt(0.21))
    assert x.bernoulli_(0.0).sum().item() == 0
    assert x.bernoulli_(1.0).sum().item() == N
    p = torch.rand(N)
    moments(torch.bernoulli(p.to(DEV), generator=g).cpu() - p, 0, math.sqrt(1 / 6))
    y = torch.nn.functional.dropout(torch.ones(N, device=DEV), 0.2).cpu()
    assert set(y.unique().tolist()) == {0.0, 1.25}
    moments(y, 1, 0.5)
    z, mask = torch.native_dropout(torch.ones(N, device=DEV), 0.2, True)
    assert torch.equal(z.cpu(), mask.cpu() * 1.25)


@pytest.mark.parametrize("n", [0, 1, 10, 10_000])
def test_randperm(n):
    x = torch.randperm(n, device=DEV, generator=generator(12)).cpu()
    assert torch.equal(x.sort().values, torch.arange(n))
    if n > 100:
        assert abs(torch.corrcoef(torch.stack([x.double(), torch.arange(n).double()]))[0, 1]) < 0.05


def test_multinomial():
    p = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 1.0, 3.0]])
    x = torch.multinomial(p.to(DEV), N // 10, replacement=True).cpu()
    for row, want in zip(x, p / p.sum(1, keepdim=True), strict=True):
        torch.testing.assert_close(torch.bincount(row, minlength=4) / row.numel(), want, rtol=0, atol=0.02)
    y = torch.multinomial(p[:1].repeat(20_000, 1).to(DEV), 2).cpu()
    assert (y[:, 0] != y[:, 1]).all()
    torch.testing.assert_close(torch.bincount(y[:, 0]) / 20_000, p[0], rtol=0, atol=0.02)
    second = [sum(p[0, i] * p[0, j] / (1 - p[0, i]) for i in range(4) if i != j).item() for j in range(4)]
    torch.testing.assert_close(torch.bincount(y[:, 1]) / 20_000, torch.tensor(second), rtol=0, atol=0.02)
