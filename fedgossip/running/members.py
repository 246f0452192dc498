"""A member from a plan: the machine of a peer where others come and go.

    members = load_members(endpoints_file, node)
    links.admit_guests(...), links.connect((), {}, expected, hello): the machine says whom to meet
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from fedgossip.errors import ConfigError
from fedgossip.machine import Checkpoint, Machine, NodeId
from fedgossip.messages import Entry
from fedgossip.net.endpoints import Members
from fedgossip.net.identity import Identity, verify
from fedgossip.protocols.member import Member
from fedgossip.protocols.membership import MemberSettings, Membership
from fedgossip.protocols.roster import Make, Places, Roster, RosterSchedule, Trust
from fedgossip.running.gossip import GossipPlan, own_weights, section_of
from fedgossip.running.plan import Plan
from fedgossip.topology import Schedule, resolve_schedule
from fedgossip.vectors import Vector


def graphs_of(plan: GossipPlan) -> Make:
    """The experiment's graph for any number of members; where its family has no such size, the exponential graph."""
    section = section_of(plan.experiment)
    own = own_weights(plan.experiment)

    def make(ids: tuple[NodeId, ...]) -> Places:
        if len(ids) == plan.n:
            return plan.schedule
        if len(ids) == 1:
            return resolve_schedule("none", 1, weights="metropolis", seed=plan.experiment.seed)
        try:
            return resolve_schedule(section.graph, len(ids), weights=section.weights or own, seed=plan.experiment.seed)
        except ConfigError:
            return resolve_schedule("exponential", len(ids), weights=own or "metropolis", seed=plan.experiment.seed)

    return make


def check_open(plan: Plan) -> None:
    """Raise ConfigError where nobody can come later: the algorithm's sums are of a fixed number of peers."""
    if not isinstance(plan, GossipPlan):
        raise ConfigError("clients of a coordinator come and go as they like", "Leave --members and --join out.")
    if plan.algorithm.needs.constant_members:
        advice = 'Leave --members and --join out, or set algorithm.name = "dsgd" with another graph.'
        raise ConfigError(f"{plan.experiment.algorithm.name} counts its peers: nobody can join or leave", advice)
    if plan.experiment.algorithm.private:
        advice = "Leave --members and --join out, or set algorithm.private = false."
        raise ConfigError("the masks of private gossip are those of fixed neighbours: nobody can join or leave", advice)


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

    `life` is above the incarnations of its earlier lives: the time of its start in seconds.  `address`: where the
    others reach it, by default as `members` says.  `join`: the run has begun.  `resumed`: what a life before wrote.
    Raises ConfigError for an algorithm whose peers must all be there all the time.
    """
    check_open(plan)
    assert isinstance(plan, GossipPlan)
    own = members.endpoints[node]
    founders = members.founders
    roster = Roster.founding({i: (e.address, e.key, e.verify) for i, e in founders.items()})
    trust = Trust({i: (e.key, e.verify) for i, e in founders.items()}, verify, members.organiser)
    late = node not in founders
    me = Entry(
        node, life, address or own.address, identity.public, identity.verify, -1 if late else 0, admission=own.admission
    )
    e = plan.experiment
    membership = Membership(me, roster, trust, identity.sign, graphs_of(plan), MemberSettings(), e.seed, e.rounds)

    def make(schedule: RosterSchedule, checkpoint: Checkpoint | None, incarnation: int) -> Machine:
        theirs = replace(plan, schedule=cast(Schedule, schedule))
        return theirs.machine(node, initial, schema, checkpoint, incarnation=incarnation)

    layout = schema, initial.size, initial.dtype.name
    take_up = plan.taken_up
    start_ns = int(e.algorithm.start_timeout * 1e9)
    return Member(membership, make, take_up, layout, e.rounds, join=join or late, resumed=resumed, start_ns=start_ns)
