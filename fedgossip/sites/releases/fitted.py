"""The fit on the card of a release: estimates with their errors, a curve, or the gains of columns."""

from __future__ import annotations

from fedgossip.report.page.markup import Markup, paragraph, section, table
from fedgossip.report.page.numbers import NOTHING, count, number, percent, plural
from fedgossip.sites.fits.cox.cox_result import CoxFit
from fedgossip.sites.fits.fit_files import Told
from fedgossip.sites.fits.glm.glm_result import RATIO, Coefficient, GlmFit
from fedgossip.sites.fits.survival.survival_result import CurveFit, GroupCurve

ESTIMATES = ("Column", "Estimate", "Standard error", "95 % from", "to", "p")
CURVE = ("Time", "At risk", "Events", "Survival", "Standard error", "95 % from", "to")
COLUMNS = 40
"""Maximum number of listed columns of trees."""


def numbers_of(fit: Told) -> int:
    """Return how many numbers a fit consists of: coefficients, reported times of a curve, leaves of trees."""
    if isinstance(fit, GlmFit | CoxFit):
        return len(fit.coefficients)
    if isinstance(fit, CurveFit):
        return sum(len(one.points) for one in (fit.everybody, *fit.groups))
    return fit.leaves


def section_of(fit: Told) -> Markup | None:
    return section("What was fitted", *_parts(fit))


def _parts(fit: Told) -> list[Markup | None]:
    if isinstance(fit, GlmFit):
        return _of_glm(fit)
    if isinstance(fit, CoxFit):
        return _of_cox(fit)
    if isinstance(fit, CurveFit):
        return _of_curves(fit)
    d = fit.design
    whole = "" if fit.whole else f", of {count(d.trees)} that were asked for"
    grown = f"{plural(fit.trees, 'tree')}{whole}, {count(fit.leaves)} leaves, of {_records(fit.records, fit.sites)}."
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
    said = f"A {d.family} model of {of}, of {_records(fit.records, fit.sites)}: deviance {number(fit.deviance)}"
    return [
        paragraph(f"{said}{null}{aic}."),
        _estimates(fit.coefficients, RATIO.get(d.family)),
        _remarks(d.against, fit.silent),
    ]


def _of_cox(fit: CoxFit) -> list[Markup | None]:
    d = fit.design
    unit = f" [{d.unit}]" if d.unit else ""
    said = f"Proportional hazards of {d.time}{unit} until {d.event} = 1, of {_records(fit.records, fit.sites)}"
    agree = "" if fit.concordance is None else f"; concordance {number(fit.concordance)}, of pairs at one site"
    ridge = f"; a ridge of {number(d.ridge)}" if d.ridge else ""
    return [
        paragraph(f"{said}, {count(fit.events)} events{agree}{ridge}."),
        _estimates(fit.coefficients, "hazard ratio"),
        _remarks(d.against, fit.silent),
    ]


def _of_curves(fit: CurveFit) -> list[Markup | None]:
    d, whole = fit.design, fit.everybody
    said = f"Kaplan-Meier survival, {d.time} until {d.event} = 1, of {_records(whole.records, fit.sites)}"
    test = "" if fit.p is None else f"; log-rank test of the groups: p {number(fit.p)}"
    found: list[Markup | None] = [paragraph(f"{said}, {count(whole.events)} events{test}.")]
    for one in (whole, *fit.groups):
        found += [paragraph(f"{d.group_column} = {one.name}")] if one.name else []
        found.append(_curve(one))
    return found


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
            row += [NOTHING] * 3 if one.name.startswith("(") else [number(value) for value in one.ratio]
        rows.append(row)
    heads = [*ESTIMATES, *([ratio.capitalize(), "from", "to"] if ratio else [])]
    return table(heads, rows, len(heads) - 1)


def _remarks(against: tuple[str, ...], silent: tuple[str, ...]) -> Markup | None:
    said = [f"Compared with: {', '.join(against)}."] if against else []
    said += [f"Depend on each other, so have no errors: {', '.join(silent)}."] if silent else []
    return paragraph("  ".join(said)) if said else None


def _records(records: int, sites: int) -> str:
    return f"{count(records)} records of {plural(sites, 'site')}"
