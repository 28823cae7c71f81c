"""``torch.tpu.distributed``: what a job of many processes needs beside ``torch.distributed``."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TypeVar

import torch

from torch_tpu.tpu._common import _C

_F = TypeVar("_F", bound=Callable[..., object])


def set_tpu_launch_env(*, nnodes: int | None = None, nproc_per_node: int | None = None) -> None:
    """Set the variables that a job's processes find each other by, before they are started. One that is set already stays.

    For one machine: ``MASTER_ADDR``, ``MASTER_PORT``, ``NNODES``, ``NODE_RANK`` and ``NPROC_PER_NODE``, for ``torchrun`` or
    ``torch.multiprocessing.spawn``.

    Args:
        nnodes: only 1.
        nproc_per_node: None: the number of devices.

    Raises:
        NotImplementedError: for several machines: start ``torchrun --nnodes`` on each.
        ValueError: for a number below 1.
    """
    for name, n in (("nnodes", nnodes), ("nproc_per_node", nproc_per_node)):
        if n is not None and n < 1:
            raise ValueError(f"expected {name} to be at least 1, got {n}")
    hosts = [h for h in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if h]
    if max(nnodes or 1, len(hosts)) > 1:
        raise NotImplementedError(
            "set_tpu_launch_env sets up one machine. For several, run on each: "
            "torchrun --nnodes=N --node-rank=R --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT script.py"
        )
    count = nproc_per_node if nproc_per_node is not None else _C.device_count()
    found = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "NNODES": "1", "NODE_RANK": "0", "NPROC_PER_NODE": str(count)}
    for name, value in found.items():
        os.environ.setdefault(name, value)


def spmd_safe(func: _F) -> _F:
    """Say that every rank calls ``func`` alike. Nothing depends on it: ranks may always run different programs."""
    return func


def topology_aware_mesh(
    mesh_shape: tuple[int, ...],
    *,
    dcn_mesh_shape: tuple[int, ...] | None = None,
    allow_split_physical_axes: bool = False,
    contiguous_submeshes: bool = False,
) -> torch.Tensor:
    """Ranks laid out so that neighbours in the mesh are neighbours in the machine.

    One machine's devices are equally far from each other, so that any order serves: ranks come in row-major order.

    Args:
        mesh_shape: the product must be the number of ranks.
        dcn_mesh_shape: over slices: only ones.
        allow_split_physical_axes, contiguous_submeshes: without effect.

    Returns:
        int64 of shape ``mesh_shape``, on the CPU; for ``torch.distributed.device_mesh.DeviceMesh``.
    """
    group = torch.distributed
    world = group.get_world_size() if group.is_available() and group.is_initialized() else 1
    if math.prod(mesh_shape) != world:
        raise ValueError(f"expected the product of mesh_shape to be the number of ranks, {world}, got {tuple(mesh_shape)}")
    if dcn_mesh_shape is not None and (len(dcn_mesh_shape) != len(mesh_shape) or math.prod(dcn_mesh_shape) != 1):
        raise NotImplementedError(f"several slices are not supported: expected dcn_mesh_shape of ones, got {tuple(dcn_mesh_shape)}")
    return torch.arange(world).view(mesh_shape)


def __getattr__(name: str) -> object:
    if name in ("window_num_stripes", "window_stripe_chunk_mb"):
        raise NotImplementedError(
            f"torch.tpu.distributed.{name} tunes one-sided windows, which are not supported: use send and recv"
        )
    raise AttributeError(f"module 'torch.tpu.distributed' has no attribute {name!r}")


if __name__ == "__main__":  # python -m torch.tpu.distributed: what to export before starting a job
    set_tpu_launch_env()
    for variable in ("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "NPROC_PER_NODE"):
        print(f"export {variable}={os.environ[variable]}")
