"""FedAvgM (Hsu, Qi and Brown, Measuring the effects of non-identical data distribution, 2019):

    v <- beta v + mean update          x <- x + eta v

The server's momentum averages over rounds with different cohorts.  beta = 0 is FedAvg.  With Nesterov's form (`outer`)
it is DiLoCo's outer step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.federated.base import Aggregate, Vectors
from fedgossip.algorithms.gossip.outer import OuterStep
from fedgossip.base.vectors import Vector, frozen


@dataclass(frozen=True, eq=False)
class Moving:
    """The model and its velocity, [d] each."""

    x: Vector
    v: Vector


@dataclass(frozen=True)
class Momentum:
    """The server: the outer step along the mean update."""

    outer: OuterStep

    def start(self, x: Vector) -> Moving:
        return Moving(x, frozen(np.zeros_like(x)))

    def broadcast(self, state: Moving) -> Vectors:
        return (state.x,)

    def step(self, state: Moving, aggregate: Aggregate) -> Moving:
        return Moving(*self.outer.taken(state.x, state.v, aggregate.vectors[0]))
