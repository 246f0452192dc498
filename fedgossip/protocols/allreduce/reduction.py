"""One all-reduce at one rank: the moves of a collective's table, made in order while chunks arrive in any order.

A vector is reduced in buckets, each by a run of the table; OPEN are active at a time, from its end to its start, the
order in which a backward pass computes a gradient.  A chunk is named by (bucket, step): the step-th of its sender for
its receiver in that bucket.  A sent chunk never changes: it is a copy, or a received or summed array.

    invariant   a bucket's move k is made after moves 0 .. k - 1: so the sums depend on the table alone
    bound       early chunks are at most the remaining ones of the table

A round of low-rank gradients is two such sums; chunks of the second continue the bucket numbers and element indices of
the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgossip.algorithms.codecs.low_rank import LowRank
from fedgossip.algorithms.collectives.table import Move, Table, Way
from fedgossip.algorithms.federated.sums import REACH, ExactSum
from fedgossip.base.vectors import Vector, empty, frozen, largest, summable
from fedgossip.core.messages import TAIL

OPEN = 4
"""Number of active buckets."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A chunk from one rank to another."""

    peer: int
    """The receiving rank."""
    bucket: int
    step: int
    start: int
    """Index of its first element in the vector."""
    weight: float
    """Weight of a term that its receiver adds exactly; 0 for a partial sum."""
    vector: Vector


class Reduction:
    """The weighted mean of one vector [d] per rank; every rank ends with it.

    The last element of every vector is 1: if partial sums are rounded, it yields the sum of the weights.  `bucket`:
    number of elements of each stretch but the last.
    """

    def __init__(self, rank: int, table: Table, length: int, kind: np.dtype[np.floating], bucket: int) -> None:
        assert length > 0 and bucket > 0
        self._table = table
        self._summed = table.workers > 1 and not table.exact
        """Whether weighted terms are added, and divided at the end."""
        self._length, self._held = length, empty(0, kind)  # until it begins
        starts = range(0, length, bucket)
        courses = {size: _Course.from_table(rank, table, size) for size in {min(bucket, length), length - starts[-1]}}
        self._buckets: list[_Bucket] = [  # fragments of a model have not the same number of them
            _Bucket(table, courses[min(bucket, length - start)], number, start, kind)
            for number, start in enumerate(starts)
        ]
        self._order: list[_Bucket] = self._buckets[::-1]
        self._lacks = length  # all elements from here on were given
        self._first = 0  # all buckets before it, in their order, are done
        self.summed = 0
        """Number of vector elements added at this rank."""

    @property
    def done(self) -> bool:
        return self.begun and self._first == len(self._buckets)

    @property
    def mean(self) -> Vector:
        """The mean, once all is done; the same bits at every rank.  Not frozen: its owner may reuse its memory."""
        assert self.done
        if self._summed:
            weights = self._held[-1]
            if weights > 0:
                self._held /= weights
            else:  # each rank's own is positive: some rank sent a false one, and there is no mean to step along
                self._held[:] = 0
            self._summed = False
        return self._held

    @property
    def kind(self) -> np.dtype[np.floating]:
        """The element type of chunks."""
        return self._held.dtype

    @property
    def begun(self) -> bool:
        """Whether all elements of the rank's vector were passed."""
        return not self._lacks

    @property
    def starts(self) -> Sequence[int]:
        """The first elements of the buckets, from the last bucket to the second."""
        return [bucket.start for bucket in self._order[:-1]]

    def bears(self, weight: float, *pieces: Vector) -> bool:
        """Return whether the rank's vector can be added to others of its size: otherwise all others would refuse it."""
        most = REACH / 2 if self._table.exact else float(np.sqrt(np.finfo(self._held.dtype).max))
        return all(weight * largest(piece) * self._table.workers < most for piece in pieces)  # not so of a nan

    def begin(self, weight: float, *pieces: Vector) -> list[Chunk]:
        """Pass the rank's vector, in pieces; return the chunks to send now.  Some may have been received before."""
        assert not self.begun and pieces[-1][-1] == 1
        return self.give(0, weight, *pieces)

    def give(self, start: int, weight: float, *pieces: Vector) -> list[Chunk]:
        """Pass elements from `start` on, up to those passed before; return the chunks to send.

        A stretch that would leave a gap after it is ignored.
        """
        assert weight > 0
        stop = start + sum(piece.size for piece in pieces)
        if not start < self._lacks <= stop:
            return []
        if not self._held.size:
            self._held = empty(self._length, self._held.dtype)
        factor, at, own = self._held.dtype.type(weight if self._summed else 1.0), start, self._held[: self._lacks]
        for piece in pieces:
            place = own[at : at + piece.size]
            np.multiply(piece[: place.size], factor, out=place)
            at += piece.size
        before, self._lacks = self._lacks, start
        for bucket in self._buckets:
            if start <= bucket.start < before:
                bucket.begin(weight, self._held)
        return self._go_on()

    def expects(self, sender: int, bucket: int, step: int) -> tuple[int, int] | None:
        """Return (start, stop) of the elements in a chunk of this name; None if no such chunk exists."""
        if not 0 <= bucket < len(self._buckets):
            return None
        return self._buckets[bucket].expects(sender, step)

    def has(self, sender: int, bucket: int, step: int) -> bool:
        """Return whether the chunk was received before."""
        return self._buckets[bucket].has(sender, step)

    def fits(self, chunk_bucket: int, weight: float, vector: Vector) -> bool:
        """Return whether a chunk's numbers can be added: finite, and too small for the sum to overflow."""
        return self._buckets[chunk_bucket].fits(weight, vector)

    def take(self, sender: int, bucket: int, step: int, weight: float, vector: Vector) -> list[Chunk]:
        """Add an expected, new and fitting chunk; return the chunks to send now."""
        self._buckets[bucket].keep(sender, step, weight, vector)
        return self._go_on()

    def awaited(self) -> Mapping[int, int]:
        """Return the awaited ranks, each with the number of buckets that wait for it."""
        found: dict[int, int] = {}
        for bucket in self._order[self._first : self._first + OPEN]:
            if (peer := bucket.awaited) is not None:
                found[peer] = found.get(peer, 0) + 1
        return found

    def _go_on(self) -> list[Chunk]:
        out: list[Chunk] = []
        while True:
            for bucket in self._order[self._first : self._first + OPEN]:
                out += bucket.go_on()
                self.summed += bucket.summed
                bucket.summed = 0
            before = self._first
            while self._first < len(self._order) and self._order[self._first].done:
                self._first += 1
            if self._first in (before, len(self._order)):
                return out


@dataclass(frozen=True, slots=True, eq=False)
class _Course:
    """A rank's moves in a bucket of `size` elements, the step of each, and the parts from each sender, in order."""

    size: int
    moves: Sequence[tuple[Move, slice]]
    steps: Sequence[int]
    takes: Mapping[int, Sequence[slice]]

    @classmethod
    def from_table(cls, rank: int, table: Table, size: int) -> _Course:
        moves = list(table.of(rank, size))
        takes: dict[int, list[slice]] = {}
        for move, part in moves:
            if move.way is not Way.SEND:
                takes.setdefault(move.peer, []).append(part)
        return cls(size, moves, steps_of([move for move, _ in moves]), takes)


class _Bucket:
    """One run of the table on a stretch of the vector; `part` is written in place."""

    def __init__(self, table: Table, course: _Course, number: int, start: int, kind: np.dtype[np.floating]) -> None:
        self._number, self.start, self._size = number, start, course.size
        self._part: Vector = np.empty(0, kind)  # until it begins
        self._moves: Sequence[tuple[Move, slice]] = course.moves
        self._steps: Sequence[int] = course.steps
        self._takes: Mapping[int, Sequence[slice]] = course.takes
        self._at = 0
        self._made: dict[int, int] = {}  # number of parts taken, by sender
        self._passed_on: dict[tuple[int, int], Vector] = {}  # last parts, to be forwarded without a copy
        self._kept: dict[tuple[int, int], tuple[float, Vector]] = {}  # by sender and step, until its move
        self._weight, self._terms = 0.0, table.workers
        self._adds = sum(move.way is Way.ADD for move, _ in self._moves)  # still to be made
        self._raw = table.exact
        self._exact: ExactSum | None = None
        self.summed = 0  # elements, until they are counted

    def begin(self, weight: float, held: Vector) -> None:
        """Begin with the rank's term, stored in `held`."""
        self._part = held[self.start : self.start + self._size]
        self._weight = weight if self._raw else 0.0
        if self._raw and self._adds:
            self._exact = ExactSum()
            self._exact.add(weight, self._part)

    @property
    def done(self) -> bool:
        return bool(self._part.size) and self._at == len(self._moves)

    @property
    def awaited(self) -> int | None:
        """The rank awaited by the next move."""
        return self._moves[self._at][0].peer if self._part.size and not self.done else None

    def expects(self, sender: int, step: int) -> tuple[int, int] | None:
        takes = self._takes.get(sender, ())
        if not 0 <= step < len(takes):
            return None
        return self.start + takes[step].start, self.start + takes[step].stop

    def has(self, sender: int, step: int) -> bool:
        return step < self._made.get(sender, 0) or (sender, step) in self._kept

    def fits(self, weight: float, vector: Vector) -> bool:
        if not summable(vector):
            return False
        if not self._raw:
            return True
        return weight * largest(vector) * self._terms < REACH / 2  # as large as the sum of all terms

    def keep(self, sender: int, step: int, weight: float, vector: Vector) -> None:
        self._kept[sender, step] = weight, vector

    def go_on(self) -> list[Chunk]:
        """Make every possible move; return the chunks to send."""
        out: list[Chunk] = []
        while self._part.size and not self.done:
            move, part = self._moves[self._at]
            step = self._steps[self._at]
            if move.way is Way.SEND:
                out.append(self._chunk(move, part, step))
            elif (arrived := self._kept.pop((move.peer, step), None)) is not None:
                self._take(move, part, *arrived)
            else:
                break
            self._at += 1
        return out

    def _chunk(self, move: Move, part: slice, step: int) -> Chunk:
        vector = self._passed_on.get((part.start, part.stop))
        if vector is None:
            vector = empty(part.stop - part.start, self._part.dtype)
            vector[:] = self._part[part]
        return Chunk(move.peer, self._number, step, self.start + part.start, self._weight, frozen(vector))

    def _take(self, move: Move, part: slice, weight: float, arrived: Vector) -> None:
        self._made[move.peer] = self._made.get(move.peer, 0) + 1
        if move.way is Way.REPLACE:
            self._part[part], self._weight = arrived, 0.0
            self._pass_on(part, arrived)
            return
        self._adds -= 1
        self.summed += arrived.size
        if self._exact is None:
            self._add(part, arrived)
            return
        self._exact.add(weight, arrived)
        if not self._adds:
            self._part[:], self._weight = self._exact.mean(self._part.dtype), 0.0
            self._exact = None

    def _add(self, part: slice, arrived: Vector) -> None:
        """Add into the received part's memory, if this rank owns it; a replaced part need not fit in the vector."""
        total = np.add(
            self._part[part], arrived, out=arrived if arrived.flags.writeable else empty(arrived.size, arrived.dtype)
        )
        self._pass_on(part, total)
        if not self._is_replaced(part):
            self._part[part] = total

    def _pass_on(self, part: slice, vector: Vector) -> None:
        for start, stop in list(self._passed_on):
            if start < part.stop and part.start < stop:
                del self._passed_on[start, stop]
        self._passed_on[part.start, part.stop] = vector

    def _is_replaced(self, part: slice) -> bool:
        for move, other in self._moves[self._at + 1 :]:
            if other == part and move.way is not Way.ADD:
                if move.way is Way.REPLACE:
                    return True
            elif other.start < part.stop and part.start < other.stop:
                return False
        return False


def steps_of(moves: Sequence[Move]) -> list[int]:
    """Return for each move the number of moves before it with the same peer and direction."""
    seen: dict[tuple[int, bool], int] = {}
    found = []
    for move in moves:
        key = move.peer, move.way is Way.SEND
        found.append(seen.get(key, 0))
        seen[key] = found[-1] + 1
    return found


class LowRankReduction:
    """Invariant: the second sum begins when the first is done and this rank's vector was passed."""

    def __init__(self, rank: int, table: Table, low: LowRank, bucket: int) -> None:
        kind, first, second = low.layout.dtype, low.first_length + TAIL, low.second_length + 1
        self._low = low
        self._sums = Reduction(rank, table, first, kind, bucket), Reduction(rank, table, second, kind, bucket)
        self._buckets, self._elements = -(-first // bucket), first
        self._own: tuple[float, Vector] | None = None
        self._left: Vector | None = None

    @property
    def summed(self) -> int:
        return sum(one.summed for one in self._sums)

    @property
    def kind(self) -> np.dtype[np.floating]:
        """The element type of chunks."""
        return self._low.layout.dtype

    @property
    def begun(self) -> bool:
        return self._sums[0].begun

    @property
    def done(self) -> bool:
        return self._sums[1].done

    @property
    def starts(self) -> Sequence[int]:
        """Empty: all buckets are sent together."""
        return []

    @property
    def mean(self) -> Vector:
        """All P, the uncompressed part with its tail, and all Q; frozen, the same bits at every rank."""
        assert self.done and self._left is not None
        first, second = (one.mean for one in self._sums)
        return frozen(np.concatenate([self._left, first[self._left.size :], second[:-1]]))

    def bears(self, weight: float, *pieces: Vector) -> bool:
        """Return whether the rank's vector can be added to others of its size."""
        return self._sums[0].bears(weight, *pieces[:2])

    def give(self, start: int, weight: float, *pieces: Vector) -> list[Chunk]:
        """Pass this rank's part: of the first sum, its tail, and the vector [d] that determines the second."""
        if self.begun or start:
            return []
        first, tail, vector = pieces
        self._own = weight, vector
        return [*self._sums[0].give(0, weight, first, tail), *self._go_on()]

    def _go_on(self) -> list[Chunk]:
        if self._left is not None or self._own is None or not self._sums[0].done:
            return []
        weight, vector = self._own
        self._left = self._low.left(self._sums[0].mean)
        one = frozen(np.ones(1, self.kind))
        return self._shift(self._sums[1].give(0, weight, self._low.second(vector, self._left), one))

    def _shift(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        return [replace(one, bucket=one.bucket + self._buckets, start=one.start + self._elements) for one in chunks]

    def _locate(self, bucket: int) -> tuple[Reduction, int]:
        return (self._sums[0], bucket) if bucket < self._buckets else (self._sums[1], bucket - self._buckets)

    def expects(self, sender: int, bucket: int, step: int) -> tuple[int, int] | None:
        """Return (start, stop) of the elements in a chunk of this name; None if no such chunk exists."""
        of, number = self._locate(bucket)
        found = of.expects(sender, number, step)
        behind = 0 if of is self._sums[0] else self._elements
        return found and (found[0] + behind, found[1] + behind)

    def has(self, sender: int, bucket: int, step: int) -> bool:
        """Return whether the chunk was received before."""
        of, number = self._locate(bucket)
        return of.has(sender, number, step)

    def fits(self, bucket: int, weight: float, vector: Vector) -> bool:
        """Return whether a chunk's numbers can be added."""
        of, number = self._locate(bucket)
        return of.fits(number, weight, vector)

    def take(self, sender: int, bucket: int, step: int, weight: float, vector: Vector) -> list[Chunk]:
        """Add an expected, new and fitting chunk; return the chunks to send now."""
        of, number = self._locate(bucket)
        out = of.take(sender, number, step, weight, vector)
        return [*out, *self._go_on()] if of is self._sums[0] else self._shift(out)

    def awaited(self) -> Mapping[int, int]:
        """Return the awaited ranks, each with the number of buckets that wait for it."""
        return (self._sums[1] if self._sums[0].done else self._sums[0]).awaited()
