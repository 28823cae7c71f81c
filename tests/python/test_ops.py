"""The op driver over PyTorch's op database (opcase.py says what each mode checks).

Here every op runs by value and natively, with one more mode chosen by a hash of its name. ``make sweep`` runs every mode and dtype
(sweep.py). A case in expected_failures.txt must fail, so that the list can only shrink.
"""

import opcase
import opcompile
import opfuse
import pytest
import sweep
import torch


@pytest.mark.parametrize("case", opcase.sampled_cases(), ids=lambda c: c.id.replace(" ", "-"))
def test_op(case):
    sweep.check(case)


def test_arange_length_follows_its_bounds():
    """The bounds are not part of the key: an empty range first must not make all others empty."""
    for bounds in ((0, 0), (0, 1), (0, 5), (5, 0, -2), (0, 1, 0.3), (-1, 2, 2)):
        want = torch.arange(*bounds)
        torch.testing.assert_close(torch.arange(*bounds, device="tpu").cpu(), want)


def test_expected_failures_name_cases():
    unknown = set(sweep.expected()) - {c.id for c in opcase.all_cases() + opcompile.all_cases() + opfuse.all_cases()}
    assert not unknown, sorted(unknown)
