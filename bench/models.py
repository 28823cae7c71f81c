"""The models' sizes, first weights and batches, in numpy alone: every worker, whatever its framework, starts from the same
numbers, so that their losses can be compared step by step.

Names and layouts are PyTorch's: a linear weight is (out, in), a convolution weight (out, in, kh, kw), images are NCHW, float32.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np

Weights = dict[str, np.ndarray]
Batch = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class GptSize:
    layers: int = 6
    width: int = 384
    heads: int = 6
    length: int = 256
    batch: int = 8
    vocabulary: int = 256


@dataclasses.dataclass(frozen=True)
class BertSize:  # MiniLM-L6
    layers: int = 6
    width: int = 384
    heads: int = 12
    length: int = 64
    batch: int = 16
    vocabulary: int = 30522
    classes: int = 2


@dataclasses.dataclass(frozen=True)
class LstmSize:
    layers: int
    inputs: int = 128
    hidden: int = 128
    length: int = 32
    batch: int = 32
    classes: int = 10


GPT = GptSize()
BERT = BertSize()
LSTM = {"lstm": LstmSize(layers=1), "lstm-2": LstmSize(layers=2)}
MLP_WIDTHS = (784, 1024, 1024, 1024, 10)
MLP_BATCH = 64
RESNET_BATCH, RESNET_SIDE, RESNET_CLASSES = 8, 64, 10

# AdamW for all but ResNet, which has SGD with momentum. Its learning rate is small, so that rounding is not amplified into
# different losses within the three steps that are compared.
ADAMW = {"lr": 3e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
SGD = {"lr": 1e-3, "momentum": 0.9}


@dataclasses.dataclass(frozen=True)
class Block:
    """One basic block of ResNet-18: two 3x3 convolutions, and a 1x1 one on the shortcut where the shape changes."""

    name: str
    channels_in: int
    channels: int
    stride: int

    @property
    def projects(self) -> bool:
        return self.stride != 1 or self.channels_in != self.channels


def resnet_blocks() -> Iterator[Block]:
    channels_in = 64
    for stage, channels in enumerate((64, 128, 256, 512)):
        for i in range(2):
            yield Block(f"{stage}.{i}", channels_in, channels, 2 if stage > 0 and i == 0 else 1)
            channels_in = channels


def _normal(rng: np.random.Generator, scale: float, *shape: int) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def _norm(weights: Weights, name: str, width: int) -> None:
    weights[f"{name}.weight"], weights[f"{name}.bias"] = np.ones(width, np.float32), np.zeros(width, np.float32)


def _linear(weights: Weights, rng: np.random.Generator, name: str, out: int, inp: int, scale: float) -> None:
    weights[f"{name}.weight"], weights[f"{name}.bias"] = _normal(rng, scale, out, inp), np.zeros(out, np.float32)


def mlp_weights() -> Weights:
    rng, weights = np.random.default_rng(11), Weights()
    for i, (inp, out) in enumerate(itertools.pairwise(MLP_WIDTHS)):
        _linear(weights, rng, str(i), out, inp, (2 / inp) ** 0.5)
    return weights


def gpt_weights() -> Weights:
    rng, weights, d = np.random.default_rng(12), Weights(), GPT.width
    weights["token.weight"], weights["position.weight"] = _normal(rng, 0.02, GPT.vocabulary, d), _normal(rng, 0.02, GPT.length, d)
    for i in range(GPT.layers):
        _norm(weights, f"{i}.norm1", d)
        _linear(weights, rng, f"{i}.qkv", 3 * d, d, 0.02)
        _linear(weights, rng, f"{i}.proj", d, d, 0.02)
        _norm(weights, f"{i}.norm2", d)
        _linear(weights, rng, f"{i}.up", 4 * d, d, 0.02)
        _linear(weights, rng, f"{i}.down", d, 4 * d, 0.02)
    _norm(weights, "norm", d)
    weights["head.weight"] = _normal(rng, 0.02, GPT.vocabulary, d)
    return weights


def bert_weights() -> Weights:
    rng, weights, d = np.random.default_rng(14), Weights(), BERT.width
    weights["token.weight"], weights["position.weight"] = _normal(rng, 0.02, BERT.vocabulary, d), _normal(rng, 0.02, BERT.length, d)
    _norm(weights, "norm", d)
    for i in range(BERT.layers):
        _linear(weights, rng, f"{i}.qkv", 3 * d, d, 0.02)
        _linear(weights, rng, f"{i}.proj", d, d, 0.02)
        _norm(weights, f"{i}.norm1", d)
        _linear(weights, rng, f"{i}.up", 4 * d, d, 0.02)
        _linear(weights, rng, f"{i}.down", d, 4 * d, 0.02)
        _norm(weights, f"{i}.norm2", d)
    _linear(weights, rng, "head", BERT.classes, d, 0.02)
    return weights


def resnet_weights() -> Weights:
    rng, weights = np.random.default_rng(13), Weights()

    def conv(name: str, out: int, inp: int, kernel: int) -> None:
        weights[f"{name}.weight"] = _normal(rng, (2 / (out * kernel * kernel)) ** 0.5, out, inp, kernel, kernel)
        _norm(weights, f"{name}.norm", out)

    conv("stem", 64, 3, 7)
    for b in resnet_blocks():
        conv(f"{b.name}.conv1", b.channels, b.channels_in, 3)
        conv(f"{b.name}.conv2", b.channels, b.channels, 3)
        if b.projects:
            conv(f"{b.name}.short", b.channels, b.channels_in, 1)
    _linear(weights, rng, "head", RESNET_CLASSES, 512, 0.02)
    return weights


def lstm_weights(size: LstmSize) -> Weights:
    """torch.nn.LSTM's names and layouts below `lstm`, a linear head on the last output."""
    rng, weights = np.random.default_rng(15), Weights()
    for i in range(size.layers):
        for kind, width in (("ih", size.inputs if i == 0 else size.hidden), ("hh", size.hidden)):
            weights[f"lstm.weight_{kind}_l{i}"] = _normal(rng, size.hidden**-0.5, 4 * size.hidden, width)
            weights[f"lstm.bias_{kind}_l{i}"] = np.zeros(4 * size.hidden, np.float32)
    _linear(weights, rng, "head", size.classes, size.hidden, size.hidden**-0.5)
    return weights


def mlp_batch(step: int) -> Batch:
    rng = np.random.default_rng([21, step])
    return _normal(rng, 1.0, MLP_BATCH, MLP_WIDTHS[0]), rng.integers(0, MLP_WIDTHS[-1], MLP_BATCH)


def gpt_batch(step: int) -> Batch:
    """Tokens and the same tokens one place on, both (batch, length) int64."""
    tokens = np.random.default_rng([22, step]).integers(0, GPT.vocabulary, (GPT.batch, GPT.length + 1))
    return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


def bert_batch(step: int) -> Batch:
    rng = np.random.default_rng([24, step])
    return rng.integers(0, BERT.vocabulary, (BERT.batch, BERT.length)), rng.integers(0, BERT.classes, BERT.batch)


def lstm_batch(size: LstmSize, step: int) -> Batch:
    """(length, batch, inputs) float32 and a class each."""
    rng = np.random.default_rng([25, step])
    return _normal(rng, 1.0, size.length, size.batch, size.inputs), rng.integers(0, size.classes, size.batch)


def resnet_batch(step: int) -> Batch:
    rng = np.random.default_rng([23, step])
    return _normal(rng, 1.0, RESNET_BATCH, 3, RESNET_SIDE, RESNET_SIDE), rng.integers(0, RESNET_CLASSES, RESNET_BATCH)


@dataclasses.dataclass(frozen=True)
class Model:
    title: str
    weights: Callable[[], Weights]
    batch: Callable[[int], Batch]
    group: int  # steps timed together, by default
    adamw: bool = True


def _lstm(size: LstmSize) -> Model:
    title = f"LSTM {size.layers} x {size.hidden}, {size.length} steps, batch {size.batch}, AdamW"
    return Model(title, functools.partial(lstm_weights, size), functools.partial(lstm_batch, size), 20)


_gpt = f"GPT {GPT.layers} layers, width {GPT.width}, {GPT.batch}x{GPT.length} tokens, AdamW"
MODELS = {
    "mlp": Model("MLP 784-3x1024-10, batch 64, AdamW", mlp_weights, mlp_batch, 30),
    **{name: _lstm(size) for name, size in LSTM.items()},
    "resnet": Model("ResNet-18, 8x3x64x64, SGD momentum", resnet_weights, resnet_batch, 4, adamw=False),
    "bert": Model("MiniLM (BERT, 6 layers, width 384), 16x64 tokens, AdamW", bert_weights, bert_batch, 4),
    "gpt-math": Model(f"{_gpt}, softmax attention", gpt_weights, gpt_batch, 2),
    "gpt-sdpa": Model(f"{_gpt}, SDPA", gpt_weights, gpt_batch, 2),
}
