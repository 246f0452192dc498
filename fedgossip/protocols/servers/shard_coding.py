"""Shards of a model by codecs, between workers and servers: pushed gradients and pulled shards.

    ShardCoding    the codec of each direction, and the decoding: the same at all
    CodedPushes    one worker's gradients, and its codec's error memory

Each shard is encoded by itself, as its server sees no other.  A repeated push, also to another server that has taken
the shard over, is the same payload.  A pulled shard is encoded anew each time, from the exact elements that servers
keep: no omissions of the codec accumulate, and after the last round shards are sent whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, Payload, VectorLayout
from fedgossip.algorithms.codecs.senders import Sender
from fedgossip.algorithms.hash_ring import Placement
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, frozen, summable
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Segment
from fedgossip.protocols.allreduce.coded_fragments import CodecMemory
from fedgossip.protocols.allreduce.round_sums import Contribution, weight_of


@dataclass(frozen=True)
class ShardCoding:
    """`pushing`, `pulling`: codecs; None: uncoded.  `segments`: the tensors of each shard, where it has them whole."""

    placement: Placement
    kind: np.dtype[np.floating]
    seed: int
    rounds: int
    pushing: Codec | None = None
    pulling: Codec | None = None
    segments: tuple[tuple[Segment, ...], ...] = ()

    @cached_property
    def layouts(self) -> tuple[VectorLayout, ...]:
        """The layouts of the shards."""
        shards = self.placement.shards
        return tuple(
            VectorLayout.of_length(one.length, self.kind, self.segments[one.number] if self.segments else ())
            for one in shards
        )

    def push_turn(self, shard: int, worker: NodeId, clock: int) -> CodecTurn:
        """Return the turn of a worker's push of a shard."""
        return CodecTurn(self.seed, worker, clock, shard + 1)

    def push_size(self, shard: int, clock: int) -> int:
        """Return the number of bytes of a push."""
        assert self.pushing
        return self.pushing.size(self.layouts[shard], clock)

    def decode_push(self, payload: Payload, shard: int, worker: NodeId, clock: int) -> Vector:
        """Return the gradient of a shard decoded from a push.  Raises ProtocolError as `Codec.decode`."""
        assert self.pushing
        return self.pushing.decode(payload, self.layouts[shard], self.push_turn(shard, worker, clock))

    def codes_pull(self, clock: int) -> bool:
        """Return whether a pulled shard for this clock of a worker is encoded."""
        return self.pulling is not None and clock < self.rounds

    def pull_size(self, shard: int) -> int:
        """Return the number of bytes of an encoded pulled shard."""
        assert self.pulling
        return self.pulling.size(self.layouts[shard], 0)

    def encode_pull(self, part: Vector, shard: int) -> Payload:
        """Return the payload of a pulled shard; it depends on its elements alone."""
        assert self.pulling
        return frozen(self.pulling.encode(part, self.layouts[shard], CodecTurn(0, 0, 0)))

    def decode_pull(self, payload: Payload, shard: int) -> Vector:
        """Return the shard decoded from such a payload.  Raises ProtocolError as `Codec.decode`."""
        assert self.pulling
        return self.pulling.decode(payload, self.layouts[shard], CodecTurn(0, 0, 0))

    def decode_model(self, model: Vector, clock: int) -> Vector:
        """Return the decoded model [d] that workers use at a clock; the first one is not pulled."""
        if clock == 0 or not self.codes_pull(clock):
            return model
        whole = np.empty_like(model)
        for one in self.placement.shards:
            one.put_into(whole, self.decode_pull(self.encode_pull(one.taken_from(model), one.number), one.number))
        return frozen(whole)


class CodedPushes(CodecMemory):
    """One worker's gradients by a codec for each shard, a round being a clock.

    If the others went on without this worker, the push of that clock is lost, but not the error memory.
    """

    def __init__(self, node: NodeId, sender: Sender, coding: ShardCoding) -> None:
        super().__init__(node, sender.start(VectorLayout.of_length(coding.placement.length, coding.kind)))
        self._sender, self._coding = sender, coding

    def coded(
        self, gradient: Vector | None, examples: int, metrics: Mapping[str, float], round: int
    ) -> Contribution | None:
        """Return the contribution of a clock's gradient, a payload for each shard; None if no sum can hold it."""
        assert gradient is not None, "a gradient was asked for"
        return (weight_of(examples, metrics), self.payloads(gradient, round)) if summable(gradient) else None

    def payloads(self, gradient: Vector, round: int) -> tuple[Payload, ...]:
        """Return the payload of each shard of a clock's gradient [d]."""
        found, left = [], [np.empty_like(one) for one in self.memory]
        for shard in self._coding.placement.shards:
            held = tuple(shard.taken_from(one) for one in self.memory)
            about = self._coding.layouts[shard.number], self._coding.push_turn(shard.number, self._node, round)
            payload, kept = self._sender.send(held, shard.taken_from(gradient), *about)
            found.append(frozen(payload))
            for whole, part in zip(left, kept, strict=True):
                shard.put_into(whole, part)
        self._round, self._next = round, tuple(map(frozen, left))
        return tuple(found)

    def take_result(self, found: Vector) -> None:
        """Nothing to update: the error memory does not depend on the clock's result."""

    def settled(self, rounds: int) -> None:
        """Update the error memory after this number of completed clocks."""
        if 0 <= self._round < rounds:
            self.memory = self._next
        self._round, self._next = -1, self.memory


def check_coded(*, coded: bool, expected: bool, what: str, sender: NodeId) -> None:
    """Raise ProtocolError for a coded message where an uncoded one is expected, or the other way round."""
    if coded != expected:
        by = "by a codec" if coded else "without its codec"
        raise ProtocolError(f"{what} {by}", "Have all the same experiment file?", peer=sender)
