"""Run directories of an earlier release (`tests/old_runs`, made by `fedgossip run`) still open, and read the same.

gossip: 4 peers in the simulator, one of which crashed and came back.  federated: 5 clients of a secure sum, as
processes; what only their next lives would need was left out.  `tests/stopped_runs`: simulations that Ctrl-C ended in
round 3.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from tests.commands import Output, in_process

FOLDER = Path(__file__).parents[1] / "old_runs"
RUNS = ("federated", "gossip")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of both, for a report is written into the folder of its run."""
    shutil.copytree(FOLDER, tmp_path / "runs")
    return tmp_path


def said(arguments: list[str], old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    told: Output = in_process(arguments, old, monkeypatch, capsys)
    assert told.code == 0, told.err
    return told.out


def test_a_report_of_an_old_run_is_written(
    old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {"gossip": ("4 peers", "Peer 2 exchanged", "ring"), "federated": ("5 clients", "The coordinator")}
    for name, words in expected.items():
        said(["report", f"runs/{name}"], old, monkeypatch, capsys)
        page = (old / "runs" / name / "report.html").read_text()
        assert all(word in page for word in words), name


def test_old_runs_are_compared_on_one_page(
    old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said(["report", "runs/gossip", "runs/federated", "--out", "both.html"], old, monkeypatch, capsys)
    page = (old / "both.html").read_text()
    assert "gossip" in page and "federated" in page


def test_old_runs_are_listed(old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    listed = said(["runs"], old, monkeypatch, capsys).splitlines()
    assert " ".join(listed[0].split()) == "run status members rounds model mean peer worst peer digest"
    assert "5 clients, fedavg, secure" in listed[1] and "c3ed73cbe5cb" in listed[1]
    assert "partial" in listed[2] and "4 peers" in listed[2] and "0.9823" in listed[2]
    found = json.loads(said(["runs", "--json"], old, monkeypatch, capsys))
    assert [(run["status"], run["n"], run["rounds"]) for run in found] == [("finished", 5, 2), ("partial", 4, 6)]


def test_old_runs_are_watched(old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    gossip = said(["watch", "runs/gossip", "--once"], old, monkeypatch, capsys)
    assert "ring · 4 peers" in gossip and "round 6 of 6" in gossip and "missed by 1, 3" in gossip
    federated = said(["watch", "runs/federated", "--once"], old, monkeypatch, capsys)
    assert "fedavg, secure sum · 5 clients" in federated and "round 2 of 2" in federated
    assert "5 contributions in the last round" in federated


def test_one_folder_of_an_old_run_is_watched(
    old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = said(["watch", "runs/federated/peers/05", "--once"], old, monkeypatch, capsys)
    assert "coordinator  done" in shown


def test_logs_and_transcripts_of_an_old_run_are_verified(
    old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["audit", "verify", "--endpoints", "runs/federated/endpoints.toml", "runs/federated"]
    lines = said(arguments, old, monkeypatch, capsys).splitlines()
    assert len(lines) == 8 and all("sound" in line for line in lines)
    assert sum("log of client" in line for line in lines) == 5 and sum("log of coordinator 5" in line for line in lines)


STOPPED = json.loads((FOLDER.with_name("stopped_runs") / "digests.json").read_text())
"""The digests of undisturbed runs, by the release that wrote the images."""


@pytest.mark.parametrize("name", sorted(STOPPED))
def test_a_simulation_that_an_earlier_release_stopped_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    shutil.copytree(FOLDER.with_name("stopped_runs") / name, tmp_path / name)
    plan = compose.plan(load_experiment(tmp_path / name / "experiment.toml"))
    run = simulate_plan(plan, engine="sim", out=tmp_path / name, resume=True)
    assert (run.digest, run.summary["status"]) == (STOPPED[name], "finished")
