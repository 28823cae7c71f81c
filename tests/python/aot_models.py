"""Whole training steps as StableHLO modules for a TPU: forward, backward and optimizer in one program, traced without a device.

    python tests/python/aot_models.py FOLDER

The models are a layer each of the benchmarks' GPT, of MiniLM and of a narrow Llama, by their configurations, and ResNet-18 whole,
with few examples: libtpu takes minutes for more, and this is enough for what a change of a lowering does to a real program to be
seen.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch_tpu
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import proxy_tensor
from torch_tpu import _decompose

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from bench import models, torch_worker

_C = torch_tpu._C
aten = torch.ops.aten


def attention(
    q: Any, k: Any, v: Any, bias: Any = None, p: float = 0.0, causal: bool = False, debug: bool = False, *, scale: Any = None
):
    """Fused attention by the name that has a row."""
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, v, p, causal, attn_mask=bias, scale=scale)
    return out, lse, None, None, q.shape[2], k.shape[2], None, None, None


def attention_backward(grad: Any, q: Any, k: Any, v: Any, bias: Any, mask: Any, out: Any, lse: Any, *rest: Any, scale: Any = None):
    causal = rest[5]
    flash = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return *flash(grad, q, k, v, out, lse, 0.0, causal, attn_mask=bias, scale=scale), None


def to_module(fn: Callable[..., list[torch.Tensor]], inputs: list[torch.Tensor], writes: list[int], name: str) -> str:
    """The module of a function of fake tensors; result k may take the memory of input writes[k]."""
    table = _decompose._Table(_decompose.table().rows)
    table[aten._scaled_dot_product_fused_attention_overrideable.default] = attention
    table[aten._scaled_dot_product_fused_attention_overrideable_backward.default] = attention_backward
    module = proxy_tensor.make_fx(fn, decomposition_table=table)(*inputs)
    if any(isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable for n in module.graph.nodes):
        module = proxy_tensor.make_fx(torch.func.functionalize(module, remove="mutations_and_views"))(*inputs)
    module.graph.eliminate_dead_code()
    builder = _decompose.GraphBuilder(name)
    place = 0
    for node in module.graph.nodes:
        if node.op == "placeholder":
            builder.input(node, place, 0, inputs[place])
            place += 1
        elif node.op == "get_attr":
            builder.constant(node, getattr(module, str(node.target)))
        elif node.op == "call_function":
            builder.call(node)
        elif node.op == "output":
            op = builder.finish(node.args[0])
    return _C.graph_export(op, [_decompose.spec(t) for t in inputs], writes, True)


def adamw(p: Any, g: Any, m: Any, v: Any, step: Any) -> tuple[Any, Any, Any]:
    """Loshchilov and Hutter (2019); moments in float32."""
    g = g.float()
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    scale = torch.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    return (p.float() * (1 - 3e-6) - 3e-4 * scale * m / (v.sqrt() + 1e-8)).to(p.dtype), m, v


def step_module(
    name: str, loss: Callable[..., torch.Tensor], parameters: dict[str, Any], buffers: dict[str, Any], batch: list[torch.Tensor]
) -> str:
    """One step with AdamW.

    Args:
        loss: of parameters, buffers and batch; all are fake tensors on the device.
    """
    n, names = len(parameters), list(parameters)
    moments = [torch.empty(p.shape, device="tpu") for p in parameters.values()]
    inputs = [
        *parameters.values(),
        *moments,
        *[m.clone() for m in moments],
        torch.empty((), device="tpu"),
        *buffers.values(),
        *batch,
    ]

    def run(*flat: torch.Tensor) -> list[torch.Tensor]:
        held = [p.detach().requires_grad_() for p in flat[:n]]
        rest = flat[3 * n + 1 :]
        with torch.enable_grad():
            value = loss(dict(zip(names, held, strict=True)), dict(zip(buffers, rest, strict=False)), *rest[len(buffers) :])
            grads = torch.autograd.grad(value, held, allow_unused=True)
        out: list[list[torch.Tensor]] = [[], [], []]
        for i, g in enumerate(grads):
            g = torch.zeros_like(held[i]) if g is None else g
            for to, t in zip(out, adamw(flat[i], g, flat[n + i], flat[2 * n + i], flat[3 * n]), strict=True):
                to.append(t.detach())
        return [value.detach(), *out[0], *out[1], *out[2]]

    return to_module(run, inputs, [-1, *range(3 * n)], name)


def fake(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="tpu")


def of_weights(weights: dict[str, Any], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {k: fake(w.shape, dtype) for k, w in weights.items()}


def gpt(dtype: torch.dtype) -> str:
    tokens = [fake((models.GPT.batch, models.GPT.length), torch.int64) for _ in range(2)]
    return step_module(
        "gpt", lambda p, b, x, y: torch_worker.gpt(p, x, y, None), of_weights(models.gpt_weights(), dtype), {}, tokens
    )


def resnet(dtype: torch.dtype) -> str:
    class NoStatistics(dict):  # type: ignore[type-arg]
        def __missing__(self, key: str) -> tuple[None, None]:
            return None, None

    size = models.RESNET_SIDE
    batch = [fake((models.RESNET_BATCH, 3, size, size), dtype), fake((models.RESNET_BATCH,), torch.int64)]
    return step_module(
        "resnet18",
        lambda p, b, x, y: torch_worker.resnet(p, x, y, NoStatistics()),
        of_weights(models.resnet_weights(), dtype),
        {},
        batch,
    )


def of_module(module: torch.nn.Module, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, Any]]:
    def one(t: torch.Tensor) -> torch.Tensor:
        return fake(t.shape, dtype if t.is_floating_point() else t.dtype)

    return {k: one(p) for k, p in module.named_parameters()}, {k: one(b) for k, b in module.named_buffers()}


def bert(dtype: torch.dtype) -> str:
    """all-MiniLM-L6-v2's sizes, one of its layers: mean of the last hidden states, cosine beside a target."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=384, num_hidden_layers=1, num_attention_heads=12, intermediate_size=1536, max_position_embeddings=512
    )
    with torch.device("meta"):
        model = BertModel(config, add_pooling_layer=False).eval()
    p, b = of_module(model, dtype)

    def loss(p: Any, b: Any, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        out = torch.func.functional_call(model, (p, b), (tokens,)).last_hidden_state.mean(1)
        return 1 - torch.nn.functional.cosine_similarity(out.float(), target).mean()

    return step_module("minilm", loss, p, b, [fake((8, 128), torch.int64), fake((8, 384))])


def llama(dtype: torch.dtype) -> str:
    """One of Llama's blocks, narrow: grouped queries, rotary positions, RMSNorm, SwiGLU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=2048, hidden_size=512, intermediate_size=1408, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=2
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
    p, b = of_module(model, dtype)

    def loss(p: Any, b: Any, tokens: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(model, (p, b), (tokens,), {"use_cache": False}).logits
        return torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten())

    return step_module("llama", loss, p, b, [fake((4, 256), torch.int64)])


MODELS = {"gpt": gpt, "resnet18": resnet, "minilm": bert, "llama": llama}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def make(name: str) -> str:
    """The module of ``gpt.float32``."""
    model, _, dtype = name.partition(".")
    models.GPT = dataclasses.replace(models.GPT, layers=1)
    with FakeTensorMode(allow_non_fake_inputs=True):
        return MODELS[model](DTYPES[dtype])


def names() -> list[str]:
    return [f"{m}.{d}" for m in MODELS for d in DTYPES]


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or names():
        text = make(name)
        (folder / f"{name}.mlir").write_text(text)
        print(name, math.ceil(len(text) / 1024), "KiB", flush=True)
