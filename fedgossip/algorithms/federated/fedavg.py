"""Federated averaging (McMahan, Moore, Ramage, Hampson and Aguera y Arcas, AISTATS 2017), algorithm 1:

    server    x <- x + eta * sum_k (n_k / n) u_k        n_k: client k's examples, n their sum over the cohort
    client    u_k = ClientUpdate(x) - x                  E passes over its examples, in batches of B

eta = 1 is the paper's: the mean of the clients' models.  With one client it is that client's own SGD, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip.algorithms.federated.base import Aggregate, Vectors, Work
from fedgossip.base.vectors import Vector, linear
from fedgossip.core.machine import Terms


@dataclass(frozen=True)
class Training:
    """The client: plain local training; with `mu` it is pulled back to what it received, see `fedprox`."""

    mu: float = 0.0
    weighting: str = "examples"
    """"examples": a client counts as many times as it has examples; "clients": all count the same."""

    vectors = 1
    gradient = False

    def weight(self, examples: int) -> float:
        return float(examples) if self.weighting == "examples" else 1.0

    def terms(self, _received: Vectors, _memory: Vectors) -> Terms:
        return Terms(self.mu)

    def upload(self, _received: Vectors, memory: Vectors, work: Work) -> tuple[Vectors, Vectors]:
        return (work.update,), memory


@dataclass(frozen=True, eq=False)
class ServerModel:
    """The state of a server that remembers nothing but the model, [d]."""

    x: Vector


@dataclass(frozen=True)
class ServerSgd:
    """The server: x <- x + lr * mean update."""

    lr: float = 1.0

    def start(self, x: Vector) -> ServerModel:
        return ServerModel(x)

    def broadcast(self, state: ServerModel) -> Vectors:
        return (state.x,)

    def step(self, state: ServerModel, aggregate: Aggregate) -> ServerModel:
        return ServerModel(linear((1, state.x), (self.lr, aggregate.vectors[0])))
