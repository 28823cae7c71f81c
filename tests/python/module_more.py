"""Modules that PyTorch's module database lacks, and more argument variants of some that it has."""

from functools import partial

import torch
from torch import nn
from torch.testing import make_tensor
from torch.testing._internal.common_modules import FunctionInput, ModuleInfo, ModuleInput


def sample(desc, constructor, *args, **kwargs):
    """constructor: (args.., {kwargs})."""
    cargs, ckwargs = (constructor[:-1], constructor[-1]) if constructor and isinstance(constructor[-1], dict) else (constructor, {})
    return ModuleInput(constructor_input=FunctionInput(*cargs, **ckwargs), forward_input=FunctionInput(*args, **kwargs), desc=desc)


def info(cls, inputs, name=None, **more):
    """inputs(x, integers): a list of samples; x makes differentiable tensors, integers(low, high, size) labels."""

    def make(module_info, device, dtype, requires_grad, training, **kwargs):
        x = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)

        def labels(low, high, size):
            return torch.randint(low, high, size, device=device)

        return inputs(x, labels)

    return Named(cls, name, module_inputs_func=make, **more)


class Named(ModuleInfo):
    """A second entry for a module, under its own name."""

    def __init__(self, cls, name, **more):
        super().__init__(cls, **more)
        self.other = name

    @property
    def formatted_name(self):
        return self.other or super().formatted_name


def plain(cls, *sizes, constructors=((),), **more):
    return info(cls, lambda x, labels: [sample(str(c), c, x(n)) for c in constructors for n in sizes], **more)


def bags(x, labels):
    found = []
    for mode in ("sum", "mean", "max"):
        for scale in (False, True) if mode != "max" else (False,):
            ids, off = labels(0, 10, (12,)), torch.tensor([0, 3, 3, 9])
            found += [
                sample(f"{mode} 2d", (10, 3, {"mode": mode, "scale_grad_by_freq": scale}), labels(0, 10, (4, 5))),
                sample(f"{mode} offsets", (10, 3, {"mode": mode, "scale_grad_by_freq": scale}), ids, off),
                sample(f"{mode} pad", (10, 3, {"mode": mode, "padding_idx": 2, "scale_grad_by_freq": scale}), ids, off),
                sample(f"{mode} int32", (10, 3, {"mode": mode}), ids.int(), off.int()),
                sample(f"{mode} last", (10, 3, {"mode": mode, "include_last_offset": True}), ids, torch.tensor([0, 3, 3, 9, 12])),
            ]
    found.append(sample("weights", (10, 3, {"mode": "sum"}), labels(0, 10, (4, 5)), per_sample_weights=x((4, 5))))
    found.append(sample("norm", (10, 3, {"mode": "sum", "max_norm": 0.7}), labels(0, 10, (4, 5))))
    return found


def embeddings(x, labels):
    more = ({}, {"padding_idx": 3}, {"padding_idx": -1}, {"max_norm": 0.5}, {"max_norm": 1.0, "norm_type": 1.0})
    more += ({"scale_grad_by_freq": True}, {"max_norm": 0.5, "padding_idx": 0, "scale_grad_by_freq": True})
    return [sample(str(k), (7, 4, k), labels(0, 7, n)) for k in more for n in ((), (5,), (2, 6))]


def unpools(n):
    def inputs(x, labels):
        pool = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[n - 1]
        found = []
        for size in ((2, 3) + (8,) * n, (3,) + (8,) * n):
            with torch.no_grad():
                y, at = pool(2, stride=2, return_indices=True)(x(size))
            found.append(sample(str(size), (2, {"stride": 2}), y.detach().requires_grad_(), at))
            found.append(sample(f"{size} out", (2, {"stride": 2}), y.detach().requires_grad_(), at, output_size=[9] * n))
        return found

    return inputs


def upsamples(x, labels):
    found = []
    for mode, n in (
        ("nearest", 1),
        ("nearest", 2),
        ("nearest", 3),
        ("linear", 1),
        ("bilinear", 2),
        ("bicubic", 2),
        ("trilinear", 3),
    ):
        for corners in (None,) if mode == "nearest" else (False, True):
            for k in ({"scale_factor": 2.5}, {"size": (5, 7, 6)[:n]}, {"scale_factor": 0.5, "recompute_scale_factor": True}):
                k = {"mode": mode, "align_corners": corners} | k
                found += [sample(f"{mode}{n}", (k,), x((2, 3, *(4, 6, 5)[:n])))]
    return found


def recurrent(cls):
    """Batched, with projections, without state and with it, packed sequences of every kind."""

    def inputs(x, labels):
        found = []
        for first in (False, True):
            for both in (False, True):
                for layers, proj in ((1, 0), (2, 2)) if cls is nn.LSTM else ((1, 0), (3, 0)):
                    k = {"batch_first": first, "bidirectional": both, "num_layers": layers}
                    k |= {"proj_size": proj} if proj else {}
                    d = layers * (2 if both else 1)
                    h = x((d, 4, proj or 5))
                    state = (h, x((d, 4, 5))) if cls is nn.LSTM else h
                    data = x((4, 6, 3) if first else (6, 4, 3))
                    found += [sample("", (3, 5, k), data), sample("state", (3, 5, k), data, state)]
                    for lengths, ordered in (([6, 4, 4, 1], True), ([2, 6, 1, 3], False)):
                        p = nn.utils.rnn.pack_padded_sequence(data.detach(), lengths, first, enforce_sorted=ordered)
                        p = p._replace(data=p.data.requires_grad_())
                        found += [sample("packed", (3, 5, k), p), sample("packed state", (3, 5, k), p, state)]
        return found

    return inputs


def decoders(x, labels):
    def layer(**k):
        return nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, **k)

    mask = nn.Transformer.generate_square_subsequent_mask(5)
    pad = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    return [
        sample("", (layer(batch_first=True), 2), x((2, 5, 8)), x((2, 6, 8))),
        sample("norm", (layer(norm_first=True), 2, nn.LayerNorm(8)), x((5, 2, 8)), x((6, 2, 8))),
        sample(
            "causal", (layer(batch_first=True), 1), x((2, 5, 8)), x((2, 6, 8)), tgt_mask=mask.to(x(1).dtype), tgt_is_causal=True
        ),
        sample("pad", (layer(batch_first=True), 1), x((2, 5, 8)), x((2, 6, 8)), tgt_key_padding_mask=pad),
    ]


def encoders(stacked):
    """What takes the fast path of inference: batch first, an even number of heads; masks of each kind."""

    def inputs(x, labels):
        causal = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
        pad = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        scattered = torch.tensor([[False] * 5, [False, True, False, True, False]])
        name = "mask" if stacked else "src_mask"
        calls = ({}, {name: causal}, {"src_key_padding_mask": pad}, {"src_key_padding_mask": scattered})
        calls += ({name: causal, "src_key_padding_mask": pad}, {name: torch.rand(5, 5)})
        found = []
        for k in ({}, {"activation": "gelu"}, {"norm_first": True}, {"layer_norm_eps": 1e-3, "bias": False}):
            k = {"batch_first": True, "dropout": 0.0} | k
            for more in calls:
                more = {n: m.to(x(1).dtype) if m.is_floating_point() else m for n, m in more.items()}
                made = (nn.TransformerEncoderLayer(8, 2, 16, **k), 2) if stacked else (8, 2, 16, k)
                found.append(sample(f"{list(more)} {k}", made, x((2, 5, 8)), **more))
        return found

    return inputs


def attentions(x, labels):
    """Self-attention of one tensor, and cross-attention, with every argument of nn.MultiheadAttention."""
    causal = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    pad = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    number = pad.to(x(1).dtype) * -3
    heads = torch.rand(4, 5, 5) > 0.7
    calls = ({}, {"need_weights": False}, {"average_attn_weights": False}, {"key_padding_mask": pad}, {"attn_mask": causal})
    calls += (
        {"key_padding_mask": pad, "attn_mask": causal},
        {"key_padding_mask": number},
        {"attn_mask": heads & ~torch.eye(5).bool()},
    )
    calls += ({"attn_mask": causal, "is_causal": True, "need_weights": False},)
    found = []
    for k in ({}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"bias": False}, {"kdim": 6, "vdim": 7}):
        for first in (True, False):
            for more in calls:
                q = x((2, 5, 8) if first else (5, 2, 8))
                keys = x((*q.size()[:2], k.get("kdim", 8)))
                values = x((*q.size()[:2], k.get("vdim", 8)))
                k = k | {"batch_first": first}
                found.append(sample(f"cross {list(more)} {k}", (8, 2, k), q, keys, values, **more))
                if "kdim" not in k:
                    found.append(sample(f"self {list(more)} {k}", (8, 2, k), q, q, q, **more))
        found.append(sample("one", (8, 2, k), x((5, 8)), x((5, k.get("kdim", 8))), x((5, k.get("vdim", 8)))))
    return found


def triplets(x, labels):
    ks = ({}, {"margin": 0.3, "p": 1.0}, {"swap": True}, {"reduction": "none"}, {"reduction": "sum", "p": 3.0})
    return [sample(str(k), (k,), x((4, 6)), x((4, 6)), x((4, 6))) for k in ks] + [sample("1d", (), x(6), x(6), x(6))]


def with_distance(x, labels):
    def manhattan(a, b):
        return (a - b).abs().sum(-1)

    ks = ({}, {"distance_function": manhattan}, {"swap": True, "margin": 0.5}, {"reduction": "sum"}, {"reduction": "none"})
    return [sample(str(list(k)), (k,), x((4, 6)), x((4, 6)), x((4, 6))) for k in ks]


def adaptive_softmax(x, labels):
    ks = ({}, {"div_value": 2.0}, {"head_bias": True})
    found = [sample(str(k), (8, 20, [4, 10], k), x((6, 8)), labels(0, 20, (6,))) for k in ks]
    return [*found, sample("1d", (8, 20, [4, 10]), x(8), labels(0, 20, ()))]


def distances(cls, ks):
    def inputs(x, labels):
        return [sample(str(k), (k,), x(a), x(b)) for k in ks for a, b in (((4, 6), (4, 6)), ((3, 4, 6), (1, 4, 6)), ((6,), (6,)))]

    return info(cls, inputs)


def lazies(cls, k, sizes):
    return info(cls, lambda x, labels: [sample(str(n), (*k,), x(n)) for n in sizes], train_and_eval_differ=True)


def norms(cls, sizes):
    ks = ({}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"eps": 1e-2, "momentum": 0.3})
    ks += ({"affine": True, "track_running_stats": True},)
    return info(
        cls,
        lambda x, labels: [sample(str(k), (3, k), x(n)) for k in ks for n in sizes],
        f"more_{cls.__name__}",
        train_and_eval_differ=True,
    )


def convolutions(cls, n):
    transposed = cls.__name__.startswith("ConvT")
    ks = ({"stride": 2}, {"padding": 1, "dilation": 2}, {"groups": 2}, {"groups": 4, "bias": False})
    ks += ({"stride": 2, "output_padding": 1},) if transposed else ({"padding": "same"}, {"padding": "valid"})
    ks += () if transposed else tuple({"padding": 2, "padding_mode": p} for p in ("reflect", "replicate", "circular"))

    def inputs(x, labels):
        return [sample(str(k), (4, 8, 3, k), x((2, 4) + (7,) * n)) for k in ks]

    return info(cls, inputs, f"more_{cls.__name__}", module_memformat_affects_out=n > 1)


def losses(cls, ks, make):
    return info(cls, lambda x, labels: [sample(str(k), (k,), *make(x, labels)) for k in ks], f"more_{cls.__name__}")


def entropies(x, labels):
    found = []
    for k in ({}, {"label_smoothing": 0.2}, {"reduction": "none"}, {"reduction": "sum", "label_smoothing": 0.1}):
        for n in ((4, 5), (4, 5, 3), (2, 5, 3, 2)):
            for weighted in (False, True):
                w = {"weight": torch.rand(5)} if weighted else {}
                target = labels(0, 5, n[:1] + n[2:])
                found.append(sample(f"index {k} {n} {weighted}", (k | w | {"ignore_index": 1},), x(n), target))
                probs = torch.softmax(x(n).detach(), 1).requires_grad_()
                found.append(sample(f"probs {k} {n} {weighted}", (k | w,), x(n), probs))
        found.append(sample("one", (k,), x(5), labels(0, 5, ())))
    return found


REDUCTIONS = ({}, {"reduction": "sum"}, {"reduction": "none"})
module_db = [
    info(nn.AdaptiveLogSoftmaxWithLoss, adaptive_softmax),
    plain(nn.ChannelShuffle, (2, 8, 3, 4), (8, 3, 3), constructors=((2,), (4,))),
    info(nn.CrossMapLRN2d, lambda x, labels: [sample("", (3,), x((2, 5, 4, 4))), sample("", (4, 0.1, 0.5, 2.0), x((1, 7, 3, 3)))]),
    distances(nn.CosineSimilarity, ({}, {"dim": -1}, {"dim": 0, "eps": 1e-3})),
    distances(nn.PairwiseDistance, ({}, {"p": 1.0}, {"p": 3.0, "keepdim": True}, {"p": float("inf")}, {"eps": 0.1})),
    info(nn.EmbeddingBag, bags),
    info(nn.Embedding, embeddings, "more_Embedding"),
    plain(nn.Flatten, (2, 3, 4, 5), (2, 3), constructors=((), (0,), (0, -1))),
    plain(nn.Unflatten, (2, 12, 3), constructors=((1, (3, 4)), (1, (2, -1)))),
    plain(nn.Unfold, (2, 3, 7, 8), (3, 7, 8), constructors=((3,), ((2, 3), 2, 1, (1, 2)))),
    plain(
        nn.Fold,
        (2, 12, 20),
        (12, 20),
        constructors=(((5, 6), 2), ((7, 11), (2, 2), {"stride": 2, "dilation": 1})),
    ),
    plain(nn.Identity, (2, 3)),
    plain(nn.Hardsigmoid, (3, 4), (), constructors=((),)),
    plain(nn.PixelShuffle, (2, 12, 3, 4), (8, 2, 2), constructors=((2,),)),
    plain(nn.PixelUnshuffle, (2, 3, 4, 6), (2, 2, 2), constructors=((2,),)),
    info(nn.MaxUnpool1d, unpools(1)),
    info(nn.MaxUnpool2d, unpools(2)),
    info(nn.MaxUnpool3d, unpools(3)),
    info(nn.Upsample, upsamples),
    plain(nn.UpsamplingNearest2d, (2, 3, 4, 5), constructors=(({"scale_factor": 2},), ((7, 3),))),
    plain(nn.UpsamplingBilinear2d, (2, 3, 4, 5), constructors=(({"scale_factor": 2},), ((7, 3),))),
    info(nn.TransformerDecoder, decoders),
    info(nn.TransformerEncoder, encoders(True), "more_TransformerEncoder", train_and_eval_differ=True),
    info(nn.TransformerEncoderLayer, encoders(False), "more_TransformerEncoderLayer", train_and_eval_differ=True),
    info(nn.MultiheadAttention, attentions, "more_MultiheadAttention", train_and_eval_differ=True),
    info(nn.TripletMarginLoss, triplets),
    info(nn.TripletMarginWithDistanceLoss, with_distance),
    lazies(nn.LazyLinear, (4,), [(3, 5), (5,)]),
    lazies(nn.LazyBatchNorm1d, (), [(4, 3), (4, 3, 5)]),
    lazies(nn.LazyBatchNorm2d, (), [(4, 3, 5, 2)]),
    lazies(nn.LazyBatchNorm3d, (), [(2, 3, 5, 2, 3)]),
    lazies(nn.LazyInstanceNorm1d, (), [(4, 3, 5), (3, 5)]),
    lazies(nn.LazyInstanceNorm2d, (), [(4, 3, 5, 2)]),
    lazies(nn.LazyInstanceNorm3d, (), [(2, 3, 5, 2, 3)]),
    norms(nn.BatchNorm1d, [(4, 3), (4, 3, 5)]),
    norms(nn.BatchNorm2d, [(4, 3, 5, 2)]),
    norms(nn.BatchNorm3d, [(2, 3, 4, 2, 3)]),
    norms(nn.InstanceNorm1d, [(4, 3, 5), (3, 5)]),
    norms(nn.InstanceNorm2d, [(4, 3, 5, 2)]),
    norms(nn.InstanceNorm3d, [(2, 3, 4, 2, 3)]),
    convolutions(nn.Conv1d, 1),
    convolutions(nn.Conv2d, 2),
    convolutions(nn.Conv3d, 3),
    convolutions(nn.ConvTranspose1d, 1),
    convolutions(nn.ConvTranspose2d, 2),
    convolutions(nn.ConvTranspose3d, 3),
    info(nn.RNN, recurrent(nn.RNN), "more_RNN"),
    info(nn.GRU, recurrent(nn.GRU), "more_GRU"),
    info(nn.LSTM, recurrent(nn.LSTM), "more_LSTM"),
    info(nn.CrossEntropyLoss, entropies, "more_CrossEntropyLoss"),
    # Dropout does nothing in eval; what it does in train is in test_modules.py.
    *(
        info(cls, lambda x, labels, n=n: [sample("", (0.3,), x(n))], train_and_eval_differ=True)
        for cls, n in (
            (nn.Dropout, (4, 5)),
            (nn.Dropout1d, (2, 3, 5)),
            (nn.Dropout2d, (2, 3, 4, 5)),
            (nn.Dropout3d, (2, 3, 4, 5, 2)),
            (nn.AlphaDropout, (4, 5)),
            (nn.FeatureAlphaDropout, (2, 3, 4, 5)),
            (nn.RReLU, (4, 5)),
        )
    ),
]
