"""FlexAttention: the higher order ops ``flex_attention`` and ``flex_attention_backward`` as one row each, in a program of a
compiled graph or, called eagerly, in a program of their own.

The user's ``score_mod`` and ``mask_mod`` are traced as they apply to one tile of scores (:class:`Tiles`), and become graphs of the
core's that the row lowers in the body of its loops. What cannot be traced so is computed by PyTorch's own dense implementation.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._higher_order_ops.flex_attention import _permute_strides, sdpa_dense, sdpa_dense_backward
from torch.nn.attention.flex_attention import _vmap_for_bhqkv

from torch_tpu import _decompose
from torch_tpu._decompose import GraphBuilder, Untraceable

_C: Any = sys.modules["torch_tpu._C"]
_aten = torch.ops.aten

_library = torch.library.Library("tpu", "FRAGMENT")
_SHARED = (
    "Tensor q, Tensor k, Tensor v, Tensor num, Tensor idx, Tensor? full_num, Tensor? full_idx, Tensor[] score_buffers, "
    "Tensor[] mask_buffers, float scale, int score, int mask, int q_block, int kv_block, int q_tile, int kv_tile, "
    "bool natural"
)
_library.define(f"_flex_forward({_SHARED}) -> (Tensor, Tensor, Tensor)")
_library.define(f"_flex_backward({_SHARED}, Tensor out, Tensor lse, Tensor? grad_out, Tensor? grad_lse, int joint) -> Tensor[]")

Examples = list[tuple[torch.dtype, Sequence[int]]]

_TILE = 128  # rows of a tile at most: src/op/attention.h says why


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How the scores are cut. One tile is ``shape`` of scores, b, h, q, kv."""

    shape: tuple[int, int, int, int]
    score_type: torch.dtype
    q_block: int
    kv_block: int

    @property
    def numbers(self) -> list[int]:
        """As the rows take them."""
        return [min(self.q_block, 2**31 - 1), min(self.kv_block, 2**31 - 1), self.shape[2], self.shape[3]]


def _tile(block: int, length: int) -> int:
    """The largest part of a block that is a tile; all of it if that is all there is."""
    if length <= min(block, _TILE):
        return length
    return next(n for n in range(min(block, _TILE), 0, -1) if block % n == 0)


def tiles(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Sequence[Any], size: Callable[[Any], int] = int) -> Tiles:
    """How to cut a call's scores.

    Args:
        mask: ``BlockMask.as_tuple()``.
        size: makes a number of a size.

    Raises:
        Untraceable: if the call is none that the rows take.
    """
    (b, h, t, _), (bk, _, s, _) = (tuple(size(n) for n in x.shape) for x in (q, k))
    mb, mh = (size(n) for n in mask[3].shape[:2])
    if 0 in (b, h, t, s) or bk not in (1, b) or mb not in (1, b) or mh not in (1, h) or v.dim() != 4 or not q.is_floating_point():
        raise Untraceable("flex_attention of these shapes")
    q_block, kv_block = size(mask[14]), size(mask[15])
    score_type = torch.float64 if q.dtype == torch.float64 else torch.float32
    return Tiles((b // mb, h // mh, _tile(q_block, t), _tile(kv_block, s)), score_type, q_block, kv_block)


# ------------------------------------------------------------------------------------------------------- user's functions


def _scatter(shape: list[int], indices: list[torch.Tensor], vals: torch.Tensor) -> torch.Tensor:
    """``flex_lib.zeros_and_scatter``, where values that go to one place because an index does not vary are summed first."""
    if not indices:
        return vals.sum()
    for d in range(vals.dim()):
        if vals.shape[d] > 1 and all(i.stride(d) == 0 for i in indices):
            vals = vals.sum(d, keepdim=True)
            indices = [i.narrow(d, 0, 1) for i in indices]
    return _aten.index_put(vals.new_zeros(shape), indices, vals, True)


@functools.cache
def _table() -> dict[Any, Any]:
    table = _decompose.new_table()
    table.met.add(torch.ops.flex_lib.zeros_and_scatter.default)
    table[torch.ops.flex_lib.zeros_and_scatter.default] = _scatter
    return table


def _trace(fn: Callable[..., Any], *examples: tuple[torch.dtype, Sequence[int]]) -> fx.GraphModule:
    """A functional graph of ops that have rows, of inputs on the device with these types and shapes."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental import proxy_tensor
    from torch.utils._python_dispatch import _disable_current_modes

    def run(*inputs: Any) -> Any:
        with TransformGetItemToIndex(), proxy_tensor.decompose(_table()):
            got = fn(*inputs)
            return list(got) if isinstance(got, list | tuple) else [got]

    try:
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
            inputs = [torch.empty(tuple(sizes), dtype=dtype, device="tpu") for dtype, sizes in examples]
            module = proxy_tensor.make_fx(run)(*inputs)
            if any(isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable for n in module.graph.nodes):
                module = proxy_tensor.make_fx(torch.func.functionalize(module, remove="mutations_and_views"))(*inputs)
    except Exception as e:  # whatever the user's function does that cannot be traced
        raise Untraceable(f"flex_attention's function cannot be traced: {e}") from e
    module.graph.eliminate_dead_code()
    return module


def _finish(name: str, module: fx.GraphModule) -> int:
    inputs = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    return _decompose._build(name, module, inputs, [(i, 0) for i in range(len(inputs))])


def _indices(t: Tiles) -> Examples:
    return [(torch.int32, (n,)) for n in t.shape]


def _with_numbers(fn: Callable[..., Any], buffers: Sequence[Any]) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """``fn`` of the tensors among the buffers that come last, and those: numbers are put in."""
    tensors = [x for x in buffers if isinstance(x, torch.Tensor)]
    if len(tensors) == len(buffers):
        return fn, tensors

    def of_tensors(*args: Any) -> Any:
        n = len(args) - len(tensors)
        rest = iter(args[n:])
        return fn(*args[:n], *(next(rest) if isinstance(x, torch.Tensor) else x for x in buffers))

    return of_tensors, tensors


def _output(module: fx.GraphModule) -> Any:
    """The results, in a list."""
    return next(n for n in module.graph.nodes if n.op == "output").args[0]


def score_graph(fn: Callable[..., Any], t: Tiles, buffers: Examples) -> int:
    """``score_mod``'s graph, -1 if it changes nothing."""
    mapped = _vmap_for_bhqkv(fn, prefix=(0,), suffix=(None,) * len(buffers))
    module = _trace(mapped, (t.score_type, t.shape), *_indices(t), *buffers)
    if _output(module)[0] is next(iter(module.graph.nodes)):
        return -1
    return _finish("flex_score", module)


def _always(node: fx.Node) -> bool:
    """Whether a mask is true everywhere."""
    while node.target in (_aten.expand.default, _aten.view.default, _aten.unsqueeze.default, _aten.permute.default):
        node = node.args[0]  # type: ignore[assignment]
    if node.target in (_aten.ones.default, _aten.new_ones.default, _aten.ones_like.default):
        return True
    fills: dict[Any, int] = {_aten.full.default: 1, _aten.full_like.default: 1, _aten.new_full.default: 2}
    fill = fills.get(node.target)
    return fill is not None and bool(node.args[fill] == 1)


def mask_graph(fn: Callable[..., Any], t: Tiles, buffers: Examples) -> int:
    """``mask_mod``'s graph, -1 if it lets everything through."""
    mapped = _vmap_for_bhqkv(fn, prefix=(), suffix=(None,) * len(buffers))
    module = _trace(mapped, *_indices(t), *buffers)
    return -1 if _always(_output(module)[0]) else _finish("flex_mask", module)


def _add_to(graph: fx.Graph, total: fx.Node, node: fx.Node) -> fx.Node:
    """A node for total + node; what is scattered is scattered into the total, which can then be done in place."""

    def call(target: Any, *args: Any) -> fx.Node:
        new = graph.call_function(target, args)
        new.meta["val"] = total.meta["val"]
        return new

    if node.target is _aten.add.Tensor and all(isinstance(a, fx.Node) for a in node.args[:2]) and not node.kwargs:
        return _add_to(graph, _add_to(graph, total, node.args[0]), node.args[1])  # type: ignore[arg-type]
    if node.target is _aten.index_put.default and node.args[3:] == (True,):
        vals: Any = node.args[2]
        dtype = total.meta["val"].dtype
        if vals.meta["val"].dtype != dtype:
            with vals.meta["val"].fake_mode:
                wide = vals.meta["val"].to(dtype)
            vals = graph.call_function(_aten._to_copy.default, (vals,), {"dtype": dtype})
            vals.meta["val"] = wide
        return call(_aten.index_put.default, total, node.args[1], vals, True)
    return call(_aten.add.Tensor, total, node)


def joint_graph(fn: Any, t: Tiles, buffers: Sequence[Any], examples: Examples) -> tuple[int, list[bool]]:
    """The gradient's graph, -1 if that of the scores is what comes in and no buffer has one; and which tensors among the buffers
    have one."""
    is_tensor = [isinstance(x, torch.Tensor) for x in buffers]
    has = [g is not None for g, tensor in zip(_output(fn)[5:], is_tensor, strict=True) if tensor]
    of_tensors, _ = _with_numbers(fn, buffers)
    scatter = torch.ops.flex_lib.zeros_and_scatter.default

    def each(*args: Any) -> list[Any]:
        grad, _, _, _, _, *rest = of_tensors(*args)
        return [grad, *(scatter([], [], g) if g.dim() == 0 else g for g in rest if g is not None)]

    none = (None,) * len(examples)
    mapped = _vmap_for_bhqkv(each, (0,), (0, *none), [0] + [None] * sum(has))
    module = _trace(mapped, (t.score_type, t.shape), *_indices(t), (t.score_type, t.shape), *examples)
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    grad, *sums = _output(module)
    if grad is inputs[5] and not sums:
        return -1, has
    _take_totals(module.graph, inputs[-1], sums)
    return _finish("flex_joint", module), has


def _take_totals(graph: fx.Graph, last: fx.Node, sums: list[fx.Node]) -> None:
    """Make each of these results, but for the first, an input plus what it was."""
    output = next(n for n in graph.nodes if n.op == "output")
    results = [output.args[0][0]]
    for k, node in enumerate(sums):
        val = node.meta["val"]
        wide = torch.promote_types(val.dtype, torch.float32)
        with graph.inserting_after(last), val.fake_mode:
            last = graph.placeholder(f"total_{k}")
            last.meta["val"] = torch.empty(val.shape, dtype=wide, device="tpu")
        with graph.inserting_before(output):
            results.append(_add_to(graph, last, node))
    output.args = (results,)
    graph.eliminate_dead_code()


# --------------------------------------------------------------------------------------------------------------- the rows


def _function(a: Any) -> Callable[..., Any]:
    """The function that an argument is, or stands for."""
    if not isinstance(a, fx.Node):
        return a
    owner = a.graph.owning_module
    if a.op != "get_attr" or owner is None:
        raise Untraceable("flex_attention's function is no attribute of its graph")
    return functools.reduce(getattr, str(a.target).split("."), owner)


class _Shared:
    """What both rows take, from a node's arguments."""

    def __init__(self, builder: GraphBuilder, q: Any, k: Any, v: Any, score_mod: Any, mask: Any, rest: Sequence[Any]) -> None:
        self.builder = builder
        scale, options, *buffers = rest
        score, masked = (*buffers, (), ())[:2]
        self.t = tiles(self.plain(q), self.plain(k), self.plain(v), [self.plain(a) for a in mask[:-1]], builder.size)
        self.buffers, self.examples, nodes = self._split(score)
        mask_plain, mask_examples, mask_nodes = self._split(masked)
        self.arguments = [
            *(self.builder.value(a) for a in (q, k, v, *mask[2:6])),
            nodes,
            mask_nodes,
            float(self.plain(scale)),
            score_graph(_with_numbers(_function(score_mod), self.buffers)[0], self.t, self.examples),
            mask_graph(_with_numbers(_function(mask[-1]), mask_plain)[0], self.t, mask_examples),
            *self.t.numbers,
            options.get("BACKEND") == "FLASH",  # whose logsumexp the caller takes for a natural one
        ]

    def plain(self, a: Any) -> Any:
        """A tensor's description, or a number."""
        val = a.meta["val"] if isinstance(a, fx.Node) else a
        return val if isinstance(val, torch.Tensor) else self.builder.value(a)

    def _split(self, buffers: Sequence[Any]) -> tuple[list[Any], Examples, list[Any]]:
        plain = [self.plain(x) for x in buffers]
        values = [self.builder.value(x) for x, p in zip(buffers, plain, strict=True) if isinstance(p, torch.Tensor)]
        if any(not isinstance(x, int) for x in values):
            raise Untraceable("flex_attention captures a tensor of the cpu")
        size = self.builder.size
        return plain, [(x.dtype, [size(n) for n in x.shape]) for x in plain if isinstance(x, torch.Tensor)], values


def lower_forward(builder: GraphBuilder, args: Sequence[Any], val: Sequence[torch.Tensor]) -> list[Any]:
    """The values of a ``flex_attention``.

    Args:
        args: the op's; tensors, and numbers that are known later, are nodes that the builder has values of.
        val: what the results look like.

    Raises:
        Untraceable, NotImplementedError: if it is none that the row takes.
    """
    q, k, v, score_mod, mask, *rest = args
    call = _Shared(builder, q, k, v, score_mod, mask, rest)
    return builder.node("tpu::_flex_forward", call.arguments, [builder.spec(x) for x in val])


def lower_backward(builder: GraphBuilder, args: Sequence[Any], val: Sequence[Any]) -> list[Any]:
    """The values of a ``flex_attention_backward``: as above. Those of buffers are a list, with None where there is no gradient."""
    q, k, v, out, lse, grad, grad_lse, score_mod, joint, mask, *rest = args
    call = _Shared(builder, q, k, v, score_mod, mask, rest)
    graph, has = joint_graph(_function(joint), call.t, call.buffers, call.examples)
    grads = [g for g, x in zip(val[3], call.buffers, strict=True) if isinstance(x, torch.Tensor)]
    specs = [builder.spec(x) for x in val[:3]] + [builder.spec(g) if h else None for g, h in zip(grads, has, strict=True)]
    tail = [builder.value(a) for a in (out, lse, grad, grad_lse)]
    got = builder.node("tpu::_flex_backward", [*call.arguments, *tail, graph], specs)
    given = iter([g if h else None for g, h in zip(got[3:], has, strict=True)])
    return [*got[:3], [next(given) if isinstance(x, torch.Tensor) else None for x in call.buffers]]


# ------------------------------------------------------------------------------------------------------- called one by one

_programs: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
"""By score_mod: by all else that a program depends on, the program, how its results lie, and what has to live as long."""


def _program(lower: Callable[..., Any], args: Any, tensors: list[torch.Tensor], val: Sequence[Any]) -> tuple[Any, Any]:
    """A program of one op, of these tensors, and its results with each one's place in what the program gives."""
    builder = GraphBuilder(lower.__name__.replace("lower", "flex"))
    graph = fx.Graph()
    nodes: dict[int, fx.Node] = {}
    for i, x in enumerate(tensors):
        nodes[id(x)] = node = graph.placeholder(f"x{i}")
        node.meta["val"] = x.detach()
        builder.input(node, i, 0, x)
    given = pytree.tree_map_only(torch.Tensor, lambda x: nodes[id(x)], args)
    got, tree = pytree.tree_flatten(lower(builder, given, val))
    like = [x for x, v in zip(pytree.tree_leaves(val), got, strict=True) if v is not None]
    op = builder.finish_values([v for v in got if v is not None], [list(x.stride()) for x in like])
    for node in nodes.values():
        node.meta.clear()
    places = iter(range(len(got)))
    order = pytree.tree_unflatten([None if v is None else next(places) for v in got], tree)
    return _C.Program(op, list(range(len(tensors))), [], None), order


def _run(lower: Callable[..., Any], args: list[Any], mods: tuple[Any, Any], variant: Any, val: Callable[[], Sequence[Any]]) -> Any:
    """The op's results, None where there is none.

    Args:
        mods: score_mod, which programs are kept with, and mask_mod.
        variant: what else tells programs apart that the other arguments do not.
        val: describes the results.

    Raises:
        Untraceable, NotImplementedError: if it is none that the row takes.
    """
    leaves = [x for x in pytree.tree_leaves(args) if not callable(x)]
    tensors = list({id(x): x for x in leaves if isinstance(x, torch.Tensor)}.values())
    places = {id(x): i for i, x in enumerate(tensors)}
    described = [(places[id(x)], x.dtype, x.shape, x.stride()) if isinstance(x, torch.Tensor) else x for x in leaves]
    key = (lower, id(mods[1]), variant, *described)
    known = _programs.setdefault(mods[0], {})
    if key not in known:
        known[key] = (*_program(lower, args, tensors, val()), mods[1])
    program, order, _ = known[key]
    got = program(*tensors)
    return pytree.tree_map(lambda k: None if k is None else got[k], order)


_gradients: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
"""By score_mod: by what it is called with, the graph of its gradient."""


def gradient(make: Callable[..., Any], score_mod: Any, index_values: Sequence[torch.Tensor], buffers: Sequence[Any]) -> Any:
    """``make(score_mod, index_values, buffers)``, which traces, once for each kind of arguments."""

    def kind(x: Any) -> Any:
        return (x.dtype, x.device, x.shape, x.stride(), x.requires_grad) if isinstance(x, torch.Tensor) else x

    if not all(type(x) in (torch.Tensor, torch.nn.Parameter, int) for x in buffers):
        return make(score_mod, index_values, buffers)
    known = _gradients.setdefault(score_mod, {})
    key = (*(kind(x) for x in index_values), *(kind(x) for x in buffers))
    if key not in known:
        known[key] = make(score_mod, index_values, buffers)[1]  # the first is score_mod, which must not keep itself alive
    return score_mod, known[key]


def _like(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """What an op gives of these sizes: laid out as ``x`` is."""
    return _permute_strides(torch.empty(sizes, dtype=x.dtype, device="meta"), x.stride())


def _kept(options: dict[str, Any]) -> dict[str, Any]:
    """Those that make a difference here."""
    return {k: v for k, v in options.items() if k == "BACKEND"}


def forward(q: Any, k: Any, v: Any, score_mod: Any, mask: Any, scale: Any, options: Any, score: Any = (), masked: Any = ()) -> Any:
    def val() -> list[torch.Tensor]:
        rows = torch.empty(q.shape[:3], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32, device="meta")
        return [_like(q, (*q.shape[:3], v.shape[3])), rows, rows]

    try:
        args = [q, k, v, score_mod, mask, scale, _kept(options), score, masked]
        return tuple(_run(lower_forward, args, (score_mod, mask[-1]), None, val))
    except (Untraceable, NotImplementedError) as e:
        _decompose.failures["flex_attention"] = e
        return sdpa_dense(q, k, v, score_mod, mask, scale, options, score, masked)


def backward(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    grad: Any,
    grad_lse: Any,
    score_mod: Any,
    joint: Any,
    mask: Any,
    scale: Any,
    options: Any,
    score: Any = (),
    masked: Any = (),
) -> Any:
    def val() -> list[Any]:
        buffers = [torch.empty(x.shape, dtype=x.dtype, device="meta") if isinstance(x, torch.Tensor) else None for x in score]
        return [*(_like(x, x.shape) for x in (q, k, v)), buffers]

    try:
        if joint is None or not q.dtype == k.dtype == v.dtype:
            raise Untraceable("flex_attention_backward has no gradient function, or inputs of several types")
        args = [q, k, v, out, lse, grad, grad_lse, score_mod, joint, mask, scale, _kept(options), score, masked]
        which = tuple(g is not None for g in _output(joint))
        *firsts, grads = _run(lower_backward, args, (score_mod, mask[-1]), which, val)
        return *firsts, tuple(grads)
    except (Untraceable, NotImplementedError) as e:
        _decompose.failures["flex_attention_backward"] = e
        given = (q, k, v, out, lse, grad, grad_lse, score_mod, joint, mask, scale, options, score, masked)
        return sdpa_dense_backward(*given)
