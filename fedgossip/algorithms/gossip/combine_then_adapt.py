"""D-PSGD as its paper writes it (Lian et al., NeurIPS 2017, algorithm 1), combine-then-adapt:

    x_i  <-  sum_j W_ij x_j  +  u_i         u_i: the change that node i's local steps made, from x_i

A peer ends a round with an unmixed update of its own, so peers stay further apart than in the other order;
`algorithm.options = { order = "cta" }` of `dsgd`.  Where we differ: the vector goes out after the training, so that
mixing and training are not done at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedgossip.algorithms.gossip.base import MODEL, Needs, Step, Vectors
from fedgossip.base.vectors import Vector, add


@dataclass(frozen=True, eq=False)
class UnmixedState:
    """`x` [d] or [n, d]: the model; `update` waits until the round is mixed, None otherwise."""

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
