"""Debug mode, and what is wrong with data: out-of-range indices and their like are told in every mode, with the kind of error that
the CPU raises."""

import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F

STRICT, DEBUG = torch.tpu.EagerMode.STRICT, torch.tpu.EagerMode.DEBUG


def _x(device):
    return torch.arange(12.0).reshape(3, 4).to(device)


def _t(device, v):
    return torch.tensor(v, device=device)


# Each takes a device and an index that is wrong for every axis.
INDEXED = {
    "index": lambda d, v: _x(d)[_t(d, [v, 0])],
    "index second axis": lambda d, v: _x(d)[:, _t(d, [v, 0])],
    "index two axes": lambda d, v: _x(d)[_t(d, [0, 1]), _t(d, [v, 0])],
    "index bf16": lambda d, v: _x(d).bfloat16()[_t(d, [v])],
    "index int32": lambda d, v: _x(d)[torch.tensor([v], dtype=torch.int32, device=d)],
    "index of a view": lambda d, v: _x(d).t()[_t(d, [[0, v], [1, 0]])[:, 1]],
    "index_select": lambda d, v: _x(d).index_select(0, _t(d, [v])),
    "index_select 1": lambda d, v: _x(d).index_select(1, _t(d, [v])),
    "gather": lambda d, v: _x(d).gather(0, _t(d, [[v, 0]])),
    "take": lambda d, v: _x(d).take(_t(d, [3 * v])),
    "embedding": lambda d, v: F.embedding(_t(d, [v, 1]), _x(d)),
    "embedding_bag": lambda d, v: F.embedding_bag(_t(d, [[v, 1]]), _x(d)),
    "scatter value": lambda d, v: _x(d).scatter(0, _t(d, [[v, 0]]), 1.0),
    "scatter": lambda d, v: _x(d).scatter(1, _t(d, [[v, 0]]), _x(d)),
    "scatter_": lambda d, v: _x(d).scatter_(1, _t(d, [[v, 0]]), _x(d)),
    "scatter_add": lambda d, v: _x(d).scatter_add(0, _t(d, [[v, 0]]), _x(d)),
    "scatter_reduce": lambda d, v: _x(d).scatter_reduce(0, _t(d, [[v, 0]]), _x(d), "amax", include_self=False),
    "index_add": lambda d, v: _x(d).index_add(1, _t(d, [v, 0]), _x(d)[:, :2]),
    "index_copy": lambda d, v: _x(d).index_copy(1, _t(d, [v, 0]), _x(d)[:, :2]),
    "index_fill": lambda d, v: _x(d).index_fill(1, _t(d, [v, 0]), 1.0),
    "index_put": lambda d, v: _x(d).index_put((_t(d, [v, 0]),), _t(d, 1.0)),
    "index_put accumulate": lambda d, v: _x(d).index_put_((_t(d, [v, 0]),), _t(d, 1.0), accumulate=True),
    "put": lambda d, v: _x(d).put_(_t(d, [3 * v]), _t(d, [1.0])),
    "nll_loss": lambda d, v: F.nll_loss(_x(d)[:2], _t(d, [v, 0])),
    "nll_loss 2d": lambda d, v: F.nll_loss(_x(d)[:2, :, None, None], _t(d, [[[v]], [[0]]])),
    "cross_entropy": lambda d, v: F.cross_entropy(_x(d)[:2], _t(d, [v, 0])),
    "multi_margin_loss": lambda d, v: F.multi_margin_loss(_x(d)[:2], _t(d, [v, 0])),
    "one_hot": lambda d, v: F.one_hot(_t(d, [v, 0]), 3),
}
OTHERS = {
    "masked_scatter": lambda d: _x(d).masked_scatter(_x(d) > 3, _t(d, [1.0, 2.0])),
    "index_put mask": lambda d: _x(d).index_put((_x(d) > 3,), _t(d, [1.0, 2.0])),
    "x[mask] = values": lambda d: _x(d).__setitem__(_x(d) > 3, _t(d, [1.0, 2.0])) or _x(d),
    "max_unpool": lambda d: F.max_unpool1d(_x(d)[None, :1, :2], _t(d, [[[5, 0]]]), 2),
    "integers // tensor": lambda d: _t(d, [1, 2]) // _t(d, [1, 0]),
    "integers // 0": lambda d: _t(d, [1, 2]) // 0,
    "integers % tensor": lambda d: _t(d, [1, 2]) % _t(d, [1, 0]),
    "integers % 0": lambda d: _t(d, [1, 2]) % 0,
    "fmod of integers": lambda d: torch.fmod(_t(d, [1, 2]), _t(d, [1, 0])),
    "div of integers, trunc": lambda d: torch.div(_t(d, [1, 2]), _t(d, [1, 0]), rounding_mode="trunc"),
    "bernoulli": lambda d: torch.bernoulli(_t(d, [0.5, 2.0])),
    "bernoulli of NaN": lambda d: torch.bernoulli(_t(d, [0.5, float("nan")])),
    "normal, tensor std": lambda d: torch.normal(_t(d, [0.0]), _t(d, [-1.0])),
    "multinomial, negative": lambda d: torch.multinomial(_t(d, [-1.0, 2.0]), 1),
    "multinomial, NaN": lambda d: torch.multinomial(_t(d, [float("nan"), 2.0]), 1),
    "multinomial, no weight": lambda d: torch.multinomial(_t(d, [0.0, 0.0]), 1),
    "poisson": lambda d: torch.poisson(_t(d, [-1.0])),
    "_assert_async": lambda d: torch._assert_async(_t(d, [0.0])) or _x(d),
    "binary_cross_entropy": lambda d: F.binary_cross_entropy(_t(d, [2.0]), _t(d, [1.0])),
}


def _kind(f):
    try:
        f()
    except Exception as e:
        return type(e)
    return None


def _check_works():
    assert (_x("tpu") + 1).sum().item() == 78


@pytest.mark.parametrize("value", [5, -9])
@pytest.mark.parametrize("name", INDEXED)
def test_wrong_index_raises_when_read(name, value):
    f = INDEXED[name]
    want = _kind(lambda: f("cpu", value))
    assert want is not None
    bad = f("tpu", value)  # Strict: nothing is known yet
    with pytest.raises(want, match="read"):
        bad.cpu()
    _check_works()


@pytest.mark.parametrize("name", OTHERS)
def test_wrong_data_raises_when_read(name):
    f = OTHERS[name]
    want = _kind(lambda: f("cpu"))
    assert want is not None
    bad = f("tpu")
    with pytest.raises(want):
        bad.cpu()
    _check_works()


@pytest.mark.parametrize("name", [*INDEXED, *OTHERS])
def test_debug_raises_at_the_call(name):
    f = (lambda d: INDEXED[name](d, 5)) if name in INDEXED else OTHERS[name]
    want = _kind(lambda: f("cpu"))
    with torch.tpu.set_eager_mode(DEBUG), pytest.raises(want):
        f("tpu")
    _check_works()


def test_message_names_value_axis_and_size():
    with torch.tpu.set_eager_mode(DEBUG), pytest.raises(IndexError, match="index 7 is out of bounds for dimension 1 with size 4"):
        _x("tpu")[:, _t("tpu", [0, 7])]
    with (
        torch.tpu.set_eager_mode(DEBUG),
        pytest.raises(RuntimeError, match="index -2 is out of bounds for dimension 0 with size 3"),
    ):
        _x("tpu").gather(0, _t("tpu", [[0, -2]]))


def test_first_of_several_is_told_and_named():
    a, b = _x("tpu").take(_t("tpu", [99])), _x("tpu")[_t("tpu", [55])]
    with pytest.raises(IndexError, match=r"take: .* index 99"):
        b.cpu()
    a.cpu()
    _check_works()


def test_synchronize_tells():
    _x("tpu")[_t("tpu", [55])]
    with pytest.raises(IndexError, match="index 55"):
        torch.tpu.synchronize()
    torch.tpu.synchronize()


def test_large_index_tensors():
    x, i = torch.arange(10000.0, device="tpu"), torch.zeros(100_000, dtype=torch.long)
    assert (x[i.to("tpu")] == 0).all().item()
    i[77_777] = 10_000
    y = x[i.to("tpu")]
    with pytest.raises(IndexError, match="index 10000 is out of bounds for dimension 0 with size 10000"):
        y.cpu()


def test_checked_indices_are_not_trusted_once_written():
    # After some calls with the same indices the check is left out; writing the indices brings it back.
    x, i = _x("tpu"), _t("tpu", [0, 2])
    for _ in range(40):
        y = x[i]
        torch.tpu.synchronize()
    i[1] = 9
    y = x[i]
    with pytest.raises(IndexError, match="index 9"):
        y.cpu()
    i.fill_(1)
    for _ in range(40):
        y = x[i]
    assert y.tolist() == [[4, 5, 6, 7]] * 2
    i.copy_(torch.tensor([3, 0]))
    with pytest.raises(IndexError, match="index 3"):
        x[i].cpu()
    i.data = _t("tpu", [1, 7])
    with pytest.raises(IndexError, match="index 7"):
        x[i].cpu()


def test_indices_good_for_one_axis_are_not_for_a_shorter():
    long, short, i = torch.arange(8.0, device="tpu"), torch.arange(4.0, device="tpu"), _t("tpu", [5, -8])
    for _ in range(30):
        y = long[i]
    assert y.tolist() == [5, 0]
    for _ in range(3):
        with pytest.raises(IndexError):
            short[i].cpu()
    with pytest.raises(IndexError):  # negative ones are good for indexing only
        F.embedding(i, long[:, None]).cpu()


def test_debug_in_backward_and_after():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return a * 1

        @staticmethod
        def backward(ctx, g):
            assert torch.tpu.eager_mode is DEBUG
            return g.gather(0, torch.full((3, 4), 9, device="tpu"))

    w = _x("tpu").requires_grad_()
    with torch.tpu.set_eager_mode(DEBUG), pytest.raises(RuntimeError, match="gather: index 9"):
        Bad.apply(w).sum().backward()
    assert torch.tpu.eager_mode is STRICT


def test_mode_names_nesting_and_threads():
    E = torch.tpu.EagerMode
    assert E.DEFER_NEVER is E.STRICT and E.DEFER_NEVER_AND_LAUNCH_BLOCKING is E.DEBUG and E.DEFER_AND_FUSE is E.FUSE
    seen = []
    with torch.tpu.set_eager_mode(DEBUG):
        with torch.tpu.set_eager_mode(STRICT):
            assert torch.tpu.eager_mode is STRICT
        assert torch.tpu.eager_mode is DEBUG
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.eager_mode))
        thread.start()
        thread.join()
    assert seen == [STRICT] and torch.tpu.eager_mode is STRICT
    torch.tpu.eager_mode = DEBUG
    assert torch.tpu.eager_mode is DEBUG
    torch.tpu.eager_mode = STRICT
    torch.tpu.set_eager_mode(DEBUG)  # without `with`
    assert torch.tpu.eager_mode is DEBUG
    torch.tpu.set_eager_mode(STRICT)
    with pytest.raises(TypeError, match=r"expected one of EagerMode\.STRICT"):
        torch.tpu.set_eager_mode("debug")


def test_value_checks():
    x = _x("tpu")
    try:
        torch.tpu.set_value_checks(nan=True)
        (x * 0) / 0  # Strict: not looked at
        with torch.tpu.set_eager_mode(DEBUG):
            x / 0.5
            torch.full_like(x, float("inf"))
            with pytest.raises(RuntimeError, match=r"div\.Tensor gave a result with NaN"):
                (x * 0) / 0
        torch.tpu.set_value_checks(inf=True)
        with torch.tpu.set_eager_mode(DEBUG), pytest.raises(RuntimeError, match=r"exp.*infinity"):
            (x * 1000).exp()
    finally:
        torch.tpu.set_value_checks()


def test_training_step_is_the_same_in_debug():
    def run():
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(
            "tpu"
        )
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            x, y = torch.randn(5, 8, device="tpu"), torch.randint(0, 4, (5,), device="tpu")
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    plain = run()
    with torch.tpu.set_eager_mode(DEBUG):
        debug = run()
    for a, b in zip(plain, debug, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("variables", "code", "says"),
    [
        ({"TORCH_TPU_LAUNCH_BLOCKING": "1"}, "print(torch.tpu.eager_mode)", "EagerMode.DEBUG"),
        ({"TORCH_TPU_LAUNCH_BLOCKING": "0"}, "print(torch.tpu.eager_mode)", "EagerMode.STRICT"),
        ({"TORCH_TPU_DEFER_AND_FUSE": "1"}, "print(torch.tpu.eager_mode)", "EagerMode.FUSE"),
        ({"TORCH_TPU_CHECK_VALUES": "minus"}, "", "expected nan, inf or nan,inf, got minus"),
        (
            {"TORCH_TPU_LAUNCH_BLOCKING": "1", "TORCH_TPU_CHECK_VALUES": "nan"},
            "torch.zeros(2, device='tpu').log().mul(0)",
            "mul.Tensor gave a result with NaN",
        ),
    ],
)
def test_environment(variables, code, says):
    got = subprocess.run(
        [sys.executable, "-c", f"import torch\n{code}"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert says in got.stdout + got.stderr
