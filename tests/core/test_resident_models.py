"""Models that stay on a device: the bits of those that come back every round, and nothing read but what is told.

Here the device is the CPU, with the code of a GPU, or "meta", which has no numbers that could be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from resident_kit import LEARNING, check_same_record, coming_back, events, stay_here
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedgossip import simulate
from fedgossip.algorithms.gossip.base import Vectors
from fedgossip.algorithms.gossip.dsgd import DSGD, Iterate
from fedgossip.base.vectors import RowGroups, consensus_distance, ordered_mix_rows
from fedgossip.data import data
from fedgossip.data.objectives import objective_of
from fedgossip.learning.many_nodes.convolutions import Shape
from fedgossip.learning.many_nodes.device_stack import DeviceMixing, DeviceStack, squared_distance, squared_size
from fedgossip.learning.many_nodes.stacked_engine import LayerStack
from fedgossip.learning.one_model.scoring import Scoring
from fedgossip.learning.settings import TrainSettings
from fedgossip.topology import build, resolve

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.fixture
def staying(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    return stay_here(monkeypatch)


def uneven(n: int, seed: int) -> RowGroups:
    """Rows of one to four terms with weights of their own, in an order of their own."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 5, n)
    groups = []
    for length in np.unique(lengths):
        nodes = np.flatnonzero(lengths == length)
        ids = np.sort([random.choice(n, length, replace=False) for _ in nodes], axis=1)
        groups.append((nodes, ids, random.random(ids.shape)))
    return groups


# --- mixing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("graph", ["ring", "regular:4", "star", "complete", "random"])
def test_mixing_has_the_bits_of_the_ordered_sum_in_every_group_of_degrees(graph: str, most: int) -> None:
    n = 11 if graph != "regular:4" else 12
    groups = uneven(n, 5) if graph == "random" else build(resolve(graph, n, seed=0), "metropolis").rows_by_degree()
    x = np.random.default_rng(1).standard_normal((n, 37)).astype(np.float32)
    expected = np.empty_like(x)
    ordered_mix_rows(groups, x, expected)
    mixing, rows = DeviceMixing(groups, n, CPU), [torch.tensor(x[:, :20]), torch.tensor(x[:, 20:])]
    into = [torch.full_like(one, torch.nan) for one in rows]
    mixing.scale(rows)
    mixing.mix(rows, into, most)
    assert torch.cat(into, 1).numpy().tobytes() == expected.tobytes()


def test_distances_are_those_of_the_record() -> None:
    random = np.random.default_rng(2)
    x, y = (random.standard_normal((9, 50)).astype(np.float32) for _ in range(2))
    rows, since = ([torch.tensor(one[:, :17]), torch.tensor(one[:, 17:])] for one in (x, y))
    assert np.sqrt(squared_distance(rows).item() / 9) == pytest.approx(consensus_distance(x), rel=1e-14)
    assert np.sqrt(squared_distance(rows, since).item() / 9) == pytest.approx(consensus_distance(x, y), rel=1e-14)
    assert squared_size(rows).item() == pytest.approx(float((x.astype(np.float64) ** 2).sum()), rel=1e-14)


# --- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["softmax", "mlp:64-9-10", "mlp:64-9-7-10"])
@pytest.mark.parametrize("graph", ["ring", "star", "one-peer-exponential", "el-oracle:3"])
def test_a_run_ends_with_the_bits_and_the_record_of_one_that_comes_back(
    graph: str, model: str, staying: Callable[[], int]
) -> None:
    content = {**LEARNING, "model": {"source": model}, "topology": {"graph": graph, "n": 8}}
    run, expected = simulate(content, engine="stacked"), coming_back(content)
    assert staying() == 7
    assert run.digest == expected.digest and not events(run)
    check_same_record(run.rows, expected.rows)


@pytest.mark.parametrize(
    "train", [{"schedule": "cosine"}, {"batch_size": 1, "local_steps": 1}, {"batch_size": 4, "accumulate": 2}]
)
def test_rates_and_batches_are_those_of_the_run(train: dict[str, Any], staying: Callable[[], int]) -> None:
    content = {**LEARNING, "train": {**LEARNING["train"], **train}, "eval": {"every": 3, "watch": True}}
    run, expected = simulate(content, engine="stacked"), coming_back(content)
    assert staying() == 7 and run.digest == expected.digest
    check_same_record(run.rows, expected.rows)


def test_losses_of_numbers_are_placed_on_the_device_too(staying: Callable[[], int]) -> None:
    content = {**LEARNING, "data": {"source": "diabetes"}, "model": {"source": "mlp:10-7-1"}}
    run, expected = simulate(content, engine="stacked"), coming_back(content)
    assert staying() == 7 and run.digest == expected.digest
    check_same_record(run.rows, expected.rows)


def test_rounds_that_are_told_late_are_told_in_their_order(staying: Callable[[], int]) -> None:
    content = {**LEARNING, "rounds": 40, "eval": {"every": 39, "watch": False}}
    run, expected = simulate(content, engine="stacked"), coming_back(content)
    assert staying() == 40 and [row.round for row in run.network()] == list(range(41))
    check_same_record(run.rows, expected.rows)


class Damped(DSGD):
    """A model goes half the way to the mean."""

    def mixed(self, state: Iterate, mixed: Vectors) -> Iterate:
        return Iterate(0.5 * state.x + np.float32(0.5) * mixed[0])


@pytest.mark.parametrize(
    "more",
    [
        {"train": {**LEARNING["train"], "momentum": 0.9}},
        {"train": {"local_epochs": 1, "device": "cpu"}},
        {"algorithm": {"name": "gradient-tracking"}},
        {"algorithm": {"name": "diloco"}},
        {"algorithm": {"combine": "median"}},
        {"model": {"source": "cnn:small"}},
        {"adversary": {"peers": [1], "attack": "sign-flip"}},
    ],
)
def test_what_is_more_than_averaged_models_comes_back(more: dict[str, Any], staying: Callable[[], int]) -> None:
    simulate({**LEARNING, "rounds": 1, **more}, engine="stacked")
    assert staying() == 0


def test_an_algorithm_that_mixes_otherwise_comes_back(staying: Callable[[], int]) -> None:
    simulate({**LEARNING, "rounds": 1}, engine="stacked", algorithm=Damped())
    assert staying() == 0


# --- nothing is read back ------------------------------------------------------------------------------------------


class OneDevice(TorchDispatchMode):
    """Refuses an operation that takes tensors of another device: a copy in the middle of a round, which waits."""

    operations = 0

    def __torch_dispatch__(self, called: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        devices = {one.device for one in tree_leaves((args, kwargs or {})) if isinstance(one, torch.Tensor)}
        assert devices <= {META}, f"{called} takes tensors of {devices}"
        self.operations += 1
        return called(*args, **(kwargs or {}))


@pytest.fixture(params=["softmax", "mlp", "numbers"])
def without_numbers(request: pytest.FixtureRequest) -> Iterator[DeviceStack]:
    """Eight models on a device whose numbers cannot be read."""
    random = np.random.default_rng(0)
    x = random.standard_normal((60, 20), np.float32)
    kind = "regression" if request.param == "numbers" else ""
    y: Any = random.standard_normal((60, 2), np.float32) if kind else random.integers(0, 3, 60)
    dataset = data.from_arrays("random", x, y, kind=kind)
    objective = objective_of(dataset.kind, "", ())
    sizes = (20, 3) if request.param == "softmax" else (20, 9, 2 if kind else 3)
    settings, scoring = TrainSettings(local_steps=2, batch_size=5), Scoring(objective, dataset, None)
    engine = LayerStack(Shape((), sizes), dataset, dataset, settings, META, objective, scoring)
    stack = DeviceStack(engine, 8, 2, lambda *_: None)
    stack.load(np.zeros((8, engine.shape.length), np.float32))
    yield stack


@pytest.mark.parametrize("graph", ["ring", "star"])
def test_a_round_reads_nothing_back_and_copies_nothing_in_its_middle(graph: str, without_numbers: DeviceStack) -> None:
    stack = without_numbers
    mixing = DeviceMixing(build(resolve(graph, 8, seed=0), "metropolis").rows_by_degree(), 8, META)
    stack.advance(np.zeros((2, 8, 5), np.int64), 0.1, mixing, None)  # the first makes labels and buffers
    with torch.no_grad(), OneDevice() as device:
        stack._train()
        stack._measure_before_mixing()
        for part in stack._mixed_by(mixing):
            part()
        stack._keep()
    assert device.operations
