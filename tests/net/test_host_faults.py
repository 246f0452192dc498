"""What real processes do when one of them dies, hangs, fails or is stopped: the others go on, and all of it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import HANG_SECONDS, alive, experiment, finish, free_ports, start, wait_until

import fedgossip
from fedgossip.base.errors import FedgossipError
from fedgossip.core.records import PeerRow, Row, read_rows
from fedgossip.drivers import local
from fedgossip.drivers.local import run_local_plan
from fedgossip.drivers.peer_processes import PeerProcesses
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.net.endpoints import text as endpoints_text
from fedgossip.net.identity import Identity
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan
from fedgossip.runs.run_directory import Run

pytestmark = pytest.mark.sockets


def averaging(n: int, rounds: int, deadline: float = 5.0, graph: str = "ring") -> Plan:
    return compose.plan(
        load_experiment(
            {
                "rounds": rounds,
                "topology": {"graph": graph, "n": n},
                "task": {"kind": "averaging", "dim": 5},
                "algorithm": {"deadline": deadline, "start_timeout": 30.0},
                "eval": {"every": rounds},
            }
        )
    )


def run_and(act: Callable[[int], None], plan: Plan, out: Path, at_round: int = 30, node: int = 2) -> Run:
    """Run `plan`; call `act` with the process id of peer `node` when it has `at_round` rounds behind it."""
    with PeerProcesses(learning=False) as family:
        acted: list[int] = []

        def watch(row: Row) -> None:
            if isinstance(row, PeerRow) and row.round >= at_round and not acted:
                acted.append(family.pids[node])
                act(family.pids[node])

        finished = run_local_plan(plan, out, family=family, report=False, watch=watch)
    assert acted, "the run was over before anything was done to it"
    assert not any(alive(pid) for pid in family.pids.values())
    return finished


def summary_of(out: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def looks_finished(out: Path) -> bool:
    return (out / "summary.json").exists() and not (out / "INCOMPLETE").exists()


# --- one of them dies or hangs ------------------------------------------------------------------------------------


def test_the_others_finish_when_one_is_killed(tmp_path: Path) -> None:
    done = run_and(lambda pid: os.kill(pid, signal.SIGKILL), averaging(4, 1500), tmp_path / "run")
    events = done.summary["events"]
    assert events["died"] >= 1 and events["gone"] >= 1 and events["missed"] >= 1, events
    assert [vector is None for vector in done.vectors] == [False, False, True, False]
    assert done.digest is None and done.summary["rounds"] == 1500
    assert done.summary["status"] == "partial" and looks_finished(tmp_path / "run")
    written = [row.round for row in done.network()]
    assert written == list(range(1501))
    others = [row for row in done.rows if isinstance(row, PeerRow) and row.peer != 2]
    assert {row.peer for row in others if row.round == 1500} == {0, 1, 3}


def test_the_others_go_on_when_one_is_suspended_past_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "PATIENCE_SECONDS", 0.5)
    done = run_and(lambda pid: os.kill(pid, signal.SIGSTOP), averaging(4, 600, deadline=0.5), tmp_path / "run")
    events = done.summary["events"]
    assert events["missed"] >= 1 and events["hung"] == 1, events
    finished = {row.peer for row in done.rows if isinstance(row, PeerRow) and row.round == 600}
    assert finished == {0, 1, 3} and done.digest is None and done.summary["status"] == "partial"


def test_a_run_whose_peers_all_die_is_a_network_error(tmp_path: Path) -> None:
    plan = averaging(3, 3000)
    with PeerProcesses(learning=False) as family:

        def watch(row: Row) -> None:
            if isinstance(row, PeerRow):
                for node in family.pids:
                    family.signal(node, signal.SIGKILL)  # by their parent, who knows which of them are there

        with pytest.raises(FedgossipError, match="every peer died") as raised:
            run_local_plan(plan, tmp_path / "run", family=family, report=False, watch=watch)
    assert raised.value.exit_code == 3 and not looks_finished(tmp_path / "run")


# --- training fails -----------------------------------------------------------------------------------------------

RAISES_IN_ONE_PEER = """
import torch, inspect
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
    def forward(self, x):
        for frame in inspect.stack():
            asked = frame.frame.f_locals.get("asked")
            if getattr(asked, "job", None) == 3 and frame.frame.f_locals["self"].node == 1:
                raise RuntimeError("no more")
        return self.layer(x)
def model(*shape):
    return Model()
"""


def test_failed_training_of_one_peer_is_the_runs_error_and_hangs_nobody(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RAISES_IN_ONE_PEER)
    path = experiment(tmp_path, n=3, rounds=6, more='[model]\nsource = "own:model"\n[train]\nlocal_steps = 1\n')
    path.write_text(path.read_text().replace('"averaging"', '"learning"') + 'device = "cpu"\n')
    said = finish(start(["run", path.name, "--on", "local", "--out", "out", "--json", "--no-report"], tmp_path))
    assert said.code == 5 and said.out == "" and "Traceback" not in said.err, said
    assert len(said.errors) == 1 and "node 1, round 3" in said.errors[0] and "no more" in said.errors[0], said.err
    assert "The measurements until then are in out." in said.err
    assert summary_of(tmp_path / "out")["status"] == "failed" and not looks_finished(tmp_path / "out")
    rows = read_rows(tmp_path / "out" / "metrics.jsonl")
    assert {row.peer for row in rows if isinstance(row, PeerRow) and row.round == 6} == {0, 2}


# --- somebody stops it --------------------------------------------------------------------------------------------


def descendants(pid: int) -> set[int]:
    listed = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True).stdout
    parents = [tuple(map(int, line.split())) for line in listed.splitlines()[1:]]
    found, grown = {pid}, True
    while grown:
        more = {child for child, parent in parents if parent in found} - found
        found, grown = found | more, bool(more)
    return found - {pid}


def rows_in(path: Path) -> int:
    return sum(b'"peer"' in line for line in path.read_bytes().splitlines()) if path.exists() else 0


def endless_run(folder: Path) -> tuple[subprocess.Popen[str], set[int]]:
    """Start a local run that would take hours; return it, and its processes once rounds are measured."""
    experiment(folder, rounds=10_000_000)
    running = start(["run", "experiment.toml", "--on", "local", "--out", "out", "--json"], folder)
    wait_until(lambda: rows_in(folder / "out" / "metrics.jsonl") > 20, HANG_SECONDS, "rounds in metrics.jsonl")
    children = descendants(running.pid)
    assert len(children) == 5, "a warmed parent and four peers"
    return running, children


def test_ctrl_c_ends_all_processes_by_their_own_hand_and_keeps_what_was_measured(tmp_path: Path) -> None:
    running, children = endless_run(tmp_path)
    os.killpg(running.pid, signal.SIGINT)
    said = finish(running)
    assert said.code == 130 and "Traceback" not in said.err, said
    assert not any(alive(pid) for pid in children)
    words = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("out/peers/*/ended.json"))]
    assert [word["status"] for word in words] == ["interrupted"] * 4  # one that is killed says nothing
    assert json.loads(said.out)["status"] == "interrupted"
    assert summary_of(tmp_path / "out")["status"] == "interrupted" and not looks_finished(tmp_path / "out")
    assert rows_in(tmp_path / "out" / "metrics.jsonl") > 20


def test_ctrl_c_while_the_peers_start_leaves_no_process(tmp_path: Path) -> None:
    experiment(tmp_path, rounds=10_000_000)
    running = start(["run", "experiment.toml", "--on", "local", "--out", "out", "--json"], tmp_path)
    wait_until(lambda: descendants(running.pid), HANG_SECONDS, "a child")
    children = descendants(running.pid)
    os.killpg(running.pid, signal.SIGINT)
    said = finish(running)
    assert said.code == 130 and "Traceback" not in said.err, said
    assert not any(alive(pid) for pid in children) and not looks_finished(tmp_path / "out")


@pytest.mark.parametrize(
    ("there", "number"),
    [
        ("experiment.toml", signal.SIGINT),
        pytest.param("peers/00/log.txt", signal.SIGINT, marks=pytest.mark.long),
        ("peers/03/endpoint.toml", signal.SIGTERM),
    ],
)
def test_a_run_that_is_stopped_before_its_first_round_says_that_and_of_nobody_that_it_died(
    there: str, number: signal.Signals, tmp_path: Path
) -> None:
    """A process that is told to end before it hears signals leaves no last word."""
    path = experiment(tmp_path, rounds=200)
    running = start(["run", "experiment.toml", "--on", "local", "--out", "out", "--no-report"], tmp_path)
    wait_until((tmp_path / "out" / there).exists, HANG_SECONDS, there)
    os.kill(running.pid, number)
    said = finish(running)
    told = f"{said.out}\n{said.err}"
    assert said.code == 128 + number and not any(word in told for word in ("Traceback", "died", "unexpected")), said
    assert "nothing was trained yet" in told or "stopped at once" in told or rows_in(tmp_path / "out" / "metrics.jsonl")
    assert "To go on: fedgossip run --resume out" in said.err, said
    assert not looks_finished(tmp_path / "out")
    again = finish(start(["run", "--resume", "out", "--json", "--no-report"], tmp_path))
    whole = fedgossip.simulate(path)
    assert again.code == 0 and json.loads(again.out)["digest"] == whole.digest, again


def test_a_peer_that_had_died_by_itself_is_told_of_when_the_run_is_stopped(tmp_path: Path) -> None:
    running, _ = endless_run(tmp_path)
    words = ["ps", "-eo", "pid,ppid"]
    listed = [tuple(map(int, line.split())) for line in subprocess.check_output(words, text=True).splitlines()[1:]]
    (parent,) = (pid for pid, above in listed if above == running.pid)
    killed = min(pid for pid, above in listed if above == parent)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not alive(killed), HANG_SECONDS, "its end")
    time.sleep(0.5)  # until the collector has heard of it
    os.kill(running.pid, signal.SIGINT)
    said = finish(running)
    summary = json.loads(said.out)
    assert said.code == 130 and (summary["status"], summary["events"].get("died")) == ("interrupted", 1), said


def test_the_peers_end_by_themselves_when_the_collector_is_killed(tmp_path: Path) -> None:
    running, children = endless_run(tmp_path)
    running.kill()
    finish(running)
    wait_until(lambda: not any(alive(pid) for pid in children), HANG_SECONDS, "the end of all children")
    assert not looks_finished(tmp_path / "out")


def test_the_peers_end_when_their_parent_is_killed_and_the_run_says_so(tmp_path: Path) -> None:
    running, children = endless_run(tmp_path)
    (parent,) = (pid for pid in children if descendants(pid))
    os.kill(parent, signal.SIGKILL)
    said = finish(running)
    assert said.code == 3 and said.out == "" and len(said.errors) == 1, said
    wait_until(lambda: not any(alive(pid) for pid in children), HANG_SECONDS, "the end of all children")
    assert not looks_finished(tmp_path / "out")


# --- several machines ---------------------------------------------------------------------------------------------


class Machines:
    """Three "machines": folders with a key each, and processes that meet on loopback ports."""

    def __init__(self, folder: Path, n: int = 3, rounds: int = 20) -> None:
        self.folder, self.n = folder, n
        self.file = experiment(folder, n=n, rounds=rounds, more="[algorithm]\ndeadline = 5.0\nstart_timeout = 20.0\n")
        blocks = []
        for node, port in enumerate(free_ports(n)):
            words = ["keys", "new", "--out", f"{node}.key", "--id", str(node), "--address", f"tcp://127.0.0.1:{port}"]
            made = finish(start(words, folder))
            assert made.code == 0, made
            blocks.append(made.out)
        (folder / "endpoints.toml").write_text("\n".join(blocks))

    def start(self, node: int, *more: str) -> subprocess.Popen[str]:
        words = ["peer", self.file.name, "--id", str(node), "--key", f"{node}.key", "--endpoints", "endpoints.toml"]
        return start([*words, "--out", f"peer{node}", *more], self.folder)

    def ended(self, node: int) -> dict[str, Any]:
        ended: dict[str, Any] = json.loads((self.folder / f"peer{node}" / "ended.json").read_text())
        return ended


def test_peers_on_three_machines_give_the_simulators_digest_and_no_secret_leaves_its_file(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    peers = [machines.start(node) for node in range(3)]
    said = [finish(peer) for peer in peers]
    assert [s.code for s in said] == [0, 0, 0], said
    folders = ["peer2", "peer0", "peer1"]
    put = finish(start(["collect", "experiment.toml", *folders, "--out", "run", "--json"], tmp_path))
    assert put.code == 0, put
    simulated = simulate_plan(compose.plan(load_experiment(tmp_path / "experiment.toml")))
    assert json.loads(put.out)["digest"] == simulated.digest

    secrets = [Identity.load(tmp_path / f"{node}.key").secret.encode() for node in range(3)]
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".key"]
    assert len(files) > 10
    for content in (*(path.read_bytes() for path in files), *(s.out.encode() + s.err.encode() for s in (*said, put))):
        assert not any(secret in content for secret in secrets)
    assert all((tmp_path / f"{node}.key").stat().st_mode & 0o777 == 0o600 for node in range(3))

    other = finish(start(["collect", "experiment.toml", *folders, "--seed", "2", "--out", "run2"], tmp_path))
    assert other.code == 2 and "ran another experiment" in other.err, "folders of another run are refused"


def test_peers_whose_every_neighbour_runs_something_else_refuse_soon(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    peers = [machines.start(node, "--seed", str(node)) for node in range(3)]
    said = [finish(peer) for peer in peers]
    for node, one in enumerate(said):
        assert one.code == 4 and one.out == "" and len(one.errors) == 1, one
        assert "runs another experiment" in one.errors[0] and "Traceback" not in one.err
        assert machines.ended(node)["status"] == "failed" and machines.ended(node)["exit_code"] == 4


def test_two_that_agree_go_on_without_a_third_that_runs_something_else(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    peers = [machines.start(node, *(["--set", "task.dim=7"] if node == 2 else [])) for node in range(3)]
    said = [finish(peer) for peer in peers]
    assert [one.code for one in said] == [9, 9, 4], said
    assert "another model" in said[2].errors[0]
    assert all(machines.ended(node)["counts"]["refused"] >= 1 for node in (0, 1))


def test_a_peer_whose_key_the_others_do_not_know_is_refused(tmp_path: Path) -> None:
    """Peer 0 was given new keys and only its own file of endpoints knows; it is refused, the others go on."""
    machines = Machines(tmp_path)
    others = (tmp_path / "endpoints.toml").read_text()
    before = Identity.load(tmp_path / "0.key").public
    Identity.new().save(tmp_path / "fresh.key")
    mine = others.replace(before, Identity.load(tmp_path / "fresh.key").public)
    (tmp_path / "mine.toml").write_text(mine)
    shorter = ("--set", "algorithm.start_timeout=8")  # above what lies between two starts on a busy machine
    stranger = machines.start(0, "--key", "fresh.key", "--endpoints", "mine.toml", *shorter)
    known = [machines.start(node, *shorter) for node in (1, 2)]
    refused, *rest = [finish(peer) for peer in (stranger, *known)]
    assert refused.code == 4 and "does not accept our key" in refused.errors[0], refused
    assert [one.code for one in rest] == [9, 9], rest
    assert all("unknown key" in one.err and "started without 0" in one.err for one in rest), rest


def test_a_peer_to_whom_nobody_comes_says_so(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    said = finish(machines.start(0, "--set", "algorithm.start_timeout=0.5"))
    assert said.code == 7 and "none of the neighbours [1, 2] joined" in said.errors[0], said


@pytest.mark.long
def test_ctrl_c_ends_one_peer_and_the_others_go_on(tmp_path: Path) -> None:
    machines = Machines(tmp_path, rounds=1500)
    peers = [machines.start(node) for node in range(3)]
    wait_until(lambda: rows_in(tmp_path / "peer1" / "metrics.jsonl") > 20, 20, "rounds of peer 1")
    os.killpg(peers[1].pid, signal.SIGINT)
    said = [finish(peer) for peer in peers]
    assert [one.code for one in said] == [0, 130, 0], said
    assert machines.ended(1)["status"] == "interrupted" and (tmp_path / "peer1" / "vector.safetensors").exists()
    assert machines.ended(0)["rounds"] == 1500
    assert "Traceback" not in said[1].err
    put = finish(start(["collect", "experiment.toml", "peer0", "peer1", "peer2", "--out", "run"], tmp_path))
    assert put.code == 9 and "PARTIAL" in put.out and "some participants did not reach the end" in put.out, put
    assert summary_of(tmp_path / "run")["status"] == "partial" and looks_finished(tmp_path / "run")


def test_endpoints_text_is_what_keys_new_prints(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    from fedgossip.net.endpoints import load_endpoints

    found = load_endpoints(tmp_path / "endpoints.toml", machines.n)
    assert endpoints_text(sorted(found.items())) == (tmp_path / "endpoints.toml").read_text()
