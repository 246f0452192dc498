"""What partners send to one ROUTER, and by the streams beside its connections: who sends, and what is under way.

The sender of a frame is the partner that the allow-list knows by the connection's key.  Each connection has an
assembler; one message of a partner is under way at a time, on whichever of its connections.
"""

from __future__ import annotations

from collections.abc import Iterator

import zmq
from zmq.utils import z85

from fedgossip.core.machine import NodeId
from fedgossip.core.messages import Expected
from fedgossip.core.wire import Assembler, FrameError
from fedgossip.net.auth import GUEST, AllowList
from fedgossip.net.streams.sealed_way import CalledStream


class Incoming:
    """`allow` is the ROUTER's allow-list; None where nothing is encrypted, and callers name themselves."""

    def __init__(self, allow: AllowList | None) -> None:
        self._allow = allow
        self.expected = Expected("", "", 0)
        self._by_curve: dict[NodeId, Assembler] = {}
        self._by_stream: dict[CalledStream, Assembler] = {}

    def add(self, node: NodeId) -> None:
        """Hear a partner from now on; what is under way goes on where it is one already."""
        self._by_curve.setdefault(node, Assembler(self.expected))

    def forget(self, node: NodeId) -> None:
        """Hear a partner no more."""
        self._by_curve.pop(node, None)

    def sender(self, mark: zmq.Frame, connection: bytes) -> NodeId:
        """Return who sends.  Raises FrameError for one that is no partner."""
        try:
            sender = self._user(self._allow, mark) if self._allow else int(connection)
        except (zmq.ZMQError, ValueError, TypeError, KeyError):
            raise FrameError("anonymous", "a frame of nobody") from None
        if sender not in self._by_curve:
            raise FrameError("stranger", f"a frame from node {sender}, which is no partner")
        return sender

    def _user(self, allow: AllowList, mark: zmq.Frame) -> NodeId:
        user = str(mark.get("User-Id"))
        key = user.removeprefix(GUEST)  # one that was a guest when it called
        return int(user) if key == user else allow.allowed[z85.decode(key)]

    def by_curve(self, node: NodeId) -> Assembler:
        """Return the assembler of a partner's frames."""
        return self._by_curve[node]

    def by_stream(self, way: CalledStream) -> Assembler:
        """Return the assembler of a stream's records."""
        return self._by_stream.setdefault(way, Assembler(self.expected))

    def drop(self, way: CalledStream) -> None:
        """A stream is closed."""
        self._by_stream.pop(way, None)

    def begun(self, node: NodeId, with_: Assembler) -> None:
        """Forget what else of a partner is under way, where a message has begun: its connection has broken."""
        if with_.begins:
            for other in self._of(node):
                if other is not with_:
                    other.give_up()

    def comes(self, node: NodeId, round: int) -> bool:
        """Whether a partner's vectors of `round` are coming in."""
        return any(assembler.coming == round for assembler in self._of(node))

    def _of(self, node: NodeId) -> Iterator[Assembler]:
        yield self._by_curve[node]
        yield from (assembler for way, assembler in self._by_stream.items() if way.node == node)
