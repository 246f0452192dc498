"""Logits of more than two classes: multinomial, and ordinal for ordered ones.

**Multinomial logit**: the odds of each class against the first.

    P(class c) = exp(x b_c) / sum over classes of exp(x b),  b of the first class 0

Source: McCullagh and Nelder, Generalized linear models, 2nd edition, 1989, section 5.2.

**Ordinal logit** (proportional odds): one effect of each column on all cuts of ordered classes.

    P(class <= j) = F(a_j - x b),  F(u) = 1 / (1 + exp(-u));  a column's odds ratio is of being in a higher class

The order is that of the declared categories: [data.columns] NAME = { categories = ["mild", "severe"] }.

Source: McCullagh, JRSS B 42 (1980).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from fedgossip.base.errors import TrainingError
from fedgossip.data.objectives import CLASSIFICATION
from fedgossip.sites.fits.families.family import FamilyDesign, FamilyModel, SiteSample
from fedgossip.sites.fits.families.likelihoods import Likelihood, LikelihoodTerms
from fedgossip.sites.fits.glm.glm import Values, in_units
from fedgossip.sites.fits.glm.glm_result import INTERCEPT, SOFTMAX


def check_classes(counts: Values, classes: Sequence[str]) -> None:
    """Raise TrainingError if a class has no records at the participating sites."""
    if (counts < 0.5).any():
        none = ", ".join(name for name, count in zip(classes, counts, strict=True) if count < 0.5)
        raise TrainingError(
            f"no records of class {none}", "Leave the class out of [data.columns], or put classes together."
        )


class Multinomial(Likelihood):
    name, kinds, predicts = "multinomial", (CLASSIFICATION,), True

    def title(self, d: FamilyDesign) -> str:
        return f"multinomial model of {d.outcome}, against {d.classes[0]}"

    def names(self, d: FamilyDesign) -> Sequence[str]:
        return [f"{one}: {name}" for one in d.classes[1:] for name in (INTERCEPT, *d.columns)]

    def first(self, d: FamilyDesign, y: Values) -> Values:
        return np.bincount(y[:, 0].astype(int), minlength=len(d.classes)).astype(float)

    def start(self, d: FamilyDesign, first: Values, records: int) -> Values:  # noqa: ARG002
        check_classes(first, d.classes)
        point = np.zeros((len(d.classes) - 1, len(d.columns) + 1))
        point[:, 0] = np.log(first[1:] / first[0])
        return point.ravel()

    def terms(self, d: FamilyDesign, site: SiteSample, point: Values) -> LikelihoodTerms:
        from scipy.special import logsumexp

        others, width = len(d.classes) - 1, len(d.columns) + 1
        eta = np.concatenate([np.zeros((len(site.x), 1)), site.x @ point.reshape(others, width).T], axis=1)
        log_p = eta - logsumexp(eta, axis=1, keepdims=True)
        p, of = np.exp(log_p)[:, 1:], site.y[:, 0].astype(int)
        is_of = (of[:, None] == np.arange(1, others + 1)).astype(float)
        scores = ((is_of - p)[:, :, None] * site.x[:, None, :]).reshape(len(of), -1)
        information = np.zeros((others * width, others * width))
        for a in range(others):
            for b in range(others):
                w = p[:, a] * ((a == b) - p[:, b])
                information[a * width : (a + 1) * width, b * width : (b + 1) * width] = site.x.T @ (site.x * w[:, None])
        weights = [*(one * (1 - one) for one in p.T), *(one * other for one, other in combinations(p.T, 2))]
        return LikelihoodTerms(log_p[np.arange(len(of)), of], scores, information, weights)

    def model(self, d: FamilyDesign, point: Values) -> FamilyModel:
        rows = point.reshape(len(d.classes) - 1, -1)
        return FamilyModel(SOFTMAX, np.concatenate([0 * rows[:1], rows]))

    def in_units(self, d: FamilyDesign) -> Values:
        from scipy.linalg import block_diag

        return np.asarray(block_diag(*[in_units(d)] * (len(d.classes) - 1)))


class Ordinal(Likelihood):
    name, kinds = "ordinal", (CLASSIFICATION,)

    def title(self, d: FamilyDesign) -> str:
        return f"proportional odds of a higher {d.outcome}, {' < '.join(d.classes)}"

    def names(self, d: FamilyDesign) -> Sequence[str]:
        cuts = zip(d.classes, d.classes[1:], strict=False)
        return [*(f"(cut {one} | {other})" for one, other in cuts), *d.columns]

    def first(self, d: FamilyDesign, y: Values) -> Values:
        return np.bincount(y[:, 0].astype(int), minlength=len(d.classes)).astype(float)

    def start(self, d: FamilyDesign, first: Values, records: int) -> Values:  # noqa: ARG002
        check_classes(first, d.classes)
        below = np.cumsum(first)[:-1]
        return np.concatenate([np.log(below / (first.sum() - below)), np.zeros(len(d.columns))])

    def terms(self, d: FamilyDesign, site: SiteSample, point: Values) -> LikelihoodTerms:
        from scipy.special import expit

        cuts, m, x = len(d.classes) - 1, len(site.x), site.x[:, 1:]
        of, row = site.y[:, 0].astype(int), np.arange(m)
        ends = np.concatenate([[-np.inf], point[:cuts], [np.inf]])
        eta = x @ point[cuts:]
        sides = []
        for k in (of + 1, of):  # the cut above the class, and the one below
            u = ends[k] - eta
            share = expit(u)
            slope = share * (1 - share)
            place = np.zeros((m, cuts))
            inside = (k > 0) & (k <= cuts)
            place[row[inside], k[inside] - 1] = 1
            sides.append(
                (share, slope, slope * (1 - 2 * share), np.concatenate([place, -x * (slope > 0)[:, None]], axis=1))
            )
        (above, f, f2, to_above), (below, g, g2, to_below) = sides
        p = np.maximum(above - below, 1e-300)
        scores = (f[:, None] * to_above - g[:, None] * to_below) / p[:, None]
        information = scores.T @ scores - to_above.T @ (to_above * (f2 / p)[:, None])
        information += to_below.T @ (to_below * (g2 / p)[:, None])
        weights = ((f - g) / p) ** 2 - (f2 - g2) / p
        return LikelihoodTerms(np.log(p), scores, information, [np.maximum(weights, 0.0)])

    def in_units(self, d: FamilyDesign) -> Values:
        cuts, deviation = len(d.classes) - 1, np.array(d.deviation)
        turned = np.diag(np.concatenate([np.ones(cuts), 1 / deviation]))
        turned[:cuts, cuts:] = np.array(d.mean) / deviation
        return turned
