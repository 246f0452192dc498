"""Predictions of a fitted model: means with their intervals, and the quality of the fit.

    mean     h(eta), eta = x b        its interval   h(eta -+ z s), s^2 = x S x', S the covariance of the estimates
    of a linear model t in place of z, and for a single new record   eta -+ t sqrt(s^2 + dispersion)

Source: McCullagh and Nelder, Generalized linear models, 2nd edition, 1989, chapters 2 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedgossip.sites.fits.glm.glm import FAMILIES, Values
from fedgossip.sites.fits.glm.glm_result import LEVEL, GlmFit
from fedgossip.sites.fits.glm.glm_sums import QUASI


@dataclass(frozen=True, eq=False)
class MeanPredictions:
    """Predictions for m records, [m]; NaN where columns depend on each other."""

    mean: Values
    """Mean outcome: a probability, a number or a count."""
    low: Values
    high: Values
    """Upper bound of the 95 % interval of that mean."""
    record: tuple[Values, Values] | None = None
    """For a linear model: the 95 % interval of a single record."""


def reach_of(free: int | None) -> float:
    """Return the half width of a 95 % interval in standard errors; `free` degrees of freedom, None: normal."""
    from scipy import special

    share = (1 + LEVEL) / 2
    return float(special.ndtri(share) if free is None else special.stdtrit(free, share))


def predictions(fit: GlmFit, features: Values) -> MeanPredictions:
    """Return the predictions for features [m, all], in their original units."""
    family = FAMILIES[fit.design.family]
    chosen = features[:, list(fit.design.places)]
    x = np.concatenate([np.ones((len(chosen), 1)), chosen], axis=1)
    eta = x @ np.array([one.estimate for one in fit.coefficients])
    variance = variance_of(fit.covariance, x)
    reach = reach_of(fit.free if family.disperses or fit.design.errors == QUASI else None)
    low, high = (eta + side * reach * np.sqrt(variance) for side in (-1, 1))
    with np.errstate(over="ignore"):
        mean, low, high = (np.asarray(family.mean(one)) for one in (eta, low, high))
    if family.name != "linear":
        return MeanPredictions(mean, low, high)
    wide = reach * np.sqrt(variance + fit.dispersion)
    return MeanPredictions(mean, low, high, (eta - wide, eta + wide))


def variance_of(covariance: Sequence[Sequence[float | None]], x: Values) -> Values:
    """Return x S x' of each record; NaN where it needs an unknown part of S."""
    spread = np.array([[math.nan if one is None else one for one in row] for row in covariance])
    unknown = np.isnan(spread)
    found = np.einsum("mi,ij,mj->m", x, np.where(unknown, 0.0, spread), x)
    there = (x != 0).astype(float)
    lacking = np.einsum("mi,ij,mj->m", there, unknown.astype(float), there) > 0
    return np.where(lacking, math.nan, np.maximum(found, 0.0))


def measured(fit: GlmFit, features: Values, y: Values) -> Mapping[str, float]:
    """Return measures of the predictions of the outcomes y [m]: classes as 0 and 1."""
    said = predictions(fit, features)
    mean, family = said.mean, fit.design.family
    if family == "logistic":
        inside = np.clip(mean, 1e-300, 1 - 1e-16)
        loss = float(-np.mean(y * np.log(inside) + (1 - y) * np.log1p(-inside)))
        found = {"accuracy": float(np.mean((mean > 0.5) == (y > 0.5))), "log loss": loss}
        found["Brier score"] = float(np.mean((mean - y) ** 2))
        return found | ({"AUROC": _area(mean, y)} if 0 < y.sum() < len(y) else {})
    found = {"RMSE": float(np.sqrt(np.mean((y - mean) ** 2))), "MAE": float(np.mean(np.abs(y - mean)))}
    if family != "linear":
        deviance, eta = FAMILIES[family].deviance, np.log(mean)
        total = math.fsum(deviance(y, eta))
        null = math.fsum(deviance(y, np.full(len(y), math.log(y.mean())))) if y.any() else 0.0
        found["deviance of a record"] = total / len(y)
        found |= {"share of the deviance explained": 1 - total / null} if null else {}
        found["Pearson's X² of a record"] = float(np.mean((y - mean) ** 2 / FAMILIES[family].variance(eta)))
        return found
    spread = float(((y - y.mean()) ** 2).sum())
    found |= {"R²": 1 - float(((y - mean) ** 2).sum()) / spread} if spread else {}
    assert said.record is not None
    low, high = said.record
    if np.isfinite(low).all():
        found["share within their 95 % interval"] = float(np.mean((low <= y) & (y <= high)))
    return found


def _area(mean: Values, y: Values) -> float:
    """Return the AUROC by ranks, ties at their mean."""
    from scipy.stats import rankdata

    positives = y > 0.5
    count = int(positives.sum())
    total = float(rankdata(mean)[positives].sum()) - count * (count + 1) / 2
    return total / (count * (len(y) - count))
