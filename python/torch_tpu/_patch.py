"""Places where PyTorch 2.13 names its own devices and asks no other: DLPack, autocast's default type, other
processes, FlexAttention.

Each wraps a public function, so that whichever way it was imported later goes through; tensors of other devices see no difference.
"""

from __future__ import annotations

import functools
import sys
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

_CPU, _EXTENSION = 1, 12  # DLDeviceType

_NO_POINTER = (
    "a tpu tensor has no memory that can be shared by pointer; copy it: tensor.cpu(), or np.from_dlpack(tensor, device='cpu'); "
    "torch.from_dlpack(tensor) gives a tpu tensor that shares its storage"
)


def on_tpu(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == "tpu"


def _share_by_dlpack() -> None:
    inner_device, inner_export, inner_import = torch.Tensor.__dlpack_device__, torch.Tensor.__dlpack__, torch.from_dlpack

    @functools.wraps(inner_device)
    def dlpack_device(self: torch.Tensor) -> Any:
        return (_EXTENSION, self.device.index) if on_tpu(self) else inner_device(self)

    @functools.wraps(inner_export)
    def dlpack(self: torch.Tensor, *, dl_device: Any = None, copy: bool | None = None, **kwargs: Any) -> Any:
        if not on_tpu(self):
            return inner_export(self, dl_device=dl_device, copy=copy, **kwargs)
        if dl_device is None or int(dl_device[0]) != _CPU or copy is False:
            raise BufferError(_NO_POINTER)
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return inner_export(self.resolve_conj().cpu(), dl_device=dl_device, **kwargs)

    @functools.wraps(inner_import)
    def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> torch.Tensor:
        if not on_tpu(ext_tensor):
            return inner_import(ext_tensor, device=device, copy=copy)
        if ext_tensor.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        target = torch.device(device if device is not None else ext_tensor.device)
        stays = target.type == "tpu" and target.index in (None, ext_tensor.device.index)
        if copy is False and not stays:
            raise BufferError(f"copy=False, but a tensor on {ext_tensor.device} can only be had on {target} as a copy")
        return ext_tensor.detach().to(ext_tensor.device if stays else target, copy=bool(copy))

    torch.Tensor.__dlpack_device__ = dlpack_device  # type: ignore[method-assign]
    torch.Tensor.__dlpack__ = dlpack  # type: ignore[method-assign]
    torch.from_dlpack = torch.utils.dlpack.from_dlpack = from_dlpack


def _default_autocast_to_bfloat16() -> None:
    """PyTorch's default for a device of another name is float16, in a variable of each thread.

    It is changed in this thread now, and in others when they first use autocast. ``torch.get_autocast_dtype`` itself is one of the
    functions that Dynamo knows, and must stay what it is.
    """
    inner = torch.autocast.__init__
    seen = threading.local()

    @functools.wraps(inner)
    def init(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type == "tpu" and not hasattr(seen, "yes"):
            seen.yes = True
            if torch.get_autocast_dtype("tpu") == torch.float16:
                torch.set_autocast_dtype("tpu", torch.bfloat16)
        inner(self, device_type, *args, **kwargs)

    torch.autocast.__init__ = init  # type: ignore[method-assign]
    seen.yes = True
    torch.set_autocast_dtype("tpu", torch.bfloat16)


def _rebuild(host: torch.Tensor, device: torch.device, kind: type, requires_grad: bool) -> torch.Tensor:
    x = host.to(device)
    return torch.nn.Parameter(x, requires_grad) if kind is torch.nn.Parameter else x.requires_grad_(requires_grad)


def _send_by_value() -> None:
    """A tensor put in a ``torch.multiprocessing`` queue, or given to a process, arrives as a copy: devices are not shared."""
    from torch.multiprocessing.reductions import reduce_tensor

    def reduce(x: torch.Tensor) -> Any:
        if x.device.type != "tpu":
            return reduce_tensor(x)
        if x.requires_grad and not x.is_leaf:
            raise RuntimeError("a tensor that is part of a graph cannot be sent to another process: send tensor.detach()")
        return _rebuild, (x.detach().cpu(), x.device, type(x), x.requires_grad)

    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce)


def _enter_compiled_functions_quickly() -> None:
    inner = torch.compile

    @functools.wraps(inner)
    def compile(*args: Any, **kwargs: Any) -> Any:  # torch.compile's own name
        from torch._dynamo.eval_frame import skip_code

        from torch_tpu._compile import optimizers, recurrent, spared
        from torch_tpu._compile.entry import quick

        skip_code(torch.autocast.__init__.__code__)  # as all of PyTorch's own: a graph that ends inside autocast enters it anew
        if kwargs.get("backend") == "tpu":
            spared.follow()
        optimizers.follow()  # whose step may come before any graph
        recurrent.admit()
        compiled = inner(*args, **kwargs)
        return quick(compiled) if (args and args[0] is not None) or kwargs.get("model") is not None else compiled

    torch.compile = compile


def _open_flex_attention() -> None:
    """Its list of devices is asked before any kernel is. ``create_block_mask(_compile=True)`` names a backend: PyTorch's own, which
    it would take, is none for this device."""
    from torch.nn.attention import flex_attention as public

    inner, block_mask = public._validate_device, public.create_block_mask

    @functools.wraps(inner)
    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "tpu":
            inner(query, key, value)

    @functools.wraps(block_mask)
    def create_block_mask(
        mask_mod: Any,
        B: Any,
        H: Any,
        Q_LEN: int,
        KV_LEN: int,
        device: Any = None,
        BLOCK_SIZE: Any = 128,
        _compile: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        make = block_mask
        if _compile and (device is None or torch.device(device).type == "tpu"):
            make, _compile = torch.compile(block_mask, backend="tpu"), False
        return make(mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE, _compile, *args, **kwargs)

    public._validate_device = validate_device
    public.create_block_mask = create_block_mask


def _flex_attention_kernels() -> None:
    """Of its two higher order ops, imported when first called; and the gradient of score_mod, which eager calls trace each time,
    is kept."""
    from torch._higher_order_ops.flex_attention import create_fw_bw_graph, flex_attention, flex_attention_backward

    def forward(*args: Any) -> Any:
        from torch_tpu import _flex

        return _flex.forward(*args)

    def backward(*args: Any) -> Any:
        from torch_tpu import _flex

        return _flex.backward(*args)

    @functools.wraps(create_fw_bw_graph)
    def gradient(score_mod: Any, index_values: Any, other_buffers: Any) -> Any:
        if type(index_values[0]) is not torch.Tensor or index_values[0].device.type != "tpu":
            return create_fw_bw_graph(score_mod, index_values, other_buffers)
        from torch_tpu import _flex

        return _flex.gradient(create_fw_bw_graph, score_mod, index_values, other_buffers)

    kind: Any = torch._C.DispatchKey

    def autocast(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Any:
        dtype = torch.get_autocast_dtype("tpu")
        cast: Any = [x.to(dtype) if x.dtype in (torch.float32, torch.float16, torch.bfloat16) else x for x in (query, key, value)]
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(kind.AutocastPrivateUse1)):
            return flex_attention(*cast, *rest)

    sys.modules[create_fw_bw_graph.__module__].create_fw_bw_graph = gradient  # type: ignore[attr-defined]
    flex_attention.py_impl(kind.PrivateUse1)(forward)
    flex_attention.py_impl(kind.AutocastPrivateUse1)(autocast)
    flex_attention_backward.py_impl(kind.PrivateUse1)(backward)


def patch() -> None:
    """Called once, when the device is registered."""
    _share_by_dlpack()
    _default_autocast_to_bfloat16()
    _send_by_value()
    _enter_compiled_functions_quickly()
    _open_flex_attention()
    _flex_attention_kernels()
