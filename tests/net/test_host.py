"""The host between its links and its machine, with both played by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgossip.base.errors import ConfigError, PeerError, TrainingError
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import (
    Effect,
    Event,
    Finish,
    Fired,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
)
from fedgossip.core.messages import Expected, Hello, Leaving, Masked, Model
from fedgossip.core.records import EventRow
from fedgossip.core.task import Job, Update
from fedgossip.faults import FaultScript
from fedgossip.learning.analytic import Averaging
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.faulty import Faults, SlowTask
from fedgossip.net.host import HURRY_SECONDS, REPLACED_MAX, TURN_AWAY_SECONDS, Host
from fedgossip.net.host_ports import Ports
from fedgossip.net.identity import Identity
from fedgossip.net.links.mesh import Links
from fedgossip.net.transport import CAUSES_WRITTEN, Arrived, LinkDown, LinkUp, Refusals, Rejected

pytestmark = pytest.mark.sockets

HELLO = Hello("s", "e", "v")
EXPECTED = Expected("s", "float32", 4)


class Told:
    """A machine that only remembers, and asks for one training."""

    def __init__(self, *effects: Effect) -> None:
        self.events: list[Event] = []
        self.effects = effects

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        self.events.append(event)
        return self.effects if isinstance(event, Started) else []

    def links_told(self) -> list[Event]:
        return [event for event in self.events if isinstance(event, PeerJoined | PeerGone)]


def ports(rows: list[Any] | None = None) -> Ports:
    return Ports((rows if rows is not None else []).append, lambda r, v: None, lambda r, v: None, lambda: False)


@pytest.fixture
def links(tmp_path: Path) -> Any:
    """Peer 0, whose partner 1 is an address at which nobody listens."""
    made = Links(0, f"ipc://{tmp_path}/0", Identity.new())
    made.connect((1,), {1: Endpoint(f"ipc://{tmp_path}/1", Identity.new().public)}, EXPECTED, HELLO)
    yield made
    made.close()


class Fragile(Told):
    """A machine that breaks on whatever another one says."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        super().handle(event, now_ns)
        if isinstance(event, Received | PeerGone):
            raise self.error("\x1b[2J")
        return []


@pytest.mark.parametrize("error", [KeyError, TypeError, OverflowError, RecursionError, AssertionError, ConfigError])
def test_whatever_a_message_does_to_the_machine_costs_that_message_only(links: Links, error: type[Exception]) -> None:
    machine, rows = Fragile(error), list[Any]()
    host = Host(0, machine, links, Averaging(2, 4), HELLO, ports(rows))
    for event in (LinkUp(1), Arrived(1, HELLO), *[Arrived(1, model(0))] * 37):
        host._take_event(event)
    host._refusals.close()
    assert sum(isinstance(event, Received) for event in machine.events) == 37 == host.counts["refused"]
    assert [row.value.get("count", 1) for row in rows] == [1, 10, 37]
    assert {(row.value["from"], row.value["reason"]) for row in rows} == {(1, "refused")}
    assert all(error.__name__ in row.value["text"] and "\x1b" not in row.value["text"] for row in rows)
    with pytest.raises(error):  # what nobody else has said is our own fault, and said as it is
        host.dispatch(PeerGone(1))


def test_timers_that_are_replaced_take_no_memory(links: Links) -> None:
    """A client sets its patience of a day anew with every word of its coordinator, who may say a million."""
    machine = Told(*[SetTimer(("patience",), 10**15)] * 20_000, SetTimer(("soon",), 0), SetTimer(("patience",), 0))
    host = Host(0, machine, links, Averaging(2, 4), HELLO, ports())
    host.dispatch(Started())
    assert len(host._due) <= REPLACED_MAX + 2 * len(host._timers)
    host._step()
    assert machine.events[1:] == [Fired(("soon",)), Fired(("patience",))] and not host._timers


def test_each_cause_is_written_once_with_its_count_and_not_too_many(links: Links) -> None:
    rows = list[Any]()
    host = Host(0, Told(), links, Averaging(2, 4), HELLO, ports(rows))
    for number in range(CAUSES_WRITTEN + 30):
        host._take_event(Rejected(number, "mark", "x"))
    for number in range(99):
        host._take_event(Rejected(0, "refused", f"node 0, round {number}: a model of round {2 * number}"))
        host._take_event(Rejected(0, "mark", "y"))
    host._refusals.close()
    assert host.counts["refused"] == CAUSES_WRITTEN + 30 + 198
    assert len({row.value["from"] for row in rows}) == CAUSES_WRITTEN
    assert [row.value["count"] for row in rows if "count" in row.value] == [10, 100]


def test_a_round_in_a_sentence_is_no_cause_of_its_own() -> None:
    said = list[dict[str, Any]]()
    refusals = Refusals(said.append)
    for number in range(12):
        refusals.add(Rejected(2, "refused", f"round {number}: a model of round {number + 7}"))
        refusals.add(Rejected(2, "refused", f"round {number}: a second model"))
    refusals.close()
    assert [(one["text"], one.get("count", 1)) for one in said] == [
        (f"round 0: {what}", count) for count in (1, 10, 12) for what in ("a model of round 7", "a second model")
    ]


def model(round: int) -> Model:
    return Model(round, "s", (frozen(np.zeros(4, np.float32)),))


def masked(round: int) -> Masked:
    return Masked(round, "s", (frozen(np.zeros(8, np.uint32)),))  # type: ignore[type-var]


@pytest.fixture(params=[model, masked], ids=["in clear", "masked"])
def say(request: pytest.FixtureRequest) -> Any:
    """What a peer says in a round."""
    return request.param


def test_a_partner_joins_when_it_has_greeted_and_can_be_called_in_whatever_order(links: Links) -> None:
    greeted, up, down = Arrived(1, HELLO), LinkUp(1), LinkDown(1)
    for order in ([up, greeted], [greeted, up], [up, down, greeted, up], [up, greeted, down, up]):
        machine = Told()
        host = Host(0, machine, links, Averaging(2, 4), HELLO, ports())
        for event in order:
            host._take_event(event)
        assert machine.links_told() == [PeerJoined(1)], order


def process(number: int, incarnation: int = 0) -> Arrived:
    return Arrived(1, replace(HELLO, process=number, incarnation=incarnation))


@pytest.mark.parametrize("by", ["a message", "the timer"])
def test_one_that_was_gone_joins_again_by_a_message_or_a_timer(by: str, links: Links) -> None:
    """Its own connection lasted; a new process greets first, and would join twice if it were taken for the old one."""
    machine = Told()
    host = Host(0, machine, links, Averaging(2, 4), HELLO, ports())
    for event in (LinkUp(1), Arrived(1, HELLO), LinkDown(1)):
        host._take_event(event)
    host._fire(("grace", 1))
    host._take_event(LinkUp(1))
    assert machine.links_told() == [PeerJoined(1), PeerGone(1)]
    host._take_event(Arrived(1, model(1))) if by == "a message" else host._fire(("greeting", 1))
    assert machine.links_told() == [PeerJoined(1), PeerGone(1), PeerJoined(1)]


@pytest.mark.parametrize("order", [[LinkUp(1), process(6, 1)], [process(6, 1), LinkUp(1)]], ids=["up", "greeted"])
def test_a_next_life_joins_once_whichever_direction_is_first(links: Links, order: list[Any]) -> None:
    machine = Told()
    host = Host(0, machine, links, Averaging(2, 4), HELLO, ports())
    for event in (LinkUp(1), process(5), LinkDown(1)):
        host._take_event(event)
    host._fire(("grace", 1))
    for event in order:
        host._take_event(event)
    assert machine.links_told() == [PeerJoined(1), PeerGone(1), PeerJoined(1, 1)]


def test_where_the_links_say_nothing_again_the_machine_is_told_of_every_new_connection(links: Links) -> None:
    """What was on its way is lost: it must ask, or say it, again, though nobody was told as gone."""
    machine = Told()
    host = Host(0, machine, links, Averaging(2, 4), HELLO, ports())
    for event in (Arrived(1, HELLO), LinkUp(1, afresh=True), LinkDown(1), Arrived(1, HELLO), LinkUp(1, afresh=True)):
        host._take_event(event)
    assert machine.links_told() == [PeerJoined(1), PeerJoined(1)] and ("grace", 1) not in host._timers


def test_a_second_process_with_one_identity_is_a_twin_and_changes_nothing(links: Links) -> None:
    machine, rows = Told(), list[Any]()
    host = Host(0, machine, links, Averaging(2, 4), HELLO, ports(rows))
    for event in (LinkUp(1), process(5), process(6), process(6)):
        host._take_event(event)
    assert [row.value["reason"] for row in rows] == ["twin"] and host.counts == {"refused": 2}
    assert machine.links_told() == [PeerJoined(1)]


def test_a_process_whose_key_another_one_uses_ends_with_that_when_its_coordinator_is_gone(links: Links) -> None:
    refused = Rejected(1, "twin", "another process with our key is connected", "Stop one of the two.")
    ended = Host(0, Told(), links, Averaging(2, 4), HELLO, ports())
    for event in (refused, LinkDown(1)):
        ended._take_event(event)
    ended._fire(("grace", 1))
    assert ended._turned_away and "another process with our key" in str(ended._fatal)
    follows = Host(0, machine := Told(), links, Averaging(2, 4), HELLO, ports())
    for event in (refused, LinkUp(1), process(5), LinkDown(1)):
        follows._take_event(event)
    follows._fire(("grace", 1))
    assert machine.links_told() == [PeerJoined(1), PeerGone(1)] and follows._fatal is None, "the other one has ended"


@pytest.mark.parametrize(
    "later",
    [
        [process(5)],  # the same one, on a new connection
        [process(6, incarnation=1)],  # its next life
        [LinkDown(1), LinkUp(1), process(6)],  # started anew without --resume
        [LinkDown(1), process(6), LinkUp(1)],
    ],
    ids=["again", "next life", "anew", "anew, heard first"],
)
def test_one_that_calls_again_or_was_started_anew_is_no_twin(links: Links, later: list[Any]) -> None:
    rows = list[Any]()
    host = Host(0, Told(), links, Averaging(2, 4), HELLO, ports(rows))
    for event in (LinkUp(1), process(5), *later):
        host._take_event(event)
    assert rows == [] and host.counts == {}


def test_what_cannot_be_said_is_kept_only_while_it_is_news(links: Links, say: Any) -> None:
    for number in range(20):
        links.send(1, say(number))
    links.send(1, Leaving(20))
    link = links._links[1]
    assert not link.outbox and links.bytes_sent == 0
    kind = type(say(0)).__name__
    assert [type(m).__name__ + str(m.round) for m in link.recent] == [f"{kind}18", f"{kind}19", "Leaving20"]  # type: ignore


def test_a_model_that_the_partner_has_used_is_let_go(links: Links, say: Any) -> None:
    for number in range(3):
        links.send(1, say(number))
    link = links._links[1]
    link.has(2)
    assert [m.round for m in link.recent] == [2]  # type: ignore


class Ends(Told):
    """A machine that ends when it is told to."""

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        return [Finish(frozen(np.zeros(4, np.float32)))] if isinstance(event, Stopping) else []


@pytest.mark.parametrize(("stopped", "seconds"), [(False, TURN_AWAY_SECONDS), (True, HURRY_SECONDS)])
def test_one_whom_we_refuse_is_told_before_we_leave(
    links: Links, monkeypatch: pytest.MonkeyPatch, stopped: bool, seconds: float
) -> None:
    """It may be slow to let us call it: without our Hello it would wait for us until its run times out."""
    drained = list[float]()
    monkeypatch.setattr(links, "close", drained.append)
    links._late.append(Arrived(1, replace(HELLO, schema="another")))
    host = Host(0, Ends(), links, Averaging(2, 4), HELLO, replace(ports(), stop=lambda: stopped))
    with pytest.raises(PeerError, match="no partner to learn with"):
        host.run()
    assert drained == [seconds]
    monkeypatch.undo()


class Exits(Averaging):
    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        raise SystemExit(3)


def test_training_that_exits_ends_the_peer_with_an_error(links: Links) -> None:
    class Trains(Told):
        def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
            from fedgossip.core.machine import Finish

            done = [Finish(frozen(np.zeros(4, np.float32)))]
            return done if isinstance(event, Stopping) else super().handle(event, now_ns)

    task = Exits(2, 4)
    host = Host(0, Trains(Train(0, task.initial(0))), links, task, HELLO, ports())
    with pytest.raises(TrainingError, match="SystemExit"):
        host.run()


class Telling(Averaging):
    """A task that tells how it trains, in the thread that trains."""

    tell: Callable[[Report], None]

    def report_to(self, write: Callable[[Report], None]) -> None:
        self.tell = write

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        self.tell(Report("not_captured", "for a reason", 3))
        return super().train(jobs)


@pytest.mark.parametrize("slowed", [False, True])
def test_what_a_task_tells_of_its_training_is_in_the_peers_record(links: Links, slowed: bool) -> None:
    class Trains(Told):
        def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
            done = [Finish(frozen(np.zeros(4, np.float32)))]
            return done if isinstance(event, Trained) else super().handle(event, now_ns)

    task: Any = Telling(2, 4)
    if slowed:
        task = SlowTask(task, Faults(FaultScript((), 3, 0), 0, lambda: None))
    rows: list[Any] = []
    Host(0, Trains(Train(0, task.initial(0))), links, task, HELLO, ports(rows)).run()
    told = [row for row in rows if isinstance(row, EventRow)]
    assert told == [EventRow(3, 0, "not_captured", "for a reason")]


# --- processors that differ -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "theirs", "told"),
    [
        (7, [7, 7], []),
        (7, [7, 9, 11], [2]),  # once, of the first
        (7, [0, 0], []),  # of those it does not decide the bits
        (0, [9, 9, 11], [3]),  # a coordinator trains nothing, and compares its clients
        (0, [0, 9], []),
    ],
)
def test_processors_that_differ_are_told_once(links: Links, own: int, theirs: list[int], told: list[int]) -> None:
    rows: list[Any] = []
    host = Host(0, Told(), links, Averaging(5, 4), replace(HELLO, processor=own), ports(rows))
    for node, processor in enumerate(theirs, 1):
        host._take_event(Arrived(node, replace(HELLO, processor=processor)))
        host._take_event(Arrived(node, replace(HELLO, processor=processor)))  # the link broke, and came back
    assert host._greeted == set(range(1, len(theirs) + 1))
    assert [(row.name, row.value) for row in rows] == [("unlike", node) for node in told]
    assert host.counts.get("unlike", 0) == len(told)
