"""``torch.tpu``'s public names beside devices and streams, and what PyTorch's own tools make of the device."""

import copy
import itertools
import pathlib
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

# ------------------------------------------------------------------------------------------------------------- memory


def test_statistics_have_cudas_names() -> None:
    x = torch.ones(64, 64, device="tpu")
    stats = torch.tpu.memory_stats()
    for name in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "allocation", "segment", "active"):
        now, peak, made, freed = (stats[f"{name}.all.{k}"] for k in ("current", "peak", "allocated", "freed"))
        assert 0 < now <= peak and made - freed == now
    assert stats["num_ooms"] == stats["num_alloc_retries"] == 0
    assert stats["num_device_alloc"] - stats["num_device_free"] == stats["allocation.all.current"]
    assert torch.tpu.memory_stats_as_nested_dict()["allocation"]["all"]["current"] == stats["allocation.all.current"]
    assert stats == torch.accelerator.memory_stats()
    assert x.sum() == 64 * 64


def test_counts_follow_the_program_without_synchronizing() -> None:
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    torch.tpu.reset_accumulated_memory_stats()
    before = torch.tpu.memory_stats()
    x = torch.zeros(1 << 16, device="tpu")
    y = x + 1
    del x
    now = torch.tpu.memory_stats()
    assert now["allocated_bytes.all.current"] - before["allocated_bytes.all.current"] == 1 << 18
    assert now["allocated_bytes.all.peak"] - before["allocated_bytes.all.current"] == 1 << 19
    assert now["allocation.all.allocated"] - before["allocation.all.allocated"] == 2
    assert now["allocation.all.freed"] - before["allocation.all.freed"] == 1
    assert y[0] == 1


def test_an_unused_tensor_takes_no_memory() -> None:
    before = torch.tpu.memory_allocated()
    x = torch.empty(1 << 20, device="tpu")
    assert torch.tpu.memory_allocated() == before
    x.fill_(2)
    assert torch.tpu.memory_allocated() - before == 1 << 22


def test_summary_and_modules() -> None:
    import torch.tpu.memory
    import torch.tpu.random

    text = torch.tpu.memory_summary()
    assert "Allocated memory" in text and len({len(line) for line in text.splitlines()}) == 1
    assert len(torch.tpu.memory_summary(abbreviated=True)) < len(text)
    assert torch.tpu.memory.memory_allocated is torch.tpu.memory_allocated
    assert torch.tpu.random.manual_seed is torch.tpu.manual_seed
    assert torch.tpu.get_memory_info() == torch.accelerator.get_memory_info()
    torch.tpu.ipc_collect()


def test_nothing_is_opened_to_ask() -> None:
    code = (
        "import torch, torch_tpu; assert torch.tpu.memory_allocated() == 0 and not torch.tpu.memory_stats();"
        "torch.tpu.reset_peak_memory_stats(); import torch.tpu.ops, torch.tpu.compiler, torch.tpu.optimizers, torch.tpu.profiler;"
        "import torch.tpu.amp, torch.tpu.distributed, torch.tpu.pallas; assert not torch.tpu.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_either_import_may_come_first() -> None:
    for code in ("import torch_tpu, torch; torch.tpu.is_available()", "import torch, torch_tpu; torch.tpu.is_available()"):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_capabilities() -> None:
    types = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.float8_e4m3fn} <= types
    assert torch.complex32 not in types and torch.qint8 not in types
    assert torch.tpu.is_bf16_supported()
    assert not torch.tpu.is_current_stream_capturing()
    assert {"EagerMode", "Precision", "compiler", "memory_stats", "ops", "stream"} <= set(dir(torch.tpu))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = torch.tpu.nothing


# --------------------------------------------------------------------------------------------- precision and the compiler


def module_text() -> str:
    from torch_tpu import _C

    return _C.last_module()


def test_precision_goes_before_the_global_setting() -> None:
    x = torch.ones(3, 7, device="tpu")
    torch.set_float32_matmul_precision("highest")

    def text() -> str:
        _ = torch.ones(3, 7, device="tpu") @ x.t()
        return module_text()

    with torch.tpu.precision(torch.tpu.Precision.DEFAULT):
        fast = text()
        torch.set_float32_matmul_precision("high")
        torch.set_float32_matmul_precision("highest")
        with torch.tpu.precision(torch.tpu.Precision.HIGHEST):
            exact = text()
        assert fast != exact
    with pytest.raises(ValueError, match="Precision"), torch.tpu.precision("high"):  # type: ignore[arg-type]
        pass


def programs() -> int:
    torch.tpu.synchronize()
    return torch.tpu.compile_stats()["programs"]


def test_compiler_options_make_programs_of_their_own() -> None:
    x = torch.ones(5, 11, device="tpu")
    _ = x + 2
    before = programs()
    options = torch.tpu.compiler.custom_compiler_options
    with options({"xla_backend_optimization_level": 0}):
        y = x + 2
        assert programs() == before + 1
        with options({"xla_llvm_disable_expensive_passes": True}):
            z = x + 2
        assert programs() == before + 2
        _ = x + 2
        assert programs() == before + 2
    _ = x + 2
    assert programs() == before + 2
    assert_close(y.cpu(), torch.full((5, 11), 3.0))
    assert_close(z.cpu(), y.cpu())
    with options({"xla_optimization_level": "O1", "xla_memory_fitting_level": "O0"}):
        assert_close((x * 3).cpu(), torch.full((5, 11), 3.0))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"no_such_option": 1}, ValueError, "no_such_option"),
        ({"xla_cpu_enable_fast_math": "maybe"}, ValueError, "maybe"),
        ({"xla_optimization_level": "O7"}, ValueError, "O0, O1, O2 or O3"),
        ({"a=b": 1}, ValueError, "name of an XLA option"),
        ({"xla_dump_to": ["x"]}, TypeError, "xla_dump_to"),
    ],
)
def test_wrong_compiler_options_are_told_at_once(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text), torch.tpu.compiler.custom_compiler_options(options):
        raise AssertionError("entered")
    assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]


def test_excess_precision() -> None:
    x = torch.ones(3, 13, device="tpu")
    _ = x * 5
    before, was = programs(), torch.tpu.allow_excess_precision
    torch.tpu.allow_excess_precision = not was
    try:
        assert torch.tpu.allow_excess_precision is not was
        _ = x * 5
        assert programs() == before + 1
        with pytest.raises(TypeError, match="True or False"):
            torch.tpu.allow_excess_precision = "yes"
    finally:
        torch.tpu.allow_excess_precision = was


def test_options_from_the_environment() -> None:
    code = "import torch; print((torch.ones(3, device='tpu') + 1).sum().item())"

    def run(value: str) -> subprocess.CompletedProcess[str]:
        import os

        env = os.environ | {"TORCH_TPU_INTERNAL_XLA_OPTIONS": value}
        return subprocess.run(
            [sys.executable, "-c", "import torch_tpu;" + code], env=env, capture_output=True, text=True, timeout=120
        )

    assert run(" xla_backend_optimization_level=1  xla_llvm_disable_expensive_passes=true").stdout == "6.0\n"
    wrong = run("no_such_option=3")
    assert wrong.returncode == 1 and "TORCH_TPU_INTERNAL_XLA_OPTIONS" in wrong.stderr and "no_such_option" in wrong.stderr


def test_variables_by_torchtpus_names(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    import os

    from torch_tpu import _environment

    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/x/${RANK}")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.delenv("TORCH_TPU_CACHE_DIR", raising=False)
    monkeypatch.setenv("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT", "gs://bucket/x")
    monkeypatch.delenv("TORCH_TPU_CACHE_SHARED", raising=False)
    _environment.follow()
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=/x/3" and "TORCH_TPU_CACHE_DIR" not in os.environ
    assert os.environ.pop("TORCH_TPU_CACHE_SHARED") == "gs://bucket/x"
    monkeypatch.setenv("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT", str(tmp_path))
    _environment.follow()
    assert os.environ.pop("TORCH_TPU_CACHE_DIR") == str(tmp_path)


# ---------------------------------------------------------------------------------------------------------------- ops


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(("n", "shape"), [(1, (2, 3, 9)), (1, (3, 9)), (2, (2, 3, 9, 8)), (2, (3, 9, 8)), (3, (2, 3, 5, 6, 7))])
def test_max_pool_and_its_gradient(n: int, shape: tuple[int, ...], ceil_mode: bool) -> None:
    x = torch.randn(shape, requires_grad=True)
    kernel, stride, padding, dilation = [3] * n, [2] * n, [1] * n, [1] * n
    want = getattr(F, f"max_pool{n}d")(x, kernel, stride, padding, dilation, ceil_mode)
    grad = torch.randn_like(want)
    want.backward(grad)
    ops, t = torch.tpu.ops, x.detach().to("tpu")
    got = getattr(ops, f"max_pool{n}d")(t, kernel, stride, padding, dilation, ceil_mode)
    assert_close(got.cpu(), want.detach())
    back = getattr(ops, f"max_pool{n}d_backward")(grad.to("tpu"), t, kernel, stride, padding, dilation, ceil_mode)
    assert_close(back.cpu(), x.grad)
    with pytest.raises(ValueError, match="kernel_size"):
        getattr(ops, f"max_pool{n}d")(t, [3] * (n + 1), stride, padding, dilation, ceil_mode)


@pytest.mark.parametrize("sizes", [[2, 0, 5], [0, 7, 0], [1, 1, 1]])
def test_ragged_dot(sizes: list[int]) -> None:
    lhs, rhs, grad = torch.randn(7, 3), torch.randn(3, 3, 5), torch.randn(7, 5)
    wants, rows, weights = [], 0, torch.zeros(3, 3, 5)
    for i, n in enumerate(sizes):
        wants.append(lhs[rows : rows + n] @ rhs[i])
        weights[i] = lhs[rows : rows + n].t() @ grad[rows : rows + n]
        rows += n
    want = torch.cat([*wants, torch.zeros(7 - rows, 5)])
    a, b, g = lhs.to("tpu").requires_grad_(), rhs.to("tpu").requires_grad_(), torch.tensor(sizes, device="tpu")
    y = torch.tpu.ops.ragged_dot(a, b, g)
    assert_close(y.cpu(), want)
    y.backward(grad.to("tpu"))
    assert b.grad is not None
    assert_close(b.grad.cpu(), weights)
    assert_close(torch.tpu.ops.ragged_dot_weight_grad(a.detach(), grad.to("tpu"), g).cpu(), weights)
    out = torch.empty(7, 5, device="tpu")
    assert torch.tpu.ops.ragged_dot(a.detach(), b.detach(), g, out=out) is out
    assert_close(out.cpu(), want)
    with pytest.raises(ValueError, match=r"\(g, k, n\)"):
        torch.tpu.ops.ragged_dot(a, b[:2], g)


def test_other_ops() -> None:
    ops = torch.tpu.ops
    x = torch.randn(4, 3, device="tpu", requires_grad=True)
    a, b = ops.optimization_barrier([x, x * 2])
    (a.sum() + b.sum()).backward()
    assert_close(x.grad.cpu(), torch.full((4, 3), 3.0))
    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8)
    got = ops.splash_sdpa(q.to("tpu"), k.to("tpu"), k.to("tpu"), block_q=128)
    assert_close(got.cpu(), F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True), rtol=1e-4, atol=1e-5)
    band = torch.tensor([[0 <= i - j < 2 for j in range(6)] for i in range(6)])
    got = ops.splash_sdpa(q.to("tpu"), q.to("tpu"), q.to("tpu"), local_window_size=2)
    assert_close(got.cpu(), F.scaled_dot_product_attention(q, q, q, attn_mask=band), rtol=1e-4, atol=1e-5)
    table, at = torch.randn(5, 2), torch.tensor([4, 0, 0, 2])
    rows = ops.sparse_gather(torch.zeros(2, device="tpu"), at.to("tpu"), table.to("tpu"), 2)
    assert_close(rows.cpu(), table[at])
    back = ops.sparse_gather_backward(rows, at.to("tpu"), torch.zeros(5, 2, device="tpu"))
    assert_close(back.cpu(), torch.zeros(5, 2).index_add(0, at, table[at]))
    for name in ("sparse_dense_matmul", "send", "all_gather_dim", "ragged_all_to_all"):
        with pytest.raises(NotImplementedError, match=f"{name}.*use "):
            getattr(ops, name)()
    with pytest.raises(NotImplementedError, match="JAX"):
        torch.tpu.pallas.jax_op()


def test_jagged_padding() -> None:
    parts = [torch.randn(3, 4), torch.randn(2, 4)]
    nt = torch.nested.nested_tensor(parts, layout=torch.jagged, device="tpu")
    padded = torch.tpu.ops.align_jagged_to_multiple(nt, 8, 7.0)
    assert padded.values().shape == (8, 4) and padded.values()[5:].eq(7).all()
    for back in (torch.tpu.ops.strip_jagged_padding(padded), torch.tpu.ops.strip_jagged_padding(padded, 5)):
        assert_close(back.values().cpu(), torch.cat(parts))
    assert torch.tpu.ops.align_jagged_to_multiple(nt, 5) is nt


# --------------------------------------------------------------------------------------------------------- optimizers


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)
        self.last = nn.Linear(4, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x).tanh())


def pairs() -> list[Any]:
    o = torch.optim
    return [
        ("AdamW", {"lr": 0.1, "use_bfloat16_moments": False}, lambda p: o.AdamW(p, lr=0.1)),
        ("AdamW", {"lr": 0.1, "beta1": 0.5, "weight_decay": 0.3, "use_bfloat16_moments": False, "maximize": True},
         lambda p: o.AdamW(p, lr=0.1, betas=(0.5, 0.999), weight_decay=0.3, maximize=True)),
        ("Sgd", {"lr": 0.1}, lambda p: o.SGD(p, lr=0.1)),
        ("Sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
         lambda p: o.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)),
        ("Sgd", {"lr": 0.1, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.1},
         lambda p: o.SGD(p, lr=0.1, momentum=0.8, dampening=0.3, weight_decay=0.1)),
        ("Muon", {"lr": 0.02}, lambda p: o.Muon(p, lr=0.02)),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "kwargs", "reference"), pairs())
def test_optimizers_compute_torch_optims(name: str, kwargs: dict[str, Any], reference: Callable[..., Any]) -> None:
    optimizer = getattr(torch.tpu.optimizers, name)(**kwargs)
    assert optimizer.defaults["lr"] == kwargs["lr"]
    net = Net()
    group = optimizer.init_param_group(copy.deepcopy(net).to("tpu"))
    assert set(group.params) == {"inner_weight", "last_weight"}
    want = reference(net.parameters())
    for step in range(3):
        grads = {n.replace(".", "_"): torch.full_like(p, 0.1 * step) + p.detach() for n, p in net.named_parameters()}
        for n, p in net.named_parameters():
            p.grad = grads[n.replace(".", "_")].clone()
        want.step()
        assert optimizer(group, {n: g.to("tpu") for n, g in grads.items()}) is group
    for n, p in net.named_parameters():
        tol = 2e-2 if name == "Muon" else 1e-5
        assert_close(group.params[n.replace(".", "_")].cpu(), p.detach(), rtol=tol, atol=tol)


def test_single_trace_trainer() -> None:
    tpu = torch.tpu.optimizers
    torch.manual_seed(0)
    net, x, y = Net(), torch.randn(8, 4), torch.randn(8, 2)
    ours = copy.deepcopy(net).to("tpu")
    want, optimizer = [], torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        loss = F.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        want.append(loss.item())
    graphs = []
    trainer = tpu.SingleTraceTrainer(ours, tpu.Sgd(lr=0.1, momentum=0.9), compile_fn=lambda graph: graphs.append(graph) or graph)
    step = trainer.make_compiled_train_step(x.to("tpu"), y.to("tpu"))
    got = [step(x.to("tpu"), y.to("tpu")).item() for _ in range(3)]
    assert got == pytest.approx(want, rel=1e-4)
    assert len(graphs) == 1
    for (_, a), b in zip(trainer.params.items(), net.parameters(), strict=True):
        assert_close(a.cpu(), b.detach(), rtol=1e-4, atol=1e-5)
    assert_close(ours.last.weight.detach().cpu(), net.last.weight.detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="compile_fn"):
        tpu.SingleTraceTrainer(ours).make_compiled_train_step(x)


# ------------------------------------------------------------------------------------------------------------- autocast


def test_autocast_lowers_to_bfloat16_in_every_thread() -> None:
    seen = []

    def ask() -> None:
        with torch.autocast("tpu"):
            seen.append((torch.ones(2, 2, device="tpu") @ torch.ones(2, 2, device="tpu")).dtype)

    ask()
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen == [torch.bfloat16] * 2


def test_autocast_under_dynamo() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(x.device.type, dtype=torch.float16):
            y = x @ x
        with torch.autocast(x.device.type):
            return y, x @ x

    for device in ("cpu", "tpu"):
        assert [y.dtype for y in f(torch.ones(2, 2, device=device))] == [torch.float16, torch.bfloat16]


def test_autocast_lists_are_the_accelerators() -> None:
    a, h = torch.ones(4, 4, device="tpu"), torch.ones(4, 4, device="tpu", dtype=torch.float16)
    with torch.autocast("tpu", dtype=torch.float16):
        for lower in (
            a @ a,
            F.linear(a, a),
            torch.bmm(a[None], a[None]),
            F.conv1d(a[None], a[:, :, None]),
            torch.einsum("ij,jk", a, a),
        ):
            assert lower.dtype == torch.float16
        for wide in (h.exp(), h.softmax(-1), h.sum(), F.mse_loss(h, h), F.layer_norm(h, (4,)), h.log(), F.cross_entropy(h, h)):
            assert wide.dtype == torch.float32
        assert torch.cat([a, h]).dtype == torch.float32
        assert (h + h).dtype == torch.float16 and (a + h).dtype == torch.float32
        with torch.autocast("tpu", enabled=False):
            assert (a @ a).dtype == torch.float32
        with torch.autocast("tpu", dtype=torch.bfloat16):
            assert (a @ a).dtype == torch.bfloat16
        assert (a @ a).dtype == torch.float16
        with pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
            F.binary_cross_entropy(a.sigmoid(), a)
    with pytest.warns(UserWarning, match="not supported"), torch.autocast("tpu", dtype=torch.float64):
        assert (a @ a).dtype == torch.float32


def test_autocast_casts_a_weight_once() -> None:
    w = nn.Parameter(torch.ones(4, 4, device="tpu"))
    x = torch.ones(4, 4, device="tpu")
    with torch.autocast("tpu"):
        y = (x @ w).sum() + (x @ w).sum()
    y.backward()
    assert w.grad is not None and w.grad.dtype == torch.float32
    assert_close(w.grad.cpu(), torch.full((4, 4), 8.0))


def test_custom_functions_under_autocast() -> None:
    seen: dict[str, Any] = {}

    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen["forward"] = x.dtype, torch.is_autocast_enabled("tpu")
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            seen["backward"] = torch.is_autocast_enabled("tpu")
            return g * 2

    x = torch.ones(2, 2, device="tpu", requires_grad=True)
    with torch.tpu.amp.autocast(dtype=torch.bfloat16):
        y = Double.apply(x @ x)
    y.sum().backward()
    assert seen == {"forward": (torch.float32, False), "backward": False}
    assert torch.tpu.amp.GradScaler().is_enabled()
    assert x.grad is not None and x.grad.dtype == torch.float32


# --------------------------------------------------------------------------------------- other memory, files, processes


def test_numpy_is_refused_in_cudas_words() -> None:
    with pytest.raises(TypeError, match=r"can't convert tpu:0 device type tensor to numpy\. Use Tensor\.cpu"):
        torch.ones(2, device="tpu").numpy()
    with pytest.raises(TypeError, match="can't convert tpu:0 device type tensor to numpy"):
        np.asarray(torch.ones(2, device="tpu"))


def test_dlpack() -> None:
    x = torch.arange(6.0, device="tpu").view(2, 3)
    shared = torch.from_dlpack(x)
    shared[0, 0] = 9
    assert x[0, 0] == 9 and shared.data_ptr() == x.data_ptr()
    assert torch.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
    assert torch.utils.dlpack.from_dlpack(x, device="cpu").device.type == "cpu"
    assert torch.from_dlpack(np.ones(3, np.float32), device="tpu").device.type == "tpu"
    np.testing.assert_equal(np.from_dlpack(x.t(), device="cpu"), x.t().cpu().numpy())
    assert x.__dlpack_device__() == (12, 0)
    for refused in (lambda: np.from_dlpack(x), lambda: x.__dlpack__(dl_device=(1, 0), copy=False)):
        with pytest.raises(BufferError, match="cpu"):
            refused()
    with pytest.raises(BufferError, match="detach"):
        torch.from_dlpack(x.clone().requires_grad_())
    cpu = torch.ones(2)
    assert torch.from_dlpack(cpu).data_ptr() == cpu.data_ptr() and cpu.__dlpack_device__()[0] == 1


@pytest.mark.need("safetensors")
def test_safetensors_straight_to_the_device(tmp_path: pathlib.Path) -> None:
    import safetensors
    import safetensors.torch

    file = str(tmp_path / "x.safetensors")
    x = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    safetensors.torch.save_file({k: v.to("tpu") for k, v in x.items()}, file)
    for device in ("tpu", "tpu:0"):
        got = safetensors.torch.load_file(file, device=device)
        for k, v in got.items():
            assert v.device == torch.device("tpu", 0)
            assert_close(v.cpu(), x[k])
    assert safetensors.torch.load_file(file)["a"].device.type == "cpu"
    with safetensors.safe_open(file, framework="pt", device="tpu") as f:
        assert isinstance(f, safetensors.safe_open)
        assert sorted(f.keys()) == ["a", "b"]
        assert_close(f.get_slice("a")[:, 1:].cpu(), x["a"][:, 1:])
        assert f.get_slice("a").get_shape() == [2, 3]
        assert f.get_tensor("b").is_tpu
    model = nn.Linear(2, 3).to("tpu")
    safetensors.torch.save_model(model, file)
    other = nn.Linear(2, 3).to("tpu")
    safetensors.torch.load_model(other, file, device="tpu")
    assert_close(other.weight.detach(), model.weight.detach())


@pytest.mark.parametrize("weights_only", [True, False])
def test_load_by_mapping_and_mmap(tmp_path: pathlib.Path, weights_only: bool) -> None:
    x = torch.arange(4.0)
    torch.save({"x": x.to("tpu")}, tmp_path / "tpu.pt")
    torch.save({"x": x}, tmp_path / "cpu.pt")
    where: list[Any] = [None, "cpu", "tpu", "tpu:0", torch.device("tpu"), {"tpu:0": "cpu"}, lambda s, _: s.cpu(), "meta"]
    for file, mapping, mmap in [(f, m, mm) for f in ("tpu.pt", "cpu.pt") for m in where for mm in (False, True)]:
        got = torch.load(tmp_path / file, map_location=mapping, weights_only=weights_only, mmap=mmap)["x"]
        home = file[:3]
        want = {None: home, "cpu": "cpu", "meta": "meta"}.get(mapping if isinstance(mapping, str | None) else "", "tpu")
        if isinstance(mapping, dict) or callable(mapping):
            want = "cpu"
        assert got.device.type == want
        if want != "meta":
            assert_close(got.cpu(), x)
    with pytest.raises(RuntimeError, match="device_count"):
        torch.load(tmp_path / "tpu.pt", map_location="tpu:63")


def test_storages() -> None:
    x = torch.arange(3.0)
    s = x.untyped_storage().tpu()
    assert s.is_tpu and s.device == torch.device("tpu", 0) and s.tolist() == x.untyped_storage().tolist()
    assert not x.untyped_storage().is_tpu
    assert pickle.loads(pickle.dumps(x.to("tpu"))).untyped_storage().is_tpu


def test_old_type_names() -> None:
    x = torch.tpu.FloatTensor([1, 2, 3])
    assert x.device.type == "tpu" and x.tolist() == [1, 2, 3] and x.type() == "torch.tpu.FloatTensor"
    assert torch.tpu.LongTensor(2, 3).shape == (2, 3) and torch.tpu.BoolTensor().shape == (0,)
    assert isinstance(x, torch.tpu.FloatTensor) and not isinstance(x, torch.tpu.HalfTensor)
    assert not isinstance(torch.ones(1), torch.tpu.FloatTensor)
    assert torch.ones(2).type(torch.tpu.HalfTensor).type() == torch.ones(2).type("torch.tpu.HalfTensor").type()


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(0), torch.zeros(2, 0), torch.tensor(3.5), torch.arange(2000.0).view(2, 1000), torch.tensor([1 + 2j]).conj(),
        torch.tensor([1e-9, 1e9, float("nan"), -float("inf")]), torch.tensor([True]), torch.tensor([3], dtype=torch.uint64),
        torch.ones(2, dtype=torch.bfloat16), torch.ones(2).to(torch.float8_e5m2),
        torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        torch.ones(2, 2).t(),
    ],
)  # fmt: skip
def test_printing(x: torch.Tensor) -> None:
    def plain(text: str) -> str:
        return "".join(text.replace("device='tpu:0'", "").replace(",", " ").split())

    assert plain(repr(x.to("tpu"))) == plain(repr(x))
    assert "device='tpu:0'" in repr(x.to("tpu"))


def test_printing_with_gradients() -> None:
    x = torch.ones(1, device="tpu", requires_grad=True)
    assert repr(x) == "tensor([1.], device='tpu:0', requires_grad=True)"
    assert repr(x * 2) == "tensor([2.], device='tpu:0', grad_fn=<MulBackward0>)"
    assert f"{x[0]:.2f}" == "1.00"


def test_default_device() -> None:
    try:
        torch.set_default_device("tpu")
        assert torch.get_default_device() == torch.device("tpu", 0)
        for x in (torch.ones(1), torch.tensor([1]), torch.arange(3), torch.randn(2), torch.randperm(4), nn.Linear(2, 2).weight):
            assert x.device == torch.device("tpu", 0)
    finally:
        torch.set_default_device(None)
    assert torch.ones(1).device.type == "cpu"
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator but found 'cpu'"):
        torch.randperm(4, generator=torch.Generator(), device="tpu")


def test_assert_close_and_conversions() -> None:
    x = torch.ones(3, device="tpu")
    torch.testing.assert_close(x, x.clone())
    with pytest.raises(AssertionError, match="Greatest absolute difference: 1"):
        torch.testing.assert_close(x, x + 1)
    with pytest.raises(AssertionError, match="device"):
        torch.testing.assert_close(x, x.cpu())
    assert torch.as_tensor(np.ones(2), device="tpu").dtype == torch.float64
    assert x.new_tensor([2.0]).is_tpu and torch.asarray([1.0], device="tpu").is_tpu
    assert torch.utils.data.default_collate([x, x]).is_tpu
    assert nn.utils.rnn.pack_sequence([torch.ones(2)]).tpu().is_tpu
    with pytest.raises(RuntimeError, match="pin"):
        x.pin_memory()
    assert torch.empty(3, pin_memory=True).is_pinned() and torch.ones(3).pin_memory()[1:].is_pinned()
    assert hash(torch.device("tpu", 0)) == hash(torch.device("tpu:0")) and str(torch.device("tpu", 1)) == "tpu:1"


SEND = """
import torch, torch_tpu, torch.multiprocessing as mp

def child(inbox, outbox):
    x, p = inbox.get()
    outbox.put((x.device.type, x.tolist(), isinstance(p, torch.nn.Parameter), p.requires_grad, (x * 2).tolist()))

if __name__ == "__main__":
    ctx = mp.get_context("spawn")
    inbox, outbox = ctx.Queue(), ctx.Queue()
    process = ctx.Process(target=child, args=(inbox, outbox))
    process.start()
    inbox.put((torch.arange(3.0, device="tpu"), torch.nn.Parameter(torch.ones(1, device="tpu"))))
    got = outbox.get(timeout=90)
    assert got[:4] == ("tpu", [0, 1, 2], True, True) and got[4] == [0, 2, 4], got
    process.join()
    print("sent")
"""


def test_tensors_are_sent_to_processes_as_copies(tmp_path: pathlib.Path) -> None:
    (tmp_path / "send.py").write_text(SEND)
    got = subprocess.run([sys.executable, tmp_path / "send.py"], capture_output=True, text=True, timeout=120)
    assert got.stdout == "sent\n", got.stderr


def test_launch_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    names = ("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "NPROC_PER_NODE", "TPU_WORKER_HOSTNAMES")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    d = torch.tpu.distributed
    monkeypatch.setenv("MASTER_PORT", "1234")
    d.set_tpu_launch_env(nproc_per_node=2)
    got = {name: os.environ.pop(name, None) for name in names}
    assert got["MASTER_PORT"] == "1234" and got["NPROC_PER_NODE"] == "2" and got["NNODES"] == "1"
    with pytest.raises(NotImplementedError, match="torchrun"):
        d.set_tpu_launch_env(nnodes=2)
    with pytest.raises(ValueError, match="at least 1"):
        d.set_tpu_launch_env(nproc_per_node=0)
    assert d.topology_aware_mesh((1, 1)).tolist() == [[0]]
    with pytest.raises(ValueError, match="number of ranks"):
        d.topology_aware_mesh((2,))
    assert d.spmd_safe(len)([1]) == 1


def test_the_profiler_shows_what_the_device_ran(tmp_path: pathlib.Path) -> None:
    import json

    from torch.profiler import ProfilerActivity, profile, record_function

    x = torch.randn(256, 256, device="tpu")

    def work() -> None:
        with record_function("mine"):
            (x @ x).relu().sum().item()

    work()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1], record_shapes=True) as p:
        work()
        work()
    ran = {e.name: e for e in p.events() if e.device_type == torch.autograd.DeviceType.PrivateUse1}
    assert set(ran) >= {"mm", "relu", "sum"}
    assert all(e.device_time_total > 0 for e in ran.values())
    for e in p.events():
        if e.name == "aten::mm" and e.device_type == torch.autograd.DeviceType.CPU:
            assert [k.name for k in e.kernels] == ["mm"] and e.input_shapes == [[256, 256], [256, 256]]
    assert "TPU total" in p.key_averages().table(sort_by="cpu_time_total")
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    assert [e["name"] for e in kernels].count("mm") == 2
    for a, b in itertools.pairwise(kernels):
        assert a["ts"] + a["dur"] <= b["ts"] + 1e-3  # one program at a time
    assert any(e.get("args", {}).get("name") == "tpu:0" for e in events)
    with torch.autograd.profiler.profile(use_device="tpu") as q:
        work()
    assert {e.key: e.device_time_total > 0 for e in q.key_averages()}["aten::mm"]


def test_profiling_the_cpu_opens_no_device() -> None:
    code = (
        "import torch, torch_tpu; from torch.profiler import profile\n"
        "with profile() as p: torch.ones(3) + 1\n"
        "assert not torch.tpu.is_initialized() and any(e.name == 'aten::add' for e in p.events())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_profiler_settings() -> None:
    config = torch.tpu.profiler.TpuProfilerConfig(worker_rank="1", experimental_options={"a": True, "b": 'x"y'})
    assert isinstance(config, torch.profiler._ExperimentalConfig)
    for wrong in ({"worker_rank": "a:b"}, {"experimental_options": {"run_dir": "x"}}, {"experimental_options": {"a,b": 1}}):
        with pytest.raises(ValueError, match=r"':' or ','|argument of its own"):
            torch.tpu.profiler.TpuProfilerConfig(**wrong)
    with pytest.raises(TypeError, match="string"):
        torch.tpu.profiler.TpuProfilerConfig(worker_rank=1)
