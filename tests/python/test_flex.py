"""flex_attention and its gradients, eager and compiled, beside the formula worked out on the CPU in float64.

(PyTorch's own flex_attention on the CPU refuses gradients, and keeps no logsumexp for float64.)
"""

import re
import warnings

import pytest
import torch
import torch_tpu
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, create_mask, flex_attention
from torch_tpu import _compile, _decompose

DEV = "tpu"
MODES = ["eager", "compiled"]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    _decompose.failures.clear()
    _compile.refused.clear()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        yield
    assert not _compile.refused and not [k for k in _decompose.failures if "flex" in k]  # nothing fell back to dense scores


def formula(q, k, v, score=None, mask=None, scale=None):
    """Outputs and logsumexp, with whole scores."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.expand(q.shape[0], *x.shape[1:]).repeat_interleave(group, 1) for x in (k, v))
    s = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    index = [torch.arange(n).reshape([-1 if a == x else 1 for a in range(4)]) for x, n in enumerate(s.shape)]
    s = score(s, *index) if score else s
    s = torch.where(mask(*index), s, -torch.inf) if mask else s
    lse = torch.logsumexp(s, -1)
    empty = (s == -torch.inf).all(-1, keepdim=True)
    p = torch.where(empty, 0.0, (s - torch.where(empty, 0.0, lse[..., None])).exp())
    return p @ v, lse


def inputs(b=2, h=2, t=150, d=8, hk=None, s=None, bk=None, dtype=torch.float32):
    shapes = [(b, h, t, d), (bk or b, hk or h, s or t, d), (bk or b, hk or h, s or t, d)]
    return [torch.randn(n).to(dtype) for n in shapes]


def leaves(device, tensors, dtype=None):
    moved = [x.detach().to(device) for x in tensors]
    return [(x.to(dtype) if dtype and x.is_floating_point() else x).requires_grad_(x.is_floating_point()) for x in moved]


def loss(out, lse, weights):
    """Of both outputs; rows that see nothing have no part in lse's."""
    seen = torch.isfinite(lse)
    return (out * weights[0]).sum() + (torch.where(seen, lse, 0.0) * weights[1]).sum()


def same(mode, qkv, score=None, mask=None, buffers=(), heads=(None, None), block=128, rtol=1e-4, atol=2e-5, **kwargs):
    """score and mask take the buffers last; gradients of those that are floats are compared too."""
    ref, ref_buffers = leaves("cpu", qkv, torch.float64), leaves("cpu", buffers, torch.float64)
    weights = torch.randn(*qkv[0].shape[:3], qkv[2].shape[3]), torch.randn(qkv[0].shape[:3])
    bound = [None if f is None else lambda *a, f=f: f(*a, *ref_buffers) for f in (score, mask)]
    want = formula(*ref, *bound, scale=kwargs.get("scale"))
    loss(*want, weights).backward()
    dev, dev_buffers = leaves(DEV, qkv), leaves(DEV, buffers)
    score_mod = None if score is None else lambda s, b, h, i, j: score(s, b, h, i, j, *dev_buffers)
    blocks = None
    if mask is not None:
        detached = [x.detach() for x in dev_buffers]
        size = qkv[0].shape[2], qkv[1].shape[2]
        blocks = create_block_mask(lambda b, h, i, j: mask(b, h, i, j, *detached), *heads, *size, device=DEV, BLOCK_SIZE=block)

    def call(q, k, v):
        gqa = q.shape[1] != k.shape[1]
        return flex_attention(q, k, v, score_mod, blocks, enable_gqa=gqa, return_aux=AuxRequest(lse=True), **kwargs)

    call = torch.compile(call, backend="tpu") if mode == "compiled" else call
    out, aux = call(*dev)
    assert out.dtype == dev[0].dtype and aux.lse.shape == dev[0].shape[:3]
    loss(out, aux.lse, [w.to(DEV) for w in weights]).backward()
    pairs = [(out, want[0]), (aux.lse, want[1])]
    pairs += [(d.grad, r.grad) for d, r in zip(dev + dev_buffers, ref + ref_buffers, strict=True) if r.grad is not None]
    for got, expected in pairs:
        torch.testing.assert_close(got.detach().cpu().double(), expected.detach(), rtol=rtol, atol=atol)
    return out, aux.lse


def causal(b, h, i, j, *_):
    return i >= j


@pytest.mark.parametrize("mode", MODES)
def test_plain(mode):
    same(mode, inputs(t=256), scale=0.3)
    same(mode, inputs(t=37, s=21))


@pytest.mark.parametrize(("mode", "block"), [("compiled", 128), ("eager", 256), ("compiled", (64, 32))])
def test_causal_and_window(mode, block):
    same(mode, inputs(t=300), mask=causal, block=block)
    same(mode, inputs(t=300), mask=lambda b, h, i, j: (i >= j) & (i - j < 50), block=block)


@pytest.mark.parametrize("mode", MODES)
def test_alibi(mode):
    same(mode, inputs(h=4), lambda s, b, h, i, j, slope: s + slope[h] * (j - i), causal, [torch.rand(4)])


@pytest.mark.parametrize("mode", MODES)
def test_documents(mode):
    ids = torch.arange(300, dtype=torch.int32) // 70
    same(mode, inputs(t=300), mask=lambda b, h, i, j, ids: (ids[i] == ids[j]) & (i >= j), buffers=[ids])


@pytest.mark.parametrize("mode", MODES)
def test_masks_that_differ_by_batch_and_head(mode):
    reach = torch.randint(20, 150, (2, 4))
    near = lambda b, h, i, j, w: (i - j).abs() < w[b, h]  # noqa: E731
    same(mode, inputs(h=4, hk=2, t=140, s=270), mask=near, buffers=[reach], heads=(2, 4))
    same(mode, inputs(h=4, t=200), mask=lambda b, h, i, j, w: (i - j).abs() < w[b, 0], buffers=[reach], heads=(2, None))


@pytest.mark.parametrize("mode", MODES)
def test_soft_cap_by_a_number_and_by_a_parameter(mode):
    same(mode, inputs(), lambda s, b, h, i, j: 2.0 * torch.tanh(s / 2.0))
    same(mode, inputs(), lambda s, b, h, i, j, cap: cap * torch.tanh(s / cap), causal, [torch.tensor(1.5)])


@pytest.mark.parametrize("mode", MODES)
def test_relative_bias(mode):
    """A table looked up by the distance, which different tiles share."""
    same(mode, inputs(t=160), lambda s, b, h, i, j, r: s + r[h, i - j + 159], None, [torch.randn(2, 320)])


@pytest.mark.parametrize("mode", MODES)
def test_dense_bias_read_twice(mode):
    bias = torch.randn(2, 2, 150, 150)
    same(mode, inputs(), lambda s, b, h, i, j, r: s * r[0, 0, i, 0] + r[b, h, i, j], causal, [bias])


@pytest.mark.parametrize("mode", MODES)
def test_grouped_queries(mode):
    same(mode, inputs(h=6, hk=2, t=256), mask=causal)
    same(mode, inputs(h=4, hk=1, t=100, s=200), lambda s, b, h, i, j: s * (h + 1) * 0.2)


@pytest.mark.parametrize("mode", MODES)
def test_one_batch_of_keys_for_all(mode):
    same(mode, inputs(b=3, bk=1), mask=lambda b, h, i, j: i >= j * b, heads=(3, None))


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_see_nothing(mode):
    """Within a block, whole blocks, and where a full block of keys was cut off: 0, and -inf for lse."""
    out, lse = same(mode, inputs(t=300), mask=lambda b, h, i, j: (i >= j) & (i != 7) & ((i < 128) | (i >= 256)))
    for row in (7, 128, 255):
        assert out[:, :, row].abs().max().item() == 0 and (lse[:, :, row] == -torch.inf).all().item()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("dtype", "tol"), [(torch.bfloat16, 4e-2), (torch.float16, 5e-3)])
def test_short_floats(mode, dtype, tol):
    same(mode, inputs(dtype=dtype), lambda s, b, h, i, j: s - (i - j).abs() * 0.1, causal, rtol=tol, atol=tol)


def test_float64():
    same("eager", inputs(dtype=torch.float64), lambda s, b, h, i, j: s * 0.5, causal, rtol=1e-10, atol=1e-10)


def test_layout_is_kept():
    x = torch.randn(2, 130, 3, 2, 16, device=DEV)
    q, k, v = (x[:, :, n].transpose(1, 2) for n in range(3))
    out = flex_attention(q, k, v)
    assert out.transpose(1, 2).is_contiguous()
    torch.testing.assert_close(out.cpu(), formula(q.cpu(), k.cpu(), v.cpu())[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_auxiliary_outputs(mode):
    q, k, v = inputs()
    dev = [x.to(DEV) for x in (q, k, v)]
    f = torch.compile(flex_attention, backend="tpu") if mode == "compiled" else flex_attention
    _, aux = f(*dev, return_aux=AuxRequest(lse=True, max_scores=True))
    want = (q @ k.mT) * 8**-0.5
    torch.testing.assert_close(aux.max_scores.cpu(), want.amax(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(aux.lse.cpu(), want.logsumexp(-1), rtol=1e-5, atol=1e-5)
    with pytest.warns(FutureWarning, match="return_lse") if mode == "eager" else warnings.catch_warnings():
        torch.nn.attention.flex_attention._WARNINGS_SHOWN.discard("deprecated_return_lse")
        _, lse = f(*dev, return_lse=True)
    torch.testing.assert_close(lse.cpu(), want.logsumexp(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_options_of_other_kernels_are_ignored(mode):
    same(mode, inputs(), mask=causal, kernel_options={"BLOCK_M": 16, "num_warps": 4, "PRESCALE_QK": True})
    same(mode, inputs(), kernel_options={"BACKEND": "FLASH"})  # its callers take lse for a natural logarithm


def test_gradients_for_some():
    """Only what wants a gradient gets one; none at all under no_grad."""
    q, k, v = (x.to(DEV) for x in inputs())
    bias = torch.randn(2, device=DEV, requires_grad=True)
    flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[h] * i).sum().backward()
    assert bias.grad is not None and q.grad is None
    v.requires_grad_()
    flex_attention(q, k, v).sum().backward()
    assert v.grad.isfinite().all().item() and q.grad is None
    with torch.no_grad():
        assert not flex_attention(q, k, v).requires_grad


def test_one_program_for_many_calls():
    """Calls of one function with other tensors, or other numbers in its buffers, compile nothing."""
    slopes = torch.rand(2, device=DEV)

    def score(s, b, h, i, j):
        return s + slopes[h] * j

    flex_attention(*(x.to(DEV) for x in inputs()), score)
    torch.tpu.synchronize()
    before = torch_tpu._C.stats(0)["programs_compiled"]
    for _ in range(3):
        slopes.mul_(1)
        qkv = inputs()
        got = flex_attention(*(x.to(DEV) for x in qkv), score)
        host = slopes.cpu()
        want = formula(*qkv, lambda s, b, h, i, j, x=host: s + x[h] * j)[0]
        torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)
    assert torch_tpu._C.stats(0)["programs_compiled"] <= before + 1  # slopes.mul_


def test_autocast():
    q, k, v = (x.to(DEV) for x in inputs())
    with torch.autocast("tpu", dtype=torch.bfloat16):
        out = flex_attention(q, k, v)
        compiled = torch.compile(flex_attention, backend="tpu")(q, k, v)
    want = formula(q.cpu(), k.cpu(), v.cpu())[0]
    for got in (out, compiled):
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.float().cpu(), want, rtol=3e-2, atol=3e-2)


def test_dynamic_lengths():
    f = torch.compile(lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s + j), backend="tpu", dynamic=True)
    for t in (140, 200, 290):
        qkv = inputs(t=t)
        want = formula(*qkv, lambda s, b, h, i, j: s + j)[0]
        torch.testing.assert_close(f(*(x.to(DEV) for x in qkv)).cpu(), want, rtol=1e-4, atol=1e-4)


def test_one_call_without_compile_warns_once():
    torch.nn.attention.flex_attention._WARNINGS_SHOWN.clear()
    q = torch.randn(1, 1, 130, 8, device=DEV)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            flex_attention(q, q, q)
    assert len([w for w in seen if "flex_attention" in str(w.message)]) <= 1


def test_a_saved_graph_is_found_again(monkeypatch, tmp_path):
    """By AOTAutograd's cache, with the functions in it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    counters.clear()
    q, k, v = inputs(t=130)
    slope = torch.rand(2)
    for hits in (0, 1):
        torch._dynamo.reset()
        dev, on = leaves(DEV, [q, k, v]), slope.to(DEV).requires_grad_()
        f = torch.compile(lambda q, k, v, m=on: flex_attention(q, k, v, lambda s, b, h, i, j: s + m[h] * j), backend="tpu")
        f(*dev).sum().backward()
        assert counters["aot_autograd"]["autograd_cache_hit"] == hits
        host, ref = leaves("cpu", [q, k, v]), slope.clone().requires_grad_()
        formula(*host, lambda s, b, h, i, j, m=ref: s + m[h] * j)[0].sum().backward()
        for got, want in zip([*dev, on], [*host, ref], strict=True):
            torch.testing.assert_close(got.grad.cpu(), want.grad, rtol=1e-4, atol=2e-5)


# ------------------------------------------------------------------------------------------------------------ block masks


@pytest.mark.parametrize("compiled", [False, True])
def test_block_masks_are_those_of_the_cpu(compiled):
    reach = torch.tensor([20, 90])

    def make(device):
        w = reach.to(device)
        make = torch.compile(create_block_mask, backend="tpu") if compiled and device == DEV else create_block_mask
        return make(lambda b, h, i, j: (i - j).abs() < w[h], 1, 2, 300, 350, device=device, BLOCK_SIZE=64)

    want, got = make("cpu"), make(DEV)
    for name in BlockMask._TENSOR_ATTRS:
        a, b = getattr(want, name), getattr(got, name)
        assert (a is None) == (b is None)
        if a is not None:
            assert b.device.type == DEV and torch.equal(a, b.cpu()), name
    assert torch.equal(want.to_dense(), got.to_dense().cpu())
    assert str(want) == str(got) and want.sparsity() == got.sparsity()


def test_block_mask_with_its_own_compile_flag():
    want = create_block_mask(causal, None, None, 300, 300, device="cpu")
    got = create_block_mask(causal, None, None, 300, 300, device=DEV, _compile=True)
    assert got.mask_mod is causal and torch.equal(want.to_dense(), got.to_dense().cpu())


def test_other_block_masks():
    """Cropped, moved from the CPU, without separate full blocks, from lists of one's own."""
    q, k, v = inputs(t=200)
    dev = [x.to(DEV) for x in (q, k, v)]
    want = formula(q, k, v, None, causal)[0]
    whole = create_block_mask(causal, None, None, 300, 300, device=DEV)
    lists = torch.tensor([[[1, 2]]], dtype=torch.int32), torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32)
    masks = [
        whole._adjust(200, 200),
        create_block_mask(causal, None, None, 200, 200, device="cpu").to(DEV),
        create_block_mask(causal, None, None, 200, 200, device=DEV, separate_full_blocks=False),
        BlockMask.from_kv_blocks(*(x.to(DEV) for x in lists), mask_mod=causal, seq_lengths=(200, 200)),
    ]
    for mask in masks:
        torch.testing.assert_close(flex_attention(*dev, block_mask=mask).cpu(), want, rtol=1e-5, atol=1e-5)
    dense = create_mask(causal, 1, 1, 20, 30, device=DEV)
    assert torch.equal(dense.cpu(), create_mask(causal, 1, 1, 20, 30, device="cpu"))


def test_blocks_that_are_not_listed_are_not_read():
    """A block left out costs nothing, whatever mask_mod says of it: its keys could be NaN."""
    q, k, v = inputs(t=256)
    k[:, :, 128:] = torch.nan
    lists = torch.tensor([[[1, 1]]], dtype=torch.int32), torch.tensor([[[[0, 1], [0, 1]]]], dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(*(x.to(DEV) for x in lists), seq_lengths=(256, 256))
    got = flex_attention(*(x.to(DEV) for x in (q, k, v)), block_mask=mask)
    torch.testing.assert_close(got.cpu(), formula(q, k[:, :, :128], v[:, :, :128])[0], rtol=1e-5, atol=1e-5)


# ----------------------------------------------------------------------------------------------------------------- memory


def sizes_of(text):
    """Of the tensors that a module's text has."""
    return [[int(n) for n in dims.split("x")[:-1]] for dims in set(re.findall(r"tensor<([0-9x]+x[a-z0-9]+)>", text))]


@pytest.mark.parametrize("kind", ["flex", "sdpa"])
def test_memory_grows_with_the_length(kind):
    """T = 4096, two heads: scores would be 134 MB, q, k, v, out and their gradients are 0.5 MB each. No value of a program has more
    than one axis of that length, and its results are all that is held."""
    t = 4096
    q, k, v = (torch.randn(1, 2, t, 16, device=DEV, requires_grad=True) for _ in range(3))
    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 200), None, None, t, t, device=DEV)
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    held = torch.tpu.memory_allocated()
    texts = []
    if kind == "flex":
        out = flex_attention(q, k, v, block_mask=mask)
    else:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    texts.append(torch_tpu._C.last_module())
    with torch.autograd.set_multithreading_enabled(False):  # lower the gradient in this thread
        torch.autograd.grad(out, [q, k, v], out.detach())
    torch.tpu.synchronize()
    assert torch.tpu.max_memory_allocated() - held < 16 * q.numel() * 4
    texts.append(torch_tpu._C.last_module())
    for text in texts:
        assert "stablehlo.while" in text and max(sum(n >= t for n in sizes) for sizes in sizes_of(text)) == 1
