"""Every way a program may end: quickly, with its own status, and without a word of ours."""

import functools
import signal

import pytest
from child import fake_plugin
from child import run as run_child

run = functools.partial(run_child, whole=True)

IN_FLIGHT = """
import atexit, os, signal, sys, threading, time, torch
x = torch.ones(64, 64, device="tpu")
y = x
for _ in range(300):
    y = (y @ x) / 64
"""

COMPILING = """
import atexit, ctypes, os, signal, sys, threading, time, torch
fake = ctypes.CDLL(os.environ["TORCH_TPU_PLUGIN"])
x = torch.ones(5, device="tpu")
(x + 1).cpu()
fake.fake_plugin_delay(b"PJRT_Client_Compile", ctypes.c_long(2500))
y = x * 3
"""

WAYS = {
    "the end": ("", 0),
    "sys.exit": ("sys.exit(7)", 7),
    "an exception": ("raise ValueError('as it should be')", 1),
    "KeyboardInterrupt": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(5)", 1),
    "os._exit": ("os._exit(5)", 5),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)", -signal.SIGTERM),
    "SIGTERM with a handler": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)",
        9,
    ),
    "sys.exit in a thread": ("t = threading.Thread(target=lambda: (x + 1, sys.exit(3))); t.start(); t.join()", 0),
    "a thread at work": ("threading.Thread(target=lambda: [(x + 1) for _ in range(2000)]).start()", 0),
    "tensors in globals and cycles": ("class C: pass\nc = C(); c.me = c; c.t = y; held = [c, y, x]", 0),
    "a reference from a module": ("sys.modules['kept'] = [y, x]; torch.kept = y; torch.nn.kept = [x]", 0),
}


def quiet(err: str) -> None:
    for word in ("Fatal", "terminate called", "Exception ignored", "Segmentation", "Abort", "torch_tpu", "shut down"):
        assert word not in err, err


@pytest.mark.parametrize("way", WAYS)
def test_with_work_in_flight(way: str) -> None:
    code, status = WAYS[way]
    r = run(IN_FLIGHT + code)
    if way == "KeyboardInterrupt" and r.status == -signal.SIGINT:
        status = r.status  # how Python ends after one where its parent does not ignore the signal
    assert r.status == status, (r.status, r.err)
    assert ("as it should be" in r.err) == (way == "an exception")
    quiet(r.err)


@pytest.mark.parametrize("way", ["the end", "an exception", "os._exit", "SIGTERM"])
def test_with_a_compile_in_flight(way: str) -> None:
    code, status = WAYS[way]
    r = run(COMPILING + code, TORCH_TPU_PLUGIN=fake_plugin(), TORCH_TPU_CACHE="0")
    assert r.status == status and r.seconds < 12, (r.status, r.seconds, r.err)
    quiet(r.err)


def test_handlers_at_exit_may_use_tensors() -> None:
    r = run(
        """
        import atexit, sys, torch, weakref
        x = torch.ones(4, device="tpu")
        class Late:
            def __init__(self): self.t = x * 2
            def __del__(self): print("finalized", self.t.sum().item())
        late = Late()
        atexit.register(lambda: print("handler", (x + 1).sum().item()))
        weakref.finalize(x, print, "gone")
        """
    )
    assert r.status == 0, r.err
    assert r.out.splitlines()[0] == "handler 8.0" and "finalized 8.0" in r.out
    quiet(r.err)


def test_a_handler_registered_before_the_import() -> None:
    import os
    import subprocess
    import sys

    from child import PACKAGE

    code = (
        "import atexit; atexit.register(lambda: print('handler', (x + 1).sum().item()));"
        "import torch; import torch_tpu; x = torch.ones(4, device='tpu')"
    )
    env = os.environ | {"PYTHONPATH": str(PACKAGE)}
    r = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert r.returncode == 0 and r.stdout == "handler 8.0\n", (r.returncode, r.stdout, r.stderr)
    quiet(r.stderr)


@pytest.mark.parametrize("reading", [False, True])
def test_daemon_threads(reading: bool) -> None:
    work = "y.sum().item()" if reading else "torch.tpu.synchronize()"
    for _ in range(2):
        r = run(
            f"""
            import threading, time, torch
            x = torch.ones(64, 64, device="tpu")
            def work():
                y = x
                while True:
                    y = (y @ x) / 64
                    {work}
            for _ in range(4):
                threading.Thread(target=work, daemon=True).start()
            time.sleep(0.3)
            print("end")
            """
        )
        assert r.status == 0 and r.out == "end\n", (r.status, r.err)
        quiet(r.err)


def test_a_daemon_thread_that_waits_for_a_compile() -> None:
    r = run(
        COMPILING + "threading.Thread(target=lambda: y.cpu(), daemon=True).start(); time.sleep(0.2)",
        TORCH_TPU_PLUGIN=fake_plugin(),
        TORCH_TPU_CACHE="0",
    )
    assert r.status == 0 and r.seconds < 12, (r.status, r.seconds, r.err)
    quiet(r.err)


def test_nothing_was_used() -> None:
    r = run("import torch; print('end')")
    assert r.status == 0 and r.out == "end\n" and r.err == ""


def test_programs_still_running_at_the_end() -> None:
    """Their results are dropped and the plugin computes on when the process ends: its programs' code must stay until it has."""
    r = run("""
        import torch

        @torch.compile(backend="tpu", dynamic=False)
        def f(x):
            for _ in range(4):
                x = x @ x / 700
            return x

        x = torch.ones(700, 700, device="tpu")
        x = f(f(x))
        torch.tpu.synchronize()
        for _ in range(20):
            x = f(x)
        print("end")
    """)
    assert (r.status, r.out) == (0, "end\n"), r.err
