"""One way to end: every command takes SIGTERM and SIGHUP as Ctrl-C, and its exit code says which of them it was."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from commands import alive, experiment, finish, in_process, start, wait_until

import fedgossip
from fedgossip.base import signals
from fedgossip.cli import COMMANDS, STOPPED, cli
from fedgossip.cli.people.invited import ended_script
from fedgossip.cli.run.run import _stopped_at_once
from fedgossip.core.run_format import LOG
from fedgossip.drivers.loops.scripts import Command, Scripts

SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}

SCRIPT = """
import os, sys, time, torch, fedgossip
torch.manual_seed(0); torch.set_num_threads(1)
m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), lr=0.01)
with fedgossip.join(m, o) as peer:
    for s in range(5_000):
        o.zero_grad(); m(torch.ones(8, 4)).pow(2).mean().backward(); o.step(); time.sleep(0.01); peer.step()
"""


def ends(of: str, command: click.Command) -> Iterator[list[str]]:
    """Every command that does something, as it is typed."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found
            yield from (words if of == "" else [of, *words] for words in ends(name, found))
    else:
        yield [of]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: signal.Signals(number).name)
def test_each_command_is_interrupted_by_each_signal_and_says_by_which(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(*_: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(5)
        raise AssertionError("it goes on")

    typed = list(ends("", cli))
    assert {words[0] for words in typed} == set(COMMANDS) and len(typed) > 60
    monkeypatch.setattr(click.Command, "parse_args", lambda _command, _context, words: words)
    monkeypatch.setattr(click.Command, "invoke", asked)
    monkeypatch.setattr("fedgossip.cli.run.launch._is_experiment", lambda *_: False)
    monkeypatch.setattr(signal, "getsignal", _as_started)
    for words in typed:
        said = in_process(words, tmp_path, monkeypatch, capsys)
        assert (said.code, said.errors) == (SIGNALS[number], ["error: stopped"]), words


_REAL = signal.getsignal


def _as_started(number: int) -> object:
    """As of a command that a shell starts: whoever runs the tests by nohup has them ignore SIGHUP."""
    found = _REAL(number)
    return signal.SIG_DFL if number == signal.SIGHUP and found is signal.SIG_IGN else found


def test_one_place_says_what_the_ending_signals_of_a_command_do() -> None:
    """Others would have exit codes, and last words, of their own.  A child's own process may have a handler."""
    child = {"drivers/peer.py", "drivers/clusters/node.py", "drivers/clusters/ray_cluster.py", "base/signals.py"}
    root = Path(fedgossip.__file__).parent
    sets = re.compile(r"(signal\.signal|add_signal_handler)\(.*(SIGTERM|SIGHUP|number)")
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if sets.search(path.read_text())}
    assert found <= child | {"drivers/clusters/slurm.py"}, found  # which has what it starts ignore its terminal


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.as_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.01)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_a_signal_did_before_it_does_afterwards(number: int) -> None:
    """What the caller starts then would else ignore a closed terminal."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), signals.as_interrupt():
            os.kill(os.getpid(), number)
            time.sleep(5)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(("seconds", "times"), [(1e9, 1), (0.0, 2)])
def test_a_signal_that_reaches_a_command_and_its_group_counts_once(
    seconds: float, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `timeout`: the second one would end the command before its state is written."""
    monkeypatch.setattr(signals, "TWICE_SECONDS", seconds)
    said: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: said.append(number))
    try:
        with signals.as_interrupt():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)
        assert len(said) == times
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_of_some_rounds_that_cannot_resume_is_not_reported_as_one_that_never_began(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"rounds": 2, "task": {"kind": "averaging"}, "topology": {"graph": "ring", "n": 2}}
    fedgossip.simulate(content, out=tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    for folder, words in (("run", "error: stopped at once\nagain\n"), ("none", "stopped before the run began")):
        assert _stopped_at_once(tmp_path / folder, "again", lambda _: False) == STOPPED
        assert words in capsys.readouterr().err


def test_a_handler_of_the_callers_own_stays() -> None:
    said: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: said.append(number))
    try:
        with signals.as_interrupt():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
        assert said == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def reached(folder: Path, rounds: int) -> bool:
    """Whether some round of a run is behind it."""
    record = folder / "metrics.jsonl"
    return record.exists() and f'"round":{rounds},' in record.read_text()


def children(pid: int) -> list[int]:
    """Every process that `pid` has started, and theirs."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    mine = [int(child) for one in tasks for child in one.read_text().split()]
    return mine + [grandchild for child in mine for grandchild in children(child)]


long = pytest.mark.long
LOCAL, SIMULATED, STACKED = ["run", "--on", "local"], ["run"], ["run", "--on", "stacked"]
PLACED = ["launch", "experiment.toml"]
SHARED = ["run", "--set", "train.processes=2"]
RACING = [*SHARED, "--set", "train.parallel=hogwild"]
LEARNING = """rounds = 20000
model.source = "softmax"
train = { local_steps = 4, device = "cpu" }
topology = { graph = "complete", n = 2 }
"""
LOOPS, GUIDED = ["launch", "-n", "2"], ["launch", "-n", "3", "--coordinator", "--rounds", "500"]  # a secure sum: of 3


@pytest.mark.sockets
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are counted in /proc")
@pytest.mark.parametrize(
    ("words", "number"),
    [
        pytest.param(LOCAL, signal.SIGHUP),
        pytest.param(SIMULATED, signal.SIGTERM, marks=long),
        pytest.param(LOOPS, signal.SIGTERM, marks=long),
        *(pytest.param(LOOPS, number, marks=long) for number in (signal.SIGINT, signal.SIGHUP)),
        *(pytest.param([*LOOPS, "--simulate"], number, marks=long) for number in SIGNALS),
        *(pytest.param(GUIDED, number, marks=long) for number in SIGNALS),
        *(pytest.param(STACKED, number, marks=long) for number in SIGNALS),
        *(pytest.param(PLACED, number, marks=long) for number in SIGNALS),
        *(pytest.param(LOCAL, number, marks=long) for number in (signal.SIGINT, signal.SIGTERM)),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) if isinstance(value, list) else value.name,
)
def test_a_signal_keeps_what_was_learned_says_how_to_go_on_and_leaves_no_process(
    words: list[str], number: signal.Signals, tmp_path: Path
) -> None:
    experiment(tmp_path, n=3, rounds=20_000)
    (tmp_path / "train.py").write_text(SCRIPT)
    what = ["train.py"] if words[0] == "launch" else ["experiment.toml"]
    what = [] if words is PLACED else what
    options = ["--local-steps", "1", "--show", "none"] if what == ["train.py"] else []
    command = start([*words, *options, "--no-report", "--out", "out", *what], tmp_path)
    wait_until(lambda: command.poll() is not None or reached(tmp_path / "out", 3), 120, "it learns")
    started = children(command.pid)
    command.send_signal(number)
    said = finish(command)
    assert said.code == SIGNALS[number], said
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "interrupted"
    resume = "launch" if what == ["train.py"] else "run"
    goes_on = "give the command again" if "--simulate" in words else f"To go on: fedgossip {resume} --resume out"
    assert goes_on in said.err and "Traceback" not in said.err, said.err
    assert not [pid for pid in started if alive(pid)]


STUBBORN = """
import sys, time
try:
    print("loaded", flush=True)
    time.sleep(100)
except KeyboardInterrupt:
    sys.exit(7)
"""


@pytest.mark.sockets
def test_a_script_receives_the_interrupt_of_a_launcher_that_ignores_it(tmp_path: Path) -> None:
    """As behind "&" in a shell: a script that inherited that would be killed at every stop."""
    (tmp_path / "loop.py").write_text(STUBBORN)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        scripts = Scripts(Command(tmp_path / "loop.py", folder=tmp_path), 1)
        scripts.start({"node": 0, "folder": str(tmp_path)})
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        wait_until(lambda: "loaded" in (tmp_path / LOG).read_text(), 60, "the script is there")
        scripts.stop()
    finally:
        signal.signal(signal.SIGINT, before)
    assert scripts.wait() == {0: 7}


LAUNCHER = """
import subprocess, sys, time
from fedgossip.base.signals import GroupWatch
watch = GroupWatch(0.2)
deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
kept, dropped = (
    subprocess.Popen([sys.executable, "-S", "-c", deaf], process_group=0, stdout=subprocess.PIPE) for _ in range(2)
)
for one in (kept, dropped):
    one.stdout.readline()
    watch.add(one.pid)
watch.drop(dropped.pid)
print(kept.pid, dropped.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.sockets
def test_a_launcher_that_is_killed_leaves_no_process_though_it_ignores_its_interrupt() -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE)
    assert launcher.stdout
    kept, dropped = map(int, launcher.stdout.readline().split())
    (watch,) = {*children(launcher.pid)} - {kept, dropped}
    launcher.kill()
    launcher.communicate()
    try:
        wait_until(lambda: not alive(kept) and not alive(watch), 20, "the group is ended")
        assert alive(dropped)
    finally:
        os.kill(dropped, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.sockets
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are counted in /proc")
@pytest.mark.parametrize("joined", [True, False], ids=["joined", "loading"])
@pytest.mark.parametrize(
    ("words", "least"),
    [
        *((LOCAL, 1), (SIMULATED, 0), (STACKED, 0), (PLACED, 1), (LOOPS, 3), (GUIDED, 4)),
        *(([*LOOPS, "--ranks", "2"], 3), (SHARED, 2), (RACING, 2)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else str(value),
)
def test_a_killed_command_leaves_no_process(words: list[str], least: int, joined: bool, tmp_path: Path) -> None:
    """It is killed when it learns, or as soon as it has started `least` processes."""
    experiment(tmp_path, n=3, rounds=20_000)
    if SHARED[-1] in words:
        (tmp_path / "experiment.toml").write_text(LEARNING)
    (tmp_path / "train.py").write_text(SCRIPT)
    what = ["train.py"] if words[0] == "launch" and words is not PLACED else ["experiment.toml"]
    what = [] if words is PLACED else what
    options = ["--local-steps", "1", "--show", "none"] if what == ["train.py"] else []
    command = start([*words, *options, "--no-report", "--out", "out", *what], tmp_path)
    there = (lambda: reached(tmp_path / "out", 3)) if joined else (lambda: len(children(command.pid)) >= least)
    wait_until(lambda: command.poll() is not None or there(), 300, "it learns")
    started = children(command.pid)
    assert len(started) >= least
    command.kill()
    finish(command)
    wait_until(lambda: not [pid for pid in started if alive(pid)], 60, "no process is left")


INTERRUPTED = """
import sys, time
from pathlib import Path
try:
    Path(sys.argv[1]).touch()
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(Path(sys.argv[1]).unlink() or 130)
"""


@pytest.mark.long
@pytest.mark.sockets
def test_the_script_of_a_member_is_interrupted_by_what_ends_its_command(tmp_path: Path) -> None:
    """`kill` reaches the command alone: it passes it on, and leaves no script behind."""
    mark = tmp_path / "runs"

    def asked() -> None:
        wait_until(mark.exists, 60, "the script runs")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=asked).start()
    with signals.as_interrupt():
        assert ended_script([sys.executable, "-c", INTERRUPTED, str(mark)], dict(os.environ)) == 130
    assert not mark.exists(), "it was interrupted, not killed"
