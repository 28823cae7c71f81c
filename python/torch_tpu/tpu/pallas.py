"""``torch.tpu.pallas``: kernels written in JAX's Pallas. Not supported: a program here is StableHLO, made without JAX."""

from typing import Any, NoReturn

_INSTEAD = "write the op with torch ops, which are compiled by XLA as one program where they are traced together"


def jax_op(*_: Any, **__: Any) -> NoReturn:
    """Not supported."""
    raise NotImplementedError(
        f"torch.tpu.pallas.jax_op needs JAX to lower its kernels, which this package does without: {_INSTEAD}"
    )


def get_pallas_mesh(*_: Any, **__: Any) -> NoReturn:
    """Not supported."""
    raise NotImplementedError(
        f"torch.tpu.pallas.get_pallas_mesh makes a mesh for JAX kernels, which are not supported: {_INSTEAD}; "
        "for torch.distributed use torch.distributed.device_mesh.init_device_mesh"
    )
