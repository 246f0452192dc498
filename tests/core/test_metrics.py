"""The record of a network: a row per round, ascending, closed once, whoever is slow, gone or late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from fedgossip import simulate
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.meter import Meter
from fedgossip.core.metrics import ROUNDS_OPEN, Network, _size
from fedgossip.core.records import NetworkRow, PeerRow, Row
from fedgossip.runs.run_directory import Run


def nothing(vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
    return [{} for _ in vectors]


def record(n: int, rounds: int) -> Network:
    made = Network(n, rounds, rounds, nothing)
    made.started([frozen(np.ones(2)) for _ in range(n)])
    return made


def passes(to: Network, peer: int, *rounds: int) -> list[Row]:
    meter = Meter(peer)
    written: list[Row] = []
    for round in rounds:
        meter.bytes_sent = 10
        written += to.mixed(meter.mixed(round, 0, 0, None), frozen(np.ones(2)))
    return written


def network_rows(rows: Sequence[Row]) -> list[tuple[int, int]]:
    return [(row.round, row.peers) for row in rows if isinstance(row, NetworkRow)]


# --- when a round is closed -------------------------------------------------------------------------------------------


def test_a_round_is_closed_when_everyone_is_past_it() -> None:
    """Peers of a path of 30 may be 29 rounds apart, and nobody is missing."""
    path = record(30, 100)
    for peer in range(1, 30):
        assert passes(path, peer, *range(1, peer + 1)) == []
    assert network_rows(passes(path, 0, 1)) == [(1, 30)]


def test_a_peer_that_skipped_a_round_is_past_it() -> None:
    two = record(2, 10)
    passes(two, 0, 1, 2, 3)
    assert network_rows(passes(two, 1, 3)) == [(1, 1), (2, 1), (3, 2)]


def test_a_peer_that_ended_is_not_waited_for() -> None:
    two = record(2, 10)
    passes(two, 0, 1, 2)
    assert network_rows([*two.ended(1), *passes(two, 0, 3)]) == [(1, 1), (2, 1), (3, 1)]


def test_a_peer_far_behind_is_not_waited_for_and_its_rows_are_given_on_alone() -> None:
    two = record(2, 100)
    closed = network_rows(passes(two, 0, *range(1, ROUNDS_OPEN + 2)))
    assert closed[0] == (1, 1)
    late = passes(two, 1, 1)
    assert [type(row) for row in late] == [PeerRow]
    ahead = network_rows(passes(two, 0, 50))
    caught_up = network_rows([*passes(two, 1, 60), *passes(two, 0, 60)])
    assert caught_up[-1] == (60, 2)
    rounds = [round for round, _ in [*closed, *ahead, *caught_up]]
    assert rounds == sorted(set(rounds))


def test_bytes_of_late_rows_are_counted() -> None:
    two = record(2, 30)
    passes(two, 0, *range(1, 21))
    last = passes(two, 1, *range(1, 21))[-1]
    assert isinstance(last, NetworkRow) and last.bytes_sent == 40 * 10


def test_vectors_of_rounds_that_are_not_evaluated_are_kept_for_few_rounds_only() -> None:
    wide = record(100, 1000)
    passes(wide, 0, *range(1, 90))
    kept = sum(bool(opened.after) for opened in wide._open.values())
    assert kept <= ROUNDS_OPEN


def averaging(**changes: object) -> Run:
    experiment = {"rounds": 300, "task": {"kind": "averaging"}, "topology": {"graph": "ring", "n": 4}}
    return simulate({**experiment, **changes})


def test_the_simulator_writes_each_round_once_under_loss() -> None:
    loss = [{"kind": "drop", "probability": 0.2}]
    run = averaging(faults=loss, simulation={"jitter": 0.05}, algorithm={"deadline": 0.2})
    assert [row.round for row in run.network()] == list(range(301))


def test_the_simulator_writes_each_round_once_when_a_peer_crashes() -> None:
    run = averaging(faults=[{"kind": "crash", "peers": [2], "start": 0.6}])
    assert [row.round for row in run.network()] == list(range(301))
    peers = [row.peers for row in run.network()]
    assert peers[0] == 4 and peers[-1] == 3 and peers == sorted(peers, reverse=True)


def test_unequal_speeds_on_a_wide_graph_leave_nobody_out() -> None:
    slow = [{"kind": "slow", "peers": [0], "factor": 20.0}]
    run = averaging(topology={"graph": "path", "n": 24}, faults=slow, algorithm={"deadline": 1e6})
    assert [(row.round, row.peers) for row in run.network()] == [(round, 24) for round in range(301)]


# --- the verdict ------------------------------------------------------------------------------------------------------


def test_a_simulated_run_that_a_peer_did_not_finish_is_partial() -> None:
    assert averaging(faults=[{"kind": "crash", "peers": [2], "start": 0.6}]).summary["status"] == "partial"
    assert averaging().summary["status"] == "finished"


# --- the measured contraction -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_averages_contract_to_zero(dtype: str) -> None:
    run = averaging(topology={"graph": "complete", "n": 5}, task={"kind": "averaging", "dtype": dtype}, rounds=5)
    assert run.summary["measured_contraction"] == 0.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounds_of_rounding_error_do_not_dilute_the_contraction(dtype: str) -> None:
    """A ring of 4 with weights of a third has the eigenvalues 1, 1/3, 1/3, -1/3: every round leaves exactly a third."""
    run = averaging(task={"kind": "averaging", "dtype": dtype})
    assert run.summary["measured_contraction"] == pytest.approx(1 / 3, rel=1e-3)


def test_the_size_of_vectors_is_the_same_in_a_stack_and_apart() -> None:
    stack = np.random.default_rng(0).standard_normal((40, 1000)).astype(np.float32)
    size = float(np.sqrt(np.mean(np.sum(stack.astype(np.float64) ** 2, axis=1))))
    assert _size(stack) == pytest.approx(size, rel=1e-5) == _size(list(stack))


def test_without_disagreement_there_is_no_contraction() -> None:
    alike = record(3, 2)
    for peer in range(3):
        alike.outgoing(peer, 1, frozen(np.ones(2)))
        passes(alike, peer, 1)
    assert alike.measured_contraction() is None


def test_equal_models_are_measured_once_for_all() -> None:
    asked: list[int] = []

    def measure(vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        asked.append(len(vectors))
        return [{"accuracy": float(vector[0])} for vector in vectors]

    for models, times in (([3.0, 3.0, 3.0], 1), ([3.0, 3.0, 4.0], 4)):
        of = Network(3, 1, 1, measure)
        of.started([frozen(np.full(2, value)) for value in models])
        rows: list[Row] = []
        for peer, value in enumerate(models):
            rows += of.mixed(Meter(peer).mixed(1, 0, 0, None), frozen(np.full(2, value)))
        assert asked == [times, times]
        asked.clear()
        assert [row.score for row in rows if isinstance(row, PeerRow)] == models


# --- in which rounds disagreement is measured -----------------------------------------------------------------------


def watched(dim: int, engine: str = "sim", **how: object) -> list[int]:
    """The rounds of a run of 4 peers that say how far the models are apart."""
    task = {"kind": "quadratic", "dim": dim}
    content = {"rounds": 7, "task": task, "topology": {"graph": "ring", "n": 4}, "eval": {"every": 3, **how}}
    rows = [row for row in simulate(content, engine=engine).rows if isinstance(row, NetworkRow)]
    assert all((row.update_spread is None) == (row.consensus_before is None) for row in rows)
    return [row.round for row in rows if row.consensus_distance is not None]


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_disagreement_of_large_models_is_measured_in_evaluated_rounds_unless_asked_for(engine: str) -> None:
    few, many = (1 << 16) // 4, (1 << 16) // 4 + 1
    assert watched(few, engine) == [*range(8)] and watched(few, engine, watch=False) == [0, 3, 6, 7]
    assert watched(many, engine) == [0, 3, 6, 7] and watched(many, engine, watch=True) == [*range(8)]


def test_a_run_with_a_forecast_is_measured_in_every_round() -> None:
    content = {"rounds": 5, "task": {"kind": "quadratic", "dim": 30_000}, "topology": {"graph": "ring", "n": 4}}
    rows = [row for row in simulate(content, forecast="probe").rows if isinstance(row, NetworkRow)]
    assert [row.round for row in rows if row.consensus_distance is not None] == [*range(6)]


# --- lives ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [(), (1,), (0, 1)], ids=["none", "one", "both"])
def test_what_was_measured_of_a_round_is_kept_where_its_models_are_no_more(again: tuple[int, ...]) -> None:
    """Peers go on from checkpoints of different rounds: of those that one has behind it its row alone is left."""
    two = Network(2, 10, 2, lambda vectors: [{"accuracy": 0.25, "loss": 9.0} for _ in vectors])
    two.remember([NetworkRow(2, 2, 1.0, 5, test_loss=0.5, score_averaged=0.75, consensus_distance=0.1)])
    two.started([frozen(np.ones(2)) for _ in range(2)])
    rows: list[Row] = []
    for round in (1, 2, 3):
        for peer in (0, 1):
            rows += two.mixed(Meter(peer).mixed(round, 0, 0, None), frozen(np.ones(2)) if peer in again else None)
    (found,) = [row for row in rows if isinstance(row, NetworkRow) and row.round == 2]
    kept = len(again) < 2
    assert (found.score_averaged, found.test_loss) == ((0.75, 0.5) if kept else (0.25, 9.0))
    assert (found.consensus_distance == 0.1) == kept
