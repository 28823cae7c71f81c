"""One program for every length up to a bound: at each, values and gradients are eager CPU PyTorch's, whatever is in the padding."""

import copy
import random

import pytest
import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F
import torch_tpu
from torch_tpu import _compile
from torch_tpu._bounds import growth, stats
from torch_tpu._compile import bounded

DEV = "tpu"
LENGTHS = (3, 8, 9, 2)  # below a bound, the bound, one above, the least


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    torch._dynamo.reset()
    stats.__init__()
    _compile.refused.clear()
    monkeypatch.setattr(bounded, "poison", float("nan"))


def R(*sizes):
    """A maker of random tensors: a string among the sizes is an expression of the length n."""
    return lambda n: torch.randn([eval(s, {"n": n}) if isinstance(s, str) else s for s in sizes])


def I(top, *sizes):  # noqa: E743
    return lambda n: torch.randint(0, eval(top, {"n": n}) if isinstance(top, str) else top, _sizes(n, sizes))


def _sizes(n, sizes):
    return [eval(s, {"n": n}) if isinstance(s, str) else s for s in sizes]


def results(f, args, device, marks=()):
    """Results, and gradients of the float arguments."""
    args = [a.to(device) for a in args]
    args = [a.requires_grad_() if a.is_floating_point() else a for a in args]
    for a, dims in zip(args, marks, strict=False):
        for d in dims:
            torch._dynamo.mark_dynamic(a, d)
    out = f(*args)
    outs = [o for o in (out if isinstance(out, tuple | list) else [out]) if isinstance(o, torch.Tensor)]
    deep = [o for o in outs if o.requires_grad]
    if deep:
        torch.autograd.backward(deep, [torch.arange(o.numel()).sin().to(o.dtype).reshape(o.shape).to(device) for o in deep])
    return [o.detach().cpu() for o in outs] + [a.grad.cpu() for a in args if a.grad is not None]


def check(f, *makes, lengths=LENGTHS, programs=None, tol=1e-4, refused=False, dynamic=None):
    """The compiled function agrees with eager at each length, with bounded programs only."""
    g = torch.compile(f, backend=DEV, dynamic=dynamic)
    for k, n in enumerate(lengths):
        bounded.poison = (float("nan"), 1e30)[k % 2]
        torch.manual_seed(n)
        args = [m(n) for m in makes]
        marks = [[d for d in range(a.dim()) if a.shape[d] != m(n + 1).shape[d]] for a, m in zip(args, makes, strict=True)]
        want = results(f, [a.clone() for a in args], "cpu")
        got = results(g, args, DEV, marks if dynamic is None else ())
        for t, w in zip(got, want, strict=True):
            torch.testing.assert_close(t, w, rtol=tol, atol=tol, equal_nan=True)
    assert bool(stats.refused) == refused, stats.refused
    assert refused or stats.exact == 0
    if programs is not None:
        assert stats.bounded == programs
    return g


def permutations(rows, top):
    return lambda n: torch.stack([torch.randperm(top)[:n] for _ in range(rows)])


CASES = {
    "add": (lambda x: x + 1, R("n")),
    "broadcast": (lambda x, y: x * y, R("n", 3), R(3)),
    "sum": (lambda x: (x.sum(), x.sum(0), x.sum(1, keepdim=True)), R("n", 3)),
    "mean": (lambda x: (x.mean(), x.mean(-1)), R(3, "n")),
    "var": (lambda x: (x.var(-1), x.std(0), x.var()), R(3, "n")),
    "standardize": (lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1), R(2, "n", 3)),
    "16 bits": (lambda x: (x.half().mean(0), x.bfloat16().sum(0)), R("n", 3), {"tol": 2e-2}),
    "extremes": (lambda x: (x.amax(1), x.amin(1), x.max(), *x.max(1)), R(2, "n", 4)),
    "argmax": (lambda x: (x.argmax(), x.argmin(1), x.argmax(1)), R(2, "n", 4)),
    "product": (lambda x: x.detach().prod(1), R(2, "n")),
    "logsumexp": (lambda x: x.logsumexp(1), R(2, "n")),
    "norms": (lambda x: (x.norm(float("inf"), dim=1), x.norm(1), torch.linalg.vector_norm(x, -1, dim=1)), R(2, "n")),
    "any all": (lambda x: ((x > 1).any(1), (x > -3).all(1), (x > 0).sum(0)), R(2, "n")),
    "integers": (lambda x: (x.sum(), x.max(), x.min(), x.prod(), x.argmin(), torch.sort(x, dim=0, stable=True)[1]), I(5, "n")),
    "softmax": (lambda x: (F.softmax(x, -1), F.log_softmax(x, -1), F.softmax(x, 0)), R(3, "n")),
    "scans": (lambda x: (x.cumsum(-1), x.detach().cumprod(-1), x.cummax(-1)[0], x.detach().logcumsumexp(-1)), R(2, "n")),
    "order": (
        lambda x: (*torch.sort(x, dim=-1, stable=True), *x.topk(2), *x.topk(2, largest=False), x.argsort(-1, descending=True)),
        R(2, "n"),
    ),
    "mm": (lambda x: (x @ x.t(), x.t() @ x), R("n", 3)),
    "linear": (lambda x, w, b: F.linear(x, w, b), R(2, "n", 4), R(5, 4), R(5)),
    "linear without bias": (lambda x, w: F.linear(x, w), R(2, "n", 4), R(5, 4)),
    "batches": (lambda x, y, b: torch.baddbmm(b, x, y), R("n", 3, "n+3"), R("n", "n+3", 2), R(3, 2)),
    "batch of products": (lambda x: x @ x.transpose(-1, -2), R("n", 2, 3, 4)),
    "einsum": (lambda x, y: torch.einsum("bnd,bmd->bnm", x, y), R(2, "n", 3), R(2, "n+3", 3)),
    "two lengths": (lambda x, y: (x @ y).sum(1), R("n", 4), R(4, "n+3")),
    "n times m": (lambda x, y: (x[:, None] * y[None]).reshape(-1).exp(), R("n"), R("n+3")),
    "m times n": (lambda x, y: (x[:, None] * y[None]).t().reshape(x.shape[0], -1) * 2, R("n"), R("n+3")),
    "2n": (lambda x, y: x + torch.cat([y, y]), R("2*n"), R("n")),
    "n/4": (lambda x: (x.view(-1, 4).sum(1), x.view(4, -1).sum(1), x.view(2, -1, 2).sum(1)), R("4*n")),
    "n//2": (lambda x: (x[: x.shape[0] // 2] + 1, x[x.shape[0] // 2]), R("n", 2), {"lengths": (4, 8, 9, 5)}),
    "sizes as numbers": (lambda x: x / x.shape[0] ** 0.5 * x.shape[0] + x.shape[0] // 2, R("n", 2)),
    "reshape": (lambda x: (x.reshape(-1, 3) + 1).reshape(x.shape) * 2 + x.flatten()[0], R(2, "n", 3)),
    "transpose": (lambda x: (x.transpose(0, 1).reshape(-1), x.permute(2, 0, 1).contiguous() * 2), R(2, "n", 3)),
    "not contiguous": (lambda x: x.t() * 2, lambda n: torch.randn(3, n).t()),
    "expand": (lambda x: (x[:, None].expand(-1, 4).reshape(-1), x.expand(3, -1) * 2, x.repeat(2, 3)), R("n")),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 0), R("n", 2)),
    "slices": (lambda x: (x[:, 1:], x[:, :-1], x[:, ::2], x[:, 1:-1], x[:, -2:]), R(2, "n", 4), {"lengths": (4, 8, 9, 5)}),
    "selects": (lambda x: (x[:, 0], x[:, -1], x[:, x.shape[1] // 2]), R(3, "n")),
    "slice of a table": (lambda x, p: x + p[: x.shape[1]], R(2, "n", 4), R(32, 4)),
    "slice written": (lambda x, y: torch.slice_scatter(x, y, 1, 1), R(2, "n+3"), R(2, "n+2")),
    "select written": (lambda x, y: torch.select_scatter(x, y, 1, -1), R(2, "n+3"), R(2)),
    "split": (lambda x: (*x.split(3, 1), *x.chunk(2, 1), *x.unbind(0)), R(2, 6, "n")),
    "cat": (lambda x, y: (torch.cat([x, y, x], 1), torch.cat([y, x], 1)), R(2, "n", 4), R(2, 3, 4)),
    "stack": (lambda x, y: torch.stack([x, y], 1), R("n", 2), R("n", 2)),
    "pad": (lambda x: (F.pad(x, (1, 2)), F.pad(x, (-1, 2), value=3.0)), R(2, "n")),
    "flip roll": (lambda x: (x.flip(-1), x.roll(1, 1), x.roll(-2, 1)), R(2, "n")),
    "triangles": (lambda x: (x.triu(1), x.tril(), torch.tril(torch.ones(x.shape[0], x.shape[0], device=x.device))), R("n", "n+3")),
    "made": (
        lambda x: (
            torch.full((x.shape[0], 2), x.shape[0], device=x.device)
            + torch.arange(x.shape[0], device=x.device)[:, None]
            + torch.zeros_like(x)[:, None]
            + x.new_ones(x.shape[0]).cumsum(0)[:, None]
        ),
        R("n"),
    ),
    "where": (lambda x: torch.where(x > 0, x, x.new_zeros(())).masked_fill(x > 1, -1), R("n", 2)),
    "integer division": (lambda x, y: (x // (y + 1), x % (y + 1), torch.gcd(x, y)), I(9, "n"), I(9, "n")),
    "special": (lambda x: (torch.special.zeta(x.detach().abs() + 2, x.detach().abs() + 1), torch.lgamma(x)), R("n")),
    "complex": (lambda x: torch.view_as_real(x * 1j).sum(-1), R("n", 3)),
    "glu": (lambda x: F.glu(x, -1), R("n", 6)),
    "embedding": (lambda i, w: F.embedding(i, w, padding_idx=1), I(7, 2, "n"), R(7, 3)),
    "gather": (lambda x, i, j: (x.gather(1, i), x.gather(1, j)), R(2, "n"), I("n", 2, 3), I("n", 2, "n+3")),
    "index": (lambda x, i, j: (x[i], x[i, j], x[-i - 1], x[:, j]), R("n", 3), I("n", "n"), I(3, "n")),
    "index_select": (lambda x, i: x.index_select(0, i), R("n", 3), I("n", "n+3")),
    "index_put": (lambda x, i, v: x.index_put((i[0],), v), R(9, 3), permutations(1, 9), R("n", 3)),
    "index_put, the last stays": (lambda x, v: x.index_put((v[:, 0].long() * 0,), v), R(9, 3), R("n", 3)),
    "index_put, added": (lambda x, i, v: x.index_put((i,), v, accumulate=True), R(9, 3), I(9, "n"), R("n", 3)),
    "index_copy": (lambda x, i, v: x.index_copy(0, i[0], v), R(9, 3), permutations(1, 9), R("n", 3)),
    "index_add": (lambda x, i, v: x.index_add(0, i, v), R(9, 3), I(9, "n"), R("n", 3)),
    "scatter": (lambda x, i, v: x.scatter(1, i, v), R(2, 9), permutations(2, 9), R(2, "n")),
    "scatter_add": (lambda x, i, v: x.scatter_add(1, i, v), R(2, 9), I(9, 2, "n"), R(2, "n")),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), R(2, "n", 4), R(4), R(4)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), R(2, "n", 4), R(4)),
    "group_norm": (lambda x: F.group_norm(x, 2), R("n", 4, 3)),
    "batch_norm": (lambda x: F.batch_norm(x.detach(), torch.zeros(4).to(x.device), torch.ones(4).to(x.device)), R("n", 4, 3)),
    "conv": (lambda x, w: F.conv2d(x, w, padding=1), R("n", 3, 5, 5), R(4, 3, 3, 3)),
    "pool": (lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)), R("n", 3, 4, 4)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), R("n", 3, 4, 4)),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t), R("n", 5), I(5, "n")),
    "cross_entropy of sequences": (lambda x, t: F.cross_entropy(x.view(-1, 5), t.view(-1)), R(2, "n", 5), I(5, 2, "n")),
    "cross_entropy, shifted": (
        lambda x, t: F.cross_entropy(x[:, :-1].reshape(-1, 5), t[:, 1:].reshape(-1), label_smoothing=0.1),
        R(2, "n+2", 5),
        I(5, 2, "n+2"),
    ),
    "nll": (lambda x, t: (F.cross_entropy(x, t, reduction="none"), F.cross_entropy(x, t, reduction="sum")), R("n", 5), I(5, "n")),
    "pairs": (
        lambda x, y: (F.mse_loss(x, y), F.smooth_l1_loss(x, y, reduction="sum"), F.huber_loss(x, y), F.l1_loss(x, y)),
        R(2, "n"),
        R(2, "n"),
    ),
    "binary_cross_entropy": (
        lambda x, y: (
            F.binary_cross_entropy_with_logits(x, y.sigmoid()),
            F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
            F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), reduction="none"),
        ),
        R(2, "n"),
        R(2, "n"),
    ),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q), R(2, 2, "n", 4)),
    "attention, causal": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), R(2, 2, "n", 4)),
    "attention, two lengths": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        R(2, 2, "n", 4),
        R(2, 2, "n+3", 4),
        R(2, 2, "n+3", 4),
    ),
    "attention, masked": (
        lambda q, m: (F.scaled_dot_product_attention(q, q, q, m), F.scaled_dot_product_attention(q, q, q, m > -3)),
        R(2, 2, "n", 4),
        R(2, 1, "n", "n"),
    ),
    "attention, groups": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True, is_causal=True),
        R(2, 4, "n", 4),
        R(2, 2, "n", 4),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    f, *makes = CASES[name]
    options = makes.pop() if isinstance(makes[-1], dict) else {}
    check(f, *makes, **options)


def test_one_trace_serves_all_lengths():
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend(DEV)
    f = torch.compile(lambda x: (x * 2).sum(0), backend=counter, dynamic=True)
    for n in (5, 2, 8, 16, 9, 3, 33):
        x = torch.randn(n, 3)
        torch.testing.assert_close(f(x.to(DEV)).cpu(), (x * 2).sum(0))
    assert counter.frame_count == 1 and stats.bounded == 3


def test_second_size_makes_a_dimension_dynamic():
    x = {n: torch.randn(n, 3) for n in range(2, 40)}
    f = torch.compile(lambda x: F.softmax(x @ x.t(), -1).sum(0), backend=DEV)
    for t in x.values():
        torch.testing.assert_close(f(t.to(DEV)).cpu(), F.softmax(t @ t.t(), -1).sum(0))
    assert stats.bounded <= 4 and stats.exact == 0 and not stats.refused


def test_dynamic_true_makes_every_dimension_dynamic():
    check(lambda x, w: F.gelu(F.linear(x, w)).mean(1), R("n", "n+1", 4), R(5, 4), dynamic=True)


def test_bounds_can_be_set(monkeypatch):
    monkeypatch.setattr(growth, "least", growth.least)
    monkeypatch.setattr(growth, "factor", growth.factor)
    torch.tpu.compiler.set_dynamic_bounds(least=4, factor=1.5)
    assert [growth.bound(n) for n in (1, 4, 5, 7, 10)] == [4, 4, 6, 9, 14]
    assert growth.bound(9, top=12) == 9 and growth.bound(10, top=12) == 12
    check(lambda x: (x * x).sum(0), R("n", 3), lengths=(4, 5, 6, 7), programs=6)  # three bounds, forward and backward
    with pytest.raises(ValueError, match="factor"):
        torch.tpu.compiler.set_dynamic_bounds(factor=1)


def test_no_bound_is_above_what_mark_dynamic_names():
    f = torch.compile(lambda x: x * 2, backend=DEV)
    x = torch.randn(9, 2, device=DEV)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=12)
    assert torch.equal(f(x).cpu(), x.cpu() * 2)
    assert "tensor<24xf32>" in torch_tpu._C.last_module()


def test_what_has_no_rule_falls_back_and_says_so():
    check(lambda x, y: torch.cdist(x, y), R("n", 3), R("n", 3), refused=True)
    dynamic = torch.tpu.compile_stats()["dynamic"]
    assert dynamic["exact"] > 0 and any("_cdist_forward" in why for why in dynamic["refused"])


def test_wrong_index_is_told_though_it_is_within_the_bound():
    f = torch.compile(lambda x, i: x[i] * 2, backend=DEV, dynamic=True)
    assert f(torch.arange(5.0, device=DEV), torch.tensor([4, -5], device=DEV)).tolist() == [8, 0]
    y = f(torch.arange(5.0, device=DEV), torch.tensor([4, 5], device=DEV))
    with pytest.raises(IndexError):
        y.cpu()


def test_results_are_ordinary_tensors():
    f = torch.compile(lambda x: (x + 1, x.t() * 2), backend=DEV, dynamic=True)
    x = torch.randn(5, 3)
    a, b = f(x.to(DEV))
    assert a.shape == (5, 3) and a.is_contiguous() and a._base is None
    assert b.shape == (3, 5) and b.stride() == (x.t() * 2).stride()
    a.add_(1)
    torch.testing.assert_close(a.cpu(), x + 2)
    torch.testing.assert_close((a + b.t()).cpu(), x + 2 + 2 * x)
    torch.testing.assert_close(f(a)[0].cpu(), x + 3)  # taken as it is


def test_views_of_inputs_at_places_given_at_run_time():
    def views(x):
        n = x.shape[0]
        return x[n // 2], x[1:], x.t()[1:, 1:], x[:, None].expand(n, n, -1), x[: n // 2 + 1 : 2], x.view(-1)

    f = torch.compile(lambda x: (*views(x), x * 1), backend=DEV, dynamic=True)
    for n in (4, 9):
        x = torch.randn(n, 3)
        on = x.to(DEV)
        *got, _ = f(on)
        for g, want in zip(got, views(x), strict=True):
            torch.testing.assert_close(g.cpu(), want)
            assert g.stride() == want.stride() and g.storage_offset() == want.storage_offset()
        got[0].zero_()
        assert on[n // 2].abs().sum().item() == 0
    assert not stats.refused


def test_views_of_inputs_by_exact_programs():
    def views(x):
        return x[x.shape[0] // 2], (x * 2)[1:], x[:, None].expand(-1, x.shape[0], -1), x[: x.shape[0] // 2 + 1 : 2]

    f = torch.compile(lambda x: (torch.cdist(x, x), *views(x)), backend=DEV, dynamic=True)
    for n in (4, 9):
        x = torch.randn(n, 3)
        for got, want in zip(f(x.to(DEV))[1:], views(x), strict=True):
            torch.testing.assert_close(got.cpu(), want)
    assert stats.exact == 2


def test_inputs_are_only_read():
    x = torch.randn(5, 3, device=DEV)
    want = x.cpu()
    torch.compile(lambda x: x.exp().sum(0), backend=DEV, dynamic=True)(x)
    assert torch.equal(x.cpu(), want) and x.untyped_storage().nbytes() == 60


def test_static_cache_written_at_lengths_given_at_run_time():
    def f(cache, x, at):
        cache.index_copy_(1, at, x)
        return cache.sum(1)

    caches = torch.zeros(2, 16, 3), torch.zeros(2, 16, 3, device=DEV)
    g = torch.compile(f, backend=DEV)
    begin = 0
    for n in (5, 1, 2, 3):
        x, at = torch.randn(2, n, 3), torch.arange(begin, begin + n)
        torch.testing.assert_close(g(caches[1], x.to(DEV), at.to(DEV)).cpu(), f(caches[0], x, at))
        torch.testing.assert_close(caches[1].cpu(), caches[0])
        begin += n
    assert not stats.refused


def test_what_is_written_has_its_sizes_as_numbers():
    def f(cache, seen, x):
        at = torch.arange(x.shape[1], device=x.device) + seen
        seen.add_(x.shape[1])
        cache.index_copy_(1, at, x)
        return (x @ cache.transpose(1, 2)).softmax(-1) @ cache, cache.reshape(2, 4, -1)

    g = torch.compile(f, backend=DEV, dynamic=True)
    for size in (16, 12):  # a second size of the cache: another program, the same trace
        cache, seen = torch.zeros(2, size, 3), torch.zeros((), dtype=torch.int64)
        there = [cache.to(DEV), seen.to(DEV)]
        for n in (5, 2, 4):
            x = torch.randn(2, n, 3)
            torch.testing.assert_close([t.cpu() for t in g(*there, x.to(DEV))], [*f(cache, seen, x)])
            torch.testing.assert_close([t.cpu() for t in there], [cache, seen])
    assert not stats.refused and (stats.bounded, stats.exact) == (2, 0)


@pytest.mark.parametrize("train", [False, True])
def test_encoder_of_lengths_to_512(train):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).train(train)
    on = copy.deepcopy(model).to(DEV)
    f = torch.compile(on, backend=DEV)
    random.seed(0)
    lengths = [512, 1, *random.sample(range(2, 512), 8 if train else 16)]
    inputs = [(torch.randn(2, n, 16), torch.ones(2, n, 16)) for n in lengths]
    there = [(x.to(DEV), g.to(DEV)) for x, g in inputs]
    torch.tpu.synchronize()
    before = torch.tpu.compile_stats()["programs"]
    with torch.set_grad_enabled(train):
        for (x, g), (x_on, g_on) in zip(inputs, there, strict=True):
            want, got = model(x), f(x_on)
            torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=1e-3, atol=1e-4)
            if train:
                want.backward(g)
                got.backward(g_on)
    assert torch.tpu.compile_stats()["programs"] - before <= (20 if train else 10)
    for p, q in zip(model.parameters(), on.parameters(), strict=True):
        if train:
            torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-2, atol=1e-3)
    assert not stats.refused
