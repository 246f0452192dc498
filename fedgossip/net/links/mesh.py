"""One peer's sockets: a ROUTER that receives, a DEALER for each partner, CURVE on all; each has a parallel sealed
stream, which takes over.

One thread owns everything.  `send` never blocks: frames wait in a bounded outbox.  A message's sender follows from the
connection's key.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import zmq
from zmq.utils import z85

from fedgossip.base.errors import NetworkError
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import Account, AnyMessage, Expected, Hello, Join
from fedgossip.core.wire import Assembler, FrameError
from fedgossip.net import sockets
from fedgossip.net.connections import FLOOD, Connections, flooded
from fedgossip.net.endpoints import Endpoint, Endpoints, check_address
from fedgossip.net.identity import Identity, check_public
from fedgossip.net.links.outbox import (
    Cuts,
    Outbox,
    Pair,
    check_last,
    frame_error,
    parse,
    read,
    read_sealed,
    skip,
    zmq_body,
)
from fedgossip.net.links.partner_link import PartnerLink, call, hang_up
from fedgossip.net.relays.reachability import Routing
from fedgossip.net.sockets import (
    DRAIN_FRAMES,
    GUEST,
    GUESTS,
    LINGER_MS,
    NOW,
    AllowList,
    Wakeable,
    Waker,
    ZmqSocket,
    keep_message_memory,
    make,
)
from fedgossip.net.streams.sealed_way import SEAL, CalledStream
from fedgossip.net.streams.sealing import SealBrokenError, suites_wanted
from fedgossip.net.streams.streams import Streams, hang_up_beside, read_answer, refusal
from fedgossip.net.transport import NOBODY, Arrived, LinkDown, LinkEvent, LinkUp, ModelBegun, Rejected, Traffic, Woken

# Messages of partners on one ROUTER, and on the streams parallel to its connections: senders, and messages under way.
#
# The sender of a frame is the partner that the allow-list finds by the connection's key.  Each connection has an
# assembler; one message of a partner is under way at a time, on any of its connections.


class Incoming:
    """`allow` is the ROUTER's allow-list; None without encryption, when callers name themselves."""

    def __init__(self, allow: AllowList | None) -> None:
        self._allow = allow
        self.expected = Expected("", "", 0)
        self._by_curve: dict[NodeId, Assembler] = {}
        self._by_stream: dict[CalledStream, Assembler] = {}

    def add(self, node: NodeId) -> None:
        """Receive from a partner from now on; a message under way continues if it is a partner already."""
        self._by_curve.setdefault(node, Assembler(self.expected))

    def forget(self, node: NodeId) -> None:
        """Stop receiving from a partner."""
        self._by_curve.pop(node, None)

    def sender(self, mark: zmq.Frame, connection: bytes) -> NodeId:
        """Return the sender.  Raises FrameError if it is not a partner."""
        try:
            sender = self._user(self._allow, mark) if self._allow else int(connection)
        except (zmq.ZMQError, ValueError, TypeError, KeyError):
            raise FrameError("anonymous", "a frame without a sender") from None
        if sender not in self._by_curve:
            raise FrameError("stranger", f"a frame from node {sender}, which is no partner")
        return sender

    def _user(self, allow: AllowList, mark: zmq.Frame) -> NodeId:
        user = str(mark.get("User-Id"))
        key = user.removeprefix(GUEST)  # a caller that was a guest when it called
        return int(user) if key == user else allow.allowed[z85.decode(key)]

    def select_by_curve(self, node: NodeId) -> Assembler:
        """Return the assembler of a partner's frames."""
        return self._by_curve[node]

    def select_by_stream(self, way: CalledStream) -> Assembler:
        """Return the assembler of a stream's records."""
        return self._by_stream.setdefault(way, Assembler(self.expected))

    def drop(self, way: CalledStream) -> None:
        """Record that a stream is closed."""
        self._by_stream.pop(way, None)

    def begun(self, node: NodeId, with_: Assembler) -> None:
        """Drop a partner's other messages under way when a message begins: their connection has broken."""
        if with_.begins:
            for other in self._list_assemblers(node):
                if other is not with_:
                    other.give_up()

    def is_arriving(self, node: NodeId, round: int) -> bool:
        """Return whether a partner's vectors of `round` are arriving."""
        return any(assembler.arriving_round == round for assembler in self._list_assemblers(node))

    def _list_assemblers(self, node: NodeId) -> Iterator[Assembler]:
        yield self._by_curve[node]
        yield from (assembler for way, assembler in self._by_stream.items() if way.node == node)


# Callers with unknown keys: each may send Hello and Join, in its own name, at a low rate.


GUEST_MESSAGES, GUEST_BYTES = 32, 2048
"""Maximum number of messages of a guest, and bytes of each: a Hello and an entry."""

GUEST_SECONDS = 60.0
"""Seconds before a guest is forgotten and its limits start again."""


@dataclass(slots=True)
class GuestCaller:
    """A caller with an unknown key."""

    assembler: Assembler
    since: float
    hello: Hello | None = None
    asked: bool = False
    messages: int = 0


class Guests:
    """The guests of one ROUTER; `allow` is its allow-list, `reply` sends a control frame on one of its connections."""

    def __init__(self, allow: AllowList, reply: Callable[[bytes, Pair], None]) -> None:
        self._allow, self._reply = allow, reply
        self.known: dict[str, GuestCaller] = {}
        """Guests by key."""

    def key_of(self, mark: zmq.Frame) -> str:
        """Return the key of the sending guest; "" for a member, which may have been a guest when it called."""
        if not self._allow.guests:
            return ""
        user = str(mark.get("User-Id"))
        key = user.removeprefix(GUEST)
        return key if key != user and z85.decode(key) not in self._allow.allowed else ""

    def read(self, key: str, router: ZmqSocket, connection: bytes, mark: zmq.Frame) -> Join | None:
        """Read a guest's message; return it if it is a Join.  Raises FrameError for messages other than Hello
        and Join.
        """
        guest = self._guest_of(key)
        guest.messages += 1
        if guest.messages > GUEST_MESSAGES:
            raise FrameError("guest", "a machine that is no member sends too much")
        if mark.bytes[:1] == SEAL:  # it may offer again as a member
            skip(router)
            self._reply(connection, refusal(parse(mark.bytes)[1]))
            return None
        if not mark.more or guest.assembler.mark(mark.bytes) is not None:
            raise FrameError("truncated", "a message of one frame")
        body = router.recv()
        check_last(router)
        if len(body) > GUEST_BYTES:
            raise FrameError("oversized", f"{len(body)} bytes from one that is no member")
        message = guest.assembler.header(body)
        if isinstance(message, Hello):
            guest.hello = message
            return None
        if isinstance(message, Join) and message.entry.key == key:
            guest.asked = True
            return message
        raise FrameError("guest", "one that is no member may only ask to join, in its own name")

    def admitted(self, key: str) -> Hello | None:
        """Remove a guest that was admitted; return its Hello, if received."""
        guest = self.known.pop(key, None)
        return guest.hello if guest else None

    def _guest_of(self, key: str) -> GuestCaller:
        now = time.monotonic()
        self.known = {k: guest for k, guest in self.known.items() if now - guest.since < GUEST_SECONDS}
        if key not in self.known:
            while len(self.known) >= GUESTS:
                del self.known[min(self.known, key=lambda k: (self.known[k].asked, self.known[k].since))]
            self.known[key] = GuestCaller(Assembler(None), now)
        return self.known[key]


class Links(Wakeable):
    """Sockets of one peer.  Bind first (`address` then has the real port); `connect` when all addresses are known."""

    def __init__(self, node: NodeId, bind: str, identity: Identity | None) -> None:
        """Without `identity` nothing is encrypted: for measuring the cost of encryption; no command uses it."""
        suites = suites_wanted()
        self.node, self.identity = node, identity
        self._links: dict[NodeId, PartnerLink] = {}
        self._hello = Hello("", "", "")
        self._join: Join | None = None
        self._late: list[LinkEvent] = []
        self._cuts = Cuts()
        self.bytes_sent = self.dropped = 0
        keep_message_memory()
        self.context: zmq.Context[ZmqSocket] = zmq.Context(1)
        self.context.set(zmq.MAX_SOCKETS, 8192)
        self.poller = zmq.Poller()
        self.allow = AllowList(self.context)
        self.poller.register(self.allow.socket, zmq.POLLIN)
        self._waker = Waker()
        self.poller.register(self._waker.fileno(), zmq.POLLIN)
        self.routing = Routing(identity, self._waker.wake)
        self.connections = Connections()
        self.poller.register(self.connections.fileno(), zmq.POLLIN)
        self.streams = Streams(identity, suites)
        self.incoming = Incoming(self.allow if identity else None)
        self.router = make(self.context, zmq.ROUTER)
        self.guests = Guests(self.allow, self._reply)
        self.connections.follow(self.router)
        try:
            self.address = sockets.bind(self.router, bind, identity)
        except NetworkError:
            self.close()
            raise
        self.streams.listen(self.address, bind)
        self.poller.register(self.router, zmq.POLLIN)
        self.poller.register(self.streams.fileno(), zmq.POLLIN)

    @property
    def partners(self) -> tuple[NodeId, ...]:
        """The partners of this peer."""
        return tuple(self._links)

    @property
    def traffic(self) -> Traffic:
        """Bytes of vectors on each link, and the times of traffic."""
        return self._cuts.traffic

    def connect(self, partners: Sequence[NodeId], endpoints: Endpoints, expected: Expected, hello: Hello) -> None:
        """Allow the partners' keys, and connect to each of them; `hello` is the first message on every connection."""
        self._hello, self.incoming.expected = hello, expected
        for node in partners:
            self.meet(node, endpoints[node])

    def admit_guests(self, join: Join | None) -> None:
        """Let callers with unknown keys request membership; send `join` on every link to request the same."""
        self.allow.guests, self._join = True, join

    def meet(self, node: NodeId, endpoint: Endpoint) -> None:
        """Allow the key of `node`, and call it at its current address.

        Raises ConfigError or NetworkError for an unusable address or key; nothing is changed then.
        """
        where = f"peer {node}"
        check_address(endpoint.address, where)
        if self.identity:
            check_public(endpoint.key, where)
        self._meet_at(node, self.routing.first(node, endpoint, self._late))

    def _meet_at(self, node: NodeId, endpoint: Endpoint) -> None:
        known = self._links.get(node)
        link = self._call(node, endpoint)
        if known is not None:
            self._close(known)
            if known.up:
                self._late.append(LinkDown(node))
            link.takes_over(known)
        if self.identity:
            self.allow.allow({endpoint.key: node})
        self._links[node] = link
        self.incoming.add(node)
        self.connections.expected = len(self._links)
        if hello := self.guests.admitted(endpoint.key):  # the node sent its Hello before its admission
            self._late.append(Arrived(node, hello))

    def part(self, node: NodeId) -> None:
        """Disconnect from `node`, and forget its key: it is a stranger from now on."""
        link = self._links.pop(node, None)
        self.allow.forget(node)
        self.routing.forget(node)
        for called in self.streams.list_called(node):
            self._drop(called)
        self.incoming.forget(node)
        self.traffic.note_frame(node, more=False)
        if link is not None:
            self._close(link)

    def _call(self, node: NodeId, endpoint: Endpoint) -> PartnerLink:
        where, key = endpoint.address, endpoint.key
        dealer = call(self.context, self.connections, self.node, self.identity, node, where, key)
        return PartnerLink(node, dealer, Outbox(self._cuts), key, self.poller, self.streams)

    def _close(self, link: PartnerLink) -> None:
        self.streams.drop(link.call)
        hang_up(self.poller, self.connections, link.dealer)

    # --- sending --------------------------------------------------------------------------------------------------

    def send(self, to: NodeId, message: AnyMessage) -> None:
        """Queue `message`.

        Without a link synchronous gossip's last messages wait; others are lost, and requested again.  Vectors that wait
        or are under way are not queued or requested twice.  Beyond OUTBOX_MESSAGES the oldest unsent message is
        dropped.
        """
        link = self._links.get(to)
        if link is None:  # the node is a member without a link
            return
        link.remember(message)
        if not link.up or link.outbox.holds(message) or self._is_answered(to, message):
            return
        self._queue(link, message)
        self._flush(link)

    def _is_answered(self, to: NodeId, message: AnyMessage) -> bool:
        return isinstance(message, Account) and message.asks and self.incoming.is_arriving(to, message.round)

    def _queue(self, link: PartnerLink, message: AnyMessage) -> None:
        self.dropped += not link.outbox.put(message)
        self.bytes_sent += self._cuts.packed(message).size
        self.traffic.queued(link.node, message.payload_bytes)

    def _flush(self, link: PartnerLink) -> None:
        if not link.flush():
            self._broke(link, self._late)

    @property
    def idle(self) -> bool:
        """Whether everything that can be sent has been handed to the network."""
        return all(link.idle for link in self._links.values())

    # --- receiving ------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int) -> list[LinkEvent]:
        """Wait at most `timeout_ms` for events; return them."""
        events, self._late = self._late, []
        ready = dict(self.poller.poll(0 if events else timeout_ms))
        if ready.pop(self._waker.fileno(), None):
            self._waker.clear()
            events.append(Woken())
        for node, endpoint in self.routing.moves(events):
            self._meet_at(node, endpoint)
        if ready.pop(self.connections.fileno(), None) or self.allow.socket in ready:  # watched before they may send
            self._look(events)
        if ready.pop(self.allow.socket, None) and (caller := self.allow.answer()) is not None:
            text = f"a caller at {caller} with an unknown key was refused"
            events.append(Rejected(None, "unknown_key", text, "Is its key in endpoints.toml?"))
        if ready.pop(self.router, None):
            self._receive(events)
        if ready.pop(self.streams.fileno(), None):
            self._turn_streams(events)
        for link in self._links.values():
            if mask := ready.get(link.dealer):
                if mask & zmq.POLLIN:
                    events += read_answer(self.streams, link.call, link.dealer)
                self._flush(link)
        self._offer_streams()
        return events

    def _receive(self, events: list[LinkEvent]) -> None:
        for _ in range(DRAIN_FRAMES):
            try:
                connection = self.router.recv(NOW)
            except zmq.Again:
                return
            sender: NodeId | None = None
            try:
                mark = self.router.recv(copy=False)
                if key := self.guests.key_of(mark):
                    if join := self.guests.read(key, self.router, connection, mark):
                        events.append(Arrived(NOBODY, join))
                    continue
                sender = self._sender(mark, connection)
                if mark.bytes[:1] == SEAL:
                    self._answer(sender, connection, mark, events)
                    continue
                self.streams.count_curve_message(sender, connection)
                message = self._body(sender, mark)
            except Exception as error:
                refused = frame_error(error, None if sender is None else self.incoming.select_by_curve(sender))
                skip(self.router)
                if sender is not None:
                    self.traffic.note_frame(sender, more=self.incoming.select_by_curve(sender).under_way)
                events.append(Rejected(sender, refused.reason, str(refused), refused.advice))
                continue
            if self._arrived(sender, message, self.incoming.select_by_curve(sender), events):
                return

    # --- sealed streams ---------------------------------------------------------------------------------------------

    def _offer_streams(self) -> None:
        if (now := self.streams.tick()) is None:
            return
        for link in self._links.values():
            self._offer_stream(link, now)

    def _offer_stream(self, link: PartnerLink, now: float) -> None:
        if link.offer_stream(now, relayed=bool(self.routing.relay_of(link.node))):
            self._flush(link)

    def _answer(self, sender: NodeId, connection: bytes, mark: zmq.Frame, events: list[LinkEvent]) -> None:
        number, body = parse(mark.bytes)[1], self.router.recv() if mark.more else b""
        check_last(self.router)
        key = next((z85.encode(key).decode() for key, node in self.allow.allowed.items() if node == sender), "")
        try:
            word = self.streams.answer(sender, connection, key, number, body)
        except FrameError as error:
            word = refusal(number)
            events.append(Rejected(sender, error.reason, f"peer {sender} offers {error}", error.advice))
        self._reply(connection, word)

    def _reply(self, connection: bytes, word: Pair) -> None:
        with contextlib.suppress(zmq.Again):
            self.router.send_multipart([connection, word[0], zmq_body(word)], NOW)

    def _turn_streams(self, events: list[LinkEvent]) -> None:
        for way, readable, writable in self.streams.turn():
            if isinstance(way, CalledStream):
                if self._read_stream(way, events):
                    return
            elif (link := self._links.get(way.node)) is not None and link.call is way:
                self._turn_call(link, events, readable=readable, writable=writable)

    def _turn_call(self, link: PartnerLink, events: list[LinkEvent], *, readable: bool, writable: bool) -> None:
        """Handle events at the calling end of a stream."""
        try:
            if readable and link.call.arrived():
                raise EOFError
        except (OSError, EOFError, FrameError):
            self._broke(link, events)
        if writable and link.call.up:
            self._flush(link)

    def _read_stream(self, way: CalledStream, events: list[LinkEvent]) -> bool:
        assembler = self.incoming.select_by_stream(way)
        for _ in range(DRAIN_FRAMES):
            try:
                if way.stream is None or not way.arrived():
                    if way.stream:
                        self.streams.watch(way)
                    break
                message = read_sealed(way.stream, assembler)
            except (OSError, EOFError, SealBrokenError) as error:
                if isinstance(error, SealBrokenError):
                    events.append(Rejected(way.node, error.reason, f"peer {way.node}: {error}", error.advice))
                self._drop(way)
                break
            except Exception as error:
                refused = frame_error(error, assembler)
                events.append(Rejected(way.node, refused.reason, str(refused), refused.advice))
                continue
            if message is not None or assembler.begins:  # the chunks in between need no event
                self._note_received(way.node, assembler)
                if self._arrived(way.node, message, assembler, events):
                    return True
        return False

    @staticmethod
    def _arrived(sender: NodeId, message: AnyMessage | None, assembler: Assembler, events: list[LinkEvent]) -> bool:
        """Append an event for a complete message, or a large one's header; return whether one was appended."""
        if message is not None:
            events.append(Arrived(sender, message, assembler.size))
        elif account := assembler.account:
            events.append(ModelBegun(sender, account))
        else:
            return False
        return True

    def _drop(self, way: CalledStream) -> None:
        self.incoming.drop(way)
        self.streams.drop(way)
        self.traffic.note_frame(way.node, more=False)

    def _sender(self, mark: zmq.Frame, connection: bytes) -> NodeId:
        sender = self.incoming.sender(mark, connection)
        self._links[sender].received_any = True
        self.connections.note_message(mark.get(zmq.SRCFD), sender)
        return sender

    def _body(self, sender: NodeId, mark: zmq.Frame) -> AnyMessage | None:
        assembler = self.incoming.select_by_curve(sender)
        message = read(self.router, mark, assembler)
        self._note_received(sender, assembler)
        return message

    def _note_received(self, sender: NodeId, assembler: Assembler) -> None:
        self.incoming.begun(sender, assembler)
        self.traffic.note_frame(sender, more=assembler.under_way)
        if assembler.arriving_round is not None:  # this is checked before memory is allocated for its chunks
            self._links[sender].has(assembler.arriving_round)

    def _look(self, events: list[LinkEvent]) -> None:
        links = {link.dealer: link for link in self._links.values()}
        for seen in self.connections.take():
            if seen.event == FLOOD:
                node = links[seen.socket].node if seen.socket in links else seen.node
                events.append(flooded(node, "a caller that is no partner" if node is None else f"peer {node}"))
            elif seen.socket in links:
                self._watch(links[seen.socket], seen.event, events)

    def _watch(self, link: PartnerLink, event: int, events: list[LinkEvent]) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            link.up = True
            self._restart(link)
            events.append(LinkUp(link.node))
            self.routing.linked(link.node, up=True, events=events)
            self._flush(link)
        elif event == zmq.EVENT_DISCONNECTED:
            if link.up:
                self._down(link, events)
        elif refused := link.greeting.failed(link.node, event, self.routing.fault(link.node)):
            events.append(refused)

    def _down(self, link: PartnerLink, events: list[LinkEvent]) -> None:
        self.streams.drop(link.call)
        link.up, link.broke, link.greeting.reached = False, True, True
        self.traffic.note_frame(link.node, more=False)  # the message under way is no longer needed, or arrives again
        events.append(LinkDown(link.node))
        self.routing.linked(link.node, up=False, events=events)

    def _broke(self, link: PartnerLink, events: list[LinkEvent]) -> None:
        """Handle a broken link: its message under way is lost; greet again."""
        lost = link.call.sends
        self.streams.failed(link.call)
        if lost and link.up:
            hang_up_beside(link.call)
            self._down(link, events)

    def _restart(self, link: PartnerLink) -> None:
        """Greet, and repeat the last messages: some may be lost."""
        link.outbox.clear()
        link.outbox.put(self._hello)
        if self._join:
            link.outbox.put(self._join)
        self.streams.drop(link.call)
        link.call.offer = None
        self._offer_stream(link, time.monotonic())
        for message in link.recent:
            self._queue(link, message)

    def close(self, drain_seconds: float = 0.0) -> None:
        """Send for at most `drain_seconds`, then close everything; ZeroMQ lingers for LINGER_MS at most."""
        if self.context.closed:
            return
        until = time.monotonic() + drain_seconds
        while not self.idle and time.monotonic() < until:
            self.poll(50)
        self.routing.close()
        for link in self._links.values():
            self._close(link)
        self.streams.close(LINGER_MS / 1000 if drain_seconds else 0.0)
        self.connections.close()
        self.router.close(0)
        self.allow.socket.close(0)
        self._waker.close()
        self.context.term()
