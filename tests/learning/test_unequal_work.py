"""Unequal local work: passes drawn per node and round, the same in every driver, by the shares that the keys name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from over_sockets import run_over_sockets

from fedgossip import load_experiment, simulate
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import digest
from fedgossip.learning.one_model.batches import Batches
from fedgossip.learning.settings import TrainSettings
from fedgossip.plans import compose

TRAIN = {"local_epochs": 5, "fewest_epochs": 2, "batch_size": 64, "device": "cpu"}
CONTENT: dict[str, Any] = {
    "rounds": 3,
    "data": {"partition": {"kind": "dirichlet", "alpha": 1.0}},
    "train": TRAIN,
    "coordinator": {"clients": 4, "algorithm": "fednova", "secure": {"on": False}},
}


def test_passes_are_drawn_alike_from_the_fewest_to_all_by_the_share_of_the_slowed() -> None:
    settings = TrainSettings(local_epochs=5, fewest_epochs=2, slowed=0.5)
    drawn = [settings.passes(1, node, round) for node in range(40) for round in range(100)]
    shares = [drawn.count(passes) / len(drawn) for passes in range(7)]
    assert shares == pytest.approx([0, 0, 0.125, 0.125, 0.125, 0.625, 0], abs=0.02)
    assert {TrainSettings(local_epochs=3).passes(1, node, 0) for node in range(40)} == {3}


def test_a_plan_is_so_many_whole_passes_and_no_pass_is_taken_twice() -> None:
    settings = TrainSettings(local_epochs=5, fewest_epochs=2, batch_size=4)
    batches = Batches([np.arange(10)], settings, 3, 4)
    for round in range(6):
        plan, passes = batches.plan(0, round), settings.passes(3, 0, round)
        assert plan.counts.tolist() == [4, 4, 2] * passes
        seen = np.concatenate(plan.batches).reshape(passes, 10)
        assert (np.sort(seen, axis=1) == np.arange(10)).all()


@pytest.mark.sockets
def test_it_is_one_run_in_every_driver_and_nobody_makes_all_passes_by_chance() -> None:
    runs = [simulate(CONTENT, engine=engine) for engine in ("sim", "stacked")]
    plan = compose.plan(load_experiment(CONTENT))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    vectors, _ = run_over_sockets(plan, task)
    assert digest(plan.outcome(vectors)) == runs[0].digest == runs[1].digest  # type: ignore[arg-type]
    equal = simulate({**CONTENT, "train": {**TRAIN, "fewest_epochs": 5}}, engine="stacked")
    whole = simulate({**CONTENT, "train": {"local_epochs": 5, "batch_size": 64, "device": "cpu"}}, engine="stacked")
    assert equal.digest == whole.digest != runs[0].digest


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"train": {"fewest_epochs": 2}}, "local_epochs = unset"),
        ({"train": {"local_epochs": 2, "fewest_epochs": 3}}, "fewest_epochs = 3 with local_epochs = 2"),
        ({"train": {"local_epochs": 2, "slowed": 0.5}}, "without fewest_epochs"),
        ({"train": TRAIN, "task": {"kind": "quadratic"}, "data": {}}, "no effect"),
        ({"train": TRAIN, "task": {"kind": "convex"}, "data": {}}, "no effect"),
        ({"train": TRAIN, "coordinator": {"clients": 6, "privacy": {"unit": "record"}}}, "equal passes"),
    ],
)
def test_where_it_would_change_nothing_or_break_an_account_it_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_experiment({**CONTENT, **more})
