"""The steps of a block of nodes as tensors: their examples, labels and factors, and their losses.

Outputs are `ws.logits` [k, outputs, rows]; `fill` writes the error to `ws.top` and each example's negative loss as a
log probability.  Operations are elementwise or a softmax within one node: torch's sigmoid rounds its last lanes
differently.  A workspace has at least two outputs, because a product with a side of 1 rounds depending on the block;
for a model with one output the second stays zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fedgossip.core.machine import Terms
from fedgossip.data.dataset import Dataset
from fedgossip.learning.many_nodes.workspace import Workspace, wide
from fedgossip.learning.one_model import optimizers
from fedgossip.learning.one_model.batches import BatchPlan, Indices
from fedgossip.learning.settings import TrainSettings

Floats = npt.NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Steps:
    """The steps of a block, nodes with most steps first; the tuples have one tensor per step."""

    rows: tuple[torch.Tensor, ...]  # [k * width]: the examples
    targets: tuple[torch.Tensor, ...]  # the examples' labels in the top's form
    scale: tuple[torch.Tensor, ...]  # [k, 1, width], or [1, 1, width] if equal for all nodes
    weight: Floats  # [steps, k, width]: 1 / examples of the step, 0 for unused places
    rate: torch.Tensor  # [steps, k, 1, 1]
    root: torch.Tensor
    kept: torch.Tensor
    mean: torch.Tensor
    active: list[int]  # how many nodes still have a step
    pull: torch.Tensor | None  # [k, 1, 1]: that of the terms; None without terms

    def select_block(self, nodes: slice, top: Top) -> Steps:
        """Return the steps of plain SGD of some nodes, one block of these."""
        width, k = self.weight.shape[2], nodes.stop - nodes.start
        places = slice(nodes.start * width, nodes.stop * width)
        rows = tuple(one[places] for one in self.rows)
        targets = tuple(top.part(one, nodes, width) for one in self.targets)
        return replace(self, rows=rows, targets=targets, weight=self.weight[:, nodes], active=[k] * len(rows))


class StepLayout:
    """Creates steps of `width` rows per node: a step has one shape for all nodes, and unused rows have weight 0."""

    def __init__(self, settings: TrainSettings, width: int, top: Top, device: torch.device) -> None:
        self.settings, self.width, self.top, self.device = settings, width, top, device

    def arrange_plans(
        self, plans: Sequence[BatchPlan], lrs: Sequence[float], taken: Sequence[int], pulls: Sequence[Terms]
    ) -> Steps:
        """Return the steps of a training, for nodes that have taken `taken` steps."""
        indices, counts = self._arrange_examples(plans)
        weight = self._used(counts) * (np.float32(1) / np.maximum(counts, 1).astype(np.float32))[:, :, None]
        rates = optimizers.rates(self.settings, lrs, taken, len(counts))
        scale = weight * -rates.rate[:, :, None] if self.settings.plain and not pulls else weight
        return self._laid(indices, counts, weight, scale, rates, pulls)

    def arrange_gradient(self, plans: Sequence[BatchPlan]) -> Steps:
        """Return the steps for a mean gradient over all examples of a plan."""
        indices, counts = self._arrange_examples(plans)
        examples = counts.sum(axis=0).astype(np.float32)
        weight = self._used(counts) * (np.float32(1) / examples)[:, None]
        idle = optimizers.rates(self.settings, [0.0] * len(plans), [0] * len(plans), len(counts))
        return self._laid(indices, counts, weight, weight, idle, ())

    def arrange_full_batches(self, indices: Indices, lr: float, block: int) -> Steps:
        """Return the steps of plain SGD over examples [steps, k, width] of the settings' length, in blocks of nodes
        (`Steps.select_block`).
        """
        steps = len(indices)
        rows, targets = self.tensor(indices.reshape(steps, -1)), self.tensor(self.top.targets(indices, block))
        weight = np.broadcast_to(self.full_weight, indices.shape)
        return self._plain(rows.unbind(), targets.unbind(), self.tensor(self.full_scale(lr)), weight)

    def arrange_rows(self, rows: Sequence[torch.Tensor], scale: torch.Tensor, k: int) -> Steps:
        """As `arrange_full_batches`, for examples [k * width] a step and their `full_scale`, on the device."""
        targets = tuple(self.top.placed(examples, k) for examples in rows)
        return self._plain(tuple(rows), targets, scale, np.broadcast_to(self.full_weight, (len(rows), k, self.width)))

    @cached_property
    def full_weight(self) -> Floats:
        """The weight [1, 1, width] of each row of a full batch."""
        counts = np.full((1, 1), self.settings.examples_per_step)
        return self._used(counts) * (np.float32(1) / counts.astype(np.float32))[:, :, None]

    def full_scale(self, lr: float) -> Floats:
        """Return the factor of the error of each row of a full batch, [1, 1, width]."""
        return self.full_weight * -np.float32(lr)

    def _plain(
        self,
        rows: tuple[torch.Tensor, ...],
        targets: tuple[torch.Tensor, ...],
        scale: torch.Tensor,
        weight: Floats,
    ) -> Steps:
        none = torch.empty(0, device=self.device)  # for plain SGD the step is in the scale
        steps, k, _ = weight.shape
        return Steps(rows, targets, (scale,) * steps, weight, *(none, none, none, none), [k] * steps, None)

    def _arrange_examples(self, plans: Sequence[BatchPlan]) -> tuple[Indices, Indices]:
        """Return the examples [steps, k, width] and the number of counting ones [steps, k]."""
        k, most = len(plans), len(plans[0].counts)
        if len(plans[-1].counts) == most:
            indices = np.stack([plan.indices for plan in plans], axis=1)
            return indices, np.stack([plan.counts for plan in plans], axis=1)
        indices, counts = np.zeros((most, k, self.width), np.int64), np.zeros((most, k), np.int64)
        for j, plan in enumerate(plans):
            indices[: len(plan.counts), j] = plan.indices
            counts[: len(plan.counts), j] = plan.counts
        return indices, counts

    def _used(self, counts: Indices) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = np.arange(self.width) < counts[:, :, None]
        return found

    def _laid(
        self,
        indices: Indices,
        counts: Indices,
        weight: Floats,
        scale: Floats,
        rates: optimizers.Rates,
        pulls: Sequence[Terms],
    ) -> Steps:
        most, k = counts.shape
        return Steps(
            self.tensor(indices.reshape(most, -1)).unbind(),
            self.tensor(self.top.targets(indices, k)).unbind(),
            self.tensor(scale[:, :, None]).unbind(),
            weight,
            self._factor(rates.rate, most, k),
            self._factor(rates.root, most, k),
            self._factor(rates.kept, most, k),
            self._factor(rates.mean, most, k),
            (counts > 0).sum(axis=1).tolist(),
            self.tensor(np.array([[[one.pull]] for one in pulls], np.float32)) if pulls else None,
        )

    def _factor(self, given: Floats, most: int, k: int) -> torch.Tensor:
        return self.tensor(np.broadcast_to(given[:, :, None, None], (most, k, 1, 1)))

    def tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """Return an array on the device; a read-only array is copied."""
        array = np.ascontiguousarray(array)
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self.device)


def count_steps(weight: Floats) -> npt.NDArray[np.int64]:
    """Return the number of steps of each node."""
    return np.asarray(np.count_nonzero(weight[:, :, 0], axis=0))


def mean_losses(picked: Floats, weight: Floats) -> npt.NDArray[np.float64]:
    """Return per node the mean over its steps of the mean loss of a step, summed in float64, node by node."""
    return np.asarray(summed_losses(picked, weight) / count_steps(weight))


def summed_losses(picked: Floats, weight: Floats) -> npt.NDArray[np.float64]:
    """Return per node the sum of -log p(label) times its weight, step after step: steps of other nodes add zeros."""
    terms = picked.reshape(weight.shape).astype(np.float64) * weight
    return np.asarray(-np.add.accumulate(terms.sum(axis=2))[-1])


Array = npt.NDArray[Any]


class Top(Protocol):
    def targets(self, indices: npt.NDArray[np.int64], block: int) -> Array:
        """Return the targets for `fill` of examples [steps, k, rows], one row per step.

        `fill` is called with at most `block` nodes at a time.
        """

    def placed(self, examples: torch.Tensor, k: int) -> torch.Tensor:
        """Return the targets of a step's examples [k * rows], on the device, without a read by the host."""

    def part(self, targets: torch.Tensor, nodes: slice, rows: int) -> torch.Tensor:
        """Return the targets of some nodes of a step."""

    def fill(self, ws: Workspace, targets: torch.Tensor, picked: torch.Tensor) -> None:
        """Write the error to ws.top and minus the losses to `picked` [k * rows]."""

    def labels(self, labels: Array) -> Array:
        """Return labels [rows, ...] of a test set in the form for `picked`."""

    def picked(self, ws: Workspace, labels: torch.Tensor) -> torch.Tensor:
        """Return the negative losses [k, rows] of test examples shared by all nodes."""


class ClassTop:
    """Cross-entropy: softmax(z) - onehot(y)."""

    def __init__(self, data: Dataset, outputs: int, most: int, device: torch.device) -> None:
        self._labels, self._classes = data.y, outputs
        self._minus_ones = torch.full((most,), -1.0, device=device)

    @cached_property
    def _labels_there(self) -> torch.Tensor:
        return torch.tensor(self._labels, device=self._minus_ones.device)

    def targets(self, indices: npt.NDArray[np.int64], block: int) -> Array:
        """Return the indices of the labels in the [block, classes, rows] of each example's block."""
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
        """Return the mean over the outputs one by one: the order of an axis sum may depend on the block."""
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
    """Half the square up to 1, beyond it linear: c (d - c / 2), with c = d clipped to -1..1."""
    away = outputs - labels
    error = away.clamp(-1, 1)
    return (away - error * 0.5) * error, error


def _binary(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of two classes with the logits z and 0."""
    pair = torch.stack([outputs, torch.zeros_like(outputs)], 1)
    yes, no = torch.log_softmax(pair, 1).unbind(1)
    return -torch.where(labels > 0, yes, no), torch.softmax(pair, 1)[:, 0] - labels


OF_COLUMNS: Mapping[str, Any] = {"mse": _squared, "mae": _absolute, "huber": _huber, "bce": _binary}
"""(outputs, labels), both [k, outputs, rows] -> the loss of every number, and its derivative."""


BY_HAND = ("cross-entropy", *OF_COLUMNS)
"""Names of the losses with a hand-written derivative."""


def top_of(loss: str, data: Dataset, outputs: int, most: int, device: torch.device) -> Top:
    """Return the top of a loss in BY_HAND, for blocks of at most `most` examples."""
    if loss == "cross-entropy":
        return ClassTop(data, outputs, most, device)
    return ColumnTop(loss, data, outputs, device)
