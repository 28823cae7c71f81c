"""What `make demo` runs, at the size of a test; and that the device comes up on a PyTorch whose list of ops is another."""

import sys

import pytest
import torch
from conftest import ROOT
from torch_tpu import _composed


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    yield
    for name in [n for n in sys.modules if n.split(".")[0] == "examples"]:
        del sys.modules[name]


def test_the_demo_counts_what_was_compiled(examples):
    from examples import device

    compiling = device.Compiling("tpu")
    torch.ones(3, 7, device="tpu").sin().sum().item()
    programs, rest = str(compiling).split(" programs made, ")
    assert int(programs) >= 1
    assert "read from the disk cache" in rest


@pytest.mark.need("tqdm")
def test_the_demo_trains(examples, capsys):
    from examples import train_gpt

    train_gpt.run("tpu", 2)
    assert "largest difference from going on 0.0e+00" in capsys.readouterr().out


def test_ops_that_this_pytorch_does_not_have_are_left_out(monkeypatch):
    monkeypatch.setattr(_composed, "_KERNELS", {"no_such_op_anywhere": lambda x: x, "cholesky.nowhere": lambda x: x})
    monkeypatch.setattr(_composed, "_library", _composed._library)  # which register replaces
    _composed.register()
