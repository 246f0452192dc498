"""The links of a client: one DEALER that dials its coordinator, and a sealed stream parallel to it.

The link is up when the coordinator has answered the Hello.  A large message waits for its turn, and later ones wait
behind it (`router_sender`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import zmq

from fedgossip.base.errors import ConfigError
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import AnyMessage, Expected, Hello
from fedgossip.core.wire import Assembler
from fedgossip.net import sockets
from fedgossip.net.connections import FLOOD, Connections, Seen, flooded
from fedgossip.net.endpoints import Endpoint, Endpoints, check_address
from fedgossip.net.host_ports import ALONE, SharedParts
from fedgossip.net.identity import Identity, check_public
from fedgossip.net.links import partner_link
from fedgossip.net.links.outbox import (
    ANSWERS,
    ASK,
    GO,
    TWIN,
    Cuts,
    Outbox,
    Pair,
    check_last,
    frame_error,
    parse,
    read,
    read_sealed,
    skip,
    word,
    zmq_body,
)
from fedgossip.net.relays.reachability import Routing
from fedgossip.net.sockets import DRAIN_FRAMES, LINGER_MS, MORE_NOW, NOW, Wakeable, Waker, ZmqSocket
from fedgossip.net.streams.sealed_way import SEAL, StreamCall
from fedgossip.net.streams.sealing import SealBrokenError, WornOutError, suites_wanted
from fedgossip.net.streams.streams import Streams, hang_up_beside, take_answer
from fedgossip.net.transport import Arrived, LinkDown, LinkEvent, LinkUp, Rejected, Traffic, Woken


class ClientLinks(Wakeable):
    """The client's end.  It connects only to the coordinator, at `connect`."""

    def __init__(self, node: NodeId, identity: Identity | None, shared: SharedParts = ALONE) -> None:
        """Without `identity` nothing is encrypted: for measuring the cost of encryption; no command uses it.

        `shared`: with other clients of this process.  These offer no stream: its setup has deadlines, and a client of
        hundreds may wait that long for its turn.
        """
        self.node, self.identity = node, identity
        self.streams = Streams(identity, frozenset() if shared.context else suites_wanted())
        self._call = StreamCall(-1)
        self.address = "nobody is called yet"
        self._coordinator: NodeId | None = None
        self._hello = Hello("", "", "")
        self._expected = Expected("", "", 0)
        self._assembler = Assembler(self._expected)
        self._cuts = Cuts()
        self._outbox = Outbox(self._cuts)
        self._asked = self._turn = -1  # transfers
        self._connected = self._up = False
        self._twin = False
        """Whether another process with our key has the link."""
        self._greeting = partner_link.Greeting()
        self._late: list[LinkEvent] = []
        self.bytes_sent = self.dropped = 0
        sockets.keep_message_memory()
        self._shared = shared
        self.context: zmq.Context[ZmqSocket] = shared.context or zmq.Context(1)
        self._closed = False
        self._dealer: ZmqSocket | None = None
        self.connections = Connections(shared.participants)
        self._waker = Waker()
        self.routing = Routing(identity, self._waker.wake)
        self.poller = zmq.Poller()
        self.poller.register(self._waker.fileno(), zmq.POLLIN)
        self.poller.register(self.connections.fileno(), zmq.POLLIN)
        self.poller.register(self.streams.fileno(), zmq.POLLIN)

    @property
    def partners(self) -> tuple[NodeId, ...]:
        """The coordinator."""
        return () if self._coordinator is None else (self._coordinator,)

    @property
    def traffic(self) -> Traffic:
        """Bytes of vectors on each link, and the times of traffic."""
        return self._cuts.traffic

    def count_with(self, traffic: Traffic) -> None:
        """Count into this account, of a participant with other links too; call it before `connect`."""
        self._cuts.traffic = traffic

    def connect(self, partners: Sequence[NodeId], endpoints: Endpoints, expected: Expected, hello: Hello) -> None:
        """Connect to the coordinator, the only partner; `hello` is the first message on every connection."""
        (coordinator,) = partners
        self._hello, self._expected = hello, expected
        # another process starts at another number: the rest of a broken connection is never mistaken for new messages
        self._outbox.transfer = hello.process % 2**31
        self.meet(coordinator, endpoints[coordinator])

    def meet(self, node: NodeId, endpoint: Endpoint) -> None:
        """Call the coordinator at its current address.

        Raises ConfigError or NetworkError for an unusable address or key; nothing is changed then.
        """
        where = f"coordinator {node}"
        if self._coordinator not in (None, node):
            raise ConfigError(f"{where}: ours is {self._coordinator}", "A client has one coordinator.")
        check_address(endpoint.address, where)
        if self.identity:
            check_public(endpoint.key, where)
        self._meet_at(node, self.routing.first(node, endpoint, self._late))

    def _meet_at(self, node: NodeId, endpoint: Endpoint) -> None:
        where, key = endpoint.address, endpoint.key
        dealer = partner_link.call(self.context, self.connections, self.node, self.identity, node, where, key)
        self._hang_up()
        if self._up:
            self._broke(self._late)
        self._call = StreamCall(node, callee=key)
        self._coordinator, self.address = node, f"calls {where}"
        self._dealer = dealer
        self.poller.register(dealer, zmq.POLLIN)

    def part(self, node: NodeId) -> None:
        """Stop calling the coordinator."""
        if node == self._coordinator:
            self._hang_up()

    def _hang_up(self) -> None:
        self.streams.drop(self._call)
        if self._dealer:
            partner_link.hang_up(self.poller, self.connections, self._dealer)

    # --- speaking -------------------------------------------------------------------------------------------------

    def send(self, to: NodeId, message: AnyMessage) -> None:
        """Queue `message`; it is lost if the link is down.  Beyond OUTBOX_MESSAGES the oldest unsent one is dropped."""
        if to != self._coordinator or not self._up:
            return
        self.dropped += not self._outbox.put(message)
        self.bytes_sent += self._cuts.packed(message).size
        self.traffic.queued(to, message.payload_bytes)
        self._flush()

    def _flush(self) -> None:
        """Send all that the network accepts; register for more."""
        assert self._dealer
        while self._connected and not self._changes_over() and (pair := self._next()) is not None:
            try:
                self._dealer.send(pair[0], MORE_NOW)
                self._dealer.send(zmq_body(pair), NOW, copy=False)
            except zmq.Again:
                self.poller.register(self._dealer, zmq.POLLIN | zmq.POLLOUT)
                return
            self._call.count_sent(pair)
            self._outbox.sent()
        if self._connected:
            self.poller.register(self._dealer, zmq.POLLIN)

    def _changes_over(self) -> bool:
        """Switch to the sealed stream if one is up; return whether the stream is used."""
        call, outbox = self._call, self._outbox
        if not call.up or not (call.sends or (outbox.between and outbox)):
            return False
        try:
            while call.speak() and (pair := self._next()) is not None and call.send(pair):
                outbox.sent()
            call.flush()
            self.streams.watch(call)
        except (OSError, WornOutError):
            self._stream_ended(self._late)
        return True

    def _next(self) -> Pair | None:
        """Return the next frame; for a large message the request for its turn."""
        outbox = self._outbox
        pair = outbox.next()
        if outbox.has_control or outbox.chunks <= 1 or self._turn == outbox.transfer:
            return pair
        if self._asked == outbox.transfer:
            return None
        self._asked = outbox.transfer
        outbox.add_control(word(ASK, outbox.transfer))
        return outbox.next()

    @property
    def idle(self) -> bool:
        """Whether everything that can be sent has been handed to ZeroMQ."""
        return not (self._connected and self._outbox) and not self._call.sending

    # --- receiving ------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int) -> list[LinkEvent]:
        """Wait for at most `timeout_ms`; return the events."""
        events, self._late = self._late, []
        ready = dict(self.poller.poll(0 if events else timeout_ms))
        if self._waker.fileno() in ready:
            self._waker.clear()
            events.append(Woken())
        for node, endpoint in self.routing.moves(events):
            self._meet_at(node, endpoint)
        if self.connections.fileno() in ready:
            for seen in self.connections.take():
                self._watch(seen, events)
        if self._dealer in ready:
            self._receive(events)
            self._flush()
        if self.streams.fileno() in ready:
            self._turn_streams(events)
        self._offer_stream()
        return events

    def _receive(self, events: list[LinkEvent]) -> None:
        assert self._dealer
        for _ in range(DRAIN_FRAMES):
            try:
                mark = self._dealer.recv(NOW, copy=False)
            except zmq.Again:
                return
            try:
                self.connections.note_message(
                    mark.get(zmq.SRCFD), -1 if self._coordinator is None else self._coordinator
                )
                message = self._read_message(self._dealer, mark, events)
            except Exception as error:
                refused = frame_error(error, self._assembler)
                skip(self._dealer)
                self._count_vectors()
                events.append(Rejected(self._coordinator, refused.reason, str(refused), refused.advice))
                continue
            if message is not None:
                self._arrived(message, events)
                return

    def _read_message(self, dealer: ZmqSocket, mark: zmq.Frame, events: list[LinkEvent]) -> AnyMessage | None:
        kind, transfer = parse(mark.bytes)
        if kind == SEAL:
            text = dealer.recv() if mark.more else b""
            check_last(dealer)
            if refused := take_answer(self.streams, self._call, transfer, text, mark.get(zmq.SRCFD)):
                events.append(refused)
            return None
        self.streams.count_received(self._call)
        if kind not in ANSWERS or not mark.more:
            message = read(dealer, mark, self._assembler)
            self._count_vectors()
            return message
        dealer.recv()
        check_last(dealer)
        self._read_control(kind, transfer, events)
        return None

    def _read_control(self, kind: bytes, transfer: int, events: list[LinkEvent]) -> None:
        if kind == TWIN:
            self._twin = True
            text = "another process with our key is connected to the coordinator, and was here before"
            events.append(Rejected(self._coordinator, "twin", text, "Stop one of the two."))
        elif kind == GO and transfer == self._asked:
            self._turn = transfer

    # --- the sealed stream ------------------------------------------------------------------------------------------

    def _offer_stream(self) -> None:
        if (now := self.streams.tick()) is None or not self._up or self._coordinator is None:
            return
        if offered := self.streams.offers(self._call, now):
            self._call.relayed = bool(self.routing.relay_of(self._coordinator))
            self._outbox.add_control(offered)
            self._flush()

    def _turn_streams(self, events: list[LinkEvent]) -> None:
        for way, readable, writable in self.streams.turn():
            if way is not self._call:
                continue
            if readable:
                self._read_stream(events)
            if writable and self._call.up:
                self._flush()

    def _read_stream(self, events: list[LinkEvent]) -> None:
        call = self._call
        for _ in range(DRAIN_FRAMES):
            try:
                if call.stream is None or not call.arrived():
                    if call.stream is not None:
                        self.streams.watch(call)
                    return
                kind, transfer = parse(call.stream.mark)
                if kind in ANSWERS:
                    call.stream.open()
                    self._read_control(kind, transfer, events)
                    self._flush()
                    continue
                message = read_sealed(call.stream, self._assembler)
                self._count_vectors()
            except (OSError, EOFError, SealBrokenError) as error:
                if isinstance(error, SealBrokenError):
                    events.append(Rejected(self._coordinator, error.reason, f"coordinator: {error}", error.advice))
                self._stream_ended(events)
                return
            except Exception as error:
                refused = frame_error(error, self._assembler)
                self._count_vectors()
                events.append(Rejected(self._coordinator, refused.reason, str(refused), refused.advice))
                continue
            if message is not None:
                self._arrived(message, events)
                return

    def _stream_ended(self, events: list[LinkEvent]) -> None:
        lost = self._call.in_use
        self.streams.failed(self._call)
        if lost:
            hang_up_beside(self._call)
            self._broke(events)

    def _count_vectors(self) -> None:
        if self._coordinator is not None:
            self.traffic.note_frame(self._coordinator, more=self._assembler.under_way)

    def _arrived(self, message: AnyMessage, events: list[LinkEvent]) -> None:
        assert self._coordinator is not None
        events.append(Arrived(self._coordinator, message, self._assembler.size))
        if isinstance(message, Hello) and not self._up:
            self._up = self._greeting.reached = True
            events.append(LinkUp(self._coordinator, afresh=True))

    def _watch(self, seen: Seen, events: list[LinkEvent]) -> None:
        assert self._coordinator is not None
        event = seen.event
        if event == FLOOD:
            events.append(flooded(self._coordinator, f"coordinator {self._coordinator}"))
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            if self._call.in_use:  # the end of the previous connection was not reported
                self._broke(events)
            self._connected = True
            self.routing.linked(self._coordinator, up=True, events=[])  # nothing connects to a client, at any address
            self._assembler = Assembler(self._expected)
            self._outbox.clear()
            self._outbox.put(self._hello)
            self._flush()
        elif event == zmq.EVENT_DISCONNECTED:
            if not self._call.receives:  # otherwise unread messages may remain, up to its end
                self._broke(events)
        elif refused := self._greeting.failed(self._coordinator, event, self.routing.fault(self._coordinator)):
            events.append(refused)

    def _broke(self, events: list[LinkEvent]) -> None:
        assert self._coordinator is not None
        self.routing.linked(self._coordinator, up=False, events=events)
        self._asked = self._turn = -1
        self.streams.drop(self._call)
        self._call.offer = None
        self._outbox.clear()
        self.traffic.note_frame(self._coordinator, more=False)
        if self._up or self._twin:
            events.append(LinkDown(self._coordinator))
        self._connected = self._up = self._twin = False

    def close(self, drain_seconds: float = 0.0) -> None:
        """Send for at most `drain_seconds`, then close everything; ZeroMQ lingers for LINGER_MS at most."""
        if self._closed:
            return
        self._closed = True
        until = time.monotonic() + drain_seconds
        while not self.idle and time.monotonic() < until:
            self.poll(50)
        self.routing.close()
        self._hang_up()
        self.streams.close(LINGER_MS / 1000 if drain_seconds else 0.0)
        self.connections.close()
        self._waker.close()
        if self._shared.context is None:
            self.context.term()
