"""DiLoCo on any graph: local steps, then an outer step along the round's displacement (`outer`).

    s_i  =   x_i + u_i                      u_i: what node i's local steps made, with an optimiser of its own
    D_i  =   sum_j W_ij s_j - x_i
    v_i  <-  beta v_i + D_i                 v begins with 0
    x_i  <-  x_i + lr (beta v_i + D_i)      without nesterov: x_i + lr v_i

On the complete graph all x are one, D is the mean change, and this is DiLoCo (Douillard and others, 2023); without
nesterov it is FedAvgM with every client in every round.  On random pairs D_i is half of what both have learned and half
of what parts them, as in the outer step of NoLoCo (Kolehmainen and others, 2025), which gives these two parts factors
of their own and sends both; here they have one, and a message is one vector.

Where we differ: the papers' average is a collective; here it is a round of the graph, whatever that is.  D holds the
disagreement beside the change, so v does too.  That has two effects, both exact on a quadratic: the disagreement that
lasts is that of D-PSGD, lambda / (1 - lambda) times the changes', and not 1 / (1 - beta) times more, as with a momentum
of each peer's own changes; and peers converge at Nesterov's rate on slow graphs.  An eigenvalue lambda of the weights
must be above 1 - 2 (1 + beta) / (lr (1 + 2 beta)), which is -0.94 for .7 and .9.  On pairs that change
(`random-matching`) Nesterov's form is stable (disagreement times .907 a round for .7 and .9), the other is not (1.014
for 16 peers): there take a beta of .5.

SlowMo has the same step over several rounds (`slowmo`); its v follows the learning rate, and this one is of whole
rounds, whatever their rate was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgossip.algorithms.gossip.base import MODEL, Needs, Step, Vectors
from fedgossip.algorithms.gossip.outer import BETA, LR, OuterStep
from fedgossip.base.vectors import Vector, add, frozen, linear, subtract


@dataclass(frozen=True, eq=False)
class Outer:
    """Arrays [d] or [n, d]: the model, and the outer momentum, a displacement."""

    x: Vector
    v: Vector


class DiLoCo:
    """`lr` above 0, `beta` in [0, 1).  Raises ConfigError for others."""

    slots = (MODEL,)
    needs = Needs()

    def __init__(self, lr: float = LR, beta: float = BETA, *, nesterov: bool = True) -> None:
        self.outer = OuterStep(lr, beta, nesterov)

    def start(self, x: Vector) -> Outer:
        return Outer(x, frozen(np.zeros_like(x)))

    def trained(self, state: Outer, update: Vector | None, step: Step) -> tuple[Outer, Vectors]:  # noqa: ARG002
        return state, (state.x if update is None else add(state.x, update),)

    def moved(self, state: Outer, models: Vector) -> tuple[Outer, Vectors]:
        return state, (models,)

    def mixed(self, state: Outer, mixed: Vectors) -> Outer:
        return Outer(*self.outer.taken(state.x, state.v, subtract(mixed[0], state.x)))

    def model(self, state: Outer) -> Vector:
        return state.x

    def seen(self, state: Outer, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: Outer, differences: Vectors) -> Outer:
        """Count a late model as the step of its round would have."""
        (late,) = differences
        return Outer(linear((1, state.x), (self.outer.gain, late)), add(state.v, late))

    def rejoined(self, state: Outer, model: Vector) -> Outer:
        """The momentum stays: it covers past rounds, independent of their peers."""
        return replace(state, x=model)
