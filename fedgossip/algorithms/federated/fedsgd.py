"""Federated SGD (McMahan et al. 2017): the clients send gradients, the server takes the step.

    client    g_k = grad F_k(x)                          one step on all of its examples: B = infinity, E = 1
    server    x <- x - eta * sum_k (n_k / n) g_k

With eta the clients' learning rate it is FedAvg with one local step, to rounding.  Where a client has several batches
in a round, g_k is the mean of their gradients, all at x.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip.algorithms.federated.base import Aggregate, Vectors, Work
from fedgossip.algorithms.federated.fedavg import ServerModel
from fedgossip.base.vectors import Vector, linear
from fedgossip.core.machine import Terms


@dataclass(frozen=True)
class Gradient:
    """The client: g_k, of the model's length."""

    vectors = 1
    gradient = True

    def weight(self, examples: int) -> float:
        return float(examples)

    def terms(self, _received: Vectors, _memory: Vectors) -> Terms:
        return Terms()

    def upload(self, _received: Vectors, memory: Vectors, work: Work) -> tuple[Vectors, Vectors]:
        return (work.update,), memory


@dataclass(frozen=True)
class GradientServer:
    """The server: x <- x - lr * mean gradient."""

    lr: float = 0.1

    def start(self, x: Vector) -> ServerModel:
        return ServerModel(x)

    def broadcast(self, state: ServerModel) -> Vectors:
        return (state.x,)

    def step(self, state: ServerModel, aggregate: Aggregate) -> ServerModel:
        return ServerModel(linear((1, state.x), (-self.lr, aggregate.vectors[0])))
