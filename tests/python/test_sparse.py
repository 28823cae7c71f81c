"""Sparse gradients of embeddings, and the optimizers that take them, beside CPU PyTorch."""

import copy

import pytest
import torch
from test_func import close, native  # noqa: F401
from torch import nn

DEV = "tpu"

IDS = torch.tensor([[1, 2], [3, 1]])
FLAT, OFFSETS = torch.tensor([1, 2, 3, 1, 1]), torch.tensor([0, 2, 2])


def example(device):
    return torch.sparse_coo_tensor(
        torch.tensor([[0, 1, 1], [2, 0, 0]], device=device), torch.tensor([1.0, 2.0, 3.0], device=device), (2, 3)
    )


@pytest.mark.parametrize(
    ("make", "args"),
    [
        (lambda: nn.Embedding(10, 4, sparse=True), (IDS,)),
        (lambda: nn.Embedding(10, 4, sparse=True, padding_idx=2), (IDS,)),
        (lambda: nn.EmbeddingBag(10, 4, sparse=True, mode="sum"), (IDS,)),
        (lambda: nn.EmbeddingBag(10, 4, sparse=True), (FLAT, OFFSETS)),
        (lambda: nn.EmbeddingBag(10, 4, sparse=True, mode="sum", padding_idx=3), (FLAT, OFFSETS)),
        (lambda: nn.EmbeddingBag(10, 4, mode="max"), (FLAT, OFFSETS)),
    ],
)
def test_gradients_of_embeddings(make, args):
    m = make()
    mine = copy.deepcopy(m).to(DEV)
    for _ in range(2):  # the second is added to the first
        m(*args).square().sum().backward()
        mine(*(a.to(DEV) for a in args)).square().sum().backward()
    assert mine.weight.grad.layout == m.weight.grad.layout
    close(mine.weight.grad.to_dense(), m.weight.grad.to_dense())
    if m.weight.grad.is_sparse:
        a, b = mine.weight.grad.coalesce(), m.weight.grad.coalesce()
        close([a.indices(), a.values()], [b.indices(), b.values()])


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
        lambda p: torch.optim.SparseAdam(p, lr=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ],
)
def test_optimizers(optimizer):
    m = nn.Embedding(10, 4, sparse=True)
    mine = copy.deepcopy(m).to(DEV)
    for module in (m, mine):
        steps = optimizer(module.parameters())
        for i in range(4):
            module(IDS.to(module.weight.device)).square().sum().backward()
            if i % 2:
                steps.step()
                steps.zero_grad(set_to_none=i == 3)
    close(mine.weight, m.weight)


def test_what_a_sparse_tensor_does():
    def run(device):
        s = example(device)
        c = s.coalesce()
        assert (s.is_sparse, s.is_coalesced(), c.is_coalesced(), s._nnz(), c._nnz()) == (True, False, True, 3, 2)
        dense = torch.arange(6.0, device=device).view(2, 3)
        z = s.clone()
        z.zero_()
        sums = [s + s, s - s * 2, s / 4, -c, dense + s, dense.clone().sub_(s, alpha=2), dense.sparse_mask(c), z]
        return [c.indices(), c.values(), s.to_dense(), *(t.to_dense() if t.is_sparse else t for t in sums)]

    close(run(DEV), run("cpu"))


def test_moves_and_shows():
    s = example(DEV)
    assert torch.equal(s.cpu().to_dense(), example("cpu").to_dense())
    assert torch.equal(example("cpu").to(DEV).to_dense().cpu(), example("cpu").to_dense())
    assert s.double().dtype == torch.float64 and "size=(2, 3), nnz=3" in repr(s)
    with pytest.raises(RuntimeError, match="not supported"):
        s + torch.ones(2, 3, device=DEV)
