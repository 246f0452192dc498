"""Low-rank gradients (`algorithms.codecs.low_rank`): the sums of a round, a worker's contribution and error memory."""

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
        """Return the mean gradient [d] of a round's result: all P, the uncompressed part with its tail, and all Q."""
        return self.low.restored(*self._apart(found))

    def right(self, found: Vector) -> Vector:
        """Return the first Q of the next round."""
        return self.low.upright(self._apart(found)[2])

    def _apart(self, found: Vector) -> tuple[Vector, Vector, Vector]:
        left, first = self.low.left_length, self.low.first_length
        return found[:left], found[left:first], found[first + TAIL :]


class LowRankGradients(CodecMemory):
    """One worker's low-rank gradients.  `memory` is the error [d], and the last Q.

    The error is the difference between the worker's own vector and the decoded mean.
    """

    def __init__(self, node: NodeId, sums: LowRankSums) -> None:
        low = sums.low
        super().__init__(node, (frozen(np.zeros(low.layout.length, low.layout.dtype)), low.start()))
        self._sums = sums
        self._whole = self.memory[0]

    def coded(
        self, gradient: Vector | None, examples: int, metrics: Mapping[str, float], round: int
    ) -> Contribution | None:
        """Return the contribution of a round's gradient; None if no sum can hold it."""
        assert gradient is not None, "a gradient was asked for"
        whole = add(gradient, self.memory[0])
        if not summable(whole):
            return None
        self._round, self._next, self._whole = round, self.memory, whole
        tail = frozen(np.array([metrics.get("loss", 0.0), 1.0], whole.dtype))
        return weight_of(examples, metrics), (self._sums.low.first(whole, self.memory[1]), tail, whole)

    def take_result(self, found: Vector) -> None:
        """Update the memory by the result of a round with this worker's contribution."""
        self._next = (subtract(self._whole, self._sums.gradient(found, self._round)), self._sums.right(found))
