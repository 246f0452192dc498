"""`fedgossip launch`: scripts as processes of this machine, and the same ones simulated."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Output, alive, finish, in_process, start, wait_until

import fedgossip
from fedgossip.base.errors import ConfigError
from fedgossip.runs.collect import first_failure, last_word

pytestmark = pytest.mark.sockets

SCRIPT = """
import os, sys, time
import torch
from torch import nn
import fedgossip
from beside import COUNT

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
STEPS, PAUSE, RAISES = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]


def measure(model):
    model.eval()
    x = torch.ones(3, 4)
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).item()
    return {"loss": loss, "accuracy": 1 / (1 + loss)}


peer = fedgossip.join(model, optimizer)
peer.evaluate(measure)
COUNT.append(peer.node)
assert COUNT == [peer.node] and os.environ["FEDGOSSIP_N"] == str(peer.n)
draw = torch.Generator().manual_seed(peer.node)
for step in range(peer.round * int(os.environ.get("ONE_STEP", "0")), STEPS):
    x = torch.randn(16, 4, generator=draw)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    peer.step(examples=len(x))
    peer.log(loss=loss)
    time.sleep(PAUSE)
    if str(peer.node) in RAISES and step == 5:
        raise ZeroDivisionError("by my own doing")
peer.close()
print("loop", peer.node, "of", peer.n, "after", peer.round)
"""


@pytest.fixture
def folder(tmp_path: Path, no_compiler: None) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("COUNT = []\n")
    return tmp_path


def summary(folder: Path, out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / out / "summary.json").read_text())
    return found


@pytest.mark.parametrize(
    "kind",
    [["--graph", "ring"], pytest.param(["--coordinator", "--rounds", "4"], marks=pytest.mark.long)],
    ids=["ring", "secure"],
)
def test_launched_and_simulated_loops_end_with_the_same_digest(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: list[str]
) -> None:
    words = ["launch", "-n", "3", *kind, "--local-steps", "2", "--set", "eval.every=2", "--set", 'track.to=["csv"]']
    more = ["train.py", "9" if "ring" in kind else "8", "0"]
    real = in_process([*words, "--out", "real", *more], folder, monkeypatch, capsys)
    simulated = in_process([*words, "--simulate", "--out", "sim", *more], folder, monkeypatch, capsys)
    assert real.code == simulated.code == 0, real.err + simulated.err
    one, other = summary(folder, "real"), summary(folder, "sim")
    assert one["digest"] and one["digest"] == other["digest"]
    assert one["score"]["averaged"] == pytest.approx(other["score"]["averaged"])
    assert one["status"] == "finished" and one["rounds"] == (5 if "ring" in kind else 4)
    for out in ("real", "sim"):
        command = "fedgossip launch --simulate --experiment experiment.toml train.py " + " ".join(more[1:])
        assert command in (folder / out / "report.html").read_text()
    tracked = [(folder / out / "rounds.csv").read_text().splitlines() for out in ("real", "sim")]
    assert len(tracked[0]) == len(tracked[1]) > 4
    assert "loop 0 of 3 after" in real.out and "loop 1 of 3" not in real.out
    assert "loop 2 of 3 after" in (folder / "real" / "peers" / "02" / "log.txt").read_text()
    told = [(folder / "real" / name).read_text() for name in ("experiment.toml", "report.html")]
    assert not any("2147483647" in text for text in (real.err, real.out, *told))


@pytest.mark.parametrize("how", [["--simulate"], []], ids=["simulated", "launched"])
def test_loops_that_end_before_their_coordinator_are_told_how_not_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: list[str]
) -> None:
    words = ["launch", "-n", "3", "--coordinator", "--rounds", "9", "--local-steps", "2", *how, "--out", "out"]
    said = in_process([*words, "train.py", "4", "0"], folder, monkeypatch, capsys)
    assert said.code == 7 and "Traceback" not in said.err
    assert "lower --rounds, or loop while peer.step() returns True" in said.err.splitlines()[-1]
    if not how:  # what follows close() in a script is done
        logs = [(folder / "out" / "peers" / f"{node:02d}" / "log.txt").read_text() for node in range(3)]
        assert all(f"loop {node} of 3" in log and "Traceback" not in log for node, log in enumerate(logs))


def pids(folder: Path) -> list[int]:
    """Processes whose words hold this folder's script."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (place / "environ").read_bytes() and place.name != str(os.getpid()):
                found.append(int(place.name))
        except OSError:
            continue
    return found


def rounds_of(folder: Path, node: int) -> int:
    path = folder / "out" / "peers" / f"{node:02d}" / "metrics.jsonl"
    return path.read_text().count('"kind":"peer"') if path.exists() else 0


def pid_of(folder: Path, node: int) -> int | None:
    """The process of a launched loop."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            told = (place / "environ").read_bytes()
        except OSError:
            continue
        if f"FEDGOSSIP_LOOP={folder / 'out' / 'peers' / f'{node:02d}'}".encode() in told:
            return int(place.name)
    return None


def test_a_loop_that_is_killed_comes_back_and_the_others_never_hang(folder: Path) -> None:
    words = ["--local-steps", "1", "--restarts", "1", "--out", "out", "--set", "algorithm.deadline=5", "--no-report"]
    launched = start(["launch", "-n", "3", *words, "train.py", "100", "0.05"], folder)
    wait_until(lambda: rounds_of(folder, 1) > 3, 90, "rounds of loop 1")
    killed = pid_of(folder, 1)
    assert killed
    os.kill(killed, signal.SIGKILL)
    said = finish(launched)
    events = summary(folder, "out")["events"]
    assert said.code in (0, 9), said.err
    assert events["restarted"] == 1 and events["resumed"] == 1
    assert rounds_of(folder, 0) == 100


@pytest.mark.long  # test_loop_endings has such a run each time
def test_one_loop_that_raises_fails_the_run_and_the_others_come_to_their_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["launch", "-n", "2", "--local-steps", "1", "--set", "algorithm.deadline=5", "--out", "out", "--no-report"]
    said = in_process([*words, "train.py", "9", "0", "1"], folder, monkeypatch, capsys)
    assert said.code == 5
    assert said.errors == ["error: node 1, round 6: the loop raised ZeroDivisionError: by my own doing"]
    assert rounds_of(folder, 0) == 9


def test_ctrl_c_interrupts_all_loops_and_leaves_no_process(folder: Path) -> None:
    words = ["launch", "-n", "2", "--local-steps", "1", "--out", "out", "--no-report"]
    launched = start([*words, "train.py", "10000", "0.02"], folder)
    wait_until(lambda: rounds_of(folder, 0) > 2, 90, "rounds of loop 0")
    loops = [pid_of(folder, 0), pid_of(folder, 1)]
    launched.send_signal(signal.SIGINT)
    said = finish(launched)
    assert said.code == 130
    assert all(loops) and not any(alive(pid) for pid in loops if pid)
    assert summary(folder, "out")["status"] == "interrupted"
    assert json.loads((folder / "out" / "peers" / "00" / "ended.json").read_bytes())["status"] == "interrupted"


def test_scripts_whose_launcher_is_killed_end_by_themselves(folder: Path) -> None:
    words = ["launch", "-n", "2", "--local-steps", "1", "--out", "out", "--no-report"]
    launched = start([*words, "train.py", "10000", "0.02"], folder)
    wait_until(lambda: rounds_of(folder, 0) > 2, 90, "rounds of loop 0")
    loops = [pid_of(folder, 0), pid_of(folder, 1)]
    launched.send_signal(signal.SIGKILL)
    launched.communicate(timeout=20)
    wait_until(lambda: not any(alive(pid) for pid in loops if pid), 30, "the end of both scripts")
    assert "its launcher is gone" in (folder / "out" / "peers" / "00" / "log.txt").read_text()


def rounds_in(folder: Path, node: int) -> list[int]:
    """The rounds of a participant's own record, as they stand there."""
    rows = (folder / "out" / "peers" / f"{node:02d}" / "metrics.jsonl").read_text().splitlines()
    return [row["round"] for row in map(json.loads, rows) if row["kind"] == "peer" and row["round"]]


@pytest.mark.parametrize(
    ("n", "kind", "how"),
    [
        pytest.param(2, ["--graph", "path"], signal.SIGINT, marks=pytest.mark.long),
        pytest.param(3, ["--coordinator", "--rounds", "30"], signal.SIGKILL, marks=pytest.mark.long),
    ],
    ids=["path-interrupted", "coordinator-killed"],
)
def test_a_launched_run_that_was_stopped_goes_on_by_one_command(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    n: int,
    kind: list[str],
    how: int,
) -> None:
    monkeypatch.setenv("ONE_STEP", "1")  # the script begins at the step of its peer's round
    words = ["launch", "-n", str(n), *kind, "--local-steps", "1", "--out", "out", "--show", "none", "--no-report"]
    launched = start([*words, "train.py", "30", "0.05"], folder)
    wait_until(lambda: rounds_of(folder, 1) > 4, 90, "rounds of loop 1")
    launched.send_signal(how)
    said = finish(launched)
    if how == signal.SIGINT:
        assert "To go on: fedgossip launch --resume out" in said.err
    resume = ["launch", "--resume", "out", "--run-code", "--show", "none", "--no-report"]
    again = in_process(resume, folder, monkeypatch, capsys)
    assert again.code == 0, again.err
    told = summary(folder, "out")
    assert told["status"] == "finished" and told["rounds"] == 30 and told["events"]["resumed"] >= n
    for node in range(n):
        rounds = rounds_in(folder, node)
        assert rounds == sorted(set(rounds)), "each round once, in order"
        # A killed client may have given a round what it needs and have no row of it: the next one is begun.
        assert len(set(range(1, 31)) - set(rounds)) <= (how == signal.SIGKILL)
    refused = in_process(resume, folder, monkeypatch, capsys)
    assert refused.code == 8 and "this run has ended" in refused.err


def test_only_what_was_launched_is_gone_on_with_by_launch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["launch", "-n", "1", "--simulate", "--out", "sim", "train.py", "2", "0"]
    assert in_process(words, folder, monkeypatch, capsys).code == 0
    refused = in_process(["launch", "--resume", "sim"], folder, monkeypatch, capsys)
    assert refused.code == 8 and refused.errors == ["error: sim: no run of launched scripts"]
    for more in ([], ["--set", "rounds=9"]):
        refused = in_process(["run", "--resume", "sim", *more], folder, monkeypatch, capsys)
        assert refused.code == 8 and refused.errors == ["error: sim: a run of simulated loops"]
        assert "give their command again" in refused.err
    again = in_process(words, folder, monkeypatch, capsys)
    assert again.errors == ["error: sim: not empty"] and "To go on" not in again.err
    (folder / "sim" / "peers").mkdir()
    other = in_process(["run", "--resume", "sim"], folder, monkeypatch, capsys)
    assert other.code == 8 and "fedgossip launch --resume sim" in other.err


def test_a_script_that_ends_before_it_joins_is_named_with_its_last_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").write_text("import nowhere_to_be_found\n")
    said = in_process(["launch", "-n", "2", "--out", "out", "train.py"], folder, monkeypatch, capsys)
    assert said.code == 5
    assert "ended with code 1 before it joined: ModuleNotFoundError: No module named 'nowhere_to_be_found'" in said.err


def test_a_simulated_script_with_a_syntax_error_shows_its_own_line_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").write_text("for at in range(2)\n    pass\n")
    said = in_process(["launch", "-n", "2", "--simulate", "train.py"], folder, monkeypatch, capsys)
    assert said.code == 5 and "for at in range(2)" in said.out and "simulating.py" not in said.out, said


def test_a_loop_that_may_not_join_leaves_its_launcher_the_advice_and_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDGOSSIP_LOOP", str(tmp_path / "seat.json"))
    monkeypatch.setattr("fedgossip.drivers.loops.joining._here", {})  # no test in this process has joined
    with pytest.raises(ConfigError) as refused:
        fedgossip.join(torch.nn.Linear(2, 1), None)
    reported = first_failure([last_word(tmp_path)])
    assert reported is not None and str(reported) == str(refused.value) and reported.exit_code == 2
    assert reported.advice == refused.value.advice


def test_loops_that_differ_are_refused_in_one_line_and_their_interrupts_are_not_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    halved = "model = model.to(torch.bfloat16) if os.environ['FEDGOSSIP_NODE'] == '1' else model\noptimizer ="
    (folder / "train.py").write_text(SCRIPT.replace("optimizer =", halved, 1))
    words = ["launch", "-n", "2", "--out", "out", "--show", "all", "train.py", "5", "0"]
    said = in_process(words, folder, monkeypatch, capsys)
    assert said.code == 2 and "'0.weight' of float32 here is of bfloat16 there" in said.errors[0], said
    assert "Traceback" not in said.out + said.err and "KeyboardInterrupt" not in said.out + said.err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["train.py"], "how many loops?"),
        ([], "which script?"),
        (["--resume", "gone", "--simulate"], "--resume and --simulate"),
        (["--resume", "gone", "--out", "there"], "--resume and --out"),
        (["-n", "2", "gone.py"], "gone.py: no such file"),
        (["-n", "2", "--coordinator", "--graph", "ring", "train.py"], "--coordinator and --graph"),
        (["-n", "2", "--coordinator", "--mode", "async", "train.py"], "--coordinator and --mode"),
        (["-n", "1", "--graph", "ring", "train.py"], "one loop has no other to exchange with on 'ring'"),
        (["-n", "2", "--show", "2", "train.py"], "--show 2: give numbers from 0 to 1"),
        (["-n", "2", "--set", "train.lr=1.0", "train.py"], "train.lr with task.kind = loop"),
        (["-n", "4", "--graph", "torus:3x3", "train.py"], "graph 'torus:3x3' has 9 nodes, not 4"),
        (["-n", "2", "--experiment", "e.toml", "train.py"], "stand in e.toml already"),
    ],
)
def test_what_cannot_be_launched_gets_one_line_and_one_of_advice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], error: str
) -> None:
    (folder / "e.toml").write_text('[topology]\ngraph = "ring"\nn = 2\n')
    said = in_process(["launch", *words], folder, monkeypatch, capsys)
    assert said.code == 2
    assert len(said.errors) == 1 and error in said.errors[0]
    assert len(said.err.splitlines()) == 2
    assert not (folder / "runs").exists()


def test_options_of_launch_behind_the_script_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = in_process(["launch", "train.py", "-n", "3", "--seed", "4"], folder, monkeypatch, capsys)
    assert said.code == 2 and "train.py gets -n: options of launch stand before the script" in said.err, said


def test_a_simulated_script_leaves_nothing_of_itself_in_this_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.modules["__main__"], list(sys.path), "FEDGOSSIP_NODE" in os.environ
    said: Output = in_process(
        ["launch", "-n", "3", "--simulate", "--json", "--out", "out", "train.py", "4", "0"], folder, monkeypatch, capsys
    )
    assert said.code == 0 and json.loads(said.out)["status"] == "finished"
    assert "beside" not in sys.modules
    assert (sys.modules["__main__"], list(sys.path), "FEDGOSSIP_NODE" in os.environ) == before
