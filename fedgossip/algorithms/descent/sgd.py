"""Stochastic gradient descent, with momentum and Nesterov's:

    g <- g + lambda x;    v <- mu v + g;    x <- x - rate v        with Nesterov: x <- x - rate (g + mu v)

Source: Sutskever, Martens, Dahl and Hinton, On the importance of initialization and momentum, ICML 2013, in the form
in which torch.optim.SGD has it: the rate stands outside the velocity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.descent.base import DescentState, along_by, decayed, zeros
from fedgossip.base.vectors import Vector, empty, frozen


@dataclass(frozen=True, slots=True, eq=False)
class Velocity(DescentState):
    velocity: Vector | None = None
    """None without momentum: nothing is remembered."""


@dataclass(frozen=True)
class SGD:
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    elementwise = True

    def start(self, x: Vector) -> Velocity:
        return Velocity(x, zeros(x) if self.momentum else None)

    def step(self, state: Velocity, gradient: Vector, rate: float) -> Velocity:
        x, velocity = state.x, state.velocity
        gradient = decayed(gradient, x, self.weight_decay)
        if velocity is None:
            return Velocity(along_by(x, gradient, rate))
        moved = np.multiply(velocity, self.momentum, out=empty(x.size, x.dtype))
        velocity = frozen(np.add(moved, gradient, out=moved))
        along = gradient + velocity * self.momentum if self.nesterov else velocity
        return Velocity(along_by(x, along, rate), velocity)
