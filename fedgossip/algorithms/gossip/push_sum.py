"""Push-sum, as stochastic gradient push (Assran, Loizou, Ballas and Rabbat, ICML 2019), train then mix:

    x_i  <-  sum_j P_ij (x_j + u_j)         u_j: the change that node j's local steps made, from z_j
    w_i  <-  sum_j P_ij w_j                 begins with 1
    z_i  <-  x_i / w_i                      the model: start of training, and evaluated

The columns of P sum to one: each node gives away what it has, and needs to know to how many only.  So the sums of x and
of w never change, on any directed graph and with another P in every round, and z converges to sum x / sum w = mean x.

The weights stay away from zero where the graph is strongly connected: w converges to n times the Perron vector of P.
They sum to n, so that none can grow without end; one that is tiny belongs to a node that hardly anybody sends to.

Source of the sums: Kempe, Dobra and Gehrke, Gossip-based computation of aggregate information, FOCS 2003.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgossip.algorithms.gossip.base import MODEL, WEIGHT, Needs, Step, Vectors
from fedgossip.base.vectors import Vector, add, empty, frozen


@dataclass(frozen=True, eq=False)
class Mass:
    """`x` [d] or [n, d]; `weight` float64 [1] or [n, 1]."""

    x: Vector
    weight: Vector


class PushSum:
    """For mixings whose columns sum to one: `build(topology, "push")`, and every doubly stochastic one."""

    slots = (MODEL, WEIGHT)
    needs = Needs(sums="columns")

    def start(self, x: Vector) -> Mass:
        return Mass(x, frozen(np.ones((*x.shape[:-1], 1))))

    def trained(self, state: Mass, update: Vector | None, step: Step) -> tuple[Mass, Vectors]:  # noqa: ARG002
        return state, (state.x if update is None else add(state.x, update), state.weight)

    def mixed(self, state: Mass, mixed: Vectors) -> Mass:  # noqa: ARG002
        return Mass(*mixed)

    def model(self, state: Mass) -> Vector:
        return debiased(state.x, state.weight)

    def seen(self, state: Mass, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return debiased(*outgoing)

    def corrected(self, state: Mass, differences: Vectors) -> Mass:
        """Add late mass."""
        x, weight = differences
        return replace(state, x=add(state.x, x), weight=add(state.weight, weight))

    def rejoined(self, state: Mass, model: Vector) -> Mass:  # noqa: ARG002
        return self.start(model)


def debiased(x: Vector, weight: Vector | float) -> Vector:
    """Return x / weight, frozen, the weight rounded to the type of x first; [d] and a number, or [n, d] and [n, 1]."""
    out = empty(x.size, x.dtype).reshape(x.shape)
    return frozen(np.divide(x, np.asarray(weight).astype(x.dtype), out=out))
