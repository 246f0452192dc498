"""Significance of a difference between two methods with the same seeds; and agreement of two orders.

Runs with one seed share data, first model and batches, so their difference varies less than they do: intervals are of
the differences.  Two are reported, for five seeds are few: Student's t (which assumes normality) and the percentiles of
a bootstrap (which treats the sample as the population, and is too narrow for few).  Source of the bootstrap: Efron,
Annals of Statistics 7 (1979).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedgossip.base import seeds
from fedgossip.report.page.intervals import LEVEL, Interval, student_interval, student_p

RESAMPLED = 10_000
"""Number of bootstrap samples."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean of the differences over the common seeds; intervals of two seeds or more."""

    mean: float
    pairs: int
    student: Interval | None
    bootstrap: Interval | None
    p: float | None = None
    """Of the paired t test, two-sided."""

    @property
    def sure(self) -> bool:
        """Return whether 0 is outside the wider, Student's interval."""
        return self.student is not None and not self.student[0] <= 0.0 <= self.student[1]


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> PairedDifference | None:
    """Return `ours` less `theirs`, by their common seeds; None without any."""
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    differences = np.array([ours[seed] - theirs[seed] for seed in common])
    mean = float(differences.mean())
    student = student_interval(differences.tolist())
    if student is None:
        return PairedDifference(mean, len(common), None, None)
    drawn = seeds.stream(0, "bootstrap", len(common)).integers(0, len(common), (RESAMPLED, len(common)))
    middle = _middle(differences[drawn].mean(axis=1))
    return PairedDifference(mean, len(common), student, middle, student_p(differences.tolist()))


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rho; 1 where the order is the same, -1 where it is reversed."""

    rho: float
    points: int
    bootstrap: Interval | None


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> RankCorrelation | None:
    """Return Spearman's rho of two rows of numbers; None for fewer than three points, or where one is constant."""
    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return None
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    drawn = seeds.stream(0, "bootstrap", len(x)).integers(0, len(x), (RESAMPLED // 10, len(x)))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.array([_rho(a[rows], b[rows]) for rows in drawn])
    found = found[np.isfinite(found)]
    return RankCorrelation(_rho(a, b), len(x), _middle(found) if len(found) else None)


def _rho(x: np.ndarray, y: np.ndarray) -> float:
    from scipy.stats import rankdata

    return float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])


def _middle(drawn: np.ndarray) -> Interval:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
