"""Where each partner is called now, and where we can be: the links' own account of addresses, over `ways`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fedgossip.core.machine import NodeId
from fedgossip.net.endpoints import Endpoint, addresses_of, is_relay
from fedgossip.net.identity import Identity
from fedgossip.net.relays.reachability import Reachability, Through
from fedgossip.net.transport import LinkEvent, Relocated, Routed

WHEREABOUTS_SECONDS = 1.0
"""Time between two looks at where we can be called."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Routes from a participant to others, beside their addresses, and its own addresses.

    `through`: reaches the holder of a key through a relay; None without a relay.  `whereabouts`: returns the
    participant's present addresses; None where they do not change, or no other would receive them.
    """

    through: Through | None = None
    whereabouts: Callable[[], str] | None = None


DIRECT = Ways()


class Routing:
    """Of one process's links; nothing is tried, and no thread runs, while every partner has one address."""

    def __init__(self, identity: Identity | None, wake: Callable[[], None]) -> None:
        self._identity, self._wake = identity, wake
        self._endpoints: dict[NodeId, Endpoint] = {}
        self._reachability: Reachability | None = None
        self._through: Through | None = None
        self._whereabouts: Callable[[], str] | None = None
        self._where, self._looked_at = "", time.monotonic()
        self._untold: set[NodeId] = set()  # peers without a message from us since we moved

    def reach(self, ways: Ways) -> None:
        """Use relays, and check our own addresses now and then.  Call it before the first connection."""
        self._through, self._whereabouts = ways.through, ways.whereabouts
        self._where = ways.whereabouts() if ways.whereabouts else ""

    def first(self, node: NodeId, endpoint: Endpoint, events: list[LinkEvent]) -> Endpoint:
        """Return where to call `node` now; where there are several ways, the best is found out meanwhile."""
        self._endpoints[node] = endpoint
        addresses = addresses_of(endpoint.address)
        if (len(addresses) < 2 and not is_relay(addresses[0])) or self._identity is None:
            return endpoint
        self._reachability = self._reachability or Reachability(self._identity, self._through, self._wake)
        route = self._reachability.to(node, endpoint.key, addresses)
        if route.relay:
            events.append(Routed(node, route.relay))
        return replace(endpoint, address=route.address)

    def relay_of(self, node: NodeId) -> str:
        """Return the relay through which a partner is called now; "" where it is called directly."""
        return self._reachability.relay_of(node) if self._reachability else ""

    def forget(self, node: NodeId) -> None:
        """Stop routing to `node`."""
        self._endpoints.pop(node, None)
        self._untold.discard(node)
        if self._reachability:
            self._reachability.forget(node)

    def linked(self, node: NodeId, *, up: bool, events: list[LinkEvent]) -> None:
        """The link to `node` is up, or broken."""
        if self._reachability:
            self._reachability.linked(node, up=up)
        if up and node in self._untold:
            self._untold.discard(node)
            events.append(Relocated(self._where))

    def moves(self, events: list[LinkEvent]) -> Iterator[tuple[NodeId, Endpoint]]:
        """Yield each peer to connect to anew, and the address: those with a better route; all of them where we have
        moved.

        Connections from before the move may be dead, without a report for a while.
        """
        for route in self._reachability.take() if self._reachability else []:
            if route.node in self._endpoints:
                events.append(Routed(route.node, route.relay))
                yield route.node, replace(self._endpoints[route.node], address=route.address)
        if self._whereabouts is None or time.monotonic() - self._looked_at < WHEREABOUTS_SECONDS:
            return
        self._looked_at = time.monotonic()
        where = self._whereabouts()
        if where and where != self._where:
            self._where, self._untold = where, set(self._endpoints)
            for node, endpoint in list(self._endpoints.items()):
                yield node, self.first(node, endpoint, events)

    def close(self) -> None:
        if self._reachability:
            self._reachability.close()
