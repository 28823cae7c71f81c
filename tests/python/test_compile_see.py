"""What can be seen of compiling: counts, reasons, dumps, and lines of Python in messages."""

import json
import logging
import os
import pty
import re

import pytest
import torch
import torch._dynamo
import torch_tpu
from child import fake_plugin, good
from torch_tpu import _compile, _decompose

DEV = "tpu"
HERE = os.path.basename(__file__)


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "traces"))
    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    _compile.refused.clear()


def line_of(text):
    """Of the first line of this file that holds ``text``."""
    with open(__file__) as f:
        return next(i for i, line in enumerate(f, 1) if text in line)


def test_recompiles_are_counted_with_their_reason():
    def f(x, n):
        return x * 2 if n == 1 else x * 3

    g = torch.compile(f, backend="tpu", dynamic=False)
    before = torch.tpu.compile_stats()
    x = torch.ones(3, device=DEV)
    g(x, 1), g(x, 2), g(x, 1)
    stats = torch.tpu.compile_stats()
    assert stats["graphs"] - before["graphs"] == 2
    assert len(stats["recompiles"]) == 1
    found = stats["recompiles"][0]
    assert found["function"] == "f"
    assert found["line"].endswith(f"{HERE}:{line_of('def f(x, n):')}")
    assert "n == 1" in found["reason"]


def test_recompiles_are_logged(caplog):
    torch._logging.set_logs(recompiles=True)
    try:
        g = torch.compile(lambda x: x + 1, backend="tpu", dynamic=False)
        logger = logging.getLogger("torch._dynamo.guards.__recompiles")
        logger.propagate = True
        with caplog.at_level(logging.DEBUG):
            g(torch.ones(3, device=DEV)), g(torch.ones(4, device=DEV))
    finally:
        torch._logging.set_logs()
    assert "Recompiling function" in caplog.text
    assert HERE in caplog.text


def test_parts_run_op_by_op_are_told_with_their_line(monkeypatch):
    def call(self, node):
        if node.target is torch.ops.aten.cosh.default:
            raise NotImplementedError("not today")
        return kept(self, node)

    kept = _decompose.GraphBuilder.call
    monkeypatch.setattr(_decompose.GraphBuilder, "call", call)
    g = torch.compile(lambda x: x.cosh() + 1, backend="tpu")  # here it is refused
    x = torch.ones(3)
    torch.testing.assert_close(g(x.to(DEV)).cpu(), x.cosh() + 1)
    (why,) = torch.tpu.compile_stats()["op_by_op"].values()
    assert why.startswith("not today (aten.cosh.default at")
    assert why.endswith(f"{HERE}:{line_of('here it is refused')})")


def test_a_fault_of_ours_is_told_with_op_and_line(monkeypatch):
    def call(self, node):
        raise KeyError("nobody thought of this")

    monkeypatch.setattr(_decompose.GraphBuilder, "call", call)
    g = torch.compile(lambda x: x.sinh() + 1, backend="tpu")  # here it goes wrong
    with pytest.raises(RuntimeError, match=rf"aten.sinh.default at .*:{line_of('here it goes wrong')} .*nobody thought"):
        g(torch.ones(3, device=DEV))


def test_a_dump_holds_every_stage(tmp_path):
    def f(x, y):
        z = x @ y  # here the product is made
        return z.relu().sum()

    x, y = torch.randn(7, 5, device=DEV), torch.randn(5, 7, device=DEV)
    x.requires_grad_()
    g = torch.compile(f, backend="tpu")
    with torch.tpu.compiler.dump(tmp_path / "out"):
        g(x, y).backward()
        torch.tpu.synchronize()
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    graphs = [n.split("_", 2)[2] for n in names if n.startswith("graph_")]
    assert graphs == ["backward.py.txt", "forward.py.txt", "given.py.txt"]
    (forward,) = [p for p in (tmp_path / "out").iterdir() if p.name.startswith("program") and "forward" in p.name]
    text = (forward / "stablehlo.mlir").read_text()
    assert re.search(rf'stablehlo.dot_general".* loc\("[^"]*{HERE}":{line_of("here the product is made")}:0\)', text)
    sizes = json.loads((forward / "sizes.json").read_text())
    assert sizes["parameters"] == 2
    assert any(p.name.endswith("after_optimizations.txt") for p in forward.iterdir())
    before = set((tmp_path / "out").iterdir())
    (torch.ones(11, device=DEV) * 2).cpu()
    assert set((tmp_path / "out").iterdir()) == before


def test_locations_are_no_part_of_what_a_program_is(tmp_path):
    def f(x):
        return x.cosh() + 2

    def same(x):
        return x.cosh() + 2

    x = torch.ones(13, device=DEV)
    torch.compile(f, backend="tpu")(x)
    text = torch_tpu._C.last_module()
    torch.compile(same, backend="tpu")(x)
    assert torch_tpu._C.last_module() == text
    assert "loc(" not in text


def test_a_program_that_does_not_compile_is_told_with_its_lines():
    out = good(
        """
        import ctypes, os, torch, torch_tpu
        f = torch.compile(lambda x: x.sin() + 1, backend="tpu")
        x = torch.empty(3, device="tpu")
        ctypes.CDLL(os.environ["TORCH_TPU_PLUGIN"]).fake_plugin_fail(b"PJRT_Client_Compile", 1)
        try:
            f(x).cpu()
        except RuntimeError as e:
            print(e)
        """,
        TORCH_TPU_PLUGIN=fake_plugin(),
        TORCH_TPU_CACHE="0",
    )
    assert re.search(r"graph_1: .* \(a program of .*:3 to .*:3\)", out), out


def test_a_long_compile_is_shown_on_a_terminal_only():
    code = """
        import ctypes, os, torch, torch_tpu
        x = torch.empty(3, device="tpu")
        ctypes.CDLL(os.environ["TORCH_TPU_PLUGIN"]).fake_plugin_delay(b"PJRT_Client_Compile", 2600)
        os.dup2(os.open(os.environ["AT_TERMINAL"], os.O_WRONLY | os.O_NOCTTY), 2)
        (x * 2).cpu()
    """

    def shown(**env):
        parent, end = pty.openpty()
        try:
            good(code, AT_TERMINAL=os.ttyname(end), TORCH_TPU_PLUGIN=fake_plugin(), TORCH_TPU_CACHE="0", **env)
            os.set_blocking(parent, False)
            try:
                return os.read(parent, 10000).decode()
            except BlockingIOError:
                return ""
        finally:
            os.close(parent)
            os.close(end)

    assert re.search(r"\r\x1b\[Kcompiling mul.Tensor: 2 s.*\r\x1b\[K$", shown(), re.S)
    assert shown(TORCH_TPU_QUIET="1") == ""
