"""One case of the op driver: one op of PyTorch's own op database, in one mode and dtype, beside CPU PyTorch.

Modes
    value      results, dtypes, sizes, strides and aliasing of the op equal the CPU's
    native     the same calls, and none of them ran on the CPU
    grad       first-order gradients equal the CPU's
    out        out= into a result of the right size, of no size, with gaps, and of another dtype
    inplace    the in-place variant: values, identity, and errors where the CPU raises one
    noncontig  as value, with arguments that have gaps
    error      wrong arguments raise what they raise on the CPU

Tolerances come from the op table: the loosest row among those that the call dispatches to. Where a result is further from the CPU's
than that, it must be as near to the float64 result as the CPU's own is.
"""

import dataclasses
import hashlib
import itertools
import warnings

import torch
import torch_tpu
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import noncontiguous_like
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = "tpu"
MODES = ("value", "native", "grad", "out", "inplace", "noncontig", "error")
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.complex64,
    torch.float64,
    torch.uint8,
    torch.complex128,
)
# Results are memory that nobody wrote.
UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}
# Vectors that have no sign or phase of their own, and arrive with another one than LAPACK's: what the database makes of them for
# gradients is compared.
PHASES = {"linalg.eigh", "linalg.eig", "linalg.svd", "svd", "svd_lowrank", "pca_lowrank"}
# Arguments that PyTorch wants on the CPU whatever the device.
CPU_ARGUMENTS = {"tensor_split"}
# CPU PyTorch 2.13 writes past the end of a transposed out= of these.
CPU_CORRUPTS = {"tril", "triu", "lu_unpack", "linalg.lu"}
MAX_NDIM = 12
# Ops that take no tensor: they are told the device.
FACTORIES = {"arange", "eye", "full", "linspace", "logspace", "ones", "rand", "randn", "scalar_tensor", "zeros", "empty"}
# Not an op of a dense device.
FOREIGN = ("sparse", "jiterator", "to_sparse", "_efficient_attention", "_flash_attention", "nested", "mkldnn")

OPS = {op.formatted_name: op for op in op_db if not any(f in op.name for f in FOREIGN)}
ROWS = {row["name"]: row for row in torch_tpu._C.ops()}


@dataclasses.dataclass(frozen=True)
class Case:
    op: str
    mode: str
    dtype: torch.dtype

    @property
    def id(self) -> str:
        return f"{self.op} {self.mode} {str(self.dtype).removeprefix('torch.')}"

    @classmethod
    def parse(cls, text: str) -> "Case":
        op, mode, dtype = text.split()
        return cls(op, mode, getattr(torch, dtype))


class Nothing(Exception):
    """The op has no sample in this mode."""


class Mismatch(AssertionError):
    """A result differs from the CPU's."""


def spread(*parts: object) -> int:
    """A number that depends on its arguments alone, the same in every process."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big")


# ------------------------------------------------------------------------------------------------------------- which cases


def main_dtype(op) -> torch.dtype | None:
    have = op.supported_dtypes("cpu")
    return next((d for d in DTYPES if d in have), None)


def modes_of(op, dtype: torch.dtype) -> list[str]:
    modes = ["value", "native", "noncontig"]
    if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"):
        modes.append("grad")
    if op.supports_out:
        modes.append("out")
    if op.inplace_variant is not None:
        modes.append("inplace")
    if op.error_inputs_func is not None and dtype == main_dtype(op):
        modes.append("error")
    return modes


def all_cases() -> list[Case]:
    """Every op in every mode and dtype."""
    found = []
    for name, op in OPS.items():
        first = main_dtype(op)
        for dtype in DTYPES:
            if dtype in op.supported_dtypes("cpu"):
                wanted = modes_of(op, dtype) if dtype == first else ["value", "native", "grad"]
                found += [Case(name, m, dtype) for m in MODES if m in wanted and m in modes_of(op, dtype)]
    return found


def sampled_cases() -> list[Case]:
    """Every op by value and natively; one more mode each, and every fourth op in one more dtype, chosen by a hash of its name."""
    found = []
    for name, op in OPS.items():
        first = main_dtype(op)
        if first is None:
            continue
        found += [Case(name, "value", first), Case(name, "native", first)]
        more = [m for m in modes_of(op, first) if m not in ("value", "native")]
        found.append(Case(name, more[spread(name) % len(more)], first))
        others = [d for d in DTYPES if d in op.supported_dtypes("cpu") and d != first]
        if others and spread(name, "dtype") % 4 == 0:
            found.append(Case(name, "value", others[spread(name, "which") % len(others)]))
    return found


# -------------------------------------------------------------------------------------------------- arguments and results


class Recorder(TorchDispatchMode):
    """Names of the ATen overloads that run."""

    def __init__(self):
        super().__init__()
        self.names: set[str] = set()
        self.random = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        if func._schema.overload_name:
            name += "." + func._schema.overload_name
        self.names.add(name)
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def is_dense(t: torch.Tensor) -> bool:
    """Elements lie side by side in some order of the axes."""
    step = 1
    for stride, size in sorted((st, n) for st, n in zip(t.stride(), t.size(), strict=True) if n > 1):
        if stride != step:
            return False
        step *= size
    return True


class Mover:
    """CPU arguments to the device: the same sizes, strides, offsets, sharing and conjugation."""

    def __init__(self):
        self.stores: dict[int, torch.Tensor] = {}

    def tensor(self, t: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            if t.layout != torch.strided or t.device.type != "cpu" or t.dim() > MAX_NDIM:
                raise Nothing(f"a {t.layout} tensor of {t.dim()} axes on {t.device}")
            if t.is_conj():
                moved = self.tensor(t.detach().conj()).conj()
            elif t.is_neg():
                moved = self.tensor(torch._neg_view(t.detach()))
                moved = torch._neg_view(moved)
            else:
                moved = self.plain(t.detach())
        return moved.requires_grad_(t.requires_grad) if t.is_leaf else moved

    def plain(self, t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        if storage.nbytes() == t.numel() * t.element_size() and is_dense(t):
            key = (storage.data_ptr(), t.dtype, t.size(), t.stride())
            if t.numel() == 0:
                return t.to(DEVICE)
            if key not in self.stores:
                self.stores[key] = t.to(DEVICE)
            return self.stores[key].detach()
        key = (storage.data_ptr(), t.dtype)
        if key not in self.stores:
            whole = storage.nbytes() // t.element_size()
            self.stores[key] = torch.empty(0, dtype=t.dtype).set_(storage, 0, (whole,), (1,)).to(DEVICE)
        return self.stores[key].as_strided(t.size(), t.stride(), t.storage_offset())

    def tree(self, x):
        def one(v):
            if isinstance(v, torch.Tensor):
                return self.tensor(v)
            if isinstance(v, torch.device):
                return torch.device(DEVICE)
            return DEVICE if isinstance(v, str) and v == "cpu" else v

        return tree_map(one, x)


def leaves(x) -> list:
    return tree_flatten(x)[0]


def tensors(x) -> list[torch.Tensor]:
    return [t for t in leaves(x) if isinstance(t, torch.Tensor)]


def in_double(x):
    """The same arguments in float64 or complex128, for a reference."""

    def one(v):
        if not isinstance(v, torch.Tensor):
            return v
        wide = (
            v.detach().to(torch.complex128 if v.is_complex() else torch.float64)
            if v.is_floating_point() or v.is_complex()
            else v.clone()
        )
        return wide.requires_grad_(v.requires_grad)

    return tree_map(one, x)


def clone(x):
    """Fresh memory of the same strides, leaves again."""

    def one(v):
        return v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v

    return tree_map(one, x)


def with_gaps(x):
    return tree_map(lambda v: noncontiguous_like(v) if isinstance(v, torch.Tensor) and v.layout == torch.strided else v, x)


@dataclasses.dataclass
class Call:
    """One sample: a tree (input, args, kwargs), and what its gradient is taken of."""

    tree: tuple
    process: object
    broadcasts: bool = False

    @classmethod
    def of(cls, sample) -> "Call":
        return cls((sample.input, tuple(sample.args), dict(sample.kwargs)), sample.output_process_fn_grad, sample.broadcasts_input)

    def moved(self, cpu_arguments: bool = False, factory: bool = False) -> "Call":
        mover = Mover()
        x, args, kwargs = self.tree
        if factory and "device" not in kwargs:
            kwargs = kwargs | {"device": DEVICE}
        moved = (mover.tree(x), args if cpu_arguments else mover.tree(args), kwargs if cpu_arguments else mover.tree(kwargs))
        return dataclasses.replace(self, tree=moved)

    def mapped(self, f) -> "Call":
        return dataclasses.replace(self, tree=f(self.tree))

    def run(self, fn, **more):
        torch.manual_seed(7)
        x, args, kwargs = self.tree
        return fn(x, *args, **kwargs, **more)


def samples(op, dtype: torch.dtype, count: int, requires_grad: bool = False) -> list[Call]:
    """At most ``count`` samples, evenly spread over the first of those that the database has."""
    torch.manual_seed(11)
    found = [Call.of(s) for s in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=requires_grad), 20 * count)]
    if len(found) > count:
        found = [found[k * (len(found) - 1) // max(1, count - 1)] for k in range(count)]
    return found


# --------------------------------------------------------------------------------------------------------------- comparing


ROW_BASES = {name.split(".")[0] for name in ROWS}
MAKERS = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "alias",
    "view",
    "as_strided",
    "_to_copy",
    "set_",
}


def has_row(overload: str) -> bool:
    """The op, or the functional op that it is a variant of, has a row, or it only makes or views tensors."""
    base = overload.split(".")[0].removesuffix("_")
    return base in ROW_BASES or overload.split(".")[0] in ROW_BASES | MAKERS


def row_tolerance(op, dtype: torch.dtype, names: set[str]) -> tuple[float, float]:
    """(rtol, atol): the loosest row, and PyTorch's own for the op where that is looser."""
    base = {n.removesuffix(".out").replace("_.", ".").removesuffix("_") for n in names} | names
    rows = [ROWS[n] for n in base if n in ROWS]
    rtol = max((r["rtol"] for r in rows), default=1.3e-6)
    atol = max((r["atol"] for r in rows), default=1e-5)
    several = sum(r["rtol"] > 0 for r in rows) > 1
    if several or any(not has_row(n) for n in names):  # the errors of several ops, or of a decomposition, add up
        rtol, atol = max(rtol, 1.3e-6), max(atol, 1e-5)
    if dtype in (torch.float64, torch.complex128):
        rtol, atol = max(rtol * 1e-6, 1e-12), max(atol * 1e-6, 1e-12)
    elif dtype == torch.complex64:
        rtol = max(rtol, 6e-7)
    elif dtype == torch.bfloat16:
        rtol, atol = 1.6e-2, 1e-5
    elif dtype == torch.float16:
        rtol, atol = 2e-3, 1e-5
    for decorate in op.decorators:
        for d in getattr(decorate, "decorators", ()):
            override = getattr(d, "d", None)
            if isinstance(override, dict) and dtype in override and hasattr(override[dtype], "rtol"):
                rtol, atol = max(rtol, override[dtype].rtol), max(atol, override[dtype].atol)
    return rtol, atol


class Comparer:
    def __init__(self, rtol: float, atol: float, values: bool = True, double=None, strides=None):
        self.rtol, self.atol, self.values = rtol, atol, values
        self.double, self.strides = double, strides

    def trees(self, got, want, what: str) -> None:
        a, b = leaves(got), leaves(want)
        if len(a) != len(b):
            raise Mismatch(f"{what}: {len(a)} results, the CPU has {len(b)}")
        wide = None
        for k, (g, w) in enumerate(zip(a, b, strict=True)):
            where = f"{what} result {k}"
            if isinstance(w, torch.Tensor):
                self.meta(g, w, where, k)
                if self.values and not self.near(g, w):
                    if wide is None:
                        wide = self.reference(len(b))
                    self.as_near(g, w, wide[k] if wide else None, where)
            elif isinstance(w, float):
                if self.values and not torch.isclose(torch.tensor(g), torch.tensor(w), self.rtol, self.atol, equal_nan=True):
                    raise Mismatch(f"{where}: {g}, the CPU has {w}")
            elif isinstance(w, (int, bool, str, torch.Size, torch.dtype)) and self.values and g != w:
                raise Mismatch(f"{where}: {g}, the CPU has {w}")

    def meta(self, g, w, where: str, k: int) -> None:
        if not isinstance(g, torch.Tensor):
            raise Mismatch(f"{where}: {type(g)}, the CPU has a tensor")
        if w.layout != torch.strided:
            raise Nothing("a result that is not strided")
        if g.device.type != DEVICE:
            raise Mismatch(f"{where}: on {g.device}")
        if g.dtype != w.dtype:
            raise Mismatch(f"{where}: {g.dtype}, the CPU has {w.dtype}")
        if g.size() != w.size():
            raise Mismatch(f"{where}: sizes {tuple(g.size())}, the CPU has {tuple(w.size())}")
        if self.strides is not None and w.numel() and not same_strides(g, w.stride()):
            meta = self.strides()
            if meta is None or len(meta) <= k or meta[k] is None or not same_strides(g, meta[k]):
                raise Mismatch(f"{where}: strides {g.stride()}, the CPU has {w.stride()} of sizes {tuple(w.size())}")

    def near(self, g, w) -> bool:
        h = g.detach().cpu().resolve_conj().resolve_neg()
        w = w.detach().resolve_conj().resolve_neg()
        if not (w.is_floating_point() or w.is_complex()):
            return torch.equal(h, w)
        return bool(torch.isclose(h, w, rtol=self.rtol, atol=self.atol, equal_nan=True).all())

    def reference(self, n: int):
        try:
            wide = leaves(self.double()) if self.double is not None else []
        except Exception:
            wide = []
        return wide if len(wide) == n else None

    def as_near(self, g, w, ref, where: str) -> None:
        h, w = g.detach().cpu().resolve_conj().resolve_neg(), w.detach().resolve_conj().resolve_neg()
        if isinstance(ref, torch.Tensor) and ref.size() == w.size() and (w.is_floating_point() or w.is_complex()):
            d = torch.complex128 if w.is_complex() else torch.float64
            ref, wd, hd = ref.detach().resolve_conj().resolve_neg().to(d), w.to(d), h.to(d)
            finite = torch.isfinite(ref) & torch.isfinite(wd) & torch.isfinite(hd)
            rest = torch.isclose(hd, wd, equal_nan=True) | finite
            off = (wd - ref).abs()[finite]
            slack = 2 * float(off.max()) if off.numel() else 0.0
            if bool(rest.all()) and bool(((hd - ref).abs()[finite] <= slack + self.atol + self.rtol * ref.abs()[finite]).all()):
                return
        if w.dtype == torch.bool or not (w.is_floating_point() or w.is_complex()):
            bad = h != w
        else:
            bad = ~torch.isclose(h, w, rtol=self.rtol, atol=self.atol, equal_nan=True)
        at = tuple(torch.nonzero(bad)[0].tolist()) if bad.dim() else ()
        raise Mismatch(
            f"{where}: {int(bad.sum())} of {bad.numel()} wrong, first at {list(at)}: {h[at].item()}, the CPU has {w[at].item()} "
            f"(rtol {self.rtol:.1e}, atol {self.atol:.1e}, {w.dtype}, sizes {tuple(w.size())})"
        )


def same_strides(t: torch.Tensor, strides) -> bool:
    return all(a == b for a, b, n in zip(t.stride(), strides, t.size(), strict=True) if n > 1)


def aliases(outs, ins) -> list[bool]:
    held = {t.untyped_storage()._cdata for t in tensors(ins)}
    return [t.untyped_storage()._cdata in held for t in tensors(outs)]


def raised(f):
    """(result, None) or (None, the exception)."""
    try:
        return f(), None
    except Nothing:
        raise
    except Exception as e:
        return None, e


def describe(call: Call) -> str:
    def one(v):
        return f"{str(v.dtype).removeprefix('torch.')}{list(v.size())}" if isinstance(v, torch.Tensor) else v

    x, args, kwargs = tree_map(one, call.tree)
    return f"({x}, {', '.join(map(str, args))}{', ' if args else ''}{kwargs or ''})"[:300]


# ------------------------------------------------------------------------------------------------------------------- modes


class Runner:
    """Runs one case; raises what went wrong, or Nothing."""

    def __init__(self, case: Case, count: int):
        self.case, self.op, self.dtype, self.count = case, OPS[case.op], case.dtype, count
        self.names: set[str] = set()  # ATen overloads met

    def run(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            getattr(self, self.case.mode)()

    def moved(self, call: Call) -> Call:
        return call.moved(self.op.name in CPU_ARGUMENTS, self.op.name in FACTORIES)

    def record(self, f):
        """The CPU's result, and whether it is random."""
        with Recorder() as r:
            out, error = raised(f)
        self.names |= r.names
        return out, error, r

    def comparer(self, r: Recorder, double=None, strides=None) -> Comparer:
        rtol, atol = row_tolerance(self.op, self.dtype, r.names)
        values = not r.random and self.op.name not in UNINITIALISED
        return Comparer(rtol, atol, values, double, strides)

    def meta_strides(self, call: Call):
        def ask():
            def one(v):
                if isinstance(v, torch.Tensor):
                    return torch.empty_strided(v.size(), v.stride(), dtype=v.dtype, device="meta")
                return v

            out, error = raised(lambda: call.mapped(lambda t: tree_map(one, t)).run(self.op))
            return None if error else [t.stride() if isinstance(t, torch.Tensor) else None for t in leaves(out)]

        return ask

    def compare_call(self, call: Call) -> None:
        self.compare_results([call])

    def compare_results(self, calls: list[Call]) -> None:
        """Run all on the device, then compare."""
        ready = [(call, *self.prepared(call)) for call in calls]
        torch.tpu.flush()
        results = [mine.run(self.op) for _, mine, *_ in ready]
        for (call, mine, *rest), got in zip(ready, results, strict=True):
            self.compare_result(got, call, mine, *rest)

    def prepared(self, call: Call):
        """The call on the device, in float64 and as it was; the CPU's result and what ran for it."""
        mine = self.moved(call)
        wide = call.mapped(in_double)
        before = call.mapped(clone)
        want, error, r = self.record(lambda: call.run(self.op))
        if error is not None:
            raise Nothing(f"the CPU raises {type(error).__name__}: {error}")
        return mine, wide, before, want, r

    def compare_result(self, got, call: Call, mine: Call, wide: Call, before: Call, want, r: Recorder) -> None:
        free = self.op.name in PHASES and call.process is not None
        process = call.process if free else lambda out: out
        compare = self.comparer(r, lambda: process(wide.run(self.op)), None if free else self.meta_strides(before))
        compare.trees(process(got), process(want), describe(before))
        if aliases(got, mine.tree) != aliases(want, call.tree):
            raise Mismatch(f"{describe(before)}: shares memory {aliases(got, mine.tree)}, the CPU {aliases(want, call.tree)}")
        if compare.values:
            compare.strides = None
            compare.double = None
            pairs = zip(tensors(mine.tree), tensors(call.tree), strict=True)
            written = [(a, b) for a, b in pairs if a.device.type == DEVICE]
            compare.trees([a for a, _ in written], [b for _, b in written], f"{describe(before)} arguments after the call:")
        elif r.random and self.op.name not in UNINITIALISED:
            again = self.moved(before).run(self.op)
            for a, b in zip(tensors(got), tensors(again), strict=True):
                if not torch.equal(a.cpu(), b.cpu()) and not a.isnan().any():
                    raise Mismatch(f"{describe(before)}: another result from the same seed")

    def each(self, do, requires_grad: bool = False) -> None:
        done, last = 0, "no samples"
        for call in samples(self.op, self.dtype, self.count, requires_grad):
            try:
                do(call)
                done += 1
            except Nothing as e:
                last = str(e)
        if not done:
            raise Nothing(last)

    def value(self) -> None:
        self.each(self.compare_call)

    def native(self) -> None:
        before = dict(torch.tpu.fallbacks())

        def do(call: Call) -> None:
            _, error, _ = self.record(lambda: call.mapped(clone).run(self.op))
            if error is not None:
                raise Nothing(str(error))
            raised(lambda: self.moved(call).run(self.op))

        self.each(do)
        after = torch.tpu.fallbacks()
        ran = sorted(k for k in after if after[k] != before.get(k, 0))
        if ran:
            raise Mismatch(f"ran on the cpu: {', '.join(ran)}")

    def noncontig(self) -> None:
        self.each(lambda call: self.compare_call(call.mapped(with_gaps)))

    def grad(self) -> None:
        self.each(self.compare_grad, requires_grad=True)

    def compare_grad(self, call: Call) -> None:
        def grads(c: Call, cotangents=None):
            out = c.run(self.op)
            outs = [t for t in tensors(c.process(out) if c.process else out) if t.requires_grad]
            ins = [t for t in tensors(c.tree) if t.requires_grad]
            if not outs or not ins:
                raise Nothing("nothing to differentiate")
            if cotangents is None:
                torch.manual_seed(3)
                cotangents = [torch.randn(t.size(), dtype=torch.complex128 if t.is_complex() else torch.float64) for t in outs]
            if [c.size() for c in cotangents] != [t.size() for t in outs]:
                raise Mismatch(f"results of sizes {[tuple(t.size()) for t in outs]}")
            given = [g.to(dtype=t.dtype).to(t.device) for g, t in zip(cotangents, outs, strict=True)]
            return torch.autograd.grad(outs, ins, given, allow_unused=True), cotangents

        mine, wide = self.moved(call), call.mapped(in_double)
        found, error, r = self.record(lambda: grads(call))
        if error is not None:
            raise Nothing(f"the CPU raises {type(error).__name__}: {error}")
        want, cotangents = found
        got, _ = grads(mine, cotangents)
        compare = self.comparer(r, lambda: grads(wide, cotangents)[0])
        compare.trees(got, want, f"gradient of {describe(call)}")

    def out(self) -> None:
        self.each(self.compare_out)

    def compare_out(self, call: Call) -> None:
        plain, error, r = self.record(lambda: call.run(self.op))
        if error is not None:
            raise Nothing(str(error))
        whole = plain if isinstance(plain, (tuple, list)) else (plain,)
        if not all(isinstance(t, torch.Tensor) for t in whole):
            raise Nothing("results that are not tensors")

        def same(t):
            return torch.full_like(t, 1, memory_format=torch.contiguous_format)

        def gaps(t):
            return torch.full((*t.size(), 2), 1, dtype=t.dtype)[..., 0]

        def transposed(t):
            return torch.full(t.size()[::-1], 1, dtype=t.dtype).permute(tuple(range(t.dim() - 1, -1, -1)))

        def other(t):
            wider = {
                torch.float32: torch.float64,
                torch.int64: torch.float32,
                torch.bool: torch.int32,
                torch.complex64: torch.complex128,
            }
            return torch.full(t.size(), 1, dtype=wider.get(t.dtype, torch.float32))

        kinds = {
            "the right size": same,
            "no size": lambda t: torch.empty(0, dtype=t.dtype),
            "gaps": gaps,
            "transposed": transposed,
            "another dtype": other,
        }
        if self.op.name in CPU_CORRUPTS:
            del kinds["transposed"]
        for kind, make in kinds.items():
            self.into(call, [make(t) for t in whole], kind, r)

    def into(self, call: Call, host, kind: str, r: Recorder) -> None:
        what = f"{describe(call)} out= with {kind}"
        mover = Mover()
        mine = [mover.tensor(t) for t in host]

        def as_out(outs):
            return outs[0] if len(outs) == 1 else tuple(outs)

        _, cpu_error = raised(lambda: call.run(self.op, out=as_out(host)))
        moved = self.moved(call)
        got, error = raised(lambda: moved.run(self.op, out=as_out(mine)))
        if kind == "another dtype" and cpu_error is not None:
            return  # some of the CPU's kernels cannot convert their results
        if (cpu_error is None) != (error is None) or type(cpu_error) is not type(error):
            raise Mismatch(f"{what}: {show(error)}, the CPU {show(cpu_error)}")
        if error is not None:
            return
        if any(g is not m for g, m in zip(tensors(got), mine, strict=False)):
            raise Mismatch(f"{what}: the result is not the out= tensor")
        compare = self.comparer(r, None, lambda: None)
        compare.double = lambda: as_out(whole_in_double(call, self.op))
        compare.trees(mine, host, what)

    def inplace(self) -> None:
        self.each(self.compare_inplace)

    def compare_inplace(self, call: Call) -> None:
        variant = self.op.inplace_variant
        host, mine, wide = call.mapped(clone), self.moved(call.mapped(clone)), call.mapped(in_double)
        want, cpu_error, r = self.record(lambda: host.run(variant))
        got, error = raised(lambda: mine.run(variant))
        if (cpu_error is None) != (error is None) or type(cpu_error) is not type(error):
            raise Mismatch(f"{describe(call)}: {show(error)}, the CPU {show(cpu_error)}")
        if error is not None:
            return
        target = mine.tree[0]
        if isinstance(target, torch.Tensor) and isinstance(want, torch.Tensor) and want is host.tree[0] and got is not target:
            raise Mismatch(f"{describe(call)}: the result is not the tensor itself")
        self.comparer(r, lambda: wide.run(variant), lambda: None).trees(got, want, describe(call))

    def error(self) -> None:
        for call in samples(self.op, self.dtype, self.count):
            raised(lambda c=call: self.moved(c).run(self.op))  # wrong numbers must raise although a program is there
        done = 0
        for wrong in itertools.islice(self.op.error_inputs("cpu"), 10 * self.count):
            call = Call.of(wrong.sample_input)
            try:
                mine = self.moved(call)
            except Nothing:
                continue
            _, cpu_error, _ = self.record(lambda c=call: c.run(self.op))
            if cpu_error is None:
                continue
            _, error = raised(lambda c=mine: c.run(self.op))
            if error is None:  # an error found on the device shows at the next wait
                _, error = raised(torch.tpu.synchronize)
            if type(error) is not type(cpu_error):
                raise Mismatch(f"{describe(call)}: {show(error)}, the CPU {show(cpu_error)}")
            done += 1
        if not done:
            raise Nothing("no wrong arguments in the database")


def whole_in_double(call: Call, op):
    out = call.mapped(in_double).run(op)
    return out if isinstance(out, (tuple, list)) else (out,)


def show(e: Exception | None) -> str:
    return "raises nothing" if e is None else f"raises {type(e).__name__}: {str(e).splitlines()[0][:200] if str(e) else ''}"


def families(names: set[str]) -> list[str]:
    """Families of the rows among ATen overloads, those with most to do first."""
    base = {n.removesuffix(".out").replace("_.", ".").removesuffix("_") for n in names} | names
    found = [ROWS[n]["family"] for n in sorted(base) if n in ROWS]
    return sorted(set(found), key=lambda f: (f in ("view", "fill", "cast"), -found.count(f), f))
