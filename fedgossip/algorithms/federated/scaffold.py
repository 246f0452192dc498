"""Corrections of the drift of clients: SCAFFOLD and FedDyn.

SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, ICML 2020), algorithm 1, option II:

    client i    K steps      y <- y - eta_l (g_i(y) - c_i + c)               from y = x
                c_i+  =  c_i - c + (x - y) / (K eta_l)
                sends  y - x  and  c_i+ - c_i
    server      x <- x + eta_g  mean (y - x)
                c <- c + (|S| / N) mean (c_i+ - c_i)                         N clients in all, S the cohort

With one step and all clients present it equals FedSGD, to rounding.  Only plain SGD of one rate makes (x - y) / (K
eta_l) the mean gradient: other optimizers are refused.

Where we differ: c_i+ replaces c_i when the contribution was counted, so c stays the mean of all c_i under any dropout.

FedDyn (Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, ICLR 2021), algorithm 1:

    client k    w_k ~ argmin F_k(w) - <g_k, w> + (alpha / 2) ||w - x||^2          g_k: 0 at first
                g_k <- g_k - alpha (w_k - x)
    server      h <- h - alpha (|S| / m) mean (w_k - x)                           m clients in all, S the cohort
                x <- mean w_k - h / alpha

The fixed point is the minimum of the mean of all F_k: there g_k is the gradient of F_k, and their mean is 0.  Each
step's gradient gets alpha (w - x) - g_k.

Where we differ: g_k changes when the contribution was counted, so h remains alpha times the clients' total move.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgossip.algorithms.federated.base import Aggregate, Vectors, Work
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, add, frozen, linear, subtract
from fedgossip.core.machine import Terms


@dataclass(frozen=True)
class Controlled:
    """The client; its memory is (c_i,), or empty while that is 0."""

    vectors = 2
    gradient = False

    def weight(self, _examples: int) -> float:
        return 1.0

    def terms(self, received: Vectors, memory: Vectors) -> Terms:
        _, c = received
        return Terms(correction=subtract(c, memory[0]) if memory else c, momentum=0.0)

    def upload(self, received: Vectors, memory: Vectors, work: Work) -> tuple[Vectors, Vectors]:
        _, c = received
        difference = linear((-1 / (work.steps * work.rate), work.update), (-1, c))  # (x - y) / (K eta_l) - c
        return (work.update, difference), (add(memory[0], difference) if memory else difference,)


@dataclass(frozen=True, eq=False)
class Controls:
    """The model x and the mean c of all clients' controls, [d] each."""

    x: Vector
    c: Vector


@dataclass(frozen=True)
class Scaffold:
    """The server of `clients` clients in all."""

    clients: int
    lr: float = 1.0

    def start(self, x: Vector) -> Controls:
        return Controls(x, frozen(np.zeros_like(x)))

    def broadcast(self, state: Controls) -> Vectors:
        return state.x, state.c

    def step(self, state: Controls, aggregate: Aggregate) -> Controls:
        moved, drifted = aggregate.vectors
        share = aggregate.clients / self.clients
        x, c = linear((1, state.x), (self.lr, moved)), linear((1, state.c), (share, drifted))
        return replace(state, x=x, c=c)


@dataclass(frozen=True)
class Dynamic:
    """The client; its memory is (-g_k,), or empty while that is 0."""

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
