"""The traffic of one participant's links: the bytes of vectors on each, and the times at which something was under way.

Something is under way from the first received frame of a message with vectors to its last one, and from the queuing of
a message with vectors until ZeroMQ has taken the last of it.  Concurrent traffic on several links is one interval of
time.
"""

from __future__ import annotations

import time

from fedgossip.core.machine import NodeId
from fedgossip.core.meter import Span

SPANS_MAX = 4096
"""Maximum number of stretches between two rows; beyond, the last two count as one, with their gap."""


class Traffic:
    """The account of one participant, by the clock of `time.monotonic_ns`."""

    def __init__(self) -> None:
        self.sent: dict[NodeId, int] = {}
        """Bytes of vectors queued for each partner."""
        self._coming: set[NodeId] = set()
        self._waiting = 0
        self._since = 0
        self._spans: list[Span] = []

    @property
    def payload_sent(self) -> int:
        """Bytes of vectors sent in all."""
        return sum(self.sent.values())

    def queued(self, to: NodeId, payload: int) -> None:
        """Note a message queued for a partner."""
        if payload:
            self.sent[to] = self.sent.get(to, 0) + payload

    def wait(self) -> None:
        """One more message with vectors waits to go out."""
        self._changing()
        self._waiting += 1

    def go(self, messages: int = 1) -> None:
        """Note that so many wait no longer: ZeroMQ has them, or they were dropped."""
        if messages:
            self._waiting -= messages
            self._changed()

    def note_frame(self, sender: NodeId, *, more: bool) -> None:
        """Note a frame of `sender`; `more`: of a message with vectors that is incomplete."""
        if more == (sender in self._coming):
            return
        if more:
            self._changing()
            self._coming.add(sender)
        else:
            self._coming.discard(sender)
            self._changed()

    def taken(self) -> list[Span]:
        """Return the intervals since the last call; an open one counts up to now, and from now on anew."""
        now, spans = time.monotonic_ns(), self._spans
        if self._active:
            spans.append((self._since, now))
            self._since = now
        self._spans = []
        return spans

    @property
    def _active(self) -> bool:
        return bool(self._waiting or self._coming)

    def _changing(self) -> None:
        if not self._active:
            self._since = time.monotonic_ns()

    def _changed(self) -> None:
        if self._active:
            return
        begins = self._since
        if len(self._spans) >= SPANS_MAX:
            begins = self._spans.pop()[0]
        self._spans.append((begins, time.monotonic_ns()))
