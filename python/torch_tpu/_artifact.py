"""The files of an exported program: its signature, its StableHLO, its weights.

``signature.txt`` is read by C programs too (``examples/run_artifact/artifact.c``), hence lines of words:

    torch_tpu artifact 1                                      format
    made torch_tpu 0.1.0 torch 2.13.0
    program cpu model.cpu.mlir 5120 0f3a9c11                  device, file, bytes, CRC-32
    weights model.safetensors
    input parameter f32 2x3 weight                            parameter, buffer, constant or user; type; sizes, - for none; name
    output write 1 f32 4 running_mean                         new contents of input 1
    output user f32 4x2 2x1 linear                            strides; name
    python results [..]                                       the rest is for Python: arguments that are no tensors, structures
    end
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import struct
import sys
import zlib
from typing import Any

import torch
from torch.utils import _pytree

from torch_tpu._decompose import DTYPE_NUMBERS

_C: Any = sys.modules["torch_tpu._C"]

FORMAT = 1
SIGNATURE = "signature.txt"
WEIGHTS = "model.safetensors"
# The core's names of the types that safetensors has a name for.
FILE_DTYPES = {
    torch.bool: ("bool", "BOOL"),
    torch.uint8: ("u8", "U8"),
    torch.uint16: ("u16", "U16"),
    torch.uint32: ("u32", "U32"),
    torch.uint64: ("u64", "U64"),
    torch.int8: ("s8", "I8"),
    torch.int16: ("s16", "I16"),
    torch.int32: ("s32", "I32"),
    torch.int64: ("s64", "I64"),
    torch.float16: ("f16", "F16"),
    torch.bfloat16: ("bf16", "BF16"),
    torch.float32: ("f32", "F32"),
    torch.float64: ("f64", "F64"),
    torch.float8_e4m3fn: ("f8e4m3fn", "F8_E4M3"),
    torch.float8_e5m2: ("f8e5m2", "F8_E5M2"),
    torch.complex64: ("c64", "C64"),
}
_BY_NAME = {names[0]: d for d, names in FILE_DTYPES.items()}
_BY_FILE_NAME = {names[1]: d for d, names in FILE_DTYPES.items()}
_KINDS = ("parameter", "buffer", "constant", "user")
_MAX_NDIM = 12


@dataclasses.dataclass
class Slot:
    """A tensor that goes in or comes out."""

    kind: str  # of inputs: parameter, buffer, constant, user; of outputs: write, user
    dtype: torch.dtype
    sizes: tuple[int, ...]
    name: str
    strides: tuple[int, ...] | None = None  # None: contiguous
    write: int = -1  # the input whose new contents it is

    @property
    def number(self) -> int:
        """The core's number of the type."""
        return DTYPE_NUMBERS[self.dtype]


@dataclasses.dataclass
class Signature:
    inputs: list[Slot] = dataclasses.field(default_factory=list)
    outputs: list[Slot] = dataclasses.field(default_factory=list)
    # Flat arguments of a call: which are tensors (of which input), and what the others must be.
    user: dict[int, int] = dataclasses.field(default_factory=dict)
    fixed: dict[int, Any] = dataclasses.field(default_factory=dict)
    results: list[tuple[str, Any]] = dataclasses.field(default_factory=list)  # ("tensor", output) or ("fixed", value)
    in_spec: Any = None
    out_spec: Any = None
    programs: dict[str, tuple[str, int, int]] = dataclasses.field(default_factory=dict)  # device: (file, bytes, CRC-32)
    weights: str = WEIGHTS


# ------------------------------------------------------------------------------------------------------------- writing


def _words(numbers: tuple[int, ...]) -> str:
    return "x".join(map(str, numbers)) or "-"


def _contiguous(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(max(n, 1) for n in sizes[i + 1 :]) for i in range(len(sizes)))


def _dump_spec(spec: Any) -> str | None:
    try:
        return _pytree.treespec_dumps(spec) if spec is not None else None
    except NotImplementedError:  # of a class without a serialized name: results then come as a list
        return None


def _lines(s: Signature) -> list[str]:
    from torch_tpu import __version__

    lines = [f"torch_tpu artifact {FORMAT}", f"made torch_tpu {__version__} torch {torch.__version__}"]
    lines += [f"program {target} {file} {n} {crc:08x}" for target, (file, n, crc) in s.programs.items()]
    lines += [f"weights {s.weights}"]
    lines += [f"input {x.kind} {FILE_DTYPES[x.dtype][0]} {_words(x.sizes)} {x.name}" for x in s.inputs]
    for x in s.outputs:
        what = f"{FILE_DTYPES[x.dtype][0]} {_words(x.sizes)}"
        if x.write >= 0:
            lines.append(f"output write {x.write} {what} {x.name}")
        else:
            lines.append(f"output user {what} {_words(x.strides or _contiguous(x.sizes))} {x.name}")
    lines += [f"python fixed {json.dumps(s.fixed)}", f"python results {json.dumps(s.results)}"]
    for name, spec in (("in_spec", _dump_spec(s.in_spec)), ("out_spec", _dump_spec(s.out_spec))):
        lines += [f"python {name} {spec}"] if spec is not None else []
    return [*lines, "end"]


def write_safetensors(path: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write tensors of any device in safetensors' format: the header's length, the header in JSON, bytes."""
    header: dict[str, Any] = {}
    at = 0
    for name, t in tensors.items():
        n = t.numel() * t.element_size()
        header[name] = {"dtype": FILE_DTYPES[t.dtype][1], "shape": list(t.shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            flat = t.detach().cpu().contiguous().reshape(-1)
            if flat.numel():
                f.write(flat.view(torch.uint8).numpy().data)


def write(folder: pathlib.Path, s: Signature, programs: dict[str, bytes], weights: dict[str, torch.Tensor]) -> None:
    """Write an artifact; the signature last, so that what was cut short is none."""
    for x in (*s.inputs, *s.outputs):
        if "\n" in x.name or "\r" in x.name or not x.name:
            raise NotImplementedError(f"the name {x.name!r} has no place on a line")
    try:
        json.dumps([s.fixed, s.results])
    except TypeError as e:
        raise NotImplementedError(f"an argument or result that is no tensor has no place in a file: {e}") from e
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SIGNATURE).unlink(missing_ok=True)
    for target, text in programs.items():
        file = f"model.{target}.mlir"
        (folder / file).write_bytes(text)
        s.programs[target] = (file, len(text), zlib.crc32(text))
    write_safetensors(folder / s.weights, weights)
    (folder / SIGNATURE).write_text("\n".join(_lines(s)) + "\n", encoding="utf-8")


# ------------------------------------------------------------------------------------------------------------- reading


def _numbers(word: str, least: int = 0) -> tuple[int, ...]:
    numbers = () if word == "-" else tuple(int(n) for n in word.split("x") if (n.isascii() and n.isdecimal()) or _bad(n))
    if len(numbers) > _MAX_NDIM or any(n < least or n >= 1 << 48 for n in numbers):
        raise ValueError(f"the sizes {word}")
    return numbers


def _bad(word: str) -> bool:
    raise ValueError(f"the number {word!r}")


def _one_of(word: str, known: Any) -> Any:
    if word not in known:
        raise ValueError(f"the word {word!r}")
    return word


def _plain_file(name: str) -> str:
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        raise ValueError(f"the file name {name!r}")
    return name


def _read_line(s: Signature, line: str) -> None:
    what, rest = line.split(" ", 1)
    if what == "program":
        target, file, n, crc = rest.split(" ")
        s.programs[target] = (_plain_file(file), *_numbers(n), int(crc, 16))  # type: ignore[assignment]
    elif what == "weights":
        s.weights = _plain_file(rest)
    elif what == "input":
        kind, dtype, sizes, name = rest.split(" ", 3)
        s.inputs.append(Slot(_one_of(kind, _KINDS), _BY_NAME[_one_of(dtype, _BY_NAME)], _numbers(sizes), name))
    elif what == "output" and rest.startswith("write "):
        _, at, dtype, sizes, name = rest.split(" ", 4)
        slot = Slot("write", _BY_NAME[_one_of(dtype, _BY_NAME)], _numbers(sizes), name, write=_numbers(at)[0])
        if slot.write >= len(s.inputs):
            raise ValueError(f"input {at}, there are {len(s.inputs)}")
        s.outputs.append(slot)
    elif what == "output":
        kind, dtype, sizes, strides, name = rest.split(" ", 4)
        slot = Slot(_one_of(kind, ("user",)), _BY_NAME[_one_of(dtype, _BY_NAME)], _numbers(sizes), name, _numbers(strides))
        if len(slot.strides or ()) != len(slot.sizes):
            raise ValueError(f"the strides {strides}")
        s.outputs.append(slot)
    elif what == "python":
        _read_python(s, *rest.split(" ", 1))
    elif what != "made":
        raise ValueError(f"the word {what!r}")


def _read_python(s: Signature, what: str, text: str) -> None:
    if what == "fixed":
        s.fixed = {int(k): v for k, v in json.loads(text).items()}
    elif what == "results":
        s.results = [(kind, v) for kind, v in json.loads(text)]
    elif what in ("in_spec", "out_spec"):
        setattr(s, what, _pytree.treespec_loads(text))


def _content(path: pathlib.Path) -> bytes:
    if path.exists() and not path.is_file():  # it may have no end
        raise ValueError(f"{path} is no file")
    return path.read_bytes()


def _parse(path: pathlib.Path) -> Signature:
    lines = _content(path).decode().split("\n")
    first = lines[0].split(" ")
    if first[:2] != ["torch_tpu", "artifact"] or len(first) != 3 or not first[2].isdecimal():
        raise ValueError(f"{path} is no signature of an artifact: it begins with {lines[0][:40]!r}")
    if int(first[2]) > FORMAT:
        raise ValueError(
            f"{path} was made by a newer torch_tpu: format {first[2]}, this one reads up to {FORMAT}. Upgrade torch_tpu"
        )
    if lines[-2:] != ["end", ""]:
        raise ValueError(f"{path} is cut short: its last line should be 'end'")
    s = Signature()
    for number, line in enumerate(lines[1:-2], 2):
        try:
            _read_line(s, line)
        except (ValueError, IndexError, KeyError, TypeError, RecursionError) as e:
            raise ValueError(f"{path}, line {number} cannot be read: {e}") from e
    return s


def read(folder: pathlib.Path) -> Signature:
    """The signature of an artifact.

    Raises:
        FileNotFoundError, ValueError: if there is none, or none that can be read.
    """
    path = folder / SIGNATURE
    if not path.exists():
        raise FileNotFoundError(f"{folder} is no artifact: it has no {SIGNATURE}")
    try:
        s = _parse(path)
    except UnicodeDecodeError as e:
        raise ValueError(f"{path} is damaged: {e}") from e
    places = [i for i, x in enumerate(s.inputs) if x.kind == "user"]
    tensors = [v for kind, v in s.results if kind == "tensor"]
    fresh = [k for k, x in enumerate(s.outputs) if x.write < 0]
    arguments = [i for i in range(len(places) + len(s.fixed)) if i not in s.fixed]
    if tensors != fresh or len(arguments) != len(places):
        raise ValueError(f"{path} contradicts itself: the arguments and results named for Python are not its inputs and outputs")
    s.user = dict(zip(arguments, places, strict=True))
    return s


def read_program(folder: pathlib.Path, s: Signature, target: str) -> bytes:
    """StableHLO of the program for a kind of device.

    Raises:
        FileNotFoundError, ValueError: if it is missing or is not what the signature was written for.
    """
    if target not in s.programs:
        raise ValueError(f"{folder} has no program for a {target}, only for {', '.join(s.programs) or 'none'}")
    file, n, crc = s.programs[target]
    text = _content(folder / file)
    if len(text) != n or zlib.crc32(text) != crc:
        raise ValueError(
            f"{folder / file} is damaged: {len(text)} bytes with CRC-32 {zlib.crc32(text):08x}, not {n} with {crc:08x}"
        )
    return text


def read_safetensors(path: pathlib.Path) -> dict[str, torch.Tensor]:
    """The tensors of a file in safetensors' format, on the CPU.

    Raises:
        FileNotFoundError, ValueError: if there is none, or if it is damaged.
    """
    raw = bytearray(_content(path))
    size = struct.unpack_from("<Q", raw)[0] if len(raw) >= 8 else len(raw)
    if size > len(raw) - 8:
        raise ValueError(f"{path} is damaged: its header does not fit in its {len(raw)} bytes")
    try:
        header = json.loads(raw[8 : 8 + size])
        return {k: _tensor(v, raw, 8 + size) for k, v in header.items() if k != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UnicodeDecodeError) as e:
        raise ValueError(f"{path} is damaged: {e}") from e


def _tensor(entry: dict[str, Any], raw: bytearray, start: int) -> torch.Tensor:
    dtype, sizes = _BY_FILE_NAME[entry["dtype"]], entry["shape"]
    first, last = entry["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*sizes, first, last)):
        raise ValueError(f"an entry {entry}")
    count = math.prod(sizes)
    if last - first != count * dtype.itemsize or start + last > len(raw):
        raise ValueError(f"an entry {entry} does not fit")
    if count == 0:
        return torch.empty(sizes, dtype=dtype)
    return torch.frombuffer(raw[start + first : start + last], dtype=torch.uint8).view(dtype).reshape(sizes)


def read_weights(folder: pathlib.Path, s: Signature) -> dict[str, torch.Tensor]:
    """Parameters, buffers and constants, on the CPU.

    Raises:
        FileNotFoundError, ValueError: if the file is missing or damaged, or is not of this program.
    """
    found = read_safetensors(folder / s.weights)
    held = {}
    for x in s.inputs:
        if x.kind == "user":
            continue
        if x.name not in found:
            raise ValueError(f"{folder / s.weights} has no {x.kind} {x.name!r}")
        t = held[x.name] = found[x.name]
        if t.dtype != x.dtype or tuple(t.shape) != x.sizes:
            raise ValueError(
                f"{folder / s.weights}: {x.name!r} is {t.dtype} of {tuple(t.shape)}, the program takes {x.dtype} of {x.sizes}"
            )
    return held
