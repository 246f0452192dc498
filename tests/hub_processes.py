"""A coordinator or a client as a process of its own, with the real host and its links; it learns a quadratic.

    python hub_processes.py coordinator FOLDER ADDRESS N ROUNDS
    python hub_processes.py client FOLDER ADDRESS N NODE

FOLDER has the keys.  SIGTERM ends it politely.  It writes, each named by its node: events (a JSON line each, with its
second on the machine's clock), round (the coordinator's), vector.npy at its end; the coordinator a checkpoint and the
number of its life.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgossip.algorithms.federated.names import make
from fedgossip.algorithms.sampling import Uniform
from fedgossip.base.errors import FedgossipError
from fedgossip.core.machine import Checkpoint, Machine
from fedgossip.core.messages import Expected, Hello
from fedgossip.core.records import EventRow, PeerRow, Row
from fedgossip.core.run_format import CHECKPOINT
from fedgossip.learning.analytic import Quadratic
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.host import Host
from fedgossip.net.host_ports import Ports
from fedgossip.net.hub.client import ClientLinks
from fedgossip.net.hub.server import CoordinatorLinks
from fedgossip.net.identity import Identity
from fedgossip.net.transport import Transport
from fedgossip.protocols.federated.client import Client, ClientSettings
from fedgossip.protocols.federated.coordinator import Coordinator, CoordinatorSettings
from fedgossip.runs import checkpoints
from fedgossip.runs.checkpoints import About, Stored

DIM = 150_000
"""Three chunks of float32: clients take turns."""
SECOND = 1_000_000_000


def task_of(n: int) -> Quadratic:
    return Quadratic(n, DIM, dtype=np.float32)


def make_keys(folder: Path, n: int) -> None:
    for node in range(n + 1):
        Identity.new().save(folder / f"{node}.key")


def words(role: str, folder: Path, address: str, n: int, last: int) -> list[str]:
    """Return the command that starts one."""
    return [sys.executable, __file__, role, str(folder), address, str(n), str(last)]


def start(role: str, folder: Path, address: str, n: int, last: int) -> subprocess.Popen[bytes]:
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(words(role, folder, address, n, last), stdout=log, stderr=log)


def round_of(folder: Path) -> int:
    """How many rounds are done, -1 before the first; whatever it is doing now."""
    try:
        return int((folder / "round").read_text() or -1)
    except FileNotFoundError:
        return -1


def events(folder: Path, node: int) -> list[dict[str, Any]]:
    path = folder / f"{node}.events"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Life:
    def __init__(self, folder: Path, address: str, n: int, node: int) -> None:
        self.folder, self.address, self.n, self.node, self.task = folder, address, n, node, task_of(n)
        self.keys = [Identity.load(folder / f"{k}.key") for k in range(n + 1)]
        self.stopped = False
        self.incarnation = 0
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def run(self, machine: Machine, links: Transport, partners: Sequence[int]) -> None:
        hello = Hello(self.task.schema, "federation", "test", self.incarnation, secrets.randbits(53))
        endpoints = {node: Endpoint(self.address, key.public) for node, key in enumerate(self.keys)}
        links.wake_on_signals()
        links.connect(partners, endpoints, Expected(self.task.schema, "float32", DIM), hello)
        ports = Ports(self._write, lambda *_: None, self._mixed, lambda: self.stopped, self._checkpoint)
        try:
            vector = Host(self.node, machine, links, self.task, hello, ports).run()
        except FedgossipError as error:
            self._write(EventRow(0, self.node, "failed", str(error)))
            raise SystemExit(error.exit_code) from None
        np.save(self.folder / f"{self.node}.npy", vector)

    def _write(self, row: Row) -> None:
        if isinstance(row, EventRow):
            self._put_down(row.name, row.value)
        elif isinstance(row, PeerRow) and self.node == self.n:
            self._put_down("aggregated", {"clients": row.clients})

    def _put_down(self, name: str, value: object) -> None:
        with (self.folder / f"{self.node}.events").open("a") as file:
            file.write(json.dumps({"name": name, "value": value, "at": time.monotonic()}) + "\n")

    def _mixed(self, row: PeerRow, _vector: object) -> None:
        part = self.folder / "round.part"
        part.write_text(str(row.round))
        part.replace(self.folder / "round")

    def _checkpoint(self, checkpoint: Checkpoint) -> None:
        if self.node == self.n:
            checkpoints.write(self.folder, Stored(About(self.n, self.task.schema, "test", {}), checkpoint, {}))


def coordinate(folder: Path, address: str, n: int, rounds: int) -> None:
    life, clients, of = Life(folder, address, n, n), tuple(range(n)), make("fedavg", clients=n)
    lives = folder / "lives"
    life.incarnation = int(lives.read_text()) + 1 if lives.exists() else 0
    lives.write_text(str(life.incarnation))
    newest = folder / CHECKPOINT
    resumed = checkpoints.read(newest).machine if newest.exists() else None
    settings = CoordinatorSettings(rounds, deadline_ns=20 * SECOND, return_ns=20 * SECOND, drain_ns=5 * SECOND)
    sampling, task = Uniform(0, clients, n), life.task
    machine = Coordinator(n, clients, of, sampling, task.initial(n), task.schema, settings, resumed)
    life.run(machine, CoordinatorLinks(n, address, life.keys[n]), clients)


def take_part(folder: Path, address: str, n: int, node: int) -> None:
    life, rule = Life(folder, address, n, node), make("fedavg", clients=n).clients
    settings = ClientSettings(1_000_000, silence_ns=60 * SECOND)
    machine = Client(node, n, rule, life.task.initial(node), life.task.schema, settings)
    life.run(machine, ClientLinks(node, life.keys[node]), (n,))


if __name__ == "__main__":
    role, folder, address, n, last = sys.argv[1:]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    (coordinate if role == "coordinator" else take_part)(Path(folder), address, int(n), int(last))
