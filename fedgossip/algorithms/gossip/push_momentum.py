"""Push-sum with momentum sent as mass like the model: stochastic gradient push (Assran, Loizou, Ballas and Rabbat, ICML
2019) with the momentum of Yu, Jin and Yang (ICML 2019), on directed graphs:

    v_i  <-  beta M_i + u_i                 u_i: the change that node i's local steps made, from z_i; M begins with 0
    x_i  <-  sum_j P_ij (x_j + v_j)
    M_i  <-  sum_j P_ij v_j
    w_i  <-  sum_j P_ij w_j                 begins with 1
    z_i  <-  x_i / w_i                      the model: start of training, and evaluated

M is mass as x is: the columns of P sum to one, so the sum of all M is beta times itself plus the sum of the updates,
that of one peer with momentum on the sum.  Momentum of each peer's own, as in the paper's experiments, is
`train.momentum`.  M is a displacement, see `momentum`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgossip.algorithms.gossip.base import MODEL, WEIGHT, Needs, Slot, Step, Vectors
from fedgossip.algorithms.gossip.momentum import at_rate, share
from fedgossip.algorithms.gossip.push_sum import debiased
from fedgossip.base.vectors import Vector, add, frozen, linear, subtract


@dataclass(frozen=True, eq=False)
class MassInMotion:
    """`x` and `motion` [d] or [n, d], None where it is zero; `weight` float64 [1] or [n, 1]; `rate`: see `momentum`."""

    x: Vector
    weight: Vector
    motion: Vector | None = None
    rate: Vector | float = 0.0


class PushMomentum:
    """`beta` in [0, 1).  A peer that goes on from another model begins without momentum."""

    slots = (MODEL, Slot("momentum"), WEIGHT)
    needs = Needs(sums="columns", plain_sgd=True)

    def __init__(self, beta: float = 0.9) -> None:
        self.beta = share("beta", beta)

    def start(self, x: Vector) -> MassInMotion:
        return MassInMotion(x, frozen(np.ones((*x.shape[:-1], 1))))

    def trained(self, state: MassInMotion, update: Vector | None, step: Step) -> tuple[MassInMotion, Vectors]:
        now = at_rate(state, step)
        terms = [] if now.motion is None else [(self.beta, now.motion)]
        terms += [] if update is None else [(1.0, update)]
        motion = linear(*terms) if terms else subtract(state.x, state.x)
        return now, (add(state.x, motion), motion, state.weight)

    def mixed(self, state: MassInMotion, mixed: Vectors) -> MassInMotion:
        x, motion, weight = mixed
        return MassInMotion(x, weight, motion, state.rate)

    def model(self, state: MassInMotion) -> Vector:
        return debiased(state.x, state.weight)

    def seen(self, state: MassInMotion, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return debiased(outgoing[0], outgoing[2])

    def corrected(self, state: MassInMotion, differences: Vectors) -> MassInMotion:
        """Add late mass."""
        x, motion, weight = differences
        late = motion if state.motion is None else add(state.motion, motion)
        return replace(state, x=add(state.x, x), weight=add(state.weight, weight), motion=late)

    def rejoined(self, state: MassInMotion, model: Vector) -> MassInMotion:  # noqa: ARG002
        return self.start(model)
