"""Private gossip: a node learns the weighted sum of its neighbours' models, and nothing about single ones.

    v sends to j       Q(w_jv x_v) + masks              Q(x) = round(x / unit), an integer modulo 2^32
    masks              + PRG(k_uv) for each other sender u > v to j, - for each u < v: they cancel in the sum over S_j
    j                  x_j  <-  x_j + unit (sum of received - sum over its neighbours v of Q(w_jv x_j))

The change over an edge is Q(w x_v) - Q(w x_j) in j, and its exact opposite in v: no rounding of the integers moves the
mean, and equal models stay equal.  A model beyond the bound is refused, not clipped: a clipped one is another model.

The keys k are of one pair of senders, one receiver and one round, and each masks one vector.  A sum with a missing
vector stays masked: it is noise, and the words after the model detect this (`opened`).

Source: pairwise masks, Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017,
section 4; without their second mask and shares, which serve a coordinator that retries.  Here no peer does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import BLOCK, RowGroups, Vector, empty, frozen
from fedgossip.core.messages import CHECK_WORDS
from fedgossip.secure.primitives import keystream
from fedgossip.secure.ring import Words

BITS = 30
"""Bits of a number with its sign.  A row's weights sum to one, so a sum over any number of neighbours has the bound of
one, and the difference of two such sums still fits into 32 bits."""

LIMIT = (1 << (BITS - 1)) - 1


@dataclass(frozen=True)
class Grid:
    """Numbers from -bound to bound as integers; the same for all peers.  Raises ConfigError."""

    bound: float

    def __post_init__(self) -> None:
        if not 0 < self.bound < math.inf:
            raise ConfigError(f"algorithm.bound = {self.bound}", "Set it above the largest weight of any model.")

    @property
    def unit(self) -> float:
        """Return the value of the integer 1; for numbers above bound / 64 finer than the step of float32."""
        return self.bound / LIMIT

    def beyond(self, vector: Vector) -> float | None:
        """Return a vector's largest magnitude if beyond the bound or not finite; None for a vector within it."""
        largest = max(abs(float(vector.max())), abs(float(vector.min())))
        return None if largest <= self.bound else largest  # both comparisons fail for nan

    def whole(self, vector: Vector, weight: float) -> Words:
        """Return Q(weight * vector), [d], a new array.  The vector is within the bound, the weight in [0, 1]."""
        out = words_of(vector.size)
        signed, scale = out.view(np.int32), self._scale(weight)
        rounded = np.empty(min(BLOCK, vector.size), np.float64)
        for start in range(0, vector.size, BLOCK):
            block = vector[start : start + BLOCK]
            numbers = rounded[: block.size]
            np.multiply(block, scale, out=numbers, dtype=np.float64)
            np.rint(numbers, out=numbers)
            signed[start : start + BLOCK] = numbers
        return out

    def possible(self, come: Words, senders: int) -> bool:
        """Return whether so many neighbours with models within the bound can have sent this sum: weights are at most 1
        together, and each rounds by half a unit.
        """
        signed, most = come.view(np.int32), LIMIT + senders
        return int(signed.max()) <= most and -int(signed.min()) <= most

    def moved(self, vector: Vector, come: Words, gone: Words) -> Vector:
        """Return vector + unit * (come - gone), the difference centred about 0; a new frozen vector."""
        out = empty(vector.size, vector.dtype)
        difference, sums = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.float64)
        for start in range(0, vector.size, BLOCK):
            here, block = slice(start, start + BLOCK), vector[start : start + BLOCK]
            by, numbers = difference[: block.size], sums[: block.size]
            np.subtract(come[here], gone[here], out=by)
            np.multiply(by.view(np.int32), self.unit, out=numbers)
            np.add(numbers, block, out=numbers)
            out[here] = numbers
        return frozen(out)

    def moved_rows(self, groups: RowGroups, stacked: Vector, out: Vector) -> None:
        """Write the round's result for all nodes at once: the bits of `whole` and `moved`.  [n, d], two arrays."""
        n, d = stacked.shape
        width = max(64, min(d, (1 << 18) // n))
        for start in range(0, d, width):
            block = stacked[:, start : start + width].astype(np.float64)
            for nodes, ids, weights in groups:
                own = block[nodes]
                by = np.zeros_like(own)  # whole numbers below 2^53: any order gives these bits
                for others, weight in zip(ids.T, weights.T, strict=True):
                    scale = np.where(others == nodes, 0.0, self._scale(weight))[:, None]
                    by += np.rint(block[others] * scale)
                    by -= np.rint(own * scale)
                by *= self.unit
                by += own
                out[nodes, start : start + width] = by

    def _scale(self, weight: float | npt.NDArray[np.float64]) -> float | npt.NDArray[np.float64]:
        return weight * (LIMIT / self.bound)


def words_of(length: int) -> Words:
    """Return uninitialised words, in warm memory if available."""
    return empty(length, np.uint32).view(np.uint32)


def masked(whole: Words, added: Iterable[bytes], subtracted: Iterable[bytes]) -> Words:
    """Return the words to send, [d + CHECK_WORDS]: the integers and a sender count of 1, under a stream of each key."""
    total = words_of(whole.size + CHECK_WORDS)
    streams = [(keystream(key), np.add) for key in added] + [(keystream(key), np.subtract) for key in subtracted]
    zeros, buffer = memoryview(bytes(4 * BLOCK)), np.empty(BLOCK, "<u4")
    for start in range(0, total.size, BLOCK):  # a block passes through memory once for all streams
        block, part = total[start : start + BLOCK], whole[start : start + BLOCK]
        block[: part.size] = part
        block[part.size :] = 1
        mask = buffer[: block.size]
        for stream, operation in streams:
            stream.update_into(zeros[: mask.nbytes], mask.view(np.uint8).data)
            operation(block, mask, out=block)
    return total


def opened(total: Words, senders: int) -> Words | None:
    """Return the sum, [d], a view; None where masks are left in it: noise passes with a chance of 2^-128."""
    length = total.size - CHECK_WORDS
    return total[:length] if bool((total[length:] == senders).all()) else None
