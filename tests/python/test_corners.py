"""Numbers and types that do not fit, calls with nothing in them, bytes seen as bools: told in the words of the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pair import same

Call = Callable[[str], Any]


def refused_alike(call: Call) -> None:
    """``call(device)`` raises on the device what it raises on the CPU: kind and first line."""
    seen = []
    for device in ("cpu", "tpu"):
        with pytest.raises(Exception) as e:
            call(device)
        seen.append((type(e.value), str(e.value).split("\n")[0]))
    assert seen[0] == seen[1]


def ones(device: str, dtype: torch.dtype = torch.float32, *sizes: int) -> torch.Tensor:
    return torch.ones(sizes or (2,), device=device, dtype=dtype)


@pytest.mark.parametrize("name", ["add_", "sub_", "mul_"])
@pytest.mark.parametrize(
    ("to", "other"),
    [
        (torch.int8, torch.float32),
        (torch.uint8, torch.bfloat16),
        (torch.int64, torch.complex64),
        (torch.float32, torch.complex64),
        (torch.float16, torch.complex128),
    ],
)
def test_in_place_arithmetic_narrows_no_type(name: str, to: torch.dtype, other: torch.dtype) -> None:
    refused_alike(lambda d: getattr(ones(d, to), name)(ones(d, other)))


@pytest.mark.parametrize("other", [torch.uint8, torch.int64, torch.float32])
def test_no_bool_is_multiplied_in_place_by_another_type(other: torch.dtype) -> None:
    refused_alike(lambda d: ones(d, torch.bool).mul_(ones(d, other)))
    refused_alike(lambda d: ones(d, torch.bool).mul_(3))
    refused_alike(lambda d: ones(d, torch.int32).mul_(2.5))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool])
def test_no_result_of_another_kind_is_written_into_integers(dtype: torch.dtype) -> None:
    refused_alike(lambda d: ones(d, dtype).logit_())
    refused_alike(lambda d: torch.sin(ones(d), out=ones(d, dtype)))
    x = torch.ones(4, dtype=torch.int32, device="tpu")
    assert x.sqrt().dtype == torch.float32 and x.add_(2).tolist() == [3] * 4 and x.floor_divide_(2).tolist() == [1] * 4


def test_any_and_all_write_bools() -> None:
    refused_alike(lambda d: torch.any(ones(d), 0, out=torch.ones((), device=d)))
    refused_alike(lambda d: torch.all(ones(d), 0, out=torch.ones((), device=d)))


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        (torch.uint8, 256),
        (torch.uint8, float("nan")),
        (torch.int8, -129),
        (torch.int32, 2**31),
        (torch.float32, 1e40),
        (torch.float16, 1e6),
        (torch.float32, 1j),
        (torch.bfloat16, 1e39),
    ],
)
def test_a_number_that_overflows_is_not_stored(dtype: torch.dtype, number: complex) -> None:
    refused_alike(lambda d: ones(d, dtype).fill_(number))
    refused_alike(lambda d: torch.full((2,), number, dtype=dtype, device=d))
    if not isinstance(number, complex):
        refused_alike(lambda d: ones(d, dtype).index_fill_(0, torch.tensor([0], device=d), number))
    refused_alike(lambda d: ones(d, dtype).scatter_(0, torch.tensor([0], device=d), number))


def test_numbers_that_fit_are_stored_whatever_came_before() -> None:
    x = torch.zeros(3, dtype=torch.uint8, device="tpu")
    for number in (-1, 7, 255, True, 2.9):
        assert x.fill_(number).cpu().equal(torch.zeros(3, dtype=torch.uint8).fill_(number))
        with pytest.raises(RuntimeError, match="without overflow"):
            x.fill_(300)
    y = torch.full((2,), -float("inf"), device="tpu")
    assert y.cpu().equal(torch.full((2,), -float("inf")))


def test_a_0d_cpu_tensor_is_a_number_to_masked_fill() -> None:
    x, mask = torch.arange(4.0), torch.tensor([True, False, True, False])
    three = torch.tensor(3.5)
    same(lambda a, m: (a.masked_fill(m, three), (a * 1).masked_fill_(m, three)), x, mask)


def test_the_largest_of_nothing_is_refused() -> None:
    refused_alike(lambda d: torch.zeros(0, 3, device=d).max())
    refused_alike(lambda d: torch.zeros(0, device=d).min())
    same(lambda x: x.max(1), torch.zeros(0, 3))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_spread_of_integers_is_refused(dtype: torch.dtype) -> None:
    refused_alike(lambda d: ones(d, dtype).std())
    refused_alike(lambda d: ones(d, dtype).var(0))
    refused_alike(lambda d: torch.var_mean(ones(d, dtype)))


def test_integers_are_not_divided_by_addcdiv() -> None:
    refused_alike(lambda d: torch.addcdiv(ones(d), ones(d, torch.int64), ones(d, torch.int64)))
    same(lambda x, y: torch.addcdiv(x, y, x), torch.ones(2), torch.tensor([2, 3]))


def test_bools_are_not_rectified() -> None:
    refused_alike(lambda d: ones(d, torch.bool).relu())


def test_targets_are_long_or_byte() -> None:
    refused_alike(lambda d: F.cross_entropy(ones(d, torch.float32, 2, 3), ones(d, torch.int32)))
    same(lambda x, t: F.cross_entropy(x, t), torch.randn(2, 3), torch.tensor([2, 0], dtype=torch.uint8))


def test_index_select_takes_a_vector() -> None:
    refused_alike(lambda d: ones(d, torch.float32, 3, 2).index_select(0, torch.zeros(2, 2, dtype=torch.int64, device=d)))


def test_sizes_that_do_not_fit_a_copy_are_named() -> None:
    refused_alike(lambda d: ones(d, torch.float32, 3).copy_(ones(d)))
    refused_alike(lambda d: ones(d, torch.float32, 1).copy_(ones(d, torch.float32, 3)))


def test_convolution_mixes_no_types() -> None:
    x, w = ones("tpu", torch.float32, 1, 1, 3, 3), ones("tpu", torch.float16, 1, 1, 2, 2)
    with pytest.raises(RuntimeError, match=r"f32 .* f16"):
        F.conv2d(x, w)


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss, F.binary_cross_entropy_with_logits])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_of_nothing_has_a_gradient(loss: Callable[..., torch.Tensor], reduction: str) -> None:
    same(lambda a, b: loss(a, b.detach(), reduction=reduction), torch.zeros(0, 3), torch.zeros(0, 3))


def test_no_batch_is_upsampled() -> None:
    same(lambda x: F.interpolate(x, scale_factor=2), torch.zeros(0, 3, 2, 2))


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_a_write_through_a_bool_view_leaves_the_bytes_beside_it(offset: int) -> None:
    for make in (torch.Tensor.logical_not_, lambda v: v.fill_(True), lambda v: v.copy_(v.flip(0))):
        seen = []
        for device in ("cpu", "tpu"):
            x = torch.arange(16, dtype=torch.uint8, device=device).fmod(6)
            x[offset : offset + 2] = torch.tensor([1, 0], dtype=torch.uint8, device=device)
            make(x.view(torch.bool)[offset : offset + 2])
            seen.append(x.tolist())
        assert seen[0] == seen[1]
