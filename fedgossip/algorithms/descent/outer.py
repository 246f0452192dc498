"""The outer step as a descent: workers train alone for a round, and the displacements are averaged.

With a collective between workers it is DiLoCo by all-reduce (Douillard and others, 2023); the step is that of
`algorithms.gossip.outer`, so the bits are those of FedAvgM's server where the means have the same.

A descent of models with running statistics: it steps with the parameters; the others are the mean of the workers.

Workers bring updates of parameters and statistics as they are (`protocols/allreduce/worker_state`); see
`algorithms/gossip/running_statistics`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedgossip.algorithms.descent.base import Descent, DescentState, zeros
from fedgossip.algorithms.gossip.outer import OuterStep
from fedgossip.algorithms.gossip.running_statistics import cleared, joined
from fedgossip.base.vectors import Vector


@dataclass(frozen=True, slots=True, eq=False)
class OuterState(DescentState):
    v: Vector
    """The outer momentum, a displacement."""


@dataclass(frozen=True)
class OuterDescent:
    """In place of a gradient it is given the mean change that local training made; the rate is the outer step's own."""

    outer: OuterStep
    elementwise = True

    def start(self, x: Vector) -> OuterState:
        return OuterState(x, zeros(x))

    def step(self, state: OuterState, gradient: Vector, rate: float) -> OuterState:  # noqa: ARG002
        return OuterState(*self.outer.taken(state.x, state.v, gradient))


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
