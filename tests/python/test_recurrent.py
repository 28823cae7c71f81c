"""``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` in compiled functions: values and gradients are CPU PyTorch's, in one graph that loops."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn as packing
from torch.utils._pytree import tree_leaves
from torch_tpu import _compile
from torch_tpu._compile import program

STEPS, BATCH, WIDE, HIDDEN = 5, 4, 6, 8
MODULES = [nn.LSTM, nn.GRU, nn.RNN]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no_bias": {"bias": False},
    "both_ways": {"bidirectional": True},
    "all": {"num_layers": 2, "bidirectional": True, "batch_first": True},
}
CASES = [(m, k, KINDS[k]) for m in MODULES for k in KINDS] + [
    (nn.RNN, "relu", {"nonlinearity": "relu"}),
    (nn.LSTM, "projected", {"proj_size": 3}),
    (nn.LSTM, "projected_all", {"proj_size": 3, "num_layers": 2, "bidirectional": True, "bias": False}),
]
each_module = pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)


@pytest.fixture(autouse=True)
def _anew():
    torch._dynamo.reset()
    torch.manual_seed(11)
    yield
    assert not _compile.refused


@pytest.fixture
def loops(monkeypatch):
    """How many layers' loops each graph holds that was compiled."""
    counts: list[int] = []

    def seen(graph, was=program.join_products):
        counts.append(sum(n.target is torch.ops.tpu._steps.default for n in graph.nodes))
        was(graph)

    monkeypatch.setattr(program, "join_products", seen)
    return counts


def both(net: nn.Module) -> tuple[nn.Module, nn.Module]:
    return net, copy.deepcopy(net).to("tpu")


def one_graph(f: Any, **options: Any) -> Any:
    return torch.compile(f, backend="tpu", fullgraph=True, **options)


def same(got: Any, want: Any, **tolerance: float) -> None:
    for a, b in zip(tree_leaves(got), tree_leaves(want), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), **{"atol": 2e-6, "rtol": 1e-4, **tolerance})


@pytest.mark.parametrize(
    ("module", "kind", "options"), CASES, ids=lambda c: getattr(c, "__name__", c if isinstance(c, str) else "")
)
def test_values_and_gradients(module, kind, options, loops):
    net, ours = both(module(WIDE, HIDDEN, **options))
    layers = net.num_layers * (2 if net.bidirectional else 1)
    x = torch.randn(*((BATCH, STEPS) if net.batch_first else (STEPS, BATCH)), WIDE)
    h = torch.randn(layers, BATCH, net.proj_size or HIDDEN)
    state: Any = (h, torch.randn(layers, BATCH, HIDDEN)) if module is nn.LSTM else h
    results = []
    for f, n, device in ((net, net, "cpu"), (one_graph(ours, dynamic=False), ours, "tpu")):
        given = [t.detach().to(device).requires_grad_() for t in (x, *tree_leaves(state))]
        out = f(given[0], tuple(given[1:]) if module is nn.LSTM else given[1])
        sum((k + 1) * t.sin().sum() for k, t in enumerate(tree_leaves(out))).backward()
        results.append((out, [t.grad for t in (*given, *n.parameters())]))
    same(results[1], results[0], atol=2e-5)
    assert loops == [layers, layers]


@each_module
def test_without_gradients(module, loops):
    net, ours = both(module(WIDE, HIDDEN, 2, dropout=0.5).eval())
    x = torch.randn(STEPS, BATCH, WIDE)
    f = one_graph(ours, dynamic=False)
    with torch.no_grad():
        same(f(x.to("tpu")), net(x))
    with torch.inference_mode():
        same(f(x.to("tpu")), net(x))
    same(f(x[:, 0].to("tpu")), net(x[:, 0]))  # not in batches
    assert set(loops) == {2, 0} or set(loops) == {2}


@each_module
def test_autocast(module, loops):
    net, ours = both(module(WIDE, HIDDEN, bidirectional=True))
    x = torch.randn(STEPS, BATCH, WIDE)

    def forward(x: torch.Tensor) -> Any:
        with torch.autocast("tpu"):
            return ours(x)

    got, eager = one_graph(forward, dynamic=False)(x.to("tpu")), forward(x.to("tpu"))
    assert [t.dtype for t in tree_leaves(got)] == [t.dtype for t in tree_leaves(eager)]
    got[0].float().square().sum().backward()
    want = net(x)
    want[0].square().sum().backward()
    same([t.float() for t in tree_leaves(got)], want, atol=3e-2, rtol=3e-2)
    for a, b in zip(ours.parameters(), net.parameters(), strict=True):
        same(a.grad, b.grad, atol=3e-2 * b.grad.abs().max().item(), rtol=0)
    assert 2 in loops


def test_dropout_between_layers():
    """Draws what eager mode draws; at probability 1 the second layer sees zeros, on the CPU too."""
    net, ours = both(nn.LSTM(WIDE, HIDDEN, 2, dropout=1.0))
    x = torch.randn(STEPS, BATCH, WIDE)
    same(one_graph(ours)(x.to("tpu")), net(x))
    ours.dropout = 0.5
    given, found = x.to("tpu"), []
    for f in (ours, one_graph(ours)):
        torch.manual_seed(5)
        found.append(f(given)[0])
    same(found[1], found[0])
    torch.manual_seed(6)
    assert not torch.equal(one_graph(ours)(given)[0], found[0])


class Net(nn.Module):
    def __init__(self, module: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers, self.head = module(WIDE, HIDDEN, 2), nn.Linear(HIDDEN, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.layers(x)[0][-1]), y)


@each_module
def test_training_step(module):
    nets = both(Net(module))
    x, y = torch.randn(STEPS, BATCH, WIDE), torch.arange(BATCH) % 3
    for net, device in zip(nets, ("cpu", "tpu"), strict=True):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)

        def step(x: torch.Tensor, y: torch.Tensor, net: Any = net, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(x, y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        f = torch.compile(step, backend="tpu") if device == "tpu" else step
        losses = [f(x.to(device), y.to(device)).item() for _ in range(4)]
    assert losses[-1] < losses[0]
    same([*nets[1].parameters()], [*nets[0].parameters()], atol=2e-5)


@pytest.mark.parametrize("marked", [False, True])
@each_module
def test_lengths_and_batches_that_vary(module, marked):
    net, ours = both(module(WIDE, HIDDEN))
    f = one_graph(ours, dynamic=None if marked else True)
    for steps, batch in ((5, 4), (7, 4), (3, 6), (1, 4), (4, 0)):
        x = torch.randn(steps, batch, WIDE)
        given = x.to("tpu")
        if marked and steps > 1 and batch > 1:
            torch._dynamo.mark_dynamic(given, 0)
            torch._dynamo.mark_dynamic(given, 1)
        got, want = f(given), net(x)
        same(got, want)
        got[0].square().sum().backward()
        want[0].square().sum().backward()
    same([p.grad for p in ours.parameters()], [p.grad for p in net.parameters()], atol=2e-5)


def test_no_steps():
    net = nn.LSTM(WIDE, HIDDEN).to("tpu")
    with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
        torch.compile(net, backend="tpu")(torch.randn(0, BATCH, WIDE, device="tpu"))


@each_module
def test_packed_sequences(module):
    """Their lengths are data: such a module is called as in eager mode, between graphs."""
    net, ours = both(module(WIDE, HIDDEN, bidirectional=True))
    x = torch.randn(STEPS, 3, WIDE)

    def f(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        out, _ = net(packing.pack_padded_sequence(x * 2, [5, 3, 2]))
        return packing.pad_packed_sequence(out)[0] * 2

    same(torch.compile(f, backend="tpu")(ours, x.to("tpu")), f(net, x))


@each_module
def test_weights_change(module):
    """One replaced, loaded, frozen, or given from outside."""
    net, ours = both(module(WIDE, HIDDEN))
    x = torch.randn(STEPS, BATCH, WIDE)
    f = one_graph(ours)
    same(f(x.to("tpu")), net(x))
    for n in (net, ours):
        n.weight_hh_l0 = nn.Parameter(n.weight_hh_l0.detach() * 2)
        n.bias_hh_l0.requires_grad_(False)
    for factor in (1.0, 0.5):
        for n in (net, ours):
            n.load_state_dict({k: v * factor for k, v in n.state_dict().items()})
            n.zero_grad()
        got, want = f(x.to("tpu")), net(x)
        same(got, want)
        got[0].sum().backward()
        want[0].sum().backward()
        same(ours.weight_hh_l0.grad, net.weight_hh_l0.grad, atol=2e-5)
        assert ours.bias_hh_l0.grad is None

    def call(n: nn.Module, weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(n, weights, (x,))[0]

    def grads(n: nn.Module, weights: dict[str, torch.Tensor], x: torch.Tensor) -> dict[str, torch.Tensor]:
        return torch.func.grad(lambda w: call(n, w, x).square().sum())(weights)

    weights = {k: v.detach() * 3 for k, v in net.named_parameters()}
    theirs = {k: v.to("tpu") for k, v in weights.items()}
    same(one_graph(call)(ours, theirs, x.to("tpu")), call(net, weights, x))
    same(torch.compile(grads, backend="tpu")(ours, theirs, x.to("tpu")), grads(net, weights, x), atol=1e-4)


def test_other_backends_and_devices():
    """A trace runs under any backend; modules of other devices are what they were."""
    net, ours = both(nn.GRU(WIDE, HIDDEN))
    x = torch.randn(STEPS, BATCH, WIDE)
    want = net(x)
    for options in ({"backend": "eager"}, {"backend": "aot_eager"}, {}):
        torch._dynamo.reset()
        got = torch.compile(ours, fullgraph=True, **options)(x.to("tpu"))
        same(got, want)
        got[0].sum().backward()
    assert not torch._dynamo.config.allow_rnn
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="does not support RNN"):
        torch.compile(net, backend="eager", fullgraph=True)(x)


def test_exported_graphs_have_atens_ops():
    ours = nn.LSTM(WIDE, HIDDEN).to("tpu").eval()
    one_graph(ours)(torch.randn(STEPS, BATCH, WIDE, device="tpu"))
    exported = torch.export.export(ours, (torch.randn(STEPS, BATCH, WIDE, device="tpu"),)).run_decompositions({})
    assert not [n for n in exported.graph.nodes if getattr(n.target, "namespace", "aten") not in ("aten", "_operator")]
