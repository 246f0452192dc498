"""Notes whose models have been mixed into a peer's own: a run in which this did not happen can say so.

A peer that is refused by a neighbour, or parted from it to the end, learns on without it, and nothing fails.  At the
end each peer therefore tells which neighbours were to give it a model and never did (`never_exchanged`), and whether
it has learned alone (`learned_alone`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from fedgossip.core.machine import Checkpoint, NodeId, Report

FRESH = {"uncarried": "all"}
"""In the facts of a checkpoint: nothing is known of exchanges before it; what it goes on from is a model of others."""


class Carried:
    """One peer's account.  `resumed`: of a life that goes on; what it does not tell of has come in the one before."""

    def __init__(self, resumed: Checkpoint | None = None) -> None:
        facts: Any = resumed.facts if resumed else FRESH
        lacking = facts.get("uncarried", ())
        self._closed = lacking != FRESH["uncarried"]
        self._lacking: set[NodeId] = set(map(int, lacking)) if self._closed else set()
        self._came: set[NodeId] = set()
        self._alone = bool(facts.get("alone", False))  # some were to come, and none did
        self._any = False

    def due(self, nodes: Iterable[NodeId]) -> None:
        """Note that models of these were to come."""
        if not self._closed:
            self._lacking.update(set(nodes) - self._came)
            self._alone = not self._any and bool(self._lacking or self._came)

    def heard(self, nodes: Iterable[NodeId]) -> None:
        """What these were to give has come, and nothing could be made of it."""
        self._came.update(nodes)
        self._lacking -= self._came

    def came(self, *nodes: NodeId) -> None:
        """Note that models of these are mixed into ours."""
        if nodes:
            self._alone, self._any = False, True
            self._came.update(nodes)
            self._lacking.difference_update(nodes)

    def saved(self) -> dict[str, object]:
        """Return the facts for a checkpoint; none where nothing is lacking."""
        return {"uncarried": sorted(self._lacking), "alone": self._alone} if self._lacking or self._alone else {}

    def told(self, round: int, among: Collection[NodeId]) -> list[Report]:
        """Return what is to be said at the end; only of those `among` whom a word is expected."""
        never = sorted(self._lacking & set(among))
        reports = [Report("never_exchanged", never, round)] if never else []
        return [*reports, Report("learned_alone", None, round)] if self._alone else reports
