"""A PyTorch worker: native CPU, this backend or TorchTPU, told apart by --setup and --device. See pool.py."""

from __future__ import annotations

import argparse
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from bench import models, serve

Parameters = dict[str, torch.Tensor]


def register(setup: str) -> None:
    """TorchTPU registers itself only where it sees a TPU on the PCI bus; beside a CPU plugin its private initialiser is called."""
    if setup == "torchtpu":
        importlib.import_module("torch_tpu._loader")._init_device("tpu")


def choose_mode(mode: str) -> None:
    """Both backends name their modes alike, and are strict unless told otherwise; also around the graphs of a compiled function."""
    tpu: Any = torch.get_device_module("tpu")
    if mode == "fuse":
        tpu.eager_mode = tpu.EagerMode.DEFER_AND_FUSE


def linear(p: Parameters, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])


def mlp(p: Parameters, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    last = len(models.MLP_WIDTHS) - 2
    for i in range(last):
        x = linear(p, str(i), x).relu()
    return F.cross_entropy(linear(p, str(last), x), y)


def softmax_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """q, k, v (batch, heads, length, width); mask (length, length), True where a query may not look."""
    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
    return torch.matmul(torch.softmax(scores.masked_fill(mask, float("-inf")), dim=-1), v)


def gpt(p: Parameters, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """`mask` None: scaled_dot_product_attention."""
    size = models.GPT
    b, t = x.shape

    def norm(name: str, h: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(h, (size.width,), p[f"{name}.weight"], p[f"{name}.bias"])

    h = F.embedding(x, p["token.weight"]) + p["position.weight"]
    for i in range(size.layers):
        heads = (
            linear(p, f"{i}.qkv", norm(f"{i}.norm1", h)).view(b, t, 3, size.heads, size.width // size.heads).permute(2, 0, 3, 1, 4)
        )
        q, k, v = heads.unbind(0)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True) if mask is None else softmax_attention(q, k, v, mask)
        h = h + linear(p, f"{i}.proj", a.transpose(1, 2).reshape(b, t, size.width))
        h = h + linear(p, f"{i}.down", F.gelu(linear(p, f"{i}.up", norm(f"{i}.norm2", h)), approximate="tanh"))
    return F.cross_entropy(F.linear(norm("norm", h), p["head.weight"]).flatten(0, 1), y.flatten())


def resnet(p: Parameters, x: torch.Tensor, y: torch.Tensor, running: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """`running` holds each batch norm's running mean and variance, updated in place."""

    def conv(name: str, h: torch.Tensor, stride: int) -> torch.Tensor:
        w = p[f"{name}.weight"]
        h = F.conv2d(h, w, stride=stride, padding=w.shape[-1] // 2)
        mean, var = running[name]
        return F.batch_norm(h, mean, var, p[f"{name}.norm.weight"], p[f"{name}.norm.bias"], training=True)

    x = F.max_pool2d(conv("stem", x, 2).relu(), kernel_size=3, stride=2, padding=1)
    for b in models.resnet_blocks():
        h = conv(f"{b.name}.conv1", x, b.stride).relu()
        h = conv(f"{b.name}.conv2", h, 1)
        short = conv(f"{b.name}.short", x, b.stride) if b.projects else x
        x = (h + short).relu()
    return F.cross_entropy(linear(p, "head", x.mean(dim=(2, 3))), y)


def bert(p: Parameters, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """MiniLM's encoder: norms after the residuals, mean of the tokens, a linear head."""
    size = models.BERT
    b, t = x.shape

    def norm(name: str, h: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(h, (size.width,), p[f"{name}.weight"], p[f"{name}.bias"])

    h = norm("norm", F.embedding(x, p["token.weight"]) + p["position.weight"])
    for i in range(size.layers):
        heads = linear(p, f"{i}.qkv", h).view(b, t, 3, size.heads, size.width // size.heads).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
        a = torch.matmul(torch.softmax(scores, dim=-1), v).transpose(1, 2).reshape(b, t, size.width)
        h = norm(f"{i}.norm1", h + linear(p, f"{i}.proj", a))
        h = norm(f"{i}.norm2", h + linear(p, f"{i}.down", F.gelu(linear(p, f"{i}.up", h))))
    return F.cross_entropy(linear(p, "head", h.mean(dim=1)), y)


def lstm(p: Parameters, net: torch.nn.LSTM, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(linear(p, "head", net(x)[0][-1]), y)


def lstm_of(p: Parameters, size: models.LstmSize) -> torch.nn.LSTM:
    """A torch.nn.LSTM of these parameters."""
    net = torch.nn.LSTM(size.inputs, size.hidden, size.layers, device="meta")
    for name, w in p.items():
        if name.startswith("lstm."):
            setattr(net, name.removeprefix("lstm."), w)
    return net


def compiler(device: torch.device) -> Callable[..., Any]:
    return functools.partial(torch.compile, backend="tpu" if device.type != "cpu" else "inductor", dynamic=False)


class TorchTrainer(serve.Trainer):
    def __init__(self, name: str, device: torch.device, mode: str, drain: Callable[[], None]) -> None:
        model = models.MODELS[name]
        self.device, self.batch, self.drain = device, model.batch, drain  # type: ignore[method-assign]
        self.parameters = {k: torch.nn.Parameter(torch.from_numpy(w).to(device)) for k, w in model.weights().items()}
        self.loss = self._loss(name)
        torch._dynamo.reset()
        if mode == "compile":
            self.loss = compiler(device)(self.loss)
        kind: Any = torch.optim.AdamW if model.adamw else torch.optim.SGD
        self.optimizer = kind(self.parameters.values(), **(models.ADAMW if model.adamw else models.SGD))
        if mode == "whole":
            self.train = compiler(device)(self.train)  # type: ignore[method-assign]

    def _loss(self, name: str) -> Callable[..., torch.Tensor]:
        p: Parameters = {**self.parameters}
        if name in models.LSTM:
            net = lstm_of(p, models.LSTM[name])
            return lambda x, y: lstm(p, net, x, y)
        if name == "mlp":
            return lambda x, y: mlp(p, x, y)
        if name == "bert":
            return lambda x, y: bert(p, x, y)
        if name == "resnet":
            widths = {k.removesuffix(".norm.weight"): len(w) for k, w in p.items() if k.endswith(".norm.weight")}
            running = {k: (torch.zeros(n, device=self.device), torch.ones(n, device=self.device)) for k, n in widths.items()}
            return lambda x, y: resnet(p, x, y, running)
        n = models.GPT.length
        mask = torch.ones(n, n, dtype=torch.bool).triu(1).to(self.device) if name == "gpt-math" else None
        return lambda x, y: gpt(p, x, y, mask)

    def prepare(self, step: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(a).to(self.device) for a in self.batch(step))

    def step(self, batch: Any) -> torch.Tensor:
        return self.train(*batch)

    def train(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class TorchServer(serve.Server):
    def __init__(self, device: torch.device, mode: str) -> None:
        super().__init__()
        self.device, self.mode = device, mode

    def drain(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def ops(self) -> dict[str, tuple[Callable[[], object], int]]:
        a, b = torch.arange(16.0).to(self.device), torch.ones(16).to(self.device)
        scalar, leaf = torch.ones(()).to(self.device), torch.ones(16).to(self.device).requires_grad_()

        def chain_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            for _ in range(100):
                x = x + y
            return x

        def chain() -> torch.Tensor:
            return chain_of(a, b).cpu()

        if self.mode in ("compile", "whole"):
            add, adds = compiler(self.device)(lambda x, y: x + y), compiler(self.device)(chain_of)
            return {"add_compiled": (lambda: add(a, b), 20_000), "chain_compiled": (lambda: adds(a, b).cpu(), 2_000)}
        return {
            "add": (lambda: a + b, 20_000),
            "add_item": (lambda: (a + b)[0].item(), 2_000),
            "item": (lambda: scalar.item(), 2_000),
            "add_autograd": (lambda: leaf + b, 20_000),
            "chain": (chain, 60),
        }

    def settle(self) -> None:
        self.drain()
        if wait := getattr(getattr(self._module(), "compiler", None), "wait", None):
            wait()

    def programs(self) -> int:
        stats = getattr(self._module(), "fuse_stats", None)
        return int(stats()["programs"]) if stats else 0

    def _module(self) -> Any:
        return torch.get_device_module(self.device) if self.device.type != "cpu" else None

    def fallbacks(self) -> dict[str, int]:
        if self.device.type == "cpu":
            return {}
        counted = getattr(torch.get_device_module(self.device), "fallbacks", dict)
        return dict(counted())

    def trainer(self, model: str) -> serve.Trainer:
        return TorchTrainer(model, self.device, self.mode, self.drain)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--setup", choices=("none", "torchtpu"), default="none")
    parser.add_argument("--mode", choices=("strict", "fuse", "compile", "whole"), default="strict")
    args = parser.parse_args()
    torch.set_num_threads(1)
    register(args.setup)
    device = torch.device(args.device)
    if device.type != "cpu":
        choose_mode(args.mode)
    TorchServer(device, args.mode).run({"torch": torch.__version__, "device": args.device, "mode": args.mode})


if __name__ == "__main__":
    main()
