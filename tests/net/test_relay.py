"""A relay: it puts through who proves its key, passes on bytes that it cannot read, and is bounded."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import in_process, wait_until
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from relays import Running, relay_running, run_relay
from test_net_security import EXPECTED, HELLO

from fedgossip.base.errors import ConfigError, NetworkError, PeerError
from fedgossip.base.vectors import frozen
from fedgossip.core.messages import Model
from fedgossip.drivers import invite_joining
from fedgossip.net.endpoints import Endpoint, block
from fedgossip.net.identity import Identity, raw
from fedgossip.net.invites.invite_admission import Guest, Seats
from fedgossip.net.links.mesh import Links
from fedgossip.net.relays import relay as relays
from fedgossip.net.relays import relay_client, splice
from fedgossip.net.relays.reachability import Ways
from fedgossip.net.relays.relay import Limits
from fedgossip.net.relays.relay_client import RelayClient
from fedgossip.net.relays.roster_file import (
    ANSWER,
    CALL,
    GREETING_BYTES,
    LISTEN,
    NO_TARGET,
    Allowed,
    Roll,
    greeting,
    request,
    verified_request,
)
from fedgossip.net.streams import streams
from fedgossip.net.streams.stream_port import PORT_ABOVE
from fedgossip.net.transport import Arrived, LinkEvent, LinkUp, Routed

pytestmark = pytest.mark.sockets

SECONDS = 30.0


@pytest.fixture
def relay() -> Iterator[Running]:
    with relay_running() as running:
        yield running


# --- what is said -----------------------------------------------------------------------------------------------------


def test_who_asks_a_relay_proves_its_key_and_nobody_else_can(relay: Running) -> None:
    fresh, other, identity = X25519PrivateKey.generate(), X25519PrivateKey.generate(), Identity.new()
    said = request(identity, greeting(fresh), LISTEN, NO_TARGET)
    wanted = verified_request(fresh, said)
    assert wanted and wanted.key == raw(identity.public)
    assert verified_request(other, said) is None  # what was said to one connection is of no use to another
    for place in range(len(said)):
        changed = said[:place] + bytes([said[place] ^ 1]) + said[place + 1 :]
        assert verified_request(fresh, changed) is None or changed[1:33] == said[1:33]  # X25519 ignores a bit of a key
    assert verified_request(fresh, LISTEN + bytes(96)) is None and verified_request(fresh, b"") is None
    with pytest.raises(PeerError, match="no relay"):
        request(identity, b"SSH-2.0" + bytes(29), LISTEN, NO_TARGET)


def asking(relay: Running, identity: Identity, want: bytes, target: bytes) -> socket.socket:
    """A raw connection that has asked, and reads the answer itself."""
    made = socket.create_connection(("127.0.0.1", relay.port), 10)
    made.sendall(request(identity, _exactly(made, GREETING_BYTES), want, target))
    return made


def _exactly(one: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (more := one.recv(size - len(found))):
        found += more
    return found


def test_a_call_is_put_through_to_the_holder_of_the_key_alone(relay: Running) -> None:
    caller, callee, thief = (Identity.new() for _ in range(3))
    with ExitStack() as stack:
        ear = stack.enter_context(asking(relay, callee, LISTEN, NO_TARGET))
        assert _exactly(ear, 2) == b"+."
        voice = stack.enter_context(asking(relay, caller, CALL, raw(callee.public)))
        token = _exactly(ear, 33)[1:]
        stolen = stack.enter_context(asking(relay, thief, ANSWER, token))
        assert _exactly(stolen, 1) == b"-"
        answer = stack.enter_context(asking(relay, callee, ANSWER, token))
        assert _exactly(voice, 1) == _exactly(answer, 1) == b"+"
        voice.sendall(b"to" * 50_000)
        assert _exactly(answer, 100_000) == b"to" * 50_000
        answer.close()
        assert voice.recv(1) == b""
        again = stack.enter_context(asking(relay, callee, ANSWER, token))
        assert _exactly(again, 1) == b"-"


def test_who_calls_one_that_is_not_there_is_told_so(relay: Running) -> None:
    with asking(relay, Identity.new(), CALL, raw(Identity.new().public)) as voice:
        assert _exactly(voice, 1) == b"-"


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_who_is_not_in_the_roster_is_refused(tmp_path: Path) -> None:
    known, stranger, later = (Identity.new() for _ in range(3))
    path = tmp_path / "endpoints.toml"
    path.write_text(block(0, Endpoint("tcp://10.0.0.1:1", known.public)))
    roll = Roll(path)
    with relay_running(allowed=roll.allowed) as running, ExitStack() as stack:
        answers = {}
        for name, identity in (("known", known), ("stranger", stranger)):
            answers[name] = _exactly(stack.enter_context(asking(running, identity, LISTEN, NO_TARGET)), 1)
        assert answers == {"known": b"+", "stranger": b"-"}
        with path.open("a") as file:
            file.write(block(1, Endpoint("tcp://10.0.0.2:1", later.public)))
        os.utime(path, ns=(1, 1))
        assert _exactly(stack.enter_context(asking(running, later, LISTEN, NO_TARGET)), 1) == b"+"
        path.write_text("nonsense")  # what was read last stands
        assert _exactly(stack.enter_context(asking(running, known, CALL, NO_TARGET)), 1) == b"-"
        assert running.relay.counts["nobody"] == 1


def test_a_host_s_folder_lets_in_whom_it_lets_in_and_strangers_call_the_organiser_alone(tmp_path: Path) -> None:
    """Who is invited has keys that no roster knows; it reaches the one who invites, and is in the roster then."""
    hosted = invite_joining.hosted(tmp_path / "hosting", "lan", "what", Seats(3), 2**32 - 1, (1, 2))
    invited, peer, organiser = Identity.new(), raw(hosted.peer.public), raw(hosted.organiser.public)
    roll = Roll(hosted.folder)
    with relay_running(allowed=roll.allowed) as running, ExitStack() as stack:

        def answer(identity: Identity, want: bytes, target: bytes) -> bytes:
            return _exactly(stack.enter_context(asking(running, identity, want, target)), 1)

        assert answer(hosted.peer, LISTEN, NO_TARGET) == b"+"
        assert answer(invited, LISTEN, NO_TARGET) == answer(invited, CALL, peer) == b"-"
        assert running.relay.counts["nobody"] == 0 and answer(invited, CALL, organiser) == b"-"
        assert running.relay.counts["nobody"] == 1  # it may call, and nobody listens there
        hosted.keep(replace(hosted.party, guests={1: Guest(invited.public, invited.verify, "tcp://10.0.0.1:1")}))
        os.utime(hosted.folder / "invite.json", ns=(1, 1))
        assert answer(invited, LISTEN, NO_TARGET) == b"+"


def test_a_roster_is_a_key_a_line(tmp_path: Path) -> None:
    first, second = Identity.new().public, Identity.new().public
    path = tmp_path / "roster.txt"
    path.write_text(f"# who may\n{first}\n\n{second} invites\n")
    assert Roll(path).allowed() == Allowed(frozenset({raw(first), raw(second)}), frozenset({raw(second)}))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, "No such file"),
        ("{key}\nrq:rM>}U", "no public key"),
        ("{key} welcomes\n", "no word of a roster"),
        ("hello\n", "TOML|Expected|expected"),
        ("{key}\n" * 30_000, "too many characters"),
    ],
    ids=["missing", "cut", "word", "text", "long"],
)
def test_what_is_no_roster_is_a_line_and_an_advice(text: str | None, error: str, tmp_path: Path) -> None:
    path = tmp_path / "roster.txt"
    if text is not None:
        path.write_text(text.replace("{key}", Identity.new().public))
    with pytest.raises(ConfigError, match=error) as refused:
        Roll(path)
    assert refused.value.advice and "roster.txt" in str(refused.value)


def test_who_says_nothing_is_hung_up_on_and_so_is_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "REQUEST_SECONDS", 0.2)
    with relay_running(Limits(connections=2)) as running, ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", running.port), 5)) for _ in range(3)]
        greeted = [_until_the_end(one) for one in silent]
        assert sorted(map(len, greeted)) == [0, GREETING_BYTES, GREETING_BYTES]
        wait_until(lambda: running.relay._connections == 0, SECONDS, "nobody is there any more")
        assert _exactly(stack.enter_context(asking(running, Identity.new(), LISTEN, NO_TARGET)), 1) == b"+"


def _until_the_end(one: socket.socket) -> bytes:
    found = b""
    try:
        while more := one.recv(1000):
            found += more
    except ConnectionError:
        pass
    return found


def test_garbage_costs_a_relay_a_connection(relay: Running) -> None:
    draw = np.random.default_rng(1)
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", relay.port), 5) as one:
            one.sendall(draw.bytes(int(draw.integers(97, 500))))
            _until_the_end(one)
    with asking(relay, Identity.new(), LISTEN, NO_TARGET) as honest:
        assert _exactly(honest, 1) == b"+"


def put_through(running: Running, stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    caller, callee = Identity.new(), Identity.new()
    ear = stack.enter_context(asking(running, callee, LISTEN, NO_TARGET))
    assert _exactly(ear, 2) == b"+."
    voice = stack.enter_context(asking(running, caller, CALL, raw(callee.public)))
    answer = stack.enter_context(asking(running, callee, ANSWER, _exactly(ear, 33)[1:]))
    assert _exactly(voice, 1) == _exactly(answer, 1) == b"+"
    return voice, answer


def test_two_that_say_nothing_are_parted() -> None:
    with relay_running(Limits(idle_seconds=0.3)) as running, ExitStack() as stack:
        voice, answer = put_through(running, stack)
        assert _until_the_end(voice) == _until_the_end(answer) == b""


def test_bytes_pass_no_faster_than_they_may() -> None:
    """A second's worth at once, then at the rate: 3 MB at 2 MB/s are there no sooner than after half a second."""
    with relay_running(Limits(rate=2e6)) as running, ExitStack() as stack:
        voice, answer = put_through(running, stack)
        began = time.monotonic()
        sender = threading.Thread(target=voice.sendall, args=(bytes(3_000_000),))
        sender.start()
        assert len(_exactly(answer, 3_000_000)) == 3_000_000 and time.monotonic() - began > 0.4
        sender.join()


def test_one_key_has_so_many_connections_and_no_more() -> None:
    with relay_running(Limits(calls=2)) as running, ExitStack() as stack:
        identity = Identity.new()
        kept = [stack.enter_context(asking(running, identity, LISTEN, NO_TARGET))]
        assert _exactly(kept[0], 1) == b"+"
        again = stack.enter_context(asking(running, identity, LISTEN, NO_TARGET))
        assert _exactly(again, 1) == b"+" and _until_the_end(kept[0]) in (b".", b"")  # the later one stays
        wait_until(lambda: running.relay._of[raw(identity.public)] == 1, SECONDS, "the first one is gone")


# --- models through it ------------------------------------------------------------------------------------------------


class Pair:
    """Peers 0 and 1; 1 cannot be called but through the relay."""

    def __init__(self, relay: Running, stack: ExitStack, port: object = "*") -> None:
        """`port`: at which 1 listens; "*" is any, beside which the streams have any port too."""
        keys = [Identity.new(), Identity.new()]
        self.links = [Links(node, f"tcp://127.0.0.1:{(0, port)[node] or '*'}", key) for node, key in enumerate(keys)]
        self.agents = [RelayClient(key) for key in keys]
        for links, agent in zip(self.links, self.agents, strict=True):
            stack.callback(agent.close)
            stack.callback(links.close)
            links.routing.reach(Ways(agent.way))
        self.agents[1].listen(relay.address, int(self.links[1].address.rpartition(":")[2]))
        wait_until(lambda: self.agents[1].listens_at(relay.address), SECONDS, "1 can be called")
        self.endpoints = {
            0: Endpoint(self.links[0].address, keys[0].public),
            1: Endpoint(f"tcp://127.0.0.1:1,{relay.address}", keys[1].public),
        }
        self.events: list[list[LinkEvent]] = [[], []]

    def connect(self) -> None:
        for node, links in enumerate(self.links):
            links.connect((1 - node,), self.endpoints, EXPECTED, HELLO)

    def until(self, true: Callable[[], object], what: str) -> None:
        def look() -> object:
            for links, events in zip(self.links, self.events, strict=True):
                events.extend(links.poll(5))
            return true()

        wait_until(look, SECONDS, what)

    def up(self, node: int) -> int:
        return sum(isinstance(event, LinkUp) for event in self.events[node])

    def say(self, round: int = 0, value: float = 0.0) -> None:
        """0 says a model to 1."""
        self.links[0].send(1, Model(round, "layout", (frozen(np.full(EXPECTED.length, value, np.float32)),)))

    def models(self, node: int) -> list[Model]:
        return [e.message for e in self.events[node] if isinstance(e, Arrived) and isinstance(e.message, Model)]


def tapped(monkeypatch: pytest.MonkeyPatch) -> bytearray:
    """Every byte that a splice of this process reads."""
    seen, lock = bytearray(), threading.Lock()
    real = splice._pump

    async def pump(reader: object, writer: object, last: list[float], rate: object) -> None:
        class Tap:
            async def read(self, size: int) -> bytes:
                piece: bytes = await reader.read(size)  # type: ignore[attr-defined]
                with lock:
                    seen.extend(piece)
                return piece

        await real(Tap(), writer, last, rate)  # type: ignore[arg-type]

    monkeypatch.setattr(splice, "_pump", pump)
    return seen


def port_with_streams() -> int:
    """A port that is free, and so is the one that its streams have."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as above:
            port: int = above.getsockname()[1] - PORT_ABOVE
            with suppress(OSError), socket.create_server(("127.0.0.1", port)):
                return port


@pytest.mark.parametrize(("links", "calls"), [("sealed", 2), ("curve", 1)])
def test_models_go_through_a_relay_that_sees_no_float_of_them(
    links: str, calls: int, relay: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a sealed stream of their own call, and by CURVE; seen at the relay and at both ends of it."""
    monkeypatch.setenv("FEDGOSSIP_LINKS", links)
    seen = tapped(monkeypatch)
    with ExitStack() as stack:
        pair = Pair(relay, stack, port_with_streams())
        pair.connect()
        pair.until(lambda: pair.up(0) and pair.up(1), "both links are up")
        call = pair.links[0]._links[1].call
        pair.until(lambda: call.up or calls == 1, "a stream")
        pair.say(value=1.2345678)
        pair.until(lambda: pair.models(1), "the model is there")
        (vector,) = pair.models(1)[0].vectors
        assert set(vector.tolist()) == {float(np.float32(1.2345678))} and call.sends == (calls == 2)
        assert [event for event in pair.events[0] if isinstance(event, Routed)] == [Routed(1, relay.address)]
    assert len(seen) > vector.nbytes
    assert struct.pack("<f", vector[0]) * 2 not in bytes(seen) and b"layout" not in bytes(seen)
    assert relay.relay.counts["put through"] == calls


@pytest.mark.parametrize("why", ["another port", "too many calls"])
def test_where_a_stream_cannot_be_had_through_a_relay_models_go_by_curve(
    why: str, relay: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ATTEMPT_SECONDS", 0.5)
    if why == "too many calls":
        monkeypatch.setattr(relay_client, "CALLS_MAX", 2)
    with ExitStack() as stack:
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        pair = Pair(relay, stack, taken.getsockname()[1] - PORT_ABOVE if why == "another port" else port_with_streams())
        pair.connect()
        pair.until(lambda: pair.up(0) and pair.up(1), "both links are up")
        call = pair.links[0]._links[1].call
        pair.until(lambda: call.pause, "an attempt that failed")
        pair.say()
        pair.until(lambda: pair.models(1), "the model is there")
        assert not call.up and pair.up(0) == 1


def test_a_relay_that_vanishes_in_mid_run_and_comes_back_is_used_again(relay: Running) -> None:
    with ExitStack() as stack:
        pair = Pair(relay, stack)
        pair.connect()
        pair.until(lambda: pair.up(0) and pair.up(1), "both links are up")
        before, port = pair.up(0), relay.port
        relay.stop()
        pair.say()
        again = run_relay(port=port)
        stack.callback(again.stop)
        pair.until(lambda: pair.up(0) > before, "the link is up again")
        pair.until(lambda: pair.models(1), "the model that was said meanwhile is there")


def test_the_direct_way_is_taken_as_soon_as_there_is_one(relay: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgossip.net.relays.reachability.AGAIN_SECONDS", 0.2)
    monkeypatch.setattr("fedgossip.net.relays.reachability.TRY_SECONDS", 1.5)
    with ExitStack() as stack:
        pair = Pair(relay, stack)
        door = socket.create_server(("127.0.0.1", 0))
        port = door.getsockname()[1]
        door.close()
        where = f"tcp://127.0.0.1:{port},{relay.address}"
        pair.endpoints[1] = Endpoint(where, pair.endpoints[1].key)
        pair.connect()
        pair.until(lambda: pair.up(0) and Routed(1, relay.address) in pair.events[0], "through the relay")
        pair.links[1].router.bind(f"tcp://127.0.0.1:{port}")  # the firewall has been opened
        pair.until(lambda: Routed(1) in pair.events[0] and pair.up(0) >= 2, "directly")


def test_where_the_first_address_leads_nowhere_the_other_one_is_taken(relay: Running) -> None:
    """Two interfaces: the one that reaches.  At the other address another machine may even answer, with another key."""
    with ExitStack() as stack:
        pair = Pair(relay, stack)
        stranger = stack.enter_context(closing(Links(5, "tcp://127.0.0.1:*", Identity.new())))
        both = f"{stranger.address},{pair.links[1].address}"
        pair.endpoints[1] = Endpoint(both, pair.endpoints[1].key)
        pair.connect()
        pair.until(lambda: pair.up(0) and pair.up(1), "both links are up")
        assert Routed(1) in pair.events[0]


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [(["--listen", "7777"], 2, "no address"), (["--allow", "none.toml"], 2, "none.toml"),
     (["--listen", "{taken}"], 3, "in use")],
)  # fmt: skip
def test_what_cannot_be_relayed_is_said_at_the_start(
    words: list[str], code: int, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as taken:
        filled = [word.format(taken=f"127.0.0.1:{taken.getsockname()[1]}") for word in words]
        said = in_process(["relay", *filled], tmp_path, monkeypatch, capsys)
    assert said.code == code and error in said.errors[0]
    assert NetworkError.exit_code == 3
