"""A watched run: a federated run's settings and coordinator's rows, the state of each peer, and bounded curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedgossip.algorithms.sampling import participating
from fedgossip.core.records import EventRow, PeerRow
from fedgossip.topology import Topology

FEDBUFF = "fedbuff"


@dataclass(frozen=True)
class Federation:
    """`wanted`: clients in a round; None if its coordinator waits for none."""

    clients: int
    algorithm: str = "fedavg"
    wanted: int | None = None
    secure: bool = True

    @property
    def coordinator(self) -> int:
        return self.clients

    @property
    def method(self) -> str:
        return f"{self.algorithm}, {'secure sum' if self.secure else 'IN THE CLEAR'}"


def federation_of(content: Mapping[str, Any]) -> Federation | None:
    """Return an experiment file's settings of a coordinator; None without valid ones."""
    section = content.get("coordinator")
    clients = section.get("clients") if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(clients, int) or clients < 1:
        return None
    algorithm, secure = str(section.get("algorithm", "fedavg")), section.get("secure")
    cohort, share = section.get("cohort"), section.get("participation", 1.0)
    share = share if isinstance(share, float) and 0 < share <= 1 else 1.0
    wanted = cohort if isinstance(cohort, int) else participating(clients, share)
    on = secure.get("on", True) if isinstance(secure, dict) else True
    return Federation(clients, algorithm, None if algorithm == FEDBUFF else wanted, on is not False)


def star(clients: int) -> Topology:
    """Return the links of a federated run, with the coordinator drawn in the middle."""
    turn = 2 * np.pi * np.arange(clients) / clients
    positions = np.stack([np.append(np.sin(turn), 0.0), np.append(np.cos(turn), 0.0)], axis=1)
    return Topology.from_edges(clients + 1, [(k, clients) for k in range(clients)], "star", positions=positions)


class Led:
    """The state in the rows of a coordinator."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.contributions: int | None = None
        """Contributions to the last round."""
        self.abandoned = 0
        """Number of rounds that changed nothing."""
        self.tested: PeerRow | None = None
        """Newest row with the clients' measurements, of the model of the round before."""
        self.curves = {"contributions": Curve(), "clients": Curve()}

    def row(self, row: PeerRow) -> None:
        """Process the coordinator's row of a round."""
        self.contributions = row.clients or 0
        self.curves["contributions"].add(row.round, self.contributions)
        if row.score_clients is not None:
            self.tested = row
            self.curves["clients"].add(row.round - 1, row.score_clients, row.score_worst_client)

    def event(self, row: EventRow) -> None:
        self.abandoned += row.name == "abandoned"

    def answered(self, peers: Iterable[Peer]) -> int | None:
        """Return the number of clients that have trained for the open round; None if no client's rows are read."""
        peers = list(peers)
        if not any(peer.known for peer in peers if peer.node != self.federation.coordinator):
            return None
        return sum(word == "answered" for word in self._words(peers))

    def _words(self, peers: Iterable[Peer]) -> Iterable[str]:
        there = {peer.node: peer for peer in peers}
        leader = there.get(self.federation.coordinator)
        return (self.word(peer, leader.round) for peer in there.values()) if leader else ()

    def word(self, peer: Peer, round: int) -> str:
        """Return the state of a participant without trouble after `round` rounds of the coordinator."""
        f = self.federation
        if peer.node == f.coordinator:
            return "leading" if round else "starting"
        if peer.round > round:
            return "answered"
        if not round and not peer.turns:
            return "starting"
        return "training" if f.wanted == f.clients else "ready"


SMOOTHING = 0.3
"""Weight of a peer's newest round in its share of waiting."""


@dataclass(slots=True)
class Mark:
    """One peer's report on another: "gone", "missed" or "suspected", after `round` completed rounds."""

    name: str
    round: int


@dataclass(slots=True)
class Peer:
    """The newest state of one peer.  Bytes are sums over the rounds in the record, `waiting` is a share of
    recent time.
    """

    node: int
    watched: bool = True
    round: int = 0
    loss: float | None = None
    score: float | None = None
    tested: int = 0
    """Round of that score."""
    bytes_sent: int = 0
    bytes_received: int = 0
    waiting: float | None = None
    fallen: str = ""
    asleep: bool = False
    ended: str = ""
    """Its final status: finished, partial, interrupted, failed."""
    left: bool = False
    """Whether it has sent a goodbye."""
    gone_since: int | None = None
    """Completed rounds of the reporting peer."""
    counted: int = 0
    """Last round with bytes in the sums."""
    turns: int = 0
    """Number of rounds in the record."""
    seen_by: dict[int, Mark] = field(default_factory=dict)
    ways: dict[int, str] = field(default_factory=dict)
    """Its routes to other peers, if it has reported them: direct, relayed or by_web."""

    @property
    def known(self) -> bool:
        """Whether its rows can be read here, or some were."""
        return self.watched or self.turns > 0

    @property
    def heard(self) -> bool:
        """Whether its rows include its links; they do from its first round on."""
        return self.watched and self.round > 0

    def witnesses(self, name: str) -> list[int]:
        """Return the peers that report `name` for this peer, ascending."""
        return sorted(other for other, mark in self.seen_by.items() if mark.name == name)

    def step(self, row: PeerRow) -> None:
        """Apply a row newer than the state."""
        self.round = row.round
        self.loss = row.loss if row.loss is not None else self.loss
        if row.score is not None:
            self.score, self.tested = row.score, row.round
        whole = row.seconds_training + row.seconds_communicating + row.seconds_waiting + row.seconds_mixing
        if whole > 0:
            share = row.seconds_waiting / whole
            self.waiting = share if self.waiting is None else self.waiting + SMOOTHING * (share - self.waiting)
        if self.gone_since is not None and row.round > self.gone_since + 1:  # a neighbour is at most one round ahead
            self.gone_since = None

    def back(self) -> None:
        """Mark it as present again, on a peer's report.  A crashed peer may return; a process that died may not."""
        self.gone_since, self.left = None, False
        if self.fallen == "crashed":
            self.fallen = ""

    def returned(self, round: int | None) -> None:
        """Mark it as alive again, from `round` on if known: its later work is lost."""
        self.gone_since, self.left, self.fallen = None, False, ""
        self.round = self.round if round is None else round


POINTS_KEPT = 400
"""Maximum number of points of a curve, which is then thinned to half."""

Point = tuple[int, tuple[float | None, ...]]
"""A round, and the values in it."""


class Curve:
    """Points (round, values), thinned evenly to `most`; the newest is always included."""

    def __init__(self, most: int = POINTS_KEPT) -> None:
        self._most = most
        self._points: list[Point] = []
        self._every = 1
        self._count = 0
        self._last: Point | None = None

    def add(self, round: int, *values: float | None) -> None:
        self._last = (round, values)
        if self._count % self._every == 0:
            self._points.append(self._last)
        self._count += 1
        if len(self._points) > self._most:
            del self._points[1::2]
            self._every *= 2

    def points(self) -> list[Point]:
        last = [self._last] if self._last and self._last is not self._points[-1] else []
        return self._points + last
