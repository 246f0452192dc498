"""DP-SGD: no example moves a step further than the clip, the noise is what is accounted, and nothing else gets out."""

from __future__ import annotations

import copy
import math
import os
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedgossip.base.errors import ConfigError
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import Terms
from fedgossip.core.task import Job, Update
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import Objective
from fedgossip.learning.dp_sgd import private
from fedgossip.learning.dp_sgd.layer_gradients import Layered
from fedgossip.learning.dp_sgd.private import (
    UNITS,
    Alone,
    PrivateGradients,
    add_clipped,
    check_apart,
    per_example,
    trained,
)
from fedgossip.learning.dp_sgd.record_privacy import PoissonBatches, RecordPrivacy
from fedgossip.learning.many_nodes.stacked_engine import LayerStack
from fedgossip.learning.models import models
from fedgossip.learning.one_model import optimizers
from fedgossip.learning.one_model.losses import Criterion
from fedgossip.learning.settings import TrainSettings
from fedgossip.learning.task import TorchTask

CLIPS = RecordPrivacy(clip=0.7, noise=0.0)
NOISY = RecordPrivacy(clip=0.7, noise=1.3)


def made_up(shape=(12,), classes=4, examples=90, vocabulary=None):
    draw = stream(0, "made up", *shape)
    if vocabulary is not None:
        x = draw.integers(0, vocabulary, (examples, *shape))
        return Dataset("text", x, np.roll(x, -1, 1), vocabulary, vocabulary="abcdefghij"[:vocabulary])
    x = draw.standard_normal((examples, *shape)).astype(np.float32)
    return Dataset("made up", x, draw.integers(0, classes, examples), classes)


FLAT, IMAGES, TEXT = made_up(), made_up((1, 8, 8), 3), made_up((6,), vocabulary=5)
SHARES = [np.arange(0, 60), np.arange(60, 90)]
HOW = TrainSettings(device="cpu", batch_size=12, local_steps=4)
MODELS = [("softmax", FLAT), ("mlp:12-7-4", FLAT), ("cnn:small", IMAGES), ("chars:5", TEXT), ("gpt:1-8-2", TEXT)]


def task_of(model: str, data: Dataset, how: TrainSettings = HOW, privacy: RecordPrivacy | None = CLIPS) -> TorchTask:
    return TorchTask(data, data, SHARES, model, how, seed=1, rounds=20, privacy=privacy)


def train(task: TorchTask, node: int = 0, round: int = 0, terms: Terms | None = None) -> Update:
    return task.train([Job(node, round, task.initial(node), terms)])[0]


# --- the twin: one example after another ------------------------------------------------------------------------------


def twin(model: str, data: Dataset, how: TrainSettings, *, node=0, round=0, clip=0.7, terms=None) -> np.ndarray:
    """DP-SGD without noise, by autograd on single examples; returns trained minus given."""
    vocabulary = len(data.vocabulary) if data.vocabulary else None
    module = models.build(model, data.shape, data.classes, 1, vocabulary)
    weights = [p for p in module.parameters() if p.requires_grad]
    given = torch.cat([p.detach().reshape(-1) for p in weights])
    slots = [torch.zeros(1, len(given)) for _ in how.slots]
    plan = PoissonBatches(SHARES, how, CLIPS, 1).plan(node, round)
    lr, m = how.rate(round, 20), len(SHARES[node])
    factors = optimizers.rates(how, [lr], [0], len(plan.counts))
    for step, (row, count) in enumerate(zip(plan.indices, plan.counts, strict=True)):
        total = torch.zeros(len(given), dtype=torch.float64)
        for i in row[:count]:
            logits = module(torch.from_numpy(data.x[i : i + 1]))
            loss = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), torch.tensor(data.y[i]).reshape(-1))
            one = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, weights)]).double()
            total += one * min(1.0, clip / float(one.norm()))
        flat = torch.cat([p.detach().reshape(-1) for p in weights])
        gradient = (total / min(how.batch_size, m)).float()
        if terms is not None:
            gradient += terms.pull * (flat - given) + torch.from_numpy(terms.correction.copy())
        moved = flat.clone().unsqueeze(0)
        used = {name: getattr(factors, name) for name in ("rate", "root", "kept")}
        now = {name: torch.tensor(one[min(step, len(one) - 1), 0]) for name, one in used.items()}
        optimizers.step(how, moved, gradient.unsqueeze(0), slots, **now)
        nn.utils.vector_to_parameters(moved[0], weights)
    return (torch.cat([p.detach().reshape(-1) for p in weights]) - given).numpy()


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal to three thousandths: clips are LAYERED_MARGIN shorter, and gradients rounded to 2^-20 of a clip."""
    return float(np.linalg.norm(found - expected)) <= 3e-3 * float(np.linalg.norm(expected))


@pytest.mark.parametrize(("model", "data"), MODELS)
def test_without_noise_it_is_the_twin_with_one_example_after_another(model, data):
    assert near(train(task_of(model, data)).difference, twin(model, data, HOW))


@pytest.mark.parametrize(
    "how",
    [
        replace(HOW, momentum=0.9, nesterov=True, weight_decay=0.01),
        replace(HOW, optimizer="adam", lr=0.01),
        TrainSettings(device="cpu", batch_size=25, local_epochs=2),
        TrainSettings(device="cpu", batch_size=100, local_steps=2),
    ],
)
def test_every_optimiser_and_way_to_count_steps_is_that_of_the_twin(how):
    for node in (0, 1):
        found = train(task_of("mlp:12-7-4", FLAT, how), node, 3)
        assert near(found.difference, twin("mlp:12-7-4", FLAT, how, node=node, round=3))


def test_the_terms_of_fedprox_and_scaffold_come_beside_the_private_gradient():
    task = task_of("softmax", FLAT)
    terms = Terms(0.3, frozen(stream(0, "c").standard_normal(task.length).astype(np.float32)))
    found = train(task, terms=terms)
    assert near(found.difference, twin("softmax", FLAT, HOW, terms=terms))
    assert found.metrics == {"steps": 4, "rate": 0.1}


# --- sensitivity ------------------------------------------------------------------------------------------------------

GRADIENTS = st.floats(allow_nan=True, allow_infinity=True, width=32)


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(GRADIENTS, min_size=7, max_size=7),
    others=st.integers(0, 40),
    clip=st.sampled_from([1e-6, 0.3, 1.0, 1e6]),
    scale=st.floats(1e-3, 1e3),
)
def test_one_example_moves_the_sum_by_the_clip_at_most_whatever_its_gradient(values, others, clip, scale):
    rest = torch.from_numpy(stream(others, "rest").standard_normal((others, 7)).astype(np.float32)) * (clip * scale)
    one = torch.tensor([values], dtype=torch.float32)

    def summed(*rows: torch.Tensor) -> torch.Tensor:
        flat = torch.cat(rows)
        sums = [torch.zeros(3, 2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
        add_clipped(sums, [flat[:, :6].reshape(-1, 3, 2).clone(), flat[:, 6:].clone()], clip)
        return torch.cat([part.reshape(-1) for part in sums])

    without, with_it = summed(rest) if others else torch.zeros(7), summed(rest, one)
    moved = with_it - without
    assert float(moved.norm()) <= UNITS
    assert torch.equal(moved, moved.trunc())  # whole units: the last bits say nothing
    assert torch.equal(with_it, summed(one, rest) if others else with_it)  # and no order shows


@pytest.mark.parametrize("elements", [10, 4096, 50_000])
def test_a_clipped_gradient_is_as_long_as_the_clip_and_never_longer(elements):
    one = torch.from_numpy(stream(elements, "long").standard_normal((1, elements)).astype(np.float32)) * 1e4
    total = torch.zeros(elements, dtype=torch.float64)
    add_clipped([total], [one.clone()], 0.7)
    rounding = math.sqrt(elements) / UNITS
    assert 1 - private.MARGIN - 2**-13 - rounding <= float(total.norm()) / UNITS <= 1


def test_rounding_to_units_never_makes_a_gradient_longer():
    """Many equal elements, each a little above half a unit beyond a whole one: rounded up they would be too long."""

    def beyond(elements: int) -> float:
        return UNITS * (1 - private.MARGIN) / math.sqrt(elements) % 1

    elements = next(n for n in range(2_000_000, 2_100_000) if 0.55 < beyond(n) < 0.65)
    total = torch.zeros(elements, dtype=torch.float64)
    add_clipped([total], [torch.ones(1, elements)], 0.7)
    assert float(total.norm()) <= UNITS


def test_a_batch_of_any_size_is_added_up_without_rounding():
    rows = (stream(0, "rows").uniform(0.9, 1.0, (1000, 1)) * 0.7).astype(np.float32)
    together = torch.zeros(1, dtype=torch.float64)
    add_clipped([together], [torch.from_numpy(rows.copy())], 0.7)
    apart = 0
    for row in rows:
        one = torch.zeros(1, dtype=torch.float64)
        add_clipped([one], [torch.from_numpy(row[None].copy())], 0.7)
        apart += int(one)
    assert int(together) == apart > 2**24


@pytest.mark.parametrize(("model", "data"), MODELS)
def test_one_more_example_in_a_batch_moves_the_gradient_by_the_clip_at_most(model, data):
    vocabulary = len(data.vocabulary) if data.vocabulary else None
    module = models.build(model, data.shape, data.classes, 1, vocabulary).train()
    gradients = PrivateGradients(module, CLIPS, HOW, SHARES, 1)
    gradients.begin(0, 0)
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    for size in (0, 1, 20):
        with torch.no_grad():
            without, with_it = (
                torch.cat([part.clone() for part in gradients._clipped_sum(x[:some], y[:some])]).round()
                for some in (size, size + 1)
            )
        moved = with_it - without
        # the other examples' gradients are theirs to float32, which is below the margin
        assert float(moved.norm()) <= UNITS * (1 + 1e-4)


# --- noise and batches ------------------------------------------------------------------------------------------------


def test_the_noise_has_the_deviation_that_is_accounted_and_empty_batches_are_noise():
    """sum + N(0, (z clip)^2), over the expected batch."""
    data = made_up((784,), 10)
    module = models.build("softmax", data.shape, 10, 1)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gradients = PrivateGradients(module, NOISY, HOW, SHARES, 1)
    gradients.begin(0, 0)
    found = []
    for _ in range(5):
        gradients.fill(torch.zeros(0, 784), torch.zeros(0, dtype=torch.int64))
        found.append(torch.cat([p.grad.reshape(-1) for p in trained(module)]).numpy())
    scaled = np.concatenate(found) * 12 / (1.3 * 0.7)
    assert abs(scaled.mean()) < 5 / math.sqrt(len(scaled))
    assert abs(scaled.var() - 1) < 5 * math.sqrt(2 / len(scaled))
    assert abs(np.corrcoef(found[0], found[1])[0, 1]) < 5 / math.sqrt(len(found[0]))


def test_noise_comes_on_top_of_the_clipped_sum():
    quiet, noisy = (task_of("softmax", FLAT, replace(HOW, local_steps=1), one) for one in (CLIPS, NOISY))
    moved = np.concatenate([train(noisy, 0, r).difference - train(quiet, 0, r).difference for r in range(40)])
    deviation = 0.1 * 1.3 * 0.7 / 12  # lr z clip / expected batch
    assert moved.std() == pytest.approx(deviation, rel=5 / math.sqrt(2 * len(moved)))


def test_an_empty_batch_is_a_step_like_any_other():
    how = TrainSettings(device="cpu", batch_size=1, local_steps=30)  # one of 60: e^-1 of the batches are empty
    plan = PoissonBatches(SHARES, how, NOISY, 1).plan(0, 0)
    assert 0 in plan.counts and plan.counts.max() > 1
    update = train(task_of("softmax", FLAT, how, NOISY))
    assert np.isfinite(update.difference).all() and update.metrics["steps"] == 30


def test_each_example_is_in_a_batch_on_its_own_with_the_rate():
    how = TrainSettings(device="cpu", batch_size=12, local_steps=2000)
    plan = PoissonBatches(SHARES, how, CLIPS, 1).plan(0, 0)
    taken = np.zeros((2000, 60))
    for row, (indices, count) in zip(taken, zip(plan.indices, plan.counts, strict=True), strict=True):
        row[indices[:count]] = 1
    rate = 12 / 60
    assert np.abs(taken.mean(0) - rate).max() < 5 * math.sqrt(rate * (1 - rate) / 2000)
    assert plan.counts.var() == pytest.approx(60 * rate * (1 - rate), rel=0.2)
    pairs = np.corrcoef(taken.T)[np.triu_indices(60, 1)]
    assert np.abs(pairs).max() < 5.5 / math.sqrt(2000)


def test_a_node_with_fewer_examples_than_a_batch_takes_all_of_them():
    plan = PoissonBatches(SHARES, TrainSettings(device="cpu", batch_size=31, local_steps=3), CLIPS, 1).plan(1, 0)
    assert all(np.array_equal(row, SHARES[1]) for row in plan.indices)
    assert private.private_rate(TrainSettings(device="cpu", batch_size=31), 30) == 1.0


def test_simulations_repeat_and_real_runs_do_not():
    def two(privacy: RecordPrivacy) -> list[np.ndarray]:
        return [train(task_of("softmax", FLAT, privacy=privacy)).difference for _ in range(2)]

    first, again = two(NOISY)
    assert np.array_equal(first, again)
    other = train(task_of("softmax", FLAT, privacy=NOISY), round=1).difference
    assert not np.array_equal(first, other)
    first, again = two(replace(NOISY, entropy=os.urandom))
    assert not np.array_equal(first, again)


def test_entropy_has_no_repr():
    assert "urandom" not in repr(RecordPrivacy(1.0, 1.0, os.urandom))


# --- what else could get out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terms", [None, Terms(0.1)])
def test_no_loss_is_reported(terms):
    assert train(task_of("softmax", FLAT, privacy=NOISY), terms=terms).metrics == {"steps": 4, "rate": 0.1}


def test_running_statistics_stay_what_they_were():
    norm = nn.InstanceNorm2d(4, track_running_stats=True)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Flatten(), nn.Linear(144, 3))
    before = [buffer.clone() for buffer in module.buffers()]
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gradients = PrivateGradients(module, CLIPS, HOW, SHARES, 1)
    gradients.check(torch.from_numpy(IMAGES.x[:2]), torch.from_numpy(IMAGES.y[:2]))
    gradients.fill(torch.from_numpy(IMAGES.x), torch.from_numpy(IMAGES.y))
    assert all(torch.equal(a, b) for a, b in zip(module.buffers(), before, strict=True))


def test_batchnorm_is_refused_and_groupnorm_named():
    with pytest.raises(ConfigError, match="norm1 is BatchNorm2d") as error:
        task_of("cnn:small-bn", IMAGES)
    assert "GroupNorm" in error.value.advice


class Centred(nn.Module):
    """Takes the mean of the batch off: what it says of one example depends on the others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class OnlyInTraining(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0) if self.training else x


class Borrowed(nn.Module):
    """Uses another layer's parameter by itself: opacus sees no call of that layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.layer.weight)


class Scaled(nn.Module):
    """A layer that opacus does not know, with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.all = nn.Parameter(torch.ones(12)), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale * self.all


def apart(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    check_apart(module, way := per_example(module), x[:2], y[:2])
    return way.gradients(x, y)


X, Y = torch.from_numpy(FLAT.x[:5]), torch.from_numpy(FLAT.y[:5])


@pytest.mark.parametrize("part", [Centred(), OnlyInTraining()])
def test_a_model_that_mixes_examples_is_refused(part):
    with pytest.raises(ConfigError, match="depends on the other examples"):
        apart(nn.Sequential(nn.Linear(12, 8), part, nn.Linear(8, 4)), X, Y)


def test_a_layer_whose_gradients_do_not_add_up_is_refused():
    with pytest.raises(ConfigError, match="do not add up"):
        apart(Borrowed(), X, Y)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(Scaled(), nn.Linear(12, 4)),
        nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4, bias=False)),
        nn.Sequential(nn.Unflatten(1, (3, 4)), nn.Conv1d(3, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(12, 4)),
        nn.Sequential(nn.Unflatten(1, (4, 3)), nn.Flatten(2), nn.GRU(3, 4, batch_first=True)),
    ],
    ids=["own parameter", "layer norm", "group norm", "recurrent"],
)
def test_gradients_of_all_examples_at_once_are_those_of_each_alone(module):
    if isinstance(module[-1], nn.GRU):
        module = nn.Sequential(*module[:-1], Last(module[-1]))
    expected = Alone(copy.deepcopy(module)).gradients(X, Y)
    for one, other in zip(apart(module, X, Y), expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


class Last(nn.Module):
    """The recurrent layer's last output."""

    def __init__(self, layer: nn.GRU) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0][:, -1]


def test_parameters_of_one_number_are_trained_too():
    module = nn.Sequential(Scaled(), nn.Linear(12, 4))
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gradients = PrivateGradients(module, CLIPS, HOW, SHARES, 1)
    gradients.begin(0, 0)
    gradients.fill(X, Y)
    assert module[0].all.grad


def test_dropout_and_frozen_layers_are_allowed():
    module = nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    for parameter in module[0].parameters():
        parameter.requires_grad = False
    assert [len(one) for one in apart(module, X, Y)] == [5, 5]


def test_the_first_looks_at_a_model_leave_its_gradients_and_random_numbers_alone():
    state = torch.get_rng_state()
    way = per_example(module := nn.Sequential(nn.Linear(12, 4), nn.Dropout(0.5)))
    state = torch.get_rng_state()
    check_apart(module, way, X[:2], Y[:2])
    assert torch.equal(torch.get_rng_state(), state)
    assert isinstance(way, Layered)
    assert Criterion(Objective()).summed(module(X), Y).requires_grad


def test_big_batches_are_taken_in_parts_and_come_to_the_same(monkeypatch):
    how = TrainSettings(device="cpu", batch_size=60, local_steps=1)
    for model, data in (("cnn:small", IMAGES), ("chars:5", TEXT)):  # by layers, and one example after another
        with monkeypatch.context() as patch:
            whole = train(task_of(model, data, how))
            patch.setattr(private, "CHUNK_ELEMENTS", 50_000)
            parts = train(task_of(model, data, how))
        assert np.allclose(whole.difference, parts.difference, rtol=0, atol=0.1 * 0.7 / UNITS * 8)


@pytest.mark.parametrize("wrong", [(0.0, 1.0), (math.nan, 1.0), (1e7, 1.0), (1.0, -1.0), (1.0, 1e-4), (1.0, 300.0)])
def test_privacy_out_of_range_is_refused(wrong):
    with pytest.raises(ConfigError):
        RecordPrivacy(*wrong)


def test_without_opacus_the_advice_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.grad_sample", None)
    with pytest.raises(ConfigError, match="opacus") as error:
        per_example(nn.Sequential(Scaled(), nn.Linear(12, 4)))
    assert error.value.advice == "pip install 'fedgossip[privacy]'"
    assert train(task_of("softmax", FLAT, privacy=None)).metrics["loss"] > 0


# --- training without privacy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "data"), MODELS)
def test_training_without_privacy_keeps_its_bits_beside_private_training(model, data):
    plain = task_of(model, data, privacy=None)
    before = train(plain)
    train(task_of(model, data, privacy=NOISY))
    after = train(task_of(model, data, privacy=None))
    assert np.array_equal(before.difference, after.difference)
    assert before.metrics == after.metrics and set(before.metrics) == {"loss", "rate", "steps"}
    assert isinstance(plain._engine, LayerStack) == (model in ("softmax", "mlp:12-7-4", "cnn:small"))


def test_a_private_task_still_learns():
    """An easy task, 40 rounds, z = 1 and batches of 30: far from chance."""
    draw = stream(4, "easy")
    y = draw.integers(0, 4, 600)
    x = (3 * draw.standard_normal((4, 12))[y] + draw.standard_normal((600, 12))).astype(np.float32)
    data = Dataset("easy", x, y, 4)
    task = TorchTask(
        data, data, [np.arange(600)], "softmax",
        TrainSettings(device="cpu", batch_size=30, local_steps=5, lr=0.5), seed=1, rounds=40,
        privacy=RecordPrivacy(1.0, 1.0),
    )  # fmt: skip
    vector = task.initial(0)
    for round in range(40):
        vector = frozen(vector + task.train([Job(0, round, vector)])[0].difference)
    assert task.evaluate([vector])[0]["accuracy"] > 0.85


@pytest.mark.parametrize("other", [{"processes": 2, "device": "cpu"}, {"precision": "bfloat16"}])
def test_what_takes_gradients_together_is_refused(other):
    with pytest.raises(ConfigError, match=f"{next(iter(other))} = .*private"):
        task_of("softmax", FLAT, replace(HOW, **other), NOISY)


def test_examples_that_a_thread_makes_ready_give_the_same_bits():
    """Some batches are empty: 1 of 60 examples on average."""
    how = TrainSettings(device="cpu", batch_size=1, local_steps=12)
    found = [train(task_of("softmax", FLAT, replace(how, prefetch=ahead), NOISY)) for ahead in (0, 2)]
    assert np.array_equal(found[0].difference, found[1].difference)
