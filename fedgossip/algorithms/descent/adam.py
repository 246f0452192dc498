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
from fedgossip.vectors import Vector, frozen


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
        first = frozen(state.first * self.beta1 + gradient * (1 - self.beta1))
        second = frozen(state.second * self.beta2 + gradient * gradient * (1 - self.beta2))
        root = np.sqrt(second) / exact(math.sqrt(1 - self.beta2**steps))
        along = 1 / (root + self.epsilon) * first
        return AdamMoments(frozen(x - along * exact(rate / (1 - self.beta1**steps))), first, second, steps)
