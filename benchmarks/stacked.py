"""Microseconds per node and step of simulated nodes, mixing included, beside a plain torch loop over modules.

    python benchmarks/stacked.py [--nodes 1000] [--rounds R] [--device cuda] [--json]

One SGD step of 32 examples a round, a random 4-regular graph, one thread.  The loop trains the same models on the
same examples and mixes nothing.

With --device the models stay on it as they do on a GPU, also where it is the CPU, and the loop is a plain one over the
whole stack there: batched layers, autograd, and a gather of the neighbours' rows.  It mixes too.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from crew import machine, median
from resident import Clock, plain_round, staying_on
from torch import nn

from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.core.metrics import Network
from fedgossip.data import data
from fedgossip.learning.models import models
from fedgossip.learning.task import TorchTask, TrainSettings
from fedgossip.simulation.resident_rounds import run_arrays
from fedgossip.topology import build, resolve

MODELS = {"softmax 64-10": "softmax", "MLP 64-128-10": "mlp:64-128-10"}
BATCH, EXAMPLES, LR = 32, 64, 0.1
"""Examples of a step and of a node; the learning rate."""


def examples(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n * EXAMPLES, 64), np.float32), rng.integers(0, 10, n * EXAMPLES)


def rounds_of(source: str, n: int, rounds: int, between: Callable[[], None], device: str = "cpu") -> None:
    """Train and mix so many rounds of n nodes on stacked arrays, with their records; the last alone is evaluated."""
    dataset = data.from_arrays("random", *examples(n))
    shares = np.arange(n * EXAMPLES).reshape(n, EXAMPLES)
    settings = TrainSettings(lr=LR, batch_size=BATCH, local_steps=1, device=device)
    task = TorchTask(dataset, dataset.subset(shares[0]), list(shares), source, settings, seed=0, rounds=rounds)
    graph = build(resolve("regular:4", n, seed=0), "metropolis")
    record = Network(n, rounds, rounds, task.evaluate, watch_all=False)
    run_arrays(task, graph, DSGD(), rounds, record, lambda _: None, between=between)


def loop_round(source: str, n: int) -> Callable[[int], None]:
    """Return a function that takes one step at each of n modules, one after the other; nothing is mixed."""
    x, y = (torch.from_numpy(values) for values in examples(n))
    nodes = [models.build(source, (64,), 10, 0) for _ in range(n)]
    optimizers = [torch.optim.SGD(node.parameters(), LR) for node in nodes]
    loss = nn.CrossEntropyLoss()

    def one(number: int) -> None:
        for i, (node, optimizer) in enumerate(zip(nodes, optimizers, strict=True)):
            rows = slice(i * EXAMPLES + number % 2 * BATCH, i * EXAMPLES + (number % 2 + 1) * BATCH)
            optimizer.zero_grad()
            loss(node(x[rows]), y[rows]).backward()
            optimizer.step()

    return one


def measure(source: str, n: int, rounds: int) -> tuple[float, float]:
    """Return (fedgossip, loop) in us per node-step: medians of rounds taken in turns."""
    loop, ours, theirs = loop_round(source, n), list[float](), list[float]()
    ended = 0.0

    def between() -> None:
        nonlocal ended
        now = time.process_time()  # one thread: other processes of the machine do not count
        ours.append(now - ended)
        loop(len(theirs))
        ended = time.process_time()
        theirs.append(ended - now)

    gc.freeze()  # as runs of so many nodes do: the collector passes over libraries, in both turns
    rounds_of(source, n, rounds + 3, between)  # the first warms up, and the last is evaluated
    return median(ours[2:]) / n * 1e6, median(theirs[1:]) / n * 1e6


def measure_resident(source: str, n: int, rounds: int, device: str) -> tuple[float, float]:
    """Return (fedgossip, plain loop over the stack) in us per node-step: medians of three turns of rounds each."""
    sizes = (64, 10) if source == "softmax" else (64, 128, 10)
    x, y = examples(n)
    graph = build(resolve("regular:4", n, seed=0), "metropolis")
    given = x.reshape(n, EXAMPLES, 64), y.reshape(n, EXAMPLES)
    plain = plain_round(sizes, *given, graph, LR, BATCH, device)
    ours, theirs = list[float](), list[float]()
    gc.freeze()
    for _ in range(3):
        clock = Clock(device, 3, 3 + rounds)  # the first rounds warm up and are captured, and the last is evaluated
        with staying_on(device):
            rounds_of(source, n, rounds + 4, clock, device)
        ours.append(clock.seconds)
        clock = Clock(device, 3, 3 + rounds)
        for number in range(rounds + 4):
            clock()
            plain(number)
        theirs.append(clock.seconds)
    return median(ours) / rounds / n * 1e6, median(theirs) / rounds / n * 1e6


def digits(number: float) -> str:
    """Return a number in three significant digits: a GPU's are below one, and a loop's on the CPU above a thousand."""
    return f"{float(f'{number:.3g}'):g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="where the models stay as on a GPU; none: as on a CPU"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    how = partial(measure_resident, device=options.device) if options.device else measure
    results = {name: how(source, options.nodes, options.rounds) for name, source in MODELS.items()}
    if options.json:
        print(json.dumps(results))
        return
    print(f"{machine()}\n{options.nodes} nodes, us per node-step\n{'':16}{'fedgossip':>10}{'loop':>8}{'ratio':>7}")
    for name, (ours, loop) in results.items():
        print(f"{name:16}{digits(ours):>10}{digits(loop):>8}{digits(loop / ours):>7}")


if __name__ == "__main__":
    main()
