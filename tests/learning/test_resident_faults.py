"""Runs whose models stay on a device, where they are stopped, run out of memory, fail, or are not captured.

Here the device is the CPU, and what captures is a stand-in.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from resident_kit import LEARNING, check_same_record, coming_back, events, stay_here

from fedgossip import simulate
from fedgossip.base.errors import TrainingError
from fedgossip.core.records import NetworkRow, Row
from fedgossip.drivers.sim_checkpoint import Pauses
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.learning.many_nodes import device_stack
from fedgossip.learning.many_nodes.device_stack import DeviceMixing
from fedgossip.learning.many_nodes.stacked_engine import LayerStack
from fedgossip.learning.one_model.captured_steps import CapturedWork, Part
from fedgossip.plans import compose

CPU = torch.device("cpu")


@pytest.fixture
def staying(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    return stay_here(monkeypatch)


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


def test_a_device_that_is_not_what_it_should_be_is_told_and_not_used(
    staying: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no kernel image\nis available")

    monkeypatch.setattr(device_stack, "stack_of", broken)
    assert events(simulate(LEARNING, engine="stacked")) == [("not_resident", "no kernel image")]


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
    with pytest.raises(TrainingError, match=r"round 0: cpu failed: an illegal memory access"):
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
