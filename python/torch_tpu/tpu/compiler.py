"""``torch.tpu.compiler``: how programs are compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from torch_tpu.tpu import _options


@contextlib.contextmanager
def custom_compiler_options(options: Mapping[str, str | bool | int | float]) -> Iterator[None]:
    """Context manager: programs of ops called inside the block, by any thread, are compiled with these XLA options.

    A block inside another adds to its options, the inner ones first. Programs are kept by their options: leaving the block brings
    back those compiled without. See https://openxla.org/xla/flags_guidance for the options.

    Args:
        options: name -> value. Beside XLA's own names there are ``xla_optimization_level`` and ``xla_memory_fitting_level``, from
            ``"O0"`` (least effort) to ``"O3"``.

    Raises:
        ValueError: at entry, for an option the compiler does not know or a value it cannot read.

    Example:
        >>> with torch.tpu.compiler.custom_compiler_options({"xla_optimization_level": "O1"}):
        ...     y = x @ x
    """
    _options.push(options)
    try:
        yield
    finally:
        _options.pop()
