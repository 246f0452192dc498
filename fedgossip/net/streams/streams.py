"""All sealed streams of one participant: tickets of callers, outgoing calls, streams in use.

A caller must send a ticket issued inside CURVE and seal its first record with its key.  Others are disconnected, and
the ticket stays valid, so that strangers cannot prevent a stream.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Collection, Iterator
from typing import Any

import zmq

from fedgossip.core.machine import NodeId
from fedgossip.core.wire import FrameError
from fedgossip.net.identity import Identity
from fedgossip.net.links.outbox import Pair, parse, skip
from fedgossip.net.sockets import NOW, Waker, ZmqSocket, shut_down
from fedgossip.net.streams import sealed_stream
from fedgossip.net.streams.sealed_stream import Buffers, SealedStream
from fedgossip.net.streams.sealed_way import SEAL, CalledStream, SealedWay, StreamCall, seal_word
from fedgossip.net.streams.sealing import StreamOffer, Suite, WornOutError, answered
from fedgossip.net.streams.stream_port import HAIL, Stranger, StreamPort
from fedgossip.net.transport import LinkEvent, Rejected

ATTEMPT_SECONDS = 10.0
"""Maximum seconds from an offer to the stream, and validity of a ticket."""

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 2.0, 120.0
"""Minimum and maximum seconds between a failed attempt, or a broken stream, and the next offer; doubled each time."""

SWALLOWED_SECONDS = 30.0
"""Minimum of that time after a stream without acknowledgements, in seconds: each such try delays a link."""

STREAMS_OF_ONE = 2
"""Maximum number of tickets and streams of one caller: the one in use, and its successor.  Beyond, the oldest is
dropped.
"""

TICK_SECONDS = 0.25
"""Seconds between two checks whether an offer is due."""

WORDS_AT_ONCE = 8
"""Maximum number of frames read from a connection while it waits for an answer."""

LOOK_SECONDS = 0.002
"""Seconds between two checks whether all has arrived, at the end."""

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Streams:
    """`identity`: the participant's; `suites`: its ciphers, empty for no streams.  Without an identity (measurements)
    nothing is sealed.

    The sockets' thread makes all calls.
    """

    def __init__(self, identity: Identity | None, suites: Collection[Suite]) -> None:
        self.identity = identity
        self.suites = frozenset(suites) if identity is not None else frozenset[Suite]()
        self._public = identity.public if identity is not None else ""
        self.usable = bool(suites)
        self.buffers = Buffers()
        self._selector = selectors.DefaultSelector()
        self._nothing = None if hasattr(self._selector, "fileno") else Waker()
        if self._nothing:  # a system on which ZeroMQ's poll cannot wait for a selector
            self.usable = False
        self._watched: dict[SealedWay, int] = {}
        self._calls: dict[SealedWay, None] = {}  # attempts without a stream so far
        self._called: dict[NodeId, list[CalledStream]] = {}
        self.port = StreamPort(self._selector)
        self._ticked = 0.0

    def __bool__(self) -> bool:
        return self.usable

    def fileno(self) -> int:
        """Return the descriptor that is readable when `turn` has work."""
        return self._nothing.fileno() if self._nothing else int(self._selector.fileno())

    # --- the caller's end -------------------------------------------------------------------------------------------

    def offers(self, call: StreamCall, now: float) -> Pair | None:
        """Return the offer to send now on the CURVE connection, if one is due."""
        if not self.usable or call.stream is not None or now < call.due:
            return None
        if call.offer is not None and now < call.until:
            return None
        if call.offer is not None:  # no answer arrived
            self.failed(call)
            return None
        call.offer, call.number, call.until = StreamOffer(self.suites), call.number + 1, now + ATTEMPT_SECONDS
        return seal_word(call.number, call.offer.text)

    def take_answer(self, call: StreamCall, number: int, text: bytes, descriptor: int) -> None:
        """Read the callee's answer, received on `descriptor`; connect to it.  Raises FrameError for an invalid one."""
        call.frames_received = 0
        if call.offer is None or number != call.number:
            return
        offer, call.offer = call.offer, None
        if not text:
            self.failed(call)
            return
        agreed, port = offer.keys(text, self._public, call.callee if self.identity else "")
        try:
            ends = _ends(descriptor)
            call.descriptor, call.ends = descriptor, ends
            family, _, (host, same, *rest) = ends
            connection = sealed_stream.call(family, (host, same if call.relayed else port, *rest))
        except OSError:
            self.failed(call)
            return
        call.stream = SealedStream(connection, *agreed.make_caller_pair(), self.buffers, HAIL + agreed.ticket)
        self._calls[call] = None
        self._proves(call)

    def _proves(self, call: SealedWay) -> None:
        try:
            if call.proof_sent or call.prove():
                call.proof_sent = True
            self.watch(call)
        except OSError:
            self.failed(call)

    def failed(self, call: SealedWay) -> None:
        """Drop the stream of a call, and offer the next one after a pause."""
        now = time.monotonic()
        lasted = call.up and isinstance(call, StreamCall) and now > call.until and not call.swallowed
        least = SWALLOWED_SECONDS if call.swallowed else PAUSE_SECONDS
        self.drop(call)
        if isinstance(call, StreamCall):
            call.pause = PAUSE_SECONDS if lasted else min(PAUSE_SECONDS_MAX, max(2 * call.pause, least))
            call.due, call.offer = now + call.pause, None

    # --- the callee's end -------------------------------------------------------------------------------------------

    def listen(self, router: str, wanted: str) -> None:
        """Open the port at the interface of the ROUTER's address, preferably `wanted`; without a port only CURVE is
        used.
        """
        if not self.usable or not router.startswith("tcp://"):
            self.usable = False
            return
        self.port.listen(router, wanted)

    def answer(self, node: NodeId, connection: bytes, key: str, number: int, offer: bytes) -> Pair:
        """Return the answer to an offer on a CURVE connection; `key`: the caller's long-term key.

        Raises FrameError for a refused offer, to be answered by `refusal`.
        """
        if not self.port.number or (self.identity is not None and not key):
            return refusal(number)
        text, agreed = answered(offer, self.suites, self.port.number, key if self.identity else "", self._public)
        if agreed is not None:
            of = self._called.setdefault(node, [])
            while len(of) >= STREAMS_OF_ONE or (of and of[0].stream is None and of[0].until < time.monotonic()):
                self.drop(of[0])
            until = time.monotonic() + ATTEMPT_SECONDS
            of.append(CalledStream(node, connection=connection, agreed=agreed, until=until))
        return seal_word(number, text)

    def list_called(self, node: NodeId) -> tuple[CalledStream, ...]:
        """Return all streams of one caller."""
        return tuple(self._called.get(node, ()))

    def count_curve_message(self, node: NodeId, connection: bytes) -> None:
        """Count a message received by a CURVE connection; the parallel stream may wait for it."""
        for one in self._called.get(node, ()):
            if one.connection == connection:
                self.count_received(one)

    def count_received(self, way: SealedWay) -> None:
        """Count a message received by the CURVE connection parallel to a stream."""
        way.frames_received += 1
        if way.receives and way.frames_received == way.waits_for:
            self.watch(way)

    # --- all of them ------------------------------------------------------------------------------------------------

    def watch(self, way: SealedWay) -> None:
        """Register for the next events of a stream: readable, unless it has to wait; writable."""
        assert way.stream is not None
        mask = (0 if way.waits else READ) | (WRITE if way.sending else 0)
        before = self._watched.get(way, 0)
        if mask == before:
            return
        if not mask:
            self._selector.unregister(way.stream)
        elif before:
            self._selector.modify(way.stream, mask, way)
        else:
            self._selector.register(way.stream, mask, way)
        self._watched[way] = mask

    def drop(self, way: SealedWay) -> None:
        """Close a stream, and forget its keys."""
        if way.stream is not None:
            if self._watched.pop(way, 0):
                self._selector.unregister(way.stream)
            way.stream.close()
        self._calls.pop(way, None)
        way.stream, way.up, way.sends, way.receives, way.proof_sent = None, False, False, False, False
        way.swallowed = False
        way.forget_counts()
        if isinstance(way, CalledStream):
            way.agreed = None
            of = self._called.get(way.node, [])
            if way in of:
                of.remove(way)
            if not of:
                self._called.pop(way.node, None)

    def forget(self, node: NodeId) -> None:
        """Close all streams of a caller that may no longer call."""
        for one in self.list_called(node):
            self.drop(one)

    def turn(self) -> Iterator[tuple[SealedWay, bool, bool]]:
        """Yield (stream, readable, writable) of streams in operation; advance the others."""
        for key, mask in self._selector.select(0):
            if key.data is None:
                self.port.accept()
            elif isinstance(key.data, Stranger):
                if self.port.read_stranger(key.data):
                    yield from self._admit(key.data)
            elif key.data.stream is None:  # dropped in this turn
                continue
            elif key.data in self._calls:
                yield from self._go_on(key.data)
            else:
                if mask & WRITE and isinstance(key.data, CalledStream):  # an acknowledgement, of one that sends no more
                    with contextlib.suppress(OSError):
                        key.data.flush()
                yield key.data, bool(mask & READ), bool(mask & WRITE)

    def tick(self) -> float | None:
        """Close calls and streams beyond their deadlines; return the time at which offers may be due, None
        before that.
        """
        now = time.monotonic()
        if not self.usable or now - self._ticked < TICK_SECONDS:
            return None
        self._ticked = now
        for call in [one for one in self._calls if isinstance(one, StreamCall) and one.until < now]:
            self.failed(call)
        for way in [one for one in self._watched if one.up]:
            self._acknowledge(way)
            if way.stream is not None and way.overdue(now):
                way.swallowed = True
                way.stream.give_up()  # its owner reads the end, and continues by CURVE
        self.port.look_at_times(now)
        return now

    def _acknowledge(self, way: SealedWay) -> None:
        """Send the due acknowledgement; the reader handles a broken connection."""
        with contextlib.suppress(OSError, WornOutError):
            way.acknowledge()
            self.watch(way)

    def _go_on(self, call: SealedWay) -> Iterator[tuple[SealedWay, bool, bool]]:
        assert call.stream is not None
        try:
            call.stream.flush()
            call.arrived()
        except (OSError, EOFError, FrameError):
            self.failed(call)
            return
        if call.up:
            del self._calls[call]
            yield call, True, True
        else:
            self._proves(call)

    def _admit(self, stranger: Stranger) -> Iterator[tuple[SealedWay, bool, bool]]:
        ticket = stranger.ticket
        one = next((c for of in self._called.values() for c in of if c.agreed and c.agreed.ticket == ticket), None)
        if one is None or one.agreed is None or one.stream is not None or one.until < time.monotonic():
            self.port.turn_away(stranger)
            return
        sealer, opener = one.agreed.make_callee_pair()
        head, proof = stranger.record
        try:
            opener.open_into(memoryview(proof), head, bytearray())
        except FrameError:  # the ticket stays valid
            self.port.turn_away(stranger)
            return
        one.stream = SealedStream(self.port.admit(stranger), sealer, opener, self.buffers)
        one.agreed, one.up = None, True
        try:
            one.prove()
            self.watch(one)
        except OSError:
            self.drop(one)
            return
        yield one, True, True

    def close(self, linger_seconds: float = 0.0) -> None:
        """Close all; wait at most `linger_seconds` for the arrival of sent bytes."""
        until = time.monotonic() + linger_seconds
        while time.monotonic() < until and any(way.stream and way.stream.arriving for way in self._watched):
            time.sleep(LOOK_SECONDS)
        for way in [*self._watched, *self._calls, *(one for of in self._called.values() for one in of)]:
            self.drop(way)
        self.port.close()
        self._selector.close()
        if self._nothing:
            self._nothing.close()


def refusal(number: int) -> Pair:
    """Return the answer that refuses a stream."""
    return seal_word(number, b"")


def _ends(descriptor: int) -> tuple[int, tuple[Any, ...], tuple[Any, ...]]:
    """Return the family and both addresses of a TCP connection, the local one first.  Raises OSError."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:  # the number may belong to another file by now
        family, ends = connection.family, (connection.getsockname(), connection.getpeername())
    if family not in (socket.AF_INET, socket.AF_INET6):
        raise OSError(errno.EAFNOSUPPORT, "no TCP connection")
    return family, *ends


def hang_up_beside(call: StreamCall) -> None:
    """Break the CURVE connection parallel to a stream; ZeroMQ makes a new one."""

    def is_it(descriptor: int) -> bool:
        try:
            return _ends(descriptor) == call.ends
        except OSError:
            return False

    shut_down(call.descriptor, is_it)


def read_answer(streams: Streams, call: StreamCall, dealer: ZmqSocket) -> list[LinkEvent]:
    """Read a connection for an awaited answer only."""
    for _ in range(WORDS_AT_ONCE):
        try:
            mark = dealer.recv(NOW, copy=False)
        except zmq.Again:
            break
        text = dealer.recv() if mark.more else b""
        skip(dealer)
        kind, number = parse(mark.bytes)
        if kind == SEAL and (refused := take_answer(streams, call, number, text, mark.get(zmq.SRCFD))):
            return [refused]
    return []


def take_answer(streams: Streams, call: StreamCall, number: int, text: bytes, descriptor: int) -> Rejected | None:
    """Process the answer to an offer; return the reason of a refusal, if any."""
    try:
        streams.take_answer(call, number, text, descriptor)
    except FrameError as error:
        streams.failed(call)
        return Rejected(call.node, error.reason, f"peer {call.node}: {error}", error.advice)
    return None
