"""Trackers see the record of a run and can do nothing to it: not change it, not hold it up, not end it."""

from __future__ import annotations

import csv
import math
import sys
import threading
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedgossip
from fedgossip.base.errors import ConfigError
from fedgossip.core.records import EventRow, NetworkRow, PeerRow
from fedgossip.experiment import load_experiment
from fedgossip.experiment.sections import TRACKERS
from fedgossip.plans import compose
from fedgossip.runs import tracking

CONTENT: dict[str, Any] = {
    "name": "tracked",
    "topology": {"graph": "ring", "n": 4},
    "data": {"source": "diabetes"},
    "task": {"metrics": ["r2", "mae"]},
    "train": {"device": "cpu", "lr": 0.02},
    "rounds": 4,
    "eval": {"every": 2},
}


def tracked(tmp_path: Path, *to: str, **change: Any) -> fedgossip.Run:
    return fedgossip.simulate({**CONTENT, **change, "track": {"to": list(to)}}, out=tmp_path / "run")


def failures(run: fedgossip.Run) -> list[Any]:
    return [row.value for row in run.rows if isinstance(row, EventRow) and row.name == "tracker_failed"]


class Listening:
    """A tracker that keeps what it is told."""

    def __init__(self, place: str, folder: Path) -> None:
        self.place, self.told = place, []  # type: tuple[str, list[Any]]

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        self.told.append((name, dict(settings)))

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        self.told.append((step, dict(values)))

    def end(self, status: str, values: Mapping[str, float]) -> None:
        self.told.append((status, dict(values)))


def listen(monkeypatch: pytest.MonkeyPatch, kind: type[Any] = Listening) -> list[Any]:
    """Put a tracker of ours in the place of wandb's; return the list in which it will be."""
    there: list[Any] = []

    def made(place: str, folder: Path) -> Any:
        there.append(kind(place, folder))
        return there[-1]

    monkeypatch.setattr(tracking, "KINDS", {**tracking.KINDS, "wandb": made})
    return there


def test_every_tracker_that_may_be_named_is_there() -> None:
    assert tuple(tracking.KINDS) == TRACKERS


def test_a_tracker_is_told_the_settings_and_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = listen(monkeypatch)
    run = tracked(tmp_path, "wandb:mine")
    (one,) = there
    (name, settings), *rounds, (status, last) = one.told
    assert (one.place, name, status) == ("mine", "tracked", "finished")
    assert settings["train.lr"] == 0.02 and settings["topology.graph"] == "ring"
    assert [step for step, _ in rounds] == [0, 1, 2, 3, 4]
    assert rounds[2][1]["r2/averaged model"] == run.network()[2].score_averaged
    assert last["r2/worst peer"] == run.score["worst_peer"] and not failures(run)


def test_a_tracker_receives_the_means_of_what_loops_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = listen(monkeypatch)
    one = tracking.Tracking(load_experiment({**CONTENT, "track": {"to": ["wandb:mine"]}}), tmp_path)
    one.begin()
    for peer, loss in enumerate((1.0, 2.0, math.nan)):
        row = PeerRow(1, peer, None, None, 0, 0, 0.0, 0.0, 0.0, 0.0)
        row.logged = {"my loss": loss}
        one.peer(row)
    one.row(NetworkRow(round=1, peers=3, seconds=0.0, bytes_sent=0))
    one.row(NetworkRow(round=2, peers=3, seconds=0.0, bytes_sent=0))
    one.end("finished", None)
    (first, values), (second, later) = there[0].told[1:3]
    assert (first, values["logged/my loss"], second) == (1, 1.5, 2) and "logged/my loss" not in later


def test_a_run_is_the_same_with_trackers_and_without(tmp_path: Path) -> None:
    plain = fedgossip.simulate(CONTENT)
    run = tracked(tmp_path, "csv")
    assert run.digest == plain.digest
    assert run.network() == plain.network()
    same = [compose.hello_of(compose.plan(load_experiment(content)), "schema") for content in (
        CONTENT, {**CONTENT, "track": {"to": ["csv"]}}
    )]  # fmt: skip
    assert same[0] == same[1], "each peer may track for itself"


def test_csv_has_a_column_for_a_number_that_begins_later_also_after_a_resume(tmp_path: Path) -> None:
    """What peers log has no value before their first round of it."""
    for step, values in enumerate([{"loss": 1.0}, {"loss": 0.5, "logged/f1": 0.9}, {"logged/f1": 0.8}]):
        tracking.CsvTracker("", tmp_path).measured(step, values)  # each a life of its own
    assert (tmp_path / "rounds.csv").read_text() == "round,loss,logged/f1\n0,1.0,\n1,0.5,0.9\n2,,0.8\n"


def test_a_name_that_is_a_formula_or_an_escape_sequence_is_neither_in_a_csv(tmp_path: Path) -> None:
    for step in range(2):
        tracking.CsvTracker("", tmp_path).measured(step, {"=cmd|' /C calc'!A0": 1.0, "a\x1b[2J\nb": 2.0})
    assert (tmp_path / "rounds.csv").read_text() == "round,'=cmd|' /C calc'!A0,a?[2J?b\n0,1.0,2.0\n1,1.0,2.0\n"


def test_csv_has_a_line_per_round(tmp_path: Path) -> None:
    run = tracked(tmp_path, "csv")
    with (tmp_path / "run" / "rounds.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["round"] for line in lines] == ["0", "1", "2", "3", "4"]
    assert float(lines[4]["r2/mean peer"]) == run.score["mean_peer"] and lines[1]["r2/mean peer"] == ""


class Broken(Listening):
    def measured(self, step: int, values: Mapping[str, float]) -> None:
        super().measured(step, values)
        raise ConnectionError("no route to wandb\nat all")


def test_a_tracker_that_fails_is_one_warning_and_called_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = listen(monkeypatch, Broken)
    run = tracked(tmp_path, "wandb", "csv")
    assert failures(run) == [{"tracker": "wandb", "reason": "ConnectionError: no route to wandb at all"}]
    assert run.summary["status"] == "finished" and len(there[0].told) == 2
    assert (tmp_path / "run" / "rounds.csv").read_text().count("\n") == 6, "the other goes on"


def test_a_tracker_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    class Hanging(Listening):
        def begin(self, name: str, settings: Mapping[str, Any]) -> None:
            let_go.wait(60)

    listen(monkeypatch, Hanging)
    monkeypatch.setattr(tracking, "END_SECONDS", 0.05)
    monkeypatch.setattr(tracking, "WAITING", 2)
    run = tracked(tmp_path, "wandb")
    let_go.set()
    (failed,) = failures(run)
    assert "slower than the run" in failed["reason"] and run.summary["status"] == "finished"


def test_trackers_that_cannot_be_are_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="tensorbord") as unknown:
        tracked(tmp_path, "tensorbord")
    assert "tensorboard" in unknown.value.advice
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="needs wandb") as missing:
        tracked(tmp_path, "wandb:mine")
    assert "fedgossip[wandb]" in missing.value.advice
    assert not (tmp_path / "run").exists()


@pytest.mark.sockets
def test_a_local_run_is_tracked_by_its_collector(tmp_path: Path) -> None:
    content = {**CONTENT, "task": {"kind": "quadratic", "dim": 3}, "track": {"to": ["csv"]}}
    content.pop("data")
    run = fedgossip.run_local(content, tmp_path / "run", report=False)
    assert run.summary["status"] == "finished"
    assert len((tmp_path / "run" / "rounds.csv").read_text().splitlines()) == 6


# --- the libraries ----------------------------------------------------------------------------------------------------


def test_tensorboard_reads_what_was_tracked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard.summary")
    run = tracked(tmp_path, "tensorboard")
    assert not failures(run)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    tags = found.Tags()["tensors"] or found.Tags()["scalars"]
    assert "r2/averaged model" in tags
    steps = [event.step for event in found.Tensors("r2/averaged model")]
    assert steps == [row.round for row in run.network() if row.score_averaged is not None] == [0, 2, 4]


@pytest.mark.sockets  # of its libraries, which ask for IPv6 when they are imported
def test_mlflow_reads_what_was_tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    uri = (tmp_path / "mlruns").as_uri()
    run = tracked(tmp_path, f"mlflow:{uri}")
    assert not failures(run)
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("tracked")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED" and found.data.params["train.lr"] == "0.02"
    history = client.get_metric_history(found.info.run_id, "r2/averaged model")
    assert [(one.step, one.value) for one in history][:3] == [
        (row.round, row.score_averaged) for row in run.network() if row.score_averaged is not None
    ]


def test_weights_and_biases_is_called_as_it_wants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stand-in: there is no server to try it with."""
    told: list[Any] = []

    class WandbRun:
        summary: dict[str, Any] = {}  # noqa: RUF012

        def log(self, values: dict[str, float], step: int) -> None:
            told.append((step, values))

        def finish(self, exit_code: int) -> None:
            told.append(exit_code)

    def init(**about: Any) -> WandbRun:
        told.append(about["project"])
        return WandbRun()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    run = tracked(tmp_path, "wandb:mine")
    assert told[0] == "mine" and told[-1] == 0 and [step for step, _ in told[1:-1]] == [0, 1, 2, 3, 4]
    assert not failures(run)
    assert isinstance(run.rows[-1], NetworkRow)


SECRET = "mlflow:https://ann:pa55word@ml.example.org"


class _Refusing:
    """A library whose server takes nothing, and says where it is."""

    def __init__(self, place: str, folder: Path) -> None:
        self.place = place

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        raise ConnectionError(f"no answer of {self.place}")


def test_a_password_in_the_address_of_a_tracker_is_in_no_file_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = []

    def made(place: str, folder: Path) -> _Refusing:
        places.append(place)
        return _Refusing(place, folder)

    monkeypatch.setitem(tracking.KINDS, "mlflow", made)  # type: ignore[arg-type]
    run = fedgossip.simulate({**CONTENT, "track": {"to": [SECRET]}}, out=tmp_path / "run", report=True)
    assert places == [SECRET.removeprefix("mlflow:")], "the tracker itself has it"
    (failure,) = failures(run)
    assert failure["tracker"] == "mlflow:https://***@ml.example.org" and "***@ml.example.org" in failure["reason"]
    assert (tmp_path / "run/report.html").exists()
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and b"pa55word" in path.read_bytes()]


def test_a_run_that_goes_on_has_its_password_of_the_environment_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = load_experiment({**CONTENT, "track": {"to": [SECRET]}}).to_dict()["track"]["to"]
    for word in tracking.MLFLOW_WORDS:
        monkeypatch.delenv(word, raising=False)
    with pytest.raises(ConfigError, match="the password is not kept"):
        tracking.make_tracker(kept[0], Path("run"))
    places = []
    monkeypatch.setitem(tracking.KINDS, "mlflow", lambda place, folder: places.append(place))  # type: ignore[arg-type]
    for word in tracking.MLFLOW_WORDS:
        monkeypatch.setenv(word, "x")
    tracking.make_tracker(kept[0], Path("run"))
    assert places == ["https://ml.example.org"]
