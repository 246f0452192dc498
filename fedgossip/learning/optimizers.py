"""One step of the optimisers on tensors whose first axis is the node; every operation is elementwise.

Products and sums are rounded one by one (no alpha=, no addcmul): the fused forms round once in some lanes and twice
in others, and then a node's bits would depend on its neighbours in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedgossip.learning.settings import TrainSettings

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Kingma and Ba, Adam, ICLR 2015


@dataclass(frozen=True, slots=True, eq=False)
class Pull:
    """The terms of a federated client on tensors [k, ...]: gradient += mu * (weights - anchor) + correction."""

    mu: torch.Tensor
    anchor: torch.Tensor
    correction: torch.Tensor

    def add_to(self, gradient: torch.Tensor, weights: torch.Tensor) -> None:
        gradient.add_((weights - self.anchor).mul_(self.mu)).add_(self.correction)


class Rates(NamedTuple):
    """What a step multiplies by, float32; `rate` is [steps, k], the others [steps or 1, k or 1]."""

    rate: npt.NDArray[np.float32]
    root: npt.NDArray[np.float32]
    kept: npt.NDArray[np.float32]
    """The share of a weight that decoupled decay leaves of it."""


def rates(settings: TrainSettings, lrs: Sequence[float], taken: Sequence[int], steps: int) -> Rates:
    """Return the factors of the next steps of nodes that have `taken` steps behind them: Adam's two bias corrections.

    Plain floats, not numpy.power, whose lanes round as they like.  For sgd: the learning rates, and ones.
    """
    ones = np.ones((1, 1), np.float32)
    if "first" not in settings.slots:
        return Rates(np.broadcast_to(np.array(lrs, np.float32), (steps, len(lrs))), ones, ones)
    times = [[before + step for before in taken] for step in range(1, steps + 1)]
    rate = [[lr / (1 - BETA1**t) for lr, t in zip(lrs, row, strict=True)] for row in times]
    root = [[math.sqrt(1 - BETA2**t) for t in row] for row in times]
    kept = np.array([[1 - lr * settings.weight_decay for lr in lrs]], np.float32) if settings.decoupled else ones
    return Rates(np.array(rate, np.float32), np.array(root, np.float32), kept)


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
    """Change `weights` and `slots` in place; `gradient` is used up; rate, root and kept broadcast over the weights."""
    if settings.decoupled:
        weights.mul_(kept)
    elif settings.weight_decay:
        gradient.add_(weights * settings.weight_decay)
    if "first" in settings.slots:
        first, second = slots
        first.mul_(BETA1).add_(gradient * (1 - BETA1))
        second.mul_(BETA2).add_(gradient.mul_(gradient).mul_(1 - BETA2))
        weights.sub_((square_root(second) / root).add_(EPSILON).reciprocal_().mul_(first).mul_(rate))
        return
    if slots:
        (velocity,) = slots
        velocity.mul_(settings.momentum).add_(gradient)
        gradient = gradient.add_(velocity * settings.momentum) if settings.nesterov else velocity
    weights.sub_(gradient * rate)


def square_root(tensor: torch.Tensor) -> torch.Tensor:
    """Return the root of every element, rounded correctly on every CPU.

    torch takes it from MKL's vector library, which in its COMPATIBLE mode has a last bit of its own in a sixth of the
    elements, other ones on Intel than on AMD.  numpy's is the processor's instruction.
    """
    if tensor.device.type != "cpu":
        return tensor.sqrt()
    with np.errstate(invalid="ignore"):  # what has exploded is said where it shows
        return torch.from_numpy(np.sqrt(tensor.numpy()))


def clip(gradients: Sequence[torch.Tensor], longest: float) -> None:
    """Scale each node's gradient, spread over the tensors [k, ...], down to `longest` where it is longer."""
    for node in range(len(gradients[0])):
        # node by node: a sum over many rows may take another order than a sum over one
        square = sum(float(torch.dot(g[node].reshape(-1), g[node].reshape(-1))) for g in gradients)
        if square > longest * longest:
            for gradient in gradients:
                gradient[node].mul_(longest / math.sqrt(square))
