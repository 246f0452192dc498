"""Gradient jobs: the mean gradient at a vector, with every bit that it has, whoever shares the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import fedgossip
from fedgossip import Job, Update
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Terms
from fedgossip.data.data import load, split
from fedgossip.data.partitions import partition
from fedgossip.learning.analytic import Quadratic
from fedgossip.learning.dp_sgd.record_privacy import RecordPrivacy
from fedgossip.learning.models import models
from fedgossip.learning.task import TorchTask, TrainSettings
from fedgossip.protocols.allreduce.allreduce import contribution_of

LOCAL = {"buffers": "local"}
MODELS = ("softmax", "mlp:64-16-10", "cnn:small")


def digits(model: str = "softmax", *, privacy: RecordPrivacy | None = None, **how: Any) -> TorchTask:
    train, test = split(load("digits"), 0.2, 0)
    settings = TrainSettings(device="cpu", **({"local_steps": 3} | how))
    shares = partition("size-skewed", train.y, 4, seed=0)
    return TorchTask(train, test, shares, model, settings, seed=1, rounds=50, privacy=privacy)


def jobs(task: TorchTask, nodes: Sequence[int] = (0, 1, 2, 3), accumulate: int | None = None) -> list[Job]:
    return [Job(node, 2, task.initial(0), gradient=True, accumulate=accumulate) for node in nodes]


def expected(task: TorchTask, job: Job, model: str) -> np.ndarray:
    """The gradient of the mean loss over all rows of the job's batches, by torch in float64."""
    train, _ = split(load("digits"), 0.2, 0)
    plan = task._batches.plan(job.node, job.round, job.accumulate)
    rows = np.concatenate([row[:count] for row, count in zip(plan.indices, plan.counts, strict=True)])
    module = models.build(model, train.shape, train.classes, 1)
    task.layout.write(module, job.vector)
    module.double()
    x = torch.from_numpy(train.x[rows].reshape(len(rows), *train.shape)).double()
    functional.cross_entropy(module(x), torch.from_numpy(train.y[rows])).backward()
    return np.concatenate([p.grad.numpy().reshape(-1) for p in module.parameters() if p.grad is not None])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("how", [{}, {"local_steps": None, "local_epochs": 1, "batch_size": 100}])
def test_a_gradient_is_that_of_the_mean_loss_over_all_rows(model: str, how: dict[str, Any]) -> None:
    task = digits(model, **how)
    for job, update in zip(jobs(task), task.gradients(jobs(task)), strict=True):
        assert update.difference is not None
        np.testing.assert_allclose(update.difference, expected(task, job, model), atol=3e-6)


@pytest.mark.parametrize(
    ("model", "how"),
    [*((model, {}) for model in MODELS), ("cnn:small", {"channels_last": True}), ("cnn:small-bn", LOCAL)],
)
def test_the_bits_of_a_gradient_depend_on_its_job_alone(model: str, how: dict[str, Any]) -> None:
    task = digits(model, local_steps=None, local_epochs=1, batch_size=100, **how)
    together = task.gradients(jobs(task))
    for node, update in enumerate(together):
        (alone,) = task.gradients(jobs(task, [node]))
        assert alone.difference is not None and update.difference is not None
        assert alone.difference.tobytes() == update.difference.tobytes()
        assert alone.metrics == update.metrics


def test_a_loss_does_not_depend_on_how_many_steps_others_take() -> None:
    """Shares are uneven: beside others a node's losses stand among those of steps that it does not take."""
    task = digits(local_steps=None, local_epochs=1)
    together = [update.metrics for update in task.train([Job(node, 0, task.initial(0)) for node in range(4)])]
    assert together == [task.train([Job(node, 0, task.initial(0))])[0].metrics for node in range(4)]


@pytest.mark.parametrize("model", MODELS)
def test_a_gradient_changes_nothing_that_is_remembered(model: str) -> None:
    tasks = [digits(model, momentum=0.9), digits(model, momentum=0.9)]
    training = [Job(0, 0, tasks[0].initial(0))]
    for task in tasks:
        task.train(training)
    tasks[0].gradients(jobs(tasks[0]))
    assert tasks[0].state(0)["velocity"].tobytes() == tasks[1].state(0)["velocity"].tobytes()
    (after,), (without,) = (task.train([Job(0, 1, task.initial(0))]) for task in tasks)
    assert after.difference is not None and without.difference is not None
    assert after.difference.tobytes() == without.difference.tobytes()


def test_as_many_batches_are_accumulated_as_are_asked_for() -> None:
    task = digits()
    (update,) = task.gradients(jobs(task, [1], accumulate=7))
    assert (update.metrics["steps"], update.metrics["rows"]) == (7, 7 * 16)
    assert update.examples == len(task._shares[1])


def test_a_worker_counts_by_the_examples_that_its_gradient_is_of() -> None:
    task = digits()
    for update in task.gradients(jobs(task, accumulate=2)):
        weight, _ = contribution_of(update.difference, update.examples, update.metrics)
        assert weight == 2 * 16


def test_a_gradient_has_the_low_bits_that_a_difference_has_lost() -> None:
    """x = 1000 is a multiple of 2^-14 in float32; the gradient of 1/2 (x - b)^2 there is exact to 2^-24 of itself."""
    task = Quadratic(4, 1, eta=1e-3, placement="random", dtype=np.float32)
    x = frozen(np.full(1, 1000.0, np.float32))
    exact = float(x[0]) - float(task.b[2, 0])
    (update,), (gradient,) = task.train([Job(2, 0, x)]), task.gradients([Job(2, 0, x, gradient=True)])
    assert update.difference is not None and gradient.difference is not None
    moved = (x + update.difference) - x
    assert abs(float(gradient.difference[0]) - exact) <= exact * 2**-23
    assert abs(float(moved[0]) / -1e-3 - exact) > exact * 2**-20


def test_private_gradients_have_the_noise_of_training() -> None:
    clean, noisy = (digits(privacy=RecordPrivacy(1.0, noise)) for noise in (0.0, 2.0))
    (first,), (second,) = (task.gradients(jobs(task, [0])) for task in (clean, noisy))
    assert first.difference is not None and second.difference is not None
    assert float(np.linalg.norm(second.difference - first.difference)) > 0.1
    assert set(first.metrics) == {"steps"}


def test_private_gradients_take_no_more_batches_than_the_account_has() -> None:
    task = digits(privacy=RecordPrivacy(1.0, 1.0))
    with pytest.raises(ConfigError, match="over 5 batches, and a round's account of privacy has 3"):
        task.gradients(jobs(task, [0], accumulate=5))


@pytest.mark.parametrize(
    ("model", "how", "said"),
    [
        ("cnn:small-bn", {}, "running statistics"),
        ("mlp:64-16-10", {"personal": "layer2.*"}, "personal layers"),
        ("softmax", {"precision": "float16"}, "float16"),
    ],
)
def test_what_has_no_gradient_is_refused_before_a_job(model: str, how: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        digits(model, **how).gradients([])


def test_a_gradient_that_is_not_finite_names_its_node() -> None:
    task = digits()
    far = frozen(np.full(task.length, 3e38, np.float32))
    with pytest.raises(TrainingError, match="node 3, round 5"):
        task.gradients([Job(3, 5, far, gradient=True)])


def test_a_gradient_has_no_terms() -> None:
    with pytest.raises(ValueError, match="terms"):
        Job(0, 0, frozen(np.zeros(2, np.float32)), Terms(0.1), gradient=True)


# --- FedSGD -----------------------------------------------------------------------------------------------------------

SGD = {"rounds": 2, "coordinator": {"clients": 4, "algorithm": "fedsgd", "secure": {"on": False}}}


def test_fedsgd_takes_the_gradient_as_it_is() -> None:
    """One client, exact sums: x - lr * gradient, each rounded once."""
    task = Quadratic(1, 3, placement="random", dtype=np.float32)
    alone = {"rounds": 1, "coordinator": {**SGD["coordinator"], "clients": 1, "options": {"lr": 0.25}}}  # type: ignore[dict-item]
    run = fedgossip.simulate(alone, task=task)
    x = task.initial(0) - np.float32(0.25) * (task.initial(0) - task.b[0])
    assert run.vectors[1] is not None
    assert run.vectors[1].tobytes() == x.astype(np.float32).tobytes()


def test_fedsgd_is_refused_for_a_task_that_gives_no_gradients() -> None:
    class Updates:
        length, dtype, schema = 2, np.dtype(np.float32), "two"

        def initial(self, _node: int) -> Vector:
            return frozen(np.zeros(2, np.float32))

        def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
            raise AssertionError("nothing runs")

        def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
            return [{"loss": 0.0} for _ in vectors]

    with pytest.raises(ConfigError, match="fedsgd needs gradients, and Updates has no method gradients"):
        fedgossip.simulate(SGD, task=Updates())


@pytest.mark.parametrize("how", [{"momentum": 0.9}, {"clip_norm": 1.0}, {"weight_decay": 0.1}, {"optimizer": "adam"}])
def test_settings_of_steps_are_refused_where_clients_take_none(how: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"train.{next(iter(how))} is of steps"):
        fedgossip.simulate({**SGD, "train": {**how, "device": "cpu"}})


def test_fedsgd_is_one_run_in_both_engines_alone_and_in_a_block() -> None:
    train = {"local_epochs": 1, "batch_size": 64, "device": "cpu"}
    content = {**SGD, "model": {"source": "mlp:64-16-10"}, "train": train}
    uneven = {**content, "simulation": {"training_jitter": 1.0, "speed_spread": 0.5}}  # jobs come one by one
    digests = {fedgossip.simulate(content, engine=engine).digest for engine in ("sim", "stacked")}
    assert digests == {fedgossip.simulate(uneven).digest}
