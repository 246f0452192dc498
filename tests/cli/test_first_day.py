"""What a new user reads in the first hour: one option for the number of peers, ends by their right names."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from loops_kit import loop, net
from members import membership, signer
from torch.optim import SGD

import fedgossip
from fedgossip.base.errors import ConfigError
from fedgossip.base.scores import Score
from fedgossip.cli import cli
from fedgossip.cli.init import TEMPLATES
from fedgossip.cli.people.invited import NewRows, ended_script
from fedgossip.cli.run.run import _best, _reached, facts
from fedgossip.core.machine import PeerJoined, Received, Report, Started
from fedgossip.core.messages import MembershipUpdate
from fedgossip.core.records import EventRow, NetworkRow, Row
from fedgossip.core.roles import peer_roles
from fedgossip.core.run_format import LOG
from fedgossip.drivers.loops.description import Wished, experiment_of
from fedgossip.drivers.loops.scripts import Command, Scripts
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.protocols.members.membership_updates import signed
from fedgossip.report.page.numbers import percent
from fedgossip.report.page.page import write_report
from fedgossip.report.page.participation import ReportedEvent
from fedgossip.report.page.sections import spells
from fedgossip.report.watch.state import State
from fedgossip.runs.summary import best_of


def commands_of(command: click.Command, *name: str) -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return [(" ".join(name), command)]
    context = click.Context(command)
    found = [(one, command.get_command(context, one)) for one in command.list_commands(context)]
    return [each for one, sub in found if sub for each in commands_of(sub, *name, one)]


def test_wherever_a_number_of_peers_is_asked_for_both_spellings_are_known() -> None:
    options = {name: {word for one in command.params for word in one.opts} for name, command in commands_of(cli)}
    either = {name for name, words in options.items() if words & {"-n", "--n"}}
    assert {"run", "launch", "host", "compare", "topology show", "topology compare"} <= either
    numbers = {"peers", "clients", "workers", "loops", "n"}
    counted = {
        name
        for name, command in commands_of(cli)
        for one in command.params
        if isinstance(one, click.Option) and one.name in numbers and not one.is_flag and one.type.name != "text"
    }
    assert counted <= either
    assert [name for name in sorted(either) if not {"-n", "--n"} <= options[name]] == []


@pytest.mark.parametrize("method", ["fedavg", "fedbuff"])
def test_loops_of_a_coordinator_make_as_many_rounds_as_loops_of_a_graph(method: str) -> None:
    """13 steps in rounds of 2 are six rounds, and one of the step that is left."""
    content = experiment_of(Wished(3, coordinator=True, algorithm=method, local_steps=2))
    where = {"secure": {"on": False}, **({"goal": 3} if method == "fedbuff" else {})}
    content["coordinator"] |= where
    run = fedgossip.simulate_loop(loop(), experiment=content)
    on_a_graph = fedgossip.simulate_loop(loop(), experiment=experiment_of(Wished(3, "complete", local_steps=2)))
    assert (run.summary["status"], run.summary["rounds"], run.summary["events"]) == ("finished", 7, {})
    assert on_a_graph.summary["rounds"] == 7


@pytest.mark.parametrize("logs", [(), (0, 2), (0, 1, 2)], ids=["none", "two", "all"])
@pytest.mark.parametrize("secure", [True, False], ids=["secure", "clear"])
def test_the_loss_of_a_round_is_the_mean_of_those_that_log_one(logs: tuple[int, ...], secure: bool) -> None:
    def run() -> None:
        model = net()
        peer = fedgossip.join(model, SGD(model.parameters(), 0.1))
        for _ in range(2):
            if peer.node in logs:
                peer.log(loss=1.0 + peer.node)
            peer.step(examples=1 + peer.node)
        peer.close()

    content = experiment_of(Wished(3, coordinator=True, local_steps=1))
    content["coordinator"]["secure"] = {"on": secure}
    rows = fedgossip.simulate_loop(run, experiment=content).rows
    losses = [row.loss for row in rows if isinstance(row, NetworkRow) and row.round]
    weights = [1 + node for node in logs]
    mean = sum(weight * weight for weight in weights) / sum(weights) if logs else None
    assert losses == 2 * [mean and pytest.approx(mean, abs=0.02)]  # a secure sum rounds


def test_a_budget_of_privacy_needs_a_number_of_rounds() -> None:
    content = experiment_of(Wished(5, coordinator=True))
    content["coordinator"]["privacy"] = {"unit": "client", "noise": 1.0, "max_epsilon": 8.0}
    with pytest.raises(ConfigError, match="privacy budget"):
        compose.plan(load_experiment(content))


def test_a_loop_that_goes_on_alone_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        model = net()
        peer = fedgossip.join(model, SGD(model.parameters(), 0.1))
        for _ in range(8):
            peer.step()
        peer.close()

    fedgossip.simulate_loop(run, 1, overrides=["rounds=2", "train.local_steps=2"])
    assert capsys.readouterr().err.count("the run is over; this loop continues alone") == 1


def test_a_script_without_launch_names_the_command_that_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["my loop.py"])
    with pytest.raises(ConfigError) as caught:
        fedgossip.join(model := net(), SGD(model.parameters(), 0.1))
    shown = "".join(traceback.format_exception(caught.value))
    assert "fedgossip launch -n 1 'my loop.py'" in shown and "alone=True" in shown


@pytest.mark.sockets
def test_a_resumed_launch_shows_nothing_that_an_earlier_life_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / LOG).write_text("Traceback (most recent call last):\nZeroDivisionError: of the life before\n")
    with Scripts(Command(tmp_path / "train.py"), 1, [0]) as scripts:
        scripts.start({"node": 0, "folder": str(tmp_path), "words": [sys.executable, "-S", "-c", "print('again')"]})
        scripts.wait()
        scripts.show_traceback(0)
        assert (capsys.readouterr().out, scripts.last_words(0)) == ("again\n", "again")


@pytest.mark.sockets
def test_the_output_of_a_script_is_shown_by_whole_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import os, time; os.write(1, b'one\\ntw')\nwhile not os.path.exists('go'): time.sleep(0.01)\nos.write(1, b'o')"
    )
    with Scripts(Command(tmp_path / "train.py", folder=tmp_path), 1, [0]) as scripts:
        scripts.start({"node": 0, "folder": str(tmp_path), "words": [sys.executable, "-S", "-c", code]})
        while (tmp_path / LOG).stat().st_size < 6:
            scripts.poll(0.01)
        scripts.poll(0.01)
        assert capsys.readouterr().out == "one\n"
        (tmp_path / "go").touch()
        scripts.wait()
        assert capsys.readouterr().out == "two\n"


@pytest.mark.parametrize(
    ("printed", "last"),
    [
        ("epoch 1\nTraceback (most recent call last):\n  File 'a.py'\nKeyError: 3\n\n", "KeyError: 3"),
        (
            "Traceback (most recent call last):\n  File 'a.py'\nKeyError: 3\n\nDuring handling of the above ...:\n"
            "Traceback (most recent call last):\n  join({})\nfedgossip.base.errors.ConfigError: join: a dict\nAdvice.",
            "ConfigError: join: a dict",
        ),
        ("  File 'a.py', line 1\n    x = = 1\nSyntaxError: invalid syntax\n", "SyntaxError: invalid syntax"),
        ("loss 0.1\nlast line\n", "last line"),
        ("", ""),
    ],
)
@pytest.mark.sockets
def test_a_script_that_failed_is_reported_by_its_exception_not_by_the_advice_below_it(
    printed: str, last: str, tmp_path: Path
) -> None:
    with Scripts(Command(tmp_path / "train.py"), 1) as scripts:
        scripts.start({"node": 0, "folder": str(tmp_path), "words": ["printf", "%s", printed]})
        scripts.wait()
        assert scripts.last_words(0) == last


@pytest.mark.parametrize(("until", "told"), [(24, True), (104, False)])
def test_a_member_at_the_end_of_its_run_does_not_leave_it(until: int, told: bool) -> None:
    here = membership(0, 3, rounds=100)
    here.handle(Started(), 0)
    for node in range(1, 3):
        here.handle(PeerJoined(node), 0)
    entry = here.roster.entries[1]
    gone = signed(replace(entry, incarnation=entry.incarnation + 1, until=until), signer("sign1"))
    effects = here.handle(Received(1, MembershipUpdate((gone,))), 0)
    assert any(isinstance(one, Report) and one.name == "left" for one in effects) is told


@pytest.mark.parametrize(("status", "word"), [("finished", "done"), ("interrupted", "stopped")])
def test_watch_calls_loops_of_a_finished_endless_run_done(row: Any, status: str, word: str) -> None:
    state = State(peer_roles(2), 0)
    for node in range(2):
        state.take(row(node, 7))
    state.status = status
    assert [state.condition(peer) for peer in state.peers.values()] == [word, word]


@pytest.fixture
def row() -> Any:
    from fedgossip.core.meter import Meter

    def made(node: int, round: int) -> Row:
        meter = Meter(node)
        meter.train_began(0)
        meter.train_ended(0, 0, {"loss": 0.5})
        return meter.mixed(round, 1, 0, None)

    return made


@pytest.mark.sockets
def test_what_a_script_s_participant_records_is_passed_on_while_it_runs(tmp_path: Path) -> None:
    record, news = tmp_path / "metrics.jsonl", EventRow(3, 1, "gone", 2)
    record.write_bytes(b'{"of":"a life before"}\n')
    seen: list[Row] = []
    rows = NewRows(record, seen.append)
    line = f"{msgspec.json.encode(news).decode()}\\nno row\\n"
    script = f"import time; open({str(record)!r}, 'a').write({line!r}.replace('\\\\n', chr(10))); time.sleep(0.8)"
    before: list[int] = []

    def beside() -> None:
        rows.pass_on()
        before.append(len(seen))

    assert ended_script([sys.executable, "-S", "-c", script], dict(os.environ), beside) == 0
    assert seen == [news] and before[-1] == 1


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        ("sim", "9.63 s virtual, of the rounds; 147.8 s wall-clock to simulate"),
        ("local", "9.63 s wall-clock, of the rounds; 147.8 s wall-clock with start and end"),
    ],
)
def test_the_time_of_a_run_names_its_clocks(driver: str, words: str) -> None:
    experiment = {"rounds": 1, "topology": {"graph": "ring", "n": 3}, "task": {"kind": "averaging", "dim": 2}}
    summary = fedgossip.simulate(experiment).summary | {"driver": driver, "seconds": 9.63, "wall_seconds": 147.8}
    assert dict(facts(summary))["time"] == words


@pytest.mark.parametrize(("scale", "stated"), [("", True), ("&scale=standard", False)])
def test_a_run_of_columns_of_unlike_scale_states_it_before_and_after(scale: str, stated: bool, tmp_path: Path) -> None:
    rows = "".join(f"{k % 7},{k * 5000},{k % 2}\n" for k in range(60))
    (tmp_path / "mine.csv").write_text("age,income,ill\n" + rows)
    experiment = load_experiment({
        "rounds": 1,
        "data": {"source": f"csv:{tmp_path}/mine.csv?label=ill{scale}"},
        "model": {"source": "softmax"},
        "train": {"device": "cpu"},
        "topology": {"graph": "ring", "n": 3},
    })  # fmt: skip
    _, before = compose.task_of_dry_run(experiment, 3)
    run = fedgossip.simulate(experiment)
    for notes in (before.notes, [text for name, text in facts(run.summary, run.rows) if name == "data"]):
        assert any("unlike scale: 'age'" in note for note in notes) == stated


def test_the_easiest_start_stands_first_among_starts() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert re.findall(r"fedgossip init ([\w-]+)", readme)[0] == next(iter(TEMPLATES)) == "own-loop"
    assert readme.index("fedgossip init own-loop") < min(
        readme.index(f"fedgossip {one}") for one in ("host", "run exp")
    )


def test_a_summary_names_the_round_whose_averaged_model_was_best() -> None:
    """The best by the direction of the metric: an error that is smaller is better."""
    scores = {0: 0.5, 5: 0.2, 10: 0.2, 15: math.nan, 20: 0.4}
    rows = [NetworkRow(round, 3, 0.0, 0, score_averaged=score) for round, score in scores.items()]
    assert best_of(Score("rmse", better="lower"), rows) == {"best": {"round": 5, "score": 0.2}}
    assert best_of(Score("accuracy"), rows) == {"best": {"round": 0, "score": 0.5}}
    assert best_of(Score("accuracy"), [NetworkRow(0, 3, 0.0, 0)]) == {}


@pytest.mark.parametrize("mode", ["federated", "gossip"])
def test_scores_of_participants_alone_are_shown_where_no_averaged_model_was_measured(mode: str) -> None:
    score = {"name": "accuracy", "averaged": None, "mean_peer": 0.5, "worst_peer": 0.25, "round": 3}
    summary: Any = {"mode": mode, "n": 3, "rounds": 3, "test_loss": None, "score": score}
    ((what, shown),) = _reached(summary)
    assert what == "test accuracy" and "0.5000 mean" in shown and "0.2500 worst" in shown and "averaged" not in shown


def test_the_terminal_and_the_report_name_the_best_round_where_the_model_is_another(tmp_path: Path) -> None:
    experiment = {
        "rounds": 6, "data": {"source": "digits"}, "model": {"source": "softmax"},
        "train": {"local_steps": 1, "lr": 0.1, "device": "cpu"}, "eval": {"every": 1},
        "topology": {"graph": "ring", "n": 3},
    }  # fmt: skip
    run = fedgossip.simulate(experiment, out=tmp_path / "run")
    best = max(
        (row.score_averaged, -row.round) for row in run.rows if isinstance(row, NetworkRow) and row.score_averaged
    )
    assert run.summary["best"] == {"round": -best[1], "score": best[0]}
    path = tmp_path / "run" / "summary.json"
    summary = json.loads(path.read_text()) | {"best": {"round": 2, "score": 0.97}}
    path.write_text(json.dumps(summary))
    write_report(tmp_path / "run")
    assert f"best {percent(0.97)}, in round 2" in (tmp_path / "run" / "report.html").read_text()
    assert _best(summary) == [("best round", "2, with 0.9700; the figures above are of round 6")]
    assert not _best(summary | {"best": {"round": 2, "score": summary["score"]["averaged"]}}), "no better than the last"


def test_what_a_dead_peer_is_missed_by_in_every_round_is_one_line() -> None:
    missed = [ReportedEvent(round, 1, "missed", [2]) for round in range(3, 111)]
    other = [ReportedEvent(50, 0, "missed", [2])]
    assert [(one.peer, *rest) for one, *rest in spells([*missed, *other])] == [(1, 3, 110, 108), (0, 50, 50, 1)]
    again = [ReportedEvent(round, 1, "missed", [2]) for round in (3, 4, 9)]
    assert [rest for _, *rest in spells(again)] == [[3, 4, 2], [9, 9, 1]]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"experiment": "lan.toml", "alone": True}, "an experiment and alone=True"),
        ({"node": 1}, "node without an experiment"),
        ({"endpoints": "endpoints.toml"}, "endpoints without an experiment"),
    ],
)
def test_arguments_of_join_that_contradict_each_other_are_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        fedgossip.join(model := net(), SGD(model.parameters(), 0.1), **given)


@pytest.mark.sockets
def test_a_loop_makes_a_run_of_one_where_nobody_has_launched_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    model = net()
    with fedgossip.join(model, SGD(model.parameters(), 0.1), alone=True) as peer:
        for _ in range(5):
            peer.step()
        assert (peer.n, peer.node) == (1, 0)
        with pytest.raises(ConfigError, match="log: 'loss' is no number: 'low'"):
            peer.log(loss="low")
        with pytest.raises(ConfigError, match="evaluate: measure is a int"):
            peer.evaluate(3)  # type: ignore[arg-type]
    assert "this loop learns with 0 others; four together: fedgossip launch -n 4 train.py" in capsys.readouterr().err
    (folder,) = (tmp_path / "runs").iterdir()
    assert peer.folder and peer.folder.name == folder.name
    assert json.loads((folder / "ended.json").read_text())["status"] == "finished"
