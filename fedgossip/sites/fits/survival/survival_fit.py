"""survival.json: the curve of all sites' records together, and of their groups, without small counts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from fedgossip.base.errors import TrainingError
from fedgossip.data.agreed.column_sums import SITES
from fedgossip.sites.fits.glm.glm_fit import FORMAT, known
from fedgossip.sites.fits.survival.kaplan_meier import curve_of, limits_of, log_rank, median_of
from fedgossip.sites.fits.survival.survival_sums import ALL, CurveDesign, CurveLayout, Numbers
from fedgossip.sites.fits.survival.survival_times import ToldCounts, told_counts, told_ends, told_groups

CURVES = "survival.json"


class CurvePoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One told time; what cannot be told of it is None."""

    time: float
    risk: int
    """How many are at risk."""
    events: int
    survival: float
    error: float | None
    """Standard error, by Greenwood's formula."""
    low: float | None
    high: float | None
    """Of the 95 % interval, of log(-log S)."""
    grid_low: float | None = None
    grid_high: float | None = None
    """Between them lies the estimate of all records with times rounded up to the grid: censorings are told in runs."""


class GroupCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The records of a group, or all."""

    name: str
    records: int
    events: int
    expected: float | None = None
    """Events that there would be if all groups survived alike."""
    median: float | None
    median_low: float | None
    median_high: float | None
    points: tuple[CurvePoint, ...]


class CurveFit(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="kaplan-meier"
):
    """The file."""

    format: int = FORMAT
    design: CurveDesign
    sites: int
    least: int
    """Sites that a sum has at least."""
    suppress: int
    everybody: GroupCurve
    groups: tuple[GroupCurve, ...] = ()
    hidden: tuple[str, ...] = ()
    """Groups that are too small, or at too few sites, to be told."""
    statistic: float | None = None
    """Of the log-rank test: chi squared."""
    freedom: int | None = None
    p: float | None = None


def fit_of(layout: CurveLayout, numbers: Numbers, suppress: int, least: int) -> CurveFit:
    """Return what the sums say.  Raises TrainingError where there are too few events for a curve."""
    d, whole = layout.design, layout.counts(numbers)
    all_of = {group: layout.counts(numbers, group) for group in d.groups}
    never = {group for group in d.groups if 0 < numbers["at", group] < SITES}
    told, rest = told_groups(all_of, whole, never, suppress)
    there = {group for group in d.groups if all_of[group].records or group in never}
    cells = [*told.values(), *([rest] if rest is not None else [])]
    ends = told_ends(cells, suppress)
    if not ends and told:
        told, cells = {}, [whole]
        ends = told_ends(cells, suppress)
    if not ends:
        raise _too_few(d, int(whole.events.sum()), suppress)
    times = [d.grid[place] for place in ends]
    counts = [told_counts(one, ends, suppress) for one in cells]
    added = (np.sum([getattr(one, name) for one in counts], axis=0) for name in ("risk", "events", "fewest", "most"))
    everybody = ToldCounts(whole.records, *added)
    test = log_rank(counts[: len(told)]) if len(told) > 1 else None
    expected: Sequence[float | None] = test.expected if test else [None] * len(told)
    return CurveFit(
        design=d,
        sites=numbers["sites",],
        least=least,
        suppress=suppress,
        everybody=_curve(ALL, times, everybody, None),
        groups=tuple(_curve(*one) for one in zip(told, [times] * len(told), counts, expected, strict=False)),
        hidden=tuple(group for group in d.groups if group in there and group not in told),
        statistic=test.statistic if test else None,
        freedom=test.freedom if test else None,
        p=test.p if test else None,
    )


def _too_few(d: CurveDesign, events: int, suppress: int) -> TrainingError:
    if not events:
        text = f"no record has its event, {d.event} = 1, until {d.grid[-1]:g}"
        return TrainingError(text, "Take later times in model.source, if there are events behind them.")
    text = f"fewer than {suppress} records have their event, {d.event} = 1, or fewer are left after it"
    return TrainingError(text, "So few are not told (data.suppress): take later times in model.source, or more sites.")


def _curve(name: str, times: Sequence[float], counts: ToldCounts, expected: float | None) -> GroupCurve:
    curve = curve_of(counts)
    rows = zip(times, counts.risk.tolist(), counts.events.tolist(), strict=True)
    figures = zip(*(one.tolist() for one in (curve.survival, curve.error, curve.low, curve.high)), strict=True)
    limits = zip(*(one.tolist() for one in limits_of(counts)), strict=True)
    points = [
        CurvePoint(*row, survival, *map(known, others), *bounds)
        for row, (survival, *others), bounds in zip(rows, figures, limits, strict=True)
    ]
    median, low, high = median_of(times, curve)
    return GroupCurve(
        name=name, records=counts.records, events=int(counts.events.sum()), expected=expected, median=median,
        median_low=low, median_high=high, points=tuple(points),
    )  # fmt: skip
