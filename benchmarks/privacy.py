"""What privacy costs: drawing noise, gradients per example, and what is learned under how much noise.

    python benchmarks/privacy.py [--only noise,steps,learning] [--turns 5] [--json]

    noise      ns per number of the discrete Gaussian, beside numpy's Gaussian rounded to integers, same turn
    steps      ms of a private training step beside one of the same loop without privacy, same turn
    learning   accuracy on the digits after federated averaging of 10 clients, when the noise in each round's mean is
               so many times the largest update, as `privacy.forecast` has it: for whole clients, and with DP-SGD

CPU time of the process, one thread, medians over turns.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from crew import machine

from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.task import Job
from fedgossip.data import data
from fedgossip.data.partitions import partition
from fedgossip.learning.dp_sgd.record_privacy import RecordPrivacy, private_rate
from fedgossip.learning.settings import TrainSettings
from fedgossip.learning.task import TorchTask
from fedgossip.privacy.accounting import Mechanism, epsilon
from fedgossip.secure.noise import discrete_gaussian

NUMBERS = 1_000_000
SIGMAS = (0.5, 1.0, 8.0, 1e3, 2.0**20, 2.0**24, 2.0**28)
STEP_MODELS = (("cnn:small", (1, 28, 28)), ("mlp:784-128-10", (784,)), ("mlp:784-1000-10", (784,)))
CLIENTS, CLIP, DELTA = 10, 1.0, 1e-5
BATCH, STEPS = 16, 5
RATIOS = (0.0, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0, 14.0, 30.0)
RECORD_RATIOS = (0.0, 0.1, 0.3, 0.6, 1.0, 2.0, 3.0, 5.0)
ROUNDS = (20, 100)


def cpu_ns(call: Callable[[], object]) -> float:
    start = time.process_time_ns()
    call()
    return float(time.process_time_ns() - start)


def noise(turns: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)

    def rounded(sigma: float) -> object:
        return np.rint(rng.normal(0.0, sigma, NUMBERS)).astype(np.int64)

    rows = []
    for sigma in SIGMAS:
        ours, theirs = [], []
        for _ in range(turns):
            ours.append(cpu_ns(partial(discrete_gaussian, sigma, NUMBERS, os.urandom)) / NUMBERS)
            theirs.append(cpu_ns(partial(rounded, sigma)) / NUMBERS)
        ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
        rows.append({"sigma": sigma, "ns": median(ours), "rounded normal ns": median(theirs), "ratio": ratio})
    return rows


def steps(turns: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = []
    for model, shape in STEP_MODELS:
        x = rng.standard_normal((1280, *shape)).astype(np.float32)
        dataset = data.from_arrays("random", x, rng.integers(0, 10, 1280))
        how = TrainSettings(batch_size=64, local_steps=10, device="cpu")
        tasks = [
            TorchTask(dataset, dataset, [np.arange(1280)], model, how, seed=1, rounds=99, privacy=privacy)
            for privacy in (None, RecordPrivacy(CLIP, 1.0))
        ]
        times: list[list[float]] = [[], []]
        for turn in range(turns + 1):  # the first warms up
            for task, found in zip(tasks, times, strict=True):
                found.append(cpu_ns(partial(task.train, [Job(0, turn, task.initial(0))])) / 1e6 / 10)
        plain, private = (median(found[1:]) for found in times)
        rows.append({"model": model, "private ms": private, "plain ms": plain, "ratio": private / plain})
    return rows


def learning(_turns: int) -> list[dict[str, Any]]:
    train, test = data.split(data.load("digits"), 0.2, 0)
    shares = partition("iid", train.labels, CLIENTS, seed=0)
    rows = []
    for model in ("softmax", "mlp:64-64-10"):
        for ratio in RATIOS:
            task = task_of(train, test, shares, model, None)
            rows.append({"unit": "client", "model": model, "noise / update": ratio} | accuracies(task, ratio))
        for ratio in RECORD_RATIOS:
            z = ratio * BATCH * (STEPS * CLIENTS / task.length) ** 0.5
            task = task_of(train, test, shares, model, RecordPrivacy(CLIP, z))
            rate = private_rate(task.settings, min(map(len, shares)))
            spent = {f"epsilon {r}": epsilon([Mechanism(z, rate, r * STEPS)], DELTA) for r in ROUNDS}
            rows.append(
                {"unit": "record", "model": model, "noise / update": ratio, "z": z} | accuracies(task, 0.0) | spent
            )
    return rows


def task_of(
    train: data.Dataset, test: data.Dataset, shares: Sequence[Any], model: str, privacy: RecordPrivacy | None
) -> TorchTask:
    how = TrainSettings(lr=0.5, batch_size=BATCH, local_steps=STEPS, device="cpu")
    return TorchTask(train, test, list(shares), model, how, seed=0, rounds=max(ROUNDS), privacy=privacy)


def accuracies(task: TorchTask, ratio: float) -> dict[str, float]:
    """Return the accuracy after each of ROUNDS, the mean of the last three rounds."""
    vector, found = task.initial(0), []
    for round in range(max(ROUNDS)):
        updates = task.train([Job(node, round, vector) for node in range(CLIENTS)])
        longest = CLIP if ratio else np.inf  # DP-SGD has cut its gradients already
        mean = sum(shortened(update.difference, longest) for update in updates) / CLIENTS
        drawn = stream(0, "noise", round).standard_normal(task.length) * (ratio * CLIP / task.length**0.5)
        vector = frozen((vector + mean + drawn).astype(np.float32))
        found.append(task.evaluate([vector])[0]["accuracy"])
    return {f"accuracy {rounds}": sum(found[rounds - 3 : rounds]) / 3 for rounds in ROUNDS}


def shortened(update: Vector | None, longest: float) -> Any:
    assert update is not None
    return update.astype(np.float64) * min(1.0, longest / float(np.linalg.norm(update)))


PARTS: dict[str, Callable[[int], list[dict[str, Any]]]] = {"noise": noise, "steps": steps, "learning": learning}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {name: PARTS[name](given.turns) for name in given.only.split(",")}
    if given.json:
        print(json.dumps({"machine": machine(), **found}))
        return
    for name, rows in found.items():
        print(name)
        for row in rows:
            print(
                "   ",
                "  ".join(
                    f"{key} {value:.3g}" if isinstance(value, float) else f"{value}" for key, value in row.items()
                ),
            )


if __name__ == "__main__":
    main()
