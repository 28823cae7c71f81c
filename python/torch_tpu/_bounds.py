"""How far one program reaches: bounds of lengths, and the count of what became of graphs with symbolic sizes.

Imports nothing, so that ``torch.tpu`` can be asked without loading Dynamo.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Growth:
    """Bounds are ``least``, then each ``factor`` times the one before."""

    least: int = 8
    factor: float = 2.0

    def bound(self, n: int, top: float = math.inf) -> int:
        """The bound for a length.

        Args:
            top: no length is above this.
        """
        bound = self.least
        while bound < n:
            bound = max(bound + 1, math.ceil(bound * self.factor))
        return int(min(bound, top)) if top >= n else bound


@dataclass
class Stats:
    """What became of graphs with symbolic sizes."""

    bounded: int = 0  # programs for all lengths up to a bound
    exact: int = 0  # programs for one set of sizes
    refused: dict[str, int] = field(default_factory=dict)  # why a graph has no programs of the first kind -> how many have not

    def refuse(self, name: str, why: Exception) -> None:
        reason = f"{name}: {why}"
        self.refused[reason] = self.refused.get(reason, 0) + 1


growth = Growth()
stats = Stats()
