"""What a person sees of a run while it goes on."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.text import Text

from fedgossip.cli.run import progress
from fedgossip.cli.run.progress import Progress, _bar, event_text, words_for
from fedgossip.cli.text import console
from fedgossip.core.meter import Meter
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row, event_kinds
from fedgossip.core.roles import federated_roles, peer_roles


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", -1.0)


def lines(rows: Sequence[Row], capsys: pytest.CaptureFixture[str], own: int | None = None) -> list[str]:
    """What is printed after the title."""
    with Progress("it", 20, peer_roles(4), own=own) as shown:
        for row in rows:
            shown(row)
    return capsys.readouterr().err.splitlines()[1:]


def own_row(peer: int, round: int, accuracy: float | None = None, loss: float | None = 0.5) -> PeerRow:
    meter = Meter(peer)
    meter.train_began(0)
    meter.train_ended(0, 0, {} if loss is None else {"loss": loss})
    return meter.mixed(round, 250_000_000, 0, accuracy)


def missed(round: int, peer: int, *who: int) -> EventRow:
    return EventRow(round, peer, "missed", list(who))


@pytest.mark.usefixtures("no_pause")
def test_a_peer_sees_its_own_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    said = lines([own_row(2, 1), own_row(2, 2, accuracy=0.75), own_row(2, 3, loss=None)], capsys, own=2)
    assert said == [
        "it: round 1 of 20  loss 0.5, waited 0.25 s",
        "it: round 2 of 20  loss 0.5, accuracy 0.750, waited 0.25 s",
        "it: round 3 of 20  accuracy 0.750 (round 2), waited 0.25 s",
    ]


@pytest.mark.usefixtures("no_pause")
def test_a_run_of_all_peers_is_told_by_rows_of_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    said = lines([own_row(0, 1), NetworkRow(1, 4, 0.1, 0, test_loss=0.5), own_row(0, 2)], capsys)
    assert said == ["it: round 1 of 20  loss 0.5"]


@pytest.mark.usefixtures("no_pause")
def test_rounds_that_no_test_measures_are_told_by_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Loops of a user's own are tested by nobody: their rounds were told without a word."""
    rows = [NetworkRow(1, 4, 0.1, 10, loss=0.25, consensus_distance=1.5), NetworkRow(2, 4, 0.2, 20)]
    told = lines(rows, capsys)
    assert told == ["it: round 1 of 20  training loss 0.25, disagreement 1.5", "it: round 2 of 20"]


@pytest.mark.usefixtures("no_pause")
def test_a_score_is_printed_once_and_that_of_round_0_never_again(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [NetworkRow(round, 4, 0.1, 0, loss=0.5) for round in range(6)]
    rows[0] = NetworkRow(0, 4, 0.0, 0, test_loss=2.3, score_averaged=0.095)
    rows[3] = NetworkRow(3, 4, 0.1, 0, test_loss=0.5, score_averaged=0.75)
    told = [line.partition("  ")[2] for line in lines(rows, capsys)]
    assert [line.partition(" averaged")[0] for line in told] == [*["training loss 0.5"] * 2, "accuracy 0.750"] + [
        "training loss 0.5"
    ] * 2
    own = lines([own_row(2, 0, accuracy=0.095), own_row(2, 1)], capsys, own=2)
    assert own == ["it: round 1 of 20  loss 0.5, waited 0.25 s"]


def test_a_missing_peer_is_told_once_by_each_neighbour(capsys: pytest.CaptureFixture[str]) -> None:
    said = lines([row for round in range(5, 15) for row in (missed(round, 1, 2), missed(round, 3, 2))], capsys)
    assert [line.split(":")[0] for line in said] == ["round 5, peer 1", "round 5, peer 3"]


def test_a_missing_peer_is_told_again_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [missed(5, 1, 2), missed(6, 1, 2), missed(7, 1, 0, 2), missed(8, 1, 0, 2), missed(12, 1, 0, 2)]
    said = lines(rows, capsys)
    assert [line.split(",")[0] for line in said] == ["round 5", "round 7", "round 12"]


# --- events in words --------------------------------------------------------------------------------------------------


def test_facts_are_told_without_braces() -> None:
    for name in event_kinds():
        for value in (
            None,
            3,
            [1, 2],
            {"peer": 1, "round": 2},
            {"to": 1, "weight": 0.5},
            {"text": "x"},
            {"weight": "x"},
        ):
            text = event_text(EventRow(1, 0, name, value))
            assert text and "{" not in text and "[" not in text, (name, value, text)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("died", {"exit_code": -9}, "was killed"),
        ("died", {"exit_code": 3}, "ended with code 3 and without a report"),
        ("missed", [2, 5], "goes on without 2, 5; their weight is added to the own model's"),
        ("gone", 4, "peer 4 is gone; its weight is added to the own model's"),
        ("gone", {"node": 4, "until": 8}, "peer 4 is gone; the graph goes on without it from round 8 on"),
        ("partition", [[0, 1], [2]], "the fault script parts the network: 0, 1 | 2"),
        ("unsettled", {"peer": 1, "offer": 7}, "whether peer 1 accepted offer 7 is unknown"),
        ("refused", {"from": 1, "reason": "digest"}, "refused a message of peer 1: digest"),
        ("rows_lost", {"count": 3, "reason": "no space"}, "3 rows of the record are lost: no space"),
        (
            "abandoned",
            {"contributions": 2, "needed": 5, "reason": "TOO_FEW", "text": ""},
            "the round is abandoned: too few clients: 2 contributed, 5 are needed",
        ),
        (
            "abandoned",
            {"contributions": 0, "needed": 5, "reason": "INTERRUPTED", "text": "the coordinator was stopped"},
            "the round is abandoned: the coordinator was stopped in it",
        ),
        (
            "abstained",
            {"peer": 3, "reason": "ROSTER"},
            "client 3 stays out of the round: a participant is not in the roster, or the rosters differ",
        ),
        (
            "abandoned_here",
            {"reason": "MODEL_HASH", "text": "...", "advice": "..."},
            "stays out of the round: the model is not the one that was announced",
        ),
        (
            "cut",
            {"cut": 2, "of": 5},
            "cut to the bound: updates of 2 clients out of 5; raise coordinator.secure.bound, or lower lr",
        ),
        ("misfits", {"of": 4, "held_by": 2}, "the share of client 4’s secret that client 2 returned does not fit"),
        ("awaits", {"missing": [1, 3], "here": 4, "of": 6}, "waits for 1, 3: 4 of 6 are here"),
        ("too_few", {"clients": 3, "needed": 5}, "too few clients: 3 are here, a round needs 5"),
        ("late", {"peer": 3, "round": 7}, "a message of client 3 for round 7 is too late"),
        ("late", {"peer": 8, "session": 7}, "a message of session 7 is too late"),
        ("outdated", {"now": 5}, "its training is obsolete: goes over to round 5"),
        ("resumed", {"round": 3, "incarnation": 1}, "goes on after round 3, in life 1"),
        ("never_seen", {"a": 1}, "never seen: a 1"),
    ],
)
def test_an_event_reads_as_a_sentence(name: str, value: object, text: str) -> None:
    assert event_text(EventRow(1, 0, name, value)) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("gone", 4, "client 4 is gone"),
        ("missed", [2, 5], "the round goes on without 2, 5"),
        ("started_without", [2], "begins without 2, which did not join"),
        ("deserted", [8], "the coordinator is gone: ends here"),
        ("crashed", None, "killed by the fault script"),
        ("died", {"exit_code": -9}, "was killed"),
    ],
)
def test_a_coordinator_speaks_of_clients_and_not_of_weights(name: str, value: object, text: str) -> None:
    assert words_for(federated_roles(8))(EventRow(1, 8, name, value)) == text


@pytest.mark.usefixtures("no_pause")
def test_a_federated_run_counts_its_clients_and_tells_of_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    tested = NetworkRow(1, 2, 0.1, 0, test_loss=0.5, score_averaged=0.75, score_worst_peer=0.75)
    tested.consensus_distance = 0.0
    rows: list[Row] = [NetworkRow(0, 1, 0.0, 0), own_row(0, 1), missed(1, 4, 3), EventRow(-1, 3, "crashed"), tested]
    with Progress("it", 20, federated_roles(4)) as shown:
        for row in rows:
            shown(row)
    assert capsys.readouterr().err.splitlines() == [
        "it: 4 clients, 20 rounds",
        "round 2, coordinator: the round goes on without 3",
        "round 0, client 3: killed by the fault script",
        "it: round 1 of 20  accuracy 0.750",
    ]


@pytest.mark.usefixtures("no_pause")
def test_a_coordinator_sees_contributions_and_a_client_its_loss(capsys: pytest.CaptureFixture[str]) -> None:
    own = own_row(4, 1)
    own.clients = 3
    for node, rows in ((4, [own, own_row(4, 2, loss=None)]), (2, [own_row(2, 1)])):
        with Progress("it", 20, federated_roles(4), own=node) as shown:
            for row in rows:
                shown(row)
    said = [line for line in capsys.readouterr().err.splitlines() if "of 20" in line]
    assert said == [
        "it: round 1 of 20  loss 0.5, 3 contributions",
        "it: round 2 of 20  0 contributions",
        "it: round 1 of 20  loss 0.5",
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_however_narrow_the_terminal_the_bar_says_how_far_the_run_is(width: int) -> None:
    shown = console(width=width, file=io.StringIO(), force_terminal=True)
    bar = _bar(shown)
    bar.add_task("ring, real processes", total=60, completed=7, news="accuracy 0.905 averaged, 0.755 worst peer, " * 3)
    shown.print(bar.get_renderable())
    (line,) = shown.file.getvalue().splitlines()  # type: ignore[attr-defined]
    said = Text.from_ansi(line).plain
    assert said.startswith("ring, real processes \u2501") and " 7/60 " in said and "accuracy 0.9" in said
    assert len(said) <= width
