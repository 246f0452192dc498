"""The commands of a federated run as real processes: keys, policies, a coordinator that is killed in every phase."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Output, free_ports, typed, wait_until

from fedgossip.base.vectors import frozen
from fedgossip.cli import cli
from fedgossip.core.records import EventRow, PeerRow, read_rows
from fedgossip.net.endpoints import block, signed
from fedgossip.net.identity import Identity

pytestmark = pytest.mark.sockets

CLIENTS = 3
SECONDS = 200
LONG = pytest.mark.long
EXPERIMENT = """
rounds = 5
task = {{ kind = "quadratic", dim = 3, sigma = 0.1, placement = "random" }}
coordinator = {{ clients = {clients}, deadline = 20.0, start_timeout = 30.0, return_timeout = 20.0{more} }}
"""


@dataclass
class Site:
    """A folder with an experiment, keys and a policy; processes run there."""

    folder: Path
    clients: int = CLIENTS
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @classmethod
    def made(cls, folder: Path, clients: int = CLIENTS, more: str = "") -> Site:
        (folder / "pilot.toml").write_text(EXPERIMENT.format(clients=clients, more=more))
        blocks = []
        (port,) = free_ports(1)
        for node in range(clients + 1):
            identity = Identity.new()
            identity.save(folder / f"{node}.key")
            address = f"tcp://127.0.0.1:{port}" if node == clients else ""  # nobody calls a client
            blocks.append(block(node, signed(identity, address)))
        (folder / "endpoints.toml").write_text("\n".join(blocks))
        site = cls(folder, clients)
        assert site.run("privacy", "policy", "pilot.toml", "--endpoints", "endpoints.toml").code == 0
        return site

    def run(self, *words: str) -> Output:
        return typed(words, self.folder)

    def start(self, *words: str, node: int, resume: bool = False, program: tuple[str, ...] = ()) -> Any:
        place = ["--endpoints", "endpoints.toml", "--key", f"{node}.key", "--out", f"out{node}"]
        words = (words[0], "pilot.toml", *words[1:], *place, *(["--resume"] if resume else []))
        command = [sys.executable, *(program or ("-m", "fedgossip")), *words]
        with (self.folder / f"{node}.log").open("a") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, text=True)
        self.started.append(process)
        return process

    def coordinator(self, **more: Any) -> Any:
        return self.start("coordinator", node=self.clients, **more)

    def client(self, node: int, **more: Any) -> Any:
        return self.start("client", "--id", str(node), node=node, **more)

    def ended(self, process: Any) -> int:
        return int(process.wait(SECONDS))

    def rows(self, node: int) -> list[Any]:
        return list(read_rows(self.folder / f"out{node}" / "metrics.jsonl"))

    def said(self, node: int) -> str:
        return (self.folder / f"{node}.log").read_text()

    def stop(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def site(tmp_path: Path) -> Any:
    made = Site.made(tmp_path)
    yield made
    made.stop()


@pytest.mark.parametrize(
    "phase", [*(pytest.param(phase, marks=LONG) for phase in ("keys", "shares", "consist", "unmask")), "masked"]
)
def test_a_coordinator_killed_in_any_phase_goes_on_and_no_reported_round_is_lost(site: Site, phase: str) -> None:
    """Round 2 is the third; the keys for it have come with round 1, so the first phase is killed in round 0."""
    clients = [site.client(node) for node in range(CLIENTS)]
    round = 0 if phase == "keys" else 2
    dying = str(Path(__file__).parents[1] / "dying.py")
    first = site.coordinator(program=(dying, phase, str(round)))
    assert site.ended(first) == -signal.SIGKILL
    reported = [row for row in site.rows(CLIENTS) if isinstance(row, PeerRow)]
    done = [row.round for row in reported]
    assert done == list(range(1, len(done) + 1)) and round - 1 <= len(done) <= round, "the last may be on its way"
    again = site.coordinator(resume=True)
    assert site.ended(again) == 0, site.said(CLIENTS)
    rows = [row for row in site.rows(CLIENTS) if isinstance(row, PeerRow)]
    assert rows[: len(reported)] == reported, "what was reported stays as it was"
    rounds = [row.round for row in rows]
    assert rounds == sorted(set(rounds)) and set(rounds) >= {*done, *range(round + 1, 6)}
    given_up = [row for row in site.rows(CLIENTS) if isinstance(row, EventRow) and row.name == "abandoned"]
    assert [row.value["reason"] for row in given_up] == ["INTERRUPTED"]  # type: ignore[index]
    assert [site.ended(client) for client in clients] == [0] * CLIENTS, "they have reconnected by themselves"
    ended = json.loads((site.folder / f"out{CLIENTS}" / "ended.json").read_text())
    assert (ended["status"], ended["rounds"]) == ("finished", 5)


def test_a_client_that_is_killed_comes_back_into_the_same_run(site: Site) -> None:
    clients = [site.client(node) for node in range(CLIENTS)]
    coordinator = site.coordinator()
    clients[1].kill()
    clients[1].wait()
    clients[1] = site.client(1, resume=(site.folder / "out1" / "incarnation").exists())
    assert site.ended(coordinator) == 0, site.said(CLIENTS)
    assert [site.ended(client) for client in clients] == [0] * CLIENTS
    folders = [f"out{node}" for node in range(CLIENTS + 1)]
    assert "kB by all" in site.run("collect", "pilot.toml", *folders, "--out", "whole").out
    assert "kB by the coordinator alone" in site.run("collect", "pilot.toml", folders[-1], "--out", "alone").out


@pytest.fixture
def long_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("test_coordinator_commands.EXPERIMENT", EXPERIMENT.replace("rounds = 5", "rounds = 150"))
    made = Site.made(tmp_path)
    yield made
    made.stop()


def in_the_middle(site: Site) -> None:
    path = site.folder / f"out{CLIENTS}" / "metrics.jsonl"
    wait_until(lambda: path.exists() and path.read_text().count("clients") > 5, SECONDS, "some rounds")


@pytest.mark.long
def test_a_client_that_is_stopped_by_hand_is_waited_for_and_goes_on(long_site: Site) -> None:
    site = long_site
    clients, coordinator = [site.client(node) for node in range(CLIENTS)], site.coordinator()
    in_the_middle(site)
    clients[1].send_signal(signal.SIGINT)
    assert site.ended(clients[1]) == 130 and "To go on: " in site.said(1)
    assert [process.poll() for process in (coordinator, clients[0], clients[2])] == [None] * 3, "the others wait"
    clients[1] = site.client(1, resume=True)
    assert site.ended(coordinator) == 0, site.said(CLIENTS)
    assert [site.ended(client) for client in clients] == [0] * CLIENTS


def test_clients_whose_coordinator_stops_early_say_so(long_site: Site) -> None:
    site = long_site
    clients, coordinator = [site.client(node) for node in range(CLIENTS)], site.coordinator()
    in_the_middle(site)
    coordinator.send_signal(signal.SIGINT)
    assert site.ended(coordinator) == 130
    assert [site.ended(client) for client in clients] == [7] * CLIENTS
    assert "the coordinator has ended the run after" in site.said(0) and "--resume" in site.said(0)


# --- policies ---------------------------------------------------------------------------------------------------------


def refused_client(site: Site, node: int = 0) -> str:
    """Type the command of a client that is refused before it opens anything, and return its errors."""
    place = ["--endpoints", "endpoints.toml", "--key", f"{node}.key", "--out", f"out{node}"]
    said = site.run("client", "pilot.toml", "--id", str(node), *place)
    assert said.code == 2, said
    return said.err


def test_a_client_without_a_policy_says_how_to_make_one(site: Site) -> None:
    (site.folder / "policy.toml").unlink()
    assert "no policy there" in (said := refused_client(site)) and "fedgossip privacy policy" in said


def test_a_policy_that_others_can_read_is_refused(site: Site) -> None:
    (site.folder / "policy.toml").chmod(0o644)
    assert "others can read or change this policy" in (said := refused_client(site)) and "chmod 600" in said


def test_a_policy_pins_the_experiment_and_names_what_differs(site: Site) -> None:
    (site.folder / "pilot.toml").write_text(EXPERIMENT.format(clients=CLIENTS, more=", secure = { bound = 2.0 }"))
    assert "bound: pinned 1.0, here 2.0" in refused_client(site)


def test_a_policy_does_not_let_the_secure_sum_be_switched_off(site: Site) -> None:
    (site.folder / "pilot.toml").write_text(EXPERIMENT.format(clients=CLIENTS, more=", secure = { on = false }"))
    assert "switched the secure sum off" in refused_client(site)


def test_an_entry_that_was_changed_after_it_was_signed_is_refused(site: Site) -> None:
    endpoints = site.folder / "endpoints.toml"
    endpoints.write_text(endpoints.read_text().replace("tcp://127.0.0.1", "tcp://127.0.0.2", 1))
    assert "is not signed by itself" in refused_client(site, 1)


def test_peer_sends_a_federated_run_to_its_own_commands(site: Site) -> None:
    refused = site.run("peer", "pilot.toml", "--id", "0", "--endpoints", "endpoints.toml")
    assert refused.code == 2 and "fedgossip client" in refused.err


def test_a_coordinator_needs_an_address_and_clients_do_not(site: Site) -> None:
    path = site.folder / "endpoints.toml"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "address" not in line))
    said = site.run("coordinator", "pilot.toml", "--endpoints", "endpoints.toml", "--key", f"{CLIENTS}.key")
    assert said.code == 2
    assert f"{CLIENTS} has no address, and is called by others" in said.err


def test_keys_of_a_client_say_nothing_of_where_it_is(site: Site) -> None:
    said = site.run("keys", "new", "--id", "0", "--client", "--out", "new.key")
    assert said.code == 0
    assert "address" not in said.out
    assert "signature" in said.out
    assert site.run("keys", "show", "new.key", "--id", "0", "--client").out == said.out
    assert site.run("keys", "show", "new.key", "--id", "0").out == said.out, "the key keeps whose block it is of"
    key = site.folder / "new.key"
    key.write_text(key.read_text().partition("[[peer]]")[0])
    said = site.run("keys", "show", "new.key", "--id", "0")
    assert said.code == 2 and not said.out and "--address" in said.err, "it invents no address"


# --- no model that was not trained ------------------------------------------------------------------------------------


def ending(folder: Path, monkeypatch: pytest.MonkeyPatch, moved: float, rounds: int) -> None:
    """Type `client`, whose run ends early after so many rounds of its own with the first vector, moved."""
    from fedgossip.drivers import peer
    from fedgossip.plans import compose
    from fedgossip.runs.peer_files import PeerEnded, PeerFiles

    Site.made(folder)

    def run_peer(plan: Any, node: int, out: Path, **_: Any) -> PeerEnded:
        task, _ = compose.task_of(plan.experiment, plan.learners, [node])
        files = PeerFiles(out, node, plan, task, snapshots=False)
        files.started(0, task.initial(node))
        files.round = rounds
        files.save(frozen(task.initial(node) + np.float32(moved)))
        files.lost()
        return PeerEnded("finished", rounds, {"ended_early": 1})

    monkeypatch.chdir(folder)
    monkeypatch.setattr(peer, "run_peer", run_peer)
    words = ["client", "pilot.toml", "--id", "0", "--endpoints", "endpoints.toml", "--key", "0.key", "--out", "out0"]
    assert cli(words, standalone_mode=False) == 7


def test_no_model_is_offered_that_was_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where rounds were counted that all came to nothing."""
    for rounds in (0, 3):
        (tmp_path / str(rounds)).mkdir()
        ending(tmp_path / str(rounds), monkeypatch, 0.0, rounds)
        said = capsys.readouterr().err
        assert f"ended by the coordinator after {rounds} rounds" in said and "finished" not in said
        assert "There is no model: nothing was trained." in said and "--resume" in said
        assert not (tmp_path / str(rounds) / "out0" / "model" / "model.json").exists()


def test_a_client_that_only_got_the_model_of_the_others_is_offered_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ending(tmp_path, monkeypatch, 0.5, 0)
    assert "The model: out0/model" in capsys.readouterr().err
    assert (tmp_path / "out0" / "model" / "model.json").exists()


def test_a_simulation_whose_rounds_all_came_to_nothing_leaves_no_model(tmp_path: Path) -> None:
    """Of four clients three crash before the first round is over."""
    from fedgossip import simulate
    from fedgossip.base.errors import TooFewPeersError

    faults = [{"kind": "crash", "peers": [0, 1, 2], "start": 0.02}]
    coordinator = {"clients": 4, "deadline": 2.0, "start_timeout": 3.0}
    content = {"rounds": 2, "task": {"kind": "quadratic"}, "coordinator": coordinator, "faults": faults}
    with pytest.raises(TooFewPeersError, match="1 clients are there, and a round needs 4"):
        simulate(content, out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed" and summary["rounds"] == summary["rounds_abandoned"]
    assert not (tmp_path / "run" / "model" / "model.json").exists()
