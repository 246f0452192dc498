"""Which mixing is used in which round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fedgossip.topology.mixing import Mixing


class Schedule(Protocol):
    """One mixing per round, repeating after `period` rounds.  A plain Mixing is a Schedule of period 1.

    Every peer computes the mixing of round r from r alone, so that all share the phase without talking about it.
    """

    @property
    def n(self) -> int:
        """The number of nodes, the same in every round."""
        ...

    @property
    def period(self) -> int:
        """After how many rounds the mixings repeat; at least 1."""
        ...

    def mixing(self, round: int) -> Mixing:
        """Return the mixing of `round`, counted from 0."""
        ...
