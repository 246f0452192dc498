"""All-reduce without relays: through one rank, or everyone to everyone; sums without an order (`ExactSum`).  And
all-gather."""

from __future__ import annotations

from fedgossip.algorithms.collectives.table import Move, Table, Way


def star(workers: int) -> Table:
    """Reduce to rank 0, which receives from all, then broadcast from it: 2 steps, 2 (m - 1) vectors through one
    rank."""
    others = range(1, workers)
    hub = [Move(Way.ADD, rank, 0, 1) for rank in others] + [Move(Way.SEND, rank, 0, 1) for rank in others]
    spokes = [(Move(Way.SEND, 0, 0, 1), Move(Way.REPLACE, 0, 0, 1)) for _ in others]
    return Table(1, (tuple(hub), *spokes), exact=True)


def all_to_all(workers: int) -> Table:
    """Every rank sends its vector to every other: 1 step, m (m - 1) vectors."""

    def moves(rank: int) -> tuple[Move, ...]:
        others = [(rank + k) % workers for k in range(1, workers)]  # not all to rank 0 first
        return (*(Move(Way.SEND, to, 0, 1) for to in others), *(Move(Way.ADD, to, 0, 1) for to in sorted(others)))

    return Table(1, tuple(moves(rank) for rank in range(workers)), exact=True)


def gather_all_to_all(workers: int) -> Table:
    """All-gather: part r is rank r's, which sends it to all others: m - 1 parts sent by each, in 1 step."""

    def moves(rank: int) -> tuple[Move, ...]:
        others = [(rank + k) % workers for k in range(1, workers)]
        sends = [Move(Way.SEND, to, rank, rank + 1) for to in others]
        return (*sends, *(Move(Way.REPLACE, of, of, of + 1) for of in sorted(others)))

    return Table(workers, tuple(moves(rank) for rank in range(workers)))
