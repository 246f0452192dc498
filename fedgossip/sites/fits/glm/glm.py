"""Generalised linear models, fitted only to sums by Newton's method, of a gamma one by Fisher's scoring.

    X   [m, 1 + p], the first column ones            eta = X b,   mu = h(eta),   w = h'(eta)^2 / V(mu)
    g   = X' (y - mu) h'(eta) / V(mu)                A = X' W X               b  <-  b + A^-1 g

    linear    h = eta          logistic    h = 1 / (1 + exp(-eta))          poisson    h = exp(eta)
    gamma     h = exp(eta), V(mu) = mu^2, so w = 1;  of the others V(mu) = h'(eta): their links are canonical

g, A and the deviance are sums over records, and therefore over sites.  With an offset o eta = X b + o; with weights v
each record counts v times, with variance V(mu) / v.  A step that increases the deviance is halved.  A singular A, in
units of its diagonal, gets a ridge: the steps end at one of the equally good fits.

Source: McCullagh and Nelder, Generalized linear models, 2nd edition, 1989, chapters 2 and 4.  Only numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import TrainingError
from fedgossip.data.columns.declarations import TableEncoding

Values = npt.NDArray[np.float64]

CONVERGED = 1e-16
"""Bound of Newton's g' A^-1 g, twice the remaining decrease of the deviance: a step of 1e-8 standard errors."""
RIDGE, SINGULAR = 1e-6, 1e-11
"""Ridge added to A, scaled to a diagonal of ones, and the smallest eigenvalue below which it is added."""
INVOLVED = 1e-3
"""Minimum part of a column in a direction without information for it to count as undetermined."""
STEEPEST = 40.0
"""Maximum |eta|: beyond it a mean is 0, 1 or 2e17; no accepted step ends at such a point."""


@dataclass(frozen=True)
class ExponentialFamily:
    """A distribution with its canonical link; all functions are of arrays."""

    name: str
    mean: Callable[[Values], Values]
    weight: Callable[[Values], Values]
    deviance: Callable[[Values, Values], Values]
    """(y, eta) -> deviance per record."""
    least: Callable[[Values], Values]
    """-2 log likelihood of the model that fits every record, per record: AIC = deviance + least + 2 parameters."""
    link: Callable[[float], float]
    residual: Callable[[Values, Values], Values]
    """(y, eta) -> (y - mu) h'(eta) / V(mu), the weight of columns in g."""
    variance: Callable[[Values], Values]
    """eta -> V(mu): the variance of a record of dispersion 1."""
    influence: Callable[[Values], Values]
    """eta -> how much a record counts in the sums at a point."""
    disperses: bool = False
    """Whether the dispersion is estimated."""
    outcomes: Callable[[Values], npt.NDArray[np.bool_]] = lambda y: np.ones(len(y), bool)
    """y -> which outcomes are valid in the family."""
    of: str = "any"
    """Valid outcomes, in words."""

    @property
    def title(self) -> str:
        """Its name within a sentence."""
        return self.name.capitalize() if self.name == "poisson" else self.name


def _expit(eta: Values) -> Values:
    return np.asarray(1 / (1 + np.exp(-eta)))


def _log_factorials(y: Values) -> Values:
    return np.array([math.lgamma(value + 1) for value in y])


def _times_log(y: Values) -> Values:
    return np.asarray(y * np.log(np.where(y > 0, y, 1)))


def _canonical(
    name: str,
    mean: Callable[[Values], Values],
    slope: Callable[[Values], Values],
    deviance: Callable[[Values, Values], Values],
    least: Callable[[Values], Values],
    link: Callable[[float], float],
    **others: Any,
) -> ExponentialFamily:
    return ExponentialFamily(
        name, mean, slope, deviance, least, link, lambda y, eta: y - mean(eta), slope, slope, **others
    )


FAMILIES: Mapping[str, ExponentialFamily] = {
    one.name: one
    for one in (
        _canonical(
            "linear",
            lambda eta: eta,
            np.ones_like,
            lambda y, eta: (y - eta) ** 2,
            np.zeros_like,
            float,
            disperses=True,
        ),
        _canonical(
            "logistic",
            _expit,
            lambda eta: _expit(eta) * _expit(-eta),
            lambda y, eta: 2 * (np.logaddexp(0, eta) - y * eta),
            np.zeros_like,
            lambda mean: math.log(mean / (1 - mean)),
        ),
        _canonical(
            "poisson",
            np.exp,
            np.exp,
            lambda y, eta: 2 * (_times_log(y) - y * eta - y + np.exp(eta)),
            lambda y: 2 * (y - _times_log(y) + _log_factorials(y)),
            math.log,
            outcomes=lambda y: (y >= 0) & (y == np.floor(y)),
            of="whole numbers from 0",
        ),
        ExponentialFamily(
            "gamma",
            np.exp,
            np.ones_like,
            lambda y, eta: 2 * (y * np.exp(-eta) - 1 - np.log(y) + eta),
            np.zeros_like,
            math.log,
            lambda y, eta: y * np.exp(-eta) - 1,
            lambda eta: np.exp(2 * eta),
            lambda eta: np.exp(-eta),
            disperses=True,
            outcomes=lambda y: y > 0,
            of="numbers above 0",
        ),
    )
}


@dataclass(frozen=True, eq=False)
class PointSums:
    """Sums over all sites' records at one point."""

    sites: int
    records: int
    deviance: float
    least: float
    gradient: Values
    """g [p + 1]."""
    information: Values
    """A [p + 1, p + 1]."""


Prior = Values | float
"""A number of each record, [m], or one for all."""


def predictor(family: ExponentialFamily, x: Values, point: Values, offset: Prior = 0.0) -> Values:
    """Return eta of each record x [m, p + 1] at b = `point`, at most STEEPEST from 0 unless the model is linear."""
    eta = np.asarray(x @ point + offset)
    return eta if family.name == "linear" else np.clip(eta, -STEEPEST, STEEPEST)


def influences(
    family: ExponentialFamily, x: Values, point: Values, offset: Prior = 0.0, weights: Prior = 1.0
) -> Values:
    """Return how much each record x [m, p + 1] counts in the sums at b = `point`."""
    return np.asarray(weights * family.influence(predictor(family, x, point, offset)))


def residuals(
    family: ExponentialFamily, x: Values, y: Values, point: Values, offset: Prior = 0.0, weights: Prior = 1.0
) -> tuple[Values, Values]:
    """Return the residual of each record in g, and (y - mu)^2 / V(mu), whose weighted sum is Pearson's X^2."""
    eta = predictor(family, x, point, offset)
    squares = (y - family.mean(eta)) ** 2 / family.variance(eta)
    return np.asarray(weights * family.residual(y, eta)), np.asarray(weights * squares)


def site_sums(
    family: ExponentialFamily, x: Values, y: Values, point: Values, offset: Prior = 0.0, weights: Prior = 1.0
) -> PointSums:
    """Return the sums of one site's records, x [m, p + 1] with its ones, y [m], at b = `point`."""
    eta = predictor(family, x, point, offset)
    weighted = x * (weights * family.weight(eta))[:, None]
    return PointSums(
        1,
        len(y),
        math.fsum(weights * family.deviance(y, eta)),
        math.fsum(weights * family.least(y)),
        x.T @ (weights * family.residual(y, eta)),
        x.T @ weighted,
    )


def mean_sums(family: ExponentialFamily, y: Values, offset: Prior, weights: Prior) -> tuple[float, float]:
    """Return two sums whose quotient is h(b) of the best fit without columns; for a logistic one, without an offset."""
    exposed = {"poisson": np.exp(offset)}.get(family.name, 1.0)
    counted = {"linear": y - offset, "gamma": y * np.exp(-np.asarray(offset))}.get(family.name, y)
    return math.fsum(weights * counted), math.fsum(np.broadcast_to(weights * exposed, y.shape))


@dataclass(frozen=True, eq=False)
class Newton:
    """The state of Newton's method: the best point so far, and the next one to evaluate."""

    point: Values
    best: Values
    sums: PointSums | None = None
    left: float = math.inf
    """g' A^-1 g at `best`."""
    steps: int = 0
    """Number of steps until convergence."""
    first: PointSums | None = None
    """Sums at the start, with the mean of all as every record's mean."""
    silent: tuple[int, ...] = ()
    """Indices of the columns in directions without information."""

    @property
    def converged(self) -> bool:
        return self.left <= CONVERGED

    @property
    def last(self) -> Values:
        """The estimates of scaled columns."""
        return self.point if self.converged else self.best


def start(family: ExponentialFamily, records: int, total: float, columns: int, exposed: float | None = None) -> Newton:
    """Return the first point, of the mean only: `total` over `exposed`, by default the number of records.

    Raises TrainingError if all outcomes are equal.
    """
    mean = total / (records if exposed is None else exposed)
    if family.name != "linear" and (mean <= 0 or (family.name == "logistic" and mean >= 1)):
        text = f"all {records} records have the same outcome"
        raise TrainingError(text, "The columns cannot separate them: look at the label.")
    point = np.zeros(columns + 1)
    point[0] = family.link(mean)
    return Newton(point, point)


def is_worse(state: Newton, records: int, deviance: float) -> bool:
    """Return whether the evaluated point has a larger deviance than the best, over the same records."""
    before = state.sums
    if before is None or before.records != records:
        return False
    return not deviance <= before.deviance + 1e-9 * (1 + abs(before.deviance))


def halved(state: Newton) -> Newton:
    """Return the state with half the step, to evaluate next."""
    return replace(state, point=state.best + (state.point - state.best) / 2, steps=state.steps + 1)


def moved(state: Newton, sums: PointSums) -> Newton:
    """Return the state after the sums at `state.point`."""
    before = state.sums
    comparable = before is not None and before.records == sums.records  # else other sites: restart from here
    if is_worse(state, sums.records, sums.deviance):
        return halved(state)
    values, directions, scale = _spectrum(sums.information)
    dark = values < SINGULAR
    silent = np.flatnonzero((np.abs(directions[:, dark]) > INVOLVED).any(axis=1)) if dark.any() else np.empty(0, int)
    eased = values + RIDGE if dark.any() else values
    step = scale * (directions @ (directions.T @ (scale * sums.gradient) / eased))
    left = float(sums.gradient @ step)
    steps = state.steps if state.converged and comparable else state.steps + (left > CONVERGED)
    first = state.first or sums
    return Newton(state.point + step, state.point, sums, left, steps, first, tuple(silent.tolist()))


def covariance(state: Newton, dispersion: float) -> Values:
    """Return the covariance of the estimates, [p + 1, p + 1]: dispersion A^-1; NaN for columns that are `silent`.

    A singular A is inverted on the directions with information: the other columns' errors do not depend on the choice
    of silent ones.
    """
    assert state.sums is not None
    values, directions, scale = _spectrum(state.sums.information)
    regular = values >= SINGULAR
    inverse = (directions[:, regular] / values[regular]) @ directions[:, regular].T
    found = dispersion * inverse * scale[:, None] * scale
    found[list(state.silent)] = found[:, list(state.silent)] = math.nan
    return found


def rank_of(information: Values) -> int:
    """Return the number of directions with information."""
    values, _, _ = _spectrum(information)
    return int((values >= SINGULAR).sum())


def _spectrum(information: Values) -> tuple[Values, Values, Values]:
    scale = 1 / np.sqrt(np.maximum(np.diag(information), np.finfo(float).tiny))
    values, directions = np.linalg.eigh(information * scale[:, None] * scale)
    return values, directions, scale


class ScaledColumns(Protocol):
    """The columns of a design."""

    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def places(self) -> tuple[int, ...]: ...
    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def deviation(self) -> tuple[float, ...]: ...
    @property
    def encoding(self) -> TableEncoding: ...


def in_units(d: ScaledColumns) -> Values:
    """Return T [p + 1, p + 1]: T b are coefficients of unscaled columns, b those of scaled ones."""
    turned = np.diag(np.concatenate([[1.0], 1 / np.array(d.deviation)]))
    turned[0, 1:] = -np.array(d.mean) / np.array(d.deviation)
    return turned


def scaled(d: ScaledColumns, x: Values) -> Values:
    """Return the design matrix [m, p + 1] of features in their original units, with its ones."""
    there = (x[:, list(d.places)] - np.array(d.mean)) / np.array(d.deviation)
    return np.concatenate([np.ones((len(x), 1)), there], axis=1)
