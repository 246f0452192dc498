"""The coordinator's end of links that only its clients open, and the links of a leaf coordinator, which has both ends.

One ROUTER receives and sends; each of its connections has a parallel sealed stream, which takes over once it is up.  A
client's first message on a connection is its Hello, answered by the coordinator's.

    same process, or a later life of it, on a new connection      the old one is closed
    another process with the key of a present client              waits until that one is gone

`send` never blocks, and large messages arrive by turns (`router_sender`).  A leaf coordinator has this end towards its
clients and a client's end towards its own coordinator, with the same key in one thread.  `poll` waits at the clients'
end in slices, and checks the other end between them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import zmq

from fedgossip.base.errors import NetworkError
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import AnyMessage, Expected, Hello
from fedgossip.core.wire import Assembler, FrameError
from fedgossip.net import sockets
from fedgossip.net.connections import Callers, Connections, check_clients, flooded
from fedgossip.net.endpoints import Endpoint, Endpoints
from fedgossip.net.hub import router_sender
from fedgossip.net.hub.client import ClientLinks
from fedgossip.net.hub.router_sender import ClientLine, FairSender, Turns
from fedgossip.net.identity import Identity, check_public
from fedgossip.net.links import outbox
from fedgossip.net.links.outbox import CHUNK, Cuts, Outbox, check_last, frame_error, read, read_sealed, skip
from fedgossip.net.relays.reachability import Ways
from fedgossip.net.sockets import DRAIN_FRAMES, LINGER_MS, NOW, AllowList, Wakeable, Waker, ZmqSocket
from fedgossip.net.streams.sealed_way import SEAL, CalledStream
from fedgossip.net.streams.sealing import SealBrokenError, suites_wanted
from fedgossip.net.streams.streams import Streams, refusal
from fedgossip.net.transport import Arrived, LinkDown, LinkEvent, LinkUp, Rejected, Traffic, Woken

PROBE_SECONDS = 2.0
"""Seconds between two empty frames to an otherwise silent client; a dead network is detected SILENCE_MS later."""


class CoordinatorLinks(Wakeable):
    """The coordinator's end.  Bind first (`address` then has the real port); `connect` when the clients' keys are
    known.
    """

    def __init__(
        self, node: NodeId, bind: str, identity: Identity | None, turns_at_once: int = router_sender.TURNS
    ) -> None:
        """Without `identity` nothing is encrypted: for measuring the cost of encryption; no command uses it."""
        suites = suites_wanted()
        self.node, self.identity, self._at_once = node, identity, turns_at_once
        self._clients: dict[NodeId, ConnectedClient] = {}
        self._hello = Hello("", "", "")
        self._expected = Expected("", "", 0)
        self.turns, self._listening = router_sender.Turns(turns_at_once), router_sender.ListeningClock()
        self._late: list[LinkEvent] = []
        self._probed = 0.0
        self._cuts = Cuts()
        self.bytes_sent = self.dropped = 0
        sockets.keep_message_memory()
        self.context: zmq.Context[ZmqSocket] = zmq.Context(1)
        self.allow = AllowList(self.context)
        self.router = sockets.make(self.context, zmq.ROUTER)
        self.router.router_handover = identity is None  # clients name themselves then, also on the next connection
        self.streams = Streams(identity, suites)
        self._speaker = FairSender(self.router, self.streams)
        self.connections = Connections()
        self.connections.follow(self.router)
        self._callers = Callers(self.connections)
        self._waker = Waker()
        try:
            self.address = self._callers.address = sockets.bind(self.router, bind, identity)
        except NetworkError:
            self.close()
            raise
        self.streams.listen(self.address, bind)
        self.poller = zmq.Poller()
        sources = self.allow.socket, self.connections.fileno(), self._waker.fileno(), self.router, self.streams.fileno()
        for source in sources:
            self.poller.register(source, zmq.POLLIN)

    @property
    def partners(self) -> tuple[NodeId, ...]:
        """The clients."""
        return tuple(self._clients)

    @property
    def traffic(self) -> Traffic:
        """Bytes of vectors on each link, and the times of traffic."""
        return self._cuts.traffic

    def connect(self, partners: Sequence[NodeId], endpoints: Endpoints, expected: Expected, hello: Hello) -> None:
        """Admit the clients with these keys, at any address; `hello` is the reply to theirs.

        Raises ConfigError for an invalid key, NetworkError if the system allows too few connections.
        """
        check_clients(len(partners))
        self._hello, self._expected = hello, expected
        self.turns = router_sender.Turns(self._at_once, expected.payload_bytes)
        for node in partners:
            self.meet(node, endpoints[node])

    def meet(self, node: NodeId, endpoint: Endpoint) -> None:
        """Admit one more client.  Raises ConfigError for an invalid key; nothing is changed then."""
        if self.identity:
            check_public(endpoint.key, f"client {node}")
            self.allow.allow({endpoint.key: node})
        # numbered from a different start per process: the rest of a broken connection is never mistaken for new
        # messages
        first = self._hello.process % 2**31
        line = ClientLine(node, Outbox(self._cuts, first))
        self._clients.setdefault(node, ConnectedClient(node, line, Assembler(self._expected), key=endpoint.key))
        self._callers.expected = self.connections.expected = len(self._clients)

    def part(self, node: NodeId) -> None:
        """Refuse the key of one client from now on; its connection ends."""
        self.allow.forget(node)
        if client := self._clients.get(node):
            self.streams.forget(node)
            client.line.way = None

    # --- speaking -------------------------------------------------------------------------------------------------

    def send(self, to: NodeId, message: AnyMessage) -> None:
        """Queue `message`; it is lost if the link is down.  Beyond OUTBOX_MESSAGES the oldest unsent one is dropped."""
        client = self._clients.get(to)
        if client is None or not client.up:
            return
        self.dropped += self._speaker.put(client.line, message)
        self.bytes_sent += self._cuts.packed(message).size
        self.traffic.queued(to, message.payload_bytes)

    @property
    def idle(self) -> bool:
        """Whether everything that can be sent has been handed to ZeroMQ."""
        return self._speaker.idle

    @property
    def _anybody_up(self) -> bool:
        return any(client.up for client in self._clients.values())

    # --- receiving ------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int) -> list[LinkEvent]:
        """Wait at most `timeout_ms` for events; return them."""
        self._probe()
        self._speaker.speak()
        for line in self._speaker.take_gone():
            self._lost(self._clients[line.node], self._late)
        rest_ms = 0 if self._late else self._speaker.compute_rest_ms(timeout_ms)
        if self.turns.waiting:
            rest_ms = min(rest_ms, int(1000 * router_sender.QUIET_SECONDS))
        self._listening.back(time.monotonic())
        ready = dict(self.poller.poll(rest_ms))
        events, self._late = self._late, []
        if self._waker.fileno() in ready:
            self._waker.clear()
            events.append(Woken())
        if self.connections.fileno() in ready or self.allow.socket in ready:  # watched before they may send
            self._look(events)
        if self.allow.socket in ready and (caller := self.allow.answer()) is not None:
            text = f"a caller at {caller} with an unknown key was refused"
            events.append(Rejected(None, "unknown_key", text, "Is its key in the list of clients?"))
        if self.router in ready:
            self._receive(events)
        all_read = self.router not in ready
        if self.streams.fileno() in ready and not self._turn_streams(events):
            all_read = False
        self.streams.tick()
        self._take_turns(events, all_read=all_read)
        self._listening.leave(time.monotonic())
        return events

    def _receive(self, events: list[LinkEvent]) -> None:
        for _ in range(DRAIN_FRAMES):
            try:
                name = self.router.recv(NOW)
            except zmq.Again:
                return
            sender: NodeId | None = None
            try:
                mark = self.router.recv(copy=False)
                sender = self._sender(mark, name)
                message = self._read_message(self._clients[sender], name, mark, events)
            except Exception as error:
                refused = frame_error(error, None if sender is None else self._clients[sender].assembler)
                skip(self.router)
                if sender is not None:
                    self.traffic.note_frame(sender, more=self._clients[sender].assembler.under_way)
                events.append(Rejected(sender, refused.reason, str(refused), refused.advice))
                continue
            if message is not None:
                events.append(Arrived(sender, message, self._clients[sender].assembler.size))
                return  # the message may complete a round, whose memory is then free for the next frame

    def _sender(self, mark: zmq.Frame, name: bytes) -> NodeId:
        try:
            sender = int(str(mark.get("User-Id")) if self.identity else name)
        except (zmq.ZMQError, ValueError, TypeError):
            raise FrameError("anonymous", "a frame without a sender") from None
        if sender not in self._clients:
            raise FrameError("stranger", f"a frame from node {sender}, which is no client")
        self.connections.note_message(mark.get(zmq.SRCFD), sender)
        return sender

    def _read_message(
        self, client: ConnectedClient, name: bytes, mark: zmq.Frame, events: list[LinkEvent]
    ) -> AnyMessage | None:
        """Read one ZeroMQ message; return the message of a greeted client if it is complete."""
        kind, transfer = outbox.parse(mark.bytes)
        known = client.is_on(name)
        if kind == SEAL:
            self._answer(client, name, mark, transfer, events, known=known)
            return None
        self.streams.count_curve_message(client.node, name)
        if known and kind == outbox.ASK and mark.more:
            self.router.recv()
            check_last(self.router)
            self.turns.ask(client.node, transfer)
            return None
        if known and kind == outbox.CHUNK and not client.up:  # the rest of a message on a broken connection
            skip(self.router)
            return None
        message = read(self.router, mark, client.assembler if known else Assembler(None))
        self.traffic.note_frame(client.node, more=client.assembler.under_way)
        if isinstance(message, Hello) and not (known and client.is_here(mark.get(zmq.SRCFD))):
            self._greeted(client, ClientConnection(name, mark.get(zmq.SRCFD), message), events)
            return None
        if not known:
            raise FrameError("ungreeted", f"client {client.node} speaks without a greeting")
        client.account(self.turns, kind, transfer, message, self._listening.convert(time.monotonic()))
        return message

    # --- sealed streams ---------------------------------------------------------------------------------------------

    def _answer(
        self,
        client: ConnectedClient,
        name: bytes,
        mark: zmq.Frame,
        number: int,
        events: list[LinkEvent],
        *,
        known: bool,
    ) -> None:
        body = self.router.recv() if mark.more else b""
        check_last(self.router)
        word = refusal(number)
        if known and not (client.line.way and client.line.way.in_use):
            try:
                word = self.streams.answer(client.node, name, client.key, number, body)
            except FrameError as error:
                text = f"client {client.node} offers {error}"
                events.append(Rejected(client.node, error.reason, text, error.advice))
        if known:
            self._speaker.send_control(client.line, word)

    def _turn_streams(self, events: list[LinkEvent]) -> bool:
        """Receive and send by streams; return whether everything was read."""
        for way, readable, writable in self.streams.turn():
            client = self._clients[way.node]
            if not isinstance(way, CalledStream) or not client.is_on(way.connection):
                self.streams.drop(way)  # of a closed connection
                continue
            if client.line.way is not way:
                self._drop_stream(client)
                client.line.way = way
            if writable:
                self._go_on(client, events)
            if readable and client.line.way is way and self._read_stream(client, way, events):
                return False
        return True

    def _go_on(self, client: ConnectedClient, events: list[LinkEvent]) -> None:
        try:
            self._speaker.resume(client.line)
        except OSError:
            self._lost(client, events)

    def _read_stream(self, client: ConnectedClient, way: CalledStream, events: list[LinkEvent]) -> bool:
        for _ in range(DRAIN_FRAMES):
            try:
                if way.stream is None or not way.arrived():
                    if way.stream is not None:
                        self.streams.watch(way)
                    return False
                kind, transfer = outbox.parse(way.stream.mark)
                if kind == outbox.ASK:
                    way.stream.open()
                    self.turns.ask(client.node, transfer)
                    continue
                message = read_sealed(way.stream, client.assembler)
                self.traffic.note_frame(client.node, more=client.assembler.under_way)
                client.account(self.turns, kind, transfer, message, self._listening.convert(time.monotonic()))
            except (OSError, EOFError, SealBrokenError) as error:
                if isinstance(error, SealBrokenError):
                    events.append(Rejected(client.node, error.reason, f"client {client.node}: {error}", error.advice))
                self._stream_ended(client, events)
                return False
            except Exception as error:
                refused = frame_error(error, client.assembler)
                self.traffic.note_frame(client.node, more=client.assembler.under_way)
                events.append(Rejected(client.node, refused.reason, str(refused), refused.advice))
                continue
            if message is not None:
                events.append(Arrived(client.node, message, client.assembler.size))
                return True
        return True

    def _stream_ended(self, client: ConnectedClient, events: list[LinkEvent]) -> None:
        in_use = client.line.way is not None and client.line.way.in_use
        self._drop_stream(client)
        if in_use and client.up and client.here:
            if client.here.descriptor >= 0:
                self._callers.hang_up(client.here.descriptor)
            self._lost(client, events)

    def _drop_stream(self, client: ConnectedClient) -> None:
        for way in self.streams.list_called(client.node):
            if way is client.line.way:
                self.streams.drop(way)
        client.line.way = None

    def _take_turns(self, events: list[LinkEvent], *, all_read: bool) -> None:
        now = self._listening.convert(time.monotonic())
        for node in self.turns.stalled(now) if all_read else ():
            self.turns.forget(node)
            self._clients[node].assembler.give_up()
            self.traffic.note_frame(node, more=False)
            events.append(Rejected(node, "stalled", f"client {node} went silent in the middle of a message"))
        for node, transfer in self.turns.next(now, all_read=all_read):
            self._speaker.send_control(self._clients[node].line, outbox.word(outbox.GO, transfer))

    def _probe(self) -> None:
        """Send an empty frame to otherwise silent lines."""
        if (now := time.monotonic()) - self._probed < PROBE_SECONDS:
            return
        self._probed = now
        for client in self._clients.values():
            if client.up and not client.line.outbox:
                self._speaker.send_control(client.line, outbox.word(outbox.NOTHING))

    # --- presence of clients --------------------------------------------------------------------------------------

    def _greeted(self, client: ConnectedClient, connection: ClientConnection, events: list[LinkEvent]) -> None:
        self._look(events)  # another connection may have had the descriptor before
        if not self._callers.introduce(connection.descriptor, client.node):
            return
        if client.up and client.here and not client.here.is_followed_by(connection.hello):
            if client.next and client.next.descriptor != connection.descriptor:
                self._callers.hang_up(client.next.descriptor)
            client.next = connection
            events.append(Arrived(client.node, connection.hello))  # the host detects the second process
            self._speaker.send_control_to(connection.name, outbox.word(outbox.TWIN))
            return
        if client.up and client.here:
            if client.here.descriptor >= 0:
                self._callers.hang_up(client.here.descriptor)
            self._down(client, events)
        self._welcome(client, connection, events)

    def _welcome(self, client: ConnectedClient, connection: ClientConnection, events: list[LinkEvent]) -> None:
        client.here, client.up = connection, True
        client.line.name = connection.name
        self._speaker.put(client.line, self._hello)
        events += [Arrived(client.node, connection.hello), LinkUp(client.node, afresh=True)]

    def _look(self, events: list[LinkEvent]) -> None:
        for descriptor, node in self._callers.look():
            client = self._clients[node]
            if client.next and client.next.descriptor == descriptor:
                client.next = None
            elif client.up and client.here and client.here.descriptor == descriptor:
                if client.line.way is not None and client.line.way.receives:  # unread messages may remain
                    client.here = replace(client.here, descriptor=-1)
                else:
                    self._lost(client, events)
        for seen in self._callers.flooded:
            who = "a caller that has sent nothing" if seen.node is None else f"client {seen.node}"
            events.append(flooded(seen.node, who))
        self._callers.flooded.clear()

    def _lost(self, client: ConnectedClient, events: list[LinkEvent]) -> None:
        self._down(client, events)
        if client.next:
            connection, client.next = client.next, None
            self._welcome(client, connection, events)

    def _down(self, client: ConnectedClient, events: list[LinkEvent]) -> None:
        client.up = False
        self._speaker.clear(client.line)
        self._drop_stream(client)
        self.turns.forget(client.node)
        client.assembler.give_up()
        self.traffic.note_frame(client.node, more=False)
        events.append(LinkDown(client.node))

    def close(self, drain_seconds: float = 0.0) -> None:
        """Send for at most `drain_seconds`, then close everything (LINGER_MS at most).

        It receives until the clients have closed: with unread frames here TCP would revoke data that they have not
        read.
        """
        if self.context.closed:
            return
        until = time.monotonic() + drain_seconds
        while not (self.idle and not self._anybody_up) and time.monotonic() < until:
            self.poll(50)
        self.streams.close(LINGER_MS / 1000 if drain_seconds else 0.0)
        self.connections.close()
        self.router.close(LINGER_MS)
        self.allow.socket.close(0)
        self._waker.close()
        self.context.term()


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """A client's connection: the ROUTER's name of it, its descriptor, and its Hello."""

    name: bytes
    descriptor: int
    hello: Hello

    def is_followed_by(self, hello: Hello) -> bool:
        """Return whether this Hello is from the same process, or from a later incarnation that replaces it."""
        return hello.process == self.hello.process or hello.incarnation > self.hello.incarnation


@dataclass(slots=True)
class ConnectedClient:
    """`line`: its outgoing messages; `assembler`: its incoming ones; `up`: whether messages are sent to it."""

    node: NodeId
    line: ClientLine
    assembler: Assembler
    here: ClientConnection | None = None
    next: ClientConnection | None = None
    """Waiting connection of another process with the same key."""
    up: bool = False
    key: str = ""

    def is_on(self, name: bytes) -> bool:
        """Return whether the client has greeted on the connection of this name."""
        return self.here is not None and name == self.here.name

    def is_here(self, descriptor: int) -> bool:
        """Return whether this is the client's own connection, not another with the same name."""
        return self.up and self.here is not None and descriptor == self.here.descriptor

    def account(self, turns: Turns, kind: bytes, transfer: int, message: AnyMessage | None, now: float) -> None:
        """Record turns.  Raises FrameError for a vector out of turn, before memory is allocated for it."""
        if message is not None:
            turns.forget(self.node)
        elif kind == CHUNK:
            turns.moved(self.node, now)
        elif self.assembler.missing_chunks > 1 and not turns.has(self.node, transfer):
            self.assembler.give_up()
            raise FrameError("unasked", "a large message whose turn it is not")


SLICE_MS = 10
"""Maximum milliseconds between two checks of the upper link, the delay of its messages; rounds take seconds."""


class TierLinks:
    """A `Transport`.  Bind first, as for `CoordinatorLinks`; `above` is this coordinator's own coordinator."""

    def __init__(self, node: NodeId, above: NodeId, bind: str, identity: Identity | None) -> None:
        self.node, self.above = node, above
        self._down = CoordinatorLinks(node, bind, identity)
        self._up = ClientLinks(node, identity)
        self._up.count_with(self._down.traffic)

    @property
    def address(self) -> str:
        return self._down.address

    @property
    def partners(self) -> tuple[NodeId, ...]:
        return (*self._down.partners, *self._up.partners)

    @property
    def bytes_sent(self) -> int:
        return self._down.bytes_sent + self._up.bytes_sent

    @property
    def dropped(self) -> int:
        return self._down.dropped + self._up.dropped

    @property
    def traffic(self) -> Traffic:
        """Bytes of vectors on each link of both ends."""
        return self._down.traffic

    @property
    def idle(self) -> bool:
        return self._down.idle and self._up.idle

    def reach(self, ways: Ways) -> None:
        """Reach the upper coordinator by these routes if its address cannot be called."""
        self._up.routing.reach(ways)

    def connect(self, partners: Sequence[NodeId], endpoints: Endpoints, expected: Expected, hello: Hello) -> None:
        """Admit those of `partners` that are below, and call the upper coordinator."""
        self._down.connect([node for node in partners if node != self.above], endpoints, expected, hello)
        self._up.connect([self.above], endpoints, expected, hello)

    def meet(self, node: NodeId, endpoint: Endpoint) -> None:
        self._end_of(node).meet(node, endpoint)

    def part(self, node: NodeId) -> None:
        self._end_of(node).part(node)

    def send(self, to: NodeId, message: AnyMessage) -> None:
        self._end_of(to).send(to, message)

    def _end_of(self, node: NodeId) -> ClientLinks | CoordinatorLinks:
        return self._up if node == self.above else self._down

    def poll(self, timeout_ms: int) -> list[LinkEvent]:
        """Wait at most `timeout_ms` for events at either end; return them."""
        until = time.monotonic() + timeout_ms / 1000
        while True:
            rest_ms = max(0, int(1000 * (until - time.monotonic())))
            events = [*self._up.poll(0), *self._down.poll(min(rest_ms, SLICE_MS))]
            if events or rest_ms <= SLICE_MS:
                return events

    def wake(self) -> None:
        self._down.wake()

    def wake_on_signals(self) -> None:
        self._down.wake_on_signals()

    def close(self, drain_seconds: float = 0.0) -> None:
        """Close the upper end first: the clients below may still wait for the last model, which is sent to them at
        once.
        """
        self._up.close(drain_seconds)
        self._down.close(drain_seconds)
