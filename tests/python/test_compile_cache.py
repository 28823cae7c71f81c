"""What a later process need not do again: traces, programs."""

import json
import os
import subprocess
import sys
import time
import zipfile

import pytest
import torch
import torch._dynamo
from child import PACKAGE, good
from torch import nn
from torch._dynamo.utils import counters

DEV = "tpu"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """PyTorch's caches of this test alone."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "traces"))
    again()


def again():
    """As a new process would start."""
    torch._dynamo.reset()
    counters.clear()


def hits():
    return counters["aot_autograd"]["autograd_cache_hit"]


TRAIN = """
    import torch, torch_tpu
    from torch import nn
    from torch._dynamo.utils import counters
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.arange(24.0).view(4, 6).sin().to("tpu")

    @torch.compile(backend="tpu")
    def step(x):
        loss = model(x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    print([f"{step(x).item():.6f}" for _ in range(3)])
    print(torch.tpu.compile_stats()["compiled"], counters["aot_autograd"]["autograd_cache_miss"])
"""


def test_a_second_process_traces_nothing_and_compiles_nothing(tmp_path):
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "traces"), "TORCH_TPU_CACHE_DIR": str(tmp_path / "programs")}
    (losses, first), (same, second) = (good(TRAIN, **env).splitlines() for _ in range(2))
    assert losses == same
    assert all(int(n) > 0 for n in first.split())
    assert second.split() == ["0", "0"]


def test_forward_and_backward_are_kept_with_their_symbols():
    def run(n):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).to(DEV)
        f = torch.compile(layer, backend="tpu", dynamic=True)
        out = [f(torch.linspace(-1, 1, 2 * k * 16, device=DEV).view(2, k, 16)) for k in (n, n + 3)]
        sum(y.square().sum() for y in out).backward()
        return [*out, *(p.grad for p in layer.parameters())]

    want = run(5)
    assert hits() == 0
    again()
    for g, w in zip(run(5), want, strict=True):
        assert torch.equal(g.cpu(), w.cpu())
    assert hits() > 0


def test_a_trace_that_depends_on_a_float_is_not_taken_for_another():
    def f(x, scale):
        return x * 2 if scale < 0.5 else x * scale

    x = torch.ones(3, device=DEV)
    for _ in range(2):
        again()
        g = torch.compile(f, backend="tpu")
        assert [g(x, s)[0].item() for s in (0.25, 0.75, 0.125, 3.0)] == [2.0, 0.75, 2.0, 3.0]


def test_constants_are_kept():
    def f(x):
        return x + torch.tensor([1.0, 2.0, 3.0], device=DEV) * torch.tensor(2.0)

    for _ in range(2):
        again()
        assert torch.compile(f, backend="tpu")(torch.zeros(3, device=DEV)).tolist() == [2.0, 4.0, 6.0]
    assert hits() == 1


def test_another_backends_trace_is_another():
    def f(x):
        return x.sin() + 1

    x = torch.ones(3, device=DEV)
    with torch._functorch.config.patch(force_autograd_cache=True):
        torch.compile(f, backend="aot_eager")(x)
    again()
    torch.testing.assert_close(torch.compile(f, backend="tpu")(x).cpu(), f(x.cpu()))
    assert hits() == 0


SHARE = """
    import torch, torch_tpu
    from torch_tpu import _shared
    _shared.follow()
    f = torch.compile(lambda x: (x.sin() * 3 + 1).sum(), backend="tpu")
    print(f"{f(torch.ones(5, device='tpu')).item():.5f}")
    _shared.shared.flush()
    s = torch.tpu.compile_stats()
    print(s["compiled"], s["loaded"], s["shared"])
"""


def test_machines_share_a_directory(tmp_path):
    def machine(name):
        return good(
            SHARE, TORCH_TPU_CACHE_DIR=str(tmp_path / name), TORCH_TPU_CACHE_SHARED=f"file://{tmp_path}/shared"
        ).splitlines()

    (value, first), (same, second) = machine("a"), machine("b")
    n = int(first.split()[0])
    assert value == same
    assert n > 0
    assert second.split() == ["0", str(n), str(n)]
    programs = [p for p in (tmp_path / "shared").rglob("*") if p.is_file()]
    assert len(programs) == n
    for p in programs:  # what is damaged is not used
        p.write_bytes(p.read_bytes()[:-1] + b"x")
    value, third = machine("c")
    assert value == same
    assert third.split() == [str(n), "0", "0"]


def test_a_shared_directory_without_its_package_is_told():
    r = good("""
        import torch, torch_tpu
        from torch_tpu._shared import Shared
        try:
            Shared("nosuch://bucket/x")
        except RuntimeError as e:
            print(e)
    """)
    assert "TORCH_TPU_CACHE_SHARED=nosuch://bucket/x cannot be used" in r


SAVE = """
    import torch, torch_tpu
    from torch._dynamo.utils import counters
    f = torch.compile(lambda x: (x.cos() * 3 + 1).sum(), backend="tpu")
    {before}
    print(f"{f(torch.ones(5, device='tpu')).item():.5f}")
    {after}
    print(torch.tpu.compile_stats()["compiled"], counters["aot_autograd"]["autograd_cache_miss"])
"""


def test_a_saved_cache_moves_to_another_machine(tmp_path):
    def run(before, after, name):
        env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name / "traces"), "TORCH_TPU_CACHE_DIR": str(tmp_path / name / "programs")}
        return good(SAVE.replace("{before}", before).replace("{after}", after), **env).splitlines()

    path = tmp_path / "saved"
    value, made = run("", f"torch.tpu.compiler.save_cache({str(path)!r})", "a")
    same, again = run(f"torch.tpu.compiler.load_cache({str(path)!r})", "", "b")
    assert value == same
    assert int(made.split()[0]) > 0
    assert again.split() == ["0", "0"]


@pytest.mark.parametrize("what", ["torch", "torch_tpu", "device", "format"])
def test_a_cache_of_other_versions_is_refused(what, tmp_path):
    path = tmp_path / "saved"
    made_by = torch.tpu.compiler._made_by()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("made_by.json", json.dumps(made_by | {what: "another"}))
    with pytest.raises(RuntimeError, match=f"saved with {what} another, and this is {what}"):
        torch.tpu.compiler.load_cache(path)


def test_what_is_no_saved_cache_is_refused(tmp_path):
    path = tmp_path / "saved"
    path.write_bytes(b"no archive")
    with pytest.raises(RuntimeError, match="no saved compile cache"):
        torch.tpu.compiler.load_cache(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("made_by.json", json.dumps(torch.tpu.compiler._made_by()))
        archive.writestr("programs/../../outside", b"")
    with pytest.raises(RuntimeError, match="no saved compile cache"):
        torch.tpu.compiler.load_cache(path)


ONE = """
import os, sys, time, torch, torch_tpu
f = torch.compile(lambda x: torch.linalg.cholesky(x @ x.T + 4 * torch.eye(6, device="tpu")).exp().sum(), backend="tpu")
x = torch.arange(36.0).view(6, 6).sin().to("tpu")
torch.tpu.synchronize()
n = torch.tpu.compile_stats()["compiled"]
open(f"{sys.argv[1]}/ready{sys.argv[2]}", "w").close()
while not os.path.exists(f"{sys.argv[1]}/go"):
    time.sleep(0.001)
f(x).item()
print(torch.tpu.compile_stats()["compiled"] - n)
"""


def test_processes_that_want_the_same_program_compile_it_once(tmp_path):
    env = os.environ | {"PYTHONPATH": str(PACKAGE), "TORCH_TPU_CACHE_DIR": str(tmp_path / "programs")}
    processes = [
        subprocess.Popen([sys.executable, "-c", ONE, tmp_path, str(k)], stdout=subprocess.PIPE, text=True, env=env)
        for k in range(2)
    ]
    until = time.monotonic() + 120
    while not all((tmp_path / f"ready{k}").exists() for k in range(2)) and time.monotonic() < until:
        time.sleep(0.01)
    (tmp_path / "go").touch()
    compiled = [int(p.communicate(timeout=120)[0]) for p in processes]
    assert all(p.returncode == 0 for p in processes)
    alone = len(list((tmp_path / "programs").glob("??/*")))  # of what both made, before and after the start
    assert 0 < sum(compiled) <= alone


def test_a_graph_with_effects_runs_in_a_second_process(tmp_path):
    code = """
import torch, torch_tpu
f = torch.compile(lambda x: torch.linalg.cholesky(x @ x.T + 4 * torch.eye(6, device="tpu")).sum(), backend="tpu")
x = torch.arange(36.0).view(6, 6).sin()
want = torch.linalg.cholesky(x @ x.T + 4 * torch.eye(6)).sum()
torch.testing.assert_close(f(x.to("tpu")).cpu(), want)
"""
    env = os.environ | {"PYTHONPATH": str(PACKAGE), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
        assert got.returncode == 0, got.stderr


def test_warmup_compiles_and_changes_nothing():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).to(DEV)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    @torch.compile(backend="tpu")
    def step(x):
        loss = model(x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def state():
        torch.tpu.synchronize()
        return [*(t.cpu().clone() for t in model.state_dict().values()), torch.tpu.get_rng_state(), torch.get_rng_state()]

    before = state()
    x = torch.randn(4, 6, device=DEV)
    before[-2:] = torch.tpu.get_rng_state(), torch.get_rng_state()
    assert torch.tpu.compiler.warmup(step, x) > 0
    for now, then in zip(state(), before, strict=True):
        assert torch.equal(now, then)
    assert all(p.grad is None for p in model.parameters())
    made = torch.tpu.compile_stats()
    step(x).item()
    after = torch.tpu.compile_stats()
    assert after["graphs"] == made["graphs"]
    assert after["programs"] == made["programs"]
    steps = {s["step"].item() for s in optimizer.state.values()}
    assert steps == {1.0}
    optimizer.zero_grad()
    assert torch.tpu.compiler.warmup(step, x) == 0
    assert {s["step"].item() for s in optimizer.state.values()} == {1.0}


def test_warmup_of_shapes():
    f = torch.compile(lambda x, y: (x @ y).sum(), backend="tpu", dynamic=False)
    assert torch.tpu.compiler.warmup(f, [((4, 5), (5, 6)), ((2, 5), (5, 6))]) >= 2
    before = torch.tpu.compile_stats()["graphs"]
    for n in (4, 2):
        x, y = torch.randn(n, 5), torch.randn(5, 6)
        torch.testing.assert_close(f(x.to(DEV), y.to(DEV)).cpu(), (x @ y).sum(), rtol=1e-4, atol=1e-4)
    assert torch.tpu.compile_stats()["graphs"] == before


def test_a_graph_whose_sizes_depend_on_data_is_compiled_and_not_kept(caplog):
    def f(x):
        return x.nonzero().sum(0) * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert torch.compile(f, backend="tpu")(torch.tensor([0.0, 1.0, 1.0], device=DEV)).tolist() == [6]
    assert "unable to serialize" not in caplog.text
