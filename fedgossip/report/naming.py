"""Rounds as people count them: those that are over, or the one that is open."""

from __future__ import annotations

from fedgossip.roles import Roles

OF_THE_OPEN_ROUND = frozenset(
    {
        "abandoned",
        "abandoned_here",
        "abstained",
        "awaits",
        "cut",
        "deserted",
        "gone",
        "late",
        "misfits",
        "missed",
        "repeated",
        "stale",
        "started_without",
    }
)
"""What a coordinator and its clients tell of the round that is open, by how many are behind it."""


def shown_round(event: str, round: int, roles: Roles) -> int:
    """Return the round of an event as people count: under a leader by the number that its result will have."""
    return round + (roles.leader is not None and round >= 0 and event in OF_THE_OPEN_ROUND)
