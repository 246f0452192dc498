"""Flower's older gRPC server with clients as processes: milliseconds of a federated round that learns nothing.

    PYTHON_WITH_FLWR benchmarks/flower.py --clients 8 --parameters 1000000 --rounds 10

Run by fedavg_round.py --flower PYTHON_WITH_FLWR; imports nothing of fedgossip.  One float32 array each way, FedAvg,
no evaluation.  Prints JSON: the milliseconds of each round, from one aggregate to the next, and the CPU seconds of the
server and of all clients in them, each from its part in the round before to its part in the last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import socket
import time
from typing import Any

import numpy as np
from flwr.client import NumPyClient, start_client
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg

WARM = 3
SECONDS = 60.0
"""How long clients may take to tell what they have spent, when all is over."""


class NoOp(NumPyClient):
    def __init__(self, d: int) -> None:
        self.update = [np.random.default_rng(0).standard_normal(d, np.float32)]
        self.cpu: list[float] = []  # seconds, at the end of each training

    def fit(self, parameters: Any, config: Any) -> Any:
        self.cpu.append(time.process_time())
        return self.update, 1, {}


class Timed(FedAvg):
    """FedAvg that notes when each round was aggregated."""

    ends: list[float]
    cpu: list[float]

    def aggregate_fit(self, *arguments: Any) -> Any:
        result = super().aggregate_fit(*arguments)
        self.ends.append(time.monotonic())
        self.cpu.append(time.process_time())
        return result


def take_part(address: str, d: int, spent: Any) -> None:
    logging.disable()
    client = NoOp(d)
    start_client(server_address=address, client=client.to_client(), insecure=True)
    spent.put(client.cpu[-1] - client.cpu[WARM - 1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    logging.disable()
    n, d = options.clients, options.parameters
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    context = multiprocessing.get_context("spawn")
    spent: Any = context.Queue()
    clients = [context.Process(target=take_part, args=(address, d, spent), daemon=True) for _ in range(n)]
    for client in clients:
        client.start()
    first = ndarrays_to_parameters([np.zeros(d, np.float32)])
    strategy = Timed(
        fraction_evaluate=0.0,
        min_fit_clients=n,
        min_available_clients=n,
        min_evaluate_clients=0,
        initial_parameters=first,
    )
    strategy.ends, strategy.cpu = [], []
    config = ServerConfig(num_rounds=WARM + options.rounds)
    start_server(server_address=address, config=config, strategy=strategy)
    cpu = strategy.cpu[-1] - strategy.cpu[WARM - 1] + sum(spent.get(timeout=SECONDS) for _ in clients)
    for client in clients:
        client.join(10)
    print(json.dumps({"ms": [1000 * float(ms) for ms in np.diff(strategy.ends[WARM - 1 :])], "cpu_seconds": cpu}))


if __name__ == "__main__":
    main()
