"""Run a piece of code in a process of its own that has imported torch and torch_tpu but not opened a device.

Importing takes seconds, so one process does it once and forks a child for each piece. The child runs it as ``__main__``.
"""

import atexit
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest
import torch_tpu

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = pathlib.Path(torch_tpu.__file__).resolve().parents[1]

_SERVER = """
import json, os, signal, sys
import torch, torch_tpu, torch._dynamo
torch.arange(3, device="meta")   # what else is imported when first needed
code = None
while code is None:
    line = sys.stdin.readline()
    if not line:
        os._exit(0)
    ask = json.loads(line)
    sys.stdout.flush()
    pid = os.fork()
    if pid != 0:
        print(pid, flush=True)
        ended, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
        continue
    for number, path in ((1, ask["out"]), (2, ask["err"])):
        fd = os.open(path, os.O_WRONLY)
        os.dup2(fd, number)
        os.close(fd)
    fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(fd, 0)
    os.setpgid(0, 0)
    os.environ.update(ask["env"])
    code = compile(ask["code"], "<child>", "exec")
    whole = ask["whole"]
del ask, fd, line, number, path, pid
if whole:
    exec(code)
else:
    status = 0
    try:
        exec(code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
"""

_server: subprocess.Popen[str] | None = None


@dataclasses.dataclass
class Result:
    """How a child ended. ``status`` is its exit code, or minus the signal that killed it."""

    status: int
    out: str
    err: str
    seconds: float


def _environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(PACKAGE)} | more


def _stop() -> None:
    if _server is not None:
        _server.stdin.close()  # type: ignore[union-attr]
        _server.wait()


def run(code: str, timeout: float = 60, whole: bool = False, **env: str) -> Result:
    """Run ``code``, with these variables set. A child that takes longer than ``timeout`` seconds is killed: status -9.

    ``whole``: the interpreter ends as any does. Else the child is gone after the code's last line, which is faster.
    """
    global _server
    if _server is None:
        _server = subprocess.Popen(
            [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
        )
        atexit.register(_stop)
    assert _server.stdin is not None and _server.stdout is not None
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        os.chmod(out.name, 0o666)  # for children that become somebody else
        os.chmod(err.name, 0o666)
        began = time.monotonic()
        ask = {"code": textwrap.dedent(code), "whole": whole, "env": env, "out": out.name, "err": err.name}
        print(json.dumps(ask), file=_server.stdin, flush=True)
        pid = int(_server.stdout.readline())
        alarm = subprocess.Popen([sys.executable, "-S", "-c", _KILLER, str(pid), str(timeout)], stdin=subprocess.PIPE)
        status = int(_server.stdout.readline())
        alarm.stdin.close()  # type: ignore[union-attr]
        alarm.wait()
        return Result(status, out.read(), err.read(), time.monotonic() - began)


# Kills the process group unless its own stdin is closed first.
_KILLER = """
import os, select, signal, sys
if not select.select([sys.stdin], [], [], float(sys.argv[2]))[0]:
    os.killpg(int(sys.argv[1]), signal.SIGKILL)
"""


def good(code: str, timeout: float = 60, **env: str) -> str:
    """Run ``code``; it must end with status 0. What it printed."""
    r = run(code, timeout, **env)
    assert r.status == 0, f"status {r.status} after {r.seconds:.1f} s\n{r.out}\n{r.err}"
    for word in ("Fatal", "terminate called", "AddressSanitizer", "Exception ignored", "Segmentation"):
        assert word not in r.err, r.err
    return r.out


@functools.cache
def plugin_of(name: str) -> str:
    """Path of a plugin built from ``tests/core/<name>.c``."""
    found = subprocess.run([sys.executable, ROOT / "tools" / "pjrt_include.py"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip("no header of PJRT")
    folder = tempfile.mkdtemp()
    path = f"{folder}/{name}.so"
    flags = ["-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", f"-I{found.stdout.strip()}"]
    built = subprocess.run(["cc", *flags, "-o", path, ROOT / "tests" / "core" / f"{name}.c"], check=False)
    if built.returncode != 0:
        pytest.skip("no C compiler")
    os.chmod(folder, 0o755)
    return path


def fake_plugin() -> str:
    """A plugin that computes zeros and can be told to be slow or to fail (tests/core/fake_plugin.h)."""
    return plugin_of("fake_plugin")


def proxy_plugin() -> str:
    """A plugin that passes calls on to the one at ``PROXY_PLUGIN`` and can be told to fail one (tests/core/fake_proxy.c)."""
    return plugin_of("fake_proxy")
