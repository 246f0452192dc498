"""Models that came before their round is mixed, and how far each neighbour was heard to be."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedgossip.machine import NodeId
from fedgossip.messages import Model, RelaySum
from fedgossip.protocols.mixing_schedule import LEAD_ROUNDS

FAR_ROUNDS, FAR_TIMES = 64, 3
"""So far ahead we follow one neighbour, while others are there that do not say so, only when it has said it so often:
half of a network that was parted may be far ahead, and one message may be anything."""


class Mailbox:
    """One peer's.  `leads`: how many rounds ahead a neighbour's models are kept; one that is further has gone on alone.

    No model of a round before the current one is here, and of each neighbour at most as many as it can be ahead, the
    current one's and one more: whatever is sent, and in whatever order.
    """

    def __init__(self, leads: Mapping[NodeId, int]) -> None:
        self.leads = leads
        self.kept: dict[NodeId, dict[int, Model | RelaySum]] = {}
        self.newest: dict[NodeId, int] = {}
        """The latest round that each was heard of in."""
        self._far: dict[NodeId, set[int]] = {}  # the rounds far ahead that each has spoken of

    def heard(self, node: NodeId, round: int) -> None:
        """The neighbour speaks of `round`."""
        if round > self.newest.get(node, -1):
            self.newest[node] = round

    def has(self, node: NodeId, round: int) -> bool:
        return round in self.kept.get(node, ())

    def givers(self, round: int) -> set[NodeId]:
        """Return those whose model of a round is here."""
        return {node for node, kept in self.kept.items() if round in kept}

    def model(self, node: NodeId, round: int) -> Model | RelaySum:
        return self.kept[node][round]

    def put(self, node: NodeId, model: Model | RelaySum, current: int) -> bool:
        """Keep a model of round `current` or later; false for one that is here already."""
        kept = self.kept.get(node)
        if kept is None:
            kept = self.kept[node] = {}
        if model.round in kept:
            return False
        kept[model.round] = model
        if model.round == current and len(kept) == 1:
            return True
        if max(kept) > current + self.leads.get(node, LEAD_ROUNDS):  # it has gone on without us, and so shall we
            for stale in set(kept) - {current, max(kept)}:
                del kept[stale]
        return True

    def go_to(self, round: int) -> None:
        """Forget the rounds before."""
        for kept in self.kept.values():
            kept.pop(round - 1, None)  # mostly all that there is
            for old in [r for r in kept if r < round] if kept else ():
                del kept[old]

    def reborn(self, node: NodeId, current: int | None) -> None:
        """Forget all of an earlier life but its model of round `current`."""
        self.newest.pop(node, None)
        said = self.kept.pop(node, {})
        if current in said:
            self.kept[node] = {current: said[current]}

    def clear(self) -> None:
        self.kept.clear()

    def unbelieved(self, listening: Collection[NodeId], current: int) -> list[tuple[NodeId, int]]:
        """Drop, and return, the rounds far ahead of which one alone of those `listening` speaks, unless it insists."""
        heard = {j: max(self.kept.get(j) or [current]) for j in listening}
        believed = sorted(heard.values())[-2] if len(heard) > 1 else max(heard.values(), default=current)
        alone = [(j, r) for j, r in heard.items() if r > believed + FAR_ROUNDS and self._says(j, r) < FAR_TIMES]
        for node, round in alone:
            del self.kept[node][round]
        return alone

    def _says(self, node: NodeId, round: int) -> int:
        """In how many rounds from `round` down, within FAR_ROUNDS, the neighbour has said so."""
        self._far[node] = {round, *(r for r in self._far.get(node, ()) if round - FAR_ROUNDS < r < round)}
        return len(self._far[node])

    def ahead(self, current: int) -> list[tuple[NodeId, int]]:
        """The latest round of each neighbour whose model of a round after `current` is here."""
        if max(self.newest.values(), default=-1) <= current:  # nobody has spoken of a later one
            return []
        newest = [(j, max(kept)) for j, kept in self.kept.items() if kept and (len(kept) > 1 or current not in kept)]
        return [(j, r) for j, r in newest if r > current]
