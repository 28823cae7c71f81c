"""Make .venv for the Makefile: an environment that has pip, the build tools and a PyTorch, and say plainly what is missing.

The PyTorch used is the one that `python3` can import, if its minor version is one that the adapter is built for; else
requirements/torch.txt is installed. A venv made inside a venv does not see the outer one's packages, so the outer folders are
named in a .pth file. `.venv/constraints.txt` then pins that torch for every later pip call.

    python3 tools/venv.py .venv
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

SUPPORTED = ("2.13", "2.14", "2.15")
ROOT = pathlib.Path(__file__).resolve().parent.parent
PTH = "torchtpu-outer-packages.pth"
# Run by the outer Python: its torch's version, then the folders its packages come from. An ordinary import, so that a broken
# torch counts as none; without autoloaded backends, which are not what is asked.
PROBE = """
import sys, torch
print(torch.__version__)
for p in sys.path:
    if p.endswith(('site-packages', 'dist-packages')): print(p)
"""


def run(*cmd: str) -> None:
    print("+", " ".join(cmd), flush=True)
    if subprocess.run(cmd, check=False).returncode != 0:
        sys.exit(f"failed: {' '.join(cmd)}")


def outer_python(venv: pathlib.Path) -> str:
    """The Python to build on: the active one, or the one beneath it where .venv itself is active."""
    if pathlib.Path(sys.prefix).resolve() == venv.resolve():
        return str(pathlib.Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")
    return sys.executable


def probe(python: str) -> tuple[str, list[str]] | None:
    """(version, package folders) of the torch that `python` imports, or None."""
    env = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    got = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, env=env, cwd="/", check=False)
    if got.returncode != 0:
        return None
    version, *folders = got.stdout.split("\n")
    return version, [f for f in folders if f]


def check_tools() -> None:
    """Everything that a fresh machine may lack, named at once."""
    missing = []
    if sys.version_info < (3, 11):  # noqa: UP036, run before anything is installed
        sys.exit(f"python3 is {sys.version.split()[0]}; 3.11 or newer is needed. Name another: make demo PYTHON=python3.12")
    if not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists():
        missing.append("python3-dev")
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        missing.append("python3-venv")
    for tool, package in (("gcc", "gcc"), ("g++", "g++")):
        if shutil.which(tool) is None:
            missing.append(package)
    if missing:
        sys.exit(f"missing: {' '.join(missing)}. On Debian: apt-get install {' '.join(missing)}")


def main(venv: pathlib.Path) -> None:
    check_tools()
    python = outer_python(venv)
    if not (venv / "bin" / "python").exists():
        run(python, "-m", "venv", str(venv))
    inner = str(venv / "bin" / "python")
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    pth = pathlib.Path(subprocess.run([inner, "-c", where], capture_output=True, text=True, check=True).stdout.strip()) / PTH
    pip = [inner, "-m", "pip", "install", "--disable-pip-version-check"]

    have = probe(inner)
    if have is None:
        outer = probe(python)
        if outer and re.match(r"\d+\.\d+", outer[0]) and ".".join(outer[0].split(".")[:2]) in SUPPORTED:
            pth.write_text("\n".join(outer[1]) + "\n")
            print(f"using PyTorch {outer[0]} of {python}")
        else:
            if outer:
                print(f"PyTorch {outer[0]} of {python} is not one of {', '.join(SUPPORTED)}: another is installed in {venv}")
            print("installing PyTorch; README.md says how to have its smaller CPU build instead of the default one", flush=True)
            run(*pip, "-r", str(ROOT / "requirements" / "torch.txt"))
        have = probe(inner)
    if have is None:
        sys.exit(f"PyTorch was installed but {inner} cannot import it: try `{inner} -c 'import torch'`")
    (venv / "constraints.txt").write_text(f"torch=={have[0]}\n")
    # --force-reinstall, here and in the Makefile: what the outer environment has counts as installed, but its commands are not
    # in .venv/bin.
    files = [a for name in ("build", "runtime") for a in ("-r", str(ROOT / "requirements" / f"{name}.txt"))]
    run(*pip, "-q", "--no-deps", "--force-reinstall", *files)
    print(f"{venv}: PyTorch {have[0]}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).absolute())
