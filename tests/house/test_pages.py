"""Every command, file and snippet that a page of docs/ shows really works, in the order in which it is read.

Most pages in the long form; tests/cli/test_shown_commands.py reads every command of all, always.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pages import MACHINES, ROOT, Reader, blocks, page

import fedgossip

FOLLOWED = ("SKILL", "experiments", "graphs", "faults", "machines", "parallel")
FOLLOWED += ("sweeps", "topologies", "advise", "codecs", "outer", "convex", "personal", "unlike", "coming-from")
ELSEWHERE = {
    "coordinator": "tests/sites/test_pilot.py",
    "edge": "tests/lab/test_edge.py",
    "for-boards": "tests/sites/test_pilot.py",
    "glm": "tests/sites/test_glm.py",
    "journeys": "tests/house/test_journeys.py",
    "judging": "tests/sites/test_evaluation.py",
    "paradigms": "tests/lab/test_compare.py",
    "repro": "tests/lab/test_repro.py",
    "statistics": "tests/sites/test_families.py",
    "survival": "tests/sites/test_cox.py",
    "tables": "tests/data/test_declared_tables.py",
    "tasks": "tests/data/test_objectives.py",
    "trees": "tests/sites/test_trees.py",
    "trackers": "tests/runs/test_trackers.py",
    "using": "tests/learning/test_used_models.py",
}
"""Pages whose blocks other tests run."""

pytestmark = [pytest.mark.sockets, pytest.mark.anywhere, pytest.mark.timeout(600)]  # it bounds a hang of many commands


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.chdir(tmp_path)
    return Reader(tmp_path)


def summaries(reader: Reader) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in reader.folder.rglob("summary.json")]


@pytest.mark.long
def test_what_the_page_on_experiments_shows_runs(reader: Reader) -> None:
    reader.read(page("experiments"))
    runs = [run for run in summaries(reader) if run["name"] == "first" and run["rounds"] == 20]
    first = {run["driver"]: run["digest"] for run in runs if run["seed"] == 1}
    assert {"sim", "local", "stacked"} <= set(first)
    assert (reader.folder / "both.html").exists()


@pytest.mark.long
def test_what_the_page_on_graphs_shows_runs(reader: Reader) -> None:
    reader.read(page("graphs"))
    assert (reader.folder / "karate.svg").exists()


@pytest.mark.long
def test_what_the_page_on_topologies_shows_runs(reader: Reader) -> None:
    reader.read(page("topologies"))
    assert "stl-fw" in (reader.folder / "learned.toml").read_text()


@pytest.mark.long
def test_what_the_page_on_fewer_bytes_shows_runs(reader: Reader) -> None:
    reader.read(page("codecs"))
    runs = [run for run in summaries(reader) if run.get("codec") == "top-k:0.01" and run["rounds"] == 20]
    assert {run["name"] for run in runs} == {"ring", "mapreduce", "parameter-server"}
    rings = [run["digest"] for run in runs if run["name"] == "ring"]
    assert len(rings) == 2 and len(set(rings)) == 1


@pytest.mark.long
def test_what_the_page_on_outer_steps_shows_runs(reader: Reader) -> None:
    reader.read(page("outer"))
    runs = [run for run in summaries(reader) if run["algorithm"] == "ring" and "codec" not in run]
    assert {run["driver"] for run in runs} == {"sim", "local", "stacked"}
    for rounds in (20, 80):  # of whole models, and of fragments
        found = {run["digest"] for run in runs if run["rounds"] == rounds}
        assert len(found) == 2, "with a mean that comes late, and without"


@pytest.mark.long
def test_what_the_page_on_certified_models_shows_runs(reader: Reader) -> None:
    reader.read(page("convex"))
    runs = summaries(reader)
    assert {run["driver"] for run in runs} == {"sim", "local", "stacked"} and len({run["digest"] for run in runs}) == 1
    assert {run["rounds"] for run in runs} == {24}


@pytest.mark.long
def test_what_the_page_on_personal_models_shows_runs(reader: Reader) -> None:
    reader.read(page("personal"))
    runs = summaries(reader)
    assert {run["driver"] for run in runs} == {"sim", "stacked"} and len({run["digest"] for run in runs}) == 2


@pytest.mark.long
def test_what_the_page_on_unlike_models_shows_runs(reader: Reader) -> None:
    reader.read(page("unlike"))
    feddf, fedmd = ({run["digest"] for run in summaries(reader) if run["algorithm"] == of} for of in ("feddf", "fedmd"))
    assert len(feddf) == len(fedmd) == 1 and feddf != fedmd
    assert all(run["personal"]["behind_alone"] == 0 for run in summaries(reader))


def test_what_the_page_on_faults_shows_runs(reader: Reader) -> None:
    reader.read(page("faults"))


@pytest.mark.long
def test_what_the_page_on_machines_shows_runs(reader: Reader) -> None:
    reader.read(page("machines"))
    (lan,) = (run for run in summaries(reader) if run["graph"] == "ring" and run["n"] == MACHINES)
    assert lan["digest"] == fedgossip.simulate(reader.folder / "lan.toml").digest


@pytest.mark.long
def test_what_the_page_on_workers_shows_runs(reader: Reader) -> None:
    reader.read(page("parallel"))
    for method in ("ring", "parameter-server"):
        digests = Counter(run["digest"] for run in summaries(reader) if run["algorithm"] == method)
        assert max(digests.values()) >= 3, "simulated, on arrays and as processes"  # the other one is of a table


@pytest.mark.long
def test_what_the_page_on_sweeps_shows_runs(reader: Reader) -> None:
    reader.read(page("sweeps"))
    assert (reader.folder / "sweeps" / "graphs" / "sweep.html").exists()
    assert (reader.folder / "figures" / "heat.pdf").exists()


@pytest.mark.long
def test_what_the_page_on_advice_shows_runs(reader: Reader) -> None:
    reader.read(page("advise"))


@pytest.mark.long
def test_what_the_page_for_users_of_other_frameworks_shows_runs(reader: Reader) -> None:
    reader.read(page("coming-from"))
    runs = summaries(reader)
    assert len(runs) == 5 and {run["status"] for run in runs} == {"finished"}


@pytest.mark.long
def test_what_the_page_for_coding_agents_shows_runs(reader: Reader) -> None:
    reader.read(page("SKILL"))
    for run in ("loop", "pilot"):
        assert json.loads((reader.folder / run / "summary.json").read_text())["status"] == "finished"
    assert (reader.folder / "pilot/report.html").is_file()


def test_every_page_with_commands_is_read_by_a_test() -> None:
    shown = {path.stem for path in (ROOT / "docs").rglob("*.md") if any(one.kind == "sh" for one in blocks(path))}
    assert shown <= {*FOLLOWED, *ELSEWHERE}


@pytest.mark.parametrize("name", [*FOLLOWED, *ELSEWHERE])
def test_a_block_is_left_out_only_with_a_test_that_runs_it(name: str) -> None:
    for block in blocks(page(name)):
        assert not block.left_out or "tests/" in block.note, f"line {block.line}"
