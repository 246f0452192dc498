"""decentralizepy's rounds on a ring of processes: milliseconds of a gossip round in which nothing is learned.

    PYTHON_WITH_DECENTRALIZEPY benchmarks/decentralizepy_round.py --peers 4 --parameters 1000000 --rounds 10

Run by gossip_round.py --decentralizepy PYTHON_WITH_DECENTRALIZEPY; imports nothing of fedgossip.  Its own TCP
communication and Sharing (Metropolis weights), on a module of one float32 parameter; it encrypts nothing.  Prints JSON:
the milliseconds of each round, from the last peer's end to the last peer's next end, and the CPU seconds of all peers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import socket
import tempfile
import time
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from decentralizepy.communication.TCP import TCP
from decentralizepy.graphs.Ring import Ring
from decentralizepy.mappings.Linear import Linear
from decentralizepy.node.Node import Node
from decentralizepy.sharing.Sharing import Sharing

WARM = 3
SECONDS = 600.0
"""How long a peer may take before the measurement is given up."""

CHANNEL = "DPSGD"
"""The word under which it sends models."""


class Idle(torch.nn.Module):
    """One parameter [d]."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(d))


class Peer(Node):
    """Its node without data, training, tests and plots: what is left of a round is `exchange`."""

    def __init__(self, node: int, n: int, d: int, port: int, folder: str) -> None:
        mapping, graph = Linear(1, n), Ring(n)
        self.cache_fields(node, 0, mapping, graph, 0, folder)
        self.message_queue: dict[str, Any] = {}
        self.barrier: set[int] = set()
        self.my_neighbors = graph.neighbors(node)
        addresses = str(Path(folder) / "addresses.json")
        self.communication = TCP(node, 0, mapping, n, addresses, offset=port)
        self.sharing = Sharing(node, 0, self.communication, mapping, graph, Idle(d), None, folder)
        self.came: dict[int, deque[Any]] = {neighbour: deque() for neighbour in self.my_neighbors}

    def exchange(self, iteration: int) -> None:
        """Send the model to both neighbours; average it with theirs when both are here."""
        word = self.sharing.get_data_to_send(degree=len(self.my_neighbors))
        word["CHANNEL"] = CHANNEL
        for neighbour in self.my_neighbors:
            self.communication.send(neighbour, word)
        while not all(self.came.values()):
            sender, model = self.receive_channel(CHANNEL)
            self.came[sender].append(model)
        assert all(models[0]["iteration"] == iteration for models in self.came.values())
        self.sharing._averaging(self.came)


def take_part(node: int, n: int, d: int, port: int, folder: str, rounds: int, ends: Any) -> None:
    torch.set_num_threads(1)
    peer = Peer(node, n, d, port, folder)
    peer.connect_neighbors()
    found, cpu = [], 0.0
    for iteration in range(WARM + rounds):
        peer.exchange(iteration)
        found.append(time.monotonic())
        if iteration == WARM - 1:
            cpu = time.process_time()
    ends.put((found, time.process_time() - cpu))
    peer.disconnect_neighbors()


def free_port(n: int) -> int:
    """Return an offset from which the odd ports of n peers are free now."""
    for port in range(20_000, 60_000, 2 * n):
        with contextlib.suppress(OSError), contextlib.ExitStack() as taken:
            for node in range(n):
                taken.enter_context(socket.create_server(("127.0.0.1", port + 2 * node + 1)))
            return port
    raise OSError("no free ports")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", type=int, required=True)
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    n = options.peers
    context = multiprocessing.get_context("fork")  # as every contestant's processes are
    ends: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "addresses.json").write_text(json.dumps({"0": "127.0.0.1"}))
        ring = (n, options.parameters, free_port(n), folder, options.rounds, ends)
        peers = [context.Process(target=take_part, args=(node, *ring), daemon=True) for node in range(n)]
        for peer in peers:
            peer.start()
        found = [ends.get(timeout=SECONDS) for _ in peers]
        for peer in peers:
            peer.join(10)
    last = [max(at) for at in zip(*(times for times, _ in found), strict=True)][WARM - 1 :]
    ms = [1000 * (after - before) for before, after in pairwise(last)]
    print(json.dumps({"ms": ms, "cpu_seconds": sum(cpu for _, cpu in found)}))


if __name__ == "__main__":
    main()
