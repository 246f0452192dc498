"""survival.json: survival curves of all sites' records together and of groups, without small counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import TrainingError
from fedgossip.data.agreed.column_sums import SITES
from fedgossip.sites.fits.glm.glm_result import FORMAT, known
from fedgossip.sites.fits.survival.survival_sums import ALL, CurveDesign, CurveLayout, Numbers
from fedgossip.sites.fits.survival.survival_times import (
    Counts,
    ReportedCounts,
    choose_groups,
    choose_report_times,
    report_counts,
)

# Survival by the product-limit estimator, only from counts at times: intervals, medians, and the test of groups.
#
# S(t)  = prod over times u <= t of  1 - d_u / n_u          d events, n at risk
# s(t)^2 = sum of  d_u / (n_u (n_u - d_u))                    Greenwood: the error of S is S s
# interval   S^exp(-+ z s / log S)                            log(-log S) is closer to normal, and keeps to [0, 1]
# log-rank   sum over times of  O - E  by group, E = d n_g / n, with its hypergeometric covariance; chi squared
#
# Sources: Kaplan and Meier, JASA 53 (1958); Greenwood, Reports on Public Health and Medical Subjects 33 (1926);
# Kalbfleisch and Prentice, The statistical analysis of failure time data, 2nd edition, 2002, chapter 1; Mantel, Cancer
# Chemotherapy Reports 50 (1966).


Z = 1.959963984540054
"""Normal quantile of a 95 % interval."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SurvivalCurve:
    """At each reported time, [e]; errors and bounds are NaN for S = 0, bounds also for S = 1."""

    survival: Values
    error: Values
    low: Values
    high: Values


def curve_of(counts: ReportedCounts) -> SurvivalCurve:
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


def limits_of(counts: ReportedCounts) -> tuple[Values, Values]:
    """Return the bounds of the product-limit estimate of times rounded up to the grid, at each reported time.

    For d events with at least `fewest` (less those before) and at most `most` at risk, the product of 1 - d_i / n_i is
    at least 1 - d / fewest, at most 1 - d / most.
    """
    shares = (1.0 - counts.events / np.maximum(risk, 1) for risk in (counts.fewest, counts.most))
    low, high = (np.cumprod(np.maximum(one, 0.0), dtype=np.float64) for one in shares)
    return low, high


def median_of(times: Sequence[float], curve: SurvivalCurve) -> tuple[float | None, float | None, float | None]:
    """Return the first time with S at most a half, and the same of its bounds, or None.

    Source: Brookmeyer and Crowley, Biometrics 38 (1982).
    """
    found = []
    for bound in (curve.survival, curve.low, curve.high):
        below = np.flatnonzero(np.where(np.isnan(bound), curve.survival, bound) <= 0.5 + 1e-12)
        found.append(float(times[int(below[0])]) if len(below) else None)
    return found[0], found[1], found[2]


def median_between(times: Sequence[float], limits: tuple[Values, Values]) -> tuple[float | None, float | None]:
    """Return the bounds, by `limits_of`, of the median of times rounded up; None without a bound."""
    low, high = (np.flatnonzero(one <= 0.5 + 1e-12) for one in limits)
    above = 0.0 if len(low) and not low[0] else float(times[int(low[0]) - 1]) if len(low) else float(times[-1])
    return above, float(times[int(high[0])]) if len(high) else None


class RestrictedMean(NamedTuple):
    """Mean time without the event, until the last reported time: the area below the curve."""

    mean: float
    error: float
    """Standard error, by Greenwood's formula."""
    least: float
    most: float
    """Bounds of the mean of all records with times rounded up to the grid."""


def restricted_mean(
    times: Sequence[float], grid: Sequence[float], counts: ReportedCounts, curve: SurvivalCurve
) -> RestrictedMean:
    """Return the area below the curve.  Source: Klein and Moeschberger, Survival analysis, 2nd edition, 2003, 4.5."""
    starts = np.array([0.0, *times[:-1]])
    widths = np.array(times) - starts
    first = np.array(grid)[np.searchsorted(grid, starts, side="right")] - starts  # on it no event is possible
    before, low, high = (np.concatenate([[1.0], one[:-1]]) for one in (curve.survival, *limits_of(counts)))
    areas = widths * before
    rest = areas[::-1].cumsum()[::-1] - areas  # from each reported time on, of that time's own survival
    risk, events = counts.risk.astype(float), counts.events.astype(float)
    spread = np.where(risk > events, events / (np.maximum(risk, 1) * np.maximum(risk - events, 1)), 0.0)
    least = float((first * low + (widths - first) * limits_of(counts)[0]).sum())
    return RestrictedMean(float(areas.sum()), math.sqrt(float((rest**2 * spread).sum())), least, float(widths @ high))


@dataclass(frozen=True)
class LogRank:
    """The test that all groups have one survival: a chi squared with one degree of freedom for each group except the
    first.
    """

    statistic: float
    freedom: int
    p: float
    expected: tuple[float, ...]
    """Expected events of each group."""


def log_rank(groups: Sequence[ReportedCounts]) -> LogRank | None:
    """Return the test; None if the groups are not comparable: no two are at risk at an event."""
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
    expected_events = tuple(expected.sum(1).tolist())
    return LogRank(statistic, freedom, float(special.chdtrc(freedom, statistic)), expected_events)


class CurvePoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reported time; None for undisclosed values."""

    time: float
    risk: int
    """Number of records at risk."""
    events: int
    survival: float
    error: float | None
    """Standard error, by Greenwood's formula."""
    low: float | None
    high: float | None
    """Upper bound of the 95 % interval, of log(-log S)."""
    grid_low: float | None = None
    grid_high: float | None = None
    """Bounds of the estimate of all records with times rounded up to the grid: censorings are reported in runs."""


class GroupCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The records of a group, or all."""

    name: str
    records: int
    events: int
    expected: float | None = None
    """Expected events under equal survival of all groups."""
    median: float | None
    median_low: float | None
    median_high: float | None
    median_above: float | None = None
    median_until: float | None = None
    """Bounds of the median of all records with times rounded up to the grid: above the first, at most the second."""
    points: tuple[CurvePoint, ...]
    mean: float | None = None
    """Mean time without the event until the last reported time."""
    mean_error: float | None = None
    mean_least: float | None = None
    mean_most: float | None = None
    """Bounds of the mean of all records with times rounded up to the grid."""


class CurveFit(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="kaplan-meier"
):
    """The contents of survival.json."""

    format: int = FORMAT
    design: CurveDesign
    sites: int
    least: int
    """Minimum number of sites in a sum."""
    suppress: int
    everybody: GroupCurve
    groups: tuple[GroupCurve, ...] = ()
    hidden: tuple[str, ...] = ()
    """Withheld groups: too small, or at too few sites."""
    statistic: float | None = None
    """Chi squared of the log-rank test."""
    freedom: int | None = None
    p: float | None = None

    def __post_init__(self) -> None:
        if not self.everybody.points:
            raise ValueError("a curve without a point")


def fit_of(layout: CurveLayout, numbers: Numbers, suppress: int, least: int) -> CurveFit:
    """Return the curves of the sums.  Raises TrainingError if the events are too few for a curve."""
    d, whole = layout.design, layout.counts(numbers)
    all_of = {group: layout.counts(numbers, group) for group in d.groups}
    never = {group for group in d.groups if 0 < numbers["at", group] < SITES}
    published, rest = choose_groups(all_of, whole, never, suppress)
    there = {group for group in d.groups if all_of[group].records or group in never}
    cells = [*published.values(), *([rest] if rest is not None else [])]
    ends = choose_report_times(cells, suppress)
    if not ends and published:
        published, cells = {}, [whole]
        ends = choose_report_times(cells, suppress)
    if not ends:
        raise _too_few(d, int(whole.events.sum()), suppress)
    times = [d.grid[place] for place in ends]
    counts = [report_counts(one, ends, suppress) for one in cells]
    added = (np.sum([getattr(one, name) for one in counts], axis=0) for name in ("risk", "events", "fewest", "most"))
    everybody = ReportedCounts(whole.records, *added)
    test = log_rank(counts[: len(published)]) if len(published) > 1 else None
    expected: Sequence[float | None] = test.expected if test else [None] * len(published)
    return CurveFit(
        design=d,
        sites=numbers["sites",],
        least=least,
        suppress=suppress,
        everybody=_curve(d, ALL, times, everybody, None),
        groups=tuple(
            _curve(d, *one) for one in zip(published, [times] * len(published), counts, expected, strict=False)
        ),
        hidden=tuple(group for group in d.groups if group in there and group not in published),
        statistic=test.statistic if test else None,
        freedom=test.freedom if test else None,
        p=test.p if test else None,
    )


def _too_few(d: CurveDesign, events: int, suppress: int) -> TrainingError:
    if not events:
        text = f"no record has its event, {d.event} = 1, until {d.grid[-1]:g}"
        return TrainingError(text, "Take later times in model.source, if there are events after them.")
    text = f"fewer than {suppress} records have their event, {d.event} = 1, or fewer are left after it"
    return TrainingError(
        text, "So few are not published (data.suppress): take later times in model.source, or more sites."
    )


def _curve(
    d: CurveDesign, name: str, times: Sequence[float], counts: ReportedCounts, expected: float | None
) -> GroupCurve:
    curve = curve_of(counts)
    rows = zip(times, counts.risk.tolist(), counts.events.tolist(), strict=True)
    figures = zip(*(one.tolist() for one in (curve.survival, curve.error, curve.low, curve.high)), strict=True)
    limits = zip(*(one.tolist() for one in limits_of(counts)), strict=True)
    points = [
        CurvePoint(*row, survival, *map(known, others), *bounds)
        for row, (survival, *others), bounds in zip(rows, figures, limits, strict=True)
    ]
    median, low, high = median_of(times, curve)
    above, until = median_between(times, limits_of(counts))
    mean = restricted_mean(times, d.grid, counts, curve)
    return GroupCurve(
        name=name, records=counts.records, events=int(counts.events.sum()), expected=expected, median=median,
        median_low=low, median_high=high, median_above=above, median_until=until, points=tuple(points),
        mean=mean.mean, mean_error=mean.error, mean_least=mean.least, mean_most=mean.most,
    )  # fmt: skip
