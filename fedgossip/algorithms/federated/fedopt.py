"""Adaptive server optimisers (Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, ICLR 2021):

    D  =  mean update
    m  <- beta1 m + (1 - beta1) D
    v  <- v + D^2                                   FedAdagrad
          v - (1 - beta2) D^2 sign(v - D^2)         FedYogi
          beta2 v + (1 - beta2) D^2                 FedAdam
    x  <- x + eta m / (sqrt(v) + tau)               begins with m = 0, v = tau^2; no bias correction, as in the paper

Their algorithm 2, in the model's type.  tau, 1e-3, bounds a move: eta / tau * |m|.  beta1 = 0 for FedAdagrad, as in
their experiments.

FedAvgM (Hsu, Qi and Brown, Measuring the effects of non-identical data distribution, 2019):

    v <- beta v + mean update          x <- x + eta v

beta = 0 is FedAvg; with Nesterov's form (`outer`) it is DiLoCo's outer step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.federated.base import Aggregate, Vectors
from fedgossip.algorithms.gossip.outer import OuterStep
from fedgossip.base.vectors import Vector, frozen

Second = Callable[[Vector, Vector, float], Vector]
"""(v, D^2, beta2): the next v."""


def adagrad(v: Vector, square: Vector, _beta2: float) -> Vector:
    """Return the second moment of Adagrad: it only grows."""
    return v + square


def yogi(v: Vector, square: Vector, beta2: float) -> Vector:
    """Return the second moment of Yogi: it moves by at most (1 - beta2) delta^2, up or down."""
    return v - (1 - beta2) * square * np.sign(v - square)


def adam(v: Vector, square: Vector, beta2: float) -> Vector:
    """Return the second moment of Adam: a running mean of squares."""
    return beta2 * v + (1 - beta2) * square


@dataclass(frozen=True, eq=False)
class Moments:
    """The model and the two moments of the mean update, [d] each."""

    x: Vector
    m: Vector
    v: Vector


@dataclass(frozen=True)
class Adaptive:
    """The server; `second` is adagrad, yogi or adam."""

    second: Second
    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def start(self, x: Vector) -> Moments:
        return Moments(x, frozen(np.zeros_like(x)), frozen(np.full_like(x, self.tau**2)))

    def broadcast(self, state: Moments) -> Vectors:
        return (state.x,)

    def step(self, state: Moments, aggregate: Aggregate) -> Moments:
        (D,) = aggregate.vectors
        m = self.beta1 * state.m + (1 - self.beta1) * D
        v = self.second(state.v, D * D, self.beta2)
        x = state.x + self.lr * m / (np.sqrt(v) + self.tau)
        return Moments(frozen(x), frozen(m), frozen(v))


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
