"""The weighted mean as an aggregation: one exact sum per vector, whatever the number of clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.federated.base import Aggregate, Vectors
from fedgossip.algorithms.federated.sums import ExactSum, NotSummableError, mean_of
from fedgossip.core.machine import NodeId


class MeanOf:
    """sum_k w_k v_k / sum_k w_k, the same bits for every order of arrival."""

    def __init__(self, vectors: int, kind: np.dtype[np.floating]) -> None:
        self._sums: list[ExactSum] = [ExactSum() for _ in range(vectors)]
        self._kind = kind
        self._steps: list[tuple[float, float]] = []

    def add(self, node: NodeId, weight: float, vectors: Vectors, steps: float) -> None:  # noqa: ARG002
        """Add a contribution.  Raises NotSummableError, and adds nothing, where a sum of it would not be finite."""
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
