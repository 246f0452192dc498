"""All-reduce on a ring, and all-gather: every rank sends to the next one alone.

Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, J. Parallel and
Distributed Computing 69 (2009).
"""

from __future__ import annotations

from fedgossip.algorithms.collectives.table import Move, Table, Way


def ring(workers: int) -> Table:
    """Scatter-reduce, then all-gather, of m parts: 2 (m - 1) / m of a vector sent by each, in 2 (m - 1) steps.

    In step s of the first half rank r sends part r - s to rank r + 1, which adds it; so rank r ends with the sum of
    part r + 1, and that travels round in the second half.
    """
    m = workers

    def moves(rank: int) -> tuple[Move, ...]:
        found: list[Move] = []
        for way, shift in ((Way.ADD, 0), (Way.REPLACE, 1)):
            for step in range(m - 1):
                out, come = (rank + shift - step) % m, (rank + shift - step - 1) % m
                found.append(Move(Way.SEND, (rank + 1) % m, out, out + 1))
                found.append(Move(way, (rank - 1) % m, come, come + 1))
        return tuple(found)

    return Table(m, tuple(moves(rank) for rank in range(m)))


def ring_naive(workers: int) -> Table:
    """The whole vector twice round: once for the sum, once for its distribution; 2 (m - 1) steps of a whole vector
    each."""
    m = workers

    def moves(rank: int) -> tuple[Move, ...]:
        before, after = (rank - 1) % m, (rank + 1) % m
        found = [Move(Way.ADD, before, 0, 1)] if rank > 0 else []
        if rank < m - 1:
            found += [Move(Way.SEND, after, 0, 1), Move(Way.REPLACE, before, 0, 1)]
        if rank != m - 2:
            found.append(Move(Way.SEND, after, 0, 1))
        return tuple(found)

    return Table(1, tuple(moves(rank) for rank in range(m)) if m > 1 else ((),))


def ring_gather(workers: int) -> Table:
    """All-gather: part r is rank r's, and travels round; m - 1 parts sent by each, in m - 1 steps."""
    m = workers

    def moves(rank: int) -> tuple[Move, ...]:
        found: list[Move] = []
        for step in range(m - 1):
            out, come = (rank - step) % m, (rank - step - 1) % m
            found.append(Move(Way.SEND, (rank + 1) % m, out, out + 1))
            found.append(Move(Way.REPLACE, (rank - 1) % m, come, come + 1))
        return tuple(found)

    return Table(m, tuple(moves(rank) for rank in range(m)))
