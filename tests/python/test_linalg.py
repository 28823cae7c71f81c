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


# ---------------------------------------------------------------------------------------- eigenvalues and singular values

ALL = [torch.float32, torch.float64, torch.complex64, torch.complex128]


def _unit(x):
    """How far the columns of x are from orthonormal, in epsilons."""
    eye = torch.eye(x.shape[-1], dtype=x.dtype)
    return ((x.mH @ x - eye).abs().max() / torch.finfo(x.dtype).eps).item()


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 3, 6, 6), (17, 17)])
def test_eigh(shape, dtype):
    a = _some(*shape, dtype=dtype)
    h = a + a.mH
    size, eps = LA.eigvalsh(h).abs().max(), torch.finfo(dtype).eps
    for uplo, half in (("L", h.tril()), ("U", h.triu())):  # the other triangle is not looked at
        w, v = (t.cpu() for t in LA.eigh(half.to("tpu"), UPLO=uplo))
        assert (w - LA.eigvalsh(h)).abs().max() < 100 * eps * size
        assert (h @ v - v * w.unsqueeze(-2)).abs().max() < 200 * eps * size
        assert _unit(v) < 200
    assert torch.equal(LA.eigvalsh(h.to("tpu")).cpu(), w)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (7, 3), (3, 7), (2, 3, 6, 5), (20, 12)])
def test_svd(shape, dtype):
    a = _some(*shape, dtype=dtype)
    s0, eps, k = LA.svdvals(a), torch.finfo(dtype).eps, min(shape[-2:])
    for full in (False, True):
        u, s, vh = (t.cpu() for t in LA.svd(a.to("tpu"), full_matrices=full))
        assert u.shape[-1] == (shape[-2] if full else k) and vh.shape[-2] == (shape[-1] if full else k)
        assert (s - s0).abs().max() < 100 * eps * s0.max()
        assert ((u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :] - a).abs().max() < 100 * eps * s0.max()
        assert _unit(u) < 100 and _unit(vh.mH) < 100
    torch.testing.assert_close(LA.svdvals(a.to("tpu")).cpu(), s0, rtol=100 * eps, atol=100 * eps * s0.max().item())


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(4, 4),
        lambda: torch.ones(5, 3),
        lambda: torch.eye(4),
        lambda: torch.diag(torch.tensor([1.0, 0.0, 2.0, 0.0])),
        lambda: torch.randn(6, 2) @ torch.randn(2, 6),
        lambda: torch.randn(5, 5) * 1e30,
        lambda: torch.randn(5, 5) * 1e-30,
        lambda: torch.triu(torch.ones(6, 6)),
    ],
)
def test_svd_of_singular_and_extreme_matrices(make):
    a = make()
    u, s, vh = (t.cpu() for t in LA.svd(a.to("tpu")))
    k, size = min(a.shape), max(s.max().item(), 1e-38)
    assert ((u[:, :k] * s) @ vh[:k] - a).abs().max() < 1e-5 * size
    assert _unit(u) < 100 and _unit(vh.mH) < 100


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (2, 3, 5, 5), (12, 12)])
def test_eig(shape, dtype):
    a = _some(*shape, dtype=dtype)
    w0, eps = LA.eigvals(a), torch.finfo(dtype).eps
    w, v = (t.cpu() for t in LA.eig(a.to("tpu")))
    far = (w.unsqueeze(-1) - w0.unsqueeze(-2)).abs()  # in any order
    assert max(far.amin(-1).max(), far.amin(-2).max()) < 1000 * eps * w0.abs().max()
    assert (a.to(w.dtype) @ v - v * w.unsqueeze(-2)).abs().max() < 1000 * eps * w0.abs().max()
    torch.testing.assert_close(v.norm(dim=-2), torch.ones(shape[:-1], dtype=w.real.dtype), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(LA.eigvals(a.to("tpu")).cpu(), w, rtol=1e3 * eps, atol=1e3 * eps)


def test_eig_of_special_matrices():
    cycle = torch.eye(4)[[1, 2, 3, 0]]  # plain shifts leave it as it is
    w = LA.eigvals(cycle.to("tpu")).cpu()
    assert sorted((round(z.real, 4), round(z.imag, 4)) for z in w.tolist()) == [(-1, 0), (0, -1), (0, 1), (1, 0)]
    real = LA.eigvals(torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="tpu")).cpu()
    assert (real.imag == 0).all()
    assert LA.eigvalsh(torch.full((3, 3), float("nan"), device="tpu")).isnan().all()  # ends all the same


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_values_and_vectors(dtype):
    a, b = _some(4, 4, dtype=dtype), _some(5, 3, dtype=dtype)
    same(lambda x: LA.eigvalsh(x + x.mH), a)
    same(lambda x: LA.eigh(x + x.mH)[1].abs(), a)
    same(lambda x: LA.svdvals(x), b)
    same(lambda x: (lambda u, s, vh: (u @ vh, s))(*LA.svd(x, full_matrices=False)), b)
    same(lambda x: LA.eigvals(x).abs().sort()[0], a)
    same(LA.pinv, b)
    same(lambda x: LA.matrix_norm(x, "nuc"), b)
    same(lambda x: LA.matrix_norm(x, 2), b)


def test_what_is_made_of_them():
    a = torch.randn(6, 4, dtype=torch.float64)
    low = a[:, :2] @ a[:2].clone()
    torch.tpu.reset_fallbacks()
    same(LA.matrix_rank, low)
    same(LA.pinv, low)
    same(LA.cond, a)
    same(lambda x: LA.matrix_rank(x @ x.mT, hermitian=True), low)
    same(lambda x: LA.norm(x, 2), a)
    if hasattr(torch.ops.aten, "cholesky"):  # to PyTorch 2.13
        same(torch.cholesky, a.mT @ a)
        with pytest.raises(LA.LinAlgError):
            torch.cholesky(-torch.eye(3, device="tpu"))
    assert torch.tpu.fallbacks() == {}


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss", None])
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (2, 5, 5)])
def test_lstsq(shape, driver):
    a, b = torch.randn(*shape, dtype=torch.float64), torch.randn(*shape[:-1], 2, dtype=torch.float64)
    want, got = LA.lstsq(a, b, driver=driver), LA.lstsq(a.to("tpu"), b.to("tpu"), driver=driver)
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=1e-8, atol=1e-9)
    same(lambda x, y: LA.lstsq(x, y, driver=driver).solution, a, b)


def test_lstsq_without_full_rank():
    a = torch.randn(6, 2, dtype=torch.float64) @ torch.randn(2, 4, dtype=torch.float64)
    b = torch.randn(6, dtype=torch.float64)
    want, got = LA.lstsq(a, b.unsqueeze(1), driver="gelsd"), LA.lstsq(a.to("tpu"), b.unsqueeze(1).to("tpu"), driver="gelsd")
    torch.testing.assert_close(got.solution.cpu(), want.solution)
    assert got.rank.item() == 2 and got.residuals.numel() == want.residuals.numel() == 0


@pytest.mark.parametrize(
    "rows, columns, inner",
    [
        (512, 384, 512),
        (256, 64, 600),
        (1024, 1000, 512),
        (512, 512, 512),
        (520, 64, 512),
        (1024, 256, 32),
        (256, 10, 5),
        (256, 3, 1),
    ],
)
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_product_with_a_transposed_left_side(rows: int, columns: int, inner: int, how: str) -> None:
    """A weight's gradient gᵀ·x: simulated devices compute some shapes as (xᵀ·g)ᵀ, and lay g out in rows for others."""
    g, x, c = (torch.randn(n, m) for n, m in ((inner, rows), (inner, columns), (rows, columns)))

    def products(g: torch.Tensor, x: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return g.t() @ x, torch.addmm(c, g.t(), x, beta=0.5, alpha=2), (g.t() @ x).t()

    run = products if how == "eager" else torch.compile(products, backend="tpu", dynamic=False)
    for got, expected in zip(run(g.to("tpu"), x.to("tpu"), c.to("tpu")), products(g, x, c), strict=True):
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-3)
        assert got.stride() == expected.stride()


def test_a_tpu_multiplies_64_bit_integers_by_elements(tmp_path, monkeypatch):
    """It has no such product: libtpu refuses a dot of them. Here XLA:CPU runs what a TPU would."""
    import torch_tpu
    from torch_tpu import export

    class Products(torch.nn.Module):
        def forward(self, a, b, v):
            batches = torch.einsum("bmk,bkn->bmn", a[None] * v[:2, None, None], b[None].expand(2, -1, -1))
            return a @ b, a @ v, torch.dot(v, v), batches, torch.addbmm(a @ b, batches, batches)

    args = [torch.randint(-(2**62), 2**62, size) for size in ((4, 6), (6, 4), (6,))]
    real = torch_tpu._C.graph_export
    monkeypatch.setattr(torch_tpu._C, "graph_export", lambda op, ins, writes, tpu: real(op, ins, writes, True))
    export.save(torch.export.export(Products(), tuple(args)), tmp_path / "products")
    assert "dot_general" not in (tmp_path / "products" / "model.tpu.mlir").read_text()
    got = export.load(tmp_path / "products")(*[x.to("tpu") for x in args])
    for w, g in zip(Products()(*args), got, strict=True):
        assert torch.equal(g.cpu(), w)
