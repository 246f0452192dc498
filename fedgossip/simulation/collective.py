"""All-reduce of all workers in one process: no messages (their bytes are counted), no time, the same bits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.algorithms.collectives.table import Table
from fedgossip.algorithms.descent.base import Descent, DescentState
from fedgossip.messages import TAIL, ChunkTaken, ReduceChunk
from fedgossip.metrics import Meter, Network
from fedgossip.protocols.chunk_exchange import contribution_of
from fedgossip.protocols.reduction import Chunk, Reduction
from fedgossip.records import Row
from fedgossip.task import Job, LocalTask, done
from fedgossip.vectors import Vector, frozen
from fedgossip.wire import wire_bytes

MeanOf = Callable[[Sequence[tuple[float, Vector]], int, str, Sequence[Meter]], Vector]
"""(every worker's contribution, round, schema, meters) -> the mean [d + TAIL] of those.

Tells each participant's meter what it would send and receive for it, where nothing is lost.
"""


@dataclass
class CollectiveStack:
    """Where a run stands between two rounds: all workers have one state.

    `meters` of all participants, of whom the first `workers` are workers.
    """

    round: int
    state: DescentState
    meters: list[Meter]
    workers: int


def first_collective(task: LocalTask, workers: int, descent: Descent[Any], others: int = 0) -> CollectiveStack:
    """Return where a run begins; `others` take part that are no workers."""
    meters = [Meter(node) for node in range(workers + others)]
    return CollectiveStack(0, descent.start(task.initial(0)), meters, workers)


def run_collective(
    task: LocalTask,
    mean_of: MeanOf,
    descent: Descent[Any],
    rounds: int,
    rate: Callable[[int], float],
    accumulate: int | None,
    record: Network,
    write: Callable[[Row], None],
    stack: CollectiveStack,
    *,
    between: Callable[[], None] = lambda: None,
) -> list[Vector]:
    """Run all rounds that are left; return every worker's model.  `between` is called between two rounds."""
    workers = range(stack.workers)
    for number in range(stack.round, rounds):
        between()
        model = stack.state.x
        updates = done(task, [Job(node, number, model, gradient=True, accumulate=accumulate) for node in workers])
        brought = [contribution_of(one.difference, one.examples, one.metrics) for one in updates]
        terms = [(weight, frozen(np.concatenate(pieces))) for weight, pieces in brought]
        mean = mean_of(terms, number, task.schema, stack.meters)
        stack.state = descent.step(stack.state, frozen(mean[:-TAIL]), rate(number))
        for node in workers:
            meter = stack.meters[node]
            meter.train_ended(0, updates[node].metrics)
            record.outgoing(node, number + 1, model)
            for row in record.mixed(meter.mixed(number + 1, 0, 0, None), stack.state.x):
                write(row)
        for meter in stack.meters[stack.workers :]:
            if not meter.bytes_sent and not meter.bytes_received:
                continue  # it has no part in this round
            for row in record.aside(meter.mixed(number + 1, 0, 0, None)):
                write(row)
        stack.round = number + 1
    return [stack.state.x for _ in workers]


def reduced_by(table: Table, bucket: int) -> MeanOf:
    """Return the mean as the moves of a table make it."""
    return lambda terms, round, schema, meters: _reduced(table, bucket, terms, round, schema, meters)


def _reduced(
    table: Table, bucket: int, terms: Sequence[tuple[float, Vector]], round: int, schema: str, meters: Sequence[Meter]
) -> Vector:
    kind = terms[0][1].dtype
    ranks = [Reduction(rank, table, terms[rank][1].size, kind, bucket) for rank in range(table.workers)]
    under_way: deque[tuple[int, Chunk]] = deque()
    for rank, term in enumerate(terms):
        under_way.extend((rank, chunk) for chunk in ranks[rank].begin(*term))
    while under_way:
        sender, one = under_way.popleft()
        place = 0, round, one.bucket, one.step
        there = wire_bytes(ReduceChunk(*place, one.start, one.vector.size, one.weight, schema, (one.vector,)))
        back = wire_bytes(ChunkTaken(*place))
        for source, to, size, payload in ((sender, one.peer, there, one.vector.nbytes), (one.peer, sender, back, 0)):
            meters[source].sent(size, payload)
            meters[to].received(size, payload)
        more = ranks[one.peer].take(sender, one.bucket, one.step, one.weight, one.vector)
        under_way.extend((one.peer, chunk) for chunk in more)
    return ranks[0].mean
