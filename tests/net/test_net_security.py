"""Who may speak to a peer, and what a peer that may can do: real sockets, CURVE, strangers and liars.

Not defended: an authenticated partner may send a model of its own choosing (no Byzantine robustness here).
"""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq
from commands import wait_until
from zmq.utils.monitor import recv_monitor_message

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, frozen, ordered_mix
from fedgossip.core.messages import Expected, Hello, Leaving, Model
from fedgossip.core.records import EventRow, Row
from fedgossip.core.wire import CHUNK_BYTES, Assembler, FrameError
from fedgossip.experiment import load_experiment
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.host import Host
from fedgossip.net.host_ports import Ports
from fedgossip.net.identity import Identity
from fedgossip.net.links.mesh import Links
from fedgossip.net.links.partner_link import HANG_UPS, Greeting
from fedgossip.net.transport import CAUSES_WRITTEN, Arrived, LinkDown, LinkEvent, Rejected
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan

pytestmark = pytest.mark.sockets

DIM = CHUNK_BYTES // 4 + 1000  # two chunks of float32
EXPECTED = Expected("layout", "float32", DIM)
HELLO = Hello("layout", "experiment", "1")
SECONDS = 30.0


def mark(kind: bytes, transfer: int, index: int = 0) -> bytes:
    return kind + transfer.to_bytes(4, "little") + index.to_bytes(4, "little")


def header(**fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


def greeting(hello: Hello) -> tuple[bytes, bytes]:
    said = header(type="hello", schema=hello.schema, experiment=hello.experiment, version=hello.version)
    return mark(b"H", 1), said


class Caller:
    """A raw DEALER that speaks whatever it is given, with a monitor to see what becomes of it."""

    def __init__(
        self, address: str, server_key: str | None, identity: Identity | None, routing_id: bytes | None = None
    ) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        if routing_id:
            self.socket.routing_id = routing_id
        if identity and server_key:
            self.socket.curve_serverkey = server_key.encode()
            self.socket.curve_publickey = identity.public.encode()
            self.socket.curve_secretkey = identity.secret.encode()
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_ALL)
        self.seen: list[int] = []
        self.socket.connect(address)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames, zmq.NOBLOCK)

    def saw(self, *events: int) -> bool:
        while self.monitor.poll(0):
            self.seen.append(recv_monitor_message(self.monitor)["event"])
        return any(event in self.seen for event in events)

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close()
        self.context.term()


@contextmanager
def calling(
    links: Links, identity: Identity | None, *, server_key: str | None = None, routing_id: bytes | None = None
) -> Iterator[Caller]:
    assert links.identity
    caller = Caller(links.address, server_key or links.identity.public, identity, routing_id)
    try:
        yield caller
    finally:
        caller.close()


@pytest.fixture
def identities() -> list[Identity]:
    return [Identity.new() for _ in range(3)]


@pytest.fixture
def links(identities: list[Identity], tmp_path: Path) -> Iterator[Links]:
    """Peer 0, whose partners 1 and 2 are addresses at which nobody listens."""
    made = Links(0, f"ipc://{tmp_path}/0", identities[0])
    nobody = {node: Endpoint(f"ipc://{tmp_path}/{node}", identities[node].public) for node in (1, 2)}
    made.connect((1, 2), nobody, EXPECTED, HELLO)
    yield made
    made.close()


def heard_until(links: Links, enough: Callable[[list[LinkEvent]], object]) -> list[LinkEvent]:
    events: list[LinkEvent] = []

    def look() -> object:
        events.extend(links.poll(10))
        return enough(events)

    wait_until(look, SECONDS, "what was awaited")
    return events


def reasons(events: list[LinkEvent]) -> list[str]:
    return [event.reason for event in events if isinstance(event, Rejected)]


def arrived(events: list[LinkEvent]) -> list[Arrived]:
    return [event for event in events if isinstance(event, Arrived)]


# --- strangers ----------------------------------------------------------------------------------------------------


def test_an_unknown_key_is_never_served_and_delivers_nothing(links: Links, identities: list[Identity]) -> None:
    with calling(links, Identity.new()) as stranger, calling(links, identities[1]) as partner:
        stranger.send(*greeting(HELLO))
        first = heard_until(links, lambda events: "unknown_key" in reasons(events))
        heard_until(links, lambda _: stranger.saw(zmq.EVENT_HANDSHAKE_FAILED_AUTH))
        partner.send(*greeting(HELLO))
        then = heard_until(links, arrived)
        assert [event.sender for event in arrived(first + then)] == [1]
        assert not stranger.saw(zmq.EVENT_HANDSHAKE_SUCCEEDED) and not stranger.socket.poll(0)


def test_a_caller_without_encryption_is_never_served(links: Links, identities: list[Identity]) -> None:
    with calling(links, None) as stranger, calling(links, identities[1]) as partner:
        stranger.send(*greeting(HELLO))
        failed = (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_DISCONNECTED)
        first = heard_until(links, lambda _: stranger.saw(*failed))
        partner.send(*greeting(HELLO))
        then = heard_until(links, arrived)
        assert [event.sender for event in arrived(first + then)] == [1]
        assert not stranger.saw(zmq.EVENT_HANDSHAKE_SUCCEEDED)


def test_a_key_is_served_only_once_it_is_allowed(identities: list[Identity]) -> None:
    """Before `connect` nobody is allowed: libzmq without an answer from the allow-list would serve anybody."""
    links = Links(0, "tcp://127.0.0.1:*", identities[0])
    try:
        with calling(links, identities[1]) as early:
            early.send(*greeting(HELLO))
            events = heard_until(links, lambda _: early.saw(zmq.EVENT_HANDSHAKE_FAILED_AUTH))
            assert not arrived(events) and reasons(events) == ["unknown_key"]
    finally:
        links.close()


def test_the_sender_is_who_holds_the_key_whatever_routing_id_it_claims(
    links: Links, identities: list[Identity]
) -> None:
    stranger = calling(links, Identity.new(), routing_id=b"1")
    liar = calling(links, identities[2], routing_id=b"1")
    with stranger as nobody, liar as second, calling(links, identities[1]) as first:
        nobody.send(*greeting(HELLO))
        refused = heard_until(links, lambda events: "unknown_key" in reasons(events))
        second.send(*greeting(HELLO))
        one = heard_until(links, arrived)
        first.send(*greeting(HELLO))
        other = heard_until(links, arrived)
    assert [event.sender for event in arrived(refused + one + other)] == [2, 1]


def test_a_wrong_server_key_is_told_to_the_caller(identities: list[Identity]) -> None:
    """Peer 0 has a key for peer 1 that is not peer 1's: it must not speak to whoever answers there, and say so."""
    other = Links(1, "tcp://127.0.0.1:*", identities[1])
    caller = Links(0, "tcp://127.0.0.1:*", identities[0])
    try:
        other.connect((0,), {0: Endpoint(caller.address, identities[0].public)}, EXPECTED, HELLO)
        caller.connect((1,), {1: Endpoint(other.address, identities[2].public)}, EXPECTED, HELLO)
        theirs: list[LinkEvent] = []

        def both(events: list[LinkEvent]) -> bool:
            theirs.extend(other.poll(10))
            return "hung_up" in reasons(events) and "handshake" in reasons(theirs)

        ours = heard_until(caller, both)
        assert not arrived(ours) and not arrived(theirs)
    finally:
        caller.close()
        other.close()


def test_a_partner_that_hangs_up_once_or_twice_is_not_said_to_have_another_key() -> None:
    """So does a process that loads its data for longer than a handshake may take, or is started again."""
    greeting, event = Greeting(), int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
    told = [greeting.failed(1, event, None) for _ in range(HANG_UPS)]
    assert told[:-1] == [None, None] and reasons([one for one in told if one]) == ["hung_up"]
    greeting.reached = True
    assert greeting.failed(1, event, None) is None


# --- partners that lie --------------------------------------------------------------------------------------------

MODEL = {"type": "model", "round": 0, "schema": "layout", "parts": [["float32", DIM]]}
OPEN = (mark(b"H", 7), header(**MODEL))
LIES: dict[str, list[tuple[bytes, ...]]] = {
    "mark": [(b"", b""), (b"X" * 9, b""), (b"H", b"")],
    "truncated": [(b"one frame",), (), OPEN, (mark(b"C", 7), b"short")],
    "header": [
        (mark(b"H", 1), b"\xc1garbage"),
        (mark(b"H", 1), b""),
        (mark(b"H", 1), header(type="model", round=0)),
        (mark(b"H", 1), header(**{**MODEL, "more": 1})),
        (mark(b"H", 1), header(**{**MODEL, "round": "x"})),
        (mark(b"H", 1), header(type="shutdown")),
        (mark(b"H", 1), b"\x93" * 60_000),
    ],
    "oversized": [(mark(b"H", 1), bytes(100_000))],
    "order": [(mark(b"C", 9, 4), bytes(100)), OPEN, (mark(b"C", 7, 1), bytes(10)), (mark(b"C", 8, 0), bytes(10))],
    "frames": [(mark(b"H", 1), header(**MODEL), b"third"), (mark(b"H", 1), b"", b"", b"", b"")],
    "schema": [(mark(b"H", 1), header(**{**MODEL, "schema": "another"}))],
    "size": [
        (mark(b"H", 1), header(**{**MODEL, "parts": [["float32", 2_500_000_000]]})),
        (mark(b"H", 1), header(**{**MODEL, "parts": [["float32", DIM]] * 1000})),
        (mark(b"H", 1), header(**{**MODEL, "parts": []})),
        (mark(b"H", 1), header(**{**MODEL, "parts": [["object", DIM]]})),
    ],
}


@pytest.mark.parametrize("reason", sorted(LIES))
def test_what_cannot_be_read_is_refused_with_its_reason_and_the_next_message_arrives(
    links: Links, identities: list[Identity], reason: str
) -> None:
    lies = [lie for lie in LIES[reason] if lie]
    with calling(links, identities[1]) as liar, calling(links, identities[2]) as honest:
        for lie in lies:
            liar.send(*lie)
        liar.send(*greeting(HELLO))
        honest.send(*greeting(HELLO))
        events = heard_until(links, lambda heard: len(arrived(heard)) == 2)
    expected = len([lie for lie in lies if lie is not OPEN])
    assert reasons(events) == [reason] * expected
    assert all(event.sender == 1 for event in events if isinstance(event, Rejected))
    assert [event.message for event in arrived(events)] == [HELLO, HELLO]


def test_a_frame_over_the_limit_costs_its_sender_the_connection(links: Links, identities: list[Identity]) -> None:
    with calling(links, identities[1]) as liar, calling(links, identities[2]) as honest:
        liar.send(mark(b"H", 1), bytes(4 << 20))
        first = heard_until(links, lambda _: liar.saw(zmq.EVENT_DISCONNECTED))
        honest.send(*greeting(HELLO))
        then = heard_until(links, arrived)
    assert [event.sender for event in arrived(first + then)] == [2]


def test_nothing_is_allocated_for_a_model_that_is_announced_too_large() -> None:
    assembler = Assembler(EXPECTED)
    assembler.mark(mark(b"H", 1))
    huge = header(**{**MODEL, "parts": [["float32", 2_500_000_000]]})  # 10 GB of float32
    tracemalloc.start()
    with pytest.raises(FrameError) as refused:
        assembler.header(huge)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused.value.reason == "size" and peak < 100_000


def test_one_that_floods_does_not_keep_another_from_being_heard(links: Links, identities: list[Identity]) -> None:
    flooding = threading.Event()
    flooding.set()
    with calling(links, identities[1]) as flood, calling(links, identities[2]) as honest:

        def pour() -> None:
            while flooding.is_set():
                try:
                    flood.send(mark(b"H", 1), b"garbage")
                except zmq.Again:
                    flooding.wait(0.001)

        thread = threading.Thread(target=pour)
        thread.start()
        try:
            heard_until(links, lambda events: len(reasons(events)) > 200)
            honest.send(*greeting(HELLO))
            events = heard_until(links, arrived)
            assert [event.sender for event in arrived(events)] == [2]
        finally:
            flooding.clear()
            thread.join()


# --- a whole run beside a liar ------------------------------------------------------------------------------------

N, LIAR, ROUNDS, SMALL = 4, 3, 25, 50


def complete_graph() -> Plan:
    settings = {
        "rounds": ROUNDS,
        "topology": {"graph": "complete", "n": N},
        "task": {"kind": "averaging", "dim": SMALL},
        "algorithm": {"start_timeout": 1.0, "deadline": 5.0},
    }
    return compose.plan(load_experiment(settings))


def without_the_liar(plan: Plan) -> list[Vector]:
    """The honest peers' final vectors where the liar's weight goes to oneself in every round, in plain loops."""
    task, _ = compose.task_of(plan.experiment, plan.n)
    honest = [node for node in range(N) if node != LIAR]
    vectors = {node: task.initial(node) for node in honest}
    for _ in range(ROUNDS):
        mixed = {}
        for node in honest:
            row = plan.mixing.row(node)
            row[node] += row.pop(LIAR)
            mixed[node] = ordered_mix([(weight, vectors[j]) for j, weight in row.items()])
        vectors = mixed
    return [vectors[node] for node in honest]


def test_a_run_beside_a_partner_that_lies_ends_with_the_right_bits() -> None:
    plan = complete_graph()
    task, _ = compose.task_of(plan.experiment, plan.n)
    hello = compose.hello_of(plan, task.schema)
    identities = [Identity.new() for _ in range(N)]
    peers = {node: Links(node, "tcp://127.0.0.1:*", identities[node]) for node in range(N) if node != LIAR}
    where = {node: Endpoint(link.address, identities[node].public) for node, link in peers.items()}
    where[LIAR] = Endpoint("tcp://127.0.0.1:9", identities[LIAR].public)  # the discard port: nobody answers
    hosts: dict[int, Host] = {}
    results: dict[int, Vector] = {}
    rows: list[Row] = []
    expected = Expected(task.schema, "float32", SMALL)
    for node, link in peers.items():
        link.connect(plan.schedule.partners(node), where, expected, hello)
        machine = plan.machine(node, task.initial(node), task.schema)
        ports = Ports(rows.append, lambda *_: None, lambda *_: None, lambda: False)
        hosts[node] = Host(node, machine, link, task, hello, ports)

    fields = {**MODEL, "schema": task.schema, "parts": [["float32", SMALL]]}
    model = mark(b"H", 3), header(**fields)
    far = mark(b"H", 4), header(**{**fields, "round": 10**6}), mark(b"C", 4), bytes(4 * SMALL)
    lies = [lie for lies in LIES.values() for lie in lies if lie and lie is not OPEN]
    callers = [Caller(link.address, identities[node].public, identities[LIAR]) for node, link in peers.items()]
    for caller in callers:
        caller.send(*model)  # before any greeting, and whole: it must not be mixed
        caller.send(mark(b"C", 3), frozen(np.full(SMALL, 1e6, np.float32)).tobytes())
        caller.send(*greeting(hello))
        for lie in lies:
            caller.send(*lie)
        caller.send(*far[:2])
        caller.send(*far[2:])
        for _ in range(40):
            caller.send(mark(b"H", 1), b"flood")

    def be(node: int) -> None:
        results[node] = hosts[node].run()

    threads = [threading.Thread(target=be, args=(node,)) for node in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for caller in callers:
        caller.close()
    assert sorted(results) == sorted(peers), "a host did not end"
    for node, right in zip(sorted(peers), without_the_liar(plan), strict=True):
        assert np.array_equal(results[node], right)
        assert hosts[node].counts["refused"] == len(lies) + 1 + 1 + 40, hosts[node].counts
    refused = [row for row in rows if isinstance(row, EventRow) and row.name == "refused"]
    assert len(refused) <= 3 * CAUSES_WRITTEN * len(peers)  # at its first, tenth and last time
    for node in peers:
        last = {row.value["reason"]: row.value.get("count", 1) for row in refused if row.peer == node}  # type: ignore[union-attr, index]
        assert sum(last.values()) == hosts[node].counts["refused"]
    said = {row.value["reason"] for row in refused if isinstance(row.value, dict)}
    assert said >= {"ungreeted", "mark", "truncated", "header", "oversized", "order"}
    texts = [row.value["text"] for row in refused if isinstance(row.value, dict)]
    assert all(text.isprintable() and len(text) <= 300 for text in texts)


def test_what_a_stranger_writes_cannot_reach_the_terminal_as_it_is() -> None:
    """An escape sequence in a header would else be printed by the progress line."""
    plan = complete_graph()
    task, _ = compose.task_of(plan.experiment, plan.n)
    hello = compose.hello_of(plan, task.schema)
    rows: list[Row] = []
    links = Links(0, "tcp://127.0.0.1:*", Identity.new())
    machine = plan.machine(0, task.initial(0), task.schema)
    host = Host(0, machine, links, task, hello, Ports(rows.append, lambda *_: None, lambda *_: None, lambda: False))
    try:
        host._take_event(Rejected(1, "header", "\x1b[2J\r\n" + "x" * 60_000))
        host._take_event(LinkDown(2))
    finally:
        links.close()
    (row,) = (row for row in rows if isinstance(row, EventRow))
    assert isinstance(row.value, dict)
    assert row.value["text"].isprintable() and len(row.value["text"]) <= 300


# --- secrets ------------------------------------------------------------------------------------------------------


def test_a_secret_key_is_in_no_repr_and_its_file_is_the_owners(tmp_path: Path) -> None:
    identity = Identity.new()
    assert identity.secret not in repr(identity) and identity.secret not in str([identity])
    path = tmp_path / "below" / "peer.key"
    identity.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Identity.load(path) == identity
    with pytest.raises(ConfigError, match="a key exists already"):
        Identity.new().save(path)
    assert Identity.load(path) == identity
    for mode in (0o640, 0o604, 0o660, 0o700 | 0o010):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="others can read") as refused:
            Identity.load(path)
        assert identity.secret not in str(refused.value) + refused.value.advice


def test_model_and_goodbye_of_an_honest_partner_arrive_whole(links: Links, identities: list[Identity]) -> None:
    """The control: what the lies above imitate is heard when it is true, in two chunks."""
    values = np.arange(DIM, dtype=np.float32)
    raw = values.tobytes()
    with calling(links, identities[1]) as partner:
        partner.send(*greeting(HELLO))
        partner.send(*OPEN)
        partner.send(mark(b"C", 7, 0), raw[:CHUNK_BYTES])
        partner.send(mark(b"C", 7, 1), raw[CHUNK_BYTES:])
        partner.send(mark(b"H", 8), header(type="leaving", round=3))
        events = heard_until(links, lambda heard: len(arrived(heard)) == 3)
    _, model, goodbye = (event.message for event in arrived(events))
    assert isinstance(model, Model) and np.array_equal(model.vectors[0], values)
    assert goodbye == Leaving(3) and reasons(events) == []
