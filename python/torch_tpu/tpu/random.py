"""``torch.tpu.random``: seeds, generators and their state. The names are ``torch.tpu``'s too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch

from torch_tpu.tpu._common import _C, index


def _generator(device: Any = None) -> torch.Generator:
    return torch.ops.tpu.default_generator(index(device))


class _Generators(Sequence[torch.Generator]):
    """The devices' own generators. Counted when asked, for counting may have to look for hardware."""

    def __len__(self) -> int:
        return _C.device_count()

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[torch.Generator, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        found = range(len(self))[index]
        return tuple(_generator(i) for i in found) if isinstance(found, range) else _generator(found)


default_generators: Sequence[torch.Generator] = _Generators()
"""The generator of each device, that random ops use when none is given."""


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator. ``torch.manual_seed`` does this too."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seed the current device's generator with a number from the operating system, and return it."""
    return _generator().seed()


def seed_all() -> None:
    """Seed every device's generator with one number from the operating system."""
    manual_seed_all(seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator().initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """State of ``device``'s generator: 16 bytes on the CPU, the seed and the offset (both uint64, in the machine's byte order)."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """:func:`get_rng_state` of every device."""
    return [get_rng_state(i) for i in range(_C.device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Put ``device``'s generator back to a state from :func:`get_rng_state`.

    Raises:
        RuntimeError: if ``new_state`` is not a uint8 CPU tensor of 16 elements.
    """
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Sequence[torch.Tensor]) -> None:
    """:func:`set_rng_state` of every device."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)
