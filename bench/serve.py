"""A worker's side of the conversation with pool.py: one JSON object a line in on standard input, one out on the pipe whose number
is in BENCH_REPLY (standard output is left to whatever the frameworks print)."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

Reply = dict[str, Any]


WARM = 5  # groups of untimed runs, at most, until a worker asks for no more programs


def per_op(body: Callable[[], object], n: int, server: Server) -> Reply:
    """Run `body` n times. Microseconds an op: on the clock and of CPU time in all threads, both until the device is idle again, and
    of CPU time in the calling thread until the last call returned."""
    drain = server.drain
    server.warm(lambda: [body() for _ in range(max(3, n // 20))])
    wall, every, mine = time.perf_counter(), time.process_time(), time.thread_time()
    for _ in range(n):
        body()
    mine = time.thread_time() - mine
    drain()
    every, wall = time.process_time() - every, time.perf_counter() - wall
    return {"wall": 1e6 * wall / n, "cpu": 1e6 * every / n, "caller": 1e6 * mine / n}


class Trainer:
    """A model being trained: `prepare(step)` makes a step's batch on the device, `step(batch)` queues it and returns its loss."""

    def prepare(self, step: int) -> Any:
        raise NotImplementedError

    def step(self, batch: Any) -> Any:
        raise NotImplementedError

    def drain(self) -> None:
        raise NotImplementedError


class Server:
    """What a framework fills in; the timing is the same for all."""

    def ops(self) -> dict[str, tuple[Callable[[], object], int]]:
        """Name -> (what is timed, how often)."""
        raise NotImplementedError

    def drain(self) -> None:
        raise NotImplementedError

    def trainer(self, model: str) -> Trainer:
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until what compiles in the background is ready."""
        self.drain()

    def programs(self) -> int:
        """Programs that were asked for in the background so far."""
        return 0

    def warm(self, body: Callable[[], object]) -> int:
        """Run `body` until the background has nothing more to do for it; how often."""
        for done in range(1, WARM + 1):
            before = self.programs()
            body()
            self.settle()
            if done > 1 and self.programs() == before:
                break
        return done

    def fallbacks(self) -> dict[str, int]:
        """Ops that did not run on the device, with how often, where the framework counts them."""
        return {}

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._done = 0

    def do_op(self, name: str, scale: float = 1.0) -> Reply:
        ops = self.ops()
        if name not in ops:
            return {"skip": True}
        body, n = ops[name]
        return per_op(body, max(1, int(n * scale)), self)

    def do_load(self, model: str, steps: int = 3) -> Reply:
        begin = time.perf_counter()
        self._trainer, self._done = self.trainer(model), steps
        losses = [float(self._trainer.step(self._trainer.prepare(i))) for i in range(steps)]
        seconds = time.perf_counter() - begin
        # "cpu": CPU seconds of this process since its start, importing included
        return {"losses": losses, "seconds": seconds, "cpu": time.process_time(), "fallbacks": self.fallbacks()}

    def do_steps(self, n: int) -> Reply:
        """n consecutive steps on batches that were never seen before, made before the clock starts."""
        t = self._trainer
        assert t is not None
        batches = [t.prepare(self._done + i) for i in range(n)]
        self._done += n
        t.drain()
        wall, every = time.perf_counter(), time.process_time()
        for batch in batches:
            loss = t.step(batch)
        t.drain()
        every, wall = time.process_time() - every, time.perf_counter() - wall
        return {"wall": 1e3 * wall / n, "cpu": 1e3 * every / n, "loss": float(loss)}

    def do_warm(self, n: int) -> Reply:
        """Groups of n steps until they run as they will from then on."""
        return {"groups": self.warm(lambda: self.do_steps(n)), "programs": self.programs()}

    def do_singly(self, n: int) -> Reply:
        """n steps, the loss read after each: milliseconds on the clock, of CPU in all threads and in this one, a list each."""
        t = self._trainer
        assert t is not None
        batches = [t.prepare(self._done + i) for i in range(n)]
        self._done += n
        t.drain()
        clocks = {"wall": time.perf_counter, "cpu": time.process_time, "caller": time.thread_time}
        times: dict[str, list[float]] = {name: [] for name in clocks}
        losses = []
        for batch in batches:
            begin = {name: clock() for name, clock in clocks.items()}
            losses.append(float(t.step(batch)))
            for name, clock in clocks.items():
                times[name].append(1e3 * (clock() - begin[name]))
        return {**times, "losses": losses, "programs": self.programs()}

    def do_quit(self) -> Reply:
        raise SystemExit(0)

    def run(self, hello: Reply) -> None:
        with os.fdopen(int(os.environ["BENCH_REPLY"]), "w", buffering=1) as out:
            out.write(json.dumps(hello) + "\n")
            for line in sys.stdin:
                ask = json.loads(line)
                try:
                    reply = getattr(self, "do_" + ask.pop("do"))(**ask)
                except Exception as e:
                    traceback.print_exc()
                    reply = {"error": f"{type(e).__name__}: {e}"[:400]}
                out.write(json.dumps(reply) + "\n")
