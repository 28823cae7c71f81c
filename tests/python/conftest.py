"""What every test of the device shares: the tree's own package where it is built or none is installed, seeds, and `need` markers.

A test says what it needs with ``@pytest.mark.need("tpu")`` and is skipped, with a counted reason, where that is missing.
"""

import importlib.util
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
# A package built in the tree is what is tested; otherwise an installed one.
if any((ROOT / "python" / "torch_tpu" / "lib").glob("_tpu_*.so")) or importlib.util.find_spec("torch_tpu") is None:
    sys.path.insert(0, str(ROOT / "python"))

import pytest  # noqa: E402
import torch  # noqa: E402
import torch_tpu  # noqa: E402
from torch_tpu import aot  # noqa: E402


def _missing(what: str) -> str:
    """Why ``what`` cannot be had here; empty if it can."""
    if what == "tpu":
        simulated = torch_tpu._C.device_info(0)["simulated"]
        return "needs a TPU" if simulated else ""
    if what == "aot":
        return (
            ""
            if aot.find_libtpu()
            else "needs libtpu, which compiles for a TPU without one (TORCH_TPU_LIBTPU, or pip install libtpu)"
        )
    return "" if importlib.util.find_spec(what) else f"needs the package {what}"


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "need(what): skip unless there is a 'tpu', libtpu for 'aot', or an installed package of that name"
    )
    config.addinivalue_line("filterwarnings", "ignore::UserWarning")


def pytest_runtest_setup(item):
    for mark in item.iter_markers("need"):
        for what in mark.args:
            reason = _missing(what)
            if reason:
                pytest.skip(reason)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(20)


@pytest.fixture
def untraced():
    """Nothing is traced so far, nothing fell back."""
    from torch_tpu import _compile

    torch._dynamo.reset()
    torch.tpu.reset_fallbacks()
    _compile.refused.clear()


def compiled(f, **options):
    return torch.compile(f, backend="tpu", **options)
