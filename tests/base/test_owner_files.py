"""What a run writes tells of the data: nobody but its owner can read it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import in_process, typed
from test_coordinator_commands import Site

from fedgossip.base import owner_files
from fedgossip.core.messages import Hello
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.plans.federated.federation import FederationPlan

EXPERIMENT = """
rounds = 4
task = { kind = "averaging", dim = 3 }
topology = { graph = "complete", n = 2 }
"""


@pytest.fixture(autouse=True)
def open_hearted() -> Iterator[None]:
    """The umask of a machine on which files are for everybody, unless somebody thinks of it."""
    before = os.umask(0)
    yield
    os.umask(before)


def check(run: Path) -> set[str]:
    """Fail for what others could read; return the names of the files."""
    names = set()
    for path in (run, *run.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (owner_files.FOLDER if path.is_dir() else owner_files.FILE), f"{path}: {mode:o}"
        names.add(path.name)
    return names


@pytest.mark.sockets
@pytest.mark.parametrize("on", ["sim", "stacked", "local"])
def test_a_run_directory_is_its_owners_alone(on: str, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    more = ["--trace"] if on == "local" else []
    said = typed(["run", "e.toml", "--on", on, "--out", "runs/one", *more], tmp_path)
    assert said.code == 0, said
    names = check(tmp_path / "runs")
    assert {"metrics.jsonl", "experiment.toml", "summary.json", "report.html"} <= names
    assert {"weights.safetensors", "model.json"} <= names
    if on == "local":
        assert {"trace.bin", "checkpoint.safetensors", "ended.json", "log.txt", "snapshots"} <= names


@pytest.mark.sockets
def test_the_folders_of_a_coordinator_and_its_clients_are_their_owners_alone(tmp_path: Path) -> None:
    site = Site.made(tmp_path)
    try:
        ends = [site.coordinator(), *(site.client(node) for node in range(site.clients))]
        assert [site.ended(one) for one in ends] == [0] * 4, site.said(0)
        names = set.union(*(check(tmp_path / f"out{node}") for node in range(4)))
        assert {"audit.jsonl", "metrics.jsonl", "checkpoint.safetensors"} <= names, names
    finally:
        site.stop()


def test_an_image_of_a_simulation_is_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedgossip.drivers.sim_checkpoint.SECONDS", 0.0)
    monkeypatch.setattr("fedgossip.runs.run_directory.WHOLE", frozenset())  # so that images stay where they are
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    in_process(["run", "e.toml", "--out", "run", "--no-report"], tmp_path, monkeypatch, capsys)
    assert "checkpoint.safetensors" in check(tmp_path / "run")


def test_a_folder_that_was_there_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(0o755)
    owner_files.make_folder(tmp_path / "shared" / "a" / "b")
    modes = [stat.S_IMODE((tmp_path / "shared" / name).stat().st_mode) for name in (".", "a", "a/b")]
    assert modes == [0o755, 0o700, 0o700]
    with pytest.raises(FileExistsError):
        owner_files.written(tmp_path / "file", b"")
        owner_files.make_folder(tmp_path / "file")


@pytest.mark.parametrize("content", [{"topology": {"graph": "ring", "n": 3}}, {"coordinator": {"clients": 3}}])
def test_an_experiment_is_told_by_128_bits(content: dict[str, object]) -> None:
    plan = compose.plan(load_experiment(content))
    hello = compose.hello_of(plan, "schema")
    assert isinstance(hello, Hello) and len(bytes.fromhex(hello.experiment)) == 16
    if isinstance(plan, FederationPlan):
        assert len(bytes.fromhex(plan.task_id.removeprefix("fedgossip/"))) == 16
