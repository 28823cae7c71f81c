"""What else Dynamo offers, under ``torch.compile(backend="tpu")``: random numbers, modes, graph breaks, higher-order ops."""

import pytest
import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint
import torch_tpu
from torch_tpu import _compile

DEV = "tpu"


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.tpu.reset_fallbacks()
    _compile.refused.clear()


def compiled(f, **options):
    return torch.compile(f, backend="tpu", **options)


def calls():
    return torch_tpu._C.stats(0)["calls"]


# ---------------------------------------------------------------------------------------------------- random numbers

_IN_PLACE = {
    "uniform": lambda x: x.clone().uniform_(2, 3),
    "normal_": lambda x: x.clone().normal_(1, 2),
    "exponential": lambda x: x.clone().exponential_(3),
    "cauchy": lambda x: x.clone().cauchy_(),
    "geometric": lambda x: x.clone().geometric_(0.4),
    "log_normal": lambda x: x.clone().log_normal_(),
    "bernoulli_": lambda x: (x.clone().bernoulli_(x), x.clone().bernoulli_(0.7)),
}
_DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.5) + F.dropout(x, 0.3),
    "feature dropouts": lambda x: (F.dropout2d(x.view(1, 6, 5, 1), 0.4), F.alpha_dropout(x, 0.4, True)),
    "randn": lambda x: torch.randn(6, 5, device=DEV) * torch.randn(6, 5, device=DEV) + torch.randn_like(x),
    "rand": lambda x: torch.rand(5, device=DEV) + torch.rand_like(x),
    "randint": lambda x: (
        torch.randint(3, 10, (6, 5), device=DEV),
        torch.randint(4, (5,), device=DEV),
        torch.randint_like(x, 2, 9),
    ),
    "bernoulli": lambda x: (torch.bernoulli(x), torch.bernoulli(x, 0.3)),
    "normal": lambda x: (torch.normal(x, x), torch.normal(1.0, x), torch.normal(0.0, 1.0, (3,), device=DEV)),
    "randperm": lambda x: (torch.randperm(9, device=DEV), x[torch.randperm(6, device=DEV)]),
    "multinomial": lambda x: (torch.multinomial(x, 2), torch.multinomial(x, 9, replacement=True)),
    "rrelu": lambda x: F.rrelu(x - 0.5, training=True),
    "gumbel": lambda x: F.gumbel_softmax(x),
    "poisson": lambda x: (torch.poisson(x * 4), torch._standard_gamma(x + 1)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], dropout_p=0.3),
    **_IN_PLACE,
}


@pytest.mark.parametrize("name", list(_DRAWS))
def test_random_numbers_are_eagers_in_one_program(name):
    f, x = _DRAWS[name], torch.rand(6, 5, device=DEV)
    g = compiled(f)
    g(x)
    torch.manual_seed(3)
    want = [f(x) for _ in range(2)]
    state = torch.tpu.get_rng_state()
    torch.manual_seed(3)
    before = calls()
    got = [g(x) for _ in range(2)]
    assert calls() - before == 2
    torch.testing.assert_close(got, want)
    assert torch.equal(torch.tpu.get_rng_state(), state)
    assert _compile.refused == {}


def test_no_input_and_state_between_calls():
    f = compiled(lambda: torch.rand(4, device=DEV))
    torch.manual_seed(1)
    a = f()
    state = torch.tpu.get_rng_state()
    b = f()
    with torch.random.fork_rng(device_type=DEV):
        c = f()
    torch.tpu.set_rng_state(state)
    d = f()
    e = f()
    assert torch.equal(b, d)
    assert torch.equal(c, e)
    assert not torch.equal(a, b)
    torch.tpu.manual_seed(1)
    assert torch.equal(f(), a)
    assert _compile.refused == {}


def test_random_numbers_keep_their_order_around_the_cpu():
    def f(x):
        return torch.rand(3, device=DEV), x.cpu().mul(2).to(DEV) + torch.rand(6, device=DEV), torch.rand(2, device=DEV)

    x, results = torch.rand(6, device=DEV), []
    for g in (f, compiled(f)):
        torch.manual_seed(0)
        results.append(g(x))
    torch.testing.assert_close(*results)


def test_generator_of_ones_own():
    def f(x):
        return x + torch.rand(3, device=DEV, generator=generator) + torch.rand(3, device=DEV)

    generator, x, results = torch.Generator(DEV), torch.zeros(3, device=DEV), []
    for h in (f, compiled(f)):
        generator.manual_seed(7)
        torch.manual_seed(0)
        results.append(torch.stack([h(x), h(x)]))
    assert torch.equal(*results)


def test_wrong_probability_is_told():
    with pytest.raises(RuntimeError, match="expects p to be in"):
        compiled(lambda x: x.clone().bernoulli_(1.5))(torch.ones(3, device=DEV))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_training_step_with_dropout(checkpoint):
    x = torch.rand(6, 5)

    def train(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 1)).to(
            DEV
        )
        optimizer, data = torch.optim.SGD(model.parameters(), lr=0.1), x.to(DEV)

        def forward(x):
            return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False) if checkpoint else model(x)

        def step(x):
            optimizer.zero_grad()
            loss = (forward(x) + torch.randn_like(x[:, :1]) * torch.randn_like(x[:, :1])).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = wrap(step)
        return [step(data) for _ in range(4)] + [p.detach() for p in model.parameters()]

    torch.testing.assert_close(train(compiled), train(lambda f: f), rtol=1e-4, atol=1e-5)
    assert _compile.refused == {}


def test_dropout_forward_and_backward_are_one_program_each():
    model, x = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 1)).to(DEV), torch.rand(6, 5, device=DEV)
    f, one = compiled(model), torch.ones(6, 1, device=DEV)
    f(x).backward(one)
    model.zero_grad()
    before = calls()
    y = f(x)
    assert calls() - before == 1
    y.backward(one)
    assert calls() - before == 2
