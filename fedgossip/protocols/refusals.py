"""How a machine reports what it did not accept, where the rest of the event counts."""

from __future__ import annotations

from fedgossip.errors import ProtocolError
from fedgossip.machine import NodeId, Report


def refused(sender: NodeId | None, reason: str, text: str, round: int, advice: str = "") -> Report:
    """Return the report; `reason` is one word for counting."""
    return Report("refused", {"from": sender, "reason": reason, "text": text, "advice": advice}, round)


def refused_by(error: ProtocolError, round: int) -> Report:
    """Return the report of a message that a machine has refused: its state is unchanged."""
    return refused(error.peer, "refused", str(error), round, error.advice)


def far_ahead(sender: NodeId, round: int, rounds: int) -> Report:
    """Return the report of a message with a round that the run has not."""
    text = f"node {sender} says that {round} rounds are behind it; the run has {rounds}"
    return refused(sender, "far_ahead", text, 0, "Were the peers started from the same experiment file?")
