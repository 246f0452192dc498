"""A coordinator and its clients in the simulator: node n is the coordinator of clients 0 to n - 1."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from by_hand import reported

from fedgossip.algorithms.federated.base import Federated
from fedgossip.algorithms.sampling import Sampling, Uniform
from fedgossip.base.vectors import Vector, digest
from fedgossip.core.machine import Checkpoint, Effect, Event, Machine, Report
from fedgossip.core.messages import Expected, Hello
from fedgossip.core.metrics import Network
from fedgossip.core.records import Row
from fedgossip.core.task import LocalTask
from fedgossip.faults import Fault, FaultScript
from fedgossip.net.endpoints import Endpoint, Endpoints
from fedgossip.net.host import Host
from fedgossip.net.host_ports import Ports
from fedgossip.net.hub.client import ClientLinks
from fedgossip.net.hub.server import CoordinatorLinks
from fedgossip.net.identity import Identity
from fedgossip.net.links.mesh import Links
from fedgossip.net.transport import Transport
from fedgossip.protocols.federated.buffered import Buffered, BufferedSettings
from fedgossip.protocols.federated.client import Client, ClientSettings
from fedgossip.protocols.federated.coordinator import Coordinator, CoordinatorSettings
from fedgossip.simulation.network import NetworkSettings, SimulatedNetwork
from fedgossip.simulation.simulator import Simulator

SECOND = 1_000_000_000
SETTINGS = CoordinatorSettings(
    10, deadline_ns=300 * SECOND, start_ns=5 * SECOND, return_ns=3 * SECOND, drain_ns=5 * SECOND, again_ns=SECOND // 4
)
QUIET = NetworkSettings()
PATIENT = ClientSettings(SETTINGS.rounds, silence_ns=60 * SECOND, idle_ns=600 * SECOND)


@dataclass
class Federation:
    """What is run; `make` gives the machine of a node, a fresh one or one that goes on."""

    of: Federated[Any]
    task: LocalTask
    n: int
    sampling: Sampling | None = None
    settings: CoordinatorSettings | BufferedSettings = SETTINGS
    client_settings: ClientSettings = PATIENT
    network: NetworkSettings = QUIET
    faults: Sequence[dict[str, Any]] = ()
    seed: int = 0
    rows: list[Row] = field(default_factory=list)
    told: list[tuple[int, Report]] = field(default_factory=list)
    """(node, report) of all machines, as they came."""

    def make(self, node: int, resumed: Checkpoint | None = None) -> Machine:
        initial = self.task.initial(node)
        if node < self.n:
            settings = replace(self.client_settings, rounds=self.settings.rounds)
            return Client(node, self.n, self.of.clients, initial, self.task.schema, settings, resumed)
        clients = tuple(range(self.n))
        if isinstance(self.settings, BufferedSettings):
            return Buffered(node, clients, self.of, initial, self.task.schema, self.settings, resumed)
        sampling = self.sampling or Uniform(self.seed, clients, self.n)
        schema = self.task.schema
        return Coordinator(node, clients, self.of, sampling, initial, schema, self.settings, resumed)

    def simulator(self) -> Simulator:
        links = [(self.n,)] * self.n + [tuple(range(self.n))]
        known = {(node, other) for node, others in enumerate(links) for other in others}
        script = FaultScript(msgspec.convert(list(self.faults), list[Fault]), self.n + 1, self.seed, known)
        record = Network(self.n + 1, self.settings.rounds, 1, self.task.evaluate, watch_all=False)
        for client in range(self.n):
            record.ended(client)  # has no rounds of its own
        machines = [_Heard(self.make(node), node, self.told) for node in range(self.n + 1)]

        def reborn(node: int, _life: int, saved: Checkpoint | None) -> Machine:
            return _Heard(self.make(node, saved), node, self.told)

        network = SimulatedNetwork(self.network, self.n + 1, self.seed)
        write = self.rows.append
        return Simulator(machines, links, self.task, network, record, write, script=script, rebirth=reborn)

    def run(self, limit: float = 3600.0) -> tuple[dict[int, Vector], Simulator]:
        simulator = self.simulator()
        return simulator.run(limit), simulator

    def digest(self, **changed: Any) -> str:
        """Of the coordinator's last model."""
        results, _ = replace(self, rows=[], told=[], **changed).run()
        return digest([results[self.n]])

    def reports(self, name: str, node: int | None = None) -> list[Any]:
        of = self.n if node is None else node
        return [report.value for at, report in self.told if at == of and report.name == name]


def over_sockets(of: Federation) -> dict[int, Vector]:
    """Run it over TCP with CURVE, every host a thread of this process; return every node's result."""
    identities = [Identity.new() for _ in range(of.n + 1)]
    sockets = [Links(node, "tcp://127.0.0.1:*", identities[node]) for node in range(of.n + 1)]
    endpoints = {node: Endpoint(sockets[node].address, identities[node].public) for node in range(of.n + 1)}
    return _run(of, sockets, endpoints)


def over_hub(of: Federation) -> dict[int, Vector]:
    """The same, with clients that only call and a coordinator that is only called."""
    identities = [Identity.new() for _ in range(of.n + 1)]
    hub = CoordinatorLinks(of.n, "tcp://127.0.0.1:*", identities[of.n])
    spokes = [ClientLinks(node, identities[node]) for node in range(of.n)]
    endpoints = {node: Endpoint("", identity.public) for node, identity in enumerate(identities)}
    return _run(of, [*spokes, hub], {**endpoints, of.n: Endpoint(hub.address, identities[of.n].public)})


def _run(of: Federation, sockets: Sequence[Transport], endpoints: Endpoints) -> dict[int, Vector]:
    links = [(of.n,)] * of.n + [tuple(range(of.n))]
    expected = Expected(of.task.schema, of.task.dtype.name, of.task.length, of.of.clients.vectors)
    hello = Hello(of.task.schema, "federation", "test")
    results: dict[int, Vector] = {}
    failures: list[BaseException] = []

    def be(node: int) -> None:
        try:
            sockets[node].connect(links[node], endpoints, expected, hello)
            ports = Ports(lambda _: None, lambda *_: None, lambda *_: None, lambda: bool(failures))
            results[node] = Host(node, of.make(node), sockets[node], of.task, hello, ports).run()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=be, args=(node,)) for node in range(of.n + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


class _Heard:
    """Stands round a machine and keeps what it reports."""

    def __init__(self, machine: Machine, node: int, told: list[tuple[int, Report]]) -> None:
        self.machine, self.node, self.told = machine, node, told

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        effects = self.machine.handle(event, now_ns)
        self.told += [(self.node, report) for report in map(reported, effects) if report]
        return effects
