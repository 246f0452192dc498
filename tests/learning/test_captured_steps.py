"""Steps that are captured and replayed, by a stand-in on the CPU: a replay calls the step again.

`test_cuda.py` has the same with real graphs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from test_learning import images, on_cpu, task_of
from torch import nn

from fedgossip.core.machine import Report, Terms
from fedgossip.core.task import Job, Update
from fedgossip.learning.many_nodes import job_blocks
from fedgossip.learning.one_model import captured_steps, weights
from fedgossip.learning.one_model.captured_steps import Part
from fedgossip.learning.one_model.sharing import OutOfMemory
from fedgossip.learning.task import TorchTask

HERE = __name__


class Graphs:
    """Stands in for CUDA graphs; `spoil` is done behind every replay."""

    def __init__(self, *, error: Exception | None = None, spoil: Callable[[], None] = lambda: None) -> None:
        self.captured = self.replayed = 0
        self._error, self._spoil = error, spoil

    def on(self, _: torch.device) -> Callable[[Part], Part]:
        return self._capture

    def _capture(self, work: Part) -> Part:
        self.captured += 1
        if self._error:
            raise self._error

        def replay() -> None:
            self.replayed += 1
            work()
            self._spoil()

        return replay


class Dropped(nn.Module):
    """A layer with dropout in front of it."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.dropout, self.last = nn.Dropout(0.2), nn.Linear(features, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.dropout(x.flatten(1)))
        return found


class Counting(Dropped):
    """One whose Python remembers how often it was called."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


class Listing(Dropped):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        return super().forward(x)


class Averaging(Dropped):
    """One that replaces a buffer by another one in every step."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.register_buffer("mean", torch.zeros(features), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.flatten(1).mean(0).detach()
        return super().forward(x)


class Drawing(Dropped):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (2 if self.training and random.random() < 0.5 else 1)


def size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def dropped(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Dropped(size(shape), classes)


def counting(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Counting(size(shape), classes)


def listing(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Listing(size(shape), classes)


def averaging(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Averaging(size(shape), classes)


def drawing(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Drawing(size(shape), classes)


def task(model: str, graphs: Graphs | None, monkeypatch: pytest.MonkeyPatch, **how: Any) -> TorchTask:
    """A task of one node whose steps are captured by `graphs`; without any as they are."""
    monkeypatch.setattr(job_blocks, "KINDS", ("cpu",) if graphs else ())
    monkeypatch.setattr(captured_steps, "KINDS", ("cpu",) if graphs else ())
    monkeypatch.setattr(captured_steps, "generator_of", lambda _: torch.default_generator)
    monkeypatch.setattr(captured_steps, "enough", lambda *_: True)
    if graphs:
        monkeypatch.setattr(captured_steps, "capture_on", graphs.on)
    settings = on_cpu(**{"batch_size": 4, "local_steps": 5, "prefetch": 1, **how})
    return task_of(model, images(), settings, n=2, skewed=False)


def trained(task: TorchTask, terms: Terms | None = None, rounds: int = 3) -> tuple[list[Update], list[Report]]:
    """Return the updates of rounds of one node after the other, and what was told."""
    told: list[Report] = []
    task.report_to(told.append)
    vector = task.initial(0)
    jobs = [Job(node, number, vector, terms) for number in range(rounds) for node in range(2)]
    return [task.train([job])[0] for job in jobs], told


def check_equal(found: list[Update], expected: list[Update]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.difference is not None and other.difference is not None
        assert one.difference.tobytes() == other.difference.tobytes() and one.metrics == other.metrics


PULL = Terms(0.1, None)


@pytest.mark.parametrize(
    ("model", "how", "terms"),
    [
        ("cnn:small", {}, None),
        ("cnn:small-bn", {"momentum": 0.9, "weight_decay": 0.01}, None),
        ("cnn:small-bn", {"buffers": "local", "optimizer": "adamw", "weight_decay": 0.1}, None),
        ("cnn:small", {"optimizer": "adam", "personal": "layer.*", "clip_norm": 1.0}, None),
        ("cnn:small", {"precision": "bfloat16"}, PULL),
        (f"{HERE}:dropped", {"momentum": 0.9, "nesterov": True}, PULL),
    ],
)
def test_replayed_steps_are_the_steps(
    model: str, how: dict[str, Any], terms: Terms | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = trained(task(model, None, monkeypatch, **how), terms)
    graphs = Graphs()
    found, told = trained(task(model, graphs, monkeypatch, **how), terms)
    check_equal(found, expected)
    assert told == [] and (graphs.captured, graphs.replayed) == (1, 6 * 5 - 1)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ("counting", "calls"),
        ("listing", "seen"),
        ("averaging", "mean"),
        ("drawing", "the state of random"),
    ],
)
def test_a_module_whose_python_remembers_is_not_captured(
    model: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(1)
    expected, _ = trained(task(f"{HERE}:{model}", None, monkeypatch))
    random.seed(1)
    graphs = Graphs()
    found, told = trained(task(f"{HERE}:{model}", graphs, monkeypatch))
    check_equal(found, expected)
    assert told == [Report("not_captured", f"Python changes {what} in a step", 0)] and not graphs.captured


def test_a_step_that_waits_for_the_device_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def waited(_: torch.device) -> Iterator[list[str]]:
        yield ["called a synchronizing CUDA operation"]

    monkeypatch.setattr(captured_steps, "waits", waited)
    graphs = Graphs()
    _, told = trained(task("cnn:small", graphs, monkeypatch), rounds=1)
    assert told == [Report("not_captured", "a step waits for the device, for example to read a number", 0)]
    assert not graphs.captured


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[weights.FlatWeights]:
    """The weights that are made from now on: as if they lay on a device."""
    made, all_made = weights.FlatWeights.__init__, list[weights.FlatWeights]()

    def on_a_device(held: weights.FlatWeights, *how: Any) -> None:
        made(held, *how)
        held.elsewhere, held._loaded = True, torch.empty_like(held._flat)
        all_made.append(held)

    monkeypatch.setattr(weights.FlatWeights, "__init__", on_a_device)
    return all_made


def test_differences_made_on_a_device_are_those_of_the_host(
    elsewhere: list[weights.FlatWeights], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = trained(task("cnn:small-bn", None, monkeypatch, momentum=0.9))
    monkeypatch.undo()
    expected, _ = trained(task("cnn:small-bn", None, monkeypatch, momentum=0.9))
    check_equal(found, expected)
    (held,) = elsewhere
    assert held.finite_difference()
    held.values[0][0, 3] = float("nan")
    assert not held.finite_difference()


def test_a_capture_that_fails_is_told_once_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = trained(task("cnn:small-bn", None, monkeypatch, momentum=0.9))
    graphs = Graphs(error=RuntimeError("operation not permitted when stream is capturing\nmore"))
    found, told = trained(task("cnn:small-bn", graphs, monkeypatch, momentum=0.9))
    check_equal(found, expected)
    assert graphs.captured == 1
    assert told == [Report("not_captured", "operation not permitted when stream is capturing", 0)]


def test_a_replay_that_comes_to_something_else_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = trained(task("cnn:small-bn", None, monkeypatch, momentum=0.9))
    of: list[TorchTask] = []

    def spoil() -> None:
        of[0]._engine.changed()[0][0] += 0.01  # type: ignore[union-attr]

    graphs = Graphs(spoil=spoil)
    of.append(task("cnn:small-bn", graphs, monkeypatch, momentum=0.9))
    found, told = trained(of[0])
    check_equal(found, expected)
    assert (graphs.captured, graphs.replayed) == (1, 1)
    assert told == [Report("not_captured", "a replay differs from the step", 0)]


def test_without_room_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = Graphs()
    made = task("cnn:small", graphs, monkeypatch)
    monkeypatch.setattr(captured_steps, "enough", lambda *_: False)
    _, told = trained(made)
    assert [one.value for one in told] == ["less than 8 times the memory of a step is free"] and not graphs.captured


def test_memory_that_runs_out_in_a_replay_ends_the_capture_and_the_job_is_trained_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, _ = trained(task("cnn:small", None, monkeypatch), rounds=1)
    left = [3]

    def spoil() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OutOfMemory("CUDA out of memory")

    graphs = Graphs(spoil=spoil)
    found, told = trained(task("cnn:small", graphs, monkeypatch), rounds=1)
    assert [one.value for one in told] == ["memory ran out"]
    for one, other in zip(found, expected, strict=True):  # in pieces, so to rounding
        assert one.difference is not None and other.difference is not None
        np.testing.assert_allclose(one.difference, other.difference, atol=1e-6)


@pytest.mark.parametrize(
    "how", [{"capture": False}, {"optimizer": "lamb"}, {"accumulate": 2}, {"precision": "float16"}]
)
def test_some_settings_have_nothing_captured_and_nothing_said(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = Graphs()
    _, told = trained(task("cnn:small", graphs, monkeypatch, **how), rounds=1)
    assert told == [] and not graphs.captured


def test_a_smaller_batch_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """48 examples of a node, in batches of 10."""
    expected, _ = trained(task("cnn:small", None, monkeypatch, batch_size=10, local_steps=None, local_epochs=1))
    graphs = Graphs()
    how: dict[str, Any] = {"batch_size": 10, "local_steps": None, "local_epochs": 1}
    found, told = trained(task("cnn:small", graphs, monkeypatch, **how))
    check_equal(found, expected)
    assert told == [] and (graphs.captured, graphs.replayed) == (1, 6 * 4 - 1)
