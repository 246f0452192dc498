"""Peers and spokes with sealed streams in one process, and somebody on the wire between them."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fedgossip.base.vectors import frozen
from fedgossip.core.messages import Expected, Hello, Model
from fedgossip.core.wire import CHUNK_BYTES
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.identity import Identity
from fedgossip.net.links.mesh import Links
from fedgossip.net.streams import sealed_stream
from fedgossip.net.streams.sealed_stream import HEAD_BYTES
from fedgossip.net.streams.sealing import TAG_BYTES
from fedgossip.net.streams.stream_port import STRANGER_BYTES
from fedgossip.net.transport import Arrived, LinkDown, LinkEvent, LinkUp, Rejected

SECONDS = 60.0
"""A bound of a hang, and no claim of how long anything takes."""
DIM = 4 * CHUNK_BYTES // 4 + 100
HELLO = Hello("layout", "experiment", "1")
EXPECTED = Expected("layout", "float32", DIM)


def model(round: int) -> Model:
    return Model(round, "layout", (frozen(np.full(DIM, round, np.float32)),))


@dataclass
class Two:
    """Peers 0 and 1; `heard` are the events of each.  `beside` is done at every turn."""

    peers: list[Links]
    heard: list[list[LinkEvent]] = field(default_factory=lambda: [[], []])
    beside: Callable[[], object] = lambda: None

    def until(self, enough: Callable[[], object], what: str) -> None:
        end = time.monotonic() + SECONDS
        while not enough():
            assert time.monotonic() < end, f"not within {SECONDS:g} s: {what}; {self.heard}"
            for node, peer in enumerate(self.peers):
                self.heard[node] += peer.poll(1)
            self.beside()

    def turn(self, seconds: float = 0.1) -> None:
        """Let everything that is under way happen."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > end, "a while")

    def call(self, node: int) -> Any:
        """The stream by which a peer calls the other."""
        return self.peers[node]._links[1 - node].call

    def speaking(self) -> bool:
        return all(self.call(node).sends for node in (0, 1))

    def rounds(self, node: int) -> list[int]:
        """The rounds of the models that a peer has heard; each element of each is checked."""
        found = []
        for event in self.heard[node]:
            if isinstance(event, Arrived) and isinstance(event.message, Model):
                (vector,) = event.message.vectors
                assert (vector == event.message.round).all()
                found.append(event.message.round)
        return found

    def send(self, node: int, *rounds: int) -> None:
        for number in rounds:
            self.peers[node].send(1 - node, model(number))

    def seal(self) -> None:
        """Wait until both speak by streams: each sends a model of round 0."""
        self.until(lambda: all(self.call(node).up for node in (0, 1)), "streams")
        for node in (0, 1):
            self.send(node, 0)
        self.until(lambda: 0 in self.rounds(0) and 0 in self.rounds(1), "a model each")
        assert self.speaking()

    def reasons(self, node: int) -> list[str]:
        return [event.reason for event in self.heard[node] if isinstance(event, Rejected)]

    def ups(self, node: int) -> list[bool]:
        """True for each time that the link came up, False for each time that it broke."""
        return [isinstance(event, LinkUp) for event in self.heard[node] if isinstance(event, LinkUp | LinkDown)]


@contextmanager
def two(
    monkeypatch: pytest.MonkeyPatch, first: str = "sealed", second: str = "sealed", *, keyed: bool = True
) -> Iterator[Two]:
    """Two peers that call each other, with the value of FEDGOSSIP_LINKS of each."""
    keys = [Identity.new() if keyed else None for _ in range(2)]
    with contextlib.ExitStack() as stack:
        peers = []
        for node, value in enumerate((first, second)):
            monkeypatch.setenv("FEDGOSSIP_LINKS", value)
            peers.append(Links(node, "tcp://127.0.0.1:*", keys[node]))
            stack.callback(peers[node].close)
        where = {node: Endpoint(peers[node].address, key.public if key else "") for node, key in enumerate(keys)}
        for node in (0, 1):
            peers[node].connect((1 - node,), where, EXPECTED, HELLO)
        yield Two(peers)


Record = bytes
Change = Callable[[int, Record], list[Record] | None]
"""(number, record): what goes on in its place; None cuts the connection."""


class Wire:
    """Somebody between all callers of streams and those they call, who has every byte in hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.change: Change = lambda _, record: [record]
        self.swallows = False
        """Whether all bytes of both ways are accepted and dropped."""
        self.seen: list[bytearray] = []
        """What each caller has sent, from its first byte on."""
        self._pipes: list[tuple[socket.socket, socket.socket, bytearray, list[int]]] = []
        real = sealed_stream.call
        self.listener = socket.create_server(("127.0.0.1", 0))
        self._targets: list[tuple[int, tuple[Any, ...]]] = []

        def call(family: int, where: tuple[Any, ...]) -> socket.socket:
            self._targets.append((family, where))
            return real(socket.AF_INET, self.listener.getsockname())

        monkeypatch.setattr(sealed_stream, "call", call)

    def pump(self) -> None:
        """Pass on what has come."""
        while len(self.seen) < len(self._targets):
            family, where = self._targets[len(self.seen)]
            caller, _ = self.listener.accept()
            callee = socket.socket(family, socket.SOCK_STREAM)
            callee.connect(where)
            for end in (caller, callee):
                end.setblocking(False)
            self.seen.append(bytearray())
            self._pipes.append((caller, callee, bytearray(), [0]))
        for number, (caller, callee, rest, count) in enumerate(self._pipes):
            if caller.fileno() >= 0:
                self._pass_on(number, caller, callee, rest, count)

    def _pass_on(
        self, number: int, caller: socket.socket, callee: socket.socket, rest: bytearray, count: list[int]
    ) -> None:
        came, ended = _read(caller)
        if self.swallows:
            _read(callee)
            return
        self.seen[number] += came
        rest += came
        back, over = _read(callee)
        with contextlib.suppress(OSError):
            _write(caller, back)
            for record in _records(rest, first=count[0] == 0):
                changed = [record] if count[0] == 0 else self.change(count[0], record)
                count[0] += 1
                if changed is None:
                    ended = True
                    break
                for one in changed:
                    _write(callee, one)
        if ended or over:
            caller.close()
            callee.close()

    def close(self) -> None:
        self.listener.close()
        for caller, callee, *_ in self._pipes:
            caller.close()
            callee.close()


def _records(rest: bytearray, *, first: bool) -> Iterator[Record]:
    """Yield what is whole: hail, ticket and proof as one, then record by record."""
    while True:
        need = STRANGER_BYTES
        if not first:
            if len(rest) < HEAD_BYTES:
                return
            need = HEAD_BYTES + struct.unpack("<9sI", rest[:HEAD_BYTES])[1] + TAG_BYTES
        if len(rest) < need:
            return
        record = bytes(rest[:need])
        del rest[:need]
        first = False
        yield record


def _read(end: socket.socket) -> tuple[bytes, bool]:
    found = b""
    while True:
        try:
            came = end.recv(1 << 18)
        except BlockingIOError:
            return found, False
        except OSError:
            return found, True
        if not came:
            return found, True
        found += came


def _write(end: socket.socket, data: bytes) -> None:
    """What does not fit waits; the other end is in the same process, and reads when this returns."""
    end.settimeout(SECONDS)
    try:
        end.sendall(data)
    finally:
        end.setblocking(False)
