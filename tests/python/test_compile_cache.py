"""What a later process need not do again: traces, programs."""

import pytest
import torch
import torch._dynamo
from child import good
from torch import nn
from torch._dynamo.utils import counters

DEV = "tpu"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """PyTorch's caches of this test alone."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "traces"))
    again()


def again():
    """As a new process would start."""
    torch._dynamo.reset()
    counters.clear()


def hits():
    return counters["aot_autograd"]["autograd_cache_hit"]


TRAIN = """
    import torch, torch_tpu
    from torch import nn
    from torch._dynamo.utils import counters
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.arange(24.0).view(4, 6).sin().to("tpu")

    @torch.compile(backend="tpu")
    def step(x):
        loss = model(x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    print([f"{step(x).item():.6f}" for _ in range(3)])
    print(torch.tpu.compile_stats()["compiled"], counters["aot_autograd"]["autograd_cache_miss"])
"""


def test_a_second_process_traces_nothing_and_compiles_nothing(tmp_path):
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "traces"), "TORCH_TPU_CACHE_DIR": str(tmp_path / "programs")}
    (losses, first), (same, second) = (good(TRAIN, **env).splitlines() for _ in range(2))
    assert losses == same
    assert all(int(n) > 0 for n in first.split())
    assert second.split() == ["0", "0"]


def test_forward_and_backward_are_kept_with_their_symbols():
    def run(n):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).to(DEV)
        f = torch.compile(layer, backend="tpu", dynamic=True)
        out = [f(torch.linspace(-1, 1, 2 * k * 16, device=DEV).view(2, k, 16)) for k in (n, n + 3)]
        sum(y.square().sum() for y in out).backward()
        return [*out, *(p.grad for p in layer.parameters())]

    want = run(5)
    assert hits() == 0
    again()
    for g, w in zip(run(5), want, strict=True):
        assert torch.equal(g.cpu(), w.cpu())
    assert hits() > 0


def test_a_trace_that_depends_on_a_float_is_not_taken_for_another():
    def f(x, scale):
        return x * 2 if scale < 0.5 else x * scale

    x = torch.ones(3, device=DEV)
    for _ in range(2):
        again()
        g = torch.compile(f, backend="tpu")
        assert [g(x, s)[0].item() for s in (0.25, 0.75, 0.125, 3.0)] == [2.0, 0.75, 2.0, 3.0]


def test_constants_are_kept():
    def f(x):
        return x + torch.tensor([1.0, 2.0, 3.0], device=DEV) * torch.tensor(2.0)

    for _ in range(2):
        again()
        assert torch.compile(f, backend="tpu")(torch.zeros(3, device=DEV)).tolist() == [2.0, 4.0, 6.0]
    assert hits() == 1


def test_another_backends_trace_is_another():
    def f(x):
        return x.sin() + 1

    x = torch.ones(3, device=DEV)
    with torch._functorch.config.patch(force_autograd_cache=True):
        torch.compile(f, backend="aot_eager")(x)
    again()
    torch.testing.assert_close(torch.compile(f, backend="tpu")(x).cpu(), f(x.cpu()))
    assert hits() == 0
