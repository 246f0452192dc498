"""A table of words that every participant has whole: a step writes the rows of its batch alone, processes race too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import fedgossip
from fedgossip.base.errors import ConfigError
from fedgossip.core.task import Job
from fedgossip.data.dataset import Dataset
from fedgossip.learning.linear.sparse_steps import HogwildSteps
from fedgossip.learning.linear.word_tables import WordTable
from fedgossip.learning.linear.words import WordsTask, WordSteps
from fedgossip.learning.processes.ipc import LOST, SharedArrays, TrainOrder
from fedgossip.learning.processes.table_worker import TableWorker
from fedgossip.learning.settings import TrainSettings

SIZES = WordTable(300, 4, 3)
BATCH = 5


def bags() -> Dataset:
    draw = np.random.default_rng(2)
    labels = draw.integers(0, 3, 60)
    words = draw.integers(0, 90, (60, 6)) + 100 * labels[:, None]
    return Dataset("bags", words.astype(np.int64), labels, 3)


def task_of(**how: Any) -> WordSteps:
    data, shares = bags(), {0: np.arange(30), 1: np.arange(30, 60)}
    settings = TrainSettings(**{"lr": 0.5, "batch_size": BATCH, "local_steps": 9, **how})
    return WordSteps(WordsTask(data, data, shares, SIZES, settings, 1), settings, rounds=5)


class OneByOne:
    """A group whose members work here, one after the other."""

    def __init__(self, steps: HogwildSteps) -> None:
        setup, examples, _ = steps.standing.how
        self.boards = [SharedArrays.new() for _ in range(3)]
        board, self.given, self.found = self.boards
        setup = msgspec.structs.replace(setup, examples=board.lay(examples))
        quiet: Any = type("Signs", (), {"progressed": lambda _: None})()
        boards = {"examples": board, "given": self.given, "found": self.found}
        self.members = [
            TableWorker(msgspec.structs.replace(setup, rank=rank), quiet, boards) for rank in range(setup.size)
        ]

    def ask(self, order: TrainOrder) -> list[Any]:
        return [member.answer(order) for member in self.members]

    def close(self) -> None:
        pass


def by_hand(task: WordSteps) -> WordSteps:
    assert isinstance(task.steps, HogwildSteps)
    group: Any = OneByOne(task.steps)
    task.steps.standing.group = group
    return task


def rows_of(task: WordSteps, node: int, round: int) -> set[int]:
    """The rows of all batches of a job: their words, and those of the linear layer."""
    plan = task.words.batches.plan(node, round)
    return {*task.words.words[plan.indices.reshape(-1)].reshape(-1).tolist(), *SIZES.head.tolist()}


def test_a_step_writes_the_rows_of_its_batches_and_no_other() -> None:
    task = task_of(local_steps=2)
    update = task.train([Job(1, 0, task.initial(1))])[0]
    assert update.difference is not None
    moved = np.flatnonzero(update.difference.reshape(-1, SIZES.width).any(axis=1))
    assert set(moved.tolist()) == rows_of(task, 1, 0) and len(moved) < SIZES.words / 4


def test_one_step_is_one_along_the_gradient_of_the_whole_table() -> None:
    """And that gradient at the rows of a batch is the one that workers of servers give."""
    task = task_of(local_steps=1)
    start = task.initial(0)
    moved = task.train([Job(0, 0, start)])[0].difference
    gradient = task.gradients([Job(0, 0, start, gradient=True, accumulate=1)])[0].difference
    assert moved is not None and gradient is not None
    np.testing.assert_allclose(moved, -0.5 * gradient, atol=1e-6)
    keys = task.words.keys(0, 0, 1)
    rows = start.reshape(-1, SIZES.width)[keys].reshape(-1)
    served = task.words.gradients([Job(0, 0, rows, gradient=True, accumulate=1, keys=keys)])[0].difference
    np.testing.assert_array_equal(gradient.reshape(-1, SIZES.width)[keys].reshape(-1), served)


def test_one_process_has_the_bits_of_none_and_two_count_what_they_write() -> None:
    alone, one = task_of(), by_hand(task_of(parallel="hogwild", processes=1))
    job = Job(1, 2, alone.initial(1))
    first, second = alone.train([job])[0], one.train([job])[0]
    assert np.array_equal(first.difference, second.difference)  # type: ignore[arg-type]
    assert first.metrics == pytest.approx(second.metrics)
    two = by_hand(task_of(parallel="hogwild", processes=2, count_lost=True))
    update = two.train([job])[0]
    assert update.logged == {LOST: 0.0} and update.metrics["steps"] == 9
    group: Any = two.steps.standing.group  # type: ignore[attr-defined]
    assert len(group.members) == 2


EXPERIMENT: dict[str, Any] = {
    "rounds": 6,
    "model": {"source": "words:300-4-3"},
    "train": {"lr": 0.5, "batch_size": BATCH, "local_steps": 6, "device": "cpu"},
    "eval": {"every": 3},
}


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    data = bags()
    np.savez(tmp_path / "bags.npz", x=data.x, y=data.y)
    return {**EXPERIMENT, "data": {"source": f"npz:{tmp_path / 'bags.npz'}"}}


@pytest.mark.parametrize(
    "way", [{"topology": {"graph": "ring", "n": 3}}, {"coordinator": {"clients": 3, "secure": {"on": False}}}]
)
def test_every_kind_of_run_learns_words_with_one_digest(way: dict[str, Any], content: dict[str, Any]) -> None:
    runs = [fedgossip.simulate({**content, **way}, engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest
    losses = [row.test_loss for row in runs[0].network() if row.test_loss is not None]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train": {"momentum": 0.9}}, "model.source = words:300-4-3 takes plain steps"),
        ({"train": {"processes": 2}}, "with parallel = 'ddp'"),
        ({"model": {"source": "words:9000000-4-3"}}, "would hold the whole table"),
    ],
)
def test_what_cannot_be_is_refused_with_advice(change: Any, said: str, content: dict[str, Any]) -> None:
    content |= {key: {**content[key], **value} for key, value in change.items()}
    with pytest.raises(ConfigError, match=said) as refused:
        fedgossip.simulate({**content, "topology": {"graph": "ring", "n": 3}})
    assert refused.value.advice


@pytest.mark.long
@pytest.mark.sockets
def test_processes_race_on_words(content: dict[str, Any]) -> None:
    content["train"] = {**content["train"], "local_steps": 60, "count_lost": True}
    run = fedgossip.simulate({**content, "parallel": {"method": "hogwild", "workers": 2}})
    assert run.summary["identical"] is False and 0 <= run.summary["lost_updates"] < 0.5
    assert run.summary["score"]["averaged"] > 0.8
