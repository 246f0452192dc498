"""Scores of a model in a folder, or in a file of another format, on labelled examples, with the metrics of its run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.data import data
from fedgossip.data.dataset import OF_COLUMNS, Dataset
from fedgossip.data.objectives import LANGUAGE, Objective
from fedgossip.learning.models.model_files import ModelFacts
from fedgossip.learning.one_model.losses import Criterion, predicted
from fedgossip.learning.one_model.scoring import Scoring

ROWS = 512
"""Number of examples processed at a time."""


class DescribedModel(Protocol):
    """A model with facts about its training data."""

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def like(self) -> Dataset: ...


def like_of(facts: ModelFacts) -> Dataset:
    """Return one empty example, with the columns, classes and scales of a model's training data."""
    f = facts
    text, columns = f.kind == LANGUAGE or f.vocabulary is not None, f.kind in OF_COLUMNS
    y = np.zeros((1, *f.shape) if f.kind == LANGUAGE else (1,), np.int64)
    return Dataset(
        "the model",
        np.zeros((1, *f.shape), np.int64 if text else np.float32),
        np.zeros((1, f.outputs), np.float32) if columns else y,
        0 if columns else f.outputs,
        vocabulary=f.vocabulary,
        columns=f.columns,
        class_names=f.classes if f.labels and not columns else (),
        kind=f.kind,
        label_names=f.labels,
        encoding=f.encoding,
        mean=f.scale.mean if f.scale else (),
        deviation=f.scale.deviation if f.scale else (),
        label_mean=f.label_scale.mean if f.label_scale else (),
        label_deviation=f.label_scale.deviation if f.label_scale else (),
    )


def as_learned(examples: Dataset, facts: ModelFacts) -> Dataset:
    """Return unscaled examples on the scale of the model's training data.

    Raises ConfigError if their labels are for another kind of task.
    """
    if examples.kind != facts.kind:
        text = f"{examples.name}: its labels are for {examples.kind}, and the model is for {facts.kind}"
        raise ConfigError(text, "Name examples of the model's task.")
    return data.standardised(examples, like_of(facts))


def as_read(examples: Dataset) -> Dataset:
    """Return scaled examples in original units, float64: the inverse of `data.data.standardised`, to rounding."""
    if not examples.mean:
        return examples
    mean, deviation = (np.array(one).reshape(examples.shape) for one in (examples.mean, examples.deviation))
    y = examples.in_units(examples.y) if examples.label_mean else examples.y
    x = examples.x.astype(np.float64) * deviation + mean
    return replace(examples, x=x, y=y, mean=(), deviation=(), label_mean=(), label_deviation=())


class Measuring:
    """The loss and the metrics of a model's run, on scaled examples; `base`: the folder of the user's functions."""

    def __init__(self, facts: ModelFacts, scaled: Dataset, base: Path | None = None) -> None:
        objective = Objective(facts.kind, facts.loss, facts.metrics)
        self._criterion, self._scoring = Criterion(objective, base), Scoring(objective, scaled, base)
        self._scaled = scaled

    def measure(
        self, outputs_of: Callable[[slice], torch.Tensor], unusable: Callable[[str], TrainingError]
    ) -> dict[str, float]:
        """Return "loss" and the metrics of the model's raw outputs for rows of the examples.

        Raises `unusable`, with name and value, for a result that is not finite.
        """
        tallies, loss, counted = [], 0.0, 0
        for start in range(0, len(self._scaled), ROWS):
            rows = slice(start, start + ROWS)
            outputs, labels = outputs_of(rows), torch.from_numpy(np.array(self._scaled.y[rows]))
            loss += float(self._criterion.mean(outputs, labels)) * predicted(labels)
            tallies += self._scoring.tallies(outputs.unsqueeze(0), labels)
            counted += predicted(labels)
        found = {"loss": loss / counted, **self._scoring.values(tallies)}
        if wrong := next((name for name, value in found.items() if not math.isfinite(value)), ""):
            raise unusable(f"{wrong} is {found[wrong]} on {self._scaled.name}")
        return found
