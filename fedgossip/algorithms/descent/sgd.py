"""Stochastic gradient descent, with momentum and Nesterov's:

    g <- g + lambda x;    v <- mu v + g;    x <- x - rate v        with Nesterov: x <- x - rate (g + mu v)

Source: Sutskever, Martens, Dahl and Hinton, On the importance of initialization and momentum, ICML 2013, as
torch.optim.SGD: the rate outside the velocity.

LARS: momentum with a rate per layer, so that no layer's step is long beside its weights.

    q = eta |x_l| / (|g_l| + lambda |x_l|);    v_l <- mu v_l + q rate (g_l + lambda x_l);    x_l <- x_l - v_l

q is 1 for zero weights or gradient, and for tensors of one axis, whose weights do not decay.

Source: You, Gitman and Ginsburg, Large batch training of convolutional networks, arXiv:1708.03888 (2017), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.descent.base import DescentState, along_by, decayed, layers, norm, zeros
from fedgossip.base.vectors import Vector, empty, frozen
from fedgossip.core.task import Segment


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


@dataclass(frozen=True, slots=True, eq=False)
class LayerVelocity(DescentState):
    velocity: Vector


@dataclass(frozen=True)
class LARS:
    segments: Sequence[Segment] = ()
    momentum: float = 0.9
    weight_decay: float = 0.0
    trust: float = 0.001
    """eta of the paper: the share of a layer's length that one step of rate 1 may go."""
    elementwise = False

    def start(self, x: Vector) -> LayerVelocity:
        return LayerVelocity(x, zeros(x))

    def step(self, state: LayerVelocity, gradient: Vector, rate: float) -> LayerVelocity:
        velocity, kind = np.empty_like(state.x), state.x.dtype.type
        for part, layer in layers(self.segments, state.x.size):
            x, g = state.x[part], gradient[part]
            ratio = self._ratio(norm(x), norm(g)) if layer else 1.0
            along = decayed(g, x, self.weight_decay) if layer else g
            velocity[part] = state.velocity[part] * self.momentum + along * kind(ratio * rate)
        return LayerVelocity(frozen(state.x - velocity), frozen(velocity))

    def _ratio(self, weights: float, gradient: float) -> float:
        return self.trust * weights / (gradient + self.weight_decay * weights) if weights and gradient else 1.0
