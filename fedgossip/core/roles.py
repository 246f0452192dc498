"""The roles of a run's participants, and their names.

    Roles((Role("worker", 0, 8), Role("server", 8, 2, learns=False, transport=SERVER)))

Plans make them (`Plan.roles`), drivers dispatch on them, reports word them; the summary and roles.json store them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fedgossip.core.machine import NodeId

MESH, SERVER, CLIENT, TIER = "mesh", "server", "client", "tier"
"""Connections of a participant: to all neighbours; listening for all; dialling one; dialling one and listening."""


NAME_LETTERS = 40
"""Maximum number of letters in the name of a role."""


@dataclass(frozen=True)
class Role:
    """The role of `count` participants from id `first`.  Raises ValueError for a negative count or unprintable name."""

    name: str
    """Singular noun for people: peer, client, coordinator."""
    first: NodeId = 0
    count: int = 1
    learns: bool = True
    """Whether it trains on its own examples."""
    counted: bool = True
    """Whether its rounds are those of the run and its final vector is part of the result; its rows are then required.
    """
    transport: str = MESH
    logged: bool = False
    """Whether it keeps a signed log of the frames that it sends and refuses."""
    number: int = 0
    """Number of the first one in its label: its id, if a role's ids are not consecutive."""

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
        """Whether others connect to it, so that it needs an address."""
        return self.transport != CLIENT


@dataclass(frozen=True)
class Roles:
    """All roles of a run, ascending by id without gaps, learners first.  Raises ValueError otherwise."""

    all: tuple[Role, ...]

    def __post_init__(self) -> None:
        ends = [0, *(role.ids.stop for role in self.all)]
        if [role.first for role in self.all] != ends[:-1] or not self.all:
            raise ValueError("the ids of a run's roles do not follow each other from 0 on")
        if sorted(self.all, key=lambda role: not role.learns) != list(self.all) or not self.all[0].learns:
            raise ValueError("those that learn have the first ids")

    @property
    def n(self) -> int:
        """Number of participants, with ids 0 to n - 1."""
        return self.all[-1].ids.stop

    @property
    def learners(self) -> int:
        """Number of learners, with ids 0 to learners - 1."""
        return sum(role.count for role in self.all if role.learns)

    @property
    def counted(self) -> Sequence[NodeId]:
        """Ids of the participants with counted rounds and vectors, ascending."""
        return tuple(node for role in self.all if role.counted for node in role.ids)

    @property
    def alike(self) -> bool:
        """Whether all have one role, so that a number alone identifies a participant."""
        return len(self.all) == 1

    @property
    def one(self) -> str:
        """Name of a learner; if learners have several names, that of the counted role."""
        return next((role.name for role in self.all if role.learns and role.counted), self.all[0].name)

    @property
    def measured(self) -> str:
        """Name of a participant of the counted role."""
        return next((role.name for role in self.all if role.counted), self.one)

    @property
    def leader(self) -> NodeId | None:
        """Id of the coordinator: the counted participant that does not learn.  None without one."""
        alone = [role for role in self.all if role.counted]
        return alone[0].first if len(alone) == 1 and alone[0].count == 1 and not alone[0].learns else None

    def get_role(self, node: NodeId) -> Role:
        """Return the role of a participant.  Raises ValueError for an unknown id."""
        role = self._find_role(node)
        if role is None:
            raise ValueError(f"participant {node} of {self.n} has no role")
        return role

    def listens(self, node: NodeId) -> bool:
        """Whether others connect to a participant; False for an unknown id."""
        role = self._find_role(node)
        return role is not None and role.listens

    def label(self, node: NodeId) -> str:
        """Return a participant's label: "server 1", numbered by role; "coordinator"; "the run" for a negative id."""
        if node < 0:
            return "the run"
        role = self._find_role(node)
        if role is None:
            return f"{self.one} {node}"
        if role.count == 1 and not role.learns:
            return role.name
        return f"{role.name} {node - role.first + role.number}"

    @property
    def wording(self) -> str:
        """Return the numbers of the roles as a text, without a leader: "5 clients"; "4 workers, 2 servers"."""
        sizes = self.sizes(leader=False).items()
        return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in sizes)

    def sizes(self, *, leader: bool = True) -> dict[str, int]:
        """Return the number of participants by role name, in order; without `leader`, omit a coordinator."""
        found: dict[str, int] = {}
        for role in self.all:
            if leader or role.first != self.leader or role.learns:
                found[role.name] = found.get(role.name, 0) + role.count
        return found

    def _find_role(self, node: NodeId) -> Role | None:
        return next((role for role in self.all if node in role.ids), None)

    @property
    def plain(self) -> list[dict[str, Any]]:
        """Return the roles as plain data, for a file."""
        return [msgspec.to_builtins(role) for role in self.all]


def roles_from(content: object) -> Roles:
    """Return the roles in plain data, of untrusted origin.  Raises ValueError."""
    return Roles(tuple(msgspec.convert(content, list[Role])))


def roles_in(summary: Mapping[str, Any]) -> Roles:
    """Return the roles in a summary; an early one without roles has peers, or clients of a coordinator.

    Raises ValueError for an invalid summary.
    """
    if "roles" in summary:
        return roles_from(summary["roles"])
    n = summary.get("n")
    learners = n if isinstance(n, int) and n >= 0 else 0
    return federated_roles(learners) if summary.get("mode") == "federated" else peer_roles(learners)


def peer_roles(n: int) -> Roles:
    """Return the roles of a gossip run; `n` is 0 where unknown."""
    return Roles((Role("peer", 0, n),))


def federated_roles(clients: int) -> Roles:
    """Return the roles of a federated run."""
    client = Role("client", 0, clients, counted=False, transport=CLIENT, logged=True)
    return Roles((client, Role("coordinator", clients, learns=False, transport=SERVER, logged=True)))


PEERS = peer_roles(0)
"""Default roles of a run without role information."""
