"""Estimates of K completed tables, pooled: of their mean, and of the variance within and between tables.

    W = mean of the covariances      B = covariance between the estimates      T = W + (1 + 1/K) B
    r = (1 + 1/K) B / W              degrees of freedom 1 / (1/v_K + 1/v_obs),   v_K = (K - 1) (1 + 1/r)^2

Sources: Rubin, Multiple imputation for nonresponse in surveys, 1987, chapter 3.  Barnard and Rubin, Small-sample
degrees of freedom with multiple imputation, Biometrika 86 (1999).  Several coefficients at once: Li, Raghunathan and
Rubin, Large-sample significance levels from multiply imputed data, JASA 86 (1991).  Only numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from fedgossip.sites.fits.glm.glm import Values


class ImputedCells(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An incomplete column, the model of its cells, and how many of them are empty."""

    name: str
    model: str
    empty: int


class PooledVariance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The variance of one coefficient, in the column's original unit."""

    name: str
    within: float
    between: float
    total: float
    free: float
    """Degrees of freedom of Student's t."""
    missing_information: float
    """Share of the information that the empty cells would have had."""


class Pooling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a fit of K tables was made."""

    sets: int
    """K."""
    iterations: int
    """Rounds of chained equations before a table is taken."""
    imputed: tuple[ImputedCells, ...]
    filled: tuple[str, ...] = ()
    """Columns with too few empty cells, or at too few sites, to draw them: they count as the mean."""
    variances: tuple[PooledVariance, ...] = ()
    """Of each coefficient; none if errors are rounded, or a fit is unfinished."""

    @property
    def lines(self) -> list[str]:
        """How it was made, in words."""
        cells = ", ".join(f"{one.name} ({one.empty}, {one.model})" for one in self.imputed)
        rounds = "one round" if self.iterations == 1 else f"{self.iterations} rounds"
        text = f"empty cells drawn in {self.sets} tables by {rounds} of chained equations, pooled by Rubin's rules"
        few = f"few empty cells, which count as the mean of their column: {', '.join(self.filled)}"
        return [f"{text}: {cells}", *([few] if self.filled else [])]


LEAST = 1e-9
"""Least relative variance between tables: without any there would be no number of degrees of freedom."""


@dataclass(frozen=True, eq=False)
class PooledEstimates:
    """Pooled estimates [p] of `sets` tables, with their covariances within and between tables, [p, p]."""

    sets: int
    estimates: Values
    within: Values
    between: Values

    @property
    def total(self) -> Values:
        return self.within + (1 + 1 / self.sets) * self.between

    def turned(self, turned: Values) -> PooledEstimates:
        """Return them in the coordinates T b; NaN where the covariance within tables is unknown."""
        unknown = (np.abs(turned) @ np.isnan(self.within).astype(float) @ np.abs(turned).T) > 0
        within = turned @ np.nan_to_num(self.within) @ turned.T
        within[unknown] = math.nan
        return PooledEstimates(self.sets, turned @ self.estimates, within, turned @ self.between @ turned.T)

    def free(self, complete: float) -> Values:
        """Return the degrees of freedom of each, [p]; `complete`: those of a table without an empty cell."""
        added = (1 + 1 / self.sets) * np.diag(self.between)
        share = added / np.diag(self.total)
        observed = (complete + 1) / (complete + 3) * complete * (1 - share)
        return np.asarray(1 / (share**2 / (self.sets - 1) + 1 / observed))

    def missing_information(self, complete: float) -> Values:
        """Return the share of missing information of each, [p]."""
        ratio = (1 + 1 / self.sets) * np.diag(self.between) / np.diag(self.within)
        return np.asarray((ratio + 2 / (self.free(complete) + 3)) / (1 + ratio))

    def variances(self, names: Sequence[str], complete: float) -> tuple[PooledVariance, ...]:
        """Return those of each coefficient with a known variance."""
        rows = zip(
            names, np.diag(self.within).tolist(), np.diag(self.between).tolist(), np.diag(self.total).tolist(),
            self.free(complete).tolist(), self.missing_information(complete).tolist(), strict=True,
        )  # fmt: skip
        return tuple(PooledVariance(*row) for row in rows if math.isfinite(row[1]) and row[1] > 0)

    def test(self, places: Sequence[int]) -> tuple[float, float]:
        """Return F that these k coefficients are 0, and its second degrees of freedom."""
        at, k, sets = np.ix_(places, places), len(places), self.sets
        mine = self.estimates[list(places)]
        inverse = np.linalg.inv(self.within[at])
        ratio = (1 + 1 / sets) * float(np.trace(self.between[at] @ inverse)) / k
        statistic = float(mine @ inverse @ mine) / (k * (1 + ratio))
        t = k * (sets - 1)
        ratio = max(ratio, LEAST)
        if t > 4:
            return statistic, 4 + (t - 4) * (1 + (1 - 2 / t) / ratio) ** 2
        return statistic, t * (1 + 1 / k) * (1 + 1 / ratio) ** 2 / 2


def pooled(estimates: Sequence[Values], covariances: Sequence[Values]) -> PooledEstimates:
    """Return the pooled estimates of two tables or more, [K, p] with covariances [K, p, p]."""
    every = np.stack(estimates)
    from_mean = every - every.mean(axis=0)
    between = from_mean.T @ from_mean / (len(every) - 1)
    return PooledEstimates(len(every), every.mean(axis=0), np.stack(covariances).mean(axis=0), between)
