"""Whose turn it is to send: the bound on what is under way, and nobody waits for one that is slow."""

from __future__ import annotations

import pytest

from fedgossip.net.hub.router_sender import (
    FAST_CHUNKS,
    QUIET_SECONDS,
    STALLED_SECONDS,
    TURNS_BYTES,
    ListeningClock,
    Turns,
)
from fedgossip.net.links.outbox import ASK, GO, parse, word


def test_so_many_have_a_turn_and_the_others_follow_in_the_order_in_which_they_asked() -> None:
    turns = Turns(2)
    for node in (5, 3, 9, 1):
        turns.ask(node, 10 * node)
    assert list(turns.next(0.0, all_read=True)) == [(5, 50), (3, 30)]
    assert list(turns.next(0.0, all_read=True)) == []
    turns.forget(3)
    assert list(turns.next(0.0, all_read=True)) == [(9, 90)]
    turns.forget(5)
    turns.forget(9)
    assert list(turns.next(0.0, all_read=True)) == [(1, 10)]


def test_a_turn_is_of_one_message() -> None:
    turns = Turns(1)
    turns.ask(1, 7)
    assert not turns.has(1, 7)
    assert list(turns.next(0.0, all_read=True)) == [(1, 7)] and turns.has(1, 7)
    assert not turns.has(1, 8) and not turns.has(2, 7)
    turns.ask(1, 8)  # it has given up the one before
    assert not turns.has(1, 7) and not turns.has(1, 8)
    assert list(turns.next(0.0, all_read=True)) == [(1, 8)]


def test_one_that_is_slow_keeps_nobody_waiting_but_counts_to_the_bound() -> None:
    turns = Turns(2, TURNS_BYTES // 3)
    assert turns.most == 3
    for node in range(5):
        turns.ask(node, 1)
    assert len(list(turns.next(0.0, all_read=True))) == 2
    later = 1.5 * QUIET_SECONDS
    turns.moved(0, later)
    assert [node for node, _ in turns.next(later, all_read=True)] == [2]
    assert list(turns.next(100 * later, all_read=True)) == [], "three are under way, at whatever speed"
    turns.forget(1)
    assert [node for node, _ in turns.next(100 * later, all_read=True)] == [3]


@pytest.mark.parametrize(("bytes_a_second", "expected"), [(12.5e6, 4), (90e6, 4), (200e6, 2), (1e9, 2)])
def test_more_than_two_send_at_a_time_only_where_two_do_not_fill_the_line(bytes_a_second: float, expected: int) -> None:
    """Each turn is a model of memory: so many as the line takes, and no more."""
    turns, now, chunk = Turns(4), 50.0, 256 * 1024 / bytes_a_second
    for node in range(8):
        turns.ask(node, 1)
    most = 0
    while now < 52.0:
        list(turns.next(now, all_read=True))
        most = max(most, len(turns.going))
        now += chunk
        for node in list(turns.going):  # all at one pace, that of the line
            turns.moved(node, now)
            now += chunk
    assert most == expected


def test_the_line_of_a_coordinator_that_is_busy_is_not_taken_for_slow() -> None:
    turns = Turns(4)
    for node in range(4):
        turns.ask(node, 1)
    assert len(list(turns.next(1.0, all_read=True))) == 2
    assert list(turns.next(2.0, all_read=False)) == [], "what came since then waits to be read"
    for _ in range(FAST_CHUNKS):
        turns.moved(0, 2.0)
        turns.moved(1, 2.0)
    assert list(turns.next(2.01, all_read=True)) == []
    turns.moved(0, 2.2)
    turns.moved(1, 2.2)
    assert [node for node, _ in turns.next(2.2, all_read=True)] == [2], "a tenth of a second with two chunks"


def test_another_is_let_in_beside_two_and_the_next_only_where_three_are_slow_too() -> None:
    """A moment without a chunk costs one model of memory, not two."""
    turns = Turns(4)
    for node in range(4):
        turns.ask(node, 1)
    assert len(list(turns.next(1.0, all_read=True))) == 2
    now = 1.0 + QUIET_SECONDS
    for _ in range(2):
        for node in turns.going:
            turns.moved(node, now)
        assert len(list(turns.next(now, all_read=True))) == 1
        assert list(turns.next(now + QUIET_SECONDS / 2, all_read=True)) == []
        now += QUIET_SECONDS
    assert len(turns.going) == 4


def test_a_coordinator_that_was_busy_does_not_take_its_clients_for_slow() -> None:
    turns = Turns(1, TURNS_BYTES // 3)
    for node in range(3):
        turns.ask(node, 1)
    assert [node for node, _ in turns.next(0.0, all_read=True)] == [0]
    assert list(turns.next(100 * QUIET_SECONDS, all_read=False)) == []
    turns.moved(0, 100 * QUIET_SECONDS)  # what had waited to be heard
    assert list(turns.next(100.5 * QUIET_SECONDS, all_read=True)) == []
    turns.forget(0)
    assert [node for node, _ in turns.next(100.5 * QUIET_SECONDS, all_read=False)] == [1]


def test_a_coordinator_that_adds_up_what_came_takes_neither_a_client_nor_the_line_for_slow() -> None:
    """What comes in that time waits in the system's buffers, which are full soon."""
    clock, turns = ListeningClock(), Turns(4)
    for node in range(4):
        turns.ask(node, 1)
    assert len(list(turns.next(clock.convert(0.0), all_read=True))) == 2
    for away in range(10):
        for node in (0, 1):
            turns.moved(node, clock.convert(float(away)))
        for _ in range(FAST_CHUNKS):
            turns.moved(0, clock.convert(float(away)))
        clock.leave(away + 0.01)
        clock.back(away + 1.0)
        assert list(turns.next(clock.convert(away + 1.0), all_read=True)) == []
    assert len(list(turns.next(clock.convert(10.2), all_read=True))) == 2, "it listens, and nothing comes"


@pytest.mark.parametrize("message_bytes", [1, TURNS_BYTES // 4, TURNS_BYTES, 100 * TURNS_BYTES])
def test_what_is_under_way_is_bounded_whoever_asks(message_bytes: int) -> None:
    """So many at once, or so many bytes, whichever is more: it does not depend on the number of clients."""
    turns = Turns(4, message_bytes)
    bound = max(4, TURNS_BYTES // message_bytes)
    if bound > 10_000:
        return
    for node in range(2 * bound):
        turns.ask(node, 1)
    now = 0.0
    for _ in range(2 * bound):
        now += 2 * QUIET_SECONDS
        list(turns.next(now, all_read=True))
    assert len(turns.going) == bound


def test_who_is_silent_for_long_loses_its_turn() -> None:
    turns = Turns(1)
    turns.ask(1, 1)
    list(turns.next(0.0, all_read=True))
    turns.moved(1, 5.0)
    assert turns.stalled(5.0 + STALLED_SECONDS) == []
    assert turns.stalled(5.1 + STALLED_SECONDS) == [1]


def test_who_is_gone_neither_waits_nor_goes() -> None:
    turns = Turns(1)
    turns.ask(1, 1)
    turns.ask(2, 1)
    list(turns.next(0.0, all_read=True))
    turns.forget(1)
    turns.forget(2)
    assert list(turns.next(0.0, all_read=True)) == [] and not turns.going and not turns.waiting


def test_words_are_told_from_messages_and_nonsense_is_no_word() -> None:
    assert parse(word(ASK, 7)[0]) == (ASK, 7) and parse(word(GO, 2**32 - 1)[0]) == (GO, 2**32 - 1)
    assert parse(b"") == parse(b"A") == parse(b"A" * 10) == (b"", 0)
