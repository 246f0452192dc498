"""Negative binomial counts: a rate for each record, and a variance that grows beyond a Poisson one's.

    mu = exp(x b),   variance  mu + alpha mu^2,   r = 1 / alpha
    log likelihood of a record   log G(y + r) - log G(r) - log y! + r log(r / (r + mu)) + y log(mu / (r + mu))

alpha is estimated with b, by its logarithm; the information is the observed one.

Source: Cameron and Trivedi, Regression analysis of count data, 2nd edition, 2013, section 3.3 (NB2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln, polygamma, psi

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.data.objectives import REGRESSION
from fedgossip.sites.fits.families.family import FamilyDesign, FamilyModel, SiteSample
from fedgossip.sites.fits.families.likelihoods import Likelihood, LikelihoodTerms, with_more
from fedgossip.sites.fits.glm.glm import Values, in_units
from fedgossip.sites.fits.glm.glm_result import INTERCEPT, RATES

FLATTEST = 0.02
"""Least alpha of the first point."""


class NegativeBinomial(Likelihood):
    name, kinds, ratio, predicts = "negative-binomial", (REGRESSION,), "rate ratio", True

    def title(self, d: FamilyDesign) -> str:
        return f"negative binomial model of {d.outcome}"

    def check(self, d: FamilyDesign, y: Values) -> None:
        if not ((y >= 0) & (y == np.floor(y))).all():
            text = f"column {d.outcome!r} holds numbers that are no counts"
            raise ConfigError(text, "A negative binomial model is of whole numbers from 0; glm:linear is of any.")

    def names(self, d: FamilyDesign) -> Sequence[str]:
        return [INTERCEPT, *d.columns, "(log alpha)"]

    def first(self, d: FamilyDesign, y: Values) -> Values:  # noqa: ARG002
        return np.array([y.sum(), (y * y).sum()])

    def outcomes(self, d: FamilyDesign, y: Values) -> Values:  # noqa: ARG002
        return y

    def is_binary(self, d: FamilyDesign, first: Values) -> bool:  # noqa: ARG002
        return bool(first[0] == first[1])

    def start(self, d: FamilyDesign, first: Values, records: int) -> Values:
        mean = first[0] / records
        if mean <= 0:
            raise TrainingError(f"all {records} records have the count 0", "Look at the label.")
        alpha = max(FLATTEST, (first[1] / records - mean * mean - mean) / (mean * mean))
        return np.concatenate([[math.log(mean)], np.zeros(len(d.columns)), [math.log(alpha)]])

    def terms(self, d: FamilyDesign, site: SiteSample, point: Values) -> LikelihoodTerms:  # noqa: ARG002
        y, mu, r = site.y[:, 0], np.exp(site.x @ point[:-1]), math.exp(-point[-1])
        whole = r + mu
        likelihood = gammaln(y + r) - gammaln(r) - gammaln(y + 1) + r * np.log(r / whole) + y * np.log(mu / whole)
        by_r = psi(y + r) - psi(r) + np.log(r / whole) + 1 - (y + r) / whole
        by_r2 = polygamma(1, y + r) - polygamma(1, r) + 1 / r - 2 / whole + (y + r) / whole**2
        scores = np.concatenate([site.x * ((y - mu) * r / whole)[:, None], (-r * by_r)[:, None]], axis=1)
        w = mu * r * (r + y) / whole**2
        information = np.empty((len(point), len(point)))
        information[:-1, :-1] = site.x.T @ (site.x * w[:, None])
        information[-1, :-1] = information[:-1, -1] = site.x.T @ ((y - mu) * mu * r / whole**2)
        information[-1, -1] = -(r * r * by_r2 + r * by_r).sum()
        expected = mu * r / whole  # whatever the counts
        return LikelihoodTerms(likelihood, scores, information, [expected])

    def model(self, d: FamilyDesign, point: Values) -> FamilyModel:  # noqa: ARG002
        return FamilyModel(RATES, point[None, :-1])

    def in_units(self, d: FamilyDesign) -> Values:
        return with_more(in_units(d), 1)

    def remarks(self, d: FamilyDesign, estimates: Values) -> Sequence[str]:  # noqa: ARG002
        return [f"alpha {math.exp(estimates[-1]):.6g}: the variance is mu + alpha mu²; with 0 a Poisson model's"]
