"""Pushes as they come to a server: checked, put together of their pieces, and how old what they are of was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from fedgossip.errors import ProtocolError
from fedgossip.machine import NodeId
from fedgossip.messages import ShardPush
from fedgossip.placement.ring import Placement
from fedgossip.protocols.pieces import Assembly
from fedgossip.protocols.shard_clocks import ShardClocks
from fedgossip.vectors import Vector

MISSED_MAX = 1000
"""More steps than this between a reading and its push are counted together."""


class PushIntake:
    """Invariant: one push of each worker for each shard is put together at a time, that of the clock it is in."""

    def __init__(
        self,
        node: NodeId,
        placement: Placement,
        kind: np.dtype[np.floating],
        schema: str,
        rounds: int,
        staleness: int | None,
    ) -> None:
        self.node, self.placement, self.kind, self.schema = node, placement, kind, schema
        self.rounds, self.staleness = rounds, staleness
        self._arriving: dict[tuple[int, NodeId], Assembly] = {}
        self._lags: Counter[int] = Counter()
        self._missed: Counter[int] = Counter()

    @property
    def seen(self) -> Mapping[str, Mapping[int, int]]:
        """Pushes by the clocks, and by the steps, since what they were computed from."""
        return {"clocks": dict(sorted(self._lags.items())), "steps": dict(sorted(self._missed.items()))}

    def begun(self, sender: NodeId, shard: int) -> bool:
        """Whether a piece of the push that a worker is at has come."""
        return (shard, sender) in self._arriving

    def take(self, sender: NodeId, push: ShardPush, clocks: ShardClocks) -> Vector | None:
        """Take a piece; return the gradient where it is whole.  Raises ProtocolError for what is no piece of one."""
        place = push.shard, sender
        arriving = self._arriving.get(place) or Assembly(self.placement.shards[push.shard].length, self.kind)
        self._check(sender, push, clocks, arriving)
        if arriving.has(push.start):
            return None
        self._arriving[place] = arriving
        arriving.take(push.start, push.vectors[0])
        whole = arriving.whole
        if whole is not None:
            del self._arriving[place]
            self._lags[push.clock - push.version] += 1
            self._missed[min(clocks.steps - push.steps, MISSED_MAX)] += 1
        return whole

    def forget(self, sender: NodeId | None = None) -> None:
        """Drop what has come of a worker's pushes, or of all."""
        kept = {} if sender is None else {place: one for place, one in self._arriving.items() if place[1] != sender}
        self._arriving = kept

    def _check(self, sender: NodeId, push: ShardPush, clocks: ShardClocks, arriving: Assembly) -> None:
        what = f"server {self.node}, shard {push.shard}: a push of worker {sender} for clock {push.clock}"
        at = clocks.clocks[sender]
        if push.clock > at or push.clock >= self.rounds:
            raise ProtocolError(f"{what}; it is at clock {at}", "Do two processes run as this worker?", peer=sender)
        if self.staleness is not None and push.clock - push.version > self.staleness:
            text = f"{what} from what it read at clock {push.version}: at most {self.staleness} earlier"
            raise ProtocolError(text, "Have all the same experiment file?", peer=sender)
        if push.version > push.clock or push.steps > clocks.steps:
            raise ProtocolError(f"{what} from what has not been yet", peer=sender)
        if push.schema != self.schema or not arriving.expects(push.start, push.vectors):
            advice = "Give every worker and server the same [model] section."
            raise ProtocolError(f"{what} of another layout ({push.schema}, ours {self.schema})", advice, peer=sender)
        if not clocks.fits(push.weight, push.vectors[0]):
            raise ProtocolError(f"{what} with numbers that cannot be added up", peer=sender)
