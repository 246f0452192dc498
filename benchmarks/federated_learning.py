"""What federated algorithms reach, by rounds: the claims of their papers on small data.

    python benchmarks/federated_learning.py drift [--seeds 5] [--rounds 100]
        SCAFFOLD, FedProx, FedNova and FedAdam beside FedAvg: digits, 20 clients, Dirichlet 0.1, cohorts of 10, the same
        partitions, cohorts, batches and first model for all of one seed (Karimireddy et al. 2020; Reddi et al. 2021)
    python benchmarks/federated_learning.py mnist [--target 0.95] [--rounds 250]
        FedAvg beside FedSGD in rounds to the target: K = 100 clients, C = 0.1, E = 5, B = 10, a CNN (McMahan et al.
        2017, table 2, where it is 20 rounds against 626 for 99 % on all of MNIST, iid), iid and two shards of sorted
        digits each; the first round in which the target is reached, of four learning rates the best for each way

Rounds without a network: the machines give the same bits, as tests/protocols/federated/test_coordinator.py shows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from crew import machine

from fedgossip.algorithms.federated.base import Federated, Vectors, Work
from fedgossip.algorithms.federated.names import make
from fedgossip.algorithms.sampling import Sampling, Uniform
from fedgossip.core.task import Job
from fedgossip.data.data import load, split
from fedgossip.data.dataset import Dataset
from fedgossip.data.partitions import partition
from fedgossip.learning.task import TorchTask, TrainSettings


def accuracies(of: Federated[Any], sampling: Sampling, task: TorchTask, clients: int, every: int) -> Iterator[float]:
    """Yield the accuracy after every `every` rounds."""
    state, memory, rule = of.server.start(task.initial(0)), dict[int, Vectors](), of.clients
    number = 0
    while True:
        received = of.server.broadcast(state)
        cohort = sampling.draw(number, range(clients)).invited
        terms = [rule.terms(received, memory.get(node, ())) for node in cohort]
        jobs = [Job(node, number, received[0], term) for node, term in zip(cohort, terms, strict=True)]
        total = of.aggregation.accumulator(rule.vectors, task.length, task.dtype)
        for node, update in zip(cohort, task.train(jobs), strict=True):
            assert update.difference is not None
            steps = int(update.metrics["steps"])
            work = Work(update.difference, update.examples, steps, update.metrics["rate"])
            up, memory[node] = rule.upload(received, memory.get(node, ()), work)
            total.add(node, rule.weight(update.examples), up, steps)
        state = of.server.step(state, total.aggregate())
        number += 1
        if number % every == 0:
            yield task.evaluate([of.server.broadcast(state)[0]])[0]["accuracy"]


def rounds_to(target: float, found: Iterator[float], every: int, limit: int) -> tuple[int | None, float]:
    """Return (the round in which the target was reached, the last accuracy)."""
    accuracy = 0.0
    for number in range(every, limit + 1, every):
        accuracy = next(found)
        if accuracy >= target:
            return number, accuracy
    return None, accuracy


DRIFT: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu": 0.1},
    "fednova": {},
    "scaffold": {},
    "fedadam": {"lr": 0.03},
    "fedavgm": {"lr": 0.3},
}


def drift(seeds: int, rounds: int) -> dict[str, Any]:
    """Return per algorithm the mean accuracy over the last half of the rounds, for every seed."""
    train, test = split(load("digits"), 0.2, 0)
    found: dict[str, list[float]] = {name: [] for name in DRIFT}
    for seed in range(seeds):
        shares = partition("dirichlet", train.y, 20, seed=seed, alpha=0.1, min_size=5)
        sampling = Uniform(seed, tuple(range(20)), 10)
        for name, options in DRIFT.items():
            settings = TrainSettings(lr=0.1, batch_size=10, local_epochs=5, device="cpu")
            task = TorchTask(train, test, shares, "mlp:64-32-10", settings, seed=seed, rounds=rounds)
            course = accuracies(make(name, clients=20, **options), sampling, task, 20, 1)
            found[name].append(float(np.mean([next(course) for _ in range(rounds)][rounds // 2 :])))
    return found


def mnist_parts() -> tuple[Dataset, Dataset]:
    whole = load("mnist")
    return split(whole, 0.2, 0)


SPLITS = {"iid": {}, "shard": {"shards_per_peer": 2}}
"""McMahan's two: examples drawn alike, and sorted by digit, two shards of forty to each client: mostly two digits."""

WAYS = {"fedavg": ((0.05, 0.1, 0.2, 0.3), 5, 10), "fedsgd": ((0.1, 0.2, 0.3, 0.4), 1, 80)}
"""Learning rates to try, passes over a client's examples, batch size; fedsgd takes one step on all of them."""


def mnist(target: float, rounds: int) -> dict[str, Any]:
    """Return per split and algorithm (rounds to the target, last accuracy, seconds, lr), of the lr that took fewest."""
    train, test = mnist_parts()
    sampling = Uniform(0, tuple(range(100)), 10)
    found: dict[str, Any] = {"examples": len(train)}
    for split_name, options in SPLITS.items():
        shares = partition(split_name, train.y, 100, seed=0, **options)
        for name, (rates, epochs, batch) in WAYS.items():
            tried = [_reached(name, lr, epochs, batch, train, test, shares, sampling, target, rounds) for lr in rates]
            found[f"{split_name} {name}"] = min(tried, key=lambda one: one[0] or 10 * rounds)
            print(f"{split_name:6} {name}:", *(f"lr {one[3]}: {one[0]}" for one in tried), flush=True)
        averaged, stepped = (found[f"{split_name} {name}"][0] for name in WAYS)
        found[f"{split_name} ratio"] = round(stepped / averaged, 1) if averaged and stepped else None
    return found


def _reached(
    name: str, lr: float, epochs: int, batch: int, train: Dataset, test: Dataset, shares: Any, sampling: Uniform,
    target: float, rounds: int,
) -> tuple[int | None, float, float, float]:  # fmt: skip
    settings = TrainSettings(lr=lr, batch_size=batch, local_epochs=epochs, device="cpu")
    task = TorchTask(train, test, shares, "cnn:small", settings, seed=0, rounds=rounds)
    began = time.monotonic()
    of = make(name, clients=100, **({"lr": lr} if name == "fedsgd" else {}))
    every = 5 if name == "fedsgd" else 1
    reached, accuracy = rounds_to(target, accuracies(of, sampling, task, 100, every), every, rounds)
    return reached, accuracy, round(time.monotonic() - began, 1), lr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["drift", "mnist"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.what == "mnist":
        results = mnist(options.target, options.rounds or 250)
    else:
        results = drift(options.seeds, options.rounds or 100)
    if options.json:
        print(json.dumps(results))
        return
    print(machine())
    for name, values in results.items():
        print(f"{name:16}", values if options.what == "mnist" else " ".join(f"{value:.3f}" for value in values))
        if options.what == "drift" and name != "fedavg":
            paired = np.array(values) - np.array(results["fedavg"])
            print(f"{'':16} against fedavg {paired.mean():+.4f}, better in {(paired > 0).sum()} of {len(paired)} seeds")


if __name__ == "__main__":
    main()
