"""Federated averaging, and methods that average another vector: FedProx, FedBuff, FedNova and FedSGD.

Federated averaging (McMahan, Moore, Ramage, Hampson and Aguera y Arcas, AISTATS 2017), algorithm 1:

    server    x <- x + eta * sum_k (n_k / n) u_k        n_k: client k's examples, n their sum over the cohort
    client    u_k = ClientUpdate(x) - x                  E passes over its examples, in batches of B

eta = 1 is the paper's.  With one client it is that client's SGD, bit for bit.

FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, MLSys 2020), algorithm 2:

    client    w_k ~ argmin_w F_k(w) + (mu / 2) ||w - x||^2         each step's gradient gets mu (w - x)
    server    x <- mean of w_k

mu = 0 is FedAvg with the same bits.  Where we differ: the paper draws clients by size and averages them with equal
weights (`weighting="clients"` with `sampling.BySize`); a client that is too slow is cut off, and sends nothing.

FedBuff (Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and Huba, AISTATS 2022): without synchronous rounds.

    a fixed number of clients trains at any time; each answer is added with the weight s(staleness), and the newest
    model is sent to another client in its place; after K answers
        x <- x + eta * sum_k s(t_k) u_k / K             t_k: server steps since client k was sent its model

s(t) = 1 / sqrt(1 + t) (section 5); here the weighted mean, sum s u / sum s, which keeps the step's length when all are
stale.  The server may be any other; `protocols.federated.buffered` is the machine.

FedNova (Wang, Liu, Liang, Joshi and Poor, NeurIPS 2020), equations 8 and 11:

    client    d_k = u_k / ||a_k||_1                        u_k: its update, of tau_k steps
    server    x <- x + tau_eff * sum_k p_k d_k             p_k = n_k / n,  tau_eff = sum_k p_k ||a_k||_1

    ||a||_1 = tau                                                  plain SGD
              (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)    with momentum rho

A client with more steps does not pull the model more strongly towards its optimum.  With equal numbers it is FedAvg, to
rounding.

Federated SGD (McMahan et al. 2017): the clients send gradients, the server takes the step.

    client    g_k = grad F_k(x)                          one step on all of its examples: B = infinity, E = 1
    server    x <- x - eta * sum_k (n_k / n) g_k

With eta the clients' rate it is FedAvg with one local step, to rounding.  Of several batches g_k is the mean of their
gradients at x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedgossip.algorithms.federated.base import Aggregate, Vectors, Work
from fedgossip.base.vectors import Vector, linear
from fedgossip.core.machine import Terms


@dataclass(frozen=True)
class Training:
    """The client: plain local training; with `mu` it is pulled back to the received model, see `fedprox`."""

    mu: float = 0.0
    weighting: str = "examples"
    """"examples": a client's weight is its number of examples; "clients": all have equal weights."""

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
    """The state of a server without memory: the model, [d]."""

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


def proximal(mu: float = 0.01, weighting: str = "examples") -> Training:
    """The client of FedProx.  mu: 0 or more; the paper tries 0.001 to 1, more where clients differ more."""
    return Training(mu, weighting)


def staleness_weight(staleness: int) -> float:
    """Return 1 / sqrt(1 + staleness)."""
    return 1 / math.sqrt(1 + staleness)


def accumulated(steps: float, momentum: float = 0.0) -> float:
    """Return ||a||_1: the sum of the gradients' weights in a change by `steps` steps, with zero initial momentum."""
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
        """Return ||a_k||_1; tau_eff is its weighted mean."""
        return accumulated(steps, self.momentum)

    def terms(self, _received: Vectors, _memory: Vectors) -> Terms:
        return Terms(momentum=self.momentum)

    def upload(self, _received: Vectors, memory: Vectors, work: Work) -> tuple[Vectors, Vectors]:
        return (linear((1 / self.effective(work.steps), work.update)),), memory


@dataclass(frozen=True)
class Nova(ServerSgd):
    """The server: x <- x + lr * tau_eff * mean d; tau_eff is the mean of the clients' effective steps."""

    def step(self, state: ServerModel, aggregate: Aggregate) -> ServerModel:
        return ServerModel(linear((1, state.x), (self.lr * aggregate.steps, aggregate.vectors[0])))


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
class GradientServer(ServerSgd):
    """The server: x <- x - lr * mean gradient."""

    lr: float = 0.1

    def step(self, state: ServerModel, aggregate: Aggregate) -> ServerModel:
        return ServerModel(linear((1, state.x), (-self.lr, aggregate.vectors[0])))
