"""Training of the nodes of a simulation: one after another, together in one gradient, and that gradient compiled.

    python benchmarks/any_module.py [--model cnn:small] [--nodes 16] [--steps 10] [--batch 32] [--turns 5]
                                    [--device auto] [--threads 1] [--compile] [--json]

--model resnet20 is one with GroupNorm on made-up images of 3 x 32 x 32; others see 1 x 28 x 28.  The contestants take
turns; us are of a node and step, median over the turns, by the clock and of this process's CPU, and a ratio is the
median of (one after another / contestant), so above 1 the contestant is the quicker one.  What happens once, compiling
say, is not in it, but said.  On the CPU
nodes are trained together in this benchmark and in tests alone, and figures of the CPU say nothing of a GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from crew import machine, median

from fedgossip.core.machine import Report
from fedgossip.core.task import Job
from fedgossip.data import data
from fedgossip.learning.many_nodes import job_blocks
from fedgossip.learning.one_model.devices import describe, device_for
from fedgossip.learning.task import TorchTask, TrainSettings

RESNET = "residual_networks:resnet20"
EXAMPLES = 256
"""Of each node."""

LOOP, TOGETHER, COMPILED = "one after another", "together", "together, compiled"


class Contestant:
    """All nodes of a simulation, trained in one way; `first` is what the first round took."""

    def __init__(self, options: argparse.Namespace, way: str) -> None:
        shape = (3, 32, 32) if options.model == "resnet20" else (1, 28, 28)
        draw, n = np.random.default_rng(0), options.nodes
        images = draw.random((n * EXAMPLES, *shape), np.float32)
        train = data.from_arrays("made up", images, draw.integers(0, 10, len(images)))
        shares = np.arange(len(images)).reshape(n, EXAMPLES)
        how: dict[str, Any] = {"batch_size": options.batch, "local_steps": options.steps, "threads": options.threads}
        how |= {"device": options.device, "compile": way == COMPILED}
        # by modules, also where the CPU has a path of its own
        settings = TrainSettings(**how, prefetch=0 if device_for(options.device).type == "cuda" else 1)
        model = RESNET if options.model == "resnet20" else options.model
        job_blocks.KINDS = () if way == LOOP else ("cuda", "cpu")
        test = train.subset(np.arange(options.batch))
        where = Path(__file__).parent
        self._task = TorchTask(train, test, list(shares), model, settings, seed=0, rounds=1, base=where)
        self.said: list[Report] = []
        self._task.report_to(self.said.append)
        self._jobs = [(node, self._task.initial(node)) for node in range(n)]
        self._node_steps = n * options.steps
        self.us: list[float] = []
        self.cpu: list[float] = []
        self.first, _ = self._round(0)

    def turn(self) -> None:
        clock, cpu = self._round(len(self.us) + 1)
        self.us.append(clock / self._node_steps * 1e6)
        self.cpu.append(cpu / self._node_steps * 1e6)

    def _round(self, round: int) -> tuple[float, float]:
        began, used = time.perf_counter(), time.process_time()
        self._task.train([Job(node, round, vector) for node, vector in self._jobs])  # updates are read back
        return time.perf_counter() - began, time.process_time() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn:small")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="also compiled; its first round takes up to minutes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ways = [LOOP, TOGETHER, *([COMPILED] if options.compile else [])]
    contestants = {way: Contestant(options, way) for way in ways}
    for _ in range(options.turns):
        for one in contestants.values():
            one.turn()
    loop = contestants[LOOP]
    ratios = {
        way: [median([a / b for a, b in zip(*pair, strict=True)]) for pair in ((loop.us, one.us), (loop.cpu, one.cpu))]
        for way, one in contestants.items()
    }
    if options.json:
        print(json.dumps({way: [*ratio, contestants[way].us] for way, ratio in ratios.items()}))
        return
    print(f"{machine()}\ntrains on {describe(device_for(options.device))}; torch {torch.__version__}")
    print(f"{options.model}, {options.nodes} nodes, batches of {options.batch}, {options.threads} thread(s)\n")
    print(f"{'':20}{'us a node-step':>16}{'CPU us':>10}{'x the loop':>12}{'by CPU':>8}{'first round, s':>16}")
    for way, one in contestants.items():
        clock, cpu = ratios[way]
        measured = f"{median(one.us):>16.0f}{median(one.cpu):>10.0f}{clock:>12.2f}{cpu:>8.2f}{one.first:>16.1f}"
        print(f"{way:20}{measured}")
        for report in one.said:
            print(f"{'':20}{report.name}: {report.value}")


if __name__ == "__main__":
    main()
