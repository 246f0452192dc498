"""D-PSGD (Lian et al., NeurIPS 2017), adapt-then-combine:

    x_i  <-  sum_j W_ij (x_j + u_j)         u_j: the change that node j's local steps made

Where we differ: the paper's algorithm 1 applies a gradient taken at x_i to the mixed vector (combine, then adapt); this
form trains first and mixes the result, as today's systems do.  The stationary disagreement of the two differs, and
`tests/net/test_identity.py` distinguishes them by number.  With several local steps u_j is their sum (local SGD).
"""

from __future__ import annotations

from dataclasses import dataclass

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
