"""What one round of all-reduce adds up, and how: gradients as they are, or as a codec says them.

    of       the sum of a round at one rank: a `Reduction`, or a `PayloadGather`
    brings   what a worker gives to it
    gradient the mean gradient [d], of what it comes to

Codecs whose payloads can be added are reduced by the collective's own table, of fewer elements; the payloads of others
go to all, are decoded by each in the same order, and added up then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, LinearCodec, Payload, VectorLayout, of_bytes
from fedgossip.algorithms.collectives.table import Table
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.messages import TAIL
from fedgossip.protocols.allreduce.low_rank_reduction import LowRankReduction
from fedgossip.protocols.allreduce.payload_gather import PayloadGather
from fedgossip.protocols.allreduce.reduction import Reduction

Contribution = tuple[float, tuple[Vector, ...]]
"""What a worker brings to the mean: its weight, and the pieces of a vector, one after the other."""

RoundSum = Reduction | PayloadGather | LowRankReduction


class RoundSums(Protocol):
    """How the rounds of a run add up; a value, the same at all workers."""

    @property
    def collective(self) -> Callable[[int], Table]:
        """(workers) -> who sends what to whom."""
        ...

    def length(self, round: int) -> int:
        """Elements of what stands for a gradient in a round, without the TAIL."""
        ...

    def of(self, rank: int, workers: int, round: int) -> RoundSum:
        """Return the sum of a round at one rank, before it begins."""
        ...

    def gradient(self, found: Vector, round: int) -> Vector:
        """Return the mean gradient [d], of what the sum of a round came to, whose memory it may be."""
        ...


def weight_of(examples: int, metrics: Mapping[str, float]) -> float:
    """Return the number of examples that a gradient is of, where the task tells them, and not of all it has."""
    return float(max(1, metrics.get("rows", examples)))


def with_tail(weight: float, gradient: Vector, loss: float) -> Contribution:
    """Return what a worker brings where elements are added; the gradient is not copied."""
    return weight, (gradient, frozen(np.array([loss, 1.0], gradient.dtype)))


@dataclass(frozen=True)
class DenseSums:
    """Gradients as they are.  `bucket`: elements of a bucket."""

    collective: Callable[[int], Table]
    elements: int
    kind: np.dtype[np.floating]
    bucket: int

    def length(self, round: int) -> int:  # noqa: ARG002
        return self.elements

    def of(self, rank: int, workers: int, round: int) -> Reduction:  # noqa: ARG002
        return Reduction(rank, self.collective(workers), self.elements + TAIL, self.kind, self.bucket)

    def gradient(self, found: Vector, round: int) -> Vector:  # noqa: ARG002
        return found[:-TAIL]


@dataclass(frozen=True)
class ReducedSums:
    """The elements that a linear codec sends, by the collective's own table."""

    collective: Callable[[int], Table]
    codec: LinearCodec
    layout: VectorLayout
    seed: int
    bucket: int

    def length(self, round: int) -> int:  # noqa: ARG002
        return self.codec.elements(self.layout.length)

    def of(self, rank: int, workers: int, round: int) -> Reduction:
        return Reduction(rank, self.collective(workers), self.length(round) + TAIL, self.layout.dtype, self.bucket)

    def gradient(self, found: Vector, round: int) -> Vector:
        return self.codec.restored(found[:-TAIL], self.layout.length, CodecTurn(self.seed, 0, round))


@dataclass(frozen=True)
class GatheredSums:
    """Payloads, which a table of all-gather brings to all."""

    collective: Callable[[int], Table]
    codec: Codec
    layout: VectorLayout
    seed: int

    def length(self, round: int) -> int:  # noqa: ARG002
        return self.layout.length

    def of(self, rank: int, workers: int, round: int) -> PayloadGather:
        turn = CodecTurn(self.seed, 0, round)
        return PayloadGather(rank, self.collective(workers), self.codec, self.layout, turn)

    def gradient(self, found: Vector, round: int) -> Vector:  # noqa: ARG002
        return found


CodedSums = ReducedSums | GatheredSums


def sums_of(
    collective: Callable[[int], Table], codec: Codec, layout: VectorLayout, seed: int, bucket: int
) -> CodedSums:
    """Return how gradients add up that a codec says; `collective` gathers where it is not linear."""
    if isinstance(codec, LinearCodec):
        return ReducedSums(collective, codec, layout, seed, bucket)
    return GatheredSums(collective, codec, layout, seed)


def coded_contribution(sums: CodedSums, weight: float, payload: Payload, loss: float) -> Contribution:
    """Return what a worker brings whose gradient is said by a payload."""
    if isinstance(sums, ReducedSums):
        return with_tail(weight, frozen(of_bytes(payload, sums.layout.dtype)), loss)
    return weight, (frozen(payload),)
