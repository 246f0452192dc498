"""What participants are called: the peers of a graph, or the clients of a coordinator."""

from __future__ import annotations

from dataclasses import dataclass

OF_THE_OPEN_ROUND = frozenset(
    {
        "abandoned",
        "abandoned_here",
        "abstained",
        "awaits",
        "cut",
        "deserted",
        "gone",
        "late",
        "misfits",
        "missed",
        "repeated",
        "stale",
        "started_without",
    }
)
"""What a coordinator and its clients tell of the round that is open, by how many are behind it."""


@dataclass(frozen=True)
class Names:
    """`coordinator`: the node that leads a federated run, whose clients are all nodes before it; None: a graph."""

    coordinator: int | None = None

    @property
    def one(self) -> str:
        return "peer" if self.coordinator is None else "client"

    def of(self, node: int) -> str:
        """Return "peer 3", "client 3" or "coordinator"."""
        return "coordinator" if node == self.coordinator else f"{self.one} {node}"

    def round(self, event: str, round: int) -> int:
        """Return the round of an event as people count: a federated round by the number that its result will have."""
        return round + (self.coordinator is not None and round >= 0 and event in OF_THE_OPEN_ROUND)


PEERS = Names()
"""Of a run without a coordinator."""
