"""A worker's part of a table: the rows that its batch needs, and the watched rows when it is measured.

At least one row of each shard is pulled, as the reply acknowledges the previous push; a gradient without rows of a
shard is sent as `NoRows`.

A list of keys precedes the first message that refers to it by its digest; with the key-cache filter it is sent once to
each server, as long as the server stores it.  The keys of a push are sent as one bit for each pulled key.

    invariant   a stored list is ascending, and all its rows are the shard's
    bound       for each worker and shard the newest lists: LISTS_MAX, with KEPT_KEYS_MAX keys in all
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedgossip.algorithms.descent.row_filters import KEY_CACHE, Memory, Pushing, RowFilter, applied
from fedgossip.algorithms.hash_ring import Placement
from fedgossip.base.errors import ProtocolError, TrainingError
from fedgossip.base.keyed_rows import KeyedTable, Keys, Rows, digest_of, frozen_keys, no_rows, united
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import ChooseRows, Effect, NodeId, Report, RowsChosen, Train
from fedgossip.core.messages import LIST_KEYS_MAX, Message, NoRows, RowKeys, RowPull, RowPush, SomeKeys
from fedgossip.protocols.allreduce.chunk_links import Chunk
from fedgossip.protocols.servers.model_parts import PushFacts, pieces


class RowParts:
    """One worker's part of a run on a table.  `model`: the watched rows at their last pull."""

    always_whole = False

    def __init__(
        self,
        node: NodeId,
        seed: int,
        placement: Placement,
        table: KeyedTable,
        schema: str,
        model: Vector,
        rounds: int,
        every: int,
        accumulate: int,
        filters: Mapping[str, RowFilter | None],
    ) -> None:
        """`filters` by their texts; None for the key-cache.  `every`: number of rounds between two measurements."""
        self.node, self.seed, self.placement, self.table, self.schema = node, seed, placement, table, schema
        self.model, self.rounds, self.every, self.accumulate = model, rounds, every, accumulate
        self.names, self.caches = [name for name in filters if name != KEY_CACHE], KEY_CACHE in filters
        self.filters: Sequence[RowFilter] = [one for one in filters.values() if one is not None]
        self.memories: list[Memory] = [None] * len(self.filters)
        self.ready, self.clock = False, -1
        self.batch = no_rows(model.dtype)
        self._index = placement.index()
        self._watched: Keys | None = None
        self._batch_keys = self._all = self.batch.keys
        self._lists: dict[int, Keys] = {}  # pulled keys, by shard
        self._digests: dict[int, str] = {}
        self._parts: dict[int, Rows] = {}  # pushed rows, by shard
        self._told: dict[int, NewestLists] = {}
        self._untold: dict[int, dict[str, Keys]] = {}  # current lists to send before the next message
        self._saved: Counter[str] = Counter()
        self._sent = 0

    # --- pulls --------------------------------------------------------------------------------------------------------

    def choose(self, clock: int) -> list[Effect]:
        self.ready, self.clock = False, clock
        measured = clock % self.every == 0 or clock == self.rounds
        return [ChooseRows(clock, self.accumulate if clock < self.rounds else 0, measured)]

    def chosen(self, event: RowsChosen) -> None:
        if self.ready or event.job != self.clock:
            return
        lists = [event.keys] if event.watched is None else [event.keys, event.watched]
        for keys in lists:
            if keys.dtype != np.uint32 or not (keys[1:] > keys[:-1]).all() or (keys[-1:] >= self.table.rows).any():
                text = f"worker {self.node}, round {self.clock}: its task needs rows {keys[:1]} to {keys[-1:]}"
                raise TrainingError(text, f"Give uint32 keys, strictly ascending, below {self.table.rows}.")
        self._batch_keys, self._watched = event.keys, event.watched
        self._all = event.keys if event.watched is None else united(event.keys, event.watched)
        of = self._index.shards_of(self._all)
        for shard in self.placement.shards:
            keys = self._all[of == shard.number]
            if not keys.size:
                keys = np.array([shard.ranges[0][0]])
            self._lists[shard.number] = mine = frozen_keys(keys)
            self._digests[shard.number] = digest_of(mine)
            self._announce(shard.number, mine)
        self.ready = True

    def _announce(self, shard: int, keys: Keys) -> None:
        """Schedule a list before the first message that refers to it, unless the server has it."""
        if keys.size > LIST_KEYS_MAX:
            text = f"worker {self.node}, round {self.clock}: {keys.size} rows of one server in a batch"
            raise TrainingError(text, f"At most {LIST_KEYS_MAX} go: lower train.batch_size, or take more servers.")
        digest, sent = digest_of(keys), self._told.setdefault(shard, NewestLists())
        if self.caches and sent.get(digest) is not None:
            part = digest != self._digests.get(shard) and self._smaller(keys, self._lists[shard])
            self._saved[KEY_CACHE] += -(-self._lists[shard].size // 8) if part else keys.nbytes
        else:
            self._untold.setdefault(shard, {})[digest] = keys
        sent.store(digest, keys)

    def fits(self, clock: int) -> bool:
        return self.ready and clock == self.clock

    def length(self, shard: int) -> int:
        return self._lists[shard].size * self.table.width if shard in self._lists else 0

    def digest(self, shard: int) -> str:
        return self._digests.get(shard, "")

    def pull(self, epoch: int, shard: int, clock: int, first: int) -> list[Message]:
        digest = self._digests[shard]
        return [*self._send_list_first(epoch, shard, digest), RowPull(epoch, shard, clock, first, digest)]

    def _send_list_first(self, epoch: int, shard: int, digest: str) -> list[Message]:
        keys = self._untold.get(shard, {}).pop(digest, None)
        if keys is None:
            return []
        whole = self._lists[shard]
        if self._smaller(keys, whole) and digest != (among := self._digests[shard]):
            bits = np.packbits(np.isin(whole, keys, assume_unique=True))
            return [SomeKeys(epoch, shard, digest, among, whole.size, self.schema, (bits,))]  # type: ignore[arg-type]
        return [RowKeys(epoch, shard, digest, keys.size, self.schema, (keys,))]  # type: ignore[arg-type]

    @staticmethod
    def _smaller(keys: Keys, whole: Keys) -> bool:
        return -(-whole.size // 8) < keys.nbytes and bool(np.isin(keys, whole, assume_unique=True).all())

    def take(self, pulled: Mapping[int, Vector], clock: int) -> None:  # noqa: ARG002
        width, of = self.table.width, self._index.shards_of(self._all)
        whole = np.empty((self._all.size, width), self.model.dtype)
        for shard in self.placement.shards:
            if (mine := of == shard.number).any():
                whole[mine] = pulled[shard.number].reshape(-1, width)
        rows = Rows(self._all, frozen(whole.reshape(-1)))
        self.batch = rows.select(self._batch_keys) if self._batch_keys.size else no_rows(self.model.dtype)
        if self._watched is not None:
            self.model = rows.select(self._watched).values
        self._parts, self._untold = {}, {}

    # --- pushes -------------------------------------------------------------------------------------------------------

    def training(self, clock: int, accumulate: int | None) -> Train:
        return Train(clock, self.batch.values, gradient=True, accumulate=accumulate, keys=self.batch.keys)

    def divide(self, gradient: Vector | None, clock: int) -> None:
        values = gradient if gradient is not None else frozen(np.zeros_like(self.batch.values))
        if values.shape != self.batch.values.shape:
            what = f"a gradient of {values.shape}, its rows are {self.batch.values.shape}"
            text = f"worker {self.node}, round {clock}: {what}"
            raise TrainingError(text, "A gradient job's answer has the shape of its vector.")
        pushing = Pushing(Rows(self.batch.keys, values), self.batch, clock, self.node, self.seed)
        rows, kept_back = applied(self.filters, self.memories, pushing)
        size = 4 + self.table.width * self.model.dtype.itemsize
        self._saved.update({name: count * size for name, count in zip(self.names, kept_back, strict=True)})
        of = self._index.shards_of(rows.keys)
        for shard in self.placement.shards:
            part = rows.only(of == shard.number) if rows.keys.size else rows
            self._parts[shard.number] = part
            if part.keys.size:
                self._announce(shard.number, part.keys)
                self._sent += part.values.nbytes + part.keys.nbytes

    def push(self, facts: PushFacts) -> tuple[list[Message], list[Chunk]]:
        epoch, shard, part = facts[0], facts[1], self._parts[facts[1]]
        if not part.keys.size:
            return [], [NoRows(*facts)]
        digest = digest_of(part.keys)
        found = [RowPush(*facts, digest, start, one.size, self.schema, (one,)) for start, one in pieces(part.values)]
        return self._send_list_first(epoch, shard, digest), list[Chunk](found)

    @property
    def saved(self) -> Mapping[str, Vector]:
        return {}

    # --- lists stored at servers --------------------------------------------------------------------------------------

    def resend_lists(self, shards: Iterable[int]) -> None:
        for shard in shards:
            self._told.pop(shard, None)
            now = [self._lists.get(shard), self._parts[shard].keys if shard in self._parts else None]
            self._untold[shard] = {digest_of(keys): keys for keys in now if keys is not None and keys.size}

    def wanted(self, epoch: int, shard: int, digest: str) -> list[Message]:
        now = [self._lists.get(shard), self._parts[shard].keys if shard in self._parts else None]
        found = [keys for keys in now if keys is not None and keys.size and digest_of(keys) == digest]
        return [RowKeys(epoch, shard, digest, keys.size, self.schema, (keys,)) for keys in found[:1]]  # type: ignore[arg-type]

    def summary(self) -> list[Effect]:
        if not self.filters and not self.caches:
            return []
        names = [*self.names, *([KEY_CACHE] if self.caches else [])]
        saved = {name: int(self._saved[name]) for name in names}
        return [Report("push_filters", {"pushed": self._sent, "saved": saved}, max(self.clock, 0))]


LISTS_MAX = 64
KEPT_KEYS_MAX = 2 * LIST_KEYS_MAX


class NewestLists:
    """The most recently used lists, by digest; without losses both ends drop the same ones."""

    def __init__(self) -> None:
        self._lists: OrderedDict[str, Keys] = OrderedDict()
        self._count = 0

    def get(self, digest: str) -> Keys | None:
        """Return a list, and mark it as the newest."""
        if digest in self._lists:
            self._lists.move_to_end(digest)
        return self._lists.get(digest)

    def peek(self, digest: str) -> Keys | None:
        """Return a list without a change of its age."""
        return self._lists.get(digest)

    def store(self, digest: str, keys: Keys) -> None:
        """Store a list; drop the oldest if there are too many."""
        if self.get(digest) is None:
            self._lists[digest] = keys
            self._count += keys.size
        while len(self._lists) > LISTS_MAX or self._count > KEPT_KEYS_MAX:
            self._count -= self._lists.popitem(last=False)[1].size


class KeyLists:
    """The lists of a table's rows that workers have sent to the server `node`."""

    def __init__(self, node: NodeId, placement: Placement, schema: str) -> None:
        self.node, self.placement, self.schema = node, placement, schema
        self._index = placement.index()
        self._of: dict[tuple[int, NodeId], NewestLists] = {}

    def take(self, sender: NodeId, message: RowKeys) -> None:
        """Store a list of a shard owned by this server.  Raises ProtocolError for invalid keys."""
        what = f"server {self.node}, shard {message.shard}: keys of worker {sender}"
        keys: Any = message.vectors[0] if len(message.vectors) == 1 else None
        if keys is None or keys.dtype != np.uint32 or keys.shape != (message.count,) or message.schema != self.schema:
            raise ProtocolError(f"{what} of another layout", "Have all the same experiment file?", peer=sender)
        if not keys.size or keys.size > LIST_KEYS_MAX or not (keys[1:] > keys[:-1]).all():
            raise ProtocolError(f"{what} that do not ascend", peer=sender)
        if keys[-1] >= self.placement.length or (self._index.shards_of(keys) != message.shard).any():
            text = f"{what} with rows of other shards: its rows are {self.placement.shards[message.shard].words}"
            raise ProtocolError(text, "Have all the same experiment file?", peer=sender)
        if digest_of(keys) != message.digest:
            raise ProtocolError(f"{what} under the name of others", peer=sender)
        lists = self._of.setdefault((message.shard, sender), NewestLists())
        lists.store(message.digest, frozen_keys(keys))

    def take_some(self, sender: NodeId, message: SomeKeys) -> None:
        """Store a part of a stored list; else it is requested when needed.  Raises ProtocolError for invalid bits."""
        what = f"server {self.node}, shard {message.shard}: some keys of worker {sender}"
        bits: Any = message.vectors[0] if len(message.vectors) == 1 else None
        if (
            bits is None
            or bits.dtype != np.uint8
            or bits.shape != (-(-message.count // 8),)
            or message.schema != self.schema
        ):
            raise ProtocolError(f"{what} of another layout", "Have all the same experiment file?", peer=sender)
        whole = self.find(sender, message.shard, message.among)
        if whole is None:
            return
        if whole.size != message.count:
            raise ProtocolError(f"{what} of {message.count}, and the list has {whole.size}", peer=sender)
        keys = frozen_keys(whole[np.unpackbits(bits, count=message.count).astype(bool)])
        if not keys.size or digest_of(keys) != message.digest:
            raise ProtocolError(f"{what} under the name of others", peer=sender)
        self._of[message.shard, sender].store(message.digest, keys)

    def find(self, sender: NodeId, shard: int, digest: str) -> Keys | None:
        """Return a list referenced by a worker, or None; only a `used` one is stored for longer."""
        lists = self._of.get((shard, sender))
        return None if lists is None else lists.peek(digest)

    def used(self, sender: NodeId, shard: int, digest: str) -> None:
        """Mark a list as the newest of its worker."""
        if lists := self._of.get((shard, sender)):
            lists.get(digest)

    def forget(self, sender: NodeId) -> None:
        """Drop a worker's lists after it lost its record of them."""
        self._of = {place: lists for place, lists in self._of.items() if place[1] != sender}
