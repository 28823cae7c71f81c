"""Programs as files: what ``torch.export`` gives, saved as StableHLO with its weights, and run again without the model's code.

An artifact is a folder:

=====================  ==================================================================================================
``signature.txt``      what goes in and comes out, a line each; which program and which weights are meant; versions
``model.cpu.mlir``     StableHLO text, as XLA:CPU runs it best
``model.tpu.mlir``     the same program as a TPU runs it best
``model.safetensors``  parameters, buffers and constants by their names: may be replaced by others of the same types and sizes
=====================  ==================================================================================================

``load`` runs it from Python, ``examples/run_artifact`` from C; any runtime of StableHLO can. Buffers that the model changes
(BatchNorm's statistics, a cache) are results that are written back. Checks of data are left out: a bad index is no error there.

Example:
    >>> import torch, torch_tpu.export
    >>> ep = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(4, 3),))
    >>> torch_tpu.export.save(ep, "linear")
    >>> f = torch_tpu.export.load("linear")
    >>> f(torch.ones(4, 3, device="tpu")).shape
    torch.Size([4, 2])
"""

from __future__ import annotations

import functools
import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree

from torch_tpu import _artifact
from torch_tpu._artifact import _C, Signature, Slot
from torch_tpu._compile import regions
from torch_tpu._decompose import GraphBuilder, Untraceable, _Table, row_name, table

__all__ = ["Artifact", "load", "save"]

_KINDS = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant", "USER_INPUT": "user"}
_WRITES = ("BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION")


# -------------------------------------------------------------------------------------------------------------- saving


def save(ep: torch.export.ExportedProgram, path: str | os.PathLike[str]) -> None:
    """Save a program as an artifact.

    Args:
        ep: of ``torch.export.export``, on whatever device; its sizes must be fixed.
        path: the folder; made if need be, an artifact there is replaced.

    Raises:
        TypeError: if ``ep`` is something else.
        NotImplementedError: if the program cannot be one: sizes that vary or depend on data, random numbers, ops
            without a row.
    """
    if not isinstance(ep, torch.export.ExportedProgram):
        raise TypeError(f"expected what torch.export.export(model, arguments) gives, got {type(ep).__name__}")
    _refuse(ep)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)  # PyTorch's own, of its own use of LeafSpec
        ep = ep.run_decompositions({})
    module, inputs = _trace(ep)
    signature, builder, results = _build(ep, module, inputs)
    try:
        op = builder.finish_values(results, [slot.strides for slot in signature.outputs])
        given = [(slot.number, slot.sizes) for slot in signature.inputs]
        writes = [slot.write for slot in signature.outputs]
        programs = {target: _C.graph_export(op, given, writes, target == "tpu").encode() for target in ("cpu", "tpu")}
    except Untraceable as e:
        raise NotImplementedError(f"the program cannot be exported: {e}") from e
    _artifact.write(pathlib.Path(path), signature, programs, _weights(ep, signature))


def _refuse(ep: torch.export.ExportedProgram) -> None:
    for module in ep.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) and module is not ep.graph_module else ():
            if node.op == "get_attr" and isinstance(getattr(module, str(node.target)), torch.Tensor):
                raise NotImplementedError(
                    "a branch or a loop holds a tensor made of Python's numbers: make it before, as a buffer say"
                )
    for node in ep.graph.nodes:
        val = node.meta.get("val")
        if node.op == "placeholder" and isinstance(val, torch.Tensor):
            for axis, size in enumerate(val.shape):
                if isinstance(size, torch.SymInt):
                    raise NotImplementedError(
                        f"input {node.name!r} has a dynamic size, {size} in dimension {axis}: an artifact's sizes are fixed. "
                        "Export without dynamic_shapes, once for each size that is wanted"
                    )
        elif isinstance(val, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in val.shape):
            raise NotImplementedError(f"the size of {node.target}'s result depends on data: an artifact's sizes are fixed")
        elif node.op == "placeholder" and isinstance(val, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise NotImplementedError(f"input {node.name!r} is a number that varies: an artifact takes tensors only")


def _put_on_tpu(program: fx.GraphModule) -> None:
    """All that names a device means ``tpu``, in branches and loops too."""

    def move(a: Any) -> Any:
        return torch.device("tpu") if isinstance(a, torch.device) else a

    for module in program.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            node.args, node.kwargs = _pytree.tree_map(move, (node.args, node.kwargs))
            if node.target is torch.ops.aten._assert_tensor_metadata.default:
                module.graph.erase_node(node)
        module.recompile()


def _attention(
    q: Any, k: Any, v: Any, bias: Any = None, dropout: float = 0.0, causal: bool = False, debug: bool = False, *, scale: Any = None
) -> Any:
    """Fused attention by the name that has a row."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    out, lse = flash(q, k, v, dropout, causal, attn_mask=bias, scale=scale)
    return out, lse, None, None, q.shape[2], k.shape[2], None, None, None


def _trace(ep: torch.export.ExportedProgram) -> tuple[fx.GraphModule, list[Any]]:
    """The program in ops that have a row, on fake ``tpu`` tensors; and what it was traced on."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental import proxy_tensor
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()), torch.no_grad():

        def fake(val: Any) -> Any:
            if not isinstance(val, torch.Tensor):
                return val
            return torch.empty_strided(val.shape, val.stride(), dtype=val.dtype, device="tpu")

        inputs = [fake(n.meta.get("val")) for n in ep.graph.nodes if n.op == "placeholder"]

        def run(*values: Any) -> list[Any]:
            out = fx.Interpreter(ep.graph_module).run(*values, enable_io_processing=False)
            return list(out)

        _put_on_tpu(ep.graph_module)

        decompositions = _Table(table().rows)
        decompositions[torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default] = _attention
        module = proxy_tensor.make_fx(run, decomposition_table=decompositions)(*inputs)
        if any(isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable for n in module.graph.nodes):
            module = proxy_tensor.make_fx(torch.func.functionalize(module, remove="mutations_and_views"))(*inputs)
    module.graph.eliminate_dead_code()
    return module, inputs


def _slot(kind: str, name: str, val: torch.Tensor, write: int = -1) -> Slot:
    if val.dtype not in _artifact.FILE_DTYPES or val.layout != torch.strided:
        raise NotImplementedError(f"{name!r} is a {val.layout} tensor of {val.dtype}, which an artifact has no place for")
    return Slot(kind, val.dtype, tuple(val.shape), name, write=write)


def _build(
    ep: torch.export.ExportedProgram, module: fx.GraphModule, inputs: list[Any]
) -> tuple[Signature, GraphBuilder, list[Any]]:
    """The program as a graph of the core's, what goes in and out, and the values that come out."""
    builder = GraphBuilder("exported")
    signature = Signature(in_spec=ep.call_spec.in_spec, out_spec=ep.call_spec.out_spec)
    places: dict[tuple[bool, str], int] = {}  # of the inputs, by whether they are arguments and their names
    placeholders: list[fx.Node] = []
    given = zip(ep.graph_signature.input_specs, inputs, strict=True)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            spec, val = next(given)
            if spec.kind.name not in _KINDS:
                raise NotImplementedError(f"input {node.name!r} is a {spec.kind.name.lower()}, which an artifact has no place for")
            if not isinstance(val, torch.Tensor):
                signature.fixed[len(signature.user) + len(signature.fixed)] = getattr(spec.arg, "value", None)
                continue
            kind = _KINDS[spec.kind.name]
            if kind == "user":
                signature.user[len(signature.user) + len(signature.fixed)] = len(signature.inputs)
            slot = _slot(kind, spec.target if spec.target is not None else spec.arg.name, val)
            places[kind == "user", slot.name] = len(signature.inputs)
            builder.input(node, len(signature.inputs), 0, val)
            placeholders.append(node)
            signature.inputs.append(slot)
        elif node.op == "get_attr":
            if not isinstance(value := getattr(module, str(node.target)), fx.GraphModule):
                _guarded(builder.constant, node, value)
        elif node.op == "call_function":
            if _is_random(node) or regions.any_inside(node, _is_random):
                raise NotImplementedError(f"{node.target} draws random numbers: an artifact gives the same results each time")
            _guarded(builder.call, node)
        elif node.op == "output":
            return signature, builder, _results(ep, builder, signature, placeholders, places, node.args[0])
    raise NotImplementedError("the program has no output")


@functools.cache
def _rows() -> dict[str, int]:
    return {row["name"]: row["flags"] for row in _C.ops()}


def _is_random(node: fx.Node) -> bool:
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    return _rows().get(row_name(op), 1) & 1 == 1  # fused attention has the tag, for its dropout, which the row has not


def _guarded(fn: Any, *args: Any) -> None:
    try:
        fn(*args)
    except Untraceable as e:
        raise NotImplementedError(f"the program cannot be exported: {e}") from e


def _results(
    ep: torch.export.ExportedProgram,
    builder: GraphBuilder,
    signature: Signature,
    placeholders: list[fx.Node],
    places: dict[tuple[bool, str], int],
    outputs: Sequence[Any],
) -> list[Any]:
    results: list[Any] = []
    for k, (spec, node) in enumerate(zip(ep.graph_signature.output_specs, outputs, strict=True)):
        val = node.meta["val"] if isinstance(node, fx.Node) else None
        if spec.kind.name in _WRITES:
            at = places[spec.kind.name == "USER_INPUT_MUTATION", spec.target]
            target = placeholders[at]
            results.append(builder.written(node, target))
            signature.outputs.append(_slot("write", spec.target, target.meta["val"], at))
        elif spec.kind.name not in ("USER_OUTPUT", "LOSS_OUTPUT"):
            raise NotImplementedError(f"output {k} is a {spec.kind.name.lower()}, which an artifact has no place for")
        elif not isinstance(val, torch.Tensor):
            signature.results.append(("fixed", getattr(spec.arg, "value", None)))
        else:
            taken = {x.name for x in signature.outputs}
            slot = _slot("user", spec.arg.name if spec.arg.name not in taken else f"{spec.arg.name}.{k}", val)
            if torch._prims_common.is_non_overlapping_and_dense_or_false(val):
                slot.strides = tuple(val.stride())
            signature.results.append(("tensor", len(signature.outputs)))
            results.append(builder.values[node])
            signature.outputs.append(slot)
    if not results:
        raise NotImplementedError("the program gives no tensor")
    return results


def _weights(ep: torch.export.ExportedProgram, signature: Signature) -> dict[str, torch.Tensor]:
    held = {**ep.constants, **ep.state_dict}
    return {slot.name: held[slot.name] for slot in signature.inputs if slot.kind != "user"}


# ------------------------------------------------------------------------------------------------------------- loading


class Artifact:
    """A loaded artifact: called like the model, with tensors on the device.

    Attributes:
        tensors: parameters, buffers and constants on the device, by name; a call writes those that the model changes.
    """

    def __init__(self, path: str | os.PathLike[str], device: str | torch.device = "tpu") -> None:
        folder = pathlib.Path(path)
        self.device = torch.device(device)
        if self.device.type != "tpu":
            raise ValueError(f"expected a tpu device, got {self.device}")
        s = self.signature = _artifact.read(folder)
        index = self.device.index if self.device.index is not None else _C.current_device()
        target = "cpu" if _C.device_info(index)["simulated"] else "tpu"
        text = _artifact.read_program(folder, s, target)
        held = _artifact.read_weights(folder, s)
        self.tensors = {name: t.to(self.device) for name, t in held.items()}
        given = [(slot.number, slot.sizes) for slot in s.inputs]
        results = [(slot.number, slot.sizes, slot.strides) for slot in s.outputs]
        self._writes = [slot.write for slot in s.outputs]
        op = _C.module_load(folder.name or "artifact", text, given, results, self._writes)
        into = self._writes if any(w >= 0 for w in self._writes) else []
        self._program = _C.Program(op, list(range(len(given))), into, None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises:
        TypeError: if the arguments are not of the structure the program was exported with.
        ValueError: if one has another type, size or device.
        """
        s = self.signature
        flat = _flat(s, args, kwargs)
        for i, want in s.fixed.items():
            if type(flat[i]) is not type(want) or flat[i] != want:
                raise ValueError(f"argument {i} is {flat[i]!r}; the program was exported with {want!r}, which is part of it")
        user = {at: self._checked(flat[i], s.inputs[at]) for i, at in s.user.items()}
        inputs = [user[at] if at in user else self.tensors[slot.name] for at, slot in enumerate(s.inputs)]
        fresh = iter(self._run(inputs, user))
        out = [None if slot.write >= 0 else next(fresh) for slot in s.outputs]
        values = [out[v] if kind == "tensor" else v for kind, v in s.results]
        return values if s.out_spec is None else _pytree.tree_unflatten(values, s.out_spec)

    def _run(self, inputs: list[torch.Tensor], user: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        try:
            return self._program(*inputs)
        except NotImplementedError:  # some input is a part of a tensor, or shares memory with one that is written
            own = [x.clone(memory_format=torch.contiguous_format) if at in user else x for at, x in enumerate(inputs)]
        out = self._program(*own)
        for at in self._writes:
            if at in user:
                inputs[at].copy_(own[at])
        return out

    def _checked(self, x: Any, slot: Slot) -> torch.Tensor:
        if not isinstance(x, torch.Tensor):
            raise ValueError(f"{slot.name}: expected a tensor, got {type(x).__name__}")
        if x.dtype != slot.dtype or tuple(x.shape) != slot.sizes or x.device.type != "tpu":
            raise ValueError(
                f"{slot.name}: expected {slot.dtype} of {slot.sizes} on tpu, got {x.dtype} of {tuple(x.shape)} on {x.device.type}"
            )
        return x.detach()


def _flat(s: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    if s.in_spec is None:
        flat: list[Any] = _pytree.tree_leaves((args, kwargs))
        if len(flat) != len(s.user) + len(s.fixed):
            raise TypeError(f"expected {len(s.user) + len(s.fixed)} arguments, got {len(flat)}")
        return flat
    names = s.in_spec.child(1).context if s.in_spec.num_children == 2 else None
    if names and set(names) == set(kwargs):
        kwargs = {n: kwargs[n] for n in names}
    flat, spec = _pytree.tree_flatten((args, kwargs))
    if spec != s.in_spec:
        raise TypeError(f"expected arguments of the structure {s.in_spec}, got {spec}")
    return flat


def load(path: str | os.PathLike[str], device: str | torch.device = "tpu") -> Artifact:
    """Load an artifact and put its weights on a device.

    Args:
        path: the folder that :func:`save` wrote.
        device: a ``tpu`` device.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is damaged, if its files do not belong together, or if a newer version made it.
    """
    return Artifact(path, device)
