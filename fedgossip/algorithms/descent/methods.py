"""The descent methods by name: rules for the step along a mean gradient.

SGD, with momentum and Nesterov's:

    g <- g + lambda x;    v <- mu v + g;    x <- x - rate v        with Nesterov: x <- x - rate (g + mu v)

Source: Sutskever, Martens, Dahl and Hinton, On the importance of initialization and momentum, ICML 2013, with the rate
outside the velocity, as in torch.optim.SGD.

LARS: momentum with a rate per layer, so that each layer's step is short relative to its weights.

    q = eta |x_l| / (|g_l| + lambda |x_l|);    v_l <- mu v_l + q rate (g_l + lambda x_l);    x_l <- x_l - v_l

q is 1 for zero weights or gradient, and for tensors of one axis; these do not decay.

Source: You, Gitman and Ginsburg, Large batch training of convolutional networks, arXiv:1708.03888 (2017), algorithm 1.

Adam and AdamW:

    m <- b1 m + (1 - b1) g;    s <- b2 s + (1 - b2) g^2;    x <- x - rate / (1 - b1^t) m / (sqrt(s / (1 - b2^t)) + eps)

Adam adds lambda x to g first; AdamW subtracts rate lambda x from x in addition to the step.

Source: Kingma and Ba, Adam, ICLR 2015; Loshchilov and Hutter, Decoupled weight decay regularization, ICLR 2019.

LAMB: Adam's direction, with a rate per layer.

    r = m / (1 - b1^t) / (sqrt(s / (1 - b2^t)) + eps) + lambda x;    x_l <- x_l - rate |x_l| / |r_l| r_l

The ratio is 1 for zero weights or direction, and for tensors of one axis; these do not decay.

Source: You, Li, Reddi, Hseu, Kumar, Bhojanapalli, Song, Demmel, Keutzer and Hsieh, Large batch optimization for deep
learning, ICLR 2020, algorithm 2, phi the identity.

Adagrad:   s <- s + g^2;    x <- x - rate g / (sqrt(s) + eps)

Source: Duchi, Hazan and Singer, Adaptive subgradient methods, J. Machine Learning Research 12 (2011).

FTRL-Proximal, by coordinate, with L1 and L2: unneeded weights are exactly 0.

    n' = n + g^2;    sigma = (sqrt(n') - sqrt(n)) / rate;    z <- z + g - sigma x;    n <- n'
    x  = 0                                                          where |z| <= l1
         -(z - sign(z) l1) / ((beta + sqrt(n)) / rate + l2)         elsewhere

Source: McMahan, Holt, Sculley et al., Ad click prediction: a view from the trenches, KDD 2013, algorithm 1; its alpha
is the rate.  For models that begin at 0: any other model moves to 0 after its first small gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.algorithms.descent.base import Descent, DescentState, along_by, decayed, layers, norm, zeros
from fedgossip.base.vectors import Vector, empty, frozen
from fedgossip.core.task import Segment


@dataclass(frozen=True, slots=True, eq=False)
class Velocity(DescentState):
    velocity: Vector | None = None
    """None without momentum: there is no state."""


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
    """eta of the paper: maximum step of rate 1 as a share of a layer's norm."""
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


@dataclass(frozen=True, slots=True, eq=False)
class AdamMoments(DescentState):
    first: Vector
    second: Vector
    steps: int = 0


@dataclass(frozen=True)
class Adam:
    weight_decay: float = 0.0
    decoupled: bool = False
    """Whether weight decay is decoupled: AdamW."""
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


@dataclass(frozen=True)
class LAMB:
    segments: Sequence[Segment] = ()
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    elementwise = False

    def start(self, x: Vector) -> AdamMoments:
        return AdamMoments(x, zeros(x), zeros(x))

    def step(self, state: AdamMoments, gradient: Vector, rate: float) -> AdamMoments:
        kind, steps = state.x.dtype.type, state.steps + 1
        first, second = moments(state, gradient, self.beta1, self.beta2)
        root = np.sqrt(second) / kind(math.sqrt(1 - self.beta2**steps))
        direction = first / kind(1 - self.beta1**steps) / (root + self.epsilon)
        after = np.empty_like(state.x)
        for part, layer in layers(self.segments, state.x.size):
            x = state.x[part]
            along = decayed(direction[part], x, self.weight_decay) if layer else direction[part]
            ratio = self._ratio(norm(x), norm(along)) if layer else 1.0
            after[part] = x - along * kind(ratio * rate)
        return AdamMoments(frozen(after), first, second, steps)

    def _ratio(self, weights: float, direction: float) -> float:
        return weights / direction if weights and direction else 1.0


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


DESCENTS = ("sgd", "adam", "adamw", "adagrad", "ftrl", "lars", "lamb")


def make_descent(
    name: str,
    segments: Sequence[Segment] = (),
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    l1: float = 0.0,
) -> Descent[Any]:
    """Return the method `name`, one of DESCENTS; it ignores options that it does not use."""
    if name == "sgd":
        return SGD(momentum, nesterov, weight_decay)
    if name in ("adam", "adamw"):
        return Adam(weight_decay, decoupled=name == "adamw")
    if name == "adagrad":
        return Adagrad(weight_decay)
    if name == "ftrl":
        return FTRL(l1, weight_decay)
    return LARS(segments, momentum, weight_decay) if name == "lars" else LAMB(segments, weight_decay)
