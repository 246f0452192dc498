"""The sending side of the link to one partner: a DEALER, its waiting messages, and the sealed stream parallel to it.

up       the handshake succeeded: greet, and send the last models again
sends    by CURVE, and by the stream from the first message on that begins after that is up
broken   the connection, or the stream once in use: drop waiting messages; ZeroMQ connects again
"""

from __future__ import annotations

import zmq

from fedgossip.base.errors import FedgossipError, NetworkError
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import AnyMessage, Leaving, OfARound
from fedgossip.net.connections import Connections
from fedgossip.net.identity import Identity
from fedgossip.net.links.outbox import Outbox, zmq_body
from fedgossip.net.sockets import MORE_NOW, NOW, ZmqSocket, make
from fedgossip.net.streams.sealed_way import StreamCall
from fedgossip.net.streams.sealing import WornOutError
from fedgossip.net.streams.streams import Streams
from fedgossip.net.transport import Rejected


class PartnerLink:
    """`poller` registers for the DEALER being readable, or ready to accept more."""

    def __init__(
        self, node: NodeId, dealer: ZmqSocket, outbox: Outbox, key: str, poller: zmq.Poller, streams: Streams
    ) -> None:
        self.node, self.dealer, self.outbox = node, dealer, outbox
        self._poller, self._streams = poller, streams
        self.call = StreamCall(node, callee=key)
        self.recent: list[AnyMessage] = []
        """Messages sent again when the link is restored."""
        self.up = self.broke = self.received_any = False
        self.greeting = Greeting()

    def takes_over(self, before: PartnerLink) -> None:
        """Replace the link to a partner that was called at another address."""
        self.recent, self.outbox.transfer = before.recent, before.outbox.transfer
        self.received_any = before.received_any

    # --- repeated messages --------------------------------------------------------------------------------------------

    def remember(self, message: AnyMessage) -> None:
        """Store the messages that the partner may lack when the link is restored: the last one or two models, and a
        goodbye.
        """
        models = [one for one in self.recent if isinstance(one, OfARound)]
        if isinstance(message, OfARound) and message.round > (models[-1].round if models else -1):
            self.recent = [*models[-1:], message]  # a partner may lack the last one, never the one before
        elif isinstance(message, Leaving):
            self.recent = [*models, message]

    def has(self, round: int) -> None:
        """Record that the partner is in `round`: it has this peer's models of earlier rounds, or will never use
        them.
        """
        self.recent = [
            message for message in self.recent if not (isinstance(message, OfARound) and message.round < round)
        ]

    # --- sending --------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether everything that can be sent has been handed to the network."""
        if self.up:
            return not self.outbox and not self.call.sending
        return self.broke or not self.received_any  # a caller receives the Hello, and may learn from it why we leave

    def offer_stream(self, now: float, *, relayed: bool) -> bool:
        """Offer a stream if none is up and an offer is due; return whether there is something to flush for it."""
        if not self.up or (word := self._streams.offers(self.call, now)) is None:
            return False
        self.call.relayed = relayed
        self.outbox.add_control(word)
        return True

    def flush(self) -> bool:
        """Send all that the network accepts; register for a call when it accepts more.

        Returns False if the stream has ended.
        """
        full, sound = False, True
        while self.up and not full:
            if self._changes_over():
                sound = self._flush_stream()
                break
            if (pair := self.outbox.next()) is None:
                break
            try:
                self.dealer.send(pair[0], MORE_NOW)
                self.dealer.send(zmq_body(pair), NOW, copy=False)
            except zmq.Again:
                full = True
            else:
                self.call.count_sent(pair)
                self.outbox.sent()
        if mask := (zmq.POLLOUT if full else 0) | (zmq.POLLIN if self.call.offer else 0):
            self._poller.register(self.dealer, mask)
        elif self.dealer in self._poller:
            self._poller.unregister(self.dealer)
        return sound

    def _changes_over(self) -> bool:
        return self.call.up and (self.call.sends or (self.outbox.between and bool(self.outbox)))

    def _flush_stream(self) -> bool:
        """Send as much as the stream accepts; return whether it is intact."""
        try:
            while self.call.speak() and (pair := self.outbox.next()) is not None and self.call.send(pair):
                self.outbox.sent()
            self.call.flush()
            self._streams.watch(self.call)
        except (OSError, WornOutError):
            return False
        return True


HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
"""Events watched at a calling socket, in addition to those of its connections."""

_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
)

HANG_UPS = 3
"""Number of closed connections before an unreached partner is reported: a starting partner closes once or twice, one
with another key always.
"""


def call(
    context: zmq.Context[ZmqSocket],
    connections: Connections,
    node: NodeId,
    identity: Identity | None,
    other: NodeId,
    address: str,
    key: str,
) -> ZmqSocket:
    """Return a DEALER that calls `other`, which must have the secret of `key`; `connections` watch it.

    Raises NetworkError for an address that cannot be called.
    """
    dealer = make(context, zmq.DEALER)
    if identity:
        dealer.curve_serverkey = key.encode()
        dealer.curve_secretkey = identity.secret.encode()
        dealer.curve_publickey = identity.public.encode()
    else:
        dealer.routing_id = str(node).encode()
    connections.follow(dealer, HANDSHAKES)
    try:
        dealer.connect(address)
    except zmq.ZMQError as error:
        where = f"cannot call peer {other} at {address}"
        connections.leave(dealer)
        dealer.close(0)
        raise NetworkError(f"{where}: {error.strerror.lower()}", "Correct endpoints.toml.") from None
    return dealer


def hang_up(poller: zmq.Poller, connections: Connections, dealer: ZmqSocket) -> None:
    """Close the socket of `call`; frames accepted by ZeroMQ are still sent, for LINGER_MS at most."""
    if dealer in poller:
        poller.unregister(dealer)
    connections.leave(dealer)
    dealer.close()


class Greeting:
    """Progress of the handshakes of the calls to one partner."""

    def __init__(self) -> None:
        self.reached = False
        """Whether one succeeded: from then on a closed connection counts as a dying partner."""
        self._hung_up = 0

    def failed(self, node: NodeId, event: int, fault: FedgossipError | None) -> Rejected | None:
        """Return the meaning of a monitor's event for a call to `node`, None without a known cause; `fault`: fault of
        the relay used.
        """
        if event not in _FAILED:
            return None
        if event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:  # ZeroMQ does not try again
            text = f"peer {node} does not accept our key, or has not the key that endpoints.toml gives it"
            return Rejected(node, "handshake", text, "Compare the keys: fedgossip keys show.")
        self._hung_up += 1  # ZeroMQ tries again
        if self.reached or self._hung_up < HANG_UPS:
            return None
        if fault:
            return Rejected(node, "relay", f"peer {node} is not reached: {fault}", fault.advice)
        text = f"peer {node} hangs up at every greeting; its key may differ from the one in endpoints.toml"
        return Rejected(node, "hung_up", text, "Compare the keys: fedgossip keys show.")
