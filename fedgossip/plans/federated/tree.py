"""The tree of coordinators of a federated run.

    [coordinator]
    clients = 32
    tiers = [{ clients = 8 }, { clients = 4 }]            4 leaf coordinators of 8 clients each, below the root

A tier divides the participants below it, first the clients, into groups: of a fixed size by id, or the given `groups`.
Each group's coordinator is a participant of that tier; the last tier's is the root.  Ids: clients, then each tier's
coordinators, the root last.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedgossip.base.errors import ConfigError
from fedgossip.core.machine import NodeId
from fedgossip.core.roles import TIER, Role, Roles, federated_roles
from fedgossip.experiment.run_sections import CoordinatorSection, TierSection
from fedgossip.secure import graph
from fedgossip.secure.session import N_MIN, ids_in

LEAF, MIDDLE = "leaf coordinator", "middle coordinator"
"""Names of the roles of coordinators below the root: those of clients, and those between."""


@dataclass(frozen=True)
class TierGroup:
    """A coordinator and the participants that send to it."""

    coordinator: NodeId
    members: Sequence[NodeId]
    tier: int
    """0 for clients, 1 for their coordinators."""
    secure: bool = True
    """Whether the coordinator sees only a secure sum of its members."""

    @property
    def least(self) -> int:
        """Minimum number of coordinators in a sum; for clients the experiment gives it."""
        return max(N_MIN, self.threshold or 0) if self.secure else 1

    @property
    def threshold(self) -> int | None:
        """Number of shares that reconstruct a secret in a secure sum of all; None if it follows from the graph."""
        size = len(self.members)
        return graph.policy_threshold(size) if size <= graph.COMPLETE_MAX else None


@dataclass(frozen=True)
class Tree:
    """All groups in ascending order of coordinator, the root's last."""

    clients: int
    groups: tuple[TierGroup, ...]

    @cached_property
    def root(self) -> NodeId:
        return self.groups[-1].coordinator

    @property
    def tiers(self) -> int:
        return self.groups[-1].tier + 1

    @property
    def flat(self) -> bool:
        return len(self.groups) == 1

    def select_tier(self, tier: int) -> Sequence[TierGroup]:
        return [group for group in self.groups if group.tier == tier]

    @property
    def smallest_leaf(self) -> int:
        """Number of clients in the smallest group of clients."""
        return min(len(group.members) for group in self.select_tier(0))

    @cached_property
    def _parents(self) -> dict[NodeId, NodeId]:
        return {node: group.coordinator for group in self.groups for node in group.members}

    def parent(self, node: NodeId) -> NodeId:
        """Return the coordinator of a participant other than the root."""
        return self.root if self.flat else self._parents[node]

    def group(self, coordinator: NodeId) -> TierGroup:
        return self.groups[coordinator - self.clients]

    def company(self, coordinator: NodeId) -> frozenset[NodeId] | None:
        """Return the participants that may be in its sums, of a roster that has all below the root; None: all."""
        return None if self.flat else frozenset(self.group(coordinator).members)

    def clients_below(self, node: NodeId) -> int:
        """Return the number of clients below a coordinator; 1 of a client."""
        return 1 if node < self.clients else sum(map(self.clients_below, self.group(node).members))

    def leaves_below(self, node: NodeId, least: int) -> int:
        """Return the minimum number of clients in a coordinator's sum, with `least` in each leaf."""
        group = self.group(node)
        if group.tier == 0:
            return least
        return min(self.leaves_below(one, least) for one in group.members) * group.least

    def sums_up(self, node: NodeId, clients: Collection[NodeId], least: int) -> bool:
        """Return whether a participant has a sum of enough of these present clients, with `least` in each leaf."""
        if node < self.clients:
            return node in clients
        group = self.group(node)
        there = sum(self.sums_up(one, clients, least) for one in group.members)
        return there >= (group.least if group.tier else least)

    @property
    def roles(self) -> Roles:
        """Return the roles of all participants."""
        flat = federated_roles(self.clients).all
        between: list[Role] = []
        for tier in range(self.tiers - 1):
            groups = self.select_tier(tier)
            name = MIDDLE if tier else LEAF
            number = sum(role.count for role in between if role.name == name)
            common = {"learns": False, "counted": False, "transport": TIER, "logged": True}
            between.append(Role(name, groups[0].coordinator, len(groups), number=number, **common))  # type: ignore[arg-type]
        root = flat[-1]
        return Roles((flat[0], *between, Role(root.name, self.root, 1, False, True, root.transport, True)))

    @property
    def words(self) -> str:
        """Return the division in words: "8 clients, 2 leaf coordinators of 4"."""
        parts = []
        for tier in range(self.tiers - 1):
            groups = self.select_tier(tier)
            sizes = sorted({len(group.members) for group in groups})
            of = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
            parts.append(f"{len(groups)} {MIDDLE if tier else LEAF}s of {of}")
        return ", ".join(parts)


def tree_of(section: CoordinatorSection) -> Tree:
    """Return the tree of an experiment.  Raises ConfigError for an invalid one."""
    clients, tiers = section.clients, section.tiers
    if not tiers:
        return Tree(clients, (TierGroup(clients, range(clients), 0, section.secure.on),))
    _check_product(section)
    members, groups, following = tuple(range(clients)), list[TierGroup](), clients
    for tier, one in enumerate(tiers):
        divided = _divided(one, members, tier)
        here = [TierGroup(following + place, group, tier, one.secure) for place, group in enumerate(divided)]
        for group in here:
            _check_group(group)
        groups += here
        members = tuple(group.coordinator for group in here)
        following += len(here)
    if len(members) > 1:
        text = f"coordinator.tiers ends with {len(members)} coordinators; the last tier is the root's and has one group"
        alone = ", secure = false" if len(members) < N_MIN else ""
        raise ConfigError(text, f"Add a tier: {{ clients = {len(members)}{alone} }}.")
    if len(tiers) == 1:
        raise ConfigError("coordinator.tiers of one tier: that is a run without tiers", "Leave coordinator.tiers out.")
    return Tree(clients, tuple(groups))


def _check_product(section: CoordinatorSection) -> None:
    sizes = [one.clients for one in section.tiers]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes) and math.prod(known) != section.clients:
        named = f"{' x '.join(map(str, known))} is of {math.prod(known)} clients"
        text = f"coordinator.tiers = {named}, and coordinator.clients = {section.clients}"
        raise ConfigError(text, "Let the sizes multiply to the number of clients, or name the groups.")


def _divided(one: TierSection, members: Sequence[NodeId], tier: int) -> list[tuple[NodeId, ...]]:
    """Return the groups of a tier."""
    where = f"coordinator.tiers[{tier}]"
    if (one.clients is None) == (one.groups == []):
        raise ConfigError(f"{where}: clients and groups, of which one is given", "Write { clients = 8 }.")
    if one.clients is not None:
        if len(members) % one.clients:
            text = f"{where}.clients = {one.clients} does not divide the {len(members)} participants of the tier below"
            raise ConfigError(text, "Name the groups of this tier.")
        return [tuple(members[at : at + one.clients]) for at in range(0, len(members), one.clients)]
    found: list[tuple[NodeId, ...]] = []
    seen: set[int] = set()
    for text in one.groups:
        places = _places(text, where)
        if unknown := [place for place in places if place >= len(members)]:
            raise ConfigError(f"{where}.groups: {unknown[0]} of {len(members)}", f"Take 0 to {len(members) - 1}.")
        if twice := [place for place in places if place in seen or places.count(place) > 1]:
            raise ConfigError(f"{where}.groups: {twice[0]} is in two places", "Each belongs to one group.")
        seen.update(places)
        found.append(tuple(members[place] for place in sorted(places)))
    if missing := [place for place in range(len(members)) if place not in seen]:
        raise ConfigError(f"{where}.groups: {missing[0]} is in no group", "Each belongs to one group.")
    return found


def _places(text: str, where: str) -> list[int]:
    parts = [part.strip().partition("-") for part in text.split(",")]
    numbers = [number for first, dash, last in parts for number in ((first, last) if dash else (first,))]
    if not all(number.isdecimal() and len(number) < 7 for number in numbers):
        raise ConfigError(f"{where}.groups: {text!r} is no list of numbers", 'Write groups = ["0-3", "4, 6-8"].')
    return ids_in(text.replace(" ", ""))


def _check_group(group: TierGroup) -> None:
    size, where = len(group.members), f"coordinator.tiers[{group.tier}]"
    if size < 2:
        text = f"{where}: a coordinator of {size} participant, whose sum is what that one sends"
        raise ConfigError(text, "Give each coordinator at least two, or leave the tier out.")
    if group.secure and size < N_MIN:
        text = f"{where}: a sum over {size} reveals each: a secure sum takes at least {N_MIN}"
        seen = "every client's update" if group.tier == 0 else "the sum of each coordinator below"
        raise ConfigError(text, f"Make the groups larger, or set secure = false: its coordinators then see {seen}.")
    if group.secure and size > graph.COHORT_MAX:
        raise ConfigError(f"{where}: {size} in one secure sum; at most {graph.COHORT_MAX}", "Make the groups smaller.")
