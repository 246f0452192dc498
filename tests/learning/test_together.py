"""The jobs of several nodes in one gradient, as a GPU trains them: what the loop trains, to rounding.

Forced on the CPU here, where the loop trains otherwise: `job_blocks.KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_cuda import texts
from test_device_waits import CAST, WAITING, Waits
from test_learning import images, jobs_of, made_up, on_cpu, task_of
from torch import nn

from fedgossip import simulate
from fedgossip.base.errors import TrainingError
from fedgossip.cli.run.progress import event_text
from fedgossip.core.machine import Report, Terms
from fedgossip.core.records import EventRow
from fedgossip.core.task import Job, Update
from fedgossip.data.dataset import Dataset
from fedgossip.learning.many_nodes import job_blocks
from fedgossip.learning.many_nodes.job_blocks import ModuleStack
from fedgossip.learning.one_model import devices
from fedgossip.learning.one_model.module_engine import Assignment
from fedgossip.learning.one_model.sharing import OutOfMemory
from fedgossip.learning.task import TorchTask

HERE = __name__
NODES = 5


class Normed(nn.Module):
    """Two layers with LayerNorm between them, one weight of which stays as it is."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(features, 9), nn.LayerNorm(9), nn.Linear(9, classes)
        self.first.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.tanh(self.norm(self.first(x))))
        return found


class Words(nn.Module):
    """The mean of what characters are embedded as."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(classes, 6), nn.Linear(6, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embedding(x)
        found: torch.Tensor = self.last(h.cumsum(1))
        return found


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Normed(shape[0], classes)


def words(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Words(classes)


def grouped(shape: tuple[int, ...], classes: int) -> nn.Module:
    layers = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(64, classes))


DATA: dict[str, Callable[[], Dataset]] = {
    f"{HERE}:normed": made_up,
    f"{HERE}:grouped": images,
    f"{HERE}:words": texts,
    "cnn:small": images,
    "cnn:small-bn": images,
    "gpt:1-16-2": texts,
}
BY_MODULES = {"cnn:small": {"prefetch": 1}}
"""By modules also on the CPU, which has a hand-written path for this one."""


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_blocks, "KINDS", ("cuda", "cpu"))


def made(model: str, data: Dataset, **how: Any) -> TorchTask:
    return task_of(model, data, on_cpu(**{"batch_size": 6, **BY_MODULES.get(model, {}), **how}), n=NODES)


def graph_facts(task: TorchTask) -> list[Report]:
    found: list[Report] = []
    task.report_to(found.append)
    return found


def both(
    model: str, monkeypatch: pytest.MonkeyPatch, terms: Terms | None = None, rounds: int = 2, **how: Any
) -> tuple[list[Update], list[Update], TorchTask, TorchTask]:
    """Train rounds of jobs in the loop, and together; the second from what nodes remember of the first."""
    data = DATA[model]()
    loop = made(model, data, **how)
    monkeypatch.setattr(job_blocks, "KINDS", ("cpu",))
    stack = made(model, data, **how)
    told = graph_facts(stack)
    starts = [job.vector for job in jobs_of(loop, NODES)]
    expected: list[Update] = []
    found: list[Update] = []
    for round in range(rounds):
        jobs = [Job(node, round, vector, terms) for node, vector in enumerate(starts)]
        expected += loop.train(jobs)
        found += stack.train(jobs)
    assert told == [] and stack._blocks and stack._blocks._stack
    return expected, found, loop, stack


def check_equal(expected: list[Update], found: list[Update], loop: TorchTask, stack: TorchTask) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.difference is not None and other.difference is not None
        assert np.linalg.norm(one.difference - other.difference) <= 1e-5 * np.linalg.norm(other.difference)
        assert one.metrics.keys() == other.metrics.keys() and one.examples == other.examples
        for name, value in other.metrics.items():
            assert one.metrics[name] == pytest.approx(value, rel=1e-5)
    for node in range(NODES):
        one, other = stack.state(node), loop.state(node)
        assert one.keys() == other.keys()
        for name, array in other.items():
            assert one[name].dtype == array.dtype and one[name].shape == array.shape
            np.testing.assert_allclose(one[name], array, rtol=1e-3, atol=1e-5 * float(np.abs(array).max()))


@pytest.mark.parametrize("model", DATA)
def test_nodes_that_train_together_learn_what_each_alone_learns(model: str, monkeypatch: pytest.MonkeyPatch):
    check_equal(*both(model, monkeypatch))


HOW: list[dict[str, Any]] = [
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"optimizer": "adam", "lr": 0.01, "clip_norm": 0.5},
    {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
    {"optimizer": "lars", "lr": 1.0, "momentum": 0.9},
    {"optimizer": "lamb", "lr": 0.01},
]


@pytest.mark.parametrize("how", HOW, ids=lambda how: how.get("optimizer", "sgd"))
def test_with_every_optimizer(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    check_equal(*both(f"{HERE}:normed", monkeypatch, **how))


@pytest.mark.parametrize("how", [{"local_epochs": 2}, {"local_epochs": 1, "batch_size": 7, "momentum": 0.9}])
@pytest.mark.parametrize("model", [f"{HERE}:normed", "cnn:small"])
def test_nodes_with_more_steps_and_batches_of_other_sizes(
    model: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    check_equal(*both(model, monkeypatch, **how))


@pytest.mark.parametrize("how", [{"buffers": "local"}, {"personal": "last*,7*", "momentum": 0.9}])
def test_what_stays_at_a_node_is_its_own(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    model = f"{HERE}:grouped" if "buffers" in how else f"{HERE}:normed"
    how = {**how, "personal": "last*"} if "personal" in how else how
    check_equal(*both(model, monkeypatch, **how))


def test_terms_are_added_to_each_step(monkeypatch: pytest.MonkeyPatch):
    correction = np.linspace(-0.1, 0.1, made("cnn:small", images()).length, dtype=np.float32)
    check_equal(*both("cnn:small", monkeypatch, Terms(0.1, correction), momentum=0.9, clip_norm=0.7))


def test_sixteen_bits_are_those_of_the_loop_nearly(monkeypatch: pytest.MonkeyPatch):
    expected, found, *_ = both("cnn:small", monkeypatch, rounds=1, precision="bfloat16", local_steps=1)
    for one, other in zip(found, expected, strict=True):
        assert one.difference is not None and other.difference is not None
        assert np.linalg.norm(one.difference - other.difference) <= 12 * 2.0**-8 * np.linalg.norm(other.difference)


def test_on_a_cpu_the_loop_trains():
    assert made("cnn:small-bn", images())._blocks is None


@pytest.mark.parametrize("how", [{"local_steps": None}, {"local_epochs": None}], ids=["full", "uneven"])
@pytest.mark.parametrize("model", ["cnn:small-bn", "gpt:1-16-2"])
@pytest.mark.usefixtures("together")
def test_a_gpu_that_trains_nodes_together_is_waited_for_at_the_ends_of_a_call(
    model: str, how: dict[str, None], monkeypatch: pytest.MonkeyPatch
):
    """No step makes a tensor of an array or a number, and none reads one; types may change on the device."""

    def waits(steps: int) -> dict[str, int]:
        task = made(model, DATA[model](), momentum=0.9, **dict.fromkeys(how, steps))
        told, entered, from_numpy = graph_facts(task), [], torch.from_numpy
        with monkeypatch.context() as patch, Waits() as seen:
            patch.setattr(torch, "from_numpy", lambda array: (entered.append(array), from_numpy(array))[1])
            task.train([Job(node, 0, task.initial(node)) for node in range(NODES)])
        assert told == []
        return {"from_numpy": len(entered), **{name: seen.seen[name] for name in WAITING - {CAST}}}

    assert waits(1) == waits(3)


# --- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "sizes"), [(0, [5]), (1, [5, 2, 2, 1]), (2, [5, 2, 1, 1, 1, 1, 1])])
@pytest.mark.usefixtures("together")
def test_where_memory_is_short_blocks_are_halved(left: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch):
    """The first `left` tries of a block find no memory."""
    task, expected = (made(f"{HERE}:normed", made_up(), momentum=0.9) for _ in range(2))
    train, seen = ModuleStack.train, []

    def short(stack: ModuleStack, jobs: Any) -> Any:
        seen.append(len(jobs))
        if len(seen) <= left:
            raise OutOfMemory("made up")
        return train(stack, jobs)

    plain = expected.train(jobs_of(expected, NODES))
    monkeypatch.setattr(ModuleStack, "train", short)
    found = task.train(jobs_of(task, NODES))
    assert seen == sizes
    check_equal(plain, found, expected, task)


@pytest.mark.usefixtures("together")
def test_one_node_that_does_not_fit_is_the_loops_in_pieces(monkeypatch: pytest.MonkeyPatch):
    task, expected = made(f"{HERE}:normed", made_up()), made(f"{HERE}:normed", made_up())
    expected._blocks, told = None, graph_facts(task)

    def short(*_: Any) -> Any:
        raise OutOfMemory("made up")

    monkeypatch.setattr(ModuleStack, "train", short)
    jobs = jobs_of(task, NODES)
    check_equal(expected.train(jobs), task.train(jobs), expected, task)
    assert task._sharing.pieces == 2 and told == []


def test_blocks_are_of_nearly_equal_size_and_jobs_with_terms_are_apart():
    task = made(f"{HERE}:normed", made_up(), local_epochs=1)
    vector = task.initial(0)
    jobs = [
        Assignment((k, 0), vector, task._batches.plan(k % NODES, 0), 0.1, {}, Terms(0.1) if k % 3 == 0 else None)
        for k in range(30)
    ]
    found = list(job_blocks.all_blocks(jobs, 8))
    assert [len(block) for block in found] == [7, 7, 6, 5, 5]
    assert [{bool(job.terms) for job in block} for block in found] == 3 * [{False}] + 2 * [{True}]
    steps = [[job_blocks.steps_of(job) for job in block] for block in found]
    assert all(block == sorted(block, reverse=True) for block in (steps[0] + steps[1] + steps[2], steps[3] + steps[4]))


# --- what the loop takes ----------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """A layer, with something that no vmap can do."""

    def __init__(self, odd: Callable[[torch.Tensor], torch.Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.odd = nn.Sequential(nn.Linear(12, 4), *layers), odd
        self.register_buffer("seen", torch.zeros(4), persistent=False)
        self.common = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.odd(self.layers(x))


def dropping(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Odd(lambda h: h, nn.Dropout(0.5))


def looking(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Odd(lambda h: h if h.sum() > 0 else 2 * h)


def counting(shape: tuple[int, ...], classes: int) -> nn.Module:
    module = Odd(lambda h: h)
    module.odd = lambda h: (module.common.add_(h.detach().mean(0)), h)[1]
    return module


def one_by_one(shape: tuple[int, ...], classes: int) -> nn.Module:
    bag = nn.EmbeddingBag(9, 5)
    return nn.Sequential(bag, nn.Linear(5, 9), nn.Unflatten(0, (-1, 1)), Repeated())


class Repeated(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h.expand(-1, 12, -1)


REFUSED = {
    f"{HERE}:dropping": "random operation",
    f"{HERE}:looking": "data-dependent control flow",
    f"{HERE}:counting": "",
    f"{HERE}:one_by_one": "batching rule for aten::_embedding_bag",
    "chars:12": "recurrent layers",
}


@pytest.mark.parametrize(("model", "why"), REFUSED.items())
@pytest.mark.usefixtures("together")
def test_what_cannot_be_trained_together_is_the_loops_and_that_is_said_once(model: str, why: str):
    data = texts() if model in ("chars:12", f"{HERE}:one_by_one") else made_up()
    task, expected = made(model, data, momentum=0.9), made(model, data, momentum=0.9)
    expected._blocks, told = None, graph_facts(task)
    for _ in range(2):
        jobs = jobs_of(task, NODES)
        for one, other in zip(task.train(jobs), expected.train(jobs), strict=True):
            assert np.array_equal(one.difference, other.difference) and one.metrics == other.metrics
    (said,) = told
    assert said.name == "one_by_one" and why in said.value["reason"]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"precision": "float16"}, "float16"),
        ({"accumulate": 2}, "several batches"),
        ({"channels_last": True}, "channels_last"),
    ],
)
@pytest.mark.usefixtures("together")
def test_settings_that_only_the_loop_knows(how: dict[str, Any], why: str):
    task = made("cnn:small-bn", images(), **how)
    told = graph_facts(task)
    task.train([Job(0, 0, task.initial(0))])
    assert told == []  # one job is the loop's anyway
    task.train(jobs_of(task, 2))
    assert [(one.name, why in one.value["reason"]) for one in told] == [("one_by_one", True)]


@pytest.mark.usefixtures("together")
def test_a_model_that_fails_names_its_node():
    task = made(f"{HERE}:failing", made_up())
    with pytest.raises(TrainingError, match="node 0, round 0: training raised"):
        task.train(jobs_of(task, 2))


def failing(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(3, classes)


# --- compiling --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("together")
def test_where_the_compiler_fails_training_goes_on_without_and_says_so_once(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such kernel\nand more")

    monkeypatch.setattr(torch, "compile", lambda function, **_: function if isinstance(function, nn.Module) else broken)
    monkeypatch.setattr(devices, "check", lambda *_: None)
    task, expected = made("cnn:small-bn", images(), compile=True), made("cnn:small-bn", images())
    expected._blocks, told = None, graph_facts(task)
    for _ in range(2):
        jobs = jobs_of(task, NODES)
        check_equal(expected.train(jobs), task.train(jobs), expected, task)
    assert told == [Report("not_compiled", {"reason": "RuntimeError: no such kernel"}, 0)]


@pytest.mark.usefixtures("together")
def test_a_long_run_is_told_that_compiling_would_pay(monkeypatch: pytest.MonkeyPatch):
    task = made("cnn:small-bn", images(), local_steps=3)
    told = graph_facts(task)
    monkeypatch.setattr(job_blocks, "STEPS_THAT_PAY", 20 * 3 * 3)  # three blocks, twenty rounds
    for most in (3, 2, 2):
        task._blocks._block = most
        task.train(jobs_of(task, NODES))
    assert told == [Report("compiling_pays", {"steps": 180}, 0)]


@pytest.mark.sockets
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, where it loads its compiler
@pytest.mark.parametrize("model", ["cnn:small-bn", "gpt:1-16-2"])
def test_the_compiled_gradient_of_all_nodes_is_that_of_the_loop(model: str, monkeypatch: pytest.MonkeyPatch):
    if not devices._compiler():
        pytest.skip("torch.compile needs a C++ compiler here, and there is none")
    expected = made(model, DATA[model](), momentum=0.9)
    monkeypatch.setattr(job_blocks, "KINDS", ("cpu",))
    task = made(model, DATA[model](), momentum=0.9, compile=True)
    told = graph_facts(task)
    for _ in range(2):
        jobs = jobs_of(task, NODES)
        check_equal(expected.train(jobs), task.train(jobs), expected, task)
    assert told == [] and task._blocks._stack._sizes == {NODES}


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sim", "stacked"])
@pytest.mark.usefixtures("together")
def test_a_run_trains_all_peers_together_and_ends_as_with_the_loop(engine: str, monkeypatch: pytest.MonkeyPatch):
    how = {
        "rounds": 2,
        "model": {"source": "cnn:small-bn"},
        "train": {"device": "cpu", "local_steps": 2},
        "topology": {"graph": "ring", "n": 4},
    }
    train, sizes = ModuleStack.train, []
    monkeypatch.setattr(ModuleStack, "train", lambda stack, jobs: (sizes.append(len(jobs)), train(stack, jobs))[1])
    found = simulate(how, engine=engine)
    assert sizes == [4, 4]
    monkeypatch.setattr(job_blocks, "KINDS", ())
    expected = simulate(how, engine=engine)
    assert sizes == [4, 4]
    for one, other in zip(found.vectors, expected.vectors, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.usefixtures("together")
def test_a_run_says_once_that_its_peers_train_one_after_another():
    train = {"device": "cpu", "local_steps": 1, "accumulate": 2}
    how = {"rounds": 2, "model": {"source": "cnn:small-bn"}, "train": train, "topology": {"graph": "ring", "n": 4}}
    rows = [row for row in simulate(how, engine="stacked").rows if isinstance(row, EventRow)]
    assert [(row.name, row.peer) for row in rows] == [("one_by_one", -1)]
    assert event_text(rows[0]) == "the nodes train one after another: a step is of several batches"
