"""Run cases of the op driver in worker processes: a crash or a hang is a failure of its own case only.

    python tests/python/sweep.py                    every op, mode and dtype
    python tests/python/sweep.py --sampled          what pytest runs
    python tests/python/sweep.py --only 'nn.functional.*' --mode grad --dtype float32
    python tests/python/sweep.py --prune            afterwards take entries that pass out of expected_failures.txt

Writes one JSON line a case (op, mode, dtype, outcome, message, ATen ops met) and exits with 1 unless every failure is expected and
every expected failure that ran has failed.
"""

import argparse
import fnmatch
import functools
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
EXPECTED = HERE / "expected_failures.txt"
SAMPLES = 8  # of a case, at most


@functools.cache
def expected() -> dict[str, str]:
    """{case id: reason} of the committed list."""
    found = {}
    for line in EXPECTED.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            op, mode, dtype, reason = line.split(maxsplit=3)
            found[f"{op} {mode} {dtype}"] = reason
    return found


def check(case) -> None:
    """As a test: the case passes, or fails as the committed list says."""
    import opcase
    import opcompile
    import pytest

    reason = expected().get(case.id)
    try:
        opcompile.Runner(case, count=2 if reason is None else SAMPLES).run()
    except opcase.Nothing as e:
        pytest.skip(str(e))
    except Exception as e:
        if reason is None:
            raise
        pytest.xfail(f"{reason} ({type(e).__name__})")
    if reason is not None:
        pytest.fail(f"passes, so it must leave expected_failures.txt ({reason})")


def worker(count: int) -> None:
    """Case ids on stdin, one JSON line each on stdout."""
    import conftest  # noqa: F401
    import opcase
    import opfuse

    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        case = opcase.Case.parse(line)
        runner = opfuse.Runner(case, count)
        t = time.monotonic()
        outcome, message = "pass", ""
        try:
            runner.run()
        except opcase.Nothing as e:
            outcome, message = "nothing", str(e)
        except Exception as e:
            outcome, message = "fail", f"{type(e).__name__}: {e}"
        seconds = round(time.monotonic() - t, 3)
        rows = sorted(n for n in runner.names)
        result = {"id": case.id, "outcome": outcome, "message": message[:1000], "seconds": seconds, "aten": rows}
        out.write(json.dumps(result | {"families": opcase.families(runner.names)}) + "\n")


class Pool:
    def __init__(self, cases: list[str], count: int, limit_s: float, report):
        self.todo: queue.SimpleQueue[str] = queue.SimpleQueue()
        for c in cases:
            self.todo.put(c)
        self.count, self.limit_s, self.report = count, limit_s, report

    def start(self):
        command = [sys.executable, str(HERE / "sweep.py"), "--worker", "--samples", str(self.count)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def run(self) -> None:
        process, served = None, 0
        while not self.todo.empty():
            try:
                case = self.todo.get_nowait()
            except queue.Empty:
                break
            if process is None or served >= 400:  # a fresh process now and then bounds memory
                self.stop(process)
                process, served = self.start(), 0
            served += 1
            limit = self.limit_s + (60 if served == 1 else 0)
            timer = threading.Timer(limit, process.kill)
            timer.start()
            try:
                process.stdin.write(case + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = ""
            late = not timer.is_alive()
            timer.cancel()
            if line:
                self.report(json.loads(line))
                continue
            code = process.wait()
            message = f"not done after {limit:.0f} s" if late else f"the process died ({code})"
            self.report({"id": case, "outcome": "fail", "message": message, "seconds": 0, "aten": [], "families": []})
            process = None
        self.stop(process)

    @staticmethod
    def stop(process) -> None:
        if process is not None:
            process.stdin.close()
            process.wait()


def chosen(a) -> list[str]:
    import conftest  # noqa: F401
    import opcase
    import opcompile
    import opfuse

    modules = (opcase, opcompile, opfuse)
    cases = [c for m in modules for c in (m.sampled_cases() if a.sampled else m.all_cases())]
    again = None
    if a.again:
        lines = [json.loads(line) for line in pathlib.Path(a.again).read_text().splitlines()]
        again = {r["id"] for r in lines if r["outcome"] == "fail"}
    return [
        c.id
        for c in cases
        if (again is None or c.id in again)
        and fnmatch.fnmatch(c.op, a.only)
        and a.mode in ("", c.mode)
        and a.dtype in ("", str(c.dtype).removeprefix("torch."))
    ]


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--only", default="*", help="pattern of op names")
    ap.add_argument("--mode", default="")
    ap.add_argument("--dtype", default="")
    ap.add_argument("--sampled", action="store_true")
    ap.add_argument("--again", help="only the cases that failed in this earlier log")
    ap.add_argument("--samples", type=int, default=SAMPLES, help="at most this many samples a case")
    ap.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    ap.add_argument("--limit", type=float, default=120, help="seconds a case may take")
    ap.add_argument("--log", default="sweep.jsonl")
    ap.add_argument("--prune", action="store_true")
    ap.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    a = ap.parse_args()
    if a.worker:
        worker(a.samples)
        return 0
    known = expected()
    results: dict[str, dict] = {}
    lock = threading.Lock()
    cases = chosen(a)
    with open(a.log, "w", buffering=1) as log:

        def report(result: dict) -> None:
            with lock:
                results[result["id"]] = result
                log.write(json.dumps(result) + "\n")
                if result["outcome"] == "fail" and result["id"] not in known:
                    print(f"[{len(results)}/{len(cases)}] {result['id']}: {result['message'][:300]}", flush=True)

        pool = Pool(cases, a.samples, a.limit, report)
        threads = [threading.Thread(target=pool.run) for _ in range(a.jobs)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    return summary(results, known, a.prune)


def summary(results: dict[str, dict], known: dict[str, str], prune: bool) -> int:
    failed = [i for i, r in results.items() if r["outcome"] == "fail"]
    surprises = [i for i in failed if i not in known]
    stale = [i for i in known if i in results and results[i]["outcome"] != "fail"]
    counts = {o: sum(r["outcome"] == o for r in results.values()) for o in ("pass", "fail", "nothing")}
    print(
        f"{counts['pass']} passed, {counts['fail']} failed ({len(surprises)} unexpected), {counts['nothing']} with nothing to run"
    )
    for i in stale:
        print(f"passes, but is listed as an expected failure: {i}")
    if prune and stale:
        kept = [line for line in EXPECTED.read_text().splitlines() if " ".join(line.split()[:3]) not in stale]
        EXPECTED.write_text("\n".join(kept) + "\n")
        stale = []
    return 1 if surprises or stale else 0


if __name__ == "__main__":
    sys.exit(main())
