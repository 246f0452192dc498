"""Creation of a peer's machine for drivers; a restarted peer without a checkpoint fetches a neighbour's model."""

from __future__ import annotations

from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint, Machine, NodeId
from fedgossip.plans.gossip.gossip import GossipPlan
from fedgossip.plans.plan import Plan
from fedgossip.protocols.transfer.recovery import Recovering


def recovers(plan: Plan) -> bool:
    """Return whether peers of this plan can go on with a neighbour's model.

    Clients and coordinators cannot.  Private peers do not reveal their model, and the rounds of window doubling start
    together: these restart with their initial model.
    """
    return isinstance(plan, GossipPlan) and not plan.masks and not plan.algorithm.needs.constant_members


def peer_of(
    plan: Plan, node: NodeId, initial: Vector, schema: str, resumed: Checkpoint | None = None, *, incarnation: int = 0
) -> Machine:
    """Make the machine of one peer, in its life `incarnation`, from the records of the previous one."""
    gossip = plan.machine(node, initial, schema, resumed, incarnation=incarnation)
    if not recovers(plan):
        return gossip
    assert isinstance(plan, GossipPlan)
    soon = plan.for_restart()

    def make(checkpoint: Checkpoint) -> Machine:
        return soon.machine(node, initial, schema, checkpoint, incarnation=max(1, incarnation))

    e = plan.experiment
    patience_ns = int(soon.experiment.algorithm.start_timeout * 1e9)
    lost = incarnation > 0 and resumed is None
    neighbours = plan.partners(node)
    return Recovering(gossip, make, plan.resume_point, initial, schema, e.rounds, neighbours, patience_ns, lost=lost)
