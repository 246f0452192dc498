"""Whole federated runs over real links: the simulator's bits, killed processes, networks that let nobody in."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hub_processes
import numpy as np
import pytest
from commands import free_ports, wait_until
from federation import SETTINGS, Federation, over_hub
from hub_processes import DIM, events, round_of, task_of
from namespaces import Machines, machines

from fedgossip.algorithms.federated.names import make
from fedgossip.algorithms.sampling import Uniform
from fedgossip.base.vectors import Vector, digest
from fedgossip.learning.analytic import Quadratic
from fedgossip.net.hub.server import PROBE_SECONDS
from fedgossip.net.sockets import SILENCE_MS

pytestmark = pytest.mark.sockets

SECONDS = 60.0


def quadratic(n: int, dim: int, rounds: int) -> Federation:
    settings = replace(SETTINGS, rounds=rounds)
    return Federation(make("fedavg", clients=n), Quadratic(n, dim, dtype=np.float32), n, settings=settings)


@pytest.mark.parametrize("dim", [10, 300_000], ids=["one chunk", "by turns"])
def test_the_bits_are_the_simulators(dim: int) -> None:
    federation = quadratic(6, dim, 5)
    results = over_hub(federation)
    assert {digest([vector]) for vector in results.values()} == {federation.digest()}


def test_with_cohorts_and_memory_the_bits_are_the_simulators() -> None:
    sampling = Uniform(1, tuple(range(5)), 3)
    federation = Federation(make("scaffold", clients=5), Quadratic(5, 80_000, dtype=np.float32), 5, sampling)
    results = over_hub(federation)
    assert {digest([vector]) for vector in results.values()} == {federation.digest()}


# --- processes ------------------------------------------------------------------------------------------------------


class Run:
    """A coordinator and its clients as processes, all on this machine."""

    def __init__(self, folder: Path, n: int, rounds: int) -> None:
        self.folder, self.n, self.rounds = folder, n, rounds
        self.address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        hub_processes.make_keys(folder, n)

    def start(self, *nodes: int) -> None:
        for node in nodes:
            role, last = ("coordinator", self.rounds) if node == self.n else ("client", node)
            self.running[node] = hub_processes.start(role, self.folder, self.address, self.n, last)

    def kill(self, node: int) -> None:
        self.running[node].kill()
        self.running[node].wait()

    def rounds_more(self, count: int) -> None:
        wanted = max(0, round_of(self.folder)) + count
        wait_until(lambda: round_of(self.folder) >= wanted, SECONDS, f"round {wanted}")

    def end(self) -> None:
        for node, process in self.running.items():
            assert process.wait(SECONDS) == 0, (node, (self.folder / "log.txt").read_text()[-2000:])

    def vectors(self) -> list[Vector]:
        return [np.load(self.folder / f"{node}.npy") for node in range(self.n + 1)]

    def counted(self) -> list[int]:
        """How many clients were counted in each round."""
        return [e["value"]["clients"] for e in events(self.folder, self.n) if e["name"] == "aggregated"]

    def told(self, node: int, name: str) -> int:
        return sum(event["name"] == name for event in events(self.folder, node))


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    made = Run(tmp_path, *request.param)
    yield made
    for process in made.running.values():
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.parametrize("run", [(3, 60)], indirect=True)
def test_a_coordinator_that_is_killed_is_called_again_on_its_port_and_ends_with_the_same_bits(run: Run) -> None:
    run.start(*range(run.n + 1))
    run.rounds_more(20)
    run.kill(run.n)
    run.start(run.n)
    run.end()
    assert run.told(0, "gone") == run.told(run.n, "gone") == 0
    expected = quadratic(run.n, DIM, run.rounds).digest()
    assert {digest([vector]) for vector in run.vectors()} == {expected}
    assert [run.told(node, "refused") for node in range(run.n + 1)] == [0] * (run.n + 1)


@pytest.mark.parametrize("run", [(3, 1_000_000)], indirect=True)
def test_clients_that_are_killed_are_missed_and_take_part_again_when_they_are_back(run: Run) -> None:
    run.start(*range(run.n + 1))
    run.rounds_more(5)
    run.kill(0)
    wait_until(lambda: run.told(run.n, "gone") == 1, SECONDS, "it is missed")
    run.rounds_more(5)
    run.start(0)
    run.kill(1)
    run.start(1)  # at once: nobody needs to have missed it
    run.rounds_more(5)
    optimum = task_of(run.n).b.mean(axis=0, dtype=np.float64)
    wait_until(lambda: run.counted()[-80:] == [run.n] * 80, SECONDS, "they learn together again")
    run.running[run.n].send_signal(signal.SIGTERM)
    run.end()
    for vector in run.vectors():
        assert np.abs(vector - optimum).max() < 3 * 0.9**80, "each round goes a tenth of the way that is left"


DEAF = """
import multiprocessing, time
from hub_kit import DIM, CHUNKS, HELLO, contribution
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.hub.client import ClientLinks
from fedgossip.net.transport import Arrived, LinkDown

def talk(keys, expected, address):
    spoke = ClientLinks(0, keys[0])
    spoke.connect((1,), {1: Endpoint(address.get(), keys[1].public)}, expected, HELLO)
    while True:
        spoke.send(1, contribution(1, DIM // CHUNKS))
        spoke.poll(1)

from fedgossip.net.identity import Identity
from fedgossip.core.messages import Expected
keys, expected = [Identity.new(), Identity.new()], Expected("layout", "float32", DIM // CHUNKS)
address = multiprocessing.SimpleQueue()
talker = multiprocessing.Process(target=talk, args=(keys, expected, address))
talker.start()
from fedgossip.net.hub.server import CoordinatorLinks
hub = CoordinatorLinks(1, "tcp://127.0.0.1:*", keys[1])
hub.connect((0,), {0: Endpoint("", keys[0].public)}, expected, HELLO)
address.put(hub.address)
heard = 0
while heard < 5:
    heard += sum(isinstance(event, Arrived) for event in hub.poll(100))
time.sleep(1)
talker.kill()
talker.join()
time.sleep(3)
while LinkDown(0) not in hub.poll(100):
    pass
"""


@pytest.mark.long
def test_a_client_that_dies_while_nobody_reads_its_words_does_not_end_the_coordinator() -> None:
    """ZeroMQ's heartbeat, every 2 s, did: it speaks on a connection that it knows to be broken (libzmq issue 4364)."""
    done = subprocess.run([sys.executable, "-c", DEAF], cwd=Path(__file__).parents[1], check=False, timeout=SECONDS)
    assert done.returncode == 0


# --- networks -------------------------------------------------------------------------------------------------------

HUB, CLIENT, GATE_OUT, GATE_IN = "10.90.1.1", "10.90.2.2", "10.90.1.9", "10.90.2.9"
FORWARD = """
import socket, sys, threading
def pour(a, b):
    while data := a.recv(65536):
        b.sendall(data)
    b.shutdown(socket.SHUT_WR)
server = socket.create_server((sys.argv[1], 5700))
while True:
    inside, _ = server.accept()
    try:
        outside = socket.create_connection((sys.argv[2], 5700))
    except ConnectionRefusedError:
        inside.close()
        continue
    for pair in ((inside, outside), (outside, inside)):
        threading.Thread(target=pour, args=pair, daemon=True).start()
"""


@pytest.fixture
def networks() -> Iterator[Machines]:
    with machines({"hub": [HUB], "gate": [GATE_OUT, GATE_IN], "client": [CLIENT]}) as made:
        yield made


def test_clients_that_nobody_can_call_and_that_listen_nowhere_learn(networks: Machines, tmp_path: Path) -> None:
    """The clients' network reaches the coordinator's through a gate that forwards outgoing calls, and none back."""
    n, rounds = 2, 40
    hub_processes.make_keys(tmp_path, n)
    log = tmp_path / "log.txt"
    running = [networks.spawn("gate", [sys.executable, "-c", FORWARD, GATE_IN, HUB], tmp_path, log)]
    try:
        command = hub_processes.words("coordinator", tmp_path, f"tcp://{HUB}:5700", n, rounds)
        running.append(networks.spawn("hub", command, tmp_path, log))
        for node in range(n):
            command = hub_processes.words("client", tmp_path, f"tcp://{GATE_IN}:5700", n, node)
            running.append(networks.spawn("client", command, tmp_path, log))
        wait_until(lambda: round_of(tmp_path) >= 0, SECONDS, "they learn")
        assert "unreachable" in networks.ask("hub", ["ip", "route", "get", CLIENT])
        assert networks.ask("client", ["cat", "/proc/net/tcp", "/proc/net/tcp6"]).count(" 0A ") == 0, "none listens"
        for process in running[1:]:
            assert process.wait(SECONDS) == 0, log.read_text()[-2000:]
    finally:
        for process in running:
            process.kill()
            process.wait()
    vectors = [np.load(tmp_path / f"{node}.npy") for node in range(n + 1)]
    assert {digest([vector]) for vector in vectors} == {quadratic(n, DIM, rounds).digest()}


@pytest.mark.long
@pytest.mark.parametrize("how", ["silent", "suspended"])
def test_a_network_that_falls_silent_is_noticed_and_healed_and_so_is_a_client_that_sleeps(
    networks: Machines, tmp_path: Path, how: str
) -> None:
    n = 2
    hub_processes.make_keys(tmp_path, n)
    log = tmp_path / "log.txt"
    running = {}

    def told(name: str) -> list[float]:
        return [event["at"] for event in events(tmp_path, n) if event["name"] == name]

    def more_rounds(count: int) -> None:
        wanted = round_of(tmp_path) + count
        wait_until(lambda: round_of(tmp_path) >= wanted, SECONDS, "they learn")

    try:
        for node, machine in ((n, "hub"), (0, "gate"), (1, "gate")):
            role, last = ("coordinator", 1_000_000) if node == n else ("client", node)
            command = hub_processes.words(role, tmp_path, f"tcp://{HUB}:5700", n, last)
            running[node] = networks.spawn(machine, command, tmp_path, log)
        more_rounds(20)
        began = time.monotonic()
        if how == "silent":
            networks.silence()
            wait_until(lambda: len(told("gone")) == n, SECONDS, "both are told as gone")
            took = [at - began for at in told("gone")]
            print(f"silent: told as gone after {took} s")
            assert max(took) < SILENCE_MS / 1000 + PROBE_SECONDS + 1.0 + 2.0, "with a second of grace"
            networks.speak()
        else:
            running[0].send_signal(signal.SIGSTOP)
            wait_until(lambda: told("missed"), SECONDS, "the coordinator goes on without it")
            more_rounds(1)
            running[0].send_signal(signal.SIGCONT)
        began = time.monotonic()
        more_rounds(20)
        print(f"{how}: twenty rounds {time.monotonic() - began:.1f} s after it")
        running[n].send_signal(signal.SIGTERM)
        for process in running.values():
            assert process.wait(SECONDS) == 0, log.read_text()[-2000:]
    finally:
        for process in running.values():
            process.kill()
            process.wait()
