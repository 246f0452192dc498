"""When something is said again that was not answered: after round trips, at once where a gap shows, not in a storm."""

from __future__ import annotations

import numpy as np
import pytest
from test_allreduce import quadratic
from test_parameter_server import quadratic as served

from fedgossip import simulate
from fedgossip.machine import Send, SetTimer
from fedgossip.messages import ReduceChunk
from fedgossip.protocols.chunk_links import ChunkLink
from fedgossip.protocols.round_trips import FIRST_NS, LEAST_NS, RoundTrips
from fedgossip.records import PeerRow
from fedgossip.vectors import frozen

SECOND = 1_000_000_000
LONGEST = 30 * SECOND


def test_the_timeout_is_that_of_rfc_6298_and_twice_the_round_trip_at_least() -> None:
    """Section 2: after the first R, SRTT = R and RTTVAR = R / 2; then by 1/8 and 1/4; the timeout SRTT + 4 RTTVAR."""
    trips = RoundTrips(LONGEST)
    assert trips.timeout_ns == FIRST_NS
    smoothed, deviation = 400.0, 200.0
    trips.saw(400_000_000)
    for took in (400, 900, 300, 300, *[300] * 40):
        trips.saw(took * 1_000_000)
        deviation = 3 / 4 * deviation + 1 / 4 * abs(smoothed - took)
        smoothed = 7 / 8 * smoothed + 1 / 8 * took
        expected = max(smoothed + max(4 * deviation, smoothed), LEAST_NS / 1e6)
        assert trips.timeout_ns / 1e6 == pytest.approx(expected, rel=1e-4)
    assert expected == pytest.approx(600, rel=0.02), "and no less, however even they are"


def test_a_timeout_doubles_until_something_said_once_is_answered() -> None:
    trips = RoundTrips(LONGEST)
    trips.saw(10_000_000)
    for doubled in (1, 2, 4, 8):
        assert trips.timeout_ns == doubled * LEAST_NS
        trips.timed_out()
    trips.came()
    assert trips.timeout_ns == 8 * LEAST_NS
    trips.saw(10_000_000)
    assert trips.timeout_ns == LEAST_NS
    for _ in range(40):
        trips.timed_out()
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
    assert sent(link.taken(chunk(0).name, 5_000_000)) == [4]
    assert sent(link.taken(chunk(2).name, 5_000_000)) == [1, 5], "1 is lost: 3 and 4 were sent after 2"
    assert sent(link.taken(chunk(3).name, 6_000_000)) == [], "1 is under way for the second time"
    assert sent(link.taken(chunk(1).name, 10_000_000)) == [4], "that was sent before 1 went again"


def test_an_answer_that_may_be_to_the_first_time_shows_no_gap() -> None:
    """The timeout was too short: answers to all are on their way, and come in their order."""
    link, effects = link_of(4)
    (timer,) = [one for one in effects if isinstance(one, SetTimer)]
    assert sent(link.again(timer.key[2], FIRST_NS)) == [0], "the oldest alone"  # type: ignore[index]
    for step in range(4):
        assert sent(link.taken(chunk(step).name, 2 * SECOND + step)) == []
    assert link.idle


def test_a_second_answer_tells_that_the_first_was_on_its_way_and_how_long_it_took() -> None:
    """One that is slow to answer in every round would have everything said twice, and nothing measured."""
    link, _ = link_of(1)
    link.taken(chunk(0).name, 100_000_000)
    before = link.round_trips.timeout_ns
    (*_, timer) = [one for one in link.send(chunk(1), SECOND) if isinstance(one, SetTimer)]
    assert sent(link.again(timer.key[2], SECOND + before)) == [1]  # type: ignore[index]
    link.taken(chunk(1).name, 2 * SECOND)
    assert link.round_trips.timeout_ns == 2 * before, "nobody knows to which time that was an answer"
    assert sent(link.taken(chunk(1).name, 2 * SECOND + 1)) == []
    assert link.round_trips.timeout_ns > SECOND, "four deviations of what took a second"
    assert link.taken(chunk(1).name, 2 * SECOND + 2) == [] and link.idle


def test_a_timer_is_of_the_last_answer() -> None:
    link, effects = link_of(3)
    before = [one for one in effects if isinstance(one, SetTimer)]
    assert len(before) == 1, "it runs from the first on"
    after = [one for one in link.taken(chunk(0).name, 1_000_000) if isinstance(one, SetTimer)]
    assert sent(link.again(before[0].key[2], FIRST_NS)) == []  # type: ignore[index]
    assert sent(link.again(after[0].key[2], FIRST_NS)) == [1]  # type: ignore[index]
    assert [one.last_ns for one in link._under_way.values()] == [FIRST_NS, 0]
    link.drop()
    assert link.idle and link.again(after[0].key[2], FIRST_NS) == []  # type: ignore[index]


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


def test_a_slow_link_is_found_out_in_a_few_repeats() -> None:
    """Answers take 8 s: 1 MiB goes again after 1, 3 and 7 on each of four links, one once more, and no more."""
    links = {"bandwidth": 5e5, "downlink": 5e5, "latency": 0.02}
    experiment = served(2, 1, rounds=4, task={"dim": 600_000}, parallel={"deadline": 300.0})
    run, quiet = simulate({**experiment, "simulation": links}), simulate(experiment)
    assert run.digest == quiet.digest
    assert payload(run) - payload(quiet) <= (4 * 3 + 1) * 2**20
