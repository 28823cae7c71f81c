"""What goes wrong outside is one clear Python error, and nothing is lost: plugins, caches, memory, forks, Ctrl-C, threads.

Each case runs in a process of its own (child.py). Cases that need something to be slow use the fake plugin, which computes zeros.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch
from child import PACKAGE, fake_plugin, good, run

# The child tells the fake plugin what to do.
FAKE = """
import ctypes, os, signal, threading, time, torch
fake = ctypes.CDLL(os.environ["TORCH_TPU_PLUGIN"])
fake.fake_plugin_count.restype = fake.fake_plugin_live.restype = ctypes.c_long
def slow(call, ms): fake.fake_plugin_delay(call.encode(), ctypes.c_long(ms))
def count(call): return fake.fake_plugin_count(call.encode())
"""


def with_fake(code: str, timeout: float = 60, **env: str) -> str:
    import textwrap

    return good(FAKE + textwrap.dedent(code), timeout, TORCH_TPU_PLUGIN=fake_plugin(), TORCH_TPU_CACHE="0", **env)


# --------------------------------------------------------------------------------------------------------------- plugins

SAYS = """
import torch
try:
    torch.zeros(1, device="tpu")
except RuntimeError as e:
    print(e)
assert (torch.ones(2) + 1).sum().item() == 4    # the cpu goes on
"""


@pytest.mark.parametrize("variable", ["TORCH_TPU_PLUGIN", "TPU_LIBRARY_PATH"])
def test_a_path_that_is_no_plugin(variable: str, tmp_path: pathlib.Path) -> None:
    text, cut = tmp_path / "text.so", tmp_path / "cut.so"
    text.write_text("no library\n")
    library = next(p for p in PACKAGE.glob("torch_tpu/lib/libttc.so"))
    cut.write_bytes(library.read_bytes()[:5000])
    for path, words in (
        (tmp_path / "missing.so", "no such file"),
        (tmp_path, "not a file"),
        (text, "cannot be loaded as a PJRT plugin"),
        (cut, "is cut short"),
        (library, "no PJRT plugin: it has no function GetPjrtApi"),
    ):
        out = good(SAYS, **{variable: str(path)})
        assert words in out and str(path) in out, out


def test_a_plugin_that_is_too_old_or_of_another_major_version() -> None:
    out = good(SAYS, TORCH_TPU_PLUGIN=fake_plugin(), FAKE_PLUGIN_MINOR="40")
    assert "speaks PJRT 0.40, which is too old; use a plugin with 0.54 or newer" in out
    out = good(SAYS, TORCH_TPU_PLUGIN=fake_plugin(), FAKE_PLUGIN_MAJOR="7")
    assert "speaks PJRT 7." in out and "Use another plugin" in out


def test_a_torch_of_another_minor_version() -> None:
    code = "import torch; torch.__version__ = '2.99.1'; import torch_tpu"
    env = os.environ | {"PYTHONPATH": str(PACKAGE), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    r = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert r.returncode == 1
    last = r.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError") and "this is PyTorch 2.99.1" in last and "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in last


def test_imported_twice_and_reloaded() -> None:
    good(
        """
        import importlib, sys, torch, torch_tpu
        x = torch.ones(3, device="tpu")
        importlib.reload(torch_tpu)
        del sys.modules["torch_tpu"]
        import torch_tpu as again
        assert again._C is torch_tpu._C
        assert (x + torch.ones(3, device="tpu")).sum().item() == 6
        """
    )


# ---------------------------------------------------------------------------------------------------------------- caches

WORK = """
import torch, warnings
x = torch.arange(6.0, device="tpu").view(2, 3)
y = (x * 2 + 1).tanh() @ x.t()
c = torch.arange(6.0).view(2, 3)
torch.testing.assert_close(y.cpu(), (c * 2 + 1).tanh() @ c.t())
from torch_tpu import _C
s = _C.stats(0)
print(s["programs_compiled"], s["programs_loaded"], s["cache_errors"])
"""


def numbers(out: str) -> list[int]:
    return [int(v) for v in out.split()]


def test_damaged_cache_files_are_compiled_anew(tmp_path: pathlib.Path) -> None:
    env = {"TORCH_TPU_CACHE_DIR": str(tmp_path / "cache")}
    compiled, loaded, errors = numbers(good(WORK, **env))
    assert compiled > 2 and loaded == 0 and errors == 0
    assert numbers(good(WORK, **env)) == [0, compiled, 0]
    files = [p for p in (tmp_path / "cache").glob("??/*") if len(p.name) == 64]
    assert len(files) == compiled

    whole = {p: p.read_bytes() for p in files}
    damages = {
        "cut": lambda p: whole[p][: len(whole[p]) // 2],
        "a bit": lambda p: whole[p][:-40] + bytes([whole[p][-40] ^ 4]) + whole[p][-39:],
        "empty": lambda p: b"",
        "another program's": lambda p: whole[files[files.index(p) - 1]],
    }
    for name, damage in damages.items():
        for p in files:
            p.write_bytes(damage(p))
        assert numbers(good(WORK, **env)) == [compiled, 0, compiled], name
    assert numbers(good(WORK, **env)) == [0, compiled, 0]  # written anew


def test_a_cache_directory_that_cannot_be_used(tmp_path: pathlib.Path) -> None:
    open_to_all, file = tmp_path / "open", tmp_path / "file"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    file.write_text("")
    for path, words in ((open_to_all, "others may write to"), (file, "cannot use"), (file / "below", "cannot use")):
        r = run(WORK, TORCH_TPU_CACHE_DIR=str(path), TORCH_TPU_SIM_DEVICES="2")
        assert r.status == 0, r.err
        assert r.err.count(words) == 1 and str(path) in r.err, r.err
        assert numbers(r.out)[2] >= 1
    assert not list(open_to_all.iterdir())  # nothing is read from or written to it


def test_a_missing_cache_directory_is_made_private(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a" / "b" / "cache"
    good(WORK, TORCH_TPU_CACHE_DIR=str(path))
    assert path.stat().st_mode & 0o777 == 0o700 and list(path.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_read_only_cache_directory_and_no_more_threads(tmp_path: pathlib.Path) -> None:
    for p in [tmp_path, *tmp_path.parents]:
        if p.stat().st_mode & 0o005 != 0o005:
            p.chmod(p.stat().st_mode | 0o005)
    shut = tmp_path / "shut"
    shut.mkdir()
    os.chown(shut, 65534, 65534)
    shut.chmod(0o500)
    imports = "import os, resource, torch.fx.experimental.symbolic_shapes\n"
    nobody = imports + "os.setgid(65534); os.setuid(65534); os.environ['HOME'] = '/nonexistent'\n"
    r = run(nobody + WORK, TORCH_TPU_CACHE_DIR=str(shut))
    assert r.status == 0, r.err
    assert numbers(r.out)[0] > 2 and not list(shut.iterdir())
    # No more threads from the moment the device is open: an error or the right numbers, but the process lives.
    out = good(
        nobody
        + """
import resource, torch
x = torch.ones(2, device="tpu")
torch.tpu.synchronize()
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    print((x * 3).sum().item())
except RuntimeError as e:
    print(e)
print((torch.ones(2) + 1).sum().item())
""",
        TORCH_TPU_CACHE="0",
    )
    assert out.splitlines()[0] == "6.0" or "no thread could be started" in out
    assert out.splitlines()[-1] == "4.0"


def test_a_full_disk(tmp_path: pathlib.Path) -> None:
    """No file may grow beyond some bytes: writing into the cache fails half-way."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
    path = tmp_path / "cache"
    r = run(limit + WORK, TORCH_TPU_CACHE_DIR=str(path))
    assert r.status == 0, r.err
    compiled, loaded, errors = numbers(r.out)
    assert compiled > 2 and loaded == 0 and errors > 0
    assert not [p for p in path.glob("??/*") if p.suffix == ".tmp"]
    assert numbers(good(WORK, TORCH_TPU_CACHE_DIR=str(path)))[0] == compiled  # no half file is taken for a program
    shutil.rmtree(path)


def test_no_more_file_descriptors() -> None:
    out = good(
        """
        import resource, torch
        x = torch.ones(2, device="tpu")
        (x + 1).cpu()
        import os
        used = max(int(f) for f in os.listdir("/proc/self/fd"))
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, before[1]))
        print((x * 3 - 1).sum().item())      # compiled, though no cache file can be opened
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        """
    )
    assert out == "4.0\n"
    r = run("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n" + SAYS)
    assert r.status == 0 and ("Too many open files" in r.out or r.out == ""), (r.out, r.err)


def test_little_address_space() -> None:
    r = run(
        """
        import resource, torch
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))
        try:
            torch.zeros(1, device="tpu")
        except RuntimeError as e:
            print("error:", e)
        """
    )
    assert r.status == 0 and r.out.startswith("error: "), (r.status, r.out, r.err)
    good(
        """
        import resource, torch
        a = torch.ones(1000, device="tpu")
        (a + 1).cpu()
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), used + (300 << 20)))
        for f in (lambda: torch.zeros(1 << 28, device="tpu").sum().item(), lambda: torch.ones(1 << 27).to("tpu").cpu()):
            try:
                f()
            except (torch.OutOfMemoryError, RuntimeError, MemoryError) as e:
                pass
        assert (a + 1).sum().item() == 2000
        """
    )


# ---------------------------------------------------------------------------------------------------------------- memory


def test_a_tensor_of_4_tib_is_an_error() -> None:
    good(
        """
        import torch
        assert torch.tpu.OutOfMemoryError is torch.OutOfMemoryError
        x = torch.ones(1 << 20, device="tpu")
        kept = torch.full((1 << 18,), 7.0, device="tpu")
        host = torch.ones(1)
        cases = {
            "empty": lambda: torch.empty(1 << 40, device="tpu"),
            "zeros": lambda: torch.zeros(1 << 40, device="tpu"),
            "full": lambda: torch.full((1 << 20, 1 << 20), 3.0, device="tpu"),
            "rand": lambda: torch.rand(1 << 40, device="tpu"),
            "outer": lambda: torch.outer(x, x),
            "broadcast": lambda: x.view(-1, 1) + x,
            "matmul": lambda: x.view(-1, 1) @ x.view(1, -1),
            "contiguous": lambda: x.expand(1 << 20, 1 << 20).contiguous(),
            "repeat": lambda: x.repeat(1 << 20),
            "arange": lambda: torch.arange(1 << 40, device="tpu"),
            "to": lambda: host.expand(1 << 40).to("tpu"),
            "resize": lambda: torch.empty(0, device="tpu").resize_(1 << 40),
            "eye": lambda: torch.eye(1 << 20, device="tpu"),
            "new": lambda: x.new_zeros(1 << 42, dtype=torch.int8),
            "out": lambda: torch.add(x.view(-1, 1), x, out=torch.empty(0, device="tpu")),
            "strided": lambda: torch.empty_strided((2, 2), (1 << 40, 1), device="tpu"),
            "most": lambda: torch.empty((1 << 61) - 1, device="tpu", dtype=torch.int8),
        }
        for name, f in cases.items():
            try:
                f()
            except torch.OutOfMemoryError as e:
                text = str(e)
                assert "tpu:0 is out of memory" in text and "Held: " in text and "allowed: " in text, (name, text)
                if name in ("empty", "outer", "matmul"):
                    assert "4.00 TiB: f32[" in text and "Largest: 4.00 MiB in 1 x f32[1048576] from " in text, text
            except (RuntimeError, MemoryError) as e:
                assert name == "to" and "CPUAllocator" in str(e), (name, e)
            else:
                raise AssertionError(name)
        assert x.sum().item() == 1 << 20 and kept[5].item() == 7
        """
    )


def test_a_limit_and_going_on() -> None:
    good(
        """
        import torch
        torch.tpu.set_per_process_memory_fraction(1.0)
        assert torch.tpu.get_per_process_memory_fraction() == 1
        total = torch.tpu.get_device_properties().total_memory
        torch.tpu.set_per_process_memory_fraction((64 << 20) / total)
        assert abs(torch.tpu.get_per_process_memory_fraction() * total - (64 << 20)) < 100
        held, n = [], 0
        try:
            while n < 100:
                held.append(torch.full((1 << 20,), float(n), device="tpu"))
                n += 1
        except torch.OutOfMemoryError as e:
            text = str(e)
        assert 12 <= n <= 16, n
        assert "asks for 4.00 MiB: f32[1048576]" in text and "allowed: 64.00 MiB" in text, text
        assert all(h[3].item() == k for k, h in enumerate(held))
        for _ in range(3):                       # no matter how often
            try:
                held[0] + held[1]; held[0].new_empty(1 << 22); raise AssertionError
            except torch.OutOfMemoryError:
                pass
        held[0].mul_(2).add_(1)                  # in place there is room
        assert held[0][0].item() == 1
        del held[4:]
        assert (held[1] + held[2])[9].item() == 3
        for bad in (-0.1, 1.5):
            try:
                torch.tpu.set_per_process_memory_fraction(bad); raise AssertionError
            except ValueError:
                pass
        y = held[1]
        for _ in range(200):                     # temporaries come and go without an error, though nobody reads
            y = y * 0.5 + held[2]
        assert abs(y[0].item() - 4) < 1e-3
        """
    )


def test_running_out_in_a_training_step_loses_nothing() -> None:
    good(
        """
        import copy, torch
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).to("tpu")
        opt = torch.optim.AdamW(model.parameters())
        def step(n):
            opt.zero_grad()
            x = torch.randn(n, 256, device="tpu")
            model(x).square().mean().backward()
            opt.step()
        step(8)
        before = [p.detach().cpu() for p in model.parameters()]
        torch.tpu.set_per_process_memory_fraction((96 << 20) / torch.tpu.get_device_properties().total_memory)
        for _ in range(3):
            try:
                step(1 << 16)
                raise AssertionError
            except torch.OutOfMemoryError:
                opt.zero_grad()
        torch.tpu.synchronize()
        for p, q in zip(model.parameters(), before):
            assert torch.equal(p.detach().cpu(), q)
        step(8)
        assert all(p.detach().isfinite().all().item() for p in model.parameters())
        torch.tpu.empty_cache()
        """
    )


@pytest.mark.parametrize(("value", "nbyte"), [("1M", 1 << 20), ("2097152", 2 << 20), ("1.5G", 3 << 29)])
def test_the_limit_as_a_variable(value: str, nbyte: int) -> None:
    out = good(
        """
        import torch
        from torch_tpu import _C
        torch.empty(1, device="tpu")
        print(_C.stats(0)["limit_bytes"])
        try:
            torch.zeros(1 << 30, device="tpu")
        except torch.tpu.OutOfMemoryError:
            print("full")
        """,
        TORCH_TPU_MEMORY_LIMIT=value,
    )
    assert out == f"{nbyte}\nfull\n"


@pytest.mark.parametrize("value", ["much", "-1", "0", "12Q", "1GB", "nan"])
def test_a_bad_limit_is_an_error(value: str) -> None:
    assert f"TORCH_TPU_MEMORY_LIMIT={value}: expected bytes" in good(SAYS, TORCH_TPU_MEMORY_LIMIT=value)


def test_no_memory_at_a_launch_surfaces_where_it_is_read() -> None:
    with_fake(
        """
        x = torch.ones(8, device="tpu")
        (x + 1).cpu()
        for read in (lambda y: y.cpu(), lambda y: torch.tpu.synchronize()):
            fake.fake_plugin_starve(b"PJRT_LoadedExecutable_Execute", ctypes.c_long(2))   # the retry too
            y = x + 1
            try:
                read(y)
                raise AssertionError
            except torch.OutOfMemoryError as e:
                assert "add" in str(e) and "made to starve" in str(e) and "Held:" in str(e), e
            fake.fake_plugin_starve(b"PJRT_LoadedExecutable_Execute", ctypes.c_long(1))   # the retry helps
            read(x + 1)
        """
    )


# ----------------------------------------------------------------------------------------------------------------- mixed


def test_cpu_tensors_among_the_arguments() -> None:
    good(
        """
        import torch
        a, b = torch.ones(2, 2, device="tpu"), torch.ones(2, 2)
        words = "Expected all tensors to be on the same device, but found at least two devices, tpu:0 and cpu!"
        for f in (lambda: a + b, lambda: a @ b, lambda: a.add_(b), lambda: torch.cat([a, b]), lambda: torch.where(a > 0, a, b),
                  lambda: torch.nn.functional.linear(a, b), lambda: torch.nn.functional.cross_entropy(a, torch.tensor([0, 1]))):
            try:
                f()
            except RuntimeError as e:
                assert words in str(e), e
            else:
                raise AssertionError("no error")
        assert (a + torch.tensor(2.0)).sum().item() == 12
        """
    )


# ----------------------------------------------------------------------------------------------------------------- forks


def test_use_after_fork_is_an_error() -> None:
    good(
        """
        import multiprocessing, os, torch
        x = torch.ones(3, device="tpu")
        (x + 1).cpu()
        def child(queue):
            said = []
            for f in (lambda: x + 1, lambda: x.cpu(), lambda: torch.ones(2, device="tpu"),
                      torch.tpu.synchronize, lambda: x.to("cpu")):
                try:
                    f()
                except RuntimeError as e:
                    said.append("forked after it was opened" in str(e))
            queue.put((said, (torch.ones(100, 100) @ torch.ones(100)).sum().item()))
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        p = context.Process(target=child, args=(queue,))
        p.start()
        said = queue.get()
        assert said == ([True] * 5, 1e4), said
        p.join(20)
        assert p.exitcode == 0
        assert (x + 1).sum().item() == 6
        """
    )


def test_loader_workers_that_fork_keep_to_the_cpu() -> None:
    good(
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        model = torch.nn.Linear(4, 2).to("tpu")
        data = TensorDataset(torch.arange(64.0).view(16, 4))
        for epoch in range(2):
            for (x,) in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork"):
                y = model(x.to("tpu")).sum()      # work in flight while the next workers fork
        assert y.isfinite().item()
        """
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_their_own(method: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "import multiprocessing as m\nimport torch, torch_tpu\n"
        "def work(n): return (torch.ones(n, device='tpu') * 2).sum().item()\n"
        "if __name__ == '__main__':\n"
        "    assert work(1) == 2\n"
        f"    with m.get_context('{method}').Pool(1) as pool: assert pool.map(work, [1, 2, 3]) == [2, 4, 6]\n"
    )
    env = os.environ | {"PYTHONPATH": str(PACKAGE)}
    subprocess.run([sys.executable, file], env=env, check=True, timeout=120)


# ---------------------------------------------------------------------------------------------------------------- Ctrl-C

# Sends SIGINT to this process in a while; raised() checks that f raises KeyboardInterrupt at once when it arrives.
CTRL_C = """
def raised(f, after=0.4, within=1.0):
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    try:
        f()
    except KeyboardInterrupt as e:
        took = time.monotonic() - began
        assert e.__context__ is None and after * 0.8 <= took < after + within, (took, e.__context__)
        return
    raise AssertionError("not interrupted")
"""


def test_ctrl_c_during_a_compile() -> None:
    with_fake(
        CTRL_C
        + """
x = torch.ones(5, device="tpu")
slow("PJRT_Client_Compile", 2000)
y = x + 1
raised(lambda: y.cpu())
raised(lambda: y.sum().item(), 0.1)
raised(torch.tpu.synchronize, 0.1)
raised(lambda: torch.accelerator.synchronize(), 0.1)
slow("PJRT_Client_Compile", 0)
assert y.cpu().tolist() == [0] * 5              # nothing was lost (the fake plugin computes zeros)
z = x * 3
assert z.cpu().tolist() == [0] * 5
torch.tpu.synchronize()
"""
    )


def test_ctrl_c_while_the_queue_is_full() -> None:
    with_fake(
        CTRL_C
        + """
x = torch.ones(5, device="tpu")
(x + 1).cpu()
slow("PJRT_Client_Compile", 3000)
y = x * 2                                        # everything queues up behind this
done = 0
def fill():
    global done
    while done < 100_000:
        x.add_(1)
        done += 1
raised(fill, 0.8)
slow("PJRT_Client_Compile", 0)
assert 1000 < done < 2100, done
before = count("PJRT_LoadedExecutable_Execute")
torch.tpu.synchronize()
assert count("PJRT_LoadedExecutable_Execute") - before >= done      # queued work is not lost
assert (x + 1).cpu().tolist() == [0] * 5
"""
    )


def test_ctrl_c_during_a_long_wait() -> None:
    good(
        "import os, signal, threading, time, torch"
        + CTRL_C
        + """
torch.manual_seed(0)
a = torch.randn(1536, 1536, device="tpu") / 40
(a @ a).cpu()
began = time.monotonic()
(a @ a)[0, 0].item()
one = time.monotonic() - began
def chain(seconds):
    y = a
    for _ in range(max(4, int(seconds / one))):
        y = a @ y
    return y
y = chain(3)
raised(lambda: y[0, 0].item(), 0.3)
raised(torch.tpu.synchronize, 0.1)
assert y.isfinite().all().item()
torch.testing.assert_close((a @ a).cpu(), a.cpu() @ a.cpu(), rtol=1e-3, atol=1e-3)
""",
        120,
    )


def test_a_handler_may_use_the_device_and_raise_what_it_likes() -> None:
    with_fake(
        """
        x = torch.ones(4, device="tpu")
        (x + 1).cpu()
        slow("PJRT_Client_Compile", 1500)
        seen = []
        def use(*_):
            seen.append((x + 1).cpu().tolist())
            torch.tpu.synchronize()
            seen.append("done")
        def stop(*_):
            raise TimeoutError("enough")
        signal.signal(signal.SIGALRM, use)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        y = x * 7
        began = time.monotonic()
        assert y.cpu().tolist() == [0] * 4
        assert seen == [[0] * 4, "done"]
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        began = time.monotonic()
        try:
            (x / 3).cpu()
            raise AssertionError
        except TimeoutError as e:
            assert str(e) == "enough" and time.monotonic() - began < 1
        slow("PJRT_Client_Compile", 0)
        assert (x / 3).cpu().tolist() == [0] * 4
        """
    )


# --------------------------------------------------------------------------------------------------------------- threads


def test_200_threads() -> None:
    good(
        """
        import threading, torch
        shared = torch.arange(64.0, device="tpu")
        wrong = []
        def work(i):
            try:
                x = shared + i
                for k in range(20):
                    x = (x * 2 - shared).relu() if k % 2 else x.add(1)
                    if k % 7 == i % 7:
                        x.sum().item()
                want = torch.arange(64.0) + i
                for k in range(20):
                    want = (want * 2 - torch.arange(64.0)).relu() if k % 2 else want.add(1)
                if not torch.allclose(x.cpu(), want):
                    wrong.append(i)
            except Exception as e:
                wrong.append(e)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(200)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert not wrong, wrong[:3]
        """,
        120,
    )


def test_a_thread_killed_by_an_exception_leaves_its_work_to_be_done() -> None:
    good(
        """
        import threading, torch
        threading.excepthook = lambda args: None
        x = torch.zeros(1000, device="tpu")
        def work():
            local = x + 5
            for _ in range(300):
                x.add_(1)
                local = local * 2
            raise ValueError("dies")
        t = threading.Thread(target=work)
        t.start(); t.join()
        assert x.sum().item() == 300_000
        torch.tpu.synchronize()
        """
    )


def test_collections_and_finalizers_in_the_midst_of_calls() -> None:
    good(
        """
        import gc, torch, weakref
        gc.set_threshold(1, 1, 1)
        x = torch.ones(16, device="tpu")
        ran = []
        class Node:
            def __init__(self, k):
                self.me, self.t = self, x * k                 # a cycle: only a collection frees it
            def __del__(self):
                ran.append((self.t + 1).sum().item())         # uses the device, from wherever the collection started
        for k in range(60):
            Node(float(k))
            weakref.finalize(y := x + k, lambda: ran.append((x - 1).abs().sum().item()))
            del y
            (x * 2 + k).sum()
        gc.collect()
        torch.tpu.synchronize()
        assert len(ran) == 120, len(ran)
        assert sorted(v for v in ran if v) == [16.0 * (k + 1) for k in range(60)]
        y = x
        for _ in range(500):
            y = y + 1
            z = y * 2
            del z                                             # while it is queued
        held = [x + k for k in range(300)]
        del held
        assert y.sum().item() == 16 * 501
        """
    )


def test_a_very_deep_graph() -> None:
    good(
        """
        import torch
        x = torch.ones(4, device="tpu", requires_grad=True)
        y = x
        for _ in range(20_000):
            y = y + 1
        y.sum().backward()
        assert x.grad.cpu().tolist() == [1] * 4 and y[0].item() == 20_001
        del y
        """,
        120,
    )


def test_an_error_of_a_launch_is_told_once_and_the_device_goes_on() -> None:
    with_fake(
        """
        x = torch.ones(6, device="tpu")
        (x + 1).cpu()
        fake.fake_plugin_fail(b"PJRT_LoadedExecutable_Execute", ctypes.c_long(1))
        y = x + 1
        z = y + 1                                     # reads what failed
        for bad in (z, y):
            try:
                bad.cpu()
                raise AssertionError
            except RuntimeError as e:
                assert not isinstance(e, torch.OutOfMemoryError) and "add" in str(e) and "made to fail" in str(e)
        torch.tpu.synchronize()                       # told already
        assert (x + 1).cpu().tolist() == [0] * 6
        """
    )


def test_the_fork_of_this_test_process_is_not_disturbed() -> None:
    """The child server must not have opened a device in the process that runs the tests."""
    assert torch.tpu._is_in_bad_fork() is False
