"""fit.json of proportional hazards: hazard ratios with their errors, and the hazard of each stratum over time."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import Vector
from fedgossip.sites.fits.cox.cox import concordance_error
from fedgossip.sites.fits.cox.cox_steps import OVER, PAIRS, FittedHazards
from fedgossip.sites.fits.cox.cox_sums import BRESLOW, EFRON, CoxDesign, CoxLayout
from fedgossip.sites.fits.few_values import ALONE, terms_of
from fedgossip.sites.fits.glm.glm import CONVERGED, Values, covariance, rank_of
from fedgossip.sites.fits.glm.glm_result import (
    FORMAT,
    Bounds,
    Coefficient,
    TermTest,
    check_enough_clusters,
    coefficient,
    known,
    rounded_to,
)
from fedgossip.sites.fits.survival.survival_times import enough, reported_risk


class HazardPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reported time of a stratum."""

    time: float
    risk: int
    """Number of records at risk; records that leave without an event are counted until `design.least` of them have
    left, records that enter from the time at which the first of `design.least` does.
    """
    events: int
    hazard: float
    """Cumulative hazard of a record with the agreed means and first categories, with two digits of its error: exact
    ones would disclose sums over few records.
    """


class StratumHazard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The records with a separate hazard, or all."""

    name: str
    points: tuple[HazardPoint, ...]


class CoxFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="cox"):
    """The contents of fit.json."""

    format: int = FORMAT
    design: CoxDesign
    sites: int
    """Number of sites in the last step."""
    fewest: int
    """Number of sites in the smallest sum of any round."""
    least: int
    """Minimum number of sites in a sum."""
    records: int
    events: int
    clusters: int | None = None
    """Number of clusters of records, of robust errors by them."""
    steps: int
    converged: bool
    log_likelihood: float | None
    """To a multiple of `design.least` if few may leave without an event between two reported times."""
    null_log_likelihood: float | None
    """Log likelihood without columns, rounded in the same way; None if other sites took part then."""
    ratio: float | None
    """Exact likelihood ratio against no column: chi squared of `freedom` degrees; None with a ridge."""
    freedom: int
    p: float | None
    concordance: float | None
    """Share of the comparable pairs, of records of one site and stratum, in the predicted order."""
    concordance_error: float | None = None
    """Its standard error, by the infinitesimal jackknife over records."""
    pairs: int
    coefficients: tuple[Coefficient, ...]
    covariance: tuple[tuple[float | None, ...], ...]
    """Covariance of the estimates."""
    unused: int | None = 0
    """Events on the grid after the last reported time: reporting them would disclose the few remaining records.  None
    if fewer than `design.least` records have no event on it, because this number would count them.
    """
    proportional: tuple[TermTest, ...] = ()
    """Tests of proportional hazards, of each column and of all, with Efron's ties."""
    silent: tuple[str, ...] = ()
    """Columns that depend on each other: the records do not determine their separate effects."""
    strata: tuple[StratumHazard, ...]
    points: int
    """Number of points for which the coordinator received S0 and S1 of each reported time."""
    smallest: int
    """Lower bound of the number of records that it can separate by such sums."""
    bounds: Bounds = ()
    """Agreed bounds: predictions for numbers outside are marked."""

    def __post_init__(self) -> None:
        length = len(self.coefficients)
        if [len(row) for row in self.covariance] != [length] * length:
            raise ValueError(f"a covariance that is not of {length} coefficients")
        if not self.strata or any(point.risk < 1 for one in self.strata for point in one.points):
            raise ValueError("a hazard of no records")


def cox_fit(layout: CoxLayout, x: Vector, least: int) -> CoxFit | None:
    """Return the fit of a state; None after too few complete rounds.

    Raises TrainingError if a reported time has too few events.
    """
    state, d = FittedHazards(layout, x), layout.design
    if state.stage == OVER and not len(state.ends):
        text = f"no {d.least} records have their event, {d.event} = 1, until {d.grid[-1]:g}, and as many after it"
        advice = "Take later times in model.source, or more sites; fewer are never opened."
        if d.codes:
            text += f"; or fewer than {d.suppress} of either share their categories, and no column is of numbers"
            advice = f"{ALONE}  {advice}"
        raise TrainingError(text, advice)
    records = state.number("records")
    if not records:
        return None
    newton = state.newton
    assert newton.sums is not None
    converged = state.stage == OVER and newton.left <= CONVERGED and state.number("null_records") > 0
    deviation = np.array(d.deviation)
    estimates = (newton.point if converged else newton.best) / deviation
    spread = covariance(newton, 1.0)
    if layout.robust:  # Lin and Wei
        spread = spread @ np.array(state["squares"]) @ spread
    clusters = state.number("clusters") if d.cluster else None
    if d.cluster and converged:
        check_enough_clusters(d.cluster, state.number("clusters"), rank_of(newton.sums.information))
    spread = spread / np.outer(deviation, deviation)
    if d.coarse:
        estimates, spread = _two_digits(estimates, spread)
    errors = np.sqrt(np.diag(spread))
    null = -float(state["null"]) / 2 if state.number("null_records") == records else None
    likelihood = float(state["likelihood"]) if converged else None
    freedom = rank_of(newton.sums.information)
    ratio = None if null is None or likelihood is None or d.ridge else _statistic(d, max(0.0, 2 * (likelihood - null)))
    pairs, right, *squares = (float(state[name]) for name in PAIRS)
    agree = (right / pairs, concordance_error(pairs, right, squares)) if pairs and converged else (None, None)
    if d.coarse and agree[0] is not None and agree[1] is not None:
        agree = rounded_to(agree[0], agree[1], 2), float(f"{agree[1]:.2g}")
    return CoxFit(
        design=d,
        sites=state.number("sites"),
        fewest=state.number("fewest"),
        least=least,
        records=records,
        events=int(state["events"].sum()),
        unused=_unused(state),
        clusters=clusters,
        steps=newton.steps,
        converged=converged,
        log_likelihood=_published(d, likelihood),
        null_log_likelihood=_published(d, null),
        ratio=ratio,
        freedom=freedom,
        p=None if ratio is None else _chance(freedom, ratio),
        concordance=agree[0],
        concordance_error=agree[1],
        pairs=int(pairs),
        coefficients=tuple(coefficient(*one) for one in zip(d.columns, estimates, errors, strict=True)),
        covariance=tuple(tuple(known(value) for value in row) for row in spread.tolist()),
        proportional=tuple(_proportional(state)) if layout.tied and converged and null is not None else (),
        silent=tuple(d.columns[place] for place in newton.silent),
        strata=_strata(state),
        points=state.number("points"),
        smallest=state.number("smallest"),
    )


ALL = "all columns"


def _proportional(state: FittedHazards) -> Iterator[TermTest]:
    """Yield Grambsch and Therneau's tests that no effect changes with the time: scaled Schoenfeld residuals, by 1 - S.

    d r' V (V_jj)^-1 V r / sum of (g - mean g)^2 over d events, r = sum of (g - mean g)(x - mean x of those at risk), V
    the covariance of all estimates.  None with a ridge, or if columns depend on each other.
    """
    events, g, spread = (
        state["events"][:, : state.number("told")].sum(axis=0),
        state.time_weights,
        covariance(state.newton, 1.0),
    )
    total, mean = events.sum(), events @ g / events.sum()
    along = float(events @ (g - mean) ** 2)
    if state.layout.design.ridge or not np.isfinite(spread).all() or not along:
        return
    moved = spread @ (state["timed_gradient"] - mean * state["gradient"])
    for name, places in (*terms_of(state.layout.design), (ALL, [*range(len(spread))])):
        statistic = float(
            total / along * (moved[places] @ np.linalg.solve(spread[np.ix_(places, places)], moved[places]))
        )
        statistic = _statistic(state.layout.design, statistic)
        yield TermTest(name, statistic, len(places), _chance(len(places), statistic))


def _statistic(d: CoxDesign, chi_squared: float) -> float:
    return round(chi_squared, 1) if d.coarse else chi_squared


def _two_digits(estimates: Values, spread: Values) -> tuple[Values, Values]:
    """Return estimates [p] and their covariance [p, p] with two digits of their errors; of 1 where there is none."""
    errors = np.sqrt(np.diag(spread))
    errors = np.where(np.isfinite(errors) & (errors > 0), errors, 1.0)
    rounded = np.vectorize(rounded_to, otypes=[float])
    return rounded(estimates, errors, 2), rounded(spread, np.outer(errors, errors), 2)


def _published(d: CoxDesign, likelihood: float | None) -> float | None:
    """Return a log likelihood, rounded unless between any two reported times none or at least `least` records leave
    without an event.

    Without columns it is the sum of -d log n, n at risk: an exact one determines n.  One record fewer at risk changes
    it by d / n, at most 1, so a multiple of `least` leaves about `least` possible numbers of leaving records.
    """
    if likelihood is None or (d.ties == EFRON and not d.coarse) or d.codes:
        return likelihood
    return float(d.least * round(likelihood / d.least))


def _unused(state: FittedHazards) -> int | None:
    left = int(state["at_risk"][:, 0].sum() - state["events"].sum())
    left += int(state["entered"][:, 1:].sum()) if state.layout.late else 0
    unused = state.number("unused")
    return unused if enough(left - unused, state.layout.design.least) else None


def attenuation(fit: CoxFit) -> float | None:
    """Return the approximate share by which Breslow's ties, at times rounded up, shrink the estimates to 0; None with
    others.

    A record of hazard z within an interval has its event there with probability 1 - exp(-z), whose slope by log z is z
    / (exp(z) - 1) times that of z, which Breslow's rule uses.  z of the records with events is that of all at risk,
    -log(1 - d / n), times 1 + the variance of eta there, b' A b over all events, of b without the attenuation.
    """
    b = np.array([one.estimate for one in fit.coefficients])
    points = [one for stratum in fit.strata for one in stratum.points if one.events]
    plain = fit.design.ties == BRESLOW and not fit.design.ridge and fit.design.competing is msgspec.UNSET
    if not plain or not points or any(None in row for row in fit.covariance):
        return None
    d, n = (np.array([getattr(one, name) for one in points], float) for name in ("events", "risk"))
    z = -np.log1p(-np.minimum(d / n, 1 - 1 / (n + 1)))
    wald = fit.ratio if fit.design.errors else float(b @ np.linalg.pinv(np.array(fit.covariance, float)) @ b)
    if wald is None:  # robust errors give no A, and the likelihood ratio is nearly b' A b
        return None
    spread = wald / d.sum()
    least = float((d * (1 - z / np.expm1(z))).sum() / d.sum())
    found = least
    for _ in range(4):
        found = min(least * (1 + spread / (1 - found) ** 2), 0.9)
    return found


def cost_of_grid(fit: CoxFit) -> str:
    """Return the cost of the rounded times, in words; "" if not estimated."""
    drawn = attenuation(fit)
    if drawn is None:
        return ""
    text = f"times rounded up, with Breslow's ties, draw these estimates to 0 by about {100 * drawn:.2g} %"
    return f"{text} (less with ties=efron, or a finer grid)" if drawn > COARSE else text


def rounding(fit: CoxFit) -> str:
    """Return why figures of a fit are rounded, in words; "" if they are exact."""
    text = "rounded: all columns have few different values, and exact results would count the records of each"
    return text if fit.design.coarse else ""


COARSE = 0.02
"""Attenuation above which a line names ways to reduce it."""


def _chance(freedom: int, ratio: float) -> float:
    from scipy import special

    return float(special.chdtrc(freedom, ratio))


def _strata(state: FittedHazards) -> tuple[StratumHazard, ...]:
    d = state.layout.design
    times = [d.grid[place] for place in state.ends.tolist()]
    published = len(state.ends)
    events = [row[:published] for row in state["events"].astype(int).tolist()]
    at_risk = state["at_risk"].astype(int).tolist()
    entered = state["entered"].astype(int).tolist() if state.layout.late else [None] * len(at_risk)
    risk = (
        [
            reported_risk(there[:published], had, d.least, came and came[:published])
            for there, had, came in zip(at_risk, events, entered, strict=True)
        ]
        if published
        else []
    )
    rows = zip(d.strata, risk, events, _rounded(state.hazard, state["events"][:, :published]), strict=bool(published))
    return tuple(
        StratumHazard(
            name,
            tuple(
                HazardPoint(time, at_risk, events, float(hazard))
                for time, at_risk, events, hazard in zip(times, there, had, hazards, strict=True)
            ),
        )
        for name, there, had, hazards in rows
    )


def _rounded(hazards: Values, events: Values) -> Values:
    """Return the cumulative hazards with two digits of their errors, [s, k]."""
    total = np.cumsum(hazards, axis=1)
    errors = np.sqrt(np.cumsum(hazards**2 / np.maximum(events, 1), axis=1))  # Breslow's variance, sum of d / S0^2
    found = np.vectorize(rounded_to, otypes=[float])(total, errors, 2)
    return np.asarray(np.maximum.accumulate(found, axis=1))
