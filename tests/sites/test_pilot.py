"""Every command and file that docs/together/coordinator.md shows, typed in its order, by a coordinator and its
clients.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from commands import COMMAND, Output, finish, free_ports, in_process, wait_until
from pages import Block, blocks, page, typed
from safetensors.numpy import load_file
from sklearn.datasets import load_breast_cancer

import fedgossip
from fedgossip.audit.verify import verify_log
from fedgossip.core.records import PeerRow, read_rows
from fedgossip.core.run_format import APPROVAL, PLAN
from fedgossip.data.record_groups import source_digest
from fedgossip.net.endpoints import load_blocks
from fedgossip.plans import compose
from fedgossip.plans.approvals import plan_statement
from fedgossip.plans.approvals.approvals import read_signed
from fedgossip.plans.federated.ledger import data_of, read_releases
from fedgossip.plans.federated.privacy_budget import outlook
from fedgossip.privacy.accounting import guarantee, meaning
from fedgossip.privacy.forecast import lines
from fedgossip.sites.releases.checking import check

pytestmark = pytest.mark.sockets

CLIENTS = 5
SECONDS = 400
COORDINATOR, BOARDS = page("coordinator"), page("for-boards")
SERVING = ("fedgossip client ", "fedgossip coordinator ", "fedgossip data agree ", "fedgossip evaluate ")
"""Commands of which all machines type theirs, and which end together."""


class Pilot:
    """One person at a desk, and six machines, each with a folder of its own.

    Notes before a block: `each client`, `the coordinator`, and `both`, which is typed where all folders have been
    brought together.  A coordinator that serves is left running until the clients have ended.
    """

    common: Sequence[str] = ("pilot.toml",)
    """The files that all machines have."""

    def __init__(self, desk: Path) -> None:
        self.desk = desk
        self.machines = [desk / f"machine{node}" for node in range(CLIENTS + 1)]
        (self.port,) = free_ports(1)
        self.keys: list[str] = []
        self.hub: subprocess.Popen[str] | None = None

    def follow(self, block: Block) -> None:
        if block.note.startswith("file: "):
            path = self.desk / block.note.removeprefix("file: ")
            path.write_text(block.text)
            if path.suffix == ".toml":
                fedgossip.load_experiment(path)
        elif block.kind == "sh" and not block.left_out:
            for line in block.text.splitlines():
                self._follow(block.note, line.replace("192.168.1.10:5700", f"127.0.0.1:{self.port}"))

    def _follow(self, who: str, line: str) -> None:
        match who:
            case "each client":
                clients = range(CLIENTS)
                texts = [line.replace("--id 0", f"--id {node}").replace("site0", f"site{node}") for node in clients]
                if line.startswith(SERVING) and not line.endswith("--dry-run"):
                    self._serve([self._started(texts[node], node) for node in clients])
                else:
                    for node in clients:
                        self._typed(texts[node], node)
            case "the coordinator" if line.startswith(SERVING):
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
            for name in (*self.common, *(one.name for one in self.desk.glob(f"site-{machine}.csv"))):
                shutil.copy(self.desk / name, folder)
        if len(self.keys) == CLIENTS + 1:
            (folder / "endpoints.toml").write_text("\n".join(self.keys))
        return folder

    def _started(self, line: str, machine: int) -> subprocess.Popen[str]:
        folder = self._folder(machine)
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*COMMAND, *shlex.split(line)[1:]], cwd=folder, text=True, **pipes)

    def _serve(self, clients: list[subprocess.Popen[str]]) -> None:
        assert self.hub, "clients without a coordinator"
        ended = [finish(process, SECONDS) for process in (*clients, self.hub)]
        assert [one.code for one in ended] == [0] * len(ended), "\n".join(one.err for one in ended)

    brought: Sequence[str] = ("hub", "site?", "endpoints.toml")

    def _brought_together(self) -> None:
        for machine in self.machines:
            for one in (path for name in self.brought for path in machine.glob(name)):
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
@pytest.mark.long  # 50 CPU s; tests/cli/test_shown_commands.py reads its commands
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


# --- a board reads, signs, and its site takes part --------------------------------------------------------------------


def patients(folder: Path) -> None:
    """Write invented records of five sites, and common ones; the page shows what is printed of these."""
    draw = np.random.default_rng(5)
    for name in ("common", *(f"site-{site}" for site in range(CLIENTS))):
        age, pressure = draw.integers(30, 95, 600), draw.normal(135, 18, 600).clip(60, 240).round()
        marker = draw.gamma(3, 2.5, 600).clip(0, 50).round(1)
        likely = 1 / (1 + np.exp(-((age - 62) / 9 + (pressure - 135) / 20 + (marker - 7.5) / 3)))
        back = (draw.random(600) < likely).astype(int)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["age [years]", "pressure [mmHg]", "marker [ng/ml]", "readmitted"])
            table.writerows(zip(age, pressure, marker, back, strict=True))


ROUNDS = 40


def board_file(folder: Path, rounds: int = 10) -> None:
    (text,) = (block.text for block in blocks(BOARDS) if block.note == "file: board.toml")
    (folder / "board.toml").write_text(text.replace("rounds = 10", f"rounds = {rounds}"))


def unnamed(text: str) -> str:
    """Return what is printed without hashes, which name the version and the platform's digits too."""
    return re.sub(r"\b[0-9a-f]{8,64}\b|\b\d{5}( \d{5}){7}\b", "#", text).strip()


def test_the_page_for_boards_shows_what_the_tool_prints(tmp_path: Path) -> None:
    """The plan, line by line, and every number that the words about it name."""
    patients(tmp_path)
    board_file(tmp_path)
    assert commands.typed(["data", "agree", "board.toml"], tmp_path).code == 0
    (tmp_path / "agreed.json").rename(tmp_path / "kept")
    shown = commands.typed(["plan", "show", "board.toml"], tmp_path)
    (tmp_path / "kept").rename(tmp_path / "agreed.json")
    assert shown == commands.typed(["plan", "show", "board.toml"], tmp_path), (
        "before the sites have agreed and afterwards"
    )
    (printed,) = (block.text for block in blocks(BOARDS) if block.note == "plan")
    assert unnamed(shown.out) == unnamed(printed)
    told = " ".join(BOARDS.read_text().split())
    plan = compose.plan(fedgossip.load_experiment(tmp_path / "board.toml"))
    p = plan.experiment.budget
    assert p and f"improve the odds by a factor of at most {meaning(p.max_epsilon, 'record').split()[-2]}, and" in told
    assert f"and {p.max_epsilon:g} is the epsilon for that number" in told and f"The delta, {p.delta:g}, is" in told
    spent = "agreed.json.spent"
    ledger = plan_spent(tmp_path / spent, plan)
    assert ledger.total == outlook(plan, 0).total, "with the statistics, before and after they were made"
    assert f"{ledger.epsilon:.3g} for the training, and {ledger.total:.3g} together with the agreed averages" in told
    assert f"fewer than {plan.least} sites" in told and f"if at least {plan.least} remain" in told  # type: ignore[attr-defined]
    lines = [(tmp_path / f"site-{site}.csv").read_text().splitlines() for site in range(CLIENTS)]
    records = sum(map(len, lines)) - CLIENTS
    counted = json.loads((tmp_path / "agreed.json").read_text())["records"]
    assert f"it counts {counted} records, and there are {records}" in told
    assert f"begins under the approval after 90 days, or when its {plan.experiment.rounds} rounds are used up" in told
    assert "--days 90" in told and "--max-epsilon-total 5" in told and "above 5 in all" in told


def plan_spent(ledger: Path, plan: Any) -> Any:
    """Return what site 0's rounds cost, alone and with what its ledger holds."""
    own = plan.experiment.data.source.replace("{peer}", "0")
    return outlook(
        plan,
        0,
        read_releases(ledger, "record", data_of(plan.experiment.data.source, 0), source_digest(own)),
        agreed=True,
    )


@dataclass(frozen=True)
class Waited:
    """How long a person waits for a command, each a process of its own, on average over the sites; the processor's
    part of it, over all processes that took part at once, is what does not depend on who else is at the machine."""

    line: str
    seconds: float
    processor: float

    def __str__(self) -> str:
        return f"{self.seconds:5.1f} s, {self.processor:4.1f} s of processors  {self.line[:90]}"


class Board(Pilot):
    """Five sites that sign what they have read; of the training one crashes and comes back, and one leaves for good."""

    common = ("board.toml", "common.csv")
    brought = ("hub", "site?", "endpoints.toml", "agreed.json")
    left = 2

    def __init__(self, desk: Path) -> None:
        super().__init__(desk)
        self.waited: list[Waited] = []
        self.said: dict[str, Output] = {}

    def _follow(self, who: str, line: str) -> None:
        if " --model " in line:
            self._model_for_who_left()
        more = ("--model", "hub") if " --model " in line else ()
        line = re.sub(r"(--plan) [0-9a-f]{8}\b", lambda found: f"{found[1]} {self.hash_of(*more)}", line)
        begun, before = time.monotonic(), _children()
        if who == "both":
            self._brought_together()
            shutil.copy(self.machines[CLIENTS] / "peer.key", self.desk)
            self.said[line.split()[1]] = self._process(line, self.desk)
        else:
            super()._follow(who, line)
        if not (who == "the coordinator" and line.startswith(SERVING)):
            per = CLIENTS if who == "each client" and not self._serves(line) else 1
            self.waited.append(Waited(line, (time.monotonic() - begun) / per, (_children() - before) / per))

    @staticmethod
    def _serves(line: str) -> bool:
        return line.startswith(SERVING) and not line.endswith("--dry-run")

    def _typed(self, line: str, machine: int) -> None:
        said = self._process(line, self._folder(machine))
        if " keys new " in line:
            self.keys.append(said.out)

    def _process(self, line: str, folder: Path) -> Output:
        said = finish(commands.start(shlex.split(line)[1:], folder), SECONDS)
        assert said.code in ((0, 9) if " collect " in line else (0,)), f"{line}\n{said.err}"
        return said

    def _started(self, line: str, machine: int) -> subprocess.Popen[str]:
        return commands.start(shlex.split(line)[1:], self._folder(machine))

    def _model_for_who_left(self) -> None:
        """The site that has left judges the model too, of which the coordinator gives it a copy."""
        own = self._folder(self.left) / "site2" / "model"
        shutil.copytree(self.machines[CLIENTS] / "hub" / "model", own, dirs_exist_ok=True)

    @property
    def hash(self) -> str:
        return self.hash_of()

    def hash_of(self, *model: str) -> str:
        """The hash that each site has read, which is the same at all."""
        shown = ["plan", "show", "board.toml"]
        found = set()
        for node in range(CLIENTS + 1):
            own = [*model[:1], f"site{node}" if node < CLIENTS else "hub"] if model else []
            found.add(self.says(node, *shown, *own).out.splitlines()[-1])
        (line,) = found
        return line.removeprefix("hash ")

    def says(self, machine: int, *words: str) -> Output:
        return commands.typed(words, self._folder(machine))

    def _serve(self, clients: list[subprocess.Popen[str]]) -> None:
        if "data" in clients[0].args:  # type: ignore[operator]
            super()._serve(clients)
            return
        assert self.hub
        if "evaluate" in clients[0].args:  # type: ignore[operator]
            ended = [finish(one, SECONDS) for one in (*clients, self.hub)]
            assert [one.code for one in ended] == [0] * 6, "\n".join(one.err for one in ended)
            self.said["evaluate"] = ended[0]
            return
        rows = self.machines[CLIENTS] / "hub" / "metrics.jsonl"
        counted = partial(_rounds_in, rows)
        wait_until(lambda: counted() > 3, SECONDS, "some rounds")
        clients[1].kill()
        clients[self.left].send_signal(signal.SIGINT)
        finish(clients[1], SECONDS)
        left = finish(clients[self.left], SECONDS)
        assert left.code == 130 and "To go on:" in left.err, left.err
        again = "fedgossip client board.toml --id 1 --endpoints endpoints.toml --out site1 --resume"
        ended = [finish(one, SECONDS) for one in (clients[0], self._started(again, 1), *clients[3:], self.hub)]
        assert [one.code for one in ended] == [0] * 5, "\n".join(one.err for one in ended)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _rounds_in(rows: Path) -> int:
    return sum(isinstance(row, PeerRow) for row in read_rows(rows)) if rows.exists() else 0


@pytest.mark.timeout(1800)  # it bounds a hang of many commands
@pytest.mark.long  # 250 CPU s; the test above looks at what the page shows
def test_five_sites_describe_agree_sign_and_train_while_one_crashes_and_one_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's own commands, of a run of forty rounds, so that there is time to crash."""
    monkeypatch.chdir(tmp_path)
    patients(tmp_path)
    pilot = Board(tmp_path)
    board_file(tmp_path, rounds=ROUNDS)
    pilot._follow("each client", "fedgossip keys new --id 0 --client")
    pilot._follow("the coordinator", f"fedgossip keys new --id 5 --address tcp://127.0.0.1:{pilot.port}")
    for block in blocks(BOARDS):
        if block.kind == "sh" or block.note == "file: use.txt":
            pilot.follow(block)
    for one in pilot.waited:
        print(one)
    hash = pilot.hash
    for node in range(CLIENTS):
        used = pilot.says(node, "plan", "approved").out
        assert hash[:16] in used and f"{ROUNDS} of {ROUNDS}" in used and "A. Weber, for the board" in used
        log = pilot.machines[node] / "peer.key.approvals"
        assert verify_log(log, bytes.fromhex(load_blocks(tmp_path / "machine0" / "endpoints.toml")[node].verify)).sound
    client = ["client", "board.toml", "--endpoints", "endpoints.toml"]
    over = pilot.says(0, *client, "--id", "0", "--out", "again")
    assert over.code == 2 and f"of which {ROUNDS} are used" in over.err
    agreed = pilot.machines[3] / "agreed.json"
    agreed.write_bytes(agreed.read_bytes().replace(b'"sites": 5', b'"sites": 4'))
    changed = pilot.says(3, *client, "--id", "3", "--out", "again")
    assert changed.code == 2 and "are not the plan that this site has approved" in changed.err
    assert "Refused once" in pilot.says(3, "plan", "approved").err
    spent = pilot.says(4, "privacy", "ledger").out
    releases = int(re.findall(r"by (\d+) releases", spent)[0])
    assert "3 runs" in spent and releases > ROUNDS and "This site allows epsilon 5" in spent
    found = read_signed(tmp_path / "whole" / APPROVAL)
    assert [one.participant for one in found] == list(range(CLIENTS)) and {one.plan for one in found} == {hash}
    assert plan_statement.read(tmp_path / "whole" / PLAN).hash == hash
    judged = pilot.said["evaluate"].out
    assert judged.startswith("5 of 5 sites, ") and "with noise of 4 times what one record can add" in judged
    release = check(tmp_path / "readmission-release.zip", tmp_path / "endpoints.toml")
    assert not release.faults and release.release.judged and release.whose == "the coordinator's, by your own list"
    assert [len(one.by) > 0 for one in release.release.approvals] == [True] * CLIENTS
    card = (tmp_path / "whole" / "card.html").read_text()
    for releases in ("2 releases, epsilon 1.48 alone", "one release, epsilon "):  # the statistics, and the evaluation
        assert releases in card
    assert "±" in card
    without = "import sys; sys.modules['torch'] = None; from fedgossip.cli import main; main()"
    words = ["release", "verify", "readmission-release.zip"]
    alone = subprocess.check_output([sys.executable, "-c", without, *words], cwd=tmp_path, text=True)
    assert "sound, as it was signed on" in alone
    with (tmp_path / "scored.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 600
