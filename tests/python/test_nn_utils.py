"""torch.nn.utils beside CPU PyTorch: clipping, parametrizations, pruning, fusion, packing; and what random modules draw."""

import copy

import pytest
import torch
from test_func import close, native, net, pairs, same  # noqa: F401
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils import rnn as packing

DEV = "tpu"


def with_grads(m, seed=1):
    torch.manual_seed(seed)
    for p in m.parameters():
        p.grad = torch.randn(p.shape).to(p.device)
    return m


def grads(m):
    return [p.grad for p in m.parameters()]


# ------------------------------------------------------------------------------------------------------------------- clipping


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("p", [2.0, 1.0, 3.0, float("inf")])
def test_clip_grad_norm(p, foreach):
    m, mine = pairs(net())
    want = utils.clip_grad_norm_(with_grads(m).parameters(), 0.5, p, foreach=foreach)
    got = utils.clip_grad_norm_(with_grads(mine).parameters(), 0.5, p, foreach=foreach)
    close([got, *grads(mine)], [want, *grads(m)])
    assert got.shape == ()


@pytest.mark.parametrize("foreach", [None, False, True])
def test_clip_refuses_what_is_not_finite(foreach):
    m = with_grads(net().to(DEV))
    next(m.parameters()).grad[0] = float("nan")
    with pytest.raises(RuntimeError, match="non-finite"):
        utils.clip_grad_norm_(m.parameters(), 1.0, error_if_nonfinite=True, foreach=foreach)
    assert utils.clip_grad_norm_(m.parameters(), 1.0, foreach=foreach).isnan().item()


@pytest.mark.parametrize("foreach", [None, False, True])
def test_clip_grad_value(foreach):
    m, mine = pairs(net())
    utils.clip_grad_value_(with_grads(m).parameters(), 0.3, foreach=foreach)
    utils.clip_grad_value_(with_grads(mine).parameters(), 0.3, foreach=foreach)
    close(grads(mine), grads(m))
    close(utils.get_total_norm(grads(mine)), utils.get_total_norm(grads(m)))


def test_clip_of_mixed_dtypes_and_none():
    def run(device):
        ps = [nn.Parameter(torch.ones(3, device=device)), nn.Parameter(torch.ones(2, device=device, dtype=torch.bfloat16))]
        ps += [nn.Parameter(torch.ones(2, device=device))]
        for q in ps[:2]:
            q.grad = torch.arange(q.numel(), device=device).to(q.dtype)
        return utils.clip_grad_norm_(ps, 0.1), ps[0].grad, ps[1].grad

    close(run(DEV), run("cpu"), 1e-2)


# ------------------------------------------------------------------------------------------------------------ parametrizations


def trained(m, x):
    """Output, gradients and what a step does to the parameters and buffers; twice."""
    found = []
    for _ in range(2):
        y = m(x)
        m.zero_grad()
        y.square().mean().backward()
        found += [y, *grads(m)]
        with torch.no_grad():
            for p in m.parameters():
                p -= 0.1 * p.grad
    return [*found, *m.state_dict().values()]


CONV = (lambda: nn.Conv2d(3, 4, 3), (2, 3, 6, 6))
LINEAR = (lambda: nn.Linear(5, 4), (3, 5))


@pytest.mark.parametrize(
    ("wrap", "made"),
    [
        (parametrizations.weight_norm, LINEAR),
        (parametrizations.weight_norm, CONV),
        (lambda m: parametrizations.weight_norm(m, dim=None), LINEAR),
        (parametrizations.spectral_norm, LINEAR),
        (lambda m: parametrizations.spectral_norm(m, n_power_iterations=3), CONV),
        (parametrizations.orthogonal, LINEAR),
        (lambda m: parametrizations.orthogonal(m, orthogonal_map="cayley"), (lambda: nn.Linear(4, 4), (3, 4))),
        (lambda m: parametrizations.orthogonal(m, orthogonal_map="householder"), LINEAR),
        (lambda m: parametrizations.orthogonal(m, orthogonal_map="matrix_exp"), LINEAR),
        (utils.weight_norm, LINEAR),
        (utils.spectral_norm, CONV),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_parametrizations(wrap, made):
    make, size = made
    torch.manual_seed(5)
    m = make()
    mine = copy.deepcopy(m)
    torch.manual_seed(6)
    m = wrap(m)
    torch.manual_seed(6)
    mine = wrap(mine).to(DEV)
    x = torch.randn(size)
    close(trained(mine, x.to(DEV)), trained(m, x), 1e-4)
    m.eval(), mine.eval()
    close(mine(x.to(DEV)), m(x), 1e-4)


def test_parametrized_on_the_device():
    """What is wrapped after the move begins with the same weight, and removing gives it back."""
    for wrap in (parametrizations.weight_norm, parametrizations.orthogonal, parametrizations.spectral_norm):
        m = nn.Linear(4, 4).to(DEV)
        wrap(m)
        x = torch.randn(2, 4, device=DEV)
        with parametrize.cached():
            y = m.eval()(x)
        parametrize.remove_parametrizations(m, "weight")
        torch.testing.assert_close(m(x), y)


def test_parametrizations_of_the_users_own():
    class Symmetric(nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).mT

        def right_inverse(self, x):
            return x.triu()

    m, mine = pairs(nn.Linear(4, 4))
    for layer in (m, mine):
        parametrize.register_parametrization(layer, "weight", Symmetric())
    x = torch.randn(3, 4)
    close(trained(mine, x.to(DEV)), trained(m, x))


# --------------------------------------------------------------------------------------------------------------------- pruning


@pytest.mark.parametrize(
    "cut",
    [
        lambda m: prune.l1_unstructured(m[0], "weight", 0.4),
        lambda m: prune.ln_structured(m[0], "weight", 0.5, n=2, dim=0),
        lambda m: prune.ln_structured(m[0], "weight", 2, n=1, dim=1),
        lambda m: prune.custom_from_mask(m[0], "bias", torch.arange(8, device=m[0].bias.device) % 2),
        lambda m: prune.identity(m[0], "weight"),
        lambda m: prune.global_unstructured([(m[0], "weight"), (m[3], "weight")], prune.L1Unstructured, amount=0.3),
    ],
)
def test_pruning(cut):
    m, mine = pairs(net())
    x = torch.randn(3, 6)
    for one, data in ((m, x), (mine, x.to(DEV))):
        cut(one)
        cut(one)
        one(data).sum().backward()
    assert sorted(mine.state_dict()) == sorted(m.state_dict())
    close([mine.state_dict()[k] for k in m.state_dict()], list(m.state_dict().values()))
    close(grads(mine), grads(m))
    for name in ("weight", "bias"):
        if hasattr(m[0], name + "_mask"):
            prune.remove(m[0], name), prune.remove(mine[0], name)
    close(mine(x.to(DEV)), m(x))


def test_random_pruning():
    m = net().to(DEV)
    prune.random_unstructured(m[0], "weight", 0.25)
    prune.random_structured(m[3], "weight", 1, dim=0)
    assert int((m[0].weight_mask == 0).sum()) == 12
    assert int((m[3].weight_mask == 0).all(1).sum()) == 1


# ---------------------------------------------------------------------------------------------------------- fusion and vectors


def test_fusion():
    torch.manual_seed(2)
    conv, bn = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
    bn(torch.randn(5, 4, 3, 3) * 2 + 1)
    both = nn.ModuleList([conv, bn]).eval()
    x = torch.randn(2, 3, 5, 5)
    mine = copy.deepcopy(both).to(DEV)
    fused = utils.fuse_conv_bn_eval(mine[0], mine[1])
    close(fused(x.to(DEV)), bn(conv(x)), 1e-4)
    lin, bn = nn.Linear(3, 4).eval(), nn.BatchNorm1d(4).eval()
    fused = utils.fuse_linear_bn_eval(copy.deepcopy(lin).to(DEV), copy.deepcopy(bn).to(DEV))
    x = torch.randn(6, 3)
    close(fused(x.to(DEV)), bn(lin(x)), 1e-4)


def test_vectors_of_parameters():
    m, mine = pairs(net())
    flat = utils.parameters_to_vector(m.parameters())
    close(utils.parameters_to_vector(mine.parameters()), flat)
    utils.vector_to_parameters(flat.detach() * 2, m.parameters())
    utils.vector_to_parameters(flat.detach().to(DEV) * 2, mine.parameters())
    x = torch.randn(2, 6)
    close(mine(x.to(DEV)), m(x))
    skipped = utils.skip_init(nn.Linear, 3, 4, device=DEV)
    assert skipped.weight.device.type == DEV


# --------------------------------------------------------------------------------------------------------------------- packing


@pytest.mark.parametrize("first", [False, True])
def test_padding_and_packing(first):
    torch.manual_seed(1)
    data = [torch.randn(n, 3) for n in (2, 5, 1, 3)]
    for side in ("right", "left"):
        same(lambda *d, side=side: packing.pad_sequence(list(d), first, padding_value=-1.0, padding_side=side), *data)
    padded = packing.pad_sequence(data, first)

    def run(x):
        x = x.detach().requires_grad_()
        p = packing.pack_padded_sequence(x, [2, 5, 1, 3], first, enforce_sorted=False)
        y, n = packing.pad_packed_sequence(p._replace(data=p.data * 2), first, padding_value=7.0, total_length=6)
        y.square().sum().backward()
        assert n.tolist() == [2, 5, 1, 3]
        return p.data, p.sorted_indices, p.unsorted_indices, y, x.grad, packing.unpad_sequence(y, n, first)

    same(run, padded)
    p = packing.pack_sequence([d.to(DEV) for d in data], enforce_sorted=False)
    close([*packing.unpack_sequence(p)], data)
    moved = packing.pack_sequence(data, enforce_sorted=False).to(DEV)
    close([moved.data, moved.sorted_indices], [p.data.cpu(), p.sorted_indices.cpu()])


# -------------------------------------------------------------------------------------------------------------- random modules


@pytest.mark.parametrize(
    ("module", "size", "whole"),
    [
        (nn.Dropout(0.3), (100, 200), 0),
        (nn.Dropout1d(0.3), (50, 400, 3), 1),
        (nn.Dropout2d(0.3), (50, 400, 2, 3), 2),
        (nn.Dropout3d(0.3), (50, 400, 2, 2, 2), 3),
    ],
)
def test_dropout_drops(module, size, whole):
    """A share p of entries (of channels) is 0, the rest is x / (1 - p); the gradient has the same mask."""
    x = torch.ones(size, device=DEV, requires_grad=True)
    y = module.to(DEV)(x)
    y.sum().backward()
    y, g = y.detach().cpu(), x.grad.cpu()
    assert torch.equal(y, g)
    rows = y.flatten(-whole) if whole else y.unsqueeze(-1)
    assert torch.equal(rows.amin(-1), rows.amax(-1))
    assert abs((rows[..., 0] == 0).float().mean().item() - 0.3) < 0.015
    assert torch.isclose(rows[rows != 0], torch.tensor(1 / 0.7)).all()
    assert torch.equal(module.eval()(x).cpu(), x.detach().cpu())


@pytest.mark.parametrize("module", [nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2)])
def test_alpha_dropout_keeps_moments(module):
    torch.manual_seed(0)
    x = torch.randn(200, 500, 2, device=DEV, requires_grad=True)
    y = module(x)
    assert abs(y.mean().item()) < 0.02 and abs(y.std().item() - 1) < 0.02
    y.sum().backward()
    assert x.grad.cpu().unique().numel() == 2


@pytest.mark.parametrize("inplace", [False, True])
def test_rrelu_draws_slopes(inplace):
    torch.manual_seed(0)
    x = torch.randn(300, 400, device=DEV, requires_grad=True)
    y = nn.RReLU(0.1, 0.4, inplace=inplace)(x * 1)
    y.sum().backward()
    x, y, g = x.detach().cpu(), y.detach().cpu(), x.grad.cpu()
    down = x <= 0
    torch.testing.assert_close(y, x * g)
    assert (g[~down] == 1).all() and 0.1 <= g[down].min() < 0.1001 and 0.3999 < g[down].max() < 0.4
    assert abs(g[down].mean().item() - 0.25) < 1e-3 and abs(g[down].std().item() - 0.3 / 12**0.5) < 1e-3


def test_dropout_inside_modules():
    """Without dropout these modules are in modulecase.py; here it changes results, the same way from the same seed."""
    for m, args in (
        (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True), 1),
        (nn.MultiheadAttention(8, 2, dropout=0.5), 3),
        (nn.LSTM(8, 4, 2, dropout=0.5), 1),
    ):
        m = m.to(DEV)
        x = torch.randn(3, 5, 8, device=DEV)
        runs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            y = m(*[x] * args)
            runs.append((y[0] if isinstance(y, tuple) else y).detach().cpu())
        assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
