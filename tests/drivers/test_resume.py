"""A run that was stopped goes on where it was, with the same bits; or says why it cannot."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from commands import HANG_SECONDS, Output, finish, free_ports, in_process, no_secrets_in, start, wait_until
from commands import experiment as experiment_file

from fedgossip.audit.log import read as read_log
from fedgossip.base.errors import ConfigError, FedgossipError, ResumeError
from fedgossip.cli.run.run import show
from fedgossip.core.machine import Checkpoint
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row, read_rows
from fedgossip.core.run_format import CHECKPOINT, CHECKPOINT_BEFORE
from fedgossip.core.task import Job, memory_of
from fedgossip.drivers import image_write, sim_checkpoint
from fedgossip.drivers.local import run_local_plan
from fedgossip.drivers.peer import _PeerLife
from fedgossip.drivers.resume import resume
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import Experiment, load_experiment
from fedgossip.net.host_ports import ALONE
from fedgossip.plans import compose
from fedgossip.runs import checkpoints, incarnations, run_directory
from fedgossip.runs.incarnations import prepare
from fedgossip.runs.run_directory import Run, RunLock

ROUNDS = 7


def experiment(*overrides: str, **top: Any) -> Experiment:
    content = {
        "rounds": ROUNDS,
        "topology": {"graph": "ring", "n": 5},
        "eval": {"every": 3},
        "train": {"local_steps": 2, "device": "cpu"},
        "simulation": {"jitter": 0.01, "speed_spread": 0.4, "training_jitter": 0.3},
        **top,
    }
    return load_experiment(content, overrides)


def ctrl_c_after(round: int) -> Callable[[Row], None]:
    """Press Ctrl-C when the network's row of `round` comes."""

    def watch(row: Row) -> None:
        if isinstance(row, NetworkRow) and row.round == round:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


def stopped(folder: Path, what: Experiment, engine: str, round: int) -> Run:
    return simulate_plan(compose.plan(what), engine=engine, out=folder, watch=ctrl_c_after(round))


def resumed(folder: Path, what: Experiment, engine: str, watch: Callable[[Row], None] | None = None) -> Run:
    return simulate_plan(compose.plan(what), engine=engine, out=folder, resume=True, watch=watch)


MODELS = {
    "averaging": ["task.kind=averaging", "task.dim=9"],
    "momentum": ["train.momentum=0.9", "train.nesterov=true"],
    "adam": ["train.optimizer=adam", "train.lr=0.01", "train.schedule=cosine"],
    "private": ["task.kind=averaging", "task.dim=9", "algorithm.private=true", "topology.graph=complete"],
    "diloco": ["task.kind=averaging", "task.dim=9", "algorithm.name=diloco"],
    "relaysgd": ["task.kind=averaging", "task.dim=9", "algorithm.name=relaysgd", "topology.graph=tree"],
    "norm": ["model.source=cnn:small-bn", "train.buffers=local", "train.local_steps=1", "train.batch_size=4"],
}


@pytest.mark.parametrize("engine", ["sim", "stacked"])
@pytest.mark.parametrize("model", MODELS)
def test_a_simulation_goes_on_bit_for_bit(tmp_path: Path, engine: str, model: str) -> None:
    what = experiment(*MODELS[model])
    whole = simulate_plan(compose.plan(what), engine=engine, out=tmp_path / "whole")
    first = stopped(tmp_path / "run", what, engine, 2)
    assert first.summary["status"] == "interrupted" and first.digest is None
    again = resumed(tmp_path / "run", what, engine)
    assert again.digest == whole.digest is not None
    same = "seconds", "score", "bytes_sent", "measured_contraction", "events", "status", "rounds"
    assert {key: again.summary[key] for key in same} == {key: whole.summary[key] for key in same}
    assert again.rows == whole.rows == read_rows(tmp_path / "run" / "metrics.jsonl")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert not (tmp_path / "run" / "INCOMPLETE").exists() and not list((tmp_path / "run").glob("checkpoint*"))


def test_a_run_that_was_stopped_is_not_said_to_have_trained_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show(stopped(tmp_path, experiment(*MODELS["momentum"]), "sim", 2))
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("model "))
    assert line.endswith("none: the run did not reach its end")


@pytest.mark.parametrize("engine", ["sim", "stacked"])
@pytest.mark.parametrize("delay", [pytest.param(0, marks=pytest.mark.long), 1])
def test_outer_steps_of_workers_go_on_bit_for_bit(tmp_path: Path, engine: str, delay: int) -> None:
    """With the outer momentum, what a codec left out, AdamW's moments, and a mean that is on its way."""
    what = load_experiment(
        {
            "rounds": ROUNDS,
            "train": {"optimizer": "adamw", "lr": 0.003, "local_steps": 2, "device": "cpu"},
            "parallel": {"workers": 3, "codec": "top-k:0.1", "outer": {"lr": 0.7, "beta": 0.9, "delay": delay}},
            "eval": {"every": 3},
        }
    )
    whole = simulate_plan(compose.plan(what), engine=engine)
    assert stopped(tmp_path, what, engine, 3).summary["status"] == "interrupted"
    assert resumed(tmp_path, what, engine).digest == whole.digest is not None


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_a_simulation_may_be_stopped_in_every_round(tmp_path: Path, engine: str) -> None:
    what = experiment(*MODELS["momentum"])
    whole = simulate_plan(compose.plan(what), engine=engine)
    stopped(tmp_path, what, engine, 0)
    for round in range(1, ROUNDS):
        run = resumed(tmp_path, what, engine, ctrl_c_after(round))
        assert run.summary["status"] == "interrupted"
    run = resumed(tmp_path, what, engine)
    assert run.digest == whole.digest and run.rows == whole.rows


@pytest.mark.sockets
def test_clients_and_coordinator_of_a_run_that_was_stopped_sign_on_in_their_own_logs(tmp_path: Path) -> None:
    """Each has made its keys itself; the next life of it has the same, or nobody would believe its log.

    Without chance each round from one model repeats the round that was lost, which is masked again.
    """
    content = {"rounds": 60, "task": {"kind": "quadratic"}, "coordinator": {"clients": 3}}
    what = load_experiment(content | {"eval": {"every": 100}})

    def stop(row: Row) -> None:
        if isinstance(row, PeerRow) and row.peer == 3 and row.round == 3:
            os.kill(os.getpid(), signal.SIGINT)

    first = run_local_plan(compose.plan(what), tmp_path / "run", watch=stop, report=False)
    assert first.summary["status"] == "interrupted" and 0 < first.summary["rounds"] < 60
    assert no_secrets_in(tmp_path / "run")
    again = run_local_plan(compose.plan(what), tmp_path / "run", resume=True, report=False)
    assert again.summary["status"] == "finished"
    assert again.summary["events"]["abandoned"] == 1 and "abstained" not in again.summary["events"]
    for node in range(4):
        log = tmp_path / "run" / "peers" / f"{node:02d}" / "audit.jsonl"
        assert read_log(log).last.number > 0 and log.read_text().count('"reopened"') == 1


FALLING = """
import os, pathlib, sys, time

import numpy as np


def data():
    place = pathlib.Path(__file__).with_name("fallen")
    if "fork_server" in str(getattr(sys.modules["__main__"], "__file__", "")):
        try:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            while not place.with_name("run").joinpath("endpoints.toml").exists():  # all others listen
                time.sleep(0.05)
            raise RuntimeError("no such disk")
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(int)
"""


@pytest.mark.sockets
def test_one_that_fails_before_it_has_begun_ends_the_run_at_once(tmp_path: Path, monkeypatch: Any) -> None:
    """The others would wait start_timeout for it, which is 300 s."""
    (tmp_path / "falling_data.py").write_text(FALLING)
    monkeypatch.syspath_prepend(tmp_path)
    content = {"rounds": 2, "data": {"source": "falling_data:data"}, "model": {"source": "softmax"}}
    what = load_experiment(content | {"coordinator": {"clients": 3}, "train": {"device": "cpu"}})
    began = time.monotonic()
    with pytest.raises(FedgossipError, match="no such disk"):
        run_local_plan(compose.plan(what), tmp_path / "run", report=False)
    assert time.monotonic() - began < 150


FAULTS = [
    {"kind": "crash", "peers": [1], "start": 0.12, "after": 0.1},
    {"kind": "drop", "probability": 0.2},
    {"kind": "delay", "seconds": 0.02},
]


def test_faults_go_on_too(tmp_path: Path) -> None:
    what = experiment("train.momentum=0.9", "algorithm.deadline=0.5", faults=FAULTS, rounds=12)
    whole = simulate_plan(compose.plan(what))
    assert {"crashed", "restarted", "lost"} <= set(whole.summary["events"])
    stopped(tmp_path, what, "sim", 1)
    for round in (3, 8):
        resumed(tmp_path, what, "sim", ctrl_c_after(round))
    run = resumed(tmp_path, what, "sim")
    assert run.digest == whole.digest and run.rows == whole.rows
    assert run.summary["events"] == whole.summary["events"]


def test_deadlines_go_on_as_they_were(tmp_path: Path) -> None:
    """They follow the last 32 waits: a resumed run must not remember more of them than one that was never stopped."""
    faults = [{"kind": "slow", "peers": [1], "factor": 30.0, "start": 2.5}, {"kind": "drop", "probability": 0.02}]
    least = "algorithm.least_deadline=0.1"
    what = experiment(
        *MODELS["averaging"], "simulation.training=0.05", least, faults=faults, rounds=140, eval={"every": 20}
    )
    whole = simulate_plan(compose.plan(what))
    assert whole.summary["events"]["missed"] > 10
    stopped(tmp_path, what, "sim", 40)
    run = resumed(tmp_path, what, "sim")
    assert run.summary["events"] == whole.summary["events"]
    assert run.summary["seconds"] == whole.summary["seconds"]
    assert run.rows == whole.rows and run.digest == whole.digest


def test_what_an_image_cannot_hold_whole_is_refused() -> None:
    """A container of another kind has more to it than its contents: a length, a default, an order of its own."""
    kept = [
        deque([1, 2, 3], maxlen=3),
        deque([1]),
        [0.1],
        b"a",
        (2**70,),
        {1: {2}},
        frozenset({3}),
        Counter("aab"),
        OrderedDict(a=1),
    ]
    again = image_write.restored(image_write.write_image([], kept, {}), [], {})[1]
    assert [one.maxlen for one in again[:2]] == [3, None]
    assert again == kept and [*map(type, again)] == [*map(type, kept)]
    mine = type("Mine", (tuple,), {"__module__": "fedgossip.here"})
    for one in (defaultdict(list), signal.SIGINT, mine((1,))):
        with pytest.raises(image_write.ImageError):
            image_write.write_image([], [one], {})


def test_parts_of_one_array_share_its_memory_again() -> None:
    held = np.arange(6.0)
    kept = [held[2:4], held, held[::2]]
    part, whole, second = image_write.restored(image_write.write_image([], kept, {}), [], {})[1]
    part[0] = 9
    assert whole[2] == second[1] == 9 and (whole[3:] == [3, 4, 5]).all()


def test_asynchronous_gossip_goes_on_too(tmp_path: Path) -> None:
    what = experiment("algorithm.mode=async", "train.momentum=0.9", "simulation.training=0.02")
    whole = simulate_plan(compose.plan(what))
    stopped(tmp_path, what, "sim", 1)
    for round in (3, 5):
        resumed(tmp_path, what, "sim", ctrl_c_after(round))
    run = resumed(tmp_path, what, "sim")
    assert run.digest == whole.digest and run.rows == whole.rows


def test_a_run_that_was_killed_goes_on_from_the_image_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    what = experiment()
    whole = simulate_plan(compose.plan(what))
    monkeypatch.setattr(sim_checkpoint, "SECONDS", 0.0)
    stopped(tmp_path, what, "sim", 2)
    with (tmp_path / "metrics.jsonl").open("ab") as rows:
        rows.write(b'{"kind":"peer","round":3,"pe')  # what a kill leaves
    assert resumed(tmp_path, what, "sim").rows == whole.rows


def test_a_run_that_another_command_is_at_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "PATIENCE_SECONDS", 0.0)
    what = experiment("task.kind=averaging", "task.dim=9")
    stopped(tmp_path, what, "sim", 2)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    other = RunLock(tmp_path)
    for go_on in (resumed, lambda *run: prepare(tmp_path, [], compose.plan(what), "", "")):
        with pytest.raises(ResumeError, match="another command is running"):
            go_on(tmp_path, what, "sim")
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    other.release()
    assert resumed(tmp_path, what, "sim").digest == simulate_plan(compose.plan(what)).digest


@pytest.mark.parametrize("content", [b"[1]", b"{", None])
def test_a_summary_that_cannot_be_read_is_no_killed_run(tmp_path: Path, content: bytes | None) -> None:
    """Going on would train the rounds of a run that is whole once more."""
    what = experiment("task.kind=averaging", "task.dim=9", rounds=1)
    simulate_plan(compose.plan(what), out=tmp_path)
    (tmp_path / "summary.json").unlink()
    (tmp_path / "summary.json").write_bytes(content) if content else os.mkfifo(tmp_path / "summary.json")
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ResumeError, match=r"summary\.json: cannot be read \("):
        resume(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_run_that_was_killed_behind_its_summary_is_not_trained_again(tmp_path: Path) -> None:
    what = experiment("task.kind=averaging", "task.dim=9", rounds=1)
    simulate_plan(compose.plan(what), out=tmp_path)
    (tmp_path / "INCOMPLETE").touch()
    with pytest.raises(ResumeError, match="this run has ended"):
        resume(tmp_path)
    assert resume(tmp_path, experiment("task.kind=averaging", "task.dim=9", rounds=3)).summary["rounds"] == 3


def test_a_directory_that_cannot_be_gone_on_in_is_closed_and_free(tmp_path: Path) -> None:
    """An open record that nobody closes is a ResourceWarning, which fails a test."""
    what = experiment("task.kind=averaging", "task.dim=9")
    stopped(tmp_path, what, "sim", 2)
    (tmp_path / "summary.json").unlink()
    (tmp_path / "summary.json").mkdir()  # it cannot be deleted as a file
    with pytest.raises(ConfigError, match=str(tmp_path)):
        resumed(tmp_path, what, "sim")
    (tmp_path / "summary.json").rmdir()
    assert resumed(tmp_path, what, "sim").digest == simulate_plan(compose.plan(what)).digest


@pytest.mark.parametrize("bytes_left", [0, 200])
def test_a_simulation_whose_record_was_cut_behind_its_image_begins_again(tmp_path: Path, bytes_left: int) -> None:
    what = experiment()
    stopped(tmp_path, what, "sim", 2)
    os.truncate(tmp_path / "metrics.jsonl", bytes_left)
    again = resumed(tmp_path, what, "sim")
    told = [row for row in again.rows if isinstance(row, EventRow) and row.name == "checkpoint_refused"]
    assert "bytes of metrics.jsonl" in str(told[0].value)
    whole = [row for row in again.rows if row not in told]
    assert whole == simulate_plan(compose.plan(what)).rows


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_without_an_image_a_simulation_begins_again(tmp_path: Path, engine: str) -> None:
    what = experiment()
    stopped(tmp_path, what, engine, 2)
    for path in tmp_path.glob("checkpoint*"):
        path.unlink()
    assert resumed(tmp_path, what, engine).rows == simulate_plan(compose.plan(what), engine=engine).rows


def test_a_bad_image_is_told_and_the_run_begins_again(tmp_path: Path) -> None:
    what = experiment()
    stopped(tmp_path, what, "sim", 2)
    content = bytearray((tmp_path / CHECKPOINT).read_bytes())
    content[-1] ^= 1
    (tmp_path / CHECKPOINT).write_bytes(content)
    run = resumed(tmp_path, what, "sim")
    assert run.digest == simulate_plan(compose.plan(what)).digest
    (told,) = (row for row in run.rows if isinstance(row, EventRow))
    assert told.name == "checkpoint_refused" and isinstance(told.value, dict) and told.value["reason"] == "corrupt"
    assert run.summary["events"] == {"checkpoint_refused": 1}


def test_a_bad_image_is_not_written_over_the_good_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    what = experiment()
    monkeypatch.setattr(sim_checkpoint, "SECONDS", 0.0)
    stopped(tmp_path, what, "sim", 2)
    good = (tmp_path / CHECKPOINT_BEFORE).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(b"not an image")
    monkeypatch.setattr(sim_checkpoint, "SECONDS", 1e9)
    run = resumed(tmp_path, what, "sim", ctrl_c_after(4))
    assert run.summary["status"] == "interrupted"
    assert (tmp_path / CHECKPOINT_BEFORE).read_bytes() == good
    assert resumed(tmp_path, what, "sim").digest == simulate_plan(compose.plan(what)).digest


def test_a_full_disk_costs_the_image_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sim_checkpoint, "SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "write_tensors", full)
    run = simulate_plan(compose.plan(experiment()), out=tmp_path)
    assert run.summary["status"] == "finished"
    assert run.summary["events"]["checkpoint_failed"] > 0
    assert run.digest == simulate_plan(compose.plan(experiment())).digest


def test_another_experiment_is_refused_by_its_keys_and_nothing_changes(tmp_path: Path) -> None:
    stopped(tmp_path, experiment(), "sim", 2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ResumeError, match="lr: was 0") as error:
        resumed(tmp_path, experiment("train.lr=0.05", "simulation.jitter=0.0"), "sim")
    assert all(
        text in str(error.value) for text in ("train.lr: was 0.1, is 0.05", "simulation.jitter: was 0.01, is 0.0")
    )
    assert error.value.exit_code == 8
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_function_of_ones_own_that_has_changed_since_is_named_and_nothing_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "from fedgossip.topology import resolve\n\n\ndef made(n, seed):\n    return resolve('ring', n)\n"
    (tmp_path / "changing_graph.py").write_text(text)
    mine = experiment("task.kind=averaging", topology={"graph": "changing_graph:made", "n": 5})
    stopped(tmp_path / "run", mine, "sim", 2)
    (tmp_path / "changing_graph.py").write_text(f"{text}\n\n# another one\n")
    with pytest.raises(ResumeError, match="changing_graph:made: another source") as error:
        resumed(tmp_path / "run", mine, "sim")
    assert error.value.exit_code == 8
    (tmp_path / "changing_graph.py").write_text(text.replace("\n", "  \r\n"))  # as another editor writes it
    assert resumed(tmp_path / "run", mine, "sim").summary["status"] == "finished"


def test_rounds_may_grow(tmp_path: Path) -> None:
    stopped(tmp_path, experiment(), "sim", 2)
    more = experiment(rounds=ROUNDS + 2)
    assert resumed(tmp_path, more, "sim").digest == simulate_plan(compose.plan(more)).digest


# --- real peers, and the command line -------------------------------------------------------------------------------


def last_round(path: Path) -> int:
    return max((row.round for row in read_rows(path) if isinstance(row, PeerRow)), default=0) if path.exists() else 0


def check_rows(path: Path, rounds: int, peer: int | None = None) -> None:
    """Every round once, in order, but those told as skipped; nothing of a life that is no more."""
    rows = read_rows(path)
    over = skipped(rows, peer or 0)
    done = [row.round for row in rows if isinstance(row, PeerRow) and row.peer == (peer or 0)]
    assert done == [round for round in range(1, rounds + 1) if round not in over]
    if peer is None:
        assert [row.round for row in rows if isinstance(row, NetworkRow)] == list(range(rounds + 1))
    seconds = [row.seconds for row in rows if isinstance(row, PeerRow) and row.peer == (peer or 0)]
    assert seconds == sorted(seconds)


def skipped(rows: Sequence[Row], peer: int) -> set[int]:
    """The rounds that a peer says it has left out: one behind the others when all were stopped goes on in theirs."""
    told = [row for row in rows if isinstance(row, EventRow) and row.name == "skipped" and row.peer == peer]
    return {round for row in told for round in range(row.round - int(str(row.value)) + 1, row.round + 1)}


@pytest.mark.parametrize(("kind", "kept"), [("coordinator", [4, 3, 4]), ("topology", [5, 3, 4])])
def test_rows_of_a_round_that_a_client_does_again_are_cut(
    kind: str, kept: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client ahead of its coordinator is invited to that round again; a peer of a graph goes on in its own."""
    clients = {"clients": 2, "min_clients": 2, "secure": {"on": False}}
    who = {"coordinator": clients} if kind == "coordinator" else {"topology": {"graph": "ring", "n": 3}}
    reached = iter([5, 3, 4])  # the last is the coordinator's
    stored = lambda *_: (SimpleNamespace(machine=SimpleNamespace(round=next(reached))), None)  # noqa: E731
    monkeypatch.setattr(checkpoints, "load", stored)
    folders = [tmp_path / str(node) for node in range(3)]
    for node, folder in enumerate(folders):
        folder.mkdir()
        rows = [PeerRow(round, node, 0.0, 0.0, 0, 0, 0.0, 0.0, 0.0, 0.0) for round in range(1, 7)]
        (folder / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    prepare(tmp_path / "out", folders, compose.plan(load_experiment({"rounds": 9, **who})), "", "")
    assert [last_round(folder / "metrics.jsonl") for folder in folders] == kept


@pytest.mark.parametrize("round", [3, 4])
def test_a_peer_that_trains_a_round_again_begins_from_its_state_before_it(round: int, tmp_path: Path) -> None:
    """The checkpoint is of a client that has trained round 3; its coordinator asks for that round, or for the next."""
    who = {"clients": 2, "min_clients": 2, "personal": "ditto", "secure": {"on": False}}
    plan = compose.plan(load_experiment({"rounds": 9, "train": {"device": "cpu"}, "coordinator": who}))
    states: dict[str, Any] = {}
    (tmp_path / "metrics.jsonl").touch()
    for begin in (incarnations.first, incarnations.next_after):
        task, _ = compose.task_of(plan.experiment, plan.learners, [0])
        life = begin(plan, 0, tmp_path, task.schema, "")
        files: Any = SimpleNamespace(folder=tmp_path, node=0, started=lambda *_: None)
        made: Any = SimpleNamespace(make=lambda *_: None)
        hello: Any = None
        one, x = _PeerLife(plan, task, hello, files, life, None, 10.0, made, None, ALONE), task.initial(0)
        with contextlib.ExitStack() as stack:
            one._machine(0, stack)
        if life.resumed:
            one._begin(Job(0, round, x))
            states["again"] = memory_of(task, 0)
            break
        for number in (2, 3):
            states[f"before {number}"] = memory_of(task, 0)
            one._begin(Job(0, number, x))
            task.train([Job(0, number, x)])
        states["before 4"] = memory_of(task, 0)
        one._keep(Checkpoint(4, {"x": x}, unsettled=True))
        one._kept.close()
    again, before = states["again"], states[f"before {round}"]
    assert before and again.keys() == before.keys() and all(np.array_equal(again[k], before[k]) for k in again)
    assert any(not np.array_equal(states["before 3"][k], states["before 4"][k]) for k in states["before 3"])


def interrupted_in(process: subprocess.Popen[str], rows: Path, round: int) -> Output:
    """Press Ctrl-C when so many rounds are behind; return what it said."""
    wait_until(lambda: last_round(rows) >= round or process.poll() is not None, HANG_SECONDS, f"round {round}")
    process.send_signal(signal.SIGINT)
    said = finish(process)
    assert said.code == 130, said
    return said


def words_after(said: Output) -> list[str]:
    """The line that goes on, as the shell would take it apart."""
    (line,) = (line.partition(": ")[2] for line in said.err.splitlines() if line.startswith("To go on: "))
    program, *words = shlex.split(line)
    assert program == "fedgossip"
    return words


@pytest.mark.sockets
@pytest.mark.parametrize("on", ["sim", pytest.param("stacked", marks=pytest.mark.long), "local"])
def test_ctrl_c_prints_the_line_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], on: str
) -> None:
    more = "" if on == "local" else "[eval]\nevery = 1\n"
    file = experiment_file(tmp_path, rounds=ENOUGH, more=more, top="[algorithm]\nleast_deadline = 60.0\n")
    process = start(["run", file.name, "--on", on, "--out", "a run", "--no-report", *SLOW[on]], tmp_path)
    words = words_after(interrupted_in(process, tmp_path / "a run" / "metrics.jsonl", 3))
    assert words == ["run", "--resume", "a run"]
    stopped_at = last_round(tmp_path / "a run" / "metrics.jsonl")
    said = in_process([*words, "--no-report", "--json"], tmp_path, monkeypatch, capsys)
    assert said.code == 0, said
    summary = json.loads(said.out)
    assert summary["status"] == "finished" and summary["rounds"] == ENOUGH > stopped_at
    check_rows(tmp_path / "a run" / "metrics.jsonl", ENOUGH)
    if on != "local":
        whole = in_process(
            ["run", file.name, "--on", on, "--no-report", "--json", *SLOW[on]], tmp_path, monkeypatch, capsys
        )
        assert summary["digest"] == json.loads(whole.out)["digest"]
    again = in_process(words, tmp_path, monkeypatch, capsys)
    assert again.code == 8 and "has ended" in again.errors[0]


ENOUGH = 80
SLOW = {
    "sim": ["--set", "task.dim=60000"],
    "stacked": ["--set", "task.dim=400000"],
    "local": ["--set", "task.dim=200000"],
}
"""So that there is time to press the keys."""


@pytest.mark.sockets
@pytest.mark.long
def test_real_peers_remember_what_their_optimizer_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All peers go on from one round: then the run ends with the digest of one that was never stopped."""
    more = '[train]\ndevice = "cpu"\nmomentum = 0.9\nlocal_steps = 1\n[model]\nsource = "softmax"\n'
    file = tmp_path / "learning.toml"
    file.write_text(f'rounds = 4\n{more}[topology]\ngraph = "ring"\nn = 3\n')
    first = in_process(
        ["run", file.name, "--on", "local", "--out", "r", "--no-report", "--trace"], tmp_path, monkeypatch, capsys
    )
    assert first.code == 0, first
    words = ["run", file.name, "--resume", "r", "--set", "rounds=9", "--no-report", "--json", "--trace"]
    said = in_process(words, tmp_path, monkeypatch, capsys)
    assert said.code == 0, said
    whole = simulate_plan(compose.plan(load_experiment(file, ["rounds=9"])))
    assert json.loads(said.out)["digest"] == whole.digest
    check_rows(tmp_path / "r" / "metrics.jsonl", 9)
    for peer in range(3):
        check_rows(tmp_path / "r" / "peers" / f"0{peer}" / "metrics.jsonl", 9, peer)
    replayed = in_process(["replay", "r", "--json"], tmp_path, monkeypatch, capsys)
    lives = [json.loads(line) for line in replayed.out.splitlines()]
    assert replayed.code == 0 and [(one["peer"], one["incarnation"]) for one in lives] == [
        (peer, life) for peer in range(3) for life in (0, 1)
    ]
    assert all(one["equal"] and one["end"] == "finished" for one in lives)


@pytest.mark.sockets
def test_a_peer_goes_on_in_its_folder_by_the_line_that_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = experiment_file(tmp_path, n=2, rounds=800, graph="complete", top="[algorithm]\nleast_deadline = 30.0\n")
    ports = free_ports(2)
    text = ""
    for k in range(2):
        key = ["keys", "new", "--id", str(k), "--address", f"tcp://127.0.0.1:{ports[k]}", "--out", f"{k}.key"]
        said = in_process(key, tmp_path, monkeypatch, capsys)
        assert said.code == 0, said
        text += said.out
    (tmp_path / "endpoints.toml").write_text(text)

    def words(k: int) -> list[str]:
        given = ["peer", file.name, "--id", str(k), "--endpoints", "endpoints.toml", "--key", f"{k}.key"]
        return [*given, "--out", f"p{k}", "--set", "task.dim=100000"]

    one, other = (start(words(k), tmp_path) for k in range(2))
    rows = tmp_path / "p0" / "metrics.jsonl"
    wait_until(lambda: last_round(rows) >= 5, 60, "round 5")
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT):  # at once: else one does a round without the other
        for process in (one, other):
            process.send_signal(number)
    lines = [words_after(finish(process)) for process in (one, other)]
    assert lines == [[*words(k)[:-4], *words(k)[-2:], "--out", f"p{k}", "--resume"] for k in range(2)]
    refused = in_process([*lines[0], "--set", "task.dtype=float64"], tmp_path, monkeypatch, capsys)
    assert refused.code == 8 and 'task.dtype: was "float32", is "float64"' in refused.errors[0], refused
    stopped = [last_round(tmp_path / f"p{k}" / "metrics.jsonl") for k in range(2)]
    both = [finish(process) for process in [start(line, tmp_path) for line in lines]]
    assert [said.code for said in both] == [0, 0], both
    for k in range(2):
        check_rows(tmp_path / f"p{k}" / "metrics.jsonl", 800, k)
        over = skipped(read_rows(tmp_path / f"p{k}" / "metrics.jsonl"), k)
        behind = stopped[k] < stopped[1 - k]  # by a round, whose model was on its way to it when both were stopped
        assert over <= ({stopped[k] + 1} if behind else set()), (stopped, over)
        assert checkpoints.incarnation_of(tmp_path / f"p{k}") == 1


@pytest.mark.sockets
def test_replay_tells_which_lives_were_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = experiment_file(tmp_path, n=2, graph="complete")
    first = in_process(
        ["run", file.name, "--on", "local", "--out", "r", "--no-report", "--trace"], tmp_path, monkeypatch, capsys
    )
    assert first.code == 0, first
    said = in_process(["replay", "r"], tmp_path, monkeypatch, capsys)
    assert all("equal, to its end" in line and "life" not in line for line in said.out.splitlines()), said
    again = in_process(["run", "--resume", "r", "--set", "rounds=5", "--no-report"], tmp_path, monkeypatch, capsys)
    assert again.code == 0, again
    said = in_process(["replay", "r"], tmp_path, monkeypatch, capsys)
    traces, rest = said.out.splitlines()[:2], said.out.splitlines()[2:]
    assert said.code == 0
    assert all(f"peer {k}, life 0 of 0 to 1: " in traces[k] for k in range(2)), said
    assert all("equal, to the end of this life" in line for line in traces)
    assert [line.partition(";")[0] for line in rest] == [f"peer {k}, life 1: not recorded" for k in range(2)]


@pytest.mark.sockets
@pytest.mark.long
def test_peers_that_a_fault_script_starts_again_are_replayed_life_by_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash = '[[faults]]\nkind = "crash"\npeers = [1]\nstart = 0.4\nafter = 0.3\n'
    file = experiment_file(tmp_path, n=3, rounds=600, more=crash, top="[algorithm]\ndeadline = 10.0\n")
    words = ["run", file.name, "--on", "local", "--out", "r", "--no-report", "--trace", "--set", "task.dim=100000"]
    run = in_process([*words, "--set", "eval.every=50"], tmp_path, monkeypatch, capsys)
    assert run.code == 0 and "1 restarted" in run.out, run
    said = in_process(["replay", "r"], tmp_path, monkeypatch, capsys)
    assert said.code == 0 and "not recorded" not in said.out, said
    lines = said.out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "peer 0",
        "peer 1, life 0 of 0 to 1",
        "peer 1, life 1 of 0 to 1",
        "peer 2",
    ]
    assert all(", equal, " in line for line in lines)


@pytest.mark.parametrize("words", [["run", "--resume", "nowhere"], ["replay", "nowhere"]])
def test_a_folder_that_is_not_there_is_named_so(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = in_process(words, tmp_path, monkeypatch, capsys)
    assert said.code in (2, 8) and "nowhere: no such" in said.errors[0], said


@pytest.mark.sockets
def test_what_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    said = finish(start(["run", "--resume", "nowhere"], tmp_path))
    assert said.code == 8 and len(said.err.splitlines()) == 2, said
    said = finish(start(["run"], tmp_path))
    assert said.code == 2 and "--resume RUN" in said.errors[0]
