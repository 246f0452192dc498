"""The steps of a block of nodes as tensors: their examples, labels and factors, and their losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedgossip.core.machine import Terms
from fedgossip.learning.many_nodes.output_losses import Top
from fedgossip.learning.one_model import optimizers
from fedgossip.learning.one_model.batches import BatchPlan, Indices
from fedgossip.learning.settings import TrainSettings

Floats = npt.NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Steps:
    """The steps of a block, nodes with most steps first; the tuples have one tensor per step."""

    rows: tuple[torch.Tensor, ...]  # [k * width]: the examples
    targets: tuple[torch.Tensor, ...]  # the examples' labels in the top's form
    scale: tuple[torch.Tensor, ...]  # [k, 1, width], or [1, 1, width] where all nodes have one
    weight: Floats  # [steps, k, width]: 1 / examples of the step, 0 for unused places
    rate: torch.Tensor  # [steps, k, 1, 1]
    root: torch.Tensor
    kept: torch.Tensor
    mean: torch.Tensor
    active: list[int]  # how many nodes still have a step
    pull: torch.Tensor | None  # [k, 1, 1]: that of the terms; None where the jobs have none

    def of_block(self, nodes: slice, top: Top) -> Steps:
        """Return the steps of plain SGD of some nodes, one block of these."""
        width, k = self.weight.shape[2], nodes.stop - nodes.start
        places = slice(nodes.start * width, nodes.stop * width)
        rows = tuple(one[places] for one in self.rows)
        targets = tuple(top.part(one, nodes, width) for one in self.targets)
        return replace(self, rows=rows, targets=targets, weight=self.weight[:, nodes], active=[k] * len(rows))


class StepLayout:
    """Makes steps of `width` places a node: a step has one shape for all nodes, and unused places weigh nothing."""

    def __init__(self, settings: TrainSettings, width: int, top: Top, device: torch.device) -> None:
        self.settings, self.width, self.top, self.device = settings, width, top, device

    def of_plans(
        self, plans: Sequence[BatchPlan], lrs: Sequence[float], taken: Sequence[int], pulls: Sequence[Terms]
    ) -> Steps:
        """Return the steps of a training, of nodes with `taken` steps behind them."""
        indices, counts = self._drawn(plans)
        weight = self._used(counts) * (np.float32(1) / np.maximum(counts, 1).astype(np.float32))[:, :, None]
        rates = optimizers.rates(self.settings, lrs, taken, len(counts))
        scale = weight * -rates.rate[:, :, None] if self.settings.plain and not pulls else weight
        return self._laid(indices, counts, weight, scale, rates, pulls)

    def of_gradient(self, plans: Sequence[BatchPlan]) -> Steps:
        """Return the steps that make a mean gradient over all examples of a plan."""
        indices, counts = self._drawn(plans)
        examples = counts.sum(axis=0).astype(np.float32)
        weight = self._used(counts) * (np.float32(1) / examples)[:, None]
        idle = optimizers.rates(self.settings, [0.0] * len(plans), [0] * len(plans), len(counts))
        return self._laid(indices, counts, weight, weight, idle, ())

    def of_full_batches(self, indices: Indices, lr: float, block: int) -> Steps:
        """Return the steps of plain SGD over examples [steps, k, width], each of the settings' length.

        They are taken in blocks of so many nodes: `Steps.of_block`.
        """
        steps = len(indices)
        rows, targets = self.tensor(indices.reshape(steps, -1)), self.tensor(self.top.targets(indices, block))
        weight = np.broadcast_to(self.full_weight, indices.shape)
        return self._plain(rows.unbind(), targets.unbind(), self.tensor(self.full_scale(lr)), weight)

    def of_rows(self, rows: Sequence[torch.Tensor], scale: torch.Tensor, k: int) -> Steps:
        """As `of_full_batches`, for examples [k * width] a step and their `full_scale`, on the device."""
        targets = tuple(self.top.placed(examples, k) for examples in rows)
        return self._plain(tuple(rows), targets, scale, np.broadcast_to(self.full_weight, (len(rows), k, self.width)))

    @cached_property
    def full_weight(self) -> Floats:
        """The weight [1, 1, width] of each place of a full batch."""
        counts = np.full((1, 1), self.settings.examples_per_step)
        return self._used(counts) * (np.float32(1) / counts.astype(np.float32))[:, :, None]

    def full_scale(self, lr: float) -> Floats:
        """Return the factor of the error of each place of a full batch, [1, 1, width]."""
        return self.full_weight * -np.float32(lr)

    def _plain(
        self,
        rows: tuple[torch.Tensor, ...],
        targets: tuple[torch.Tensor, ...],
        scale: torch.Tensor,
        weight: Floats,
    ) -> Steps:
        """Return steps of plain SGD that all nodes take."""
        none = torch.empty(0, device=self.device)  # for plain SGD the step is in the scale
        steps, k, _ = weight.shape
        return Steps(rows, targets, (scale,) * steps, weight, *(none, none, none, none), [k] * steps, None)

    def _drawn(self, plans: Sequence[BatchPlan]) -> tuple[Indices, Indices]:
        """Return the examples [steps, k, width] and how many of them count [steps, k]; most steps come first."""
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
        """Return the used places of [steps, k, width]."""
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
        """Return a number of each step and node as a tensor that broadcasts over weights."""
        return self.tensor(np.broadcast_to(given[:, :, None, None], (most, k, 1, 1)))

    def tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """Return an array on the device; one that may not be written to is copied."""
        array = np.ascontiguousarray(array)
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self.device)


def taken_in(weight: Floats) -> npt.NDArray[np.int64]:
    """Return the number of steps of each node."""
    return np.asarray(np.count_nonzero(weight[:, :, 0], axis=0))


def mean_losses(picked: Floats, weight: Floats) -> npt.NDArray[np.float64]:
    """Return per node the mean over its steps of the mean loss of a step, summed in float64, node by node."""
    return np.asarray(summed_losses(picked, weight) / taken_in(weight))


def summed_losses(picked: Floats, weight: Floats) -> npt.NDArray[np.float64]:
    """Return per node the sum of -log p(label) of its examples, each times its weight.

    Step after step, so that steps of other nodes alone add nothing but zeros.
    """
    terms = picked.reshape(weight.shape).astype(np.float64) * weight
    return np.asarray(-np.add.accumulate(terms.sum(axis=2))[-1])
