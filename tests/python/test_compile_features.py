"""What else Dynamo offers, under ``torch.compile(backend="tpu")``: random numbers, modes, graph breaks, higher-order ops."""

import pytest
import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint
import torch_tpu
from conftest import compiled
from torch_tpu import _compile

DEV = "tpu"
pytestmark = pytest.mark.usefixtures("untraced")


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
    "binomial": lambda x: (torch.binomial(torch.full_like(x, 8.0), x), torch._sample_dirichlet(x + 1)),
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


# ------------------------------------------------------------------------------------------- backend, modes and options


def where(f):
    """How a compiled function was compiled: how many calls of the core one call of it makes."""
    f()
    before = calls()
    f()
    return calls() - before


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x):
        return self.layers(x)


def test_the_default_backend_is_the_tensors_devices():
    def f(x):
        return (x.sin() + x.cos()).sum()

    x = torch.rand(5)
    on = x.to(DEV)
    for g in (torch.compile(f), torch.compile(fullgraph=True)(f), torch.compile(f, mode="max-autotune-no-cudagraphs")):
        torch.testing.assert_close(g(on).cpu(), f(x))
        assert where(lambda g=g: g(on)) == 1
    model = Perceptron().to(DEV)
    want = model(on)
    model.compile()
    torch.testing.assert_close(model(on), want)
    assert where(lambda: model(on)) == 1
    assert where(torch.compile(lambda: torch.arange(5, device=DEV) * 2 + 1)) == 1


def test_on_the_cpu_the_default_stays_inductor(monkeypatch):
    seen = []
    from torch._inductor import compile_fx

    monkeypatch.setattr(compile_fx, "compile_fx", lambda module, inputs, **kwargs: seen.append(kwargs) or module.forward)
    f = torch.compile(lambda x: x * 2, mode="max-autotune-no-cudagraphs")
    assert f(torch.ones(2)).tolist() == [2, 2]
    assert seen
    assert seen[0]["config_patches"]["max_autotune"] is True
    assert f(torch.ones(2, device=DEV)).tolist() == [2, 2]
    assert len(seen) == 1


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes(mode):
    f = compiled(lambda x: x @ x + 1, mode=mode)
    x = torch.rand(4, 4)
    torch.testing.assert_close(f(x.to(DEV)).cpu(), x @ x + 1)
    assert where(lambda: f(x.to(DEV))) == 1


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
def test_options_are_the_graphs_own(backend):
    x = torch.rand(4, 4, device=DEV)

    def f(x):
        return x @ x + 1

    want = f(x).cpu()
    plans = torch_tpu._C.stats(0)["plans"]
    for options in (
        {"xla_optimization_level": "O0"},
        {"xla_optimization_level": "O1", "precision": "medium"},
        {"precision": "high"},
    ):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(f, backend=backend, options=options)(x).cpu(), want, rtol=1e-2, atol=1e-2)
    assert torch_tpu._C.stats(0)["plans"] - plans == 3
    f(x)  # eager calls keep the process's
    assert torch_tpu._C.stats(0)["plans"] - plans == 3


def test_what_is_no_option_or_mode_is_told():
    with pytest.raises(ValueError, match=r"no option of the tpu backend; it has 'precision'.*xla_optimization_level"):
        compiled(lambda x: x, options={"triton.cudagraphs": True})
    with pytest.raises(ValueError, match="No such compile option: 'xla_nope'"):
        compiled(lambda x: x, options={"xla_nope": 1})
    with pytest.raises(ValueError, match="expected a precision of highest, high, medium, got 'low'"):
        compiled(lambda x: x, options={"precision": "low"})
    with pytest.raises(ValueError, match="expected a mode of default, reduce-overhead"):
        compiled(lambda x: x, mode="fastest")
    with pytest.warns(UserWarning, match=r"Inductor's have no effect on the tpu: epilogue_fusion"):
        torch.compile(lambda x: x + 1, options={"epilogue_fusion": True})(torch.ones(2, device=DEV))


# --------------------------------------------------------------------------------------------- what Dynamo offers besides


def same(f, *args, rtol=1e-4, atol=1e-5, programs=None, **options):
    """``f`` compiled on the device gives what it gives on the CPU, twice; the second call takes so many programs."""
    want = f(*args)
    g = compiled(f, **options)
    on = torch.utils._pytree.tree_map(
        lambda t: t.detach().to(DEV).requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t, args
    )
    for _ in range(2):
        before = calls()
        got = g(*on)
        made = calls() - before
        torch.testing.assert_close(_host(got), want, rtol=rtol, atol=atol)
    if programs is not None:
        assert made == programs
        assert _compile.refused == {}
    return got


def _host(out):
    return torch.utils._pytree.tree_map(lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, out)


@torch.library.custom_op("tpu_test::twice_plus", mutates_args=())
def twice_plus(x: torch.Tensor, k: float) -> torch.Tensor:
    return x * 2 + k


@twice_plus.register_fake
def _(x, k):
    return torch.empty_like(x)


twice_plus.register_autograd(lambda ctx, g: (g * 2, None))


@torch.library.custom_op("tpu_test::add_into", mutates_args=("x",))
def add_into(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


def test_custom_ops_run_between_programs():
    same(lambda x: twice_plus(x.sin(), 3.0).cos(), torch.rand(4), fullgraph=True)

    def f(x, y):
        z = x * 2
        add_into(z, y)
        return z + 1

    same(f, torch.rand(4), torch.rand(4), fullgraph=True)
    x = torch.rand(3, device=DEV, requires_grad=True)
    compiled(lambda x: twice_plus(x * x, 1.0).sum())(x).backward()
    torch.testing.assert_close(x.grad, 4 * x.detach())


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


def test_autograd_function():
    x = torch.rand(5, requires_grad=True)
    on = x.detach().to(DEV).requires_grad_()
    Cube.apply(x.sin()).sum().backward()
    compiled(lambda x: Cube.apply(x.sin()).sum(), fullgraph=True)(on).backward()
    torch.testing.assert_close(on.grad.cpu(), x.grad)


def test_functional_transforms():
    def loss(w, x):
        return torch.tanh(x @ w).square().sum()

    w, x = torch.rand(3, 2), torch.rand(4, 3)
    same(lambda w, x: torch.func.grad(loss)(w, x), w, x, programs=1)
    same(lambda w, x: torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x), w, x, programs=1)
    same(lambda w, x: torch.func.jacrev(lambda w: torch.tanh(x @ w))(w), w, x, programs=1)
    same(lambda w, x: torch.func.jvp(lambda w: torch.tanh(x @ w), (w,), (w,)), w, x, programs=1)
    model = nn.Linear(3, 2)
    params = dict(model.named_parameters())
    same(lambda p, x: torch.func.functional_call(model, p, (x,)), {k: v.detach() for k, v in params.items()}, x, programs=1)


def test_duplicated_and_aliased_inputs():
    x = torch.rand(6)
    same(lambda a, b: a + b * 2, x, x)

    def f(a, b):
        a.add_(1)
        return a + b

    want, on = x.clone(), x.to(DEV)
    w = f(want, want)
    torch.testing.assert_close(compiled(f)(on, on).cpu(), w)
    torch.testing.assert_close(on.cpu(), want)
    want, on = x.clone(), x.to(DEV)
    w = f(want[:4], want[2:])
    torch.testing.assert_close(compiled(f)(on[:4], on[2:]).cpu(), w)
    torch.testing.assert_close(on.cpu(), want)


def test_outputs_that_are_inputs_views_or_nothing():
    x = torch.rand(4, 3)
    y = x.to(DEV)
    a, b, c, d, e = compiled(lambda x: (x, x.t(), x[1], None, 3))(y)
    assert a is y
    assert b.data_ptr() == y.data_ptr()
    assert (c._base is y or c.storage_offset() == 3) and d is None and e == 3
    c.zero_()
    assert y[1].tolist() == [0, 0, 0]
    assert compiled(lambda x: None)(y) is None
    assert compiled(lambda: (torch.ones(2, device=DEV), 5))()[0].tolist() == [1, 1]

    def write(x):
        x.mul_(2)

    assert compiled(write)(y) is None
    torch.testing.assert_close(y[0].cpu(), x[0] * 2)


@pytest.mark.parametrize("n", [300])
def test_a_long_chain(n):
    def f(x):
        for _ in range(n):
            x = x + 1
        return x

    same(f, torch.zeros(4), programs=1)


def test_data_dependent_sizes():
    x = torch.tensor([1.0, -2.0, 3.0, 0.0])
    same(lambda x: x[x > 0].sum() * 2, x)
    same(lambda x: torch.nonzero(x).float() + 1, x)
    same(lambda x: torch.masked_select(x, x > 0) + torch.unique(x).sum(), x)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch._dynamo.reset()
        same(lambda x: torch.nonzero(x > 0).sum() + 1, x, fullgraph=True)
        same(lambda x: x[x > 0] * 2 + 1, x, fullgraph=True)


@pytest.mark.parametrize("capture", [False, True])
def test_item(capture):
    def f(x):
        n = x.sum().item()
        return x * n + 1

    def g(x):
        n = x.sum().int().item()
        torch._check(n >= 0)
        torch._check(n < 100)
        return torch.zeros(n, device=x.device) + x.max(), x * n

    with torch._dynamo.config.patch(capture_scalar_outputs=capture):
        same(f, torch.tensor([1.0, 2.0]), fullgraph=capture)
        same(g, torch.tensor([1.0, 2.0]), fullgraph=capture)


def test_the_cpu_in_the_middle():
    def f(x):
        y = (x * 2).cpu()
        return (y.sort()[0] + 1).to(x.device) * 3, y

    same(f, torch.rand(5))


def test_batch_norm_buffers():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
    on = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
    on.load_state_dict(model.state_dict())
    f = compiled(on.to(DEV))
    for _ in range(3):
        x = torch.rand(2, 2, 6, 6)
        torch.testing.assert_close(f(x.to(DEV)).cpu(), model(x), rtol=1e-4, atol=1e-5)
    for (k, v), w in zip(on.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(v.cpu(), w, rtol=1e-4, atol=1e-5, msg=k)
    assert on[1].num_batches_tracked.item() == 3


def test_numbers_as_inputs():
    with torch._dynamo.config.patch(specialize_float=False):
        f = compiled(lambda x, a, k, up: (x * a + k) if up else x - a)
        x, on = torch.rand(4), torch.rand(4).to(DEV)
        on.copy_(x)
        f(on, 0.5, 2, True)
        f(on, 0.25, 2, True)
        counters = torch._dynamo.utils.counters
        before = counters["stats"]["unique_graphs"]
        programs = torch_tpu._C.stats(0)["plans"]
        for a in (0.125, 0.75, -3.5):
            torch.testing.assert_close(f(on, a, 2, True).cpu(), x * a + 2)
        assert counters["stats"]["unique_graphs"] == before
        assert torch_tpu._C.stats(0)["plans"] == programs
        torch.testing.assert_close(f(on, 0.5, 5, False).cpu(), x - 0.5)
        torch.testing.assert_close(f(on, 0.5, 7, True).cpu(), x * 0.5 + 7)


def test_nested_and_disabled():
    inner = compiled(lambda x: x.sin() + 1)

    @torch.compiler.disable
    def plain(x):
        assert not torch.compiler.is_compiling()
        return x * 2

    same(lambda x: inner(x.cos()) * 2, torch.rand(4))
    same(lambda x: plain(x + 1) + 1, torch.rand(4))
    with torch.compiler.set_stance("force_eager"):
        same(lambda x: x + 1, torch.rand(4))


def test_threads_call_one_function():
    import concurrent.futures

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).to(DEV)
    f = compiled(model)
    xs = [torch.rand(4, 8, device=DEV) for _ in range(8)]
    want = [model(x) for x in xs]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            torch.testing.assert_close(list(pool.map(f, xs)), want)


def test_after_an_exception_the_next_call_is_right():
    @torch.library.custom_op("tpu_test::fussy", mutates_args=())
    def fussy(x: torch.Tensor, bad: bool) -> torch.Tensor:
        if bad:
            raise ValueError("fussy")
        return x.clone()

    fussy.register_fake(lambda x, bad: torch.empty_like(x))
    f = compiled(lambda x, bad: fussy(x * 2, bad) + 1)
    x = torch.rand(3)
    for bad in (False, True, False, True, False):
        if bad:
            with pytest.raises(ValueError, match="fussy"):
                f(x.to(DEV), bad)
        else:
            torch.testing.assert_close(f(x.to(DEV), bad).cpu(), x * 2 + 1)
    g = compiled(lambda x, i: x[i] + 1)
    on, good = x.to(DEV), torch.tensor([0, 2], device=DEV)
    with pytest.raises(IndexError):
        g(on, torch.tensor([0, 7], device=DEV)).cpu()
    torch.testing.assert_close(g(on, good).cpu(), x[[0, 2]] + 1)


def test_tensor_subclasses_pass_through():
    from torch.testing._internal.two_tensor import TwoTensor

    x = torch.rand(4)
    t = TwoTensor(x.to(DEV), (x * 2).to(DEV))
    out = compiled(lambda t: t.sin() + 1)(t)
    assert isinstance(out, TwoTensor)
    torch.testing.assert_close(out.a.cpu(), x.sin() + 1)
    torch.testing.assert_close(out.b.cpu(), (x * 2).sin() + 1)
    p = nn.Parameter(x.to(DEV))
    y = compiled(lambda p: (p * 3).sum())(p)
    y.backward()
    assert p.grad.tolist() == [3.0] * 4


def test_graph_breaks_and_grad_modes():
    def f(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y.sum() + 1

    same(f, torch.rand(3))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(f, fullgraph=True)(torch.rand(3, device=DEV))
    w = torch.rand(3, device=DEV, requires_grad=True)

    def g(w):
        with torch.no_grad():
            a = w * 2
        with torch.autocast(DEV, torch.bfloat16):
            b = torch.mm(w[None], w[:, None])
        return a, b

    a, b = compiled(g, fullgraph=True)(w)
    assert not a.requires_grad
    assert b.dtype == torch.bfloat16
    assert b.requires_grad
    with torch.inference_mode():
        assert compiled(lambda w: w + 1)(w).is_inference()


# ------------------------------------------------------------------------------------------------------ higher-order ops


def test_cond_is_one_program():
    def f(x, y):
        scale = y * 2
        return torch.cond(x.sum() > 1, lambda x: (x.sin() + scale, x * 4), lambda x: (x.cos() * scale, x - 3), (x,))

    for x in (torch.ones(3), -torch.ones(3)):
        same(f, x, torch.rand(3), programs=1)


def test_nested_cond_with_a_check_inside():
    def f(x, i):
        def inner(x):
            return torch.cond(x.max() > 5, lambda x: x[i] * 2, lambda x: x[i] + 1, (x,))

        return torch.cond(x.sum() > 1, inner, lambda x: x[i] - 1, (x,))

    i = torch.tensor([1, 0, 2])
    for x in (torch.ones(3), torch.ones(3) * 9, -torch.ones(3)):
        same(f, x, i, programs=1)
    g, bad = compiled(f), torch.tensor([1, 0, 7], device=DEV)
    with pytest.raises(IndexError, match="index 7"):
        g(torch.ones(3, device=DEV), bad).cpu()


def test_cond_backward():
    def f(x, w):
        return torch.cond(x.sum() > 1, lambda x, w: (x * w).sin(), lambda x, w: (x + w).cos(), (x, w)).sum()

    for sign in (1, -1):
        x, w = (torch.rand(3) * sign).requires_grad_(), torch.rand(3, requires_grad=True)
        on, won = x.detach().to(DEV).requires_grad_(), w.detach().to(DEV).requires_grad_()
        f(x, w).backward()
        compiled(f, fullgraph=True)(on, won).backward()
        torch.testing.assert_close(on.grad.cpu(), x.grad)
        torch.testing.assert_close(won.grad.cpu(), w.grad)
    assert _compile.refused == {}


def test_while_loop_is_one_program():
    from torch._higher_order_ops import while_loop

    def f(x, step):
        def more(i, x):
            return i < 5

        def body(i, x):
            return i + 1, x * 2 + step

        return while_loop(more, body, (torch.zeros((), dtype=torch.int64, device=x.device), x))

    same(f, torch.rand(3), torch.rand(3), programs=1)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse):
    from torch._higher_order_ops.scan import scan

    def f(init, xs, w):
        def combine(carry, x):
            carry = torch.tanh(carry * w + x)
            return carry, carry * 2

        return scan(combine, init, xs, dim=0, reverse=reverse)

    init, xs, w = torch.rand(3), torch.rand(5, 3), torch.rand(3)
    same(f, init, xs, w, programs=1)
    grads = []
    for device in ("cpu", DEV):
        leaves = [t.detach().to(device).requires_grad_() for t in (init, xs, w)]
        g = f if device == "cpu" else compiled(f, fullgraph=True)
        carry, ys = g(*leaves)
        (carry.sum() + ys.square().sum()).backward()
        grads.append([t.grad.cpu() for t in leaves])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)
    assert _compile.refused == {}


def test_map_and_associative_scan():
    from torch._higher_order_ops.associative_scan import associative_scan
    from torch._higher_order_ops.map import map as map_

    same(lambda xs, y: map_(lambda x, y: x.sin() @ y, xs, y), torch.rand(4, 2, 3), torch.rand(3), programs=1)
    same(lambda xs: associative_scan(lambda a, b: a * b + 1, xs, 0, combine_mode="generic"), torch.rand(6, 2), programs=1)


def test_random_numbers_in_a_branch_run_op_by_op():
    def f(x):
        return torch.cond(x.sum() > 1, lambda x: x + torch.rand_like(x), lambda x: x - 1, (x,))

    x, results = torch.ones(3, device=DEV), []
    for g in (f, compiled(f)):
        torch.manual_seed(0)
        results.append(torch.stack([g(x), g(x), torch.rand(3, device=DEV)]))
    torch.testing.assert_close(*results)
    torch.testing.assert_close(compiled(f)(-x), -x - 1)


def test_higher_order_ops_in_eager_mode():
    from torch._higher_order_ops import while_loop
    from torch._higher_order_ops.scan import scan

    x = torch.rand(4)

    def f(x):
        a = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        (b,) = while_loop(lambda x: x.sum() < 50, lambda x: (x * 2,), (x,))
        c, d = scan(lambda c, x: (c + x, c * x), x[0], x)
        return a, b, c, d

    torch.testing.assert_close(_host(f(x.to(DEV))), f(x))


def test_marked_regions_checkpoints_and_wraps():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    on = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    on.load_state_dict(model.state_dict())
    on.to(DEV)
    x = torch.rand(3, 4)

    def block(model, x):
        return model(x).relu()

    def run(model, x, block=block):
        y = block(model, block(model, x))
        return torch.utils.checkpoint.checkpoint(model, y, use_reentrant=False).sum()

    marked = torch.compiler.nested_compile_region(block)
    model.zero_grad()
    want = run(model, x)
    want.backward()
    f = compiled(lambda x: run(on, x, marked), fullgraph=True)
    got = f(x.to(DEV))
    got.backward()
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
    for p, q in zip(on.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-5)
    assert _compile.refused == {}


def test_a_graph_of_thousands_of_nodes():
    from torch._subclasses import FakeTensorMode

    n, graph = 2000, torch.fx.Graph()
    with FakeTensorMode():
        val = torch.empty(4, device=DEV)
    y = graph.placeholder("x")
    y.meta["val"] = val
    for _ in range(n):
        y = graph.call_function(torch.ops.aten.add.Tensor, (y, 1))
        y.meta["val"] = val
    graph.output((y,))
    out = _compile.Compiled("chain", torch.fx.GraphModule({}, graph))([torch.zeros(4, device=DEV)])
    assert out[0].tolist() == [n] * 4


def test_dump_option(tmp_path):
    f = compiled(lambda x: x.sin() * 3, options={"dump": str(tmp_path / "dumped")})
    f(torch.rand(3, device=DEV)).cpu()
    assert any((tmp_path / "dumped").rglob("*.mlir"))
    before = set((tmp_path / "dumped").rglob("*"))
    compiled(lambda x: x.cos() * 3)(torch.rand(3, device=DEV)).cpu()
    assert set((tmp_path / "dumped").rglob("*")) == before


def test_what_regions_may_hold():
    from torch._higher_order_ops import while_loop

    x = torch.rand(3)
    one = torch.zeros((), dtype=torch.int64)

    def choose(f, g, x):
        return torch.cond(x.sum() > 1, f, g, (x,))

    same(lambda x: torch.vmap(lambda v: choose(lambda v: v + 1, lambda v: v - 1, v))(torch.stack([x, -x])), x, programs=1)
    same(lambda x: torch.cond(x.shape[0] > 4, lambda x: x + 1, lambda x: x - 1, (x,)), x, programs=1, dynamic=True)
    same(lambda x: choose(lambda x: x + x.shape[0], lambda x: x - 1, x), x, programs=1, dynamic=True)
    same(lambda x: choose(lambda x: x @ torch.eye(3, device=x.device), lambda x: x.clone().add_(1), x), x, programs=1)
    same(lambda x: choose(lambda x: x.cpu().sort()[0].to(x.device), lambda x: x - 1, x), x)
    same(lambda x, i: while_loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x * 2), (i, x))[1], x, one, programs=1)
    same(lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x + 1), (0, x))[1], x)


def test_while_loop_backward():
    from torch._higher_order_ops import while_loop

    def f(x, i):
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * x.sin()), (i, x))[1].sum()

    x, i = torch.rand(3, requires_grad=True), torch.zeros((), dtype=torch.int64)
    on = x.detach().to(DEV).requires_grad_()
    f(x, i).backward()
    compiled(f)(on, i.to(DEV)).backward()
    torch.testing.assert_close(on.grad.cpu(), x.grad)
