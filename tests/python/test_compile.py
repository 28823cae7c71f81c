"""``torch.compile(backend="tpu")``: the same values as eager CPU PyTorch, inputs written in place, no fallbacks."""

import pytest
import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F
import torch_tpu
from conftest import compiled
from torch_tpu import _compile

DEV = "tpu"
pytestmark = pytest.mark.usefixtures("untraced")


def same(make, rtol=1e-4, atol=1e-5, **options):
    """``make(device, wrap)`` gives tensors; ``wrap`` compiles on the device and does nothing on the CPU."""
    torch.manual_seed(0)
    want = make("cpu", lambda f: f)
    torch.manual_seed(0)
    got = make(DEV, lambda f: compiled(f, **options))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=rtol, atol=atol)
    assert torch.tpu.fallbacks() == {}
    assert _compile.refused == {}


def test_a_graph_is_one_program():
    def f(a, b):
        return ((a + b).tanh() * 2).sum(0), a.t()

    a, b = torch.randn(4, 5), torch.randn(4, 5)
    x, y = a.to(DEV), b.to(DEV)
    g = compiled(f)
    g(x, y)
    before = torch_tpu._C.stats(0)["calls"]
    got = g(x, y)
    assert torch_tpu._C.stats(0)["calls"] - before == 1
    for r, w in zip(got, f(a, b), strict=True):
        torch.testing.assert_close(r.cpu(), w)
    assert got[1].stride() == (1, 5)
    assert got[1].data_ptr() == x.data_ptr()  # a view stays one


def test_inputs_are_written_in_place_and_views_alias():
    def f(x):
        x.add_(1)
        y = x.view(-1)
        y.mul_(2)
        return y

    x = torch.zeros(2, 3, device=DEV)
    alias = x[1]
    y = compiled(f)(x)
    assert y.data_ptr() == x.data_ptr()
    assert x.tolist() == [[2.0] * 3] * 2
    assert alias.tolist() == [2.0] * 3


@pytest.mark.parametrize(
    "name",
    [
        *("SGD", "Adam", "AdamW", "RMSprop", "NAdam", "RAdam", "Adagrad"),
        *("Adadelta", "Adamax", "ASGD", "Rprop", "Adafactor", "Muon"),
    ],
)
def test_optimizer_steps(name):
    def make(device, wrap):
        model = nn.Linear(6, 5, bias=False) if name == "Muon" else nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        model.to(device)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)
        step, x = wrap(optimizer.step), torch.randn(4, 6).to(device)
        for i in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.param_groups[0]["lr"] = 0.01 / (i + 1)
            step()
        return [p.detach() for p in model.parameters()]

    same(make)


def test_whole_training_step():
    def make(device, wrap):
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        ).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = wrap(step)
        losses = [step(torch.randn(4, 3, 8, 8).to(device), torch.tensor([0, 1, 2, 1]).to(device)) for _ in range(3)]
        return [*losses, *(b.float() for b in model.buffers())]

    same(make)


@pytest.mark.parametrize("dynamic", [False, True])
def test_encoder_layer(dynamic):
    def make(device, wrap):
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).to(device)
        f, out = wrap(layer), []
        for n in (5, 7, 9):
            y = f(torch.randn(2, n, 16).to(device))
            y.sum().backward()
            out.append(y.detach())
        return out + [p.grad for p in layer.parameters()]

    same(make, dynamic=dynamic)


def test_lengths_of_one_trace():
    def f(x):
        return F.softmax(x * x.shape[0], dim=-1).sum(0) + x.shape[1] // 2

    g = compiled(f, dynamic=True)
    for n in (3, 8, 5, 8):
        x = torch.randn(n, n + 2)
        torch.testing.assert_close(g(x.to(DEV)).cpu(), f(x), rtol=1e-4, atol=1e-5)


def test_random_numbers_are_eagers_and_fresh():
    x = torch.ones(1000, device=DEV)
    f = compiled(lambda x: F.dropout(x, 0.5) + 1)
    torch.manual_seed(5)
    a, b = f(x), f(x)
    torch.manual_seed(5)
    want = F.dropout(x, 0.5) + 1
    assert torch.equal(a.cpu(), want.cpu())
    assert not torch.equal(a.cpu(), b.cpu())


def test_data_dependent_sizes_and_cpu_in_the_middle():
    def f(x):
        y = x[x > 0] * 2
        z = y.cpu().cumsum(0).to(x.device)
        return (z * 3).sum()

    x = torch.arange(-3.0, 4)
    torch.testing.assert_close(compiled(f)(x.to(DEV)).cpu(), f(x))


def test_inference_mode_autocast_and_fullgraph():
    model, x = nn.Linear(8, 4), torch.randn(3, 8)
    on = nn.Linear(8, 4).to(DEV)
    on.load_state_dict(model.state_dict())
    f = compiled(on, fullgraph=True)
    with torch.inference_mode():
        torch.testing.assert_close(f(x.to(DEV)).cpu(), model(x), rtol=1e-4, atol=1e-5)
    with torch.no_grad(), torch.autocast(DEV):
        y = f(x.to(DEV))
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float().cpu(), model(x), rtol=2e-2, atol=2e-2)


def test_wrong_index_is_told():
    f = compiled(lambda x, i: x[i] * 2)
    y = f(torch.arange(4.0, device=DEV), torch.tensor([1, 9], device=DEV))
    with pytest.raises(IndexError, match="index 9"):
        y.cpu()


@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_of_an_input_that_needs_a_gradient_share_its_memory(dynamic):
    x = torch.arange(6.0, device=DEV).requires_grad_()
    a, b = compiled(lambda x: x.chunk(2), dynamic=dynamic)(x)
    (a.sum() + 2 * b.sum()).backward()
    assert x.grad.tolist() == [1.0] * 3 + [2.0] * 3
    assert {t.untyped_storage().data_ptr() for t in (a, b)} == {x.untyped_storage().data_ptr()}


@pytest.mark.parametrize("grad", [False, True])
def test_views_by_symbols_of_inputs(grad):
    """AOTAutograd makes them of the input anew, by the strides and the offset of what the graph returns."""

    def f(x):
        return x[x.shape[0] // 2 :], x[:, :: x.shape[1] // 2], x[0].expand_as(x)

    g = compiled(f, dynamic=True)
    for n in (4, 6):
        x = torch.randn(n, 5)
        y = x.to(DEV).requires_grad_(grad)
        for got, want in zip(g(y), f(x), strict=True):
            assert torch.equal(got.detach().cpu(), want)
            assert got.stride() == want.stride()
            assert got.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def test_a_view_by_symbols_of_a_written_input():
    def f(x):
        x.mul_(2)
        return x[x.shape[0] // 2 :]

    g = compiled(f, dynamic=True)
    for n in (4, 6):
        x = torch.randn(n, 5)
        y = x.to(DEV)
        assert torch.equal(g(y).cpu(), f(x))
        assert torch.equal(y.cpu(), x)


def test_sizes_in_floats():
    g = compiled(lambda x: F.interpolate(x, size=5, mode="nearest"), dynamic=True)
    for n in (4, 7):
        x = torch.randn(2, 3, n)
        torch.testing.assert_close(g(x.to(DEV)).cpu(), F.interpolate(x, size=5, mode="nearest"))


@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop", "NAdam"])
def test_a_schedule_is_traced_once_more_and_never_again(name):
    def make(device, wrap):
        torch.manual_seed(1)
        p = torch.randn(4, 3).to(device).requires_grad_()
        p.grad = torch.randn(4, 3).to(device)
        optimizer = getattr(torch.optim, name)([p], lr=0.1)
        step = wrap(optimizer.step)
        for _ in range(7):
            step()
            optimizer.param_groups[0]["lr"] *= 0.8
        return [p.detach()]

    before = len(torch.tpu.compile_stats()["recompiles"])
    same(make)
    assert len(torch.tpu.compile_stats()["recompiles"]) - before <= 1
