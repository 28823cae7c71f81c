"""What the device covers: every core ATen overload, and every row of the op table reached from PyTorch."""

import pathlib
import sys

import pytest
import torch
import torch_tpu

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import gen_ops  # noqa: E402

CORE = gen_ops.read(gen_ops.CORE)
GRAPH_ONLY = 2
# Called by the adapter's own kernels rather than registered under their names.
INTERNAL = {"_sdpa_forward", "_sdpa_backward"}


def test_core_list_is_whole():
    assert len(CORE) == len(set(CORE)) == 193


@pytest.mark.parametrize("overload", CORE)
def test_core_overload_is_covered(overload):
    assert gen_ops.kind(overload) != "falls through"


def test_rows_name_overloads():
    known = set(torch._C._dispatch_get_all_op_names())
    unknown = [
        r["name"]
        for r in torch_tpu._C.ops()
        if f"aten::{r['name']}" not in known and not (r["flags"] & GRAPH_ONLY or r["name"] in INTERNAL)
    ]
    assert not unknown, f"rows that name no overload of PyTorch {torch.__version__}: {unknown}"


def test_rows_are_unique():
    names = [r["name"] for r in torch_tpu._C.ops()]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)
