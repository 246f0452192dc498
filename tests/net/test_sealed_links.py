"""Links with sealed streams: what goes by them, in which order; what somebody on the wire, or a stranger, can do."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from hub_kit import Wheel, contribution, invite, values, wheel
from over_sockets import Wrap, run_over_sockets
from sealed_kit import DIM, Change, Two, Wire, model, two

from fedgossip import simulate
from fedgossip.base.vectors import digest
from fedgossip.core import wire as wire_format
from fedgossip.core.machine import Effect, Event, Machine, Trained
from fedgossip.core.messages import Account, Contribution, Invite, Model
from fedgossip.core.records import EventRow
from fedgossip.core.wire import CHUNK_BYTES
from fedgossip.experiment import load_experiment
from fedgossip.net.sockets import DRAIN_FRAMES
from fedgossip.net.streams import sealed_way, sealing, stream_port, streams
from fedgossip.net.streams.sealed_stream import HEAD_BYTES
from fedgossip.net.streams.sealing import TAG_BYTES, TICKET_BYTES, Suite
from fedgossip.net.streams.stream_port import HAIL, STRANGER_BYTES, STRANGERS
from fedgossip.net.streams.streams import STREAMS_OF_ONE
from fedgossip.net.transport import ModelBegun
from fedgossip.plans import compose

pytestmark = pytest.mark.sockets


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    with two(monkeypatch) as made:
        yield made


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    made = Wire(monkeypatch)
    yield made
    made.close()


@pytest.fixture
def tapped(wire: Wire, pair: Two) -> Two:
    pair.beside = wire.pump
    return pair


# --- what goes by a stream --------------------------------------------------------------------------------------------


def test_models_go_by_streams_once_they_are_there_and_all_in_order(pair: Two) -> None:
    """From the first moment on: some by CURVE, those after them by the stream, and none overtakes another."""
    pair.until(lambda: all(pair.ups(node) for node in (0, 1)), "links")
    for round in range(12):
        for node in (0, 1):
            pair.send(node, round)
        pair.turn(0.02)
    pair.until(lambda: len(pair.rounds(0)) >= 12 and len(pair.rounds(1)) >= 12, "all models")
    assert pair.speaking()
    for node in (0, 1):
        assert pair.rounds(node) == list(range(12)) and pair.reasons(node) == []


def test_without_keys_models_go_by_streams_that_nobody_seals(monkeypatch: pytest.MonkeyPatch) -> None:
    """As measurements have it, of what encryption costs."""
    with two(monkeypatch, keyed=False) as pair:
        pair.seal()
        pair.send(0, 1)
        pair.until(lambda: pair.rounds(1) == [0, 1], "a model")
        assert pair.call(0).stream._sealer._cipher.__class__ is sealing._Copying


@pytest.mark.parametrize("links", ["sealed", "curve"])
def test_what_a_model_says_of_its_edge_is_told_before_its_vectors_take_memory(
    monkeypatch: pytest.MonkeyPatch, links: str
) -> None:
    """Or a receiver would keep its own last model beside the one that says that it is not needed."""
    took: list[int] = []
    made = wire_format.empty
    monkeypatch.setattr(wire_format, "empty", lambda length, kind: took.append(length) or made(length, kind))
    with two(monkeypatch, links, links) as pair:
        pair.until(lambda: all(pair.ups(node) for node in (0, 1)), "links")
        said = Model(5, "layout", model(5).vectors, used=4, missing=2)
        pair.peers[0].send(1, said)
        pair.until(lambda: ModelBegun(0, Account(5, used=4, missing=2)) in pair.heard[1], "the account")
        assert took == [] and pair.rounds(1) == []
        pair.until(lambda: pair.rounds(1) == [5], "the model")
        assert took == [DIM]


def test_what_was_sent_by_curve_before_is_heard_before(pair: Two) -> None:
    """The callee reads nothing of a stream while messages that were sent before are still on the CURVE connection."""
    pair.until(lambda: all(pair.call(node).up for node in (0, 1)), "streams")
    (way,) = pair.peers[1].streams.list_called(0)
    pair.call(0).frames_sent += 1  # one that is on its way, or lost
    pair.send(0, 3)
    pair.turn()
    assert way.receives and way.waits and pair.rounds(1) == []
    pair.peers[1].streams.count_curve_message(0, way.connection)
    pair.until(lambda: pair.rounds(1) == [3], "the model")


def test_nobody_sees_a_model_on_the_wire(wire: Wire, tapped: Two) -> None:
    tapped.seal()
    tapped.send(0, 1)
    tapped.until(lambda: 1 in tapped.rounds(1), "the model")
    plain = model(1).vectors[0].tobytes()[:64]
    assert len(wire.seen) == 2 and all(plain not in sent for sent in wire.seen)
    assert max(len(sent) for sent in wire.seen) > 2 * model(1).vectors[0].nbytes


@pytest.mark.parametrize(("first", "second"), [("chacha20-poly1305", "sealed"), ("sealed", "chacha20-poly1305")])
def test_a_peer_without_aes_is_beside_one_with_it(monkeypatch: pytest.MonkeyPatch, first: str, second: str) -> None:
    monkeypatch.setattr(sealing, "has_aes", lambda: True)
    suites: list[Suite] = []
    monkeypatch.setattr(streams, "answered", lambda *a: _noted(suites, sealing.answered(*a)))
    with two(monkeypatch, first, second) as pair:
        pair.seal()
        assert suites == [Suite.CHACHA20_POLY1305] * 2 and pair.reasons(0) == pair.reasons(1) == []


def _noted(suites: list[Suite], answer: tuple[bytes, sealing.Agreed | None]) -> tuple[bytes, sealing.Agreed | None]:
    suites += [answer[1].suite] if answer[1] else []
    return answer


def test_peers_without_a_suite_in_common_say_so_and_go_by_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    with two(monkeypatch, "aes-256-gcm", "chacha20-poly1305") as pair:
        pair.until(lambda: all(pair.reasons(node) == ["suite"] for node in (0, 1)), "both say so")
        pair.send(0, 1)
        pair.until(lambda: pair.rounds(1) == [1], "a model")
        assert pair.peers[0].streams.list_called(1) == () and not pair.call(0).up


@pytest.mark.parametrize(("first", "second"), [("curve", "sealed"), ("sealed", "curve"), ("curve", "curve")])
def test_a_peer_that_wants_curve_alone_has_it(monkeypatch: pytest.MonkeyPatch, first: str, second: str) -> None:
    with two(monkeypatch, first, second) as pair:
        pair.until(lambda: all(pair.ups(node) for node in (0, 1)), "links")
        for node in (0, 1):
            pair.send(node, 1)
        pair.until(lambda: pair.rounds(0) == pair.rounds(1) == [1], "models")
        pair.turn()
        assert not pair.call(0).up and not pair.call(1).up and pair.reasons(0) == pair.reasons(1) == []


def test_a_port_that_cannot_be_reached_costs_the_stream_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, pair: Two
) -> None:
    """A firewall, or a router that lets one port in."""

    def refuse(*_: object) -> socket.socket:
        raise ConnectionRefusedError

    monkeypatch.setattr(streams.sealed_stream, "call", refuse)
    monkeypatch.setattr(streams, "PAUSE_SECONDS", 0.1)
    pair.until(lambda: pair.call(0).number >= 3, "other attempts")
    pair.send(0, 1)
    pair.until(lambda: pair.rounds(1) == [1], "a model")
    assert pair.ups(0) == [True] and pair.reasons(1) == []


# --- somebody on the wire ---------------------------------------------------------------------------------------------


def _once(change: Change) -> Change:
    """Change the fourth record that carries a chunk of a model, and then no more."""
    state = {"chunks": 0}

    def changed(number: int, record: bytes) -> list[bytes] | None:
        state["chunks"] += record[:1] == b"C"
        return change(number, record) if state["chunks"] == 4 and record[:1] == b"C" else [record]

    return changed


held: list[bytes] = []


def _swapped(_: int, record: bytes) -> list[bytes]:
    """Hold one back, and send it after the next."""
    held.append(record)
    return [] if len(held) == 1 else [record, held.pop(0)]


CHANGES: dict[str, Change] = {
    "repeated": lambda _, record: [record, record],
    "left out": lambda _, record: [],
    "a bit changed": lambda _, record: [record[:-20] + bytes([record[-20] ^ 1]) + record[-19:]],
    "another number": lambda _, record: [record[:5] + b"\x09\x00\x00\x00" + record[9:]],
    "another kind": lambda _, record: [b"H" + record[1:]],
    "cut": lambda _, record: [record[: len(record) // 2]],
    "cut off": lambda _, record: None,
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_record_that_was_tampered_with_costs_the_stream_and_never_a_wrong_model(
    wire: Wire, tapped: Two, change: str
) -> None:
    """The link is greeted again, its last model comes once more, and each that arrives is as it was sent."""
    tapped.seal()
    wire.change = _once(CHANGES[change])
    for round in range(1, 4):
        tapped.send(0, round)
    tapped.until(lambda: tapped.rounds(1)[-1:] == [3], "the last model")
    assert tapped.ups(0) == [True, False, True]
    assert tapped.rounds(1) == sorted(set(tapped.rounds(1)))
    if change != "cut off":
        assert tapped.reasons(1) == ["seal"]


def test_what_was_recorded_of_a_connection_is_of_no_use_on_the_next(wire: Wire, tapped: Two) -> None:
    """Its ticket is used up; the records after it are sealed with a key that nobody has any more."""
    tapped.seal()
    tapped.send(0, 1)
    tapped.until(lambda: 1 in tapped.rounds(1), "the model")
    before = [list(tapped.rounds(node)) for node in (0, 1)]
    for node in (0, 1):
        with socket.create_connection(("127.0.0.1", tapped.peers[node].streams.port.number)) as again:
            again.sendall(bytes(wire.seen[0]))
            tapped.until(lambda again=again: _hung_up(again), "a refusal")  # type: ignore[misc]
    assert [tapped.rounds(node) for node in (0, 1)] == before
    assert tapped.speaking() and tapped.ups(0) == tapped.ups(1) == [True]


def test_a_stream_that_is_broken_is_made_anew_with_other_keys(
    monkeypatch: pytest.MonkeyPatch, wire: Wire, tapped: Two
) -> None:
    monkeypatch.setattr(streams, "PAUSE_SECONDS", 0.05)
    tapped.seal()
    wire.change = _once(lambda _, record: None)
    tapped.send(0, 1)
    tapped.until(lambda: tapped.ups(0) == [True, False, True] and tapped.call(0).up, "another stream")
    wire.change = lambda _, record: [record]
    tapped.send(0, 2)
    tapped.until(lambda: 2 in tapped.rounds(1), "the model after it")
    assert tapped.call(0).sends and tapped.rounds(1)[0] == 0
    tickets = {bytes(sent[len(HAIL) : len(HAIL) + TICKET_BYTES]) for sent in wire.seen}
    assert len(tickets) == len(wire.seen) == 3


def test_a_worn_out_key_is_replaced_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, pair: Two) -> None:
    monkeypatch.setattr(streams, "PAUSE_SECONDS", 0.05)
    pair.seal()
    monkeypatch.setattr(sealing, "RECORDS_MAX", 20)
    for round in range(1, 4):
        pair.send(0, round)
        pair.until(lambda round=round: round in pair.rounds(1), "the model")  # type: ignore[misc]
    assert pair.ups(0) == [True, False, True] and pair.reasons(1) == []
    monkeypatch.setattr(sealing, "RECORDS_MAX", 2**32)
    pair.until(lambda: pair.call(0).up, "another stream")
    assert pair.call(0).stream._sealer.records < 20


# --- strangers at the port --------------------------------------------------------------------------------------------


def _hung_up(end: socket.socket) -> bool:
    end.setblocking(False)
    try:
        return end.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_strangers_at_the_port_are_hung_up_on_and_break_nobody_s_stream(pair: Two) -> None:
    pair.seal()
    here = pair.peers[1].streams
    unproved = HAIL + bytes(TICKET_BYTES + HEAD_BYTES + TAG_BYTES)
    for said in (b"GET / HTTP/1.0\r\n\r\n", b"\xff" + bytes(63), unproved, HAIL * 99):
        with socket.create_connection(("127.0.0.1", here.port.number)) as stranger:
            stranger.sendall(said)
            pair.until(lambda s=stranger: _hung_up(s), "a refusal")  # type: ignore[misc]
    pair.send(0, 1)
    pair.until(lambda: 1 in pair.rounds(1), "a model")
    assert pair.speaking() and pair.ups(0) == [True] and pair.reasons(1) == [] and here.port.refused == 4


def test_a_ticket_that_was_seen_is_of_no_use_and_stays_good_for_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody on the wire is faster than the caller, who has the key."""
    real = streams.sealed_stream.SealedStream
    early: list[socket.socket] = []

    def opened(connection: socket.socket, *rest: object) -> object:
        if len(rest) > 3 and not early:  # a caller's: the first bytes are there, and not sent yet
            thief = socket.create_connection(connection.getpeername()[:2])
            thief.sendall(rest[3] + bytes(HEAD_BYTES + TAG_BYTES))  # type: ignore[operator]
            early.append(thief)
        return real(connection, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(streams, "SealedStream", opened)
    with two(monkeypatch) as pair:
        pair.seal()
        pair.until(lambda: _hung_up(early[0]), "the thief is refused")
        early[0].close()
        assert sum(peer.streams.port.refused for peer in pair.peers) == 1 and pair.ups(0) == [True]


def test_strangers_that_say_nothing_are_bounded_and_read_no_further_than_a_proof(pair: Two) -> None:
    pair.seal()
    here = pair.peers[1].streams
    callers: list[socket.socket] = []
    try:
        for _ in range(8):
            callers += [socket.create_connection(("127.0.0.1", here.port.number)) for _ in range(STRANGERS // 4)]
            pair.turn(0.02)
        pair.until(lambda: here.port.refused >= STRANGERS, "the oldest are hung up on")
        assert len(here.port.strangers) <= STRANGERS
        last = callers[-1]
        last.sendall(HAIL + bytes(STRANGER_BYTES - len(HAIL) - 1))
        pair.turn()
        assert max(len(one.received) for one in here.port.strangers.values()) == STRANGER_BYTES - 1
        pair.send(0, 1)
        pair.until(lambda: 1 in pair.rounds(1), "a model")
    finally:
        for caller in callers:
            caller.close()
    assert pair.speaking() and pair.ups(0) == [True]


def test_strangers_are_hung_up_on_after_a_while(monkeypatch: pytest.MonkeyPatch, pair: Two) -> None:
    pair.seal()
    monkeypatch.setattr(stream_port, "STRANGER_SECONDS", 0.05)
    with socket.create_connection(("127.0.0.1", pair.peers[1].streams.port.number)) as stranger:
        pair.send(0, 1)  # the time is looked at while others are heard
        pair.until(lambda: len(pair.peers[1].streams.port.strangers) == 1, "it is there")
        pair.turn()
        pair.send(0, 2)
        pair.until(lambda: _hung_up(stranger), "its end")


def test_a_partner_has_few_tickets_and_streams(pair: Two) -> None:
    pair.seal()
    here = pair.peers[1].streams
    for number in range(10):
        here.answer(0, b"name", pair.peers[0].identity.public, number, streams.StreamOffer(set(Suite)).text)  # type: ignore[union-attr]
        assert len(here.list_called(0)) <= STREAMS_OF_ONE


def test_one_who_is_sent_away_has_no_stream(pair: Two) -> None:
    pair.seal()
    pair.peers[1].part(0)
    assert pair.peers[1].streams.list_called(0) == ()
    pair.until(lambda: pair.ups(0) == [True, False], "the link breaks")


# --- a coordinator and its clients ------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wheel]:
    monkeypatch.setenv("FEDGOSSIP_LINKS", "sealed")
    with wheel(2) as made:
        made.start()
        made.until(lambda: all(made.hub._clients[node].line.way for node in (0, 1)), "streams")
        yield made


def test_models_and_contributions_go_by_streams(hub: Wheel) -> None:
    for round in range(3):
        for node in (0, 1):
            hub.hub.send(node, invite(round))
        hub.until(lambda round=round: all(len(hub.arrived(node, Invite)) == round + 1 for node in (0, 1)))  # type: ignore[misc]
        for node in (0, 1):
            hub.spokes[node].send(2, contribution(node))
        hub.until(lambda round=round: len(hub.arrived(2, Contribution)) == 2 * (round + 1))  # type: ignore[misc]
    assert values(hub.arrived(2, Contribution)) == [(0, 0.0)] * 3 + [(1, 1.0)] * 3
    assert [event.message.round for event in hub.arrived(0, Invite)] == [0, 1, 2]  # type: ignore[union-attr]
    for node in (0, 1):
        call, line = hub.spokes[node]._call, hub.hub._clients[node].line
        assert call.sends and call.receives and line.way and line.way.sends and line.way.receives
    assert all(hub.reasons(node) == [] for node in range(3))


@pytest.mark.parametrize("end", ["client", "coordinator"])
def test_a_stream_that_breaks_is_greeted_anew(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """In the middle of a message: the machine is told, and asks again; the other client notices nothing."""
    monkeypatch.setattr(streams, "PAUSE_SECONDS", 0.05)
    monkeypatch.setenv("FEDGOSSIP_LINKS", "sealed")
    dim = 3 * DRAIN_FRAMES * CHUNK_BYTES // 4  # more than is heard in one turn
    with wheel(2, dim=dim) as hub:
        hub.start()
        hub.until(lambda: all(hub.hub._clients[node].line.way for node in (0, 1)), "streams")
        hub.spokes[0].send(2, contribution(5, dim))
        hub.until(lambda: hub.hub._clients[0].assembler.under_way, "a part of a contribution")
        hub.forget()
        way = hub.spokes[0]._call if end == "client" else hub.hub._clients[0].line.way
        assert way and way.stream and way.in_use
        way.stream._connection.shutdown(socket.SHUT_RDWR)
        hub.until(lambda: hub.kinds(2) == ["LinkDown", "LinkUp"], "another greeting")
        hub.until(lambda: hub.hub._clients[0].line.way and hub.spokes[0]._call.up, "another stream")
        hub.spokes[0].send(2, contribution(7, dim))
        hub.hub.send(0, invite(1, dim))
        hub.until(lambda: hub.arrived(2, Contribution) and hub.arrived(0, Invite), "both again")
        assert values(hub.arrived(2, Contribution)) == [(0, 7.0)] and hub.heard[1] == []
        assert hub.spokes[0]._call.sends


def test_a_stream_whose_bytes_are_accepted_and_dropped_is_left_for_curve(
    wire: Wire, tapped: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A middlebox acknowledges them to our system, and closes nothing: only the other end knows what arrived."""
    monkeypatch.setattr(sealed_way, "ACK_SECONDS", 0.7)
    tapped.seal()
    wire.change = lambda _number, _record: []
    began = time.monotonic()
    tapped.send(0, 1)
    tapped.until(lambda: 1 in tapped.rounds(1), "the model by CURVE")
    assert time.monotonic() - began < 10
    assert tapped.ups(0)[-2:] == [False, True] and not tapped.call(0).sends


def test_a_stream_that_is_sound_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_way, "ACK_SECONDS", 0.7)
    with two(monkeypatch) as peers:
        peers.seal()
        for round in range(1, 4):
            peers.send(0, round)
            peers.turn(0.4)
        peers.turn(0.8)
        assert peers.rounds(1)[-3:] == [1, 2, 3] and False not in peers.ups(0) and peers.speaking()


RUNS = {
    "ring": {"parallel": {"workers": 3, "method": "ring"}},
    "servers": {"parallel": {"workers": 2, "method": "parameter-server", "server": {"servers": 2}}},
    "gossip": {"topology": {"graph": "ring", "n": 3}},
    "secure federation": {"coordinator": {"clients": 3}},
}


@pytest.mark.parametrize("seconds", [0.7, pytest.param(sealed_way.ACK_SECONDS, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", RUNS)
def test_a_run_goes_on_by_curve_where_its_streams_are_swallowed(
    wire: Wire, kind: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_way, "ACK_SECONDS", seconds)
    content = {"rounds": 60, "task": {"kind": "quadratic", "dim": 400}, "eval": {"every": 60}, **RUNS[kind]}
    plan = compose.plan(load_experiment(content))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    ends, over = [0.0, 0.0], threading.Event()

    class Watched:
        """A participant; the streams are swallowed when it has trained and they are there."""

        def __init__(self, machine: Machine) -> None:
            self.machine = machine

        def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
            if isinstance(event, Trained) and event.job >= 4 and not wire.swallows and len(wire.seen) > 2:
                wire.swallows, ends[0] = True, time.monotonic()
            return self.machine.handle(event, now_ns)

    def pass_on() -> None:
        while not over.wait(0.001):
            wire.pump()

    thread = threading.Thread(target=pass_on)
    thread.start()
    try:
        watched: Wrap = lambda node, machine: Watched(machine) if not node else machine  # noqa: E731
        vectors, rows = run_over_sockets(plan, task, watched, hub="coordinator" in content)
        ends[1] = time.monotonic()
    finally:
        over.set()
        thread.join()
    assert wire.swallows and ends[1] - ends[0] < 10
    if seconds < 5:  # the least deadline of a round, which ends without what is missing
        assert digest(plan.outcome(vectors)) == simulate(content).digest  # type: ignore[arg-type]
        assert not {"missed", "abandoned", "gone"} & {row.name for row in rows if isinstance(row, EventRow)}
