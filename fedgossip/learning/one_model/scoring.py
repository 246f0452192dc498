"""Metrics of models on a test set, measured a chunk at a time.

Most need only sums of chunks, in float64, over any chunks and processes; auroc and users' functions need all outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.limits import CalledWith
from fedgossip.data import custom
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import MULTI_LABEL, REGRESSION, Objective, score_of
from fedgossip.data.ragged import Ragged
from fedgossip.learning.one_model.losses import fitted, predicted

Sums = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

METRIC = CalledWith(("outputs", "labels"), "Write def metric(outputs, labels): return float((outputs - labels).max())")
"""Arguments of a user's metric: two arrays, of the whole test set."""


@dataclass(frozen=True)
class AdditiveMetric:
    """A metric of sums: `of` gives them [k, s] from outputs [k, m, ...] and labels [m, ...]."""

    of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    value: Callable[[Sums], float]
    """Total sums [s] of one model -> the metric."""


class Tally(NamedTuple):
    """The stored result of a chunk for one model: the sums of each metric, and the outputs if needed."""

    sums: Sequence[Sums]
    outputs: Array | None


class Scoring:
    """The metrics of an objective on the labels of `data`; the engines compute "loss"."""

    def __init__(self, objective: Objective, data: Dataset, base: Path | None = None) -> None:
        self._kind, self._data = objective.kind, data
        names = [name for name in objective.metrics if name != "loss"]
        table = OF_KINDS.get(self._kind, OF_CLASSES)
        self._summed = {name: table[name] for name in names if name in table}
        self._whole = {score_of(name).name: _find_whole(name, base) for name in names if name not in self._summed}
        self.own = {
            name: self._whole[score_of(name).name] for name in names if custom.is_function(name.partition("?")[0])
        }
        """The user's metrics, by their texts."""
        deviation = torch.tensor(data.label_deviation or (1.0,), dtype=torch.float64)
        self._unit = deviation if self._kind == REGRESSION else None

    @property
    def names(self) -> Sequence[str]:
        """Metrics that need all outputs at once."""
        return tuple(self._whole)

    def tallies(self, outputs: torch.Tensor, labels: torch.Tensor) -> list[Tally]:
        """Return the tallies, per model, of the outputs [k, m, ...] of k models for the labels [m, ...]."""
        if self._unit is not None or self._kind == MULTI_LABEL:
            outputs = fitted(outputs.flatten(0, 1), labels.repeat(len(outputs), 1)).view(len(outputs), *labels.shape)
        kept = outputs.detach().float().cpu().numpy().copy() if self._whole else None
        if self._unit is not None:  # float64, if the device supports it
            unit = self._unit.float().to("mps") if outputs.device.type == "mps" else self._unit.to(outputs.device)
            outputs, labels = outputs.to(unit.dtype) * unit, labels.to(unit.dtype) * unit
        parts = [one.of(outputs, labels).double().cpu().numpy() for one in self._summed.values()]
        each = range(len(outputs))
        return [Tally([part[k] for part in parts], None if kept is None else kept[k]) for k in each]

    def values(self, tallies: Sequence[Tally], rows: npt.NDArray[np.int64] | None = None) -> dict[str, float]:
        """Return the metrics of tallies that together cover the whole set, or its `rows`, in order.

        Raises TrainingError for a user's function that raises, or returns no finite number.
        """
        totals = [np.sum(parts, axis=0) for parts in zip(*(tally.sums for tally in tallies), strict=True)]
        found = {name: one.value(total) for (name, one), total in zip(self._summed.items(), totals, strict=True)}
        if self._whole:
            outputs = np.concatenate([tally.outputs for tally in tallies if tally.outputs is not None])
            labels = self._data.y if rows is None else self._data.y[rows]
            if self._unit is not None:
                outputs, labels = self._data.in_units(outputs), self._data.in_units(labels)
            found |= {name: function(outputs, labels) for name, function in self._whole.items()}
        return found


# --- of sums ----------------------------------------------------------------------------------------------------------


def _hits(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    hits = (outputs.argmax(-1) == labels).flatten(1).sum(1)
    return torch.stack([hits, torch.full_like(hits, predicted(labels))], 1)


def _decided(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return _counted((outputs > 0) == (labels > 0))


def _counted(right: torch.Tensor) -> torch.Tensor:
    hits = right.flatten(1).sum(1)
    return torch.stack([hits, torch.full_like(hits, right[0].numel())], 1)


def _confusion(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    classes = outputs.shape[-1]
    guessed, true = (torch.nn.functional.one_hot(one, classes) > 0 for one in (outputs.argmax(-1), labels))
    return _agreement(guessed, true)


def _decisions(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return _agreement(outputs > 0, labels > 0)


def _agreement(guessed: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    """Return, per model and column, the numbers of true positives, predicted and actual positives."""
    each = true.sum(0).expand(len(guessed), -1)
    return torch.cat([(guessed & true).sum(1), guessed.sum(1), each], 1)


def _macro_f1(sums: Sums) -> float:
    """Return the mean over columns of 2 tp / (guessed + true), without columns that have neither."""
    both, guessed, true = sums.reshape(3, -1)
    there = guessed + true > 0
    return float(np.mean(2 * both[there] / (guessed + true)[there])) if there.any() else 0.0


def _absolute(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return _append_count([(outputs - labels).abs().sum(1)], labels)


def _squares(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return _append_count([(outputs - labels).square().sum(1)], labels)


def _explained(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    each = [one.expand(len(outputs), -1) for one in (labels.square().sum(0), labels.sum(0))]
    return _append_count([(outputs - labels).square().sum(1), *each], labels)


def _append_count(sums: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """Return sums [k, columns] side by side, and their number of examples."""
    return torch.cat([*sums, sums[0].new_full((len(sums[0]), 1), len(labels))], 1)


def _r2(sums: Sums) -> float:
    """Return the mean over columns of 1 - residual / spread; without spread 1 if predicted exactly, else 0."""
    residual, squares, total = sums[:-1].reshape(3, -1)
    spread = squares - total**2 / sums[-1]
    flat = spread <= 1e-12 * np.maximum(squares, 1e-300)
    each = np.where(flat, (residual == 0).astype(np.float64), 1 - residual / np.where(flat, 1, spread))
    return float(each.mean())


def _share(sums: Sums) -> float:
    return float(sums[0] / sums[1])


OF_CLASSES: Mapping[str, AdditiveMetric] = {
    "accuracy": AdditiveMetric(_hits, _share),
    "f1": AdditiveMetric(_confusion, _macro_f1),
}
OF_KINDS: Mapping[str, Mapping[str, AdditiveMetric]] = {
    REGRESSION: {
        "mae": AdditiveMetric(_absolute, lambda sums: float(np.mean(sums[:-1] / sums[-1]))),
        "rmse": AdditiveMetric(_squares, lambda sums: float(np.mean(np.sqrt(sums[:-1] / sums[-1])))),
        "r2": AdditiveMetric(_explained, _r2),
    },
    MULTI_LABEL: {
        "accuracy": AdditiveMetric(_decided, _share),
        "f1": AdditiveMetric(_decisions, _macro_f1),
    },
}


# --- of all answers ---------------------------------------------------------------------------------------------------


def _find_whole(name: str, base: Path | None) -> Callable[[Array, Array], float]:
    return auroc if name == "auroc" else _wrap_own(name, base)


def auroc(outputs: Array, labels: Array) -> float:
    """Return the mean over classes, or label columns, of the area under the ROC curve; 0.5 if no column can be ranked.

    Each class against the rest; of two classes only the second.  Columns with one kind of label are ignored.  By ranks,
    averaged over ties: Hanley and McNeil, Radiology 143 (1982).
    """
    if labels.ndim == 1:
        outputs = outputs - outputs.max(axis=1, keepdims=True)
        scores = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
        true = labels[:, None] == np.arange(scores.shape[1])
        scores, true = (scores[:, 1:], true[:, 1:]) if scores.shape[1] == 2 else (scores, true)
    else:
        scores, true = outputs, labels > 0
    mixed = [k for k in range(true.shape[1]) if true[:, k].any() and not true[:, k].all()]
    return float(np.mean([_area(scores[:, k], true[:, k]) for k in mixed])) if mixed else 0.5


def _area(scores: Array, true: Array) -> float:
    _, which, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which.reshape(-1)]
    positive, negative = int(true.sum()), int((~true).sum())
    return float((ranks[true].sum() - positive * (positive + 1) / 2) / (positive * negative))


def _wrap_own(metric: str, base: Path | None) -> Callable[[Array, Array], float]:
    name = metric.partition("?")[0]
    function = custom.function(name, base, METRIC)

    def measured(outputs: Array, labels: Array) -> float:
        found = custom.call_part(f"the metric {name}", function, outputs, labels)
        try:
            value = float(found)
        except (TypeError, ValueError) as error:
            text = f"the metric {name} returned a {type(found).__name__}, of which no number can be made: {error}"
            raise TrainingError(text, "It takes two arrays, outputs and labels, and returns a number.") from error
        if not math.isfinite(value):
            raise TrainingError(f"the metric {name} is {value}", "It returns a finite number.")
        return value

    return measured


def check_together(scoring: Scoring, processes: int, data: Dataset) -> None:
    """Raise ConfigError for metrics that several processes, each with its part of the test set, cannot compute, and for
    lines of different lengths.
    """
    if scoring.names and isinstance(data.y, Ragged):
        text = f"the metric {scoring.names[0]} needs all answers as one array, and lines have several lengths"
        raise ConfigError(text, "Leave the metric out, or take text:PATH, windows of one length.")
    if processes > 1 and scoring.names:
        text = f"the metric {scoring.names[0]} needs all answers at once; processes = {processes}"
        raise ConfigError(text, "Leave the metric out, or train with one process.")
