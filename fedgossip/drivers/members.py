"""A member from a plan: the machine of a peer in a group with joins and leaves.

members = load_members(endpoints_file, node)
machine = Informed(member_of(...), members, folder)     receives the organiser's revocations and stores them
links.admit_guests(...), links.connect((), {}, expected, hello)         the machine requests its connections
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from fedgossip.algorithms.gossip.base import Needs
from fedgossip.base.errors import ConfigError, NotWrittenError
from fedgossip.base.vectors import Vector
from fedgossip.core import run_format
from fedgossip.core.machine import Checkpoint, Effect, Event, Fired, Machine, NodeId, Received, Report, Started
from fedgossip.core.messages import NEWS_MAX, Entry, Join, MembershipUpdate
from fedgossip.experiment import GossipExperiment
from fedgossip.net.endpoints import Members, load_revoked, revoked_block
from fedgossip.net.identity import Identity, verify
from fedgossip.plans.gossip.gossip import GossipPlan, graph_seed, method_of, schedule_of, weights_of
from fedgossip.plans.gossip.gossip_checks import check_members
from fedgossip.plans.plan import Plan
from fedgossip.protocols.members.failure_detector import MemberSettings
from fedgossip.protocols.members.member import Member
from fedgossip.protocols.members.membership import Membership
from fedgossip.protocols.members.membership_updates import Trust
from fedgossip.protocols.members.roster import Make, Places, Roster, RosterSchedule
from fedgossip.runs.run_directory import write_whole
from fedgossip.topology import Schedule, resolve_schedule
from fedgossip.topology.weights.weights import SIZES


def graphs_of(plan: GossipPlan) -> Make:
    """Return the experiment's graph for any number of members; the exponential graph if its family has no such size."""
    method, seed = method_of(plan.experiment), graph_seed(plan.experiment)

    def make(ids: tuple[NodeId, ...]) -> Places:
        if len(ids) == plan.n:
            return plan.schedule
        if len(ids) == 1:
            return resolve_schedule("none", 1, weights="metropolis", seed=seed)
        try:
            return schedule_of(plan.experiment, len(ids), method)
        except ConfigError:
            weights = weights_of(plan.experiment, method) or "metropolis"
            return resolve_schedule("exponential", len(ids), weights=weights, seed=seed)

    return make


def check_open(plan: Plan) -> GossipPlan:
    """Return the plan.

    Raises ConfigError if late joins are impossible: the algorithm counts its peers or masks for them, or the
    participants are not peers.
    """
    if not isinstance(plan, GossipPlan):
        raise ConfigError("clients of a coordinator can join and leave at any time", "Leave --members and --join out.")
    _check_open(plan.experiment, plan.algorithm.needs)
    return plan


def _check_open(e: GossipExperiment, needs: Needs) -> None:
    check_members(e.algorithm.name, needs)
    if e.algorithm.private:
        advice = "Leave --members and --join out, or set algorithm.private = false."
        raise ConfigError("masks of private gossip belong to fixed neighbours: no peer can join or leave", advice)
    if e.topology.weights == SIZES:
        advice = "Leave --members and --join out, or topology.weights."
        raise ConfigError("weights by sizes are those of fixed peers: no peer can join or leave", advice)
    if e.adversary.peers:
        advice = "Leave --members and --join out, or [adversary]."
        raise ConfigError("the attackers of [adversary] have fixed ids: no peer can join or leave", advice)


def is_open(plan: Plan) -> bool:
    """Return whether members may join and leave; otherwise all must be present before the run begins."""
    return isinstance(plan, GossipPlan) and is_open_to(plan.experiment, plan.algorithm.needs)


def is_open_to(experiment: GossipExperiment, needs: Needs) -> bool:
    """Return the same, from the algorithm's needs."""
    try:
        _check_open(experiment, needs)
    except ConfigError:
        return False
    return not experiment.loops


def member_of(
    plan: Plan,
    node: NodeId,
    initial: Vector,
    schema: str,
    identity: Identity,
    members: Members,
    life: int,
    *,
    address: str = "",
    join: bool = False,
    resumed: Checkpoint | None = None,
) -> Member:
    """Make the machine of one member.

    `life`: the start time in seconds, above the numbers of earlier incarnations.  `address`: by default that in
    `members`. `join`: the run has begun.  `resumed`: an earlier incarnation's checkpoint.  Raises ConfigError for an
    algorithm that needs all peers at all times.
    """
    gossip = check_open(plan)
    own = members.endpoints[node]
    founders = members.founders
    roster = Roster.founding({i: (e.address, e.key, e.verify) for i, e in founders.items()}, node)
    trust = Trust({i: (e.key, e.verify) for i, e in founders.items()}, verify, members.organiser)
    late = node not in founders
    me = Entry(
        node, life, address or own.address, identity.public, identity.verify, -1 if late else 0, admission=own.admission
    )
    e = gossip.experiment
    membership = Membership(me, roster, trust, identity.sign, graphs_of(gossip), MemberSettings(), e.seed, e.rounds)

    def make(schedule: RosterSchedule, checkpoint: Checkpoint | None, incarnation: int) -> Machine:
        theirs = replace(gossip, schedule=cast(Schedule, schedule))
        return theirs.machine(node, initial, schema, checkpoint, incarnation=incarnation)

    layout = schema, initial.size, initial.dtype.name
    take_up = gossip.resume_point
    start_ns = int(e.algorithm.start_timeout * 1e9)
    return Member(membership, make, take_up, layout, e.rounds, join=join or late, resumed=resumed, start_ns=start_ns)


class Informed:
    """A member that applies the revocations in its own endpoints file, also during the run, and stores all it receives.

    The files are checked at every tick.  The stored list outlives the process: the next incarnation starts with it.
    """

    def __init__(self, member: Member, members: Members, folder: Path) -> None:
        self.member, self._source, self._kept = member, members.path, folder / run_format.REVOKED
        self._own = member.membership.node
        self._seen: dict[Path, int] = {}
        self._written, self._unwritten = 0, False

    def introduction(self) -> Join | None:
        return self.member.introduction()

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Handle one event; see machine.Machine."""
        effects = list(self.member.handle(event, now_ns))
        if isinstance(event, Started):
            effects += self._read(self._kept, now_ns)
        if self._source and event in (Started(), Fired(("member", "tick"))):
            effects += self._read(self._source, now_ns)
        return [*self._keep(ticked=event == Fired(("member", "tick"))), *effects]

    def _read(self, path: Path, now_ns: int) -> list[Effect]:
        """Pass a file's new revocations to the member; an unreadable file is reported once per change."""
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return []
        if self._seen.get(path) == changed:
            return []
        self._seen[path] = changed
        try:
            revoked = load_revoked(path)
        except ConfigError as error:
            return [Report("unread", {"text": str(error)}, max(self.member.membership.round, 0))]
        effects: list[Effect] = []
        for start in range(0, len(revoked), NEWS_MAX):
            news = MembershipUpdate(revoked[start : start + NEWS_MAX])
            effects += self.member.handle(Received(self._own, news), now_ns)
        return effects

    def _keep(self, *, ticked: bool) -> list[Effect]:
        """Write the revocations before any is sent; on a full disk, retry later."""
        revoked = self.member.membership.roster.revoked
        if len(revoked) == self._written or (self._unwritten and not ticked):
            return []
        text = "\n".join(revoked_block(revoked[node]) for node in sorted(revoked))
        try:
            write_whole(self._kept, text.encode())
        except NotWrittenError as error:
            first, self._unwritten = not self._unwritten, True
            return [Report("unread", {"text": str(error)}, 0)] if first else []
        self._written, self._unwritten = len(revoked), False
        return []
