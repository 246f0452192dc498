"""Weibull accelerated failure times: a column stretches all times until the event by one factor.

    log T = x b + s W,  W of the smallest extreme value;   z = (log t - x b) / s
    log likelihood of a record   d (z - log s - log t) - exp(z),   d: whether its event was seen

exp(-x b) is the rate of a Weibull distribution of shape 1 / s.  The information is the observed one at the maximum.

Source: Kalbfleisch and Prentice, The statistical analysis of failure time data, 2nd edition, 2002, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.data.objectives import REGRESSION
from fedgossip.sites.fits.families.family import FamilyDesign, SiteSample
from fedgossip.sites.fits.families.likelihoods import Likelihood, LikelihoodTerms, with_more
from fedgossip.sites.fits.glm.glm import Values, in_units
from fedgossip.sites.fits.glm.glm_result import INTERCEPT


class Weibull(Likelihood):
    name, kinds, labels, ratio = "weibull", (REGRESSION,), 2, "time ratio"

    def title(self, d: FamilyDesign) -> str:
        time, event = d.outcome.split(",")
        return f"Weibull accelerated failure times, {time} until {event} = 1"

    def check(self, d: FamilyDesign, y: Values) -> None:
        time, event = d.outcome.split(",")
        if (y[:, 0] <= 0).any():
            text = f"column {time!r} holds times of 0 or below, in {int((y[:, 0] <= 0).sum())} records"
            raise ConfigError(text, "The logarithm of a time is taken: correct it, or leave the row out.")
        if not np.isin(y[:, 1], (0, 1)).all():
            text = f"column {event!r} holds something else than 0 and 1"
            raise ConfigError(text, "1: the event was seen at that time; 0: it was not seen until then.")

    def names(self, d: FamilyDesign) -> Sequence[str]:
        return [INTERCEPT, *d.columns, "(log scale)"]

    def first(self, d: FamilyDesign, y: Values) -> Values:  # noqa: ARG002
        return np.asarray(y.sum(axis=0))

    def start(self, d: FamilyDesign, first: Values, records: int) -> Values:  # noqa: ARG002
        if first[1] < 0.5:
            raise TrainingError("no record has its event", "Look at the label.")
        return np.concatenate([[math.log(first[0] / first[1])], np.zeros(len(d.columns) + 1)])  # an exponential one

    def terms(self, d: FamilyDesign, site: SiteSample, point: Values) -> LikelihoodTerms:  # noqa: ARG002
        log_t, had, s = np.log(site.y[:, 0]), site.y[:, 1], math.exp(point[-1])
        z = (log_t - site.x @ point[:-1]) / s
        e, hazard = np.exp(z), np.exp(-site.x[:, 1:] @ point[1:-1] / s)  # against a record with all means
        scores = np.concatenate([site.x * ((e - had) / s)[:, None], (-had + (e - had) * z)[:, None]], axis=1)
        along = np.concatenate([site.x / s, z[:, None]], axis=1)
        information = along.T @ (along * e[:, None])
        information[-1, -1] += had.sum()  # where the gradient is 0, this is the observed information
        return LikelihoodTerms(had * (z - point[-1] - log_t) - e, scores, information, [hazard])

    def in_units(self, d: FamilyDesign) -> Values:
        return with_more(in_units(d), 1)

    def remarks(self, d: FamilyDesign, estimates: Values) -> Sequence[str]:  # noqa: ARG002
        return [f"shape {math.exp(-estimates[-1]):.6g}: above 1 the hazard grows with time"]
