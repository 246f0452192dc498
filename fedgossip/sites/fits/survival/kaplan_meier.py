"""Survival by the product-limit estimator, from counts at times alone: intervals, medians, and the test of groups.

    S(t)  = prod over times u <= t of  1 - d_u / n_u          d events among n at risk
    s(t)^2 = sum of  d_u / (n_u (n_u - d_u))                    Greenwood: the error of S is S s
    interval   S^exp(-+ z s / log S)                            log(-log S) is nearer to normal, and keeps to [0, 1]
    log-rank   sum over times of  O - E  by group, E = d n_g / n, with its hypergeometric covariance; chi squared

Sources: Kaplan and Meier, JASA 53 (1958); Greenwood, Reports on Public Health and Medical Subjects 33 (1926);
Kalbfleisch and Prentice, The statistical analysis of failure time data, 2nd edition, 2002, chapter 1; Mantel, Cancer
Chemotherapy Reports 50 (1966).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.sites.fits.survival.survival_times import Counts, ToldCounts

Z = 1.959963984540054
"""Of a 95 % interval."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SurvivalCurve:
    """At each told time, [e]; errors and bounds are NaN where S is 0, bounds also where it is 1."""

    survival: Values
    error: Values
    low: Values
    high: Values


def curve_of(counts: ToldCounts) -> SurvivalCurve:
    """Return the estimate by counts at ascending times."""
    risk, events = counts.risk.astype(float), counts.events.astype(float)
    safe = np.maximum(risk, 1)
    survival = np.cumprod(1 - events / safe)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.sqrt(np.cumsum(np.where(events > 0, events / (safe * (risk - events)), 0.0)))
        error = np.where(survival > 0, survival * spread, math.nan)
        power = Z * spread / np.log(survival)  # below 0
        low, high = survival ** np.exp(-power), survival ** np.exp(power)
    inside = (survival > 0) & (survival < 1)
    return SurvivalCurve(survival, error, np.where(inside, low, math.nan), np.where(inside, high, math.nan))


def limits_of(counts: ToldCounts) -> tuple[Values, Values]:
    """Return the bounds of the product-limit estimate of times rounded up to the grid, at each told time.

    For d events among which at least `fewest` less those before, and at most `most`, are at risk, the product of
    1 - d_i / n_i telescopes to 1 - d / fewest at least, and is 1 - d / most at most.
    """
    shares = (1.0 - counts.events / np.maximum(risk, 1) for risk in (counts.fewest, counts.most))
    low, high = (np.cumprod(np.maximum(one, 0.0), dtype=np.float64) for one in shares)
    return low, high


def median_of(times: Sequence[float], curve: SurvivalCurve) -> tuple[float | None, float | None, float | None]:
    """Return the first time at which S is at most a half, and where its lower and its upper bound are.

    None where it is never.  Source: Brookmeyer and Crowley, Biometrics 38 (1982).
    """
    found = []
    for bound in (curve.survival, curve.low, curve.high):
        below = np.flatnonzero(np.where(np.isnan(bound), curve.survival, bound) <= 0.5 + 1e-12)
        found.append(float(times[int(below[0])]) if len(below) else None)
    return found[0], found[1], found[2]


@dataclass(frozen=True)
class LogRank:
    """The test that all groups have one survival: a chi squared with one degree of freedom for each but the first."""

    statistic: float
    freedom: int
    p: float
    expected: tuple[float, ...]
    """Events that each group would have had."""


def log_rank(groups: Sequence[ToldCounts]) -> LogRank | None:
    """Return the test; None where nothing tells the groups apart, for no two are at risk at an event."""
    from scipy import special

    risk: Counts = np.stack([one.risk for one in groups])
    events = np.stack([one.events for one in groups])
    total, had = risk.sum(0).astype(float), events.sum(0).astype(float)
    share = risk / np.maximum(total, 1)
    expected = share * had
    factor = had * (total - had) / np.maximum(total - 1, 1)
    spread = np.diag((factor * share).sum(1)) - (factor * share) @ share.T
    apart = (events - expected).sum(1)
    inverse = np.linalg.pinv(spread, rcond=1e-10, hermitian=True)
    freedom = int(np.linalg.matrix_rank(spread, tol=1e-10 * max(1.0, float(spread.max())), hermitian=True))
    if not freedom:
        return None
    statistic = float(apart @ inverse @ apart)
    told = tuple(expected.sum(1).tolist())
    return LogRank(statistic, freedom, float(special.chdtrc(freedom, statistic)), told)
