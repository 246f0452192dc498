"""Quasi-global momentum (Lin, Karimireddy, Stich and Jaggi, ICML 2021), of the move that peers make together:

    x_i  <-  sum_j W_ij (x_j + u_j + beta M_j)    u_j: the change that node j's local steps made, from x_j
    M_i  <-  mu M_i + (1 - mu) (x_i - x_i before)     M begins with 0

One vector goes out.  The stationary disagreement is that of D-PSGD to the digit, for where nothing moves M is 0, while
momentum of each peer's own multiplies it.  Where we differ: the paper applies beta M in each of several local steps,
here it acts once a round, on their sum.  M is a displacement, -rate times the paper's momentum: see `momentum`.
"""

from __future__ import annotations

from dataclasses import replace

from fedgossip.algorithms.gossip.base import MODEL, Needs, Step, Vectors
from fedgossip.algorithms.gossip.momentum import MomentumState, at_rate, share
from fedgossip.base.vectors import Vector, add, linear, subtract


class QuasiGlobal:
    """`beta` and `mu` in [0, 1)."""

    slots = (MODEL,)
    needs = Needs(plain_sgd=True)

    def __init__(self, beta: float = 0.9, mu: float = 0.9) -> None:
        self.beta, self.mu = share("beta", beta), share("mu", mu)

    def start(self, x: Vector) -> MomentumState:
        return MomentumState(x)

    def trained(self, state: MomentumState, update: Vector | None, step: Step) -> tuple[MomentumState, Vectors]:
        now = at_rate(state, step)
        sent = state.x if update is None else add(state.x, update)
        return now, (sent if now.motion is None else linear((1, sent), (self.beta, now.motion)),)

    def mixed(self, state: MomentumState, mixed: Vectors) -> MomentumState:
        (x,) = mixed
        moved = (1 - self.mu, subtract(x, state.x))
        kept = [] if state.motion is None else [(self.mu, state.motion)]
        return MomentumState(x, linear(*kept, moved), state.rate)

    def model(self, state: MomentumState) -> Vector:
        return state.x

    def seen(self, state: MomentumState, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: MomentumState, differences: Vectors) -> MomentumState:
        (x,) = differences
        moved = (1 - self.mu, x)
        kept = [] if state.motion is None else [(1.0, state.motion)]
        return replace(state, x=add(state.x, x), motion=linear(*kept, moved))

    def rejoined(self, state: MomentumState, model: Vector) -> MomentumState:  # noqa: ARG002
        return MomentumState(model)
