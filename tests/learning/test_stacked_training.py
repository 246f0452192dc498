"""Training of all nodes from rows of one array into those of another: the bits of job by job, and no object a node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedgossip import simulate
from fedgossip.algorithms.gossip.base import Step, Vectors
from fedgossip.algorithms.gossip.dsgd import DSGD, Iterate
from fedgossip.base import vectors
from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import Vector, digest, frozen, linear, ordered_mix, ordered_mix_rows
from fedgossip.core.task import Job, StackedTask
from fedgossip.data import data
from fedgossip.learning.many_nodes import stacked_engine
from fedgossip.learning.task import TorchTask, TrainSettings
from fedgossip.simulation import stacked

SIZES = {"alike": [40] * 7, "unlike": [3, 700, 40, 40, 5, 64, 9], "more than a stretch": [600] * 7}


def task_of(sizes: list[int], model: str = "mlp:20-9-3", features: tuple[int, ...] = (20,), **how: Any) -> TorchTask:
    random = np.random.default_rng(3)
    x = random.standard_normal((sum(sizes), *features), np.float32)
    dataset = data.from_arrays("random", x, random.integers(0, 3, sum(sizes)))
    ends = np.cumsum(sizes)
    shares = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    settings = TrainSettings(**{"lr": 0.1, "batch_size": 5, "local_steps": 3, "device": "cpu", **how})
    return TorchTask(dataset, dataset.subset(shares[0]), shares, model, settings, seed=4, rounds=50)


def differences(task: StackedTask, round: int, models: Vector) -> tuple[Vector, list[float], list[slice]]:
    into, told = np.empty_like(models), list[slice]()
    done = task.train_stack(round, models, into, told.append)
    return into, done.losses.tolist(), told


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("model", ["softmax", "mlp:20-9-3", "mlp:20-9-7-3", "cnn:small"])
@pytest.mark.parametrize("how", [{}, {"batch_size": 1, "local_steps": 1}, {"schedule": "cosine"}])
def test_rows_have_the_bits_of_jobs(sizes: list[int], model: str, how: dict[str, Any]) -> None:
    features = (1, 6, 6) if model.startswith("cnn") else (20,)
    by_rows, by_jobs = task_of(sizes, model, features, **how), task_of(sizes, model, features, **how)
    assert by_rows.trains_stacks(7) and not by_rows.trains_stacks(8)
    drawn = np.random.default_rng(5).standard_normal((7, by_rows.length), np.float32)
    models = frozen(drawn * np.float32(0.1))
    for round in (0, 1, 34, 35):  # 512 places of a node end within a round of 15
        found, losses, told = differences(by_rows, round, models)
        updates = by_jobs.train([Job(node, round, vector) for node, vector in enumerate(models)])
        assert digest(found) == digest([one.difference for one in updates if one.difference is not None])
        assert losses == [one.metrics["loss"] for one in updates]
        assert [rows.start for rows in told] == [0, *(rows.stop for rows in told[:-1])] and told[-1].stop == 7


@pytest.mark.parametrize("model", ["softmax", "mlp:20-9-3", "cnn:small"])
def test_blocks_of_few_nodes_have_the_bits_of_one_block(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights beyond a cache are trained a block after the other: rows of one array each."""
    features = (1, 6, 6) if model.startswith("cnn") else (20,)
    models = frozen(
        np.random.default_rng(5).standard_normal((7, task_of([40] * 7, model, features).length), np.float32)
    )
    found = []
    for most in (7, 3):
        monkeypatch.setattr(stacked_engine, "LARGEST_BLOCK", most)
        into, losses, told = differences(task_of([40] * 7, model, features), 1, models)
        found.append((digest(into), losses, len(told)))
    assert found[0][:2] == found[1][:2] and [blocks for _, _, blocks in found] == [1, 3]


@pytest.mark.parametrize(
    "how", [{"local_steps": None, "local_epochs": 1}, {"momentum": 0.9}, {"optimizer": "adam"}, {"clip_norm": 1.0}]
)
def test_what_a_node_remembers_or_passes_over_its_examples_is_trained_job_by_job(how: dict[str, Any]) -> None:
    assert not task_of([40] * 7, **how).trains_stacks(7)


def test_a_loss_that_is_not_finite_names_its_node() -> None:
    task = task_of([40] * 7)
    models = np.stack([task.initial(node) for node in range(7)])
    models[4, 0] = np.inf
    with pytest.raises(TrainingError, match="node 4, round 2"):
        differences(task, 2, frozen(models))


LEARNING = {
    "rounds": 6,
    "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.5}},
    "model": {"source": "softmax"},
    "train": {"local_steps": 2, "device": "cpu"},
    "topology": {"graph": "ring", "n": 9},
}


@pytest.mark.parametrize("algorithm", ["dsgd", "gradient-tracking", "push-sum", "d2"])
def test_runs_on_rows_end_as_machines_do_with_their_rows(algorithm: str) -> None:
    weights = {"weights": "lazy"} if algorithm == "d2" else {}
    content = {**LEARNING, "algorithm": {"name": algorithm}, "topology": {"graph": "ring", "n": 9, **weights}}
    rows, machines = (simulate(content, engine=engine) for engine in ("stacked", "sim"))
    assert rows.digest == machines.digest
    losses = [[row.loss for row in run.rows if hasattr(row, "loss")] for run in (rows, machines)]
    assert sorted(losses[0], key=str) == sorted(losses[1], key=str)


class Halved(DSGD):
    """Half of an update is sent; `moved` is another class's."""

    def trained(self, state: Iterate, update: Vector | None, step: Step) -> tuple[Iterate, Vectors]:
        assert update is not None
        return state, (linear((1, state.x), (0.5, update)),)


def test_an_algorithm_that_changes_what_is_sent_is_given_the_updates() -> None:
    ends = [simulate(LEARNING, engine=engine, algorithm=Halved()).digest for engine in ("stacked", "sim")]
    assert ends[0] == ends[1] != simulate(LEARNING, engine="stacked").digest
    assert stacked._sends_models(DSGD()) and not stacked._sends_models(Halved())


@pytest.mark.parametrize("most", [1 << 25, 6 * 4999])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_rows_that_all_weigh_alike_are_scaled_once_with_the_bits_of_each(
    most: int, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(5)
    monkeypatch.setattr(vectors, "SCALED_MOST", most)
    x, scales = random.standard_normal((6, 5000)).astype(kind), random.random(6)
    both = [
        (np.array([0, 2, 3]), np.array([[0, 1, 2], [1, 2, 4], [0, 3, 5]])),
        (np.array([1, 4, 5]), np.array([[1], [4], [5]])),
    ]
    groups = [(nodes, ids, scales[ids]) for nodes, ids in both]
    assert vectors.one_scale_each(groups, 6, np.dtype(kind)) is not None
    out = np.empty_like(x)
    ordered_mix_rows(groups, x, out)
    for nodes, ids, weights in groups:
        for node, sources, factors in zip(nodes, ids, weights, strict=True):
            assert np.array_equal(out[node], ordered_mix([(w, x[j]) for w, j in zip(factors, sources, strict=True)]))


@pytest.mark.parametrize("d", [7, 4095, 4096, 70_000])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_rows_of_any_length_are_mixed_with_the_bits_of_one(d: int, kind: Any) -> None:
    random = np.random.default_rng(d)
    x = random.standard_normal((6, d)).astype(kind)
    groups = [
        (np.array([1, 4]), np.array([[0, 1, 5], [2, 3, 4]]), random.random((2, 3))),
        (np.array([0, 2, 3, 5]), np.array([[0], [2], [1], [5]]), random.random((4, 1))),
    ]
    out = np.empty_like(x)
    ordered_mix_rows(groups, x, out)
    for nodes, ids, weights in groups:
        for node, sources, scales in zip(nodes, ids, weights, strict=True):
            assert np.array_equal(out[node], ordered_mix([(w, x[j]) for w, j in zip(scales, sources, strict=True)]))
