"""When something is said again that was not answered: after round trips, at once where a gap shows, not in a storm."""

from __future__ import annotations

import numpy as np
import pytest
from test_allreduce import quadratic
from test_parameter_server import quadratic as served

from fedgossip import simulate
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import Send, SetTimer
from fedgossip.core.messages import ChunksAsked, ChunksHere, ChunkTaken, ReduceChunk
from fedgossip.core.records import PeerRow
from fedgossip.protocols.allreduce.chunk_links import FIRST_NS, LEAST_NS, ChunkLink, RoundTrips

SECOND = 1_000_000_000
LONGEST = 30 * SECOND


def test_the_timeout_is_that_of_rfc_6298_and_twice_the_round_trip_at_least() -> None:
    """Section 2: after the first R, SRTT = R and RTTVAR = R / 2; then by 1/8 and 1/4; the timeout SRTT + 4 RTTVAR."""
    trips = RoundTrips(LONGEST)
    assert trips.timeout_ns == FIRST_NS
    smoothed, deviation = 400.0, 200.0
    trips.record(400_000_000)
    for took in (400, 900, 300, 300, *[300] * 40):
        trips.record(took * 1_000_000)
        deviation = 3 / 4 * deviation + 1 / 4 * abs(smoothed - took)
        smoothed = 7 / 8 * smoothed + 1 / 8 * took
        expected = max(smoothed + max(4 * deviation, smoothed), LEAST_NS / 1e6)
        assert trips.timeout_ns / 1e6 == pytest.approx(expected, rel=1e-4)
    assert expected == pytest.approx(600, rel=0.02), "and no less, however even they are"


def test_a_timeout_doubles_until_something_is_answered() -> None:
    """From the second on, and twice: what goes out after it is a question, of a few bytes."""
    trips = RoundTrips(LONGEST)
    trips.record(10_000_000)
    for doubled in (1, 1, 2, 4, 4, 4):
        assert trips.timeout_ns == doubled * LEAST_NS
        trips.timed_out()
    trips.record(10_000_000)
    assert trips.timeout_ns == LEAST_NS
    trips.record(LONGEST)
    assert trips.timeout_ns == LONGEST


def chunk(step: int) -> ReduceChunk:
    return ReduceChunk(0, 0, 0, step, 0, 1, 0.0, "s", (frozen(np.zeros(1, np.float32)),))


def sent(effects: list[object]) -> list[int]:
    return [one.message.step for one in effects if isinstance(one, Send) and isinstance(one.message, ReduceChunk)]


def link_of(count: int, at: int = 0) -> tuple[ChunkLink, list[object]]:
    link = ChunkLink(1, LONGEST)
    effects: list[object] = []
    for step in range(count):
        effects += link.send(chunk(step), at)
    return link, effects


def test_what_a_later_answer_passes_over_goes_again_at_once_and_alone() -> None:
    link, effects = link_of(6)
    assert sent(effects) == [0, 1, 2, 3]
    assert sent(link.handle_acknowledgement(chunk(0).name, 5_000_000)) == [4]
    assert sent(link.handle_acknowledgement(chunk(2).name, 5_000_000)) == [1, 5], "1 is lost: 3 and 4 were sent after 2"
    assert sent(link.handle_acknowledgement(chunk(3).name, 6_000_000)) == [], "1 is under way for the second time"
    assert sent(link.handle_acknowledgement(chunk(1).name, 10_000_000)) == [4], "that was sent before 1 went again"


def asked(effects: list[object]) -> list[ChunksAsked]:
    return [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, ChunksAsked)]


def timers(effects: list[object]) -> list[int]:
    return [one.key[2] for one in effects if isinstance(one, SetTimer)]  # type: ignore[index]


def test_after_a_timeout_it_is_asked_what_is_there_and_the_rest_alone_goes_again() -> None:
    link, effects = link_of(6)
    (question,) = asked(link.again(*timers(effects), SECOND))
    assert list(question.names) == [chunk(step).name for step in range(4)]
    answer = ChunksHere(question.number, (chunk(0).name, chunk(2).name))
    assert sent(link.handle(answer, 2 * SECOND)) == [1, 3, 4, 5], "what is lost, and what there is room for"
    assert link.handle(answer, 2 * SECOND) == [], "it was answered"


def test_what_was_sent_after_a_question_is_not_lost_by_its_answer() -> None:
    link, effects = link_of(6)
    (question,) = asked(link.again(*timers(effects), SECOND))
    assert sent(link.handle_acknowledgement(chunk(1).name, 2 * SECOND)) == [0, 4], "a gap"
    assert sent(link.handle(ChunksHere(question.number, ()), 2 * SECOND)) == [2, 3], "4, and 0 again, came after it"


def test_a_slow_link_carries_nothing_twice_and_is_measured() -> None:
    """Answers are on their way, and come in their order; those to the questions come after them."""
    link, effects = link_of(4)
    questions = []
    for _ in range(3):
        said = link.again(*timers(effects), SECOND)
        questions += asked(said)
        effects = said
        assert sent(said) == []
    for step in range(4):
        assert sent(link.handle_acknowledgement(chunk(step).name, 8 * SECOND + step)) == []
    assert link.round_trips.timeout_ns >= 16 * SECOND, "twice what an answer took"
    for question in questions:
        assert sent(link.handle(ChunksHere(question.number, question.names), 9 * SECOND)) == []
    assert link.idle


def test_what_is_answered_after_a_question_alone_is_measured_from_that() -> None:
    """Its first answer was lost."""
    link, effects = link_of(1)
    (question,) = asked(link.again(*timers(effects), SECOND))
    assert link.round_trips.timeout_ns == FIRST_NS
    answer = ChunksHere(question.number, question.names)
    assert link.handle(answer, SECOND + 100_000_000) == [] and link.idle
    assert link.round_trips.timeout_ns == 300_000_000, "0.1 s, and four times half of it"


def test_a_receiver_says_what_it_has_taken_until_it_forgets_it() -> None:
    there, _ = link_of(0)
    for step in range(2):
        there.took(ChunkTaken(*chunk(step).name))
    question = ChunksAsked(7, tuple(chunk(step).name for step in (1, 2)))
    assert there.handle(question, 0) == [Send(1, ChunksHere(7, (chunk(1).name,)))]
    there.drop()
    assert there.handle(question, 0) == [Send(1, ChunksHere(7, ()))], "the round is given up here: it must come again"


def test_who_says_that_nothing_has_come_is_sent_it_once() -> None:
    """Words of a few bytes must not bring a megabyte each."""
    link, effects = link_of(4)
    assert link.handle(ChunksHere(1, ()), SECOND) == [], "nobody has asked"
    (question,) = asked(link.again(*timers(effects), SECOND))
    assert sent(link.handle(ChunksHere(question.number, ()), SECOND)) == [0, 1, 2, 3]
    assert link.handle(ChunksHere(question.number, ()), SECOND) == []


def test_a_timer_is_of_the_last_answer() -> None:
    link, effects = link_of(3)
    before = timers(effects)
    assert len(before) == 1, "it runs from the first on"
    after = timers(link.handle_acknowledgement(chunk(0).name, 1_000_000))
    assert link.again(*before, SECOND) == []
    assert len(asked(link.again(*after, SECOND))) == 1
    link.drop()
    assert link.idle and link.again(*after, SECOND) == []


def payload(run: object) -> int:
    return sum(row.payload_sent for row in run.rows if isinstance(row, PeerRow))  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kind", "share", "seconds"), [("ring", 0.01, 1.0), ("ring", 0.15, 6.0), ("star", 0.15, 5.0)])
def test_lost_messages_cost_round_trips_and_not_deadlines(kind: str, share: float, seconds: float) -> None:
    """Eight rounds of 0.08 s; with a timeout of a second they took up to 22."""
    quiet = simulate(quadratic(4, kind, rounds=8))
    run = simulate(quadratic(4, kind, rounds=8, faults=[{"kind": "drop", "probability": share}]))
    assert run.digest == quiet.digest and run.summary["seconds"] < seconds
    assert payload(run) <= payload(quiet) * 1.6


def test_lost_pulls_are_asked_for_again_as_soon() -> None:
    quiet = simulate(served(rounds=8))
    run = simulate(served(rounds=8, faults=[{"kind": "drop", "probability": 0.05}]))
    assert run.digest == quiet.digest and run.summary["seconds"] < 5.0


def test_a_slow_link_carries_everything_once() -> None:
    """Answers take 8 s, and a first timeout a second."""
    links = {"bandwidth": 5e5, "downlink": 5e5, "latency": 0.02}
    experiment = served(2, 1, rounds=4, task={"dim": 600_000}, parallel={"deadline": 300.0})
    run, quiet = simulate({**experiment, "simulation": links}), simulate(experiment)
    assert run.digest == quiet.digest
    assert payload(run) == payload(quiet)


@pytest.mark.parametrize(("workers", "share"), [(2, 0.05), (2, 0.15), (4, 0.05), (4, 0.15)])
def test_links_that_are_slow_and_lose_take_what_their_timeouts_say(workers: int, share: float) -> None:
    """docs/together/parallel.md: E seconds more a chunk, by one of the links at least and by all of them at most."""
    rate, latency, dim, rounds = 5e4, 0.02, 25_000, 8
    links = {"bandwidth": rate, "downlink": rate, "latency": latency}
    ring = {"workers": workers, "bucket": 0, "method": "ring", "deadline": 300.0}
    experiment = {"task": {"kind": "quadratic", "dim": dim}, "parallel": ring, "train": {"lr": 0.1}, "rounds": rounds}
    drop = [{"kind": "drop", "probability": share}]
    quiet = simulate({**experiment, "simulation": links}).summary["seconds"]
    runs = [simulate({**experiment, "simulation": links, "faults": drop, "seed": seed}) for seed in range(8)]
    steps, sent = 2 * (workers - 1) * rounds, 4 * dim / workers / rate
    trip = sent + 2 * latency

    def more(timeout: float) -> float:
        return share / (1 - share) * (timeout / (1 - share) ** 2 + 2 * latency + sent + latency)

    mean = sum(run.summary["seconds"] for run in runs) / len(runs)
    assert quiet + steps * more(2 * trip) <= mean <= quiet + workers * steps * more(3 * trip)
