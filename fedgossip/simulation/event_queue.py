"""What comes up in a simulation: events that machines are told, and what happens to peers and links themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedgossip.core.machine import Effect, Event, NodeId
from fedgossip.simulation.connections import Look


@dataclass(frozen=True, slots=True)
class Begin:
    """A peer starts that was not there before."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A peer that has died starts again."""


@dataclass(frozen=True, slots=True)
class Wake:
    """A peer that sleeps goes on."""


@dataclass(frozen=True, slots=True)
class AddedUp:
    """A peer has added up what it was told, and does these."""

    effects: Sequence[Effect]


Coming = Event | Look | Begin | Restart | Wake | AddedUp
OF_PEERS = frozenset({Begin, Restart, Wake})
"""What no machine is told."""

Cost = tuple[int, int]
"""The bytes of a message, and those of vectors among them."""
NO_COST: Cost = 0, 0

Lives = tuple[int, int]
"""The incarnations of the sender, and of the receiver as the sender knows it."""

Queued = tuple[int, NodeId, Coming, Cost, Lives]
"""In which order, to whom, what, at what cost, and from and to which life."""
