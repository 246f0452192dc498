"""FedNova (Wang, Liu, Liang, Joshi and Poor, NeurIPS 2020), equations 8 and 11:

    client    d_k = u_k / ||a_k||_1                        u_k: its update, of tau_k steps
    server    x <- x + tau_eff * sum_k p_k d_k             p_k = n_k / n,  tau_eff = sum_k p_k ||a_k||_1

    ||a||_1 = tau                                                  plain SGD
              (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)    with momentum rho

A client that takes ten times as many steps as the others does not pull the model towards its own optimum ten times as
hard.  Where all take the same number it is FedAvg, to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip.algorithms.federated.base import Aggregate, Vectors, Work
from fedgossip.algorithms.federated.fedavg import ServerModel
from fedgossip.base.vectors import Vector, linear
from fedgossip.core.machine import Terms


def accumulated(steps: float, momentum: float = 0.0) -> float:
    """Return ||a||_1: how many gradients' worth of change `steps` steps make, momentum starting at rest."""
    if momentum == 0.0:
        return steps
    left: float = momentum**steps
    return (steps - momentum * (1 - left) / (1 - momentum)) / (1 - momentum)


@dataclass(frozen=True)
class Normalised:
    """The client.  `momentum`: that of its training settings."""

    momentum: float = 0.0

    vectors = 1
    gradient = False

    def weight(self, examples: int) -> float:
        return float(examples)

    def effective(self, steps: int) -> float:
        """Return ||a_k||_1, whose weighted mean is tau_eff."""
        return accumulated(steps, self.momentum)

    def terms(self, _received: Vectors, _memory: Vectors) -> Terms:
        return Terms(momentum=self.momentum)

    def upload(self, _received: Vectors, memory: Vectors, work: Work) -> tuple[Vectors, Vectors]:
        return (linear((1 / self.effective(work.steps), work.update)),), memory


@dataclass(frozen=True)
class Nova:
    """The server: x <- x + lr * tau_eff * mean d; tau_eff is the mean of the clients' effective steps."""

    lr: float = 1.0

    def start(self, x: Vector) -> ServerModel:
        return ServerModel(x)

    def broadcast(self, state: ServerModel) -> Vectors:
        return (state.x,)

    def step(self, state: ServerModel, aggregate: Aggregate) -> ServerModel:
        return ServerModel(linear((1, state.x), (self.lr * aggregate.steps, aggregate.vectors[0])))
