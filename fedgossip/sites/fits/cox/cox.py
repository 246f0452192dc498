"""Cox's regression from sums alone: proportional hazards, with Breslow's or Efron's way of ties at told times.

    hazard     h(t | x) = h0(t) exp(x b)                         h0 of each stratum its own
    at each told time, over the records at risk     S0 = sum of exp(eta),  S1 = sum of x exp(eta),   eta = x b
    of its d events                                 u  = sum of x, over all told times
    -2 log L   = -2 (sum of eta over events  -  sum of d log S0)
    g          = u - sum of d S1 / S0
    A          = M - sum of d (S1 / S0)(S1 / S0)'
    M          = sum over records of x x' exp(eta) H(t),   H(t) = sum of d / S0 until the record's time

Efron's way takes the d events of a time as if they came one after another: for l = 0 .. d-1, with E0 and E1 the
same sums over its events, S0 - l/d E0 is in the place of S0 and S1 - l/d E1 in that of S1; a record is in M by what it
weighs in each of them, so one with its event then has H(t) less the sum of (l/d) / (S0 - l/d E0).

M is one matrix over all records where the textbook has a matrix for each time: it takes a sum of its own, after S0 is
known, and no second moment of a single risk set is told.  H at the end is Breslow's cumulative hazard.

What is summed of a record is rounded to 2^-60 first, so that a sum has no order: it is the same whole number however
the records are divided over sites.

Sources: Cox, Regression models and life-tables, JRSS B 34 (1972); Breslow, Covariance analysis of censored survival
data, Biometrics 30 (1974); Efron, The efficiency of Cox's likelihood function for censored data, JASA 72 (1977);
Harrell et al., Evaluating the yield of medical tests, JAMA 247 (1982).  numpy alone.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.sites.fits.glm.glm import Values

Whole = npt.NDArray[np.int64]

SHIFT = 60
"""Bits behind the point of what is summed."""
HALF = SHIFT // 2
LARGEST = 1 << 53
"""Limit of the sum of magnitudes of one site's numbers: float64 counts so far without a gap."""
STEEPEST = 25.0
"""Of eta: beyond it a hazard is 7e10 times that of the mean, and such a point is never the end of a step."""


@dataclass(frozen=True, eq=False)
class RiskSums:
    """Of all records at one point: s strata, k told times, p columns."""

    records: int
    eta: float
    """Sum over the told events."""
    shift: Values
    """u [p]."""
    events: Whole
    """d [s, k]."""
    s0: Values
    """[s, k]."""
    s1: Values
    """[s, k, p]."""
    e0: Values | None = None
    """[s, k], over the told events alone; None where ties are Breslow's."""
    e1: Values | None = None
    """[s, k, p]."""

    @property
    def hazard(self) -> Values:
        """d / S0 at each told time, [s, k]: 0 where nothing happens; by Efron the sum of 1 / (S0 - l/d E0)."""
        if self.e0 is not None:
            return self._each(lambda left, _: (1 / left).sum())
        return np.divide(self.events, self.s0, out=np.zeros(self.s0.shape), where=self.events > 0)

    @property
    def spared(self) -> Values:
        """By how much less of the hazard a record has that has its event then, [s, k]."""
        return self._each(lambda left, share: (share / left).sum())

    @property
    def log_likelihood(self) -> float:
        if self.e0 is not None:
            return self.eta - math.fsum(self._each(lambda left, _: np.log(left).sum()).ravel())
        there = self.events > 0
        return self.eta - math.fsum(self.events[there] * np.log(self.s0[there]))

    @property
    def gradient(self) -> Values:
        """g [p]."""
        found = self.shift - np.einsum("sk,skp->p", self.hazard, self.s1)
        return np.asarray(found if self.e1 is None else found + np.einsum("sk,skp->p", self.spared, self.e1))

    @property
    def between(self) -> Values:
        """What M is more than A, [p, p]."""
        if self.e1 is not None:
            return self._between_tied(self.e1)
        there = self.events > 0
        mean = self.s1[there] / self.s0[there][:, None]
        return np.asarray(mean.T @ (mean * self.events[there][:, None]))

    def _between_tied(self, e1: Values) -> Values:
        found = np.zeros((self.shift.size, self.shift.size))
        for s, k in np.argwhere(self.events > 0).tolist():
            left, share = self._left(s, k)
            mean = (self.s1[s, k] - share[:, None] * e1[s, k]) / left[:, None]
            found += mean.T @ mean
        return found

    def _left(self, s: int, k: int) -> tuple[Values, Values]:
        """Return S0 - l/d E0 and l/d of the events of one time, [d] each; S0 alone where ties are Breslow's."""
        d = int(self.events[s, k])
        share = np.zeros(d) if self.e0 is None else np.arange(d) / d
        return self.s0[s, k] - share * (0.0 if self.e0 is None else self.e0[s, k]), share

    def _each(self, of: Callable[[Values, Values], float]) -> Values:
        found = np.zeros(self.s0.shape)
        for s, k in np.argwhere(self.events > 0).tolist():
            found[s, k] = of(*self._left(s, k))
        return found


def linear_predictor(columns: Sequence[Values], point: Values) -> Values:
    """Return eta of each record, [m], of columns [p][m]: by additions in order, so that it is no other among others."""
    eta = np.zeros(len(columns[0]))
    for column, factor in zip(columns, point.tolist(), strict=True):
        eta += column * factor
    return np.clip(eta, -STEEPEST, STEEPEST)


def hazards_of(eta: Values) -> Values:
    """Return exp(eta), each record by itself: numpy's own takes several at once, and need not round alike."""
    return np.fromiter(map(math.exp, eta.tolist()), np.float64, len(eta))


def exact_totals(values: Values, cells: Whole, count: int) -> list[int]:
    """Return the sums of values [m] by their cell [m], each value rounded to a whole multiple of 2^-60.

    Raises ConfigError for values so large that some part of a sum would not be exact.
    """
    if not math.fsum(np.abs(values)) < LARGEST:
        text = "a record so far from the mean of its column that no sum can hold it"
        raise ConfigError(text, "Declare the column's bounds in [data.columns], or correct the record.")
    whole = np.trunc(values)
    upper = np.trunc((values - whole) * (1 << HALF))
    lower = np.rint(((values - whole) * (1 << HALF) - upper) * (1 << HALF))
    parts = (np.bincount(cells, one, count).astype(np.int64).tolist() for one in (whole, upper, lower))
    return [(a << SHIFT) + (b << HALF) + c for a, b, c in zip(*parts, strict=True)]


def real(number: int) -> float:
    """Return what a total of `exact_totals` says, to the nearest float64."""
    return number / (1 << SHIFT)


def concordance(times: Values, events: npt.NDArray[np.bool_], eta: Values) -> tuple[int, int]:
    """Return how many pairs of records can be compared, and two times how many of them are as eta says.

    A pair can where the one with the shorter time has its event; an event comes before a censoring at its time, two
    events at one time tell nothing.  Equal eta counts a half.
    """
    order = np.lexsort((events, -times)).tolist()
    pairs = right = 0
    longer: list[float] = []  # eta of those that are there longer, ascending
    for _, ranked in groupby(order, key=lambda place: float(times[place])):
        together = list(ranked)
        for place in together:
            if not events[place]:
                bisect.insort(longer, float(eta[place]))
        died = [float(eta[place]) for place in together if events[place]]
        for one in died:
            pairs += len(longer)
            right += bisect.bisect_left(longer, one) + bisect.bisect_right(longer, one)
        for one in died:
            bisect.insort(longer, one)
    return pairs, right
