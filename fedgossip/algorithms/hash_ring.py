"""Consistent hashing of a model's elements onto servers.

    the circle    the elements 0 .. d - 1 of the model, one after the other
    a point       server s has `points` points, each at sha256("s/v"): the same on every machine and in every run
    the owner     of an element: the server of the first point at or after it; its copies: the next other servers

A shard is all elements with the same owner and copies, ascending.  It moves as a whole to the first present server of
its `preference`.  An added server takes elements evenly from all, and no other element moves.

Source: Karger, Lehman, Leighton, Panigrahy, Levine and Lewin, Consistent hashing and random trees, STOC 1997; ranges
with copies at the next servers: Li, Andersen, Park, Smola, Ahmed, Josifovski, Long, Shekita and Su, Scaling distributed
machine learning with the parameter server, OSDI 2014, section 4.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from fedgossip.base.vectors import Vector, empty, frozen
from fedgossip.core.task import Segment

CIRCLE = 2**64
"""Number of positions on the circle; a hash selects one."""

Range = tuple[int, int]
"""Elements from the first number to before the second."""


@dataclass(frozen=True)
class Shard:
    """Elements with one owner.  `preference`: all servers, in the order of their claim to own it."""

    number: int
    ranges: tuple[Range, ...]
    preference: tuple[int, ...]

    @property
    def length(self) -> int:
        """Number of its elements."""
        return sum(stop - start for start, stop in self.ranges)

    def holders(self, alive: Collection[int], copies: int) -> tuple[int, ...]:
        """Return the servers that hold it: the owner first, then those with copies; fewer if fewer are alive."""
        return tuple(server for server in self.preference if server in alive)[:copies]

    def keepers(self, alive: Collection[int], joining: Collection[int], copies: int) -> tuple[int, ...]:
        """Return the servers that hold it now or soon: its holders, and joining servers that will be holders."""
        soon = self.holders({*alive, *joining}, copies)
        return (*self.holders(alive, copies), *(one for one in soon if one in joining))

    def taken_from(self, vector: Vector) -> Vector:
        """Return its elements of a whole vector [d], frozen."""
        out = empty(self.length, vector.dtype)
        at = 0
        for start, stop in self.ranges:
            out[at : at + stop - start] = vector[start:stop]
            at += stop - start
        return frozen(out)

    def put_into(self, vector: Vector, part: Vector) -> None:
        """Write its elements into a whole vector [d]."""
        at = 0
        for start, stop in self.ranges:
            vector[start:stop] = part[at : at + stop - start]
            at += stop - start

    @property
    def words(self) -> str:
        """Its elements, as a text."""
        some = ", ".join(f"{start} to {stop - 1}" for start, stop in self.ranges[:3])
        return some + (f" and {len(self.ranges) - 3} ranges more" if len(self.ranges) > 3 else "")


@dataclass(frozen=True, eq=False)
class RangeIndex:
    """All ranges, ascending: the first element of each, and its shard."""

    starts: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]

    def shards_of(self, elements: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Return the shard of each of these elements, [k]; none may be beyond the last."""
        return self.numbers[np.searchsorted(self.starts, elements, side="right") - 1]


@dataclass(frozen=True)
class Placement:
    """The shards of a model of `length` elements, ascending by their first element; `copies`: wanted copies of each."""

    length: int
    copies: int
    shards: tuple[Shard, ...]

    def owned(self, server: int, alive: Collection[int]) -> list[Shard]:
        """Return the shards that a server owns while these are alive."""
        return [shard for shard in self.shards if shard.holders(alive, 1) == (server,)]

    def held(self, server: int, alive: Collection[int]) -> list[Shard]:
        """Return the shards that a server owns or copies while these are alive."""
        return [shard for shard in self.shards if server in shard.holders(alive, self.copies)]

    def index(self) -> RangeIndex:
        """Return a vectorised lookup of the shards of elements."""
        ranges = sorted((start, shard.number) for shard in self.shards for start, _ in shard.ranges)
        starts, numbers = zip(*ranges, strict=True)
        return RangeIndex(np.array(starts), np.array(numbers))

    def shares(self, servers: Sequence[int]) -> list[int]:
        """Return the number of elements that each server owns while all of them are alive."""
        return [sum(shard.length for shard in self.owned(server, servers)) for server in servers]


def placed(
    length: int, servers: Sequence[int], points: int, copies: int, segments: Sequence[Segment] = ()
) -> Placement:
    """Return the placement of a model's elements on `servers`, by their indices in this list.

    Each has `points` on the circle.  With `segments` a tensor stays whole, at its first element's server.
    """
    assert length > 0 and servers and points > 0 and 0 < copies <= len(servers)
    walk = _walks(len(servers), points)
    cuts = [(one.start, one.stop, walk.first(one.start, length)) for one in segments] if segments else walk.arcs(length)
    found: dict[tuple[int, ...], list[Range]] = {}
    begun: dict[tuple[int, ...], int] = {}
    for start, stop, point in cuts:
        holders = tuple(islice(walk.preference(point), copies))
        begun.setdefault(holders, point)
        ranges = found.setdefault(holders, [])
        if ranges and ranges[-1][1] == start:
            ranges[-1] = ranges[-1][0], stop
        else:
            ranges.append((start, stop))
    shards = (
        Shard(number, tuple(ranges), tuple(servers[index] for index in walk.preference(begun[holders])))
        for number, (holders, ranges) in enumerate(found.items())
    )
    return Placement(length, copies, tuple(shards))


def owners(length: int, servers: int, points: int) -> np.ndarray:
    """Return the owner of each element, [length], for `servers` servers; for tests and forecasts."""
    found = np.empty(length, np.int64)
    for shard in placed(length, range(servers), points, 1).shards:
        for start, stop in shard.ranges:
            found[start:stop] = shard.preference[0]
    return found


@dataclass(frozen=True)
class _Walks:
    """The points of the circle in order: their positions, and their servers."""

    places: tuple[int, ...]
    servers: tuple[int, ...]
    count: int

    def first(self, element: int, length: int) -> int:
        """Return the first point at or after an element."""
        return bisect_left(self.places, element * CIRCLE // length) % len(self.places)

    def arcs(self, length: int) -> Iterator[tuple[int, int, int]]:
        """Yield (start, stop, point) of all elements, ascending; points without elements are omitted."""
        start = 0
        for point, place in enumerate(self.places):
            stop = min(length, place * length // CIRCLE + 1)
            if stop > start:
                yield start, stop, point
            start = max(start, stop)
        if start < length:
            yield start, length, 0

    def preference(self, point: int) -> Iterator[int]:
        """Yield all servers in the order of their points from `point` on."""
        met: set[int] = set()
        for step in range(len(self.servers)):
            server = self.servers[(point + step) % len(self.servers)]
            if server not in met:
                met.add(server)
                yield server
                if len(met) == self.count:
                    return


def _walks(servers: int, points: int) -> _Walks:
    ring = sorted((_place(server, point), server) for server in range(servers) for point in range(points))
    return _Walks(tuple(at for at, _ in ring), tuple(server for _, server in ring), servers)


def _place(server: int, point: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{server}/{point}".encode()).digest()[:8], "big")
