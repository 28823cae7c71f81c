# size-waiver: one list of everything a program may do, read as a whole
"""Random programs of views, writes through them and reads, run step by step on the CPU and on the device.

After each step the two sides agree on error, dtype, size, strides, offset, version, aliasing, and on the contents of every storage.
A program is drawn by a `Draw`: from a seed here, from Hypothesis in test_views.py.

    python tests/python/view_programs.py 20000         # programs (seeds 0..19999); prints counts and each difference
    python tests/python/view_programs.py 500 --from 20000
    python tests/python/view_programs.py 20000 --fuse  # in DeferAndFuse, each three times: op by op, then compiled, then fused

With --fuse contents are compared at a program's end and where it reads, so that its calls are one trace.
"""

import argparse
import collections
import copy
import io
import random
import sys
import time
import warnings

import torch
import torch_tpu  # noqa: F401

ARITHMETIC = (torch.float32, torch.int64, torch.complex64, torch.uint8, torch.bool, torch.bfloat16, torch.float64)
SUMS = (torch.float32, torch.int64, torch.complex64, torch.float64)  # small whole numbers: sums are exact in any order
RAW = (torch.float32, torch.int32, torch.uint8, torch.int16, torch.float64, torch.complex64)  # read one another's bytes
SIZES = ((), (1,), (4,), (8,), (2, 3), (4, 4), (3, 2, 2), (2, 3, 2, 2), (0,), (2, 0, 3))
LIMIT = 2000  # programs end before numbers grow inexact
GROUP = 50  # programs run together


class Draw:
    """Choices from a seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def int(self, low, high):
        return self.random.randint(low, max(low, high))

    def pick(self, items):
        return items[self.random.randrange(len(items))]

    def order(self, n):
        return self.random.sample(range(n), n)

    def flag(self):
        return self.random.random() < 0.5


class Program:
    """The tensors of both sides; index k is the same tensor on each."""

    def __init__(self, draw, raw, grad=False, late=False):
        self.draw, self.raw, self.grad, self.late = draw, raw, grad, late
        self.dtype = draw.pick(RAW if raw else (torch.float32, torch.complex64) if grad else ARITHMETIC)
        size = draw.pick(SIZES)
        base = values(size, self.dtype, 0)
        if len(size) == 4 and draw.flag():
            base = base.contiguous(memory_format=torch.channels_last)
        self.cpu, self.tpu = [base], [base.to("tpu")]
        if grad:
            self.leaves = (base.requires_grad_(), self.tpu[0].requires_grad_())
            self.cpu, self.tpu = [base * 1], [self.tpu[0] * 1]
        self.log = [f"{self.dtype} {size} {base.stride()}"]

    def other(self, k, same_size):
        """A tensor of the pool, often another one: as k where its size or dtype must be."""
        t = self.cpu[k]
        fit = [i for i, x in enumerate(self.cpu) if x.dtype == t.dtype and (not same_size or x.size() == t.size())]
        return self.draw.pick(fit)


def values(size, dtype, seed):
    """Small whole numbers."""
    n = torch.Size(size).numel()
    x = (torch.arange(n) * (2 * seed + 1) + seed) % 5
    if dtype.is_complex:
        return torch.complex(x.float(), (x + seed) % 3 - 1.0).to(dtype).reshape(size).clone()
    return x.to(dtype).reshape(size).clone()


def like(t, seed):
    return values(t.size(), t.dtype, seed)


def axis(p, t):
    return p.draw.int(0, t.dim() - 1)


def index(p, t, a, n=None):
    """Positions along axis a, all different."""
    n = p.draw.int(1, t.size(a)) if n is None else n
    return torch.tensor(p.draw.order(t.size(a))[:n])


# ------------------------------------------------------------------------------------------------------------- views
# A step draws its arguments from the CPU's tensor k and gives a function of one side's tensors, or None where it cannot be done.


def view_slice(p, k):
    t = p.cpu[k]
    if t.dim() == 0:
        return None
    a = axis(p, t)
    start, length, step = p.draw.int(0, t.size(a)), p.draw.int(0, t.size(a)), p.draw.int(1, 3)
    return lambda ts: ts[k][(slice(None),) * a + (slice(start, start + length, step),)]


def view_select(p, k):
    t = p.cpu[k]
    if t.dim() == 0 or 0 in t.size():
        return None
    a = axis(p, t)
    at = p.draw.int(-t.size(a), t.size(a))  # one too many is an error
    return lambda ts: ts[k].select(a, at)


def view_permute(p, k):
    order = p.draw.order(p.cpu[k].dim())
    return lambda ts: ts[k].permute(order)


def view_transpose(p, k):
    t = p.cpu[k]
    if t.dim() < 2:
        return lambda ts: ts[k].t()
    a, b = axis(p, t), axis(p, t)
    return p.draw.pick([lambda ts: ts[k].transpose(a, b), lambda ts: ts[k].mT, lambda ts: ts[k].mH, lambda ts: ts[k].movedim(a, b)])


def view_unsqueeze(p, k):
    a = p.draw.int(0, p.cpu[k].dim())
    return (lambda ts: ts[k].unsqueeze(a)) if p.cpu[k].dim() < 5 else None


def view_squeeze(p, k):
    return lambda ts: ts[k].squeeze()


def view_expand(p, k):
    t = p.cpu[k]
    if t.dim() > 4:
        return None
    n = p.draw.int(1, 2)
    sizes = [3 if s == 1 and p.draw.flag() else s for s in t.size()]
    return lambda ts: ts[k].expand(n, *sizes)


def view_flat(p, k):
    return p.draw.pick([lambda ts: ts[k].view(-1), lambda ts: ts[k].reshape(-1), lambda ts: ts[k].flatten()])


def view_unflatten(p, k):
    t = p.cpu[k]
    if t.dim() == 0 or t.dim() > 4:
        return None
    a = axis(p, t)
    d = p.draw.pick([d for d in (1, 2, 3, 4) if t.size(a) % d == 0])
    return lambda ts: ts[k].unflatten(a, (d, ts[k].size(a) // d))


def view_diagonal(p, k):
    t = p.cpu[k]
    if t.dim() < 2:
        return None
    offset = p.draw.int(-1, 1)
    return lambda ts: ts[k].diagonal(offset, 0, t.dim() - 1)


def view_unfold(p, k):
    t = p.cpu[k]
    if t.dim() > 4:
        return None
    a = axis(p, t) if t.dim() else 0
    size, step = p.draw.int(0, t.size(a) if t.dim() else 1), p.draw.int(1, 2)
    return lambda ts: ts[k].unfold(a, size, step)


def as_strided_arguments(p, t, nelem):
    offset = p.draw.int(0, nelem - 1)
    sizes, strides, room = [], [], nelem - 1 - offset
    for _ in range(p.draw.int(0, 3)):
        n, stride = p.draw.int(1, 3), p.draw.int(0, 4)
        if (n - 1) * stride > room:
            n = 1
        room -= (n - 1) * stride
        sizes.append(n)
        strides.append(stride)
    return sizes, strides, offset


def view_as_strided(p, k):
    t = p.cpu[k]
    whole = t.untyped_storage().nbytes() // t.element_size()
    if whole == 0:
        return None
    sizes, strides, offset = as_strided_arguments(p, t, whole)
    return lambda ts: ts[k].as_strided(sizes, strides, offset)


def view_parts(p, k):
    """One of the tensors that split, chunk, unbind or tensor_split give."""
    t = p.cpu[k]
    if t.dim() == 0 or 0 in t.size():
        return None
    a, n, at = axis(p, t), p.draw.int(1, 3), p.draw.int(0, 2)
    cut = p.draw.pick(
        [
            lambda x: x.split(n, a),
            lambda x: x.chunk(n, a),
            lambda x: x.unbind(a),
            lambda x: x.tensor_split(n, a),
            lambda x: x.split([1, x.size(a) - 1], a),
        ]
    )
    return lambda ts: cut(ts[k])[at % len(cut(ts[k]))]


def view_complex(p, k):
    t = p.cpu[k]
    ways = [lambda ts: ts[k].conj(), lambda ts: ts[k].resolve_conj(), lambda ts: ts[k].resolve_neg(), lambda ts: ts[k].real]
    if t.is_complex():
        ways += [lambda ts: torch.view_as_real(ts[k]), lambda ts: ts[k].imag, lambda ts: ts[k].conj(), lambda ts: ts[k].imag]
    elif t.dtype in (torch.float32, torch.float64):
        ways += [lambda ts: torch.view_as_complex(ts[k])] if t.dtype == torch.float32 else []
        ways += [lambda ts: torch._neg_view(ts[k])]
    return p.draw.pick(ways)


def view_dtype(p, k):
    dtype = p.draw.pick(RAW)
    return (lambda ts: ts[k].view(dtype)) if p.raw and p.cpu[k].dtype in RAW else None


def view_fresh(p, k):
    """Not views: fresh tensors, so that programs have several storages."""
    t = p.cpu[k]
    ways = [
        lambda ts: ts[k].clone(),
        lambda ts: ts[k].contiguous(),
        lambda ts: torch.empty_like(ts[k]).fill_(1),
        lambda ts: torch.zeros_like(ts[k]),
        lambda ts: ts[k].flip(0) if t.dim() else ts[k].clone(),
    ]
    if t.dim() == 4:
        ways.append(lambda ts: ts[k].contiguous(memory_format=torch.channels_last))
    if not p.raw and not p.grad:
        dtype = p.draw.pick(SUMS)
        ways.append(lambda ts: ts[k].real.to(dtype) if t.is_complex() else ts[k].to(dtype))
    return p.draw.pick(ways)


def view_scatter(p, k):
    """The functional forms of writes to a view."""
    t, seed = p.cpu[k], p.draw.int(0, 3)
    if t.dim() == 0 or 0 in t.size():
        return None
    a, at, n = axis(p, t), p.draw.int(0, 1), p.draw.int(0, 2)
    ways = [
        lambda x: torch.select_scatter(x, like(x.select(a, at % x.size(a)), seed).to(x.device), a, at % x.size(a)),
        lambda x: torch.slice_scatter(x, like(x[(slice(None),) * a + (slice(at, at + n),)], seed).to(x.device), a, at, at + n),
    ]
    if t.dim() > 1:
        ways.append(lambda x: torch.diagonal_scatter(x, like(x.diagonal(at), seed).to(x.device), at))
    way = p.draw.pick(ways)
    return lambda ts: way(ts[k])


def view_set(p, k):
    """A new tensor put on k's storage."""
    t = p.cpu[k]
    whole = t.untyped_storage().nbytes() // t.element_size()
    if whole == 0 or p.grad or t.is_conj() or t.is_neg():
        return None
    sizes, strides, offset = as_strided_arguments(p, t, whole)
    new = lambda ts: torch.empty(0, dtype=t.dtype, device=ts[k].device)  # noqa: E731
    return p.draw.pick(
        [
            lambda ts: new(ts).set_(ts[k]),
            lambda ts: new(ts).set_(ts[k].untyped_storage()),
            lambda ts: new(ts).set_(ts[k].untyped_storage(), offset, sizes, strides),
            grown(p, k, lambda ts: new(ts).set_(ts[k], offset, sizes, strides)),  # from k's own offset on
            lambda ts: ts[k].data,
            lambda ts: ts[k].detach(),
        ]
    )


VIEWS = (
    view_slice,
    view_select,
    view_permute,
    view_transpose,
    view_unsqueeze,
    view_squeeze,
    view_expand,
    view_flat,
    view_unflatten,
    view_diagonal,
    view_unfold,
    view_as_strided,
    view_parts,
    view_complex,
    view_fresh,
    view_scatter,
    view_set,
)

# ------------------------------------------------------------------------------------------------------------ writes


def write_fill(p, k):
    n = p.draw.int(0, 3)
    return p.draw.pick([lambda ts: ts[k].fill_(n), lambda ts: ts[k].zero_(), lambda ts: ts[k].fill_(n)])


def write_copy(p, k):
    """From the host, from the device, permuted, broadcast, or of another dtype."""
    t, seed = p.cpu[k], p.draw.int(0, 3)
    back = tuple(range(t.dim()))[::-1]
    turned = values(tuple(t.size())[::-1], t.dtype, seed)
    row = values(t.size()[-1:], t.dtype, seed)
    ways = [
        lambda ts: ts[k].copy_(like(t, seed)),
        lambda ts: ts[k].copy_(like(t, seed).to(ts[k].device)),
        lambda ts: ts[k].copy_(turned.to(ts[k].device).permute(back)),
        lambda ts: ts[k].copy_(row.to(ts[k].device)),
    ]
    if not p.raw:
        ways.append(lambda ts: ts[k].copy_(values(t.size(), torch.int64, seed).to(ts[k].device)))
    return p.draw.pick(ways)


def write_copy_other(p, k):
    j = p.other(k, p.draw.flag())
    return lambda ts: ts[k].copy_(ts[j])


def write_item(p, k):
    t = p.cpu[k]
    if t.numel() == 0:
        return None
    at = tuple(p.draw.int(0, n - 1) for n in t.size()[: p.draw.int(0, t.dim())])
    j = p.other(k, False)
    if p.cpu[j].dim() == 0:  # PyTorch reads the number of such a tensor on the CPU first, and only there
        return lambda ts: ts[k].__setitem__(at, ts[j].clone())
    return p.draw.pick([lambda ts: ts[k].__setitem__(at, 3), lambda ts: ts[k].__setitem__(at, ts[j])])


def write_slice(p, k):
    t = p.cpu[k]
    if t.dim() == 0:
        return None
    a, start, step = axis(p, t), p.draw.int(0, 2), p.draw.int(1, 2)
    at = (slice(None),) * a + (slice(start, None, step),)
    return p.draw.pick([lambda ts: ts[k].__setitem__(at, 2), lambda ts: ts[k].__setitem__(at, like(t[at], 1).to(ts[k].device))])


def write_index(p, k):
    """index_fill_, index_copy_, index_add_, index_put_, scatter_ and their kin, at places that differ."""
    t, seed = p.cpu[k], p.draw.int(0, 3)
    if t.dim() == 0 or 0 in t.size():
        return None
    a = axis(p, t)
    i = index(p, t, a)
    lead = (slice(None),) * a
    source = values((*t.size()[:a], len(i), *t.size()[a + 1 :]), t.dtype, seed)
    wide = i.reshape((-1,) + (1,) * (t.dim() - a - 1)).expand(source.size())
    put = (index(p, t, 0),)
    put_values = values((len(put[0]), *t.size()[1:]), t.dtype, seed)
    add = p.draw.flag() and t.dtype in SUMS and not p.raw

    def on(x, *ts):
        return (y.to(x.device) for y in ts)

    ways = [
        lambda x: x.index_fill_(a, i.to(x.device), 2),
        lambda x: x.index_copy_(a, *on(x, i, source)),
        lambda x: x.scatter_(a, *on(x, wide, source)),
        lambda x: x.scatter_(a, wide.to(x.device), 1),
        lambda x: x.index_put_(tuple(on(x, *put)), put_values.to(x.device), accumulate=add),
        lambda x: x.__setitem__(put[0].to(x.device), 3),
        lambda x: x.__setitem__((*lead, i.to(x.device)), source.to(x.device)),
    ]
    if t.dtype in SUMS and not p.raw:
        ways += [
            lambda x: x.index_add_(a, *on(x, i, source)),
            lambda x: x.scatter_add_(a, *on(x, wide, source)),
            lambda x: x.put_(*on(x, torch.tensor([0]), values((1,), t.dtype, seed))),
        ]
    way = p.draw.pick(ways)
    return lambda ts: way(ts[k])


def write_masked(p, k):
    t = p.cpu[k]
    if p.raw:
        return None
    return p.draw.pick(
        [
            lambda ts: ts[k].masked_fill_(ts[k] == 1, 2),
            lambda ts: ts[k].__setitem__(ts[k] == 1, 0),
            lambda ts: ts[k].masked_scatter_(ts[k] == 1, like(t, 2).to(ts[k].device)),
            lambda ts: torch.where(ts[k] == 1, ts[k], torch.ones_like(ts[k]), out=ts[k]),
        ]
    )


def write_number(p, k):
    n = p.draw.int(0, 3)
    if p.raw or p.cpu[k].dtype == torch.bool:
        return None
    ways = [lambda ts: ts[k].add_(n), lambda ts: ts[k].mul_(n), lambda ts: ts[k].sub_(n)]
    if not p.grad and not p.cpu[k].is_complex():
        ways += [lambda ts: ts[k].clamp_(0, 3), lambda ts: ts[k].remainder_(3), lambda ts: ts[k].eq_(n), lambda ts: ts[k].abs_()]
    return p.draw.pick([*ways, lambda ts: ts[k].neg_(), lambda ts: ts[k].square_(), lambda ts: ts[k].conj_physical_()])


def write_other(p, k):
    j, i = p.other(k, p.draw.flag()), p.other(k, True)
    if p.raw or p.cpu[k].dtype == torch.bool:
        return None
    return p.draw.pick(
        [
            lambda ts: ts[k].add_(ts[j]),
            lambda ts: ts[k].mul_(ts[j]),
            lambda ts: ts[k].sub_(ts[j], alpha=2),
            lambda ts: ts[k].addcmul_(ts[j], ts[i]),
            lambda ts: ts[k].add_(ts[k]),
        ]
    )


def write_out(p, k):
    """out= into a view: of this size or another, of this dtype or another."""
    j, seed = p.other(k, p.draw.flag()), p.draw.int(0, 3)
    t = p.cpu[k]
    if p.raw or p.grad:
        return None
    dtype = p.draw.pick((t.dtype, t.dtype, torch.float64, torch.int64))
    if t.dtype not in SUMS:
        dtype = t.dtype
    source = values(t.size(), dtype, seed)
    ways = [
        lambda ts: torch.mul(ts[j], ts[j], out=ts[k]),
        lambda ts: torch.eq(ts[j], ts[j], out=ts[k]),
        lambda ts: torch.cat([ts[j], ts[j]], out=ts[k]),
    ]
    if dtype != torch.bool:
        ways += [
            lambda ts: torch.add(source.to(ts[k].device), 1, out=ts[k]),
            lambda ts: torch.sub(ts[j], 1, out=ts[k]),
            lambda ts: torch.clamp(source.to(ts[k].device), 0, 2, out=ts[k]),
        ]
    if t.dtype in SUMS:
        ways += [
            lambda ts: torch.cumsum(ts[j], 0, out=ts[k]),
            lambda ts: torch.sum(source.to(ts[k].device)[None], 0, out=ts[k]),
            lambda ts: torch.index_select(ts[j], 0, torch.zeros(1, dtype=torch.int64, device=ts[k].device), out=ts[k]),
        ]
    return grown(p, k, p.draw.pick(ways))


def write_matmul(p, k):
    t, seed = p.cpu[k], p.draw.int(0, 2)
    if p.raw or p.grad or t.dtype not in SUMS or not 1 <= t.dim() <= 3 or 0 in t.size():
        return None
    *lead, n = t.size()
    a, b = values((*lead, 3), t.dtype, seed), values((*lead[:-1], 3, n), t.dtype, seed + 1)
    if t.dim() == 1:
        a, b = values((n, 3), t.dtype, seed), values((3,), t.dtype, seed)
        ways = [lambda x, a, b: torch.mv(a, b, out=x), lambda x, a, b: x.addmv_(a, b), lambda x, a, b: torch.matmul(a, b, out=x)]
    elif t.dim() == 2:
        ways = [
            lambda x, a, b: torch.mm(a, b, out=x),
            lambda x, a, b: x.addmm_(a, b),
            lambda x, a, b: torch.addmm(torch.ones_like(x), a, b, out=x),
            lambda x, a, b: torch.matmul(a, b, out=x),
            lambda x, a, b: torch.mm(b.t().conj(), a.t(), out=x.t()),
        ]
    else:
        ways = [
            lambda x, a, b: torch.bmm(a, b, out=x),
            lambda x, a, b: x.baddbmm_(a, b),
            lambda x, a, b: torch.matmul(a, b, out=x),
        ]
    way = p.draw.pick(ways)
    return lambda ts: way(ts[k], a.to(ts[k].device), b.to(ts[k].device))


def write_cumulative(p, k):
    t = p.cpu[k]
    if p.raw or p.grad or t.dtype not in SUMS or t.dim() == 0:
        return None
    a = axis(p, t)
    ways = [lambda ts: ts[k].cumsum_(a), lambda ts: torch.cumsum(ts[k], a, out=ts[k])]
    if t.dim() >= 2:
        ways += [lambda ts: ts[k].tril_(), lambda ts: ts[k].triu_(1), lambda ts: ts[k].fill_diagonal_(2)]
    return p.draw.pick(ways)


def write_foreach(p, k):
    j, i = p.other(k, p.draw.flag()), p.other(k, False)
    if p.cpu[k].dtype == torch.bool or p.grad:
        return None
    ways = [
        lambda ts: torch._foreach_copy_([ts[k], ts[i]], [ts[j], ts[i]]),
        lambda ts: torch._foreach_zero_([ts[k], ts[i]]),
    ]
    if not p.raw:
        ways += [
            lambda ts: torch._foreach_add_([ts[k], ts[i], ts[k]], 1),
            lambda ts: torch._foreach_mul_([ts[k], ts[i]], [2, 1]),
            lambda ts: torch._foreach_add_([ts[k], ts[i]], [ts[j], ts[i]]),
        ]
    return p.draw.pick(ways)


WRITES = (
    write_fill,
    write_copy,
    write_copy_other,
    write_item,
    write_slice,
    write_index,
    write_masked,
    write_number,
    write_other,
    write_out,
    write_matmul,
    write_cumulative,
    write_foreach,
)

# ------------------------------------------------------------------------------- changes of what a tensor stands for


def grown(p, k, f):
    """f, which may give tensor k's storage new bytes, whose contents are not defined: zero them."""

    def run(ts):
        storage = ts[k].untyped_storage()
        old = storage.nbytes()
        try:
            return f(ts)
        finally:
            if storage.nbytes() > old:
                rest = torch.empty(0, dtype=torch.uint8, device=ts[k].device)
                rest.set_(storage, old, (storage.nbytes() - old,)).zero_()

    return run


def change_data(p, k):
    j = p.other(k, False)
    size = p.draw.pick(SIZES)
    t = p.cpu[k]
    if p.grad:
        return None

    def data(x, new):
        x.data = new

    return p.draw.pick([lambda ts: data(ts[k], ts[j]), lambda ts: data(ts[k], values(size, t.dtype, 1).to(ts[k].device))])


def change_set(p, k):
    j = p.other(k, False)
    t = p.cpu[j]
    whole = t.untyped_storage().nbytes() // t.element_size()
    if p.grad or whole == 0 or t.is_conj() or t.is_neg() or p.cpu[k].is_conj() or p.cpu[k].is_neg():
        return None
    sizes, strides, offset = as_strided_arguments(p, t, whole)
    return p.draw.pick(
        [
            lambda ts: ts[k].set_(ts[j]),
            lambda ts: ts[k].set_(ts[j].untyped_storage()),
            lambda ts: ts[k].set_(ts[j].untyped_storage(), offset, sizes, strides),
            grown(p, j, lambda ts: ts[k].set_(ts[j], offset, sizes, strides)),
            grown(p, j, lambda ts: ts[k].set_(ts[j].untyped_storage(), offset, sizes)),
            lambda ts: ts[k].set_(),
        ]
    )


def change_resize(p, k):
    size, j = p.draw.pick(SIZES), p.other(k, False)
    nbyte = p.draw.pick((0, 8, 16, 40, 64, 128))

    def storage(ts):
        ts[k].untyped_storage().resize_(nbyte)

    def away_and_back(ts):  # as FSDP frees and refills a flat parameter
        n, kept = ts[k].untyped_storage().nbytes(), ts[k].clone()
        ts[k].untyped_storage().resize_(0)
        ts[k].untyped_storage().resize_(n)
        whole = torch.empty(0, dtype=torch.uint8, device=ts[k].device).set_(ts[k].untyped_storage(), 0, (n,))
        whole.zero_()
        ts[k].copy_(kept)

    if p.grad:
        return None
    return grown(
        p, k, p.draw.pick([lambda ts: ts[k].resize_(size), lambda ts: ts[k].resize_as_(ts[j]), storage, storage, away_and_back])
    )


def change_shape(p, k):
    """In-place views."""
    t = p.cpu[k]
    a = p.draw.int(0, t.dim())
    ways = [lambda ts: ts[k].unsqueeze_(a), lambda ts: ts[k].squeeze_()]
    if t.dim() > 1:
        ways += [lambda ts: ts[k].transpose_(0, 1), lambda ts: ts[k].swapaxes_(0, -1)]
    if t.dim() == 2:
        ways += [lambda ts: ts[k].t_()]
    return p.draw.pick(ways) if t.dim() < 5 else None


def change_swap(p, k):
    j = p.other(k, False)
    return (lambda ts: torch.utils.swap_tensors(ts[k], ts[j])) if j != k and not p.grad else None


def change_copies(p, k):
    """The pool's tensors give way to copies that share memory as they did."""

    def load(ts):
        f = io.BytesIO()
        torch.save(ts, f)
        f.seek(0)
        ts[:] = torch.load(f)

    def deep(ts):
        ts[:] = copy.deepcopy(ts)

    return None if p.grad else p.draw.pick([load, deep])


CHANGES = (change_data, change_set, change_resize, change_resize, change_shape, change_shape, change_swap, change_copies)

# --------------------------------------------------------------------------------------------------------- comparing


def attempt(f, ts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return f(ts), None
        except Exception as e:
            return None, e


def places(t):
    """Bytes of the storage that t can reach: (first, end)."""
    if t.numel() == 0:
        return 0, 0
    first = t.storage_offset()
    last = first + sum((n - 1) * s for n, s in zip(t.size(), t.stride(), strict=True))
    return first * t.element_size(), (last + 1) * t.element_size()


def whole(t):
    """The storage as one row."""
    width = t.element_size()
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(
        t.untyped_storage(), 0, (t.untyped_storage().nbytes() // width,), (1,)
    )


def facts(t):
    s = t.untyped_storage()
    near = t.data_ptr() - s.data_ptr() if t.numel() and s.nbytes() else 0
    return {
        "dtype": t.dtype,
        "size": tuple(t.size()),
        "stride": t.stride(),
        "offset": t.storage_offset(),
        "bytes": s.nbytes(),
        "conj": t.is_conj(),
        "neg": t.is_neg(),
        "version": t._version,
        "pointer": near,
        "leaf": attempt(lambda x: x.is_leaf, t)[0],  # an error where a view among several was written
    }


def check(p, what, contents=True):
    """Everything that can be seen without reading a view."""
    storages = ({}, {})
    for k, (a, b) in enumerate(zip(p.cpu, p.tpu, strict=True)):
        fa, fb = facts(a), facts(b)
        if fa != fb:
            differ = {n: (fb[n], fa[n]) for n in fa if fa[n] != fb[n]}
            raise AssertionError(f"{what}: tensor {k}: (tpu, cpu) {differ}")
        first = [seen.setdefault(t.untyped_storage()._cdata, k) for seen, t in zip(storages, (a, b), strict=True)]
        assert first[0] == first[1] or fa["bytes"] == 0, (
            f"{what}: tensor {k} shares memory with {first[1]}, the CPU's with {first[0]}"
        )
        if first[0] == k and contents:
            same_values(p, whole(a.data), whole(b.data), f"{what}: storage of tensor {k}")


def same_values(p, want, got, what):
    got = got.cpu()
    if p.raw:
        want, got = (torch.empty(t.numel(), dtype=t.dtype).copy_(t.reshape(-1)).view(torch.uint8) for t in (want, got))
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{what}: {m}")


def read(p, k):
    same_values(p, p.cpu[k].data, p.tpu[k].data, f"reading tensor {k} {facts(p.cpu[k])}")
    if not p.raw and p.draw.flag():
        same_values(p, p.cpu[k].data == 1, p.tpu[k].data == 1, f"reading tensor {k} in an op")
    if p.cpu[k].numel() < 40 and p.draw.flag() and not p.raw:
        assert p.cpu[k].data.tolist() == p.tpu[k].data.tolist()


def large(t):
    x = whole(t.data)
    x = torch.view_as_real(x) if x.is_complex() else x
    return bool(x.numel()) and not bool((x.double().abs() <= LIMIT).all())


def end(p):
    """Drop tensors whose storage shrank under them; true if the program cannot go on."""
    keep = [k for k, t in enumerate(p.cpu) if places(t)[1] <= t.untyped_storage().nbytes() and t.numel() <= 256]
    p.cpu, p.tpu = ([ts[k] for k in keep] for ts in (p.cpu, p.tpu))
    return not keep or (not p.raw and any(large(t) for t in p.cpu))


def backward(p):
    """Gradients through what is left of the pool."""
    k = p.draw.int(0, len(p.cpu) - 1)

    def run(ts):
        y = ts[k]
        y = torch.view_as_real(y.resolve_conj()) if y.is_complex() else y
        (y * values(y.size(), y.dtype, 1).to(y.device)).sum().backward()

    error, cpu_error = attempt(run, p.tpu)[1], attempt(run, p.cpu)[1]
    assert type(error) is type(cpu_error), f"backward of tensor {k}: {error!r}, the CPU {cpu_error!r}"
    cpu, tpu = (leaf.grad for leaf in p.leaves)
    assert (cpu is None) == (tpu is None)
    if cpu is not None:
        torch.testing.assert_close(tpu.cpu(), cpu, rtol=0, atol=0, msg=lambda m: f"gradient: {m}")


def run(draw, steps=10, late=False):
    """One program; raises AssertionError with its steps where the sides differ. Gives the names of the steps that were run.

    ``late``: contents are compared only where the program reads, and at its end."""
    raw = draw.int(0, 3) == 0
    p = Program(draw, raw, grad=not raw and draw.int(0, 5) == 0, late=late)
    names = []
    try:
        for _ in range(draw.int(1, steps)):
            name = step(p)
            names.append(name)
            if end(p):
                return names
        if p.grad:
            backward(p)
        if late:
            check(p, "the end")
    except AssertionError as e:
        raise AssertionError("\n  ".join(["", *p.log, str(e)])) from None
    return names


def odd_strides(want, got):
    """Fresh results of another layout where it makes no difference: of no elements, or along axes of size 1."""
    moving = [t.stride()[a] for t in (want, got) for a, n in enumerate(want.size()) if n > 1]
    same = want.numel() == 0 or moving[: len(moving) // 2] == moving[len(moving) // 2 :]
    return want.size() == got.size() and want.stride() != got.stride() and same and not want._is_view()


def step(p):
    kind = p.draw.pick(("view", "view", "view", "write", "write", "write", "write", "change", "read"))
    if kind == "read":
        read(p, p.draw.int(0, len(p.cpu) - 1))
        return "read"
    views = (*VIEWS, view_dtype, view_dtype, view_dtype) if p.raw else VIEWS
    makes = views if kind == "view" else WRITES if kind == "write" else CHANGES
    for _ in range(8):  # some cannot be done with some tensors
        k, make = p.draw.int(0, len(p.cpu) - 1), p.draw.pick(makes)
        f = make(p, k)
        if f is not None:
            break
    else:
        return "none"
    t = p.cpu[k]
    what = f"{make.__name__} of tensor {k} {tuple(t.size())} {t.stride()} +{t.storage_offset()} {t.dtype}"
    p.log.append(what)
    got, error = attempt(f, p.tpu)
    want, cpu_error = attempt(f, p.cpu)
    if "not resizable" in str(cpu_error):  # storages that torch.load made; here they are like any other
        p.cpu.clear()
        return make.__name__
    assert type(error) is type(cpu_error), f"{error!r}, the CPU {cpu_error!r}"
    unsupported = [str(e).startswith("unsupported operation") for e in (error, cpu_error)]
    assert unsupported[0] == unsupported[1], f"{error!r}, the CPU {cpu_error!r}"
    p.log[-1] += f" -> {type(error).__name__ if error else tuple(want.size()) if isinstance(want, torch.Tensor) else ''}"
    if kind == "view" and error is None and want.numel() <= 256 and len(p.cpu) < 8 and not odd_strides(want, got):
        p.cpu.append(want)
        p.tpu.append(got)
    check(p, what, contents=not p.late)
    return make.__name__ + (" (error)" if error else "")


def run_each(seeds):
    """These programs; gives {seed: exception} and how many steps of each kind were run."""
    bad, counts = {}, collections.Counter()
    for seed in seeds:
        try:
            counts.update(run(Draw(seed)))
        except Exception as e:
            bad[seed] = e
    return bad, counts


def run_fused(seeds):
    """These programs three times in DeferAndFuse; gives what run_each does."""
    bad, counts = {}, collections.Counter()
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.FUSE):
        for _ in range(3):
            for seed in seeds:
                torch.tpu.flush()  # its trace begins here whatever was before
                try:
                    counts.update(run(Draw(seed), late=True))
                except Exception as e:
                    bad.setdefault(seed, e)
            torch.tpu.compiler.wait()
    return bad, counts


def main():
    args = argparse.ArgumentParser()
    args.add_argument("programs", type=int)
    args.add_argument("--from", type=int, default=0, dest="first")
    args.add_argument("--show", type=int, default=20, help="differences to print")
    args.add_argument("--fuse", action="store_true")
    a = args.parse_args()
    t0, counts, bad = time.monotonic(), collections.Counter(), []
    for first in range(a.first, a.first + a.programs, GROUP):
        seeds = range(first, min(first + GROUP, a.first + a.programs))
        differ, steps = (run_fused if a.fuse else run_each)(seeds)
        counts.update(steps)
        for seed, e in differ.items():
            bad.append(seed)
            if len(bad) <= a.show:
                print(f"program {seed}: {type(e).__name__} {e}", flush=True)
        if (seeds.stop - a.first) % 1000 == 0:
            print(f"{seeds.stop - a.first} programs, {len(bad)} differ, {time.monotonic() - t0:.0f} s", flush=True)
    for name, n in sorted(counts.items()):
        print(f"{n:8d} {name}")
    print(f"{a.programs} programs, {sum(counts.values())} steps, {len(bad)} differ: {bad[:50]}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
