"""Processes of a client that step on one model in shared memory, without a lock and without waiting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import torch
from test_learning import images
from torch import nn

import fedgossip
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import Terms
from fedgossip.core.task import Job
from fedgossip.learning.one_model.batches import BatchPlan
from fedgossip.learning.one_model.module_engine import ModuleLoop
from fedgossip.learning.processes.engine import HogwildLoop
from fedgossip.learning.processes.ipc import COUNTER, LOST, Channel, Message, Setup, SharedArrays, TrainReply, race_of
from fedgossip.learning.processes.processes import Group
from fedgossip.learning.processes.worker import HogwildWorker
from fedgossip.learning.task import TorchTask, TrainSettings
from fedgossip.report.page.reading import read_run
from fedgossip.report.page.sections import repeating

SHARES = [np.arange(17), np.arange(17, 65)]


class Bent(nn.Module):
    """A model with no hand-written path, with an integer buffer and a layer that may stay at its node."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 12), nn.Linear(12, classes)
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.tanh(self.first(x.flatten(1))))
        return found


def bent(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Bent(int(np.prod(shape)), classes)


def task_of(model: str = "test_hogwild:bent", **how: Any) -> TorchTask:
    settings = TrainSettings(**{"batch_size": 8, "local_steps": 6, "device": "cpu", **how})
    data = images()
    return TorchTask(data, data.subset(np.arange(57)), SHARES, model, settings, seed=1, rounds=9)


class OneByOne:
    """A group whose members work here, one after the other: rank 0 does all its batches, then rank 1."""

    def __init__(self, setup: Setup, examples: dict[str, Any]) -> None:
        self.boards = [SharedArrays.new() for _ in range(3)]
        board, self.given, self.found = self.boards
        places = board.lay(examples)
        named = dict(zip(("examples", "given", "found"), self.boards, strict=True))
        self.members = [
            HogwildWorker(msgspec.structs.replace(setup, rank=rank, examples=places), cast(Channel, None), named)
            for rank in range(setup.size)
        ]

    def ask(self, order: Message) -> list[Message]:
        return [member.answer(order) for member in self.members]

    def close(self) -> None:
        for board in self.boards:
            os.close(board.descriptor)


@contextmanager
def one_by_one(**how: Any) -> Iterator[TorchTask]:
    """A Hogwild task whose race is decided: each rank does all its steps, in order of the ranks."""
    task = task_of(parallel="hogwild", **how)
    assert isinstance(task._engine, HogwildLoop)
    setup, examples, _ = task._engine.standing.how
    group = OneByOne(setup, dict(examples))
    task._engine.standing.group = cast(Group, group)
    try:
        yield task
    finally:
        group.close()


def in_turns(task: TorchTask, processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a task of one process take its batches in the order of ranks that go one after the other."""
    plan = task._batches.plan

    def turned(node: int, round: int) -> BatchPlan:
        found = plan(node, round)
        order = np.concatenate([np.arange(len(found.counts))[rank::processes] for rank in range(processes)])
        return BatchPlan(found.indices[order], found.counts[order])

    monkeypatch.setattr(task._batches, "plan", turned)


MORE = {"weight_decay": 0.01, "clip_norm": 1.0}


@pytest.mark.parametrize(
    ("processes", "how"),
    [(1, MORE), (2, {**MORE, "personal": "first.*"}), (3, {"local_epochs": 2, "local_steps": None, "accumulate": 2})],
)
def test_where_nobody_races_the_steps_are_those_of_one_process_to_the_bit(
    processes: int, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = task_of(**how)
    assert isinstance(one._engine, ModuleLoop)
    in_turns(one, processes, monkeypatch)
    correction = frozen(np.linspace(-0.1, 0.1, one.length).astype(np.float32))
    with one_by_one(processes=processes, **how) as several:
        for round, terms in enumerate([None, Terms(0.3, correction)]):
            job = Job(1, round, one.initial(1), terms)
            first, second = one.train([job])[0], several.train([job])[0]
            assert first.difference is not None and np.array_equal(second.difference, first.difference)  # type: ignore[arg-type]
            assert second.metrics == pytest.approx(first.metrics)
            assert first.difference.any() and not second.logged
        for name, kept in one.state(1).items():
            assert name.startswith("buffer:") or np.array_equal(several.state(1)[name], kept)
        vector = frozen(one.initial(0) + np.float32(0.25))
        assert several.evaluate([vector])[0] == pytest.approx(one.evaluate([vector])[0])
        assert several.evaluate_own(1, vector) == pytest.approx(one.evaluate_own(1, vector))


def test_what_the_counters_lack_was_lost() -> None:
    """Two processes wrote 4 elements 10 times each; a counter that both read before either wrote has one too few."""
    counter = np.array([20, 19, 20, 18], np.int32)
    found = race_of([TrainReply(1.0, 0, 10, 40), TrainReply(4.0, 0, 5, 40)], {COUNTER: counter})
    assert found.logged == {LOST: pytest.approx(3 / 80)} and found.loss == pytest.approx(2.0)


def test_every_write_is_counted_and_without_a_race_none_is_lost() -> None:
    with one_by_one(processes=2, count_lost=True) as task:
        assert task.train([Job(1, 0, task.initial(1))])[0].logged == {LOST: 0.0}
        assert isinstance(task._engine, HogwildLoop) and task._engine.standing.group
        found = task._engine.standing.group.found
        counter = found.views(found.room(task._engine._shapes))[COUNTER]
        assert counter.shape == (task.length,) and (counter == 6).all()


def test_a_process_whose_share_is_empty_says_so() -> None:
    """17 examples in batches of 8: three batches for four processes."""
    with one_by_one(processes=4, local_steps=None, local_epochs=1) as task:
        update = task.train([Job(0, 0, task.initial(0))])[0]
        assert update.metrics["steps"] == 3 and np.isfinite(update.metrics["loss"])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"momentum": 0.9}, "sgd with momentum with parallel"),
        ({"optimizer": "adam", "lr": 0.01}, "adam with parallel"),
        ({"precision": "bfloat16"}, "precision = 'bfloat16' with parallel"),
        ({"compile": True}, "compile = True with parallel"),
        ({"device": "cuda"}, "lies in shared memory"),
        ({"processes": 7}, "local_steps = 6 for 7 processes"),
    ],
)
def test_what_processes_that_race_cannot_do_is_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        TrainSettings(**{"local_steps": 6, "processes": 2, "parallel": "hogwild", **how})
    assert error.value.advice


def test_counts_of_lost_updates_are_for_those_who_lose_some() -> None:
    with pytest.raises(ConfigError, match="loses no update"):
        TrainSettings(count_lost=True)


def test_a_model_with_running_statistics_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"norm1\.running_mean is a buffer") as error:
        task_of("cnn:small-bn", parallel="hogwild", processes=2)
    assert "BatchNorm" in error.value.advice


def test_a_gradient_is_refused_where_processes_take_steps() -> None:
    with one_by_one(processes=2) as task, pytest.raises(ConfigError, match="a gradient takes none"):
        task.gradients([Job(0, 0, task.initial(0), gradient=True)])
    experiment = {
        "model": {"source": "softmax"},
        "train": {"parallel": "hogwild", "processes": 2, "local_steps": 2},
        "parallel": {"workers": 2},
    }
    with pytest.raises(ConfigError, match="wants a gradient") as error:
        fedgossip.simulate(experiment)
    assert "parallel.outer" in error.value.advice


# --- real processes -----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.sockets
def test_a_killed_process_is_named_and_the_next_job_has_a_new_group() -> None:
    task = task_of(processes=2, parallel="hogwild", count_lost=True)
    assert isinstance(task._engine, HogwildLoop)
    standing = task._engine.standing
    try:
        first = task.train([Job(1, 0, task.initial(1))])[0]
        assert first.difference is not None and 0 <= first.logged[LOST] < 1
        assert standing.group
        standing.group._processes[1].kill()
        with pytest.raises(TrainingError, match="process 1 of 2 was ended by SIGKILL") as error:
            task.train([Job(1, 1, task.initial(1))])
        assert error.value.advice and standing.group is None
        assert task.train([Job(1, 1, task.initial(1))])[0].difference is not None
    finally:
        if standing.group:
            standing.group.close()


@pytest.mark.long
@pytest.mark.sockets
def test_peers_that_are_groups_of_processes_gossip_and_their_run_is_said_to_be_one_of_a_kind(tmp_path: Path) -> None:
    experiment = {
        "rounds": 3,
        "data": {"source": "digits"},
        "model": {"source": "mlp:64-32-10"},
        "train": {"parallel": "hogwild", "processes": 2, "local_steps": 40, "count_lost": True},
        "topology": {"graph": "ring", "n": 3},
    }
    run = fedgossip.simulate(experiment, out=tmp_path / "run")
    assert run.summary["identical"] is False and 0 <= run.summary["lost_updates"] < 0.5
    assert run.summary["score"]["averaged"] > 0.8
    told = repeating(read_run(tmp_path / "run"))
    assert not told.same and "without waiting for each other" in told.text
