"""A DEALER that calls one partner: making, watching, interpreting and closing it."""

from __future__ import annotations

import zmq

from fedgossip.base.errors import NetworkError
from fedgossip.core.machine import NodeId
from fedgossip.net.connections import Connections
from fedgossip.net.identity import Identity
from fedgossip.net.sockets import ZmqSocket, make
from fedgossip.net.transport import Rejected

HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
"""Events that are watched at a socket that calls, beside those of its connections."""

_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
)

HANG_UPS = 3
"""Number of times that a partner not reached yet may close the connection before it is reported: it does so once or
twice while its process loads its data, or is restarted.  A partner with another key does it at every call.
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
    """Return a DEALER that calls `other`, which must hold the secret of `key`; `connections` follow it.

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
    """Close the socket of `call`; frames taken by ZeroMQ are still sent, for LINGER_MS at most."""
    if dealer in poller:
        poller.unregister(dealer)
    connections.leave(dealer)
    dealer.close()


class Greeting:
    """How the handshakes of the calls to one partner go."""

    def __init__(self) -> None:
        self.reached = False
        """Whether one succeeded: from then on a closed connection counts as a dying partner."""
        self._hung_up = 0

    def failed(self, node: NodeId, event: int) -> Rejected | None:
        """Return the meaning of a monitor's event for a call to `node`; None without a known fault."""
        if event not in _FAILED:
            return None
        if event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:  # ZeroMQ does not try again
            text = f"peer {node} does not accept our key, or has not the key that endpoints.toml gives it"
            return Rejected(node, "handshake", text, "Compare the keys: fedgossip keys show.")
        self._hung_up += 1  # ZeroMQ tries again
        if self.reached or self._hung_up < HANG_UPS:
            return None
        text = f"peer {node} hangs up whenever it is greeted; it may have another key than endpoints.toml says"
        return Rejected(node, "hung_up", text, "Compare the keys: fedgossip keys show.")
