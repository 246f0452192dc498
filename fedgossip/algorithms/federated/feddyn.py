"""FedDyn (Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, ICLR 2021), algorithm 1:

    client k    w_k ~ argmin F_k(w) - <g_k, w> + (alpha / 2) ||w - x||^2          g_k: 0 at first
                g_k <- g_k - alpha (w_k - x)
    server      h <- h - alpha (|S| / m) mean (w_k - x)                           m clients in all, S the cohort
                x <- mean w_k - h / alpha

Where all clients are at rest g_k is the gradient of F_k there and their mean is 0: the fixed point is the minimum of
the mean of all F_k, however unlike they are.  Each step's gradient gets alpha (w - x) - g_k.

Where we differ: g_k changes only when the coordinator confirms that the contribution was counted, so that h stays alpha
times what the clients have moved; the penalty is exact, and the minimum is approached by the local steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgossip.algorithms.federated.base import Aggregate, Vectors, Work
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, frozen, linear
from fedgossip.core.machine import Terms


@dataclass(frozen=True)
class Dynamic:
    """The client; its memory is (-g_k,), or nothing while that is 0."""

    alpha: float

    vectors = 1
    gradient = False

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ConfigError(f"coordinator.options: alpha = {self.alpha!r}", "Give a number above 0: 0.1 or 0.01.")

    def weight(self, _examples: int) -> float:
        return 1.0

    def terms(self, _received: Vectors, memory: Vectors) -> Terms:
        return Terms(self.alpha, correction=memory[0] if memory else None)

    def upload(self, _received: Vectors, memory: Vectors, work: Work) -> tuple[Vectors, Vectors]:
        moved = linear((self.alpha, work.update)) if not memory else linear((1, memory[0]), (self.alpha, work.update))
        return (work.update,), (moved,)


@dataclass(frozen=True, eq=False)
class Dynamics:
    """The model x, and h, [d] each."""

    x: Vector
    h: Vector


@dataclass(frozen=True)
class DynamicServer:
    """The server of `clients` clients in all."""

    clients: int
    alpha: float

    def start(self, x: Vector) -> Dynamics:
        return Dynamics(x, frozen(np.zeros_like(x)))

    def broadcast(self, state: Dynamics) -> Vectors:
        return (state.x,)

    def step(self, state: Dynamics, aggregate: Aggregate) -> Dynamics:
        (moved,) = aggregate.vectors
        h = linear((1, state.h), (-self.alpha * aggregate.clients / self.clients, moved))
        return replace(state, x=linear((1, state.x), (1, moved), (-1 / self.alpha, h)), h=h)
