"""How well a model answers for each record: its loss there, and whether it is right.  No torch here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.data.objectives import CLASSIFICATION, MULTI_LABEL, REGRESSION

TINY = 1e-300
"""A probability counts as no smaller: its loss is at most 691."""

Answers = npt.NDArray[np.float64]


def losses_of(kind: str, answers: Answers, y: npt.NDArray[np.generic]) -> Answers:
    """Return the loss of each record, float64 [m], of answers [m, k] as `LoadedModel` gives them.

    Of classes minus the logarithm of the probability of the true one; of several labels the sum of those; of numbers
    the mean squared error, in the labels' units.  Raises ConfigError for text, which has no records.
    """
    if kind == CLASSIFICATION:
        return -np.log(np.maximum(answers[np.arange(len(y)), y.astype(np.int64)], TINY))
    truth = y.astype(np.float64).reshape(answers.shape) if kind in (MULTI_LABEL, REGRESSION) else None
    if truth is None:
        raise ConfigError(f"a model of {kind}: its examples are no records", "Name a model of tables or pictures.")
    if kind == REGRESSION:
        return np.asarray(((answers - truth) ** 2).mean(axis=1))
    of_truth = np.where(truth == 1, answers, 1 - answers)
    return np.asarray(-np.log(np.maximum(of_truth, TINY)).sum(axis=1))


def right_of(kind: str, answers: Answers, y: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_] | None:
    """Return whether each answer is right, bool [m]: of several labels all of them; None where answers are numbers."""
    if kind == CLASSIFICATION:
        return np.asarray(answers.argmax(axis=1) == y)
    if kind == MULTI_LABEL:
        return np.asarray(((answers > 0.5) == (y == 1)).all(axis=1))
    return None
