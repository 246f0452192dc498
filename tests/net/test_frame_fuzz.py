"""Below the machines: no frame, and no order of frames, is more to a reader than a refusal of that frame."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import federation
import frame_fuzz
import machine_fuzz
import numpy as np
import over_sockets
import pytest
import zmq
from federation import SECOND, Federation, over_hub
from frame_fuzz import Fed, Pair, Scribe, refused, take
from fuzz_casts import SCENES
from fuzz_words import FRAMES, Words

from fedgossip import simulate
from fedgossip.algorithms.federated.names import make
from fedgossip.algorithms.sampling import Uniform
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import digest, frozen
from fedgossip.core.messages import Expected, Hello, Join, Leaving, Model, Ping
from fedgossip.core.wire import Assembler, FrameError
from fedgossip.experiment import load_experiment
from fedgossip.learning.analytic import Quadratic
from fedgossip.net import host
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.hub.client import ClientLinks
from fedgossip.net.hub.server import CoordinatorLinks
from fedgossip.net.identity import Identity
from fedgossip.net.links.mesh import Links
from fedgossip.net.sockets import GUEST, GUESTS
from fedgossip.net.streams.sealed_way import SEAL
from fedgossip.net.transport import Arrived, Rejected
from fedgossip.plans import compose
from fedgossip.protocols.federated.coordinator import CoordinatorSettings
from fedgossip.secure import frames
from fedgossip.secure.primitives import signer

LENGTH, SCHEMA = 3, "7546412e2d81921c"
EXPECTED = {
    "gossip": Expected(SCHEMA, "float32", LENGTH),
    "two vectors": Expected(SCHEMA, "float32", LENGTH, 2),
    "secure": Expected(SCHEMA, "float32", LENGTH, words=12),
    "large": Expected(SCHEMA, "float32", 200_000),
}


def scribe(seed: int, scene: str = "sync_gossip", schema: str = SCHEMA) -> Scribe:
    said = [message for _, _, message in machine_fuzz.undisturbed(scene, 0).said]
    return Scribe(Words(np.random.default_rng(seed), (0, 1, 2, 3), LENGTH, "float32", schema, said))


@pytest.mark.parametrize("layout", EXPECTED)
@pytest.mark.parametrize("scene", ["sync_gossip", "private_gossip", "member", "coordinator", "coordinator_secure"])
def test_an_assembler_refuses_or_reads_whatever_comes_and_hears_what_comes_after_it(scene: str, layout: str) -> None:
    expected = EXPECTED[layout]
    s, assembler, heard = scribe(1, scene), Assembler(expected), 0
    good = Model(0, SCHEMA, tuple(frozen(np.ones(expected.length, np.float32)) for _ in range(expected.count)))
    for number in range(300):
        for pair in s.bent():
            try:
                heard += take(assembler, pair) is not None
            except FrameError as error:
                assert len(str(error)) < 1000
            taken = sum(vector.nbytes for vector in assembler._vectors)
            assert taken <= max(expected.payload_bytes, 4 * expected.words, 4 * expected.length + 16)
        if number % 30 == 0:
            *_, last = [take(assembler, pair) for pair in s.written(good)]
            assert isinstance(last, Model) and np.array_equal(last.vectors, good.vectors)
    assert heard > 20  # not everything is refused


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scene", ["sync_gossip", "allreduce", "member", "coordinator_secure"])
def test_a_quarter_million_bent_frames_of_each_kind_of_run_are_refused_or_read(scene: str) -> None:
    s, told, heard = scribe(7, scene), 0, 0
    assembler = Assembler(EXPECTED["gossip"])
    while told < 250_000:
        for pair in s.bent():
            told += 1
            with contextlib.suppress(FrameError):
                heard += take(assembler, pair) is not None
    assert heard > 1000


@pytest.mark.parametrize("kind", FRAMES)
def test_a_signed_frame_of_whatever_bytes_is_read_or_refused(kind: Any) -> None:
    identity, sign = signer(bytes(32))
    words, read = scribe(2).words, 0
    for _ in range(200):
        frame = words.example(kind)
        body = frames.pack(frame, 1, sign)[frames.SIGNATURE :]
        for spoilt in (body, body[: len(body) // 2], body + b"x", _flipped(body, words), b"\x91" * 60_000):
            for sender in (1, frames.COORDINATOR):
                signed = sign(frames._signed(sender, spoilt)) + spoilt
                with contextlib.suppress(ProtocolError):
                    frames.from_client(signed, 1, identity) if sender == 1 else frames.from_coordinator(
                        signed, identity
                    )
                    read += 1
    assert read > 100


def _flipped(body: bytes, words: Words) -> bytes:
    changed = bytearray(body)
    changed[int(words.draw.integers(len(changed)))] ^= 1 << int(words.draw.integers(8))
    return bytes(changed)


# --- transports, without sockets --------------------------------------------------------------------------------------


@pytest.fixture
def links() -> Iterator[Links]:
    found = Links(0, "tcp://127.0.0.1:*", Identity.new())
    yield found
    found.close()


@pytest.mark.sockets
def test_links_hear_whatever_is_written_and_by_whom(links: Links) -> None:
    """By a partner, by guests, by a member that is no partner, and by one whose name the allow-list never gave."""
    guests = [Identity.new().public for _ in range(40)]
    links.connect(
        (1,), {1: Endpoint("tcp://127.0.0.1:9", Identity.new().public)}, EXPECTED["gossip"], Hello("", "", "")
    )
    links.admit_guests(None)
    fed, router, s = Fed(), links.router, scribe(3, "member")
    links.router = fed  # type: ignore[assignment]
    users = ["1", "1", "1", "7", "x", "", *(GUEST + guest for guest in guests)]
    found: list[Any] = []
    for number in range(3000):
        parts = [part for pair in s.bent()[:1] for part in pair][: 1 + int(s.draw.integers(2))] or [b""]
        fed.feed(users[int(s.draw.integers(len(users)))], b"connection", *parts, *[b"more"] * (number % 50 == 0))
        links._receive(found)
        assert len(links.guests.known) <= GUESTS
    for pair in s.written(Ping(7, 0, "")):
        fed.feed("1", b"connection", *pair)
    while len(found) < 100_000 and not (isinstance(found[-1], Arrived) and found[-1].message == Ping(7, 0, "")):
        links._receive(found)
    links.router = router
    assert {type(event) for event in found} == {Arrived, Rejected}
    assert not [event for event in found if isinstance(event, Rejected) and event.reason == "broken"]
    by_guests = [event.message for event in found if isinstance(event, Arrived) and event.sender != 1]
    assert all(isinstance(message, Join) for message in by_guests)


@pytest.mark.sockets
def test_a_spoke_hears_whatever_its_coordinator_writes() -> None:
    spoke, fed, s = ClientLinks(0, Identity.new()), Fed(), scribe(4, "coordinator")
    spoke._coordinator, spoke._assembler = 1, Assembler(EXPECTED["gossip"])
    spoke._dealer = fed  # type: ignore[assignment]
    found: list[Any] = []
    for number in range(3000):
        parts = [part for pair in s.bent()[:1] for part in pair][: 1 + int(s.draw.integers(2))] or [b""]
        fed.feed("", *parts, *[b"more"] * (number % 50 == 0))
        spoke._receive(found)
    for pair in s.written(Leaving(3)):
        fed.feed("", *pair)
    spoke._receive(found)
    spoke._dealer = None
    spoke.close()
    assert isinstance(found[-1], Arrived) and found[-1].message == Leaving(3)
    assert not [event for event in found if isinstance(event, Rejected) and event.reason == "broken"]


# --- over real sockets ------------------------------------------------------------------------------------------------


def lies(expected: Expected, scene: str, count: int = 150) -> Iterator[Pair]:
    """Frames each of which is refused, so that a run beside them ends with the bits that it would have alone."""
    s = scribe(5, scene, expected.schema)
    for _ in range(count):
        if refused(expected, pairs := s.bent()):
            yield from pairs


@pytest.mark.sockets
def test_peers_beside_one_that_writes_what_cannot_be_read_end_with_the_right_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = {
        "rounds": 8,
        "task": {"kind": "quadratic", "dim": LENGTH, "placement": "random"},
        "topology": {"graph": "complete", "n": 4},
        "algorithm": {"deadline": 60.0, "least_deadline": 60.0},  # a link that is cut is called again: it may take long
    }
    plan = compose.plan(load_experiment(content))
    task, _ = compose.task_of(plan.experiment, plan.n)

    def say(self: Links, mark: bytes, body: bytes) -> None:
        for link in self._links.values():
            if link.up and not link.outbox:
                with contextlib.suppress(zmq.Again):
                    link.dealer.send_multipart([mark, body], zmq.NOBLOCK)
                    link.call.frames_sent += mark[:1] != SEAL  # else a stream is read before what was said ahead of it

    bent = frame_fuzz.beside(Links, say, lies(Expected(task.schema, task.dtype.name, LENGTH), "sync_gossip"))
    monkeypatch.setattr(over_sockets, "Links", lambda node, *rest: (bent if node == 0 else Links)(node, *rest))
    monkeypatch.setattr(host, "GRACE_NS", 60 * SECOND)  # on a busy machine a cut link takes more than the usual second
    results, rows = over_sockets.run_over_sockets(plan, task)
    assert digest(results) == simulate(content).digest
    assert sum(getattr(row, "name", "") == "refused" for row in rows) > 3


@pytest.mark.sockets
@pytest.mark.parametrize("liar", ["client", "coordinator"])
def test_a_federation_beside_one_that_writes_what_cannot_be_read_ends_with_the_right_bits(
    liar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Quadratic(4, dim=LENGTH, placement="random")
    settings = CoordinatorSettings(8, deadline_ns=60 * SECOND, start_ns=30 * SECOND)
    of = Federation(make("fedavg", clients=4), task, 4, Uniform(0, tuple(range(4)), 4, 1.0), settings)
    expected = Expected(task.schema, task.dtype.name, LENGTH, of.of.clients.vectors)
    written = 0

    def from_client(self: ClientLinks, mark: bytes, body: bytes) -> None:
        nonlocal written
        if self._up and self._dealer and not self._outbox:
            self._dealer.send_multipart([mark, body], zmq.NOBLOCK)
            self._call.frames_sent += mark[:1] != SEAL
            written += 1

    def from_coordinator(self: CoordinatorLinks, mark: bytes, body: bytes) -> None:
        nonlocal written
        for client in self._clients.values():
            if client.up and client.here and not client.line.outbox:
                self.router.send_multipart([client.here.name, mark, body], zmq.NOBLOCK)
                client.line.frames_sent += mark[:1] != SEAL
                written += 1

    if liar == "client":
        bent = frame_fuzz.beside(ClientLinks, from_client, lies(expected, "coordinator"))
        monkeypatch.setattr(
            federation, "ClientLinks", lambda node, *rest: (bent if node == 0 else ClientLinks)(node, *rest)
        )
    else:
        monkeypatch.setattr(
            federation,
            "CoordinatorLinks",
            frame_fuzz.beside(CoordinatorLinks, from_coordinator, lies(expected, "client")),
        )
    results = over_hub(of)
    assert digest([results[4]]) == of.digest() and sorted(results) == list(range(5))
    assert written > 10


def test_every_scene_that_frames_are_taken_from_is_there() -> None:
    assert {"sync_gossip", "private_gossip", "member", "coordinator", "coordinator_secure", "client"} <= SCENES.keys()
