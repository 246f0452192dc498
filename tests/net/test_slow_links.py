"""Real workers over slow links: namespaces at 50 Mbit/s and 30 ms one way."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slow_links import FarMachines, far_machines

from fedgossip import simulate
from fedgossip.base.vectors import digest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import shaped_links

pytestmark = [pytest.mark.sockets, pytest.mark.root]

RECEIVER = """
import socket
with socket.create_server(("10.88.0.2", 5000)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    with connection:
        while data := connection.recv(1 << 16):
            connection.send(data[:1])
"""
SENDER = """
import socket, time
with socket.create_connection(("10.88.0.2", 5000)) as connection:
    began = time.monotonic()
    connection.send(b"x")
    connection.recv(1)
    print(time.monotonic() - began)
    began, count = time.monotonic(), 2_000_000
    connection.sendall(bytes(count))
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(1 << 16):
        pass
    print(8 * count / (time.monotonic() - began))
"""


@pytest.fixture
def networks() -> Iterator[FarMachines]:
    with far_machines(shaped_links.ADDRESSES, shaped_links.MBIT, shaped_links.LATENCY) as made:
        yield made


def test_a_link_has_its_latency_and_at_most_its_rate(networks: FarMachines, tmp_path: Path) -> None:
    receiver = networks.spawn("m1", [sys.executable, "-u", "-c", RECEIVER], tmp_path, tmp_path / "log")
    try:
        until = time.monotonic() + 60.0
        while "listening" not in (tmp_path / "log").read_text():
            assert time.monotonic() < until
            time.sleep(0.02)
        there_and_back, rate = map(float, networks.ask("m0", [sys.executable, "-c", SENDER]).split())
        assert receiver.wait(60.0) == 0
    finally:
        receiver.kill()
        receiver.wait()
    assert there_and_back >= 2 * shaped_links.LATENCY and rate <= 1e6 * shaped_links.MBIT
    assert networks.switch is not None and networks.switch.carried["10.88.0.1"] > 2_000_000


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", [way for way in shaped_links.WAYS if way != "every step"])
def test_four_workers_far_apart_have_the_bits_and_the_bytes_of_the_simulator(
    way: str, networks: FarMachines, tmp_path: Path
) -> None:
    local, more = shaped_links.WAYS[way]
    content = shaped_links.experiment("", 112, local, more)
    with shaped_links.started(networks, tmp_path, content) as workers:
        workers.wait()
        real = shaped_links.measured([row for node in workers.nodes for row in workers.rows(node)], local)
        ends = set(workers.ends())
    run = simulate(content, engine="sim")
    assert ends == {digest([run.vectors[0]])}
    seen = shaped_links.measured(run.rows, local)
    assert real.step_bytes == pytest.approx(seen.step_bytes, rel=0.01)
    assert 0.3 < real.share <= 1.0, "links and processors work at the same time, however busy this machine is"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_where_a_worker_far_away_is_killed_every_ten_seconds_nobody_stalls(
    networks: FarMachines, tmp_path: Path
) -> None:
    local, more = shaped_links.WAYS[shaped_links.CHOSEN]
    content = shaped_links.experiment("", 4200, local, more)
    with shaped_links.started(networks, tmp_path, content) as workers:
        seen = workers.wait(10.0)  # all end well, or it raises
        assert len(workers.ends()) == 1
    assert seen.deaths >= 2 and seen.longest < 15.0
