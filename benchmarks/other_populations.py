"""The work of population.py in other programs: FedAvg of softmax, a cohort of simulated clients, no secure sum.

    PYTHON benchmarks/other_populations.py --program pfl|flower --clients 1000 --cohort 50 --rounds 23

Run by population.py --beside PYTHON, a Python that has pfl (pfl-research) or flwr with ray; imports nothing of
fedgossip.  Softmax of 16 columns and 4 classes, one made-up example for each client, one step of SGD.  Prints
[CPU seconds of all processes, CPU seconds of a round, peak MB of this process]; nothing is evaluated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import torch

COLUMNS, CLASSES, RATE, FIRST = 16, 4, 0.1, 3


def example_of(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's example: columns [1, 16], and its class."""
    random = np.random.default_rng(client)
    x = random.standard_normal((1, COLUMNS), np.float32)
    return torch.from_numpy(x), torch.from_numpy(random.integers(0, CLASSES, 1))


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all below it: Ray's workers are not its children."""
    found: dict[int, tuple[int, float]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            of = place.read_text().rpartition(")")[2].split()
            found[int(place.parent.name)] = int(of[1]), sum(map(int, of[11:15])) / os.sysconf("SC_CLK_TCK")
    below = {os.getpid()}
    while more := {pid for pid, (parent, _) in found.items() if parent in below} - below:
        below |= more
    return sum(found[pid][1] for pid in below)


def run_pfl(clients: int, cohort: int, rounds: int) -> list[float]:
    """Return the CPU time at the end of each round."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    ends: list[float] = []

    class Softmax(torch.nn.Linear):
        def loss(self, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = False) -> Any:
            return torch.nn.functional.cross_entropy(self(inputs), targets)

        def metrics(self, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = False) -> Any:
            return {"loss": Weighted(self.loss(inputs, targets, eval).item(), len(targets))}

    class Ends(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, _metrics: Any, model: Any, *, central_iteration: int) -> Any:
            ends.append(cpu_seconds())
            return False, Metrics()

    def of_client(client: int) -> Dataset:
        return Dataset(example_of(client))

    data = FederatedDataset(of_client, get_user_sampler("random", list(range(clients))))
    module = Softmax(COLUMNS, CLASSES)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, rounds * 10, cohort, 0),
        SimulatedBackend(data, data),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=None),
        callbacks=[Ends()],
        send_metrics_to_platform=False,
    )
    return ends


def run_flower(clients: int, cohort: int, rounds: int) -> list[float]:
    """Return the CPU time at the end of each round."""
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import Context, ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    ends: list[float] = []

    class Trained(NumPyClient):  # type: ignore[misc]
        def __init__(self, client: int) -> None:
            self.x, self.y = example_of(client)

        def fit(self, parameters: Any, config: Any) -> Any:
            module = torch.nn.Linear(COLUMNS, CLASSES)
            module.load_state_dict(dict(zip(("weight", "bias"), map(torch.from_numpy, parameters), strict=True)))
            torch.nn.functional.cross_entropy(module(self.x), self.y).backward()
            torch.optim.SGD(module.parameters(), lr=RATE).step()
            return [one.detach().numpy() for one in module.parameters()], 1, {}

    class Timed(FedAvg):  # type: ignore[misc]
        def aggregate_fit(self, *round: Any) -> Any:
            found = super().aggregate_fit(*round)
            ends.append(cpu_seconds())
            return found

    def client_of(context: Context) -> Any:
        return Trained(int(context.node_config["partition-id"])).to_client()

    def server_of(_context: Context) -> ServerAppComponents:
        first = ndarrays_to_parameters([np.zeros((CLASSES, COLUMNS), np.float32), np.zeros(CLASSES, np.float32)])
        share = cohort / clients
        strategy = Timed(
            fraction_fit=share,
            fraction_evaluate=0.0,
            min_fit_clients=cohort,
            min_available_clients=clients,
            initial_parameters=first,
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    how: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {"num_cpus": 2}}
    server, client = ServerApp(server_fn=server_of), ClientApp(client_fn=client_of)
    run_simulation(server, client, num_supernodes=clients, backend_config=how)
    return ends


PROGRAMS = {"pfl": run_pfl, "flower": run_flower}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", choices=PROGRAMS, required=True)
    for name in ("clients", "cohort", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    logging.disable()
    torch.set_num_threads(1)
    ends = PROGRAMS[options.program](options.clients, options.cohort, options.rounds)
    a_round = (ends[-1] - ends[FIRST]) / (len(ends) - 1 - FIRST)  # a clock of 10 ms has no median
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([ends[-1], a_round, peak]))


if __name__ == "__main__":
    main()
