"""One case of the op driver in DeferAndFuse: one op of PyTorch's own op database, beside CPU PyTorch.

Modes
    fuse       the samples' calls are one trace: op by op, then as one program; values, strides, aliasing as in mode value
    fusegrad   each sample's forward and backward, likewise, as in mode grad
"""

import opcase
import opcompile
import torch
from opcase import Call, Nothing

MODES = ("fuse", "fusegrad")
EVERY = 12  # one op of so many is in the sample
ROUNDS = 3  # a trace runs op by op; is compiled when it comes again; is one program from then on


def all_cases() -> list[opcase.Case]:
    found = []
    for name, op in opcase.OPS.items():
        dtype = opcase.main_dtype(op)
        if dtype is not None:
            found.append(opcase.Case(name, "fuse", dtype))
            if "grad" in opcase.modes_of(op, dtype):
                found.append(opcase.Case(name, "fusegrad", dtype))
    return found


def sampled_cases() -> list[opcase.Case]:
    """One op of so many, chosen by a hash of its name, in one mode."""
    chosen: dict[str, opcase.Case] = {}
    for case in all_cases():
        if opcase.spread(case.op, "fused") % EVERY == 0 and (case.op not in chosen or opcase.spread(case.op, "grad") % 2 == 0):
            chosen[case.op] = case
    return list(chosen.values())


class Runner(opcompile.Runner):
    """Runs one case; raises what went wrong, or Nothing."""

    def fuse(self) -> None:
        self.rounds(self.together)

    def fusegrad(self) -> None:
        self.rounds(self.grad)

    def rounds(self, body) -> None:
        with torch.tpu.set_eager_mode(torch.tpu.EagerMode.FUSE):
            for _ in range(ROUNDS):
                body()
                torch.tpu.compiler.wait()

    def together(self) -> None:
        good: list[Call] = []

        def keep(call: Call) -> None:
            _, error, _ = self.record(lambda: call.mapped(opcase.clone).run(self.op))
            if error is not None:
                raise Nothing(f"the CPU raises {type(error).__name__}: {error}")
            good.append(call.mapped(opcase.clone))  # samples may share what they write

        self.each(keep)
        self.compare_results(good)
