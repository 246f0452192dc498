"""Two sides of a switch that falls silent, in network namespaces: both learn on, and find each other again after."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import wait_until
from namespaces import Machines, machines
from safetensors.numpy import load_file

from fedgossip.base.vectors import consensus_distance
from fedgossip.core.machine import NodeId
from fedgossip.learning.analytic import Quadratic
from fedgossip.net.endpoints import Endpoint, text
from fedgossip.net.identity import Identity
from fedgossip.net.sockets import SILENCE_MS

pytestmark = [pytest.mark.sockets, pytest.mark.root]

LEFT, RIGHT = (0, 1), (2, 3)
ADDRESSES = {node: f"10.88.0.{node + 1}" for node in (*LEFT, *RIGHT)}
DIM, ETA = 100, 0.02
NEWEST_BYTES = 10_000
"""Some twenty rounds of a record."""

SECONDS = 40.0
HEALED_SECONDS = 15.0

EXPERIMENT = f"""
rounds = 1_000_000
[topology]
graph = "complete"
n = 4
[task]
kind = "quadratic"
dim = {DIM}
eta = {ETA}
[algorithm]
mode = "MODE"
deadline = 2.0
least_deadline = 0.5
[eval]
every = 1_000_000
"""


class Peers:
    """Four people on two sides; `mode` as in the experiment."""

    def __init__(self, folder: Path, network: Machines, mode: str) -> None:
        self.folder, self.network = folder, network
        self.running: dict[NodeId, subprocess.Popen[bytes]] = {}
        (folder / "experiment.toml").write_text(EXPERIMENT.replace("MODE", mode))
        keys = {node: Identity.new() for node in ADDRESSES}
        for node, key in keys.items():
            key.save(folder / f"{node}.key")
        where = {node: Endpoint(f"tcp://{ADDRESSES[node]}:5700", key.public) for node, key in keys.items()}
        (folder / "endpoints.toml").write_text(text(sorted(where.items())))

    def start(self) -> None:
        for node in ADDRESSES:
            words = ["peer", "experiment.toml", "--id", str(node), "--endpoints", "endpoints.toml"]
            words += ["--key", f"{node}.key", "--out", f"out{node}"]
            side = "left" if node in LEFT else "right"
            self.running[node] = self.network.start(side, words, self.folder, self.folder / f"log{node}.txt")

    def rows(self, node: NodeId, kind: str, newest_bytes: int | None = None) -> list[dict[str, Any]]:
        path = self.folder / f"out{node}" / "metrics.jsonl"
        if not path.exists():
            return []
        with path.open("rb") as file:
            from_ = max(0, path.stat().st_size - newest_bytes) if newest_bytes else 0
            file.seek(from_)
            lines = file.read().splitlines(keepends=True)[bool(from_) :]  # the first may begin in the middle
        whole = [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"\n")]
        return [row for row in whole if row["kind"] == kind]

    def rounds(self) -> list[int]:
        return [max((row["round"] for row in self.rows(node, "peer", NEWEST_BYTES)), default=0) for node in ADDRESSES]

    def loss(self, node: NodeId) -> float:
        """The loss of its newest models on its own data, per coordinate."""
        newest = self.rows(node, "peer", NEWEST_BYTES)
        return float(np.mean([row["loss"] for row in newest])) / DIM

    def told(self) -> dict[str, list[int]]:
        """How often each peer was told what."""
        counts = [Counter(row["name"] for row in self.rows(node, "event")) for node in ADDRESSES]
        return {name: [count[name] for count in counts] for name in sorted(set().union(*counts))}

    def stop(self) -> None:
        """Ctrl-C to everyone, at once."""
        for process in self.running.values():
            process.send_signal(signal.SIGINT)
        for process in self.running.values():
            assert process.wait(SECONDS) == 130

    def vectors(self) -> list[Any]:
        return [load_file(self.folder / f"out{node}" / "vector.safetensors")["vector"] for node in ADDRESSES]

    def kill(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def network() -> Iterator[Machines]:
    with machines({"left": [ADDRESSES[i] for i in LEFT], "right": [ADDRESSES[i] for i in RIGHT]}) as made:
        yield made


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("mode", "how", "seconds"),
    [
        pytest.param("sync", "silent", SILENCE_MS / 1000 + 4.0, marks=LONG),
        pytest.param("sync", "unplugged", SILENCE_MS / 1000 + 4.0, marks=LONG),
        pytest.param("sync", "silent", 3.0, marks=LONG),
        pytest.param("sync", "silent", 60.0, marks=LONG),
        pytest.param("async", "silent", SILENCE_MS / 1000 + 4.0, marks=LONG),
    ],
)
def test_two_sides_learn_on_and_find_each_other_again(
    network: Machines, mode: str, how: str, seconds: float, tmp_path: Path
) -> None:
    peers = Peers(tmp_path, network, mode)
    apart = mean_losses(LEFT, RIGHT)
    together = mean_losses((*LEFT, *RIGHT))
    try:
        peers.start()
        wait_until(lambda: min(peers.rounds()) > 200, SECONDS, "all of them learn")
        assert near(peers, together)
        (network.silence if how == "silent" else lambda: network.cut("left"))()
        time.sleep(seconds / 2)
        halfway = peers.rounds()
        time.sleep(seconds / 2)
        later = peers.rounds()
        assert all(b > a + 20 for a, b in zip(halfway, later, strict=True)), "both sides learn on"
        assert near(peers, apart), [peers.loss(i) for i in ADDRESSES]
        (network.speak if how == "silent" else lambda: network.mend("left"))()
        healed = time.monotonic()
        wait_until(lambda: near(peers, together), HEALED_SECONDS, "what was apart is one again")
        took = time.monotonic() - healed
        time.sleep(1.0)
        assert near(peers, together)
        peers.stop()
    finally:
        peers.kill()
    print(f"{mode}, {how} for {seconds:g} s: rounds {later}, one again after {took:.1f} s")
    print(peers.told())
    if seconds > SILENCE_MS / 1000:
        assert min(peers.told()["gone"]) >= 2, "everyone heard that those of the other side are gone"
    vectors = peers.vectors()
    assert consensus_distance(vectors) < 0.1 * np.sqrt(DIM)
    assert np.abs(np.mean(vectors, axis=0)).max() < 0.05, "the optimum of all is 0"


def mean_losses(*groups: tuple[NodeId, ...]) -> dict[NodeId, float]:
    """Return every peer's loss per coordinate where each group has come to the optimum of its own data."""
    b = Quadratic(4, 1).b[:, 0]
    return {i: float((b[list(group)].mean() - b[i]) ** 2 / 2) for group in groups for i in group}


def near(peers: Peers, expected: dict[NodeId, float]) -> bool:
    return all(abs(peers.loss(node) - loss) < 0.15 for node, loss in expected.items())
