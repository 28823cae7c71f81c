"""Aliasing: what views, shared storages, overlapping writes and out= do on the CPU, they do on the device.

Each case is a function of a device that returns what can be seen; both devices must return the same. Random programs of the same
kind: view_programs.py.
"""

import copy
import io
import pickle
import warnings

import pytest
import torch

F32, F64, I32, I64, C64 = torch.float32, torch.float64, torch.int32, torch.int64, torch.complex64


def new(d, *size, dtype=F32):
    """0, 1, 2 ... in this shape, a tensor of its own."""
    return torch.arange(torch.Size(size).numel()).to(dtype).reshape(size).clone().to(d, copy=True)


def at(d, *i):
    return torch.tensor(i, device=d)


def see(*ts):
    """Facts and contents of tensors; other values as they are."""
    return [
        (tuple(t.size()), t.stride(), t.storage_offset(), t.dtype, t.is_conj(), t.is_neg(), t._version, t.tolist())
        if isinstance(t, torch.Tensor)
        else t
        for t in ts
    ]


def refusal(f):
    """The error's type and the beginning of PyTorch's words for overlaps, or the result's facts; and what is warned of."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            r = f()
            r = (tuple(r.size()), r.stride(), r.dtype) if isinstance(r, torch.Tensor) else None
        except Exception as e:
            r = (type(e), str(e)[:60] if str(e).startswith("unsupported operation") else "")
    return r, [] if isinstance(r, tuple) and isinstance(r[0], type) else sorted({str(w.message)[:30] for w in seen})


def same_on_both(case):
    cpu, tpu = case("cpu"), case("tpu")
    assert tpu == cpu


# ------------------------------------------------------------------------------------- writes that overlap what they read

PARTIAL = {
    "add_": lambda x, d: x[1:].add_(x[:-1]),
    "copy_ forwards": lambda x, d: x[1:].copy_(x[:-1]),
    "copy_ backwards": lambda x, d: x[:-1].copy_(x[1:]),
    "copy_ of the transpose": lambda x, d: x[:4].view(2, 2).copy_(x[:4].view(2, 2).t()),
    "add_ of the transpose": lambda x, d: x[:4].view(2, 2).add_(x[:4].view(2, 2).t()),
    "add_ of another shape": lambda x, d: x.view(2, 4).add_(x.view(4, 2).t()),
    "add_ of an element of it": lambda x, d: x.add_(x[:1]),
    "mul_ by an element of it": lambda x, d: x.mul_(x[3]),
    "fill_ by an element of it": lambda x, d: x.fill_(x[3]),
    "clamp_ by elements of it": lambda x, d: x.clamp_(x[3], x[5]),
    "masked_fill_ by an element of it": lambda x, d: x.masked_fill_(x > 3, x[0]),
    "addcmul_": lambda x, d: x[1:].addcmul_(x[:-1], x[:-1]),
    "lerp_": lambda x, d: x[1:].lerp_(x[:-1], 0.5),
    "pow_": lambda x, d: x[1:].pow_(x[:-1]),
    "add out=": lambda x, d: torch.add(x[:-1], 1, out=x[1:]),
    "exp out=": lambda x, d: torch.exp(x[:-1], out=x[1:]),
    "where out=": lambda x, d: torch.where(x[:-1] > 1, x[:-1], x[:-1], out=x[1:]),
    "cumsum out=": lambda x, d: torch.cumsum(x[:-1], 0, out=x[1:]),
    "sort out=": lambda x, d: torch.sort(x[:-1], out=(x[1:], torch.empty(7, device=d, dtype=I64))),
    "topk out=": lambda x, d: torch.topk(x, 4, out=(x[:4], torch.empty(4, device=d, dtype=I64))),
    "max out=": lambda x, d: torch.max(x.view(2, 4), 0, out=(x[:4], torch.empty(4, device=d, dtype=I64))),
    "cat out=": lambda x, d: torch.cat([x[:3], x[3:6]], out=x[2:]),
    "cat out= of itself": lambda x, d: torch.cat([x, x], out=x),
    "stack out=": lambda x, d: torch.stack([x[:2], x[2:4]], out=x[2:6].view(2, 2)),
    "gather out=": lambda x, d: torch.gather(x, 0, at(d, 3, 2), out=x[:2]),
    "take out=": lambda x, d: torch.take(x, at(d, 3, 2), out=x[:2]),
    "index_select out=": lambda x, d: torch.index_select(x, 0, at(d, 3, 2), out=x[:2]),
    "index_select out= of itself": lambda x, d: torch.index_select(x, 0, at(d, *range(8)), out=x),
    "index_put_": lambda x, d: x.index_put_((at(d, 0, 1),), x[6:]),
    "index_copy_": lambda x, d: x.index_copy_(0, at(d, 0, 1), x[1:3]),
    "index_add_": lambda x, d: x.index_add_(0, at(d, 0, 1), x[1:3]),
    "index_reduce_": lambda x, d: x.index_reduce_(0, at(d, 0, 1), x[1:3], "amax"),
    "scatter_": lambda x, d: x.scatter_(0, at(d, 0, 1), x[1:3]),
    "scatter_add_": lambda x, d: x.scatter_add_(0, at(d, 0, 1), x[1:3]),
    "put_": lambda x, d: x.put_(at(d, 0, 1), x[1:3]),
    "x[mask] = x": lambda x, d: x.__setitem__(x > 3, x[:4]),
    "addr_": lambda x, d: x[:4].view(2, 2).addr_(x[:2], x[2:4]),
    "_foreach_add_": lambda x, d: torch._foreach_add_([x[1:]], [x[:-1]]),
    # Not refused: the CPU's order of reads and writes shows.
    "strided": lambda x, d: x[::2].add_(x[1::2]),
    "strided, shifted": lambda x, d: x[:6:2].add_(x[2::2]),
    "itself": lambda x, d: x.mul_(x),
    "copy_ onto itself": lambda x, d: x[2:6].copy_(x[2:6]),
    "sum out=": lambda x, d: torch.sum(x.view(2, 4), 0, out=x[4:]),
    "mean out=": lambda x, d: torch.mean(x.view(2, 4), 1, out=x[:2]),
    "addmm_": lambda x, d: x[:4].view(2, 2).addmm_(x[2:6].view(2, 2), torch.eye(2, device=d)),
    "diagonal add_": lambda x, d: x[:4].view(2, 2).diagonal().add_(x[:2]),
    "diagonal copy_": lambda x, d: x[:4].view(2, 2).diagonal().copy_(x[4:6]),
    "cumsum_": lambda x, d: x.cumsum_(0),
    "triu out= of itself": lambda x, d: torch.triu(x[:4].view(2, 2), out=x[:4].view(2, 2)),
}


@pytest.mark.parametrize("name", PARTIAL)
def test_writes_over_what_is_read(name):
    def case(d):
        x = new(d, 8)
        return refusal(lambda: PARTIAL[name](x, d)), x[:8].tolist()

    same_on_both(case)


# ------------------------------------------------------------------------------ writes to tensors whose elements share places

EXPANDED = {
    "add_": lambda e, x, d: e.add_(1),
    "fill_": lambda e, x, d: e.fill_(9),
    "zero_": lambda e, x, d: e.zero_(),
    "copy_": lambda e, x, d: e.copy_(x[4:]),
    "copy_ onto itself": lambda e, x, d: e.copy_(e),
    "out=": lambda e, x, d: torch.add(x[4:], 1, out=e),
    "masked_fill_": lambda e, x, d: e.masked_fill_(at(d, 1, 0, 0, 0) > 0, 2),
    "masked_scatter_": lambda e, x, d: e.masked_scatter_(x[4:] > 5, x[4:]),
    "index_put_": lambda e, x, d: e.index_put_((at(d, 0),), x[4]),
    "index_fill_": lambda e, x, d: e.index_fill_(0, at(d, 0), 2),
    "index_copy_": lambda e, x, d: e.index_copy_(0, at(d, 0), x[4:5]),
    "index_add_": lambda e, x, d: e.index_add_(0, at(d, 0), x[4:5]),
    "scatter_": lambda e, x, d: e.scatter_(0, at(d, 0), 2),
    "e[0] =": lambda e, x, d: e.__setitem__(0, 5),
    "uniform_": lambda e, x, d: e.uniform_(0, 0),
    "normal_": lambda e, x, d: e.normal_(0, 0),
    "cumsum_": lambda e, x, d: e.cumsum_(0),
    "tril_": lambda e, x, d: e.expand(4, 4).tril_(),
    "sum out=": lambda e, x, d: torch.sum(x.view(2, 4), 0, out=e),
    "fill_diagonal_": lambda e, x, d: e.expand(4, 4).fill_diagonal_(3),
    "_foreach_add_": lambda e, x, d: torch._foreach_add_([e], 1),
    "_foreach_zero_": lambda e, x, d: torch._foreach_zero_([e, x[2:4]]),
    "unfold add_": lambda e, x, d: x.unfold(0, 2, 1).add_(1),
    "as_strided add_": lambda e, x, d: x.as_strided((3, 3), (1, 1)).add_(1),
    "as_strided mul_": lambda e, x, d: x.as_strided((2, 3), (2, 1)).mul_(2),
    "as_strided copy_": lambda e, x, d: x.as_strided((3, 3), (1, 1)).copy_(new(d, 3, 3)),
    "as_strided copy_ from the host": lambda e, x, d: x.as_strided((3, 3), (1, 1)).copy_(new("cpu", 3, 3)),
    "as_strided index_put_": lambda e, x, d: x.as_strided((3, 2), (1, 1)).index_put_((at(d, 2, 0),), new(d, 2, 2)),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_writes_to_elements_that_share_places(name):
    def case(d):
        x = new(d, 8)
        return refusal(lambda: EXPANDED[name](x[:1].expand(4), x, d)), x.tolist()

    same_on_both(case)


# ------------------------------------------------------------------------------------------------------------ lists

LISTS = {
    "one tensor twice": lambda x: torch._foreach_add_([x, x, x], 1),
    "overlapping views": lambda x: torch._foreach_mul_([x[:4], x[2:6]], 2),
    "scalars": lambda x: torch._foreach_mul_([x[:4], x[2:6]], [2.0, 3.0]),
    "a later element reads an earlier": lambda x: torch._foreach_copy_([x[:4], x[4:]], [x[4:], x[:4]]),
    "columns": lambda x: torch._foreach_add_(list(x.view(4, 2).unbind(1)), 1),
    "disjoint": lambda x: torch._foreach_add_(list(x.split(3)), list(x.split(3))),
    "addcmul": lambda x: torch._foreach_addcmul_([x[:4], x[4:]], [x[4:], x[:4]], [x[4:], x[:4]]),
    "lerp": lambda x: torch._foreach_lerp_([x[:4], x[4:]], [x[4:], x[:4]], 0.5),
    "zero": lambda x: torch._foreach_zero_([x[:4], x[2:6]]),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_that_share_memory(name):
    def case(d):
        x = new(d, 8)
        return refusal(lambda: LISTS[name](x)), x.tolist(), x._version

    same_on_both(case)


def test_list_ops_count_as_writes():
    def case(d):
        w = new(d, 3).requires_grad_()
        y = w * 2
        z = y * y
        torch._foreach_add_([y.detach()], 1)
        x = new(d, 3)
        torch._amp_foreach_non_finite_check_and_unscale_([x], torch.zeros(1, device=d), torch.ones(1, device=d))
        return refusal(lambda: z.sum().backward()), x._version

    same_on_both(case)


# ------------------------------------------------------------------------------------------------------------- out=

OUT = {
    "add": lambda d, o: torch.add(new(d, 4), 1, out=o),
    "eq": lambda d, o: torch.eq(new(d, 4), 1, out=o),
    "mm": lambda d, o: torch.mm(new(d, 2, 2), new(d, 2, 2), out=o),
    "bmm": lambda d, o: torch.bmm(new(d, 1, 2, 2), new(d, 1, 2, 2), out=o),
    "cat": lambda d, o: torch.cat([new(d, 4)], out=o),
    "sum": lambda d, o: torch.sum(new(d, 4), 0, out=o),
    "where": lambda d, o: torch.where(new(d, 4) > 1, new(d, 4), new(d, 4), out=o),
    "argmax": lambda d, o: torch.argmax(new(d, 4), 0, out=o),
    "index_select": lambda d, o: torch.index_select(new(d, 4), 0, at(d, 1, 0), out=o),
    "gather": lambda d, o: torch.gather(new(d, 4), 0, at(d, 1, 0), out=o),
    "softmax": lambda d, o: torch.softmax(new(d, 4), 0, out=o),
    "tril": lambda d, o: torch.tril(new(d, 2, 2), out=o),
    "amax": lambda d, o: torch.amax(new(d, 4), 0, out=o),
    "dot": lambda d, o: torch.dot(new(d, 2), new(d, 2), out=o),
    "polar": lambda d, o: torch.polar(new(d, 4), new(d, 4), out=o),
    "eye": lambda d, o: torch.eye(4, out=o),
    "full": lambda d, o: torch.full((4,), 2, out=o),
    "linspace": lambda d, o: torch.linspace(0, 1, 4, out=o),
}


@pytest.mark.parametrize("dtype", [F32, F64, I64, C64], ids=str)
@pytest.mark.parametrize("name", OUT)
def test_out_of_another_dtype_or_size(name, dtype):
    if (name, dtype) == ("argmax", I64):
        pytest.skip("same dtype")

    def case(d):
        seen = []
        for size in ((0,), (3,)):
            o = torch.zeros(size, device=d, dtype=dtype)
            r = refusal(lambda o=o: OUT[name](d, o))
            seen += [r, tuple(o.size()), isinstance(r[0][0], type) or o.tolist()]
        return seen

    same_on_both(case)


def test_out_into_views():
    def case(d):
        b, m = torch.zeros(4, 4, device=d), new(d, 4, 4)
        torch.add(new(d, 4), 1, out=b[:, 1])
        torch.mm(m, m[:, :1], out=b[:, 2:3])
        torch.mv(m, m[0], out=b[:, 3])
        seen = see(b)
        torch.mm(m, m, out=b.t())
        torch.addmm(m[:2, :2], m[:2], m[:, :2], out=b[::2, ::2])
        b[1:3, 1:3].addmm_(m[:2], m[:, :2])
        b.t()[1:].addmm_(m[1:], m)
        seen += see(b)
        z = torch.zeros(2, 4, 4, device=d)
        torch.baddbmm(m.expand(2, 4, 4), m.expand(2, 4, 4), m.expand(2, 4, 4), out=z.transpose(1, 2))
        torch.bmm(m[None], m[None], out=z[1:])
        seen += see(z)
        torch.cumsum(m, 0, out=b.t())
        torch.sum(m, 0, out=b[:, 1])
        torch.sort(m, 1, True, out=(z[0].t(), torch.empty(4, 4, dtype=I64, device=d)))
        return seen + see(b, z)

    same_on_both(case)


def test_out_resized():
    """With a warning where it had elements, without in factories; laid out as a fresh result; also where it is then refused."""

    def case(d):
        x = new(d, 2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        b = torch.zeros(10, device=d)
        o = b[2:5]
        seen = [refusal(lambda: torch.add(x, 1, out=torch.empty(0, device=d))), refusal(lambda: torch.add(new(d, 2, 2), 1, out=o))]
        seen += see(o, b)
        y = new(d, 3)
        seen += [refusal(lambda: torch.cat([y, y], out=y)), tuple(y.size())]
        return [*seen, refusal(lambda: torch.eye(3, out=torch.zeros(2, device=d)))]

    same_on_both(case)


def test_out_resized_and_overlapping():
    def case(d):
        b = new(d, 12)
        o = b[2:6].view(2, 2)
        r = refusal(lambda: torch.eq(b[:8].view(2, 4), 3, out=o))
        e = b[3:3]
        r2 = refusal(lambda: torch.eq(b[:8].view(2, 4), 3, out=e)), refusal(lambda: torch.cat([b[3:5], b[4:6]], out=b[4:4]))
        return r, r2, see(o, b, e)

    same_on_both(case)


# --------------------------------------------------------------------------------------------- conjugate and negative bits


def test_lazy_conjugates_and_negatives():
    def case(d):
        z = torch.complex(new(d, 4), new(d, 4) + 1)
        c = z.conj()
        seen = see(c, c.imag, c.real, z.imag)
        c.mul_(2j)
        c[1] = 1 + 1j
        c.imag.fill_(5)
        z.imag.neg_()
        seen += see(z, c)
        q = torch._neg_view(new(d, 3))
        q.add_(1)
        q[0] = 5
        seen += see(q, q.resolve_neg())
        k = torch.view_as_real(z)
        k[:, 0] = 9
        torch.view_as_complex(k)[0] = 3
        seen += see(z, k)
        z.conj().copy_(new(d, 4, dtype=C64) * 1j)
        z.conj()[1:3].add_(new(d, 2))
        return seen + see(z, z.conj().sum(), torch.cat([z.conj(), z]), z.conj().to(torch.complex128))

    same_on_both(case)


def test_conjugate_targets_of_matrix_products():
    def case(d):
        m = torch.complex(new(d, 2, 2), new(d, 2, 2) - 1)
        a = torch.complex(new(d, 2, 2) + 1, new(d, 2, 2))
        p, v = torch.zeros_like(m), torch.zeros(2, dtype=C64, device=d)
        torch.mm(m.mH, a, out=p.mH)
        seen = see(p)
        torch.mm(m, a.conj(), out=p.conj())
        p.conj().addmm_(m, a)
        torch.mv(m.conj(), a[0].conj(), out=v.conj())
        return seen + see(p, v)

    same_on_both(case)


def test_refused_complex_views():
    def case(d):
        z = new(d, 4, dtype=C64)
        return [
            refusal(lambda: torch.view_as_real(z.conj())),
            refusal(lambda: torch.view_as_complex(new(d, 3))),
            refusal(lambda: torch.view_as_complex(new(d, 3, 3)[:, 1:])),
            refusal(lambda: torch.view_as_complex(new(d, 4, 2, dtype=I32))),
            refusal(lambda: new(d, 3).imag),
            refusal(lambda: torch.clamp(z, 0, 1)),
        ]

    same_on_both(case)


# --------------------------------------------------------------------------------------------------- dtype views, scatters


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, F32, I64, F64, C64, torch.bfloat16], ids=str)
def test_dtype_views(dtype):
    def case(d):
        x, b = new(d, 8, dtype=I32), new(d, 32, dtype=torch.uint8)
        views = (x, x[1:], x[1:5], x[::2], x.view(2, 4).t(), x[0], b[1:9], b[4:12], b[1:8], b[2:10])
        seen = [refusal(lambda v=v: v.view(dtype)) for v in views]
        v = b[8:24].view(dtype)
        v.fill_(3)
        v[0] = 0
        return seen + see(b, x.view(dtype).untyped_storage().nbytes())

    same_on_both(case)


def test_scatters_keep_strides_and_check_shapes():
    def case(d):
        x = new(d, 4, 4)
        seen = []
        for y in (x, x.t(), x[1:], x[:, 1:]):
            n = y.size(0) - 2
            seen += see(
                torch.slice_scatter(y, y[:n] * 10, 0, 1, n + 1),
                torch.select_scatter(y, y[:, 0] * 10, 1, 2),
                torch.diagonal_scatter(y, y.diagonal(1) * 10, 1),
                torch.as_strided_scatter(y, new(d, 2, 2) * 10, (2, 2), (4, 1), 1),
            )
        return [
            *seen,
            refusal(lambda: torch.slice_scatter(x, new(d, 3, 4), 0, 1, 3)),
            refusal(lambda: torch.select_scatter(x, new(d, 3), 1, 2)),
            refusal(lambda: torch.diagonal_scatter(x, new(d, 4), 1)),
            refusal(lambda: torch.as_strided_scatter(x, new(d, 2), (2, 2), (4, 1), 1)),
        ]

    same_on_both(case)


# ------------------------------------------------------------------------------------------------ .data, set_, resize_


def test_data_and_set():
    def case(d):
        x, b, g = new(d, 3, 4), new(d, 4, 4), new(d, 3).requires_grad_()
        v = x[1]
        x.data = new(d, 2, 2) * 10
        v.add_(1)
        x.mul_(2)
        seen = see(x, v, refusal(lambda: setattr(x, "data", new(d, 2, dtype=I64))))
        x.data = b[1, 1:3]
        x.add_(100)
        y = (g * g).sum()
        g.data = new(d, 3) * 5
        y.backward()
        e = torch.empty(0, device=d)
        e.set_(b.t())
        e.add_(1)
        seen += see(x, b, g.grad, e, e.is_set_to(b.t()), e.is_set_to(b))
        e.set_(b.untyped_storage(), 2, (2, 3), (4, 1)).add_(50)
        seen += see(e, b, e.set_(b, 1, (2, 2), (3, 2)), e.set_(b.untyped_storage(), 3, (2, 3)), e.set_(b.untyped_storage()))
        e.set_()
        w = new(d, 6)[::2][:0]
        seen += see(w.set_(torch.empty(0, device=d).untyped_storage()), w.set_())
        t, u = b.t(), b[0, 0]
        t.set_(b.untyped_storage(), 0, (4, 4))
        seen += see(t, b, refusal(lambda: u.set_(new(d, 4).untyped_storage(), 5, (), ())), u)
        return seen + see(e, b) + [refusal(lambda: e.set_(new(d, 2, dtype=I32)))]

    same_on_both(case)


def test_refused_set_and_resize():
    def case(d):
        b, x = new(d, 12), torch.empty(0, device=d)
        s = b.untyped_storage()
        return [
            refusal(f)
            for f in (
                lambda: x.set_(s, -1, (2,)),
                lambda: x.set_(s, 0, (2, 2), (1,)),
                lambda: x.set_(s, 0, (2, 2), (-1, 1)),
                lambda: new(d, 2, 2).resize_(2, 2, memory_format=torch.channels_last),
                lambda: new(d, 2, 2).resize_(2, 2, memory_format=torch.preserve_format),
                lambda: new(d, 2, 2).resize_(-2, 2),
                lambda: new(d, 3).requires_grad_().resize_(4),
                lambda: x.as_strided((3, 3), (3, 1)),
                lambda: b.as_strided((2, 2), (3, -1)),
                lambda: b[::-1],
            )
        ]

    same_on_both(case)


def test_resize():
    def case(d):
        x = new(d, 4)
        v = x[1:]
        v.resize_(5)
        v.fill_(3)
        y = new(d, 2, 3).t()
        y.resize_(3, 2)
        seen = see(x, x.untyped_storage().nbytes(), y, y.resize_(2, 3))
        x.resize_(0)
        x.resize_(3)
        s = x.untyped_storage()
        s.resize_(7)
        s.resize_(16)
        flat = new(d, 8)
        parts, kept = flat.split(4), flat.clone()
        flat.untyped_storage().resize_(0)
        freed = flat.untyped_storage().nbytes(), flat.untyped_storage().data_ptr()
        flat.untyped_storage().resize_(32)
        flat.copy_(kept)
        parts[0].add_(1)
        return seen + see(x[:1], s.nbytes(), freed, flat, *parts)

    same_on_both(case)


def test_copies_of_nothing_check_shapes():
    def case(d):
        e = torch.empty(2, 0, 3, device=d)
        return [
            refusal(lambda: e.copy_(torch.empty(1, 2, 0, 3, device=d))),
            refusal(lambda: e.copy_(torch.empty(0, 2, 3, device=d))),
            refusal(lambda: e.copy_(torch.empty(3, device=d))),
        ]

    same_on_both(case)


# ------------------------------------------------------------------------------------------ identity, copies, versions


def test_pointers():
    def case(d):
        x = new(d, 4, 4)
        p, v, e = x.data_ptr(), x[1], torch.empty(0, device=d)
        seen = [v.data_ptr() - p, v.untyped_storage().data_ptr() == p, v.untyped_storage().nbytes(), x[2:2].data_ptr()]
        x.add_(1)
        x.resize_(2, 2)
        seen += [x.data_ptr() == p, x.data.data_ptr() == p, x.view(I32).data_ptr() == p, x.clone().data_ptr() == p]
        seen += [e.data_ptr(), e.untyped_storage().data_ptr(), x.is_set_to(x.view(2, 2)), x.is_set_to(x.t()), x.nbytes]
        e.resize_(2)
        return [*seen, e.data_ptr() != 0, e.untyped_storage().data_ptr() == e.data_ptr()]

    same_on_both(case)


def test_copies_share_memory_as_the_originals_do():
    def case(d):
        x, e = new(d, 4, 4), torch.empty(0, dtype=C64, device=d)
        ts = [x, x[1], x.t(), x[::2, 1:]]
        seen = []

        def saved(what):
            f = io.BytesIO()
            torch.save(what, f)
            f.seek(0)
            return torch.load(f)

        for c in (copy.deepcopy(ts), saved(ts), pickle.loads(pickle.dumps(ts))):
            c[1].fill_(7)
            seen += [len({t.untyped_storage().data_ptr() for t in c}), [t.tolist() for t in c]]
        z = torch.complex(x, x)
        seen += [t.tolist() for t in (saved(z.conj()), saved(z.imag), saved(z.conj().imag), saved(torch._neg_view(x)))]
        seen += [len(saved([e, e.real])), saved(x[1]).untyped_storage().nbytes(), refusal(lambda: saved([z, z.real]))]
        c = copy.deepcopy(x.untyped_storage())
        seen += [c.nbytes(), c.data_ptr() == x.data_ptr(), torch.empty(0, device=d).set_(c).tolist(), c.tolist()[:8], c.cpu()[4]]
        c.fill_(0)
        c.copy_(x.untyped_storage())
        seen += [torch.empty(0, device=d).set_(c.clone()).tolist()]
        m = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        m[1].weight = m[0].weight
        m.to(d)
        c, s = copy.deepcopy(m), saved(m.state_dict())
        seen += [m[0].weight is m[1].weight, c[0].weight is c[1].weight, len(list(m.parameters()))]
        return [*seen, s["0.weight"].data_ptr() == s["1.weight"].data_ptr(), s["0.weight"].device.type == d]

    same_on_both(case)


def test_swap():
    def case(d):
        a, b = new(d, 3), new(d, 2, 2) * 10
        torch.utils.swap_tensors(a, b)
        a.add_(1)
        p, m = torch.nn.Parameter(torch.ones(2, 2, device=d)), torch.nn.Linear(2, 2).to(d)
        torch.utils.swap_tensors(m.weight, p)
        return see(a, b, m.weight)

    same_on_both(case)


def test_versions_and_autograd():
    def case(d):
        x = new(d, 4).requires_grad_()
        y = x * 2
        z = y * y
        y[1:].add_(1)
        seen = [refusal(lambda: z.sum().backward())]
        b = x.clone()
        b[1:3].mul_(x[:2])
        b[::2] = 0
        b.sum().backward()
        seen += see(x.grad, b)
        u = x * 1
        seen += [refusal(lambda: u.split(2)[0].mul_(2)), refusal(lambda: u.unbind()[0].add_(1)), refusal(lambda: x.add_(1))]
        seen += [refusal(lambda: x[0].add_(1)), refusal(lambda: (x * 1).expand(2, 4).add_(1))]
        t = new(d, 4)
        v = t[1:]
        for write in (
            lambda: v.mul_(2),
            lambda: t.detach().add_(1),
            lambda: t.data.add_(1),
            lambda: torch.add(t, 1, out=t),
            lambda: t.resize_(4),
            lambda: t.set_(new(d, 4)),
            lambda: t.index_put_((at(d, 0),), new(d, 1)),
            lambda: setattr(t, "data", new(d, 4)),
        ):
            write()
            seen += [t._version, v._version]
        return seen

    same_on_both(case)


# --------------------------------------------------------------------------------------------------- layouts, indices, order


def test_writes_in_place_to_channels_last():
    def case(d):
        x = new(d, 2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        y = new(d, 1, 2, 2, 2, 2).contiguous(memory_format=torch.channels_last_3d)
        x.add_(1)
        x[:, 1].mul_(2)
        x.cumsum_(1)
        x.index_put_((at(d, 0), at(d, 1)), torch.tensor(9.0, device=d))
        y.add_(y)
        y[:, 1] = 5
        o = torch.zeros_like(x)
        torch.add(x, new(d, 2, 3, 2, 2), out=o)
        x.masked_fill_(x > 30, 1)
        return see(x, y, o, x + new(d, 2, 3, 2, 2), x[:, :2] + 1, x.clone())

    same_on_both(case)


def test_index_writes_through_views():
    def case(d):
        b = new(d, 4, 4)
        v, i = b[1:, 1:], at(d, 0, 2)
        seen = []
        for write in (
            lambda: v.__setitem__(i, -1),
            lambda: v.__setitem__((slice(None), i), new(d, 3, 2)),
            lambda: v.__setitem__(v > 5, 0),
            lambda: v.t().__setitem__((i, i), 77),
            lambda: v.index_add_(1, i, torch.ones(3, 2, device=d)),
            lambda: v.scatter_(1, i.expand(3, 2), 8),
            lambda: v.put_(i, torch.tensor([5.0, 6], device=d)),
            lambda: v.masked_scatter_(v > 6, new(d, 9)),
            lambda: v.index_put_((i, i), new(d, 2), accumulate=True),
            lambda: v.__setitem__(i, v[[1, 0]]),
            lambda: v.__setitem__((Ellipsis, 0), v[..., 1]),
            lambda: b.__setitem__((0, 0), b[1, 1]),
            lambda: v.diagonal().__setitem__(slice(1, None), 6),
            lambda: v.__setitem__(0, torch.ones(2, device=d)),
        ):
            seen += [refusal(write), b.tolist()]
        return seen

    same_on_both(case)


def test_writes_while_views_are_queued():
    def case(d):
        x = new(d, 4, 4)
        v, w = x[1], x.t()
        for _ in range(20):
            x.add_(1)
            v.mul_(2).remainder_(100)
            w[0].sub_(v)
        y = x * 2
        x.zero_()
        del x
        z = v + 1
        a = new(d, 4)
        b = a[:2]
        s = a.sum()
        a.resize_(8)
        a.fill_(2)
        a.untyped_storage().resize_(0)
        return [t.tolist() for t in (y, v, w, z, s)] + [b.untyped_storage().nbytes()]

    same_on_both(case)
