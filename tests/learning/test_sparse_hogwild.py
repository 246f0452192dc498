"""Hogwild on the problem that it is for: steps that touch a few of many rows, by processes that do not wait."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import fedgossip
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.vectors import frozen
from fedgossip.core.task import Job
from fedgossip.learning.linear.sparse_steps import HogwildSteps, SparseLogistic, SparseSteps, problem_of, source_of
from fedgossip.learning.processes.ipc import LOST, SharedArrays, TrainOrder
from fedgossip.learning.processes.table_worker import TableWorker
from fedgossip.learning.settings import TrainSettings

ROWS, EXAMPLES, NONZEROS, BATCH = 5000, 120, 8, 10


def task_of(**how: Any) -> SparseSteps:
    settings = TrainSettings(**{"batch_size": BATCH, "local_steps": 9, "lr": 0.5, "device": "cpu", **how})
    return SparseSteps(SparseLogistic(2, ROWS, EXAMPLES, NONZEROS, BATCH, seed=3), settings, rounds=4)


def dense(task: SparseSteps, vector: Any, node: int, round: int) -> Any:
    """The steps of a job by a dense matrix and nothing of the code: gradient of the mean logistic loss."""
    p, w = task.problem, np.array(vector, np.float64)
    examples = p.get_examples(node)
    x = np.zeros((EXAMPLES, ROWS))
    np.add.at(x, (examples.owners, examples.columns), p.value)
    for turn in range(9):
        at = (round * 9 + turn) % (EXAMPLES // BATCH)
        rows, y = x[at * BATCH : (at + 1) * BATCH], examples.labels[at * BATCH : (at + 1) * BATCH]
        w = w - 0.5 * rows.T @ (1 / (1 + np.exp(-rows @ w)) - y) / BATCH
    return w


@pytest.mark.parametrize("round", [0, 2])
def test_steps_are_those_of_a_dense_matrix_and_touch_no_row_that_the_batches_lack(round: int) -> None:
    task = task_of()
    start = frozen(np.linspace(-1, 1, ROWS).astype(np.float32))
    moved = task.train([Job(1, round, start)])[0].difference
    assert moved is not None
    np.testing.assert_allclose(start + moved, dense(task, start, 1, round), atol=1e-6)
    touched = np.unique(np.concatenate([one.keys for one in task.batches.iterate(1, round)]))
    assert set(np.flatnonzero(moved)) <= set(touched.tolist()) and len(touched) < ROWS / 5


def test_a_gradient_is_that_of_the_first_step() -> None:
    one, two = task_of(local_steps=1), task_of(local_steps=1)
    start = frozen(np.full(ROWS, 0.1, np.float32))
    gradient, step = one.gradients([Job(0, 1, start, gradient=True)])[0], two.train([Job(0, 1, start)])[0]
    np.testing.assert_allclose(-0.5 * gradient.difference, step.difference, atol=1e-7)  # type: ignore[operator]


# --- processes, by hand: rank 0 does all its batches, then rank 1 ---


class OneByOne:
    """A group whose members work here, one after the other."""

    def __init__(self, steps: HogwildSteps) -> None:
        self.found, self.given = SharedArrays.new(), SharedArrays.new()
        setup, _, _ = steps.standing.how
        quiet: Any = type("Signs", (), {"progressed": lambda _: None})()
        self.members = [
            TableWorker(msgspec.structs.replace(setup, rank=rank), quiet, {"found": self.found})
            for rank in range(setup.size)
        ]

    def ask(self, order: TrainOrder) -> list[Any]:
        return [member.answer(order) for member in self.members]

    def close(self) -> None:
        pass


def by_hand(task: SparseSteps) -> SparseSteps:
    assert isinstance(task.steps, HogwildSteps)
    group: Any = OneByOne(task.steps)
    task.steps.standing.group = group
    return task


def test_one_process_has_the_bits_of_none() -> None:
    alone, one = task_of(), by_hand(task_of(parallel="hogwild", processes=1))
    job = Job(1, 2, frozen(np.linspace(-1, 1, ROWS).astype(np.float32)))
    first, second = alone.train([job])[0], one.train([job])[0]
    assert np.array_equal(first.difference, second.difference)  # type: ignore[arg-type]
    assert first.metrics == pytest.approx(second.metrics)


def test_processes_divide_the_batches_and_what_is_written_is_counted() -> None:
    task = by_hand(task_of(parallel="hogwild", processes=2, count_lost=True))
    update = task.train([Job(1, 0, task.initial(1))])[0]
    assert update.logged == {LOST: 0.0} and update.metrics["steps"] == 9
    written = [one.keys.size for one in task.batches.iterate(1, 0)]
    by_rank = [sum(one.keys.size for one in task.batches.iterate(1, 0, rank, 2)) for rank in (0, 1)]
    assert sum(by_rank) == sum(written) and min(by_rank) > 0


def test_a_process_makes_the_same_problem_of_its_words() -> None:
    problem = SparseLogistic(2, ROWS, EXAMPLES, NONZEROS, BATCH, seed=3)
    again = problem_of(source_of(problem), 3)
    assert again.schema == problem.schema and np.array_equal(
        again.get_examples(1).columns, problem.get_examples(1).columns
    )


@pytest.mark.long
@pytest.mark.sockets
def test_a_killed_process_is_named_and_the_next_job_has_a_new_group() -> None:
    task = task_of(parallel="hogwild", processes=2, count_lost=True)
    assert isinstance(task.steps, HogwildSteps)
    standing = task.steps.standing
    try:
        assert 0 <= task.train([Job(1, 0, task.initial(1))])[0].logged[LOST] < 1
        assert standing.group
        standing.group._processes[1].kill()
        with pytest.raises(TrainingError, match="process 1 of 2 was ended by SIGKILL"):
            task.train([Job(1, 1, task.initial(1))])
        assert task.train([Job(1, 1, task.initial(1))])[0].difference is not None
    finally:
        if standing.group:
            standing.group.close()


# --- runs -------------------------------------------------------------------------------------------------------------

CLICKS: dict[str, Any] = {
    "rounds": 4,
    "task": {"kind": "sparse-logistic", "dim": ROWS, "examples": EXAMPLES, "nonzeros": NONZEROS},
    "train": {"lr": 0.5, "batch_size": BATCH, "local_steps": 12},
    "eval": {"every": 4},
}
RING, CLIENTS = {"topology": {"graph": "ring", "n": 4}}, {"coordinator": {"clients": 3, "secure": {"on": False}}}


@pytest.mark.parametrize("way", [RING, CLIENTS])
def test_every_kind_of_run_learns_from_clicks_with_one_digest(way: dict[str, Any]) -> None:
    runs = [fedgossip.simulate({**CLICKS, **way}, engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest
    losses = [row.test_loss for row in runs[0].network() if row.test_loss is not None]
    assert losses[-1] < losses[0]


def test_workers_of_a_collective_step_along_the_gradient_of_servers() -> None:
    """The same steps, at the rows that are measured, as a parameter server's, which holds the rows alone."""
    content = {**CLICKS, "train": {"lr": 0.5, "batch_size": BATCH}}
    whole = fedgossip.simulate({**content, "parallel": {"method": "star", "workers": 3}})
    rows = fedgossip.simulate({**content, "parallel": {"method": "parameter-server", "workers": 3}})
    ours, theirs = whole.vectors[0], rows.vectors[0]
    watched = SparseLogistic(3, ROWS, EXAMPLES, NONZEROS, BATCH, seed=1).watched
    assert ours is not None and ours.size == ROWS
    np.testing.assert_allclose(ours[watched], theirs, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train": {"momentum": 0.9}}, "takes plain steps"),
        ({"train": {"processes": 2}}, "with parallel = 'ddp'"),
        ({"task": {"dim": 30_000_000}}, "would hold the whole table"),
    ],
)
def test_what_cannot_be_is_refused_with_advice(change: dict[str, Any], said: str) -> None:
    content = {**CLICKS, **RING, **{key: {**CLICKS[key], **value} for key, value in change.items()}}
    with pytest.raises(ConfigError, match=said) as refused:
        fedgossip.simulate(content)
    assert refused.value.advice
