"""One case of the op driver in compiled code: one op of PyTorch's own op database, as a graph of ``torch.compile``'s.

Modes
    static     the graph of one sample: results, dtypes, sizes, strides and aliasing equal eager CPU PyTorch's, so do first-order
               gradients, and every op that has a row ran in a program
    dynamic    the same of a graph whose sizes are all symbols, with other sizes too where the sample can be stretched, and with
               NaN in the padding
    dynamo     the same as static and dynamic, through Dynamo

Dynamo takes longer than all that follows, so ``static`` and ``dynamic`` do without: the backend is given what Dynamo would give
it, a module that calls the op, with fake tensors.
"""

import opcase
import torch
from opcase import Call, Mismatch, Nothing, clone, describe, raised, tensors
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch_tpu import _compile
from torch_tpu._compile import bounded, program
from torch_tpu._compile.stages import _usable, on_tpu
from torch_tpu._decompose import _UNDEFINED, row_name

MODES = ("static", "dynamic", "dynamo")
SEED = 42  # some of the database's ops set it themselves
EVERY = 10  # one op of so many is in the sample
# What Dynamo answers with a graph break.
BREAKS = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode, UnsupportedOperatorException)


def all_cases() -> list[opcase.Case]:
    found = []
    for name, op in opcase.OPS.items():
        dtype = opcase.main_dtype(op)
        if dtype is not None:
            found += [opcase.Case(name, mode, dtype) for mode in MODES]
    return found


def sampled_cases(every: int = EVERY) -> list[opcase.Case]:
    """One op of so many, in one mode, chosen by a hash of its name."""
    return [
        case
        for case in all_cases()
        if opcase.spread(case.op, "compiled") % every == 0 and case.mode == MODES[opcase.spread(case.op, "how") % len(MODES)]
    ]


class Outside:
    """Names of the ops with a row that graphs made meanwhile leave to eager mode."""

    def __enter__(self) -> set[str]:
        self.names: set[str] = set()
        self.real = program.stages
        program.stages = self._stages
        return self.names

    def __exit__(self, *what) -> None:
        program.stages = self.real

    def _stages(self, graph: fx.Graph) -> dict[fx.Node, int]:
        found = self.real(graph)
        nodes = [n for n, at in found.items() if at % 2 == 0 and isinstance(n.target, torch._ops.OpOverload)]
        ops = [n.target for n in nodes if any(on_tpu(v) for v in tree_flatten(n.meta.get("val"))[0])]
        # Views and memory may be made by either; what gives nothing, an assertion, has no place among values.
        ops = [op for op in ops if op._schema.returns and not any(r.alias_info for r in op._schema.returns)]
        self.names |= {row_name(op) for op in ops} & _usable() - set(_UNDEFINED)
        return found


class Function:
    """An op with everything of a sample but its tensors fixed: takes these, gives the tensors of its result."""

    def __init__(self, op, call: Call) -> None:
        self.op = op
        self.leaves, self.spec = tree_flatten(call.tree)
        self.where = [i for i, v in enumerate(self.leaves) if isinstance(v, torch.Tensor)]
        self.__name__ = "op"

    def __call__(self, *given):
        leaves = list(self.leaves)
        for i, t in zip(self.where, given, strict=True):
            leaves[i] = t
        x, args, kwargs = tree_unflatten(leaves, self.spec)
        return tuple(tensors(self.op(x, *args, **kwargs)))


class Direct:
    """What the backend makes of a call of ``function``, called with tensors."""

    def __init__(self, function: Function, given: list[torch.Tensor], dynamic: bool) -> None:
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        how = DimDynamic.DUCK if dynamic else DimDynamic.STATIC
        self.fakes = [self._fake(t, f"arg{i}", how) for i, t in enumerate(given)]
        self.where: dict[object, tuple[int, int]] = {}
        sizes = []
        for i, f in enumerate(self.fakes):
            for axis, n in enumerate(f.shape):
                if isinstance(n, torch.SymInt) and n.node.expr.is_symbol and n.node.expr not in self.where:
                    self.where[n.node.expr] = (i, axis)
                    sizes.append(n)
        graph = fx.Graph()
        for s in sizes:
            graph.placeholder(f"{s}")
        ins = tuple(graph.placeholder(f"arg{i}") for i in range(len(given)))
        graph.output(graph.call_function(function, ins))
        with tracing(TracingContext(self.mode)), _use_lazy_graph_module(True):
            self.compiled = _compile.backend(fx.GraphModule({}, graph), [*sizes, *self.fakes])

    def _fake(self, t: torch.Tensor, name: str, how: DimDynamic):
        context = StatelessSymbolicContext(dynamic_sizes=[how] * t.dim())
        return self.mode.from_tensor(t, symbolic_context=context, source=ConstantSource(name))

    def holds_for(self, given: list[torch.Tensor]) -> bool:
        """Whether Dynamo would call the same graph with these."""
        return self.env.evaluate_guards_for_args(self.fakes, given, ignore_static=False)

    def __call__(self, *given):
        return self.compiled(*[given[i].shape[axis] for i, axis in self.where.values()], *given)


def traces(function: Function, given: list[torch.Tensor], dynamic: bool) -> bool:
    """Whether PyTorch without a compiler can make a graph of it, on the CPU."""
    torch._dynamo.reset()
    _, error = raised(lambda: torch.compile(function.__call__, backend="aot_eager", dynamic=dynamic)(*given))
    return error is None


def differentiate(outs, ins, process, cotangents=None):
    """(gradients, cotangents) of what the database says can be compared of ``outs``."""
    chosen = [t for t in tensors(process(outs)) if t.requires_grad]
    inputs = [t for t in ins if t.requires_grad]
    if not chosen or not inputs:
        return [], []
    if cotangents is None:
        torch.manual_seed(3)
        cotangents = [torch.randn(t.size(), dtype=torch.complex128 if t.is_complex() else torch.float64) for t in chosen]
    given = [g.to(dtype=t.dtype).to(t.device) for g, t in zip(cotangents, chosen, strict=True)]
    return list(torch.autograd.grad(chosen, inputs, given, allow_unused=True)), cotangents


class Runner(opcase.Runner):
    """Runs one case; raises what went wrong, or Nothing."""

    def static(self) -> None:
        self.compile_each(dynamic=False)

    def dynamic(self) -> None:
        self.compile_each(dynamic=True)

    def dynamo(self) -> None:
        self.count = 1
        for dynamic in (False, True):
            self.each(lambda c, d=dynamic: self.through_dynamo(c, d), self.op.supports_autograd)

    def compile_each(self, dynamic: bool) -> None:
        grad = self.op.supports_autograd and self.dtype in self.op.supported_backward_dtypes("cpu")
        self.each(lambda c: self.compare_compiled(c, dynamic), grad)

    # --------------------------------------------------------------------------------------------------- one sample

    def want(self, call: Call):
        """The CPU's results of a call, and what is needed to compare others with them."""
        outs, error, r = self.record(lambda: call.run(self.op))
        if error is not None:
            raise Nothing(f"the CPU raises {type(error).__name__}: {error}")
        if not tensors(outs) or len(tensors(outs)) != len(opcase.leaves(outs)):
            raise Nothing("results that are not tensors")
        return outs, r

    def process(self, call: Call, structure):
        """The database's choice of what to differentiate, of a flat list of results."""

        def one(outs):
            whole = tree_unflatten(list(outs), structure)
            return call.process(whole) if call.process else whole

        return one

    def compare_compiled(self, call: Call, dynamic: bool) -> None:
        mine = self.moved(call)
        given = tensors(mine.tree)
        if any(t.device.type != opcase.DEVICE for t in given):
            raise Nothing("arguments on the CPU")
        self.want(call.mapped(clone))  # no graph without a result
        _compile.refused.clear()
        bounded.poison = float("nan")
        try:
            with Outside() as outside:
                compiled = Direct(Function(self.op, mine), given, dynamic)
        except BREAKS:
            self.through_dynamo(call, dynamic)
            return
        except Exception as e:
            self.excuse(e, call, dynamic)
        self.compare_run(call, mine, compiled)
        if dynamic:
            self.compare_other_sizes(call, compiled)
        why = [f"{name} is none: {e}" for name, e in _compile.refused.items() if "depends on data" not in str(e)]
        if why or outside:
            raise Mismatch(f"{describe(call)}: not in a program: {', '.join([*sorted(outside), *why])}")

    def compare_other_sizes(self, call: Call, compiled: Direct) -> None:
        for other in stretched(call):
            moved = self.moved(other)
            if compiled.holds_for(tensors(moved.tree)):
                try:
                    self.compare_run(other, moved, compiled)
                except Nothing:
                    continue
                return

    def excuse(self, e: Exception, call: Call, dynamic: bool) -> None:
        """Raise ``e``, or Nothing if PyTorch cannot make a graph of the op anyway."""
        if not traces(Function(self.op, call), tensors(call.tree), dynamic):
            raise Nothing(f"PyTorch cannot trace it: {e}") from e
        raise e

    def through_dynamo(self, call: Call, dynamic: bool) -> None:
        mine = self.moved(call)
        torch._dynamo.reset()
        function = Function(self.op, mine)
        compiled = torch.compile(function.__call__, backend="tpu", dynamic=dynamic)
        try:
            self.compare_run(call, mine, compiled)
        except (Mismatch, Nothing):
            raise
        except Exception as e:
            self.excuse(e, call, dynamic)

    def compare_run(self, call: Call, mine: Call, compiled) -> None:
        what = describe(call)
        before, wide = call.mapped(clone), call.mapped(opcase.in_double)
        want, r = self.want(call)
        structure = tree_flatten(want)[1]
        free = self.op.name in opcase.PHASES and call.process is not None
        process = self.process(call, structure)
        given = tensors(mine.tree)
        torch.manual_seed(SEED)
        got = compiled(*given)
        if len(got) != len(tensors(want)):
            raise Mismatch(f"{what}: {len(got)} results, the CPU has {len(tensors(want))}")
        chosen = process if free else lambda outs: outs
        compare = self.comparer(r, lambda: chosen(tensors(wide.run(self.op))), None if free else self.meta_strides(before))
        compare.trees(chosen(got), chosen(tensors(want)), what)
        shared, wanted = opcase.aliases(got, mine.tree), opcase.aliases(want, call.tree)
        if shared != wanted and not self.op.name.startswith("unsafe_"):  # dropout of nothing, on a device, is a copy
            eager = self.moved(before)
            if shared != opcase.aliases(eager.run(self.op), eager.tree):
                raise Mismatch(f"{what}: shares memory {shared}, the CPU {wanted}")
        if r.random and self.op.name not in opcase.UNINITIALISED:
            self.same_numbers(before, got, what)
        if not compare.values:
            return
        self.compare_gradients(call, mine, wide, want, got, process, r, what)
        with torch.no_grad():
            again = compiled(*given)
        compare.trees(chosen(again), chosen(tensors(want)), f"{what} called again:")

    def compare_gradients(self, call, mine, wide, want, got, process, r, what) -> None:
        wanted, error, backward = self.record(lambda: differentiate(tensors(want), tensors(call.tree), process))
        if error is not None or not wanted[1]:
            return
        grads, cotangents = wanted
        mine_grads, _ = differentiate(got, tensors(mine.tree), process, cotangents)
        r.names |= backward.names

        def reference():
            c = call.mapped(opcase.in_double)
            return differentiate(tensors(c.run(self.op)), tensors(c.tree), process, cotangents)[0]

        self.comparer(r, reference).trees(mine_grads, grads, f"gradient of {what}")

    def same_numbers(self, call: Call, got, what: str) -> None:
        """Random numbers of a compiled op are those of the op in eager mode."""
        eager = self.moved(call)
        torch.manual_seed(SEED)
        x, args, kwargs = eager.tree
        for a, b in zip(got, tensors(self.op(x, *args, **kwargs)), strict=True):
            if not torch.equal(a.cpu(), b.cpu()) and not a.isnan().any():
                raise Mismatch(f"{what}: other random numbers than the op's in eager mode")


# --------------------------------------------------------------------------------------------------------- other sizes


def stretched(call: Call):
    """The same call with one size larger wherever it occurs; not all that this gives are calls that the op takes."""
    sizes = sorted({n for t in tensors(call.tree) for n in t.shape if n > 1})
    for n in sizes:
        more = n + 2
        torch.manual_seed(5)
        yield call.mapped(lambda tree, n=n, more=more: opcase.tree_map(lambda v: _stretch(v, n, more), tree))


def _stretch(v, n: int, more: int):
    if not isinstance(v, torch.Tensor) or n not in v.shape:
        return v
    t = v.detach()
    for axis in range(t.dim()):
        if t.shape[axis] == n:
            t = t.index_select(axis, torch.arange(more) % n)
    if t.dim() == 1 and not t.is_floating_point() and torch.equal(v, v.sort()[0]):  # offsets
        t = t.sort()[0]
    if t.is_floating_point() or t.is_complex():  # no two rows the same
        t = t * (1 - 0.2 * torch.rand(t.shape)).to(t.dtype)
    return t.requires_grad_(v.requires_grad)
