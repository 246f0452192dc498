"""Copies of shards: those that other servers keep of what this one owns, and those that it keeps for others.

The owner numbers the changes of a shard.  At the beginning of its tenure it sends all that the shard is to those that
are to keep copies, and then each change: the gradient of the step, and they make the same step.  A shard is `safe` when
they have taken every piece of that: only then is a worker answered, so the next owner lacks nothing of what was.

    invariant   a copy is its owner's shard after some change that the owner has made, whole
    bound       changes that come before their turn are at most what is under way on a link
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedgossip.algorithms.hash_ring import Placement
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import all_finite
from fedgossip.core.machine import Effect, NodeId, Send
from fedgossip.core.messages import Carrier, ChangeMessage, CopyMessage, PieceTaken, RowCopy, RowStep
from fedgossip.protocols.allreduce.chunk_links import WINDOW, ChunkLink
from fedgossip.protocols.servers.copy_messages import Whole, arriving, become, change_messages, copy_messages, fits
from fedgossip.protocols.servers.pieces import Assembly, RowAssembly
from fedgossip.protocols.servers.shard_clocks import ShardChange, ShardClocks


class ShardCopies:
    """What one server has others keep, and keeps."""

    def __init__(self, node: NodeId, placement: Placement, schema: str, links: Mapping[NodeId, ChunkLink]) -> None:
        self.node, self.placement, self.schema, self.links = node, placement, schema, links
        self._index = placement.index()
        self.epoch = 0
        self.keepers: dict[int, tuple[NodeId, ...]] = {}
        """Who keeps a copy of each shard that this server owns."""
        self.numbers: dict[int, int] = {}  # of changes, of each shard that is here
        self.here: dict[int, ShardClocks] = {}
        """The copies that this server keeps."""
        self._valid: set[int] = set()
        self.current: set[int] = set()
        """Those of them that are of this epoch's owner."""
        self._arriving: dict[tuple[int, int], Assembly | RowAssembly] = {}  # by shard and number of the change
        self._early: dict[tuple[int, int], ShardChange] = {}

    # --- at the owner ---------------------------------------------------------------------------------------------

    def begin(
        self,
        epoch: int,
        keepers: Mapping[int, tuple[NodeId, ...]],
        here: dict[int, ShardClocks],
        valid: Collection[int],
    ) -> None:
        """Begin an epoch: each shard owned has these keepers; `here` are to be copies, and `valid` were some before."""
        self.epoch, self.keepers, self.here = epoch, dict(keepers), here
        self.numbers = {number: self.numbers.get(number, 0) for number in (*keepers, *here)}
        self._valid = {number for number in here if number in valid}
        self.current, self._arriving, self._early = set(), {}, {}

    def agreed(self) -> None:
        """All copies are what their owners have: at the beginning of a run."""
        self.current = set(self.here)

    def safe(self, number: int) -> bool:
        """Whether all keepers have all of a shard as it is now."""
        return not any(self.links[keeper].carries(number) for keeper in self.keepers.get(number, ()))

    def tell(
        self, number: int, clocks: ShardClocks, now_ns: int, only: Collection[NodeId] | None = None
    ) -> list[Effect]:
        """Send all that a shard is to its keepers, or to some of them."""
        to = [keeper for keeper in self.keepers.get(number, ()) if only is None or keeper in only]
        if not to:
            return []
        messages = copy_messages(self.epoch, number, self.numbers[number], clocks, self.schema)
        return self._sent(to, messages, now_ns)

    def changed(self, number: int, change: ShardChange, now_ns: int) -> list[Effect]:
        """Count a change that was made, and send it to the keepers."""
        self.numbers[number] = at = self.numbers.get(number, 0) + 1
        if not self.keepers.get(number):
            return []
        messages = change_messages(self.epoch, number, at, change, self.schema)
        return self._sent(self.keepers[number], messages, now_ns)

    def _sent(self, to: Sequence[NodeId], messages: Sequence[ChangeMessage | CopyMessage], now_ns: int) -> list[Effect]:
        links = [self.links[keeper] for keeper in to]
        return [effect for message in messages for link in links for effect in link.send(message, now_ns)]

    # --- at a keeper ----------------------------------------------------------------------------------------------

    def take(self, sender: NodeId, message: ChangeMessage | CopyMessage, owner: NodeId | None) -> list[Effect]:
        """Take a piece of a change, or of all that a shard is, of this epoch.  Raises ProtocolError."""
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
            self._become(number, message, whole)
        else:
            self._early[place] = ShardChange(message.clock, message.rate, message.workers, whole)
        self._make(number)
        return [self._took(sender, message)]

    def _took(self, sender: NodeId, message: ChangeMessage | CopyMessage) -> Send:
        return self.links[sender].took(PieceTaken(*message.name))

    def _become(self, number: int, message: CopyMessage, whole: Whole) -> None:
        become(self.here[number], message, whole)
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
                raise ProtocolError(f"{what}, of which the shard has not all rows", peer=sender)

    def _make(self, number: int) -> None:
        """Make the changes whose turn it is."""
        while number in self.current and (change := self._early.pop((number, self.numbers[number] + 1), None)):
            self.here[number].apply(change)
            self.numbers[number] += 1

    @property
    def lacking(self) -> bool:
        """Whether a copy is still to come of this epoch."""
        return bool(self.here.keys() - self.current)

    @property
    def valid(self) -> Mapping[int, ShardClocks]:
        """The copies that hold all that was answered before: those that came, or were here when the epoch began."""
        return {number: one for number, one in self.here.items() if number in self._valid}
