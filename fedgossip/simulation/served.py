"""What servers of shards make of a clock's pushes, in one process: the same mean, and the bytes that it would cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgossip.algorithms.federated.sums import ExactSum
from fedgossip.messages import TAIL, Message, PieceTaken, Pulled, ShardPull, ShardPush
from fedgossip.metrics import Meter
from fedgossip.placement.ring import Placement, Shard
from fedgossip.protocols.pieces import pieces
from fedgossip.simulation.collective import MeanOf
from fedgossip.vectors import Vector, frozen
from fedgossip.wire import wire_bytes


def served_by(placement: Placement) -> MeanOf:
    """Return the mean of a clock as the servers of these shards give it, one copy of each."""

    def mean_of(terms: Sequence[tuple[float, Vector]], round: int, schema: str, meters: Sequence[Meter]) -> Vector:
        total = ExactSum(terms[0][1].size)
        for weight, vector in terms:
            total.add(weight, vector)
        for worker, (weight, vector) in enumerate(terms):
            for shard in placement.shards:
                _count(meters[worker], meters[shard.preference[0]], shard, round, weight, vector[:-TAIL], schema)
        return total.mean(terms[0][1].dtype)

    return mean_of


def _count(
    worker: Meter, server: Meter, shard: Shard, clock: int, weight: float, gradient: Vector, schema: str
) -> None:
    """Tell both what a worker's push and pull of a shard are, undisturbed."""
    number, part = shard.number, frozen(np.empty(shard.length, gradient.dtype))
    out: list[Message] = [ShardPull(0, number, clock + 1, clock)]
    back: list[Message] = []
    for start, one in pieces(part):
        out.append(ShardPush(0, number, clock, clock, clock, weight, start, one.size, schema, (one,)))
        out.append(PieceTaken(0, number, clock + 1, start))
        back.append(Pulled(0, number, clock + 1, clock + 1, clock + 1, 0, start, one.size, schema, (one,)))
        back.append(PieceTaken(0, number, clock, start))
    for sender, to, messages in ((worker, server, out), (server, worker, back)):
        for message in messages:
            sender.sent(wire_bytes(message), message.payload_bytes)
            to.received(wire_bytes(message), message.payload_bytes)
