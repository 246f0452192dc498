"""All-reduce by partners at distances of powers of two.

p is the largest power of two that is not above m.  The m - p ranks above fold first: each sends its vector to the rank
p below it, which adds it, and sends the sum back at the end.

Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, Int. J. High
Performance Computing Applications 19 (2005).
"""

from __future__ import annotations

from collections.abc import Callable

from fedgossip.algorithms.collectives.table import Move, Table, Way


def power_below(workers: int) -> int:
    """Return the largest power of two that is at most `workers`."""
    return 1 << (workers.bit_length() - 1)


def recursive_doubling(workers: int) -> Table:
    """Whole vectors are exchanged with rank XOR 1, 2, 4, ...: log2 p steps."""

    def moves(rank: int, p: int) -> list[Move]:
        partners = [rank ^ (1 << k) for k in range(p.bit_length() - 1)]
        return [Move(way, partner, 0, 1) for partner in partners for way in (Way.SEND, Way.ADD)]

    return _folded(workers, 1, moves)


def halving_doubling(workers: int) -> Table:
    """Rabenseifner's: scatter-reduce by halves, all-gather by doubling; 2 (p - 1) / p of a vector in 2 log2 p steps.

    With the partner at distance p / 2, p / 4, ..., 1 a rank keeps the half of its stretch given by its id, and adds to
    it what the partner sends; so it ends with part number `rank`, and the exchanges are repeated in reverse.
    """

    def moves(rank: int, p: int) -> list[Move]:
        found: list[Move] = []
        back: list[Move] = []
        first, stop = 0, p
        distance = p // 2
        while distance:
            partner, middle = rank ^ distance, (first + stop) // 2
            keep, give = ((first, middle), (middle, stop)) if rank < partner else ((middle, stop), (first, middle))
            found += [Move(Way.SEND, partner, *give), Move(Way.ADD, partner, *keep)]
            back = [Move(Way.SEND, partner, *keep), Move(Way.REPLACE, partner, *give), *back]
            first, stop = keep
            distance //= 2
        return found + back

    return _folded(workers, power_below(workers), moves)


def _folded(workers: int, parts: int, moves: Callable[[int, int], list[Move]]) -> Table:
    p = power_below(workers)
    found = [moves(rank, p) for rank in range(p)] + [[] for _ in range(p, workers)]
    for rank in range(p, workers):
        partner = rank - p
        found[rank] = [Move(Way.SEND, partner, 0, parts), Move(Way.REPLACE, partner, 0, parts)]
        found[partner] = [Move(Way.ADD, rank, 0, parts), *found[partner], Move(Way.SEND, rank, 0, parts)]
    return Table(parts, tuple(map(tuple, found)))
