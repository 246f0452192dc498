"""One round of gradients of low rank at one rank: two sums by the collective's table, one after the other.

It stands where a `Reduction` does.  Chunks of the second sum have the numbers of buckets, and the places of elements,
behind those of the first; one that comes before this rank has the first sum is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedgossip.algorithms.codecs.low_rank import LowRank
from fedgossip.algorithms.collectives.table import Table
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.messages import TAIL
from fedgossip.protocols.allreduce.reduction import Chunk, Reduction


class LowRankReduction:
    """Invariant: the second sum begins when the first is done, and this rank's own vector is known."""

    def __init__(self, rank: int, table: Table, low: LowRank, bucket: int) -> None:
        kind, first, second = low.layout.dtype, low.first_length + TAIL, low.second_length + 1
        self._low = low
        self._sums = Reduction(rank, table, first, kind, bucket), Reduction(rank, table, second, kind, bucket)
        self._buckets, self._elements = -(-first // bucket), first
        self._own: tuple[float, Vector] | None = None
        self._left: Vector | None = None

    @property
    def summed(self) -> int:
        return sum(one.summed for one in self._sums)

    @property
    def kind(self) -> np.dtype[np.floating]:
        """The type of what chunks hold."""
        return self._low.layout.dtype

    @property
    def begun(self) -> bool:
        return self._sums[0].begun

    @property
    def done(self) -> bool:
        return self._sums[1].done

    @property
    def starts(self) -> Sequence[int]:
        """No bucket leaves before the others."""
        return []

    @property
    def mean(self) -> Vector:
        """All P, what went as it is with its tail, and all Q; frozen, the same bits at every rank."""
        assert self.done and self._left is not None
        first, second = (one.mean for one in self._sums)
        return frozen(np.concatenate([self._left, first[self._left.size :], second[:-1]]))

    def bears(self, weight: float, *pieces: Vector) -> bool:
        """Whether the rank's own vector can be added to others of its size."""
        return self._sums[0].bears(weight, *pieces[:2])

    def give(self, start: int, weight: float, *pieces: Vector) -> list[Chunk]:
        """Give what this rank brings: to the first sum, its tail, and the vector [d] that the second is made of."""
        if self.begun or start:
            return []
        first, tail, vector = pieces
        self._own = weight, vector
        return [*self._sums[0].give(0, weight, first, tail), *self._go_on()]

    def _go_on(self) -> list[Chunk]:
        if self._left is not None or self._own is None or not self._sums[0].done:
            return []
        weight, vector = self._own
        self._left = self._low.left(self._sums[0].mean)
        one = frozen(np.ones(1, self.kind))
        return self._behind(self._sums[1].give(0, weight, self._low.second(vector, self._left), one))

    def _behind(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Return chunks of the second sum by the names that they travel by."""
        return [replace(one, bucket=one.bucket + self._buckets, start=one.start + self._elements) for one in chunks]

    def _of(self, bucket: int) -> tuple[Reduction, int]:
        """Return which sum a bucket is of, and its number there."""
        return (self._sums[0], bucket) if bucket < self._buckets else (self._sums[1], bucket - self._buckets)

    def expects(self, sender: int, bucket: int, step: int) -> tuple[int, int] | None:
        """Return (start, stop) of the elements that a chunk of this name brings; None where there is no such chunk."""
        of, number = self._of(bucket)
        found = of.expects(sender, number, step)
        behind = 0 if of is self._sums[0] else self._elements
        return found and (found[0] + behind, found[1] + behind)

    def has(self, sender: int, bucket: int, step: int) -> bool:
        """Whether such a chunk has come before."""
        of, number = self._of(bucket)
        return of.has(sender, number, step)

    def fits(self, bucket: int, weight: float, vector: Vector) -> bool:
        """Whether a chunk's numbers can be added."""
        of, number = self._of(bucket)
        return of.fits(number, weight, vector)

    def take(self, sender: int, bucket: int, step: int, weight: float, vector: Vector) -> list[Chunk]:
        """Take a chunk that is expected, new and fits; return what goes out now."""
        of, number = self._of(bucket)
        out = of.take(sender, number, step, weight, vector)
        return [*out, *self._go_on()] if of is self._sums[0] else self._behind(out)

    def awaited(self) -> Mapping[int, int]:
        """The ranks that are waited for, each with the number of buckets that stand still for it."""
        return (self._sums[1] if self._sums[0].done else self._sums[0]).awaited()
