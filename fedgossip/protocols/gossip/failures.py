"""Causes of a machine's early end, which the driver raises after all records; and effects for refused messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedgossip.base.errors import BudgetError, ProtocolError
from fedgossip.core.machine import Failure, NodeId, Refused


def no_neighbour_joined(missing: Sequence[NodeId]) -> Failure:
    """Return the failure of a peer that found no neighbour at the start."""
    advice = "Are they started, and reachable at the addresses in endpoints.toml?"
    return Failure("too_few", f"none of the neighbours {list(missing)} joined", advice)


def no_coordinator() -> Failure:
    """Return the failure of a client that found no coordinator at the start."""
    advice = "Is it started, and reachable at the address in endpoints.toml?"
    return Failure("too_few", "the coordinator did not join", advice)


def deserted(round: int) -> Failure:
    """Return the failure of a client that received no message from its coordinator for too long."""
    text = f"no message of the coordinator for too long, after round {round}"
    return Failure("network", text, "Is it running?  Go on with --resume when it is.")


def superseded(node: NodeId) -> Failure:
    """Return the failure of a member with a key that a later process uses too."""
    text = f"another process runs as peer {node}, with its key, and began later"
    return Failure("peer", text, "Stop one of the two; give each peer an id and a key of its own.")


def sent_away(node: NodeId) -> Failure:
    """Return the failure of a member revoked by the organiser."""
    text = f"the organiser has revoked the membership of peer {node}"
    return Failure("peer", text, "Ask the organiser; a new key and a new id need a new admission.")


def too_few(round: int, facts: Mapping[str, object]) -> Failure:
    """Return the failure of a coordinator that ended before `round`; `facts` are those of its report "too_few"."""
    if "unanswered" in facts:
        text = f"the last {facts['unanswered']} invitations were not answered: it ended before round {round + 1}"
        advice = "Raise coordinator.deadline above the time that a client trains, or look at the clients."
        return Failure("too_few", text, advice)
    if gone := facts.get("gone"):
        text = (
            f"all sums of this run are of the same clients, and {gone} of them left: it ended before round {round + 1}"
        )
        return Failure("too_few", text, "Bring them back and begin again, all together (--resume is of no use).")
    there, needed = facts.get("clients"), facts.get("needed")
    text = f"{there} clients are there, and a round needs {needed}: it ended before round {round + 1}"
    return Failure("too_few", text, "Start the others and go on with --resume, or lower min_clients.")


def used_up(error: BudgetError) -> Failure:
    """Return the failure of a participant with too small a budget for the next release."""
    return Failure("budget", str(error), error.advice)


def refused_by(error: ProtocolError, round: int) -> Refused:
    """Return the effect for a message refused with `error`: the machine's state is unchanged."""
    return Refused(error.peer, "refused", str(error), round, error.advice)


def far_ahead(sender: NodeId, round: int, rounds: int) -> Refused:
    """Return the effect for a message with a round beyond the run's `rounds`."""
    text = f"node {sender} reports {round} completed rounds; the run has {rounds}"
    return Refused(sender, "far_ahead", text, 0, "Were the peers started from the same experiment file?")
