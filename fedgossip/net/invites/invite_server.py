"""The socket for requests with an invite: any caller may connect, and few are served at a time.

It has a separate socket and context, so that strangers do not load the run.  Limits: new callers in ten seconds
(`sockets`), bytes and connections (`connections`), and requests of an unadmitted key.

**`InvitePort`** passes the requests of a leaf coordinator's clients to the organiser, unread.

CURVE runs from client to organiser: this end passes ciphertext on; it can only refuse, delay and cut.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from fedgossip.base.errors import NetworkError, NotWrittenError
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import AnyMessage, TurnedAway
from fedgossip.core.wire import Assembler, FrameError, frames
from fedgossip.net import sockets
from fedgossip.net.connections import Connections
from fedgossip.net.identity import raw
from fedgossip.net.invites.invite_admission import InviteAdmission
from fedgossip.net.links.outbox import check_last, skip
from fedgossip.net.relays.splice import LoopThread, Rate, hang_up, spliced, wait_within
from fedgossip.net.sockets import DRAIN_FRAMES, GUEST, MORE_NOW, NOW, AllowList, Waker, ZmqSocket, make

QUESTION_BYTES = 2048
"""Maximum bytes of a request."""
QUESTIONS, QUESTIONS_SECONDS = 1024, 60.0
"""Maximum number of requests of one key per period, and the period in seconds; a common test set of 32 MiB needs that
many.
"""
WRONG_MAX = 8
"""Number of refusals before a key gets no answer for QUESTIONS_SECONDS."""
KEYS_MAX = 64
"""Maximum number of keys with counted requests; beyond, the oldest count is dropped."""
TURN_MS = 200
"""Maximum milliseconds between two checks whether the server is to end."""
ANNOUNCE_SECONDS = 1.0
"""Seconds for which waiting members can fetch the start, before the organiser's own member begins."""
STRANGERS_FIRST: NodeId = 1 << 20
"""First of the numbers, above those of members, that distinguish connections of answered keys."""


@dataclass(slots=True)
class _Asker:
    number: NodeId
    since: float
    asked: int = 0
    wrong: int = 0


class InviteServer:
    """Listens from the start: `address` has the real port.  One thread at a time serves."""

    def __init__(self, bind: str, admission: InviteAdmission) -> None:
        """Raises NetworkError if the address is not available."""
        self.admission = admission
        self.answered = self.refused = 0
        self.fault = ""  # callers cause a socket's faults
        self._askers: dict[str, _Asker] = {}
        self._numbers = STRANGERS_FIRST
        self._serving: threading.Thread | None = None
        self._closing = threading.Event()
        self.context: zmq.Context[ZmqSocket] = zmq.Context(1)
        self._allow = AllowList(self.context)
        self._allow.guests = True
        self._welcome()
        self._waker = Waker()
        self._connections = Connections()
        self._router = make(self.context, zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._connections.follow(self._router)
        try:
            self.address = sockets.bind(self._router, bind, admission.organiser)
        except NetworkError:
            self.close()
            raise
        self._poller = zmq.Poller()
        for one in (self._allow.socket, self._router, self._waker.fileno(), self._connections.fileno()):
            self._poller.register(one, zmq.POLLIN)

    def serve(self, seconds: float) -> None:
        """Answer for at most `seconds`, until a request was answered or `wake` is called."""
        until, answered = time.monotonic() + seconds, self.answered
        while self.answered == answered and (left := until - time.monotonic()) > 0:
            if self._turn(min(TURN_MS, int(1000 * left) + 1)):
                return

    def announce(self) -> None:
        """Answer the waiting members that the run begins, before the organiser takes part itself."""
        until = time.monotonic() + ANNOUNCE_SECONDS
        while (left := until - time.monotonic()) > 0:
            self.serve(left)

    def serve_beside(self) -> None:
        """Answer in a separate thread until `close`."""
        self._serving = guarded_thread(self._serve_on, "invites")
        self._serving.start()

    def close(self) -> None:
        """Stop answering, and close all."""
        if self.context.closed:
            return
        self._closing.set()
        self._waker.wake()
        if self._serving:
            self._serving.join()
        self._connections.close()
        self._router.close(sockets.LINGER_MS)
        self._allow.socket.close(0)
        self._waker.close()
        self.context.term()

    def _serve_on(self) -> None:
        while not self._closing.is_set():
            self._turn(TURN_MS)

    def _turn(self, timeout_ms: int) -> bool:
        ready = dict(self._poller.poll(timeout_ms))
        if ready.pop(self._connections.fileno(), None) or self._allow.socket in ready:
            self._connections.take()
        if ready.pop(self._allow.socket, None):
            self.refused += self._allow.answer() is not None
        if self._router in ready:
            self._receive()
        if ready.pop(self._waker.fileno(), None):
            self._waker.clear()
            return True
        return False

    def _receive(self) -> None:
        for _ in range(DRAIN_FRAMES):
            try:
                connection = self._router.recv(NOW)
            except zmq.Again:
                return
            try:
                key, message, asker = self._question()
            except Exception as error:  # a stranger's frame can only spoil that frame
                if isinstance(error, zmq.ZMQError):
                    raise
                skip(self._router)
                self.refused += 1
                continue
            self._answer(connection, key, message, asker)

    def _question(self) -> tuple[str, AnyMessage | None, _Asker]:
        """Read a request; None for an unreadable one."""
        mark = self._router.recv(copy=False)
        key = str(mark.get("User-Id")).removeprefix(GUEST)
        asker = self._asker(key)
        asker.asked += 1
        if asker.asked > QUESTIONS or asker.wrong >= WRONG_MAX:
            raise FrameError("guest", "one that asks too much")
        self._connections.note_message(mark.get(zmq.SRCFD), asker.number)
        assembler = Assembler(None)
        if not mark.more or assembler.mark(mark.bytes) is not None:
            raise FrameError("truncated", "a message of one frame")
        body = self._router.recv()
        check_last(self._router)
        if len(body) > QUESTION_BYTES:
            raise FrameError("oversized", f"a question of {len(body)} bytes")
        try:
            return key, assembler.header(body), asker
        except FrameError:
            return key, None, asker

    def _welcome(self) -> None:
        self._allow.welcome = {raw(guest.key) for guest in self.admission.party.guests.values()}

    def _asker(self, key: str) -> _Asker:
        now = time.monotonic()
        known = self._askers.get(key)
        if known and now - known.since < QUESTIONS_SECONDS:
            return known
        self._askers.pop(key, None)
        while len(self._askers) >= KEYS_MAX:
            del self._askers[next(iter(self._askers))]
        self._numbers += 1
        self._askers[key] = _Asker(self._numbers, now)
        return self._askers[key]

    def _answer(self, connection: bytes, key: str, message: AnyMessage | None, asker: _Asker) -> None:
        try:
            answer = self.admission.answer(key, message, time.time())
        except NotWrittenError:  # no admission of a key that would be forgotten
            answer = TurnedAway("disk")
        self._welcome()
        asker.wrong += isinstance(answer, TurnedAway)
        self.answered += not isinstance(answer, TurnedAway)
        for mark, body in frames(answer, 1, ()):
            try:
                self._router.send(connection, MORE_NOW)
                self._router.send(mark, MORE_NOW)
                self._router.send(body, NOW)
            except zmq.ZMQError:  # the caller left, or is too slow: it repeats its request
                self.refused += 1


CALLS_MAX = 128
"""Maximum number of calls at the same time."""
IDLE_SECONDS = 60.0
"""Seconds without a byte before a call is closed; a guest sends a request every two seconds."""
BYTES_PER_SECOND = 8e6
"""Maximum rate of all calls together: a common test set of 32 MiB takes seconds."""
ANSWER_SECONDS = 10.0
"""Maximum seconds to wait for the thread, and for the organiser to accept a call."""


class InvitePort:
    """Listens at `port` until `close`; `target` returns tcp://HOST:PORT, the organiser's current address."""

    def __init__(self, port: int, target: Callable[[], str]) -> None:
        """Raises NetworkError if the port is in use."""
        self._target, self._rate, self._calls = target, Rate(BYTES_PER_SECOND), 0
        self._thread = LoopThread("invites passed on")
        try:
            self._server = self._thread.wait(asyncio.start_server(self._pass_call, None, port), ANSWER_SECONDS)
        except OSError as error:
            self._thread.close()
            text = f"port {port} cannot be listened at: {error.strerror or error}"
            raise NetworkError(text, "Name a free one: --invite-port.") from None
        self.port = int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Close all calls."""
        if not self._thread.closed:
            self._thread.loop.call_soon_threadsafe(self._server.close)
            self._thread.close()

    async def _pass_call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._calls += 1
        try:
            if self._calls <= CALLS_MAX:
                host, _, port = self._target().partition("://")[2].rpartition(":")
                there = await wait_within(asyncio.open_connection(host.strip("[]"), int(port)), ANSWER_SECONDS)
                await spliced((reader, writer), there, IDLE_SECONDS, self._rate)
        except (OSError, ValueError, TimeoutError, asyncio.CancelledError):
            pass  # the guest calls again
        finally:
            self._calls -= 1
            hang_up(writer)
