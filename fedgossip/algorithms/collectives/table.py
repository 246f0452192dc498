"""Interface of a collective: for every rank its moves, in order.

A vector is cut into `parts` as by numpy.array_split.  A move sends a stretch of consecutive parts, or receives one: it
adds the stretch, or overwrites with it.  A move follows all moves before it, and each message is used by the move that
expects it: the sums, and their bits, do not depend on time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from fedgossip.base.vectors import Vector


class Way(Enum):
    SEND = "send"
    ADD = "add"
    """Receive, and add to the local elements."""
    REPLACE = "replace"
    """Receive, and replace the local elements."""


@dataclass(frozen=True, slots=True)
class Move:
    way: Way
    peer: int
    """The receiving or sending rank."""
    first: int
    stop: int
    """Parts first to stop - 1."""


@dataclass(frozen=True, slots=True)
class Table:
    """A collective of `len(moves)` workers; after their moves all hold the sum of all vectors.

    `exact`: summed by `ExactSum`, with equal bits for all such methods.  Otherwise two numbers at a time in the table's
    order: the bits are equal on all ranks, but differ between methods.
    """

    parts: int
    moves: tuple[tuple[Move, ...], ...]
    exact: bool = False

    @property
    def workers(self) -> int:
        return len(self.moves)

    def bounds(self, length: int) -> list[int]:
        """Return the starts of the parts in a vector of `length` elements, and the end of the last one (parts + 1)."""
        each, longer = divmod(length, self.parts)
        return [part * each + min(part, longer) for part in range(self.parts + 1)]

    def of(self, rank: int, length: int) -> Iterator[tuple[Move, slice]]:
        """Yield a rank's moves with their elements; empty moves are omitted, at both ends."""
        bounds = self.bounds(length)
        for move in self.moves[rank]:
            if bounds[move.first] < bounds[move.stop]:
                yield move, slice(bounds[move.first], bounds[move.stop])

    def sent(self, rank: int, length: int) -> int:
        """Total number of elements sent by the rank."""
        return sum(part.stop - part.start for move, part in self.of(rank, length) if move.way is Way.SEND)

    def received(self, rank: int, length: int) -> int:
        """Total number of elements received by the rank."""
        return sum(part.stop - part.start for move, part in self.of(rank, length) if move.way is not Way.SEND)

    def steps(self) -> int:
        """Number of messages on the longest chain of messages that wait for each other."""
        done, steps = [0] * self.workers, [0] * self.workers
        sent: dict[tuple[int, int], list[int]] = {}
        while (at := list(done)) is not None:
            for rank, moves in enumerate(self.moves):
                while done[rank] < len(moves):
                    move = moves[done[rank]]
                    if move.way is Way.SEND:
                        sent.setdefault((rank, move.peer), []).append(steps[rank] + 1)
                    elif waiting := sent.get((move.peer, rank)):
                        steps[rank] = max(steps[rank], waiting.pop(0))
                    else:
                        break
                    done[rank] += 1
            if at == done:
                break
        return max(steps)


def summed(table: Table, vectors: Sequence[Vector]) -> list[np.ndarray[tuple[int], np.dtype[np.floating]]]:
    """Return each rank's final vector, [d] of one [d] per rank: the reference for the tests of machines and engines.

    Raises ValueError if ranks deadlock.
    """
    held = [np.array(vector) for vector in vectors]
    done = [list(table.of(rank, held[rank].size)) for rank in range(table.workers)]
    under_way: dict[tuple[int, int], list[np.ndarray[tuple[int], np.dtype[np.floating]]]] = {}
    while any(done):
        before = sum(map(len, done))
        for rank, moves in enumerate(done):
            while moves:
                move, part = moves[0]
                if move.way is Way.SEND:
                    under_way.setdefault((rank, move.peer), []).append(held[rank][part].copy())
                elif arrived := under_way.get((move.peer, rank)):
                    theirs = arrived.pop(0)
                    held[rank][part] = held[rank][part] + theirs if move.way is Way.ADD else theirs
                else:
                    break
                del moves[0]
        if sum(map(len, done)) == before:
            raise ValueError(f"ranks wait for each other: {[moves[0] for moves in done if moves]}")
    return held
