"""Numbers of rounds as people count them: completed rounds, or the open one."""

from __future__ import annotations

from fedgossip.core.event_kinds import kind_of
from fedgossip.core.roles import Roles


def shown_round(event: str, round: int, roles: Roles) -> int:
    """Return the round of an event as people count: under a leader by the number that its result will have."""
    return round + (roles.leader is not None and round >= 0 and kind_of(event).open_round)
