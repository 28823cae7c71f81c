"""Compiling for a TPU that is not here: what its compiler says of rows and training steps (where there is libtpu), and what the
tool says where there is none or where it ends."""

import hashlib
import json
import math
import pathlib
import re
import struct
import subprocess

import aot_rows
import aot_run
import pytest
import torch
from torch_tpu import aot, export

RESULTS = json.loads(aot_run.RESULTS.read_text())


def sample(names, n):
    """n of them, chosen by their names."""
    return sorted(sorted(names, key=lambda s: hashlib.sha256(s.encode()).digest())[:n])


# ---------------------------------------------------------------------------------------------------------- what is known


MISSING: dict[str, str] = {}
"""Rows and models, each with a chip ("gpt.float32 v6e"), that libtpu was not asked for, and why. `make aot` asks, and compiles only
what is new or has changed."""


def test_every_row_and_training_step_was_compiled_for_every_chip():
    import aot_models

    wanted = [(RESULTS["rows"], aot_rows.opcase.ROWS), (RESULTS["models"], aot_models.names())]
    missing = {f"{n} {c}" for known, names in wanted for n in names for c in aot_run.CHIPS if c not in known.get(n, {})}
    assert missing == set(MISSING), "make aot, or say in MISSING why not"


def test_nothing_is_refused():
    refused = {
        f"{name} {chip}": v
        for what in ("rows", "models")
        for name, entry in RESULTS[what].items()
        for chip, v in entry.items()
        if chip in aot_run.CHIPS and isinstance(v, str)
    }
    assert refused == {}


def test_figures_are_figures():
    """libtpu writes the largest integer for cycles that it does not know; for bytes and operations it adds -1."""
    for what in ("rows", "models"):
        for name, entry in RESULTS[what].items():
            for chip in set(aot_run.CHIPS) & set(entry):
                assert all(-10 < n < 10**12 for n in entry[chip]), (name, chip)
            assert what == "rows" or set(entry["cpu"]) == set(entry) & set(aot_run.CHIPS)


# ------------------------------------------------------------------------------------------------------------ with libtpu


def compiled(paths, chips):
    answers = list(aot.compile_files(paths, chips))
    bad = [f"{pathlib.Path(a['path']).name} {a['chip']}: {a['error']}" for a in answers if "error" in a]
    assert not bad, "\n".join(bad)
    return answers


@pytest.mark.need("aot")
def test_rows_compile(tmp_path):
    """Rows that a few of the database's ops meet, as they are lowered now."""
    collector = aot_rows.Collector(tmp_path / "rows")
    with torch.random.fork_rng(devices=[]):
        for name in sample(aot_rows.opcase.OPS, 8):
            aot_rows.run_database(name, aot_rows.opcase.OPS[name], collector)
    assert collector.found
    compiled(sorted((tmp_path / "rows").glob("*.mlir"))[:24], ["v5e"])


@pytest.mark.need("aot", "transformers")
def test_a_training_step_is_no_worse(tmp_path):
    """What make aot recorded with this libtpu is what the compiler says now, or better."""
    import aot_models

    name = "minilm.float32"
    path = tmp_path / f"{name}.mlir"
    path.write_text(aot_models.make(name))
    known = RESULTS["models"][name]
    if aot.libtpu_version(aot.find_libtpu()) != RESULTS["libtpu"] or "v5e" not in known:
        pytest.skip(f"not recorded with this libtpu, but with {RESULTS['libtpu']}")
    if aot_run.digest(path) == known["module"]:
        return
    (answer,) = compiled([path], ["v5e"])
    assert not aot_run.worse(known["v5e"], aot_run.figures(answer)), "make aot"


@pytest.mark.need("aot")
def test_an_artifact_is_compiled_for_chips(tmp_path, capsys):
    ep = torch.export.export(torch.nn.Linear(256, 128), (torch.ones(64, 256),))
    export.save(ep, tmp_path / "net")
    assert aot.main([str(tmp_path / "net"), "--chip", "v5e", "--chip", "tpu7x", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [f["chip"] for f in found] == ["v5e", "tpu7x"]
    for f in found:
        assert f["argument_bytes"] >= 4 * (256 * 128 + 128 + 64 * 256)
        assert f["flops"] >= 2 * 64 * 256 * 128
        assert f["cycles"] > 0


@pytest.mark.need("aot")
def test_cycles_leave_out_what_has_no_estimate(tmp_path):
    """As the scatter of an embedding's gradient for TPU7x."""

    class Gradient(torch.nn.Module):
        def forward(self, grad, at):
            return torch.ops.aten.embedding_dense_backward(grad, at, 1000, -1, False)

    ep = torch.export.export(Gradient(), (torch.ones(64, 16), torch.arange(64)))
    export.save(ep, tmp_path / "gradient")
    (answer,) = compiled([tmp_path / "gradient" / "model.tpu.mlir"], ["tpu7x"])
    assert 0 < answer["cycles"] < 10**9


@pytest.mark.need("aot")
def test_what_a_chip_cannot_do_is_said(tmp_path):
    big, wrong = tmp_path / "big.mlir", tmp_path / "wrong.mlir"
    t = "tensor<100000x100000xf32>"
    big.write_text(f"module @big {{ func.func public @main(%a: {t}) -> {t} {{ return %a : {t} }} }}")
    wrong.write_text("module @wrong { func.func public @main( }")
    answers = list(aot.compile_files([big, wrong], ["v5e", "v9:1x1"]))
    assert [a["code"] for a in answers] == ["RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNKNOWN", "INVALID_ARGUMENT"], answers


# --------------------------------------------------------------------------------------------------------- without libtpu


def library(folder, body):
    """A shared library in libtpu's place."""
    source = folder / "other.c"
    source.write_text(body)
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(folder / "libtpu.so")], check=True)
    return str(folder / "libtpu.so")


def module(tmp_path):
    path = tmp_path / "m.mlir"
    path.write_text("module @m { func.func public @main(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> } }")
    return path


def test_a_compiler_that_ends_is_started_again(tmp_path):
    lib = library(tmp_path, "#include <stdlib.h>\nvoid *GetPjrtApi(void) { abort(); }\n")
    answers = list(aot.compile_files([module(tmp_path), module(tmp_path)], ["v5e", "v6e"], lib))
    assert [(a["chip"], a["code"]) for a in answers] == [("v5e", "ABORTED"), ("v6e", "ABORTED")] * 2
    assert "exit -6" in answers[0]["error"]


def test_a_compiler_that_hangs_is_ended(tmp_path):
    lib = library(tmp_path, "#include <unistd.h>\nvoid *GetPjrtApi(void) { for (;;) pause(); }\n")
    (answer,) = aot.compile_files([module(tmp_path)], ["v5e"], lib, timeout=1)
    assert answer["code"] == "ABORTED"
    assert "more than 1 s" in answer["error"]


def test_what_is_no_libtpu_is_said(tmp_path):
    lib = library(tmp_path, "int nothing;\n")
    (answer,) = aot.compile_files([module(tmp_path)], ["v5e"], lib)
    assert "no function GetPjrtApi" in answer["error"]
    (answer,) = aot.compile_files([module(tmp_path)], ["v5e"], str(tmp_path / "none.so"))
    assert answer["code"] == "NOT_FOUND"
    (answer,) = aot.compile_files([tmp_path / "no.mlir"], ["v5e"], lib)
    assert "cannot be read" in answer["error"]


def test_without_libtpu_the_command_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(aot, "find_libtpu", lambda: None)
    assert aot.main([str(module(tmp_path))]) == 2
    assert "pip install libtpu" in capsys.readouterr().err


def test_doubles_inside_stay_in_the_range_of_floats(tmp_path):
    """A TPU's float64 is a sum of two float32: what lies beyond their range is infinite there, less itself no number."""
    x = torch.full((3,), 2.5, device="tpu")
    with aot.record(tmp_path / "seen"):
        torch.special.gammainc(x, x), torch.special.gammaincc(x, x), torch.poisson(x), torch.binomial(x * 2, x / 5)
        torch._standard_gamma_grad(x, x), torch.bernoulli(x / 5), torch.dropout(x, 0.5, True)
    texts = {p.name: p.read_text() for p in (tmp_path / "seen").iterdir()}
    doubles = [m for t in texts.values() for m in re.findall(r"dense<0x([0-9A-F]{16})> : tensor<[0-9x]*f64>", t)]
    found = [abs(struct.unpack(">d", bytes.fromhex(m))[0]) for m in doubles]
    assert len(found) > 50 and {"igamma.000", "poisson.00", "binomial.0"} <= {name[:10] for name in texts}
    assert not [v for v in found if 0 < v < 2**-126 or 2**128 <= v < math.inf]


def test_programs_are_recorded(tmp_path):
    x = torch.ones(3, 5, 7, 11, device="tpu")
    with aot.record(tmp_path / "seen"):
        torch.special.expit(x).amax((0, 3))
    torch.special.expit(x[0])
    assert sorted(p.name for p in (tmp_path / "seen").iterdir()) == ["amax.000001.mlir", "sigmoid.000000.mlir"]
