"""A run in which something that it is for did not happen is partial, says what, and does not end with exit code 0."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import finish, free_ports, in_process, start

from fedgossip import load_experiment, run_local, simulate
from fedgossip.base.errors import TooFewPeersError
from fedgossip.cli.run.run import _closing_lines, exit_code
from fedgossip.core.machine import Checkpoint
from fedgossip.core.records import EventRow, PeerRow, Row
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.endpoints import text as endpoints_text
from fedgossip.net.identity import Identity
from fedgossip.plans import compose
from fedgossip.plans.completeness import ExchangeCounts
from fedgossip.protocols.gossip.lifecycle import FRESH, Carried
from fedgossip.report.page.graphs import never_exchanged
from fedgossip.report.page.page import write_report
from fedgossip.report.page.reading import read_run
from fedgossip.runs.collect import collect_peers
from fedgossip.runs.run_directory import Run
from fedgossip.runs.summary import refusals

# --- gossip of every kind, with the network parted from the first to the last second ---------------------------------

GOSSIP: dict[str, dict[str, Any]] = {
    "dsgd": {"topology": {"graph": "ring", "n": 4}},
    "changing": {"topology": {"graph": "one-peer-exponential", "n": 4}},
    "drawn": {"topology": {"graph": "el-oracle:2", "n": 8}},
    "async": {"topology": {"graph": "ring", "n": 4}, "algorithm": {"mode": "async"}},
    "push-sum": {"topology": {"graph": "ring", "n": 4}, "algorithm": {"name": "push-sum"}},
    "async push-sum": {"topology": {"graph": "ring", "n": 4}, "algorithm": {"name": "push-sum", "mode": "async"}},
    "directed": {"topology": {"graph": "directed-exponential", "n": 4}, "algorithm": {"name": "push-sum"}},
    "private": {"topology": {"graph": "complete", "n": 4}, "algorithm": {"private": True}},
    "window doubling": {"topology": {"graph": "window-doubling", "n": 4}, "algorithm": {"name": "window-doubling"}},
}


def gossip(kind: str, *faults: dict[str, Any]) -> Run:
    soon = {"deadline": 2.0, "least_deadline": 0.5, "start_timeout": 2.0}
    given = GOSSIP[kind]
    both = {"rounds": 6, "task": {"kind": "averaging", "dim": 2}, "faults": list(faults)}
    return simulate({**both, **given, "algorithm": {**soon, **given.get("algorithm", {})}})


def parted(*groups: list[int]) -> dict[str, Any]:
    return {"kind": "partition", "groups": list(groups)}


@pytest.mark.parametrize("kind", GOSSIP)
def test_where_all_pairs_exchanged_nothing_is_lacking(kind: str) -> None:
    run = gossip(kind)
    assert (run.summary["status"], exit_code(run), list(run.summary["lacking"])) == ("finished", 0, [])


@pytest.mark.parametrize("kind", GOSSIP)
def test_where_nothing_was_exchanged_at_all_the_run_is_partial_and_in_vain(kind: str) -> None:
    run = gossip(kind, parted(*([node] for node in range(GOSSIP[kind]["topology"]["n"]))))
    assert (run.summary["status"], exit_code(run)) == ("partial", 7)
    assert run.summary["lacking"] == ("No model was exchanged in the whole run: every peer learned alone.",)


@pytest.mark.parametrize("kind", [kind for kind in GOSSIP if kind != "private"])  # a sum with one part missing is noise
def test_a_peer_that_was_cut_off_all_the_time_is_named(kind: str) -> None:
    run = gossip(kind, parted([0]))
    assert (run.summary["status"], exit_code(run)) == ("partial", 9)
    assert run.summary["lacking"][0] == "Peer 0 exchanged no model: it learned alone."
    assert run.digest is not None, "all have a final model: the digest is theirs, and says nothing about how it came"


def test_the_one_edge_that_never_carried_a_model_is_named() -> None:
    run = gossip("dsgd", {"kind": "drop", "probability": 1.0, "links": [[0, 1]]})
    assert run.summary["lacking"] == ("Peers 0 and 1 never exchanged a model.",) and exit_code(run) == 9


def test_a_network_that_was_parted_for_a_while_only_is_not_partial() -> None:
    run = gossip("dsgd", {**parted([0]), "start": 0.1, "stop": 0.3})
    assert run.summary["status"] == "finished" and not run.summary["lacking"]


def test_where_whom_one_meets_is_drawn_a_pair_that_never_met_is_no_fault() -> None:
    """16 peers, two rounds of pairwise exchanges: most of the 120 pairs cannot have met."""
    given = {"topology": {"graph": "complete", "n": 16}, "algorithm": {"mode": "async"}}
    assert not simulate({"rounds": 2, "task": {"kind": "averaging"}, **given}).summary["lacking"]


def test_peers_without_neighbours_are_no_partial_run() -> None:
    run = simulate({"rounds": 2, "task": {"kind": "averaging"}, "topology": {"graph": "none", "n": 3}})
    assert run.summary["status"] == "finished" and not run.summary["lacking"]


# --- over several lives ----------------------------------------------------------------------------------------------


def told(carried: Carried, round: int = 9) -> list[tuple[str, object]]:
    return [(report.name, report.value) for report in carried.report(round, range(10))]


def next_life(carried: Carried) -> Carried:
    return Carried(Checkpoint(3, {}, carried.saved()))


def test_what_came_in_an_earlier_life_counts_and_what_is_lacking_stays_so() -> None:
    first = Carried()
    first.expect([1, 2])
    first.mark_mixed(1)
    second = next_life(first)
    second.expect([1, 2])
    assert told(second) == [("never_exchanged", [2])]
    second.mark_mixed(2)
    assert told(second) == [] and second.saved() == {}


def test_who_has_learned_alone_in_two_lives_says_so_at_the_end_of_the_second() -> None:
    first = Carried()
    first.expect([1])
    assert told(next_life(first)) == told(first) == [("never_exchanged", [1]), ("learned_alone", None)]


def test_a_checkpoint_of_the_release_before_accuses_nobody() -> None:
    old = Carried(Checkpoint(3, {}, {}))
    old.expect([1, 2])
    assert told(old) == []


def test_one_that_took_up_a_fetched_model_has_exchanged_nothing_by_that() -> None:
    joiner = Carried(Checkpoint(3, {}, FRESH))
    joiner.expect([1])
    assert told(joiner) == [("never_exchanged", [1]), ("learned_alone", None)]


def peer_row(round: int, peer: int) -> PeerRow:
    return PeerRow(round, peer, None, None, 0, 0, 0.0, 0.0, 0.0, 0.0)


def test_what_was_lacking_at_an_end_after_which_the_run_went_on_is_told_no_more() -> None:
    plan = compose.plan(load_experiment({"topology": {"graph": "ring", "n": 3}}))
    rows: list[Row] = [peer_row(5, 1), EventRow(5, 1, "never_exchanged", [2])]
    assert plan.lacking(rows).sentences == ("Peers 1 and 2 never exchanged a model.",)
    assert plan.lacking([*rows, peer_row(6, 1)]).sentences == ()


# --- federated runs --------------------------------------------------------------------------------------------------


def federated(*faults: dict[str, Any], engine: str = "sim", seed: int = 1, rounds: int = 4, **coordinator: Any) -> Run:
    soon = {"deadline": 2.0, "least_deadline": 0.5, "start_timeout": 3.0, "silence": 30.0}
    given = {"clients": 6, "secure": {"on": False}, **soon, **coordinator}
    both = {"rounds": rounds, "task": {"kind": "averaging", "dim": 2}, "faults": list(faults), "coordinator": given}
    return simulate(both, engine=engine, seed=seed)


def deaf_to(*clients: int) -> dict[str, Any]:
    """The coordinator hears nothing of these."""
    return {"kind": "drop", "probability": 1.0, "links": [[client, 6] for client in clients]}


KINDS: dict[str, dict[str, Any]] = {
    "in the clear": {},
    "secure": {"secure": {"on": True}},
    "some in each round": {"participation": 0.7},
}


@pytest.mark.parametrize("kind", KINDS)
def test_where_no_round_counted_nothing_was_learned(kind: str) -> None:
    run = federated(deaf_to(*range(6)), **KINDS[kind])
    assert (run.summary["status"], exit_code(run), run.summary["rounds_abandoned"]) == ("partial", 7, 4)
    assert run.summary["lacking"][0].startswith("No round counted, of 4: nothing was learned")


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_no_round_counted_is_named(kind: str) -> None:
    assert federated(**KINDS[kind]).summary["status"] == "finished"
    run = federated(deaf_to(3), **KINDS[kind])
    assert (run.summary["status"], exit_code(run)) == ("partial", 9)
    assert run.summary["lacking"] == ("No round counted an update of client 3.",)


def test_a_coordinator_that_waits_for_nobody_names_a_client_that_was_invited_in_vain() -> None:
    buffered = {"algorithm": "fedbuff", "goal": 2, "rounds": 40, "deadline": 0.3}
    assert federated(**buffered).summary["status"] == "finished"
    assert federated(deaf_to(3), **buffered).summary["lacking"] == ("No round counted an update of client 3.",)


def test_a_coordinator_that_waits_for_nobody_does_not_wait_for_ever_for_answers() -> None:
    with pytest.raises(TooFewPeersError, match="the last 18 invitations were not answered") as raised:
        federated(deaf_to(*range(6)), algorithm="fedbuff")
    assert raised.value.exit_code == 7


def test_a_coordinator_without_clients_ends_with_the_error_of_a_real_one() -> None:
    with pytest.raises(TooFewPeersError, match="0 clients are there, and a round needs 1"):
        federated(parted(*([node] for node in range(7))))


@pytest.mark.parametrize("seed", range(1, 5))
def test_rounds_of_arrays_for_which_nobody_was_drawn_are_in_vain(seed: int) -> None:
    run = federated(engine="stacked", seed=seed, rounds=1, sampling="poisson", cohort=1)
    counted = sum(row.clients or 0 for row in run.rows if isinstance(row, PeerRow))
    assert run.summary["in_vain"] == (counted == 0) and exit_code(run) == (0 if counted else 7)


def test_a_client_that_was_never_drawn_has_missed_nothing_where_some_are_drawn() -> None:
    def lacking(**coordinator: Any) -> tuple[str, ...]:
        given = {"task": {"kind": "averaging"}, "coordinator": {"clients": 10, **coordinator}}
        plan = compose.plan(load_experiment(given))
        return plan.lacking([], 3).sentences

    assert lacking() == ("Client 3 took part in no round: it trained nothing.",)
    assert lacking(participation=0.5) == ()


# --- what a person is told -------------------------------------------------------------------------------------------


def test_the_command_ends_with_what_is_lacking_the_result_and_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e.toml").write_text(
        'rounds = 3\ntask.kind = "averaging"\ntopology = { graph = "ring", n = 3 }\nalgorithm.start_timeout = 1.0\n'
        '[[faults]]\nkind = "drop"\nprobability = 1.0\nlinks = [[0, 1]]\n'
    )
    said = in_process(["run", "e.toml", "--out", "run", "--set", "algorithm.deadline=1"], tmp_path, monkeypatch, capsys)
    last = [line.split(maxsplit=1) for line in said.out.splitlines()[-3:]]
    assert said.code == 9 and [name for name, _ in last] == ["PARTIAL", "loss", "model"], said
    assert last[0][1] == "Peers 0 and 1 never exchanged a model."
    assert (tmp_path / last[2][1].partition(",")[0]).exists()
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Peers 0 and 1 never exchanged a model." in page and '<li class="warn">partial</li>' in page
    assert "Dashed: a pair" in page and never_exchanged(read_run(tmp_path / "run")) == {(0, 1)}


def test_each_cause_of_a_refusal_is_told_once_with_its_count() -> None:
    value = {"from": 2, "reason": "hung_up", "text": "peer 2 hung up", "advice": "Compare the keys."}
    rows = [EventRow(0, 1, "refused", value), EventRow(0, 0, "refused", {**value, "text": "another"})]
    counts = [EventRow(9, 1, "refused", {**value, "count": count}) for count in (10, 100, 159)]
    first, second = refusals([*rows, *counts])
    assert first == {"peer": 1, "times": 159, "text": "peer 2 hung up", "advice": "Compare the keys."}
    assert (second["peer"], second["times"]) == (0, 1)
    next_life = [EventRow(9, 1, "refused", value), EventRow(9, 1, "refused", {**value, "count": 4})]
    assert refusals([*rows, *counts, *next_life])[0]["times"] == 159 + 4


@pytest.mark.sockets
@pytest.mark.long
def test_one_key_pasted_wrong_leaves_a_partial_run_and_the_printed_line_collects_it(tmp_path: Path) -> None:
    """Peer 1's own file has another key for peer 2: these two never exchange, and both exchange with peer 0."""
    (tmp_path / "e.toml").write_text(
        'rounds = 4\ntask.kind = "averaging"\ntopology = { graph = "ring", n = 3 }\n'
        "algorithm = { start_timeout = 60.0, deadline = 6.0 }\n"
    )
    keys = [Identity.new() for _ in range(3)]
    known = {node: Endpoint(f"tcp://127.0.0.1:{port}", keys[node].public) for node, port in enumerate(free_ports(3))}
    for node, key in enumerate(keys):
        key.save(tmp_path / f"{node}.key")
        wrong = {2: Endpoint(known[2].address, Identity.new().public)} if node == 1 else {}
        (tmp_path / f"{node}.toml").write_text(endpoints_text(sorted({**known, **wrong}.items())))
    soon = ("--set", "algorithm.start_timeout=3")  # and the others wait for them in the first round
    peers = [
        start(["peer", "e.toml", "--id", str(node), "--key", f"{node}.key", "--endpoints", f"{node}.toml",
               "--out", f"p{node}", *soon], tmp_path)
        for node in range(3)
    ]  # fmt: skip
    said = [finish(peer) for peer in peers]
    assert [one.code for one in said] == [0, 9, 9], said
    assert all("PARTIAL: Peers 1 and 2 never exchanged a model." in one.err.splitlines()[-2] for one in said[1:]), said
    lines = {line for one in said for line in one.err.splitlines() if line.startswith("fedgossip collect")}
    assert lines == {"fedgossip collect e.toml all-peers --set algorithm.start_timeout=3"}
    for node in range(3):
        shutil.copytree(tmp_path / f"p{node}", tmp_path / "all-peers" / f"p{node}")
    put = finish(start([*shlex.split(lines.pop())[1:], "--out", "run"], tmp_path), 60)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert put.code == 9 and summary["status"] == "partial", put
    assert "PARTIAL" in put.out and summary["lacking"] == ["Peers 1 and 2 never exchanged a model."], put
    causes = [(cause["peer"], cause["text"]) for cause in summary["refusals"]]
    assert len(causes) == len(set(causes)) <= 6
    assert sum(cause["times"] for cause in summary["refusals"]) == summary["events"]["refused"]
    assert summary["driver"] == "peers" and "on one machine" not in (tmp_path / "run" / "report.html").read_text()
    assert write_report(tmp_path / "run").exists()


@pytest.mark.sockets
def test_the_coordinator_s_folder_alone_tells_the_model_s_accuracy_in_every_round_that_it_measured(
    tmp_path: Path,
) -> None:
    experiment = {
        "rounds": 4,
        "eval": {"every": 2},
        "train": {"device": "cpu"},
        "coordinator": {"clients": 2, "secure": {"on": False}},
    }
    plan = compose.plan(load_experiment(experiment))
    run = run_local(experiment, tmp_path / "run", report=False)
    alone = collect_peers(plan, [tmp_path / "run" / "peers" / "02"], tmp_path / "alone")
    measured = [
        [(row.round, row.score_averaged) for row in one.network() if row.score_averaged is not None]
        for one in (run, alone)
    ]
    assert measured[0] == measured[1] and [round for round, _ in measured[0]] == [0, 2, 4]
    assert alone.summary["driver"] == "peers" and alone.digest == run.digest


# --- rounds that went on without somebody ----------------------------------------------------------------------------

AWAY = {"kind": "crash", "peers": [1], "start": 0.2, "after": 3.0}
WAITS = {"deadline": 2.0, "least_deadline": 0.3}
WITHOUT_ONE: dict[str, dict[str, Any]] = {
    "gossip": {
        "topology": {"graph": "ring", "n": 4},
        "algorithm": WAITS,
        "faults": [{"kind": "drop", "probability": 0.1}],
    },
    "private gossip": {
        "topology": {"graph": "complete", "n": 4},
        "algorithm": {**WAITS, "private": True},
        "faults": [{"kind": "drop", "probability": 0.05}],
    },
    "federation": {
        "coordinator": {"clients": 6, "min_clients": 2, "deadline": 1.0, "secure": {"on": False}},
        "faults": [{"kind": "drop", "probability": 0.05}],
    },
    "servers": {"parallel": {"workers": 4, "method": "parameter-server", **WAITS}, "faults": [AWAY]},
    "mapreduce": {"parallel": {"workers": 4, "method": "mapreduce", **WAITS}, "faults": [{**AWAY, "after": 0.5}]},
    "ring": {"parallel": {"workers": 4, "method": "ring", **WAITS}, "faults": [{**AWAY, "after": 0.5}]},
}


@pytest.mark.parametrize("kind", WITHOUT_ONE)
def test_a_finished_run_whose_rounds_went_on_without_somebody_begins_with_that(kind: str, tmp_path: Path) -> None:
    given = {"rounds": 40, "task": {"kind": "quadratic", "dim": 3}, **WITHOUT_ONE[kind]}
    run = simulate(given, out=tmp_path / "run")
    counts = ExchangeCounts(compose.plan(load_experiment(given)).exchanges)
    for row in run.rows:
        counts.take(row)
    (said,) = run.summary["lacking"]
    missing, of = map(int, re.findall(r"\d+", said)[:2])
    assert run.summary["status"] == "finished" and 0 < 2 * missing < of and counts.missing_exchanges() == (said,)
    assert ("MISSING", said) in _closing_lines(run, report=True)
    assert said in write_report(tmp_path / "run").read_text().split("<section")[0], "in its head"


@pytest.mark.parametrize(
    ("model", "lr", "rounds", "every", "what"),
    [
        ("cnn:small", 1e3, 2, 2, "diverged"),
        ("cnn:small", 0.1, 1, 1, ""),
        ("mlp:64-32-10", 30.0, 6, 1, "improved nothing"),
        ("mlp:64-32-10", 30.0, 4, 1, ""),
        ("softmax", 1e9, 6, 1, ""),
    ],
)
def test_a_training_that_left_a_model_like_a_constant_is_named(
    model: str, lr: float, rounds: int, every: int, what: str, tmp_path: Path
) -> None:
    """Neither the first rounds of a slow training, at chance, nor a loss of 1e7 with a score of .8 is meant."""
    train = {"lr": lr, "batch_size": 32, "local_steps": 4, "device": "cpu"}
    given = {"rounds": rounds, "seed": 1, "topology": {"graph": "complete", "n": 2}, "train": train}
    given |= {"data": {"source": "digits"}, "model": {"source": model}, "eval": {"every": every}}
    run = simulate(given, engine="stacked", out=tmp_path / "run")
    said = run.summary["lacking"]
    assert [text.split(":")[0] for text in said] == [f"The training {what}"] * bool(what)
    if said:
        assert ("MISSING", said[0]) in _closing_lines(run, report=True)
        assert said[0] in write_report(tmp_path / "run").read_text().split("<section")[0], "in its head"


@pytest.mark.parametrize("kind", WITHOUT_ONE)
def test_without_losses_no_exchange_is_missing(kind: str) -> None:
    given = {"rounds": 4, "task": {"kind": "quadratic", "dim": 3}, **WITHOUT_ONE[kind], "faults": []}
    assert not simulate(given).summary["lacking"]
