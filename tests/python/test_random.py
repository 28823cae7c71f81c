"""Random numbers: the generator's words against published ones, distributions by their moments, and that nothing repeats."""

import math

import pytest
import torch
import torch_tpu

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


# --------------------------------------------------------------------------------------------- generators and their errors

BOUNDS = {
    "normal_": (lambda v: torch.empty(5, device=DEV).normal_(0, v), 1.0, -1.0),
    "normal": (lambda v: torch.normal(torch.zeros(5, device=DEV), v), 1.0, -1.0),
    "uniform_": (lambda v: torch.empty(5, device=DEV).uniform_(0, v), 1.0, -1.0),
    "exponential_": (lambda v: torch.empty(5, device=DEV).exponential_(v), 1.0, 0.0),
    "geometric_": (lambda v: torch.empty(5, device=DEV).geometric_(v), 0.5, 1.0),
    "cauchy_": (lambda v: torch.empty(5, device=DEV).cauchy_(0, v), 1.0, 0.0),
    "log_normal_": (lambda v: torch.empty(5, device=DEV).log_normal_(0, v), 1.0, 0.0),
    "bernoulli_": (lambda v: torch.empty(5, device=DEV).bernoulli_(v), 0.5, 1.5),
    "random_": (lambda v: torch.empty(5, device=DEV).random_(v), 3, 0),
    "randint": (lambda v: torch.randint(2, v, (5,), device=DEV), 3, 2),
    "random_ of bytes": (lambda v: torch.empty(5, dtype=torch.uint8, device=DEV).random_(0, v), 256, 257),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_wrong_numbers_are_refused_each_time(name):
    """Also when a program for the signature exists already: numbers are not part of its key. No random number is used up."""
    draw, right, wrong = BOUNDS[name]
    draw(right)
    before = torch.tpu.get_rng_state()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"expects|out of bounds"):
            draw(wrong)
    assert torch.equal(torch.tpu.get_rng_state(), before)
    draw(right)


def test_bounds_do_not_compile():
    torch.randint(0, 10, (7,), device=DEV)
    torch.randint(3, 10, (7,), device=DEV)
    torch.tpu.synchronize()
    before = torch_tpu._C.stats(0)["programs_compiled"]
    for low, high in ((0, 11), (-5, 5), (0, 2**40), (-(2**62), 2**62), (7, 8)):
        x = torch.randint(low, high, (7,), device=DEV).cpu()
        assert x.min() >= low and x.max() < high
    assert torch_tpu._C.stats(0)["programs_compiled"] == before


def test_integers_over_the_whole_range():
    x = torch.empty(N, dtype=torch.int64, device=DEV).random_(-(2**63), None, generator=generator(13)).cpu().double()
    moments(x / 2**63, 0, math.sqrt(1 / 3))
    with pytest.raises(RuntimeError, match="from"):
        torch.empty(3, dtype=torch.uint8, device=DEV).random_(-1, 5)


WITH_GENERATOR = {
    "rand": lambda **k: torch.rand(5, device=DEV, **k),
    "randn": lambda **k: torch.randn(5, device=DEV, **k),
    "randint": lambda **k: torch.randint(0, 1000, (5,), device=DEV, **k),
    "randperm": lambda **k: torch.randperm(9, device=DEV, **k),
    "rand_like": lambda **k: torch.rand_like(torch.zeros(5, device=DEV), **k),
    "normal": lambda **k: torch.normal(0.0, 1.0, (5,), device=DEV, **k),
    "normal of tensors": lambda **k: torch.normal(torch.zeros(5, device=DEV), 1.0, **k),
    "bernoulli": lambda **k: torch.bernoulli(torch.full((64,), 0.5, device=DEV), **k),
    "multinomial": lambda **k: torch.multinomial(torch.ones(50, device=DEV), 9, **k),
    "poisson": lambda **k: torch.poisson(torch.full((64,), 30.0, device=DEV), **k),
    "binomial": lambda **k: torch.binomial(torch.full((64,), 90.0, device=DEV), torch.full((64,), 0.5, device=DEV), **k),
    "standard_gamma": lambda **k: torch._standard_gamma(torch.full((5,), 2.0, device=DEV), **k),
    "dirichlet": lambda **k: torch._sample_dirichlet(torch.full((5,), 2.0, device=DEV), **k),
    "uniform_": lambda **k: torch.empty(5, device=DEV).uniform_(**k),
    "exponential_": lambda **k: torch.empty(5, device=DEV).exponential_(**k),
    "geometric_": lambda **k: torch.empty(64, device=DEV).geometric_(0.3, **k),
    "cauchy_": lambda **k: torch.empty(5, device=DEV).cauchy_(**k),
    "log_normal_": lambda **k: torch.empty(5, device=DEV).log_normal_(**k),
    "random_": lambda **k: torch.empty(5, device=DEV).random_(0, 1000, **k),
}


@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_generator_argument(name):
    draw = WITH_GENERATOR[name]
    a, b = generator(5), generator(5)
    first = draw(generator=a).cpu()
    assert torch.equal(first, draw(generator=b).cpu())
    torch.manual_seed(5)
    assert torch.equal(draw().cpu(), first)  # the default generator seeded alike
    assert not torch.equal(draw().cpu(), first)
    state = torch.tpu.get_rng_state()
    second = draw().cpu()
    torch.tpu.set_rng_state(state)
    assert torch.equal(draw().cpu(), second)
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator but found 'cpu'"):
        draw(generator=torch.Generator())


def test_state_is_seed_and_offset():
    g = generator(0x0123456789ABCDEF)
    torch.rand(10, device=DEV, generator=g)
    state = g.get_state()
    assert state.dtype == torch.uint8 and state.numel() == 16 and state.device.type == "cpu"
    seed, offset = state.view(torch.int64).tolist()
    assert seed == 0x0123456789ABCDEF and offset > 0 and offset % 4 == 0
    h = torch.Generator(DEV)
    h.set_state(state)
    assert torch.equal(torch.rand(10, device=DEV, generator=g).cpu(), torch.rand(10, device=DEV, generator=h).cpu())
    assert h.initial_seed() == 0x0123456789ABCDEF


def test_fork_rng():
    torch.manual_seed(1)
    before = torch.tpu.get_rng_state()
    with torch.random.fork_rng(device_type=DEV):
        torch.rand(7, device=DEV)
        assert not torch.equal(torch.tpu.get_rng_state(), before)
    assert torch.equal(torch.tpu.get_rng_state(), before)


def test_numbers_do_not_depend_on_strides():
    targets = [torch.empty(4, 6, device=DEV), torch.empty(6, 4, device=DEV).t(), torch.empty(4, 12, device=DEV)[:, ::2]]
    drawn = [t.normal_(generator=generator(3)).cpu() for t in targets]
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])


def test_types_share_their_numbers():
    """A narrower type has the leading bits of the wider one's numbers."""
    for draw in (torch.rand, torch.randn):
        wide = draw(1000, device=DEV, dtype=torch.float32, generator=generator(3)).cpu().double()
        for dtype in (torch.bfloat16, torch.float16, torch.float64):
            got = draw(1000, device=DEV, dtype=dtype, generator=generator(3)).cpu().double()
            torch.testing.assert_close(got, wide, rtol=2**-8, atol=2**-8)


def test_dropout_is_fresh_and_repeatable():
    x, m = torch.ones(1000, device=DEV), torch.nn.Dropout(0.5)
    torch.manual_seed(2)
    a, b = m(x).cpu(), m(x).cpu()
    assert not torch.equal(a, b)
    torch.manual_seed(2)
    assert torch.equal(m(x).cpu(), a) and torch.equal(m(x).cpu(), b)


# ------------------------------------------------------------------------------------------------- drawn until accepted


@pytest.mark.parametrize("rate", [0.0, 0.3, 4.0, 9.9, 10.1, 60.0, 1e4])
def test_poisson(rate):
    x = torch.poisson(torch.full((N // 4,), rate, device=DEV), generator=generator(14)).cpu()
    assert torch.equal(x, x.floor()) and x.min() >= 0
    if rate == 0:
        assert x.max() == 0
        return
    moments(x, rate, math.sqrt(rate))
    if rate < 1e3:
        k = torch.arange(int(rate), int(rate) + 3, dtype=torch.float64)
        chance = (k * math.log(rate) - rate - torch.lgamma(k + 1)).exp()
        got = (x.double()[:, None] == k).double().mean(0)
        torch.testing.assert_close(got, chance, rtol=0, atol=0.015)


def test_poisson_of_a_negative_rate():
    with pytest.raises(RuntimeError, match="rate"):
        torch.poisson(torch.tensor([-1.0], device=DEV)).cpu()
        torch.tpu.synchronize()


@pytest.mark.parametrize(
    ("trials", "p"), [(0, 0.5), (1, 0.3), (10, 0.0), (10, 1.0), (12, 0.4), (40, 0.9), (1000, 0.4), (10_000, 0.001)]
)
def test_binomial(trials, p):
    n, q = torch.full((N // 4,), float(trials), device=DEV), torch.full((N // 4,), p, device=DEV)
    x = torch.binomial(n, q, generator=generator(15)).cpu()
    assert torch.equal(x, x.floor()) and x.min() >= 0 and x.max() <= trials
    if 0 < p < 1 and trials > 0:
        moments(x, trials * p, math.sqrt(trials * p * (1 - p)))
        k = torch.arange(int(trials * p), min(int(trials * p) + 3, trials + 1), dtype=torch.float64)
        log_chance = math.lgamma(trials + 1) - torch.lgamma(k + 1) - torch.lgamma(trials - k + 1)
        chance = (log_chance + k * math.log(p) + (trials - k) * math.log1p(-p)).exp()
        got = (x.double()[:, None] == k).double().mean(0)
        torch.testing.assert_close(got, chance, rtol=0, atol=0.015)
    else:
        assert (x == trials * p).all()


@pytest.mark.parametrize("shape", [0.05, 0.5, 1.0, 3.5, 200.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_standard_gamma(shape, dtype):
    x = torch._standard_gamma(torch.full((N // 4,), shape, device=DEV, dtype=dtype), generator=generator(16)).cpu()
    assert x.min() > 0
    moments(x, shape, math.sqrt(shape))
    want = torch.special.gammainc(torch.tensor(shape, dtype=torch.float64), torch.tensor(shape, dtype=torch.float64))
    assert abs((x.double() <= shape).double().mean() - want) < 0.02


def test_dirichlet():
    x = torch._sample_dirichlet(torch.tensor([1.0, 2.0, 5.0], device=DEV).expand(N // 4, 3), generator=generator(17)).cpu()
    torch.testing.assert_close(x.sum(-1), torch.ones(N // 4))
    torch.testing.assert_close(x.mean(0), torch.tensor([1.0, 2.0, 5.0]) / 8, rtol=0, atol=0.005)


def test_gradient_of_gamma():
    a = torch.tensor([0.1, 0.5, 1.0, 2.5, 10.0, 80.0, 190.0, 250.0, 3000.0], dtype=torch.float64)
    a, q = torch.broadcast_tensors(a[:, None], torch.tensor([-1.5, -0.5, 0.3, 1.0, 2.0], dtype=torch.float64))
    x = (a * (1 - 1 / (9 * a) + q / (3 * a.sqrt())).clamp(min=0.05) ** 3).contiguous()  # Wilson and Hilferty's quantiles
    want = torch._standard_gamma_grad(a.contiguous(), x)
    torch.testing.assert_close(torch._standard_gamma_grad(a.to(DEV), x.to(DEV)).cpu(), want, rtol=2e-3, atol=1e-4)


def test_distributions_run_on_the_device():
    torch.tpu.reset_fallbacks()
    d = torch.distributions
    one = torch.ones(3, device=DEV)
    for dist in (d.Gamma(2 * one, one), d.Poisson(3 * one), d.Binomial(5, 0.3 * one), d.Dirichlet(one), d.Beta(one, 2 * one)):
        assert dist.sample().device.type == DEV
    assert torch.tpu.fallbacks() == {}
