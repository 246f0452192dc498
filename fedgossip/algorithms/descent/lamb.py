"""LAMB: Adam's direction, with a rate per layer.

    r = m / (1 - b1^t) / (sqrt(s / (1 - b2^t)) + eps) + lambda x;    x_l <- x_l - rate |x_l| / |r_l| r_l

The ratio is 1 where a layer's weights or direction are zero, and for tensors of one axis, whose weights do not decay.

Source: You, Li, Reddi, Hseu, Kumar, Bhojanapalli, Song, Demmel, Keutzer and Hsieh, Large batch optimization for deep
learning, ICLR 2020, algorithm 2, with phi the identity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.descent.adam import AdamMoments, moments
from fedgossip.algorithms.descent.base import decayed, layers, norm, zeros
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.task import Segment


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
