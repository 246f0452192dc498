"""Models that stay on a device: the bits of those that come back every round, and nothing read but what is told.

Here the device is the CPU, with the code of a GPU, or "meta", which has no numbers that could be read.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedgossip import simulate
from fedgossip.algorithms.base import Vectors
from fedgossip.algorithms.dsgd import DSGD, Iterate
from fedgossip.drivers.sim_checkpoint import Pauses
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.errors import TrainingError
from fedgossip.experiment import load_experiment
from fedgossip.learning import data, device_stack, resident
from fedgossip.learning.cuda_graphs import CapturedWork, Part
from fedgossip.learning.device_mixing import DeviceMixing, squared_distance, squared_size
from fedgossip.learning.device_stack import DeviceStack
from fedgossip.learning.objectives import objective_of
from fedgossip.learning.scoring import Scoring
from fedgossip.learning.settings import TrainSettings
from fedgossip.learning.shapes import Shape
from fedgossip.learning.stacked_engine import LayerStack
from fedgossip.plans import compose
from fedgossip.records import EventRow, NetworkRow, Row
from fedgossip.rundir.run_directory import Run
from fedgossip.topology import build, resolve
from fedgossip.vectors import RowGroups, consensus_distance, ordered_mix_rows

CPU, META = torch.device("cpu"), torch.device("meta")
LEARNING: dict[str, Any] = {
    "rounds": 7,
    "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.5}},
    "model": {"source": "mlp:64-9-10"},
    "train": {"local_steps": 2, "batch_size": 5, "device": "cpu"},
    "topology": {"graph": "ring", "n": 8},
    "eval": {"every": 3, "watch": False},
}


@pytest.fixture
def staying(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Let models stay on the CPU; returns how many rounds they have stayed there."""
    rounds: list[int] = []
    feed = DeviceStack._feed

    def counted(stack: DeviceStack, *how: Any) -> None:
        rounds.append(1)
        feed(stack, *how)

    monkeypatch.setattr(DeviceStack, "_feed", counted)
    monkeypatch.setattr(resident, "DEVICES", frozenset({"cpu"}))
    return lambda: len(rounds)


def coming_back(content: dict[str, Any], **how: Any) -> Run:
    """The run whose models are in host memory after every round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resident, "DEVICES", frozenset())
        return simulate(content, engine="stacked", **how)


def told(rows: list[Row]) -> list[Row]:
    return [row for row in rows if not isinstance(row, EventRow)]


def events(run: Run) -> list[tuple[str, object]]:
    return [(row.name, row.value) for row in run.rows if isinstance(row, EventRow)]


def check_same_record(found: list[Row], expected: list[Row]) -> None:
    """Sums in float64 are taken in another order there; all else is equal."""
    assert len(told(found)) == len(told(expected))
    for one, other in zip(told(found), told(expected), strict=True):
        assert type(one) is type(other)
        for name in one.__struct_fields__:
            mine, theirs = getattr(one, name), getattr(other, name)
            assert mine == (pytest.approx(theirs, rel=1e-12) if isinstance(theirs, float) else theirs), name


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


# --- stopping and failing ------------------------------------------------------------------------------------------


def test_a_run_goes_on_bit_for_bit_with_all_of_its_rows(tmp_path: Path, staying: Callable[[], int]) -> None:
    """The rows of rounds that were on the device alone are in the record when an image is taken."""
    plan = compose.plan(load_experiment(LEARNING))
    rows: list[Row] = []

    def ctrl_c(row: Row) -> None:
        if isinstance(row, NetworkRow) and row.round == 3:
            os.kill(os.getpid(), signal.SIGINT)

    whole = simulate_plan(plan, engine="stacked", out=tmp_path / "whole")
    first = simulate_plan(plan, engine="stacked", out=tmp_path / "run", watch=ctrl_c)
    assert first.summary["status"] == "interrupted" and first.network()[-1].round == 3
    second = simulate_plan(plan, engine="stacked", out=tmp_path / "run", resume=True, watch=rows.append)
    assert staying() == 14 and second.digest == whole.digest
    name = "metrics.jsonl"
    assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_an_image_between_two_rounds_has_what_is_on_the_device(
    tmp_path: Path, staying: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[tuple[int, int]] = []

    def every_time(pauses: Pauses) -> None:
        pauses.write()
        reached.append((staying(), min(pauses.simulation.record.reached)))

    monkeypatch.setattr(Pauses, "__call__", every_time)
    content = {**LEARNING, "eval": {"every": 7, "watch": False}}
    simulate_plan(compose.plan(load_experiment(content)), engine="stacked", out=tmp_path / "run")
    assert reached == [(round, round) for round in range(7)]


def test_a_loss_that_is_not_finite_names_its_node_and_comes_after_the_rows_before(staying: Callable[[], int]) -> None:
    content = {**LEARNING, "train": {**LEARNING["train"], "lr": 1e30}}
    texts, rows = [], []
    for run in (simulate, coming_back):
        seen: list[Row] = []
        with pytest.raises(TrainingError) as raised:
            run(content, **({"engine": "stacked"} if run is simulate else {}), watch=seen.append)
        texts.append(str(raised.value))
        rows.append(seen)
    assert staying() and texts[0] == texts[1]
    check_same_record(rows[0], rows[1])


# --- memory, and graphs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain_step", "mix"])
def test_a_round_that_runs_out_of_memory_is_done_again_with_smaller_blocks(
    name: str, staying: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner: Any = LayerStack if name == "plain_step" else DeviceMixing
    done, calls = getattr(owner, name), 0

    def failing(*how: Any) -> None:
        nonlocal calls
        calls += 1
        done(*how)  # as a device does, it fails when something is written already
        if calls in (3, 4):
            raise torch.cuda.OutOfMemoryError("no room")

    monkeypatch.setattr(owner, name, failing)
    run = simulate(LEARNING, engine="stacked")
    assert run.digest == coming_back(LEARNING).digest
    assert events(run) == [("smaller_blocks", f"{most} nodes train at a time") for most in (4, 2)]


def test_too_little_memory_for_one_node_is_an_error(
    staying: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("no room")

    monkeypatch.setattr(LayerStack, "plain_step", full)
    with pytest.raises(TrainingError, match="out of memory") as raised:
        simulate(LEARNING, engine="stacked")
    assert "train.device" in str(raised.value.advice)


def test_models_that_do_not_fit_come_back(staying: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("no room")

    monkeypatch.setattr(device_stack, "stack_of", full)
    run = simulate(LEARNING, engine="stacked")
    assert [name for name, _ in events(run)] == ["not_resident"] and staying() == 0
    assert run.digest == coming_back(LEARNING).digest


def test_a_device_that_fails_is_named_with_the_round(
    staying: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("an illegal memory access\nwas encountered")

    monkeypatch.setattr(DeviceMixing, "mix", failing)
    with pytest.raises(TrainingError, match=r"round 0: cpu failed: an illegal memory access$"):
        simulate(LEARNING, engine="stacked")


class Graphs:
    """In place of CUDA's: counts captures and replays, and refuses what `works` says."""

    def __init__(self, works: bool) -> None:
        self.works, self.captured, self.replayed = works, 0, 0

    def on(self, _: torch.device) -> Callable[[Part], Part]:
        return self._capture

    def _capture(self, work: Part) -> Part:
        self.captured += 1
        if not self.works:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


@pytest.mark.parametrize(("graph", "captured", "replayed"), [("ring", 3, 7), ("one-peer-exponential", 5, 5)])
def test_a_captured_round_is_one_of_its_shape(
    graph: str, captured: int, replayed: int, staying: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds 3, 6 and 7 are watched: training and mixing are two then, the others one for each of 1 or 3 mixings."""
    graphs = Graphs(works=True)
    monkeypatch.setattr(device_stack, "capture_on", graphs.on)
    content = {**LEARNING, "topology": {"graph": graph, "n": 8}}
    run = simulate(content, engine="stacked")
    assert run.digest == coming_back(content).digest
    assert (graphs.captured, graphs.replayed) == (captured, replayed)


def test_a_round_that_is_not_captured_goes_on_and_says_so_once(
    staying: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = Graphs(works=False)
    monkeypatch.setattr(device_stack, "capture_on", graphs.on)
    run = simulate(LEARNING, engine="stacked")
    assert run.digest == coming_back(LEARNING).digest and graphs.captured == 1
    assert events(run) == [("not_captured", "operation not permitted when stream is capturing")]


def test_of_many_mixings_few_are_kept(staying: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = Graphs(works=True)
    monkeypatch.setattr(device_stack, "capture_on", graphs.on)
    monkeypatch.setattr(device_stack, "MOST_GRAPHS", 2)
    content = {**LEARNING, "rounds": 9, "topology": {"graph": "one-peer-exponential", "n": 8}}
    assert simulate(content, engine="stacked").digest == coming_back(content).digest
    assert graphs.captured <= 5, "two rounds, two mixings, and the training"


def test_work_is_done_once_a_call_whether_it_is_captured_or_not() -> None:
    for capture in (Graphs(works=True).on(CPU), Graphs(works=False).on(CPU), None):
        done: list[str] = []
        replayed = CapturedWork([partial(done.append, part) for part in "ab"], capture, lambda _: None)
        for _ in range(3):
            replayed()
        assert done == ["a", "b"] * 3


# --- nothing is read back ------------------------------------------------------------------------------------------


class OneDevice(TorchDispatchMode):
    """Refuses an operation that takes tensors of another device: a copy in the middle of a round, which waits."""

    def __torch_dispatch__(self, called: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        devices = {one.device for one in tree_leaves((args, kwargs or {})) if isinstance(one, torch.Tensor)}
        assert devices <= {META}, f"{called} takes tensors of {devices}"
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
    with torch.no_grad(), OneDevice():
        stack._train()
        stack._before_mixing()
        for part in stack._mixed_by(mixing):
            part()
        stack._keep()
