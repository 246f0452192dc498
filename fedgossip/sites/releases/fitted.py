"""The fit on the card of a release: estimates with their errors, a curve, or the gains of columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedgossip.report.page.drawing import BLUE, DASHES, QUIET, SERIES, draw, legend_above, percent_axis
from fedgossip.report.page.markup import Markup, figure, grid, paragraph, section, table
from fedgossip.report.page.numbers import NOTHING, count, number, percent, plural
from fedgossip.sites.fits.cox import cox_result
from fedgossip.sites.fits.cox.cox_result import CoxFit, cost_of_grid
from fedgossip.sites.fits.families.family import FamilyFit, ResultTable
from fedgossip.sites.fits.fit_files import AnyFit
from fedgossip.sites.fits.glm import glm_result
from fedgossip.sites.fits.glm.glm_result import RATIO, Coefficient, GlmFit
from fedgossip.sites.fits.imputation.rubin import Pooling
from fedgossip.sites.fits.survival.survival_curves import CurveFit, GroupCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ESTIMATES = ("Column", "Estimate", "Standard error", "95 % from", "to", "p")
CURVE = ("Time", "At risk", "Events", "Survival", "Standard error", "95 % from", "to")
COLUMNS = 40
"""Maximum number of listed columns of trees."""
FURTHEST = 1e-4, 1e4
"""Ratios beyond these end at the edge of a plot."""


def numbers_of(fit: AnyFit) -> int:
    """Return the number of numbers of a fit: coefficients, reported times of a curve, leaves of trees."""
    if isinstance(fit, GlmFit | CoxFit):
        return len(fit.coefficients)
    if isinstance(fit, CurveFit):
        return sum(len(one.points) for one in (fit.everybody, *fit.groups))
    if isinstance(fit, FamilyFit):
        return sum(isinstance(value, float | int) for one in fit.tables for row in one.rows for value in row)
    return fit.leaves


def section_of(fit: AnyFit) -> Markup | None:
    return section("What was fitted", *_parts(fit))


def _parts(fit: AnyFit) -> list[Markup | None]:
    if isinstance(fit, GlmFit):
        return _of_glm(fit)
    if isinstance(fit, CoxFit):
        return _of_cox(fit)
    if isinstance(fit, CurveFit):
        return _of_curves(fit)
    if isinstance(fit, FamilyFit):
        return _of_family(fit)
    d = fit.design
    whole = "" if fit.whole else f", of {count(d.trees)} that were asked for"
    kind = f"Random forest, {d.forest_columns} columns a tree" if d.forest_columns else "Boosted trees"
    leaves = f"{count(fit.leaves)} leaves, of {_records(fit.records, fit.sites)}"
    grown = f"{kind}: {plural(fit.trees, 'tree')}{whole}, {leaves}."
    loss = f"Mean loss {number(fit.losses[0])} before the first tree, {number(fit.losses[-1])} before the last."
    small = (
        f"Opened: {count(fit.opened)} sums over a bin of a node, {count(fit.small)} of fewer than {d.suppress} records."
    )
    rows = [[one.name, number(one.gain), percent(one.share), count(one.splits)] for one in fit.gains[:COLUMNS]]
    return [paragraph(f"{grown}  {loss}  {small}"), table(["Column", "Gain", "Of all", "Splits"], rows, 3)]


def _of_glm(fit: GlmFit) -> list[Markup | None]:
    d = fit.design
    of = f"{d.outcome} = {d.of}" if d.of else d.outcome
    null = "" if fit.null_deviance is None else f", {number(fit.null_deviance)} of the mean alone"
    aic = "" if fit.aic is None else f"; AIC {number(fit.aic)}"
    text = (
        f"A {d.of_family.title} model of {of}, of {_records(fit.records, fit.sites)}: deviance {number(fit.deviance)}"
    )
    return [
        paragraph(f"{text}{null}{aic}."),
        _estimates(fit.coefficients, RATIO.get(d.family)),
        _of_ratios(fit.coefficients, RATIO[d.family]) if d.family in RATIO else None,
        _remarks(d.against, fit.silent),
        *(_pooled(fit.pooling) if fit.pooling else []),
        paragraph(
            "  ".join(f"{what}: {one.name}." for what, one in (("Offset", d.offset), ("Weights", d.weights)) if one)
        )
        if d.prior
        else None,
        _tests(fit),
    ]


def _pooled(pooling: Pooling) -> list[Markup]:
    words = paragraph("  ".join(f"{text[0].upper()}{text[1:]}." for text in pooling.lines))
    head = ["Column", "Variance within", "Between", "Total", "Degrees of freedom", "Missing information"]
    rows = [
        [one.name, *map(number, (one.within, one.between, one.total, one.free)), percent(one.missing_information)]
        for one in pooling.variances
    ]
    return [words, table(head, rows, 1)] if rows else [words]


def _tests(fit: GlmFit) -> Markup | None:
    words = []
    for one in fit.tests:
        what = "chi squared" if one.free is None else "F"
        name = "All columns, likelihood ratio" if one.name == "likelihood ratio" else f"{one.name}, Wald"
        words.append(f"{name}: {what} {number(one.statistic)} of {one.freedom}, p {number(one.p)}.")
    if fit.pearson is not None and fit.free > 0:
        words.append(f"Dispersion, X² over degrees of freedom: {number(fit.pearson / fit.free)}.")
    words += [f"Errors are {fit.design.errors}{_clusters(fit)}."] if fit.design.errors else []
    words += [f"{text[0].upper()}{text[1:]}."] if (text := glm_result.rounding(fit)) else []
    return paragraph("  ".join(words)) if words else None


def _clusters(fit: GlmFit | CoxFit) -> str:
    return "" if fit.clusters is None else f", of {fit.clusters} clusters by {fit.design.cluster}"


def _of_cox(fit: CoxFit) -> list[Markup | None]:
    d = fit.design
    text = f"{d.title[0].upper()}{d.title[1:]}, of {_records(fit.records, fit.sites)}"
    error = "" if fit.concordance_error is None else f" (standard error {number(fit.concordance_error)})"
    agree = "" if fit.concordance is None else f"; concordance {number(fit.concordance)}{error}, of pairs at one site"
    of_all = "" if fit.unused is None else f" of {count(fit.events + fit.unused)}"
    used = f"{count(fit.events)}{of_all} events at {len(fit.strata[0].points)} reported times (times are rounded up)"
    own = f"; each {d.strata_column} has a hazard of its own" if d.strata_column else ""
    own += f"; records are at risk after {d.entry.name}" if d.entry else ""
    ties = "" if d.ties == "breslow" else "; ties are Efron's"
    ridge = f"; a ridge of {number(d.ridge)}" if d.ridge else ""
    errors = f"; errors are {d.errors}{_clusters(fit)}" if d.errors else ""
    return [
        paragraph(f"{text}, {used}{own}{ties}{agree}{ridge}{errors}."),
        *(paragraph(f"{text[0].upper()}{text[1:]}.") for text in (cost_of_grid(fit), cox_result.rounding(fit)) if text),
        _estimates(fit.coefficients, "hazard ratio"),
        _of_ratios(fit.coefficients, "hazard ratio"),
        _remarks(d.against, fit.silent),
        _proportional(fit),
    ]


def _proportional(fit: CoxFit) -> Markup | None:
    rows = [[one.name, number(one.statistic), count(one.freedom), number(one.p)] for one in fit.proportional]
    return table(["Effect changes with time", "Chi squared", "Degrees of freedom", "p"], rows, 3) if rows else None


def _of_curves(fit: CurveFit) -> list[Markup | None]:
    d, whole = fit.design, fit.everybody
    text = f"Kaplan-Meier survival, {d.time} until {d.event} = 1, of {_records(whole.records, fit.sites)}"
    test = "" if fit.p is None else f"; log-rank test of the groups: p {number(fit.p)}"
    events = f"{count(whole.events)} events until {whole.points[-1].time:g}"
    found: list[Markup | None] = [paragraph(f"{text}, {events}{test}.")]
    found += [grid(_drawn_curves(fit)), _medians(fit)]
    for one in (whole, *fit.groups):
        found += [paragraph(f"{d.group_column} = {one.name}")] if one.name else []
        found.append(_curve(one))
    return found


def _of_family(fit: FamilyFit) -> list[Markup | None]:
    found: list[Markup | None] = [paragraph(f"{fit.title}, of {_records(fit.records, fit.sites)}.")]
    for one in fit.tables:
        rows = [[value if isinstance(value, str) else number(value) for value in row] for row in one.rows]
        found += [paragraph(one.name.capitalize()), table(one.head, rows, len(one.head) - 1), _picture(one)]
    return [*found, *(paragraph(f"{one}.") for one in fit.remarks)]


def _picture(one: ResultTable) -> Markup | None:
    """Return a forest plot of the rows with an interval, or their box plot; None for a table without either."""
    if one.boxes is not None:
        return _boxes(one.name, _drawn_rows(one, one.boxes))
    if one.forest is None:
        return None
    *names, null = one.forest
    rows = [(name, values[0], values[1], values[2]) for name, values in _drawn_rows(one, names)]
    return _forest(one.name, names[0], rows, null)


def _drawn_rows(one: ResultTable, names: Sequence[str]) -> list[tuple[str, list[float]]]:
    """Return the name of each row and its numbers in these columns, of rows with all of them."""
    columns, there = [one.head.index(name) for name in names], list[tuple[str, list[float]]]()
    for row in one.rows:
        found = [float(value) for value in (row[k] for k in columns) if isinstance(value, float | int)]
        if len(found) == len(columns):
            there.append((str(row[0]), found))
    return there


def _boxes(title: str, rows: Sequence[tuple[str, list[float]]]) -> Markup | None:
    """Return a box plot of (name, five quantiles), each from its first quantile to its last."""
    there = [(name, of) for name, of in rows[:COLUMNS] if of[0] < of[-1]]
    if not there:
        return None

    def paint(to: Figure) -> None:
        axes = to.subplots()
        for place, (_, of) in enumerate(reversed(there)):
            low, left, median, right, high = ((one - of[0]) / (of[-1] - of[0]) for one in of)
            axes.plot([low, left], [place, place], color=BLUE)
            axes.plot([right, high], [place, place], color=BLUE)
            axes.barh(place, right - left, 0.5, left, facecolor="none", edgecolor=BLUE)
            axes.plot([median, median], [place - 0.25, place + 0.25], color=BLUE, linewidth=2)
        named = [f"{name}, {number(of[0])} to {number(of[-1])}" for name, of in reversed(there)]
        axes.set_yticks(range(len(there)), named)
        axes.set_ylim(-0.6, len(there) - 0.4)
        axes.set_xticks([])

    name = f"boxes-{'-'.join(title.split())}"
    caption = "Each from its 5 % to its 95 % quantile; the box is from quartile to quartile, with the median."
    return grid(figure(name, draw(name, 0.9 + 0.28 * len(there), paint), title.capitalize(), caption))


def _forest(title: str, what: str, rows: Sequence[tuple[str, float, float, float]], null: float) -> Markup | None:
    """Return a plot of (name, estimate, low, high) with a line at `null`, no effect.  Ratios, whose `null` is 1, are on
    a logarithmic axis.
    """
    there = rows[:COLUMNS]
    ratios = null == 1.0
    if not there:
        return None

    def paint(to: Figure) -> None:
        axes = to.subplots()
        for place, (_, estimate, low, high) in enumerate(reversed(there)):
            ends = [min(max(value, FURTHEST[0]), FURTHEST[1]) if ratios else value for value in (low, high, estimate)]
            axes.plot(ends[:2], [place, place], color=BLUE)
            axes.plot(ends[2:], [place], "s", color=BLUE, markersize=5)
        if ratios:
            _ratio_axis(axes, [null, *(value for _, *values in there for value in values)])
        axes.axvline(null, color=QUIET, linewidth=0.8, linestyle=DASHES[1])
        axes.set_yticks(range(len(there)), [name for name, *_ in reversed(there)])
        axes.set_ylim(-0.6, len(there) - 0.4)
        axes.set_xlabel(f"{what}, with its 95 % interval")

    name = f"forest-{'-'.join(title.split())}"
    caption = f"Estimates with their 95 % intervals; {null:g}, the line, is no effect."
    return grid(figure(name, draw(name, 0.9 + 0.28 * len(there), paint), title.capitalize(), caption))


def _ratio_axis(axes: Axes, values: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = (min(max(end(values), FURTHEST[0]), FURTHEST[1]) for end in (min, max))
    axes.set_xscale("log")
    wide = high / low > 8
    ticks = LogLocator(subs=(1.0, 2.0, 5.0)) if wide and high / low < 200 else LogLocator()
    axes.xaxis.set_major_locator(ticks if wide else FixedLocator(list(MaxNLocator(5).tick_values(low, high))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(low / (high / low) ** 0.05, high * (high / low) ** 0.05)


def _of_ratios(coefficients: Sequence[Coefficient], ratio: str) -> Markup | None:
    rows = [
        (one.name, value, low, high)
        for one in coefficients
        for value, low, high in [one.ratio]
        if low is not None and high is not None and not one.name.startswith("(")
    ]
    return _forest(f"{ratio}s", ratio, rows, 1.0)


def _drawn_curves(fit: CurveFit) -> Markup | None:
    """Return the curves as steps, by group, each with its 95 % interval."""
    shown = fit.groups or (fit.everybody,)

    def paint(to: Figure) -> None:
        axes = to.subplots()
        for place, one in enumerate(shown[: len(SERIES)]):
            at = [0.0, *(point.time for point in one.points)]
            colour = SERIES[place]
            steps = [1.0, *(point.survival for point in one.points)]
            axes.step(
                at,
                steps,
                where="post",
                color=colour,
                linestyle=DASHES[place % len(DASHES)],
                label=one.name or "all records",
            )
            ends = [(point.time, point.low, point.high) for point in one.points]
            there = [(time, low, high) for time, low, high in ends if low is not None and high is not None]
            if there:
                times, lows, highs = zip(*there, strict=True)
                axes.fill_between(times, lows, highs, step="post", color=colour, alpha=0.15, linewidth=0)
        axes.axhline(0.5, color=QUIET, linewidth=0.8)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlim(left=0)
        axes.set_xlabel(fit.design.time)
        percent_axis(axes)
        legend_above(axes)

    caption = "Share of records without the event; bands are 95 % intervals, the line is the half"
    return figure("survival", draw("survival", 3.3, paint), "Survival", f"{caption}: a curve crosses it at its median.")


def _medians(fit: CurveFit) -> Markup:
    rows = []
    for one in (fit.everybody, *fit.groups):
        median = "not reached" if one.median is None else f"{one.median:g}"
        low, high = (NOTHING if at is None else f"{at:g}" for at in (one.median_low, one.median_high))
        area = (number(one.mean), NOTHING if one.mean_error is None else number(1.96 * one.mean_error))
        rows.append([one.name or "all records", count(one.records), count(one.events), median, low, high, *area])
    heads = [
        "Group",
        "Records",
        "Events",
        "Median",
        "95 % from",
        "to",
        f"Mean until {fit.everybody.points[-1].time:g}",
        "± (95 %)",
    ]
    return table(heads, rows, 7)


def _ratio(value: float | None) -> str:
    """Return a ratio with two digits of its difference from 1."""
    if value is None or not 0.01 < value < 100:
        return number(value)
    away = abs(value - 1)
    return f"{value:.{min(6, max(3, 1 - math.floor(math.log10(away)))) if away else 3}f}"


def _curve(one: GroupCurve) -> Markup:
    rows = [
        [f"{point.time:g}", count(point.risk), count(point.events), number(point.survival)]
        + [number(value) for value in (point.error, point.low, point.high)]
        for point in one.points
    ]
    return table(CURVE, rows, len(CURVE) - 1)


def _estimates(coefficients: tuple[Coefficient, ...], ratio: str | None) -> Markup:
    rows = []
    for one in coefficients:
        row = [one.name, *(number(value) for value in (one.estimate, one.error, one.low, one.high, one.p))]
        if ratio:
            row += [NOTHING] * 3 if one.name.startswith("(") else [_ratio(value) for value in one.ratio]
        rows.append(row)
    heads = [*ESTIMATES, *([ratio.capitalize(), "from", "to"] if ratio else [])]
    return table(heads, rows, len(heads) - 1)


def _remarks(against: tuple[str, ...], silent: tuple[str, ...]) -> Markup | None:
    remarks = [f"Compared with: {', '.join(against)}."] if against else []
    remarks += [f"Depend on each other, so have no errors: {', '.join(silent)}."] if silent else []
    return paragraph("  ".join(remarks)) if remarks else None


def _records(records: int, sites: int) -> str:
    return f"{count(records)} records of {plural(sites, 'site')}"
