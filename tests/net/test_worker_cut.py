"""Workers of a collective whose network falls silent for a moment, in namespaces: the bits of an undisturbed run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import wait_until
from namespaces import Machines, machines
from safetensors.numpy import load_file

from fedgossip import simulate
from fedgossip.base.vectors import digest
from fedgossip.net.endpoints import Endpoint, text
from fedgossip.net.identity import Identity

pytestmark = [pytest.mark.sockets, pytest.mark.root]

SIDES = {"left": (0, 1), "right": (2, 3)}
ADDRESSES = {node: f"10.88.0.{node + 1}" for node in range(4)}
ROUNDS, CUT_SECONDS, SECONDS = 200, 0.3, 60.0
EXPERIMENT = f"""
rounds = {ROUNDS}
task = {{ kind = "quadratic", dim = 400, sigma = 0.3 }}
train = {{ lr = 0.1 }}
eval = {{ every = {ROUNDS} }}
[parallel]
method = "METHOD"
workers = 4
"""


@pytest.fixture
def network() -> Iterator[Machines]:
    with machines({side: [ADDRESSES[node] for node in nodes] for side, nodes in SIDES.items()}) as made:
        yield made


def rounds(folder: Path, node: int) -> int:
    """How many the record of a worker has."""
    path = folder / f"out{node}" / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return sum('"kind":"peer"' in line for line in lines)


@pytest.mark.parametrize("method", ["ring", pytest.param("star", marks=pytest.mark.long)])
def test_a_network_that_is_silent_for_300_ms_changes_no_bit(network: Machines, method: str, tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(EXPERIMENT.replace("METHOD", method))
    keys = {node: Identity.new() for node in ADDRESSES}
    for node, key in keys.items():
        key.save(tmp_path / f"{node}.key")
    where = {node: Endpoint(f"tcp://{ADDRESSES[node]}:5700", key.public) for node, key in keys.items()}
    (tmp_path / "endpoints.toml").write_text(text(sorted(where.items())))
    running = []
    try:
        for side, nodes in SIDES.items():
            for node in nodes:
                words = ["worker", path.name, "--id", str(node), "--endpoints", "endpoints.toml"]
                words += ["--key", f"{node}.key", "--out", f"out{node}"]
                running.append(network.start(side, words, tmp_path, tmp_path / f"log{node}.txt"))
        wait_until(lambda: min(rounds(tmp_path, node) for node in ADDRESSES) > 20, SECONDS, "all of them are at work")
        network.silence()
        time.sleep(CUT_SECONDS)
        network.speak()
        assert min(rounds(tmp_path, node) for node in ADDRESSES) < ROUNDS, "they were done before it was cut"
        assert [process.wait(SECONDS) for process in running] == [0] * 4
    finally:
        for process in running:
            process.kill()
            process.wait()
    ends = {digest([load_file(tmp_path / f"out{node}" / "vector.safetensors")["vector"]]) for node in ADDRESSES}
    assert ends == {digest([simulate(path).vectors[0]])}
    records = [(tmp_path / f"out{node}" / "metrics.jsonl").read_text() for node in ADDRESSES]
    assert not [name for name in ("worker_gone", "regrouped") if name in "".join(records)], "nobody was missed"
