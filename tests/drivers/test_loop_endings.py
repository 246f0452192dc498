"""Ways to end a script with a loop of its own: simulated as launched, nothing hangs and no other loop loses a thing."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import in_process
from loops_kit import batches, net
from torch import nn

import fedgossip
from fedgossip.base import owner_files
from fedgossip.base.errors import ConfigError, NetworkError, TrainingError
from fedgossip.base.vectors import frozen
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.core.records import PeerRow
from fedgossip.core.run_format import OVER
from fedgossip.drivers.loops import description
from fedgossip.drivers.loops.asked import AnsweringLoop
from fedgossip.drivers.loops.joining import HostThread
from fedgossip.drivers.loops.seats import check_launched, hold, is_there
from fedgossip.drivers.loops.task import Meeting
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.own_loop.parameters import Exchanged
from fedgossip.runs.run_directory import RunLock

STEPS = 8


def leaving(node: int | None, code: object, *, within: bool, late: bool = False) -> Callable[[], None]:
    """A loop that leaves by sys.exit(code) at its half, where it is `node` (None: each), or `late`, at its end."""

    def run() -> None:
        model = net()
        peer = fedgossip.join(model, torch.optim.SGD(model.parameters(), lr=0.01))

        def steps() -> None:
            for at, (x, y) in enumerate(batches(peer.node, STEPS)):
                if at == STEPS // 2 and node in (None, peer.node) and not late:
                    sys.exit(code)
                nn.functional.mse_loss(model(x), y).backward()
                peer.step()

        if within:
            with peer:
                steps()
        else:
            steps()
        if late:
            peer.close()
            sys.exit(code)

    return run


@pytest.mark.parametrize("within", [True, False], ids=["with", "bare"])
@pytest.mark.parametrize("node", [None, 1], ids=["all", "one"])
@pytest.mark.parametrize("code", [None, 0])
def test_a_loop_that_leaves_by_a_good_exit_has_come_to_its_end(within: bool, node: int | None, code: object) -> None:
    run = fedgossip.simulate_loop(leaving(node, code, within=within), 2, overrides=["train.local_steps=2"])
    assert run.summary["status"] == "finished"
    assert run.summary["rounds"] == (STEPS // 4 if node is None else STEPS // 2)


@pytest.mark.parametrize("within", [True, False], ids=["with", "bare"])
def test_a_loop_that_leaves_by_a_bad_exit_does_not_hang_and_its_code_is_told(within: bool) -> None:
    with pytest.raises(TrainingError, match="loop 1 ended with code 3\n") as found:  # in its midst
        fedgossip.simulate_loop(leaving(1, 3, within=within), 2, overrides=["train.local_steps=2"])
    assert found.value.advice == "Its rounds until then count."


@pytest.mark.parametrize(
    "how", [["--simulate"], pytest.param([], marks=[pytest.mark.long, pytest.mark.sockets])], ids=["sim", "launched"]
)
def test_the_words_by_which_a_loop_left_a_partial_run_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: list[str]
) -> None:
    (tmp_path / "loop.py").write_text(
        """import sys, torch, fedgossip
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with fedgossip.join(model, optimizer) as peer:
    for at in range(2):
        if peer.node == 1:
            sys.exit("no data here")
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        peer.step()
"""
    )
    words = ["launch", "-n", "2", "--graph", "ring", "--local-steps", "1", *how, "loop.py"]
    said = in_process(words, tmp_path, monkeypatch, capsys)
    code = "'no data here'" if how else "1: no data here"
    assert said.code == 9 and f"loop 1 ended with code {code}" in said.err, said


@pytest.mark.sockets  # that is, it starts a process
@pytest.mark.filterwarnings("ignore:.*fork")
def test_the_end_of_a_process_that_a_loop_forked_ends_nothing_of_its_run() -> None:
    def forked(peer: fedgossip.JoinedLoop) -> None:
        code = 1
        try:
            with pytest.raises(ConfigError, match=r"step\(\) in another process than join"):
                peer.step()
            peer.close()
            peer.close_quietly()
            peer.leave(KeyboardInterrupt())
            code = 0
        finally:
            os._exit(code)

    def run() -> None:
        model = net()
        with fedgossip.join(model, torch.optim.SGD(model.parameters(), lr=0.01)) as peer:
            for at, (x, y) in enumerate(batches(peer.node, STEPS)):
                if at == STEPS // 2:
                    if not (child := os.fork()):
                        forked(peer)
                    assert os.waitpid(child, 0)[1] == 0
                nn.functional.mse_loss(model(x), y).backward()
                peer.step()

    run_of_all = fedgossip.simulate_loop(run, 2, overrides=["train.local_steps=2"])
    assert run_of_all.summary["status"] == "finished" and run_of_all.summary["rounds"] == STEPS // 2


def test_the_exit_of_a_main_that_returned_nothing_wrong_is_no_failure() -> None:
    run = fedgossip.simulate_loop(leaving(None, 0, within=False, late=True), 2, overrides=["train.local_steps=2"])
    assert run.summary["status"] == "finished"


@pytest.mark.parametrize("of_torch", [True, False], ids=["weights", "batches"])
def test_simulated_loops_without_a_seed_draw_unlike_numbers_as_processes_do(of_torch: bool) -> None:
    drawn: list[float] = []

    def run() -> None:
        drawn.append(float(torch.rand(1)))
        if not of_torch:
            torch.manual_seed(0)
        model = nn.Linear(4, 1)
        fedgossip.join(model, torch.optim.SGD(model.parameters(), lr=0.01)).step()

    how = ["rounds=1", "train.local_steps=1"]
    if of_torch:
        with pytest.raises(ConfigError, match="loops 0 and 1 begin with different first weights"):
            fedgossip.simulate_loop(run, 3, overrides=how)
    else:
        fedgossip.simulate_loop(run, 3, overrides=how)
        assert len({*drawn}) == 3


def test_a_loop_that_never_calls_step_is_told_that_nothing_of_it_was_exchanged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run() -> None:
        model = net()
        peer = fedgossip.join(model, torch.optim.SGD(model.parameters(), lr=0.01))
        if peer.node:
            next(model.parameters()).data += 1
        peer.close()

    fedgossip.simulate_loop(run, 2)
    assert capsys.readouterr().err == (
        "fedgossip: node 1: nothing was exchanged: step() was never called. Call it after each optimizer.step()\n"
    )


def test_a_simulated_script_that_raises_shows_its_traceback_as_a_launched_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SAVING)
    words = [
        "launch",
        "--simulate",
        "-n",
        "2",
        "--local-steps",
        "2",
        "--no-report",
        "--out",
        "out",
        "train.py",
        "raises",
    ]
    said = in_process(words, tmp_path, monkeypatch, capsys)
    assert said.errors == ["error: node 1, round 6: the loop raised RuntimeError: out of memory, say"]
    shown = said.out.splitlines()
    assert shown[0].startswith("Traceback") and "train.py" in shown[1] and "fedgossip/" not in said.out


@pytest.mark.parametrize("name", ["dsgd", "push-sum"])
def test_an_asynchronous_loop_holds_the_model_that_its_peer_ends_with(name: str) -> None:
    """Its neighbours go on when it has closed: what they still give is in its model, as it is in its peer's."""
    held: dict[int, torch.Tensor] = {}

    def run() -> None:
        model = net()
        peer = fedgossip.join(model, torch.optim.Adam(model.parameters(), lr=0.05))
        for x, y in batches(peer.node, 6 + 5 * peer.node):  # each ends at another time
            model.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            for one in model.parameters():
                one.data -= 0.05 * one.grad  # type: ignore[operator]
            peer.step()
        peer.close()
        held[peer.node] = torch.from_numpy(Exchanged(model).read().copy())

    how = ["train.local_steps=2", 'algorithm.mode="async"', f'algorithm.name="{name}"']
    ended = fedgossip.simulate_loop(run, 3, overrides=how)
    rows = [row for row in ended.rows if isinstance(row, PeerRow)]
    assert [max(row.round for row in rows if row.peer == node) for node in range(3)] == [3, 6, 8], "as many as it makes"
    for node, vector in enumerate(ended.vectors):
        assert vector is not None and np.array_equal(held[node].numpy(), vector), node


def test_a_frozen_copy_that_has_moved_since_does_not_keep_a_loop_from_coming_back(tmp_path: Path) -> None:
    """A teacher, an average of weights, a target network: what is compared is what the first life began with."""
    first, layout = frozen(np.zeros(3, np.float32)), Layout(("w",), ((3,),), 3)
    began = description.model_of(layout, Likeness(frozen=(1.0, 2.0), probe=(3.0,)))
    moved = description.model_of(layout, Likeness(frozen=(1.5, 2.5), probe=(4.0,)))
    description.describe(tmp_path, began, first)
    assert description.describe(tmp_path, moved, first).likeness == began.likeness


# --- a launcher that is gone, a run that is over --------------------------------------------------------------------


@pytest.mark.sockets
def test_a_loop_whose_launcher_is_gone_waits_for_no_question() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert is_there(os.getpid()) and is_there(0)
    with pytest.raises(NetworkError, match="its launcher is gone"):
        check_launched(SimpleNamespace(launcher=process.pid))  # type: ignore[arg-type]
    asking = SimpleNamespace(_stop=threading.Event(), ended=None, _launcher=process.pid)
    assert not HostThread._launched(asking)  # type: ignore[arg-type]
    assert HostThread._launched(SimpleNamespace(**{**vars(asking), "_launcher": os.getpid()}))  # type: ignore[arg-type]


@pytest.mark.parametrize("over", [True, False])
def test_a_peer_that_waits_in_a_run_that_is_over_is_stopped_and_no_other(over: bool, tmp_path: Path) -> None:
    stopped, alive = threading.Event(), threading.Event()
    loop = AnsweringLoop(tmp_path, 0, Meeting(), lambda: not alive.is_set(), stopped.set)
    if over:
        (tmp_path / OVER).touch()
    else:
        alive.set()
    until = time.monotonic() + 20
    while loop.needed and time.monotonic() < until:
        time.sleep(0.01)
    assert not loop.needed and stopped.is_set() == over


# --- a disk without locks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_disk_without_locks_keeps_nobody_out_and_one_line_says_so(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(owner_files, "_warned", False)
    hold(tmp_path)
    RunLock(tmp_path).release()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "no file locks" in said[0]
    file = owner_files.opened_to_lock(tmp_path / "file")
    assert owner_files.try_lock(file) and owner_files.try_lock_if_any(file) is None
    os.close(file)


def test_a_script_that_joins_again_is_refused_as_that(tmp_path: Path) -> None:
    hold(tmp_path)
    with pytest.raises(ConfigError, match="this script has joined before"):
        hold(tmp_path)


# --- launched -------------------------------------------------------------------------------------------------------

SAVING = """
import os, sys, time
how, node = sys.argv[1], int(os.environ["FEDGOSSIP_NODE"])
if how == "loading" and node == 1 and not os.path.exists("died"):
    open("died", "w").close()
    os.kill(os.getpid(), 9)
import torch, fedgossip
torch.manual_seed(0); torch.set_num_threads(1)
m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), lr=0.01); peer = fedgossip.join(m, o)
for s in range(20):
    o.zero_grad(); m(torch.ones(8, 4)).pow(2).mean().backward(); o.step()
    if how == "raises" and node == 1 and s == 12:
        raise RuntimeError("out of memory, say")
    peer.step()
peer.close()
time.sleep(1.5 * (how == "raises"))
torch.save(m.state_dict(), f"saved{node}.pt")
"""


@pytest.mark.sockets
def test_where_one_loop_raises_the_others_save_their_models_and_its_traceback_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_compiler: None
) -> None:
    (tmp_path / "train.py").write_text(SAVING)
    words = ["launch", "-n", "2", "--local-steps", "2", "--no-report", "--out", "out", "train.py", "raises"]
    said = in_process(words, tmp_path, monkeypatch, capsys)
    assert said.code == 5 and (tmp_path / "saved0.pt").exists()
    assert said.errors == ["error: node 1, round 6: the loop raised RuntimeError: out of memory, say"]
    assert "RuntimeError: out of memory, say" in said.out and "KeyboardInterrupt" not in said.out


@pytest.mark.sockets
def test_a_script_that_is_killed_while_it_loads_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_compiler: None
) -> None:
    (tmp_path / "train.py").write_text(SAVING)
    words = ["launch", "-n", "2", "--restarts", "5", "--no-report", "--out", "out", "train.py", "loading"]
    said = in_process(words, tmp_path, monkeypatch, capsys)
    assert said.code == 0 and "1 restarted" in said.out and (tmp_path / "saved1.pt").exists()
    assert "round 0, peer 1: started again\n" in said.err
