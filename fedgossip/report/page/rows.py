"""Rows of a record as a report reads them: values absent from an old run have their defaults."""

from __future__ import annotations

from typing import Any

import msgspec


class ReportedRound(msgspec.Struct, frozen=True):
    """One round of the whole network; `bytes_sent` and `seconds` count from the start."""

    round: int
    seconds: float = 0.0
    bytes_sent: int = 0
    loss: float | None = None
    test_loss: float | None = None
    score_averaged: float | None = None
    score_mean_peer: float | None = None
    score_worst_peer: float | None = None
    consensus_distance: float | None = None
    consensus_before: float | None = None
    update_spread: float | None = None
    metrics: dict[str, float | None] | None = None


class ReportedPeerRound(msgspec.Struct, frozen=True):
    """One round of one peer; bytes and seconds of that round alone."""

    round: int
    peer: int
    seconds: float | None = None
    """From the beginning of the run to the end of the round."""
    loss: float | None = None
    score: float | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds_training: float | None = None
    payload_sent: int = 0
    payload_received: int = 0
    seconds_communicating: float | None = None
    seconds_waiting: float | None = None
    seconds_mixing: float | None = None
    clients: int | None = None
    counted: tuple[int, ...] | None = None
    score_clients: float | None = None
    score_worst_client: float | None = None
    epsilon: float | None = None
    logged: dict[str, float | None] | None = None
    metrics: dict[str, float | None] | None = None


class ReportedEvent(msgspec.Struct, frozen=True):
    """A report beside the numbers of every round: a neighbour missed, a peer gone."""

    round: int
    peer: int | None
    name: str
    value: Any = None
