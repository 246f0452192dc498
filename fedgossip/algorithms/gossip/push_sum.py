"""Push-sum on directed graphs: plain, with momentum, and with gradient tracking.

Push-sum, as stochastic gradient push (Assran, Loizou, Ballas and Rabbat, ICML 2019), train then mix:

    x_i  <-  sum_j P_ij (x_j + u_j)         u_j: the change by node j's local steps, from z_j
    w_i  <-  sum_j P_ij w_j                 begins with 1
    z_i  <-  x_i / w_i                      the model: start of training, and evaluated

The columns of P sum to one, so the sums of x and w never change, on any directed graph and with another P in every
round, and z converges to sum x / sum w = mean x.  A node needs only the number of its receivers.  On strongly connected
graphs w is bounded away from zero.

Source of the sums: Kempe, Dobra and Gehrke, Gossip-based computation of aggregate information, FOCS 2003.

Push-sum with momentum (Yu, Jin and Yang, ICML 2019) sent as mass like the model:

    v_i  <-  beta M_i + u_i                 u_i: the change by node i's local steps, from z_i; M begins with 0
    x_i  <-  sum_j P_ij (x_j + v_j)
    M_i  <-  sum_j P_ij v_j
    w_i  <-  sum_j P_ij w_j                 begins with 1
    z_i  <-  x_i / w_i                      the model: start of training, and evaluated

The sum of all M is beta times itself plus the sum of the updates, as for one peer with momentum.  Local momentum is
`train.momentum`.

Push-DIGing: gradient tracking on directed graphs (Nedic, Olshevsky and Shi, Achieving geometric convergence for
distributed optimization over time-varying graphs, SIAM J. Optim. 27, 2017), adapt-then-combine:

    y_i  <-  c_i + u_i                      u_i: the change by node i's local steps, from z_i
    x_i  <-  sum_j P_ij (x_j + y_j)
    c_i  <-  sum_j P_ij y_j - u_i           c_i begins with 0
    w_i  <-  sum_j P_ij w_j                 begins with 1
    z_i  <-  x_i / w_i                      the model: start of training, and evaluated

sum_i c_i = 0 in every round, as in `gradient_tracking`.  Where we differ: the paper combines before it adapts, and
tracks gradients; u_i is -rate times the gradient for one plain step, and the sum of several local steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgossip.algorithms.gossip.base import MODEL, WEIGHT, Needs, Slot, Step, Vectors
from fedgossip.algorithms.gossip.momentum import at_rate, share
from fedgossip.base.vectors import Vector, add, empty, frozen, linear, subtract


@dataclass(frozen=True, eq=False)
class Mass:
    """`x` [d] or [n, d]; `weight` float64 [1] or [n, 1]."""

    x: Vector
    weight: Vector


class PushSum:
    """For mixings with columns that sum to one: `build(topology, "push")`, and every doubly stochastic one."""

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


@dataclass(frozen=True, eq=False)
class MassInMotion:
    """`x` and `motion` [d] or [n, d], None for zero; `weight` float64 [1] or [n, 1]; `rate`: see `momentum`."""

    x: Vector
    weight: Vector
    motion: Vector | None = None
    rate: Vector | float = 0.0


class PushMomentum:
    """`beta` in [0, 1).  A peer that resumes from another model begins without momentum."""

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


@dataclass(frozen=True, eq=False)
class TrackedMass:
    """`x` [d] or [n, d]; `weight` float64 [1] or [n, 1]; `correction` is None for zero, `update` None until a round is
    trained.
    """

    x: Vector
    weight: Vector
    correction: Vector | None = None
    update: Vector | None = None


class PushDIGing:
    """For mixings with columns that sum to one.  A peer that resumes from another model begins with c = 0."""

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
