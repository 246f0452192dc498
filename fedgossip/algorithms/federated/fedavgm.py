"""FedAvgM (Hsu, Qi and Brown, Measuring the effects of non-identical data distribution, 2019):

    v <- beta v + mean update          x <- x + eta v

The server's momentum evens out rounds whose cohorts want different things.  beta = 0 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.federated.base import Aggregate, Vectors
from fedgossip.vectors import Vector, frozen, linear


@dataclass(frozen=True, eq=False)
class Moving:
    """The model and its velocity, [d] each."""

    x: Vector
    v: Vector


@dataclass(frozen=True)
class Momentum:
    """The server: v <- beta v + mean update, x <- x + lr v."""

    lr: float = 1.0
    beta: float = 0.9

    def start(self, x: Vector) -> Moving:
        return Moving(x, frozen(np.zeros_like(x)))

    def broadcast(self, state: Moving) -> Vectors:
        return (state.x,)

    def step(self, state: Moving, aggregate: Aggregate) -> Moving:
        v = linear((self.beta, state.v), (1, aggregate.vectors[0]))
        return Moving(linear((1, state.x), (self.lr, v)), v)
