"""The report of a federated run: one model, the clients that took part, and nothing about peers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_report import FIVE_MEGABYTES, Page, learning_run, write_run

import fedgossip
from fedgossip.cli.run.run import facts
from fedgossip.core.machine import Aggregated
from fedgossip.core.meter import Meter
from fedgossip.core.records import FOLLOWED_MOST
from fedgossip.core.roles import federated_roles, peer_roles
from fedgossip.report.page import drawing, federated, write_comparison, write_report
from fedgossip.report.page.federated import attended, head, lines
from fedgossip.report.page.numbers import number_round
from fedgossip.report.page.participation import Participation, ReportedEvent, ReportedPeerRound, Took
from fedgossip.report.page.reading import RecordedRun, read_run
from fedgossip.report.page.reasons import REASONS, explain_abandoned
from fedgossip.secure.aborts import Reason, Stage, too_few
from tests.commands import in_process

N, ROUNDS = 5, 12
LOST = {4: {"contributions": 2, "needed": 3, "reason": "TOO_FEW", "text": str(too_few(Stage.MASKED, 2, 3, "vectors"))}}


def summary(n: int, rounds: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": "hospitals",
        "driver": "sim",
        "seed": 7,
        "n": n,
        "graph": "coordinator",
        "mode": "federated",
        "algorithm": "fedavg",
        "clients": n,
        "cohort": n,
        "secure": True,
        "rounds_abandoned": 0,
        "status": "finished",
        "rounds": rounds,
        "digest": "3f8a" * 16,
        "score": {"name": "accuracy", "averaged": 0.913, "mean_peer": 0.913, "worst_peer": 0.913},
        "consensus_distance": 0.0,
        "bytes_sent": rounds * n * 20_000,
        "seconds": 0.3 * rounds,
        "wall_seconds": 4.0,
        "parameters": 2410,
        "measured_contraction": None,
        "events": {},
        "data": {"source": "digits", "classes": 3, "shares": [[9.0, k, 4.0] for k in range(n)], "sizes": None},
        "versions": {"fedgossip": "0.1.0"},
        **changes,
    }


def records(
    n: int = N,
    rounds: int = ROUNDS,
    *,
    lost: dict[int, dict[str, Any]] | None = None,
    silent: dict[int, list[int]] | None = None,
    tested: bool = False,
    epsilon: bool = False,
) -> list[dict[str, Any]]:
    """The rows of a run: `lost` rounds are abandoned, in each round of `silent` these clients do nothing."""
    lost, silent = lost or {}, silent or {}
    found = [network(0, 0)]
    for r in range(1, rounds + 1):
        away = silent.get(r, [])
        for k in (k for k in range(n) if k not in away):
            found.append({"kind": "peer", "round": r, "peer": k, "loss": 2.0 / r, "bytes_sent": 5000,
                          "bytes_received": 7000, "seconds_training": 0.1})  # fmt: skip
        if away:
            found.append({"kind": "event", "round": r - 1, "peer": n, "name": "missed", "value": away})
        if r in lost:
            found.append({"kind": "event", "round": r - 1, "peer": n, "name": "abandoned", "value": lost[r]})
        own = {"kind": "peer", "round": r, "peer": n, "bytes_sent": 90_000, "bytes_received": 80_000}
        own |= {} if r in lost else {"clients": n - len(away), "loss": 2.0 / r}
        own |= {"score_clients": 0.8 - 1 / r, "score_worst_client": 0.7 - 1 / r} if tested and r % 2 else {}
        own |= {"epsilon": 0.5 * r} if epsilon else {}
        found += [own, network(r, n - len(away))]
    return found


def network(round: int, contributions: int) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": "network", "round": round, "peers": contributions, "seconds": 0.3 * round}
    row |= {"bytes_sent": round * 100_000, "loss": 2.0 / round if round else None, "consensus_distance": 0.0}
    if round % 2 == 0:
        accuracy = 0.913 - 0.8 / (1 + round)
        row |= dict.fromkeys(("score_averaged", "score_mean_peer", "score_worst_peer"), accuracy)
    return row


def plain_run(folder: Path, **changes: Any) -> Path:
    return write_run(folder, summary(N, ROUNDS, **changes), records())


def eventful_run(folder: Path) -> Path:
    """In the clear, with everything that can be told."""
    rows = records(lost=LOST, silent={r: [2] for r in range(5, 9)}, tested=True, epsilon=True)
    rows += [
        {"kind": "event", "round": 8, "peer": N, "name": "gone", "value": 2},
        {"kind": "event", "round": 8, "peer": N, "name": "abstained", "value": {"peer": 3, "reason": "POLICY"}},
        {"kind": "event", "round": -1, "peer": 2, "name": "crashed", "value": None},
    ]
    privacy = {"epsilon": 6.0, "delta": 1e-5, "max_epsilon": 8.0, "unit": "client", "accountant": "a later version's"}
    events = {"abandoned": 1, "missed": 4, "gone": 1, "abstained": 1, "crashed": 1}
    return write_run(folder, summary(N, ROUNDS, secure=False, privacy=privacy, events=events, cohort=4), rows)


def stacked_run(folder: Path) -> Path:
    """Without rows of clients, without time and without accuracy; of another kind of algorithm."""
    rows = [row for row in records() if row["kind"] == "network" or row["peer"] == N]
    for row in rows:
        row["seconds"] = 0.0
        row.pop("score_averaged", None)
    own = {"algorithm": "fedbuff", "driver": "stacked", "seconds": 0.0, "score": {"averaged": None}}
    return write_run(folder, summary(N, ROUNDS, test_loss=0.25, **own), rows)


def wide_run(folder: Path, n: int = FOLLOWED_MOST + 1) -> Path:
    return write_run(folder, summary(n, 3), records(n, 3))


def long_run(folder: Path, n: int = 12, rounds: int = 400) -> Path:
    """A third of the clients in each round."""
    drawn = np.random.default_rng(1).random((rounds + 1, n)) < 0.33
    rows = [row for row in records(n, rounds) if row.get("peer", n) == n or drawn[row["round"], row["peer"]]]
    return write_run(folder, summary(n, rounds, cohort=n // 3), rows)


def empty_run(folder: Path) -> Path:
    """One that was stopped before its first round had ended."""
    bare = {"name": "empty", "n": 4, "rounds": 0, "status": "interrupted", "mode": "federated", "graph": "coordinator"}
    return write_run(folder, bare, [])


RUNS = [plain_run, eventful_run, stacked_run, long_run, empty_run]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {make.__name__: make(tmp_path_factory.mktemp("run")) for make in RUNS}
    for folder in folders.values():
        write_report(folder)
    return folders


@pytest.fixture(params=[make.__name__ for make in RUNS])
def folder(request: pytest.FixtureRequest, reports: dict[str, Path]) -> Path:
    return reports[request.param]


def page(folder: Path) -> Page:
    return Page(folder / "report.html")


def account(folder: Path) -> tuple[RecordedRun, Participation]:
    run = read_run(folder)
    assert run.participation
    return run, run.participation


# --- the page ---------------------------------------------------------------------------------------------------------


def test_every_kind_of_run_gives_a_sound_page_that_asks_for_nothing(folder: Path) -> None:
    found = page(folder)
    assert found.open == []
    assert found.tags.count("figure") == found.tags.count("figcaption")
    assert len(found.source.encode()) < FIVE_MEGABYTES
    assert not re.search(r"https?://|@import|//cdn", found.source)
    ids = [value for name, value in found.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_the_figure_of_losses_says_what_it_has(tmp_path: Path) -> None:
    def caption(own: str, of: float | None) -> str:
        rows = [{**row, "loss": of, "test_loss": 0.3} for row in records()]
        folder = write_run(tmp_path / own, summary(N, ROUNDS), rows)
        write_report(folder)
        return page(folder).source.partition("Loss by round")[2][:120]

    assert "as a mean over the participants of the round" in caption("told", 0.5)
    assert "of the global model on the common test set" in caption("untold", None)


def test_nothing_is_said_of_peers_and_graphs(folder: Path) -> None:
    words = page(folder).text.lower()
    for word in ("peer", "the graph", "averaged model", "consensus", "all final models", "agree"):
        assert word not in words.replace("model.source", ""), word


def test_the_head_says_what_ran(reports: dict[str, Path]) -> None:
    words = page(reports["eventful_run"]).text
    for fact in ("fedavg", "5 clients", "4 in a round", "12 rounds", "91.3\u202f%", "of the global model", "6",
                 "of at most 8, δ\u202f=\u202f1 × 10⁻⁵, per client", "of 12 rounds: changed nothing"):  # fmt: skip
        assert fact in words, fact


def test_a_coordinator_that_saw_updates_is_told_loudly(reports: dict[str, Path]) -> None:
    clear, secure = page(reports["eventful_run"]), page(reports["plain_run"])
    assert "NO secure sum" in clear.text and "In the clear: the coordinator saw the update of every" in clear.text
    assert ("class", "notice") in clear.attributes
    assert "In the clear" not in secure.text and ("class", "notice") not in secure.attributes


def test_a_run_that_ended_for_want_of_clients_says_so(tmp_path: Path) -> None:
    rows = records(rounds=3)
    rows.append({"kind": "event", "round": 3, "peer": N, "name": "too_few", "value": {"clients": 2, "needed": 3}})
    write_run(tmp_path, summary(N, 3, status="interrupted"), rows)
    assert "2 clients were there, and a round needs 3." in head(*account(tmp_path))


def test_the_same_run_gives_the_same_bytes(reports: dict[str, Path]) -> None:
    first = (reports["stacked_run"] / "report.html").read_bytes()
    assert write_report(reports["stacked_run"]).read_bytes() == first


def test_words_from_the_files_stay_words(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    lost = {2: {"contributions": evil, "needed": [evil], "reason": evil, "text": evil}}
    own = summary(N, 3, name=evil, algorithm=evil, privacy={"unit": evil, "epsilon": 1.0})
    rows = records(rounds=3, lost=lost)
    rows.append({"kind": "event", "round": 1, "peer": 1, "name": evil, "value": {evil: [evil]}})
    found = Page(write_report(write_run(tmp_path, own, rows)))
    assert found.tags.count("script") == 1
    assert found.text.count(evil) >= 4


# --- what was learned -------------------------------------------------------------------------------------------------


def test_only_what_was_measured_has_a_line(reports: dict[str, Path]) -> None:
    run, took = account(reports["plain_run"])
    assert [name for name, *_, series in lines(run, took) if series] == ["global model"]
    run, took = account(reports["eventful_run"])
    assert [name for name, *_, series in lines(run, took) if series] == ["global model", "mean client", "worst client"]


def test_what_clients_measure_is_of_the_model_that_they_were_sent(reports: dict[str, Path]) -> None:
    """The coordinator's row r tells of the model that it sent: that of round r - 1."""
    run, took = account(reports["eventful_run"])
    _, mean, worst = lines(run, took)
    assert [(row.round, value) for row, value in mean[3]] == [(r - 1, 0.8 - 1 / r) for r in range(1, ROUNDS, 2)]
    assert worst[3][-1][1] == pytest.approx(0.7 - 1 / 11)
    words = page(reports["eventful_run"]).text
    assert f"{100 * (0.8 - 1 / 11):.1f}\u202f%" in words and "in round 10" in words


# --- who took part ----------------------------------------------------------------------------------------------------


def test_each_client_is_followed_through_the_rounds(reports: dict[str, Path]) -> None:
    _, took = account(reports["eventful_run"])
    table = took.table()
    assert table.shape == (N, ROUNDS)
    assert set(table[0]) == {Took.COUNTED, Took.ABANDONED} and table[0, 3] == Took.ABANDONED
    assert list(table[2, 4:8]) == [Took.SILENT] * 4
    assert took.turns == [12, 12, 8, 12, 12]


def test_a_coordinator_s_rows_alone_say_who_is_in_each_sum() -> None:
    took = Participation(3)
    for round, counted in enumerate([(0, 1, 2), (2, 0), None, (1, 7, -1)], 1):
        took.row(ReportedPeerRound(round, 3, clients=len(counted or ()), counted=counted))
    took.event(ReportedEvent(2, 3, "abandoned", {}))
    assert took.followed and not any(took.turns)
    c, n = Took.COUNTED, Took.NOTHING
    assert took.table().tolist() == [[c, c, n, n], [c, n, n, c], [c, c, n, n]]
    took.row(ReportedPeerRound(2, 1))  # client 1 has trained: it was too late for the sum of round 2
    assert took.table()[1].tolist() == [c, Took.UNCOUNTED, n, c]


def test_coordinators_of_tiers_in_a_sum_say_nothing_of_single_clients() -> None:
    took = Participation(6)
    took.row(ReportedPeerRound(1, 8, clients=6, counted=(6, 7)))
    assert not took.followed and took.contributions == {1: 6}
    for client in (0, 5):  # a simulation's record has the clients' own rows
        took.row(ReportedPeerRound(1, client))
    took.event(ReportedEvent(0, 7, "missed", [4, 5]))
    took.event(ReportedEvent(0, 8, "missed", [7]))
    silent = Took.NOTHING
    assert took.table()[:, 0].tolist() == [Took.COUNTED, *[silent] * 3, Took.SILENT, Took.UNCOUNTED]


def test_clients_of_a_leaf_whose_sum_is_not_in_the_round_are_not_in_it() -> None:
    """Of three tiers: 0 to 7, leaves 8 to 11, middles 12 and 13, the root 14; nobody but the root in a fourth round."""
    tiers = {8: [0, 1], 9: [2, 3], 10: [4, 5], 11: [6, 7], 12: [8, 9], 13: [10, 11], 14: [12, 13]}
    took = Participation(8, "client", tiers)
    for round, counted in enumerate([(12, 13), (12, 13), (12,), (12, 13)], 1):
        took.row(ReportedPeerRound(round, 14, clients=2, counted=counted))
        for client in range(8 if round < 4 else 0):
            took.row(ReportedPeerRound(round, client))
    took.event(ReportedEvent(0, 12, "missed", [9]))
    shown = took.event(ReportedEvent(1, 8, "contributes_nothing", {"reason": "TOO_FEW"}))
    took.event(ReportedEvent(3, 8, "contributes_nothing", {"reason": "TOO_FEW"}))
    c, u, n = Took.COUNTED, Took.UNCOUNTED, Took.NOTHING
    assert took.table().tolist() == [[c, u, c, n]] * 2 + [[u, c, c, n]] * 2 + [[c, c, u, n]] * 4
    assert not shown  # the list of events has it too


@pytest.mark.parametrize("tiers", [{3: [4, 5], 4: [3]}, {3: [3, -1, 0], 9: [0] * 9}, {0: [1]}])
def test_tiers_that_are_none_change_nothing(tiers: dict[int, list[int]]) -> None:
    took = Participation(3, "client", tiers)
    took.event(ReportedEvent(0, 4, "contributes_nothing"))
    took.row(ReportedPeerRound(1, 3, clients=3, counted=(0, 1, 2)))
    assert took.table().tolist() == [[Took.COUNTED]] * 3


def test_a_simulated_run_in_tiers_counts_no_client_of_a_leaf_with_too_few(tmp_path: Path) -> None:
    tiers = [{"clients": 4}, {"clients": 2, "secure": False}]
    coordinator = {"clients": 8, "min_clients": 4, "tiers": tiers, "deadline": 1.0, "least_deadline": 0.5}
    experiment = {"rounds": 4, "task": {"kind": "quadratic", "dim": 3}, "coordinator": coordinator}
    faults = [{"kind": "crash", "peers": [2], "start": 0.3}]
    fedgossip.simulate(experiment | {"faults": faults}, out=tmp_path / "run", report=False)
    _, took = account(tmp_path / "run")
    counted = (took.table() == Took.COUNTED).sum(axis=0).tolist()
    assert counted == [took.contributions[round] for round in range(1, 5)] and 4 in counted


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_the_coordinator_s_own_record_gives_the_table_of_all_records(engine: str, tmp_path: Path) -> None:
    """Three of five in each round, drawn by the coordinator; then the rows of clients are taken away."""
    coordinator = {"clients": N, "cohort": 3, "min_clients": 3, "secure": {"on": engine == "sim"}}
    experiment = {"rounds": 4, "task": {"kind": "quadratic", "dim": 3}, "coordinator": coordinator}
    fedgossip.simulate(experiment, engine=engine, out=tmp_path / "run", report=False)
    _, took = account(tmp_path / "run")
    assert (took.table() == Took.COUNTED).sum(axis=0).tolist() == [3] * 4
    record = tmp_path / "run" / "metrics.jsonl"
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    kept = [row for row in rows if row["kind"] != "peer" or row["peer"] == N]
    record.write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    _, alone = account(tmp_path / "run")
    assert len(kept) < len(rows) and np.array_equal(alone.table() == Took.COUNTED, took.table() == Took.COUNTED)


def test_who_trained_and_is_not_in_the_sum_is_told_apart_from_who_was_silent() -> None:
    took = Participation(3)
    for client in (0, 1):
        took.row(ReportedPeerRound(1, client))
    took.event(ReportedEvent(0, 3, "missed", [1, 2]))
    took.row(ReportedPeerRound(1, 3, clients=1))
    assert took.table().tolist() == [[Took.COUNTED], [Took.UNCOUNTED], [Took.SILENT]]


@pytest.mark.parametrize("value", [None, 7, [99, -1, "x", None], {"peer": 1}, "x"])
def test_events_of_another_shape_change_nothing(value: object) -> None:
    took = Participation(3)
    took.row(ReportedPeerRound(1, 3, clients=1))
    for name in ("missed", "abandoned", "too_few", "tickled"):
        took.event(ReportedEvent(0, 3, name, value))
    assert took.table().tolist() == [[Took.NOTHING]] * 3


def test_rounds_that_were_abandoned_are_told_with_the_reason_in_words(reports: dict[str, Path]) -> None:
    words = page(reports["eventful_run"]).text
    assert "1 round of 12 was abandoned: it changed nothing." in words
    assert "too few clients while masked updates arrived: 2 contributed, 3 are needed" in words
    assert "TOO_FEW" not in words and "MASKED" not in words


def test_every_reason_of_the_secure_sum_has_words() -> None:
    assert {reason.value for reason in Reason} <= set(REASONS)
    assert (
        explain_abandoned({"reason": "INTERRUPTED", "contributions": 0, "needed": 5})
        == "the coordinator was stopped in it"
    )
    assert explain_abandoned({"reason": "SOMETHING_NEW"}) == "something new"


def test_contributions_are_counted_in_words(reports: dict[str, Path]) -> None:
    (_, plain), (_, eventful) = account(reports["plain_run"]), account(reports["eventful_run"])
    assert attended(plain, N) == "Every round that counted holds the updates of all 5 clients."
    assert attended(eventful, N).startswith("A round holds the updates of 4 to 5 clients, 4.64 on average")


def test_of_many_clients_only_how_often_is_drawn(reports: dict[str, Path], tmp_path: Path) -> None:
    few, (_, many) = page(reports["long_run"]), account(wide_run(tmp_path))
    assert federated.turns(many, "turns") and federated.lanes(many, "lanes") is None
    assert ("id", "lanes") in few.attributes and ("id", "turns") not in few.attributes
    assert "each column is 3" in few.text  # 400 rounds in at most 160 columns


def test_without_rows_of_clients_the_contributions_are_still_there(reports: dict[str, Path]) -> None:
    found = page(reports["stacked_run"])
    assert ("id", "contributions") in found.attributes
    assert not {("id", "lanes"), ("id", "turns"), ("id", "time")} & set(found.attributes)


# --- the clients, the coordinator and privacy -------------------------------------------------------------------------


def test_the_coordinator_has_an_account_of_its_own(reports: dict[str, Path]) -> None:
    """It sent 12 times 90 kB, each client 12 times 5 kB: no sum mixes them."""
    run, _ = account(reports["plain_run"])
    assert [peer.bytes_sent for peer in run.learners] == [60_000] * N
    words = page(reports["plain_run"]).text
    assert "1.08\u202fMB" in words and "60\u202fkB" in words
    assert "sums alone" in words and "every update" in page(reports["eventful_run"]).text


def test_who_does_not_train_waits(reports: dict[str, Path]) -> None:
    """12 rounds of 0.1 s in a run of 3.6 s."""
    words = page(reports["plain_run"]).text
    assert "1.2\u202fs" in words and "2.4\u202fs" in words


def test_the_coordinators_time_is_no_bar_among_the_clients(reports: dict[str, Path]) -> None:
    run, _ = account(reports["plain_run"])
    before = drawing.time_spent(run, "time")
    run.peers[N].seconds["training"] = 1000.0
    assert drawing.time_spent(run, "time") == before


def test_events_are_told_by_who_they_are_and_by_the_round_that_was_open(reports: dict[str, Path]) -> None:
    words = page(reports["eventful_run"]).text
    assert "9coordinatorgoneclient 2" in words
    assert "client 3, reason the session is not one that a client’s own policy allows" in words


def test_what_is_told_of_rounds_is_not_listed_again(reports: dict[str, Path]) -> None:
    run, _ = account(reports["eventful_run"])
    assert [event.name for event in run.events] == ["gone", "abstained", "crashed"]


def test_privacy_is_shown_against_its_limit(reports: dict[str, Path]) -> None:
    assert ("id", "epsilon") in page(reports["eventful_run"]).attributes
    assert ("id", "epsilon") not in page(reports["plain_run"]).attributes
    _, took = account(reports["eventful_run"])
    assert took.epsilon[ROUNDS] == 6.0


def test_a_run_with_a_budget_and_no_rows_of_it_shows_the_sum(tmp_path: Path) -> None:
    shown = federated.privacy(*account(plain_run(tmp_path, privacy={"epsilon": 3.25, "unit": "record"})))
    assert shown and "3.25" in shown and "<figure" not in shown


# --- several runs -----------------------------------------------------------------------------------------------------


def test_federated_runs_side_by_side_are_called_what_they_are(tmp_path: Path) -> None:
    folders = [plain_run(tmp_path / "a"), eventful_run(tmp_path / "b")]
    found = Page(write_comparison(tmp_path / "both.html", folders, "two"))
    for word in ("fedavg, secure sum", "fedavg, in the clear", "Global model", "At the clients", "Privacy ε"):
        assert word in found.text, word
    assert "peer" not in found.text.lower() and "Graph" not in found.text


def test_of_a_federated_run_among_others_nothing_is_made_up(tmp_path: Path) -> None:
    """Its mean and worst peer in the summary are the one model there is, three times."""
    folders = [plain_run(tmp_path / "a", name="alone"), learning_run(tmp_path / "b", n=4, rounds=4)]
    found = Page(write_comparison(tmp_path / "both.html", folders, "two"))
    row = found.source[found.source.index("fedavg, secure sum") :]
    assert row[: row.index("</tr>")].count("91.3") == 1
    assert "The averaged or global model is best in" in found.text


def test_names_follow_who_leads() -> None:
    led = federated_roles(3)
    assert [led.label(node) for node in (0, 3)] == ["client 0", "coordinator"]
    assert peer_roles(0).label(3) == "peer 3"
    assert [number_round(event, at, led) for event, at in (("missed", 4), ("resumed", 4), ("gone", -1))] == [5, 4, -1]
    assert number_round("missed", 4, peer_roles(4)) == 4


def test_what_clients_measured_is_told_where_a_run_ends() -> None:
    meter = Meter(N)
    meter.aggregated(Aggregated(0, {"clients": 5, "score": 0.75}))
    rows = [meter.mixed(7, 0, 0, None), meter.mixed(8, 0, 0, None)]
    told = dict(facts(summary(N, 8, test_loss=0.5), rows))
    assert told["at the clients"] == "0.7500 on their own examples, in round 6"
    assert "at the clients" not in dict(facts(summary(N, 8, test_loss=0.5), rows[1:]))


def test_a_list_of_runs_says_who_saw_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain_run(tmp_path / "a", rounds_abandoned=2)
    eventful_run(tmp_path / "b")
    said = in_process(["runs", "."], tmp_path, monkeypatch, capsys)
    head, first, second = (re.split(r"  +", line) for line in said.out.splitlines())
    assert head == ["run", "status", "members", "rounds", "model", "digest"]
    assert first[:5] == ["a", "finished", "5 clients, fedavg, secure", "12, 2 abandoned", "0.9130"]
    assert second[2] == "5 clients, fedavg, IN THE CLEAR"
    learning_run(tmp_path / "c", n=4, rounds=2)
    said = in_process(["runs", "."], tmp_path, monkeypatch, capsys)
    head, first, _, third = (re.split(r"  +", line) for line in said.out.splitlines())
    assert head == ["run", "status", "members", "rounds", "model", "mean peer", "worst peer", "digest"]
    assert (first[5], third[2]) == ("-", "4 peers")
    listed = json.loads(in_process(["runs", ".", "--json"], tmp_path, monkeypatch, capsys).out)
    assert [(run.get("mode"), run.get("secure")) for run in listed] == [
        ("federated", True), ("federated", False), (None, None),
    ]  # fmt: skip


def test_a_real_run_is_told_as_federated_from_its_first_line_to_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of five clients are killed in the third round, where five are needed: it is abandoned, and the next ones are
    whole, though each client's update is the same as the one that it had masked."""
    (tmp_path / "it.toml").write_text(
        """rounds = 6\nname = "it"\ntask = { kind = "quadratic", dim = 2 }\neval.every = 1
        [coordinator]\nclients = 5\ndeadline = 1.0\nleast_deadline = 0.5\nstart_timeout = 5.0
        [[faults]]\nkind = "crash"\npeers = [1, 3]\nstart = 0.2\nafter = 2.0\n"""
    )
    ran = in_process(["run", "it.toml", "--out", "run"], tmp_path, monkeypatch, capsys)
    assert ran.code == 0 and re.search(r"abandoned +1 of 6 rounds changed nothing", ran.out)
    assert "it on sim: 5 clients, 6 rounds" in ran.err
    assert "coordinator: the round is abandoned: too few clients while " in ran.err
    watched = in_process(["watch", "--once", "run"], tmp_path, monkeypatch, capsys)
    assert "it · fedavg, secure sum · 5 clients · simulated" in watched.out and " abandoned" in watched.out
    words = page(tmp_path / "run").text
    assert re.search(r"[1-5] rounds? of 6 w(as|ere) abandoned", words) and "secure sum" in words
    for told in (ran.out, ran.err, watched.out, words):
        assert "peer" not in told.replace("peers = ", "")  # a key of the fault script


def test_a_dead_client_does_not_wait(tmp_path: Path) -> None:
    """Of 20 rounds a client is there for about two, or away from the third to its return."""
    content = {
        "rounds": 20, "eval": {"every": 20}, "task": {"kind": "averaging"},
        "simulation": {"training": 1.0, "latency": 0.01},
        "coordinator": {"clients": 4, "secure": {"on": False}, "deadline": 2.0, "least_deadline": 2.0},
    }  # fmt: skip
    spent = []
    for name, after in (("gone", {}), ("back", {"after": 6.0})):
        crash = {"kind": "crash", "peers": [3], "start": 2.5, **after}
        fedgossip.simulate(content | {"faults": [crash]}, out=tmp_path / name)
        run = read_run(tmp_path / name)
        living, dead = (sum(drawing.time_of(run, run.learners[node], led=True).values()) for node in (0, 3))
        assert living == pytest.approx(run.summary.seconds, rel=0.01)
        spent.append((run.summary.seconds or 0.0) - dead)
    gone, back = spent
    assert gone == pytest.approx((read_run(tmp_path / "gone").summary.seconds or 0.0) - 2.5, abs=1.5)
    assert 6.0 <= back < 9.5
