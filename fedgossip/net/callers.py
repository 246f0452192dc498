"""The connections of a ROUTER by their file descriptors: who has said who it is, who has not, and which are broken.

ZeroMQ's monitor tells when a descriptor is taken and when it is given back, before it is used again; a received frame
tells on which it came.  Hanging up is what ZeroMQ has no call for: the connection is shut down under it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket

import zmq
from zmq.utils.monitor import parse_monitor_message

from fedgossip.errors import NetworkError
from fedgossip.machine import NodeId
from fedgossip.net.sockets import NOW, ZmqSocket

STRANGERS = 256
"""Connections on which nobody has said yet who it is, beside one of each client: when the coordinator is started again
they all call at once.  Beyond these the oldest is hung up on."""

FILES = 128
"""What a process needs beside its connections."""


class Callers:
    """`address` is where `router` is bound, `expected` how many clients it has; made before the first one calls."""

    def __init__(self, router: ZmqSocket) -> None:
        self.monitor = router.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.address, self.expected = "", 0
        self._strange: dict[int, None] = {}  # the oldest first
        self._known: dict[int, NodeId] = {}

    def look(self) -> list[tuple[int, NodeId]]:
        """Take in what happened; return (descriptor, node) of known connections that broke."""
        broken: list[tuple[int, NodeId]] = []
        with contextlib.suppress(zmq.Again):
            while True:
                event = parse_monitor_message(self.monitor.recv_multipart(NOW))
                descriptor = event["value"]
                if event["event"] == zmq.EVENT_ACCEPTED:
                    self._strange[descriptor] = None
                    continue
                self._strange.pop(descriptor, None)
                if (node := self._known.pop(descriptor, None)) is not None:
                    broken.append((descriptor, node))
        while len(self._strange) > STRANGERS + self.expected:
            self.hang_up(next(iter(self._strange)))
        return broken

    def introduce(self, descriptor: int, node: NodeId) -> bool:
        """The caller on this connection is `node`; False where the connection is gone already.  Call `look` before."""
        if descriptor not in self._strange and self._known.get(descriptor) != node:
            return False
        self._strange.pop(descriptor, None)
        self._known[descriptor] = node
        return True

    def hang_up(self, descriptor: int) -> None:
        """Close a connection; it breaks at the other end, and is forgotten here."""
        self._strange.pop(descriptor, None)
        self._known.pop(descriptor, None)
        try:
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                if self._is_ours(connection):  # it may have become another file by now
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # closed already
            return

    def _is_ours(self, connection: socket.socket) -> bool:
        kind, _, place = self.address.partition("://")
        name = connection.getsockname()
        return bool(name == place if kind == "ipc" else str(name[1]) == place.rpartition(":")[2])


def allow_open_files(clients: int) -> None:
    """Let this process have as many connections as it may need.  Raises NetworkError where the system does not."""
    needed = 3 * clients + STRANGERS + FILES  # the client's own, one that waits, one that has just called
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        text = f"{clients} clients need {needed} open files, and this process may have {hard}"
        raise NetworkError(text, "Raise the limit: ulimit -Hn, or LimitNOFILE= of the service.")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
