"""The graph of each round among its participants: a function of (roster, round), the same at every peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fedgossip.base import seeds
from fedgossip.core.machine import NodeId
from fedgossip.protocols.members.roster import LAST_ROUND, Roster


class PlaceWeights(Protocol):
    def row(self, node: NodeId) -> dict[NodeId, float]: ...
    def targets(self, node: NodeId) -> tuple[NodeId, ...]: ...


class Places(Protocol):
    """A schedule over the places 0 to m - 1."""

    @property
    def period(self) -> int: ...
    def mixing(self, round: int) -> PlaceWeights: ...
    def partners(self, node: NodeId) -> tuple[NodeId, ...]: ...


Make = Callable[[tuple[NodeId, ...]], Places]
"""Makes the graphs for these members, by their places in the tuple."""


@dataclass(frozen=True)
class _Named:
    """Weights over places, returned by id."""

    ids: tuple[NodeId, ...]
    weights: PlaceWeights

    def row(self, node: NodeId) -> dict[NodeId, float]:
        if node not in self.ids:  # not a participant: it keeps its model
            return {node: 1.0}
        return {self.ids[j]: weight for j, weight in self.weights.row(self.ids.index(node)).items()}

    def targets(self, node: NodeId) -> tuple[NodeId, ...]:
        if node not in self.ids:
            return ()
        return tuple(self.ids[j] for j in self.weights.targets(self.ids.index(node)))


class RosterSchedule:
    """The mixing of each round: a function of (roster, round), the same at every peer.

    `made` caches the graphs of each set of members, for the next schedule too; `earlier`: one node's partners under
    earlier rosters, which may have an account to settle.
    """

    def __init__(self, roster: Roster, make: Make, made: dict[tuple[NodeId, ...], Places] | None = None) -> None:
        self.roster, self._make = roster, make
        self.earlier: dict[NodeId, tuple[NodeId, ...]] = {}
        self._made = {} if made is None else made
        self._changes = roster.changes()
        self._ids: dict[int, tuple[NodeId, ...]] = {}  # by the round of the last change
        self._views: dict[int, str] = {}

    @property
    def period(self) -> int:
        """Number of rounds after which the mixings of the last participants repeat; 0: never."""
        ids = self.participants(LAST_ROUND - 1)
        return self._places(ids).period if ids else 1

    def _change(self, round: int) -> int:
        return max((change for change in self._changes if change <= round), default=0)

    def participants(self, round: int) -> tuple[NodeId, ...]:
        """Return the members that take part in `round`, ascending."""
        change = self._change(round)
        if change not in self._ids:
            self._ids[change] = self.roster.participants(change)
        return self._ids[change]

    def mixing(self, round: int) -> PlaceWeights:
        """Return the mixing of `round`, by ids."""
        ids = self.participants(round)
        return _Named(ids, self._places(ids).mixing(round))

    def view(self, round: int) -> str:
        """Return a name for the participants of `round`: peers with the same graph give it the same."""
        change = self._change(round)
        if change not in self._views:
            self._views[change] = f"{seeds.integer(0, 'view', *self.participants(round)):016x}"
        return self._views[change]

    def partners(self, node: NodeId) -> tuple[NodeId, ...]:
        """Return all that `node` sends to or receives from in any round, or did, ascending."""
        found = set(self.earlier.get(node, ()))
        for change in (0, *self._changes):
            ids = self.participants(change)
            if node in ids:
                found.update(ids[j] for j in self._places(ids).partners(ids.index(node)))
        return tuple(sorted(found))

    def _places(self, ids: tuple[NodeId, ...]) -> Places:
        if ids not in self._made:
            while len(self._made) >= KEPT_GRAPHS:
                del self._made[next(iter(self._made))]
            self._made[ids] = self._make(ids)
        return self._made[ids]


def contacts_of(roster: Roster, node: NodeId, most: int, schedule: Callable[[], RosterSchedule]) -> list[NodeId]:
    """Return the members to link to, also gone ones, ascending.  Symmetric: they link to `node`.

    All, up to `most` members; above, those at distances of powers of two, and the partners in the `schedule`.
    """
    ids = sorted(roster.entries.keys() - roster.revoked.keys())
    if len(ids) <= most or node not in ids:
        return [other for other in ids if other != node]
    own = ids.index(node)
    steps = [1 << k for k in range((len(ids) - 1).bit_length())]
    found = {ids[(own + sign * step) % len(ids)] for step in steps for sign in (1, -1)}
    return sorted((found | set(schedule().partners(node))) - {node})


KEPT_GRAPHS = 16
