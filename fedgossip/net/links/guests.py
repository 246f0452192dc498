"""Callers whose key nobody knows: each may say Hello and ask to join, in its own name, and not often."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq
from zmq.utils import z85

from fedgossip.core.messages import Hello, Join
from fedgossip.core.wire import Assembler, FrameError
from fedgossip.net.auth import GUEST, GUESTS, AllowList
from fedgossip.net.hub.control_frames import parse
from fedgossip.net.links.frame_reader import check_last, skip
from fedgossip.net.links.outbox import Pair
from fedgossip.net.sockets import ZmqSocket
from fedgossip.net.streams.sealed_way import SEAL
from fedgossip.net.streams.streams import refusal

GUEST_WORDS, GUEST_BYTES = 32, 2048
"""Maximum number of messages of a caller that is no member, and bytes of each: a Hello and an entry fit, on every new
connection."""

GUEST_SECONDS = 60.0
"""Seconds after which a guest is forgotten and may send as much again."""


@dataclass(slots=True)
class GuestCaller:
    """A caller whose key nobody knows."""

    assembler: Assembler
    since: float
    hello: Hello | None = None
    asked: bool = False
    said: int = 0


class Guests:
    """The guests of one ROUTER; `allow` is its allow-list, `reply` sends a control frame on a connection of it."""

    def __init__(self, allow: AllowList, reply: Callable[[bytes, Pair], None]) -> None:
        self._allow, self._reply = allow, reply
        self.known: dict[str, GuestCaller] = {}
        """By key."""

    def key_of(self, mark: zmq.Frame) -> str:
        """Return the key of the guest that sends; "" for a member, which may have been a guest when it called."""
        if not self._allow.guests:
            return ""
        user = str(mark.get("User-Id"))
        key = user.removeprefix(GUEST)
        return key if key != user and z85.decode(key) not in self._allow.allowed else ""

    def hear(self, key: str, router: ZmqSocket, connection: bytes, mark: zmq.Frame) -> Join | None:
        """Take a guest's message; return it where it asks to join.  Raises FrameError for what it may not say."""
        guest = self._guest_of(key)
        guest.said += 1
        if guest.said > GUEST_WORDS:
            raise FrameError("guest", "one that is no member says too much")
        if mark.bytes[:1] == SEAL:  # it may offer again when it is a member
            skip(router)
            self._reply(connection, refusal(parse(mark.bytes)[1]))
            return None
        if not mark.more or guest.assembler.mark(mark.bytes) is not None:
            raise FrameError("truncated", "a message of one frame")
        body = router.recv()
        check_last(router)
        if len(body) > GUEST_BYTES:
            raise FrameError("oversized", f"{len(body)} bytes from one that is no member")
        message = guest.assembler.header(body)
        if isinstance(message, Hello):
            guest.hello = message
            return None
        if isinstance(message, Join) and message.entry.key == key:
            guest.asked = True
            return message
        raise FrameError("guest", "one that is no member may only ask to join, in its own name")

    def admitted(self, key: str) -> Hello | None:
        """One is a guest no more; return its Hello, where it has said it."""
        guest = self.known.pop(key, None)
        return guest.hello if guest else None

    def _guest_of(self, key: str) -> GuestCaller:
        """Return the guest that sends.  A new one takes the place of the oldest, first of those that asked nothing."""
        now = time.monotonic()
        self.known = {k: guest for k, guest in self.known.items() if now - guest.since < GUEST_SECONDS}
        if key not in self.known:
            while len(self.known) >= GUESTS:
                del self.known[min(self.known, key=lambda k: (self.known[k].asked, self.known[k].since))]
            self.known[key] = GuestCaller(Assembler(None), now)
        return self.known[key]
