"""Adagrad:   s <- s + g^2;    x <- x - rate g / (sqrt(s) + eps)

Source: Duchi, Hazan and Singer, Adaptive subgradient methods, J. Machine Learning Research 12 (2011).
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
