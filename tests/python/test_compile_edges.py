"""torch.compile where inputs share memory, where threads compile at once, and with arguments that are none."""

import copy
import json
import os
import threading
import zipfile

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.comptime import comptime

DEV = "tpu"
pytestmark = pytest.mark.usefixtures("untraced")
compiler = torch.tpu.compiler


@pytest.mark.parametrize("dynamic", [False, True])
def test_written_inputs_that_overlap_are_returned_in_their_own_places(dynamic):
    def f(x, y):
        return x.add_(1), y.mul_(3), x + y

    g = torch.compile(f, backend=DEV, dynamic=dynamic)
    for _ in range(2):
        base = torch.arange(12.0).reshape(6, 2)
        there = base.to(DEV)
        want, got = f(base[:4], base[2:]), g(there[:4], there[2:])
        torch.testing.assert_close([t.cpu() for t in got], [*want])
        torch.testing.assert_close(there.cpu(), base)
        got[1].zero_()
        assert there[2:].abs().sum().item() == 0


def test_threads_meet_a_graph_before_its_program_is_made():
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)).to(DEV)
    g = torch.compile(model, backend=DEV)
    x = torch.randn(3, 5, device=DEV)
    want = model(x).detach().cpu()
    start, got = threading.Barrier(4), []

    def call():
        start.wait()
        got.extend(g(x).detach() for _ in range(5))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == 20  # what raises ends its thread
    for out in got:
        torch.testing.assert_close(out.cpu(), want)


@pytest.mark.parametrize("options", [3, "precision", [("precision", "high")]])
@pytest.mark.parametrize("backend", [{"backend": DEV}, {}])
def test_options_that_are_no_dict(options, backend):
    with pytest.raises(TypeError, match="expected options as a dict"):
        torch.compile(lambda x: x, options=options, **backend)
    with pytest.raises(TypeError, match="expected options as a dict"), compiler.custom_compiler_options(options):
        pass


@pytest.mark.parametrize("bounds", [{"least": "8"}, {"least": None}, {"least": 2.5}, {"factor": "2"}])
def test_bounds_that_are_no_numbers(bounds):
    with pytest.raises(TypeError, match="expected least as an int and factor as a number"):
        compiler.set_dynamic_bounds(**bounds)


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 1])
def test_factors_that_bounds_cannot_grow_by(factor):
    with pytest.raises(ValueError, match="factor > 1"):
        compiler.set_dynamic_bounds(factor=factor)


def test_dump_needs_a_folder():
    with pytest.raises(TypeError, match="NoneType"), compiler.dump(None):
        pass


def test_caches_that_are_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="is no file"):
        compiler.save_cache(tmp_path / "pipe")
    with pytest.raises(TypeError, match="NoneType"):
        compiler.load_cache(None)
    for path in (os.devnull, tmp_path, tmp_path / "pipe"):
        with pytest.raises(RuntimeError, match="is no file"):
            compiler.load_cache(path)
    for made_by in ([1], None, 7):
        with zipfile.ZipFile(tmp_path / "cache", "w") as archive:
            archive.writestr("made_by.json", json.dumps(made_by))
        with pytest.raises(RuntimeError, match="is no saved compile cache"):
            compiler.load_cache(tmp_path / "cache")


traces = []


def _count(context):
    traces.append(context)


def test_a_forward_pass_before_backward_is_traced_once():
    model = nn.Linear(4, 3).to(DEV)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    twin = copy.deepcopy(model).cpu()
    twins = torch.optim.AdamW(twin.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        comptime(_count)
        loss.backward()
        optimizer.step()
        return loss.detach()

    torch._dynamo.utils.counters.clear()
    traces.clear()
    g = torch.compile(step, backend=DEV)
    for _ in range(3):
        x = torch.randn(5, 4)
        twins.zero_grad()
        loss = twin(x).square().mean()
        loss.backward()
        twins.step()
        torch.testing.assert_close(g(x.to(DEV)).cpu(), loss.detach())
        torch.testing.assert_close(model.weight.cpu(), twin.weight)
    assert len(traces) == 1
    assert any("backward" in why for why in torch._dynamo.utils.counters["graph_break"])


def test_breaks_that_are_known_are_still_refused_where_none_may_be():
    w = torch.ones(3, device=DEV, requires_grad=True)

    def whole(x):
        (x * w).sum().backward()
        return x + 1

    def loop(x):
        for _ in range(2):
            y = (x * w).sum()
            y.backward()
        return y

    x = torch.ones(3, device=DEV)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="backward"):
        torch.compile(whole, backend=DEV, fullgraph=True)(x)
    assert torch._dynamo.explain(whole)(x).graph_break_count == 1
    w.grad = None
    assert torch.compile(loop, backend=DEV)(x).item() == 3
    assert w.grad.tolist() == [2, 2, 2]


def _twice(model, x):
    loss = model(x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return loss.detach()


def _inside_autocast(model, x):
    with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=False):
        loss = model(x).square().mean()
        loss.backward()
    return loss.detach()


@pytest.mark.parametrize("step", [_twice, _inside_autocast])
def test_backward_in_the_midst_of_a_compiled_function(step):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    there = copy.deepcopy(model).to(DEV)
    g = torch.compile(step, backend=DEV)
    for _ in range(2):
        x = torch.randn(3, 4)
        torch.testing.assert_close(g(there, x.to(DEV)).cpu(), step(model, x))
        for p, q in zip(there.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(p.grad.cpu(), q.grad)
