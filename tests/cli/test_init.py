"""`fedgossip init`: every template runs from its own folder, as its README says."""

from __future__ import annotations

import json
import runpy
import shlex
from pathlib import Path

import pytest

from fedgossip.cli.init import TEMPLATES
from tests.commands import in_process

LINES = 10
"""Of a README."""


def begun(template: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    said = in_process(["init", template], place, monkeypatch, capsys)
    assert said.code == 0 and f"cd {template}" in said.out, said.err
    return place / template


def commands_of(folder: Path) -> list[list[str]]:
    """The commands that the README shows; those on sockets are tested elsewhere."""
    lines = [line for line in (folder / "README.md").read_text().splitlines() if line.startswith("    ")]
    found = [shlex.split(line, comments=True) for line in lines]
    return [words for words in found if "local" not in words and ("launch" not in words or "--simulate" in words)]


RUNS = (
    ["fedgossip", "run", "experiment.toml"],
    shlex.split("fedgossip launch --experiment experiment.toml --simulate train.py"),
)
"""One of them is what a README begins with."""


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_runs_from_its_own_folder(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begun(template, tmp_path, monkeypatch, capsys)
    monkeypatch.syspath_prepend(str(folder))
    assert len((folder / "README.md").read_text().splitlines()) <= LINES
    commands = commands_of(folder)
    assert any(run in commands for run in RUNS)
    for program, *words in commands:
        if program == "python":
            monkeypatch.chdir(folder)
            runpy.run_path(words[0], run_name="__main__")
            assert "worst peer" in capsys.readouterr().out
            continue
        quick = ["--no-report"] if words[0] in ("run", "launch") else []
        said = in_process([words[0], *quick, *words[1:]], folder, monkeypatch, capsys)
        assert said.code == 0, said.err


@pytest.mark.sockets
@pytest.mark.parametrize("template", ["digits", pytest.param("hospitals", marks=pytest.mark.long)])
def test_a_template_runs_as_processes_with_the_same_digest(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begun(template, tmp_path, monkeypatch, capsys)
    how = ["run", "experiment.toml", "--no-report", "--json", "--set", "rounds=3"]
    told = [in_process([*how, "--on", on], folder, monkeypatch, capsys) for on in ("sim", "local")]
    assert [said.code for said in told] == [0, 0], told[1].err
    one, other = (json.loads(said.out) for said in told)
    assert one["digest"] == other["digest"] and one["score"] == other["score"]


@pytest.mark.sockets
@pytest.mark.long
def test_the_loop_of_a_template_runs_as_processes_with_the_same_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_compiler: None
) -> None:
    folder = begun("own-loop", tmp_path, monkeypatch, capsys)
    how = ["launch", "--no-report", "--json", "--experiment", "experiment.toml", "--set", "topology.n=2"]
    last = ["train.py", "--epochs", "1"]
    told = [in_process([*how, *more, *last], folder, monkeypatch, capsys) for more in (["--simulate"], [])]
    assert [said.code for said in told] == [0, 0], told[1].err
    one, other = (json.loads(said.out) for said in told)
    assert one["digest"] == other["digest"] and one["score"]["name"] == "rmse" == other["score"]["name"]


def test_every_experiment_of_a_template_is_commented() -> None:
    folder = Path(__file__).parents[2] / "fedgossip" / "cli" / "templates"
    assert {path.name for path in folder.iterdir()} == set(TEMPLATES)
    for template in TEMPLATES:
        assert (folder / template / "experiment.toml").read_text().count("#") >= 3


def test_a_template_that_is_not_there_and_a_folder_that_is_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = in_process(["init", "hospital"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and "hospitals" in said.err
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "mine").write_text("kept")
    said = in_process(["init", "csv"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and "not empty" in said.err and (tmp_path / "csv" / "mine").read_text() == "kept"
    assert in_process(["init", "csv", "other"], tmp_path, monkeypatch, capsys).code == 0
    assert (tmp_path / "other" / "machines.csv").exists()
    assert "cd 'a table'  and" in in_process(["init", "csv", "a table"], tmp_path, monkeypatch, capsys).out
