"""Effects that report a refused message, where the rest of the event counts."""

from __future__ import annotations

from fedgossip.base.errors import ProtocolError
from fedgossip.core.machine import NodeId, Refused


def refused_by(error: ProtocolError, round: int) -> Refused:
    """Return the effect for a message that a machine has refused with `error`: its state is unchanged."""
    return Refused(error.peer, "refused", str(error), round, error.advice)


def far_ahead(sender: NodeId, round: int, rounds: int) -> Refused:
    """Return the effect for a message with a round beyond the run's `rounds`."""
    text = f"node {sender} reports {round} completed rounds; the run has {rounds}"
    return Refused(sender, "far_ahead", text, 0, "Were the peers started from the same experiment file?")
