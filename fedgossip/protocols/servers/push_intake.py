"""Received pushes at a server: checked, assembled from their pieces, and counted by the age of their model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from fedgossip.algorithms.hash_ring import Placement
from fedgossip.base.errors import ProtocolError
from fedgossip.base.keyed_rows import Keys, Rows, no_rows
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import CodedPush, NoRows, RowPush, ShardPush
from fedgossip.protocols.allreduce.chunk_links import PushChunk
from fedgossip.protocols.servers.key_lists import KeyLists
from fedgossip.protocols.servers.pieces import Assembly
from fedgossip.protocols.servers.shard_clocks import Gradient, ShardClocks
from fedgossip.protocols.servers.shard_coding import ShardCoding, check_coded

MISSED_MAX = 1000
"""Maximum number of steps between a reading and its push that is counted by itself; more are counted as this."""


PushPiece = ShardPush | CodedPush | RowPush
"""A piece of a gradient."""


class PushIntake:
    """Invariant: of each worker and shard one push is assembled at a time, that of the worker's clock."""

    def __init__(
        self,
        node: NodeId,
        placement: Placement,
        lists: KeyLists,
        kind: np.dtype[np.floating],
        schema: str,
        rounds: int,
        staleness: int | None,
        coding: ShardCoding | None = None,
    ) -> None:
        self.node, self.placement, self.lists, self.kind, self.schema = node, placement, lists, kind, schema
        self.rounds, self.staleness = rounds, staleness
        self.coding = coding if coding and coding.pushing else None
        self._arriving: dict[tuple[int, NodeId], tuple[str, Assembly]] = {}  # (digest of the list of keys, pieces)
        self._lags: Counter[int] = Counter()
        self._missed: Counter[int] = Counter()

    @property
    def seen(self) -> Mapping[str, Mapping[int, int]]:
        """Number of pushes by the clocks, and by the steps, since the model that they were computed from."""
        return {"clocks": dict(sorted(self._lags.items())), "steps": dict(sorted(self._missed.items()))}

    def begun(self, sender: NodeId, shard: int) -> bool:
        """Return whether a piece of the worker's current push was received."""
        return (shard, sender) in self._arriving

    def take(self, sender: NodeId, push: PushChunk, clocks: ShardClocks, width: int | None) -> Gradient | None:
        """Take a piece; return the gradient where it is complete.  Raises ProtocolError for an invalid piece.

        The caller has stored the keys of a RowPush.
        """
        self._check_clock(sender, push, clocks)
        if isinstance(push, NoRows):
            self._count(push, clocks)
            return no_rows(self.kind)
        place, digest = (push.shard, sender), push.digest if isinstance(push, RowPush) else ""
        keys = self.lists.of(sender, push.shard, digest) if digest else None
        begun, arriving = self._arriving.get(place) or (digest, self._assembly(push, keys, width))
        self._check_piece(sender, push, clocks, arriving, same=begun == digest)
        if arriving.has(push.start):
            return None
        arriving.take(push.start, push.vectors)
        whole = arriving.whole
        if whole is None:
            self._arriving[place] = digest, arriving
            return None
        if isinstance(push, CodedPush):
            whole = self._decoded(sender, push, clocks, whole, arriving)
        self._arriving.pop(place, None)
        self._count(push, clocks)
        return whole if keys is None else Rows(keys, whole)

    def _assembly(self, push: PushPiece, keys: Keys | None, width: int | None) -> Assembly:
        if self.coding:
            return Assembly(self.coding.push_size(push.shard, push.clock), np.dtype(np.uint8))
        length = self.placement.shards[push.shard].length if keys is None else keys.size * (width or 1)
        return Assembly(length, self.kind)

    def _decoded(
        self, sender: NodeId, push: CodedPush, clocks: ShardClocks, payload: Vector, arriving: Assembly
    ) -> Vector:
        """Return the decoded gradient of a push.  Raises ProtocolError, and then its last piece counts as missing."""
        assert self.coding
        what = f"server {self.node}, shard {push.shard}: a push of worker {sender} for clock {push.clock}"
        try:
            gradient = self.coding.decode_push(payload, push.shard, sender, push.clock)
            if not clocks.fits(push.weight, gradient):
                raise ProtocolError("numbers that cannot be added up")
        except ProtocolError as error:
            arriving.give_back(push.start)
            raise ProtocolError(f"{what}: {error}", error.advice, peer=sender) from None
        return gradient

    def _count(self, push: PushChunk, clocks: ShardClocks) -> None:
        self._lags[push.clock - push.version] += 1
        self._missed[min(clocks.steps - push.steps, MISSED_MAX)] += 1

    def forget(self, sender: NodeId | None = None) -> None:
        """Drop the received pieces of a worker's pushes, or of all."""
        kept = {} if sender is None else {place: one for place, one in self._arriving.items() if place[1] != sender}
        self._arriving = kept

    def _check_clock(self, sender: NodeId, push: PushChunk, clocks: ShardClocks) -> None:
        what = f"server {self.node}, shard {push.shard}: a push of worker {sender} for clock {push.clock}"
        at = clocks.clocks[sender]
        if push.clock > at or push.clock >= self.rounds:
            raise ProtocolError(f"{what}; it is at clock {at}", "Do two processes run as this worker?", peer=sender)
        if self.staleness is not None and push.clock - push.version > self.staleness:
            text = f"{what} from what it read at clock {push.version}: at most {self.staleness} earlier"
            raise ProtocolError(text, "Have all the same experiment file?", peer=sender)
        if push.version > push.clock or push.steps > clocks.steps:
            raise ProtocolError(f"{what} from what has not been yet", peer=sender)

    def _check_piece(
        self, sender: NodeId, push: PushPiece, clocks: ShardClocks, arriving: Assembly, *, same: bool
    ) -> None:
        what = f"server {self.node}, shard {push.shard}: a push of worker {sender} for clock {push.clock}"
        check_coded(coded=isinstance(push, CodedPush), expected=self.coding is not None, what=what, sender=sender)
        if not same:
            raise ProtocolError(f"{what} of other rows than its first piece", peer=sender)
        if push.schema != self.schema or not arriving.expects(push.start, push.vectors):
            advice = "Give every worker and server the same [model] section."
            raise ProtocolError(f"{what} of another layout ({push.schema}, ours {self.schema})", advice, peer=sender)
        if not isinstance(push, CodedPush) and not clocks.fits(push.weight, push.vectors[0]):
            raise ProtocolError(f"{what} with numbers that cannot be added up", peer=sender)
