"""Factorizations, solves, Fourier transforms and recurrent cells against the CPU."""

import copy

import pytest
import torch
from pair import same, tensors
from torch import nn

LA = torch.linalg
DTYPES = [torch.float64, torch.complex128]


def _some(*shape, dtype):
    return torch.randn(*shape, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_determinants(dtype):
    for a in (_some(5, 5, dtype=dtype), _some(2, 3, 4, 4, dtype=dtype)):
        same(LA.det, a)
        same(lambda x: LA.slogdet(x)[1], a)
    same(lambda x: LA.det(x.t()), _some(5, 5, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_solves(dtype):
    a, b = _some(5, 5, dtype=dtype), _some(2, 3, 4, 4, dtype=dtype)
    same(LA.inv, b)
    same(LA.solve, a, _some(5, 2, dtype=dtype))
    same(LA.solve, a, _some(5, dtype=dtype))
    same(LA.solve, b, _some(4, 2, dtype=dtype))
    same(LA.solve, a, _some(3, 5, 2, dtype=dtype))
    same(LA.solve, b, _some(2, 3, 4, dtype=dtype))
    same(lambda x, y: LA.solve(x, y, left=False), a, _some(2, 5, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 5), (6, 3), (2, 3, 4, 4)])
def test_lu(shape, dtype):
    same(lambda x: LA.lu_factor(x), _some(*shape, dtype=dtype))
    same(lambda x: LA.lu(x), _some(*shape, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky(dtype):
    a = _some(3, 4, 4, dtype=dtype)
    a = a @ a.mH + torch.eye(4, dtype=dtype)
    same(LA.cholesky, a)
    same(lambda x: LA.cholesky(x, upper=True), a)
    factor = LA.cholesky(a)
    same(torch.cholesky_solve, _some(3, 4, 2, dtype=dtype), factor)
    same(torch.cholesky_inverse, factor)


def test_cholesky_names_the_minor():
    a = torch.eye(4)
    a[2, 2] = -3
    assert LA.cholesky_ex(a.to("tpu")).info.item() == 3
    with pytest.raises(LA.LinAlgError, match="leading minor of order 3"):
        LA.cholesky(a.to("tpu"))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_triangular(upper, left):
    a, b = torch.randn(5, 5, dtype=torch.float64), torch.randn(5, 5, dtype=torch.float64)
    same(lambda x, y: LA.solve_triangular(x, y, upper=upper, left=left), a.triu() if upper else a.tril(), b)
    same(lambda x, y: LA.solve_triangular(x, y, upper=upper, left=left, unitriangular=True), a.triu() if upper else a.tril(), b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_qr(dtype):
    tall, wide = _some(6, 3, dtype=dtype), _some(2, 3, 5, dtype=dtype)
    same(LA.qr, tall)
    with torch.no_grad():
        for mode in ("reduced", "complete", "r"):
            same(lambda x, m=mode: LA.qr(x.detach(), m), tall)
            same(lambda x, m=mode: LA.qr(x.detach(), m), wide)
    same(lambda x: torch.geqrf(x.detach()), tall)


def test_matrix_exp():
    a = torch.randn(5, 5, dtype=torch.float64)
    same(lambda x: LA.matrix_exp(x.detach()), torch.stack([a * 0, a * 0.01, a, a * 5]))


FFT = torch.fft


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("n", [None, 6, 9])
def test_fourier(n, norm):
    z, x = torch.randn(3, 8, dtype=torch.complex64), torch.randn(3, 8)
    same(lambda z: FFT.fft(z, n, 0, norm), z)
    same(lambda z: FFT.ifft(z, n, -1, norm), z)
    same(lambda z: FFT.irfft(z, n, -1, norm), z)
    same(lambda x: FFT.rfft(x, n, -1, norm), x)
    same(lambda x: FFT.fft(x, n, -1, norm), x)


def test_fourier_of_many_axes():
    z, x = torch.randn(3, 4, 5, 6, dtype=torch.complex128), torch.randn(3, 4, 5, 6, dtype=torch.float64)
    same(FFT.fftn, z)
    same(FFT.ifft2, z)
    same(FFT.rfftn, x)
    same(lambda z: FFT.irfftn(z, dim=(0, 2)), z)
    same(lambda x: torch.stft(x, 64, 16, window=torch.hann_window(64).to(x), return_complex=True), torch.randn(2, 400))


def _module(m):
    there = copy.deepcopy(m).to("tpu")
    return lambda x: list(tensors((there if x.device.type == "tpu" else m)(x)))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent(kind, bias):
    same(_module(kind(5, 6, 2, bias=bias, bidirectional=True)), torch.randn(4, 3, 5))


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_cells(kind):
    same(_module(kind(5, 6)), torch.randn(3, 5))
