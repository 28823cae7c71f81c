"""The same models and micro-benchmarks in jax.numpy and optax, one jitted training step with donated state. See pool.py.

Images and convolution weights are turned to NHWC and HWIO first, the layout that JAX's users choose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from bench import models, serve

Tree = dict[str, Any]


def linear(p: Tree, name: str, x: jax.Array) -> jax.Array:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def normalize(p: Tree, name: str, x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array, jax.Array]:
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"], mean, var


def mlp(p: Tree, running: Tree, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Tree]:
    last = len(models.MLP_WIDTHS) - 2
    for i in range(last):
        x = jax.nn.relu(linear(p, str(i), x))
    return cross_entropy(linear(p, str(last), x), y), running


def gpt(p: Tree, running: Tree, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Tree]:
    size = models.GPT
    b, t = x.shape
    visible = jnp.tril(jnp.ones((t, t), bool))
    h = p["token.weight"][x] + p["position.weight"]
    for i in range(size.layers):
        qkv = linear(p, f"{i}.qkv", normalize(p, f"{i}.norm1", h, (-1,))[0])
        q, k, v = qkv.reshape(b, t, 3, size.heads, -1).transpose(2, 0, 3, 1, 4)
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (size.width // size.heads) ** -0.5
        a = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1) @ v
        h = h + linear(p, f"{i}.proj", a.transpose(0, 2, 1, 3).reshape(b, t, size.width))
        h = h + linear(p, f"{i}.down", jax.nn.gelu(linear(p, f"{i}.up", normalize(p, f"{i}.norm2", h, (-1,))[0]), approximate=True))
    return cross_entropy(normalize(p, "norm", h, (-1,))[0] @ p["head.weight"].T, y), running


def bert(p: Tree, running: Tree, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Tree]:
    size = models.BERT
    b, t = x.shape

    def norm(name: str, h: jax.Array) -> jax.Array:
        return normalize(p, name, h, (-1,))[0]

    h = norm("norm", p["token.weight"][x] + p["position.weight"])
    for i in range(size.layers):
        q, k, v = linear(p, f"{i}.qkv", h).reshape(b, t, 3, size.heads, -1).transpose(2, 0, 3, 1, 4)
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (size.width // size.heads) ** -0.5
        a = (jax.nn.softmax(scores, axis=-1) @ v).transpose(0, 2, 1, 3).reshape(b, t, size.width)
        h = norm(f"{i}.norm1", h + linear(p, f"{i}.proj", a))
        h = norm(f"{i}.norm2", h + linear(p, f"{i}.down", jax.nn.gelu(linear(p, f"{i}.up", h), approximate=False)))
    return cross_entropy(linear(p, "head", h.mean(1)), y), running


def resnet(p: Tree, running: Tree, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Tree]:
    updated: Tree = {}

    def conv(name: str, h: jax.Array, stride: int) -> jax.Array:
        w = p[f"{name}.weight"]
        pad = w.shape[0] // 2
        h = lax.conv_general_dilated(h, w, (stride, stride), [(pad, pad)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        h, mean, var = normalize(p, f"{name}.norm", h, (0, 1, 2))
        n = h.size // h.shape[-1]
        old_mean, old_var = running[name]
        updated[name] = (0.9 * old_mean + 0.1 * mean.ravel(), 0.9 * old_var + 0.1 * var.ravel() * n / (n - 1))
        return h

    x = jax.nn.relu(conv("stem", x, 2))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), [(0, 0), (1, 1), (1, 1), (0, 0)])
    for b in models.resnet_blocks():
        h = jax.nn.relu(conv(f"{b.name}.conv1", x, b.stride))
        h = conv(f"{b.name}.conv2", h, 1)
        x = jax.nn.relu(h + (conv(f"{b.name}.short", x, b.stride) if b.projects else x))
    return cross_entropy(linear(p, "head", x.mean((1, 2))), y), updated


LOSSES: dict[str, Callable[..., Any]] = {"mlp": mlp, "gpt-math": gpt, "bert": bert, "resnet": resnet}


class JaxTrainer(serve.Trainer):
    def __init__(self, name: str) -> None:
        model = models.MODELS[name]
        self.batch, self.images = model.batch, name == "resnet"
        loss = LOSSES[name]
        weights = {k: w.transpose(2, 3, 1, 0) if w.ndim == 4 else w for k, w in model.weights().items()}
        p = {k: jnp.asarray(w) for k, w in weights.items()}
        if model.adamw:
            a = models.ADAMW
            optimizer = optax.adamw(a["lr"], *a["betas"], eps=a["eps"], weight_decay=a["weight_decay"])  # type: ignore[misc]
        else:
            optimizer = optax.sgd(models.SGD["lr"], momentum=models.SGD["momentum"])
        widths = {k.removesuffix(".norm.weight"): len(w) for k, w in p.items() if self.images and k.endswith(".norm.weight")}
        running = {k: (jnp.zeros(n), jnp.ones(n)) for k, n in widths.items()}
        self.state = (p, optimizer.init(p), running)

        def train(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
            p, moments, running = state
            (value, running), grads = jax.value_and_grad(loss, has_aux=True)(p, running, x, y)
            updates, moments = optimizer.update(grads, moments, p)
            return (optax.apply_updates(p, updates), moments, running), value

        self.train = jax.jit(train, donate_argnums=0)

    def prepare(self, step: int) -> tuple[jax.Array, jax.Array]:
        x, y = self.batch(step)
        if self.images:
            x = x.transpose(0, 2, 3, 1)
        return jnp.asarray(x if x.dtype == np.float32 else x.astype(np.int32)), jnp.asarray(y.astype(np.int32))

    def step(self, batch: Any) -> jax.Array:
        self.state, loss = self.train(self.state, *batch)
        return loss

    def drain(self) -> None:
        jax.block_until_ready(self.state)


class JaxServer(serve.Server):
    last: Any = None

    def drain(self) -> None:
        if self.last is not None:
            jax.block_until_ready(self.last)

    def ops(self) -> dict[str, tuple[Callable[[], object], int]]:
        a, b = jnp.arange(16.0), jnp.ones(16)
        jitted = jax.jit(lambda a, b: a + b)

        def add() -> None:
            self.last = a + b

        def add_jit() -> None:
            self.last = jitted(a, b)

        def chain() -> np.ndarray:
            x = a
            for _ in range(100):
                x = x + b
            return np.asarray(x)

        # No "item": an array remembers the value once read. No autograd without a transformed function.
        return {
            "add": (add, 20_000),
            "add_jit": (add_jit, 20_000),
            "add_item": (lambda: (a + b)[0].item(), 2_000),
            "chain": (chain, 60),
        }

    def trainer(self, model: str) -> serve.Trainer:
        if model not in LOSSES:
            raise ValueError(f"{model} is not written for JAX")
        return JaxTrainer(model)


if __name__ == "__main__":
    JaxServer().run({"jax": jax.__version__, "device": str(jax.devices()[0])})
