"""The op database in compiled code (opcompile.py says what each mode checks).

Here one op of ten runs in one mode, chosen by a hash of its name; with TORCH_TPU_SWEEP set every op in every mode, which
``make sweep`` does in worker processes (sweep.py). A case in expected_failures.txt must fail, so that the list can only shrink.
"""

import os

import opcompile
import pytest
import sweep

CASES = opcompile.all_cases() if os.environ.get("TORCH_TPU_SWEEP") else opcompile.sampled_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id.replace(" ", "-"))
def test_compiled_op(case):
    sweep.check(case)


def test_the_sample_has_every_mode():
    assert {c.mode for c in opcompile.sampled_cases()} == set(opcompile.MODES)
