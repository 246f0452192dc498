"""One step of the optimisers on tensors whose first axis is the node; every operation is elementwise.

No fused forms (alpha=, addcmul): they round once in some lanes and twice in others, and a node's bits would depend on
its neighbours in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedgossip.algorithms.descent.base import norm
from fedgossip.algorithms.descent.methods import LAMB, LARS
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.limits import CalledWith
from fedgossip.data.custom import call_part, function
from fedgossip.learning.settings import TrainSettings

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Kingma and Ba, Adam, ICLR 2015
LAMB_EPSILON = LAMB.epsilon

Tensors = Sequence[torch.Tensor]
Layers = Callable[[Tensors], Sequence[tuple[Tensors, bool]]]
"""Tensors [k, ...] -> the views of each tensor of the model, in the model's order, and whether it has a trust ratio."""


@dataclass(frozen=True, slots=True, eq=False)
class Pull:
    """The terms of a federated client on tensors [k, ...]: gradient += mu * (weights - anchor) + correction."""

    mu: torch.Tensor
    anchor: torch.Tensor
    correction: torch.Tensor

    def add_to(self, gradient: torch.Tensor, weights: torch.Tensor) -> None:
        gradient.add_((weights - self.anchor).mul_(self.mu)).add_(self.correction)


class Rates(NamedTuple):
    """The factors of a step, float32; `rate` is [steps, k], the others [steps or 1, k or 1]."""

    rate: npt.NDArray[np.float32]
    root: npt.NDArray[np.float32]
    kept: npt.NDArray[np.float32]
    """The share of a weight that remains after decoupled decay."""
    mean: npt.NDArray[np.float32]
    """lamb: the accumulated share of the gradients' mean in its first moment; for adam it is part of `rate`."""


def rates(settings: TrainSettings, lrs: Sequence[float], taken: Sequence[int], steps: int) -> Rates:
    """Return the factors of the next steps of nodes after `taken` steps: Adam's two bias corrections.

    Uses plain floats: the lanes of numpy.power round differently.  For sgd: the learning rates, and ones.
    """
    ones = np.ones((1, 1), np.float32)
    if "first" not in settings.slots:
        return Rates(np.broadcast_to(np.array(lrs, np.float32), (steps, len(lrs))), ones, ones, ones)
    times = [[before + step for before in taken] for step in range(1, steps + 1)]
    mean = [[1 - BETA1**t for t in row] for row in times]
    rate = [[lr / share for lr, share in zip(lrs, row, strict=True)] for row in mean]
    if settings.by_layers:
        rate = [list(lrs)] * steps
    root = [[math.sqrt(1 - BETA2**t) for t in row] for row in times]
    kept = np.array([[1 - lr * settings.weight_decay for lr in lrs]], np.float32) if settings.decoupled else ones
    return Rates(np.array(rate, np.float32), np.array(root, np.float32), kept, np.array(mean, np.float32))


def factors(rates: Rates, device: torch.device) -> torch.Tensor:
    """Return `rates` as one tensor [steps, 4, k] on the device: one wait for a GPU, not one per step."""
    return torch.from_numpy(np.stack(np.broadcast_arrays(*rates), axis=1)).to(device)


def step(
    settings: TrainSettings,
    weights: torch.Tensor,
    gradient: torch.Tensor,
    slots: Sequence[torch.Tensor],
    *,
    rate: torch.Tensor,
    root: torch.Tensor,
    kept: torch.Tensor,
) -> None:
    """Change `weights` and `slots` in place; `gradient` is overwritten; rate, root and kept broadcast over
    the weights.
    """
    if settings.decoupled:
        weights.mul_(kept)
    elif settings.weight_decay:
        gradient.add_(weights * settings.weight_decay)
    if settings.own_optimizer:
        call_part(
            f"train.optimizer = {settings.optimizer!r}", _find_own(settings.optimizer), weights, gradient, *slots, rate
        )
        return
    if "first" in settings.slots:
        first, second = slots
        first.mul_(BETA1).add_(gradient * (1 - BETA1))
        second.mul_(BETA2).add_(gradient.mul_(gradient).mul_(1 - BETA2))
        weights.sub_((square_root(second) / root).add_(EPSILON).reciprocal_().mul_(first).mul_(rate))
        return
    if slots:
        (velocity,) = slots
        velocity.mul_(settings.momentum).add_(gradient)
        if not settings.nesterov:
            weights.sub_(velocity * rate)
            return
        gradient.add_(velocity * settings.momentum)
    weights.sub_(gradient.mul_(rate))


OWN = CalledWith(
    ("weights", "gradient", "first", "second", "rate"), "Write def step(weights, gradient, first, second, rate): ..."
)
"""Arguments of a user's optimiser: tensors [k, ...] of k models, and factors that broadcast over them."""


@cache
def _find_own(text: str) -> Callable[..., Any]:
    return function(text, None, OWN)


def check_own(settings: TrainSettings) -> None:
    """Raise ConfigError for a user's optimiser that raises, is not elementwise, or produces weights that
    are not finite; tried on two small models, together and one by one.
    """
    if not settings.own_optimizer:
        return
    where = f"train.optimizer = {settings.optimizer!r}"
    rows = torch.sin(torch.arange(48, dtype=torch.float32)).reshape(2, 3, 8)

    def tried(part: slice, places: slice) -> torch.Tensor:
        weights, first, second = rows[part, 0, places].clone(), *(torch.zeros_like(rows[part, 0, places]) for _ in "ab")
        rate, one = torch.full((len(weights), 1), 0.1), torch.ones(())
        for number in (1, 2, 1):
            gradient = rows[part, number, places].clone()
            step(settings, weights, gradient, (first, second), rate=rate, root=one, kept=one)
        return torch.stack([weights, first, second])

    everything = slice(None)
    try:
        whole, again = (tried(everything, everything) for _ in range(2))
        by_rows = torch.cat([tried(slice(k, k + 1), everything) for k in range(2)], dim=1)
        by_places = torch.cat([tried(everything, slice(k, k + 4)) for k in (0, 4)], dim=2)
    except TrainingError as error:
        raise ConfigError(f"{where} on a small case: {error}", error.advice) from error
    if not torch.isfinite(whole).all() or torch.equal(whole[0], rows[:, 0]):
        text = f"{where} left the weights as they were, or numbers that are not finite"
        raise ConfigError(text, "It changes weights in place: weights.sub_(gradient * rate).")
    if not torch.equal(whole, again):
        raise ConfigError(f"{where} gave two results for the same arguments", "Let it depend on its arguments alone.")
    if not (torch.equal(whole, by_rows) and torch.equal(whole, by_places)):
        advice = "Take each element by itself: models are trained together, and layer by layer; no norms, no sums."
        raise ConfigError(f"{where} mixes elements", advice)


def step_by_layers(
    settings: TrainSettings,
    weights: Tensors,
    gradients: Tensors,
    slots: Sequence[Tensors],
    layers: Layers,
    *,
    rate: torch.Tensor,
    root: torch.Tensor,
    mean: torch.Tensor,
) -> None:
    """Take steps of lars and lamb, for all tensors at once: equal to algorithms/descent, to rounding."""
    if settings.optimizer == "lars":
        (velocity,) = slots
        _scale_layers(settings, _trust_of_lars, layers(weights), layers(gradients), rate)
        for held, gradient, moving in zip(weights, gradients, velocity, strict=True):
            held.sub_(moving.mul_(settings.momentum).add_(gradient))
        return
    for gradient, first, second in zip(gradients, *slots, strict=True):
        first.mul_(BETA1).add_(gradient * (1 - BETA1))
        second.mul_(BETA2).add_((gradient * gradient).mul_(1 - BETA2))
        gradient.copy_(first).div_(mean).div_((square_root(second) / root).add_(LAMB_EPSILON))
    _scale_layers(settings, _trust_of_lamb, layers(weights), layers(gradients), rate)
    for held, along in zip(weights, gradients, strict=True):
        held.sub_(along)


Trust = Callable[[TrainSettings, Tensors, Tensors], list[float]]
"""(settings, weights and direction of a layer) -> the nodes' trust ratios; weights decay through the direction."""


def _scale_layers(
    settings: TrainSettings,
    trust: Trust,
    weights: Sequence[tuple[Tensors, bool]],
    directions: Sequence[tuple[Tensors, bool]],
    rate: torch.Tensor,
) -> None:
    for (held, layer), (along, _) in zip(weights, directions, strict=True):
        factor = rate
        if layer:
            ratios = torch.tensor(trust(settings, held, along), device=rate.device)
            factor = rate * ratios.view(-1, *[1] * (held[0].dim() - 1))
        for one in along:
            one.mul_(factor)


def _trust_of_lars(settings: TrainSettings, weights: Tensors, gradient: Tensors) -> list[float]:
    before = _lengths(gradient)
    _decay(settings, weights, gradient)
    return [
        LARS.trust * x / (g + settings.weight_decay * x) if x and g else 1.0
        for x, g in zip(_lengths(weights), before, strict=True)
    ]


def _trust_of_lamb(settings: TrainSettings, weights: Tensors, direction: Tensors) -> list[float]:
    _decay(settings, weights, direction)
    pairs = zip(_lengths(weights), _lengths(direction), strict=True)
    return [x / along if x and along else 1.0 for x, along in pairs]


def _decay(settings: TrainSettings, weights: Tensors, direction: Tensors) -> None:
    if settings.weight_decay:
        for held, along in zip(weights, direction, strict=True):
            along.add_(held * settings.weight_decay)


def _lengths(tensors: Tensors) -> list[float]:
    """Return each node's Euclidean norm over all tensors, summed in float64, as `clip` does."""
    if tensors[0].device.type == "cpu":
        return [math.hypot(*(norm(one[node].numpy()) for one in tensors)) for node in range(len(tensors[0]))]
    squares = [one.double().square().sum(dim=tuple(range(1, one.dim()))) for one in tensors]
    return square_root(torch.stack(squares).sum(dim=0)).tolist()


def square_root(tensor: torch.Tensor) -> torch.Tensor:
    """Return the root of every element, rounded correctly on every CPU.

    MKL's in COMPATIBLE mode differs in a sixth of the elements, and between Intel and AMD; numpy's is the processor's
    instruction.
    """
    if tensor.device.type != "cpu":
        return tensor.sqrt()
    with np.errstate(invalid="ignore"):  # divergence is reported elsewhere
        return torch.from_numpy(np.sqrt(tensor.numpy()))


def clip(gradients: Sequence[torch.Tensor], longest: float) -> None:
    """Scale each node's gradient, over all tensors [k, ...], down to length `longest` if it is longer."""
    if gradients[0].device.type != "cpu":
        clip_unseen(gradients, longest)
        return
    for node in range(len(gradients[0])):
        # node by node: a sum over many rows may use another order than a sum over one
        square = sum(float(torch.dot(g[node].reshape(-1), g[node].reshape(-1))) for g in gradients)
        if square > longest * longest:
            for gradient in gradients:
                gradient[node].mul_(longest / math.sqrt(square))


def clip_unseen(gradients: Sequence[torch.Tensor], longest: float) -> None:
    """The same to rounding, without reading a number from the GPU."""
    squares = [gradient.reshape(len(gradient), -1).square().sum(dim=1) for gradient in gradients]
    lengths = square_root(torch.stack(squares).sum(dim=0))
    shares = torch.where(lengths > longest, longest / lengths, torch.ones_like(lengths))
    for gradient in gradients:
        gradient.mul_(shares.view(-1, *[1] * (gradient.dim() - 1)))
