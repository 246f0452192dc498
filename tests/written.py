"""Run directories that no run wrote: rows as they would be, added while somebody watches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row, RowWriter
from fedgossip.core.roles import peer_roles
from fedgossip.report.watch.follow import Follower
from fedgossip.report.watch.places import find
from fedgossip.report.watch.state import State
from fedgossip.topology import resolve

MEAN = """seed = 1
rounds = {rounds}
name = {name}
[topology]
graph = "{graph}"
n = {n}
[task]
kind = "averaging"
"""


def peer_row(peer: int, round: int, **changes: Any) -> PeerRow:
    facts = {"loss": 0.5, "score": None, "bytes_sent": 1000, "bytes_received": 900, "seconds": 0.1 * round}
    return PeerRow(round, peer, **{**facts, **changes}, seconds_training=0.3, seconds_waiting=0.1, seconds_mixing=0.0)


def network_row(round: int, n: int = 4, accuracy: float | None = None, distance: float | None = 0.25) -> NetworkRow:
    row = NetworkRow(round, n, 0.1 * round, 1000 * n * round, loss=0.5, consensus_distance=distance)
    if accuracy is not None:
        row.test_loss = 0.4
        row.score_averaged, row.score_mean_peer, row.score_worst_peer = (
            accuracy,
            accuracy - 0.1,
            accuracy - 0.2,
        )
    return row


def rounds(first: int, last: int, peers: Iterator[int] | range = range(4), accuracy: float | None = None) -> list[Row]:
    """All rows of these rounds, as a run writes them."""
    peers = list(peers)
    return [
        row
        for r in range(first, last + 1)
        for row in (*(peer_row(p, r) for p in peers), network_row(r, len(peers), accuracy))
    ]


class Written:
    """A run directory that is being written."""

    def __init__(self, path: Path, n: int = 4, total: int = 20, graph: str = "ring", name: str = "it") -> None:
        path.mkdir(parents=True)
        self.path = path
        (path / "INCOMPLETE").touch()
        (path / "experiment.toml").write_text(MEAN.format(rounds=total, graph=graph, n=n, name=json.dumps(name)))
        self.add(network_row(0, n))

    def add(self, *rows: Row) -> None:
        with RowWriter(self.path / "metrics.jsonl") as writer:
            for row in rows:
                writer.write(row)

    def end(self, status: str = "finished", **facts: object) -> None:
        summary = {"status": status, "driver": "sim", "wall_seconds": 2.5, **facts}
        (self.path / "summary.json").write_text(json.dumps(summary))
        (self.path / "INCOMPLETE").unlink()


def read(*folders: Path) -> Follower:
    follower = Follower(find(folders))
    while follower.poll(10.0):
        pass
    return follower


def told(*rows: Row, n: int = 4, graph: str = "ring") -> State:
    state = State(peer_roles(n), 20, resolve(graph, n))
    for row in rows:
        state.take(row)
    return state


def conditions(state: State) -> list[str]:
    return [state.condition(state.peers[node]) for node in sorted(state.peers)]


def gone(by: int, node: int, round: int) -> EventRow:
    return EventRow(round, by, "gone", node)


def missed(by: int, round: int, *nodes: int) -> EventRow:
    return EventRow(round, by, "missed", list(nodes))
