"""The allow-list: a ZAP handler that lets known keys in and gives each connection its peer id as User-Id.

libzmq asks it over inproc://zeromq.zap.01 (RFC 27).  Traps, each measured: a CURVE server with no handler running
serves any key, so the handler is bound before any address and ZAP_ENFORCE_DOMAIN refuses all where it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

import zmq
from zmq.utils import z85

from fedgossip.machine import NodeId

DOMAIN = b"fedgossip"


class AllowList:
    """Answers the context's authentication requests.  Owned and polled by the thread that owns the sockets."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.allowed: dict[bytes, NodeId] = {}
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def allow(self, keys: Mapping[str, NodeId]) -> None:
        """Let the holders of these public keys in, from now on."""
        self.allowed.update({z85.decode(key): node for key, node in keys.items()})

    def answer(self) -> str | None:
        """Answer one waiting request.  Return the address of a refused caller, else None."""
        request = self.socket.recv_multipart()
        version, number, domain, address, _identity, mechanism, *credentials = [*request, *[b""] * 7][:8]
        known = self.allowed.get(credentials[0]) if credentials else None
        if version == b"1.0" and domain == DOMAIN and mechanism == b"CURVE" and known is not None:
            self.socket.send_multipart([b"1.0", number, b"200", b"OK", str(known).encode(), b""])
            return None
        self.socket.send_multipart([b"1.0", number, b"400", b"unknown key", b"", b""])
        return address.decode(errors="replace")
