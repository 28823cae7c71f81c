"""Exported programs: saved, loaded and run from Python and from C, beside the module on the CPU; and what is refused."""

import os
import pathlib
import random
import subprocess
import sys

import pytest
import torch
import torch_tpu
import torch_tpu.export as tpu_export
from torch import nn
from torch._higher_order_ops import map as map_each
from torch._higher_order_ops import scan, while_loop
from torch_tpu import _artifact

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "run_artifact"


class Convolutional(nn.Module):
    """Statistics and a counter that each call writes, an argument that is no tensor, a result that is a dict."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 5)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x, scale=2, *, mask=None):
        self.count.add_(1)
        y = torch.relu(self.norm(self.conv(x))) * scale
        y = y.mean((2, 3)) * mask
        return {"logits": self.head(y), "more": (y.t(), None, self.count + 1)}


class Decoder(nn.Module):
    """Attention with a cache that the caller owns, tied weights, a constant."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.embed = nn.Embedding(50, 16, dtype=dtype)
        self.qkv, self.norm = nn.Linear(16, 48, dtype=dtype), nn.LayerNorm(16, dtype=dtype)
        self.head = nn.Linear(16, 50, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight

    def forward(self, tokens, keys, values, at):
        x = self.embed(tokens)
        q, k, v = (t.view(1, -1, 2, 8).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, v)
        allowed = torch.arange(keys.shape[2], device=at.device)[None] <= at[:, None]
        y = nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=allowed)
        return self.head(x + y.transpose(1, 2).flatten(2)) + torch.tensor([0.5], dtype=x.dtype)


def branching():
    return Branching().train(), (torch.randn(5, 4), torch.tensor(3)), {}


def convolutional():
    return Convolutional().train(), (torch.randn(2, 3, 6, 6), 3), {"mask": torch.rand(2, 8)}


def decoder(dtype=torch.float32):
    cache = torch.zeros(1, 2, 8, 8, dtype=dtype)
    return Decoder(dtype).eval(), (torch.tensor([[3, 7, 1]]), cache, cache.clone(), torch.tensor([0, 1, 2])), {}


class Branching(nn.Module):
    """Branches in a branch, loops, weights and a changing buffer read in them."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x, limit):
        self.count.add_(1)
        x = self.norm(x)

        def positive(x):
            halves = torch.cond(limit > 2, lambda x: self.inner(x)[0] * 0.5, lambda x: x.max(0).values, (x,))
            return halves + torch.arange(4.0), x.sum()

        row, total = torch.cond(x[0, 0] > 0, positive, lambda x: (x[torch.ones(4, dtype=torch.int64)][0], self.count.mean()), (x,))
        i, y = while_loop(lambda i, y: i < limit, lambda i, y: (i + 1, torch.tanh(self.inner(y))), (torch.zeros_like(limit), x))
        last, steps = scan(lambda kept, part: (kept * 0.5 + part, kept - part), row, x)
        return row, total, i, y, last, steps, map_each(lambda part: part.softmax(-1), x)


class Plain(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, *args):
        return self.fn(*args)


def saved(folder, module, args, kwargs=None):
    tpu_export.save(torch.export.export(module, args, kwargs or {}), folder)
    return folder


def on_tpu(tree):
    return torch.utils._pytree.tree_map(lambda t: t.to("tpu") if isinstance(t, torch.Tensor) else t, tree)


def check(got, want, **tolerance):
    got = torch.utils._pytree.tree_map(lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, got)
    torch.testing.assert_close(got, want, **tolerance)


# ---------------------------------------------------------------------------------------------------------- from Python


def test_a_model_with_buffers(tmp_path):
    module, args, kwargs = convolutional()
    f = tpu_export.load(saved(tmp_path / "net", module, args, kwargs))
    for _ in range(3):
        check(f(*on_tpu(args), **on_tpu(kwargs)), module(*args, **kwargs))
        check({n: f.tensors[n] for n, _ in module.named_buffers()}, dict(module.named_buffers()))


def test_branches_and_loops(tmp_path):
    module, args, _ = branching()
    f = tpu_export.load(saved(tmp_path / "net", module, args))
    for x in (args[0], -args[0], args[0] * 3):
        for limit in (torch.tensor(0), torch.tensor(3)):
            check(f(*on_tpu((x, limit))), module(x, limit), rtol=1e-4, atol=1e-5)
            check({n: f.tensors[n] for n, _ in module.named_buffers()}, dict(module.named_buffers()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decoder_writes_the_callers_cache(tmp_path, dtype):
    module, args, _ = decoder(dtype)
    with torch.no_grad():
        f = tpu_export.load(saved(tmp_path / "net", module, args))
        mine = on_tpu(args)
        tolerance = {} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
        for start in (0, 3):
            for a in (args, mine):
                a[3].copy_(torch.arange(start, start + 3))
            check(f(*mine), module(*args), **tolerance)
            check(mine[1:3], args[1:3], **tolerance)


def test_parts_of_tensors_as_arguments(tmp_path):
    def write(x, y):
        y.mul_(2)
        return x + y

    f = tpu_export.load(saved(tmp_path / "net", Plain(write), (torch.ones(2, 3), torch.ones(2, 3))))
    x, y = torch.randn(5, 3).to("tpu"), torch.randn(3, 4).to("tpu")
    host = y.cpu()
    got = f(x[1:3], y.t()[1:3, :])
    host.t()[1:3, :] *= 2
    check(got, x.cpu()[1:3] + host.t()[1:3])
    check(y, host)


def test_one_tensor_as_two_arguments(tmp_path):
    f = tpu_export.load(saved(tmp_path / "net", Plain(lambda x, y: (x * 2, y - 1)), (torch.ones(3), torch.ones(3))))
    x = torch.arange(3.0, device="tpu")
    check(f(x, x), (torch.arange(3.0) * 2, torch.arange(3.0) - 1))


def test_arguments_that_come_out_again(tmp_path):
    f = tpu_export.load(saved(tmp_path / "net", Plain(lambda x, y: [x, y + 1, x]), (torch.ones(3), torch.ones(()))))
    x = torch.arange(3.0, device="tpu")
    check(f(x, x[1]), [x.cpu(), torch.tensor(2.0), x.cpu()])


def test_results_keep_their_strides(tmp_path):
    module, args = Plain(lambda x: (x.t(), x.transpose(0, 1) * 2)), (torch.randn(4, 5),)
    f = tpu_export.load(saved(tmp_path / "net", module, args))
    want = module(*args)
    got = f(*on_tpu(args))
    check(got, want)
    assert [t.stride() for t in got] == [t.stride() for t in want]


def test_exported_from_a_module_on_the_device(tmp_path):
    module = nn.Linear(3, 2).to("tpu")
    x = torch.randn(4, 3, device="tpu")
    f = tpu_export.load(saved(tmp_path / "net", module, (x,)))
    assert torch.equal(f(x).cpu(), module(x).detach().cpu())


def test_every_type_of_a_file(tmp_path):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            for i, dtype in enumerate(_artifact.FILE_DTYPES):
                self.register_buffer(f"t{i}", torch.tensor([0, 1, 1, 0]).to(dtype))

        def forward(self, x):
            return (x, *(b.clone() for b in self.buffers()))

    module, x = Holder(), torch.ones(1)
    f = tpu_export.load(saved(tmp_path / "net", module, (x,)))
    check(f(x.to("tpu")), module(x))


def test_weights_can_be_replaced(tmp_path):
    module, x = nn.Linear(3, 2), torch.randn(4, 3)
    folder = saved(tmp_path / "net", module, (x,))
    other = nn.Linear(3, 2)
    _artifact.write_safetensors(folder / "model.safetensors", other.state_dict())
    check(tpu_export.load(folder)(x.to("tpu")), other(x).detach())


@pytest.mark.need("safetensors")
def test_the_weights_are_a_safetensors_file(tmp_path, program):
    import safetensors.torch

    module, args, kwargs = convolutional()
    folder = saved(tmp_path / "net", module, args, kwargs)
    check(safetensors.torch.load_file(folder / "model.safetensors"), dict(module.state_dict()))
    safetensors.torch.save_file(module.state_dict(), folder / "model.safetensors", metadata={"a": 'b"c\\', "é": "\n"})
    check(tpu_export.load(folder)(*on_tpu(args), **on_tpu(kwargs)), module(*args, **kwargs))
    assert run_c(folder, tmp_path, args, kwargs)["count"] == 1


@pytest.mark.need("transformers")
def test_a_transformers_model(tmp_path):
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37, max_position_embeddings=16
    )
    model = BertModel(config).eval()
    tokens = torch.randint(0, 99, (2, 7))
    with torch.no_grad():
        f = tpu_export.load(saved(tmp_path / "net", model, (tokens,), {"attention_mask": torch.ones_like(tokens)}))
        want = model(tokens, attention_mask=torch.ones_like(tokens))
        got = f(tokens.to("tpu"), attention_mask=torch.ones_like(tokens).to("tpu"))
    assert type(got) is type(want)
    check(got.last_hidden_state, want.last_hidden_state, rtol=1e-4, atol=1e-5)


# --------------------------------------------------------------------------------------------------------------- from C


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """The C program, built as its README says."""
    lib = pathlib.Path(torch_tpu.__file__).parent / "lib"
    out = tmp_path_factory.mktemp("run_artifact") / "run_artifact"
    sources = [str(p) for p in sorted(EXAMPLE.glob("*.c"))]
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", f"-L{lib}", "-lttc", f"-Wl,-rpath,{lib}"]
    subprocess.run([os.environ.get("CC", "cc"), *sources, *flags, "-o", str(out)], check=True)
    global _program
    _program = out
    return out


_program = None


def call_c(folder, inputs, outputs, times=1):
    env = {**os.environ, "TORCH_TPU_PLUGIN": torch_tpu._C.device_info(0)["plugin_path"]}
    command = [str(_program), str(folder), str(inputs), str(outputs), str(times)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def run_c(folder, tmp_path, args, kwargs, times=1):
    s = _artifact.read(folder)
    flat = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    names = [x.name for x in s.inputs if x.kind == "user"]
    _artifact.write_safetensors(tmp_path / "in.safetensors", dict(zip(names, flat, strict=True)))
    done = call_c(folder, tmp_path / "in.safetensors", tmp_path / "out.safetensors", times)
    assert done.returncode == 0, done.stderr
    return _artifact.read_safetensors(tmp_path / "out.safetensors")


@pytest.mark.parametrize("make", [convolutional, branching, decoder, lambda: decoder(torch.bfloat16)])
def test_c_gives_the_same_bits(tmp_path, program, make):
    module, args, kwargs = make()
    folder = saved(tmp_path / "net", module, args, kwargs)
    found = run_c(folder, tmp_path, args, kwargs, times=2)
    f = tpu_export.load(folder)
    mine = on_tpu((args, kwargs))
    f(*mine[0], **mine[1])
    got = f(*mine[0], **mine[1])
    results = iter(t for t in torch.utils._pytree.tree_leaves(got) if t is not None)
    user = iter([t for t in torch.utils._pytree.tree_leaves(mine) if isinstance(t, torch.Tensor)])
    inputs = [next(user) if x.kind == "user" else f.tensors[x.name] for x in f.signature.inputs]
    assert len(found) == len(f.signature.outputs)
    for x in f.signature.outputs:
        mine_now = (inputs[x.write] if x.write >= 0 else next(results)).cpu().contiguous()
        assert torch.equal(found[x.name].reshape(-1).view(torch.uint8), mine_now.reshape(-1).view(torch.uint8)), x.name


# --------------------------------------------------------------------------------------------------------- what is refused


def test_dynamic_sizes_are_refused(tmp_path):
    ep = torch.export.export(nn.Linear(3, 2), (torch.ones(4, 3),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with pytest.raises(NotImplementedError, match=r"'input' has a dynamic size, .* in dimension 0"):
        tpu_export.save(ep, tmp_path / "net")


@pytest.mark.parametrize(
    "fn, words",
    [
        (lambda x: nn.functional.dropout(x, training=True), "random"),
        (lambda x: x + torch.rand(3), "random"),
        (lambda x: x.nonzero(), "nonzero|size"),
        (lambda x: torch.cond(x.sum() > 0, torch.rand_like, torch.cos, (x,)), "random"),
        (lambda x: torch.cond(x.sum() > 0, lambda x: x * torch.tensor([1.0, 2, 3]), torch.cos, (x,)), "make it before"),
    ],
)
def test_what_no_artifact_can_hold_is_refused(tmp_path, fn, words):
    ep = torch.export.export(Plain(fn), (torch.ones(3),))
    with pytest.raises(NotImplementedError, match=words):
        tpu_export.save(ep, tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_what_is_saved_is_an_exported_program(tmp_path):
    with pytest.raises(TypeError, match="gives, got Linear"):
        tpu_export.save(nn.Linear(3, 2), tmp_path / "net")


def test_wrong_arguments(tmp_path):
    module, args, kwargs = convolutional()
    f = tpu_export.load(saved(tmp_path / "net", module, args, kwargs))
    (x, scale), mask = on_tpu(args), on_tpu(kwargs["mask"])
    with pytest.raises(ValueError, match="exported with 3, which is part of it"):
        f(x, 4, mask=mask)
    with pytest.raises(ValueError, match=r"on tpu, got .* on cpu"):
        f(args[0], scale, mask=mask)
    with pytest.raises(ValueError, match=r"expected torch.float32 of .* got torch.float64"):
        f(x.double(), scale, mask=mask)
    with pytest.raises(ValueError, match=r"of \(2, 3, 6, 6\) on tpu, got .* of \(1, 3, 6, 6\)"):
        f(x[:1], scale, mask=mask)
    with pytest.raises(TypeError, match="structure"):
        f(x, scale)
    with pytest.raises(ValueError, match="expected a tpu device"):
        tpu_export.load(tmp_path / "net", "cpu")


def both(folder, tmp_path, words):
    """Python and C say the same of a bad artifact."""
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        tpu_export.load(folder)
    _artifact.write_safetensors(tmp_path / "in.safetensors", {"input": torch.ones(4, 3)})
    done = call_c(folder, tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    assert done.returncode == 1 and done.stderr, done


def test_no_artifact(tmp_path, program):
    both(tmp_path / "none", tmp_path, "no artifact")


@pytest.mark.parametrize("file", ["signature.txt", "model.cpu.mlir", "model.safetensors"])
def test_what_is_no_file_is_not_read(tmp_path, file):
    folder = saved(tmp_path / "net", nn.Linear(3, 2), (torch.ones(4, 3),))
    (folder / file).unlink()
    (folder / file).symlink_to(os.devnull)  # as one that has no end
    with pytest.raises(ValueError, match=f"{file} is no file"):
        tpu_export.load(folder)


def edit(path, old, new):
    text = path.read_bytes()
    assert old in text
    path.write_bytes(text.replace(old, new, 1))


@pytest.mark.parametrize(
    "file, old, new, words",
    [
        ("signature.txt", b"artifact 1", b"artifact 2", "newer torch_tpu"),
        ("signature.txt", b"torch_tpu artifact", b"something else", "no signature"),
        ("signature.txt", b"end\n", b"", "cut short"),
        ("signature.txt", b"parameter f32", b"parameter f33", "line 6 .*f33"),
        ("signature.txt", b"parameter f32 2x3", b"parameter f32 2x3x", "line 6"),
        ("signature.txt", b"parameter f32 2x3", b"parameter f32 3x2", "'weight' is .*the program takes"),
        ("signature.txt", b"parameter f32 2x3", b"parameter f32 99999999999x9999999999", "line 6|the program takes"),
        ("signature.txt", b"f32 2x3 weight", b"f32 2x3 height", "no parameter 'height'"),
        ("signature.txt", b"model.cpu.mlir", b"../../net/x", "file name|line"),
        ("signature.txt", b"program", b"programme", "programme"),
        ("model.cpu.mlir", b"stablehlo", b"stablehlp", "damaged"),
        ("model.safetensors", b"F32", b"F64", "damaged|F64"),
        ("model.safetensors", b"data_offsets", b"date_offsets", "damaged"),
        ("model.safetensors", b'{"', b"{", "damaged"),
    ],
)
def test_a_damaged_artifact_says_so(tmp_path, program, file, old, new, words):
    folder = saved(tmp_path / "net", nn.Linear(3, 2), (torch.ones(4, 3),))
    edit(folder / file, old, new)
    both(folder, tmp_path, words)


def test_a_program_that_does_not_fit_the_signature(tmp_path, program):
    """The sizes are compared with the compiled program's own: what is wrong shows at the first read."""
    folder = saved(tmp_path / "net", nn.Linear(3, 2), (torch.ones(4, 3),))
    edit(folder / "signature.txt", b"output user f32 4x2 2x1", b"output user f32 400x2 2x1")
    with pytest.raises(RuntimeError, match="other sizes than expected"):
        tpu_export.load(folder)(torch.ones(4, 3, device="tpu")).cpu()
    _artifact.write_safetensors(tmp_path / "in.safetensors", {"input": torch.ones(4, 3)})
    done = call_c(folder, tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    assert done.returncode == 1 and "other sizes than expected" in done.stderr


def test_random_damage_is_told(tmp_path):
    """Bytes changed, cut and repeated in every file: an error in words or a program that loads, never a crash."""
    folder = saved(tmp_path / "net", nn.Linear(3, 2), (torch.ones(4, 3),))
    rng = random.Random(7)
    whole = {p.name: p.read_bytes() for p in folder.iterdir()}
    told = 0
    for _ in range(200):
        name = rng.choice(sorted(whole))
        data = bytearray(whole[name])
        for _ in range(rng.randint(1, 3)):
            i = rng.randrange(len(data))
            how = rng.randrange(3)
            if how == 0:
                data[i] = rng.randrange(256)
            elif how == 1:
                del data[i : i + rng.randrange(1, 40)]
            else:
                data[i:i] = data[i : i + 40]
            data = data or bytearray(b"x")
        (folder / name).write_bytes(bytes(data))
        try:
            tpu_export.load(folder)
        except (ValueError, RuntimeError, NotImplementedError, OSError):
            told += 1
        (folder / name).write_bytes(whole[name])
    assert told > 100


def test_an_error_leaves_no_artifact_half_written(tmp_path, monkeypatch):
    folder = saved(tmp_path / "net", nn.Linear(3, 2), (torch.ones(4, 3),))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_artifact, "write_safetensors", full)
    with pytest.raises(OSError, match="No space"):
        saved(folder, nn.Linear(5, 2), (torch.ones(4, 5),))
    with pytest.raises(FileNotFoundError, match="no artifact"):
        tpu_export.load(folder)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
