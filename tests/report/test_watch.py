"""Watching a run: its files folded into a state, told on a pipe, drawn on a page."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from fedgossip.base.errors import ConfigError
from fedgossip.cli.run.progress import event_text
from fedgossip.core.records import EventRow, Row, RowWriter
from fedgossip.report.watch import snapshot, table
from fedgossip.report.watch.federation import POINTS_KEPT, Curve
from fedgossip.report.watch.follow import PIECE_BYTES, Follower, Tail
from fedgossip.report.watch.places import find
from fedgossip.report.watch.snapshot import links_up
from fedgossip.report.watch.state import State
from fedgossip.report.watch.table import Screen, StatusLines, learned
from tests.commands import finish, in_process, start
from tests.written import Written, conditions, gone, missed, network_row, peer_row, read, rounds, told


@pytest.fixture
def run(tmp_path: Path) -> Written:
    return Written(tmp_path / "run")


# --- reading what grows ---------------------------------------------------------------------------------------------


def test_a_torn_last_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"one\ntw")
    tail = Tail(path)
    assert tail.lines() == [b"one"]
    assert tail.lines() == []
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert tail.lines() == [b"two", b"three"]
    assert not tail.behind


def test_a_file_may_come_later(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "metrics.jsonl")
    assert tail.lines() == []
    tail.path.write_bytes(b"one\n")
    assert tail.lines() == [b"one"]


def test_a_large_file_is_read_in_pieces_and_a_line_longer_than_one_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"first\n" + b"x" * (2 * PIECE_BYTES) + b"\nlast\n")
    tail, found, asked = Tail(path), [], 0
    while tail.behind or not asked:
        found += tail.lines()
        asked += 1
    assert found == [b"first", b"last"]
    assert asked > 2


def test_of_a_past_that_is_told_elsewhere_only_whole_lines_of_the_end_are_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(b"%07d\n" % i for i in range(100_000)))
    lines = Tail(path, newest=True).lines()
    assert 1000 < len(lines) < 10_000
    assert lines == [b"%07d" % i for i in range(100_000 - len(lines), 100_000)]


def test_what_is_written_while_one_watches_is_seen(run: Written) -> None:
    follower = read(run.path)
    assert follower.state.round == 0
    run.add(*rounds(1, 3, accuracy=0.75))
    assert follower.poll()
    assert follower.state.round == 3
    assert [peer.round for peer in follower.state.peers.values()] == [3, 3, 3, 3]
    assert not follower.poll()
    assert not follower.ended


def test_a_file_that_begins_again_is_a_run_that_begins_again(run: Written) -> None:
    run.add(*rounds(1, 5))
    follower = read(run.path)
    (run.path / "metrics.jsonl").write_bytes(b"")
    run.add(*rounds(1, 1))
    while follower.poll():
        pass
    assert follower.state.round == 1
    assert follower.state.peers[0].bytes_sent == 1000


def test_lines_that_are_no_rows_are_counted_and_passed_over(run: Written) -> None:
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind":"weather"}\nnot json\n[[[[\n\n\xff\xfe\n{"kind":"peer","round":"x"}\n')
    run.add(*rounds(1, 1))
    follower = read(run.path)
    assert follower.state.round == 1
    assert follower.unreadable == 5


def test_a_run_ends_when_its_summary_is_there_and_all_is_read(run: Written) -> None:
    run.add(*rounds(1, 20))
    follower = read(run.path)
    assert not follower.ended
    run.end("partial")
    follower.poll()
    assert follower.ended
    assert (follower.state.status, follower.driver, follower.seconds) == ("partial", "sim", 2.5)


# --- folding rows into a state --------------------------------------------------------------------------------------


def test_bytes_are_summed_and_other_figures_are_the_newest() -> None:
    state = told(peer_row(1, 1, score=0.5), peer_row(1, 2, loss=0.25), peer_row(1, 2, loss=0.25))
    peer = state.peers[1]
    assert (peer.round, peer.loss, peer.score, peer.bytes_sent, peer.bytes_received) == (2, 0.25, 0.5, 2000, 1800)
    assert peer.waiting == pytest.approx(0.1 / 0.4)


def test_a_peers_own_row_is_ahead_of_the_record_and_counts_once() -> None:
    state = told(*rounds(1, 1))
    state.preview(peer_row(2, 2, loss=0.125))
    assert (state.peers[2].round, state.peers[2].loss, state.peers[2].bytes_sent) == (2, 0.125, 1000)
    state.take(peer_row(2, 2, loss=0.125))
    assert state.peers[2].bytes_sent == 2000


def test_peers_start_then_train_then_are_done() -> None:
    state = told()
    assert conditions(state) == ["starting"] * 4
    state.take(peer_row(0, 1))
    assert conditions(state) == ["training", "training", "starting", "training"]  # who has a neighbour beyond round 1
    for row in rounds(2, 20):
        state.take(row)
    assert conditions(state) == ["done"] * 4


def test_a_peer_is_gone_when_a_neighbour_says_so_and_its_links_are_down() -> None:
    state = told(*rounds(1, 5), gone(1, 2, 5))
    assert conditions(state) == ["training", "training", "gone", "training"]
    assert state.links() == {(1, 2): "down", (2, 3): "down"}
    assert state.peers[2].witnesses("gone") == [1]


def test_a_gone_peer_that_writes_rows_again_is_back_and_so_is_the_link_that_no_round_misses() -> None:
    absent = [row for r in (6, 7) for row in (missed(1, r - 1, 2), *rounds(r, r, [0, 1, 3]))]
    state = told(*rounds(1, 5), gone(1, 2, 5), *absent)
    assert state.condition(state.peers[2]) == "gone"
    state.take(peer_row(2, 8))
    assert state.condition(state.peers[2]) == "training"
    assert state.links() == {(1, 2): "down"}  # peer 1 has not said that it hears it
    for row in rounds(8, 9):
        state.take(row)
    assert state.links() == {}


def test_a_peer_that_nobody_waits_for_any_more_stays_gone() -> None:
    """Without its place in the roster it is not missed either; only its own rows or a word of it bring it back."""
    verdict = EventRow(5, 3, "gone", {"node": 2, "until": 6, "by": 1})
    state = told(*rounds(1, 5), verdict, *rounds(6, 12, [0, 1, 3]))
    assert snapshot.note(state, state.peers[2]) == "gone for 1"
    assert state.links() == {(1, 2): "down", (2, 3): "down"}


def test_a_peer_that_was_sent_away_has_left() -> None:
    state = told(*rounds(1, 5), EventRow(5, 1, "revoked", {"node": 2}))
    assert conditions(state)[2] == "left"


def test_a_peer_that_said_that_it_goes_is_not_gone_but_left() -> None:
    state = told(*rounds(1, 5), EventRow(5, 1, "left", {"node": 2, "until": 6}))
    assert conditions(state)[2] == "left"
    state.take(EventRow(9, 1, "joins", {"node": 2, "since": 10}))
    assert conditions(state)[2] == "training"


def test_a_peer_that_goes_on_from_its_checkpoint_is_where_that_was() -> None:
    state = told(*rounds(1, 5), EventRow(-1, 2, "crashed"), EventRow(3, 2, "resumed", {"round": 3, "incarnation": 1}))
    assert (state.condition(state.peers[2]), state.peers[2].round) == ("training", 3)
    state.take(peer_row(2, 4))
    assert (state.peers[2].round, state.peers[2].bytes_sent) == (4, 5000)


def test_a_row_from_before_it_was_gone_brings_no_peer_back() -> None:
    """A neighbour is at most one round ahead, and the record holds rows until all have passed the round."""
    state = told(*rounds(1, 5), gone(1, 2, 5), peer_row(2, 6))
    assert state.condition(state.peers[2]) == "gone"


@pytest.mark.parametrize("word", [EventRow(6, 1, "joined", 2), EventRow(6, 2, "joined")])
def test_a_gone_peer_that_joins_is_back_at_once(word: EventRow) -> None:
    state = told(*rounds(1, 5), gone(1, 2, 5), word, peer_row(2, 7))
    assert conditions(state) == ["training"] * 4
    assert state.links() == {}


def test_a_deadline_that_passed_is_a_link_missed_until_the_next_round() -> None:
    state = told(*rounds(1, 5), missed(1, 5, 2), *rounds(6, 6))
    assert state.links() == {(1, 2): "missed"}
    assert conditions(state) == ["training"] * 4
    for row in rounds(7, 7):
        state.take(row)
    assert state.links() == {}


def test_a_peer_is_suspected_until_it_refutes() -> None:
    """Membership tells who suspects whom to others, who tell it again."""
    state = told(*rounds(1, 5), EventRow(5, 0, "suspected", 1), EventRow(5, 3, "suspected", {"node": 1, "by": 2}))
    assert conditions(state)[1] == "suspected"
    assert snapshot.note(state, state.peers[1]) == "suspected by 0, 2"
    assert state.links() == {(0, 1): "suspected", (1, 2): "suspected"}
    state.take(EventRow(6, 3, "refuted", 1))
    assert conditions(state)[1] == "training"
    assert state.links() == {}


@pytest.mark.parametrize("name", ["crashed", "died", "hung", "failed"])
def test_who_fell_is_told_in_that_word_and_takes_its_links_down(name: str) -> None:
    state = told(*rounds(1, 5), EventRow(-1, 3, name, {"text": "why"}))
    assert conditions(state)[3] == name
    assert state.links() == {(0, 3): "down", (2, 3): "down"}


def test_a_partition_is_down_between_its_parts_until_they_merge() -> None:
    cut = EventRow(5, 0, "partition", {"unreachable": [1]})
    state = told(*rounds(1, 5), cut)
    assert state.links()[0, 1] == "down"
    state.take(EventRow(7, 0, "merged", {"back": [1]}))
    assert state.links() == {}


@pytest.mark.parametrize(
    "value", [None, 2, [2, "x"], {"unreachable": 5}, "\x1b[2J", [[[]]], {"text": None}, -1, 10**30]
)
@pytest.mark.parametrize(
    "name", ["tickled", "gone", "missed", "suspected", "partition", "refused", "joined", "skipped"]
)
def test_whatever_an_event_is_called_and_holds_it_can_be_told_in_one_line(name: str, value: object) -> None:
    state = told(*rounds(1, 2), EventRow(2, 1, name, value), EventRow(2, 99, name, value))
    for row in state.events:
        text = snapshot.printable_text(row, event_text)
        assert text.isprintable() and text
    assert len(state.peers) == 4
    state.links()


def test_who_goes_on_missing_another_is_told_once() -> None:
    state = told(*rounds(1, 5), gone(1, 2, 5))
    assert [state.take(missed(1, r, 2)) for r in range(5, 9)] == [False] * 4
    assert state.take(missed(1, 9, 0, 2))
    assert (len(state.events), state.events_seen) == (2, 6)


def test_where_no_experiment_is_known_peers_appear_as_they_are_named() -> None:
    state = State()
    state.take(peer_row(3, 1))
    state.take(gone(3, 7, 1))
    state.take(gone(3, 10**9, 1))
    assert sorted(state.peers) == [3, 7]
    assert state.condition(state.peers[7]) == "gone"


def test_a_curve_is_thinned_and_keeps_its_ends() -> None:
    curve = Curve()
    for round in range(10_001):
        curve.add(round, round / 2)
    points = curve.points()
    assert len(points) <= POINTS_KEPT + 1
    assert (points[0], points[-1]) == ((0, (0.0,)), (10_000, (5000.0,)))
    assert points == sorted(points)


def test_the_peers_to_look_at_come_first() -> None:
    state = told(*rounds(1, 5), EventRow(-1, 3, "died"), EventRow(5, 0, "suspected", 1), peer_row(0, 6), n=5)
    assert [peer.node for peer in state.sort_by_interest()] == [3, 1, 4, 2, 0]
    assert state.counts() == {"died": 1, "suspected": 1, "training": 3}


# --- what is watched ------------------------------------------------------------------------------------------------


def peer_folder(path: Path, node: int, *rows: Row, ended: str = "") -> Path:
    path.mkdir(parents=True)
    (path / "endpoint.toml").write_text(f'[[peer]]\nid = {node}\naddress = "tcp://127.0.0.1:5700"\nkey = "k"\n')
    with RowWriter(path / "metrics.jsonl") as writer:
        for row in rows:
            writer.write(row)
    if ended:
        (path / "ended.json").write_text(json.dumps({"status": ended, "rounds": 3, "counts": {}}))
    return path


def test_the_folder_of_one_peer_can_be_watched_alone(tmp_path: Path) -> None:
    folder = peer_folder(tmp_path / "peer4", 4, peer_row(4, 1), peer_row(4, 2), gone(4, 5, 2))
    follower = read(folder)
    assert {node: follower.state.condition(peer) for node, peer in follower.state.peers.items()} == {
        4: "training",
        5: "gone",
    }
    assert follower.state.round == 2
    (folder / "ended.json").write_text('{"status": "finished"}')
    follower.poll()
    assert follower.ended
    assert follower.state.condition(follower.state.peers[4]) == "done"


def test_several_peers_folders_are_one_run(tmp_path: Path) -> None:
    folders = [
        peer_folder(tmp_path / f"peer{k}", k, *(peer_row(k, r) for r in range(1, 4)), ended="finished") for k in (0, 1)
    ]
    follower = read(*folders)
    assert follower.ended
    assert follower.state.counts() == {"done": 2}


def test_peers_of_a_run_on_this_machine_know_its_graph(run: Written) -> None:
    folder = peer_folder(run.path / "peers" / "01", 1, peer_row(1, 1))
    state = read(folder).state
    assert (state.n, state.rounds, len(state.edges)) == (4, 20, 4)
    assert conditions(state) == ["elsewhere", "training", "elsewhere", "elsewhere"]


def drawn(follower: Follower) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(Screen(follower, event_text, whole=True))
    return captured.get()


def test_a_table_on_a_pipe_has_a_limit_and_counts_the_others(run: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand rows took rich twenty seconds."""
    monkeypatch.setattr(table, "WHOLE_MOST", 3)
    folder = peer_folder(run.path / "peers" / "01", 1, peer_row(1, 1))
    lines = drawn(read(folder)).splitlines()
    head = next(place for place, line in enumerate(lines) if "what others say" in line)
    assert lines[head + 4].startswith("and 1 more: 1 elsewhere"), lines


def links(state: State) -> list[str]:
    return [links_up(state, peer, state.links()) for _, peer in sorted(state.peers.items())]


def test_nothing_is_known_of_links_before_one_of_their_ends_has_a_round_behind_it(run: Written) -> None:
    folder = peer_folder(run.path / "peers" / "01", 1)
    assert links(read(folder).state) == ["?/2"] * 4
    (folder / "metrics.jsonl").write_bytes(msgspec.json.encode(peer_row(1, 1)) + b"\n")
    assert links(read(folder).state) == ["1?/2", "2/2", "1?/2", "?/2"], "of peer 1 alone, the others do not tell"


def test_of_peers_that_are_not_watched_nothing_is_told_after_the_end_either(run: Written) -> None:
    follower = read(peer_folder(run.path / "peers" / "01", 1, peer_row(1, 20), ended="finished"))
    assert follower.ended and conditions(follower.state) == ["elsewhere", "done", "elsewhere", "elsewhere"]
    now = snapshot.moment(follower, event_text)
    assert (now["peers"][0]["round"], now["peers"][0]["sent"]) == (None, None)
    lines = [line.split() for line in drawn(follower).splitlines()]
    assert next(line for line in lines if line[:2] == ["0", "elsewhere"])[2] == "–"


def test_an_accuracy_is_told_with_its_round_when_that_is_over(run: Written) -> None:
    run.add(*rounds(1, 5, accuracy=0.75), *rounds(6, 7))
    follower = read(run.path)
    assert "75.0\u202f% averaged" in learned(follower.state)[0] and "(round 5)" in learned(follower.state)[0]
    now = snapshot.moment(follower, event_text)
    assert (now["round"], now["tested"]) == (7, 5)


def test_a_score_without_a_loss_is_measured() -> None:
    """Loops may measure an accuracy alone."""
    row = network_row(5, accuracy=0.75)
    row.test_loss = None
    state = told(row)
    assert state.tested is row and learned(state)[0].startswith("accuracy 75.0")


def test_what_is_lacking_in_a_run_is_told_at_its_end(run: Written) -> None:
    run.add(*rounds(1, 20))
    run.end("partial", lacking=("Peers 1 and 2 never exchanged a model.",))
    follower = read(run.path)
    assert "Peers 1 and 2 never exchanged a model." in drawn(follower)
    assert snapshot.moment(follower, event_text)["lacking"] == ["Peers 1 and 2 never exchanged a model."]


@pytest.mark.sockets
def test_a_run_on_this_machine_is_watched_ahead_of_its_record(run: Written) -> None:
    run.add(*rounds(1, 1))
    for node in range(4):
        peer_folder(run.path / "peers" / f"{node:02d}", node, *(peer_row(node, r) for r in range(1, 4 + node)))
    follower = read(run.path)
    assert [peer.round for peer in follower.state.peers.values()] == [3, 4, 5, 6]
    assert follower.driver == "local"


def test_without_a_run_the_newest_is_watched(tmp_path: Path) -> None:
    for age, name in enumerate(["new", "old", "older"]):
        written = Written(tmp_path / "runs" / ("deep" if age else ".") / name)
        for file in written.path.iterdir():
            os.utime(file, (1e9 - age, 1e9 - age))
    assert find([], [tmp_path / "runs"]).folder == find([tmp_path / "runs"]).folder == tmp_path / "runs" / "new"


def test_a_part_in_a_run_by_invite_is_found_without_its_name(tmp_path: Path) -> None:
    """The folder of the invite keeps the experiment, as a user's folder does: neither is a run."""
    own = peer_folder(tmp_path / "hosting" / "lan" / "run", 1)
    for folder in (tmp_path / "hosting" / "lan", tmp_path):
        (folder / "experiment.toml").write_text("rounds = 3")
    for given, searched in (([], [tmp_path / "runs", tmp_path / "hosting"]), ([own.parent], []), ([tmp_path], [])):
        assert find(given, searched).peers == {1: own}


@pytest.mark.parametrize("names", [["nothing"], ["empty"], ["peer", "peer"], ["peer", "run"], []])
def test_what_cannot_be_watched_is_refused_with_advice(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    peer_folder(tmp_path / "peer", 0)
    Written(tmp_path / "run")
    with pytest.raises(ConfigError) as refused:
        find([tmp_path / name for name in names], [tmp_path / "empty"])
    assert refused.value.advice


def test_of_a_graph_that_changes_by_the_round_all_links_are_known(tmp_path: Path) -> None:
    """One-peer exponential on 8 nodes: i sends to i + 1, i + 2, i + 4 in turn."""
    state = read(Written(tmp_path / "run", n=8, graph="one-peer-exponential").path).state
    assert set(state.neighbours[0]) == {1, 2, 4, 6, 7}


def test_a_graph_that_lies_elsewhere_costs_the_links_only(tmp_path: Path) -> None:
    run = Written(tmp_path / "run", graph="/not/on/this/machine.toml")
    run.add(*rounds(1, 2))
    state = read(run.path).state
    assert (state.round, state.edges, state.counts()) == (2, [], {"training": 4})


# --- the terminal and the pipe --------------------------------------------------------------------------------------


def test_a_pipe_gets_a_line_per_round_and_event(
    run: Written, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run.add(*rounds(1, 1, accuracy=0.75), gone(1, 2, 1), missed(1, 1, 2), *rounds(2, 2))
    run.end("partial")
    said = in_process(["watch", str(run.path)], run.path, monkeypatch, capsys)
    assert (said.code, said.err) == (0, "")
    assert said.out.replace("\u202f", " ").splitlines() == [
        "it · ring · 4 peers",
        "round 0 of 20  loss 0.5, disagreement 0.25",
        "round 1 of 20  accuracy 75.0 % averaged, 65.0 % mean peer, 55.0 % worst peer, disagreement 0.25",
        f"round 1, peer 1: {event_text(gone(1, 2, 1))}",
        "round 2 of 20  loss 0.5, disagreement 0.25",
        "peer 2 is gone (gone for 1)",
        f"The run has ended: partial. Everything is in {run.path}",
    ]


def test_the_folder_of_a_peer_gives_a_line_per_round(tmp_path: Path) -> None:
    follower = Follower(find([peer_folder(tmp_path / "peer2", 2)]))
    assert StatusLines(follower, event_text).describe(peer_row(2, 7, score=0.5)) == (
        "round 7, peer 2  loss 0.5, accuracy 50.0\u202f%, waited 0.1 s"
    )


def test_once_prints_every_peer_whatever_the_state_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Written(tmp_path / "run", n=30, name="[red]it[/red]\x1b[2J")
    run.add(*rounds(1, 5, range(30)), gone(1, 2, 5))
    said = in_process(["watch", "--once", str(run.path)], tmp_path, monkeypatch, capsys)
    assert (said.code, said.err) == (0, "")
    assert "\x1b" not in said.out
    assert "[red]it[/red] [2J · ring · 30 peers" in said.out
    assert "round 5 of 20" in said.out and "running" in said.out
    table = [line.split() for line in said.out.splitlines() if re.match(r" *\d+  ", line)]
    assert [int(line[0]) for line in table] == list(range(30))
    assert table[2][:2] == ["2", "gone"] and said.out.count("gone for 1") == 1
    assert table[1][-1] == "1/2"


def test_on_a_small_terminal_the_peers_in_trouble_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    from rich.console import Console

    run = Written(tmp_path / "run", n=300)
    run.add(*rounds(1, 5, range(300)), EventRow(-1, 200, "died"))
    screen = Screen(read(run.path), event_text, footer="the end")
    console = Console(width=80, height=24)
    with console.capture() as captured:
        console.print(screen)
    lines = captured.get().splitlines()
    assert len(lines) < 24
    assert lines[-1] == "the end"
    assert max(map(len, lines)) <= 80
    assert any(re.match(r" *200 +died", line) for line in lines)
    assert any(re.fullmatch(r"and \d+ more: \d+ training", line.strip()) for line in lines)


@pytest.mark.sockets
def test_help_and_a_table_need_no_torch(run: Written) -> None:
    run.add(*rounds(1, 2))
    for words in (["--help"], ["--once", str(run.path)]):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "fedgossip", "watch", *words],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        modules = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}
        assert not modules & {"torch", "zmq", "sklearn", "matplotlib"}


@pytest.mark.parametrize("words", [["--once", "--web"], ["--port", "1"], ["--open"], ["--web", "--port", "70000"]])
def test_words_that_exclude_each_other_are_refused(
    words: list[str], run: Written, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(["watch", *words, str(run.path)], run.path, monkeypatch, capsys).code == 2


@pytest.mark.sockets
def test_ctrl_c_ends_the_watching_quietly(run: Written) -> None:
    process = start(["watch", str(run.path)], run.path)
    assert process.stdout and process.stdout.readline() == "it · ring · 4 peers\n"
    process.send_signal(signal.SIGINT)
    said = finish(process, 20)
    assert (said.code, said.err) == (130, "")


def test_of_a_run_that_was_put_together_the_links_are_those_that_carried_a_model(run: Written) -> None:
    run.add(*rounds(1, 20), EventRow(20, 1, "never_exchanged", [2]), EventRow(20, 2, "never_exchanged", [1]))
    run.end("partial", driver="peers", wall_seconds=None, seconds=4.0)
    follower = read(run.path)
    assert links(follower.state) == ["2/2", "1/2", "1/2", "2/2"]
    assert follower.seconds == 4.0


def test_a_peer_that_is_reached_through_a_relay_is_shown_as_that_until_there_is_a_direct_way() -> None:
    via = [EventRow(3, 1, "via_relay", node) for node in (2, 0)]
    state = told(*rounds(1, 4), *via)
    assert snapshot.note(state, state.peers[1]) == "via relay to 0, 2"
    assert event_text(via[0]) == "reaches peer 2 through the relay"
    state = told(*rounds(1, 4), *via, EventRow(5, 1, "direct", 2))
    assert snapshot.note(state, state.peers[1]) == "via relay to 0"
    state = told(*rounds(1, 4), *via, EventRow(5, 1, "via_web", 2))
    assert snapshot.note(state, state.peers[1]) == "via relay to 0; via the web to 2"
