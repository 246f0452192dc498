"""Sums of vectors as they come, the same bits whatever their order, in memory that does not grow with their number.

Each term is rounded once to the whole multiples of GRID (most terms are such a multiple already), and these are added
as whole numbers, whose sums have no order.  The secure sum relies on the same, modulo 2^32 and on a coarser grid.

    term  = weight * vector                 one rounding in float64, none for a weight below 2^29 and float32
    fine += term to the nearest GRID        multiples of 2^-45; a block of a term that goes above 2^5 has two parts:
        coarse += term to the nearest COARSE    multiples of 2^-16, the sum below 2^35
        fine   += the rest to the nearest GRID

A float64 between 2^k and 2^(k+1) is, as 64 bits, a whole number of its last places plus a constant: so a term that is
added to a number of the right size is rounded to the grid, and its bits are what the word counts.  The constants are
taken away at the end, as often as they were added; what overflows on the way comes back, modulo 2^64.

So a float32 element of 2^-22 or more is summed exactly, and a smaller one to 2^-46.

Source: pre-rounded reproducible sums, Demmel and Nguyen, Parallel reproducible summation, IEEE Trans. Computers 64
(2015), with a grid that is fixed, so that terms may come one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.vectors import Vector, empty, frozen

COARSE, GRID = 2.0**-16, 2.0**-45
WHOLE, CARRY = 2.0**5, 2.0**17
"""The largest element of a block that the fine word takes whole, and what those may sum up to before it is carried."""
TOGETHER = 2
"""So many terms are kept and added in one go: the words are at least twice as much memory to go through as a term.
Four take 7 % less processor time, and two models more of memory."""
BLOCK = 32768  # elements; the words, the term and its part stay in the second-level cache
REACH = 2.0**35
"""The weighted sum of the terms' largest elements stays below this."""

_TO_COARSE, _TO_GRID = 1.5 * 2.0**52 * COARSE, 1.5 * 2.0**52 * GRID
"""Adding one of these rounds to the nearest multiple, half to even."""
_COARSE_BITS, _GRID_BITS = np.array([_TO_COARSE, _TO_GRID]).view(np.int64).tolist()
_BITS = round(math.log2(COARSE / GRID))
"""COARSE is 2^29 GRID."""

Words = npt.NDArray[np.int64]


def mean_of(weighted: Iterable[tuple[float, float]]) -> float:
    """Return the mean of (weight, number)s, the same bits for every order; at least one.

    Raises ZeroDivisionError on none.
    """
    terms = list(weighted)
    return math.fsum(weight * number for weight, number in terms) / math.fsum(weight for weight, _ in terms)


def _peaks(vector: Vector) -> list[float]:
    """Return the largest absolute value of each block; it is in the cache for the second look."""
    peaks = []
    for start in range(0, vector.size, BLOCK):
        block = vector[start : start + BLOCK]
        peak = max(float(np.maximum.reduce(block)), -float(np.minimum.reduce(block)))
        peaks.append(math.inf if math.isnan(peak) else peak)
    return peaks


@dataclass(frozen=True, slots=True, eq=False)
class _Term:
    weight: float
    vector: Vector
    whole: list[bool]
    """Per block: whether the fine word takes it as it is."""


class ExactSum:
    """sum_k weight_k * vector_k of vectors [d], 8 bytes an element; 16 where terms are large or many."""

    _fresh = False  # an image of the release before has no word of it

    def __init__(self, length: int) -> None:
        self._fine: Words = empty(length, np.float64).view(np.int64)  # warm memory where there is some
        self._fresh = True  # nothing is in it yet
        self._coarse: Words | None = None
        self._weights: list[float] = []
        self._reach = 0.0
        self._counted, self._reach_of_fine = 0, 0.0  # since the fine word was carried
        self._waiting: list[_Term] = []
        self._looked: tuple[Vector | None, list[float]] = None, []

    @property
    def weight(self) -> float:
        """The sum of the weights, rounded once."""
        return math.fsum(self._weights)

    def fits(self, weight: float, vector: Vector) -> bool:
        """Whether the term can be added: finite, and not so large that the sum could lose a bit."""
        return self._reached(weight, self._peaks_of(vector)) < REACH

    def _peaks_of(self, vector: Vector) -> list[float]:
        if self._looked[0] is not vector:
            self._looked = vector, _peaks(vector)
        return self._looked[1]

    def _reached(self, weight: float, peaks: list[float]) -> float:
        return self._reach + weight * max(peaks, default=0.0)

    def add(self, weight: float, vector: Vector) -> None:
        """Take a term that `fits`, a vector [d]; it stays as it is."""
        peaks = self._peaks_of(vector)
        reach = self._reached(weight, peaks)
        assert weight > 0 and reach < REACH, "ask `fits` first"
        self._looked = None, []
        self._weights.append(weight)
        self._reach = reach
        self._waiting.append(_Term(weight, vector, [weight * peak < WHOLE for peak in peaks]))
        if len(self._waiting) == TOGETHER:
            self._add_waiting()

    def _add_waiting(self) -> None:
        """Add what waits, a block of all at a time: the words are read and written once."""
        if not self._waiting:
            return
        if self._reach_of_fine + WHOLE * len(self._waiting) > CARRY:
            self._carry()
        self._counted += len(self._waiting)
        self._reach_of_fine += WHOLE * len(self._waiting)
        fresh, self._fresh = self._fresh, False
        term, part = np.empty((2, min(BLOCK, self._fine.size)))
        for number, start in enumerate(range(0, self._fine.size, BLOCK)):
            fine = self._fine[start : start + BLOCK]
            t, bits = term[: fine.size], term.view(np.int64)[: fine.size]
            for place, one in enumerate(self._waiting):
                t[...] = one.vector[start : start + BLOCK]
                t *= one.weight
                if not one.whole[number]:
                    self._move(t, part[: fine.size], start)
                t += _TO_GRID
                if fresh and place == 0:
                    fine[...] = bits
                else:
                    fine += bits
        self._waiting.clear()

    def _move(self, term: npt.NDArray[np.float64], part: npt.NDArray[np.float64], start: int) -> None:
        """Take the multiples of COARSE out of a block of a term, into the coarse word."""
        np.add(term, _TO_COARSE, out=part)
        coarse = self._coarse_word()[start : start + BLOCK]
        coarse += part.view(np.int64)
        coarse -= _COARSE_BITS
        part -= _TO_COARSE
        term -= part

    def _coarse_word(self) -> Words:
        if self._coarse is None:
            self._coarse = np.zeros(self._fine.size, np.int64)
        return self._coarse

    def _carry(self) -> None:
        """Bring the fine word between 0 and COARSE, without the constants."""
        word = self._coarse_word()
        for start in range(0, word.size, BLOCK):
            coarse, fine = word[start : start + BLOCK], self._fine[start : start + BLOCK]
            fine -= _wrapped(self._counted * _GRID_BITS)
            coarse += fine >> _BITS
            fine &= (1 << _BITS) - 1
        self._counted, self._reach_of_fine = 0, COARSE

    def mean(self, kind: np.dtype[np.floating]) -> Vector:
        """Return the sum over the weights' sum, frozen [d] of type `kind`; of one term the term itself."""
        if len(self._weights) == 1:
            return frozen(self._waiting[0].vector.astype(kind))
        self._add_waiting()
        if self._coarse is not None:
            self._carry()
        weight, out, constants = self.weight, empty(self._fine.size, kind), _wrapped(self._counted * _GRID_BITS)
        total, whole = np.empty((2, min(BLOCK, out.size)))
        for start in range(0, out.size, BLOCK):
            fine = self._fine[start : start + BLOCK]
            fine -= constants
            t, w = total[: fine.size], whole[: fine.size]
            t[...] = fine
            t *= GRID
            if self._coarse is not None:
                w[...] = self._coarse[start : start + BLOCK]
                w *= COARSE
                t += w  # one rounding of the exact sum
            t /= weight
            out[start : start + BLOCK] = t
        return frozen(out)


def _wrapped(number: int) -> np.int64:
    """Return a whole number modulo 2^64."""
    return np.int64((number + 2**63) % 2**64 - 2**63)
