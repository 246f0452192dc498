"""A descent of models with running statistics: it steps with the parameters; the others are the mean of the workers.

Workers bring updates of parameters and statistics as they are (`protocols/allreduce/worker_state`); see
`algorithms/gossip/running_statistics`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedgossip.algorithms.descent.base import Descent
from fedgossip.algorithms.gossip.running_statistics import cleared, joined
from fedgossip.base.vectors import Vector


@dataclass(frozen=True)
class StatisticsDescent:
    """`statistics`: elements at the end of a vector."""

    descent: Descent[Any]
    statistics: int
    elementwise = False

    def start(self, x: Vector) -> Any:
        return self.descent.start(x)

    def step(self, state: Any, gradient: Vector, rate: float) -> Any:
        parameters = gradient.size - self.statistics
        after = self.descent.step(state, cleared(gradient, parameters), rate)
        return replace(after, x=joined(after.x, gradient[parameters:]))
