"""torch.func, forward derivatives, checkpointing, hooks and second derivatives, beside CPU PyTorch; nothing runs on the CPU."""

import copy

import pytest
import torch
import torch.autograd.forward_ad as fwd
import torch.nn.functional as F
from pair import tensors
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, stack_module_state, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

DEV = "tpu"


@pytest.fixture(autouse=True)
def native():
    before = dict(torch.tpu.fallbacks())
    yield
    after = torch.tpu.fallbacks()
    assert not [k for k in after if after[k] != before.get(k, 0)]


def close(got, want, tol=1e-5):
    got, want = list(tensors(got)), list(tensors(want))
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.device.type == DEV and g.dtype == w.dtype
        torch.testing.assert_close(g.detach().cpu(), w.detach(), rtol=tol, atol=tol)


def same(f, *args, tol=1e-5):
    """``f`` of tensors gives on the device what it gives on the CPU."""
    close(f(*(a.to(DEV) for a in args)), f(*args), tol)


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


def pairs(m):
    return m, copy.deepcopy(m).to(DEV)


# ----------------------------------------------------------------------------------------------------------------- torch.func


@pytest.mark.parametrize(
    ("f", "sizes"),
    [
        (torch.matmul, [(4, 3), (3, 5)]),
        (lambda x, w: F.conv2d(x, w, padding=1), [(2, 3, 6, 6), (4, 3, 3, 3)]),
        (lambda x: F.layer_norm(x, (5,)), [(4, 5)]),
        (lambda x: F.softmax(x, 0) + x.sort(0).values, [(4, 5)]),
        (lambda x: F.max_pool2d(x, 2), [(2, 6, 6)]),
        (lambda x, y: torch.where(x > 0, x, y).cumsum(-1), [(4, 5), (5,)]),
        (lambda q, k: F.scaled_dot_product_attention(q, k, k), [(2, 4, 8), (2, 6, 8)]),
        (lambda x: torch.linalg.solve(x @ x.mT + torch.eye(3, device=x.device), x), [(3, 3)]),
        (lambda x: F.batch_norm(x, None, None, training=True), [(4, 3, 5)]),
        (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [(2, 3, 4, 4)]),
        (lambda x: x.index_select(0, torch.tensor([2, 0], device=x.device)).var(-1), [(4, 5)]),
    ],
)
def test_vmap(f, sizes):
    args = [torch.randn(3, *n) for n in sizes]
    same(vmap(f), *args)
    same(vmap(f, in_dims=-1, out_dims=1), *(a.movedim(0, -1) for a in args))
    if len(args) > 1:
        same(vmap(f, in_dims=(0, None)), args[0], args[1][0])


def test_vmap_chunks_and_nests():
    x, y = torch.randn(5, 4), torch.randn(6, 4)
    same(lambda a, b: vmap(vmap(torch.dot, (None, 0)), (0, None))(a, b), x, y)
    same(vmap(torch.sin, chunk_size=2), x)


def test_vmap_randomness():
    x = torch.zeros(4, 100, device=DEV)
    apart = vmap(lambda v: v + torch.rand_like(v), randomness="different")(x)
    alike = vmap(lambda v: v + torch.rand(100, device=DEV), randomness="same")(x)
    assert (apart[0] != apart[1]).any().item() and (alike[0] == alike[1]).all().item()
    dropped = vmap(lambda v: F.dropout(v + 1, 0.5), randomness="different")(x)
    assert set(dropped.cpu().unique().tolist()) == {0.0, 2.0}


def test_derivatives():
    def f(x, w):
        return torch.tanh(x @ w).sin()

    x, w = torch.randn(3, 4), torch.randn(4, 2)
    same(grad(lambda a, b: f(a, b).sum(), argnums=(0, 1)), x, w)
    same(lambda a, b: torch.func.grad_and_value(lambda v: f(v, b).sum())(a), x, w)
    same(lambda a, b: jvp(f, (a, b), (a.cos(), b.exp())), x, w)
    same(lambda a, b: vjp(f, a, b)[1](f(a, b)), x, w)
    same(lambda a, b: linearize(f, a, b)[1](a, b), x, w)
    same(jacrev(f, argnums=(0, 1)), x, w)
    same(jacfwd(f, argnums=1), x, w)
    same(hessian(lambda a: f(a, torch.ones(4, 2, device=a.device)).sum()), x, tol=5e-5)
    same(grad(grad(lambda a: (a**3).sum().sin())), torch.tensor(0.7))


def test_gradients_a_sample():
    m, mine = pairs(net())
    x, t = torch.randn(5, 6), torch.randint(0, 3, (5,))

    def run(module, x, t):
        params = {k: v.detach() for k, v in module.named_parameters()}

        def loss(p, x, t):
            return F.cross_entropy(functional_call(module, p, (x[None],)), t[None])

        return tuple(vmap(grad(loss), in_dims=(None, 0, 0))(params, x, t).values())

    close(run(mine, x.to(DEV), t.to(DEV)), run(m, x, t))


def samples_gradients(m):
    """Of the sum of squares of the output, for each sample."""

    def run(module, x):
        params = {k: v.detach() for k, v in module.named_parameters()}

        def loss(p, x):
            y = functional_call(module, p, (x[None],))
            return (y[0] if isinstance(y, tuple) else y).square().sum()

        return tuple(vmap(grad(loss), in_dims=(None, 0))(params, x).values())

    return run


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.randn(3, 5, 8)),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2)), torch.randn(3, 3, 6, 6)),
        (lambda: nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)), torch.randint(0, 5, (3, 6))),
        (lambda: nn.LSTM(4, 3, batch_first=True), torch.randn(3, 5, 4)),
    ],
)
def test_gradients_a_sample_of_modules(make, x):
    torch.manual_seed(1)
    m, mine = pairs(make())
    run = samples_gradients(m)
    close(run(mine, x.to(DEV)), run(m, x))


@pytest.mark.parametrize("size", [(5, 7), (1, 1, 5, 7), (2, 1, 5, 7), (2, 4, 1, 7)])
def test_mapped_attention(size):
    """The bias's gradient is each sample's own; the CPU's fused kernel has none."""

    def run(b, q, k):
        def f(b, q, k):
            return F.scaled_dot_product_attention(q, k, k, attn_mask=b).square().sum()

        return vmap(grad(f, argnums=(0, 1, 2)), (0, 1, None))(b, q, k)

    args = [torch.randn(3, *size), torch.randn(2, 3, 4, 5, 8), torch.randn(2, 4, 7, 8)]
    with sdpa_kernel(SDPBackend.MATH):
        want = run(*args)
    close(run(*(a.to(DEV) for a in args)), want, 2e-5)


def test_ensembles():
    torch.manual_seed(1)
    models = [nn.Linear(4, 2) for _ in range(3)]
    x = torch.randn(5, 4)

    def run(models, x):
        params, buffers = stack_module_state(models)
        return vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(params, buffers)

    close(run([copy.deepcopy(m).to(DEV) for m in models], x.to(DEV)), run(models, x))


def test_tied_and_replaced_parameters():
    m, mine = pairs(net())
    x, w = torch.randn(2, 6), torch.randn(8, 6)
    want = functional_call(m, {"0.weight": w}, (x,))
    close(functional_call(mine, {"0.weight": w.to(DEV)}, (x.to(DEV),)), want)


# ------------------------------------------------------------------------------------------------- forward and second derivatives


FUNCTIONS = {
    "linear": (F.linear, [(3, 4), (5, 4), (5,)]),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), [(2, 3, 5, 5), (4, 3, 3, 3), (4,)]),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2), [(2, 3, 4, 4), (3, 2, 3, 3)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), [(3, 4), (4,), (4,)]),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), [(4, 3, 2), (3,), (3,)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [(2, 4, 3), (4,), (4,)]),
    "softmax": (lambda x: F.softmax(x, -1), [(3, 5)]),
    "log_softmax": (lambda x: F.log_softmax(x, -1), [(3, 5)]),
    "gelu": (F.gelu, [(3, 5)]),
    "silu": (F.silu, [(3, 5)]),
    "elu": (F.elu, [(3, 5)]),
    "softplus": (F.softplus, [(3, 5)]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), [(1, 2, 4, 4)]),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2, 1), [(1, 2, 4, 4)]),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic") ** 2, [(1, 2, 4, 4)]),
    "grid_sample": (lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), [(1, 2, 4, 4), (1, 3, 3, 2)]),
    "prod": (lambda x: x.prod(-1), [(3, 4)]),
    "cumprod": (lambda x: x.cumprod(-1), [(3, 4)]),
    "norm": (lambda x: torch.linalg.vector_norm(x, 3, dim=-1), [(3, 4)]),
    "inverse": (lambda x: torch.linalg.inv(x @ x.mT + 2 * torch.eye(3, device=x.device)), [(3, 3)]),
    "cholesky": (lambda x: torch.linalg.cholesky(x @ x.mT + 2 * torch.eye(3, device=x.device)), [(3, 3)]),
    "index": (lambda x: x[torch.tensor([0, 2, 0], device=x.device)] ** 3, [(3, 4)]),
    "logsumexp": (lambda x: torch.logsumexp(x, 0), [(3, 4)]),
    "mse": (lambda x, y: F.mse_loss(x, y), [(3, 4), (3, 4)]),
    "bce": (lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), [(3, 4), (3, 4)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), [(3, 4), (4,)]),
    "glu": (F.glu, [(3, 4)]),
    "pad": (lambda x: F.pad(x, (1, 2), mode="reflect") ** 2, [(2, 3, 4)]),
    "unfold": (lambda x: F.unfold(x, 2) ** 3, [(1, 2, 4, 4)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives(name):
    f, sizes = FUNCTIONS[name]
    torch.manual_seed(2)
    args = [torch.randn(n) for n in sizes]

    def run(*args):
        args = [a.detach().requires_grad_() for a in args]
        y = f(*args)
        weight = torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape)
        first = torch.autograd.grad((y * weight).sum(), args, create_graph=True)
        total = sum(((g + 0.5) ** 2).sum() for g in first)
        return first, torch.autograd.grad(total, args, allow_unused=True, materialize_grads=True)

    same(run, *args, tol=1e-4)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "grid_sample"])  # which has none in PyTorch
def test_forward_derivatives(name):
    f, sizes = FUNCTIONS[name]
    torch.manual_seed(2)
    args = [torch.randn(n) for n in sizes]
    tangents = [torch.randn(n) for n in sizes]

    def run(*both):
        with fwd.dual_level():
            duals = [fwd.make_dual(x, t) for x, t in zip(both[: len(args)], both[len(args) :], strict=True)]
            return tuple(fwd.unpack_dual(f(*duals)))

    same(run, *args, *tangents, tol=1e-4)


def test_functions_of_the_users_own():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * x * x

    def run(x):
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
        return g, torch.autograd.grad(g.sum(), x)

    same(run, torch.randn(4))


def test_anomaly_mode_names_the_forward_call():
    x = torch.zeros(2, device=DEV, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True), pytest.raises(RuntimeError, match="returned nan values"):
        (x.sqrt() * 0).sum().backward()


# -------------------------------------------------------------------------------------------------------------- checkpointing


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant):
    x = torch.randn(4, 6)

    def run(m, x, save):
        x = x.detach().requires_grad_()
        h = checkpoint(m, x, use_reentrant=use_reentrant) if save else m(x)
        h.square().sum().backward()
        return h, x.grad, tuple(p.grad for p in m.parameters())

    m, mine = pairs(net())
    close(run(mine, x.to(DEV), True), run(m, x, True))
    close(run(copy.deepcopy(mine).to(DEV), x.to(DEV), True), run(copy.deepcopy(m), x, False))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_draws_the_same_numbers_again(use_reentrant):
    """The gradient is that of the mask which the forward pass drew."""
    x = torch.ones(1000, device=DEV, requires_grad=True)
    torch.manual_seed(4)
    y = checkpoint(lambda v: F.dropout(v, 0.5), x, use_reentrant=use_reentrant)
    torch.rand(10, device=DEV)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())


def test_checkpoint_sequential_and_saved_on_the_host():
    m, mine = pairs(net())
    x = torch.randn(4, 6)

    def run(m, x):
        x = x.detach().requires_grad_()
        with torch.autograd.graph.save_on_cpu():
            y = checkpoint_sequential(m, 2, x, use_reentrant=False)
        y.sum().backward()
        return y, x.grad

    close(run(mine, x.to(DEV)), run(m, x))


# ---------------------------------------------------------------------------------------------------------------------- hooks


def test_module_hooks():
    def run(m, x):
        seen = []
        handles = [
            m[0].register_forward_pre_hook(lambda mod, a: (a[0] * 2,)),
            m[1].register_forward_hook(lambda mod, a, y: y + 1),
            m[0].register_full_backward_hook(lambda mod, gi, go: seen.append(go[0].clone())),
            m[3].register_full_backward_pre_hook(lambda mod, go: (go[0] * 3,)),
            m[2].register_full_backward_hook(lambda mod, gi, go: (gi[0] * 0.5,)),
        ]
        x = x.detach().requires_grad_()
        y = m(x)
        y.sum().backward()
        for h in handles:
            h.remove()
        return y, x.grad, seen, m(x)

    m, mine = pairs(net())
    x = torch.randn(4, 6)
    close(run(mine, x.to(DEV)), run(m, x))


def test_tensor_hooks():
    def run(x):
        seen = []
        x = x.detach().requires_grad_()
        y = x * 2
        y.retain_grad()
        y.register_hook(lambda g: g * 3)
        x.register_hook(lambda g: seen.append(g + 1))
        x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad * 2))
        z = (y**2).sum()
        z.backward(retain_graph=True)
        z.backward()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
            w = (x * x).sum()
        w.backward()
        return x.grad, y.grad, seen

    same(run, torch.randn(5))


def test_no_part_in_autograd():
    """Autograd's kernels are passed by only where they have nothing to do: one tensor of many that takes part is enough."""
    y = torch.randn(4, 4, device=DEV)
    w = nn.Parameter(torch.randn(4, 4, device=DEV))
    assert not (y + y).requires_grad and (y + w).requires_grad and torch.addmm(y, y, w).requires_grad
    with torch.no_grad():
        assert not (y + w).requires_grad and not F.layer_norm(y, (4,), w[0], None).requires_grad
    with torch.inference_mode():
        assert (y * w).is_inference()
    with fwd.dual_level(), torch.no_grad():
        dual = fwd.make_dual(y, torch.ones_like(y))
        close(fwd.unpack_dual(dual * y + dual).tangent, (y + 1).cpu())
    once = torch.autograd.grad((w**3).sum(), w, create_graph=True)[0]
    close(torch.autograd.grad(once.sum(), w)[0], 6 * w.cpu(), 1e-4)
    assert (y + w).grad_fn.name() == "AddBackward0" and w.mul(2).grad_fn.name() == "MulBackward0"
    # Traced through Python's dispatcher, with gradients.
    compiled = torch.compile(lambda a, b: (a * 2 + b).tanh(), backend="tpu")
    torch.autograd.backward(compiled(w, y).sum())
    close(w.grad, 2 * (1 - torch.tanh(2 * w + y) ** 2).cpu())


def test_calls_by_their_own_types():
    """Ops with a kernel of their own C++ type: numbers of every kind, absent tensors, lists, lazy bits, several results."""
    x, c = torch.randn(3, 4), torch.randn(3, 4, dtype=torch.complex64)
    for number in (
        2,
        2.5,
        True,
        1 + 2j,
        torch.tensor(2),
        torch.tensor(2.5),
        torch.tensor(2.5, dtype=torch.float64),
        torch.tensor(1 + 2j),
    ):
        same(lambda t, n=number: t * n, x)
    same(lambda t: t.conj() * t, c)
    same(lambda t: torch.mul(t.conj().imag, 2), c)
    same(lambda t: torch.add(t, t, alpha=3), x.long())
    same(lambda t: t.sum((0, 1)).sum(dtype=torch.float64) + t.sum(), x)
    same(lambda t: F.gelu(t, approximate="tanh"), x)
    same(lambda t: torch.native_layer_norm(t, [4], None, None, 1e-5), x)
    same(lambda t: t.sort(1, True), x)
    same(lambda t: t.clone().add_(t, alpha=2).mul_(3).addcmul_(t, t, value=0.5).relu_(), x)
    z = c.to(DEV)
    z.conj().mul_(2)  # a target with a lazy bit
    close(z, 2 * c)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        _ = x.to(DEV) + x
    with pytest.raises(RuntimeError, match="must match the size"):
        _ = x.to(DEV) + torch.ones(5, device=DEV)
