"""What a federated algorithm asks of a loop's optimizers: the pull of FedProx, the correction of SCAFFOLD, rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedgossip.learning.parameters import Exchanged
from fedgossip.machine import Terms
from fedgossip.vectors import Vector

MOMENTUM = {"momentum_buffer", "exp_avg"}
"""The names by which torch's optimizers keep the direction of their last steps."""


class GradientTerms:
    """Hooks before each step of the optimizers: gradient += pull * (weights - given) + correction.

    Where an algorithm counts steps from rest (FedNova with momentum), what optimizers remember of directions is
    forgotten when a round begins; all else that they keep, such as Adam's step count and second moments, stays.
    """

    def __init__(self, exchanged: Exchanged, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._exchanged, self._optimizers = exchanged, optimizers
        self._pull = 0.0
        self._given: list[torch.Tensor] = []
        self._correction: list[torch.Tensor] = []
        self._hooks = [one.register_step_pre_hook(self._before) for one in optimizers]

    def use(self, terms: Terms | None, given: Vector) -> None:
        """From now on add these; None: nothing."""
        if terms and terms.at_rest:
            for optimizer in self._optimizers:
                forget_direction(optimizer)
        self._pull = terms.pull if terms else 0.0
        self._given = self._exchanged.parts_of(given) if self._pull else []
        corrected = terms is not None and terms.correction is not None
        self._correction = self._exchanged.parts_of(terms.correction) if corrected and terms else []  # type: ignore[arg-type]

    def remove(self) -> None:
        """Leave the optimizers as they were."""
        for hook in self._hooks:
            hook.remove()

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not (self._given or self._correction):
            return
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        with torch.no_grad():
            for place, tensor in enumerate(self._exchanged.tensors()):
                if id(tensor) not in held or tensor.grad is None:
                    continue
                if self._given:
                    tensor.grad += self._pull * (tensor - self._given[place])
                if self._correction:
                    tensor.grad += self._correction[place]


def forget_direction(optimizer: torch.optim.Optimizer) -> None:
    """Let the optimizer's momentum begin at rest: its buffers are zero."""
    with torch.no_grad():
        for kept in optimizer.state.values():
            for name in MOMENTUM & kept.keys():
                if kept[name] is not None:
                    kept[name].zero_()
