"""Records whose models a peer has mixed into its own, so that a run reports exchanges that never happened.

A peer that a neighbour refuses, or that is separated from it to the end, trains on without it, and nothing fails.  At
the end each peer therefore reports the neighbours that should have sent it a model and never did (`never_exchanged`),
and whether it has trained alone (`learned_alone`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from fedgossip.core.machine import Checkpoint, NodeId, Report

FRESH = {"uncarried": "all"}
"""Facts of a checkpoint without a history of exchanges; it starts from a model of others."""


class Carried:
    """One peer's record.  `resumed`: checkpoint of the last life; neighbours not named in it have exchanged."""

    def __init__(self, resumed: Checkpoint | None = None) -> None:
        facts: Any = resumed.facts if resumed else FRESH
        lacking = facts.get("uncarried", ())
        self._closed = lacking != FRESH["uncarried"]
        self._lacking: set[NodeId] = set(map(int, lacking)) if self._closed else set()
        self._came: set[NodeId] = set()
        self._alone = bool(facts.get("alone", False))  # some models were due, and none was received
        self._any = False

    def expect(self, nodes: Iterable[NodeId]) -> None:
        """Record that models of these nodes are due."""
        if not self._closed:
            self._lacking.update(set(nodes) - self._came)
            self._alone = not self._any and bool(self._lacking or self._came)

    def mark_received(self, nodes: Iterable[NodeId]) -> None:
        """Record models of these nodes that were received and could not be used."""
        self._came.update(nodes)
        self._lacking -= self._came

    def mark_mixed(self, *nodes: NodeId) -> None:
        """Record that models of these nodes are mixed into ours."""
        if nodes:
            self._alone, self._any = False, True
            self._came.update(nodes)
            self._lacking.difference_update(nodes)

    def saved(self) -> dict[str, object]:
        """Return the facts for a checkpoint; none where nothing is lacking."""
        return {"uncarried": sorted(self._lacking), "alone": self._alone} if self._lacking or self._alone else {}

    def report(self, round: int, among: Collection[NodeId]) -> list[Report]:
        """Return the final reports; `among` are the nodes that should have sent a model."""
        never = sorted(self._lacking & set(among))
        reports = [Report("never_exchanged", never, round)] if never else []
        return [*reports, Report("learned_alone", None, round)] if self._alone else reports
