"""Sums of vectors in order of arrival, with the same bits in any order, in memory independent of their number.

Each term is rounded once to whole multiples of GRID, and these are added as integers.  The secure sum does the same,
modulo 2^32 on a coarser grid.

    term  = weight * vector                 one rounding in float64, none for a weight below 2^29 and float32
    fine += term to the nearest GRID        multiples of 2^-45; a block of a term with elements above 2^5 has two parts:
        coarse += term to the nearest COARSE    multiples of 2^-16, the sum below 2^35
        fine   += the rest to the nearest GRID

A float64 between 2^k and 2^(k+1) has 64 bits that are an integer multiple of its last place plus a constant: adding a
number of the right size rounds a term to the grid.  The constants are subtracted at the end; overflows cancel, modulo
2^64.

So a float32 element of 2^-22 or more is summed exactly, and a smaller one to within 2^-46.

Source: pre-rounded reproducible sums, Demmel and Nguyen, Parallel reproducible summation, IEEE Trans. Computers 64
(2015), with a fixed grid, so that terms may arrive one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.federated.base import Aggregate, Vectors
from fedgossip.base.vectors import Vector, empty, frozen
from fedgossip.core.machine import NodeId

COARSE, GRID = 2.0**-16, 2.0**-45
WHOLE, CARRY = 2.0**5, 2.0**17
"""Largest element of a block that is added to the fine word whole, and maximum sum of such elements before a carry."""
BLOCK = 32768  # elements; the words, the term and its part stay in the second-level cache
REACH = 2.0**35
"""Upper bound of the weighted sum of the terms' largest elements."""

_TO_COARSE, _TO_GRID = 1.5 * 2.0**52 * COARSE, 1.5 * 2.0**52 * GRID
"""Adding one of these rounds to the nearest multiple, half to even."""
_COARSE_BITS, _GRID_BITS = np.array([_TO_COARSE, _TO_GRID]).view(np.int64).tolist()
_BITS = round(math.log2(COARSE / GRID))
"""COARSE is 2^29 GRID."""

Words = npt.NDArray[np.int64]
Room = npt.NDArray[np.float64]


def mean_of(weighted: Iterable[tuple[float, float]]) -> float:
    """Return the mean of (weight, number)s, with the same bits in any order; at least one.

    Raises ZeroDivisionError for none.
    """
    terms = list(weighted)
    return math.fsum(weight * number for weight, number in terms) / math.fsum(weight for weight, _ in terms)


class NotSummableError(ValueError):
    """A term that is not finite, or so large that a sum could lose a bit."""


class ExactSum:
    """sum_k weight_k * vector_k of vectors [d], 8 bytes per element; 16 if terms are large or many.

    A term is checked and added in one pass, and subtracted again if it is invalid, without loss.  The first term is
    stored at the end of the words' memory until another one arrives: the mean of one is itself.
    """

    _alone = ""  # an image of the release before has no word of it

    def __init__(self) -> None:
        self._fine: Words = np.empty(0, np.int64)  # [d] from the first term on
        self._alone = ""  # the type of the first term while it is the only one
        self._coarse: Words | None = None
        self._weights: list[float] = []
        self._reach = 0.0
        self._counted, self._reach_of_fine = 0, 0.0  # since the fine word was carried

    @property
    def weight(self) -> float:
        """The sum of the weights, rounded once."""
        return math.fsum(self._weights)

    def fits(self, weight: float, vector: Vector) -> bool:
        """Whether the term can be added: finite, and not so large that the sum could lose a bit."""
        blocks = (vector[start : start + BLOCK] for start in range(0, vector.size, BLOCK))
        return all(self._reach + weight * _peak(block) < REACH for block in blocks)  # not of a nan

    def add(self, weight: float, vector: Vector) -> None:
        """Add a vector [d] of weight above 0; its memory may be reused.

        Raises NotSummableError for one that does not fit; the sum is unchanged.
        """
        assert weight > 0
        if first := not self._weights:
            self._fine = empty(vector.size, np.float64).view(np.int64)  # warm memory where there is some
        if self._alone and not self.fits(weight, vector):  # what is alone is kept as it is
            raise NotSummableError
        if self._reach_of_fine + WHOLE > CARRY:
            self._carry()
        most, room = 0.0, np.empty((2, min(BLOCK, self._fine.size)))
        for start in range(0, self._fine.size, BLOCK):
            block = vector[start : start + BLOCK]
            peak = weight * _peak(block)  # it is in the cache from here on
            if not self._reach + peak < REACH:
                if first:
                    self._fine = np.empty(0, np.int64)
                else:
                    self._take_back(weight, vector[:start], room)
                raise NotSummableError
            most = max(most, self._reach + peak)
            if first:
                self._lone(vector.dtype)[start : start + BLOCK] = block
                continue
            if self._alone:
                self._spread(start, room)
            self._fine[start : start + BLOCK] += self._bits(weight, block, peak, start, room)
        if not first:
            self._counted += 2 if self._alone else 1
        self._alone = vector.dtype.str if first else ""
        self._weights.append(weight)
        self._reach, self._reach_of_fine = most, self._reach_of_fine + WHOLE

    def _lone(self, kind: npt.DTypeLike) -> Vector:
        """Return the memory of the first term: the end of the words' memory, written in order."""
        return self._fine.view(kind)[-self._fine.size or None :]

    def _spread(self, start: int, room: Room) -> None:
        (weight,), block = self._weights, self._lone(self._alone)[start : start + BLOCK]
        peak = self._reach if self._reach < WHOLE else weight * _peak(block)
        self._fine[start : start + BLOCK] = self._bits(weight, block, peak, start, room)

    def _take_back(self, weight: float, vector: Vector, room: Room) -> None:
        for start in range(0, vector.size, BLOCK):
            block = vector[start : start + BLOCK]
            self._fine[start : start + BLOCK] -= self._bits(weight, block, weight * _peak(block), start, room, -1)

    def _bits(self, weight: float, block: Vector, peak: float, start: int, room: Room, times: int = 1) -> Words:
        """Return the fine word's part of a term's block; add the rest, `times` times, to the coarse word."""
        term, part = room[:, : block.size]
        term[...] = block
        if weight != 1:  # else the product is the term
            term *= weight
        if not peak < WHOLE:
            np.add(term, _TO_COARSE, out=part)
            coarse = self._coarse_word()[start : start + block.size]
            if times > 0:
                coarse += part.view(np.int64)
                coarse -= _COARSE_BITS
            else:
                coarse -= part.view(np.int64)
                coarse += _COARSE_BITS
            part -= _TO_COARSE
            term -= part
        term += _TO_GRID
        bits: Words = term.view(np.int64)
        return bits

    def _coarse_word(self) -> Words:
        if self._coarse is None:
            self._coarse = np.zeros(self._fine.size, np.int64)
        return self._coarse

    def _carry(self) -> None:
        """Carry into the coarse word until the fine word is between 0 and COARSE, without the constants."""
        word = self._coarse_word()
        for start in range(0, word.size, BLOCK):
            coarse, fine = word[start : start + BLOCK], self._fine[start : start + BLOCK]
            fine -= _wrapped(self._counted * _GRID_BITS)
            coarse += fine >> _BITS
            fine &= (1 << _BITS) - 1
        self._counted, self._reach_of_fine = 0, COARSE

    def mean(self, kind: np.dtype[np.floating]) -> Vector:
        """Return the weighted mean of the terms, frozen [d] of type `kind`, in the words' memory: the last call."""
        if self._alone:
            return frozen(self._lone(self._alone).astype(kind, copy=False))
        if self._coarse is not None:
            self._carry()
        out = self._fine.view(kind)[: self._fine.size]  # each block is read before something is written there
        weight, constants = self.weight, _wrapped(self._counted * _GRID_BITS)
        total, whole = np.empty((2, min(BLOCK, out.size)))
        grids = weight / GRID  # to the same bits: a power of two rounds nothing
        for start in range(0, out.size, BLOCK):
            t, w = total[: out[start : start + BLOCK].size], whole[: out[start : start + BLOCK].size]
            t[...] = np.subtract(self._fine[start : start + BLOCK], constants, out=w.view(np.int64))
            if self._coarse is None:
                t /= grids
            else:
                t *= GRID
                w[...] = self._coarse[start : start + BLOCK]
                w *= COARSE
                t += w  # one rounding of the exact sum
                t /= weight
            out[start : start + BLOCK] = t
        return frozen(out)


def _peak(block: Vector) -> float:
    """Return the largest absolute value of a block, nan included; 0 for an empty one."""
    return max(float(np.maximum.reduce(block)), -float(np.minimum.reduce(block))) if block.size else 0.0


def _wrapped(number: int) -> np.int64:
    return np.int64((number + 2**63) % 2**64 - 2**63)


class MeanOf:
    """sum_k w_k v_k / sum_k w_k, with the same bits in any order of arrival."""

    def __init__(self, vectors: int, kind: np.dtype[np.floating]) -> None:
        self._sums: list[ExactSum] = [ExactSum() for _ in range(vectors)]
        self._kind = kind
        self._steps: list[tuple[float, float]] = []

    def add(self, node: NodeId, weight: float, vectors: Vectors, steps: float) -> None:  # noqa: ARG002
        """Add a contribution.  Raises NotSummableError, and adds nothing, if a sum with it would not be finite."""
        terms = list(zip(self._sums, vectors, strict=True))
        if len(terms) > 1 and not all(total.fits(weight, vector) for total, vector in terms):  # all of them or none
            raise NotSummableError
        for total, vector in terms:
            total.add(weight, vector)
        self._steps.append((weight, steps))

    def aggregate(self) -> Aggregate:
        return Aggregate(tuple(total.mean(self._kind) for total in self._sums), len(self._steps), mean_of(self._steps))


@dataclass(frozen=True)
class Mean:
    """The aggregation of every algorithm that a secure sum can serve."""

    least = 1

    def accumulator(self, vectors: int, length: int, kind: np.dtype[np.floating]) -> MeanOf:  # noqa: ARG002
        return MeanOf(vectors, kind)
