"""Convolutions of many nodes together: the same update as one module after another, the same bits in any company."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedgossip.base.errors import TrainingError
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Terms
from fedgossip.core.task import Job, Update
from fedgossip.data.dataset import Dataset
from fedgossip.learning import task as module
from fedgossip.learning.many_nodes import stacked_engine
from fedgossip.learning.many_nodes.convolutions import shape_of
from fedgossip.learning.many_nodes.stacked_engine import LayerStack
from fedgossip.learning.models import models
from fedgossip.learning.one_model.batches import Batches
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.module_engine import ModuleLoop
from fedgossip.learning.settings import TrainSettings
from fedgossip.learning.task import TorchTask

NODES, CLASSES = 5, 4

NEAR = 2e-6
"""A ReLU or a maximum that is decided by less may be decided otherwise by another order of summation: these sums have
up to 450 terms of order .1, each rounded to 2^-24.  The two sides' updates differ by some 1e-4 and are equally right.

Of 12 500 updates of random stacks two differed by more than 4e-7 between the engines, by 2e-4 and 7e-5: at margins of
3e-9 and 1e-7, and once it was the batched engine and once torch's own modules that were on float64's other side."""

EQUAL = 1e-12
"""In float64: what differs by less is equal but for rounding."""


@dataclass(frozen=True)
class Net:
    """Convolutions of `channels` with ReLU and pooling, then linear layers of `hidden` units."""

    channels: Sequence[int] = (16, 32)
    kernel: int = 3
    padding: int = 1
    hidden: Sequence[int] = (12,)

    def build(self, shape: tuple[int, ...]) -> nn.Sequential:
        read, height, width = shape
        layers: list[nn.Module] = []
        for outputs in self.channels:
            layers += [nn.Conv2d(read, outputs, self.kernel, padding=self.padding), nn.ReLU(), nn.MaxPool2d(2)]
            height, width = ((side + 2 * self.padding - self.kernel + 1) // 2 for side in (height, width))
            read = outputs
        layers.append(nn.Flatten())
        inputs = read * height * width
        for outputs in self.hidden:
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            inputs = outputs
        return nn.Sequential(*layers, nn.Linear(inputs, CLASSES))


def images(shape: tuple[int, ...], seed: int = 0, examples: int = 60) -> Dataset:
    """Half of them small whole numbers, mostly zero, so that many places of a window are equal."""
    draw = stream(seed, "images", *shape)
    x = draw.standard_normal((examples, *shape)).astype(np.float32)
    x[::2] = np.maximum(np.round(x[::2] - 0.5), 0)
    return Dataset("images", x, draw.integers(0, CLASSES, examples), CLASSES)


class Pair:
    """The same task for both engines; node i has 7 + i examples."""

    shares = tuple(np.arange(10 * i, 10 * i + 7 + i) for i in range(NODES))

    def __init__(self, net: Net, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, seed: int = 0, **how: Any):
        self._data, self._how = images(shape, seed), TrainSettings(**{"batch_size": 6, "device": "cpu", **how})
        self._net, self._patch = net, monkeypatch
        self.batched = self.fresh()
        assert isinstance(self.batched._engine, LayerStack)

    def fresh(self) -> TorchTask:
        """Return a task that remembers nothing."""
        with self._patch.context() as patched:
            patched.setattr(models, "build", lambda source, shape, *_, **__: _seeded(self._net, shape))
            return TorchTask(self._data, self._data, self.shares, "net", self._how, seed=1, rounds=20)

    def looped(self) -> TorchTask:
        with self._patch.context() as patched:
            patched.setattr(module, "shape_of", lambda *_: None)
            found = self.fresh()
        assert isinstance(found._engine, ModuleLoop)
        return found

    def jobs(self, terms: Terms | None = None) -> list[Job]:
        """Jobs in different rounds from different vectors."""
        start, noise = self.batched.initial(0), stream(0, "noise")
        vectors = [frozen((start + 0.05 * noise.standard_normal(start.size)).astype(np.float32)) for _ in range(NODES)]
        return [Job(node, (7 * node) % 3, vectors[node], terms) for node in range(NODES)]

    def by_float64(self, job: Job) -> tuple[np.ndarray, float]:
        """Train one job with torch's modules and optimisers in float64; return the update, and the least margin by
        which a ReLU or a maximum was decided."""
        built, layout = _seeded(self._net, self._data.shape), self.batched.layout
        layout.write(built, job.vector)
        built.double()
        margins: list[float] = []
        for layer in built:
            if isinstance(layer, nn.ReLU | nn.MaxPool2d):
                layer.register_forward_pre_hook(lambda layer, given: margins.append(margin(layer, given[0])))
        how = self._how
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[how.optimizer]
        extra = {"momentum": how.momentum, "nesterov": how.nesterov} if how.optimizer == "sgd" else {}
        optimiser = kind(built.parameters(), lr=how.lr, weight_decay=how.weight_decay, **extra)
        plan = Batches(self.shares, how, 1, max(2, how.batch_size)).plan(job.node, job.round)
        for row, count in zip(plan.indices, plan.counts, strict=True):
            x, y = (torch.from_numpy(part[row[:count]]) for part in (self._data.x, self._data.y))
            optimiser.zero_grad()
            functional.cross_entropy(built(x.double()), y).backward()
            if how.clip_norm is not None:
                nn.utils.clip_grad_norm_(built.parameters(), how.clip_norm)
            optimiser.step()
        trained = np.concatenate([parameter.detach().numpy().reshape(-1) for parameter in built.parameters()])
        return trained - job.vector, min(margins)


def margin(layer: nn.Module, given: torch.Tensor) -> float:
    """How far the numbers given to a ReLU or a 2x2 maximum are from another decision.

    Equal ones decide nothing: they come of equal places, and of two such either gives the same update.
    """
    given = given.detach()
    if isinstance(layer, nn.ReLU):
        return float(given.abs().min())
    height, width = given.shape[2] // 2 * 2, given.shape[3] // 2 * 2
    windows = functional.unfold(given[:, :, :height, :width].flatten(0, 1).unsqueeze(1), 2, stride=2)
    best = windows.sort(dim=1, descending=True).values
    gaps = best[:, 0] - best[:, 1]
    gaps = gaps[gaps > EQUAL]
    return float(gaps.min()) if len(gaps) else math.inf


def _seeded(net: Net, shape: tuple[int, ...]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return net.build(tuple(shape))


def difference(update: Update) -> Vector:
    assert update.difference is not None
    return update.difference


def assert_right(pair: Pair, jobs: Sequence[Job], found: Sequence[Update]) -> None:
    """Every update is that of float64 to rounding, but where a decision was nearer than rounding."""
    for job, update in zip(jobs, found, strict=True):
        expected, least = pair.by_float64(job)
        if least > NEAR:
            np.testing.assert_allclose(difference(update), expected, rtol=0, atol=1e-6)


def assert_near(found: Sequence[Update], expected: Sequence[Update], atol: float = 2e-6) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(difference(one), difference(other), atol=atol)
        assert one.metrics == pytest.approx(other.metrics, rel=1e-5)


SHAPES = [
    (Net(), (1, 8, 8)),
    (Net(), (1, 28, 28)),
    (Net((3, 5), hidden=()), (1, 7, 7)),
    (Net((4, 6)), (3, 9, 11)),
    (Net((4,), 5, 2, (7, 5)), (2, 13, 12)),
    (Net((5,), 5, 0), (1, 12, 10)),
    (Net((3, 5), 3, 0), (1, 14, 15)),
    (Net((4, 6, 8), 3, 2), (1, 16, 17)),
    (Net((3, 4), 5, 4), (1, 6, 9)),
    (Net((3, 5), hidden=(17, 5)), (1, 11, 13)),  # odd products: see test_learning
]
HOW: list[dict[str, Any]] = [
    {},
    {"local_epochs": 2},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"clip_norm": 0.3, "batch_size": 1},
    {"optimizer": "adam", "lr": 0.001, "local_epochs": 1},
]


@pytest.mark.parametrize(("net", "shape"), SHAPES)
def test_an_update_equals_that_of_torchs_own_modules(net, shape, monkeypatch):
    pair = Pair(net, shape, monkeypatch, local_steps=3)
    for task in (pair.batched, pair.looped()):
        assert_right(pair, pair.jobs(), task.train(pair.jobs()))


@pytest.mark.parametrize("how", HOW)
def test_every_optimiser_and_plan_equals_that_of_the_modules(how, monkeypatch):
    """Adam divides by the root of tiny squares, so a rounding may show as a part of a step."""
    pair = Pair(Net((4, 6)), (1, 10, 9), monkeypatch, **how)
    atol = 2e-4 if "optimizer" in how else 2e-6
    looped = pair.looped()
    for _ in range(2):  # the second time with what the first has left
        assert_near(pair.batched.train(pair.jobs()), looped.train(pair.jobs()), atol)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_terms_mean_the_same(momentum, monkeypatch):
    pair = Pair(Net((4, 6)), (1, 8, 8), monkeypatch, momentum=momentum)
    correction = frozen((0.1 * stream(0, "c").standard_normal(pair.batched.length)).astype(np.float32))
    for terms in (Terms(0.4, correction), Terms(0.2), Terms()):
        assert_near(pair.batched.train(pair.jobs(terms)), pair.looped().train(pair.jobs(terms)))


@pytest.mark.parametrize(("net", "shape"), SHAPES[:4])
def test_evaluation_equals_that_of_the_modules(net, shape, monkeypatch):
    pair = Pair(net, shape, monkeypatch)  # 60 examples: more than one block, and the last not full
    vectors = [job.vector for job in pair.jobs()]
    for found, expected in zip(pair.batched.evaluate(vectors), pair.looped().evaluate(vectors), strict=True):
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("how", [*HOW, {"batch_size": 40, "local_steps": 2}])
@pytest.mark.parametrize(("net", "shape"), [SHAPES[0], SHAPES[3], SHAPES[-1]])
def test_bits_depend_neither_on_company_nor_on_order(net, shape, how, monkeypatch):
    pair = Pair(net, shape, monkeypatch, **how)
    jobs, terms = pair.jobs(), pair.jobs(Terms(0.3))
    mixed = [*jobs[:3], *terms[3:]]
    for given_jobs in (jobs, mixed):
        together = pair.fresh().train(given_jobs)
        for groups in ([[4], [0], [2], [1], [3]], [[3, 0], [2, 4, 1]], [[4, 3, 2, 1, 0]]):
            task = pair.fresh()
            for group in groups:
                for k, update in zip(group, task.train([given_jobs[k] for k in group]), strict=True):
                    assert np.array_equal(difference(update), difference(together[k]))
                    assert update.metrics == together[k].metrics
    vectors = [job.vector for job in jobs]
    assert list(pair.batched.evaluate(vectors)) == [pair.batched.evaluate([vector])[0] for vector in vectors]


def test_bits_do_not_depend_on_the_size_of_the_block(monkeypatch):
    found = []
    for largest in (8, 3, 2):
        monkeypatch.setattr(stacked_engine, "LARGEST_BLOCK", largest)
        pair = Pair(Net(), (1, 8, 8), monkeypatch, local_epochs=1)
        found.append([difference(update).tobytes() for update in pair.batched.train(pair.jobs())])
    assert found[0] == found[1] == found[2]


@settings(max_examples=25, deadline=None)
@given(
    channels=st.lists(st.integers(2, 18), min_size=1, max_size=2),
    kernel=st.sampled_from([3, 5]),
    padding=st.integers(0, 2),
    sides=st.tuples(st.integers(1, 3), st.integers(10, 15), st.integers(10, 15)),
    hidden=st.lists(st.integers(2, 20), max_size=2),
    batch=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
def test_any_stack_equals_its_modules_and_keeps_its_bits_alone(channels, kernel, padding, sides, hidden, batch, seed):
    with pytest.MonkeyPatch.context() as monkeypatch:
        net = Net(channels, kernel, padding, hidden)
        if kernel == 5 and padding == 0:
            net = replace(net, channels=channels[:1])  # nothing would be left of the image
        pair = Pair(net, sides, monkeypatch, seed, batch_size=batch, local_steps=2)
        jobs = pair.jobs()
        together = pair.batched.train(jobs)
        looped = pair.looped().train(jobs)
        for found in (together, looped):
            assert_right(pair, jobs, found)
        for one, other in zip(together, looped, strict=True):
            assert one.metrics == pytest.approx(other.metrics, rel=1e-5)
        for job, update in zip(jobs, together, strict=True):
            assert np.array_equal(difference(pair.batched.train([job])[0]), difference(update))


def test_what_is_decided_by_less_than_rounding_may_fall_to_either_side(monkeypatch):
    """A stack whose third update of five is such: what the comparisons with float64 leave out, and no more."""
    pair = Pair(Net([10], 3, 2, [17]), (3, 15, 15), monkeypatch, 793, batch_size=8, local_steps=2)
    margins = [pair.by_float64(job)[1] for job in pair.jobs()]
    assert [least < 1e-8 for least in margins] == [False, False, True, False, False]
    assert_right(pair, pair.jobs(), pair.looped().train(pair.jobs()))


def test_what_fell_away_in_one_job_does_not_show_in_the_next(monkeypatch):
    """An odd end of an image, and places of a batch that are not used, hold what earlier jobs have left."""
    pair = Pair(Net((3, 5), 3, 0), (1, 15, 14), monkeypatch, local_epochs=1)
    jobs = pair.jobs()
    expected = difference(pair.fresh().train([jobs[0]])[0])
    pair.batched.train([replace(job, vector=frozen(job.vector * 30)) for job in jobs])
    assert np.array_equal(difference(pair.batched.train([jobs[0]])[0]), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_what_is_not_finite_is_said_and_stays_with_its_node(value, monkeypatch):
    pair = Pair(Net((4, 6)), (1, 8, 8), monkeypatch)
    jobs = pair.jobs()
    bad = replace(jobs[3], vector=frozen(np.full(pair.batched.length, value, np.float32)))
    with pytest.raises(TrainingError, match="node 3, round 0"):
        pair.batched.train([*jobs[:3], bad])
    before = difference(pair.fresh().train([jobs[1]])[0])
    assert np.array_equal(difference(pair.batched.train([jobs[1]])[0]), before)


# --- what is recognised -----------------------------------------------------------------------------------------------


def shape_found(layers: Sequence[nn.Module], example: tuple[int, ...] = (1, 8, 8)) -> bool:
    built = nn.Sequential(*layers)
    return shape_of(built, Layout.from_module(built), example) is not None


def block(outputs: int = 4, pool: nn.Module | None = None, **options: Any) -> list[nn.Module]:
    return [nn.Conv2d(1, outputs, **{"kernel_size": 3, "padding": 1, **options}), nn.ReLU(), pool or nn.MaxPool2d(2)]


def test_models_of_this_package_are_recognised():
    for source, example in (("cnn:small", (64,)), ("cnn:small", (1, 28, 28)), ("cnn:4-6-12", (3, 9, 9))):
        built = models.build(source, example, 10, 0)
        assert shape_of(built, Layout.from_module(built), example) is not None
    built = models.build("cnn:small-bn", (64,), 10, 0)
    assert shape_of(built, Layout.from_module(built), (64,)) is None


@pytest.mark.parametrize(
    "layers",
    [
        block(stride=2),
        block(groups=1, dilation=2, padding=2),
        block(bias=False),
        block(padding="same"),
        block(padding_mode="reflect"),
        block(kernel_size=(3, 1)),
        block(kernel_size=2, padding=0),
        block(pool=nn.MaxPool2d(3)),
        block(pool=nn.MaxPool2d(2, stride=1)),
        block(pool=nn.MaxPool2d(2, ceil_mode=True)),
        block(pool=nn.AvgPool2d(2)),
        block(1),
        [nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()],
    ],
)
def test_a_convolution_that_is_another_one_stays_a_module(layers):
    with torch.no_grad():
        flat = nn.Sequential(*layers)(torch.zeros(2, 1, 8, 8)).flatten(1).shape[1]
    assert shape_found([*block(), nn.Flatten(), nn.Linear(64, 3)])
    assert not shape_found([*layers, nn.Flatten(), nn.Linear(flat, 3)])


def test_frozen_and_personal_parameters_stay_with_their_module():
    layers = [*block(), nn.Flatten(), nn.Linear(64, 3)]
    layers[0].weight.requires_grad_(False)  # type: ignore[union-attr]
    assert not shape_found(layers)
    built = nn.Sequential(*block(), nn.Flatten(), nn.Linear(64, 3))
    assert shape_of(built, Layout.from_module(built, personal=["4.*"]), (1, 8, 8)) is None


def test_options_that_only_modules_know_take_convolutions_out_of_the_stack():
    data = images((1, 8, 8))
    for how in ({"precision": "bfloat16"}, {"channels_last": True}, {"prefetch": 1}):
        task = TorchTask(data, data, [np.arange(9)], "cnn:small", TrainSettings(device="cpu", **how), seed=0, rounds=1)
        assert isinstance(task._engine, ModuleLoop)
