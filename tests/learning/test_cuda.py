"""On a CUDA GPU: what is trained there is what the CPU trains, to rounding, and nothing warns.

SettlingRun these are skipped; that they are sound programs is seen on the CPU (`test_these_checks_hold_on_the_cpu`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgossip import run_local, simulate
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector, ordered_mix_rows
from fedgossip.core.machine import Report
from fedgossip.core.records import EventRow
from fedgossip.core.task import Job
from fedgossip.data.dataset import Dataset
from fedgossip.learning.many_nodes import device_stack, job_blocks
from fedgossip.learning.many_nodes.device_stack import DeviceMixing, DeviceStack
from fedgossip.learning.one_model import weights
from fedgossip.learning.one_model.captured_steps import capture_on
from fedgossip.learning.one_model.module_engine import ModuleLoop
from fedgossip.learning.settings import TrainSettings
from fedgossip.learning.task import TorchTask
from fedgossip.topology import build, resolve

NODES = 4


def texts() -> Dataset:
    draw = stream(0, "texts")
    lines = draw.integers(0, 9, (60, 13))
    return Dataset("texts", lines[:, :-1].copy(), lines[:, 1:].copy(), 9, vocabulary=tuple("abcdefghi"))


def images() -> Dataset:
    draw = stream(0, "images")
    return Dataset("images", draw.standard_normal((60, 1, 8, 8)).astype(np.float32), draw.integers(0, 4, 60), 4)


def numbers() -> Dataset:
    draw = stream(0, "numbers")
    x, y = draw.standard_normal((60, 1, 8, 8)).astype(np.float32), draw.standard_normal((60, 2)).astype(np.float32)
    return Dataset("numbers", x, y, 0, kind="regression")


DATA: dict[str, Callable[[], Dataset]] = {
    "chars:12": texts,
    "gpt:1-16-2": texts,
    "cnn:small": images,
    "cnn:small-bn": images,
    "mlp:64-17-4": images,
    "mlp:64-9-2": numbers,
    "softmax": images,
}


def trained(model: str, device: str, **how: Any) -> tuple[list[Vector], list[float]]:
    """The updates of two rounds of four nodes, and the losses of what came of the second."""
    settings = TrainSettings(**{"device": device, "batch_size": 6, "local_steps": 3, **how})
    data = DATA[model]()
    shares = [np.arange(14 * node, 14 * node + 14) for node in range(NODES)]
    task = TorchTask(data, data, shares, model, settings, seed=1, rounds=2)
    start = task.initial(0)
    updates = [task.train([Job(node, number, start) for node in range(NODES)]) for number in range(2)]
    found = [update.difference for one in updates for update in one]
    assert all(one is not None for one in found)
    vectors: list[Vector] = [one for one in found if one is not None]
    return vectors, [row["loss"] for row in task.evaluate([start + vector for vector in vectors[-NODES:]])]


def check_like_the_cpu(model: str, device: str, share: float, **how: Any) -> None:
    """Every update is off by no more than a share of its length.

    Not element by element: convolutions take TF32 there, of 10 bits, and now and then a ReLU is decided otherwise.
    """
    expected, found = trained(model, "cpu"), trained(model, device, **how)
    for one, other in zip(found[0], expected[0], strict=True):
        assert np.linalg.norm(one - other) <= share * np.linalg.norm(other)
    np.testing.assert_allclose(found[1], expected[1], rtol=share)


@pytest.mark.gpu
@pytest.mark.parametrize("model", DATA)
def test_a_gpu_trains_what_the_cpu_trains(model):
    check_like_the_cpu(model, "cuda", 0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("how", [{"precision": "bfloat16"}, {"channels_last": True}, {"prefetch": 2}])
def test_a_gpu_trains_it_with_every_option(how):
    check_like_the_cpu("cnn:small", "cuda", 0.2 if "precision" in how else 0.05, **how)


TOGETHER = ["cnn:small", "cnn:small-bn", "gpt:1-16-2"]
"""Models that a GPU trains for all nodes at once."""


def check_together(model: str, device: str, share: float, patch: pytest.MonkeyPatch, **how: Any) -> None:
    """What nodes learn together is what each learns alone on that device, and nothing is said of it."""
    on = {"prefetch": 1} if device == "cpu" else {}  # by modules on the CPU too
    patch.setattr(job_blocks, "KINDS", ())
    alone, _ = trained(model, device, **on, **{**how, "compile": False})
    told: list[Report] = []
    first = TorchTask.__init__

    def heard(task: TorchTask, *args: Any, **keys: Any) -> None:
        first(task, *args, **keys)
        assert task._blocks
        task.report_to(told.append)

    patch.setattr(job_blocks, "KINDS", (device,))
    patch.setattr(TorchTask, "__init__", heard)
    together, _ = trained(model, device, **on, **how)
    assert told == []
    for one, other in zip(together, alone, strict=True):
        assert np.linalg.norm(one - other) <= share * np.linalg.norm(other)


@pytest.mark.gpu
@pytest.mark.parametrize("how", [{}, {"optimizer": "adam", "lr": 0.01}], ids=["sgd", "adam"])
@pytest.mark.parametrize("model", TOGETHER)
def test_a_gpu_trains_nodes_together_as_it_trains_each_alone(model, how, monkeypatch):
    check_together(model, "cuda", 0.05, monkeypatch, **how)


@pytest.mark.sockets
@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, where it loads its compiler
@pytest.mark.parametrize("model", TOGETHER)
def test_a_gpu_trains_them_compiled_too(model, monkeypatch):
    check_together(model, "cuda", 0.05, monkeypatch, compile=True)


class Reading(nn.Module):
    """A layer with dropout in front of it, whose Python reads a number from the device."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.dropout, self.last = nn.Dropout(0.2), nn.Linear(int(np.prod(shape)), classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.dropout(x.flatten(1)))
        return found if float(found.detach().abs().max()) < 1e9 else found * 2


class Dropped(Reading):
    """The same without."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.dropout(x.flatten(1)))
        return found


def trained_alone(model: str, device: str, **how: Any) -> tuple[list[Vector], list[Report]]:
    """The updates of two rounds of four nodes, one after another, and what was told."""
    settings = TrainSettings(**{"device": device, "batch_size": 6, "local_steps": 5, **how})
    data = DATA.get(model, images)()
    shares = [np.arange(14 * node, 14 * node + 14) for node in range(NODES)]
    task, told = TorchTask(data, data, shares, model, settings, seed=1, rounds=2), list[Report]()
    task.report_to(told.append)
    found = []
    for number, node in product(range(2), range(NODES)):
        (update,) = task.train([Job(node, number, task.initial(0))])
        assert update.difference is not None
        found.append(update.difference)
    return found, told


REPLAYED: list[tuple[str, dict[str, Any]]] = [
    ("chars:12", {"momentum": 0.9}),
    ("gpt:1-16-2", {"optimizer": "adamw", "weight_decay": 0.1}),
    ("cnn:small", {"precision": "bfloat16"}),
    ("cnn:small", {"channels_last": True, "clip_norm": 1.0}),
    ("cnn:small", {"prefetch": 2}),
    ("cnn:small-bn", {"momentum": 0.9, "nesterov": True}),
    ("cnn:small-bn", {"buffers": "local", "optimizer": "adam", "lr": 0.01}),
    (f"{__name__}:Dropped", {}),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("model", "how"), REPLAYED)
def test_a_gpu_replays_the_steps_that_it_takes(model, how, monkeypatch):
    """And they are captured: nothing says that they are not, and few steps are launched one operation after another."""
    launched = []
    step = ModuleLoop.step
    monkeypatch.setattr(ModuleLoop, "step", lambda *given: (launched.append(0), step(*given))[1])
    found, told = trained_alone(model, "cuda", **how)
    assert told == [] and len(launched) == 3  # one to look at, one to compare with, and one to capture
    expected, _ = trained_alone(model, "cuda", **how, capture=False)
    for one, other in zip(found, expected, strict=True):
        assert np.linalg.norm(one - other) <= 1e-3 * np.linalg.norm(other)
    print(model, how, all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True)))


@pytest.mark.gpu
def test_a_module_that_reads_from_a_gpu_is_not_captured_and_trains_on():
    found, told = trained_alone(f"{__name__}:Reading", "cuda")
    assert [(one.name, one.value) for one in told] == [
        ("not_captured", "a step waits for the device, for example to read a number")
    ]
    expected, _ = trained_alone(f"{__name__}:Reading", "cuda", capture=False)
    for one, other in zip(found, expected, strict=True):
        assert np.linalg.norm(one - other) <= 1e-3 * np.linalg.norm(other)


@pytest.mark.gpu
def test_a_capture_that_fails_leaves_the_device_as_it_was():
    """The stream that work goes to, and what is drawn next."""
    device = torch.device("cuda", torch.cuda.current_device())
    capture, stream = capture_on(device), torch.cuda.current_stream()
    assert capture is not None
    torch.cuda.manual_seed(5)
    expected = torch.rand(7, device=device)
    torch.cuda.manual_seed(5)
    with pytest.raises(RuntimeError):
        capture(lambda: print(float(nn.functional.dropout(expected, 0.5).sum())))
    assert torch.cuda.current_stream() == stream
    assert torch.equal(torch.rand(7, device=device), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("nodes", [1, NODES])
def test_a_gpu_is_waited_for_as_often_whatever_the_steps(nodes):
    def waits(steps: int) -> int:
        data = images()
        shares = [np.arange(14 * node, 14 * node + 14) for node in range(nodes)]
        settings = TrainSettings(device="cuda", batch_size=6, local_steps=steps, momentum=0.9, clip_norm=1.0)
        task = TorchTask(data, data, shares, "cnn:small-bn", settings, seed=1, rounds=2)
        task.train([Job(node, 0, task.initial(0)) for node in range(nodes)])  # what is chosen once is chosen
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                task.train([Job(node, 1, task.initial(0)) for node in range(nodes)])
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("synchronizing" in str(one.message) for one in said)  # and not that this mode is a prototype

    assert waits(2) == waits(9)


@pytest.mark.gpu
def test_recurrent_weights_on_a_gpu_lie_as_cudnn_wants_them():
    """Else torch warns of weights that are no single piece of memory; every warning is an error here."""
    updates, _ = trained("chars:12", "cuda", momentum=0.9)
    assert all(one.any() for one in updates)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_a_run_on_a_gpu_ends_as_on_the_cpu(engine):
    how = {"rounds": 2, "model": {"source": "mlp:64-16-10"}, "topology": {"graph": "ring", "n": NODES}}
    found, expected = (simulate({**how, "train": {"device": device}}, engine=engine) for device in ("cuda", "cpu"))
    for one, other in zip(found.vectors, expected.vectors, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


LEARNING: dict[str, Any] = {
    "rounds": 6,
    "model": {"source": "mlp:64-16-10"},
    "train": {"local_steps": 2, "device": "cuda"},
    "topology": {"graph": "regular:4", "n": 12},
    "eval": {"every": 3, "watch": False},
}


def on_the_cpu(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, "train": {**content["train"], "device": "cpu"}}


@pytest.mark.gpu
@pytest.mark.parametrize("graph", ["regular:4", "star", "el-oracle:3"])
def test_models_that_stay_on_a_gpu_end_as_on_the_cpu(graph, monkeypatch):
    """And none of it was done in another way: no event says so."""
    rounds = []
    feed = DeviceStack._feed
    monkeypatch.setattr(DeviceStack, "_feed", lambda *how: rounds.append(feed(*how)))
    content = {**LEARNING, "topology": {"graph": graph, "n": 12}}
    found, expected = (simulate(each, engine="stacked") for each in (content, on_the_cpu(content)))
    assert len(rounds) == 6 and not [row for row in found.rows if isinstance(row, EventRow)]
    for one, other in zip(found.vectors, expected.vectors, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)
    for one, other in zip(found.network(), expected.network(), strict=True):
        assert one.bytes_sent == other.bytes_sent
        assert one.consensus_distance == pytest.approx(other.consensus_distance, rel=1e-2)


@pytest.mark.gpu
def test_a_captured_round_has_the_bits_of_one_that_is_not(monkeypatch):
    captured = simulate(LEARNING, engine="stacked").digest
    monkeypatch.setattr(device_stack, "capture_on", lambda _: None)
    assert simulate(LEARNING, engine="stacked").digest == captured


@pytest.mark.gpu
def test_mixing_on_a_gpu_has_the_bits_of_the_cpu():
    check_mixing(torch.device("cuda"))


def check_mixing(device: torch.device) -> None:
    for graph in ("regular:4", "star", "complete"):
        groups = build(resolve(graph, 12, seed=0), "metropolis").rows_by_degree()
        x = stream(0, "mixed").standard_normal((12, 1001)).astype(np.float32)
        expected, mixing = np.empty_like(x), DeviceMixing(groups, 12, device)
        ordered_mix_rows(groups, x, expected)
        rows, into = torch.tensor(x, device=device), torch.empty(x.shape, device=device)
        mixing.scale([rows])
        mixing.mix([rows], [into], 5)
        assert into.cpu().numpy().tobytes() == expected.tobytes()


@pytest.mark.sockets
@pytest.mark.gpu
def test_peers_of_this_machine_share_a_gpu_and_say_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    how = {"rounds": 2, "train": {"device": "cuda"}, "topology": {"graph": "path", "n": 2}}
    run = run_local(how, tmp_path / "run", report=False)
    assert run.summary["status"] == "finished"
    assert capfd.readouterr().err == ""


# --- without one --------------------------------------------------------------------------------------------------


def test_the_check_of_mixing_holds_on_the_cpu():
    check_mixing(torch.device("cpu"))


@pytest.mark.parametrize(("model", "how"), REPLAYED)
def test_models_that_are_replayed_train_on_the_cpu(model, how):
    updates, _ = trained_alone(model, "cpu", **how)
    assert all(np.isfinite(one).all() and one.any() for one in updates)


@pytest.mark.parametrize("model", DATA)
def test_these_checks_hold_on_the_cpu(model):
    check_like_the_cpu(model, "cpu", 0.0)


@pytest.mark.parametrize("model", TOGETHER)
def test_the_checks_of_nodes_together_hold_on_the_cpu(model, monkeypatch):
    check_together(model, "cpu", 1e-5, monkeypatch)


@pytest.mark.parametrize("how", [{}, {"momentum": 0.9}, {"personal": "recurrent*"}])
def test_recurrent_weights_that_are_copies_train_to_the_same_bits(how, monkeypatch):
    expected = trained("chars:12", "cpu", **how)
    monkeypatch.setattr(weights, "_uses_cudnn", lambda device: True)
    found = trained("chars:12", "cpu", **how)
    assert all(np.array_equal(one, other) for one, other in zip(found[0], expected[0], strict=True))
    assert found[1] == expected[1]


def test_copies_of_recurrent_weights_are_apart_from_the_flat_tensor_and_follow_it(monkeypatch):
    from fedgossip.learning.one_model.flat import Layout

    monkeypatch.setattr(weights, "_uses_cudnn", lambda device: True)
    module = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.GRU(3, 4, batch_first=True))
    layout = Layout.from_module(module, "average", ())
    held = weights.FlatWeights(module, layout, Layout.personal_of(module, ()), torch.device("cpu"))
    (line,) = held.values
    pieces = {parameter.untyped_storage().data_ptr() for parameter in module[1].parameters()}
    assert line.untyped_storage().data_ptr() not in pieces
    with torch.no_grad():
        line.add_(1)
    held.refresh()
    assert np.array_equal(layout.read(module), line[0].numpy())
