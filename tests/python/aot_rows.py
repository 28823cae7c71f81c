"""One StableHLO module of every row of the op table, as it is for a TPU: what `make aot` and test_aot.py compile for chips.

    python tests/python/aot_rows.py FOLDER

The calls are those of PyTorch's op database, of its database of foreach ops, and, where neither meets a row, ones made up from the
row's schema. They run on whatever device there is, and nothing of their values is looked at: with the core's fake plugin
(TORCH_TPU_PLUGIN=build/core/tests/core/fake_plugin.so TORCH_TPU_CACHE=0) it takes a minute.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import re
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch_tpu
from torch.testing._internal import common_methods_invocations as database
from torch.utils._python_dispatch import TorchDispatchMode
from torch_tpu import _decompose

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import opcase

_C = torch_tpu._C
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16)
FOREACH = ("unary", "binary", "pointwise", "reduce", "other")


class Collector(TorchDispatchMode):
    """Makes a module of the first call of each row that it sees, and keeps those of programs that run beside it.

    Args:
        folder: where the modules go, ROW.mlir each.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        self.folder = folder
        self.rows = {row["name"]: row for row in _C.ops()}
        self.found: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def missing(self) -> list[str]:
        return sorted(set(self.rows) - self.found)

    def keep(self, name: str, text: str) -> None:
        if name in self.rows and name not in self.found:
            self.found.add(name)
            (self.folder / f"{name}.mlir").write_text(text)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.call(func, args, kwargs or {}, out)
        return out

    def call(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """A call that gave `out`: as a graph of one node."""
        if func.namespace != "aten" or func._schema.is_mutable:
            return
        name = _decompose.row_name(func)
        if name not in self.rows or name in self.found:
            return
        with contextlib.suppress(NotImplementedError, RuntimeError, TypeError, ValueError, _decompose.Untraceable):
            self.keep(name, one_node(func, args, kwargs, out))

    def harvest(self, folder: pathlib.Path, whole: bool = False) -> None:
        """Take what the core has dumped; `whole`: a program also for the rows in it that have none, which its comments name."""
        for file in sorted(folder.iterdir()):
            text = file.read_text()
            self.keep(file.name.rsplit(".", 2)[0], text)
            for name in re.findall(r"^ *// (\S+)$", text, re.MULTILINE) if whole else ():
                self.keep(name, text)
            file.unlink()


def one_node(func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> str:
    """The module of a call of a row."""
    graph = _C.graph_new(_decompose.row_name(func))
    ins: list[tuple[int, tuple[int, ...]]] = []

    def value(a: Any, is_tensor: bool) -> Any:
        if isinstance(a, torch.Tensor):
            spec = _decompose.spec(a)
            assert spec is not None
            ins.append(spec)
            return _C.graph_input(graph, len(ins) - 1, 0, spec)
        if isinstance(a, list | tuple):
            return [value(e, is_tensor) for e in a]
        return ("const", a, 0) if is_tensor and isinstance(a, int | float) else a

    given = _decompose.arguments(func, args, kwargs)
    formals = [isinstance(f.real_type, torch.TensorType) for f in func._schema.arguments]
    values = [_decompose._plain(value(a, t)) for a, t in zip(given, formals, strict=True)]
    outs = list(out) if isinstance(out, list | tuple) else [out]
    specs = [_decompose.spec(t) if isinstance(t, torch.Tensor) else None for t in outs]
    ids = _C.graph_node(graph, _decompose.row_name(func), values, specs)
    op = _C.graph_finish(graph, [i for i, s in zip(ids, specs, strict=True) if s is not None])
    return _C.graph_export(op, ins, [-1] * sum(s is not None for s in specs), True)


def gradients(call: Any, out: Any) -> None:
    outs = [t for t in opcase.tensors(out) if t.requires_grad]
    ins = [t for t in opcase.tensors(call.tree) if t.requires_grad]
    if outs and ins:
        torch.autograd.grad(outs, ins, [torch.ones_like(o) for o in outs], allow_unused=True)


def run_database(name: str, op: Any, collector: Collector) -> None:
    moved = lambda call: call.moved(name in opcase.CPU_ARGUMENTS, op.name in opcase.FACTORIES)  # noqa: E731
    for dtype in (d for d in DTYPES if d in op.supported_dtypes("cpu")):
        grad = op.supports_autograd and dtype.is_floating_point
        with contextlib.suppress(Exception):
            for call in opcase.samples(op, dtype, 3, grad):
                with contextlib.suppress(Exception), collector:
                    mine = moved(call)
                    out = mine.run(op)
                    if grad:
                        gradients(mine, out)
    if op.inplace_variant is not None:
        with contextlib.suppress(Exception):
            for call in opcase.samples(op, opcase.main_dtype(op), 1):
                moved(call).run(op.inplace_variant)


def run_foreach(op: Any, collector: Collector) -> None:
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float32, noncontiguous=False), 40):
        with contextlib.suppress(Exception), collector:
            mover = opcase.Mover()
            x, args, kwargs = mover.tree((sample.input, sample.args, sample.kwargs))
            kwargs = {k: v for k, v in kwargs.items() if k != "disable_fastpath" and k != "is_fastpath" and k != "zero_size"}
            (op.method_variant or op.inplace_variant)(x, *args, **kwargs)


def made_up(func: Any, tensor: torch.Tensor, number: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by the schema."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for formal in func._schema.arguments:
        kind = str(formal.real_type)
        if formal.has_default_value() and kind != "number":
            continue
        a: Any = None
        if kind == "Tensor":
            a = tensor.clone()
        elif kind == "List[Tensor]":
            a = [tensor.clone(), tensor.clone()]
        elif kind == "number":
            a = number
        elif kind in ("int", "SymInt"):
            a = 1
        elif kind == "float":
            a = 0.5
        elif kind == "bool":
            a = True
        elif kind in ("List[int]", "List[SymInt]"):
            a = [1] * (formal.N or 1)
        if formal.kwarg_only:
            kwargs[formal.name] = a
        else:
            args.append(a)
    return args, kwargs


def make_up(name: str, collector: Collector) -> None:
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    func = getattr(packet, overload or "default", None) if packet is not None else None
    if func is None or func._schema.is_mutable:
        return
    shapes = ((3, 4), (4, 4), (2, 3, 8, 8), (2, 3, 8), (2, 3, 4, 4, 4), (4,), (3, 2), ())
    for dtype, shape, number in itertools.product((torch.float32, torch.int64, torch.complex64, torch.bool), shapes, (2, 0.5)):
        if name in collector.found:
            return
        with contextlib.suppress(Exception):
            args, kwargs = made_up(func, torch.ones(shape, dtype=dtype), number)
            collector.call(func, args, kwargs, func(*args, **kwargs))


def collect(folder: pathlib.Path) -> list[str]:
    """Write the modules; the rows without one."""
    collector = Collector(folder)
    with tempfile.TemporaryDirectory() as dumped, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _C.set_dump(dumped)
        for name, op in sorted(opcase.OPS.items()):
            run_database(name, op, collector)
            collector.harvest(pathlib.Path(dumped))
        for kind in FOREACH:
            for op in getattr(database, f"foreach_{kind}_op_db"):
                with contextlib.suppress(Exception):
                    run_foreach(op, collector)
                collector.harvest(pathlib.Path(dumped))
        for name in collector.missing():
            make_up(name, collector)
        for make in EXTRA:
            with contextlib.suppress(Exception), collector:
                make()
            collector.harvest(pathlib.Path(dumped))
        whole()
        collector.harvest(pathlib.Path(dumped), whole=True)
        _C.set_dump(None)
    for name, make in ALONE.items():
        collector.keep(name, make())
    return collector.missing()


# ---------------------------------------------------------------------------------------- calls that no database makes


def optimizers() -> None:
    def some() -> list[torch.Tensor]:
        return [torch.ones(4, device="tpu")]

    step, ops = [torch.ones((), device="tpu")], torch.ops.aten
    for kind, lr in (("default", 0.1), ("tensor_lr", torch.tensor(0.1, device="tpu"))):
        rest = {"lr": lr, "weight_decay": 0.1, "maximize": False}
        adam = rest | {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": False}
        for op in (ops._fused_adam_, ops._fused_adamw_):
            getattr(op, kind)(some(), some(), some(), some(), [], step, **adam)
        getattr(ops._fused_adagrad_, kind)(some(), some(), some(), step, lr_decay=0.1, eps=1e-8, **rest)
        getattr(ops._fused_sgd_, kind)(
            some(), some(), some(), momentum=0.9, dampening=0.0, nesterov=False, is_first_step=False, **rest
        )


def cells() -> None:
    for make in (torch.nn.LSTM, torch.nn.GRU):
        make(3, 4).to("tpu")(torch.ones(2, 5, 3, device="tpu"))[0].sum().backward()
    for make in (torch.nn.LSTMCell, torch.nn.GRUCell):
        out = make(3, 4).to("tpu")(torch.ones(2, 3, device="tpu"))
        (out[0] if isinstance(out, tuple) else out).sum().backward()


def multi_head() -> None:
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).to("tpu").eval()
    x = torch.ones(2, 5, 8, device="tpu")
    with torch.no_grad():
        layer(x, x, x)


def padding() -> None:
    for mode in ("reflect", "replicate"):
        x = torch.ones(1, 2, 4, 4, 4, device="tpu", requires_grad=True)
        torch.nn.functional.pad(x, (1, 1, 1, 1, 1, 1), mode=mode).sum().backward()


def weight_norm() -> None:
    v, g = (torch.ones(4, n, device="tpu", requires_grad=True) for n in (3, 1))
    torch._weight_norm(v, g, 0).sum().backward()


def each(make: Any) -> Any:
    """Calls that stand alone: what one of them cannot do is no reason to leave the others."""

    def run() -> None:
        for call in make():
            with contextlib.suppress(Exception):
                call()

    return run


@each
def products() -> list[Any]:
    a, b = (torch.ones(s, device="tpu", dtype=torch.bfloat16) for s in ((16, 16), (2, 16, 16)))
    i, f = (torch.ones(32, 32, device="tpu").to(d) for d in (torch.int8, torch.float8_e4m3fn))
    one = torch.ones((), device="tpu")
    wide = torch.float32
    ops = torch.ops.aten
    return [
        lambda: ops.mm.dtype(a, a, wide),
        lambda: ops.addmm.dtype(a.float(), a, a, wide),
        lambda: ops.bmm.dtype(b, b, wide),
        lambda: ops._int_mm.default(i, i),
        lambda: ops._weight_int8pack_mm.default(a, i[:16, :16].contiguous(), a[0]),
        lambda: ops._scaled_mm.default(f, f.t(), one, one, out_dtype=torch.bfloat16),
        lambda: ops._grouped_mm.default(b, b),
    ]


@each
def random() -> list[Any]:
    x = torch.full((4,), 0.5, device="tpu")
    ops = torch.ops.aten
    return [
        lambda: x.clone().random_(),
        lambda: x.clone().random_(5),
        lambda: torch.randperm(5, device="tpu"),
        lambda: torch.poisson(x),
        lambda: torch.binomial(x, x),
        lambda: x.clone().bernoulli_(x),
        lambda: torch.normal(0.5, x),
        lambda: ops._sample_dirichlet.default(x[None]),
        lambda: ops._standard_gamma.default(x),
        lambda: ops.rrelu_with_noise_functional.default(x, x, 0.1, 0.3, True),
    ]


@each
def others() -> list[Any]:
    x = torch.ones(4, 6, device="tpu")
    at = torch.zeros(4, 6, device="tpu", dtype=torch.int64)
    image = torch.ones(1, 2, 8, 8, device="tpu", requires_grad=True)
    one, few = torch.ones((), device="tpu"), torch.zeros(6, device="tpu", dtype=torch.int32)
    heads = [torch.ones(2, 2, 4, 8, device="tpu") for _ in range(5)]
    ops, functional = torch.ops.aten, torch.nn.functional
    return [
        lambda: torch._amp_foreach_non_finite_check_and_unscale_([x.clone()], torch.zeros(1, device="tpu"), one),
        lambda: torch._amp_update_scale_(one.clone(), few[0].clone(), one, 2.0, 0.5, 3),
        lambda: torch._assert_async(one, "words"),
        lambda: ops._batch_norm_with_update_functional.default(image.detach(), x[0, :2], x[0, :2], x[0, :2], x[0, :2], 0.1, 1e-5),
        lambda: ops._native_batch_norm_legit_functional.default(
            image.detach(), x[0, :2], x[0, :2], x[0, :2], x[0, :2], True, 0.1, 1e-5
        ),
        lambda: ops._native_batch_norm_legit_no_training.default(image.detach(), *[x[0, :2]] * 4, 0.1, 1e-5),
        lambda: ops._embedding_bag_forward_only.default(x, at[0], at[1, :1]),
        lambda: ops._index_put_impl.default(x, [at[0]], x[0]),
        lambda: ops._masked_scale.default(x, x.byte(), 2.0),
        lambda: ops._masked_softmax.default(x, x.bool(), 1, 0),
        lambda: ops._masked_softmax_backward.default(x, x, x.bool(), 1),
        lambda: ops._scaled_dot_product_flash_attention_for_cpu_backward.default(*heads, heads[0][..., 0], 0.0, False),
        lambda: functional.interpolate(image, (5, 5), mode="bicubic", antialias=True).sum().backward(),
        lambda: functional.embedding(at[0], x.clone(), max_norm=0.5),
        lambda: ops.fake_quantize_per_channel_affine_cachemask.default(x, one.expand(4).contiguous(), few[:4], 0, 0, 255),
        lambda: ops.glu_jvp.default(x[:, :3], x, x, 1),
        lambda: ops.glu_backward_jvp.default(x, x[:, :3], x, x[:, :3], x, 1),
        lambda: ops.norm.ScalarOpt_dim_dtype(x, 2, [0], False, dtype=torch.float32),
        lambda: ops.norm.ScalarOpt_dtype(x, 2, dtype=torch.float32),
        lambda: ops.scatter.reduce(x, 0, at, x, reduce="add"),
        lambda: ops.unsafe_split_with_sizes.default(x, [1, 3]),
        lambda: x.view(torch.int32),
        lambda: ops.view_copy.dtype(x, torch.int32),
    ]


@each
def whole() -> list[Any]:
    """Rows that only programs of several have: those of branches and loops, and those with a functional form in compiled graphs."""
    from torch._higher_order_ops import scan, while_loop
    from torch.nn.attention.flex_attention import flex_attention

    x, zero = torch.ones(3, 4, device="tpu"), torch.zeros((), dtype=torch.int64, device="tpu")
    q = [torch.ones(1, 2, 128, 16, device="tpu", requires_grad=True) for _ in range(3)]

    def compiled(f: Any) -> Any:
        return lambda: torch.compile(f, backend="tpu", fullgraph=True)(x)

    return [
        compiled(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))),
        compiled(lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (zero, x))),
        compiled(lambda x: scan(lambda c, y: (c + y, c * y), x[0], x)),
        compiled(lambda x: torch.randperm(5, device=x.device)),
        lambda: flex_attention(*q, score_mod=lambda s, b, h, i, j: s + i - j).sum().backward(),
    ]


def baddbmm() -> str:
    """PyTorch has no shapes for it, so that it runs on the CPU unless it is called with out=."""
    a, b = torch.ones(2, 16, 16), torch.ones(2, 16, 16, dtype=torch.bfloat16)
    return one_node(torch.ops.aten.baddbmm.dtype, (a, b, b, torch.float32), {}, a)


ALONE = {"baddbmm.dtype": baddbmm}
EXTRA = (optimizers, cells, multi_head, padding, weight_norm, products, random, others)


if __name__ == "__main__":
    missing = collect(pathlib.Path(sys.argv[1]))
    print(f"{len(_C.ops()) - len(missing)} of {len(_C.ops())} rows; without a call: {' '.join(missing)}")
