"""scaled_dot_product_attention and its gradient, beside CPU PyTorch."""

import pytest
import torch
import torch_tpu
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch_tpu import export

DEV = "tpu"
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def run(device, q, k, v, bias=None, bias_grad=False, **kwargs):
    leaves = [t.detach().to(device).requires_grad_() for t in (q, k, v)]
    if bias is not None:
        bias = bias.detach().to(device)
        if bias_grad:
            bias.requires_grad_()
            leaves.append(bias)
    out = sdpa(*leaves[:3], attn_mask=bias, **kwargs)
    weight = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype)
    (out * weight.to(device)).sum().backward()
    return [out.detach().cpu(), *[t.grad.cpu() for t in leaves]]


def same(q, k, v, bias=None, rtol=1e-5, atol=2e-6, bias_grad=False, **kwargs):
    with sdpa_kernel(SDPBackend.MATH) if bias_grad else torch.enable_grad():  # the CPU's fused kernel gives bias no gradient
        want = run("cpu", q, k, v, bias, bias_grad, **kwargs)
    got = run(DEV, q, k, v, bias, bias_grad, **kwargs)
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g, w, rtol=rtol, atol=atol)


def qkv(b=2, h=4, t=5, s=7, d=8, hk=None, dtype=torch.float32):
    hk = hk or h
    return (torch.randn(b, h, t, d).to(dtype), torch.randn(b, hk, s, d).to(dtype), torch.randn(b, hk, s, d).to(dtype))


def test_plain_and_causal():
    same(*qkv())
    same(*qkv(), scale=0.3)
    same(*qkv(), scale=-0.3)
    same(*qkv(), is_causal=True)
    same(*qkv(t=7, s=5), is_causal=True)
    same(*qkv(dtype=torch.float64), is_causal=True, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(5, 7), (1, 1, 5, 7), (2, 1, 5, 7), (2, 4, 5, 7), (1, 4, 1, 7), (2, 1, 1, 7)])
def test_bias(shape):
    same(*qkv(), torch.randn(shape))
    same(*qkv(), torch.rand(shape) > 0.4)
    same(*qkv(), torch.randn(shape), bias_grad=True)


def test_masked_rows_are_zero():
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    same(*qkv(), mask)
    out = sdpa(*[t.to(DEV) for t in qkv()], attn_mask=mask.to(DEV))
    assert out[:, :, 2].cpu().abs().max() == 0


def test_grouped_queries():
    same(*qkv(h=6, hk=2), enable_gqa=True)
    same(*qkv(h=6, hk=1, t=7), enable_gqa=True, is_causal=True)
    same(*qkv(h=4, hk=2), torch.randn(2, 4, 5, 7), enable_gqa=True)


def test_bfloat16():
    same(*qkv(dtype=torch.bfloat16), rtol=3e-2, atol=3e-2)
    same(*qkv(dtype=torch.float16), rtol=3e-3, atol=3e-3, is_causal=True)


def test_layout_is_kept():
    x = torch.randn(2, 5, 3 * 32, device=DEV)
    q, k, v = (t.view(2, 5, 4, 8).transpose(1, 2) for t in x.split(32, -1))
    y = sdpa(q, k, v, is_causal=True)
    assert y.transpose(1, 2).is_contiguous()
    w = sdpa(q.cpu(), k.cpu(), v.cpu(), is_causal=True)
    torch.testing.assert_close(y.cpu(), w, rtol=1e-5, atol=1e-6)


def test_other_shapes_take_the_math_path():
    q, k, v = (torch.randn(3, 5, 4) for _ in range(3))
    torch.testing.assert_close(sdpa(q.to(DEV), k.to(DEV), v.to(DEV)).cpu(), sdpa(q, k, v), rtol=1e-5, atol=1e-6)
    q = torch.randn(2, 3, 5, 4)
    v = torch.randn(2, 3, 5, 6)
    torch.testing.assert_close(sdpa(q.to(DEV), q.to(DEV), v.to(DEV)).cpu(), sdpa(q, q, v), rtol=1e-5, atol=1e-6)
    with sdpa_kernel(SDPBackend.MATH):
        same(*qkv())
    y = sdpa(*[t.to(DEV) for t in qkv()], dropout_p=0.5)
    assert y.shape == (2, 4, 5, 8) and y.isfinite().all().item()


@pytest.mark.parametrize(
    "sizes",
    [
        [(5, 4), (7, 4), (7, 4)],
        [(3, 5, 4), (3, 7, 4), (3, 7, 6)],
        [(2, 2, 3, 5, 4), (2, 2, 3, 7, 4), (2, 2, 3, 7, 4)],
        [(2, 1, 5, 4), (1, 3, 7, 4), (2, 3, 7, 4)],
    ],
)
def test_other_ranks_and_broadcasting(sizes):
    q, k, v = (torch.randn(n) for n in sizes)
    same(q, k, v)
    same(q, k, v, torch.rand(5, 7) > 0.3)
    same(q, k, v, torch.randn(5, 7), scale=0.2)
    same(q, k, v, is_causal=True)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.OVERRIDEABLE])
def test_masked_rows_and_their_gradients(kind, backend):
    """A query that sees no key gives zeros, and no gradient that is NaN, in every implementation."""
    seen = torch.rand(2, 1, 5, 7) > 0.5
    seen[0, 0, 1] = seen[1, 0, 4] = False
    mask = seen if kind == "bool" else torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    q, k, v = qkv()
    want = run("cpu", q, k, v, mask)
    with sdpa_kernel(backend):
        got = run(DEV, q, k, v, mask)
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-5, atol=2e-6)
    assert got[0][0, :, 1].abs().max() == 0


def test_arguments_with_gaps():
    q, k, v = (torch.randn(2, 9, 4, 16)[:, ::2, :, ::2].transpose(1, 2) for _ in range(3))
    same(q, k, v)
    same(q, k, v, torch.randn(5, 10)[:, ::2])
    same(q.expand(2, 4, 5, 8), k[:, :1].expand(2, 4, 5, 8), v, is_causal=True)


@pytest.mark.parametrize("t", [5, 9])
def test_mask_and_causal_at_once(t):
    """The CPU's fused kernel takes both; a key must be seen by both."""
    same(*qkv(t=t), torch.rand(t, 7) > 0.3, is_causal=True)
    same(*qkv(t=t), torch.randn(2, 1, t, 7), is_causal=True)


def test_grouped_queries_by_the_math_path():
    with sdpa_kernel(SDPBackend.MATH):
        same(*qkv(h=6, hk=2), torch.rand(5, 7) > 0.2, enable_gqa=True)
    with pytest.raises(RuntimeError):
        sdpa(*[t.to(DEV) for t in qkv(h=6, hk=4)], enable_gqa=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout(dtype):
    """Of weights 1/S a share p is dropped and the rest grows by 1 / (1 - p); the gradient of v has the same mask."""
    n = 512
    q, k = torch.zeros(2, 4, n, 8, dtype=dtype), torch.randn(2, 4, n, 8).to(dtype)
    v = torch.ones(2, 4, n, 8, dtype=dtype, device=DEV, requires_grad=True)
    y = sdpa(q.to(DEV), k.to(DEV), v, dropout_p=0.25)
    assert abs(y.float().mean().item() - 1) < 0.01
    kept = y.float()[..., 0].cpu() * 0.75 * n  # how many keys each query kept
    assert abs(kept.std().item() - (n * 0.25 * 0.75) ** 0.5) < 2
    y.sum().backward()
    torch.testing.assert_close(v.grad.float().sum().cpu(), y.detach().float().sum().cpu(), rtol=1e-2, atol=1)
    torch.manual_seed(1)
    a = sdpa(q.to(DEV), k.to(DEV), v, dropout_p=0.25)
    torch.manual_seed(1)
    assert torch.equal(a, sdpa(q.to(DEV), k.to(DEV), v, dropout_p=0.25))


def test_refuses_what_the_cpu_refuses():
    q, k, v = qkv()
    wrong = (
        {"attn_mask": torch.ones(5, 6)},
        {"attn_mask": torch.ones(1, 2, 4, 5, 7)},
        {"attn_mask": torch.ones(5, 7, dtype=torch.int64)},
    )
    for kwargs in wrong:
        moved = {n: a.to(DEV) if isinstance(a, torch.Tensor) else a for n, a in kwargs.items()}
        said = []
        for f in (lambda kw=kwargs: sdpa(q, k, v, **kw), lambda kw=moved: sdpa(q.to(DEV), k.to(DEV), v.to(DEV), **kw)):
            with pytest.raises(RuntimeError) as e:
                f()
            said.append(str(e.value))
        assert said[0] == said[1]
    with pytest.raises(RuntimeError):
        sdpa(q.to(DEV), k.to(DEV).double(), v.to(DEV))


def test_multihead_attention():
    torch.manual_seed(0)
    m = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    x = torch.randn(2, 5, 16)
    want = m(x, x, x, need_weights=False)[0]
    got = m.to(DEV)(x.to(DEV), x.to(DEV), x.to(DEV), need_weights=False)[0]
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-6)


# ---- long enough to go block by block: blocks of 128 on this plugin

LONG = {"b": 1, "h": 4, "d": 16}


@pytest.mark.parametrize(("t", "s"), [(256, 256), (300, 300), (270, 513), (640, 290)])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks(t, s, causal):
    """Lengths that are whole blocks, and others; queries beyond the last key."""
    same(*qkv(**LONG, t=t, s=s), is_causal=causal, atol=1e-5)
    same(*qkv(**LONG, hk=2, t=t, s=s), is_causal=causal, enable_gqa=True, scale=0.2, atol=1e-5)


@pytest.mark.parametrize("shape", [(300, 310), (1, 1, 300, 310), (1, 4, 1, 310), (1, 1, 300, 1)])
def test_bias_in_blocks(shape):
    same(*qkv(**LONG, t=300, s=310), torch.randn(shape), atol=1e-5)
    same(*qkv(**LONG, t=300, s=310), torch.rand(shape) > 0.4, is_causal=True, atol=1e-5)
    same(*qkv(**LONG, t=300, s=310), torch.randn(shape), bias_grad=True, atol=1e-5)


def test_masked_rows_in_blocks():
    mask = torch.rand(300, 300) > 0.5
    mask[2] = mask[299] = False
    same(*qkv(**LONG, t=300, s=300), mask, atol=1e-5)
    assert sdpa(*[t.to(DEV) for t in qkv(**LONG, t=300, s=300)], attn_mask=mask.to(DEV))[:, :, 299].cpu().abs().max() == 0


def test_types_in_blocks():
    same(*qkv(**LONG, t=300, s=300, dtype=torch.bfloat16), rtol=3e-2, atol=4e-2, is_causal=True)
    same(*qkv(**LONG, t=300, s=300, dtype=torch.float16), rtol=3e-3, atol=5e-3)
    same(*qkv(**LONG, t=300, s=300, dtype=torch.float64), rtol=1e-12, atol=1e-12, is_causal=True)


def test_masks_that_leave_blocks_out():
    """Only those blocks are met in which a query sees a key: windows, padding, rows that see none; causal besides."""
    i, j = torch.arange(400)[:, None], torch.arange(390)[None]
    lengths = torch.tensor([150, 290])[:, None, None, None]
    for mask, causal in (((i - j).abs() < 40, False), (j < lengths, True), ((i >= j) & (i < 128), False)):
        same(*qkv(b=2, h=2, t=400, s=390), mask, is_causal=causal, atol=1e-5)
    assert sdpa(*(x.to(DEV) for x in qkv(t=400, s=390)), attn_mask=(i < j - 500).to(DEV)).abs().max().item() == 0
    k = torch.randn(1, 2, 300, 8)
    k[:, :, 256:] = torch.nan  # never read
    got = sdpa(k.to(DEV), k.to(DEV), k.to(DEV), attn_mask=(torch.arange(300) < 200).expand(300, 300).to(DEV))
    assert got[:, :, :256].isfinite().all().item()


def test_compiled_with_its_neighbours():
    """Attention and what is around it are one program, forward and backward."""

    def f(q, k, v, bias):
        return sdpa(q * 2, k + 1, v, attn_mask=bias, scale=0.3).tanh()

    compiled = torch.compile(f, backend="tpu")
    bias = torch.randn(5, 7)
    leaves = [t.to(DEV).requires_grad_() for t in (*qkv(), bias)]
    want = [t.detach().cpu().requires_grad_() for t in leaves]
    compiled(*leaves).sum().backward()
    f(*want).sum().backward()
    for g, w in zip(leaves, want, strict=True):
        torch.testing.assert_close(g.grad.cpu(), w.grad, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        compiled(*leaves)
        before = torch_tpu._C.stats(0)["calls"]
        compiled(*leaves)
        assert torch_tpu._C.stats(0)["calls"] == before + 1
    dynamic = torch.compile(lambda q, k, v: sdpa(q, k, v, is_causal=True) + 1, backend="tpu", dynamic=True)
    for t in (20, 33, 280):
        x = qkv(t=t, s=t)
        torch.testing.assert_close(dynamic(*(y.to(DEV) for y in x)).cpu(), sdpa(*x, is_causal=True) + 1, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------- as a TPU has it


class Attended(torch.nn.Module):
    def forward(self, q, k, v, g, bias):
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, bias is None, attn_mask=bias)
        back = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return out, *back(g, q, k, v, out, lse, 0.0, bias is None, attn_mask=bias)


@pytest.mark.parametrize(("t", "s", "tile"), [(256, 256, 256), (640, 640, 384), (256, 700, None)])
@pytest.mark.parametrize("masked", [False, True])
def test_blocks_of_a_tpu(t, s, tile, masked, tmp_path, monkeypatch):
    """They are larger, but no larger than what there is; here XLA:CPU runs them."""
    q, k, v = (x.contiguous() for x in qkv(b=1, h=2, t=t, s=s, d=16))
    bias = torch.where(torch.rand(t, s) > 0.3, torch.randn(t, s), -torch.inf) if masked else None
    args = (q, k, v, torch.randn_like(q), bias)
    ep = torch.export.export(Attended(), args)
    real = torch_tpu._C.graph_export
    monkeypatch.setattr(torch_tpu._C, "graph_export", lambda op, ins, writes, tpu: real(op, ins, writes, True))
    export.save(ep, tmp_path / "attended")
    text = (tmp_path / "attended" / "model.tpu.mlir").read_text()
    assert tile is None or f"-> tensor<2x{tile}x{tile}xf32>" in text
    got = export.load(tmp_path / "attended")(*[x.to(DEV) if x is not None else None for x in args])
    for w, g in zip(Attended()(*args), got, strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=1e-4, atol=1e-4)
