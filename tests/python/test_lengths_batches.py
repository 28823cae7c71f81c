"""Batches of varying length in eager calls: one program for many lengths, and the CPU's values at each.

Uploads whose shape differs from earlier ones along one axis alone are open from the fourth size on (src/graph/lengths.h). What is
past their ends is made NaN here, so that whatever lets it in is seen.
"""

import copy
import io
import os
import pickle
import random
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.nn.functional as F
from batchcase import (
    ALL,
    DEBUG,
    FEW,
    FIRST,
    FUSE,
    LENGTHS,
    OPS,
    STRICT,
    Batch,
    batch_program,
    check,
    gradients,
    programs,
    same,
    some,
    step_calls,
)

MODES = pytest.mark.parametrize("mode", [STRICT, FUSE, DEBUG], ids=["strict", "fuse", "debug"])


def come_first():
    for n in FIRST:
        step_calls()
        Batch(n, device="tpu")
        step_calls()


@pytest.fixture(autouse=True)
def no_program_of_an_earlier_test():
    """Is counted in one that counts them."""
    torch.tpu.compiler.wait()


@pytest.fixture(scope="module", autouse=True)
def first_lengths():
    come_first()
    yield
    for n in range(1000, 1008):  # that other files' tensors are not as long as the last batches
        torch.zeros(7, n, dtype=torch.int64).to("tpu")


@pytest.mark.parametrize("name", ["each", "two", "merged_back", "heads", "sdpa", "index_beside"])
def test_common_ops_compile_for_bounds_only(name):
    torch.tpu.compiler.wait()
    come_first()  # other tests' floats may have looked like weights
    with torch.tpu.set_eager_mode(STRICT):
        check(OPS[name], lengths=(24, 30))
        assert check(OPS[name], lengths=(21, 27, 31)) == [0, 0, 0]


@pytest.mark.parametrize("name", some(OPS, 1))
def test_ops_on_batches(name):
    check(OPS[name])


@pytest.mark.parametrize("name", some(OPS, 0))
def test_ops_on_batches_fused(name):
    check(OPS[name], lengths=FEW, mode=FUSE)


# kthvalue, mode and the like give one of equal places; numbers and reads have no gradients.
@pytest.mark.parametrize("name", some((n for n in OPS if n not in ("numbers", "reads", "ids", "strided")), 2))
def test_gradients_of_batches(name):
    atol = 2e-4 if name == "layer_norm" else 1e-5  # of four elements: the CPU itself is 6e-5 from its float64 there
    check(gradients(OPS[name]), lengths=(24, 21, 32, 45) if ALL else (21, 30), mode=STRICT, rtol=1e-4, atol=atol)


# --------------------------------------------------------------------------------------------------------- writing in place


def writes(b):
    kept = b.x.clone()
    b.x[:, -1] = 3
    b.x[:, :1] = b.some(4)
    b.x.add_(1)
    b.x[0].mul_(2)
    b.x[:, 1:] += 1
    b.x[:, ::2] *= 2
    shifted, other = b.x * 1, torch.zeros_like(b.v)
    shifted[:, 1:] = b.x[:, :-1].clone()
    shifted[:, 0] = b.x[:, -1]
    shifted[:, 0].mul_(2)
    shifted[:, 2:].add_(1)
    other[:, 1:] = b.v[:, :-1] * 2
    other[:, :1].fill_(3)
    other[1:] = b.v[1:]
    other[:, 2:] += b.v[:, :-2] if b.n > 2 else 1
    return b.x, kept, b.x.sum(1), shifted, shifted.sum(1), other, other.sum(1)


def writes_whole(b):
    y = b.x * 2
    view, before = y[:, :, 1], y.exp()
    y += b.x
    y.transpose(0, 1).mul_(b.v[0, :, None, None])
    y[1].sub_(b.x[0])
    y.masked_fill_(b.mask[..., None], 5)
    torch.add(b.x, 1, out=y) if b.n % 3 == 0 else y.clamp_(0.5, 3)
    y[..., :1].copy_(b.x[..., 3:])
    y[:, 0] = 7
    return y, view, before, y.zero_() + 1 if b.n % 2 else y.add_(y)


def writes_ids(b):
    labels = b.ids.clone()
    labels[~b.mask] = -100
    shifted = b.ids.new_zeros(b.ids.shape)
    shifted[:, 1:] = b.ids[:, :-1].clone()
    shifted[:, 0] = 7
    shifted.masked_fill_(shifted == 3, -1)
    b.ids[b.mask] += 1
    b.ids[0] = 1
    return labels, shifted, b.ids, labels.ne(-100).sum()


def writes_views(b):
    flat, rows, turned = b.x.view(-1), b.x.view(-1, 4), b.x.mT
    flat[3] = 9
    rows[b.n] = 2
    rows[:, 1].mul_(3)
    turned[:, 0].add_(1)
    b.x.diagonal(0, 1, 2).fill_(4)
    b.x.unfold(1, 1, 1)[0].zero_()
    b.x.select(1, -1).exp_()
    b.v.squeeze_().t_()
    return flat, rows, turned.contiguous(), b.x, b.v.contiguous()


def outs(b):
    out = torch.empty(0, device=b.device)
    torch.mul(b.x, 2, out=out)
    other = torch.empty_like(b.x)
    torch.exp(b.x, out=other)
    into = torch.zeros(3, 64, 4, device=b.device)
    into[:, : b.n] = b.x
    into[:, 1:2].copy_(b.x[:, -1:])
    half = torch.empty(3, b.n, 4, device=b.device, dtype=torch.bfloat16).copy_(b.x)
    product = torch.empty(3, b.n, b.n, device=b.device)
    torch.bmm(b.x, b.x.mT, out=product)
    return out, other, into, half, product, torch.cumsum(b.x, 1, out=torch.empty_like(b.x))


def copies(b):
    """From the host into what is there, once and again."""
    given = Batch(b.n, 77)
    b.x.copy_(given.x)
    b.ids.copy_(given.ids)
    kept = b.x * 1
    b.x[:, : b.n // 2 + 1].copy_(given.x[:, : b.n // 2 + 1] + 1)
    b.v.copy_(given.v.double())
    b.mask.copy_(given.v)
    b.v[1].copy_(given.v[0])
    return b.x, kept, b.ids + 1, b.v, b.mask, b.x.exp()


def resizes(b):
    flat, longer = b.x.clone(), b.x.clone()
    flat.resize_(2, 2, 2) if b.n > 1 else flat
    longer.untyped_storage().resize_(longer.untyped_storage().nbytes() + 64)
    b.ids.resize_(b.n, 3)
    b.x.data = b.x.data[:, :1]
    b.v.untyped_storage().resize_(0)
    b.v.untyped_storage().resize_(12 * b.n)
    return flat, longer, b.x, b.ids * 2, b.v.fill_(2)


def aliases(b):
    view = b.x[1]
    b.x.mul_(2)
    other = torch.empty(0, device=b.device).set_(b.x)
    other.add_(1)
    b.v.set_(b.x.untyped_storage(), 1, (2, 3), (1, 2)) if b.n > 2 else b.v
    b.v.mul_(2)
    return view + 0, other, b.x, b.v + 0, b.x.data_ptr() == other.data_ptr(), b.x[:, :1].data_ptr() == b.x.data_ptr()


@MODES
@pytest.mark.parametrize(
    "f", [writes, writes_whole, writes_ids, writes_views, outs, copies, resizes, aliases], ids=lambda f: f.__name__
)
def test_writing_to_batches(f, mode):
    check(f, lengths=LENGTHS if mode == STRICT else FEW, mode=mode)


# ------------------------------------------------------------------------------------------------------ attention and layers


def long_attention(b):
    """Over 256: the tiled form, and its gradients."""
    q = b.x.view(3, b.n, 2, 2).transpose(1, 2)
    q = q.detach().clone().requires_grad_()
    found = [F.scaled_dot_product_attention(q, q, q, is_causal=True), F.scaled_dot_product_attention(q, q, q)]
    found += [F.scaled_dot_product_attention(q, q, q, attn_mask=m) for m in (b.mask[:, None, None], b.square, b.square.float())]
    torch.stack([o.sin().sum() for o in found]).sum().backward()
    return *found, q.grad


def test_attention_over_long_batches():
    for n in (300, 310, 320):
        step_calls()
        Batch(n, device="tpu")
    check(long_attention, lengths=(315, 301, 270, 512) if ALL else (301, 315), rtol=1e-3, atol=1e-4)


def module_step(make, run):
    def f(b):
        torch.manual_seed(0)
        module = make().to(b.device)
        run(module, b).sin().sum().backward()
        return [p.grad for p in module.parameters()] + [b.x.grad]

    return f


LAYERS = {
    "linear": (lambda: torch.nn.Linear(4, 5), lambda m, b: m(b.x.requires_grad_())),
    "encoder": (
        lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0, batch_first=True),
        lambda m, b: m(b.x.requires_grad_(), src_key_padding_mask=~b.mask),
    ),
    "multihead": (
        lambda: torch.nn.MultiheadAttention(4, 2, batch_first=True),
        lambda m, b: m(*[b.x.requires_grad_()] * 3, key_padding_mask=~b.mask)[0],
    ),
    "lstm": (lambda: torch.nn.LSTM(4, 3, batch_first=True), lambda m, b: m(b.x.requires_grad_())[0]),
    "gru": (lambda: torch.nn.GRU(4, 3, batch_first=True, bidirectional=True), lambda m, b: m(b.x.requires_grad_())[0]),
    "packed": (
        lambda: torch.nn.LSTM(4, 3, batch_first=True),
        lambda m, b: (
            m(torch.nn.utils.rnn.pack_padded_sequence(b.x.requires_grad_(), [b.n, (b.n + 1) // 2, 1], batch_first=True))[0].data
        ),
    ),
    "conv": (lambda: torch.nn.Conv1d(4, 2, 3, padding=1), lambda m, b: m(b.x.requires_grad_().mT)),
    "batch_norm": (lambda: torch.nn.BatchNorm1d(4), lambda m, b: m(b.x.requires_grad_().mT)),
    "embedding": (lambda: torch.nn.Embedding(9, 4, padding_idx=2), lambda m, b: m(b.ids) * b.x.requires_grad_()),
    "mlp": (
        lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)),
        lambda m, b: m(b.x.requires_grad_()).log_softmax(-1),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_on_batches(name):
    check(module_step(*LAYERS[name]), lengths=(24, 21, 9), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------- the rest


def test_autocast():
    def f(b):
        with torch.autocast(b.device if b.device == "cpu" else "tpu", dtype=torch.bfloat16):
            return (b.x @ b.some(4, 5)).relu() @ b.some(5, 2), F.linear(b.x, b.some(2, 4))

    check(f, lengths=FEW, rtol=3e-2, atol=3e-2)


def test_no_grad_and_inference_mode():
    def f(b):
        with torch.no_grad():
            first = (b.x * 2).sum(1)
        with torch.inference_mode():
            second = b.x.softmax(1)
            second.mul_(2)
        return first, second, b.x.requires_grad

    check(f, lengths=FEW)


def test_saving_and_copying(tmp_path):
    for n in LENGTHS:
        step_calls()
        b, want = Batch(n, device="tpu"), Batch(n)
        torch.save((b.x, b.ids[:, 1:], b.x), tmp_path / "x.pt")
        x, ids, again = torch.load(tmp_path / "x.pt", map_location="cpu")
        same((x, ids), (want.x, want.ids[:, 1:]))
        assert x.data_ptr() == again.data_ptr()
        same([t * 1 for t in torch.load(io.BytesIO((tmp_path / "x.pt").read_bytes()))[:2]], (want.x, (want.ids[:, 1:] * 1)))
        same(pickle.loads(pickle.dumps(b.x)), want.x)
        same([copy.deepcopy(b.x), copy.copy(b.v), copy.deepcopy({"a": b.ids, "b": b.ids})["b"]], [want.x, want.v, want.ids])
        assert b.ids.tolist() == want.ids.tolist()
        assert repr(b.ids).split("device")[0].rstrip(", \n") == repr(want.ids)[:-1]
        assert (b.x.numpy(force=True) == want.x.numpy()).all()
        assert b.x.untyped_storage().nbytes() == 48 * n
        assert len(bytes(b.ids.cpu().untyped_storage())) == 24 * n
        same(b.x.to("tpu", copy=True), want.x)
        same(want.x.to("tpu", non_blocking=True), want.x)
        same(torch.tensor(want.ids.tolist(), device="tpu"), want.ids)
        same(torch.as_tensor(want.v.numpy(), device="tpu") + 1, want.v + 1)
        it = iter(b.ids)
        same([r * 2 for r in it], [r * 2 for r in want.ids])


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_compiled_functions_take_batches(dynamic):
    def g(x, ids):
        return (x * 2).sum(1), x.softmax(1) @ x.mT, ids * 2, x[:, 1:] + 1

    torch.compiler.reset()
    f = torch.compile(g, backend="tpu", dynamic=dynamic)
    check(lambda b: f(b.x, b.ids) if b.device == "tpu" else g(b.x, b.ids), lengths=(24, 21, 30))


def test_an_artifact_takes_batches(tmp_path):
    import torch_tpu.export as export

    class M(torch.nn.Module):
        def forward(self, x):
            return x.exp() + 1

    export.save(torch.export.export(M(), (torch.ones(3, 22, 4),)), tmp_path / "m")
    loaded = export.load(tmp_path / "m", device="tpu")
    step_calls()
    b = Batch(22, device="tpu")
    torch.testing.assert_close(loaded(b.x).cpu(), Batch(22).x.exp() + 1)
    torch.testing.assert_close((b.x + 1).cpu(), Batch(22).x + 1)


def test_an_index_past_the_length_is_an_error():
    """The length counts, not the bound."""
    for n in (21, 30, 40):
        step_calls()
        b, table = Batch(n, device="tpu"), torch.ones(9, 2, device="tpu")
        with pytest.raises(IndexError):
            b.x[:, torch.tensor([0, n], device="tpu")].cpu()
        with pytest.raises(IndexError):
            b.x[:, torch.tensor([-n - 1], device="tpu")].cpu()
        with pytest.raises(IndexError):
            b.x[:, n]
        b.ids[1, n - 1] = 9
        with pytest.raises(IndexError):
            F.embedding(b.ids, table).cpu()
        with pytest.raises(RuntimeError):
            b.x + torch.ones(3, n + 1, 4, device="tpu")
        same(b.x * 2, Batch(n).x * 2)


def test_several_threads():
    """Each with lengths of its own."""
    errors = []

    def work(k):
        try:
            rng = random.Random(k)
            for i in range(12):
                n = rng.randrange(17, 33)
                step_calls()
                b, want = Batch(n, i, "tpu"), Batch(n, i)
                same(((b.x @ b.x.mT).softmax(-1) @ b.x, b.ids.sum(1)), ((want.x @ want.x.mT).softmax(-1) @ want.x, want.ids.sum(1)))
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[0]


class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.inner, self.out = torch.nn.Embedding(9, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 9)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, ids, mask):
        h = self.words(ids)
        q = self.inner(h).view(*ids.shape, 2, 4).transpose(1, 2)
        h = h + F.scaled_dot_product_attention(q, q, q, attn_mask=mask[:, None, None]).transpose(1, 2).reshape(h.shape)
        return F.cross_entropy(self.out(self.norm(h)).flatten(0, 1), ids.masked_fill(~mask, -100).flatten())


@MODES
def test_training_compiles_for_bounds_only(mode):
    torch.manual_seed(0)
    model, made, rng = Reader(), [], random.Random(4)
    ref = copy.deepcopy(model)
    model.to("tpu")
    torch.tpu.compiler.wait()
    opt, other = torch.optim.AdamW(model.parameters(), 0.01), torch.optim.AdamW(ref.parameters(), 0.01)
    with torch.tpu.set_eager_mode(mode):
        for i, n in enumerate([20, 24, 28, 31, *[rng.randrange(17, 32) for _ in range(10)]]):
            b, want = Batch(n, i), Batch(n, i)
            before = programs() - torch.tpu.fuse_stats()["programs"]
            opt.zero_grad()
            loss = model(b.ids.to("tpu"), b.mask.to("tpu"))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            torch.tpu.synchronize()
            made.append(programs() - torch.tpu.fuse_stats()["programs"] - before)
            other.zero_grad()
            right = ref(want.ids, want.mask)
            right.backward()
            torch.nn.utils.clip_grad_norm_(ref.parameters(), 1.0)
            other.step()
            torch.testing.assert_close(loss.cpu(), right, rtol=1e-3, atol=1e-3)
    assert sum(made[5:]) <= 0, made  # fused ones are compiled when there is time


def child(code, *args, **env):
    env = {**os.environ, **env}
    return subprocess.run([sys.executable, "-c", code, *args], env=env, check=True, capture_output=True, text=True).stdout


WEIGHTS = """
import torch
from torch import nn
sizes = [8, 24, 40, 56, 72, 88, 104, 120]
model = nn.ModuleList([nn.Linear(16, n) for n in sizes] + [nn.Linear(n, 16) for n in sizes] + [nn.Embedding(n, 16) for n in sizes]
                      + [nn.LayerNorm(n) for n in sizes] + [nn.Conv1d(4, n, 3) for n in sizes])
for dtype in (torch.int8, torch.int32, torch.uint8):
    for k, n in enumerate(sizes):
        model.register_buffer(f"q{dtype}{k}".replace(".", ""), torch.ones(n, 16, dtype=dtype))
state = model.state_dict()
model.to("tpu")
for _ in range(2):
    model.load_state_dict(state)
x = torch.ones(2, 16, device="tpu")
for m in model[:8]:
    m(x).sum().backward()
models = [model]
for r in range(6):  # other models later, with some sizes that were there
    for _ in range(10):
        x = x + 1
    models.append(nn.ModuleList([nn.Linear(16, n + 20 * r) for n in sizes] + [nn.Embedding(n + r, 16) for n in sizes]).to("tpu"))
torch.tpu.synchronize()
kept = sum(p.numel() * p.element_size() for m in models for p in [*m.parameters(), *m.buffers()])
kept += sum(p.grad.numel() * p.grad.element_size() for p in model.parameters() if p.grad is not None)
print(torch.tpu.memory_allocated() - kept)
"""


def test_weights_are_never_open():
    """Their sizes differ, but nothing lies between them."""
    assert int(child(WEIGHTS)) < 4096  # x, numbers


def test_the_variable_turns_it_off():
    code = (
        "import torch\nfor n in range(20, 32):\n    x = (torch.ones(3, n, dtype=torch.int64).to('tpu') + 1) * 2\n"
        "torch.tpu.synchronize()\nprint(torch.tpu.compile_stats()['programs'])"
    )
    assert int(child(code, TORCH_TPU_EAGER_LENGTHS="0")) >= 24
    assert int(child(code, TORCH_TPU_EAGER_LENGTHS="1")) <= 10


DRAWS = """
import sys, torch
import torch.nn.functional as F
torch.manual_seed(3)
w, found = torch.ones(9, 4, device="tpu"), []
for n in (20, 24, 28, 21, 30):
    ids = torch.zeros(3, n, dtype=torch.int64).to("tpu")
    h = F.embedding(ids, w)
    q = h[:, None]
    found += [F.dropout(h, 0.3), F.dropout(ids.flatten() + 1.0, 0.5), F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)]
    found += [torch.rand_like(h), torch.bernoulli(h * 0.5), torch.randn(3, n, device="tpu") + ids, h.clone().normal_() * h]
torch.save([t.cpu() for t in found], sys.argv[1])
"""


def test_dropout_draws_what_it_draws_for_its_length(tmp_path):
    for value in ("0", "1"):
        child(DRAWS, str(tmp_path / value), TORCH_TPU_EAGER_LENGTHS=value)
    for a, b in zip(torch.load(tmp_path / "0"), torch.load(tmp_path / "1"), strict=True):
        torch.testing.assert_close(a, b)


FUZZ_SECONDS = float(os.environ.get("TORCH_TPU_TEST_FUZZ", "8"))
FUZZ_SEED = int(os.environ.get("TORCH_TPU_TEST_SEED", "0"))


def test_random_programs_on_batches():
    """Chains of ops; TORCH_TPU_TEST_FUZZ: for so many seconds, TORCH_TPU_TEST_SEED: from this seed on."""
    end, seed, wrong = time.monotonic() + FUZZ_SECONDS, FUZZ_SEED, []
    while time.monotonic() < end:
        try:
            batch_program(seed)
        except AssertionError as e:
            wrong.append(str(e))
        seed += 1
    assert not wrong, f"{len(wrong)} of {seed - FUZZ_SEED}:\n" + "\n".join(w[:1500] for w in wrong[:20])
