"""A small GPT over characters, trained on the Python documentation that ships with Python; saved, loaded and continued.

python -m examples.train_gpt [--device cpu] [--steps 300]
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import pydoc_data.topics
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from examples import device as dev


@dataclasses.dataclass(frozen=True)
class Size:
    layers: int = 4
    width: int = 192
    heads: int = 6
    length: int = 64
    batch: int = 16


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        d = size.width
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x and the result (batch, length, width)"""
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, size: Size, vocabulary: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, size.width), nn.Embedding(size.length, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, vocabulary, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens (batch, length) int64; logits (batch, length, vocabulary)"""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position(places))))


class Text:
    """The documentation as numbers, one a character, and random pieces of it."""

    def __init__(self) -> None:
        text = "\n\n".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))
        self.alphabet = sorted(set(text))
        number = {c: i for i, c in enumerate(self.alphabet)}
        self.data = torch.tensor([number[c] for c in text])
        self.random = torch.Generator().manual_seed(1)

    def batch(self, size: Size, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Characters and the ones that follow them, each (batch, length) int64"""
        begin = torch.randint(len(self.data) - size.length - 1, (size.batch, 1), generator=self.random)
        piece = self.data[begin + torch.arange(size.length + 1)].to(device)
        return piece[:, :-1], piece[:, 1:]

    def decode(self, tokens: torch.Tensor) -> str:
        return "".join(self.alphabet[i] for i in tokens.tolist())


class Run:
    """A model with its optimizer and schedule: what a checkpoint holds."""

    def __init__(self, size: Size, vocabulary: int, device: str, steps: int) -> None:
        self.model = GPT(size, vocabulary).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.01)
        # The learning rate differs in every step; a number that changes must not make the backend compile again.
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda i: min(1, (i + 1) / 50) * (0.55 + 0.45 * math.cos(math.pi * min(1, i / steps)))
        )

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def save(self, path: pathlib.Path) -> None:
        torch.save(
            {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict()},
            path,
        )

    def load(self, path: pathlib.Path, device: str) -> None:
        state = torch.load(path, map_location=device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])


def train(run: Run, text: Text, size: Size, device: str, steps: int) -> float:
    """The last loss shown; prints how long it took."""
    compiling = dev.Compiling(device)
    begin = time.perf_counter()
    shown = math.nan
    with tqdm(total=steps, desc="training", unit="step", mininterval=1) as bar:
        for i in range(steps):
            loss = run.step(*text.batch(size, device))
            if i % 10 == 9 or i == steps - 1:  # reading it waits for the device
                shown = loss.item()
                bar.set_postfix(loss=f"{shown:.3f}")
            bar.update()
    took = time.perf_counter() - begin
    print(f"{steps} steps in {took:.1f} s, {steps * size.batch * size.length / took:.0f} characters/s ({compiling})")
    return shown


@torch.no_grad()
def sample(model: GPT, text: Text, size: Size, device: str, n: int = 200) -> str:
    """n characters that follow a piece of the text. The window keeps its length, so every step runs the same programs."""
    window, _ = text.batch(dataclasses.replace(size, batch=1), device)
    made = []
    for _ in range(n):
        chosen = torch.multinomial(torch.softmax(model(window)[:, -1] / 0.7, dim=-1), 1)
        window = torch.cat([window[:, 1:], chosen], dim=1)
        made.append(chosen)
    return text.decode(torch.cat(made, dim=1)[0].cpu())


def check_resume(run: Run, text: Text, size: Size, device: str, steps: int) -> None:
    """Save, load into a fresh model and optimizer, and let both go on with the same batches: their losses must be the same."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "checkpoint.pt"
        run.save(path)
        fresh = Run(size, len(text.alphabet), device, steps)
        fresh.load(path, device)
    batches = [text.batch(size, device) for _ in range(5)]
    expected = [run.step(*b).item() for b in batches]
    resumed = [fresh.step(*b).item() for b in batches]
    worst = max(abs(a - b) for a, b in zip(expected, resumed, strict=True))
    print(
        f"saved, loaded, continued: losses {', '.join(f'{x:.4f}' for x in resumed)}; largest difference from going on {worst:.1e}"
    )
    assert worst < 1e-4, f"a resumed run differs: {resumed} v. {expected}"


def run(device: str, steps: int) -> float:
    torch.manual_seed(0)
    size, text = Size(), Text()
    going = Run(size, len(text.alphabet), device, steps)
    count = sum(p.numel() for p in going.model.parameters()) / 1e6
    print(f"GPT, {count:.1f} M parameters, {len(text.data)} characters of documentation")
    loss = train(going, text, size, device, steps)
    print("sample: " + sample(going.model, text, size, device).replace("\n", "\n    "))
    check_resume(going, text, size, device, steps)
    return loss


def main() -> None:
    parser = dev.parser(__doc__)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    run(args.device, args.steps)
    if bad := dev.fallbacks(args.device):
        sys.exit(f"ran on the CPU: {bad}")


if __name__ == "__main__":
    main()
