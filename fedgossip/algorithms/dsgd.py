"""D-PSGD (Lian et al., NeurIPS 2017), adapt-then-combine:

    x_i  <-  sum_j W_ij (x_j + u_j)         u_j: the change that node j's local steps made

Where we differ: the paper's algorithm 1 applies a gradient taken at x_i to the mixed vector (combine, then adapt);
this form trains first and mixes the result, as today's systems do.  The stationary disagreement of the two differs,
and `tests/test_identity.py` tells them apart by number.  With several local steps u_j is their sum (local SGD).
"""

from __future__ import annotations

from fedgossip.vectors import Vector, add


class DSGD:
    """The state is the vector itself."""

    def start(self, x: Vector) -> Vector:
        return x

    def outgoing(self, state: Vector, update: Vector | None) -> tuple[Vector, ...]:
        return (state if update is None else add(state, update),)

    def incoming(self, _state: Vector, mixed: tuple[Vector, ...]) -> Vector:
        (x,) = mixed
        return x

    def model(self, state: Vector) -> Vector:
        return state

    def corrected(self, state: Vector, differences: tuple[Vector, ...]) -> Vector:
        (difference,) = differences
        return add(state, difference)

    def saved(self, state: Vector) -> tuple[Vector, ...]:
        return (state,)

    def restored(self, saved: tuple[Vector, ...]) -> Vector:
        (x,) = saved
        return x
