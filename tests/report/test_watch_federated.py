"""Watching a federated run: its coordinator, the round that is open, and who has answered."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from test_watch_page import drawn, rendered, site

from fedgossip.cli.run.progress import words_for
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row, RowWriter
from fedgossip.core.roles import federated_roles, peer_roles
from fedgossip.report.watch import snapshot
from fedgossip.report.watch.federation import Federation, federation_of, star
from fedgossip.report.watch.places import find
from fedgossip.report.watch.snapshot import places
from fedgossip.report.watch.state import MOST_PEERS, State
from fedgossip.report.watch.table import learned
from tests.commands import in_process
from tests.written import conditions, peer_row, read

N = 4
"""The coordinator; its clients are 0 to 3."""


def lead(round: int, contributions: int | None = N, **changes: Any) -> list[Row]:
    """The coordinator's row of a round, and the network's; without contributions the round is abandoned."""
    told: list[Row] = []
    if contributions is None:
        facts = {"contributions": 1, "needed": 3, "reason": "TOO_FEW", "text": ""}
        told.append(EventRow(round - 1, N, "abandoned", facts))
    network = NetworkRow(round, contributions or 1, 0.1 * round, 5000 * round, loss=0.5, consensus_distance=0.0)
    if round % 2 == 0:
        network.test_loss = 0.4
        network.score_averaged = network.score_mean_peer = network.score_worst_peer = 0.75
    return [*told, peer_row(N, round, clients=contributions, **changes), network]


def rounds(first: int, last: int, clients: range | list[int] = range(N)) -> list[Row]:
    return [row for r in range(first, last + 1) for row in (*(peer_row(k, r) for k in clients), *lead(r, len(clients)))]


def told(*rows: Row, wanted: int = N) -> State:
    state = State(federated_roles(N), 20, star(N), Federation(N, wanted=wanted))
    for row in rows:
        state.take(row)
    return state


def test_a_population_too_large_to_list_shows_its_coordinator_and_whoever_has_a_row() -> None:
    clients = 2 * MOST_PEERS
    state = State(federated_roles(clients), 20, None, Federation(clients, wanted=2))
    assert state.round == state.progress == 0
    for row in (peer_row(clients - 1, 1), peer_row(7, 1), peer_row(clients, 1, clients=2)):
        state.take(row)
    state.take(EventRow(0, clients, "gone", [clients - 2]))
    assert sorted(state.peers) == [7, clients - 2, clients - 1, clients]
    assert state.leading == 1 and state.led and state.led.answered(state.peers.values()) == 0
    assert state.condition(state.peers[clients - 2]) == "gone"
    assert sum(state.counts().values()) == clients and state.unlisted[0] == clients - 3


def test_the_peers_beyond_a_large_population_s_rows_have_a_state_after_its_end() -> None:
    state = State(peer_roles(2 * MOST_PEERS), 20, None)
    state.status = "finished"
    assert state.unlisted == (2 * MOST_PEERS, "done")


def test_a_fit_by_sums_is_not_called_federated_averaging(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", section='[model]\nsource = "glm:logistic"\n')
    (folder / "roles.json").write_text(json.dumps({"name": "glm", "roles": federated_roles(N).plain}))
    assert read(folder).facts.graph == "glm, secure sum"


def written(path: Path, *rows: Row, section: str = "", status: str = "") -> Path:
    path.mkdir(parents=True)
    (path / "INCOMPLETE").touch()
    (path / "experiment.toml").write_text(f'rounds = 20\nname = "it"\n[coordinator]\nclients = {N}\n{section}')
    with RowWriter(path / "metrics.jsonl") as writer:
        for row in rows:
            writer.write(row)
    if status:
        (path / "summary.json").write_text(json.dumps({"status": status, "driver": "sim", "wall_seconds": 2.5}))
    return path


# --- what is known ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "known"),
    [
        ({"clients": 8}, Federation(8, "fedavg", 8, True)),
        ({"clients": 8, "participation": 0.5, "algorithm": "fedadam"}, Federation(8, "fedadam", 4, True)),
        ({"clients": 8, "cohort": 3, "secure": {"on": False}}, Federation(8, "fedavg", 3, False)),
        ({"clients": 8, "algorithm": "fedbuff"}, Federation(8, "fedbuff", None, True)),
        ({"clients": 8, "participation": 1e308}, Federation(8, "fedavg", 8, True)),
        ({"clients": 8, "participation": math.nan}, Federation(8, "fedavg", 8, True)),
        ({"clients": 0}, None),
        ({"clients": "8"}, None),
        ([8], None),
        (None, None),
    ],
)
def test_an_experiment_tells_of_its_federation(section: object, known: Federation | None) -> None:
    assert federation_of({"coordinator": section}) == known


def test_the_coordinator_stands_in_the_middle() -> None:
    found = places(N + 1, star(N))
    assert found is not None
    assert found[N] == pytest.approx([0.5, 0.5])
    assert [pytest.approx(0.5) == ((place - 0.5) ** 2).sum() ** 0.5 for place in found[:N]] == [True] * N


# --- who is where -----------------------------------------------------------------------------------------------------


def test_a_client_trains_and_answers_round_by_round() -> None:
    state = told()
    assert conditions(state) == ["starting"] * 5
    state.take(peer_row(1, 1))
    assert conditions(state) == ["starting", "answered", "starting", "starting", "starting"]
    for row in (*rounds(1, 3), peer_row(2, 4), peer_row(3, 4)):
        state.take(row)
    assert conditions(state) == ["training", "training", "answered", "answered", "leading"]
    assert state.led and state.led.answered(state.peers.values()) == 2
    assert state.counts() == {"training": 2, "answered": 2}


def test_where_not_all_are_wanted_nobody_knows_who_trains() -> None:
    state = told(*rounds(1, 3, [0, 1]), peer_row(3, 4), wanted=2)
    assert conditions(state) == ["ready", "ready", "ready", "answered", "leading"]


def test_who_was_not_in_the_last_round_is_done_with_the_others() -> None:
    state = told(*rounds(1, 20, [0, 1]), EventRow(19, N, "gone", 3), wanted=2)
    assert conditions(state) == ["done", "done", "done", "gone", "done"]


def test_a_run_that_was_stopped_leaves_clients_stopped() -> None:
    state = told(*rounds(1, 3))
    state.status = "interrupted"
    assert conditions(state) == ["stopped"] * 5


def test_a_client_that_the_coordinator_misses_is_told_and_its_link_marked() -> None:
    state = told(*rounds(1, 3), EventRow(3, N, "missed", [2]), *rounds(4, 4, [0, 1, 3]))
    assert snapshot.note(state, state.peers[2]) == "missed by the coordinator"
    assert state.links() == {(2, N): "missed"}
    for row in rounds(5, 5):
        state.take(row)
    assert state.links() == {}


def test_a_client_that_was_gone_is_back_when_a_round_has_all() -> None:
    """Its own rows may be on another machine."""
    gone = [*lead(1), EventRow(1, N, "gone", 2), *lead(2, N - 1)]
    state = told(*gone)
    assert state.condition(state.peers[2]) == "gone"
    state = told(*gone, *lead(3))
    assert state.condition(state.peers[2]) == "training" and not state.peers[2].seen_by


def test_rounds_that_were_abandoned_are_counted_and_gave_nothing() -> None:
    state = told(*rounds(1, 3), *lead(4, None))
    assert state.led
    assert (state.round, state.led.abandoned, state.led.contributions) == (4, 1, 0)
    assert state.led.curves["contributions"].points()[-1] == (4, (0,))


def test_one_model_has_one_accuracy_and_agrees_with_itself() -> None:
    """The record repeats its accuracy as that of the mean and the worst peer."""
    state = told(*rounds(1, 4))
    assert learned(state) == ["accuracy 75.0\u202f% global model"]
    assert state.curves["score"].points()[-1] == (4, (0.75, None, None))
    assert state.curves["distance"]._last is None


def test_what_clients_measured_is_of_the_model_of_the_round_before() -> None:
    state = told(*rounds(1, 4), *lead(5, score_clients=0.5, score_worst_client=0.25))
    assert state.led
    assert state.led.curves["clients"].points() == [(4, (0.5, 0.25))]
    assert learned(state) == ["accuracy 75.0\u202f% global model (round 4), 50.0\u202f% at the clients (round 4)"]


@pytest.mark.parametrize("value", [None, 3, [1, "x", -1, 99], {"contributions": []}, "x"])
@pytest.mark.parametrize("name", ["abandoned", "abstained", "abandoned_here", "misfits", "missed", "gone", "too_few"])
def test_whatever_a_coordinators_event_holds_it_can_be_told_in_one_line(name: str, value: object) -> None:
    state = told(*rounds(1, 2), EventRow(2, N, name, value))
    for row in state.events:
        text = snapshot.event_line(row, words_for(state.roles), state.roles)
        assert text.isprintable() and text.startswith("round ")
    conditions(state)
    state.links()


# --- the terminal and the pipe ----------------------------------------------------------------------------------------


def test_once_puts_the_coordinator_first_and_says_who_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written(tmp_path / "run", *rounds(1, 3), *lead(4, None), peer_row(2, 5), section="secure.on = false\n")
    said = in_process(["watch", "--once", str(run)], tmp_path, monkeypatch, capsys)
    assert said.code == 0
    lines = said.out.replace("\u202f", " ").splitlines()
    assert lines[0] == "it · fedavg, IN THE CLEAR · 4 clients"
    assert lines[1].startswith("round 4 of 20 · 1 of 4 have answered · 1 abandoned · ")
    assert lines[2] == "accuracy 75.0 % global model"
    table = [re.split(r"  +", line.strip()) for line in lines[3:9]]
    assert [row[0] for row in table] == ["client", "coordinator", "0", "1", "2", "3"]
    assert table[1][1:3] == ["leading", "4/20"] and table[1][-1] == "0 contributions in the last round"
    assert table[4][:4] == ["2", "answered", "5/20", "4"]
    assert lines[9] == "round 4, coordinator: the round is abandoned: too few clients: 1 contributed, 3 are needed"
    assert "peer" not in said.out


def test_a_pipe_gets_a_line_per_round_of_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*rounds(1, 2), EventRow(2, N, "gone", 3), *lead(3, None), *lead(4, 3, score_clients=0.5)]
    run = written(tmp_path / "run", NetworkRow(0, 1, 0.0, 0, test_loss=0.5), *rows, status="finished")
    said = in_process(["watch", str(run)], tmp_path, monkeypatch, capsys)
    assert said.out.replace("\u202f", " ").splitlines() == [
        "it · fedavg, secure sum · 4 clients",
        "round 0 of 20  loss 0.5",
        "round 1 of 20  loss 0.5, 4 contributions",
        "round 2 of 20  accuracy 75.0 %, 4 contributions",
        "round 3, coordinator: client 3 is gone",
        "round 3, coordinator: the round is abandoned: too few clients: 1 contributed, 3 are needed",
        "round 3 of 20  loss 0.5, 0 contributions",
        "round 4 of 20  accuracy 75.0 %, 50.0 % at the clients (round 3), 3 contributions",
        "client 3 is gone (gone for the coordinator)",
        f"The run has ended: finished. Everything is in {run}",
    ]


@pytest.mark.parametrize(("node", "line"), [
    (N, "round 7 of 20, coordinator  loss 0.5, 3 contributions"), (2, "round 7 of 20, client 2  loss 0.5"),
])  # fmt: skip
def test_the_folder_of_one_participant_can_be_watched_alone(node: int, line: str, tmp_path: Path) -> None:
    from fedgossip.report.watch.follow import Follower
    from fedgossip.report.watch.table import StatusLines

    folder = written(tmp_path / "run") / "peers" / f"{node:02d}"
    folder.mkdir(parents=True)
    (folder / "endpoint.toml").write_text(f'[[peer]]\nid = {node}\naddress = "tcp://127.0.0.1:5700"\nkey = "k"\n')
    lines = StatusLines(Follower(find([folder])), words_for(federated_roles(N)))
    row = peer_row(node, 7, clients=3 if node == N else None)
    assert lines.describe(row) == line


def test_what_the_coordinators_folder_does_not_know_of_clients_is_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "hub", *(row for r in (1, 2) for row in lead(r) if isinstance(row, PeerRow)))
    (folder / "endpoint.toml").write_text(f'[[peer]]\nid = {N}\naddress = "tcp://127.0.0.1:5700"\nkey = "k"\n')
    said = in_process(["watch", str(folder), "--once"], tmp_path, monkeypatch, capsys).out
    assert re.search(r"^coordinator +leading +2/20 ", said, re.MULTILINE)
    assert re.search(r"^2 +\w+ +– ", said, re.MULTILINE) and "0/20" not in said and " 0 B" not in said


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_told_of_the_coordinator(tmp_path: Path) -> None:
    run = written(tmp_path / "run", *rounds(1, 3), peer_row(2, 4))
    follower = read(run)
    graph, now = snapshot.graph(follower), snapshot.moment(follower, words_for(follower.state.roles))
    assert (graph["coordinator"], graph["wanted"], graph["clear"], graph["n"]) == (N, 4, False, 5)
    assert sorted(map(tuple, graph["edges"])) == [(k, N) for k in range(N)]
    assert now["led"] == {"contributions": 4, "answered": 1, "abandoned": 0, "mean": None, "worst": None}
    assert (now["n"], now["mean"], now["worst"], now["distance"]) == (4, None, None, None)
    assert [peer["id"] for peer in now["peers"]] == [N, 0, 1, 2, 3]


@pytest.mark.browser
@pytest.mark.sockets
def test_a_browser_draws_clients_around_their_coordinator(tmp_path: Path) -> None:
    rows: list[Row] = [*rounds(1, 3), EventRow(3, N, "gone", 1), peer_row(2, 4)]
    with site(read(written(tmp_path / "run", *rows, section="secure.on = false\n"))) as served:
        page = rendered(served.url, tmp_path)
    assert drawn(page.replace("<title>client", "<title>peer")) == {
        0: ("training", ""), 1: ("gone", "gone"), 2: ("answered", "✓"), 3: ("training", ""),
    }  # fmt: skip
    assert ">1/4</text>" in page and '<g class="node s-leading"' in page
    assert '<p class="notice" id="clear">' in page and "4 clients around their coordinator: 1 gone" in page
    words = re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)
    assert "peer" not in re.sub(r"<[^>]*>", " ", words)


def test_rows_are_those_of_a_real_coordinator() -> None:
    """What is read here by name is there: `clients` and the clients' accuracy are fields of the record."""
    assert {"clients", "score_clients", "score_worst_client"} <= set(PeerRow.__struct_fields__)


def test_of_a_client_s_own_folder_the_round_is_its_own() -> None:
    state = told(peer_row(0, 3))
    for peer in state.peers.values():
        peer.watched = peer.node == 0
    assert state.round == 3


def test_who_has_answered_is_not_known_from_the_coordinator_s_folder_alone() -> None:
    state = told(*rounds(1, 2))
    assert state.led and state.led.answered(state.peers.values()) is not None
    for peer in state.peers.values():
        peer.watched, peer.turns = peer.node == state.roles.leader, 0
    assert state.led.answered(state.peers.values()) is None
