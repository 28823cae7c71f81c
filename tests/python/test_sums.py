"""Sums of small products in DeferAndFuse and in compiled functions: one product of the factors side by side, where nobody sees what
is between.

Values are CPU PyTorch's. A trace is one program from the third time on.
"""

from pathlib import Path

import pytest
import torch
from torch_tpu._compile import program

STEPS, BATCH, WIDE, NARROW = 6, 8, 64, 32


@pytest.fixture(autouse=True)
def _fuse():
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.FUSE):
        yield
    torch.tpu.compiler.wait()


def inputs(device: str, batch: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(3)
    g, x = torch.randn(STEPS, batch, WIDE, generator=rng), torch.randn(STEPS, batch, NARROW, generator=rng)
    return g.flatten().to(device).view_as(g), x.flatten().to(device).view_as(x)  # else batches of several sizes, which are open


def products(g, x):
    """One a step, of factors that lie as a layer's gradient finds them, views of what is made before."""
    g, x = g * 2, x.tanh()
    return [g[t].t() @ x[t] for t in range(len(g))]


def plain(g, x):
    total, *rest = products(g, x)
    for p in rest:
        total = total + p
    return (total,)


def turned(g, x):
    g, x = g * 2, x.tanh()
    total = torch.zeros(NARROW, WIDE, device=g.device)
    for t in range(len(g)):
        total = total + x[t].t() @ g[t]
    return (total,)


def rows(g, x):
    """Factors of 256 columns, which simulated devices lay out anew."""
    return plain(g.repeat(1, 1, 4), x)


def in_place(g, x):
    total = torch.ones(WIDE, NARROW, device=g.device)
    before = total * 3
    for p in products(g, x):
        total += p
    return total, before


def seen(g, x):
    """One of the sums on the way is a result, and one product is."""
    first, *rest = products(g, x)
    total = first
    held = []
    for p in rest:
        total = total + p
        held.append(total)
    return total, held[2], rest[3]


def overwritten(g, x):
    """A factor has other contents by the time of the last addition."""
    x = x.tanh()
    total = g[0].t() @ x[0]
    for t in range(1, len(g)):
        total = total + g[t].t() @ x[t]
        x[t - 1] = 7.0
    return total, x


def mixed(g, x):
    """Depths of their own, something that is no product, and twice the same."""
    a = products(g, x)
    b = (g[0, :3].t() @ x[0, :3]) + (g[1, 2:].t() @ x[1, 2:])
    return (a[0] + (a[1] + (b + a[2].abs())) + (a[3] + a[4]) + a[5] + a[5],)


def large(g, x):
    return plain(g.repeat(1, 64, 1), x.repeat(1, 64, 1))


@pytest.mark.parametrize("f", [plain, turned, rows, in_place, seen, overwritten, mixed, large], ids=lambda f: f.__name__)
def test_values(f):
    want = f(*inputs("cpu"))
    g, x = inputs("tpu")
    for _ in range(4):
        torch.tpu.flush()
        torch.tpu.compiler.wait()
        got = f(g.clone(), x.clone())
        torch.tpu.flush()
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a.cpu(), b, atol=2e-3 if f is large else 2e-5, rtol=1e-5)


@pytest.mark.parametrize(("f", "joined"), [(plain, True), (turned, True), (rows, True), (in_place, True), (large, False)])
def test_one_product_where_it_pays(f, joined, tmp_path: Path):
    """A large batch is multiplied as it comes."""
    g, x = inputs("tpu", BATCH + 1)  # other programs than those above
    with torch.tpu.compiler.dump(tmp_path):
        for _ in range(3):
            torch.tpu.flush()
            torch.tpu.compiler.wait()
            kept = f(g, x)
        torch.tpu.flush()
        torch.tpu.compiler.wait()
    assert kept
    texts = [p.read_text() for p in tmp_path.glob("*/stablehlo.mlir")]
    fused = max((t for t in texts if "module @fused" in t), key=len)
    assert fused.count("stablehlo.dot_general") == (1 if joined else STEPS), fused


@pytest.mark.parametrize("layers", [1, 2])
def test_an_lstm_learns_as_on_the_cpu(layers):
    torch.manual_seed(5)
    nets = [torch.nn.LSTM(16, 24, layers), None]
    nets[1] = torch.nn.LSTM(16, 24, layers).to("tpu")
    nets[1].load_state_dict(nets[0].state_dict())
    x = torch.randn(9, 4, 16)
    optimizers = [torch.optim.AdamW(n.parameters(), lr=1e-2) for n in nets]
    for _ in range(5):
        for net, optimizer, data in zip(nets, optimizers, (x, x.to("tpu")), strict=True):
            optimizer.zero_grad()
            net(data)[0].square().mean().backward()
            optimizer.step()
        torch.tpu.compiler.wait()
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(b.cpu(), a, atol=2e-5, rtol=1e-4)


class Loop(torch.nn.Module):
    """A cell at each step; the sums of its weights' gradients are mixed with others'."""

    def __init__(self, cell: type[torch.nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell = cell(NARROW, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor | tuple[torch.Tensor, ...] = torch.zeros(x.shape[1], 24, device=x.device)
        h = (h, h) if isinstance(self.cell, torch.nn.LSTMCell) else h
        for t in range(len(x)):
            h = self.cell(x[t], h)
        out = h[0] if isinstance(h, tuple) else h
        return out.square().mean() + self.cell.weight_hh.square().mean()


@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell], ids=lambda c: c.__name__)
def test_compiled_loops(cell, monkeypatch):
    counts = []

    def join(graph, was=program.join_products):
        before = sum(n.target is torch.ops.aten.mm.default for n in graph.nodes)
        was(graph)
        counts.append((before, sum(n.target is torch.ops.aten.mm.default for n in graph.nodes)))

    monkeypatch.setattr(program, "join_products", join)
    torch.manual_seed(7)
    net, _ = Loop(cell), torch._dynamo.reset()
    ours = Loop(cell).to("tpu")
    ours.load_state_dict(net.state_dict())
    x = inputs("cpu")[1]
    net(x).backward()
    torch.compile(ours, backend="tpu", dynamic=False)(x.to("tpu")).backward()
    for a, b in zip(net.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, atol=2e-6, rtol=1e-4)
    assert any(after < before - STEPS for before, after in counts), counts


@pytest.mark.parametrize("f", [plain, turned, rows, seen, mixed, large], ids=lambda f: f.__name__)
def test_compiled_values(f):
    torch._dynamo.reset()
    g, x = inputs("cpu")
    got = torch.compile(f, backend="tpu", dynamic=False)(g.to("tpu"), x.to("tpu"))
    for a, b in zip(got, f(g, x), strict=True):
        torch.testing.assert_close(a.cpu(), b, atol=2e-3 if f is large else 2e-5, rtol=1e-5)
