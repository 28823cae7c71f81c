"""foreach ops, fused optimizers, gradient clipping and GradScaler, beside CPU PyTorch."""

import pytest
import torch
import torch_tpu

DEV = "tpu"


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def lists(n=1, dtype=torch.float32, positive=False):
    out = []
    for _ in range(n):
        ts = [torch.randn(2, 3), torch.randn(5), torch.randn(())]
        out.append([(t.abs() + 0.5 if positive else t).to(dtype) for t in ts])
    return out


def same(name, *args, rtol=1e-6, atol=1e-6, **kwargs):
    """torch._foreach_`name` and its in-place form."""

    def move(v):
        if isinstance(v, torch.Tensor):
            return v.to(DEV)
        return [move(t) for t in v] if isinstance(v, list) and v and isinstance(v[0], torch.Tensor) else v

    f = getattr(torch, f"_foreach_{name}", None)
    if f is not None:
        want, got = f(*args, **kwargs), f(*[move(a) for a in args], **kwargs)
        for w, g in zip(want, got, strict=True):
            torch.testing.assert_close(g.cpu(), w, rtol=rtol, atol=atol)
    f = getattr(torch, f"_foreach_{name}_", None)
    if f is not None and isinstance(args[0], list):
        want, got = [t.clone() for t in args[0]], [t.to(DEV) for t in args[0]]
        f(want, *args[1:], **kwargs)
        f(got, *[move(a) for a in args[1:]], **kwargs)
        for w, g in zip(want, got, strict=True):
            torch.testing.assert_close(g.cpu(), w, rtol=rtol, atol=atol)


UNARY = ["abs", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "neg", "round", "sigmoid", "sign", "sin"]
UNARY += ["sinh", "tan", "tanh", "trunc", "zero"]
POSITIVE = ["acos", "asin", "atan", "lgamma", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt"]


@pytest.mark.parametrize("name", UNARY + POSITIVE)
def test_unary(name):
    if name == "zero":
        same(name, *lists())
    elif name in ("acos", "asin"):
        same(name, [t.tanh() for t in lists()[0]], rtol=1e-5, atol=1e-5)
    else:
        same(name, *lists(positive=name in POSITIVE), rtol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_arithmetic(dtype):
    a, b = lists(2, dtype)
    tol = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
    for name in ["add", "sub", "mul"]:
        same(name, a, b, **tol)
        same(name, a, 3, **tol)
        same(name, a, [1, 2, 3], **tol)
    same("add", a, b, alpha=2, **tol)
    same("sub", a, b, alpha=1, **tol)
    same("maximum", a, b)
    same("minimum", a, b)
    same("clamp_min", a, 1)
    same("clamp_max", a, [1, 2, 3])
    same("copy", a, b)
    if dtype != torch.int64:
        same("add", a, 0.25, **tol)
        same("div", a, [t + 5 for t in b], **tol)
        same("div", a, 3.0, **tol)
        same("mul", a, torch.tensor(2.5), **tol)
        same("div", a, torch.tensor(2.5), **tol)
        same("add", a, torch.tensor(2.5), alpha=3, **tol)


def test_ternary_and_powers():
    a, b, c = lists(3, positive=True)
    same("lerp", a, b, 0.3)
    same("lerp", a, b, c)
    same("lerp", a, b, [0.1, 0.6, 2.0])
    for name in ["addcmul", "addcdiv"]:
        same(name, a, b, c, 0.5, rtol=2e-6)
        same(name, a, b, c, [0.5, 1.0, 2.0], rtol=2e-6)
    same("pow", a, 2)
    same("pow", a, [0.5, 2.0, -1.0], rtol=2e-6)
    same("pow", a, b, rtol=2e-6)
    want, got = torch._foreach_pow(0.9, a), torch._foreach_pow(0.9, [t.to(DEV) for t in a])
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g.cpu(), w)


def test_norms_and_mixed_types():
    a = lists()[0]
    for p in [1, 2, float("inf"), 0.5]:
        for w, g in zip(torch._foreach_norm(a, p), torch._foreach_norm([t.to(DEV) for t in a], p), strict=True):
            torch.testing.assert_close(g.cpu(), w)
    mixed = [torch.randn(3), torch.arange(4), torch.randn(2).to(torch.bfloat16)]
    for w, g in zip(torch._foreach_mul(mixed, 2), torch._foreach_mul([t.to(DEV) for t in mixed], 2), strict=True):
        torch.testing.assert_close(g.cpu(), w)
    for w, g in zip(torch._foreach_max(a), torch._foreach_max([t.to(DEV) for t in a]), strict=True):
        assert g.cpu() == w


def test_numbers_do_not_compile():
    a = [t.to(DEV) for t in lists()[0]]
    torch._foreach_mul_(a, 0.5)
    torch._foreach_addcdiv_(a, a, a, [0.1, 0.2, 0.3])
    torch.tpu.synchronize()
    before = torch_tpu._C.stats(0)["programs_compiled"]
    for k in range(5):
        torch._foreach_mul_(a, 0.1 * k)
        torch._foreach_addcdiv_(a, a, a, [0.1 * k, 0.2, 0.3 * k])
    torch.tpu.synchronize()
    assert torch_tpu._C.stats(0)["programs_compiled"] == before


def train(device, make, steps=4, dtype=torch.float32, scaler=False):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(dtype).to(device)
    opt = make(model.parameters())
    scale = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2) if scaler else None
    for k in range(steps):
        x = torch.linspace(-1, 1, 20).reshape(5, 4).to(dtype).to(device) + 0.1 * k
        loss = model(x).square().mean()
        if scale is None:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
        else:
            if k == 1:
                loss = loss * float("inf")
            scale.scale(loss).backward()
            scale.step(opt)
            scale.update()
        opt.zero_grad()
    return [p.detach().cpu() for p in model.parameters()] + ([torch.tensor(scale.get_scale())] if scaler else [])


def optimizers():
    o = torch.optim
    for fused in [{"fused": True}, {"foreach": True}]:
        yield lambda p, f=fused: o.Adam(p, lr=0.01, **f)
        yield lambda p, f=fused: o.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True, maximize=True, **f)
        yield lambda p, f=fused: o.AdamW(p, lr=0.01, weight_decay=0.1, **f)
        yield lambda p, f=fused: o.SGD(p, lr=0.1, **f)
        yield lambda p, f=fused: o.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, **f)
        yield lambda p, f=fused: o.SGD(p, lr=0.1, momentum=0.9, dampening=0.2, maximize=True, **f)
        yield lambda p, f=fused: o.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.1, **f)
    for make in [o.RMSprop, o.Adadelta, o.Adamax, o.NAdam, o.RAdam, o.Rprop, o.ASGD]:
        yield lambda p, m=make: m(p, lr=0.01, foreach=True)
    yield lambda p: o.AdamW(p, lr=torch.tensor(0.01), fused=True)


@pytest.mark.parametrize("k", range(22))
def test_optimizer(k):
    make = list(optimizers())[k]
    for want, got in zip(train("cpu", make), train(DEV, make), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("fused", [True, False])
def test_grad_scaler(fused):
    def make(p):
        return torch.optim.AdamW(p, lr=0.01, fused=fused)

    for want, got in zip(train("cpu", make, 5, scaler=True), train(DEV, make, 5, scaler=True), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-6)


def test_bfloat16_parameters():
    def make(p):
        return torch.optim.AdamW(p, lr=0.01, fused=True)

    for want, got in zip(train("cpu", make, dtype=torch.bfloat16), train(DEV, make, dtype=torch.bfloat16), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=4e-3)


def test_schedule_does_not_compile():
    p = [torch.randn(4, 3, device=DEV, requires_grad=True)]
    opt = torch.optim.AdamW(p, lr=0.01, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
    before = 0
    for k in range(6):
        p[0].grad = torch.randn(4, 3).to(DEV)
        opt.step()
        sched.step()
        torch.tpu.synchronize()
        if k == 2:
            before = torch_tpu._C.stats(0)["programs_compiled"]
    assert torch_tpu._C.stats(0)["programs_compiled"] == before
