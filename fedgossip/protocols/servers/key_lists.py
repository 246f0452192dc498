"""Lists of keys at a server: sent once by a worker, referred to by their digests afterwards.

invariant   a stored list is ascending, and all its rows are the shard's
bound       of each worker and shard the newest lists: LISTS_MAX, of KEPT_KEYS_MAX keys in all
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from fedgossip.algorithms.hash_ring import Placement
from fedgossip.base.errors import ProtocolError
from fedgossip.base.keyed_rows import Keys, digest_of, frozen_keys
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import LIST_KEYS_MAX, RowKeys, SomeKeys

LISTS_MAX = 64
KEPT_KEYS_MAX = 2 * LIST_KEYS_MAX


class NewestLists:
    """The most recently used lists, by digest; both ends drop the same ones where nothing is lost."""

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
        """Store a list, and drop the oldest where there are too many."""
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

    def take(self, sender: NodeId, told: RowKeys) -> None:
        """Store a list of a shard that is owned here.  Raises ProtocolError for invalid keys."""
        what = f"server {self.node}, shard {told.shard}: keys of worker {sender}"
        keys: Any = told.vectors[0] if len(told.vectors) == 1 else None
        if keys is None or keys.dtype != np.uint32 or keys.shape != (told.count,) or told.schema != self.schema:
            raise ProtocolError(f"{what} of another layout", "Have all the same experiment file?", peer=sender)
        if not keys.size or keys.size > LIST_KEYS_MAX or not (keys[1:] > keys[:-1]).all():
            raise ProtocolError(f"{what} that do not ascend", peer=sender)
        if keys[-1] >= self.placement.length or (self._index.shards_of(keys) != told.shard).any():
            text = f"{what} with rows of other shards: its rows are {self.placement.shards[told.shard].words}"
            raise ProtocolError(text, "Have all the same experiment file?", peer=sender)
        if digest_of(keys) != told.digest:
            raise ProtocolError(f"{what} under the name of others", peer=sender)
        lists = self._of.setdefault((told.shard, sender), NewestLists())
        lists.store(told.digest, frozen_keys(keys))

    def take_some(self, sender: NodeId, told: SomeKeys) -> None:
        """Store a part of a list; without the list nothing is stored, and the part is requested when it is needed.

        Raises ProtocolError for invalid bits.
        """
        what = f"server {self.node}, shard {told.shard}: some keys of worker {sender}"
        bits: Any = told.vectors[0] if len(told.vectors) == 1 else None
        if bits is None or bits.dtype != np.uint8 or bits.shape != (-(-told.count // 8),) or told.schema != self.schema:
            raise ProtocolError(f"{what} of another layout", "Have all the same experiment file?", peer=sender)
        whole = self.of(sender, told.shard, told.among)
        if whole is None:
            return
        if whole.size != told.count:
            raise ProtocolError(f"{what} of {told.count}, and the list has {whole.size}", peer=sender)
        keys = frozen_keys(whole[np.unpackbits(bits, count=told.count).astype(bool)])
        if not keys.size or digest_of(keys) != told.digest:
            raise ProtocolError(f"{what} under the name of others", peer=sender)
        self._of[told.shard, sender].store(told.digest, keys)

    def of(self, sender: NodeId, shard: int, digest: str) -> Keys | None:
        """Return a list that a worker refers to; None where it is not stored.

        The message may still be refused: only a list that was `used` is kept for longer.
        """
        lists = self._of.get((shard, sender))
        return None if lists is None else lists.peek(digest)

    def used(self, sender: NodeId, shard: int, digest: str) -> None:
        """Mark a list as the newest of its worker."""
        if lists := self._of.get((shard, sender)):
            lists.get(digest)

    def forget(self, sender: NodeId) -> None:
        """Drop a worker's lists, when it has lost its record of them."""
        self._of = {place: lists for place, lists in self._of.items() if place[1] != sender}
