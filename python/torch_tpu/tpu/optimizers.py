"""``torch.tpu.optimizers``: optimizers without state of their own, for a whole training step as one program.

An optimizer makes a ``ParamGroup`` from parameters, which holds them and their moments, and ``step`` updates that in place. What
they compute is ``torch.optim``'s. A :class:`SingleTraceTrainer` traces loss, gradients and update into one graph.
"""

from __future__ import annotations

import abc
import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import torch
from torch.optim import _muon, adamw, sgd
from torch.utils import _pytree as pytree

Params = dict[str, torch.Tensor]


@dataclasses.dataclass
class _ParamGroup:
    """Parameters and what an optimizer remembers of them, by name (``.`` in names becomes ``_``)."""

    params: Params
    opt_state_m: Params = dataclasses.field(default_factory=dict)
    opt_state_v: Params = dataclasses.field(default_factory=dict)
    opt_steps: Params = dataclasses.field(default_factory=dict)


pytree.register_pytree_node(
    _ParamGroup,
    lambda g: ([g.params, g.opt_state_m, g.opt_state_v, g.opt_steps], None),
    lambda children, _: _ParamGroup(*children),
    serialized_type_name="torch.tpu.optimizers.ParamGroup",
)


def _named(params: Params | torch.nn.Module) -> Params:
    if isinstance(params, torch.nn.Module):
        return {name.replace(".", "_"): p.detach() for name, p in params.named_parameters()}
    return params


def _zeros(params: Params, dtype: torch.dtype | None = None) -> Params:
    return {name: torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format) for name, p in params.items()}


def _scalars(params: Params, value: float) -> Params:
    return {name: torch.full((), value, device=p.device) for name, p in params.items()}


class Optimizer(abc.ABC):
    """What optimizers share. Hyperparameters are fixed when one is made: a traced step has them in it.

    Args:
        lr: step size.
        weight_decay: how much of a parameter is taken away each step, relative to ``lr`` where the method decouples it.
    """

    def __init__(self, lr: float = 1e-3, weight_decay: float = 0.0, **others: Any) -> None:
        self._defaults = {"lr": lr, "weight_decay": weight_decay, **others}

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The hyperparameters, read-only."""
        return types.MappingProxyType(self._defaults)

    ParamGroup: ClassVar[type] = _ParamGroup

    @abc.abstractmethod
    def init_param_group(self, params: Params | torch.nn.Module) -> _ParamGroup:
        """Parameters (a module's, or name -> tensor) with fresh state."""

    @abc.abstractmethod
    def step(self, param_group: _ParamGroup, grads: Params) -> _ParamGroup:
        """Update ``param_group`` in place by ``grads`` (name -> gradient) and return it."""

    def __call__(self, param_group: _ParamGroup, grads: Params) -> _ParamGroup:
        return self.step(param_group, grads)


class AdamW(Optimizer):
    """``torch.optim.AdamW``; moments in bfloat16 unless told otherwise.

    Args:
        lr, weight_decay, beta1, beta2, eps, maximize, foreach, capturable, differentiable, fused, grad_scale, found_inf: as there.
        use_bfloat16_moments: keep both moments in bfloat16, for half the memory.
        amsgrad: only False.
    """

    def __init__(
        self,
        lr: float = 1e-3,
        weight_decay: float = 1e-2,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        use_bfloat16_moments: bool = True,
        amsgrad: bool = False,
        maximize: bool = False,
        foreach: bool | None = False,
        capturable: bool = True,
        differentiable: bool = False,
        fused: bool | None = False,
        grad_scale: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        if amsgrad:
            raise NotImplementedError("torch.tpu.optimizers.AdamW keeps no maxima: use torch.optim.AdamW(amsgrad=True)")
        self._use_bfloat16_moments = use_bfloat16_moments
        self._how: dict[str, Any] = {
            "beta1": beta1,
            "beta2": beta2,
            "eps": eps,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "grad_scale": grad_scale,
            "found_inf": found_inf,
        }
        super().__init__(lr, weight_decay, use_bfloat16_moments=use_bfloat16_moments, **self._how)

    def init_param_group(self, params: Params | torch.nn.Module) -> _ParamGroup:
        p = _named(params)
        dtype = torch.bfloat16 if self._use_bfloat16_moments else None
        return _ParamGroup(p, _zeros(p, dtype), _zeros(p, dtype), _scalars(p, 0.0))

    @torch.no_grad()
    def step(self, param_group: _ParamGroup, grads: Params) -> _ParamGroup:
        names = list(param_group.params)
        state = (param_group.params, grads, param_group.opt_state_m, param_group.opt_state_v)
        params, gradients, first, second = ([of[n] for n in names] for of in state)
        adamw.adamw(
            params,
            gradients,
            first,
            second,
            [],
            [param_group.opt_steps[n] for n in names],
            lr=self._defaults["lr"],
            weight_decay=self._defaults["weight_decay"],
            **self._how,
        )
        return param_group


class Sgd(Optimizer):
    """``torch.optim.SGD``.

    Args:
        lr, momentum, dampening, weight_decay, nesterov, maximize, foreach: as there.
    """

    def __init__(
        self,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        foreach: bool | None = False,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        self._how: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "maximize": maximize, "foreach": foreach}
        self._dampening = dampening
        super().__init__(lr, weight_decay, dampening=dampening, **self._how)

    def init_param_group(self, params: Params | torch.nn.Module) -> _ParamGroup:
        p = _named(params)
        return _ParamGroup(p, _zeros(p) if self._how["momentum"] != 0 else {}, {}, _scalars(p, 1.0))

    @torch.no_grad()
    def step(self, param_group: _ParamGroup, grads: Params) -> _ParamGroup:
        """A moment starts as the first gradient: the step count, a tensor, says whether this is the first."""
        for name, p in param_group.params.items():
            m, count = param_group.opt_state_m.get(name), param_group.opt_steps[name]
            damp = self._dampening
            grad = grads[name]
            if m is not None and damp != 0:  # first time: m = grad, not (1 - damp) * grad; make up for it beforehand
                decayed = -grad if self._how["maximize"] else grad
                decayed = decayed.add(p, alpha=self._defaults["weight_decay"])
                m.add_(torch.where(count == 1, decayed * (damp / self._how["momentum"]), torch.zeros_like(decayed)))
            sgd.sgd(
                [p],
                [grad],
                [m],
                lr=self._defaults["lr"],
                weight_decay=self._defaults["weight_decay"],
                dampening=damp,
                **self._how,
            )
            count.add_(1.0)
        return param_group


class Muon(Optimizer):
    """``torch.optim.Muon``, for matrices.

    Args:
        lr, weight_decay, momentum, nesterov, ns_coefficients, eps, ns_steps, adjust_lr_fn: as there.
        use_bfloat16_moments: keep the momentum in bfloat16.
        foreach, has_complex: as its functional form's.
    """

    def __init__(
        self,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (_muon.DEFAULT_A, _muon.DEFAULT_B, _muon.DEFAULT_C),
        eps: float = _muon.EPS,
        ns_steps: int = _muon.DEFAULT_NS_STEPS,
        adjust_lr_fn: str | None = None,
        use_bfloat16_moments: bool = False,
        foreach: bool | None = False,
        has_complex: bool = False,
    ) -> None:
        self._use_bfloat16_moments = use_bfloat16_moments
        self._how: dict[str, Any] = {
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "foreach": foreach,
            "has_complex": has_complex,
        }
        super().__init__(lr, weight_decay, use_bfloat16_moments=use_bfloat16_moments, **self._how)

    def init_param_group(self, params: Params | torch.nn.Module) -> _ParamGroup:
        p = _named(params)
        for name, x in p.items():
            if x.dim() != 2:
                raise ValueError(f"Muon is for matrices: {name} has shape {tuple(x.shape)}; give it to AdamW")
        return _ParamGroup(p, _zeros(p, torch.bfloat16 if self._use_bfloat16_moments else None), {}, _scalars(p, 0.0))

    @torch.no_grad()
    def step(self, param_group: _ParamGroup, grads: Params) -> _ParamGroup:
        names = list(param_group.params)
        _muon.muon(
            *([of[n] for n in names] for of in (param_group.params, grads, param_group.opt_state_m)),
            lr=self._defaults["lr"],
            weight_decay=self._defaults["weight_decay"],
            **self._how,
        )
        for n in names:
            param_group.opt_steps[n].add_(1.0)
        return param_group


# -------------------------------------------------------------------------------------------- a training step as one graph


def _call_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    return (tuple(inputs), {}) if isinstance(inputs, tuple | list) else ((inputs,), {})


def _loss_of(out: Any, targets: Any) -> torch.Tensor:
    if targets is not None:
        return torch.nn.functional.mse_loss(out, targets)
    get = out.get if isinstance(out, Mapping) else lambda name: getattr(out, name, None)
    if get("loss") is not None:
        return cast(torch.Tensor, get("loss"))
    for x in (get("logits"), get("sample"), *pytree.tree_leaves(out)):
        if isinstance(x, torch.Tensor):
            return x.mean()
    raise TypeError(f"the model's output, a {type(out).__name__}, holds no tensor to take a loss from: give compute_loss_fn")


class SingleTraceTrainer:
    """Traces loss, gradients and optimizer step of a model into one graph, and compiles that.

    Args:
        model: its parameters are trained in place.
        optimizer: None computes gradients only, and leaves them in the parameters' ``grad``.
        compile_fn: ``fn(graph_module, flat_inputs)`` or ``fn(graph_module)``, giving a callable of the flat inputs; the default of
            :meth:`make_compiled_train_step`.
        compute_loss_fn: ``fn(model, args, kwargs) -> loss``, in place of the built-in loss: with targets the mean squared error,
            else the output's ``loss``, else the mean of its ``logits``, ``sample`` or first tensor.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer | None = None,
        compile_fn: Callable[..., Any] | None = None,
        compute_loss_fn: Callable[..., torch.Tensor] | None = None,
    ) -> None:
        tie = getattr(model, "tie_weights", None)
        if callable(tie):
            tie()
        self._model, self._optimizer = model, optimizer
        self._compile_fn, self._compute_loss_fn = compile_fn, compute_loss_fn
        named = [*model.named_parameters(), *model.named_buffers()]
        self._names = {name.replace(".", "_"): name for name, _ in named}
        if len(self._names) != len(named):
            raise ValueError("two parameters or buffers have the same name once '.' is replaced by '_'")
        params = _named(model)
        self._buffers = {name.replace(".", "_"): b.detach() for name, b in model.named_buffers()}
        self._param_group: Any = optimizer.init_param_group(params) if optimizer is not None else params

    @property
    def param_group(self) -> Any:
        """The optimizer's ``ParamGroup``, or name -> parameter if there is no optimizer."""
        return self._param_group

    @property
    def params(self) -> Params:
        """The parameters by their names in the model."""
        params = self._param_group.params if self._optimizer is not None else self._param_group
        return {self._names[k]: v for k, v in params.items()}

    def _loss(self, params: Params, buffers: Params, inputs: Any, targets: Any) -> tuple[torch.Tensor, Params]:
        state = {self._names[k]: v for k, v in (params | buffers).items()}
        args, kwargs = _call_arguments(inputs)
        if self._compute_loss_fn is not None:
            with torch.nn.utils.stateless._reparametrize_module(self._model, state, tie_weights=True):
                return self._compute_loss_fn(self._model, args, kwargs), buffers
        return _loss_of(torch.func.functional_call(self._model, state, args, kwargs), targets), buffers

    def _step(self, group: Any, buffers: Params, inputs: Any, targets: Any) -> tuple[Any, ...]:
        params = group.params if self._optimizer is not None else group
        grads, (loss, buffers) = torch.func.grad_and_value(self._loss, has_aux=True)(params, buffers, inputs, targets)
        return loss, self._optimizer(group, grads) if self._optimizer is not None else grads, buffers

    def make_compiled_train_step(
        self, example_inputs: Any, example_targets: Any = None, compile_fn: Callable[..., Any] | None = None
    ) -> Callable[..., torch.Tensor]:
        """Trace and compile a step for inputs like these.

        Args:
            example_inputs: the model's argument, tuple of arguments, or dict of keyword arguments.
            example_targets: for the built-in loss.
            compile_fn: in place of the trainer's.

        Returns:
            ``step(inputs, targets=None) -> loss``, which updates the model.
        """
        compile_fn = compile_fn if compile_fn is not None else self._compile_fn
        if compile_fn is None:
            raise ValueError("expected compile_fn, given to SingleTraceTrainer or here")
        from torch.fx.experimental.proxy_tensor import make_fx

        flat, in_spec = pytree.tree_flatten((self._param_group, self._buffers, example_inputs, example_targets))
        out_spec: Any = None

        def traced(*values: Any) -> Any:
            nonlocal out_spec
            result, out_spec = pytree.tree_flatten(self._step(*pytree.tree_unflatten(values, in_spec)))
            return tuple(result)

        graph = make_fx(traced, tracing_mode="fake")(*flat)
        compiled = compile_fn(graph) if _takes_one(compile_fn) else compile_fn(graph, flat)

        def train_step(inputs: Any, targets: Any = None) -> torch.Tensor:
            values, spec = pytree.tree_flatten((self._param_group, self._buffers, inputs, targets))
            if spec != in_spec:
                raise ValueError("expected inputs and targets of the same structure as the examples")
            loss, new, buffers = pytree.tree_unflatten(compiled(*values), out_spec)
            self._update(new, buffers)
            return loss

        return train_step

    def _update(self, new: Any, buffers: Params) -> None:
        self._buffers = buffers
        with torch.no_grad():
            mine = dict(self._model.named_buffers())
            for k, b in buffers.items():
                mine[self._names[k]].copy_(b)
        if self._optimizer is not None:
            self._param_group = new
            return
        for name, p in self._model.named_parameters():
            p.grad = new[name.replace(".", "_")]


def _takes_one(fn: Callable[..., Any]) -> bool:
    try:
        kinds = [p.kind for p in inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Parameter.VAR_POSITIONAL not in kinds and sum(k in places for k in kinds) == 1
