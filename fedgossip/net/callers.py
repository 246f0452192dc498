"""The connections of a ROUTER by their file descriptors: those of known clients, those of others, and broken ones.

ZeroMQ's monitor reports when a descriptor is taken and when it is released, before its reuse; a received frame carries
its descriptor.  ZeroMQ has no call for closing one connection: the socket is shut down under it.
"""

from __future__ import annotations

import socket

import zmq

from fedgossip.core.machine import NodeId
from fedgossip.net.connections import FLOOD, Connections, Seen
from fedgossip.net.descriptors import FILES, check_files, shut_down
from fedgossip.net.streams import stream_port

STRANGERS = 256
"""Maximum number of connections of unknown callers, beside one of each client: all clients call at once when the
coordinator is started again.  Beyond these the oldest is hung up on."""


class Callers:
    """The callers of a socket that `connections` follow.  `address`: its own; `expected`: how many may call."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.address, self.expected = "", 0
        self.flooded: list[Seen] = []
        """Connections that were hung up on since this was emptied."""
        self._strange: dict[int, None] = {}  # in the order of their arrival
        self._known: dict[int, NodeId] = {}

    def look(self) -> list[tuple[int, NodeId]]:
        """Read the monitor's events; return (descriptor, node) of known connections that broke."""
        broken: list[tuple[int, NodeId]] = []
        for seen in self._connections.take():
            if seen.event == FLOOD:
                self.flooded.append(seen)
            elif seen.event == zmq.EVENT_ACCEPTED:
                self._strange[seen.descriptor] = None
            elif seen.event == zmq.EVENT_DISCONNECTED:
                self._strange.pop(seen.descriptor, None)
                if (node := self._known.pop(seen.descriptor, None)) is not None:
                    broken.append((seen.descriptor, node))
        while len(self._strange) > STRANGERS + self.expected:
            self.hang_up(next(iter(self._strange)))
        return broken

    def introduce(self, descriptor: int, node: NodeId) -> bool:
        """Note that the caller on this connection is `node`; return False if it is closed.  Call `look` before."""
        if descriptor not in self._strange and self._known.get(descriptor) != node:
            return False
        self._strange.pop(descriptor, None)
        self._known[descriptor] = node
        return True

    def hang_up(self, descriptor: int) -> None:
        """Close a connection; it breaks at the other end and is forgotten here."""
        self._strange.pop(descriptor, None)
        self._known.pop(descriptor, None)
        shut_down(descriptor, self._is_ours)  # the number may belong to another file by now

    def _is_ours(self, descriptor: int) -> bool:
        kind, _, place = self.address.partition("://")
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:  # no socket
            return False
        try:
            name = connection.getsockname()
        except OSError:
            return False
        finally:
            connection.detach()  # it is not ours to close
        return bool(name == place if kind == "ipc" else str(name[1]) == place.rpartition(":")[2])


def check_clients(clients: int) -> None:
    """Raise NetworkError where this process may not have as many connections as it may need."""
    # the client's own with its stream, one that waits, one that has just called; strangers at both ports
    needed = 4 * clients + STRANGERS + stream_port.STRANGERS + FILES
    check_files(f"{clients} clients", needed)
