"""Intervals of a mean over seeds: Student's, of a level that every table and figure shares."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LEVEL = 0.95

Interval = tuple[float, float]


def student_interval(values: Sequence[float]) -> Interval | None:
    """Return Student's interval of the mean of values [k], mean ± t s / sqrt(k); None for fewer than two."""
    if len(values) < 2:
        return None
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    sample = np.asarray(values, np.float64)
    half = float(stdtrit(len(values) - 1, 0.5 + LEVEL / 2)) * float(sample.std(ddof=1)) / math.sqrt(len(values))
    mean = float(sample.mean())
    return mean - half, mean + half


def student_p(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of the paired t test that differences [k] have mean 0; None for fewer than two."""
    if len(differences) < 2:
        return None
    from scipy.special import stdtr

    sample = np.asarray(differences, np.float64)
    error = float(sample.std(ddof=1)) / math.sqrt(len(differences))
    if error == 0.0:
        return 1.0 if sample.mean() == 0 else 0.0
    return 2.0 * float(stdtr(len(differences) - 1, -abs(float(sample.mean())) / error))


def holm(values: Sequence[float]) -> list[float]:
    """Return p values as adjusted by Holm for so many tests, in the given order.

    Source: Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6 (1979).
    """
    found, least = [0.0] * len(values), 0.0
    for rank, at in enumerate(sorted(range(len(values)), key=lambda at: values[at])):
        least = max(least, min(1.0, (len(values) - rank) * values[at]))
        found[at] = least
    return found
