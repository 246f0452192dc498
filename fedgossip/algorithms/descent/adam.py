"""Adam and AdamW:

    m <- b1 m + (1 - b1) g;    s <- b2 s + (1 - b2) g^2;    x <- x - rate / (1 - b1^t) m / (sqrt(s / (1 - b2^t)) + eps)

Adam adds lambda x to g first; AdamW takes rate lambda x from x beside the step.

Source: Kingma and Ba, Adam, ICLR 2015; Loshchilov and Hutter, Decoupled weight decay regularization, ICLR 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.descent.base import DescentState, decayed, zeros
from fedgossip.base.vectors import Vector, empty, frozen


@dataclass(frozen=True, slots=True, eq=False)
class AdamMoments(DescentState):
    first: Vector
    second: Vector
    steps: int = 0


@dataclass(frozen=True)
class Adam:
    weight_decay: float = 0.0
    decoupled: bool = False
    """AdamW."""
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    elementwise = True

    def start(self, x: Vector) -> AdamMoments:
        return AdamMoments(x, zeros(x), zeros(x))

    def step(self, state: AdamMoments, gradient: Vector, rate: float) -> AdamMoments:
        x, exact = state.x, state.x.dtype.type
        if self.decoupled:
            x = x * exact(1 - rate * self.weight_decay)
        else:
            gradient = decayed(gradient, x, self.weight_decay)
        steps = state.steps + 1
        first, second = moments(state, gradient, self.beta1, self.beta2)
        along = np.sqrt(second, out=empty(x.size, x.dtype))
        along /= exact(math.sqrt(1 - self.beta2**steps))
        along += self.epsilon
        np.divide(1, along, out=along)
        along *= first
        along *= exact(rate / (1 - self.beta1**steps))
        return AdamMoments(frozen(np.subtract(x, along, out=along)), first, second, steps)


def moments(state: AdamMoments, gradient: Vector, beta1: float, beta2: float) -> tuple[Vector, Vector]:
    """Return both moving averages after a gradient, frozen [d]."""
    size, kind = gradient.size, gradient.dtype
    term = np.multiply(gradient, 1 - beta1, out=empty(size, kind))
    first = np.multiply(state.first, beta1, out=empty(size, kind))
    first += term
    np.multiply(gradient, gradient, out=term)
    term *= 1 - beta2
    second = np.multiply(state.second, beta2, out=empty(size, kind))
    second += term
    return frozen(first), frozen(second)
