"""One case of the module driver: one module of PyTorch's own module database (and of module_more.py, for those it lacks), in one
mode and dtype, beside CPU PyTorch.

Modes
    train, eval   results, gradients of inputs and parameters, buffers afterwards; nothing on the CPU
    nograd        eval under no_grad, where some modules take a path of their own
    noncontig     train, with inputs and cotangents that have gaps
    nhwc          train, module and inputs in channels_last
    inplace       train, for modules with inplace=True
    twice         gradients of gradients
    error         wrong arguments raise what they raise on the CPU

Tolerances are PyTorch's between CPU and CUDA. Where a result is further from the CPU's than that, it must be as near to the
float64 result as the CPU's own is.
"""

import copy
import dataclasses
import inspect
import itertools
import warnings

import module_more
import opcase
import torch
from opcase import DEVICE, Comparer, Mismatch, Nothing, Recorder, raised, show, tensors
from torch.nn.utils.rnn import PackedSequence
from torch.testing._internal.common_modules import ModuleErrorEnum, ModuleInfo, module_db
from torch.utils._pytree import tree_map

MODES = ("train", "eval", "nograd", "noncontig", "nhwc", "inplace", "twice", "error")
DTYPES = (torch.float32, torch.bfloat16)
# PyTorch's defaults, as torch.testing.assert_close.
TOLERANCE = {torch.float32: (1.3e-6, 1e-5), torch.bfloat16: (1.6e-2, 1e-5)}
MODULES: dict[str, ModuleInfo] = {m.formatted_name: m for m in [*module_db, *module_more.module_db]}


@dataclasses.dataclass(frozen=True)
class Case:
    module: str
    mode: str
    dtype: torch.dtype

    @property
    def id(self) -> str:
        return f"{self.module} {self.mode} {str(self.dtype).removeprefix('torch.')}"


def modes_of(m: ModuleInfo) -> list[str]:
    modes = ["train", "noncontig", "twice"]
    if m.train_and_eval_differ:
        modes += ["eval", "nograd"]
    if m.module_memformat_affects_out:
        modes.append("nhwc")
    if "inplace" in inspect.signature(m.module_cls).parameters:
        modes.append("inplace")
    if m.module_error_inputs_func is not None:
        modes.append("error")
    return modes


def all_cases() -> list[Case]:
    """Every module in every mode; noncontig, twice and error in float32 only."""
    found = []
    for name, m in MODULES.items():
        for dtype in DTYPES:
            modes = [x for x in MODES if x in modes_of(m)]
            found += [Case(name, x, dtype) for x in modes if dtype == torch.float32 or x not in ("noncontig", "twice", "error")]
    return found


def sampled_cases() -> list[Case]:
    """Every module in one mode of float32, and every third in one of bfloat16, chosen by a hash of its name."""
    found = []
    for name, m in MODULES.items():
        modes = modes_of(m)
        found.append(Case(name, modes[opcase.spread(name) % len(modes)], torch.float32))
        if opcase.spread(name, "bfloat16") % 3 == 0:
            modes = [x for x in modes if x in ("train", "eval", "nograd")]
            found.append(Case(name, modes[opcase.spread(name, "which") % len(modes)], torch.bfloat16))
    return found


# -------------------------------------------------------------------------------------------------------------------- samples


def is_packed(x) -> bool:
    return isinstance(x, PackedSequence)


def each_leaf(f, x):
    """f of every tensor and of every packed sequence's data; one tensor given twice stays one."""
    done: dict[int, torch.Tensor] = {}

    def one(v):
        if is_packed(v):
            return v._replace(data=one(v.data))
        if isinstance(v, torch.Tensor):
            if id(v) not in done:
                done[id(v)] = f(v)
            return done[id(v)]
        return v

    return tree_map(one, x, is_leaf=is_packed)


def to_device(x):
    """Arguments on the device: sizes, strides and sharing kept; leaves again."""
    mover = opcase.Mover()

    def indices(v):
        def on_device(t):
            return None if t is None else mover.tensor(t)

        if is_packed(v):
            return v._replace(sorted_indices=on_device(v.sorted_indices), unsorted_indices=on_device(v.unsorted_indices))
        return v

    moved = each_leaf(lambda t: mover.tensor(t.detach()).requires_grad_(t.requires_grad), x)
    return tree_map(indices, moved, is_leaf=is_packed)


def fresh(x):
    """Leaves of their own on the CPU."""
    return each_leaf(lambda t: t.detach().clone().requires_grad_(t.requires_grad), x)


def on_meta(x):
    def one(t):
        return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="meta", requires_grad=t.requires_grad)

    return each_leaf(one, x)


def in_double(x):
    return each_leaf(lambda t: t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t, x)


def with_gaps(x):
    return each_leaf(opcase.noncontiguous_like, x)


def flat(x) -> list[torch.Tensor]:
    """Tensors of a result; of a packed sequence its data and its indices (its batch sizes are on the CPU always)."""

    def parts(v):
        return (v.data, v.sorted_indices, v.unsorted_indices) if is_packed(v) else v

    return tensors(tree_map(parts, x, is_leaf=is_packed))


def inputs_of(m: ModuleInfo, dtype: torch.dtype, training: bool, count: int) -> list:
    more = {"with_packed_sequence": True} if m.name in ("nn.RNN", "nn.GRU", "nn.LSTM") else {}
    torch.manual_seed(11)
    found = m.module_inputs_func(m, device="cpu", dtype=dtype, requires_grad=True, training=training, **more)
    found = list(itertools.islice((s for s in found if s.forward_input is not None), 2000))
    if count == 1 and found:
        return [found[opcase.spread(m.formatted_name, str(dtype), training) % len(found)]]
    if len(found) > count:
        found = [found[k * (len(found) - 1) // max(1, count - 1)] for k in range(count)]
    return found


# ---------------------------------------------------------------------------------------------------------------------- modes


class Runner:
    """Runs one case; raises what went wrong, or Nothing."""

    def __init__(self, case: Case, count: int):
        self.case, self.info, self.dtype, self.count = case, MODULES[case.module], case.dtype, count
        self.training = case.mode not in ("eval", "nograd")
        self.done = 0

    def run(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = dict(torch.tpu.fallbacks())
            if self.case.mode == "error":
                self.error()
            else:
                self.samples()
            after = torch.tpu.fallbacks()
            ran = sorted(k for k in after if after[k] != before.get(k, 0))
            if ran:
                raise Mismatch(f"ran on the cpu: {', '.join(ran)}")

    def samples(self) -> None:
        last, wrong = "no samples", []
        for n, sample in enumerate(inputs_of(self.info, self.dtype, self.training, self.count)):
            try:
                self.one(sample)
                self.done += 1
            except Nothing as e:
                last = str(e)
            except Exception as e:
                wrong.append(f"sample {n} {self.describe(sample)}: {type(e).__name__}: {e}")
        if wrong:
            raise Mismatch(f"{len(wrong)} samples differ. " + "\n".join(wrong[:3]))
        if not self.done:
            raise Nothing(last)

    @staticmethod
    def describe(sample) -> str:
        def one(v):
            if is_packed(v):
                return f"packed{list(v.data.size())}"
            return f"{str(v.dtype).removeprefix('torch.')}{list(v.size())}" if isinstance(v, torch.Tensor) else v

        c, f = sample.constructor_input, sample.forward_input
        return str(tree_map(one, (sample.desc, c.args, c.kwargs, f.args, f.kwargs), is_leaf=is_packed))[:400]

    def build(self, sample, args, kwargs):
        """The module on the CPU. Lazy ones have met the inputs."""
        c = sample.constructor_input
        more = {"inplace": True} if self.case.mode == "inplace" else {}
        torch.manual_seed(5)
        m = self.info.module_cls(*c.args, **(c.kwargs | more)).to(self.dtype).train(self.training)
        if self.info.is_lazy:
            with torch.no_grad():
                m(*args, **kwargs)
        return m

    def one(self, sample) -> None:
        f = sample.forward_input
        args, kwargs = fresh((f.args, f.kwargs))
        if self.case.mode == "noncontig":
            args, kwargs = with_gaps((args, kwargs))
        if self.case.mode == "nhwc":
            args, kwargs = each_leaf(lambda t: channels_last(t).detach().requires_grad_(t.requires_grad), (args, kwargs))
        host, error = raised(lambda: self.build(sample, *fresh((args, kwargs))))
        if error is not None:
            raise Nothing(f"the CPU raises {type(error).__name__}: {error}")
        if self.case.mode == "nhwc":
            ranks = {p.dim() for p in host.parameters()}
            if args[0].dim() not in ranks:
                raise Nothing("no batch")
            host = host.to(memory_format=torch.channels_last if 4 in ranks else torch.channels_last_3d)
        mine, wide, shape = copy.deepcopy(host).to(DEVICE), copy.deepcopy(host).double(), copy.deepcopy(host).to("meta")
        on_tpu, on_double = to_device((args, kwargs)), in_double((args, kwargs))
        with Recorder() as r:
            want, error = raised(lambda: self.results(host, args, kwargs))
        got, mine_error = raised(lambda: self.results(mine, *on_tpu))
        if error is not None and mine_error is None and isinstance(error, NotImplementedError):
            wide_results, error = raised(lambda: self.results(wide, *on_double))  # a dtype that only the CPU's kernel lacks
            self.near_double(got, wide_results)
            return
        if type(mine_error) is not type(error):
            raise Mismatch(f"{show(mine_error)}, the CPU {show(error)}")
        if error is not None:
            raise Nothing(f"the CPU {show(error)}")

        def meta_strides():  # where PyTorch's Meta kernels say otherwise than the CPU's, either will do
            found, error = raised(lambda: self.results(shape, *on_meta((args, kwargs))))
            return None if error else [None if t is None else t.stride() for t in opcase.leaves(found)]

        self.comparer(r, lambda: self.results(wide, *on_double), meta_strides).trees(got, want, "")

    def near_double(self, got, wide) -> None:
        """Rounding after each op is seen beside the largest entry."""
        for g, w in zip(opcase.leaves(got), opcase.leaves(wide), strict=True):
            if g is not None:
                finite = w.detach()[w.isfinite()].abs()
                scale = finite.max().item() if finite.numel() else 0
                torch.testing.assert_close(g.cpu().to(w.dtype), w, rtol=1.6e-2, atol=1.6e-2 * scale + 1e-5, equal_nan=True)

    def comparer(self, r: Recorder, double, strides) -> Comparer:
        rtol, atol = self.tolerance()
        return Comparer(rtol, atol, not r.random, double, strides)

    def tolerance(self) -> tuple[float, float]:
        rtol, atol = TOLERANCE[self.dtype]
        params = {"training": self.training}
        for d in self.info.get_decorators("TestModule", "test_cpu_gpu_parity", "cuda", self.dtype, params):
            override = getattr(d, "d", {}).get(self.dtype)
            if hasattr(override, "rtol"):
                rtol, atol = max(rtol, override.rtol), max(atol, override.atol)
        return rtol, atol

    def results(self, m, args, kwargs) -> dict[str, list[torch.Tensor]]:
        """Outputs, gradients of inputs and parameters, buffers."""
        torch.manual_seed(7)
        if self.case.mode == "nograd":
            with torch.no_grad():
                return {"output": flat(m(*args, **kwargs))}
        ins = list({id(t): t for t in flat((args, kwargs)) if t.requires_grad}.values())
        params = [p for p in m.parameters() if p.requires_grad]
        if self.case.mode == "inplace":  # a leaf is not written
            args, kwargs = each_leaf(lambda t: t * 1 if t.requires_grad else t, (args, kwargs))
        outs = flat(m(*args, **kwargs))
        found = {"output": outs, "buffer": [b.clone() for b in m.buffers()]}
        roots = [t for t in outs if t.requires_grad]
        leaves = ins + params
        if not roots or not leaves:
            return found
        double = self.case.mode == "twice"
        grads = torch.autograd.grad(roots, leaves, self.cotangents(roots, 3), allow_unused=True, create_graph=double)
        found["gradient"] = list(grads)
        if double:
            roots = [g for g in grads if g is not None and g.requires_grad]
            if not roots:
                raise Nothing("no second derivative")
            found["second gradient"] = list(torch.autograd.grad(roots, leaves, self.cotangents(roots, 4), allow_unused=True))
        return found

    def cotangents(self, outs, seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        made = [torch.randn(t.size(), dtype=torch.float64).to(self.dtype).to(t.dtype) for t in outs]
        if self.case.mode == "noncontig":
            made = with_gaps(made)
        device = outs[0].device.type
        return to_device(made) if device == DEVICE else on_meta(made) if device == "meta" else made

    def error(self) -> None:
        found = self.info.module_error_inputs_func(
            self.info, device="cpu", dtype=self.dtype, requires_grad=False, training=self.training
        )
        for wrong in found:
            if wrong.error_on != ModuleErrorEnum.FORWARD_ERROR:
                continue
            sample = wrong.module_error_input
            c, f = sample.constructor_input, sample.forward_input
            host = self.info.module_cls(*c.args, **c.kwargs).to(self.dtype)
            mine = copy.deepcopy(host).to(DEVICE)
            args, kwargs = to_device((f.args, f.kwargs))
            _, want = raised(lambda h=host, f=f: h(*f.args, **f.kwargs))
            _, got = raised(lambda m=mine, a=args, k=kwargs: (m(*a, **k), torch.tpu.synchronize()))
            if want is not None:
                self.done += 1
                if type(want) is not type(got):
                    raise Mismatch(f"{self.describe(sample)}: {show(got)}, the CPU {show(want)}")
        if not self.done:
            raise Nothing("no wrong arguments")


def channels_last(t: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if t.dim() not in formats:
        raise Nothing(f"{t.dim()} axes")
    return t.contiguous(memory_format=formats[t.dim()])
