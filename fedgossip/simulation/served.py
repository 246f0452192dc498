"""What servers of shards make of a clock's pushes, in one process: the same mean, and the bytes that it would cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgossip.algorithms.federated.sums import ExactSum
from fedgossip.messages import Message, PieceTaken, Pulled, ShardPull, ShardPush, ShardStep
from fedgossip.metrics import Meter
from fedgossip.placement.ring import Placement, Shard
from fedgossip.protocols.pieces import pieces
from fedgossip.protocols.round_sums import Contribution
from fedgossip.simulation.collective import MeanOf
from fedgossip.vectors import Vector, frozen
from fedgossip.wire import wire_bytes


def served_by(placement: Placement) -> MeanOf:
    """Return the mean of a clock as the servers of these shards give it, who all live."""

    def mean_of(terms: Sequence[Contribution], round: int, schema: str, meters: Sequence[Meter]) -> Vector:
        kind = terms[0][1][0].dtype
        total = ExactSum(terms[0][1][0].size)
        for weight, (gradient, *_) in terms:
            total.add(weight, frozen(gradient))
        for shard in placement.shards:
            part = frozen(np.empty(shard.length, kind))
            owner, *keepers = (meters[server] for server in shard.preference[: placement.copies])
            for worker, (weight, _) in enumerate(terms):
                _pushed_and_pulled(meters[worker], owner, shard, round, weight, part, schema)
            for keeper in keepers:
                _copied(owner, keeper, shard, round, part, schema)
        return total.mean(kind)

    return mean_of


def _pushed_and_pulled(
    worker: Meter, server: Meter, shard: Shard, clock: int, weight: float, part: Vector, schema: str
) -> None:
    """Tell both what a worker's push and pull of a shard are, undisturbed."""
    number = shard.number
    out: list[Message] = [ShardPull(0, number, clock + 1, clock)]
    back: list[Message] = []
    for start, one in pieces(part):
        out.append(ShardPush(0, number, clock, clock, clock, weight, start, one.size, schema, (one,)))
        out.append(PieceTaken(0, number, clock + 1, start))
        back.append(Pulled(0, number, clock + 1, clock + 1, clock + 1, 0, start, one.size, schema, (one,)))
        back.append(PieceTaken(0, number, clock, start))
    _count(worker, server, out, back)


def _copied(owner: Meter, keeper: Meter, shard: Shard, clock: int, part: Vector, schema: str) -> None:
    """Tell both what the step of a clock is to one that keeps a copy."""
    facts = 0, shard.number, clock + 1, clock, 0.0, ()
    out = [ShardStep(*facts, start, one.size, schema, (one,)) for start, one in pieces(part)]
    _count(owner, keeper, out, [PieceTaken(*one.name) for one in out])


def _count(one: Meter, other: Meter, out: Sequence[Message], back: Sequence[Message]) -> None:
    for sender, to, messages in ((one, other, out), (other, one, back)):
        for message in messages:
            sender.sent(wire_bytes(message), message.payload_bytes)
            to.received(wire_bytes(message), message.payload_bytes)
