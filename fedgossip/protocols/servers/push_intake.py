"""Received pushes and pulls at a server, and the awaited workers.

Pushes are checked, assembled from their pieces, and counted by the age of their model.  Each worker has at most one
open pull per shard.  Progress of a worker is a begun push or a received reply.  A worker without progress for the
longest deadline is silent; without a link its own deadline applies, which follows the duration of its gradients.  The
others then continue, and it takes part again when it pushes or pulls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.codecs.base import Payload
from fedgossip.algorithms.hash_ring import Placement
from fedgossip.base.errors import ProtocolError
from fedgossip.base.keyed_rows import Keys, Rows, no_rows
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Effect, NodeId
from fedgossip.core.messages import (
    CodedPulled,
    CodedPush,
    NoRows,
    Pulled,
    RowPull,
    RowPush,
    RowsPulled,
    ShardPull,
    ShardPush,
)
from fedgossip.protocols.allreduce.chunk_links import ChunkLink, PushChunk
from fedgossip.protocols.gossip.partner_set import Deadline
from fedgossip.protocols.servers.model_parts import Assembly, ShardCoding, check_coded, pieces
from fedgossip.protocols.servers.row_parts import KeyLists
from fedgossip.protocols.servers.shard_clocks import Gradient, ShardClocks

MISSED_MAX = 1000
"""Maximum counted number of steps between a reading and its push; larger numbers count as this."""


PushPiece = ShardPush | CodedPush | RowPush
"""A piece of a gradient."""


class PushIntake:
    """Invariant: for each worker and shard one push is assembled at a time, that of the worker's clock."""

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
        """Number of pushes by the age of the model that they were computed from: in clocks, and in steps."""
        return {"clocks": dict(sorted(self._lags.items())), "steps": dict(sorted(self._missed.items()))}

    def begun(self, sender: NodeId, shard: int) -> bool:
        """Return whether a piece of the worker's current push was received."""
        return (shard, sender) in self._arriving

    def take(self, sender: NodeId, push: PushChunk, clocks: ShardClocks, width: int | None) -> Gradient | None:
        """Add a piece; return the gradient if it is complete.  Raises ProtocolError for an invalid piece.

        The caller has stored the keys of a RowPush.
        """
        self._check_clock(sender, push, clocks)
        if isinstance(push, NoRows):
            self._count(push, clocks)
            return no_rows(self.kind)
        place, digest = (push.shard, sender), push.digest if isinstance(push, RowPush) else ""
        keys = self.lists.find(sender, push.shard, digest) if digest else None
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
        """Return the decoded gradient.  Raises ProtocolError; the push's last piece then counts as missing."""
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


Place = tuple[int, NodeId]
"""(shard, worker)"""


@dataclass(frozen=True, slots=True, eq=False)
class HeldPull:
    """A worker's pull of a shard for its clock, or of these rows of a table."""

    pull: ShardPull | RowPull
    keys: Keys | None

    @property
    def anew(self) -> bool:
        """Whether the worker has nothing to push before."""
        return self.pull.first == self.pull.clock


class WaitingPulls:
    """`late`: (shard, worker) of workers without which the others continued; a reply may be for a later clock."""

    def __init__(self, schema: str, coding: ShardCoding | None = None) -> None:
        self.schema, self.coding = schema, coding
        self._said: dict[int, tuple[Vector, Payload]] = {}  # by shard: the last encoded elements and their payload
        self.held: dict[Place, HeldPull] = {}
        self.late: set[Place] = set()
        self._answered: dict[Place, int] = {}  # the clock of the last reply

    def forget(self, worker: NodeId | None = None) -> None:
        """Drop a worker's pulls; without a worker all pulls and replies, for another tenure."""
        if worker is None:
            self.held, self._answered = {}, {}
        else:
            self.held = {place: one for place, one in self.held.items() if place[1] != worker}

    @property
    def waiting(self) -> set[NodeId]:
        """The workers with an unanswered pull."""
        return {worker for _, worker in self.held}

    def find_answered(self, places: Collection[Place]) -> int:
        """Return the clock for which all of these places have been answered."""
        return min((self._answered.get(place, 0) for place in places), default=0)

    def answer(
        self, place: Place, clocks: ShardClocks, present: Collection[NodeId], epoch: int, link: ChunkLink, now_ns: int
    ) -> list[Effect]:
        """Answer a pull, if its worker may read now."""
        asked, (number, worker) = self.held[place], place
        reading = clocks.reading(worker, asked.pull.clock, present, anew=asked.anew, late=place in self.late)
        if reading is None:
            return []
        del self.held[place]
        self.late.discard(place)
        self._answered[place] = reading.clock
        facts = epoch, number, reading.clock, reading.version, clocks.steps, clocks.missed[worker]
        effects: list[Effect] = []
        given, coded = reading.vector_of(asked.keys), self.coding is not None and self.coding.codes_pull(reading.clock)
        for start, part in pieces(self._payload(number, given) if coded else given):
            where = start, part.size, self.schema, (part,)
            if isinstance(asked.pull, RowPull):
                effects += link.send(RowsPulled(*facts, asked.pull.digest, *where), now_ns)
            else:
                effects += link.send((CodedPulled if coded else Pulled)(*facts, *where), now_ns)
        return effects

    def _payload(self, number: int, given: Vector) -> Payload:
        """Return the encoded shard; it is encoded once for all receivers of the same elements."""
        assert self.coding
        before = self._said.get(number)
        if before is None or before[0] is not given:
            before = self._said[number] = given, self.coding.encode_pull(given, number)
        return before[1]


class Attendance:
    """Invariant: `absent` and `left` are disjoint, and none of them is awaited.  Times in nanoseconds."""

    def __init__(self, workers: Sequence[NodeId], longest_ns: int, least_ns: int, start_ns: int) -> None:
        self.workers, self.start_ns, self.longest_ns = tuple(workers), start_ns, longest_ns
        self.linked: set[NodeId] = set()
        self.left: set[NodeId] = set()
        self.absent: set[NodeId] = set()
        self._heard_ns: dict[NodeId, int] = {}
        self._paces = {worker: Deadline(longest_ns, min(least_ns, longest_ns)) for worker in workers}

    @property
    def present(self) -> list[NodeId]:
        """The awaited workers, ascending."""
        return [worker for worker in self.workers if worker not in self.absent and worker not in self.left]

    @property
    def over(self) -> bool:
        """Whether no worker needs the server any more: a silent linked worker needs it until another has left."""
        lost = self.absent if self.left else self.absent - self.linked
        return all(worker in self.left or worker in lost for worker in self.workers)

    def note_progress(self, worker: NodeId, now_ns: int) -> bool:
        """Record progress of a worker; return whether the others had continued without it."""
        self._heard_ns[worker] = now_ns
        back = worker in self.absent
        self.absent.discard(worker)
        return back

    def pushed(self, worker: NodeId, now_ns: int) -> None:
        """Record the first piece of a gradient, whose duration is the time since the worker's last message."""
        if worker in self._heard_ns:
            self._paces[worker].record(now_ns - self._heard_ns[worker])

    def leave(self, worker: NodeId) -> None:
        """Record a worker's `Leaving`."""
        self.absent.discard(worker)
        self.left.add(worker)

    def due_ns(self, worker: NodeId) -> int:
        """Return the time when a worker without a message counts as silent."""
        if worker not in self._heard_ns:
            return self.start_ns
        patience = self.longest_ns if worker in self.linked else self._paces[worker].now_ns()
        return self._heard_ns[worker] + patience

    def lose_silent(self, of: Collection[NodeId], now_ns: int) -> list[NodeId]:
        """Mark the silent workers of `of` as absent; return them."""
        silent = [worker for worker in self.present if worker in of and self.due_ns(worker) <= now_ns]
        self.absent.update(silent)
        return silent
