"""Models that came before their round is mixed, and how far each neighbour was heard to be."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedgossip.core.machine import NodeId
from fedgossip.core.messages import Model, RelaySum
from fedgossip.protocols.gossip.mixing_schedule import LEAD_ROUNDS

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
        self.of: dict[int, dict[NodeId, Model | RelaySum]] = {}
        """By round, what has come of it by its sender; no round of which nothing is here."""
        self.newest: dict[NodeId, int] = {}
        """The latest round that each was heard of in."""
        self._far: dict[NodeId, set[int]] = {}  # the rounds far ahead that each has spoken of

    def heard(self, node: NodeId, round: int) -> None:
        """The neighbour speaks of `round`."""
        if round > self.newest.get(node, -1):
            self.newest[node] = round

    def has(self, node: NodeId, round: int) -> bool:
        return node in self.of.get(round, ())

    def here(self, round: int) -> Mapping[NodeId, Model | RelaySum]:
        """Return what is here of a round, by its sender."""
        return self.of.get(round, {})

    def rounds(self, node: NodeId) -> list[int]:
        """Return the rounds of which the neighbour's models are here, ascending."""
        return sorted(round for round, here in self.of.items() if node in here)

    def put(self, node: NodeId, model: Model | RelaySum, current: int) -> bool:
        """Keep a model of round `current` or later; false for one that is here already."""
        round = model.round
        here = self.of.get(round)
        if here is None:
            here = self.of[round] = {}
        elif node in here:
            return False
        here[node] = model
        last = current + self.leads.get(node, LEAD_ROUNDS)
        if max(self.of) <= last:
            return True
        rounds = self.rounds(node)
        if rounds[-1] > last:  # it has gone on without us, and so shall we
            for stale in rounds[:-1]:
                if stale != current:
                    self._drop(node, stale)
        return True

    def _drop(self, node: NodeId, round: int) -> None:
        del self.of[round][node]
        if not self.of[round]:
            del self.of[round]

    def go_to(self, round: int) -> None:
        """Forget the rounds before."""
        self.of.pop(round - 1, None)  # mostly all that there is
        for old in [one for one in self.of if one < round] if self.of else ():
            del self.of[old]

    def reborn(self, node: NodeId, current: int | None) -> None:
        """Forget all of an earlier life but its model of round `current`."""
        self.newest.pop(node, None)
        for round in self.rounds(node):
            if round != current:
                self._drop(node, round)

    def clear(self) -> None:
        self.of.clear()

    def unbelieved(self, listening: Collection[NodeId], current: int) -> list[tuple[NodeId, int]]:
        """Drop, and return, the rounds far ahead of which one alone of those `listening` speaks, unless it insists."""
        heard = {j: max(self.rounds(j), default=current) for j in listening}
        believed = sorted(heard.values())[-2] if len(heard) > 1 else max(heard.values(), default=current)
        alone = [(j, r) for j, r in heard.items() if r > believed + FAR_ROUNDS and self._says(j, r) < FAR_TIMES]
        for node, round in alone:
            self._drop(node, round)
        return alone

    def _says(self, node: NodeId, round: int) -> int:
        """In how many rounds from `round` down, within FAR_ROUNDS, the neighbour has said so."""
        self._far[node] = {round, *(r for r in self._far.get(node, ()) if round - FAR_ROUNDS < r < round)}
        return len(self._far[node])

    def ahead(self, current: int) -> list[tuple[NodeId, int]]:
        """The latest round of each neighbour whose model of a round after `current` is here."""
        latest: dict[NodeId, int] = {}
        for round in sorted(self.of) if len(self.of) > 1 or current not in self.of else ():
            if round > current:
                latest.update(dict.fromkeys(self.of[round], round))
        return list(latest.items())
