"""A run that was stopped goes on where it was, with the same bits; or says why it cannot."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgossip import checkpoints
from fedgossip.errors import ResumeError
from fedgossip.experiment import Experiment, load
from fedgossip.metrics import EventRow, NetworkRow, PeerRow, Row, read_rows
from fedgossip.running import compose, pausing
from fedgossip.running.runs import Run
from fedgossip.running.simulated import simulate_plan

ROUNDS = 7


def experiment(*overrides: str, **top: Any) -> Experiment:
    content = {
        "rounds": ROUNDS,
        "topology": {"graph": "ring", "n": 5},
        "eval": {"every": 3},
        "train": {"local_steps": 2, "device": "cpu"},
        "simulation": {"jitter": 0.01, "speed_spread": 0.4, "training_jitter": 0.3},
        **top,
    }
    return load(content, overrides)


def ctrl_c_after(round: int) -> Callable[[Row], None]:
    """Press Ctrl-C when the network's row of `round` comes."""

    def watch(row: Row) -> None:
        if isinstance(row, NetworkRow) and row.round == round:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


def stopped(folder: Path, what: Experiment, engine: str, round: int) -> Run:
    return simulate_plan(compose.plan(what), engine=engine, out=folder, watch=ctrl_c_after(round))


def resumed(folder: Path, what: Experiment, engine: str, watch: Callable[[Row], None] | None = None) -> Run:
    return simulate_plan(compose.plan(what), engine=engine, out=folder, resume=True, watch=watch)


MODELS = {
    "averaging": ["task.kind=averaging", "task.dim=9"],
    "momentum": ["train.momentum=0.9", "train.nesterov=true"],
    "adam": ["train.optimizer=adam", "train.lr=0.01", "train.schedule=cosine"],
    "norm": ["model.source=cnn:small-bn", "train.buffers=local", "train.local_steps=1", "train.batch_size=4"],
}


@pytest.mark.parametrize("engine", ["sim", "stacked"])
@pytest.mark.parametrize("model", MODELS)
def test_a_simulation_goes_on_bit_for_bit(tmp_path: Path, engine: str, model: str) -> None:
    what = experiment(*MODELS[model])
    whole = simulate_plan(compose.plan(what), engine=engine, out=tmp_path / "whole")
    first = stopped(tmp_path / "run", what, engine, 2)
    assert first.summary["status"] == "interrupted" and first.digest is None
    again = resumed(tmp_path / "run", what, engine)
    assert again.digest == whole.digest is not None
    same = "seconds", "accuracy", "bytes_sent", "measured_contraction", "events", "status", "rounds"
    assert {key: again.summary[key] for key in same} == {key: whole.summary[key] for key in same}
    assert again.rows == whole.rows == read_rows(tmp_path / "run" / "metrics.jsonl")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert not (tmp_path / "run" / "INCOMPLETE").exists() and not list((tmp_path / "run").glob("checkpoint*"))


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_a_simulation_may_be_stopped_in_every_round(tmp_path: Path, engine: str) -> None:
    what = experiment(*MODELS["momentum"])
    whole = simulate_plan(compose.plan(what), engine=engine)
    stopped(tmp_path, what, engine, 0)
    for round in range(1, ROUNDS):
        run = resumed(tmp_path, what, engine, ctrl_c_after(round))
        assert run.summary["status"] == "interrupted"
    run = resumed(tmp_path, what, engine)
    assert run.digest == whole.digest and run.rows == whole.rows


FAULTS = [
    {"kind": "crash", "peers": [1], "start": 0.12, "after": 0.1},
    {"kind": "drop", "probability": 0.2},
    {"kind": "delay", "seconds": 0.02},
]


def test_faults_go_on_too(tmp_path: Path) -> None:
    what = experiment("train.momentum=0.9", "algorithm.deadline=0.5", faults=FAULTS, rounds=12)
    whole = simulate_plan(compose.plan(what))
    assert {"crashed", "restarted", "lost"} <= set(whole.summary["events"])
    stopped(tmp_path, what, "sim", 1)
    for round in (3, 8):
        resumed(tmp_path, what, "sim", ctrl_c_after(round))
    run = resumed(tmp_path, what, "sim")
    assert run.digest == whole.digest and run.rows == whole.rows
    assert run.summary["events"] == whole.summary["events"]


def test_a_run_that_was_killed_goes_on_from_the_image_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    what = experiment()
    whole = simulate_plan(compose.plan(what))
    monkeypatch.setattr(pausing, "SECONDS", 0.0)
    stopped(tmp_path, what, "sim", 2)
    with (tmp_path / "metrics.jsonl").open("ab") as rows:
        rows.write(b'{"kind":"peer","round":3,"pe')  # what a kill leaves
    assert resumed(tmp_path, what, "sim").rows == whole.rows


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_without_an_image_a_simulation_begins_again(tmp_path: Path, engine: str) -> None:
    what = experiment()
    stopped(tmp_path, what, engine, 2)
    for path in tmp_path.glob("checkpoint*"):
        path.unlink()
    assert resumed(tmp_path, what, engine).rows == simulate_plan(compose.plan(what), engine=engine).rows


def test_a_bad_image_is_told_and_the_run_begins_again(tmp_path: Path) -> None:
    what = experiment()
    stopped(tmp_path, what, "sim", 2)
    content = bytearray((tmp_path / checkpoints.NEWEST).read_bytes())
    content[-1] ^= 1
    (tmp_path / checkpoints.NEWEST).write_bytes(content)
    run = resumed(tmp_path, what, "sim")
    assert run.digest == simulate_plan(compose.plan(what)).digest
    (told,) = (row for row in run.rows if isinstance(row, EventRow))
    assert told.name == "checkpoint_refused" and isinstance(told.value, dict) and told.value["reason"] == "corrupt"
    assert run.summary["events"] == {"checkpoint_refused": 1}


def test_a_full_disk_costs_the_image_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pausing, "SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "put", full)
    run = simulate_plan(compose.plan(experiment()), out=tmp_path)
    assert run.summary["status"] == "finished"
    assert run.summary["events"]["checkpoint_failed"] > 0
    assert run.digest == simulate_plan(compose.plan(experiment())).digest


def test_another_experiment_is_refused_by_its_keys_and_nothing_changes(tmp_path: Path) -> None:
    stopped(tmp_path, experiment(), "sim", 2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ResumeError, match="lr: was 0") as error:
        resumed(tmp_path, experiment("train.lr=0.05", "simulation.jitter=0.0"), "sim")
    assert all(
        text in str(error.value) for text in ("train.lr: was 0.1, is 0.05", "simulation.jitter: was 0.01, is 0.0")
    )
    assert error.value.exit_code == 8
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_rounds_may_grow(tmp_path: Path) -> None:
    stopped(tmp_path, experiment(), "sim", 2)
    more = experiment(rounds=ROUNDS + 2)
    assert resumed(tmp_path, more, "sim").digest == simulate_plan(compose.plan(more)).digest


def rounds_of(path: Path) -> list[int]:
    return [row.round for row in read_rows(path) if isinstance(row, PeerRow)]
