"""Sums of vectors as they come, the same bits whatever their order, in memory that does not grow with their number.

Each term is rounded once to the whole multiples of FINE (most terms are such a multiple already), and is added in two
words, whole numbers of COARSE and of FINE.  Sums of whole numbers have no order; the secure sum relies on the same,
modulo 2^32 and with a coarser grid.

    term    = weight * vector                    one rounding in float64, none for a weight below 2^29 and float32
    coarse += term to the nearest COARSE         multiples of 2^-16, the sum below 2^35
    fine   += the rest to the nearest FINE       multiples of 2^-64, CARRY terms of them below 2^-2, then carried over

A float64 between 2^k and 2^(k+1) is, as 64 bits, a whole number of its last places plus a constant: so a term that is
added to a number of the right size is rounded to the grid, and its bits are what the word counts.  The constants are
taken away at the end, as often as they were added; what overflows on the way comes back, modulo 2^64.

So a float32 element of 2^-41 or more is summed exactly, and a smaller one to 2^-65.

Source: pre-rounded reproducible sums, Demmel and Nguyen, Parallel reproducible summation, IEEE Trans. Computers 64
(2015), with a grid that is fixed, so that terms may come one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from fedgossip.vectors import Vector, empty, frozen

COARSE, FINE = 2.0**-16, 2.0**-64
CARRY = 1 << 13
"""Terms until the fine word is carried over."""
TOGETHER = 4
"""So many terms are kept and added in one go: the two words are four times as much memory to go through as a term."""
BLOCK = 8192  # elements; both words, the term and its part stay in the second-level cache
REACH = 2.0**35
"""The weighted sum of the terms' largest elements stays below this."""

_TO_COARSE, _TO_FINE = 1.5 * 2.0**52 * COARSE, 1.5 * 2.0**52 * FINE
"""Adding one of these rounds to the nearest multiple, half to even."""
_COARSE_BITS, _FINE_BITS = np.array([_TO_COARSE, _TO_FINE]).view(np.int64).tolist()
_FINES = round(math.log2(COARSE / FINE))
"""COARSE is 2^48 FINE."""


def mean_of(weighted: Iterable[tuple[float, float]]) -> float:
    """Return the mean of (weight, number)s, the same bits for every order; at least one."""
    terms = list(weighted)
    return math.fsum(weight * number for weight, number in terms) / math.fsum(weight for weight, _ in terms)


Words = npt.NDArray[np.int64]


def largest(vector: Vector) -> float:
    """Return the largest absolute value, nan where an element is not a number; two passes, nothing allocated."""
    return max(float(vector.max()), -float(vector.min())) if vector.size else 0.0


class ExactSum:
    """sum_k weight_k * vector_k of vectors [d], 16 bytes an element."""

    def __init__(self, length: int) -> None:
        self._coarse, self._fine = np.zeros(length, np.int64), np.zeros(length, np.int64)
        self._weights: list[float] = []
        self._reach = 0.0
        self._uncarried = 0
        self._waiting: list[tuple[float, Vector]] = []
        self._looked: tuple[Vector | None, float] = None, 0.0

    @property
    def weight(self) -> float:
        """The sum of the weights, rounded once."""
        return math.fsum(self._weights)

    def fits(self, weight: float, vector: Vector) -> bool:
        """Whether the term can be added: finite, and not so large that the sum could lose a bit."""
        return self._reached(weight, vector) < REACH

    def _reached(self, weight: float, vector: Vector) -> float:
        if self._looked[0] is not vector:
            self._looked = vector, largest(vector)
        return self._reach + weight * self._looked[1]

    def add(self, weight: float, vector: Vector) -> None:
        reach = self._reached(weight, vector)
        assert weight > 0 and reach < REACH, "ask `fits` first"
        self._looked = None, 0.0
        self._weights.append(weight)
        self._reach = reach
        self._waiting.append((weight, vector))
        if len(self._waiting) == TOGETHER:
            self._add_waiting()

    def _add_waiting(self) -> None:
        """Add what waits, a block of all at a time: the words are read and written once."""
        term, part = np.empty((2, min(BLOCK, self._coarse.size)))
        term_bits, part_bits = term.view(np.int64), part.view(np.int64)
        self._uncarried += len(self._waiting)
        for start in range(0, self._coarse.size, BLOCK):
            coarse, fine = self._coarse[start : start + BLOCK], self._fine[start : start + BLOCK]
            size = coarse.size
            t, p, t_bits, p_bits = term[:size], part[:size], term_bits[:size], part_bits[:size]
            for weight, vector in self._waiting:
                np.multiply(vector[start : start + BLOCK], weight, out=t, dtype=np.float64)
                np.add(t, _TO_COARSE, out=p)
                coarse += p_bits
                p -= _TO_COARSE
                t -= p
                t += _TO_FINE
                fine += t_bits
        self._waiting.clear()
        if self._uncarried >= CARRY:
            self._carry()

    def _carry(self) -> None:
        """Take the constants away, and bring the fine word between 0 and COARSE."""
        coarse_bits, fine_bits = (_wrapped(self._uncarried * bits) for bits in (_COARSE_BITS, _FINE_BITS))
        for start in range(0, self._coarse.size, BLOCK):
            coarse, fine = self._coarse[start : start + BLOCK], self._fine[start : start + BLOCK]
            coarse -= coarse_bits
            fine -= fine_bits
            coarse += fine >> _FINES
            fine &= (1 << _FINES) - 1
        self._uncarried = 0

    def mean(self, kind: np.dtype[np.floating]) -> Vector:
        """Return the sum over the weights' sum, frozen [d] of type `kind`; of one term the term itself."""
        self._add_waiting()
        self._carry()
        weight, out = self.weight, empty(self._coarse.size, kind)
        total, rest = np.empty((2, min(BLOCK, out.size)))
        for start in range(0, out.size, BLOCK):
            coarse, fine = self._coarse[start : start + BLOCK], self._fine[start : start + BLOCK]
            t, r = total[: coarse.size], rest[: coarse.size]
            np.multiply(coarse, COARSE, out=t)
            np.multiply(fine, FINE, out=r)
            t += r  # one rounding of the exact sum
            t /= weight
            out[start : start + BLOCK] = t
        return frozen(out)


def _wrapped(number: int) -> np.int64:
    """Return a whole number modulo 2^64."""
    return np.int64((number + 2**63) % 2**64 - 2**63)
