"""The programs of a compiled graph, and what runs between them."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torch_tpu._bounds import stats
from torch_tpu._compile import spared, watch
from torch_tpu._compile.bounded import Bounded, placed
from torch_tpu._compile.saved import Place, Saved, fill
from torch_tpu._compile.sizes import Sizes
from torch_tpu._compile.stages import stages, writes
from torch_tpu._compile.sums import join_products
from torch_tpu._decompose import GraphBuilder, Untraceable
from torch_tpu._patch import on_tpu
from torch_tpu._settings import number

_C: Any = sys.modules["torch_tpu._C"]


def _kind_of_dtype(dtype: torch.dtype) -> int:
    """The core's kind of a number: 0 bool, 1 int, 2 float, 3 complex."""
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype == torch.bool else 1


class Program:
    """One program of a compiled graph, made once for each set of sizes it meets.

    Args:
        nodes: what it computes, in order.
        escapes: those of them that are read outside.
        slot: each node's place in a call's environment.
    """

    def __init__(
        self,
        name: str,
        nodes: list[fx.Node],
        escapes: set[fx.Node],
        slot: dict[fx.Node, int],
        sizes: Sizes,
        settings: Mapping[str, Any],
    ) -> None:
        self.name, self.nodes, self.sizes, self.slot = name, nodes, sizes, slot
        self.settings, self.dump = number(settings), settings.get("dump")
        inside = set(nodes)
        reads = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside)
        self.tensors = [n for n in reads if isinstance(n.meta.get("val"), torch.Tensor)]
        self.floats = [n for n in reads if isinstance(n.meta.get("val"), torch.SymFloat)]
        self.ints = [n for n in reads if isinstance(n.meta.get("val"), torch.SymInt | int | bool | torch.SymBool)]
        self.fresh = [n for n in nodes if n in escapes and not writes(n) and not isinstance(n.meta["val"], list | tuple)]
        self.written = [n for n in nodes if writes(n)]
        self.into = [self.tensors.index(n.args[0]) for n in self.written]  # type: ignore[arg-type]
        self.into += [-1] * len(self.fresh) if self.written else []
        self.inputs = [slot[n] for n in self.tensors + self.floats]
        self.fills = [slot[n] for n in self.fresh]
        self.ids: dict[tuple[int, ...], int] = {}
        self.ops: dict[tuple[int, ...], Callable[..., list[Any]]] = {}
        # Results, by their slots, that say where in a storage they are.
        self.moved: dict[tuple[int, ...], list[tuple[int, tuple[list[int], int]]]] = {}
        self.bounded = Bounded(self) if sizes.where else None

    def build(self, values: tuple[int, ...]) -> int:
        """The op id of the program for these sizes.

        Raises:
            Untraceable, NotImplementedError: if it cannot be one.
        """
        resolve = self.sizes.resolve
        builder = GraphBuilder(self.name, lambda size: resolve(size, values))
        for i, n in enumerate(self.tensors):
            val = n.meta["val"]
            if on_tpu(val):
                builder.input(n, i, 0, val)
            else:
                builder.number(n, i, _kind_of_dtype(val.dtype))
        for i, n in enumerate(self.floats):
            builder.number(n, len(self.tensors) + i, 2)
        for n in self.ints:
            builder.values[n] = resolve(n.meta["val"], values)
        for node in self.nodes:
            if not writes(node):
                watch.add(builder, node)
        results = [builder.written(n.args[1], n.args[0]) for n in self.written]  # type: ignore[arg-type]
        results += [builder.values[n] for n in self.fresh]
        strides = [self._strides(n, values) for n in self.fresh]
        return builder.finish_values(results, [None] * len(self.written) + strides)

    def _strides(self, node: fx.Node, values: tuple[int, ...]) -> list[int] | None:
        val = node.meta["val"]
        dense = torch._prims_common.is_non_overlapping_and_dense_or_false(val)
        return [self.sizes.resolve(s, values) for s in val.stride()] if dense else None

    def _place(self, node: fx.Node, values: tuple[int, ...]) -> tuple[list[int], int] | None:
        """Strides and offset of a result that is not all of a storage, as only a view is."""
        val = node.meta["val"]
        if not isinstance(val, torch.Tensor):
            return None
        offset = self.sizes.resolve(val.storage_offset(), values)
        if offset == 0 and torch._prims_common.is_non_overlapping_and_dense_or_false(val):
            return None
        return [self.sizes.resolve(s, values) for s in val.stride()], offset

    def __call__(self, env: list[Any], values: tuple[int, ...]) -> None:
        bounded = self.bounded  # another thread may find out that it is of no use
        if bounded is not None:
            try:
                bounded(env, values)
                return
            except (Untraceable, NotImplementedError) as e:
                stats.refuse(self.name, e)
                self.bounded = None
        op = self.ops.get(values)
        if op is None:
            spared.put_off_collection()
            with watch.dumping(self.dump):
                made = self.ids[values] = self.build(values)
                op = _C.Program(made, self.inputs, self.into, None, self.settings)
                where = [(i, self._place(n, values)) for i, n in zip(self.fills, self.fresh, strict=True) if values]
                self.moved[values] = [(i, at) for i, at in where if at is not None]
                self.ops[values] = op  # last: other threads call what they find here
                out = op(*env)
            stats.exact += bool(values)
        else:
            out = op(*env)
        for i, t in zip(self.fills, out, strict=True):
            env[i] = t
        for i, at in self.moved[values]:
            env[i] = placed(env[i], *at)


class Stage:
    """A program, or where it cannot be one its ops one by one."""

    def __init__(self, program: Program, calls: list[_Call | _Items]) -> None:
        self.program: Program | None = program
        self.calls = calls

    def __call__(self, env: list[Any], values: tuple[int, ...]) -> None:
        program = self.program
        if program is not None:
            try:
                program(env, values)
                return
            except (Untraceable, NotImplementedError) as e:
                refused[program.name] = e
                self.program = None
        for call in self.calls:
            call(env, values)


refused: dict[str, Exception] = {}
"""Why a stage is not run as a program, for bug reports."""


def _reader(arg: Any) -> Callable[[list[Any]], Any]:
    """What gives an argument of an op out of a call's environment; lists of values and constants need no search for places."""
    if isinstance(arg, Place):
        return operator.itemgetter(int(arg))
    if type(arg) is list and len(arg) > 1 and all(isinstance(e, Place) for e in arg):
        get = operator.itemgetter(*map(int, arg))
        return lambda env: list(get(env))
    if isinstance(arg, list | tuple | dict):
        return lambda env: fill(arg, env)
    return lambda env: arg


class _Call:
    """One op called as in eager mode."""

    def __init__(self, node: fx.Node, slot: dict[fx.Node, int]) -> None:
        self.node = node
        self.target: Any = node.target
        self.out = slot[node]
        self.args = [_placed(a, slot) for a in node.args]
        self.readers = [_reader(a) for a in self.args]
        self.named = {k: _reader(_placed(a, slot)) for k, a in node.kwargs.items()}

    def __call__(self, env: list[Any], values: tuple[int, ...]) -> None:
        got = self.target(*[read(env) for read in self.readers], **{k: read(env) for k, read in self.named.items()})
        if isinstance(got, tuple) and any(v is None for v in got):  # fused attention's seeds, which nobody reads
            got = tuple(torch.empty(0, device="tpu") if v is None else v for v in got)
        env[self.out] = got


def _placed(arg: Any, slot: dict[fx.Node, int]) -> Any:
    """``arg`` with places for its nodes, in plain lists."""
    got = fx.node.map_arg(arg, lambda n: Place(slot[n]))
    return list(got) if isinstance(got, list) else got


class _Items:
    """Those of a list of results, as an optimizer has many."""

    def __init__(self, source: int, items: list[tuple[int, int]]) -> None:
        self.source, self.items = source, items

    def __call__(self, env: list[Any], values: tuple[int, ...]) -> None:
        got = env[self.source]
        for out, k in self.items:
            env[out] = got[k]


def _calls(nodes: list[fx.Node], slot: dict[fx.Node, int]) -> list[_Call | _Items]:
    """The nodes called one by one. What is taken from one list is taken at once."""
    calls: list[_Call | _Items] = []
    for n in nodes:
        if n.target is not operator.getitem or not isinstance(n.args[0], fx.Node) or not isinstance(n.args[1], int):
            calls.append(_Call(n, slot))
            continue
        source, last = slot[n.args[0]], calls[-1] if calls else None
        if isinstance(last, _Items) and last.source == source:
            last.items.append((slot[n], n.args[1]))
        else:
            calls.append(_Items(source, [(slot[n], n.args[1])]))
    return calls


class _Forget:
    """Values that no later stage reads are let go, and with them their memory."""

    def __init__(self, slots: list[int]) -> None:
        self.slots = slots

    def __call__(self, env: list[Any], values: tuple[int, ...]) -> None:
        for i in self.slots:
            env[i] = None


class Compiled(Saved):
    """A compiled graph: called with its inputs in a list, which it empties, it returns its outputs."""

    def __init__(
        self,
        name: str,
        module: fx.GraphModule,
        settings: Mapping[str, Any] | None = None,
        known: Sequence[int | None] | None = None,
    ) -> None:
        """``known``: the nodes' stages, of a graph that was kept."""
        super().__init__()
        settings = dict(settings or {})
        self._time_taken_ns = 0
        self._boxed_call = True  # an attribute of the instance, for wrappers copy those
        join_products(module.graph)
        watch.dump_graph(name, module)
        nodes = list(module.graph.nodes)
        slot = {n: i for i, n in enumerate(nodes)}
        placeholders = [n for n in nodes if n.op == "placeholder"]
        # What follows the inputs in a call's environment at its start: the graph's constants in their places.
        self.rest = [getattr(module, str(n.target)) if n.op == "get_attr" else None for n in nodes[len(placeholders) :]]
        self.nargs = len(placeholders)
        self.sizes = Sizes(placeholders)
        self.steps: list[Callable[[list[Any], tuple[int, ...]], None]] = []
        stage = stages(module.graph) if known is None else {n: at for n, at in zip(nodes, known, strict=True) if at is not None}
        self._made_of = name, module, settings, [stage.get(n) for n in nodes]
        end = max(stage.values(), default=-1)
        returned = {n.args[0] if writes(n) else n for n in nodes[-1].all_input_nodes}
        done = {n: max([stage.get(n, 0), *(stage.get(u, end) for u in n.users)]) for n in nodes if n not in returned}
        for at in range(end + 1):
            here = [n for n in nodes if stage.get(n) == at]
            calls = _calls(here, slot)
            if at % 2 == 0:
                self.steps += calls
            elif here:
                inside = set(here)
                escapes = {n for n in here if any(u not in inside for u in n.users)}
                self.steps.append(Stage(Program(f"{name}_{at}", here, escapes, slot, self.sizes, settings), calls))
            if here and at < end:
                self.steps.append(_Forget([slot[n] for n, last in done.items() if last == at]))
        # What a write gives is the input that it writes.
        self.outputs = fx.node.map_arg(list(nodes[-1].args[0]), lambda n: Place(slot[n.args[0] if writes(n) else n]))
        # A graph of known sizes that is one program and nothing else is called without all this from its second call on.
        self.direct: Callable[..., list[Any]] | None = None
        simple = len(self.steps) == 1 and not self.sizes.where and not any(isinstance(c, torch.Tensor) for c in self.rest)
        self.only = self.steps[0] if simple and isinstance(self.steps[0], Stage) else None

    def flat(self, *args: Any) -> list[Any]:
        """The same with the inputs as arguments."""
        return self.direct(*args) if self.direct is not None else self(list(args))

    def _go_direct(self) -> None:
        """The one program again, giving what the graph returns."""
        program = self.only.program if self.only is not None else None
        self.only = None
        if program is None:  # it was refused
            return
        places = [program.fills.index(o) if o in program.fills else -2 - o if isinstance(o, Place) else o for o in self.outputs]
        if all(isinstance(o, Place) or o is None for o in self.outputs):
            op = program.ids[()]
            self.direct = _C.Program(op, program.inputs, program.into, [-1 if o is None else o for o in places], program.settings)

    def __call__(self, args: list[Any]) -> list[Any]:  # type: ignore[override]  # AOTAutograd gives a list
        if self.direct is not None:
            out = self.direct(*args)
            args.clear()
            return out
        values = self.sizes.values(args)
        env = args + self.rest
        args.clear()
        for step in self.steps:
            step(env, values)
        if self.only is not None:
            self._go_direct()
        return fill(self.outputs, env)
