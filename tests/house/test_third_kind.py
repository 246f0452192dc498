"""A kind of run that fedgossip does not know takes a plan and a line: everything else follows from its roles."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedgossip
from fedgossip.base.errors import ConfigError
from fedgossip.core.records import PeerRow, Row
from fedgossip.drivers import peer_processes
from fedgossip.experiment.reading import RUN_KINDS
from fedgossip.report.page import write_report
from tests.commands import in_process

MODULE = "tests.third_kind"
EXPERIMENT = """
rounds = 3
name = "in shards"
[shards]
workers = 4
[task]
kind = "quadratic"
dim = 5
[simulation]
training = 0.01
"""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The line in the table, while a test runs; and in the processes that it starts.  Another kind was read before."""
    fedgossip.load_experiment({"topology": {"graph": "ring", "n": 3}, "task": {"kind": "averaging"}})
    before = dict(RUN_KINDS)
    importlib.reload(importlib.import_module(MODULE))
    monkeypatch.setattr(peer_processes, "NUMERIC", (*peer_processes.NUMERIC, MODULE))
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    yield
    RUN_KINDS.clear()
    RUN_KINDS.update(before)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "shards.toml"
    path.write_text(EXPERIMENT)
    return path


def members(rows: list[Row]) -> set[int]:
    return {row.peer for row in rows if isinstance(row, PeerRow)}


def test_it_runs_in_the_simulator_with_roles_in_its_summary(experiment: Path) -> None:
    run = fedgossip.simulate(experiment)
    assert run.summary["status"] == "finished" and run.summary["mode"] == "shards"
    told = [(role["name"], role["first"], role["count"]) for role in run.summary["roles"]]
    assert told == [("worker", 0, 4), ("server", 4, 2), ("onlooker", 6, 1)]
    assert members(run.rows) == {0, 1, 2, 3, 4, 5}
    assert [row.peers for row in run.network()] == [2, 4, 4, 4]  # both servers' first models, then all contributions


@pytest.mark.sockets
def test_its_processes_come_to_the_same_digest(experiment: Path, tmp_path: Path) -> None:
    run = fedgossip.run_local(experiment, tmp_path / "run")
    assert run.summary["status"] == "finished"
    assert run.digest == fedgossip.simulate(experiment).digest


def test_report_and_watch_name_its_roles(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fedgossip.simulate(experiment, out=tmp_path / "run")
    page = write_report(tmp_path / "run").read_text()
    assert "4 workers" in page and "2 servers" in page and "server 1" in page and "Who took part" in page
    watched = in_process(["watch", "run", "--once"], tmp_path, monkeypatch, capsys).out
    assert "4 workers, 2 servers, 1 onlooker" in watched and "server 1" in watched and "worker 3" in watched
    listed = in_process(["runs", "."], tmp_path, monkeypatch, capsys).out
    assert "4 workers, 2 servers, 1 onlooker" in listed


def test_it_is_watched_before_it_has_a_summary(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fedgossip.simulate(experiment, out=tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "INCOMPLETE").touch()
    watched = in_process(["watch", "run", "--once"], tmp_path, monkeypatch, capsys).out
    assert "4 workers, 2 servers, 1 onlooker" in watched and "server 0" in watched


def test_the_command_line_runs_it_and_says_who_took_part(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dry = in_process(["run", str(experiment), "--dry-run", "--json"], tmp_path, monkeypatch, capsys)
    assert json.loads(dry.out)["bytes_per_round"] == 2 * 4 * 5 * 4
    said = in_process(["run", str(experiment), "--out", "run", "--no-report"], tmp_path, monkeypatch, capsys)
    assert said.code == 0, said.err
    assert "4 workers, 2 servers, 1 onlooker, fedavg in shards, 3 rounds, simulated" in said.out
    assert "the average of the servers’ models" in said.out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"shards": {"workers": 1}}, "2 servers for 1 workers"),
        ({"shards": {}}, "no workers"),
        ({"shards": {"workers": 2}, "topology": {"graph": "ring", "n": 3}}, "a [topology] and a [shards]"),
        ({"shards": {"workers": 2}, "algorithm": {"name": "dsgd"}}, "[algorithm] is a section of other runs"),
        ({"shards": {"worker": 2}}, "unknown key 'shards.worker'"),
        ({}, "and no [shards]"),
    ],
)
def test_its_section_is_checked_like_any_other(content: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        fedgossip.load_experiment(content)
    assert words in str(refused.value)


def test_one_server_leads_and_its_page_speaks_of_workers(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fedgossip.simulate(experiment, overrides=["shards.servers=1"], out=tmp_path / "run", report=True)
    page = (tmp_path / "run" / "report.html").read_text()
    shown = re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL)
    assert "The server" in shown and "all 4 workers" in shown
    assert "client" not in shown and "coordinator" not in shown
    watched = in_process(["watch", "run", "--once"], tmp_path, monkeypatch, capsys).out.splitlines()
    assert "disagreement" not in watched[2]
    assert next(line for line in watched if line.startswith("onlooker")).split()[1] == "done"
    assert "IN THE CLEAR" not in in_process(["runs", "."], tmp_path, monkeypatch, capsys).out
    assert run.summary["digest"]


@pytest.mark.parametrize(
    "told",
    [
        "{",
        '{"name": "it", "roles": [{"name": "worker", "count": 1000000000000}]}',
        '{"name": "\\u001b[2J", "roles": [{"name": "\\u001b[2J", "count": 3}]}',
        '{"roles": {}}',
    ],
)
def test_a_crafted_file_of_roles_costs_words_alone(
    told: str, experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fedgossip.simulate(experiment, out=tmp_path / "run")
    (tmp_path / "run" / "roles.json").write_text(told)
    watched = in_process(["watch", "run", "--once"], tmp_path, monkeypatch, capsys)
    assert watched.code == 0 and "round 3 of 3" in watched.out
    assert "\x1b[2J" not in watched.out
