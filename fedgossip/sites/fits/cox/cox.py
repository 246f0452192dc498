"""Cox's regression from sums only: proportional hazards, with Breslow's or Efron's ties at reported times.

    hazard     h(t | x) = h0(t) exp(x b)                         separate h0 per stratum
    at each reported time, over the records at risk  S0 = sum of exp(eta),  S1 = sum of x exp(eta),   eta = x b
    of its d events                                 u  = sum of x, over all reported times
    -2 log L   = -2 (sum of eta over events  -  sum of d log S0)
    g          = u - sum of d S1 / S0
    A          = M - sum of d (S1 / S0)(S1 / S0)'
    M          = sum over records of x x' exp(eta) H(t),   H(t) = sum of d / S0 until the record's time

Efron's method orders the d events of a time artificially: for l = 0 .. d-1, with E0 and E1 the sums over its events, S0
- l/d E0 replaces S0 and S1 - l/d E1 replaces S1; a record with its event then has H(t) less the sum of (l/d) / (S0 -
l/d E0).

M is one matrix over all records, computed after S0, where the textbook has one per time: it discloses no second moment
of a risk set.  H at the end is Breslow's cumulative hazard.  Contributions are rounded to 2^-60, so sums do not depend
on the division of the records.

Sources: Cox, Regression models and life-tables, JRSS B 34 (1972); Breslow, Covariance analysis of censored survival
data, Biometrics 30 (1974); Efron, The efficiency of Cox's likelihood function for censored data, JASA 72 (1977);
Harrell et al., Evaluating the yield of medical tests, JAMA 247 (1982).  Only numpy.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.sites.fits.glm.glm import Values

Whole = npt.NDArray[np.int64]

SHIFT = 60
"""Fractional bits of a summand."""
HALF = SHIFT // 2
LARGEST = 1 << 53
"""Maximum sum of magnitudes of one site's numbers: float64 represents every whole number up to here."""
STEEPEST = 25.0
"""Maximum |eta|: beyond it a hazard is 7e10 times the mean's; no step ends at such a point."""


@dataclass(frozen=True, eq=False)
class RiskSums:
    """Sums over all records at one point: s strata, k reported times, p columns."""

    records: int
    eta: float
    """Sum over the reported events."""
    shift: Values
    """u [p]."""
    events: Whole
    """d [s, k]."""
    s0: Values
    """[s, k]."""
    s1: Values
    """[s, k, p]."""
    e0: Values | None = None
    """[s, k], only over the reported events; None with Breslow's ties."""
    e1: Values | None = None
    """[s, k, p]."""

    @property
    def hazard(self) -> Values:
        """d / S0 at each reported time, [s, k]: 0 without events; by Efron the sum of 1 / (S0 - l/d E0)."""
        if self.e0 is not None:
            return self._each(lambda left, _: (1 / left).sum())
        return np.divide(self.events, self.s0, out=np.zeros(self.s0.shape), where=self.events > 0)

    @property
    def spared(self) -> Values:
        """Efron's reduction of the hazard of a record with its event at that time, [s, k]."""
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

    def timed_means(self, weights: Values) -> Values:
        """Return the sum over events of the mean columns of those at risk, by a weight [k] of their time, [p]."""
        found = np.einsum("k,sk,skp->p", weights, self.hazard, self.s1)
        return np.asarray(found if self.e1 is None else found - np.einsum("k,sk,skp->p", weights, self.spared, self.e1))

    @property
    def between(self) -> Values:
        """M - A, [p, p]."""
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
        """Return S0 - l/d E0 and l/d of the events of one time, [d] each; only S0 with Breslow's ties."""
        d = int(self.events[s, k])
        share = np.zeros(d) if self.e0 is None else np.arange(d) / d
        return self.s0[s, k] - share * (0.0 if self.e0 is None else self.e0[s, k]), share

    def _each(self, of: Callable[[Values, Values], float]) -> Values:
        found = np.zeros(self.s0.shape)
        for s, k in np.argwhere(self.events > 0).tolist():
            found[s, k] = of(*self._left(s, k))
        return found


def linear_predictor(columns: Sequence[Values], point: Values) -> Values:
    """Return eta of each record, [m], of columns [p][m]: added in order, independent of the other records."""
    eta = np.zeros(len(columns[0]))
    for column, factor in zip(columns, point.tolist(), strict=True):
        eta += column * factor
    return np.clip(eta, -STEEPEST, STEEPEST)


def hazards_of(eta: Values) -> Values:
    """Return exp(eta), record by record: numpy's vectorised exp may round differently by position."""
    return np.fromiter(map(math.exp, eta.tolist()), np.float64, len(eta))


def exact_totals(values: Values, cells: Whole, count: int) -> list[int]:
    """Return the sums of values [m] by their cell [m], each rounded to 2^-60.  Raises ConfigError if a partial sum
    would not be exact.
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
    """Return a total of `exact_totals` as the nearest float64."""
    return number / (1 << SHIFT)


def concordance(
    times: Values, events: npt.NDArray[np.bool_], eta: Values, entries: Values | None = None
) -> tuple[int, int, tuple[int, int, int]]:
    """Return the number of comparable pairs of records, twice that of pairs ordered as eta predicts, and sums for the
    error.

    The sums are, over records with p pairs and twice q ordered ones, of p p, p q and q q (`concordance_error`).  A pair
    is comparable if the record with the shorter time has its event; an event precedes a censoring at its time, two
    events at one time do not compare, nor an event with a record that enters then or later.  Equal eta counts a half.
    """
    known, rank = np.unique(times, return_inverse=True)
    died = 2 * rank[events]
    each = _compared(died, eta[events], 2 * rank + ~events, eta, events)  # p, q
    if entries is not None:
        late = 2 * np.searchsorted(known, entries, side="right") - 1  # above the place of an event that is not later
        each -= _compared(died, eta[events], late, eta, events)
    p, q = each
    return int(p.sum()) // 2, int(q.sum()) // 2, (int((p * p).sum()), int((p * q).sum()), int((q * q).sum()))


def _compared(
    died: Whole, eta_died: Values, places: Whole, eta: Values, events: npt.NDArray[np.bool_]
) -> npt.NDArray[np.object_]:
    """Return of each record its pairs of an event and a record at a later place, and twice those in order, [2, m]."""
    of_events, of_records = np.zeros((2, len(died)), object), np.zeros((2, len(eta)), object)
    by_event, by_record = np.argsort(died, kind="stable").tolist(), np.argsort(places, kind="stable").tolist()
    later, waiting = list[float](), by_record.copy()  # eta, ascending
    for one in reversed(by_event):
        while waiting and places[waiting[-1]] > died[one]:
            bisect.insort(later, float(eta[waiting.pop()]))
        of_events[:, one] = len(later), _below(later, float(eta_died[one]))
    before, waiting = list[float](), by_event[::-1]
    for one in by_record:
        while waiting and died[waiting[-1]] < places[one]:
            bisect.insort(before, float(eta_died[waiting.pop()]))
        of_records[:, one] = len(before), 2 * len(before) - _below(before, float(eta[one]))
    of_records[:, events] += of_events
    return of_records


def _below(ascending: Sequence[float], value: float) -> int:
    """Return twice the number of values below a value, plus the number of equal ones."""
    return bisect.bisect_left(ascending, value) + bisect.bisect_right(ascending, value)


def concordance_error(pairs: float, right: float, squares: Sequence[float]) -> float:
    """Return the standard error of right / pairs by the infinitesimal jackknife; `squares` as of `concordance`.

    Source: Therneau and Watson, The concordance statistic and the Cox model, Mayo Clinic report 85 (2017).
    """
    pp, pq, qq = squares
    share = right / pairs
    return math.sqrt(max(0.0, qq / 4 - share * pq + share * share * pp)) / pairs
