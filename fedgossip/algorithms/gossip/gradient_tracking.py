"""Gradient tracking, adapt-then-combine (DSGT: Pu and Nedic, Distributed stochastic gradient tracking methods,
Mathematical Programming 187, 2021; DIGing: Nedic, Olshevsky and Shi, SIAM J. Optim. 27, 2017):

    y_i  <-  c_i + u_i                      u_i: the change that node i's local steps made, from x_i
    x_i  <-  sum_j W_ij (x_j + y_j)
    c_i  <-  sum_j W_ij y_j - u_i           c_i begins with 0

y_i follows the mean update of all peers: sum_i c_i = 0 in every round, so sum_i y_i = sum_i u_i.  So the peers agree on
the optimum of the common loss however unlike their data are, where D-PSGD with a constant rate stays apart.

Two vectors go out, so a message has twice the bytes of D-PSGD's.  Where we differ: the papers track gradients; u_i is
-rate times the gradient for one plain step, and the sum of several local steps otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedgossip.algorithms.gossip.base import MODEL, Needs, Slot, Step, Vectors
from fedgossip.base.vectors import Vector, add, subtract


@dataclass(frozen=True, eq=False)
class Tracked:
    """Arrays [d] or [n, d]; `correction` is None where it is zero, `update` until a round is trained."""

    x: Vector
    correction: Vector | None = None
    update: Vector | None = None


class GradientTracking:
    """A restarted peer, or one that resumes with another's model, begins with c = 0: its earlier correction is lost."""

    slots = (MODEL, Slot("y"))
    needs = Needs(
        sums="both", linear=True
    )  # y follows the mean update where columns sum to one, x agrees where rows do

    def start(self, x: Vector) -> Tracked:
        return Tracked(x)

    def trained(self, state: Tracked, update: Vector | None, step: Step) -> tuple[Tracked, Vectors]:  # noqa: ARG002
        u = subtract(state.x, state.x) if update is None else update
        y = u if state.correction is None else add(state.correction, u)
        return replace(state, update=u), (add(state.x, y), y)

    def mixed(self, state: Tracked, mixed: Vectors) -> Tracked:
        assert state.update is not None, "a round is mixed before it is trained"
        x, y = mixed
        return Tracked(x, subtract(y, state.update))

    def model(self, state: Tracked) -> Vector:
        return state.x

    def seen(self, state: Tracked, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: Tracked, differences: Vectors) -> Tracked:
        x, y = differences
        return replace(state, x=add(state.x, x), correction=y if state.correction is None else add(state.correction, y))

    def rejoined(self, state: Tracked, model: Vector) -> Tracked:  # noqa: ARG002
        return Tracked(model)
