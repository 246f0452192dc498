"""Gradients of low rank (`algorithms.codecs.low_rank`): how the rounds of a run add up, what a worker brings, and
leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.codecs.low_rank import LowRank
from fedgossip.algorithms.collectives.table import Table
from fedgossip.base.vectors import Vector, add, frozen, subtract, summable
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import TAIL
from fedgossip.protocols.allreduce.coded_gradients import CodecMemory
from fedgossip.protocols.allreduce.low_rank_reduction import LowRankReduction
from fedgossip.protocols.allreduce.round_sums import Contribution, weight_of


@dataclass(frozen=True)
class LowRankSums:
    """Values, the same at all workers.  `bucket`: elements of a bucket."""

    collective: Callable[[int], Table]
    low: LowRank
    bucket: int

    def length(self, round: int) -> int:  # noqa: ARG002
        return self.low.first_length

    def of(self, rank: int, workers: int, round: int) -> LowRankReduction:  # noqa: ARG002
        return LowRankReduction(rank, self.collective(workers), self.low, self.bucket)

    def gradient(self, found: Vector, round: int) -> Vector:  # noqa: ARG002
        """The mean gradient [d] of what a round came to: all P, what went as it is with its tail, and all Q."""
        return self.low.restored(*self._apart(found))

    def right(self, found: Vector) -> Vector:
        """Return the Q that the next round begins with."""
        return self.low.upright(self._apart(found)[2])

    def _apart(self, found: Vector) -> tuple[Vector, Vector, Vector]:
        left, first = self.low.left_length, self.low.first_length
        return found[:left], found[left:first], found[first + TAIL :]


class LowRankGradients(CodecMemory):
    """One worker's gradients by low rank.  `memory` is what was left out [d], and the last Q.

    What is left out is what the workers' mean, as it came out, does not say of the worker's own.
    """

    def __init__(self, node: NodeId, sums: LowRankSums) -> None:
        low = sums.low
        super().__init__(node, (frozen(np.zeros(low.layout.length, low.layout.dtype)), low.start()))
        self._sums = sums
        self._whole = self.memory[0]

    def coded(
        self, gradient: Vector | None, examples: int, metrics: Mapping[str, float], round: int
    ) -> Contribution | None:
        """Return what goes out for the gradient of a round; None of one that no sum can hold."""
        assert gradient is not None, "a gradient was asked for"
        whole = add(gradient, self.memory[0])
        if not summable(whole):
            return None
        self._round, self._next, self._whole = round, self.memory, whole
        tail = frozen(np.array([metrics.get("loss", 0.0), 1.0], whole.dtype))
        return weight_of(examples, metrics), (self._sums.low.first(whole, self.memory[1]), tail, whole)

    def came(self, found: Vector) -> None:
        """The sums of the round, in which this worker's own is, came to this."""
        self._next = (subtract(self._whole, self._sums.gradient(found, self._round)), self._sums.right(found))
