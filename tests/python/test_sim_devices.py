"""Several devices in one process: TORCH_TPU_SIM_DEVICES=4 where no TPU is attached."""

import pytest
from child import good, run

FOUR = {"TORCH_TPU_SIM_DEVICES": "4"}


def test_count_current_and_where_tensors_go() -> None:
    good(
        """
        import threading, torch
        assert torch.tpu.device_count() == 4 and not torch.tpu.is_initialized()
        assert torch.accelerator.device_count() == 4
        for i in range(4):
            x = torch.arange(3.0, device=f"tpu:{i}") + i
            assert x.device == torch.device("tpu", i) and x.cpu().tolist() == [i, i + 1, i + 2]
        torch.tpu.set_device(2)
        assert torch.ones(1, device="tpu").device.index == 2 and torch.tpu.current_device() == 2
        with torch.tpu.device(3):
            assert torch.empty(1, device="tpu").device.index == 3
            assert torch.nn.Linear(2, 2, device="tpu").weight.device.index == 3
        assert torch.tpu.current_device() == 2
        with torch.tpu.device_of(x):
            assert torch.tpu.current_device() == 3
        seen = []
        def other():
            seen.append(torch.tpu.current_device())
            torch.tpu.set_device("tpu:1")
            seen.append(torch.rand(2, device="tpu").device.index)
        t = threading.Thread(target=other)
        t.start(); t.join()
        assert seen == [0, 1] and torch.tpu.current_device() == 2
        y = (x.view(3, 1) @ x.view(1, 3)).sum()   # results stay with their inputs, whatever is current
        assert y.device.index == 3 and y.item() == 144
        assert len({torch.tpu.get_device_name(i) for i in range(4)}) == 1
        """,
        **FOUR,
    )


@pytest.mark.parametrize("value", ["0", "-1", "four", "4x", "65", "99999999999999999999"])
def test_a_bad_number_is_an_error(value: str) -> None:
    out = good(
        """
        import torch
        for device in ("tpu", "tpu:1"):
            try:
                torch.zeros(1, device=device)
            except RuntimeError as e:
                print(e)
        assert not torch.tpu.is_available()
        """,
        TORCH_TPU_SIM_DEVICES=value,
    )
    assert out.count(f"TORCH_TPU_SIM_DEVICES={value}: expected the number of tpu devices") == 2


def test_an_index_out_of_range_is_an_error() -> None:
    good(
        """
        import torch
        torch.ones(1, device="tpu:1")
        for f in (lambda: torch.zeros(1, device="tpu:4"), lambda: torch.tpu.set_device(7), lambda: torch.ones(1).to("tpu:9"),
                  lambda: torch.tpu.synchronize(5), lambda: torch.tpu.memory_allocated(6), lambda: torch.empty(2, device="tpu:63"),
                  lambda: torch.tpu.get_device_properties(4)):
            try:
                f()
            except RuntimeError as e:
                assert "invalid device ordinal" in str(e) and "4 tpu devices" in str(e), e
            else:
                raise AssertionError
        assert torch.ones(1, device="tpu:3").item() == 1
        """,
        **FOUR,
    )


def test_copies_between_devices() -> None:
    good(
        """
        import torch
        x = torch.arange(12.0, device="tpu:0").view(3, 4)
        y = x.to("tpu:1")
        assert y.device.index == 1 and torch.equal(y.cpu(), x.cpu())
        z = torch.zeros(4, 3, dtype=torch.int32, device="tpu:2")
        z.copy_(y.t(), non_blocking=True)
        assert z.cpu().tolist() == x.t().int().cpu().tolist()
        w = torch.zeros(3, 8, device="tpu:3")
        w[:, ::2].copy_(x * 2)                   # into a strided view
        assert w[:, ::2].cpu().tolist() == (x * 2).cpu().tolist() and w[:, 1::2].sum().item() == 0
        assert x.to("tpu:0") is x and x.tpu(1).device.index == 1
        with torch.tpu.device(1):
            assert x.to("tpu").device.index == 1
        c = torch.view_as_complex(torch.ones(2, 2, device="tpu:1")).conj().to("tpu:2")
        assert c.cpu().tolist() == [1 - 1j] * 2
        assert torch.equal(torch.cat([x.to("tpu:2"), y.to("tpu:2")]).cpu(), torch.cat([x.cpu()] * 2))
        m = torch.nn.Linear(4, 2).to("tpu:1")
        assert all(p.device.index == 1 for p in m.to("tpu:3").to("tpu:1").parameters())
        """,
        **FOUR,
    )


def test_mixed_devices_are_an_error_in_pytorchs_words() -> None:
    good(
        """
        import torch
        a, b = torch.ones(2, 2, device="tpu:0"), torch.ones(2, 2, device="tpu:1")
        words = "Expected all tensors to be on the same device, but found at least two devices, tpu:0 and tpu:1!"
        for f in (lambda: a + b, lambda: a @ b, lambda: torch.cat([a, b]), lambda: a.add_(b), lambda: torch.where(a > 0, a, b),
                  lambda: torch.equal(a, b), lambda: torch.nn.functional.linear(a, b), lambda: torch.add(a, a, out=b),
                  lambda: torch._foreach_add([a], [b]), lambda: torch.nn.functional.mse_loss(a, b)):
            try:
                f()
            except RuntimeError as e:
                assert words in str(e), e
            else:
                raise AssertionError("no error")
        assert (a + b[0, 0].cpu()).sum().item() == 8 and (a + b.to("tpu:0")).sum().item() == 8
        assert b[torch.tensor([1, 0])].device.index == 1     # index lists may lie on the cpu
        """,
        **FOUR,
    )


def test_each_device_has_its_own_generator_and_memory() -> None:
    good(
        """
        import torch
        torch.manual_seed(3)
        draws = [torch.rand(4, device=f"tpu:{i}").cpu() for i in range(4)]
        assert all(torch.equal(d, draws[0]) for d in draws)          # seeded alike
        torch.rand(4, device="tpu:1")
        assert not torch.equal(torch.rand(4, device="tpu:1").cpu(), torch.rand(4, device="tpu:2").cpu())
        torch.tpu.manual_seed_all(5)
        g = torch.Generator(device="tpu:2").manual_seed(9)
        assert g.device.index == 2
        r = torch.rand(3, device="tpu:2", generator=g)
        state = torch.tpu.get_rng_state_all()
        assert len(state) == 4
        torch.tpu.set_rng_state(state[0], 3)
        [torch.tpu.synchronize(i) for i in range(4)]
        before = [torch.tpu.memory_allocated(i) for i in range(4)]
        x = torch.ones(1 << 20, device="tpu:2")
        torch.tpu.synchronize(2)
        grown = [torch.tpu.memory_allocated(i) - b for i, b in enumerate(before)]
        assert grown == [0, 0, 4 << 20, 0], grown
        del x
        torch.tpu.synchronize(2)
        torch.tpu.reset_peak_memory_stats(2)
        assert torch.tpu.max_memory_allocated(2) < 4 << 20
        torch.tpu.set_per_process_memory_fraction(0.0001, 1)
        try:
            torch.ones(1 << 24, device="tpu:1")
        except torch.OutOfMemoryError as e:
            assert "tpu:1 is out of memory" in str(e)
        torch.ones(1 << 24, device="tpu:0")
        """,
        **FOUR,
    )


def test_autograd_across_devices() -> None:
    good(
        """
        import torch
        a = torch.full((3,), 2.0, device="tpu:0", requires_grad=True)
        b = torch.full((3,), 5.0, device="tpu:1", requires_grad=True)
        c = ((a * a).to("tpu:1") * b).to("tpu:3")
        (c.sum() * 2).backward()
        assert a.grad.device.index == 0 and a.grad.cpu().tolist() == [40.0] * 3      # 2 * 2a * b
        assert b.grad.device.index == 1 and b.grad.cpu().tolist() == [8.0] * 3       # 2 * a^2
        l0, l1 = torch.nn.Linear(4, 8).to("tpu:0"), torch.nn.Linear(8, 2).to("tpu:2")   # two stages
        opt = torch.optim.Adam([*l0.parameters(), *l1.parameters()], lr=0.1)
        x, t = torch.randn(16, 4), torch.randn(16, 2)
        losses = []
        for _ in range(5):
            opt.zero_grad()
            loss = (l1(l0(x.to("tpu:0")).relu().to("tpu:2")) - t.to("tpu:2")).square().mean()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        """,
        **FOUR,
    )


def test_threads_each_train_on_a_device() -> None:
    good(
        """
        import copy, threading, torch
        model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
        x, t = torch.randn(32, 6), torch.randn(32, 1)
        def train(m, device):
            m = m.to(device)
            opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
            for _ in range(8):
                opt.zero_grad()
                torch.nn.functional.mse_loss(m(x.to(device)), t.to(device)).backward()
                opt.step()
            return [p.detach().cpu() for p in m.parameters()]
        want = train(copy.deepcopy(model), "cpu")
        got = [None] * 4
        def work(i):
            torch.tpu.set_device(i)
            got[i] = train(copy.deepcopy(model), f"tpu:{i}")
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [t.start() for t in threads]; [t.join() for t in threads]
        for g in got:
            for p, q in zip(want, g):
                torch.testing.assert_close(q, p, rtol=1e-3, atol=1e-5)
        """,
        **FOUR,
    )


def test_streams_events_and_pointers_know_their_device() -> None:
    good(
        """
        import copy, io, pickle, torch
        assert torch.tpu.Stream(device=2).device.index == 2 and torch.tpu.current_stream(3).device.index == 3
        x, y = torch.arange(4.0, device="tpu:1"), torch.arange(4.0, device="tpu:2")
        for t in (x, y):
            assert pickle.loads(pickle.dumps(t)).device == t.device and copy.deepcopy(t).device == t.device
        file = io.BytesIO()
        torch.save([x, y], file); file.seek(0)
        assert [t.device.index for t in torch.load(file)] == [1, 2]
        file.seek(0)
        assert [t.device.index for t in torch.load(file, map_location={"tpu:1": "tpu:3", "tpu:2": "tpu:0"})] == [3, 0]
        """,
        **FOUR,
    )


def test_one_device_without_the_variable() -> None:
    r = run("import torch; print(torch.tpu.device_count()); torch.zeros(1, device='tpu:1')", TORCH_TPU_SIM_DEVICES="")
    assert r.status == 1 and r.out == "1\n" and "this process has 1 tpu device" in r.err
