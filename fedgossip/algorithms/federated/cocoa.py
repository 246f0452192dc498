"""CoCoA and CoCoA+: dual coordinate ascent at each client, with a certified distance from the optimum.

    P(w) = 1/n sum_i loss(x_i w; y_i) + lam/2 |w|^2            D(a) = -1/n sum_i loss*(-a_i) - lam/2 |w(a)|^2
    w(a) = 1/(lam n) sum_i a_i x_i                             P(w) - P(best) <= P(w(a)) - D(a), the duality gap

    client k    da_k: coordinate steps on its a_k, at w plus sigma' times its own change of w
                a_k <- a_k + gamma da_k;   sends  gamma / lam  sum_i da_i x_i,  and its part of P(w) and of D(a)
    server      w <- w + 1/n sum of the contributions
                "add": gamma = 1, sigma' = K clients;   "average": gamma = 1 / K, sigma' = 1

Sources: Jaggi, Smith, Takac, Terhorst, Krishnan, Hofmann and Jordan, Communication-efficient distributed dual
coordinate ascent, NIPS 2014 (average); Ma, Smith, Jaggi, Jordan, Richtarik and Takac, Adding vs. averaging in
distributed primal-dual optimization, ICML 2015 (add); Smith, Forte, Ma, Takac, Jordan and Jaggi, CoCoA, JMLR 18 (2018).

The lasso's |w|_1 alone determines no w(a); a small additional |w|^2 does (the smoothing of Smith et al., section 3):

    P(w) = mean loss + lam t |w|_1 + lam/2 |w|^2      w(a) = shrunk(1/(lam n) sum_i a_i x_i, t), each element by t to 0

with the same D(a): lam/2 |w(a)|^2 is the conjugate of the penalty.

Where we differ: n is unknown at first, so a client's first answer only counts its examples.  After the model the
vectors have four summed numbers: examples, clients, P and D.  P and D belong to the previous round, and are 0 if a
client is missing.  Dual variables stay at their client, and change when the answer was counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.federated.base import Aggregate, Vectors, Work
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Terms

AGGREGATIONS = ("add", "average")
CERTIFICATE = 4
"""Number of elements after the model."""
EXAMPLES, CLIENTS, PRIMAL, DUAL = -4, -3, -2, -1
"""Indices of these elements."""


def gap_of(x: Vector) -> float | None:
    """Return the duality gap stored in a vector; None without one."""
    return float(x[PRIMAL] - x[DUAL]) if x[PRIMAL] else None


@dataclass(frozen=True)
class DualAscent:
    """The client; its memory is (a_k,), or empty before its first counted answer."""

    sigma: float
    gamma: float
    local: float

    vectors = 1
    gradient = False

    def weight(self, _examples: int) -> float:
        return 1.0

    def terms(self, _received: Vectors, memory: Vectors) -> Terms:
        """Return the terms; `extra`: sigma', the passes over its examples, and a_k; without a_k it only counts them."""
        return Terms(extra=(frozen(np.array([self.sigma, self.local])), *memory))

    def upload(self, _received: Vectors, memory: Vectors, work: Work) -> tuple[Vectors, Vectors]:
        (change,) = work.extra
        if not memory:
            return (work.update,), (change,)
        up = work.update.copy()
        up[:-CERTIFICATE] *= self.gamma
        return (frozen(up),), (frozen(memory[0] + self.gamma * change),)


@dataclass(frozen=True, eq=False)
class DualSum:
    """The model with its certificate x, and v = 1/lam sum_i a_i x_i, both [d]."""

    x: Vector
    v: Vector


def shrunk(v: Vector, threshold: float) -> Vector:
    """Return v with each element moved to 0 by the threshold; elements within the threshold become 0."""
    return np.sign(v) * np.maximum(np.abs(v) - threshold, 0.0) if threshold else v


@dataclass(frozen=True)
class CoCoA:
    """The server.  `gap`: end at a model with this certified gap; 0: after its rounds.  `threshold`: t of the lasso."""

    gap: float = 0.0
    threshold: float = 0.0

    def start(self, x: Vector) -> DualSum:
        return DualSum(x, frozen(np.zeros_like(x)))

    def broadcast(self, state: DualSum) -> Vectors:
        return (state.x,)

    def step(self, state: DualSum, aggregate: Aggregate) -> DualSum:
        summed, before = aggregate.vectors[0] * aggregate.clients, state.x
        examples, clients = (max(1.0, float(before[at] + np.round(summed[at]))) for at in (EXAMPLES, CLIENTS))
        v, x = state.v.copy(), np.zeros_like(before)
        v[:-CERTIFICATE] += summed[:-CERTIFICATE]
        x[:-CERTIFICATE] = shrunk(v[:-CERTIFICATE] / examples, self.threshold)
        x[EXAMPLES], x[CLIENTS] = examples, clients
        if aggregate.clients == clients and (clients == before[CLIENTS] or not before[CLIENTS]):
            x[PRIMAL], x[DUAL] = summed[PRIMAL] / examples, summed[DUAL] / examples
        if self.over(x):  # the certificate is of the model that went down
            x[:-CERTIFICATE] = before[:-CERTIFICATE]
        return DualSum(frozen(x), frozen(v))

    def over(self, x: Vector) -> bool:
        """See `EndingRule`."""
        gap = gap_of(x)
        return self.gap > 0 and gap is not None and gap <= self.gap


def dual_rules(
    clients: int, aggregation: str, local: float, gap: float, threshold: float = 0.0
) -> tuple[DualAscent, CoCoA]:
    """Return the rules of client and server for `clients` clients.  Raises ConfigError for impossible values."""
    if aggregation not in AGGREGATIONS:
        raise ConfigError(f"cocoa: aggregation = {aggregation!r} is not known", nearest(str(aggregation), AGGREGATIONS))
    if not 0 < local <= 1000:
        advice = "It is the number of passes over a client's examples in a round: 1.0 is usual, at most 1000."
        raise ConfigError(f"cocoa: local = {local!r}", advice)
    adds = aggregation == "add"
    return DualAscent(float(clients) if adds else 1.0, 1.0 if adds else 1 / clients, local), CoCoA(gap, threshold)
