"""Pulled shards at a worker: checked, and assembled from their pieces."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.algorithms.hash_ring import Placement
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, all_finite
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import CodedPulled, Pulled, RowsPulled
from fedgossip.protocols.servers.model_parts import ModelParts
from fedgossip.protocols.servers.pieces import Assembly
from fedgossip.protocols.servers.shard_coding import ShardCoding, check_coded

PulledPiece = Pulled | CodedPulled | RowsPulled
"""A piece of a shard that a server sends."""


@dataclass(frozen=True, slots=True, eq=False)
class PulledShard:
    """A shard as its server sent it; see messages.Pulled."""

    clock: int
    version: int
    steps: int
    missed: int
    vector: Vector


class PulledShards:
    """The pulled shards of one clock.  Invariant: of each shard the newest received clock is assembled."""

    def __init__(
        self, node: NodeId, placement: Placement, schema: str, rounds: int, coding: ShardCoding | None = None
    ) -> None:
        self.node, self.placement, self.schema, self.rounds = node, placement, schema, rounds
        self.coding = coding
        self.here: dict[int, PulledShard] = {}
        self._arriving: dict[int, tuple[int, Assembly]] = {}  # by shard: (clock, pieces)

    def clear(self) -> None:
        """Drop all shards: another clock begins."""
        self.here, self._arriving = {}, {}

    def drop_incomplete(self) -> None:
        """Drop incomplete shards after a change of owners: they are sent again."""
        self._arriving.clear()

    def owned_by(self, sender: NodeId, shard: int, alive: Collection[NodeId]) -> bool:
        shards = self.placement.shards
        return shard < len(shards) and shards[shard].holders(alive, 1) == (sender,)

    def take(
        self,
        sender: NodeId,
        piece: PulledPiece,
        alive: Collection[NodeId],
        wanted: int | None,
        parts: ModelParts,
    ) -> bool:
        """Take a piece; return whether it completes a shard.  `wanted`: the clock; None: no pull is open.

        Raises ProtocolError for an invalid piece of this server's shards.
        """
        of = piece.digest if isinstance(piece, RowsPulled) else ""
        said_before = wanted is None or piece.shard in self.here or piece.clock < wanted
        self._check(sender, piece, alive)
        if said_before or of != parts.digest(piece.shard):
            return False
        coded = isinstance(piece, CodedPulled)
        length, kind = self._size(piece.shard, parts, coded=coded)
        if not Assembly(length, kind).expects(piece.start, piece.vectors):
            raise ProtocolError(f"{self._what(sender, piece)} of another length", peer=sender)
        clock, arriving = self._arriving.get(piece.shard, (-1, None))
        if arriving is None or clock < piece.clock:
            clock, arriving = piece.clock, Assembly(length, kind)
        if clock > piece.clock or arriving.has(piece.start):
            return False
        self._arriving[piece.shard] = clock, arriving
        arriving.take(piece.start, piece.vectors)
        if (whole := arriving.whole) is None:
            return False
        if coded:
            whole = self._decoded(sender, piece, whole, arriving)
        del self._arriving[piece.shard]
        self.here[piece.shard] = PulledShard(piece.clock, piece.version, piece.steps, piece.missed, whole)
        return True

    def _size(self, shard: int, parts: ModelParts, *, coded: bool) -> tuple[int, np.dtype[Any]]:
        """Return the number and type of the elements sent of a shard."""
        if coded and self.coding:
            return self.coding.pull_size(shard), np.dtype(np.uint8)
        return parts.length(shard), parts.model.dtype

    def _decoded(self, sender: NodeId, piece: PulledPiece, payload: Vector, arriving: Assembly) -> Vector:
        assert self.coding
        try:
            return self.coding.decode_pull(payload, piece.shard)
        except ProtocolError as error:
            arriving.give_back(piece.start)
            raise ProtocolError(f"{self._what(sender, piece)}: {error}", error.advice, peer=sender) from None

    def _what(self, sender: NodeId, piece: PulledPiece) -> str:
        return f"worker {self.node}: shard {piece.shard} of server {sender} for clock {piece.clock}"

    def _check(self, sender: NodeId, piece: PulledPiece, alive: Collection[NodeId]) -> None:
        what = self._what(sender, piece)
        if not self.owned_by(sender, piece.shard, alive):
            raise ProtocolError(f"{what}, which does not own it", "Have all the same experiment file?", peer=sender)
        if piece.clock > self.rounds or piece.version > piece.clock:
            raise ProtocolError(f"{what}, which has not been yet", peer=sender)
        expected = self.coding is not None and self.coding.codes_pull(piece.clock)
        check_coded(coded=isinstance(piece, CodedPulled), expected=expected, what=what, sender=sender)
        if piece.schema != self.schema or len(piece.vectors) != 1:
            advice = "Give every worker and server the same [model] section."
            raise ProtocolError(f"{what} of another layout ({piece.schema}, ours {self.schema})", advice, peer=sender)
        if not all_finite(piece.vectors[0]):
            raise ProtocolError(f"{what} is not finite", peer=sender)
