"""Local training: an update depends on its own job alone, and equals what autograd gives."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import add, frozen
from fedgossip.core.task import Job, LocalTask, Update, tensors_of
from fedgossip.data.data import load, split
from fedgossip.data.dataset import Dataset
from fedgossip.data.partitions import partition
from fedgossip.experiment import load_experiment
from fedgossip.learning.many_nodes.stacked_engine import LayerStack
from fedgossip.learning.models import models
from fedgossip.learning.one_model import optimizers
from fedgossip.learning.one_model.batches import Batches, EndlessLine
from fedgossip.learning.task import TorchTask, TrainSettings, train_centralised
from fedgossip.plans.tasks import task_of_dry_run


def on_cpu(**how: Any) -> TrainSettings:
    return TrainSettings(device="cpu", **how)


def made_up(examples: int = 150, features: int = 12, classes: int = 4, seed: int = 0) -> Dataset:
    draw = stream(seed, "made up", examples, features, classes)
    y = draw.integers(0, classes, examples)
    centres = draw.standard_normal((classes, features))
    x = (centres[y] + draw.standard_normal((examples, features))).astype(np.float32)
    return Dataset("made up", x, y, classes)


def images(examples: int = 96) -> Dataset:
    flat = made_up(examples, 64, 3)
    return replace(flat, x=flat.x.reshape(-1, 1, 8, 8))


def task_of(model: str, data: Dataset, how: TrainSettings, *, n: int = 9, skewed: bool = True) -> TorchTask:
    kind = "size-skewed" if skewed else "iid"
    return TorchTask(data, data, partition(kind, data.labels, n, seed=3), model, how, seed=1, rounds=20)


def jobs_of(task: TorchTask, n: int = 9, seed: int = 0) -> list[Job]:
    """n jobs in different rounds from different vectors."""
    start = task.initial(0)
    noise = stream(seed, "noise")
    vectors = [frozen((start + 0.1 * noise.standard_normal(start.size)).astype(np.float32)) for _ in range(n)]
    return [Job(node, (7 * node) % 5, vectors[node]) for node in range(n)]


def grouped(task: TorchTask, jobs: list[Job], groups: list[list[int]]) -> dict[int, Update]:
    found: dict[int, Update] = {}
    for group in groups:
        found.update(zip(group, task.train([jobs[k] for k in group]), strict=True))
    return found


def random_groups(n: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    order = draw.sample(range(n), n)
    cuts = sorted({0, n, *draw.sample(range(n), 3)})
    return [order[a:b] for a, b in pairwise(cuts)]


SHAPES = [
    (12, "softmax", 4, {}),
    (12, "softmax", 4, {"batch_size": 1}),
    (30, "softmax", 2, {"batch_size": 3}),
    (12, "mlp:12-7-4", 4, {"batch_size": 5, "local_steps": 3}),
    (17, "mlp:17-33-10-3", 3, {"batch_size": 17}),
    (64, "mlp:64-32-10", 10, {"batch_size": 16}),
    (12, "mlp:12-7-4", 4, {"local_epochs": 2, "batch_size": 8}),
    (12, "softmax", 4, {"local_epochs": 1, "batch_size": 7}),
    (12, "mlp:12-16-4", 4, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (12, "mlp:12-9-4", 4, {"optimizer": "adam", "lr": 0.01, "local_epochs": 1}),
    (12, "mlp:12-9-4", 4, {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.5, "local_epochs": 1}),
    (12, "mlp:12-9-5-4", 4, {"clip_norm": 0.5, "batch_size": 2}),
    # odd ones: MKL as it comes rounds their products otherwise in a batch of one, on some processors
    (17, "mlp:17-33-10", 10, {}),
    (16, "softmax", 5, {"batch_size": 3}),
    (12, "mlp:12-7-4", 4, {"momentum": 0.9}),
    (33, "mlp:33-17-5", 5, {"batch_size": 7}),
    (13, "mlp:13-5-10", 10, {"optimizer": "adam", "lr": 0.01}),
]


@pytest.mark.parametrize(("features", "model", "classes", "how"), SHAPES)
def test_an_update_does_not_depend_on_the_jobs_that_share_the_call(features, model, classes, how):
    data = made_up(150, features, classes)
    fresh = lambda: task_of(model, data, on_cpu(**how))  # noqa: E731 momentum stays in a task
    task = fresh()
    assert isinstance(task._engine, LayerStack)
    jobs = jobs_of(task)
    alone = grouped(task, jobs, [[k] for k in range(9)])
    for seed in range(4):
        together = grouped(fresh(), jobs, random_groups(9, seed))
        for k in range(9):
            assert torch.equal(torch.tensor(alone[k].difference), torch.tensor(together[k].difference))
            assert alone[k].metrics == together[k].metrics


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 40), min_size=2, max_size=4),
    batch=st.integers(1, 33),
    steps=st.integers(1, 3),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
@example(sizes=[64, 32, 10], batch=32, steps=3, threads=2, seed=0)  # threads divide the sums of a lone product
def test_any_stack_and_any_batch_size_gives_the_same_bits_alone_and_together(sizes, batch, steps, threads, seed):
    data = made_up(60, sizes[0], sizes[-1], seed)
    model = "mlp:" + "-".join(map(str, sizes))
    task = task_of(model, data, on_cpu(batch_size=batch, local_steps=steps, threads=threads))
    jobs = jobs_of(task, 9, seed)
    together = task.train(jobs)
    alone = grouped(task, jobs, [*random_groups(9, seed), [4]])
    assert all(np.array_equal(together[k].difference, alone[k].difference) for k in range(9))


def test_bits_do_not_depend_on_the_size_of_the_block(monkeypatch):
    data = made_up()
    jobs, found = None, []
    for largest in (64, 4, 3):
        monkeypatch.setattr("fedgossip.learning.many_nodes.stacked_engine.LARGEST_BLOCK", largest)
        task = task_of("mlp:12-16-4", data, on_cpu(local_epochs=1))
        jobs = jobs or jobs_of(task)
        found.append([update.difference.tobytes() for update in task.train(jobs)])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("model", ["cnn:small", "cnn:small-bn"])
def test_models_without_a_batched_path_do_not_depend_on_their_company_either(model):
    data = images()
    how = on_cpu(batch_size=8, local_steps=2, momentum=0.5, buffers="local")
    jobs = jobs_of(task_of(model, data, how, n=4), 4)
    first = grouped(task_of(model, data, how, n=4), jobs, [[0, 1, 2, 3]])
    second = grouped(task_of(model, data, how, n=4), jobs, [[3], [1, 0], [2]])
    assert all(np.array_equal(first[k].difference, second[k].difference) for k in range(4))


OPTIMISERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def by_autograd(model: str, data: Dataset, task: TorchTask, job: Job, how: TrainSettings) -> np.ndarray:
    """The update by torch's own modules, autograd and optimisers: the reference twin."""
    module = models.build(model, data.shape, data.classes, 1)
    task.layout.write(module, job.vector)
    kind = OPTIMISERS[how.optimizer]
    extra = {"momentum": how.momentum, "nesterov": how.nesterov} if how.optimizer == "sgd" else {}
    optimiser = kind(module.parameters(), lr=how.lr, weight_decay=how.weight_decay, **extra)
    shares = partition("size-skewed", data.labels, 9, seed=3)
    plan = Batches(shares, how, 1, how.batch_size).plan(job.node, job.round)
    for row, count in zip(plan.indices, plan.counts, strict=True):
        optimiser.zero_grad()
        rows = row[:count]
        functional.cross_entropy(module(torch.tensor(data.x[rows])), torch.tensor(data.y[rows])).backward()
        if how.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), how.clip_norm)
        optimiser.step()
    return task.layout.read(module) - job.vector


@pytest.mark.parametrize(("features", "model", "classes", "how"), SHAPES)
def test_hand_written_gradients_equal_autograd(features, model, classes, how):
    data, how = made_up(150, features, classes), on_cpu(**how)
    task = task_of(model, data, how)
    jobs = jobs_of(task)
    for job, update in zip(jobs, task.train(jobs), strict=True):
        np.testing.assert_allclose(update.difference, by_autograd(model, data, task, job, how), atol=1e-5)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_and_adamw_are_torchs_own_to_rounding(name):
    """Against torch's optimiser in float64: the decay and a step round the weight once each, and a dozen operations of
    its own length, at most lr (1 - beta1) / sqrt(1 - beta2) (Kingma and Ba, section 2.1)."""
    how, steps = on_cpu(optimizer=name, lr=0.01, weight_decay=0.02), 25
    draw = stream(0, "adam")
    start = draw.standard_normal((1, 1003)).astype(np.float32)
    found, slots = torch.tensor(start), [torch.zeros(1, 1003) for _ in how.slots]
    expected = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    reference = OPTIMISERS[name]([expected], lr=how.lr, weight_decay=how.weight_decay)
    factors = optimizers.rates(how, [how.lr], [0], steps)
    for step in range(steps):
        gradient = torch.tensor(draw.standard_normal((1, 1003)).astype(np.float32))
        expected.grad = gradient.double()
        reference.step()
        used = {name: getattr(factors, name) for name in ("rate", "root", "kept")}
        now = {name: torch.tensor(one[min(step, len(one) - 1)]) for name, one in used.items()}
        optimizers.step(how, found, gradient, slots, **now)
    longest = how.lr * (1 - optimizers.BETA1) / math.sqrt(1 - optimizers.BETA2)
    bound = steps * 2.0**-24 * (2 * np.abs(start).max() + 12 * longest)
    np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), rtol=0, atol=bound)


def test_the_loop_over_modules_equals_autograd_too():
    data, how = images(), on_cpu(batch_size=8, local_steps=3, momentum=0.9, weight_decay=0.01)
    task = task_of("cnn:small", data, how)
    job = jobs_of(task, 2)[1]
    expected = by_autograd("cnn:small", data, task, job, how)
    np.testing.assert_allclose(task.train([job])[0].difference, expected, atol=1e-5)


def test_the_loss_is_the_mean_over_the_batches_of_the_round():
    data, how = made_up(), on_cpu(local_epochs=1, lr=1e-12, batch_size=150)
    task = task_of("softmax", data, how, n=1)
    (update,) = task.train([Job(0, 0, task.initial(0))])
    assert update.metrics["loss"] == pytest.approx(task.evaluate([task.initial(0)])[0]["loss"], rel=1e-6)


@pytest.mark.parametrize("model", ["softmax", "mlp:12-8-4"])
def test_batched_evaluation_equals_the_module(model):
    data = made_up(700)  # more than one block of test rows
    task = task_of(model, data, on_cpu())
    vectors = [job.vector for job in jobs_of(task)]
    module = models.build(model, data.shape, data.classes, 0)
    for vector, found in zip(vectors, task.evaluate(vectors), strict=True):
        task.layout.write(module, vector)
        logits = module(torch.tensor(data.x)).detach()
        assert found["loss"] == pytest.approx(float(functional.cross_entropy(logits, torch.tensor(data.y))), rel=1e-5)
        assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == torch.tensor(data.y)).float().mean()))


def test_evaluation_does_not_depend_on_company():
    data = made_up()
    task = task_of("mlp:12-8-4", data, on_cpu())
    vectors = [job.vector for job in jobs_of(task)]
    assert list(task.evaluate(vectors)) == [task.evaluate([vector])[0] for vector in vectors]


# --- batches ----------------------------------------------------------------------------------------------------


def test_a_pass_shows_every_example_once_whatever_the_rounds():
    share = np.arange(100, 140)
    batches = Batches([share], on_cpu(batch_size=5, local_steps=2), 0, 5)
    seen = np.concatenate([batches.plan(0, round).indices.reshape(-1) for round in range(8)])
    assert np.array_equal(np.sort(seen[:40]), share)
    assert np.array_equal(np.sort(seen[40:]), share)
    assert not np.array_equal(seen[:40], seen[40:])


@settings(max_examples=50, deadline=None)
@given(m=st.integers(1, 700), batch=st.integers(1, 40), steps=st.integers(1, 6), round=st.integers(0, 50))
def test_a_plan_can_be_made_without_the_rounds_before_it(m, batch, steps, round):
    how = on_cpu(batch_size=batch, local_steps=steps)
    in_order = Batches([np.arange(m)], how, 0, batch)
    for earlier in range(round):
        in_order.plan(0, earlier)
    afresh = Batches([np.arange(m)], how, 0, batch)
    assert np.array_equal(in_order.plan(0, round).indices, afresh.plan(0, round).indices)


def test_the_batches_of_all_nodes_are_those_of_each_and_a_stretch_of_theirs_is_drawn_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shares of 3, 5 and 600 examples: stretches of 510, 510 and 600 places, which rounds of 120 places cross."""
    shares = [np.arange(first, first + m) for first, m in ((0, 5), (5, 3), (8, 600), (608, 5))]
    how = on_cpu(batch_size=40, local_steps=3)
    drawn: list[tuple[int, int]] = []
    draw = EndlessLine.draw

    def counted(line: EndlessLine, node: int, number: int, length: int) -> Any:
        drawn.append((node, number))
        return draw(line, node, number, length)

    together, each = Batches(shares, how, 1, 40), Batches(shares, how, 1, 40)
    expected = [np.stack([each.plan(node, round).indices for node in range(4)], axis=1) for round in range(12)]
    monkeypatch.setattr(EndlessLine, "draw", counted)
    monkeypatch.setattr(EndlessLine, "places", None)  # one call for each node and round costs as much as its step
    for round, indices in enumerate(expected):
        assert np.array_equal(together.plan_all(round, 4), indices)
    assert len(drawn) == len(set(drawn)) == 3 * 3 + 3


def test_an_epoch_ends_with_a_smaller_batch():
    plan = Batches([np.arange(10)], on_cpu(batch_size=4, local_epochs=2), 0, 4).plan(0, 3)
    assert plan.counts.tolist() == [4, 4, 2, 4, 4, 2]
    used = np.concatenate([row[:count] for row, count in zip(plan.indices, plan.counts, strict=True)])
    assert np.array_equal(np.sort(used), np.repeat(np.arange(10), 2))


# --- what stays at a node ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"momentum": 0.9}, {"optimizer": "adam", "lr": 0.01}])
@pytest.mark.parametrize("model", ["mlp:64-8-3", "cnn:small-bn"])
def test_a_task_that_takes_up_a_state_goes_on_with_the_same_bits(model, how):
    data, how = images(), on_cpu(local_steps=2, batch_size=8, buffers="local", **how)
    first, second = task_of(model, data, how), task_of(model, data, how)
    vector = first.initial(0)
    first.train([Job(2, 0, vector)])
    second.load_state(2, first.state(2))
    again = [task.train([Job(2, 1, vector)])[0].difference for task in (first, second)]
    assert np.array_equal(*again)
    fresh = task_of(model, data, how).train([Job(2, 1, vector)])[0].difference
    assert not np.array_equal(again[0], fresh)


def test_a_state_of_another_model_is_refused():
    how = on_cpu(momentum=0.9)
    task, other = task_of("softmax", made_up(), how), task_of("mlp:12-8-4", made_up(), how)
    other.train([Job(0, 0, other.initial(0))])
    with pytest.raises(ConfigError, match="expected 52"):
        task.load_state(0, other.state(0))


def test_averaged_running_statistics_are_part_of_the_vector():
    average = task_of("cnn:small-bn", images(), on_cpu(batch_size=8, local_steps=1))
    (update,) = average.train([Job(0, 0, average.initial(0))])
    named = tensors_of(average, update.difference)
    assert np.any(named["norm1.running_mean"] != 0)
    assert not any("num_batches_tracked" in name for name in named)


def test_local_running_statistics_stay_at_their_node():
    local = task_of("cnn:small-bn", images(), on_cpu(batch_size=8, local_steps=1, buffers="local"))
    average = task_of("cnn:small-bn", images(), on_cpu(batch_size=8, local_steps=1))
    assert local.length == average.length - 2 * (16 + 32)
    local.train([Job(0, 0, local.initial(0)), Job(1, 0, local.initial(0))])
    mine, theirs = (local.state(node)["buffer:norm1.running_mean"] for node in (0, 1))
    assert np.any(mine != theirs)


def test_with_local_statistics_evaluation_uses_those_of_the_test_batch():
    data, how = images(), on_cpu(batch_size=8, local_steps=1, buffers="local")
    task = task_of("cnn:small-bn", data, how)
    module = models.build("cnn:small-bn", data.shape, data.classes, 1).train()
    expected = functional.cross_entropy(module(torch.tensor(data.x)).detach(), torch.tensor(data.y))
    assert task.evaluate([task.initial(0)])[0]["loss"] == pytest.approx(float(expected), rel=1e-5)


# --- promises of a LocalTask ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp:64-8-3", "cnn:small"])
def test_training_changes_neither_its_vector_nor_torchs_generator(model):
    task: LocalTask = task_of(model, images(), on_cpu(local_steps=1))
    vector = task.initial(0)
    before, generator = vector.copy(), torch.get_rng_state()
    (update,) = task.train([Job(0, 0, vector)])
    assert np.array_equal(vector, before)
    assert torch.equal(torch.get_rng_state(), generator)
    assert not update.difference.flags.writeable
    assert update.difference.dtype == task.dtype == np.float32
    assert update.difference.shape == (task.length,)


@pytest.mark.parametrize("model", ["mlp:12-8-4", "tests.learning.test_learning:with_dropout"])
def test_a_loss_that_is_not_finite_names_node_round_and_a_remedy(model):
    task = task_of(model, made_up(), on_cpu())
    bad = frozen(np.full(task.length, 1e38, np.float32))
    with pytest.raises(TrainingError, match="node 3, round 5") as error:
        task.train([Job(1, 5, task.initial(1)), Job(3, 5, bad)])
    assert "smaller lr" in error.value.advice


def with_dropout(shape, classes):
    return torch.nn.Sequential(torch.nn.Linear(shape[0], 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, classes))


def test_dropout_is_a_function_of_node_and_round():
    task = task_of("tests.learning.test_learning:with_dropout", made_up(), on_cpu())
    job, other = Job(0, 0, task.initial(0)), Job(0, 1, task.initial(0))
    first, _, again = task.train([job, other, job])
    assert np.array_equal(first.difference, again.difference)


def broken(shape, classes):
    return torch.nn.Linear(shape[0] + 1, classes)


def test_a_model_that_raises_is_a_training_error():
    task = task_of("tests.learning.test_learning:broken", made_up(), on_cpu())
    with pytest.raises(TrainingError, match="node 0, round 0: training raised") as caught:
        task.train([Job(0, 0, task.initial(0))])
    assert ".py" not in str(caught.value), "a line of torch, or of ours, helps nobody"


def normed(shape, classes):
    return torch.nn.Sequential(torch.nn.Linear(shape[0], 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, classes))


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"local_epochs": 1, "batch_size": 4}, True),  # 5 = 4 + 1
        ({"local_epochs": 1, "batch_size": 3}, False),
        ({"local_epochs": 1, "batch_size": 3, "accumulate": 2}, True),  # 8 = 6 + 1 + 1
        ({"local_steps": 2, "batch_size": 1, "accumulate": 3}, True),
        ({"local_steps": 2, "batch_size": 4}, False),
        ({"local_epochs": 1, "batch_size": 4, "processes": 2}, True),
    ],
)
def test_a_batch_of_one_example_is_refused_before_training_where_a_model_needs_more(settings, refused):
    source, shares = "tests.learning.test_learning:normed", [np.arange(5), np.arange(8)]
    how = on_cpu(**{"local_steps": None, **settings})

    def make():
        return TorchTask(made_up(), made_up(), shares, source, how, seed=0, rounds=1)

    if not refused:
        task = make()
        task.train([Job(node, 0, task.initial(node)) for node in (0, 1)])
        return
    with pytest.raises(ConfigError, match="normed: a batch here is one example") as caught:
        make()
    assert "train.batch_size" in caught.value.advice


def test_a_dry_run_tries_a_named_model_on_one_example_where_a_batch_is_one():
    of_run = {"topology": {"graph": "ring", "n": 2}, "rounds": 1, "model": {"source": "cnn:small-bn"}}
    content = {**of_run, "data": {"source": "digits"}, "train": {"batch_size": 1, "local_steps": 1, "device": "cpu"}}
    assert isinstance(task_of_dry_run(load_experiment(content), 2)[0], TorchTask)


def narrow(shape, classes):
    return torch.nn.Linear(shape[0], 1)


def test_a_model_of_too_few_outputs_is_refused_with_the_number_that_is_right():
    data = made_up()
    task = task_of("tests.learning.test_learning:narrow", data, on_cpu())
    with pytest.raises(TrainingError, match="evaluating raised") as caught:
        task.evaluate([task.initial(0)])
    assert f"an answer {data.outputs} numbers" in caught.value.advice


class Raising(torch.nn.Linear):
    def forward(self, x):
        raise ValueError("no")  # the line that is named


def raising(shape, classes):
    return Raising(shape[0], classes)


def test_where_a_forward_pass_of_the_users_own_raised_is_told():
    task = task_of("tests.learning.test_learning:raising", made_up(), on_cpu())
    lines = Path(__file__).read_text().splitlines()
    place = rf"\(test_learning.py, line {next(n for n, line in enumerate(lines, 1) if 'raise ValueError(' in line)}\)"
    with pytest.raises(TrainingError, match=f"training raised ValueError.*{place}"):
        task.train([Job(0, 0, task.initial(0))])
    with pytest.raises(TrainingError, match=f"evaluating raised ValueError.*{place}"):
        task.evaluate([task.initial(0)])


def test_a_node_without_examples_is_refused():
    with pytest.raises(ConfigError, match="node 1 has no training example"):
        TorchTask(made_up(), made_up(), [np.arange(3), np.arange(0)], "softmax", on_cpu(), seed=0, rounds=1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"local_steps": 5, "local_epochs": 1}, "both given"),
        ({"optimizer": "sdg"}, "unknown optimizer"),
        ({"lr": 0.0}, "lr = 0.0"),
        ({"momentum": 1.0}, "momentum"),
        ({"batch_size": 0}, "batch_size"),
        ({"schedule": "step:3"}, "step:3"),
        ({"schedule": "cosin"}, "unknown schedule"),
        ({"nesterov": True}, "nesterov"),
        ({"buffers": "mine"}, "unknown buffers"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message) as error:
        on_cpu(**wrong)
    assert error.value.advice


def test_schedules_follow_their_formula():
    assert on_cpu(lr=1.0, schedule="cosine").rate(50, 100) == pytest.approx(0.5)
    assert [on_cpu(lr=1.0, schedule="step:2,0.1").rate(r, 9) for r in (1, 2, 4)] == pytest.approx([1, 0.1, 0.01])


# --- learning ---------------------------------------------------------------------------------------------------


def test_sixteen_peers_that_average_learn_the_digits_as_one_does():
    train, test = split(load("digits"), 0.2, 0)
    how = on_cpu(batch_size=16, local_steps=5)
    task = TorchTask(train, test, partition("iid", train.y, 16, seed=0), "mlp:64-32-10", how, seed=0, rounds=40)
    vector = task.initial(0)
    for round in range(40):
        updates = task.train([Job(node, round, vector) for node in range(16)])
        vector = add(vector, frozen(np.mean([u.difference for u in updates], axis=0, dtype=np.float32)))
    found = task.evaluate([vector])[0]
    pooled = train_centralised(train, test, "mlp:64-32-10", how, 0, steps=200, batch_size=256)
    assert found["accuracy"] > 0.85
    assert abs(found["accuracy"] - pooled["accuracy"]) < 0.05


def test_characters_of_plays_are_learnt(real_data):
    plays = load(f"text:{real_data}/shakespeare/tinyshakespeare.txt?min_chars=20000")
    train, test = split(plays, 0.1, 0)
    shares = partition("natural", train.y, 4, seed=0, groups=train.groups)
    how = on_cpu(lr=1.0, clip_norm=1.0, local_steps=10)
    task = TorchTask(train, test.subset(np.arange(64)), shares, "chars:32", how, seed=0, rounds=3)
    vector = task.initial(0)
    before = task.evaluate([vector])[0]["loss"]
    for round in range(3):
        updates = task.train([Job(node, round, vector) for node in range(4)])
        vector = add(vector, frozen(np.mean([u.difference for u in updates], axis=0, dtype=np.float32)))
    assert task.evaluate([vector])[0]["loss"] < before - 0.5


@pytest.mark.sockets
def test_data_partitions_settings_and_analytic_do_not_import_torch():
    code = (
        "import sys, fedgossip.learning, fedgossip.data.data, fedgossip.data.partitions, "
        "fedgossip.learning.analytic, fedgossip.learning.settings, fedgossip.data.idx, fedgossip.data.tables\n"
        "assert not {'torch', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
