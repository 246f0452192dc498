"""Large batches: rates that follow the batch, warm-up, accumulated batches, and steps by layers in local training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_learning import images, made_up, task_of

from fedgossip.algorithms.descent.methods import LAMB, LARS
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, add, frozen
from fedgossip.core.task import Job
from fedgossip.experiment import load_experiment
from fedgossip.learning.settings import TrainSettings, schedule_of
from fedgossip.learning.task import TorchTask
from fedgossip.plans import compose

ENGINES = {
    "layers at once": ("mlp:64-16-3", {}),
    "convolutions at once": ("cnn:small", {}),
    "one module": ("cnn:small", {"channels_last": True}),
    "norms and a layer that stays": ("cnn:small-bn", {"buffers": "local", "personal": "convolution1.weight"}),
}
BY_LAYERS = {
    "lars": ({"optimizer": "lars", "lr": 2.0, "momentum": 0.9, "weight_decay": 1e-3}, LARS),
    "lamb": ({"optimizer": "lamb", "lr": 0.02, "weight_decay": 1e-2}, LAMB),
}


def begun(model: str, **how: Any) -> TorchTask:
    data = images() if model.startswith("cnn") else made_up(96, 64, 3)
    return task_of(model, data, TrainSettings(**{"batch_size": 8, "local_steps": 1, "device": "cpu", **how}))


def trained(task: TorchTask, rounds: int, node: int = 1) -> Vector:
    """Return the vector after so many rounds of the node alone, from one that is nowhere zero."""
    x = frozen(task.initial(node) + np.float32(0.01))
    for round in range(rounds):
        (update,) = task.train([Job(node, round, x)])
        assert update.difference is not None
        x = add(x, update.difference)
    return x


@pytest.mark.parametrize(("model", "how"), [ENGINES[name] for name in list(ENGINES)[:3]], ids=list(ENGINES)[:3])
@pytest.mark.parametrize("name", BY_LAYERS)
def test_local_steps_are_those_of_the_descent_on_the_same_gradients(name: str, model: str, how: dict[str, Any]) -> None:
    settings, make = BY_LAYERS[name]
    task, measured = begun(model, **settings, **how), begun(model, **how)
    more = {key: settings[key] for key in ("momentum", "weight_decay") if key in settings}
    method = make(task.segments, **more)
    state = method.start(frozen(task.initial(1) + np.float32(0.01)))
    for round in range(4):
        (found,) = measured.gradients([Job(1, round, state.x, gradient=True)])
        assert found.difference is not None
        state = method.step(state, found.difference, settings["lr"])
    moved = state.x - task.initial(1)
    assert np.linalg.norm(trained(task, 4) - state.x) < 1e-5 * np.linalg.norm(moved)


@pytest.mark.parametrize("name", BY_LAYERS)
@pytest.mark.parametrize("model", ["mlp:64-16-3", "cnn:small"])
def test_steps_by_layers_have_the_same_bits_whoever_shares_the_block(name: str, model: str) -> None:
    alone, together = (begun(model, **BY_LAYERS[name][0], batch_size=4, local_steps=3) for _ in range(2))
    x = frozen(alone.initial(0) + np.float32(0.01))
    of_all = together.train([Job(node, 0, x) for node in range(9)])
    for node in (0, 4, 8):
        (one,) = alone.train([Job(node, 0, x)])
        assert one.difference is not None and of_all[node].difference is not None
        assert one.difference.tobytes() == of_all[node].difference.tobytes()


def test_a_layer_that_stays_has_a_ratio_of_its_own() -> None:
    """Of LARS without momentum: each layer goes lr * trust of its own length in a step."""
    model, how = ENGINES["norms and a layer that stays"]
    task = begun(model, optimizer="lars", lr=2.0, **how)
    own = next(iter(task.train([Job(1, 0, task.initial(1))])))
    assert own.difference is not None
    for one in task.segments:
        if len(one.shape) > 1:
            part = slice(one.start, one.stop)
            share = np.linalg.norm(own.difference[part]) / np.linalg.norm(task.initial(1)[part])
            assert share == pytest.approx(2.0 * LARS.trust, rel=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "lamb"])
@pytest.mark.parametrize("name", ENGINES)
def test_accumulated_batches_are_the_large_batch(name: str, optimizer: str) -> None:
    model, how = ENGINES[name]
    passes = {"optimizer": optimizer, "local_epochs": 1, "local_steps": None, **how}
    small, large = begun(model, batch_size=3, accumulate=4, **passes), begun(model, batch_size=12, **passes)
    found, expected = trained(small, 2), trained(large, 2)
    moved = np.linalg.norm(expected - large.initial(1))
    if name.endswith("at once"):
        assert found.tobytes() == expected.tobytes()
    elif "bn" not in model:
        assert np.linalg.norm(found - expected) < 1e-5 * moved
    else:  # BatchNorm normalises each batch by itself
        assert np.linalg.norm(found - expected) > 1e-5 * moved


def test_the_rate_follows_the_examples_of_a_step() -> None:
    def rate(**how: Any) -> float:
        return TrainSettings(lr=0.1, **how).rate(0, 10)

    assert rate(batch_size=2048, scaling="linear", base_batch=32) == pytest.approx(6.4)
    assert rate(batch_size=512, accumulate=4, scaling="linear", base_batch=32) == pytest.approx(6.4)
    assert rate(batch_size=2048, scaling="sqrt", base_batch=32) == pytest.approx(0.8)
    assert rate(batch_size=2048) == rate(batch_size=256, scaling="linear") == 0.1


def test_workers_that_share_a_step_count_together() -> None:
    train = {"lr": 0.1, "batch_size": 16, "scaling": "linear", "base_batch": 32, "schedule": "warmup:2"}
    parallel = {"workers": 4, "accumulate": 2}
    plan: Any = compose.plan(load_experiment({"rounds": 9, "parallel": parallel, "train": train}))
    assert plan.rate(5) == pytest.approx(0.1 * 4 * 2 * 16 / 32)
    assert plan.rate(0) == plan.rate(5) / 2


def test_a_warm_up_stands_before_every_schedule() -> None:
    def rates(text: str) -> list[float]:
        return [schedule_of(text).rate(1.0, round, 9) for round in range(9)]

    assert rates("warmup:4")[:6] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rates("warmup:1,cosine") == pytest.approx([1.0, *(0.5 + 0.5 * np.cos(np.pi * np.arange(8) / 8))])
    assert rates("milestones:3,5,0.1")[2:7] == pytest.approx([1.0, 0.1, 0.1, 0.01, 0.01])
    assert rates("warmup:2,inverse:4") == pytest.approx([0.5, 1.0, *(4 / (r + 4) for r in range(2, 9))])
    assert rates("warmup:2,step:3,0.5") == [0.5, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"schedule": "warmup:0,cosine"}, "warmup:0"),
        ({"schedule": "warmup,cosine"}, "warmup"),
        ({"schedule": "warmup:5,cosin"}, "unknown schedule 'cosin'"),
        ({"schedule": "cosine,warmup:5"}, "schedule"),
        ({"schedule": "milestones:5,3,0.1"}, "milestones"),
        ({"schedule": "milestones:0.1"}, "milestones"),
        ({"schedule": "inverse:0"}, "inverse"),
        ({"scaling": "cubic"}, "unknown scaling"),
        ({"base_batch": 0}, "base_batch"),
        ({"accumulate": 0}, "accumulate"),
        ({"optimizer": "lamb", "momentum": 0.9}, "momentum with lamb"),
        ({"optimizer": "lars", "momentum": 0.9, "nesterov": True}, "nesterov with lars"),
        ({"optimizer": "lars", "processes": 2, "parallel": "fsdp"}, "no process holds a whole layer"),
        ({"optimizer": "adamw", "weight_decay": 5, "scaling": "linear", "batch_size": 1024}, "weight_decay"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainSettings(**wrong)


def test_workers_of_one_step_accumulate_by_their_own_key() -> None:
    with pytest.raises(ConfigError, match=r"train\.accumulate") as error:
        load_experiment({"rounds": 9, "parallel": {"workers": 4}, "train": {"accumulate": 3}})
    assert error.value.advice == "Write parallel.accumulate = 3."
