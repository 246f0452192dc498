"""A watched federated run: its experiment's settings, and its coordinator's rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.algorithms.sampling import participating
from fedgossip.core.records import EventRow, PeerRow
from fedgossip.report.watch.curves import Curve
from fedgossip.report.watch.peers import Peer
from fedgossip.topology import Topology

FEDBUFF = "fedbuff"


@dataclass(frozen=True)
class Federation:
    """`wanted`: clients in a round; None where its coordinator waits for none."""

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
    wanted = cohort if isinstance(cohort, int) else participating(clients, share if isinstance(share, float) else 1.0)
    on = secure.get("on", True) if isinstance(secure, dict) else True
    return Federation(clients, algorithm, None if algorithm == FEDBUFF else wanted, on is not False)


def star(clients: int) -> Topology:
    """Return the links of a federated run, drawn with the coordinator in the middle."""
    turn = 2 * np.pi * np.arange(clients) / clients
    positions = np.stack([np.append(np.sin(turn), 0.0), np.append(np.cos(turn), 0.0)], axis=1)
    return Topology.from_edges(clients + 1, [(k, clients) for k in range(clients)], "star", positions=positions)


class Led:
    """The state in the rows of a coordinator."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.contributions: int | None = None
        """To the last round."""
        self.abandoned = 0
        """Rounds that changed nothing."""
        self.tested: PeerRow | None = None
        """The newest row with the clients' measurements, of the model of the round before."""
        self.curves = {"contributions": Curve(), "clients": Curve()}

    def row(self, row: PeerRow) -> None:
        """Take the coordinator's row of a round."""
        self.contributions = row.clients or 0
        self.curves["contributions"].add(row.round, self.contributions)
        if row.score_clients is not None:
            self.tested = row
            self.curves["clients"].add(row.round - 1, row.score_clients, row.score_worst_client)

    def event(self, row: EventRow) -> None:
        self.abandoned += row.name == "abandoned"

    def answered(self, peers: Iterable[Peer]) -> int | None:
        """How many have trained for the round that is open; None where no client's rows are read."""
        peers = list(peers)
        if not any(peer.known for peer in peers if peer.node != self.federation.coordinator):
            return None
        return sum(word == "answered" for word in self._words(peers))

    def _words(self, peers: Iterable[Peer]) -> Iterable[str]:
        there = {peer.node: peer for peer in peers}
        leader = there.get(self.federation.coordinator)
        return (self.word(peer, leader.round) for peer in there.values()) if leader else ()

    def word(self, peer: Peer, round: int) -> str:
        """Where one is that is well, when the coordinator has `round` rounds behind it."""
        f = self.federation
        if peer.node == f.coordinator:
            return "leading" if round else "starting"
        if peer.round > round:
            return "answered"
        if not round and not peer.turns:
            return "starting"
        return "training" if f.wanted == f.clients else "ready"
