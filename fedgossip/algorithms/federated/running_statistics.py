"""A federated algorithm for models with running statistics: it handles the parameters; statistics are averaged.

    client    parameters: its rule, applied to the update        statistics: the trained ones, unchanged
    mean      both; a robust rule applies to parameters, with the median of each element for statistics
    server    parameters: its step                               statistics: the mean

The algorithm's other vectors are 0 for statistics (`algorithms/gossip/running_statistics`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from fedgossip.algorithms.federated.base import (
    Accumulator,
    Aggregate,
    Aggregation,
    ClientRule,
    Federated,
    ServerRule,
    Vectors,
    Work,
    effective_steps,
)
from fedgossip.algorithms.federated.robust_aggregation import ByRule, median
from fedgossip.algorithms.federated.sums import Mean, NotSummableError
from fedgossip.algorithms.gossip.running_statistics import cleared, counted, joined
from fedgossip.base.vectors import Vector, frozen, summable
from fedgossip.core.machine import NodeId, Terms


@dataclass(frozen=True)
class StatisticsClient:
    """A client of vectors with `parameters` leading parameters: its rule applies to these."""

    rule: ClientRule
    parameters: int

    @property
    def vectors(self) -> int:
        return self.rule.vectors

    @property
    def gradient(self) -> bool:
        return self.rule.gradient

    def weight(self, examples: int) -> float:
        return self.rule.weight(examples)

    def effective(self, steps: int) -> float:
        return effective_steps(self.rule, steps)

    def terms(self, received: Vectors, memory: Vectors) -> Terms:
        return self.rule.terms(received, memory)

    def upload(self, received: Vectors, memory: Vectors, work: Work) -> tuple[Vectors, Vectors]:
        moved = replace(work, update=cleared(work.update, self.parameters))
        (first, *others), kept = self.rule.upload(received, memory, moved)
        return (joined(first, counted(received[0], work.update, self.parameters)), *others), kept


class KeptApart:
    """Contributions combined by a rule for parameters, and by the median for statistics."""

    def __init__(self, parameters: int, rule: Accumulator, middle: Accumulator) -> None:
        self._parameters, self._rule, self._middle = parameters, rule, middle

    def add(self, node: NodeId, weight: float, vectors: Vectors, steps: float) -> None:
        """Store a contribution.  Raises NotSummableError if a sum with it would not be finite."""
        if not all(map(summable, vectors)):
            raise NotSummableError
        self._rule.add(node, weight, tuple(one[: self._parameters] for one in vectors), steps)
        self._middle.add(node, weight, tuple(one[self._parameters :] for one in vectors), steps)

    def aggregate(self) -> Aggregate:
        found, behind = self._rule.aggregate(), self._middle.aggregate()
        pairs = zip(found.vectors, behind.vectors, strict=True)
        return replace(found, vectors=tuple(frozen(np.concatenate(pair)) for pair in pairs))


@dataclass(frozen=True)
class StatisticsByMedian:
    """A rule that sees all contributions, applied to parameters alone."""

    rule: Aggregation
    parameters: int
    middle: Aggregation = field(default_factory=partial(ByRule, median))
    """The rule for statistics."""

    @property
    def least(self) -> int:
        return self.rule.least

    def accumulator(self, vectors: int, length: int, kind: np.dtype[np.floating]) -> KeptApart:
        first = self.rule.accumulator(vectors, self.parameters, kind)
        return KeptApart(self.parameters, first, self.middle.accumulator(vectors, length - self.parameters, kind))


@dataclass(frozen=True)
class StatisticsServer:
    """A server with a rule for the parameters; statistics are the aggregate's."""

    rule: ServerRule[Any]
    parameters: int

    def start(self, x: Vector) -> Any:
        return self.rule.start(x)

    def broadcast(self, state: Any) -> Vectors:
        return self.rule.broadcast(state)

    def step(self, state: Any, aggregate: Aggregate) -> Any:
        first, *others = aggregate.vectors
        moved = replace(aggregate, vectors=(cleared(first, self.parameters), *others))
        after = self.rule.step(state, moved)
        return replace(after, x=joined(after.x, first[self.parameters :]))


def with_statistics(algorithm: Federated[Any], parameters: int, length: int) -> Federated[Any]:
    """Return the algorithm for vectors [length] with `parameters` parameters; unchanged if all are."""
    if parameters == length or isinstance(algorithm.clients, StatisticsClient):
        return algorithm
    plain = isinstance(algorithm.aggregation, Mean)
    return Federated(
        StatisticsClient(algorithm.clients, parameters),
        algorithm.aggregation if plain else StatisticsByMedian(algorithm.aggregation, parameters),
        StatisticsServer(algorithm.server, parameters),
    )
