"""Every optimizer of torch.optim over PyTorch's own database of their arguments, in every implementation, beside CPU PyTorch.

A sample here; ``python tests/python/test_optim_db.py`` (part of ``make sweep``) runs all. Nothing runs on the CPU.
"""

import dataclasses
import hashlib
import sys

import pytest
import torch
import torch_tpu
from torch.testing._internal.common_optimizers import optim_db

DEV = "tpu"
SHAPES = ((4, 3), (5, 2), (6, 4))
STEPS = 3
TOLERANCE = {torch.float32: {"rtol": 2e-5, "atol": 2e-6}, torch.bfloat16: {"rtol": 3e-2, "atol": 8e-3}}
# Steps so long that the rounding of one step decides the next: only how they end is compared, and loosely.
ROUGH = {("LBFGS", torch.bfloat16), ("Rprop", torch.bfloat16)}
INFOS = {info.optim_cls.__name__: info for info in optim_db}


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    dtype: torch.dtype
    place: int  # in the database's list of arguments
    implementation: str  # single, foreach, fused, differentiable; capturable and capturable-foreach where that can be said

    @property
    def id(self) -> str:
        return f"{self.name}-{str(self.dtype)[6:]}-{self.place}-{self.implementation}"

    def kwargs(self, device: str) -> dict:
        given = dict(INFOS[self.name].optim_inputs_func(device="cpu", dtype=self.dtype)[self.place].kwargs)
        given = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in given.items()}
        for which in ("foreach", "fused", "differentiable"):
            if which in INFOS[self.name].supported_impls:
                given[which] = self.implementation.endswith(which)
        if self.implementation.startswith("capturable") and device == DEV:  # PyTorch has no such steps on the CPU
            given["capturable"] = True
        return given


def implementations(info) -> list[str]:
    found = ["single", *info.supported_impls]
    if info.has_capturable_arg:
        found += ["capturable", "capturable-foreach"]
    return found


def all_cases() -> list[Case]:
    return [
        Case(name, dtype, place, which)
        for name, info in INFOS.items()
        if name != "SparseAdam"
        for dtype in (torch.float32, torch.bfloat16)
        for place in range(len(info.optim_inputs_func(device="cpu", dtype=dtype)))
        for which in implementations(info)
    ]


def sampled_cases() -> list[Case]:
    """Each optimizer in each implementation, with arguments and a type chosen by a hash."""
    by_kind: dict[tuple, list[Case]] = {}
    for case in all_cases():
        by_kind.setdefault((case.name, case.implementation), []).append(case)
    chosen = []
    for kind, cases in by_kind.items():
        h = int.from_bytes(hashlib.sha256(repr(kind).encode()).digest()[:4], "big")
        chosen += [cases[h % len(cases)], cases[(h // len(cases)) % len(cases)]]
    return sorted(set(chosen), key=lambda c: c.id)


def parameters(device: str, dtype: torch.dtype, differentiable: bool = False) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    found = [torch.randn(s, generator=g).to(dtype).to(device).requires_grad_() for s in SHAPES]
    return [p.clone() for p in found] if differentiable else found  # a step that is recorded writes no leaf


def give_gradients(ps, step: int) -> None:
    g = torch.Generator().manual_seed(100 + step)
    for p in ps:
        p.grad = torch.randn(p.shape, generator=g).to(p.dtype).to(p.device)


def one_step(opt, ps, step: int) -> None:
    if isinstance(opt, torch.optim.LBFGS):

        def closure():
            opt.zero_grad()
            loss = sum((p * p).sum() + p.cos().sum() for p in ps)
            loss.backward()
            return loss

        opt.step(closure)
    else:
        give_gradients(ps, step)
        opt.step()


def run(case: Case, device: str) -> list[torch.Tensor]:
    differentiable = case.implementation == "differentiable"
    ps = parameters(device, case.dtype, differentiable)
    opt = INFOS[case.name].optim_cls(ps, **case.kwargs(device))
    for step in range(STEPS):
        one_step(opt, ps, step)
    if not differentiable:  # what is saved and loaded goes on alike
        again = INFOS[case.name].optim_cls(ps, **case.kwargs(device))
        again.load_state_dict(opt.state_dict())
        one_step(again, ps, STEPS)
    return [p.detach().cpu() for p in ps]


def check(case: Case) -> None:
    torch.tpu.reset_fallbacks()
    got = run(case, DEV)
    assert torch.tpu.fallbacks() == {}
    if case.implementation == "fused" and case.dtype == torch.bfloat16:
        # The CPU's fused SGD rounds within its step, and is further from float64 than the device: the plain form is compared with.
        case = dataclasses.replace(case, implementation="single")
    want = run(case, "cpu")
    tolerance = {"rtol": 0.1, "atol": 0.1} if (case.name, case.dtype) in ROUGH else TOLERANCE[case.dtype]
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g, w, **tolerance)


@pytest.mark.parametrize("case", sampled_cases(), ids=lambda c: c.id)
def test_optimizer(case):
    check(case)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_fused_is_the_devices_own(name):
    """`fused=True` is one program a step, whatever number of parameters there is."""
    ps = parameters(DEV, torch.float32)
    opt = getattr(torch.optim, name)(ps, lr=0.01, fused=True)
    for step in range(2):
        one_step(opt, ps, step)
    give_gradients(ps, 2)
    before = torch_tpu._C.stats(0)["calls"]
    opt.step()
    assert torch_tpu._C.stats(0)["calls"] - before <= 2


def run_groups(device: str, make, schedule=None) -> list[torch.Tensor]:
    ps = parameters(device, torch.float32)
    opt = make([{"params": ps[:1], "lr": 0.1}, {"params": ps[1:], "weight_decay": 0.2}])
    scheduler = schedule(opt) if schedule is not None else None
    for step in range(4):
        one_step(opt, ps, step)
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(ps[0].detach().square().sum())
        elif scheduler is not None:
            scheduler.step()
    return [p.detach().cpu() for p in ps] + [torch.tensor([float(g["lr"]) for g in opt.param_groups])]


def schedules():
    s = torch.optim.lr_scheduler
    return {
        "Step": lambda o: s.StepLR(o, step_size=2, gamma=0.9),
        "MultiStep": lambda o: s.MultiStepLR(o, [1, 3]),
        "Exponential": lambda o: s.ExponentialLR(o, 0.8),
        "Cosine": lambda o: s.CosineAnnealingLR(o, 5),
        "WarmRestarts": lambda o: s.CosineAnnealingWarmRestarts(o, 2),
        "Linear": lambda o: s.LinearLR(o),
        "Lambda": lambda o: s.LambdaLR(o, lambda k: 1 / (1 + k)),
        "OneCycle": lambda o: s.OneCycleLR(o, max_lr=0.1, total_steps=6),
        "Polynomial": lambda o: s.PolynomialLR(o, 5),
        "Plateau": lambda o: s.ReduceLROnPlateau(o, patience=0),
        "Sequential": lambda o: s.SequentialLR(o, [s.ConstantLR(o, 0.5, 2), s.ExponentialLR(o, 0.9)], [2]),
    }


@pytest.mark.parametrize("name", schedules())
def test_schedule_and_groups(name):
    def make(groups):
        momentum = {"momentum": 0.9} if name != "Plateau" else {}
        return torch.optim.SGD(groups, lr=0.05, **momentum)

    want, got = (run_groups(d, make, schedules()[name]) for d in ("cpu", DEV))
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g, w, rtol=2e-5, atol=2e-6)


def test_learning_rate_in_a_tensor():
    """On the CPU or on the device; a new value compiles nothing."""
    want = run_groups("cpu", lambda groups: torch.optim.Adam(groups, lr=torch.tensor(0.05), foreach=False))
    for device in ("cpu", DEV):
        for how in ({"fused": True}, {"foreach": True, "capturable": True}):
            got = run_groups(DEV, lambda groups, d=device, h=how: torch.optim.Adam(groups, lr=torch.tensor(0.05, device=d), **h))
            for w, g in zip(want, got, strict=True):
                torch.testing.assert_close(g, w, rtol=2e-5, atol=2e-6)


def test_errors_are_pytorchs():
    for name, info in INFOS.items():
        for wrong in info.optim_error_inputs_func(device=DEV, dtype=torch.float32):
            given = wrong.optimizer_error_input
            with pytest.raises(wrong.error_type, match=wrong.error_regex):
                opt = info.optim_cls(given.params, **given.kwargs)
                opt.step()
            assert name


@pytest.mark.parametrize("mode", ["norm", "norm_inf", "norm_1", "value"])
@pytest.mark.parametrize("foreach", [True, False])
def test_clipping(mode, foreach):
    def clip(device):
        ps = parameters(device, torch.float32)
        give_gradients(ps, 0)
        if mode == "value":
            torch.nn.utils.clip_grad_value_(ps, 0.3, foreach=foreach)
            total = torch.zeros(())
        else:
            p = {"norm": 2.0, "norm_inf": float("inf"), "norm_1": 1.0}[mode]
            total = torch.nn.utils.clip_grad_norm_(ps, 0.7, p, error_if_nonfinite=True, foreach=foreach).cpu()
        return [p.grad.cpu() for p in ps] + [total]

    torch.tpu.reset_fallbacks()
    for w, g in zip(clip("cpu"), clip(DEV), strict=True):
        torch.testing.assert_close(g, w)
    assert torch.tpu.fallbacks() == {}


def test_grad_scaler_skips_a_step_with_infinities():
    p = torch.ones(3, device=DEV, requires_grad=True)
    opt = torch.optim.SGD([p], lr=1.0)
    scaler = torch.amp.GradScaler(DEV, init_scale=4.0, growth_interval=1)
    for grad, want, scale in (
        ([4.0, 8.0, 0.0], [0.0, -1.0, 1.0], 8.0),
        ([float("inf"), 0.0, 0.0], [0.0, -1.0, 1.0], 4.0),
        ([float("nan"), 0.0, 0.0], [0.0, -1.0, 1.0], 2.0),
        ([2.0, 2.0, 2.0], [-1.0, -2.0, 0.0], 4.0),
    ):
        p.grad = torch.tensor(grad, device=DEV)
        scaler.scale(torch.ones((), device=DEV))
        scaler.step(opt)
        scaler.update()
        assert p.tolist() == want
        assert scaler.get_scale() == scale
    again = torch.amp.GradScaler(DEV)
    again.load_state_dict(scaler.state_dict())
    assert again.get_scale() == 4.0


if __name__ == "__main__":
    failed = 0
    for case in all_cases():
        try:
            check(case)
        except Exception as e:
            failed += 1
            print(f"{case.id}: {type(e).__name__}: {str(e).strip().splitlines()[0]}", flush=True)
    print(f"{len(all_cases())} cases, {failed} failed")
    sys.exit(failed > 0)
