"""What buckets by length save: the share of padding in the batches that a node draws, and the steps it takes.

A model learns the lines of TEXT, each an example, with 32 lines a step: padded to one length, or to the bucket that a
step draws from.  All settings take their turns of as many steps, one after another, in one process; CPU seconds are
steadier than seconds where others are on the machine.

    python benchmarks/length_buckets.py TEXT [--model chars:64] [--steps 100] [--turns 3]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from fedgossip.base.vectors import add
from fedgossip.core.task import Job
from fedgossip.data.data import load, split
from fedgossip.data.dataset import Dataset
from fedgossip.data.ragged import IGNORED, Ragged
from fedgossip.learning.settings import TrainSettings
from fedgossip.learning.task import TorchTask

SETTINGS = ([128], [64], [16, 32, 64, 128], [16, 24, 32, 40, 48, 56, 64, 96, 128])
LINES = 32


@dataclass
class Learner:
    """A node that has all lines, with the model as far as it has learned."""

    buckets: list[int]
    train: Dataset
    task: TorchTask
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    rounds: int = 0

    def __post_init__(self) -> None:
        self.vector = self.task.initial(0)

    def turn(self) -> None:
        begun, cpu = time.perf_counter(), time.process_time()
        (update,) = self.task.train([Job(0, self.rounds, self.vector)])
        self.seconds.append(time.perf_counter() - begun)
        self.cpu_seconds.append(time.process_time() - cpu)
        assert update.difference is not None
        self.vector, self.rounds = add(self.vector, update.difference), self.rounds + 1

    def padding(self) -> float:
        """The share of padding in all batches that were trained on."""
        assert isinstance(self.train.y, Ragged)
        plans = [self.task._batches.plan(0, number) for number in range(self.rounds)]
        drawn = [self.train.y.padded(rows) for plan in plans for rows in plan.batches]
        return sum(int((one == IGNORED).sum()) for one in drawn) / sum(one.size for one in drawn)


def learner(text: str, buckets: list[int], model: str, steps: int) -> Learner:
    train, test = split(load(f"lines:{text}", buckets=buckets), 0.2, 1)
    how = TrainSettings(device="cpu", lr=0.5, batch_size=LINES, local_steps=steps, clip_norm=1.0)
    return Learner(buckets, train, TorchTask(train, test, [np.arange(len(train))], model, how, seed=1, rounds=1000))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--model", default="chars:64")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    learners = [learner(asked.text, buckets, asked.model, asked.steps) for buckets in SETTINGS]
    for one in learners:  # the first steps allocate
        one.turn()
        one.seconds.clear()
        one.cpu_seconds.clear()
    for _ in range(asked.turns):
        for one in learners:
            one.turn()
    print(f"{asked.model}, {LINES} lines a step, {asked.turns} turns of {asked.steps} steps; medians")
    print(f"{'buckets':>36}  padding  steps/s  CPU ms a step  x steps of [64] by CPU  test loss")
    usual = median(next(one for one in learners if one.buckets == [64]).cpu_seconds)
    for one in learners:
        wall, cpu = median(one.seconds), median(one.cpu_seconds)
        loss = one.task.evaluate([one.vector])[0]["loss"]
        rates = f"{asked.steps / wall:7.1f}  {1e3 * cpu / asked.steps:13.1f}  {usual / cpu:22.2f}"
        print(f"{one.buckets!s:>36}  {100 * one.padding():5.1f} %  {rates}  {loss:9.4f}")
