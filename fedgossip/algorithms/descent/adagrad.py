"""Adagrad:   s <- s + g^2;    x <- x - rate g / (sqrt(s) + eps)

Source: Duchi, Hazan and Singer, Adaptive subgradient methods, J. Machine Learning Research 12 (2011).

FTRL-Proximal, by coordinate, with L1 and L2: weights that the data do not need are exactly 0.

    n' = n + g^2;    sigma = (sqrt(n') - sqrt(n)) / rate;    z <- z + g - sigma x;    n <- n'
    x  = 0                                                          where |z| <= l1
         -(z - sign(z) l1) / ((beta + sqrt(n)) / rate + l2)         elsewhere

Source: McMahan, Holt, Sculley et al., Ad click prediction: a view from the trenches, KDD 2013, algorithm 1; its alpha
is the rate.  It is meant for models that begin at 0: one that does not is at 0 after its first small gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.descent.base import DescentState, decayed, zeros
from fedgossip.base.vectors import Vector, frozen


@dataclass(frozen=True, slots=True, eq=False)
class Squares(DescentState):
    squares: Vector


@dataclass(frozen=True)
class Adagrad:
    weight_decay: float = 0.0
    epsilon: float = 1e-10
    elementwise = True

    def start(self, x: Vector) -> Squares:
        return Squares(x, zeros(x))

    def step(self, state: Squares, gradient: Vector, rate: float) -> Squares:
        x = state.x
        gradient = decayed(gradient, x, self.weight_decay)
        squares = frozen(state.squares + gradient * gradient)
        return Squares(frozen(x - gradient * x.dtype.type(rate) / (np.sqrt(squares) + self.epsilon)), squares)


@dataclass(frozen=True, slots=True, eq=False)
class Proximal(DescentState):
    z: Vector
    squares: Vector


@dataclass(frozen=True)
class FTRL:
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 1.0
    elementwise = True

    def start(self, x: Vector) -> Proximal:
        return Proximal(x, zeros(x), zeros(x))

    def step(self, state: Proximal, gradient: Vector, rate: float) -> Proximal:
        kind = state.x.dtype.type
        squares = state.squares + gradient * gradient
        root = np.sqrt(squares)
        sigma = (root - np.sqrt(state.squares)) / kind(rate)
        z = state.z + (gradient - sigma * state.x)
        beyond = np.maximum(np.abs(z) - kind(self.l1), kind(0))
        x = -np.copysign(beyond, z) / ((root + kind(self.beta)) / kind(rate) + kind(self.l2))
        return Proximal(frozen(x + kind(0)), frozen(z), frozen(squares))
