"""The allow-list: a ZAP handler that admits known keys and gives each connection its peer id as User-Id.

libzmq queries it over inproc://zeromq.zap.01 (RFC 27).  Traps, each measured: a CURVE server with no handler running
serves any key, so the handler is bound before any address and ZAP_ENFORCE_DOMAIN refuses all where it is missing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import zmq
from zmq.utils import z85

from fedgossip.core.machine import NodeId

DOMAIN = b"fedgossip"  # not "*": that does not match a set zap_domain

GUEST = "guest "
"""Prefix of the User-Id of a caller with an unknown key; the key follows."""

GUESTS, GUESTS_SECONDS = 16, 10.0
"""Maximum number of guests that are let in within so many seconds."""


class AllowList:
    """Answers the context's authentication requests.  Owned and polled by the thread that owns the sockets."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.allowed: dict[bytes, NodeId] = {}
        self.guests = False
        """Whether a caller with an unknown key is admitted, to request membership; see Links."""
        self.welcome: set[bytes] = set()
        """Keys of guests that are let in however many others call."""
        self._let_in: list[float] = []
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def allow(self, keys: Mapping[str, NodeId]) -> None:
        """Let the holders of these public keys in, from now on."""
        self.allowed.update({z85.decode(key): node for key, node in keys.items()})

    def forget(self, node: NodeId) -> None:
        """Admit no caller as `node` from now on; the next call with its key is that of a stranger."""
        self.allowed = {key: of for key, of in self.allowed.items() if of != node}

    def answer(self) -> str | None:
        """Answer one waiting request.  Return the address of a refused caller, else None."""
        request = self.socket.recv_multipart()
        version, number, domain, address, _identity, mechanism, *credentials = [*request, *[b""] * 7][:8]
        key = credentials[0] if credentials else b""
        known, proved = self.allowed.get(key), (version, domain, mechanism) == (b"1.0", DOMAIN, b"CURVE")
        if proved and known is not None:
            self.socket.send_multipart([b"1.0", number, b"200", b"OK", str(known).encode(), b""])
            return None
        if proved and key and self._may(key):
            guest = (GUEST + z85.encode(key).decode()).encode()
            self.socket.send_multipart([b"1.0", number, b"200", b"OK", guest, b""])
            return None
        status = b"300" if self.guests else b"400"  # 300: the caller calls again later; 400: never again
        self.socket.send_multipart([b"1.0", number, status, b"unknown key", b"", b""])
        return address.decode(errors="replace")

    def _may(self, key: bytes) -> bool:
        """Return whether this guest is admitted now."""
        now = time.monotonic()
        self._let_in = [at for at in self._let_in if now - at < GUESTS_SECONDS]
        if self.guests and key in self.welcome:
            return True
        if not self.guests or len(self._let_in) >= GUESTS:
            return False
        self._let_in.append(now)
        return True
