"""What one training step costs: this backend beside native CPU, TorchTPU and JAX, on one core, in one run.

    python -m bench.train [--models mlp,lstm,resnet,gpt] [--attention math|sdpa|both] [--torchtpu-python ... --torchtpu-forward ...]
    python -m bench.train --warming        # the first 15 steps one by one, the disk cache cold: Strict beside DeferAndFuse
    python -m bench.train --first-step     # from the start of a process to its first GPT step, the disk cache warm

All start from the same weights and see the same batches; the losses of the first three steps must agree.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from typing import Any

from bench import models, pool

TOLERANCE = 1e-3  # absolute, on losses of 2 to 6
STEPS, WORST = 15, 1.1  # of --warming: steps of a process, and how many times Strict's same step the slowest may take


def names(args: argparse.Namespace) -> list[str]:
    """--models with `gpt` spelled out by --attention."""
    kinds = ("math", "sdpa") if args.attention == "both" else (args.attention,)
    out: list[str] = []
    for m in args.models.split(","):
        out += [f"gpt-{k}" for k in kinds] if m == "gpt" else [m]
    if unknown := set(out) - set(models.MODELS):
        sys.exit(f"--models: unknown {', '.join(sorted(unknown))}")
    return out


def disagreement(losses: dict[str, list[float]]) -> list[str]:
    """One line for each contestant whose first losses are not the first one's."""
    (reference, expected), *others = losses.items()
    bad = []
    for name, got in others:
        if any(not abs(a - b) <= TOLERANCE for a, b in zip(expected, got, strict=True)):  # NaN too
            bad.append(f"{name} {got} v. {reference} {expected}")
    return bad


def run_model(workers: pool.Pool, model: str, args: argparse.Namespace) -> dict[str, pool.Reply]:
    loaded = {c.name: reply for c in workers.contestants if (reply := workers.ask(c, "load", model=model))}
    for name, reply in loaded.items():
        if reply.get("fallbacks"):
            workers.notes[f"{name}, {model}"] = f"ran on the CPU for want of a lowering: {reply['fallbacks']}"
    samples: dict[str, list[pool.Reply]] = {name: [] for name in loaded}
    group = max(1, round(models.MODELS[model].group * args.scale))
    for c in workers.contestants:
        if c.name in loaded:
            loaded[c.name]["warm"] = workers.ask(c, "warm", n=max(4, group))
    for _ in range(args.rounds):
        for c in workers.contestants:
            if c.name in loaded and (reply := workers.ask(c, "steps", n=group)):
                samples[c.name].append(reply)
    return {name: {"load": loaded[name], "samples": samples[name]} for name in loaded}


Samples = dict[str, list[pool.Reply]]


def worst_step(samples: Samples, family: str, key: str) -> list[float]:
    """Strict's usual step in ms; how many times Strict's median of the same step the slowest step takes in DeferAndFuse, and in
    Strict once more, which tells how much of that is noise; the same for the slowest of any round."""

    def steps(name: str) -> list[list[float]]:
        return [[r[key][i] for r in samples[name]] for i in range(STEPS)]

    def medians(name: str) -> list[float]:
        return [statistics.median(step) for step in steps(name)]

    strict = medians(family)
    others = (f"{family}:fuse", f"{family}:again")
    worst = [max(t / m for t, m in zip(medians(name), strict, strict=True)) for name in others]
    any_round = [max(max(ts) / m for ts, m in zip(steps(name), strict, strict=True)) for name in others]
    return [statistics.median(strict[1:]), *worst, *any_round]


def warming_of(model: str, args: argparse.Namespace, notes: dict[str, str]) -> dict[str, Samples]:
    """{placement: {contestant: a reply of `singly` for each round}}, each from a fresh process with an empty disk cache."""
    places = {"one core": frozenset({args.cpu}), "two cores": frozenset(os.sched_getaffinity(0))}
    found: dict[str, Samples] = {place: {} for place in places}
    for _ in range(args.rounds):
        for place, cpus in places.items():
            who = pool.contestants(args)
            who += [dataclasses.replace(c, name=f"{c.name}:again") for c in who if ":" not in c.name]
            for c in who:
                with tempfile.TemporaryDirectory(prefix="bench-cache-") as root:
                    env = {
                        **c.env,
                        "TORCH_TPU_CACHE_DIR": f"{root}/cache",
                        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": f"{root}/peer",
                    }
                    workers = pool.Pool([fresh := dataclasses.replace(c, env=env, cpus=cpus)], args.cpu, args.timeout)
                    if workers.ask(fresh, "load", model=model, steps=0) and (reply := workers.ask(fresh, "singly", n=STEPS)):
                        found[place].setdefault(c.name, []).append(reply)
                    workers.close()
                    notes |= workers.notes
    return found


def warming(args: argparse.Namespace) -> None:
    """A trace runs op by op until its program is ready: no step may be slower for it than Strict's same step is."""
    args.modes, notes = "strict,fuse", dict[str, str]()
    args.run = ",".join(f for f in args.run.split(",") if f in ("tpu", "torchtpu"))
    result: dict[str, Any] = {}
    bad = []
    for model in names(args):
        result[model] = found = warming_of(model, args, notes)
        body = []
        for place, samples in found.items():
            for family in [f for f in ("tpu", "torchtpu") if {f, f"{f}:fuse", f"{f}:again"} <= set(samples)]:
                for key, what in (("cpu", "CPU of all threads"), ("caller", "CPU of the caller"), ("wall", "wall")):
                    _, fuse, again, *_ = row = worst_step(samples, family, key)
                    body.append([f"{family}, {place}, {what}", *map(pool.number, row)])
                    if family == "tpu" and key != "cpu" and place == "two cores" and fuse > max(WORST, again):
                        bad.append(f"{model}, {place}, {what}: {fuse:.2f}")
        columns = ["Strict, ms", "worst step, Fuse / Strict", "Strict / Strict", "any round, Fuse / Strict", "Strict / Strict"]
        pool.print_body(f"{models.MODELS[model].title}: the first {STEPS} steps, medians of {args.rounds} processes", body, columns)
        sys.stdout.flush()
    for what, why in notes.items():
        print(f"  - {what}: {why}")
    pool.save("warming", args, {"models": result, "notes": notes})
    if bad:
        sys.exit(f"steps slower than {WORST} times Strict's: {'; '.join(bad)}")


def first_step(args: argparse.Namespace) -> None:
    """Each contestant three times in fresh processes; the first fills its disk cache and is not counted."""
    model = "gpt-sdpa" if args.attention == "sdpa" else "gpt-math"
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as root:
        caches = {
            "tpu": {"TORCH_TPU_CACHE_DIR": f"{root}/tpu"},
            "torchtpu": {"TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": f"{root}/torchtpu"},
            "jax": {"JAX_COMPILATION_CACHE_DIR": f"{root}/jax", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
        }
        who = [dataclasses.replace(c, env={**c.env, **caches.get(c.family, {})}) for c in pool.contestants(args)]
        seconds: dict[str, list[float]] = {c.name: [] for c in who}
        cpu: dict[str, list[float]] = {c.name: [] for c in who}
        notes: dict[str, str] = {}
        for _ in range(args.rounds + 1):
            for c in who:
                workers = pool.Pool([c], args.cpu, args.timeout)
                begin = time.monotonic()
                if reply := workers.ask(c, "load", model=model, steps=1):
                    seconds[c.name].append(time.monotonic() - begin)
                    cpu[c.name].append(reply["cpu"])
                workers.close()
                notes |= workers.notes
    rows: list[pool.Row] = []
    for what, got in (("wall", seconds), ("CPU", cpu)):
        rows.append((f"cold cache, {what}", {name: s[0] if s else None for name, s in got.items()}))
        rows.append((f"warm cache, {what}", {name: pool.median(s[1:]) for name, s in got.items()}))
    pool.print_table(
        f"Seconds from the start of the process to the end of its first step, {models.MODELS[model].title}, one core", rows, who
    )
    for what, why in notes.items():
        print(f"  - {what}: {why}")
    pool.save("first-step", args, {"seconds": seconds, "cpu": cpu, "notes": notes})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pool.add_arguments(parser)
    parser.add_argument("--models", default="mlp,lstm,resnet,gpt", help=f"gpt, or of {', '.join(models.MODELS)}")
    parser.add_argument(
        "--attention", choices=("math", "sdpa", "both"), default="both", help="TorchTPU cannot run SDPA on a CPU plugin"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of steps in a group")
    parser.add_argument("--first-step", action="store_true")
    parser.add_argument("--warming", action="store_true")
    args = parser.parse_args()
    if args.warming:
        warming(args)
        return
    if args.first_step:
        first_step(args)
        return
    who = pool.contestants(args)
    workers = pool.Pool(who, args.cpu, args.timeout)
    result, bad, missing = {}, [], []
    wall: list[pool.Row] = []
    cpu: list[pool.Row] = []
    for model in names(args):
        result[model] = got = run_model(workers, model, args)
        for rows, key in ((wall, "wall"), (cpu, "cpu")):
            rows.append((models.MODELS[model].title, {n: pool.median(r[key] for r in g["samples"]) for n, g in got.items()}))
        losses = {n: got[n]["load"]["losses"] for n in sorted(got, key=lambda n: n != "cpu")}
        bad += [f"{model}: {line}" for line in disagreement(losses)] if losses else []
        missing += [model] if any(c.family == "tpu" for c in who) and not any(n.split(":")[0] == "tpu" for n in got) else []
        pool.print_table(f"{models.MODELS[model].title}: ms a step", [("wall", wall[-1][1]), ("CPU", cpu[-1][1])], who)
        sys.stdout.flush()
    workers.close()
    pool.print_table(f"Wall ms a training step, median of {args.rounds} groups, one core", wall, who)
    pool.print_table("CPU ms a training step, all threads", cpu, who)
    workers.print_notes()
    pool.save("train", args, {"models": result, "notes": workers.notes})
    for line in bad:
        print(f"LOSSES DISAGREE (first three steps, more than {TOLERANCE}): {line}", file=sys.stderr)
    if missing:
        print(f"tpu did not run: {', '.join(missing)}", file=sys.stderr)
    if bad or missing:
        sys.exit(1)


if __name__ == "__main__":
    main()
