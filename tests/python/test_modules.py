"""Every module of torch.nn beside CPU PyTorch (modulecase.py says what each mode checks).

Here each module runs in one mode with one sample; with TORCH_TPU_SWEEP set (make sweep) in every mode and with every sample.
"""

import os

import modulecase
import pytest

SWEEP = bool(os.environ.get("TORCH_TPU_SWEEP"))
CASES = modulecase.all_cases() if SWEEP else modulecase.sampled_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id.replace(" ", "-"))
def test_module(case):
    try:
        modulecase.Runner(case, count=120 if SWEEP else 1).run()
    except modulecase.Nothing as e:
        pytest.skip(str(e))
