"""What a round costs, in parts: each nanosecond of it is of one kind, and the payload is that of vectors alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from over_sockets import run_over_sockets

from fedgossip import load_experiment, simulate
from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import Train
from fedgossip.core.messages import TAIL, Model
from fedgossip.core.meter import Meter, covered_ns
from fedgossip.core.records import PeerRow, Row
from fedgossip.core.task import Job, Update
from fedgossip.learning.analytic import Averaging
from fedgossip.net.links.outbox import OUTBOX_MESSAGES, Cuts, Outbox
from fedgossip.net.training_thread import TrainingThread, WorkerPorts
from fedgossip.plans import compose
from fedgossip.runs.summary import busiest

S = 1_000_000_000


def rows_of(rows: list[Row], peer: int) -> list[PeerRow]:
    return [row for row in rows if isinstance(row, PeerRow) and row.peer == peer]


def test_what_goes_on_at_once_is_counted_once() -> None:
    rng = random.Random(3)
    for _ in range(200):
        spans = [(begins, begins + rng.randrange(9)) for begins in (rng.randrange(40) for _ in range(rng.randrange(8)))]
        since, until = rng.randrange(20), 20 + rng.randrange(30)
        seconds = [t for t in range(since, until) if any(begins <= t < ends for begins, ends in spans)]
        assert covered_ns(spans, since, until) == len(seconds)


def test_a_round_is_training_then_communicating_then_waiting() -> None:
    """Trained from 1 to 4; vectors from 3 to 6, and from 5 to 7; done at 10."""
    meter = Meter(0)
    meter.train_began(1 * S)
    meter.carried([(3 * S, 6 * S), (5 * S, 7 * S)])
    meter.train_ended(4 * S, 0, {})
    row = meter.mixed(1, 10 * S, 2 * S, None)
    assert (row.seconds_training, row.seconds_communicating, row.seconds_waiting, row.seconds_mixing) == (3, 3, 3, 2)


def test_what_is_under_way_at_the_end_of_a_round_counts_in_both() -> None:
    meter = Meter(0)
    meter.began(0)
    meter.carried([(1 * S, 5 * S)])
    assert meter.mixed(1, 2 * S, 0, None).seconds_communicating == 1
    assert meter.mixed(2, 6 * S, 0, None).seconds_communicating == 3
    assert meter.mixed(3, 7 * S, 0, None).seconds_communicating == 0


def test_a_round_that_ends_while_the_next_one_is_trained_has_not_waited() -> None:
    """As with parallel.outer.delay: the thread that trains says so when it begins."""
    now, begun, go_on = [0], threading.Event(), threading.Event()

    class Slow(Averaging):
        def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
            begun.set()
            assert go_on.wait(60.0)
            return super().train(jobs)

    meter = Meter(0)
    ports = WorkerPorts(lambda: now[0], lambda: 0, lambda round, vector: None, lambda kept: None, lambda: None)
    thread = TrainingThread(0, Slow(1, 3), meter, ports)
    thread.start()
    thread.put(Train(0, frozen(np.zeros(3, np.float32))))
    assert begun.wait(60.0)
    now[0] = 4 * S
    row = meter.mixed(1, 4 * S, 0, None)
    assert (row.seconds_communicating, row.seconds_waiting) == (0, 0)
    now[0] = 7 * S
    go_on.set()
    thread.end()
    thread.join(60.0)
    row = meter.mixed(2, 9 * S, 0, None)
    assert (row.seconds_training, row.seconds_waiting) == (7, 2)


def test_an_evaluation_is_neither_communicating_nor_waiting() -> None:
    meter = Meter(0)
    meter.began(0)
    meter.occupied(0, 2 * S)
    row = meter.mixed(1, 3 * S, 0, None)
    assert (row.seconds_training, row.seconds_communicating, row.seconds_waiting) == (0, 0, 1)


def quadratic(**more: Any) -> dict[str, Any]:
    return {"rounds": 4, "task": {"kind": "quadratic", "dim": 1000}, **more}


UNEVEN = {"training_jitter": 1.0, "speed_spread": 0.5, "jitter": 0.01, "bandwidth": 1e5, "downlink": 1e5}
KINDS: dict[str, dict[str, Any]] = {
    "gossip": {"topology": {"graph": "ring", "n": 5}},
    "async": {"topology": {"graph": "ring", "n": 5}, "algorithm": {"mode": "async"}},
    "ring": {"parallel": {"workers": 5}, "train": {"lr": 0.1}},
    "fedavg": {"coordinator": {"clients": 5, "secure": {"on": False}}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_all_rounds_are_the_whole_time(kind: str) -> None:
    run = simulate(quadratic(**KINDS[kind], simulation=UNEVEN))
    for peer in range(run.summary["n"]):
        rows = rows_of(run.rows, peer)[1:]
        parts = [r.seconds_training + r.seconds_communicating + r.seconds_waiting + r.seconds_mixing for r in rows]
        whole = rows[-1].seconds - rows_of(run.rows, peer)[0].seconds
        if kind == "async":  # a training may have begun in the round before the one that it ends in
            assert sum(parts) >= whole - 1e-9
        else:
            assert sum(parts) == pytest.approx(whole)
        assert any(row.seconds_communicating > 0 for row in rows)


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("method", sorted(COLLECTIVES))
def test_the_payload_of_a_collective_is_what_its_table_says(method: str, workers: int) -> None:
    run = simulate(quadratic(parallel={"workers": workers, "method": method, "bucket": 0}, train={"lr": 0.1}))
    table, length, size = COLLECTIVES[method].table(workers), 1000 + TAIL, run.vectors[0].itemsize  # type: ignore[union-attr]
    for rank in range(workers):
        for row in rows_of(run.rows, rank):
            assert row.payload_sent == table.sent(rank, length) * size
            assert row.payload_received == table.received(rank, length) * size
    most = max(max(table.sent(rank, length), table.received(rank, length)) for rank in range(workers))
    assert run.summary["busiest"]["bytes"] == 4 * size * most
    assert sum(run.summary["busiest"]["link"]) <= 2 * workers


def test_without_bandwidth_a_message_is_under_way_for_its_latency() -> None:
    run = simulate(quadratic(topology={"graph": "ring", "n": 4}, simulation={"latency": 0.02, "training": 0.05}))
    for row in rows_of(run.rows, 2):
        assert (row.seconds_training, row.seconds_communicating) == (0.05, 0.02) and row.seconds_waiting == 0
        assert row.payload_sent == row.payload_received == 2 * 4 * 1000


def test_who_trains_longest_waits_least() -> None:
    slow = {"classes": [{"nodes": "1", "slower": 10.0}], "latency": 0.001, "training": 0.05}
    run = simulate(quadratic(parallel={"workers": 3}, train={"lr": 0.1}, simulation=slow))
    waited = [sum(row.seconds_waiting for row in rows_of(run.rows, worker)) for worker in range(3)]
    assert waited[1] <= 4 * 4 * 0.001, "in a round at most for the others to pass on what it sent: 2 (m - 1) latencies"
    assert min(waited[0], waited[2]) >= 4 * 0.45, "the others for its training, ten times as long"


@pytest.mark.sockets
@pytest.mark.parametrize("kind", ["gossip", "ring"])
def test_sockets_tell_the_payload_of_the_simulator_and_some_time_of_it(kind: str) -> None:
    experiment = quadratic(**KINDS[kind])
    plan = compose.plan(load_experiment(experiment))
    task, shares = compose.task_of(plan.experiment, plan.learners)
    _, rows = run_over_sockets(plan.with_shares(shares), task)
    simulated = simulate(experiment)
    for peer in range(plan.n):
        ours, theirs = rows_of(rows, peer), rows_of(simulated.rows, peer)
        assert [row.payload_sent for row in ours] == [row.payload_sent for row in theirs]
        assert sum(row.payload_received for row in ours) >= sum(row.payload_received for row in theirs)
        assert sum(row.seconds_communicating for row in ours) > 0
        assert all(row.seconds_waiting >= 0 for row in ours)


def test_the_larger_direction_of_a_node_counts_and_the_lowest_id_of_equal_ones() -> None:
    rows: list[Row] = []
    for peer, (sent, received) in enumerate([(1, 9), (5, 5), (9, 1)]):
        meter = Meter(peer)
        meter.record_sent(100, sent)
        meter.record_received(100, received)
        rows.append(meter.mixed(1, 0, 0, None))
    links = {(0, 1): 3, (2, 0): 8, (1, 2): 8}
    assert busiest(rows, links) == {"node": 0, "bytes": 9, "link": [1, 2], "link_bytes": 8}
    assert busiest([], {}) == {"node": None, "bytes": 0, "link": None, "link_bytes": None}


def test_nothing_waits_in_an_outbox_that_was_emptied_however_it_was() -> None:
    cuts = Cuts()
    boxes = [Outbox(cuts) for _ in range(3)]
    vectors = [(frozen(np.ones(3)),) for _ in range(OUTBOX_MESSAGES + 3)]
    for one in vectors:
        for box in boxes:
            box.put(Model(0, "", one))
    boxes[0].clear()
    for one in vectors:
        boxes[1].forget(one[0])
    assert cuts.traffic.take_spans(), "one has messages left"
    while boxes[2].next():
        boxes[2].sent()
    cuts.traffic.take_spans()
    assert cuts.traffic.take_spans() == []
