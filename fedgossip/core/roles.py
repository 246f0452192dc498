"""Who is who in a run: the roles that its participants have, and what they are called.

    Roles((Role("worker", 0, 8), Role("server", 8, 2, learns=False, transport=SERVER)))

Plans make them (`Plan.roles`), drivers choose by them, and all that is told of a run takes its words from them: the
summary and roles.json of a run directory hold them for those who read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fedgossip.core.machine import NodeId

MESH, SERVER, CLIENT = "mesh", "server", "client"
"""How a participant is connected: with all that it talks to; called by all; calling one, and called by nobody."""


NAME_LETTERS = 40
"""Maximum number of letters in the name of a role."""

ROLES = "roles.json"
"""In a run directory, and in the folder of a participant of several machines: the run's name, and who takes part."""


@dataclass(frozen=True)
class Role:
    """What `count` participants with consecutive ids are, the first of them `first`.

    Raises ValueError for fewer than none, and for a name that cannot be printed: roles are read from files too.
    """

    name: str
    """One of them, as people say it: peer, client, coordinator."""
    first: NodeId = 0
    count: int = 1
    learns: bool = True
    """Trains on examples of its own."""
    counted: bool = True
    """Its rounds are those of the run, and its final vector is of the outcome; without its rows there is no record."""
    transport: str = MESH
    logged: bool = False
    """Keeps a signed log of what leaves it and of what it refuses."""
    number: int = 0
    """The first one's in what it is called: its id, where a role's ids do not follow each other."""

    def __post_init__(self) -> None:
        if self.count < 0 or self.first < 0:
            raise ValueError(f"{self.count} participants from id {self.first} on cannot be")
        if not (self.name.isprintable() and 0 < len(self.name) <= NAME_LETTERS):
            raise ValueError(f"{self.name[:NAME_LETTERS]!r} is no name of a role")

    @property
    def ids(self) -> range:
        return range(self.first, self.first + self.count)

    @property
    def listens(self) -> bool:
        """Whether others call it, so that it needs an address."""
        return self.transport != CLIENT


@dataclass(frozen=True)
class Roles:
    """All roles of a run, ascending by id without gaps; those that learn come first.  Raises ValueError for others."""

    all: tuple[Role, ...]

    def __post_init__(self) -> None:
        ends = [0, *(role.ids.stop for role in self.all)]
        if [role.first for role in self.all] != ends[:-1] or not self.all:
            raise ValueError("the ids of a run's roles do not follow each other from 0 on")
        if sorted(self.all, key=lambda role: not role.learns) != list(self.all) or not self.all[0].learns:
            raise ValueError("those that learn have the first ids")

    @property
    def n(self) -> int:
        """All participants: ids 0 to n - 1."""
        return self.all[-1].ids.stop

    @property
    def learners(self) -> int:
        """Those that learn: ids 0 to learners - 1."""
        return sum(role.count for role in self.all if role.learns)

    @property
    def counted(self) -> Sequence[NodeId]:
        """Ids of those whose rounds and vectors are the run's, ascending."""
        return tuple(node for role in self.all if role.counted for node in role.ids)

    @property
    def alike(self) -> bool:
        """Whether all have one role, so that a number alone names a participant."""
        return len(self.all) == 1

    @property
    def one(self) -> str:
        """What one of those that learn is called; of several names that of those whose rounds are the run's."""
        return next((role.name for role in self.all if role.learns and role.counted), self.all[0].name)

    @property
    def measured(self) -> str:
        """What one of those is called whose models are the run's."""
        return next((role.name for role in self.all if role.counted), self.one)

    @property
    def leader(self) -> NodeId | None:
        """The one whose model the run is about and which does not learn itself: a coordinator.  None: there is none."""
        alone = [role for role in self.all if role.counted]
        return alone[0].first if len(alone) == 1 and alone[0].count == 1 and not alone[0].learns else None

    def of(self, node: NodeId) -> Role:
        """The role of a participant.  Raises ValueError for an id that is none's."""
        role = self._found(node)
        if role is None:
            raise ValueError(f"participant {node} of {self.n} has no role")
        return role

    def listens(self, node: NodeId) -> bool:
        """Whether others call a participant; nobody calls one that is not there."""
        role = self._found(node)
        return role is not None and role.listens

    def label(self, node: NodeId) -> str:
        """What a participant is called: "server 1", counted in its role; "coordinator", being the only one."""
        role = self._found(node)
        if role is None:
            return f"{self.one} {node}"
        if role.count == 1 and not role.learns:
            return role.name
        return f"{role.name} {node - role.first + role.number}"

    @property
    def said(self) -> str:
        """How many there are of each role, without a leader: "5 clients"; "4 workers, 2 servers"."""
        sizes = self.sizes(leader=False).items()
        return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in sizes)

    def sizes(self, *, leader: bool = True) -> dict[str, int]:
        """How many there are of each name, in order; without the `leader` where it learns nothing itself."""
        found: dict[str, int] = {}
        for role in self.all:
            if leader or role.first != self.leader or role.learns:
                found[role.name] = found.get(role.name, 0) + role.count
        return found

    def _found(self, node: NodeId) -> Role | None:
        return next((role for role in self.all if node in role.ids), None)

    @property
    def plain(self) -> list[dict[str, Any]]:
        """The same as plain data, for a file."""
        return [msgspec.to_builtins(role) for role in self.all]


def roles_from(content: object) -> Roles:
    """Return the roles that plain data tell, from whatever file.  Raises ValueError."""
    return Roles(tuple(msgspec.convert(content, list[Role])))


def roles_in(summary: Mapping[str, Any]) -> Roles:
    """Return the roles that a summary tells; one from before they were told has peers, or clients of a coordinator.

    Raises ValueError for what no summary tells.
    """
    if "roles" in summary:
        return roles_from(summary["roles"])
    n = summary.get("n")
    learners = n if isinstance(n, int) and n >= 0 else 0
    return federated_roles(learners) if summary.get("mode") == "federated" else peer_roles(learners)


def peer_roles(n: int) -> Roles:
    """The roles of a gossip run; `n` may be 0 where nobody knows it."""
    return Roles((Role("peer", 0, n),))


def federated_roles(clients: int) -> Roles:
    """The roles of a federated run."""
    client = Role("client", 0, clients, counted=False, transport=CLIENT, logged=True)
    return Roles((client, Role("coordinator", clients, learns=False, transport=SERVER, logged=True)))


PEERS = peer_roles(0)
"""Of a run of which nobody knows more."""
