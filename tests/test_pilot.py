"""Every command and file that docs/coordinator.md shows, typed in its order, by a coordinator and its clients."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import COMMAND, finish, free_ports, in_process
from pages import Block, blocks, page, typed
from safetensors.numpy import load_file
from sklearn.datasets import load_breast_cancer

import fedgossip
from fedgossip.plans import compose
from fedgossip.plans.privacy_outlook import outlook
from fedgossip.privacy.guarantee import guarantee, meaning
from fedgossip.privacy.wording import lines
from fedgossip.records import PeerRow

pytestmark = pytest.mark.sockets

CLIENTS = 5
SECONDS = 400
COORDINATOR = page("coordinator")


class Pilot:
    """One person at a desk, and six machines, each with a folder of its own.

    Notes before a block: `each client`, `the coordinator`, and `both`, which is typed where all folders have been
    brought together.  A coordinator that serves is left running until the clients have ended.
    """

    def __init__(self, desk: Path) -> None:
        self.desk = desk
        self.machines = [desk / f"machine{node}" for node in range(CLIENTS + 1)]
        (self.port,) = free_ports(1)
        self.keys: list[str] = []
        self.hub: subprocess.Popen[str] | None = None

    def follow(self, block: Block) -> None:
        if block.note.startswith("file: "):
            (self.desk / block.note.removeprefix("file: ")).write_text(block.text)
            fedgossip.load_experiment(self.desk / block.note.removeprefix("file: "))
        elif block.kind == "sh":
            for line in block.text.splitlines():
                self._follow(block.note, line.replace("192.168.1.10:5700", f"127.0.0.1:{self.port}"))

    def _follow(self, who: str, line: str) -> None:
        match who:
            case "each client":
                clients = range(CLIENTS)
                texts = [line.replace("--id 0", f"--id {node}").replace("site0", f"site{node}") for node in clients]
                if line.startswith("fedgossip client"):
                    self._serve([self._started(texts[node], node) for node in clients])
                else:
                    for node in clients:
                        self._typed(texts[node], node)
            case "the coordinator" if line.startswith("fedgossip coordinator"):
                self.hub = self._started(line, CLIENTS)
            case "the coordinator":
                self._typed(line, CLIENTS)
            case "both":
                self._brought_together()
                typed(line)
            case _:
                typed(line)

    def _typed(self, line: str, machine: int) -> None:
        """Run it in this process, which has torch loaded already; a key that it prints goes to everybody."""
        with contextlib.chdir(self._folder(machine)), contextlib.redirect_stdout(io.StringIO()) as said:
            typed(line)
        if " keys new " in line:
            self.keys.append(said.getvalue())

    def _folder(self, machine: int) -> Path:
        folder = self.machines[machine]
        if not folder.exists():
            folder.mkdir()
            shutil.copy(self.desk / "pilot.toml", folder)
        if len(self.keys) == CLIENTS + 1:
            (folder / "endpoints.toml").write_text("\n".join(self.keys))
        return folder

    def _started(self, line: str, machine: int) -> subprocess.Popen[str]:
        folder = self._folder(machine)
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*COMMAND, *line.split()[1:]], cwd=folder, text=True, **pipes)

    def _serve(self, clients: list[subprocess.Popen[str]]) -> None:
        assert self.hub, "clients without a coordinator"
        ended = [finish(process, SECONDS) for process in (*clients, self.hub)]
        assert [one.code for one in ended] == [0] * len(ended), "\n".join(one.err for one in ended)

    def _brought_together(self) -> None:
        for machine in self.machines:
            for one in (*machine.glob("hub"), *machine.glob("site?"), machine / "endpoints.toml"):
                if not (self.desk / one.name).exists():
                    (shutil.copytree if one.is_dir() else shutil.copy)(one, self.desk / one.name)


def sites(folder: Path) -> None:
    """Write each site's records, and a common test file, as `own.toml` names them: as they were measured."""
    data = load_breast_cancer()
    x = data.data
    table = np.column_stack([x, data.target])
    header = ",".join([*(name.replace(" ", "_") for name in data.feature_names), "outcome"])
    names = ["test", *(f"site-{site}" for site in range(CLIENTS))]
    for name, part in zip(names, np.array_split(np.random.default_rng(1).permutation(table), len(names)), strict=True):
        kinds = ["%.5g"] * x.shape[1] + ["%d"]
        np.savetxt(folder / f"{name}.csv", part, kinds, delimiter=",", header=header, comments="")


@pytest.mark.timeout(600)  # it bounds a hang of many commands
@pytest.mark.long  # 50 CPU s; tests/test_shown_commands.py reads its commands
def test_everything_that_the_pilot_s_guide_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sites(tmp_path)
    pilot = Pilot(tmp_path)
    for block in blocks(COORDINATOR):
        pilot.follow(block)
    for folder in ("rehearsal", "processes"):
        told = json.loads((tmp_path / folder / "summary.json").read_text())
        assert told["status"] == "finished" and 0 < told["epsilon"] <= 4
    hub = tmp_path / "hub"
    folders = [hub, *tmp_path.glob("site?")]
    models = {tuple(load_file(path / "model" / "weights.safetensors")["layer1.bias"].tolist()) for path in folders}
    assert len(folders) == CLIENTS + 1 and len(models) == 1
    assert (tmp_path / "site0.csv").exists()


def test_sites_with_files_of_their_own_learn_what_all_of_them_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = (block.text for block in blocks(COORDINATOR) if block.note == "file: own.toml")
    (tmp_path / "own.toml").write_text(text)
    sites(tmp_path)
    assert in_process(["data", "agree", "own.toml"], tmp_path, monkeypatch, capsys).code == 0
    assert fedgossip.simulate(tmp_path / "own.toml", overrides=["train.device=cpu"]).accuracy["averaged"] > 0.93


# --- what the guide promises ------------------------------------------------------------------------------------------


def pilot_file(folder: Path) -> Path:
    (text,) = (block.text for block in blocks(COORDINATOR) if block.note == "file: pilot.toml")
    (folder / "pilot.toml").write_text(text)
    return folder / "pilot.toml"


@pytest.mark.parametrize("site", [0, 2])
def test_the_pilot_goes_on_without_one_of_its_sites(tmp_path: Path, site: int) -> None:
    """It asked for five of five, and ended with the first crash; client 2 has the fewest examples."""
    experiment = fedgossip.load_experiment(pilot_file(tmp_path), ["coordinator.deadline=20", "rounds=6"])
    crash = {"kind": "crash", "peers": [site], "start": 0.2}
    run = fedgossip.simulate({**experiment.to_dict(), "faults": [crash]})
    aggregated = [row.clients for row in run.rows if isinstance(row, PeerRow) and row.peer == CLIENTS]
    assert run.summary["status"] == "partial" and len(aggregated) == 6
    assert aggregated[0] == CLIENTS and aggregated[-3:] == [CLIENTS - 1] * 3
    assert run.accuracy["averaged"] > 0.85


def test_the_guide_says_of_the_pilot_s_epsilon_what_plan_head_summary_and_report_say(tmp_path: Path) -> None:
    told = " ".join(COORDINATOR.read_text().split())
    plan = compose.plan(fedgossip.load_experiment(pilot_file(tmp_path)))
    found = outlook(plan)
    verdict, said = guarantee(found.epsilon), meaning(found.epsilon, "record")
    assert f"epsilon {found.epsilon:.1f} for a record of the smallest site, {said[0].lower()}{said[1:]}" in told
    assert all(line in told for line in plan.banner)
    assert plan.banner[-1].endswith(f": {guarantee(4.0)}")
    assert said in dict(lines(found))["epsilon"]
    run = fedgossip.simulate(pilot_file(tmp_path), out=tmp_path / "run", report=True)
    assert run.summary["privacy"]["guarantee"] == verdict
    assert run.summary["epsilon"] == pytest.approx(found.epsilon)
    report = (tmp_path / "run" / "report.html").read_text()
    assert verdict in report and meaning(run.summary["epsilon"], "record") in report
