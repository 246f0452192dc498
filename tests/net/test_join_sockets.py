"""A 2-of-3 join over two network namespaces with addresses of their own, as two machines on a LAN would do it.

The graph is a function of the user's own: it is asked for two members, and for three.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import wait_until

from fedgossip.core.machine import NodeId
from fedgossip.net.endpoints import Endpoint, block
from fedgossip.net.identity import Identity
from fedgossip.protocols.members.membership_updates import admission_of

pytestmark = pytest.mark.sockets

OURS, THEIRS = "fedgossip-a", "fedgossip-b"
ADDRESSES = {0: "10.77.0.1", 1: "10.77.0.3", 2: "10.77.0.2"}
ROUNDS = 100_000
SECONDS = 60.0

EVERYBODY = """
from fedgossip.topology import Topology

def everybody(n, seed):
    return Topology.from_edges(n, [(u, v) for v in range(n) for u in range(v)], "everybody")
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def two_machines() -> Iterator[None]:
    """Two namespaces, a cable between them; 0 and 1 on the left, 2 on the right."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and `ip` to make network namespaces")
    names = (OURS, THEIRS)
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "fg-a", "netns", OURS, "type", "veth", "peer", "name", "fg-b", "netns", THEIRS)
    except subprocess.CalledProcessError as error:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
    try:
        for name, device, addresses in ((OURS, "fg-a", (0, 1)), (THEIRS, "fg-b", (2,))):
            for node in addresses:
                ip("-n", name, "addr", "add", f"{ADDRESSES[node]}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class Site:
    """The files of three people, and their processes."""

    def __init__(self, folder: Path, deadline: float) -> None:
        self.folder = folder
        self.processes: dict[NodeId, subprocess.Popen[bytes]] = {}
        keys = {node: Identity.new() for node in range(3)}
        organiser = Identity.new()
        for node, key in keys.items():
            key.save(folder / f"{node}.key")
        where = {n: Endpoint(f"tcp://{ADDRESSES[n]}:5700", k.public, k.verify) for n, k in keys.items()}
        admission = organiser.sign(admission_of(2, keys[2].public, keys[2].verify))
        first = f"organiser = '{organiser.verify}'\n" + "\n".join(block(n, where[n]) for n in (0, 1))
        (folder / "endpoints.toml").write_text(first)
        late = block(2, Endpoint(where[2].address, where[2].key, where[2].verify, admission))
        (folder / "late.toml").write_text(f"{first}\n{late}")
        text = f'seed = 1\nrounds = {ROUNDS}\n[topology]\ngraph = "ours:everybody"\nn = 3\n'
        more = f'[algorithm]\ndeadline = {deadline}\n[task]\nkind = "quadratic"\ndim = 2000\n'
        (folder / "experiment.toml").write_text(text + more)
        (folder / "ours.py").write_text(EVERYBODY)

    def start(self, node: NodeId, *more: str) -> None:
        endpoints = "late.toml" if node == 2 else "endpoints.toml"
        words = ["peer", "experiment.toml", "--id", str(node), "--endpoints", endpoints, "--key", f"{node}.key"]
        command = [sys.executable, "-m", "fedgossip", *words, "--members", "--out", f"out{node}", *more]
        name = THEIRS if node == 2 else OURS
        with (self.folder / f"log{node}.txt").open("wb") as log:
            there = ["ip", "netns", "exec", name, *command]
            pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self.processes[node] = subprocess.Popen(there, cwd=self.folder, **pipes)  # type: ignore[call-overload]

    def again(self, node: NodeId) -> None:
        """Start one that was killed; what it had is gone."""
        self.processes[node].wait()
        shutil.rmtree(self.folder / f"out{node}")
        self.start(node, "--join")

    def rows(self, node: NodeId) -> list[dict[str, Any]]:
        path = self.folder / f"out{node}" / "metrics.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def round(self, node: NodeId) -> int:
        return max((row["round"] for row in self.rows(node) if row["kind"] == "peer"), default=0)

    def events(self, node: NodeId, name: str) -> list[Any]:
        return [row["value"] for row in self.rows(node) if row["kind"] == "event" and row["name"] == name]

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.mark.parametrize(
    "first_dies", [False, pytest.param(True, marks=pytest.mark.long)], ids=["both there", "the first one killed"]
)
def test_a_third_joins_two_from_another_machine(two_machines: None, tmp_path: Path, first_dies: bool) -> None:
    site = Site(tmp_path, deadline=5.0 if first_dies else 60.0)  # where nobody dies nobody is to be missed
    try:
        site.start(0)
        site.start(1)
        wait_until(lambda: site.round(1) > 20, SECONDS, "0 and 1 learn")
        if first_dies:
            site.processes[0].send_signal(signal.SIGKILL)
            verdict = lambda: [said for said in site.events(1, "gone") if isinstance(said, dict)]  # noqa: E731
            wait_until(lambda: verdict() and site.round(1) > verdict()[0]["until"], SECONDS, "1 goes on without 0")
        site.start(2, "--join")
        wait_until(lambda: site.events(2, "fetched"), SECONDS, "2 fetches the model")
        wait_until(lambda: site.round(2) > 50, SECONDS, "2 learns with the others")
        assert site.events(2, "fetched")[0]["model_of_round"] > 10
        began = min(row["round"] for row in site.rows(2) if row["kind"] == "peer")
        missed = {row["round"] for row in site.rows(2) if row["kind"] == "event" and row["name"] == "missed"}
        assert began > 20 and missed <= {*range(began - 1, began + len(missed))}  # none behind its first links
        for one, other in ((1, 2), (2, 1)):
            reached = site.round(one)
            wait_until(lambda other=other, at=reached: site.round(other) > at, SECONDS, "they go on together")
        if first_dies:
            site.again(0)
            wait_until(lambda: site.events(0, "fetched"), SECONDS, "0 fetches the model")
            reached = site.round(2)
            wait_until(lambda: site.round(0) > reached, SECONDS, "0 learns with the others again")
    finally:
        site.stop()
