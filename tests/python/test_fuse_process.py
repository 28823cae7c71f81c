"""DeferAndFuse from outside: every way to end with an open trace, forks, Ctrl-C, compiles nobody waits for, memory.

Each case runs in a process of its own (child.py).
"""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from child import PACKAGE, fake_plugin
from child import good as good_child
from child import run as run_child
from test_robust import CTRL_C

# Children have imported us before they are given the variable.
ALL_FUSE = "import torch_tpu._mode\ntorch_tpu._mode.follow_environment()\n"


def good(code):
    return good_child(ALL_FUSE + textwrap.dedent(code), TORCH_TPU_DEFER_AND_FUSE="1")


def test_a_trace_does_not_stay_open_for_ever():
    """What was called runs though nobody asks for it."""
    good(
        """
        import time, torch
        x = torch.ones(4, device="tpu")
        torch.tpu.flush()
        before = torch.tpu.fuse_stats()["runs"]
        y = x + 1
        end = time.monotonic() + 10
        while torch.tpu.fuse_stats()["runs"] == before and time.monotonic() < end:
            time.sleep(0.01)
        stats = torch.tpu.fuse_stats()
        assert stats["cuts"]["idle"] >= 1, stats
        assert y.tolist() == [2] * 4
        """
    )


def test_the_environment_asks_for_it():
    code = """
import threading, torch
def tell(): print(torch.tpu.eager_mode)
tell()
t = threading.Thread(target=tell)
t.start()
t.join()
"""
    env = os.environ | {"PYTHONPATH": str(PACKAGE), "TORCH_TPU_DEFER_AND_FUSE": "1"}
    r = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert r.stdout.split() == ["EagerMode.FUSE"] * 2 and r.stderr == "", r


# --------------------------------------------------------------------------------------------------------- ends

OPEN = """
import os, signal, sys, threading, time, torch
x = torch.ones(64, 64, device="tpu")
for _ in range(3):
    y = ((x @ x) / 64).tanh()
    torch.tpu.flush()
z = y + 1
w = (z @ x).relu_()
"""
WAYS = {
    "the end": ("", 0),
    "sys.exit": ("sys.exit(7)", 7),
    "an exception": ("raise ValueError('as it should be')", 1),
    "os._exit": ("os._exit(5)", 5),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)", -signal.SIGTERM),
    "a thread at work": ("threading.Thread(target=lambda: [(x + 1) for _ in range(2000)]).start()", 0),
    "references in a cycle": ("class C: pass\nc = C(); c.me = c; c.t = w", 0),
}


@pytest.mark.parametrize("way", WAYS)
def test_exit_with_an_open_trace(way):
    code, status = WAYS[way]
    r = run_child(ALL_FUSE + OPEN + code, whole=True, TORCH_TPU_DEFER_AND_FUSE="1")
    assert r.status == status, (r.status, r.err)
    assert ("as it should be" in r.err) == (way == "an exception")
    for word in ("Fatal", "terminate called", "Exception ignored", "Segmentation", "Abort", "torch_tpu"):
        assert word not in r.err, r.err


# The fake plugin does nothing, slowly if told to.
FAKE = """
import ctypes, os, signal, sys, threading, time, torch
fake = ctypes.CDLL(os.environ["TORCH_TPU_PLUGIN"])
def slow(call, ms): fake.fake_plugin_delay(call.encode(), ctypes.c_long(ms))
x = torch.ones(5, device="tpu")
torch.tpu.flush()
def step():
    y = (x + 1) * 2
    torch.tpu.flush()
    return y
step()
torch.tpu.synchronize()
"""


def with_fake(code, whole=False):
    env = {"TORCH_TPU_PLUGIN": fake_plugin(), "TORCH_TPU_CACHE": "0", "TORCH_TPU_DEFER_AND_FUSE": "1"}
    r = run_child(ALL_FUSE + FAKE + code, whole=whole, **env)
    assert r.status == 0, (r.status, r.out, r.err)
    assert "Exception ignored" not in r.err and "Fatal" not in r.err, r.err
    return r


def test_exit_while_a_fused_program_is_compiled():
    r = with_fake("slow('PJRT_Client_Compile', 2500); step(); print(torch.tpu.fuse_stats()['compiling'])", whole=True)
    assert r.out == "1\n" and r.seconds < 12, (r.out, r.seconds)


def test_nobody_waits_for_a_fused_program():
    """Not the caller, and not a read: until it is ready calls run one by one."""
    r = with_fake(
        """
slow("PJRT_Client_Compile", 2000)
began = time.monotonic()
for _ in range(5):
    step().cpu()
took = time.monotonic() - began
assert torch.tpu.fuse_stats()["compiling"] == 1, torch.tpu.fuse_stats()
torch.tpu.compiler.wait()
assert time.monotonic() - began > 1.5 and torch.tpu.fuse_stats()["compiling"] == 0
before = torch.tpu.fuse_stats()["hits"]
step().cpu()
assert torch.tpu.fuse_stats()["hits"] == before + 1
print(took)
"""
    )
    assert float(r.out) < 1.0


def test_ctrl_c_in_a_wait_for_fused_programs():
    with_fake(
        CTRL_C
        + """
slow("PJRT_Client_Compile", 3000)
step()
raised(torch.tpu.compiler.wait)
slow("PJRT_Client_Compile", 0)
torch.tpu.compiler.wait()
assert step().cpu().tolist() == [0] * 5
"""
    )


def test_ctrl_c_while_a_fused_program_runs():
    good(
        "import os, signal, threading, time, torch"
        + CTRL_C
        + """
torch.manual_seed(0)
a = torch.randn(1024, 1024, device="tpu") / 32
def work(n):
    b = a
    for _ in range(n):
        b = b @ a
    return b
for _ in range(3):
    got = work(24).cpu()
    torch.tpu.compiler.wait()
began = time.monotonic()
work(24).cpu()
each = (time.monotonic() - began) / 24
raised(lambda: work(int(1.5 / each))[0, 0].item(), 0.3, 30)
torch.testing.assert_close(work(24).cpu(), got)
""",
    )


def test_fork_with_an_open_trace():
    good(
        """
        import os, torch
        x = torch.ones(3, device="tpu")
        for _ in range(3):
            y = (x + 1) * 2
            torch.tpu.flush()
        y = (x + 1) * 2
        pid = os.fork()
        if pid == 0:
            said = 0
            for f in (lambda: x + 1, lambda: y.cpu(), torch.tpu.flush, torch.tpu.synchronize):
                try:
                    f()
                except RuntimeError as e:
                    said += "forked after it was opened" in str(e)
            os._exit(said)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 4, status
        assert y.tolist() == [4] * 3
        """
    )


def test_a_trace_holds_no_more_memory_than_it_may():
    """Results that nobody holds are kept by the trace until it is cut, and it is cut before they are many."""
    good(
        """
        import resource, torch
        def resident(): return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20
        x = torch.ones(4 << 20, device="tpu")   # 16 MiB
        torch.tpu.synchronize()
        before, peak = resident(), 0
        y = x
        for i in range(300):
            y = (y + 1).clamp_(max=50 + i % 7) if i % 3 else y * 0.5
            peak = max(peak, resident())
        want = torch.ones(())
        for i in range(300):
            want = (want + 1).clamp_(max=50 + i % 7) if i % 3 else want * 0.5
        torch.testing.assert_close(y[0].cpu(), want)
        print(torch.tpu.fuse_stats(), before, peak)
        assert peak - before < 3000, (before, peak)
        """,
    )


def test_out_of_memory_is_told_and_nothing_is_lost():
    good(
        """
        import torch
        x = torch.ones(1 << 20, device="tpu")
        torch.tpu.synchronize()
        torch.tpu.set_per_process_memory_fraction(1e-9 + (40 << 20) / torch.tpu.mem_get_info()[1])
        kept = []
        try:
            for i in range(40):
                kept.append(x + i)
            torch.tpu.synchronize()
        except torch.tpu.OutOfMemoryError as e:
            print("told")
        else:
            raise AssertionError("not told")
        n = len(kept)
        first = kept[0]
        kept.clear()
        assert first[0].item() == 1 and n > 3
        assert (x + 1)[5].item() == 2
        """
    )
