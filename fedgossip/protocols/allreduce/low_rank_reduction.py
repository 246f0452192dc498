"""One round of low-rank gradients at one rank: two sums by the collective's table, one after the other.

It takes the place of a `Reduction`.  Chunks of the second sum continue the bucket numbers and element places of the
first; one received before this rank has completed the first sum is kept.
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
    """Invariant: the second sum begins when the first is done, and this rank's own vector is given."""

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
        """The element type of chunks."""
        return self._low.layout.dtype

    @property
    def begun(self) -> bool:
        return self._sums[0].begun

    @property
    def done(self) -> bool:
        return self._sums[1].done

    @property
    def starts(self) -> Sequence[int]:
        """Empty: all buckets are sent together."""
        return []

    @property
    def mean(self) -> Vector:
        """All P, the uncompressed part with its tail, and all Q; frozen, the same bits at every rank."""
        assert self.done and self._left is not None
        first, second = (one.mean for one in self._sums)
        return frozen(np.concatenate([self._left, first[self._left.size :], second[:-1]]))

    def bears(self, weight: float, *pieces: Vector) -> bool:
        """Return whether the rank's own vector can be added to others of its size."""
        return self._sums[0].bears(weight, *pieces[:2])

    def give(self, start: int, weight: float, *pieces: Vector) -> list[Chunk]:
        """Give this rank's part: of the first sum, its tail, and the vector [d] that the second is computed from."""
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
        """Return chunks of the second sum under the names of their messages."""
        return [replace(one, bucket=one.bucket + self._buckets, start=one.start + self._elements) for one in chunks]

    def _of(self, bucket: int) -> tuple[Reduction, int]:
        """Return the sum of a bucket, and the bucket's number there."""
        return (self._sums[0], bucket) if bucket < self._buckets else (self._sums[1], bucket - self._buckets)

    def expects(self, sender: int, bucket: int, step: int) -> tuple[int, int] | None:
        """Return (start, stop) of the elements in a chunk of this name; None where there is no such chunk."""
        of, number = self._of(bucket)
        found = of.expects(sender, number, step)
        behind = 0 if of is self._sums[0] else self._elements
        return found and (found[0] + behind, found[1] + behind)

    def has(self, sender: int, bucket: int, step: int) -> bool:
        """Return whether such a chunk was received before."""
        of, number = self._of(bucket)
        return of.has(sender, number, step)

    def fits(self, bucket: int, weight: float, vector: Vector) -> bool:
        """Return whether a chunk's numbers can be added."""
        of, number = self._of(bucket)
        return of.fits(number, weight, vector)

    def take(self, sender: int, bucket: int, step: int, weight: float, vector: Vector) -> list[Chunk]:
        """Take a chunk that is expected, new and fits; return the chunks to send now."""
        of, number = self._of(bucket)
        out = of.take(sender, number, step, weight, vector)
        return [*out, *self._go_on()] if of is self._sums[0] else self._behind(out)

    def awaited(self) -> Mapping[int, int]:
        """Return the awaited ranks, each with the number of buckets that wait for it."""
        return (self._sums[1] if self._sums[0].done else self._sums[0]).awaited()
