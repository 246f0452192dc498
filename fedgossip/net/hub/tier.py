"""The links of a leaf coordinator: a coordinator's end towards its clients, a client's towards its own coordinator.

Both are the links of a flat run, each with sockets of its own and the same key; one thread owns both.  `poll` waits at
the end with the clients, by slices, and looks at the other between them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from fedgossip.core.machine import NodeId
from fedgossip.core.messages import AnyMessage, Expected, Hello
from fedgossip.net.endpoints import Endpoint, Endpoints
from fedgossip.net.hub.client import ClientLinks
from fedgossip.net.hub.server import CoordinatorLinks
from fedgossip.net.identity import Identity
from fedgossip.net.measuring.traffic import Traffic
from fedgossip.net.relays.reachability import Ways
from fedgossip.net.transport import LinkEvent

SLICE_MS = 10
"""Maximum wait before the link upwards is looked at again: a message from above waits so long, of rounds of seconds."""


class TierLinks:
    """A `Transport`.  Bind first, as `CoordinatorLinks`; `above` is the coordinator of this one."""

    def __init__(self, node: NodeId, above: NodeId, bind: str, identity: Identity | None) -> None:
        self.node, self.above = node, above
        self._down = CoordinatorLinks(node, bind, identity)
        self._up = ClientLinks(node, identity)
        self._up.count_with(self._down.traffic)

    @property
    def address(self) -> str:
        return self._down.address

    @property
    def partners(self) -> tuple[NodeId, ...]:
        return (*self._down.partners, *self._up.partners)

    @property
    def bytes_sent(self) -> int:
        return self._down.bytes_sent + self._up.bytes_sent

    @property
    def dropped(self) -> int:
        return self._down.dropped + self._up.dropped

    @property
    def traffic(self) -> Traffic:
        """Bytes of vectors on each link, of both ends."""
        return self._down.traffic

    @property
    def idle(self) -> bool:
        return self._down.idle and self._up.idle

    def reach(self, ways: Ways) -> None:
        """Reach the coordinator above by these ways, where its address cannot be called."""
        self._up.routing.reach(ways)

    def connect(self, partners: Sequence[NodeId], endpoints: Endpoints, expected: Expected, hello: Hello) -> None:
        """Admit those of `partners` that are below, and call the one above."""
        self._down.connect([node for node in partners if node != self.above], endpoints, expected, hello)
        self._up.connect([self.above], endpoints, expected, hello)

    def meet(self, node: NodeId, endpoint: Endpoint) -> None:
        self._end_of(node).meet(node, endpoint)

    def part(self, node: NodeId) -> None:
        self._end_of(node).part(node)

    def send(self, to: NodeId, message: AnyMessage) -> None:
        self._end_of(to).send(to, message)

    def _end_of(self, node: NodeId) -> ClientLinks | CoordinatorLinks:
        return self._up if node == self.above else self._down

    def poll(self, timeout_ms: int) -> list[LinkEvent]:
        """Wait at most `timeout_ms` for something to happen at either end; return what happened."""
        until = time.monotonic() + timeout_ms / 1000
        while True:
            rest_ms = max(0, int(1000 * (until - time.monotonic())))
            events = [*self._up.poll(0), *self._down.poll(min(rest_ms, SLICE_MS))]
            if events or rest_ms <= SLICE_MS:
                return events

    def wake(self) -> None:
        self._down.wake()

    def wake_on_signals(self) -> None:
        self._down.wake_on_signals()

    def close(self, drain_seconds: float = 0.0) -> None:
        """Send upwards first: those below may still wait for the last model, which they are sent at once."""
        self._up.close(drain_seconds)
        self._down.close(drain_seconds)
