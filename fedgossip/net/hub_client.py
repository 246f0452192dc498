"""One client in its coordinator's links: the connection that it has greeted on, and one that waits."""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip.core.machine import NodeId
from fedgossip.core.messages import AnyMessage, Hello
from fedgossip.core.wire import Assembler, FrameError
from fedgossip.net.hub.control_frames import CHUNK
from fedgossip.net.hub.router_sender import ClientLine
from fedgossip.net.hub.upload_slots import Turns


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """The connection of a client: the ROUTER's name of it, its descriptor, and its Hello."""

    name: bytes
    descriptor: int
    hello: Hello

    def is_followed_by(self, hello: Hello) -> bool:
        """Return whether this Hello is from the same process, or from a later life that replaces it."""
        return hello.process == self.hello.process or hello.incarnation > self.hello.incarnation


@dataclass(slots=True)
class ConnectedClient:
    """`line`: its outgoing messages; `assembler`: its incoming ones; `up`: whether messages are sent to it."""

    node: NodeId
    line: ClientLine
    assembler: Assembler
    here: ClientConnection | None = None
    next: ClientConnection | None = None
    """The connection of another process with the same key, which waits."""
    up: bool = False
    key: str = ""

    def is_on(self, name: bytes) -> bool:
        """Return whether the client has greeted on the connection of this name."""
        return self.here is not None and name == self.here.name

    def is_here(self, descriptor: int) -> bool:
        """Return whether this is the client's own connection, not another with the same name."""
        return self.up and self.here is not None and descriptor == self.here.descriptor

    def account(self, turns: Turns, kind: bytes, transfer: int, message: AnyMessage | None, now: float) -> None:
        """Count turns.  Raises FrameError for a vector out of turn, before memory is allocated for it."""
        if message is not None:
            turns.forget(self.node)
        elif kind == CHUNK:
            turns.moved(self.node, now)
        elif self.assembler.missing_chunks > 1 and not turns.has(self.node, transfer):
            self.assembler.give_up()
            raise FrameError("unasked", "a large message whose turn it is not")
