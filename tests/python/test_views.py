"""Random programs of views, writes through them and reads, beside CPU PyTorch step by step; view_programs.py says what they do.

``make views N=20000`` runs as many as are asked for, from seeds.
"""

import os
import time

import view_programs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SECONDS = float(os.environ.get("TORCH_TPU_VIEW_SECONDS", "40"))  # a busy machine runs fewer programs
CLOCK: dict[str, float] = {}


class Drawn:
    """Choices from Hypothesis, which knows how to make a failing program smaller."""

    def __init__(self, data):
        self.data = data

    def int(self, low, high):
        return self.data.draw(st.integers(low, max(low, high)))

    def pick(self, items):
        return self.data.draw(st.sampled_from(list(items)))

    def order(self, n):
        return list(self.data.draw(st.permutations(range(n))))

    def flag(self):
        return self.data.draw(st.booleans())


@given(data=st.data())
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_drawn_programs(data):
    CLOCK.setdefault("start", time.monotonic())
    if time.monotonic() - CLOCK["start"] < SECONDS / 2:
        view_programs.run(Drawn(data))


def test_programs_of_fixed_seeds():
    start = time.monotonic()
    for seed in range(200):
        if time.monotonic() - start > SECONDS / 2:
            break
        view_programs.run(view_programs.Draw(seed))
