"""One server's shards in a tenure: the owned ones, and its copies of others.

Their assignment follows from the tenure and the placement.  State from before a tenure is valid for the next one only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.descent.rows import RowTable
from fedgossip.algorithms.gossip.base import restored, saved
from fedgossip.algorithms.hash_ring import Placement, Shard
from fedgossip.base.errors import ProtocolError
from fedgossip.base.keyed_rows import Rows
from fedgossip.base.vectors import Vector, all_finite, frozen
from fedgossip.core.machine import Checkpoint, Effect, Failure, NodeId, Send
from fedgossip.core.messages import (
    Carrier,
    ChangeMessage,
    CopyMessage,
    EmptyCopy,
    EmptyStep,
    PieceTaken,
    RowCopy,
    RowStep,
    ShardCopy,
    ShardStep,
    Tenure,
)
from fedgossip.protocols.allreduce.chunk_links import WINDOW, ChunkLink
from fedgossip.protocols.servers.model_parts import Assembly, RowAssembly, keyed_pieces, pieces
from fedgossip.protocols.servers.shard_clocks import ShardChange, ShardClocks, restore

MakeShard = Callable[[Shard, Vector], ShardClocks]
"""(shard, initial model) -> the shard before the first push."""


class TenureShards:
    """`shards` are owned.  Epoch -1: none, as the manager has assigned none to this incarnation so far."""

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
        self.whole = not waits  # and the manager has that on its disk
        self.alive: tuple[NodeId, ...] = tuple(servers)
        self.joining: tuple[NodeId, ...] = ()
        self.copies = ShardCopies(node, placement, schema, links)
        self.shards: dict[int, ShardClocks] = {}
        held = placement.held(node, servers)
        self.stored = {shard.number: make(shard, initial) for shard in (placement.shards if resumed else held)}
        for number in restore(self.stored, resumed) if resumed else ():  # of the last life, in whatever tenure that was
            del self.stored[number]
        if not waits:
            first = {shard.number: make(shard, initial) for shard in held} | self.stored
            self._divide(first, first)
            self.copies.agreed()

    @property
    def everything(self) -> Mapping[int, ShardClocks]:
        """All local shards with a state, for a checkpoint; a copy that was never received has none."""
        return {**self.shards, **self.copies.valid}

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
        """Apply a change to an owned shard, locally and at the keepers of copies."""
        self.shards[number].apply(change)
        return self.copies.changed(number, change, now_ns)

    def begin(self, tenure: Tenure) -> None:
        """Begin a later tenure."""
        missed = tenure.epoch > self.epoch + 1  # others may have gone on from this state in between
        here = {} if missed else {**self.copies.valid, **self.shards}
        held = {**self.stored, **here} if tenure.anew else here
        self.epoch, self.alive, self.joining, self.whole = tenure.epoch, tenure.servers, tenure.joining, tenure.whole
        self.stored = {}
        self._divide(held, here)  # a copy on disk may be older than its owner's, which sends it

    def _divide(self, held: Mapping[int, ShardClocks], valid: Collection[int]) -> None:
        keepers: dict[int, tuple[NodeId, ...]] = {}
        copies: dict[int, ShardClocks] = {}
        self.shards = {}
        for shard in self.placement.shards:
            owner, *wanted = shard.keepers(self.alive, self.joining, self.placement.copies)
            if owner == self.node and shard.number in held:
                self.shards[shard.number], keepers[shard.number] = held[shard.number], tuple(wanted)
            elif self.node in wanted:
                copies[shard.number] = held.get(shard.number) or self.make(shard, self.initial)
        self.copies.begin(self.epoch, keepers, copies, valid)

    def send_copies(self, now_ns: int, only: Collection[NodeId] | None = None) -> list[Effect]:
        """Send all owned shards to the keepers of copies, or to some of them."""
        return [
            one
            for number, clocks in self.shards.items()
            for one in self.copies.send_copies(number, clocks, now_ns, only)
        ]

    def take(self, sender: NodeId, message: ChangeMessage | CopyMessage) -> list[Effect]:
        """Add a piece of a copy, or of a change of one, of this epoch.  Raises ProtocolError."""
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
        """Return the failure of a run without any copy of a shard, after `after` rounds."""
        shards = self.placement.shards
        words = shards[number].words if number < len(shards) else "?"
        text = f"no server has a copy of elements {words} of the model, after round {after}"
        return Failure("network", text, "Start all again with --resume, or raise replication.")


# Copies of shards: those of this server's shards at others, and those that it stores for others.
#
# The owner numbers the changes of a shard.  At the beginning of its tenure it sends the whole shard to the keepers of
# its copies, and then each change: they apply the same gradient step.  A shard is `safe` when they have acknowledged
# every piece: only then is a worker answered, so the next owner lacks nothing that was sent.
#
#     invariant   a copy is its owner's shard after one of the owner's changes, whole
#     bound       changes received before their turn are at most as many as can be in transfer on a link

# Messages of a shard's owner to the keepers of copies: its changes, and its whole content; for elements and rows.
#
# All elements are sent, in pieces.  Of a table only the touched rows are sent, each piece with their keys.


Whole = Vector | Rows | None
"""The assembled pieces of a change or copy; None for one with only numbers."""


def change_messages(epoch: int, shard: int, number: int, change: ShardChange, schema: str) -> Sequence[ChangeMessage]:
    """Return a change, the `number`-th of a shard, as messages."""
    head = epoch, shard, number, change.clock, change.rate, change.workers
    if change.gradient is None or not isinstance(change.gradient, Rows):
        if change.gradient is None:
            return [EmptyStep(*head)]
        return [ShardStep(*head, start, one.size, schema, (one,)) for start, one in pieces(change.gradient)]
    if not change.gradient.keys.size:
        return [EmptyStep(*head)]
    return [RowStep(*head, *place, schema, parts) for place, parts in keyed_pieces(change.gradient)]


def copy_messages(epoch: int, shard: int, number: int, clocks: ShardClocks, schema: str) -> Sequence[CopyMessage]:
    """Return the content of a shard after its `number`-th change as messages."""
    head = epoch, shard, number, clocks.closed, clocks.steps, tuple(clocks.clocks.values()), _counts(clocks)
    many = arrays_of(clocks)
    if not isinstance(clocks.state, RowTable):
        arrays = saved(clocks.state)[0]
        vector = frozen(np.concatenate([*(arrays[name] for name in sorted(arrays)), *clocks.extra]))
        return [ShardCopy(*head, many, start, one.size, schema, (one,)) for start, one in pieces(vector)]
    rows = _all_rows(clocks, clocks.state)
    if rows is None:
        return [EmptyCopy(*head)]
    return [RowCopy(*head, *place, schema, parts) for place, parts in keyed_pieces(rows)]


def arrays_of(clocks: ShardClocks) -> int:
    """Return the number of arrays of a shard: the model's, the descent's, and further ones."""
    state = clocks.state
    return len(state.blocks if isinstance(state, RowTable) else saved(state)[0]) + len(clocks.extra)


def _counts(clocks: ShardClocks) -> tuple[int, ...]:
    numbers = clocks.state.numbers if isinstance(clocks.state, RowTable) else saved(clocks.state)[1]
    return tuple(int(numbers[name]) for name in sorted(numbers))


def _all_rows(clocks: ShardClocks, table: RowTable) -> Rows | None:
    if not table.keys.size:
        return None
    extra = [cast(RowTable, before).rows(table.keys) for before in clocks.extra]
    arrays = [*(table.touched(name) for name in sorted(table.blocks)), *extra]
    return Rows(table.keys, frozen(np.stack([one.reshape(len(table.keys), -1) for one in arrays], axis=1).reshape(-1)))


def arriving(message: ChangeMessage | CopyMessage, clocks: ShardClocks, length: int) -> Assembly | RowAssembly | None:
    """Return the assembly for the pieces of a message; None if it is complete, or of another kind."""
    many = arrays_of(clocks) if isinstance(message, CopyMessage) else 1
    state = clocks.state
    if isinstance(message, RowStep | RowCopy) and isinstance(state, RowTable):
        return RowAssembly(message.of, many * state.table.width, state.dtype)
    if isinstance(message, ShardStep | ShardCopy) and not isinstance(state, RowTable):
        return Assembly(many * length, state.x.dtype)
    return None


def fits(message: ChangeMessage | CopyMessage, clocks: ShardClocks) -> bool:
    """Return whether a message fits the shard: a table's or a vector's, with the same workers and descent."""
    of_rows = isinstance(clocks.state, RowTable)
    if isinstance(message, EmptyStep):
        return True
    if isinstance(message, CopyMessage):
        alike = len(message.clocks) == len(clocks.clocks) and len(message.counts) == len(_counts(clocks))
        return alike and isinstance(message, RowCopy | EmptyCopy) == of_rows
    return isinstance(message, RowStep) == of_rows


def overwrite_shard(clocks: ShardClocks, message: CopyMessage, whole: Whole) -> None:
    """Overwrite a shard with a received copy."""
    if isinstance(clocks.state, RowTable):
        names = sorted(clocks.state.numbers)
        table, before = _tables(clocks, cast("Rows | None", whole), dict(zip(names, message.counts, strict=True)))
        clocks.overwrite(table, message.closed, message.steps, message.clocks, before)
        return
    arrays, numbers = saved(clocks.state)
    parts = [frozen(np.array(part)) for part in np.split(cast(Vector, whole), arrays_of(clocks))]
    facts = dict(zip(sorted(numbers), message.counts, strict=True))
    state = restored(clocks.state, dict(zip(sorted(arrays), parts, strict=False)), facts)
    clocks.overwrite(state, message.closed, message.steps, message.clocks, parts[len(arrays) :])


def _tables(clocks: ShardClocks, rows: Rows | None, numbers: dict[str, int]) -> tuple[RowTable, list[RowTable]]:
    fresh = clocks.descent.start(None)
    if rows is None:
        return replace(fresh, numbers=numbers), [fresh] * len(clocks.extra)
    arrays = rows.values.reshape(len(rows.keys), arrays_of(clocks), -1)
    names = sorted(clocks.state.blocks)  # type: ignore[union-attr]
    table = fresh.with_rows(rows.keys, {name: _array(arrays, at) for at, name in enumerate(names)}, numbers)
    before = [fresh.with_rows(rows.keys, {"x": _array(arrays, at)}, {}) for at in range(len(names), arrays.shape[1])]
    return table, before


def _array(arrays: npt.NDArray[np.floating], at: int) -> Vector:
    return frozen(np.ascontiguousarray(arrays[:, at]).reshape(-1))


class ShardCopies:
    """The copies of one server's shards at others, and its copies of theirs."""

    def __init__(self, node: NodeId, placement: Placement, schema: str, links: Mapping[NodeId, ChunkLink]) -> None:
        self.node, self.placement, self.schema, self.links = node, placement, schema, links
        self._index = placement.index()
        self.epoch = 0
        self.keepers: dict[int, tuple[NodeId, ...]] = {}
        """The keepers of copies of each shard that this server owns."""
        self.numbers: dict[int, int] = {}  # number of changes of each local shard
        self.here: dict[int, ShardClocks] = {}
        """The copies stored at this server."""
        self._valid: set[int] = set()
        self.current: set[int] = set()
        """Numbers of the copies received from this epoch's owner."""
        self._arriving: dict[tuple[int, int], Assembly | RowAssembly] = {}  # by (shard, number of the change)
        self._early: dict[tuple[int, int], ShardChange] = {}

    # --- at the owner ---------------------------------------------------------------------------------------------

    def begin(
        self,
        epoch: int,
        keepers: Mapping[int, tuple[NodeId, ...]],
        here: dict[int, ShardClocks],
        valid: Collection[int],
    ) -> None:
        """Begin an epoch: each owned shard has these keepers; `here` must be copies, and `valid` were copies before."""
        self.epoch, self.keepers, self.here = epoch, dict(keepers), here
        self.numbers = {number: self.numbers.get(number, 0) for number in (*keepers, *here)}
        self._valid = {number for number in here if number in valid}
        self.current, self._arriving, self._early = set(), {}, {}

    def agreed(self) -> None:
        """Mark all copies as equal to their owners' shards: at the beginning of a run."""
        self.current = set(self.here)

    def safe(self, number: int) -> bool:
        """Return whether all keepers have a shard's present state."""
        return not any(self.links[keeper].carries(number) for keeper in self.keepers.get(number, ()))

    def send_copies(
        self, number: int, clocks: ShardClocks, now_ns: int, only: Collection[NodeId] | None = None
    ) -> list[Effect]:
        """Send the content of a shard to its keepers, or to some of them."""
        to = [keeper for keeper in self.keepers.get(number, ()) if only is None or keeper in only]
        if not to:
            return []
        messages = copy_messages(self.epoch, number, self.numbers[number], clocks, self.schema)
        return self._send(to, messages, now_ns)

    def changed(self, number: int, change: ShardChange, now_ns: int) -> list[Effect]:
        """Count an applied change, and send it to the keepers."""
        self.numbers[number] = at = self.numbers.get(number, 0) + 1
        if not self.keepers.get(number):
            return []
        messages = change_messages(self.epoch, number, at, change, self.schema)
        return self._send(self.keepers[number], messages, now_ns)

    def _send(self, to: Sequence[NodeId], messages: Sequence[ChangeMessage | CopyMessage], now_ns: int) -> list[Effect]:
        links = [self.links[keeper] for keeper in to]
        return [effect for message in messages for link in links for effect in link.send(message, now_ns)]

    # --- at a keeper ----------------------------------------------------------------------------------------------

    def take(self, sender: NodeId, message: ChangeMessage | CopyMessage, owner: NodeId | None) -> list[Effect]:
        """Add a piece of a change, or of a copy, of this epoch.  Raises ProtocolError."""
        number = message.shard
        if owner != sender or number not in self.here:
            text = f"server {self.node}: a copy of shard {number} of server {sender}, which has it not to give here"
            raise ProtocolError(text, peer=sender)
        if number in self.current and message.number <= self.numbers[number]:
            return [self._took(sender, message)]
        place, clocks = (number, message.number), self.here[number]
        held = self._arriving.get(place) or arriving(message, clocks, self.placement.shards[number].length)
        self._check(sender, message, held, clocks)
        whole: Whole = None
        if held is not None and isinstance(message, Carrier):
            self._arriving[place] = held
            if not held.has(message.start):
                held.take(message.start, message.vectors)
            if (whole := held.whole) is None:
                return [self._took(sender, message)]
        self._arriving.pop(place, None)
        if isinstance(message, CopyMessage):
            self._overwrite(number, message, whole)
        else:
            self._early[place] = ShardChange(message.clock, message.rate, message.workers, whole)
        self._make(number)
        return [self._took(sender, message)]

    def _took(self, sender: NodeId, message: ChangeMessage | CopyMessage) -> Send:
        return self.links[sender].took(PieceTaken(*message.name))

    def _overwrite(self, number: int, message: CopyMessage, whole: Whole) -> None:
        overwrite_shard(self.here[number], message, whole)
        self.numbers[number] = message.number
        self.current.add(number)
        self._valid.add(number)
        for early in [early for early in self._early if early[0] == number and early[1] <= message.number]:
            del self._early[early]

    def _check(
        self,
        sender: NodeId,
        message: ChangeMessage | CopyMessage,
        held: Assembly | RowAssembly | None,
        clocks: ShardClocks,
    ) -> None:
        what = f"server {self.node}: change {message.number} of shard {message.shard} of server {sender}"
        at, workers, number = self.numbers[message.shard], clocks.clocks, message.shard
        if not fits(message, clocks):
            raise ProtocolError(f"{what} of other workers, of another descent, or of another kind", peer=sender)
        if isinstance(message, Carrier):
            self._check_piece(what, sender, message, held)
        if isinstance(message, ChangeMessage):
            if not set(message.workers) <= workers.keys() or message.clock >= clocks.rounds:
                raise ProtocolError(f"{what} of workers that are not there", peer=sender)
            if number in self.current and message.number > at + WINDOW * len(workers):
                raise ProtocolError(f"{what}, and {at} are here", peer=sender)
        kept = sum(place[0] == number for place in (*self._arriving, *self._early))
        if kept > WINDOW * (1 + len(workers)):
            raise ProtocolError(f"{what}, and too many others are not whole", peer=sender)

    def _check_piece(self, what: str, sender: NodeId, message: Any, held: Assembly | RowAssembly | None) -> None:
        if message.schema != self.schema or held is None or not held.expects(message.start, message.vectors):
            raise ProtocolError(f"{what} of another layout", "Have all the same [model] section?", peer=sender)
        if not all_finite(message.vectors[-1]):
            raise ProtocolError(f"{what} is not finite", peer=sender)
        if isinstance(message, RowStep | RowCopy):
            keys = message.vectors[0]
            if keys[-1] >= self.placement.length or (self._index.shards_of(keys) != message.shard).any():
                raise ProtocolError(f"{what} with rows of other shards", peer=sender)

    def _make(self, number: int) -> None:
        while number in self.current and (change := self._early.pop((number, self.numbers[number] + 1), None)):
            self.here[number].apply(change)
            self.numbers[number] += 1

    @property
    def lacking(self) -> bool:
        """Whether a copy of this epoch is still missing."""
        return bool(self.here.keys() - self.current)

    @property
    def valid(self) -> Mapping[int, ShardClocks]:
        """The copies with all state sent before: received ones, or those stored when the epoch began."""
        return {number: one for number, one in self.here.items() if number in self._valid}
