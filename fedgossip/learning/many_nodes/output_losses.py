"""The loss of a stack's outputs, and the error propagated down from it.

The outputs are in `ws.logits` [k, outputs, rows]; `fill` writes the error into `ws.top` of the same shape and the
negative loss of each example, as a log probability.  Every operation is elementwise, or a softmax within one node, so
that no bit depends on the other nodes of the block: torch's sigmoid is no such operation (its last lanes are rounded by
another routine), a softmax over two numbers is.

A workspace has two outputs at least, as a product with a side of 1 rounds by the block: where the model has one, the
other stays at zero with its weights, its label and its error.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fedgossip.data.dataset import Dataset
from fedgossip.learning.many_nodes.workspace import Workspace, wide

Array = npt.NDArray[Any]


class Top(Protocol):
    def targets(self, indices: npt.NDArray[np.int64], block: int) -> Array:
        """Return the targets for `fill` of examples [steps, k, rows], one row per step.

        `fill` is called with `block` nodes at a time, or with the rest of them.
        """
        ...

    def placed(self, examples: torch.Tensor, k: int) -> torch.Tensor:
        """Return the targets of a step's examples [k * rows], on the device, without a read by the host."""
        ...

    def part(self, targets: torch.Tensor, nodes: slice, rows: int) -> torch.Tensor:
        """Return the targets of some nodes of a step."""
        ...

    def fill(self, ws: Workspace, targets: torch.Tensor, picked: torch.Tensor) -> None:
        """Write the error into ws.top and minus the losses into `picked` [k * rows]."""
        ...

    def labels(self, labels: Array) -> Array:
        """Return labels [rows, ...] of a test set in the form for `picked`."""
        ...

    def picked(self, ws: Workspace, labels: torch.Tensor) -> torch.Tensor:
        """Return the negative losses [k, rows] of test examples shared by all nodes."""
        ...


class ClassTop:
    """Cross-entropy: softmax(z) - onehot(y)."""

    def __init__(self, data: Dataset, outputs: int, most: int, device: torch.device) -> None:
        self._labels, self._classes = data.y, outputs
        self._minus_ones = torch.full((most,), -1.0, device=device)

    @cached_property
    def _labels_there(self) -> torch.Tensor:
        return torch.tensor(self._labels, device=self._minus_ones.device)

    def targets(self, indices: npt.NDArray[np.int64], block: int) -> Array:
        """Return the places of the labels in the [block, classes, rows] of each example's block."""
        steps, k, rows = indices.shape
        places = (np.arange(k) % block * self._classes)[:, None] + self._labels[indices]
        return np.asarray(places * rows + np.arange(rows)).reshape(steps, -1)

    def placed(self, examples: torch.Tensor, k: int) -> torch.Tensor:
        labels = self._labels_there.index_select(0, examples).view(k, -1)
        rows, device = labels.shape[1], labels.device
        first = torch.arange(0, k * self._classes, self._classes, device=device)
        return labels.add_(first[:, None]).mul_(rows).add_(torch.arange(rows, device=device)).view(-1)

    def part(self, targets: torch.Tensor, nodes: slice, rows: int) -> torch.Tensor:
        return targets[nodes.start * rows : nodes.stop * rows]

    def fill(self, ws: Workspace, targets: torch.Tensor, picked: torch.Tensor) -> None:
        torch.log_softmax(ws.logits, 1, out=ws.log_probabilities)
        torch.index_select(ws.flat_log_probabilities, 0, targets, out=picked)
        torch.softmax(ws.logits, 1, out=ws.top)
        ws.flat_top.index_add_(0, targets, self._minus_ones[: len(targets)])

    def labels(self, labels: Array) -> Array:
        return labels.reshape(1, 1, -1)

    def picked(self, ws: Workspace, labels: torch.Tensor) -> torch.Tensor:
        torch.log_softmax(ws.logits, 1, out=ws.log_probabilities)
        return ws.log_probabilities.gather(1, labels.expand(len(ws.logits), -1, -1))[:, 0]


class ColumnTop:
    """Losses of single numbers, the mean over the label columns: mse, mae, huber, bce."""

    def __init__(self, loss: str, data: Dataset, outputs: int, device: torch.device) -> None:
        self._of, self._outputs, self._device = OF_COLUMNS[loss], outputs, device
        self._labels = np.zeros((len(data), wide(outputs)), np.float32)
        self._labels[:, :outputs] = data.y

    @cached_property
    def _labels_there(self) -> torch.Tensor:
        return torch.tensor(self._labels, device=self._device)

    def targets(self, indices: npt.NDArray[np.int64], block: int) -> Array:  # noqa: ARG002
        """Return the labels [steps, k, outputs, rows]."""
        return np.ascontiguousarray(self._labels[indices].transpose(0, 1, 3, 2))

    def placed(self, examples: torch.Tensor, k: int) -> torch.Tensor:
        labels = self._labels_there.index_select(0, examples)
        return labels.view(k, -1, labels.shape[1]).transpose(1, 2).contiguous()

    def part(self, targets: torch.Tensor, nodes: slice, rows: int) -> torch.Tensor:  # noqa: ARG002
        return targets[nodes]

    def fill(self, ws: Workspace, targets: torch.Tensor, picked: torch.Tensor) -> None:
        losses, error = self._of(ws.logits, targets)
        ws.top.copy_(error)
        ws.top[:, self._outputs :].zero_()
        if self._outputs > 1:
            ws.top.mul_(1 / self._outputs)
        picked.view(len(losses), -1).copy_(self._mean(losses).neg_())

    def labels(self, labels: Array) -> Array:
        found = np.zeros((1, wide(self._outputs), len(labels)), np.float32)
        found[0, : self._outputs] = labels.T
        return found

    def picked(self, ws: Workspace, labels: torch.Tensor) -> torch.Tensor:
        return self._mean(self._of(ws.logits, labels.expand_as(ws.logits))[0]).neg_()

    def _mean(self, losses: torch.Tensor) -> torch.Tensor:
        """Return the mean over the outputs, one after the other: a sum over an axis may take the order of its block."""
        total = losses[:, 0].clone()
        for output in range(1, self._outputs):
            total.add_(losses[:, output])
        return total.mul_(1 / self._outputs) if self._outputs > 1 else total


def _squared(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    away = outputs - labels
    return away * away, away * 2


def _absolute(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    away = outputs - labels
    return away.abs(), away.sign()


def _huber(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Half the square up to 1, beyond it linear: c (d - c / 2), where c is d cut to -1..1."""
    away = outputs - labels
    error = away.clamp(-1, 1)
    return (away - error * 0.5) * error, error


def _binary(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of yes and no, whose logits are z and 0."""
    pair = torch.stack([outputs, torch.zeros_like(outputs)], 1)
    yes, no = torch.log_softmax(pair, 1).unbind(1)
    return -torch.where(labels > 0, yes, no), torch.softmax(pair, 1)[:, 0] - labels


OF_COLUMNS: Mapping[str, Any] = {"mse": _squared, "mae": _absolute, "huber": _huber, "bce": _binary}
"""Of outputs and labels [k, outputs, rows]: the loss of every number, and its derivative."""


BY_HAND = ("cross-entropy", *OF_COLUMNS)
"""The elementwise loss of outputs and labels [k, outputs, rows], and its derivative, by name."""


def top_of(loss: str, data: Dataset, outputs: int, most: int, device: torch.device) -> Top:
    """Return the top of a loss, one of BY_HAND, for blocks of `most` examples in all."""
    if loss == "cross-entropy":
        return ClassTop(data, outputs, most, device)
    return ColumnTop(loss, data, outputs, device)
