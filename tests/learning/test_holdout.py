"""Examples that a node keeps from its training, and what the model it is sent is worth on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgossip
from fedgossip.core.machine import Terms
from fedgossip.core.records import NetworkRow, PeerRow
from fedgossip.core.task import Job
from fedgossip.data.data import load, split
from fedgossip.data.partitions import hold_out
from fedgossip.learning.task import TorchTask, TrainSettings


@given(st.integers(1, 200), st.floats(0.01, 0.99), st.integers(0, 9))
def test_no_example_is_trained_on_and_tested_on(count: int, share: float, seed: int) -> None:
    owned = {3: np.arange(100, 100 + count)}
    train, test = hold_out(owned, share, seed)
    assert sorted([*train[3], *test[3]]) == list(owned[3])
    assert len(train[3]) >= 1 and (count == 1 or len(test[3]) >= 1)
    assert abs(len(test[3]) - share * count) <= 1


@pytest.mark.parametrize("model", ["softmax", "cnn:small"])
def test_the_given_vector_is_measured_before_it_is_trained(model: str) -> None:
    train, test = split(load("digits"), 0.2, 0)
    kept = {0: np.arange(50, 90)}
    settings = TrainSettings(local_steps=3, device="cpu")
    task = TorchTask(train, test, [np.arange(50)], model, settings, seed=1, rounds=4, kept=kept)
    vector = task.initial(0)
    (update,) = task.train([Job(0, 0, vector, Terms(), tested=True)])
    only = TorchTask(train, _of(train, kept[0]), [np.arange(50)], model, settings, seed=1, rounds=4)
    assert update.metrics["score"] == only.evaluate([vector])[0]["accuracy"]
    assert update.metrics["tested"] == 40
    (plain,) = task.train([Job(0, 0, vector, Terms())])
    assert "tested" not in plain.metrics and np.array_equal(plain.difference, update.difference)  # type: ignore[arg-type]


def _of(data: Any, rows: Any) -> Any:
    from dataclasses import replace

    return replace(data, x=data.x[rows], y=data.y[rows])


def run(*overrides: str) -> fedgossip.Run:
    content = {
        "rounds": 4,
        "data": {"local_test": 0.25, "partition": {"kind": "dirichlet", "alpha": 0.5, "min_size": 20}},
        "model": {"source": "mlp:64-16-10"},
        "train": {"local_epochs": 2, "device": "cpu"},
        "coordinator": {"clients": 5},
        "eval": {"every": 2},
    }
    return fedgossip.simulate(content, overrides=overrides)


def test_the_coordinator_is_told_the_mean_of_what_clients_measure_and_only_that() -> None:
    secure, plain = run(), run("coordinator.secure.on=false")
    for of in (secure, plain):
        measured = [row for row in of.rows if isinstance(row, PeerRow) and row.peer < 5 and row.score is not None]
        assert {row.round for row in measured} == {2, 4}, "where the run is evaluated"
    last = [row for row in plain.rows if isinstance(row, PeerRow) and row.peer < 5 and row.round == 4]
    network = [row for row in plain.rows if isinstance(row, NetworkRow)][-1]
    assert network.score_worst_peer == min(row.score for row in last if row.score is not None)
    assert secure.accuracy["mean_peer"] == pytest.approx(plain.accuracy["mean_peer"], abs=0.02)
    assert secure.accuracy["worst_peer"] is None, "a sum does not tell the worst"


def test_a_head_of_ones_own_is_measured_with_it() -> None:
    of = run("train.personal='layer2*'")
    assert of.accuracy["mean_peer"] > of.accuracy["averaged"] + 0.2  # type: ignore[operator]
