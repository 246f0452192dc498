"""What a run of workers sends, and how long that takes: the tables' sums exactly, and the formulas of the network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_allreduce import NAMES, quadratic

from fedgossip import simulate
from fedgossip.algorithms.collectives.names import COLLECTIVES, EqualLinks, power_below
from fedgossip.algorithms.collectives.table import Way
from fedgossip.base.vectors import frozen
from fedgossip.core.messages import TAIL, ChunkTaken, ReduceChunk
from fedgossip.core.records import PeerRow
from fedgossip.core.wire import wire_bytes
from fedgossip.drivers.local import run_local_plan
from fedgossip.experiment import load_experiment
from fedgossip.lab.costs.methods import Act, TimedStep, seconds_of_rounds
from fedgossip.plans import compose

ROUNDS = 2


def of_size(workers: int, method: str, dim: int, rounds: int = ROUNDS, **more: Any) -> dict[str, Any]:
    """One chunk for each move, whatever its size."""
    experiment = quadratic(workers, method, rounds, parallel={"bucket": 0}, **more)
    return {**experiment, "task": {"kind": "quadratic", "dim": dim}, "eval": {"every": rounds}}


def payloads(workers: int, method: str, length: int) -> dict[tuple[int, int], int]:
    """Bytes that each link carries in a round, by its table."""
    table, sent = COLLECTIVES[method].table(workers), dict[tuple[int, int], int]()
    for rank in range(workers):
        for move, part in table.of(rank, length):
            if move.way is Way.SEND:
                sent[rank, move.peer] = sent.get((rank, move.peer), 0) + 4 * (part.stop - part.start)
    return sent


def check_payload(run: Any, workers: int, method: str, dim: int, rounds: int = ROUNDS) -> None:
    """Every worker's payload in every round, and the busiest link's in all, are the table's."""
    links = payloads(workers, method, dim + TAIL)
    for rank in range(workers):
        rows = [row for row in run.rows if isinstance(row, PeerRow) and row.peer == rank and row.round]
        sent = sum(size for link, size in links.items() if link[0] == rank)
        assert sent == 4 * COLLECTIVES[method].table(workers).sent(rank, dim + TAIL)
        assert sum(row.payload_sent for row in rows) == rounds * sent, f"worker {rank}"
        come = sum(size for link, size in links.items() if link[1] == rank)
        assert sum(row.payload_received for row in rows) == rounds * come, f"worker {rank}"
    assert run.summary["busiest"]["link_bytes"] == rounds * max(links.values())


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8])
def test_payload_of_workers_and_of_the_busiest_link_is_the_sum_of_the_table(method: str, workers: int) -> None:
    for dim in sorted({1, 3, workers - 1, 1000}):
        check_payload(simulate(of_size(workers, method, dim)), workers, method, dim)


@pytest.mark.parametrize(("method", "workers"), [("ring", 8), ("halving-doubling", 5), ("star", 3)])
def test_payload_of_a_million_elements_is_the_sum_of_the_table(method: str, workers: int) -> None:
    check_payload(simulate(of_size(workers, method, 1_000_003, rounds=1)), workers, method, 1_000_003, rounds=1)


@pytest.mark.sockets
@pytest.mark.parametrize(("method", "workers", "dim"), [("ring", 3, 1000), ("halving-doubling", 4, 3), ("tree", 2, 1)])
def test_payload_over_sockets_is_the_sum_of_the_table(tmp_path: Path, method: str, workers: int, dim: int) -> None:
    plan = compose.plan(load_experiment(of_size(workers, method, dim)))
    check_payload(run_local_plan(plan, tmp_path / "run", report=False), workers, method, dim)


def chunk_bytes(elements: int) -> tuple[int, int]:
    """Bytes on the wire of a chunk, and of the word that it has come."""
    vector = frozen(np.zeros(elements, np.float32))
    return wire_bytes(ReduceChunk(0, 1, 0, 9, 0, elements, 0.0, "x" * 32, (vector,))), wire_bytes(
        ChunkTaken(0, 1, 0, 9)
    )


CONTROL = 256
"""Most bytes beside the elements of a chunk: its header, and the word that it has come."""


def test_what_a_chunk_costs_beside_its_elements_is_bounded() -> None:
    for elements in (1, 1000, 60_000):
        there, back = chunk_bytes(elements)
        assert there - 4 * elements + back <= CONTROL
        assert back <= 64, "the word that a chunk has come"


def table_seconds(workers: int, method: str, links: EqualLinks, size: int) -> float:
    """Return the time of a collective of vectors of `size` bytes, its table followed over the simulator's links."""
    table = COLLECTIVES[method].table(workers)

    def steps(_round: int, rank: int) -> list[TimedStep]:
        moves = [(move, (move.stop - move.first) * size / table.parts) for move in table.moves[rank]]
        return [TimedStep(Act.SEND if m.way is Way.SEND else Act.TAKE, m.peer, bytes_) for m, bytes_ in moves]

    return seconds_of_rounds(steps, workers, links, np.zeros((1, workers)))


BOUNDS = {  # messages of a + d/b less than the formula, and vectors of d/b more: without downlinks, and with them
    "tree": ((2, 0), (2, 0)),
    "recursive-doubling": ((1, 0), (1, 3)),
    "halving-doubling": ((0, 0), (0, 0.5)),
}


@pytest.mark.parametrize("method", BOUNDS)
@pytest.mark.parametrize("down", [False, True])
def test_the_formulas_of_numbers_of_workers_that_are_no_power_of_two_keep_their_bounds(method: str, down: bool) -> None:
    """Every m to 64; bounds that a case reaches to a tenth, so that none is too wide."""
    rate, size = 1e9, 64 * 1000
    less, more = BOUNDS[method][down]
    seen = [0.0, 0.0]
    for ratio in (0.0, 0.01, 10.0):
        links = EqualLinks(ratio * size / rate, rate, rate if down else math.inf)
        for m in range(2, 65):
            off = table_seconds(m, method, links, size) - COLLECTIVES[method].seconds(m, size, links.latency, rate)
            if m == power_below(m):
                assert abs(off) < 1e-7, m
            seen = [max(seen[0], -off / (links.latency + size / rate)), max(seen[1], off * rate / size)]
    assert less * 0.9 <= seen[0] <= less + 1e-3 and more * 0.9 <= seen[1] <= more + 1e-3


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_time_of_a_collective_is_the_formula_to_the_control_bytes(method: str, workers: int) -> None:
    """Both NICs of 1 MB/s and 3 ms: the formula of the elements, and at most the control bytes on the way above it."""
    dim, latency, rate = 64 * workers * 8 - TAIL, 0.003, 1e6
    links = {"latency": latency, "bandwidth": rate, "downlink": rate, "training": 0.0}
    run = simulate(
        of_size(workers, method, dim, rounds=2, simulation=links)
    )  # no goodbyes while the first is under way
    took = max(row.seconds for row in run.rows if isinstance(row, PeerRow) and row.round == 1)
    formula = COLLECTIVES[method].seconds(workers, 4 * (dim + TAIL), latency, rate)
    assert formula <= took + 1e-6 <= formula + 2 * max(workers, COLLECTIVES[method].steps(workers)) * CONTROL / rate
