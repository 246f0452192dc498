"""Firth's logistic regression: finite estimates where a column separates the outcomes, and less bias of few records.

    maximises   l(b) + log det A(b) / 2,   A = X' W X
    gradient    g_c + sum over a, b of (A^-1)_ab T_abc / 2,   T_abc = sum of w (1 - 2 p) x_a x_b x_c

T, of products of three columns, is a sum over records, so sums over sites give every step that all records would.

Sources: Firth, Biometrika 80 (1993); Heinze and Schemper, Statistics in Medicine 21 (2002).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.data.objectives import CLASSIFICATION
from fedgossip.sites.fits.families.family import FamilyDesign, FamilyModel, SiteSample
from fedgossip.sites.fits.families.likelihoods import Likelihood, LikelihoodTerms
from fedgossip.sites.fits.glm.glm import PointSums, Values, in_units
from fedgossip.sites.fits.glm.glm_result import INTERCEPT, SOFTMAX, layer_of

WIDEST = 24
"""Maximum number of coefficients: products of three of them are as many as its third power, by 6."""


class Firth(Likelihood):
    name, kinds, predicts = "firth", (CLASSIFICATION,), True

    def title(self, d: FamilyDesign) -> str:
        return f"Firth's logistic model of {d.outcome} = {d.classes[1]}"

    def names(self, d: FamilyDesign) -> Sequence[str]:
        if len(d.classes) != 2:
            raise ConfigError(f"firth: {d.outcome!r} has {len(d.classes)} classes", "It is of two: yes and no.")
        if len(d.columns) >= WIDEST:
            text = f"firth of {len(d.columns)} columns: sums of products of three columns are too many"
            raise ConfigError(text, f"Leave columns out, drop=A,B: at most {WIDEST - 1}.")
        return [INTERCEPT, *d.columns]

    def first(self, d: FamilyDesign, y: Values) -> Values:  # noqa: ARG002
        return np.asarray(y.sum(axis=0))

    def start(self, d: FamilyDesign, first: Values, records: int) -> Values:
        mean = first[0] / records
        if not 0 < mean < 1:
            raise TrainingError(f"all {records} records have the same outcome", "Look at the label.")
        return np.concatenate([[math.log(mean / (1 - mean))], np.zeros(len(d.columns))])

    def terms(self, d: FamilyDesign, site: SiteSample, point: Values) -> LikelihoodTerms:
        x, y, eta = site.x, site.y[:, 0], site.x @ point
        p = expit(eta)
        w = p * (1 - p)
        a, b, c = _triples(len(d.columns) + 1)
        more = np.array(
            [math.fsum(w * (1 - 2 * p) * x[:, i] * x[:, j] * x[:, k]) for i, j, k in zip(a, b, c, strict=True)]
        )
        likelihood = y * eta - np.logaddexp(0, eta)
        return LikelihoodTerms(likelihood, x * (y - p)[:, None], x.T @ (x * w[:, None]), [w], np.array(more))

    def more(self, d: FamilyDesign) -> int:
        return len(_triples(len(d.columns) + 1)[0])

    def adjusted(self, d: FamilyDesign, sums: PointSums, more: Values) -> PointSums:
        """Return the sums of the penalised likelihood; where A is singular, those of a likelihood of 0."""
        k = len(d.columns) + 1
        sign, log_det = np.linalg.slogdet(sums.information)
        if sign <= 0:
            return replace(sums, deviance=math.inf)
        whole = np.zeros((k, k, k))
        triples = _triples(k)
        for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
            whole[tuple(triples[one] for one in order)] = more
        shift = np.einsum("ab,abc->c", np.linalg.inv(sums.information), whole) / 2
        return replace(sums, gradient=sums.gradient + shift, deviance=sums.deviance - float(log_det))

    def model(self, d: FamilyDesign, point: Values) -> FamilyModel:  # noqa: ARG002
        return FamilyModel(SOFTMAX, layer_of("logistic", point))

    def in_units(self, d: FamilyDesign) -> Values:
        return in_units(d)

    def remarks(self, d: FamilyDesign, estimates: Values) -> Sequence[str]:  # noqa: ARG002
        return ["log likelihood and AIC are penalised, of scaled columns; intervals are Wald's"]


def _triples(width: int) -> npt.NDArray[np.int64]:
    """Return the places a <= b <= c of all products of three columns, [3, numbers]."""
    return np.array(list(combinations_with_replacement(range(width), 3))).T
