"""Hogwild! in one participant: examples a second of two processes over one, what is lost, and where training ends.

    python benchmarks/hogwild.py [--turns 5] [--seeds 5] [--only words]

Ratios of medians in one run, one process and two in turns.  CPU seconds are of the processes that train; those of the
busiest are what a job would take on processors of its own, for wall time counts others' work too.  The last loss is
that on the test set of digits, clicks or words, beside the one process's of the same seed.  Clicks are sparse-logistic:
a step writes the rows of its batch alone.  Of words too, and the rows of the linear layer, which all steps write.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from fedgossip.base.vectors import frozen
from fedgossip.core.task import Job
from fedgossip.data import data
from fedgossip.data.dataset import Dataset
from fedgossip.learning.linear.sparse_steps import HogwildSteps, SparseLogistic, SparseSteps
from fedgossip.learning.linear.word_tables import WordTable
from fedgossip.learning.linear.words import WordsTask, WordSteps
from fedgossip.learning.processes.engine import HogwildLoop
from fedgossip.learning.processes.processes import StandingGroup
from fedgossip.learning.task import TorchTask, TrainSettings

MODELS = ("mlp:64-32-10", "mlp:64-256-256-10")
STEPS, CLICKS_STEPS, JOBS = 1000, 5000, 3
"""Of a job, of digits and of clicks; and jobs until the last loss is taken."""

ROWS, EXAMPLES, NONZEROS, BATCH = 1_000_000, 20_000, 20, 32
TABLE, WORDS_STEPS = WordTable(50_000, 16, 4), 2000
WORDS = f"words:{TABLE.words}-{TABLE.width}-{TABLE.classes}, {NONZEROS} words in an example"
CLICKS = f"sparse-logistic, {ROWS:,} rows, {NONZEROS} of them in an example"


Task = TorchTask | SparseSteps | WordSteps


@contextmanager
def task_of(model: str, processes: int, seed: int) -> Iterator[TorchTask]:
    digits = data.load("digits", seed=seed, kind="classification")
    kept, tested = data.split_indices(digits, 0.2, seed)
    train, test = digits.subset(kept), digits.subset(tested)
    settings = TrainSettings(
        lr=0.05, local_steps=STEPS, processes=processes, parallel="hogwild", count_lost=True, device="cpu"
    )
    task = TorchTask(train, test, [np.arange(len(train))], model, settings, seed=seed, rounds=1)
    try:
        yield task
    finally:
        assert isinstance(task._engine, HogwildLoop)
        if task._engine.standing.group:
            task._engine.standing.group.close()


@contextmanager
def clicks_of(processes: int, seed: int) -> Iterator[SparseSteps]:
    settings = TrainSettings(
        lr=2.0, batch_size=BATCH, local_steps=CLICKS_STEPS, processes=processes, parallel="hogwild", count_lost=True
    )
    task = SparseSteps(SparseLogistic(1, ROWS, EXAMPLES, NONZEROS, BATCH, seed=seed), settings, rounds=1)
    try:
        yield task
    finally:
        if group := standing_of(task).group:
            group.close()


def standing_of(task: Task) -> StandingGroup:
    if isinstance(task, SparseSteps | WordSteps):
        assert isinstance(task.steps, HogwildSteps)
        return task.steps.standing
    assert isinstance(task._engine, HogwildLoop)
    return task._engine.standing


def cpu_seconds(task: Task) -> np.ndarray:
    """Of each of the group's processes, so far."""
    group = standing_of(task).group
    assert group
    fields = [Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split() for one in group._processes]
    return np.array([(int(one[11]) + int(one[12])) / 100 for one in fields])


@contextmanager
def words_of(processes: int, seed: int) -> Iterator[WordSteps]:
    settings = TrainSettings(
        lr=1.0, batch_size=BATCH, local_steps=WORDS_STEPS, processes=processes, parallel="hogwild", count_lost=True
    )
    train, test = bags(EXAMPLES, seed), bags(1000, seed + 1000)
    words = WordsTask(train, test, {0: np.arange(EXAMPLES)}, TABLE, settings, seed)
    task = WordSteps(words, settings, rounds=1)
    try:
        yield task
    finally:
        if group := standing_of(task).group:
            group.close()


def bags(count: int, seed: int) -> Dataset:
    """Bags of words of four classes: half of each are drawn from its class's own quarter."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, TABLE.classes, count)
    own = draw.integers(0, TABLE.words // TABLE.classes, (count, NONZEROS // 2))
    own += (TABLE.words // TABLE.classes) * labels[:, None]
    words = np.concatenate([own, draw.integers(0, TABLE.words, (count, NONZEROS // 2))], axis=1)
    return Dataset("bags", words, labels, TABLE.classes)


Made = Callable[[int, int], AbstractContextManager[Task]]
"""(processes, seed) -> the task."""


def speed(name: str, made: Made, examples: int, turns: int) -> None:
    """Print the examples a second of jobs of so many examples."""
    with made(1, 1) as one, made(2, 1) as two:
        found: dict[int, list[tuple[float, float, float, float]]] = {1: [], 2: []}
        for turn in range(turns + 1):
            for processes, task in ((1, one), (2, two)):
                before = cpu_seconds(task) if turn else np.zeros(processes)
                began = time.perf_counter()
                update = task.train([Job(0, turn, task.initial(0))])[0]
                seconds = time.perf_counter() - began
                if turn:  # the first starts the processes
                    spent = cpu_seconds(task) - before
                    found[processes].append((seconds, spent.sum(), spent.max(), update.logged["lost_updates"]))
    rates = {p: examples / statistics.median(one[0] for one in rows) for p, rows in found.items()}
    cpu = {p: statistics.median(one[1] for one in rows) for p, rows in found.items()}
    busiest = {p: statistics.median(one[2] for one in rows) for p, rows in found.items()}
    lost = statistics.median(row[3] for row in found[2])
    print(
        f"{name}: {rates[1]:,.0f} and {rates[2]:,.0f} examples/s, x {rates[2] / rates[1]:.2f};"
        f" CPU {cpu[1]:.2f} and {cpu[2]:.2f} s, the busiest x {busiest[1] / busiest[2]:.2f}; lost {100 * lost:.3g} %",
        flush=True,
    )


def ends(name: str, made: Made, seeds: int) -> None:
    losses: dict[int, list[float]] = {1: [], 2: []}
    for seed in range(1, seeds + 1):
        for processes in (1, 2):
            with made(processes, seed) as task:
                vector = task.initial(0)
                for turn in range(JOBS):
                    moved = task.train([Job(0, turn, vector)])[0].difference
                    assert moved is not None
                    vector = frozen(vector + moved)
                losses[processes].append(task.evaluate([vector])[0]["loss"])
    one, two = (statistics.mean(losses[processes]) for processes in (1, 2))
    print(f"{name}: test loss {one:.4f} and {two:.4f}, mean of {seeds} seeds: {100 * (two / one - 1):+.2f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="those whose name has this in it")
    asked = parser.parse_args()
    makes: dict[str, tuple[Made, int]] = {model: (partial(task_of, model), 16 * STEPS) for model in MODELS}
    makes[CLICKS] = clicks_of, BATCH * CLICKS_STEPS
    makes[WORDS] = words_of, BATCH * WORDS_STEPS
    makes = {name: made for name, made in makes.items() if asked.only in name}
    for name, (made, examples) in makes.items():
        speed(name, made, examples, asked.turns)
    for name in makes:
        if name == MODELS[1]:
            continue
        ends(name, makes[name][0], asked.seeds)


if __name__ == "__main__":
    main()
