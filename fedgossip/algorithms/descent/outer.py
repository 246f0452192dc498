"""The outer step as a descent: workers train alone for a round, and the displacements are averaged.

With a collective between workers it is DiLoCo by all-reduce (Douillard and others, 2023); the step is that of
`algorithms.gossip.outer`, so the bits are those of FedAvgM's server where the means have the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip.algorithms.descent.base import DescentState, zeros
from fedgossip.algorithms.gossip.outer import OuterStep
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
