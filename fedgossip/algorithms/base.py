"""What a gossip algorithm is: the box of a paper, with the network taken out."""

from __future__ import annotations

from typing import Protocol, TypeVar

from fedgossip.vectors import Vector

State = TypeVar("State")


class GossipAlgorithm(Protocol[State]):
    """Every array is [d] (one peer) or [n, d] (all peers at once); nothing is changed in place."""

    def start(self, x: Vector) -> State:
        """The state of a peer whose first vector is `x`."""
        ...

    def outgoing(self, state: State, update: Vector | None) -> tuple[Vector, ...]:
        """What this round mixes, after local training gave `update` (None: no change)."""
        ...

    def incoming(self, state: State, mixed: tuple[Vector, ...]) -> State:
        """The state after the mixing of what was outgoing, own and neighbours'."""
        ...

    def model(self, state: State) -> Vector:
        """The vector to train from, and to evaluate."""
        ...

    def corrected(self, state: State, differences: tuple[Vector, ...]) -> State:
        """The state after `differences`, one per mixed vector, have been added to what was mixed."""
        ...

    def saved(self, state: State) -> tuple[Vector, ...]:
        """All that the state is, for a checkpoint."""
        ...

    def restored(self, saved: tuple[Vector, ...]) -> State:
        """The state that `saved` was taken of."""
        ...
