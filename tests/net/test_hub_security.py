"""Who may speak to a coordinator, and what a client that may can do: strangers, liars, floods, doors held open.

Not defended: a client may send a vector of its own choosing, and hold its turn as long as a chunk comes now and then.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import zmq
from commands import wait_until
from hub_kit import DIM, HELLO, contribution, heard_until, invite, values, wheel
from test_net_security import LIES, OPEN, Caller, arrived, calling, greeting, header, mark, reasons
from zmq.utils.monitor import recv_monitor_message

from fedgossip.core.messages import AnyMessage, Contribution, Expected, Hello, Invite
from fedgossip.core.wire import CHUNK_BYTES, Assembler
from fedgossip.net import connections
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.hub.server import CoordinatorLinks
from fedgossip.net.identity import Identity
from fedgossip.net.transport import LinkDown, LinkEvent, LinkUp

pytestmark = pytest.mark.sockets

SECONDS = 30.0
EXPECTED = Expected("layout", "float32", CHUNK_BYTES // 4 + 1000)  # as that of test_net_security, whose lies are told


@pytest.fixture
def hub() -> Iterator[CoordinatorLinks]:
    """Node 2, whose clients 0 and 1 are played by hand."""
    made = CoordinatorLinks(2, "tcp://127.0.0.1:*", Identity.new())
    made.keys = [Identity.new(), Identity.new()]  # type: ignore[attr-defined]
    clients = {node: Endpoint("", key.public) for node, key in enumerate(made.keys)}  # type: ignore[attr-defined]
    made.connect((0, 1), clients, EXPECTED, HELLO)
    yield made
    made.close()


def key(hub: CoordinatorLinks, node: int) -> Identity:
    return hub.keys[node]  # type: ignore[attr-defined, no-any-return]


# --- strangers ------------------------------------------------------------------------------------------------------


def test_of_a_thousand_unknown_keys_none_is_served_and_all_are_told(hub: CoordinatorLinks) -> None:
    assert hub.identity
    count, events = 1000, []
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4096)
    try:
        for _ in range(10):
            strangers = [_stranger(context, hub) for _ in range(count // 10)]
            events += heard_until(hub, lambda seen: len(reasons(seen)) == count // 10)
            for stranger, monitor in strangers:
                assert not _served(stranger, monitor)
                stranger.disable_monitor()
                monitor.close(0)
                stranger.close(0)
    finally:
        context.destroy(0)
    assert reasons(events) == ["unknown_key"] * count and not arrived(events)
    with calling(hub, key(hub, 0)) as honest:
        honest.send(*greeting(HELLO))
        assert [event.sender for event in arrived(heard_until(hub, arrived))] == [0]


def _stranger(
    context: zmq.Context[zmq.Socket[bytes]], hub: CoordinatorLinks
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    assert hub.identity
    stranger, identity = context.socket(zmq.DEALER), Identity.new()
    stranger.curve_serverkey = hub.identity.public.encode()
    stranger.curve_publickey, stranger.curve_secretkey = identity.public.encode(), identity.secret.encode()
    monitor = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    stranger.connect(hub.address)
    stranger.send_multipart(greeting(HELLO))
    return stranger, monitor


def _served(stranger: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> bool:
    assert monitor.poll(5000)
    return recv_monitor_message(monitor)["event"] != zmq.EVENT_HANDSHAKE_FAILED_AUTH or bool(stranger.poll(0))


def test_a_caller_without_encryption_is_never_served(hub: CoordinatorLinks) -> None:
    with calling(hub, None) as stranger, calling(hub, key(hub, 1)) as client:
        with contextlib.suppress(zmq.Again):  # it may be refused already
            stranger.send(*greeting(HELLO))
        first = heard_until(hub, lambda _: stranger.saw(zmq.EVENT_DISCONNECTED))
        client.send(*greeting(HELLO))
        then = heard_until(hub, arrived)
        assert [event.sender for event in arrived(first + then)] == [1]
        assert not stranger.saw(zmq.EVENT_HANDSHAKE_SUCCEEDED)


def test_nobody_is_served_before_the_keys_are_known() -> None:
    with wheel(1) as w:
        early = CoordinatorLinks(1, "tcp://127.0.0.1:*", w.keys[1])
        try:
            with calling(early, w.keys[0]) as caller:
                caller.send(*greeting(HELLO))
                events = heard_until(early, lambda _: caller.saw(zmq.EVENT_HANDSHAKE_FAILED_AUTH))
                assert not arrived(events) and reasons(events) == ["unknown_key"]
        finally:
            early.close()


def test_the_sender_is_who_holds_the_key_whatever_routing_id_it_claims(hub: CoordinatorLinks) -> None:
    with calling(hub, key(hub, 1), routing_id=b"0") as liar, calling(hub, key(hub, 0)) as honest:
        liar.send(*greeting(HELLO))
        one = heard_until(hub, arrived)
        honest.send(*greeting(HELLO))
        other = heard_until(hub, arrived)
    assert [event.sender for event in arrived(one + other)] == [1, 0]


def test_one_that_takes_the_routing_id_of_a_broken_connection_is_still_itself(hub: CoordinatorLinks) -> None:
    """A ROUTER lets a caller choose its name once nobody has it; what is said under it is its own all the same."""
    with calling(hub, key(hub, 0), routing_id=b"x") as first:
        first.send(*greeting(HELLO))
        heard_until(hub, arrived)
    heard_until(hub, lambda events: LinkDown(0) in events)
    with calling(hub, key(hub, 1), routing_id=b"x") as second:
        second.send(*greeting(HELLO))
        (event,) = arrived(heard_until(hub, arrived))
        assert event.sender == 1 and hub._clients[1].up and not hub._clients[0].up


def test_of_those_who_only_hold_the_door_open_the_oldest_are_hung_up_on(
    hub: CoordinatorLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STRANGERS", 20)
    with calling(hub, key(hub, 0)) as honest:
        honest.send(*greeting(HELLO))
        heard_until(hub, arrived)
        place = ("127.0.0.1", int(hub.address.rpartition(":")[2]))
        doors = []
        for number in range(60):
            doors.append(socket.create_connection(place))
            heard_until(hub, lambda _, number=number: len(hub._callers._strange) >= min(number + 1, 20 + 2))  # type: ignore[misc]
        wait_until(lambda: hub.poll(1) == [] and _closed(doors[0]), SECONDS, "the oldest is hung up on")
        assert len(hub._callers._strange) <= 20 + 2 and not _closed(doors[-1])
        with calling(hub, key(hub, 1)) as late:
            late.send(*greeting(HELLO))
            assert arrived(heard_until(hub, arrived))[0].sender == 1
        assert not honest.saw(zmq.EVENT_DISCONNECTED)
        for door in doors:
            door.close()


def _closed(door: socket.socket) -> bool:
    """Whether the other end has hung up; ZeroMQ's greeting may lie before that."""
    door.setblocking(False)
    try:
        while door.recv(1000):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


# --- clients that lie -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", sorted(LIES))
def test_what_cannot_be_read_is_refused_with_its_reason_and_the_next_message_arrives(
    hub: CoordinatorLinks, reason: str
) -> None:
    lies = [lie for lie in LIES[reason] if lie]
    with calling(hub, key(hub, 0)) as liar, calling(hub, key(hub, 1)) as honest:
        for caller in (liar, honest):
            caller.send(*greeting(HELLO))
        heard_until(hub, lambda heard: len(arrived(heard)) == 2)
        for lie in lies:
            if lie is OPEN:
                hub.turns.ask(0, 7)
                assert list(hub.turns.next(time.monotonic(), all_read=True)) == [(0, 7)]
            liar.send(*lie)
        liar.send(*greeting(HELLO))
        honest.send(*greeting(HELLO))
        events = heard_until(hub, lambda heard: len(arrived(heard)) == 2)
    assert reasons(events) == [reason] * len([lie for lie in lies if lie is not OPEN])
    assert [event.message for event in arrived(events)] == [HELLO, HELLO]


@pytest.mark.parametrize("said", [OPEN, (mark(b"H", 1), header(type="leaving", round=0)), (mark(b"A", 1), b"")])
def test_one_that_does_not_greet_is_not_heard(hub: CoordinatorLinks, said: tuple[bytes, bytes]) -> None:
    with calling(hub, key(hub, 0)) as rude:
        rude.send(*said)
        rude.send(*greeting(HELLO))
        events = heard_until(hub, arrived)
    assert len(reasons(events)) == 1 and LinkUp(0, afresh=True) in events and not hub.turns.waiting


def test_a_vector_whose_turn_it_is_not_takes_no_memory() -> None:
    with wheel(1) as w, calling(w.hub, w.keys[0]) as liar:
        fields = {"type": "contribution", "round": 0, "schema": "layout", "parts": [["float32", DIM]]}
        announced = header(**fields, examples=1, steps=1, loss=0.0)
        liar.send(*greeting(HELLO))
        heard_until(w.hub, arrived)
        liar.send(mark(b"H", 3), announced)
        liar.send(mark(b"C", 3), bytes(CHUNK_BYTES))
        liar.send(mark(b"A", 4), b"")
        liar.send(mark(b"H", 5), announced)  # another than it asked for
        events = heard_until(w.hub, lambda heard: len(reasons(heard)) == 3)
        assert reasons(events) == ["unasked", "order", "unasked"]
        assert w.hub._clients[0].assembler._vectors == () and not w.hub._clients[0].assembler.missing_chunks


def test_a_frame_over_the_limit_costs_its_sender_the_connection(hub: CoordinatorLinks) -> None:
    with calling(hub, key(hub, 0)) as liar, calling(hub, key(hub, 1)) as honest:
        liar.send(*greeting(HELLO))
        heard_until(hub, arrived)
        liar.send(mark(b"H", 1), bytes(4 << 20))
        events = heard_until(hub, lambda seen: LinkDown(0) in seen)
        honest.send(*greeting(HELLO))
        events += heard_until(hub, arrived)
    assert [event.sender for event in arrived(events)] == [1]


def test_one_that_floods_does_not_keep_another_from_being_heard(hub: CoordinatorLinks) -> None:
    flooding = threading.Event()
    flooding.set()
    with calling(hub, key(hub, 0)) as flood, calling(hub, key(hub, 1)) as honest:
        flood.send(*greeting(HELLO))

        def pour() -> None:
            while flooding.is_set():
                try:
                    flood.send(mark(b"H", 1), b"garbage")
                except zmq.Again:
                    flooding.wait(0.001)

        thread = threading.Thread(target=pour)
        thread.start()
        try:
            heard_until(hub, lambda events: len(reasons(events)) > 200)
            honest.send(*greeting(HELLO))
            heard_until(hub, lambda events: any(event.sender == 1 for event in arrived(events)))
        finally:
            flooding.clear()
            thread.join()


def greets(caller: Caller) -> Callable[[list[LinkEvent]], bool]:
    """Say Hello on every connection of a caller, until its link is up."""
    said = 0

    def up(seen: list[LinkEvent]) -> bool:
        nonlocal said
        caller.saw()
        while said < caller.seen.count(zmq.EVENT_HANDSHAKE_SUCCEEDED):
            said += 1
            caller.send(*greeting(HELLO))
        return LinkUp(0, afresh=True) in seen

    return up


def test_one_that_calls_again_and_again_has_one_connection_and_holds_few_doors_open(
    hub: CoordinatorLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are hung up on call again by themselves, and say nothing; the newest says Hello whenever it is let in,
    as a client does: among so many that call it may be hung up on before it is heard."""
    monkeypatch.setattr(connections, "STRANGERS", 5)
    assert hub.identity
    calls = []
    try:
        for _ in range(30):
            calls.append(Caller(hub.address, hub.identity.public, key(hub, 0)))
            heard_until(hub, greets(calls[-1]))
            assert len(hub._callers._strange) <= 5 + 2 and list(hub._callers._known.values()) == [0]
    finally:
        for caller in calls:
            caller.close()


@pytest.mark.parametrize("at", ["hub", "spoke"])
@pytest.mark.parametrize("error", [TypeError, OverflowError, MemoryError, AssertionError])
def test_whatever_a_frame_does_to_its_reader_costs_that_frame_only(
    monkeypatch: pytest.MonkeyPatch, at: str, error: type[Exception]
) -> None:
    """Also in the middle of a message with vectors, whose memory is let go."""
    landed = Assembler.landed

    def broken(self: Assembler, size: int) -> AnyMessage | None:
        if self.missing_chunks == 3:
            raise error
        return landed(self, size)

    with wheel(1) as w:
        w.start()
        here, there = (1, 0) if at == "hub" else (0, 1)
        assembler = w.hub._clients[0].assembler if at == "hub" else w.spokes[0]._assembler
        say = (lambda: w.spokes[0].send(1, contribution(1))) if at == "hub" else (lambda: w.hub.send(0, invite(1)))
        with monkeypatch.context() as patch:
            patch.setattr(Assembler, "landed", broken)
            say()
            w.until(lambda: "broken" in w.reasons(here))
            assert assembler._vectors == () and {*w.reasons(here)} <= {"broken", "order"}
            w.until(lambda: w.reasons(here).count("order") == 2)  # the chunks that came after it
        say()
        kind = Contribution if at == "hub" else Invite
        w.until(lambda: w.arrived(here, kind))
        assert w.up(here) == {there} and values(w.arrived(here, kind)) == [(there, 1.0)]


# --- coordinators that lie ------------------------------------------------------------------------------------------


def test_what_a_client_cannot_read_is_refused_and_the_next_message_arrives() -> None:
    with wheel(1) as w:
        w.start()
        line = w.hub._clients[0].line
        lies = [(b"", b""), (b"X" * 9, b""), (mark(b"H", 1), b"\xc1"), (mark(b"G", 77), b""), (mark(b"C", 1, 5), b"x")]
        for lie in lies:
            w.hub._speaker.send_control(line, lie)
        w.hub.send(0, Invite(1, "layout", contribution(3).vectors))
        w.until(lambda: w.arrived(0, Invite))
        assert w.reasons(0) == ["mark", "mark", "header", "order"] and values(w.arrived(0, Invite)) == [(1, 3.0)]


def test_a_turn_that_was_not_asked_for_changes_nothing() -> None:
    with wheel(2, turns_at_once=1) as w:
        w.start()
        w.hub.turns.ask(0, 999)  # keeps the only turn, for a while
        w.spokes[1].send(2, contribution(1))
        transfer = w.spokes[1]._outbox.transfer
        for wrong in (transfer - 1, transfer + 1, 0):
            w.hub._speaker.send_control(w.hub._clients[1].line, (mark(b"G", wrong), b""))
        w.until(lambda: w.arrived(2, Contribution))
        assert w.reasons(2) == []


def test_a_late_word_of_a_turn_before_does_not_stop_the_one_that_goes_on() -> None:
    with wheel(1) as w:
        w.start()
        w.spokes[0].send(1, contribution(1))
        w.until(lambda: w.hub.turns.going)  # it is told to go when the hub is polled again
        w.hub._speaker.send_control(w.hub._clients[0].line, (mark(b"G", w.spokes[0]._outbox.transfer - 1), b""))
        w.until(lambda: w.arrived(1, Contribution))


def test_who_has_said_hello_to_another_experiment_is_up_and_left_to_the_host(hub: CoordinatorLinks) -> None:
    with calling(hub, key(hub, 0)) as other:
        other.send(*greeting(replace(HELLO, experiment="another")))
        (event,) = arrived(heard_until(hub, arrived))
        assert isinstance(event.message, Hello) and event.message.experiment == "another"
