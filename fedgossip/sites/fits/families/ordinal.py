"""Ordinal logit, the proportional odds model: one effect of each column on all cuts of ordered classes.

    P(class <= j) = F(a_j - x b),  F(u) = 1 / (1 + exp(-u));  a column's odds ratio is of being in a higher class

The order is that of the declared categories: [data.columns] NAME = { categories = ["mild", "severe"] }.

Source: McCullagh, JRSS B 42 (1980).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from fedgossip.data.objectives import CLASSIFICATION
from fedgossip.sites.fits.families.family import FamilyDesign, SiteSample
from fedgossip.sites.fits.families.likelihoods import Likelihood, LikelihoodTerms
from fedgossip.sites.fits.families.multinomial import check_classes
from fedgossip.sites.fits.glm.glm import Values


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
