"""How a machine tells what it did not accept, where the rest of the event counts."""

from __future__ import annotations

from fedgossip.base.errors import ProtocolError
from fedgossip.core.machine import NodeId, Refused


def refused_by(error: ProtocolError, round: int) -> Refused:
    """Return what tells of a message that a machine has refused: its state is unchanged."""
    return Refused(error.peer, "refused", str(error), round, error.advice)


def far_ahead(sender: NodeId, round: int, rounds: int) -> Refused:
    """Return what tells of a message with a round that the run has not."""
    text = f"node {sender} says that {round} rounds are behind it; the run has {rounds}"
    return Refused(sender, "far_ahead", text, 0, "Were the peers started from the same experiment file?")
