"""All-reduce, or servers of shards, in one process with the same bits: no messages (their bytes are counted), no
time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedgossip.algorithms.descent.base import Descent, DescentState, stepped, stepped_by_momentum
from fedgossip.algorithms.federated.sums import ExactSum
from fedgossip.algorithms.gossip.fragments import Fragments, fragments_of
from fedgossip.algorithms.hash_ring import Placement, Shard
from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.messages import (
    ChunkTaken,
    CodedPulled,
    CodedPush,
    Message,
    PieceTaken,
    Pulled,
    ShardPull,
    ShardPush,
    ShardStep,
)
from fedgossip.core.meter import Meter
from fedgossip.core.metrics import Network
from fedgossip.core.records import Row
from fedgossip.core.task import Job, LocalTask, Update, perform_jobs
from fedgossip.core.wire import wire_bytes
from fedgossip.protocols.allreduce.coded_fragments import RoundCoding
from fedgossip.protocols.allreduce.reduction import Chunk
from fedgossip.protocols.allreduce.round_sums import Contribution, RoundSums, chunk_message, contribution_of
from fedgossip.protocols.allreduce.worker_state import UnsentUpdates
from fedgossip.protocols.servers.model_parts import CodedPushes, ShardCoding, pieces

MeanOf = Callable[[Sequence[Contribution], int, str, Sequence[Meter]], Vector]
"""(every worker's contribution, round, schema, meters) -> their mean gradient [d].

Adds the traffic of a reduction without losses to each participant's meter.
"""


def as_it_is(model: Vector, rounds: int) -> Vector:  # noqa: ARG001
    """Return the model unchanged."""
    return model


@dataclass
class CollectiveStack:
    """The state of a run between two rounds, shared by all workers; `meters` of all participants, workers first."""

    round: int
    state: DescentState
    meters: list[Meter]
    workers: int
    unsent: list[UnsentUpdates]
    """Each worker's computed contributions to be sent in a later round."""
    coded: list[RoundCoding | CodedPushes] = field(default_factory=list)
    """Each worker's codec state for gradients; empty: uncoded."""
    ahead: list[Vector] = field(default_factory=list)
    """The weights from which each worker trains in this round; empty: the model."""


def first_collective(
    task: LocalTask,
    workers: int,
    descent: Descent[Any],
    others: int = 0,
    fragments: Fragments | None = None,
    statistics: int = 0,
) -> CollectiveStack:
    """Return a run's initial state; `others` are not workers; `fragments`: None is one; `statistics`: number of
    averaged elements at an update's end.
    """
    meters = [Meter(node) for node in range(workers + others)]
    unsent = [UnsentUpdates(fragments or fragments_of(task.length), statistics) for _ in range(workers)]
    return CollectiveStack(0, descent.start(task.initial(0)), meters, workers, unsent)


def run_collective(
    task: LocalTask,
    mean_of: MeanOf,
    descent: Descent[Any],
    rounds: int,
    rate: Callable[[int], float],
    asked: Callable[[int, int, Vector], Job],
    record: Network,
    write: Callable[[Row], None],
    stack: CollectiveStack,
    *,
    delay: bool = False,
    between: Callable[[], None] = lambda: None,
    seen: Callable[[Vector, int], Vector] = as_it_is,
) -> list[Vector]:
    """Run all remaining rounds; return every worker's model.  `between` is called between two rounds.

    `asked` (node, round, model): a worker's job.  `delay`: it continues to train before the mean arrives, see
    `protocols.allreduce.allreduce`.  `seen` (model, rounds): the workers' view of a model after that number of rounds.
    """
    workers = range(stack.workers)
    for number in range(stack.round, rounds):
        between()
        model = seen(stack.state.x, number)
        starts = stack.ahead or [unsent.start(model) for unsent in stack.unsent]
        updates = perform_jobs(task, [asked(node, number, starts[node]) for node in workers])
        opened = [stack.unsent[node].opened(updates[node].difference, number) for node in workers]
        brought = [_make_contribution(stack, node, opened[node], updates[node], number) for node in workers]
        before, part = stack.state, stack.unsent[0].fragments.part(number)
        if delay:
            carried = stepped_by_momentum(descent, before, part, rate(number)).x
            stack.ahead = [unsent.ahead(carried) for unsent in stack.unsent]
        mean = mean_of(brought, number, task.schema, stack.meters)
        stack.state = stepped(descent, before, part, mean, rate(number))
        for one in (*stack.unsent, *stack.coded):
            one.settled(number + 1)
        after = seen(stack.state.x, number + 1)
        for node in workers:
            meter = stack.meters[node]
            meter.train_ended(0, number, updates[node].metrics, updates[node].logged)
            record.outgoing(node, number + 1, model)
            for row in record.mixed(meter.mixed(number + 1, 0, 0, None), after):
                write(row)
        for meter in stack.meters[stack.workers :]:
            if not meter.bytes_sent and not meter.bytes_received:
                continue  # it has no part in this round
            for row in record.aside(meter.mixed(number + 1, 0, 0, None)):
                write(row)
        stack.round = number + 1
    return [stack.state.x for _ in workers]


def _make_contribution(stack: CollectiveStack, node: int, opened: Vector, update: Update, round: int) -> Contribution:
    if not stack.coded:
        return contribution_of(opened, update.examples, update.metrics)
    brought = stack.coded[node].coded(opened, update.examples, update.metrics, round)
    if brought is None:
        raise _unsummable(node, round)
    return brought


def _unsummable(node: int, round: int) -> TrainingError:
    text = f"worker {node}, round {round}: its gradient is not finite, or too large to be added up"
    return TrainingError(text, "Look at its data, or lower train.lr.")


Coded = RoundCoding | CodedPushes
"""A worker's codec state for gradients."""


def reduced_by(sums: RoundSums, coded: Sequence[Coded] = ()) -> MeanOf:
    """Return the mean computed by the moves of a table; `coded` receives the result."""

    def mean_of(terms: Sequence[Contribution], round: int, schema: str, meters: Sequence[Meter]) -> Vector:
        found = _reduced(sums, terms, round, schema, meters)
        for worker in coded:
            worker.take_result(found)
        return sums.gradient(found, round)

    return mean_of


def _reduced(
    sums: RoundSums, terms: Sequence[Contribution], round: int, schema: str, meters: Sequence[Meter]
) -> Vector:
    ranks = [sums.make_sum(rank, len(terms), round) for rank in range(len(terms))]
    under_way: deque[tuple[int, Chunk]] = deque()
    for rank, (weight, parts) in enumerate(terms):
        if not ranks[rank].bears(weight, *parts):
            raise _unsummable(rank, round)
        under_way.extend((rank, chunk) for chunk in ranks[rank].give(0, weight, *parts))
    while under_way:
        sender, one = under_way.popleft()
        place = 0, round, one.bucket, one.step
        there = wire_bytes(chunk_message(0, round, one, schema))
        back = wire_bytes(ChunkTaken(*place))
        for source, to, size, payload in ((sender, one.peer, there, one.vector.nbytes), (one.peer, sender, back, 0)):
            meters[source].record_sent(size, payload)
            meters[to].record_received(size, payload)
        more = ranks[one.peer].take(sender, one.bucket, one.step, one.weight, one.vector)
        under_way.extend((one.peer, chunk) for chunk in more)
    return ranks[0].mean


def served_by(placement: Placement, coding: ShardCoding | None = None) -> MeanOf:
    """Return the mean of a clock computed by the servers of these shards, with all servers alive."""
    coding = coding or ShardCoding(placement, np.dtype(np.float32), 0, 0)
    pushing = coding.pushing is not None

    def mean_of(terms: Sequence[Contribution], round: int, schema: str, meters: Sequence[Meter]) -> Vector:
        kind = coding.kind if pushing else terms[0][1][0].dtype
        total = ExactSum()
        for worker, (weight, payload) in enumerate(terms):
            total.add(weight, _decode_gradient(coding, payload, worker, round) if pushing else frozen(payload[0]))
        for shard in placement.shards:
            part = frozen(np.empty(shard.length, kind))
            coded = coding.codes_pull(round + 1)
            back = frozen(np.empty(coding.pull_size(shard.number), np.uint8)) if coded else part
            owner, *keepers = (meters[server] for server in shard.preference[: placement.copies])
            for worker, (weight, payload) in enumerate(terms):
                out = payload[shard.number] if pushing else part
                _pushed_and_pulled(meters[worker], owner, shard, round, weight, (out, back), schema)
            for keeper in keepers:
                _copied(owner, keeper, shard, round, part, schema)
        return total.mean(kind)

    return mean_of


def _decode_gradient(coding: ShardCoding, payloads: Sequence[Vector], worker: int, round: int) -> Vector:
    """Return the gradient [d] that a worker's payloads encode."""
    whole = np.empty(coding.placement.length, coding.kind)
    for shard in coding.placement.shards:
        shard.put_into(whole, coding.decode_push(payloads[shard.number], shard.number, worker, round))
    return frozen(whole)


def _pushed_and_pulled(
    worker: Meter, server: Meter, shard: Shard, clock: int, weight: float, given: tuple[Vector, Vector], schema: str
) -> None:
    """Add the bytes of a worker's push and pull of a shard, without repetitions, to both meters."""
    number, (up, down) = shard.number, given
    push = CodedPush if up.dtype == np.uint8 else ShardPush
    pulled = CodedPulled if down.dtype == np.uint8 else Pulled
    out: list[Message] = [ShardPull(0, number, clock + 1, clock)]
    back: list[Message] = []
    for start, one in pieces(up):
        out.append(push(0, number, clock, clock, clock, weight, start, one.size, schema, (one,)))
        back.append(PieceTaken(0, number, clock, start))
    for start, one in pieces(down):
        out.append(PieceTaken(0, number, clock + 1, start))
        back.append(pulled(0, number, clock + 1, clock + 1, clock + 1, 0, start, one.size, schema, (one,)))
    _count(worker, server, out, back)


def _copied(owner: Meter, keeper: Meter, shard: Shard, clock: int, part: Vector, schema: str) -> None:
    facts = 0, shard.number, clock + 1, clock, 0.0, ()
    out = [ShardStep(*facts, start, one.size, schema, (one,)) for start, one in pieces(part)]
    _count(owner, keeper, out, [PieceTaken(*one.name) for one in out])


def _count(one: Meter, other: Meter, out: Sequence[Message], back: Sequence[Message]) -> None:
    for sender, to, messages in ((one, other, out), (other, one, back)):
        for message in messages:
            sender.record_sent(wire_bytes(message), message.payload_bytes)
            to.record_received(wire_bytes(message), message.payload_bytes)
