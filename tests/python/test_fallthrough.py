"""Ops without a row: one program of PyTorch's decomposition, else the CPU with a warning and a count."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch_tpu import _C, _decompose

# Ops that PyTorch decomposes. Those that have a row by now make one program too.
CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "addr": (torch.addr, ((3, 4), (3,), (4,))),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3), ((3, 4), (3, 4))),
    "lerp.weight": (torch.lerp, ((3, 4), (3, 4), (3, 4))),
    "im2col": (lambda a: torch.nn.functional.unfold(a, 2), ((1, 2, 4, 4),)),
    "renorm": (lambda a: torch.renorm(a, 2, 0, 1.0), ((3, 4),)),
    "huber": (lambda a, b: torch.nn.functional.huber_loss(a, b, delta=0.3), ((3, 4), (3, 4))),
    "logaddexp": (torch.logaddexp, ((3, 4), (4,))),
    "diag_embed": (torch.diag_embed, ((3, 4),)),
    "mse": (torch.nn.functional.mse_loss, ((3, 4), (3, 4))),
}


@pytest.fixture(autouse=True)
def no_counts() -> Iterator[None]:
    _C.reset_fallbacks()
    yield
    torch.tpu.set_fallback(True)


def tensors(shapes: tuple[tuple[int, ...], ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(s, generator=generator) for s in shapes]


def programs() -> int:
    return torch.tpu.compile_stats()["programs"]


@pytest.mark.parametrize("name", CASES)
def test_values_gradients_and_programs(name: str) -> None:
    fn, shapes = CASES[name]
    host = [t.requires_grad_() for t in tensors(shapes)]
    device = [t.detach().to("tpu").requires_grad_() for t in host]
    torch.tpu.synchronize()
    before = programs()
    got, want = fn(*device), fn(*host)
    torch.tpu.synchronize()
    assert programs() - before <= 1
    torch.testing.assert_close(got.cpu(), want)
    got.sum().backward()
    want.sum().backward()
    for d, h in zip(device, host, strict=True):
        torch.testing.assert_close(d.grad.cpu(), h.grad)
    assert torch.tpu.fallbacks() == {}
    before = programs()
    fn(*[t.detach() + 1 for t in device])
    torch.tpu.synchronize()
    assert programs() - before <= len(device)  # the additions: the op's own program is there


def test_in_place_and_out() -> None:
    a, b = tensors(((3, 4), (3, 4)))
    want = torch.lerp(a, b, 0.25)
    x, y = a.to("tpu"), b.to("tpu")
    out = torch.empty(0, device="tpu")
    torch.testing.assert_close(torch.lerp(x, y, 0.25, out=out).cpu(), want)
    assert out.shape == want.shape
    column = x[:, 1:3]
    assert column.lerp_(y[:, 1:3], 0.25) is column
    want_x = a.clone()
    want_x[:, 1:3].lerp_(b[:, 1:3], 0.25)
    torch.testing.assert_close(x.cpu(), want_x)
    assert torch.tpu.fallbacks() == {}


@pytest.fixture(scope="module")
def made_up() -> Iterator[torch.library.Library]:
    """Ops that no row will ever serve: axpy keeps its number open, power branches on it, fill_ and out= write."""
    lib = torch.library.Library("aten", "FRAGMENT")

    def define(schema: str, fn: Callable[..., object]) -> None:
        name = schema.split("(")[0]
        lib.define(schema)
        for key in ("CPU", "Meta"):
            lib.impl(name, fn, key)
        base, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        torch._decomp.decomposition_table[op] = fn

    def axpy(x: torch.Tensor, y: torch.Tensor, w: float) -> torch.Tensor:
        return x * w + y

    def power(x: torch.Tensor, w: float) -> torch.Tensor:
        return x * x if w == 2 else x.exp() if w > 1 else x

    def pair(x: torch.Tensor, others: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return x + others[1], others[0].sum(0)

    # On the device only the functional overload's decomposition is asked.
    def axpy_(x: torch.Tensor, y: torch.Tensor, w: float) -> torch.Tensor:
        return x.copy_(axpy(x, y, w))

    def axpy_out(x: torch.Tensor, y: torch.Tensor, w: float, *, out: torch.Tensor) -> torch.Tensor:
        result = axpy(x, y, w)
        return out.resize_(result.shape).copy_(result)

    define("torchtpu_axpy(Tensor x, Tensor y, Scalar w) -> Tensor", axpy)
    define("torchtpu_axpy_(Tensor(a!) x, Tensor y, Scalar w) -> Tensor(a!)", axpy_)
    define("torchtpu_axpy.out(Tensor x, Tensor y, Scalar w, *, Tensor(a!) out) -> Tensor(a!)", axpy_out)
    define("torchtpu_power(Tensor x, float w) -> Tensor", power)
    define("torchtpu_pair(Tensor x, Tensor[] others) -> (Tensor, Tensor)", pair)
    yield lib


def run_both(name: str, *args: object, **kwargs: object) -> int:
    """Compare with the CPU; the programs made."""
    op = getattr(torch.ops.aten, name)
    device = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("tpu"), args)
    torch.tpu.synchronize()
    before = programs()
    got, want = op(*device, **kwargs), op(*args, **kwargs)
    torch.tpu.synchronize()
    made = programs() - before
    torch.testing.assert_close(torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), got), want)
    assert torch.tpu.fallbacks() == {}, _decompose.failures
    return made


def test_one_program_whatever_the_float(made_up: torch.library.Library) -> None:
    x, y = tensors(((3, 4), (4,)))
    assert [run_both("torchtpu_axpy", x, y, w) for w in (0.5, 0.25, 0.0, 1.0, float("inf"))] == [1, 0, 0, 0, 0]
    assert [run_both("torchtpu_axpy", x, y, w) for w in (2, 3, 2)] == [1, 1, 0]  # an int is part of the signature
    assert run_both("torchtpu_axpy", x[:2], y, 0.5) == 1
    assert run_both("torchtpu_axpy", x, torch.tensor(2.0), 0.5) == 1


def test_a_float_the_trace_needs_is_part_of_the_signature(made_up: torch.library.Library) -> None:
    (x,) = tensors(((3, 4),))
    assert [run_both("torchtpu_power", x, w) for w in (2.0, 1.5, 0.5, 2.0, 1.5)] == [1, 1, 1, 0, 0]


def test_lists_and_several_results(made_up: torch.library.Library) -> None:
    x, a, b = tensors(((3,), (2, 3), (3,)))
    assert [run_both("torchtpu_pair", x, [a, b]), run_both("torchtpu_pair", b, [a, x])] == [1, 0]


def test_writes(made_up: torch.library.Library) -> None:
    x, y = tensors(((3, 4), (4,)))
    t = x.to("tpu")
    assert torch.ops.aten.torchtpu_axpy_(t[1:], y.to("tpu"), 0.5).shape == (2, 4)
    want = x.clone()
    want[1:] = want[1:] * 0.5 + y
    torch.testing.assert_close(t.cpu(), want)
    out = torch.empty(0, device="tpu")
    assert torch.ops.aten.torchtpu_axpy.out(x.to("tpu"), y.to("tpu"), 0.5, out=out) is out
    torch.testing.assert_close(out.cpu(), x * 0.5 + y)
    assert torch.tpu.fallbacks() == {}, _decompose.failures


def test_numbers_are_not_confused() -> None:
    a, b = tensors(((5,), (5,)))
    x, y = a.to("tpu"), b.to("tpu")
    for w in (0.0, 0.25, 1.0, 2.5):
        torch.testing.assert_close(torch.lerp(x, y, w).cpu(), torch.lerp(a, b, w))
        torch.testing.assert_close(torch.renorm(x[None], 2, 0, w + 0.1).cpu(), torch.renorm(a[None], 2, 0, w + 0.1))


def test_a_float_is_no_part_of_the_signature() -> None:
    args = [(12, (3, 4)), (12, (3, 4)), 0.25]
    graph, baked = _decompose.decompose("lerp", "Scalar", args, 0)
    assert graph >= 0 and baked == 0
    assert _decompose.decompose("lerp", "Scalar", [*args[:2], 0.75], 0) == (graph, 0)
    op = _decompose.decompose("addr", "", [(12, (2, 3)), (12, (2,)), (12, (3,)), 0.5, 2.0], 0)
    assert op == (-1, 0b11000)  # beta = 0 is another trace: both numbers join the key


def test_decomposition_is_traced_once_a_signature() -> None:
    name, args = "addr", [(12, (2, 3)), (12, (2,)), (12, (3,)), 1, 1]
    graph, _ = _decompose.decompose(name, "", args, 0)
    assert graph >= 0
    assert _decompose.decompose(name, "", args, 0) == (graph, 0)
    assert _decompose.decompose(name, "", [(12, (2, 2)), (12, (2,)), (12, (2,)), 1, 1], 0)[0] not in (graph, -1, -2)


def test_graph_from_python() -> None:
    graph = _C.graph_new("square_plus")
    x = _C.graph_input(graph, 0, 0, (12, (2, 3)))
    (y,) = _C.graph_node(graph, "mul.Tensor", [x, x], [(12, (2, 3))])
    (z,) = _C.graph_node(graph, "add.Tensor", [y, ("num", 1, 2), 1], [(12, (2, 3))])
    op = _C.graph_finish(graph, [z])
    (t,) = tensors(((2, 3),))
    before = programs()
    for n in (0.5, 1.5):
        (got,) = _C.Program(op, [0, 1], [], None)(t.to("tpu"), n)
        torch.testing.assert_close(got.cpu(), t * t + n)
    assert programs() - before == 1


def test_graph_errors() -> None:
    graph = _C.graph_new("wrong")
    x = _C.graph_input(graph, 0, 0, (12, (2,)))
    with pytest.raises(NotImplementedError, match="no row nothing"):
        _C.graph_node(graph, "nothing", [x], [(12, (2,))])
    with pytest.raises(ValueError, match="no value"):
        _C.graph_node(graph, "mul.Tensor", [x, 7], [(12, (2,))])
    with pytest.raises(ValueError, match="no value"):
        _C.graph_finish(graph, [3])


def test_cpu_warns_once_and_counts(capfd: pytest.CaptureFixture[str]) -> None:
    lib = torch.library.Library("aten", "FRAGMENT")
    lib.define("torchtpu_test_on_cpu(Tensor x) -> Tensor")
    lib.impl("torchtpu_test_on_cpu", lambda x: x.flip(0) + 1, "CPU")
    op = torch.ops.aten.torchtpu_test_on_cpu
    x = torch.arange(3.0).to("tpu")
    torch.testing.assert_close(op(x).cpu(), torch.tensor([3.0, 2.0, 1.0]))
    op(x)
    assert capfd.readouterr().err.count("torchtpu_test_on_cpu") == 1  # torch.ops hands C++ warnings to no Python filter
    assert torch.tpu.fallbacks() == {"aten::torchtpu_test_on_cpu": 2}
    torch.tpu.set_fallback(False)
    with pytest.raises(NotImplementedError, match="torchtpu_test_on_cpu"):
        op(x)
    torch.tpu.set_fallback(True)


def test_views_stay_views() -> None:
    x = torch.zeros(4, 6, device="tpu")
    views: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t.t(),
        lambda t: t[1:, ::2],
        lambda t: t.view(3, 8),
        lambda t: t.diagonal(),
        lambda t: t.unfold(0, 2, 1),
        lambda t: t.expand(2, 4, 6),
        lambda t: torch.as_strided(t, (2, 2), (6, 1), 1),
        lambda t: t.unsqueeze(0).squeeze(0),
        lambda t: t.movedim(0, 1),
        lambda t: t.narrow(1, 2, 3),
    ]
    for view in views:
        assert view(x).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    lib = torch.library.Library("aten", "FRAGMENT")
    lib.define("torchtpu_test_view(Tensor(a) x) -> Tensor(a)")
    lib.impl("torchtpu_test_view", lambda t: t[1:], "CPU")
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.ops.aten.torchtpu_test_view(x)


def test_wrong_shapes_raise_pytorchs_words() -> None:
    calls = [
        lambda d: torch.lerp(torch.zeros(3, device=d), torch.zeros(4, device=d), 0.5),
        lambda d: torch.zeros(4, 8, device=d) @ torch.zeros(5, 3, device=d),
        lambda d: torch.cat([torch.zeros(3, 2, device=d), torch.zeros(4, 5, device=d)]),
        lambda d: torch.zeros(3, device=d).add_(torch.zeros(4, device=d)),
        lambda d: torch.zeros(2, 3, device=d)[torch.tensor([0, 1, 0], device=d), torch.tensor([0, 1], device=d)],
    ]
    for call in calls:
        with pytest.raises(Exception) as cpu:
            call("cpu")
        with pytest.raises(type(cpu.value)) as tpu:
            call("tpu")
        assert str(tpu.value) == str(cpu.value)


def test_compiled_functions_bear_ops_that_go_and_take_those_that_come() -> None:
    def made(name: str) -> torch.library.Library:
        lib = torch.library.Library("aten", "FRAGMENT")
        lib.define(f"{name}(Tensor x) -> Tensor")
        for key in ("CPU", "Meta"):
            lib.impl(name, lambda x: x * 2, key)
        torch._decomp.decomposition_table[getattr(torch.ops.aten, name).default] = lambda x: x * 2
        return lib

    def compiled(fn: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        torch._dynamo.reset()
        return torch.compile(fn, backend="tpu")

    x = torch.ones(2, device="tpu")
    first = made("torchtpu_goes")
    assert compiled(lambda x: torch.ops.aten.torchtpu_goes(x) + 1)(x).tolist() == [3.0, 3.0]
    first._destroy()
    assert compiled(lambda x: x + 1)(x).tolist() == [2.0, 2.0]
    second = made("torchtpu_comes")
    assert compiled(lambda x: torch.ops.aten.torchtpu_comes(x) + 1)(x).tolist() == [3.0, 3.0]
    assert torch.tpu.compile_stats()["op_by_op"] == {}
    second._destroy()
