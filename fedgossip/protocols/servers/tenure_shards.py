"""What one server has in a tenure: the shards that it owns, and its copies of others' (`shard_copies`).

Who has which follows from the tenure and the placement alone.  What was here when a tenure began is good for the next
one only: a server that has missed one has what others may have gone on with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from fedgossip.algorithms.hash_ring import Placement, Shard
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint, Effect, Failure, NodeId
from fedgossip.core.messages import ChangeMessage, CopyMessage, Tenure
from fedgossip.protocols.allreduce.chunk_links import ChunkLink
from fedgossip.protocols.servers.shard_clocks import ShardChange, ShardClocks
from fedgossip.protocols.servers.shard_copies import ShardCopies
from fedgossip.protocols.servers.shard_records import restore

MakeShard = Callable[[Shard, Vector], ShardClocks]
"""(shard, the model at the beginning) -> what the shard is before the first push."""


class TenureShards:
    """`shards` are owned.  In epoch -1 nothing is here: the manager has not said yet what this life gets."""

    def __init__(
        self,
        node: NodeId,
        servers: Sequence[NodeId],
        placement: Placement,
        make: MakeShard,
        initial: Vector,
        schema: str,
        links: Mapping[NodeId, ChunkLink],
        resumed: Checkpoint | None,
        *,
        waits: bool,
    ) -> None:
        """`waits`: for the manager, before anything is owned."""
        self.node, self.placement, self.make, self.initial = node, placement, make, initial
        self.epoch = -1 if waits else 0
        self.alive: tuple[NodeId, ...] = tuple(servers)
        self.joining: tuple[NodeId, ...] = ()
        self.copies = ShardCopies(node, placement, schema, links)
        self.shards: dict[int, ShardClocks] = {}
        held = {shard.number: make(shard, initial) for shard in placement.held(node, servers)}
        missing = restore(held, resumed) if resumed else []
        self.stored = {number: one for number, one in held.items() if number not in missing}  # of the life before
        if not waits:
            self._divide(held)
            self.copies.agreed()

    @property
    def everything(self) -> Mapping[int, ShardClocks]:
        """All that is here, for a checkpoint."""
        return {**self.shards, **self.copies.here}

    @property
    def lost(self) -> list[int]:
        """Shards that are to be owned and of which nothing is here."""
        owned = self.placement.owned(self.node, self.alive)
        return [shard.number for shard in owned if shard.number not in self.shards]

    def copied(self, present: Collection[NodeId]) -> int:
        """Return the clocks that are in all copies; 0 where some are still to come, and where there are none."""
        here = [] if self.copies.lacking else self.copies.here.values()
        return min((one.version(present) for one in here), default=0)

    def apply(self, number: int, change: ShardChange, now_ns: int) -> list[Effect]:
        """Make a change of an owned shard, here and where copies are kept."""
        self.shards[number].apply(change)
        return self.copies.changed(number, change, now_ns)

    def begin(self, tenure: Tenure) -> None:
        """Go by a later tenure from now on."""
        missed = tenure.epoch > self.epoch + 1  # a tenure, in which others may have gone on with what is here
        here = {} if missed else {**self.copies.valid, **self.shards}
        held = self.stored if tenure.anew else here
        self.epoch, self.alive, self.joining = tenure.epoch, tenure.servers, tenure.joining
        self.stored = {}
        self._divide(held)

    def _divide(self, held: Mapping[int, ShardClocks]) -> None:
        """Take what is held, by this tenure: what is owned, and what are copies."""
        keepers: dict[int, tuple[NodeId, ...]] = {}
        copies: dict[int, ShardClocks] = {}
        self.shards = {}
        for shard in self.placement.shards:
            owner, *wanted = shard.keepers(self.alive, self.joining, self.placement.copies)
            if owner == self.node and shard.number in held:
                self.shards[shard.number], keepers[shard.number] = held[shard.number], tuple(wanted)
            elif self.node in wanted:
                copies[shard.number] = held.get(shard.number) or self.make(shard, self.initial)
        self.copies.begin(self.epoch, keepers, copies, held.keys())

    def tell(self, now_ns: int, only: Collection[NodeId] | None = None) -> list[Effect]:
        """Send all that is owned to those that are to keep copies, or to some of them."""
        return [one for number, clocks in self.shards.items() for one in self.copies.tell(number, clocks, now_ns, only)]

    def take(self, sender: NodeId, message: ChangeMessage | CopyMessage) -> list[Effect]:
        """Take a piece of a copy, or of a change of one, of this epoch.  Raises ProtocolError."""
        return self.copies.take(sender, message, self._owner(sender, message.shard))

    def _owner(self, sender: NodeId, shard: int) -> NodeId:
        if shard >= len(self.placement.shards):
            raise ProtocolError(f"server {self.node}: shard {shard} of server {sender} is none", peer=sender)
        (owner,) = self.placement.shards[shard].holders(self.alive, 1)
        return owner

    def check_owner(self, sender: NodeId, shard: int) -> None:
        """Raise ProtocolError unless `sender` owns a shard, and so can know that nobody has it."""
        if sender != self._owner(sender, shard):
            raise ProtocolError(f"server {self.node}: shard {shard} is not that of server {sender}", peer=sender)

    def failure(self, number: int, after: int) -> Failure:
        """Why the run ends where nobody has a shard, after so many rounds."""
        shards = self.placement.shards
        words = shards[number].words if number < len(shards) else "?"
        text = f"no server has a copy of elements {words} of the model, after round {after}"
        return Failure("network", text, "Start all again with --resume, or raise replication.")
