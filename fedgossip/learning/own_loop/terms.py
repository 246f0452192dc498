"""Additions of a federated algorithm to a loop's gradients: the pull of FedProx, the correction of SCAFFOLD.

    step()          the gradients are in `grad`: terms are added before the optimizer reads them
    step(closure)   the gradients are computed inside: terms are added after each call of the closure

If several processes train one model, by DDP or FSDP's `fully_shard`, rank 0 orders the collective actions.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import distributed, nn

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Terms
from fedgossip.learning.own_loop.parameters import Exchanged

MOMENTUM = {"momentum_buffer", "exp_avg"}
"""Names of the buffers with the direction of the last steps in torch's optimizers."""


class GradientTerms:
    """Hooks before each step of the optimizers: gradient += pull * (weights - given) + correction.

    If an algorithm counts steps from rest (FedNova with momentum), a round begins without momentum; other optimizer
    state stays.
    """

    def __init__(self, exchanged: Exchanged, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._exchanged, self._optimizers = exchanged, optimizers
        self._terms: Terms | None = None
        self._given: list[torch.Tensor] = []
        self._correction: list[torch.Tensor] = []
        self._steps = [0] * len(optimizers)
        self._rates = [0.0] * len(optimizers)
        self._hooks = [
            one.register_step_pre_hook(self._hook(place))
            for place, one in enumerate(optimizers)
            if isinstance(one, torch.optim.Optimizer)
        ]

    def use(self, terms: Terms | None, given: Vector) -> None:
        """Add these terms from now on, none for None, and restart the step count.

        Raises ConfigError for an optimizer that makes the algorithm's formula wrong.
        """
        self._terms = terms
        self._steps, self._rates = [0] * len(self._optimizers), [0.0] * len(self._optimizers)
        if terms and terms.momentum is not None:
            for optimizer in self._optimizers:
                _check_form(optimizer, terms)
                if terms.momentum > 0:
                    forget_direction(optimizer)
        self._given = self._exchanged.parts_of(given) if terms and terms.pull else []
        corrected = terms is not None and terms.correction is not None
        self._correction = self._exchanged.parts_of(terms.correction) if corrected and terms else []  # type: ignore[arg-type]

    def measure_steps(self, steps: int, changed: Callable[[], bool]) -> tuple[float, float]:
        """Return (steps, rate): the optimizers' number of steps since `use`, and their mean learning rate (without
        skipped steps).

        `steps`: the loop's count, for a run without terms.  `changed`: whether the weights differ.  Raises
        TrainingError if they differ without a step: their gradients lack the terms.
        """
        if self._terms is None or not any(self._steps):
            if self._terms is not None and self._terms.active and changed():
                named = ", ".join(sorted({type(one).__name__ for one in self._optimizers}))
                text = f"the weights changed, but by no step of the optimizers given to join() ({named})"
                raise TrainingError(
                    text, "Give join() the optimizers whose step() the loop calls: it adds terms there."
                )
            groups = [group for one in self._optimizers for group in one.param_groups]
            return float(steps), float(groups[0].get("lr", 1.0)) if groups else 1.0
        if self._correction and len(set(zip(self._steps, self._rates, strict=True))) > 1:
            text = f"scaffold: the optimizers of this loop took {self._steps} steps in one round"
            raise TrainingError(text, "Let all optimizers take as many steps, at the same rates, or choose fedavg.")
        most = self._steps.index(max(self._steps))
        return float(self._steps[most]), self._rates[most] / self._steps[most]

    def remove(self) -> None:
        """Remove the hooks from the optimizers."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, place: int) -> Callable[..., Any]:
        """Return one optimizer's hook, with the arguments of `step`."""

        def prepare_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._count(place, optimizer)
            if not (self._given or self._correction):
                return None
            closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
            if not callable(closure):
                self._add(optimizer, _scale_of(optimizer, kwargs))
                return None

            def evaluate_with_terms() -> Any:
                loss = closure()
                value = self._add(optimizer, _scale_of(optimizer, kwargs))
                # LBFGS's line search needs the loss that matches the gradient
                return loss + value if isinstance(optimizer, torch.optim.LBFGS) and loss is not None else loss

            if "closure" in kwargs:
                return args, {**kwargs, "closure": evaluate_with_terms}
            return (args[0], evaluate_with_terms, *args[2:]), kwargs

        return prepare_step

    def _count(self, place: int, optimizer: torch.optim.Optimizer) -> None:
        self._steps[place] += 1
        if self._correction:
            _check_rates(optimizer)
        groups = optimizer.param_groups
        self._rates[place] += float(groups[0].get("lr", 1.0)) if groups else 1.0

    def _add(self, optimizer: torch.optim.Optimizer, scale: Any) -> Any:
        """Add the terms to this optimizer's gradients; return their part of the loss."""
        signs = {id(p): -1 if group.get("maximize") else 1 for group in optimizer.param_groups for p in group["params"]}
        value: Any = 0.0
        with torch.no_grad():
            for place, tensor in enumerate(self._exchanged.tensors()):
                if id(tensor) not in signs or tensor.grad is None:
                    continue
                term = torch.zeros_like(tensor)
                if self._given:
                    away = tensor - self._given[place]
                    term += self._terms.pull * away  # type: ignore[union-attr]
                    value += self._terms.pull / 2 * away.square().sum()  # type: ignore[union-attr]
                if self._correction:
                    term += self._correction[place]
                    value += (self._correction[place] * tensor).sum()
                _raise_gradient(
                    tensor, term * (signs[id(tensor)] * scale), self._exchanged.layout.names[place], optimizer
                )
        return value


def _raise_gradient(tensor: torch.Tensor, term: torch.Tensor, name: str, optimizer: torch.optim.Optimizer) -> None:
    """Add `term` to the tensor's gradient; a sparse gradient becomes dense."""
    assert tensor.grad is not None
    if not tensor.grad.is_sparse:
        tensor.grad += term
        return
    if isinstance(optimizer, torch.optim.SparseAdam):
        text = f"the algorithm adds a term to each element of {name!r}, and SparseAdam takes sparse gradients alone"
        raise ConfigError(text, "Take SGD or Adam for it, or fedavg, which adds nothing to gradients.")
    tensor.grad = tensor.grad.to_dense() + term


def _scale_of(optimizer: torch.optim.Optimizer, kwargs: dict[str, Any]) -> Any:
    """Return the factor that a GradScaler leaves to a fused optimizer, or 1."""
    if (scaler := kwargs.get("grad_scaler")) is not None:
        return scaler.get_scale()
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else scale


def _check_form(optimizer: torch.optim.Optimizer, terms: Terms) -> None:
    kind = type(optimizer).__name__
    if terms.correction is not None:
        advice = "Train with torch.optim.SGD of one rate and no momentum, or choose fedavg, fedprox or fedadam."
        if not isinstance(optimizer, torch.optim.SGD):
            raise ConfigError(f"scaffold reads gradients off the steps of plain SGD, and this loop has {kind}", advice)
        if any(group.get("maximize") for group in optimizer.param_groups):
            raise ConfigError("scaffold reads gradients off descending steps, and this SGD maximizes", advice)
        _check_rates(optimizer)
    momenta = {float(group["momentum"]) for group in optimizer.param_groups if "momentum" in group}
    if wrong := sorted(momenta - {terms.momentum}):
        rule = "scaffold" if terms.correction is not None else "fednova"
        text = f"{rule} counts with momentum {terms.momentum:g}, and the {kind} of this loop has {wrong[0]:g}"
        raise ConfigError(text, f"Set coordinator.options.momentum = {wrong[0]:g}." if rule == "fednova" else advice)


def _check_rates(optimizer: torch.optim.Optimizer) -> None:
    rates = sorted({float(group["lr"]) for group in optimizer.param_groups})
    if len(rates) > 1:
        text = f"scaffold reads gradients off steps of one rate, and the groups of this loop have {rates}"
        raise ConfigError(text, "Give all parameter groups one learning rate, or choose fedavg or fedprox.")


def forget_direction(optimizer: torch.optim.Optimizer) -> None:
    """Reset the optimizer's momentum: its buffers are set to zero."""
    with torch.no_grad():
        for kept in optimizer.state.values():
            for name in MOMENTUM & kept.keys():
                if kept[name] is not None:
                    kept[name].zero_()


WORDS = 6
"""Length of a message: an order and five numbers."""


class RankOrder(enum.IntEnum):
    """The orders of rank 0 to the others."""

    GO = 0
    READ = 1
    WRITE = 2
    ADD = 3
    PROJECT = 4
    TERMS = 5
    MEASURE = 6


def is_ranked() -> bool:
    """Whether several processes train one model here."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def is_first() -> bool:
    """Whether this is rank 0."""
    return distributed.get_rank() == 0


def check_supported(model: nn.Module) -> None:
    """Raise ConfigError for a model in parts that cannot be read as a whole."""
    for part in model.modules():
        if type(part).__name__ == "FullyShardedDataParallel":
            advice = "Use torch.distributed.fsdp.fully_shard (FSDP2), or DistributedDataParallel."
            raise ConfigError("join: FullyShardedDataParallel hides the shapes of its parameters", advice)


class RankLink:
    """The messages of rank 0 to the others: numbers, and vectors of [length]."""

    def __init__(self, length: int, dtype: np.dtype[Any]) -> None:
        on_gpu = "nccl" in distributed.get_backend() and "gloo" not in distributed.get_backend()
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        self._empty = np.empty(length, dtype)
        self.size = distributed.get_world_size()

    def broadcast_order(self, order: RankOrder, *numbers: int) -> None:
        words = [int(order), *numbers] + [0] * (WORDS - 1 - len(numbers))
        distributed.broadcast(torch.tensor(words, dtype=torch.int64, device=self._device), 0)

    def receive_order(self) -> tuple[RankOrder, list[int]]:
        words = torch.empty(WORDS, dtype=torch.int64, device=self._device)
        distributed.broadcast(words, 0)
        order, *numbers = words.tolist()
        return RankOrder(order), numbers

    def give(self, vector: Vector) -> None:
        distributed.broadcast(torch.from_numpy(vector.copy()).to(self._device), 0)

    def receive(self) -> Vector:
        values = torch.from_numpy(self._empty.copy()).to(self._device)
        distributed.broadcast(values, 0)
        return frozen(values.cpu().numpy())


def obey(order: RankOrder, numbers: Sequence[int], link: RankLink, exchanged: Exchanged, terms: GradientTerms) -> None:
    """Repeat, at another rank, rank 0's actions except measuring."""
    match order:
        case RankOrder.READ:
            exchanged.read()
        case RankOrder.WRITE:
            exchanged.write(link.receive())
        case RankOrder.ADD:
            exchanged.add(link.receive())
        case RankOrder.PROJECT:
            exchanged.frozen_projections()
        case RankOrder.TERMS:
            given = link.receive()
            pull = float(np.int64(numbers[0]).view(np.float64))
            momentum = float(np.int64(numbers[2]).view(np.float64))
            counted = None if math.isnan(momentum) else momentum
            terms.use(Terms(pull, link.receive() if numbers[1] else None, counted), given)


class RankedExchange(Exchanged):
    """The exchange of rank 0: all ranks repeat its reads and writes."""

    def __init__(self, module: nn.Module, only: Sequence[str] = (), buffers: str = "average") -> None:
        super().__init__(module, only, buffers)
        self.link = RankLink(self.layout.length, self.layout.dtype)

    def read(self) -> Vector:
        self.link.broadcast_order(RankOrder.READ)
        return super().read()

    def write(self, vector: Vector) -> None:
        self.link.broadcast_order(RankOrder.WRITE)
        self.link.give(vector)
        super().write(vector)

    def add(self, difference: Vector) -> None:
        self.link.broadcast_order(RankOrder.ADD)
        self.link.give(difference)
        super().add(difference)

    def frozen_projections(self) -> tuple[float, ...]:
        self.link.broadcast_order(RankOrder.PROJECT)
        return super().frozen_projections()


class RankedTerms(GradientTerms):
    """The terms of rank 0, which all ranks use."""

    def __init__(self, exchanged: RankedExchange, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__(exchanged, optimizers)
        self._link, self._used = exchanged.link, False

    def use(self, terms: Terms | None, given: Vector) -> None:
        before, self._used = self._used, terms is not None and (terms.active or bool(terms.momentum))
        if not (before or self._used):
            return
        correction = terms.correction if terms else None
        pull = np.float64(terms.pull if terms else 0.0).view(np.int64)
        counted = np.float64(math.nan if terms is None or terms.momentum is None else terms.momentum).view(np.int64)
        self._link.broadcast_order(RankOrder.TERMS, int(pull), int(correction is not None), int(counted))
        self._link.give(given)
        if correction is not None:
            self._link.give(correction)
        super().use(terms, given)
