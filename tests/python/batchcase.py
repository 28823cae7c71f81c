# size-waiver: one list of everything that is done with a batch, read as a whole
"""Batches of varying length, what is done with them, and how that is compared with the CPU."""

import copy
import os
import random

import torch
import torch.nn.functional as F

FUSE, STRICT, DEBUG = torch.tpu.EagerMode.FUSE, torch.tpu.EagerMode.STRICT, torch.tpu.EagerMode.DEBUG
FIRST = (20, 24, 28)  # these have programs of their own
ALL = os.environ.get("TORCH_TPU_TEST_BATCHES") == "all"  # minutes; else a part of them
LENGTHS = (24, 21, 17, 30, 32, 45, 16, 2, 1) if ALL else (21, 32, 1)
FEW = (21, 31, 32, 40) if ALL else (21, 30)


def programs() -> int:
    return torch.tpu.compile_stats()["programs"]


def step_calls():
    """What lies between two batches: floats that come sooner one after another are a model's weights."""
    t = torch.zeros(1, device="tpu")
    for _ in range(9):
        t.add_(1)


class Batch:
    """x [3, n, 4] and v [3, n] of floats, with NaN past their ends; ids [3, n] of 0..8; mask [3, n] and square [3, 1, n, n] of
    booleans, each with True in every row; n."""

    def __init__(self, n, seed=0, device="cpu"):
        g = torch.Generator().manual_seed(seed * 1000 + n)
        self.n, self.device = n, device
        self.x = (torch.rand(3, n, 4, generator=g) + 0.5).to(device)
        self.v = (torch.rand(3, n, generator=g) + 0.5)[..., None].to(device)[..., 0]  # floats with two axes are no batches
        self.ids = torch.randint(0, 9, (3, n), generator=g).to(device)
        mask = torch.rand(3, n, generator=g) < 0.7
        mask[:, 0] = True
        self.mask = mask.to(device)
        square = torch.rand(3, 1, n, n, generator=g) < 0.7
        square[..., 0] = True
        self.square = square.to(device)
        self.x, self.v = self.x / self.x * self.x, self.v / self.v * self.v

    def ones(self, *shape):
        return torch.ones(*shape, device=self.device)

    def some(self, *shape, seed=0):
        return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)).to(self.device) + 0.5


def flat(r):
    return [e for p in r for e in flat(p)] if isinstance(r, tuple | list) else [r]


def same(got, want, what="", **tol):
    for k, (a, b) in enumerate(zip(flat(got), flat(want), strict=True)):
        if not isinstance(a, torch.Tensor):
            assert a == b, f"{what}, result {k}: {a} is not {b}"
            continue
        assert a.shape == b.shape, f"{what}, result {k}: {a.shape} is not {b.shape}"
        assert a.dtype == b.dtype, f"{what}, result {k}: {a.dtype} is not {b.dtype}"
        if a.numel() > 1:
            strides = [[s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (a, b)]
            assert strides[0] == strides[1], f"{what}, result {k}: strides {a.stride()} are not {b.stride()}"
        torch.testing.assert_close(a.cpu(), b, msg=lambda m, k=k: f"{what}, result {k}: {m}", **tol)


def check(f, lengths=LENGTHS, mode=STRICT, **tol):
    """f of batches of these lengths, on the device and on the CPU. The numbers of programs that each length took."""
    made = []
    with torch.tpu.set_eager_mode(mode):
        for i, n in enumerate(lengths):
            step_calls()
            before = programs()
            got = f(Batch(n, i, "tpu"))
            torch.tpu.synchronize()
            made.append(programs() - before)
            same(got, f(Batch(n, i)), f"length {n}", **tol)
    return made


OPS = {
    "each": lambda b: (b.x * 2 + 1).exp(),
    "number": lambda b: b.x * (b.n + 0.5) - b.n,
    "two": lambda b: b.x + b.x.sin() * b.x,
    "ids": lambda b: (b.ids * 2 - 3, b.ids + b.n, b.ids // 2, b.ids % 3, b.ids.float() / 3, -b.ids, b.ids.to(torch.uint8) << 2),
    "closed_row": lambda b: (b.x + b.some(4), b.x * b.some(3, 1, 4), b.x - b.some(1, 1, 1), b.some(2, 1, 1, 1) + b.x),
    "closed_as_long": lambda b: (b.x + b.some(b.n, 1), b.x + b.some(3, b.n, 4), b.x * b.some(b.n, 4), b.v + b.some(b.n)),
    "closed_transposed": lambda b: (b.x + b.some(3, 4, b.n).transpose(1, 2), b.x + b.some(4, b.n, 3).permute(2, 1, 0)),
    "closed_expanded": lambda b: (
        b.x + b.some(1, 1, 4).expand(3, b.n, 4),
        b.x + b.some(3, b.n, 1).expand(3, b.n, 4),
        b.v + b.some(3, 1).expand(3, b.n),
    ),
    "closed_part": lambda b: (
        b.x + b.some(3, 64, 4)[:, : b.n],
        b.x + b.some(3, 64, 4)[:, 3 : b.n + 3],
        b.v + b.some(64)[-b.n :],
        b.v + b.some(128)[: 2 * b.n : 2],
    ),
    "row_of_it": lambda b: b.x + b.x[:, :1],
    "outer": lambda b: (
        b.v[:, :, None] * b.v[:, None],
        b.v[:, :, None] + b.x[..., 0][:, None],
        torch.outer(b.v[0], b.v[1]),
        b.v[0].outer(b.some(5)),
    ),
    "distance": lambda b: (
        b.ids[:, :, None] - b.ids[:, None],
        torch.cdist(b.x, b.x * 2, compute_mode="donot_use_mm_for_euclid_dist"),
        torch.cdist(b.x, b.some(3, 5, 4) + 3, compute_mode="donot_use_mm_for_euclid_dist"),
    ),
    "compare": lambda b: (b.x > 1, b.x == b.x[:, :1], b.ids >= 4, b.ids != b.ids[:1], torch.isnan(b.x), b.x.isfinite()),
    "where": lambda b: (
        torch.where(b.x > 1, b.x, b.x * 0),
        torch.where(b.mask[..., None], b.x, 0.0),
        torch.where(b.mask, b.ids, -100),
        torch.where(b.square, b.v[:, None, None], b.some(1)),
    ),
    "masks": lambda b: (
        b.mask & ~b.mask.flip(0),
        b.mask | (b.v > 1),
        b.mask ^ b.mask[:1],
        b.mask[:, None, None] & b.square,
        b.mask[:, None, :] & b.mask[:, :, None],
    ),
    "masked_fill": lambda b: (
        b.x.masked_fill(b.mask[..., None], 7.0),
        b.v.masked_fill(~b.mask, float("-inf")).softmax(-1),
        b.square.float().masked_fill(~b.square, -1e9),
    ),
    "mask_to_float": lambda b: (1.0 - b.mask.float()) * -1e9 + (1 - b.mask[:, None].to(torch.int32)),
    "cat_other": lambda b: (
        torch.cat([b.x, b.x * 2], -1),
        torch.cat([b.x, b.some(2, b.n, 4)], 0),
        torch.cat([b.some(2, b.n, 4), b.x], 0),
        torch.cat([b.v, b.v[:1]]),
    ),
    "cat_along": lambda b: (
        torch.cat([b.x, b.some(3, 1, 4)], 1),
        torch.cat([b.some(3, 1, 4), b.x], 1),
        torch.cat([b.x, b.x], 1),
        torch.cat([b.x[:, :1], b.x, b.x[:, -1:]], 1),
    ),
    "cat_ids": lambda b: (torch.cat([b.ids, b.ids[:, :1]], 1) * 2, torch.cat([b.ids.new_zeros(3, 1), b.ids[:, :-1]], 1) + 1),
    "stack": lambda b: (
        torch.stack([b.x, b.x]),
        torch.stack([b.x, b.x * 2, b.x], -1),
        torch.stack([b.v[0], b.v[1]], 1),
        torch.stack([b.x, b.x], 1),
    ),
    "split": lambda b: [p + 1 for p in (*b.x.split(2, -1), *b.x.split(1, 0), *b.x.chunk(2, -1), *b.x.unbind(0), *b.x.unbind(-1))],
    "split_along": lambda b: [p + 1 for p in (*b.x.split(7, 1), *b.x.chunk(2, 1), *b.x.tensor_split(3, 1))],
    "unbind_along": lambda b: [p + 1 for p in b.x.unbind(1)[:3]],
    "reshape": lambda b: (
        b.x.reshape(3 * b.n, 4) + 1,
        b.x.reshape(-1) + 1,
        b.x.view(3, b.n, 2, 2).exp(),
        b.x.flatten(1).exp(),
        b.x.flatten(0, 1)[:, 1] * 2,
    ),
    "heads": lambda b: (
        b.x.view(3, b.n, 2, 2).transpose(1, 2) * 2,
        b.x.view(3, b.n, 2, 2).transpose(1, 2).reshape(6, b.n, 2).exp(),
        b.x.view(3, -1, 2, 2).permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3).reshape(3, b.n, 4) + 1,
    ),
    "permute": lambda b: (
        b.x.permute(2, 0, 1) + 1,
        b.x.permute(1, 2, 0).contiguous() * 2,
        b.x.mT @ b.x,
        b.x.transpose(0, 1).reshape(-1, 4) + 1,
        b.v.t() * 2,
        b.x.movedim(1, 0).sum(0),
    ),
    "squeeze": lambda b: (b.x[:1].squeeze(0) * 2, b.x[..., None].squeeze(-1) + 1, b.v[:, None].exp(), b.v[:, :, None, None] + 1),
    "merged_rows": lambda b: (
        b.x.reshape(-1, 4) @ b.some(4, 5),
        F.layer_norm(b.x.reshape(-1, 4), (4,)),
        b.x.reshape(-1, 4).sum(0),
        b.x.reshape(-1, 4).softmax(0),
        b.x.reshape(-1, 4) + b.some(3 * b.n, 4),
    ),
    "merged_back": lambda b: (
        (b.x.reshape(-1, 4) * 2).view(3, b.n, 4) + b.x,
        (b.x.reshape(-1, 4) @ b.some(4, 6)).view(3, b.n, 2, 3).transpose(1, 2) + 1,
    ),
    "merged_ids": lambda b: (
        b.ids.view(-1) * 2,
        b.ids.view(-1)[b.some(1).long()],
        b.ids.view(-1).sum(),
        b.mask.view(-1) & (b.ids.view(-1) > 2),
        F.one_hot(b.ids, 9).float() * 2,
    ),
    "merged_order": lambda b: (
        b.x.reshape(-1).cumsum(0),
        b.x.reshape(-1).sort()[0],
        b.x.reshape(-1, 4).argmax(0),
        b.x.reshape(-1).max(),
        b.x.reshape(-1).topk(3),
        b.x.reshape(-1, 4).flip(0),
        b.v.reshape(-1)[:-1] + 1,
        b.v.reshape(-1)[b.n // 2 :] * 2,
    ),
    "merged_scans": lambda b: (
        b.x.reshape(-1, 4).cumsum(0),
        b.x.reshape(-1, 4).cumprod(0),
        b.v.reshape(-1).cumsum(0),
        b.x.reshape(-1, 4).cumsum(1),
        b.x.reshape(-1, 4).logcumsumexp(0),
        b.x.reshape(-1, 4).cummax(0),
        b.x.reshape(-1, 4).diff(dim=0),
        b.mask.reshape(-1).cumsum(0),
    ),
    "merged_triangles": lambda b: (
        b.x.reshape(-1, 4).tril(),
        b.x.reshape(-1, 4).triu(1),
        b.x.reshape(-1, 2, 2).tril(),
        b.v.reshape(1, -1).tril(2),
        b.x.reshape(-1, 4).tril(-3),
    ),
    "index_beside": lambda b: (
        b.x.view(3, b.n, 2, 2)[:, :, [1]] * 2,
        b.x.view(3, b.n, 2, 2)[:, :, [1, 0], [0, 1]] + 1,
        b.x[..., [0, 2], None] + 1,
        b.x[[0, 2]] + 1,
        b.x[[0, 1], :, [1, 2]] * 2,
        b.x.view(3, b.n, 2, 2)[[0, 1], :, [1, 0]] + 1,
        b.x[:, :, torch.tensor([[1, 2], [0, 3]], device=b.device)] + b.some(2),
        b.x.mT[:, [1, 2]] + 1,
        b.x.reshape(-1, 4)[:, [1, 3]] * 2,
    ),
    "index_put_beside": lambda b: (
        torch.zeros_like(b.x).index_put((torch.tensor([0, 2], device=b.device),), b.x[:2]),
        b.x.index_put((torch.tensor([0, 0], device=b.device),), b.x[1:], accumulate=True),
        b.x.mT.index_put((torch.tensor([0, 1], device=b.device), torch.tensor([3, 0], device=b.device)), b.v[:2]),
        b.x.index_put((torch.tensor([1], device=b.device),), b.some(1)),
    ),
    "merged_with_inner": lambda b: (
        b.x.reshape(3, -1) + 1,
        b.x.reshape(3, -1).sum(1),
        b.x.reshape(3, -1) @ b.ones(4 * b.n, 2),
        b.x.transpose(1, 2).reshape(12, -1).softmax(-1),
    ),
    "matmul": lambda b: (
        b.x @ b.some(4, 5),
        b.some(2, 3) @ b.v,
        b.x @ b.x.mT,
        b.x.mT @ b.x,
        b.v @ b.v.t(),
        b.v.t() @ b.v,
        b.v @ b.some(b.n, 2),
        b.x @ b.some(4),
        b.some(2, b.n) @ b.x,
        b.v[0] @ b.v[1],
        b.v @ b.v[0],
        b.x[0] @ b.x[1].t(),
    ),
    "bmm": lambda b: (
        torch.bmm(b.x, b.some(3, 4, 2)),
        torch.bmm(b.some(3, 2, b.n), b.x),
        torch.bmm(b.x, b.x.mT),
        b.x.transpose(0, 1).bmm(b.some(b.n, 4, 2)),
        torch.bmm(b.x.transpose(0, 1), b.x.permute(1, 2, 0)),
    ),
    "addmm": lambda b: (
        torch.addmm(b.some(5), b.x[0], b.some(4, 5)),
        torch.addmm(b.v[:, :1].t().sum(1, keepdim=True), b.v.t(), b.some(3, 5)),
        torch.addmm(b.some(3, 3), b.v, b.v.t(), beta=0.5, alpha=2),
        torch.addmm(b.v[0], b.some(2, 4), b.x[0].t()),
        torch.addmv(b.v[0], b.x[0], b.some(4)),
        torch.addr(b.x[0], b.v[0], b.some(4)),
    ),
    "baddbmm": lambda b: (
        torch.baddbmm(b.v[:, None], b.some(3, 2, 4), b.x.mT),
        torch.baddbmm(b.some(3, 1, 4), b.x.mT, b.x),
        torch.baddbmm(b.square[:, 0].float(), b.x, b.x.mT, beta=0.5),
    ),
    "linear": lambda b: (
        F.linear(b.x, b.some(7, 4)),
        F.linear(b.x, b.some(7, 4), b.some(7)),
        F.linear(b.v, b.some(2, b.n), b.some(2)),
        F.linear(b.x.mT, b.some(2, b.n)),
        F.bilinear(b.x, b.x, b.some(2, 4, 4)),
    ),
    "einsum": lambda b: (
        torch.einsum("bnd,bmd->bnm", b.x, b.x),
        torch.einsum("bnd,bnd->bd", b.x, b.x),
        torch.einsum("bn,bnd->bd", b.v, b.x),
        torch.einsum("bnd,de->bne", b.x, b.some(4, 2)),
        torch.einsum("bn,cn->bc", b.v, b.v),
        torch.einsum("bnd,cnd->bcn", b.x, b.x),
        torch.einsum("bn,bm->nm", b.v, b.v),
    ),
    "softmax": lambda b: (
        b.x.softmax(1),
        b.x.softmax(-1),
        b.x.softmax(0),
        b.x.log_softmax(1),
        b.x.log_softmax(2),
        b.v.softmax(-1),
        b.v.softmax(-1, dtype=torch.float64),
        F.softmin(b.x, 1),
        b.x.logsumexp(1),
        b.x.logsumexp((1, 2)),
        b.x.logsumexp(-1),
    ),
    "sums": lambda b: (
        b.x.sum(),
        b.x.sum(1),
        b.x.sum(-1),
        b.x.sum(0),
        b.x.sum((1, 2)),
        b.x.sum((0, 1), keepdim=True),
        b.ids.sum(1),
        b.mask.sum(1),
        b.mask.sum(),
        b.x.nansum(1),
        b.x.prod(1),
        b.ids.prod(1),
        b.x.count_nonzero(1),
    ),
    "means": lambda b: (
        b.x.mean(),
        b.x.mean(1),
        b.x.mean(-1, keepdim=True),
        b.x.mean((0, 1)),
        b.x.nanmean(1),
        (b.x * b.mask[..., None]).sum(1) / b.mask.sum(1, keepdim=True),
    ),
    "vars": lambda b: (
        b.x.var(-1),
        b.x.std(0),
        b.x.var((0, 2), correction=0),
        torch.var_mean(b.x, -1),
        b.x.std((1, 2), correction=0),
        b.x.var(1, correction=0),
    ),
    "norms": lambda b: (
        b.x.norm(),
        b.x.norm(dim=1),
        b.x.norm(1, -1),
        torch.linalg.vector_norm(b.x, 0.5, 1),
        torch.linalg.vector_norm(b.x, float("inf"), 1),
        torch.linalg.vector_norm(b.x, float("-inf"), 1),
        torch.linalg.vector_norm(b.x, 0, 1),
        F.normalize(b.x, dim=1),
        F.normalize(b.x, dim=-1),
        F.cosine_similarity(b.x, b.x * b.x, 1),
        F.cosine_similarity(b.x, b.some(4), -1),
    ),
    "extremes": lambda b: (
        b.x.amax(1),
        b.x.amin((1, 2)),
        (-b.x).amax(0),
        b.x.max(1),
        b.x.min(1, keepdim=True),
        b.x.max(-1),
        b.x.max(),
        b.x.min(),
        b.ids.max(),
        b.ids.amax(1),
        b.x.aminmax(dim=1),
        b.mask.amax(1),
    ),
    "places": lambda b: (
        b.x.argmax(1),
        b.x.argmin(1, keepdim=True),
        b.x.argmax(-1),
        b.x.argmax(),
        b.ids.argmax(1),
        b.mask.int().argmax(1),
        b.x.reshape(-1, 4).argmax(-1),
        b.x.median(1),
        b.x.kthvalue(1, 1),
        b.ids.eq(3).int().argmax(-1),
        b.x.mode(1)[0],
        b.x.quantile(0.5, 1),
    ),
    "logic": lambda b: (
        (b.x > 1).any(1),
        (b.x > 0.1).all(1),
        (b.x > 0.1).all(),
        (b.x > 1.4).any(),
        b.mask.all(-1),
        b.mask.any(0),
        b.ids.any(1),
        torch.any(b.x > 1, dim=()),
        torch.any(b.x > 1, dim=(1, 2)),
    ),
    "order": lambda b: (
        b.x.sort(1)[0],
        b.x.sort(-1),
        b.v.sort(descending=True),
        b.x.topk(1, 1),
        b.x.topk(2, -1),
        b.v.argsort(-1),
        b.ids.sort(dim=1, stable=True),
        b.v.msort(),
        b.x.topk(min(b.n, 3), 1, largest=False),
    ),
    "scans": lambda b: (
        b.x.cumsum(1),
        b.x.cumprod(1),
        b.x.cumsum(-1),
        b.x.cummax(1),
        b.x.cummin(1),
        b.x.logcumsumexp(1),
        b.mask.cumsum(1),
        (b.mask.long().cumsum(-1) - 1).masked_fill(~b.mask, 1),
        b.ids.cumsum(0),
        b.x.flip(1).cumsum(1),
        b.v.diff(),
        b.v.cumsum(1).flip(1),
    ),
    "cross_entropy": lambda b: (
        F.cross_entropy(b.x.reshape(-1, 4), b.ids.reshape(-1) % 4),
        F.cross_entropy(b.x.transpose(1, 2), b.ids % 4, reduction="none"),
        F.cross_entropy(b.x.reshape(-1, 4), (b.ids % 4).masked_fill(~b.mask, -100).reshape(-1)),
        F.cross_entropy(b.x.reshape(-1, 4), b.ids.reshape(-1) % 4, reduction="sum", label_smoothing=0.1),
        F.cross_entropy(b.x.reshape(-1, 4), b.ids.reshape(-1) % 4, weight=b.some(4), reduction="mean"),
        F.cross_entropy(b.x.reshape(-1, 4), b.ids.reshape(-1) % 4, reduction="none", ignore_index=2),
        F.cross_entropy(b.v, b.ids[:, 0] % b.n),
        F.cross_entropy(b.x.mT, b.ids % 4),
    ),
    "shifted_loss": lambda b: (
        F.cross_entropy(F.pad(b.x, (0, 0, 0, 1))[:, 1:].reshape(-1, 4), b.ids.reshape(-1) % 4),
        F.cross_entropy(b.x.reshape(-1, 4), F.pad(b.ids % 4, (0, 1), value=-100)[..., 1:].reshape(-1)) if b.n > 1 else b.x,
        F.cross_entropy(b.x[:, :-1].reshape(-1, 4), b.ids[:, 1:].reshape(-1) % 4) if b.n > 1 else b.x,
    ),
    "losses": lambda b: (
        F.mse_loss(b.x, b.x * 2),
        F.mse_loss(b.x, b.some(3, b.n, 4), reduction="none"),
        F.l1_loss(b.x, b.x.sin()),
        F.smooth_l1_loss(b.x, b.x * 3),
        F.huber_loss(b.v, b.v * 3, reduction="sum"),
        F.binary_cross_entropy(b.v / 2, b.mask.float()),
        F.binary_cross_entropy_with_logits(b.v, b.mask.float()),
        F.binary_cross_entropy_with_logits(b.v, b.mask.float(), pos_weight=b.some(1), reduction="none"),
        F.kl_div(b.x.log_softmax(-1), b.x.softmax(-1), reduction="batchmean"),
        F.kl_div(b.x.log_softmax(1), b.x.softmax(1), reduction="sum"),
        F.nll_loss(b.x.reshape(-1, 4), b.ids.reshape(-1) % 4),
        F.poisson_nll_loss(b.v, b.v),
        F.gaussian_nll_loss(b.v, b.v * 2, b.v),
        F.hinge_embedding_loss(b.v, b.mask * 2 - 1),
        F.cosine_embedding_loss(b.x[0], b.x[1], b.mask[0] * 2 - 1),
        F.margin_ranking_loss(b.v, b.v * 2, b.mask * 2 - 1),
        F.triplet_margin_loss(b.x, b.x * 2, b.x * 3),
        F.soft_margin_loss(b.v, b.mask * 2.0 - 1),
        F.multi_margin_loss(b.x.reshape(-1, 4), b.ids.reshape(-1) % 4),
    ),
    "embedding": lambda b: (
        F.embedding(b.ids, b.some(9, 5)),
        F.embedding(b.ids.reshape(-1), b.some(9, 5)),
        F.embedding(b.ids, b.some(9, 5), padding_idx=0),
        F.embedding(torch.arange(b.n, device=b.device), b.some(64, 4)) + b.x,
        b.some(64, 4)[: b.n] + b.x,
        F.one_hot(b.ids, 9),
        F.embedding_bag(b.ids, b.some(9, 5)),
        F.embedding_bag(b.ids, b.some(9, 5), mode="max"),
    ),
    "gather": lambda b: (
        b.x.gather(2, (b.ids % 4)[..., None]),
        b.x.gather(1, b.ids[:, :1, None].expand(3, 1, 4) % b.n),
        b.some(3, 9).gather(1, b.ids),
        b.v.gather(1, b.ids % b.n),
        b.x.gather(0, (b.ids % 3)[..., None].expand(3, b.n, 4)),
        b.x.log_softmax(-1).gather(-1, (b.ids % 4)[..., None]).squeeze(-1),
        b.v.take_along_dim(b.ids % b.n, 1),
        b.v.gather(1, b.v.argsort(1)),
    ),
    "take": lambda b: (
        b.x.take(b.ids % (4 * b.n)),
        b.some(9).take(b.ids),
        b.x.index_select(1, b.ids[0] % b.n),
        b.x.index_select(0, b.ids[0, :1] % 3),
        b.some(9, 2).index_select(0, b.ids[0]),
        b.x.index_select(2, b.ids[0] % 4),
    ),
    "index": lambda b: (
        b.some(9)[b.ids],
        b.some(9, 3)[b.ids],
        b.some(9, 3)[:, b.ids % 3],
        b.x[0][b.ids[0] % b.n],
        b.x[:, b.ids[0] % b.n],
        b.x[torch.arange(3, device=b.device), (b.mask.sum(1) - 1)],
        b.x[torch.arange(3, device=b.device)[:, None], b.ids % b.n],
        b.x[:, [0, -1]],
        b.x[[2, 0]],
        b.x[..., [1, 0]],
        b.v[0][b.ids % b.n],
        b.x[:, torch.arange(b.n - 1, -1, -1, device=b.device)],
        b.x[:, None, 0, [1, 2]],
    ),
    "index_mask": lambda b: (
        b.x[b.mask],
        b.v[b.v > 1],
        b.ids[~b.mask],
        b.mask.nonzero().contiguous(),
        b.v.masked_select(b.mask),
        b.x[:, b.mask[0]],
        b.x.masked_scatter(b.mask[..., None], b.some(3, b.n, 4)),
        torch.argwhere(b.mask).contiguous(),
        b.v[torch.where(b.mask)],
    ),
    "scatter": lambda b: (
        b.some(3, 9).scatter(1, b.ids[:, :1], 2.5),
        b.some(3, 9).scatter_add(1, b.ids, b.v),
        b.some(3, 9).scatter_reduce(1, b.ids, b.v, "amax"),
        b.v.scatter(1, b.ids[:, :1] % b.n, 7.0),
        b.v.scatter_add(1, b.ids % b.n, b.v),
        b.some(3, b.n, 9).scatter(2, b.ids[..., None], 1.0),
        b.x.scatter_add(2, (b.ids % 4)[..., None], b.v[..., None]),
        b.some(9, 4).index_add(0, b.ids[0], b.x[0]),
        b.x.index_add(1, b.ids[0, :1] % b.n, b.x[:, :1]),
        b.x.index_fill(1, b.ids[0, :1] % b.n, 3.0),
        b.x.index_copy(1, b.ids[0, :1] % b.n, b.x[:, -1:]),
        torch.bincount(b.ids.reshape(-1), minlength=9),
        b.some(9).index_put((b.ids,), b.v, accumulate=True),
    ),
    "index_put": lambda b: (
        b.x.index_put((b.mask,), b.some(1)),
        b.x.index_put((b.ids[:, 0] % 3, b.ids[:, 0] % b.n), b.some(4)),
        b.some(9, 2).index_put((b.ids[0],), b.x[0, :, :2], accumulate=True),
        b.v.index_put((torch.arange(3, device=b.device)[:, None], b.ids % b.n), b.v, accumulate=True),
    ),
    "slices": lambda b: (
        b.x[:, 1:] + 1,
        b.x[:, :-1] * 2,
        b.x[:, -1] + 1,
        b.x[:, -1:] + 1,
        b.x[:, ::2] + 1,
        b.x[:, :1].exp(),
        b.x[:, 0] + 1,
        b.x[1] + 1,
        b.x[..., 1:3] + 1,
        b.x[:, b.n // 2 :] + 1,
        b.x[:, : b.n // 2 + 1] + 1,
        b.x[0, :, 1] + 1,
        b.x[-1, -1, -1] + 1,
        b.ids[:, 1:] + 1,
        b.v[:, b.n - 1 :] + 1,
        b.x[1:, :, 2:].exp(),
    ),
    "ranges_together": lambda b: (
        (
            b.v[:, 1:] + b.v[:, :-1],
            b.v[:, 1:] * b.x[:, :-1, 0],
            (b.v[:, 1:] - b.v[:, :-1]).abs().sum(1),
            (b.ids[:, 1:] == b.ids[:, :-1]).sum(),
            torch.cat([b.v[:, 1:], b.v[:, :1]], 1),
            b.x[:, 1:].sum(1),
            b.x[:, 1:].softmax(1),
            b.x[:, :-1].reshape(-1, 4) + 1,
            b.x[:, 1:] @ b.some(4, 2),
            b.v[:, 1:].contiguous() + b.some(3, b.n - 1),
        )
        if b.n > 1
        else b.x
    ),
    "narrow": lambda b: (
        b.x.narrow(1, 0, 1) + 1,
        b.x.select(1, 0) + 1,
        b.x.select(1, -1) + 1,
        b.x.diagonal(0, 1, 2) + 1,
        b.x.narrow(1, b.n - 1, 1) * 2,
        b.v.diagonal() + 1,
        b.square.diagonal(0, 2, 3) | b.mask[:, None],
        torch.diag_embed(b.v) + 1,
        b.v[0].diag() + 1,
        torch.trace(b.square[0, 0].float()),
    ),
    "unfold": lambda b: (
        b.x.unfold(1, 1, 1) + 1,
        b.x.unfold(2, 2, 1) * 2,
        b.v.unfold(1, min(b.n, 3), 2) + 1,
        b.x.unfold(1, min(b.n, 3), 1).sum(-1),
    ),
    "flip": lambda b: (
        b.x.flip(1),
        b.x.flip(0),
        b.x.flip((1, 2)),
        b.x.roll(1, 1),
        b.x.roll(-2, 0),
        b.x.roll((1, 1), (0, 1)),
        b.v.roll(1),
        b.x.rot90(1, (1, 2)),
        b.v.fliplr(),
    ),
    "repeat": lambda b: (
        b.x.repeat(1, 2, 1),
        b.x.repeat(2, 1, 1),
        b.x.repeat_interleave(2, 0),
        b.x.repeat_interleave(2, 1),
        b.x.repeat_interleave(2, -1),
        b.v[0].expand(3, b.n) + 1,
        b.x[:, :, None].expand(3, b.n, 2, 4).reshape(3, b.n, 8),
        b.x[:, None].expand(3, 2, b.n, 4).reshape(6, b.n, 4) + 1,
        b.v.tile(2),
    ),
    "pad": lambda b: (
        F.pad(b.x, (0, 0, 0, 1)),
        F.pad(b.x, (0, 0, 1, 0)),
        F.pad(b.x, (1, 1)),
        F.pad(b.v, (0, 2), value=3.0),
        F.pad(b.ids, (0, 1), value=-100)[..., 1:] + 1,
        F.pad(b.v, (0, -1)) + 1 if b.n > 1 else b.v,
        F.pad(b.x, (0, 0, 2, 3)),
        F.pad(b.v[:, None], (1, 1), mode="replicate"),
    ),
    "tril": lambda b: (
        torch.tril(torch.ones(b.n, b.n, device=b.device)),
        torch.ones(b.n, b.n, dtype=torch.bool, device=b.device).tril() & b.square,
        torch.triu(b.square.float(), 1),
        (b.x @ b.x.mT).tril(),
        (b.x @ b.x.mT).triu(-1),
        torch.full((b.n, b.n), float("-inf"), device=b.device).triu(1) + b.square.float(),
        b.x.tril(),
        torch.tril_indices(b.n, b.n, device=b.device),
    ),
    "causal": lambda b: (
        (torch.arange(b.n, device=b.device)[:, None] >= torch.arange(b.n, device=b.device)) & b.square,
        torch.where(torch.arange(b.n, device=b.device) < b.n // 2, b.v, -b.v),
        torch.arange(b.n, device=b.device).expand(3, b.n) * b.mask,
        torch.arange(b.n, device=b.device, dtype=torch.float32)[:, None] * b.some(2),
        torch.linspace(0, 1, b.n, device=b.device) + b.v,
        torch.arange(b.n - 1, -1, -1, device=b.device) + b.ids,
    ),
    "fills": lambda b: (
        torch.ones(3, b.n, device=b.device) * b.v,
        torch.zeros_like(b.x) + 1,
        b.x.new_full((b.n,), 3) + b.v,
        torch.full_like(b.ids, 3) + b.ids,
        torch.empty_like(b.x).fill_(2) * b.x,
        b.x.new_zeros(3, b.n, 2) + b.x[..., :2],
        torch.eye(b.n, device=b.device) + b.square.float(),
        torch.ones_like(b.mask) & b.mask,
    ),
    "types": lambda b: (
        b.x.to(torch.bfloat16),
        b.x.half() + 1,
        b.x.int(),
        b.x.double().sum(1),
        b.mask.float(),
        b.ids.to(torch.int32) * 2,
        b.ids.bool(),
        b.x.view(torch.int32) & 7,
        b.x.to(torch.complex64) * 1j,
        torch.view_as_real(torch.view_as_complex(b.x.view(3, b.n, 2, 2)) * 2),
        b.x.type_as(b.ids),
        b.x.bfloat16() @ b.some(4, 2).bfloat16(),
    ),
    "layer_norm": lambda b: (
        F.layer_norm(b.x, (4,)),
        F.layer_norm(b.x, (4,), b.some(4), b.some(4)),
        F.layer_norm(b.x, (b.n, 4)),
        F.layer_norm(b.x.mT, (b.n,), b.some(b.n)),
        F.rms_norm(b.x, (4,), b.some(4)),
        F.rms_norm(b.x.mT, (b.n,)),
        F.group_norm(b.x.mT, 2),
        F.instance_norm(b.x.mT) if b.n > 1 else b.x,
        F.batch_norm(b.x.mT, b.some(4), b.some(4)).contiguous(),
        F.batch_norm(b.x.mT, None, None, training=True).contiguous(),
        F.batch_norm(b.x.reshape(-1, 4), None, None, training=True),
        b.x * torch.rsqrt(b.x.square().mean(-1, keepdim=True) + 1e-6),
    ),
    "activations": lambda b: (
        F.gelu(b.x),
        F.silu(b.x),
        F.relu(b.x - 1),
        F.leaky_relu(b.x - 1),
        F.glu(b.x),
        F.glu(b.x, 1) if b.n % 2 == 0 else b.x,
        F.softplus(b.x),
        F.elu(b.x - 1),
        F.prelu(b.x - 1, b.some(1)),
        F.hardswish(b.x),
        torch.tanh(b.x),
        torch.sigmoid(b.x),
        F.mish(b.x),
        F.softsign(b.x),
        F.threshold(b.x, 1, 0),
        F.hardtanh(b.x, 0.7, 1.1),
        F.logsigmoid(b.x),
        F.tanhshrink(b.x),
    ),
    "conv": lambda b: (
        F.conv1d(b.x.mT, b.some(2, 4, 1)),
        F.conv1d(b.x.mT, b.some(2, 4, 3), padding=1),
        F.conv1d(b.x.mT, b.some(4, 1, 3), padding=2, groups=4)[..., : b.n],
        F.conv1d(b.x.mT, b.some(2, 4, 2), stride=2, padding=1),
        F.conv2d(b.x[:, None], b.some(2, 1, 3, 3), padding=1),
        F.max_pool1d(b.x.mT, 1).contiguous(),
        F.avg_pool1d(b.x.mT, 3, 1, 1).contiguous(),
        F.adaptive_avg_pool1d(b.x.mT, 1),
        F.adaptive_max_pool1d(b.x.mT, 1),
        F.conv_transpose1d(b.x.mT, b.some(4, 2, 2), stride=2),
        F.interpolate(b.x.mT, scale_factor=2).contiguous(),
        F.interpolate(b.x.mT, size=5, mode="linear").contiguous(),
    ),
    "sdpa": lambda b: (
        F.scaled_dot_product_attention(b.x, b.x, b.x),
        F.scaled_dot_product_attention(b.x[:, None], b.x[:, None], b.x[:, None]),
        F.scaled_dot_product_attention(*[b.x.view(3, b.n, 2, 2).transpose(1, 2)] * 3, is_causal=True),
        F.scaled_dot_product_attention(b.some(3, 5, 4), b.x, b.x),
        F.scaled_dot_product_attention(b.x, b.some(3, 5, 4), b.some(3, 5, 4)),
        F.scaled_dot_product_attention(b.x[:, :1], b.x, b.x),
    ),
    "sdpa_masks": lambda b: [
        F.scaled_dot_product_attention(*[b.x.view(3, b.n, 2, 2).transpose(1, 2)] * 3, attn_mask=m)
        for m in (
            b.square,
            b.mask[:, None, None],
            b.mask[:, None, None].float(),
            b.square.float() * -1e9,
            b.mask[:, None, None].expand(3, 1, b.n, b.n),
            b.square.expand(3, 2, b.n, b.n).float(),
            b.square[:1],
            torch.ones(b.n, b.n, device=b.device, dtype=torch.bool).tril(),
            b.v[:, None, None, :],
            b.v[:1],
        )
    ],
    "sdpa_groups": lambda b: (
        F.scaled_dot_product_attention(
            b.x.view(3, b.n, 4, 1).transpose(1, 2),
            *[b.x[..., :2].reshape(3, b.n, 2, 1).transpose(1, 2)] * 2,
            enable_gqa=True,
            is_causal=True,
        ),
        F.scaled_dot_product_attention(
            b.x.view(3, b.n, 4, 1).transpose(1, 2),
            *[b.x[..., :2].reshape(3, b.n, 2, 1).transpose(1, 2)] * 2,
            attn_mask=b.square,
            enable_gqa=True,
        ),
    ),
    "by_hand": lambda b: (
        (b.x @ b.x.mT / 2 + torch.where(b.square[:, 0], 0.0, -1e9)).softmax(-1) @ b.x,
        (b.x @ b.x.mT).masked_fill(~b.mask[:, None], float("-inf")).softmax(-1) @ b.x,
        ((b.x @ b.x.mT).masked_fill(torch.ones(b.n, b.n, device=b.device).triu(1) > 0, -1e9).softmax(-1) * b.mask[:, :, None]).sum(
            1
        ),
    ),
    "clone": lambda b: (
        b.x.clone() + 1,
        b.x.clone(memory_format=torch.contiguous_format)[:, 0],
        b.x.mT.clone() * 2,
        b.x.detach() + 1,
        copy.deepcopy(b.x) + 1,
        b.x.contiguous() + 1,
        b.x.mT.contiguous(),
        torch.empty_like(b.x).copy_(b.x) + 1,
        b.x.new_tensor(b.x) + 1,
    ),
    "fft": lambda b: (torch.fft.rfft(b.x, dim=1).abs(), torch.fft.fft(b.x, dim=-1).real, torch.fft.fft2(b.x).real),
    "linalg": lambda b: (
        torch.linalg.det(b.x.mT @ b.x / b.n + 2 * torch.eye(4, device=b.device)),
        torch.linalg.inv(b.x.mT @ b.x + 3 * torch.eye(4, device=b.device)),
        torch.linalg.cholesky(b.x.mT @ b.x + torch.eye(4, device=b.device)),
        torch.linalg.solve(b.x.mT @ b.x + torch.eye(4, device=b.device), b.x.mT),
        torch.linalg.matrix_norm(b.x),
        torch.kron(b.v[:1], b.v[:1]),
        torch.cross(b.x[..., :3], b.x[..., 1:], dim=-1),
    ),
    "rotary": lambda b: (lambda c, r: b.x * c.cos() + torch.cat((-b.x[..., 2:], b.x[..., :2]), -1) * r)(
        torch.arange(b.n, device=b.device)[:, None] * b.some(4),
        (torch.arange(b.n, device=b.device)[None, :, None].float() @ b.some(1, 1, 4)).sin(),
    ),
    "rotary_ids": lambda b: (
        (b.some(1, 2, 1).expand(3, -1, 1).float() @ torch.arange(b.n, device=b.device)[None, None].float().expand(3, 1, b.n))
        .transpose(1, 2)
        .cos()
        * b.x[..., :2]
    ),
    "numbers": lambda b: (
        b.x.sum().item() > 0,
        b.ids.max().item(),
        b.ids[0].tolist(),
        b.mask.sum().item(),
        bool(b.mask.any()),
        b.x.shape[1],
        int(b.ids[0, -1]),
        float(b.ids[-1].sum()),
    ),
    "reads": lambda b: (
        b.x.cpu() * 2,
        b.x[:, 1:].cpu().contiguous(),
        b.x.mT.cpu().contiguous(),
        torch.from_numpy(b.x.cpu().numpy()),
        b.ids.to("cpu", non_blocking=False),
        b.x.to("cpu", torch.float64),
        b.x[:, ::2].cpu().contiguous(),
        b.x[1].cpu(),
        b.x.reshape(-1).cpu(),
    ),
    "strided": lambda b: (
        b.x.as_strided((3, 2), (1, 1), 1) + 0,
        b.x.as_strided((2, 2), (4 * b.n, 1)) + 0,
        b.ids.as_strided((3,), (b.n + 1,)) + 0 if b.n > 2 else b.x,
        torch.empty(0, device=b.device).set_(b.x).exp(),
        torch.empty(0, device=b.device).set_(b.x.untyped_storage() if 0 else b.x.storage(), 2, (2, 3)) + 1,
        b.x.untyped_storage().nbytes(),
        b.x.storage_offset(),
        b.x.is_contiguous(),
        b.x[:, 1:].storage_offset(),
    ),
    "foreach": lambda b: (
        torch._foreach_add([b.x, b.v], 1),
        torch._foreach_mul([b.x, b.v], [b.x, b.v]),
        torch._foreach_norm([b.x, b.v]),
    ),
    "vmap": lambda b: (
        torch.func.vmap(lambda r: (r * 2).softmax(0).sum(1))(b.x),
        torch.func.vmap(lambda r, w: r @ w, in_dims=(1, None))(b.x, b.some(4)),
        torch.func.vmap(torch.func.grad(lambda r: (r * r).mean()))(b.x),
        torch.func.jvp(lambda x: x.sin().sum(1), (b.x,), (b.x,)),
    ),
    "clamps": lambda b: (
        b.x.clamp(0.7, 1.2),
        b.x.clamp(min=b.x[:, :1]),
        b.x.clamp(max=b.some(4)),
        torch.maximum(b.x, b.some(3, 1, 1)),
        b.x.minimum(b.x.flip(0)),
        b.x.round(),
        b.x.frac(),
        b.x.sign(),
        torch.lerp(b.x, b.x * 2, 0.3),
        torch.lerp(b.x, b.some(4), b.v[..., None]),
        torch.addcmul(b.x, b.x, b.some(4)),
        torch.addcdiv(b.x, b.x, b.v[..., None]),
        b.x.pow(2),
        b.x ** b.v[..., None],
        2**b.x,
        b.x.fmod(0.3),
        torch.atan2(b.x, b.v[..., None]),
        torch.hypot(b.x, b.x),
        b.x.nan_to_num(),
        b.x.xlogy(b.x),
        b.x.logit(0.1),
        b.x.erf(),
        b.x.lgamma(),
    ),
    "meshgrid": lambda b: (
        *torch.meshgrid(b.v[0], b.v[1], indexing="ij"),
        torch.cartesian_prod(b.v[0], b.v[1][:2]),
        torch.combinations(b.v[0][:3]),
        *torch.broadcast_tensors(b.x, b.v[..., None]),
        torch.block_diag(b.v, b.v),
    ),
    "histograms": lambda b: (
        torch.histc(b.v, 4, 0, 2),
        torch.bucketize(b.v, b.some(5).sort()[0]),
        torch.searchsorted(b.v.sort(-1)[0], b.some(3, 2)),
        torch.searchsorted(b.some(3, 5).sort(-1)[0], b.v),
        b.ids.unique(),
        b.ids.unique(return_counts=True),
        torch.isin(b.ids, torch.tensor([1, 2], device=b.device)),
    ),
}


def some(names, first):
    names = list(names)
    return names if ALL else names[first::4]


def weights(o):
    return torch.linspace(0.5, 1.5, o.numel()).reshape(o.shape).to(o.device)


def gradients(f):
    """Of a weighed sum of all that f gives, for the batch's floats."""

    def back(b):
        b.x.requires_grad_()
        b.v.requires_grad_()
        outs = [o for o in flat(f(b)) if isinstance(o, torch.Tensor) and o.requires_grad and not o.is_complex()]
        if not outs:
            return ()
        torch.autograd.backward([(weights(o) * o.float()).sum() for o in outs])
        return tuple(t.grad for t in (b.x, b.v) if t.grad is not None)

    return back


# ------------------------------------------------------------------------------------------------------- random programs


KINDS = """unary binary closed number softmax norm sum_keep mean expand transpose merge heads matmul gram attention cumsum index
mask where cat_last cat_batch cat_along slice tail range flip roll write pad square ids sort clone cast stack split linear"""


def draw_step(rng):
    """One step of a program: from floats whose axes are some of batch (B), places (N) and features (D) to others like them. Drawn
    without knowing the length; what does not fit the shape at hand leaves it as it is."""
    kind = rng.choice(KINDS.split())
    return kind, rng.randrange(1 << 16)


def apply_step(x, b, kind, r):  # size-waiver: a list of steps
    n, nd = b.n, x.dim()
    d = r % nd
    if kind == "unary":
        return (x.exp, x.sin, x.tanh, x.neg, x.abs, x.sigmoid, x.relu)[r % 7]()
    if kind == "binary":
        return x * x.cos() if r & 1 else x - x.mean(d, keepdim=True)
    if kind == "closed":
        shape = [s if (r >> (3 + k)) & 1 else 1 for k, s in enumerate(x.shape)]
        return x + b.some(*shape[(r & 1) :] if nd > 1 else shape)
    if kind == "number":
        return x * (n / 10) + (r % 5)
    if kind == "softmax":
        return x.softmax(d) if r & 8 else x.log_softmax(d)
    if kind == "norm":
        return F.layer_norm(x, x.shape[-1:]) if x.shape[-1] > 1 else x
    if kind == "sum_keep":
        return x - x.sum(d, keepdim=True) * 0.1
    if kind == "mean" and nd > 1:
        return x.mean(d) if r & 8 else x.amax(d)
    if kind == "expand" and nd < 4:
        return x.unsqueeze(d).expand(*x.shape[:d], 2, *x.shape[d:]) * (1 if r & 8 else 0.5)
    if kind == "transpose" and nd > 1:
        x = x.transpose(d, (d + 1) % nd)
        return x.contiguous() if r & 8 else x
    if kind == "merge" and nd > 1:
        a = r % (nd - 1)
        return x.flatten(a, a + 1)
    if kind == "heads" and nd < 4 and x.shape[-1] % 2 == 0:
        x = x.unflatten(-1, (2, -1))
        return x.transpose(-2, -3) if r & 8 and nd > 1 else x
    if kind == "matmul":
        return x @ b.some(x.shape[-1], 4) * 0.3
    if kind == "linear":
        return F.linear(x, b.some(4, x.shape[-1]), b.some(4)) * 0.3
    if kind == "gram" and nd > 1 and max(x.shape[-2:]) < 70:
        return (x @ x.mT if r & 8 else x.mT @ x) * 0.1
    if kind == "attention" and nd in (3, 4):
        return F.scaled_dot_product_attention(x, x, x, is_causal=bool(r & 8))
    if kind == "cumsum":
        return x.cumsum(d) * 0.2
    if kind == "index":
        picks = torch.tensor([(r >> k) % x.shape[d] for k in range(0, 6, 2)], device=x.device)
        return x.index_select(d, picks) if r & 8 else x.index_select(d, torch.arange(x.shape[d] - 1, -1, -1, device=x.device))
    if kind == "mask":
        return x.masked_fill(x > 0.8, r % 3)
    if kind == "where":
        i = torch.arange(x.shape[-1], device=x.device)
        return torch.where(i <= n // 2, x, x * 0.5)
    if kind == "cat_last":
        return torch.cat([x, x * 2], -1)
    if kind == "cat_batch":
        return torch.cat([x, x[:1]])
    if kind == "cat_along":
        other = x.narrow(d, 0, 1)
        return torch.cat([x, other] if r & 8 else [other, x], d)
    if kind == "slice" and x.shape[d] > 2:
        return x.narrow(d, 1, x.shape[d] - 1 - (r & 8) // 8)
    if kind == "tail" and x.shape[d] > 4:
        return x.narrow(d, x.shape[d] - 3, 3)
    if kind == "range":
        return x * torch.arange(x.shape[d], device=x.device).reshape([-1 if k == d else 1 for k in range(nd)]) / 10
    if kind == "flip":
        return x.flip(d)
    if kind == "roll":
        return x.roll(1 + r % 3, d)
    if kind == "write":
        y = x * 1
        (y.select(d, -1) if r & 8 else y.narrow(d, 0, (y.shape[d] + 1) // 2)).mul_(2)
        return y
    if kind == "pad":
        return F.pad(x, (0, 1) if r & 8 else (1, 0)) if nd < 2 or r & 16 else F.pad(x, (0, 0, 0, 1))
    if kind == "square" and nd == 3 and x.shape[1] == x.shape[2] == n:
        return x.masked_fill(~b.square[:1, 0], 0.0)
    if kind == "ids" and x.shape[-1] == n:
        return x + b.ids[0] if r & 8 else x.masked_fill(b.mask[1], -1.0)
    if kind == "sort":
        return x.sort(d)[0]
    if kind == "clone":
        return x.clone(memory_format=torch.contiguous_format)
    if kind == "cast":
        return x.double().float() if r & 8 else (x > 0.5).float() + x
    if kind == "stack" and nd < 4:
        return torch.stack([x, x + 1], d)
    if kind == "split" and x.shape[d] > 1:
        return x.split([1, x.shape[d] - 1], d)[1] * 1
    return x


def batch_program(seed):
    rng = random.Random(seed)
    steps = [draw_step(rng) for _ in range(rng.randint(3, 8))]
    start, grads = rng.choice("xvr"), rng.random() < 0.5
    lengths = [*rng.sample(range(17, 33), 3), rng.choice((16, 32, 33, 40, 24, 2, 1))]

    def f(b):
        leaf = (b.x if start == "x" else b.v if start == "v" else b.x.reshape(-1, 4)).detach().requires_grad_(grads)
        x, seen = leaf, []
        for kind, r in steps:
            if x.numel() > 40000:
                break
            x = apply_step(x, b, kind, r)
            x = x / x.detach().abs().amax().clamp(min=1)
            seen.append(x)
        if grads:
            (x * weights(x)).sum().backward()
            return *seen, leaf.grad
        return seen

    try:
        check(f, lengths=lengths, mode=rng.choice((STRICT, STRICT, FUSE, DEBUG)), rtol=2e-3, atol=2e-4)
    except Exception as e:
        raise AssertionError(f"seed {seed}: {start} {steps}, lengths {lengths}, grads {grads}: {e}") from e
