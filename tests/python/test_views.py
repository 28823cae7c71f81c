"""Random programs of views, in-place ops and reads, beside CPU PyTorch step by step: values, sizes, strides, offsets and aliasing.

``TORCH_TPU_SWEEP=1`` (make sweep) runs thousands of programs instead of a few fixed ones.
"""

import os
import time

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SWEEP = os.environ.get("TORCH_TPU_SWEEP") == "1"
DTYPES = (torch.float32, torch.int64, torch.complex64, torch.uint8, torch.bool, torch.bfloat16)
RAW = (torch.float32, torch.int32, torch.uint8, torch.int16, torch.float64)  # read one another's bytes


class Pair:
    """A tensor on the CPU and the same one on the device."""

    def __init__(self, cpu, tpu):
        self.cpu, self.tpu = cpu, tpu


def int_in(data, low, high, name):
    return data.draw(st.integers(low, max(low, high)), label=name)


def axis_of(data, t):
    return int_in(data, 0, t.dim() - 1, "axis")


# Each step draws its arguments from the CPU tensor and gives a function of a tensor, or None where it cannot be done.


def step_slice(data, t):
    if t.dim() == 0:
        return None
    axis = axis_of(data, t)
    start, length = int_in(data, 0, t.size(axis), "start"), int_in(data, 0, t.size(axis), "length")
    step = int_in(data, 1, 3, "step")
    return lambda x: x[(slice(None),) * axis + (slice(start, start + length, step),)]


def step_select(data, t):
    if t.dim() == 0 or 0 in t.size():
        return None
    axis = axis_of(data, t)
    at = int_in(data, 0, t.size(axis) - 1, "at")
    return lambda x: x.select(axis, at)


def step_permute(data, t):
    order = data.draw(st.permutations(range(t.dim())), label="order")
    return lambda x: x.permute(tuple(order))


def step_unsqueeze(data, t):
    if t.dim() > 4:
        return None
    axis = int_in(data, 0, t.dim(), "axis")
    return lambda x: x.unsqueeze(axis)


def step_squeeze(data, t):
    return lambda x: x.squeeze()


def step_expand(data, t):
    if t.dim() > 4:
        return None
    n = int_in(data, 1, 3, "n")
    sizes = [3 if s == 1 and data.draw(st.booleans()) else s for s in t.size()]
    return lambda x: x.expand(n, *sizes)


def step_flatten(data, t):
    return lambda x: x.view(-1)


def step_unflatten(data, t):
    if t.dim() == 0:
        return None
    axis = axis_of(data, t)
    ways = [d for d in (1, 2, 3, 4) if t.size(axis) % d == 0]
    d = data.draw(st.sampled_from(ways))
    return lambda x: x.view(*x.size()[:axis], d, x.size(axis) // d, *x.size()[axis + 1 :]) if t.dim() < 6 else x


def step_reshape(data, t):
    return lambda x: x.reshape(-1)


def step_diagonal(data, t):
    if t.dim() < 2:
        return None
    offset = int_in(data, -1, 1, "offset")
    return lambda x: x.diagonal(offset, 0, t.dim() - 1)


def step_unfold(data, t):
    if t.dim() == 0 or t.dim() > 4:
        return None
    axis = axis_of(data, t)
    if t.size(axis) == 0:
        return None
    size, step = int_in(data, 1, t.size(axis), "size"), int_in(data, 1, 2, "step")
    return lambda x: x.unfold(axis, size, step)


def step_as_strided(data, t):
    whole = t.untyped_storage().nbytes() // t.element_size()
    if whole == 0:
        return None
    offset = int_in(data, 0, whole - 1, "offset")
    sizes, strides, room = [], [], whole - 1 - offset
    for _ in range(int_in(data, 0, 3, "ndim")):
        n, stride = int_in(data, 1, 3, "n"), int_in(data, 0, 4, "stride")
        if (n - 1) * stride > room:
            n = 1
        room -= (n - 1) * stride
        sizes.append(n)
        strides.append(stride)
    return lambda x: x.as_strided(sizes, strides, offset)


def step_real(data, t):
    return (lambda x: torch.view_as_real(x.resolve_conj())) if t.is_complex() else None


def step_imag(data, t):
    return (lambda x: x.imag) if t.is_complex() else None


def step_conj(data, t):
    return lambda x: x.conj()


def step_reinterpret(data, t):
    dtype = data.draw(st.sampled_from(RAW), label="dtype")
    return (lambda x: x.view(dtype)) if t.dtype in RAW else None


def step_clone(data, t):
    return lambda x: x.clone()


VIEWS = (
    step_slice,
    step_select,
    step_permute,
    step_unsqueeze,
    step_squeeze,
    step_expand,
    step_flatten,
    step_unflatten,
    step_reshape,
    step_diagonal,
    step_unfold,
    step_as_strided,
    step_real,
    step_imag,
    step_conj,
    step_clone,
)


def write_fill(data, t):
    n = int_in(data, 0, 3, "value")
    return lambda x: x.fill_(n)


def write_copy(data, t):
    torch.manual_seed(int_in(data, 0, 3, "seed"))
    source = torch.randint(0, 5, t.size()).to(t.dtype)
    return lambda x: x.copy_(source.to(x.device))


def write_copy_transposed(data, t):
    torch.manual_seed(int_in(data, 0, 3, "seed"))
    source = torch.randint(0, 5, tuple(t.size())[::-1]).to(t.dtype)
    return lambda x: x.copy_(source.to(x.device).permute(tuple(range(t.dim()))[::-1]))


def write_item(data, t):
    if t.numel() == 0:
        return None
    at = tuple(int_in(data, 0, n - 1, "at") for n in t.size())

    def write(x):
        x[at] = 4

    return write


def write_add(data, t):
    if t.dtype == torch.bool:
        return None
    n = int_in(data, 0, 3, "value")
    return lambda x: x.add_(n)


def write_self(data, t):
    return None if t.dtype == torch.bool else (lambda x: x.add_(x))


def write_masked(data, t):
    return lambda x: x.masked_fill_(x == 1, 2)


RAW_WRITES = (write_fill, write_copy, write_copy_transposed, write_item)
WRITES = (*RAW_WRITES, write_add, write_self, write_masked)


def written_twice(t):
    """Elements share memory in a way that PyTorch does not refuse: which write stays is not defined."""
    places = torch.arange(t.untyped_storage().nbytes()).as_strided(t.size(), t.stride(), t.storage_offset())
    expanded = any(s == 0 and n > 1 for s, n in zip(t.stride(), t.size(), strict=True))
    return not expanded and places.unique().numel() != t.numel()


def attempt(f, x):
    try:
        return f(x), None
    except Exception as e:
        return None, e


def same(pair, what):
    cpu, tpu = pair.cpu, pair.tpu
    assert tpu.dtype == cpu.dtype and tpu.size() == cpu.size(), what
    if cpu.numel():
        strides = [(a, b) for a, b, n in zip(tpu.stride(), cpu.stride(), cpu.size(), strict=True) if n > 1]
        assert all(a == b for a, b in strides), f"{what}: strides {tpu.stride()}, the CPU has {cpu.stride()}"
        assert tpu.storage_offset() == cpu.storage_offset(), what
    torch.testing.assert_close(tpu.cpu(), cpu, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{what}: {m}")


def run(data) -> None:
    raw = data.draw(st.booleans(), label="raw")
    dtype = data.draw(st.sampled_from(RAW if raw else DTYPES), label="dtype")
    sizes = data.draw(st.lists(st.integers(1, 4), max_size=3), label="sizes")
    base = torch.arange(torch.Size(sizes).numel()).reshape(sizes).to(dtype)
    pool = [Pair(base, base.clone().to("tpu"))]
    views = (*VIEWS, step_reinterpret, step_reinterpret) if raw else VIEWS
    writes = RAW_WRITES if raw else WRITES
    for _ in range(int_in(data, 1, 8, "steps")):
        pair = pool[int_in(data, 0, len(pool) - 1, "which")]
        writing = data.draw(st.booleans(), label="write")
        if writing and written_twice(pair.cpu):
            continue
        make = data.draw(st.sampled_from(writes if writing else views))
        f = make(data, pair.cpu)
        if f is None:
            continue
        what = f"{make.__name__} of {tuple(pair.cpu.size())} {pair.cpu.stride()} +{pair.cpu.storage_offset()} {pair.cpu.dtype}"
        got, error = attempt(f, pair.tpu)
        want, cpu_error = attempt(f, pair.cpu)
        assert type(error) is type(cpu_error), f"{what}: {error!r}, the CPU {cpu_error!r}"
        if error is not None:
            continue
        if not writing and want.numel() <= 256:
            shares = [a.untyped_storage()._cdata == b.untyped_storage()._cdata for a, b in ((got, pair.tpu), (want, pair.cpu))]
            assert shares[0] == shares[1], f"{what}: shares memory {shares[0]}, the CPU {shares[1]}"
            pool.append(Pair(want, got))
            same(pool[-1], what)
        elif writing:
            for k, p in enumerate(pool):
                same(p, f"{what}, tensor {k} afterwards")


@given(data=st.data())
@settings(
    max_examples=int(os.environ.get("TORCH_TPU_VIEW_PROGRAMS", "3000" if SWEEP else "80")),
    deadline=None,
    derandomize=not SWEEP,
    database=None,
    phases=[Phase.generate, Phase.shrink] if SWEEP else [Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_programs_of_views(data):
    CLOCK.setdefault("start", time.monotonic())
    if SWEEP or time.monotonic() - CLOCK["start"] < 60:  # a busy machine runs fewer
        run(data)


CLOCK: dict[str, float] = {}
