"""The best round by the validation score: its model is kept, and a run ends when no better one follows for a while."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedgossip
from fedgossip.base.errors import ConfigError
from fedgossip.base.scores import BestSoFar, Score
from fedgossip.cli.run.run import _closing_lines
from fedgossip.core.meter import Meter
from fedgossip.core.records import NetworkRow, PeerRow, Row
from fedgossip.drivers.local import run_local_plan
from fedgossip.drivers.participant import check_selection
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.learning.models.model_files import find_folder
from fedgossip.plans import compose
from fedgossip.runs.peer_files import PeerFiles, take_up
from fedgossip.runs.run_directory import Run

FALLS = {
    "rounds": 12,
    "data": {"source": "diabetes", "validation": 0.2},
    "model": {"source": "mlp:10-64-1"},
    "train": {"device": "cpu", "lr": 0.02, "local_epochs": 2, "batch_size": 8},
    "eval": {"every": 1, "on": "validation", "keep": "best"},
}
"""A run whose root mean squared error rises after a few rounds."""
CLEAR = {"coordinator": {"clients": 4, "min_clients": 4, "secure": {"on": False}}}
RING = {"topology": {"graph": "ring", "n": 6}}
SECURE = {
    "rounds": 6,
    "data": {"source": "digits", "local_test": 0.2},
    "model": {"source": "mlp:64-16-10"},
    "train": {"device": "cpu", "lr": 0.5, "local_epochs": 1, "batch_size": 32},
    "eval": {"every": 1, "keep": "best"},
    "coordinator": {"clients": 6, "min_clients": 5},
}


KEPT = {"eval": {"keep": "best"}}
AT_CLIENTS = KEPT | {"data": {"local_test": 0.2}}


def kept(run: Run, folder: str) -> dict[str, Any]:
    assert run.directory
    told: dict[str, Any] = json.loads((run.directory / folder / "model.json").read_text())
    return told


def weights(run: Run) -> str:
    told = kept(run, "model-best")
    assert told["score"]["rounds"] == run.summary["best"]["round"]
    return str(told["weights"])


def of(run: Run) -> tuple[Any, ...]:
    return run.summary["status"], run.summary["rounds"], run.summary["best"], run.digest


def test_the_first_of_equal_rounds_is_the_best_and_no_number_is_never_better() -> None:
    best = BestSoFar(Score("rmse", better="lower"), patience=3)
    for round, value, better in [(1, math.nan, False), (2, 3.0, True), (3, 2.0, True), (4, 2.0, False)]:
        assert best.takes(round, value) == better
    assert (best.round, best.value, best.since, best.over) == (3, 2.0, 1, False)
    best.takes(5, -math.inf)
    best.takes(6, 2.5)
    assert best.over
    assert not BestSoFar(Score("accuracy")).over


@pytest.mark.parametrize("kind", [CLEAR, RING])
def test_the_model_of_the_best_round_is_kept_and_patience_ends_the_run(kind: dict[str, Any], tmp_path: Path) -> None:
    whole = fedgossip.simulate(FALLS | kind, engine="stacked")
    measured = {row.round: row.score_averaged for row in whole.network() if row.round}
    best = next(round for round in measured if min(measured[round + one] for one in (1, 2, 3)) >= measured[round])
    short = fedgossip.simulate(FALLS | kind | {"rounds": best}, engine="stacked", out=tmp_path / "short")
    patient = FALLS | kind | {"stop": {"patience": 3}}
    runs = [fedgossip.simulate(patient, engine=one, out=tmp_path / one) for one in ("sim", "stacked")]
    for run in runs:
        assert of(run)[:3] == ("finished", best + 3, {"round": best, "score": measured[best]})
        assert run.digest == runs[0].digest != whole.digest
        assert weights(run) == weights(short) == kept(short, "model")["weights"]
        assert run.summary["events"] == {"no_better": 1}, "an end by patience is none before its time"
    assert find_folder(tmp_path / "sim").name == "model-best"
    assert any("model-best" in line and f"of round {best}" in line for _, line in _closing_lines(runs[0], report=False))


def test_a_coordinator_that_was_away_ends_the_run_in_the_same_round() -> None:
    patient = FALLS | CLEAR | {"stop": {"patience": 3}}
    struck = {"faults": [{"kind": "crash", "peers": [4], "start": 3.5, "after": 1.0}]}
    assert of(fedgossip.simulate(patient | struck)) == of(fedgossip.simulate(patient))


def test_the_score_of_a_secure_federation_is_a_secure_sum_of_its_clients(tmp_path: Path) -> None:
    runs = [fedgossip.simulate(SECURE, engine=one, out=tmp_path / one) for one in ("sim", "stacked")]
    tested = [row for row in runs[0].rows if isinstance(row, PeerRow) and row.score_clients is not None]
    most = max(tested, key=lambda row: (row.score_clients, -row.round))
    for run in runs:
        assert run.summary["best"] == {"round": most.round - 1, "score": most.score_clients, "at": "clients"}
        assert weights(run) == weights(runs[0])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (KEPT, "by the test set"),
        ({"eval": {}, "stop": {"patience": 2}}, "stop.patience = 2 by the test set"),
        (KEPT | {"task": {"kind": "loop"}, "data": {}, "model": {}, "train": {}}, "your own loop"),
        ({"coordinator": {"clients": 4, "algorithm": "fedbuff"}, "stop": {"patience": 2}}, "fedbuff"),
        (AT_CLIENTS | {"coordinator": {"clients": 8, "privacy": {"unit": "record"}}}, "if records are hidden"),
    ],
)
def test_what_cannot_be_chosen_honestly_is_refused_by_name(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_experiment(FALLS | CLEAR | changed)


@pytest.mark.parametrize(("stop", "words"), [({"patience": 2}, "stop.patience"), ({}, "eval.keep")])
def test_peers_on_machines_of_their_own_have_nobody_to_choose(stop: dict[str, int], words: str) -> None:
    plan = compose.plan(load_experiment(FALLS | RING | {"stop": stop}))
    with pytest.raises(ConfigError, match=words):
        check_selection(plan, whole=False)


@pytest.mark.long
@pytest.mark.sockets
def test_processes_choose_the_same_round(tmp_path: Path) -> None:
    patient = FALLS | CLEAR | {"stop": {"patience": 3}}
    for name, content in (("federated", patient), ("ring", FALLS | RING), ("secure", SECURE)):
        real = fedgossip.run_local(content, tmp_path / name, report=False)
        same = fedgossip.simulate(content, out=tmp_path / f"{name}-sim")
        assert (of(real), weights(real)) == (of(same), weights(same))
        assert not (tmp_path / name / "best.safetensors").exists()
        assert any(isinstance(row, NetworkRow) for row in real.rows)


def ctrl_c_after(round: int) -> Callable[[Row], None]:
    def watch(row: Row) -> None:
        if isinstance(row, NetworkRow) and row.round == round:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


@pytest.mark.parametrize("engine", ["sim", "stacked"])
@pytest.mark.parametrize("kind", [CLEAR, RING])
def test_a_run_that_was_stopped_after_its_best_round_still_knows_it(
    kind: dict[str, Any], engine: str, tmp_path: Path
) -> None:
    plan = compose.plan(load_experiment(FALLS | kind | {"stop": {"patience": 3}}))
    whole = simulate_plan(plan, engine=engine, out=tmp_path / "whole")
    best = whole.summary["best"]["round"]
    first = simulate_plan(plan, engine=engine, out=tmp_path / "run", watch=ctrl_c_after(best + 1))
    assert first.summary["status"] == "interrupted"
    again = simulate_plan(plan, engine=engine, out=tmp_path / "run", resume=True)
    assert (of(again), weights(again)) == (of(whole), weights(whole))


@pytest.mark.long
@pytest.mark.sockets
@pytest.mark.parametrize("content", [FALLS | CLEAR | {"stop": {"patience": 3}}, FALLS | RING])
def test_processes_that_were_stopped_choose_the_same_round(content: dict[str, Any], tmp_path: Path) -> None:
    """Not those of a secure sum, whose open round is given up: nobody masks one input twice."""
    plan = compose.plan(load_experiment(content))
    whole = simulate_plan(plan, out=tmp_path / "whole")
    stopped = run_local_plan(plan, tmp_path / "run", report=False, watch=ctrl_c_after(4))
    assert stopped.summary["status"] == "interrupted"
    again = run_local_plan(plan, tmp_path / "run", report=False, resume=True)
    assert again.summary["best"] == whole.summary["best"] and weights(again) == weights(whole)


@pytest.mark.parametrize("content", [FALLS | CLEAR, SECURE])
def test_a_coordinator_on_a_machine_of_its_own_keeps_the_best_model_over_its_lives(
    content: dict[str, Any], tmp_path: Path
) -> None:
    plan = compose.plan(load_experiment(content))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    models = [task.initial(node) + np.float32(node) for node in range(4)]
    scores = [None, 0.5, 0.75, 0.25]
    at_clients = plan.experiment.selects_at_clients

    def life(first: int, last: int) -> PeerFiles:
        files = PeerFiles(tmp_path, plan.n - 1, plan, task, snapshots=False)
        files.started(first, models[first])
        for round in range(first + 1, last + 1):
            row = Meter(plan.n - 1).mixed(round, 0, 0, None)
            row.score_clients = scores[round] if at_clients else None
            files.mixed(row, models[round])
        files.lost()
        return files

    life(0, 2)
    life(2, 3).save(models[3])
    told = json.loads((tmp_path / "model-best" / "model.json").read_text())["score"]
    measured = {round: task.evaluate([models[round]])[0][plan.experiment.score.name] for round in (1, 2, 3)}
    best = 1 if at_clients else min(measured, key=lambda round: measured[round])
    assert (told["rounds"], told["value"]) == (best, 0.75 if at_clients else measured[best])
    so_far = BestSoFar(plan.experiment.score)
    model = take_up(so_far, tmp_path)
    assert model is not None and model.tobytes() == models[best].tobytes() and so_far.round == best
