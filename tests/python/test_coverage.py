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
INTERNAL = {"_sdpa_forward", "_sdpa_backward", "_flex_forward", "_flex_backward"}


DATA = ROOT / "tests" / "data"
TRANSFORMERS = gen_ops.read(DATA / "transformers_overloads.txt")
REQUIRED = gen_ops.read(DATA / "required_overloads.txt")
# Overloads that no tpu tensor meets, by what their names hold. Attention is one op a device kind: for a tpu,
# _scaled_dot_product_flash_attention_for_cpu is what scaled_dot_product_attention calls, a row of the op table.
FOREIGN = {
    "mkldnn": "oneDNN's own tensors and weights: an LSTM of the device is _thnn_fused_lstm_cell or composite",
    "quantize": "quantized tensors",
    "fake_quantize_learnable": "quantized training",
    "sparse": "sparse layouts, which stay on the CPU",
    "sspaddmm": "sparse layouts",
    "spdiags": "sparse layouts",
    "_convert_indices_from": "indices of sparse layouts",
    "nested": "nested tensors: jagged ones are made of dense ops",
    "jagged": "nested tensors: jagged ones are made of dense ops",
    "int4pack": "weights packed for a CPU kernel",
    "dyn_quant": "weights packed for a CPU kernel",
    "affine_quantized": "quantized tensors",
    "_test_": "PyTorch's own tests",
    "_foobar": "PyTorch's own tests",
    "from_file": "a file mapped into host memory",
}


def foreign(overload: str) -> bool:
    return any(word in overload for word in FOREIGN)


def missing() -> set[str]:
    """Required overloads that would run on the CPU, as tests/data/missing_overloads.txt lists them; the list can only shrink."""
    return {line.split()[0] for line in gen_ops.read(DATA / "missing_overloads.txt") if not line.startswith("#")}


@pytest.mark.parametrize("overload", [o for o in TRANSFORMERS if not foreign(o)])
def test_what_transformers_calls_is_covered(overload):
    assert gen_ops.kind(overload) != "falls through"


def test_what_is_missing_is_listed():
    fall = {o for o in REQUIRED if not foreign(o) and gen_ops.kind(o) == "falls through"}
    assert fall == missing(), f"not listed: {sorted(fall - missing())}; listed but covered: {sorted(missing() - fall)}"


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
