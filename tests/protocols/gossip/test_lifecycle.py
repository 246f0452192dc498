"""Every kind of gossip peer begins, knows who is here, and ends in one way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from gossip_kinds import KINDS, Kind, N, resume_point, start

from fedgossip.algorithms.gossip.base import Step
from fedgossip.core.machine import (
    Effect,
    Finish,
    Fired,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    Send,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
)
from fedgossip.core.messages import Leaving
from fedgossip.protocols.gossip.edge_ledger import Open
from fedgossip.protocols.gossip.lifecycle import AGAIN_NS, RunLimits
from fedgossip.protocols.gossip.partner_set import ROLL_NS

OTHERS, _STEP = range(1, N), Step(0)
LIMITS = RunLimits(0)
every = pytest.mark.parametrize("kind", KINDS)
with_accounts = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "private"])


def reports(effects: Sequence[Effect]) -> dict[str, Any]:
    return {effect.name: effect.value for effect in effects if isinstance(effect, Report)}


def goodbyes(effects: Sequence[Effect]) -> list[int]:
    return [e.to for e in effects if isinstance(e, Send) and isinstance(e.message, Leaving)]


def timers(effects: Sequence[Effect]) -> dict[Any, int]:
    return {effect.key: effect.after_ns for effect in effects if isinstance(effect, SetTimer)}


def trains(effects: Sequence[Effect]) -> bool:
    return any(isinstance(effect, Train) for effect in effects)


def ended(effects: Sequence[Effect]) -> Finish | None:
    return next((effect for effect in effects if isinstance(effect, Finish)), None)


def joining(kind: str, rounds: int = 9, *links: int, later: bool = False) -> Kind:
    m = KINDS[kind](0, rounds, resume_point(kind, 0, start(0)) if later else None)
    m.handle(Started(), 0)
    for node in links:
        m.handle(PeerJoined(node), 0)
    return m


def training(kind: str, rounds: int = 9) -> Kind:
    m = joining(kind, rounds, *OTHERS)
    assert m.phase == "training"
    return m


def leaving(kind: str) -> Kind:
    """One whose rounds are done when it begins."""
    m = joining(kind, 0, *OTHERS)
    assert m.phase == "leaving"
    return m


# --- the beginning ----------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("later", [False, True])
def test_training_begins_with_the_last_link_in_a_later_life_too(kind: str, *, later: bool) -> None:
    m = joining(kind, 9, 1, 2, later=later)
    assert m.phase == "joining"
    assert trains(m.handle(PeerJoined(3), 0))


@every
def test_the_start_timer_begins_with_those_who_came(kind: str) -> None:
    effects = joining(kind, 9, 1).handle(Fired(("start",)), 0)
    assert reports(effects) == {"started_without": [2, 3]} and trains(effects)


@every
def test_where_nobody_came_the_first_life_ends(kind: str) -> None:
    effects = joining(kind).handle(Fired(("start",)), 0)
    finish = ended(effects)
    assert reports(effects) == {"nobody_came": [1, 2, 3]} and finish and finish.failure


@every
def test_where_nobody_came_a_later_life_goes_on(kind: str) -> None:
    """When all are started again by hand the first must not end because it is the first."""
    effects = joining(kind, later=True).handle(Fired(("start",)), 0)
    assert reports(effects) == {"started_without": [1, 2, 3]} and trains(effects)


@every
def test_one_that_will_not_come_is_not_waited_for(kind: str) -> None:
    """A host whose experiment differs is told as gone, though its link never was up."""
    m = joining(kind, 9, 1, 2)
    effects = m.handle(PeerGone(3), 0)
    assert reports(effects) == {"gone": 3} and trains(effects)
    assert "gone" not in reports(m.handle(PeerGone(3), 0)), "once is enough"


@every
def test_where_all_have_left_before_the_beginning_a_peer_ends(kind: str) -> None:
    m = joining(kind, 9, 1, 2)
    for node in OTHERS:
        effects = m.handle(Received(node, Leaving(0)), 0)
    assert reports(effects)["stopped_with_the_others"] == {"rounds": 0}
    assert m.phase in ("leaving", "finished") and not trains(effects)


@every
def test_while_it_gathers_a_peer_says_for_whom_it_waits(kind: str) -> None:
    m = KINDS[kind](0, 9, None)
    assert timers(m.handle(Started(), 0)) == {("start",): LIMITS.start_ns, ("roll",): ROLL_NS}
    m.handle(PeerJoined(2), 0)
    said = m.handle(Fired(("roll",)), 0)
    assert reports(said) == {"awaits": {"missing": [1, 3], "here": 1, "of": 3}} and timers(said) == {("roll",): ROLL_NS}
    assert reports(m.handle(Fired(("roll",)), 0)) == {}, "the same is said once"
    m.handle(PeerJoined(1), 0)
    assert reports(m.handle(Fired(("roll",)), 0))["awaits"]["missing"] == [3]
    m.handle(PeerJoined(3), 0)
    assert m.handle(Fired(("roll",)), 0) == [], "it has begun"


# --- who is here ------------------------------------------------------------------------------------------------------


@every
def test_one_that_comes_late_or_again_is_said_to_be_here(kind: str) -> None:
    m = joining(kind, 9, 1, 2)
    m.handle(Fired(("start",)), 0)
    assert reports(m.handle(PeerJoined(3), 0)) == {"joined": 3}
    assert reports(m.handle(PeerGone(1), 0))["gone"] == 1
    assert reports(m.handle(PeerJoined(1, 1), 0)).get("joined") == 1


@every
def test_who_has_left_is_not_said_to_be_gone(kind: str) -> None:
    m = training(kind)
    m.handle(Received(1, Leaving(9)), 0)
    assert "gone" not in reports(m.handle(PeerGone(1), 0))


# --- the end ----------------------------------------------------------------------------------------------------------


@every
def test_goodbyes_are_said_again_after_one_time_and_on_every_link_that_comes_up(kind: str) -> None:
    m = joining(kind, 0, 1, 2)
    effects = m.handle(PeerJoined(3), 0)
    assert goodbyes(effects) == [1, 2, 3] and timers(effects)["again",] == AGAIN_NS
    assert timers(effects)["drain",] == LIMITS.drain_ns
    effects = m.handle(Fired(("again",)), 0)
    assert goodbyes(effects) == [1, 2, 3] and timers(effects) == {("again",): AGAIN_NS}
    m.handle(PeerGone(2), 0)
    assert goodbyes(m.handle(Fired(("again",)), 0)) == [1, 3]
    assert goodbyes(m.handle(PeerJoined(2), 0)) == [2]


@every
def test_peers_that_are_done_end_when_all_are(kind: str) -> None:
    peers = [joining(kind, 0) for _ in range(1)] + [KINDS[kind](node, 0, None) for node in OTHERS]
    for node in OTHERS:
        peers[node].handle(Started(), 0)
    mail: list[tuple[int, Send]] = []
    results: set[int] = set()

    def tell(node: int, event: Any) -> None:
        for effect in peers[node].handle(event, 0):
            if isinstance(effect, Send):
                mail.append((node, effect))
            elif isinstance(effect, Finish):
                results.add(node)

    for node in range(N):
        for other in range(N):
            if other != node:
                tell(node, PeerJoined(other))
    while mail:
        sender, send = mail.pop(0)
        tell(send.to, Received(sender, send.message))
    assert results == set(range(N)), "without a timer"


@every
def test_the_drain_timer_ends_the_stay(kind: str) -> None:
    assert ended(leaving(kind).handle(Fired(("drain",)), 0))


@every
def test_after_many_goodbyes_one_that_does_not_answer_is_not_waited_for(kind: str) -> None:
    m = leaving(kind)
    m.company.absent.add(3)
    for node in (1, 2):
        m.handle(Received(node, Leaving(0, done=True)), 0)
    assert m.phase == "leaving"
    assert ended(m.handle(Fired(("hung",)), 0))


@every
def test_one_that_answers_is_waited_for_however_long_it_takes(kind: str) -> None:
    m = leaving(kind)
    assert m.handle(Fired(("hung",)), 0) == []


# --- stopping ---------------------------------------------------------------------------------------------------------


@every
def test_who_is_stopped_says_goodbye_and_ends_where_nothing_is_open(kind: str) -> None:
    effects = training(kind).handle(Stopping(), 0)
    assert goodbyes(effects) == [1, 2, 3] and ended(effects) and not timers(effects)


@every
def test_who_is_stopped_before_it_begins_ends(kind: str) -> None:
    assert ended(KINDS[kind](0, 9, None).handle(Stopping(), 0))
    assert ended(joining(kind, 9, 1).handle(Stopping(), 0))


@every
def test_who_is_stopped_at_the_end_waits_for_nobody_who_is_not_done(kind: str) -> None:
    assert ended(leaving(kind).handle(Stopping(), 0))


def with_an_open_account(kind: str) -> Kind:
    """In training, and something is open with neighbour 1."""
    m: Any = training(kind)
    if kind == "sync":
        m.ledger.edge(1).open = Open(0, 0.25, (start(0),))
    elif kind == "async":
        m.ledger.offer(1)
    else:
        m.arcs.pack(1, 0, "s", m.learner.trained(None, _STEP))
        m.learner.abandoned()
    assert m.open_with(1)
    return m  # type: ignore[no-any-return]


@with_accounts
def test_who_is_stopped_stays_a_moment_for_what_is_open(kind: str) -> None:
    m = with_an_open_account(kind)
    effects = m.handle(Stopping(), 0)
    assert not ended(effects) and timers(effects)["drain",] == LIMITS.hurry_ns
    assert m.handle(Stopping(), 0) == [], "once is enough"
    assert m.handle(Trained(0, start(1)), 0) == [], "the training that is on is not waited for"
    assert ended(m.handle(Fired(("drain",)), 0))


@with_accounts
def test_one_that_was_lost_while_something_is_open_may_come_back_and_tell(kind: str) -> None:
    m = with_an_open_account(kind)
    m.settings = type(m.settings)(0)  # its rounds are done
    for node in (2, 3):
        m.handle(PeerGone(node), 0)
    m.handle(PeerGone(1), 0)
    m.phase = "training"
    m.end()
    assert m.phase == "leaving"
    assert "unsettled" in (said := reports(m.handle(Fired(("hung",)), 0))) or "taken_back" in said
    assert m.phase == "finished"


@with_accounts
def test_one_that_was_lost_long_ago_is_not_waited_for(kind: str) -> None:
    m = with_an_open_account(kind)
    for node in OTHERS:
        m.handle(PeerGone(node), 0)
    m.round, m.phase = 100, "training"
    m.settings = type(m.settings)(100)
    assert ended(m.end())
