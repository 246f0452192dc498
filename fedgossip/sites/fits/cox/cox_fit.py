"""fit.json of proportional hazards: hazard ratios with their errors, and the hazard of each stratum over time."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import Vector
from fedgossip.sites.fits.cox.cox_steps import OVER, FittedHazards
from fedgossip.sites.fits.cox.cox_sums import CoxDesign, CoxLayout
from fedgossip.sites.fits.glm.glm import CONVERGED, covariance, rank_of
from fedgossip.sites.fits.glm.glm_fit import FORMAT, Coefficient, coefficient, known


class HazardPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One told time of a stratum."""

    time: float
    risk: int
    """How many are at risk."""
    events: int
    hazard: float
    """Cumulative, of a record with the agreed mean of each column and the first category of each column of words."""


class StratumHazard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The records with a hazard of their own, or all."""

    name: str
    points: tuple[HazardPoint, ...]


class CoxFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="cox"):
    """The file."""

    format: int = FORMAT
    design: CoxDesign
    sites: int
    """In the last step."""
    fewest: int
    """Sites of the smallest sum of any round."""
    least: int
    """Sites that a sum has at least."""
    records: int
    events: int
    steps: int
    converged: bool
    log_likelihood: float | None
    null_log_likelihood: float | None
    """Of no column; None where other sites were there then."""
    ratio: float | None
    """Likelihood ratio against no column: chi squared of `freedom` degrees; None with a ridge."""
    freedom: int
    p: float | None
    concordance: float | None
    """Share of the pairs of records of one site and stratum that go in the order that is said."""
    pairs: int
    coefficients: tuple[Coefficient, ...]
    covariance: tuple[tuple[float | None, ...], ...]
    """Of the estimates."""
    unused: int = 0
    """Events on the grid behind the last told time: after it so few are left that they would be told."""
    silent: tuple[str, ...] = ()
    """Columns that depend on each other: which of them an effect belongs to the records do not say."""
    strata: tuple[StratumHazard, ...]
    points: int
    """At how many points S0 and S1 of each told time were seen by the coordinator."""
    smallest: int
    """Fewest records of which it can tell such sums apart from others."""


def cox_fit(layout: CoxLayout, x: Vector, least: int) -> CoxFit | None:
    """Return what the state says; None where too few rounds have come together.

    Raises TrainingError where there are too few events for a told time.
    """
    state, d = FittedHazards(layout, x), layout.design
    if state.stage == OVER and not len(state.ends):
        text = f"no {d.least} records have their event, {d.event} = 1, until {d.grid[-1]:g}, and as many after it"
        raise TrainingError(text, "Take later times in model.source, or more sites; fewer are never opened.")
    records = state.number("records")
    if not records:
        return None
    newton = state.newton
    assert newton.sums is not None
    converged = state.stage == OVER and newton.left <= CONVERGED and state.number("null_records") > 0
    deviation = np.array(d.deviation)
    estimates = (newton.point if converged else newton.best) / deviation
    spread = covariance(newton, 1.0) / np.outer(deviation, deviation)
    errors = np.sqrt(np.diag(spread))
    null = -float(state["null"]) / 2 if state.number("null_records") == records else None
    likelihood = float(state["likelihood"]) if converged else None
    freedom = rank_of(newton.sums.information)
    ratio = None if null is None or likelihood is None or d.ridge else max(0.0, 2 * (likelihood - null))
    pairs = state.number("pairs")
    return CoxFit(
        design=d,
        sites=state.number("sites"),
        fewest=state.number("fewest"),
        least=least,
        records=records,
        events=int(state["events"].sum()),
        unused=state.number("unused"),
        steps=newton.steps,
        converged=converged,
        log_likelihood=likelihood,
        null_log_likelihood=null,
        ratio=ratio,
        freedom=freedom,
        p=None if ratio is None else _chance(freedom, ratio),
        concordance=float(state["right"]) / pairs if pairs and converged else None,
        pairs=pairs,
        coefficients=tuple(coefficient(*one) for one in zip(d.columns, estimates, errors, strict=True)),
        covariance=tuple(tuple(known(value) for value in row) for row in spread.tolist()),
        silent=tuple(d.columns[place] for place in newton.silent),
        strata=_strata(state),
        points=state.number("points"),
        smallest=state.number("smallest"),
    )


def _chance(freedom: int, ratio: float) -> float:
    from scipy import special

    return float(special.chdtrc(freedom, ratio))


def _strata(state: FittedHazards) -> tuple[StratumHazard, ...]:
    d = state.layout.design
    times = [d.grid[place] for place in state.ends.tolist()]
    rows = zip(d.strata, state["at_risk"], state["events"], np.cumsum(state.hazard, axis=1), strict=True)
    return tuple(
        StratumHazard(
            name,
            tuple(
                HazardPoint(time, int(at_risk), int(events), float(hazard))
                for time, at_risk, events, hazard in zip(times, risk, happened, hazards, strict=False)
            ),
        )
        for name, risk, happened, hazards in rows
    )


def survival_of(hazard: float, relative: float) -> float:
    """Return the share without an event, by a cumulative hazard and how many times that a record has."""
    return math.exp(-hazard * relative)
