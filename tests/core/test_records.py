"""Rows of a record are read back as they were written, those of earlier releases by today's names."""

from __future__ import annotations

import msgspec
import pytest

from fedgossip.core.records import NetworkRow, PeerRow, Row, row_of

DECODER = msgspec.json.Decoder(Row)
NUMBERS = {
    "bytes_sent": 1,
    "bytes_received": 2,
    "seconds_training": 0.5,
    "seconds_waiting": 0.0,
    "seconds_mixing": 0.0,
    "seconds": 1.5,
}


@pytest.mark.parametrize(
    "row",
    [
        PeerRow(round=3, peer=1, loss=0.1, score=None, **NUMBERS, logged={"accuracy": 0.5, "accuracy_top5": 0.75}),
        PeerRow(round=3, peer=1, loss=0.1, score=0.25, **NUMBERS, metrics={"accuracy": 0.5}),
        NetworkRow(round=3, peers=2, seconds=1.0, bytes_sent=4, score_averaged=0.5, metrics={"accuracy.peers": 0.5}),
    ],
    ids=["logged", "metrics of a peer", "metrics of all"],
)
def test_a_number_named_accuracy_keeps_its_name(row: Row) -> None:
    assert row_of(DECODER, msgspec.json.encode(row)) == row


def test_a_row_of_an_earlier_release_has_todays_names() -> None:
    row = NetworkRow(round=3, peers=2, seconds=1.0, bytes_sent=4, score_averaged=0.5, score_mean_peer=0.25)
    line = msgspec.json.encode(row).replace(b'"score_', b'"accuracy_')
    assert b"accuracy_averaged" in line
    assert row_of(DECODER, line) == row
