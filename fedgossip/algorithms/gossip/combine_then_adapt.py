"""D-PSGD as its paper writes it (Lian et al., NeurIPS 2017, algorithm 1), combine-then-adapt:

    x_i  <-  sum_j W_ij x_j  +  u_i         u_i: the change that node i's local steps made, from x_i

A peer ends a round with an update of its own that nobody has mixed yet, so peers stay further apart than in the other
order; `algorithm.options = { order = "cta" }` of `dsgd`.  Where we differ: the vector goes out after the training, so
that mixing and training are not done at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedgossip.algorithms.gossip.base import MODEL, Needs, Step, Vectors
from fedgossip.base.vectors import Vector, add


@dataclass(frozen=True, eq=False)
class Unmixed:
    """`x` [d] or [n, d]: the model; `update` waits until the round is mixed, None otherwise."""

    x: Vector
    update: Vector | None = None


class CombineThenAdapt:
    """What is mixed is the model as it was before the training."""

    slots = (MODEL,)
    needs = Needs()

    def start(self, x: Vector) -> Unmixed:
        return Unmixed(x)

    def trained(self, state: Unmixed, update: Vector | None, step: Step) -> tuple[Unmixed, Vectors]:  # noqa: ARG002
        return Unmixed(state.x, update), (state.x,)

    def mixed(self, state: Unmixed, mixed: Vectors) -> Unmixed:
        (x,) = mixed
        return Unmixed(x if state.update is None else add(x, state.update))

    def model(self, state: Unmixed) -> Vector:
        return state.x

    def seen(self, state: Unmixed, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: Unmixed, differences: Vectors) -> Unmixed:
        return replace(state, x=add(state.x, *differences))

    def rejoined(self, state: Unmixed, model: Vector) -> Unmixed:  # noqa: ARG002
        return Unmixed(model)
