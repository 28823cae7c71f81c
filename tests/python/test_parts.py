"""Parts of tensors that begin at ever other places, x[i], or are of ever other lengths, cache[:, :n]: from the fourth on one
program serves them all (src/graph/lengths.h), with the CPU's values.
"""

import pytest
import torch
import torch.nn.functional as F
from partcase import lengths_case, places_case, programs

FUSE, STRICT, DEBUG = torch.tpu.EagerMode.FUSE, torch.tpu.EagerMode.STRICT, torch.tpu.EagerMode.DEBUG
MODES = pytest.mark.parametrize("mode", [STRICT, FUSE, DEBUG], ids=["strict", "fuse", "debug"])
FEW_MODES = pytest.mark.parametrize("mode", [STRICT, FUSE], ids=["strict", "fuse"])
OWN = 3  # places, or lengths, that have programs of their own


@pytest.fixture(autouse=True)
def no_program_of_an_earlier_test():
    torch.tpu.compiler.wait()


def setting(dtype=torch.float32):
    return [torch.arange(n, dtype=dtype).reshape(s) / 7 for n, s in ((40 * 5, (40, 5)), (40 * 5, (40, 5)), (5, (5,)))]


def write_window(x, y, z, i):
    y[i : i + 2, 1:4] = x[i : i + 2, 1:4] * z[1:4]


def write_place(x, y, z, i):
    y[i, i % 5] = x[i, (i + 2) % 5]


def write_column(x, y, z, i):
    x.view(5, 40)[:, i] += z


def last_of(x, y, z, i):
    return x[: i + 2][-1] + z


LOOPS = {
    "a row": lambda x, y, z, i: x[i] * 2 + z,
    "rows": lambda x, y, z, i: x[i : i + 3] @ z,
    "two tensors": lambda x, y, z, i: x[i] + y[39 - i],
    "reduced": lambda x, y, z, i: x[i].sum() + y[i].amax(),
    "exchanged": lambda x, y, z, i: x[i : i + 2].t() @ y[i : i + 2],
    "a row written": lambda x, y, z, i: y[i].copy_(x[i] * z),
    "in place": lambda x, y, z, i: y[i].mul_(2).add_(z),
    "filled": lambda x, y, z, i: y[i].zero_(),
    "out": lambda x, y, z, i: torch.add(x[i], z, out=y[i]),
    "a window written": write_window,
    "one written": write_place,
    "a column written": write_column,
    "the last": last_of,
}


@MODES
@pytest.mark.parametrize("name", LOOPS)
def test_places_are_numbers(name, mode):
    want = setting()
    on = [t.to("tpu") for t in want]
    made = []
    with torch.tpu.set_eager_mode(mode):
        for i in range(36):
            before = programs()
            got, expected = LOOPS[name](*on, i), LOOPS[name](*want, i)
            torch.tpu.synchronize()
            made.append(programs() - before)
            if got is not None:
                torch.testing.assert_close(got.cpu(), expected)
        torch.tpu.compiler.wait()
    for a, b in zip(on, want, strict=True):
        torch.testing.assert_close(a.cpu(), b)
    if mode is STRICT:  # another mode finds its programs
        assert sum(made[OWN + 7 :]) == 0, made


def test_few_places_have_programs_of_their_own():
    """What is split in three is read at fixed places."""
    x = torch.arange(36.0).reshape(3, 12).to("tpu")
    for _ in range(4):
        before = programs()
        for part in x.chunk(3, 1):
            torch.testing.assert_close((part * 5).cpu(), part.cpu() * 5)
    assert programs() == before


def plain(q, k, v):
    return torch.softmax(q @ k.transpose(2, 3) / 4, -1) @ v


def grouped(q, k, v):
    b, h, n, d = k.shape
    k, v = (t[:, :, None].expand(b, h, 2, n, d).reshape(b, 2 * h, n, d) for t in (k, v))
    return plain(torch.cat([q, q], 1), k, v)[:, :h]


ATTENTION = {"plain": plain, "sdpa": F.scaled_dot_product_attention, "grouped": grouped}
STEPS, ROOM = 40, 100


def decode(device, attention):
    """A cache that is written at a place and read up to it, as models do by hand."""
    b, h, d = 2, 4, 8
    g = torch.Generator().manual_seed(0)
    w = [(torch.randn(h * d, h * d, generator=g) / 8).to(device) for _ in range(4)]
    x = torch.ones(b, 1, h * d, device=device)
    keys, values = (torch.full((b + 1, ROOM, h, d), float("nan"), device=device) for _ in range(2))
    out, made = [], []
    for n in range(STEPS):
        before = programs()
        q, k, v = ((x @ a).view(b, 1, h, d) for a in w[:3])
        keys[:b, n : n + 1], values[:b, n : n + 1] = k, v
        o = ATTENTION[attention](*(t.transpose(1, 2) for t in (q, keys[:b, : n + 1], values[:b, : n + 1])))
        x = torch.tanh(o.transpose(1, 2).reshape(b, 1, h * d) @ w[3] + x)
        out.append(x.sum().item())
        made.append(programs() - before)
    return torch.tensor(out), made


@MODES
@pytest.mark.parametrize("attention", ATTENTION)
def test_a_cache_that_is_read_up_to_a_place(attention, mode):
    with torch.tpu.set_eager_mode(mode):
        got, made = decode("tpu", attention)
        torch.tpu.compiler.wait()
    torch.testing.assert_close(got, decode("cpu", attention)[0])
    at_bounds = {15, 31}  # the length then is 16, 32, and the next bound is needed
    if mode is STRICT:
        assert sum(m for n, m in enumerate(made) if n > OWN + 2 and n not in at_bounds) == 0, made


RANDOM = {"places": (places_case, 40, 5), "lengths": (lengths_case, 12, 2)}  # of so many seeds, so many in a test


@FEW_MODES
@pytest.mark.parametrize(("what", "seed"), [(what, s) for what, (_, end, step) in RANDOM.items() for s in range(0, end, step)])
def test_random(what, seed, mode):
    case, _, step = RANDOM[what]
    with torch.tpu.set_eager_mode(mode):
        assert not any(whys := [case(s) for s in range(seed, seed + step)]), whys
    torch.tpu.compiler.wait()


def test_places_past_the_end_are_errors_at_their_line():
    x = torch.zeros(8, 4, device="tpu")
    for i in range(6):
        x[i] += 1
    with pytest.raises(IndexError):
        x[8]
    assert x.sum().item() == 24


def test_a_gradient_through_places():
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))

    def run(x):
        h = torch.zeros(6, device=x.device)
        for i in range(12):
            h = torch.tanh(h + x[i] * x[11 - i])
        return torch.autograd.grad(h.sum(), x)[0]

    want = run(x.requires_grad_())
    torch.testing.assert_close(run(x.detach().to("tpu").requires_grad_()).cpu(), want)
