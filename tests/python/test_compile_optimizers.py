"""Optimizers' steps in functions that ``torch.compile`` compiles, beside CPU PyTorch without it."""

import pytest
import torch
import torch_tpu  # noqa: F401
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

DEV = "tpu"
FUSED = {
    "Adam": {},
    "AdamW": {"amsgrad": True, "maximize": True},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "Adagrad": {"lr_decay": 0.1},
}


def parameters(device, dtype=torch.float32):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(n, 3).to(device, dtype)) for n in (2, 5)]


def gradients(params, seed):
    torch.manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape).to(p.device, p.dtype)


def compiled(f, **kwargs):
    torch._dynamo.reset()
    return torch.compile(f, **({"backend": "tpu"} | kwargs))


def close(got, want):
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.detach().cpu(), w.detach(), rtol=2e-5, atol=2e-6)


def traced():
    stats = torch.tpu.compile_stats()
    return stats["graphs"] + len(stats["recompiles"])


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def steps(device, name, wrap=lambda f: f, n=5, **kwargs):
    """Parameters after some steps under a schedule."""
    params = parameters(device)
    optimizer = getattr(torch.optim, name)(params, lr=0.1, **kwargs)
    step = wrap(optimizer.step)
    for i in range(n):
        gradients(params, i)
        step()
        optimizer.param_groups[0]["lr"] *= 0.8
    return params


def steps_at(rate, name, n):
    """Parameters on the CPU after n steps at one rate."""
    params = parameters("cpu")
    optimizer = getattr(torch.optim, name)(params, lr=rate)
    for i in range(n):
        gradients(params, i)
        optimizer.step()
    return params


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("backend", [{"backend": "tpu"}, {}], ids=["named", "default"])
def test_the_fused_ones_are_never_traced(name, backend):
    before = traced()
    got = steps(DEV, name, lambda f: compiled(f, **backend), **FUSED[name])
    assert traced() == before
    close(got, steps("cpu", name, **FUSED[name]))


@pytest.mark.parametrize("told", [{"foreach": True}, {"fused": False}, {"foreach": False}], ids=str)
def test_one_that_is_told_how_to_step_is_traced(told):
    before = traced()
    got = steps(DEV, "AdamW", compiled, **told)
    assert traced() > before
    close(got, steps("cpu", "AdamW"))


@pytest.mark.parametrize("name", ["AdamW", "NAdam"])
def test_a_step_as_one_graph(name):
    before = torch.tpu.compile_stats()["graphs"]
    got = steps(DEV, name, lambda f: compiled(f, fullgraph=True), n=1)
    assert torch.tpu.compile_stats()["graphs"] == before + 1
    close(got, steps("cpu", name, n=1))


def test_one_of_the_users_own_is_traced():
    class Mine(torch.optim.AdamW):
        def _init_group(self, group, *lists):
            return super()._init_group(group, *lists)

    params = parameters(DEV)
    gradients(params, 0)
    before = traced()
    compiled(Mine(params).step)()
    assert traced() > before


@pytest.mark.parametrize("name", ["NAdam", "RMSprop", "Adamax", "Adadelta"])
def test_a_traced_step_is_one_program(name):
    params = parameters(DEV)
    optimizer = getattr(torch.optim, name)(params, lr=0.1)
    step = compiled(optimizer.step)
    for i in range(3):
        gradients(params, i)
        step()
    with Names() as names:
        gradients(params, 3)
        names.found.clear()
        step()
    assert names.found <= {"_record_function_enter_new", "_record_function_exit"}  # nothing is called one by one
    assert all(s["step"].device.type == DEV for s in optimizer.state.values())
    close(params, steps_at(0.1, name, 4))
    gradients(params, 4)
    optimizer.step()  # without the compiler
    close(params, steps_at(0.1, name, 5))


def test_options_hold_for_the_step_too():
    before = traced()
    steps(DEV, "AdamW", lambda f: compiled(f, options={"xla_optimization_level": "O1"}), n=1)
    assert traced() == before + 1


def test_eager_steps_stay_what_they_were():
    params = parameters(DEV)
    optimizer = torch.optim.AdamW(params)
    gradients(params, 0)
    compiled(optimizer.step)()
    assert optimizer.param_groups[0]["fused"] is None
    assert optimizer.param_groups[0]["foreach"] is None
    with Names() as names:
        optimizer.step()
    assert not any(n.startswith("_fused") for n in names.found)
    assert {s["step"].item() for s in optimizer.state.values()} == {2.0}


def test_compiled_and_eager_steps_in_turns():
    got = {}
    for device in ("cpu", DEV):
        params = got[device] = parameters(device)
        optimizer = torch.optim.Adam(params, lr=0.1)
        both = [optimizer.step, compiled(optimizer.step) if device == DEV else optimizer.step]
        for i in range(5):
            gradients(params, i)
            both[i % 2]()
    close(got[DEV], got["cpu"])


def test_state_that_was_loaded():
    got = {}
    for device in ("cpu", DEV):
        first = torch.optim.AdamW(parameters("cpu"), lr=0.1)
        gradients(first.param_groups[0]["params"], 0)
        first.step()
        params = got[device] = parameters(device)
        optimizer = torch.optim.AdamW(params, lr=0.1)
        optimizer.load_state_dict(first.state_dict())
        gradients(params, 1)
        (compiled(optimizer.step) if device == DEV else optimizer.step)()
    close(got[DEV], got["cpu"])


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad"])
def test_a_parameter_whose_gradient_comes_later(name):
    got = {}
    for device in ("cpu", DEV):
        params = got[device] = parameters(device)
        optimizer = getattr(torch.optim, name)(params, lr=0.1, **FUSED[name])
        step = compiled(optimizer.step) if device == DEV else optimizer.step
        for i in range(4):
            gradients(params, i)
            if i in (0, 2):
                params[0].grad = None
            step()
    close(got[DEV], got["cpu"])


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_sparse_gradients(name):
    got = {}
    for device in ("cpu", DEV):
        torch.manual_seed(0)
        table = nn.Embedding(6, 3, sparse=True).to(device)
        optimizer = getattr(torch.optim, name)(table.parameters(), lr=0.1)
        step = compiled(optimizer.step) if device == DEV else optimizer.step
        for _ in range(2):
            optimizer.zero_grad()
            table(torch.tensor([1, 4, 1], device=device)).square().sum().backward()
            step()
        got[device] = [table.weight]
    close(got[DEV], got["cpu"])


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_a_rate_that_is_a_tensor(name):
    got = {}
    for device in ("cpu", DEV):
        params = got[device] = parameters(device)
        rate = torch.tensor(0.1)
        optimizer = getattr(torch.optim, name)(params, lr=rate)
        step = compiled(optimizer.step) if device == DEV else optimizer.step
        for i in range(3):
            gradients(params, i)
            step()
            rate.mul_(0.5)
    close(got[DEV], got["cpu"])


@pytest.mark.parametrize("name", ["AdamW", "RMSprop"])
def test_closures(name):
    got = {}
    for device in ("cpu", DEV):
        params = got[device] = parameters(device)
        optimizer = getattr(torch.optim, name)(params, lr=0.1)

        def closure(optimizer=optimizer, params=params):
            optimizer.zero_grad()
            loss = sum(p.square().sum() for p in params)
            loss.backward()
            return loss

        step = compiled(optimizer.step) if device == DEV else optimizer.step
        got[device] = [*params, *(step(closure).detach() for _ in range(3))]
    close(got[DEV], got["cpu"])


def test_hooks_run():
    params, seen = parameters(DEV), []
    optimizer = torch.optim.AdamW(params)
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    gradients(params, 0)
    step = compiled(optimizer.step)
    step()
    step()
    assert seen == ["before", "after"] * 2


@pytest.mark.parametrize("stance", ["eager_on_recompile", "fail_on_recompile", "force_eager"])
def test_stances(stance):
    params = parameters(DEV)
    optimizer = torch.optim.AdamW(params, lr=0.1)
    step = compiled(optimizer.step)
    gradients(params, 0)
    step()
    with torch.compiler.set_stance(stance), Names() as names:
        gradients(params, 1)
        step()
    assert ("_fused_adamw_" in names.found) == (stance != "force_eager")
    close(params, steps_at(0.1, "AdamW", 2))


def test_other_devices_are_traced_as_ever():
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return module

    compiled(lambda x: x + 1)(torch.ones(2, device=DEV))
    got = steps("cpu", "AdamW", lambda f: compiled(f, backend=backend))
    assert graphs
    close(got, steps("cpu", "AdamW"))
