"""Losses of a model's outputs and the labels, by an objective's names: the quantities that training minimises.

`Passes` moves a batch forward and back, through a module or through stages in several processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional

from fedgossip.base.errors import TrainingError
from fedgossip.base.limits import CalledWith
from fedgossip.data import custom
from fedgossip.data.objectives import Objective
from fedgossip.data.ragged import IGNORED
from fedgossip.learning.models.models import TrainingOutputs
from fedgossip.learning.one_model.devices import autocast

Values = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(outputs, labels), of the same shape -> the loss of every number."""

OF_NUMBERS: Mapping[str, Values] = {
    "mse": lambda outputs, labels: functional.mse_loss(outputs, labels, reduction="none"),
    "mae": lambda outputs, labels: functional.l1_loss(outputs, labels, reduction="none"),
    "huber": lambda outputs, labels: functional.huber_loss(outputs, labels, reduction="none"),
    "bce": lambda outputs, labels: functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none"),
}


LOSS = CalledWith(("outputs", "labels"), "Write def loss(outputs, labels): return ((outputs - labels) ** 2).mean()")
"""Arguments of a user's loss: two tensors of a batch."""

SOFT_TARGETS = "soft-targets"
"""The loss of a model trained on another model's logits, "soft-targets?temperature=2"; not available in experiments."""


def soft_targets(temperature: float) -> Values:
    """Return the loss of outputs and labels, both logits [b, k]; 0 if both have the same probabilities.

    Its mean is T^2 times that of KL(softmax(labels / T) || softmax(outputs / T)), so gradients keep their size (Hinton,
    Vinyals and Dean, arXiv:1503.02531, section 2).
    """

    def values(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        ours, theirs = (outputs / temperature).log_softmax(-1), (labels / temperature).log_softmax(-1)
        each = functional.kl_div(ours, theirs, reduction="none", log_target=True)
        return temperature**2 * outputs.shape[-1] * each

    return values


def _values_of(loss: str) -> Values | None:
    name, _, options = loss.partition("?temperature=")
    return soft_targets(float(options)) if name == SOFT_TARGETS else OF_NUMBERS.get(loss)


class Criterion:
    """The loss of an objective; `base`: the folder of a user's function."""

    def __init__(self, objective: Objective, base: Path | None = None) -> None:
        self.name = objective.loss
        self._own = custom.function(self.name, base, LOSS) if custom.is_function(self.name) else None
        self._values = _values_of(self.name)

    def mean(self, outputs: torch.Tensor | TrainingOutputs, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean over a batch's examples, or a text's characters without padding, a scalar.

        Raises TrainingError for outputs of another shape than the labels, and for a user's function that raises or
        returns no scalar.
        """
        if isinstance(outputs, TrainingOutputs):
            return outputs.loss(self.mean, labels)
        outputs = _wide(outputs)
        if self._own is not None:
            return self._call_own(outputs, labels)
        if self._values is not None:
            return self._values(fitted(outputs, labels), labels).mean()
        return functional.cross_entropy(
            outputs.reshape(-1, outputs.shape[-1]), labels.reshape(-1), ignore_index=IGNORED
        )

    def summed(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum of the examples' losses; for text the sum of their means over the characters."""
        outputs = _wide(outputs)
        if self._own is not None:  # example by example: a user's loss may reduce a batch in any way
            each = [self._call_own(outputs[k : k + 1], labels[k : k + 1]) for k in range(len(labels))]
            return torch.stack(each).sum()
        if self._values is not None:
            numbers = self._values(fitted(outputs, labels), labels)
        else:
            flat = outputs.reshape(-1, outputs.shape[-1])
            if labels.dim() == 1:
                return functional.cross_entropy(flat, labels, reduction="sum")
            numbers = functional.cross_entropy(flat, labels.reshape(-1), reduction="none")
        return numbers.reshape(len(labels), -1).mean(1).sum()

    def _call_own(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        assert self._own is not None
        found = custom.call_part(f"the loss {self.name}", self._own, outputs, labels)
        if not isinstance(found, torch.Tensor) or found.dim():
            what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else repr(found)
            advice = "It returns one number as a tensor: the mean over the batch, loss.mean()."
            raise TrainingError(f"the loss {self.name} returned {what[:80]}", advice)
        return found


def predicted(labels: torch.Tensor) -> int:
    """Return the number of labels to predict, without padding."""
    return labels.numel() if labels.is_floating_point() else int((labels != IGNORED).sum())


def fitted(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return outputs [b, k] for labels [b, k]; a model with one output may omit its axis.  Raises TrainingError."""
    if outputs.shape == labels.shape:
        return outputs
    if labels.shape[1:] == (1,) and outputs.shape == labels.shape[:1]:
        return outputs.unsqueeze(1)
    raise TrainingError(
        f"the model gives {tuple(outputs.shape)} for labels of {tuple(labels.shape)}",
        f"Its last layer has {labels.shape[-1]} output{'s' if labels.shape[-1] > 1 else ''}, one per label column.",
    )


def _wide(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs


def not_finite(node: int, round: int, name: str, loss: float, lr: float, wrong: str = "") -> TrainingError:
    """Return the error of a training with an infinite or NaN loss `name`, or update.

    `wrong`: the first tensor of the first model that was not finite, or "".
    """
    what = f"the loss {name} is {loss}" if not math.isfinite(loss) else "the update is not finite"
    advice = f"Use a smaller lr than {lr:g}, or clip_norm = 1."
    if not round:
        advice += "  Or look at model.source, where the loss of the first model is no number either."
    if wrong:
        what = f"{what}: the first model is not finite, before any training, in {wrong}"
        advice = "Look at model.source, or at the file that it begins from: no lr mends its first weights."
    return TrainingError(f"node {node}, round {round}: {what}", advice)


Watch = Callable[[torch.Tensor], AbstractContextManager[None]]
"""Loss of a batch -> the context of its backward pass."""


class Passes(Protocol):
    """The computations that `ModuleLoop` requests for its module."""

    def announce(self, rows: int) -> None:
        """Receive the number of examples of the next batch, over all processes."""

    def backward(self, x: torch.Tensor, y: torch.Tensor, weight: float, factor: float, watched: Watch) -> torch.Tensor:
        """Add the gradient of one piece of a batch, times `weight` and `factor`; return its loss, times `weight`.

        Returns 0 in a process that computes no loss.
        """

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        """Return the module's outputs for examples; unspecified in a process without outputs."""


class WholePasses:
    """The whole module in this process: `forward` is the training callable, the module or its wrapper."""

    def __init__(
        self, module: nn.Module, forward: nn.Module, criterion: Criterion, precision: str, device: torch.device
    ) -> None:
        self._module, self._forward, self._criterion = module, forward, criterion
        self._precision, self._device = precision, device

    def announce(self, rows: int) -> None:
        pass

    def backward(self, x: torch.Tensor, y: torch.Tensor, weight: float, factor: float, watched: Watch) -> torch.Tensor:
        with autocast(self._precision, self._device):
            logits = self._forward(x)
        loss = self._criterion.mean(logits, y)
        if weight != 1:
            loss = loss * weight
        with watched(loss.detach()):
            (loss * factor if factor != 1 else loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._module(x)
        return found
