"""Lists of keys as a server knows them: told once by a worker, spoken of by their digests afterwards.

invariant   a list that is here is ascending, and all its rows are the shard's
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
    """The newest lists that were spoken of, by digest; both ends drop the same ones where nothing is lost."""

    def __init__(self) -> None:
        self._lists: OrderedDict[str, Keys] = OrderedDict()
        self._count = 0

    def get(self, digest: str) -> Keys | None:
        """Return a list, which is the newest now."""
        if digest in self._lists:
            self._lists.move_to_end(digest)
        return self._lists.get(digest)

    def peek(self, digest: str) -> Keys | None:
        """Return a list, as old as it was."""
        return self._lists.get(digest)

    def put(self, digest: str, keys: Keys) -> None:
        """Keep a list, and drop the oldest where there are too many."""
        if self.get(digest) is None:
            self._lists[digest] = keys
            self._count += keys.size
        while len(self._lists) > LISTS_MAX or self._count > KEPT_KEYS_MAX:
            self._count -= self._lists.popitem(last=False)[1].size


class KeyLists:
    """What workers have told of a table's rows to the server `node`."""

    def __init__(self, node: NodeId, placement: Placement, schema: str) -> None:
        self.node, self.placement, self.schema = node, placement, schema
        self._index = placement.index()
        self._of: dict[tuple[int, NodeId], NewestLists] = {}

    def take(self, sender: NodeId, told: RowKeys) -> None:
        """Take a list of a shard that is owned here.  Raises ProtocolError for keys that cannot be one."""
        what = f"server {self.node}, shard {told.shard}: keys of worker {sender}"
        keys: Any = told.vectors[0] if len(told.vectors) == 1 else None
        if keys is None or keys.dtype != np.uint32 or keys.shape != (told.count,) or told.schema != self.schema:
            raise ProtocolError(f"{what} of another layout", "Have all the same experiment file?", peer=sender)
        if not keys.size or keys.size > LIST_KEYS_MAX or not (keys[1:] > keys[:-1]).all():
            raise ProtocolError(f"{what} that do not ascend", peer=sender)
        if keys[-1] >= self.placement.length or (self._index.shards_of(keys) != told.shard).any():
            text = f"{what}, of which the shard has not all: its rows are {self.placement.shards[told.shard].words}"
            raise ProtocolError(text, "Have all the same experiment file?", peer=sender)
        if digest_of(keys) != told.digest:
            raise ProtocolError(f"{what} under the name of others", peer=sender)
        lists = self._of.setdefault((told.shard, sender), NewestLists())
        lists.put(told.digest, frozen_keys(keys))

    def take_some(self, sender: NodeId, told: SomeKeys) -> None:
        """Take a part of a list; where that is no longer here nothing is, and the part is asked for when it is needed.

        Raises ProtocolError for bits that cannot be one.
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
        self._of[told.shard, sender].put(told.digest, keys)

    def of(self, sender: NodeId, shard: int, digest: str) -> Keys | None:
        """Return a list that a worker speaks of; None where it is not, or no longer, here.

        What it says may still be refused: only what was `used` is kept for longer.
        """
        lists = self._of.get((shard, sender))
        return None if lists is None else lists.peek(digest)

    def used(self, sender: NodeId, shard: int, digest: str) -> None:
        """Take a list as the newest of its worker."""
        if lists := self._of.get((shard, sender)):
            lists.get(digest)

    def forget(self, sender: NodeId) -> None:
        """Drop what a worker has told: it knows nothing of that any more."""
        self._of = {place: lists for place, lists in self._of.items() if place[1] != sender}
