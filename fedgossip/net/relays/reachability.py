"""The address at which a peer is reached: all of its addresses are tried, and a relay meanwhile.

    at once                 the first address is called, and all are tried in parallel, by handshakes with its key
    the first that answers  is called from then on
    none for a second       the relay is called, if there is one; the others are tried again every ten seconds
    no link by a relay      after RELAY_SECONDS the next relay is called: those by TCP first, those by the web last
    a link that broke       all are tried again

A handshake, not a connection: another machine may have the same address on another network.  A thread tries; the links'
owner calls `take` for the addresses to call.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import zmq

from fedgossip.base.errors import FedgossipError
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.core.machine import NodeId
from fedgossip.net.endpoints import RELAY, Endpoint, addresses_of, is_relay
from fedgossip.net.identity import Identity
from fedgossip.net.sockets import ZmqSocket, make
from fedgossip.net.transport import LinkEvent, Relocated, Routed

HEAD_SECONDS = 1.0
"""Seconds for the direct addresses before a relay is called."""
TRY_SECONDS = 3.0
"""Seconds for one try of all direct addresses."""
AGAIN_SECONDS = 10.0
"""Seconds between two tries while a relay is used, or the peer is not reached."""
RELAY_SECONDS = 4.0
"""Seconds for a link through one relay, before the next one is called."""
TURN_MS = 100
TRIES_MAX = 64
"""Maximum number of handshakes at the same time."""

Through = Callable[[str, str], str]
"""Function from (relay, key) to the local address for reaching the key's holder through the relay."""
Fault = Callable[[str, str], FedgossipError | None]
"""Function from (relay, key) to the reason why the key's holder is not reached through the relay now."""


@dataclass(frozen=True, slots=True)
class Route:
    """Current address for calling `node`; `relay` is the relay behind that address, "" for none."""

    node: NodeId
    address: str
    relay: str = ""


@dataclass(slots=True)
class _Reached:
    node: NodeId
    key: str
    direct: list[str]
    relays: list[str]
    now: Route
    due: float
    up: bool = False
    began: float = 0.0
    relayed_at: float = 0.0
    """Time when the present relay was chosen, or the link through it was last seen up."""
    tries: dict[ZmqSocket, tuple[ZmqSocket, str]] = field(default_factory=dict)
    """By each one's monitor: the calling socket and the address."""


class Reachability:
    """`wake` is called when `take` has routes.  All methods may be called from the thread of the links."""

    def __init__(self, identity: Identity, through: Through | None, wake: Callable[[], None]) -> None:
        self.identity, self._through, self._wake = identity, through, wake
        self._peers: dict[NodeId, _Reached] = {}
        self._found: list[Route] = []
        self._leaving: list[_Reached] = []  # the thread closes their sockets
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._context: zmq.Context[ZmqSocket] = zmq.Context(1)
        self._poller = zmq.Poller()
        self._thread = guarded_thread(self._run, "ways")
        self._thread.start()

    def find_route(self, node: NodeId, key: str, addresses: Sequence[str]) -> Route:
        """Return the first route to a peer; `take` returns better ones later."""
        direct = [one for one in addresses if not is_relay(one)]
        relays = [one for one in addresses if is_relay(one)] if self._through else []
        relays.sort(key=lambda one: not one.startswith(RELAY))  # relays by the web last
        with self._lock:
            known = self._peers.get(node)
            if known and (known.key, known.direct, known.relays) == (key, direct, relays):
                known.up, known.due = False, 0.0
                return known.now
            self._leaving += [known] if known else []
            first = Route(node, direct[0]) if direct else self._relayed(node, relays[0], key) if relays else None
            now = first or Route(node, addresses[0])
            self._peers[node] = _Reached(node, key, direct, relays, now, time.monotonic())
            return now

    def forget(self, node: NodeId) -> None:
        with self._lock:
            known = self._peers.pop(node, None)
            self._leaving += [known] if known else []

    def relay_of(self, node: NodeId) -> str:
        """Return the relay by which a peer is called now; "" for none."""
        with self._lock:
            return self._peers[node].now.relay if node in self._peers else ""

    def linked(self, node: NodeId, *, up: bool) -> None:
        """Record that a link is up, or broken."""
        with self._lock:
            if (peer := self._peers.get(node)) is not None:
                peer.up = up
                if not up:
                    peer.due = 0.0

    def take(self) -> list[Route]:
        """Return the routes to peers with a new address to call from now on."""
        with self._lock:
            found, self._found = self._found, []
        return found

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for peer in [*self._peers.values(), *self._leaving]:
            self._drop(peer)
        self._context.term()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            with self._lock:
                self._begin_tries(time.monotonic())
                self._turn_relays(time.monotonic())
            if not self._poller.sockets:
                self._ended.wait(TURN_MS / 1000)
                continue
            ready = dict(self._poller.poll(TURN_MS))
            with self._lock:
                self._look(ready, time.monotonic())

    def _begin_tries(self, now: float) -> None:
        while self._leaving:
            self._drop(self._leaving.pop())
        for peer in self._peers.values():
            if peer.tries or now < peer.due:
                continue
            if peer.up and not peer.now.relay:
                peer.due = float("inf")
                continue
            if sum(len(one.tries) for one in self._peers.values()) >= TRIES_MAX:
                return
            peer.began = now
            for address in peer.direct:
                with contextlib.suppress(zmq.ZMQError, FedgossipError):
                    self._try(peer, address)
            if not peer.tries:
                peer.due = now + AGAIN_SECONDS

    def _turn_relays(self, now: float) -> None:
        for peer in self._peers.values():
            if peer.up or not peer.now.relay:
                peer.relayed_at = now
            elif len(peer.relays) > 1 and now - peer.relayed_at > RELAY_SECONDS:
                following = peer.relays[(peer.relays.index(peer.now.relay) + 1) % len(peer.relays)]
                peer.relayed_at = now
                if (way := self._relayed(peer.node, following, peer.key)) is not None:
                    self._go(peer, way, go_on=True)

    def _try(self, peer: _Reached, address: str) -> None:
        dealer = make(self._context, zmq.DEALER)
        dealer.linger = 0
        dealer.curve_serverkey = peer.key.encode()
        dealer.curve_secretkey = self.identity.secret.encode()
        dealer.curve_publickey = self.identity.public.encode()
        monitor = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        peer.tries[monitor] = dealer, address
        self._poller.register(monitor, zmq.POLLIN)
        dealer.connect(address)

    def _look(self, ready: dict[object, int], now: float) -> None:
        for peer in list(self._peers.values()):
            reached = [address for monitor, (_, address) in peer.tries.items() if monitor in ready]
            if reached:
                self._go(peer, Route(peer.node, reached[0]))
            over = now - peer.began
            late = peer.tries and over > HEAD_SECONDS and not peer.up and not peer.now.relay and peer.relays
            if late and (way := self._relayed(peer.node, peer.relays[0], peer.key)) is not None:
                self._go(peer, way, go_on=True)
            if peer.tries and over > TRY_SECONDS:
                self._drop(peer)
                peer.due = now + AGAIN_SECONDS

    def _go(self, peer: _Reached, way: Route, *, go_on: bool = False) -> None:
        if not go_on:
            self._drop(peer)
            peer.due = time.monotonic() + AGAIN_SECONDS
        if way != peer.now:
            peer.now = way
            self._found.append(way)
            self._wake()

    def _relayed(self, node: NodeId, relay: str, key: str) -> Route | None:
        if self._through is None:
            return None
        try:
            return Route(node, self._through(relay, key), relay)
        except (FedgossipError, OSError, TimeoutError):
            return None

    def _drop(self, peer: _Reached) -> None:
        for monitor, (dealer, _) in peer.tries.items():
            self._poller.unregister(monitor)
            dealer.disable_monitor()
            monitor.close(0)
            dealer.close(0)
        peer.tries.clear()


WHEREABOUTS_SECONDS = 1.0
"""Seconds between two checks of the local addresses."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Routes from a participant to others, in addition to their addresses, and its own addresses.

    `through`: reaches a key's holder by a relay, or None; `fault`: why it does not.  `whereabouts`: returns the present
    addresses; None if they do not change, or no other participant receives them.
    """

    through: Through | None = None
    whereabouts: Callable[[], str] | None = None
    fault: Fault | None = None


DIRECT = Ways()


class Routing:
    """Routes of one process's links; while every partner has one address, nothing is tried and no thread runs."""

    def __init__(self, identity: Identity | None, wake: Callable[[], None]) -> None:
        self._identity, self._wake = identity, wake
        self._endpoints: dict[NodeId, Endpoint] = {}
        self._reachability: Reachability | None = None
        self._through: Through | None = None
        self._fault: Fault | None = None
        self._whereabouts: Callable[[], str] | None = None
        self._where, self._looked_at = "", time.monotonic()
        self._uninformed: set[NodeId] = set()  # peers without a message since the last move

    def reach(self, ways: Ways) -> None:
        """Use relays, and check the local addresses periodically.  Call it before the first connection."""
        self._through, self._whereabouts, self._fault = ways.through, ways.whereabouts, ways.fault
        self._where = ways.whereabouts() if ways.whereabouts else ""

    def first(self, node: NodeId, endpoint: Endpoint, events: list[LinkEvent]) -> Endpoint:
        """Return where to call `node` now; with several addresses the best is determined meanwhile."""
        self._endpoints[node] = endpoint
        addresses = addresses_of(endpoint.address)
        if (len(addresses) < 2 and not is_relay(addresses[0])) or self._identity is None:
            return endpoint
        self._reachability = self._reachability or Reachability(self._identity, self._through, self._wake)
        route = self._reachability.find_route(node, endpoint.key, addresses)
        if route.relay:
            events.append(Routed(node, route.relay))
        return replace(endpoint, address=route.address)

    def relay_of(self, node: NodeId) -> str:
        """Return the relay through which a partner is called now; "" if it is called directly."""
        return self._reachability.relay_of(node) if self._reachability else ""

    def fault(self, node: NodeId) -> FedgossipError | None:
        """Return why a partner is not reached through its relay; None if it is called directly."""
        if not (relay := self.relay_of(node)) or self._fault is None:
            return None
        return self._fault(relay, self._endpoints[node].key)

    def forget(self, node: NodeId) -> None:
        """Stop routing to `node`."""
        self._endpoints.pop(node, None)
        self._uninformed.discard(node)
        if self._reachability:
            self._reachability.forget(node)

    def linked(self, node: NodeId, *, up: bool, events: list[LinkEvent]) -> None:
        """Record that the link to `node` is up, or broken."""
        if self._reachability:
            self._reachability.linked(node, up=up)
        if up and node in self._uninformed:
            self._uninformed.discard(node)
            events.append(Relocated(self._where))

    def moves(self, events: list[LinkEvent]) -> Iterator[tuple[NodeId, Endpoint]]:
        """Yield each peer to connect to again, with its address: those with a better route; all if this machine has
        moved, as old connections may be dead.
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
            self._where, self._uninformed = where, set(self._endpoints)
            for node, endpoint in list(self._endpoints.items()):
                yield node, self.first(node, endpoint, events)

    def close(self) -> None:
        if self._reachability:
            self._reachability.close()
