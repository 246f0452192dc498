"""Sums of vectors as they come, the same bits whatever their order, in memory that does not grow with their number.

Each term is rounded once to the whole multiples of FINE (most terms are such a multiple already), and is added in two
words whose sums are exact: multiples of COARSE, and what is left of each term, multiples of FINE.  Sums of whole
numbers have no order; the secure sum relies on the same, modulo 2^32 and with a coarser grid.

    term    = weight * vector                    one rounding in float64, none for a weight below 2^29 and float32
    coarse += term to the nearest COARSE         exact: multiples of 2^-16, the sum below 2^36
    fine   += the rest to the nearest FINE       exact: multiples of 2^-64, CARRY of them below 2^-10, then carried over

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
CARRY = 64
"""Terms until the fine word is carried over."""
TOGETHER = 4
"""So many terms are kept and added in one go: the two words are four times as much memory to go through as a term."""
BLOCK = 8192  # elements; both words, the term and its part stay in the second-level cache
REACH = 2.0**36
"""The weighted sum of the terms' largest elements stays below this."""

_TO_COARSE, _TO_FINE = 1.5 * 2.0**52 * COARSE, 1.5 * 2.0**52 * FINE
"""Adding one of these and taking it away again rounds to the nearest multiple, half to even."""


def mean_of(weighted: Iterable[tuple[float, float]]) -> float:
    """Return the mean of (weight, number)s, the same bits for every order; at least one."""
    terms = list(weighted)
    return math.fsum(weight * number for weight, number in terms) / math.fsum(weight for weight, _ in terms)


Words = npt.NDArray[np.float64]


def largest(vector: Vector) -> float:
    """Return the largest absolute value, nan where an element is not a number; two passes, nothing allocated."""
    return max(float(vector.max()), -float(vector.min())) if vector.size else 0.0


class ExactSum:
    """sum_k weight_k * vector_k of vectors [d], 16 bytes an element."""

    def __init__(self, length: int) -> None:
        self._coarse, self._fine = np.zeros(length), np.zeros(length)
        self._weights: list[float] = []
        self._reach = 0.0
        self._uncarried = 0
        self._waiting: list[tuple[float, Vector]] = []

    @property
    def weight(self) -> float:
        """The sum of the weights, rounded once."""
        return math.fsum(self._weights)

    def fits(self, weight: float, vector: Vector) -> bool:
        """Whether the term can be added: finite, and not so large that the sum could lose a bit."""
        return self._reach + weight * largest(vector) < REACH

    def add(self, weight: float, vector: Vector) -> None:
        reach = self._reach + weight * largest(vector)
        assert weight > 0 and reach < REACH, "ask `fits` first"
        self._weights.append(weight)
        self._reach = reach
        self._waiting.append((weight, vector))
        if len(self._waiting) == TOGETHER:
            self._add_waiting()

    def _add_waiting(self) -> None:
        """Add what waits, a block of all at a time: the words are read and written once."""
        term, part = np.empty((2, min(BLOCK, self._coarse.size)))
        self._uncarried += len(self._waiting)
        carry = self._uncarried >= CARRY
        for start in range(0, self._coarse.size, BLOCK):
            coarse, fine = self._coarse[start : start + BLOCK], self._fine[start : start + BLOCK]
            t, p = term[: coarse.size], part[: coarse.size]
            for weight, vector in self._waiting:
                np.multiply(vector[start : start + BLOCK], weight, out=t, dtype=np.float64)
                _split(t, coarse, p, _TO_COARSE)
                _split(t, fine, p, _TO_FINE)
            if carry:
                _split(fine, coarse, p, _TO_COARSE)
        self._uncarried = 0 if carry else self._uncarried
        self._waiting.clear()

    def mean(self, kind: np.dtype[np.floating]) -> Vector:
        """Return the sum over the weights' sum, frozen [d] of type `kind`; of one term the term itself."""
        self._add_waiting()
        weight, out = self.weight, empty(self._coarse.size, kind)
        total = np.empty(min(BLOCK, out.size))
        for start in range(0, out.size, BLOCK):
            coarse, fine = self._coarse[start : start + BLOCK], self._fine[start : start + BLOCK]
            block = total[: coarse.size]
            np.add(coarse, fine, out=block)  # one rounding of the exact sum, wherever the words divide it
            block /= weight
            out[start : start + BLOCK] = block
        return frozen(out)


def _split(term: Words, into: Words, part: Words, magic: float) -> None:
    """Move what `term` has of whole multiples into `into`; the rest stays."""
    np.add(term, magic, out=part)
    part -= magic
    into += part
    term -= part
