"""Folders of peers, put together afterwards, tell what the run told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from commands import in_process

from fedgossip import ConfigError, load_experiment, run_local, simulate
from fedgossip.base.errors import FedgossipError, NetworkError
from fedgossip.cli.run.run import facts
from fedgossip.core.metrics import Network
from fedgossip.core.records import EventRow, Row, RowWriter
from fedgossip.plans import compose
from fedgossip.runs.collect import Collector, collect_peers, first_failure
from fedgossip.runs.incarnations import Prepared
from fedgossip.runs.peer_files import life_totals_in
from fedgossip.runs.run_directory import Run
from fedgossip.runs.tracking import Keeper

pytestmark = pytest.mark.sockets


def test_collected_folders_tell_what_the_run_told(tmp_path: Path) -> None:
    experiment = {"rounds": 6, "eval": {"every": 2}, "train": {"device": "cpu"}, "topology": {"graph": "path", "n": 3}}
    plan = compose.plan(load_experiment(experiment))
    run = run_local(experiment, tmp_path / "run", report=False)
    folders = [tmp_path / "run" / "peers" / name for name in ("02", "00", "01")]
    collected = collect_peers(plan, folders, tmp_path / "collected")
    assert collected.digest == run.digest is not None
    assert collected.accuracy == run.accuracy
    assert collected.summary["bytes_sent"] == run.summary["bytes_sent"]
    assert measured_by_peers(collected) == measured_by_peers(run) and len(measured_by_peers(run)) == 4


def measured_by_peers(run: Run) -> list[tuple[int, float, float | None]]:
    rows = [(row.round, row.score_mean_peer, row.score_worst_peer) for row in run.network()]
    return [(round, mean, worst) for round, mean, worst in rows if mean is not None]


def averaging(rounds: int = 300) -> dict[str, Any]:
    patient = {"least_deadline": 60.0}  # no round goes on without a peer that a loaded machine lets wait
    graph = {"graph": "ring", "n": 4}
    return {"rounds": rounds, "task": {"kind": "averaging"}, "topology": graph, "algorithm": patient}


def rounds_and_peers(run: Run) -> list[tuple[int, int]]:
    return [(row.round, row.peers) for row in run.network()]


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_local(averaging(), tmp_path_factory.mktemp("long") / "run", report=False)


def folders_of(run: Run, into: Path) -> list[Path]:
    """Copies of the peers' folders, for a test to change."""
    assert run.directory
    shutil.copytree(run.directory / "peers", into)
    return sorted(into.iterdir())


def collected(run: Run, folders: list[Path], out: Path) -> Run:
    return collect_peers(compose.plan(load_experiment(averaging())), folders, out)


def dies(folder: Path, at_round: int) -> None:
    """Make the folder that of a peer that was killed."""
    for name in ("ended.json", "vector.safetensors"):
        (folder / name).unlink()
    shutil.rmtree(folder / "model")
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:at_round]))


def says(folder: Path, status: str, **more: object) -> None:
    ended = json.loads((folder / "ended.json").read_text())
    (folder / "ended.json").write_text(json.dumps({**ended, "status": status, **more}))


def test_every_driver_writes_a_row_per_round_of_all_peers(long_run: Run, tmp_path: Path) -> None:
    expected = [(round, 4) for round in range(301)]
    assert rounds_and_peers(long_run) == expected
    assert rounds_and_peers(collected(long_run, folders_of(long_run, tmp_path / "peers"), tmp_path / "out")) == expected
    assert rounds_and_peers(simulate(averaging())) == expected


def test_rows_of_a_peer_that_died_end_and_the_rounds_go_on_without_it(long_run: Run, tmp_path: Path) -> None:
    folders = folders_of(long_run, tmp_path / "peers")
    dies(folders[2], at_round=100)
    run = collected(long_run, folders, tmp_path / "out")
    assert rounds_and_peers(run) == [(round, 4 if round <= 100 else 3) for round in range(301)]
    told = [(row.round, row.value) for row in run.rows if isinstance(row, EventRow) and row.name == "died"]
    assert told == [(100, {"exit_code": None})]  # after the last round that it has told of


def test_a_run_that_a_peer_did_not_finish_is_partial_and_whole(long_run: Run, tmp_path: Path) -> None:
    folders = folders_of(long_run, tmp_path / "peers")
    dies(folders[2], at_round=100)
    run = collected(long_run, folders, tmp_path / "out")
    assert run.summary["status"] == "partial" and run.digest is None
    assert [vector is None for vector in run.vectors] == [False, False, True, False]
    assert not (tmp_path / "out" / "INCOMPLETE").exists()


def test_a_run_that_all_peers_stopped_is_interrupted(long_run: Run, tmp_path: Path) -> None:
    folders = folders_of(long_run, tmp_path / "peers")
    for folder in folders:
        says(folder, "interrupted")
    assert collected(long_run, folders, tmp_path / "out").summary["status"] == "interrupted"
    assert (tmp_path / "out" / "INCOMPLETE").exists()


def test_collect_ends_with_the_error_of_a_peer_that_failed(long_run: Run, tmp_path: Path) -> None:
    folders = folders_of(long_run, tmp_path / "peers")
    says(folders[1], "failed", message="node 1, round 3: no more", exit_code=5)
    with pytest.raises(FedgossipError, match="no more") as raised:
        collected(long_run, folders, tmp_path / "out")
    assert raised.value.exit_code == 5
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "failed"
    assert (tmp_path / "out" / "INCOMPLETE").exists()


@pytest.mark.parametrize("killed", [False, True])
def test_peers_without_a_round_are_no_run_to_collect(long_run: Run, tmp_path: Path, killed: bool) -> None:
    folders = folders_of(long_run, tmp_path / "peers")
    for folder in folders:
        (folder / "metrics.jsonl").write_bytes(b"")
        says(folder, "interrupted", rounds=0)
        if killed:
            (folder / "ended.json").unlink()
    with pytest.raises(NetworkError, match="no peer has finished its first round") as error:
        collected(long_run, folders, tmp_path / "out")
    assert error.value.exit_code == 3 and "--resume" in error.value.advice
    assert not (tmp_path / "out").exists()


def test_how_long_the_peers_took_in_all_is_not_known_afterwards(long_run: Run, tmp_path: Path) -> None:
    run = collected(long_run, folders_of(long_run, tmp_path / "peers"), tmp_path / "out")
    assert run.summary["wall_seconds"] is None
    assert dict(facts(run.summary))["time"] == f"{run.summary['seconds']:.2f} s wall-clock, of the rounds"


@pytest.mark.parametrize(
    ("peers", "status"),
    [
        (["finished", "finished"], "finished"),
        (["finished", None], "partial"),
        (["finished", "interrupted"], "partial"),
        (["interrupted", None], "interrupted"),
        (["finished", "failed"], "failed"),
        ([None, None], "failed"),
    ],
)
def test_the_verdict_on_a_run(peers: list[str | None], status: str) -> None:
    plan = compose.plan(load_experiment({"topology": {"graph": "path", "n": len(peers)}}))
    assert plan.verdict(peers) == status


def test_a_folder_too_few_is_named(tmp_path: Path) -> None:
    experiment = {"rounds": 2, "task": {"kind": "averaging"}, "topology": {"graph": "path", "n": 3}}
    plan = compose.plan(load_experiment(experiment))
    run_local(experiment, tmp_path / "run", report=False)
    with pytest.raises(ConfigError, match=r"no folder of peers \[1\]"):
        collect_peers(plan, [tmp_path / "run" / "peers" / name for name in ("00", "02")], tmp_path / "out")


def test_folders_of_another_model_are_refused_in_words_that_an_experiment_file_has(tmp_path: Path) -> None:
    experiment = averaging(2)
    run = run_local(experiment, tmp_path / "run", report=False)
    plan = compose.plan(load_experiment({**experiment, "task": {"kind": "averaging", "dim": 7}}))
    with pytest.raises(ConfigError, match="its columns, classes or sizes are not those of this experiment"):
        collect_peers(plan, folders_of(run, tmp_path / "peers"), tmp_path / "out")


def test_collect_without_the_experiment_says_that_it_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("p0", "p1"):
        (tmp_path / name).mkdir()
    said = in_process(["collect", "p0", "p1"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and "EXPERIMENT" in said.err and "first" in said.err, said


def test_collect_gives_the_exit_codes_of_run(
    long_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = folders_of(long_run, tmp_path / "peers")
    for folder in folders:
        says(folder, "interrupted")
    assert long_run.directory
    file = str(long_run.directory / "experiment.toml")
    words = ["collect", file, *map(str, folders)]
    assert in_process([*words, "--out", "a"], tmp_path, monkeypatch, capsys).code == 130
    says(folders[1], "failed", message="no more", exit_code=5)
    assert in_process([*words, "--out", "b"], tmp_path, monkeypatch, capsys).code == 5


def test_the_summary_names_the_processors_that_learned_and_not_the_one_that_collects(long_run, tmp_path) -> None:
    folders = folders_of(long_run, tmp_path / "peers")
    for folder, name in zip(folders, ("Zuse Z4", "Zuse Z4", "", "MANIAC I"), strict=True):
        says(folder, "finished", processor=name, kernels="portable" if name else "")
    summary = collected(long_run, folders, tmp_path / "out").summary
    assert (summary["processor"], summary["kernels"]) == ("MANIAC I; Zuse Z4", "portable")


def test_events_of_a_life_before_are_kept_and_not_shown_again(tmp_path: Path) -> None:
    seen: list[Row] = []
    keeper = Keeper(None, seen.append)
    record = SimpleNamespace(
        remember=lambda rows: None, started=lambda vectors: [], counted=(), aside=lambda row: [row]
    )
    collector = Collector([tmp_path], cast(Network, record), keeper)
    with RowWriter(tmp_path / "metrics.jsonl") as writer:
        writer.write(before := EventRow(3, 0, "gone", 1))
        collector.begin(cast(Prepared, SimpleNamespace(later=(), round=0)), (), list)
        writer.write(now := EventRow(4, 0, "joined", 1))
    assert collector.read()
    assert keeper.rows == [before, now] and keeper.events == {"gone": 1, "joined": 1}
    assert seen == [now]


def test_events_and_bytes_are_counted_over_all_lives_of_a_peer(long_run: Run, tmp_path: Path) -> None:
    folders = folders_of(long_run, tmp_path / "peers")
    before = life_totals_in(folders[0])
    assert before and before.payload[1] == long_run.summary["busiest"]["link_bytes"]
    before.with_life({"late": 7}, {1: 5}).write(folders[0])
    collected = collect_peers(compose.plan(load_experiment(averaging())), folders, tmp_path / "collected")
    assert collected.summary["events"]["late"] == before.counts.get("late", 0) + 7
    assert collected.summary["busiest"]["link"] == [0, 1]
    assert collected.summary["busiest"]["link_bytes"] == before.payload[1] + 5


def test_counts_that_are_none_are_refused(long_run: Run, tmp_path: Path) -> None:
    folders = folders_of(long_run, tmp_path / "peers")
    (folders[0] / "counts.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"counts\.json: cannot be read"):
        collect_peers(compose.plan(load_experiment(averaging())), folders, tmp_path / "collected")


def test_what_a_participant_reported_before_its_disk_was_full_is_the_error_of_its_run() -> None:
    """It left no last words: `peer_files.try_to_report`."""
    reported = {"text": "rounds/000001.transcript: not written: No space left on device", "advice": "Make room."}
    rows = [EventRow(0, 1, "gone", 2), EventRow(1, 3, "failed", reported), EventRow(2, 1, "failed", {"text": "late"})]
    error = first_failure([None, None, None], rows)
    assert error is not None and (str(error), error.advice) == (reported["text"], "Make room.")
    assert first_failure([None], rows[:1]) is None
