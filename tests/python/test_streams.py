"""Streams and events: what they order, tell, wait for and time."""

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from child import good

N = 768


def long_work(x: torch.Tensor, n: int = 8) -> torch.Tensor:
    """Tens of milliseconds of products, which run after the calls have returned."""
    y = x
    for _ in range(n):
        y = (y @ x) * 0.01
    return y


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    x = torch.randn(N, N).to("tpu")
    long_work(x)
    torch.tpu.synchronize()
    return x


def event() -> torch.Event:
    return torch.tpu.Event(enable_timing=True)


def test_recording_and_asking_do_not_wait(x: torch.Tensor) -> None:
    start, end = event(), event()
    assert start.query()  # never recorded: nothing to wait for
    t0 = time.perf_counter()
    start.record()
    y = long_work(x)
    end.record()
    issued = time.perf_counter() - t0
    assert not end.query()
    assert not torch.tpu.current_stream().query()
    assert time.perf_counter() - t0 < issued + 0.05
    end.synchronize()
    took = (time.perf_counter() - t0) * 1e3
    assert end.query() and start.query()
    assert torch.tpu.current_stream().query()
    assert 0 < start.elapsed_time(end) <= took
    assert start.elapsed_time(end) > took / 2
    assert end.elapsed_time(start) == -start.elapsed_time(end)
    assert y.isfinite().all()


@pytest.mark.parametrize("how", ["device", "stream", "event", "accelerator"])
def test_results_nobody_holds_are_waited_for(x: torch.Tensor, how: str) -> None:
    torch.tpu.synchronize()
    done = event()
    del_me = long_work(x)
    done.record()
    del del_me
    gc.collect()
    if how == "device":
        torch.tpu.synchronize()
    elif how == "stream":
        torch.tpu.current_stream().synchronize()
    elif how == "event":
        done.synchronize()
    else:
        torch.accelerator.synchronize()
    assert done.query()
    assert torch.tpu.current_stream().query()


def test_times_add_up(x: torch.Tensor) -> None:
    marks = [event() for _ in range(4)]
    y = x
    for mark in marks:
        mark.record()
        y = long_work(y, 4)
    last = event()
    last.record()
    last.synchronize()
    marks.append(last)
    steps = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    assert all(t > 0 for t in steps)
    assert sum(steps) == pytest.approx(marks[0].elapsed_time(last), abs=1e-3)


def test_errors_of_asking_too_early(x: torch.Tensor) -> None:
    a, b, untimed = event(), event(), torch.tpu.Event()
    a.record()
    with pytest.raises((RuntimeError, ValueError), match="recorded"):
        a.elapsed_time(b)
    long_work(x)
    b.record()
    with pytest.raises((RuntimeError, ValueError), match="completed"):
        a.elapsed_time(b)
    b.synchronize()
    untimed.record()
    untimed.synchronize()
    with pytest.raises((RuntimeError, ValueError), match="enable_timing"):
        untimed.elapsed_time(b)


def test_recording_again_moves_the_point(x: torch.Tensor) -> None:
    e = event()
    e.record()
    e.synchronize()
    long_work(x)
    e.record()
    assert not e.query()
    e.synchronize()
    assert e.query()


def test_streams_wait_for_each_other(x: torch.Tensor) -> None:
    side = torch.tpu.Stream()
    assert side != torch.tpu.default_stream() and side == torch.Stream(
        stream_id=side.stream_id, device_index=side.device_index, device_type=side.device_type
    )
    with torch.tpu.stream(side):
        y = long_work(x)
        e = side.record_event()
    torch.tpu.current_stream().wait_event(e)
    torch.tpu.current_stream().wait_stream(side)
    e.wait()
    z = y + 1
    y.record_stream(torch.tpu.current_stream())
    torch.testing.assert_close(z.cpu(), y.cpu() + 1)
    with side:  # a torch.Stream is a context manager too
        assert torch.tpu.current_stream() == side
    assert torch.tpu.current_stream() == torch.tpu.default_stream()
    assert not torch.tpu.is_current_stream_capturing()


def test_generic_stream_and_event(x: torch.Tensor) -> None:
    s = torch.Stream(device="tpu")
    assert s.device == torch.device("tpu:0")
    e = torch.Event(device="tpu", enable_timing=True)
    s.record_event(e)
    e.synchronize()
    assert e.query() and s.query()
    s.synchronize()
    torch.accelerator.set_stream(s)
    assert torch.accelerator.current_stream() == s
    torch.accelerator.set_stream(torch.tpu.default_stream())


def test_many_threads_record_and_wait(x: torch.Tensor) -> None:
    wrong: list[str] = []

    def work() -> None:
        for _ in range(20):
            a = event()
            a.record()
            y = (x[:64, :64] * 2).sum()
            b = event()
            b.record()
            b.synchronize()
            if not (a.query() and a.elapsed_time(b) >= 0):
                wrong.append("order")
            del y

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


CTRL_C = """
import os, signal, sys, threading, torch
signal.signal(signal.SIGINT, signal.default_int_handler)
x = torch.ones(1024, 1024, device="tpu")
def work(n):
    y = x
    for _ in range(n):
        y = y @ x * 1e-3
    return y
work(1).cpu()
y = work(200)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    {wait}
except (KeyboardInterrupt, RuntimeError):
    try:
        import time; time.sleep(0.1)
    except KeyboardInterrupt:
        pass
    os.write(1, b"stopped")
os._exit(0)
"""


@pytest.mark.parametrize("wait", ["torch.tpu.synchronize()", "y.cpu()", "e = torch.Event('tpu'); e.record(); e.synchronize()"])
def test_ctrl_c_ends_a_wait(wait: str) -> None:
    got = subprocess.run([sys.executable, "-c", CTRL_C.replace("{wait}", wait)], capture_output=True, text=True, timeout=120)
    assert got.stdout == "stopped", got.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_events_after_fork_are_refused(x: torch.Tensor) -> None:
    e = event()
    e.record()
    e.synchronize()
    long_work(x)
    pending = event()
    pending.record()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        code = 1
        try:
            pending.synchronize()
        except RuntimeError as err:
            code = 0 if "fork" in str(err) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    pending.synchronize()


def test_an_event_of_another_device_is_waited_for() -> None:
    good(
        """
        import torch
        torch.tpu.set_device(0)
        x = torch.ones(768, 768, device="tpu:0")
        y = torch.ones(4, device="tpu:1")
        def work():
            z = x
            for _ in range(8):
                z = (z @ x) * 1e-3
            return z
        work(), y + 1
        torch.tpu.synchronize(0), torch.tpu.synchronize(1)
        z = work()
        first = torch.tpu.current_stream(0).record_event()
        other = torch.tpu.current_stream(1)
        other.wait_event(first)
        w = y + 1
        second = other.record_event()
        assert not first.query() and not second.query() and not other.query()
        second.synchronize()
        assert first.query() and second.query() and w.tolist() == [2] * 4
        """,
        TORCH_TPU_SIM_DEVICES="2",
    )
