"""What `make demo` runs: a language model generating, then a small one trained, saved and resumed, both on the device.

    python -m examples.demo [--device cpu] [--steps 300]

Exits with an error if the model does not know the capital of France, if training does not learn, if a resumed run differs, or if
any op fell back to the CPU.
"""

from __future__ import annotations

import sys
import time

import torch

from examples import device as dev
from examples import generate, train_gpt


def main() -> None:
    parser = dev.parser(__doc__)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    begin, compiling = time.perf_counter(), dev.Compiling(args.device)
    print(f"PyTorch {torch.__version__} on {dev.name(args.device)}\n")
    failures = []

    print("== 1. a language model")
    if "Paris" not in generate.run(args.device):
        failures.append("the model does not say Paris")

    print("\n== 2. training, saving, resuming")
    loss = train_gpt.run(args.device, args.steps)
    if args.steps >= 200 and not loss < 2.7:
        failures.append(f"the loss after {args.steps} steps is {loss}")

    print(f"\n{time.perf_counter() - begin:.0f} s in all; {compiling}")
    if bad := dev.fallbacks(args.device):
        failures.append(f"ran on the CPU for want of a lowering: {bad}")
    if failures:
        sys.exit("FAILED: " + "; ".join(failures))
    print("all well, no op fell back to the CPU")


if __name__ == "__main__":
    main()
