"""Layers of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` in graphs: an op that takes the same step at each point of time.

What a layer multiplies its input by does not wait for the step before, and is one product. Neither do the gradients of its weights.
What is left is a step: a product, and the cell. PyTorch's decompositions unroll the steps when they trace, and leave out dropout
between layers; here a trace holds one op a layer and direction, whatever the length, and a program a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_tpu._decompose import GraphBuilder, arguments, row_name, special

_aten = torch.ops.aten

_library = torch.library.Library("tpu", "FRAGMENT")
_library.define(
    "_steps(str step, bool reverse, Tensor[] carried, Tensor[] slices, Tensor[] others) -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)

Call = Callable[..., Any]
"""Calls an ATen op: with tensors, fake ones, or values of a graph."""
Values = Sequence[Any]

# ----------------------------------------------------------------------------------------------------------------- steps
# Each: what is carried, slices at this point of time and what is the same at all of them -> what is carried, results of this step.


def _times(call: Call, x: Any, weight: Any) -> Any:
    return call(_aten.mm.default, x, call(_aten.t.default, weight))


def _lstm(call: Call, carried: Values, slices: Values, others: Values) -> tuple[Values, Values]:
    """h [B, P], c [B, H]; gates of the input [B, 4H]; w_hh [4H, P], w_hr [P, H] if there is a projection."""
    (h, c), (gates,), (w_hh, *w_hr) = carried, slices, others
    h, c, work = call(_aten._thnn_fused_lstm_cell.default, gates, _times(call, h, w_hh), c)
    full = h
    if w_hr:
        h = _times(call, h, w_hr[0])
    return (h, c), (h, c, work, *([full] if w_hr else []))


def _lstm_backward(call: Call, carried: Values, slices: Values, others: Values) -> tuple[Values, Values]:
    """Gradients of h and c; of the result, and this step's work, c and c before it."""
    (gh, gc), (gy, work, c, before), (w_hh, *w_hr) = carried, slices, others
    gh = grad = call(_aten.add.Tensor, gh, gy)
    if w_hr:
        gh = call(_aten.mm.default, gh, w_hr[0])
    gates, gc, _ = call(_aten._thnn_fused_lstm_cell_backward_impl.default, gh, gc, before, c, work, False)
    return (call(_aten.mm.default, gates, w_hh), gc), (gates, *([grad] if w_hr else []))


def _gru(call: Call, carried: Values, slices: Values, others: Values) -> tuple[Values, Values]:
    """h [B, H]; gates of the input [B, 3H]; w_hh [3H, H], b_hh [3H] if there is one."""
    (h,), (gates,), (w_hh, *bias) = carried, slices, others
    hidden = call(_aten.addmm.default, bias[0], h, call(_aten.t.default, w_hh)) if bias else _times(call, h, w_hh)
    h, work = call(_aten._thnn_fused_gru_cell.default, gates, hidden, h)
    return (h,), (h, work)


def _gru_backward(call: Call, carried: Values, slices: Values, others: Values) -> tuple[Values, Values]:
    (gh,), (gy, work), (w_hh,) = carried, slices, others
    gh = call(_aten.add.Tensor, gh, gy)
    gates, hidden, gh, _, _ = call(_aten._thnn_fused_gru_cell_backward.default, gh, work, False)
    return (call(_aten.addmm.default, gh, hidden, w_hh),), (gates, hidden)


def _rnn(op: Any) -> Callable[..., tuple[Values, Values]]:
    def step(call: Call, carried: Values, slices: Values, others: Values) -> tuple[Values, Values]:
        """h [B, H]; what comes of the input [B, H]; w_hh [H, H]."""
        h = call(op, call(_aten.add.Tensor, _times(call, carried[0], others[0]), slices[0]))
        return (h,), (h,)

    return step


def _rnn_backward(op: Any, *rest: Any) -> Callable[..., tuple[Values, Values]]:
    def step(call: Call, carried: Values, slices: Values, others: Values) -> tuple[Values, Values]:
        g = call(op, call(_aten.add.Tensor, carried[0], slices[0]), slices[1], *rest)
        return (call(_aten.mm.default, g, others[0]),), (g,)

    return step


_STEPS: dict[str, Callable[..., tuple[Values, Values]]] = {
    "lstm": _lstm,
    "lstm_backward": _lstm_backward,
    "gru": _gru,
    "gru_backward": _gru_backward,
    "rnn_tanh": _rnn(_aten.tanh.default),
    "rnn_tanh_backward": _rnn_backward(_aten.tanh_backward.default),
    "rnn_relu": _rnn(_aten.relu.default),
    "rnn_relu_backward": _rnn_backward(_aten.threshold_backward.default, 0),
}

# What the cells give: PyTorch has no Meta kernels for the GRU's, and one for the LSTM's that wants biases.
_GIVES: dict[Any, Callable[..., Any]] = {
    _aten._thnn_fused_lstm_cell.default: lambda gates, hidden, c: (
        c.new_empty(c.shape),
        c.new_empty(c.shape),
        gates.new_empty(gates.shape),
    ),
    _aten._thnn_fused_lstm_cell_backward_impl.default: lambda gh, gc, before, c, work, bias: (
        work.new_empty(work.shape),
        c.new_empty(c.shape),
        None,
    ),
    _aten._thnn_fused_gru_cell.default: lambda gates, hidden, h: (h.new_empty(h.shape), h.new_empty((h.shape[0], 5 * h.shape[1]))),
    _aten._thnn_fused_gru_cell_backward.default: lambda g, work, bias: (
        g.new_empty((g.shape[0], 3 * g.shape[1])),
        g.new_empty((g.shape[0], 3 * g.shape[1])),
        g.new_empty(g.shape),
        None,
        None,
    ),
}


def _shape(op: Any, *args: Any) -> Any:
    """What an op's results look like."""
    return _GIVES.get(op, op)(*args)


# ------------------------------------------------------------------------------------------------------- one by one, and fake


def _run(step: str, reverse: bool, carried: Values, slices: Values, others: Values) -> list[torch.Tensor]:
    n = slices[0].shape[0]
    rows: list[Values] = []
    for t in reversed(range(n)) if reverse else range(n):
        carried, row = _STEPS[step](lambda op, *args: op(*args), carried, [s[t] for s in slices], others)
        rows.append(row)
    if reverse:
        rows.reverse()
    return [*(x.clone() for x in carried), *(torch.stack(list(r)) for r in zip(*rows, strict=True))]


def _fake(step: str, reverse: bool, carried: Values, slices: Values, others: Values) -> list[torch.Tensor]:
    last, row = _STEPS[step](_shape, carried, [s.select(0, 0) for s in slices], others)
    return [*(x.new_empty(x.shape) for x in last), *(x.new_empty((slices[0].shape[0], *x.shape)) for x in row)]


_library.impl("_steps", _run, "PrivateUse1")
torch.library.register_fake("tpu::_steps", _fake, lib=_library)
_steps = torch.ops.tpu._steps.default

# -------------------------------------------------------------------------------------------------------------- in programs

_SLICES = 1  # which of the op's lists is sliced


class _Value:
    """A value of a graph, and what it looks like."""

    def __init__(self, number: int, like: torch.Tensor) -> None:
        self.number, self.like = number, like


def _writer(builder: GraphBuilder) -> Call:
    """Appends calls to a graph."""

    def call(op: Any, *args: Any) -> Any:
        like = _shape(op, *(a.like if isinstance(a, _Value) else a for a in args))
        numbers = [a.number if isinstance(a, _Value) else a for a in arguments(op, args, {})]
        several = like if isinstance(like, tuple) else (like,)
        made = builder.node(row_name(op), numbers, [builder.spec(x) for x in several])
        values = [None if x is None else _Value(n, x) for n, x in zip(made, several, strict=True)]
        return values if isinstance(like, tuple) else values[0]

    return call


def lower(builder: GraphBuilder, args: Sequence[Any], val: Sequence[torch.Tensor]) -> list[int]:
    """The values of a ``tpu::_steps``: a loop, whose body is a graph of its own."""
    step, reverse, *groups = args
    inner = GraphBuilder("step")
    given: list[list[_Value]] = []
    place = 0
    for k, group in enumerate(groups):
        given.append([])
        for node in group:
            x = node.meta["val"]
            like = torch.empty([builder.size(n) for n in x.shape[k == _SLICES :]], dtype=x.dtype, device="meta")
            inner.input(node, place, 0, like)
            given[k].append(_Value(inner.values[node], like))
            place += 1
    last, row = _STEPS[step](_writer(inner), *given)
    results = [x.number for x in (*last, *row)]
    body = inner.finish_values(results, [None] * len(results))
    ints = [body, len(groups[0]), len(groups[_SLICES]), int(reverse)]
    return builder.region("scan", ints, [builder.values[node] for group in groups for node in group], val)


special[_steps] = lower


# ------------------------------------------------------------------------------------------------------------------- layers


def _product(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The sum over time and batch of gᵀ·x."""
    return g.flatten(0, 1).t() @ x.flatten(0, 1)


def _before(first: torch.Tensor, x: torch.Tensor, reverse: bool) -> torch.Tensor:
    """What was carried into each step that gave ``x``."""
    first = first.unsqueeze(0)
    return torch.cat([x[1:], first]) if reverse else torch.cat([first, x[:-1]])


class _Layer(torch.autograd.Function):
    """All steps of a layer in one direction: result [T, B, P], and what is carried at the end."""

    @staticmethod
    def forward(ctx: Any, kind: str, reverse: bool, gates: Any, w_hh: Any, w_hr: Any, bias: Any, *state: Any) -> Any:
        others = [x for x in (w_hh, w_hr, bias) if x is not None]
        found = _steps(kind, reverse, list(state), [gates], others)
        last, (y, *rest) = found[: len(state)], found[len(state) :]
        ctx.kind, ctx.reverse, ctx.projects, ctx.biased = kind, reverse, w_hr is not None, bias is not None
        ctx.save_for_backward(w_hh, w_hr, y, *state, *rest)
        return (y, *last)

    @staticmethod
    def backward(ctx: Any, gy: torch.Tensor, *last: torch.Tensor) -> Any:
        w_hh, w_hr, y, h, *saved = ctx.saved_tensors
        kind, reverse, g_hr, bias = f"{ctx.kind}_backward", ctx.reverse, None, None
        others = [w_hh] if w_hr is None else [w_hh, w_hr]
        if ctx.kind == "lstm":
            c, cells, work, *full = saved
            found = _steps(kind, not reverse, list(last), [gy, work, cells, _before(c, cells, reverse)], others)
            first, gates, hidden = found[:2], found[2], found[2]
            g_hr = _product(found[3], full[0]) if full else None
        elif ctx.kind == "gru":
            *first, gates, hidden = _steps(kind, not reverse, list(last), [gy, saved[0]], others)
            bias = hidden.sum((0, 1)) if ctx.biased else None
        else:
            *first, gates = _steps(kind, not reverse, list(last), [gy, y], others)
            hidden = gates
        return (None, None, gates, _product(hidden, _before(h, y, reverse)), g_hr, bias, *first)


def _layer(kind: str, x: torch.Tensor, state: Sequence[torch.Tensor], weights: list[Any], biased: bool, reverse: bool) -> Any:
    w_ih, w_hh, *rest = weights
    b_ih, b_hh = rest[:2] if biased else (None, None)
    w_hr = rest[2 * biased] if len(rest) > 2 * biased else None
    if kind == "gru":
        gates = _aten.linear(x, w_ih, b_ih)
    else:
        gates, b_hh = _aten.linear(x, w_ih, None if b_ih is None else b_ih + b_hh), None
    in_type = [None if w is None else w.to(gates.dtype) for w in (w_hh, w_hr, b_hh, *state)]  # autocast's
    return _Layer.apply(kind, reverse, gates, *in_type)


def layers(
    kind: str,
    x: torch.Tensor,
    state: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """What ``aten::lstm`` and its like compute: result, and each state [layers · directions, B, ..] at the end."""
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    x = x.transpose(0, 1) if batch_first else x
    ends = []
    for i in range(num_layers):
        outs = []
        for d in range(directions):
            k = i * directions + d
            y, *last = _layer(kind, x, [s[k] for s in state], list(params[k * each : (k + 1) * each]), has_biases, d == 1)
            outs.append(y)
            ends.append(last)
        x = torch.cat(outs, 2) if bidirectional else outs[0]
        if train and dropout > 0 and i + 1 < num_layers:
            x = torch.dropout(x, dropout, True)
    x = x.transpose(0, 1) if batch_first else x
    return (x, *(torch.stack(list(s)) for s in zip(*ends, strict=True)))


def _leave_to_eager_mode(kind: str) -> None:
    """Ends Dynamo's graph, if it is Dynamo that traces. The module keeps references to its weights, which in a transform of
    ``torch.func`` would be the transform's own tensors."""
    from torch._dynamo import exc, symbolic_convert

    if getattr(symbolic_convert.tls, "current_tx", None) is not None:
        exc.unimplemented(
            gb_type="a recurrent module in a transform", context=kind, explanation=f"{kind} under torch.func", hints=[]
        )


def _route(kind: str) -> None:
    packet = getattr(_aten, kind)
    composite = torch._C.DispatchKey.CompositeImplicitAutograd

    def padded(x: torch.Tensor, hx: Any, *args: Any) -> Any:
        no_steps = x.size(1 if args[-1] else 0) == 0
        transformed = torch._C._functorch.peek_interpreter_stack() is not None
        if transformed:
            _leave_to_eager_mode(kind)
        if no_steps or transformed or torch.compiler.is_exporting():
            return packet.input._op_dk(composite, x, hx, *args)  # torch.func and export know ATen's ops only
        return layers(kind, x, list(hx) if kind == "lstm" else [hx], *args)

    def packed(*args: Any) -> Any:
        return packet.data._op_dk(composite, *args)

    packet.input.py_impl(torch._C.DispatchKey.AutogradPrivateUse1)(padded)
    packet.data.py_impl(torch._C.DispatchKey.AutogradPrivateUse1)(packed)


for _kind in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    _route(_kind)
