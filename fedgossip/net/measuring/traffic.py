"""What one participant's links have carried: the bytes of vectors on each, and when something was under way.

Something is under way from the first frame of a message with vectors that is seen to its last one that has landed, and
from when a message with vectors is queued to when ZeroMQ has taken the last of it.  What happens on several links at
once is one stretch of time.
"""

from __future__ import annotations

import time

from fedgossip.base.intervals import Span
from fedgossip.core.machine import NodeId

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
        """Note what is sent to a partner."""
        if payload:
            self.sent[to] = self.sent.get(to, 0) + payload

    def wait(self) -> None:
        """One more message with vectors waits to go out."""
        self._changing()
        self._waiting += 1

    def go(self, messages: int = 1) -> None:
        """So many wait no longer: ZeroMQ has them, or they were dropped."""
        if messages:
            self._waiting -= messages
            self._changed()

    def heard(self, sender: NodeId, *, more: bool) -> None:
        """Note a frame of `sender`; `more`: of a message with vectors whose last frame has not come."""
        if more == (sender in self._coming):
            return
        if more:
            self._changing()
            self._coming.add(sender)
        else:
            self._coming.discard(sender)
            self._changed()

    def taken(self) -> list[Span]:
        """Return the stretches since the last call; what goes on still counts up to now, and from now on anew."""
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
