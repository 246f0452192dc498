"""Push-DIGing: gradient tracking on directed graphs (Nedic, Olshevsky and Shi, Achieving geometric convergence for
distributed optimization over time-varying graphs, SIAM J. Optim. 27, 2017), adapt-then-combine:

    y_i  <-  c_i + u_i                      u_i: the change that node i's local steps made, from z_i
    x_i  <-  sum_j P_ij (x_j + y_j)
    c_i  <-  sum_j P_ij y_j - u_i           c_i begins with 0
    w_i  <-  sum_j P_ij w_j                 begins with 1
    z_i  <-  x_i / w_i                      the model: start of training, and evaluated

The columns of P sum to one, so sum_i c_i = 0 in every round, and the sums of x move by the sum of the updates: as in
`gradient_tracking` the peers agree on the optimum of the common loss, and as in `push_sum` a peer need not know its
receivers.  Two vectors and a weight go out.

Where we differ: the paper combines before it adapts, and tracks gradients; u_i is -rate times the gradient for one
plain step, and the sum of several local steps otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgossip.algorithms.gossip.base import MODEL, WEIGHT, Needs, Slot, Step, Vectors
from fedgossip.algorithms.gossip.push_sum import debiased
from fedgossip.base.vectors import Vector, add, frozen, subtract


@dataclass(frozen=True, eq=False)
class TrackedMass:
    """`x` [d] or [n, d]; `weight` float64 [1] or [n, 1]; `correction` is None where it is zero, `update` until a round
    is trained.
    """

    x: Vector
    weight: Vector
    correction: Vector | None = None
    update: Vector | None = None


class PushDIGing:
    """For mixings whose columns sum to one.  A peer that resumes from another model begins with c = 0."""

    slots = (MODEL, Slot("y"), WEIGHT)
    needs = Needs(sums="columns")

    def start(self, x: Vector) -> TrackedMass:
        return TrackedMass(x, frozen(np.ones((*x.shape[:-1], 1))))

    def trained(self, state: TrackedMass, update: Vector | None, step: Step) -> tuple[TrackedMass, Vectors]:  # noqa: ARG002
        u = subtract(state.x, state.x) if update is None else update
        y = u if state.correction is None else add(state.correction, u)
        return replace(state, update=u), (add(state.x, y), y, state.weight)

    def mixed(self, state: TrackedMass, mixed: Vectors) -> TrackedMass:
        assert state.update is not None, "a round is mixed before it is trained"
        x, y, weight = mixed
        return TrackedMass(x, weight, subtract(y, state.update))

    def model(self, state: TrackedMass) -> Vector:
        return debiased(state.x, state.weight)

    def seen(self, state: TrackedMass, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return debiased(outgoing[0], outgoing[2])

    def corrected(self, state: TrackedMass, differences: Vectors) -> TrackedMass:
        """Add late mass."""
        x, y, weight = differences
        late = y if state.correction is None else add(state.correction, y)
        return replace(state, x=add(state.x, x), weight=add(state.weight, weight), correction=late)

    def rejoined(self, state: TrackedMass, model: Vector) -> TrackedMass:  # noqa: ARG002
        return self.start(model)
