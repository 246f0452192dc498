"""The effect of servers of shards on a clock's pushes, in one process: the same mean, and the bytes that it would
cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgossip.algorithms.federated.sums import ExactSum
from fedgossip.algorithms.hash_ring import Placement, Shard
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.messages import CodedPulled, CodedPush, Message, PieceTaken, Pulled, ShardPull, ShardPush, ShardStep
from fedgossip.core.meter import Meter
from fedgossip.core.wire import wire_bytes
from fedgossip.protocols.allreduce.round_sums import Contribution
from fedgossip.protocols.servers.pieces import pieces
from fedgossip.protocols.servers.shard_coding import ShardCoding
from fedgossip.simulation.collective import MeanOf


def served_by(placement: Placement, coding: ShardCoding | None = None) -> MeanOf:
    """Return the mean of a clock as the servers of these shards compute it, with all servers alive."""
    coding = coding or ShardCoding(placement, np.dtype(np.float32), 0, 0)
    pushing = coding.pushing is not None

    def mean_of(terms: Sequence[Contribution], round: int, schema: str, meters: Sequence[Meter]) -> Vector:
        kind = coding.kind if pushing else terms[0][1][0].dtype
        total = ExactSum()
        for worker, (weight, said) in enumerate(terms):
            total.add(weight, _whole(coding, said, worker, round) if pushing else frozen(said[0]))
        for shard in placement.shards:
            part = frozen(np.empty(shard.length, kind))
            coded = coding.codes_pull(round + 1)
            back = frozen(np.empty(coding.pull_size(shard.number), np.uint8)) if coded else part
            owner, *keepers = (meters[server] for server in shard.preference[: placement.copies])
            for worker, (weight, said) in enumerate(terms):
                out = said[shard.number] if pushing else part
                _pushed_and_pulled(meters[worker], owner, shard, round, weight, (out, back), schema)
            for keeper in keepers:
                _copied(owner, keeper, shard, round, part, schema)
        return total.mean(kind)

    return mean_of


def _whole(coding: ShardCoding, payloads: Sequence[Vector], worker: int, round: int) -> Vector:
    """Return the gradient [d] that a worker's payloads encode."""
    whole = np.empty(coding.placement.length, coding.kind)
    for shard in coding.placement.shards:
        shard.put_into(whole, coding.decode_push(payloads[shard.number], shard.number, worker, round))
    return frozen(whole)


def _pushed_and_pulled(
    worker: Meter, server: Meter, shard: Shard, clock: int, weight: float, given: tuple[Vector, Vector], schema: str
) -> None:
    """Add a worker's undisturbed push and pull of a shard to both meters; `given`: the uploaded and downloaded data."""
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
    """Add the step of a clock sent to a holder of a copy to both meters."""
    facts = 0, shard.number, clock + 1, clock, 0.0, ()
    out = [ShardStep(*facts, start, one.size, schema, (one,)) for start, one in pieces(part)]
    _count(owner, keeper, out, [PieceTaken(*one.name) for one in out])


def _count(one: Meter, other: Meter, out: Sequence[Message], back: Sequence[Message]) -> None:
    for sender, to, messages in ((one, other, out), (other, one, back)):
        for message in messages:
            sender.sent(wire_bytes(message), message.payload_bytes)
            to.received(wire_bytes(message), message.payload_bytes)
