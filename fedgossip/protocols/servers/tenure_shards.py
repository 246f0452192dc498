"""One server's shards in a tenure: those that it owns, and its copies of others' (`shard_copies`).

Their assignment follows from the tenure and the placement alone.  State from before a tenure is valid for the next one
only: to a server that has missed one, others may have gone on without it.
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
"""(shard, initial model) -> the shard before the first push."""


class TenureShards:
    """`shards` are owned.  In epoch -1 there are none: the manager has not assigned any to this life yet."""

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
        self.stored = {number: one for number, one in held.items() if number not in missing}  # from the last life
        if not waits:
            self._divide(held)
            self.copies.agreed()

    @property
    def everything(self) -> Mapping[int, ShardClocks]:
        """All local shards, for a checkpoint."""
        return {**self.shards, **self.copies.here}

    @property
    def lost(self) -> list[int]:
        """The shards to be owned without local state."""
        owned = self.placement.owned(self.node, self.alive)
        return [shard.number for shard in owned if shard.number not in self.shards]

    def copied(self, present: Collection[NodeId]) -> int:
        """Return the number of clocks in all copies; 0 while some are missing, and without copies."""
        here = [] if self.copies.lacking else self.copies.here.values()
        return min((one.version(present) for one in here), default=0)

    def apply(self, number: int, change: ShardChange, now_ns: int) -> list[Effect]:
        """Apply a change to an owned shard, here and at the keepers of copies."""
        self.shards[number].apply(change)
        return self.copies.changed(number, change, now_ns)

    def begin(self, tenure: Tenure) -> None:
        """Begin a later tenure."""
        missed = tenure.epoch > self.epoch + 1  # others may have gone on from this state in between
        here = {} if missed else {**self.copies.valid, **self.shards}
        held = self.stored if tenure.anew else here
        self.epoch, self.alive, self.joining = tenure.epoch, tenure.servers, tenure.joining
        self.stored = {}
        self._divide(held)

    def _divide(self, held: Mapping[int, ShardClocks]) -> None:
        """Divide the held shards by this tenure into owned ones and copies."""
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

    def send_copies(self, now_ns: int, only: Collection[NodeId] | None = None) -> list[Effect]:
        """Send all owned shards to the keepers of copies, or to some of them."""
        return [
            one
            for number, clocks in self.shards.items()
            for one in self.copies.send_copies(number, clocks, now_ns, only)
        ]

    def take(self, sender: NodeId, message: ChangeMessage | CopyMessage) -> list[Effect]:
        """Take a piece of a copy, or of a change of one, of this epoch.  Raises ProtocolError."""
        return self.copies.take(sender, message, self._owner(sender, message.shard))

    def _owner(self, sender: NodeId, shard: int) -> NodeId:
        if shard >= len(self.placement.shards):
            raise ProtocolError(f"server {self.node}: shard {shard} of server {sender} is none", peer=sender)
        (owner,) = self.placement.shards[shard].holders(self.alive, 1)
        return owner

    def check_owner(self, sender: NodeId, shard: int) -> None:
        """Raise ProtocolError unless `sender` owns a shard, so that its report of a loss is credible."""
        if sender != self._owner(sender, shard):
            raise ProtocolError(f"server {self.node}: shard {shard} is not that of server {sender}", peer=sender)

    def failure(self, number: int, after: int) -> Failure:
        """Return the failure of a run without any copy of a shard, after so many rounds."""
        shards = self.placement.shards
        words = shards[number].words if number < len(shards) else "?"
        text = f"no server has a copy of elements {words} of the model, after round {after}"
        return Failure("network", text, "Start all again with --resume, or raise replication.")
