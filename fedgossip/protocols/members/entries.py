"""The entries of a roster, in buckets by id: a change copies one bucket, and each bucket has a hash.

Two rosters that differ in few members have equal hashes of all other buckets.  So peers with many members compare the
hashes of buckets first, and then the members of unequal buckets: a Merkle tree of two levels (Merkle, CRYPTO 1987).

    10 000 members, all numbers       10 000 x 17 bytes      170 kB
    the hashes of 128 buckets            128 x  9 bytes      1.2 kB, and 1.3 kB for each unequal bucket
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedgossip.base import seeds
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import BUCKETS, Entry

Known = tuple[tuple[NodeId, int, int], ...]
"""(node, incarnation, hash of the verdicts on it) of some members, ascending."""


def bucket_of(node: NodeId) -> int:
    """Return the bucket of `node`: consecutive ids are in different ones, so that all have about the same size."""
    return node % BUCKETS


def bucket_hash(known: Known) -> int:
    """Return a hash of these members' numbers, below 2^53."""
    return seeds.integer(0, "bucket", *(number for numbers in known for number in numbers)) % 2**53


@dataclass(frozen=True)
class Bucket:
    """The entries of one bucket, and what is derived from them alone.  Immutable; rosters share it."""

    entries: Mapping[NodeId, Entry]

    @cached_property
    def known(self) -> Known:
        """The numbers of its members without any verdict."""
        return tuple((i, self.entries[i].incarnation, 0) for i in sorted(self.entries))

    @cached_property
    def hash(self) -> int:
        return bucket_hash(self.known)

    @cached_property
    def spans(self) -> Counter[tuple[int, int]]:
        """Number of members by (first round, end)."""
        return Counter((entry.since, entry.until) for entry in self.entries.values())

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys of its members' links."""
        return frozenset(entry.key for entry in self.entries.values())


EMPTY = Bucket({})


class Entries(Mapping[NodeId, Entry]):
    """Entries by id, in no order.  Immutable; `with_entry` returns another, with all other buckets in common."""

    __slots__ = ("_count", "_ids", "_spans", "buckets")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        found: dict[int, dict[NodeId, Entry]] = {}
        for entry in entries:
            found.setdefault(bucket_of(entry.node), {})[entry.node] = entry
        self.buckets = tuple(Bucket(found[k]) if k in found else EMPTY for k in range(BUCKETS))
        self._count = sum(len(one.entries) for one in self.buckets)
        self._ids: tuple[NodeId, ...] | None = None
        self._spans: Counter[tuple[int, int]] | None = None

    def with_entry(self, entry: Entry) -> Entries:
        """Return these entries with `entry`, in place of an earlier one of its node."""
        changed, at = Entries(), bucket_of(entry.node)
        bucket = Bucket({**self.buckets[at].entries, entry.node: entry})
        changed.buckets = (*self.buckets[:at], bucket, *self.buckets[at + 1 :])
        known = entry.node in self
        changed._count = self._count + (not known)
        changed._ids = self._ids if known else None
        return changed

    def __getitem__(self, node: NodeId) -> Entry:
        return self.buckets[bucket_of(node)].entries[node]

    def get(self, node: NodeId, default: Any = None) -> Any:  # Mapping's costs twice as much, and every message asks
        return self.buckets[node % BUCKETS].entries.get(node, default)

    def __contains__(self, node: object) -> bool:
        return isinstance(node, int) and node in self.buckets[bucket_of(node)].entries

    def __iter__(self) -> Iterator[NodeId]:
        return (node for bucket in self.buckets for node in bucket.entries)

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> tuple[NodeId, ...]:
        """The ids, ascending; sorted once for all rosters with the same members."""
        if self._ids is None:
            self._ids = tuple(sorted(self))
        return self._ids

    @property
    def spans(self) -> Counter[tuple[int, int]]:
        """Number of members by (first round, end)."""
        if self._spans is None:
            self._spans = Counter()
            for bucket in self.buckets:
                self._spans.update(bucket.spans)
        return self._spans

    def has_key(self, key: str) -> bool:
        """Return whether `key` is the key of any member's links."""
        return any(key in bucket.keys for bucket in self.buckets)
