"""The table in the docstring of membership: in every state of another member, what each event makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from members import ORGANISER, SECOND, membership, signer

from fedgossip.core.machine import Fired, PeerGone, PeerJoined, Received, SetTimer, Started
from fedgossip.core.messages import ConfirmDead, Entry, MembershipUpdate, News, Pong, Revocation, Suspicion
from fedgossip.protocols.members import membership as module
from fedgossip.protocols.members.membership import Membership
from fedgossip.protocols.members.membership_updates import signed
from fedgossip.protocols.members.roster import boundary_after

N, OTHER = 7, 1


class Seen:
    """Member 0, which has links to all, and its clock; `other` is the one whose state is looked at."""

    def __init__(self) -> None:
        self.member: Membership = membership(0, N)
        self.now_ns = 0
        self.tell(Started())
        for node in range(1, N):
            self.tell(PeerJoined(node))

    def tell(self, event: Any, after_ns: int = 0) -> list[Any]:
        self.now_ns += after_ns
        return self.member.handle(event, self.now_ns)

    def hear(self, *news: News, sender: int = 2) -> None:
        for one in news:
            self.tell(Received(sender, MembershipUpdate((one,))))

    @property
    def entry(self) -> Entry:
        return self.member.roster.entries[OTHER]

    @property
    def life(self) -> int:
        return self.entry.incarnation

    def says(self, **changed: Any) -> News:
        return signed(replace(self.entry, incarnation=self.life + 1, **changed), signer(f"sign{OTHER}"))

    def wait(self) -> None:
        """Let the time of a suspect pass, with a clock that ticks."""
        for _ in range(8):
            self.tell(Fired(("nothing",)), SECOND)


def state_of(member: Membership, node: int) -> str:
    """Return the state that the table names, from the roster and the suspects."""
    roster = member.roster
    if node in roster.revoked:
        return "away"
    if roster.entries[node].until >= 0:
        return "left"
    if roster.is_gone(node):
        return "gone"
    if node in member.suspects:
        return "suspected"
    return "judged" if roster.has_verdict(member.node, node) else "here"


def suspicion(seen: Seen) -> None:
    by = 3 if OTHER in seen.member.suspects else 2
    seen.hear(signed(Suspicion(OTHER, seen.life, by), signer(f"sign{by}")))


def verdicts(seen: Seen) -> None:
    until = boundary_after(0)
    seen.hear(*(signed(ConfirmDead(OTHER, seen.life, until, by), signer(f"sign{by}")) for by in range(2, N)))


def silence(seen: Seen) -> None:
    """It is asked, and neither it nor anybody who was asked to help says a word."""
    waits = [e.key for e in seen.tell(PeerGone(OTHER), SECOND) if isinstance(e, SetTimer) and e.key[1] == "end"]
    for key in waits:
        seen.tell(Fired(key), SECOND)


def time_up(seen: Seen) -> None:
    seen.wait()
    seen.tell(Fired(("member", "verdict", OTHER)))


def answered(seen: Seen) -> None:
    """It says a word, and its time is up."""
    seen.tell(Received(OTHER, Pong(1, 0, "")), SECOND)
    time_up(seen)


def refutes(seen: Seen) -> None:
    seen.hear(seen.says(until=-1), sender=OTHER)


def leaves(seen: Seen) -> None:
    seen.hear(seen.says(until=40), sender=OTHER)


def revoked(seen: Seen) -> None:
    seen.hear(signed(Revocation(OTHER, f"key{OTHER}", f"sign{OTHER}"), signer(ORGANISER)))


EVENTS: Mapping[str, Callable[[Seen], None]] = {
    "suspicion": suspicion, "silence": silence, "answered": answered, "time up": time_up, "verdicts": verdicts,
    "new life": refutes, "leaves": leaves, "revoked": revoked,
}  # fmt: skip


def judged(seen: Seen) -> None:
    suspicion(seen)
    time_up(seen)


STATES: Mapping[str, Callable[[Seen], None]] = {
    "here": lambda _: None, "suspected": suspicion, "judged": judged, "gone": verdicts, "left": leaves, "away": revoked,
}  # fmt: skip


def after(state: str, event: str) -> str:
    seen = Seen()
    STATES[state](seen)
    assert state_of(seen.member, OTHER) == state
    EVENTS[event](seen)
    return state_of(seen.member, OTHER)


def table() -> dict[tuple[str, str], str]:
    """The cells of the docstring; a dot is a state that stays."""
    lines = [line.strip() for line in (module.__doc__ or "").splitlines() if "|" in line]
    head, *rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {(row[0], event): cell for row in rows for event, cell in zip(head[1:], row[1:], strict=True)}


def test_the_table_has_a_cell_for_every_state_and_event() -> None:
    assert table().keys() == {(state, event) for state in STATES for event in EVENTS}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_an_event_makes_of_a_state_what_the_table_says(state: str, event: str) -> None:
    cell = table()[state, event]
    assert after(state, event) == (state if cell == "." else cell)
