"""D-PSGD in both orders: adapt-then-combine, and combine-then-adapt.

D-PSGD (Lian et al., NeurIPS 2017), adapt-then-combine:

    x_i  <-  sum_j W_ij (x_j + u_j)         u_j: the change by node j's local steps

Where we differ: the paper's algorithm 1 combines, then adapts; this form mixes the trained model, as current systems
do.  The stationary disagreements differ, and `tests/net/test_identity.py` distinguishes them.  For several local steps
u_j is their sum (local SGD).

D-PSGD as in its paper (Lian et al., NeurIPS 2017, algorithm 1), combine-then-adapt:

    x_i  <-  sum_j W_ij x_j  +  u_i         u_i: the change by node i's local steps, from x_i

A round ends with an unmixed update, so peers stay further apart; `algorithm.options = { order = "cta" }` of `dsgd`.
Where we differ: the vector is sent after the training, not during it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedgossip.algorithms.gossip.base import MODEL, Needs, Step, Vectors
from fedgossip.base.vectors import Vector, add


@dataclass(frozen=True, eq=False)
class Iterate:
    """`x` [d] or [n, d]: the model."""

    x: Vector


class DSGD:
    """The state is the model itself."""

    slots = (MODEL,)
    needs = Needs()

    def start(self, x: Vector) -> Iterate:
        return Iterate(x)

    def trained(self, state: Iterate, update: Vector | None, step: Step) -> tuple[Iterate, Vectors]:  # noqa: ARG002
        return state, (state.x if update is None else add(state.x, update),)

    def moved(self, state: Iterate, models: Vector) -> tuple[Iterate, Vectors]:
        return state, (models,)

    def mixed(self, state: Iterate, mixed: Vectors) -> Iterate:  # noqa: ARG002
        return Iterate(*mixed)

    def model(self, state: Iterate) -> Vector:
        return state.x

    def seen(self, state: Iterate, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: Iterate, differences: Vectors) -> Iterate:
        return Iterate(add(state.x, *differences))

    def rejoined(self, state: Iterate, model: Vector) -> Iterate:  # noqa: ARG002
        return Iterate(model)


@dataclass(frozen=True, eq=False)
class UnmixedState:
    """`x` [d] or [n, d]: the model; `update` waits until the round is mixed, else None."""

    x: Vector
    update: Vector | None = None


class CombineThenAdapt:
    """The mix uses the model before the training."""

    slots = (MODEL,)
    needs = Needs()

    def start(self, x: Vector) -> UnmixedState:
        return UnmixedState(x)

    def trained(self, state: UnmixedState, update: Vector | None, step: Step) -> tuple[UnmixedState, Vectors]:  # noqa: ARG002
        return UnmixedState(state.x, update), (state.x,)

    def mixed(self, state: UnmixedState, mixed: Vectors) -> UnmixedState:
        (x,) = mixed
        return UnmixedState(x if state.update is None else add(x, state.update))

    def model(self, state: UnmixedState) -> Vector:
        return state.x

    def seen(self, state: UnmixedState, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: UnmixedState, differences: Vectors) -> UnmixedState:
        return replace(state, x=add(state.x, *differences))

    def rejoined(self, state: UnmixedState, model: Vector) -> UnmixedState:  # noqa: ARG002
        return UnmixedState(model)
