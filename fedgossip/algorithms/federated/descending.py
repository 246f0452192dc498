"""A descent as the server's rule: a step along the mean gradient of the workers, with the rate of the round.

It is the reduce of MapReduce; with `Gradient` at the workers and `Mean` between them, a round is one of all-reduce.

Source: Dean and Ghemawat, MapReduce: simplified data processing on large clusters, OSDI 2004; of gradients: Chu, Kim,
Lin and others, Map-reduce for machine learning on multicore, NeurIPS 2006.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from fedgossip.algorithms.descent.base import Descent, State
from fedgossip.algorithms.federated.base import Aggregate, Vectors
from fedgossip.base.vectors import Vector


@dataclass(frozen=True)
class DescentServer(Generic[State]):
    """The server: x <- step(x, mean gradient, rate(round)); its state is that of the descent."""

    descent: Descent[State]
    rate: Callable[[int], float]

    def start(self, x: Vector) -> State:
        return self.descent.start(x)

    def broadcast(self, state: State) -> Vectors:
        return (state.x,)

    def step(self, state: State, aggregate: Aggregate) -> State:
        return self.descent.step(state, aggregate.vectors[0], self.rate(aggregate.round))
