"""Lengths given at run time in eager calls: what grows by torch.cat has one program for many lengths, and the CPU's values at each.

Tensors that grow are put together anew at every step; from the third length on they are open (src/graph/lengths.h), and what is
past their ends is made NaN here, so that whatever lets it in is seen.
"""

import os
import random
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

FUSE, STRICT, DEBUG = torch.tpu.EagerMode.FUSE, torch.tpu.EagerMode.STRICT, torch.tpu.EagerMode.DEBUG
STEPS = 12
FIRST = 5


@pytest.fixture(autouse=True)
def no_batch_is_as_long():
    """What is as long as a batch that came lately goes with that, up to other bounds: the last ones are longer than all here.
    Nor is a program counted that an earlier test has asked for."""
    torch.tpu.compiler.wait()
    for n in range(1000, 1008):
        torch.zeros(7, n, dtype=torch.int64).to("tpu")


def programs() -> int:
    return torch.tpu.compile_stats()["programs"]


def pieces(seed, steps, shape, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    return [(torch.rand(*shape, generator=g) + 0.5).to(dtype) for _ in range(steps + FIRST)]


def growing(device, steps, dim=-2, shape=(2, 3, 1, 4), seed=0, dtype=torch.float32):
    """A tensor that grows by one place along dim at each step; past its end there is NaN (0 / 0) once it is open."""
    new = [p.to(device) for p in pieces(seed, steps, shape, dtype)]
    x = torch.cat(new[:FIRST], dim)
    for i in range(steps):
        x = torch.cat([x, new[FIRST + i]], dim)
        yield x / x * x


def check(f, steps=STEPS, mode=STRICT, **kwargs):
    """f of the growing tensor and the step, on the device and on the CPU."""
    with torch.tpu.set_eager_mode(mode):
        for i, (x, want) in enumerate(zip(growing("tpu", steps, **kwargs), growing("cpu", steps, **kwargs), strict=True)):
            got, expected = f(x, i), f(want, i)
            for a, b in zip(*(r if isinstance(r, tuple | list) else [r] for r in (got, expected)), strict=True):
                assert a.shape == b.shape
                assert a.dtype == b.dtype
                if a.numel() > 1:
                    assert [s for s, n in zip(a.stride(), a.shape, strict=True) if n > 1] == [
                        s for s, n in zip(b.stride(), b.shape, strict=True) if n > 1
                    ]
                torch.testing.assert_close(a.cpu(), b, msg=lambda m, i=i: f"step {i}: {m}")


OPS = {
    "each": lambda x, i: (x * 2 + 1).exp(),
    "number": lambda x, i: x * (i + 0.5) - i,
    "two": lambda x, i: x + x.sin() * x,
    "compare": lambda x, i: torch.where(x > 1, x, x * 0),
    "row": lambda x, i: x + x[:, :, :1],
    "last": lambda x, i: x[:, :, -1:] * 3,
    "middle": lambda x, i: x[:, :, 1:4].contiguous(),
    "tail": lambda x, i: x[:, :, 2:].exp(),
    "every_other": lambda x, i: x[:, :, ::2] + 1,
    "select": lambda x, i: x[:, 1, -2] + x[1, 0, 0],
    "heads": lambda x, i: x[:, 1:].neg(),
    "columns": lambda x, i: x[..., 1:3] - 1,
    "transpose": lambda x, i: x.transpose(2, 3) * 2,
    "permute": lambda x, i: x.permute(2, 0, 3, 1).contiguous() + 1,
    "expand": lambda x, i: x[:, :, None].expand(2, 3, 2, x.shape[2], 4).reshape(2, 6, x.shape[2], 4) * 1,
    "merge": lambda x, i: x.reshape(6, x.shape[2], 4) + 1,
    "flatten": lambda x, i: x.reshape(-1) + 1,
    "softmax": lambda x, i: torch.softmax(x, 2),
    "softmax_other": lambda x, i: torch.softmax(x, -1),
    "log_softmax": lambda x, i: torch.log_softmax(x, 2),
    "sum": lambda x, i: x.sum(2),
    "sum_keep": lambda x, i: x.sum((1, 2), keepdim=True),
    "sum_other": lambda x, i: x.sum((1, 3)),
    "sum_other_keep": lambda x, i: x.sum((0, 3), keepdim=True),
    "sum_all": lambda x, i: x.sum(),
    "mean": lambda x, i: x.mean(2),
    "var": lambda x, i: x.var(2),
    "amax": lambda x, i: (x.amax(2), x.amin((2, 3)), (-x).amax(1)),
    "max": lambda x, i: x.max(2),
    "min": lambda x, i: x.min(2, keepdim=True),
    "argmax": lambda x, i: (x.argmax(2), x.argmin(-2, keepdim=True), x.argmax()),
    "any": lambda x, i: ((x > 1.4).any(2), (x > 0.1).all(2), (x > 0.1).all()),
    "norm": lambda x, i: (x.norm(dim=2), torch.linalg.vector_norm(x, 0.5, 2)),
    "cumsum": lambda x, i: (x.cumsum(2), x.cumprod(2), x.cumsum(1)),
    "sort": lambda x, i: x.sort(2)[0],
    "topk": lambda x, i: x.topk(3, 2)[0],
    "flip": lambda x, i: x.flip(2),
    "dot_free": lambda x, i: x @ torch.ones(4, 5, device=x.device),
    "dot_turned": lambda x, i: torch.ones(2, 3, 1, 4, device=x.device) @ x.transpose(2, 3),
    "dot_over": lambda x, i: x.transpose(2, 3) @ x,
    "dot_matrix": lambda x, i: x[0, 0] @ x[1, 2].t(),
    "linear": lambda x, i: F.linear(x, torch.ones(7, 4, device=x.device)),
    "attention": lambda x, i: F.scaled_dot_product_attention(x[:, :, :1], x, x),
    "attention_groups": lambda x, i: F.scaled_dot_product_attention(x[:, :, :1].repeat(1, 2, 1, 1), x, x, enable_gqa=True),
    "attention_square": lambda x, i: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention_mask": lambda x, i: F.scaled_dot_product_attention(x[:, :, -1:], x, x, attn_mask=(x[:, :1, :, 0] > 0.8)[:, :, None]),
    "cat_other": lambda x, i: torch.cat([x, x * 2], -1),
    "cat_more": lambda x, i: torch.cat([x, x[:, :, :2], x[:, :, :1]], 2),
    "cat_first": lambda x, i: torch.cat([x[:, :, :1], x], 2),
    "cat_types": lambda x, i: torch.cat([x, torch.ones(2, 3, 1, 4, dtype=torch.float64, device=x.device)], 2),
    "stack": lambda x, i: torch.stack([x, x], 1),
    "index": lambda x, i: x[:, :, torch.tensor([0, 3, 1], device=x.device)],
    "index_from_the_end": lambda x, i: x[:, :, torch.tensor([-1, 0, -3], device=x.device)],
    "index_all": lambda x, i: x[:, 1, torch.arange(x.shape[2], device=x.device)],
    "index_apart": lambda x, i: x[torch.tensor([[1], [0]], device=x.device), :, torch.arange(x.shape[2], device=x.device)],
    "index_turned": lambda x, i: x[:, :, torch.arange(x.shape[2] - 1, -1, -1, device=x.device)],
    "range": lambda x, i: torch.arange(x.shape[2], device=x.device) * 2 + x[0, 0, :, 0].int(),
    "range_step": lambda x, i: torch.arange(1, 2 * x.shape[2] + 1, 2, device=x.device) ** 2,
    "causal": lambda x, i: (torch.arange(x.shape[2], device=x.device) <= i + 3)[None, None] & (x[:, :, :, 0] > 0.7),
    "mask": lambda x, i: x[x > 1],
    "gather": lambda x, i: x.gather(2, torch.zeros(2, 3, 2, 4, dtype=torch.int64, device=x.device)),
    "types": lambda x, i: (x.to(torch.bfloat16), x.int(), x.double().sum(2)),
    "view_dtype": lambda x, i: x.view(torch.int32) & 7,
    "clone": lambda x, i: (x.clone() + 1, x.clone(memory_format=torch.contiguous_format)[:, :, 0]),
    "integers": lambda x, i: (x.int() // (x.int() + 1), torch.bitwise_xor(x.int(), 3)),
    "dropout": lambda x, i: F.dropout(x, 0.5, training=False) + 1,
    "pad": lambda x, i: F.pad(x, (0, 0, 1, 2)),
    "layer_norm": lambda x, i: F.layer_norm(x, (4,)),
    "where_mask": lambda x, i: x.masked_fill(x > 1, float("-inf")),
    "tril": lambda x, i: x.tril(-1),
    "unfold": lambda x, i: x.unfold(2, 3, 1) * 1,
    "split": lambda x, i: [p + 1 for p in x.split([2, x.shape[2] - 2], 2)],
    "squeeze": lambda x, i: x[:1].squeeze(0).exp(),
    "diagonal": lambda x, i: x.diagonal(0, 2, 3) * 2,
    "any_of_no_axes": lambda x, i: (torch.any(x > 1, dim=()), torch.all(x > 1, dim=()), torch.any(x > 1, dim=(1, 2))),
    "mean_other": lambda x, i: (x.mean(-1, keepdim=True), x.mean((0, 1)), x.mean((1, 2))),
    "norms": lambda x, i: (F.layer_norm(x, (4,), x[0, 0, 0]), F.rms_norm(x, (4,)), F.layer_norm(x, x.shape[2:])),
    "index_select": lambda x, i: [x.index_select(d, torch.tensor([1, 0, 1], device=x.device)) for d in range(4)],
    "index_select_by_it": lambda x, i: x.index_select(1, (x[0, 0, :, 0] * 2).long() % 3),
    "gather_other": lambda x, i: (
        x.gather(3, (x * 2).long()),
        x.gather(1, torch.zeros(2, 3, 2, 4, dtype=torch.int64, device=x.device)),
    ),
    "gather_by_it": lambda x, i: torch.arange(6.0, device=x.device)[None].gather(1, (x[:1, 0, :, 0] * 3).long()),
    "embedding": lambda x, i: F.embedding((x[:, 0, :, 0] * 3).long(), torch.arange(18.0, device=x.device).reshape(6, 3)),
    "scatter": lambda x, i: torch.zeros(2, 9, device=x.device).scatter(1, (x[:, 0, :, 0] * 6).long() % 9, 2.5),
    "scatter_add": lambda x, i: torch.ones(2, 9, device=x.device).scatter_add(1, (x[:, 0, :, 0] * 6).long() % 9, x[:, 1, :, 1]),
    "scatter_last": lambda x, i: torch.zeros(4, device=x.device).scatter(
        0, torch.arange(x.shape[2], device=x.device) % 4, x[0, 0, :, 0]
    ),
    "addmm": lambda x, i: (torch.addmm(x[0, 1, 0], x[0, 0], x[1, 2, :4]), torch.addmm(x[0, 1, :, 0], x[1, 0, :3], x[1, 2].t())),
    "baddbmm": lambda x, i: (
        torch.baddbmm(x[:, 0, None, :, 0], x[:, 0, :1], x[:, 1].transpose(1, 2), beta=0.5),
        torch.baddbmm(x[:, 0, :1], x[:, 1], x[:, 2, :4]),
        torch.baddbmm(x[:, 0, :4], x[:, 1].transpose(1, 2), x[:, 2]),
    ),
    "fills": lambda x, i: (
        torch.ones(2, x.shape[2], device=x.device) * 2,
        torch.zeros_like(x[..., 0]) + 1,
        x.new_full((x.shape[2],), i),
    ),
    "two_lengths": lambda x, i: x[
        torch.arange(2, device=x.device)[:, None], :, torch.arange(x.shape[2], device=x.device)[None, 1:]
    ],
    "real_strides": lambda x, i: x.as_strided((3, 2), (1, 2), 1) + 0,
}


@pytest.mark.parametrize("mode", [STRICT, FUSE], ids=["strict", "fuse"])
@pytest.mark.parametrize("name", OPS)
def test_ops_on_what_grows(name, mode):
    check(OPS[name], mode=mode, steps=STEPS if mode == STRICT else 6)


@pytest.mark.parametrize("dim", [0, 1, 3])
def test_growing_along_other_axes(dim):
    shape = [2, 3, 4, 2]
    shape[dim] = 1
    check(lambda x, i: (x.exp(), x.sum(dim), x.transpose(0, dim).contiguous(), x.cpu() * 2), dim=dim, shape=tuple(shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.float64, torch.complex64])
def test_dtypes(dtype):
    new = [(torch.rand(1, 2) * 3).to(dtype) for _ in range(STEPS)]
    x, want = new[0].repeat(3, 1).to("tpu"), new[0].repeat(3, 1)
    for p in new:
        x, want = torch.cat([x, p.to("tpu")]), torch.cat([want, p])
        assert torch.equal(x.cpu(), want)
        assert torch.equal((x == x[-1:]).cpu(), want == want[-1:])
        assert torch.equal(torch.where(x == x, x, x[:1]).t().contiguous().cpu(), want.t())


def writes(x, i):
    kept = x.clone()
    x[:, :, -1] = i
    x.add_(1)
    x[:, 0].mul_(2)
    return x, kept, x.sum(2)


def outs(x, i):
    out = torch.empty(0, device=x.device)
    torch.mul(x, 2, out=out)
    other = torch.empty_like(x)
    torch.exp(x, out=other)
    into = torch.zeros(2, 3, 40, 4, device=x.device)
    into[:, :, : x.shape[2]] = x
    into[:, :, 1:2].copy_(x[:, :, -1:])
    return out, other, into


def resizes(x, i):
    flat = x.clone()
    flat.resize_(2, 3, 4)
    longer = x.clone()
    longer.untyped_storage().resize_(longer.untyped_storage().nbytes() + 64)
    x.data = x.data[:, :1]
    return flat, longer, x


def aliases(x, i):
    view = x[:, 1]
    x.mul_(2)
    return view + 0, torch.empty(0, dtype=x.dtype, device=x.device).set_(x).exp()


def writes_whole(x, i):
    y = x * 2
    view, before = y[:, :, :, 1], y.exp()
    y += x
    y.transpose(0, 1).mul_(x[0, :, :, :1][:, None])
    y[:, 1].sub_(x[:, 0])
    y.masked_fill_(x > 1, i)
    torch.add(x, 1, out=y) if i % 3 == 0 else y.clamp_(0.5, 3)
    y[..., :1].copy_(x[..., 3:])
    y[:, :, 0] = 7
    return y, view, before, y.zero_() + 1 if i % 2 else y.add_(y)


@pytest.mark.parametrize("mode", [STRICT, FUSE, DEBUG], ids=["strict", "fuse", "debug"])
@pytest.mark.parametrize("f", [writes, writes_whole, outs, resizes, aliases], ids=lambda f: f.__name__)
def test_writing_to_what_grows(f, mode):
    check(f, mode=mode)


def test_gradients_through_what_grows():
    def f(x, i):
        leaf = x.detach().requires_grad_()
        y = torch.cat([leaf, leaf[:, :, :1] * 2], 2)
        F.scaled_dot_product_attention(y[:, :, -1:], y, y).square().sum().backward()
        return leaf.grad

    check(f)


def test_an_index_past_the_length_is_an_error():
    """The length counts, not the bound."""
    for x in growing("tpu", 6):
        n = x.shape[2]
        assert torch.equal(x[:, :, torch.tensor([n - 1, -n], device="tpu")].cpu(), x.cpu()[:, :, [n - 1, -n]])
        with pytest.raises(IndexError, match=f"index {n} is out of bounds for dimension 2 with size {n}"):
            x[:, :, torch.tensor([0, n], device="tpu")].cpu()
        with pytest.raises(IndexError, match=f"index {-n - 1} is out of bounds for dimension 2 with size {n}"):
            x[:, :, torch.tensor([-n - 1], device="tpu")].cpu()


def test_two_of_different_lengths_and_of_the_same():
    def f(device):
        found, a, b = [], torch.ones(1, 4, device=device), torch.ones(1, 7, device=device)
        for i in range(10):
            a = torch.cat([a, torch.full((1, 1), i, device=device)], 1)
            b = torch.cat([b, torch.full((1, 1), -i, device=device)], 1)
            c = torch.cat([a, b[:, :3]], 1)
            found += [a + b[:, : a.shape[1]], a + b[:, 3:], c * c, torch.cat([a, b], 0) if a.shape == b.shape else a @ a.t(), a]
        return found

    for got, want in zip(f("tpu"), f("cpu"), strict=True):
        torch.testing.assert_close(got.cpu(), want)


def test_past_the_bound():
    """A bound is passed: everything goes on with the next one."""
    g = torch.Generator().manual_seed(3)
    x = want = torch.rand(2, 60, 11, generator=g)
    x = x.to("tpu")
    made = []
    for i in range(80):
        new = torch.rand(2, 1, 11, generator=g)
        before = programs()
        x, want = torch.cat([x, new.to("tpu")], 1), torch.cat([want, new], 1)
        if i % 9 == 0:
            torch.testing.assert_close((x * 2).cpu(), want * 2)
        else:
            x * 2
        torch.tpu.synchronize()
        made.append(programs() - before)
    torch.testing.assert_close(x.cpu(), want)
    assert sum(made[4:]) <= 4, made


def test_ranges_grow_also_after_a_short_one():
    """One that is less than half as long is another matter, and does not keep the others from growing."""
    made = []
    for n in (7, *range(15, 30)):
        before = programs()
        got = torch.arange(n, device="tpu", dtype=torch.int16)
        torch.tpu.synchronize()
        made.append(programs() - before)
        assert got.tolist() == list(range(n))
    assert sum(made[4:]) == 0, made


def test_lists_that_double_or_shrink_do_not_grow_bounds():
    x = want = torch.arange(3.0)
    x = x.to("tpu")
    for _ in range(6):
        x, want = torch.cat([x, x]), torch.cat([want, want])
        assert torch.equal(x.cpu(), want)
    for _ in range(6):
        x, want = torch.cat([x[:5], x[:1]]), torch.cat([want[:5], want[:1]])
        assert torch.equal(x.cpu(), want)


def step(q, new, k, v, ids):
    k, v = torch.cat([k, new], -2), torch.cat([v, new * 2], -2)
    out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    repeated = k[:, :, None].expand(1, 2, 3, k.shape[2], 8).reshape(1, 6, k.shape[2], 8)
    weights = torch.softmax(torch.matmul(q, repeated.transpose(2, 3)) * 0.3, -1)
    out = out + torch.matmul(weights, repeated)
    ids = torch.cat([ids, ids[:, -1:] + 1], -1)
    return out, k, v, ids


def decode(device, steps):
    g = torch.Generator().manual_seed(0)
    k, v = (torch.randn(80, generator=g).to(device).view(1, 2, 5, 8) for _ in range(2))  # no batches, up to a bound of theirs
    ids = torch.arange(5, device=device).reshape(1, 5)
    for _ in range(steps):
        q, new = torch.randn(1, 6, 1, 8, generator=g).to(device), torch.randn(1, 2, 1, 8, generator=g).to(device)
        out, k, v, ids = step(q, new, k, v, ids)
        yield out.cpu(), ids[:, -1:].clone().cpu()


@pytest.mark.parametrize("mode", [STRICT, FUSE, DEBUG], ids=["strict", "fuse", "debug"])
def test_a_growing_cache_compiles_for_bounds_only(mode):
    want = list(decode("cpu", 40))
    made = []
    with torch.tpu.set_eager_mode(mode):
        before, asked = programs(), torch.tpu.fuse_stats()["programs"]
        for got, (out, ids) in zip(decode("tpu", 40), want, strict=True):
            torch.testing.assert_close(got[0], out)
            assert torch.equal(got[1], ids)
            made.append(programs() - before)
    fused = torch.tpu.fuse_stats()["programs"] - asked  # compiled when there is time, so at any step
    assert made[-1] - made[8] <= fused <= (2 if mode == FUSE else 0), made
    if mode == FUSE:
        torch.tpu.compiler.wait()
        before, traces = torch.tpu.fuse_stats()["hits"], torch.tpu.fuse_stats()["traces"]
        with torch.tpu.set_eager_mode(mode):
            for got, (out, _) in zip(decode("tpu", 40), want, strict=True):
                torch.testing.assert_close(got[0], out)
        assert torch.tpu.fuse_stats()["hits"] - before > 30
        assert torch.tpu.fuse_stats()["traces"] - traces <= 4


def reordered(x):
    """Beam search: caches change places."""
    return x.index_select(0, torch.tensor([1, 0], device=x.device)) * 2


def penalized(x):
    """Scores of the words that were said."""
    ids, scores = (x[:, 0, :, 0] * 5).long(), torch.arange(20.0, device=x.device).reshape(2, 10) - 7
    said = torch.gather(scores, 1, ids)
    return scores.scatter(1, ids, torch.where(said < 0, said * 1.3, said / 1.3))


def counted(x):
    """Places along what grows. Of a type that other tests make no ranges of: those have programs for some lengths."""
    return torch.arange(x.shape[2], device=x.device, dtype=torch.int32)[None]


def biased(x):
    """T5's bias by distance."""
    n = x.shape[2]
    far = counted(x) - torch.tensor([[n - 1]], device=x.device)
    far = -torch.min(far, torch.zeros_like(far))
    large = torch.min(4 + torch.log(far.float() / 4).long(), torch.full_like(far, 7))
    return F.embedding(torch.where(far < 4, far, large), torch.arange(16.0, device=x.device).reshape(8, 2)).permute(2, 0, 1)


def masked(x):
    """A mask of ones, and sums in place."""
    scores = x[:, :, :, 0] * 2
    scores += (1.0 - torch.ones(2, x.shape[2], device=x.device))[:, None]
    scores.mul_(3)
    return torch.baddbmm(scores[:, :1], x[:, 0, :1], x[:, 1].transpose(1, 2)).softmax(-1)


def batched(x):
    """Rows, which have a length too, beside places."""
    rows = torch.cat([torch.arange(2, device=x.device), torch.full((1,), 1, device=x.device)])
    return (x[:, 0, :, 0] > 0.7)[rows[:, None], counted(x)]


def normed(x):
    return F.layer_norm(x, (4,)) + x * torch.rsqrt(x.square().mean(-1, keepdim=True)) + F.rms_norm(x, (4,))


@pytest.mark.parametrize("f", [reordered, penalized, biased, masked, batched, normed], ids=lambda f: f.__name__)
def test_what_decoding_does_is_compiled_for_bounds_only(f):
    made, steps = [], 14
    for x, want in zip(growing("tpu", steps), growing("cpu", steps), strict=True):
        before = programs()
        got = f(x)
        torch.tpu.synchronize()
        made.append(programs() - before)
        torch.testing.assert_close(got.cpu(), f(want))
    assert sum(made[6:]) == 0, made


def test_compiled_functions_take_what_grows():
    f = torch.compile(lambda x: (x * 2).sum(2), backend="tpu", dynamic=True)
    check(lambda x, i: f(x) if x.device.type == "tpu" else (x * 2).sum(2), steps=8)


def test_an_artifact_takes_what_grows(tmp_path):
    import torch_tpu.export as export

    class M(torch.nn.Module):
        def forward(self, x):
            return x.exp() + 1

    program = torch.export.export(M(), (torch.ones(2, 12),))
    export.save(program, tmp_path / "m")
    loaded = export.load(tmp_path / "m", device="tpu")
    x = torch.rand(2, 3, device="tpu")
    for i in range(9):
        x = torch.cat([x, torch.full((2, 1), float(i), device="tpu")], 1)
    torch.testing.assert_close(loaded(x).cpu(), x.cpu().exp() + 1)
    torch.testing.assert_close((x + 1).cpu(), x.cpu() + 1)


def test_saving_and_printing(tmp_path):
    for x, want in zip(growing("tpu", 6), growing("cpu", 6), strict=True):
        torch.save(x, tmp_path / "x.pt")
        assert torch.equal(torch.load(tmp_path / "x.pt", map_location="cpu"), x.cpu())
        torch.testing.assert_close(x.cpu(), want)
        assert x.tolist() == x.cpu().tolist()
        assert "tpu" in repr(x)


def test_the_variable_turns_it_off(tmp_path):
    code = (
        "import torch\nx = torch.ones(4, 2, device='tpu')\nbefore = torch.tpu.compile_stats()['programs']\n"
        "for _ in range(12):\n    x = torch.cat([x, x[:1]])\ntorch.tpu.synchronize()\n"
        "print(torch.tpu.compile_stats()['programs'] - before)"
    )
    found = []
    for value in ("0", "1"):
        env = {**os.environ, "TORCH_TPU_EAGER_LENGTHS": value, "TORCH_TPU_CACHE_DIR": str(tmp_path / value)}
        found.append(int(subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout))
    assert found[0] >= 12
    assert found[1] <= 5


def drawn_view(rng):
    """A chain of views, drawn once and applied to tensors of any length."""
    moves = [
        rng.choice(("slice", "select", "transpose", "unsqueeze", "expand", "flatten", "unflatten", "tail"))
        for _ in range(rng.randint(1, 4))
    ]
    numbers = [[rng.randrange(8) for _ in range(3)] for _ in moves]

    def apply(x):
        for move, (a, b, c) in zip(moves, numbers, strict=True):
            d = a % x.dim() if x.dim() else 0
            if x.dim() == 0 or x.shape[d] == 0:
                x = x.reshape(1)
                d = 0
            if move == "slice":
                x = x.narrow(d, b % x.shape[d], 1 + c % (x.shape[d] - b % x.shape[d]))
            elif move == "tail":
                x = x[(slice(None),) * d + (slice(max(0, x.shape[d] - 1 - b), None, 1 + c % 2),)]
            elif move == "select":
                x = x.select(d, -1 - b % x.shape[d] if c % 2 else b % x.shape[d])
            elif move == "transpose":
                x = x.transpose(d, b % x.dim())
            elif move == "unsqueeze" and x.dim() < 6:
                x = x.unsqueeze(d)
            elif move == "expand" and x.dim() < 6:
                x = x.unsqueeze(d).expand(*x.shape[:d], 1 + b % 3, *x.shape[d:])
            elif move == "flatten" and x.dim() > 1:
                x = x.flatten(d, min(d + 1 + b % 2, x.dim() - 1))
            elif move == "unflatten" and x.shape[d] % 2 == 0:
                x = x.unflatten(d, (2, -1))
        return x

    return apply


def view_program(seed):
    rng = random.Random(seed)
    dim = rng.randrange(4)
    shape = [rng.choice((1, 2, 3)) for _ in range(4)]
    shape[dim] = 1
    view, then = drawn_view(rng), rng.choice(("exp", "clone", "sum", "cumsum", "write", "both"))

    def f(x, i):
        v = view(x)
        if then == "write":
            return v.mul_(2) if 0 not in v.stride() else v, x
        if then == "both":
            return v * 2 + v.exp()
        if then == "sum":
            return v.sum(-1) if v.dim() else v
        return v.cumsum(0) if then == "cumsum" else getattr(v, then)()

    check(f, steps=6, dim=dim, shape=tuple(shape), mode=rng.choice((STRICT, FUSE)))


@pytest.mark.parametrize("seed", range(40))
def test_drawn_views_of_what_grows(seed):
    view_program(seed)


def peak_of(f) -> int:
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.max_memory_allocated()
    f()
    torch.tpu.synchronize()
    return torch.tpu.max_memory_allocated() - before


@pytest.mark.parametrize("mode", [STRICT, FUSE], ids=["strict", "fuse"])
def test_a_cache_that_nobody_else_has_is_written_where_it_is(mode):
    """Its buffer is handed on from step to step; where somebody has an older one, that keeps what it held."""
    cache = torch.zeros(1, 3, 1000, 16, device="tpu")
    want, kept = cache.cpu(), []
    nbyte = 2 * 4 * 3 * 2048 * 16  # of two buffers of the bound

    def steps(first, n, keep):
        nonlocal cache, want
        for i in range(first, first + n):
            if keep and i % 3 == 0:
                kept.append((cache, want))
            new = torch.full((1, 3, 1, 16), float(i))
            cache, want = torch.cat([cache, new.to("tpu")], 2), torch.cat([want, new], 2)
            assert (cache[:, :, -1] * 2).sum().item() == 2 * 48 * i
            torch.tpu.compiler.wait()

    with torch.tpu.set_eager_mode(mode):
        steps(0, 12, keep=False)
        assert peak_of(lambda: steps(12, 12, keep=False)) < nbyte
        steps(24, 12, keep=True)
        steps(36, 6, keep=False)
    assert torch.equal(cache.cpu(), want)
    for older, held in kept:
        assert torch.equal(older.cpu(), held)


def test_what_dies_within_a_fused_program_gives_its_memory():
    """Not only caches: x = f(x) of a large x, and others that have x by then."""
    g = torch.Generator().manual_seed(1)
    start = torch.rand(300, 200, generator=g)
    for keep in (False, True):
        x, want, views = start.to("tpu"), start, []
        with torch.tpu.set_eager_mode(FUSE):
            for i in range(12):
                if keep:
                    views.append((x[i], want[i].clone()))
                x, want = (x * 0.9).tanh() + 0.1, (want * 0.9).tanh() + 0.1
                torch.testing.assert_close(x.sum().cpu(), want.sum())
                torch.tpu.compiler.wait()
        torch.testing.assert_close(x.cpu(), want)
        for a, b in views:
            torch.testing.assert_close(a.cpu(), b)
