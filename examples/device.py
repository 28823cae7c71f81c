"""What the examples ask of a device. Only this file knows torch.tpu; everything else is plain PyTorch."""

from __future__ import annotations

import argparse

import torch


def parser(description: str | None) -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="tpu", help="any PyTorch device; default tpu")
    return p


def synchronize(device: str) -> None:
    """Wait until everything queued is done; a host without an accelerator has nothing to wait for."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize()


def name(device: str) -> str:
    return f"tpu: {torch.get_device_module(device).get_device_name()}" if torch.device(device).type == "tpu" else device


class Compiling:
    """Programs made, how many of them came from the disk cache, and the seconds spent on all, since this object was made."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.before = self._now()

    def _now(self) -> dict[str, float]:
        if torch.device(self.device).type != "tpu":
            return {}
        stats = torch.get_device_module(self.device).compile_stats()
        return {name: stats[name] for name in ("programs", "loaded", "seconds")}

    def __str__(self) -> str:
        since = {k: v - self.before[k] for k, v in self._now().items()}
        if not since:
            return "nothing to compile"
        seconds = f"{since['seconds']:.1f} s"
        return f"{since['programs']:.0f} programs made, {since['loaded']:.0f} of them read from the disk cache, in {seconds}"


def fallbacks(device: str) -> dict[str, int]:
    """Ops that ran on the CPU for want of a lowering, with how often; empty is the aim."""
    return dict(torch.get_device_module(device).fallbacks()) if torch.device(device).type == "tpu" else {}
