"""DecentLaM (Yuan, Chen, Huang, Zhang, Pan, Xu and Yin, ICCV 2021), momentum of what the mixing makes of a step:

    M_i  <-  beta M_i + sum_j W_ij (x_j + u_j) - x_i      u_j: the change that node j's local steps made, from x_j
    x_i  <-  x_i + M_i                                    M begins with 0

One vector goes out.  M is 0 where D-PSGD without momentum would stand still, so the two have the same stationary
disagreement: momentum does not multiply it.  The paper's g~ = (x - W (x - eta g)) / eta is -(M - beta M_before) / eta.
M is a displacement, -rate times the paper's momentum: see `momentum`.
"""

from __future__ import annotations

from dataclasses import replace

from fedgossip.algorithms.gossip.base import MODEL, Needs, Step, Vectors
from fedgossip.algorithms.gossip.momentum import MomentumState, at_rate, share
from fedgossip.base.vectors import Vector, add, linear, subtract


class DecentLaM:
    """`beta` in [0, 1)."""

    slots = (MODEL,)
    needs = Needs(symmetric=True, plain_sgd=True)

    def __init__(self, beta: float = 0.9) -> None:
        self.beta = share("beta", beta)

    def start(self, x: Vector) -> MomentumState:
        return MomentumState(x)

    def trained(self, state: MomentumState, update: Vector | None, step: Step) -> tuple[MomentumState, Vectors]:
        return at_rate(state, step), (state.x if update is None else add(state.x, update),)

    def mixed(self, state: MomentumState, mixed: Vectors) -> MomentumState:
        moved = subtract(mixed[0], state.x)
        motion = moved if state.motion is None else linear((self.beta, state.motion), (1, moved))
        return MomentumState(add(state.x, motion), motion, state.rate)

    def model(self, state: MomentumState) -> Vector:
        return state.x

    def seen(self, state: MomentumState, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: MomentumState, differences: Vectors) -> MomentumState:
        (x,) = differences
        return replace(state, x=add(state.x, x), motion=x if state.motion is None else add(state.motion, x))

    def rejoined(self, state: MomentumState, model: Vector) -> MomentumState:  # noqa: ARG002
        return MomentumState(model)
