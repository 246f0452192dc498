"""One peer's sockets: a ROUTER to hear everyone, a DEALER per partner to speak to it, CURVE on all of them.

One thread owns everything here.  `send` never blocks: what the socket does not take now waits in a bounded outbox.
The sender of a message is the peer that the allow-list knows by the connection's key, never what a message says.
"""

from __future__ import annotations

import ctypes
import signal
import socket as os_socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from fedgossip.errors import NetworkError
from fedgossip.machine import NodeId
from fedgossip.messages import CARRIERS, AnyMessage, Hello, Join, Leaving, Model
from fedgossip.net.auth import DOMAIN, GUEST, GUESTS, AllowList
from fedgossip.net.endpoints import Endpoint, Endpoints, check_address
from fedgossip.net.identity import Identity, check_public
from fedgossip.vectors import Vector
from fedgossip.wire import CHUNK_BYTES, FRAME_BYTES_MAX, Assembler, Expected, FrameError, chunks, frames, wire_bytes

ZmqSocket = zmq.Socket[bytes]
Pair = tuple[bytes, bytes | zmq.Frame]
"""The mark and the body of one message of ZeroMQ."""

QUEUED_CHUNKS = 2
"""High-water mark of every socket, in messages of one chunk: so much per link and direction waits inside ZeroMQ; what
comes after waits in the outbox as a reference to the vector, and at the receiver as TCP's back-pressure.  More only
means that a chunk has left the cache before it is read."""

OUTBOX_MESSAGES = 8
"""Messages that wait for one partner; in a synchronous run two models and a goodbye do."""

CIPHER_BYTES = 64
"""What CURVE may add to a frame (33 bytes today); libzmq compares MAXMSGSIZE with the frame as it is on the wire."""

HEARTBEAT_MS, SILENCE_MS = 2_000, 10_000
CONNECT_MS = 3_000
"""A call that nobody takes is made anew after so long.  Left to TCP, which waits twice as long each time, it would be
long after the network has healed; the same holds for what was sent and not acknowledged for SILENCE_MS.  ZeroMQ's own
heartbeat does not tell then: it waits behind what cannot be sent."""

LINGER_MS = 2_000
GUEST_WORDS, GUEST_BYTES = 32, 2048
"""What one that is no member may say, in messages and in bytes each: a Hello and an entry, on every new connection."""

GUEST_SECONDS = 60.0
"""After so long a guest is forgotten, and may say as much again."""

NOBODY: NodeId = -1
"""The sender of what a guest says."""

DRAIN_FRAMES = 64
"""Frames taken from the ROUTER before the other sockets get their turn."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h

_NOW, _MORE_NOW = int(zmq.NOBLOCK), int(zmq.SNDMORE | zmq.NOBLOCK)  # flags of an enum are added in Python, slowly


# --- what happens on links ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    sender: NodeId
    message: AnyMessage


@dataclass(frozen=True, slots=True)
class LinkUp:
    node: NodeId


@dataclass(frozen=True, slots=True)
class LinkDown:
    node: NodeId


@dataclass(frozen=True, slots=True)
class Rejected:
    """A frame, or a caller, that was refused: `reason` in one word.  `sender` is None for an unknown key."""

    sender: NodeId | None
    reason: str
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Woken:
    """Another thread, or a signal, has something for the owner of the links."""


LinkEvent = Arrived | LinkUp | LinkDown | Rejected | Woken


@dataclass(slots=True)
class _Link:
    """The way out to one partner."""

    node: NodeId
    dealer: ZmqSocket
    monitor: ZmqSocket
    outbox: deque[AnyMessage] = field(default_factory=deque)
    current: Iterator[Pair] | None = None
    waiting: Pair | None = None
    recent: list[AnyMessage] = field(default_factory=list)  # said again when the link comes back
    transfer: int = 0
    up: bool = False
    broke: bool = False
    heard: bool = False


@dataclass(slots=True)
class _Guest:
    """A caller whose key nobody knows."""

    assembler: Assembler
    since: float
    hello: Hello | None = None
    asked: bool = False
    said: int = 0


def _keep_message_memory() -> None:
    """Let freed messages be used again: glibc hands blocks of a chunk's size back to the system at each free, and a
    page fault per 4 KiB of every message costs a fifth of the plain link's processor time.  Other C libraries: nothing.
    """
    allocator = getattr(ctypes.CDLL(None), "mallopt", None)
    if allocator is not None:
        allocator(_M_MMAP_THRESHOLD, 8 * CHUNK_BYTES)
        allocator(_M_TRIM_THRESHOLD, 32 * CHUNK_BYTES)


class Links:
    """Sockets of one peer.  Bind first (`address` then holds the real port), `connect` when all addresses are known."""

    def __init__(self, node: NodeId, bind: str, identity: Identity | None) -> None:
        """`identity` None leaves encryption out: for measuring what it costs, reachable from no command."""
        self.node, self.identity = node, identity
        self._links: dict[NodeId, _Link] = {}
        self._assemblers: dict[NodeId, Assembler] = {}
        self._hello = Hello("", "", "")
        self._join: Join | None = None
        self._expected = Expected("", "", 0)
        self._guests: dict[str, _Guest] = {}
        self._late: list[LinkEvent] = []
        self._cut: tuple[tuple[Vector, ...], list[zmq.Frame]] = (), []
        self.bytes_sent = self.dropped = 0
        self._signals = False
        _keep_message_memory()
        self.context: zmq.Context[ZmqSocket] = zmq.Context(1)
        self.context.set(zmq.MAX_SOCKETS, 8192)
        self.poller = zmq.Poller()
        self.allow = AllowList(self.context)
        self.poller.register(self.allow.socket, zmq.POLLIN)
        self._wake_out, self._wake_in = os_socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self.poller.register(self._wake_in.fileno(), zmq.POLLIN)
        self.router = self._socket(zmq.ROUTER)
        if identity:
            self.router.curve_server = True
            self.router.curve_secretkey = identity.secret.encode()
            self.router.curve_publickey = identity.public.encode()
            self.router.zap_domain = DOMAIN
            self.router.zap_enforce_domain = True
        try:
            self.router.bind(bind)
        except zmq.ZMQError as error:
            self.close()
            advice = "Stop what listens there, or choose another port." if error.errno == zmq.EADDRINUSE else (
                "Is this an address of this machine?"
            )
            raise NetworkError(f"cannot listen on {bind}: {error.strerror.lower()}", advice) from None
        self.address = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.poller.register(self.router, zmq.POLLIN)

    @property
    def partners(self) -> tuple[NodeId, ...]:
        """Whom this peer speaks to."""
        return tuple(self._links)

    def wake_on_signals(self) -> None:
        """Let a signal make `poll` return a Woken, until `close`."""
        signal.set_wakeup_fd(self._wake_out.fileno(), warn_on_full_buffer=False)
        self._signals = True

    def wake(self) -> None:
        """Make `poll` return a Woken; callable from any thread."""
        try:
            self._wake_out.send(b"!")
        except (BlockingIOError, OSError):  # full: it will wake anyway; closed: nobody is there to wake
            return

    def _socket(self, kind: int) -> ZmqSocket:
        socket = self.context.socket(kind)
        socket.linger = LINGER_MS
        socket.sndhwm = socket.rcvhwm = QUEUED_CHUNKS
        socket.immediate = True
        socket.maxmsgsize = FRAME_BYTES_MAX + CIPHER_BYTES
        socket.heartbeat_ivl, socket.heartbeat_timeout, socket.heartbeat_ttl = HEARTBEAT_MS, SILENCE_MS, SILENCE_MS
        socket.reconnect_ivl, socket.reconnect_ivl_max = 100, 2_000
        socket.connect_timeout, socket.tcp_maxrt, socket.handshake_ivl = CONNECT_MS, SILENCE_MS, SILENCE_MS
        socket.ipv6 = True
        return socket

    def connect(self, partners: Sequence[NodeId], endpoints: Endpoints, expected: Expected, hello: Hello) -> None:
        """Allow the partners' keys, and call each of them; `hello` is the first word on every connection."""
        self._hello, self._expected = hello, expected
        for node in partners:
            self.meet(node, endpoints[node])

    def admit_guests(self, join: Join | None) -> None:
        """Let callers with unknown keys ask to become members; say `join` on every link to ask it ourselves."""
        self.allow.guests, self._join = True, join

    def meet(self, node: NodeId, endpoint: Endpoint) -> None:
        """Allow the key of `node`, and call it; where it has moved, call it there.

        Raises ConfigError or NetworkError for an address or a key that cannot be used; nothing is changed then.
        """
        where = f"peer {node}"
        check_address(endpoint.address, where)
        if self.identity:
            check_public(endpoint.key, where)
        known = self._links.get(node)
        link = self._call(node, endpoint)
        if known is not None:
            self._close(known)
            if known.up:
                self._late.append(LinkDown(node))
            link.recent, link.transfer = known.recent, known.transfer
        if self.identity:
            self.allow.allow({endpoint.key: node})
        self._links[node] = link
        self._assemblers.setdefault(node, Assembler(self._expected))
        self.poller.register(link.monitor, zmq.POLLIN)
        guest = self._guests.pop(endpoint.key, None)
        if guest and guest.hello:  # it has said it before it was known
            self._late.append(Arrived(node, guest.hello))

    def _call(self, node: NodeId, endpoint: Endpoint) -> _Link:
        dealer = self._socket(zmq.DEALER)
        if self.identity:
            dealer.curve_serverkey = endpoint.key.encode()
            dealer.curve_secretkey = self.identity.secret.encode()
            dealer.curve_publickey = self.identity.public.encode()
        else:
            dealer.routing_id = str(self.node).encode()
        watched = (
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        )
        monitor = dealer.get_monitor_socket(watched)
        try:
            dealer.connect(endpoint.address)
        except zmq.ZMQError as error:
            where = f"cannot call peer {node} at {endpoint.address}"
            dealer.disable_monitor()
            monitor.close(0)
            dealer.close(0)
            raise NetworkError(f"{where}: {error.strerror.lower()}", "Correct endpoints.toml.") from None
        return _Link(node, dealer, monitor)

    def _close(self, link: _Link) -> None:
        for socket in (link.monitor, link.dealer):
            if socket in self.poller:
                self.poller.unregister(socket)
        link.dealer.disable_monitor()
        link.monitor.close(0)
        link.dealer.close()

    # --- sending --------------------------------------------------------------------------------------------------

    def send(self, to: NodeId, message: AnyMessage) -> None:
        """Queue `message`.  Where the link is down, synchronous gossip's last words are said when it comes up; others
        are lost: their machines ask again.

        The oldest that has not begun is dropped where more than OUTBOX_MESSAGES wait.
        """
        link = self._links.get(to)
        if link is None:  # a member that we have no link to
            return
        models = [said for said in link.recent if isinstance(said, Model)]
        if isinstance(message, Model) and message.round > (models[-1].round if models else -1):
            link.recent = [*models[-1:], message]  # a partner may lack the last one, never the one before
        elif isinstance(message, Leaving):
            link.recent = [*models, message]
        if not link.up:
            return
        if len(link.outbox) >= OUTBOX_MESSAGES:
            link.outbox.popleft()
            self.dropped += 1
        self._queue(link, message)
        self._flush(link)

    def _queue(self, link: _Link, message: AnyMessage) -> None:
        link.outbox.append(message)
        self.bytes_sent += wire_bytes(message)

    def _flush(self, link: _Link) -> None:
        """Give the socket all that it takes; ask to be called again when it takes more."""
        while link.up and (pair := self._next(link)) is not None:
            mark, body = pair
            try:
                link.dealer.send(mark, _MORE_NOW)
                link.dealer.send(body, _NOW, copy=False)
            except zmq.Again:
                self.poller.register(link.dealer, zmq.POLLOUT)
                return
            link.waiting = None
        if link.dealer in self.poller:
            self.poller.unregister(link.dealer)

    def _next(self, link: _Link) -> Pair | None:
        while link.waiting is None:
            if link.current is None:
                if not link.outbox:
                    return None
                link.transfer += 1
                message = link.outbox.popleft()
                link.current = frames(message, link.transfer, self._bodies(message))
            link.waiting = next(link.current, None)
            if link.waiting is None:
                link.current = None
        return link.waiting

    def _bodies(self, message: AnyMessage) -> list[zmq.Frame]:
        """The chunks of `message` as frames that ZeroMQ reads where they lie; all partners share those of one model.

        Making such a frame, and hearing that ZeroMQ is done with it, costs about as much as copying 100 KiB.
        """
        if not isinstance(message, CARRIERS):
            return []
        if self._cut[0] is not message.vectors:
            self._cut = message.vectors, [zmq.Frame(chunk) for chunk in chunks(message)]
        return self._cut[1]

    @property
    def idle(self) -> bool:
        """Whether everything that can be sent has been handed to ZeroMQ."""
        return all(
            not (link.outbox or link.current or link.waiting)
            if link.up
            else link.broke or not link.heard  # who speaks to us hears our Hello, and may learn from it why we leave
            for link in self._links.values()
        )

    # --- hearing --------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int) -> list[LinkEvent]:
        """Wait at most `timeout_ms` for something to happen; return what happened."""
        events, self._late = self._late, []
        ready = dict(self.poller.poll(0 if events else timeout_ms))
        if ready.pop(self._wake_in.fileno(), None):
            self._wake_in.recv(4096)
            events.append(Woken())
        if ready.pop(self.allow.socket, None) and (caller := self.allow.answer()) is not None:
            text = f"a caller at {caller} with an unknown key was refused"
            events.append(Rejected(None, "unknown_key", text, "Is its key in endpoints.toml?"))
        if ready.pop(self.router, None):
            self._hear(events)
        for link in self._links.values():
            if link.monitor in ready:
                self._watch(link, events)
            if link.dealer in ready:
                self._flush(link)
        return events

    def _hear(self, events: list[LinkEvent]) -> None:
        for _ in range(DRAIN_FRAMES):
            try:
                connection = self.router.recv(_NOW)
            except zmq.Again:
                return
            sender: NodeId | None = None
            try:
                mark = self.router.recv(copy=False)
                if self.allow.guests and (key := self._guest(mark)):
                    self._hear_guest(key, mark, events)
                    continue
                sender = self._sender(mark, connection)
                message = self._body(sender, mark)
            except FrameError as error:
                while self._more():
                    self.router.recv_into(bytearray())
                events.append(Rejected(sender, error.reason, str(error), error.advice))
                continue
            if message is not None:
                events.append(Arrived(sender, message))
                return  # it may complete a round, whose memory is then free for the frame that comes next

    def _guest(self, mark: zmq.Frame) -> str:
        """Return the key of the guest that speaks, "" for a member: who was a guest when it called may be one now."""
        user = str(mark.get("User-Id"))
        key = user.removeprefix(GUEST)
        return key if key != user and z85.decode(key) not in self.allow.allowed else ""

    def _hear_guest(self, key: str, mark: zmq.Frame, events: list[LinkEvent]) -> None:
        """A guest may say Hello, and ask to join, in its own name; nothing else, and not often."""
        guest = self._guest_of(key)
        guest.said += 1
        if guest.said > GUEST_WORDS:
            raise FrameError("guest", "one that is no member says too much")
        if not mark.more or guest.assembler.mark(mark.bytes) is not None:
            raise FrameError("truncated", "a message of one frame")
        body = self.router.recv()
        self._check_last()
        if len(body) > GUEST_BYTES:
            raise FrameError("oversized", f"{len(body)} bytes from one that is no member")
        message = guest.assembler.header(body)
        if isinstance(message, Hello):
            guest.hello = message
        elif isinstance(message, Join) and message.entry.key == key:
            guest.asked = True
            events.append(Arrived(NOBODY, message))
        else:
            raise FrameError("guest", "one that is no member may only ask to join, in its own name")

    def _guest_of(self, key: str) -> _Guest:
        """Who speaks; a new one takes the place of the one that is here longest, of those first that asked nothing."""
        now = time.monotonic()
        self._guests = {k: guest for k, guest in self._guests.items() if now - guest.since < GUEST_SECONDS}
        if key not in self._guests:
            while len(self._guests) >= GUESTS:
                del self._guests[min(self._guests, key=lambda k: (self._guests[k].asked, self._guests[k].since))]
            self._guests[key] = _Guest(Assembler(Expected("", "", 0)), now)
        return self._guests[key]

    def _user(self, mark: zmq.Frame) -> int:
        user = str(mark.get("User-Id"))
        key = user.removeprefix(GUEST)
        return int(user) if key == user else self.allow.allowed[z85.decode(key)]

    def _sender(self, mark: zmq.Frame, connection: bytes) -> NodeId:
        try:
            sender = self._user(mark) if self.identity else int(connection)
        except (zmq.ZMQError, ValueError, TypeError, KeyError):
            raise FrameError("anonymous", "a frame of nobody") from None
        if sender not in self._assemblers:
            raise FrameError("stranger", f"a frame from node {sender}, which is no partner")
        self._links[sender].heard = True
        return sender

    def _body(self, sender: NodeId, mark: zmq.Frame) -> AnyMessage | None:
        if not mark.more:
            raise FrameError("truncated", "a message of one frame")
        assembler = self._assemblers[sender]
        target = assembler.mark(mark.bytes)
        if target is None:
            body = self.router.recv()
            self._check_last()
            message = assembler.header(body)
            if assembler.coming is not None:  # before memory is taken for its chunks
                self._has(self._links[sender], assembler.coming)
            return message
        size = self.router.recv_into(target)
        self._check_last()
        return assembler.landed(size)

    def _has(self, link: _Link, round: int) -> None:
        """The partner is in `round`: it has, or will never use, our models of the rounds before."""
        link.recent = [said for said in link.recent if not (isinstance(said, Model) and said.round < round)]

    def _check_last(self) -> None:
        if self._more():
            raise FrameError("frames", "a message of more than two frames")

    def _more(self) -> bool:
        return bool(self.router.getsockopt(zmq.RCVMORE))  # not .rcvmore: the attribute costs ten times as much

    def _watch(self, link: _Link, events: list[LinkEvent]) -> None:
        event = recv_monitor_message(link.monitor)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            link.up = True
            self._restart(link)
            events.append(LinkUp(link.node))
            self._flush(link)
        elif event == zmq.EVENT_DISCONNECTED:
            if link.up:
                link.up, link.broke = False, True
                events.append(LinkDown(link.node))
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:  # ZeroMQ tries again; a dying peer looks the same
            if not link.broke:
                text = f"peer {link.node} hung up when it was greeted; it may have another key than endpoints.toml says"
                events.append(Rejected(link.node, "hung_up", text, "Compare the keys: fedgossip keys show."))
        else:  # ZeroMQ does not try again
            text = f"peer {link.node} does not accept our key, or has not the key that endpoints.toml gives it"
            events.append(Rejected(link.node, "handshake", text, "Compare the keys: fedgossip keys show."))

    def _restart(self, link: _Link) -> None:
        """Greet, and say the last words again: a broken connection has lost some, and repeats do no harm."""
        link.outbox.clear()
        link.current = link.waiting = None
        link.outbox.append(self._hello)
        if self._join:
            link.outbox.append(self._join)
        for message in link.recent:
            self._queue(link, message)

    def close(self, drain_seconds: float = 0.0) -> None:
        """Send what can be sent within `drain_seconds`, then close everything; ZeroMQ lingers for LINGER_MS at most."""
        if self.context.closed:
            return
        until = time.monotonic() + drain_seconds
        while not self.idle and time.monotonic() < until:
            self.poll(50)
        for link in self._links.values():
            self._close(link)
        self.router.close(0)
        self.allow.socket.close(0)
        if self._signals:  # before the descriptor is closed and means another file
            signal.set_wakeup_fd(-1)
        self._wake_in.close()
        self._wake_out.close()
        self.context.term()

