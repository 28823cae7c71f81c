"""``torch.tpu`` and what PyTorch itself asks of a device's module."""

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


def draw(n: int = 8, **kwargs: object) -> torch.Tensor:
    return torch.rand(n, device="tpu", **kwargs).cpu()


def test_device_count_and_current() -> None:
    assert torch.tpu.is_available()
    assert torch.tpu.device_count() >= 1
    assert torch.tpu.current_device() == 0
    with torch.tpu.device(0):
        assert torch.empty(1, device="tpu").device == torch.device("tpu", 0)
    with torch.tpu.device_of(torch.empty(1)):
        assert torch.tpu.current_device() == 0
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.tpu.set_device(63)
    with pytest.raises(ValueError, match="expected a tpu device"):
        torch.tpu.synchronize("cpu")


def test_initialised_by_the_first_tensor() -> None:
    code = (
        "import torch, torch_tpu; assert not torch.tpu.is_initialized(); torch.manual_seed(1); torch.tpu.device_count();"
        "assert not torch.tpu.is_initialized(); torch.zeros(1, device='tpu'); assert torch.tpu.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_seeds() -> None:
    torch.manual_seed(7)
    assert torch.tpu.initial_seed() == 7
    first = draw()
    torch.tpu.manual_seed(7)
    assert torch.equal(draw(), first)
    torch.tpu.manual_seed_all(8)
    assert not torch.equal(draw(), first)
    assert torch.tpu.seed() == torch.tpu.initial_seed()
    assert len(torch.tpu.default_generators) == torch.tpu.device_count()
    generator = torch.tpu.default_generators[0]
    assert generator.device == torch.device("tpu", 0)
    generator.manual_seed(7)
    assert torch.equal(draw(), first)
    assert torch.tpu.default_generators[-1].initial_seed() == torch.tpu.default_generators[:][-1].initial_seed()


def test_state_is_16_bytes_and_puts_back() -> None:
    torch.manual_seed(3)
    draw()
    state = torch.tpu.get_rng_state()
    assert state.device.type == "cpu" and state.dtype == torch.uint8 and state.numel() == 16
    assert int.from_bytes(bytes(state[:8].tolist()), sys.byteorder) == 3
    after = draw()
    torch.tpu.set_rng_state(state)
    assert torch.equal(draw(), after)
    torch.tpu.set_rng_state_all(torch.tpu.get_rng_state_all())
    with pytest.raises(RuntimeError, match="16 bytes"):
        torch.tpu.set_rng_state(torch.zeros(3, dtype=torch.uint8))


def test_own_generator() -> None:
    generator = torch.Generator(device="tpu").manual_seed(5)
    before = torch.tpu.get_rng_state()
    first = draw(generator=generator)
    assert torch.equal(torch.tpu.get_rng_state(), before)
    assert torch.equal(draw(generator=generator.manual_seed(5)), first)
    twin = generator.clone_state()
    assert torch.equal(draw(generator=twin), draw(generator=generator))
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(2, device="tpu", generator=torch.Generator())


def test_fork_rng_and_checkpoint() -> None:
    torch.manual_seed(1)
    state = torch.tpu.get_rng_state()
    with torch.random.fork_rng(device_type="tpu"):
        draw()
    assert torch.equal(torch.tpu.get_rng_state(), state)
    x = torch.ones(64, device="tpu", requires_grad=True)
    y = checkpoint(lambda t: nn.functional.dropout(t, 0.5) * t, x, use_reentrant=False)
    y.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * y.detach().cpu())  # the same mask both times


def test_memory() -> None:
    before = torch.tpu.memory_allocated()
    x = torch.ones(1 << 18, device="tpu")
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() - before == 1 << 20
    assert torch.tpu.memory_reserved() == torch.tpu.memory_allocated()
    assert torch.tpu.max_memory_allocated() >= torch.tpu.memory_allocated()
    stats = torch.tpu.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.tpu.memory_allocated()
    assert stats["allocated_bytes.all.peak"] >= stats["allocated_bytes.all.current"]
    free, total = torch.tpu.mem_get_info()
    assert 0 < free < total
    del x
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == before
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == before
    torch.tpu.empty_cache()


def test_streams_and_events() -> None:
    assert isinstance(torch.tpu.current_stream(), torch.tpu.Stream)
    assert torch.tpu.current_stream() == torch.tpu.default_stream()
    side = torch.tpu.Stream()
    assert side.device == torch.device("tpu", 0) and "tpu" in repr(side)
    start, end = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
    start.record()
    with torch.tpu.stream(side):
        assert torch.tpu.current_stream() == side
        y = torch.ones(3, device="tpu") + 1
        end.record()
    assert torch.tpu.current_stream() == torch.tpu.default_stream()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) >= 0
    torch.tpu.current_stream().wait_stream(side)
    assert y.cpu().tolist() == [2, 2, 2]
    torch.tpu.set_stream(side)
    assert torch.accelerator.current_stream() == side
    torch.tpu.set_stream(torch.tpu.default_stream())
    with torch.tpu.stream(None):
        pass


def test_properties() -> None:
    p = torch.tpu.get_device_properties()
    assert p.name == torch.tpu.get_device_name()
    assert p.total_memory > 0 and p.multi_processor_count >= 1
    assert (p.major, p.minor) == torch.tpu.get_device_capability()
    assert torch.tpu.can_device_access_peer(0, 0)


def test_accelerator() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == torch.tpu.device_count()
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.synchronize()
    assert torch.accelerator.memory_allocated() == torch.tpu.memory_allocated()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == torch.tpu.memory_allocated()
    assert torch.accelerator.get_memory_info()[1] == torch.tpu.mem_get_info()[1]
    torch.accelerator.empty_cache()
    with torch.accelerator.device_index(0):
        pass


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids)) * self.scale


def test_module_to_keeps_parameters_and_ties() -> None:
    model = Tied()
    weight = model.embed.weight
    want = model(torch.tensor([1, 2]))
    model.to("tpu")
    assert model.embed.weight is weight and model.head.weight is weight and weight.device.type == "tpu"
    torch.testing.assert_close(model(torch.tensor([1, 2], device="tpu")).cpu(), want)
    assert model.cpu().head.weight is weight
    assert Tied().tpu().scale.device.type == "tpu"
    assert torch.ones(1).tpu().is_tpu


def test_deepcopy_and_pickle() -> None:
    x = torch.arange(6.0, device="tpu").view(2, 3)
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), x.t().clone().t()):
        assert other.device == x.device and other.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        torch.testing.assert_close(other.cpu(), x.cpu())
    model = copy.deepcopy(Tied().to("tpu"))
    assert model.head.weight is model.embed.weight


def test_save_and_load() -> None:
    base = torch.arange(6.0, device="tpu")
    file = io.BytesIO()
    torch.save({"base": base, "view": base[2:4], "p": nn.Parameter(base.clone())}, file)
    for where, kind in ((None, "tpu"), ("cpu", "cpu"), ("tpu", "tpu"), (torch.device("tpu:0"), "tpu"), (lambda s, _: s, "cpu")):
        file.seek(0)
        got = torch.load(file, map_location=where)
        assert {t.device.type for t in got.values()} == {kind}
        torch.testing.assert_close(got["view"].cpu(), torch.tensor([2.0, 3.0]))
        got["base"][2] = 9  # the view shares its storage as it did before
        assert got["view"][0].item() == 9
    file = io.BytesIO()
    torch.save(torch.arange(3.0), file)
    file.seek(0)
    assert torch.load(file, map_location="tpu").device.type == "tpu"
    with torch.device("tpu"):
        assert torch.zeros(2).device.type == "tpu"


@pytest.mark.parametrize("workers", [0, 1])
def test_data_loader(workers: int) -> None:
    data = TensorDataset(torch.arange(8.0), torch.arange(8))
    loader = DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers)
    seen = []
    for x, y in loader:
        assert x.is_pinned()
        seen += (x.to("tpu", non_blocking=True) * 2 + y.to("tpu", non_blocking=True)).cpu().tolist()
    assert seen == [3.0 * i for i in range(8)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    a, b = torch.ones(2, 2, device="tpu"), torch.ones(2, 2, device="tpu")
    with torch.autocast("tpu", dtype=dtype):
        assert (a @ b).dtype == dtype
        assert (a @ b).float().exp().dtype == torch.float32
    assert (a @ b).dtype == torch.float32
    assert torch.get_autocast_dtype("tpu") in torch.tpu.get_amp_supported_dtype()
    assert dtype in torch.tpu.get_amp_supported_dtype()


def test_matmul_precision_reaches_the_program() -> None:
    from torch_tpu import _C

    a = torch.ones(3, 5, device="tpu")
    torch.set_float32_matmul_precision("medium")
    try:
        _ = a @ a.t()
        medium = _C.last_module()
    finally:
        torch.set_float32_matmul_precision("highest")
    _ = a @ a.t()
    assert _C.last_module() != medium


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_that_forked_knows() -> None:
    torch.zeros(1, device="tpu")
    assert not torch.tpu._is_in_bad_fork()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if torch.tpu._is_in_bad_fork() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
