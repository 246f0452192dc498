"""What a person sees of a run while it goes on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedgossip.cli import progress
from fedgossip.cli.progress import Progress
from fedgossip.metrics import EventRow, Meter, NetworkRow, PeerRow, Row


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", -1.0)


def lines(rows: Sequence[Row], capsys: pytest.CaptureFixture[str], own: int | None = None) -> list[str]:
    """What is printed after the title."""
    with Progress("it", 20, 4, own=own) as shown:
        for row in rows:
            shown(row)
    return capsys.readouterr().err.splitlines()[1:]


def own_row(peer: int, round: int, accuracy: float | None = None, loss: float | None = 0.5) -> PeerRow:
    meter = Meter(peer)
    meter.train_began(0)
    meter.train_ended(0, {} if loss is None else {"loss": loss})
    return meter.mixed(round, 250_000_000, 0, accuracy)


def missed(round: int, peer: int, *who: int) -> EventRow:
    return EventRow(round, peer, "missed", list(who))


@pytest.mark.usefixtures("no_pause")
def test_a_peer_sees_its_own_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    said = lines([own_row(2, 1), own_row(2, 2, accuracy=0.75), own_row(2, 3, loss=None)], capsys, own=2)
    assert said == [
        "it: round 1 of 20  loss 0.5, waited 0.25 s",
        "it: round 2 of 20  loss 0.5, accuracy 0.750, waited 0.25 s",
        "it: round 3 of 20  accuracy 0.750, waited 0.25 s",
    ]


@pytest.mark.usefixtures("no_pause")
def test_a_run_of_all_peers_is_told_by_rows_of_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    said = lines([own_row(0, 1), NetworkRow(1, 4, 0.1, 0, test_loss=0.5), own_row(0, 2)], capsys)
    assert said == ["it: round 1 of 20  loss 0.5"]


def test_a_missing_peer_is_told_once_by_each_neighbour(capsys: pytest.CaptureFixture[str]) -> None:
    said = lines([row for round in range(5, 15) for row in (missed(round, 1, 2), missed(round, 3, 2))], capsys)
    assert [line.split(":")[0] for line in said] == ["round 5, peer 1", "round 5, peer 3"]


def test_a_missing_peer_is_told_again_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [missed(5, 1, 2), missed(6, 1, 2), missed(7, 1, 0, 2), missed(8, 1, 0, 2), missed(12, 1, 0, 2)]
    said = lines(rows, capsys)
    assert [line.split(",")[0] for line in said] == ["round 5", "round 7", "round 12"]
